//! The admin listener on the orchestrator's core: liveness, readiness, metrics.
//!
//! Always true: it has descriptors of its own in reserve, so it answers when the public listeners have none left.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use glommio::timer::Timer;

use super::descriptors;
use super::executor::HttpQueue;
use super::hooks::Hooks;
use super::life::Life;
use super::socket;
use super::usage::Usage;
use super::watchdog::name_of;
use super::web_server::{After, WebOptions, WholeRequest, serve};
use crate::metrics;
use crate::orchestrator::Orchestrator;
use crate::shard::ApiAnswer;
use crate::wire::problem::Problem;

/// A used/limit ratio from which on the node says that it is not ready.
const READY_BELOW_PERCENT: u64 = 95;

/// What one listener works with.
pub struct Admin {
    /// The orchestrator of this core.
    pub orchestrator: Rc<RefCell<Orchestrator>>,
    /// Whether the node is ready.
    pub life: Arc<Life>,
    /// The connections that are kept to hooks.
    pub hooks: Rc<Hooks>,
    /// What it takes of its machine.
    pub usage: Usage,
}

/// Of these a full one says nothing about room for viewers: a pool that a burst fills once, and lists that are as long as
/// their owners wrote them. A list of bans outlives the process, so a node that it kept from being ready would never be. And
/// the rates of users are kept as far as there is room: behind it everybody is served.
const NOT_ABOUT_ROOM: [&str; 5] = ["recv_buffers", "patterns", "bans", "limited_channels", "user_rates"];

/// Accepts until the executor ends.
pub async fn run(listener: OwnedFd, admin: Rc<Admin>, web: WebOptions, queue: HttpQueue, reserve: usize) {
    let listener = descriptors::listener(listener);
    let mut reserved = reserve_descriptors(reserve);
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let admin = Rc::clone(&admin);
                let handler = move |request: WholeRequest| std::future::ready(answer(&request, &admin));
                let connection = async move {
                    // Nobody is upgraded here: what asks for it is closed.
                    if let Some((stream, After::Refuse(problem))) = serve(stream, Vec::new(), web, handler).await
                        && let Ok(fd) = descriptors::back(stream)
                    {
                        socket::send_last(&fd, &problem.response());
                        let _ = socket::discard(&fd);
                    }
                };
                // Only a core that ends has no queue any more.
                let _ = queue.spawn(connection);
                if reserved.len() < reserve {
                    reserved = reserve_descriptors(reserve);
                }
            }
            // No descriptor is left: one of the reserve makes room for the next connection.
            Err(_) if reserved.pop().is_some() => {}
            Err(_) => {
                Timer::new(Duration::from_millis(100)).await;
            }
        }
    }
}

fn reserve_descriptors(count: usize) -> Vec<File> {
    (0..count).map_while(|_| File::open("/dev/null").ok()).collect()
}

fn answer(request: &WholeRequest, admin: &Admin) -> ApiAnswer {
    let get = request.method() == "GET";
    match request.head.uri.path() {
        "/healthz" if get => text(200, "ok\n".to_owned()),
        "/readyz" if get => ready(admin),
        "/metrics" if get => {
            let orchestrator = admin.orchestrator.borrow();
            let mut own = orchestrator.own_metrics();
            own.of_apps.extend(admin.hooks.gauges());
            own.gauges.extend(admin.usage.gauges());
            text(200, metrics::render::render(orchestrator.reports(), &own))
        }
        "/healthz" | "/readyz" | "/metrics" => {
            Problem::new(405, "method", "use GET").with_header("allow", "GET, HEAD").into()
        }
        path => Problem::new(404, "not_found", format!("nothing is at {path:?}")).into(),
    }
}

fn ready(admin: &Admin) -> ApiAnswer {
    if !admin.life.is_ready() {
        return text(503, "not ready: starting or draining\n".to_owned());
    }
    if let Some(core) = admin.life.stalled() {
        return text(503, format!("not ready: {} takes no turns\n", name_of(core, admin.life.shards())));
    }
    let orchestrator = admin.orchestrator.borrow();
    let shards = orchestrator.reports().iter().flatten().flat_map(|report| report.gauges.iter());
    let full = orchestrator
        .gauges()
        .iter()
        .chain(&admin.usage.gauges())
        .chain(shards)
        .filter(|(name, _)| !NOT_ABOUT_ROOM.contains(name))
        .find(|(_, gauge)| gauge.limit > 0 && gauge.used * 100 >= gauge.limit * READY_BELOW_PERCENT)
        .copied();
    match full {
        Some((name, gauge)) => text(503, format!("not ready: {name} is at {} of {}\n", gauge.used, gauge.limit)),
        None => text(200, "ready\n".to_owned()),
    }
}

fn text(status: u16, body: String) -> ApiAnswer {
    ApiAnswer { status, content_type: "text/plain; version=0.0.4", body: body.into_bytes(), fields: Vec::new() }
}
