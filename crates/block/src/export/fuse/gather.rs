//! Answering a FUSE read from a [`BlockSource`], and the bounds that both file systems share.
//!
//! Must stay true: a read is answered exactly once, before its source goes on to finish frames or
//! to read ahead; no read allocates after its thread's first.

use crate::source::BlockSource;
use fuser::{Errno, ReplyData};
use std::cell::RefCell;
use std::time::Duration;

/// Answers with `len` bytes of `source` from `offset`; at most
/// [`BlockSource::read_with_max_bytes`].
pub(super) fn read_through(source: &dyn BlockSource, offset: u64, len: usize, reply: ReplyData) {
    // Answered inside the closure, before the source finishes its frame or reads ahead. A
    // source that never called it would drop `reply`, which the crate turns into EIO.
    let mut reply = Some(reply);
    source.read_with(offset, len, &mut |result| {
        let Some(reply) = reply.take() else { return };
        match result {
            Ok([piece]) => reply.data(piece),
            Ok(pieces) => with_scratch(len, |buffer| {
                let mut at = 0;
                for piece in pieces {
                    buffer[at..at + piece.len()].copy_from_slice(piece);
                    at += piece.len();
                }
                reply.data(&buffer[..at]);
            }),
            Err(error) => reply.error(Errno::from_i32(error.errno())),
        }
    });
}

/// Runs `work` on the first `len` bytes of this thread's buffer.
pub(super) fn with_scratch(len: usize, work: impl FnOnce(&mut [u8])) {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len.max(REQUEST_BYTES_MAX as usize), 0);
        }
        work(&mut buffer[..len]);
    });
}

/// Nothing ever changes, so the kernel need not ask again: a year.
pub(super) const FOREVER: Duration = Duration::from_secs(365 * 86400);
/// The kernel's own limit on one request (`fs.fuse.max_pages_limit` = 256 pages).
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that may be under way without a reader waiting for each (read-ahead, a loop device's
/// direct reads).
pub(super) const BACKGROUND_REQUESTS_MAX: u16 = 64;
