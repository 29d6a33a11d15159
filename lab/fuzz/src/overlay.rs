//! Overlays that are damaged or hostile.
//!
//! An input is a short form of a file (its superblock, the beginning of its log and its slots). If
//! its first byte asks for it, the checksums are corrected: otherwise a fuzzer would never get past
//! them.
//! Must stay true: whatever opens can be read and written, and gives what was written, or an error,
//! when it is opened again.
//! Source: `docs/formats/overlay.md`.

use parking_lot::Mutex;
use sidecore_block::overlay::identity::Identity;
use sidecore_block::overlay::store::Store;
use sidecore_block::overlay::tools::open_in;
use sidecore_block::overlay::{GRAIN_BYTES_RANGE, Overlay, OverlayError};
use sidecore_block::source::{BlockSource, BlockWrites, Deliver, Extent, ReadError};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A file in memory, of pages.
#[derive(Clone, Default)]
struct Pages(Arc<Mutex<Contents>>);

/// Pages by their numbers, and the file's size.
#[derive(Default)]
struct Contents(BTreeMap<u64, Vec<u8>>, u64);

impl Store for Pages {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().1)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let file = self.0.lock();
        if !buf.is_empty() && offset + buf.len() as u64 > file.1 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        each_page(
            offset,
            buf.len(),
            &mut |page, within, part| match file.0.get(&page) {
                Some(bytes) => buf[part].copy_from_slice(&bytes[within]),
                None => buf[part].fill(0),
            },
        );
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut file = self.0.lock();
        if offset + bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::ErrorKind::StorageFull.into());
        }
        each_page(offset, bytes.len(), &mut |page, within, part| {
            let page = file.0.entry(page).or_insert_with(|| vec![0; PAGE]);
            page[within].copy_from_slice(&bytes[part]);
        });
        file.1 = file.1.max(offset + bytes.len() as u64);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut file = self.0.lock();
        file.1 = file.1.max(offset + len);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = self.size_bytes()?.saturating_sub(offset).min(len);
        self.write_at(&vec![0; len as usize], offset)
    }
}

impl Pages {
    /// `len` bytes; those past the end are zeros.
    fn read_padded(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let there = self.0.lock().1.saturating_sub(offset).min(len as u64) as usize;
        let read = self.read_at(&mut bytes[..there], offset);
        assert!(read.is_ok(), "they are there");
        bytes
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..at + 4].iter().rev();
    field.fold(0, |above, &byte| above << 8 | u32::from(byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at + 4)) << 32 | u64::from(u32_at(bytes, at))
}

/// Calls `each` with a page, the range in it, and the same range in a buffer for `offset`.
fn each_page(
    offset: u64,
    len: usize,
    each: &mut dyn FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let end = offset + len as u64;
    for page in offset / PAGE as u64..end.div_ceil(PAGE as u64) {
        let start = page * PAGE as u64;
        let (from, to) = (offset.max(start), end.min(start + PAGE as u64));
        let within = (from - start) as usize..(to - start) as usize;
        each(
            page,
            within,
            (from - offset) as usize..(to - offset) as usize,
        );
    }
}

/// Opens any bytes as an overlay; reads and writes what opens.
pub fn fuzz_overlay(data: &[u8]) {
    let Some(pages) = unfold(data) else { return };
    let superblock = pages.read_padded(0, SUPERBLOCK_BYTES);
    let (grain, size) = (u32_at(&superblock, 12), u64_at(&superblock, 48));
    // Larger devices only take longer; other grains are refused, whatever else there is.
    if GRAIN_BYTES_RANGE.contains(&grain) && leaves(grain, size) > LEAVES_MAX {
        return;
    }
    if superblock[56] == 1 {
        let _ = open(&pages, size, false);
        return;
    }
    let Ok(over) = open(&pages, size, true) else {
        return;
    };
    let grain = u64::from(grain);
    let mut bytes = vec![0; (2 * grain).min(size) as usize];
    let mut at = 0;
    for _ in 0..GRAINS_MAX {
        let Ok(Some(changed)) = over.next_changed(at, 1) else {
            break;
        };
        assert!(changed.len > 0 && changed.offset + changed.len <= size);
        let part = changed.len.min(bytes.len() as u64) as usize;
        let _ = over.read_into(changed.offset, &mut bytes[..part]);
        at = changed.offset + changed.len;
    }
    let mut written = Vec::new();
    for (number, offset) in [0, size / 2, size.saturating_sub(grain)]
        .into_iter()
        .enumerate()
    {
        let len = (size - offset).min(grain) as usize;
        let bytes = vec![number as u8 + 1; len];
        written.retain(|&(other, _): &(u64, u8)| other.abs_diff(offset) >= grain);
        if over.write(offset, &bytes).is_ok() {
            written.push((offset, number as u8 + 1));
        }
    }
    let _ = over.write_zeroes(grain, grain.min(size.saturating_sub(grain)));
    written.retain(|&(offset, _)| offset >= 2 * grain || offset == 0);
    if over.flush().is_err() || (data[0] & 8 != 0 && over.close().is_err()) {
        return;
    }
    drop(over);
    // A map that names one slot twice shows when the log is read, or by its checksums.
    let Ok(over) = open(&pages, size, true) else {
        return;
    };
    for (offset, byte) in written {
        let mut read = [0];
        if over.read_into(offset, &mut read).is_ok() {
            assert_eq!(read[0], byte, "at {offset}");
        }
    }
}

