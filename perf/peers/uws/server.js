// uWebSockets.js as its documentation has it: topics and app.publish, so the fan-out happens in the library's C++.
import uWS from 'uwebsockets';

const port = Number(process.argv[2]);

const app = uWS.App()
  .ws('/sub/:channel', {
    compression: uWS.DISABLED,
    // The default of 64 KiB drops messages for who is behind, without a word; the audit counts each of them. This is
    // more than any viewer falls behind while the latency bound holds.
    maxBackpressure: 16 * 1024 * 1024,
    upgrade: (res, req, context) => res.upgrade(
      { channel: req.getParameter(0) },
      req.getHeader('sec-websocket-key'),
      req.getHeader('sec-websocket-protocol'),
      req.getHeader('sec-websocket-extensions'),
      context,
    ),
    open: (ws) => ws.subscribe(ws.getUserData().channel),
  })
  .post('/pub/:channel', (res, req) => {
    const channel = req.getParameter(0);
    let body = Buffer.alloc(0);
    res.onAborted(() => {});
    res.onData((chunk, last) => {
      // A chunk is valid during this call only.
      body = Buffer.concat([body, Buffer.from(chunk)]);
      if (!last) return;
      app.publish(channel, body, false);
      res.cork(() => res.writeStatus('202 Accepted').end());
    });
  });

app.listen('127.0.0.1', port, (socket) => {
  if (!socket) {
    console.error(`port ${port} is taken`);
    process.exit(1);
  }
});
