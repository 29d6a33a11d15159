//! Minimal ancestor deviation.
//!
//! A root makes one node the last common ancestor of each pair of tips; were evolution a clock, it
//! would be halfway between them. Its relative deviation is `|2 d / D - 1|`, with `d` the distance
//! of one of the pair from the ancestor and `D` that between the two. A branch's score is the root
//! mean square over all pairs, with the root at the best place on that branch.
//!
//! Pairs on both sides of a branch have the root itself as ancestor: three sums over them give the
//! best place and the score there. Of all others the ancestor is a node, and only the direction
//! counts in which the root is: sums of each node without one of its neighbours, added up along the
//! tree towards each branch.
//! Must stay true: pairs at distance 0 deviate from nothing and do not count.
//! Source: Tria, Landan and Dagan, Nature Ecology & Evolution 1 (2017), 0193, "Methods".

use super::Place;
use super::unrooted::Unrooted;

/// The branch of the least score.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) deviation: f64,
    pub(super) ambiguity: f64,
}

pub(super) fn least(tree: &Unrooted, lengths: &[f64]) -> Found {
    let behind = Behind::new(tree, lengths);
    let within = behind.sums_within(tree);
    let mut scores: Vec<(f64, Place)> = Vec::new();
    for edge in 0..tree.edges() {
        let ends = tree.ends(edge);
        let (share, sum) = behind.across(ends, edge, lengths[edge]);
        let sides = within[2 * edge] + within[2 * edge + 1];
        let square = (sum + sides) / behind.pairs.max(1) as f64;
        scores.push((square.max(0.0).sqrt(), Place { edge, share }));
    }
    // A stable sort: of equals the first.
    scores.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let (deviation, place) = scores[0];
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

/// Tips behind each branch, seen from each of its ends.
struct Behind {
    /// For `2 edge + k` the distances from end `k` of the tips on that end's own side.
    tips: Vec<Vec<f64>>,
    /// Pairs of tips that are not at distance 0.
    pairs: u64,
    lengths: Vec<f64>,
}

impl Behind {
    fn new(tree: &Unrooted, lengths: &[f64]) -> Self {
        let mut tips = vec![Vec::new(); 2 * tree.edges()];
        let start = tree.tips().next().unwrap_or(0);
        let walk = tree.walk(start);
        let end_of = |edge: usize, node: usize| usize::from(tree.ends(edge)[1] == node);
        // What is below, from the leaves on; then what is above, from the start on.
        let gather = |tips: &mut Vec<Vec<f64>>, node: usize, to: usize| {
            let mut own = Vec::new();
            if tree.is_tip(node) {
                own.push(0.0);
            }
            for &(next, edge) in tree.around(node) {
                if edge != to {
                    let far = &tips[2 * edge + end_of(edge, next)];
                    own.extend(far.iter().map(|far| far + lengths[edge]));
                }
            }
            tips[2 * to + end_of(to, node)] = own;
        };
        for step in walk.iter().rev() {
            if let Some((_, edge)) = step.above {
                gather(&mut tips, step.node, edge);
            }
        }
        for step in &walk {
            if let Some((parent, edge)) = step.above {
                gather(&mut tips, parent, edge);
            }
        }
        let mut behind = Self {
            tips,
            pairs: 0,
            lengths: lengths.to_vec(),
        };
        let count = tree.tips().count() as u64;
        behind.pairs = count * (count - 1) / 2 - behind.equals(tree);
        behind
    }

    /// Pairs of tips at distance 0.
    fn equals(&self, tree: &Unrooted) -> u64 {
        let mut twice = 0;
        for tip in tree.tips() {
            let far = tree.distances(tip, &self.lengths);
            twice += tree.tips().filter(|&t| t != tip && far[t] == 0.0).count();
        }
        twice as u64 / 2
    }

    /// The best place on a branch (as a share from its first end) and the sum of squared deviations
    /// of the pairs on both sides.
    fn across(&self, ends: [usize; 2], edge: usize, length: f64) -> (f64, f64) {
        debug_assert_ne!(ends[0], ends[1], "ends of a branch");
        // The deviation is (a + 2 share length) / distance.
        let (mut weights, mut once, mut twice) = (0.0, 0.0, 0.0);
        for &near in &self.tips[2 * edge] {
            for &far in &self.tips[2 * edge + 1] {
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
        let share = match length > 0.0 && weights > 0.0 {
            true => (-once / weights / (2.0 * length)).clamp(0.0, 1.0),
            false => 0.5,
        };
        let move_by = 2.0 * share * length;
        let sum = twice + 2.0 * move_by * once + move_by * move_by * weights;
        (share, sum)
    }

    /// For each end of each branch the sum of squared deviations of the pairs on its side, with the
    /// root on the branch or beyond it.
    fn sums_within(&self, tree: &Unrooted) -> Vec<f64> {
        // A node's own sum, without the pairs in which one neighbour's side takes part.
        let mut own = vec![0.0; 2 * tree.edges()];
        for node in 0..tree.nodes() {
            let around = tree.around(node);
            let mut with = vec![0.0; around.len()];
            let mut all = 0.0;
            for first in 0..around.len() {
                for second in 0..first {
                    let sum = self.at_node(tree, around[first], around[second]);
                    all += sum;
                    with[first] += sum;
                    with[second] += sum;
                }
            }
            for (&(_, edge), with) in around.iter().zip(with) {
                own[2 * edge + usize::from(tree.ends(edge)[1] == node)] = all - with;
            }
        }
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

    /// Over the pairs of tips behind two neighbours of a node: the sum of squared deviations with
    /// that node as ancestor.
    fn at_node(&self, tree: &Unrooted, a: (usize, usize), b: (usize, usize)) -> f64 {
        let [a, b] = [a, b].map(|(next, edge)| {
            let far = &self.tips[2 * edge + usize::from(tree.ends(edge)[1] == next)];
            (far, self.lengths[edge])
        });
        let mut sum = 0.0;
        for near in a.0.iter().map(|far| far + a.1) {
            for far in b.0.iter().map(|far| far + b.1) {
                let distance = near + far;
                if distance > 0.0 {
                    let deviation = (near - far) / distance;
                    sum += deviation * deviation;
                }
            }
        }
        sum
    }
}
