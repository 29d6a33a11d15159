//! Event queues.

use crate::abi::*;
use crate::bell::Waiter;
use crate::core::{Core, EqEvent, Fabric};
use crate::outcome::amount;
use crate::{Object, head, plain_ops};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// Polls of a waiter before it sleeps.
const LOOKS: u32 = 64;
/// Poll interval of a waiter next to a polling thread, in case that thread stops.
const BESIDE: Duration = Duration::from_millis(5);
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// An event before its private data: an object, and an info.
const HEAD_BYTES: usize = std::mem::offset_of!(fi_eq_entry, data);
/// Longest event that a program may write, in bytes.
const WRITTEN_BYTES_MAX: usize = size_of::<fi_eq_entry>() + 512;

static EQ_FID: fi_ops = plain_ops(close, None, Some(control));
static EQ: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

impl Core {
    /// True if an event or completion can be read.
    pub(crate) fn has_news(&mut self, of: Waiter) -> bool {
        match of {
            Waiter::Cq(index) => self
                .cqs
                .get(index)
                .is_some_and(|cq| !cq.entries.is_empty() || !cq.errors.is_empty()),
            Waiter::Eq(index) => self.eqs.get(index).is_some_and(|eq| !eq.events.is_empty()),
            // Its reader compares the value; later changes wake it.
            Waiter::Cntr(_) => false,
        }
    }

    pub(crate) fn arm_bell(&mut self, of: Waiter) {
        // Created here, in case the descriptor was not requested yet.
        self.wait_descriptor(of).ok();
        if let Some((bell, _)) = self.bell(of) {
            bell.calm();
            bell.arm();
        }
    }
}

/// Waits until `found` returns a result, for at most `timeout` milliseconds (negative: for ever).
///
/// While another thread polls, a waiter sleeps on its own bell only: progress wakes the waiter
/// concerned instead of all.
pub(crate) fn wait<T>(
    fabric: &Fabric,
    of: Waiter,
    timeout: c_int,
    mut found: impl FnMut(&mut MutexGuard<'_, Core>) -> Option<T>,
) -> Option<T> {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let begun = Instant::now();
    let (mut looks, mut own) = (0, 0);
    loop {
        let mut core = fabric.lock();
        let before = core.looks;
        core.progress();
        if let Some(it) = found(&mut core) {
            return Some(it);
        }
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        looks += 1;
        // A sleep and a wake-up cost more than some looks.
        if looks < LOOKS {
            own = core.looks;
            drop(core);
            std::thread::yield_now();
            continue;
        }
        core.arm_bell(of);
        let mut rest = left.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        // Another thread has polled since this loop's last poll.
        let polled_by_others = before != own;
        own = core.looks;
        let descriptor = if polled_by_others {
            rest = rest.min(BESIDE);
            core.bell_descriptor(of)
        } else if core.arm() {
            core.wait_descriptor(of).ok()
        } else {
            continue;
        };
        // Never held while waiting: others need it to make progress.
        drop(core);
        let Some(descriptor) = descriptor else {
            std::thread::sleep(rest.min(BESIDE));
            continue;
        };
        // SAFETY: an object's descriptor lives as long as the object, which its user does not close
        // while waiting for it.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let rest = Timespec {
            tv_sec: rest.as_secs().cast_signed(),
            tv_nsec: rest.subsec_nanos().into(),
        };
        // It fails only without memory: then the sleep was short.
        poll(
            &mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)],
            Some(&rest),
        )
        .ok();
    }
}

/// `FI_GETWAIT` and similar commands.
///
/// # Safety
/// `arg` points to room for the result.
pub(crate) unsafe fn wait_control(
    fabric: &Fabric,
    of: Waiter,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    match command {
        FI_GETWAIT => match fabric.lock().wait_descriptor(of) {
            Ok(descriptor) => {
                // SAFETY: the caller's promise.
                unsafe { arg.cast::<c_int>().write(descriptor) };
                0
            }
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        },
        FI_GETWAITOBJ => {
            // SAFETY: the caller's promise.
            unsafe { arg.cast::<c_int>().write(FI_WAIT_FD) };
            0
        }
        _ => -libc::ENOSYS,
    }
}

pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    _attr: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a fabric of ours and a place for a pointer, by libfabric's contract.
    unsafe {
        let fabric = &Object::of(fabric).fabric;
        let index = fabric.lock().eqs.insert(Default::default());
        let raw = fid_eq {
            fid: head(FI_CLASS_EQ, context, &EQ_FID),
            ops: &EQ,
        };
        let object = Object {
            raw,
            fabric: fabric.clone(),
            index,
        };
        object.hand_out(out);
    }
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: an event queue of ours, for the last time.
    let object = unsafe { Object::<fid_eq>::take(fid) };
    object.fabric.lock().eqs.remove(object.index);
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: an event queue of ours, and a place for what is asked for.
    unsafe {
        let object = Object::<fid_eq>::of_fid(fid);
        wait_control(&object.fabric, Waiter::Eq(object.index), command, arg)
    }
}

