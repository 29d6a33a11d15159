//! The tree of the genomes, with the lists of all its branches.
//!
//! Node [`ROOT`] is a tip, that of the first genome; every other node has a branch above it, and is
//! a tip or has two children. So the tree is an unrooted binary one; polytomies have branches of no
//! length. Each branch keeps three lists: what is seen from its lower end downwards, from its upper
//! end upwards, and both together at its midpoint.
//!
//! Must stay true: after a change the lists are made again from there outwards, until one is as it
//! was ([`Genome::differs`]); so they are a little behind, and [`Tree::rebuild`] makes all of them.
//! Nothing recurses: polytomies are chains of thousands of nodes.

use crate::genome::{Builder, Genome, Marks};
use crate::sparse::{Edge, Space, merge, middle};
use sidecore_bare::width::ToUsize;

/// A node and the branch above it.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) parent: u32,
    /// [`NONE`] where there are none; the root has one.
    pub(crate) children: [u32; 2],
    /// Length of the branch above, in substitutions a site.
    pub(crate) length: f64,
    /// Of a tip the taxa with its sequence, or with one that says less.
    pub(crate) taxa: Vec<u32>,
    /// From the lower end downwards; a tip's sequence.
    pub(crate) lower: Genome,
    /// From the upper end upwards.
    pub(crate) upper: Genome,
    /// All, at the midpoint.
    pub(crate) middle: Genome,
    /// Of a tip, what it has of its own.
    pub(crate) marks: Marks,
}

/// Lengths around a place for a subtree: of the branch above, the branch below, and its own.
pub(crate) type Lengths = [f64; 3];

/// See the module.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    builder: Builder,
}

