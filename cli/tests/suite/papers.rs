//! `papers`, from the outside: what it makes, keeps, resumes and leaves behind. Only parts that
//! take no time are run; the page's contents are tested in `cell/papers`.
//!
//! `sidecore cell` as a program: its JSON keys, and its exit status on bad input.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::watching;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Parts of a second or less.
const SHORT: &str = "cell-table2,cell-uio";
/// A part of many seconds, and words of its command.
const LONG: &str = "cell-fig8";
const LONG_WORDS: &str = "cell\0fig8\0";

fn papers(state: &Path, arguments: &[&str]) -> Command {
    // A hang fails the test instead of stopping it.
    let mut command = Command::new("timeout");
    command.args([
        "--kill-after=5",
        "300",
        env!("CARGO_BIN_EXE_sidecore"),
        "papers",
    ]);
    command.args(arguments).arg("--state").arg(state);
    command.stdin(Stdio::null());
    command
}

fn run(state: &Path, arguments: &[&str]) -> Output {
    papers(state, arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", errors(output)))
}

fn part<'a>(report: &'a serde_json::Value, id: &str) -> &'a serde_json::Value {
    let parts = report["parts"].as_array().unwrap();
    parts.iter().find(|part| part["id"] == id).unwrap()
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

fn wait_until(what: &str, mut seen: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !seen() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn finished_parts_are_kept_used_again_and_shown() {
    let state = tempfile::tempdir().unwrap();
    let page = state.path().join("page.html");
    let page = page.to_str().unwrap();
    let arguments = ["--quick", "--only", SHORT, "-o", page, "--json"];
    let first = run(state.path(), &arguments);
    assert_eq!(first.status.code(), Some(0), "{}", errors(&first));
    assert!(errors(&first).contains("[2/2]"), "{}", errors(&first));
    let report = json(&first);
    let row = |report: &serde_json::Value, key: &str| {
        let figures = report["figures"].as_array().unwrap();
        let mut rows = figures
            .iter()
            .flat_map(|figure| figure["rows"].as_array().unwrap());
        rows.find(|row| row["key"] == key).unwrap().clone()
    };
    let one_spe = row(&report, "spe_uio.dd_mb_s.one_spe");
    assert_eq!(one_spe["paper"], 54.7);
    assert!(
        one_spe["model"]["value"].as_f64().unwrap() > 0.0,
        "{one_spe}"
    );
    assert_eq!(one_spe["here"]["kind"], "missing", "{one_spe}");
    assert_eq!(row(&report, "mgps.mgps.history")["model"]["value"], 8.0);
    assert_eq!(
        row(&report, "mgps.mgps.llp_when_u_at_most")["model"]["value"],
        4.0
    );
    assert_eq!(
        row(&report, "mgps.mgps.spes_per_loop")["model"]["text"],
        "8, 4, 2, 2, 1, 1, 1, 1"
    );
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("id=\"mgps.table2_llp_s\""));
    // Nothing is run again, and the page is the same except for its time stamp.
    let again = run(state.path(), &arguments);
    assert_eq!(again.status.code(), Some(0));
    assert!(!errors(&again).contains("[1/"), "{}", errors(&again));
    let began = |report: &serde_json::Value| part(report, "cell-uio")["began_unix_s"].clone();
    assert_eq!(began(&report), began(&json(&again)));
    // Unless that is requested.
    let fresh = run(state.path(), &["--fresh", "--only", "cell-uio", "--json"]);
    assert!(errors(&fresh).contains("[1/1]"), "{}", errors(&fresh));
    // Another user's result is not used.
    let kept = state.path().join("cell-uio.full.json");
    let text = std::fs::read_to_string(&kept).unwrap();
    std::fs::write(&kept, text.replace("\"sidecore 0", "\"sidecore 9")).unwrap();
    let other = run(state.path(), &["--no-run", "--json"]);
    let why = part(&json(&other), "cell-uio")["missing"].clone();
    assert!(why.as_str().unwrap().contains("another version"), "{why}");
}

