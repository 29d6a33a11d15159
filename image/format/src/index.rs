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

use super::lock::{Cipher, FrameKey, ImageKey, Lock};
use super::read_at::Bytes;
use super::stored_bytes_limit;
use super::tree::{Hash, Judge, Tree};
use super::{FRAME_BYTES_MAX, Format, FormatError, Frame, FrameCheck, Leaf, ReadAt};
use crate::codec::CodecId;
use std::ops::Range;
use std::sync::Arc;

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
        let behind = self.holes.partition_point(|hole| hole.first <= i);
        self.holes[..behind].last()
    }

    /// Number of frame `i` among the stored frames; `None` for a hole.
    fn stored_number(&self, i: u64) -> Option<usize> {
        match self.hole_before(i) {
            None => Some(i as usize),
            Some(hole) if i < hole.end => None,
            Some(hole) => Some((hole.stored_before + i - hole.end) as usize),
        }
    }

    /// Numbers of the stored frames in a range, in order.
    pub fn stored_in(&self, frames: Range<u64>) -> impl Iterator<Item = u64> {
        let (mut next, end) = (frames.start, frames.end.min(self.frames));
        std::iter::from_fn(move || {
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

    /// Frame `i`.
    ///
    /// # Panics
    /// If there is no such frame.
    #[must_use]
    pub fn frame(&self, i: u64) -> Frame {
        assert!(i < self.frames, "frame {i} of {}", self.frames);
        let stored_number = self.stored_number(i);
        // Frames of a thin image are of one size.
        let n = stored_number.unwrap_or_default();
        let (raw_offset, raw_end) = match &self.raws {
            Raws::Even => {
                let start = i * u64::from(self.frame_bytes);
                (
                    start,
                    (start + u64::from(self.frame_bytes)).min(self.raw_bytes),
                )
            }
            Raws::Uneven(offsets) => (offsets[n], offsets[n + 1]),
        };
        let raw_bytes = (raw_end - raw_offset) as u32;
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
                (
                    start,
                    (places[n + 1].offset() - start) as u32,
                    places[n].codec(),
                )
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
            Raws::Even if self.frame_bytes.is_power_of_two() => {
                raw_offset >> self.frame_bytes.trailing_zeros()
            }
            Raws::Even => raw_offset / u64::from(self.frame_bytes),
            Raws::Uneven(offsets) => {
                offsets.partition_point(|&start| start <= raw_offset) as u64 - 1
            }
        }
    }

    /// True when the image declares frame `i` all zeros: it need not be read.
    #[must_use]
    pub fn is_zero(&self, i: u64) -> bool {
        if self.zeros.is_empty() && self.holes.is_empty() {
            return false;
        }
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
        Self(offset | (codec as u64) << OFFSET_BITS)
    }

    fn offset(self) -> u64 {
        self.0 & OFFSET_MASK
    }

    fn codec(self) -> CodecId {
        CodecId::ALL[(self.0 >> OFFSET_BITS) as usize]
    }
}

/// Collects frames in order and checks each against its neighbours, the file and the limits.
#[derive(Debug)]
pub(super) struct Builder {
    format: Format,
    variant: &'static str,
    file_bytes: u64,
    expected: u64,
    places: Vec<Place>,
    sizes: Vec<u32>,
    /// Empty as long as all frames are of one size.
    raw_offsets: Vec<u64>,
    frame_bytes: u32,
    stored_bytes_max: u32,
    raw_bytes: u64,
    /// End of the last frame's compressed bytes.
    end: u64,
    packed: bool,
    /// The last frame was smaller than those before: no frame may follow without an offset table.
    short: bool,
    stored_checks: Vec<u64>,
    raw_checks: Vec<u32>,
    zeros: Vec<u64>,
    holes: Vec<Hole>,
    /// Codec of a thin image's frames.
    codec: Option<CodecId>,
}

impl Builder {
    /// Expects `frames` frames. Memory is allocated as they are added: the number may be false, and
    /// the table a hole of its file.
    pub(super) fn new(format: Format, variant: &'static str, file_bytes: u64, frames: u64) -> Self {
        let mut places = Vec::new();
        places.reserve_exact(frames.min(RESERVED_MAX) as usize + 1);
        Self {
            format,
            variant,
            file_bytes,
            expected: frames,
            places,
            sizes: Vec::new(),
            raw_offsets: Vec::new(),
            frame_bytes: 0,
            stored_bytes_max: 0,
            raw_bytes: 0,
            end: 0,
            packed: true,
            short: false,
            stored_checks: Vec::new(),
            raw_checks: Vec::new(),
            zeros: Vec::new(),
            holes: Vec::new(),
            codec: None,
        }
    }

    /// Makes it the index of a thin image, whose frames are of `codec`.
    pub(super) fn set_thin(&mut self, codec: CodecId) {
        self.codec = Some(codec);
    }

    /// Number of the next frame.
    fn next(&self) -> u64 {
        self.places.len() as u64 + self.holes.last().map_or(0, |it| it.end - it.stored_before)
    }

    /// Adds a run of `frames` holes with `raw_bytes` of zeros, in frames of `frame_bytes`.
    ///
    /// # Errors
    /// [`FormatError::Table`] if the run is empty, or continues the one before.
    pub(super) fn push_holes(
        &mut self,
        frames: u64,
        raw_bytes: u64,
        frame_bytes: u32,
    ) -> Result<(), FormatError> {
        let first = self.next();
        let touches = self.holes.last().is_some_and(|it| it.end == first);
        if frames == 0 || touches {
            return Err(FormatError::Table {
                format: self.variant,
                frame: first,
                frames: self.expected,
                reason: "a run of holes is empty, or follows another one",
                value: frames,
            });
        }
        self.holes.push(Hole {
            first,
            end: first + frames,
            stored_before: self.places.len() as u64,
        });
        let largest = raw_bytes.min(frame_bytes.into()) as u32;
        self.frame_bytes = self.frame_bytes.max(largest);
        self.raw_bytes += raw_bytes;
        Ok(())
    }

    /// Changes the index's format, if the frames themselves determine it.
    pub(super) fn set_format(&mut self, format: Format) {
        self.format = format;
    }

    /// Adds the next frame; its `raw_offset` is set here.
    ///
    /// # Errors
    /// [`FormatError::Table`] or [`FormatError::FrameTooLarge`].
    pub(super) fn push(&mut self, frame: Frame, zero: bool) -> Result<(), FormatError> {
        let number = self.places.len() as u64;
        let table = |reason, value| FormatError::Table {
            format: self.variant,
            frame: number,
            frames: self.expected,
            reason,
            value,
        };
        if frame.raw_bytes > FRAME_BYTES_MAX {
            return Err(FormatError::FrameTooLarge {
                format: self.variant,
                frame: number,
                bytes: frame.raw_bytes.into(),
                limit: FRAME_BYTES_MAX.into(),
            });
        }
        if frame.raw_bytes == 0 {
            return Err(table("inflates to nothing", 0));
        }
        if frame.stored_bytes == 0 {
            return Err(table("has no compressed bytes", 0));
        }
        if u64::from(frame.stored_bytes) > stored_bytes_limit(frame.raw_bytes) {
            let reason = "its compressed bytes are far more than its contents";
            return Err(table(reason, frame.stored_bytes.into()));
        }
        let end = frame.offset.checked_add(frame.stored_bytes.into());
        let Some(end) = end.filter(|&end| end <= self.file_bytes && end <= OFFSET_MASK) else {
            return Err(table("begins or ends outside the file", frame.offset));
        };
        if number > 0 && frame.offset != self.end && self.packed {
            self.unpack();
        }
        if !self.packed {
            self.sizes.push(frame.stored_bytes);
        }
        self.even(frame.raw_bytes);
        self.places.push(Place::new(frame.offset, frame.codec));
        self.end = end;
        self.raw_bytes += u64::from(frame.raw_bytes);
        self.stored_bytes_max = self.stored_bytes_max.max(frame.stored_bytes);
        match frame.check {
            FrameCheck::None => {}
            FrameCheck::Stored(check) | FrameCheck::Sealed(check, _) => {
                self.stored_checks.push(check);
            }
            FrameCheck::Raw(check) => self.raw_checks.push(check),
        }
        if zero {
            let word = (number / 64) as usize;
            if self.zeros.len() <= word {
                self.zeros.resize(word + 1, 0);
            }
            self.zeros[word] |= 1 << (number % 64);
        }
        Ok(())
    }

    /// The frames are not contiguous: store the size of each.
    fn unpack(&mut self) {
        self.packed = false;
        let ends = self.places.iter().skip(1).map(|place| place.offset());
        let sizes = (self.places.iter().zip(ends.chain([self.end])))
            .map(|(place, end)| (end - place.offset()) as u32);
        self.sizes.extend(sizes);
    }

    /// Stores raw offsets only from the first frame on that differs from those before it.
    fn even(&mut self, raw_bytes: u32) {
        let number = self.places.len() as u64;
        let first = u64::from(self.frame_bytes);
        if self.raw_offsets.is_empty() && number > 0 && (self.short || raw_bytes > self.frame_bytes)
        {
            self.raw_offsets.extend((0..number).map(|i| i * first));
        }
        if !self.raw_offsets.is_empty() {
            self.raw_offsets.push(self.raw_bytes);
        }
        self.short = number > 0 && raw_bytes < self.frame_bytes;
        self.frame_bytes = self.frame_bytes.max(raw_bytes);
    }

    /// Ends the list.
    ///
    /// # Errors
    /// [`FormatError::Empty`] if no frame was added; [`FormatError::Table`] if some frames have a
    /// checksum of one kind and others do not.
    pub(super) fn finish(mut self) -> Result<Index, FormatError> {
        let (frames, all_frames) = (self.places.len(), self.next());
        let first = self.places.first().map(|place| place.codec());
        let Some(codec) = first.or(self.codec).filter(|_| self.next() > 0) else {
            return Err(FormatError::Empty {
                format: self.variant,
            });
        };
        let checks = match (self.stored_checks.len(), self.raw_checks.len()) {
            // Only holes.
            (0, 0) if self.codec.is_some() => Checks::Stored(Box::default()),
            (0, 0) => Checks::None,
            (n, 0) if n == frames => Checks::Stored(self.stored_checks.into()),
            (0, n) if n == frames => Checks::Raw(self.raw_checks.into()),
            (stored, raw) => {
                return Err(FormatError::Table {
                    format: self.variant,
                    frame: (stored + raw) as u64,
                    frames: frames as u64,
                    reason: "has no checksum, though others have one",
                    value: 0,
                });
            }
        };
        let places = if self.packed {
            self.places.push(Place::new(self.end, codec));
            Places::Packed(self.places.into())
        } else {
            Places::Scattered(self.places.into(), self.sizes.into())
        };
        let raws = if self.raw_offsets.is_empty() {
            Raws::Even
        } else {
            self.raw_offsets.push(self.raw_bytes);
            Raws::Uneven(self.raw_offsets.into())
        };
        if !self.zeros.is_empty() {
            self.zeros.resize(frames.div_ceil(64), 0);
        }
        Ok(Index {
            format: self.format,
            variant: self.variant,
            frames: all_frames,
            raw_bytes: self.raw_bytes,
            stored_bytes: self.file_bytes,
            frame_bytes: self.frame_bytes,
            stored_bytes_max: self.stored_bytes_max,
            codec,
            places,
            raws,
            checks,
            zeros: self.zeros.into(),
            holes: self.holes.into(),
            is_thin: self.codec.is_some(),
            tree: None,
            leaves: None,
            lock: None,
            key: None,
        })
    }
}

/// Number of entries for which memory is reserved before any was read.
const RESERVED_MAX: u64 = 64 << 10;
const OFFSET_BITS: u32 = 60;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
