//! Exports the contents of any source as a plain file or a qcow2 image; and compares two sources.
//!
//! Why here: images with overlays have to be usable by programs that know neither. The qcow2 output
//! is of version 3, with clusters of 64 KiB and no backing file; zeros are not stored.
//! Must stay true: memory is bounded by the tables of one image: 8 bytes for each 64 KiB within 512
//! MiB of contents, and 8 for each 512 MiB. A file appears under its name only when it is whole.
//! Source: QEMU's `docs/interop/qcow2.rst`.

use super::{PackError, Sink, Target, Work};
use crate::format::FormatError;
use crate::format::write::is_zero;
use crate::source::BlockSource;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_terminal::Text;
use std::io;
use std::path::Path;

/// Form of [`export`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlatFormat {
    /// The bytes, with holes.
    Raw,
    /// QEMU's.
    Qcow2,
}

/// Result of [`export`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Exported {
    /// Bytes of contents.
    pub raw_bytes: u64,
    /// Size of the file in bytes, holes included.
    pub stored_bytes: u64,
}

impl Exported {
    /// The file at `path`, written in `seconds`, for people.
    #[must_use]
    pub fn text(&self, path: &Path, seconds: f64) -> Text {
        super::written(path, self.raw_bytes, seconds)
    }
}

/// Writes the contents of `source` to `target`. `progress` is called with the number of bytes done.
///
/// # Errors
/// [`PackError`]; the target is then unchanged.
pub fn export(
    source: &dyn BlockSource,
    target: Target<'_>,
    format: FlatFormat,
    work: impl Into<Work>,
    progress: &mut dyn FnMut(u64),
) -> Result<Exported, PackError> {
    let work = work.into();
    let mut sink = Sink::open(target, None)?;
    let raw_bytes = source.size_bytes();
    let front = match format {
        FlatFormat::Raw => {
            each_part(source, 0..raw_bytes, &mut |offset, part| {
                work.check_time()?;
                match part {
                    Part::Bytes(bytes) if !is_zero(bytes) => sink.write(bytes)?,
                    _ => sink.skip_zeros(part.len())?,
                }
                progress(offset + part.len());
                Ok(())
            })?;
            None
        }
        FlatFormat::Qcow2 => Some(write_qcow2(source, &mut sink, work, progress)?),
    };
    let stored_bytes = sink.offset;
    sink.finish(front.as_deref())?;
    Ok(Exported {
        raw_bytes,
        stored_bytes,
    })
}

/// A part of the contents.
#[derive(Clone, Copy)]
enum Part<'b> {
    /// A cluster, or the rest of one.
    Bytes(&'b [u8]),
    /// Whole clusters of zeros, or zeros up to the end of a range, as the source reports.
    Zeros(u64),
}

impl Part<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len().to_u64(),
            Self::Zeros(len) => *len,
        }
    }
}

/// Receives a part of the contents, and the offset of its first byte.
type Take<'a> = dyn FnMut(u64, Part<'_>) -> Result<(), PackError> + 'a;

/// Passes on the contents of a range in order, a cluster at a time, or as a run of zeros.
fn each_part(
    source: &dyn BlockSource,
    range: std::ops::Range<u64>,
    each: &mut Take<'_>,
) -> Result<(), PackError> {
    let mut buffer = vec![0; READ_BYTES];
    let mut offset = range.start;
    while offset < range.end {
        let left = range.end - offset;
        let len = left.min(READ_BYTES.to_u64()).to_usize();
        let part = &mut buffer[..len];
        let extent = source.extent(offset);
        if extent.zero && extent.len >= len.to_u64() {
            // Zeros inside the range end at a whole cluster, so that later parts are whole clusters
            // again.
            let whole = extent.len / CLUSTER_BYTES.to_u64() * CLUSTER_BYTES.to_u64();
            let zeros = if extent.len >= left { left } else { whole };
            each(offset, Part::Zeros(zeros))?;
            offset += zeros;
            continue;
        }
        source
            .read_into(offset, part)
            .map_err(|error| unreadable(&error))?;
        for (cluster, at) in part
            .chunks(CLUSTER_BYTES)
            .zip((offset..).step_by(CLUSTER_BYTES))
        {
            each(at, Part::Bytes(cluster))?;
        }
        offset += len.to_u64();
    }
    Ok(())
}

