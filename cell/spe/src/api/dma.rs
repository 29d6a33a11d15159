//! Proxy commands: DMA that the host asks a context's MFC for.

use super::{SpeContext, call, context};
use crate::mfc::Command;
use crate::switch;
use std::ffi::{c_int, c_uint, c_void};

/// Tags that proxy commands may use: the upper half was the kernel's.
const TAG_MAX: c_uint = 15;
const CLASS_MAX: c_uint = 0xff;

macro_rules! proxy_command {
    ($($(#[$about:meta])* $name:ident = $code:expr;)*) => {$(
        $(#[$about])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            spe: *mut SpeContext,
            ls: c_uint,
            ea: *mut c_void,
            size: c_uint,
            tag: c_uint,
            tid: c_uint,
            rid: c_uint,
        ) -> c_int {
            call(-1, || {
                // SAFETY: NULL or a context, as the header asks for.
                let own = unsafe { context(spe) }?;
                if tag > TAG_MAX || tid > CLASS_MAX || rid > CLASS_MAX {
                    return Err(libc::EINVAL);
                }
                let command = Command { lsa: ls, ea: switch::address(ea), size, tag, code: $code };
                own.proxy(command).map(|()| 0).map_err(|_| libc::EIO)
            })
        }
    )*};
}

proxy_command! {
    /// `spe_mfcio_put`.
    spe_mfcio_put = 0x20;
    /// `spe_mfcio_putb`.
    spe_mfcio_putb = 0x21;
    /// `spe_mfcio_putf`.
    spe_mfcio_putf = 0x22;
    /// `spe_mfcio_get`.
    spe_mfcio_get = 0x40;
    /// `spe_mfcio_getb`.
    spe_mfcio_getb = 0x41;
    /// `spe_mfcio_getf`.
    spe_mfcio_getf = 0x42;
}

/// `spe_mfcio_tag_status_read`: commands are done when they are accepted, so no behaviour blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_mfcio_tag_status_read(
    spe: *mut SpeContext,
    mask: c_uint,
    behaviour: c_uint,
    status: *mut c_uint,
) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        let own = unsafe { context(spe) }?;
        if status.is_null() {
            return Err(libc::EINVAL);
        }
        if !(1..=3).contains(&behaviour) {
            return Err(libc::EINVAL);
        }
        let done = own.proxy_status(mask);
        // Programs of the time hand over a pointer that they never set.
        // SAFETY: the caller's variable; memory that cannot be accessed makes the copy fail.
        let written =
            unsafe { switch::copy(switch::address(status), switch::address(&raw const done), 4) };
        written.then_some(0).ok_or(libc::EFAULT)
    })
}

/// `spe_mssync_start`: earlier puts are in memory already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_mssync_start(spe: *mut SpeContext) -> c_int {
    call(-1, || {
        // SAFETY: NULL or a context, as the header asks for.
        unsafe { context(spe) }?;
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Ok(0)
    })
}

/// `spe_mssync_status`: 0, nothing is pending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spe_mssync_status(spe: *mut SpeContext) -> c_int {
    // SAFETY: NULL or a context, as the header asks for.
    call(-1, || unsafe { context(spe) }.map(|_| 0))
}
