//! `block bench`, from the outside: what it prints, how it ends, what it leaves behind.
//!
//! No figure is judged here. Needs the packages of `scripts/setup`.

use crate::common;

use common::refused;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn bench(scratch: &Path, arguments: &[&str]) -> Command {
    // A hang fails the test instead of stopping it.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "300", env!("CARGO_BIN_EXE_sidecore")]);
    command
        .args(["block", "bench"])
        .args(arguments)
        .arg("--scratch")
        .arg(scratch);
    command
}

#[test]
fn a_quick_run_reports_rows_peers_samples_and_a_picture() {
    let scratch = tempfile::tempdir().unwrap();
    let results = tempfile::tempdir().unwrap();
    let (tsv, svg) = (
        results.path().join("samples.tsv"),
        results.path().join("block.svg"),
    );
    let output = bench(scratch.path(), &["--quick", "--rounds", "2", "--json"])
        .args(["--only", "lzo,stages"])
        .arg("--tsv")
        .arg(&tsv)
        .arg("--svg")
        .arg(&svg)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        assert!(row["name"].is_string() && row["unit"].is_string(), "{row}");
        assert!(row["here"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["paper"].is_number() || row["paper"].is_null(), "{row}");
    }
    let inflate = rows
        .iter()
        .find(|row| row["name"] == "block LZO1X: inflate")
        .unwrap();
    assert_eq!(inflate["paper"], 636.0);
    let peers = report["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 2, "{peers:?}");
    for peer in peers {
        assert!(
            peer["name"].is_string() && peer["metric"].is_string(),
            "{peer}"
        );
        for key in ["here", "peer", "ratio"] {
            assert!(peer[key].as_f64().unwrap() > 0.0, "{key} of {peer}");
        }
        assert!(peer["spread"].as_f64().unwrap() >= 0.0, "{peer}");
    }
    assert_eq!(report["failures"].as_array().unwrap().len(), 0);
    let samples = std::fs::read_to_string(&tsv).unwrap();
    assert!(samples.starts_with("# machine: "), "{samples}");
    // Two kinds of streams, two programs, two rounds; on a busy machine one round may have to do.
    let taken = samples.lines().filter(|it| it.starts_with("lzo\t")).count();
    assert!([4, 6, 8].contains(&taken), "{samples}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("<svg"));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn a_signal_ends_it_in_order() {
    let scratch = tempfile::tempdir().unwrap();
    // Not under `timeout`: a signal that reaches it before it has recorded its child's PID ends it
    // alone.
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["block", "bench", "--quick", "--only", "nbd", "--scratch"])
        .arg(scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&mut child, || {
        let below = std::fs::read_dir(scratch.path()).unwrap().next();
        below.is_some_and(|entry| entry.unwrap().path().join("large.raw").exists())
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("interrupted"), "{errors}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_run_is_refused_before_minutes_are_spent() {
    let scratch = tempfile::tempdir().unwrap();
    let cases = [
        (["--tsv", "/nonexistent/samples.tsv"], "cannot write"),
        (["--only", "everything"], "possible values"),
        (["--rounds", "0"], "0"),
        (["--quick", "/nonexistent/image"], "cannot open"),
    ];
    refused(
        scratch.path(),
        |arguments| bench(scratch.path(), arguments),
        &cases,
    );
}

fn wait_for(child: &mut Child, mut seen: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !seen() {
        assert!(
            matches!(child.try_wait(), Ok(None)),
            "the bench ended too soon"
        );
        assert!(Instant::now() < until, "nothing happened for two minutes");
        std::thread::sleep(Duration::from_millis(10));
    }
}
