//! Another server than ringcast, as a file describes it: how it is started, joined and posted to, so that it is
//! measured by the same fleet.
//!
//! A target file flows in, commands, requests and bytes flow out; what is always true is that a key nobody knows is an
//! error, and that a delivery is recognised by the probe alone, however the server wraps it.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A server that is not ringcast.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Foreign {
    /// What people call it.
    pub(super) name: String,
    /// Started without a shell. Its words may hold `{port}`, `{dir}` (a new temporary directory) and `{peer}` (the
    /// folder of the file). It serves on 127.0.0.1, stays in the foreground and ends on SIGTERM.
    command: Vec<String>,
    /// How a viewer joins.
    pub(super) join: Join,
    /// How an event is posted.
    pub(super) post: Post,
    #[serde(skip)]
    folder: PathBuf,
}

/// How a viewer joins. Everything may hold `{channel}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Join {
    /// By an upgrade.
    Websocket {
        /// What is asked for.
        path: String,
        /// Text frames that the viewer says then.
        #[serde(default)]
        say: Vec<String>,
    },
    /// By bytes, and bytes come back.
    Tcp {
        /// What the viewer says.
        say: Vec<String>,
    },
}

/// How an event is posted. Everything may hold `{channel}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Post {
    /// A POST with the text as its body.
    Http {
        /// What is asked for.
        path: String,
        /// The status of success.
        status: u16,
    },
    /// Bytes.
    Tcp {
        /// What is said once on a connection.
        hello: String,
        /// What is said for an event; may hold `{length}` and `{text}` too.
        say: String,
        /// What comes back for each.
        ack: String,
    },
}

impl Foreign {
    /// Reads a target file.
    ///
    /// # Errors
    /// A sentence that names the file and what is wrong in it.
    pub(super) fn load(file: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut foreign: Self = toml::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        if foreign.command.is_empty() {
            return Err(format!("{}: command names no program", file.display()));
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        foreign.folder = fs::canonicalize(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(foreign)
    }

    /// The words of the command that starts it.
    pub(super) fn command(&self, port: u16, dir: &Path) -> Vec<String> {
        let (port, dir, peer) = (port.to_string(), dir.display().to_string(), self.folder.display().to_string());
        let fill = |word: &String| word.replace("{port}", &port).replace("{dir}", &dir).replace("{peer}", &peer);
        self.command.iter().map(fill).collect()
    }

    /// Appends the bytes of one post to `out`.
    pub(super) fn put_post(&self, out: &mut Vec<u8>, addr: SocketAddr, channel: &str, text: &[u8]) {
        // A Vec takes every byte.
        let _ = match &self.post {
            Post::Http { path, .. } => write!(
                out,
                "POST {} HTTP/1.1\r\nHost: {addr}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
                path.replace("{channel}", channel),
                text.len()
            )
            .and_then(|()| out.write_all(text)),
            Post::Tcp { say, .. } => {
                let say = say.replace("{channel}", channel).replace("{length}", &text.len().to_string());
                let say = say.replace("{text}", &String::from_utf8_lossy(text));
                out.write_all(say.as_bytes())
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NATS: &str = r#"
name = "x"
command = ["sh", "{peer}/run.sh", "{port}", "{dir}"]
[join]
transport = "tcp"
say = ["CONNECT {}\r\n", "SUB {channel} 1\r\n"]
[post]
transport = "tcp"
hello = "CONNECT {\"verbose\":true}\r\n"
say = "PUB {channel} {length}\r\n{text}\r\n"
ack = "+OK\r\n"
"#;

    #[test]
    fn a_target_file_says_how_to_start_join_and_post() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("target.toml");
        fs::write(&file, NATS).unwrap();
        let foreign = Foreign::load(&file).unwrap();
        let words = foreign.command(7, Path::new("/d"));
        assert_eq!((words[2].as_str(), words[3].as_str()), ("7", "/d"));
        assert!(words[1].ends_with("/run.sh") && !words[1].contains('{'));
        let mut out = Vec::new();
        foreign.put_post(&mut out, "127.0.0.1:1".parse().unwrap(), "load-3", b"probe=1;");
        assert_eq!(out, b"PUB load-3 8\r\nprobe=1;\r\n");
    }

    #[test]
    fn a_key_that_nobody_knows_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("target.toml");
        fs::write(&file, NATS.replace("hello", "helo")).unwrap();
        assert!(Foreign::load(&file).unwrap_err().contains("helo"));
        fs::write(&file, NATS.replace("\"sh\", \"{peer}/run.sh\", \"{port}\", \"{dir}\"", "")).unwrap();
        assert!(Foreign::load(&file).unwrap_err().contains("command"));
    }
}
