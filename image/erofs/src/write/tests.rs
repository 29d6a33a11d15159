//! Random trees, written and read back; extremes; and trees that do not fit.

mod trees;

use super::emit::crc32c;
use super::*;
use crate::{Erofs, Inode, Kind};
use std::collections::BTreeMap;
use trees::{Dice, Fact, facts, image};

fn contents(erofs: &Erofs<&[u8]>, image: &[u8], inode: &Inode) -> Vec<u8> {
    let mut found = Vec::new();
    erofs.extents(inode, 0, u64::MAX, &mut found).unwrap();
    let piece = |extent: &crate::Extent| match extent.at {
        Some(at) => image[at as usize..][..extent.len as usize].to_vec(),
        None => vec![0; extent.len as usize],
    };
    found.iter().flat_map(piece).collect()
}

/// Compares an image with the facts from which it was made.
fn check(image: &[u8], facts: &[Fact]) {
    let erofs = Erofs::open(image).unwrap();
    let mut nids = BTreeMap::from([(0, erofs.root())]);
    let mut waiting = vec![(0, 0)];
    while let Some((id, parent)) = waiting.pop() {
        let fact = &facts[id as usize];
        let inode = erofs.inode(nids[&id]).unwrap();
        assert_eq!(Some(inode.kind), fact.kind, "kind of {id}");
        assert_eq!(inode.links, fact.links, "links of {id}");
        let found = Meta {
            permissions: inode.permissions,
            uid: inode.uid,
            gid: inode.gid,
            mtime_s: inode.mtime_s,
            mtime_ns: inode.mtime_ns,
        };
        assert_eq!(found, fact.meta, "{id}");
        let names = erofs.attribute_names(&inode).unwrap();
        let names: Vec<_> = names
            .split(|&byte| byte == 0)
            .filter(|it| !it.is_empty())
            .collect();
        assert_eq!(names.len(), fact.attributes.len(), "attributes of {id}");
        for (name, value) in &fact.attributes {
            assert_eq!(erofs.attribute(&inode, name).unwrap().as_ref(), Some(value));
        }
        match inode.kind {
            Kind::File => {
                assert_eq!(inode.size_bytes, fact.size_bytes);
                let hole = |at: usize| {
                    let left = fact.size_bytes - at as u64 * CHUNK_BYTES;
                    vec![0; left.min(CHUNK_BYTES) as usize]
                };
                let expected: Vec<u8> = (fact.chunks.iter().enumerate())
                    .flat_map(|(at, chunk)| chunk.clone().unwrap_or_else(|| hole(at)))
                    .collect();
                assert!(
                    contents(&erofs, image, &inode) == expected,
                    "contents of {id}"
                );
            }
            Kind::Link => assert_eq!(erofs.link(&inode).unwrap(), fact.target),
            Kind::CharacterDevice | Kind::BlockDevice => {
                let (major, minor) = fact.device;
                assert_eq!(inode.rdev >> 8 & 0xFFF, major);
                assert_eq!(inode.rdev & 0xFF | inode.rdev >> 12 & 0xF_FF00, minor);
            }
            Kind::Fifo | Kind::Socket => {}
            Kind::Directory => {
                let mut expected: BTreeMap<&[u8], Id> = BTreeMap::new();
                expected.extend([(&b"."[..], id), (b"..", parent)]);
                expected.extend(fact.names.iter().map(|(name, id)| (&name[..], *id)));
                let mut expected = expected.into_iter();
                erofs
                    .list(&inode, 0, &mut |entry| {
                        // In order, each name once.
                        let (name, child) = expected.next().unwrap();
                        assert_eq!(entry.name, name, "in {id}");
                        assert_eq!(entry.kind, facts[child as usize].kind);
                        let nid = *nids.entry(child).or_insert(entry.nid);
                        assert_eq!(entry.nid, nid, "a hard link, or a parent");
                        assert_eq!(erofs.look_up(&inode, name), Ok(Some(nid)));
                        if name != b"." && name != b".." {
                            waiting.push((child, id));
                        }
                        true
                    })
                    .unwrap();
                assert_eq!(expected.next(), None);
            }
        }
    }
    let end = crate::metadata_end(&image).unwrap();
    assert!(nids.values().all(|nid| nid * 32 < end));
    assert_eq!(nids.len() as u64, erofs.inodes());
    assert_eq!(nids.len(), facts.len(), "every inode was found");
}

#[test]
fn trees_from_seeds_come_back_as_they_were() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let count = 1 + dice.below(120);
        let facts = facts(&mut dice, count);
        let (first, data_at) = image(&facts).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        eprintln!(
            "seed {seed}: {count} inodes, {} bytes, {data_at} of them first",
            first.len()
        );
        check(&first, &facts);
        // The same tree gives the same bytes.
        assert!(image(&facts).unwrap().0 == first, "seed {seed}");
    }
}

fn file(size_bytes: u64) -> Fact {
    Fact {
        kind: Some(Kind::File),
        size_bytes,
        links: 1,
        ..Fact::default()
    }
}

fn root() -> Fact {
    Fact {
        kind: Some(Kind::Directory),
        links: 2,
        ..Fact::default()
    }
}

