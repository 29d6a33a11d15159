//! UDP past the supervisor: datagrams of sockets that have a place in the run's directory
//! ([`sidecore_net_rings::datagram`]).
//!
//! The socket is the kernel's own, so that waits, polls, time limits and options are the kernel's.
//! This module exchanges names: of what is received, that of the supervisor's socket for the
//! source; in front of what is sent to the desk stands a frame with the destination. Must stay
//! true: what the directory does not allow or know is left to the supervisor's calls; no datagram
//! is lost or received twice by a change from one to the other.

use crate::attachment::{map_to_read, request};
use crate::marked::{address, waiting_call};
use crate::real::{
    Framed, bytes_at, count as number_of, has_sound_name, is_in_first_page, length, move_message,
    pieces_of, real, segment_of, whole_of,
};
use crate::rings::{in_kernel, is_due};
use crate::table::{self, Record, record};
use sidecore_bare::width::ToUsize;
use sidecore_net_rings::DATAGRAMS;
use sidecore_net_rings::datagram::{
    DIRECTORY_BYTES, Directory, FRAMED_BYTES_MAX, Frame, IS_V6, NAME_BYTES, OPEN, Place,
    PlaceState, SEGMENTS_MAX, SENDS_V4, SENDS_V6, WRITES, plain, read_name, write_name,
};
use sidecore_sys::SharedMapping;
use sidecore_sys::control_message::set_destination;
use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The directory of the run, which forked children have, too; it is never unmapped. It has no lock:
/// a child would find one held that a thread of its parent has.
static DIRECTORY: AtomicPtr<SharedMapping> = AtomicPtr::new(ptr::null_mut());

pub(crate) fn directory() -> Option<Directory<'static>> {
    // SAFETY: null, or what `keep` has leaked.
    let mapping = unsafe { DIRECTORY.load(Ordering::Acquire).as_ref() };
    Directory::over(mapping?.slice())
}

/// Keeps a mapping of the directory, unless another thread was first: both are of the same memory.
fn keep(mapping: SharedMapping) {
    let mapping = Box::into_raw(Box::new(mapping));
    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
    let kept = DIRECTORY.compare_exchange(ptr::null_mut(), mapping, success, failure);
    if kept.is_err() {
        // SAFETY: it was made above, and nothing else has it.
        drop(unsafe { Box::from_raw(mapping) });
    }
}

/// Operations that may be done with a socket past the supervisor now; none: nothing, or it is no
/// datagram socket. Counts a call, and asks for a place after enough of them.
#[inline]
fn allowed(file: c_int) -> Option<PlaceState> {
    let record = record(file).filter(|record| record.has(table::DATAGRAMS))?;
    state_of(file, record).filter(|state| state.has(OPEN))
}

fn state_of(file: c_int, record: &Record) -> Option<PlaceState> {
    if let Some(place) = Place::of_bits(record.place.load(Ordering::Acquire)) {
        if let Some(state) = directory()?.state(place) {
            return Some(state);
        }
        // The socket that had it is gone.
        record.place.store(0, Ordering::Release);
    }
    // A count that two threads make at once may be off by one; nothing depends on that.
    record.calls.fetch_add(1, Ordering::Relaxed);
    if !is_due(record) {
        return None;
    }
    ask(file, record)
}

/// Asks the supervisor for a place.
#[cold]
pub(crate) fn ask(file: c_int, record: &Record) -> Option<PlaceState> {
    record.calls.store(0, Ordering::Relaxed);
    let has_directory = directory().is_some();
    let mut state = None;
    let asked = record.ask_place(|| {
        let [number, generation, memory, _] = request(file, DATAGRAMS, has_directory.into())?;
        if let Some(mapping) = map_to_read(memory.cast_signed(), DIRECTORY_BYTES) {
            keep(mapping);
        }
        let place = Place { number, generation };
        state = directory().and_then(|it| it.state(place));
        // Without the directory it has no use.
        state.map(|_| place.bits()).ok_or(libc::ENOMEM)
    });
    match asked {
        Ok(is_its) => state.filter(|_| is_its),
        // The kernel's socket, or one that waits for the stack: later, after twice as many calls.
        Err(libc::EAGAIN | libc::EINTR) => {
            record.put_off.fetch_add(1, Ordering::Relaxed);
            None
        }
        // No supervisor, or it has no place left.
        Err(_) => {
            record.take_off(table::DATAGRAMS);
            None
        }
    }
}

