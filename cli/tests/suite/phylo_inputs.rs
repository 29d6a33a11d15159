//! `sidecore phylo` with alignments, models and files of partitions as users have them.
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

/// Writes `gaps.phy`: `a.phy` with columns of gaps after its sites 10, 100 (two) and 300. Returns
/// their positions, from 0.
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
        // A line for each column of the file, 0 where there is no character.
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
    // More engines than a pool can have: the pool names its limit.
    refused(
        &evaluate("JC", &["--engines", "20000"]),
        &["20000 engines asked for; a pool has 1 to"],
    );
    // An error about the alignment names the alignment.
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
    // A scaler in the file is `--brlen scaled`; fitted values can be given again.
    let (scaled, models) = lnl("scaled", &[]);
    assert_eq!((scaled, models.clone()), lnl("gtr", &["--brlen", "scaled"]));
    // So is the default of several partitions, as RAxML-NG's.
    assert_eq!((scaled, models.clone()), lnl("gtr", &[]));
    assert!(scaled > lnl("gtr", &["--brlen", "linked"]).0);
    assert!(scaled < lnl("gtr", &["--brlen", "unlinked"]).0);
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
    for (model, brlen) in [
        ("scaled", "linked"),
        ("fixed", "scaled"),
        ("fixed", "unlinked"),
    ] {
        let output = sidecore(here, &[&arguments[..], &[model, "--brlen", brlen]].concat());
        refused(&output, &[model, "+B", "leave out one"]);
    }
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let config = zlib_rs::DeflateConfig {
        window_bits: 31,
        ..zlib_rs::DeflateConfig::default()
    };
    let mut out = vec![0; text.len() + 1_000];
    let (packed, code) = zlib_rs::compress_slice(&mut out, text, config);
    assert_eq!(code, zlib_rs::ReturnCode::Ok);
    packed.to_vec()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 1_000);
    zstd_safe::compress(&mut out, text, 3).unwrap();
    out
}

/// An evaluation of `a.phy` or its replacement.
fn evaluate(folder: &Path, msa: &str, tree: &str, model: &str) -> Output {
    let arguments = [
        "evaluate", "--json", "--msa", msa, "--tree", tree, "--model", model,
    ];
    sidecore(folder, &arguments)
}

#[test]
fn all_formats_plain_and_packed_evaluate_alike() {
    let folder = simulated();
    let here = folder.path();
    let expected = json(&evaluate(here, "a.phy", "a.nwk", "GTR+G"))["lnl"].clone();
    let rows = rows(here);
    let mut clustal = "CLUSTAL W (1.83) multiple sequence alignment\n".to_owned();
    let mut stockholm = "# STOCKHOLM 1.0\n".to_owned();
    for block in [0..200, 200..300] {
        (clustal, stockholm) = (clustal + "\n", stockholm + "\n");
        for (name, row) in &rows {
            clustal += &format!("{name}  {} {}\n", &row[block.clone()], block.end);
            stockholm += &format!("{name}  {}\n", &row[block.clone()].replace('T', "u"));
        }
        clustal += "    *  .:\n";
    }
    let dots = |(name, row): &(String, String)| {
        let pairs = row.chars().zip(rows[0].1.chars());
        let row: String = pairs
            .map(|(own, first)| if own == first { '.' } else { own })
            .collect();
        format!("{name} {row}\n")
    };
    let others: String = rows[1..].iter().map(dots).collect();
    let first = format!("{} {}", rows[0].0, rows[0].1);
    let nexus = format!(
        "#NEXUS\nbegin data;\ndimensions ntax=8 nchar=300;\nformat datatype=dna gap=-;\n\
         matrix\n{first}\n{others};\nend;\n"
    );
    let phylip = std::fs::read_to_string(here.join("a.phy")).unwrap();
    for text in [&phylip, &clustal, &(stockholm + "//\n"), &nexus] {
        for bytes in [
            text.clone().into_bytes(),
            gzip(text.as_bytes()),
            zstd(text.as_bytes()),
        ] {
            // The file name must not matter.
            std::fs::write(here.join("msa.txt"), bytes).unwrap();
            let found = json(&evaluate(here, "msa.txt", "a.nwk", "GTR+G"))["lnl"].clone();
            assert_eq!(found, expected, "{}", &text[..40]);
        }
    }
    let packed = gzip(phylip.as_bytes());
    std::fs::write(here.join("cut.gz"), &packed[..packed.len() / 2]).unwrap();
    refused(
        &evaluate(here, "cut.gz", "a.nwk", "GTR+G"),
        &["cut.gz: ", "gzip file is cut off", "copy it again"],
    );
    std::fs::write(here.join("twice.fa"), ">a\nA\n>b\nA\n>a\nA\n>b\nC\n").unwrap();
    refused(
        &evaluate(here, "twice.fa", "a.nwk", "GTR+G"),
        &["twice.fa: ", "2: `a` (2), `b` (2)"],
    );
}

