//! Trees from texts and back, and edits that are undone to the last bit.

use super::*;
use crate::random::Random;
use crate::simulate::numbered_names;
use proptest::prelude::*;

fn parse(text: &str, names: &[&str]) -> Result<Tree, TreeError> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    Tree::from_newick(&Newick::parse(text).unwrap(), &names)
}

/// Every half-edge that is joined is its back's back, on one branch.
fn sound(tree: &Tree) {
    for edge in tree.edges() {
        let [a, b] = tree.ends(edge);
        assert_ne!(a, b);
        assert_eq!((tree.back(a), tree.back(b)), (b, a));
        assert_eq!((tree.edge(a), tree.edge(b)), (edge, edge));
    }
    let mut seen = vec![false; tree.edges().count()];
    for edge in tree.edges_depth_first() {
        assert!(!std::mem::replace(&mut seen[edge.index()], true));
    }
    assert!(seen.into_iter().all(|seen| seen));
}

#[test]
fn rooted_and_unrooted_texts_make_the_same_tree() {
    let names = ["a", "b", "c", "d", "e"];
    let unrooted = parse("((a:1,b:2):3,c:4,(d:5,e:6):7);", &names).unwrap();
    sound(&unrooted);
    let rooted = parse("(((a:1,b:2):3,c:4):2.5,(d:5,e:6):4.5);", &names).unwrap();
    sound(&rooted);
    let names = names.map(str::to_owned);
    let [first, second] =
        [unrooted, rooted].map(|tree| Newick::parse(&tree.to_newick(&names)).unwrap());
    assert_eq!(splits(&first), splits(&second));
}

#[test]
fn what_does_not_fit_is_named() {
    let names = ["a", "b", "c", "d"];
    let error = |text: &str| parse(text, &names).unwrap_err().to_string();
    assert!(error("(a,b,(c,x));").contains("`x` that the alignment"));
    assert!(error("(a,b,(c,c));").contains("`c` twice"));
    assert!(error("(a,b,c);").contains("no tip `d` (1 of"));
    assert!(error("(a,b,(c),d);").contains("2 neighbours"));
    assert!(error("((a,b,c,d));").contains("1 neighbours"));
    assert!(error("((a,b),(c,(d)));").contains("2 neighbours"));
}

#[test]
fn a_quoted_name_is_the_one_with_underscores() {
    let names = ["a", "b c", "d_e", "f"];
    // The name as it is comes first.
    let tree = parse("('b c',a,(f,'d e'));", &names).unwrap();
    sound(&tree);
    let twice = parse("('d e',a,(d_e,'b c'));", &names).unwrap_err();
    assert!(twice.to_string().contains("twice"), "{twice}");
}

proptest! {
    #[test]
    fn texts_come_back(seed in any::<u64>(), taxa in 3_usize..60) {
        let tree = random_tree(taxa, 0.1, &mut Random::new(seed));
        sound(&tree);
        let names = numbered_names(taxa);
        let text = tree.to_newick(&names);
        let again = Tree::from_newick(&Newick::parse(&text).unwrap(), &names).unwrap();
        sound(&again);
        prop_assert_eq!(again.to_newick(&names), text);
    }

    #[test]
    fn edits_are_undone_to_the_last_bit(seed in any::<u64>(), taxa in 5_usize..40) {
        let mut random = Random::new(seed);
        let mut tree = random_tree(taxa, 0.1, &mut random);
        for _ in 0..20 {
            let before = tree.clone();
            let edge = EdgeId(random.below(2 * taxa as u64 - 3) as u32);
            if let Some(nni) = tree.nni(edge, random.below(2) == 1) {
                sound(&tree);
                prop_assert_ne!(&tree, &before);
                tree.undo_nni(nni);
            }
            prop_assert_eq!(&tree, &before);
            let half = HalfId((taxa as u64 + random.below(3 * taxa as u64 - 6)) as u32);
            let pruned = tree.prune(half);
            let target = tree.edge(pruned.ends[random.below(2) as usize]);
            let grafted = tree.regraft(pruned, target);
            sound(&tree);
            let pruned = tree.ungraft(grafted);
            tree.unprune(pruned);
            sound(&tree);
            prop_assert_eq!(&tree, &before);
            // And left as it is now and then.
            if random.below(2) == 0 {
                let _ = tree.nni(edge, false);
            }
        }
    }

    #[test]
    fn post_order_has_children_first(seed in any::<u64>(), taxa in 3_usize..50) {
        let tree = random_tree(taxa, 0.1, &mut Random::new(seed));
        for edge in tree.edges() {
            for end in tree.ends(edge) {
                let order = tree.post_order(end, |_| true);
                let mut done = std::collections::HashSet::new();
                for half in order {
                    for below in tree.others(half).map(|other| tree.back(other)) {
                        prop_assert!(tree.is_tip(below) || done.contains(&below));
                    }
                    done.insert(half);
                }
                prop_assert_eq!(done.contains(&end), !tree.is_tip(end));
            }
        }
    }
}

