//! Replacing the file of an epoll's entry (epoll(7)).
//!
//! An epoll knows its entries by file and number. A process that replaces the file at a number in
//! another process cannot reach the entry from its own table of descriptors, where the number means
//! another file. So a thread with a table of its own does it, as restorers of processes do.
#![allow(unsafe_code)] // unshare(2) and dup2(2) have no safe wrappers

use crate::SysError;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::thread::UnshareFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Takes `old` out of the entry `number` of `epoll`, and puts `new` there with these events and
/// data. Waits for a thread that does it.
///
/// # Errors
/// [`SysError::Call`].
pub fn exchange(
    epoll: &OwnedFd,
    number: i32,
    old: &OwnedFd,
    new: &OwnedFd,
    events: u32,
    data: u64,
) -> Result<(), SysError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sidecore-epoll".to_owned());
        let done = thread.spawn_scoped(scope, || {
            in_own_table(epoll, number, old, new, (events, data))
        });
        let done = done.map_err(|source| SysError::Call {
            call: "clone",
            source,
        })?;
        match done.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn in_own_table(
    epoll: &OwnedFd,
    number: i32,
    old: &OwnedFd,
    new: &OwnedFd,
    (events, data): (u32, u64),
) -> Result<(), SysError> {
    let refused = |call| {
        move |source: rustix::io::Errno| SysError::Call {
            call,
            source: source.into(),
        }
    };
    // SAFETY: this thread ends with this function, and owns no descriptor by number but copies.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.map_err(refused("unshare"))?;
    // Out of the way of `number`, whatever numbers they have.
    let apart = |file: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(file, number.saturating_add(1));
    let [epoll, old, new] = [epoll, old, new].map(apart);
    let epoll = epoll.map_err(refused("fcntl(F_DUPFD)"))?;
    let old = old.map_err(refused("fcntl(F_DUPFD)"))?;
    let new = new.map_err(refused("fcntl(F_DUPFD)"))?;
    place(old.as_fd(), number)?;
    // SAFETY: `place` has just put a file there, and no other thread uses this table.
    let at = unsafe { BorrowedFd::borrow_raw(number) };
    // An old entry that went with its last descriptor need not be taken out.
    epoll::delete(&epoll, at).ok();
    place(new.as_fd(), number)?;
    let (events, data) = (
        EventFlags::from_bits_retain(events),
        EventData::new_u64(data),
    );
    epoll::add(&epoll, at, data, events).map_err(refused("epoll_ctl"))
}

/// Puts a copy of `file` at `number` of this thread's own table.
fn place(file: BorrowedFd<'_>, number: i32) -> Result<(), SysError> {
    // SAFETY: the table is this thread's alone, so `number` holds a copy that no other code uses.
    if unsafe { libc::dup2(file.as_raw_fd(), number) } < 0 {
        return Err(SysError::Call {
            call: "dup2",
            source: io::Error::last_os_error(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_socket;

    #[test]
    fn an_entry_gets_another_file() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (old, _other) = local_socket::pair().unwrap();
        let (new, peer) = local_socket::pair().unwrap();
        epoll::add(&epoll, &old, EventData::new_u64(7), EventFlags::IN).unwrap();
        let number = old.as_raw_fd();
        let in_bits = EventFlags::IN.bits();
        exchange(&epoll, number, &old, &new, in_bits, 7).unwrap();
        local_socket::send(peer.as_fd(), b"x", &[]).unwrap();
        let mut ready = Vec::with_capacity(4);
        let none = rustix::time::Timespec::default();
        epoll::wait(
            &epoll,
            rustix::buffer::spare_capacity(&mut ready),
            Some(&none),
        )
        .unwrap();
        let data: Vec<u64> = ready.iter().map(|event| event.data.u64()).collect();
        assert_eq!(data, [7]);
        // The old one is in it no more.
        local_socket::send(_other.as_fd(), b"x", &[]).unwrap();
        let mut buffer = [0; 4];
        local_socket::receive(new.as_fd(), &mut buffer).unwrap();
        ready.clear();
        epoll::wait(
            &epoll,
            rustix::buffer::spare_capacity(&mut ready),
            Some(&none),
        )
        .unwrap();
        assert!(ready.is_empty());
    }
}
