//! Mailboxes and signal registers from the host's side.

use super::{SpeContext, call, context, number};
use crate::area;
use crate::context::Context;
use crate::mail::Mail;
use crate::switch::address;
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const ALL_BLOCKING: c_uint = 1;
const ANY_BLOCKING: c_uint = 2;
const ANY_NONBLOCKING: c_uint = 3;

/// Moves words one by one as the behaviour says; `step` moves one, or says that none can be now.
fn words(
    own: &Arc<Context>,
    count: usize,
    behaviour: c_uint,
    inbound: bool,
    mut step: impl FnMut(&Mail, usize) -> bool,
) -> Result<c_int, c_int> {
    // Words that must have moved before the call returns.
    let blocking = match behaviour {
        ALL_BLOCKING => count,
        ANY_BLOCKING => 1,
        ANY_NONBLOCKING => 0,
        _ => return Err(libc::EINVAL),
    };
    let mut done = 0;
    loop {
        let before = done;
        // As many as move at once, so that watchers are woken once.
        while done < count && step(&own.mail, done) {
            done += 1;
        }
        if done > before {
            own.mail_moved();
        }
        if done >= blocking {
            return Ok(looked(number(done)));
        }
        // Woken for nothing, it only tries again.
        own.wait_host(inbound);
    }
}

thread_local! {
    /// Looks of this thread in a row that found nothing to do.
    static VAIN: Cell<u32> = const { Cell::new(0) };
}

/// Failed looks after which a polling thread lets others have its processor at each further one.
const VAIN_MAX: u32 = 400;

/// Notes the outcome of a look that never blocks. A host that polls while processors are few would
/// otherwise keep the program that it waits for from running.
fn looked(count: c_int) -> c_int {
    let vain = VAIN.with(|vain| {
        vain.set(if count == 0 {
            vain.get().saturating_add(1)
        } else {
            0
        });
        vain.get()
    });
    if vain > VAIN_MAX {
        // A host on the only processor would keep its program from it for a whole slice.
        std::thread::yield_now();
    }
    count
}

/// Time that a write that does not block gives the program for a place in a full mailbox.
const GRACE: Duration = Duration::from_millis(100);
/// The same for a program that has not begun to read: it may wait for an engine.
const GRACE_AT_FIRST: Duration = Duration::from_millis(500);
/// Looks before a thread that waits lets others have its processor.
const GRACE_LOOKS: u32 = 100;

/// Waits a while for a place inbound, once until words go in again.
///
/// On the Cell the host's write was slower than the program's read. So hosts of the time write more
/// words than the mailbox has places for, do not block, and do not look at the result.
fn gives_place(own: &Context) -> bool {
    // Relaxed: a hint, which decides only whether to wait.
    if own.mail.in_room() == 0 && !own.hurried.load(Ordering::Relaxed) && own.may_read() {
        // A program that has read before reads again soon; one that has not may still wait for an
        // engine.
        let grace = match own.mail.untouched() {
            true => GRACE_AT_FIRST,
            false => GRACE,
        };
        let end = Instant::now() + grace;
        let mut looks = 0;
        while own.mail.in_room() == 0 && Instant::now() < end {
            looks += 1;
            if looks > GRACE_LOOKS {
                std::thread::yield_now();
            }
        }
    }
    let room = own.mail.in_room() > 0;
    // Once in vain, the next writes do not wait: the host does look at results.
    own.hurried.store(!room, Ordering::Relaxed);
    room
}

/// Checks the buffer of a call.
fn buffer(data: *mut c_uint, count: c_int) -> Result<usize, c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    count.filter(|_| !data.is_null()).ok_or(libc::EINVAL)
}

/// Moves words out of one of the program's mailboxes to `data`.
///
/// # Safety
/// There is room for `count` words at `data`.
unsafe fn read_words(
    own: &Arc<Context>,
    data: *mut c_uint,
    count: usize,
    behaviour: c_uint,
    take: impl Fn(&Mail) -> Option<c_uint>,
) -> Result<c_int, c_int> {
    words(own, count, behaviour, false, |mail, index| {
        let Some(value) = take(mail) else {
            return false;
        };
        // SAFETY: by the caller; an index is below the count.
        unsafe { data.add(index).write(value) };
        true
    })
}

/// `spe_out_mbox_read`: never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_out_mbox_read(
    spe: *mut SpeContext,
    data: *mut c_uint,
    count: c_int,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        let count = buffer(data, count)?;
        // SAFETY: room for `count` words, as the header asks for.
        unsafe { read_words(own, data, count, ANY_NONBLOCKING, Mail::take_out) }
    })
}

/// `spe_out_mbox_status`: entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_out_mbox_status(spe: *mut SpeContext) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let entries = unsafe { context(spe) }?.mail.out_entries();
        Ok(looked(entries.cast_signed()))
    })
}

/// `spe_in_mbox_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_in_mbox_write(
    spe: *mut SpeContext,
    data: *mut c_uint,
    count: c_int,
    behaviour: c_uint,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        let count = buffer(data, count)?;
        if behaviour == ANY_NONBLOCKING && !gives_place(own) {
            return Ok(looked(0));
        }
        words(own, count, behaviour, true, |mail, index| {
            // SAFETY: `count` words are there, as the header asks for.
            mail.push(unsafe { data.add(index).read() })
        })
    })
}

/// `spe_in_mbox_status`: free places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_in_mbox_status(spe: *mut SpeContext) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let room = unsafe { context(spe) }?.mail.in_room();
        Ok(looked(room.cast_signed()))
    })
}

/// `spe_out_intr_mbox_read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_out_intr_mbox_read(
    spe: *mut SpeContext,
    data: *mut c_uint,
    count: c_int,
    behaviour: c_uint,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        let count = buffer(data, count)?;
        // SAFETY: room for `count` words, as the header asks for.
        unsafe { read_words(own, data, count, behaviour, Mail::take_interrupt) }
    })
}

/// `spe_out_intr_mbox_status`: entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_out_intr_mbox_status(spe: *mut SpeContext) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let entries = unsafe { context(spe) }?.mail.interrupt_entries();
        Ok(looked(entries.cast_signed()))
    })
}

/// `spe_signal_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_signal_write(
    spe: *mut SpeContext,
    register: c_uint,
    value: c_uint,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        let index = match register {
            1 => 0,
            2 => 1,
            _ => return Err(libc::EINVAL),
        };
        own.signal(index, value);
        Ok(0)
    })
}

/// `sidecore_spe_register_write`: writes a register of a problem-state area, as `cbe_mfc.h`'s
/// functions do; false (0) where no register can be written there.
#[unsafe(no_mangle)]
pub extern "C" fn sidecore_spe_register_write(register: *const c_void, value: c_uint) -> c_int {
    call(0, || {
        let write = area::find(address(register), value);
        let found = write.is_some();
        if let Some(write) = write {
            write.deliver();
        }
        Ok(found.into())
    })
}

/// `sidecore_spe_register_read`: a register of a problem-state area; of the outbound mailbox its
/// word. 0 where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn sidecore_spe_register_read(register: *const c_void) -> c_uint {
    call(0, || Ok(area::read(address(register)).unwrap_or(0)))
}
