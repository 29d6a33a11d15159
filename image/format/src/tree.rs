//! The hash tree of an image: BLAKE3 of every frame under one root, and signatures of the root, in
//! a skippable frame that other tools skip.
//!
//! Why here: checksums detect accidents; anyone can recompute them for other contents. The root, or
//! a trusted key that has signed it, vouches for every byte of the device: a frame that does not
//! belong to the image is refused before any of it is decompressed.
//! Must stay true: a root is computed from the leaves that were read, never taken from the file.
//! Leaves count only once that root is the required one. A leaf binds a frame's place in the
//! device, its size and its zero mark, so that frames can be neither exchanged nor left out.
//! Map: `docs/formats/tree.md`.
//!
//! The list of leaves is one level. BLAKE3 itself is a binary tree over its kilobytes, so that a
//! part of the list could be verified without the rest.

use super::read_at::Bytes;
use super::skippable::{MAGIC, SKIPPABLE_BYTES, le32, le64};
use super::table::Tail;
use super::{FormatError, Index, next_raw_bytes, skippable};
use blake3::Hasher;
use sidecore_bare::width::ToU64;
use std::ops::Range;

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// A signature of a root, and the signing key (Ed25519, RFC 8032).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The public key.
    pub key: [u8; 32],
    /// The signature of `signed_message`.
    pub signature: [u8; 64],
}

/// Accepts or refuses a root for which the image carries these signatures; the error is the reason.
pub type Judge<'j> = dyn FnMut(&Hash, &[Signature]) -> Result<(), String> + 'j;

/// Leaves that were read, and the root computed from them.
pub(super) type Leaves = (Box<[Hash]>, Hash);

/// Signs a root; without any signature the root itself must be pinned by users.
pub type Signer = Box<dyn FnMut(&Hash) -> Vec<Signature> + Send>;

/// Hash of one frame: of its compressed bytes, its number, its size, and its zero mark. The
/// compressed bytes of a frame that is declared zeros are not hashed: it is never read.
#[must_use]
pub fn leaf(number: u64, raw_bytes: u32, zero: bool, stored: &[u8]) -> Hash {
    let mut hasher = Hasher::new_keyed(LEAF_KEY);
    if !zero {
        hasher.update(stored);
    }
    // Appended after the bytes, which so stay aligned with the hash's blocks; of a fixed length, so
    // that no two frames give the same input.
    let mut end = [0; 13];
    end[..8].copy_from_slice(&number.to_le_bytes());
    end[8..12].copy_from_slice(&raw_bytes.to_le_bytes());
    end[12] = zero.into();
    hasher.update(&end);
    *hasher.finalize().as_bytes()
}

/// The bytes that are signed for `root`.
#[must_use]
pub(crate) fn signed_message(root: &Hash) -> Vec<u8> {
    [&b"sidecore image root 1\0"[..], root].concat()
}

/// Sizes that a root covers in addition to the leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    frame_bytes: u32,
    /// Frames with leaves: for a thin image, the stored ones.
    frames: u64,
    raw_bytes: u64,
}

impl Shape {
    fn of(index: &Index) -> Self {
        Self {
            frame_bytes: index.frame_bytes(),
            frames: index.stored_frames(),
            raw_bytes: index.raw_bytes(),
        }
    }

    fn bytes(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&self.frame_bytes.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.frames.to_le_bytes());
        bytes[12..].copy_from_slice(&self.raw_bytes.to_le_bytes());
        bytes
    }

    /// The hash of an image's shape, to which its leaves are added. For a thin image it includes
    /// the `holes`: the first frame of each run and the one after its last.
    fn hasher(&self, holes: Option<&mut dyn ExactSizeIterator<Item = Range<u64>>>) -> Hasher {
        let Some(holes) = holes else {
            let mut hasher = Hasher::new_keyed(ROOT_KEY);
            hasher.update(&self.bytes());
            return hasher;
        };
        let mut hasher = Hasher::new_keyed(ROOT_KEY_THIN);
        hasher.update(&self.bytes());
        hasher.update(&holes.len().to_u64().to_le_bytes());
        for run in holes {
            hasher.update(&run.start.to_le_bytes());
            hasher.update(&run.end.to_le_bytes());
        }
        hasher
    }
}

