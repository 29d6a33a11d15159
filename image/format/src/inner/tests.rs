//! File systems made of small trees, by this crate and by external programs.

use super::*;
use sidecore_erofs::{Erofs, Extent};
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;

fn make(directory: &Path, kind: Kind, scratch: &Path) -> Result<File, InnerError> {
    super::make(&Folder::open(directory).unwrap(), kind, scratch)
}

fn tree() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let text: Vec<u8> = (0..200_000_u32)
        .flat_map(|at| at.wrapping_mul(at).to_le_bytes())
        .collect();
    for name in ["one", "two", "deep/three", "deep/er/four"] {
        let path = path.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &text).unwrap();
    }
    std::os::unix::fs::symlink("one", path.join("link")).unwrap();
    directory
}

fn bytes(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn copies_of_a_file_are_stored_once() {
    let tree = tree();
    let file = make(tree.path(), Kind::Erofs, Path::new("/tmp")).unwrap();
    let stored = file.metadata().unwrap().len();
    assert!(
        stored < 900_000,
        "four copies of 800,000 bytes take {stored}"
    );
}

#[test]
fn names_of_255_bytes_are_taken() {
    let tree = tree();
    let name = "n".repeat(255);
    fs::write(tree.path().join("deep").join(&name), b"x").unwrap();
    for kind in [Kind::Erofs, Kind::Squashfs] {
        let file = make(tree.path(), kind, Path::new("/tmp")).unwrap();
        let found = bytes(file);
        assert!(found.windows(255).any(|window| window == name.as_bytes()));
    }
}

/// Contents of a file in an image by their path, holes as zeros.
fn contents(image: &[u8], path: &str) -> Vec<u8> {
    let erofs = Erofs::open(image).unwrap();
    let mut inode = erofs.inode(erofs.root()).unwrap();
    for name in path.split('/') {
        let nid = erofs.look_up(&inode, name.as_bytes()).unwrap();
        inode = erofs.inode(nid.expect(path)).unwrap();
    }
    let mut extents = Vec::new();
    erofs.extents(&inode, 0, u64::MAX, &mut extents).unwrap();
    let piece = |extent: &Extent| match extent.at {
        Some(at) => image[at as usize..][..extent.len as usize].to_vec(),
        None => vec![0; extent.len as usize],
    };
    extents.iter().flat_map(piece).collect()
}

#[test]
fn files_of_all_lengths_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let lengths = [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 300_000];
    let bytes_of = |number: usize, len: usize| -> Vec<u8> {
        (0..len)
            .map(|at| (at / 1000 * number + at % 251) as u8)
            .collect()
    };
    for (number, len) in lengths.into_iter().enumerate() {
        let bytes = bytes_of(number, len);
        fs::write(directory.path().join(len.to_string()), &bytes).unwrap();
        // Begins with the contents of another file.
        let longer = [&bytes[..], b"more"].concat();
        fs::write(directory.path().join(format!("{len} and more")), longer).unwrap();
    }
    let image = bytes(make(directory.path(), Kind::Erofs, Path::new("/tmp")).unwrap());
    for (number, len) in lengths.into_iter().enumerate() {
        let bytes = bytes_of(number, len);
        assert!(contents(&image, &len.to_string()) == bytes, "{len}");
        let longer = [&bytes[..], b"more"].concat();
        assert!(
            contents(&image, &format!("{len} and more")) == longer,
            "{len}"
        );
    }
}

#[test]
fn zeros_and_holes_take_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("zeros"), vec![0; 1 << 20]).unwrap();
    let file = File::create(at("sparse")).unwrap();
    file.set_len(8 << 20).unwrap();
    file.write_all_at(b"in the middle", 5_000_000).unwrap();
    File::create(at("small hole"))
        .unwrap()
        .set_len(5000)
        .unwrap();
    let file = make(directory.path(), Kind::Erofs, Path::new("/tmp")).unwrap();
    assert!(
        file.metadata().unwrap().len() < 100_000,
        "one chunk is stored"
    );
    let image = bytes(file);
    assert!(contents(&image, "zeros") == vec![0; 1 << 20]);
    assert!(contents(&image, "small hole") == [0; 5000]);
    let mut expected = vec![0; 8 << 20];
    expected[5_000_000..][..13].copy_from_slice(b"in the middle");
    assert!(contents(&image, "sparse") == expected);
}

