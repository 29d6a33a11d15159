//! Domains: which writers share chunks with one another, and which keys open what they have stored.
//!
//! Why here: all cryptography of a store. A domain has a salt and a ring of keys. The salt decides
//! names and keys of chunks: equal contents are stored once within a domain, and have nothing in
//! common across domains. A holder of another salt cannot compute the name of a chunk, and so
//! cannot confirm a guess of contents. The ring's keys encrypt manifests, which hold the keys of
//! the chunks. A new key on the ring is used for later manifests; older ones stay readable.
//!
//! Must stay true: a cipher key and a nonce never meet two different texts. A chunk's key is
//! derived from its contents, but one content may compress to different bytes (another level,
//! another version of the library). So the nonce is derived from the compressed bytes, and not
//! constant. A manifest's nonce is drawn at random. The salt and the ring are zeroed when they are
//! dropped; keys of chunks, which open known contents alone, are not.
//!
//! Sources: J. Douceur et al., "Reclaiming Space from Duplicate Files in a Serverless Distributed
//! File System", ICDCS 2002 (convergent encryption); M. Brooker et al., "On-demand Container
//! Loading in AWS Lambda", USENIX ATC 2023 (salts, manifests with keys); NIST SP 800-38D; BLAKE3's
//! keyed and derivation modes.

use crate::StoreError;
use crate::backend::Id;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::SecureRandom;
use rustix::fs::OFlags;
use sidecore_sys::folder::Folder;
use sidecore_sys::input::read_text;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use zeroize::Zeroizing;

/// 32 secret bytes.
pub(crate) type Secret = Zeroizing<[u8; 32]>;

/// The key of a chunk: a keyed hash of its contents, by which they are also checked.
pub(crate) type ChunkKey = [u8; 32];

/// Writers that share chunks, and their keys. [`Domain::shared`] is that of stores without
/// encryption.
pub struct Domain {
    /// Number and secret of each key; the last is the current one. Empty without encryption.
    ring: Vec<(u32, Secret)>,
    tag: [u8; TAG_BYTES],
    /// Keys the hash of contents.
    contents: Secret,
    cut_seed: u64,
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({} keys)", self.ring.len())
    }
}

impl Domain {
    /// The domain of everything that is stored without encryption.
    #[must_use]
    pub fn shared() -> Self {
        Self {
            ring: Vec::new(),
            tag: [0; TAG_BYTES],
            contents: derived(CONTENTS_CONTEXT, &[]),
            cut_seed: 0,
        }
    }

    /// The domain of a file's keys, or, without a file, [`Self::shared`]. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Key`].
    pub fn of(file: Option<&Path>) -> Result<Self, StoreError> {
        file.map_or_else(|| Ok(Self::shared()), Self::read)
    }

    fn new(salt: &Secret, ring: Vec<(u32, Secret)>) -> Self {
        let mut tag = [0; TAG_BYTES];
        // Each use of the salt has its own context: BLAKE3's derivation makes them independent, and
        // none of them leads back to the salt.
        tag.copy_from_slice(&derived(TAG_CONTEXT, &**salt)[..TAG_BYTES]);
        let mut seed = [0; 8];
        seed.copy_from_slice(&derived(CUTS_CONTEXT, &**salt)[..8]);
        Self {
            ring,
            tag,
            contents: derived(CONTENTS_CONTEXT, &**salt),
            cut_seed: u64::from_le_bytes(seed),
        }
    }

