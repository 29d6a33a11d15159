//! The thread that made a call, as /proc and its process descriptor show it.
//!
//! Must stay true: nothing here waits for the thread, and nothing that it supplies is trusted:
//! memory is copied before it is checked, and numbers are bounded. The kernel may reuse a thread's
//! number once its call no longer waits. Anything reached by that number (memory, descriptors,
//! /proc) is therefore used only after a check, made behind the access, that the call still waits.
//! A descriptor of a thread without a pending call is identified by the inode of its file. Files
//! that are not sockets are never queried or closed here: either may block on another process
//! (FUSE).

use crate::address::{self, Given};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use sidecore_net_rings::Hint;
use sidecore_sys::seccomp::{Call, Listener, Memory};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// One call and the thread that made it.
#[derive(Debug)]
pub(crate) struct Caller<'l> {
    pub(crate) call: Call,
    listener: &'l Listener,
    /// Its memory, opened at the first write.
    memory: Option<Memory>,
    /// The file behind a descriptor, once it was duplicated into this process.
    fetched: RefCell<Option<(i32, Rc<OwnedFd>)>>,
    /// The last descriptor that was looked up, and the inode of its socket.
    known: Cell<Option<(i32, Option<u64>)>>,
}

/// Flags of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    /// `O_NONBLOCK`.
    pub(crate) is_nonblocking: bool,
    /// `FD_CLOEXEC`.
    pub(crate) closes_on_exec: bool,
}

/// A descriptor of the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) number: i32,
    pub(crate) flags: Flags,
}

impl<'l> Caller<'l> {
    pub(crate) fn new(call: Call, listener: &'l Listener) -> Self {
        Self {
            call,
            listener,
            memory: None,
            fetched: RefCell::new(None),
            known: Cell::new(None),
        }
    }

    /// The thread group leader of the calling thread: its process.
    pub(crate) fn leader(&self) -> Option<i32> {
        leader(self.call.thread).filter(|_| self.is_waiting())
    }

    /// The caller's process, whose leader this is, as a descriptor that is readable once it has
    /// exited.
    ///
    /// # Errors
    /// The kernel's: no descriptors left; `ESRCH` where the call no longer waits.
    pub(crate) fn process(&self, leader: i32) -> Result<OwnedFd, Errno> {
        let pid = Pid::from_raw(leader).ok_or(Errno::SRCH)?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        self.is_waiting().then_some(process).ok_or(Errno::SRCH)
    }

    /// True while the call waits for its answer, so that the thread's number cannot have been
    /// reused.
    pub(crate) fn is_waiting(&self) -> bool {
        self.listener.is_waiting(self.call.id)
    }

    /// Argument `index` as a number of 32 bits.
    pub(crate) fn int(&self, index: usize) -> i32 {
        (self.call.arguments[index] as u32).cast_signed()
    }

    /// The inode of the file behind a descriptor, if that is a socket.
    pub(crate) fn inode(&self, descriptor: i32) -> Option<u64> {
        if let Some((of, inode)) = self.known.get()
            && of == descriptor
        {
            return inode;
        }
        let by_name = || socket_inode(self.call.thread, descriptor).filter(|_| self.is_waiting());
        let inode = match self.call.number {
            // These calls need the file anyway. If it cannot be duplicated, the socket may still be
            // one of ours, so the inode is read from /proc.
            libc::SYS_connect | libc::SYS_getsockopt => match self.fetch(descriptor) {
                Ok(file) => inode_of_socket(&file),
                Err(_) => by_name(),
            },
            _ => by_name(),
        };
        self.known.set(Some((descriptor, inode)));
        inode
    }

    /// Drops what is cached of the descriptor: it refers to another file now.
    pub(crate) fn forget_inode(&self) {
        self.known.set(None);
        if let Some((_, file)) = self.fetched.take()
            && let Some(file) = Rc::into_inner(file)
            && rustix::net::sockopt::socket_type(&file).is_err()
        {
            crate::aside::close(file);
        }
    }

    /// Flags of a descriptor.
    pub(crate) fn flags(&self, descriptor: i32) -> Flags {
        if self.call.number == libc::SYS_connect
            && descriptor == self.int(0)
            && let Some(hint) = self.hint()
            && let Ok(file) = self.fetch(descriptor)
            && let Ok(flags) = rustix::fs::fcntl_getfl(&file)
        {
            return Flags {
                is_nonblocking: flags.contains(rustix::fs::OFlags::NONBLOCK),
                closes_on_exec: hint.closes_on_exec,
            };
        }
        // O_NONBLOCK is the file's, FD_CLOEXEC the descriptor's: only fdinfo shows both.
        let path = format!("/proc/{}/fdinfo/{descriptor}", self.call.thread);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let field = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let bits = field.and_then(|field| i32::from_str_radix(field.trim(), 8).ok());
        let bits = bits.unwrap_or_default();
        Flags {
            is_nonblocking: bits & libc::O_NONBLOCK != 0,
            closes_on_exec: bits & libc::O_CLOEXEC != 0,
        }
    }

