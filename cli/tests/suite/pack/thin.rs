//! Thin disks: terabytes of zeros take nearly no room, in any command.
//!
//! A disk that becomes full: one line, exit status 2, and no partial file under the final name.

use super::tools::*;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const TIB: u64 = 1 << 40;

/// A disk of 8 TiB with a little in it: its beginning, two places within, and its last bytes.
fn disk(place: &Place) -> PathBuf {
    let path = place.path("disk.raw");
    let file = File::create(&path).unwrap();
    file.set_len(8 * TIB).unwrap();
    for (bytes, at) in parts() {
        file.write_all_at(&bytes, at).unwrap();
    }
    path
}

fn parts() -> Vec<(Vec<u8>, u64)> {
    vec![
        (contents(300_000), 0),
        (contents(100_000), 3 * TIB + 12_345),
        (contents(70_000), 5 * TIB),
        (contents(5000), 8 * TIB - 5000),
    ]
}

/// The disk's contents are in `path`, which takes next to no room on the disk.
fn assert_is_disk(path: &Path) {
    let file = File::open(path).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.len(), 8 * TIB);
    assert!(metadata.blocks() * 512 < 8 << 20, "{}", metadata.blocks());
    for (wanted, at) in parts() {
        let mut found = vec![0; wanted.len()];
        file.read_exact_at(&mut found, at).unwrap();
        assert!(found == wanted, "byte {at}");
    }
}

#[test]
fn a_disk_of_eight_tebibytes_goes_round_in_an_image_of_kilobytes() {
    let place = Place::new();
    let raw = disk(&place);
    let (image, back) = (place.path("image"), place.path("back"));
    for options in [&[][..], &["--format", "lz4"], &["--tree"]] {
        let report = json(&pack(&raw, &image, &[options, &["--json"]].concat()));
        assert_eq!(report["raw_bytes"], 8 * TIB);
        let bytes = fs::metadata(&image).unwrap().len();
        assert!(bytes < 2 << 20, "{options:?}: {bytes} bytes");
        let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&image)));
        assert_eq!(
            (&info["thin"], &info["raw_bytes"]),
            (&true.into(), &(8 * TIB).into())
        );
        assert_eq!(info["frames"], (8 * TIB) >> 16);
        assert!(
            info["index_memory_bytes"].as_u64().unwrap() < 1 << 20,
            "{info}"
        );
        let verified = json(&ok(sidecore(&["block", "verify", "--json"]).arg(&image)));
        assert_eq!(verified["raw_bytes"], 8 * TIB);
        assert_eq!(verified["bad_frames_total"], 0);
        ok(&mut unpack(&image, &back));
        assert_is_disk(&back);
        fs::remove_file(&back).unwrap();
    }
    // A reader that requires a root hash gets the holes that were packed, or nothing.
    let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&image)));
    let root = info["root_hash"].as_str().unwrap().to_owned();
    ok(unpack(&image, &back).args(["--root-hash", &root]));
    assert_is_disk(&back);
}

#[test]
fn an_encrypted_thin_image_needs_its_key_and_gives_the_disk() {
    let place = Place::new();
    let raw = disk(&place);
    let (image, back) = (place.path("image"), place.path("back"));
    let word = place.write("word", b"a passphrase for tests\n");
    let word = word.to_str().unwrap();
    pack(&raw, &image, &["--encrypt", "--passphrase-file", word]);
    assert!(fs::metadata(&image).unwrap().len() < 2 << 20);
    assert!(!run(&mut unpack(&image, &back)).status.success());
    ok(unpack(&image, &back).args(["--passphrase-file", word]));
    assert_is_disk(&back);
}

#[test]
fn other_programs_refuse_a_thin_image_and_read_all_others() {
    let place = Place::new();
    let thin = disk(&place);
    for (format, program) in [("zstd", "zstd"), ("lz4", "lz4")] {
        let image = place.path(format);
        pack(&thin, &image, &["--format", format]);
        let refused = run(tool(program).args(["-d", "-c"]).arg(&image));
        assert!(!refused.status.success() && refused.stdout.is_empty());
    }
    // A disk with few holes keeps the format that every reader supports; `--thin` overrides that.
    let wanted = contents(3 << 20);
    let some = place.path("some.raw");
    let file = File::create(&some).unwrap();
    file.write_all_at(&wanted, 0).unwrap();
    file.set_len(20 << 20).unwrap();
    let image = place.path("some.img");
    for (options, is_thin) in [
        (&[][..], false),
        (&["--thin", "never"], false),
        (&["--thin", "always"], true),
    ] {
        pack(&some, &image, options);
        let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&image)));
        assert_eq!(info["thin"], is_thin);
        let read = run(tool("zstd").args(["-d", "-c"]).arg(&image));
        assert_eq!(read.status.success(), !is_thin);
        let back = place.path("back");
        ok(&mut unpack(&image, &back));
        assert!(fs::read(&back).unwrap()[..wanted.len()] == wanted);
        assert_eq!(fs::metadata(&back).unwrap().len(), 20 << 20);
    }
    for options in [["--format", "cloop"], ["--format", "raw"]] {
        let mut command = sidecore(&["block", "pack", "--thin", "always"]);
        let refused = run(command.arg(&some).arg("-o").arg(&image).args(options));
        fails(&refused, 2, "cannot write a thin image");
    }
    let mut cdc = sidecore(&["block", "pack", "--thin", "always", "--cdc"]);
    fails(
        &run(cdc.arg(&some).arg("-o").arg(&image)),
        2,
        "a thin image",
    );
}

