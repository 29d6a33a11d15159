//! Fitch's state sets of all directions of a tree that grows and changes.
//!
//! Why here: a change of the tree alters the sets near it, and beyond a few nodes hardly any: a
//! walk that ends where sets stay equal visits tens of nodes of a tree of thousands.
//! Must stay true: after each change, the sets of every direction are those that a tree made anew
//! would have.
//! Source: Fitch, Systematic Zoology 20 (1971), 406-416.

use sidecore_likelihood::parsimony::Sites;
use sidecore_likelihood::tree::{EdgeId, HalfId, Pruned, Tree};

/// For each inner half-edge the sets of the subtree behind its node, seen from its branch.
#[derive(Debug)]
pub(crate) struct Sets<'s> {
    sites: &'s Sites,
    taxa: usize,
    words: Vec<u64>,
    scratch: Vec<u64>,
    path: Vec<HalfId>,
}

impl<'s> Sets<'s> {
    fn empty(sites: &'s Sites, tree: &Tree) -> Self {
        Self {
            sites,
            taxa: tree.taxa(),
            words: vec![0; tree.inner_halves() * sites.words()],
            scratch: vec![0; sites.words()],
            path: Vec::new(),
        }
    }

    /// Of a tree of three taxa; `tree` has room for all.
    pub(crate) fn of_star(sites: &'s Sites, tree: &Tree) -> Self {
        let mut sets = Self::empty(sites, tree);
        sets.renew_node(tree, HalfId::new(tree.taxa()));
        sets
    }

    /// Of a whole tree.
    #[cfg(test)]
    pub(crate) fn of(sites: &'s Sites, tree: &Tree) -> Self {
        let mut sets = Self::empty(sites, tree);
        let top = tree.back(HalfId(0));
        let order = tree.post_order(top, |_| true);
        for &half in &order {
            sets.renew(tree, half);
        }
        // Parents first: the other two directions of a node need its parent's.
        for &half in order.iter().rev() {
            for other in tree.others(half) {
                sets.renew(tree, other);
            }
        }
        sets
    }

    pub(crate) fn sites(&self) -> &'s Sites {
        self.sites
    }

    /// The sets behind a half-edge.
    pub(crate) fn get(&self, half: HalfId) -> &[u64] {
        match half.index().checked_sub(self.taxa) {
            None => self.sites.tip(half.index()),
            Some(at) => &self.words[at * self.sites.words()..][..self.sites.words()],
        }
    }

    /// A tip was inserted into the tree.
    pub(crate) fn inserted(&mut self, tree: &Tree, tip: usize) {
        self.grown(tree, tree.back(HalfId::new(tip)));
    }

    /// Moves the subtree behind `half` into a branch.
    pub(crate) fn move_subtree(&mut self, tree: &mut Tree, half: HalfId, to: EdgeId) {
        let pruned: Pruned = tree.prune(half);
        for end in pruned.ends {
            self.spread(tree, end);
        }
        let _ = tree.regraft(pruned, to);
        self.grown(tree, half);
    }

    /// The changes of state that the tree needs.
    #[cfg(test)]
    pub(crate) fn score(&mut self, tree: &Tree) -> u64 {
        let first = HalfId(0);
        let top = tree.back(first);
        let mut to = std::mem::take(&mut self.scratch);
        let mut score = self.sites.always();
        for half in tree.post_order(top, |_| true) {
            let [a, b] = tree.others(half).map(|other| tree.back(other));
            score += self.sites.join(self.get(a), self.get(b), &mut to);
        }
        score += self.sites.join(self.get(first), self.get(top), &mut to);
        self.scratch = to;
        score
    }

    /// The changes that lie on a branch for certain.
    pub(crate) fn changes_on(&mut self, tree: &Tree, edge: EdgeId) -> u64 {
        let mut to = std::mem::take(&mut self.scratch);
        let [a, b] = tree.ends(edge);
        let changes = self.sites.join(self.get(a), self.get(b), &mut to);
        self.scratch = to;
        changes
    }

    /// The node of `half` is new in its place.
    fn grown(&mut self, tree: &Tree, half: HalfId) {
        self.renew_node(tree, half);
        let [b, c] = tree.others(half);
        for own in [half, b, c] {
            self.spread(tree, tree.back(own));
        }
    }

    fn renew_node(&mut self, tree: &Tree, half: HalfId) {
        let [b, c] = tree.others(half);
        for own in [half, b, c] {
            self.renew(tree, own);
        }
    }

    /// Makes the sets beyond again that depend on what is across from `half`, which has changed.
    fn spread(&mut self, tree: &Tree, half: HalfId) {
        let mut path = std::mem::take(&mut self.path);
        path.push(half);
        while let Some(half) = path.pop() {
            if tree.is_tip(half) {
                continue;
            }
            for other in tree.others(half) {
                // Equal sets alter nothing beyond them.
                if self.renew(tree, other) {
                    path.push(tree.back(other));
                }
            }
        }
        self.path = path;
    }

    /// Computes the sets of one direction; true if they are others than before.
    fn renew(&mut self, tree: &Tree, half: HalfId) -> bool {
        let [a, b] = tree.others(half).map(|other| tree.back(other));
        let mut to = std::mem::take(&mut self.scratch);
        self.sites.join(self.get(a), self.get(b), &mut to);
        let own = &mut self.words[(half.index() - self.taxa) * to.len()..][..to.len()];
        let is_other = own != &to[..];
        if is_other {
            own.copy_from_slice(&to);
        }
        self.scratch = to;
        is_other
    }
}
