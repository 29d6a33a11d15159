//! Thin disks: terabytes of zeros take nearly no room, in any command.

use super::tools::*;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

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
