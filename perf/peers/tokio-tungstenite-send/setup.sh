#!/bin/sh
exec sh "$(dirname "$0")/../tokio-tungstenite/setup.sh"
