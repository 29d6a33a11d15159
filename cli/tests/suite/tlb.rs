//! `tlb`, from the outside: what it prints, how it ends, what it leaves behind.
//!
//! No figure of the machine is judged here, only that there are some and that they agree with one
//! another.

use crate::watching;

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One at a time: the settings are the whole machine's.
static SETTINGS: Mutex<()> = Mutex::new(());

fn tlb(arguments: &[&str]) -> Command {
    // A hang fails the test instead of stopping it.
    let mut command = Command::new("timeout");
    command.args([
        "--kill-after=5",
        "200",
        env!("CARGO_BIN_EXE_sidecore"),
        "tlb",
    ]);
    command.args(arguments);
    command
}

/// The settings that a run could change; those that the machine does not have are empty.
fn settings() -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    vec![
        read("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
        read("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"),
        read("/sys/kernel/mm/transparent_hugepage/enabled"),
        read("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"),
        read("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled"),
    ]
}

#[test]
fn a_quick_run_reports_levels_granules_points_and_a_picture() {
    let results = tempfile::tempdir().unwrap();
    let (tsv, svg) = (
        results.path().join("points.tsv"),
        results.path().join("tlb.svg"),
    );
    let _alone = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = settings();
    let output = tlb(&["--quick", "--json"])
        .arg("--tsv")
        .arg(&tsv)
        .arg("--svg")
        .arg(&svg)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // 1: measured, and the machine was too busy to see a level.
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}: {errors}",
        output.status
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let levels = report["levels"].as_array().unwrap();
    assert_eq!(levels.is_empty(), output.status.code() == Some(1));
    for level in levels {
        assert!(
            level["path"].is_string() && level["corroborated"].is_boolean(),
            "{level}"
        );
        for key in ["page_bytes", "entries", "penalty_cycles", "reach_bytes"] {
            assert!(level[key].as_f64().unwrap() > 0.0, "{key} of {level}");
        }
        let confidence = level["confidence"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&confidence), "{level}");
    }
    let granules = report["effective_granule_bytes"].as_object().unwrap();
    assert_eq!(granules["4096"], 4096);
    for (pages, granule) in granules {
        assert!(
            granule.as_u64().unwrap() <= pages.parse().unwrap(),
            "{pages}: {granule}"
        );
    }
    assert!(!report["rows"].as_array().unwrap().is_empty());
    let points = std::fs::read_to_string(&tsv).unwrap();
    assert!(points.starts_with("# machine: "), "{points}");
    for path in ["load\t", "dma-copy\t", "dma-borrow\t"] {
        assert!(points.lines().any(|line| line.starts_with(path)), "{path}");
    }
    assert!(std::fs::read_to_string(&svg).unwrap().contains("<svg"));
    assert_eq!(settings(), before, "without --reserve nothing is changed");
}

#[test]
fn a_signal_ends_it_in_order_and_settings_are_as_before() {
    let _alone = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = settings();
    // Not under `timeout`: a signal that reaches it before it has recorded its child's PID ends it
    // alone.
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["tlb", "--reserve"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(watching::until_it_watches(&mut child), "it ended at once");
    // Anywhere in the run; it takes 20 s and more.
    std::thread::sleep(Duration::from_secs(2));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.trim_end().ends_with("interrupted"), "{errors}");
    assert_eq!(settings(), before);
}

#[test]
fn what_cannot_run_is_refused_in_one_line() {
    for (arguments, words) in [
        (&["--core", "100000"][..], "core 100000 is not one of"),
        (&["--tsv", "/nonexistent/points.tsv"], "cannot write"),
        (&["--svg", "/nonexistent/tlb.svg"], "cannot write"),
    ] {
        let output = tlb(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
        assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
    }
    // Too little memory: 128 MiB of addresses, with the program's own.
    let program = env!("CARGO_BIN_EXE_sidecore");
    let limited = format!("ulimit -v 131072; exec '{program}' tlb --quick");
    let output = Command::new("sh").args(["-c", &limited]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("cannot map"), "{errors}");
}

#[test]
fn what_is_kept_is_warned_of_when_malformed_and_forgotten_when_told() {
    let state = tempfile::tempdir().unwrap();
    let kept = state.path().join("memory.toml");
    std::fs::write(&kept, "neither this nor that").unwrap();
    let file = state.path().join("some.txt");
    std::fs::write(&file, "a pool starts to pack this").unwrap();
    let packed = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["block", "pack"])
        .arg(&file)
        .arg("-o")
        .arg(state.path().join("image"))
        .env("SIDECORE_STATE", state.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&packed.stderr);
    assert!(packed.status.success(), "{said}");
    assert!(
        said.contains("memory.toml") && said.contains("--forget"),
        "{said}"
    );

    let forget = || {
        let output = tlb(&["--forget"])
            .env("SIDECORE_STATE", state.path())
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(forget().starts_with("removed "));
    assert!(!kept.exists());
    assert_eq!(forget(), "nothing was kept\n");

    let refused = tlb(&["--learn", "--quick"]).output().unwrap();
    assert_eq!(
        refused.status.code(),
        Some(2),
        "a taste is not worth keeping"
    );
}
