//! The disk behind the queues: one request, as a chain of descriptors.
//!
//! Why here: what a request may ask for is virtio's rule, and can be tested without a client.
//! Must stay true: a chain gets exactly one status, if it has room for one; no request takes more
//! memory than [`PIECE_BYTES`] here, whatever its length; a read delivers bytes of its range alone.
//! Any number of threads may call it.
//! Source: OASIS Virtual I/O Device 1.3, 5.2 "Block Device".

use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_format::source::{BlockSource, BlockWrites, WriteError};
use std::io::{Read, Write};
use std::sync::Arc;
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::GuestMemoryMmap;

/// A disk.
pub(super) struct Disk {
    source: Arc<dyn BlockSource>,
    /// Requests are of whole sectors of this size; the protocol counts in those of 512 bytes.
    sector_bytes: u64,
    /// Without the number of sectors, which may grow.
    config: [u8; CONFIG_BYTES],
    serial: [u8; ID_BYTES],
}

/// The end of a request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The device, or the request's range.
    Io,
    /// The kind of request.
    Unsupported,
}

impl Disk {
    /// A disk of a source's sectors, of 512 or 4,096 bytes; `None` where it has none.
    pub(super) fn new(
        source: Arc<dyn BlockSource>,
        queues: u16,
        serial: &str,
        sector_bytes: u32,
    ) -> Option<Self> {
        if source.size_bytes() < u64::from(sector_bytes) {
            return None;
        }
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &sector_bytes.to_le_bytes());
        // Sectors of 512 bytes lie on blocks of 4 KiB (512e): a guest aligns its partitions and
        // file systems by that, and a write of whole grains reads nothing first. Lengths here are
        // in logical blocks.
        let in_block = (BLOCK_BYTES / sector_bytes).max(1);
        let sectors_in = |bytes: u32| (bytes / sector_bytes).max(in_block);
        let grain = source.writes().map_or(0, BlockWrites::grain_bytes);
        let least = u16::try_from(sectors_in(grain)).unwrap_or(u16::MAX);
        let best = sectors_in(source.preferred_bytes()).max(least.into());
        put(24, &[in_block.ilog2().to_le_bytes()[0]]);
        put(26, &least.to_le_bytes());
        put(28, &best.to_le_bytes());
        put(34, &queues.to_le_bytes());
        if let Some(writes) = source.writes() {
            for at in [36, 48] {
                put(at, &RANGE_SECTORS_MAX.to_le_bytes());
                put(at + 4, &RANGES_MAX.to_le_bytes());
            }
            let aligned = writes.grain_bytes().max(sector_bytes) / 512;
            put(44, &aligned.max(1).to_le_bytes());
            // Zeros may become holes.
            put(56, &[1]);
        }
        let mut id = [0; ID_BYTES];
        for (to, from) in id
            .iter_mut()
            .zip(serial.bytes().filter(u8::is_ascii_graphic))
        {
            *to = from;
        }
        Some(Self {
            source,
            sector_bytes: sector_bytes.into(),
            config,
            serial: id,
        })
    }

    /// Its size, without the part of a sector at the end: it could not be written. It may grow.
    fn size_bytes(&self) -> u64 {
        let size_bytes = self.source.size_bytes();
        size_bytes - size_bytes % self.sector_bytes
    }

    /// The device's configuration as of now.
    pub(super) fn config(&self) -> [u8; CONFIG_BYTES] {
        let mut config = self.config;
        let sectors = self.size_bytes() / SECTOR_BYTES;
        config[..8].copy_from_slice(&sectors.to_le_bytes());
        config
    }

    /// Features of the device.
    pub(super) fn features(&self) -> u64 {
        let both = [
            SEG_MAX,
            BLK_SIZE,
            FLUSH,
            TOPOLOGY,
            MQ,
            INDIRECT_DESC,
            EVENT_IDX,
            VERSION_1,
        ];
        let own = match self.source.writes() {
            Some(_) => &[DISCARD, WRITE_ZEROES][..],
            None => &[RO][..],
        };
        both.iter().chain(own).map(|bit| 1 << bit).sum()
    }

    /// True if a guest that took these features expects writes to be durable once they are
    /// answered: it cannot ask for that itself ("Device Operation": "If VIRTIO_BLK_F_FLUSH was not
    /// negotiated").
    pub(super) fn is_through(&self, taken: u64) -> bool {
        taken & 1 << FLUSH == 0
    }

    /// Serves a request; the number of bytes that were written to the guest's memory. Nothing that
    /// was read there changes the disk once `is_lost`. With `is_through` writes are durable before
    /// they are answered.
    pub(super) fn serve<M>(
        &self,
        memory: &GuestMemoryMmap,
        chain: DescriptorChain<M>,
        is_through: bool,
        is_lost: &dyn Fn() -> bool,
    ) -> u32
    where
        M: std::ops::Deref<Target = GuestMemoryMmap> + Clone,
    {
        let (Ok(mut reader), Ok(mut writer)) = (chain.clone().reader(memory), chain.writer(memory))
        else {
            // Descriptors that lead nowhere: there is no place for a status.
            return 0;
        };
        // The status is the last byte that the device may write.
        let Some(data_bytes) = writer.available_bytes().checked_sub(1) else {
            return 0;
        };
        let Ok(mut status) = writer.split_at(data_bytes) else {
            return 0;
        };
        let result = self.answer(&mut reader, &mut writer, is_through, is_lost);
        if let Err(Fault::Io) = result {
            tracing::debug!("a request of a guest failed");
        }
        let byte = match result {
            Ok(()) => 0,
            Err(Fault::Io) => 1,
            Err(Fault::Unsupported) => 2,
        };
        match status.write_all(&[byte]) {
            Ok(()) => u32::try_from(writer.bytes_written() + 1).unwrap_or(u32::MAX),
            Err(_) => 0,
        }
    }

    fn answer(
        &self,
        reader: &mut Reader<'_>,
        writer: &mut Writer<'_>,
        is_through: bool,
        is_lost: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        let mut head = [0; HEAD_BYTES];
        read_exact(reader, &mut head, is_lost)?;
        let (kind, sector) = (field(&head, 0), field64(&head, 8));
        match kind {
            kind::IN => self.read(sector, writer),
            kind::OUT => {
                self.write(sector, reader, is_lost)?;
                self.flush_if(is_through)
            }
            kind::FLUSH => self.flush_if(true),
            kind::GET_ID => {
                let bytes = writer.available_bytes().min(ID_BYTES);
                writer
                    .write_all(&self.serial[..bytes])
                    .map_err(|_| Fault::Io)
            }
            kind::DISCARD | kind::WRITE_ZEROES => {
                self.clear(kind, reader, is_lost)?;
                self.flush_if(is_through)
            }
            _ => Err(Fault::Unsupported),
        }
    }

    fn flush_if(&self, is_wanted: bool) -> Result<(), Fault> {
        match self.source.writes().filter(|_| is_wanted) {
            Some(writes) => writes.flush().map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }

    /// The byte at which a request begins, if all of it lies in the device.
    fn place(&self, sector: u64, bytes: u64) -> Result<u64, Fault> {
        let begin = sector.checked_mul(SECTOR_BYTES).ok_or(Fault::Io)?;
        let end = begin.checked_add(bytes).ok_or(Fault::Io)?;
        let is_whole = (begin | bytes).is_multiple_of(self.sector_bytes);
        match end <= self.size_bytes() && is_whole {
            true => Ok(begin),
            false => Err(Fault::Io),
        }
    }

    fn read(&self, sector: u64, writer: &mut Writer<'_>) -> Result<(), Fault> {
        let mut left = writer.available_bytes();
        let mut at = self.place(sector, left.to_u64())?;
        let piece_max = self.source.read_with_max_bytes().min(PIECE_BYTES);
        while left > 0 {
            let bytes = left.min(piece_max);
            let mut outcome = Err(Fault::Io);
            self.source.read_with(at, bytes, &mut |result| {
                outcome = match result {
                    Ok(pieces) => (pieces.iter())
                        .try_for_each(|piece| writer.write_all(piece))
                        .map_err(|_| Fault::Io),
                    Err(_) => Err(Fault::Io),
                };
            });
            outcome?;
            at += bytes.to_u64();
            left -= bytes;
        }
        Ok(())
    }

    fn write(
        &self,
        sector: u64,
        reader: &mut Reader<'_>,
        is_lost: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        let writes = self.source.writes().ok_or(Fault::Io)?;
        let mut left = reader.available_bytes();
        let mut at = self.place(sector, left.to_u64())?;
        let mut buffer = vec![0; left.min(PIECE_BYTES)];
        while left > 0 {
            let piece = &mut buffer[..left.min(PIECE_BYTES)];
            // Copied once: the guest may change its memory meanwhile.
            read_exact(reader, piece, is_lost)?;
            writes.write(at, piece).map_err(|error| failed(&error))?;
            at += piece.len().to_u64();
            left -= piece.len();
        }
        Ok(())
    }

    /// Discards ranges, or makes them zeros.
    fn clear(
        &self,
        kind: u32,
        reader: &mut Reader<'_>,
        is_lost: &dyn Fn() -> bool,
    ) -> Result<(), Fault> {
        let writes = self.source.writes().ok_or(Fault::Unsupported)?;
        let ranges = reader.available_bytes() / RANGE_BYTES;
        if ranges == 0
            || ranges > RANGES_MAX.to_usize()
            || !reader.available_bytes().is_multiple_of(RANGE_BYTES)
        {
            return Err(Fault::Io);
        }
        for _ in 0..ranges {
            let mut range = [0; RANGE_BYTES];
            read_exact(reader, &mut range, is_lost)?;
            let sectors = field(&range, 8);
            let bytes = u64::from(sectors) * SECTOR_BYTES;
            let flags = field(&range, 12);
            // "The device MUST set the status byte to VIRTIO_BLK_S_UNSUPP for discard and write
            // zeroes commands if any unknown flag is set", and for a discard if unmap is set.
            let known = if kind == kind::WRITE_ZEROES { 1 } else { 0 };
            if flags & !known != 0 {
                return Err(Fault::Unsupported);
            }
            if sectors > RANGE_SECTORS_MAX {
                return Err(Fault::Io);
            }
            let at = self.place(field64(&range, 0), bytes)?;
            let done = match kind {
                kind::WRITE_ZEROES => writes.write_zeroes(at, bytes),
                _ => writes.discard(at, bytes),
            };
            done.map_err(|error| failed(&error))?;
        }
        Ok(())
    }
}

