//! Layers that are made here, read back by their indexes alone; and damaged ones.

use crate::build::build;
use crate::index::Index;
use crate::layer::{LayerDevice, LayerError, Store, sha256_of};
use crate::local::Local;
use crate::tree::{CONTENTS_AT, uuid_digits};
use sidecore_erofs::{Bytes, Erofs, Kind, Unreadable};
use sidecore_random::Random;
use sidecore_remote::blob::RemoteBlob;
use sidecore_remote::{Repository, Retry};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A tar with what layers have: nested directories, links, whiteouts, long names, attributes.
fn layer(big_bytes: usize) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |path: &str, kind, bytes: &[u8], link: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o4755);
        header.set_uid(1000);
        header.set_mtime(1_700_000_000);
        match link {
            "" => tar.append_data(&mut header, path, bytes).unwrap(),
            link => tar.append_link(&mut header, path, link).unwrap(),
        }
    };
    let file = tar::EntryType::Regular;
    let directory = tar::EntryType::Directory;
    add("etc/", directory, b"", "");
    add("etc/hosts", file, b"127.0.0.1 localhost\n", "");
    add("etc/.wh.gone", file, b"", "");
    add("opt/", directory, b"", "");
    add("opt/.wh..wh..opq", file, b"", "");
    add("opt/big", file, &big(big_bytes), "");
    add("opt/same", tar::EntryType::Link, b"", "opt/big");
    add("opt/link", tar::EntryType::Symlink, b"", "../etc/hosts");
    add(&format!("opt/{}", "long".repeat(50)), file, b"long", "");
    // A later entry replaces an earlier one.
    add("etc/hosts", file, b"second\n", "");
    tar.into_inner().unwrap()
}

/// Bytes that compress by half.
fn big(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    (0..bytes)
        .map(|at| {
            if at % 2 == 0 {
                random.bits() as u8
            } else {
                b'a'
            }
        })
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

pub(crate) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut out)
        .unwrap();
    out
}

/// A layer of one file in the root, as gzip.
pub(crate) fn gzip_tar(contents: &[u8]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(contents.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "file", contents).unwrap();
    gzip(&tar.into_inner().unwrap())
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut room = vec![0; zstd_safe::compress_bound(bytes.len())];
    let length = zstd_safe::compress(&mut room[..], bytes, 3).unwrap();
    room.truncate(length);
    room
}

/// The forms in which a layer comes: its blob, and whether it is read by its parts.
fn forms(tar: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let of = |make: fn(&[u8]) -> Vec<u8>| tar.chunks(1_300_000).flat_map(make).collect();
    vec![
        ("tar", tar.to_vec()),
        ("gzip", gzip(tar)),
        ("gzip of many members", of(gzip)),
        ("zstd", zstd(tar)),
        ("zstd of many frames", of(zstd)),
    ]
}

/// A device without the hole in it.
#[derive(Debug, PartialEq)]
struct Device {
    metadata: Vec<u8>,
    contents: Vec<u8>,
    bytes: u64,
}

impl Bytes for Device {
    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), Unreadable> {
        let (from, at) = match offset.checked_sub(CONTENTS_AT) {
            Some(at) => (&self.contents, at as usize),
            None => (&self.metadata, offset as usize),
        };
        let found = from.get(at..).unwrap_or_default();
        let found = &found[..found.len().min(dst.len())];
        dst.fill(0);
        dst[..found.len()].copy_from_slice(found);
        Ok(())
    }
}

/// The device of a layer, made of its index and of spans that are opened one by one, in any order.
fn device(index: &Index, blob: &[u8]) -> Device {
    let tree = index.tree().unwrap();
    let mut metadata = tree.metadata;
    // The UUID is the layer's, and so differs with the form; the checksum covers it.
    assert!(metadata[SUPERBLOCK + 48..].starts_with(&uuid_of(index)));
    metadata[SUPERBLOCK + 4..][..4].fill(0);
    metadata[SUPERBLOCK + 48..][..16].fill(0);
    let mut device = Device {
        metadata,
        contents: vec![0; (tree.device_bytes - CONTENTS_AT) as usize],
        bytes: tree.device_bytes,
    };
    let mut tar = vec![0; index.tar_bytes() as usize];
    for span in (0..index.spans()).rev() {
        let range = index.blob_range(span..span + 1);
        let bytes = &blob[range.start as usize..range.end as usize];
        let own = index.tar_range(span);
        let opened = index.open_span(span, bytes).unwrap();
        tar[own.start as usize..own.end as usize].copy_from_slice(&opened);
    }
    for extent in &tree.extents {
        let from = extent.tar_at as usize;
        let to = (extent.device_at - CONTENTS_AT) as usize;
        let bytes = extent.bytes as usize;
        device.contents[to..to + bytes].copy_from_slice(&tar[from..from + bytes]);
    }
    device
}