    /// A descriptor as it is now.
    pub(crate) fn descriptor(&self, number: i32) -> Descriptor {
        Descriptor {
            number,
            flags: self.flags(number),
        }
    }

    /// A duplicate, in this process, of the file behind a descriptor.
    ///
    /// # Errors
    /// The kernel's: `EBADF`; `EPERM` where this process may not trace that one; `ESRCH` where the
    /// call no longer waits.
    pub(crate) fn fetch(&self, descriptor: i32) -> Result<Rc<OwnedFd>, Errno> {
        if let Some((of, file)) = &*self.fetched.borrow()
            && *of == descriptor
        {
            return Ok(Rc::clone(file));
        }
        let file = fetch(self.call.thread, descriptor)?;
        if !self.is_waiting() {
            crate::aside::close(file);
            return Err(Errno::SRCH);
        }
        let file = Rc::new(file);
        *self.fetched.borrow_mut() = Some((descriptor, Rc::clone(&file)));
        Ok(file)
    }

    /// Adds a duplicate of `file` to the caller's descriptors, closed by execve(2); its number.
    ///
    /// # Errors
    /// The kernel's: no descriptors left; `ENOENT` where the call no longer waits.
    pub(crate) fn give(&self, file: BorrowedFd<'_>) -> Result<i32, Errno> {
        self.listener.give(self.call.id, file, true)
    }

    /// Puts a duplicate of `file` in the place of a descriptor.
    ///
    /// # Errors
    /// As [`Self::give`].
    pub(crate) fn replace(&self, at: Descriptor, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let (id, closes_on_exec) = (self.call.id, at.flags.closes_on_exec);
        self.listener.replace(id, file, at.number, closes_on_exec)
    }

    /// Answers the call with the number of a new descriptor of `file`.
    ///
    /// # Errors
    /// As [`Self::give`]; the call was not answered.
    pub(crate) fn answer_with(
        &self,
        file: BorrowedFd<'_>,
        closes_on_exec: bool,
    ) -> Result<i32, Errno> {
        self.listener
            .answer_with(self.call.id, file, closes_on_exec)
    }

    /// Copies memory from the calling process.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn read(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let mut copy = vec![0; bytes];
        if bytes > 0 {
            let read = self.listener.read(&self.call, address, &mut copy);
            read.map_err(fault)?;
        }
        Ok(copy)
    }

    /// Writes to the memory of the calling process.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        // A file of /proc, unlike process_vm_writev(2), stays that of this process.
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => self.listener.memory(&self.call).map_err(fault)?,
        };
        let written = memory.write(address, bytes);
        self.memory = Some(memory);
        written.map_err(fault)
    }

    /// Writes a value whose capacity and length are in the 32-bit number at `length`: an address
    /// (accept(2)) or an option (getsockopt(2)). The length becomes that of the whole value, even
    /// if it was truncated.
    ///
    /// # Errors
    /// `EFAULT`; `EINVAL` for a negative length.
    pub(crate) fn write_sized(
        &mut self,
        target: u64,
        length: u64,
        value: &[u8],
    ) -> Result<(), Errno> {
        let room = self.read_int(length)?;
        let room = usize::try_from(room).map_err(|_| Errno::INVAL)?;
        self.write(target, &value[..room.min(value.len())])?;
        // An address or an option: never as long as 4 GiB.
        let bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        self.write(length, &bytes.to_ne_bytes())
    }

    /// Reads a 32-bit number.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn read_int(&mut self, address: u64) -> Result<i32, Errno> {
        let bytes = self.read(address, 4)?;
        bytes
            .first_chunk()
            .map(|bytes| i32::from_ne_bytes(*bytes))
            .ok_or(Errno::FAULT)
    }

    /// The socket address whose pointer and length are these arguments, and true if it was passed
    /// as AF_INET6.
    ///
    /// # Errors
    /// `EFAULT`; `EINVAL` for a length that no address has.
    pub(crate) fn address(
        &mut self,
        pointer: usize,
        length: usize,
    ) -> Result<(Given, bool), Errno> {
        let bytes = usize::try_from(self.int(length)).map_err(|_| Errno::INVAL)?;
        if bytes > address::BYTES_MAX {
            return Err(Errno::INVAL);
        }
        let bytes = self.read(self.call.arguments[pointer], bytes)?;
        Ok((address::read(&bytes), address::is_v6(&bytes)))
    }

    /// The preload library's hint on the descriptor and the call, in the sixth argument.
    pub(crate) fn hint(&self) -> Option<Hint> {
        Hint::of(self.call.arguments[5])
    }
}

