//! Encrypted images, from `pack` to a device's reads, with damage and tampering in between.

use crate::device::{Device, DeviceConfig};
use crate::format::lock::{Cipher, WRAPPED_BYTES};
use crate::format::{Format, FormatError, Index};
use crate::image::Image;
use crate::inner::Kind;
use crate::overlay::identity::Identity;
use crate::overlay::tools;
use crate::pack::{Existing, Guard, Options, Source, Target, commit, pack_guarded, unpack_image};
use crate::secret::*;
use crate::source::{BlockSource as _, BlockWrites as _};
use crate::trust;
use bech32::{Bech32, Hrp};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use sidecore_offload::{Pool, PoolConfig};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use x25519_dalek::{PublicKey, StaticSecret};

/// Prefixes of keys as age writes them.
const PUBLIC_PREFIX: &str = "age";
const SECRET_PREFIX: &str = "age-secret-key-";
const WRAP_CONTEXT: &[u8] = b"sidecore encrypted image: key for a recipient (v1)";
const FRAME_BYTES: u32 = 4096;
const FRAMES: u32 = 12;

/// An owner of keys, in files as `age-keygen` writes them.
fn identity(folder: &Path, name: &str, seed: u8) -> String {
    let secret = [seed; 32];
    let prefix = Hrp::parse(SECRET_PREFIX).unwrap();
    let line = bech32::encode_upper::<Bech32>(prefix, &secret).unwrap();
    let text = format!("# created: 2026-11-26T00:00:00Z\n# public key: age1...\n{line}\n");
    std::fs::write(folder.join(name), text).unwrap();
    let public = PublicKey::from(&StaticSecret::from(secret));
    bech32::encode::<Bech32>(Hrp::parse(PUBLIC_PREFIX).unwrap(), public.as_bytes()).unwrap()
}

struct Scratch {
    folder: tempfile::TempDir,
    raw: Vec<u8>,
    recipients: [String; 2],
}

