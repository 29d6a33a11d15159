//! Search for the place of a genome or a subtree on a tree that is only read.
//!
//! A walk goes from branch to branch, scores the genome at each midpoint, and leaves a direction
//! once it has become worse several times, or much worse than the best so far. The branches of the
//! best scores are fitted: where on the branch, and with what lengths.
//!
//! Genomes of an outbreak have polytomies of thousands of branches. There a walk scores each point
//! once, and passes by the tips whose own bases the genome excludes.
//!
//! For a subtree that is already in the tree the walk begins at its own place, and carries the list
//! of what is behind it without the subtree, as far as that differs from the tree's own list.
//! Must stay true: the result depends on the tree alone, not on the engine that does it. Source: De
//! Maio and others, "Maximum likelihood pandemic-scale phylogenetics", Nature Genetics 55 (2023),
//! 746-752, sections on placement and on the search for topologies.

use crate::genome::{Builder, Genome};
use crate::sparse::{Edge, Far, Space, merge, middle, score};
use crate::tree::{Lengths, NONE, Place, ROOT, Tree};

/// Limits at which a walk leaves a direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Scores worse than the one before, in a row and by more than [`WORSE`], that are followed.
    fails: u32,
    /// Below the best score by this much.
    below: f64,
}

/// For genomes that come to the tree.
pub(crate) const PLACEMENT: Limits = Limits {
    fails: 5,
    below: 18.0,
};
/// For subtrees that may move.
pub(crate) const MOVES: Limits = Limits {
    fails: 4,
    below: 14.0,
};

/// A branch that a genome could stem from.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) edge: u32,
    score: f64,
    /// The list of the end that the walk came from, where the tree's own is not valid.
    behind: Option<(bool, Genome)>,
}

/// Result of a walk.
#[derive(Debug)]
pub(crate) enum Found {
    /// A tip that says all that the genome says.
    Covered(u32),
    /// The best branches, the best one first.
    Branches(Vec<Candidate>),
}

/// Finds branches for a genome that is not in the tree, which has two tips or more.
pub(crate) fn find(tree: &Tree, space: &Space, query: &Genome) -> Found {
    // The root is a tip that no branch leads down to: the walk below would never look at it.
    if tree.node(ROOT).lower.covers(query, &space.reference) {
        return Found::Covered(ROOT);
    }
    let mut walk = Walk::new(tree, space, query, space.one(), PLACEMENT);
    walk.steps.push(Step {
        edge: tree.top(),
        is_up: false,
        is_same: false,
        behind: None,
        fails: 0,
        // Below any score, so that the first branch is no failure whatever it gives.
        last: f64::NEG_INFINITY,
    });
    // Depth first, by a stack of its own: a polytomy is a chain of thousands of nodes.
    while let Some(step) = walk.steps.pop() {
        let node = tree.node(step.edge);
        // A covered genome adds nothing to the likelihood, so no branch could be better.
        if tree.is_tip(step.edge) && node.lower.covers(query, &space.reference) {
            return Found::Covered(step.edge);
        }
        walk.visit(step);
    }
    Found::Branches(walk.best_branches())
}

/// The best of some branches by the scores at their midpoints.
pub(crate) fn among(
    tree: &Tree,
    space: &Space,
    query: &Genome,
    edges: impl IntoIterator<Item = u32>,
) -> Vec<Candidate> {
    let mut walk = Walk::new(tree, space, query, space.one(), PLACEMENT);
    for edge in edges {
        // What ends early is left out below anyway: the order of the others is that of all scores.
        walk.look_at(edge, None, walk.best - CLOSE);
    }
    walk.best_branches()
}

/// Lengths for a genome at a branch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fit {
    /// Logarithm of the likelihood with the genome over that without it.
    pub(crate) gain: f64,
    pub(crate) place: Place,
}

/// The best fit among candidates; none where there is none.
pub(crate) fn best_fit(
    tree: &Tree,
    space: &Space,
    query: &Genome,
    start: f64,
    candidates: &[Candidate],
) -> Option<Fit> {
    let mut best: Option<Fit> = None;
    for candidate in candidates {
        let node = tree.node(candidate.edge);
        // The tree's list of that end still contains the subtree that moves.
        let (upper, lower) = match &candidate.behind {
            None => (&node.upper, &node.lower),
            Some((true, behind)) => (&node.upper, behind),
            Some((false, behind)) => (behind, &node.lower),
        };
        let (gain, lengths) = fit(space, (upper, lower, node.length), query, start);
        // Strictly better: of equal places the one with the better midpoint score stays, as
        // candidates are sorted by it.
        if best.is_none_or(|best| gain > best.gain) {
            let edge = candidate.edge;
            best = Some(Fit {
                gain,
                place: Place { edge, lengths },
            });
        }
    }
    best
}

