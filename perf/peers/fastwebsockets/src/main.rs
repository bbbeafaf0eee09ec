//! A broadcaster with fastwebsockets and hyper on one thread: two tasks a viewer, a broadcast a channel, posts on the
//! same port.

use bytes::Bytes;
use fastwebsockets::{Frame, OpCode, Payload, Role, WebSocketError, after_handshake_split, upgrade};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::upgrade::Parts;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio::sync::mpsc;

/// Frames that a viewer may be behind before it is given up.
const BEHIND_MAX: usize = 16_384;
/// How much a viewer's frames may fill before they are written.
const WRITE_BYTES: usize = 16_384;

/// The bytes of a frame are built once and shared.
#[derive(Clone, Default)]
struct Channels(Arc<Mutex<HashMap<String, Sender<Bytes>>>>);

impl Channels {
    fn of(&self, name: &str) -> Sender<Bytes> {
        let mut channels = self.0.lock().expect("one thread");
        channels.entry(name.to_owned()).or_insert_with(|| broadcast::channel(BEHIND_MAX).0).clone()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("usage: peer PORT");
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let channels = Channels::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let channels = channels.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(request, channels.clone()));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .with_upgrades()
                .await;
        });
    }
}

async fn answer(mut request: Request<Incoming>, channels: Channels) -> Result<Response<Empty<Bytes>>, WebSocketError> {
    let path = request.uri().path().to_owned();
    if let Some(name) = path.strip_prefix("/sub/") {
        let (response, socket) = upgrade::upgrade(&mut request)?;
        // Before the answer: whoever has it misses nothing.
        let frames = channels.of(name).subscribe();
        tokio::spawn(async move {
            let Ok(socket) = socket.await else { return };
            // Without hyper between, which would lock each half and read through a pointer.
            let Ok(Parts { io, .. }) = socket.into_inner().into_inner().downcast::<TokioIo<TcpStream>>() else {
                return;
            };
            watch(io.into_inner(), frames).await;
        });
        return Ok(response);
    }
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::NOT_FOUND;
    if let Some(name) = path.strip_prefix("/pub/").filter(|_| request.method() == Method::POST) {
        let Ok(text) = request.into_body().collect().await else { return Err(WebSocketError::UnexpectedEOF) };
        // An error says that nobody watches.
        let _ = channels.of(name).send(bytes_of(Frame::text(Payload::Borrowed(&text.to_bytes()))));
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(response)
}

fn bytes_of(mut frame: Frame<'_>) -> Bytes {
    // The frame is what is returned; the buffer is longer.
    Bytes::copy_from_slice(frame.write(&mut Vec::new()))
}

/// One viewer, until it goes or falls too far behind.
async fn watch(stream: TcpStream, mut frames: Receiver<Bytes>) {
    let (read, write) = stream.into_split();
    let mut write = BufWriter::with_capacity(WRITE_BYTES, write);
    let (answers, mut owed) = mpsc::channel(8);
    // Reading a frame cannot be broken off, so it has a task of its own, which ends with the connection.
    let reader = tokio::spawn(listen(read, answers));
    loop {
        tokio::select! {
            frame = frames.recv() => {
                let mut next = match frame {
                    Ok(frame) => Some(frame),
                    Err(RecvError::Lagged(_) | RecvError::Closed) => break,
                };
                let mut whole = true;
                // All that waits goes out in one write.
                while let Some(frame) = next {
                    whole &= write.write_all(&frame).await.is_ok();
                    next = match frames.try_recv() {
                        Ok(frame) => Some(frame),
                        Err(TryRecvError::Empty) => None,
                        Err(TryRecvError::Lagged(_) | TryRecvError::Closed) => {
                            whole = false;
                            None
                        }
                    };
                }
                if !whole || write.flush().await.is_err() {
                    break;
                }
            }
            answer = owed.recv() => {
                let Some(answer) = answer else { break };
                if write.write_all(&answer).await.is_err() || write.flush().await.is_err() {
                    break;
                }
            }
        }
    }
    reader.abort();
}

/// Reads what a viewer says and hands over what is owed for it: a pong, an answer to its close.
async fn listen(read: OwnedReadHalf, answers: mpsc::Sender<Bytes>) {
    let (mut read, _) = after_handshake_split(read, tokio::io::sink(), Role::Server);
    let mut owe = |frame: Frame<'_>| {
        let (answers, frame) = (answers.clone(), bytes_of(frame));
        async move { answers.send(frame).await }
    };
    while let Ok(frame) = read.read_frame(&mut owe).await {
        if frame.opcode == OpCode::Close {
            return;
        }
    }
}
