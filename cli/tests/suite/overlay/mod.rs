//! `--overlay`, written by other authors' programs (qemu-io, nbdcopy, mkfs and the kernel), and the
//! commands on it: clone, diff, commit, export.
//!
//! Must stay true: a tool that is missing fails the test and says to run scripts/setup; nothing is
//! left running or mounted.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // A failure here is a failed test.

mod place;
mod sealed;
use crate::serving;
mod thin;

use place::{Place, ok, run};
use std::ops::Deref;
use std::path::Path;

const MIB: usize = 1 << 20;
const SIZE: usize = 5 * MIB + 512;

struct Scratch {
    place: Place,
    /// The contents that the device should have.
    contents: Vec<u8>,
}

impl Scratch {
    fn new() -> Self {
        let place = Place::new();
        let mut contents: Vec<u8> = (0..SIZE).map(|at| (at / 97 % 251) as u8 + 1).collect();
        contents[MIB..2 * MIB].fill(0);
        std::fs::write(place.path("disk.raw"), &contents).unwrap();
        place.block(&["pack", "disk.raw", "-o", "disk.img"]);
        Self { place, contents }
    }

    fn assert_served(&self) {
        let copy = self.path("copy");
        ok("nbdcopy", &[&self.uri(), copy.to_str().unwrap()]);
        assert_same(&copy, &self.contents);
    }
}

