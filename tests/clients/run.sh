#!/bin/bash
# A session of every foreign client with one running node of the app `demo`: right and wrong input, the same for all.
# usage: run.sh DIR http://127.0.0.1:PORT SERVER_KEY TOKEN     DIR as made by setup.sh; TOKEN is of the user `ann`
# Ends with 1 at the first thing that is not as it should be, and takes a minute at the most.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(realpath "$1") url=$2
export RINGCAST_URL=$2 RINGCAST_KEY=$3 RINGCAST_TOKEN=$4
case $url in http://127.*|http://localhost*|http://\[::1\]*) ;; *) echo "loopback only" >&2; exit 2 ;; esac
has() {
  if grep -q "^$1:" "$dir/missing"; then
    echo "SKIPPED: $(grep "^$1:" "$dir/missing")"
    return 1
  fi
}
part() {
  echo "-- $1"
  shift
  timeout 60 "$@"
}
part curl bash "$here/session_curl.sh"
if has websockets; then part "Python websockets" env PYTHONPATH="$dir/python" python3 "$here/session.py"; fi
if has ws; then part "Node ws" env NODE_PATH="$dir/node/node_modules" node "$here/session.js"; fi
if has websocat; then part websocat bash "$here/session_websocat.sh" "$dir/cargo/bin/websocat"; fi