#[test]
fn a_stopped_run_is_gone_on_with() {
    let state = tempfile::tempdir().unwrap();
    let page = state.path().join("page.html");
    let arguments = [
        "--only",
        "cell-table2,cell-fig8",
        "-o",
        page.to_str().unwrap(),
    ];
    let child = papers(state.path(), &arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let kept = state.path().join("cell-table2.full.json");
    wait_until("the second part", || {
        watching::descendant(child.id(), LONG_WORDS).is_some()
    });
    assert!(kept.exists());
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", errors(&output));
    assert!(errors(&output).contains("goes on"), "{}", errors(&output));
    assert!(!page.exists(), "no half page");
    assert!(
        !state.path().join("cell-fig8.full.json").exists(),
        "no half result"
    );
    let again = run(
        state.path(),
        &["--only", "cell-table2", "-o", page.to_str().unwrap()],
    );
    assert_eq!(again.status.code(), Some(0), "{}", errors(&again));
    assert!(
        !errors(&again).contains("[1/"),
        "it was kept: {}",
        errors(&again)
    );
    assert!(page.exists());
}

/// SIGKILL cannot be caught: the part that was running must end all the same.
#[test]
fn a_killed_run_leaves_nothing_running_and_is_gone_on_with() {
    let state = tempfile::tempdir().unwrap();
    // Not below `timeout`, which would be the one that is killed.
    let mut first = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["papers", "--json", "--only", "cell-table2,cell-fig8"])
        .arg("--state")
        .arg(state.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let of_first = || watching::descendant(first.id(), LONG_WORDS);
    wait_until("the second part", || of_first().is_some());
    let part = of_first().unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    // A zombie has ended, too: it may have no parent that waits for it.
    wait_until("the part's end", || {
        let state = std::fs::read_to_string(format!("/proc/{part}/stat"));
        state.map_or(true, |state| state.contains(") Z "))
    });
    let again = run(state.path(), &["--only", "cell-table2,cell-uio", "--json"]);
    assert_eq!(again.status.code(), Some(0), "{}", errors(&again));
    assert!(!errors(&again).contains("waiting"), "{}", errors(&again));
    assert!(errors(&again).contains("[1/1]"), "{}", errors(&again));
}

#[test]
fn a_second_run_waits_for_the_first() {
    let state = tempfile::tempdir().unwrap();
    let mut first = papers(state.path(), &["--only", LONG, "--json"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It holds the lock.
    wait_until("the part", || {
        watching::descendant(first.id(), LONG_WORDS).is_some()
    });
    let mut second = papers(state.path(), &["--only", SHORT, "--json"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(second.stderr.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    assert!(line.contains("waiting"), "{line}");
    // `--no-run` measures nothing, so it does not wait for the lock.
    let shown = run(state.path(), &["--no-run", "--json"]);
    assert!(shown.status.success(), "{}", errors(&shown));
    assert!(
        !state.path().join("cell-uio.full.json").exists(),
        "it measured meanwhile"
    );
    interrupt(&first);
    assert_eq!(first.wait().unwrap().code(), Some(130));
    let rest: Vec<String> = said.map(Result::unwrap).collect();
    assert_eq!(second.wait().unwrap().code(), Some(0), "{rest:?}");
    assert!(state.path().join("cell-uio.full.json").exists());
}

#[test]
fn what_cannot_run_is_refused_before_minutes_are_spent() {
    let state = tempfile::tempdir().unwrap();
    let directory = state.path().to_str().unwrap().to_owned();
    for (arguments, words) in [
        (vec!["-o", "/nonexistent/report.html"], "cannot write"),
        (vec!["-o", &directory], "is a directory"),
        (vec!["--only", "everything"], "--list"),
        (vec!["--no-run", "--fresh"], "cannot be used with"),
    ] {
        let output = run(state.path(), &arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            errors(&output)
        );
        assert!(
            errors(&output).contains(words),
            "{arguments:?}: {}",
            errors(&output)
        );
    }
    let nowhere = run(Path::new("/proc/nowhere"), &["--list"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(errors(&nowhere).contains("--state"), "{}", errors(&nowhere));
}

#[test]
fn every_part_is_listed_with_a_command_that_there_is() {
    let state = tempfile::tempdir().unwrap();
    for quick in [&["--list"][..], &["--list", "--quick"]] {
        let output = run(state.path(), quick);
        assert!(output.status.success(), "{}", errors(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let commands = text
            .lines()
            .filter_map(|line| line.split_once("  sidecore "));
        let mut count = 0;
        for (_, words) in commands {
            count += 1;
            // The parser must know every word; `--help` comes before anything is done.
            let known = Command::new(env!("CARGO_BIN_EXE_sidecore"))
                .args(words.split(' '))
                .arg("--help")
                .output()
                .unwrap();
            assert!(known.status.success(), "{words}: {}", errors(&known));
        }
        assert!(count >= 15, "{text}");
    }
}

/// The catalogue's figures are the ones that the model and the benches print as the papers'.
#[test]
fn the_commands_quote_the_same_figures() {
    use sidecore_bench::block::figures as block;
    use sidecore_cell_sim::paper as cell;
    use sidecore_papers::Catalogue;
    use sidecore_papers::catalogue::Paper;
    let catalogue = Catalogue::built_in().unwrap();
    let of = |figure: &str, series: &str| -> Vec<f64> {
        let figure = catalogue
            .figures
            .iter()
            .find(|each| each.id == figure)
            .unwrap();
        let series = figure.series.iter().find(|each| each.name == series);
        match &series
            .unwrap_or_else(|| panic!("{}: no such series", figure.id))
            .paper
        {
            Paper::Number(number) => vec![*number],
            Paper::Numbers(numbers) => numbers.clone(),
            Paper::Words(_) => Vec::new(),
        }
    };
    let same = |figure: &str, series: &[&str], numbers: &[f64]| {
        let own: Vec<f64> = series
            .iter()
            .flat_map(|series| of(figure, series))
            .collect();
        assert_eq!(own, numbers, "{figure}");
    };
    same("mgps.table1", &["table1_edtlp_s"], &cell::TABLE1_EDTLP_S);
    same("mgps.table1", &["table1_linux_s"], &cell::TABLE1_LINUX_S);
    same("mgps.table2", &["table2_llp_s"], &cell::TABLE2_S);
    same("mgps.one_search_s", &["ppe_only"], &[cell::PPE_ONLY_S]);
    same(
        "mgps.task_us",
        &["ppe_task_us", "spe_task_us"],
        &[cell::HOST_US, cell::ENGINE_US],
    );
    let slides = ["ppe", "four_spes_best", "four_spes_worst"];
    same("spe_uio.slides_512k_us", &slides, &cell::SLIDES_512K_US);
    same("spe_uio.slides_512k_us", &slides, &block::SLIDES_512K_US);
    let factor = "spe_uio.without_pretouch_spe_setup_factor";
    same(factor, &["least", "most"], &cell::UIO_UNTOUCHED);
    same(factor, &["least", "most"], &block::UNTOUCHED_FACTOR);
    let parts = [
        "driver_to_daemon",
        "daemon_setup",
        "daemon_to_spe",
        "spe_setup",
        "spe_decompress",
    ];
    same(
        "spe_uio.breakdown_us_per_block",
        &parts,
        &cell::UIO_PARTS_US,
    );
    same(
        "spe_uio.image_mb",
        &["raw", "minilzo", "gzip9"],
        &block::IMAGE_MB,
    );
    same("spe_uio.mmap_us", &["x86"], &block::MMAP_X86_US);
    same("spe_uio.mmap_us", &["ppe"], &block::MMAP_PPE_US);
    same("spe_uio.context_switch_us", &["x86"], &block::SWITCH_X86_US);
    same("spe_uio.context_switch_us", &["ppe"], &block::SWITCH_PPE_US);
    let three = |figure: &str, series: [&str; 3], paper: block::Three| {
        same(figure, &series, &[paper.x86, paper.ppe, paper.spe]);
    };
    three("spe_uio.dd_mb_s", ["x86", "ppe", "one_spe"], block::DD_MB_S);
    three("spe_uio.diff_ms", ["x86", "ppe", "one_spe"], block::DIFF_MS);
    let lzo = "spe_uio.minilzo_64k_us";
    three(
        lzo,
        ["binary.x86", "binary.ppe", "binary.spe"],
        block::MINILZO_BINARY_US,
    );
    three(
        lzo,
        ["text.x86", "text.ppe", "text.spe"],
        block::MINILZO_TEXT_US,
    );
}

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