#[test]
fn nexus_sets_and_stops_are_files_of_partitions() {
    let folder = simulated();
    let here = folder.path();
    let lines = "GTR+G, first = 1-100\nHKY, odd = 101-300\\2\nJC, even = 102-300\\2\n";
    let stops = lines.replace("300", ".");
    let sets = "#nexus\nbegin sets;\ncharset first = 1-100;\ncharset odd = 101-.\\2;\n\
        charset even = 102 - . \\ 2;\ncharpartition p = GTR+G:first, HKY:odd, JC:even;\nend;\n";
    let mut found = Vec::new();
    for (file, text) in [("lines", lines), ("stops", &stops), ("sets", sets)] {
        std::fs::write(here.join(file), text).unwrap();
        let report = json(&evaluate(here, "a.phy", "a.nwk", file));
        found.push((report["lnl"].clone(), report["models"].clone()));
    }
    std::fs::write(here.join("sets.gz"), gzip(sets.as_bytes())).unwrap();
    let report = json(&evaluate(here, "a.phy", "a.nwk", "sets.gz"));
    found.push((report["lnl"].clone(), report["models"].clone()));
    assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
    for (text, part) in [
        (
            "#nexus begin sets; charset a = 1-300; end;",
            "no model is given",
        ),
        (
            "#nexus begin sets; charpartition p = GTR:b; end;",
            "`b` is neither",
        ),
        ("MULTI4, all = 1-300\n", "`MULTI4` is a data type"),
        ("GT, all = 1-300\n", "such as GTGTR4"),
        ("AA, all = 1-300\n", "name a matrix, such as LG+G4"),
    ] {
        std::fs::write(here.join("bad"), text).unwrap();
        refused(&evaluate(here, "a.phy", "a.nwk", "bad"), &["bad: ", part]);
    }
}

