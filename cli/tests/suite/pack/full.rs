//! A disk that becomes full: one line, exit status 2, and no partial file under the final name.

use super::tools::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
