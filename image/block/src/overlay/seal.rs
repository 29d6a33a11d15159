//! Integrity checks of an overlay's parts, and the encryption of grains. The checks are checksums,
//! or authentication codes where an encrypted image's key is known.
//!
//! Why here: writes to an encrypted image must not be stored in plain text, and a writer without a
//! key must not be able to change them unnoticed. The layout stays the same except for the slots,
//! which are longer: a grain is followed by its nonce and its tag.
//!
//! Must stay true: **no key encrypts twice.** Each written grain gets a key of its own: BLAKE3 of a
//! nonce of 24 random bytes under the layer's key. So rewriting a grain, a crash that restores an
//! older one, or two copies of the file that both continue are all safe. A grain's number is
//! authenticated, and the map holds a code of its nonce and tag, so neither another grain nor an
//! older version is accepted in its place. The log's codes take a salt that is drawn whenever the
//! file is opened for writing: groups of a copy, or dropped groups, never verify.
//!
//! Sources: NIST SP 800-38D (AES-GCM), RFC 8439 (ChaCha20-Poly1305), BLAKE3's keyed mode; a key for
//! each message of a long random nonce as in XChaCha20-Poly1305 and XAES-256-GCM.

use super::OverlayError;
use crate::format::lock::{Cipher, FrameKey, ImageKey, TAG_BYTES};
use ring::aead::{Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::rand::SecureRandom;
use std::io::Read;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64, xxh3_64_with_seed};
use zeroize::Zeroizing;

/// The lock of a sealed layer, as stored in its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LayerLock {
    /// Cipher of its grains.
    pub(super) cipher: Cipher,
    /// Drawn for the layer: its key is derived from this and from the image's key.
    pub(super) salt: [u8; 32],
    /// Authentication code of the superblock; not set yet in a new lock.
    pub(super) code: [u8; 32],
}

impl LayerLock {
    /// A lock for a new layer on an image with this key.
    ///
    /// # Errors
    /// The system's, where it has no random bytes.
    pub(super) fn new(key: &FrameKey) -> Result<Self, OverlayError> {
        Ok(Self {
            cipher: key.cipher(),
            salt: random()?,
            code: [0; 32],
        })
    }
}

/// Parts of an overlay that have checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// A group of the log whose salt this is.
    Group(u64),
    /// A leaf of the map, by its number.
    Leaf(u64),
    /// The snapshot.
    Snapshot,
}

/// Checks of a layer's parts.
pub(super) enum Seal {
    /// By XXH3-64.
    Open,
    /// By authentication codes.
    Keys(Box<Keys>),
}

/// The keys of a sealed layer.
pub(super) struct Keys {
    cipher: Cipher,
    grains: ImageKey,
    codes: ImageKey,
}

impl Seal {
    /// The seal of a layer with this lock on an image with this key.
    pub(super) fn of(lock: &LayerLock, key: &FrameKey) -> Self {
        let secret = key.layer_secret(&lock.salt);
        let derived = |context| Zeroizing::new(blake3::derive_key(context, &*secret));
        Self::Keys(Box::new(Keys {
            cipher: lock.cipher,
            grains: derived(GRAINS_CONTEXT),
            codes: derived(CODES_CONTEXT),
        }))
    }

    /// Bytes of a slot after the grain.
    pub(super) fn trailer_bytes(&self) -> usize {
        match self {
            Self::Open => 0,
            Self::Keys(_) => TRAILER_BYTES,
        }
    }

    /// The check of a part.
    pub(super) fn check(&self, part: Part, bytes: &[u8]) -> u64 {
        match (self, part) {
            (Self::Open, Part::Group(salt)) => xxh3_64_with_seed(bytes, salt),
            (Self::Open, _) => xxh3_64(bytes),
            (Self::Keys(keys), part) => {
                let (kind, number) = match part {
                    Part::Group(salt) => (CODE_GROUP, salt),
                    Part::Leaf(number) => (CODE_LEAF, number),
                    Part::Snapshot => (CODE_SNAPSHOT, 0),
                };
                keys.code(kind, number, bytes)
            }
        }
    }

    /// The check of the snapshot, piece by piece; the same as [`Self::check`] gives.
    pub(super) fn snapshot_check(&self) -> SnapshotCheck {
        match self {
            Self::Open => SnapshotCheck::Open(Box::default()),
            Self::Keys(keys) => SnapshotCheck::Keys(Box::new(keys.hasher(CODE_SNAPSHOT, 0))),
        }
    }

    /// The authentication code of a superblock, of its bytes before the code; `None` where the
    /// layer has no keys.
    pub(super) fn superblock_code(&self, bytes: &[u8]) -> Option<blake3::Hash> {
        let Self::Keys(keys) = self else { return None };
        let mut hasher = blake3::Hasher::new_keyed(&keys.codes);
        hasher.update(&[CODE_SUPERBLOCK]).update(bytes);
        Some(hasher.finalize())
    }

