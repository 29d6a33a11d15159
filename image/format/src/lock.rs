//! Encrypted images: the header that names their cipher and wraps their key, and the use of the key
//! for frames and index.
//!
//! Why here: an encrypted image consists of zstd or LZ4 frames, each of which is encrypted after it
//! was compressed. Only the code that fetches and checks frames needs to know. [`crate::secret`]
//! decides which keys and passphrases unwrap the key.
//!
//! Must stay true: a key encrypts each frame number once, so that no nonce is used twice. A key is
//! drawn for one image, or derived from an older image's key with a salt that is drawn for the new
//! one (`Locker::successor`). A frame's number and size are authenticated with it, and the index is
//! authenticated as a whole: frames cannot be moved, left out, or called zeros.
//! Map: `docs/formats/encrypted.md`.
//!
//! Sources: NIST SP 800-38D (AES-GCM), RFC 8439 (ChaCha20-Poly1305), BLAKE3's keyed mode.

mod slot;

pub use slot::{Slot, WRAPPED_BYTES};

use super::read_at::Bytes;
use super::sidx::{self, Found};
use super::skippable::{MAGIC, SKIPPABLE_BYTES, le32};
use super::{FormatError, Index};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::rand::SecureRandom;
use sidecore_bare::width::{ToU64, ToUsize};
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Bytes that encryption adds to a frame.
pub const TAG_BYTES: usize = 16;
/// Maximum number of slots (wrapped keys) of an image.
pub const SLOTS_MAX: usize = 64;

/// The secret of one image, from which the keys of its frames and of its index come.
pub type ImageKey = Zeroizing<[u8; 32]>;

/// The cipher of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256 in Galois/Counter Mode: the faster one if the processor has instructions for it.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// The faster cipher on this machine.
    #[must_use]
    pub fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        // GCM also multiplies without carries; without that instruction ChaCha20 is the faster one.
        let has_aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        match has_aes {
            true => Self::Aes256Gcm,
            false => Self::ChaCha20Poly1305,
        }
    }

    /// The cipher's algorithm in the cryptographic library.
    pub fn algorithm(self) -> &'static ring::aead::Algorithm {
        match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    /// The cipher with a number in a file.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|cipher| cipher.number() == number)
    }

    /// The name in messages and for `--cipher`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Its number in files.
    pub fn number(self) -> u8 {
        match self {
            Self::Aes256Gcm => 0,
            Self::ChaCha20Poly1305 => 1,
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Cipher {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|cipher| cipher.name() == text)
            .ok_or_else(|| format!("no cipher `{text}`; take aes-256-gcm or chacha20-poly1305"))
    }
}

/// The unencrypted header of an encrypted image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    cipher: Cipher,
    /// Salt of an image that succeeds another one.
    salt: Option<[u8; SALT_BYTES]>,
    slots: Vec<Slot>,
    /// All its bytes, as in the file.
    head: Vec<u8>,
    /// Authentication code of the head and the index.
    code: [u8; 32],
}

impl Lock {
    /// The cipher of its frames.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The wrapped copies of its key.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

/// The key of an image's frames, and the secrets from which the keys of its overlays and of
/// succeeding images are derived.
pub struct FrameKey {
    key: LessSafeKey,
    cipher: Cipher,
    overlays: ImageKey,
    successors: ImageKey,
}

impl fmt::Debug for FrameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameKey({})", self.cipher)
    }
}

/// A frame that is not the one encrypted under its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAuthentic;

impl FrameKey {
    fn new(cipher: Cipher, keys: &Keys) -> Option<Arc<Self>> {
        let bytes = derived(FRAMES_CONTEXT, &keys.secret);
        let key = UnboundKey::new(cipher.algorithm(), &*bytes).ok()?;
        Some(Arc::new(Self {
            key: LessSafeKey::new(key),
            cipher,
            overlays: derived(OVERLAYS_CONTEXT, &keys.secret),
            successors: keys.successors.clone(),
        }))
    }

    /// The key of the frames of an image with this secret, which succeeds no other image.
    ///
    /// # Panics
    /// Never: a secret has the 32 bytes that every cipher takes.
    #[must_use]
    pub fn of_secret(cipher: Cipher, secret: &ImageKey) -> Arc<Self> {
        Self::new(cipher, &Keys::new(secret, None)).expect("a key of 32 bytes")
    }

