//! `sidecore block pack`, `unpack`, `info` and `verify` as users and scripts call them, and other
//! programs on the same files. Needs the packages of scripts/setup, and root for the tests that
//! mount and make loop devices.
#![allow(clippy::unwrap_used)] // helpers of tests, outside of test functions

mod content;
mod foreign;
mod sidecar;
mod thin;
mod tools;
mod trees;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use tools::*;
use trees::{listing, make_tree};

const FORMATS: [&str; 5] = ["zstd", "lz4", "cloop", "cloop-lzo", "raw"];

#[test]
fn every_format_goes_round_from_a_file() {
    let place = Place::new();
    let raw = place.write("raw", &contents(1_000_000));
    let (image, back) = (place.path("image"), place.path("back"));
    for format in FORMATS {
        for frame in ["4KiB", "64KiB", "1MiB"] {
            let options = [
                "--format",
                format,
                "--frame",
                frame,
                "--engines",
                "3",
                "--json",
            ];
            let report = json(&pack(&raw, &image, &options));
            let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&image)));
            assert_eq!(info["format"], format);
            assert_eq!(info["stored_bytes"], fs::metadata(&image).unwrap().len());
            for key in ["raw_bytes", "stored_bytes"] {
                assert_eq!(info[key], report[key], "{format} {frame}: {key}");
            }
            let mut wanted = contents(1_000_000);
            if format.starts_with("cloop") {
                let frame_bytes = info["frame_bytes"].as_u64().unwrap() as usize;
                wanted.resize(wanted.len().next_multiple_of(frame_bytes), 0);
            }
            assert_eq!(info["raw_bytes"], wanted.len(), "{format} {frame}");
            ok(&mut unpack(&image, &back));
            assert!(fs::read(&back).unwrap() == wanted, "{format} {frame}");

            let verified = json(&ok(sidecore(&["block", "verify", "--json"]).arg(&image)));
            assert_eq!(verified["frames"], info["frames"]);
            assert_eq!(verified["bad_frames"].as_array().unwrap().len(), 0);
        }
    }
    place.holds(&["raw", "image", "back"]);
}

#[test]
fn standard_input_and_output_stream() {
    let raw = contents(700_000);
    for format in ["zstd", "lz4", "cloop-lzo", "raw"] {
        let image = piped(
            sidecore(&["block", "pack", "-", "-o", "-", "--format", format]),
            &raw,
        );
        let place = Place::new();
        let file = place.write("image", &image);
        let back = ok(sidecore(&["block", "unpack"]).arg(&file).args(["-o", "-"])).stdout;
        assert!(back[..raw.len()] == raw, "{format}");
        assert!(back[raw.len()..].iter().all(|&byte| byte == 0), "{format}");
        if format == "cloop-lzo" {
            let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&file)));
            assert_eq!(info["variant"], "cloop V4.0 (head last)");
        }
    }
    let arguments = [
        "block",
        "pack",
        "/etc/passwd",
        "-o",
        "-",
        "--format",
        "cloop",
    ];
    fails(&run(&mut sidecore(&arguments)), 2, "--format cloop-lzo");
}

#[test]
fn tools_of_others_read_our_images() {
    let place = Place::new();
    let mut bytes = contents(1_500_000);
    let raw = place.write("raw", &bytes);
    for format in ["zstd", "lz4", "cloop"] {
        pack(&raw, &place.path(format), &["--format", format]);
    }
    let unpacked = ok(tool("zstd").args(["-d", "-c"]).arg(place.path("zstd"))).stdout;
    assert!(unpacked == bytes, "zstd -d");
    let unpacked = ok(tool("lz4").args(["-d", "-c"]).arg(place.path("lz4"))).stdout;
    assert!(unpacked == bytes, "lz4 -d");
    bytes.resize(bytes.len().next_multiple_of(65536), 0);
    let (cloop, other) = (place.path("cloop"), place.path("other"));
    ok(tool("extract_compressed_fs").arg(&cloop).arg(&other));
    assert!(fs::read(&other).unwrap() == bytes, "extract_compressed_fs");
    // With the format given, and with the format detected.
    for format in [&["-f", "cloop"][..], &[]] {
        let mut convert = tool("qemu-img");
        ok(convert
            .args(["convert", "-O", "raw"])
            .args(format)
            .arg(&cloop)
            .arg(&other));
        assert!(fs::read(&other).unwrap() == bytes, "qemu-img {format:?}");
    }
}