#[test]
fn differences_of_thin_images_are_found_without_reading_the_holes() {
    let place = Place::new();
    let raw = disk(&place);
    let (one, two) = (place.path("one"), place.path("two"));
    pack(&raw, &one, &[]);
    let file = fs::OpenOptions::new().write(true).open(&raw).unwrap();
    file.write_all_at(b"a word", 6 * TIB).unwrap();
    pack(&raw, &two, &[]);
    let differs = ok(sidecore(&["block", "diff"]).args([&one, &two])).stdout;
    assert_eq!(
        String::from_utf8(differs).unwrap(),
        format!("{} 4096\n", 6 * TIB)
    );
}

/// A small file system in memory, unmounted on drop.
struct Small(PathBuf);

impl Small {
    fn new(place: &Place, size: &str) -> Self {
        assert!(is_root(), "needs root to mount a tmpfs");
        let at = place.path("small");
        fs::create_dir(&at).unwrap();
        let size = format!("size={size}");
        ok(tool("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&at));
        Self(at)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The directory holds the same files as before.
    fn holds(&self, names: &[&str], after: &Command) {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut found: Vec<_> = entries.map(|it| it.unwrap().file_name()).collect();
        found.sort();
        assert_eq!(found, names, "after {after:?}");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = tool("umount").arg(&self.0).status();
    }
}

fn fails_for_room(small: &Small, names: &[&str], command: &mut Command) {
    let output = run(command);
    fails(&output, 2, "No space left");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.trim().lines().count(), 1, "{command:?}: {errors}");
    assert!(errors.starts_with("sidecore:"), "{errors}");
    small.holds(names, command);
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out
}

#[test]
fn every_command_that_writes_leaves_nothing_on_a_full_disk() {
    let place = Place::new();
    let small = Small::new(&place, "1m");
    let raw = place.write("raw", &noise(6 << 20));
    let image = place.path("image");
    pack(&raw, &image, &[]);
    let out = small.path("out");
    let command = |words: &[&str], paths: &[&Path]| {
        let mut command = sidecore(words);
        command.args(paths).arg("-o").arg(&out);
        command
    };
    // Half of the targets are new, half exist, and the existing ones stay.
    for names in [&[][..], &["out"]] {
        if !names.is_empty() {
            fs::write(&out, "what was here before").unwrap();
        }
        for format in ["zstd", "lz4", "cloop", "cloop-lzo", "raw"] {
            let mut pack = command(&["block", "pack", "--format", format], &[&raw]);
            fails_for_room(&small, names, &mut pack);
        }
        fails_for_room(&small, names, &mut command(&["block", "unpack"], &[&image]));
        fails_for_room(&small, names, &mut command(&["block", "export"], &[&image]));
        fails_for_room(
            &small,
            names,
            &mut command(&["block", "export", "--qcow2"], &[&image]),
        );
        let overlay = place.path("overlay");
        ok(sidecore(&["block", "clone"]).args([&image, &overlay]));
        fails_for_room(
            &small,
            names,
            &mut command(&["block", "commit"], &[&image, &overlay]),
        );
        fs::remove_file(&overlay).unwrap();
        if !names.is_empty() {
            assert_eq!(fs::read(&out).unwrap(), b"what was here before");
            fs::remove_file(&out).unwrap();
        }
    }
    // A directory's file system, made next to the image, and a disk out of qcow2.
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), noise(4 << 20)).unwrap();
    fails_for_room(&small, &[], &mut command(&["block", "pack"], &[&tree]));
    let qcow2 = place.path("qcow2");
    ok(tool("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args([&raw, &qcow2]));
    fails_for_room(
        &small,
        &[],
        &mut command(&["block", "pack", "--decompress"], &[&qcow2]),
    );
}

#[test]
fn small_files_of_a_full_disk_leave_nothing_either() {
    let place = Place::new();
    let small = Small::new(&place, "64k");
    let raw = place.write("raw", &noise(3 << 20));
    pack(&raw, &place.path("image"), &[]);
    // Enough frames that their index does not fit.
    let mut frames = Vec::new();
    for part in noise(1 << 20).chunks(64) {
        let head = [0x28, 0xB5, 0x2F, 0xFD, 0x20, part.len() as u8];
        let block = (part.len() as u32) << 3 | 1;
        frames.extend(head);
        frames.extend(&block.to_le_bytes()[..3]);
        frames.extend(part);
    }
    let file = place.write("frames.zst", &frames);
    let mut index = sidecore(&["block", "index"]);
    index.arg(&file).arg("-o").arg(small.path("index"));
    fails_for_room(&small, &[], &mut index);
    fs::write(small.path("filler"), noise(64 << 10)).unwrap();
    let mut clone = sidecore(&["block", "clone"]);
    clone.args([&place.path("image"), &small.path("clone")]);
    let output = run(&mut clone);
    fails(&output, 2, "o space");
    small.holds(&["filler"], &clone);
}
