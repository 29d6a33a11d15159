//! `pack --decompress` of formats that it cannot read: never the container's own bytes as a disk.
//!
//! `pack --decompress`: disk images as they are distributed.
//!
//! Files that claim more than they hold, and damaged ones: refused or read within a bound of memory
//! and time.

use super::tools::*;
use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

fn refuses(place: &Place, source: &Path, says: &str) {
    let mut command = sidecore(&["block", "pack", "--decompress", "-o"]);
    let output = run(command.arg(place.path("image")).arg(source));
    fails(&output, 2, says);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.trim().lines().count(), 1, "{errors}");
    assert!(
        errors.contains("; run `") && errors.contains("--raw"),
        "{errors}"
    );
    assert!(!place.path("image").exists(), "{}", source.display());
}

/// With `--raw` it is packed as it is.
fn takes_raw(place: &Place, source: &Path) {
    let (image, back) = (place.path("image"), place.path("back"));
    let output = pack(source, &image, &["--decompress", "--raw"]);
    assert!(output.stderr.is_empty());
    ok(&mut unpack(&image, &back));
    assert!(fs::read(&back).unwrap() == fs::read(source).unwrap());
    fs::remove_file(image).unwrap();
}

#[test]
fn disks_that_qemu_writes_are_refused_by_name() {
    let place = Place::new();
    let raw = place.write("raw", &contents(1 << 20));
    for (format, options, kind) in [
        ("vmdk", &[][..], "VMDK image"),
        ("vmdk", &["-o", "subformat=streamOptimized"], "VMDK image"),
        ("vmdk", &["-o", "subformat=monolithicFlat"], "VMDK image"),
        ("vdi", &[], "VDI image"),
        ("vpc", &[], "VHD image"),
        ("vpc", &["-o", "subformat=fixed,force_size=on"], "VHD image"),
        ("vhdx", &[], "VHDX image"),
        ("qed", &[], "QED image"),
        ("qcow", &[], "qcow image"),
        ("parallels", &[], "Parallels image"),
    ] {
        let disk = place.path("disk");
        ok(tool("qemu-img")
            .args(["convert", "-f", "raw", "-O", format])
            .args(options)
            .args([&raw, &disk]));
        refuses(&place, &disk, kind);
        takes_raw(&place, &disk);
    }
}

#[test]
fn compressed_files_that_are_not_read_are_refused_by_name() {
    let place = Place::new();
    let wanted = contents(200_000);
    let raw = place.write("raw", &wanted);
    for (program, options, kind) in [
        ("bzip2", &["-c"][..], "bzip2 file"),
        ("lz4", &["-c"], "lz4 file"),
        ("lz4", &["-c", "-l"], "lz4 file"),
        ("lzop", &["-c"], "lzop file"),
        ("xz", &["-c", "--format=lzma"], "lzma file"),
    ] {
        let packed = ok(tool(program).args(options).arg(&raw)).stdout;
        let file = place.write("packed", &packed);
        refuses(&place, &file, kind);
        takes_raw(&place, &file);
        // Through a pipe, too, and inside another container.
        let mut command = sidecore(&["block", "pack", "--decompress", "-", "-o"]);
        command.arg(place.path("image"));
        let piped = command.stdin(Stdio::from(fs::File::open(&file).unwrap()));
        fails(&piped.output().unwrap(), 2, kind);
        ok(tool("gzip").args(["--keep", "--force"]).arg(&file));
        refuses(&place, &place.path("packed.gz"), "inside a compressed file");
    }
    // The formats that no program here writes, by their first bytes.
    let heads: [(&[u8], &str); 12] = [
        (b"LZIP\x01", "lzip file"),
        (b"\x1F\x9D\x90abcdefgh", "compress (.Z) file"),
        (b"\xFF\x06\0\0sNaPpY", "snappy file"),
        (b"LRZI\0\x06", "lrzip file"),
        (b"PK\x03\x04\x14\0", "zip archive"),
        (b"7z\xBC\xAF\x27\x1C\0\x04", "7z archive"),
        (b"Rar!\x1A\x07\x01\0", "rar archive"),
        (b"xar!\0\x1C", "xar archive"),
        (b"EVF\x09\x0D\x0A\xFF\0\x01", "EWF image"),
        (b"AFF10\x0D\x0A\0", "AFF image"),
        (b"MSWIM\0\0\0\xD0", "WIM image"),
        (b"partclone-image", "partclone image"),
    ];
    for (head, kind) in heads {
        let mut bytes = head.to_vec();
        bytes.resize(4096, 7);
        refuses(&place, &place.write("head", &bytes), kind);
    }
    let mut dmg = contents(8192);
    dmg[8192 - 512..8192 - 508].copy_from_slice(b"koly");
    refuses(&place, &place.write("dmg", &dmg), "DMG image");
    ok(tool("tar")
        .arg("-C")
        .arg(place.0.path())
        .arg("-cf")
        .args([&place.path("tar"), Path::new("raw")]));
    refuses(&place, &place.path("tar"), "tar archive");
}

#[test]
fn images_of_this_program_are_unpacked_by_another_command() {
    let place = Place::new();
    let raw = place.write("raw", &contents(200_000));
    let image = place.path("source.img");
    for (options, kind) in [
        (&["--format", "cloop"][..], "cloop image"),
        (&["--format", "cloop-lzo"], "cloop image"),
        (&["--thin", "always"], "thin image"),
        (&["--format", "lz4"], "lz4 file"),
    ] {
        pack(&raw, &image, options);
        refuses(&place, &image, kind);
    }
    // zstd is no foreign container: any program can decompress it, this one, too.
    pack(&raw, &image, &[]);
    pack(&image, &place.path("image"), &["--decompress"]);
    ok(&mut unpack(&place.path("image"), &place.path("back")));
    assert!(fs::read(place.path("back")).unwrap() == fs::read(&raw).unwrap());
    ok(sidecore(&["block", "clone"]).args([&image, &place.path("overlay")]));
    fs::remove_file(place.path("image")).unwrap();
    refuses(&place, &place.path("overlay"), "overlay");
}

