//! Minimal ancestor deviation.
//!
//! A root makes one node the last common ancestor of each pair of tips; under a strict clock it
//! would be halfway between them. Its relative deviation is `|2 d / D - 1|`, with `d` the distance
//! of one of the pair from the ancestor and `D` that between the two. A branch's score is the root
//! mean square over all pairs, with the root at the best place on that branch.
//!
//! Pairs on both sides of a branch have the root itself as ancestor: three sums over them give the
//! best place and its score. The ancestor of every other pair is a node, and only the direction of
//! the root matters: so each node has a sum for each direction, and these are added up along the
//! tree towards each branch.
//! Must stay true: pairs at distance 0 have no deviation and do not count. Memory is proportional
//! to the tree, since the tips behind a branch are listed only when they are needed. Time is
//! proportional to the pairs of tips times the branches between them ([`steps`]).
//! Source: Tria, Landan and Dagan, Nature Ecology & Evolution 1 (2017), 0193, "Methods".

use super::Place;
use super::unrooted::Unrooted;
use sidecore_bare::width::ToU64;

/// The branch of the least score.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) deviation: f64,
    pub(super) ambiguity: f64,
}

pub(super) fn least(tree: &Unrooted, lengths: &[f64]) -> Found {
    let behind = Behind { tree, lengths };
    let pairs = behind.pairs();
    let within = behind.sums_within();
    let mut scores: Vec<(f64, Place)> = Vec::new();
    let mut tips = [Vec::new(), Vec::new()];
    for edge in 0..tree.edges() {
        let ends = tree.ends(edge);
        for (own, end) in tips.iter_mut().zip(ends) {
            behind.tips(end, edge, 0.0, own);
        }
        // The best place on the branch has a closed form over the pairs on its two sides.
        let (share, sum) = across(&tips, lengths[edge]);
        let sides = within[2 * edge] + within[2 * edge + 1];
        let square = (sum + sides) / pairs.max(1) as f64;
        // Rounding may leave a sum a little below 0.
        scores.push((square.max(0.0).sqrt(), Place { edge, share }));
    }
    // A stable sort: the first of equal scores wins.
    scores.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let (deviation, place) = scores[0];
    // The ratio of the two least deviations: near 1 the root is ambiguous.
    let ambiguity = match scores.get(1) {
        Some(&(second, _)) if second > 0.0 => deviation / second,
        _ => 1.0,
    };
    Found {
        place,
        deviation,
        ambiguity,
    }
}

/// Pairs of tips that [`least`] visits, each once for each branch between them and at most once for
/// each node.
pub(super) fn steps(tree: &Unrooted) -> u64 {
    let Some(start) = tree.tips().next() else {
        return 0;
    };
    let all = tree.tips().count().to_u64();
    let mut below = vec![0_u64; tree.nodes()];
    let mut steps = 0_u64;
    for step in tree.walk(start).iter().rev() {
        below[step.node] += u64::from(tree.is_tip(step.node));
        if let Some((above, _)) = step.above {
            let own = below[step.node];
            below[above] += own;
            steps = steps.saturating_add(own.saturating_mul(all - own));
        }
    }
    steps.saturating_mul(2)
}

/// A tree, seen from its branches.
struct Behind<'t> {
    tree: &'t Unrooted,
    lengths: &'t [f64],
}

