//! The engine's end of captures: frames of its NIC in rings of shared memory.
//!
//! ```text
//! offset  what                                            written by
//! 64      u64: 1 once frames are copied                   engine
//! 128     u64: bytes written to the ring, in total        engine
//! 192     u64: frames that found no room                  engine
//! 256     u64: bytes read, in total                       reader
//! 320     u64: 1 once the words below are there           reader
//! 328     u32: bytes kept of a frame; u32: of the filter  reader
//! 336     the filter, text                                reader
//! 4,096   the ring, 8 MiB
//!
//! record: u32 its bytes, a multiple of 32; u32 bytes kept; u32 bytes of the frame; u32 flags
//!         (1: sent, 2: no record, the ring goes on at its start); u64 time in ns; 8 bytes; frame
//! ```
//!
//! Must stay true: without a reader the engine pays for one comparison a round and a frame; it
//! never waits for a reader, and believes no word of it.

use super::mailbox::Attachment;
use crate::capture::filter::{Filter, TEXT_BYTES_MAX};
use crate::nic::Outgoing;
use sidecore_bare::width::{ToU64 as _, ToUsize as _};
use sidecore_sys::{SharedSlice, clock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The readers of an engine's frames.
#[derive(Debug, Default)]
pub(crate) struct Captures(Vec<Tap>);

impl Captures {
    /// Copies frames for a reader from now on; one too many is cut off.
    pub(crate) fn add(&mut self, attachment: Arc<Attachment>) {
        if self.0.len() == READERS_MAX {
            attachment.gone.store(true, Ordering::Release);
            return;
        }
        // Release: the reader waits for it before it says that frames are copied.
        word(attachment.map.slice(), ADMITTED).store(1, Ordering::Release);
        self.0.push(Tap {
            attachment,
            written: 0,
            read: 0,
            dropped: 0,
            wish: None,
        });
    }

    /// Forgets the readers that are gone.
    pub(crate) fn forget_gone(&mut self) {
        self.0
            .retain(|tap| !tap.attachment.gone.load(Ordering::Acquire));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cold]
    pub(crate) fn received(&mut self, frame: &[u8]) {
        self.take(&[frame], 0);
    }

    #[cold]
    pub(crate) fn sent(&mut self, frame: &Outgoing<'_>) {
        let [first, second] = frame.payload;
        self.take(&[frame.header, first, second], SENT);
    }

    fn take(&mut self, pieces: &[&[u8]], flags: u32) {
        let now_ns = clock::now_ns();
        for tap in &mut self.0 {
            tap.take(pieces, flags, now_ns);
        }
    }
}

/// The engine's end of one reader.
#[derive(Debug)]
struct Tap {
    attachment: Arc<Attachment>,
    written: u64,
    read: u64,
    dropped: u64,
    wish: Option<Wish>,
}

/// The wish of a reader.
#[derive(Debug)]
struct Wish {
    filter: Filter,
    frame_bytes_max: usize,
}

impl Tap {
    /// Copies a frame, or counts it as dropped.
    fn take(&mut self, pieces: &[&[u8]], flags: u32, now_ns: u64) {
        let memory = self.attachment.map.slice();
        if self.wish.is_none() && word(memory, STARTED).load(Ordering::Acquire) == 1 {
            // Read once and kept: the reader may change its words at any time.
            self.wish = Wish::read(memory);
            if self.wish.is_none() {
                self.cut_off();
            }
        }
        let wish = self.wish.as_ref();
        // Headers are all in the first piece.
        let Some(wish) = wish.filter(|wish| wish.filter.matches(pieces[0])) else {
            return;
        };
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let kept = bytes.min(wish.frame_bytes_max);
        // Records begin at multiples of their header, which so never wraps around.
        let whole = (RECORD_BYTES + kept).next_multiple_of(RECORD_BYTES);
        let place = (self.written % RING_BYTES.to_u64()).to_usize();
        // A record lies in one piece.
        let skipped = if whole > RING_BYTES - place {
            RING_BYTES - place
        } else {
            0
        };
        let room = |read: u64| (read + RING_BYTES.to_u64()).saturating_sub(self.written);
        // The reader's line is looked at only when the ring seems full.
        if room(self.read) < (whole + skipped).to_u64() {
            let read = word(memory, READ).load(Ordering::Acquire);
            // A position that goes back, or beyond what was written, breaks the rules.
            if read < self.read || read > self.written {
                return self.cut_off();
            }
            self.read = read;
        }
        if room(self.read) < (whole + skipped).to_u64() {
            self.dropped += 1;
            word(memory, DROPPED).store(self.dropped, Ordering::Relaxed);
            return;
        }
        if skipped > 0 {
            let record = record_header([skipped, 0, 0], SKIP, now_ns);
            memory.write_at(RING + place, &record);
        }
        let mut at = RING + (place + skipped) % RING_BYTES;
        memory.write_at(at, &record_header([whole, kept, bytes], flags, now_ns));
        at += RECORD_BYTES;
        let mut left = kept;
        for piece in pieces {
            let part = &piece[..piece.len().min(left)];
            memory.write_at(at, part);
            at += part.len();
            left -= part.len();
        }
        self.written += (whole + skipped).to_u64();
        // Release: the reader's Acquire sees the record.
        word(memory, WRITTEN).store(self.written, Ordering::Release);
    }

    /// The reader broke the rules; the control thread closes its connection.
    fn cut_off(&self) {
        self.attachment.gone.store(true, Ordering::Release);
    }
}

impl Wish {
    /// A private copy of a reader's wish, checked; none if it is none.
    fn read(memory: SharedSlice<'_>) -> Option<Self> {
        let sizes = memory.load_u64(SIZES);
        let (frame, text) = (sizes & u64::from(u32::MAX), (sizes >> 32).to_usize());
        if text > TEXT_BYTES_MAX {
            return None;
        }
        let mut bytes = vec![0; text];
        memory.read_at(TEXT, &mut bytes);
        Some(Self {
            filter: Filter::parse(&String::from_utf8(bytes).ok()?).ok()?,
            frame_bytes_max: frame.to_usize().min(FRAME_BYTES_MAX),
        })
    }
}

fn record_header(bytes: [usize; 3], flags: u32, now_ns: u64) -> [u8; RECORD_BYTES] {
    let mut header = [0; RECORD_BYTES];
    let words = bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
    let [whole, kept, frame] = words;
    for (field, word) in header.chunks_exact_mut(4).zip([whole, kept, frame, flags]) {
        field.copy_from_slice(&word.to_le_bytes());
    }
    header[16..24].copy_from_slice(&now_ns.to_le_bytes());
    header
}

/// A word of the segment, which has it by its size.
pub(crate) fn word(memory: SharedSlice<'_>, offset: usize) -> &AtomicU64 {
    static NONE: AtomicU64 = AtomicU64::new(0);
    memory.overlay(offset).unwrap_or(&NONE)
}

/// Bytes of the segment of a reader.
pub(crate) const SEGMENT_BYTES: usize = RING + RING_BYTES;
pub(crate) const ADMITTED: usize = 64;
pub(crate) const WRITTEN: usize = 128;
pub(crate) const DROPPED: usize = 192;
pub(crate) const READ: usize = 256;
pub(crate) const STARTED: usize = 320;
pub(crate) const SIZES: usize = 328;
pub(crate) const TEXT: usize = 336;
pub(crate) const RING: usize = 4096;
pub(crate) const RING_BYTES: usize = 8 << 20;
pub(crate) const RECORD_BYTES: usize = 32;
const _: () = assert!(TEXT + TEXT_BYTES_MAX <= RING && RING_BYTES.is_multiple_of(RECORD_BYTES));
/// Flags of a record.
pub(crate) const SENT: u32 = 1;
pub(crate) const SKIP: u32 = 2;
/// Bytes kept of a frame, at most: more than any frame has.
pub(crate) const FRAME_BYTES_MAX: usize = 256 << 10;
/// Readers of one engine.
pub(crate) const READERS_MAX: usize = 4;
