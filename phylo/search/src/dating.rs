//! Dates of a tree's nodes: a clock fitted to the branch lengths by least squares.
//!
//! A branch of length `b` that lasts from one date to another is expected to have the length `rate *
//! duration`. The fit is that of the least sum of squared differences, each divided by the variance
//! of the length, `(b + c / s) / s` for `s` sites with `c = 10`. No node is younger than its
//! descendants, and known dates are kept: those of tips, and any bounds of inner nodes.
//!
//! For a given rate that is a convex problem on a tree, and is solved exactly: from the tips to the
//! root each clade's least cost is a function of the date of the node above it, and what is passed on
//! is that function's derivative, which is piecewise linear and never falls ([`Curve`]). The least
//! cost is a convex function of the rate, too, so the rate is where its derivative is 0.
//! Confidence comes from replicates of lengths that are drawn under the fit (a Poisson number of
//! substitutions, at rates that vary from branch to branch), dated in the same way.
//!
//! Must stay true: the text's root is the root; one seed, one result, on any number of engines.
//! Sources: To, Jung, Lycett and Gascuel, "Fast dating using least-squares criteria and algorithms",
//! Systematic Biology 65 (2016), 82-97, for the criterion, the variances and the confidence.
//!
//! ```
//! use sidecore_phylo::dating::{ClockOptions, Dates, date};
//! use sidecore_phylo::newick::Newick;
//! use sidecore_phylo::runner::Serial;
//!
//! let tree = Newick::parse("(a:0.01,b:0.03);")?;
//! let dates = Dates::parse("a 2000\nb 2010\n")?;
//! let found = date(&tree, &dates, &ClockOptions::new(1_000), &Serial)?;
//! assert!((found.rate - 0.002).abs() < 1e-9 && (found.root_date - 1995.0).abs() < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dates;

pub use dates::Dates;

use crate::newick::Newick;
use crate::random::Random;
use crate::rooting::{Method, RootError, as_text, root};
use crate::runner::{Runner, Work};
use dates::Bounds;
use sidecore_bare::width::ToU64;
use sidecore_offload::OffloadError;
use std::f64::consts::PI;

/// Errors that keep a tree from being dated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatingError {
    /// A line that gives no date.
    #[error("line {line}: `{text}` is no date; dates are 2013.5, 2013-05-31, 2013-05, b(2012,2013)")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// A name that ends in no date.
    #[error("the name `{label}` does not end in a date behind `|`, `@`, `_` or `/`")]
    Name {
        /// The tip.
        label: String,
    },
    /// An ancestor of taxa that the tree does not have.
    #[error("the tree has no `{label}`, whose ancestor has a date")]
    Unknown {
        /// The label.
        label: String,
    },
    /// Dates of nobody.
    #[error("no date is of a node of the tree")]
    NoDates,
    /// A rate cannot be found.
    #[error("all dates are the same, so that any rate fits: give --rate, or the date of an ancestor")]
    OneDate,
    /// Bounds that no date satisfies.
    #[error("the dates of `{label}` exclude each other, or those of its descendants")]
    Excluded {
        /// The node, or a tip below it.
        label: String,
    },
    /// A branch without a length.
    #[error("a branch of the tree has no length, or one below 0")]
    NoLength,
    /// Later tips are not farther from the root.
    #[error(
        "the lengths have no signal of time: later tips are not farther from the root; look at the \
         root (phylo root), or give --rate"
    )]
    NoSignal,
    /// An engine failed.
    #[error("the loop over replicates failed: {0}")]
    Offload(#[from] OffloadError),
}

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

/// A tree with dates.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Dated {
    /// The rate, in substitutions a site and unit of time.
    pub rate: f64,
    /// 95 % of the replicates' rates; none without replicates.
    pub rate_interval: Option<[f64; 2]>,
    /// The date of the root.
    pub root_date: f64,
    /// 95 % of the replicates' dates of it.
    pub root_interval: Option<[f64; 2]>,
    /// The sum of squares.
    pub cost: f64,
    /// Dates of labels that the tree does not have.
    pub dates_unused: usize,
    nodes: Vec<NodeDate>,
    /// The tree; lengths are durations.
    #[serde(serialize_with = "as_text")]
    pub tree: Newick,
}