impl Deref for Scratch {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

fn assert_same(copy: &Path, contents: &[u8]) {
    let got = std::fs::read(copy).unwrap();
    assert_eq!(got.len(), contents.len());
    let differs = got.iter().zip(contents).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{} differs there", copy.display());
    std::fs::remove_file(copy).unwrap();
}

#[test]
fn what_qemu_writes_is_there_after_a_kill_and_the_image_is_as_before() {
    let mut scratch = Scratch::new();
    let image = std::fs::read(scratch.path("disk.img")).unwrap();
    let serving = scratch.serve("one.ovl");
    let info = ok("nbdinfo", &["--json", &scratch.uri()]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let export = &info["exports"][0];
    for can in [
        "can_flush",
        "can_fua",
        "can_trim",
        "can_zero",
        "can_multi_conn",
    ] {
        assert_eq!(export[can], true, "{can}");
    }
    assert_eq!(export["is_read_only"], false);
    scratch.io(&[
        "write -P 0xab 4k 8k",
        "write -P 0xcd 1000 100",
        "write -f -P 0x11 3M 1M",
        "write -z 2M 64k",
        "discard 2500k 100k",
        "write -P 0x22 5242880 512",
        "flush",
        "read -P 0xcd 1000 100",
        "read -P 0 2M 64k",
    ]);
    let contents = &mut scratch.contents;
    contents[4096..12288].fill(0xab);
    contents[1000..1100].fill(0xcd);
    contents[3 * MIB..4 * MIB].fill(0x11);
    contents[2 * MIB..2 * MIB + 65536].fill(0);
    contents[2500 * 1024..2600 * 1024].fill(0);
    contents[5_242_880..].fill(0x22);
    scratch.assert_served();
    let said = scratch.refused_to_serve("one.ovl");
    assert!(
        said.contains("another process has this overlay open"),
        "{said}"
    );
    let info = scratch.json(&["info", "one.ovl", "--json"]);
    assert_eq!(
        (&info["format"], &info["in_use"]),
        (&"overlay".into(), &true.into())
    );
    assert_eq!(serving.end("-KILL"), None);
    let serving = scratch.serve("one.ovl");
    scratch.assert_served();
    // All of it, by nbdcopy over four connections.
    let new: Vec<u8> = scratch.contents.iter().map(|byte| byte ^ 0x5a).collect();
    std::fs::write(scratch.path("new"), &new).unwrap();
    let from = scratch.path("new").display().to_string();
    ok(
        "nbdcopy",
        &["--flush", "--connections=4", &from, &scratch.uri()],
    );
    scratch.contents = new;
    scratch.assert_served();
    assert_eq!(serving.end("-TERM"), Some(0));
    assert!(
        std::fs::read(scratch.path("disk.img")).unwrap() == image,
        "the image was written"
    );
}

#[test]
fn clone_diff_commit_and_export() {
    let mut scratch = Scratch::new();
    let clone = scratch.json(&["clone", "disk.img", "one.ovl", "--grain", "16KiB", "--json"]);
    assert_eq!(clone["kind"], "new");
    let serving = scratch.serve("one.ovl");
    scratch.io(&["write -P 0x33 64k 8k", "write -z 4M 128k"]);
    assert_eq!(serving.end("-INT"), Some(0));
    scratch.contents[65536..73728].fill(0x33);
    scratch.contents[4 * MIB..4 * MIB + 131_072].fill(0);
    let below = scratch.contents.clone();
    let clone = scratch.json(&["clone", "one.ovl", "two.ovl", "--layer", "--json"]);
    assert_eq!(clone["kind"], "layer");
    let said = scratch.refused_to_serve("one.ovl");
    assert!(said.contains("takes no more writes"), "{said}");
    let serving = scratch.serve("two.ovl");
    scratch.io(&["write -P 0x44 68k 4k", "read -P 0x33 64k 4k"]);
    scratch.contents[69632..73728].fill(0x44);
    scratch.assert_served();
    assert_eq!(serving.end("-INT"), Some(0));
    assert_eq!(
        scratch.json(&["info", "two.ovl", "--json"])["parent"],
        "one.ovl"
    );

    // Zeros over what was zeros, and grains of 16 KiB of which 8 KiB changed: contents count.
    let changed = scratch.json(&["diff", "disk.img", "two.ovl", "--json"]);
    let ranges = serde_json::json!([
        {"offset_bytes": 65536, "len_bytes": 8192},
        {"offset_bytes": 4 * MIB, "len_bytes": 131_072},
    ]);
    assert_eq!(changed["ranges"], ranges);
    let args = ["diff", "one.ovl", "two.ovl", "--base", "disk.img"];
    assert_eq!(scratch.block(&args), "69632 4096\n");
    assert!(scratch.refused(&args[..3]).contains("--base"));

    let args = [
        "commit", "disk.img", "one.ovl", "two.ovl", "-o", "new.img", "--tree", "--json",
    ];
    let committed = scratch.json(&args);
    let (frames, copied) = (&committed["frames"], &committed["copied_frames"]);
    assert_eq!((frames, copied), (&81.into(), &(81 - 1 - 2).into()));
    scratch.block(&["verify", "new.img"]);
    let root = committed["root_hash"].as_str().unwrap();
    scratch.block(&["unpack", "new.img", "-o", "out", "--root-hash", root]);
    assert_same(&scratch.path("out"), &scratch.contents);
    let said = scratch.refused(&["commit", "disk.img", "two.ovl", "one.ovl", "-o", "x.img"]);
    assert!(said.contains("does not stand on"), "{said}");
    // A frozen layer by itself, and an image whose frames cannot be copied.
    scratch.block(&["commit", "disk.img", "one.ovl", "-o", "old.img"]);
    scratch.block(&["unpack", "old.img", "-o", "out"]);
    assert_same(&scratch.path("out"), &below);
    scratch.block(&["pack", "disk.raw", "-o", "disk.cloop", "--format", "cloop"]);
    scratch.block(&["clone", "disk.cloop", "cloop.ovl"]);
    scratch.block(&["commit", "disk.cloop", "cloop.ovl", "-o", "from-cloop.img"]);
    let raw = std::fs::read(scratch.path("disk.raw")).unwrap();
    scratch.block(&["unpack", "from-cloop.img", "-o", "out"]);
    assert_eq!(
        std::fs::read(scratch.path("out")).unwrap()[..raw.len()],
        raw
    );
    std::fs::remove_file(scratch.path("out")).unwrap();

    let args = ["export", "disk.img", "--overlay", "two.ovl", "-o"];
    scratch.block(&[&args[..], &["out"]].concat());
    assert_same(&scratch.path("out"), &scratch.contents);
    scratch.block(&[&args[..], &["out.qcow2", "--qcow2"]].concat());
    let qcow2 = scratch.path("out.qcow2").display().to_string();
    ok("qemu-img", &["check", "-f", "qcow2", &qcow2]);
    std::fs::write(scratch.path("expected"), &scratch.contents).unwrap();
    let expected = scratch.path("expected").display().to_string();
    ok(
        "qemu-img",
        &["compare", "-f", "qcow2", "-F", "raw", &qcow2, &expected],
    );

    let said = scratch.refused(&["export", "disk.raw", "--overlay", "two.ovl", "-o", "x"]);
    assert!(said.contains("another image"), "{said}");
}

/// A chain becomes one overlay of its image, and of another one; the disk grows on the way.
#[test]
fn a_disk_is_grown_flattened_and_moved_to_another_image() {
    let mut scratch = Scratch::new();
    let serving = scratch.serve("one.ovl");
    scratch.io(&["write -P 0x33 64k 8k", "write -z 4M 128k"]);
    assert_eq!(serving.end("-INT"), Some(0));
    scratch.contents[65536..73728].fill(0x33);
    scratch.contents[4 * MIB..4 * MIB + 131_072].fill(0);
    let grow = ["clone", "one.ovl", "two.ovl", "--json", "--size"];
    let said = scratch.refused(&[&grow[..], &["5MiB"]].concat());
    assert!(said.contains("or larger"), "{said}");
    let grown = scratch.json(&[&grow[..], &["8MiB"]].concat());
    assert_eq!(grown["kind"], "layer");
    scratch.contents.resize(8 * MIB, 0);
    let serving = scratch.serve("two.ovl");
    scratch.assert_served();
    // Across the former end, and far behind it.
    scratch.io(&["write -P 0x44 5241856 2048", "write -P 0x55 7M 64k"]);
    scratch.contents[5_241_856..5_243_904].fill(0x44);
    scratch.contents[7 * MIB..7 * MIB + 65536].fill(0x55);
    scratch.assert_served();
    assert_eq!(serving.end("-INT"), Some(0));

    let rebase = ["rebase", "disk.img", "two.ovl"];
    let flat = scratch.json(&[&rebase[..], &["flat.ovl", "--json"]].concat());
    assert_eq!(flat["layers"], 2);
    assert_eq!(flat["raw_bytes"], 8 * MIB);
    // Two blocks lie across the former end.
    assert_eq!(flat["changed_bytes"], 8192 + 131_072 + 8192 + 65536);
    let info = scratch.json(&["info", "flat.ovl", "--json"]);
    assert!(info["parent"].is_null(), "{info}");
    let serving = scratch.serve("flat.ovl");
    scratch.assert_served();
    assert_eq!(serving.end("-INT"), Some(0));

    // An image that has the same only in part.
    let mut other = scratch.contents[..6 * MIB].to_vec();
    other[3 * MIB..3 * MIB + 5000].fill(0x77);
    other[MIB..MIB + 100_000].fill(0x78);
    std::fs::write(scratch.path("other.raw"), &other).unwrap();
    scratch.block(&["pack", "other.raw", "-o", "other.img"]);
    let onto = ["moved.ovl", "--onto", "other.img", "--json"];
    let moved = scratch.json(&[&rebase[..], &onto].concat());
    // 5000 and 100,000 bytes touch 2 and 25 blocks; the third place is behind the image.
    assert_eq!(moved["changed_bytes"], (2 + 25) * 4096 + 65536);
    let export = ["export", "--overlay", "moved.ovl", "-o", "out"];
    scratch.block(&[&export[..], &["other.img"]].concat());
    assert_same(&scratch.path("out"), &scratch.contents);
    let said = scratch.refused(&[&export[..], &["disk.img"]].concat());
    assert!(said.contains("another image"), "{said}");

    std::fs::write(scratch.path("large.raw"), vec![1; 9 * MIB]).unwrap();
    scratch.block(&["pack", "large.raw", "-o", "large.img"]);
    let onto = ["x.ovl", "--onto", "large.img"];
    let said = scratch.refused(&[&rebase[..], &onto].concat());
    assert!(said.contains("clone --size"), "{said}");
    let said = scratch.refused(&[&rebase[..], &["flat.ovl"]].concat());
    assert!(said.contains("exists"), "{said}");
    assert!(!scratch.path("x.ovl").exists());
}

/// Two images without checksums whose ends are the same, as of a disk and its next version.
#[test]
fn a_disk_is_moved_to_an_image_that_looks_like_its_own() {
    let mut scratch = Scratch::new();
    std::fs::write(scratch.path("disk.img"), &scratch.contents).unwrap();
    let mut other = scratch.contents.clone();
    other[3 * MIB..3 * MIB + 5000].fill(0x77);
    std::fs::write(scratch.path("other.raw"), &other).unwrap();
    let serving = scratch.serve_with("one.ovl", &["--raw"]);
    scratch.io(&["write -P 0x33 64k 8k"]);
    assert_eq!(serving.end("-INT"), Some(0));
    scratch.contents[65536..73728].fill(0x33);
    let rebase = ["rebase", "--raw", "disk.img", "one.ovl", "moved.ovl"];
    let onto = ["--onto", "other.raw", "--json"];
    let moved = scratch.json(&[&rebase[..], &onto].concat());
    // 5000 bytes touch two blocks.
    assert_eq!(moved["changed_bytes"], 8192 + 2 * 4096);
    let export = ["export", "--raw", "--overlay", "moved.ovl", "-o", "out"];
    scratch.block(&[&export[..], &["other.raw"]].concat());
    assert_same(&scratch.path("out"), &scratch.contents);
}

#[test]
fn an_overlay_is_never_taken_for_a_disk() {
    let scratch = Scratch::new();
    scratch.block(&["clone", "disk.img", "one.ovl"]);
    std::fs::create_dir(scratch.path("on")).unwrap();
    let nbd = "unix:nbd.sock";
    for args in [
        &["verify", "one.ovl"][..],
        &["unpack", "one.ovl", "-o", "out"],
        &["export", "one.ovl", "-o", "out"],
        &["export", "one.ovl", "--overlay", "one.ovl", "-o", "out"],
        &["serve", "one.ovl", "--nbd", nbd],
        &["serve", "one.ovl", "--nbd", nbd, "--overlay", "two.ovl"],
        &["attach", "one.ovl"],
        &["mount", "one.ovl", "on"],
        &["ls", "one.ovl"],
        &["cat", "one.ovl", "x"],
        &["find", "one.ovl"],
        &["extract", "one.ovl", "-C", "out"],
        &["index", "one.ovl"],
        &["commit", "one.ovl", "one.ovl", "-o", "out"],
        &["clone", "one.ovl", "two.ovl", "--base", "one.ovl"],
        &["diff", "one.ovl", "one.ovl", "--base", "one.ovl"],
        &["rebase", "one.ovl", "one.ovl", "two.ovl"],
        &["pack", "one.ovl", "-o", "out"],
        &["pack", "--decompress", "one.ovl", "-o", "out"],
    ] {
        let said = scratch.refused(args);
        let is_clear = said.contains("an overlay") && said.contains("`sidecore block commit");
        assert!(is_clear, "{args:?}: {said}");
        let is_made = ["out", "two.ovl"].map(|name| scratch.path(name).exists());
        assert_eq!(is_made, [false, false], "{args:?}");
    }
    // Its bytes are there for those that ask for them.
    let bytes = std::fs::read(scratch.path("one.ovl")).unwrap();
    scratch.block(&["pack", "--raw", "one.ovl", "-o", "kept.img"]);
    scratch.block(&["unpack", "kept.img", "-o", "out"]);
    assert_same(&scratch.path("out"), &bytes);
    scratch.block(&["export", "--raw", "one.ovl", "-o", "out"]);
    assert_same(&scratch.path("out"), &bytes);
}

#[test]
fn a_clone_by_shared_blocks_takes_writes_as_its_original_does() {
    if !rustix_root() {
        eprintln!("skipped: a file system that shares blocks needs root");
        return;
    }
    let mut scratch = Scratch::new();
    let place = scratch.path("xfs").to_str().unwrap().to_owned();
    std::fs::create_dir(&place).unwrap();
    let disk = scratch.path("xfs.disk").to_str().unwrap().to_owned();
    ok("truncate", &["-s", "320M", &disk]);
    ok("mkfs.xfs", &["-q", &disk]);
    ok("mount", &["-o", "loop", &disk, &place]);
    let _mounted = Unmount(place);
    for folder in ["xfs/a", "xfs/b"] {
        std::fs::create_dir(scratch.path(folder)).unwrap();
    }
    let serving = scratch.serve("xfs/a/one.ovl");
    scratch.io(&["write -P 0x33 64k 8k"]);
    assert_eq!(serving.end("-INT"), Some(0));
    // One layer below, which both name from where they lie.
    scratch.block(&["clone", "--layer", "xfs/a/one.ovl", "xfs/a/two.ovl"]);
    let serving = scratch.serve("xfs/a/two.ovl");
    scratch.io(&["write -P 0x44 128k 8k"]);
    assert_eq!(serving.end("-INT"), Some(0));
    let cloned = scratch.json(&["clone", "xfs/a/two.ovl", "xfs/b/three.ovl", "--json"]);
    assert_eq!(cloned["kind"], "reflink");
    let serving = scratch.serve("xfs/a/two.ovl");
    scratch.io(&["write -P 0x55 128k 4k"]);
    assert_eq!(serving.end("-INT"), Some(0));
    let _serving = scratch.serve("xfs/b/three.ovl");
    scratch.io(&["write -P 0x66 132k 4k"]);
    scratch.contents[65536..73728].fill(0x33);
    scratch.contents[131_072..135_168].fill(0x44);
    scratch.contents[135_168..139_264].fill(0x66);
    scratch.assert_served();
}

#[test]
fn a_full_disk_is_said_to_the_client_and_lasts_as_long_as_it_is_full() {
    if !rustix_root() {
        eprintln!("skipped: a small file system to fill needs root");
        return;
    }
    let mut scratch = Scratch::new();
    let full = scratch.path("full");
    std::fs::create_dir(&full).unwrap();
    let place = full.to_str().unwrap().to_owned();
    ok("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs", &place]);
    let _mounted = Unmount(place.clone());
    let nbd = ["--nbd", "unix:nbd.sock"];
    let said = scratch.refused(
        &[
            &["serve", "disk.img", "--overlay", "full/one.ovl"],
            &nbd[..],
        ]
        .concat(),
    );
    assert!(said.contains("which takes 9 MiB"), "{said}");
    assert!(!full.join("one.ovl").exists(), "it holds nothing");
    ok("mount", &["-o", "remount,size=10m", &place]);
    let serving = scratch.serve("full/one.ovl");
    scratch.io(&["write -P 0x55 0 512k", "flush"]);
    scratch.contents[..MIB / 2].fill(0x55);
    let output = scratch.qemu_io(&["write -P 0x66 1M 4M", "flush"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = printed + &String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("No space left on device"), "{said}");
    scratch.io(&["read -P 0x55 0 512k", "flush"]);
    ok("mount", &["-o", "remount,size=40m", &place]);
    scratch.io(&["write -P 0x66 1M 4M", "flush"]);
    scratch.contents[MIB..5 * MIB].fill(0x66);
    scratch.assert_served();
    assert_eq!(serving.end("-KILL"), None);
    let serving = scratch.serve("full/one.ovl");
    scratch.assert_served();
    assert_eq!(serving.end("-TERM"), Some(0));
}

struct Unmount(String);

impl Drop for Unmount {
    fn drop(&mut self) {
        run("umount", &[&self.0]);
    }
}

/// Undoes a mount or a device also when the test fails.
struct Undo<'s>(&'s Scratch, [String; 2]);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let [word, place] = &self.1;
        let _ = self.0.command(&[word, "--force", place]).output();
    }
}

