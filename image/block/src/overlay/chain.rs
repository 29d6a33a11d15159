//! An image and the layers above it, as one device.
//!
//! Why here: a read takes each grain from the uppermost layer that has it, and otherwise from the
//! image; a write goes to the top layer alone.
//! Must stay true: delivered bytes matched their checksum (or the image's own checks). A grain that
//! is overwritten while it is read is read again, never mixed. A write of a part of a grain
//! excludes other writes of that grain.
//! Called from: any thread.

use super::OverlayError;
use super::format::Entry;
use super::layer::Layer;
use super::ranges::Ranges;
use crate::source::{
    BlockSource, BlockWrites, Deliver, Extent, ReadError, WriteError, check_range,
};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The most layers above an image.
pub const LAYERS_MAX: usize = 64;

/// An image with layers above it.
pub struct Overlay {
    base: Arc<dyn BlockSource>,
    /// The top one first.
    layers: Vec<Layer>,
    writable: bool,
    grain_bytes: u64,
    size_bytes: u64,
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

/// The places of the grains of a window.
struct Window {
    entries: [Entry; WINDOW_GRAINS],
    layers: [u8; WINDOW_GRAINS],
}

/// The reason why a window is not read: a grain of it was written meanwhile, or an error.
enum Miss {
    Again,
    Failed(ReadError),
}

impl From<OverlayError> for Miss {
    fn from(error: OverlayError) -> Self {
        Self::Failed(ReadError::Io {
            reason: error.to_string(),
        })
    }
}

impl Overlay {
    /// Joins layers, the top one first, and their image. All have the same grain and size.
    pub(super) fn new(base: Arc<dyn BlockSource>, layers: Vec<Layer>, writable: bool) -> Self {
        let superblock = layers[0].superblock();
        Self {
            base,
            layers,
            writable,
            grain_bytes: u64::from(superblock.grain_bytes),
            size_bytes: superblock.size_bytes,
            ranges: Ranges::default(),
            logged: Mutex::new(HashSet::new()),
        }
    }

    /// Number of layers above the image.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.len()
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
        self.layers[0].flush()?;
        match self.layers[0].is_changed() {
            true => self.layers[0].snapshot(),
            false => Ok(()),
        }
    }

