//! Accepting sessions without the supervisor.
//!
//! The library accepts sessions directly from the listening end of a process that called listen(2);
//! the name of each session's other end has the addresses (`sidecore_net_rings::Name`). Must stay
//! true: a session is accepted only from the supervisor that created the listener or, on the
//! loopback, from another one of the same user; unusual cases go to the supervisor, as without this
//! library.

use crate::marked::{address, call, credentials, kernels_option, waiting_call};
use crate::real::{errno, flags_of, int, is_in_first_page, length, real, set_errno};
use crate::table::{self, Kind, LINGERS, LISTENS, Record, new, record};
use sidecore_bare::width::ToUsize;
use sidecore_net_rings::{
    BY_ITSELF, Hello, Hint, LINGER, LISTENER_CLOSED, MARK, NAME_BYTES, Name, Role,
};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

/// listen(2): makes the supervisor connect sessions to the listening end.
pub(crate) fn listen(file: c_int, backlog: c_int) -> c_int {
    // SAFETY: a call without pointers.
    let result = unsafe {
        call(
            libc::SYS_listen,
            [file.into(), backlog.into(), 0, 0, 0],
            BY_ITSELF,
        )
    };
    if result == 0
        && let Some(record) = record(file).filter(|record| record.kind() == Kind::Candidate)
    {
        record.add(LISTENS);
    }
    result
}

/// connect(2), with facts about the descriptor; none: call the C library's function.
///
/// # Safety
/// As for connect(2).
pub(crate) unsafe fn connect(
    file: c_int,
    to: *const libc::sockaddr,
    bytes: libc::socklen_t,
) -> Option<c_int> {
    let is_stream = |record: &&Record| !record.has(table::DATAGRAMS);
    let record = record(file).filter(|record| record.kind() == Kind::Candidate);
    let record = record.filter(is_stream)?;
    // SAFETY: by the caller.
    if unsafe { is_loopback(to, bytes) } {
        crate::spin::allow();
    }
    // A blocking connect(2) is a cancellation point, which the C library implements.
    if flags_of(file, libc::F_GETFL)? & libc::O_NONBLOCK == 0 {
        return None;
    }
    let hint = Hint {
        closes_on_exec: flags_of(file, libc::F_GETFD)? & libc::FD_CLOEXEC != 0,
        has_no_epoll: record.epoll().is_none(),
    };
    let arguments = [file.into(), address(to), bytes.into(), 0, 0];
    // SAFETY: by the caller.
    Some(unsafe { call(libc::SYS_connect, arguments, hint.argument()) })
}

/// # Safety
/// As for connect(2); an address in the first page counts as invalid.
unsafe fn is_loopback(to: *const libc::sockaddr, bytes: libc::socklen_t) -> bool {
    if is_in_first_page(to.addr()) || bytes < 16 {
        return false;
    }
    // SAFETY: the caller guarantees this number of bytes.
    let address = unsafe { std::slice::from_raw_parts(to.cast::<u8>(), bytes.min(28).to_usize()) };
    let family = i32::from(u16::from_ne_bytes([address[0], address[1]]));
    let v6 = std::net::Ipv6Addr::LOCALHOST.octets();
    family == libc::AF_INET && address[4] == 127
        || family == libc::AF_INET6 && address.get(8..24) == Some(v6.as_slice())
}

/// accept4(2); none: use the supervisor's, or the kernel's.
///
/// # Safety
/// As for accept4(2).
pub(crate) unsafe fn by_itself(
    file: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
    flags: c_int,
) -> Option<c_int> {
    let record = record(file).filter(|record| record.has(LISTENS))?;
    if record.kind() != Kind::Candidate || !from.is_null() && from_bytes.is_null() {
        return None;
    }
    let room = if from.is_null() {
        0
    } else {
        // SAFETY: the program says that a length is there.
        unsafe { *from_bytes }
    };
    let room = usize::try_from(room.cast_signed()).ok()?;
    // Bounded: a process that connects again and again must not hold this thread.
    for _ in 0..STRANGERS_MAX {
        let mut name = [0_u8; size_of::<libc::sockaddr_storage>()];
        let accepted = take(file, &mut name, flags)?;
        let accepted = match accepted {
            Ok((accepted, bytes)) => (accepted, &name[..bytes.min(name.len())]),
            Err(error) => {
                set_errno(error);
                return Some(-1);
            }
        };
        let (accepted, address) = accepted;
        let family = address.first_chunk().map(|it| u16::from_ne_bytes(*it));
        let is_local = family == Some(LOCAL);
        let told = address.get(3..).and_then(Name::read).filter(|_| is_local);
        let (peer, kind) = match judge(accepted, file, address, is_local, told.as_ref()) {
            Met::Session(peer, kind) => (peer, kind),
            Met::Token => {
                close(accepted);
                return None;
            }
            Met::Foreign => {
                close(accepted);
                continue;
            }
        };
        if !from.is_null() {
            // Cut to the room, with the whole length, as accept(2) does.
            let count = room.min(peer.len());
            // SAFETY: the program says that there is room for `room` bytes, and a length.
            unsafe {
                ptr::copy_nonoverlapping(peer.as_ptr(), from.cast(), count);
                *from_bytes = length(peer.len());
            }
        }
        return Some(self::accepted(file, accepted, kind));
    }
    None
}