/// recvfrom(2) with a name; none: it is the supervisor's call.
///
/// # Safety
/// As for recvfrom(2).
pub(crate) unsafe fn receive_from(
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
) -> Option<isize> {
    record(file).filter(|record| record.has(table::DATAGRAMS))?;
    if from.is_null() || is_in_first_page(from_bytes.addr()) {
        return None;
    }
    let mut piece = libc::iovec {
        iov_base: to,
        // As the kernel does (MAX_RW_COUNT).
        iov_len: bytes.min(0x7fff_f000),
    };
    // SAFETY: zeros are an empty message.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_name = from.cast();
    // SAFETY: the program says that a length is there.
    header.msg_namelen = unsafe { *from_bytes };
    // SAFETY: the header refers to what the program passed, and to a piece that outlives the call.
    let received = unsafe { receive(file, &mut header, flags)? };
    if received >= 0 {
        // SAFETY: as above.
        unsafe { *from_bytes = header.msg_namelen };
    }
    Some(received)
}

/// recvmsg(2); none: it is the supervisor's call.
///
/// # Safety
/// As for recvmsg(2); `header` is the program's, or like one.
pub(crate) unsafe fn receive(
    file: c_int,
    header: &mut libc::msghdr,
    flags: c_int,
) -> Option<isize> {
    record(file).filter(|record| record.has(table::DATAGRAMS))?;
    if flags & libc::MSG_ERRQUEUE != 0 || !has_sound_name(header) {
        return None;
    }
    allowed(file)?;
    let directory = directory()?;
    for _ in 0..FOREIGN_MAX {
        let mut name = [0_u8; NAME_BYTES];
        let mut asked = *header;
        asked.msg_name = name.as_mut_ptr().cast();
        asked.msg_namelen = length(NAME_BYTES);
        let arguments = [file.into(), address(&raw mut asked), flags.into(), 0, 0];
        // SAFETY: by the caller; the name outlives the call.
        let work = || unsafe { waiting_call(libc::SYS_recvmsg, arguments) };
        let received = in_kernel(file, false, work);
        if received < 0 {
            return Some(-1);
        }
        if let Some(source) = source_of(directory, &asked, &name) {
            // SAFETY: by the caller; the kernel has just written what `asked` refers to.
            unsafe { finish(header, &asked, source) };
            return isize::try_from(received).ok();
        }
        // Another process has sent it to the kernel's loopback address: it is dropped.
        if flags & libc::MSG_PEEK != 0 {
            discard(file);
        }
    }
    // The supervisor's call waits for more, if this one may wait.
    None
}

