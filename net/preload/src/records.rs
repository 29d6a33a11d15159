//! UDP by rings: datagrams of sockets that this process alone uses.
//!
//! The rings, their waits, polls and ends are those of a stream ([`crate::stream`]); in them a
//! datagram is a head and its payload. Must stay true: what rings do not carry is the kernel's call
//! or the supervisor's; a call that the kernel would make before what is in the rings ends them
//! first; a datagram is taken as a whole, or stays.

use crate::attachment::{self, Attachment, request};
use crate::blocking::{self, For, Limit};
use crate::datagrams::{self, PLAIN_FLAGS, Source};
use crate::interest;
use crate::real::{
    count as number_of, has_no_name, has_sound_name, is_in_first_page, message_of, pieces_of, real,
    set_errno, whole_of,
};
use crate::rings;
use crate::stream::{self, Look, Pieces};
use crate::table::{self, Kind, Record, record};
use crate::told::{self, Wishes};
use sidecore_bare::width::ToUsize;
use sidecore_net_rings::datagram::{
    FRAME_BYTES, FRAMED_BYTES_MAX, HEAD_BYTES, Head, OPEN, Place, PlaceState, SEGMENTS_MAX, WRITES,
};
use sidecore_net_rings::{Broken, DATAGRAMS, Held};
use sidecore_sync::Changed;
use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;

/// The record of a datagram socket, if its datagrams pass through rings now. Counts a call, and
/// requests rings after enough of them.
#[inline]
fn with_rings(file: c_int) -> Option<&'static Record> {
    let record = record(file).filter(|record| record.has(table::DATAGRAMS))?;
    let has_rings = match record.kind() {
        Kind::Ring => true,
        Kind::Candidate => {
            // As of a stream's calls, it may be off by one.
            record.cramped.fetch_add(1, Ordering::Relaxed);
            rings::is_enough(record, &record.cramped) && begin(file, record)
        }
        Kind::Upgrading => record.settled_kind() == Kind::Ring,
        Kind::Inherited => {
            // The rings belong to the parent process.
            rings::give_back(file);
            false
        }
        _ => false,
    };
    has_rings.then_some(record)
}

/// Requests rings, behind a place in the directory; true if it has some then.
#[cold]
fn begin(file: c_int, record: &Record) -> bool {
    record.cramped.store(0, Ordering::Relaxed);
    // With EPOLLONESHOT, the kernel may or may not have reported it already.
    let is_free = !interest::is_told_once(record) && !record.may_be_a_childs();
    let has_place = || place_state(record).or_else(|| datagrams::ask(file, record));
    is_free && has_place().is_some() && rings::upgrade(file, record)
}

/// The state of a socket in the directory.
fn place_state(record: &Record) -> Option<PlaceState> {
    let place = Place::of_bits(record.place.load(Ordering::Acquire))?;
    datagrams::directory()?.state(place)
}

/// True if a call that goes to the kernel, or the supervisor, leaves the rings as they are.
pub(crate) fn are_kept(file: c_int) -> bool {
    is_datagram(file) && rings::are_kept(file)
}

/// The same for a call of many messages, for which a stream loses its rings.
pub(crate) fn keep_rings(file: c_int) -> bool {
    if !is_datagram(file) {
        rings::bar(file);
    }
    are_kept(file)
}

/// True for a UDP socket.
pub(crate) fn is_datagram(file: c_int) -> bool {
    record(file).is_some_and(|record| record.has(table::DATAGRAMS))
}

/// The bytes of the next datagram, for FIONREAD; none without rings.
pub(crate) fn readable_bytes(file: c_int) -> Option<c_int> {
    let record = record(file).filter(|record| record.has(table::DATAGRAMS))?;
    let next = stream::with_lock(attachment::current()?, file, record, Head::next);
    match next {
        Look::Done(head) => Some(head.map_or(0, |head| number_of(head.bytes))),
        Look::Gone | Look::Interrupted => None,
    }
}

