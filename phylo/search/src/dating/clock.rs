//! A clock fitted to the lengths of a tree's branches.
//!
//! `Clock::at` solves the problem of a given rate: curves go up the tree, dates down.
//! Must stay true: dates are the best ones at the rate, to rounding.
//! Source: as the module above.

use super::dates::{Bounds, Dates, DatingError, first_tip};
use crate::newick::Newick;
use crate::random::Random;
use std::f64::consts::PI;

/// Options of a dating.
#[derive(Debug, Clone, Copy)]
pub struct ClockOptions {
    /// Sites of the alignment that the lengths are of.
    pub sites: usize,
    /// The rate, in substitutions a site and unit of time, if it is known.
    pub rate: Option<f64>,
    /// Replicates for the confidence; 0 for none.
    pub replicates: u32,
    /// Standard deviation of the rates of branches, as a share of their mean.
    pub spread: f64,
    /// Seed of the replicates.
    pub seed: u64,
}

impl ClockOptions {
    /// The rate is fitted, without confidence.
    #[must_use]
    pub fn new(sites: usize) -> Self {
        Self {
            sites,
            rate: None,
            replicates: 0,
            spread: 0.2,
            seed: 1,
        }
    }
}

/// A tree, and what is known of its dates.
pub(super) struct Clock<'t> {
    tree: &'t Newick,
    /// For each node its branch; of the root one of no length.
    pub(super) branches: Vec<Branch>,
    bounds: Vec<Bounds>,
    sites: f64,
    /// Time between the first and the last of the known dates; 0 where there is one.
    span: f64,
}

/// A branch's length, and the variance by whose inverse it counts.
pub(super) type Branch = [f64; 2];

/// A clock that was fitted.
pub(super) struct Fit {
    pub(super) rate: f64,
    pub(super) dates: Vec<f64>,
    pub(super) cost: f64,
    /// The derivative of the cost by the rate.
    slope: f64,
}

