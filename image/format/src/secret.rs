//! Keys and passphrases that open an encrypted image.
//!
//! Why here: the format ([`crate::lock`]) wraps a key and knows no users. Keys are X25519 keys in
//! the text format of `age-keygen`: an image is encrypted for recipients `age1...`; the line
//! `AGE-SECRET-KEY-1...` of an identity file opens it. A passphrase becomes a key by Argon2id (RFC
//! 9106).
//!
//! Must stay true: a secret is read once, zeroed when it is dropped, and never written or shown.
//! The memory and passes that a hostile image requests of Argon2 are bounded before memory is
//! taken.
//!
//! The wrap: X25519 (RFC 7748) of a pair drawn for the slot, HKDF-SHA-256 (RFC 5869) with both
//! public keys as salt, ChaCha20-Poly1305 (RFC 8439) of the image's key under a nonce of zeros,
//! since each wrapping key is used once.

use crate::lock::{Cipher, ImageKey, Locker, Slot, WRAPPED_BYTES};
use crate::{FormatError, Index};
use argon2::{Algorithm, Argon2, Params, Version};
use bech32::{Bech32, Hrp};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::rand::SecureRandom;
use std::path::{Path, PathBuf};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// Reasons why a key or a passphrase cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// No identity in the file.
    #[error(
        "{} holds no line `AGE-SECRET-KEY-1...`; `age-keygen -o FILE` makes an identity, and says \
         the public key that images are encrypted to", path.display()
    )]
    Identity {
        /// The file.
        path: PathBuf,
    },
    /// Not a valid public key.
    #[error("`{0}` is no public key: it takes `age1...`, as `age-keygen` says it")]
    Recipient(String),
    /// The passphrase in the file is empty.
    #[error("the passphrase in {} is empty", path.display())]
    Passphrase {
        /// The file.
        path: PathBuf,
    },
    /// No recipient and no passphrase was given: the image could never be read.
    #[error("name 1 to 64 of whom may read it: --recipient KEY, or --passphrase-file FILE")]
    Nobody,
    /// No random bytes, or no memory for Argon2.
    #[error("the key cannot be wrapped: {0}")]
    Wrap(&'static str),
}

/// The recipients of an encrypted image.
#[derive(Default)]
pub struct Readers {
    recipients: Vec<PublicKey>,
    passphrase: Option<Zeroizing<String>>,
}

impl Readers {
    /// The owners of these public keys, and a recipient with the passphrase in the first line of a
    /// file. Blocks on the file.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn of(recipients: &[String], passphrase: Option<&Path>) -> Result<Self, SecretError> {
        let mut readers = Self::default();
        for recipient in recipients {
            readers.add_recipient(recipient)?;
        }
        if let Some(path) = passphrase {
            readers.add_passphrase(path)?;
        }
        Ok(readers)
    }

    /// As [`Readers::of`], where any is named.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn named(
        recipients: &[String],
        passphrase: Option<&Path>,
    ) -> Result<Option<Self>, SecretError> {
        let is_named = !recipients.is_empty() || passphrase.is_some();
        is_named
            .then(|| Self::of(recipients, passphrase))
            .transpose()
    }

    /// Adds the owner of this public key, `age1...`.
    ///
    /// # Errors
    /// [`SecretError::Recipient`].
    pub fn add_recipient(&mut self, text: &str) -> Result<(), SecretError> {
        let key = decode(text.trim(), PUBLIC_PREFIX);
        let key = key.ok_or_else(|| SecretError::Recipient(text.to_owned()))?;
        self.recipients.push(PublicKey::from(*key));
        Ok(())
    }

    /// Adds a recipient with the passphrase in the first line of this file. Blocks on the file.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn add_passphrase(&mut self, path: &Path) -> Result<(), SecretError> {
        self.passphrase = Some(read_passphrase(path)?);
        Ok(())
    }

    /// Draws the key of a new image and wraps it for these recipients.
    ///
    /// # Errors
    /// [`SecretError::Nobody`], [`SecretError::Wrap`].
    pub fn locker(&self, cipher: Cipher) -> Result<Locker, SecretError> {
        let wrap = |secret: &ImageKey| -> Result<Vec<Slot>, SecretError> {
            let mut slots = Vec::new();
            for recipient in &self.recipients {
                slots.push(wrap_for(recipient, secret)?);
            }
            if let Some(passphrase) = &self.passphrase {
                slots.push(wrap_by(passphrase, secret)?);
            }
            Ok(slots)
        };
        Locker::new(cipher, wrap)?.ok_or(SecretError::Nobody)
    }
}

