// A broadcaster with `ws`, by its documented interface: a set of sockets a channel, one send a socket.
import { createServer } from 'node:http';
import { WebSocketServer } from 'ws';

const port = Number(process.argv[2]);
const channels = new Map();

const server = createServer((request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const text = Buffer.concat(parts);
    // A Buffer is shared by all sends; a string would be encoded once a viewer.
    for (const socket of channels.get(request.url.slice('/pub/'.length)) ?? []) socket.send(text, { binary: false });
    response.writeHead(202, { 'Content-Length': 0 }).end();
  });
});

new WebSocketServer({ server, perMessageDeflate: false }).on('connection', (socket, request) => {
  const name = request.url.slice('/sub/'.length);
  const viewers = channels.get(name) ?? new Set();
  channels.set(name, viewers.add(socket));
  socket.on('close', () => viewers.delete(socket));
  socket.on('error', () => {});
});

server.listen(port, '127.0.0.1');
