//! Listening sockets that the process which started this one has opened: socket activation.
//!
//! Why here: a descriptor by its number is owned by nothing that the compiler knows. Must stay
//! true: each is taken once. Source: sd_listen_fds(3); systemd and libnbd pass them.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes the listening sockets that the process which started this one passed (`LISTEN_PID`,
/// `LISTEN_FDS`): descriptors from 3 on, which programs that this one starts do not inherit.
/// Empty without any, and where they were taken before.
///
/// # Errors
/// `LISTEN_PID` or `LISTEN_FDS` is no number, or names a descriptor that is not open.
#[allow(unsafe_code)] // Descriptors that have a number alone.
pub fn take_listeners() -> io::Result<Vec<OwnedFd>> {
    static WERE_TAKEN: AtomicBool = AtomicBool::new(false);
    let numbers = sd_notify::listen_fds()?;
    // Relaxed: the flag alone decides; nothing is published with it.
    if WERE_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    Ok(numbers
        .map(|number| {
            // SAFETY: the process that started this one gave these numbers away to it, all of them
            // are open (`listen_fds` has set a flag of each), and the flag above lets them be taken
            // once.
            unsafe { OwnedFd::from_raw_fd(number) }
        })
        .collect())
}