fn rustix_root() -> bool {
    ok("id", &["-u"]).trim() == "0"
}

#[test]
fn a_device_takes_writes() {
    if !rustix_root() || !Path::new("/dev/loop-control").exists() {
        eprintln!("skipped: a loop device needs root and the driver");
        return;
    }
    let mut scratch = Scratch::new();
    let attach = ["attach", "disk.img", "--overlay", "one.ovl"];
    let device = scratch.block(&attach).trim().to_owned();
    let undo = Undo(&scratch, ["detach".to_owned(), device.clone()]);
    let noise: Vec<u8> = (0..MIB).map(|at| (at * 7 / 3) as u8).collect();
    std::fs::write(scratch.path("noise"), &noise).unwrap();
    let (from, to) = (
        format!("if={}", scratch.path("noise").display()),
        format!("of={device}"),
    );
    ok(
        "dd",
        &[
            &from,
            &to,
            "bs=64k",
            "seek=8",
            "conv=fsync,notrunc",
            "oflag=direct",
        ],
    );
    ok(
        "dd",
        &[
            &from,
            &to,
            "bs=512",
            "seek=7001",
            "count=9",
            "conv=fsync,notrunc",
        ],
    );
    ok(
        "blkdiscard",
        &["--offset", "2097152", "--length", "65536", &device],
    );
    scratch.block(&["detach", &device]);
    drop(undo);
    let contents = &mut scratch.contents;
    contents[8 * 65536..8 * 65536 + MIB].copy_from_slice(&noise);
    contents[7001 * 512..7010 * 512].copy_from_slice(&noise[..9 * 512]);
    contents[2 * MIB..2 * MIB + 65536].fill(0);
    let device = scratch.block(&attach).trim().to_owned();
    let undo = Undo(&scratch, ["detach".to_owned(), device.clone()]);
    let copy = scratch.path("copy").display().to_string();
    ok(
        "dd",
        &[&format!("if={device}"), &format!("of={copy}"), "bs=64k"],
    );
    assert_same(&scratch.path("copy"), &scratch.contents);
    drop(undo);
}