#[test]
fn each_tree_of_a_file_is_evaluated() {
    let folder = simulated();
    let here = folder.path();
    let simulate = "simulate --taxa 8 --sites 9 --seed 6 -o b.phy --tree-out b.nwk --model JC";
    let output = sidecore(here, &simulate.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{}", said(&output));
    let [a, b] = ["a.nwk", "b.nwk"].map(|file| std::fs::read_to_string(here.join(file)).unwrap());
    let [of_a, of_b] = ["a.nwk", "b.nwk"].map(|file| json(&evaluate(here, "a.phy", file, "GTR+G")));
    assert_eq!(
        (&of_a["best_tree"], &of_a["trees"][0]["lnl"]),
        (&1.into(), &of_a["lnl"])
    );
    std::fs::write(here.join("both.nwk"), format!("{b}{a}")).unwrap();
    // The same as NEXUS, with numbers for names.
    let table: Vec<String> = (1..=8).map(|i| format!("{i} t{i}")).collect();
    let numbered = |text: &str| text.replace("(t", "(").replace(",t", ",");
    let nexus = format!(
        "#NEXUS\nbegin trees;\ntranslate {};\ntree b = [&U] {}tree a = [&R] {}end;\n",
        table.join(", "),
        numbered(&b),
        numbered(&a)
    );
    std::fs::write(here.join("both.nex.gz"), gzip(nexus.as_bytes())).unwrap();
    for file in ["both.nwk", "both.nex.gz"] {
        let both = json(&evaluate(here, "a.phy", file, "GTR+G"));
        assert_eq!(both["trees"][0]["lnl"], of_b["lnl"], "{file}");
        assert_eq!(both["trees"][1]["lnl"], of_a["lnl"], "{file}");
        assert_eq!(
            (&both["best_tree"], &both["lnl"]),
            (&2.into(), &of_a["lnl"])
        );
        assert_eq!(both["tree_length"], of_a["tree_length"]);
    }
    let text = "evaluate --msa a.phy --model GTR+G --tree both.nwk --site-lnl sites --tree-out out";
    let output = sidecore(here, &text.split(' ').collect::<Vec<_>>());
    let lines = String::from_utf8(output.stdout).unwrap();
    let first: Vec<&str> = lines
        .lines()
        .map(|line| line.split("  ").next().unwrap())
        .collect();
    assert_eq!(
        first[..4],
        ["tree 1", "tree 2", "best", "log-likelihood"],
        "{lines}"
    );
    let sites = std::fs::read_to_string(here.join("sites")).unwrap();
    assert!(
        sites.lines().count() == 300 && sites.lines().all(|line| line.split('\t').count() == 2)
    );
    let written = std::fs::read_to_string(here.join("out")).unwrap();
    assert_eq!(written.lines().count(), 2);
    std::fs::write(here.join("bad.nwk"), format!("{a}(t1,t2,t3);\n")).unwrap();
    refused(
        &evaluate(here, "a.phy", "bad.nwk", "GTR+G"),
        &["bad.nwk, tree 2: "],
    );
    refused(
        &sidecore(here, &["compare", "both.nwk", "a.nwk"]),
        &["both.nwk has 2 trees"],
    );
    // Starting trees of a search, packed NEXUS too; more engines than cores or bits of a word.
    let search = "search --msa a.phy --model JC --prefix p --start-trees both.nex.gz --engines 70 \
                  --json";
    let arguments: Vec<&str> = search.split_whitespace().collect();
    let report = json(&sidecore(here, &arguments));
    assert_eq!(
        (
            &report["engines"],
            report["tasks"].as_array().unwrap().len()
        ),
        (&70.into(), 2)
    );
}

#[test]
fn files_can_have_raxml_ng_s_names() {
    let folder = simulated();
    let here = folder.path();
    let search = |prefix: &str, more: &[&str]| {
        let base = "search --msa a.phy --model GTR+G --bootstraps 4 --support fbp,tbe --prefix";
        let base: Vec<&str> = base.split(' ').chain([prefix]).collect();
        sidecore(here, &[&base[..], more].concat())
    };
    let ng = ["--names", "raxml-ng", "--starts"];
    assert!(search("own", &["--starts", "2"]).status.success());
    assert!(search("ng", &[&ng[..], &["1"]].concat()).status.success());
    // Resuming with another start.
    let more = search("ng", &[&ng[..], &["2"]].concat());
    assert!(
        said(&more).contains("going on with ng.raxml.ckp: 5 results"),
        "{}",
        said(&more)
    );
    let mut names: Vec<String> = std::fs::read_dir(here)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("ng."))
        .collect();
    names.sort();
    let suffixes = [
        ("bestModel", "bestModel"),
        ("bestTree", "bestTree"),
        ("bootstraps", "bootstraps"),
        ("ckp", ""),
        ("log", ""),
        ("mlTrees", "mlTrees"),
        ("startTree", "startTrees"),
        ("support", "support"),
        ("supportAll", "supportAll"),
        ("supportTBE", "supportTBE"),
    ];
    assert_eq!(
        names,
        suffixes.map(|(suffix, _)| format!("ng.raxml.{suffix}"))
    );
    for (theirs, ours) in suffixes.into_iter().filter(|(_, ours)| !ours.is_empty()) {
        let read = |name: String| std::fs::read(here.join(name)).unwrap();
        let theirs = read(format!("ng.raxml.{theirs}"));
        assert!(theirs == read(format!("own.{ours}")), "{ours}");
    }
    // Files of RAxML-NG itself are as safe as ours.
    std::fs::write(here.join("their.raxml.bestTree"), "(a,b,c);").unwrap();
    refused(
        &search("their", &[&ng[..], &["1"]].concat()),
        &["their.raxml.bestTree is there already"],
    );
}

#[test]
fn dna_under_a_model_of_proteins_is_said() {
    let folder = simulated();
    let evaluate = |model: &str| {
        let line = format!("evaluate --msa a.phy --tree a.nwk --opt none --model {model}");
        let output = sidecore(folder.path(), &line.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    let warning = "looks like DNA";
    assert!(evaluate("LG").contains(warning));
    assert!(!evaluate("JC").contains(warning));
}