impl<'t> Clock<'t> {
    /// Gives the number of dates that are not of the tree, too.
    pub(super) fn new(
        tree: &'t Newick,
        dates: &Dates,
        options: &ClockOptions,
    ) -> Result<(Self, usize), DatingError> {
        let (bounds, unused) = dates.of_nodes(tree)?;
        let nodes = tree.nodes().iter().enumerate();
        let lengths = nodes.map(|(node, own)| match node {
            0 => Some(0.0),
            _ => own.length.filter(|length| *length >= 0.0),
        });
        let sites = options.sites.max(1) as f64;
        let branches = lengths.map(|own| own.map(|own| [own, variance(own, sites)]));
        let branches: Option<Vec<Branch>> = branches.collect();
        let branches = branches.ok_or(DatingError::NoLength)?;
        let ends = bounds.iter().flat_map(|own| [own.earliest, own.latest]);
        let known = ends.filter(|end| end.is_finite());
        let (low, high) = known.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), end| {
            (low.min(end), high.max(end))
        });
        let span = high - low;
        if span < 0.0 {
            return Err(DatingError::NoDates);
        }
        // Time could be stretched about the one date, and the rate be as much smaller.
        if span == 0.0 && options.rate.is_none() {
            return Err(DatingError::OneDate);
        }
        let clock = Self {
            tree,
            branches,
            bounds,
            sites,
            span,
        };
        clock.check()?;
        Ok((clock, unused))
    }

    /// Refuses bounds that exclude one another.
    fn check(&self) -> Result<(), DatingError> {
        let mut latest: Vec<f64> = self.bounds.iter().map(|own| own.latest).collect();
        for (node, own) in self.tree.nodes().iter().enumerate().rev() {
            if self.bounds[node].earliest > latest[node] {
                let label = first_tip(self.tree, node);
                return Err(DatingError::Excluded { label });
            }
            if let Some(parent) = own.parent {
                latest[parent] = latest[parent].min(latest[node]);
            }
        }
        Ok(())
    }

    /// The dates of the least cost, at a rate or at the best one.
    pub(super) fn fit(&self, branches: &[Branch], rate: Option<f64>) -> Result<Fit, DatingError> {
        if let Some(rate) = rate {
            return Ok(self.at(branches, rate));
        }
        let squares = branches.iter().map(|[own, variance]| own * own / variance);
        let whole: f64 = squares.sum();
        let guess = self.guess(branches);
        let is_flat = |fit: &Fit| fit.slope.abs() * guess <= FLAT * whole;
        let found = self.least((branches, guess), &is_flat)?;
        // Bounds may leave room in which a change of the rate costs nothing.
        let is_open = |factor: f64| {
            let other = self.at(branches, found.rate * factor);
            other.slope.abs() * guess <= OPEN * whole
        };
        match is_open(0.5) || is_open(2.0) {
            true => Err(DatingError::OneDate),
            false => Ok(found),
        }
    }

    /// A fit of the least cost, sought from a guess of the rate.
    fn least(
        &self,
        (branches, guess): (&[Branch], f64),
        is_flat: &dyn Fn(&Fit) -> bool,
    ) -> Result<Fit, DatingError> {
        let mut near = self.at(branches, guess);
        // From the guess on, by factors of 2 to both sides of the least cost.
        let factor = if near.slope > 0.0 { 0.5 } else { 2.0 };
        let mut doublings = 0;
        let far = loop {
            if is_flat(&near) {
                return Ok(near);
            }
            let next = self.at(branches, near.rate * factor);
            if (next.slope > 0.0) != (near.slope > 0.0) {
                break next;
            }
            near = next;
            doublings += 1;
            if doublings == DOUBLINGS_MAX {
                return Err(DatingError::NoSignal);
            }
        };
        // The derivative never falls; false position, with the Illinois rule against a stuck end.
        let (mut low, mut high) = match near.slope < far.slope {
            true => (near, far),
            false => (far, near),
        };
        let (mut below, mut above) = (low.slope, high.slope);
        let mut last = 0;
        for _ in 0..ROUNDS_MAX {
            let share = below / (below - above);
            let rate = low.rate + share * (high.rate - low.rate);
            let found = self.at(branches, rate);
            if is_flat(&found) || high.rate - low.rate <= FLAT * high.rate {
                return Ok(found);
            }
            if found.slope < 0.0 {
                (below, low) = (found.slope, found);
                above *= if last < 0 { 0.5 } else { 1.0 };
                last = -1;
            } else {
                (above, high) = (found.slope, found);
                below *= if last > 0 { 0.5 } else { 1.0 };
                last = 1;
            }
        }
        Ok(if low.cost < high.cost { low } else { high })
    }

    /// A rate of the right size: the mean distance of tips from the root in the time that is known.
    fn guess(&self, branches: &[Branch]) -> f64 {
        let mut far = vec![0.0; branches.len()];
        let (mut sum, mut tips) = (0.0_f64, 0.0_f64);
        for (node, own) in self.tree.nodes().iter().enumerate() {
            if let Some(parent) = own.parent {
                far[node] = far[parent] + branches[node][0];
            }
            if own.children.is_empty() {
                sum += far[node];
                tips += 1.0;
            }
        }
        (sum / tips).max(1.0 / self.sites) / self.span
    }

    /// The dates of the least cost at a rate.
    fn at(&self, branches: &[Branch], rate: f64) -> Fit {
        let nodes = self.tree.nodes();
        // A branch's cost is `weight * (duration - expected)^2`: twice the weight, and that
        // duration.
        let branch = |node: usize| {
            let [length, variance] = branches[node];
            (2.0 * rate * rate / variance, length / rate)
        };
        let mut own: Vec<Curve> = nodes.iter().map(|_| Curve::flat()).collect();
        let mut passed: Vec<Curve> = nodes.iter().map(|_| Curve::flat()).collect();
        for node in (0..nodes.len()).rev() {
            // Children come after their parents, so all of a node's have been added here.
            let curve = std::mem::replace(&mut own[node], Curve::flat()).within(self.bounds[node]);
            match nodes[node].parent {
                Some(parent) => {
                    let (weight, expected) = branch(node);
                    passed[node] = curve.passed(weight, expected);
                    own[parent] = own[parent].plus(&passed[node]);
                }
                None => own[node] = curve,
            }
        }
        let mut dates = vec![own[0].zero(); nodes.len()];
        let (mut cost, mut slope) = (0.0, 0.0);
        for node in 1..nodes.len() {
            let above = dates[nodes[node].parent.unwrap_or(0)];
            let (weight, expected) = branch(node);
            let [pull, _] = passed[node].values(above);
            let best = above + (expected - pull / weight).max(0.0);
            let bounds = self.bounds[node];
            dates[node] = best.max(bounds.earliest).min(bounds.latest);
            let duration = dates[node] - above;
            let [length, variance] = branches[node];
            let off = length - rate * duration;
            cost += off * off / variance;
            slope -= 2.0 * off * duration / variance;
        }
        Fit {
            rate,
            dates,
            cost,
            slope,
        }
    }

    /// Branches as they could have been under a fit. Variances are those of the fit's lengths:
    /// drawn ones would give more weight to what is drawn too short, and a lower rate.
    pub(super) fn drawn(&self, fit: &Fit, options: &ClockOptions, index: u32) -> Vec<Branch> {
        let seed = options.seed.wrapping_add(u64::from(index) + 1);
        let mut random = Random::new(sidecore_random::mix(seed));
        // Log-normal rates of mean 1 with this standard deviation.
        let square = libm::log1p(options.spread * options.spread);
        let nodes = self.tree.nodes().iter().enumerate();
        let drawn = nodes.map(|(node, own)| {
            let above = own
                .parent
                .map_or(fit.dates[node], |parent| fit.dates[parent]);
            let duration = (fit.dates[node] - above).max(0.0);
            let factor = libm::exp(square.sqrt() * normal(&mut random) - 0.5 * square);
            let (length, sites) = (fit.rate * duration, self.sites);
            let drawn = poisson(&mut random, sites * length * factor) / sites;
            [drawn, variance(length, sites)]
        });
        drawn.collect()
    }
}