    /// The secret of an overlay's layer with this salt.
    pub fn layer_secret(&self, salt: &[u8; 32]) -> ImageKey {
        Zeroizing::new(*blake3::keyed_hash(&self.overlays, salt).as_bytes())
    }

    /// The cipher.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Encrypts the compressed bytes of frame `number`, which decompress to `raw_bytes`. Must be
    /// called once for each number in the life of a key.
    ///
    /// # Errors
    /// [`NotAuthentic`]: the cipher does not support frames of that size.
    pub fn encrypt(
        &self,
        number: u64,
        raw_bytes: u32,
        stored: &mut Vec<u8>,
    ) -> Result<(), NotAuthentic> {
        let (nonce, with) = (nonce(number), raw_bytes.to_le_bytes());
        // The size is authenticated with the bytes: a frame cannot be passed off as a shorter one.
        let sealed = self
            .key
            .seal_in_place_append_tag(nonce, Aad::from(with), stored);
        sealed.map_err(|_| NotAuthentic)
    }

    /// Decrypts frame `number`, which decompresses to `raw_bytes`, in `buffer`; returns its
    /// compressed bytes. They stay in that memory until another frame overwrites them.
    ///
    /// # Errors
    /// [`NotAuthentic`]; no bytes are returned.
    pub fn decrypt<'b>(
        &self,
        number: u64,
        raw_bytes: u32,
        encrypted: &[u8],
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], NotAuthentic> {
        buffer.clear();
        // Decrypted in a copy: the encrypted bytes may be mapped from the file.
        buffer.extend_from_slice(encrypted);
        let (nonce, with) = (nonce(number), raw_bytes.to_le_bytes());
        let opened = self.key.open_in_place(nonce, Aad::from(with), buffer);
        opened.map(|bytes| &*bytes).map_err(|_| NotAuthentic)
    }
}

/// Frame numbers are nonces: a key belongs to one image.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    // RFC 8439 and SP 800-38D: 96 bits, never twice with one key. The upper 32 stay 0.
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// The lock of an image that is being written.
pub struct Locker {
    head: Vec<u8>,
    index_key: Zeroizing<[u8; 32]>,
    key: Arc<FrameKey>,
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Locker({})", self.key.cipher)
    }
}

impl Locker {
    /// Draws a key for a new image; `wrap` makes the slots. `None` if there are no slots, or too
    /// many, or no random bytes.
    pub fn new<E>(
        cipher: Cipher,
        wrap: impl FnOnce(&ImageKey) -> Result<Vec<Slot>, E>,
    ) -> Result<Option<Self>, E> {
        let mut secret = ImageKey::default();
        let drawn = ring::rand::SystemRandom::new().fill(&mut *secret);
        let slots = wrap(&secret)?;
        match drawn {
            Ok(()) => Ok(Self::of(cipher, &secret, &slots)),
            Err(_) => Ok(None),
        }
    }

    /// A lock with this key, which no other image may use: public for the seeds of the target
    /// `images` of `lab/fuzz`, which must be the same in each run.
    #[doc(hidden)]
    #[must_use]
    pub fn of(cipher: Cipher, secret: &ImageKey, slots: &[Slot]) -> Option<Self> {
        // Without a slot the image could never be opened again.
        if !(1..=SLOTS_MAX).contains(&slots.len()) {
            return None;
        }
        let keys = Keys::new(secret, None);
        Some(Self {
            head: head_of(cipher, slots)?,
            index_key: derived(INDEX_CONTEXT, &keys.secret),
            key: FrameKey::new(cipher, &keys)?,
        })
    }

    /// A lock for a new image, opened by the same keys and passphrases as the image with `lock`,
    /// whose key is `key`. The new keys are derived with a salt that is drawn here. `None` if there
    /// are no random bytes.
    pub fn successor(lock: &Lock, key: &FrameKey) -> Option<Self> {
        let mut salt = [0; SALT_BYTES];
        let drawn = ring::rand::SystemRandom::new().fill(&mut salt);
        drawn.ok()?;
        // Not the old key: frame numbers are nonces, and would repeat with it.
        let keys = Keys::of_salt(&key.successors, &salt);
        let head = lock.head_with(&salt)?;
        Some(Self {
            head,
            index_key: derived(INDEX_CONTEXT, &keys.secret),
            key: FrameKey::new(lock.cipher, &keys)?,
        })
    }