/// A node's date.
#[derive(Debug, Clone, serde::Serialize)]
struct NodeDate {
    /// A tip's or a node's label; else `Node` and a number, in the order of the text.
    name: String,
    /// Of an inner node two tips whose last common ancestor it is.
    of: Vec<String>,
    date: f64,
    interval: Option<[f64; 2]>,
}

impl Dated {
    /// The dates as a table: a heading, then a line a node, with tabs between; `NA` where there is
    /// no value.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = "name\tancestor_of\tdate\tearliest\tlatest\n".to_owned();
        for node in &self.nodes {
            let ends = match node.interval {
                Some([low, high]) => format!("{low:.6}\t{high:.6}"),
                None => "NA\tNA".to_owned(),
            };
            let of = node.of.join(",");
            text.push_str(&format!("{}\t{of}\t{:.6}\t{ends}\n", node.name, node.date));
        }
        text
    }
}

/// Dates a rooted tree of any shape. Blocks.
///
/// # Errors
/// [`DatingError`].
pub fn date(
    tree: &Newick,
    dates: &Dates,
    options: &ClockOptions,
    runner: &impl Runner,
) -> Result<Dated, DatingError> {
    let (clock, unused) = Clock::new(tree, dates, options)?;
    let best = clock.fit(&clock.lengths, options.rate)?;
    let mut items: Vec<(u32, Option<Fit>)> = (0..options.replicates).map(|k| (k, None)).collect();
    runner.run(Work::Support, &mut items, |(index, found)| {
        // A replicate without a signal says nothing of the dates.
        *found = clock.fit(&clock.drawn(&best, options, *index), options.rate).ok();
    })?;
    let found: Vec<Fit> = items.into_iter().filter_map(|(_, found)| found).collect();
    let at = |node: usize| interval(best.dates[node], found.iter().map(|one| one.dates[node]));
    let mut dated = tree.clone();
    for (node, own) in tree.nodes().iter().enumerate() {
        let duration = own.parent.map(|parent| best.dates[node] - best.dates[parent]);
        // To ten decimals, as trees are written elsewhere; rounding may leave a little below 0.
        let duration = duration.map(|span| (1e10 * span.max(0.0)).round() / 1e10);
        dated.set_length(node, duration);
    }
    let inner = tree.nodes().iter().scan(0, |inner, own| {
        *inner += usize::from(!own.children.is_empty());
        Some(*inner)
    });
    let nodes = inner.enumerate().map(|(node, number)| {
        let own = &tree.nodes()[node];
        let of = match own.children[..] {
            [] => Vec::new(),
            [one] => vec![first_tip(tree, one)],
            [first, .., last] => vec![first_tip(tree, first), first_tip(tree, last)],
        };
        // Numbers are supports, not names.
        let is_named = !own.label.is_empty() && (of.is_empty() || own.label.parse::<f64>().is_err());
        NodeDate {
            name: match is_named {
                true => own.label.clone(),
                false => format!("Node{number}"),
            },
            of,
            date: best.dates[node],
            interval: at(node),
        }
    });
    Ok(Dated {
        rate: best.rate,
        rate_interval: interval(best.rate, found.iter().map(|one| one.rate)),
        root_date: best.dates[0],
        root_interval: at(0),
        cost: best.cost,
        dates_unused: unused,
        nodes: nodes.collect(),
        tree: dated,
    })
}

/// Roots a tree by an outgroup and removes that: what is left has a root that the lengths say.
///
/// # Errors
/// [`RootError`].
pub fn without_outgroup(tree: &Newick, outgroup: Vec<String>) -> Result<Newick, RootError> {
    let rooted = root(tree, &Method::Outgroup(outgroup.clone()))?.tree;
    let nodes = rooted.nodes();
    let is_kept = |child: &usize| !outgroup.contains(&first_tip(&rooted, *child));
    let kept = nodes[0].children.iter().copied().find(is_kept).unwrap_or(0);
    let mut made = Newick::root(String::new());
    let mut new = vec![None; nodes.len()];
    new[kept] = Some(0);
    for (node, own) in nodes.iter().enumerate().skip(kept + 1) {
        if let Some(parent) = own.parent.and_then(|parent| new[parent]) {
            new[node] = Some(made.push(parent, own.label.clone(), own.length));
        }
    }
    Ok(made)
}

