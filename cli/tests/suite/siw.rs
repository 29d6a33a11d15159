//! RDMA over the stack with Linux's software iWARP in a guest: the short form of
//! `net/rdma/guest/run`, every part of it by name.
//!
//! Why here: a peer by other authors. Must stay true: a part that vanished from the script fails
//! the test. It takes half a minute. It is skipped, with a message, where the guest was not made
//! (`scripts/setup --siw`: 280 MB), without root, and where the other ends of Linux's tools were
//! not built (`cargo test --workspace` builds them, as does `cargo build -p sidecore-rdma --example
//! linux_peers`).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

use std::path::{Path, PathBuf};
use std::process::Command;

const PARTS: [&str; 22] = [
    "ours to rping -s, 100 bytes",
    "rping -c to ours, 100 bytes",
    "ours to rping -s, 60000 bytes",
    "rping -c to ours, 60000 bytes",
    "ours to rdma_server",
    "rdma_client to ours",
    "ours to ucmatose",
    "ucmatose to ours",
    "ours to ib_send_lat, 64 bytes",
    "ib_send_lat to ours, 64 bytes",
    "ours to ib_send_bw, 65536 bytes",
    "ib_send_bw to ours, 65536 bytes",
    "ours to ib_write_lat, 64 bytes",
    "ib_write_lat to ours, 64 bytes",
    "ours to ib_write_bw, 65536 bytes",
    "ib_write_bw to ours, 65536 bytes",
    "ours to ib_read_lat, 64 bytes",
    "ib_read_lat to ours, 64 bytes",
    "ours to ib_read_bw, 65536 bytes",
    "ib_read_bw to ours, 65536 bytes",
    "rcopy to ours, 2097152 bytes",
    "ours to rcopy, 2097152 bytes",
];

fn guest_is_made() -> bool {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home);
    cache.is_some_and(|cache| cache.join("sidecore/siw/ready/done").exists())
}

#[test]
fn linux_tools_and_our_ends_understand_one_another() {
    let program = Path::new(env!("CARGO_BIN_EXE_sidecore"));
    let peers = program.with_file_name("examples").join("linux_peers");
    let is_root =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let lacking = [
        (is_root, "root"),
        (guest_is_made(), "the guest: scripts/setup --siw"),
        (
            peers.exists(),
            "cargo build -p sidecore-rdma --example linux_peers",
        ),
    ];
    if let Some((_, what)) = lacking.iter().find(|(is_there, _)| !is_there) {
        println!("skipped: needs {what}");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../net/rdma/guest/run");
    let output = Command::new(script)
        .args(["--short", "--json", "--program"])
        .arg(program)
        .arg("--peers")
        .arg(&peers)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let story = format!("standard output:\n{stdout}\nstandard error:\n{stderr}");
    assert!(
        output.status.success(),
        "ended with {}\n{story}",
        output.status
    );
    let report: serde_json::Value = serde_json::from_str(&stdout).expect(&story);
    let rows = report["rows"].as_array().unwrap();
    let right: Vec<_> = rows.iter().filter(|row| row["ok"] == true).collect();
    for part in PARTS {
        let name = format!("{part}, stack, siw-11");
        let is_there = right.iter().any(|row| row["part"] == name.as_str());
        assert!(is_there, "no result of '{name}'\n{story}");
    }
    let capture = &report["capture"];
    for what in ["bad_crcs", "malformed", "terminates", "lost_frames"] {
        assert_eq!(capture[what], 0, "{what}\n{story}");
    }
    // Each sent message has a CRC.
    assert_eq!(capture["good_crcs"], capture["messages"], "{story}");
    assert!(capture["messages"].as_u64() > Some(1000), "{story}");
}