#[test]
fn images_that_cloop_utils_made_are_read() {
    let place = Place::new();
    let mut raw = contents(900_000);
    let file = place.write("raw", &raw);
    let (image, back) = (place.path("image"), place.path("back"));
    for (level, block) in [("9", "131072"), ("-1", "65536"), ("1", "65536")] {
        let options = ["-q", "-L", level, "-B", block];
        ok(tool("create_compressed_fs")
            .args(options)
            .arg(&file)
            .arg(&image));
        let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&image)));
        assert_eq!(info["variant"], "cloop V2.0");
        assert_eq!(info["frame_bytes"].to_string(), block);
        ok(sidecore(&["block", "verify"]).arg(&image));
        ok(&mut unpack(&image, &back));
        raw.resize(900_000_usize.next_multiple_of(block.parse().unwrap()), 0);
        assert!(fs::read(&back).unwrap() == raw, "level {level}");
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn a_full_disk_is_named_and_nothing_stays() {
    assert!(is_root(), "this test mounts: run it as root");
    let place = Place::new();
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), contents(3 << 20)).unwrap();
    let disk = place.path("disk");
    fs::create_dir(&disk).unwrap();
    ok(tool("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&disk));
    let _mount = Mount(disk.clone());
    for inner in ["erofs", "squashfs"] {
        // TMPDIR may point elsewhere, where there is room.
        let output = run(sidecore(&["block", "pack", "--inner", inner])
            .env_remove("TMPDIR")
            .arg(&tree)
            .arg("-o")
            .arg(disk.join("image")));
        assert_eq!(output.status.code(), Some(2), "{inner}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("bytes free"), "{inner}: {said}");
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "{inner}");
    }
}

#[test]
fn a_directory_becomes_a_file_system() {
    assert!(is_root(), "this test mounts: run it as root");
    let place = Place::new();
    let tree = place.path("tree");
    make_tree(&tree);
    let (image, disk) = (place.path("image"), place.path("disk"));
    for inner in ["erofs", "squashfs", "ext4"] {
        let report = json(&pack(&tree, &image, &["--inner", inner, "--json"]));
        assert_eq!(report["inner"], inner);
        ok(&mut unpack(&image, &disk));
        let mount = Mount::new(&disk, inner, &place.path("mnt"));
        ok(tool("diff")
            .args(["-r", "--no-dereference"])
            .arg(&tree)
            .arg(&mount.0));
        assert_eq!(listing(&mount.0), listing(&tree), "{inner}");
        let mut attribute = [0; 16];
        let length = rustix::fs::getxattr(mount.0.join("a/file"), "user.note", &mut attribute);
        assert_eq!(
            length.map(|length| &attribute[..length]),
            Ok(&b"kept"[..]),
            "{inner}"
        );
    }
    // Nothing is left of the file systems that were built for it.
    place.holds(&["tree", "image", "disk", "mnt"]);
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let place = Place::new();
    let raw = place.write("raw", &contents(500_000));
    let image = place.path("image");
    for format in ["zstd", "lz4", "cloop"] {
        pack(&raw, &image, &["--format", format]);
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&image)
            .unwrap();
        let at = file.metadata().unwrap().len() / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();

        let output = run(sidecore(&["block", "verify", "--json"]).arg(&image));
        assert_eq!(output.status.code(), Some(1), "{format}");
        let report = json(&output);
        let bad = report["bad_frames"].as_array().unwrap();
        assert_eq!(bad.len(), 1, "{format}: {report}");
        let frame = bad[0].as_u64().unwrap();
        assert!(frame < report["frames"].as_u64().unwrap());
        assert_eq!(report["faults"][0]["frame"], frame);

        let output = run(sidecore(&["block", "verify"]).arg(&image));
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains(&format!("frame {frame} ")),
            "{format}: {text}"
        );

        let back = place.path("back");
        let output = run(&mut unpack(&image, &back));
        fails(&output, 2, &format!("frame {frame} "));
        place.holds(&["raw", "image"]);
    }
}

