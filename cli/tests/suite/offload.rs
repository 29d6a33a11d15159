//! `offload bench`, from the outside: what it prints, how it ends, what it leaves behind.
//!
//! No figure is judged here. Needs the packages of `scripts/setup`.

// A test's helpers may fail it too.
#![allow(clippy::unwrap_used)]

use crate::common;

use common::refused;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The bench, with temporary files in a directory that the test looks at.
fn bench(scratch: &Path, arguments: &[&str]) -> Command {
    // A hang fails the test instead of stopping it.
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "300", env!("CARGO_BIN_EXE_sidecore")])
        .args(["offload", "bench"])
        .args(arguments)
        .env("TMPDIR", scratch);
    command
}

#[test]
fn a_quick_run_reports_trips_rows_samples_and_a_picture() {
    let scratch = tempfile::tempdir().unwrap();
    let results = tempfile::tempdir().unwrap();
    let tsv = results.path().join("samples.tsv");
    let svg = results.path().join("offload.svg");
    let output = bench(scratch.path(), &["--quick", "--json"])
        .arg("--tsv")
        .arg(&tsv)
        .arg("--svg")
        .arg(&svg)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{report}");
    let cores = report["machine"]["cores"].as_u64().unwrap();
    if cores >= 2 {
        for way in [
            "spinning_line",
            "same_process",
            "cross_process",
            "futex",
            "eventfd",
            "crossbeam",
            "rayon",
        ] {
            let trip = &report["round_trip_ns"][way];
            let (median, p99) = (trip["median"].as_f64(), trip["p99"].as_f64());
            assert!(median.unwrap() > 0.0, "{way}: {trip}");
            assert!(p99.unwrap() >= median.unwrap(), "{way}: {trip}");
            assert!(trip["ratio"].as_f64().unwrap() > 0.0, "{way}: {trip}");
        }
        assert_eq!(report["round_trip_ns"]["spinning_line"]["ratio"], 1.0);
    }
    let rows = report["edtlp"].as_array().unwrap();
    // Three numbers of workers, with and without a hog.
    assert_eq!(rows.len() as u64, 3 * 2 * cores.min(2), "{rows:?}");
    for row in rows {
        assert!(
            row["workers"].is_u64() && row["worker_cores"].is_u64(),
            "{row}"
        );
        assert!(row["hog"].is_boolean(), "{row}");
        for key in ["spin_us", "edtlp_us", "block_us"] {
            // No cycle can end before its engine does.
            assert!(row[key].as_f64().unwrap() > 96.0, "{key} of {row}");
        }
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    for group in ["throughput", "sharing", "idle", "slice", "targets"] {
        assert!(
            !report[group].as_array().unwrap().is_empty(),
            "{group}: {report}"
        );
    }
    let samples = std::fs::read_to_string(&tsv).unwrap();
    assert!(samples.starts_with("# machine: "), "{samples}");
    assert!(samples.contains("\nedtlp\tcycle\t"), "{samples}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("<svg"));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn one_group_alone_prints_tables_and_says_which_wishes_are_met() {
    let scratch = tempfile::tempdir().unwrap();
    let output = bench(scratch.path(), &["--quick", "--only", "idle"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["machine: ", "quick run", "\nIdle\n", "\nWhat is wanted\n"] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    assert!(!text.contains("Round trips"), "{text}");
}

#[test]
fn the_pattern_suites_report_every_construct_and_the_curves_of_every_pattern() {
    let scratch = tempfile::tempdir().unwrap();
    let results = tempfile::tempdir().unwrap();
    let svg = results.path().join("patterns.svg");
    let output = bench(scratch.path(), &["--quick", "--only", "patterns", "--json"])
        .arg("--svg")
        .arg(&svg)
        .output()
        .unwrap();
    // A task that did not find what it needs fails the run.
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let constructs = report["overheads"].as_array().unwrap().iter();
    let constructs: Vec<_> = constructs.map(|row| &row["construct"]).collect();
    let expected = "parallel for_static for_dynamic for_guided barrier reduction single";
    let expected: Vec<&str> = expected.split(' ').collect();
    assert_eq!(constructs, expected);
    let rows = report["patterns"].as_array().unwrap();
    let expected = "trivial no_comm stencil_1d stencil_1d_periodic dom tree fft nearest spread \
                    all_to_all random_nearest";
    for pattern in expected.split(' ') {
        let of_pattern = rows.iter().filter(|row| row["pattern"] == pattern);
        let of_pattern: Vec<_> = of_pattern.collect();
        let runners: Vec<_> = of_pattern.iter().map(|row| &row["runner"]).collect();
        assert!(runners.len() >= 2, "{pattern}: {runners:?}");
        assert_eq!(runners[..2], ["sidecore", "rayon"], "{pattern}");
        for row in of_pattern {
            let tasks = row["tasks"].as_u64().unwrap();
            assert!((15..=64).contains(&tasks), "{row}");
            assert_eq!(row["dependences"] == 0, pattern == "trivial", "{row}");
            let curve = row["curve"].as_array().unwrap();
            assert_eq!(curve.len(), 3, "{row}");
            for point in curve {
                for key in ["kernel_us", "granularity_us", "efficiency"] {
                    assert!(point[key].as_f64().unwrap() > 0.0, "{key} of {row}");
                }
            }
        }
    }
    let drawn = std::fs::read_to_string(&svg).unwrap();
    for words in ["Graphs of tasks", "stencil_1d_periodic", "random_nearest"] {
        assert!(drawn.contains(words), "{words} is not in the picture");
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn a_signal_ends_it_and_its_processes() {
    let scratch = tempfile::tempdir().unwrap();
    // Not under `timeout`: a signal that reaches it before it has recorded its child's PID ends it
    // alone.
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["offload", "bench", "--quick", "--only", "edtlp"])
        .env("TMPDIR", scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mark = scratch.path().to_str().unwrap().to_owned();
    wait_for(&mut child, || children_of(&mark) > 1);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it did not end within two minutes of the signal");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("interrupted"), "{errors}");
    assert_eq!(children_of(&mark), 0, "processes were left behind");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_run_is_refused_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let cases = [
        (["--tsv", "/nonexistent/samples.tsv"], "cannot write"),
        (["--only", "everything"], "possible values"),
    ];
    refused(
        scratch.path(),
        |arguments| bench(scratch.path(), arguments),
        &cases,
    );
    let output = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["offload", "peer", "nothing"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn programs_of_another_c_library_run_without_the_library() {
    let scratch = tempfile::tempdir().unwrap();
    let run = |command: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_sidecore"))
            .args(["offload", "run", "--"])
            .args(command)
            .current_dir(scratch.path())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, maps, said) = run(&["cat", "/proc/self/maps"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(maps.contains("libsidecore_z.so"), "{maps}");
    let source = "#include <stdio.h>\nint main(void) { puts(\"as ever\"); return 7; }\n";
    std::fs::write(scratch.path().join("program.c"), source).unwrap();
    let compiler = Command::new("musl-gcc")
        .args(["-o", "program", "program.c"])
        .current_dir(scratch.path())
        .output();
    if !compiler.is_ok_and(|output| output.status.success()) {
        eprintln!("NOT TESTED: musl-gcc is missing (scripts/setup)");
        return;
    }
    // A child of a program that has the library, too.
    for command in [&["./program"][..], &["sh", "-c", "./program; exit $?"]] {
        let result = run(command);
        assert_eq!(result, (Some(7), "as ever\n".to_owned(), String::new()));
    }
}

/// Our processes whose temporary files go there: the bench and its children.
fn children_of(scratch: &str) -> usize {
    let mark = format!("TMPDIR={scratch}");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = entries.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    environments
        .filter(|bytes| {
            bytes
                .split(|&byte| byte == 0)
                .any(|word| word == mark.as_bytes())
        })
        .count()
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
