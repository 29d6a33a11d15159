//! Overlays on encrypted images: nothing in the clear, nothing taken that was not written with the
//! key, no key or nonce twice.

use super::super::describe;
use super::super::format::{LOG_AT, SUPERBLOCK_BYTES, u64_at};
use super::super::identity::Identity;
use super::super::seal::TRAILER_BYTES;
use super::super::store::Store;
use super::super::tools::{CloneKind, clone, create, open};
use super::*;
use crate::source::{BlockSource, BlockWrites};
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::collections::HashSet;
use std::io;
use std::path::Path;

const GRAINS: usize = 16;
const SIZE: usize = GRAINS * GRAIN;
const SLOT: usize = GRAIN + TRAILER_BYTES;
/// Stands in every grain that the tests write, and in nothing else.
const WORDS: &[u8] = b"these words must not be found";

fn grain_of(number: u8) -> Vec<u8> {
    let mut bytes = vec![number; GRAIN];
    bytes[100..100 + WORDS.len()].copy_from_slice(WORDS);
    bytes
}

fn slot(number: usize) -> usize {
    SLOTS_AT as usize + number * SLOT
}

fn read(over: &Overlay, grain: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; GRAIN];
    let read = over.read_into((grain * GRAIN) as u64, &mut bytes);
    read.map(|()| bytes).map_err(|error| error.to_string())
}

/// A disk with grains 0 to 3 in a snapshot and 4 to 7 in two groups of the log.
fn written(cipher: Cipher) -> Disk {
    let disk = fresh_sealed(SIZE as u64, GRAIN as u32, cipher);
    let over = overlay(&disk, vec![0; SIZE]);
    for grain in 0..8 {
        over.write((grain * GRAIN) as u64, &grain_of(grain as u8 + 1))
            .unwrap();
        match grain {
            3 => over.close().unwrap(),
            5 | 7 => over.flush().unwrap(),
            _ => {}
        }
    }
    disk
}

fn copy_of(bytes: &[u8]) -> Disk {
    let disk = Disk::default();
    disk.write_at(bytes, 0).unwrap();
    disk.sync().unwrap();
    disk
}

fn holds(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|window| window == words)
}

#[test]
fn nothing_that_was_written_lies_in_the_clear() {
    for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
        let disk = written(cipher);
        assert!(!holds(&disk.bytes(), WORDS));
        let over = overlay(&disk, vec![0; SIZE]);
        // Parts of grains, zeros, and an overwrite.
        over.write(5 * GRAIN as u64 + 9, WORDS).unwrap();
        over.write_zeroes(6 * GRAIN as u64 + 7, 3000).unwrap();
        over.flush().unwrap();
        assert!(!holds(&disk.bytes(), WORDS));
        assert_eq!(&read(&over, 5).unwrap()[9..9 + WORDS.len()], WORDS);
        assert_eq!(read(&over, 0).unwrap(), grain_of(1));
        assert_eq!(read(&over, 12).unwrap(), vec![0; GRAIN]);
    }
}