/// A connection of the listening end.
enum Met<'n> {
    /// A session: its peer's address, and the kind of its descriptor.
    Session(&'n [u8], Kind),
    /// The supervisor has a session, which the program's own call fetches.
    Token,
    /// Another process has connected to the listening end.
    Foreign,
}

/// Judges a connection by the address of its other end, and by the name in it; greets the
/// supervisor of a session.
fn judge<'n>(
    accepted: c_int,
    listener: c_int,
    address: &'n [u8],
    is_local: bool,
    name: Option<&'n Name>,
) -> Met<'n> {
    let Some(name) = name else {
        // A session of the kernel's TCP: the kernel's address is the peer's.
        return if is_local {
            Met::Foreign
        } else {
            Met::Session(address, Kind::Candidate)
        };
    };
    // Loopback sessions may come from any supervisor of the user.
    let is_open = name.is_of_loopback() && name.role == Role::Program;
    let peer = || {
        let peer = name.peer();
        peer.filter(|_| is_trusted(accepted, listener, is_open))
    };
    match name.role {
        Role::Listener => Met::Foreign,
        Role::Token => Met::Token,
        Role::Session => match peer() {
            Some(peer) => {
                // The supervisor learns from it which descriptor of which thread has the session.
                greet(accepted, name.number);
                Met::Session(peer, Kind::Candidate)
            }
            None => Met::Foreign,
        },
        Role::Program => match peer() {
            Some(peer) => {
                crate::spin::allow();
                // Sessions between programs have no rings.
                Met::Session(peer, Kind::Barred)
            }
            None => Met::Foreign,
        },
    }
}

/// A listener's number, if the descriptor is one.
pub(crate) fn listener(file: c_int) -> Option<u32> {
    // Whatever its kind: of a duplicate, or of one that was inherited, accept(2) is the
    // supervisor's.
    record(file).filter(|record| record.has(LISTENS) && record.kind() != Kind::Other)?;
    inode(file)
}

/// The number of a socket whose close waits (SO_LINGER), if the descriptor is one.
pub(crate) fn lingering(file: c_int) -> Option<u32> {
    record(file).filter(|record| record.has(LINGERS) && record.kind() != Kind::Other)?;
    inode(file)
}

fn inode(file: c_int) -> Option<u32> {
    let before = errno();
    // SAFETY: all zeros are a `stat`.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for one `stat`.
    let result = unsafe { libc::syscall(libc::SYS_fstat, file, &raw mut about) };
    set_errno(before);
    // Inodes of sockets have 32 bits.
    u32::try_from(about.st_ino).ok().filter(|_| result == 0)
}

/// Waits until the peer has acknowledged all of a session that was closed, or its time is over;
/// returns at once if other descriptors of it are left.
#[cold]
pub(crate) fn wait_for_end(session: u32) {
    // As close(2), whose wait a signal ends.
    crate::attachment::request(-1, LINGER, session).ok();
}

/// Records a session that a listener has accepted, with the listener's options; its descriptor.
pub(crate) fn accepted(listener: c_int, made: c_int, kind: Kind) -> c_int {
    new(made, kind);
    if record(listener).is_some_and(|listener| listener.has(LINGERS))
        && let Some(record) = record(made)
    {
        record.add(LINGERS);
    }
    made
}

/// Makes the supervisor check at once if a listener is gone.
pub(crate) fn tell_closed(listener: u32) {
    // Fails if the supervisor is gone, or does not know the listener, which is fine.
    crate::attachment::request(-1, LISTENER_CLOSED, listener).ok();
}

/// Records the sockets that an executed program has inherited.
pub(crate) fn inherit() {
    // Without /proc its sockets are the kernel's, as those of a program without the library.
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    for file in files.flatten() {
        let to = std::fs::read_link(file.path());
        let is_socket = to.is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket"));
        let name = file.file_name();
        if is_socket && let Some(file) = name.to_str().and_then(|name| name.parse().ok()) {
            meet(file);
        }
    }
}