impl Scratch {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Each frame is another one; one is of zeros, and the last is short.
        let mut raw: Vec<u8> = (0..FRAMES * FRAME_BYTES / 4 - 100)
            .flat_map(|i| (i / 3).to_le_bytes())
            .collect();
        raw[5 * FRAME_BYTES as usize..6 * FRAME_BYTES as usize].fill(0);
        std::fs::write(folder.path().join("raw"), &raw).unwrap();
        let recipients = [("one", 1), ("other", 2)];
        let recipients = recipients.map(|(name, seed)| identity(folder.path(), name, seed));
        std::fs::write(folder.path().join("words"), "correct horse\nmore\n").unwrap();
        std::fs::write(folder.path().join("wrong"), "battery staple\n").unwrap();
        Self {
            folder,
            raw,
            recipients,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The bytes of an image for the first recipient.
    fn pack(&self, format: Format, cipher: Cipher) -> Vec<u8> {
        let mut readers = Readers::default();
        readers.add_recipient(&self.recipients[0]).unwrap();
        self.pack_for(&readers, format, cipher, false)
    }

    fn pack_for(&self, readers: &Readers, format: Format, cipher: Cipher, tree: bool) -> Vec<u8> {
        let options = Options {
            format,
            frame_bytes: FRAME_BYTES,
            level: Some(1),
            tune: crate::codec::Tune::Size,
            cdc: false,
            engines: 2,
            thin: Default::default(),
            limits: Default::default(),
        };
        let source = Source::open(&self.path("raw"), Kind::Erofs, self.folder.path()).unwrap();
        let image = self.path("image");
        let target = Target::Path(&image, Existing::Replace);
        let guard = Guard {
            seal: tree.then(|| trust::signer(&[]).unwrap()),
            lock: Some(readers.locker(cipher).unwrap()),
        };
        pack_guarded(source, target, &options, guard, &mut |_| ()).unwrap();
        std::fs::read(&image).unwrap()
    }

    /// An image that the passphrase in `words` opens, and nothing else.
    fn pack_by_passphrase(&self) -> Vec<u8> {
        let mut readers = Readers::default();
        readers.add_passphrase(&self.path("words")).unwrap();
        self.pack_for(&readers, Format::Lz4, Cipher::Aes256Gcm, false)
    }

    fn secrets(&self, identities: &[&str], passphrase: Option<&str>) -> Secrets {
        let mut secrets = Secrets::default();
        for name in identities {
            secrets.add_identities(&self.path(name)).unwrap();
        }
        if let Some(name) = passphrase {
            secrets.add_passphrase(&self.path(name)).unwrap();
        }
        secrets
    }

    /// Opens these bytes as an image.
    fn open(&self, bytes: &[u8], secrets: &Secrets) -> Result<Arc<Device>, FormatError> {
        std::fs::write(self.path("image"), bytes).unwrap();
        let file = File::open(self.path("image")).unwrap();
        let mut index = Index::open(&file)?;
        secrets.apply(&mut index)?;
        let pool = Arc::new(Pool::start(PoolConfig::default()).unwrap());
        Ok(Device::open_indexed(file, index, pool, DeviceConfig::default()).unwrap())
    }

    /// The bytes read of each frame; `None` if it cannot be read.
    fn frames(&self, device: &Device) -> Vec<Option<Vec<u8>>> {
        let frames = self.raw.chunks(FRAME_BYTES as usize).enumerate();
        let read = frames.map(|(number, raw)| {
            let mut read = vec![0xa5; raw.len()];
            let at = number as u64 * u64::from(FRAME_BYTES);
            device.read_into(at, &mut read).ok().map(|()| read)
        });
        read.collect()
    }

    fn refused(&self, bytes: &[u8], secrets: &Secrets) -> String {
        self.open(bytes, secrets).map(drop).unwrap_err().to_string()
    }
}

#[test]
fn those_for_whom_it_is_encrypted_read_it_and_nobody_else() {
    let scratch = Scratch::new();
    let mut readers = Readers::default();
    readers.add_recipient(&scratch.recipients[0]).unwrap();
    readers.add_passphrase(&scratch.path("words")).unwrap();
    for (format, cipher) in [
        (Format::Zstd, Cipher::Aes256Gcm),
        (Format::Lz4, Cipher::ChaCha20Poly1305),
    ] {
        let bytes = scratch.pack_for(&readers, format, cipher, true);
        for (identities, passphrase) in [
            (&["one"][..], None),
            (&["other", "one"], None),
            (&[], Some("words")),
            (&["other"], Some("words")),
        ] {
            let device = scratch.open(&bytes, &scratch.secrets(identities, passphrase));
            let mut read = vec![0; scratch.raw.len()];
            device.unwrap().read_into(0, &mut read).unwrap();
            assert!(read == scratch.raw);
        }
        let none = scratch.refused(&bytes, &Secrets::default());
        assert!(none.contains("it is encrypted"), "{none}");
        for secrets in [
            scratch.secrets(&["other"], None),
            scratch.secrets(&[], Some("wrong")),
        ] {
            let error = scratch.refused(&bytes, &secrets);
            assert!(error.contains("none of the keys"), "{error}");
        }
        // No contents are left in plain text, and no two images are alike.
        let text = 1000_u32.to_le_bytes().repeat(3);
        assert!(!bytes.windows(text.len()).any(|it| it == text));
        let again = scratch.pack_for(&readers, format, cipher, true);
        assert!(again.len() == bytes.len() && again != bytes);
        // Without a key, no other way leads to a frame either.
        let image = crate::image::Image::from(File::open(scratch.path("image")).unwrap());
        let index = image.index(false).unwrap();
        let out = scratch.path("out");
        let target = Target::Path(&out, Existing::Replace);
        assert!(unpack_image(&image, &index, target, 1, &mut |_| ()).is_err());
    }
}

#[test]
fn its_bytes_are_those_that_the_format_page_says() {
    let scratch = Scratch::new();
    let bytes = scratch.pack(Format::Zstd, Cipher::Aes256Gcm);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(bytes[..4], 0x184D_2A5C_u32.to_le_bytes());
    assert_eq!(&bytes[8..20], b"sidelock\x01\x00\x01\x00");
    assert_eq!(bytes[20..24], [1, 0, 80, 0]);
    let first = 8 + word(4);
    assert_eq!(first, 24 + 80);
    // The key, by the crates alone.
    let share: [u8; 32] = bytes[24..56].try_into().unwrap();
    let own = StaticSecret::from([1; 32]);
    let shared = own.diffie_hellman(&PublicKey::from(share));
    let salt = [share, PublicKey::from(&own).to_bytes()].concat();
    let salt = ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, &salt);
    let info: [&[u8]; 1] = [b"sidecore encrypted image: key for a recipient (v1)"];
    let mut key = [0; 32];
    let extracted = salt.extract(shared.as_bytes());
    let expanded = extracted.expand(&info, ring::hkdf::HKDF_SHA256).unwrap();
    expanded.fill(&mut key).unwrap();
    let open = |algorithm, key: &[u8], nonce: [u8; 12], with: &[u8], bytes: &[u8]| {
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key).unwrap());
        let mut bytes = bytes.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = key.open_in_place(nonce, Aad::from(with), &mut bytes);
        opened.unwrap().to_vec()
    };
    let secret = open(&CHACHA20_POLY1305, &key, [0; 12], &[], &bytes[56..104]);
    let context = "sidecore encrypted image: key of frames (v1)";
    let frames_key = blake3::derive_key(context, &secret);
    let context = "sidecore encrypted image: key of the index (v1)";
    let index_key = blake3::derive_key(context, &secret);
    // The index: its entries, and their authentication code.
    let total = word(bytes.len() - 8);
    let index = bytes.len() - total;
    assert_eq!(&bytes[index + 8..index + 20], b"sidecore\x02\x00\x00\x00");
    let entries = index + 40;
    let frames = scratch.raw.len().div_ceil(FRAME_BYTES as usize);
    let mut hasher = blake3::Hasher::new_keyed(&index_key);
    hasher.update(&bytes[..first]).update(&[0]);
    hasher.update(&FRAME_BYTES.to_le_bytes());
    hasher.update(&(frames as u64).to_le_bytes());
    hasher.update(&(scratch.raw.len() as u64).to_le_bytes());
    hasher.update(&bytes[entries..entries + 12 * frames]);
    let code = &bytes[entries + 12 * frames..][..32];
    assert_eq!(hasher.finalize().as_bytes(), code);
    // The frames.
    let mut at = first;
    for (number, raw) in scratch.raw.chunks(FRAME_BYTES as usize).enumerate() {
        let len = word(entries + 12 * number) & 0x7fff_ffff;
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&(number as u64).to_le_bytes());
        let with = (raw.len() as u32).to_le_bytes();
        let stored = open(
            &ring::aead::AES_256_GCM,
            &frames_key,
            nonce,
            &with,
            &bytes[at..at + len],
        );
        let mut inflated = vec![0; raw.len()];
        zstd_safe::decompress(&mut inflated, &stored).unwrap();
        assert!(inflated == raw);
        at += len;
    }
    assert_eq!(at, index);
}

