//! Intercepted calls that create, close or query descriptors.

use crate::real::{FIONREAD, flags_of, real, set_errno};
use crate::table::{self, Kind, kind, new, record};
use crate::{accepting, attachment, closing, interest, records, rings, stream};
use sidecore_bare::width::ToUsize;
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::Ordering;

/// socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let made = real!(socket(domain => c_int, kind => c_int, protocol => c_int) -> c_int);
    let is_inet = matches!(domain, libc::AF_INET | libc::AF_INET6);
    let is_udp = kind & 0xf == libc::SOCK_DGRAM && matches!(protocol, 0 | libc::IPPROTO_UDP);
    let first = match kind & 0xf {
        libc::SOCK_STREAM if is_inet => Kind::Candidate,
        _ if is_inet && is_udp => rings::datagrams_kind(),
        _ => Kind::Barred,
    };
    new(made, first);
    if is_inet
        && is_udp
        && let Some(record) = record(made)
    {
        record.add(table::DATAGRAMS);
    }
    if (domain, protocol) == (libc::AF_NETLINK, libc::NETLINK_ROUTE)
        && let Some(record) = record(made)
    {
        record.add(table::ROUTES);
    }
    made
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
        // Local pairs of the program are no sessions, and may be passed on at any time.
        let both = unsafe { [*pair, *pair.add(1)] };
        for end in both {
            new(end, Kind::Barred);
        }
    }
    made
}

/// listen(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(file: c_int, backlog: c_int) -> c_int {
    accepting::listen(file, backlog)
}

/// accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(
    file: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
) -> c_int {
    // SAFETY: as there.
    if let Some(accepted) = unsafe { accepting::by_itself(file, from, from_bytes, 0) } {
        return accepted;
    }
    let accepted = real!(accept(file => c_int, from => *mut libc::sockaddr,
        from_bytes => *mut libc::socklen_t) -> c_int);
    accepting::accepted(file, accepted, Kind::Candidate)
}

/// accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    file: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: as there.
    if let Some(accepted) = unsafe { accepting::by_itself(file, from, from_bytes, flags) } {
        return accepted;
    }
    let accepted = real!(accept4(file => c_int, from => *mut libc::sockaddr,
        from_bytes => *mut libc::socklen_t, flags => c_int) -> c_int);
    accepting::accepted(file, accepted, Kind::Candidate)
}

/// epoll_create(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    let made = real!(epoll_create(size => c_int) -> c_int);
    new(made, Kind::Instance)
}

/// epoll_create1(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    let made = real!(epoll_create1(flags => c_int) -> c_int);
    new(made, Kind::Instance)
}

/// connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(
    file: c_int,
    to: *const libc::sockaddr,
    bytes: libc::socklen_t,
) -> c_int {
    if matches!(kind(file), Kind::Ring | Kind::Inherited) {
        rings::give_back(file);
    }
    // SAFETY: as of connect(2).
    if let Some(result) = unsafe { accepting::connect(file, to, bytes) } {
        return result;
    }
    real!(connect(file => c_int, to => *const libc::sockaddr, bytes => libc::socklen_t) -> c_int)
}

/// shutdown(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(file: c_int, how: c_int) -> c_int {
    match record(file) {
        Some(record)
            if record.kind() == Kind::Ring
                && !record.has(table::DATAGRAMS)
                && how == libc::SHUT_WR
                && record.waits.load(Ordering::SeqCst) == 0 =>
        {
            record.add(table::SHUT_WRITE);
        }
        // The kernel knows the bytes that may still be read then, and wakes waiting threads.
        _ => rings::bar(file),
    }
    let result = real!(shutdown(file => c_int, how => c_int) -> c_int);
    if result == 0
        && how != libc::SHUT_RD
        && let Some(record) = record(file)
    {
        match record.kind() {
            // As on TCP, edge-triggered polls report the state anew.
            Kind::Ring => interest::nudge(record),
            Kind::Barred => {
                record.add(table::SHUT_WRITE);
                closing::poll_anew(file, record);
            }
            _ => {}
        }
    }
    result
}

/// getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    file: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    bytes: *mut libc::socklen_t,
) -> c_int {
    let result = real!(getsockopt(file => c_int, level => c_int, name => c_int,
        value => *mut c_void, bytes => *mut libc::socklen_t) -> c_int);
    if result == 0 && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        // SAFETY: the call has just written that many bytes.
        let error = unsafe {
            let is_whole = (*bytes).to_usize() >= size_of::<c_int>();
            is_whole.then(|| value.cast::<c_int>().read_unaligned())
        };
        if error.is_some_and(|error| error != 0) {
            closing::note_error(file);
        }
    }
    result
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
    let is_size = [libc::SO_SNDBUF, libc::SO_RCVBUF].contains(&name);
    if level == libc::SOL_SOCKET && is_size && kind(file) == Kind::Ring {
        // A ring may hold more than the program allows now.
        rings::bar(file);
    }
    if let Some(record) = record(file) {
        rings::judge_option(file, record, level, name);
        // SO_RCVTIMEO or SO_SNDTIMEO may be among them; both are read again when needed.
        record.forget_patience();
    }
    let result = real!(setsockopt(file => c_int, level => c_int, name => c_int,
        value => *const c_void, bytes => libc::socklen_t) -> c_int);
    if result == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER)
        && let Some(record) = record(file)
    {
        // SAFETY: the kernel has just read one.
        let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
        match linger.l_onoff != 0 && linger.l_linger > 0 {
            true => record.add(table::LINGERS),
            false => record.take_off(table::LINGERS),
        }
    }
    result
}

/// Before a descriptor is closed or replaced.
fn leave(file: c_int) {
    let Some(record) = record(file) else {
        return;
    };
    let kind = record.kind();
    // A child of vfork(2) closes its own descriptors, with its parent's memory.
    if kind == Kind::Other || !table::is_own_process() {
        return;
    }
    match kind {
        Kind::Ring => rings::leave(file, record),
        // A duplicate keeps the kernel's instance.
        Kind::Epoll | Kind::Instance if record.has(table::ALIASED) => {
            let alias = record.data.load(Ordering::Relaxed);
            rings::bar(file);
            if let Some(alias) = c_int::try_from(alias).ok()
                && table::instance(alias) == file
            {
                new(alias, Kind::Barred);
            }
        }
        Kind::Epoll => interest::close(file),
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
    // Before the close: afterwards the number has no inode.
    let listener = accepting::listener(file);
    let lingering = accepting::lingering(file);
    leave(file);
    let closed = real!(close(file => c_int) -> c_int);
    if let Some(listener) = listener {
        accepting::tell_closed(listener);
    }
    if let Some(lingering) = lingering {
        accepting::wait_for_end(lingering);
    }
    closed
}

/// close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        // The library's descriptors have that flag anyway.
        return real!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int);
    }
    let highest = last.min(HIGHEST);
    let mut listeners = Vec::new();
    for file in first..=highest {
        let file = file.cast_signed();
        listeners.extend(accepting::listener(file));
        leave(file);
    }
    let closed = close_around(first, last, flags);
    for listener in listeners {
        accepting::tell_closed(listener);
    }
    closed
}

/// Closes a range but for the library's own descriptors.
fn close_around(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let mut own: Vec<c_uint> = attachment::own().map(c_int::cast_unsigned).collect();
    // The range is closed piece by piece, around each of them.
    own.sort_unstable();
    let mut from = first;
    for file in own.into_iter().filter(|own| (first..=last).contains(own)) {
        if file > from {
            real!(close_range(from => c_uint, file - 1 => c_uint, flags => c_int) -> c_int);
        }
        from = file + 1;
    }
    // Its last descriptor was the library's, so nothing is left to close.
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

/// Before a descriptor is duplicated.
fn twin(file: c_int) -> bool {
    if attachment::is_own(file) {
        set_errno(libc::EBADF);
        return false;
    }
    if !may_have_alias(file) {
        rings::bar(file);
    }
    true
}

/// True for an epoll instance without a duplicate: one is supported (programs register by it and
/// wait by the other).
fn may_have_alias(file: c_int) -> bool {
    let is_instance = matches!(kind(file), Kind::Instance | Kind::Epoll);
    is_instance && record(file).is_some_and(|record| !record.has(table::ALIASED))
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
    // dup2 of a descriptor to itself changes nothing, and is allowed.
    if !twin(file) || to != file && attachment::is_own(to) {
        set_errno(libc::EBADF);
        return -1;
    }
    let listener = leave_replaced(file, to);
    let made = real!(dup2(file => c_int, to => c_int) -> c_int);
    if made == file {
        return made;
    }
    replaced(second(file, made), listener)
}

/// dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(file: c_int, to: c_int, flags: c_int) -> c_int {
    if !twin(file) || attachment::is_own(to) {
        set_errno(libc::EBADF);
        return -1;
    }
    // Unknown flags are refused.
    let listener = match flags & !libc::O_CLOEXEC {
        0 => leave_replaced(file, to),
        _ => None,
    };
    let made = real!(dup3(file => c_int, to => c_int, flags => c_int) -> c_int);
    replaced(second(file, made), listener)
}

