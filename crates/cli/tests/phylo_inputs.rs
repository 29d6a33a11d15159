//! `sidecore phylo` with alignments, models and files of partitions as people have them.
#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn sidecore(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    let command = command.arg("phylo").args(arguments).current_dir(folder);
    command.output().expect("sidecore runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// A folder with `a.phy`, 300 sites of 8 taxa, and the tree `a.nwk` that it evolved along.
fn simulated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "simulate --taxa 8 --sites 300 --seed 5 -o a.phy --tree-out a.nwk \
                     --model GTR{1/4/1/1/4/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}";
    let output = sidecore(folder.path(), &arguments.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{}", said(&output));
    folder
}

/// The rows of `a.phy`: names and sequences.
fn rows(folder: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(folder.join("a.phy")).unwrap();
    let pair = |line: &str| {
        let (name, row) = line.split_once(' ').unwrap();
        (name.to_owned(), row.to_owned())
    };
    text.lines().skip(1).map(pair).collect()
}

fn write(folder: &Path, file: &str, rows: &[(String, String)]) {
    let mut text = format!("{} {}\n", rows.len(), rows[0].1.len());
    for (name, row) in rows {
        text += &format!("{name} {row}\n");
    }
    std::fs::write(folder.join(file), text).unwrap();
}

/// Writes `gaps.phy`: `a.phy` with columns of nothing after its sites 10, 100 (two) and 300. Where
/// they are, from 0.
fn with_gap_columns(folder: &Path) -> [usize; 4] {
    let mut rows = rows(folder);
    for (taxon, (_, row)) in rows.iter_mut().enumerate() {
        let nothing = ["-", "N", "?", "n", "X"][taxon % 5];
        for site in [300, 100, 100, 10] {
            row.insert_str(site, nothing);
        }
    }
    write(folder, "gaps.phy", &rows);
    [10, 101, 102, 303]
}

#[test]
fn columns_without_a_character_change_nothing() {
    let folder = simulated();
    let here = folder.path();
    let gaps = with_gap_columns(here);
    let lines = |first: &str, second: &str| format!("GTR+G, one = {first}\nHKY, two = {second}\n");
    std::fs::write(here.join("parts"), lines("1-100", "101-300")).unwrap();
    std::fs::write(here.join("gap.parts"), lines("1-102", "103-304")).unwrap();
    for (model, gap_model) in [("GTR+F+G", "GTR+F+G"), ("parts", "gap.parts")] {
        let evaluate = |msa: &str, model: &str| {
            let arguments = ["evaluate", "--tree", "a.nwk", "--opt", "all", "--json"];
            let more = ["--site-lnl", "sites", "--msa", msa, "--model", model];
            let output = sidecore(here, &[&arguments[..], &more].concat());
            let sites = std::fs::read_to_string(here.join("sites")).unwrap();
            let sites: Vec<String> = sites.lines().map(str::to_owned).collect();
            (json(&output), sites, said(&output))
        };
        let (clean, sites, quiet) = evaluate("a.phy", model);
        let (gappy, mut gap_sites, warning) = evaluate("gaps.phy", gap_model);
        assert_eq!(clean["lnl"], gappy["lnl"]);
        assert_eq!(clean["undetermined_sites"], 0);
        assert_eq!(gappy["undetermined_sites"], 4);
        assert_eq!(gappy["sites"], 304);
        assert_eq!(quiet, "");
        assert_eq!(warning.trim_end().lines().count(), 1, "{warning}");
        assert!(
            warning.contains("4 of 304, left out: 11, 102-103, 304"),
            "{warning}"
        );
        // A line for each column of the file, 0 where there is nothing.
        assert_eq!(gap_sites.len(), 304);
        for site in gaps.into_iter().rev() {
            assert_eq!(gap_sites.remove(site), "0.000000000");
        }
        assert_eq!(gap_sites, sites);
    }
}

#[test]
fn a_search_leaves_them_out_and_its_model_file_names_every_column() {
    let folder = simulated();
    let here = folder.path();
    with_gap_columns(here);
    let text = "GTR+G, one = 1-102\nJC, nothing = 103\nHKY, two = 104-304\n";
    std::fs::write(here.join("parts"), text).unwrap();
    let search = |msa: &str, model: &str, prefix: &str| {
        let arguments = ["search", "--starts", "2", "--bootstraps", "2", "--json"];
        let more = ["--msa", msa, "--model", model, "--prefix", prefix];
        let output = sidecore(here, &[&arguments[..], &more].concat());
        (json(&output), said(&output))
    };
    let (clean, _) = search("a.phy", "GTR+G", "clean");
    let (gappy, warning) = search("gaps.phy", "GTR+G", "gappy");
    assert_eq!(clean["best_lnl"], gappy["best_lnl"]);
    assert_eq!(gappy["undetermined_sites"], 4);
    assert_eq!(warning.matches("left out").count(), 1, "{warning}");
    for suffix in [".bestTree", ".bootstraps", ".support"] {
        let read = |prefix: &str| std::fs::read(here.join(format!("{prefix}{suffix}"))).unwrap();
        assert_eq!(read("clean"), read("gappy"), "{suffix}");
    }
    // A partition of such a column alone stays: its likelihood is 1.
    let (parted, _) = search("gaps.phy", "parts", "parted");
    let arguments = ["evaluate", "--msa", "gaps.phy", "--tree", "parted.bestTree"];
    let again = [&arguments[..], &["--model", "parted.bestModel", "--json"]].concat();
    let again = json(&sidecore(here, &again))["lnl"].as_f64().unwrap();
    let best = parted["best_lnl"].as_f64().unwrap();
    assert!((again - best).abs() < 1e-3, "{again} {best}");
    let model = std::fs::read_to_string(here.join("parted.bestModel")).unwrap();
    for ranges in ["one = 1-102", "nothing = 103", "two = 104-304"] {
        assert!(model.contains(ranges), "{model}");
    }
}

#[test]
fn sequences_without_a_character_are_kept_and_counted() {
    let folder = simulated();
    let here = folder.path();
    let mut rows = rows(here);
    rows[3].1 = "N".repeat(300);
    rows[6].1 = rows[0].1.to_lowercase();
    write(here, "odd.phy", &rows);
    let arguments = "evaluate --msa odd.phy --tree a.nwk --model GTR+G --opt all --json";
    let output = sidecore(here, &arguments.split(' ').collect::<Vec<_>>());
    let report = json(&output);
    assert_eq!(
        (&report["undetermined_taxa"], &report["identical_taxa"]),
        (&1.into(), &1.into())
    );
    let said = said(&output);
    assert_eq!(said.trim_end().lines().count(), 2, "{said}");
    assert!(
        said.contains("without a character: 1, kept") && said.contains("`t4`"),
        "{said}"
    );
    assert!(said.contains("`t7` (as `t1`)"), "{said}");
}

/// Exit status 2 and one line that has all `parts` in it.
fn refused(output: &Output, parts: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn an_error_names_what_it_is_about() {
    let folder = simulated();
    let here = folder.path();
    let evaluate = |model: &str, more: &[&str]| {
        let arguments = [
            "evaluate", "--msa", "a.phy", "--tree", "a.nwk", "--model", model,
        ];
        sidecore(here, &[&arguments[..], more].concat())
    };
    for model in ["GRT", "GTR+X", "GTR{1/2}", "PROT", "GTR+G+B"] {
        let output = evaluate(model, &[]);
        refused(&output, &[&format!("--model {model}: ")]);
        assert!(!said(&output).contains("a.phy"), "{}", said(&output));
    }
    refused(
        &evaluate("parts.txt", &[]),
        &["--model parts.txt is no file that is there"],
    );
    std::fs::write(
        here.join("parts"),
        "GTR+G, one = 1-200\nGRT, two = 201-300\n",
    )
    .unwrap();
    refused(&evaluate("parts", &[]), &["parts: two: ", "`GRT`"]);
    std::fs::write(here.join("one"), "GTR+G+B, one = 1-300\n").unwrap();
    refused(&evaluate("one", &[]), &["one: +B", "leave it out"]);
    let mixed = "GTR+G+B, one = 1-200\nJC+B{0.9}, two = 201-300\n";
    std::fs::write(here.join("mixed"), mixed).unwrap();
    refused(
        &evaluate("mixed", &[]),
        &["mixed: some partitions", "one kind"],
    );
    // More engines than a pool can have: the pool says how many that is.
    refused(
        &evaluate("JC", &["--engines", "20000"]),
        &["20000 engines asked for; a pool has 1 to"],
    );
    // What is wrong with the alignment names that.
    std::fs::write(here.join("b.phy"), "4 2\na AE\nb AC\nc AC\nd AC\n").unwrap();
    let arguments = [
        "evaluate", "--msa", "b.phy", "--tree", "a.nwk", "--model", "GTR",
    ];
    refused(
        &sidecore(here, &arguments),
        &["b.phy: ", "`E` is no DNA character"],
    );
}

#[test]
fn the_data_type_dna_is_gtr_f_g() {
    let folder = simulated();
    let here = folder.path();
    let lnl = |model: &str, more: &[&str]| {
        let arguments = ["evaluate", "--opt", "all", "--json", "--msa", "a.phy"];
        let model = ["--tree", "a.nwk", "--model", model];
        let report = json(&sidecore(here, &[&arguments[..], &model, more].concat()));
        (report["lnl"].as_f64().unwrap(), report["models"].clone())
    };
    let parts = |file: &str, model: &str| {
        let text = format!("{model}, gene1 = 1-120\n{model}, gene2 = 121-300\n");
        std::fs::write(here.join(file), text).unwrap();
    };
    parts("dna", "DNA");
    parts("gtr", "GTR+FC+G4m");
    parts("scaled", "GTR+FC+G4m+B");
    assert_eq!(lnl("dna", &[]), lnl("gtr", &[]));
    assert_eq!(lnl("DNA", &[]), lnl("GTR+F+G", &[]));
    // A scaler in the file is `--brlen scaled`; what was fitted can be given again.
    let (scaled, models) = lnl("scaled", &[]);
    assert_eq!((scaled, models.clone()), lnl("gtr", &["--brlen", "scaled"]));
    assert!(scaled > lnl("gtr", &[]).0);
    let models: Vec<&str> = models
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m.as_str().unwrap())
        .collect();
    let text = format!(
        "{}, gene1 = 1-120\n{}, gene2 = 121-300\n",
        models[0], models[1]
    );
    std::fs::write(here.join("fixed"), text).unwrap();
    let (again, _) = lnl("fixed", &[]);
    assert!((again - scaled).abs() < 0.01, "{again} {scaled}");
    let arguments = ["evaluate", "--msa", "a.phy", "--tree", "a.nwk", "--model"];
    for (model, brlen) in [("scaled", "linked"), ("fixed", "scaled")] {
        let output = sidecore(here, &[&arguments[..], &[model, "--brlen", brlen]].concat());
        refused(&output, &[model, "+B", "leave out one"]);
    }
}
