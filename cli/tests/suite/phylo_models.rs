//! `sidecore phylo` with data of other kinds than DNA and protein, with alignments of variable
//! sites alone, and with branch lengths that partitions do not share.
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

fn lines(folder: &Path, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Simulates `a.phy` of 8 taxa along `a.nwk`.
fn simulate(folder: &Path, model: &str, sites: &str) {
    let arguments = [
        "simulate",
        "--taxa",
        "8",
        "--sites",
        sites,
        "--seed",
        "5",
        "-o",
        "a.phy",
        "--tree-out",
        "a.nwk",
        "--model",
        model,
    ];
    let output = sidecore(folder, &arguments);
    assert!(output.status.success(), "{}", said(&output));
}

/// Simulates, searches, and evaluates the best tree under the best model; the tree of the search.
fn searched(model: &str, truth: &str) -> (tempfile::TempDir, f64) {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, truth, "240");
    let arguments = [
        "search",
        "--msa",
        "a.phy",
        "--model",
        model,
        "--starts",
        "2",
        "--prefix",
        "s",
        "--json",
        "--engines",
        "2",
    ];
    let best = json(&sidecore(here, &arguments))["best_lnl"]
        .as_f64()
        .unwrap();
    let arguments = [
        "evaluate",
        "--msa",
        "a.phy",
        "--tree",
        "s.bestTree",
        "--model",
        "s.bestModel",
        "--json",
    ];
    let again = json(&sidecore(here, &arguments))["lnl"].as_f64().unwrap();
    assert!((again - best).abs() < 0.02, "{model}: {again} {best}");
    (folder, best)
}

#[test]
fn other_data_are_searched_end_to_end() {
    for (model, truth) in [
        ("BIN+G", "BIN+FU{0.6/0.4}+G4m{0.8}"),
        ("MULTI6_MK+G", "MULTI6_MK+G4m{0.8}"),
        ("GTHKY4+FC", "GTHKY4{0.01/1/2}"),
        ("LG4X", "LG4X"),
        ("MGK+F1X4", "MGK{0.3/2}+F1X4{0.3/0.2/0.2/0.3}"),
    ] {
        let (folder, best) = searched(model, truth);
        let arguments = [
            "evaluate", "--msa", "a.phy", "--tree", "a.nwk", "--model", model, "--opt", "all",
            "--json",
        ];
        let true_tree = json(&sidecore(folder.path(), &arguments))["lnl"]
            .as_f64()
            .unwrap();
        assert!(
            best > true_tree - 0.5,
            "{model}: {best}, the true tree has {true_tree}"
        );
    }
}

#[test]
fn snps_are_searched_and_invariable_sites_among_them_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, "GTR{1/4/1/1/4/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}", "400");
    let model = ["--model", "GTR+G+ASC_LEWIS", "--json"];
    let search = ["search", "--msa", "a.phy", "--starts", "1", "--prefix", "s"];
    let output = sidecore(here, &[&search[..], &model].concat());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("a.phy: +ASC") && text.contains("of 400 all taxa"),
        "{text}"
    );
    // Without them it goes.
    let rows: Vec<(String, Vec<u8>)> = lines(here, "a.phy")[1..]
        .iter()
        .map(|line| {
            let (name, row) = line.split_once(' ').unwrap();
            (name.to_owned(), row.as_bytes().to_vec())
        })
        .collect();
    let varies = |site: &usize| rows.iter().any(|(_, row)| row[*site] != rows[0].1[*site]);
    let kept: Vec<usize> = (0..400).filter(varies).collect();
    let mut snps = format!("8 {}\n", kept.len());
    for (name, row) in &rows {
        let row: String = kept.iter().map(|&site| char::from(row[site])).collect();
        snps += &format!("{name} {row}\n");
    }
    std::fs::write(here.join("snp.phy"), snps).unwrap();
    let search = [
        "search", "--msa", "snp.phy", "--starts", "2", "--prefix", "s",
    ];
    let best = json(&sidecore(here, &[&search[..], &model].concat()))["best_lnl"].as_f64();
    let models = lines(here, "s.bestModel");
    assert!(models[0].contains("+ASC_LEWIS"), "{models:?}");
    let evaluate = [
        "evaluate",
        "--msa",
        "snp.phy",
        "--tree",
        "s.bestTree",
        "--model",
        "s.bestModel",
        "--site-lnl",
        "sites",
        "--json",
    ];
    let again = json(&sidecore(here, &evaluate))["lnl"].as_f64();
    let [best, again] = [best, again].map(Option::unwrap);
    assert!((best - again).abs() < 0.02, "{best} {again}");
    let sum: f64 = lines(here, "sites")
        .iter()
        .map(|line| line.parse::<f64>().unwrap())
        .sum();
    assert!((sum - again).abs() < 1e-4, "{sum} {again}");
}