#[test]
fn a_damaged_table_is_a_problem_though_the_contents_are_whole() {
    let place = Place::new();
    let raw = place.write("raw", &contents(300_000));
    let (image, back) = (place.path("image"), place.path("back"));
    pack(&raw, &image, &["--tree"]);
    let whole = fs::read(&image).unwrap();
    // From the end: entries of the seek table, the index frame's end, and the tree's leaves.
    let tree = whole
        .windows(8)
        .rposition(|bytes| bytes == b"sidetree")
        .unwrap();
    let index = whole
        .windows(4)
        .rposition(|bytes| bytes == b"SIDX")
        .unwrap();
    for (at, table) in [
        (whole.len() - 50, "the seek table is damaged"),
        (index - 20, "the index frame is damaged"),
        (index, "the index frame is damaged"),
        (tree + 70, "the hash tree is damaged"),
    ] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&image, &damaged).unwrap();
        let output = run(sidecore(&["block", "verify"]).arg(&image));
        assert_eq!(output.status.code(), Some(1), "{table}");
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.contains(table));
        let line = line.unwrap_or_else(|| panic!("{table}: {text}"));
        assert!(line.contains("the contents are whole"), "{line}");
        let output = run(sidecore(&["block", "verify", "--json"]).arg(&image));
        assert_eq!(output.status.code(), Some(1), "{table}");
        let report = json(&output);
        assert_eq!(report["bad_frames_total"], 0, "{report}");
        assert_eq!(
            report["table_faults"].as_array().unwrap().len(),
            1,
            "{report}"
        );
        ok(&mut unpack(&image, &back));
        assert!(
            fs::read(&back).unwrap() == fs::read(&raw).unwrap(),
            "{table}"
        );
    }
}

#[test]
fn bad_input_gets_one_clear_line() {
    let place = Place::new();
    let raw = place.write("raw", &contents(100_000));
    let empty = place.write("empty", b"");
    let image = place.path("image");
    pack(&raw, &image, &[]);
    let whole = fs::read(&image).unwrap();
    let short = place.write("short", &whole[..whole.len() - 100]);
    let (out, nothing) = (place.path("out"), place.path("nothing"));
    let onto = |source: &Path, target: &Path, options: &[&str]| {
        run(sidecore(&["block", "pack"])
            .arg(source)
            .arg("-o")
            .arg(target)
            .args(options))
    };
    fails(&onto(&nothing, &out, &[]), 2, "No such file");
    fails(&onto(&empty, &out, &[]), 2, "holds no bytes");
    fails(
        &onto(&raw, &out, &["--level", "23"]),
        2,
        "levels are 1 to 22",
    );
    fails(&onto(&raw, &out, &["--frame", "3000"]), 2, "power of two");
    fails(&onto(&raw, &out, &["--frame", "2MiB"]), 2, "4 KiB to 1 MiB");
    fails(&onto(&raw, &out, &["--format", "gzip"]), 2, "cloop-lzo");
    fails(&onto(&raw, &out, &["--engines", "0"]), 2, "1..");
    fails(
        &onto(&raw, &place.path("no/such/place"), &[]),
        2,
        "No such file",
    );
    fails(&onto(&raw, place.0.path(), &[]), 2, "is a directory");
    fails(&onto(&raw, &raw, &[]), 2, "name another file");
    assert!(
        fs::read(&raw).unwrap() == contents(100_000),
        "the source was harmed"
    );
    for command in ["info", "verify"] {
        fails(
            &run(sidecore(&["block", command]).arg(&short)),
            2,
            "cut short",
        );
        fails(
            &run(sidecore(&["block", command]).arg(&nothing)),
            2,
            "No such file",
        );
    }
    fails(&run(&mut unpack(&short, &out)), 2, "cut short");
    place.holds(&["raw", "empty", "image", "short"]);
}

