//! `ringcast watch`: one viewer in a terminal, so that a person sees messages arrive.
//!
//! A channel flows in, one line of JSON an event flows out, until the node closes or the person has enough. Always true:
//! it speaks what every client speaks and knows nothing of the node's inside.

use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tungstenite::Message;
use tungstenite::client::IntoClientRequest;

/// What `ringcast watch` takes.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// The channel to watch
    channel: String,
    /// The node
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The app
    #[arg(long, default_value = "demo")]
    app: String,
    /// A token, for apps that ask readers for one
    #[arg(long)]
    token: Option<String>,
    /// End after so many events, the greeting included; 0 is never
    #[arg(long, default_value_t = 0)]
    count: u64,
}

/// Watches until the node closes the connection.
#[must_use]
pub(super) fn run(args: &WatchArgs) -> ExitCode {
    match watch(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringcast watch: {error}");
            ExitCode::FAILURE
        }
    }
}

fn watch(args: &WatchArgs) -> Result<(), String> {
    let host = args.url.trim_end_matches('/');
    let host = host.strip_prefix("http://").or_else(|| host.strip_prefix("ws://")).unwrap_or(host);
    let failed = |error: io::Error| format!("{host}: {error}");
    let address = host.to_socket_addrs().map_err(failed)?.next().ok_or_else(|| format!("{host} has no address"))?;
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).map_err(failed)?;
    let url = format!("ws://{host}/v1/{}/channels/{}/ws", args.app, args.channel);
    let mut request = url.into_client_request().map_err(|error| error.to_string())?;
    if let Some(token) = &args.token {
        let value = format!("Bearer {token}").parse().map_err(|_| "the token is no header value".to_owned())?;
        request.headers_mut().insert("authorization", value);
    }
    let (mut socket, _) = tungstenite::client(request, stream).map_err(|error| error.to_string())?;
    let mut seen = 0;
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => {
                let mut out = io::stdout().lock();
                if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
                    // Whoever read the lines has enough.
                    return Ok(());
                }
                seen += 1;
                if seen == args.count {
                    let _ = socket.close(None);
                    return Ok(());
                }
            }
            Ok(Message::Close(frame)) => {
                let why = frame.map(|f| format!("{} {}", u16::from(f.code), f.reason)).unwrap_or_default();
                eprintln!("ringcast watch: the node closed the connection: {why}");
            }
            Ok(_) => {}
            Err(tungstenite::Error::ConnectionClosed) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
}