#[test]
fn unlinked_lengths_are_written_for_each_partition_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, "GTR{1/4/1/1/4/1}+G4m{0.5}", "300");
    std::fs::write(here.join("p"), "GTR+FC+G, a = 1-100\nHKY+FC, b = 101-300\n").unwrap();
    let run = |prefix: &str, engines: &str| {
        let arguments = [
            "search",
            "--msa",
            "a.phy",
            "--model",
            "p",
            "--brlen",
            "unlinked",
            "--starts",
            "2",
            "--prefix",
            prefix,
            "--engines",
            engines,
            "--json",
        ];
        json(&sidecore(here, &arguments))["best_lnl"]
            .as_f64()
            .unwrap()
    };
    let best = run("one", "1");
    assert_eq!(best, run("two", "2"));
    let trees = lines(here, "one.bestPartitionTrees");
    assert_eq!(trees, lines(here, "two.bestPartitionTrees"));
    assert_eq!(trees.len(), 2);
    // Each partition alone, on its tree and under its model, is its part of the whole.
    let models = lines(here, "one.bestModel");
    let mut sum = 0.0;
    for (tree, (model, columns)) in trees.iter().zip(models.iter().zip([0..100, 100..300])) {
        let rows = lines(here, "a.phy");
        let mut text = format!("8 {}\n", columns.len());
        for line in &rows[1..] {
            let (name, row) = line.split_once(' ').unwrap();
            text += &format!("{name} {}\n", &row[columns.clone()]);
        }
        std::fs::write(here.join("part.phy"), text).unwrap();
        std::fs::write(here.join("part.nwk"), tree).unwrap();
        let model = model.split(',').next().unwrap();
        let arguments = [
            "evaluate", "--msa", "part.phy", "--tree", "part.nwk", "--model", model, "--json",
        ];
        sum += json(&sidecore(here, &arguments))["lnl"].as_f64().unwrap();
    }
    assert!((sum - best).abs() < 0.02, "{sum} {best}");
    // The kinds are different analyses: a prefix has one of them.
    let arguments = [
        "search", "--msa", "a.phy", "--model", "p", "--starts", "2", "--prefix", "one",
    ];
    let output = sidecore(here, &arguments);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("branch lengths"),
        "{}",
        said(&output)
    );
}

#[test]
fn characters_and_names_that_do_not_fit_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, "JC", "60");
    std::fs::write(here.join("b.phy"), "4 3\na 012\nb 011\nc 001\nd 110\n").unwrap();
    std::fs::write(here.join("c.phy"), "4 3\na TAA\nb AAA\nc AAC\nd AAG\n").unwrap();
    for (msa, model, words) in [
        ("b.phy", "BIN", "`2` is no binary character"),
        ("b.phy", "JC", "`0` is no DNA character"),
        ("c.phy", "GY", "`TAA` is no codon character"),
        ("b.phy", "MULTI65_MK", "2 to 64 states"),
        (
            "b.phy",
            "MULTI3_MK+ASC_STAM{1/2}",
            "takes 3 values, 2 are given",
        ),
        ("a.phy", "GTR+I+ASC_LEWIS", "leave out one"),
        ("a.phy", "LG4X+G8", "takes 4 values, 8 are given"),
    ] {
        let arguments = [
            "evaluate", "--tree", "a.nwk", "--msa", msa, "--model", model,
        ];
        let output = sidecore(here, &arguments);
        assert_eq!(output.status.code(), Some(2), "{model}: {}", said(&output));
        assert!(said(&output).contains(words), "{model}: {}", said(&output));
    }
}