    /// Reads a domain's file. Blocks on it.
    ///
    /// # Errors
    /// [`StoreError::Key`].
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let (salt, ring) = read_file(path)?;
        Ok(Self::new(&salt, ring))
    }

    /// Makes a file with a new salt and a key, which only its user may read.
    ///
    /// # Errors
    /// [`StoreError::Key`]; a file that exists stays as it is.
    pub fn create(path: &Path) -> Result<(), StoreError> {
        let failed = |source| unusable(path, source);
        let text = file_text(&random()?, &[(1, random()?)]);
        let (folder, name) = Folder::of_file(path).map_err(failed)?;
        let name = Path::new(&name);
        // EXCL: to overwrite a ring is to lose every image that its keys open. It takes no link
        // either.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = folder.open_file(name, flags, 0o600).map_err(failed)?;
        let written = file.write_all(text.as_bytes());
        let written = written.and_then(|()| file.sync_all());
        // Durable before anything is encrypted with it.
        let written = written.and_then(|()| folder.sync());
        written.map_err(|source| {
            // Best effort: a part of a file is of no use.
            folder.remove_file(name.as_os_str()).ok();
            failed(source)
        })
    }

    /// Adds a key to a domain's file; manifests are encrypted with it from then on. Returns its
    /// number.
    ///
    /// # Errors
    /// [`StoreError::Key`]; then the file is as it was.
    pub fn rotate(path: &Path) -> Result<u32, StoreError> {
        let failed = |source| unusable(path, source);
        let (folder, name) = Folder::of_file(path).map_err(failed)?;
        // Of two at once, one would lose the other's key, and all that was encrypted with it.
        folder.lock_within(LOCK_WAIT_MAX).map_err(failed)?;
        // A link's target is another folder's file: it would stay as it is, without the key.
        let found = folder.read_file(Path::new(&name)).map_err(failed)?;
        // The group that its user has let in keeps its access.
        let mode = found.metadata().map_err(failed)?.permissions().mode() & 0o777;
        let (salt, mut ring) = read_file(path)?;
        let last = ring.last().map_or(0, |(number, _)| *number);
        let next = last.checked_add(1);
        let next = next.ok_or_else(|| failed(io::Error::other("its numbers are used up")))?;
        ring.push((next, random()?));
        let text = file_text(&salt, &ring);
        let replaced = folder.replace(&name, mode, |file| file.write_all(text.as_bytes()));
        replaced.and_then(|()| folder.sync()).map_err(failed)?;
        Ok(next)
    }

    /// Mark that packs and manifests of this domain carry: nothing can be computed from it.
    pub(crate) fn tag(&self) -> [u8; TAG_BYTES] {
        self.tag
    }

    /// Number of the key for new manifests; 0 without encryption.
    pub(crate) fn current_key(&self) -> u32 {
        self.ring.last().map_or(0, |(number, _)| *number)
    }

    /// The secret of overlays above the version with this digest; `None` without encryption. Of the
    /// first key: it stays the same when the ring grows.
    pub(crate) fn overlay_secret(&self, digest: &[u8; 32]) -> Option<Secret> {
        let (_, first) = self.ring.first()?;
        let overlays = derived(OVERLAYS_CONTEXT, &**first);
        Some(Zeroizing::new(
            *blake3::keyed_hash(&overlays, digest).as_bytes(),
        ))
    }

    /// Seed of the search for chunk boundaries: domains cut equal contents at other places. It is
    /// no strong secret: lengths of enough chunks of known contents tell it.
    pub(crate) fn cut_seed(&self) -> u64 {
        self.cut_seed
    }

    /// The key of a chunk with these contents.
    pub(crate) fn chunk_key(&self, raw: &[u8]) -> ChunkKey {
        *blake3::keyed_hash(&self.contents, raw).as_bytes()
    }

    /// Encrypts the compressed bytes of a chunk: nonce, text and tag. Without encryption they stay
    /// as they are.
    ///
    /// # Errors
    /// [`StoreError::Cipher`].
    pub(crate) fn seal_chunk(
        &self,
        key: &ChunkKey,
        compressed: Vec<u8>,
    ) -> Result<Vec<u8>, StoreError> {
        if self.ring.is_empty() {
            return Ok(compressed);
        }
        // A function of key and text: a nonce repeats only if both do, and then the whole output
        // does (as SIV modes have it, RFC 5297).
        let nonces = derived(NONCES_CONTEXT, key);
        let mut nonce = [0; NONCE_BYTES];
        let hash = blake3::keyed_hash(&nonces, &compressed);
        nonce.copy_from_slice(&hash.as_bytes()[..NONCE_BYTES]);
        let mut text = compressed;
        // Not the key itself, which also names the chunk: one secret is used for one thing.
        let cipher = cipher(&derived(CHUNKS_CONTEXT, key))?;
        let sealed = cipher.seal_in_place_append_tag(nonce_of(nonce), Aad::empty(), &mut text);
        sealed.map_err(|_| StoreError::Cipher)?;
        Ok([&nonce[..], &text].concat())
    }

    /// The compressed bytes of a chunk; `None` for bytes that were not encrypted with its key.
    pub(crate) fn open_chunk(&self, key: &ChunkKey, stored: Vec<u8>) -> Option<Vec<u8>> {
        if self.ring.is_empty() {
            return Some(stored);
        }
        // Stored with the text: a reader does not have the compressed bytes that it is derived
        // from.
        let (nonce, text) = stored.split_first_chunk::<NONCE_BYTES>()?;
        let cipher = cipher(&derived(CHUNKS_CONTEXT, key)).ok()?;
        opened(&cipher, *nonce, &[], text)
    }

    /// Encrypts a manifest's body with the current key; `head` is authenticated with it.
    ///
    /// # Errors
    /// [`StoreError::Cipher`].
    pub(crate) fn seal_body(
        &self,
        nonce: [u8; NONCE_BYTES],
        head: &[u8],
        mut body: Vec<u8>,
    ) -> Result<Vec<u8>, StoreError> {
        let Some((_, secret)) = self.ring.last() else {
            return Ok(body);
        };
        let cipher = cipher(&derived(MANIFESTS_CONTEXT, &**secret))?;
        // With the head authenticated, a body cannot be put below another size or list of packs.
        let sealed = cipher.seal_in_place_append_tag(nonce_of(nonce), Aad::from(head), &mut body);
        sealed.map_err(|_| StoreError::Cipher)?;
        Ok(body)
    }

    /// Decrypts a manifest's body; `None` without its key, and for one that was changed.
    pub(crate) fn open_body(
        &self,
        key: u32,
        nonce: [u8; NONCE_BYTES],
        head: &[u8],
        body: &[u8],
    ) -> Option<Vec<u8>> {
        if self.ring.is_empty() {
            // A manifest that claims a key is not read as plain text.
            return (key == 0).then(|| body.to_vec());
        }
        let (_, secret) = self.ring.iter().find(|(number, _)| *number == key)?;
        let cipher = cipher(&derived(MANIFESTS_CONTEXT, &**secret)).ok()?;
        opened(&cipher, nonce, head, body)
    }
}