    /// The key of its frames.
    #[must_use]
    pub fn key(&self) -> &Arc<FrameKey> {
        &self.key
    }

    /// The bytes in front of the first frame.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The start of the authentication code, to which the index is added.
    pub(super) fn mac(&self) -> blake3::Hasher {
        mac(&self.index_key, &self.head)
    }
}

fn mac(index_key: &[u8; 32], head: &[u8]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new_keyed(index_key);
    hasher.update(head);
    hasher
}

fn derived(context: &str, secret: &ImageKey) -> ImageKey {
    Zeroizing::new(blake3::derive_key(context, &**secret))
}

/// The secret from which an image's keys are derived, and the one for images that follow it.
struct Keys {
    secret: ImageKey,
    successors: ImageKey,
}

impl Keys {
    /// The secrets of an image whose slots wrap `wrapped`.
    fn new(wrapped: &ImageKey, salt: Option<&[u8; SALT_BYTES]>) -> Self {
        let successors = derived(SUCCESSORS_CONTEXT, wrapped);
        match salt {
            Some(salt) => Self::of_salt(&successors, salt),
            None => Self {
                secret: wrapped.clone(),
                successors,
            },
        }
    }

    fn of_salt(successors: &ImageKey, salt: &[u8; SALT_BYTES]) -> Self {
        Self {
            secret: Zeroizing::new(*blake3::keyed_hash(successors, salt).as_bytes()),
            successors: successors.clone(),
        }
    }
}

/// The header with these slots; `None` if a length has no room in its field.
fn head_of(cipher: Cipher, slots: &[Slot]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    content.extend(TAG);
    // One byte counts the slots, two a slot's length, four the header's.
    let count = u8::try_from(slots.len()).ok()?;
    content.extend([VERSION, cipher.number(), count, 0]);
    for slot in slots {
        let (kind, body) = slot.encode();
        content.extend([kind, 0]);
        content.extend(u16::try_from(body.len()).ok()?.to_le_bytes());
        content.extend(body);
    }
    let mut out = MAGIC.to_le_bytes().to_vec();
    out.extend(u32::try_from(content.len()).ok()?.to_le_bytes());
    out.extend(content);
    Some(out)
}

/// True for the first bytes of an encrypted image.
pub(super) fn is_locked(head: &[u8]) -> bool {
    head.starts_with(&MAGIC.to_le_bytes()) && head.get(8..16) == Some(&TAG)
}

/// Reads the tables if the file is an encrypted image; `None` if it is something else.
///
/// # Errors
/// [`FormatError`].
pub(super) fn parse(bytes: &Bytes<'_>) -> Result<Option<Index>, FormatError> {
    let Some(fixed) = bytes.array::<FIXED_BYTES>(0)? else {
        return Ok(None);
    };
    if fixed[..4] != MAGIC.to_le_bytes() || fixed[8..16] != TAG {
        return Ok(None);
    }
    let field = |field, value: u64, limit| FormatError::Field {
        format: NAME,
        field,
        value,
        limit,
    };
    let is_salted = match fixed[16] {
        VERSION => false,
        VERSION_SALTED => true,
        other => {
            let limit = "this program reads versions 1 and 2; update it";
            return Err(field("the version of its head", other.into(), limit));
        }
    };
    let Some(cipher) = Cipher::of_number(fixed[17]) else {
        let limit = "this program knows 0 and 1; update it";
        return Err(field("the cipher", fixed[17].into(), limit));
    };
    let head_bytes = SKIPPABLE_BYTES + u64::from(le32(&fixed[4..]));
    let limit = "it must hold its slots, in at most 64 KiB";
    let damaged = |value| field("the length of its head", value, limit);
    // Bounded before the buffer is allocated.
    if head_bytes > HEAD_BYTES_MAX || head_bytes > bytes.size {
        return Err(damaged(head_bytes));
    }
    let mut head = vec![0; head_bytes.to_usize()];
    bytes.fill(&mut head, 0)?;
    let variable = head.get(FIXED_BYTES..).unwrap_or_default();
    let (salt, slots) =
        read_slots(variable, is_salted, fixed[18]).ok_or_else(|| damaged(head_bytes))?;
    // Each passphrase would take memory and seconds before it is known if it fits.
    let is_passphrase = |slot: &&Slot| matches!(slot, Slot::Passphrase { .. });
    let passphrases = slots.iter().filter(is_passphrase).count().to_u64();
    if passphrases > 1 {
        let limit = "at most one is tried; encrypt it for keys (--recipient) instead";
        return Err(field("the number of its passphrases", passphrases, limit));
    }
    let (mut index, code) = match sidx::read_locked(bytes, head_bytes, NAME)? {
        (Found::Index(index), code) => (index, code),
        (Found::Nothing, _) => return Err(cut("it is cut short")),
        (Found::Damaged(reason), _) => return Err(cut(reason)),
    };
    index.set_lock(Lock {
        cipher,
        salt,
        slots,
        head,
        code,
    });
    Ok(Some(*index))
}

