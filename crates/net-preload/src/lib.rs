#![doc = include_str!("../README.md")]
//!
//! Top-down: this file has the functions that programs call; `epoll`, `poll` and `stream` what they
//! do where rings are concerned; `attachment` what is shared with the supervisor; `table` what is
//! known of each descriptor; `real` the functions behind ours.
//!
//! Must stay true: without a supervisor, and for all that is not a stream of the stack's, a call is
//! the C library's and costs a load more; whatever is not served by rings is given back to the
//! pair first. Any thread may call. Nothing unwinds into the program, nothing is printed, no thread
//! is started.

#![allow(unsafe_code, reason = "a C surface")]
#![allow(clippy::missing_safety_doc)] // They are the C library's functions, with its rules.

mod attachment;
mod epoll;
mod poll;
mod real;
mod stream;
mod table;

use poll::{beside_kernel, timespec};
use real::{real, set_errno};
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stream::Done;
use table::{Kind, kind, record};

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = {
    extern "C" fn loaded() {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, Some(has_child), Some(forked)) };
        stream::read_environment();
        table::begin_process();
    }
    loaded
};

/// Runs in a fork's parent.
unsafe extern "C" fn has_child() {
    table::note_child();
}

/// Runs in a fork's child.
unsafe extern "C" fn forked() {
    table::forked();
    epoll::forked();
    attachment::forked();
}

fn one(pointer: *const c_void, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: pointer.cast_mut(),
        iov_len: bytes,
    }
}

fn pieces<'p>(pointer: *const libc::iovec, count: usize) -> Option<stream::Pieces<'p>> {
    if pointer.is_null() || count > PIECES_MAX {
        return None;
    }
    // SAFETY: the program says that so many are there.
    Some(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Ends a call: by what the rings have said, or by the kernel's.
#[inline]
fn end(done: Done, kernel: impl FnOnce() -> isize) -> isize {
    match done {
        Done::Bytes(count) => count as isize,
        Done::Failed(error) => {
            set_errno(error);
            -1
        }
        Done::Kernel => kernel(),
    }
}

/// A call of the kernel's that may wait for one descriptor.
#[inline]
fn in_kernel<T>(descriptor: c_int, work: impl FnOnce() -> T) -> T {
    match record(descriptor).filter(|record| record.kind() == Kind::Candidate) {
        None => work(),
        Some(record) => {
            record.waits.fetch_add(1, Ordering::SeqCst);
            let done = work();
            record.waits.fetch_sub(1, Ordering::SeqCst);
            done
        }
    }
}

/// read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(file: c_int, to: *mut c_void, bytes: usize) -> isize {
    let kernel = move || {
        in_kernel(
            file,
            move || real!(read(file => c_int, to => *mut c_void, bytes => usize) -> isize),
        )
    };
    if !stream::has_rings(file) {
        return kernel();
    }
    end(stream::receive(file, &[one(to, bytes)], 0), kernel)
}

/// readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(file: c_int, to: *const libc::iovec, count: c_int) -> isize {
    let kernel = move || {
        in_kernel(
            file,
            move || real!(readv(file => c_int, to => *const libc::iovec, count => c_int) -> isize),
        )
    };
    match pieces(to, usize::try_from(count).unwrap_or(usize::MAX)) {
        Some(pieces) if stream::has_rings(file) => end(stream::receive(file, pieces, 0), kernel),
        _ => kernel(),
    }
}

/// recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(file: c_int, to: *mut c_void, bytes: usize, flags: c_int) -> isize {
    let kernel = move || {
        in_kernel(
            file,
            move || real!(recv(file => c_int, to => *mut c_void, bytes => usize, flags => c_int) -> isize),
        )
    };
    meet(file);
    if !stream::has_rings(file) {
        return kernel();
    }
    end(stream::receive(file, &[one(to, bytes)], flags), kernel)
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
    let kernel = move || {
        in_kernel(file, move || {
            real!(recvfrom(file => c_int, to => *mut c_void, bytes => usize, flags => c_int,
                from => *mut libc::sockaddr, from_bytes => *mut libc::socklen_t) -> isize)
        })
    };
    meet(file);
    if !stream::has_rings(file) {
        return kernel();
    }
    let done = stream::receive(file, &[one(to, bytes)], flags);
    if matches!(done, Done::Bytes(_)) && !from.is_null() && !from_bytes.is_null() {
        // A stream says no address.
        // SAFETY: the program says that a length is there.
        unsafe { *from_bytes = 0 };
    }
    end(done, kernel)
}

/// recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(file: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    let kernel = move || {
        in_kernel(
            file,
            move || real!(recvmsg(file => c_int, message => *mut libc::msghdr, flags => c_int) -> isize),
        )
    };
    meet(file);
    if message.is_null() || !stream::has_rings(file) {
        return kernel();
    }
    // SAFETY: the program says that a message's header is there.
    let header = unsafe { &mut *message };
    let Some(pieces) = pieces(header.msg_iov, header.msg_iovlen as usize) else {
        return kernel();
    };
    let done = stream::receive(file, pieces, flags);
    if matches!(done, Done::Bytes(_)) {
        header.msg_namelen = 0;
        header.msg_controllen = 0;
        header.msg_flags = 0;
    }
    end(done, kernel)
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
    stream::bar(file);
    in_kernel(file, move || {
        real!(recvmmsg(file => c_int, messages => *mut libc::mmsghdr, count => c_uint,
            flags => c_int, limit => *mut libc::timespec) -> c_int)
    })
}

/// write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, from: *const c_void, bytes: usize) -> isize {
    let kernel = move || {
        in_kernel(
            file,
            move || real!(write(file => c_int, from => *const c_void, bytes => usize) -> isize),
        )
    };
    if !stream::has_rings(file) {
        return kernel();
    }
    end(stream::send(file, &[one(from, bytes)], 0), kernel)
}

/// writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(file: c_int, from: *const libc::iovec, count: c_int) -> isize {
    let kernel = move || {
        in_kernel(
            file,
            move || real!(writev(file => c_int, from => *const libc::iovec, count => c_int) -> isize),
        )
    };
    match pieces(from, usize::try_from(count).unwrap_or(usize::MAX)) {
        Some(pieces) if stream::has_rings(file) => end(stream::send(file, pieces, 0), kernel),
        _ => kernel(),
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
    let kernel = move || {
        in_kernel(file, move || {
            real!(send(file => c_int, from => *const c_void, bytes => usize, flags => c_int)
                -> isize)
        })
    };
    meet(file);
    if !stream::has_rings(file) {
        return kernel();
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
    let kernel = move || {
        in_kernel(file, move || {
            real!(sendto(file => c_int, from => *const c_void, bytes => usize, flags => c_int,
                to => *const libc::sockaddr, to_bytes => libc::socklen_t) -> isize)
        })
    };
    if to.is_null() {
        meet(file);
    }
    if !stream::has_rings(file) {
        return kernel();
    }
    end(stream::send(file, &[one(from, bytes)], flags), kernel)
}

/// sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(file: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    let kernel = move || {
        in_kernel(
            file,
            move || real!(sendmsg(file => c_int, message => *const libc::msghdr, flags => c_int) -> isize),
        )
    };
    if message.is_null() {
        return kernel();
    }
    // SAFETY: the program says that a message's header is there.
    let header = unsafe { &*message };
    for passed in passed_on(header) {
        stream::bar(passed);
    }
    meet(file);
    match pieces(header.msg_iov, header.msg_iovlen as usize) {
        Some(pieces) if stream::has_rings(file) => end(stream::send(file, pieces, flags), kernel),
        _ => kernel(),
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
    stream::bar(file);
    in_kernel(file, move || {
        real!(sendmmsg(file => c_int, messages => *mut libc::mmsghdr, count => c_uint,
            flags => c_int) -> c_int)
    })
}

