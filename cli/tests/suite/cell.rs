//! `sidecore cell` as a program: its JSON keys, and its exit status on bad input.

#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

use std::path::Path;

use std::process::{Command, Output};

fn cell(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .arg("cell")
        .args(arguments)
        .output()
        .unwrap()
}

fn rows(arguments: &[&str]) -> Vec<serde_json::Value> {
    let output = cell(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    report["rows"].as_array().unwrap().clone()
}

fn keys(row: &serde_json::Value, keys: &[&str]) {
    for key in keys {
        assert!(row.get(key).is_some(), "no {key} in {row}");
    }
}

#[test]
fn the_keys_that_other_tools_rely_on() {
    let table1 = rows(&["table1", "--json"]);
    assert_eq!(table1.len(), 8);
    let of_table1 = [
        "workers",
        "paper_edtlp_s",
        "model_edtlp_s",
        "edtlp_fitted",
        "paper_linux_s",
        "model_linux_s",
        "linux_fitted",
    ];
    keys(&table1[0], &of_table1);
    keys(
        &rows(&["table2", "--json"])[0],
        &["engines", "paper_s", "model_s", "input"],
    );
    keys(
        &rows(&["uio", "--json"])[0],
        &["name", "paper", "model", "unit"],
    );
    let figure = rows(&["fig9", "--bootstraps", "1,9", "--json"]);
    let of_figure = [
        "bootstraps",
        "edtlp_s",
        "hybrid_s",
        "mgps_s",
        "equi_s",
        "lower_bound_s",
    ];
    keys(&figure[0], &of_figure);
}

#[test]
fn a_machine_and_policies_of_ones_own() {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/machines/64-engines.toml");
    let machine = machine.to_str().unwrap();
    let found = rows(&[
        "run",
        "--machine",
        machine,
        "--policy",
        "hybrid(4),equi",
        "--tasks",
        "3,70",
        "--json",
    ]);
    assert_eq!(found.len(), 4);
    keys(&found[0], &["tasks", "policy", "seconds", "lower_bound_s"]);
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("run.svg");
    rows(&[
        "table1",
        "--machine",
        machine,
        "--json",
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("workers"));
}

#[test]
fn bad_input_is_one_line_and_exit_status_2() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.toml");
    let cell_toml = include_str!("../../../cell/sim/machines/cell.toml");
    std::fs::write(&bad, cell_toml.replace("count = 8", "count = 0")).unwrap();
    let rubbish = folder.path().join("rubbish.toml");
    std::fs::write(&rubbish, "[host\ncores = many").unwrap();
    let (bad, rubbish) = (bad.to_str().unwrap(), rubbish.to_str().unwrap());
    let cases: [(&[&str], &str); 6] = [
        (&["run", "--policy", "fifo"], "hybrid(N)"),
        (&["fig8", "--machine", bad], "engines.count is 0"),
        (&["table1", "--machine", rubbish], "line 1"),
        (&["table1", "--machine", "/nowhere.toml"], "/nowhere.toml"),
        (
            &["table1", "--svg", "/nowhere/table1.svg"],
            "cannot write /nowhere/table1.svg",
        ),
        (&["uio", "--machine", bad], "no --machine"),
    ];
    for (arguments, says) in cases {
        let output = cell(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{arguments:?}: {text}");
        assert!(text.contains(says), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}