/// The salt, if there is one, and `count` slots; `None` if they do not fit.
fn read_slots(
    mut left: &[u8],
    is_salted: bool,
    count: u8,
) -> Option<(Option<[u8; SALT_BYTES]>, Vec<Slot>)> {
    let mut salt = None;
    if is_salted {
        let (first, behind) = left.split_first_chunk()?;
        salt = Some(*first);
        left = behind;
    }
    let mut slots = Vec::new();
    for _ in 0..usize::from(count).min(SLOTS_MAX) {
        let (start, body) = left.split_at_checked(4)?;
        // Each slot has its length, so that kinds of a later version can be skipped.
        let len = usize::from(u16::from_le_bytes([start[2], start[3]]));
        let (body, behind) = body.split_at_checked(len)?;
        left = behind;
        slots.push(Slot::decode(start[0], body)?);
    }
    Some((salt, slots))
}

fn cut(reason: &'static str) -> FormatError {
    FormatError::NoIndex {
        format: NAME,
        at: "the end of the file",
        reason,
        next: "fetch it again",
    }
}

impl Lock {
    /// The key of the frames of an image whose key is `secret`, if its header and `index` were
    /// written with it.
    pub(super) fn open(&self, index: &Index, secret: &ImageKey) -> Option<Arc<FrameKey>> {
        let keys = Keys::new(secret, self.salt.as_ref());
        // Head and index under one code: an index cannot be moved to an image with other slots.
        let mut hasher = mac(&derived(INDEX_CONTEXT, &keys.secret), &self.head);
        sidx::cover_index(index, &mut hasher);
        // Compared in constant time.
        let is_right = hasher.finalize() == self.code;
        is_right
            .then(|| FrameKey::new(self.cipher, &keys))
            .flatten()
    }

    /// The header of an image with the same slots and another salt. Slots of unknown kinds are
    /// copied, too.
    fn head_with(&self, salt: &[u8; SALT_BYTES]) -> Option<Vec<u8>> {
        // An image that is itself a successor has a salt in front of its slots; the new one
        // replaces it.
        let old_salt_bytes = self.salt.map_or(0, |salt| salt.len());
        let (fixed, behind) = self.head.split_at_checked(FIXED_BYTES)?;
        let slots = behind.get(old_salt_bytes..)?;
        let mut head = [fixed, salt, slots].concat();
        if head.len().to_u64() > HEAD_BYTES_MAX {
            return None;
        }
        let content_bytes = head.len().to_u64().checked_sub(SKIPPABLE_BYTES)?;
        head[4..8].copy_from_slice(&u32::try_from(content_bytes).ok()?.to_le_bytes());
        head[16] = VERSION_SALTED;
        Some(head)
    }
}

const NAME: &str = "encrypted image";
const TAG: [u8; 8] = *b"sidelock";
const VERSION: u8 = 1;
/// Version of an image that succeeds another one: a salt precedes the slots.
const VERSION_SALTED: u8 = 2;
const SALT_BYTES: usize = 32;
/// Magic, length, tag, version, cipher, number of slots, zero.
const FIXED_BYTES: usize = 20;
const HEAD_BYTES_MAX: u64 = 64 << 10;
const FRAMES_CONTEXT: &str = "sidecore encrypted image: key of frames (v1)";
const INDEX_CONTEXT: &str = "sidecore encrypted image: key of the index (v1)";
const OVERLAYS_CONTEXT: &str = "sidecore encrypted image: key of overlays (v1)";
const SUCCESSORS_CONTEXT: &str = "sidecore encrypted image: key of images that follow (v1)";