#[test]
fn an_empty_tree_is_one_block() {
    let facts = [root()];
    let (image, data_at) = image(&facts).unwrap();
    assert_eq!((image.len(), data_at), (4096, 4096));
    check(&image, &facts);
    // The checksum of a superblock covers its block with its own field zero.
    let mut block = image[1024..4096].to_vec();
    let sum = block.splice(4..8, [0; 4]).collect::<Vec<u8>>();
    assert_eq!(sum, crc32c(&block).to_le_bytes());
    // The value that RFC 3720's tables call CRC-32C, before its inversion.
    assert_eq!(crc32c(b"123456789"), !0xE306_9283);
}

#[test]
fn a_hundred_thousand_names_are_found() {
    let mut facts = vec![root()];
    for number in 0..100_000 {
        let name = format!(
            "{:>width$}",
            number * 7919 % 100_000,
            width = 1 + number % 40
        );
        let id = facts.len() as Id;
        if facts[0].names.insert(name.into_bytes(), id).is_none() {
            facts.push(file(0));
        }
    }
    let (image, _) = image(&facts).unwrap();
    check(&image, &facts);
}

/// The first blocks hold the names that are looked up first, however much lies below.
#[test]
fn directories_lie_breadth_first_before_all_contents() {
    let mut facts = vec![root()];
    for number in 0..50 {
        let directory = facts.len() as Id;
        facts[0]
            .names
            .insert(format!("directory {number}").into(), directory);
        facts[0].links += 1;
        facts.push(root());
        for child in 0..50 {
            let id = facts.len() as Id;
            let fact = Fact {
                chunks: vec![Some(vec![number as u8 + 1; 300])],
                ..file(300)
            };
            facts[directory as usize]
                .names
                .insert(format!("file {child}").into(), id);
            facts.push(fact);
        }
    }
    let (image, data_at) = image(&facts).unwrap();
    check(&image, &facts);
    let erofs = Erofs::open(&image[..]).unwrap();
    let root = erofs.inode(erofs.root()).unwrap();
    let mut last = 0;
    erofs
        .list(&root, 0, &mut |entry| {
            last = last.max(entry.nid);
            true
        })
        .unwrap();
    let (mut first_below, mut first_data) = (u64::MAX, u64::MAX);
    for number in 0..50 {
        let name = format!("directory {number}");
        let directory = erofs.look_up(&root, name.as_bytes()).unwrap().unwrap();
        let directory = erofs.inode(directory).unwrap();
        erofs
            .list(&directory, 0, &mut |entry| {
                if entry.kind == Some(Kind::File) {
                    first_below = first_below.min(entry.nid);
                    let mut found = Vec::new();
                    let inode = erofs.inode(entry.nid).unwrap();
                    erofs.extents(&inode, 0, 1, &mut found).unwrap();
                    first_data = first_data.min(found[0].at.unwrap());
                }
                true
            })
            .unwrap();
    }
    assert!(last < first_below, "{last} < {first_below}");
    assert_eq!(first_data, data_at);
    // 2,551 inodes with their names: little more than their own lengths.
    assert!(data_at < 2551 * (32 + 12 + 7) * 3 / 2, "{data_at}");
}

