//! Running a program, and why it stopped; callbacks.

use super::{FLAG_EVENTS, SpeContext, call, context, set_errno};
use crate::callback;
use crate::channel::Stop;
use crate::context::{Arguments, Context};
use crate::engine;
use crate::interrupt::Order;
use crate::switch::address;
use crate::{fault, mfc};
use sidecore_bare::width::ToUsize;
use sidecore_sched::Ready;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `spe_stop_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StopInfo {
    stop_reason: c_uint,
    /// The union: its `int`s are the low half.
    result: u64,
    spu_status: c_int,
}

const RUN_USER_REGS: c_uint = 1;
const RUN_NO_CALLBACKS: c_uint = 2;

const EXIT: c_uint = 1;
const STOP_AND_SIGNAL: c_uint = 2;
const RUNTIME_ERROR: c_uint = 3;
const RUNTIME_EXCEPTION: c_uint = 4;
const RUNTIME_FATAL: c_uint = 5;
const CALLBACK_ERROR: c_uint = 6;
const ISOLATION_ERROR: c_uint = 7;

const STATUS_STOPPED: u32 = 0x02;
const STATUS_HALT: u32 = 0x04;
const STATUS_INSTRUCTION: u32 = 0x20;
const STATUS_CHANNEL: u32 = 0x40;

const CALLBACK_NEW: c_uint = 1;
const CALLBACK_UPDATE: c_uint = 2;

impl StopInfo {
    pub(super) fn of(stop: Stop) -> StopInfo {
        // The status is the SPU's status register: the code above, why it stopped below.
        let (stop_reason, value, status) = match stop {
            Stop::Exit(code) => {
                let status = (0x2000 | u32::from(code)) << 16 | STATUS_STOPPED;
                (EXIT, u32::from(code), status)
            }
            Stop::Signal(code, _) => (STOP_AND_SIGNAL, code, code << 16 | STATUS_STOPPED),
            Stop::Isolation(code) => {
                let status = code << 16 | STATUS_STOPPED;
                (ISOLATION_ERROR, code & 0xf, status)
            }
            Stop::Halt => (RUNTIME_ERROR, STATUS_HALT, STATUS_HALT),
            Stop::BadInstruction => (RUNTIME_ERROR, STATUS_INSTRUCTION, STATUS_INSTRUCTION),
            Stop::BadChannel => (RUNTIME_ERROR, STATUS_CHANNEL, STATUS_CHANNEL),
            Stop::Exception(code) => (RUNTIME_EXCEPTION, code, u32::MAX),
            Stop::Fatal(number) => (RUNTIME_FATAL, number.cast_unsigned(), u32::MAX),
            Stop::Callback(value) => (CALLBACK_ERROR, value.cast_unsigned(), STATUS_STOPPED),
        };
        StopInfo {
            stop_reason,
            result: value.into(),
            spu_status: status.cast_signed(),
        }
    }
}

/// `spe_context_run`: blocks until the program stops.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_context_run(
    spe: *mut SpeContext,
    entry: *mut c_uint,
    flags: c_uint,
    argp: *mut c_void,
    envp: *mut c_void,
    stop_info: *mut StopInfo,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        // SAFETY: NULL or the caller's variable.
        let entry = unsafe { entry.as_mut() }.ok_or(libc::EINVAL)?;
        // Other bits mean nothing: programs of the time hand on those that they created with.
        let mut registers = None;
        if flags & RUN_USER_REGS != 0 {
            if argp.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: three quadwords, as the header asks for; C promises no alignment.
            registers = Some(unsafe { argp.cast::<[u8; 48]>().read_unaligned() });
        }
        let arguments = Arguments {
            words: [address(spe), address(argp), address(envp)],
            registers,
        };
        // The program may have replaced handlers since its context was made.
        fault::install();
        // SAFETY: the context of above; its gang is NULL or lives as long as its members.
        if let Some(gang) = unsafe { (*spe).gang.as_ref() } {
            // From now on no member with an affinity can be added: places are fixed.
            gang.ran.store(true, Ordering::Relaxed);
        }
        own.begin(*entry, &arguments)?;
        // Signals before the token is given back: a handler that jumps away leaves the caller's
        // variables alone.
        let stop = as_signal(own, run(own, flags & RUN_NO_CALLBACKS == 0));
        // Where it stopped, for a next call with the same variable.
        *entry = own.token();
        // SAFETY: NULL or the caller's variable.
        if let Some(place) = unsafe { stop_info.as_mut() } {
            *place = StopInfo::of(stop);
        }
        // Kept only where something may ask for it.
        if own.flags & FLAG_EVENTS != 0 {
            own.remember_stop(stop);
        }
        match stop {
            Stop::Exit(_) => Ok(0),
            Stop::Signal(code, _) => Ok(code.cast_signed()),
            // Errors of the program are errors of the call; the stop information has the rest.
            Stop::Exception(_) => Err(libc::EIO),
            _ => Err(libc::EFAULT),
        }
    })
}

/// Without SPE_EVENTS_ENABLE errors are signals to the caller, if the program handles them. If it
/// does not, the process would end: then the stop information has the error, as with events.
fn as_signal(own: &Context, stop: Stop) -> Stop {
    let signal = match stop {
        Stop::BadInstruction => libc::SIGILL,
        Stop::Exception(mfc::DMA_STORAGE) => libc::SIGSEGV,
        Stop::Exception(_) => libc::SIGBUS,
        _ => return stop,
    };
    if own.flags & FLAG_EVENTS == 0 && fault::raise_handled(signal) {
        return Stop::Fatal(libc::EINTR);
    }
    stop
}

/// Runs until a stop that is not a callback's; handlers run on this thread.
fn run(own: &Arc<Context>, callbacks: bool) -> Stop {
    loop {
        // Each round is a new start for the queue: after a callback the program waits in line
        // again.
        engine::push(own.clone(), Ready::Event);
        let stop = own.wait_for_stop();
        let Stop::Signal(code, block) = stop else {
            return stop;
        };
        // Other codes are the program's own, for its host to read.
        if !callbacks || code & 0xff00 != 0x2100 {
            return stop;
        }
        let Some(handler) = callback::handler((code & 0xff).to_usize()) else {
            own.end();
            return Stop::Callback(-1);
        };
        // Handlers get the host's address, which may not have been mapped yet.
        let Ok(view) = own.store.view() else {
            own.end();
            return Stop::Callback(libc::ENOMEM);
        };
        // SAFETY: a handler of this form, as the registration asks for.
        let outcome = callback::in_order(own.is_big(), || unsafe {
            handler(view as *mut c_void, block)
        });
        if outcome != 0 {
            own.end();
            return Stop::Callback(outcome);
        }
        own.go_on();
    }
}

/// `sidecore_spe_signal`: SIGSTOP, SIGCONT or SIGKILL to a program, as `libspe.h` sends them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_spe_signal(spe: *const SpeContext, signal: c_int) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        own.order(match signal {
            libc::SIGSTOP => Order::Hold,
            libc::SIGCONT => Order::Run,
            libc::SIGKILL => Order::End,
            _ => return Err(libc::EINVAL),
        });
        Ok(0)
    })
}

/// `spe_stop_info_read`: EAGAIN where no stop is unread, ENOTSUP without SPE_EVENTS_ENABLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_stop_info_read(
    spe: *mut SpeContext,
    stop_info: *mut StopInfo,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        if own.flags & FLAG_EVENTS == 0 {
            return Err(libc::ENOTSUP);
        }
        // SAFETY: NULL or the caller's variable.
        let place = unsafe { stop_info.as_mut() }.ok_or(libc::EINVAL)?;
        let mut inner = own.lock();
        let stop = inner.stops.pop_front().ok_or(libc::EAGAIN)?;
        own.settle(&mut inner);
        *place = StopInfo::of(stop);
        Ok(0)
    })
}

/// `spe_callback_handler_register`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_callback_handler_register(
    handler: *mut c_void,
    number: c_uint,
    mode: c_uint,
) -> c_int {
    call(-1, || {
        let number = number.to_usize();
        if number >= callback::NUMBERS {
            return Err(libc::EINVAL);
        }
        let present = callback::handler(number).is_some();
        match mode {
            // Numbers of the standard can be replaced, but their handlers are always there.
            CALLBACK_NEW if number < callback::RESERVED || present => return Err(libc::EACCES),
            CALLBACK_UPDATE if !present => return Err(libc::ESRCH),
            CALLBACK_NEW | CALLBACK_UPDATE => {}
            _ => return Err(libc::EINVAL),
        }
        if handler.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: a function of this form, as the header asks for.
        let handler: callback::Handler = unsafe { std::mem::transmute(handler) };
        callback::set_handler(number, Some(handler));
        Ok(0)
    })
}

/// `spe_callback_handler_deregister`.
#[unsafe(no_mangle)]
pub extern "C" fn spe_callback_handler_deregister(number: c_uint) -> c_int {
    call(-1, || {
        let number = number.to_usize();
        if number >= callback::NUMBERS {
            return Err(libc::EINVAL);
        }
        if number < callback::RESERVED {
            return Err(libc::EACCES);
        }
        if callback::handler(number).is_none() {
            return Err(libc::ESRCH);
        }
        callback::set_handler(number, None);
        Ok(0)
    })
}

/// `spe_callback_handler_query`.
#[unsafe(no_mangle)]
pub extern "C" fn spe_callback_handler_query(number: c_uint) -> *mut c_void {
    set_errno(0);
    call(std::ptr::null_mut(), || {
        let number = number.to_usize();
        if number >= callback::NUMBERS {
            return Err(libc::EINVAL);
        }
        let handler = callback::handler(number).ok_or(libc::ESRCH)?;
        Ok(handler as *mut c_void)
    })
}

#[cfg(test)]
impl StopInfo {
    pub(super) fn fields(&self) -> (c_uint, u64, c_int) {
        (self.stop_reason, self.result, self.spu_status)
    }
}
