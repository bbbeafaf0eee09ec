#!/bin/sh
exec sh "$(dirname "$0")/../cargo.sh" "$(dirname "$0")" peer-fastwebsockets fastwebsockets