/// read(2), readv(2) or recv(2) of these pieces; none: it is the kernel's call.
///
/// # Safety
/// As for readv(2).
pub(crate) unsafe fn receive_plain(
    file: c_int,
    pieces: Pieces<'_>,
    flags: Option<c_int>,
) -> Option<isize> {
    let record = with_rings(file)?;
    // read(2) returns at once if there is no room, unlike recv(2).
    if flags.is_none() && stream::whole(pieces) == 0 {
        return Some(0);
    }
    let mut header = message_of(pieces);
    // SAFETY: the header refers to what the program passed.
    unsafe { receive(file, record, &mut header, flags.unwrap_or(0)) }
}

/// recvfrom(2); none: it is the kernel's call, or the supervisor's.
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
    let is_sound = from.is_null() || !is_in_first_page(from_bytes.addr());
    if let Some(record) = with_rings(file).filter(|_| is_sound) {
        let pieces = [libc::iovec {
            iov_base: to,
            // As the kernel does (MAX_RW_COUNT).
            iov_len: bytes.min(0x7fff_f000),
        }];
        let mut header = message_of(&pieces);
        if !from.is_null() {
            header.msg_name = from.cast();
            // SAFETY: the program says that a length is there.
            header.msg_namelen = unsafe { *from_bytes };
        }
        // SAFETY: the header refers to what the program passed, and to a piece that outlives the
        // call.
        if let Some(received) = unsafe { receive(file, record, &mut header, flags) } {
            if received >= 0 && !from.is_null() {
                // SAFETY: as above.
                unsafe { *from_bytes = header.msg_namelen };
            }
            return Some(received);
        }
    }
    // SAFETY: by the caller.
    unsafe { datagrams::receive_from(file, to, bytes, flags, from, from_bytes) }
}

/// recvmsg(2); none: it is the kernel's call, or the supervisor's.
///
/// # Safety
/// As for recvmsg(2).
pub(crate) unsafe fn receive_message(
    file: c_int,
    header: &mut libc::msghdr,
    flags: c_int,
) -> Option<isize> {
    if let Some(record) = with_rings(file)
        // SAFETY: by the caller.
        && let Some(received) = unsafe { receive(file, record, header, flags) }
    {
        return Some(received);
    }
    // SAFETY: by the caller.
    unsafe { datagrams::receive(file, header, flags) }
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
    let is_sound = count > 0 && !is_in_first_page(messages.addr());
    if let Some(record) = with_rings(file).filter(|_| is_sound) {
        let total = count.to_usize().min(COUNT_MAX);
        // SAFETY: the program says that this number is there.
        let all = unsafe { std::slice::from_raw_parts_mut(messages, total) };
        let mut flags = flags & !libc::MSG_WAITFORONE;
        let mut done = 0;
        for message in all {
            // SAFETY: by the caller.
            match unsafe { receive(file, record, &mut message.msg_hdr, flags) } {
                Some(-1) if done == 0 => return Some(-1),
                // An error of a later one comes with the next call.
                None | Some(-1) => break,
                Some(bytes) => message.msg_len = c_uint::try_from(bytes).unwrap_or(0),
            }
            done += 1;
            flags |= libc::MSG_DONTWAIT;
        }
        if done > 0 {
            return Some(done);
        }
    }
    // SAFETY: by the caller.
    unsafe { datagrams::receive_many(file, messages, count, flags) }
}