fn run(folder: &Path, line: &str) -> Output {
    sidecore(folder, &line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn profiles_of_sites_come_from_a_guide_tree_and_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, "LG+C10+G4m{0.8}", "80");
    let line = "evaluate --msa a.phy --tree a.nwk --json --engines 1";
    let made = run(
        here,
        &format!("{line} --model LG+C10+F+G4 --pmsf-tree a.nwk --pmsf-out a.sitefreq"),
    );
    let made = json(&made)["lnl"].as_f64().unwrap();
    assert_eq!(lines(here, "a.sitefreq").len(), 80);
    let read = json(&run(
        here,
        &format!("{line} --model LG+G4 --pmsf a.sitefreq"),
    ));
    assert!((read["lnl"].as_f64().unwrap() - made).abs() < 1e-3);
    let found = json(&run(
        here,
        "search --msa a.phy --model LG+C10+F+G4 --pmsf a.sitefreq --starts 1 --support sh-alrt \
         --prefix s --json --engines 1",
    ));
    assert!(found["best_lnl"].as_f64().unwrap() > made);
    assert!(here.join("s.supportSHaLRT").is_file());
    let wrong = run(here, &format!("{line} --model LG4X --pmsf a.sitefreq"));
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        said(&wrong).contains("one protein matrix"),
        "{}",
        said(&wrong)
    );
}

#[test]
fn classes_with_lengths_of_their_own_print_what_they_read() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, "HKY{1/3}+G4m{0.4}", "300");
    let line = "evaluate --msa a.phy --json --engines 1 --tree";
    let fitted = format!("{line} a.nwk --model JC+H2 --opt all --tree-out two.nwk");
    let fitted = json(&run(here, &fitted));
    let weights = format!("JC+H2{{{}/{}}}", fitted["weights"][0], fitted["weights"][1]);
    let again = format!("{line} two.nwk --model {weights} --site-posteriors p.tsv");
    let again = json(&run(here, &again));
    let [a, b] = [&fitted, &again].map(|one| one["lnl"].as_f64().unwrap());
    assert!((a - b).abs() < 0.01, "{a} {b}");
    let table = lines(here, "p.tsv");
    assert_eq!(
        (table[0].as_str(), table.len()),
        ("site\tpart\tp1\tp2", 301)
    );
    let refused = run(here, &format!("{line} a.nwk --model JC+G4+H2"));
    assert!(
        said(&refused).contains("in place of rates"),
        "{}",
        said(&refused)
    );
}

#[test]
fn mixtures_of_trees_print_what_they_read() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, "HKY{1/3}", "120");
    let starts = "search --msa a.phy --model JC --starts 0 --bootstraps 1 --seed 3 --prefix b";
    assert!(run(here, starts).status.success());
    let both = lines(here, "a.nwk").join("") + "\n" + &lines(here, "b.bootstraps").join("\n");
    std::fs::write(here.join("both.nwk"), both).unwrap();
    let line = "evaluate --msa a.phy --json --engines 1 --tree";
    let mixed = format!("{line} both.nwk --opt all --tree-out fitted.nwk --model HKY+F+T");
    let fitted = json(&run(here, &mixed));
    let weights = fitted["weights"].as_array().unwrap();
    let [first, second] = [0, 1].map(|at| weights[at].as_f64().unwrap());
    assert!((first + second - 1.0).abs() < 1e-6, "{fitted}");
    let model = fitted["models"][0].as_str().unwrap();
    let model = format!("{model}+T{{{first}/{second}}}");
    let again = format!("{line} fitted.nwk --site-posteriors p --model {model}");
    let again = json(&run(here, &again));
    let [a, b] = [&fitted, &again].map(|one| one["lnl"].as_f64().unwrap());
    assert!((a - b).abs() < 0.01, "{a} {b}");
    assert!(lines(here, "p").len() >= 120);
    let refused = run(here, &format!("{line} a.nwk --model JC+T{{0.5/0.5}}"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("2 weights"), "{}", said(&refused));
}

