//! The descriptors that this process may have open.
//!
//! Why here: a server keeps some for each client. One that admits more clients than it has
//! descriptors for fails in the middle of a handshake, and `poll` refuses more entries than the
//! limit. So servers raise the limit at their start and admit as many clients as fit. Any thread.
//! Source: getrlimit(2), poll(2).
//!
//! ```
//! use sidecore_sys::descriptors;
//!
//! let limit = descriptors::raise_limit();
//! assert!(descriptors::room() < limit);
//! ```

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit (`ulimit -n`) as far as it may itself, the soft limit up to the hard
/// one, and to `LIMIT_MAX` at most. Returns the limit in force. For programs that own their
/// process: the limit is inherited, and programs that use `select` cannot have descriptors above
/// 1023.
pub fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(LIMIT_MAX).min(LIMIT_MAX);
    if current.is_some_and(|current| current < wanted) {
        // A refusal leaves the limit as it was, and servers go by that.
        let raised = Rlimit {
            current: Some(wanted),
            maximum,
        };
        setrlimit(Resource::Nofile, raised).ok();
    }
    limit()
}

/// The limit in force.
#[must_use]
pub fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(LIMIT_MAX);
    usize::try_from(limit.min(LIMIT_MAX)).unwrap_or(usize::MAX)
}

/// The descriptors that can still be opened: the limit less those that are open, as far as `/proc`
/// tells.
#[must_use]
pub fn room() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    limit().saturating_sub(open)
}

/// No server of ours has use for more, and some kernels' hard limit is a thousand times that.
pub(crate) const LIMIT_MAX: u64 = 1 << 16;
