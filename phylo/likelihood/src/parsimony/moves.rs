//! Moves of subtrees that save changes.

use super::Sets;
use crate::constraint::Constraint;
use crate::tree::{EdgeId, HalfId, Tree};

/// Moves subtrees up to `radius` nodes away, each to where it costs least, until no move saves a
/// change.
pub(super) fn improve(
    tree: &mut Tree,
    sets: &mut Sets<'_>,
    constraint: Option<&Constraint>,
    radius: usize,
) {
    let mut walk = Walk::default();
    for _ in 0..ROUNDS_MAX {
        let mut moved = false;
        for half in (tree.taxa()..tree.halves()).map(HalfId::new) {
            let allowed = constraint.map(|constraint| constraint.edges_for_subtree(tree, half));
            let Some(target) = walk.better(tree, sets, half, radius, allowed.as_deref()) else {
                continue;
            };
            // Marked at the old and at the new place: the sets of both see the subtree.
            sets.mark_node(tree, half);
            let pruned = tree.prune(half);
            sets.mark_around(tree, pruned.edges[0]);
            sets.mark_around(tree, target);
            let _ = tree.regraft(pruned, target);
            sets.mark_node(tree, half);
            moved = true;
        }
        if !moved {
            break;
        }
    }
}

/// Scratch memory of a walk away from a pruned place, kept between walks.
#[derive(Debug, Default)]
struct Walk {
    /// For each depth the sets of the near side.
    near: Vec<Vec<u64>>,
}

impl Walk {
    /// The branch into which the subtree behind `half` is inserted at least cost, if that is
    /// cheaper than its present place.
    fn better(
        &mut self,
        tree: &Tree,
        sets: &mut Sets<'_>,
        half: HalfId,
        radius: usize,
        allowed: Option<&[bool]>,
    ) -> Option<EdgeId> {
        let sides = tree.others(half).map(|own| tree.back(own));
        let below = tree.back(half);
        for end in [sides[0], sides[1], below] {
            sets.make(tree, end);
        }
        let sites = sets.sites;
        let least = sites.insert(
            sets.get(sides[0]),
            sets.get(sides[1]),
            sets.get(below),
            u64::MAX,
        );
        let (mut best, mut least) = (None, least);
        // No place can need fewer than 0 changes.
        if least == 0 {
            return None;
        }
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
                    let cost = sites.insert(&own[0], sets.get(far), sets.get(below), least);
                    if cost < least {
                        (best, least) = (Some(edge), cost);
                    }
                }
                spread(&mut path, far, depth);
            }
        }
        best
    }
}

/// Rounds end by themselves; this only makes that visible.
const ROUNDS_MAX: usize = 100;
