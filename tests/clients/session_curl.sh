#!/bin/bash
# curl: the HTTP API and Server-Sent Events.
set -euo pipefail
api=$RINGCAST_URL/v1/demo channel=curl-$$
out=$(mktemp -d)
stream=
trap '[ -z "$stream" ] || kill "$stream" 2>/dev/null || true; rm -rf "$out"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# call STATUS CURL-ARGUMENTS…: the body is in $out/body, the head in $out/head.
call() {
  local expected=$1 status
  shift
  status=$(curl -sS -m 10 -o "$out/body" -D "$out/head" -w '%{http_code}' "$@")
  [ "$status" = "$expected" ] || fail "$expected was due and $status came: $* $(cat "$out/body")"
}
field() { python3 -c 'import json, sys; v = json.load(open(sys.argv[1]))
for key in sys.argv[2:]: v = v[int(key)] if key.isdigit() else v[key]
print(v)' "$out/body" "$@"; }
is() { [ "$1" = "$2" ] || fail "$2 was due, not $1"; }
# has PATTERN FILE: waits until it stands there.
has() {
  for _ in $(seq 200); do
    grep -q -- "$1" "$2" && return
    sleep 0.05
  done
  fail "$1 did not come: $(cat "$2")"
}

curl -sSN -m 60 "$api/channels/$channel/sse" > "$out/stream" & stream=$!
has '"connection.ready"' "$out/stream"
call 201 -H "Authorization: Bearer $RINGCAST_TOKEN" -H 'Idempotency-Key: one' --json '{"text":"hello, wörld"}' "$api/channels/$channel/messages"
id=$(field id)
is "$(field seq)" 1
has '"text":"hello, wörld"' "$out/stream"
event=$(sed -n 's/^id: \(.*:1\)\r*$/\1/p' "$out/stream" | head -1)
call 201 -H "Authorization: Bearer $RINGCAST_TOKEN" -H 'Idempotency-Key: one' --json '{"text":"again"}' "$api/channels/$channel/messages"
is "$(field id)" "$id"
kill "$stream"; wait "$stream" 2>/dev/null || true; stream=
call 200 -X PATCH -H "Authorization: Bearer $RINGCAST_TOKEN" --json '{"text":"edited"}' "$api/channels/$channel/messages/$id"
call 200 -X PUT -H "Authorization: Bearer $RINGCAST_TOKEN" "$api/channels/$channel/messages/$id/reactions/like"
# Back again behind what was seen.
curl -sSN -m 60 -H "Last-Event-ID: $event" "$api/channels/$channel/sse" > "$out/again" & stream=$!
has '"recovered":true' "$out/again"
has 'event: message.updated' "$out/again"
has 'event: reaction.new' "$out/again"
! grep -q 'hello, w' "$out/again" || fail "what was seen came again"
kill "$stream"; wait "$stream" 2>/dev/null || true; stream=
call 200 "$api/channels/$channel/messages?limit=2"
is "$(field head)" 3
is "$(field messages 1 type)" reaction.new
call 200 --compressed "$api/channels/$channel/viewers"
call 202 -H "Authorization: Bearer $RINGCAST_KEY" --json '{"type":"custom.goal","data":{"by":9}}' "$api/channels/$channel/events"
# A body that asks for 100 (Continue) first, and one in chunks.
python3 -c 'print("{\"data\":\"" + "x" * 8000 + "\"}")' > "$out/large"
call 201 -H 'Expect: 100-continue' -H "Authorization: Bearer $RINGCAST_KEY" --data-binary "@$out/large" "$api/channels/$channel/messages"
call 201 -H 'Transfer-Encoding: chunked' -H "Authorization: Bearer $RINGCAST_KEY" -d '{"text":"in chunks"}' "$api/channels/$channel/messages"
call 204 -X OPTIONS -H 'Origin: https://a.example' "$api/channels/$channel/messages"
# Wrong input.
call 401 -d '{"text":"x"}' "$api/channels/$channel/messages"
is "$(field code)" token_needed
call 401 -H 'Authorization: Bearer nonsense' -d '{"text":"x"}' "$api/channels/$channel/messages"
is "$(field code)" bad_token
call 400 -H "Authorization: Bearer $RINGCAST_KEY" -d '{' "$api/channels/$channel/messages"
is "$(field code)" malformed_body
call 413 -H "Authorization: Bearer $RINGCAST_KEY" --data-binary "{\"text\":\"$(head -c 17000 /dev/zero | tr '\0' x)\"}" "$api/channels/$channel/messages"
is "$(field code)" message_too_large
call 404 "$RINGCAST_URL/v1/nobody/channels/x/messages"
grep -qi '^content-type: application/problem+json' "$out/head" || fail "a refusal is a problem document: $(cat "$out/head")"
call 405 -X DELETE "$api/channels/$channel/messages"
grep -qi '^allow: GET, HEAD, POST' "$out/head" || fail "405 names what is allowed"
call 426 "$api/channels/$channel/ws"
call 400 -H 'Last-Event-ID: nonsense' "$api/channels/$channel/sse"
echo "ok: posts, pages, changes, streams that resume, refusals"
