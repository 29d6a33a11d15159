use super::*;
use crate::compare::compare;
use crate::random::Random;
use crate::tree::random_tree;

fn trees(text: &str) -> Vec<Newick> {
    Newick::parse_file(text).unwrap()
}

/// Five trees; DendroPy 5 (`TreeList.consensus`) and IQ-TREE 2 (`-con -minsup`) agree about such.
const FIVE: &str = "\
((((a,b),c),d),(e,(f,g)),h);
((((a,b),c),d),((e,f),g),h);
((((a,c),b),d),(e,(f,g)),h);
((((a,c),b),h),((e,g),f),d);
(((a,b),(c,d)),(e,(f,g)),h);
";

#[test]
fn rules_take_what_other_programs_take() {
    let expected = [
        (Rule::Strict, "(a,b,c,d,(e,f,g),h);"),
        (Rule::Majority, "((((a,b),c),d),(e,(f,g)),h);"),
        (Rule::Extended, "((((a,b),c),d),(e,(f,g)),h);"),
        (Rule::Above(0.7), "(((a,b,c),d),(e,f,g),h);"),
    ];
    for (rule, tree) in expected {
        let found = consensus(&trees(FIVE), rule).unwrap().tree;
        let distance = compare(&found, &Newick::parse(tree).unwrap()).unwrap();
        assert_eq!(distance.rf, 0, "{rule:?}: {found}");
    }
    let found = consensus(&trees(FIVE), Rule::Majority).unwrap();
    // abcd in 4 of 5 (as the side without a), bc... in the order of the nodes.
    let mut shares = found.shares.clone();
    shares.sort_by(f64::total_cmp);
    assert_eq!(shares, [0.6, 0.6, 0.8, 0.8, 1.0]);
}

#[test]
fn the_extended_rule_goes_on_with_the_most_frequent() {
    let text = "((a,b),(c,d),e); ((a,b),(c,e),d); ((a,c),(b,d),e); ((a,d),(c,e),b);";
    // ab and ce in two of four each: no majority, and compatible.
    assert_eq!(
        consensus(&trees(text), Rule::Majority).unwrap().shares,
        [0.0; 0]
    );
    let found = consensus(&trees(text), Rule::Extended).unwrap();
    assert_eq!(found.tree.to_string(), "(a,b,((c,e)50,d)50);");
}

#[test]
fn lengths_are_means_and_roots_do_not_matter() {
    let text = "((a:1,b:1):1,(c:2,d:2):3,e:1); (e:2,((c:2,d:4):1,(a:1,b:3):3):2);";
    let found = consensus(&trees(text), Rule::Strict).unwrap();
    assert_eq!(
        found.tree.to_string(),
        "(a:1,b:2,((c:2,d:3)100:2,e:2.5)100:2);"
    );
    let rooted = "((a:1,b:1):1,(c:1,d:1):2);";
    let found = consensus(&trees(rooted), Rule::Strict).unwrap();
    assert_eq!(found.tree.to_string(), "(a:1,b:1,(c:1,d:1)100:3);");
    let some = "((a:1,b:1),c:1,d:1); ((a:1,b:1):1,c:1,d:1);";
    let found = consensus(&trees(some), Rule::Strict).unwrap();
    assert_eq!(found.tree.to_string(), "(a:1,b:1,(c:1,d:1)100);");
}

#[test]
fn one_tree_is_its_own_consensus_and_order_does_not_matter() {
    let names: Vec<String> = (0..70).map(|k| format!("t{k}")).collect();
    let mut random = Random::new(5);
    let mut tree = || Newick::parse(&random_tree(70, 0.1, &mut random).to_newick(&names)).unwrap();
    let all: Vec<Newick> = (0..7).map(|_| tree()).collect();
    for one in &all {
        for rule in [Rule::Strict, Rule::Majority, Rule::Extended] {
            let found = consensus(std::slice::from_ref(one), rule).unwrap().tree;
            let distance = compare(one, &found).unwrap();
            assert_eq!(distance.rf, 0);
            assert!(distance.branch_score.unwrap() < 1e-12);
        }
    }
    let mut other = all.clone();
    other[1..].reverse();
    let [a, b] = [all, other].map(|trees| consensus(&trees, Rule::Extended).unwrap());
    assert_eq!(a.shares, b.shares);
    assert!(a.shares.len() > 30, "{}", a.shares.len());
}

#[test]
fn other_taxa_are_refused() {
    assert_eq!(
        consensus(&[], Rule::Strict).unwrap_err(),
        ConsensusError::Empty
    );
    let error = consensus(&trees("(a,b,(c,d)); (a,b,(c,x));"), Rule::Strict).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tree 2: only one of the trees has the tip `d`"
    );
    assert!(consensus(&trees("(a,b);"), Rule::Strict).is_err());
}