fn unreadable(error: &crate::source::ReadError) -> PackError {
    PackError::Source {
        path: "the image".into(),
        source: io::Error::other(error.to_string()),
    }
}

/// Writes all of a qcow2 image but its header, which it returns: that goes to the front of the
/// file.
fn write_qcow2(
    source: &dyn BlockSource,
    sink: &mut Sink,
    work: Work,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<u8>, PackError> {
    let raw_bytes = source.size_bytes();
    if raw_bytes > QCOW2_BYTES_MAX {
        return Err(PackError::Format(FormatError::CannotWrite {
            format: "qcow2",
            what: format!("{raw_bytes} bytes of contents"),
            reason: "in clusters of 64 KiB an image has at most 2 PiB",
            next: "leave out --qcow2",
        }));
    }
    let mut level1 = vec![0_u64; raw_bytes.div_ceil(TABLE_SPAN_BYTES).to_usize()];
    // Cluster 0 is the header's, which is written last, once all offsets are known.
    sink.write(&[0; CLUSTER_BYTES])?;
    for (number, pointer) in level1.iter_mut().enumerate() {
        let start = number.to_u64() * TABLE_SPAN_BYTES;
        let end = (start + TABLE_SPAN_BYTES).min(raw_bytes);
        work.check_time()?;
        // A second-level table without data stays a null pointer: a hole costs nothing.
        let extent = source.extent(start);
        if extent.zero && extent.len >= end - start {
            progress(end);
            continue;
        }
        let mut table = vec![0_u64; TABLE_ENTRIES];
        each_part(source, start..end, &mut |offset, part| {
            if let Part::Bytes(bytes) = part
                && !is_zero(bytes)
            {
                table[((offset - start) / CLUSTER_BYTES.to_u64()).to_usize()] =
                    COPIED | sink.offset;
                sink.write(bytes)?;
                // Clusters are whole even at the end of the disk.
                if bytes.len() < CLUSTER_BYTES {
                    sink.write(&vec![0; CLUSTER_BYTES - bytes.len()])?;
                }
            }
            progress(offset + part.len());
            Ok(())
        })?;
        // Zeros that the source did not report as a hole need no table either.
        if table.iter().any(|&entry| entry != 0) {
            *pointer = COPIED | sink.offset;
            write_words(sink, &table)?;
        }
    }
    let level1_at = sink.offset;
    write_words(sink, &level1)?;
    let (table_at, tables) = write_counts(sink)?;
    let mut header = Vec::with_capacity(HEADER_BYTES.to_usize());
    header.extend_from_slice(b"QFI\xfb");
    header.extend_from_slice(&3_u32.to_be_bytes());
    header.extend_from_slice(&[0; 12]); // No backing file.
    header.extend_from_slice(&(CLUSTER_BYTES.trailing_zeros()).to_be_bytes());
    // Readers expect whole sectors.
    header.extend_from_slice(&raw_bytes.next_multiple_of(512).to_be_bytes());
    header.extend_from_slice(&0_u32.to_be_bytes()); // Not encrypted.
    header.extend_from_slice(&(level1.len() as u32).to_be_bytes());
    header.extend_from_slice(&level1_at.to_be_bytes());
    header.extend_from_slice(&table_at.to_be_bytes());
    header.extend_from_slice(&(tables as u32).to_be_bytes());
    header.extend_from_slice(&[0; 12]); // No snapshots.
    header.extend_from_slice(&[0; 24]); // No features.
    header.extend_from_slice(&4_u32.to_be_bytes()); // Counts of 16 bits.
    header.extend_from_slice(&HEADER_BYTES.to_be_bytes());
    Ok(header)
}

/// Writes the reference counts of all clusters, which are used once each, and the table of the
/// counts' clusters; returns where that is, and how many clusters it takes.
fn write_counts(sink: &mut Sink) -> Result<(u64, u64), PackError> {
    let used = sink.offset / CLUSTER_BYTES.to_u64();
    // The reference counts also count their own blocks and the table of those.
    let (mut blocks, mut tables) = (0, 0);
    loop {
        let total = used + blocks + tables;
        let wanted = total.div_ceil(COUNTS_IN_BLOCK);
        let wanted_tables = wanted.div_ceil(TABLE_ENTRIES.to_u64());
        if (wanted, wanted_tables) == (blocks, tables) {
            break;
        }
        (blocks, tables) = (wanted, wanted_tables);
    }
    let total = used + blocks + tables;
    let blocks_at = sink.offset;
    for block in 0..blocks {
        let counted = (total - block * COUNTS_IN_BLOCK).min(COUNTS_IN_BLOCK);
        let mut counts = vec![0_u8; CLUSTER_BYTES];
        for count in counts.chunks_exact_mut(2).take(counted.to_usize()) {
            count.copy_from_slice(&1_u16.to_be_bytes());
        }
        sink.write(&counts)?;
    }
    let table_at = sink.offset;
    let entries = (0..blocks).map(|block| blocks_at + block * CLUSTER_BYTES.to_u64());
    write_words(sink, &entries.collect::<Vec<_>>())?;
    Ok((table_at, tables))
}

/// Writes words, padded with zeros to a whole cluster.
fn write_words(sink: &mut Sink, words: &[u64]) -> Result<(), PackError> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.resize(bytes.len().next_multiple_of(CLUSTER_BYTES), 0);
    sink.write(&bytes)
}