/// recvmmsg(2); none: it is the supervisor's call. The limit of time is passed over, and only the
/// first message is waited for.
///
/// # Safety
/// As for recvmmsg(2).
pub(crate) unsafe fn receive_many(
    file: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> Option<c_int> {
    record(file).filter(|record| record.has(table::DATAGRAMS))?;
    let is_odd = flags & (libc::MSG_ERRQUEUE | libc::MSG_PEEK) != 0 || count == 0;
    if is_odd || is_in_first_page(messages.addr()) {
        return None;
    }
    let mut flags = flags | libc::MSG_WAITFORONE;
    let (total, mut done) = (count.to_usize().min(COUNT_MAX), 0);
    for _ in 0..FOREIGN_MAX {
        let room = (total - done).min(MESSAGES_MAX);
        if room == 0 {
            break;
        }
        // SAFETY: the program says that this number is there.
        let some = unsafe { std::slice::from_raw_parts_mut(messages.add(done), room) };
        // SAFETY: by the caller.
        let (received, kept) = match unsafe { receive_some(file, some, flags) } {
            Some(Ok(it)) => it,
            // None: the first is waited for; an error of a later one comes with the next call.
            None if done == 0 => return None,
            Some(Err(())) if done == 0 => return Some(-1),
            None | Some(Err(())) => break,
        };
        done += kept;
        if received < room && done > 0 {
            break;
        }
        if done > 0 {
            flags |= libc::MSG_DONTWAIT;
        }
    }
    if done == 0 {
        // As above.
        return None;
    }
    Some(number_of(done))
}

/// Receives at most [`MESSAGES_MAX`] messages by one call: the number of those that the kernel
/// had, and of those that stay: the first ones.
///
/// # Safety
/// As for recvmmsg(2).
unsafe fn receive_some(
    file: c_int,
    messages: &mut [libc::mmsghdr],
    flags: c_int,
) -> Option<Result<(usize, usize), ()>> {
    allowed(file)?;
    let directory = directory()?;
    if !messages.iter().all(|it| has_sound_name(&it.msg_hdr)) {
        return None;
    }
    let mut names = [[0_u8; NAME_BYTES]; MESSAGES_MAX];
    // SAFETY: zeros are empty messages.
    let mut asked: [libc::mmsghdr; MESSAGES_MAX] = unsafe { std::mem::zeroed() };
    for (message, (asked, name)) in messages.iter().zip(asked.iter_mut().zip(&mut names)) {
        asked.msg_hdr = message.msg_hdr;
        asked.msg_hdr.msg_name = name.as_mut_ptr().cast();
        asked.msg_hdr.msg_namelen = length(NAME_BYTES);
    }
    let arguments = [
        file.into(),
        address(asked.as_mut_ptr()),
        number_of(messages.len()).into(),
        flags.into(),
        0,
    ];
    // SAFETY: by the caller; the names outlive the call.
    let work = || unsafe { waiting_call(libc::SYS_recvmmsg, arguments) };
    let received = in_kernel(file, false, work);
    let Ok(received) = usize::try_from(received) else {
        return Some(Err(()));
    };
    let mut kept = 0;
    for (index, (asked, name)) in asked.iter_mut().zip(&names).take(received).enumerate() {
        // Those of other processes are dropped.
        let Some(source) = source_of(directory, &asked.msg_hdr, name) else {
            continue;
        };
        let Some(message) = messages.get_mut(kept) else {
            break;
        };
        if kept < index {
            // SAFETY: both are the program's messages, of which `asked` was received.
            unsafe { move_message(asked, &message.msg_hdr) };
        }
        // SAFETY: by the caller; the kernel has written what `asked` refers to.
        unsafe { finish(&mut message.msg_hdr, &asked.msg_hdr, source) };
        message.msg_len = asked.msg_len;
        kept += 1;
    }
    Some(Ok((received, kept)))
}

/// The source and destination of a received message, or [`Source::Nothing`]; none: another process
/// has sent it.
fn source_of(
    directory: Directory<'_>,
    received: &libc::msghdr,
    name: &[u8; NAME_BYTES],
) -> Option<Source> {
    // Shut down for reading: an end of file, without a source address.
    let Some(name) = name.get(..received.msg_namelen.to_usize()) else {
        return Some(Source::Nothing);
    };
    if name.is_empty() {
        return Some(Source::Nothing);
    }
    let (at, is_v6) = read_name(name)?;
    let (from, to) = directory.way(at)?;
    Some(Source::Peer { from, to, is_v6 })
}

/// The origin of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// No message has come: it is the end.
    Nothing,
    Peer {
        from: SocketAddr,
        to: IpAddr,
        is_v6: bool,
    },
}

/// Gives a program what was received, with the name of its source.
///
/// # Safety
/// `header` is the program's, and the kernel has written what `received` refers to: the program's
/// control messages.
pub(crate) unsafe fn finish(header: &mut libc::msghdr, received: &libc::msghdr, source: Source) {
    header.msg_controllen = received.msg_controllen;
    header.msg_flags = received.msg_flags;
    let Source::Peer { from, to, is_v6 } = source else {
        if !header.msg_name.is_null() {
            header.msg_namelen = 0;
        }
        return;
    };
    let control_bytes: usize = received.msg_controllen as _;
    if control_bytes > 0 && !received.msg_control.is_null() {
        // SAFETY: by the caller: the kernel has written that many bytes.
        let control = unsafe {
            std::slice::from_raw_parts_mut(received.msg_control.cast::<u8>(), control_bytes)
        };
        set_destination(control, to);
    }
    if header.msg_name.is_null() {
        return;
    }
    let (name, bytes) = write_name(from, is_v6);
    let room = header.msg_namelen.to_usize().min(bytes);
    // SAFETY: the program says that there is this room.
    unsafe { ptr::copy_nonoverlapping(name.as_ptr(), header.msg_name.cast::<u8>(), room) };
    // As in the kernel, the length is that of the whole name.
    header.msg_namelen = length(bytes);
}

/// Drops the next datagram.
fn discard(file: c_int) {
    // SAFETY: zeros are a message without room.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    let flags = libc::MSG_DONTWAIT.into();
    let arguments = [file.into(), address(&raw mut header), flags, 0, 0];
    // SAFETY: the kernel writes no more than the header.
    unsafe { waiting_call(libc::SYS_recvmsg, arguments) };
}

