// A broadcaster with socket.io: a room a channel, WebSocket only, no compression.
import { createServer } from 'node:http';
import { Server } from 'socket.io';

const port = Number(process.argv[2]);

const server = createServer((request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    io.to(request.url.slice('/pub/'.length)).emit('m', Buffer.concat(parts).toString());
    response.writeHead(202, { 'Content-Length': 0 }).end();
  });
});

const io = new Server(server, {
  transports: ['websocket'],
  perMessageDeflate: false,
  serveClient: false,
  // Its pings are text frames that want a text in return, which a plain WebSocket client does not know: a run ends
  // before the first.
  pingInterval: 3_600_000,
});
io.on('connection', (socket) => socket.join(socket.handshake.query.channel));

server.listen(port, '127.0.0.1');