/// Receives a datagram from the rings: its bytes, or -1 and errno; none if it has no rings any
/// more.
///
/// # Safety
/// As for recvmsg(2).
unsafe fn receive(
    file: c_int,
    record: &Record,
    header: &mut libc::msghdr,
    flags: c_int,
) -> Option<isize> {
    let attachment = attachment::current()?;
    if flags & libc::MSG_ERRQUEUE != 0 {
        // A socket that hears of errors has no rings.
        return failed(libc::EAGAIN);
    }
    // SAFETY: by the caller.
    let whole = unsafe { whole_of(header) };
    if flags & !RECEIVE_FLAGS != 0 || !has_sound_name(header) || whole.is_none() {
        rings::bar(file);
        return None;
    }
    // SAFETY: by the caller.
    let pieces = unsafe { pieces_of(header) };
    if stream::is_nowhere(pieces) {
        return failed(libc::EFAULT);
    }
    let (head, copied) = match next(attachment, file, record, (pieces, flags))? {
        Ok(taken) => taken,
        Err(error) => return failed(error),
    };
    let mut received = *header;
    received.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    if copied < head.bytes {
        received.msg_flags |= libc::MSG_TRUNC;
    }
    let told = record.flags.load(Ordering::Relaxed) >> table::TOLD_SHIFT;
    // SAFETY: by the caller.
    unsafe { told::describe(&mut received, told, &head) };
    let source = Source::Peer {
        from: head.peer,
        to: head.to,
        is_v6: record.has(table::IS_V6),
    };
    // SAFETY: by the caller; the control messages have just been written.
    unsafe { datagrams::finish(header, &received, source) };
    let bytes = match flags & libc::MSG_TRUNC {
        0 => copied,
        _ => head.bytes,
    };
    Some(bytes.cast_signed())
}

