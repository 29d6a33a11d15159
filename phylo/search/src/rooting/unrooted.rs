//! A tree without its root: nodes and the branches between them, of any shape.
//!
//! Must stay true: its text has every branch with its length and its support, and every node with
//! its name.

use super::{Place, RootError};
use crate::newick::Newick;

/// An unrooted tree.
#[derive(Debug)]
pub(super) struct Unrooted {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

#[derive(Debug, Default)]
struct Node {
    /// A tip's label, or the name of an inner node.
    label: String,
    /// Neighbours and the branches to them.
    around: Vec<(usize, usize)>,
    is_tip: bool,
}

#[derive(Debug)]
struct Edge {
    ends: [usize; 2],
    length: Option<f64>,
    support: String,
}

/// A node of a walk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) node: usize,
    /// The node before it, and the branch between them.
    pub(super) above: Option<(usize, usize)>,
}

impl Unrooted {
    pub(super) fn new(tree: &Newick) -> Self {
        let from = tree.nodes();
        // A root of one child is no node of an unrooted tree.
        let mut root = 0;
        while let [child] = from[root].children[..] {
            root = child;
        }
        let mut made = Self {
            nodes: from.iter().map(|_| Node::default()).collect(),
            edges: Vec::new(),
        };
        let mut supports = vec![String::new(); from.len()];
        // Supports belong to branches; names of inner nodes stay with the nodes.
        for (node, own) in from.iter().enumerate() {
            let to = &mut made.nodes[node];
            to.is_tip = own.children.is_empty();
            match to.is_tip || !is_support(&own.label) {
                true => to.label.clone_from(&own.label),
                false => supports[node].clone_from(&own.label),
            }
        }
        let dissolved = matches!(from[root].children[..], [_, _]);
        if let [a, b] = from[root].children[..] {
            let length = match [a, b].map(|child| from[child].length) {
                [None, None] => None,
                [a, b] => Some(short(a.unwrap_or(0.0) + b.unwrap_or(0.0))),
            };
            // Both branches at a root of degree 2 are the same branch: one support is enough.
            let support = [a, b].map(|child| std::mem::take(&mut supports[child]));
            let support = support.into_iter().find(|support| !support.is_empty());
            made.join(a, b, length, support.unwrap_or_default());
        }
        // Children come after their parents: before the root are only nodes of one child.
        for (node, own) in from.iter().enumerate().skip(root + 1) {
            match own.parent {
                // A root of two branches is gone: its one branch was made above.
                Some(parent) if parent != root || !dissolved => {
                    let support = std::mem::take(&mut supports[node]);
                    made.join(parent, node, own.length, support);
                }
                _ => {}
            }
        }
        made
    }

    fn join(&mut self, a: usize, b: usize, length: Option<f64>, support: String) {
        let edge = self.edges.len();
        self.edges.push(Edge {
            ends: [a, b],
            length,
            support,
        });
        self.nodes[a].around.push((b, edge));
        self.nodes[b].around.push((a, edge));
    }

    /// Number of nodes, including those without branches.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn edges(&self) -> usize {
        self.edges.len()
    }

    pub(super) fn ends(&self, edge: usize) -> [usize; 2] {
        self.edges[edge].ends
    }

    pub(super) fn around(&self, node: usize) -> &[(usize, usize)] {
        &self.nodes[node].around
    }

    pub(super) fn is_tip(&self, node: usize) -> bool {
        self.nodes[node].is_tip
    }

    pub(super) fn label(&self, node: usize) -> &str {
        &self.nodes[node].label
    }

    pub(super) fn tips(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|&node| self.nodes[node].is_tip)
    }

    /// All branches' lengths.
    pub(super) fn lengths(&self) -> Result<Vec<f64>, RootError> {
        let lengths: Option<Vec<f64>> = self.edges.iter().map(|edge| edge.length).collect();
        let lengths = lengths.ok_or(RootError::NoLength)?;
        if lengths.iter().any(|&length| length < 0.0) {
            return Err(RootError::Negative);
        }
        match lengths.iter().all(|&length| length == 0.0) {
            true => Err(RootError::Zero),
            false => Ok(lengths),
        }
    }

    /// All nodes in pre-order from `start`: a node comes before the nodes behind it, which follow
    /// it at once.
    pub(super) fn walk(&self, start: usize) -> Vec<Step> {
        let mut steps = Vec::with_capacity(self.nodes.len());
        let mut path = vec![Step {
            node: start,
            above: None,
        }];
        while let Some(step) = path.pop() {
            steps.push(step);
            let before = step.above.map(|(_, edge)| edge);
            // In reverse, so that the stack returns neighbours in their order.
            for &(next, edge) in self.nodes[step.node].around.iter().rev() {
                if Some(edge) != before {
                    path.push(Step {
                        node: next,
                        above: Some((step.node, edge)),
                    });
                }
            }
        }
        steps
    }

    /// The distance of each node from one.
    pub(super) fn distances(&self, start: usize, lengths: &[f64]) -> Vec<f64> {
        let mut far = vec![0.0; self.nodes.len()];
        for step in self.walk(start) {
            if let Some((before, edge)) = step.above {
                far[step.node] = far[before] + lengths[edge];
            }
        }
        far
    }

    /// The place on a branch at `share` of its length from one of its ends.
    pub(super) fn place(&self, edge: usize, end: usize, share: f64) -> Place {
        let share = match self.edges[edge].ends[0] == end {
            true => share,
            false => 1.0 - share,
        };
        Place { edge, share }
    }

    /// The tree with a root there. Both of the root's branches get the support of the branch that
    /// was split.
    pub(super) fn rooted(&self, place: Place) -> Newick {
        let mut tree = Newick::root(String::new());
        let cut = &self.edges[place.edge];
        let shares = [place.share, 1.0 - place.share];
        // A node, the branch to it, the remaining length of that branch, the new node above.
        let mut path: Vec<(usize, usize, Option<f64>, usize)> = Vec::new();
        for (end, share) in cut.ends.into_iter().zip(shares).rev() {
            let length = cut.length.map(|length| short(length * share));
            path.push((end, place.edge, length, 0));
        }
        while let Some((node, edge, length, parent)) = path.pop() {
            let own = &self.nodes[node];
            // Newick has one label for a node and its branch: a node's name comes first.
            let label = match own.is_tip || !own.label.is_empty() {
                true => own.label.clone(),
                false => self.edges[edge].support.clone(),
            };
            let new = tree.push(parent, label, length);
            for &(next, below) in own.around.iter().rev() {
                if below != edge {
                    path.push((next, below, self.edges[below].length, new));
                }
            }
        }
        tree
    }
}

/// True of labels that programs write as supports: a number, or several with `/` between them.
fn is_support(label: &str) -> bool {
    let number = |text: &str| text.trim().parse::<f64>().is_ok();
    !label.is_empty() && label.split('/').all(number)
}

/// A computed length, rounded to twelve digits.
fn short(length: f64) -> f64 {
    // By way of decimal digits, so that the shortest text of the length has no more.
    format!("{length:.11e}").parse().unwrap_or(length)
}
