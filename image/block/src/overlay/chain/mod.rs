//! An image and the layers above it, as one device.
//!
//! Why here: a read takes each grain from the uppermost layer that has it, and otherwise from the
//! image; a write goes to the top layer alone.
//! Must stay true: delivered bytes matched their checksum (or the image's own checks). A grain that
//! is overwritten while it is read is read again, never mixed. A write of a part of a grain
//! excludes other writes of that grain.
//! Called from: any thread.

mod live;
mod read;
mod write;

use super::OverlayError;
use super::enlarged::Enlarged;
use super::format::Entry;
use super::layer::{Layer, Used};
use crate::source::{BlockSource, BlockWrites, Deliver, Extent, ReadError, Written, check_range};
use live::Origin;
pub(super) use live::larger;
use parking_lot::{Condvar, Mutex, RwLock};
use read::{WINDOW_GRAINS, look_up, with_buffer};
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The most layers above an image.
pub(super) const LAYERS_MAX: usize = 64;

/// Layers, the top one first.
type Layers = Arc<[Arc<Layer>]>;

/// An image with layers above it.
pub struct Overlay {
    base: Enlarged,
    /// The top one first. A writer holds the list while it writes, so that its layer stays the top.
    layers: RwLock<Layers>,
    /// Place of the top one, for a new one above it; none in tests. Held while one is put there.
    origin: Mutex<Option<Origin>>,
    /// The layer that was the top one, until it is durable and frozen: no flush is answered before.
    unfrozen: Mutex<Option<Arc<Layer>>>,
    writable: bool,
    grain_bytes: u64,
    /// It only grows.
    size_bytes: AtomicU64,
    ranges: Ranges,
    logged: Mutex<HashSet<u64>>,
}

/// An extent of a device that layers have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Overlay {
    /// Joins layers, the top one first, and their image. All have the same grain; the device is as
    /// large as the top one, and none below is larger.
    pub(super) fn new(base: Arc<dyn BlockSource>, layers: Vec<Layer>, writable: bool) -> Self {
        let superblock = layers[0].superblock();
        let layers: Layers = layers.into_iter().map(Arc::new).collect();
        Self {
            base: Enlarged::new(base, superblock.size_bytes),
            layers: RwLock::new(layers),
            origin: Mutex::new(None),
            unfrozen: Mutex::new(None),
            writable,
            grain_bytes: u64::from(superblock.grain_bytes),
            size_bytes: AtomicU64::new(superblock.size_bytes),
            ranges: Ranges::default(),
            logged: Mutex::new(HashSet::new()),
        }
    }

    /// Size of the device in bytes.
    fn size(&self) -> u64 {
        // Acquire, from the Release in `grow`: the layer and the base have that size, too.
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Number of layers above the image.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.list().len()
    }

    /// The layers as they are now. Recursive: a writer that holds the list reads, too.
    fn list(&self) -> Layers {
        Arc::clone(&self.layers.read_recursive())
    }

    /// Room that the top layer's grains take.
    #[must_use]
    pub fn used(&self) -> Used {
        self.list()[0].used()
    }

    /// Makes all writes durable and leaves the file so that it opens at once. Call it after the
    /// last write.
    ///
    /// # Errors
    /// [`OverlayError`]; on a full disk the writes are durable all the same.
    pub fn close(&self) -> Result<(), OverlayError> {
        if !self.writable {
            return Ok(());
        }
        let top = self.flush_layers()?;
        match top.is_changed() {
            true => top.snapshot(),
            false => Ok(()),
        }
    }

    /// The first extent at or after byte `offset` that one of the upper `depth` layers has; `None`
    /// if there are no more.
    ///
    /// # Errors
    /// [`OverlayError::Damaged`], or the system's.
    pub fn next_changed(&self, offset: u64, depth: usize) -> Result<Option<Changed>, OverlayError> {
        let grains = self.size().div_ceil(self.grain_bytes);
        let mut grain = offset / self.grain_bytes;
        let layers = self.list();
        let layers = &layers[..depth.min(layers.len())];
        let mut first = None;
        while grain < grains {
            // The run is as long as the shortest run of the layers above the one that has data.
            let mut absent = grains - grain;
            let mut has = 0;
            for layer in layers {
                match layer.run(grain, grain + absent)? {
                    (Entry::Absent, run) => absent = absent.min(run.max(1)),
                    (_, run) => {
                        has = run.max(1);
                        break;
                    }
                }
            }
            match (has, first) {
                // A gap after changes ends the extent; a gap before them is skipped.
                (0, Some(_)) => break,
                (0, None) => grain += absent,
                (run, _) => {
                    first.get_or_insert(grain);
                    grain += run;
                }
            }
        }
        // Cut to whole bytes of the device: the first and last grain may reach beyond the request
        // or the end.
        Ok(first.map(|first: u64| {
            let start = (first * self.grain_bytes).max(offset);
            let end = (grain * self.grain_bytes).min(self.size());
            Changed {
                offset: start,
                len: end - start,
            }
        }))
    }

    fn grains_of(&self, offset: u64, len: usize) -> Range<u64> {
        let end = (offset + len.to_u64()).div_ceil(self.grain_bytes);
        offset / self.grain_bytes..end.max(offset / self.grain_bytes)
    }
}