/// Compares two sources of one size in `range`, 4 KiB at a time, and calls `each` with the first
/// byte and the length of each extent that differs.
///
/// # Errors
/// [`PackError::Source`].
pub(super) fn diff(
    a: &dyn BlockSource,
    b: &dyn BlockSource,
    range: std::ops::Range<u64>,
    each: &mut dyn FnMut(u64, u64),
) -> Result<(), PackError> {
    let mut other = vec![0; CLUSTER_BYTES];
    let mut open: Option<(u64, u64)> = None;
    let zeros = vec![0; CLUSTER_BYTES];
    // Holes of the other source are also used where this one has holes: regions that both know to
    // be zeros are not read.
    let mut each_cluster = |offset: u64, bytes: &[u8]| {
        let other = &mut other[..bytes.len()];
        b.read_into(offset, other)
            .map_err(|error| unreadable(&error))?;
        let blocks = bytes.chunks(BLOCK_BYTES).zip(other.chunks(BLOCK_BYTES));
        for ((one, two), at) in blocks.zip((offset..).step_by(BLOCK_BYTES)) {
            if one == two {
                continue;
            }
            let end = at + one.len().to_u64();
            // Blocks are joined to extents across clusters.
            match &mut open {
                Some((_, open_end)) if *open_end == at => *open_end = end,
                Some((start, open_end)) => {
                    each(*start, *open_end - *start);
                    open = Some((at, end));
                }
                None => open = Some((at, end)),
            }
        }
        Ok(())
    };
    each_part(a, range.clone(), &mut |offset, part| {
        let (mut at, end) = (offset, offset + part.len());
        if let Part::Bytes(bytes) = part {
            return each_cluster(offset, bytes);
        }
        while at < end {
            let extent = b.extent(at);
            if extent.zero && extent.len > 0 {
                at = at.saturating_add(extent.len).min(end);
                continue;
            }
            let len = (end - at).min(CLUSTER_BYTES.to_u64());
            each_cluster(at, &zeros[..len.to_usize()])?;
            at += len;
        }
        Ok(())
    })?;
    if let Some((start, end)) = open {
        each(start, end - start);
    }
    Ok(())
}

const CLUSTER_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 1 << 20;
/// Contents addressed by a first-level table of 32 MiB, QEMU's limit.
const QCOW2_BYTES_MAX: u64 = (4 << 20) * TABLE_SPAN_BYTES;
/// Entries of a table of one cluster.
const TABLE_ENTRIES: usize = CLUSTER_BYTES / 8;
/// Contents addressed by one second-level table.
const TABLE_SPAN_BYTES: u64 = (TABLE_ENTRIES * CLUSTER_BYTES) as u64;
/// Counts of 16 bits in a cluster.
const COUNTS_IN_BLOCK: u64 = (CLUSTER_BYTES / 2) as u64;
/// Flag of a pointer: the cluster is used once.
const COPIED: u64 = 1 << 63;
const HEADER_BYTES: u32 = 104;
/// Unit of comparison.
const BLOCK_BYTES: usize = 4096;
