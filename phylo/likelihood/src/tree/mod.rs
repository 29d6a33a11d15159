//! Unrooted binary trees.
//!
//! An arena of half-edges: a tip has one, an inner node three in a ring; each points across its
//! branch to its [`Tree::back`]. Tips are `0..taxa` and so are their half-edges; inner node `k`
//! (from 0) has the half-edges `taxa + 3k ..`. Branches have numbers of their own, which stay with
//! their half-edges when a tree is edited.
//! Must stay true: `back(back(h)) == h` for every half-edge that is joined.

mod edit;
mod ids;
mod saved;
mod traverse;

pub use edit::{Grafted, Nni, Pruned, random_tree};
pub(crate) use ids::NodeId;
pub use ids::{EdgeId, HalfId};
pub use traverse::Walk;

pub use crate::newick::LENGTH_DEFAULT;
use crate::newick::{Newick, write_label};
use std::collections::{HashMap, VecDeque};

/// Errors that keep a tree from being used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A tip that the alignment does not have.
    #[error("the tree has a tip `{label}` that the alignment does not have")]
    Unknown {
        /// The tip.
        label: String,
    },
    /// A tip that occurs twice.
    #[error("the tree has the tip `{label}` twice")]
    Twice {
        /// The tip.
        label: String,
    },
    /// A taxon that has no tip.
    #[error("the tree has no tip `{label}` ({count} of the alignment's taxa are missing)")]
    Missing {
        /// The first such taxon.
        label: String,
        /// Number found.
        count: usize,
    },
    /// An inner node with fewer than three neighbours.
    #[error("a node of the tree has {neighbours} neighbours, 3 or more are needed: leave it out")]
    TooFewNeighbours {
        /// The number.
        neighbours: usize,
    },
    /// No root of two branches, where one is needed.
    #[error(
        "the tree has no root of two branches, `(…,…);`, on which a nonreversible model depends: \
         `phylo root` gives it one, and with --msa and --model finds the best"
    )]
    Unrooted,
    /// Too small.
    #[error("a tree of {taxa} taxa has no inner node: at least 3 are needed")]
    TooSmall {
        /// The number.
        taxa: usize,
    },
}

/// An unrooted binary tree with branch lengths.
///
/// A node of more than three neighbours is several binary ones, with branches of length 0 between
/// them ([`Tree::is_joint`]): no fit gives these a length, and Newick's text does not have them. A
/// search calls [`Tree::resolve`] first.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "saved::Saved", into = "saved::Saved")]
pub struct Tree {
    taxa: usize,
    /// For each half-edge the one across its branch, or itself while it is not joined.
    back: Vec<HalfId>,
    /// For each half-edge its branch.
    edge: Vec<EdgeId>,
    /// For each branch one of its two half-edges.
    end: Vec<HalfId>,
    length: Vec<f64>,
    /// For each partition each branch's length relative to `length`; empty where partitions have
    /// the tree's lengths.
    factors: Vec<Vec<f64>>,
    /// For each branch whether it is within a node of more than three neighbours; empty where there
    /// is no such node.
    joints: Vec<bool>,
}

/// Equal when half-edges, branches and lengths are; a branch has no direction.
impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        self.back == other.back
            && self.edge == other.edge
            && self.length == other.length
            && self.factors == other.factors
            && self.joints == other.joints
    }
}

impl Tree {
    /// A tree of three taxa around one node; more are added by [`Tree::insert_tip`].
    ///
    /// # Panics
    /// When there are fewer than 3 taxa.
    pub fn star(taxa: usize, first: [usize; 3], length: f64) -> Self {
        assert!(taxa >= 3, "{taxa} taxa");
        let halves = taxa + 3 * (taxa - 2);
        let mut tree = Self {
            taxa,
            // A half-edge that points to itself is free.
            back: (0..halves).map(HalfId::new).collect(),
            edge: vec![EdgeId(0); halves],
            end: vec![HalfId(0); 2 * taxa - 3],
            length: vec![length; 2 * taxa - 3],
            factors: Vec::new(),
            joints: Vec::new(),
        };
        for (k, tip) in first.into_iter().enumerate() {
            tree.join(HalfId::new(tip), HalfId::new(taxa + k), EdgeId::new(k));
        }
        tree
    }

