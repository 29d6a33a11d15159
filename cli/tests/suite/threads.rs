//! Commands where the machine refuses threads (`ulimit -u`): they use fewer, or report it in one
//! line. Never a panic, a hang or a partial file.
//!
//! Needs root, since the limit applies to other users alone; each run has a user of its own without
//! other processes.

#![allow(clippy::unwrap_used)] // A test's helpers may fail it too.

use crate::server;

use server::Server;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a command as a user with a limit of `threads`, that of `main` included.
fn with_threads(at: &Path, uid: u32, threads: u32, arguments: &[&str]) -> Output {
    let uid = uid.to_string();
    Command::new("timeout")
        .args(["--kill-after=5", "120", "setpriv", "--clear-groups"])
        .args(["--reuid", &uid, "--regid", &uid, "prlimit"])
        .arg(format!("--nproc={threads}"))
        .arg(at.join("sidecore"))
        .args(arguments)
        .current_dir(at)
        .env("HOME", at)
        .env("TMPDIR", at)
        .output()
        .unwrap()
}

#[test]
fn refused_threads_are_one_line_or_done_without() {
    if !rustix::process::getuid().is_root() {
        eprintln!("NOT tested: root alone runs commands as another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o777)).unwrap();
    let raw: Vec<u8> = (0..3_000_000_u32)
        .map(|i| (i / 3) as u8 ^ (i >> 9) as u8)
        .collect();
    std::fs::write(at.join("raw"), &raw).unwrap();
    std::fs::write(at.join("a.fa"), ">a\nACGT\n>b\nACGA\n>c\nACGC\n>d\nTCGC\n").unwrap();
    std::fs::write(at.join("a.nwk"), "(a:1,b:1,(c:1,d:1):1);").unwrap();
    // The program, at a path where that user may run it.
    std::fs::copy(env!("CARGO_BIN_EXE_sidecore"), at.join("sidecore")).unwrap();
    // Of this process's own user, before anything is refused.
    let packed = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["block", "pack", "raw", "-o", "disk.img", "--level", "1"])
        .current_dir(at)
        .output()
        .unwrap();
    assert!(packed.status.success(), "{packed:?}");
    let server = Server::start(std::fs::read(at.join("disk.img")).unwrap());
    let url = server.url();
    let named = url.replace("127.0.0.1", "localhost");
    let commands: [&[&str]; 10] = [
        &["block", "pack", "raw", "-o", "out"],
        &["block", "unpack", "disk.img", "-o", "out"],
        &["block", "verify", "disk.img"],
        &["block", "info", "disk.img"],
        &["block", "info", &url],
        &["block", "info", &named],
        &["block", "unpack", &url, "-o", "out"],
        &[
            "phylo", "evaluate", "--msa", "a.fa", "--tree", "a.nwk", "--model", "JC",
        ],
        &[
            "phylo", "search", "--msa", "a.fa", "--model", "JC", "--starts", "1", "--prefix", "s",
        ],
        &["cell", "run", "--tasks", "1,2"],
    ];
    let (mut done, mut refused) = (0, 0);
    for (number, arguments) in commands.iter().enumerate() {
        for threads in [1, 2, 3, 4, 6, 12] {
            let uid = 1_650_000_000 + std::process::id() % 1_000_000 * 100 + number as u32;
            let output = with_threads(at, uid, threads, arguments);
            let said = String::from_utf8_lossy(&output.stderr);
            let case = format!("{arguments:?} with {threads} threads: {said}");
            assert!(!said.contains("panicked"), "{case}");
            let out = at.join("out");
            match output.status.code() {
                Some(0) => {
                    done += 1;
                    if out.exists() && arguments[1] == "unpack" {
                        assert!(std::fs::read(&out).unwrap() == raw, "{case}");
                    }
                }
                Some(2) => {
                    refused += 1;
                    let lines = said.lines().filter(|line| line.starts_with("sidecore: "));
                    assert_eq!(lines.count(), 1, "{case}");
                    assert!(
                        said.contains("thread") || said.contains("os error 11"),
                        "{case}"
                    );
                    assert!(!out.exists(), "half a file: {case}");
                }
                other => panic!("status {other:?}: {case}"),
            }
            let _ = std::fs::remove_file(&out);
            for entry in at.read_dir().unwrap().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("s.") {
                    std::fs::remove_file(entry.path()).unwrap();
                }
                assert!(!name.contains("out"), "{name} is left: {case}");
            }
        }
    }
    assert!(done > 10 && refused > 5, "{done} done, {refused} refused");
}
