//! Trust in an image: a known root hash, or keys whose signatures are accepted.
//!
//! Why here: the hash tree ([`crate::tree`]) knows hashes, not keys. Every command that opens an
//! image makes the same check before the first byte. Keys are Ed25519 (RFC 8032) in the files that
//! `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write (RFC 8410).
//! Must stay true: if a root or a key is required, an image is either vouched for or refused. A
//! private key is read once, and never written or shown.

use crate::tree::{Hash, Signature, Signer, signed_message};
use crate::{FormatError, Index, ReadAt};
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey};
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use std::path::{Path, PathBuf};

/// Reasons why a key or a hash cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The file cannot be read.
    #[error("the key {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file does not hold such a key.
    #[error(
        "{} holds no {what} Ed25519 key in PEM; `openssl genpkey -algorithm ed25519 -out KEY` \
         makes a private one, `openssl pkey -in KEY -pubout` says the public one", path.display()
    )]
    Key {
        /// The file.
        path: PathBuf,
        /// `private` or `public`.
        what: &'static str,
    },
    /// Not a valid hash.
    #[error("`{0}` is no root hash: it takes the 64 hexadecimal digits that `pack` has said")]
    Hash(String),
}

/// Root and keys that vouch for an image. If empty, every image is accepted.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    root: Option<Hash>,
    keys: Vec<VerifyingKey>,
}

impl Trust {
    /// Accepts images with this root, where one is given, and with a signature by one of these
    /// keys, where some are. Blocks on their files.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn of(root: Option<&str>, keys: &[PathBuf]) -> Result<Self, TrustError> {
        let mut trust = Self::default();
        root.map_or(Ok(()), |digits| trust.add_root(digits))?;
        keys.iter().try_for_each(|key| trust.add_key(key))?;
        Ok(trust)
    }

    /// Accepts images with this root, as 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`TrustError::Hash`].
    pub fn add_root(&mut self, digits: &str) -> Result<(), TrustError> {
        let root = hash_of(digits).ok_or_else(|| TrustError::Hash(digits.to_owned()))?;
        self.root = Some(root);
        Ok(())
    }

    /// Accepts images signed by the owner of the public key in this file; of several keys one
    /// suffices. Blocks on the file.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn add_key(&mut self, path: &Path) -> Result<(), TrustError> {
        let text = read_key(path)?;
        let key = VerifyingKey::from_public_key_pem(text.trim());
        self.keys.push(key.map_err(|_| TrustError::Key {
            path: path.to_owned(),
            what: "public",
        })?);
        Ok(())
    }

    /// True if every image is accepted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.is_none() && self.keys.is_empty()
    }

    /// Makes an image's index check every frame by its hash tree, if the tree is vouched for; does
    /// nothing if no root or key is required. Blocks on the source.
    ///
    /// # Errors
    /// [`FormatError::Untrusted`]: the image must not be used.
    pub fn apply(&self, index: &mut Index, source: &dyn ReadAt) -> Result<(), FormatError> {
        if self.is_empty() {
            return Ok(());
        }
        index.trust(source, &mut |root, signatures| self.judge(root, signatures))
    }

    fn judge(&self, root: &Hash, signatures: &[Signature]) -> Result<(), String> {
        // With both a root and keys, both must accept: each narrows the other.
        if let Some(wanted) = &self.root
            && wanted != root
        {
            let (found, wanted) = (digits_of(root), digits_of(wanted));
            return Err(format!("its root hash is {found}, not {wanted}"));
        }
        if self.keys.is_empty() {
            return Ok(());
        }
        match signatures.iter().any(|it| self.is_valid(root, it)) {
            true => Ok(()),
            false if signatures.is_empty() => Err("nobody has signed it".to_owned()),
            false => {
                Err("none of its signatures is a valid one by a key that was given".to_owned())
            }
        }
    }

    /// Keys that were given and by which these signatures of a root are valid, as hexadecimal
    /// digits.
    #[must_use]
    pub fn valid_keys(&self, root: &Hash, signatures: &[Signature]) -> Vec<String> {
        let valid = signatures.iter().filter(|it| self.is_valid(root, it));
        valid.map(|it| digits_of(&it.key)).collect()
    }

    /// True for a signature of this root by one of the keys.
    fn is_valid(&self, root: &Hash, signature: &Signature) -> bool {
        // The signed message has a context of its own: a signature of anything else is of no use
        // here.
        let message = signed_message(root);
        let mut keys = self.keys.iter();
        let key = keys.find(|key| *key.as_bytes() == signature.key);
        // Strict verification refuses keys of small order, for which anything can seem to be
        // signed.
        key.is_some_and(|key| {
            let signature = ed25519_dalek::Signature::from_bytes(&signature.signature);
            key.verify_strict(&message, &signature).is_ok()
        })
    }
}

/// Signs roots with the private keys in these files. Blocks on them.
///
/// # Errors
/// [`TrustError`].
pub fn signer(paths: &[PathBuf]) -> Result<Signer, TrustError> {
    // All are read before the first root is signed: a wrong file is an error at once.
    let mut keys = Vec::new();
    for path in paths {
        let text = read_key(path)?;
        let key = SigningKey::from_pkcs8_pem(text.trim());
        keys.push(key.map_err(|_| TrustError::Key {
            path: path.clone(),
            what: "private",
        })?);
    }
    Ok(Box::new(move |root| {
        let message = signed_message(root);
        let sign = |key: &SigningKey| Signature {
            key: key.verifying_key().to_bytes(),
            signature: key.sign(&message).to_bytes(),
        };
        keys.iter().map(sign).collect()
    }))
}

/// A hash, or a key, as hexadecimal digits.
#[must_use]
pub fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_of(digits: &str) -> Option<Hash> {
    let digits = digits.trim();
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().as_chunks::<2>().0) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// A key in PEM has some hundred bytes.
const KEY_BYTES_MAX: u64 = 1 << 20;

fn read_key(path: &Path) -> Result<String, TrustError> {
    sidecore_sys::input::read_text(path, KEY_BYTES_MAX).map_err(|source| TrustError::Read {
        path: path.to_owned(),
        source,
    })
}
