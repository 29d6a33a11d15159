//! Reads of a layer while the disk has no room for what is fetched.
//!
//! Why here: a container has no use for an error that the next machine would not see. Until there
//! is room again, what is read is fetched and checked as ever, and not kept.
//! Must stay true: nothing is marked as here that is not in the file; the memory is one span's.
//! Called from: any thread; reads block on the network.

use super::{LayerDevice, Span};
use crate::store::read_or_zeros;
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Spans that are read while the disk is full.
#[derive(Default)]
pub(super) struct Unkept {
    /// No room is tried for before this time: each try would fetch a span twice.
    until: Mutex<Option<Instant>>,
    /// The span that was read last, and its part of the tar: a reader comes for the next pages.
    last: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
}

impl Unkept {
    /// The disk was full just now.
    pub(super) fn begin(&self) {
        *self.until.lock() = Some(Instant::now() + FULL_TIME);
    }

    /// True if the disk was full a moment ago.
    pub(super) fn is_full(&self) -> bool {
        let mut until = self.until.lock();
        let is_full = until.is_some_and(|until| Instant::now() < until);
        if !is_full && until.take().is_some() {
            *self.last.lock() = None;
        }
        is_full
    }
}

impl LayerDevice {
    /// Reads a range of the device without writing anything.
    pub(super) fn read_through(&self, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        // Metadata, and zeros between files.
        read_or_zeros(&self.data, dst, offset)?;
        let end = offset + dst.len().to_u64();
        let extents = &self.tree.extents;
        let first = extents.partition_point(|it| it.device_at + it.bytes <= offset);
        for extent in extents[first..].iter().take_while(|it| it.device_at < end) {
            let tar_at = |at: u64| extent.tar_at + (at - extent.device_at);
            let stop = end.min(extent.device_at + extent.bytes);
            let tar = tar_at(offset.max(extent.device_at))..tar_at(stop);
            for span in self.index.spans_of(tar.clone()) {
                let range = self.index.tar_range(span);
                let part = tar.start.max(range.start)..tar.end.min(range.end);
                let device_at = extent.device_at + (part.start - extent.tar_at);
                let at = (device_at - offset).to_usize();
                let dst = &mut dst[at..at + (part.end - part.start).to_usize()];
                // What is in the file of a span that is not here counts for nothing, also where it
                // came after it was read above.
                if self.spans.lock()[span] == Span::Here {
                    read_or_zeros(&self.data, dst, device_at)?;
                    continue;
                }
                let contents = self.contents(span)?;
                let inner = (part.start - range.start).to_usize();
                dst.copy_from_slice(&contents[inner..inner + dst.len()]);
            }
        }
        Ok(())
    }

    /// The part of the tar that a span has, fetched and checked.
    fn contents(&self, span: usize) -> io::Result<Arc<Vec<u8>>> {
        if let Some((found, contents)) = &*self.unkept.last.lock()
            && *found == span
        {
            return Ok(Arc::clone(contents));
        }
        let range = self.index.blob_range(span..span + 1);
        let bytes = match range.is_empty() {
            true => Vec::new(),
            false => self.blob.read(range)?,
        };
        let contents = self.index.open_span(span, &bytes);
        let contents = Arc::new(contents.map_err(io::Error::other)?);
        *self.unkept.last.lock() = Some((span, Arc::clone(&contents)));
        Ok(contents)
    }
}

/// True if an error says that a disk, or a user's part of it, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// Time after which room is tried for again.
const FULL_TIME: Duration = Duration::from_secs(5);