impl BlockSource for Overlay {
    fn size_bytes(&self) -> u64 {
        self.size()
    }

    fn preferred_bytes(&self) -> u32 {
        self.base.preferred_bytes()
    }

    fn read_with_max_bytes(&self) -> usize {
        self.base.read_with_max_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size())?;
        self.read(offset, dst, false)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        if let Err(error) = check_range(offset, len, self.size()) {
            return deliver(Err(&error));
        }
        let grains = self.grains_of(offset, len);
        // A window that no layer has changed is delivered from the image's own cache.
        let untouched = grains.end - grains.start <= WINDOW_GRAINS.to_u64()
            && look_up(&self.list(), grains.clone()).is_ok_and(|window| {
                let entries = &window.entries[..(grains.end - grains.start).to_usize()];
                entries.iter().all(|entry| *entry == Entry::Absent)
            });
        if untouched {
            return self.base.read_with(offset, len, deliver);
        }
        with_buffer(len, |buffer| match self.read(offset, buffer, false) {
            Ok(()) => deliver(Ok(&[buffer])),
            Err(error) => deliver(Err(&error)),
        });
    }

    fn extent(&self, offset: u64) -> Extent {
        if offset >= self.size() {
            return Extent {
                len: 0,
                zero: false,
            };
        }
        let grain = offset / self.grain_bytes;
        let mut end = self.size().div_ceil(self.grain_bytes);
        for layer in self.list().iter() {
            // A damaged map counts as data, whose reads then report the error.
            let (entry, run) = layer
                .run(grain, end)
                .unwrap_or((Entry::Data { slot: 0, check: 0 }, 1));
            let run_end = grain + run.max(1);
            if entry == Entry::Absent {
                // A lower layer counts only as far as all layers above it are absent.
                end = end.min(run_end);
                continue;
            }
            return Extent {
                len: (run_end.min(end) * self.grain_bytes).min(self.size()) - offset,
                zero: entry == Entry::Zero,
            };
        }
        // All layers are absent: the base decides, up to the first grain that a layer has.
        let below = self.base.extent(offset);
        let end = (end * self.grain_bytes).min(self.size());
        Extent {
            len: below.len.min(end - offset),
            zero: below.zero,
        }
    }

    fn written(&self, offset: u64) -> Option<Written> {
        if offset >= self.size() {
            return Some(Written {
                len: 0,
                since: false,
            });
        }
        let grain = offset / self.grain_bytes;
        let end = self.size().div_ceil(self.grain_bytes);
        let layer = &self.list()[0];
        // What a damaged map does not tell counts as written: a backup then reads the error.
        let kind = layer.run(grain, end).unwrap_or((Entry::Zero, 1));
        let since = kind.0 != Entry::Absent;
        let mut run_end = grain + kind.1.max(1);
        // Zeros and data are two kinds of one answer.
        while since && run_end < end {
            match layer.run(run_end, end) {
                Ok((Entry::Absent, _)) | Err(_) => break,
                Ok((_, run)) => run_end += run.max(1),
            }
        }
        Some(Written {
            len: (run_end.min(end) * self.grain_bytes).min(self.size()) - offset,
            since,
        })
    }

    fn writes(&self) -> Option<&dyn BlockWrites> {
        self.writable.then_some(self as &dyn BlockWrites)
    }

    fn waits_for_a_network(&self) -> bool {
        self.base.waits_for_a_network()
    }

    fn release_idle(&self, idle: Duration) {
        self.base.release_idle(idle);
    }
}

/// Ranges of grains that are being written. A write of a part of a grain reads the rest first: of
/// two at once, one would be lost. Each writer holds one range until its guard is dropped.
#[derive(Default)]
struct Ranges {
    held: Mutex<Vec<Range<u64>>>,
    freed: Condvar,
}

/// A range in use.
struct Held<'r> {
    ranges: &'r Ranges,
    range: Range<u64>,
}

impl Ranges {
    /// Takes `range`; waits for the holders of overlapping ranges.
    fn hold(&self, range: Range<u64>) -> Held<'_> {
        let mut held = self.held.lock();
        while held
            .iter()
            .any(|it| it.start < range.end && range.start < it.end)
        {
            self.freed.wait(&mut held);
        }
        held.push(range.clone());
        Held {
            ranges: self,
            range,
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.ranges.held.lock();
        if let Some(at) = held.iter().position(|it| *it == self.range) {
            held.swap_remove(at);
        }
        drop(held);
        self.ranges.freed.notify_all();
    }
}
