#!/bin/sh
exec sh "$(dirname "$0")/../npm.sh" "$(dirname "$0")" ws