    /// Fills the nonces of slots that are to be sealed. Does nothing where there are no keys.
    ///
    /// # Errors
    /// The system's, where it has no random bytes.
    pub(super) fn draw_nonces(&self, slots: &mut [u8], slot_bytes: usize) -> std::io::Result<()> {
        if matches!(self, Self::Open) {
            return Ok(());
        }
        let random = ring::rand::SystemRandom::new();
        let mut nonces = vec![0; slots.len() / slot_bytes * NONCE_BYTES];
        let drawn = random.fill(&mut nonces);
        drawn.map_err(|_| std::io::Error::other("the system has no random bytes"))?;
        for (slot, nonce) in slots
            .chunks_exact_mut(slot_bytes)
            .zip(nonces.chunks_exact(NONCE_BYTES))
        {
            let at = slot_bytes - TRAILER_BYTES;
            slot[at..at + NONCE_BYTES].copy_from_slice(nonce);
        }
        Ok(())
    }

    /// Seals the grain in `slot`, whose nonce is drawn already, and returns its check.
    ///
    /// # Errors
    /// The cipher's; it accepts every grain.
    pub(super) fn seal(&self, grain: u64, slot: &mut [u8]) -> std::io::Result<u64> {
        let Self::Keys(keys) = self else {
            return Ok(xxh3_64(slot));
        };
        let refused = || std::io::Error::other("the cipher refused a grain");
        let split = slot.len().checked_sub(TRAILER_BYTES).ok_or_else(refused)?;
        let (bytes, trailer) = slot.split_at_mut(split);
        let (nonce, tag) = trailer.split_at_mut(NONCE_BYTES);
        let key = keys.grain_key(nonce).ok_or_else(refused)?;
        let with = Aad::from(grain.to_le_bytes());
        let sealed = key.seal_in_place_separate_tag(only_nonce(), with, bytes);
        tag.copy_from_slice(sealed.map_err(|_| refused())?.as_ref());
        Ok(keys.code(CODE_GRAIN, grain, trailer))
    }

    /// Decrypts the contents of `slot` in place; false where they are not the bytes that were
    /// sealed under this number with this check. The contents of `slot` must not be used then.
    pub(super) fn open(&self, grain: u64, check: u64, slot: &mut [u8]) -> bool {
        let Self::Keys(keys) = self else {
            return xxh3_64(slot) == check;
        };
        let Some(split) = slot.len().checked_sub(TRAILER_BYTES) else {
            return false;
        };
        let (bytes, trailer) = slot.split_at_mut(split);
        // The map's code covers nonce and tag, so an older version of the grain is refused.
        if keys.code(CODE_GRAIN, grain, trailer) != check {
            return false;
        }
        let (nonce, tag) = trailer.split_at(NONCE_BYTES);
        let (Some(key), Ok(tag)) = (keys.grain_key(nonce), Tag::try_from(tag)) else {
            return false;
        };
        let with = Aad::from(grain.to_le_bytes());
        let opened = key.open_in_place_separate_tag(only_nonce(), with, tag, bytes, 0..);
        opened.is_ok()
    }
}

impl Keys {
    /// The key of one written version of a grain.
    fn grain_key(&self, nonce: &[u8]) -> Option<LessSafeKey> {
        let bytes = blake3::keyed_hash(&self.grains, nonce);
        let key = UnboundKey::new(self.cipher.algorithm(), bytes.as_bytes()).ok()?;
        Some(LessSafeKey::new(key))
    }

    /// The first 8 bytes of a code of `bytes`: as long as a checksum. Without the key a code cannot
    /// be computed, and only one guess can be tried each time that the overlay is opened or read.
    fn code(&self, kind: u8, number: u64, bytes: &[u8]) -> u64 {
        first_bytes(self.hasher(kind, number).update(bytes))
    }

    fn hasher(&self, kind: u8, number: u64) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.codes);
        hasher.update(&[kind]).update(&number.to_le_bytes());
        hasher
    }
}

fn first_bytes(hasher: &blake3::Hasher) -> u64 {
    let code = hasher.finalize();
    let first = code.as_bytes().first_chunk();
    first.map_or(0, |first| u64::from_le_bytes(*first))
}

/// A check that is computed while its bytes are read.
pub(super) enum SnapshotCheck {
    /// XXH3-64.
    Open(Box<Xxh3Default>),
    /// A code with a layer's key.
    Keys(Box<blake3::Hasher>),
}

impl SnapshotCheck {
    /// Adds the next bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Open(hasher) => hasher.update(bytes),
            Self::Keys(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    /// The check of all bytes.
    pub(super) fn finish(&self) -> u64 {
        match self {
            Self::Open(hasher) => hasher.digest(),
            Self::Keys(hasher) => first_bytes(hasher),
        }
    }
}

/// A grain's key is used once.
fn only_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// Random bytes of the system.
///
/// # Errors
/// The system's.
pub(super) fn random<const N: usize>() -> Result<[u8; N], OverlayError> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(OverlayError::read)?;
    Ok(bytes)
}

const NONCE_BYTES: usize = 24;
/// Nonce and tag.
pub(super) const TRAILER_BYTES: usize = NONCE_BYTES + TAG_BYTES;
const CODE_SUPERBLOCK: u8 = 0;
const CODE_GROUP: u8 = 1;
const CODE_LEAF: u8 = 2;
const CODE_SNAPSHOT: u8 = 3;
const CODE_GRAIN: u8 = 4;
const GRAINS_CONTEXT: &str = "sidecore overlay: key of grains (v1)";
const CODES_CONTEXT: &str = "sidecore overlay: key of codes (v1)";