/// Waits for the next datagram, if the call may, and takes it; none if there are no rings any more.
fn next(
    attachment: &Attachment,
    file: c_int,
    record: &Record,
    (pieces, flags): (Pieces<'_>, c_int),
) -> Option<Result<(Head, usize), c_int>> {
    let mut limit = Limit::default();
    loop {
        if record.kind() != Kind::Ring {
            return None;
        }
        let look = stream::with_lock(attachment, file, record, |held| {
            let taken = take(held, pieces, flags & libc::MSG_PEEK != 0)?;
            if taken.is_some() {
                let _ = Changed::publish();
                // Only when it waits for room.
                if held.supervisor_waits() {
                    attachment.tell(record.number.load(Ordering::Relaxed));
                }
            }
            Ok(taken)
        });
        match look {
            Look::Done(Some(taken)) => return Some(Ok(taken)),
            Look::Done(None) => {}
            Look::Gone => return None,
            Look::Interrupted => return Some(Err(libc::EAGAIN)),
        }
        if stream::is_nonblocking(file, flags) {
            return Some(Err(libc::EAGAIN));
        }
        match wait(attachment, file, record, For::Reading, &mut limit, 1) {
            Ok(()) => {}
            // The supervisor is gone: nothing will come, and the kernel waits for it.
            Err(libc::ECONNRESET) => {
                rings::bar(file);
                return None;
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Takes the next datagram, as much of it as there is room for, or only looks at it: its head, and
/// the number of bytes copied.
fn take(
    held: &mut Held<'_>,
    pieces: Pieces<'_>,
    peeks: bool,
) -> Result<Option<(Head, usize)>, Broken> {
    let Some(head) = Head::next(held)? else {
        return Ok(None);
    };
    let copied = stream::read_pieces(pieces, 0, |room, read| {
        let count = room.len().min(head.bytes - read);
        held.read(&mut room[..count], true, HEAD_BYTES + read)
    })?;
    if copied < head.bytes.min(stream::whole(pieces)) {
        return Err(Broken);
    }
    if !peeks {
        held.skip(HEAD_BYTES + head.bytes)?;
    }
    Ok(Some((head, copied)))
}

/// write(2), writev(2) or send(2) of these pieces; none: it is the kernel's call.
///
/// # Safety
/// As for writev(2).
pub(crate) unsafe fn send_plain(file: c_int, pieces: Pieces<'_>, flags: c_int) -> Option<isize> {
    let record = with_rings(file)?;
    // SAFETY: the header refers to what the program passed.
    unsafe { send(file, record, &message_of(pieces), flags) }
}

/// sendto(2); none: it is the kernel's call, or the supervisor's.
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
    if let Some(record) = with_rings(file) {
        let pieces = [libc::iovec {
            iov_base: from.cast_mut(),
            iov_len: bytes,
        }];
        let mut header = message_of(&pieces);
        header.msg_name = to.cast_mut().cast();
        header.msg_namelen = to_bytes;
        // SAFETY: the header refers to what the program passed, and to a piece that outlives the
        // call.
        let sent = unsafe { send(file, record, &header, flags) };
        if sent.is_some() || record.kind() == Kind::Ring {
            return sent;
        }
    }
    // SAFETY: by the caller.
    unsafe { datagrams::send_to(file, from, bytes, flags, to, to_bytes) }
}

/// sendmsg(2); none: it is the kernel's call, or the supervisor's.
///
/// # Safety
/// As for sendmsg(2).
pub(crate) unsafe fn send_message(
    file: c_int,
    header: &libc::msghdr,
    flags: c_int,
) -> Option<isize> {
    if let Some(record) = with_rings(file) {
        // SAFETY: by the caller.
        let sent = unsafe { send(file, record, header, flags) };
        if sent.is_some() || record.kind() == Kind::Ring {
            return sent;
        }
    }
    // SAFETY: by the caller.
    unsafe { datagrams::send(file, header, flags) }
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
    let is_sound = count > 0 && !is_in_first_page(messages.addr());
    let Some(record) = with_rings(file).filter(|_| is_sound) else {
        // SAFETY: by the caller.
        return unsafe { datagrams::send_many(file, messages, count, flags) };
    };
    let total = count.to_usize().min(COUNT_MAX);
    let mut done = 0;
    while done < total {
        // SAFETY: the program says that this number is there.
        let message = unsafe { &mut *messages.add(done) };
        // SAFETY: by the caller.
        match unsafe { send(file, record, &message.msg_hdr, flags) } {
            Some(-1) if done == 0 => return Some(-1),
            // As in the kernel, the program sends the rest again, and hears then of an error.
            Some(-1) => break,
            Some(bytes) => message.msg_len = c_uint::try_from(bytes).unwrap_or(0),
            None if done == 0 && record.kind() != Kind::Ring => {
                // SAFETY: by the caller.
                return unsafe { datagrams::send_many(file, messages, count, flags) };
            }
            None if done == 0 => return None,
            None => {
                // From this one on it is the supervisor's call.
                let rest = number_of(total - done).cast_unsigned();
                let next: *mut libc::mmsghdr = message;
                let sent = real!(sendmmsg(file => c_int, next => *mut libc::mmsghdr,
                    rest => c_uint, flags => c_int) -> c_int);
                done += usize::try_from(sent).unwrap_or(0);
                break;
            }
        }
        done += 1;
    }
    Some(number_of(done))
}

/// Sends a message by the rings: its bytes, or -1 and errno; none if it is another's call. The
/// kernel's call would be made before what is in the rings, so that a message to the peer ends
/// them then.
///
/// # Safety
/// As for sendmsg(2).
unsafe fn send(file: c_int, record: &Record, header: &libc::msghdr, flags: c_int) -> Option<isize> {
    let attachment = attachment::current()?;
    // SAFETY: by the caller.
    let Some(head) = (unsafe { head_of(file, record, header, flags) }) else {
        // The supervisor takes what is in the rings before it serves a call.
        if has_no_name(header) {
            rings::bar(file);
        }
        return None;
    };
    // SAFETY: by the caller.
    let pieces = unsafe { pieces_of(header) };
    let needed = HEAD_BYTES + head.bytes;
    let mut limit = Limit::default();
    loop {
        if record.kind() != Kind::Ring {
            return None;
        }
        let look = stream::with_lock(attachment, file, record, |held| put(held, head, pieces));
        match look {
            Look::Done(true) => {
                attachment.tell(record.number.load(Ordering::Relaxed));
                return Some(head.bytes.cast_signed());
            }
            Look::Done(false) => {}
            Look::Gone => return None,
            Look::Interrupted => return failed(libc::EAGAIN),
        }
        if stream::is_nonblocking(file, flags) {
            let stream = stream::stream_of(attachment, record);
            if stream.is_some_and(|stream| stream::has_room_or_waits(&stream, needed)) {
                continue;
            }
            return failed(libc::EAGAIN);
        }
        match wait(attachment, file, record, For::Writing, &mut limit, needed) {
            Ok(()) => {}
            Err(libc::ECONNRESET) => {
                rings::bar(file);
                return None;
            }
            Err(error) => return failed(error),
        }
    }
}

/// The head of a program's message; none if rings do not carry it.
///
/// # Safety
/// As for sendmsg(2).
unsafe fn head_of(
    file: c_int,
    record: &Record,
    header: &libc::msghdr,
    flags: c_int,
) -> Option<Head> {
    if flags & !PLAIN_FLAGS != 0 {
        return None;
    }
    let mut state = place_state(record)?;
    if !state.has(OPEN) && has_no_name(header) {
        // An option was set: the supervisor looks at the socket again.
        request(file, DATAGRAMS, 1).ok()?;
        state = place_state(record)?;
    }
    if !state.has(OPEN) {
        return None;
    }
    // SAFETY: by the caller.
    let (wishes, bytes) = unsafe { (Wishes::of(header)?, whole_of(header)?) };
    let segment_bytes = wishes.segment_bytes;
    let segments = match usize::from(segment_bytes) {
        0 => 1,
        each => bytes.div_ceil(each),
    };
    // The kernel, and the supervisor, say what is wrong.
    if bytes > SENT_BYTES_MAX || segments > SEGMENTS_MAX {
        return None;
    }
    let peer = if has_no_name(header) {
        // The peer may be a program, for which the supervisor sets the source.
        (state.has(WRITES) && !wishes.has_source).then_some(ITS_PEER)?
    } else {
        // SAFETY: by the caller.
        unsafe { datagrams::peer_of(state, datagrams::directory()?, header)? }
    };
    // SAFETY: by the caller.
    let is_nowhere = stream::is_nowhere(unsafe { pieces_of(header) });
    let head = Head {
        bytes,
        peer,
        to: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        segment_bytes,
    };
    (!is_nowhere).then_some(head.with_classes(wishes.classes))
}

/// Writes a datagram, whole, if there is room for it.
fn put(held: &mut Held<'_>, head: Head, pieces: Pieces<'_>) -> Result<bool, Broken> {
    let needed = HEAD_BYTES + head.bytes;
    if held.room()? < needed {
        return Ok(false);
    }
    let mut at = held.put(0, &head.bytes())?;
    stream::write_pieces(pieces, 0, |rest| {
        let count = held.put(at, rest)?;
        at += count;
        Ok(count)
    })?;
    if at < needed {
        return Err(Broken);
    }
    held.publish(needed);
    Ok(true)
}

/// Waits for a datagram, or for room for this number of bytes.
fn wait(
    attachment: &Attachment,
    file: c_int,
    record: &Record,
    what: For,
    limit: &mut Limit,
    bytes: usize,
) -> Result<(), c_int> {
    blocking::wait(attachment, file, record, what, limit, || {
        let stream = stream::stream_of(attachment, record);
        let Some((stream, state)) = stream.zip(stream::state_of(attachment, record)) else {
            return true;
        };
        let there = match what {
            For::Reading => state.readable_bytes,
            For::Writing => state.writable_bytes,
        };
        record.kind() != Kind::Ring || stream.is_taken_back() || there >= bytes
    })
}

#[allow(clippy::unnecessary_wraps)] // The result of a call by rings.
fn failed(error: c_int) -> Option<isize> {
    set_errno(error);
    Some(-1)
}

/// In a ring: the socket's peer.
const ITS_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// Flags of a receive that rings know.
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_TRUNC
    | libc::MSG_WAITALL
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;
/// Longest datagram: UDP's limit of IPv4 for both families.
const SENT_BYTES_MAX: usize = FRAMED_BYTES_MAX + FRAME_BYTES;
/// Messages of one call of the program (UIO_MAXIOV).
const COUNT_MAX: usize = 1024;