/// The variance of a branch of this length, in an alignment of these sites.
fn variance(length: f64, sites: f64) -> f64 {
    (length + SMOOTHING / sites) / sites
}

/// A function of a date that never falls, of straight pieces: the derivative of a least cost.
#[derive(Debug, Clone)]
struct Curve {
    /// Dates and values, both in ascending order; at least one. Two of the same date are a jump.
    knots: Vec<[f64; 2]>,
    /// Slope before the first knot; infinite where no earlier date is allowed.
    before: f64,
    /// Slope after the last; infinite where no later date is allowed.
    after: f64,
}

impl Curve {
    /// Of a clade without any date: all dates cost the same.
    fn flat() -> Self {
        Self {
            knots: vec![[0.0, 0.0]],
            before: 0.0,
            after: 0.0,
        }
    }

    fn first(&self) -> [f64; 2] {
        self.knots[0]
    }

    fn last(&self) -> [f64; 2] {
        self.knots[self.knots.len() - 1]
    }

    /// The last date that is allowed.
    fn end(&self) -> f64 {
        match self.after.is_infinite() {
            true => self.last()[0],
            false => f64::INFINITY,
        }
    }

    /// The values just before and just after a date; the knot's at an end.
    fn values(&self, date: f64) -> [f64; 2] {
        let (first, last) = (self.first(), self.last());
        if date < first[0] {
            return [first[1] - self.before * (first[0] - date); 2];
        }
        if date > last[0] {
            return [last[1] + self.after * (date - last[0]); 2];
        }
        let low = self.knots.partition_point(|knot| knot[0] < date);
        let high = self.knots.partition_point(|knot| knot[0] <= date);
        if low < high {
            return [self.knots[low][1], self.knots[high - 1][1]];
        }
        // Between two knots of different dates: `low` is neither the first nor behind the last.
        let ([t, y], [next, to]) = (self.knots[low - 1], self.knots[low]);
        [y + (to - y) * (date - t) / (next - t); 2]
    }

    /// The sum of two functions, where both are allowed.
    fn plus(&self, other: &Self) -> Self {
        let end = self.end().min(other.end());
        let all = self.knots.iter().chain(&other.knots).map(|knot| knot[0]);
        let mut dates: Vec<f64> = all.filter(|date| *date < end).collect();
        if end.is_finite() {
            dates.push(end);
        }
        dates.sort_by(f64::total_cmp);
        dates.dedup();
        let mut knots = Vec::with_capacity(dates.len());
        for date in dates {
            let [a, b] = [self.values(date), other.values(date)];
            let (low, high) = (a[0] + b[0], a[1] + b[1]);
            knots.push([date, low]);
            if high > low {
                knots.push([date, high]);
            }
        }
        Self {
            knots,
            before: self.before + other.before,
            after: match end.is_finite() {
                true => f64::INFINITY,
                false => self.after + other.after,
            },
        }
    }

