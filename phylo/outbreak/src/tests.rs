//! Whole inferences on genomes that were evolved from a seed, against the dense likelihood.

use super::*;
use crate::genome::Genome;
use crate::tree::ROOT;
use sidecore_likelihood::likelihood::{LENGTH_MIN, Likelihood, Options as DenseOptions};
use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::msa::{Alignment, Patterns};
use sidecore_likelihood::newick::Newick;
use sidecore_likelihood::runner::Serial;
use sidecore_likelihood::tree::Tree;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_random::Random;
use std::sync::atomic::AtomicBool;

/// Genomes that were evolved along a tree, and the tree.
struct Evolved {
    rows: Vec<Vec<u8>>,
    truth: Newick,
}

impl Evolved {
    /// Each genome has one or two substitutions more than an earlier one; the first and last 50
    /// sites have none, and are unknown in some genomes.
    fn new(taxa: usize, sites: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let first: Vec<u8> = (0..sites).map(|_| b"ACGT"[random.index(4)]).collect();
        let mut rows = vec![first];
        let mut branches = vec![(0, 0)];
        for taxon in 1..taxa {
            let parent = random.index(taxon);
            let mut row = rows[parent].clone();
            let changes = 1 + random.index(2);
            for _ in 0..changes {
                let site = 50 + random.index(sites - 100);
                let others = b"ACGT".iter().filter(|&&base| base != row[site]);
                row[site] = *others.clone().nth(random.index(3)).unwrap();
            }
            rows.push(row);
            branches.push((parent, changes));
        }
        let mut truth = Newick::root(String::new());
        truth.push(0, "t0".to_owned(), Some(0.0));
        let mut nodes = vec![0];
        for (taxon, &(parent, changes)) in branches.iter().enumerate().skip(1) {
            let length = f64::from(u32::try_from(changes).unwrap()) / sites as f64;
            let name = format!("t{taxon}");
            let has_children = branches
                .iter()
                .skip(taxon)
                .any(|&(parent, _)| parent == taxon);
            let own = match has_children {
                true => truth.push(nodes[parent], String::new(), Some(length)),
                false => truth.push(nodes[parent], name.clone(), Some(length)),
            };
            if has_children {
                truth.push(own, name, Some(0.0));
            }
            nodes.push(own);
        }
        for row in rows.iter_mut().step_by(3) {
            let (front, back) = (random.index(50), random.index(50));
            row[..front].fill(b'N');
            row[sites - back..].fill(b'-');
        }
        Self { rows, truth }
    }

    fn fasta(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (taxon, row) in self.rows.iter().enumerate() {
            text.extend(format!(">t{taxon}\n").bytes());
            text.extend(row);
            text.push(b'\n');
        }
        text
    }

    /// The dense likelihood of a tree, with its lengths or with fitted ones.
    fn dense(&self, newick: &Newick, model: &str, fits: bool) -> f64 {
        let names = (0..self.rows.len())
            .map(|taxon| format!("t{taxon}"))
            .collect();
        let alignment = Alignment::new(names, self.rows.clone()).unwrap();
        let name = ModelName::parse(model, &mut |_| unreachable!()).unwrap();
        let patterns = Patterns::new(&alignment, name.alphabet()).unwrap();
        let tree = Tree::from_newick(newick, alignment.names()).unwrap();
        let model = Model::new(name, &patterns);
        let options = DenseOptions::default();
        let mut dense = Likelihood::new(tree, patterns, model, Serial, options).unwrap();
        match fits {
            true => dense.optimise_lengths(0.01, 50).unwrap(),
            false => dense.evaluate().unwrap(),
        }
    }
}

fn pool(engines: usize) -> Pool {
    let config = PoolConfig {
        engines,
        ..PoolConfig::default()
    };
    Pool::start(config).unwrap()
}

fn found(text: &[u8], options: &Options, engines: usize) -> Outbreak {
    let genomes = Genomes::parse(text).unwrap();
    let stop = AtomicBool::new(false);
    infer(genomes, options, &pool(engines), &mut |_| {}, &stop).unwrap()
}

