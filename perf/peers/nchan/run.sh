#!/bin/sh
# usage: run.sh PORT DIR
set -eu
# One process holds all connections.
ulimit -n "$(ulimit -Hn)"
peer=$(cd "$(dirname "$0")" && pwd)
sed -e "s|%PORT%|$1|" -e "s|%DIR%|$2|" -e "s|%PEER%|$peer|" "$peer/nginx.conf" > "$2/nginx.conf"
exec "$peer/build/usr/sbin/nginx" -p "$2" -e stderr -c "$2/nginx.conf"
