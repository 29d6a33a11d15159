use super::*;
use crate::compare::compare;
use crate::random::Random;
use crate::tree::random_tree;

fn parse(text: &str) -> Newick {
    Newick::parse(text).unwrap()
}

fn rooted(text: &str, method: &Method) -> String {
    root(&parse(text), method).unwrap().tree.to_string()
}

fn by(labels: &[&str]) -> Method {
    Method::Outgroup(labels.iter().map(ToString::to_string).collect())
}

#[test]
fn supports_stay_with_their_branches() {
    let text = "(((a:1,b:1)90:1,c:1)80:2,(d:1,e:1)70:1,f:1);";
    assert_eq!(
        rooted(text, &by(&["a"])),
        "(((((d:1,e:1)70:1,f:1)80:2,c:1)90:1,b:1):0.5,a:0.5);"
    );
    // Names of nodes stay with these.
    let named = "((a:1,b:1)X:1,(c:1,d:1)Y:1,e:1)Z;";
    assert_eq!(
        rooted(named, &by(&["a"])),
        "((((c:1,d:1)Y:1,e:1)Z:1,b:1)X:0.5,a:0.5);"
    );
}

#[test]
fn an_outgroup_is_a_side_of_a_branch() {
    let text = "((a:1,b:1)90:1,(c:1,d:1)80:2,e:4);";
    let expected = "((a:1,b:1)90:0.5,((c:1,d:1)80:2,e:4)90:0.5);";
    for labels in [&["a", "b"][..], &["c", "d", "e"], &["e", "c", "d"]] {
        let found = rooted(text, &by(labels));
        let mut sides: Vec<Newick> = vec![parse(&found), parse(expected)];
        let distance = compare(&sides[0], &sides[1]).unwrap();
        assert_eq!(distance.branch_score, Some(0.0), "{found}");
        assert_eq!(sides.remove(0).nodes()[0].children.len(), 2);
        assert!(found.contains("(a:1,b:1)90:0.5"), "{found}");
    }
    let error = |labels: &[&str]| root(&parse(text), &by(labels)).unwrap_err();
    assert_eq!(error(&["x"]), RootError::Unknown { label: "x".into() });
    assert_eq!(error(&[]), RootError::Whole { tips: 0, all: 5 });
    assert!(matches!(
        error(&["a", "b", "c", "d", "e"]),
        RootError::Whole { .. }
    ));
    let within = error(&["a", "c"]);
    assert!(matches!(within, RootError::NoClade { .. }), "{within}");
}

#[test]
fn the_midpoint_is_in_the_middle_of_the_longest_path() {
    assert_eq!(
        rooted("((a:1,b:2):1,c:2,d:7);", &Method::Midpoint),
        "(((a:1,b:2):1,c:2):2,d:5);"
    );
    // The old root's two branches are one.
    assert_eq!(
        rooted("((a:1,b:2):1,(c:1,d:1):9);", &Method::Midpoint),
        "((a:1,b:2):4.5,(c:1,d:1):5.5);"
    );
    for (text, error) in [
        ("(a:1,b:1,c);", RootError::NoLength),
        ("(a:1,b:1,c:-1);", RootError::Negative),
        ("(a:0,b:0,c:0);", RootError::Zero),
        ("(a:1,b:1);", RootError::TooSmall { tips: 2 }),
        ("(a:1,b:1,a:1);", RootError::Twice { label: "a".into() }),
    ] {
        assert_eq!(root(&parse(text), &Method::Midpoint), Err(error));
    }
}

