//! Opening and reading images that are damaged or hostile.
//!
//! [`fuzz_image`] takes any bytes; [`Seed::check`] knows the image from which the bytes were made,
//! and so can detect wrong bytes.
//! Must stay true ("never wrong bytes"): a frame that is read from a damaged image has the original
//! contents of that place, as far as the format can detect. Formats without a checksum of their
//! table need only return the contents of *some* frame; nothing is required of codecs without a
//! checksum.

#[path = "../../../image/format/src/tests/fixtures.rs"]
mod fixtures;
mod mutate;

use sidecore_block::codec::{CodecId, make_deflater};
use sidecore_block::format::lock::{Cipher, ImageKey, Locker, Slot};
use sidecore_block::format::sidecar::{Scan, Walked};
use sidecore_block::format::write::{Layout, Packed, is_zero};
use sidecore_block::format::{Format, FrameCheck, FrameReader, Index};

pub use fixtures::{Seed, seeds, sidecar_seed};
pub use mutate::{Mutant, Mutator};

/// Opens any bytes as an image and reads some of its frames; then as a zstd file with a sidecar
/// index.
pub fn fuzz_image(data: &[u8]) {
    Reader::default().walk(data, &mut |_, _, _| {});
    fuzz_sidecar(data);
}

/// A file and, from the index's tag on, its sidecar index.
fn fuzz_sidecar(data: &[u8]) {
    let tag = data.windows(8).rposition(|bytes| bytes == SIDECAR_TAG);
    let end = tag.and_then(|at| at.checked_sub(8)).unwrap_or(data.len());
    let (file, index) = data.split_at(end);
    if let Ok(mut scan) = Scan::new(&file) {
        let (mut stored, mut at) = (Vec::new(), 0);
        while let Ok(true) = scan.next(&mut stored) {
            let frame = file.get(at..at + stored.len());
            assert!(!stored.is_empty() && frame == Some(&stored), "byte {at}");
            at += stored.len();
        }
    }
    if let Ok(index) = Index::read_sidecar(&file, &index, true) {
        Reader::default().read_some(&index, file, &mut |_, _, _| {});
    }
}

/// Result for one image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walk {
    /// True when its tables were accepted.
    pub opened: bool,
    /// Frames that were delivered.
    pub good_frames: u64,
    /// Frames that were refused.
    pub bad_frames: u64,
    /// Frames that were delivered whole, but at another place: both records of an earlier frame's
    /// size were damaged alike.
    pub displaced: u64,
}

/// Reads frames of one image after another with the same buffers.
pub struct Reader(FrameReader);

impl Default for Reader {
    fn default() -> Self {
        Self(FrameReader::new(false))
    }
}

impl Reader {
    /// Opens `data` and reads its first and last frames; `each` gets every delivered frame, with
    /// its place according to the index.
    pub fn walk(&mut self, data: &[u8], each: &mut dyn FnMut(&Index, u64, &[u8])) -> Walk {
        let Ok(mut index) = Index::read(&data) else {
            return Walk::default();
        };
        // Nothing of an encrypted image is read before its index is authenticated.
        if index.lock().is_some() && !index.unlock(&fixtures::secret()) {
            return Walk::default();
        }
        self.0.unlock_by(&index);
        self.read_some(&index, data, each)
    }

    /// Reads the first and the last frames of `data`, whose index is `index`.
    fn read_some(
        &mut self,
        index: &Index,
        data: &[u8],
        each: &mut dyn FnMut(&Index, u64, &[u8]),
    ) -> Walk {
        let mut walk = Walk {
            opened: true,
            ..Walk::default()
        };
        assert!(
            index.frames() > 0 && index.raw_bytes() > 0,
            "an empty index"
        );
        let bound = 4096 + 3 * data.len();
        assert!(
            index.memory_bytes() <= bound,
            "{} bytes of index for {}",
            index.memory_bytes(),
            data.len()
        );
        let mut raw_left = RAW_BYTES_MAX;
        let last = index.frames() - 1;
        let tail = last.saturating_sub(FRAMES_MAX / 2 - 1).max(FRAMES_MAX / 2);
        for i in (0..=last.min(FRAMES_MAX / 2 - 1)).chain(tail..=last) {
            let frame = index.frame(i);
            let end = frame.raw_offset + u64::from(frame.raw_bytes);
            assert!(end <= index.raw_bytes(), "frame {i} ends at {end}");
            assert!(
                frame.offset + u64::from(frame.stored_bytes) <= data.len() as u64,
                "frame {i}"
            );
            assert!(frame.stored_bytes <= index.stored_bytes_max(), "frame {i}");
            for at in [frame.raw_offset, end - 1] {
                assert_eq!(index.frame_at(at), i, "byte {at}");
            }
            let Some(left) = raw_left.checked_sub(frame.raw_bytes) else {
                break;
            };
            raw_left = left;
            match self.0.read(&data, &frame) {
                Ok(raw) => {
                    walk.good_frames += 1;
                    each(index, i, raw);
                }
                Err(_) => walk.bad_frames += 1,
            }
        }
        walk
    }
}

impl Seed {
    /// Reads a damaged copy of this image.
    ///
    /// # Panics
    /// When a frame is delivered with wrong bytes.
    pub fn check(&self, reader: &mut Reader, data: &[u8]) -> Walk {
        let mut displaced = 0;
        let mut walk = reader.walk(data, &mut |index, i, raw| {
            let frame = index.frame(i);
            let start = frame.raw_offset as usize;
            let in_place = self.raw.get(start..start + raw.len()) == Some(raw);
            if index.format() != self.format || in_place {
                return;
            }
            let known = || self.raw.windows(raw.len()).any(|window| window == raw);
            // The only damage that a standard seek table of uneven frames cannot detect: an earlier
            // frame whose size was damaged alike in the table and in its own header.
            let excused = !index.is_even() && matches!(frame.check, FrameCheck::Raw(_));
            if index.is_checked() && !excused {
                panic!("{}: frame {i} at {start} has wrong bytes", self.name);
            } else if self.codec_checks || index.is_checked() {
                assert!(
                    known(),
                    "{}: frame {i} has bytes that no frame ever had",
                    self.name
                );
                displaced += u64::from(index.is_checked());
            }
        });
        walk.displaced = displaced;
        walk
    }
}

/// Maximum number of frames that are read per image.
const FRAMES_MAX: u64 = 8;
/// Maximum contents that are read per image.
const RAW_BYTES_MAX: u32 = 32 << 20;
/// The first bytes of an index in a sidecar file (`docs/formats/seekable-zstd.md`).
const SIDECAR_TAG: [u8; 8] = *b"sidefile";