#[test]
fn nonreversible_models_depend_on_the_root() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, "HKY{1/3}", "120");
    let own = run(here, "root a.nwk --midpoint -o rooted.nwk");
    assert!(own.status.success(), "{}", said(&own));
    let line = "evaluate --msa a.phy --json --engines 1 --tree";
    let rooted = format!("{line} rooted.nwk --opt all --tree-out fitted.nwk --model UNREST+G4");
    let fitted = json(&run(here, &rooted));
    let model = fitted["trees"][0]["models"][0].as_str().unwrap();
    let again = json(&run(
        here,
        &format!("{line} fitted.nwk --site-lnl s --model {model}"),
    ));
    let [a, b] = [&fitted, &again].map(|one| one["lnl"].as_f64().unwrap());
    assert!((a - b).abs() < 0.01, "{a} {b}");
    let sites: f64 = lines(here, "s")
        .iter()
        .map(|own| own.parse::<f64>().unwrap())
        .sum();
    assert!((sites - b).abs() < 1e-4, "{sites} {b}");
    // The tree as it was simulated has no root.
    let refused = run(here, &format!("{line} a.nwk --model UNREST"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("no root"), "{}", said(&refused));
    let line = "root a.nwk --msa a.phy --replicates 200 --json -o best.nwk --model";
    let found = json(&run(
        here,
        &format!("{line} UNREST{{1/2/1/3/1/1/1/1/4/1/1/1}}"),
    ));
    let roots = found["roots"].as_array().unwrap();
    assert_eq!(roots.len(), 13);
    let shares = roots.iter().map(|own| own["bp_rell"].as_f64().unwrap());
    assert!((shares.sum::<f64>() - 1.0).abs() < 1e-6);
    assert_eq!(
        lines(here, "best.nwk"),
        [roots[0]["tree"].as_str().unwrap()]
    );
    let refused = run(here, &format!("{line} GTR"));
    assert!(said(&refused).contains("UNREST"), "{}", said(&refused));
    let refused = run(here, "search --msa a.phy --prefix x --model NQ.pfam");
    let text = said(&refused);
    assert!(
        text.contains("nonreversible") && !text.contains("no file"),
        "{text}"
    );
    let counted = json(&run(here, "root best.nwk --rootstrap best.nwk --json"));
    assert_eq!(counted["root"], 1.0);
}