    /// The first extent at or after byte `offset` that one of the upper `depth` layers has; `None`
    /// if there are no more.
    ///
    /// # Errors
    /// [`OverlayError::Damaged`], or the system's.
    pub fn next_changed(&self, offset: u64, depth: usize) -> Result<Option<Changed>, OverlayError> {
        let grains = self.size_bytes.div_ceil(self.grain_bytes);
        let mut grain = offset / self.grain_bytes;
        let layers = &self.layers[..depth.min(self.layers.len())];
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
            let end = (grain * self.grain_bytes).min(self.size_bytes);
            Changed {
                offset: start,
                len: end - start,
            }
        }))
    }

    fn grains_of(&self, offset: u64, len: usize) -> Range<u64> {
        let end = (offset + len as u64).div_ceil(self.grain_bytes);
        offset / self.grain_bytes..end.max(offset / self.grain_bytes)
    }

    fn look_up(&self, grains: Range<u64>) -> Result<Window, OverlayError> {
        let count = (grains.end - grains.start) as usize;
        let mut window = Window {
            entries: [Entry::Absent; WINDOW_GRAINS],
            layers: [0; WINDOW_GRAINS],
        };
        let mut found = 0;
        for (number, layer) in self.layers.iter().enumerate() {
            let Window { entries, layers } = &mut window;
            layer.look_up(grains.start, &mut entries[..count], |at| {
                layers[at] = number as u8;
                found += 1;
            })?;
            // Lower layers matter only for grains that are absent above.
            if found == count {
                break;
            }
        }
        Ok(window)
    }

    /// Reads `dst`, window by window. With `held`, the caller holds the range, so that none of its
    /// grains can change.
    fn read(&self, offset: u64, dst: &mut [u8], held: bool) -> Result<(), ReadError> {
        let mut at = offset;
        let mut rest = dst;
        while !rest.is_empty() {
            let window_end = (at / self.grain_bytes + WINDOW_GRAINS as u64) * self.grain_bytes;
            let len = (window_end - at).min(rest.len() as u64) as usize;
            let (part, others) = rest.split_at_mut(len);
            self.read_window(at, part, held)?;
            at += len as u64;
            rest = others;
        }
        Ok(())
    }

    fn read_window(&self, offset: u64, dst: &mut [u8], held: bool) -> Result<(), ReadError> {
        for _ in 0..TRIES_MAX {
            match self.try_window(offset, dst) {
                Ok(()) => return Ok(()),
                Err(Miss::Failed(error)) => return Err(error),
                Err(Miss::Again) => {}
            }
        }
        // A writer changes these grains again and again: this time the read locks it out.
        let _held = (!held).then(|| self.ranges.hold(self.grains_of(offset, dst.len())));
        match self.try_window(offset, dst) {
            Ok(()) => Ok(()),
            Err(Miss::Failed(error)) => Err(error),
            Err(Miss::Again) => Err(ReadError::Io {
                reason: "the overlay changed while it was read".to_owned(),
            }),
        }
    }

    fn try_window(&self, offset: u64, dst: &mut [u8]) -> Result<(), Miss> {
        let grains = self.grains_of(offset, dst.len());
        let count = (grains.end - grains.start) as usize;
        let window = self.look_up(grains.clone())?;
        let mut from = 0;
        while from < count {
            let run = window.run(from, count);
            let start = ((grains.start + from as u64) * self.grain_bytes).max(offset);
            let end = (grains.start + (from + run) as u64) * self.grain_bytes;
            let end = end.min(offset + dst.len() as u64);
            let part = &mut dst[(start - offset) as usize..(end - offset) as usize];
            match window.entries[from] {
                Entry::Absent => self.base.read_into(start, part).map_err(Miss::Failed)?,
                Entry::Zero => part.fill(0),
                Entry::Data { .. } => {
                    let layer = &self.layers[usize::from(window.layers[from])];
                    let entries = &window.entries[from..from + run];
                    self.read_data(layer, grains.start + from as u64, entries, start, part)?;
                }
            }
            from += run;
        }
        Ok(())
    }

    /// Reads grains of one layer that lie in neighbouring slots. `part` begins at byte `start` and
    /// may cut the first and the last grain.
    fn read_data(
        &self,
        layer: &Layer,
        first: u64,
        entries: &[Entry],
        start: u64,
        part: &mut [u8],
    ) -> Result<(), Miss> {
        let grain_bytes = self.grain_bytes as usize;
        let whole = entries.len() * grain_bytes;
        if whole == part.len() {
            return self.read_checked(layer, first, entries, part);
        }
        // Checksums cover whole grains, so grains that are read in part go through a buffer.
        with_scratch(whole, |scratch| {
            self.read_checked(layer, first, entries, scratch)?;
            let skip = (start - first * self.grain_bytes) as usize;
            part.copy_from_slice(&scratch[skip..skip + part.len()]);
            Ok(())
        })
    }

    fn read_checked(
        &self,
        layer: &Layer,
        first: u64,
        entries: &[Entry],
        out: &mut [u8],
    ) -> Result<(), Miss> {
        let Some(Entry::Data { slot, .. }) = entries.first() else {
            return Ok(());
        };
        let (grain_bytes, slot_bytes) = (self.grain_bytes as usize, layer.slot_bytes());
        // Slots without encryption are as long as grains, so they are read straight into `out`.
        if slot_bytes == grain_bytes {
            layer.read_slots(*slot, out)?;
            for ((bytes, entry), grain) in out.chunks_mut(grain_bytes).zip(entries).zip(first..) {
                self.judge(layer, grain, *entry, bytes)?;
            }
            return Ok(());
        }
        // Slots that are longer than their grains are opened in a buffer, a few at a time.
        let at_once = (SEALED_READ_BYTES / slot_bytes).max(1);
        let parts = out.chunks_mut(at_once * grain_bytes);
        for (number, (out, entries)) in parts.zip(entries.chunks(at_once)).enumerate() {
            let skipped = (number * at_once) as u64;
            with_sealed(entries.len() * slot_bytes, |slots| {
                layer.read_slots(slot + skipped, slots)?;
                let slots = slots.chunks_exact_mut(slot_bytes);
                let grains = out.chunks_mut(grain_bytes).zip(slots);
                for (((out, slot), entry), grain) in grains.zip(entries).zip(first + skipped..) {
                    self.judge(layer, grain, *entry, slot)?;
                    out.copy_from_slice(&slot[..grain_bytes]);
                }
                Ok::<(), Miss>(())
            })?;
        }
        Ok(())
    }

    fn judge(&self, layer: &Layer, grain: u64, entry: Entry, slot: &mut [u8]) -> Result<(), Miss> {
        match layer.judge(grain, entry, slot)? {
            Some(true) => Ok(()),
            None => Err(Miss::Again),
            Some(false) => Err(Miss::Failed(self.damaged(grain))),
        }
    }

    fn damaged(&self, grain: u64) -> ReadError {
        let offset = grain * self.grain_bytes;
        let reason = format!("the overlay is damaged at byte {offset} of the device");
        let mut logged = self.logged.lock();
        if logged.len() < LOGGED_MAX && logged.insert(grain) {
            tracing::error!("{reason}: reads of it fail until it is written again");
        }
        ReadError::Io { reason }
    }

    /// Replaces a part of one grain. The caller holds it.
    fn write_part(&self, offset: u64, part: Part<'_>) -> Result<(), WriteError> {
        let grain = offset / self.grain_bytes;
        let start = grain * self.grain_bytes;
        // The last grain may extend beyond the device.
        let there = (self.size_bytes - start).min(self.grain_bytes) as usize;
        let skip = (offset - start) as usize;
        let mut bytes = vec![0; self.grain_bytes as usize];
        // A whole grain is replaced without reading it.
        if skip > 0 || part.len() < there {
            let read = self.read(start, &mut bytes[..there], true);
            read.map_err(|error| WriteError::Io {
                reason: error.to_string(),
            })?;
        }
        match part {
            Part::Bytes(part) => bytes[skip..skip + part.len()].copy_from_slice(part),
            Part::Zeros(len) => bytes[skip..skip + len].fill(0),
        }
        Ok(self.layers[0].write(grain, &bytes)?)
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(WriteError::OutOfRange {
                offset,
                len,
                size_bytes: self.size_bytes,
            }),
        }
    }

    /// The grains that lie wholly in a range; the device's last one may be shorter than others.
    fn whole_grains(&self, offset: u64, len: u64) -> Range<u64> {
        let end = match offset + len == self.size_bytes {
            true => self.size_bytes.div_ceil(self.grain_bytes),
            false => (offset + len) / self.grain_bytes,
        };
        offset.div_ceil(self.grain_bytes)..end
    }
}