    /// The same within bounds that leave a date.
    fn within(mut self, bounds: Bounds) -> Self {
        let (earliest, latest) = (bounds.earliest, bounds.latest);
        if earliest.is_finite() {
            let [_, value] = self.values(earliest);
            self.knots.retain(|knot| knot[0] > earliest);
            self.knots.insert(0, [earliest, value]);
            self.before = f64::INFINITY;
        }
        if latest < self.end() {
            let [value, _] = self.values(latest);
            self.knots.retain(|knot| knot[0] < latest);
            self.knots.push([latest, value]);
            self.after = f64::INFINITY;
        }
        self
    }

    /// As a function of the date of the node above, by a branch of this twofold weight that is
    /// expected to last so long: at a value `y` it lasts `expected - y / weight`, and never less
    /// than 0.
    fn passed(&self, weight: f64, expected: f64) -> Self {
        // From this value on the branch lasts no time.
        let none = weight * expected;
        let (first, last) = (self.first(), self.last());
        let mut knots: Vec<[f64; 2]> = Vec::with_capacity(self.knots.len() + 2);
        let mut push = |date: f64, value: f64| {
            // Exact where it lasts no time: the node above may have this very date.
            let above = match value < none {
                true => date - (expected - value / weight).max(0.0),
                false => date,
            };
            // Rounding must not bring knots out of order.
            let least = knots.last().map_or(f64::NEG_INFINITY, |knot| knot[0]);
            knots.push([above.max(least), value]);
        };
        if first[1] > none && self.before > 0.0 {
            push(first[0] - (first[1] - none) / self.before, none);
        }
        for (at, &[date, value]) in self.knots.iter().enumerate() {
            push(date, value);
            if let Some(&[next, to]) = self.knots.get(at + 1)
                && value < none
                && to > none
            {
                push(date + (next - date) * (none - value) / (to - value), none);
            }
        }
        if last[1] < none && self.after > 0.0 {
            push(last[0] + (none - last[1]) / self.after, none);
        }
        let before = match self.before.is_infinite() {
            true => weight,
            false => self.before * weight / (self.before + weight),
        };
        Self {
            knots,
            before,
            after: self.after,
        }
    }

    /// The first date at which it is 0, or as near to that as is allowed.
    fn zero(&self) -> f64 {
        let at = self.knots.partition_point(|knot| knot[1] < 0.0);
        let ([date, value], slope) = match at {
            0 => (self.first(), self.before),
            at if at == self.knots.len() => (self.last(), self.after),
            at => {
                let ([t, y], [next, to]) = (self.knots[at - 1], self.knots[at]);
                return t + (next - t) * y / (y - to);
            }
        };
        // An infinite slope leaves the knot's date.
        match slope > 0.0 {
            true => date - value / slope,
            false => date,
        }
    }
}

/// A standard normal number.
fn normal(random: &mut Random) -> f64 {
    let (radius, angle) = (random.unit(), random.unit());
    (-2.0 * libm::log1p(-radius)).sqrt() * libm::cos(2.0 * PI * angle)
}

/// A Poisson number; of a large mean the nearest whole number to a normal one.
fn poisson(random: &mut Random, mean: f64) -> f64 {
    if mean <= 0.0 {
        return 0.0;
    }
    if mean > NORMAL_FROM {
        return (mean + mean.sqrt() * normal(random)).round().max(0.0);
    }
    let least = libm::exp(-mean);
    let (mut product, mut count) = (1.0, 0.0);
    loop {
        product *= 1.0 - random.unit();
        if product < least {
            return count;
        }
        count += 1.0;
    }
}

