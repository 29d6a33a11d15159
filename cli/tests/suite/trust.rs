//! Signed images: keys that OpenSSL has made, every command that reads images.

// A test's helpers may fail it too.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn sidecore(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    command.arg("block").args(words).current_dir(folder);
    command.output().unwrap()
}

fn ok(folder: &Path, words: &[&str]) -> String {
    let output = sidecore(folder, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Exit status 2, one line on standard error, and no output.
fn refused(folder: &Path, words: &[&str]) -> String {
    let output = sidecore(folder, words);
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    assert!(output.stdout.is_empty(), "{words:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.trim().lines().count(), 1, "{errors}");
    errors
}

fn openssl(folder: &Path, words: &[&str]) {
    let status = Command::new("openssl")
        .args(words)
        .current_dir(folder)
        .status();
    let status = status.unwrap_or_else(|error| panic!("openssl ({error}): run scripts/setup"));
    assert!(status.success(), "{words:?}");
}

fn key(folder: &Path, name: &str) {
    openssl(folder, &["genpkey", "-algorithm", "ed25519", "-out", name]);
    let public = format!("{name}.pub");
    openssl(folder, &["pkey", "-in", name, "-pubout", "-out", &public]);
}

#[test]
fn a_signed_image_is_read_by_who_trusts_the_key_or_the_root() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let raw: Vec<u8> = (0..200_000_u32)
        .flat_map(|i| (i / 7).to_le_bytes())
        .collect();
    std::fs::write(folder.join("raw"), &raw).unwrap();
    key(folder, "builder");
    key(folder, "stranger");
    let packed = ok(
        folder,
        &["pack", "raw", "-o", "signed", "--sign", "builder", "--json"],
    );
    let packed: serde_json::Value = serde_json::from_str(&packed).unwrap();
    let root = packed["root_hash"].as_str().unwrap();
    ok(folder, &["pack", "raw", "-o", "plain"]);

    let info = ok(folder, &["info", "signed", "--json"]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["root_hash"], root);
    assert_eq!(info["signed_by"].as_array().unwrap().len(), 1);

    for trust in [["--verify-key", "builder.pub"], ["--root-hash", root]] {
        let [option, value] = trust;
        ok(folder, &["verify", "signed", option, value]);
        ok(folder, &["unpack", "signed", "-o", "back", option, value]);
        assert!(std::fs::read(folder.join("back")).unwrap() == raw);
        std::fs::remove_file(folder.join("back")).unwrap();
        let shown = ok(folder, &["info", "signed", option, value]);
        assert!(shown.contains("(trusted)"), "{shown}");
        let error = refused(folder, &["unpack", "plain", "-o", "back", option, value]);
        assert!(error.contains("it has no hash tree"), "{error}");
        assert!(!folder.join("back").exists());
    }
    let stranger = ["--verify-key", "stranger.pub"];
    for command in [
        &["verify", "signed"][..],
        &["unpack", "signed", "-o", "back"],
        &["info", "signed"],
        &["mount", "signed", "there"],
        &["serve", "signed", "--nbd", "unix:socket"],
        &["attach", "signed"],
    ] {
        let words = [command, &stranger].concat();
        let error = refused(folder, &words);
        assert!(error.contains("not trusted"), "{error}");
    }
    assert!(!folder.join("back").exists());

    // One byte of one frame: the other frames are still right.
    let mut image = std::fs::read(folder.join("signed")).unwrap();
    image[1000] ^= 1;
    std::fs::write(folder.join("signed"), image).unwrap();
    let output = sidecore(folder, &["verify", "signed", "--root-hash", root, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["bad_frames"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_signed_or_trusted_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    std::fs::write(folder.join("raw"), [7; 10_000]).unwrap();
    let error = refused(folder, &["pack", "raw", "-o", "image", "--sign", "none"]);
    assert!(error.contains("cannot be read"), "{error}");
    let error = refused(folder, &["pack", "raw", "-o", "image", "--sign", "raw"]);
    assert!(
        error.contains("cannot be read") || error.contains("no private"),
        "{error}"
    );
    let cloop = ["pack", "raw", "-o", "image", "--tree", "--format", "cloop"];
    let error = refused(folder, &cloop);
    assert!(error.contains("take --format zstd or lz4"), "{error}");
    assert!(!folder.join("image").exists());
    ok(folder, &["pack", "raw", "-o", "image", "--tree"]);
    let error = refused(folder, &["info", "image", "--root-hash", "12"]);
    assert!(error.contains("64 hexadecimal digits"), "{error}");
    let raw = [
        "serve",
        "image",
        "--raw",
        "--root-hash",
        &"0".repeat(64),
        "--nbd",
        "unix:s",
    ];
    let error = refused(folder, &raw);
    assert!(error.contains("--raw"), "{error}");
}
