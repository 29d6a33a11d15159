//! `mount --rootless`: a whole tree compared with its source and with the kernel's own reader;
//! without root; and images that are damaged inside.

use crate::mount::scratch::{Scratch, noise, text, tool};
use rustix::fs::{AtFlags, FileType, Mode, StatxFlags, XattrFlags};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Facts about a file that any user can see.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    size: u64,
    links: u64,
    device: u64,
    /// The first path with the same inode.
    same_as: PathBuf,
    contents: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Facts of all files in a tree. Sizes and links of directories are those of their file systems,
/// and left out unless `directories`.
fn facts(root: &Path, directories: bool) -> BTreeMap<PathBuf, Facts> {
    let mut all = BTreeMap::new();
    let mut first_of = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    let mut paths = vec![PathBuf::new()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(root.join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                waiting.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        let place = root.join(&path);
        let meta = std::fs::symlink_metadata(&place).unwrap();
        let kind = meta.file_type();
        let counts = directories || !kind.is_dir();
        let device = kind.is_char_device() || kind.is_block_device();
        let contents = if kind.is_file() {
            std::fs::read(&place).unwrap()
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&place).unwrap();
            target.into_os_string().into_encoded_bytes()
        } else {
            Vec::new()
        };
        let same_as = first_of.entry(meta.ino()).or_insert_with(|| path.clone());
        let facts = Facts {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            size: if counts { meta.len() } else { 0 },
            links: if counts { meta.nlink() } else { 0 },
            device: if device { meta.rdev() } else { 0 },
            same_as: same_as.clone(),
            contents,
            attributes: attributes(&place),
        };
        all.insert(path, facts);
    }
    all
}

fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut found = BTreeMap::new();
    for name in names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        found.insert(name.to_vec(), value[..len].to_vec());
    }
    found
}

const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// A tree with all features of erofs.
fn rich_tree(scratch: &Scratch) -> PathBuf {
    let tree = scratch.tree();
    let at = |name: &str| tree.join(name);
    std::fs::create_dir(at("many")).unwrap();
    for number in 0..3000 {
        std::fs::write(
            at(&format!("many/name of a file {number}")),
            number.to_string(),
        )
        .unwrap();
    }
    for (name, len) in [
        ("block", 4096),
        ("chunk", 65536),
        ("chunks", 200_001),
        ("odd", 65535),
    ] {
        std::fs::write(at(name), noise(len as u64, len)).unwrap();
    }
    // The same bytes once more: stored once.
    std::fs::copy(at("chunks"), at("copy")).unwrap();
    std::fs::write(at(&"n".repeat(255)), b"long").unwrap();
    std::fs::hard_link(at("chunks"), at("below/linked")).unwrap();
    std::os::unix::fs::symlink("x".repeat(3000), at("long link")).unwrap();
    let sparse = std::fs::File::create(at("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 1 << 20).unwrap();
    let node = |name: &str, kind, device| {
        let mode = Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, mode, device).unwrap();
    };
    node("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    node(
        "disk",
        FileType::BlockDevice,
        rustix::fs::makedev(259, 70_000),
    );
    node("fifo", FileType::Fifo, 0);
    node("socket", FileType::Socket, 0);
    tool(Command::new("chmod").arg("6751").arg(at("odd")));
    tool(Command::new("chmod").arg("1777").arg(at("below")));
    tool(
        Command::new("chown")
            .arg("-h")
            .arg("100000:70000")
            .args([at("odd"), at("long link")]),
    );
    tool(
        Command::new("touch")
            .args(["-h", "-d", "1969-01-02 03:04:05.5"])
            .arg(at("block")),
    );
    tool(
        Command::new("touch")
            .args(["-d", "2104-05-06 07:08:09.123456789"])
            .arg(at("copy")),
    );
    for (name, attribute, value) in [
        ("block", "user.short", &b"v"[..]),
        ("block", "user.long", &[7; 3000]),
        ("odd", "trusted.some", b"trusted"),
        ("below", "user.folder", b"of a folder"),
        ("chunk", "security.own", b"\x01\x00"),
        ("chunk", "user.empty", b""),
        // CAP_NET_BIND_SERVICE, permitted and effective (capabilities(7), version 2).
        ("chunks", "security.capability", CAPABILITY),
    ] {
        set_attribute(&at(name), attribute, value);
    }
    // Shared by as many as make it worth a place of its own.
    for number in 0..20 {
        set_attribute(
            &at(&format!("many/name of a file {number}")),
            "user.shared",
            b"by many",
        );
    }
    // An access list: user 7 may read.
    let list = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 7, 0, 0, 0, 4, 0, 4, 0, 255, 255,
        255, 255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    set_attribute(&at("copy"), "system.posix_acl_access", &list);
    tree
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("{name} of {}: {error}", path.display()));
}