#[test]
fn a_changed_bit_is_refused_or_costs_the_frame_it_is_in() {
    let scratch = Scratch::new();
    let bytes = scratch.pack(Format::Zstd, Cipher::Aes256Gcm);
    let secrets = scratch.secrets(&["one"], None);
    let whole = scratch.frames(&scratch.open(&bytes, &secrets).unwrap());
    let raw: Vec<_> = scratch.raw.chunks(FRAME_BYTES as usize).collect();
    assert!(
        whole
            .iter()
            .zip(&raw)
            .all(|(read, raw)| read.as_deref() == Some(*raw))
    );
    // Frames that are authenticated as zeros are not read.
    let file = File::open(scratch.path("image")).unwrap();
    let zeros = Index::open(&file).unwrap().frame(5);
    let zeros = zeros.offset as usize..zeros.offset as usize + zeros.stored_bytes as usize;
    let mut refused = 0;
    for at in (0..bytes.len())
        .step_by(7)
        .chain(0..120)
        .chain(bytes.len() - 300..bytes.len())
    {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let Ok(device) = scratch.open(&changed, &secrets) else {
            refused += 1;
            continue;
        };
        let read = scratch.frames(&device);
        let lost = read.iter().filter(|read| read.is_none()).count();
        assert_eq!(lost, usize::from(!zeros.contains(&at)), "byte {at}");
        let pairs = read.iter().zip(&raw);
        let mut those = pairs.filter_map(|(read, raw)| Some(read.as_deref()? == *raw));
        assert!(those.all(|same| same), "byte {at}");
    }
    assert!(refused >= 300, "{refused}");
}