/// Identities and a passphrase, with which encrypted images are opened.
#[derive(Default)]
pub struct Secrets {
    identities: Vec<StaticSecret>,
    passphrase: Option<Zeroizing<String>>,
}

impl Secrets {
    /// The identities in these files, and the passphrase in the first line of one. Blocks on them.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn of(identities: &[PathBuf], passphrase: Option<&Path>) -> Result<Self, SecretError> {
        let mut secrets = Self::default();
        identities
            .iter()
            .try_for_each(|path| secrets.add_identities(path))?;
        passphrase.map_or(Ok(()), |path| secrets.add_passphrase(path))?;
        Ok(secrets)
    }

    /// Adds the identities in this file. Blocks on it.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn add_identities(&mut self, path: &Path) -> Result<(), SecretError> {
        let text = read(path)?;
        let before = self.identities.len();
        for line in text.lines().map(str::trim) {
            if let Some(key) = decode(line, SECRET_PREFIX) {
                self.identities.push(StaticSecret::from(*key));
            }
        }
        match self.identities.len() > before {
            true => Ok(()),
            false => Err(SecretError::Identity {
                path: path.to_owned(),
            }),
        }
    }

    /// Sets the passphrase in the first line of this file. Blocks on it.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn add_passphrase(&mut self, path: &Path) -> Result<(), SecretError> {
        self.passphrase = Some(read_passphrase(path)?);
        Ok(())
    }

    /// True if there are no secrets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.identities.is_empty() && self.passphrase.is_none()
    }

    /// Sets the key of an encrypted image's index; does nothing for another image if there are no
    /// secrets. A passphrase takes as much memory as the image's parameters request, at most 1 GiB,
    /// and at most the work of four passes over that: seconds. An image has at most one.
    ///
    /// # Errors
    /// [`FormatError::Locked`], [`FormatError::Untrusted`]: the image must not be used.
    pub fn apply(&self, index: &mut Index) -> Result<(), FormatError> {
        let untrusted = |reason: &str, next| FormatError::Untrusted {
            reason: reason.to_owned(),
            next,
        };
        let Some(lock) = index.lock() else {
            return match self.is_empty() {
                true => Ok(()),
                // Without this check, a replacement by an unencrypted image would go unnoticed.
                false => Err(untrusted(
                    "it is not encrypted",
                    "leave out --identity and --passphrase-file, or fetch the right one",
                )),
            };
        };
        if self.is_empty() {
            return Err(FormatError::Locked);
        }
        // A copy, because `unlock` borrows the index mutably.
        let slots = lock.slots().to_vec();
        let mut opened = false;
        for slot in &slots {
            // An unwrapped key may still be another image's: only the index's code decides.
            for secret in self.unwrap(slot)? {
                opened = true;
                if index.unlock(&secret) {
                    return Ok(());
                }
            }
        }
        Err(match opened {
            true => untrusted(
                "its head or its index is not the one that was encrypted",
                "fetch it again",
            ),
            false => untrusted(
                "none of the keys that were given opens it",
                "name the identity or the passphrase that it was encrypted for",
            ),
        })
    }

    /// The key in a slot, unwrapped with each secret that opens it.
    fn unwrap(&self, slot: &Slot) -> Result<Vec<ImageKey>, FormatError> {
        match slot {
            Slot::X25519 { share, wrapped } => {
                let open = |identity: &StaticSecret| {
                    // Every slot is tried with every identity: slots do not name their recipient.
                    let (own, share) = (PublicKey::from(identity), PublicKey::from(*share));
                    let key = agreed(identity, &share, &own, &share)?;
                    unwrap(&key, wrapped)
                };
                Ok(self.identities.iter().filter_map(open).collect())
            }
            Slot::Passphrase {
                salt,
                memory_kib,
                passes,
                lanes,
                wrapped,
            } => {
                let Some(passphrase) = &self.passphrase else {
                    return Ok(Vec::new());
                };
                let cost = Cost {
                    memory_kib: *memory_kib,
                    passes: *passes,
                    lanes: *lanes,
                };
                let key = cost.key(passphrase, salt).ok_or(FormatError::Field {
                    format: "encrypted image",
                    field: "the memory in KiB that its passphrase takes",
                    value: u64::from(*memory_kib),
                    limit: "at most 1 GiB in 4 passes, less in up to 16, and 16 lanes are spent on \
                            it",
                })?;
                Ok(unwrap(&key, wrapped).into_iter().collect())
            }
            Slot::Unknown(_) => Ok(Vec::new()),
        }
    }
}

