//! Reads of an overlay: the layers' map, window by window, and the bytes of grains, checked.

use super::super::OverlayError;
use super::super::format::Entry;
use super::super::layer::Layer;
use super::Overlay;
use crate::source::{BlockSource, ReadError};
use sidecore_bare::width::{ToU64, ToUsize};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// The places of the grains of a window.
pub(super) struct Window {
    pub(super) entries: [Entry; WINDOW_GRAINS],
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

/// The places of the grains in a window of at most [`WINDOW_GRAINS`].
pub(super) fn look_up(layers: &[Arc<Layer>], grains: Range<u64>) -> Result<Window, OverlayError> {
    let count = (grains.end - grains.start).to_usize();
    let mut window = Window {
        entries: [Entry::Absent; WINDOW_GRAINS],
        layers: [0; WINDOW_GRAINS],
    };
    let mut found = 0;
    for (number, layer) in (0..).zip(layers) {
        let Window { entries, layers } = &mut window;
        layer.look_up(grains.start, &mut entries[..count], |at| {
            layers[at] = number;
            found += 1;
        })?;
        // Lower layers matter only for grains that are absent above.
        if found == count {
            break;
        }
    }
    Ok(window)
}

impl Overlay {
    /// Reads `dst`, window by window. With `held`, the caller holds the range, so that none of its
    /// grains can change.
    pub(super) fn read(&self, offset: u64, dst: &mut [u8], held: bool) -> Result<(), ReadError> {
        let mut at = offset;
        let mut rest = dst;
        while !rest.is_empty() {
            let window_end = (at / self.grain_bytes + WINDOW_GRAINS.to_u64()) * self.grain_bytes;
            let len = (window_end - at).min(rest.len().to_u64()).to_usize();
            let (part, others) = rest.split_at_mut(len);
            self.read_window(at, part, held)?;
            at += len.to_u64();
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
        let count = (grains.end - grains.start).to_usize();
        // One list for places and bytes: a new layer may come on top meanwhile.
        let list = self.list();
        let window = look_up(&list, grains.clone())?;
        let mut from = 0;
        while from < count {
            let run = window.run(from, count);
            let start = ((grains.start + from.to_u64()) * self.grain_bytes).max(offset);
            let end = (grains.start + (from + run).to_u64()) * self.grain_bytes;
            let end = end.min(offset + dst.len().to_u64());
            let part = &mut dst[(start - offset).to_usize()..(end - offset).to_usize()];
            match window.entries[from] {
                Entry::Absent => self.base.read_into(start, part).map_err(Miss::Failed)?,
                Entry::Zero => part.fill(0),
                Entry::Data { .. } => {
                    let layer = &list[usize::from(window.layers[from])];
                    let entries = &window.entries[from..from + run];
                    self.read_data(layer, grains.start + from.to_u64(), entries, start, part)?;
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
        let grain_bytes = self.grain_bytes.to_usize();
        let whole = entries.len() * grain_bytes;
        if whole == part.len() {
            return self.read_checked(layer, first, entries, part);
        }
        // Checksums cover whole grains, so grains that are read in part go through a buffer.
        with_scratch(whole, |scratch| {
            self.read_checked(layer, first, entries, scratch)?;
            let skip = (start - first * self.grain_bytes).to_usize();
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
        let (grain_bytes, slot_bytes) = (self.grain_bytes.to_usize(), layer.slot_bytes());
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
            let skipped = (number * at_once).to_u64();
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
                    next == slot + run.to_u64() && self.layers[from] == self.layers[from + run]
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
pub(super) fn with_buffer<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
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
pub(super) const WINDOW_GRAINS: usize = 256;
/// Bytes of sealed slots that are read at once.
const SEALED_READ_BYTES: usize = 256 << 10;
/// Attempts to read a window without locking writers out.
const TRIES_MAX: usize = 4;
/// Damaged grains that are logged, each once.
const LOGGED_MAX: usize = 1024;
