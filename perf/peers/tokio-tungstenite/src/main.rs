//! A broadcaster with tokio-tungstenite on one thread: a task a viewer, a broadcast a channel, posts on the same port.
//!
//! Two ways to write: all that waits for a viewer in one go, or, with the word `send`, each text by itself, as the
//! library's own examples do.

use futures_util::{SinkExt, StreamExt};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{self, Sender};
use tokio_tungstenite::accept_hdr_async_with_config;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

/// Texts that a viewer may be behind before it is given up.
const BEHIND_MAX: usize = 16_384;

/// The text is shared: a clone of it counts a reference.
#[derive(Clone, Default)]
struct Channels(Arc<Mutex<HashMap<String, Sender<Utf8Bytes>>>>);

impl Channels {
    fn of(&self, name: &str) -> Sender<Utf8Bytes> {
        let mut channels = self.0.lock().expect("one thread");
        channels.entry(name.to_owned()).or_insert_with(|| broadcast::channel(BEHIND_MAX).0).clone()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).expect("usage: peer PORT [send]");
    let together = std::env::args().nth(2).as_deref() != Some("send");
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let channels = Channels::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(serve(stream, channels.clone(), together));
    }
}

async fn serve(stream: TcpStream, channels: Channels, together: bool) {
    let _ = stream.set_nodelay(true);
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(1) if first == *b"P" => drop(take_posts(stream, channels).await),
        Ok(1) => watch(stream, channels, together).await,
        _ => {}
    }
}

/// One viewer, until it goes or falls too far behind.
async fn watch(stream: TcpStream, channels: Channels, together: bool) {
    // Viewers say little, so they need no large buffer to read into.
    let config = WebSocketConfig::default().read_buffer_size(4_096);
    let mut name = String::new();
    let path = |request: &Request, response: Response| {
        name = request.uri().path().trim_start_matches("/sub/").to_owned();
        Ok(response)
    };
    let Ok(mut socket) = accept_hdr_async_with_config(stream, path, Some(config)).await else { return };
    let mut texts = channels.of(&name).subscribe();
    loop {
        tokio::select! {
            text = texts.recv() => {
                let mut next = match text {
                    Ok(text) => Some(text),
                    Err(RecvError::Lagged(_) | RecvError::Closed) => return,
                };
                while let Some(text) = next {
                    if socket.feed(Message::Text(text)).await.is_err() {
                        return;
                    }
                    if !together {
                        break;
                    }
                    next = match texts.try_recv() {
                        Ok(text) => Some(text),
                        Err(TryRecvError::Empty) => None,
                        Err(TryRecvError::Lagged(_) | TryRecvError::Closed) => return,
                    };
                }
                if socket.flush().await.is_err() {
                    return;
                }
            }
            said = socket.next() => {
                if !matches!(said, Some(Ok(_))) {
                    return;
                }
            }
        }
    }
}

/// Posts of one keep-alive connection, one after the other: `POST /pub/CHANNEL` with a Content-Length.
async fn take_posts(mut stream: TcpStream, channels: Channels) -> Option<()> {
    let mut input = Vec::new();
    loop {
        let body = loop {
            if let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            read_more(&mut stream, &mut input).await?;
        };
        let head = str::from_utf8(&input[..body]).ok()?;
        let name = head.split(' ').nth(1)?.strip_prefix("/pub/")?.to_owned();
        let length: usize = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, length)| length.trim().parse().ok())?;
        let end = body + length;
        while input.len() < end {
            read_more(&mut stream, &mut input).await?;
        }
        let text = Utf8Bytes::from(str::from_utf8(&input[body..end]).ok()?);
        input.drain(..end);
        // An error says that nobody watches.
        let _ = channels.of(&name).send(text);
        stream.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").await.ok()?;
    }
}

async fn read_more(stream: &mut TcpStream, input: &mut Vec<u8>) -> Option<()> {
    (stream.read_buf(input).await.ok()? > 0).then_some(())
}