/// The forger can compute checksums: the index is consistent with itself.
#[test]
fn frames_cannot_be_exchanged_left_out_or_called_zeros() {
    let scratch = Scratch::new();
    let bytes = scratch.pack(Format::Zstd, Cipher::ChaCha20Poly1305);
    let secrets = scratch.secrets(&["one"], None);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let index = bytes.len() - word(bytes.len() - 8);
    let mend = |bytes: &mut Vec<u8>| {
        let end = bytes.len() - 16;
        let check = xxhash_rust::xxh3::xxh3_64(&bytes[index + 8..end]);
        bytes[end..end + 8].copy_from_slice(&check.to_le_bytes());
    };
    let refused = |changed: &[u8]| {
        let error = scratch.refused(changed, &secrets);
        assert!(error.contains("not the one that was encrypted"), "{error}");
    };
    // Zeros where there are none.
    let mut changed = bytes.clone();
    changed[index + 40 + 12 * 3 + 3] ^= 0x80;
    mend(&mut changed);
    refused(&changed);
    // A shorter device.
    let mut changed = bytes.clone();
    changed[index + 32] ^= 4;
    mend(&mut changed);
    refused(&changed);
    // Another cipher, which would be another meaning of the same bytes.
    let mut changed = bytes.clone();
    changed[17] = 0;
    refused(&changed);
    // Two frames of one length in one another's places: the index is right but for checksums.
    let lens: Vec<_> = (0..FRAMES as usize)
        .map(|number| word(index + 40 + 12 * number) & 0x7fff_ffff)
        .collect();
    let start = |number: usize| 104 + lens[..number].iter().sum::<usize>();
    let pairs = (0..lens.len()).flat_map(|one| (0..one).map(move |other| (other, one)));
    let (one, other) = pairs
        .into_iter()
        .find(|&(one, other)| lens[one] == lens[other] && one != 5 && other != 5)
        .unwrap();
    let mut changed = bytes.clone();
    for (from, to) in [(one, other), (other, one)] {
        let part = &bytes[start(from)..start(from) + lens[from]];
        changed[start(to)..start(to) + lens[to]].copy_from_slice(part);
    }
    let read = scratch.frames(&scratch.open(&changed, &secrets).unwrap());
    let lost: Vec<_> = (0..read.len()).filter(|&at| read[at].is_none()).collect();
    assert_eq!(lost, [one, other]);
    // Cut short, by a frame or anywhere.
    for len in [0, 10, 60, 104, 400, index, bytes.len() - 1] {
        let opened = scratch.open(&bytes[..len], &secrets);
        assert!(opened.is_err(), "{len}");
    }
}