impl Tree {
    /// Of one genome.
    pub(crate) fn new(genome: Genome, taxa: Vec<u32>) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            builder: Builder::default(),
        };
        tree.add_tip(genome, taxa);
        tree
    }

    pub(crate) fn node(&self, node: u32) -> &Node {
        &self.nodes[node.to_usize()]
    }

    fn node_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node.to_usize()]
    }

    /// Number of tips.
    pub(crate) fn tips(&self) -> usize {
        // One tip is one node, and every further tip brings an inner node but the second one.
        self.nodes.len() / 2 + 1
    }

    /// The node below the root; [`NONE`] if the root is alone.
    pub(crate) fn top(&self) -> u32 {
        self.node(ROOT).children[0]
    }

    pub(crate) fn is_tip(&self, node: u32) -> bool {
        node == ROOT || self.node(node).children[0] == NONE
    }

    /// The other child of a node's parent; [`NONE`] below the root.
    pub(crate) fn sibling(&self, node: u32) -> u32 {
        let [a, b] = self.node(self.node(node).parent).children;
        // The root has one child, so its other place is NONE: callers pass over it.
        if a == node { b } else { a }
    }

    /// True if a node is, or is below, another.
    pub(crate) fn is_within(&self, mut node: u32, other: u32) -> bool {
        // Ends at the root: parents are never a circle, as a move into its own subtree is refused.
        while node != other {
            if node == ROOT {
                return false;
            }
            node = self.node(node).parent;
        }
        true
    }

    /// All nodes but the root, parents before children.
    pub(crate) fn order(&self) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut stack = vec![self.top()];
        while let Some(node) = stack.pop() {
            if node != NONE {
                order.push(node);
                let [a, b] = self.node(node).children;
                // The second child first: the stack hands out the first one next.
                stack.extend([b, a]);
            }
        }
        order
    }

    /// A new node that is not linked to any other.
    fn add(&mut self, node: Node) -> u32 {
        // Never NONE: at most 2^24 genomes are read, with two nodes each.
        let number = u32::try_from(self.nodes.len()).unwrap_or(NONE);
        self.nodes.push(node);
        number
    }

    /// A new tip, not linked yet.
    pub(crate) fn add_tip(&mut self, genome: Genome, taxa: Vec<u32>) -> u32 {
        self.add(Node {
            parent: NONE,
            children: [NONE; 2],
            taxa,
            lower: genome,
            ..Node::default()
        })
    }

    /// A new inner node, not linked yet.
    pub(crate) fn add_inner(&mut self) -> u32 {
        self.add(Node {
            parent: NONE,
            children: [NONE; 2],
            ..Node::default()
        })
    }

    /// Puts the second tip below the root.
    pub(crate) fn link_second(&mut self, space: &Space, tip: u32, length: f64) {
        self.node_mut(ROOT).children[0] = tip;
        let node = self.node_mut(tip);
        node.parent = ROOT;
        node.length = length;
        // No lower list depends on it: the root has none above.
        self.update(space, &[], &[tip]);
    }

    /// Puts a subtree on the branch above a node, with an unlinked inner node.
    pub(crate) fn attach(&mut self, space: &Space, (subtree, inner): (u32, u32), at: Place) {
        let Place {
            edge,
            lengths: [upper, lower, pendant],
        } = at;
        let parent = self.node(edge).parent;
        // Before the links below: the parent must never have a child that names another parent.
        self.replace_child(parent, edge, inner);
        let node = self.node_mut(inner);
        node.parent = parent;
        node.children = [edge, subtree];
        node.length = upper;
        for (child, length) in [(edge, lower), (subtree, pendant)] {
            let node = self.node_mut(child);
            node.parent = inner;
            node.length = length;
        }
        // The new node and the new length of `edge` change what its children and its sister see
        // above them.
        let [a, b] = self.node(edge).children;
        let sibling = self.sibling(inner);
        // The last one is made first.
        let downs = [a, b, edge, subtree, sibling, inner];
        self.update(space, &[parent, inner], &downs);
    }

    /// Takes the subtree of a node off; returns its inner node, which is unlinked now, and the
    /// place where it was. Its parent must not be the root.
    pub(crate) fn detach(&mut self, space: &Space, subtree: u32) -> (u32, Place) {
        let inner = self.node(subtree).parent;
        let edge = self.sibling(subtree);
        let parent = self.node(inner).parent;
        // Read before anything is joined: the caller may put the subtree back exactly there.
        let lengths = [inner, edge, subtree].map(|node| self.node(node).length);
        self.replace_child(parent, inner, edge);
        let node = self.node_mut(edge);
        node.parent = parent;
        // Models are reversible, so a node of two branches can go without a change of the
        // likelihood.
        node.length = lengths[0] + lengths[1];
        let [a, b] = node.children;
        let sibling = self.sibling(edge);
        self.update(space, &[parent], &[a, b, sibling, edge]);
        (inner, Place { edge, lengths })
    }

    fn replace_child(&mut self, parent: u32, old: u32, new: u32) {
        for child in &mut self.node_mut(parent).children {
            if *child == old {
                *child = new;
            }
        }
    }

    /// Gives the branch above a node another length.
    pub(crate) fn set_length(&mut self, space: &Space, node: u32, length: f64) {
        let own = self.node_mut(node);
        own.length = length;
        let ([a, b], parent) = (own.children, own.parent);
        let sibling = self.sibling(node);
        self.update(space, &[parent], &[a, b, sibling, node]);
    }

    /// Makes the lists of some nodes again, and those that depend on them as far as they change:
    /// the lower lists of `ups`, the upper lists of `downs`, the last ones first.
    fn update(&mut self, space: &Space, ups: &[u32], downs: &[u32]) {
        // Midpoints of these change even if the lists do not: their lengths may be new.
        let mut middles = [ups, downs].concat();
        let (mut ups, mut downs) = (ups.to_vec(), downs.to_vec());
        while let Some(node) = ups.pop() {
            if node == NONE || self.is_tip(node) {
                continue;
            }
            // The factor is of a full pass alone: an update stops early and would add up a part of
            // them.
            let (lower, _) = self.lower(space, node);
            let own = self.node_mut(node);
            // Stored even if it is about the same: errors would add up if the old one stayed each
            // time.
            let has_changed = lower.differs(&own.lower);
            own.lower = lower;
            if has_changed {
                // On towards the root; what its sister's side sees from above has changed as well.
                ups.push(own.parent);
                middles.push(node);
                downs.push(self.sibling(node));
            }
        }
        // Lower lists are final by now: upper lists are made of them.
        while let Some(node) = downs.pop() {
            if node == NONE || node == ROOT {
                continue;
            }
            let upper = self.upper(space, node);
            let own = self.node_mut(node);
            let has_changed = upper.differs(&own.upper);
            own.upper = upper;
            if has_changed {
                downs.extend(own.children);
                middles.push(node);
            }
        }
        // Each midpoint once, as a merge costs as much as the list itself.
        middles.sort_unstable();
        middles.dedup();
        for node in middles {
            if node != NONE && node != ROOT {
                self.make_middle(space, node);
            }
        }
    }

    /// The lower list of an inner node, and the logarithm of its factor.
    fn lower(&mut self, space: &Space, node: u32) -> (Genome, f64) {
        let [a, b] = self.nodes[node.to_usize()].children;
        let (a, b) = (&self.nodes[a.to_usize()], &self.nodes[b.to_usize()]);
        let (a, b) = ((&a.lower, a.length), (&b.lower, b.length));
        let log = merge(space, a, b, &mut self.builder);
        (self.builder.take(), log)
    }

    /// The upper list of a node that is not the root.
    fn upper(&mut self, space: &Space, node: u32) -> Genome {
        let parent = self.node(node).parent;
        if parent == ROOT {
            // The root is a tip: what is above the top node's branch is its sequence.
            return self.node(ROOT).lower.clone();
        }
        let sibling = self.sibling(node);
        let above = &self.nodes[parent.to_usize()];
        let other = &self.nodes[sibling.to_usize()];
        let (above, other) = ((&above.upper, above.length), (&other.lower, other.length));
        merge(space, above, other, &mut self.builder);
        self.builder.take()
    }

    fn make_middle(&mut self, space: &Space, node: u32) {
        let own = &self.nodes[node.to_usize()];
        let (upper, lower, length) = (&own.upper, &own.lower, own.length);
        let middle = middle(space, upper, lower, length, &mut self.builder);
        // Below an inner node some tip may suit a genome that shares none of the node's own bases.
        let marks = match self.is_tip(node) {
            true => Marks::new(upper, lower, &space.reference),
            false => Marks::default(),
        };
        let own = self.node_mut(node);
        own.middle = middle;
        own.marks = marks;
    }

    /// Makes all lists again; returns the log-likelihood.
    pub(crate) fn rebuild(&mut self, space: &Space) -> f64 {
        let top = self.top();
        if top == NONE {
            return space.lnl_alone(&self.node(ROOT).lower);
        }
        let order = self.order();
        let mut lnl = 0.0;
        // Children first, so that each list is made of new ones; then parents first for the upper
        // lists.
        for &node in order.iter().rev() {
            if !self.is_tip(node) {
                let (lower, log) = self.lower(space, node);
                self.node_mut(node).lower = lower;
                lnl += log;
            }
        }
        for &node in &order {
            let upper = self.upper(space, node);
            self.node_mut(node).upper = upper;
            self.make_middle(space, node);
        }
        // The factors were collected below the top branch; the last one is that of this branch.
        let first = self.node(top);
        lnl + Edge::new(space, &self.node(ROOT).lower, &first.lower).lnl(first.length)
    }
}

/// A place for a subtree: on the branch above a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) edge: u32,
    pub(crate) lengths: Lengths,
}

/// The first genome's node.
pub(crate) const ROOT: u32 = 0;
/// No node.
pub(crate) const NONE: u32 = u32::MAX;
