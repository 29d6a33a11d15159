//! `sidecore phylo` from outside: files in, JSON and exit statuses out.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn sidecore(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    command
        .arg("phylo")
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("sidecore runs")
}

fn json(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Exit status 2 and one line that has `part` in it.
fn refused(output: &Output, part: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty());
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    assert!(error.contains(part), "{error}");
}

const MODEL: &str = "GTR{1/4/1/1/4/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}";

/// A folder with `a.phy` and the tree `a.nwk` that it evolved along.
fn simulated(taxa: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = [
        "simulate",
        "--taxa",
        taxa,
        "--sites",
        "300",
        "--model",
        MODEL,
        "--seed",
        "5",
        "-o",
        "a.phy",
        "--tree-out",
        "a.nwk",
    ];
    let output = sidecore(folder.path(), &arguments);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    folder
}

#[test]
fn simulate_evaluate_and_compare() {
    let folder = simulated("12");
    let here = folder.path();
    let base = [
        "evaluate", "--msa", "a.phy", "--tree", "a.nwk", "--json", "--model",
    ];
    let with = |more: &[&str]| json(&sidecore(here, &[&base[..], more].concat()));
    let fixed = with(&[MODEL, "--site-lnl", "sites"]);
    let lnl = fixed["lnl"].as_f64().expect("lnl");
    let sites = std::fs::read_to_string(here.join("sites")).expect("sites");
    let sites: Vec<f64> = sites
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(sites.len(), 300);
    assert!((sites.iter().sum::<f64>() - lnl).abs() < 1e-6 * lnl.abs());
    for engines in ["1", "2"] {
        assert_eq!(
            with(&[MODEL, "--engines", engines])["lnl"].as_f64(),
            Some(lnl)
        );
    }
    let lengths = with(&[MODEL, "--opt", "branches", "--tree-out", "b.nwk"])["lnl"].as_f64();
    let all = with(&["GTR+G", "--opt", "all"])["lnl"].as_f64();
    assert!(
        Some(lnl) < lengths && lengths < all,
        "{lnl} {lengths:?} {all:?}"
    );
    // The files hold the reported values.
    let again = [
        "evaluate", "--msa", "a.phy", "--tree", "b.nwk", "--json", "--model", MODEL,
    ];
    let again = json(&sidecore(here, &again))["lnl"].as_f64().expect("lnl");
    assert!((again - lengths.expect("lnl")).abs() < 1e-5);
    let distance = json(&sidecore(here, &["compare", "a.nwk", "b.nwk", "--json"]));
    assert_eq!(distance["rf"].as_u64(), Some(0));
    assert_eq!(distance["rf_relative"].as_f64(), Some(0.0));
    assert!(distance["branch_score"].as_f64() > Some(0.0));
}