/// Maps an error of the memory access to one that the program may see.
fn fault(error: Errno) -> Errno {
    match error {
        Errno::SRCH => Errno::SRCH,
        _ => Errno::FAULT,
    }
}

/// The inode of a file, if it is a socket. fstat(2) is not called for other files: it may block on
/// the process that serves their file system.
fn inode_of_socket(file: &OwnedFd) -> Option<u64> {
    rustix::net::sockopt::socket_type(file).ok()?;
    Some(rustix::fs::fstat(file).ok()?.st_ino)
}

/// A duplicate of a thread's socket with this inode; none if the thread's descriptor refers to
/// another file by now.
pub(crate) fn fetch_socket(thread: i32, descriptor: i32, inode: u64) -> Option<OwnedFd> {
    // A readlink first: it is cheaper, and most closed sockets are found by it.
    if socket_inode(thread, descriptor) != Some(inode) {
        return None;
    }
    let file = fetch(thread, descriptor).ok()?;
    if inode_of_socket(&file) == Some(inode) {
        return Some(file);
    }
    crate::aside::close(file);
    None
}

/// The inode of the file behind a thread's descriptor, if that is a socket.
pub(crate) fn socket_inode(thread: i32, descriptor: i32) -> Option<u64> {
    let path = format!("/proc/{thread}/fd/{descriptor}");
    let name = rustix::fs::readlink(path, Vec::with_capacity(64)).ok()?;
    // Other files have other names: `/path`, `pipe:[1]`, `anon_inode:[eventpoll]`.
    let name = name.to_str().ok()?;
    let number = name.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// A thread's descriptors of the socket with this inode.
pub(crate) fn descriptors_of(thread: i32, inode: u64) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{thread}/fd")) else {
        return Vec::new();
    };
    let numbers = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|descriptor| socket_inode(thread, *descriptor) == Some(inode))
        .collect()
}

/// A duplicate of the file behind a thread's descriptor.
///
/// # Errors
/// The kernel's.
pub(crate) fn fetch(thread: i32, descriptor: i32) -> Result<OwnedFd, Errno> {
    fetch_by(thread, descriptor, open_process)
}

/// [`fetch`] with a way to open a thread's pidfd.
fn fetch_by(
    thread: i32,
    descriptor: i32,
    open: impl Fn(i32) -> Result<Opened, Errno>,
) -> Result<OwnedFd, Errno> {
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    KNOWN.with_borrow_mut(|known| {
        let get = |it: &Known| {
            let process = it.process.as_fd();
            rustix::process::pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty())
        };
        if let Some(at) = known.iter().position(|it| it.thread == thread) {
            match get(&known[at]) {
                // The thread has ended and its number belongs to another one.
                Err(Errno::SRCH) => known.remove(at),
                result => return result,
            };
        }
        let opened = open(thread)?;
        let it = Known {
            thread,
            process: opened.process,
            leader: None,
        };
        let result = get(&it);
        // The thread may end, and another process get its number, while the leader lives on.
        if !opened.is_of_thread {
            return result;
        }
        // Each holds a descriptor; a program with more threads pays for opening them again.
        if known.len() >= KNOWN_MAX {
            known.pop_front();
        }
        known.push_back(it);
        result
    })
}

/// A thread that has made calls. Its pidfd refers to this thread alone: while the thread is alive,
/// its number is not reused.
struct Known {
    thread: i32,
    process: OwnedFd,
    leader: Option<i32>,
}

thread_local! {
    static KNOWN: RefCell<VecDeque<Known>> = const { RefCell::new(VecDeque::new()) };
}

/// Threads whose pidfds are kept open.
const KNOWN_MAX: usize = 32;

/// A pidfd for a thread.
struct Opened {
    process: OwnedFd,
    /// False if it refers to the thread's leader, which is another one.
    is_of_thread: bool,
}

fn open_process(thread: i32) -> Result<Opened, Errno> {
    let pid = Pid::from_raw(thread).ok_or(Errno::SRCH)?;
    // PIDFD_THREAD, Linux 6.9: a thread may have a descriptor table of its own.
    let of_thread = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());
    match rustix::process::pidfd_open(pid, of_thread) {
        Err(Errno::INVAL) => open_leader(thread),
        opened => Ok(Opened {
            process: opened?,
            is_of_thread: true,
        }),
    }
}

