"""Python's websockets: the whole of a viewer's life, with right and wrong input."""

import asyncio
import json
import os
import ssl
import urllib.request

import websockets
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

URL = os.environ["RINGCAST_URL"]
KEY = os.environ["RINGCAST_KEY"]
TOKEN = os.environ["RINGCAST_TOKEN"]
CHANNEL = f"python-{os.getpid()}"
SOCKET = f"ws{URL.removeprefix('http')}/v1/demo/channels/{CHANNEL}/ws"
# Through a proxy that ends TLS, with a certificate of this test only.
TLS = ssl.create_default_context(cafile=os.environ["RINGCAST_CA"]) if URL.startswith("https") else None


def post(text):
    request = urllib.request.Request(
        f"{URL}/v1/demo/channels/{CHANNEL}/messages",
        json.dumps({"text": text}).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
        assert answer.status == 201
        return json.load(answer)


def open_socket(query="", **options):
    return connect(SOCKET + query, ssl=TLS, open_timeout=10, **options)


async def next_of(socket, kind):
    while True:
        event = json.loads(await asyncio.wait_for(socket.recv(), 10))
        if event["type"] == kind:
            return event


async def refused(status, query="", **options):
    try:
        async with open_socket(query, **options):
            raise AssertionError(f"{status} was due, and it was let in")
    except InvalidStatus as error:
        assert error.response.status_code == status, error
        assert error.response.headers["Content-Type"] == "application/problem+json"
        return json.loads(error.response.body)["code"]


async def closed(socket):
    try:
        while True:
            await asyncio.wait_for(socket.recv(), 10)
    except ConnectionClosed as end:
        return end.rcvd.code if end.rcvd else 1006


async def main():
    async with open_socket(f"?token={TOKEN}", subprotocols=["ringcast.json"]) as socket:
        assert socket.subprotocol == "ringcast.json"
        ready = json.loads(await socket.recv())
        assert ready["type"] == "connection.ready" and ready["seq"] == 0, ready
        await asyncio.wait_for(await socket.ping(b"are you there"), 10)
        post("one")
        assert (await next_of(socket, "message.new"))["text"] == "one"
        # A text in fragments, cut within a character's bytes or not: the library cuts between strings.
        command = json.dumps({"type": "message", "id": 7, "channel": CHANNEL, "text": "zwei ü 𝄞"}, ensure_ascii=False)
        await socket.send([command[:20], command[20:21], command[21:]])
        ack = await next_of(socket, "ack")
        assert (ack["id"], ack["seq"]) == (7, 2), ack
        await socket.send("nonsense")
        assert (await next_of(socket, "error"))["code"] == "malformed"
        await socket.send(b"\x00\x01")
        assert (await next_of(socket, "error"))["code"] == "malformed"
        await socket.send(json.dumps({"type": "history", "id": 8, "channel": CHANNEL, "since": 1}))
        page = await next_of(socket, "history")
        assert [event["text"] for event in page["messages"]] == ["zwei ü 𝄞"], page
    # Away and back: what was missed comes in order, and nothing twice.
    for text in ["three", "four", "five"]:
        post(text)
    async with open_socket(f"?epoch={ready['epoch']}&since=2") as socket:
        again = json.loads(await socket.recv())
        assert again["recovered"] is True and again["seq"] == 5, again
        texts = [(await next_of(socket, "message.new"))["text"] for _ in range(3)]
        assert texts == ["three", "four", "five"], texts
    async with open_socket("?epoch=00000000000000ff&since=2") as socket:
        assert json.loads(await socket.recv())["recovered"] is False
    # The binary dialect: answers are texts, events are archives.
    async with open_socket(subprotocols=["ringcast.rkyv"]) as socket:
        assert socket.subprotocol == "ringcast.rkyv"
        assert json.loads(await socket.recv())["type"] == "connection.ready"
        post("six")
        while True:
            event = await asyncio.wait_for(socket.recv(), 10)
            assert isinstance(event, bytes), event
            if b"six" in event:
                break
    # Many at once see the same in the same order.
    sockets = [await open_socket() for _ in range(20)]
    for number in range(10):
        post(str(number))
    seen = [[(await next_of(socket, "message.new"))["seq"] for _ in range(10)] for socket in sockets]
    assert all(seqs == list(range(7, 17)) for seqs in seen), seen
    await asyncio.gather(*(socket.close() for socket in sockets))
    # Wrong input.
    assert await refused(401, "?token=nonsense") == "bad_token"
    assert await refused(400, "?since=1") == "bad_position"
    assert await refused(400, subprotocols=["chat"]) == "no_common_subprotocol"
    async with open_socket() as socket:
        await socket.send("x" * 70_000)
        assert await closed(socket) == 1009
    async with open_socket() as socket:
        await socket.send([b"\xff"], text=True)
        assert await closed(socket) == 1007
    async with open_socket() as socket:
        for _ in range(30):
            await socket.send("nonsense")
        assert await closed(socket) == 4400
    print(f"ok: websockets {websockets.__version__}: commands, fragments, resuming, one order, closes, refusals")


asyncio.run(main())