#[test]
fn an_existing_image_is_replaced_when_the_new_one_is_whole() {
    let place = Place::new();
    let raw = place.write("raw", &contents(50_000));
    let image = place.write("image", b"something older");
    let onto = |source: &Path, target: &Path, options: &[&str]| {
        run(sidecore(&["block", "pack"])
            .arg(source)
            .arg("-o")
            .arg(target)
            .args(options))
    };
    fails(&onto(&raw, &image, &["--no-clobber"]), 2, "--no-clobber");
    // A failure leaves the old file alone.
    fails(
        &onto(&place.path("nothing"), &image, &[]),
        2,
        "No such file",
    );
    assert_eq!(fs::read(&image).unwrap(), b"something older");
    pack(&raw, &image, &[]);
    ok(sidecore(&["block", "verify"]).arg(&image));
    // Anything but a regular file is written to only with --force.
    fails(&onto(&raw, Path::new("/dev/full"), &[]), 2, "--force");
    place.holds(&["raw", "image"]);
}

/// The program with Ctrl-C as on a terminal: a test that runs in the background (`nohup`) ignores
/// the signal, and what it starts inherits that.
fn interruptible(args: &[&str]) -> Command {
    let mut command = tool("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_sidecore")]);
    command.args(args);
    command
}

#[test]
fn an_interrupted_pack_leaves_nothing() {
    for signal in ["INT", "TERM", "KILL"] {
        for format in ["zstd", "cloop-lzo"] {
            let place = Place::new();
            let old = place.write("image", b"something older");
            let mut command = interruptible(&["block", "pack", "-", "--format", format]);
            // Few frames are kept in flight, so that much has been written when the signal comes.
            command.args(["--engines", "1", "--frame", "4KiB", "-o"]);
            let mut child = command.arg(&old).stdin(Stdio::piped()).spawn().unwrap();
            // Standard input stays open, so that it cannot end by itself; the input so far is being
            // written.
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(&contents(4 << 20)).unwrap();
            wait_for_written(&mut child, 100_000);
            ok(tool("kill")
                .arg(format!("-{signal}"))
                .arg(child.id().to_string()));
            let status = child.wait().unwrap();
            assert!(!status.success(), "{signal}: {status}");
            assert_eq!(fs::read(&old).unwrap(), b"something older");
            place.holds(&["image"]);
        }
    }
}

#[test]
fn an_interrupted_directory_leaves_nothing() {
    let place = Place::new();
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    for i in 0..12 {
        fs::write(tree.join(i.to_string()), contents(2 << 20)).unwrap();
    }
    for wait_ms in [20, 60, 150] {
        // On one engine it takes seconds, however many cores there are.
        let options = ["block", "pack", "--level", "22", "--engines", "1", "-o"];
        let mut command = interruptible(&options);
        let mut child = command.arg(place.path("image")).arg(&tree).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        ok(tool("kill").arg("-INT").arg(child.id().to_string()));
        assert!(
            !child.wait().unwrap().success(),
            "it ended before the signal came"
        );
        place.holds(&["tree"]);
    }
}

#[test]
fn holes_come_back_as_holes() {
    let place = Place::new();
    let raw = place.path("raw");
    let file = fs::File::create(&raw).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(b"an island", 40 << 20).unwrap();
    let (image, back) = (place.path("image"), place.path("back"));
    for format in ["zstd", "lz4", "raw"] {
        let report = json(&pack(&raw, &image, &["--format", format, "--json"]));
        assert_eq!(
            report["zero_frames"],
            report["frames"].as_u64().unwrap() - 1
        );
        ok(&mut unpack(&image, &back));
        assert!(
            fs::read(&back).unwrap() == fs::read(&raw).unwrap(),
            "{format}"
        );
        // A run of frames written at once reads the same as the single frames.
        let whole = fs::read(&image).unwrap();
        let mut stream = sidecore(&["block", "pack", "-", "-o", "-", "--format", format]);
        stream.args(["--engines", "2"]);
        assert!(
            piped(stream, &fs::read(&raw).unwrap()) == whole,
            "{format}: a pipe"
        );
        let on_disk = fs::metadata(&back).unwrap().blocks() * 512;
        assert!(on_disk < 1 << 20, "{format}: {on_disk} bytes on disk");
    }
}

