//! Event handlers.

use super::{FLAG_EVENTS, SpeContext, call, context};
use crate::events::Handler;
use crate::source::Source;
use std::ffi::{c_int, c_uint, c_void};

/// `spe_event_unit_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EventUnit {
    pub(super) events: c_uint,
    pub(super) spe: *mut SpeContext,
    /// The union `spe_event_data_t`.
    pub(super) data: u64,
}

/// `spe_event_handler_create`.
#[unsafe(no_mangle)]
pub extern "C" fn spe_event_handler_create() -> *mut c_void {
    call(std::ptr::null_mut(), || {
        let handler = Handler::new().map_err(|error| super::number_of(&error))?;
        Ok(Box::into_raw(Box::new(handler)).cast())
    })
}

/// `spe_event_handler_destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_event_handler_destroy(handler: *mut c_void) -> c_int {
    call(-1, || {
        if handler.is_null() {
            return Err(libc::ESRCH);
        }
        // SAFETY: made by the call above, as the header asks for.
        drop(unsafe { Box::from_raw(handler.cast::<Handler>()) });
        Ok(0)
    })
}

/// Does something with each source of a registration.
unsafe fn each_source(
    handler: *mut c_void,
    unit: *mut EventUnit,
    work: impl Fn(&Handler, i32, Source, &EventUnit) -> Result<(), c_int>,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a handler, as the header asks for.
        let handler = unsafe { handler.cast::<Handler>().as_ref() }.ok_or(libc::ESRCH)?;
        // SAFETY: NULL or the caller's variable.
        let unit = unsafe { unit.as_ref() }.ok_or(libc::EINVAL)?;
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(unit.spe) }.map_err(|_| libc::EINVAL)?;
        let all = Source::ALL
            .iter()
            .fold(0, |mask, source| mask | source.bit());
        // One bit too many refuses all: none of them is registered then.
        if own.flags & FLAG_EVENTS == 0 || unit.events & !all != 0 {
            return Err(libc::ENOTSUP);
        }
        for source in Source::ALL {
            if unit.events & source.bit() == 0 {
                continue;
            }
            let mut inner = own.lock();
            let file = inner.sources.file(source);
            let file = file.map_err(|error| super::number_of(&error))?;
            if source == Source::Stopped {
                // Stops from before belong to no current waiter.
                inner.stops.clear();
            }
            own.settle(&mut inner);
            // The handler's lock is not taken under the context's.
            drop(inner);
            work(handler, file, source, unit)?;
        }
        Ok(0)
    })
}

/// `spe_event_handler_register`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_event_handler_register(
    handler: *mut c_void,
    unit: *mut EventUnit,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe {
        each_source(handler, unit, |handler, file, source, unit| {
            handler.add(file, source, unit.spe.expose_provenance(), unit.data)
        })
    }
}

/// `spe_event_handler_deregister`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_event_handler_deregister(
    handler: *mut c_void,
    unit: *mut EventUnit,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { each_source(handler, unit, |handler, file, _, _| handler.remove(file)) }
}

/// `spe_event_wait`: a timeout of -1 waits for ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_event_wait(
    handler: *mut c_void,
    events: *mut EventUnit,
    most: c_int,
    timeout: c_int,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a handler, as the header asks for.
        let handler = unsafe { handler.cast::<Handler>().as_ref() }.ok_or(libc::ESRCH)?;
        let most = usize::try_from(most).ok().filter(|most| *most > 0);
        let most = most.filter(|_| !events.is_null()).ok_or(libc::EINVAL)?;
        let occurred = handler.wait(most, timeout)?;
        for (index, event) in occurred.iter().enumerate() {
            let unit = EventUnit {
                events: event.bit,
                // The pointer as it was registered; the context may be gone.
                spe: event.context as *mut SpeContext,
                data: event.data,
            };
            // SAFETY: room for `most`, of which `wait` gives no more.
            unsafe { events.add(index).write(unit) };
        }
        Ok(super::number(occurred.len()))
    })
}

#[cfg(test)]
impl EventUnit {
    pub(super) fn of(events: c_uint, spe: *mut SpeContext) -> EventUnit {
        EventUnit {
            events,
            spe,
            data: 0,
        }
    }
}