/// The name of the chunk with a key: it is known without telling the key.
pub(crate) fn chunk_id(key: &ChunkKey) -> Id {
    Id(blake3::derive_key(IDS_CONTEXT, key))
}

/// Bytes that no one can foresee.
///
/// # Errors
/// [`StoreError::Cipher`]: the system has none.
pub(crate) fn random() -> Result<Secret, StoreError> {
    let mut bytes = Secret::default();
    let drawn = ring::rand::SystemRandom::new().fill(&mut *bytes);
    drawn.map_err(|_| StoreError::Cipher)?;
    Ok(bytes)
}

fn derived(context: &str, secret: &[u8]) -> Secret {
    Zeroizing::new(blake3::derive_key(context, secret))
}

fn cipher(key: &Secret) -> Result<LessSafeKey, StoreError> {
    let key = UnboundKey::new(&AES_256_GCM, &**key).map_err(|_| StoreError::Cipher)?;
    Ok(LessSafeKey::new(key))
}

fn nonce_of(nonce: [u8; NONCE_BYTES]) -> Nonce {
    Nonce::assume_unique_for_key(nonce)
}

fn opened(
    cipher: &LessSafeKey,
    nonce: [u8; NONCE_BYTES],
    with: &[u8],
    text: &[u8],
) -> Option<Vec<u8>> {
    let mut bytes = text.to_vec();
    let len = cipher.open_in_place(nonce_of(nonce), Aad::from(with), &mut bytes);
    let len = len.ok()?.len();
    bytes.truncate(len);
    Some(bytes)
}

/// The lines of a domain's file.
fn file_text(salt: &Secret, ring: &[(u32, Secret)]) -> Zeroizing<String> {
    // In one piece: a text that grows leaves copies.
    let len = FIRST_LINE.len() + LINE_BYTES_MAX * (1 + ring.len());
    let mut text = Zeroizing::new(String::with_capacity(len));
    text.push_str(FIRST_LINE);
    // A string takes all that is written to it.
    writeln!(text, "\nsalt {}", Id(**salt)).ok();
    for (number, secret) in ring {
        writeln!(text, "key {number} {}", Id(**secret)).ok();
    }
    text
}

fn read_file(path: &Path) -> Result<(Secret, Vec<(u32, Secret)>), StoreError> {
    let text = read_text(path, FILE_BYTES_MAX).map_err(|source| unusable(path, source))?;
    let text = Zeroizing::new(text);
    let refused = |reason: &str| unusable(path, io::Error::other(reason.to_owned()));
    let mut lines = text.lines().map(str::trim);
    if lines.next() != Some(FIRST_LINE) {
        return Err(refused(
            "it is no domain's file; `sidecore store domain FILE` makes one",
        ));
    }
    let (mut salt, mut ring): (Option<Secret>, Vec<(u32, Secret)>) = (None, Vec::new());
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        let secret = words.last().and_then(|digits| Id::parse(digits));
        let secret = secret.map(|id| Zeroizing::new(id.0));
        match (&*words, secret) {
            (["salt", _], Some(secret)) if salt.is_none() => salt = Some(secret),
            (["key", number, _], Some(secret)) => {
                let last = ring.last().map_or(0, |(number, _)| *number);
                // Rising, so that the last one is the newest.
                let number = number.parse::<u32>().ok().filter(|number| *number > last);
                ring.push((number.ok_or_else(|| refused(BAD_LINE))?, secret));
            }
            _ => return Err(refused(BAD_LINE)),
        }
    }
    match salt {
        Some(salt) if !ring.is_empty() => Ok((salt, ring)),
        _ => Err(refused("it has no salt, or no key")),
    }
}

fn unusable(path: &Path, source: io::Error) -> StoreError {
    StoreError::Key {
        path: path.to_owned(),
        source,
    }
}

