//! Placements in the format jplace.
//!
//! Source: Matsen, Hoffman, Gallagher and Stamatakis, "A format for phylogenetic placements", PLoS
//! ONE 7 (2012), e31009.

use crate::newick::Newick;
use crate::tree::{HalfId, Tree};

/// Places of sequences on a tree, as the format jplace has them.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Placements {
    /// The tree; behind each branch's length its number in braces.
    pub(super) tree: String,
    pub(super) placements: Vec<Placed>,
    metadata: Metadata,
    version: u32,
    fields: [&'static str; 5],
}

/// A sequence's places, and its name.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Placed {
    pub(super) p: Vec<Place>,
    pub(super) n: [String; 1],
}

/// In the order of the fields: the branch's number, the log-likelihood, the weight ratio, the
/// distance from the branch's end that is farther from the root, and the length of the query's own
/// branch.
pub(super) type Place = (usize, f64, f64, f64, f64);

#[derive(Debug, Clone, serde::Serialize)]
struct Metadata {
    software: &'static str,
}

impl Placements {
    pub(super) fn new(tree: String, placements: Vec<Placed>) -> Self {
        Self {
            tree,
            placements,
            metadata: Metadata {
                software: "sidecore phylo place",
            },
            version: 3,
            fields: [
                "edge_num",
                "likelihood",
                "like_weight_ratio",
                "distal_length",
                "pendant_length",
            ],
        }
    }

    /// For each sequence its name, and the log-likelihood and the weight ratio of its best place.
    pub fn best(&self) -> impl Iterator<Item = (&str, f64, f64)> {
        let all = self.placements.iter();
        all.filter_map(|own| {
            own.p
                .first()
                .map(|best| (own.n[0].as_str(), best.1, best.2))
        })
    }
}

/// A tree's text with numbered branches, and for each branch the half-edge at its end that is
/// farther from the root.
pub(super) fn numbered(tree: &Tree, names: &[String]) -> (String, Vec<HalfId>) {
    enum Step {
        Enter(HalfId),
        Text(&'static str),
        Leave(HalfId),
    }
    let root = tree.back(HalfId(0));
    let [a, b] = tree.others(root);
    let (mut text, mut branches) = (String::from("("), Vec::new());
    let comma = || Step::Text(",");
    // The next one last.
    let mut path = vec![
        Step::Enter(b),
        comma(),
        Step::Enter(a),
        comma(),
        Step::Enter(root),
    ];
    while let Some(step) = path.pop() {
        match step {
            Step::Text(own) => text.push_str(own),
            Step::Leave(below) => {
                let length = tree.length(tree.edge(below));
                text.push_str(&format!(":{length:.10}{{{}}}", branches.len()));
                branches.push(below);
            }
            Step::Enter(half) => {
                let below = tree.back(half);
                path.push(Step::Leave(below));
                if tree.is_tip(below) {
                    text.push_str(&quoted(&names[below.index()]));
                    continue;
                }
                let [a, b] = tree.others(below);
                text.push('(');
                path.extend([Step::Text(")"), Step::Enter(b), comma(), Step::Enter(a)]);
            }
        }
    }
    text.push_str(");");
    (text, branches)
}

/// A name as Newick has it, in quotes where that is needed; also where it has braces, which would
/// be read as a branch's number.
fn quoted(name: &str) -> String {
    let text = Newick::root(name.to_owned()).to_string();
    let label = text.trim_end_matches(';');
    match label.contains(['{', '}']) && !label.starts_with('\'') {
        true => format!("'{label}'"),
        false => label.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_behind_lengths_alone() {
        let names = ["a{7}", "b;c", "it's{1}"].map(str::to_owned);
        let (text, branches) = numbered(&Tree::star(3, [0, 1, 2], 0.5), &names);
        for (number, below) in branches.iter().enumerate() {
            let label = ["'a{7}'", "'b;c'", "'it''s{1}'"][below.index()];
            let branch = format!("{label}:0.5000000000{{{number}}}");
            assert!(text.contains(&branch), "{text}");
        }
        assert_eq!((branches.len(), text.matches(['(', ',']).count()), (3, 3));
    }
}
