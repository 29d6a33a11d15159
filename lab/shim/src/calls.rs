//! Calls that carry no data.

#![allow(unsafe_code)] // the C surface: reads and writes what C's pointers point to

use crate::abi::User;
use crate::shim::{self, c_result};
use crate::{address, shim::Shim};
use libc::{
    c_int, c_uint, c_ulong, c_void, epoll_event, loff_t, nfds_t, pollfd, size_t, sockaddr,
    socklen_t, ssize_t,
};
use sidecore_net_drill::SIOCOUTQNSD;
use sidecore_net_drill::files::{Answer, Errno, Files};

/// Descriptors that one poll(2) may look at.
const POLL_MAX: usize = 4096;

/// True if calls of the descriptor block.
pub(crate) fn waits(files: &Files, fd: c_int) -> bool {
    files.is_non_blocking(fd) == Ok(false)
}

/// socket(2).
pub(crate) unsafe extern "C" fn socket(
    user: User,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: C's promise on `user`.
    let shim = unsafe { shim::of(user) };
    c_result(shim.and_then(|shim| shim.lock().files.socket(domain, kind, protocol)))
}

/// bind(2).
pub(crate) unsafe extern "C" fn bind(
    user: User,
    fd: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let done = || {
        // SAFETY: C's promises on `user` and the address.
        let (shim, to) = unsafe { (shim::of(user)?, address::read(to, len)?) };
        shim.lock().files.bind(fd, to).map(|()| 0)
    };
    c_result(done())
}

/// listen(2).
pub(crate) unsafe extern "C" fn listen(user: User, fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: C's promise on `user`.
    let shim = unsafe { shim::of(user) };
    c_result(shim.and_then(|shim| shim.lock().files.listen(fd, backlog).map(|()| 0)))
}

/// accept(2).
pub(crate) unsafe extern "C" fn accept(
    user: User,
    fd: c_int,
    out: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let done = || {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        let (accepted, peer) =
            shim.call(|files| waits(files, fd), None, |files| files.accept(fd, 0))?;
        let v6 = shim.lock().files.is_v6(accepted)?;
        // SAFETY: C's promise on the address and its length.
        unsafe { address::write(peer, v6, out, len) };
        Ok(accepted)
    };
    c_result(done())
}

/// connect(2).
pub(crate) unsafe extern "C" fn connect(
    user: User,
    fd: c_int,
    to: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let done = || {
        // SAFETY: C's promises on `user` and the address.
        let (shim, to) = unsafe { (shim::of(user)?, address::read(to, len)?) };
        let mut begun = false;
        let connected = shim.call(
            |files| waits(files, fd),
            None,
            |files| {
                if std::mem::replace(&mut begun, true) {
                    files.connection(fd)
                } else {
                    files.connect(fd, to)
                }
            },
        );
        connected.map(|()| 0)
    };
    c_result(done())
}

/// close(2).
pub(crate) unsafe extern "C" fn close(user: User, fd: c_int) -> c_int {
    // SAFETY: C's promise on `user`.
    let shim = unsafe { shim::of(user) };
    c_result(shim.and_then(|shim| {
        shim.call(|_| false, None, |files| files.close(fd))
            .map(|()| 0)
    }))
}

/// shutdown(2).
pub(crate) unsafe extern "C" fn shutdown(user: User, fd: c_int, how: c_int) -> c_int {
    // SAFETY: C's promise on `user`.
    let shim = unsafe { shim::of(user) };
    c_result(shim.and_then(|shim| {
        let shut = shim.call(|_| false, None, |files| files.shutdown(fd, how));
        shut.map(|()| 0)
    }))
}