#[test]
fn the_likelihood_is_that_of_all_sites() {
    let mut evolved = Evolved::new(30, 20_000, 3);
    // Ambiguous bases, some of them where others have a substitution.
    for (taxon, row) in evolved.rows.iter_mut().enumerate().skip(20) {
        for site in (60 + taxon..19_900).step_by(997) {
            row[site] = match row[site] {
                b'A' | b'G' => b'R',
                b'C' | b'T' => b'Y',
                other => other,
            };
        }
    }
    for model in [ModelChoice::Jc, ModelChoice::Gtr] {
        let options = Options {
            model,
            ..Options::default()
        };
        let mut found = found(&evolved.fasta(), &options, 1);
        assert_eq!(found.tree.tips(), 30);
        // The dense one has no shorter branches.
        for node in &mut found.tree.nodes {
            node.length = node.length.max(LENGTH_MIN);
        }
        found.tree.nodes[0].length = 0.0;
        let sparse = found.tree.rebuild(&found.space);
        let newick = found.newick(Style::default());
        let dense = evolved.dense(&newick, &found.space.rates.name(), false);
        assert!((sparse - dense).abs() < 0.005, "{sparse} {dense}");
    }
}

#[test]
fn the_tree_found_is_as_likely_as_the_true_one() {
    let options = Options {
        model: ModelChoice::Jc,
        ..Options::default()
    };
    for seed in [1, 2] {
        let evolved = Evolved::new(60, 3_000, seed);
        let found = found(&evolved.fasta(), &options, 2);
        let own = evolved.dense(&found.newick(Style::default()), "JC", true);
        let truth = evolved.dense(&evolved.truth, "JC", true);
        assert!(own > truth - 0.5, "{own} {truth}");
    }
}

#[test]
fn engines_change_nothing() {
    let text = Evolved::new(150, 2_000, 9).fasta();
    let [one, many] = [1, 3].map(|engines| found(&text, &Options::default(), engines));
    assert_eq!(one.lnl().to_bits(), many.lnl().to_bits());
    let [one, many] = [one, many].map(|found| found.newick(Style::default()).to_string());
    assert_eq!(one, many);
}

#[test]
fn rounds_of_moves_never_make_it_worse() {
    let text = Evolved::new(120, 1_000, 5).fasta();
    let of = |rounds| {
        let options = Options {
            rounds,
            ..Options::default()
        };
        found(&text, &options, 2)
    };
    let (placed, moved) = (of(0), of(4));
    assert!(
        moved.lnl() >= placed.lnl() - 0.1,
        "{} {}",
        moved.lnl(),
        placed.lnl()
    );
}

#[test]
fn few_and_equal_genomes_have_trees() {
    for (text, tips, polytomies) in [
        (">a\nACGT\n", 1, "a;"),
        (">a\nACGT\n>b\nACGT\n", 1, "(a:0,b:0);"),
        (">a\nACGT\n>b\nACGT\n>c\nNCGT\n", 1, "(a:0,b:0,c:0);"),
        (">a\nACGTACGTAC\n>b\nACGTACGTAC\n>c\nACGTACGTAT\n", 2, ""),
        (">a\nNNNN\n>b\nNNNN\n>c\nNNNN\n", 1, "(a:0,b:0,c:0);"),
    ] {
        let found = found(text.as_bytes(), &Options::default(), 1);
        let style = Style {
            polytomies: true,
            ..Style::default()
        };
        let newick = found.newick(style);
        assert_eq!(newick.tips().count(), text.matches('>').count(), "{newick}");
        assert_eq!(found.tree.tips(), tips, "{newick}");
        assert!(found.lnl().is_finite() && found.lnl() <= 0.0);
        if !polytomies.is_empty() {
            assert_eq!(newick.to_string(), polytomies);
        }
        assert!(found.mutations(style).starts_with("parent\tchild"));
    }
}