#[test]
fn a_hostile_head_takes_no_more_memory_than_is_spent_on_it() {
    let scratch = Scratch::new();
    let bytes = scratch.pack_by_passphrase();
    let secrets = scratch.secrets(&[], Some("words"));
    assert!(scratch.open(&bytes, &secrets).is_ok());
    for changes in [
        &[(40, u32::MAX)][..],
        &[(44, 1 << 30)],
        &[(48, 1 << 20)],
        &[(40, 0)],
        &[(44, 0)],
        // Each of these two is within its bound.
        &[(40, 1 << 20), (44, 5)],
    ] {
        let mut changed = bytes.clone();
        for (at, value) in changes {
            changed[*at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let error = scratch.refused(&changed, &secrets);
        assert!(error.contains("at most 1 GiB"), "{error}");
    }
}

#[test]
fn a_head_with_several_passphrases_is_refused_before_any_is_tried() {
    let scratch = Scratch::new();
    let bytes = scratch.pack_by_passphrase();
    // The head again with its one slot twice.
    let head_bytes = 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let slot = &bytes[20..head_bytes];
    let mut changed = [&bytes[..head_bytes], slot, &bytes[head_bytes..]].concat();
    changed[4..8].copy_from_slice(&((head_bytes - 8 + slot.len()) as u32).to_le_bytes());
    changed[18] = 2;
    // The error is the same for a reader with another key: it must not reveal which secrets a
    // reader holds.
    for secrets in [
        scratch.secrets(&[], Some("words")),
        scratch.secrets(&["one"], None),
    ] {
        let error = scratch.refused(&changed, &secrets);
        assert!(error.contains("at most one is tried"), "{error}");
    }
}

#[test]
fn keys_are_read_as_age_keygen_writes_them() {
    let scratch = Scratch::new();
    let mut readers = Readers::default();
    for wrong in ["", "age1", "age1foo", &scratch.recipients[0][1..]] {
        assert!(readers.add_recipient(wrong).is_err(), "{wrong}");
    }
    assert!(matches!(
        readers.locker(Cipher::fastest()),
        Err(SecretError::Nobody)
    ));
    // The later form of the checksum, in which age writes nothing.
    let prefix = Hrp::parse(PUBLIC_PREFIX).unwrap();
    let later = bech32::encode::<bech32::Bech32m>(prefix, &[9; 32]).unwrap();
    assert!(readers.add_recipient(&later).is_err());
    // Everybody agrees with this one.
    let low = bech32::encode::<Bech32>(prefix, &[0; 32]).unwrap();
    readers.add_recipient(&low).unwrap();
    assert!(matches!(
        readers.locker(Cipher::fastest()),
        Err(SecretError::Wrap(_))
    ));
    let mut secrets = Secrets::default();
    assert!(secrets.add_identities(&scratch.path("words")).is_err());
    assert!(secrets.add_identities(&scratch.path("nothing")).is_err());
    std::fs::write(scratch.path("empty"), "\n").unwrap();
    assert!(secrets.add_passphrase(&scratch.path("empty")).is_err());
    assert!(secrets.is_empty());
}

impl Scratch {
    /// A new image of the one in these bytes and an overlay in which byte 5000 is another one.
    fn commit(&self, bytes: &[u8], secrets: &Secrets, guard: Guard) -> Vec<u8> {
        let device = self.open(bytes, secrets).unwrap();
        let identity = Identity::of(device.index(), device.image()).unwrap();
        let (path, new) = (self.path("overlay"), self.path("new"));
        tools::create(&path, &identity, 4096, "image").unwrap();
        let overlay = tools::open(&path, device.clone(), &identity, true).unwrap();
        overlay.write(5000, b"?").unwrap();
        overlay.close().unwrap();
        let options = Options {
            format: Format::Zstd,
            frame_bytes: FRAME_BYTES,
            level: Some(1),
            tune: crate::codec::Tune::Speed,
            cdc: false,
            engines: 2,
            thin: Default::default(),
            limits: Default::default(),
        };
        let (image, index): (&Image, _) = (device.image(), device.index());
        let target = Target::Path(&new, Existing::Replace);
        let made = commit(image, index, &overlay, target, &options, guard, &mut |_| ());
        assert!(made.unwrap().copied_frames >= u64::from(FRAMES) - 2);
        std::fs::remove_file(path).unwrap();
        std::fs::read(new).unwrap()
    }

    fn check(&self, bytes: &[u8], secrets: &Secrets) {
        let mut expected = self.raw.clone();
        expected[5000] = b'?';
        let mut read = vec![0; expected.len()];
        let device = self.open(bytes, secrets).unwrap();
        device.read_into(0, &mut read).unwrap();
        assert!(read == expected);
    }
}

#[test]
fn a_commit_is_for_the_same_readers_under_another_key() {
    let scratch = Scratch::new();
    let mut readers = Readers::default();
    readers.add_recipient(&scratch.recipients[0]).unwrap();
    readers.add_passphrase(&scratch.path("words")).unwrap();
    let one = scratch.secrets(&["one"], None);
    for (format, tree) in [(Format::Zstd, true), (Format::Lz4, false)] {
        let bytes = scratch.pack_for(&readers, format, Cipher::Aes256Gcm, tree);
        let guard = || Guard {
            seal: tree.then(|| trust::signer(&[]).unwrap()),
            lock: None,
        };
        let mut new = scratch.commit(&bytes, &one, guard());
        scratch.check(&new, &one);
        scratch.check(&new, &scratch.secrets(&[], Some("words")));
        let error = scratch.refused(&new, &scratch.secrets(&["other"], None));
        assert!(error.contains("none of the keys"), "{error}");
        // Frames that were not written to are other bytes all the same.
        let head = |bytes: &[u8]| 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        assert_eq!(head(&new), head(&bytes) + 32);
        assert!(bytes[head(&bytes)..][..64] != new[head(&new)..][..64]);
        // Twice from one image, and from an image that was committed.
        let twin = scratch.commit(&bytes, &one, guard());
        assert!(twin[20..52] != new[20..52]);
        let start = head(&new);
        assert!(twin[start..start + 64] != new[start..start + 64]);
        let again = scratch.commit(&new, &one, guard());
        scratch.check(&again, &one);
        assert_eq!((head(&again), again[16]), (start, 2));
        // A salt that is another one.
        new[30] ^= 1;
        let error = scratch.refused(&new, &one);
        assert!(error.contains("not the one that was encrypted"), "{error}");
    }
}

#[test]
fn a_commit_can_name_other_readers() {
    let scratch = Scratch::new();
    let one = scratch.secrets(&["one"], None);
    let other = scratch.secrets(&["other"], None);
    let guard = || {
        let mut readers = Readers::default();
        readers.add_recipient(&scratch.recipients[1]).unwrap();
        Guard {
            seal: None,
            lock: Some(readers.locker(Cipher::ChaCha20Poly1305).unwrap()),
        }
    };
    let bytes = scratch.pack(Format::Zstd, Cipher::Aes256Gcm);
    let new = scratch.commit(&bytes, &one, guard());
    scratch.check(&new, &other);
    assert!(scratch.refused(&new, &one).contains("none of the keys"));
    assert_eq!(new[16], 1);
    // Of an image in the clear.
    let plain = {
        let options = Options {
            format: Format::Zstd,
            frame_bytes: FRAME_BYTES,
            level: Some(1),
            tune: crate::codec::Tune::Size,
            cdc: false,
            engines: 2,
            thin: Default::default(),
            limits: Default::default(),
        };
        let source = Source::open(&scratch.path("raw"), Kind::Erofs, scratch.folder.path());
        let image = scratch.path("image");
        let target = Target::Path(&image, Existing::Replace);
        pack_guarded(
            source.unwrap(),
            target,
            &options,
            Guard::default(),
            &mut |_| (),
        )
        .unwrap();
        std::fs::read(image).unwrap()
    };
    let new = scratch.commit(&plain, &Secrets::default(), guard());
    scratch.check(&new, &other);
}

/// The second version of the head, by the crates alone.
#[test]
fn an_image_that_follows_another_has_the_keys_of_the_map() {
    let scratch = Scratch::new();
    let one = scratch.secrets(&["one"], None);
    let new = scratch.commit(
        &scratch.pack(Format::Zstd, Cipher::Aes256Gcm),
        &one,
        Guard::default(),
    );
    let head = 8 + u32::from_le_bytes(new[4..8].try_into().unwrap()) as usize;
    // The slot's body begins after salt and slot header: share, then the wrapped key.
    let body = &new[20 + 32 + 4..head];
    let share: [u8; 32] = body[..32].try_into().unwrap();
    let wrapped: [u8; WRAPPED_BYTES] = body[32..].try_into().unwrap();
    let own = StaticSecret::from([1; 32]);
    let shared = own.diffie_hellman(&PublicKey::from(share));
    let salt = [share, PublicKey::from(&own).to_bytes()].concat();
    let mut key = [0; 32];
    ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, &salt)
        .extract(shared.as_bytes())
        .expand(&[WRAP_CONTEXT], ring::hkdf::HKDF_SHA256)
        .unwrap()
        .fill(&mut key)
        .unwrap();
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &key).unwrap());
    let mut secret = wrapped;
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let secret: [u8; 32] = (*key.open_in_place(nonce, Aad::empty(), &mut secret).unwrap())
        .try_into()
        .unwrap();
    let successors = blake3::derive_key(
        "sidecore encrypted image: key of images that follow (v1)",
        &secret,
    );
    let secret = *blake3::keyed_hash(&successors, &new[20..52]).as_bytes();
    let frames = blake3::derive_key("sidecore encrypted image: key of frames (v1)", &secret);
    let index = Index::open(&File::open(scratch.path("new")).unwrap()).unwrap();
    let frame = index.frame(3);
    let at = frame.offset as usize;
    let mut stored = new[at..at + frame.stored_bytes as usize].to_vec();
    let key = LessSafeKey::new(UnboundKey::new(&ring::aead::AES_256_GCM, &frames).unwrap());
    let mut nonce = [0; 12];
    nonce[4] = 3;
    let with = Aad::from(frame.raw_bytes.to_le_bytes());
    let opened = key.open_in_place(Nonce::assume_unique_for_key(nonce), with, &mut stored);
    assert!(opened.is_ok());
}
