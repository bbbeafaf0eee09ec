//! The log of one seed: its last lines are shown if the seed fails.

use std::collections::VecDeque;

/// Lines that are kept.
const LINES_MAX: usize = 80;

/// What happened lately.
pub(crate) struct Trace {
    seed: u64,
    at_us: u64,
    lines: VecDeque<String>,
    /// Everything is printed as it happens: for one seed that is being looked at.
    aloud: bool,
}

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        let aloud = std::env::var_os("RINGCAST_SIM_TRACE").is_some();
        Self { seed, at_us: 0, lines: VecDeque::new(), aloud }
    }

    pub(crate) fn at(&mut self, at_us: u64) {
        self.at_us = at_us;
    }

    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>10} µs  {}", self.at_us, line());
        if self.aloud {
            eprintln!("{line}");
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

impl Drop for Trace {
    /// A panic passes through here: what led to it is told.
    fn drop(&mut self) {
        if std::thread::panicking() && !self.aloud {
            eprintln!("--- the last steps of seed {} ---", self.seed);
            for line in &self.lines {
                eprintln!("{line}");
            }
        }
    }
}
