//! `block index`: zstd files of other programs, which have many frames and no seek table.

use super::tools::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

fn index(file: &Path) -> Output {
    run(sidecore(&["block", "index", "--json"]).arg(file))
}

/// The file's contents, through the commands that read images.
fn unpacked(place: &Place, file: &Path) -> Output {
    let back = place.path("back");
    let _ = fs::remove_file(&back);
    run(&mut unpack(file, &back))
}

#[test]
fn files_of_many_frames_are_read_by_an_index_beside_them() {
    let place = Place::new();
    let wanted = contents(3 << 20);
    let raw = place.write("raw", &wanted);
    // Three runs of zstd, frames that do not say their size, and pzstd's.
    let mut runs = Vec::new();
    for part in wanted.chunks(1_500_000) {
        runs.extend(piped(tool("zstd"), part));
    }
    let runs = place.write("runs.zst", &runs);
    let pzstd = place.path("pzstd.zst");
    ok(tool("pzstd")
        .args(["-q", "-k", "-p", "3"])
        .arg(&raw)
        .arg("-o")
        .arg(&pzstd));
    for file in [runs, pzstd] {
        let before = fs::read(&file).unwrap();
        fails(&unpacked(&place, &file), 2, "sidecore block index FILE");
        let report = json(&index(&file));
        assert_eq!(report["raw_bytes"], wanted.len());
        assert!(fs::read(&file).unwrap() == before);
        let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&file)));
        assert_eq!(info["raw_bytes"], wanted.len());
        assert_eq!(info["frames"], report["frames"]);
        let verified = json(&ok(sidecore(&["block", "verify", "--json"]).arg(&file)));
        assert_eq!(verified["raw_bytes"], wanted.len());
        assert!(unpacked(&place, &file).status.success());
        assert!(fs::read(place.path("back")).unwrap() == wanted);
        // Made again: the old index is overwritten.
        json(&index(&file));
    }
}

#[test]
fn an_index_of_another_file_is_refused() {
    let place = Place::new();
    let parts = [contents(200_000), contents(70_000)];
    let frames = parts.each_ref().map(|part| piped(tool("zstd"), part));
    let file = place.write("file.zst", &frames.concat());
    json(&index(&file));
    let beside = place.path("file.zst.sidx");
    let whole = fs::read(&beside).unwrap();

    // The file was changed: by its size, by a head, in the middle of a frame.
    let longer = [&frames.concat()[..], &frames[1]].concat();
    fs::write(&file, longer).unwrap();
    fails(&unpacked(&place, &file), 2, "another size");
    let turned = [&frames[1][..], &frames[0]].concat();
    fs::write(&file, turned).unwrap();
    fails(&unpacked(&place, &file), 2, "not to be used");
    let mut changed = frames.concat();
    changed[frames[0].len() / 2] ^= 1;
    fs::write(&file, &changed).unwrap();
    fails(&unpacked(&place, &file), 2, "frame 0 ");
    let output = run(sidecore(&["block", "verify", "--json"]).arg(&file));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["bad_frames"][0], 0);
    // A damaged frame gets no index.
    fails(
        &index(&file),
        2,
        "frame 0, at byte 0 of the file, is damaged",
    );
    fs::write(&file, frames.concat()).unwrap();

    // The index was changed.
    for bytes in [&whole[..whole.len() - 1], b"", b"nonsense"] {
        fs::write(&beside, bytes).unwrap();
        fails(&unpacked(&place, &file), 2, "not to be used");
    }
    fs::write(&beside, &whole).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o666)).unwrap();
    fails(&unpacked(&place, &file), 2, "others may write to it");
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(unpacked(&place, &file).status.success());
}

#[test]
fn what_needs_no_index_or_can_have_none_says_so() {
    let place = Place::new();
    let raw = place.write("raw", &contents(200_000));
    let image = place.path("image");
    pack(&raw, &image, &[]);
    fails(&index(&image), 2, "has an index of its own");
    fails(&index(&raw), 2, "is no zstd file");
    let large = place.path("large");
    fs::File::create(&large).unwrap().set_len(65 << 20).unwrap();
    ok(tool("zstd").args(["-q", "-k"]).arg(&large));
    fails(
        &index(&place.path("large.zst")),
        2,
        "pack --decompress FILE",
    );
    // The same without the size in its head.
    let stream = piped(tool("zstd"), &vec![0; 65 << 20]);
    let stream = place.write("stream.zst", &stream);
    fails(&index(&stream), 2, "pack --decompress FILE");
    assert!(!place.path("large.zst.sidx").exists() && !place.path("stream.zst.sidx").exists());
}
