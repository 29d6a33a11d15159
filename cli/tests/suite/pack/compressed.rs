//! `pack --decompress`: disk images as they are distributed.

use super::tools::*;
use std::fs;

#[test]
fn what_is_in_a_compressed_file_is_packed() {
    let place = Place::new();
    let wanted = contents(1 << 20);
    let raw = place.write("raw", &wanted);
    let at = |name: &str| place.path(name);
    ok(tool("gzip").args(["--keep", "--suffix", ".gz"]).arg(&raw));
    ok(tool("xz").args(["--keep", "-0"]).arg(&raw));
    ok(tool("zstd")
        .args(["--quiet", "--keep", "--long=27"])
        .arg(&raw));
    ok(tool("qemu-img")
        .args(["convert", "-c", "-f", "raw", "-O", "qcow2"])
        .args([&raw, &at("raw.qcow2")]));
    // Consecutive members and frames are one stream.
    for name in ["raw.gz", "raw.xz", "raw.zst"] {
        let whole = fs::read(at(name)).unwrap();
        let twice = format!("twice{}", &name[3..]);
        fs::write(at(&twice), [&whole[..], &whole[..]].concat()).unwrap();
    }
    for name in ["raw", "raw.gz", "raw.xz", "raw.zst", "raw.qcow2"] {
        pack(&at(name), &at("image"), &["--decompress"]);
        ok(&mut unpack(&at("image"), &at("back")));
        assert!(fs::read(at("back")).unwrap() == wanted, "{name}");
    }
    for name in ["twice.gz", "twice.xz", "twice.zst"] {
        pack(&at(name), &at("image"), &["--decompress"]);
        ok(&mut unpack(&at("image"), &at("back")));
        assert!(
            fs::read(at("back")).unwrap() == [&wanted[..], &wanted[..]].concat(),
            "{name}"
        );
    }
    // Without it, the file's own bytes, and a warning.
    let output = pack(&at("raw.gz"), &at("image"), &[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("pack --decompress"), "{told}");
    ok(&mut unpack(&at("image"), &at("back")));
    assert!(fs::read(at("back")).unwrap() == fs::read(at("raw.gz")).unwrap());
}

#[test]
fn a_stream_that_is_damaged_or_cut_short_leaves_no_image() {
    let place = Place::new();
    let raw = place.write("raw", &contents(300_000));
    ok(tool("gzip").args(["--keep"]).arg(&raw));
    ok(tool("xz").args(["--keep", "-0"]).arg(&raw));
    ok(tool("zstd").args(["--quiet", "--keep"]).arg(&raw));
    for name in ["raw.gz", "raw.xz", "raw.zst"] {
        let whole = fs::read(place.path(name)).unwrap();
        let mut changed = whole.clone();
        let middle = whole.len() / 2;
        changed[middle] ^= 0x20;
        let cuts = [&whole[..middle], &whole[..whole.len() - 1], &whole[..20]];
        for bytes in cuts.into_iter().chain([&changed[..]]) {
            let broken = place.write("broken", bytes);
            let mut command = sidecore(&["block", "pack", "--decompress", "-o"]);
            let output = command
                .arg(place.path("image"))
                .arg(&broken)
                .output()
                .unwrap();
            assert_eq!(
                output.status.code(),
                Some(2),
                "{name}, {} bytes",
                bytes.len()
            );
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(errors.trim().lines().count(), 1, "{errors}");
            assert!(!place.path("image").exists());
        }
    }
}

/// A qcow2 image may name any file of the machine as its backing file.
#[test]
fn a_qcow2_image_that_names_another_file_is_refused() {
    let place = Place::new();
    let secret = place.write("secret", &contents(200_000));
    let image = place.path("disk.qcow2");
    ok(tool("qemu-img")
        .args(["create", "-f", "qcow2", "-F", "raw", "-b"])
        .args([&secret, &image]));
    let mut command = sidecore(&["block", "pack", "--decompress", "-o"]);
    let output = command.arg(place.path("out")).arg(&image).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("names another file"), "{errors}");
    place.holds(&["secret", "disk.qcow2"]);
}