/// The map of `docs/formats/overlay.md`, by BLAKE3 and the ciphers alone.
#[test]
fn the_bytes_are_those_of_the_map() {
    for (cipher, algorithm) in [
        (Cipher::Aes256Gcm, &AES_256_GCM),
        (Cipher::ChaCha20Poly1305, &CHACHA20_POLY1305),
    ] {
        let disk = written(cipher);
        let bytes = disk.bytes();
        let image_secret = [5; 32];
        let overlays = blake3::derive_key(
            "sidecore encrypted image: key of overlays (v1)",
            &image_secret,
        );
        let layer = *blake3::keyed_hash(&overlays, &bytes[2232..2264]).as_bytes();
        let grains = blake3::derive_key("sidecore overlay: key of grains (v1)", &layer);
        let codes = blake3::derive_key("sidecore overlay: key of codes (v1)", &layer);
        let code = |kind: u8, number: u64, parts: &[u8]| {
            let all = [&[kind][..], &number.to_le_bytes(), parts].concat();
            u64_at(blake3::keyed_hash(&codes, &all).as_bytes(), 0)
        };
        assert_eq!(bytes[8..12], 2_u32.to_le_bytes());
        assert_eq!(bytes[2224], u8::from(cipher == Cipher::ChaCha20Poly1305));
        let head = [&[0][..], &bytes[..4056]].concat();
        assert_eq!(
            blake3::keyed_hash(&codes, &head).as_bytes()[..],
            bytes[4056..4088]
        );
        // The log in use begins with the group of grains 4 and 5.
        let log = LOG_AT as usize + usize::from(bytes[57]) * (4 << 20);
        let mut group = bytes[log..log + 72].to_vec();
        let found = u64_at(&group, 16);
        group[16..24].fill(0);
        assert_eq!(code(1, u64_at(&bytes, 32), &group), found);
        for change in [24, 48] {
            let (grain, place) = (u64_at(&group, change), u64_at(&group, change + 8));
            let at = slot((place & 0xff_ffff) as usize);
            let trailer = &bytes[at + GRAIN..at + SLOT];
            assert_eq!(code(4, grain, trailer), u64_at(&group, change + 16));
            let key = blake3::keyed_hash(&grains, &trailer[..24]);
            let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_bytes()).unwrap());
            let mut sealed = [&bytes[at..at + GRAIN], &trailer[24..]].concat();
            let nonce = Nonce::assume_unique_for_key([0; 12]);
            let opened = key.open_in_place(nonce, Aad::from(grain.to_le_bytes()), &mut sealed);
            assert_eq!(opened.unwrap(), grain_of(grain as u8 + 1));
        }
        // The snapshot, and the one leaf that it points to.
        let (at, len) = (
            slot(u64_at(&bytes, 80) as usize),
            u64_at(&bytes, 88) as usize,
        );
        assert_eq!(code(3, 0, &bytes[at..at + len]), u64_at(&bytes, 96));
        let leaf = slot((u64_at(&bytes, at) & 0xff_ffff) as usize);
        assert_eq!(
            code(2, 0, &bytes[leaf..leaf + GRAIN]),
            u64_at(&bytes, at + 8)
        );
    }
}

#[test]
fn every_byte_that_is_changed_is_an_error_or_makes_no_difference() {
    let sound = written(Cipher::fastest()).bytes();
    let log = LOG_AT as usize + usize::from(sound[57]) * (4 << 20);
    let trailers = (0..12).flat_map(|number| {
        let end = (slot(number) + SLOT).min(sound.len());
        end - TRAILER_BYTES - 2..end
    });
    let places = (0..2300)
        .chain(4050..SUPERBLOCK_BYTES)
        .chain(log..log + 160)
        .chain(trailers)
        .chain((slot(0)..sound.len()).step_by(61));
    let disk = copy_of(&sound);
    let mut refused = 0;
    for at in places {
        // Both superblocks, or the other one would do.
        let twins = match at < SUPERBLOCK_BYTES {
            true => vec![at, at + SUPERBLOCK_BYTES],
            false => vec![at],
        };
        for &at in &twins {
            disk.damage(at, 1);
        }
        match layer(&disk, false, 1 << 20) {
            Err(_) => refused += 1,
            Ok(one) => {
                let base = Arc::new(MemorySource::new(vec![0; SIZE]));
                let over = Overlay::new(base, vec![one], false);
                for grain in 0..GRAINS {
                    let right = match grain {
                        0..8 => grain_of(grain as u8 + 1),
                        _ => vec![0; GRAIN],
                    };
                    match read(&over, grain) {
                        Ok(found) => {
                            // The last group is dropped as if it were torn, and no other.
                            let dropped = (6..8).contains(&grain) && found == [0; GRAIN];
                            assert!(found == right || dropped, "byte {at}, grain {grain}");
                        }
                        Err(_) => refused += 1,
                    }
                }
            }
        }
        for at in twins {
            disk.damage(at, 1);
        }
    }
    assert!(refused > 2000, "{refused}");
    assert!(layer(&disk, false, 1 << 20).is_ok());
}