/// Approximate bytes of memory that the dating of a tree takes on each engine.
#[must_use]
pub fn dating_bytes(tree: &Newick) -> u64 {
    let nodes = tree.nodes();
    let mut below = vec![1_u64; nodes.len()];
    let mut sum = 0_u64;
    for (node, own) in nodes.iter().enumerate().rev() {
        sum = sum.saturating_add(below[node]);
        if let Some(parent) = own.parent {
            below[parent] += below[node];
        }
    }
    // A clade adds at most two knots for each of its branches.
    sum.saturating_mul(2 * size_of::<[f64; 2]>().to_u64())
}

/// The label of the first tip at or below a node.
fn first_tip(tree: &Newick, mut node: usize) -> String {
    while let Some(&child) = tree.nodes()[node].children.first() {
        node = child;
    }
    tree.nodes()[node].label.clone()
}

/// The range of 95 % of the values, and of the estimate in any case; none without values.
fn interval(estimate: f64, values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let cut = values.len() / 40;
    let (low, high) = (values.get(cut)?, values.get(values.len() - 1 - cut)?);
    Some([low.min(estimate), high.max(estimate)])
}

/// A tree, and what is known of its dates.
struct Clock<'t> {
    tree: &'t Newick,
    /// For each node its branch's length; 0 of the root.
    lengths: Vec<f64>,
    bounds: Vec<Bounds>,
    sites: f64,
    /// Time between the first and the last of the known dates; 0 where there is one.
    span: f64,
}

/// A clock that was fitted.
struct Fit {
    rate: f64,
    dates: Vec<f64>,
    cost: f64,
    /// The derivative of the cost by the rate.
    slope: f64,
}