/// Descriptors in a message (SCM_RIGHTS): other processes will use them.
fn passed_on(header: &libc::msghdr) -> Vec<c_int> {
    let mut passed = Vec::new();
    if header.msg_control.is_null() || attachment::current().is_none() {
        return passed;
    }
    // SAFETY: the program says that its control messages are there.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            let of = &*control;
            if (of.cmsg_level, of.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (of.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(control);
                for index in 0..bytes / size_of::<c_int>() {
                    passed.push(data.cast::<c_int>().add(index).read_unaligned());
                }
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    passed
}

/// What a file holds, copied to a stream.
fn send_file(to: c_int, from: c_int, offset: Option<&mut i64>, count: usize) -> isize {
    let mut buffer = [0_u8; FILE_BYTES];
    let mut sent = 0;
    let start = match &offset {
        Some(offset) => Some(**offset),
        None => None,
    };
    while sent < count {
        let room = (count - sent).min(buffer.len());
        let at = buffer.as_mut_ptr().cast::<c_void>();
        // A stream's own position moves by what was sent, not by what was read.
        let place = match start {
            Some(start) => start + sent as i64,
            None => real!(lseek64(from => c_int, 0 => i64, libc::SEEK_CUR => c_int) -> i64),
        };
        let read = real!(pread64(from => c_int, at => *mut c_void, room => usize, place => i64)
            -> isize);
        let Some(read) = usize::try_from(read).ok() else {
            return if sent > 0 { sent as isize } else { -1 };
        };
        if read == 0 {
            break;
        }
        let kernel = move || {
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
            real!(lseek64(from => c_int, done as i64 => i64, libc::SEEK_CUR => c_int) -> i64);
        }
        if done < read {
            break;
        }
    }
    if let Some(offset) = offset {
        *offset += sent as i64;
    }
    sent as isize
}

/// sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut i64,
    count: usize,
) -> isize {
    if !stream::has_rings(to) {
        return in_kernel(to, move || {
            real!(sendfile64(to => c_int, from => c_int, offset => *mut i64, count => usize)
                -> isize)
        });
    }
    // SAFETY: the program says that a number is there, or gave none.
    send_file(to, from, unsafe { offset.as_mut() }, count)
}

/// sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    count: usize,
) -> isize {
    // SAFETY: as there; the types are one on all that this is built for.
    unsafe { sendfile64(to, from, offset.cast(), count) }
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
    stream::bar(from);
    stream::bar(to);
    real!(splice(from => c_int, from_offset => *mut i64, to => c_int, to_offset => *mut i64,
        bytes => usize, flags => c_uint) -> isize)
}

/// A descriptor that came to this process unseen, and is used as a socket.
#[inline]
fn meet(file: c_int) {
    if let Some(record) = record(file)
        && record.kind() == Kind::Other
    {
        record.begin(Kind::Candidate);
    }
}

/// A new descriptor.
fn new(file: c_int, kind: Kind) -> c_int {
    if let Some(record) = record(file) {
        record.begin(kind);
    }
    file
}

/// socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let made = real!(socket(domain => c_int, kind => c_int, protocol => c_int) -> c_int);
    let is_inet = matches!(domain, libc::AF_INET | libc::AF_INET6);
    let is_stream = kind & 0xf == libc::SOCK_STREAM;
    new(
        made,
        if is_inet && is_stream {
            Kind::Candidate
        } else {
            Kind::Barred
        },
    )
}

/// socketpair(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    let made = real!(socketpair(domain => c_int, kind => c_int, protocol => c_int,
        pair => *mut c_int) -> c_int);
    if made == 0 {
        // SAFETY: the kernel has just written both.
        let both = unsafe { [*pair, *pair.add(1)] };
        for end in both {
            new(end, Kind::Barred);
        }
    }
    made
}

/// accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(
    file: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
) -> c_int {
    let accepted = real!(accept(file => c_int, from => *mut libc::sockaddr,
        from_bytes => *mut libc::socklen_t) -> c_int);
    new(accepted, Kind::Candidate)
}

/// accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    file: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
    flags: c_int,
) -> c_int {
    let accepted = real!(accept4(file => c_int, from => *mut libc::sockaddr,
        from_bytes => *mut libc::socklen_t, flags => c_int) -> c_int);
    new(accepted, Kind::Candidate)
}

/// connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(
    file: c_int,
    to: *const libc::sockaddr,
    bytes: libc::socklen_t,
) -> c_int {
    if matches!(kind(file), Kind::Ring | Kind::Inherited) {
        stream::give_back(file);
    }
    real!(connect(file => c_int, to => *const libc::sockaddr, bytes => libc::socklen_t) -> c_int)
}

/// shutdown(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(file: c_int, how: c_int) -> c_int {
    match record(file) {
        Some(record)
            if record.kind() == Kind::Ring
                && how == libc::SHUT_WR
                && record.waits.load(Ordering::SeqCst) == 0 =>
        {
            record.add(table::SHUT_WRITE);
        }
        // The kernel knows what may still be read then, and wakes who waits.
        _ => stream::bar(file),
    }
    real!(shutdown(file => c_int, how => c_int) -> c_int)
}

/// setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    file: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: libc::socklen_t,
) -> c_int {
    if let Some(record) = record(file) {
        record.forget_patience();
    }
    real!(setsockopt(file => c_int, level => c_int, name => c_int, value => *const c_void,
        bytes => libc::socklen_t) -> c_int)
}

