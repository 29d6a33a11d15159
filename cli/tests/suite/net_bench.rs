//! `net bench`, from the outside: what it prints, how it ends, what it leaves behind.
//!
//! No figure is judged here. Groups that need no interfaces of the kernel's.

#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::common;

use common::refused;
use sidecore_papers::Catalogue;
use sidecore_papers::catalogue::{Curves, CurvesOf, Paper};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

fn bench(scratch: &Path, arguments: &[&str]) -> Command {
    // A hang fails the test instead of stopping it.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "300", env!("CARGO_BIN_EXE_sidecore")]);
    command.args(["net", "bench"]).args(arguments);
    command.env("TMPDIR", scratch);
    command
}

#[test]
fn a_quick_run_reports_rows_peers_curves_samples_and_a_picture() {
    let scratch = tempfile::tempdir().unwrap();
    let results = tempfile::tempdir().unwrap();
    let (tsv, svg) = (
        results.path().join("samples.tsv"),
        results.path().join("net.svg"),
    );
    let output = bench(
        scratch.path(),
        &["--quick", "--json", "--only", "rpc,papers"],
    )
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
    for row in rows {
        assert!(row["name"].is_string() && row["unit"].is_string(), "{row}");
        assert!(row["here"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["paper"].is_number() || row["paper"].is_null(), "{row}");
    }
    let paper = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no row `{name}`"))["paper"].as_f64()
    };
    assert_eq!(paper("looped back, TCP, window 26,280"), Some(4.6));
    assert_eq!(paper("a round of the loop with nothing to do"), Some(400.0));
    let peers = report["peers"].as_array().unwrap();
    assert!(!peers.is_empty());
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
    the_page_finds_its_curves(&report);
    assert_eq!(report["failures"].as_array().unwrap().len(), 0);
    let samples = std::fs::read_to_string(&tsv).unwrap();
    assert!(samples.starts_with("# machine: "), "{samples}");
    assert!(samples.contains("\npapers\t"), "{samples}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("<svg"));
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// `sidecore papers` draws these next to the document's points, which it has from its own table.
fn the_page_finds_its_curves(report: &serde_json::Value) {
    let catalogue = Catalogue::built_in().unwrap();
    let curves = report["curves"].as_array().unwrap();
    let find = |chart: &str, name: Option<&str>| {
        let same = |curve: &&serde_json::Value| {
            curve["chart"] == chart && name.is_none_or(|name| curve["name"] == name)
        };
        let found = curves.iter().find(same);
        found.unwrap_or_else(|| panic!("no curve {chart}, {name:?}"))
    };
    let mut wanted = 0;
    for answer in catalogue.answers.values() {
        for Curves { of, .. } in &answer.curves {
            if let CurvesOf::Chart { chart, only, .. } = of
                && !chart.starts_with("requests of 64 bytes")
            {
                let curve = find(chart, only.as_deref());
                assert!(curve["points"].as_array().unwrap().len() >= 4, "{curve}");
                wanted += 1;
            }
        }
    }
    assert_eq!(wanted, 5);
    let paper = |figure: &str, series: &str| {
        let figure = catalogue.figures.iter().find(|each| each.id == figure);
        let series = figure
            .unwrap()
            .series
            .iter()
            .find(|each| each.name == series);
        match series.unwrap().paper {
            Paper::Number(number) => number,
            _ => panic!("no number"),
        }
    };
    for (chart, name, at, value) in [
        (
            "TCP, end to end",
            "main memory, window 60,000",
            "main_memory.mss",
            "end_to_end_main_memory",
        ),
        (
            "TCP, end to end",
            "local store only, window 23,360",
            "local_store.mss",
            "end_to_end_local_store",
        ),
        (
            "TCP over the window",
            "main memory, segments of 5,000",
            "main_memory.window",
            "end_to_end_main_memory",
        ),
        (
            "TCP over the window",
            "local store only, segments of 1,460",
            "local_store.window",
            "end_to_end_local_store",
        ),
        (
            "looped back",
            "TCP, window 26,280",
            "loopback.mss",
            "loopback",
        ),
    ] {
        let drawn = &find(chart, Some(name))["paper"];
        let own = [paper("net.tcp_at", at), paper("net.tcp_gbps", value)];
        assert_eq!(*drawn, serde_json::json!(own), "{chart}, {name}");
    }
}

#[test]
fn a_signal_ends_it_in_order() {
    let scratch = tempfile::tempdir().unwrap();
    // Not under `timeout`: a signal that reaches it before it has recorded its child's PID ends it
    // alone.
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["net", "bench", "--only", "papers"])
        .env("TMPDIR", scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("end to end")));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let rest: Vec<String> = said.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(2), "{rest:?}");
    assert!(
        rest.iter().any(|line| line.contains("interrupted")),
        "{rest:?}"
    );
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_run_is_refused_before_minutes_are_spent() {
    let scratch = tempfile::tempdir().unwrap();
    let cases = [
        (["--tsv", "/nonexistent/samples.tsv"], "cannot write"),
        (["--only", "everything"], "possible values"),
        (["--rounds", "0"], "0"),
    ];
    refused(
        scratch.path(),
        |arguments| bench(scratch.path(), arguments),
        &cases,
    );
}
