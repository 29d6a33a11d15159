//! Offsets and sizes of every frame of an open image: the result of parsers, used by all higher
//! layers.
//!
//! Why here: formats differ in their tables, and the device must not depend on that. Images of
//! terabytes have tens of millions of frames, so an entry takes 8 to 24 bytes: values that follow
//! from its neighbours are not stored. A thin image ([`super::thin`]) has runs of frames that are
//! not stored at all, the holes; a run takes 24 bytes, however long it is.
//! Must stay true: [`Builder::finish`] is the only way to make an [`Index`], and checks the
//! promises of the parent module: every frame lies inside the file, none decompresses to nothing or
//! to more than [`FRAME_BYTES_MAX`], and raw offsets have no gaps. Lookups are O(1), or O(log
//! frames) if frames differ in size, or O(log runs) if there are holes. Memory is proportional to
//! the entries that were read, never to a number in a header.
//! Called from: any thread; an index is immutable.

use sidecore_bare::width::{ToU64, ToUsize};
mod builder;

use super::lock::{Cipher, FrameKey, ImageKey, Lock};
use super::read_at::Bytes;
use super::tree::{Hash, Judge, Tree};
use super::{Format, FormatError, Frame, FrameCheck, Leaf, ReadAt};
use crate::codec::CodecId;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use builder::Builder;

/// The frames of an image.
#[derive(Debug)]
pub struct Index {
    format: Format,
    variant: &'static str,
    frames: u64,
    raw_bytes: u64,
    stored_bytes: u64,
    frame_bytes: u32,
    stored_bytes_max: u32,
    codec: CodecId,
    places: Places,
    raws: Raws,
    checks: Checks,
    /// One bit per stored frame.
    zeros: Box<[u64]>,
    /// Holes of a thin image, in order; no two of them are adjacent.
    holes: Box<[Hole]>,
    is_thin: bool,
    tree: Option<Tree>,
    /// The leaves of the hash tree, once its root was accepted.
    leaves: Option<Box<[Hash]>>,
    /// The header of an encrypted image.
    lock: Option<Lock>,
    /// The key to its frames, once it was set.
    key: Option<Arc<FrameKey>>,
}

/// A run of frames of zeros that are not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    /// Number of the first.
    pub(crate) first: u64,
    /// Number of the frame after the last.
    pub(crate) end: u64,
    /// Number of stored frames before the run.
    stored_before: u64,
}

/// Offsets of the compressed bytes of stored frames.
#[derive(Debug)]
enum Places {
    /// Offsets of the raw bytes (raw images).
    Same,
    /// Contiguous: frame `i` ends where frame `i + 1` begins.
    Packed(Box<[Place]>),
    /// In any order.
    Scattered(Box<[Place]>, Box<[u32]>),
}

/// An offset and a codec in 8 bytes: 60 bits and 4.
#[derive(Debug, Clone, Copy)]
struct Place(u64);

/// Offsets of the decompressed bytes.
#[derive(Debug)]
enum Raws {
    /// All frames but the last decompress to `frame_bytes`.
    Even,
    /// Frame `i` begins at entry `i`; one entry more than frames.
    Uneven(Box<[u64]>),
}

#[derive(Debug)]
enum Checks {
    None,
    Stored(Box<[u64]>),
    Raw(Box<[u32]>),
}