#[test]
fn a_full_disk_is_named_with_what_is_needed() {
    let tree = tree();
    let scratch = tempfile::tempdir().unwrap();
    let small = "size=1m,mode=700";
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", small, "none"])
        .arg(scratch.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no tmpfs may be mounted here");
        return;
    }
    // More than the space available, in addition to the copies that are stored once.
    let noise: Vec<u8> = (0..500_000_u64)
        .flat_map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .collect();
    fs::write(tree.path().join("noise"), noise).unwrap();
    let made = make(tree.path(), Kind::Erofs, scratch.path());
    let unmounted = Command::new("umount").arg(scratch.path()).status();
    assert!(unmounted.unwrap().success(), "nothing is left there");
    let error = made.unwrap_err();
    assert!(
        matches!(error, InnerError::NoRoom { free_bytes, .. } if free_bytes <= 1 << 20),
        "{error}"
    );
}

#[test]
fn a_trees_uuid_is_its_own_and_goes_with_it() {
    let (first, second) = (tree(), tree());
    let uuid = |tree: &Path| tree::uuid(&Folder::open(tree).unwrap()).unwrap();
    let text = uuid(first.path());
    assert_eq!((text.len(), text.as_bytes()[14]), (36, b'8'), "{text}");
    assert_eq!(text, uuid(second.path()));
    fs::write(second.path().join("one"), b"shorter").unwrap();
    assert_ne!(text, uuid(second.path()));
}

/// A packed tree takes over from its source that which the rules leave.
#[test]
fn rules_leave_out_names_and_set_owners_and_times() {
    let tree = tree();
    let mut rules = Rules::default();
    rules.exclude("/deep/er".as_ref());
    rules.exclude("tw*".as_ref());
    rules.owner = Some((7, 70_000));
    rules.mtime_s = Some(-5);
    let folder = Folder::open(tree.path()).unwrap();
    let image = bytes(make_by(&folder, Kind::Erofs, &rules, Path::new("/tmp")).unwrap());
    let erofs = Erofs::open(&image[..]).unwrap();
    let root = erofs.inode(erofs.root()).unwrap();
    assert_eq!((root.uid, root.gid, root.mtime_s), (7, 70_000, -5));
    let find = |from, name: &str| {
        let found = erofs.look_up(&from, name.as_bytes()).unwrap();
        found.map(|nid| erofs.inode(nid).unwrap())
    };
    assert!(find(root, "two").is_none());
    let deep = find(root, "deep").unwrap();
    assert!(find(deep, "er").is_none());
    let three = find(deep, "three").unwrap();
    assert_eq!((three.uid, three.gid, three.mtime_s), (7, 70_000, -5));
    let refused = make_by(&folder, Kind::Ext4, &rules, Path::new("/tmp"));
    assert!(matches!(refused, Err(InnerError::Rules("ext4"))));
}

/// Of a directory and of a tar: the list's files, then the others in their usual order.
#[test]
fn files_of_a_list_are_stored_first() {
    let directory = tempfile::tempdir().unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let text = |name: &str| format!("contents of {name};").repeat(1000);
    for name in ["a/one", "a/two", "b/deep/three", "four"] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text(name)).unwrap();
        tar.append_path_with_name(&path, name).unwrap();
    }
    let stream = tar.into_inner().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    let made = |rules: &Rules| {
        let scratch = Path::new("/tmp");
        let of_tree = make_by(&folder, Kind::Erofs, rules, scratch).unwrap();
        let of_tar = make_of_tar(&mut &stream[..], rules, scratch).unwrap();
        [of_tree, of_tar].map(bytes)
    };
    let place = |image: &[u8], name: &str| {
        let text = text(name);
        let start = &text.as_bytes()[..text.len() / 1000];
        let mut windows = image.windows(start.len());
        windows.position(|window| window == start).unwrap()
    };
    let mut rules = Rules::default();
    rules.store_first(b"/b\n./a//two\n\nnowhere\n");
    for image in made(&rules) {
        let order = ["b/deep/three", "a/two", "four", "a/one"];
        let places = order.map(|name| place(&image, name));
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(contents(&image, "a/two"), text("a/two").as_bytes());
    }
    // A path with a line break: zero bytes end the paths.
    let mut rules = Rules::default();
    rules.store_first(b"a/o\nne\0a/two\0");
    for image in made(&rules) {
        let places = ["a/two", "four", "a/one"].map(|name| place(&image, name));
        assert!(places.is_sorted(), "{places:?}");
    }
    let refused = make_by(&folder, Kind::Ext4, &rules, Path::new("/tmp"));
    assert!(matches!(refused, Err(InnerError::Rules("ext4"))));
}