    /// From a parsed tree; `names` number the tips. A root of two branches is dissolved; nodes of
    /// more than three neighbours are kept as such. Branches without a length get
    /// [`LENGTH_DEFAULT`].
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn from_newick(newick: &Newick, names: &[String]) -> Result<Self, TreeError> {
        let nodes = newick.nodes();
        let taxa = names.len();
        // With fewer taxa an unrooted tree has no inner node.
        if taxa < 3 {
            return Err(TreeError::TooSmall { taxa });
        }
        let mut taxon_of = taxa_of_tips(newick, names)?;
        let children = binary_children(newick)?;
        let halves = taxa + 3 * (taxa - 2);
        let mut tree = Self {
            taxa,
            back: (0..halves).map(HalfId::new).collect(),
            edge: vec![EdgeId(0); halves],
            end: vec![HalfId(0); 2 * taxa - 3],
            length: vec![LENGTH_DEFAULT; 2 * taxa - 3],
            factors: Vec::new(),
            joints: Vec::new(),
        };
        taxon_of.resize(children.len(), None);
        // The half-edge with which each node points to its parent, then those for its children.
        let mut inner = 0;
        let mut up = vec![HalfId(0); children.len()];
        let dissolved = children[0].len() == 2;
        for node in 0..children.len() {
            up[node] = match taxon_of[node] {
                Some(taxon) => HalfId::new(taxon),
                None if node == 0 && dissolved => continue,
                None => {
                    inner += 1;
                    HalfId::new(taxa + 3 * (inner - 1))
                }
            };
        }
        let mut edges = 0;
        let mut join = |tree: &mut Self, a: HalfId, b: HalfId, length: Option<f64>| {
            let edge = EdgeId(edges);
            edges += 1;
            tree.join(a, b, edge);
            tree.length[edge.index()] = length.unwrap_or(LENGTH_DEFAULT);
            edge
        };
        let mut joints = Vec::new();
        for (node, own) in children.iter().enumerate() {
            // The two branches at a dissolved root become one, with the sum of their lengths.
            if let (0, &[a, b]) = (node, own.as_slice()) {
                let lengths = [a, b].map(|child| nodes[child].length);
                let sum = match lengths {
                    [None, None] => None,
                    [a, b] => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
                };
                join(&mut tree, up[a], up[b], sum);
                continue;
            }
            // The first half-edge of all nodes but the root looks up, the others to the children.
            let mut here = up[node];
            for (k, &child) in own.iter().enumerate() {
                if node > 0 || k > 0 {
                    here = tree.next(here);
                }
                match nodes.get(child) {
                    Some(read) => {
                        join(&mut tree, here, up[child], read.length);
                    }
                    None => joints.push(join(&mut tree, here, up[child], Some(0.0))),
                }
            }
        }
        if !joints.is_empty() {
            tree.joints = vec![false; tree.length.len()];
            joints
                .into_iter()
                .for_each(|edge| tree.joints[edge.index()] = true);
        }
        Ok(tree)
    }

    /// The tree's Newick text, from the inner node next to the first taxon.
    #[must_use]
    pub fn to_newick(&self, names: &[String]) -> String {
        let mut text = String::from("(");
        let root = self.back(HalfId(0));
        let write = |text: &mut String, half: HalfId| {
            let _ = write_label(text, &names[half.index()]);
        };
        write(&mut text, HalfId(0));
        text.push_str(&format!(":{:.10}", self.length(self.edge(root))));
        // A half-edge that points down, and the number of its children that are written.
        for start in [self.next(root), self.next(self.next(root))] {
            text.push(',');
            let mut path = vec![(start, 0)];
            while let Some((half, done)) = path.pop() {
                let below = self.back(half);
                let joint = self.is_joint(self.edge(half));
                if self.is_tip(below) {
                    write(&mut text, below);
                } else if done < 2 {
                    match done {
                        1 => text.push(','),
                        _ if joint => {}
                        _ => text.push('('),
                    }
                    path.push((half, done + 1));
                    let first = self.next(below);
                    path.push((if done == 0 { first } else { self.next(first) }, 0));
                    continue;
                } else if joint {
                    // The node above has these branches, too.
                    continue;
                } else {
                    text.push(')');
                }
                text.push_str(&format!(":{:.10}", self.length(self.edge(half))));
            }
        }
        text.push_str(");");
        text
    }

    /// Number of tips.
    #[must_use]
    pub fn taxa(&self) -> usize {
        self.taxa
    }

    /// Number of half-edges.
    #[must_use]
    pub fn halves(&self) -> usize {
        self.back.len()
    }

    /// Number of half-edges of inner nodes.
    #[must_use]
    pub fn inner_halves(&self) -> usize {
        self.back.len() - self.taxa
    }

    /// All branches.
    pub fn edges(&self) -> impl Iterator<Item = EdgeId> + use<> {
        EdgeId::first(self.length.len())
    }

    /// A branch's two half-edges.
    #[must_use]
    pub fn ends(&self, edge: EdgeId) -> [HalfId; 2] {
        let end = self.end[edge.index()];
        [end, self.back(end)]
    }

    /// The half-edge across the branch.
    #[must_use]
    pub fn back(&self, half: HalfId) -> HalfId {
        self.back[half.index()]
    }

    /// The next half-edge of an inner node's ring. A tip's is itself.
    #[must_use]
    pub fn next(&self, half: HalfId) -> HalfId {
        let Some(at) = half.index().checked_sub(self.taxa) else {
            return half;
        };
        // A ring is three numbers in a row, from the first inner half-edge on.
        HalfId(if at % 3 == 2 { half.0 - 2 } else { half.0 + 1 })
    }

    /// The two other half-edges of an inner node's ring.
    #[must_use]
    pub fn others(&self, half: HalfId) -> [HalfId; 2] {
        let next = self.next(half);
        [next, self.next(next)]
    }

    /// The branch of a half-edge.
    #[must_use]
    pub fn edge(&self, half: HalfId) -> EdgeId {
        self.edge[half.index()]
    }

