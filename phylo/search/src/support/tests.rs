//! Support by hand and by its definitions.

use super::*;
use crate::random::Random;
use crate::runner::Serial;
use crate::tree::random_tree;
use std::collections::BTreeSet;

fn newick(text: &str) -> Newick {
    Newick::parse(text).unwrap()
}

fn supported(tree: &str, replicates: &[&str], kind: Kind) -> String {
    let tree = newick(tree);
    let reference = Reference::new(&tree).unwrap();
    let mut all = reference.empty(kind);
    for replicate in replicates {
        all.add(&reference.tally(&newick(replicate), kind).unwrap());
    }
    reference.labelled(&all).to_string()
}

#[test]
fn by_hand() {
    let tree = "((a,b)old,(c,d),(e,f));";
    let replicates = [
        "((a,b),(c,e),(d,f));",
        "(((a,b),c),(d,(e,f)));",
        "((f,e),(a,(b,(c,d))));",
    ];
    let fbp = supported(tree, &replicates, Kind::Fbp);
    assert_eq!(fbp, "((a,b)67,(c,d)33,(e,f)67);");
    let tbe = supported(tree, &replicates, Kind::Tbe);
    assert_eq!(tbe, "((a,b)0.666667,(c,d)0.333333,(e,f)0.666667);");
    // Three of eight: the replicate lacks one of them, its best split is one taxon away of two.
    let tbe = supported(
        "(((a,b),c),d,(e,(f,(g,h))));",
        &["(((a,b),e),d,(c,(f,(g,h))));"],
        Kind::Tbe,
    );
    assert_eq!(
        tbe,
        "(((a,b)1.000000,c)0.500000,d,(e,(f,(g,h)1.000000)1.000000)0.666667);"
    );
    assert_eq!(supported(tree, &[], Kind::Fbp), "((a,b),(c,d),(e,f));");
}

#[test]
fn a_root_of_two_has_its_branch_once() {
    let tree = supported("((a,b),((c,d),e));", &["((a,b),c,(d,e));"], Kind::Fbp);
    assert_eq!(tree, "((a,b)100,((c,d)0,e)100);");
}

#[test]
fn other_tips_are_refused() {
    let tree = newick("((a,b),c,d);");
    let reference = Reference::new(&tree).unwrap();
    assert!(reference.tally(&newick("((a,b),c,e);"), Kind::Fbp).is_err());
    assert!(Reference::new(&newick("(a,b);")).is_err());
}

/// All sides of all branches as sets of labels, one for each branch.
fn sides(tree: &Newick) -> Vec<BTreeSet<String>> {
    let nodes = tree.nodes();
    let below = |top: usize| {
        let mut path = vec![top];
        let mut labels = BTreeSet::new();
        while let Some(node) = path.pop() {
            path.extend(&nodes[node].children);
            if nodes[node].children.is_empty() {
                labels.insert(nodes[node].label.clone());
            }
        }
        labels
    };
    (1..nodes.len()).map(below).collect()
}

#[test]
fn as_the_definitions_say() {
    let mut random = Random::new(11);
    for taxa in [4, 5, 9, 33, 70] {
        let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
        let all: BTreeSet<String> = names.iter().cloned().collect();
        let best = random_tree(taxa, 0.1, &mut random);
        let mut near = best.clone();
        let mut replicates = Vec::new();
        for k in 0..6 {
            // Some alike, some not.
            let edge = near.edges().nth(random.below(taxa as u64) as usize);
            edge.and_then(|edge| near.nni(edge, k % 2 == 0));
            let tree = match k {
                0..4 => near.clone(),
                _ => random_tree(taxa, 0.1, &mut random),
            };
            replicates.push(newick(&tree.to_newick(&names)));
        }
        let tree = newick(&best.to_newick(&names));
        let reference = Reference::new(&tree).unwrap();
        assert_eq!(reference.branches(), taxa - 3);
        let own = sides(&tree);
        for kind in [Kind::Fbp, Kind::Tbe] {
            let mut sum = reference.empty(kind);
            for replicate in &replicates {
                sum.add(&reference.tally(replicate, kind).unwrap());
            }
            let spread = reference.tally_all(&replicates, kind, &Serial).unwrap();
            assert_eq!(spread, sum);
            for (node, value) in reference.values(&sum) {
                let side = &own[node - 1];
                let light = side.len().min(taxa - side.len());
                let mut expected = 0.0;
                for replicate in &replicates {
                    let moves = |other: &BTreeSet<String>| {
                        let moved = side.symmetric_difference(other).count();
                        moved.min(all.len() - moved)
                    };
                    let least = sides(replicate).iter().map(moves).min().unwrap();
                    expected += match kind {
                        Kind::Fbp => f64::from(u8::from(least == 0)),
                        Kind::Tbe => 1.0 - least as f64 / (light - 1) as f64,
                    } / replicates.len() as f64;
                }
                assert!((value - expected).abs() < 1e-12, "{value} {expected}");
            }
        }
    }
}