/// An attacker without a key can still compute checksums, and restore older bytes.
#[test]
fn what_is_forged_or_put_back_is_refused() {
    let disk = written(Cipher::fastest());
    let bytes = disk.bytes();
    let with_check = |bytes: &mut [u8]| {
        for start in [0, SUPERBLOCK_BYTES] {
            let check = xxhash_rust::xxh3::xxh3_64(&bytes[start..start + 4088]);
            bytes[start + 4088..start + 4096].copy_from_slice(&check.to_le_bytes());
        }
    };
    // The name, the salt, the parent, the cipher; the version, so that it is in the clear.
    for (at, value) in [(16, 1), (32, 1), (58, 1), (2224, 1), (2240, 1), (8, 3)] {
        let mut forged = bytes.clone();
        forged[at] ^= value;
        forged[at + SUPERBLOCK_BYTES] ^= value;
        with_check(&mut forged);
        let forged = copy_of(&forged);
        let key = key();
        let error = Layer::open(Box::new(forged), Some(&key), false, 1 << 20).err();
        let error = error.unwrap().to_string();
        let expected = match at {
            8 => "it is not encrypted",
            _ => "not written with the key of this image",
        };
        assert!(error.contains(expected), "{at}: {error}");
    }
    // Another image's key, and none.
    let stranger = FrameKey::of_secret(Cipher::fastest(), &ImageKey::new([6; 32]));
    for key in [Some(&*stranger), None] {
        assert!(Layer::open(Box::new(disk.clone()), key, false, 1 << 20).is_err());
    }
    // Two grains exchanged, with everything after them.
    let (one, two) = (slot(0), slot(1));
    let mut changed = bytes.clone();
    changed[one..one + SLOT].copy_from_slice(&bytes[two..two + SLOT]);
    changed[two..two + SLOT].copy_from_slice(&bytes[one..one + SLOT]);
    let over = overlay(&copy_of(&changed), vec![0; SIZE]);
    assert!(read(&over, 0).is_err() && read(&over, 1).is_err());
    assert_eq!(read(&over, 2).unwrap(), grain_of(3));
    drop(over);
    // An older version of a grain, in the slot of the newer one.
    let over = overlay(&disk, vec![0; SIZE]);
    over.write(0, &grain_of(77)).unwrap();
    over.close().unwrap();
    drop(over);
    let mut now = disk.bytes();
    let differs = |number: &usize| now[slot(*number)..][..SLOT] != bytes[slot(*number)..][..SLOT];
    let slots = (bytes.len() - slot(0)) / SLOT;
    let put_back: Vec<usize> = (0..slots).filter(differs).collect();
    assert!(!put_back.is_empty());
    let new: Vec<usize> = (slots..(now.len() - slot(0)) / SLOT).collect();
    for number in put_back.into_iter().chain(new) {
        now[slot(number)..slot(number) + SLOT].copy_from_slice(&bytes[one..one + SLOT]);
    }
    match layer(&copy_of(&now), false, 1 << 20) {
        Err(_) => {}
        Ok(one) => {
            let base = Arc::new(MemorySource::new(vec![0; SIZE]));
            assert!(read(&Overlay::new(base, vec![one], false), 0).is_err());
        }
    }
}

/// A disk, and the nonces of all slots that were ever written to it and its copies.
#[derive(Clone, Default)]
struct Watched {
    disk: Disk,
    nonces: Arc<Mutex<HashSet<[u8; 24]>>>,
}

