//! Roots for trees that have none: by an outgroup, at the midpoint, by minimal ancestor deviation,
//! by a nonreversible model ([`by_model`]).
//!
//! Top-down: [`root`] takes a tree of any shape, removes its root and gives it another; `Unrooted`
//! is the tree between; `mad` has the sums of its method.
//! Must stay true: no branch but the root's is changed, and their sum of lengths stays. Labels of
//! inner nodes that are numbers are supports and belong to branches: they stay with these, where a
//! plain re-rooting of the text would move them to other branches (Czech, Huerta-Cepas and
//! Stamatakis, Molecular Biology and Evolution 34 (2017), 1535-1542). Other labels stay with nodes.
//! Sources: Farris, American Naturalist 106 (1972), 645-668, for the midpoint; Tria, Landan and
//! Dagan, Nature Ecology & Evolution 1 (2017), 0193, for minimal ancestor deviation.
//!
//! ```
//! use sidecore_phylo::newick::Newick;
//! use sidecore_phylo::rooting::{Method, root};
//!
//! let tree = Newick::parse("((a:1,b:1)98:1,c:2,d:8);")?;
//! let rooted = root(&tree, &Method::Midpoint)?;
//! assert_eq!(rooted.tree.to_string(), "(((a:1,b:1)98:1,c:2):3,d:5);");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod mad;
mod model;
mod unrooted;

pub use model::{ModelRootError, ModelRoots, Rootstrap, by_model, rootstrap};

use crate::newick::NODE_BYTES;
use crate::newick::Newick;
use sidecore_bare::width::ToU64;
use std::collections::HashSet;
use unrooted::Unrooted;

/// Errors that keep a tree from being rooted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// Too few tips to choose between.
    #[error("the tree has {tips} tips: at least 3 are needed for a root to be chosen")]
    TooSmall {
        /// The number.
        tips: usize,
    },
    /// A tip of the outgroup that the tree does not have.
    #[error("the tree has no tip `{label}`, which the outgroup names")]
    Unknown {
        /// The tip.
        label: String,
    },
    /// A label that two tips have.
    #[error("the tree has the tip `{label}` twice")]
    Twice {
        /// The tip.
        label: String,
    },
    /// An outgroup of no tips or of all.
    #[error("the outgroup has {tips} of the tree's {all} tips: some, but not all, are needed")]
    Whole {
        /// Its tips.
        tips: usize,
        /// The tree's.
        all: usize,
    },
    /// No branch separates the outgroup from the others.
    #[error(
        "no branch parts the outgroup from the other taxa: `{label}` stands within it; name \
         another outgroup, or root by midpoint or MAD"
    )]
    NoClade {
        /// A tip that lies within the outgroup.
        label: String,
    },
    /// A branch without a length, where lengths are needed.
    #[error("a branch of the tree has no length: root by an outgroup instead")]
    NoLength,
    /// A branch of negative length, where lengths are needed.
    #[error("a branch of the tree has a length below 0: root by an outgroup instead")]
    Negative,
    /// Trees that take long by [`Method::Mad`], where the time has no bound.
    #[error(
        "--mad looks at {:.0e} pairs of tips and branches, which may take {} s or more: give \
         --time with the seconds that it may take, or root by --midpoint",
        *steps as f64,
        steps / MAD_STEPS_A_SECOND
    )]
    Long {
        /// Pairs of tips and branches.
        steps: u64,
    },
    /// All branches have length 0.
    #[error("all branches of the tree have length 0: root by an outgroup instead")]
    Zero,
}

/// A way to find the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    /// In the middle of the branch that separates these tips from all others.
    Outgroup(Vec<String>),
    /// Halfway between the two tips that are farthest apart.
    Midpoint,
    /// At the point where the ancestors of all pairs of tips deviate least from the middle between
    /// the two (MAD).
    Mad,
}

/// A rooted tree.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Rooted {
    /// The tree; its root has two children. Serialized as its text.
    #[serde(serialize_with = "as_text")]
    pub tree: Newick,
    /// MAD: the root's ancestor deviation, from 0 (clock-like) to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviation: Option<f64>,
    /// MAD: the least deviation as a share of the second least, from 0 to 1 (1: two branches are
    /// equally good roots).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ambiguity: Option<f64>,
}

/// Serializes a tree as its text.
pub(crate) fn as_text<S: serde::Serializer>(tree: &Newick, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(tree)
}

/// A place on a branch.
#[derive(Debug, Clone, Copy)]
struct Place {
    edge: usize,
    /// Distance from the branch's first end, as a share of its length.
    share: f64,
}

/// Refuses trees that take longer than some seconds by [`Method::Mad`].
///
/// # Errors
/// [`RootError::Long`].
pub fn check_steps(trees: &[Newick]) -> Result<(), RootError> {
    let steps = trees.iter().map(mad_steps).fold(0, u64::saturating_add);
    match steps <= MAD_STEPS_MAX {
        true => Ok(()),
        false => Err(RootError::Long { steps }),
    }
}

/// Pairs of tips that [`Method::Mad`] visits, each as often as there are branches and nodes between
/// the two.
fn mad_steps(tree: &Newick) -> u64 {
    mad::steps(&Unrooted::new(tree))
}

