//! From an accepted connection to a seated viewer, an answered request or a refusal.
//!
//! Connections, their first bytes and seats flow in; sockets for the ring, HTTP tasks and sockets for other cores flow out.
//! Always true: a socket has one owner on its way, and whoever gives it up has answered it or handed it on.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use super::{Core, socket_id};
use crate::base::{ClientId, Now, ShardId};
use crate::io::api;
use crate::io::descriptors;
use crate::io::door::Waiting;
use crate::io::handoff::Handoff;
use crate::io::web_server::{After, WholeRequest, serve};
use crate::shard::Outcome;
use crate::wire::http::Head;
use crate::wire::problem::Problem;

impl Core {
    pub(super) fn on_accepted(&mut self, now: Now, fd: OwnedFd) {
        let raw = fd.as_raw_fd();
        if let Some(key) = self.door.enter(now, fd) {
            self.ring.greet(key, raw);
        }
    }

    /// HTTP connections on which an upgrade came stand at the door again; those with a bad head get their answer there.
    pub(super) fn take_returned(&mut self, now: Now) {
        for (fd, after, source) in self.returned.take() {
            match after {
                After::Upgrade(head) => {
                    if let Some(key) = self.door.enter_again(now, fd, source) {
                        self.on_greeting(now, key, &head);
                    }
                }
                After::Refuse(problem) => self.door.refuse(now, fd, &problem),
            }
        }
    }

    pub(super) fn on_greeting(&mut self, now: Now, key: u32, bytes: &[u8]) {
        let arrived = match self.door.on_bytes(now, key, bytes) {
            Ok(Some(arrived)) => arrived,
            Ok(None) => {
                if let Some(fd) = self.door.fd(key) {
                    self.ring.greet(key, fd.as_raw_fd());
                }
                return;
            }
            // It has its answer.
            Err(_) => return,
        };
        let seated = match &arrived.head {
            Head::Upgrade(upgrade) => {
                let from = self.proxies.origin(arrived.source, &upgrade.forwarded_for);
                from.and_then(|from| self.shard.borrow_mut().on_upgrade(now, upgrade, from))
            }
            Head::Echo { accept } if self.shard.borrow().options().echo => self.shard.borrow_mut().on_echo(now, accept),
            Head::Echo { .. } => Err(Problem::new(404, "not_found", "this node has no echo endpoint")),
            Head::Other => {
                self.serve_http(now, arrived.waiting, arrived.source);
                return;
            }
        };
        match seated {
            Ok(ticket) => self.door.wait(ticket, arrived.waiting),
            Err(problem) => self.door.refuse(now, arrived.waiting.fd, &problem),
        }
    }

    fn serve_http(&mut self, now: Now, waiting: Waiting, source: Option<IpAddr>) {
        if self.http_connections.get() >= self.http_max {
            let problem = Problem::new(503, "busy", "too many HTTP connections on this core").retry_after(1);
            self.door.refuse(now, waiting.fd, &problem);
            return;
        }
        let stream = descriptors::stream(waiting.fd);
        let count = Rc::clone(&self.http_connections);
        count.set(count.get() + 1);
        let (shard, requests, bell, clock) =
            (Rc::clone(&self.shard), Rc::clone(&self.requests), Rc::clone(&self.bell), self.clock);
        let proxies = Rc::clone(&self.proxies);
        let handler = move |request: WholeRequest| {
            let (shard, requests, bell) = (Rc::clone(&shard), Rc::clone(&requests), Rc::clone(&bell));
            let proxies = Rc::clone(&proxies);
            async move {
                // One that is said twice is refused below.
                let origin = request.field("origin").ok().flatten();
                let cors = shard.borrow().cors_origin(request.head.uri.path(), origin);
                if let Some(answer) = api::preflight(&request, cors.as_deref()) {
                    return answer;
                }
                let asked =
                    proxies.origin(source, &request.forwarded_for()).and_then(|from| api::request(&request, from));
                let outcome = match asked {
                    Ok(asked) => shard.borrow_mut().on_request(clock.now(), &asked),
                    Err(problem) => Outcome::Done(problem.into()),
                };
                // Whatever it wants done, the loop does.
                bell.ring();
                let mut answer = match outcome {
                    Outcome::Done(answer) => answer,
                    Outcome::Wait(ticket) => requests.promise(ticket).await,
                };
                if let Some(origin) = cors {
                    answer.fields.extend([("access-control-allow-origin", origin), ("vary", "origin".to_owned())]);
                }
                answer
            }
        };
        let web = self.web;
        let (returned, bell) = (Rc::clone(&self.returned), Rc::clone(&self.bell));
        let connection = async move {
            let back = serve(stream, waiting.leftover, web, handler).await;
            count.set(count.get() - 1);
            if let Some((stream, after)) = back
                && let Ok(fd) = descriptors::back(stream)
            {
                returned.borrow_mut().push((fd, after, source));
                bell.ring();
            }
        };
        if let Err(error) = self.http.spawn(connection) {
            eprintln!("ringcast: no task for an HTTP connection: {error}");
        }
    }

    pub(super) fn hand_over(&mut self, now: Now, ticket: u64, to: ShardId, seat: crate::post::letters::Seat) {
        let Some(Waiting { fd, leftover }) = self.door.take(ticket) else { return };
        let at = usize::from(to.0);
        match self.shards[at].seats.push(Handoff { seat, fd, leftover }) {
            Ok(()) => self.rung[at] = true,
            Err(back) => {
                self.shard.borrow_mut().on_hand_over_failed(&back.seat);
                let problem = Problem::new(503, "busy", "the core that holds the room is busy").retry_after(1);
                self.door.refuse(now, back.fd, &problem);
            }
        }
    }

    pub(super) fn install(&mut self, now: Now, ticket: u64, client: ClientId) {
        let installed = match self.door.take(ticket) {
            Some(waiting) => self.ring.install(socket_id(client), waiting.fd).map(|()| waiting.leftover),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        match installed {
            Ok(leftover) if leftover.is_empty() => {}
            Ok(leftover) => self.shard.borrow_mut().on_bytes(now, client, &leftover),
            Err(error) => {
                eprintln!("ringcast: a socket could not be taken into the ring: {error}");
                let mut shard = self.shard.borrow_mut();
                shard.on_hangup(now, client);
                // Nothing is in flight on a socket that never entered; its `End` finds no owner.
                shard.on_closed(client);
            }
        }
    }
}