/// Collects the leaves of an image that is being written.
#[derive(Debug, Default)]
pub(super) struct Writer {
    leaves: Vec<Hash>,
    raw_bytes: u64,
    /// Size of the largest frame, as in the index.
    frame_bytes: u32,
    /// Runs of holes of a thin image.
    holes: Option<Vec<Range<u64>>>,
    hole_frames: u64,
}

impl Writer {
    pub(super) fn new(is_thin: bool) -> Self {
        Self {
            holes: is_thin.then(Vec::new),
            ..Self::default()
        }
    }

    /// Adds a run of holes. Frames are counted here, since only the other frames have leaves.
    pub(super) fn push_holes(&mut self, frames: u64, raw_bytes: u64, frame_bytes: u32) {
        let first = self.leaves.len().to_u64() + self.hole_frames;
        self.hole_frames += frames;
        let Some(holes) = &mut self.holes else { return };
        match holes.last_mut() {
            Some(last) if last.end == first => last.end += frames,
            _ => holes.push(first..first + frames),
        }
        self.raw_bytes += raw_bytes;
        let largest = next_raw_bytes(raw_bytes, frame_bytes);
        self.frame_bytes = self.frame_bytes.max(largest);
    }

    pub(super) fn push(&mut self, leaf: Hash, raw_bytes: u32) {
        self.leaves.push(leaf);
        self.raw_bytes += u64::from(raw_bytes);
        self.frame_bytes = self.frame_bytes.max(raw_bytes);
    }

    /// Writes the whole skippable frame, with the signatures that `sign` makes of the root; returns
    /// the root and the frame's bytes. `None` if its 32-bit length cannot hold all leaves.
    pub(super) fn finish(
        &self,
        sign: &mut dyn FnMut(&Hash) -> Vec<Signature>,
        tail: &mut Tail<'_>,
    ) -> Result<Option<(Hash, u32)>, FormatError> {
        let shape = Shape {
            frame_bytes: self.frame_bytes,
            frames: self.leaves.len().to_u64(),
            raw_bytes: self.raw_bytes,
        };
        // The root is a hash over all leaves in one list; BLAKE3 makes a tree of it by itself.
        let leaves = self.leaves.as_flattened();
        let mut runs = self.holes.as_deref().unwrap_or_default().iter().cloned();
        let is_thin = self.holes.is_some();
        let mut hasher = shape.hasher(is_thin.then_some(&mut runs as _));
        let root = *hasher.update(leaves).finalize().as_bytes();
        let version = if is_thin { VERSION_THIN } else { VERSION };
        let signatures = sign(&root);
        // The header counts them in a byte; of more than 255 the first ones are kept.
        let count = u8::try_from(signatures.len()).unwrap_or(u8::MAX);
        let signatures = &signatures[..count.into()];
        let content = HEAD_BYTES
            + signatures.len().to_u64() * SIGNATURE_BYTES.to_u64()
            + leaves.len().to_u64()
            + TAIL_BYTES;
        let Some((content_bytes, total_bytes)) = skippable::lengths(content) else {
            return Ok(None);
        };
        tail.put(&MAGIC.to_le_bytes())?;
        tail.put(&content_bytes.to_le_bytes())?;
        tail.put(&TAG)?;
        tail.put(&[version, BLAKE3, count, 0])?;
        tail.put(&shape.bytes())?;
        tail.put(&root)?;
        for signature in signatures {
            tail.put(&signature.key)?;
            tail.put(&signature.signature)?;
        }
        for leaf in &self.leaves {
            tail.put(leaf)?;
        }
        tail.put(&total_bytes.to_le_bytes())?;
        tail.put(&END_TAG)?;
        Ok(Some((root, total_bytes)))
    }
}

/// The tree of an open image: its place, and its own unverified claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The root that it claims.
    pub root: Hash,
    /// Signatures that it carries, not verified yet.
    pub signatures: Vec<Signature>,
    shape: Shape,
    is_thin: bool,
    leaves_at: u64,
}