#[test]
fn every_form_of_a_layer_is_the_same_file_system() {
    let tar = layer(BIG_BYTES);
    let mut first = None;
    for (form, blob) in forms(&tar) {
        let index = build(&mut &blob[..], None).unwrap().index;
        let bytes = index.to_bytes();
        let index = Index::read(&bytes, &index.layer()).unwrap();
        assert_eq!(index.to_bytes(), bytes, "{form}");
        assert_eq!(index.tar_bytes(), tar.len() as u64, "{form}");
        // One zstd frame has one place to begin; all others have several.
        assert_eq!(
            index.spans() > 1,
            form != "zstd",
            "{form}: {}",
            index.spans()
        );
        let device = device(&index, &blob);
        match &first {
            None => first = Some(device),
            Some(first) => assert!(*first == device, "{form} differs"),
        }
    }
    check_tree(first.unwrap());
}

fn check_tree(device: Device) {
    let contents_of = device.contents.clone();
    let erofs = Erofs::open(device).unwrap();
    let at = |path: &str| {
        let mut inode = erofs.inode(erofs.root()).unwrap();
        for name in path.split('/') {
            let nid = erofs.look_up(&inode, name.as_bytes()).unwrap();
            inode = erofs
                .inode(nid.unwrap_or_else(|| panic!("{path}")))
                .unwrap();
        }
        inode
    };
    let contents = |path: &str| {
        let inode = at(path);
        let mut found = Vec::new();
        erofs
            .extents(&inode, 0, inode.size_bytes, &mut found)
            .unwrap();
        let mut bytes = Vec::new();
        for extent in found {
            let from = (extent.at.unwrap() - CONTENTS_AT) as usize;
            bytes.extend_from_slice(&contents_of[from..from + extent.len as usize]);
        }
        bytes
    };
    assert_eq!(contents("etc/hosts"), b"second\n");
    assert!(contents("opt/big") == big(BIG_BYTES));
    assert!(contents("opt/same") == big(BIG_BYTES));
    assert_eq!(contents(&format!("opt/{}", "long".repeat(50))), b"long");
    assert_eq!(erofs.link(&at("opt/link")).unwrap(), b"../etc/hosts");
    let gone = at("etc/gone");
    assert_eq!((gone.kind, gone.rdev), (Kind::CharacterDevice, 0));
    let opaque = erofs
        .attribute(&at("opt"), b"trusted.overlay.opaque")
        .unwrap();
    assert_eq!(opaque.as_deref(), Some(&b"y"[..]));
    assert_eq!(at("opt/same").links, 2);
    assert_eq!(at("etc/hosts").permissions, 0o4755);
}

/// The UUID by which a signed image shows its layer.
fn uuid_of(index: &Index) -> Vec<u8> {
    let digits = index.layer();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..32).step_by(2).map(byte).collect()
}

/// A registry can leave an annotation out, but the UUID is under the signature.
#[test]
fn the_uuid_of_a_converted_layer_says_that_it_describes_all_directories() {
    for (paths, has_implied) in [(&["etc/", "etc/hosts"][..], false), (&["etc/hosts"], true)] {
        let mut tar = tar::Builder::new(Vec::new());
        for path in paths {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(match path.ends_with('/') {
                true => tar::EntryType::Directory,
                false => tar::EntryType::Regular,
            });
            header.set_size(0);
            header.set_mode(0o755);
            header.set_mtime(0);
            tar.append_data(&mut header, *path, &b""[..]).unwrap();
        }
        let blob = tar.into_inner().unwrap();
        let index = build(&mut &blob[..], None).unwrap().index;
        let layer = index.layer();
        let tree = index.tree_at(true).unwrap();
        assert_eq!(tree.has_implied_directories, has_implied);
        let found = crate::index::hex(&tree.metadata[SUPERBLOCK + 48..][..16]);
        assert_eq!(found, uuid_digits(&layer, has_implied));
        assert_ne!(found, uuid_digits(&layer, !has_implied));
    }
}