/// Writes an event to its reader's buffer; its length.
///
/// # Safety
/// `buf` has `len` bytes, `event` is writable.
unsafe fn put(from: &EqEvent, event: *mut u32, buf: *mut c_void, len: usize) -> usize {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + from.data.len());
    // A user-written event has its own bytes.
    if from.event != FI_NOTIFY {
        bytes.extend(from.fid.to_ne_bytes());
        bytes.extend(from.info.to_ne_bytes());
    }
    bytes.extend(&from.data);
    // Private data that has no room is cut off, as fi_eq(3) has it.
    let count = bytes.len().min(len);
    // SAFETY: the caller's promise.
    unsafe {
        event.write(from.event);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), count);
    }
    count
}

/// Moves the next event to its reader's buffer.
///
/// # Safety
/// As [`put`].
unsafe fn next(
    core: &mut Core,
    index: usize,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> Option<Result<usize, c_int>> {
    let eq = core.eqs.get(index)?;
    let first = eq.events.front()?;
    // It stays at the front until `readerr` takes it.
    if first.err != 0 {
        return Some(Err(-FI_EAVAIL));
    }
    if first.event != FI_NOTIFY && len < HEAD_BYTES {
        return Some(Err(-libc::EOVERFLOW));
    }
    // SAFETY: the caller's promise.
    let count = unsafe { put(first, event, buf, len) };
    if flags & FI_PEEK == 0 {
        eq.events.pop_front();
        if eq.events.is_empty() {
            eq.bell.calm();
        }
    }
    Some(Ok(count))
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    // SAFETY: an event queue of ours, and room for what is read.
    unsafe {
        let object = Object::of(eq);
        let mut core = object.fabric.lock();
        if let Some(found) = next(&mut core, object.index, event, buf, len, flags) {
            return amount(found);
        }
        core.progress();
        let found = next(&mut core, object.index, event, buf, len, flags);
        amount(found.unwrap_or(Err(-libc::EAGAIN)))
    }
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    // SAFETY: an event queue of ours, and room for what is read.
    unsafe {
        let object = Object::of(eq);
        let index = object.index;
        let found = wait(&object.fabric, Waiter::Eq(index), timeout, |core| {
            next(core, index, event, buf, len, flags)
        });
        amount(found.unwrap_or(Err(-libc::EAGAIN)))
    }
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, _flags: u64) -> isize {
    // SAFETY: an event queue of ours and an entry, by libfabric's contract.
    let (object, entry) = unsafe { (Object::of(eq), &mut *buf) };
    let mut core = object.fabric.lock();
    let Some(eq) = core.eqs.get(object.index) else {
        return amount(Err(-libc::EINVAL));
    };
    let is_error = eq.events.front().is_some_and(|event| event.err != 0);
    let Some(event) = is_error.then(|| eq.events.pop_front()).flatten() else {
        return amount(Err(-libc::EAGAIN));
    };
    // Kept until the next error is read.
    eq.error_data = event.data;
    entry.fid = std::ptr::with_exposed_provenance_mut(event.fid);
    entry.context = std::ptr::with_exposed_provenance_mut(event.context);
    entry.data = 0;
    entry.err = event.err;
    entry.prov_errno = event.err;
    // A program without a buffer gets ours, until the next error is read (fi_eq(3)).
    if entry.err_data_size == 0 {
        entry.err_data = eq.error_data.as_mut_ptr().cast();
        entry.err_data_size = eq.error_data.len();
    } else {
        let count = eq.error_data.len().min(entry.err_data_size);
        // SAFETY: a buffer of that length, by libfabric's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(eq.error_data.as_ptr(), entry.err_data.cast(), count);
        }
        entry.err_data_size = count;
    }
    if eq.events.is_empty() {
        eq.bell.calm();
    }
    amount(Ok(size_of::<fi_eq_err_entry>()))
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    // A bound on what a program can make the queue keep.
    if len > WRITTEN_BYTES_MAX {
        return amount(Err(-libc::EINVAL));
    }
    // SAFETY: an event queue of ours and `len` bytes, by libfabric's contract.
    let (object, bytes) = unsafe {
        let bytes = std::slice::from_raw_parts(buf.cast::<u8>(), len);
        (Object::of(eq), bytes)
    };
    let mut core = object.fabric.lock();
    let Some(eq) = core.eqs.get(object.index) else {
        return amount(Err(-libc::EINVAL));
    };
    // Other events would look like the provider's own.
    if event != FI_NOTIFY {
        return amount(Err(-libc::ENOSYS));
    }
    eq.events
        .push_back(EqEvent::new(event, 0).with_data(bytes.to_vec()));
    eq.bell.ring();
    amount(Ok(len))
}

/// The text of an error: they are system errors.
pub(crate) unsafe extern "C" fn strerror(
    _eq: *mut fid_eq,
    number: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    if !buf.is_null() && len > 0 {
        // SAFETY: a buffer of that length, by libfabric's contract.
        unsafe { libc::strerror_r(number, buf, len) };
        return buf;
    }
    // SAFETY: it has no conditions; what it gives stays until the next call.
    unsafe { libc::strerror(number) }
}