#[test]
fn all_pairs_of_a_file_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    let trees = "((a,b),c,(d,e));\n((a,c),b,(d,e));\n((a,b),c,(d,e));\n";
    std::fs::write(here.join("three.nwk"), trees).expect("written");
    let line = ["compare", "three.nwk", "-o", "pairs.tsv", "--json"];
    let found = json(&sidecore(here, &line));
    let rows = serde_json::json!([[0, 2, 0], [2, 0, 2], [0, 2, 0]]);
    assert_eq!(found["rf_matrix"], rows);
    assert_eq!(
        (&found["trees"], &found["topologies"]),
        (&3.into(), &2.into())
    );
    assert!((found["rf_mean"].as_f64().expect("a mean") - 4.0 / 3.0).abs() < 1e-12);
    let mean = found["rf_relative_mean"].as_f64().expect("a mean");
    assert!((mean - 1.0 / 3.0).abs() < 1e-12);
    let table = std::fs::read_to_string(here.join("pairs.tsv")).expect("a table");
    let expected = "tree\tother\trf\trf_relative\n1\t2\t2\t0.500000\n\
                    1\t3\t0\t0.000000\n2\t3\t2\t0.500000\n";
    assert_eq!(table, expected);
    let output = sidecore(here, &["compare", "three.nwk"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1.333333"), "{text}");
    assert!(
        text.lines()
            .any(|line| line.split_whitespace().eq(["2", "2", "0", "2"])),
        "{text}"
    );
    std::fs::write(here.join("one.nwk"), "((a,b),c,(d,e));").expect("written");
    let output = sidecore(here, &["compare", "one.nwk"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("one.nwk has one tree"));
    // 3,000 trees have 9 million distances of 32 bytes, 275 MiB: more than reading a file of this
    // size may take (192 MiB and 64 times the file), not more than the work may.
    std::fs::write(here.join("many.nwk"), trees.repeat(1000)).expect("written");
    let output = sidecore(here, &["compare", "many.nwk"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let output = sidecore(here, &["compare", "many.nwk", "--memory", "200MiB"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--memory"));
}

#[test]
fn a_partition_file_is_the_sum_of_its_lines() {
    let folder = simulated("6");
    let here = folder.path();
    let lines = format!("{MODEL}, one = 1-100\nJC, two = 101-300\n");
    std::fs::write(here.join("parts"), lines).expect("written");
    let sites = |model: &str| -> Vec<f64> {
        let arguments = [
            "evaluate",
            "--msa",
            "a.phy",
            "--tree",
            "a.nwk",
            "--model",
            model,
            "--site-lnl",
            "sites",
        ];
        let output = sidecore(here, &arguments);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = std::fs::read_to_string(here.join("sites")).expect("sites");
        text.lines()
            .map(|line| line.parse().expect("a number"))
            .collect()
    };
    let (one, two, both) = (sites(MODEL), sites("JC"), sites("parts"));
    for site in 0..300 {
        let alone = if site < 100 { one[site] } else { two[site] };
        assert!((both[site] - alone).abs() < 1e-8, "site {site}");
    }
}

#[test]
fn one_seed_one_alignment() {
    let (first, second) = (simulated("9"), simulated("9"));
    for file in ["a.phy", "a.nwk"] {
        let read =
            |folder: &tempfile::TempDir| std::fs::read(folder.path().join(file)).expect(file);
        assert_eq!(read(&first), read(&second));
    }
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let folder = simulated("6");
    let here = folder.path();
    let evaluate = |msa: &str, tree: &str, model: &str| {
        sidecore(
            here,
            &[
                "evaluate", "--msa", msa, "--tree", tree, "--model", model, "--json",
            ],
        )
    };
    refused(&evaluate("none.phy", "a.nwk", "JC"), "cannot read none.phy");
    refused(&evaluate("a.phy", "a.nwk", "GRT"), "`GRT`");
    refused(&evaluate("a.phy", "a.phy", "JC"), "Newick");
    refused(&evaluate("a.nwk", "a.nwk", "JC"), "a.nwk: not an alignment");
    std::fs::write(here.join("c.nwk"), "((t1,t2),t3,(t4,t7));").expect("written");
    refused(&evaluate("a.phy", "c.nwk", "JC"), "`t7`");
    refused(
        &sidecore(here, &["compare", "a.nwk", "c.nwk", "--json"]),
        "has the tip",
    );
}

#[test]
fn kernels_are_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = json(&sidecore(
        folder.path(),
        &["bench", "kernels", "--quick", "--json"],
    ));
    let rows = report["rows"].as_array().expect("rows");
    assert!(rows.len() > 20);
    for row in rows {
        assert!(
            row["kernel"].is_string() && row["patterns"].as_u64() > Some(0),
            "{row}"
        );
        assert!(
            row["taxa"].is_u64() && row["gflops"].as_f64() > Some(0.0),
            "{row}"
        );
        assert!(row["site_nodes_per_s"].as_f64() > Some(1e3), "{row}");
    }
}
