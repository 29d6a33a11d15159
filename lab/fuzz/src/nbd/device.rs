//! The device that dialogues are run against.
//!
//! Why here: it has all that replies depend on, in 40 KiB: data, zeros, damage, an odd end.
//! Must stay true: it is the same every time, or failures could not be run again.
//! Any thread may call it. Source: own.

use sidecore_block::source::{BlockSource, Deliver, Extent, MemorySource, ReadError, check_range};
use sidecore_random::split_mix;

/// A device of [`SIZE_BYTES`] with data, zeros, two bad frames and small limits, so that short
/// dialogues reach everything.
#[derive(Debug)]
pub struct Device {
    inner: MemorySource,
}

impl Device {
    /// The one device; always the same bytes.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: MemorySource::new(CONTENTS.clone()),
        }
    }

    /// Contents, the bad frames' lost bytes included.
    #[must_use]
    pub fn bytes(&self) -> &'static [u8] {
        &CONTENTS
    }

    /// True when a range can be read.
    #[must_use]
    pub fn good(&self, offset: u64, len: u64) -> bool {
        self.bad_bytes(offset, offset + len) == 0
    }

    /// Bytes of bad frames from `offset` to `end`.
    pub(super) fn bad_bytes(&self, offset: u64, end: u64) -> u64 {
        let frame = FRAME_BYTES as u64;
        let overlap =
            |bad: u64| (end.min((bad + 1) * frame)).saturating_sub(offset.max(bad * frame));
        BAD_FRAMES.into_iter().map(overlap).sum()
    }
}

impl Default for Device {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockSource for Device {
    fn size_bytes(&self) -> u64 {
        SIZE_BYTES as u64
    }

    fn preferred_bytes(&self) -> u32 {
        FRAME_BYTES as u32
    }

    /// Less than the trait promises, so that short reads are split too.
    fn read_with_max_bytes(&self) -> usize {
        READ_BYTES_MAX
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes())?;
        if !self.good(offset, dst.len() as u64) {
            return Err(bad_frame(offset));
        }
        self.inner.read_into(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        assert!(len <= READ_BYTES_MAX, "a read of {len} bytes was not split");
        if let Err(error) = check_range(offset, len, self.size_bytes()) {
            return deliver(Err(&error));
        }
        if !self.good(offset, len as u64) {
            return deliver(Err(&bad_frame(offset)));
        }
        // In pieces, as a cache of frames gives them.
        let bytes = &self.bytes()[offset as usize..offset as usize + len];
        let first = (FRAME_BYTES - offset as usize % FRAME_BYTES).min(len);
        let mut pieces = vec![&bytes[..first]];
        pieces.extend(bytes[first..].chunks(FRAME_BYTES));
        deliver(Ok(&pieces));
    }

    fn extent(&self, offset: u64) -> Extent {
        self.inner.extent(offset)
    }
}

fn bad_frame(offset: u64) -> ReadError {
    ReadError::BadFrame {
        frame: offset / FRAME_BYTES as u64,
        reason: "its checksum is wrong".to_owned(),
    }
}

static CONTENTS: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
    let mut random = 7;
    let mut bytes: Vec<u8> = (0..SIZE_BYTES)
        .map(|at| match at / 3000 % 3 {
            // Zeros that begin and end within sectors, and data that never looks like them.
            2 => 0,
            _ => split_mix(&mut random) as u8 | 1,
        })
        .collect();
    bytes[SIZE_BYTES - 700..].fill(0);
    bytes
});

/// The device's size: no multiple of a frame or a sector.
pub const SIZE_BYTES: usize = 40_123;
/// The device's frame size.
pub const FRAME_BYTES: usize = 4096;
const READ_BYTES_MAX: usize = 12 << 10;
const BAD_FRAMES: [u64; 2] = [3, 6];