/// The pidfd of a thread's leader, for kernels without PIDFD_THREAD.
fn open_leader(thread: i32) -> Result<Opened, Errno> {
    let leader = read_leader(thread).ok_or(Errno::SRCH)?;
    let pid = Pid::from_raw(leader).ok_or(Errno::SRCH)?;
    Ok(Opened {
        process: rustix::process::pidfd_open(pid, PidfdFlags::empty())?,
        is_of_thread: leader == thread,
    })
}

/// The thread group leader of a thread.
pub(crate) fn leader(thread: i32) -> Option<i32> {
    let known = KNOWN.with_borrow(|known| {
        let it = known.iter().find(|it| it.thread == thread)?;
        let mut polled = [PollFd::new(&it.process, PollFlags::IN)];
        let none = rustix::time::Timespec::default();
        // A pidfd becomes readable when its thread ends.
        let is_alive = rustix::event::poll(&mut polled, Some(&none)) == Ok(0);
        it.leader.filter(|_| is_alive)
    });
    if known.is_some() {
        return known;
    }
    let leader = read_leader(thread)?;
    KNOWN.with_borrow_mut(|known| {
        if let Some(it) = known.iter_mut().find(|it| it.thread == thread) {
            it.leader = Some(leader);
        }
    });
    Some(leader)
}

fn read_leader(thread: i32) -> Option<i32> {
    // /proc has threads that are no leaders, too, although it does not list them.
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    leader?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::files::{inode_of, pair};
    use std::os::fd::AsRawFd;

    fn own_thread() -> i32 {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    #[test]
    fn a_threads_descriptors_are_found_by_their_inode() {
        let (one, _other) = pair(false).unwrap();
        let (number, inode) = (one.as_raw_fd(), inode_of(&one).unwrap());
        assert_eq!(socket_inode(own_thread(), number), Some(inode));
        let again = one.try_clone().unwrap();
        let mut found = descriptors_of(own_thread(), inode);
        let mut expected = [number, again.as_raw_fd()];
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert!(descriptors_of(-1, inode).is_empty());
    }

    #[test]
    fn only_sockets_have_an_inode_here() {
        let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!(socket_inode(own_thread(), null.as_raw_fd()), None);
        assert_eq!(socket_inode(own_thread(), -1), None);
        assert_eq!(inode_of_socket(&null), None);
        assert!(fetch_socket(own_thread(), null.as_raw_fd(), 1).is_none());
    }

    #[test]
    fn a_file_is_fetched_while_its_thread_is_there() {
        let (one, _other) = pair(false).unwrap();
        let number = one.as_raw_fd();
        let copy = fetch(own_thread(), number).unwrap();
        assert_eq!(inode_of(&copy), inode_of(&one));
        assert_eq!(fetch(own_thread(), -1).err(), Some(Errno::BADF));
        // More threads than are remembered: the oldest is looked up again.
        let ended = std::thread::spawn(own_thread).join().unwrap();
        assert!(fetch(ended, number).is_err());
        let inode = inode_of(&one).unwrap();
        assert!(fetch_socket(own_thread(), number, inode).is_some());
    }

    #[test]
    fn a_leader_s_pidfd_is_kept_for_the_leader_alone() {
        let process = i32::try_from(std::process::id()).unwrap();
        let (one, _other) = pair(false).unwrap();
        let (number, inode) = (one.as_raw_fd(), inode_of(&one));
        let is_known = |thread| KNOWN.with_borrow(|all| all.iter().any(|it| it.thread == thread));
        let fetched = move || {
            for (thread, is_kept) in [(own_thread(), false), (process, true)] {
                for _ in 0..2 {
                    let copy = fetch_by(thread, number, open_leader).unwrap();
                    assert_eq!(inode_of(&copy), inode);
                    assert_eq!(is_known(thread), is_kept, "{thread}");
                }
            }
            assert!(fetch_by(-1, number, open_leader).is_err());
        };
        // On a thread that is surely not the leader.
        std::thread::spawn(fetched).join().unwrap();
    }

    #[test]
    fn the_leader_of_a_thread_is_its_process() {
        let process = i32::try_from(std::process::id()).unwrap();
        assert_eq!(leader(own_thread()), Some(process));
        // From the list of those that were fetched from, too.
        let (one, _other) = pair(false).unwrap();
        fetch(own_thread(), one.as_raw_fd()).unwrap();
        for _ in 0..2 {
            assert_eq!(leader(own_thread()), Some(process));
        }
        assert_eq!(leader(-1), None);
    }

    #[test]
    fn faults_are_faults_unless_the_caller_is_gone() {
        assert_eq!(fault(Errno::SRCH), Errno::SRCH);
        for error in [Errno::FAULT, Errno::IO, Errno::PERM, Errno::INVAL] {
            assert_eq!(fault(error), Errno::FAULT);
        }
    }
}
