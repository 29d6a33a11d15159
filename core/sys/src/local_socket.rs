//! Local sockets that keep message boundaries, carry descriptors, and identify the peer.
//!
//! Why here: processes connect here before they share memory; the standard library has neither
//! messages nor descriptors nor credentials. Must stay true: received descriptors are owned from
//! the first moment, and never inherited. Source: unix(7), cmsg(3), pidfd_open(2).
//!
//! ```
//! use sidecore_sys::local_socket::{self, Received};
//! use std::os::fd::AsFd;
//! use std::time::Duration;
//!
//! # let folder = tempfile::tempdir().expect("a folder");
//! let path = folder.path().join("example.sock");
//! let listener = local_socket::listen(&path, 0o600, 8)?;
//! let client = local_socket::connect(&path)?;
//! let server = local_socket::accept(listener.as_fd())?.expect("it has connected");
//! assert_eq!(local_socket::peer(server.as_fd())?.uid, local_socket::effective_uid());
//!
//! local_socket::send(client.as_fd(), b"hello", &[])?;
//! local_socket::poll(&[server.as_fd()], &mut Vec::new(), Duration::from_secs(10))?;
//! let mut buffer = [0; 64];
//! let received = local_socket::receive(server.as_fd(), &mut buffer)?;
//! assert!(matches!(received, Received::Message(5, _)) && buffer.starts_with(b"hello"));
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```

use crate::SysError;
use crate::folder::Folder;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The longest wait for a folder's lock.
const LOCK_MAX: Duration = Duration::from_secs(5);
/// The most descriptors that one message carries.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// The credentials of the other side, as the kernel saw them when the connection was made.
///
/// The peer's identity is its user. The process id is for people: it is 0 for a peer outside of
/// this process's PID namespace (a container's, or the host's for a container), and another process
/// may have it by the time that it is used. [`process_of`] holds on to the process itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id; 0 where this process's PID namespace has none for it.
    pub pid: i32,
    /// User id, as this process's user namespace has it ([`crate::identity`]).
    pub uid: u32,
    /// Group id, likewise.
    pub gid: u32,
}

/// Listens at `path`, which must not exist, with permission bits `mode`. Never blocks in
/// [`accept`].
///
/// # Errors
/// [`SysError::Call`] with the kernel's reason.
pub fn listen(path: &Path, mode: u32, backlog: i32) -> Result<OwnedFd, SysError> {
    listen_as(SocketType::SEQPACKET, path, mode, backlog)
}

/// As [`listen`], for connections of another type than messages: `SocketType::STREAM`.
///
/// # Errors
/// [`SysError::Call`] with the kernel's reason.
pub fn listen_as(
    kind: SocketType,
    path: &Path,
    mode: u32,
    backlog: i32,
) -> Result<OwnedFd, SysError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        net::socket_with(AddressFamily::UNIX, kind, flags, None).map_err(refused("socket"))?;
    let address = SocketAddrUnix::new(path).map_err(refused("a socket's path"))?;
    net::bind(&socket, &address).map_err(refused("bind"))?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(refused("chmod of a socket"))?;
    net::listen(&socket, backlog).map_err(refused("listen"))?;
    Ok(socket)
}

/// Listens at `path` for streams, as [`listen_as`] does, in place of a socket there that a process
/// which has ended left behind. Of several that do so at once, one gets the path ([`free_path`]).
///
/// # Errors
/// Those of [`free_path`] and [`listen_as`].
pub fn take_path(path: &Path, mode: u32, backlog: i32) -> io::Result<OwnedFd> {
    let _locked = free_path(path)?;
    // It listens before the next one looks.
    listen_as(SocketType::STREAM, path, mode, backlog).map_err(|error| match error {
        SysError::Call { source, .. } => source,
        other => io::Error::other(other),
    })
}

/// Removes the socket at `path`, of whatever type, if a process that has ended left it behind.
/// Returns the socket's folder, locked (flock(2)), and true if it has removed one: of several that
/// want the path, the one that holds the folder until it listens gets it. Waits for the lock, up to
/// 5 s.
///
/// # Errors
/// `AddrInUse` where a process has the socket, or another kind of file is there; `TimedOut` where
/// another process keeps the folder locked; those of [`Folder::of_file`] and of unlinkat(2).
pub fn free_path(path: &Path) -> io::Result<(Folder, bool)> {
    let (folder, name) = Folder::of_file(path)?;
    folder.lock_within(LOCK_MAX)?;
    match folder.stat_of(&name) {
        // Of a link neither: it would lead the check to one file, and the removal to another.
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Socket => {
            Err(Errno::ADDRINUSE.into())
        }
        // One without a process refuses connections of every type.
        Ok(_) if try_connect(path)? != Err(Errno::CONNREFUSED) => Err(Errno::ADDRINUSE.into()),
        Ok(_) => folder.remove_file(&name).map(|()| (folder, true)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((folder, false)),
        Err(error) => Err(error),
    }
}

/// Takes the next connection, if one waits. It does not block either.
///
/// # Errors
/// [`SysError::Call`], among them running out of descriptors.
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>, SysError> {
    match net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(refused("accept")(error)),
    }
}

/// Connects to the listener at `path`; at once or not at all.
///
/// # Errors
/// [`SysError::Call`]: `ENOENT` and `ECONNREFUSED` without a listener, `EACCES` where this user may
/// not, `EAGAIN` where the listener's queue is full.
pub fn connect(path: &Path) -> Result<OwnedFd, SysError> {
    let socket = open(SocketFlags::NONBLOCK)?;
    let address = SocketAddrUnix::new(path).map_err(refused("a socket's path"))?;
    net::connect(&socket, &address).map_err(refused("connect"))?;
    Ok(socket)
}

/// True if a process listens at `path`, for connections of whatever type. Does not wait.
#[must_use]
pub fn answers(path: &Path) -> bool {
    // The type is looked at only where a socket is bound and its process lives; so is the queue.
    let connected = try_connect(path);
    matches!(connected, Ok(Ok(()) | Err(Errno::PROTOTYPE | Errno::AGAIN)))
}

/// The outcome of connecting to what is at `path`, with a socket for messages.
fn try_connect(path: &Path) -> Result<Result<(), Errno>, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(SocketAddrUnix::new(path).and_then(|address| net::connect(&socket, &address)))
}

/// The credentials of the other side of a connection.
///
/// # Errors
/// [`SysError::Call`].
#[allow(unsafe_code)] // rustix takes the process id for one that is never 0, which it may be.
pub fn peer(socket: BorrowedFd<'_>) -> Result<Peer, SysError> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = size_as::<libc::ucred>();
    // SAFETY: the kernel writes at most `bytes` bytes to the structure, which is that long; any
    // bytes are a value of it.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    if answer != 0 || bytes != size_as::<libc::ucred>() {
        return Err(refused("SO_PEERCRED")(last_errno()));
    }
    Ok(Peer {
        pid: peer.pid,
        uid: peer.uid,
        gid: peer.gid,
    })
}

/// The peer's supplementary groups, as the kernel saw them when the connection was made. None where
/// a kernel before 4.13 cannot say.
///
/// # Errors
/// [`SysError::Call`].
#[allow(unsafe_code)] // An option that has no safe wrapper.
pub fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>, SysError> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(std::mem::size_of_val(&groups[..])).unwrap_or(0);
        // SAFETY: the kernel writes at most `bytes` bytes to the vector, which is that long, and
        // then how many it wrote, or needs, to `bytes`.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<libc::gid_t>();
        if answer == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            // The kernel says how many there are, 65,536 at most.
            Some(libc::ERANGE) if count > groups.len() => groups.resize(count, 0),
            Some(libc::ENOPROTOOPT) => return Ok(Vec::new()),
            _ => return Err(refused("SO_PEERGROUPS")(last_errno())),
        }
    }
}

/// Has a local socket take no descriptors (SCM_RIGHTS): sending one fails (EPERM). Accepted sockets
/// inherit this. A kernel before 6.16 cannot: there a receiver must leave no room for them.
#[allow(unsafe_code)] // An option that has no safe wrapper.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) {
    let off: libc::c_int = 0;
    // SAFETY: the kernel reads one number.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of_val(&off) as libc::socklen_t,
        )
    };
}

/// `include/uapi/asm-generic/socket.h`, Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// A descriptor of the process that made a connection, which becomes readable when it ends. The
/// kernel gives the process itself (`SO_PEERPIDFD`, Linux 6.5 and newer), in whatever PID namespace
/// it is. An older one gives the process that has `peer`'s id now. `None` where the process has
/// ended, and where it has no id here and the kernel is older: then only the connection's hang-up
/// shows its end.
#[must_use]
#[allow(unsafe_code)] // An option that has no safe wrapper.
pub fn process_of(socket: BorrowedFd<'_>, peer: &Peer) -> Option<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut bytes = size_as::<libc::c_int>();
    // SAFETY: the kernel writes a number of `bytes` bytes to a place that is that long.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut bytes,
        )
    };
    if answer == 0 && pidfd >= 0 {
        // SAFETY: a descriptor that the kernel has just made for this call, close-on-exec.
        return Some(unsafe { OwnedFd::from_raw_fd(pidfd) });
    }
    rustix::process::pidfd_open(Pid::from_raw(peer.pid)?, PidfdFlags::empty()).ok()
}

/// Sends one message, with descriptors; never waits.
///
/// # Errors
/// [`SysError::Call`]: `EAGAIN` where the peer does not read, `EPIPE` where it has disconnected.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), SysError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(refused("sending more than 4 descriptors")(Errno::INVAL));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)
        .map(drop)
        .map_err(refused("sendmsg"))
}

/// The result of [`receive`].
#[derive(Debug)]
pub enum Received {
    /// A message: its length in bytes, and its descriptors.
    Message(usize, Vec<OwnedFd>),
    /// No message is waiting.
    Nothing,
    /// The peer has closed the connection, or sent a message that is longer than the buffer.
    End,
}

/// Takes the next message into `buffer`; never waits. The peer's messages come before its
/// disconnect.
///
/// # Errors
/// [`SysError::Call`].
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, SysError> {
    match receive_once(socket, buffer) {
        // Said once, before the messages that still wait, where the peer left something unread.
        Err(Errno::CONNRESET) => match receive_once(socket, buffer) {
            Err(Errno::CONNRESET | Errno::AGAIN) => Ok(Received::End),
            other => other.map_err(refused("recvmsg")),
        },
        Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
        Err(Errno::PIPE) => Ok(Received::End),
        other => other.map_err(refused("recvmsg")),
    }
}

fn receive_once(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags);
    let descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let message = message?;
    if message.bytes == 0 || message.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Received::End);
    }
    Ok(Received::Message(message.bytes, descriptors))
}

/// Waits until one of `descriptors` can be read or was hung up, at most for `timeout`; says for
/// each whether it is.
///
/// # Errors
/// [`SysError::Call`].
pub fn poll(
    descriptors: &[BorrowedFd<'_>],
    ready: &mut Vec<bool>,
    timeout: Duration,
) -> Result<(), SysError> {
    let mut polled: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .collect();
    let limit = rustix::time::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(refused("poll")(error)),
    }
    ready.clear();
    ready.extend(polled.iter().map(|polled| !polled.revents().is_empty()));
    Ok(())
}

/// True if something can be read from `descriptor`, or it was hung up. Does not wait.
#[must_use]
pub fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let none = rustix::time::Timespec::default();
    rustix::event::poll(&mut polled, Some(&none)).is_ok_and(|count| count > 0)
}

/// True if the peer of a connection has disconnected. Does not wait.
#[must_use]
pub fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let none = rustix::time::Timespec::default();
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    rustix::event::poll(&mut polled, Some(&none)).is_ok() && polled[0].revents().intersects(gone)
}

/// A descriptor that [`poke`] makes readable, once and for all: for telling a thread in [`poll`] to
/// look around.
///
/// # Errors
/// [`SysError::Call`].
pub fn poker() -> Result<OwnedFd, SysError> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).map_err(refused("eventfd"))
}

/// See [`poker`].
pub fn poke(poker: BorrowedFd<'_>) {
    // It fails only where the count is full, and then it is readable anyway.
    rustix::io::write(poker, &1u64.to_ne_bytes()).ok();
}

/// A descriptor that [`poke`] makes readable and [`drain`] silent again: for waking a thread in
/// [`poll`] many times.
///
/// # Errors
/// [`SysError::Call`].
pub fn bell() -> Result<OwnedFd, SysError> {
    use rustix::event::EventfdFlags;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map_err(refused("eventfd"))
}

/// See [`bell`]. Does not wait, even if it is rung meanwhile.
pub fn drain(bell: BorrowedFd<'_>) {
    // It fails only where it is silent.
    rustix::io::read(bell, &mut [0; 8]).ok();
}

/// Both ends of a connection without a name: a message of one makes the other readable, and its end
/// is a hang-up. The holder of one end cannot make the other block, as with an eventfd: each has
/// its own flags.
///
/// # Errors
/// [`SysError::Call`].
pub fn pair() -> Result<(OwnedFd, OwnedFd), SysError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(refused("socketpair"))
}

/// Effective user id of this process.
#[must_use]
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn open(more: SocketFlags) -> Result<OwnedFd, SysError> {
    let flags = SocketFlags::CLOEXEC | more;
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(refused("socket"))
}

fn size_as<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Of Linux's asm-generic/socket.h; the crate `libc` lacks it.
const SO_PEERPIDFD: libc::c_int = 77;

fn refused(call: &'static str) -> impl Fn(Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_keep_their_bounds_and_carry_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(connect(&path).is_err());
        let listener = listen(&path, 0o600, 4).unwrap();
        assert!(accept(listener.as_fd()).unwrap().is_none());
        let client = connect(&path).unwrap();
        let server = accept(listener.as_fd()).unwrap().unwrap();
        let seen = peer(server.as_fd()).unwrap();
        assert_eq!(seen.pid, std::process::id() as i32);
        assert_eq!(seen.uid, effective_uid());
        let mut buffer = [0; 16];
        let nothing = receive(server.as_fd(), &mut buffer).unwrap();
        assert!(matches!(nothing, Received::Nothing));
        let file = poker().unwrap();
        send(client.as_fd(), b"one", &[file.as_fd()]).unwrap();
        send(client.as_fd(), b"second", &[]).unwrap();
        match receive(server.as_fd(), &mut buffer).unwrap() {
            Received::Message(3, descriptors) => assert_eq!(descriptors.len(), 1),
            other => panic!("{other:?}"),
        }
        assert_eq!(&buffer[..3], b"one");
        match receive(server.as_fd(), &mut buffer).unwrap() {
            Received::Message(6, descriptors) => assert!(descriptors.is_empty()),
            other => panic!("{other:?}"),
        }
        send(client.as_fd(), &[7; 17], &[]).unwrap();
        let long = receive(server.as_fd(), &mut buffer).unwrap();
        assert!(matches!(long, Received::End), "longer than the buffer");
        assert!(!is_hung_up(client.as_fd()));
        drop(server);
        assert!(is_hung_up(client.as_fd()));
        let gone = receive(client.as_fd(), &mut buffer).unwrap();
        assert!(matches!(gone, Received::End));
    }

    #[test]
    fn a_path_is_freed_of_dead_sockets_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(!free_path(&path).unwrap().1);
        let listener = listen(&path, 0o600, 4).unwrap();
        let kept = || {
            let refused = free_path(&path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse, "{refused}");
            std::fs::symlink_metadata(&path).unwrap();
        };
        kept();
        drop(listener);
        assert!(free_path(&path).unwrap().1);
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        kept();
        // A link to a dead socket.
        let dead = folder.path().join("dead");
        drop(listen(&dead, 0o600, 4).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&dead, &path).unwrap();
        kept();
    }

    #[test]
    fn a_poke_and_a_process_that_ended_are_seen() {
        let poker = poker().unwrap();
        let mut ready = Vec::new();
        poll(&[poker.as_fd()], &mut ready, Duration::ZERO).unwrap();
        assert_eq!(ready, [false]);
        poke(poker.as_fd());
        poll(&[poker.as_fd()], &mut ready, Duration::ZERO).unwrap();
        assert_eq!(ready, [true]);
        let bell = bell().unwrap();
        poke(bell.as_fd());
        poke(bell.as_fd());
        poll(&[bell.as_fd()], &mut ready, Duration::ZERO).unwrap();
        assert_eq!(ready, [true]);
        drain(bell.as_fd());
        drain(bell.as_fd());
        poll(&[bell.as_fd()], &mut ready, Duration::ZERO).unwrap();
        assert_eq!(ready, [false]);
    }

    #[test]
    fn the_end_of_the_process_that_connected_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = listen(&path, 0o600, 4).unwrap();
        // It connects and waits for its input's end.
        let program = "import socket, sys\n\
                       s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                       s.connect(sys.argv[1])\n\
                       sys.stdin.read()\n";
        let mut child = std::process::Command::new("python3")
            .args(["-c", program])
            .arg(&path)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("python3; scripts/setup installs it");
        let mut ready = Vec::new();
        poll(&[listener.as_fd()], &mut ready, Duration::from_secs(60)).unwrap();
        let server = accept(listener.as_fd()).unwrap().unwrap();
        let peer = peer(server.as_fd()).unwrap();
        assert_eq!(peer.pid, child.id() as i32);
        let end = process_of(server.as_fd(), &peer).unwrap();
        poll(&[end.as_fd()], &mut ready, Duration::ZERO).unwrap();
        assert_eq!(ready, [false]);
        drop(child.stdin.take());
        poll(&[end.as_fd()], &mut ready, Duration::from_secs(60)).unwrap();
        assert_eq!(ready, [true]);
        child.wait().unwrap();
    }
}
