//! System calls that may wait for a file system which this process itself serves.
//!
//! Why here: a server that mounts a file system on its own FUSE file, or has the kernel write to
//! it, waits for its other threads. If the process is killed meanwhile, the waiting thread cannot
//! end before it has its answer. Its table of descriptors, which all threads share, keeps the FUSE
//! device open, so the kernel never gives up the answer: the process stays for ever, and the mount
//! with it. A thread with its own table without the device keeps nothing open: the end of the
//! others closes the device, and the waiting call fails. Source: unshare(2) (`CLONE_FILES`),
//! `fuse_dev_release` in `fs/fuse/dev.c` of Linux.
#![allow(unsafe_code)] // unshare(2), dup3(2) onto descriptors by their numbers

use rustix::fs::{Mode, OFlags};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Runs `work` on a thread whose table of descriptors is a copy without this process's FUSE devices
/// and io_urings (`/dev/null` stands in their places). Blocks until it is done.
///
/// Descriptors that `work` opens are of that thread alone: none may be handed out.
///
/// # Errors
/// Those of `work`; the system's where there is no such thread.
pub fn apart<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("apart".to_owned());
        let thread = thread.spawn_scoped(scope, || {
            leave()?;
            work()
        })?;
        let panicked = |_| Err(io::Error::other("the thread panicked"));
        thread.join().unwrap_or_else(panicked)
    })
}

/// Gives the calling thread a table of descriptors with the standard three and `kept` alone.
///
/// Why: a thread that waits in the kernel may outlive a kill of its process for a while. The other
/// descriptors of the process are closed then all the same, and their peers learn of its end.
///
/// # Errors
/// The system's; the thread's table may be a copy of the process's then.
pub fn hold_only(kept: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the thread's table is a copy, with the same numbers for the same files; memory and
    // the tables of other threads stay as they are.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let kept = kept.as_raw_fd();
    let ranges = [(3, kept.saturating_sub(1)), (kept.max(2) + 1, RawFd::MAX)];
    for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
        // The system call, because musl's library has no function of that name.
        // SAFETY: the numbers are of this thread's own table, and the caller uses none of them
        // here but `kept`.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives the calling thread a table of its own, without the devices.
fn leave() -> io::Result<()> {
    // SAFETY: the thread's table is a copy, with the same numbers for the same files; memory and
    // the tables of other threads stay as they are.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut numbers: Vec<RawFd> = Vec::new();
    for entry in std::fs::read_dir("/proc/thread-self/fd")? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    for number in numbers.into_iter().filter(|&number| serves(number)) {
        // SAFETY: both are numbers of this thread's own table. The one that is replaced stays open,
        // as another file, so that its number is not given to a third.
        if unsafe { libc::dup3(null.as_raw_fd(), number, libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// True for a FUSE device, and for an io_uring, which may hold requests of one.
fn serves(number: RawFd) -> bool {
    let link = std::fs::read_link(format!("/proc/thread-self/fd/{number}"));
    let is_ring = link.is_ok_and(|link| link.as_os_str() == OsStr::new("anon_inode:[io_uring]"));
    // SAFETY: it is not used if it has been closed since: fstat(2) says so.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let is_device = rustix::fs::fstat(file).is_ok_and(|stat| {
        let is_character = stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
        is_character && stat.st_rdev == rustix::fs::makedev(FUSE.0, FUSE.1)
    });
    is_ring || is_device
}

/// Major and minor number of `/dev/fuse` (`FUSE_MINOR` of Linux).
const FUSE: (u32, u32) = (10, 229);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn work_has_the_same_files_and_closes_none_of_others() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let number = writer.as_raw_fd();
        apart(|| writer.write_all(b"from there")).unwrap();
        let refused: io::Result<()> = apart(|| {
            // SAFETY: a copy in this thread's table; the test's own stays open.
            let copy = unsafe { libc::close(number) };
            assert_eq!(copy, 0);
            Err(io::Error::other("refused"))
        });
        refused.unwrap_err();
        writer.write_all(b", and from here").unwrap();
        drop(writer);
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "from there, and from here");
    }

    #[test]
    fn a_thread_can_hold_one_descriptor_alone() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (kept, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let number = writer.as_raw_fd();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            hold_only(std::os::fd::AsFd::as_fd(&kept)).unwrap();
            let mut kept = kept;
            kept.write_all(b"held").unwrap();
            receiver.recv().unwrap_err();
            // SAFETY: only looked at.
            let closed = unsafe { BorrowedFd::borrow_raw(number) };
            assert!(rustix::fs::fstat(closed).is_err());
        });
        let mut text = [0; 4];
        io::Read::read_exact(&mut peer, &mut text).unwrap();
        assert_eq!(&text, b"held");
        // The thread has no copy of this end: the reader sees that it is closed.
        drop(writer);
        let mut rest = Vec::new();
        io::Read::read_to_end(&mut reader, &mut rest).unwrap();
        assert!(rest.is_empty());
        drop(sender);
        thread.join().unwrap();
    }

    #[test]
    fn the_device_is_not_there() {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let Ok(device) = rustix::fs::open("/dev/fuse", flags, Mode::empty()) else {
            return;
        };
        let number = device.as_raw_fd();
        let mut seen = None;
        apart(|| {
            seen = Some(std::fs::read_link(format!(
                "/proc/thread-self/fd/{number}"
            ))?);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen.unwrap().as_os_str(), "/dev/null");
        assert!(serves(number), "the process has it still");
    }
}
