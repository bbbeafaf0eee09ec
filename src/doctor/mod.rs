//! Checks the machine against the configuration before the node starts.
//!
//! What was found on the machine and the configuration flow in, findings flow out: what refuses the start, what will be
//! felt, what is only good to know. Always true: nothing is read here, so every finding is tested; each says what was
//! found, what was wanted and what to type or write to change it; and where nothing refuses, the node can start.

use crate::config::{Config, Cores};

/// What was found on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `RLIMIT_NOFILE` as it is now, in descriptors.
    pub nofile_soft: u64,
    /// The most it may be raised to without privileges, in descriptors.
    pub nofile_hard: u64,
    /// `RLIMIT_MEMLOCK`, in bytes; `u64::MAX` is no limit.
    pub memlock_bytes: u64,
    /// The kernel's version, major and minor.
    pub kernel: (u32, u32),
    /// `kernel.io_uring_disabled`: 0 for everybody, 1 for the privileged, 2 for nobody. `None` where the kernel has no
    /// such switch (before 6.6).
    pub io_uring_disabled: Option<u8>,
    /// The cores of the process's affinity, in rising order.
    pub cpus: Vec<usize>,
    /// `net.core.somaxconn`, in connections.
    pub somaxconn: u64,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Note,
    /// The node starts, and this will be felt.
    Warn,
    /// The node cannot start.
    Refuse,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was found, what was wanted and how to change it.
    pub text: String,
}

/// The oldest kernel that has everything a ring needs: `DEFER_TASKRUN` came with 6.1.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Up to 6.12 fixed files are freed in order, so one idle poll can pin closes that come later.
const KERNEL_FIXED_FILES: (u32, u32) = (6, 13);
/// The executors refuse to start below this, in bytes.
const MEMLOCK_MIN_BYTES: u64 = 512 * 1024;
/// Executors lock so much of registered buffers and rings each, in bytes, where the kernel charges them to the limit.
const MEMLOCK_PER_CORE_BYTES: u64 = 128 * 1024;
/// Descriptors of a shard that are no viewer's: rings, event descriptors, listeners, sockets between accept and slot.
const NOFILE_PER_SHARD: u64 = 32;
/// Descriptors of everything else: the database, logs, the admin listener and its connections.
const NOFILE_BASE: u64 = 64;

/// All that is to be said before a start, the gravest first.
#[must_use]
pub fn examine(machine: &Machine, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    kernel(machine, &mut findings);
    memlock(machine, &mut findings);
    let shards = cores(machine, config, &mut findings);
    descriptors(machine, config, shards, &mut findings);
    backlog(machine, config, &mut findings);
    exposure(config, &mut findings);
    // The sort is stable: findings of one severity stay in the order above.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn say(findings: &mut Vec<Finding>, severity: Severity, text: String) {
    findings.push(Finding { severity, text });
}

fn kernel(machine: &Machine, findings: &mut Vec<Finding>) {
    let (major, minor) = machine.kernel;
    if machine.kernel < KERNEL_MIN {
        let missing = if machine.kernel < (6, 0) {
            "rings without SINGLE_ISSUER, DEFER_TASKRUN and multishot receives"
        } else {
            "rings without DEFER_TASKRUN"
        };
        let text = format!("kernel {major}.{minor} has {missing}; 6.1 or newer is needed. Boot a newer kernel.");
        say(findings, Severity::Refuse, text);
    } else if machine.kernel < KERNEL_FIXED_FILES {
        let text = format!(
            "kernel {major}.{minor} frees fixed files in order, so one idle viewer can hold back the end of others: each \
             viewer keeps a descriptor instead, and RLIMIT_NOFILE bounds their number. 6.13 or newer needs none."
        );
        say(findings, Severity::Warn, text);
    }
    match machine.io_uring_disabled {
        None | Some(0) => {}
        Some(1) => {
            let text = "kernel.io_uring_disabled is 1: only privileged processes may make rings. If the start fails: \
                        sysctl -w kernel.io_uring_disabled=0";
            say(findings, Severity::Warn, text.into());
        }
        Some(value) => {
            let text = format!(
                "kernel.io_uring_disabled is {value}: nobody may make a ring. Allow it: \
                                sysctl -w kernel.io_uring_disabled=0"
            );
            say(findings, Severity::Refuse, text);
        }
    }
}

fn memlock(machine: &Machine, findings: &mut Vec<Finding>) {
    let found = machine.memlock_bytes / 1024;
    let wanted = MEMLOCK_MIN_BYTES.max(MEMLOCK_PER_CORE_BYTES * (machine.cpus.len() as u64 + 1));
    let how = format!("ulimit -l {} in the shell, or LimitMEMLOCK={}K in the unit", wanted / 1024, wanted / 1024);
    if machine.memlock_bytes < MEMLOCK_MIN_BYTES {
        let least = MEMLOCK_MIN_BYTES / 1024;
        let text =
            format!("RLIMIT_MEMLOCK is {found} KiB, and executors start from {least} KiB, root's too. Raise it: {how}");
        say(findings, Severity::Refuse, text);
    } else if machine.memlock_bytes < wanted {
        let text = format!("RLIMIT_MEMLOCK is {found} KiB, which may be short for {} cores: {how}", machine.cpus.len());
        say(findings, Severity::Warn, text);
    }
}