/// Substitutions that are added to each branch for its variance, so that short ones do not count
/// without bound.
const SMOOTHING: f64 = 10.0;
/// Share of the whole below which a derivative counts as 0.
const FLAT: f64 = 1e-12;
/// The same for rates far from the best one: more than what rounding leaves of a year's number
/// where branches last days, and less than tips give that span a millionth of the tree's time.
const OPEN: f64 = 1e-9;
/// From the first guess of a rate; farther off, durations have no digits left.
const DOUBLINGS_MAX: u32 = 30;
const ROUNDS_MAX: usize = 200;
/// Mean from which on a Poisson number is as good as a normal one.
const NORMAL_FROM: f64 = 500.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// No dates and no rate near the found ones cost less, whichever bounds hold.
    #[test]
    fn nothing_costs_less() {
        let tree = Newick::parse(
            "(((a:0.01,b:0.3):0,(c:0.02,d:0.1):0.2):0.05,\
             ((e:0.4,f:0.02):0.001,(g:0.1,h:0.2):0.3):0.1);",
        )
        .unwrap();
        let dates =
            "a 10\nb 3\nc 12\nd b(2,9)\ne 11\nf u(8)\ng 9\nmrca(a,b) l(1)\nmrca(e,h) b(-3,4)";
        let options = ClockOptions::new(200);
        let (clock, _) = Clock::new(&tree, &Dates::parse(dates).unwrap(), &options).unwrap();
        let best = clock.fit(&clock.branches, None).unwrap();
        let nodes = tree.nodes();
        let cost = |dates: &[f64], rate: f64| {
            let terms = (1..nodes.len()).map(|node| {
                let duration = dates[node] - dates[nodes[node].parent.unwrap()];
                let [length, variance] = clock.branches[node];
                let off = length - rate * duration;
                off * off / variance
            });
            terms.sum::<f64>()
        };
        let is_allowed = |dates: &[f64], slack: f64| {
            (0..nodes.len()).all(|node| {
                let own = clock.bounds[node];
                let parent = nodes[node].parent.map_or(f64::NEG_INFINITY, |at| dates[at]);
                (own.earliest - slack..=own.latest + slack).contains(&dates[node])
                    && dates[node] + slack >= parent
            })
        };
        assert!(is_allowed(&best.dates, 1e-9));
        assert!((cost(&best.dates, best.rate) - best.cost).abs() < 1e-9);
        let durations =
            (1..nodes.len()).map(|node| best.dates[node] - best.dates[nodes[node].parent.unwrap()]);
        // Bounds of both kinds hold: some branches last no time.
        assert!(
            durations.clone().any(|span| span.abs() < 1e-9),
            "{:?}",
            best.dates
        );
        let mut random = Random::new(3);
        let mut tried = 0;
        for round in 0..40_000 {
            let step = [1.0, 0.1, 0.01, 1e-3][round % 4];
            let one = random.index(nodes.len());
            let mut moved = best.dates.clone();
            let shift = step * (random.unit() - 0.5);
            // One node, or a node with all that is below it.
            for node in one..nodes.len() {
                let above = nodes[node].parent;
                let moves_along = round % 3 == 0
                    && above.is_some_and(|at| at >= one && moved[at] != best.dates[at]);
                if node == one || moves_along {
                    moved[node] += shift;
                }
            }
            let rate = best.rate * (1.0 + 0.1 * step * (random.unit() - 0.5));
            if is_allowed(&moved, 0.0) {
                tried += 1;
                let other = cost(&moved, rate);
                assert!(
                    other >= best.cost - 1e-9,
                    "{other} {}: {moved:?}",
                    best.cost
                );
            }
        }
        assert!(tried > 2_000, "{tried}");
        // The derivative is that of the cost.
        let [one, other] = [0.9, 0.9001].map(|share| clock.at(&clock.branches, share * best.rate));
        let slope = (other.cost - one.cost) / (other.rate - one.rate);
        assert!(
            (slope / one.slope - 1.0).abs() < 1e-2,
            "{slope} {}",
            one.slope
        );
    }

    /// A node above with the same date would else have none that is allowed.
    #[test]
    fn a_known_date_is_the_last_one_of_the_node_above() {
        let exactly = Bounds {
            earliest: 0.0,
            latest: 0.0,
        };
        let own = Curve::flat().within(exactly);
        for step in 1..2_000 {
            let step = f64::from(step);
            let passed = own.passed(1.0 + 0.37 * step, 0.013 * step);
            assert_eq!(passed.end().to_bits(), 0.0_f64.to_bits());
            let both = passed.within(exactly).passed(3.0, 0.1);
            assert_eq!(both.end().to_bits(), 0.0_f64.to_bits());
            assert!(both.knots.iter().flatten().all(|own| own.is_finite()));
        }
    }

    #[test]
    fn poisson_numbers_have_their_mean_and_variance() {
        let mut random = Random::new(7);
        for mean in [0.3, 4.0, 200.0, 2_000.0] {
            let drawn: Vec<f64> = (0..20_000).map(|_| poisson(&mut random, mean)).collect();
            let average = drawn.iter().sum::<f64>() / 20_000.0;
            let squares = drawn.iter().map(|own| (own - average) * (own - average));
            let variance = squares.sum::<f64>() / 20_000.0;
            assert!((average / mean - 1.0).abs() < 0.03, "{mean}: {average}");
            assert!((variance / mean - 1.0).abs() < 0.06, "{mean}: {variance}");
        }
        assert_eq!(poisson(&mut random, 0.0), 0.0);
    }
}
