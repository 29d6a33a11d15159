//! The commands from a model to a picture, compared with other programs' results for the same data.
//!
//! The numbers are IQ-TREE 2.0.7's (`-z TREES -zb 100000 -au`, `-alrt 10000`, `-m MF`, `-asr`),
//! taken once; DendroPy 5 agreed about consensus trees and the midpoint.
#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn sidecore(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    let command = command.arg("phylo").args(arguments.split(' '));
    command.current_dir(folder).output().expect("sidecore runs")
}

fn json(folder: &Path, arguments: &str) -> Value {
    let output = sidecore(folder, &format!("{arguments} --json"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {said}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// A folder with `w.phy`, 250 sites of 9 taxa, and the tree `w.nwk` that it evolved along.
fn simulated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "simulate --taxa 9 --sites 250 --model JC --seed 31 -o w.phy --tree-out w.nwk";
    assert!(sidecore(folder.path(), arguments).status.success());
    folder
}

#[test]
fn trees_are_tested_as_elsewhere() {
    let folder = simulated();
    let trees = "(t1,t2,(t9,((t5,t4),(t7,(t3,(t8,t6))))));\n\
                 (t2,(((t5,t4),(t7,(t3,(t8,t6)))),t1),t9);\n\
                 (t1,t2,(((t7,(t3,(t8,t6))),t9),(t5,t4)));\n\
                 (t1,t2,(t9,((t4,(t7,(t3,(t8,t6)))),t5)));\n\
                 (t1,t2,(t9,(((t3,(t8,t6)),(t5,t4)),t7)));\n";
    std::fs::write(folder.path().join("w.trees"), trees).unwrap();
    let arguments = "test --msa w.phy --trees w.trees --model JC --engines 1 --replicates";
    let found = json(folder.path(), &format!("{arguments} 20000"));
    let expected = [
        [-1328.816895, 0.742, 1.0, 0.742, 1.0, 0.658, 0.765],
        [
            -1371.857188,
            0.00026,
            0.0141,
            0.00026,
            0.00057,
            2.03e-05,
            1.81e-05,
        ],
        [-1329.81397, 0.258, 0.859, 0.258, 0.629, 0.341, 0.243],
        [-1413.947672, 0.0, 1e-05, 0.0, 0.0, 0.0, 0.0],
        [
            -1364.411922,
            0.0003,
            0.0418,
            0.0003,
            0.00056,
            0.00011,
            3.42e-05,
        ],
    ];
    let keys = ["lnl", "p_kh", "p_sh", "p_wkh", "p_wsh", "c_elw", "p_au"];
    for (tree, expected) in found["trees"].as_array().unwrap().iter().zip(expected) {
        for (key, expected) in keys.into_iter().zip(expected) {
            let value = tree[key].as_f64().unwrap();
            assert!((value - expected).abs() < 0.02, "{key} {expected}: {tree}");
        }
    }
    // One seed, one result, on any number of engines.
    let [one, other] = [1, 2].map(|engines| {
        let engines = format!("--engines {engines}");
        json(
            folder.path(),
            &arguments
                .replace("--engines 1", &engines)
                .replace("--replicates", "--replicates 600"),
        )
    });
    assert_eq!(one, other);
}

#[test]
fn models_are_chosen_as_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for (taxa, sites, model, seed, winner) in [
        (20, 1000, "K80{1/5}+G4m{0.4}", 21, "K80+G4"),
        (
            25,
            1200,
            "TN93{1/3/6}+FU{0.35/0.15/0.2/0.3}+IU{0.3}",
            22,
            "TN93+F+I",
        ),
    ] {
        let arguments = format!("simulate --taxa {taxa} --sites {sites} --seed {seed}");
        let arguments = format!("{arguments} --model {model} -o m.phy");
        assert!(sidecore(here, &arguments).status.success());
        let found = json(here, "models --msa m.phy -o best.parts");
        assert_eq!(found["best"], winner);
        assert!(found["excluded"].as_u64().unwrap() > 50);
        let text = std::fs::read_to_string(here.join("best.parts")).unwrap();
        assert_eq!(text, format!("{winner}, all = 1-{sites}\n"));
    }
    // The same model, chosen by `auto`.
    let arguments = "search --msa m.phy --model auto --starts 1 --prefix s --engines 1";
    let output = sidecore(here, &format!("{arguments} --support sh-alrt,ufboot"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("model TN93+F+I chosen"), "{said}");
    for file in ["s.bestTree", "s.supportSHaLRT", "s.supportUFBoot"] {
        assert!(here.join(file).is_file(), "{file}");
    }
    // One tree has both, in the order of the option.
    let read = |file: &str| std::fs::read_to_string(here.join(file)).unwrap();
    let labels = |file: &str| -> Vec<String> {
        let text = read(file);
        let after = text.split(')').skip(1);
        let labels = after.filter_map(|rest| Some(rest.split([':', ';']).next()?.to_owned()));
        labels.filter(|label| !label.is_empty()).collect()
    };
    let (first, second) = (labels("s.supportSHaLRT"), labels("s.supportUFBoot"));
    let both = first.iter().zip(&second).map(|(a, b)| format!("{a}/{b}"));
    assert!(
        first.len() == 22 && first.len() == second.len(),
        "{first:?}"
    );
    assert_eq!(labels("s.supportAll"), both.collect::<Vec<_>>());
    let model = std::fs::read_to_string(here.join("s.bestModel")).unwrap();
    assert!(model.starts_with("TN93{"), "{model}");
}

#[test]
fn partitions_are_merged() {
    let folder = simulated();
    let here = folder.path();
    let parts = "DNA, one = 1-100\nJC, two = 101-180\nauto, three = 181-250\n";
    std::fs::write(here.join("w.parts"), parts).unwrap();
    let arguments = "models --msa w.phy --partitions w.parts --merge -o w.best --free-rates-max 0";
    let found = json(here, arguments);
    // All evolved alike.
    assert_eq!(found["subsets"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found["subsets"][0]["name"], "one_two_three");
    assert!(found["score"].as_f64() < found["score_before"].as_f64());
    let found = json(here, "evaluate --msa w.phy --tree w.nwk --model w.best");
    assert!(found["lnl"].as_f64().unwrap() < -1300.0);
    for scheme in [
        "rclusterf --rcluster 100",
        "rcluster --rcluster-max 2",
        "greedy",
    ] {
        let line =
            format!("models --msa w.phy --partitions w.parts --merge {scheme} --free-rates-max 0");
        let found = json(here, &line);
        assert!(
            found["score"].as_f64() < found["score_before"].as_f64(),
            "{scheme}: {found}"
        );
    }
    let apart = "models --msa w.phy --partitions w.parts --merge none --free-rates-max 0";
    assert_eq!(json(here, apart)["subsets"].as_array().unwrap().len(), 3);
}

/// Data of other kinds: by the characters, by an option, and by the lines of a file.
#[test]
fn models_of_other_data_are_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    for (model, seed, file) in [("BIN+FU{0.8/0.2}", 3, "b.phy"), ("GY{0.2/4}", 4, "c.phy")] {
        let line = format!("simulate --taxa 6 --sites 90 --model {model} --seed {seed} -o {file}");
        assert!(sidecore(here, &line).status.success(), "{line}");
    }
    let best = |found: &Value| found["best"].as_str().unwrap().to_owned();
    let found = json(here, "models --msa b.phy --free-rates-max 0 -o b.best");
    assert!(best(&found).starts_with("BIN+F"), "{found}");
    let fitted = json(
        here,
        "search --msa b.phy --model b.best --starts 1 --prefix b --engines 1",
    );
    assert!(fitted["best_lnl"].as_f64().unwrap() < 0.0);
    let line = "models --msa c.phy --data codon --code 11 --free-rates-max 0";
    let found = json(here, line);
    assert!(best(&found).contains("+CODE{11}"), "{found}");
    std::fs::write(here.join("m.parts"), "MK, one = 1-45\nBIN, two = 46-90\n").unwrap();
    let found = json(
        here,
        "models --msa b.phy --partitions m.parts --free-rates-max 0",
    );
    let model = |at: usize| found["subsets"][at]["model"].as_str().unwrap().to_owned();
    assert!(
        model(0).starts_with("MULTI2_") && model(1).starts_with("BIN"),
        "{found}"
    );
    let output = sidecore(here, "models --msa c.phy --data codon --code 7");
    assert_eq!(output.status.code(), Some(2));
}

/// A third of the 105 trees of six taxa have the one quartet that a partition sees.
#[test]
fn a_terrace_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let rows = [
        "a ACGTACGT",
        "b ACGA----",
        "c CCTT----",
        "d CCTA----",
        "e ----AGGT",
        "f ----ACCT",
    ];
    std::fs::write(here.join("t.phy"), format!("6 8\n{}\n", rows.join("\n"))).unwrap();
    let tree = "((a:0.1,b:0.1):0.1,(c:0.1,d:0.1):0.1,(e:0.1,f:0.1):0.1);";
    std::fs::write(here.join("t.nwk"), tree).unwrap();
    std::fs::write(here.join("t.parts"), "JC, one = 1-4\nJC, two = 5-8\n").unwrap();
    let line = "evaluate --msa t.phy --tree t.nwk --model t.parts --terrace";
    let found = json(here, line);
    let terrace = &found["trees"][0]["terrace"];
    assert_eq!(terrace["trees"], 35, "{found}");
    assert_eq!(terrace["is_exact"], true);
    assert!((terrace["trees_log10"].as_f64().unwrap() - 35_f64.log10()).abs() < 1e-9);
    let text = String::from_utf8_lossy(&sidecore(here, line).stdout).into_owned();
    assert!(text.contains("35 trees"), "{text}");
    let whole = json(
        here,
        "evaluate --msa t.phy --tree t.nwk --model JC --terrace",
    );
    assert_eq!(whole["trees"][0]["terrace"]["trees"], 1, "{whole}");
    // Without a taxon that both have there is no root to count from.
    let apart = std::fs::read_to_string(here.join("t.phy")).unwrap();
    let apart = apart.replace("ACGTACGT", "ACGT----");
    std::fs::write(here.join("t.phy"), apart).unwrap();
    let output = sidecore(here, line);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in every partition"));
}

/// Partitions have rates of their own in each command that fits them, as in `evaluate`.
#[test]
fn partitions_are_scaled_in_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mut rows = vec![String::new(); 6];
    for (rate, seed) in [(0.05_f64, 1), (0.25, 2)] {
        let tree = "((t1:L,t2:L):L,(t3:L,t4:L):L,(t5:L,t6:L):L);".replace('L', &rate.to_string());
        std::fs::write(here.join("s.nwk"), tree).unwrap();
        let arguments =
            format!("simulate --tree s.nwk --sites 200 --model JC --seed {seed} -o s.phy");
        assert!(sidecore(here, &arguments).status.success());
        let text = std::fs::read_to_string(here.join("s.phy")).unwrap();
        for line in text.lines().skip(1) {
            let (name, row) = line.split_once(' ').unwrap();
            let taxon: usize = name[1..].parse().unwrap();
            rows[taxon - 1] += row.trim();
        }
    }
    let rows: Vec<String> = (1..7)
        .map(|k| format!(">t{k}\n{}\n", rows[k - 1]))
        .collect();
    std::fs::write(here.join("s.fa"), rows.concat()).unwrap();
    std::fs::write(here.join("s.parts"), "JC, one = 1-200\nJC, two = 201-400\n").unwrap();
    std::fs::write(
        here.join("s.trees"),
        "((t1,t2),(t3,t4),(t5,t6));\n((t1,t3),(t2,t4),(t5,t6));\n",
    )
    .unwrap();
    let data = "--msa s.fa --model s.parts";
    let expected = json(here, &format!("evaluate {data} --tree s.nwk --opt all"));
    let expected = expected["lnl"].as_f64().unwrap();
    let tested = json(
        here,
        &format!("test {data} --trees s.trees --replicates 100"),
    );
    let found = json(here, &format!("ancestors {data} --tree s.nwk"));
    for lnl in [&tested["trees"][0]["lnl"], &found["lnl"]] {
        assert!(
            (lnl.as_f64().unwrap() - expected).abs() < 0.1,
            "{lnl} {expected}"
        );
    }
    let supported = json(
        here,
        &format!("support {data} --tree s.nwk --support abayes"),
    );
    assert!(supported["mean"].as_f64() > Some(0.9), "{supported}");
}