/// fcntl(2): `F_GETFL` and `F_SETFL` for `O_NONBLOCK`.
pub(crate) unsafe extern "C" fn fcntl(
    user: User,
    fd: c_int,
    command: c_int,
    argument: c_ulong,
) -> c_int {
    let done = || -> Answer<c_int> {
        // SAFETY: C's promise on `user`.
        let mut state = unsafe { shim::of(user) }?.lock();
        match command {
            libc::F_GETFL => {
                let flags = if state.files.is_non_blocking(fd)? {
                    libc::O_NONBLOCK
                } else {
                    0
                };
                Ok(libc::O_RDWR | flags)
            }
            libc::F_SETFL => {
                let on = argument & libc::O_NONBLOCK as c_ulong != 0;
                state.files.set_non_blocking(fd, on).map(|()| 0)
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    };
    c_result(done())
}

/// ioctl(2): bytes unread, unacknowledged or unsent; and `FIONBIO`.
pub(crate) unsafe extern "C" fn ioctl(
    user: User,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    let done = || -> Answer<c_int> {
        // SAFETY: C's promise on `user`.
        let mut state = unsafe { shim::of(user) }?.lock();
        let place = argument.cast::<c_int>();
        if place.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let number = match request {
            request if request == libc::FIONREAD as c_ulong => state.files.unread(fd)?,
            request if request == libc::TIOCOUTQ as c_ulong => state.files.outstanding(fd)?,
            request if request == SIOCOUTQNSD as c_ulong => state.files.unsent(fd)?,
            request if request == libc::FIONBIO as c_ulong => {
                // SAFETY: C says that this request points to a number.
                let on = unsafe { place.read_unaligned() } != 0;
                return state.files.set_non_blocking(fd, on).map(|()| 0);
            }
            _ => return Err(Errno(libc::ENOTTY)),
        };
        // SAFETY: C says that these requests point to room for a number.
        unsafe { place.write_unaligned(number as c_int) };
        Ok(0)
    };
    c_result(done())
}

/// poll(2).
pub(crate) unsafe extern "C" fn poll(
    user: User,
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    let done = || -> Answer<usize> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        let count = count as usize;
        if count > POLL_MAX || fds.is_null() && count > 0 {
            return Err(Errno(libc::EINVAL));
        }
        let fds = if count == 0 {
            &mut []
        } else {
            // SAFETY: not null, and C promises `count` entries.
            unsafe { std::slice::from_raw_parts_mut(fds, count) }
        };
        shim.poll(fds, timeout_ms)
    };
    c_result(done())
}

impl Shim {
    /// End of a wait of `timeout_ms`; none for one without end.
    fn until_ns(&self, timeout_ms: c_int) -> Option<u64> {
        u64::try_from(timeout_ms).ok().map(|ms| {
            let now_ns = self.lock().files.host().now_ns();
            now_ns.saturating_add(ms * 1_000_000)
        })
    }

    fn epoll_wait(&self, epfd: c_int, most: usize, timeout_ms: c_int) -> Answer<Vec<(u32, u64)>> {
        let look = |files: &mut Files| {
            let ready = files.epoll_wait(epfd, most)?;
            if ready.is_empty() {
                return Err(Errno(libc::EAGAIN));
            }
            Ok(ready)
        };
        match self.call(|_| timeout_ms != 0, self.until_ns(timeout_ms), look) {
            Err(Errno(libc::EAGAIN)) => Ok(Vec::new()),
            other => other,
        }
    }

    fn poll(&self, fds: &mut [pollfd], timeout_ms: c_int) -> Answer<usize> {
        let until_ns = self.until_ns(timeout_ms);
        let look = |files: &mut Files| {
            let mut ready = 0;
            for one in fds.iter_mut() {
                // A negative descriptor is left out.
                one.revents = match one.fd {
                    ..0 => 0,
                    fd => files.poll(fd, one.events).unwrap_or(libc::POLLNVAL),
                };
                ready += usize::from(one.revents != 0);
            }
            if ready > 0 {
                Ok(ready)
            } else {
                Err(Errno(libc::EAGAIN))
            }
        };
        match self.call(|_| timeout_ms != 0, until_ns, look) {
            Err(Errno(libc::EAGAIN)) => Ok(0),
            other => other,
        }
    }
}

/// Answer of calls that are not supported.
fn missing<R: From<i8>>() -> R {
    c_result::<i8, R>(Err(Errno(libc::ENOSYS)))
}

/// epoll_create(2).
pub(crate) unsafe extern "C" fn epoll_create(user: User, size: c_int) -> c_int {
    let done = || -> Answer<c_int> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        if size <= 0 {
            return Err(Errno(libc::EINVAL));
        }
        shim.lock().files.epoll_create()
    };
    c_result(done())
}

/// epoll_ctl(2).
pub(crate) unsafe extern "C" fn epoll_ctl(
    user: User,
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let done = || -> Answer<c_int> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        let (events, data) = if event.is_null() {
            if operation != libc::EPOLL_CTL_DEL {
                return Err(Errno(libc::EFAULT));
            }
            (0, 0)
        } else {
            // SAFETY: not null, so it points to an event, says C; it may be packed.
            let event = unsafe { event.read_unaligned() };
            (event.events, event.u64)
        };
        let mut state = shim.lock();
        let set = state.files.epoll_ctl(epfd, operation, fd, events, data);
        set.map(|()| 0)
    };
    c_result(done())
}

/// epoll_wait(2).
pub(crate) unsafe extern "C" fn epoll_wait(
    user: User,
    epfd: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    let done = || -> Answer<usize> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        let most = usize::try_from(count).unwrap_or(0);
        if most == 0 || most > POLL_MAX {
            return Err(Errno(libc::EINVAL));
        }
        if events.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let ready = shim.epoll_wait(epfd, most, timeout_ms)?;
        for (at, &(found, data)) in ready.iter().enumerate() {
            let event = epoll_event {
                events: found,
                u64: data,
            };
            // SAFETY: C says that there is room for `count` events; no more are written.
            unsafe { events.add(at).write_unaligned(event) };
        }
        Ok(ready.len())
    };
    c_result(done())
}

/// pipe(2): not supported.
pub(crate) unsafe extern "C" fn pipe(_: User, _: *mut c_int) -> c_int {
    missing()
}

/// splice(2): not supported.
pub(crate) unsafe extern "C" fn splice(
    _: User,
    _: c_int,
    _: *mut loff_t,
    _: c_int,
    _: *mut loff_t,
    _: size_t,
    _: c_uint,
) -> ssize_t {
    missing()
}