/// sendto(2) with a name; none: it is the supervisor's call.
///
/// # Safety
/// As for sendto(2).
pub(crate) unsafe fn send_to(
    file: c_int,
    from: *const c_void,
    bytes: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_bytes: libc::socklen_t,
) -> Option<isize> {
    record(file).filter(|record| record.has(table::DATAGRAMS))?;
    let mut piece = libc::iovec {
        iov_base: from.cast_mut(),
        iov_len: bytes,
    };
    // SAFETY: zeros are an empty message.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_name = to.cast_mut().cast();
    header.msg_namelen = to_bytes;
    // SAFETY: the header refers to what the program passed, and to a piece that outlives the call.
    unsafe { send(file, &header, flags) }
}

/// sendmsg(2); none: it is the supervisor's call.
///
/// # Safety
/// As for sendmsg(2).
pub(crate) unsafe fn send(file: c_int, header: &libc::msghdr, flags: c_int) -> Option<isize> {
    record(file).filter(|record| record.has(table::DATAGRAMS))?;
    // SAFETY: zeros are an empty message.
    let mut one: libc::mmsghdr = unsafe { std::mem::zeroed() };
    one.msg_hdr = *header;
    // SAFETY: by the caller.
    let sent = unsafe { send_some::<1>(file, std::slice::from_mut(&mut one), flags)? };
    if sent < 0 {
        return Some(-1);
    }
    isize::try_from(one.msg_len).ok()
}