#[test]
fn supports_are_as_elsewhere() {
    let folder = simulated();
    let tree = "(t1,t2,((((t3,(t6,t8)),t7),(t4,t5)),t9));\n";
    std::fs::write(folder.path().join("w.best"), tree).unwrap();
    let arguments = "support --tree w.best --msa w.phy --model JC --support";
    let found = json(
        folder.path(),
        &format!("{arguments} sh-alrt --replicates 10000"),
    );
    // In the order of the nodes: t1 and t2 against all; with t9; t3 to t7; t3 t6 t8; t6 t8; t4 t5.
    let expected = [1.0, 0.613, 1.0, 0.0, 0.805, 1.0];
    let values = found["values"].as_array().unwrap();
    assert_eq!(values.len(), expected.len());
    for (value, expected) in values.iter().zip(expected) {
        assert!((value.as_f64().unwrap() - expected).abs() < 0.04, "{found}");
    }
    let found = json(
        folder.path(),
        &format!("{arguments} ufboot --replicates 300"),
    );
    let values = found["values"].as_array().unwrap();
    assert!(
        values[0].as_f64().unwrap() > 0.95 && values[3].as_f64().unwrap() < 0.9,
        "{found}"
    );
    let arguments = format!("{arguments} ufboot --bnni --replicates 100");
    let refined = json(folder.path(), &arguments);
    assert!(refined["values"][0].as_f64().unwrap() > 0.9, "{refined}");
    let refused = sidecore(folder.path(), &arguments.replace("ufboot", "abayes"));
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn from_supports_to_a_picture() {
    let folder = simulated();
    let here = folder.path();
    let some = "((t1,t2),t3,(t4,t5));\n((t1,t2),t4,(t3,t5));\n";
    std::fs::write(here.join("some"), some).unwrap();
    let found = json(here, "consensus some --rule majority");
    assert_eq!(found["tree"], "(t1,t2,(t3,t4,t5)100);");
    let rooted = json(here, "root w.nwk --outgroup t1,t2 -o rooted.nwk");
    assert!(
        rooted["trees"][0]["tree"]
            .as_str()
            .unwrap()
            .contains("(t1:0.1123308602,t2:")
    );
    for form in ["rectangular", "circular"] {
        let found = json(here, &format!("draw rooted.nwk -o w.svg --form {form}"));
        assert_eq!(found["taxa"], 9);
        let svg = std::fs::read_to_string(here.join("w.svg")).unwrap();
        assert_eq!(svg.matches("class=\"name\"").count(), 9);
    }
    // The ancestor of t4 and t5, as IQ-TREE has it: nearly every site of both is the same.
    let arguments = "ancestors --msa w.phy --tree w.nwk --model JC --opt none -o w.tsv";
    let found = json(here, arguments);
    assert_eq!(found["nodes"].as_array().unwrap().len(), 7);
    let table = std::fs::read_to_string(here.join("w.tsv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 7 * 250);
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let sum: f64 = fields[3..].iter().map(|p| p.parse::<f64>().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{line}");
    }
}

/// A folder with `loci/`, three loci of other sizes along one tree of 10 taxa, `w.nwk`, and an
/// alignment of all, `w.phy`.
pub(crate) fn loci() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let arguments = "simulate --taxa 10 --sites 400 --model JC --seed 3 -o w.phy --tree-out w.nwk";
    assert!(sidecore(here, arguments).status.success());
    std::fs::create_dir(here.join("loci")).unwrap();
    for (locus, sites) in [("a", 60), ("b", 200), ("c", 30)] {
        let arguments = format!("simulate --tree w.nwk --sites {sites} --model JC --seed {sites}");
        let arguments = format!("{arguments} -o loci/{locus}.phy");
        assert!(sidecore(here, &arguments).status.success());
    }
    // A locus without one of the taxa, and one of two taxa, which has no tree.
    let text = std::fs::read_to_string(here.join("loci/c.phy")).unwrap();
    let rows: Vec<&str> = text.lines().skip(1).collect();
    let text = format!("9 30\n{}\n", rows[1..].join("\n"));
    std::fs::write(here.join("loci/c.phy"), text).unwrap();
    let two = ">t1\nACGT\n>t2\nACGA\n>t3\n----\n";
    std::fs::write(here.join("loci/d.fa"), two).unwrap();
    folder
}

#[test]
fn each_locus_has_the_tree_of_its_own_search() {
    let folder = loci();
    let here = folder.path();
    let arguments = "genes --msa loci --model JC --support abayes,lbp --bootstraps 3 --prefix";
    let found = json(here, &format!("{arguments} one --engines 1"));
    assert_eq!(found["skipped"], serde_json::json!(["d"]));
    let rows = found["loci"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    let trees = std::fs::read_to_string(here.join("one.geneTrees")).unwrap();
    for (row, tree) in rows.iter().zip(trees.lines()) {
        assert_eq!(row["tree"], tree);
        let file = format!("loci/{}.phy", row["name"].as_str().unwrap());
        std::fs::write(here.join("own.nwk"), format!("{tree}\n")).unwrap();
        let arguments = format!("evaluate --msa {file} --tree own.nwk --model JC --opt branches");
        let lnl = json(here, &arguments)["lnl"].as_f64().unwrap();
        assert!(
            (lnl - row["lnl"].as_f64().unwrap()).abs() < 1e-3,
            "{row} {lnl}"
        );
        // As good as a search of that alignment alone.
        let arguments = format!("search --msa {file} --model JC --starts 2 --redo --prefix own");
        let best = json(here, &arguments)["best_lnl"].as_f64().unwrap();
        assert!(lnl > best - 0.5, "{row} {best}");
        let labels = tree.matches('/').count();
        assert_eq!(
            labels,
            2 * (row["taxa"].as_u64().unwrap() as usize - 3),
            "{tree}"
        );
    }
    assert_eq!(rows[2]["taxa"], 9);
    // One seed, one result, on any number of engines; a finished run is only read again.
    json(here, &format!("{arguments} two --engines 2"));
    for suffix in ["geneTrees", "geneModels"] {
        let [one, two] = ["one", "two"]
            .map(|prefix| std::fs::read(here.join(format!("{prefix}.{suffix}"))).unwrap());
        assert_eq!(one, two);
    }
    let again = sidecore(here, &format!("{arguments} two --engines 1"));
    assert!(String::from_utf8_lossy(&again.stderr).contains("3 results are there"));
    // Models with all values, of each locus' columns; chosen ones, too.
    let chosen = json(here, "genes --msa loci --prefix three --engines 1");
    let models = std::fs::read_to_string(here.join("three.geneModels")).unwrap();
    let ranges: Vec<&str> = models
        .lines()
        .map(|line| line.rsplit(", ").next().unwrap())
        .collect();
    assert_eq!(ranges, ["a = 1-60", "b = 61-260", "c = 261-290"]);
    assert!(
        chosen["loci"][1]["model"]
            .as_str()
            .unwrap()
            .starts_with("JC"),
        "{chosen}"
    );
    // From the gene trees to the species.
    let found = json(here, "species three.geneTrees -o s.nwk");
    assert_eq!(
        (&found["trees"], &found["exact"]),
        (&3.into(), &true.into())
    );
    let far = json(here, "compare s.nwk w.nwk")["rf"].as_u64().unwrap();
    assert!(far <= 4, "{found}");
    let same = json(here, "species three.geneTrees --score s.nwk");
    assert_eq!(same["quartets_shared"], found["quartets_shared"]);
    let arguments = "genes --msa loci --model JC --support abayes --prefix four --engines 1";
    json(here, arguments);
    for by in ["support", "lengths", "both --support-range 0.333,1"] {
        let arguments = format!("species four.geneTrees --weights {by}");
        let found = json(here, &format!("{arguments} -o s.nwk"));
        let same = json(here, &format!("{arguments} --score s.nwk"));
        let [all, shared, again] = [
            &found["weight"],
            &found["weight_shared"],
            &same["weight_shared"],
        ]
        .map(|own| own.as_f64().unwrap());
        assert!(
            (shared - again).abs() < 1e-9 && 0.0 < shared && shared <= all,
            "{found}"
        );
    }
    let refused = sidecore(here, "species four.geneTrees --support-range 0,1");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn concordance_is_as_elsewhere() {
    let folder = loci();
    let here = folder.path();
    let arguments = "search --msa loci/a.phy --model JC --starts 0 --bootstraps 12 --prefix g";
    json(here, arguments);
    let arguments = "concordance --tree w.nwk --genes g.bootstraps --msa w.phy --model JC";
    let found = json(
        here,
        &format!("{arguments} --quartets 100000 --likelihood -o cf.nwk"),
    );
    let branches = found["branches"].as_array().unwrap();
    assert_eq!(branches.len(), 7);
    let clade = |row: &Value| {
        let mut clade: Vec<String> = serde_json::from_value(row["clade"].clone()).unwrap();
        clade.sort();
        clade
    };
    for row in branches {
        // States at the nodes say about the same as the tips' quartets.
        let [sites, likelihood] = ["sites", "likelihood"].map(|kind| row[kind]["scf"].as_f64());
        assert!((sites.unwrap() - likelihood.unwrap()).abs() < 35.0, "{row}");
    }
    let judge = Command::new("iqtree2")
        .args(
            "-t w.nwk --gcf g.bootstraps -s w.phy --scf 4000 --prefix c -quiet -seed 1".split(' '),
        )
        .current_dir(here)
        .output();
    let Ok(judge) = judge else {
        eprintln!("not compared: iqtree2 is not here (scripts/setup installs it)");
        return;
    };
    assert!(judge.status.success(), "{judge:?}");
    // IQ-TREE numbers branches: its tree has the numbers as labels of the nodes.
    let numbered = std::fs::read_to_string(here.join("c.cf.branch")).unwrap();
    std::fs::write(here.join("numbers.nwk"), numbered).unwrap();
    let numbers = json(here, "concordance --tree numbers.nwk --genes g.bootstraps");
    let table = std::fs::read_to_string(here.join("c.cf.stat")).unwrap();
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<Vec<&str>> = lines.map(|line| line.split('\t').collect()).collect();
    let column = |name: &str| lines[0].iter().position(|own| *own == name).unwrap();
    let mut compared = 0;
    for line in &lines[1..] {
        let value = |name: &str| line[column(name)].parse::<f64>().unwrap();
        let all = numbers["branches"].as_array().unwrap();
        let same = all.iter().find(|row| row["label"] == line[0]).unwrap();
        let own = branches
            .iter()
            .find(|row| clade(row) == clade(same))
            .unwrap();
        assert!(
            (own["genes"]["gcf"].as_f64().unwrap() - value("gCF")).abs() < 0.01,
            "{own}"
        );
        assert!(
            (own["genes"]["gdfp"].as_f64().unwrap() - value("gDFP")).abs() < 0.01,
            "{own}"
        );
        assert_eq!(own["genes"]["decisive"].as_f64(), Some(value("gN")));
        // The two swaps are the same two, in one order or the other.
        let pair = |one: f64, other: f64| [one.min(other), one.max(other)];
        for (kind, names, ours, tolerance) in [
            ("genes", ["gDF1", "gDF2"], ["gdf1", "gdf2"], 0.01),
            ("sites", ["sDF1", "sDF2"], ["sdf1", "sdf2"], 1.5),
        ] {
            let [a, b] = ours.map(|name| own[kind][name].as_f64().unwrap());
            let expected = pair(value(names[0]), value(names[1]));
            for (value, expected) in pair(a, b).into_iter().zip(expected) {
                assert!((value - expected).abs() < tolerance, "{own} {line:?}");
            }
        }
        // Of IQ-TREE's 4,000 random quartets; ours are all of them.
        let [scf, decisive] = ["scf", "decisive"].map(|name| own["sites"][name].as_f64().unwrap());
        assert!((scf - value("sCF")).abs() < 1.5, "{own} {line:?}");
        assert!((decisive - value("sN")).abs() < 1.0, "{own} {line:?}");
        compared += 1;
    }
    assert_eq!(compared, 7);
}

#[test]
fn three_ways_around_a_branch_and_jackknives() {
    let folder = simulated();
    let here = folder.path();
    let tree = "(t1,t2,((((t3,(t6,t8)),t7),(t4,t5)),t9));\n";
    std::fs::write(here.join("w.best"), tree).unwrap();
    let arguments = "support --tree w.best --msa w.phy --model JC --replicates 5000 --support";
    // IQ-TREE's for the same tree, from its output once (`-abayes -lbp 10000`). It fits the lengths
    // of the alternatives less far, so that few more replicates have the branch as it is.
    for (kind, expected, tolerance) in [("abayes", ABAYES, 0.03), ("lbp", LBP, 0.06)] {
        let found = json(here, &format!("{arguments} {kind}"));
        let values = found["values"].as_array().unwrap();
        assert_eq!(values.len(), expected.len());
        for (value, expected) in values.iter().zip(expected) {
            assert!(
                (value.as_f64().unwrap() - expected).abs() < tolerance,
                "{kind} {found}"
            );
        }
    }
    let arguments = "search --msa w.phy --model JC --starts 0 --bootstraps 2 --engines 1";
    let all = json(here, &format!("{arguments} --prefix all"));
    let half = json(here, &format!("{arguments} --jackknife 0.5 --prefix half"));
    let lnl = |found: &Value| found["tasks"][0]["lnl"].as_f64().unwrap();
    // Half of the sites have half of the likelihood's logarithm.
    let ratio = lnl(&half) / lnl(&all);
    assert!((0.35..0.65).contains(&ratio), "{ratio}");
    let other = sidecore(here, &format!("{arguments} --prefix half"));
    assert!(String::from_utf8_lossy(&other.stderr).contains("--jackknife"));
}

/// In the order of the nodes, as those of SH-aLRT above.
const ABAYES: [f64; 6] = [1.0, 0.581, 1.0, 0.147, 0.971, 1.0];
const LBP: [f64; 6] = [1.0, 0.634, 1.0, 0.122, 0.741, 1.0];