/// Looks for a tree whose frame ends at byte `end` of the file. Bytes that only resemble a tree (a
/// frame's last bytes, or a damaged tree) count as none; a caller that needs one then reports that
/// there is none.
///
/// # Errors
/// [`FormatError`]: there is a tree, of a version newer than this program.
pub(super) fn read(
    bytes: &Bytes<'_>,
    end: u64,
    format: &'static str,
) -> Result<Option<Tree>, FormatError> {
    let Some(tail) = end.checked_sub(TAIL_BYTES).map(|at| bytes.array::<8>(at)) else {
        return Ok(None);
    };
    let Some(tail) = tail?.filter(|tail| tail[4..] == END_TAG) else {
        return Ok(None);
    };
    let total_bytes = u64::from(le32(&tail));
    let least = SKIPPABLE_BYTES + HEAD_BYTES + TAIL_BYTES;
    let start = end
        .checked_sub(total_bytes)
        .filter(|_| total_bytes >= least);
    let Some(start) = start else {
        return Ok(None);
    };
    // Zeros are no tree: the tag is compared below.
    let head = bytes.array::<72>(start)?.unwrap_or([0; 72]);
    let shape = Shape {
        frame_bytes: le32(&head[20..]),
        frames: le64(&head[24..]),
        raw_bytes: le64(&head[32..]),
    };
    let signatures_bytes = u64::from(head[18]) * SIGNATURE_BYTES.to_u64();
    let leaves_bytes = shape.frames.checked_mul(size_of::<Hash>().to_u64());
    let content_bytes = total_bytes - SKIPPABLE_BYTES;
    if head[..4] != MAGIC.to_le_bytes()
        || u64::from(le32(&head[4..])) != content_bytes
        || head[8..16] != TAG
        || leaves_bytes.and_then(|leaves| leaves.checked_add(signatures_bytes))
            != Some(total_bytes - least)
    {
        return Ok(None);
    }
    if ![VERSION, VERSION_THIN].contains(&head[16]) || head[17] != BLAKE3 {
        return Err(FormatError::Field {
            format,
            field: "the version of the hash tree",
            value: head[16].into(),
            limit: "this program reads versions 1 and 2 with BLAKE3; update it",
        });
    }
    let mut root = [0; 32];
    root.copy_from_slice(&head[40..]);
    let signatures_at = start + SKIPPABLE_BYTES + HEAD_BYTES;
    let signatures = read_signatures(bytes, signatures_at, head[18])?;
    Ok(Some(Tree {
        root,
        signatures,
        shape,
        is_thin: head[16] == VERSION_THIN,
        leaves_at: signatures_at + signatures_bytes,
    }))
}

fn read_signatures(bytes: &Bytes<'_>, at: u64, count: u8) -> Result<Vec<Signature>, FormatError> {
    let mut signatures = Vec::new();
    bytes.records::<SIGNATURE_BYTES>(at, count.into(), |_, record| {
        let mut signature = Signature {
            key: [0; 32],
            signature: [0; 64],
        };
        signature.key.copy_from_slice(&record[..32]);
        signature.signature.copy_from_slice(&record[32..]);
        signatures.push(signature);
        Ok(())
    })?;
    Ok(signatures)
}

impl Tree {
    /// Reads the leaves of the image that `index` describes; returns them and their root. `None` if
    /// the tree is of another image.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub(super) fn leaves(
        &self,
        bytes: &Bytes<'_>,
        index: &Index,
    ) -> Result<Option<Leaves>, FormatError> {
        // Checked first: the leaves of another image would be read in vain, or the wrong number of
        // them.
        if self.shape != Shape::of(index) || self.is_thin != index.is_thin() {
            return Ok(None);
        }
        let mut leaves = Vec::new();
        bytes.records::<{ size_of::<Hash>() }>(self.leaves_at, self.shape.frames, |_, leaf| {
            leaves.push(*leaf);
            Ok(())
        })?;
        let mut holes = index.holes().iter().map(|hole| hole.first..hole.end);
        let mut hasher = self.shape.hasher(self.is_thin.then_some(&mut holes as _));
        let root = *hasher.update(leaves.as_flattened()).finalize().as_bytes();
        Ok(Some((leaves.into(), root)))
    }
}

const TAG: [u8; 8] = *b"sidetree";
const END_TAG: [u8; 4] = *b"TREE";
const VERSION: u8 = 1;
/// Version of a thin image: the root covers its holes, which have no leaves.
const VERSION_THIN: u8 = 2;
const BLAKE3: u8 = 0;
const HEAD_BYTES: u64 = 64;
const TAIL_BYTES: u64 = 8;
const SIGNATURE_BYTES: usize = 96;
const LEAF_KEY: &Hash = b"sidecore image tree: a leaf (v1)";
const ROOT_KEY: &Hash = b"sidecore image tree: root (v1)\0\0";
const ROOT_KEY_THIN: &Hash = b"sidecore image tree: root (v2)\0\0";