/// The score of a rooted tree by the definition, over all pairs of its tips.
fn deviation(tree: &Newick) -> f64 {
    let nodes = tree.nodes();
    let path = |mut node: usize| {
        let mut path = vec![(node, 0.0)];
        while let Some(parent) = nodes[node].parent {
            let far = path.last().unwrap().1 + nodes[node].length.unwrap();
            path.push((parent, far));
            node = parent;
        }
        path
    };
    let tips: Vec<usize> = tree.tips().collect();
    let (mut sum, mut pairs) = (0.0, 0);
    for (k, &b) in tips.iter().enumerate() {
        for &c in &tips[..k] {
            let (of_b, of_c) = (path(b), path(c));
            let common = of_b.iter().find_map(|&(node, far)| {
                of_c.iter()
                    .find(|(other, _)| *other == node)
                    .map(|&(_, other)| (far, other))
            });
            let (one, other) = common.unwrap();
            sum += (2.0 * one / (one + other) - 1.0_f64).powi(2);
            pairs += 1;
        }
    }
    (sum / f64::from(pairs)).sqrt()
}

#[test]
fn mad_is_least_over_all_places_by_definition() {
    let names: Vec<String> = (0..12).map(|k| format!("t{k}")).collect();
    for seed in 0..5 {
        let mut random = Random::new(seed);
        let text = random_tree(12, 0.2, &mut random).to_newick(&names);
        let found = root(&parse(&text), &Method::Mad).unwrap();
        let least = found.deviation.unwrap();
        assert!((deviation(&found.tree) - least).abs() < 1e-12);
        let unrooted = Unrooted::new(&parse(&text));
        let mut tried = f64::INFINITY;
        for edge in 0..unrooted.edges() {
            for share in 0..=20 {
                let share = f64::from(share) / 20.0;
                tried = tried.min(deviation(&unrooted.rooted(Place { edge, share })));
            }
        }
        assert!(
            least <= tried + 1e-12 && tried < 1.01 * least,
            "{least} {tried}"
        );
        let ambiguity = found.ambiguity.unwrap();
        assert!(ambiguity > 0.5 && ambiguity <= 1.0, "{ambiguity}");
    }
}

#[test]
fn mad_finds_the_root_of_a_clock() {
    let clock = "(((a:1,b:1):1,c:2):3,(d:2,(e:1,f:1):1):3);";
    let unrooted = "(a:1,b:1,(c:2,(d:2,(e:1,f:1):1):6):1);";
    let found = root(&parse(unrooted), &Method::Mad).unwrap();
    assert!(found.deviation.unwrap() < 1e-9);
    let rooted = found.tree;
    let lengths: Vec<f64> = rooted.nodes()[0]
        .children
        .iter()
        .map(|&child| rooted.nodes()[child].length.unwrap())
        .collect();
    assert!((lengths[0] - 3.0).abs() < 1e-9 && (lengths[1] - 3.0).abs() < 1e-9);
    assert_eq!(compare(&rooted, &parse(clock)).unwrap().rf, 0);
    // Equal tips have no deviation.
    let equal = root(&parse("((a:0,b:0):1,c:1,(d:1,e:1):1);"), &Method::Mad).unwrap();
    assert!(equal.deviation.unwrap().is_finite());
}

#[test]
fn nothing_is_lost() {
    let names: Vec<String> = (0..30).map(|k| format!("t{k}")).collect();
    let mut random = Random::new(9);
    let tree = parse(&random_tree(30, 0.2, &mut random).to_newick(&names));
    for method in [Method::Midpoint, Method::Mad, by(&["t7"])] {
        let found = root(&tree, &method).unwrap().tree;
        let distance = compare(&tree, &found).unwrap();
        assert_eq!(distance.rf, 0);
        assert!(distance.branch_score.unwrap() < 1e-12);
    }
}

#[test]
fn lengths_have_no_digits_of_rounding() {
    let text = "((a:2.5,b:1):2.4999999999999996,c:1.3,(d:1,e:2):1.7);";
    for method in [Method::Midpoint, Method::Mad, by(&["a", "b"])] {
        let found = rooted(text, &method);
        let longest = found.split([':', ',', ')', ';']).map(str::len).max();
        assert!(longest <= Some(14), "{found}");
    }
    assert_eq!(
        rooted(text, &by(&["a", "b"])),
        "((c:1.3,(d:1,e:2):1.7):1.25,(a:2.5,b:1):1.25);"
    );
}