fn assert_is_source(on: &Path, tree: &Path) {
    let (ours, source) = (facts(on, false), facts(tree, false));
    assert_eq!(
        ours.keys().collect::<Vec<_>>(),
        source.keys().collect::<Vec<_>>()
    );
    for (path, source) in &source {
        assert_eq!(ours[path], *source, "{} of the source", path.display());
    }
}

/// Images of other tools have features that ours lack: attributes that inodes share, tails behind
/// inodes.
#[test]
fn a_whole_tree_in_an_image_of_mkfs_erofs_is_that_of_its_source() {
    let scratch = Scratch::new();
    let tree = rich_tree(&scratch);
    // It takes no such name.
    std::fs::remove_file(tree.join("n".repeat(255))).unwrap();
    let image = scratch.make("erofs", &tree);
    let on = scratch.path("on");
    scratch.ok(&["mount", "--rootless", text(&image), text(&on)]);
    assert_is_source(&on, &tree);
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

#[test]
fn a_whole_tree_is_that_of_its_source_and_of_the_kernels_reader() {
    let scratch = Scratch::new();
    let tree = rich_tree(&scratch);
    let (image, on, by_kernel) = (
        scratch.image("packed"),
        scratch.path("on"),
        scratch.path("kernel"),
    );
    std::fs::create_dir(&by_kernel).unwrap();
    scratch.ok(&["pack", text(&tree), "-o", text(&image)]);
    scratch.ok(&["mount", "--rootless", text(&image), text(&on)]);
    scratch.ok(&["mount", "--trust", text(&image), text(&by_kernel)]);
    let ours = facts(&on, true);
    let kernels = facts(&by_kernel, true);
    assert_eq!(
        ours.keys().collect::<Vec<_>>(),
        kernels.keys().collect::<Vec<_>>()
    );
    for (path, ours) in &ours {
        // Two file systems have two device numbers and inode numbers; all else is the same.
        assert_eq!(*ours, kernels[path], "{} by the kernel", path.display());
    }
    assert_is_source(&on, &tree);
    let state = rustix::fs::statvfs(&on).unwrap();
    assert_eq!(
        (state.f_namemax, state.f_bavail, state.f_bsize),
        (255, 0, 4096)
    );
    scratch.ok(&["umount", text(&on)]);
    scratch.ok(&["umount", text(&by_kernel)]);
    scratch.assert_nothing_left();
}

#[test]
fn names_that_are_not_there_and_writes_are_refused() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let (image, on) = (scratch.image("packed"), scratch.path("on"));
    scratch.ok(&["pack", text(&tree), "-o", text(&image)]);
    scratch.ok(&["mount", "--rootless", text(&image), text(&on)]);
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    for _ in 0..2 {
        let missing = std::fs::metadata(on.join("below/file 41")).map(drop);
        assert_eq!(errno(missing), libc::ENOENT);
    }
    assert_eq!(
        errno(std::fs::metadata(on.join("large/x")).map(drop)),
        libc::ENOTDIR
    );
    assert_eq!(errno(std::fs::write(on.join("new"), b"x")), libc::EROFS);
    assert_eq!(errno(std::fs::write(on.join("large"), b"x")), libc::EROFS);
    assert_eq!(errno(std::fs::remove_file(on.join("large"))), libc::EROFS);
    let none = rustix::fs::lgetxattr(on.join("large"), "user.none", &mut [0; 9][..]);
    assert_eq!(none, Err(rustix::io::Errno::NODATA));
    // Files that have no inode number of their own in the image have none here.
    let root = rustix::fs::statx(rustix::fs::CWD, &on, AtFlags::empty(), StatxFlags::INO).unwrap();
    assert_eq!(root.stx_ino, 1);
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

#[test]
fn other_file_systems_are_refused_with_what_to_do() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let on = scratch.path("on");
    let squashfs = scratch.make("squashfs", &tree);
    let mount = |image: &Path| ["mount", "--rootless", text(image), text(&on)].map(str::to_owned);
    let refused = |image: &Path, words| {
        let arguments = mount(image);
        scratch.refused(&arguments.each_ref().map(String::as_str), words);
    };
    refused(&squashfs, "only erofs is read");
    let plain = scratch.image("plain");
    std::fs::write(&plain, noise(5, 100_000)).unwrap();
    refused(&plain, "no file system");
    let compressed = scratch.image("compressed");
    tool(
        Command::new("mkfs.erofs")
            .args(["-zlz4hc", text(&compressed)])
            .arg(&tree),
    );
    refused(&compressed, "features that are not read");
    let arguments = [
        "mount",
        "--rootless",
        "--file-only",
        text(&plain),
        text(&on),
    ];
    let output = scratch.run(&arguments);
    assert_eq!(output.status.code(), Some(2));
    scratch.assert_nothing_left();
}