impl Behind<'_> {
    /// Distances of the tips that are on a node's side of a branch, from that node, and `more`.
    fn tips(&self, node: usize, branch: usize, more: f64, to: &mut Vec<f64>) {
        to.clear();
        let mut path = vec![(node, branch, more)];
        while let Some((node, from, far)) = path.pop() {
            if self.tree.is_tip(node) {
                to.push(far);
            }
            for &(next, edge) in self.tree.around(node).iter().rev() {
                if edge != from {
                    path.push((next, edge, far + self.lengths[edge]));
                }
            }
        }
    }

    /// Pairs of tips that are not at distance 0: all but those that branches of length 0 join.
    fn pairs(&self) -> u64 {
        let pairs = |count: u64| count * count.saturating_sub(1) / 2;
        // Tips that branches of length 0 join are one group, within which no pair counts.
        let mut seen = vec![false; self.tree.nodes()];
        let mut equal = 0;
        for tip in self.tree.tips() {
            let (mut count, mut path) = (0, vec![tip]);
            while let Some(node) = path.pop() {
                if std::mem::replace(&mut seen[node], true) {
                    continue;
                }
                count += u64::from(self.tree.is_tip(node));
                let near = self.tree.around(node).iter();
                path.extend(
                    near.filter(|near| self.lengths[near.1] == 0.0)
                        .map(|near| near.0),
                );
            }
            equal += pairs(count);
        }
        pairs(self.tree.tips().count().to_u64()) - equal
    }

    /// For each end of each branch the sum of squared deviations of the pairs on its side, with the
    /// root on the branch or beyond it.
    fn sums_within(&self) -> Vec<f64> {
        let tree = self.tree;
        // A node's own sum, without the pairs that have a tip behind one of its neighbours.
        let mut own = vec![0.0; 2 * tree.edges()];
        let mut sides: Vec<Vec<f64>> = Vec::new();
        for node in 0..tree.nodes() {
            let around = tree.around(node);
            // A single side has no pairs.
            if around.len() < 2 {
                continue;
            }
            // The lists are kept from node to node, with their memory.
            sides.resize_with(sides.len().max(around.len()), Vec::new);
            for (side, &(next, edge)) in sides.iter_mut().zip(around) {
                self.tips(next, edge, self.lengths[edge], side);
            }
            let mut with = vec![0.0; around.len()];
            let mut all = 0.0;
            for first in 0..around.len() {
                for second in 0..first {
                    let sum = at_node(&sides[first], &sides[second]);
                    all += sum;
                    with[first] += sum;
                    with[second] += sum;
                }
            }
            for (&(_, edge), with) in around.iter().zip(with) {
                // From this branch, pairs with a tip behind it have other ancestors.
                own[2 * edge + usize::from(tree.ends(edge)[1] == node)] = all - with;
            }
        }
        // Two passes over the tree: sums from below first, then those from above.
        let mut sums = vec![0.0; 2 * tree.edges()];
        let walk = tree.walk(tree.tips().next().unwrap_or(0));
        let end_of = |edge: usize, node: usize| usize::from(tree.ends(edge)[1] == node);
        let gather = |sums: &mut Vec<f64>, node: usize, to: usize| {
            let at = 2 * to + end_of(to, node);
            sums[at] = own[at];
            for &(next, edge) in tree.around(node) {
                if edge != to {
                    sums[at] += sums[2 * edge + end_of(edge, next)];
                }
            }
        };
        for step in walk.iter().rev() {
            if let Some((_, edge)) = step.above {
                gather(&mut sums, step.node, edge);
            }
        }
        for step in &walk {
            if let Some((parent, edge)) = step.above {
                gather(&mut sums, parent, edge);
            }
        }
        sums
    }
}

/// The best place on a branch (as a share from its first end) and the sum of squared deviations of
/// the pairs on both sides, whose distances from its ends are given.
fn across(tips: &[Vec<f64>; 2], length: f64) -> (f64, f64) {
    // The deviation is (a + 2 share length) / distance.
    let (mut weights, mut once, mut twice) = (0.0, 0.0, 0.0);
    for &near in &tips[0] {
        for &far in &tips[1] {
            let distance = near + length + far;
            if distance > 0.0 {
                let weight = 1.0 / (distance * distance);
                let a = near - far - length;
                weights += weight;
                once += weight * a;
                twice += weight * a * a;
            }
        }
    }
    // The sum is a parabola in the place; its vertex may be beyond the branch.
    let share = match length > 0.0 && weights > 0.0 {
        true => (-once / weights / (2.0 * length)).clamp(0.0, 1.0),
        false => 0.5,
    };
    let move_by = 2.0 * share * length;
    // The squares of `a + move_by`, expanded: the pairs are visited once.
    let sum = twice + 2.0 * move_by * once + move_by * move_by * weights;
    (share, sum)
}

/// The sum of squared deviations with a node as ancestor, over the pairs of tips behind two of its
/// neighbours, whose distances from the node are given.
fn at_node(a: &[f64], b: &[f64]) -> f64 {
    let mut sum = 0.0;
    for near in a {
        for far in b {
            let distance = near + far;
            if distance > 0.0 {
                let deviation = (near - far) / distance;
                sum += deviation * deviation;
            }
        }
    }
    sum
}