impl Window {
    /// Length of the run from `from` that can be read at once.
    fn run(&self, from: usize, count: usize) -> usize {
        let first = self.entries[from];
        let mut run = 1;
        while from + run < count {
            let next = self.entries[from + run];
            let joins = match (first, next) {
                (Entry::Absent, Entry::Absent) | (Entry::Zero, Entry::Zero) => true,
                (Entry::Data { slot, .. }, Entry::Data { slot: next, .. }) => {
                    // Neighbouring slots of one layer are one read.
                    next == slot + run as u64 && self.layers[from] == self.layers[from + run]
                }
                _ => false,
            };
            if !joins {
                break;
            }
            run += 1;
        }
        run
    }
}

/// A part of a grain to be written.
enum Part<'b> {
    Bytes(&'b [u8]),
    Zeros(usize),
}

impl Part<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => *len,
        }
    }
}

impl BlockSource for Overlay {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn preferred_bytes(&self) -> u32 {
        self.base.preferred_bytes()
    }

    fn read_with_max_bytes(&self) -> usize {
        self.base.read_with_max_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes)?;
        self.read(offset, dst, false)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        if let Err(error) = check_range(offset, len, self.size_bytes) {
            return deliver(Err(&error));
        }
        let grains = self.grains_of(offset, len);
        // A window that no layer has changed is delivered from the image's own cache.
        let untouched = grains.end - grains.start <= WINDOW_GRAINS as u64
            && self.look_up(grains.clone()).is_ok_and(|window| {
                let entries = &window.entries[..(grains.end - grains.start) as usize];
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
        if offset >= self.size_bytes {
            return Extent {
                len: 0,
                zero: false,
            };
        }
        let grain = offset / self.grain_bytes;
        let mut end = self.size_bytes.div_ceil(self.grain_bytes);
        for layer in &self.layers {
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
                len: (run_end.min(end) * self.grain_bytes).min(self.size_bytes) - offset,
                zero: entry == Entry::Zero,
            };
        }
        // All layers are absent: the base decides, up to the first grain that a layer has.
        let below = self.base.extent(offset);
        let end = (end * self.grain_bytes).min(self.size_bytes);
        Extent {
            len: below.len.min(end - offset),
            zero: below.zero,
        }
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

impl BlockWrites for Overlay {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        self.check(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        // The range is held, since partial grains are read, changed and written back.
        let _held = self.ranges.hold(self.grains_of(offset, bytes.len()));
        let grain_bytes = self.grain_bytes as usize;
        let head = (offset.next_multiple_of(self.grain_bytes) - offset).min(bytes.len() as u64);
        let (head, rest) = bytes.split_at(head as usize);
        let (whole, tail) = rest.split_at(rest.len() / grain_bytes * grain_bytes);
        if !head.is_empty() {
            self.write_part(offset, Part::Bytes(head))?;
        }
        let at = offset + head.len() as u64;
        if !whole.is_empty() {
            self.layers[0].write(at / self.grain_bytes, whole)?;
        }
        if !tail.is_empty() {
            self.write_part(at + whole.len() as u64, Part::Bytes(tail))?;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let end = offset + len;
        let last = (end - 1) / self.grain_bytes;
        let _held = self.ranges.hold(offset / self.grain_bytes..last + 1);
        let whole = self.whole_grains(offset, len);
        if whole.start >= whole.end {
            // Parts of one grain, or of two neighbours.
            let middle = (offset / self.grain_bytes + 1) * self.grain_bytes;
            let first_end = middle.min(end);
            self.write_part(offset, Part::Zeros((first_end - offset) as usize))?;
            if first_end < end {
                self.write_part(first_end, Part::Zeros((end - first_end) as usize))?;
            }
            return Ok(());
        }
        let (start, stop) = (whole.start * self.grain_bytes, whole.end * self.grain_bytes);
        // Partial grains are read, modified and written; whole grains between them only change the
        // map.
        if offset < start {
            self.write_part(offset, Part::Zeros((start - offset) as usize))?;
        }
        self.layers[0].zero(whole)?;
        if stop < end {
            self.write_part(stop, Part::Zeros((end - stop) as usize))?;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), WriteError> {
        self.check(offset, len)?;
        let whole = self.whole_grains(offset, len);
        if whole.start < whole.end {
            let _held = self.ranges.hold(whole.clone());
            self.layers[0].zero(whole)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), WriteError> {
        Ok(self.layers[0].flush()?)
    }

    fn grain_bytes(&self) -> u32 {
        self.grain_bytes as u32
    }
}

impl From<OverlayError> for WriteError {
    fn from(error: OverlayError) -> Self {
        let reason = error.to_string();
        match error {
            OverlayError::NoSpace(_) => Self::NoSpace { reason },
            _ => Self::Io { reason },
        }
    }
}

/// Runs `work` on this thread's buffer for grains that are read to be checked.
fn with_scratch<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        work(&mut buffer[..len])
    })
}

/// Runs `work` on this thread's buffer for sealed slots.
fn with_sealed<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SEALED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SEALED.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        work(&mut buffer[..len])
    })
}

/// Runs `work` on this thread's buffer for a delivery.
fn with_buffer<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    // Taken out meanwhile: a delivery may lead to another read on this thread.
    let mut buffer = BUFFER.take();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let result = work(&mut buffer[..len]);
    BUFFER.set(buffer);
    result
}

/// Grains of one map look-up.
const WINDOW_GRAINS: usize = 256;
/// Bytes of sealed slots that are read at once.
const SEALED_READ_BYTES: usize = 256 << 10;
/// Attempts to read a window without locking writers out.
const TRIES_MAX: usize = 4;
/// Damaged grains that are logged, each once.
const LOGGED_MAX: usize = 1024;
