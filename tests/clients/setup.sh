#!/bin/bash
# Gets WebSocket clients that nobody here wrote into DIR: Python's `websockets` (PyPI), Node's `ws` (npm), `websocat` (crates.io) and
# HAProxy (Debian's package, unpacked and not installed). Each at a pinned version; does nothing where DIR is complete already.
# usage: setup.sh DIR
# What cannot be had is named in DIR/missing and its part of the session is left out; curl and Python are demanded.
set -euo pipefail
dir=$(realpath -m "${1:?usage: setup.sh DIR}")
[ -f "$dir/complete" ] && exit 0
command -v curl >/dev/null && command -v python3 >/dev/null || { echo "curl and python3 are needed: apt-get install curl python3" >&2; exit 1; }
rm -rf "$dir" && mkdir -p "$dir"
: > "$dir/missing"
missing() { echo "$1: $2" | tee -a "$dir/missing" >&2; }

python3 -m pip install -q --disable-pip-version-check --no-deps --target "$dir/python" websockets==15.0.1 \
  || missing websockets "pip cannot install it"
if command -v npm >/dev/null; then
  npm install --silent --no-audit --no-fund --prefix "$dir/node" ws@8.18.3 >/dev/null || missing ws "npm cannot install it"
else
  missing ws "there is no npm: apt-get install nodejs npm"
fi
# Without TLS, and quickly built rather than quick: it sends three lines.
CARGO_PROFILE_DEV_DEBUG=0 cargo install -q --debug --no-default-features --root "$dir/cargo" websocat --version 1.14.0 \
  || missing websocat "cargo cannot install it"
if command -v haproxy >/dev/null; then
  ln -s "$(command -v haproxy)" "$dir/haproxy"
elif command -v apt-get >/dev/null; then
  # Only unpacked: nothing starts, and no user or service is made on this machine.
  mkdir "$dir/debs" "$dir/root"
  if (cd "$dir/debs" && apt-get -q download haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 >/dev/null 2>&1); then
    for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir/root"; done
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$dir/root/usr/lib/$(uname -m)-linux-gnu" "$dir/root/usr/sbin/haproxy" \
      > "$dir/haproxy"
    chmod +x "$dir/haproxy"
    "$dir/haproxy" -v >/dev/null 2>&1 || { rm "$dir/haproxy"; missing haproxy "the package does not run here"; }
  else
    missing haproxy "apt-get cannot download it"
  fi
  rm -rf "$dir/debs"
else
  missing haproxy "there is no apt-get"
fi
touch "$dir/complete"
