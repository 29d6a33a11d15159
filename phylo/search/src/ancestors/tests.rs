use super::*;
use crate::likelihood::{Likelihood, Options};
use crate::model::ModelName;
use crate::msa::{Alignment, Alphabet};
use crate::random::Random;
use crate::runner::Serial;
use crate::tree::random_tree;

fn model(name: &str, patterns: &Patterns) -> Model {
    let read = &mut |_: &str| Err(std::io::Error::other("no file"));
    Model::new(ModelName::parse(name, read).unwrap(), patterns)
}

const SIX: &[u8] = b"6 12
a ACGTACGTAARN
b ACGTACGAAA-N
c ACGAACCTTAAN
d CCGAACCTTACN
e CCTAATCTGAGN
f CCTAATCAGATN
";

/// The probabilities by their definition: the likelihood with a node held in a state, by adding a
/// tip of that state at distance 0, over the sum of these.
#[test]
fn probabilities_are_those_of_a_tip_at_the_node() {
    let alignment = Alignment::parse(SIX).unwrap();
    let text = "(((a:0.1,b:0.2):0.1,c:0.3):0.05,d:0.4,(e:0.2,f:0.1):0.3);";
    for name in [
        "JC",
        "HKY{1/2}+FU{0.4/0.3/0.2/0.1}+G4m{0.5}",
        "JC+IU{0.3}+G4m{0.9}",
    ] {
        let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
        let newick = Newick::parse(text).unwrap();
        let tree = Tree::from_newick(&newick, alignment.names()).unwrap();
        let found = Ancestors::new(&tree, &patterns, &model(name, &patterns), 1.0);
        // The node above e and f, and the same with a tip there.
        let newick = labelled(&tree, alignment.names());
        let node = newick
            .nodes()
            .iter()
            .position(|node| {
                let has = |label: &str| {
                    node.children
                        .iter()
                        .any(|&child| newick.nodes()[child].label == label)
                };
                has("e") && has("f")
            })
            .unwrap();
        let label = &newick.nodes()[node].label;
        let number: usize = label["Node".len()..].parse::<usize>().unwrap() - 1;
        let with = text.replace(
            "(e:0.2,f:0.1):0.3",
            "((e:0.2,f:0.1):0.000001,x:0.000001):0.3",
        );
        let mut by_state = Vec::new();
        for state in ["A", "C", "G", "T"] {
            let mut names = alignment.names().to_vec();
            let mut rows: Vec<Vec<u8>> = (0..6).map(|k| alignment.row(k).to_vec()).collect();
            names.push("x".into());
            rows.push(state.as_bytes().repeat(alignment.sites()));
            let seven = Alignment::new(names, rows).unwrap();
            let patterns_7 = Patterns::new(&seven, Alphabet::Dna).unwrap();
            let tree = Tree::from_newick(&Newick::parse(&with).unwrap(), seven.names()).unwrap();
            // Frequencies and the like are the name's own: no count differs.
            let model = model(name, &patterns_7);
            let options = Options::default();
            let mut likelihood = Likelihood::new(tree, patterns_7, model, Serial, options).unwrap();
            by_state.push(likelihood.site_log_likelihoods().unwrap());
        }
        for (site, pattern) in patterns.site_patterns() {
            let each: Vec<f64> = by_state.iter().map(|lnl| lnl[site].exp()).collect();
            let sum: f64 = each.iter().sum();
            let own = found.probabilities(number, pattern);
            for (p, expected) in own.iter().zip(&each) {
                assert!(
                    (p - expected / sum).abs() < 1e-4,
                    "{name} {site}: {own:?} {each:?}"
                );
            }
        }
    }
}

#[test]
fn large_trees_do_not_vanish() {
    let taxa = 700;
    let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
    let mut random = Random::new(4);
    let tree = random_tree(taxa, 2.0, &mut random);
    let mut row = || {
        (0..3)
            .map(|_| b"ACGT"[random.below(4) as usize])
            .chain(*b"A")
            .collect()
    };
    let rows: Vec<Vec<u8>> = (0..taxa).map(|_| row()).collect();
    let alignment = Alignment::new(names, rows).unwrap();
    let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
    for name in ["JC+G4", "JC+IU{0.2}"] {
        let found = Ancestors::new(&tree, &patterns, &model(name, &patterns), 1.0);
        for node in 0..found.nodes() {
            for pattern in 0..patterns.len() {
                let sum: f64 = found.probabilities(node, pattern).iter().sum();
                assert!((sum - 1.0).abs() < 1e-9, "{name}: {sum}");
            }
        }
    }
}

#[test]
fn names_follow_the_written_tree() {
    let alignment = Alignment::parse(SIX).unwrap();
    let newick = Newick::parse("(((a,b),c),d,(e,f));").unwrap();
    let tree = Tree::from_newick(&newick, alignment.names()).unwrap();
    let text = labelled(&tree, alignment.names()).to_string();
    assert!(text.ends_with(")Node1;"), "{text}");
    for k in 1..=4 {
        assert!(text.contains(&format!("Node{k}")), "{text}");
    }
    assert_eq!(inner_nodes(&tree).len(), 4);
}
