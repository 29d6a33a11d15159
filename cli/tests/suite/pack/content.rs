//! Frames whose boundaries follow the contents: `block pack --cdc`.

use super::tools::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

#[test]
fn content_defined_frames_go_round_and_do_not_depend_on_engines_or_pipes() {
    let place = Place::new();
    let contents = contents(3_000_000);
    let raw = place.write("raw", &contents);
    let (image, again, back) = (place.path("image"), place.path("again"), place.path("back"));
    for format in ["zstd", "lz4"] {
        let options = ["--cdc", "--frame", "16KiB", "--format", format, "--json"];
        let report = json(&pack(&raw, &image, &options));
        let info = json(&ok(sidecore(&["block", "info", "--json"]).arg(&image)));
        // Zeros make the largest frames that there are.
        assert_eq!(info["frame_bytes"], 64 << 10);
        assert_eq!(info["frames"], report["frames"]);
        assert_eq!(info["raw_bytes"], contents.len());
        let mut one = options.to_vec();
        one.extend(["--engines", "1"]);
        pack(&raw, &again, &one);
        let whole = fs::read(&image).unwrap();
        assert!(fs::read(&again).unwrap() == whole, "{format}: engines");
        let mut stream = sidecore(&["block", "pack", "-", "-o", "-"]);
        stream.args(&options[..5]);
        assert!(piped(stream, &contents) == whole, "{format}: a pipe");
        let verified = json(&ok(sidecore(&["block", "verify", "--json"]).arg(&image)));
        assert_eq!(verified["bad_frames"].as_array().unwrap().len(), 0);
        ok(&mut unpack(&image, &back));
        assert!(fs::read(&back).unwrap() == contents, "{format}");
        let other = ok(tool(format)
            .args(["-d", "-c"])
            .stdin(fs::File::open(&image).unwrap()));
        assert!(other.stdout == contents, "{format} -d");
        // A bit of the index changed: never taken for another layout.
        let mut damaged = whole.clone();
        let at = damaged.len() - 3000;
        damaged[at] ^= 1;
        fs::write(&again, &damaged).unwrap();
        let output = run(&mut unpack(&again, &back));
        if output.status.success() {
            assert!(fs::read(&back).unwrap() == contents, "{format}: damaged");
        }
    }
}

#[test]
fn holes_give_the_frames_that_their_zeros_give() {
    let place = Place::new();
    let (raw, dense) = (place.path("raw"), place.path("dense"));
    let file = fs::File::create(&raw).unwrap();
    file.set_len((9 << 20) + 12_345).unwrap();
    for (at, bytes) in [(0, 300_000), (4_000_000, 50_000), (9 << 20, 999)] {
        file.write_all_at(&contents(bytes), at).unwrap();
    }
    fs::write(&dense, fs::read(&raw).unwrap()).unwrap();
    let (image, other, back) = (place.path("image"), place.path("other"), place.path("back"));
    let report = json(&pack(&raw, &image, &["--cdc", "--json"]));
    assert!(report["zero_frames"].as_u64().unwrap() > 20, "{report}");
    pack(&dense, &other, &["--cdc"]);
    assert!(fs::read(&image).unwrap() == fs::read(&other).unwrap());
    ok(&mut unpack(&image, &back));
    assert!(fs::read(&back).unwrap() == fs::read(&raw).unwrap());
}

#[test]
fn content_defined_frames_are_signed_and_refused_where_they_cannot_be() {
    let place = Place::new();
    let raw = place.write("raw", &contents(400_000));
    let (image, back) = (place.path("image"), place.path("back"));
    let report = json(&pack(&raw, &image, &["--cdc", "--tree", "--json"]));
    let root = report["root_hash"].as_str().unwrap();
    let unpack = &mut sidecore(&["block", "unpack", "--root-hash", root]);
    ok(unpack.arg(&image).arg("-o").arg(&back));
    assert!(fs::read(&back).unwrap() == fs::read(&raw).unwrap());
    for format in ["cloop", "cloop-lzo", "raw"] {
        let pack = &mut sidecore(&["block", "pack", "--cdc", "--format", format]);
        let output = run(pack.arg(&raw).arg("-o").arg(place.path("none")));
        fails(&output, 2, "leave out --cdc");
    }
    let pack = &mut sidecore(&["block", "pack", "--cdc", "--encrypt"]);
    let pack = pack.arg(&raw).arg("-o").arg(place.path("none"));
    let output = run(pack.stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(2));
    place.holds(&["raw", "image", "back"]);
}

#[test]
fn small_is_a_frame_size_and_a_level_that_others_overrule() {
    let place = Place::new();
    let raw = place.write("raw", &contents(2 << 20));
    let (image, other) = (place.path("image"), place.path("other"));
    let small = json(&pack(&raw, &image, &["--small", "--json"]));
    assert_eq!(small["frame_bytes"], 256 << 10);
    let plain = json(&pack(&raw, &other, &["--json"]));
    assert!(small["stored_bytes"].as_u64() < plain["stored_bytes"].as_u64());
    let same = ["--tune", "size", "--level", "19", "--frame", "256KiB"];
    pack(&raw, &other, &same);
    assert!(fs::read(&image).unwrap() == fs::read(&other).unwrap());
    let report = json(&pack(
        &raw,
        &other,
        &["--small", "--frame", "64KiB", "--json"],
    ));
    assert_eq!(report["frame_bytes"], 64 << 10);
    let mut lz4 = sidecore(&["block", "pack", "--small", "--format", "lz4"]);
    fails(&run(lz4.arg(&raw).arg("-o").arg(&other)), 2, "about zstd");
}
