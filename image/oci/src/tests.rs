//! Layers that are made here, read back by their indexes alone; and damaged ones.

use crate::build::build;
use crate::index::Index;
use crate::tree::CONTENTS_AT;
use sidecore_erofs::{Bytes, Erofs, Kind, Unreadable};
use sidecore_random::Random;
use std::io::{Read, Write};

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

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut out)
        .unwrap();
    out
}

/// A layer of one file in the root, as gzip.
fn gzip_tar(contents: &[u8]) -> Vec<u8> {
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
    let mut device = Device {
        metadata: tree.metadata,
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

const BIG_BYTES: usize = 5 << 20;