fn open(pages: &Pages, size: u64, writable: bool) -> Result<Overlay, OverlayError> {
    let identity = Identity {
        size_bytes: size,
        hash: [2; 32],
        key: None,
    };
    let base = Arc::new(Zeros(size));
    open_in(
        Box::new(pages.clone()),
        base,
        &identity,
        writable,
        MAP_BYTES,
    )
}

/// Leaves of the map of a device; a leaf takes a grain.
fn leaves(grain_bytes: u32, size_bytes: u64) -> u64 {
    let grain = u64::from(grain_bytes);
    size_bytes.div_ceil(grain).div_ceil(grain / ENTRY_BYTES)
}

/// A base of zeros.
struct Zeros(u64);

impl BlockSource for Zeros {
    fn size_bytes(&self) -> u64 {
        self.0
    }

    fn preferred_bytes(&self) -> u32 {
        4096
    }

    fn read_with_max_bytes(&self) -> usize {
        1 << 20
    }

    fn read_into(&self, _: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        dst.fill(0);
        Ok(())
    }

    fn read_with(&self, _: u64, len: usize, deliver: &mut Deliver<'_>) {
        deliver(Ok(&[&vec![0; len]]));
    }

    fn extent(&self, offset: u64) -> Extent {
        Extent {
            len: self.0 - offset,
            zero: true,
        }
    }
}

/// A file of an input: flags, lengths of the first two parts (2 bytes each), the superblock without
/// its zeros at the end, the log likewise, the slots.
fn unfold(data: &[u8]) -> Option<Pages> {
    let (head, rest) = data.split_first_chunk::<5>()?;
    let len = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let (superblock, rest) = rest.split_at_checked(len(1))?;
    let (log, slots) = rest.split_at_checked(len(3))?;
    if superblock.len() > SUPERBLOCK_BYTES {
        return None;
    }
    let mut first = superblock.to_vec();
    first.resize(SUPERBLOCK_BYTES, 0);
    let mut log = log.to_vec();
    if head[0] & 1 != 0 {
        if head[0] & 4 != 0 {
            snapshot_check(&mut first, slots);
        }
        let check = xxh3_64(&first[..CHECK_AT]);
        first[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
    }
    if head[0] & 2 != 0 {
        group_checks(&mut log, u64_at(&first, 32));
    }
    let pages = Pages::default();
    let half = u64::from(first[57] & 1);
    pages.write_at(&first, 0).ok()?;
    pages.write_at(&log, LOG_AT + half * LOG_BYTES).ok()?;
    pages.write_at(slots, SLOTS_AT).ok()?;
    Some(pages)
}

/// Makes the checksum of the snapshot right that a superblock points to.
fn snapshot_check(superblock: &mut [u8], slots: &[u8]) {
    let slot_bytes = u64::from(u32_at(superblock, 12));
    let start = u64_at(superblock, 80).checked_mul(slot_bytes);
    let end = start.and_then(|start| start.checked_add(u64_at(superblock, 88)));
    if let (Some(start), Some(end)) = (start, end)
        && let Some(snapshot) = slots.get(start as usize..end as usize)
    {
        superblock[96..104].copy_from_slice(&xxh3_64(snapshot).to_le_bytes());
    }
}

/// Makes the checksums of all groups right.
fn group_checks(log: &mut [u8], salt: u64) {
    let mut at = 0;
    while at + CHANGE_BYTES <= log.len() {
        let end = at + CHANGE_BYTES * (u32_at(&log[at..], 4).min(1 << 16) as usize + 1);
        let Some(group) = log.get_mut(at..end) else {
            return;
        };
        group[16..24].fill(0);
        let check = xxh3_64_with_seed(group, salt);
        group[16..24].copy_from_slice(&check.to_le_bytes());
        at = end;
    }
}

/// Inputs to begin with: overlays after some writes, with and without snapshots.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, grain_bytes) in [4096_u32, 4096, 8192, 16384, 65536].into_iter().enumerate() {
        let pages = Pages::default();
        let size_bytes = 300 * u64::from(grain_bytes) - 77;
        let superblock = superblock(grain_bytes, size_bytes);
        for at in [0, SUPERBLOCK_BYTES as u64] {
            let written = pages.write_at(&superblock, at);
            assert!(written.is_ok(), "memory takes two superblocks");
        }
        seeds.push(fold(&pages, 0xB));
        let Ok(over) = open(&pages, size_bytes, true) else {
            continue;
        };
        let grain = u64::from(grain_bytes);
        let _ = over.write(3 * grain, &vec![7; grain_bytes as usize]);
        let _ = over.write_zeroes(grain, 5 * grain);
        let _ = over.flush();
        let _ = over.write(4 * grain + 5, &[8; 90]);
        let _ = over.flush();
        if number % 2 == 1 {
            let _ = over.close();
            let _ = over.write(0, &[9; 100]);
            let _ = over.flush();
        }
        drop(over);
        for flags in [0, 7] {
            seeds.push(fold(&pages, flags));
        }
    }
    // The replay takes few bytes.
    seeds.retain(|seed| seed.len() < 64 << 10);
    seeds
}