/// Roots a tree of any shape. Memory and time are proportional to the tips; time of [`Method::Mad`]
/// to the pairs of tips times the branches between them.
///
/// # Errors
/// [`RootError`].
pub fn root(tree: &Newick, method: &Method) -> Result<Rooted, RootError> {
    let unrooted = Unrooted::new(tree);
    let tips: Vec<usize> = unrooted.tips().collect();
    if tips.len() < 3 {
        return Err(RootError::TooSmall { tips: tips.len() });
    }
    // Labels identify tips, so none may occur twice.
    let mut seen = HashSet::new();
    for &tip in &tips {
        let label = unrooted.label(tip);
        if !seen.insert(label) {
            let label = label.to_owned();
            return Err(RootError::Twice { label });
        }
    }
    let (place, found) = match method {
        Method::Outgroup(labels) => (outgroup(&unrooted, &tips, labels)?, None),
        Method::Midpoint => (midpoint(&unrooted, &unrooted.lengths()?), None),
        Method::Mad => {
            let found = mad::least(&unrooted, &unrooted.lengths()?);
            (found.place, Some(found))
        }
    };
    Ok(Rooted {
        tree: unrooted.rooted(place),
        deviation: found.map(|found| found.deviation),
        ambiguity: found.map(|found| found.ambiguity),
    })
}

/// The middle of the branch that separates some tips from all others.
fn outgroup(tree: &Unrooted, tips: &[usize], labels: &[String]) -> Result<Place, RootError> {
    let wanted: HashSet<&str> = labels.iter().map(String::as_str).collect();
    let there: HashSet<&str> = tips.iter().map(|&tip| tree.label(tip)).collect();
    if let Some(label) = labels.iter().find(|label| !there.contains(label.as_str())) {
        let label = label.clone();
        return Err(RootError::Unknown { label });
    }
    let is_out = |node: usize| tree.is_tip(node) && wanted.contains(tree.label(node));
    let whole = RootError::Whole {
        tips: wanted.len(),
        all: tips.len(),
    };
    let Some(&start) = tips.iter().find(|&&tip| !is_out(tip)) else {
        return Err(whole);
    };
    if wanted.is_empty() {
        return Err(whole);
    }
    // Seen from a tip of the ingroup, the outgroup is the set of tips below some node.
    let walk = tree.walk(start);
    let mut below = vec![[0_usize; 2]; tree.nodes()];
    for step in walk.iter().rev() {
        if tree.is_tip(step.node) {
            below[step.node] = [usize::from(is_out(step.node)), 1];
        }
        let own = below[step.node];
        if let Some((parent, _)) = step.above {
            below[parent][0] += own[0];
            below[parent][1] += own[1];
        }
    }
    // In pre-order, the last node with the whole outgroup below it is the lowest.
    let has_all = |step: &&unrooted::Step| below[step.node][0] == wanted.len();
    let lowest = walk.iter().rfind(has_all);
    match lowest.and_then(|step| Some((step.node, step.above?.1))) {
        Some((node, edge)) if below[node][0] == below[node][1] => Ok(Place { edge, share: 0.5 }),
        Some((node, _)) => {
            // Tips below it are the steps from it to the end of its subtree in pre-order.
            let from = walk.iter().position(|step| step.node == node).unwrap_or(0);
            let mut tips = walk[from..].iter().map(|step| step.node);
            let within = tips.find(|&node| tree.is_tip(node) && !is_out(node));
            let label = within.map_or("", |tip| tree.label(tip)).to_owned();
            Err(RootError::NoClade { label })
        }
        None => Err(whole),
    }
}

/// The middle between the two tips that are farthest apart.
fn midpoint(tree: &Unrooted, lengths: &[f64]) -> Place {
    let farthest = |from: usize| {
        let (steps, far) = (tree.walk(from), tree.distances(from, lengths));
        let tips = steps.iter().filter(|step| tree.is_tip(step.node));
        // The first of equals: the same root in whatever order the tree is walked.
        tips.fold((from, 0.0), |best, step| match far[step.node] {
            far if far > best.1 => (step.node, far),
            _ => best,
        })
    };
    let start = tree.tips().next().unwrap_or(0);
    let (one, _) = farthest(start);
    let (other, span) = farthest(one);
    // Upwards from the other end, until half of the distance is covered.
    let (steps, far) = (tree.walk(one), tree.distances(one, lengths));
    let mut above = vec![None; tree.nodes()];
    steps.iter().for_each(|step| above[step.node] = step.above);
    let mut node = other;
    let half = 0.5 * span;
    while let Some((parent, edge)) = above[node] {
        if far[parent] <= half {
            let share = match lengths[edge] {
                0.0 => 0.5,
                length => ((half - far[parent]) / length).clamp(0.0, 1.0),
            };
            return tree.place(edge, parent, share);
        }
        node = parent;
    }
    Place {
        edge: 0,
        share: 0.5,
    }
}

/// Approximate bytes of memory of some trees while they are rooted one after the other: all of them
/// as they were read and as they were rooted.
#[must_use]
pub fn root_bytes(trees: &[Newick]) -> u64 {
    let nodes = || trees.iter().map(|tree| tree.nodes().len().to_u64());
    2 * NODE_BYTES * nodes().sum::<u64>() + ROOTED_BYTES * nodes().max().unwrap_or(0)
}

/// Steps that are done without a limit of time: some seconds' worth.
const MAD_STEPS_MAX: u64 = 3_000_000_000;
const MAD_STEPS_A_SECOND: u64 = 400_000_000;
/// Of a node of a tree that is being rooted, in addition to the tree as it was read.
const ROOTED_BYTES: u64 = 280;

#[cfg(test)]
mod tests {
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
}
