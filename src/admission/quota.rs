//! How much of the node each app may take, so that the rush of one stays its own.
//!
//! What apps bring and take away flows in, permissions flow out. Always true: what is refused is not counted; a limit of
//! 0 is none; and nothing that one app does changes what another may.

use crate::base::{AppId, Gauge, Now};
use crate::wire::problem::Problem;

/// The limits of one app; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Connections of all its channels together.
    pub connections_max: u32,
    /// Channels that are watched at a time.
    pub channels_max: u32,
    /// Messages, and what is done to messages, in a second.
    pub messages_per_s: u32,
    /// Text and data of messages that wait for the disk, in bytes.
    pub queued_bytes_max: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    quota: Quota,
    connections: u32,
    /// The second that the messages are of, monotonic.
    second: u64,
    messages: u32,
    queued_bytes: u64,
}

/// What all apps use.
#[derive(Debug, Default)]
pub struct Quotas {
    apps: Vec<Used>,
}

impl Quotas {
    /// Nothing is used. The limits stand in the order of the apps; an app beyond their end has none.
    #[must_use]
    pub fn new(quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self { apps: quotas.into_iter().map(|quota| Used { quota, ..Used::default() }).collect() }
    }

    fn used(&mut self, app: AppId) -> Option<&mut Used> {
        self.apps.get_mut(usize::from(app.0))
    }

    /// One more connection.
    ///
    /// # Errors
    /// 429: the app holds as many as it may.
    pub fn connect(&mut self, app: AppId) -> Result<(), Problem> {
        let Some(used) = self.used(app) else { return Ok(()) };
        let max = used.quota.connections_max;
        if max > 0 && used.connections >= max {
            let detail = format!("this app holds its {max} connections");
            return Err(Problem::new(429, "app_connections_full", detail).retry_after(5));
        }
        used.connections += 1;
        Ok(())
    }

    /// So many connections ended.
    pub fn disconnect(&mut self, app: AppId, connections: u32) {
        if let Some(used) = self.used(app) {
            used.connections = used.connections.saturating_sub(connections);
        }
    }

    /// One channel more than the `watched` ones.
    ///
    /// # Errors
    /// 429: as many are watched as may be.
    pub fn open_channel(&self, app: AppId, watched: u32) -> Result<(), Problem> {
        let max = self.apps.get(usize::from(app.0)).map_or(0, |used| used.quota.channels_max);
        if max > 0 && watched >= max {
            let detail = format!("this app has its {max} channels that are watched at a time");
            return Err(Problem::new(429, "app_channels_full", detail).retry_after(5));
        }
        Ok(())
    }

    /// One more message in this second.
    ///
    /// # Errors
    /// 429: there were as many as may be.
    pub fn post(&mut self, now: Now, app: AppId) -> Result<(), Problem> {
        let Some(used) = self.used(app) else { return Ok(()) };
        if used.second != now.mono_s() {
            (used.second, used.messages) = (now.mono_s(), 0);
        }
        let max = used.quota.messages_per_s;
        if max > 0 && used.messages >= max {
            let detail = format!("this app posts at most {max} messages a second");
            return Err(Problem::new(429, "app_over_rate", detail).retry_after(1));
        }
        used.messages += 1;
        Ok(())
    }

    /// So many bytes more wait for the disk.
    ///
    /// # Errors
    /// 503: beyond what may wait. A message alone always may, however long it is.
    pub fn enqueue(&mut self, app: AppId, bytes: u32) -> Result<(), Problem> {
        let Some(used) = self.used(app) else { return Ok(()) };
        let max = u64::from(used.quota.queued_bytes_max);
        if max > 0 && used.queued_bytes > 0 && used.queued_bytes + u64::from(bytes) > max {
            let detail = format!("{} bytes of this app's messages wait for the disk, of {max}", used.queued_bytes);
            return Err(Problem::new(503, "app_queue_full", detail).retry_after(1));
        }
        used.queued_bytes += u64::from(bytes);
        Ok(())
    }