#[test]
fn nodes_of_many_neighbours_are_kept() {
    let names = numbered_names(9);
    for text in [
        "(t1,t2,t3,t4,t5,t6,t7,t8,t9);",
        "((t1,t2,t3,t4),(t5,t6,t7,t8,t9));",
        "(t1,t2,(t3,t4,t5,(t6,t7,t8)),t9);",
        "((t1,(t2,t3)),(t4,t5),((t6,t7),t8),t9);",
    ] {
        let newick = Newick::parse(text).unwrap();
        let mut tree = Tree::from_newick(&newick, &names).unwrap();
        let joints = tree.edges().filter(|&edge| tree.is_joint(edge)).count();
        let inner = newick
            .nodes()
            .iter()
            .filter(|node| !node.children.is_empty());
        let rooted = usize::from(newick.nodes()[0].children.len() == 2);
        // Of a binary tree there would be as many inner nodes as taxa less two.
        assert_eq!(joints, 7 - (inner.count() - rooted), "{text}");
        let lengths = tree.edges().filter(|&edge| tree.is_joint(edge));
        assert!(
            lengths
                .map(|edge| tree.length(edge))
                .all(|length| length == 0.0)
        );
        // Written and read again it is the same tree, of no more nodes.
        let again = Newick::parse(&tree.to_newick(&names)).unwrap();
        let [a, b] = [&newick, &again].map(|tree| splits(tree).into_keys().collect::<Vec<_>>());
        assert_eq!(a, b, "{text}");
        let saved: Tree = saved::Saved::from(tree.clone()).try_into().unwrap();
        assert_eq!(saved, tree);
        tree.set_all_lengths(0.5);
        assert_eq!(tree.total_length(), 0.5 * (15 - joints) as f64);
        tree.resolve();
        assert!(!tree.edges().any(|edge| tree.is_joint(edge)));
    }
}

/// The taxa on the side of each inner branch that the first taxon is not on, and the length.
fn splits(newick: &Newick) -> std::collections::BTreeMap<Vec<String>, f64> {
    fn tips(newick: &Newick, node: usize) -> Vec<String> {
        let own = &newick.nodes()[node];
        match own.children.is_empty() {
            true => vec![own.label.clone()],
            false => own
                .children
                .iter()
                .flat_map(|&child| tips(newick, child))
                .collect(),
        }
    }
    let mut all = tips(newick, 0);
    all.sort();
    let mut found = std::collections::BTreeMap::new();
    for node in 1..newick.nodes().len() {
        let mut side = tips(newick, node);
        if side.contains(&all[0]) {
            side = all
                .iter()
                .filter(|tip| !side.contains(tip))
                .cloned()
                .collect();
        }
        side.sort();
        // A root's two branches are one.
        if side.len() > 1 && side.len() + 1 < all.len() {
            *found.entry(side).or_insert(0.0) += newick.nodes()[node].length.unwrap_or(0.0);
        }
    }
    found
}
