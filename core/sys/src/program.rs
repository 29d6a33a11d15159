//! Search for other programs, and child processes that end with the one that started them.
//!
//! Why here: peers, the tour and the list of what this machine offers look for programs; they must
//! agree. Must stay true: a program that a system's administrator would find is found, though a
//! user's path may not say so. Source: environ(7), hier(7), PR_SET_PDEATHSIG(2const).
//!
//! ```
//! use sidecore_sys::program;
//!
//! let shell = program::find("sh").expect("every machine has one");
//! assert!(shell.is_absolute());
//! assert_eq!(program::find("no-such-program-here"), None);
//! ```
#![allow(unsafe_code)] // The code of a child between fork and exec.

use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The file that `name` starts, in the directories of `PATH` and then in those of the system's own
/// programs. Looks at file systems.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(SYSTEM_PLACES.map(PathBuf::from));
    places
        .map(|place| place.join(name))
        .find(|candidate| candidate.is_file())
}

/// Has the kernel send SIGTERM to the program of `command` when the thread that starts it ends,
/// however that ends: also by a signal that cannot be caught. To be called in the process that
/// starts it.
///
/// A program that changes its user or group when it starts gets no signal.
pub fn end_with_starter(command: &mut Command) {
    let starter = getpid();
    let tie = move || -> std::io::Result<()> {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // Nothing tells of a starter that ended before.
        match getppid() == Some(starter) {
            true => Ok(()),
            false => Err(Errno::SRCH.into()),
        }
    };
    // SAFETY: between fork and exec only calls that are safe in a signal handler are allowed: `tie`
    // makes two system calls and neither allocates nor locks.
    unsafe {
        command.pre_exec(tie);
    }
}

/// A descriptor that the process which started this one left open for it, by its number; programs
/// started from here do not get it.
///
/// # Errors
/// `EBADF` where there is none.
pub fn inherited(number: i32) -> std::io::Result<OwnedFd> {
    if number <= 2 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: only looked at: where no such descriptor is open, the call fails.
    let looked_at = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(looked_at, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, it is not one of the standard three, and nothing in this process has
    // opened it: its number came from outside.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Directories of system programs that a user's `PATH` may lack.
const SYSTEM_PLACES: [&str; 2] = ["/usr/sbin", "/sbin"];

#[cfg(test)]
mod tests {
    use super::{end_with_starter, find};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    #[test]
    fn the_shell_is_found_and_what_is_not_there_is_not() {
        assert!(find("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find("no-program-has-this-name"), None);
    }

    #[test]
    fn what_a_thread_started_is_told_to_end_when_the_thread_ends() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("60").stdin(Stdio::null());
            end_with_starter(&mut command);
            command.spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(15));
    }
}
