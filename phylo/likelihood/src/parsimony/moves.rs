//! Moves of subtrees that save changes.

use super::Places;
use super::Sets;
use crate::random::Random;
use crate::tree::{EdgeId, HalfId, Tree};

/// Moves subtrees up to `radius` nodes away, each to where it costs least, until no move saves a
/// change.
pub(super) fn improve(
    tree: &mut Tree,
    sets: &mut Sets<'_>,
    constraint: Option<&dyn Places>,
    radius: usize,
) {
    let mut walk = Walk::default();
    for _ in 0..ROUNDS_MAX {
        if walk.round(tree, sets, constraint, radius, None).moved == 0 {
            break;
        }
    }
}

/// As [`improve`], but a subtree also moves to any place that costs as much as its own: a walk over
/// the plateaus of near-identical sequences, which have few better neighbours and very many equal
/// ones. Ends after [`IDLE_ROUNDS`] rounds without a change saved.
pub(super) fn drift(
    tree: &mut Tree,
    sets: &mut Sets<'_>,
    constraint: Option<&dyn Places>,
    radius: usize,
    random: &mut Random,
) {
    let mut walk = Walk::default();
    let mut idle = 0;
    for _ in 0..ROUNDS_MAX {
        let round = walk.round(tree, sets, constraint, radius, Some(random));
        idle = if round.saved == 0 { idle + 1 } else { 0 };
        if idle == IDLE_ROUNDS || round.moved == 0 {
            break;
        }
    }
}

/// Results of a round over all subtrees.
struct Round {
    moved: usize,
    /// Changes saved.
    saved: u64,
}

/// A place for a subtree.
struct Place {
    edge: EdgeId,
    /// Changes that it saves.
    saved: u64,
}

/// Scratch memory of a walk away from a pruned place, kept between walks.
#[derive(Debug, Default)]
struct Walk {
    /// For each depth the sets of the near side.
    near: Vec<Vec<u64>>,
}

impl Walk {
    /// Moves each subtree to its best place; with `ties` also among equally good ones.
    fn round(
        &mut self,
        tree: &mut Tree,
        sets: &mut Sets<'_>,
        constraint: Option<&dyn Places>,
        radius: usize,
        mut ties: Option<&mut Random>,
    ) -> Round {
        let mut round = Round { moved: 0, saved: 0 };
        for half in (tree.taxa()..tree.halves()).map(HalfId::new) {
            let allowed = constraint.map(|constraint| constraint.for_subtree(tree, half));
            let ties = ties.as_deref_mut();
            let Some(place) = self.better(tree, sets, half, radius, allowed.as_deref(), ties)
            else {
                continue;
            };
            // Marked at the old and at the new place: the sets of both see the subtree.
            sets.mark_node(tree, half);
            let pruned = tree.prune(half);
            sets.mark_around(tree, pruned.edges[0]);
            sets.mark_around(tree, place.edge);
            let _ = tree.regraft(pruned, place.edge);
            sets.mark_node(tree, half);
            round.moved += 1;
            round.saved += place.saved;
        }
        round
    }

    /// The branch into which the subtree behind `half` is inserted at least cost, if that is
    /// cheaper than its present place. With `ties` one that costs as much will do: any of those,
    /// with equal chances.
    fn better(
        &mut self,
        tree: &Tree,
        sets: &mut Sets<'_>,
        half: HalfId,
        radius: usize,
        allowed: Option<&[bool]>,
        mut ties: Option<&mut Random>,
    ) -> Option<Place> {
        let sides = tree.others(half).map(|own| tree.back(own));
        let below = tree.back(half);
        for end in [sides[0], sides[1], below] {
            sets.make(tree, end);
        }
        let sites = sets.sites;
        let here = sites.insert(
            sets.get(sides[0]),
            sets.get(sides[1]),
            sets.get(below),
            u64::MAX,
        );
        let (mut best, mut least, mut equal) = (None, here, 0);
        // No place can need fewer than 0 changes.
        if least == 0 && ties.is_none() {
            return None;
        }
        // Costs are counted up to a limit: ties need one more.
        let more = u64::from(ties.is_some());
        self.near.resize_with(radius + 1, || vec![0; sites.words()]);
        // Both directions from the old place; the other side is the near side of the first branch.
        for (side, other) in [(sides[0], sides[1]), (sides[1], sides[0])] {
            self.near[0].copy_from_slice(sets.get(other));
            // Branches to be visited: the near node's half-edge on it, the one by which the node
            // was entered, and the depth. The sets before the node are one level less deep.
            let mut path: Vec<(HalfId, HalfId, usize)> = Vec::new();
            let spread = |path: &mut Vec<_>, entry: HalfId, depth| {
                if !tree.is_tip(entry) && depth < radius {
                    path.extend(tree.others(entry).map(|near| (near, entry, depth + 1)));
                }
            };
            spread(&mut path, side, 0);
            while let Some((near, entry, depth)) = path.pop() {
                // One buffer for each depth suffices, as the walk is depth first.
                let (before, own) = self.near.split_at_mut(depth);
                let [x, y] = tree.others(near);
                let sibling = if x == entry { y } else { x };
                sites.join(
                    &before[depth - 1],
                    sets.get(tree.back(sibling)),
                    &mut own[0],
                );
                let far = tree.back(near);
                let edge = tree.edge(near);
                if allowed.is_none_or(|allowed| allowed[edge.index()]) {
                    // The cost stops being counted once it exceeds the least one so far.
                    let limit = least + more;
                    let cost = sites.insert(&own[0], sets.get(far), sets.get(below), limit);
                    if cost < least {
                        (best, least, equal) = (Some(edge), cost, 1);
                    } else if cost == least
                        && let Some(random) = ties.as_deref_mut()
                    {
                        // The k-th of equal places replaces the one before with a chance of 1/k.
                        equal += 1;
                        if random.below(equal) == 0 {
                            best = Some(edge);
                        }
                    }
                }
                spread(&mut path, far, depth);
            }
        }
        best.map(|edge| Place {
            edge,
            saved: here - least,
        })
    }
}

/// Rounds end by themselves; this only makes that visible.
const ROUNDS_MAX: usize = 100;
/// Rounds among equal trees that may save nothing before a walk ends.
const IDLE_ROUNDS: usize = 10;
