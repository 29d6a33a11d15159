//! Roots and signatures, from `pack` to a device's reads.

use crate::device::{Device, DeviceConfig};
use crate::format::{Format, FormatError, Index};
use crate::image::Image;
use crate::inner::Kind;
use crate::pack::{Existing, Guard, Options, Report, Source, Target, pack_guarded};
use crate::source::BlockSource as _;
use crate::trust::*;
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{EncodePrivateKey, EncodePublicKey};
use sidecore_offload::{Pool, PoolConfig};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A folder with an image of 40 frames, and with keys.
struct Scratch {
    folder: tempfile::TempDir,
    raw: Vec<u8>,
}

impl Scratch {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let raw: Vec<u8> = (0..40 * FRAME_BYTES / 4)
            .flat_map(|i| (i / 5).to_le_bytes())
            .collect();
        std::fs::write(folder.path().join("raw"), &raw).unwrap();
        for (name, seed) in [("one", 1), ("other", 2)] {
            let key = SigningKey::from_bytes(&[seed; 32]);
            let private = key.to_pkcs8_pem(LineEnding::LF).unwrap();
            std::fs::write(folder.path().join(name), &private).unwrap();
            let public = key.verifying_key().to_public_key_pem(LineEnding::LF);
            std::fs::write(folder.path().join(format!("{name}.pub")), public.unwrap()).unwrap();
        }
        Self { folder, raw }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pack(&self, keys: &[&str]) -> Report {
        let keys: Vec<PathBuf> = keys.iter().map(|key| self.path(key)).collect();
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
        let source = Source::open(&self.path("raw"), Kind::Erofs, self.folder.path()).unwrap();
        let image = self.path("image");
        let target = Target::Path(&image, Existing::Replace);
        let seal = Some(signer(&keys).unwrap());
        pack_guarded(
            source,
            target,
            &options,
            Guard { seal, lock: None },
            &mut |_| (),
        )
        .unwrap()
    }

    fn open(&self, trust: &Trust) -> Result<Arc<Device>, FormatError> {
        let file = File::open(self.path("image")).unwrap();
        let mut index = Index::open(&file)?;
        trust.apply(&mut index, &file)?;
        let pool = Arc::new(Pool::start(PoolConfig::default()).unwrap());
        Ok(Device::open_indexed(Image::from(file), index, pool, DeviceConfig::default()).unwrap())
    }

    fn opens(&self, root: Option<&str>, keys: &[&str]) -> Result<(), String> {
        let mut trust = Trust::default();
        if let Some(root) = root {
            trust.add_root(root).unwrap();
        }
        for key in keys {
            trust.add_key(&self.path(key)).unwrap();
        }
        self.open(&trust)
            .map(drop)
            .map_err(|error| error.to_string())
    }
}

#[test]
fn an_image_is_vouched_for_by_its_root_or_a_key_or_refused() {
    let scratch = Scratch::new();
    let root = scratch.pack(&["one"]).root_hash.unwrap();
    assert_eq!(scratch.opens(None, &[]), Ok(()));
    assert_eq!(scratch.opens(Some(&root), &[]), Ok(()));
    assert_eq!(scratch.opens(Some(&root), &["one.pub"]), Ok(()));
    assert_eq!(scratch.opens(None, &["other.pub", "one.pub"]), Ok(()));
    let refused = |root: Option<&str>, keys: &[&str], why: &str| {
        let error = scratch.opens(root, keys).unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    refused(
        None,
        &["other.pub"],
        "none of its signatures is a valid one",
    );
    refused(Some(&root), &["other.pub"], "none of its signatures");
    let wrong = root.replace(['0', '1'], "e");
    refused(
        Some(&wrong),
        &["one.pub"],
        &format!("its root hash is {root}, not {wrong}"),
    );
    // The same contents give the same root, for any signer.
    assert_eq!(scratch.pack(&[]).root_hash.unwrap(), root);
    assert_eq!(scratch.opens(Some(&root), &[]), Ok(()));
    refused(None, &["one.pub"], "nobody has signed it");
    assert_eq!(scratch.pack(&["other", "one"]).root_hash.unwrap(), root);
    assert_eq!(scratch.opens(None, &["one.pub"]), Ok(()));
}

#[test]
fn a_signature_of_something_else_does_not_count() {
    let scratch = Scratch::new();
    scratch.pack(&["one"]);
    let bytes = std::fs::read(scratch.path("image")).unwrap();
    let key = SigningKey::from_bytes(&[1; 32]).verifying_key().to_bytes();
    let at = bytes.windows(32).position(|it| it == key).unwrap();
    for offset in [0, 31, 32, 63, 64, 95] {
        let mut changed = bytes.clone();
        changed[at + offset] ^= 1;
        std::fs::write(scratch.path("image"), changed).unwrap();
        assert!(scratch.opens(None, &["one.pub"]).is_err(), "{offset}");
    }
    // A key of small order, with which anything verifies that is not strict.
    let mut changed = bytes.clone();
    changed[at..at + 96].fill(0);
    changed[at] = 1;
    std::fs::write(scratch.path("image"), changed).unwrap();
    assert!(scratch.opens(None, &["one.pub"]).is_err());
}

#[test]
fn a_device_delivers_nothing_of_a_frame_that_is_not_the_roots() {
    let scratch = Scratch::new();
    let root = scratch.pack(&[]).root_hash.unwrap();
    let mut trust = Trust::default();
    trust.add_root(&root).unwrap();
    let device = scratch.open(&trust).unwrap();
    let mut read = vec![0; scratch.raw.len()];
    device.read_into(0, &mut read).unwrap();
    assert!(read == scratch.raw);
    let file = File::options()
        .read(true)
        .write(true)
        .open(scratch.path("image"))
        .unwrap();
    let frame = Index::open(&file).unwrap().frame(7);
    let mut byte = [0];
    let at = frame.offset + u64::from(frame.stored_bytes) / 2;
    FileExt::read_exact_at(&file, &mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    let device = scratch.open(&trust).unwrap();
    for number in 0..40 {
        let start = number * FRAME_BYTES as usize;
        let mut read = vec![0x55; 512];
        let result = device.read_into(start as u64, &mut read);
        if number == 7 {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("trusted root"), "{error}");
            assert!(read == [0x55; 512]);
        } else {
            result.unwrap();
            assert!(read == scratch.raw[start..start + 512]);
        }
    }
}

#[test]
fn keys_and_hashes_that_are_none_are_named() {
    let scratch = Scratch::new();
    let mut trust = Trust::default();
    for digits in ["", "12", &"g".repeat(64), &"ä".repeat(32), &"0".repeat(63)] {
        let error = trust.add_root(digits).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }
    let error = trust.add_key(&scratch.path("one")).unwrap_err().to_string();
    assert!(error.contains("no public Ed25519 key"), "{error}");
    let error = trust
        .add_key(&scratch.path("none"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot be read"), "{error}");
    let error = signer(&[scratch.path("one.pub")])
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("no private Ed25519 key"), "{error}");
    assert!(trust.is_empty());
}

const FRAME_BYTES: u32 = 4096;