#[test]
fn a_block_device_is_packed_and_written() {
    assert!(is_root(), "this test makes loop devices: run it as root");
    let place = Place::new();
    let bytes = contents(4 << 20);
    let from = Loop::new(&place.write("one", &bytes));
    let to = Loop::new(&place.write("two", &vec![0xEE; 4 << 20]));
    let image = place.path("image");
    let report = json(&pack(&from.0, &image, &["--json"]));
    assert_eq!(report["raw_bytes"], 4 << 20);
    let mut unpack = unpack(&image, &to.0);
    fails(&run(&mut unpack), 2, "--force");
    ok(unpack.arg("--force"));
    // Onto itself it would grow into what is not read yet.
    let mut onto_itself = sidecore(&["block", "pack", "--force", "-o"]);
    let refused = run(onto_itself.args([&from.0, &from.0]));
    fails(&refused, 2, "is the source as well as the target");
    for device in [&to, &from] {
        let mut back = Vec::new();
        let mut file = fs::File::open(&device.0).unwrap();
        file.read_to_end(&mut back).unwrap();
        assert!(back == bytes, "{}", device.0.display());
    }
}

/// A large directory, long names, links of both kinds, owners, modes, times, an attribute, a hole.
/// Data between holes, a hole at the end that fills no frame, and far more holes than a reader
/// would accept.
#[test]
fn a_sparse_file_goes_round() {
    let place = Place::new();
    let (raw, image, back) = (place.path("raw"), place.path("image"), place.path("back"));
    let file = fs::File::create(&raw).unwrap();
    let data = contents(300_000);
    for (format, size) in [("zstd", 8_u64 << 30), ("raw", 8 << 30), ("cloop", 1 << 30)] {
        let size = size - 12_345;
        file.set_len(0).unwrap();
        file.set_len(size).unwrap();
        let places = [0, 5_000_000, size / 2 - 1000];
        places
            .iter()
            .for_each(|&at| file.write_all_at(&data, at).unwrap());
        let report = json(&pack(
            &raw,
            &image,
            &["--format", format, "--frame", "1MiB", "--json"],
        ));
        assert!(
            report["zero_frames"].as_u64() > Some(0),
            "{format}: {report}"
        );
        ok(&mut unpack(&image, &back));
        let back = fs::File::open(&back).unwrap();
        let mut part = vec![0; 400_000];
        for at in places {
            back.read_exact_at(&mut part, at).unwrap();
            assert!(part[..300_000] == data[..], "{format}: at {at}");
            assert!(
                part[300_000..].iter().all(|&byte| byte == 0),
                "{format}: behind {at}"
            );
        }
        let whole = size.next_multiple_of(if format == "cloop" { 1 << 20 } else { 1 });
        assert_eq!(back.metadata().unwrap().len(), whole, "{format}");
    }
}

#[test]
fn images_of_other_programs_are_not_taken_for_raw_ones() {
    let place = Place::new();
    let mut qcow2 = vec![0; 200_000];
    qcow2[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    let image = place.write("disk.qcow2", &qcow2);
    for command in ["info", "verify"] {
        let output = sidecore(&["block", command]).arg(&image).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), errors.lines().count()),
            (Some(2), 1),
            "{errors}"
        );
        assert!(
            errors.contains("qcow2") && errors.contains("pack --decompress"),
            "{errors}"
        );
    }
    // Packing it is the user's right; it is reported.
    let packed = place.path("packed");
    let output = ok(sidecore(&["block", "pack"])
        .arg(&image)
        .arg("-o")
        .arg(&packed));
    assert!(String::from_utf8_lossy(&output.stderr).contains("pack --decompress"));
    let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&packed)));
    assert_eq!(info["raw_bytes"], 200_000);
}