/// Fits the three lengths around a genome on a branch.
fn fit(
    space: &Space,
    (upper, lower, length): (&Genome, &Genome, f64),
    query: &Genome,
    start: f64,
) -> (f64, Lengths) {
    // The branch as it is: what it earns by its own new lengths counts as gain, too.
    let without = Edge::new(space, upper, lower).lnl(length);
    let mut builder = Builder::default();
    let [mut above, mut below, mut own] = [0.5 * length, 0.5 * length, start];
    let mut gain = f64::NEG_INFINITY;
    for _ in 0..FIT_ROUNDS {
        let log = merge(space, (upper, above), (lower, below), &mut builder);
        let edge = Edge::new(space, &builder.take(), query);
        // From one substitution on: at length 0 the slope of a site that differs is infinite, and
        // Newton's step there is none.
        own = edge.best_length(own.max(space.one()));
        let now = log + edge.lnl(own) - without;
        // The first round compares with minus infinity, so at least one full round is made where
        // the branch has a length.
        let is_done = now - gain < FIT_GAIN;
        gain = now;
        // On a branch of no length there is but one place.
        if is_done || length == 0.0 {
            break;
        }
        // One length at a time, the other two fixed: each is a fit along one branch, which an
        // `Edge` can do.
        merge(space, (lower, below), (query, own), &mut builder);
        let edge = Edge::new(space, upper, &builder.take());
        above = edge.best_length(above.max(space.one()));
        let log = merge(space, (upper, above), (query, own), &mut builder);
        let edge = Edge::new(space, lower, &builder.take());
        below = edge.best_length(below.max(space.one()));
        gain = log + edge.lnl(below) - without;
    }
    (gain, [above, below, own])
}

/// A better place for a subtree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) subtree: u32,
    pub(crate) edge: u32,
    /// Expected gain in log-likelihood.
    pub(crate) gain: f64,
}

/// Logarithm of the likelihood with a subtree where it is over that without it; `None` for a
/// subtree that cannot move.
pub(crate) fn present_gain(tree: &Tree, space: &Space, subtree: u32) -> Option<f64> {
    let inner = tree.node(subtree).parent;
    // The top node's branch leads to the root's tip: without it there is no tree to move on.
    if inner == ROOT || inner == NONE {
        return None;
    }
    let (own, above) = (tree.node(subtree), tree.node(inner));
    let other = tree.node(tree.sibling(subtree));
    let mut builder = Builder::default();
    let (a, b) = ((&above.upper, above.length), (&other.lower, other.length));
    let log = merge(space, a, b, &mut builder);
    let with = log + Edge::new(space, &builder.take(), &own.lower).lnl(own.length);
    // Without the subtree its inner node is no node: the two branches are one.
    let length = above.length + other.length;
    Some(with - Edge::new(space, &above.upper, &other.lower).lnl(length))
}

/// Finds a better place for the subtree of a node.
pub(crate) fn find_move(tree: &Tree, space: &Space, subtree: u32) -> Option<Move> {
    let now = present_gain(tree, space, subtree)?;
    // A subtree that costs next to nothing is where it belongs.
    if now > COST_LEAST {
        return None;
    }
    let own = tree.node(subtree);
    // Scores use one pendant length for all places; its present one is the best guess.
    let start = own.length.max(space.one());
    let mut walk = Walk::new(tree, space, &own.lower, start, MOVES);
    walk.leave(subtree, now);
    while let Some(step) = walk.steps.pop() {
        walk.visit(step);
    }
    let found = walk.best_branches();
    let best = best_fit(tree, space, &own.lower, start, &found)?;
    // Both are over the tree without the subtree, so their difference is the tree's own gain.
    let gain = best.gain - now;
    (gain > MOVE_GAIN).then_some(Move {
        subtree,
        edge: best.place.edge,
        gain,
    })
}

/// A branch that a walk will come to.
struct Step {
    edge: u32,
    /// True if the walk comes from the lower end.
    is_up: bool,
    /// True if its branch is the same point as the branch before: neither has a length.
    is_same: bool,
    /// The list of the end that the walk comes from, if the tree's own is not valid.
    behind: Option<Genome>,
    fails: u32,
    /// The score of the branch before.
    last: f64,
}

