#!/bin/bash
# tuning/haproxy.cfg as it stands, but for its ports and paths, in front of a node: TLS ends, the client's address arrives, sockets live.
# usage: haproxy.sh DIR RINGCAST     DIR as made by setup.sh; RINGCAST is the binary
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(realpath "$1") ringcast=$(realpath "$2")
if [ ! -x "$dir/haproxy" ]; then
  echo "SKIPPED: $(grep '^haproxy:' "$dir/missing")"
  exit 0
fi
fail() { echo "FAILED: $*" >&2; exit 1; }
work=$(mktemp -d)
pids=()
end() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap end EXIT
read -r public admin tls < <(python3 -c 'import socket
held = [socket.socket() for _ in range(3)]
for s in held: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in held))')

cat > "$work/ringcast.toml" <<T
[proxies]
networks = ["127.0.0.1"]
proxy_protocol = true
T
"$ringcast" serve --config "$work/ringcast.toml" --data-dir "$work/data" --listen "127.0.0.1:$public" --admin "127.0.0.1:$admin" \
  2> "$work/node.log" & pids+=($!)
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1,DNS:localhost \
  -keyout "$work/key" -out "$work/ca" 2>/dev/null
cat "$work/ca" "$work/key" > "$work/pem"
# maxconn: this test runs where descriptors may be few.
sed -e "s/bind :443/bind :$tls/" -e "s#/etc/haproxy/ringcast.pem#$work/pem#" -e "s/:8080/:$public/" -e "s/port 8081/port $admin/" \
  -e 's/maxconn 100000/maxconn 100/' "$here/../../tuning/haproxy.cfg" > "$work/haproxy.cfg"
for changed in ":$tls" "$work/pem" ":$public" "port $admin" 'maxconn 100$'; do
  grep -q -- "$changed" "$work/haproxy.cfg" || fail "tuning/haproxy.cfg has no place for $changed"
done
"$dir/haproxy" -c -q -f "$work/haproxy.cfg" || fail "HAProxy does not take tuning/haproxy.cfg"
"$dir/haproxy" -db -f "$work/haproxy.cfg" 2> "$work/haproxy.log" & pids+=($!)

get() { curl -sS -m 10 --cacert "$work/ca" -o "$work/body" -w '%{http_code}' "$@" 2> "$work/curl.log" || true; }
page=/v1/demo/channels/x/messages
for _ in $(seq 200); do
  status=$(get "https://127.0.0.1:$tls$page")
  [ "$status" = 200 ] && break
  sleep 0.1
done
[ "$status" = 200 ] || fail "$status through HAProxy: $(cat "$work/body" "$work/curl.log" "$work/haproxy.log" "$work/node.log")"
# The app `demo` serves loopback only. By another address of this machine the same request comes from elsewhere.
other=$(hostname -I 2>/dev/null | tr ' ' '\n' | grep -E '^[0-9.]+$' | head -1 || true)
if [ -n "$other" ]; then
  status=$(get -k "https://$other:$tls$page")
  [ "$status" = 403 ] && grep -q loopback_only "$work/body" || fail "the client's address did not arrive: $status $(cat "$work/body")"
else
  echo "no address beside loopback: that the client's arrives is left to the node's own tests"
fi
# Past the proxy, without its header, nobody gets in from its address.
[ "$(get "http://127.0.0.1:$public$page")" = 400 ] && grep -q bad_proxy_header "$work/body" || fail "no PROXY header, and let in"
if ! grep -q '^websockets:' "$dir/missing"; then
  token=$("$ringcast" token --data-dir "$work/data" --sub ann)
  RINGCAST_URL=https://127.0.0.1:$tls RINGCAST_CA=$work/ca RINGCAST_KEY=$(cat "$work/data/demo.key") RINGCAST_TOKEN=$token \
    PYTHONPATH=$dir/python timeout 60 python3 "$here/session.py"
fi
echo "ok: $("$dir/haproxy" -v | head -1)"