/// Buffers that a frame fills to its last byte, and zeros behind the last gzip member.
#[test]
fn streams_may_end_where_a_buffer_does_and_be_padded() {
    let mut tar = gunzip(&gzip_tar(&big(200_000)));
    tar.resize(2 * (128 << 10), 0);
    let index = build(&mut &zstd(&tar)[..], None).unwrap().index;
    assert_eq!(index.tar_bytes(), tar.len() as u64);
    let padded = [gzip_tar(&big(3 << 20)), vec![0; 512]].concat();
    let index = build(&mut &padded[..], None).unwrap().index;
    assert!(index.spans() > 1);
    device(&index, &padded);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for path in ["../x", "a/../../x", "/../x", "a/.wh...", "a/.wh."] {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        let blob = [header.as_bytes(), &[0; 1024][..]].concat();
        let error = build(&mut &blob[..], None).err().unwrap().to_string();
        assert!(error.contains("no path inside it"), "{path}: {error}");
    }
    // Through a link, which might lead anywhere.
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    tar.append_link(&mut header, "link", "/etc").unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    tar.append_data(&mut header, "link/passwd", &b"x"[..])
        .unwrap();
    let blob = tar.into_inner().unwrap();
    let error = build(&mut &blob[..], None).err().unwrap().to_string();
    assert!(error.contains("passes through"), "{error}");
}

/// A registry keeps indexes longer than a machine its version.
#[test]
fn an_index_of_another_version_is_named() {
    let blob = gzip_tar(b"contents");
    let index = build(&mut &blob[..], None).unwrap().index;
    let error_of = |begin: &[u8]| {
        let bytes = [begin, &index.to_bytes()[8..]].concat();
        let error = Index::read(&bytes, &index.layer()).unwrap_err();
        error.to_string()
    };
    assert!(error_of(b"SCLAYER1").contains("is of another version"));
    assert!(error_of(b"elsewher").contains("is none"));
}

/// Any byte of a blob or an index changed, and any end cut off: an error or the same contents.
#[test]
fn damage_is_an_error_and_never_wrong_contents() {
    let tar = layer(1_500_000);
    let mut random = Random::new(11);
    for (form, blob) in forms(&tar) {
        let index = build(&mut &blob[..], None).unwrap().index;
        let layer = index.layer();
        let bytes = index.to_bytes();
        for _ in 0..60 {
            let mut bad = bytes.clone();
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
            assert!(Index::read(&bad, &layer).is_err(), "{form}: byte {at}");
            assert!(Index::read(&bytes[..at], &layer).is_err());
            // With a check of its own, as an attacker makes it: bounded, and no panic.
            let body = &bad[40..];
            let forged = [&bad[..8], blake3::hash(body).as_bytes(), body].concat();
            if let Ok(forged) = Index::read(&forged, &layer) {
                let _ = forged.tree();
                let span = random.below(forged.spans() as u64) as usize;
                let range = forged.blob_range(span..span + 1);
                let range = range.start as usize..range.end as usize;
                let _ = forged.open_span(span, blob.get(range).unwrap_or_default());
            }
        }
        for span in 0..index.spans() {
            let range = index.blob_range(span..span + 1);
            let mut bad = blob[range.start as usize..range.end as usize].to_vec();
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
            let good = index.open_span(span, &blob[range.start as usize..range.end as usize]);
            if let Ok(found) = index.open_span(span, &bad) {
                assert!(good.unwrap() == found, "{form}: span {span}");
            }
            let _ = index.open_span(span, &bad[..at]);
        }
        for _ in 0..6 {
            let mut bad = blob.clone();
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
            if let Ok(found) = build(&mut &bad[..], None) {
                assert_ne!(found.index.layer(), layer);
            }
            let _ = build(&mut &blob[..at], None);
        }
    }
}