struct Walk<'t> {
    tree: &'t Tree,
    space: &'t Space,
    query: &'t Genome,
    pendant: Far<'t>,
    limits: Limits,
    best: f64,
    found: Vec<Candidate>,
    steps: Vec<Step>,
    builder: Builder,
}

impl<'t> Walk<'t> {
    fn new(
        tree: &'t Tree,
        space: &'t Space,
        query: &'t Genome,
        pendant: f64,
        limits: Limits,
    ) -> Self {
        Self {
            tree,
            space,
            query,
            pendant: Far::new(space, pendant),
            limits,
            best: f64::NEG_INFINITY,
            found: Vec::new(),
            steps: Vec::new(),
            builder: Builder::default(),
        }
    }

    /// The first steps from the place of a subtree, as if it were not there; `now` is how likely it
    /// is there.
    fn leave(&mut self, subtree: u32, now: f64) {
        let (tree, space) = (self.tree, self.space);
        let inner = tree.node(subtree).parent;
        let edge = tree.sibling(subtree);
        let (above, other) = (tree.node(inner), tree.node(edge));
        let length = above.length + other.length;
        // The branch that its removal joins: neither end's list may contain the subtree.
        let from_above = (&above.upper, length);
        let from_below = (&other.lower, length);
        // Other branches have scores at their midpoints, so its own has to count from there, too.
        let own = middle(space, &above.upper, &other.lower, length, &mut self.builder);
        // The lower of the two: a start that is too high would end every direction at once.
        let own = score(&own, self.query, &mut self.pendant, f64::NEG_INFINITY);
        self.best = own.min(now);
        let last = self.best;
        let step = |edge, is_up, behind| Step {
            edge,
            is_up,
            is_same: false,
            behind: Some(behind),
            fails: 0,
            last,
        };
        // Down from its sister, then from its grandparent down and up: the three ways that leave
        // its place.
        if !tree.is_tip(edge) {
            let [a, b] = other.children;
            for (next, sister) in [(a, b), (b, a)] {
                let sister = tree.node(sister);
                let near = (&sister.lower, sister.length);
                merge(space, from_above, near, &mut self.builder);
                self.steps.push(step(next, false, self.builder.take()));
            }
        }
        let parent = above.parent;
        if parent != ROOT {
            let next = tree.sibling(inner);
            let (up, sister) = (tree.node(parent), tree.node(next));
            merge(space, from_below, (&up.upper, up.length), &mut self.builder);
            self.steps.push(step(next, false, self.builder.take()));
            let near = (&sister.lower, sister.length);
            merge(space, from_below, near, &mut self.builder);
            self.steps.push(step(parent, true, self.builder.take()));
        }
    }

    /// Scores a branch, and goes on from there if that is worth it.
    fn visit(&mut self, mut step: Step) {
        // Kept from before this branch: its own score must not be measured against itself.
        let before = self.best;
        let floor = before - self.limits.below;
        // The same point has the same score; a look costs a merge, and a polytomy has thousands of
        // these.
        if step.is_same {
            if step.last >= floor {
                self.go_on(&step);
            }
            return;
        }
        let behind = step.behind.as_ref().map(|genome| (step.is_up, genome));
        // May be less than the true score once it is below the floor, which changes no decision
        // below.
        let score = self.look_at(step.edge, behind, floor);
        if score > before {
            // A new best proves the direction: what failed on the way does not count any more.
            step.fails = 0;
        // Not each small loss: midpoints of long branches score a little worse than their ends.
        } else if score < step.last - WORSE {
            step.fails += 1;
        }
        step.last = score;
        if step.fails <= self.limits.fails && score >= self.best - self.limits.below {
            self.go_on(&step);
        }
        // The last one, if it was kept, is of this branch.
        if let Some(candidate) = self.found.last_mut()
            && candidate.edge == step.edge
        {
            candidate.behind = step.behind.map(|genome| (step.is_up, genome));
        }
    }

