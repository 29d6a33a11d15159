//! `sidecore phylo search` from outside: results that depend on the seed alone, runs that resume.

use crate::watching;

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    command.arg("phylo").args(arguments).current_dir(folder);
    command
}

fn sidecore(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("sidecore runs")
}

fn done(output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}

fn json(output: &Output) -> Value {
    done(output);
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Exit status 2 and one line that has `part` in it.
fn refused(output: &Output, part: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    assert!(error.contains(part), "{error}");
}

const TRUTH: &str = "GTR{1/4/1/1/4/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}";

/// A folder with `a.phy` and the tree `a.nwk` that it evolved along.
fn simulated(taxa: &str, sites: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut arguments = vec![
        "simulate", "--taxa", taxa, "--sites", sites, "--model", TRUTH,
    ];
    arguments.extend(["--seed", "5", "-o", "a.phy", "--tree-out", "a.nwk"]);
    done(&sidecore(folder.path(), &arguments));
    folder
}

/// The files of a run that must be the same, by their suffixes.
fn results(folder: &Path, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let mut results = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        match name.strip_prefix(prefix) {
            None | Some(".ckp" | ".log") => {}
            Some(suffix) => {
                results.insert(suffix.to_owned(), std::fs::read(&path).expect("a file"));
            }
        }
    }
    results
}

const ALL: [&str; 12] = [
    "search",
    "--msa",
    "a.phy",
    "--model",
    "GTR+G",
    "--starts",
    "3",
    "--bootstraps",
    "6",
    "--support",
    "fbp,tbe",
    "--prefix",
];

/// Evaluates the best tree of the run `one` under its model.
const EVALUATE: [&str; 8] = [
    "evaluate",
    "--msa",
    "a.phy",
    "--tree",
    "one.bestTree",
    "--model",
    "one.bestModel",
    "--json",
];