/// sendmmsg(2); none: it is the supervisor's call.
///
/// # Safety
/// As for sendmmsg(2).
pub(crate) unsafe fn send_many(
    file: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> Option<c_int> {
    record(file).filter(|record| record.has(table::DATAGRAMS))?;
    if count == 0 || is_in_first_page(messages.addr()) {
        return None;
    }
    let (total, mut done) = (count.to_usize().min(COUNT_MAX), 0);
    while done < total {
        let room = (total - done).min(MESSAGES_MAX);
        // SAFETY: the program says that this number is there.
        let some = unsafe { std::slice::from_raw_parts_mut(messages.add(done), room) };
        // SAFETY: by the caller.
        let sent = match unsafe { send_some::<MESSAGES_MAX>(file, some, flags) } {
            None if done == 0 => return None,
            None => {
                // From this one on it is the supervisor's call.
                let rest = number_of(total - done).cast_unsigned();
                // SAFETY: as above.
                let next = unsafe { messages.add(done) };
                let sent = real!(sendmmsg(file => c_int, next => *mut libc::mmsghdr,
                    rest => c_uint, flags => c_int) -> c_int);
                done += usize::try_from(sent).unwrap_or(0);
                break;
            }
            Some(-1) if done == 0 => return Some(-1),
            Some(sent) => usize::try_from(sent).unwrap_or(0),
        };
        done += sent;
        // As in the kernel, the program sends the rest again, and hears then of an error.
        if sent == 0 {
            break;
        }
    }
    Some(number_of(done))
}

/// Sends as many of these messages as may be sent past the supervisor, at most `N`: the number, or
/// -1; none if the first one may not.
///
/// # Safety
/// As for sendmmsg(2).
unsafe fn send_some<const N: usize>(
    file: c_int,
    messages: &mut [libc::mmsghdr],
    flags: c_int,
) -> Option<c_int> {
    if flags & !PLAIN_FLAGS != 0 {
        return None;
    }
    let state = allowed(file)?;
    let directory = directory()?;
    let mut framed = [Framed::EMPTY; N];
    // SAFETY: zeros are empty messages.
    let mut asked: [libc::mmsghdr; N] = unsafe { std::mem::zeroed() };
    let (mut ready, mut cost) = (0, 0);
    let places = asked.iter_mut().zip(&mut framed);
    for (message, (asked, framed)) in messages.iter().zip(places) {
        // SAFETY: by the caller.
        let made = unsafe { prepare(state, directory, &message.msg_hdr, framed) };
        let Some((header, more)) = made else {
            break;
        };
        if ready > 0 && cost + more > UNTAKEN_MAX {
            break;
        }
        asked.msg_hdr = header;
        cost += more;
        ready += 1;
    }
    if ready == 0 {
        return None;
    }
    pace(file, cost);
    let arguments = [
        file.into(),
        address(asked.as_mut_ptr()),
        number_of(ready).into(),
        flags.into(),
        0,
    ];
    // SAFETY: by the caller; the frames outlive the call.
    let sent = unsafe { waiting_call(libc::SYS_sendmmsg, arguments) };
    let count = usize::try_from(sent).unwrap_or(0);
    let done = asked.iter().zip(&framed).take(count);
    for (message, (asked, framed)) in messages.iter_mut().zip(done) {
        message.msg_len = asked.msg_len.saturating_sub(framed.frame_bytes());
    }
    Some(sent)
}

/// The header by which a program's message is sent past the supervisor, and the message's cost
/// ([`pace`]); none if it may not.
///
/// # Safety
/// As for sendmsg(2); what is returned refers to `framed`.
unsafe fn prepare(
    state: PlaceState,
    directory: Directory<'_>,
    header: &libc::msghdr,
    framed: &mut Framed,
) -> Option<(libc::msghdr, u32)> {
    // SAFETY: by the caller.
    let (segment_bytes, bytes) = unsafe { (segment_of(header)?, whole_of(header)?) };
    let segments = match usize::from(segment_bytes) {
        0 => 1,
        each => bytes.div_ceil(each),
    };
    let cost = cost_of(bytes, segments);
    if header.msg_name.is_null() || header.msg_namelen == 0 {
        return state.has(WRITES).then_some((*header, cost));
    }
    // SAFETY: by the caller.
    let peer = unsafe { peer_of(state, directory, header)? };
    if bytes > FRAMED_BYTES_MAX || segments > SEGMENTS_MAX {
        return None;
    }
    // SAFETY: by the caller.
    let pieces = unsafe { pieces_of(header) };
    let frame = Frame {
        peer,
        segment_bytes,
    };
    *framed = Framed::of(frame, pieces, write_name(state.desk()?, state.has(IS_V6)))?;
    Some((framed.header(), cost))
}

/// The destination of a program's message; none if it is not one of the desk's.
///
/// # Safety
/// The header is the program's, and has a name.
pub(crate) unsafe fn peer_of(
    state: PlaceState,
    directory: Directory<'_>,
    header: &libc::msghdr,
) -> Option<SocketAddr> {
    let bytes = header.msg_namelen.to_usize();
    if is_in_first_page(header.msg_name.addr()) || bytes > NAME_BYTES_MAX {
        return None;
    }
    // SAFETY: by the caller.
    let name = unsafe { bytes_at(header.msg_name.cast(), bytes.min(NAME_BYTES)) };
    let (peer, is_v6) = read_name(name)?;
    let peer = plain(peer);
    let family = if peer.is_ipv4() { SENDS_V4 } else { SENDS_V6 };
    let is_allowed = state.has(family) && is_v6 == state.has(IS_V6) && peer.port() > 0;
    (is_allowed && directory.reaches(peer.ip())).then_some(peer)
}

/// Counts what the supervisor has to take from its sockets, and has it take that before there is
/// more than their buffers hold: like a kernel's socket, a fast program waits and loses nothing.
fn pace(file: c_int, cost: u32) {
    // A socket with a place counts no calls.
    let Some(record) = record(file) else {
        return;
    };
    let before = record.calls.fetch_add(cost, Ordering::Relaxed);
    if before.saturating_add(cost) > UNTAKEN_MAX {
        record.calls.store(cost, Ordering::Relaxed);
        // If it fails, what there is no room for is lost, which UDP allows.
        request(file, DATAGRAMS, 1).ok();
    }
}

/// The memory of the kernel's that a message of this number of datagrams takes, or more; at most
/// [`UNTAKEN_MAX`].
fn cost_of(bytes: usize, datagrams: usize) -> u32 {
    let memory = datagrams
        .saturating_mul(1024)
        .saturating_add(bytes.saturating_mul(2));
    u32::try_from(memory).map_or(UNTAKEN_MAX, |memory| memory.min(UNTAKEN_MAX))
}

/// Flags of a send that do not concern the datagram.
pub(crate) const PLAIN_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
/// Datagrams of other processes that one call skips.
const FOREIGN_MAX: usize = 64;
/// Memory of messages that the supervisor has not taken, in bytes: less than the kernel's default
/// SO_RCVBUF.
const UNTAKEN_MAX: u32 = 160 << 10;
/// Messages of one system call: their headers are on the stack, which may have 16 KiB.
const MESSAGES_MAX: usize = 16;
/// Messages of one call of the program (UIO_MAXIOV).
const COUNT_MAX: usize = 1024;
/// Bytes of `struct sockaddr_storage`.
const NAME_BYTES_MAX: usize = 128;