#[test]
fn files_longer_than_any_disk_take_their_holes_along() {
    let size = (5 << 30) + 12_345;
    let mut tree = Tree::new(Meta::default(), []).unwrap();
    let node = |size_bytes| Node::File {
        size_bytes,
        may_be_hole: true,
    };
    let sizes = [size, size, 1 << 42, 77];
    for (number, size_bytes) in sizes.into_iter().enumerate() {
        let id = tree.add(Meta::default(), node(size_bytes), []).unwrap();
        tree.link(0, number.to_string().as_bytes(), id).unwrap();
    }
    let mut layout = Layout::new(tree).unwrap();
    let data_at = layout.data_at();
    let chunks = size.div_ceil(CHUNK_BYTES);
    // A file with only its last chunk stored; the others are holes.
    layout.place(1, chunks - 1, None).unwrap();
    layout.place(1, 1, Some(data_at)).unwrap();
    layout.place(2, chunks, None).unwrap();
    layout.place(3, 1 << 26, None).unwrap();
    layout.place(4, 1, None).unwrap();
    let mut image = vec![0; data_at as usize + CHUNK_BYTES as usize];
    let sealed = layout.seal(image.len() as u64, [0; 16]).unwrap();
    let done: Result<(), ()> = sealed.write(|at, bytes| {
        image[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    });
    assert_eq!(done, Ok(()));
    let erofs = Erofs::open(&image[..]).unwrap();
    let root = erofs.inode(erofs.root()).unwrap();
    let extents = |name: &str, offset, len| {
        let nid = erofs.look_up(&root, name.as_bytes()).unwrap().unwrap();
        let mut found = Vec::new();
        let inode = erofs.inode(nid).unwrap();
        erofs.extents(&inode, offset, len, &mut found).unwrap();
        found
            .into_iter()
            .map(|it| (it.at, it.len))
            .collect::<Vec<_>>()
    };
    let hole = (chunks - 1) * CHUNK_BYTES;
    assert_eq!(
        extents("0", 0, u64::MAX),
        [(None, hole), (Some(data_at), size - hole)]
    );
    assert_eq!(extents("1", 0, u64::MAX), [(None, size)]);
    assert_eq!(extents("2", 1 << 41, u64::MAX), [(None, 1 << 41)]);
    assert_eq!(extents("3", 0, 100), [(None, 77)]);
}

#[test]
fn what_does_not_fit_is_refused_by_its_number() {
    let new = || Tree::new(Meta::default(), []).unwrap();
    let mut tree = new();
    let mut add = |node: Node<'_>| tree.add(Meta::default(), node, []).map_err(|it| it.what);
    assert_eq!(add(Node::Link(b"")), Err(Fault::Link(0)));
    assert_eq!(add(Node::Link(&[b'x'; 4096])), Err(Fault::Link(4096)));
    assert_eq!(add(Node::Link(b"a\0b")), Err(Fault::Link(3)));
    assert_eq!(add(Node::BlockDevice(4096, 0)), Err(Fault::Device(4096, 0)));
    let endless = Node::File {
        size_bytes: 1 << 63,
        may_be_hole: true,
    };
    assert_eq!(add(endless), Err(Fault::Full));
    let id = add(Node::Directory).unwrap();
    for name in ["", ".", "..", "a/b", "a\0b"] {
        let error = tree.link(0, name.as_bytes(), id).unwrap_err();
        assert_eq!(
            error,
            Unfit {
                id,
                what: Fault::Name(name.into())
            }
        );
    }
    let error = tree.link(0, &[b'n'; 256], id).unwrap_err();
    assert_eq!(error.what, Fault::NameLength(256));
    tree.link(0, b"once", id).unwrap();
    assert_eq!(
        tree.link(0, b"again", id).unwrap_err().what,
        Fault::DirectoryLinked
    );
    assert_eq!(
        tree.link(id, b"root", 0).unwrap_err().what,
        Fault::DirectoryLinked
    );
    let fifo = tree.add(Meta::default(), Node::Fifo, []).unwrap();
    tree.link(0, b"once", fifo).unwrap();
    assert_eq!(
        tree.link(fifo, b"x", fifo).unwrap_err().what,
        Fault::NoDirectory
    );
    let error = Layout::new(tree).unwrap_err();
    assert_eq!(
        error,
        Unfit {
            id: 0,
            what: Fault::Twice("once".into())
        }
    );

    let with = |name: &[u8], value: &[u8]| new().add(Meta::default(), Node::Fifo, [(name, value)]);
    for name in [
        &b"system.nfs4_acl"[..],
        b"user.",
        b"user.a\0b",
        &[b'u'; 256],
    ] {
        assert!(!is_storable(name));
        assert!(matches!(
            with(name, b"").unwrap_err().what,
            Fault::Attribute { .. }
        ));
    }
    assert!(with(b"user.long", &[0; 65_535]).is_ok());
    let error = with(b"user.long", &[0; 65_536]).unwrap_err();
    assert!(error.to_string().contains("65536 bytes"), "{error}");
    let values: Vec<_> = (0..5).map(|it| format!("user.{it}").into_bytes()).collect();
    let value = [0; 60_000];
    let many = values.iter().map(|name| (&name[..], &value[..]));
    let error = new().add(Meta::default(), Node::Fifo, many).unwrap_err();
    assert!(matches!(error.what, Fault::Attributes(_)), "{error}");
}

#[test]
fn contents_without_their_places_are_refused() {
    let layout = |size_bytes, may_be_hole| {
        let mut tree = Tree::new(Meta::default(), []).unwrap();
        let node = Node::File {
            size_bytes,
            may_be_hole,
        };
        let id = tree.add(Meta::default(), node, []).unwrap();
        tree.link(0, b"file", id).unwrap();
        Layout::new(tree)
    };
    let places = Some(Fault::Places);
    let seal = |layout: Layout| layout.seal(1 << 20, [0; 16]).err().map(|it| it.what);
    assert_eq!(seal(layout(1, false).unwrap()), places);
    // No room was reserved for a hole.
    let mut small = layout(1, false).unwrap();
    small.place(1, 1, None).unwrap();
    assert_eq!(seal(small), places);
    let mut small = layout(1, false).unwrap();
    let data_at = small.data_at();
    assert_eq!(
        small.place(1, 1, Some(data_at - 4096)).unwrap_err().what,
        Fault::Places
    );
    assert_eq!(
        small.place(1, 1, Some(data_at + 1)).unwrap_err().what,
        Fault::Places
    );
    assert_eq!(
        small.place(1, 1, Some(1 << 44)).unwrap_err().what,
        Fault::Full
    );
    small.place(1, 2, Some(data_at)).unwrap();
    assert_eq!(seal(small), places);
    // The places of its chunks alone would fill the image.
    assert_eq!(layout(1 << 62, true).unwrap_err().what, Fault::Full);
    let whole = layout(5, false).unwrap().seal(1 << 44, [0; 16]);
    assert_eq!(whole.unwrap_err().what, Fault::Places);
}