#[test]
fn a_file_system_inside_is_written_to() {
    if !rustix_root() || !Path::new("/dev/loop-control").exists() {
        eprintln!("skipped: mounting needs root and the loop driver");
        return;
    }
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("old"), vec![7; 300_000]).unwrap();
    scratch.block(&["pack", "tree", "-o", "tree.img", "--inner", "ext4"]);
    scratch.block(&["pack", "tree", "-o", "plain.img"]);
    let on = scratch.path("on");
    std::fs::create_dir(&on).unwrap();
    let said = scratch.refused(&["mount", "plain.img", "on", "--overlay", "no.ovl"]);
    assert!(
        said.contains("erofs is inside, which cannot be written to"),
        "{said}"
    );
    let mount = [
        "mount",
        "tree.img",
        "on",
        "--fs",
        "ext4",
        "--overlay",
        "tree.ovl",
    ];
    for round in 0..3 {
        scratch.block(&mount);
        let undo = Undo(&scratch, ["umount".to_owned(), on.display().to_string()]);
        for earlier in 0..round {
            let text = std::fs::read_to_string(on.join(format!("new{earlier}"))).unwrap();
            assert_eq!(text, format!("round {earlier}"));
        }
        std::fs::write(on.join(format!("new{round}")), format!("round {round}")).unwrap();
        assert_eq!(std::fs::read(on.join("old")).unwrap(), vec![7; 300_000]);
        scratch.block(&["umount", "on"]);
        drop(undo);
    }
    scratch.block(&["commit", "tree.img", "tree.ovl", "-o", "next.img"]);
    scratch.block(&["verify", "next.img"]);
    scratch.block(&["unpack", "next.img", "-o", "next.raw"]);
    let raw = scratch.path("next.raw").display().to_string();
    ok("e2fsck", &["-fn", &raw]);
    let text = ok("debugfs", &["-R", "cat /new2", &raw]);
    assert_eq!(text, "round 2");
}