/// Every reader of the tree ends, and the server stays, whatever the image holds.
#[test]
fn damage_inside_gives_errors_and_nothing_worse() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let erofs = scratch.make("erofs", &tree);
    let whole = std::fs::read(&erofs).unwrap();
    let on = scratch.path("on");
    let mut failed = 0;
    for seed in 0..12 {
        let mut image = whole.clone();
        // Metadata lies at the image's beginning; the superblock's magic number stays.
        let places = noise(seed, 400);
        for place in places.as_chunks::<4>().0 {
            let at = u32::from_le_bytes(*place) as usize;
            image[1028 + at % 40_000] ^= place[3] | 1;
        }
        let damaged = scratch.image("damaged");
        std::fs::write(&damaged, &image).unwrap();
        let mounted = scratch.run(&["mount", "--rootless", text(&damaged), text(&on)]);
        if !mounted.status.success() {
            assert_eq!(mounted.status.code(), Some(2), "seed {seed}");
            continue;
        }
        let script = "find \"$0\" -ls; find \"$0\" -type f -exec cat {} +; true";
        let mut reader = Command::new("timeout");
        let reader = reader
            .args(["30", "sh", "-c", script])
            .arg(&on)
            .output()
            .unwrap();
        assert_eq!(reader.status.code(), Some(0), "seed {seed}: a reader hangs");
        failed += usize::from(!reader.stderr.is_empty());
        scratch.ok(&["umount", text(&on)]);
        scratch.assert_nothing_left();
    }
    assert!(failed > 0, "no damage was seen");
}

/// In a mount namespace of its own, where every user may open FUSE's device.
#[test]
fn without_root_a_tree_is_mounted_read_and_unmounted() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    tool(Command::new("chmod").arg("0600").arg(tree.join("large")));
    let image = scratch.image("packed");
    scratch.ok(&["pack", text(&tree), "-o", text(&image)]);
    let program = scratch.path("sidecore");
    tool(
        Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_sidecore"))
            .arg(&program),
    );
    for (mode, path) in [("755", &program), ("777", &scratch.path("on"))] {
        tool(Command::new("chmod").arg(mode).arg(path));
    }
    tool(Command::new("chmod").arg("755").arg(scratch.dir.path()));
    let script = r#"
        set -eu
        cd "$1"
        mkdir device user
        mount -t tmpfs none device
        mknod -m 666 device/fuse c 10 229
        mount --bind device/fuse /dev/fuse
        chown 65534 user
        cat > list <<'EOF'
            cd "$1"
            facts='%p %#m %U %G %s %T@ %n\n'
            find . -type f -printf "$facts" -o -type l -printf '%p %l\n' | sort
EOF
        cat > as-user <<'EOF'
            set -eu
            export SIDECORE_STATE_DIR=$PWD/user
            ./sidecore block mount --rootless "$1" on
            sh ./list on > user/ours
            (cd on && find . -type f -exec sha256sum {} + | sort) > user/sums
            exec 3< on/large
            if ./sidecore block umount on 2> user/said; then echo 'busy, and unmounted'; exit 1; fi
            grep -q 'in use' user/said
            head -c 100 <&3 | wc -c | grep -q 100
            exec 3<&-
            ./sidecore block umount on
            if mountpoint -q on; then echo 'still mounted'; exit 1; fi
            test -z "$(ls user | grep -E '^[0-9]+$')"
EOF
        setpriv --reuid=65534 --regid=65534 --clear-groups sh as-user "$2"
        sh ./list tree | diff - user/ours
        (cd tree && find . -type f -exec sha256sum {} + | sort) | diff - user/sums
    "#;
    let output = Command::new("unshare")
        .args(["--mount", "timeout", "100", "sh", "-c", script, "sh"])
        .args([text(scratch.dir.path()), text(&image)])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}