/// Metadata have their room whatever the layer is.
#[test]
fn contents_have_a_place_that_does_not_depend_on_metadata() {
    let index = build(&mut &layer(BIG_BYTES)[..], None).unwrap().index;
    let tree = index.tree().unwrap();
    assert_eq!(tree.extents[0].device_at, CONTENTS_AT);
    assert!(tree.metadata.len() < 1 << 20);
    assert!(!tree.has_implied_directories);
}

/// Gives a part of its bytes, says so, and the rest once it may.
struct Slow(io::Cursor<Vec<u8>>, Sender<()>, Receiver<()>);

impl Read for Slow {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.0.position() == FIRST_BYTES {
            let _ = self.1.send(());
            let _ = self.2.recv();
        }
        let most = match self.0.position() {
            0 => FIRST_BYTES as usize,
            _ => out.len(),
        };
        self.0.read(&mut out[..most])
    }
}

/// An image may name another one's layer and serve it slowly, and other bytes.
#[test]
fn a_fetch_of_other_bytes_harms_no_other_fetch() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (blob, evil) = (gzip_tar(b"good"), gzip_tar(b"evil"));
    let sha256 = sha256_of(&blob);
    let (begun, has_begun) = channel();
    let (go, may_go) = channel();
    let (other, name) = (store.clone(), sha256.clone());
    let thread = std::thread::spawn(move || {
        let mut slow = Slow(io::Cursor::new(evil), begun, may_go);
        other.fetch_whole(&name, &mut slow).map(|_| ())
    });
    has_begun.recv().unwrap();
    store.fetch_whole(&sha256, &mut &blob[..]).unwrap();
    let data = store.whole(&sha256).unwrap();
    let contents = || {
        let mut bytes = [0; 4];
        let file = fs::File::open(&data).unwrap();
        file.read_exact_at(&mut bytes, CONTENTS_AT).unwrap();
        bytes
    };
    assert_eq!(&contents(), b"good");
    go.send(()).unwrap();
    let refused = thread.join().unwrap().unwrap_err();
    assert!(matches!(refused, LayerError::Digest { .. }), "{refused}");
    assert_eq!(&contents(), b"good");
    // What the refused one wrote is gone.
    let names = fs::read_dir(dir.path().join(&sha256)).unwrap();
    assert_eq!(names.count(), 4);
    let tar_sha256 = store.tar_sha256(&sha256).unwrap();
    assert_ne!(tar_sha256, sha256);
}

#[test]
fn a_layer_without_contents_is_not_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let blob = gzip_tar(b"good");
    let sha256 = sha256_of(&blob);
    store.fetch_whole(&sha256, &mut &blob[..]).unwrap();
    fs::remove_file(store.whole(&sha256).unwrap()).unwrap();
    assert_eq!(store.whole(&sha256), None);
    store.forget(&sha256);
    assert!(store.layers().is_empty());
}

/// A blob of a registry that is never asked.
pub(crate) fn unused_blob(sha256: &str) -> RemoteBlob {
    let repository = Repository::new("localhost:1", "a", Retry::default()).unwrap();
    RemoteBlob::new(&repository, sha256).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> = entries
        .map(|it| it.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A registry's index may place contents as it likes until it is refuted; what it has placed
/// counts for nothing with the next index.
#[test]
fn a_refuted_index_leaves_no_contents_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let blob = gzip_tar(b"contents");
    let sha256 = sha256_of(&blob);
    let good = build(&mut &blob[..], None).unwrap().index;
    let wrong = good.with_headers_twice();
    store.keep_index(&wrong).unwrap();
    let device = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
    device.fill(&blob);
    // Killed before the proof: the next server finds another index in the place of this one.
    store.keep_index(&good).unwrap();
    let next = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
    assert!(next.is_empty());
    drop(next);
    store.keep_index(&wrong).unwrap();
    let device = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
    device.fill(&blob);
    let refused = device.complete().unwrap_err().to_string();
    assert!(refused.contains("does not fit the layer"), "{refused}");
    assert!(names(&dir.path().join(&sha256)).is_empty());
    store.keep_index(&good).unwrap();
    let device = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
    assert!(device.is_empty());
    device.fill(&blob);
    assert!(device.complete().unwrap());
    assert_eq!(device.first_file(), b"contents");
    assert_eq!(
        names(&dir.path().join(&sha256)),
        ["complete", "data", "index", "trusted"]
    );
    assert!(store.tar_sha256(&sha256).is_some());
}

/// The folder of a layer may be removed and made again while a server of it still fetches.
#[test]
fn a_server_of_a_removed_folder_leaves_the_next_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let blob = gzip_tar(b"contents");
    let sha256 = sha256_of(&blob);
    let index = build(&mut &blob[..], None).unwrap().index;
    store.keep_index(&index).unwrap();
    let first = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
    store.forget(&sha256);
    store.keep_index(&index).unwrap();
    let _second = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
    first.fill(&blob);
    first.complete().unwrap_err();
    assert_eq!(store.whole(&sha256), None);
    assert!(
        store
            .index(&sha256)
            .is_some_and(|(_, is_trusted)| !is_trusted)
    );
}

