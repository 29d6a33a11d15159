//! A thin disk of 8 TiB under an overlay: served in little memory, and committed, exported and
//! compared without going over its holes.

use crate::overlay::place::{Place, ok};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

const TIB: u64 = 1 << 40;

fn thin_disk() -> Place {
    let place = Place::new();
    let file = File::create(place.path("disk.raw")).unwrap();
    file.set_len(8 * TIB).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    file.write_all_at(&[2; 100_000], 5 * TIB).unwrap();
    place.block(&["pack", "disk.raw", "-o", "disk.img"]);
    place
}

fn bytes_at(place: &Place, name: &str, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    let file = File::open(place.path(name)).unwrap();
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn a_thin_disk_is_served_written_and_committed_in_little_memory() {
    let place = thin_disk();
    let serving = place.serve_with("one.ovl", &["--memory", "32MiB", "--engines", "2"]);
    place.io(&[
        "write -P 7 7T 64k",
        "write -P 8 3T 4k",
        "read -P 7 7T 64k",
        "read -P 2 5T 90k",
        "read -P 0 6T 1M",
    ]);
    // Block status knows the holes: eight extents or so, not millions.
    let map = ok("qemu-img", &["map", "--output=json", &place.uri()]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let data = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["zero"] == false);
    let bytes: u64 = data.map(|it| it["length"].as_u64().unwrap()).sum();
    assert!(bytes < 1 << 20, "{map}");
    drop(serving);

    let info = place.json(&["info", "one.ovl", "--json"]);
    assert_eq!(info["raw_bytes"], 8 * TIB);
    assert!(info["grain_bytes"].as_u64().unwrap() > 4096);
    let differs = place.json(&["diff", "disk.img", "one.ovl", "--json"]);
    assert!(
        differs["changed_bytes"].as_u64().unwrap() < 1 << 20,
        "{differs}"
    );
    let report = place.json(&["commit", "disk.img", "one.ovl", "-o", "next.img", "--json"]);
    assert_eq!(report["raw_bytes"], 8 * TIB);
    let stored = std::fs::metadata(place.path("next.img")).unwrap().len();
    assert!(stored < 2 << 20, "{stored}");
    place.block(&["verify", "next.img"]);
    place.block(&["unpack", "next.img", "-o", "next.raw"]);
    place.block(&[
        "export",
        "disk.img",
        "--overlay",
        "one.ovl",
        "-o",
        "same.raw",
    ]);
    for name in ["next.raw", "same.raw"] {
        let metadata = std::fs::metadata(place.path(name)).unwrap();
        assert_eq!(metadata.len(), 8 * TIB);
        assert!(metadata.blocks() * 512 < 8 << 20);
        for (offset, byte) in [(0, 1), (5 * TIB, 2), (7 * TIB, 7), (3 * TIB, 8), (TIB, 0)] {
            assert_eq!(
                bytes_at(&place, name, offset),
                [byte; 8],
                "{name} at {offset}"
            );
        }
    }
    place.block(&[
        "export",
        "disk.img",
        "--overlay",
        "one.ovl",
        "--qcow2",
        "-o",
        "q.qcow2",
    ]);
    let stored = std::fs::metadata(place.path("q.qcow2")).unwrap().len();
    assert!(stored < 4 << 20, "{stored}");
    let path = place.path("q.qcow2");
    ok("qemu-img", &["check", path.to_str().unwrap()]);
    // A layer on the layer, and another image under the name: refused as before.
    place.block(&["clone", "--layer", "one.ovl", "two.ovl"]);
    let differs = place.json(&["diff", "one.ovl", "two.ovl", "--base", "disk.img", "--json"]);
    assert_eq!(differs["changed_bytes"], 0);
}
