// Node's ws: the whole of a viewer's life, with right and wrong input.
'use strict';
const assert = require('assert');
const WebSocket = require('ws');

const { RINGCAST_URL: url, RINGCAST_KEY: key, RINGCAST_TOKEN: token } = process.env;
const channel = `node-${process.pid}`;
const socketUrl = `ws${url.slice('http'.length)}/v1/demo/channels/${channel}/ws`;

// A socket and a queue of what it has heard.
function open(query = '', protocols = []) {
  const socket = new WebSocket(socketUrl + query, protocols, { handshakeTimeout: 10_000 });
  const heard = [], waiting = [];
  socket.on('message', (data, isBinary) => {
    const event = isBinary ? { type: 'binary', data } : JSON.parse(data);
    waiting.length ? waiting.shift()(event) : heard.push(event);
  });
  const next = () => (heard.length ? Promise.resolve(heard.shift()) : new Promise((done) => waiting.push(done)));
  const nextOf = async (type) => {
    for (;;) {
      const event = await next();
      if (event.type === type) return event;
    }
  };
  const closed = new Promise((done) => socket.on('close', (code, reason) => done({ code, reason: reason.toString() })));
  socket.on('error', () => {});
  return { socket, next, nextOf, closed, say: (command) => socket.send(JSON.stringify(command)) };
}

async function post(text) {
  const answer = await fetch(`${url}/v1/demo/channels/${channel}/messages`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ text }),
  });
  assert.strictEqual(answer.status, 201);
  return answer.json();
}

function refused(query, protocols = []) {
  return new Promise((done, fail) => {
    const socket = new WebSocket(socketUrl + query, protocols);
    socket.on('open', () => fail(new Error('it was let in')));
    socket.on('error', () => {});
    socket.on('unexpected-response', (_, response) => {
      let body = '';
      response.on('data', (data) => (body += data));
      response.on('end', () => done([response.statusCode, JSON.parse(body).code]));
    });
  });
}

async function main() {
  // The token as browsers can send it.
  const one = open('', ['ringcast.json', `bearer.${token}`]);
  const ready = await one.next();
  assert.strictEqual(ready.type, 'connection.ready');
  assert.strictEqual(one.socket.protocol, 'ringcast.json');
  await new Promise((done) => { one.socket.on('pong', done); one.socket.ping('x'); });
  await post('one');
  assert.strictEqual((await one.nextOf('message.new')).text, 'one');
  one.say({ type: 'message', id: 'm', channel, text: 'zwei ü 𝄞' });
  assert.strictEqual((await one.nextOf('ack')).seq, 2);
  one.socket.send('{"type":"pi', { fin: false });
  one.socket.ping();
  one.socket.send('ng","id":9}', { fin: true });
  assert.strictEqual((await one.nextOf('pong')).id, 9);
  one.say({ type: 'fly', id: 1 });
  assert.strictEqual((await one.nextOf('error')).code, 'unknown_type');
  one.say({ type: 'subscribe', id: 2, channel: `${channel}-more` });
  assert.strictEqual((await one.nextOf('subscribed')).channel, `${channel}-more`);
  one.socket.close(1000, 'bye');
  assert.strictEqual((await one.closed).code, 1000);
  for (const text of ['three', 'four']) await post(text);
  const again = open(`?epoch=${ready.epoch}&since=2`);
  assert.strictEqual((await again.next()).recovered, true);
  assert.deepStrictEqual([(await again.nextOf('message.new')).text, (await again.nextOf('message.new')).text], ['three', 'four']);
  again.socket.terminate();
  const binary = open('', ['ringcast.rkyv']);
  assert.strictEqual((await binary.next()).type, 'connection.ready');
  await post('five');
  while (!(await binary.nextOf('binary')).data.includes('five'));
  binary.socket.close();
  // ws offers permessage-deflate by itself: an answer without it is right.
  assert.strictEqual(one.socket.extensions, '');
  assert.deepStrictEqual(await refused('?token=nonsense'), [401, 'bad_token']);
  assert.deepStrictEqual(await refused('?heartbeat=0'), [400, 'bad_heartbeat']);
  assert.deepStrictEqual(await refused('', ['chat']), [400, 'no_common_subprotocol']);
  const large = open();
  await large.next();
  large.socket.send('x'.repeat(70_000));
  assert.strictEqual((await large.closed).code, 1009);
  console.log(`ok: ws ${require('ws/package.json').version}: commands, fragments, resuming, closes, refusals`);
}

main().catch((error) => { console.error(`FAILED: ${error.stack}`); process.exit(1); });