/// Bytes of a domain's tag.
pub(crate) const TAG_BYTES: usize = 16;
/// Of AES-GCM: 96 bits.
pub(crate) const NONCE_BYTES: usize = 12;
const FIRST_LINE: &str = "sidecore-domain 1";
const BAD_LINE: &str =
    "a line of it is no `salt DIGITS` or `key NUMBER DIGITS` with 64 digits and rising numbers";
/// `key NUMBER DIGITS` and a newline.
const LINE_BYTES_MAX: usize = 96;
/// Reading and writing a small file takes milliseconds.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Room for some ten thousand keys.
const FILE_BYTES_MAX: u64 = 1 << 20;
const TAG_CONTEXT: &str = "sidecore store: tag of a domain (v1)";
const CUTS_CONTEXT: &str = "sidecore store: seed of chunk boundaries (v1)";
const CONTENTS_CONTEXT: &str = "sidecore store: key of the hash of contents (v1)";
const IDS_CONTEXT: &str = "sidecore store: name of a chunk (v1)";
const NONCES_CONTEXT: &str = "sidecore store: nonces of a chunk (v1)";
const CHUNKS_CONTEXT: &str = "sidecore store: cipher key of a chunk (v1)";
const OVERLAYS_CONTEXT: &str = "sidecore store: secrets of overlays (v1)";
const MANIFESTS_CONTEXT: &str = "sidecore store: cipher key of manifests (v1)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_keys_is_read_as_it_was_written_and_grows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        Domain::create(&path).unwrap();
        Domain::create(&path).unwrap_err();
        let first = Domain::read(&path).unwrap();
        assert_eq!(first.current_key(), 1);
        assert_eq!(Domain::rotate(&path).unwrap(), 2);
        let second = Domain::read(&path).unwrap();
        assert_eq!(second.current_key(), 2);
        assert_eq!(first.tag(), second.tag());
        assert_eq!(first.chunk_key(b"x"), second.chunk_key(b"x"));
        let secrets = [&first, &second].map(|it| it.overlay_secret(&[1; 32]));
        assert!(secrets[0].is_some() && secrets[0] == secrets[1]);
        assert!(first.overlay_secret(&[2; 32]) != secrets[0]);
        assert!(Domain::shared().overlay_secret(&[1; 32]).is_none());
        let sealed = first.seal_body([1; 12], b"head", b"body".to_vec()).unwrap();
        let open = |domain: &Domain, key| domain.open_body(key, [1; 12], b"head", &sealed);
        assert_eq!(open(&second, 1).unwrap(), b"body");
        assert!(open(&second, 2).is_none() && open(&first, 2).is_none());
        assert!(second.open_body(1, [1; 12], b"other", &sealed).is_none());
    }

    #[test]
    fn a_damaged_file_of_keys_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let digits = "0".repeat(64);
        for text in [
            String::new(),
            FIRST_LINE.to_owned(),
            format!("{FIRST_LINE}\nsalt {digits}"),
            format!("{FIRST_LINE}\nkey 1 {digits}"),
            format!("{FIRST_LINE}\nsalt {digits}\nkey 0 {digits}"),
            format!("{FIRST_LINE}\nsalt {digits}\nkey 2 {digits}\nkey 2 {digits}"),
            format!("{FIRST_LINE}\nsalt {digits}\nsalt {digits}\nkey 1 {digits}"),
            format!("{FIRST_LINE}\nsalt {digits}0\nkey 1 {digits}"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = Domain::read(&path).unwrap_err().to_string();
            assert!(error.contains("keys"), "{error}");
        }
    }

    #[test]
    fn one_content_in_two_forms_shares_no_nonce() {
        let domain = Domain::new(&Zeroizing::new([7; 32]), vec![(1, Zeroizing::new([8; 32]))]);
        let key = domain.chunk_key(b"contents");
        let one = domain.seal_chunk(&key, b"one form".to_vec()).unwrap();
        let two = domain.seal_chunk(&key, b"another form".to_vec()).unwrap();
        assert_ne!(one[..NONCE_BYTES], two[..NONCE_BYTES]);
        let again = domain.seal_chunk(&key, b"one form".to_vec()).unwrap();
        assert_eq!(one, again);
        assert_eq!(domain.open_chunk(&key, one).unwrap(), b"one form");
        assert!(domain.open_chunk(&key, vec![0; 5]).is_none());
    }

    #[test]
    fn domains_have_nothing_in_common() {
        let of = |salt| Domain::new(&Zeroizing::new([salt; 32]), vec![(1, Secret::default())]);
        let (one, two, none) = (of(1), of(2), Domain::shared());
        let ids = [&one, &two, &none].map(|it| chunk_id(&it.chunk_key(b"contents")));
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
        assert!(one.tag() != two.tag() && one.tag() != none.tag());
        assert!(one.cut_seed() != two.cut_seed());
    }
}