/// Before a duplicate of `file` takes the place of `to`: the listener that was there. Nothing is
/// done before a call that fails, which leaves both as they are.
fn leave_replaced(file: c_int, to: c_int) -> Option<u32> {
    if to == file || kind(to) == Kind::Other || flags_of(file, libc::F_GETFD).is_none() {
        return None;
    }
    let listener = accepting::listener(to);
    leave(to);
    listener
}

/// Reports that a duplicate has taken the place of a listener.
fn replaced(made: c_int, listener: Option<u32>) -> c_int {
    if let Some(listener) = listener {
        accepting::tell_closed(listener);
    }
    made
}

/// Records a duplicate of `file`.
fn second(file: c_int, made: c_int) -> c_int {
    if kind(file) == Kind::Other && kind(made) == Kind::Other || !table::is_own_process() {
        return made;
    }
    if may_have_alias(file)
        && let (Some(first), Some(second)) = (record(file), record(made))
    {
        first
            .data
            .store(u64::from(made.cast_unsigned()), Ordering::Relaxed);
        first.add(table::ALIASED);
        second.begin(Kind::Alias);
        // Before anything else looks: the record is this thread's until the call returns.
        second.number.store(file.cast_unsigned(), Ordering::Relaxed);
        return made;
    }
    let flags = record(file).map_or(0, |record| record.flags.load(Ordering::Acquire));
    new(made, twins_kind(file));
    if let Some(record) = record(made) {
        let kept = table::LISTENS | table::ROUTES | table::LINGERS | table::DATAGRAMS;
        record.add(flags & kept);
    }
    made
}

/// Kind of a duplicate.
fn twins_kind(file: c_int) -> Kind {
    match kind(file) {
        Kind::Other => Kind::Other,
        _ => Kind::Barred,
    }
}

/// fcntl(2). The third argument is passed as a number, which matches C's variable arguments here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(file: c_int, what: c_int, argument: c_ulong) -> c_int {
    control(
        file,
        what,
        move || real!(fcntl(file => c_int, what => c_int, argument => c_ulong) -> c_int),
    )
}

/// fcntl(2), by its name for programs with large-file support.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(file: c_int, what: c_int, argument: c_ulong) -> c_int {
    control(
        file,
        what,
        move || real!(fcntl64(file => c_int, what => c_int, argument => c_ulong) -> c_int),
    )
}

fn control(file: c_int, what: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    match what {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            if !twin(file) {
                return -1;
            }
            second(file, kernel())
        }
        // Signals are sent for events of the pair.
        libc::F_SETOWN | F_SETSIG | F_SETOWN_EX => {
            rings::bar(file);
            kernel()
        }
        _ => kernel(),
    }
}

/// ioctl(2). The argument is passed as a number, which matches C's variable arguments here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if kind(file) == Kind::Inherited && request == FIONREAD {
        // The parent's rings have some of the bytes.
        rings::give_back(file);
    }
    if kind(file) == Kind::Ring {
        if request == FIONREAD
            && !argument.is_null()
            && let Some(bytes) =
                records::readable_bytes(file).or_else(|| stream::readable_bytes(file))
        {
            // SAFETY: the program says that a number is there.
            unsafe { *argument.cast::<c_int>() = bytes };
            return 0;
        }
        // As for F_SETOWN: signals follow the pair.
        if request == FIOASYNC {
            rings::bar(file);
        }
    }
    real!(ioctl(file => c_int, request => c_ulong, argument => *mut c_void) -> c_int)
}

/// fdopen(3): the C library reads and writes it internally.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(file: c_int, mode: *const c_char) -> *mut libc::FILE {
    rings::bar(file);
    real!(fdopen(file => c_int, mode => *const c_char) -> *mut libc::FILE)
}

/// The highest descriptor with a record.
const HIGHEST: c_uint = table::DESCRIPTORS as c_uint - 1;
const CLOSE_RANGE_CLOEXEC: c_int = 4;
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const FIOASYNC: c_ulong = 0x5452;