/// Cost of Argon2id.
struct Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

impl Cost {
    /// The key of a passphrase; `None` if it would cost more than the limits.
    fn key(&self, passphrase: &str, salt: &[u8; 16]) -> Option<Zeroizing<[u8; 32]>> {
        let work_kib = u64::from(self.memory_kib) * u64::from(self.passes);
        // The cost comes from the file: unbounded, a hostile image would take all memory or hours.
        let bounded = self.memory_kib <= MEMORY_KIB_MAX
            && self.passes <= PASSES_MAX
            && work_kib <= WORK_KIB_MAX
            && self.lanes <= LANES_MAX;
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(32));
        let params = params.ok().filter(|_| bounded)?;
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let mut key = Zeroizing::new([0; 32]);
        let made = argon.hash_password_into(passphrase.as_bytes(), salt, &mut *key);
        made.ok().map(|()| key)
    }
}

fn wrap_for(recipient: &PublicKey, secret: &ImageKey) -> Result<Slot, SecretError> {
    let mut drawn = Zeroizing::new([0; 32]);
    draw(&mut *drawn)?;
    // An ephemeral pair for each slot, as in age's X25519 recipient.
    let pair = StaticSecret::from(*drawn);
    let share = PublicKey::from(&pair);
    let key = agreed(&pair, recipient, recipient, &share)
        .ok_or(SecretError::Wrap("a recipient's key is of small order"))?;
    Ok(Slot::X25519 {
        share: share.to_bytes(),
        wrapped: wrap(&key, secret)?,
    })
}

fn wrap_by(passphrase: &str, secret: &ImageKey) -> Result<Slot, SecretError> {
    // A salt for each slot: equal passphrases have different keys.
    let mut salt = [0; 16];
    draw(&mut salt)?;
    let cost = Cost {
        memory_kib: MEMORY_KIB,
        passes: PASSES,
        lanes: LANES,
    };
    let key = cost.key(passphrase, &salt);
    let key = key.ok_or(SecretError::Wrap("Argon2 has no memory"))?;
    Ok(Slot::Passphrase {
        salt,
        memory_kib: cost.memory_kib,
        passes: cost.passes,
        lanes: cost.lanes,
        wrapped: wrap(&key, secret)?,
    })
}

/// The key that two key pairs agree on, for a slot of `share` and `recipient`. `None` if the other
/// side's public key has small order, which gives the same key with every pair.
fn agreed(
    own: &StaticSecret,
    other: &PublicKey,
    recipient: &PublicKey,
    share: &PublicKey,
) -> Option<Zeroizing<[u8; 32]>> {
    let shared = own.diffie_hellman(other);
    if !shared.was_contributory() {
        return None;
    }
    // Bound to both public keys, so that no other pair of keys gives the same wrapping key.
    let salt = [share.to_bytes(), recipient.to_bytes()].concat();
    let salt = ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, &salt);
    let mut key = Zeroizing::new([0; 32]);
    let expanded = salt.extract(shared.as_bytes());
    let expanded = expanded.expand(&[WRAP_CONTEXT], ring::hkdf::HKDF_SHA256);
    expanded.ok()?.fill(&mut *key).ok().map(|()| key)
}

