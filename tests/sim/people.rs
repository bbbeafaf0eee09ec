//! What viewers and posters do in a step: come, ask, post, type, stop reading, leave well or badly.

use serde_json::json;

use crate::plan::{APP, CHANNELS, SERVER_KEY, USERS};
use crate::stream::client_frame;
use crate::truth::Request;
use crate::viewer::{Asked, OF_USER, Phase, Reader, Since};
use crate::world::World;

const FILTERS: [&str; 6] = ["", "", "", "message.*", "custom.*,typing.*", "viewers.updated,member.*,custom.goal"];

impl World<'_> {
    /// Everybody may do something.
    pub(crate) fn people(&mut self) {
        for no in 0..self.viewers.len() {
            let roll = self.random.below(1_000);
            match self.viewers[no].phase {
                Phase::Away if roll < 100 => self.come(no),
                Phase::Open | Phase::Waiting | Phase::Upgraded if roll < self.plan.leaves => self.go(no),
                Phase::Open if roll < self.plan.leaves + self.plan.commands => self.command(no),
                _ => {}
            }
        }
        if self.random.chance(self.plan.posts) {
            self.post();
        }
        if self.random.chance(self.plan.events) {
            self.post_event();
        }
        if self.random.chance(3) {
            let channel = self.channel();
            let calls = ["viewers", "presence", "messages?limit=5", "messages?since=2", "messages?before=9"];
            let what = self.random.pick(&calls);
            let shard = self.random.below(self.shards() as u64) as usize;
            let request = Request { channel: channel.to_owned(), key: None, is_post: false, event: None };
            self.request(shard, "GET", &format!("/v1/{APP}/channels/{channel}/{what}"), None, b"", request);
        }
    }

    pub(crate) fn channel(&mut self) -> &'static str {
        CHANNELS[self.random.below(self.plan.channels as u64) as usize]
    }

    /// A position that the viewer may resume from: where it was, before that, or nonsense.
    fn since(&mut self, no: usize, channel: &str) -> Since {
        if !self.plan.resumes || self.random.chance(30) {
            return None;
        }
        let (epoch, seq) = self.viewers[no].positions.get(channel).cloned()?;
        self.truth.recovered_asked = true;
        Some(match self.random.below(10) {
            0 => (epoch, seq + 1_000),
            1 => ("00000000000000ff".to_owned(), seq),
            2 | 3 => (epoch, seq - self.random.below(seq + 1)),
            _ => (epoch, seq),
        })
    }

    fn come(&mut self, no: usize) {
        let channel = (!self.random.chance(10)).then(|| self.channel());
        let filter = self.random.pick(&FILTERS);
        let since = channel.and_then(|channel| self.since(no, channel));
        let user = (!self.random.chance(25)).then(|| self.random.below(USERS.len() as u64) as usize);
        let rkyv = self.plan.rkyv && self.random.chance(30);
        let path = channel.map_or_else(|| format!("/v1/{APP}/ws"), |c| format!("/v1/{APP}/channels/{c}/ws"));
        let mut query = Vec::new();
        if let Some((epoch, seq)) = &since {
            query.push(format!("epoch={epoch}&since={seq}"));
        }
        if channel.is_some() && !filter.is_empty() {
            query.push(format!("filter={filter}"));
        }
        if self.random.chance(10) {
            query.push("heartbeat=1".to_owned());
        }
        let mut fields = String::new();
        match user {
            Some(user) if self.random.chance(30) => query.push(format!("token={}", self.tokens[user])),
            Some(user) => fields = format!("Authorization: Bearer {}\r\n", self.tokens[user]),
            None => {}
        }
        if rkyv {
            fields.push_str("Sec-WebSocket-Protocol: ringcast.rkyv\r\n");
        }
        let head = format!(
            "GET {path}?{} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n",
            query.join("&")
        );
        let room = self.random.between(100, 6_000) as usize;
        let socket = self.network.open(room, head.clone().into_bytes());
        let shard = self.random.below(self.shards() as u64) as usize;
        if !self.arrive(shard, socket) {
            return;
        }
        self.trace.say(|| {
            let what = format!("filter {filter:?} since {since:?} rkyv {rkyv}");
            format!("viewer {no} comes by socket {socket} at shard {shard} for {channel:?}, {what}")
        });
        let reader = match self.random.below(100) {
            roll if roll >= self.plan.slow => Reader::Fast,
            roll if roll % 4 == 0 => Reader::Never,
            roll if roll % 4 == 1 => Reader::Pausing(self.step + self.random.between(5, 120)),
            _ => Reader::Slow(self.random.between(5, 200) as usize),
        };
        let life = self.life;
        // What does not fit into a small buffer at once may come too late.
        self.viewers[no].was_slow = reader != Reader::Fast || room < 2_000;
        let viewer = &mut self.viewers[no];
        viewer.leave();
        viewer.phase = Phase::Waiting;
        (viewer.socket, viewer.life, viewer.user, viewer.rkyv, viewer.reader) = (socket, life, user, rkyv, reader);
        viewer.first = channel.map(|channel| (channel.to_owned(), since, filter));
        viewer.closed_with = None;
        viewer.conn.clear();
        // Some speak before they are answered.
        if self.random.chance(10) {
            self.ask(no, |id| json!({"type": "ping", "id": id}), Asked::Ping);
        }
    }

    fn go(&mut self, no: usize) {
        let socket = self.viewers[no].socket;
        let roll = self.random.below(100);
        self.trace.say(|| format!("viewer {no} leaves, way {roll}"));
        let end = self.network.get(socket);
        match roll {
            0..35 => end.reset = true,
            35..60 => end.fin = true,
            60..80 => {
                end.up.extend(client_frame(8, &[3, 0xE8], [7, 0, 7, 0]));
            }
            80..90 => {
                self.viewers[no].was_slow = true;
                self.viewers[no].reader = Reader::Pausing(self.step + self.random.between(10, 200));
                return;
            }
            _ => {
                self.viewers[no].was_slow = true;
                self.viewers[no].reader = Reader::Never;
                return;
            }
        }
        self.viewers[no].leave();
    }

    /// Sends a command whose answer is awaited.
    fn ask(&mut self, no: usize, command: impl FnOnce(u64) -> serde_json::Value, asked: Asked) {
        let id = self.send(no, command);
        self.viewers[no].asked.insert(id, asked);
    }

    /// Sends a command that is answered only if it is refused.
    fn mention(&mut self, no: usize, command: impl FnOnce(u64) -> serde_json::Value) {
        let id = self.send(no, command);
        self.viewers[no].mentioned.insert(id);
    }

    fn send(&mut self, no: usize, command: impl FnOnce(u64) -> serde_json::Value) -> u64 {
        let id = self.truth.number();
        let text = command(id).to_string();
        self.trace.say(|| format!("viewer {no} sends {text}"));
        let mask = (self.random.next_u64() as u32).to_be_bytes();
        let socket = self.network.get(self.viewers[no].socket);
        socket.up.extend(client_frame(1, text.as_bytes(), mask));
        id
    }

    fn command(&mut self, no: usize) {
        // Several commands may come in one read.
        for _ in 0..self.random.between(1, 3) {
            self.command_one(no);
        }
    }

    fn command_one(&mut self, no: usize) {
        let channel = self.channel();
        let owned = channel.to_owned();
        match self.random.below(100) {
            0..8 => self.ask(no, |id| json!({"type": "ping", "id": id}), Asked::Ping),
            8..10 => {
                // Who has no token shows one; who has one shows it again, or another's, which is refused.
                let user = self.random.below(USERS.len() as u64) as usize;
                let token = self.tokens[user].clone();
                self.ask(no, |id| json!({"type": "auth", "id": id, "token": token}), Asked::Auth { user });
            }
            10..30 => {
                let (since, filter) = (self.since(no, channel), self.random.pick(&FILTERS));
                let asked = Asked::Subscribe { channel: owned, since: since.clone(), filter };
                let command = |id| {
                    let mut command = json!({"type": "subscribe", "id": id, "channel": channel});
                    if let Some((epoch, seq)) = since {
                        command["epoch"] = epoch.into();
                        command["since"] = seq.into();
                    }
                    if !filter.is_empty() {
                        command["filter"] = filter.into();
                    }
                    command
                };
                self.ask(no, command, asked);
            }
            30..42 => {
                // From here on nothing more of it is owed.
                self.viewers[no].owed.retain(|(of, _)| of != channel);
                let command = |id| json!({"type": "unsubscribe", "id": id, "channel": channel});
                self.ask(no, command, Asked::Unsubscribe { channel: owned });
            }
            42..65 => {
                let text = self.text();
                let command = |id| json!({"type": "message", "id": id, "channel": channel, "text": text});
                self.ask(no, command, Asked::Message { channel: owned });
            }
            65..73 => {
                let state = self.random.pick(&["start", "start", "stop"]);
                // It is answered only if it is refused.
                self.mention(no, |id| json!({"type": "typing", "id": id, "channel": channel, "state": state}));
                if self.random.chance(20) {
                    let bytes = client_frame(9, b"life", [5, 6, 7, 8]);
                    self.network.get(self.viewers[no].socket).up.extend(bytes);
                }
            }
            73..75 => {
                let state = self.random.pick(&["online", "away", "offline"]);
                self.ask(no, |id| json!({"type": "status", "id": id, "state": state}), Asked::Event);
            }
            75..95 => {
                let n = self.truth.number();
                let command = |id| json!({"type": "event", "id": id, "channel": channel, "name": "custom.goal", "data": {"n": n}});
                self.ask(no, command, Asked::Event);
            }
            _ => self.ask(no, |id| json!({"type": "fly", "id": id}), Asked::Nonsense),
        }
    }

    fn text(&mut self) -> String {
        let most = if self.plan.big_texts { 1_500 } else { 60 };
        let length = self.random.below(most) as usize;
        format!("{} {}", self.truth.number(), "é".repeat(length))
    }

    fn post(&mut self) {
        let (channel, text) = (self.channel(), self.text());
        let shard = self.random.below(self.shards() as u64) as usize;
        // Few keys, so that some come twice; a repeat is of the same channel here.
        let key = self.random.chance(15).then(|| format!("{channel}-{}", self.random.below(6)));
        let authorization = match self.random.below(3) {
            0 if key.is_none() => format!("Bearer {}", self.random.pick(&[&self.tokens[0], &self.tokens[1]])),
            _ => SERVER_KEY.to_owned(),
        };
        self.post_message(shard, channel, &authorization, key, text);
    }

    fn post_event(&mut self) {
        let (channel, n) = (self.channel(), self.truth.number());
        let shard = self.random.below(self.shards() as u64) as usize;
        let kinds = ["custom.goal", "custom.goal", "channel.updated", "user.updated", "access.revoked"];
        let kind = self.random.pick(&kinds);
        let mut body = json!({"type": kind, "data": {"n": n}, "user": self.random.pick(&USERS)});
        let mut excluded = None;
        if self.random.chance(25) {
            let conn = self.viewers[self.random.below(self.viewers.len() as u64) as usize].conn.clone();
            if !conn.is_empty() {
                body["exclude"] = conn.clone().into();
                self.truth.excluded.insert(n, conn.clone());
                excluded = Some(conn);
            }
        }
        let to_user = self.random.chance(20).then(|| self.random.below(USERS.len() as u64) as usize);
        let path = match to_user {
            Some(user) => format!("/v1/{APP}/users/{}/events", USERS[user]),
            None => format!("/v1/{APP}/channels/{channel}/events"),
        };
        let request = Request { channel: channel.to_owned(), key: None, is_post: false, event: Some(n) };
        let status = self.request(shard, "POST", &path, Some(SERVER_KEY), body.to_string().as_bytes(), request);
        // Zero is a request that waits for its credit.
        if matches!(status, 0 | 202) && kind == "access.revoked" {
            for viewer in self.viewers.iter_mut().filter(|viewer| viewer.phase == Phase::Open) {
                if let Some(user) = to_user {
                    if viewer.user == Some(user) && excluded.as_ref() != Some(&viewer.conn) {
                        viewer.owed.insert((format!("{OF_USER}{}", USERS[user]), n));
                    }
                    continue;
                }
                let leaves = viewer
                    .asked
                    .values()
                    .any(|asked| matches!(asked, Asked::Unsubscribe { channel: of } if of == channel));
                if viewer.watching.contains_key(channel) && !leaves && excluded.as_ref() != Some(&viewer.conn) {
                    viewer.owed.insert((channel.to_owned(), n));
                }
            }
        }
    }
}
