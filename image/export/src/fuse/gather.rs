//! Answers a FUSE read from a [`BlockSource`], for both file systems.
//!
//! Must stay true: a read is answered exactly once, before its source finishes frames or reads
//! ahead; no read allocates after its thread's first.

use super::nodes::ReadReply;
use super::session::REQUEST_BYTES_MAX;
use rustix::io::Errno;
use sidecore_bare::width::ToUsize;
use sidecore_format::source::BlockSource;
use std::cell::RefCell;

/// Answers with `len` bytes of `source` from `offset`; at most
/// [`BlockSource::read_with_max_bytes`].
pub(super) fn read_through(
    source: &dyn BlockSource,
    offset: u64,
    len: usize,
    reply: ReadReply<'_>,
) {
    // Answered inside the closure, before the source finishes its frame or reads ahead. Only there
    // the slots stay unchanged: the kernel copies from them.
    let mut reply = Some(reply);
    source.read_with(offset, len, &mut |result| {
        let Some(reply) = reply.take() else { return };
        match result {
            Ok(pieces) => reply.pieces(pieces),
            Err(error) => reply.error(Errno::from_raw_os_error(error.errno())),
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
            buffer.resize(len.max(REQUEST_BYTES_MAX.to_usize()), 0);
        }
        work(&mut buffer[..len]);
    });
}