    /// The score at a branch's midpoint; good ones are kept. `behind` is a list in place of the
    /// tree's own, and true if it is that of the lower end.
    fn look_at(&mut self, edge: u32, behind: Option<(bool, &Genome)>, floor: f64) -> f64 {
        let (node, space) = (self.tree.node(edge), self.space);
        let made;
        let at = match behind {
            None => &node.middle,
            Some((is_up, genome)) => {
                let (upper, lower) = match is_up {
                    true => (&node.upper, genome),
                    false => (genome, &node.lower),
                };
                made = middle(space, upper, lower, node.length, &mut self.builder);
                &made
            }
        };
        let score = score(at, self.query, &mut self.pendant, floor);
        self.best = self.best.max(score);
        // Only what could still be fitted is kept; the list of the end behind may be large.
        let least = self.best - CLOSE;
        if score >= least {
            if self.found.len() == FOUND_MAX {
                // The best has risen since some were kept. Where that frees nothing, all are about
                // equal: half of them suffices, and the walk's memory has a bound.
                self.found.retain(|candidate| candidate.score >= least);
                self.found.sort_by(|a, b| b.score.total_cmp(&a.score));
                self.found.truncate(FOUND_MAX / 2);
            }
            self.found.push(Candidate {
                edge,
                score,
                behind: None,
            });
        }
        score
    }

    /// The branches behind a branch.
    fn go_on(&mut self, from: &Step) {
        let tree = self.tree;
        let node = tree.node(from.edge);
        if from.is_up {
            // Up: on to the sister and to the parent's branch, each seen from the other one.
            let parent = node.parent;
            if parent == ROOT {
                return;
            }
            let other = tree.sibling(from.edge);
            let (above, sister) = (tree.node(parent), tree.node(other));
            self.come_to(from, (other, false), (&above.upper, above.length));
            self.come_to(from, (parent, true), (&sister.lower, sister.length));
        } else if !tree.is_tip(from.edge) {
            // Pushed in this order so that the first child is walked first.
            let [a, b] = node.children;
            for (next, other) in [(b, a), (a, b)] {
                let sister = tree.node(other);
                self.come_to(from, (next, false), (&sister.lower, sister.length));
            }
        }
    }

    /// Notes the next branch, behind a node whose third branch is `sister`.
    fn come_to(&mut self, from: &Step, (edge, is_up): (u32, bool), sister: (&Genome, f64)) {
        let (next, reference) = (self.tree.node(edge), &self.space.reference);
        let length = self.tree.node(from.edge).length;
        // Marks are of the tree's own lists. The point that the tip stems from has its score, since
        // the branch before is of no length.
        let is_scored = from.behind.is_none() && length == 0.0;
        if is_scored && !is_up && next.marks.exclude(self.query, reference) {
            return;
        }
        // A list in place of the tree's is carried on only while it differs: a few branches on it
        // has faded.
        let behind = from.behind.as_ref().and_then(|behind| {
            merge(self.space, (behind, length), sister, &mut self.builder);
            let made = self.builder.take();
            let known = if is_up { &next.lower } else { &next.upper };
            // From where it is as before, the tree's own lists are valid.
            made.differs(known).then_some(made)
        });
        self.steps.push(Step {
            edge,
            is_up,
            is_same: length == 0.0 && next.length == 0.0,
            behind,
            fails: from.fails,
            last: from.last,
        });
    }

    /// The branches to fit.
    fn best_branches(self) -> Vec<Candidate> {
        let least = self.best - CLOSE;
        let mut found = self.found;
        found.retain(|candidate| candidate.score >= least);
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        // Many branches of no length are one place, that of a polytomy.
        let mut empty = 0;
        found.retain(|candidate| {
            let is_empty = self.tree.node(candidate.edge).length == 0.0;
            empty += u32::from(is_empty);
            !is_empty || empty <= EMPTY_MAX
        });
        found.truncate(FITS_MAX);
        found
    }
}

/// A step whose score is lower by this much is one for the worse.
const WORSE: f64 = 1.0;
/// Scores at midpoints that are this close to the best one are fitted.
const CLOSE: f64 = 3.0;
/// Branches kept by a walk.
const FOUND_MAX: usize = 256;
/// Branches fitted after a walk, and among these of no length.
const FITS_MAX: usize = 6;
const EMPTY_MAX: u32 = 4;
/// Rounds over the three lengths around a genome, and the gain below which they end.
const FIT_ROUNDS: usize = 4;
const FIT_GAIN: f64 = 0.001;
/// Subtrees that cost less than this are not moved.
const COST_LEAST: f64 = -2.0;
/// Gain in log-likelihood below which a subtree stays where it is.
pub(crate) const MOVE_GAIN: f64 = 0.02;