#[test]
fn engines_and_policies_change_nothing() {
    let folder = simulated("10", "300");
    let here = folder.path();
    let report = json(&sidecore(here, &[&ALL[..], &["one", "--json"]].concat()));
    let tasks = report["tasks"].as_array().expect("tasks");
    assert_eq!(tasks.len(), 9);
    for (task, at) in tasks.iter().zip([0, 1, 2, 0, 1, 2, 3, 4, 5]) {
        assert_eq!(task["index"].as_u64(), Some(at), "{task}");
        assert!(task["wall_s"].as_f64() > Some(0.0), "{task}");
    }
    let of_kind = |kind: &str| {
        let own = tasks.iter().filter(|task| task["kind"] == kind);
        own.filter_map(|task| task["lnl"].as_f64())
            .collect::<Vec<f64>>()
    };
    assert_eq!(of_kind("bootstrap").len(), 6);
    let best = of_kind("search").into_iter().fold(f64::MIN, f64::max);
    assert_eq!(report["best_lnl"].as_f64(), Some(best));
    let expected = results(here, "one");
    let suffixes: Vec<&str> = expected.keys().map(String::as_str).collect();
    let all = [
        ".bestModel",
        ".bestTree",
        ".bootstraps",
        ".mlTrees",
        ".startTrees",
        ".support",
        ".supportAll",
        ".supportTBE",
    ];
    assert_eq!(suffixes, all);
    for (prefix, policy, engines) in [
        ("two", "edtlp", "1"),
        ("three", "hybrid(2)", "2"),
        ("four", "mgps", "3"),
    ] {
        let more = [prefix, "--policy", policy, "--engines", engines];
        done(&sidecore(here, &[&ALL[..], &more].concat()));
        assert!(results(here, prefix) == expected, "{policy}");
    }
    // The files hold the reported values.
    let lnl = json(&sidecore(here, &EVALUATE))["lnl"]
        .as_f64()
        .expect("lnl");
    assert!((lnl - best).abs() < 1e-3, "{lnl} {best}");
    // The same from outside.
    for (kind, suffix) in [("fbp", ".support"), ("tbe", ".supportTBE")] {
        let mut arguments = vec!["support", "--tree", "one.bestTree", "--support", kind];
        arguments.extend(["--bootstraps", "one.bootstraps", "-o", "again"]);
        done(&sidecore(here, &arguments));
        let again = std::fs::read(here.join("again")).expect("again");
        let digits = |text: &[u8]| {
            let text = String::from_utf8_lossy(text);
            text.split(')')
                .map(|part| part.split(':').next().unwrap_or("").to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(digits(&again), digits(&expected[suffix]), "{kind}");
    }
}

/// Waits until a run has finished this many tasks.
fn wait_for(log: &Path, tasks: usize, child: &mut Child) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(120) {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        if text.matches("log-likelihood").count() >= tasks {
            return true;
        }
        if child.try_wait().expect("a child").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no {tasks} tasks in two minutes");
}

#[test]
fn a_killed_run_goes_on_and_gives_the_same() {
    let folder = simulated("14", "400");
    let here = folder.path();
    done(&sidecore(here, &[&ALL[..], &["whole"]].concat()));
    let expected = results(here, "whole");
    let arguments = [&ALL[..], &["killed", "--save-every", "1"]].concat();
    let mut kills = 0;
    for tasks in [1, 4, 7] {
        let mut child = command(here, &arguments)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("sidecore runs");
        if wait_for(&here.join("killed.log"), tasks, &mut child) {
            child.kill().expect("killed");
            kills += 1;
        }
        child.wait().expect("ended");
    }
    assert!(kills > 0);
    let output = sidecore(here, &arguments);
    done(&output);
    assert!(results(here, "killed") == expected);
    // A finished run does nothing again. A kill may come between a task's last save and its line.
    let log = || std::fs::read_to_string(here.join("killed.log")).expect("a log");
    let before = log();
    let report = json(&sidecore(here, &[&arguments[..], &["--json"]].concat()));
    assert_eq!(report["tasks"].as_array().map(Vec::len), Some(9));
    assert_eq!(
        log().matches("log-likelihood").count(),
        before.matches("log-likelihood").count()
    );
    let tasks = (0..3).map(|start| format!("search {start}: log-likelihood"));
    let tasks = tasks.chain((0..6).map(|index| format!("bootstrap {index}: log-likelihood")));
    for task in tasks {
        assert!(before.matches(&task).count() <= 1, "{before}");
    }
    let lines = before.matches("log-likelihood").count();
    assert!((9 - 2 * kills..=9).contains(&lines), "{before}");
}

#[test]
fn a_signal_keeps_states_and_says_how_to_go_on() {
    let folder = simulated("40", "1500");
    let here = folder.path();
    let base = [
        "search", "--msa", "a.phy", "--model", "GTR+G", "--starts", "2", "--prefix",
    ];
    done(&sidecore(here, &[&base[..], &["whole"]].concat()));
    let arguments = [&base[..], &["stopped"]].concat();
    let checkpoint = here.join("stopped.ckp");
    let mut stopped = 0;
    // At once, which may be before there is a state, and then later and later.
    for pause_ms in [0, 10, 30, 100, 300, 1_000, 3_000, 10_000] {
        let mut child = command(here, &arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("sidecore runs");
        watching::until_it_watches(&mut child);
        std::thread::sleep(Duration::from_millis(pause_ms));
        let id = rustix::process::Pid::from_child(&child);
        // It may have ended by itself.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::INT);
        let output = child.wait_with_output().expect("ended");
        let error = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(130) {
            assert_eq!(output.status.code(), Some(0), "{error}");
            break;
        }
        assert!(error.contains("same command"), "{error}");
        let kept = std::fs::read_to_string(&checkpoint).expect("a checkpoint");
        stopped += u32::from(kept.contains("Saved"));
        if stopped == 3 {
            break;
        }
    }
    assert!(stopped > 0, "no state was kept");
    done(&sidecore(here, &arguments));
    assert!(results(here, "stopped") == results(here, "whole"));
}

#[test]
fn more_is_added_to_what_is_there() {
    let folder = simulated("8", "200");
    let here = folder.path();
    let base = ["search", "--msa", "a.phy", "--model", "JC", "--prefix"];
    let few = [&base[..], &["grown", "--starts", "1", "--bootstraps", "2"]].concat();
    done(&sidecore(here, &few));
    let many = ["--starts", "3", "--bootstraps", "5"];
    done(&sidecore(
        here,
        &[&base[..], &["grown"], &many[..]].concat(),
    ));
    done(&sidecore(here, &[&base[..], &["once"], &many[..]].concat()));
    assert!(results(here, "grown") == results(here, "once"));
}

#[test]
fn rapid_bootstraps_stop_when_they_have_converged() {
    let folder = simulated("8", "600");
    let here = folder.path();
    let base = [
        "search", "--msa", "a.phy", "--model", "JC", "--all", "--rapid", "--starts", "1",
    ];
    let report = json(&sidecore(
        here,
        &[&base[..], &["--prefix", "ra", "--json"]].concat(),
    ));
    assert_eq!(report["converged"].as_bool(), Some(true), "{report}");
    let bootstraps = report["bootstraps"].as_u64().expect("bootstraps");
    assert!(
        bootstraps >= 50 && bootstraps.is_multiple_of(50),
        "{bootstraps}"
    );
    let trees = std::fs::read_to_string(here.join("ra.bootstraps")).expect("trees");
    assert_eq!(trees.lines().count() as u64, bootstraps);
    let more = ["--prefix", "rb", "--engines", "3", "--policy", "edtlp"];
    done(&sidecore(here, &[&base[..], &more].concat()));
    assert!(results(here, "ra") == results(here, "rb"));
}

/// A quick climb writes the same files on any number of engines, and says what `evaluate` says.
#[test]
fn little_effort_is_one_climb() {
    let folder = simulated("40", "300");
    let here = folder.path();
    let words = ["search", "--msa", "a.phy", "--model", "GTR+G", "--effort"];
    let fast = |prefix: &str, engines: &str| {
        let more = ["fast", "--engines", engines, "--json", "--prefix", prefix];
        json(&sidecore(here, &[&words[..], &more].concat()))
    };
    let lnl = fast("one", "1")["best_lnl"].as_f64().expect("lnl");
    fast("two", "3");
    let expected = results(here, "one");
    assert!(results(here, "two") == expected);
    let suffixes: Vec<&str> = expected.keys().map(String::as_str).collect();
    let all = [".bestModel", ".bestTree", ".mlTrees", ".startTrees"];
    assert_eq!(suffixes, all);
    let again = json(&sidecore(here, &EVALUATE))["lnl"].as_f64();
    assert!(
        again.is_some_and(|again| (again - lnl).abs() < 0.1),
        "{lnl}"
    );
    // A run of more effort is another run.
    let more = ["full", "--starts", "1", "--prefix", "one"];
    let other = sidecore(here, &[&words[..], &more].concat());
    assert_eq!(other.status.code(), Some(2));
}

#[test]
fn start_trees_and_constraints() {
    let folder = simulated("9", "200");
    let here = folder.path();
    let base = ["search", "--msa", "a.phy", "--model", "JC", "--start-trees"];
    done(&sidecore(
        here,
        &[&base[..], &["a.nwk", "--prefix", "given"]].concat(),
    ));
    let start = ["compare", "given.startTrees", "a.nwk", "--json"];
    assert_eq!(json(&sidecore(here, &start))["rf"].as_u64(), Some(0));
    // Taxa that the true tree does not group.
    std::fs::write(here.join("c.nwk"), "((t1,t9),t2,t3,t4,t5,t6,t7,t8);").expect("written");
    for kind in ["parsimony", "random"] {
        let more = [
            kind,
            "--starts",
            "1",
            "--constraint",
            "c.nwk",
            "--prefix",
            kind,
        ];
        done(&sidecore(here, &[&base[..], &more].concat()));
        let tree = format!("{kind}.bestTree");
        let arguments = [
            "support",
            "--tree",
            "c.nwk",
            "--bootstraps",
            &tree,
            "--json",
        ];
        let report = json(&sidecore(here, &arguments));
        assert_eq!(report["mean"].as_f64(), Some(1.0), "{report}");
    }
}

#[test]
fn other_runs_files_are_safe() {
    let folder = simulated("6", "100");
    let here = folder.path();
    let search = |prefix: &str, more: &[&str]| {
        let base = [
            "search", "--msa", "a.phy", "--model", "JC", "--starts", "1", "--prefix", prefix,
        ];
        sidecore(here, &[&base[..], more].concat())
    };
    done(&search("p", &[]));
    refused(&search("p", &["--seed", "9"]), "another --seed (1; now 9)");
    done(&search("p", &["--seed", "9", "--redo"]));
    std::fs::remove_file(here.join("p.ckp")).expect("removed");
    refused(&search("p", &[]), "p.bestTree is there already");
    refused(
        &search("none/p", &[]),
        "cannot write under the prefix none/p",
    );
    refused(&search("q", &["--policy", "best"]), "unknown policy 'best'");
    refused(&search("q", &["--start-trees", "none.nwk"]), "none.nwk");
    let nothing = [
        "search", "--msa", "a.phy", "--model", "JC", "--starts", "0", "--prefix", "q",
    ];
    refused(&sidecore(here, &nothing), "nothing is to be done");
    let left = results(here, "q");
    assert!(left.is_empty(), "{:?}", left.keys());
}

#[test]
fn the_grain_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut arguments = vec![
        "bench",
        "grain",
        "--quick",
        "--bootstraps",
        "1,3",
        "--taxa",
        "6",
    ];
    arguments.extend(["--sites", "400", "--json", "--svg", "grain.svg"]);
    let output = sidecore(folder.path(), &arguments);
    // The claims may fail on a busy machine and are not checked here.
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for row in rows {
        for name in ["edtlp_s", "hybrid_s", "mgps_s", "equi_s"] {
            assert!(row[name].as_f64() > Some(0.0), "{row}");
        }
    }
    let svg = std::fs::read_to_string(folder.path().join("grain.svg")).expect("a picture");
    assert!(svg.starts_with("<svg") && svg.contains("MGPS"));
}

#[test]
fn as_many_rounds_of_the_grain_as_are_asked_for_are_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = [
        "bench",
        "grain",
        "--quick",
        "--bootstraps",
        "1",
        "--taxa",
        "5",
        "--sites",
        "100",
        "--rounds",
        "5",
        "--json",
    ];
    let output = sidecore(folder.path(), &arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(report["rows"][0]["rounds"], 5, "{report}");
}

/// Copies of a sequence are children of one node where branches of no length are removed.
#[test]
fn copies_make_polytomies() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let rows = [
        "ACGTACGTAC",
        "ACGTACGTAC",
        "ACGTACGTAC",
        "ACGTACGTAC",
        "TTGTACCTGG",
        "TTGTACCTGA",
    ];
    let rows = rows.iter().zip("abcdef".chars());
    let text: String = rows
        .map(|(row, name)| format!(">{name}\n{row}\n"))
        .collect();
    std::fs::write(here.join("c.fa"), text).unwrap();
    let arguments = "search --msa c.fa --model JC --starts 2 --polytomies --prefix c";
    done(&sidecore(here, &arguments.split(' ').collect::<Vec<_>>()));
    let count = |file: &str| {
        let text = std::fs::read_to_string(here.join(file)).unwrap();
        text.matches('(').count()
    };
    // Binary, with one bracket a node; then e and f, and all others.
    assert_eq!((count("c.bestTree"), count("c.bestTreeCollapsed")), (4, 2));
}
