//! Sources of events for `spe_event_wait`: one eventfd each, readable while its condition holds.
//!
//! Must stay true: used under the context's lock alone; a source exists from its first
//! registration until the context goes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Conditions that a host can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    OutInterrupt,
    InMailbox,
    TagGroup,
    Stopped,
}

impl Source {
    pub(crate) const ALL: [Source; 4] = [
        Source::OutInterrupt,
        Source::InMailbox,
        Source::TagGroup,
        Source::Stopped,
    ];

    /// The bit of libspe2's `events`.
    pub(crate) fn bit(self) -> u32 {
        1 << self.place()
    }

    /// Its place among a context's sources.
    const fn place(self) -> usize {
        self as usize
    }
}

/// The sources of one context.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: [Option<OwnedFd>; 4],
    shown: [bool; 4],
}

impl Sources {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.iter().all(Option::is_none)
    }

    pub(crate) fn has(&self, source: Source) -> bool {
        self.files[source.place()].is_some()
    }

    /// The source's file, made if it is not there.
    pub(crate) fn file(&mut self, source: Source) -> io::Result<i32> {
        let place = &mut self.files[source.place()];
        if let Some(file) = place {
            return Ok(file.as_raw_fd());
        }
        // SAFETY: plain arguments.
        let file = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, ours alone.
        *place = Some(unsafe { OwnedFd::from_raw_fd(file) });
        Ok(file)
    }

    /// Makes the source readable, or not.
    pub(crate) fn show(&mut self, source: Source, holds: bool) {
        let index = source.place();
        let Some(file) = &self.files[index] else {
            return;
        };
        // The counter stays 0 or 1, and a change costs one system call.
        if self.shown[index] == holds {
            return;
        }
        self.shown[index] = holds;
        let mut value: u64 = 1;
        let place = (&raw mut value).cast();
        // SAFETY: 8 bytes of our own. Neither blocks: the counter is 0 or 1.
        unsafe {
            if holds {
                libc::write(file.as_raw_fd(), place, 8);
            } else {
                libc::read(file.as_raw_fd(), place, 8);
            }
        }
    }
}
