//! Intercepted calls that wait for several descriptors.

use crate::poll::{self, beside_kernel, timespec};
use crate::real::{self, real};
use crate::{check, epoll};
use sidecore_bare::width::ToUsize;
use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

fn polled<'p>(pointer: *mut libc::pollfd, count: libc::nfds_t) -> &'p mut [libc::pollfd] {
    if pointer.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the program guarantees this number of elements.
    unsafe { std::slice::from_raw_parts_mut(pointer, count.to_usize()) }
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

/// `poll` of programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    files: *mut libc::pollfd,
    count: libc::nfds_t,
    millis: c_int,
    bytes: usize,
) -> c_int {
    check(count.to_usize() * size_of::<libc::pollfd>(), bytes);
    // SAFETY: as of poll(2).
    unsafe { poll(files, count, millis) }
}

/// `ppoll` of programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    files: *mut libc::pollfd,
    count: libc::nfds_t,
    limit: *const libc::timespec,
    mask: *const libc::sigset_t,
    bytes: usize,
) -> c_int {
    check(count.to_usize() * size_of::<libc::pollfd>(), bytes);
    // SAFETY: as of ppoll(2).
    unsafe { ppoll(files, count, limit, mask) }
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
        // Linux returns the remaining time.
        let left = timespec(patience.saturating_sub(begun.elapsed()));
        given.tv_sec = left.tv_sec;
        given.tv_usec = left.tv_nsec / 1000;
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

/// epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    file: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the program says that an event is there, or gave none.
    // Unaligned: the type is packed in C on x86-64.
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
    // SAFETY: the program guarantees room for this number; the type has the ABI's alignment.
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
        // Rounded up, so as not to wake too early.
        let millis = limit.map_or(self.millis, |limit| {
            c_int::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
        });
        let (to, count) = (events.as_mut_ptr(), real::count(events.len()));
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
        let (to, count) = (events.as_mut_ptr(), real::count(events.len()));
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