/// Records a socket that came from another process: a listener, whose close is reported, what may
/// be a session for which that process has rings, or a UDP socket, which may have some, too.
pub(crate) fn meet(file: c_int) {
    let has = |name, value| kernels_option(file, name) == Some(value);
    let is_local = has(libc::SO_DOMAIN, libc::AF_UNIX) && has(libc::SO_TYPE, libc::SOCK_STREAM);
    let Some(record) = record(file) else {
        return;
    };
    if !is_local {
        if has(libc::SO_PROTOCOL, libc::IPPROTO_UDP) {
            record.begin(Kind::Barred);
            record.add(table::DATAGRAMS);
            // The other process may have rings, where this one may.
            if crate::rings::datagrams_kind() == Kind::Candidate {
                table::note_inherited(record);
            }
        }
        return;
    }
    if has(libc::SO_ACCEPTCONN, 1) {
        record.begin(Kind::Barred);
        record.add(LISTENS);
        return;
    }
    // A pair that this process or its parent has made is no session. Leaving it alone spares
    // programs a call that their own filters may forbid.
    // SAFETY: calls without pointers.
    let family = unsafe { [libc::getpid(), libc::getppid()] };
    if credentials(file).is_some_and(|(maker, _)| !family.contains(&maker)) {
        record.begin(Kind::Barred);
        table::note_inherited(record);
    }
}

/// Removes the name of the session's other end that the kernel returned: TCP returns none.
///
/// # Safety
/// There are `room` bytes at `from`, which the kernel has written, and a length at `from_bytes`.
pub(crate) unsafe fn hide_name(
    file: c_int,
    from: *const u8,
    room: libc::socklen_t,
    from_bytes: *mut libc::socklen_t,
) {
    let looked_at = MARK.len() + 3;
    if table::kind(file) == Kind::Other || room.to_usize() < looked_at {
        return;
    }
    // SAFETY: by the caller; no more is looked at than there is room for.
    unsafe {
        // If there was less room, the length is that of the whole name.
        if (*from_bytes).to_usize() == NAME_BYTES + 3 {
            let name = std::slice::from_raw_parts(from, looked_at);
            let is_local = name[..2] == LOCAL.to_ne_bytes();
            if is_local && name[3..] == *MARK {
                *from_bytes = 0;
            }
        }
    }
}

/// Accepts one connection of the listening end: its descriptor, and the length of its name; or the
/// error; or none if the supervisor knows the reason.
fn take(file: c_int, name: &mut [u8], flags: c_int) -> Option<Result<(c_int, usize), c_int>> {
    let begun = Instant::now();
    loop {
        let mut bytes = length(name.len());
        let arguments = [
            file.into(),
            address(name.as_mut_ptr()),
            address(&raw mut bytes),
            flags.into(),
            0,
        ];
        // SAFETY: the kernel writes into `name` and `bytes`, which outlive the call.
        let accepted = unsafe { waiting_call(libc::SYS_accept4, arguments) };
        if accepted >= 0 {
            return Some(Ok((accepted, bytes.to_usize())));
        }
        match errno() {
            // The supervisor accepts from the listening end as well, for programs without the
            // library.
            libc::EAGAIN if begun.elapsed() < A_MOMENT && waits(file) => {}
            error @ (libc::EAGAIN | libc::EINTR | libc::EMFILE | libc::ENFILE) => {
                return Some(Err(error));
            }
            // Other errors are rare, and the supervisor may know more about the listener.
            _ => return None,
        }
    }
}

fn waits(file: c_int) -> bool {
    flags_of(file, libc::F_GETFL).is_some_and(|flags| flags & libc::O_NONBLOCK == 0)
}

/// True if the session was opened by the process that created the listening end or, with `by_user`,
/// by one of the same user.
fn is_trusted(accepted: c_int, listener: c_int, by_user: bool) -> bool {
    match (credentials(listener), credentials(accepted)) {
        // The kernel's word: the name could be any process's.
        (Some(made), Some(opened)) => made.1 == opened.1 && (by_user || made.0 == opened.0),
        _ => false,
    }
}

/// Reports the descriptor of the session to the supervisor.
fn greet(accepted: c_int, number: u64) {
    // SAFETY: a call without pointers.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let hello = Hello {
        thread: int(thread).unwrap_or_default(),
        descriptor: accepted,
    };
    let bytes = hello.bytes(number);
    let from = bytes.as_ptr().cast::<c_void>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let before = errno();
    // Fails if the session is over already, which needs no report.
    real!(send(accepted => c_int, from => *const c_void, bytes.len() => usize, flags => c_int)
        -> isize);
    set_errno(before);
}

fn close(file: c_int) {
    // SAFETY: a descriptor that the program has not seen.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

/// The family of local sockets, as an address has it.
const LOCAL: libc::sa_family_t = libc::AF_UNIX as libc::sa_family_t;
/// Connections of other processes that one call skips.
const STRANGERS_MAX: usize = 256;
/// A refusal that takes longer came from a wait (SO_RCVTIMEO).
const A_MOMENT: Duration = Duration::from_micros(500);
const _: () = assert!(NAME_BYTES + 3 < size_of::<libc::sockaddr_storage>());
