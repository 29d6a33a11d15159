//! A small image read back.

mod fixtures;

use super::*;
use fixtures::{NAMES, image, pattern};

fn contents(erofs: &Erofs<&[u8]>, image: &[u8], name: &str) -> Vec<u8> {
    let inode = find(erofs, name);
    let mut found = Vec::new();
    erofs.extents(&inode, 0, u64::MAX, &mut found).unwrap();
    let piece = |extent: &Extent| match extent.at {
        Some(at) => image[at as usize..][..extent.len as usize].to_vec(),
        None => vec![0; extent.len as usize],
    };
    found.iter().flat_map(piece).collect()
}

fn find(erofs: &Erofs<&[u8]>, name: &str) -> Inode {
    let root = erofs.inode(erofs.root()).unwrap();
    let nid = erofs.look_up(&root, name.as_bytes()).unwrap();
    erofs.inode(nid.expect(name)).unwrap()
}

#[test]
fn every_layout_gives_its_bytes() {
    let image = image();
    let erofs = Erofs::open(&image[..]).unwrap();
    let first = pattern(1024);
    let chunks = [&first[..], &[0; 1024], &first[..952]].concat();
    assert!(contents(&erofs, &image, "chunks") == chunks);
    let map = [&first[..], &[0; 976]].concat();
    assert!(contents(&erofs, &image, "map") == map);
    assert!(contents(&erofs, &image, "attributes") == pattern(700));
    assert!(contents(&erofs, &image, "tail") == pattern(612));
    // A range that begins in one chunk and ends in the next.
    let mut found = Vec::new();
    let inode = find(&erofs, "chunks");
    erofs.extents(&inode, 1000, 100, &mut found).unwrap();
    assert_eq!(found.iter().map(|it| it.len).collect::<Vec<_>>(), [24, 76]);
    assert_eq!(found[1].at, None);
}

#[test]
fn names_and_kinds_are_those_of_the_directory() {
    let image = image();
    let erofs = Erofs::open(&image[..]).unwrap();
    let root = erofs.inode(erofs.root()).unwrap();
    let mut listed = Vec::new();
    let mut from = 0;
    // One entry at a time: each position continues at the right entry.
    loop {
        let before = listed.len();
        erofs
            .list(&root, from, &mut |entry| {
                listed.push((entry.name.to_vec(), entry.nid));
                from = entry.next;
                let inode = erofs.inode(entry.nid).unwrap();
                assert_eq!(entry.kind, Some(inode.kind));
                false
            })
            .unwrap();
        if listed.len() == before {
            break;
        }
    }
    let names: Vec<_> = listed[2..].to_vec();
    let expected: Vec<_> = NAMES
        .iter()
        .map(|(name, nid, _)| (name.as_bytes().to_vec(), *nid))
        .collect();
    assert_eq!(names, expected);
    for absent in ["", "a", "attributes2", "zzz", "deviceb"] {
        assert_eq!(
            erofs.look_up(&root, absent.as_bytes()),
            Ok(None),
            "{absent}"
        );
    }
}

#[test]
fn attributes_of_all_kinds_are_found() {
    let image = image();
    let erofs = Erofs::open(&image[..]).unwrap();
    let inode = find(&erofs, "attributes");
    let names = erofs.attribute_names(&inode).unwrap();
    let expected = b"security.shared\0user.own\0user.long.tail\0";
    assert_eq!(names, expected, "{}", String::from_utf8_lossy(&names));
    let value = |name: &[u8]| erofs.attribute(&inode, name).unwrap();
    assert_eq!(value(b"security.shared").unwrap(), b"by many");
    assert_eq!(value(b"user.own").unwrap(), b"value");
    assert_eq!(value(b"user.long.tail").unwrap(), b"of a long name");
    assert_eq!(value(b"user.tail"), None);
    assert_eq!(erofs.attribute_names(&find(&erofs, "tail")).unwrap(), b"");
}

#[test]
fn owners_times_links_and_devices_are_as_stored() {
    let image = image();
    let erofs = Erofs::open(&image[..]).unwrap();
    let tail = find(&erofs, "tail");
    assert_eq!((tail.uid, tail.gid, tail.links), (100_000, 100_001, 2));
    assert_eq!((tail.mtime_s, tail.mtime_ns), (1_600_000_000, 5));
    let plain = find(&erofs, "attributes");
    assert_eq!((plain.uid, plain.gid), (1000, 1001));
    assert_eq!((plain.permissions, plain.mtime_s), (0o4755, 1_700_000_000));
    assert_eq!(find(&erofs, "device").rdev, 0x0103);
    assert_eq!(erofs.link(&find(&erofs, "link")).unwrap(), b"chunks");
    assert!(erofs.link(&tail).is_err());
}

/// Error of an inode of an image that opens.
fn error_of(image: &[u8], nid: u64) -> Option<Error> {
    Erofs::open(image).ok()?.inode(nid).err()
}

#[test]
fn senseless_inodes_and_superblocks_are_refused() {
    let image = image();
    let with = |at: usize, byte: u8| {
        let mut image = image.clone();
        image[at] = byte;
        image
    };
    let inode = 1536 + 26 * 32;
    let corrupt = |what| Some(Error::Corrupt { nid: 26, what });
    assert_eq!(error_of(&image, 26), None);
    assert_eq!(error_of(&with(inode, 2), 26), corrupt(Corrupt::Compressed));
    assert_eq!(error_of(&with(inode, 6), 26), corrupt(Corrupt::Compressed));
    assert_eq!(error_of(&with(inode, 10), 26), corrupt(Corrupt::Format));
    assert_eq!(error_of(&with(inode + 5, 0), 26), corrupt(Corrupt::Mode));
    assert_eq!(error_of(&with(inode + 11, 1), 26), corrupt(Corrupt::Size));
    let outside = error_of(&image, u64::MAX).unwrap();
    let what = Corrupt::Outside;
    assert_eq!(
        outside,
        Error::Corrupt {
            nid: u64::MAX,
            what
        }
    );
    let open = |at: usize, byte| Erofs::open(&with(1024 + at, byte)[..]).unwrap_err();
    assert_eq!(open(0, 0), Error::NotErofs);
    assert_eq!(open(12, 30), Unsupported::BlockBits(30).into());
    assert_eq!(open(80, 0x46), Unsupported::Features(0x46).into());
    assert_eq!(open(90, 1), Unsupported::DirectoryBits(1).into());
    assert_eq!(Erofs::open(&image[..1100]).unwrap_err(), Error::NotErofs);
}

#[test]
fn a_directory_in_itself_is_borne() {
    let mut image = image();
    // "map" becomes the root's own inode.
    let root = 1536 + 64;
    let entry = root + 7 * 12;
    assert_eq!(image[entry], 22);
    image[entry] = 0;
    let erofs = Erofs::open(&image[..]).unwrap();
    assert_eq!(find(&erofs, "map").nid, 0);
}