impl<'t> Clock<'t> {
    /// Gives the number of dates that are not of the tree, too.
    fn new(
        tree: &'t Newick,
        dates: &Dates,
        options: &ClockOptions,
    ) -> Result<(Self, usize), DatingError> {
        let (bounds, unused) = dates.of_nodes(tree)?;
        let nodes = tree.nodes().iter().enumerate();
        let lengths = nodes.map(|(node, own)| match node {
            0 => Ok(0.0),
            _ => own.length.filter(|length| *length >= 0.0),
        }
        .ok_or(DatingError::NoLength));
        let lengths = lengths.collect::<Result<_, _>>()?;
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
            lengths,
            bounds,
            // No one counts more sites than doubles hold.
            sites: options.sites.max(1) as f64,
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

    fn variance(&self, length: f64) -> f64 {
        (length + SMOOTHING / self.sites) / self.sites
    }

    /// The dates of the least cost, at a rate or at the best one.
    fn fit(&self, lengths: &[f64], rate: Option<f64>) -> Result<Fit, DatingError> {
        if let Some(rate) = rate {
            return Ok(self.at(lengths, rate));
        }
        let whole: f64 = (lengths.iter()).map(|&own| own * own / self.variance(own)).sum();
        let is_flat = |fit: &Fit| fit.slope.abs() * fit.rate <= FLAT * whole;
        let mut near = self.at(lengths, self.guess(lengths));
        // From the guess on, by factors of 2 to both sides of the least cost.
        let factor = if near.slope > 0.0 { 0.5 } else { 2.0 };
        let mut doublings = 0;
        let far = loop {
            if is_flat(&near) {
                return Ok(near);
            }
            let next = self.at(lengths, near.rate * factor);
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
            let found = self.at(lengths, rate);
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
    fn guess(&self, lengths: &[f64]) -> f64 {
        let mut far = vec![0.0; lengths.len()];
        let (mut sum, mut tips) = (0.0, 0.0);
        for (node, own) in self.tree.nodes().iter().enumerate() {
            if let Some(parent) = own.parent {
                far[node] = far[parent] + lengths[node];
            }
            if own.children.is_empty() {
                sum += far[node];
                tips += 1.0;
            }
        }
        (sum / tips).max(1.0 / self.sites) / self.span
    }

    /// The dates of the least cost at a rate.
    fn at(&self, lengths: &[f64], rate: f64) -> Fit {
        let nodes = self.tree.nodes();
        // A branch's cost is `weight * (duration - expected)^2`; twice the weight, and that duration.
        let branch = |node: usize| {
            let length = lengths[node];
            (2.0 * rate * rate / self.variance(length), length / rate)
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
            let (off, variance) = (lengths[node] - rate * duration, self.variance(lengths[node]));
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

    /// Lengths as they could have been under a fit.
    fn drawn(&self, fit: &Fit, options: &ClockOptions, index: u32) -> Vec<f64> {
        let seed = options.seed.wrapping_add(u64::from(index) + 1);
        let mut random = Random::new(sidecore_random::mix(seed));
        // Log-normal rates of mean 1 with this standard deviation.
        let square = libm::log1p(options.spread * options.spread);
        let nodes = self.tree.nodes().iter().enumerate();
        let drawn = nodes.map(|(node, own)| {
            let above = own.parent.map_or(fit.dates[node], |parent| fit.dates[parent]);
            let duration = (fit.dates[node] - above).max(0.0);
            let factor = libm::exp(square.sqrt() * normal(&mut random) - 0.5 * square);
            poisson(&mut random, self.sites * fit.rate * duration * factor) / self.sites
        });
        drawn.collect()
    }
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
            let above = date - (expected - value / weight).max(0.0);
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
const DOUBLINGS_MAX: u32 = 60;
const ROUNDS_MAX: usize = 200;
/// Mean from which on a Poisson number is as good as a normal one.
const NORMAL_FROM: f64 = 500.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Serial;

    fn parse(text: &str) -> Newick {
        Newick::parse(text).unwrap()
    }

    fn dated(tree: &str, dates: &str, options: &ClockOptions) -> Result<Dated, DatingError> {
        date(&parse(tree), &Dates::parse(dates).unwrap(), options, &Serial)
    }

    #[test]
    fn a_clock_is_found_again() {
        let tree = "((a:0.02,b:0.01)X:0.01,(c:0.03,(d:0.005,e:0.01)90:0.01)80:0.005);";
        let dates = "a 2003\nb 2002\nc 2003.5\nd 2002\ne 2002.5\nf 1999\n";
        let found = dated(tree, dates, &ClockOptions::new(500)).unwrap();
        assert!((found.rate - 0.01).abs() < 1e-9, "{found:?}");
        assert!((found.root_date - 2000.0).abs() < 1e-6, "{found:?}");
        assert!(found.cost < 1e-12 && found.dates_unused == 1);
        let lengths = |text: &str| {
            let tree = parse(text);
            let nodes = tree.nodes().iter().skip(1);
            nodes.map(|node| node.length.unwrap()).collect::<Vec<_>>()
        };
        let pairs = lengths(tree).into_iter().zip(lengths(&found.tree.to_string()));
        assert!(pairs.into_iter().all(|(length, years)| (length - 0.01 * years).abs() < 1e-8));
        let table = found.table();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(rows[1], ["Node1", "a,c", "2000.000000", "NA", "NA"]);
        assert_eq!(rows[2][..3], ["X", "a,b", "2001.000000"]);
        assert_eq!(rows[4][..3], ["b", "", "2002.000000"]);
        assert_eq!(rows[5][..2], ["Node3", "c,d"]);
    }

    /// Two tips have a clock that fits both exactly, unless the later one is nearer.
    #[test]
    fn two_tips_by_hand() {
        let options = ClockOptions::new(100);
        let found = dated("(a:0.3,b:0.5);", "a 0\nb 8", &options).unwrap();
        assert!((found.rate - 0.025).abs() < 1e-9 && (found.root_date + 12.0).abs() < 1e-6);
        let none = dated("(a:0.5,b:0.3);", "a 0\nb 8", &options).unwrap_err();
        assert!(matches!(none, DatingError::NoSignal), "{none}");
        let one = dated("((a:1,b:1):1,c:2);", "a 5\nb 5\nc 5", &options).unwrap_err();
        assert!(matches!(one, DatingError::OneDate), "{one}");
        let known = ClockOptions {
            rate: Some(0.5),
            ..options
        };
        let found = dated("((a:1,b:1):1,c:2);", "a 5\nb 5\nc 5", &known).unwrap();
        assert!((found.root_date - 1.0).abs() < 1e-9);
        // An ancestor's date is enough for a rate.
        let found = dated("((a:1,b:1):1,c:2);", "a 5\nb 5\nc 5\nmrca(a,b) 3", &options).unwrap();
        assert!((found.rate - 0.5).abs() < 1e-9 && (found.root_date - 1.0).abs() < 1e-6);
    }

    /// No dates and no rate near the found ones cost less, whichever bounds hold.
    #[test]
    fn nothing_costs_less() {
        let tree = parse(
            "(((a:0.01,b:0.3):0,(c:0.02,d:0.1):0.2):0.05,((e:0.4,f:0.02):0.001,(g:0.1,h:0.2):0.3):0.1);",
        );
        let dates = "a 10\nb 3\nc 12\nd b(2,9)\ne 11\nf u(8)\ng 9\nmrca(a,b) l(1)\nmrca(e,h) b(-3,4)";
        let options = ClockOptions::new(200);
        let (clock, _) = Clock::new(&tree, &Dates::parse(dates).unwrap(), &options).unwrap();
        let best = clock.fit(&clock.lengths, None).unwrap();
        let nodes = tree.nodes();
        let cost = |dates: &[f64], rate: f64| {
            let terms = (1..nodes.len()).map(|node| {
                let duration = dates[node] - dates[nodes[node].parent.unwrap()];
                let off = clock.lengths[node] - rate * duration;
                off * off / clock.variance(clock.lengths[node])
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
        let durations = (1..nodes.len())
            .map(|node| best.dates[node] - best.dates[nodes[node].parent.unwrap()]);
        // Bounds of both kinds hold: some branches last no time.
        assert!(durations.clone().any(|span| span.abs() < 1e-9), "{:?}", best.dates);
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
                assert!(other >= best.cost - 1e-9, "{other} {}: {moved:?}", best.cost);
            }
        }
        assert!(tried > 2_000, "{tried}");
        // The derivative is that of the cost.
        let [one, other] = [0.9, 0.9001].map(|share| clock.at(&clock.lengths, share * best.rate));
        let slope = (other.cost - one.cost) / (other.rate - one.rate);
        assert!((slope / one.slope - 1.0).abs() < 1e-2, "{slope} {}", one.slope);
    }

    #[test]
    fn confidence_has_the_truth() {
        let tree = "((a:0.02,b:0.01):0.01,(c:0.03,(d:0.005,e:0.01):0.01):0.005);";
        let dates = "a 2003\nb 2002\nc 2003.5\nd 2002\ne 2002.5\n";
        let options = ClockOptions {
            replicates: 200,
            ..ClockOptions::new(2_000)
        };
        let found = dated(tree, dates, &options).unwrap();
        let [low, high] = found.rate_interval.unwrap();
        assert!(low < 0.009 && 0.011 < high && high < 0.1, "{low} {high}");
        let [low, high] = found.root_interval.unwrap();
        assert!(low < 1999.9 && 2000.1 < high && high < 2002.0, "{low} {high}");
        // With more sites they are narrower, though not without bound: rates differ.
        let long = ClockOptions {
            sites: 200_000,
            spread: 0.0,
            ..options
        };
        let [narrow, wide] = [&long, &options].map(|options| {
            let [low, high] = dated(tree, dates, options).unwrap().rate_interval.unwrap();
            high - low
        });
        assert!(narrow < 0.3 * wide, "{narrow} {wide}");
        let again = dated(tree, dates, &options).unwrap();
        assert_eq!(again.rate_interval, found.rate_interval);
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

    #[test]
    fn an_outgroup_is_removed() {
        let tree = parse("((a:1,b:2)90:3,(c:1,d:1)80:1,(x:4,y:5)70:2);");
        let outgroup = vec!["x".to_owned(), "y".to_owned()];
        let found = without_outgroup(&tree, outgroup).unwrap();
        assert_eq!(found.to_string(), "((a:1,b:2)90:3,(c:1,d:1)80:1);");
        assert!(without_outgroup(&tree, vec!["z".to_owned()]).is_err());
    }

    #[test]
    fn dates_that_exclude_each_other_are_refused() {
        let options = ClockOptions::new(100);
        let tree = "((a:1,b:1):1,c:2);";
        for dates in ["a 5\nb 6\nmrca(a,b) l(7)", "a 5\na 6\nb 7"] {
            let error = dated(tree, dates, &options).unwrap_err();
            assert!(matches!(error, DatingError::Excluded { .. }), "{error}");
        }
        let error = dated("(a,b:1);", "a 1\nb 2", &options).unwrap_err();
        assert!(matches!(error, DatingError::NoLength), "{error}");
        let error = dated(tree, "z 1", &options).unwrap_err();
        assert!(matches!(error, DatingError::NoDates), "{error}");
    }
}