/// The superblock of an overlay that holds nothing.
fn superblock(grain_bytes: u32, size_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, b"sideover");
    put(8, &1_u32.to_le_bytes());
    put(12, &grain_bytes.to_le_bytes());
    put(16, &[1; 16]);
    // Salt, generation, and the number of the first group.
    put(32, &5_u64.to_le_bytes());
    put(40, &1_u64.to_le_bytes());
    put(48, &size_bytes.to_le_bytes());
    put(64, &1_u64.to_le_bytes());
    put(112, &[2; 32]);
    put(162, &4_u16.to_le_bytes());
    put(1200, b"base");
    let check = xxh3_64(&bytes[..CHECK_AT]);
    bytes[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
    bytes
}

fn fold(pages: &Pages, flags: u8) -> Vec<u8> {
    let part = |offset: u64, len: u64| {
        let mut bytes = pages.read_padded(offset, len as usize);
        let end = bytes
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |at| at + 1);
        bytes.truncate(end);
        bytes
    };
    let superblock = part(0, SUPERBLOCK_BYTES as u64);
    let half = superblock.get(57).copied().unwrap_or(0);
    let log = part(LOG_AT + u64::from(half) * LOG_BYTES, LOG_BYTES);
    let slots = part(SLOTS_AT, 40 * 65536);
    let mut seed = vec![flags];
    seed.extend_from_slice(&(superblock.len() as u16).to_le_bytes());
    seed.extend_from_slice(&(log.len() as u16).to_le_bytes());
    seed.extend([superblock, log, slots].concat());
    seed
}

const SUPERBLOCK_BYTES: usize = 4096;
/// Where a superblock has its checksum.
const CHECK_AT: usize = SUPERBLOCK_BYTES - 8;
/// The log's first half.
const LOG_AT: u64 = 64 << 10;
/// Bytes of a half.
const LOG_BYTES: u64 = 4 << 20;
const SLOTS_AT: u64 = LOG_AT + 2 * LOG_BYTES;
/// An entry of a leaf.
const ENTRY_BYTES: u64 = 16;
/// A change in the log, and a group's head.
const CHANGE_BYTES: usize = 24;
/// What is kept of a map: little, so that leaves are read again.
const MAP_BYTES: usize = 1 << 16;
const PAGE: usize = 4096;
const FILE_BYTES_MAX: u64 = SLOTS_AT + (64 << 20);
const LEAVES_MAX: u64 = 4096;
/// Changed stretches that are read.
const GRAINS_MAX: usize = 16;