/// A tar of two versions of a file, with a link to the second, names that a ustar cannot hold, and
/// what else a tar has.
#[test]
fn a_tar_becomes_the_tree_that_it_unpacks_to() {
    let mut tar = tar::Builder::new(Vec::new());
    let mut put = |kind, path: &str, target: &str, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o6755);
        header.set_uid(3);
        header.set_gid(4);
        header.set_mtime(1_000_000_000);
        header.set_size(data.len() as u64);
        if target.is_empty() {
            tar.append_data(&mut header, path, data).unwrap();
        } else {
            tar.append_link(&mut header, path, target).unwrap();
        }
    };
    let long = format!("a/{}", "long/".repeat(60));
    let zeros = vec![0; 300_000];
    put(tar::EntryType::Regular, "a/b/file", "", b"the first");
    put(tar::EntryType::Regular, &format!("{long}name"), "", b"deep");
    put(tar::EntryType::Regular, "a/b/file", "", b"the second");
    put(tar::EntryType::Link, "./again", "a/b/file", b"");
    put(tar::EntryType::Symlink, "link", "a/b", b"");
    put(tar::EntryType::Regular, "zeros", "", &zeros);
    put(tar::EntryType::Regular, "left/out", "", b"x");
    let mut stream = tar.into_inner().unwrap();
    let mut rules = Rules::default();
    rules.exclude("left".as_ref());
    let made = make_of_tar(&mut &stream[..], &rules, Path::new("/tmp")).unwrap();
    let image = bytes(made);
    assert_eq!(contents(&image, "a/b/file"), b"the second");
    assert_eq!(contents(&image, "again"), b"the second");
    assert_eq!(contents(&image, &format!("{long}name")), b"deep");
    assert_eq!(contents(&image, "zeros"), zeros);
    assert!(image.len() < 100_000, "holes are stored: {}", image.len());
    let erofs = Erofs::open(&image[..]).unwrap();
    let root = erofs.inode(erofs.root()).unwrap();
    assert_eq!(erofs.look_up(&root, b"left").unwrap(), None);
    let again = erofs.look_up(&root, b"again").unwrap().unwrap();
    let again = erofs.inode(again).unwrap();
    assert_eq!((again.links, again.permissions, again.uid), (2, 0o6755, 3));
    assert_eq!(again.mtime_s, 1_000_000_000);
    // Cut short: no tree, but an error.
    stream.truncate(2000);
    let cut = make_of_tar(&mut &stream[..], &rules, Path::new("/tmp"));
    assert!(matches!(cut, Err(InnerError::Archive { .. })));
}

/// As `tar -S --xattrs` writes it: a map in digits, then the pieces, under a made-up name.
#[test]
fn a_sparse_file_in_the_form_of_pax_is_refused_with_the_remedy() {
    let mut tar = tar::Builder::new(Vec::new());
    let records = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.name", "disk"),
        ("GNU.sparse.realsize", "1048576"),
    ];
    let records = records.map(|(key, value)| (key, value.as_bytes()));
    tar.append_pax_extensions(records).unwrap();
    let mut data = b"1\n1044480\n4096\n".to_vec();
    data.resize(512, 0);
    data.extend([7; 4096]);
    let mut header = tar::Header::new_ustar();
    header.set_size(data.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "GNUSparseFile.1/disk", &data[..])
        .unwrap();
    let stream = tar.into_inner().unwrap();
    let made = make_of_tar(&mut &stream[..], &Rules::default(), Path::new("/tmp"));
    let text = made.unwrap_err().to_string();
    assert!(text.contains("GNUSparseFile.1/disk"), "{text}");
    assert!(text.contains("without --sparse"), "{text}");
}

#[test]
fn times_before_1970_in_binary_are_negative() {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    // As GNU tar writes the second before 1970.
    header.as_gnu_mut().unwrap().mtime = [0xff; 12];
    tar.append_data(&mut header, "old", &b""[..]).unwrap();
    let stream = tar.into_inner().unwrap();
    let made = make_of_tar(&mut &stream[..], &Rules::default(), Path::new("/tmp")).unwrap();
    let image = bytes(made);
    let erofs = Erofs::open(&image[..]).unwrap();
    let root = erofs.inode(erofs.root()).unwrap();
    let old = erofs.look_up(&root, b"old").unwrap().unwrap();
    assert_eq!(erofs.inode(old).unwrap().mtime_s, -1);
}

/// One long path: the paths of all its directories together would have 40 GB.
#[test]
fn a_path_of_many_directories_takes_memory_of_its_length() {
    let depth = 200_000;
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let path = "a/".repeat(depth) + "file";
    tar.append_data(&mut header, &path, &b""[..]).unwrap();
    let stream = tar.into_inner().unwrap();
    let made = make_of_tar(&mut &stream[..], &Rules::default(), Path::new("/tmp")).unwrap();
    let image = bytes(made);
    let erofs = Erofs::open(&image[..]).unwrap();
    let mut inode = erofs.inode(erofs.root()).unwrap();
    for _ in 0..depth {
        let next = erofs.look_up(&inode, b"a").unwrap().unwrap();
        inode = erofs.inode(next).unwrap();
    }
    assert!(erofs.look_up(&inode, b"file").unwrap().is_some());
}
