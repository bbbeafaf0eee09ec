#![allow(
    unsafe_code,
    reason = "uname(2) fills a struct of ours; where a service may not see all of /proc nothing else names the kernel"
)]
//! Whether this kernel can do it: asked once at start, and answered in words that say what to change.
//!
//! Nothing flows in; out flows what the kernel can do, or what it lacks. Always true: what is checked here need not
//! be checked again by anything in this module.

use std::fmt;
use std::io;

use io_uring::{Probe, opcode};

use super::uring;
use crate::io::machine;

/// The oldest kernel that serves: DEFER_TASKRUN.
pub const KERNEL_MIN: (u32, u32) = (6, 1);
/// The first kernel that frees each fixed file for itself, so that an idle poll does not pin later closes.
pub const KERNEL_FIXED_FILES: (u32, u32) = (6, 13);

/// What the kernel can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// As `uname -r` says it.
    pub release: String,
    /// Below 6.13: each connection keeps a descriptor, and RLIMIT_NOFILE bounds the connections.
    pub plain_descriptors: bool,
    /// RLIMIT_NOFILE, the slots one ring may have.
    pub files_max: u32,
}

/// Why io_uring cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelLack {
    /// Refused by a sysctl or a filter.
    Refused {
        /// What io_uring_setup(2) said.
        errno: i32,
        /// The value of kernel.io_uring_disabled, if the kernel has that sysctl.
        disabled: Option<u8>,
    },
    /// Older than [`KERNEL_MIN`].
    TooOld {
        /// As `uname -r` says it.
        release: String,
        /// What is missing.
        missing: &'static str,
        /// Since which version it is there.
        since: (u32, u32),
    },
    /// Anything else that making a ring said.
    Failed {
        /// The error number.
        errno: i32,
    },
}

impl fmt::Display for KernelLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { disabled: Some(value @ 1..), .. } => write!(
                f,
                "io_uring is disabled here: kernel.io_uring_disabled = {value}. Enable it with \
                 `sysctl -w kernel.io_uring_disabled=0`, and for good with a file in /etc/sysctl.d"
            ),
            Self::Refused { errno: libc::ENOSYS, .. } => f.write_str(
                "this kernel has no io_uring (ENOSYS): it is older than 5.1, built without CONFIG_IO_URING, or a \
                 sandbox hides it. If `sysctl kernel.io_uring_disabled` exists, set it to 0 with \
                 `sysctl -w kernel.io_uring_disabled=0`",
            ),
            Self::Refused { .. } => f.write_str(
                "io_uring is refused here (EPERM) although kernel.io_uring_disabled is 0 or absent: a seccomp filter \
                 does it, as container runtimes have by default. Allow io_uring_setup, io_uring_enter and \
                 io_uring_register in its profile; to rule out the sysctl: `sysctl -w kernel.io_uring_disabled=0`",
            ),
            Self::TooOld { release, missing, since: (major, minor) } => write!(
                f,
                "the kernel {release} lacks {missing}, which came with {major}.{minor}; {}.{} or later is needed",
                KERNEL_MIN.0, KERNEL_MIN.1
            ),
            Self::Failed { errno } => {
                write!(f, "a ring cannot be made: {}", io::Error::from_raw_os_error(*errno))?;
                if *errno == libc::ENOMEM {
                    f.write_str("; raise the locked-memory limit (LimitMEMLOCK= in the unit, `ulimit -l`)")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for KernelLack {}

/// Makes a small ring with every flag and asks for every operation.
pub fn check_kernel() -> Result<KernelFeatures, KernelLack> {
    let release = release();
    let version = version(&release);
    let too_old = |missing, since: (u32, u32)| KernelLack::TooOld { release: release.clone(), missing, since };
    let ring = match uring::build(8, 16) {
        Ok(ring) => ring,
        Err(error) => {
            return Err(match error.raw_os_error().unwrap_or(libc::EIO) {
                errno @ (libc::EPERM | libc::ENOSYS) => KernelLack::Refused { errno, disabled: disabled() },
                libc::EINVAL if version < (6, 0) => too_old("IORING_SETUP_SINGLE_ISSUER", (6, 0)),
                libc::EINVAL => too_old("IORING_SETUP_DEFER_TASKRUN", KERNEL_MIN),
                errno => KernelLack::Failed { errno },
            });
        }
    };
    if !ring.params().is_feature_nodrop() {
        return Err(too_old("a completion queue that drops nothing (IORING_FEAT_NODROP)", (5, 5)));
    }
    if !ring.params().is_feature_skip_cqe_on_success() {
        return Err(too_old("silent success (IORING_FEAT_CQE_SKIP)", (5, 17)));
    }
    let mut probe = Probe::new();
    if let Err(error) = ring.submitter().register_probe(&mut probe) {
        return Err(KernelLack::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) });
    }
    for (code, missing, since) in [
        (opcode::PollAdd::CODE, "IORING_OP_POLL_ADD", (5, 1)),
        (opcode::Accept::CODE, "IORING_OP_ACCEPT", (5, 5)),
        (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL", (5, 5)),
        (opcode::Send::CODE, "IORING_OP_SEND", (5, 6)),
        (opcode::Recv::CODE, "IORING_OP_RECV", (5, 6)),
        (opcode::Close::CODE, "IORING_OP_CLOSE", (5, 6)),
        (opcode::Shutdown::CODE, "IORING_OP_SHUTDOWN", (5, 11)),
    ] {
        if !probe.is_supported(code) {
            return Err(too_old(missing, since));
        }
    }
    Ok(KernelFeatures { plain_descriptors: version < KERNEL_FIXED_FILES, files_max: files_max(), release })
}

/// RLIMIT_NOFILE: what bounds both descriptors and the slots of one ring.
pub(super) fn files_max() -> u32 {
    /// The kernel's own bound on fixed files a ring.
    const FIXED_FILES_MAX: u64 = 1 << 20;
    machine::nofile().0.clamp(1, FIXED_FILES_MAX) as u32
}

fn disabled() -> Option<u8> {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

fn release() -> String {
    // SAFETY: a struct of byte arrays, for which all zeros is a value.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is ours and of the type that uname fills.
    if unsafe { libc::uname(&raw mut names) } != 0 {
        return String::from("unknown");
    }
    names.release.iter().take_while(|&&c| c != 0).map(|&c| char::from(c as u8)).collect()
}

/// Major and minor of a release such as `6.18.44-fc`; (0, 0) if it is not written so.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(version("6.18.44-fc-v782"), (6, 18));
        assert_eq!(version("6.1.0-rc1"), (6, 1));
        assert_eq!(version("unknown"), (0, 0));
    }

    #[test]
    fn a_refusal_says_how_to_end_it() {
        for lack in [
            KernelLack::Refused { errno: libc::EPERM, disabled: Some(2) },
            KernelLack::Refused { errno: libc::EPERM, disabled: Some(0) },
            KernelLack::Refused { errno: libc::ENOSYS, disabled: None },
        ] {
            assert!(lack.to_string().contains("sysctl -w kernel.io_uring_disabled=0"), "{lack}");
        }
        let old = KernelLack::TooOld { release: "5.15.0".into(), missing: "X", since: (6, 0) };
        assert_eq!(old.to_string(), "the kernel 5.15.0 lacks X, which came with 6.0; 6.1 or later is needed");
    }

    #[test]
    fn this_kernel_serves() {
        let features = check_kernel().expect("io_uring on the machine that runs the tests");
        assert!(features.files_max > 0);
        assert_eq!(features.plain_descriptors, version(&features.release) < KERNEL_FIXED_FILES);
    }
}