    /// True of a tip's half-edge.
    #[must_use]
    pub fn is_tip(&self, half: HalfId) -> bool {
        half.index() < self.taxa
    }

    /// The node of a half-edge.
    #[must_use]
    pub(crate) fn node(&self, half: HalfId) -> NodeId {
        match half.index().checked_sub(self.taxa) {
            None => NodeId::new(half.index()),
            Some(at) => NodeId::new(self.taxa + at / 3),
        }
    }

    /// The length of a branch.
    #[must_use]
    pub fn length(&self, edge: EdgeId) -> f64 {
        self.length[edge.index()]
    }

    /// Sets the length of a branch.
    pub fn set_length(&mut self, edge: EdgeId, length: f64) {
        self.length[edge.index()] = length;
    }

    /// Sets the lengths of all branches but joints, in all partitions.
    pub fn set_all_lengths(&mut self, length: f64) {
        for edge in self.edges() {
            if !self.is_joint(edge) {
                self.length[edge.index()] = length;
            }
        }
        self.factors.clear();
    }

    /// True of a branch within a node of more than three neighbours, whose length is 0.
    #[must_use]
    pub fn is_joint(&self, edge: EdgeId) -> bool {
        self.joints.get(edge.index()).is_some_and(|&joint| joint)
    }

    /// Makes joints branches like all others: their order is as the tree was read.
    pub fn resolve(&mut self) {
        self.joints.clear();
    }

    /// The sum of all branches' lengths.
    #[must_use]
    pub fn total_length(&self) -> f64 {
        self.length.iter().sum()
    }

    /// Joins two half-edges by a branch.
    fn join(&mut self, a: HalfId, b: HalfId, edge: EdgeId) {
        self.back[a.index()] = b;
        self.back[b.index()] = a;
        self.edge[a.index()] = edge;
        self.edge[b.index()] = edge;
        self.end[edge.index()] = a;
    }
}

/// For each node of a parsed tree its taxon, if it is a tip. Every taxon is one.
pub(crate) fn taxa_of_tips(
    newick: &Newick,
    names: &[String],
) -> Result<Vec<Option<usize>>, TreeError> {
    let (nodes, taxa) = (newick.nodes(), names.len());
    let by_name: HashMap<&str, usize> = names
        .iter()
        .enumerate()
        .map(|(taxon, name)| (name.as_str(), taxon))
        .collect();
    let mut taxon_of = vec![None; nodes.len()];
    let mut seen = vec![false; taxa];
    for tip in newick.tips() {
        let label = &nodes[tip].label;
        // Alignment formats write `_` for the blanks of a quoted name.
        let plain = || match label.contains(char::is_whitespace) {
            true => by_name.get(label.replace(char::is_whitespace, "_").as_str()),
            false => None,
        };
        let found = by_name.get(label.as_str()).or_else(plain);
        let &taxon = found.ok_or_else(|| TreeError::Unknown {
            label: short(label),
        })?;
        if std::mem::replace(&mut seen[taxon], true) {
            return Err(TreeError::Twice {
                label: short(label),
            });
        }
        taxon_of[tip] = Some(taxon);
    }
    let mut missing = seen.iter().enumerate().filter(|(_, seen)| !**seen);
    if let Some((taxon, _)) = missing.next() {
        let label = short(&names[taxon]);
        return Err(TreeError::Missing {
            label,
            count: 1 + missing.count(),
        });
    }
    Ok(taxon_of)
}

/// For each node its children, at most two (of the root three). A node that has more gets further
/// nodes between, behind those of the text.
fn binary_children(newick: &Newick) -> Result<Vec<Vec<usize>>, TreeError> {
    let nodes = newick.nodes();
    let mut children: Vec<Vec<usize>> = Vec::with_capacity(2 * nodes.len());
    children.extend(nodes.iter().map(|node| node.children.clone()));
    for node in 0..nodes.len() {
        let most = if node == 0 { 3 } else { 2 };
        // A root of two neighbours is dissolved later; a tip has none.
        let neighbours = children[node].len() + usize::from(node > 0);
        if neighbours < 2 && node == 0 || neighbours == 2 && node > 0 {
            return Err(TreeError::TooFewNeighbours { neighbours });
        }
        if children[node].len() <= most {
            continue;
        }
        // In pairs, and pairs of pairs: the depth grows with the logarithm of the number.
        let mut queue = VecDeque::from(std::mem::take(&mut children[node]));
        while queue.len() > most {
            let pair = queue.drain(..2).collect();
            queue.push_back(children.len());
            children.push(pair);
        }
        children[node] = queue.into();
    }
    Ok(children)
}

/// A label short enough for a message of one line.
fn short(label: &str) -> String {
    label
        .chars()
        .take(60)
        .flat_map(char::escape_debug)
        .collect()
}

/// The shortest branch, in expected substitutions a site: RAxML-NG's and IQ-TREE's.
pub const LENGTH_MIN: f64 = 1e-6;
/// The longest branch.
pub const LENGTH_MAX: f64 = 100.0;

#[cfg(test)]
mod tests;
