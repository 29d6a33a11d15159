//! Overlays on an encrypted image, by its commands: serve, clone, diff, commit, export.
//!
//! Must stay true: no written data lies in the clear unless a command says so.

use super::MIB;
use super::place::{Place, ok};
use std::ops::Deref;

/// Bytes that qemu-io writes: a run of this byte this long occurs nowhere else.
const PATTERN: [u8; 64] = [0xa7; 64];

struct Scratch {
    place: Place,
    contents: Vec<u8>,
    recipient: String,
}

impl Scratch {
    fn new() -> Self {
        let place = Place::new();
        let contents: Vec<u8> = (0..2 * MIB).map(|at| (at / 97 % 251) as u8).collect();
        std::fs::write(place.path("disk.raw"), &contents).unwrap();
        let mut scratch = Self {
            place,
            contents,
            recipient: String::new(),
        };
        scratch.recipient = scratch.key("one");
        let recipient = scratch.recipient.clone();
        let pack = ["pack", "disk.raw", "-o", "disk.img", "--encrypt"];
        scratch.block(&[&pack[..], &["--recipient", &recipient]].concat());
        scratch
    }

    /// Makes an identity; returns its public key.
    fn key(&self, name: &str) -> String {
        let path = self.path(name);
        let path = path.to_str().unwrap();
        let keygen = |option| ok("age-keygen", &[option, path]).trim().to_owned();
        keygen("-o");
        keygen("-y")
    }

    /// Serves the image with an overlay, and has qemu-io do these.
    fn io(&self, overlay: &str, commands: &[&str]) {
        let serving = self.serve_with(overlay, &["--identity", "one"]);
        self.place.io(commands);
        assert_eq!(serving.end("-TERM"), Some(0));
    }

    /// True where one of the files holds the written data.
    fn shows(&self, names: &[&str]) -> bool {
        names.iter().any(|name| {
            let bytes = std::fs::read(self.path(name)).unwrap();
            bytes.windows(PATTERN.len()).any(|window| window == PATTERN)
        })
    }
}

impl Deref for Scratch {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

fn with_key<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &["--identity", "one"]].concat()
}

#[test]
fn what_is_written_to_an_encrypted_image_stays_encrypted() {
    let mut scratch = Scratch::new();
    scratch.io(
        "one.ovl",
        &["write -P 0xa7 64k 12k", "write -z 1M 64k", "flush"],
    );
    scratch.contents[65536..77824].fill(0xa7);
    scratch.contents[MIB..MIB + 65536].fill(0);
    let info: serde_json::Value =
        serde_json::from_str(&scratch.block(&["info", "one.ovl", "--json"])).unwrap();
    assert_eq!(info["encrypted"], true);
    assert!(info["stored_bytes"].is_null());

    // A clone needs the image, and its key.
    let clone = ["clone", "one.ovl", "two.ovl", "--layer"];
    let said = scratch.refused(&clone);
    assert!(
        said.contains("--base") && said.contains("disk.img"),
        "{said}"
    );
    let base = [&clone[..], &["--base", "disk.img"]].concat();
    assert!(scratch.refused(&base).contains("it is encrypted"));
    scratch.block(&with_key(&base));
    scratch.io(
        "two.ovl",
        &["read -P 0xa7 64k 12k", "write -P 0xa7 1900k 8k", "flush"],
    );
    scratch.contents[1900 << 10..1908 << 10].fill(0xa7);
    let diff = ["diff", "one.ovl", "two.ovl", "--base", "disk.img"];
    assert_eq!(scratch.block(&with_key(&diff)), "1945600 8192\n");

    // One layer in place of two is encrypted as they are.
    let rebase = ["rebase", "disk.img", "two.ovl"];
    scratch.block(&with_key(&[&rebase[..], &["flat.ovl"]].concat()));
    assert!(!scratch.shows(&["flat.ovl"]));
    let reads = [
        "read -P 0xa7 64k 12k",
        "read -P 0xa7 1900k 8k",
        "read -P 0 1M 64k",
    ];
    scratch.io("flat.ovl", &reads);

    // For the same readers, and for another one alone.
    let other = scratch.key("other");
    let commit = ["commit", "disk.img", "one.ovl", "two.ovl", "-o"];
    scratch.block(&with_key(&[&commit[..], &["same.img", "--tree"]].concat()));
    let named = [&commit[..], &["other.img", "--recipient", &other]].concat();
    scratch.block(&with_key(&named));
    assert!(!scratch.shows(&["one.ovl", "two.ovl", "same.img", "other.img"]));
    for (image, reader, stranger) in [("same.img", "one", "other"), ("other.img", "other", "one")] {
        scratch.block(&["verify", image, "--identity", reader]);
        scratch.block(&["unpack", image, "-o", "back", "--identity", reader]);
        assert!(std::fs::read(scratch.path("back")).unwrap() == scratch.contents);
        let said = scratch.refused(&["verify", image, "--identity", stranger]);
        assert!(said.contains("none of the keys"), "{said}");
    }

    // Data in the clear is reported.
    let export = [
        "export",
        "disk.img",
        "--overlay",
        "two.ovl",
        "--qcow2",
        "-o",
        "out.qcow2",
    ];
    let output = scratch.output(&with_key(&export));
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("out.qcow2 is in the clear"), "{said}");
    assert!(scratch.shows(&["out.qcow2"]));

    // An overlay that was not written with the key is refused.
    let serve = |image, overlay| ["serve", image, "--overlay", overlay, "--nbd", "unix:x"];
    scratch.block(&["unpack", "disk.img", "-o", "again.raw", "--identity", "one"]);
    scratch.block(&["pack", "again.raw", "-o", "plain.img"]);
    scratch.block(&["clone", "plain.img", "plain.ovl"]);
    let onto = ["clear.ovl", "--onto", "plain.img"];
    let said = scratch.refused(&with_key(&[&rebase[..], &onto].concat()));
    assert!(said.contains("it is not encrypted"), "{said}");
    assert!(!scratch.path("clear.ovl").exists());
    let said = scratch.refused(&with_key(&serve("disk.img", "plain.ovl")));
    assert!(said.contains("another image"), "{said}");
    let said = scratch.refused(&serve("plain.img", "two.ovl"));
    assert!(said.contains("another image"), "{said}");
}