/// Says where parts share cores. Returns how many shards there will be.
fn cores(machine: &Machine, config: &Config, findings: &mut Vec<Finding>) -> u64 {
    if machine.cpus.is_empty() {
        say(findings, Severity::Refuse, "no core was found that this process may run on".into());
        return 1;
    }
    match Cores::place(config.shards, config.orchestrator_core, &machine.cpus) {
        Err(error) => {
            say(findings, Severity::Refuse, error.to_string());
            1
        }
        Ok(placed) => {
            let (shards, cpus) = (placed.shards.len(), machine.cpus.len());
            if placed.sharing > 1 {
                let text = format!(
                    "{shards} shards and the orchestrator run on {cpus} {}: up to {} of them share one and take turns, \
                     which adds milliseconds. Own cores need node.shards = {} at the most.",
                    if cpus == 1 { "core" } else { "cores" },
                    placed.sharing,
                    (cpus - 1).max(1)
                );
                let severity = if cpus == 1 { Severity::Note } else { Severity::Warn };
                say(findings, severity, text);
            } else if shards + 1 < cpus {
                let text = format!("{cpus} cores, of which {} are used: node.shards = {}", shards + 1, cpus - 1);
                say(findings, Severity::Note, text);
            }
            shards as u64
        }
    }
}

fn descriptors(machine: &Machine, config: &Config, shards: u64, findings: &mut Vec<Finding>) {
    let (soft, hard) = (machine.nofile_soft, machine.nofile_hard);
    let own = NOFILE_BASE + NOFILE_PER_SHARD * shards + u64::from(config.admin_reserve);
    let clients = u64::from(config.shard.clients_max);
    let viewers = clients.saturating_mul(shards);
    let how = |count: u64| format!("ulimit -n {count} in the shell, or LimitNOFILE={count} in the unit");
    if hard < own {
        let text =
            format!("RLIMIT_NOFILE is {hard} at the most, and the node's own parts need {own}. Raise it: {}", how(own));
        return say(findings, Severity::Refuse, text);
    }
    if soft < hard {
        let text = format!("RLIMIT_NOFILE is {soft}; the node raises it to {hard}, the hard limit");
        say(findings, Severity::Note, text);
    }
    if machine.kernel < KERNEL_FIXED_FILES && hard - own < viewers {
        let text = format!(
            "RLIMIT_NOFILE of {hard} leaves room for {} viewers, fewer than the {viewers} of shard.clients_max. Raise it: {}",
            hard - own,
            how(own.saturating_add(viewers))
        );
        say(findings, Severity::Warn, text);
    } else if hard < clients && machine.kernel >= KERNEL_FIXED_FILES {
        let text = format!(
            "RLIMIT_NOFILE of {hard} is the size of one table of fixed files: the {clients} viewers of a shard need {} of \
             them, each with a ring of its own. That works; {} makes it one.",
            clients.div_ceil(hard),
            how(clients + own)
        );
        say(findings, Severity::Note, text);
    }
}

fn backlog(machine: &Machine, config: &Config, findings: &mut Vec<Finding>) {
    let (wanted, most) = (u64::from(config.backlog), machine.somaxconn);
    if most < wanted {
        let text = format!(
            "net.core.somaxconn is {most}, so of socket.backlog_connections = {wanted} only so many wait to be accepted; when \
             all viewers come back at once the rest is turned away. Raise it: sysctl -w net.core.somaxconn={wanted}"
        );
        say(findings, Severity::Warn, text);
    }
}

