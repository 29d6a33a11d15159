//! Directories that are packed: the same bytes again, long names, holes, no other program.

use super::tools::*;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

pub(super) fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("a/deep/er")).unwrap();
    fs::create_dir(tree.join("many")).unwrap();
    for i in 0..1500 {
        let name = format!("many/a rather long name of a file, the number of which is {i}");
        fs::write(tree.join(name), format!("contents of {i}")).unwrap();
    }
    let file = tree.join("a/file");
    fs::write(&file, contents(300_000)).unwrap();
    fs::write(tree.join("a/empty"), b"").unwrap();
    fs::hard_link(&file, tree.join("a/deep/other name")).unwrap();
    symlink("../nowhere", tree.join("a/soft")).unwrap();
    fs::File::create(tree.join("a/hole"))
        .unwrap()
        .set_len(3 << 20)
        .unwrap();
    std::os::unix::fs::chown(tree.join("a/empty"), Some(1234), Some(5678)).unwrap();
    fs::set_permissions(tree.join("a/empty"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(tree.join("a/deep/er"), fs::Permissions::from_mode(0o1750)).unwrap();
    ok(tool("touch").args(["-d", "2001-02-03 04:05:06"]).arg(&file));
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&file, "user.note", b"kept", flags).unwrap();
}

/// Everything about a tree that `diff -r` does not compare; times in whole seconds, as squashfs
/// keeps them, and no sizes of directories, which differ between file systems.
pub(super) fn listing(root: &Path) -> Vec<String> {
    let mut find = tool("find");
    find.arg(root)
        .args(["-mindepth", "1", "-printf", r"%P|%y|%m|%U|%G|%T@|%n|%l\n"]);
    let listed = String::from_utf8(ok(&mut find).stdout).unwrap();
    let whole_seconds = |line: &str| {
        let mut fields: Vec<&str> = line.split('|').collect();
        fields[5] = fields[5].split('.').next().unwrap_or_default();
        fields.join("|")
    };
    let mut lines: Vec<String> = listed.lines().map(whole_seconds).collect();
    lines.sort();
    lines
}

#[test]
fn a_tree_is_packed_to_the_same_bytes_again() {
    let place = Place::new();
    let tree = place.path("tree");
    fs::create_dir_all(tree.join("deep")).unwrap();
    for name in ["one", "deep/two"] {
        fs::write(tree.join(name), contents(100_000)).unwrap();
    }
    for inner in ["erofs", "squashfs", "ext4"] {
        let images = ["first", "second"].map(|name| {
            let image = place.path(name);
            let mut command = sidecore(&["block", "pack", "--inner", inner]);
            command.env("SOURCE_DATE_EPOCH", "1700000000");
            ok(command.arg(&tree).arg("-o").arg(&image));
            // A program that takes the time from the clock takes another one now.
            std::thread::sleep(std::time::Duration::from_millis(1100));
            fs::read(&image).unwrap()
        });
        assert!(images[0] == images[1], "{inner}");
    }
    let mut command = sidecore(&["block", "pack"]);
    command
        .env("SOURCE_DATE_EPOCH", "yesterday")
        .arg(&tree)
        .arg("-o")
        .arg(place.path("third"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("SOURCE_DATE_EPOCH"));
}

#[test]
fn a_tree_with_a_name_of_255_bytes_is_packed() {
    let place = Place::new();
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("n".repeat(255)), b"x").unwrap();
    let image = place.path("image");
    let report = json(&pack(&tree, &image, &["--json"]));
    assert_eq!(report["inner"], "erofs");
}

/// Nothing but this program makes the file system of a directory, and `fsck.erofs` has no
/// objection.
#[test]
fn a_tree_is_packed_without_other_programs_and_passes_fsck() {
    let place = Place::new();
    let (tree, image, raw) = (place.path("tree"), place.path("image"), place.path("raw"));
    make_tree(&tree);
    let mut command = sidecore(&["block", "pack"]);
    command.env("PATH", place.path("nowhere"));
    ok(command.arg(&tree).arg("-o").arg(&image));
    ok(&mut unpack(&image, &raw));
    match std::process::Command::new("fsck.erofs").arg(&raw).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
        }
        Err(error) => eprintln!("skipped: fsck.erofs: {error}"),
    }
}

/// Holes are not read, and take no room in the scratch file either.
#[test]
fn a_tree_with_holes_of_terabytes_is_packed() {
    let place = Place::new();
    let (tree, image) = (place.path("tree"), place.path("image"));
    fs::create_dir(&tree).unwrap();
    let size = (1 << 40) + 12_345;
    let file = fs::File::create(tree.join("disk")).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(&contents(300_000), 1 << 39).unwrap();
    let file = fs::File::create(tree.join("hole")).unwrap();
    file.set_len(size).unwrap();
    let report = json(&pack(&tree, &image, &["--json"]));
    let stored = report["stored_bytes"].as_u64().unwrap();
    assert!(stored < 2 << 20, "{stored}");
}

/// Files of a trace are found in its order, and lie in front in the next image.
#[test]
fn files_of_a_trace_are_packed_first() {
    let place = Place::new();
    let (tree, image, trace) = (place.path("tree"), place.path("image"), place.path("trace"));
    fs::create_dir_all(tree.join("b")).unwrap();
    for (name, number) in ["a", "b/c", "d", "e"].into_iter().zip(0_u8..) {
        let bytes = contents(1 << 20).into_iter();
        let bytes: Vec<u8> = bytes.map(|byte| byte.wrapping_add(number)).collect();
        fs::write(tree.join(name), bytes).unwrap();
    }
    pack(&tree, &image, &[]);
    // Records a reader; returns the end of the last part that it read.
    let read = |image: &Path| {
        let mut cat = sidecore(&["block", "cat", "--trace"]);
        ok(cat.arg(&trace).arg(image).args(["e", "b/c"]));
        let text = fs::read_to_string(&trace).unwrap();
        let ends = text.lines().skip(2).map(|line| {
            let (at, len) = line.split_once(' ').unwrap();
            at.parse::<u64>().unwrap() + len.parse::<u64>().unwrap()
        });
        ends.max().unwrap()
    };
    let find = |image: &Path, words: &[&str]| {
        let mut find = sidecore(&["block", "find", "--in-trace"]);
        find.arg(&trace).arg(image).args(words);
        find
    };
    assert!(read(&image) > 5 << 19, "they are at the end");
    let found = |words: &[&str]| String::from_utf8(ok(&mut find(&image, words)).stdout).unwrap();
    assert_eq!(found(&[]), "/e\n/b/c\n");
    assert_eq!(found(&["b"]), "/b/c\n");
    let listed = json(&ok(&mut find(&image, &["--json"])));
    assert_eq!(listed["entries"][0]["path"], "/e");
    let list = place.write("list", found(&["--print0"]).as_bytes());
    let again = place.path("again");
    pack(&tree, &again, &["--first", list.to_str().unwrap()]);
    // Two files of 1 MiB, and what lies in their frames.
    assert!(read(&again) < 5 << 19, "they are not in front");
    let copy = ok(sidecore(&["block", "cat"]).arg(&again).arg("a")).stdout;
    assert!(copy == fs::read(tree.join("a")).unwrap());
    // The places of files are looked up in an erofs.
    pack(&tree, &again, &["--inner", "squashfs"]);
    fails(&run(&mut find(&again, &[])), 2, "in an erofs");
}