#[test]
fn what_comes_through_a_pipe_is_decompressed_as_a_file_is() {
    let place = Place::new();
    let wanted = contents(300_000);
    let raw = place.write("raw", &wanted);
    for program in ["gzip", "xz", "zstd"] {
        let packed = ok(tool(program).args(["-q", "-c"]).arg(&raw)).stdout;
        let image = place.write(
            "image",
            &piped(
                sidecore(&["block", "pack", "--decompress", "-", "-o", "-"]),
                &packed,
            ),
        );
        ok(&mut unpack(&image, &place.path("back")));
        assert!(fs::read(place.path("back")).unwrap() == wanted, "{program}");
    }
}

/// Without `--decompress`, a pipe's form is named as a file's is, and its bytes are all packed.
#[test]
fn the_form_of_what_comes_through_a_pipe_is_named() {
    let place = Place::new();
    let raw = place.write("raw", &contents(200_000));
    let (image, out) = (place.path("source.img"), place.path("image"));
    pack(&raw, &image, &[]);
    ok(sidecore(&["block", "clone"]).args([&image, &place.path("overlay")]));
    ok(tool("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args([&raw, &place.path("qcow2")]));
    place.write("short", b"abc");
    let packed = |name: &str, words: &[&str]| {
        let mut cat = tool("cat")
            .arg(place.path(name))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut command = sidecore(&["block", "pack", "-", "-o"]);
        command
            .arg(&out)
            .args(words)
            .stdin(cat.stdout.take().unwrap());
        let output = run(&mut command);
        cat.wait().unwrap();
        output
    };
    let refused = packed("overlay", &[]);
    fails(&refused, 2, "standard input is an overlay");
    assert!(!out.exists());
    for (name, words, says) in [
        ("qcow2", &[][..], "standard input is a qcow2 image"),
        ("overlay", &["--raw"], ""),
        ("raw", &[], ""),
        ("short", &[], ""),
    ] {
        let output = packed(name, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        assert!(said.contains(says), "{name}: {said}");
        assert_eq!(said.is_empty(), says.is_empty(), "{name}: {said}");
        ok(&mut unpack(&out, &place.path("back")));
        let (back, source) = (fs::read(place.path("back")), fs::read(place.path(name)));
        assert!(back.unwrap() == source.unwrap(), "{name}");
    }
}

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

/// The quick part of scripts/check-damaged: the hostile files, and mutants of
/// every format that is read.
#[test]
fn hostile_files_and_mutants_keep_within_their_budgets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = run(tool("python3")
        .arg(root.join("scripts/check-damaged"))
        .args(["--quick", "--seed", "20261128", "--sidecore"])
        .arg(env!("CARGO_BIN_EXE_sidecore")));
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
}

/// A table of 1.5 GB that is a hole of the file was once read whole before its first entry was
/// checked.
#[test]
fn a_table_that_is_a_hole_is_refused_at_its_first_entry() {
    let place = Place::new();
    let blocks = 130_000_000_u32;
    let path = place.path("cloop3");
    let file = File::create(&path).unwrap();
    let mut head = blocks.to_be_bytes().to_vec();
    head.extend(512_u32.to_be_bytes());
    head.extend((u64::from(blocks) * 512).to_be_bytes());
    file.write_all_at(&head, 4096).unwrap();
    let end = 4096 + 16 + (u64::from(blocks) + 1) * 8 + u64::from(blocks) * 4;
    let mut tail = 4096_u64.to_be_bytes().to_vec();
    tail.extend(3_u32.to_be_bytes());
    tail.extend(b"\nCLOOP3\n");
    file.write_all_at(&tail, end).unwrap();
    fails(
        &run(sidecore(&["block", "info"]).arg(&path)),
        2,
        "frame 0 of",
    );
}

#[test]
fn memory_and_time_that_do_not_suffice_are_refused_in_a_line() {
    let place = Place::new();
    let raw = place.write("raw", &contents(4 << 20));
    let (image, out) = (place.path("image"), place.path("out"));
    pack(&raw, &image, &["--frame", "1MiB"]);
    for words in [
        &["verify"][..],
        &["unpack", "-o", "out"],
        &["commit", "-o", "out"],
    ] {
        let mut command = sidecore(&["block"]);
        command.current_dir(place.0.path()).args(words);
        command.args(["image", "--memory", "3MiB"]);
        if words[0] == "commit" {
            ok(sidecore(&["block", "clone"]).args([&image, &place.path("overlay")]));
            command.arg("overlay");
        }
        fails(&run(&mut command), 2, "--memory allows");
    }
    let mut command = sidecore(&["block", "pack", "--memory", "3MiB", "-o"]);
    fails(
        &run(command.arg(&out).arg(&raw)),
        2,
        "--memory allows 3145728",
    );
    // Memory for one frame at a time must do.
    ok(unpack(&image, &out).args(["--memory", "16MiB", "--engines", "2"]));
    assert!(std::fs::read(&out).unwrap() == contents(4 << 20));
    std::fs::remove_file(&out).unwrap();
    let mut command = unpack(&image, &out);
    fails(
        &run(command.args(["--time", "0.000001"])),
        2,
        "--time allows",
    );
    assert!(!out.exists());
    let refused = run(unpack(&image, &out).args(["--time", "never"]));
    assert_eq!(refused.status.code(), Some(2));
}