impl Index {
    /// The format of the image.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Name of the format's variant, for messages (`cloop V2.0`).
    #[must_use]
    pub fn variant(&self) -> &'static str {
        self.variant
    }

    /// Number of frames; at least 1.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Size of the device in bytes.
    #[must_use]
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Size of the image file in bytes, headers and tables included.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Decompressed size of most frames in bytes; none decompresses to more.
    #[must_use]
    pub fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// Upper bound of the frames' compressed sizes.
    #[must_use]
    pub fn stored_bytes_max(&self) -> u32 {
        self.stored_bytes_max
    }

    /// The codec of the first frame; only cloop V4.0 mixes codecs.
    #[must_use]
    pub fn codec(&self) -> CodecId {
        self.codec
    }

    /// True when every frame carries a checksum of its compressed or decompressed bytes.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        !matches!(self.checks, Checks::None)
    }

    /// True when all frames but the last decompress to the same size.
    #[must_use]
    pub fn is_even(&self) -> bool {
        matches!(self.raws, Raws::Even)
    }

    /// Description of the frames' checksums, for messages.
    #[must_use]
    pub fn checksums(&self) -> &'static str {
        match (&self.checks, self.codec) {
            (Checks::Stored(_), _) if self.lock.is_some() && !self.is_trusted() => {
                match self.key.as_deref().map(FrameKey::cipher) {
                    Some(Cipher::Aes256Gcm) => "AES-256-GCM of every frame",
                    Some(Cipher::ChaCha20Poly1305) => "ChaCha20-Poly1305 of every frame",
                    None => "XXH3-64 of every frame's encrypted bytes",
                }
            }
            (Checks::Stored(_), _) if self.is_trusted() => {
                "BLAKE3 of every frame's compressed bytes, under a root that is trusted"
            }
            (Checks::Stored(_), _) => "XXH3-64 of every frame's compressed bytes",
            (Checks::Raw(_), _) => "XXH64 of every frame's contents, low 32 bits",
            (Checks::None, CodecId::Zlib) => "Adler-32 inside every zlib stream",
            (Checks::None, CodecId::Xz) => "inside every xz stream",
            // Writers may omit it: each frame's header has a flag for it.
            (Checks::None, CodecId::Zstd) => "XXH64 inside those zstd frames that have one",
            (Checks::None, _) => "none",
        }
    }

    /// Number of frames that the image declares all zeros.
    #[must_use]
    pub fn zero_frames(&self) -> u64 {
        let ones = |word: &u64| u64::from(word.count_ones());
        self.zeros.iter().map(ones).sum::<u64>() + self.frames - self.stored_frames()
    }

    /// True for a thin image: its zeros may be holes, which are not stored.
    #[must_use]
    pub fn is_thin(&self) -> bool {
        self.is_thin
    }

    /// Number of stored frames: all but the holes.
    #[must_use]
    pub fn stored_frames(&self) -> u64 {
        let last = self.holes.last();
        last.map_or(self.frames, |hole| {
            hole.stored_before + self.frames - hole.end
        })
    }

    /// The runs of holes.
    pub(crate) fn holes(&self) -> &[Hole] {
        &self.holes
    }

    /// Number of consecutive holes from frame `i` on; 0 if frame `i` is stored.
    #[must_use]
    pub fn hole_run(&self, i: u64) -> u64 {
        match self.hole_before(i) {
            Some(hole) => hole.end.saturating_sub(i),
            None => 0,
        }
    }

    /// The run of holes that contains frame `i`, or else the last one before it.
    fn hole_before(&self, i: u64) -> Option<&Hole> {
        if self.holes.is_empty() {
            return None;
        }
        // Few runs even for a large thin image; a search costs less than a number for each frame.
        let behind = self.holes.partition_point(|hole| hole.first <= i);
        self.holes[..behind].last()
    }

    /// Number of frame `i` among the stored frames; `None` for a hole.
    fn stored_number(&self, i: u64) -> Option<usize> {
        match self.hole_before(i) {
            None => Some(i.to_usize()),
            Some(hole) if i < hole.end => None,
            Some(hole) => Some((hole.stored_before + i - hole.end).to_usize()),
        }
    }

    /// Numbers of the stored frames in a range, in order.
    pub fn stored_in(&self, frames: Range<u64>) -> impl Iterator<Item = u64> {
        let (mut next, end) = (frames.start, frames.end.min(self.frames));
        std::iter::from_fn(move || {
            // A run is skipped as a whole: an empty image of 8 EiB has one hole of 10^14 frames.
            next += self.hole_run(next);
            let frame = (next < end).then_some(next)?;
            next += 1;
            Some(frame)
        })
    }

    /// The last stored frame.
    pub(crate) fn last_stored(&self) -> Option<Frame> {
        let last = match self.holes.last() {
            Some(hole) if hole.end == self.frames => hole.first.checked_sub(1)?,
            _ => self.frames - 1,
        };
        Some(self.frame(last))
    }

    /// True if frames have checksums of their compressed bytes.
    #[must_use]
    pub fn has_stored_checks(&self) -> bool {
        matches!(self.checks, Checks::Stored(_))
    }

    /// Memory that this index takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // Regular layouts are computed and take no memory.
        let places = match &self.places {
            Places::Same => 0,
            Places::Packed(places) => size_of_val(&**places),
            Places::Scattered(places, sizes) => size_of_val(&**places) + size_of_val(&**sizes),
        };
        let raws = match &self.raws {
            Raws::Even => 0,
            Raws::Uneven(offsets) => size_of_val(&**offsets),
        };
        let checks = match &self.checks {
            Checks::None => 0,
            Checks::Stored(checks) => size_of_val(&**checks),
            Checks::Raw(checks) => size_of_val(&**checks),
        };
        let leaves = self
            .leaves
            .as_ref()
            .map_or(0, |leaves| size_of_val(&**leaves));
        let holes = size_of_val(&*self.holes);
        size_of::<Self>() + places + raws + checks + size_of_val(&*self.zeros) + holes + leaves
    }

    /// Beginning and end of the contents of frame `i`; `n` is its number among the stored ones.
    fn raw_range(&self, i: u64, n: usize) -> (u64, u64) {
        match &self.raws {
            Raws::Even => {
                let start = i * u64::from(self.frame_bytes);
                // The last frame may be shorter.
                let end = (start + u64::from(self.frame_bytes)).min(self.raw_bytes);
                (start, end)
            }
            Raws::Uneven(offsets) => (offsets[n], offsets[n + 1]),
        }
    }

    /// Frame `i`.
    ///
    /// # Panics
    /// If there is no such frame.
    #[must_use]
    pub fn frame(&self, i: u64) -> Frame {
        assert!(i < self.frames, "frame {i} of {}", self.frames);
        let stored_number = self.stored_number(i);
        // A hole has no place in the tables. Frames of a thin image are of one size, so that the
        // number below is then not used.
        let n = stored_number.unwrap_or_default();
        let (raw_offset, raw_end) = self.raw_range(i, n);
        let raw_bytes = frame_size(raw_end - raw_offset);
        if stored_number.is_none() {
            return Frame {
                number: i,
                offset: 0,
                stored_bytes: 0,
                raw_bytes,
                raw_offset,
                codec: self.codec,
                check: FrameCheck::None,
            };
        }
        let (offset, stored_bytes, codec) = match &self.places {
            Places::Same => (raw_offset, raw_bytes, CodecId::Store),
            Places::Packed(places) => {
                let start = places[n].offset();
                let stored_bytes = frame_size(places[n + 1].offset() - start);
                (start, stored_bytes, places[n].codec())
            }
            Places::Scattered(places, sizes) => (places[n].offset(), sizes[n], places[n].codec()),
        };
        let check = match &self.checks {
            Checks::None => FrameCheck::None,
            Checks::Stored(checks) => match &self.leaves {
                None => FrameCheck::Stored(checks[n]),
                Some(leaves) => {
                    let leaf = Leaf {
                        hash: leaves[n],
                        number: i,
                        zero: self.is_zero(i),
                    };
                    FrameCheck::Sealed(checks[n], leaf)
                }
            },
            Checks::Raw(checks) => FrameCheck::Raw(checks[n]),
        };
        Frame {
            number: i,
            offset,
            stored_bytes,
            raw_bytes,
            raw_offset,
            codec,
            check,
        }
    }

    /// The frame that holds byte `raw_offset` of the device.
    ///
    /// # Panics
    /// If the offset is not inside the device.
    #[must_use]
    pub fn frame_at(&self, raw_offset: u64) -> u64 {
        assert!(
            raw_offset < self.raw_bytes,
            "byte {raw_offset} of {}",
            self.raw_bytes
        );
        match &self.raws {
            // The case of every image that this program writes; a division takes tens of cycles.
            Raws::Even if self.frame_bytes.is_power_of_two() => {
                raw_offset >> self.frame_bytes.trailing_zeros()
            }
            Raws::Even => raw_offset / u64::from(self.frame_bytes),
            Raws::Uneven(offsets) => {
                offsets
                    .partition_point(|&start| start <= raw_offset)
                    .to_u64()
                    - 1
            }
        }
    }

    /// True when the image declares frame `i` all zeros: it need not be read.
    #[must_use]
    pub fn is_zero(&self, i: u64) -> bool {
        if self.zeros.is_empty() && self.holes.is_empty() {
            return false;
        }
        // A hole needs no bit: it is not stored because it is zeros.
        let Some(n) = self.stored_number(i) else {
            return true;
        };
        (self.zeros.get(n / 64)).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// A raw image of `raw_bytes`, divided into frames of `frame_bytes`.
    pub(super) fn same(raw_bytes: u64, frame_bytes: u32) -> Self {
        Self {
            format: Format::Raw,
            variant: "raw",
            frames: raw_bytes.div_ceil(u64::from(frame_bytes)),
            raw_bytes,
            stored_bytes: raw_bytes,
            frame_bytes,
            stored_bytes_max: frame_bytes,
            codec: CodecId::Store,
            places: Places::Same,
            raws: Raws::Even,
            checks: Checks::None,
            zeros: Box::default(),
            holes: Box::default(),
            is_thin: false,
            tree: None,
            leaves: None,
            lock: None,
            key: None,
        }
    }

    /// The hash tree that the image carries; its claims are not verified.
    #[must_use]
    pub fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    pub(super) fn set_tree(&mut self, tree: Option<Tree>) {
        self.tree = tree;
    }

    /// The header of an encrypted image; `None` for any other.
    #[must_use]
    pub fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    pub(super) fn set_lock(&mut self, lock: Lock) {
        self.lock = Some(lock);
    }

    /// The key to the frames of an encrypted image, once it was set ([`Self::unlock`]).
    #[must_use]
    pub fn key(&self) -> Option<&Arc<FrameKey>> {
        self.key.as_ref()
    }

    /// Sets the key of an encrypted image, if its header and its index were written with that key;
    /// then returns true.
    pub fn unlock(&mut self, secret: &ImageKey) -> bool {
        self.key = (self.lock.as_ref()).and_then(|lock| lock.open(self, secret));
        self.key.is_some()
    }

    /// Checks that frames can be read: that the image is not encrypted, or its key is set.
    ///
    /// # Errors
    /// [`FormatError::Locked`].
    pub fn check_unlocked(&self) -> Result<(), FormatError> {
        match self.lock.is_some() && self.key.is_none() {
            true => Err(FormatError::Locked),
            false => Ok(()),
        }
    }

    /// True once a root was accepted: every frame is checked by its leaf.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.leaves.is_some()
    }

    /// Reads the image's hash tree, and asks `judge` to accept its root, by the root itself or by
    /// the signatures that the image carries. From then on every frame is checked by its leaf, and
    /// so is every frame that the image declares zeros. `source` is the image from which this index
    /// was read.
    ///
    /// # Errors
    /// [`FormatError::Untrusted`] with the reason from `judge`, or if the image has no tree or the
    /// tree of another image. Blocks on the source.
    pub fn trust(&mut self, source: &dyn ReadAt, judge: &mut Judge<'_>) -> Result<(), FormatError> {
        let untrusted = |reason: &str| FormatError::Untrusted {
            reason: reason.to_owned(),
            next: "fetch it again, or ask who made it for its root hash or key",
        };
        let Some(tree) = &self.tree else {
            return Err(FormatError::Untrusted {
                reason: "it has no hash tree".to_owned(),
                next: "`sidecore block pack --tree`, or `--sign KEY`, makes images that have one",
            });
        };
        // A frame's leaf is stored with its checksum ([`Self::frame`]).
        if !matches!(self.checks, Checks::Stored(_)) {
            return Err(untrusted("its frames have no checksums of their own"));
        }
        let found = tree.leaves(&Bytes::new(source)?, self)?;
        let Some((leaves, root)) = found else {
            return Err(untrusted("its hash tree is one of another image"));
        };
        judge(&root, &tree.signatures).map_err(|reason| untrusted(&reason))?;
        // Set before the check below, which reads leaves through `frame`; taken back if it fails.
        self.leaves = Some(leaves);
        // Declared zeros are not read, so the declaration itself is checked. Holes have no leaves;
        // the root covers their places.
        let is_false = |&number: &u64| {
            let frame = self.frame(number);
            matches!(frame.check, FrameCheck::Sealed(_, leaf)
                if leaf.zero && !leaf.is_of(frame.raw_bytes, &[]))
        };
        let first_false = match self.zeros.is_empty() {
            true => None,
            false => self.stored_in(0..self.frames).find(is_false),
        };
        if let Some(number) = first_false {
            self.leaves = None;
            let reason = format!("frame {number} is declared all zeros and is not");
            return Err(untrusted(&reason));
        }
        Ok(())
    }
}

impl Place {
    fn new(offset: u64, codec: CodecId) -> Self {
        Self(offset | codec.index().to_u64() << OFFSET_BITS)
    }

    fn offset(self) -> u64 {
        self.0 & OFFSET_MASK
    }

    fn codec(self) -> CodecId {
        CodecId::ALL[(self.0 >> OFFSET_BITS).to_usize()]
    }
}

/// The bytes of one frame, from a difference of offsets: [`Builder::push`] has bounded it.
fn frame_size(bytes: u64) -> u32 {
    bytes as u32
}

const OFFSET_BITS: u32 = 60;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