    /// So many bytes wait no longer.
    pub fn dequeue(&mut self, app: AppId, bytes: u32) {
        if let Some(used) = self.used(app) {
            used.queued_bytes = used.queued_bytes.saturating_sub(u64::from(bytes));
        }
    }

    /// What is limited, of the app at this place: its name, used, limit. `watched` is how many channels are.
    pub fn gauges(&self, at: usize, watched: u32) -> impl Iterator<Item = (&'static str, Gauge)> + use<> {
        let Used { quota, connections, messages, queued_bytes, .. } = self.apps.get(at).copied().unwrap_or_default();
        let rows = [
            ("app_connections", u64::from(connections), quota.connections_max),
            ("app_channels", u64::from(watched), quota.channels_max),
            ("app_messages_per_s", u64::from(messages), quota.messages_per_s),
            ("app_queued_bytes", queued_bytes, quota.queued_bytes_max),
        ];
        let limited = rows.into_iter().filter(|(_, _, limit)| *limit > 0);
        limited.map(|(name, used, limit)| (name, Gauge::new(used, u64::from(limit))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Quota = Quota { connections_max: 2, channels_max: 3, messages_per_s: 2, queued_bytes_max: 100 };

    fn code(result: Result<(), Problem>) -> (u16, &'static str, Option<u32>) {
        result.map_or_else(|problem| (problem.status, problem.code, problem.retry_after_s), |()| (0, "", None))
    }

    #[test]
    fn each_limit_holds_at_its_edge_and_for_its_app_only() {
        let mut quotas = Quotas::new([SMALL, Quota::default()]);
        let (small, free, unknown) = (AppId(0), AppId(1), AppId(9));
        let fine = (0, "", None);
        assert_eq!([code(quotas.connect(small)), code(quotas.connect(small))], [fine; 2]);
        assert_eq!(code(quotas.connect(small)), (429, "app_connections_full", Some(5)));
        quotas.disconnect(small, 1);
        assert_eq!(code(quotas.connect(small)), fine);
        assert_eq!(code(quotas.open_channel(small, 2)), fine);
        assert_eq!(code(quotas.open_channel(small, 3)), (429, "app_channels_full", Some(5)));
        let at = |ms| Now::default().plus_ms(ms);
        assert_eq!([code(quotas.post(at(1_000), small)), code(quotas.post(at(1_999), small))], [fine; 2]);
        assert_eq!(code(quotas.post(at(1_999), small)), (429, "app_over_rate", Some(1)));
        assert_eq!(code(quotas.post(at(2_000), small)), fine);
        assert_eq!([code(quotas.enqueue(small, 60)), code(quotas.enqueue(small, 40))], [fine; 2]);
        assert_eq!(code(quotas.enqueue(small, 1)), (503, "app_queue_full", Some(1)));
        assert_eq!(code(quotas.enqueue(small, 0)), fine, "what has no text does not wait");
        quotas.dequeue(small, 100);
        assert_eq!(code(quotas.enqueue(small, 1_000)), fine, "one alone always may");
        assert_eq!(code(quotas.enqueue(small, 1)), (503, "app_queue_full", Some(1)));
        for app in [free, unknown] {
            for _ in 0..100 {
                assert_eq!(code(quotas.connect(app)), fine);
                assert_eq!(code(quotas.open_channel(app, u32::MAX)), fine);
                assert_eq!(code(quotas.post(at(2_000), app)), fine);
                assert_eq!(code(quotas.enqueue(app, u32::MAX)), fine);
            }
        }
        let gauges: Vec<_> = quotas.gauges(0, 1).collect();
        assert_eq!(gauges[0], ("app_connections", Gauge::new(2, 2)));
        assert_eq!(gauges[3], ("app_queued_bytes", Gauge::new(1_000, 100)));
        assert_eq!((gauges.len(), quotas.gauges(1, 1).count(), quotas.gauges(9, 1).count()), (4, 0, 0));
    }
}