fn cipher(key: &[u8; 32]) -> Option<LessSafeKey> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).ok()?;
    Some(LessSafeKey::new(key))
}

fn wrap(key: &[u8; 32], secret: &ImageKey) -> Result<[u8; WRAPPED_BYTES], SecretError> {
    let failed = SecretError::Wrap("the cipher refused it");
    let mut wrapped = [0; WRAPPED_BYTES];
    let mut sealed = secret.to_vec();
    // A constant nonce: each wrapping key is derived for one slot and encrypts once.
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let sealing = cipher(key)
        .and_then(|key| {
            let sealed = key.seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed);
            sealed.ok()
        })
        .filter(|()| sealed.len() == WRAPPED_BYTES);
    sealing.ok_or(failed)?;
    wrapped.copy_from_slice(&sealed);
    Ok(wrapped)
}

fn unwrap(key: &[u8; 32], wrapped: &[u8; WRAPPED_BYTES]) -> Option<ImageKey> {
    let mut bytes = Zeroizing::new(*wrapped);
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let opened = cipher(key)?.open_in_place(nonce, Aad::empty(), &mut *bytes);
    // Only authenticated bytes are looked at; a wrong key ends here.
    let opened: &[u8; 32] = opened.ok()?.first_chunk()?;
    Some(Zeroizing::new(*opened))
}

fn draw(bytes: &mut [u8]) -> Result<(), SecretError> {
    let drawn = ring::rand::SystemRandom::new().fill(bytes);
    drawn.map_err(|_| SecretError::Wrap("the system has no random bytes"))
}

/// The 32 bytes that `text` encodes in Bech32 (BIP 173) after `prefix`.
fn decode(text: &str, prefix: &str) -> Option<Zeroizing<[u8; 32]>> {
    let (found, bytes) = bech32::decode(text).ok()?;
    let bytes = Zeroizing::new(bytes);
    let key: [u8; 32] = bytes.as_slice().try_into().ok()?;
    let key = Zeroizing::new(key);
    // Bech32m, the later form of the checksum, which `decode` also accepts, is refused.
    let again = bech32::encode::<Bech32>(Hrp::parse(prefix).ok()?, &*key).ok()?;
    let again = Zeroizing::new(again);
    let is_right = found.as_str().eq_ignore_ascii_case(prefix) && again.eq_ignore_ascii_case(text);
    is_right.then_some(key)
}

fn read(path: &Path) -> Result<Zeroizing<String>, SecretError> {
    let text = sidecore_sys::input::read_text(path, FILE_BYTES_MAX);
    text.map(Zeroizing::new)
        .map_err(|source| SecretError::Read {
            path: path.to_owned(),
            source,
        })
}

/// Of a file of keys or with a passphrase.
const FILE_BYTES_MAX: u64 = 1 << 20;

fn read_passphrase(path: &Path) -> Result<Zeroizing<String>, SecretError> {
    let text = read(path)?;
    // Editors end a file with a newline, which is not part of a passphrase.
    let line = text.lines().next().unwrap_or_default();
    match line.is_empty() {
        true => Err(SecretError::Passphrase {
            path: path.to_owned(),
        }),
        false => Ok(Zeroizing::new(line.to_owned())),
    }
}

const PUBLIC_PREFIX: &str = "age";
const SECRET_PREFIX: &str = "age-secret-key-";
const WRAP_CONTEXT: &[u8] = b"sidecore encrypted image: key for a recipient (v1)";
/// RFC 9106's second recommendation: 64 MiB, three passes, four lanes.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
const LANES: u32 = 4;
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 16;
/// Memory in KiB times passes.
const WORK_KIB_MAX: u64 = 4 << 20;
const LANES_MAX: u32 = 16;
