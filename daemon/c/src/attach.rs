//! Attaching, and its errors as C has them.

use crate::jobs::Open;
use crate::memory::Arena;
use crate::{Sidecore, guarded};
use sidecore_attach::Trust;
use sidecore_daemon::client::{Attachment, ClientError, ClientOptions};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Attaches; 0, or a negative errno.
///
/// # Safety
/// `out` is NULL or a place for a pointer, `path` NULL or a string.
pub(crate) unsafe fn attach(
    out: *mut *mut Sidecore,
    path: *const c_char,
    arena_bytes: u64,
    trusted: Option<u32>,
    silence_ms: u32,
) -> c_int {
    guarded(-libc::EIO, || {
        if out.is_null() {
            return -libc::EINVAL;
        }
        // SAFETY: a place for a pointer.
        unsafe { *out = std::ptr::null_mut() };
        let own = Trust::default();
        let trust = trusted.into_iter().fold(own, Trust::and);
        let path = if path.is_null() {
            sidecore_daemon::find_socket(&trust)
        } else {
            // SAFETY: a string that ends.
            PathBuf::from(OsStr::from_bytes(
                unsafe { CStr::from_ptr(path) }.to_bytes(),
            ))
        };
        let mut options = ClientOptions {
            arena_bytes,
            trust,
            ..ClientOptions::default()
        };
        if silence_ms > 0 {
            options.silence_max = Duration::from_millis(silence_ms.into());
        }
        match Attachment::attach(&path, &options) {
            Ok(attachment) => {
                let made = Box::new(Sidecore {
                    attachment,
                    arena: Arc::new(Arena::default()),
                    open: Mutex::new(Open::default()),
                });
                // SAFETY: a place for a pointer.
                unsafe { *out = Box::into_raw(made) };
                0
            }
            Err(error) => -errno(&error),
        }
    })
}

/// The errno of an error of attaching.
pub(crate) fn errno(error: &ClientError) -> c_int {
    let of_system = |error: &dyn std::error::Error| {
        let source = error.source();
        let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        io.and_then(std::io::Error::raw_os_error)
    };
    match error {
        ClientError::NoDaemon { source, .. } => of_system(source).unwrap_or(libc::ENOENT),
        ClientError::Untrusted { .. } | ClientError::Unmapped { .. } => libc::EKEYREJECTED,
        ClientError::Refused { .. } => libc::EPERM,
        ClientError::Silent { .. } => libc::ETIMEDOUT,
        ClientError::Nonsense => libc::EPROTO,
        ClientError::System(source) => of_system(source).unwrap_or(libc::EIO),
        _ => libc::EIO,
    }
}

/// One line with the meaning of a result of [`attach`].
pub(crate) fn text(error: c_int) -> *const c_char {
    // Programs that were written for errno itself get the same text.
    let error = error.saturating_abs();
    let text = match error {
        0 => c"attached",
        libc::EKEYREJECTED => {
            c"the daemon there belongs to a user who is neither this one nor root; nothing was \
sent to it"
        }
        libc::ENOENT | libc::ECONNREFUSED => {
            c"no daemon serves there; start one with `sidecore daemon`"
        }
        libc::EACCES => c"this user may not connect to the daemon's socket",
        libc::EPERM => c"the daemon refuses; `sidecore offload call empty` says why",
        libc::EPROTO => c"the daemon is of another version; use the same release for both",
        libc::ETIMEDOUT => c"the daemon does not answer; is it stopped?",
        libc::EINVAL => c"the options are those of an older header; compile the program again",
        // SAFETY: takes any number, and gives a text that stays at least until this thread's next.
        _ => return unsafe { libc::strerror(error) },
    };
    text.as_ptr()
}