impl Store for Watched {
    fn size_bytes(&self) -> io::Result<u64> {
        self.disk.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.read_at(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        // Leaves are shorter, and a small snapshot has zeros there.
        if offset >= SLOTS_AT && bytes.len().is_multiple_of(SLOT) {
            for slot in bytes.chunks_exact(SLOT) {
                let nonce: [u8; 24] = *slot[GRAIN..].first_chunk().unwrap();
                let is_new = nonce == [0; 24] || self.nonces.lock().insert(nonce);
                assert!(is_new, "a nonce came twice");
            }
        }
        self.disk.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.reserve(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.punch(offset, len)
    }
}

#[test]
fn no_nonce_comes_twice_whatever_is_rewritten_copied_or_torn() {
    let first = Watched {
        disk: fresh_sealed(SIZE as u64, GRAIN as u32, Cipher::fastest()),
        nonces: Arc::default(),
    };
    let mut disks = vec![first];
    for round in 0..12_u8 {
        for watched in &disks {
            let key = key();
            let layer = Layer::open(Box::new(watched.clone()), Some(&key), true, 1 << 20);
            let base = Arc::new(MemorySource::new(vec![0; SIZE]));
            let over = Overlay::new(base, vec![layer.unwrap()], true);
            // The same contents again and again; only the nonce differs.
            for grain in 0..GRAINS {
                over.write((grain * GRAIN) as u64, &[7; GRAIN]).unwrap();
            }
            over.write(100, &[round; 10]).unwrap();
            if round % 3 == 0 {
                over.flush().unwrap();
            }
            drop(over);
            watched.disk.crash(&mut u64::from(round), 128);
        }
        if round % 4 == 0 {
            // A copy of the file: both continue from the same state.
            disks.push(Watched {
                disk: copy_of(&disks[0].disk.bytes()),
                nonces: Arc::clone(&disks[0].nonces),
            });
        }
    }
    assert!(disks[0].nonces.lock().len() > 30 * GRAINS);
}

#[test]
fn a_group_of_a_copy_is_not_taken_for_one_of_the_original() {
    let disk = written(Cipher::fastest());
    let copy = copy_of(&disk.bytes());
    // Both continue: the next group of each has the same number.
    for (disk, byte) in [(&disk, 50), (&copy, 60)] {
        let over = overlay(disk, vec![0; SIZE]);
        over.write(0, &grain_of(byte)).unwrap();
        over.flush().unwrap();
    }
    let log = |disk: &Disk| {
        let at = LOG_AT as usize + usize::from(disk.bytes()[57]) * (4 << 20);
        at..at + 48
    };
    let mut mixed = disk.bytes();
    mixed[log(&disk)].copy_from_slice(&copy.bytes()[log(&copy)]);
    let over = overlay(&copy_of(&mixed), vec![0; SIZE]);
    // As if it were torn.
    assert_eq!(read(&over, 0).unwrap(), grain_of(1));
}

#[test]
fn clones_have_keys_of_their_own_and_need_the_images() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let identity = Identity {
        size_bytes: SIZE as u64,
        hash: [1; 32],
        key: Some(key()),
    };
    let opened = |path: &Path, writable| {
        let base = Arc::new(MemorySource::new(vec![0; SIZE]));
        open(path, base, &identity, writable)
    };
    create(&path("one"), &identity, 4096, "disk.img").unwrap();
    let over = opened(&path("one"), true).unwrap();
    over.write(0, &grain_of(5)).unwrap();
    over.close().unwrap();
    drop(over);
    let error = clone(&path("one"), &path("two"), None, false).unwrap_err();
    assert!(error.to_string().contains("--base"), "{error}");
    assert!(!path("two").exists());
    let stranger = Identity {
        key: Some(FrameKey::of_secret(
            Cipher::fastest(),
            &ImageKey::new([6; 32]),
        )),
        ..identity.clone()
    };
    assert!(clone(&path("one"), &path("two"), Some(&stranger), false).is_err());
    for name in ["two", "three"] {
        let kind = clone(&path("one"), &path(name), Some(&identity), false).unwrap();
        assert_eq!(kind, CloneKind::Layer);
    }
    let told = describe(&path("two")).unwrap();
    assert!(told.encrypted && told.stored_bytes.is_none());
    let salt = |name: &str| std::fs::read(path(name)).unwrap()[2232..2264].to_vec();
    assert!(salt("one") != salt("two") && salt("two") != salt("three"));
    for (name, byte) in [("two", 6), ("three", 7)] {
        let over = opened(&path(name), true).unwrap();
        over.write(GRAIN as u64, &grain_of(byte)).unwrap();
        over.close().unwrap();
        drop(over);
        let over = opened(&path(name), false).unwrap();
        assert_eq!(read(&over, 0).unwrap(), grain_of(5));
        assert_eq!(read(&over, 1).unwrap(), grain_of(byte));
        assert!(!holds(&std::fs::read(path(name)).unwrap(), WORDS));
    }
    // An unencrypted overlay of the same image: anyone could have made it.
    let open_one = Identity {
        key: None,
        ..identity.clone()
    };
    create(&path("clear"), &open_one, 4096, "disk.img").unwrap();
    for writable in [false, true] {
        let error = opened(&path("clear"), writable).err().unwrap().to_string();
        assert!(error.contains("it is not encrypted"), "{error}");
    }
    let base = Arc::new(MemorySource::new(vec![0; SIZE]));
    let error = open(&path("two"), base, &open_one, false).err().unwrap();
    assert!(error.to_string().contains("another image"), "{error}");
}
