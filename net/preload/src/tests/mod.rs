//! The library over a supervisor in the same process.
//!
//! Why here: what the library does for a program depends on the order of calls, signals of the
//! supervisor and forks, which whole programs reach by chance only. The requests to the supervisor
//! are answered by `supervisor`; the kernel's part (pairs, epoll instances, pipes) is real. The
//! intercepted functions are called as a program calls them, by their names: this binary, its test
//! harness included, has the library's definitions.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod accepting;
mod bytes;
mod closing;
mod descriptors;
mod epoll;
mod polling;
pub(crate) mod supervisor;

use crate::real::{errno, set_errno};
use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

thread_local! {
    static BETWEEN: Cell<c_int> = const { Cell::new(-1) };
}

/// Has the next call of this thread that looks at a candidate meet an upgrade before it acts.
fn upgrade_between(file: c_int) {
    BETWEEN.set(file);
}

/// Between a call's look at a descriptor and its act, where another thread may request rings.
pub(crate) fn between(file: c_int) {
    if file >= 0 && BETWEEN.get() == file {
        BETWEEN.set(-1);
        crate::rings::upgrade(file, crate::table::record(file).unwrap());
    }
}

/// The error of a call that returns -1.
fn error_of(result: impl TryInto<i64>) -> c_int {
    assert_eq!(result.try_into().ok(), Some(-1), "it succeeded");
    errno()
}

/// Reads at most `room` bytes as a program does; the error if that fails.
fn read(file: c_int, room: usize) -> Result<Vec<u8>, c_int> {
    let mut bytes = vec![0; room];
    set_errno(0);
    // SAFETY: there is room for so much.
    let count = unsafe { crate::read(file, bytes.as_mut_ptr().cast(), room) };
    bytes.truncate(usize::try_from(count).map_err(|_| errno())?);
    Ok(bytes)
}

/// Writes as a program does; the number of bytes, or the error.
fn write(file: c_int, bytes: &[u8]) -> Result<usize, c_int> {
    set_errno(0);
    // SAFETY: the bytes are there.
    let count = unsafe { crate::write(file, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(count).map_err(|_| errno())
}

/// Receives with flags.
fn recv(file: c_int, room: usize, flags: c_int) -> Result<Vec<u8>, c_int> {
    let mut bytes = vec![0; room];
    set_errno(0);
    // SAFETY: there is room for so much.
    let count = unsafe { crate::recv(file, bytes.as_mut_ptr().cast(), room, flags) };
    bytes.truncate(usize::try_from(count).map_err(|_| errno())?);
    Ok(bytes)
}

/// Sends with flags.
fn send(file: c_int, bytes: &[u8], flags: c_int) -> Result<usize, c_int> {
    set_errno(0);
    // SAFETY: the bytes are there.
    let count = unsafe { crate::send(file, bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(count).map_err(|_| errno())
}

fn set_nonblocking(file: c_int) {
    // SAFETY: calls without pointers.
    unsafe {
        let flags = crate::fcntl(file, libc::F_GETFL, 0);
        let flags = (flags | libc::O_NONBLOCK).cast_unsigned();
        assert_eq!(crate::fcntl(file, libc::F_SETFL, flags.into()), 0);
    }
}

/// A pipe: its reading and its writing end.
fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader.into(), writer.into())
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn number(file: &OwnedFd) -> c_int {
    file.as_raw_fd()
}

const PATIENCE: Duration = Duration::from_secs(60);
