#!/bin/bash
# websocat: a socket as a pipe.
set -euo pipefail
websocat=$1
api=ws${RINGCAST_URL#http}/v1/demo channel=websocat-$$
fail() { echo "FAILED: $*" >&2; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkfifo "$out/say"
"$websocat" "$api/channels/$channel/ws?token=$RINGCAST_TOKEN" < "$out/say" > "$out/heard" & peer=$!
exec 3> "$out/say"
has() {
  for _ in $(seq 200); do
    grep -q -- "$1" "$out/heard" && return
    sleep 0.05
  done
  fail "$1 did not come: $(cat "$out/heard")"
}
has '"connection.ready"'
head -1 "$out/heard" | grep -q '"type":"connection.ready"' || fail "the first frame is ready"
echo '{"type":"ping","id":1}' >&3
has '"type":"pong","id":1'
echo "{\"type\":\"message\",\"id\":2,\"channel\":\"$channel\",\"text\":\"from a pipe\"}" >&3
has '"type":"ack"'
has '"text":"from a pipe"'
echo 'nonsense' >&3
has '"code":"malformed"'
curl -sS -m 10 -o /dev/null -H "Authorization: Bearer $RINGCAST_KEY" -d '{"text":"to a pipe"}' "$RINGCAST_URL/v1/demo/channels/$channel/messages"
has '"text":"to a pipe"'
exec 3>&-
wait "$peer" || fail "websocat ended with $?"
! "$websocat" -n1 "$api/channels/$channel/ws?token=nonsense" < /dev/null > /dev/null 2> "$out/refused" || fail "a bad token was let in"
grep -q 401 "$out/refused" || fail "401 was due: $(cat "$out/refused")"
echo "ok: ready, commands, events, an end, a refusal"
