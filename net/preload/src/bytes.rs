//! Intercepted calls that transfer bytes.

use crate::marked::{ask_routes, hear_routes, routes};
use crate::real::{control, descriptors_in, errno, is_in_first_page, message_of, real, set_errno};
use crate::rings::in_kernel;
use crate::stream::{self, Done};
use crate::table::{Kind, record};
use crate::{accepting, closing, records, rings};
use sidecore_sys::control_message::judge_for_tcp;
use std::ffi::{c_int, c_uint, c_void};

fn one(pointer: *const c_void, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: pointer.cast_mut(),
        iov_len: bytes,
    }
}

fn pieces<'p>(pointer: *const libc::iovec, count: usize) -> Option<stream::Pieces<'p>> {
    // The kernel refuses both, each with an error of its own.
    if pointer.is_null() || count > PIECES_MAX {
        return None;
    }
    // SAFETY: the program guarantees this number of elements.
    Some(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Finishes a call: with the result of the rings, or of the kernel, which is told that there were
/// rings.
#[inline]
fn end(done: Done, kernel: impl FnOnce(bool) -> isize) -> isize {
    match done {
        Done::Bytes(count) => count.cast_signed(),
        Done::Failed(error) => {
            set_errno(error);
            -1
        }
        Done::Kernel => kernel(true),
    }
}

/// The same for a receiving call.
#[inline]
fn end_receiving(file: c_int, done: Done, kernel: impl Fn(bool) -> isize) -> isize {
    end(done, |had_rings| {
        closing::receive_at_end(file, || kernel(had_rings))
    })
}

/// The same for write(2) and writev(2): a session that has ended by a reset reports it instead of
/// raising the signal.
#[inline]
fn end_writing(
    file: c_int,
    done: Done,
    pieces: stream::Pieces<'_>,
    kernel: impl FnOnce(bool) -> isize,
) -> isize {
    // Taken back meanwhile, it is written to as any other pair.
    if matches!(done, Done::Kernel) && rings::are_kept(file) {
        let message = message_of(pieces);
        return closing::send(
            file,
            0,
            || stream::whole(pieces),
            |flags| {
                real!(sendmsg(file => c_int, &raw const message => *const libc::msghdr,
                    flags => c_int) -> isize)
            },
        );
    }
    end(done, kernel)
}

/// Receives by rings for read(2) and readv(2), which return at once if there is no room, unlike
/// recv(2).
fn read_rings(file: c_int, pieces: stream::Pieces<'_>) -> Done {
    if stream::whole(pieces) == 0 {
        return Done::Bytes(0);
    }
    stream::receive(file, pieces, 0)
}

/// read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(file: c_int, to: *mut c_void, bytes: usize) -> isize {
    let kernel = move |had_rings| {
        in_kernel(
            file,
            had_rings,
            move || real!(read(file => c_int, to => *mut c_void, bytes => usize) -> isize),
        )
    };
    if !rings::has_rings(file) {
        // SAFETY: as of read(2).
        if let Some(read) = unsafe { records::receive_plain(file, &[one(to, bytes)], None) } {
            return read;
        }
        if routes(file) {
            return hear_routes(file, to, bytes, 0);
        }
        return closing::receive(file, bytes, || kernel(false));
    }
    end_receiving(file, read_rings(file, &[one(to, bytes)]), kernel)
}

/// readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(file: c_int, to: *const libc::iovec, count: c_int) -> isize {
    let kernel = move |had_rings| {
        in_kernel(
            file,
            had_rings,
            move || real!(readv(file => c_int, to => *const libc::iovec, count => c_int) -> isize),
        )
    };
    match pieces(to, usize::try_from(count).unwrap_or(usize::MAX)) {
        Some(pieces) if rings::has_rings(file) => {
            end_receiving(file, read_rings(file, pieces), kernel)
        }
        Some(pieces) if records::is_datagram(file) => {
            // SAFETY: as of readv(2).
            let read = unsafe { records::receive_plain(file, pieces, None) };
            read.unwrap_or_else(|| closing::receive(file, 1, || kernel(false)))
        }
        Some(pieces) if routes(file) => {
            let mut message = message_of(pieces);
            // SAFETY: as of readv(2).
            unsafe { recvmsg(file, &raw mut message, 0) }
        }
        // A call without room for a byte is rare and ambiguous; later writes then make one check.
        Some(_) => closing::receive(file, 1, || kernel(false)),
        None => closing::receive(file, 1, || kernel(true)),
    }
}

/// recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(file: c_int, to: *mut c_void, bytes: usize, flags: c_int) -> isize {
    let kernel = move |had_rings| {
        in_kernel(file, had_rings, move || {
            real!(recv(file => c_int, to => *mut c_void, bytes => usize,
                    flags => c_int) -> isize)
        })
    };
    meet(file);
    if !rings::has_rings(file) {
        let pieces = [one(to, bytes)];
        // SAFETY: as of recv(2).
        if let Some(read) = unsafe { records::receive_plain(file, &pieces, Some(flags)) } {
            return read;
        }
        if routes(file) {
            return hear_routes(file, to, bytes, flags);
        }
        return closing::receive(file, bytes, || kernel(false));
    }
    let done = stream::receive(file, &[one(to, bytes)], flags);
    end_receiving(file, done, kernel)
}

/// recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
) -> isize {
    let kernel = move |had_rings| {
        in_kernel(file, had_rings, move || {
            real!(recvfrom(file => c_int, to => *mut c_void, bytes => usize, flags => c_int,
                from => *mut libc::sockaddr, from_bytes => *mut libc::socklen_t) -> isize)
        })
    };
    // SAFETY: as of recvfrom(2).
    if let Some(read) = unsafe { records::receive_from(file, to, bytes, flags, from, from_bytes) } {
        return read;
    }
    meet(file);
    if !rings::has_rings(file) {
        if from.is_null() && routes(file) {
            return hear_routes(file, to, bytes, flags);
        }
        if from.is_null() || from_bytes.is_null() {
            return closing::receive(file, bytes, || kernel(false));
        }
        // SAFETY: the program says that a length is there.
        // The kernel overwrites the length, and the name is hidden by what there was room for.
        let room = unsafe { *from_bytes };
        let read = closing::receive(file, bytes, || kernel(false));
        if read >= 0 {
            // SAFETY: the kernel has just written both.
            unsafe { accepting::hide_name(file, from.cast(), room, from_bytes) };
        }
        return read;
    }
    let done = stream::receive(file, &[one(to, bytes)], flags);
    if matches!(done, Done::Bytes(_)) && !from.is_null() && !from_bytes.is_null() {
        // A stream returns no address.
        // SAFETY: the program guarantees that a length is there.
        unsafe { *from_bytes = 0 };
    }
    end_receiving(file, done, kernel)
}

/// recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(file: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    let kernel = move |had_rings| {
        in_kernel(file, had_rings, move || {
            real!(recvmsg(file => c_int, message => *mut libc::msghdr,
                    flags => c_int) -> isize)
        })
    };
    let is_nowhere = is_in_first_page(message.addr());
    if !is_nowhere
        // SAFETY: as of recvmsg(2).
        && let Some(read) = unsafe { records::receive_message(file, &mut *message, flags) }
    {
        return read;
    }
    meet(file);
    if is_nowhere || !rings::has_rings(file) {
        // SAFETY: the program guarantees a message header; the kernel reports an error without one.
        let name = (!is_nowhere).then(|| unsafe {
            let header = &*message;
            (header.msg_name, header.msg_namelen)
        });
        let read = closing::receive(file, 1, || kernel(is_nowhere));
        if read >= 0 && name.is_some() {
            // SAFETY: the kernel has just written the header and what it refers to.
            for passed in control(unsafe { &*message }).map_or(Vec::new(), descriptors_in) {
                accepting::meet(passed);
            }
        }
        if read >= 0
            && let Some((name, room)) = name.filter(|(name, _)| !name.is_null())
        {
            // SAFETY: the kernel has just written both.
            unsafe {
                accepting::hide_name(file, name.cast(), room, &raw mut (*message).msg_namelen);
            }
        }
        return read;
    }
    // SAFETY: the program says that a message's header is there.
    let header = unsafe { &mut *message };
    let Some(pieces) = pieces(header.msg_iov, header.msg_iovlen as _) else {
        return kernel(true);
    };
    let done = stream::receive(file, pieces, flags);
    if matches!(done, Done::Bytes(_)) {
        // A stream has no source address, and the rings carry no control messages or flags.
        header.msg_namelen = 0;
        header.msg_controllen = 0;
        header.msg_flags = 0;
    }
    end_receiving(file, done, kernel)
}

/// recvmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    file: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut libc::timespec,
) -> c_int {
    // SAFETY: as of recvmmsg(2).
    if let Some(read) = unsafe { records::receive_many(file, messages, count, flags) } {
        return read;
    }
    let are_kept = records::keep_rings(file);
    in_kernel(file, are_kept, move || {
        real!(recvmmsg(file => c_int, messages => *mut libc::mmsghdr, count => c_uint,
            flags => c_int, limit => *mut libc::timespec) -> c_int)
    })
}