/// Copies bytes of the guest; an error where they may be zeros in the place of lost ones.
fn read_exact(
    reader: &mut Reader<'_>,
    to: &mut [u8],
    is_lost: &dyn Fn() -> bool,
) -> Result<(), Fault> {
    match reader.read_exact(to) {
        Ok(()) if !is_lost() => Ok(()),
        _ => Err(Fault::Io),
    }
}

fn failed(error: &WriteError) -> Fault {
    tracing::warn!("a guest's write failed: {error}");
    Fault::Io
}

/// A little-endian number of a header.
fn field(bytes: &[u8], at: usize) -> u32 {
    let found = bytes[at..].first_chunk();
    found.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn field64(bytes: &[u8], at: usize) -> u64 {
    u64::from(field(bytes, at)) | u64::from(field(bytes, at + 4)) << 32
}

/// Kinds of requests ("Device Operation").
pub(super) mod kind {
    pub(in super::super) const IN: u32 = 0;
    pub(in super::super) const OUT: u32 = 1;
    pub(in super::super) const FLUSH: u32 = 4;
    pub(in super::super) const GET_ID: u32 = 8;
    pub(in super::super) const DISCARD: u32 = 11;
    pub(in super::super) const WRITE_ZEROES: u32 = 13;
}

// Bits of features ("Feature bits").
const SEG_MAX: u32 = 2;
const RO: u32 = 5;
const BLK_SIZE: u32 = 6;
const FLUSH: u32 = 9;
const TOPOLOGY: u32 = 10;
const MQ: u32 = 12;
const DISCARD: u32 = 13;
const WRITE_ZEROES: u32 = 14;
const INDIRECT_DESC: u32 = 28;
const EVENT_IDX: u32 = 29;
const VERSION_1: u32 = 32;

const SECTOR_BYTES: u64 = 512;
/// A block of 4 KiB, the smallest grain of an overlay.
const BLOCK_BYTES: u32 = 4096;
const HEAD_BYTES: usize = 16;
const ID_BYTES: usize = 20;
const CONFIG_BYTES: usize = 60;
/// Segments of a request that a driver may use.
const SEGMENTS_MAX: u32 = 126;
/// A range of a discard.
const RANGE_BYTES: usize = 16;
const RANGES_MAX: u32 = 32;
/// The most sectors that one range clears: 1 GiB.
const RANGE_SECTORS_MAX: u32 = 1 << 21;
/// Bytes that are moved at once.
const PIECE_BYTES: usize = 1 << 20;