#[test]
fn genomes_with_one_substitution_each_are_one_polytomy() {
    let mut text = format!(">reference\n{}\n>t0\n", "ACGT".repeat(300));
    for taxon in 1..=150 {
        // The base there is an A.
        text.push_str(&format!(">t{taxon}\nG {}\n", 4 * taxon + 1));
    }
    let options = Options {
        model: ModelChoice::Jc,
        ..Options::default()
    };
    let found = found(text.as_bytes(), &options, 2);
    let style = Style {
        polytomies: true,
        ..Style::default()
    };
    let newick = found.newick(style);
    assert_eq!(newick.nodes()[0].children.len(), 151, "{newick}");
    // No list grows with the number of genomes at the node.
    let bases = |list: &Genome| list.differences()[0];
    for node in &found.tree.nodes {
        assert_eq!(bases(&node.upper), 0, "{newick}");
        assert!(bases(&node.lower) <= 8, "{:?}", node.lower);
    }
}

#[test]
fn genomes_that_say_less_are_put_to_the_tip_that_covers_them() {
    let text = ">r\nACGTACGTACGTACGT\n>a\nA 2\n>b\nA 2\n>c\nA 2\nN 9 3\n>d\nA 2\nR 5\n>e\nT 16\n\
                >f\nN 1 16\n";
    let found = found(text.as_bytes(), &Options::default(), 1);
    let newick = found.newick(Style::default());
    assert_eq!(newick.tips().count(), 6);
    assert_eq!(found.tree.tips(), 2);
    let mut taxa: Vec<usize> = found
        .tree
        .nodes
        .iter()
        .map(|node| node.taxa.len())
        .collect();
    taxa.sort_unstable();
    assert_eq!(taxa.iter().sum::<usize>(), 6);
    assert!(found.tree.node(ROOT).parent == crate::tree::NONE);
}

/// Two pairs of genomes, each with substitutions of its own: all of them are on known branches.
#[test]
fn substitutions_are_on_the_branches_where_they_happened() {
    let mut text = ">r\n".to_owned();
    text.push_str(&"ACGT".repeat(250));
    let genomes = [
        ("r0", ""),
        ("a", "T 1\nG 10\nA 100\n"),
        ("b", "T 1\nG 10\nC 201\n"),
        ("c", "A 400\nA 500\nT 601\n"),
        ("d", "A 400\nA 500\nG 701\n"),
    ];
    for (name, lines) in genomes {
        text.push_str(&format!("\n>{name}\n{}", lines.trim_end()));
    }
    let found = found(text.as_bytes(), &Options::default(), 1);
    let style = Style {
        polytomies: true,
        node_names: true,
    };
    let table = found.mutations_for("a.tsv".as_ref(), style);
    let mut changes: Vec<String> = table
        .lines()
        .skip(1)
        .map(|line| line.split('\t').skip(2).collect::<Vec<_>>().join(" "))
        .collect();
    changes.sort();
    let mut known = [
        "1 A T", "10 C G", "100 T A", "201 A C", "400 T A", "500 T A", "601 A T", "701 A G",
    ];
    known.sort_unstable();
    assert_eq!(changes, known, "{}\n{table}", found.newick(style));
    let to_a: Vec<&str> = table
        .lines()
        .filter(|line| line.contains("\ta\t"))
        .collect();
    assert_eq!(to_a.len(), 1, "{table}");
    let node_data = found.mutations_for("a.json".as_ref(), style);
    let data: serde_json::Value = serde_json::from_str(&node_data).unwrap();
    assert_eq!(data["nodes"]["a"]["muts"][0], "T100A");
    assert_eq!(data["annotations"]["nuc"]["end"], 1000);
    assert!(
        data["nodes"]["Node1"]["muts"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_signal_ends_the_placement_with_an_error() {
    let genomes = Genomes::parse(&Evolved::new(10, 200, 1).fasta()).unwrap();
    let stop = AtomicBool::new(true);
    let ended = infer(genomes, &Options::default(), &pool(1), &mut |_| {}, &stop);
    assert!(matches!(ended, Err(OutbreakError::Stopped)));
}

#[test]
fn memory_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("genomes.fa");
    std::fs::write(&file, Evolved::new(20, 1_000, 1).fasta()).unwrap();
    let read = |memory| {
        let options = ReadOptions {
            reference: ReferenceChoice::Own,
            memory,
        };
        Genomes::read(&file, &options, &pool(2))
    };
    assert_eq!(read(1 << 20).unwrap().taxa(), 20);
    let error = read(20_500).unwrap_err().to_string();
    assert!(error.contains("--memory"), "{error}");
}