fn exposure(config: &Config, findings: &mut Vec<Finding>) {
    if !config.admin.ip().is_loopback() {
        let text = format!(
            "the admin listener is at {}, and asks nobody for a key: keep it off the public network",
            config.admin
        );
        say(findings, Severity::Warn, text);
    }
    if config.apps.is_empty() && !config.listen.ip().is_loopback() {
        let text = format!(
            "no app is configured: the node listens at {}, but the demo app serves loopback only. Others are answered 403.",
            config.listen
        );
        say(findings, Severity::Warn, text);
    }
    if config.test_echo {
        say(findings, Severity::Warn, "the echo endpoint of conformance tests is there: for tests only".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Machine {
        Machine {
            nofile_soft: 2_000_000,
            nofile_hard: 2_000_000,
            memlock_bytes: u64::MAX,
            kernel: (6, 18),
            io_uring_disabled: Some(0),
            cpus: vec![0, 1],
            somaxconn: 4_096,
        }
    }

    fn found(machine: &Machine, config: &Config) -> Vec<(Severity, String)> {
        examine(machine, config).into_iter().map(|finding| (finding.severity, finding.text)).collect()
    }

    /// The one finding that changing `change` brings.
    fn one(change: impl FnOnce(&mut Machine, &mut Config)) -> (Severity, String) {
        let (mut machine, mut config) = (good(), Config::default());
        change(&mut machine, &mut config);
        let mut found = found(&machine, &config);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn a_good_machine_is_passed_in_silence() {
        assert_eq!(found(&good(), &Config::default()), []);
    }

    #[test]
    fn the_kernel_is_named_with_what_it_lacks() {
        let (severity, text) = one(|m, _| m.kernel = (5, 15));
        assert!(severity == Severity::Refuse && text.contains("5.15") && text.contains("SINGLE_ISSUER"), "{text}");
        let (severity, text) = one(|m, _| m.kernel = (6, 0));
        assert!(severity == Severity::Refuse && text.contains("without DEFER_TASKRUN"), "{text}");
        let (severity, text) = one(|m, _| m.kernel = (6, 12));
        assert!(severity == Severity::Warn && text.contains("6.13"), "{text}");
        let (severity, text) = one(|m, _| m.io_uring_disabled = Some(2));
        assert!(severity == Severity::Refuse && text.contains("sysctl -w kernel.io_uring_disabled=0"), "{text}");
        assert_eq!(one(|m, _| m.io_uring_disabled = Some(1)).0, Severity::Warn);
    }

    #[test]
    fn memlock_is_said_with_the_way_to_raise_it() {
        let (severity, text) = one(|m, _| m.memlock_bytes = 512 * 1024 - 1);
        assert!(severity == Severity::Refuse && text.contains("ulimit -l 512"), "{text}");
        assert!(text.contains("LimitMEMLOCK=512K"), "{text}");
        let (severity, text) = one(|m, _| {
            m.memlock_bytes = 1024 * 1024;
            m.cpus = (0..32).collect();
        });
        assert!(severity == Severity::Warn && text.contains("32 cores"), "{text}");
    }

    #[test]
    fn descriptors_bound_viewers_only_on_older_kernels() {
        let (severity, text) = one(|m, _| m.nofile_soft = 1_024);
        assert!(severity == Severity::Note && text.contains("raises it to 2000000"), "{text}");
        let (severity, text) = one(|m, _| (m.nofile_soft, m.nofile_hard) = (20_000, 20_000));
        assert!(severity == Severity::Note && text.contains("need 50 of them"), "{text}");
        let (severity, text) = one(|m, _| (m.nofile_soft, m.nofile_hard) = (100, 100));
        assert!(severity == Severity::Refuse && text.contains("LimitNOFILE=160"), "{text}");
        let old = Machine { kernel: (6, 12), nofile_soft: 20_000, nofile_hard: 20_000, ..good() };
        let texts = found(&old, &Config::default());
        assert!(texts.iter().any(|(_, text)| text.contains("leaves room for 19840 viewers")), "{texts:?}");
    }

    #[test]
    fn cores_that_are_shared_are_said_aloud() {
        let (severity, text) = one(|_, c| c.shards = Some(4));
        assert!(severity == Severity::Warn && text.contains("4 shards") && text.contains("up to 4"), "{text}");
        assert_eq!(one(|m, _| m.cpus = vec![3]).0, Severity::Note);
        let (severity, text) = one(|_, c| c.orchestrator_core = Some(7));
        assert!(severity == Severity::Refuse && text.contains("[0, 1]"), "{text}");
        let (severity, text) = one(|m, c| {
            m.cpus = vec![0, 1, 2, 3];
            c.shards = Some(1);
        });
        assert!(severity == Severity::Note && text.contains("node.shards = 3"), "{text}");
    }

    #[test]
    fn what_is_exposed_is_said() {
        let (severity, text) = one(|m, _| m.somaxconn = 128);
        assert!(severity == Severity::Warn && text.contains("net.core.somaxconn=4096"), "{text}");
        assert!(one(|_, c| c.admin = "0.0.0.0:8081".parse().unwrap()).1.contains("0.0.0.0:8081"));
        assert!(one(|_, c| c.listen = "0.0.0.0:80".parse().unwrap()).1.contains("demo app"));
        assert!(one(|_, c| c.test_echo = true).1.contains("echo"));
    }

    #[test]
    fn the_gravest_comes_first() {
        let machine = Machine { kernel: (5, 4), nofile_soft: 1_024, somaxconn: 1, ..good() };
        let severities: Vec<_> =
            found(&machine, &Config::default()).into_iter().map(|(severity, _)| severity).collect();
        assert_eq!(severities, [Severity::Refuse, Severity::Warn, Severity::Note]);
    }
}