/// write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, from: *const c_void, bytes: usize) -> isize {
    let kernel = move |had_rings| {
        in_kernel(
            file,
            had_rings,
            move || real!(write(file => c_int, from => *const c_void, bytes => usize) -> isize),
        )
    };
    if !rings::has_rings(file) {
        // SAFETY: as of write(2).
        if let Some(sent) = unsafe { records::send_plain(file, &[one(from, bytes)], 0) } {
            return sent;
        }
        if closing::has_ended(file) {
            // SAFETY: as of write(2).
            return unsafe { send(file, from, bytes, 0) };
        }
        if routes(file) {
            return ask_routes(file, from, bytes, 0);
        }
        return closing::note_sent(file, kernel(false));
    }
    let pieces = [one(from, bytes)];
    end_writing(file, stream::send(file, &pieces, 0), &pieces, kernel)
}

/// writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(file: c_int, from: *const libc::iovec, count: c_int) -> isize {
    let kernel = move |had_rings| {
        in_kernel(file, had_rings, move || {
            real!(writev(file => c_int, from => *const libc::iovec,
                    count => c_int) -> isize)
        })
    };
    match pieces(from, usize::try_from(count).unwrap_or(usize::MAX)) {
        Some(pieces) if rings::has_rings(file) => {
            end_writing(file, stream::send(file, pieces, 0), pieces, kernel)
        }
        Some(pieces) if closing::has_ended(file) || routes(file) => {
            let message = message_of(pieces);
            // SAFETY: as of writev(2).
            unsafe { sendmsg(file, &raw const message, 0) }
        }
        Some(pieces) if records::is_datagram(file) => {
            // SAFETY: as of writev(2).
            let sent = unsafe { records::send_plain(file, pieces, 0) };
            sent.unwrap_or_else(|| closing::note_sent(file, kernel(false)))
        }
        Some(_) => closing::note_sent(file, kernel(false)),
        None => kernel(true),
    }
}

/// send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    file: c_int,
    from: *const c_void,
    bytes: usize,
    flags: c_int,
) -> isize {
    let work = move |flags, had_rings| {
        in_kernel(file, had_rings, move || {
            real!(send(file => c_int, from => *const c_void, bytes => usize, flags => c_int)
                -> isize)
        })
    };
    let kernel =
        move |had_rings| closing::send(file, flags, || bytes, move |flags| work(flags, had_rings));
    meet(file);
    if !rings::has_rings(file) {
        // SAFETY: as of send(2).
        if let Some(sent) = unsafe { records::send_plain(file, &[one(from, bytes)], flags) } {
            return sent;
        }
        if routes(file) {
            return ask_routes(file, from, bytes, flags);
        }
        return kernel(false);
    }
    end(stream::send(file, &[one(from, bytes)], flags), kernel)
}

/// sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    file: c_int,
    from: *const c_void,
    bytes: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_bytes: libc::socklen_t,
) -> isize {
    let work = move |flags, had_rings| {
        in_kernel(file, had_rings, move || {
            real!(sendto(file => c_int, from => *const c_void, bytes => usize, flags => c_int,
                to => *const libc::sockaddr, to_bytes => libc::socklen_t) -> isize)
        })
    };
    let kernel =
        move |had_rings| closing::send(file, flags, || bytes, move |flags| work(flags, had_rings));
    // SAFETY: as of sendto(2).
    if let Some(sent) = unsafe { records::send_to(file, from, bytes, flags, to, to_bytes) } {
        return sent;
    }
    if to.is_null() {
        meet(file);
        if routes(file) {
            return ask_routes(file, from, bytes, flags);
        }
    }
    if !rings::has_rings(file) {
        return kernel(records::are_kept(file));
    }
    end(stream::send(file, &[one(from, bytes)], flags), kernel)
}

/// sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(file: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    let work = move |flags, had_rings| {
        in_kernel(file, had_rings, move || {
            real!(sendmsg(file => c_int, message => *const libc::msghdr,
                    flags => c_int) -> isize)
        })
    };
    if is_in_first_page(message.addr()) {
        return work(flags, true);
    }
    // SAFETY: the program says that a message's header is there.
    let header = unsafe { &*message };
    // SAFETY: as of sendmsg(2).
    if let Some(sent) = unsafe { records::send_message(file, header, flags) } {
        return sent;
    }
    let control = control(header);
    // Before the call: the receiver may use the descriptor as soon as it is sent.
    rings::bar_passed(control.unwrap_or_default());
    meet(file);
    let pieces = pieces(header.msg_iov, header.msg_iovlen as _);
    // The length is computed only if the kernel refuses the call.
    let kernel = move |had_rings| {
        closing::send(
            file,
            flags,
            || pieces.map_or(0, stream::whole),
            move |flags| work(flags, had_rings),
        )
    };
    match pieces {
        Some(pieces) if rings::has_rings(file) => {
            // A pair would take what a TCP socket refuses, such as SCM_RIGHTS.
            let judge = |control| judge_for_tcp(control).map_err(|error| error.raw_os_error());
            let done = match control.and_then(judge) {
                Ok(()) => stream::send(file, pieces, flags),
                Err(error) => Done::Failed(error),
            };
            end(done, kernel)
        }
        Some(_) => kernel(records::are_kept(file)),
        None => kernel(true),
    }
}

/// sendmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    file: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: as of sendmmsg(2).
    if let Some(sent) = unsafe { records::send_many(file, messages, count, flags) } {
        return sent;
    }
    let are_kept = records::keep_rings(file);
    in_kernel(file, are_kept, move || {
        real!(sendmmsg(file => c_int, messages => *mut libc::mmsghdr, count => c_uint,
            flags => c_int) -> c_int)
    })
}

/// Copies a file's bytes to a stream.
fn send_file(to: c_int, from: c_int, offset: Option<&mut i64>, count: usize) -> isize {
    // On the heap: the thread's stack may have 16 KiB.
    let mut buffer = vec![0_u8; count.min(FILE_BYTES)];
    let mut sent = 0;
    // The file's position stays where it is if the program passes an offset (sendfile(2)).
    let start = offset.as_ref().map(|offset| **offset);
    while sent < count {
        let room = (count - sent).min(buffer.len());
        let at = buffer.as_mut_ptr().cast::<c_void>();
        // The file's own position must advance by the bytes sent, not by those read.
        let place = match start {
            Some(start) => start + offset_of(sent),
            None => real!(lseek(from => c_int, 0 => i64, libc::SEEK_CUR => c_int) -> i64),
        };
        if place < 0 {
            // As the kernel's call: what has no position is no file to send from.
            if errno() == libc::ESPIPE {
                set_errno(libc::EINVAL);
            }
            return if sent > 0 { sent.cast_signed() } else { -1 };
        }
        let read = real!(pread(from => c_int, at => *mut c_void, room => usize, place => i64)
            -> isize);
        let Some(read) = usize::try_from(read).ok() else {
            return if sent > 0 { sent.cast_signed() } else { -1 };
        };
        if read == 0 {
            break;
        }
        let kernel = move |_| {
            real!(send(to => c_int, at.cast_const() => *const c_void, read => usize,
                0 => c_int) -> isize)
        };
        let done = end(stream::send(to, &[one(at, read)], 0), kernel);
        let Some(done) = usize::try_from(done).ok() else {
            if sent > 0 {
                break;
            }
            return -1;
        };
        sent += done;
        if start.is_none() {
            real!(lseek(from => c_int, offset_of(done) => i64, libc::SEEK_CUR => c_int) -> i64);
        }
        // A short write: the program may not want to wait, so the rest is left to its next call.
        if done < read {
            break;
        }
    }
    if let Some(offset) = offset {
        *offset += offset_of(sent);
    }
    sent.cast_signed()
}

/// A number of bytes as an offset of a file.
fn offset_of(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    count: usize,
) -> isize {
    if !rings::has_rings(to) {
        let sent = in_kernel(to, false, move || {
            real!(sendfile(to => c_int, from => c_int, offset => *mut libc::off_t, count => usize)
                -> isize)
        });
        return closing::note_sent(to, sent);
    }
    // SAFETY: the program says that a number is there, or gave none.
    send_file(to, from, unsafe { offset.as_mut() }, count)
}

/// sendfile(2), by its name for programs with large-file support; the types are identical.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    count: usize,
) -> isize {
    // SAFETY: as there.
    unsafe { sendfile(to, from, offset, count) }
}

/// splice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    bytes: usize,
    flags: c_uint,
) -> isize {
    // The kernel moves pages from and to the pair's own buffers.
    rings::bar(from);
    rings::bar(to);
    real!(splice(from => c_int, from_offset => *mut i64, to => c_int, to_offset => *mut i64,
        bytes => usize, flags => c_uint) -> isize)
}

/// Starts tracking a descriptor that this process got unnoticed and uses as a socket.
#[inline]
fn meet(file: c_int) {
    if let Some(record) = record(file)
        && record.kind() == Kind::Other
    {
        record.begin(Kind::Candidate);
    }
}

/// Pieces of a vector (IOV_MAX).
const PIECES_MAX: usize = 1024;
/// Bytes of a file copied at once.
const FILE_BYTES: usize = 16 << 10;