/// Before a number is let go of, or another file takes its place.
fn leave(file: c_int) {
    let Some(record) = record(file) else {
        return;
    };
    let kind = record.kind();
    if kind == Kind::Other || !table::is_own_process() {
        return;
    }
    match kind {
        Kind::Ring => stream::leave(file, record),
        Kind::Epoll => epoll::close(file),
        _ => {}
    }
    record.begin(Kind::Other);
}

/// close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(file: c_int) -> c_int {
    if attachment::is_own(file) {
        set_errno(libc::EBADF);
        return -1;
    }
    leave(file);
    real!(close(file => c_int) -> c_int)
}

/// close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        // Ours are so anyway.
        return real!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int);
    }
    let highest = last.min(table::DESCRIPTORS as c_uint - 1);
    for file in first..=highest {
        leave(file.cast_signed());
    }
    let mut own: Vec<c_uint> = attachment::own().map(c_int::cast_unsigned).collect();
    own.sort_unstable();
    let mut from = first;
    for file in own.into_iter().filter(|own| (first..=last).contains(own)) {
        if file > from {
            real!(close_range(from => c_uint, file - 1 => c_uint, flags => c_int) -> c_int);
        }
        from = file + 1;
    }
    if from > last && first <= last {
        return 0;
    }
    real!(close_range(from => c_uint, last => c_uint, flags => c_int) -> c_int)
}

/// closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: numbers only.
    unsafe { close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0) };
}

/// Before a descriptor gets a second number.
fn twin(file: c_int) -> bool {
    if attachment::is_own(file) {
        set_errno(libc::EBADF);
        return false;
    }
    stream::bar(file);
    true
}

/// dup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(file: c_int) -> c_int {
    if !twin(file) {
        return -1;
    }
    let made = real!(dup(file => c_int) -> c_int);
    second(file, made)
}

/// dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(file: c_int, to: c_int) -> c_int {
    if !twin(file) || to != file && attachment::is_own(to) {
        set_errno(libc::EBADF);
        return -1;
    }
    if to != file {
        leave(to);
    }
    let made = real!(dup2(file => c_int, to => c_int) -> c_int);
    if made == file {
        return made;
    }
    second(file, made)
}

/// dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(file: c_int, to: c_int, flags: c_int) -> c_int {
    if !twin(file) || attachment::is_own(to) {
        set_errno(libc::EBADF);
        return -1;
    }
    if to != file {
        leave(to);
    }
    let made = real!(dup3(file => c_int, to => c_int, flags => c_int) -> c_int);
    second(file, made)
}

/// A second number for what `file` stands for.
fn second(file: c_int, made: c_int) -> c_int {
    if kind(file) == Kind::Other && kind(made) == Kind::Other || !table::is_own_process() {
        return made;
    }
    new(made, twins_kind(file))
}

/// Kind of a second number.
fn twins_kind(file: c_int) -> Kind {
    match kind(file) {
        Kind::Other => Kind::Other,
        _ => Kind::Barred,
    }
}

/// fcntl(2). Arguments behind the second come as numbers, as C's variable arguments do here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(file: c_int, what: c_int, argument: c_ulong) -> c_int {
    let kernel = move || real!(fcntl64(file => c_int, what => c_int, argument => c_ulong) -> c_int);
    match what {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            if !twin(file) {
                return -1;
            }
            second(file, kernel())
        }
        // Signals come for what happens to the pair.
        libc::F_SETOWN | F_SETSIG | F_SETOWN_EX => {
            stream::bar(file);
            kernel()
        }
        _ => kernel(),
    }
}

/// fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(file: c_int, what: c_int, argument: c_ulong) -> c_int {
    // SAFETY: as there.
    unsafe { fcntl64(file, what, argument) }
}

/// ioctl(2). The argument comes as a number, as C's variable arguments do here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if kind(file) == Kind::Ring {
        if request == libc::FIONREAD
            && !argument.is_null()
            && let Some(bytes) = stream::readable_bytes(file)
        {
            // SAFETY: the program says that a number is there.
            unsafe { *argument.cast::<c_int>() = bytes };
            return 0;
        }
        if request == FIOASYNC {
            stream::bar(file);
        }
    }
    real!(ioctl(file => c_int, request => c_ulong, argument => *mut c_void) -> c_int)
}