#[test]
fn populations_are_evaluated_by_their_counts() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mut text = "COUNTSFILE NPOP 4 NSITES 40\nCHROM POS one two three four\n".to_owned();
    for site in 0..40 {
        let cells = match site % 8 {
            0 => "5,0,3,0 0,0,4,0 6,0,0,0 8,0,0,0",
            1 => "0,5,0,0 0,6,0,0 0,0,0,7 0,1,0,6",
            2 => "0,0,9,0 0,0,9,0 1,2,3,0 0,0,0,0",
            3 => "0,0,0,4 0,0,0,4 0,0,0,4 0,0,0,4",
            4 | 5 => "4,0,0,0 4,0,0,0 4,0,0,0 4,0,0,0",
            6 => "0,4,0,0 0,4,0,0 0,4,0,0 0,4,0,0",
            _ => "0,0,4,0 0,0,4,0 0,0,4,0 0,0,4,0",
        };
        text.push_str(&format!("1 {site} {cells}\n"));
    }
    std::fs::write(here.join("a.cf"), text).unwrap();
    std::fs::write(here.join("a.nwk"), "((one:1,two:1):1,three:1,four:1);\n").unwrap();
    let line = "evaluate --msa a.cf --json --engines 1 --tree";
    let given = json(&run(here, &format!("{line} a.nwk --model HKY+P+N4")));
    let fitted = format!("{line} a.nwk --opt all --tree-out b.nwk --model HKY+F+P+N4");
    let output = run(here, &fitted);
    assert!(
        said(&output).contains("three bases or four"),
        "{}",
        said(&output)
    );
    let fitted = json(&output);
    let model = fitted["trees"][0]["models"][0].as_str().unwrap();
    let again = json(&run(here, &format!("{line} b.nwk --model {model}")));
    let [start, a, b] = [&given, &fitted, &again].map(|one| one["lnl"].as_f64().unwrap());
    assert!(a > start && (a - b).abs() < 0.01, "{start} {a} {b}");
    let refused = run(here, "root a.nwk --msa a.cf --model HKY+P");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn rates_and_classes_of_sites_are_tables() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    simulate(here, "JC+G4m{0.4}", "200");
    let line = "evaluate --msa a.phy --tree a.nwk --model JC+I+G4 --opt all --json --engines 1 \
                --site-rates r.tsv --site-posteriors p.tsv";
    json(&run(here, line));
    let rates = lines(here, "r.tsv");
    assert_eq!(rates[0], "site\tpart\trate\tcategory\tcategory_rate");
    let shares = lines(here, "p.tsv");
    assert_eq!(shares[0], "site\tpart\tp1\tp2\tp3\tp4");
    for (rate, shares) in rates.iter().zip(&shares).skip(1) {
        let rate: Vec<&str> = rate.split('\t').collect();
        let shares: Vec<f64> = shares
            .split('\t')
            .skip(2)
            .map(|one| one.parse().unwrap())
            .collect();
        let category: usize = rate[3].parse().unwrap();
        let rest = 1.0 - shares.iter().sum::<f64>();
        let own = if category == 0 {
            rest
        } else {
            shares[category - 1]
        };
        assert!(own + 1e-5 > rest && shares.iter().all(|other| own + 1e-5 > *other));
        assert_eq!(category == 0, rate[4] == "0.000000");
    }
    // A search writes those of its best tree.
    let found = json(&run(
        here,
        "search --msa a.phy --model JC+I+G4 --starts 1 --prefix s --json --engines 1 \
         --site-rates s.tsv --site-posteriors sp.tsv",
    ));
    let files = found["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file == "s.tsv") && lines(here, "sp.tsv").len() == 201);
    json(&run(
        here,
        "evaluate --msa a.phy --tree s.bestTree --model s.bestModel --json --site-rates e.tsv",
    ));
    let rate = |line: &String| line.split('\t').nth(2).unwrap().parse::<f64>();
    for (a, b) in lines(here, "s.tsv")
        .iter()
        .zip(&lines(here, "e.tsv"))
        .skip(1)
    {
        assert!(
            (rate(a).unwrap() - rate(b).unwrap()).abs() < 1e-3,
            "{a} {b}"
        );
    }
}

#[test]
fn charsets_name_files_of_loci() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::create_dir(here.join("loci")).unwrap();
    for (file, seed) in [("one", "1"), ("two", "2")] {
        let line = "simulate --taxa 6 --sites 60 --model JC --seed";
        let made = run(here, &format!("{line} {seed} -o loci/{file}.phy"));
        assert!(made.status.success(), "{}", said(&made));
    }
    let sets = "#nexus\nbegin sets;\ncharset b = two.phy: 1-30;\ncharset a = one.phy: *;\n\
                charpartition p = JC:b, HKY+F:a;\nend;\n";
    std::fs::write(here.join("loci/parts.nex"), sets).unwrap();
    let found = json(&run(
        here,
        "search --msa loci/parts.nex --model loci/parts.nex --starts 1 --prefix s --json",
    ));
    let best = lines(here, "s.bestModel");
    assert!(
        best[0].ends_with("b = 1-30") && best[1].ends_with("a = 31-90"),
        "{best:?}"
    );
    assert!(found["best_lnl"].as_f64().unwrap() < 0.0);
    let genes = json(&run(
        here,
        "genes --msa loci/parts.nex --model loci/parts.nex --prefix g --json --engines 1",
    ));
    assert_eq!(genes["loci"][1]["sites"], 60);
}
