//! A judge of messages on loopback: an HTTP server made of a listener and threads, which answers as the message itself
//! says it shall.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::Value;

/// A running judge.
pub(crate) struct HookServer {
    pub(crate) address: SocketAddr,
    /// What it was asked, in the order of arrival.
    pub(crate) asked: Receiver<Value>,
}

impl HookServer {
    /// Listens until the process ends.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().unwrap();
        let (told, asked) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let told = told.clone();
                std::thread::spawn(move || serve(stream, &told));
            }
        });
        Self { address, asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/judge?by=test", self.address)
    }

    pub(crate) fn next(&self) -> Value {
        self.asked.recv_timeout(crate::client::PATIENCE).expect("the hook is asked")
    }
}

fn serve(stream: TcpStream, told: &Sender<Value>) {
    let mut reader = BufReader::new(stream);
    while let Some(question) = read_question(&mut reader) {
        let text = question["text"].as_str().unwrap_or_default().to_owned();
        if told.send(question).is_err() {
            return;
        }
        let answer = |status: &str, body: &str| {
            format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let answer = match text.as_str() {
            text if text.starts_with("no ") || text.starts_with("no, ") => {
                answer("200 OK", r#"{"allow":false,"reason":"not here"}"#)
            }
            text if text.starts_with("late no") => {
                std::thread::sleep(Duration::from_millis(700));
                answer("200 OK", r#"{"allow":false}"#)
            }
            text if text.starts_with("late yes") => {
                std::thread::sleep(Duration::from_millis(700));
                answer("200 OK", r#"{"allow":true}"#)
            }
            "empty yes" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            "chunked" => {
                let body = "e\r\n{\"allow\":true}\r\n0\r\n\r\n";
                format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
            }
            "broken" => answer("500 Internal Server Error", "{}"),
            "nonsense" => answer("200 OK", "yes"),
            "huge" => answer("200 OK", &format!("{{\"allow\":true,\"x\":\"{}\"}}", "x".repeat(100_000))),
            "slam" => return,
            "bye" => {
                let bye = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 14\r\n\r\n{\"allow\":true}";
                let _ = reader.get_mut().write_all(bye.as_bytes());
                return;
            }
            // It holds the connection and never answers.
            "hang" => loop {
                std::thread::park();
            },
            _ => answer("200 OK", r#"{"allow":true}"#),
        };
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// One request; `None` at the end.
fn read_question(reader: &mut BufReader<TcpStream>) -> Option<Value> {
    let (mut line, mut length) = (String::new(), None);
    reader.read_line(&mut line).ok().filter(|&bytes| bytes > 0)?;
    assert_eq!(line, "POST /judge?by=test HTTP/1.1\r\n");
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse::<usize>().ok(),
            "content-type" => assert_eq!(value.trim(), "application/json"),
            _ => {}
        }
    }
    let mut body = vec![0; length.expect("a length")];
    reader.read_exact(&mut body).ok()?;
    Some(serde_json::from_slice(&body).expect("the question is JSON"))
}