/// fdopen(3): the C library reads and writes it by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(file: c_int, mode: *const c_char) -> *mut libc::FILE {
    stream::bar(file);
    real!(fdopen(file => c_int, mode => *const c_char) -> *mut libc::FILE)
}

fn polled<'p>(pointer: *mut libc::pollfd, count: libc::nfds_t) -> &'p mut [libc::pollfd] {
    if pointer.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the program says that so many are there.
    unsafe { std::slice::from_raw_parts_mut(pointer, count as usize) }
}

/// poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(
    files: *mut libc::pollfd,
    count: libc::nfds_t,
    millis: c_int,
) -> c_int {
    let all = polled(files, count);
    if !poll::concerns(all) {
        let descriptors = all.iter().map(|polled| polled.fd);
        return beside_kernel(descriptors, || {
            real!(poll(files => *mut libc::pollfd, count => libc::nfds_t, millis => c_int)
                -> c_int)
        });
    }
    let limit = u64::try_from(millis).ok().map(Duration::from_millis);
    poll::poll(all, limit, ptr::null())
}

/// ppoll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    files: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let all = polled(files, count);
    if !poll::concerns(all) {
        let descriptors = all.iter().map(|polled| polled.fd);
        return beside_kernel(descriptors, || {
            real!(ppoll(files => *mut libc::pollfd, count => libc::nfds_t,
                limit => *const libc::timespec, mask => *const libc::sigset_t) -> c_int)
        });
    }
    poll::poll(all, duration(limit), mask)
}

/// `poll` of programs that are built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    files: *mut libc::pollfd,
    count: libc::nfds_t,
    millis: c_int,
    bytes: usize,
) -> c_int {
    check(count as usize * size_of::<libc::pollfd>(), bytes);
    // SAFETY: as of poll(2).
    unsafe { poll(files, count, millis) }
}

/// `ppoll` of programs that are built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    files: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
    bytes: usize,
) -> c_int {
    check(count as usize * size_of::<libc::pollfd>(), bytes);
    // SAFETY: as of ppoll(2).
    unsafe { ppoll(files, count, limit, mask) }
}

/// `read` of programs that are built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
) -> isize {
    check(bytes, room);
    // SAFETY: as of read(2).
    unsafe { read(file, to, bytes) }
}

/// `recv` of programs that are built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
    flags: c_int,
) -> isize {
    check(bytes, room);
    // SAFETY: as of recv(2).
    unsafe { recv(file, to, bytes, flags) }
}

/// `recvfrom` of programs that are built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
) -> isize {
    check(bytes, room);
    // SAFETY: as of recvfrom(2).
    unsafe { recvfrom(file, to, bytes, flags, from, from_bytes) }
}

/// What the C library does where a buffer is too short: the program ends.
fn check(bytes: usize, room: usize) {
    if bytes > room {
        std::process::abort();
    }
}

fn duration(limit: *const libc::timespec) -> Option<Duration> {
    // SAFETY: the program says that a time is there, or gave none.
    let limit = unsafe { limit.as_ref() }?;
    let seconds = u64::try_from(limit.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(limit.tv_nsec).unwrap_or(0).min(999_999_999);
    Some(Duration::new(seconds, nanos))
}

/// select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *mut libc::timeval,
) -> c_int {
    // SAFETY: the program says that sets are there, or gave none.
    let sets = unsafe { [read.as_mut(), write.as_mut(), except.as_mut()] };
    let [one, two, three] = &sets;
    if !poll::set_concerns(count, [one, two, three]) {
        return beside_kernel(poll::members(count, [one, two, three]), || {
            real!(select(count => c_int, read => *mut libc::fd_set, write => *mut libc::fd_set,
                except => *mut libc::fd_set, limit => *mut libc::timeval) -> c_int)
        });
    }
    // SAFETY: as above.
    let given = unsafe { limit.as_mut() };
    let patience = given.as_deref().map(|given| {
        let seconds = Duration::from_secs(u64::try_from(given.tv_sec).unwrap_or(0));
        seconds + Duration::from_micros(u64::try_from(given.tv_usec).unwrap_or(0))
    });
    let begun = std::time::Instant::now();
    let found = poll::select(count, sets, patience, ptr::null());
    if let (Some(given), Some(patience)) = (given, patience) {
        // Linux says what is left.
        let left = timespec(patience.saturating_sub(begun.elapsed()));
        given.tv_sec = left.tv_sec;
        given.tv_usec = (left.tv_nsec / 1000) as libc::suseconds_t;
    }
    found
}

/// pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    // SAFETY: the program says that sets are there, or gave none.
    let sets = unsafe { [read.as_mut(), write.as_mut(), except.as_mut()] };
    let [one, two, three] = &sets;
    if !poll::set_concerns(count, [one, two, three]) {
        return beside_kernel(poll::members(count, [one, two, three]), || {
            real!(pselect(count => c_int, read => *mut libc::fd_set, write => *mut libc::fd_set,
                except => *mut libc::fd_set, limit => *const libc::timespec,
                mask => *const libc::sigset_t) -> c_int)
        });
    }
    poll::select(count, sets, duration(limit), mask)
}

/// epoll_create(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    let made = real!(epoll_create(size => c_int) -> c_int);
    new(made, Kind::Other)
}

/// epoll_create1(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    let made = real!(epoll_create1(flags => c_int) -> c_int);
    new(made, Kind::Other)
}

/// epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    file: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the program says that an event is there, or gave none.
    let event = (!event.is_null()).then(|| unsafe { ptr::read_unaligned(event) });
    epoll::change(epoll, operation, file, event)
}

fn events<'e>(
    pointer: *mut libc::epoll_event,
    count: c_int,
) -> Option<&'e mut [libc::epoll_event]> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0)?;
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the program says that there is room for so many; the type has the ABI's alignment.
    Some(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

/// epoll_pwait(2), with or without a mask.
struct ByMillis {
    epoll: c_int,
    millis: c_int,
    mask: *const libc::sigset_t,
}

impl epoll::KernelWait for ByMillis {
    fn wait(&self, events: &mut [libc::epoll_event], limit: Option<Duration>) -> c_int {
        let millis = match limit {
            Some(limit) if limit.as_micros() < 1000 * self.millis as u128 => {
                // Up, so as not to wake too early.
                limit.as_micros().div_ceil(1000) as c_int
            }
            _ => self.millis,
        };
        let (to, count) = (events.as_mut_ptr(), events.len() as c_int);
        real!(epoll_pwait(self.epoll => c_int, to => *mut libc::epoll_event, count => c_int,
            millis => c_int, self.mask => *const libc::sigset_t) -> c_int)
    }

    fn limit(&self) -> Option<Duration> {
        u64::try_from(self.millis).ok().map(Duration::from_millis)
    }
}

/// epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    to: *mut libc::epoll_event,
    count: c_int,
    millis: c_int,
) -> c_int {
    // SAFETY: as there.
    unsafe { epoll_pwait(epoll, to, count, millis, ptr::null()) }
}

/// epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    to: *mut libc::epoll_event,
    count: c_int,
    millis: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    let Some(events) = events(to, count) else {
        return real!(epoll_pwait(epoll => c_int, to => *mut libc::epoll_event, count => c_int,
            millis => c_int, mask => *const libc::sigset_t) -> c_int);
    };
    let kernel = ByMillis {
        epoll,
        millis,
        mask,
    };
    epoll::wait(epoll, events, &kernel)
}

/// epoll_pwait2(2).
struct ByTime {
    epoll: c_int,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
}

impl epoll::KernelWait for ByTime {
    fn wait(&self, events: &mut [libc::epoll_event], limit: Option<Duration>) -> c_int {
        let limit = limit.map(timespec);
        let limit = limit.as_ref().map_or(self.limit, ptr::from_ref);
        let (to, count) = (events.as_mut_ptr(), events.len() as c_int);
        real!(epoll_pwait2(self.epoll => c_int, to => *mut libc::epoll_event, count => c_int,
            limit => *const libc::timespec, self.mask => *const libc::sigset_t) -> c_int)
    }

    fn limit(&self) -> Option<Duration> {
        duration(self.limit)
    }
}

/// epoll_pwait2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    to: *mut libc::epoll_event,
    count: c_int,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let kernel = ByTime { epoll, limit, mask };
    let Some(events) = events(to, count) else {
        return real!(epoll_pwait2(epoll => c_int, to => *mut libc::epoll_event, count => c_int,
            limit => *const libc::timespec, mask => *const libc::sigset_t) -> c_int);
    };
    epoll::wait(epoll, events, &kernel)
}

/// Pieces of a vector (IOV_MAX).
const PIECES_MAX: usize = 1024;
/// Bytes of a file that are copied at once.
const FILE_BYTES: usize = 16 << 10;
const CLOSE_RANGE_CLOEXEC: c_int = 4;
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const FIOASYNC: c_ulong = 0x5452;