/// A reader takes what the background has not begun to fetch, however slow its pace is.
#[test]
fn spans_are_claimed_when_their_time_has_come() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let blob = gzip_tar(b"contents");
    let sha256 = sha256_of(&blob);
    let index = build(&mut &blob[..], None).unwrap().index;
    store.keep_index(&index).unwrap();
    let device = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
    let background = Arc::clone(&device);
    // It sleeps for longer than the test runs.
    std::thread::spawn(move || {
        let pace = parking_lot::Mutex::new(Instant::now() + Duration::from_secs(3600));
        background.fetch_next(&pace, 1)
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(device.is_empty());
}

/// Contents without `data` are not here, whatever `complete` says.
#[test]
fn a_device_without_its_file_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let blob = gzip_tar(b"contents");
    let sha256 = sha256_of(&blob);
    store.fetch_whole(&sha256, &mut &blob[..]).unwrap();
    fs::remove_file(dir.path().join(&sha256).join("data")).unwrap();
    let device = LayerDevice::open(&store, &sha256, unused_blob(&sha256)).unwrap();
    assert!(device.is_empty());
    assert_eq!(store.whole(&sha256), None);
}

/// An archive of `docker save` that was unpacked, with links in the place of equal layers.
#[test]
fn links_of_an_unpacked_archive_stay_in_its_folder() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("image");
    let link = |target: &str, name: &str| {
        let _ = fs::remove_file(folder.join(name));
        symlink(target, folder.join(name)).unwrap();
    };
    for name in ["1", "2"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    let list = r#"[{"Config":"c.json","Layers":["1/layer.tar","2/layer.tar"]}]"#;
    for (name, text) in [("c.json", "{}"), ("1/layer.tar", "contents")] {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::write(folder.join("manifest.json"), list).unwrap();
    for name in ["list", "layer.tar"] {
        fs::write(outer.path().join(name), list).unwrap();
    }
    let open = || Local::open(folder.to_str().unwrap());
    link("../1/layer.tar", "2/layer.tar");
    let local = open().unwrap();
    let layers = &local.manifest().layers;
    assert_eq!((layers.len(), &layers[0]), (2, &layers[1]));
    let place = outer.path().join("list");
    for target in ["../../list", place.to_str().unwrap(), "layer.tar"] {
        link(target, "2/layer.tar");
        let error = open().err().unwrap().to_string();
        assert!(error.contains("2/layer.tar"), "{target}: {error}");
    }
    link("../1/layer.tar", "2/layer.tar");
    // The list itself, a name in it, and a folder on the way.
    let saved = folder.join("manifest.json");
    link("../list", "manifest.json");
    assert!(open().is_err());
    fs::remove_file(&saved).unwrap();
    fs::write(&saved, list.replace("c.json", "../list")).unwrap();
    assert!(open().err().unwrap().to_string().contains("names"));
    fs::write(&saved, list).unwrap();
    assert!(open().is_ok());
    fs::remove_dir_all(folder.join("2")).unwrap();
    link("..", "2");
    assert!(open().is_err());
}

const BIG_BYTES: usize = 5 << 20;
/// Bytes that a slow layer gives at first; none is so short.
const FIRST_BYTES: u64 = 40;
/// Byte of a device at which erofs keeps what describes all of it.
const SUPERBLOCK: usize = 1024;
