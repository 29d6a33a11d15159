//! Fits of classes of branch lengths, by expectation maximisation from several starts.
//!
//! Why several: each way to part the sites among the classes has a maximum of its own. Rates across
//! sites give the first start, and others differ from it by random factors of the lengths. All
//! climb coarsely, and the best go on to the end.
//! Must stay true: no step lowers the log-likelihood; the same data give the same result.

use super::{ClassedModel, Shares, TreesModel};
use crate::evaluation::Fit;
use crate::likelihood::{
    Lengths, Likelihood, LikelihoodError, Options, Part, PartOptions, SiteClasses,
    optimise_shared_model,
};
use crate::model::{Model, ModelName, RatesName};
use crate::msa::Patterns;
use crate::random::Random;
use crate::runner::Runner;
use crate::tree::Tree;

/// A fit under way: a partition a class, and the weights.
pub(super) struct Classes<R> {
    pub(super) likelihood: Likelihood<R>,
    pub(super) weights: Vec<f64>,
    fixed_weights: bool,
    /// Number of times that each pattern is in the alignment.
    counts: Vec<f64>,
}

/// Logarithms of the classes' lengths, branch by branch, then of their weights.
type Point = Vec<f64>;

/// Lengths, weights and models, and their log-likelihood.
struct Kept {
    point: Point,
    models: Vec<Model>,
    lnl: f64,
}

/// Fits lengths, and with [`Fit::All`] the models, on a tree.
pub(super) fn fitted<R: Runner + Copy>(
    tree: &Tree,
    patterns: &Patterns,
    model: &ClassedModel,
    (fit, epsilon): (Fit, f64),
    runner: R,
) -> Result<(Classes<R>, Shares), LikelihoodError> {
    let mut classes = Classes::begin(tree, patterns, model, runner)?;
    let one = model.names.iter().all(|name| name == model.first());
    // The tree as it is: no fit may end below it.
    let given = classes.shares()?.lnl;
    let mut best = classes.kept(given);
    let coarse = epsilon.max(COARSE);
    let (starts, rated) = classes.starts(tree, patterns, model, (fit, runner))?;
    let mut tops = Vec::new();
    for (number, start) in starts.iter().enumerate() {
        classes.take(start);
        // Lengths and weights first: models that are fitted before the classes differ keep them
        // equal.
        SiteClasses(&mut classes.likelihood).link_models(one);
        let mut shares = classes.climb(Fit::Branches, coarse)?;
        // From linked models the others may come to a top of their own.
        if fit == Fit::All && one && !model.linked && number < rated {
            classes.climb(fit, coarse)?;
        }
        SiteClasses(&mut classes.likelihood).link_models(model.linked);
        if fit == Fit::All {
            shares = classes.climb(fit, coarse)?;
        }
        tops.push(classes.kept(shares.lnl));
    }
    // A coarse climb of rates says little of its end; of the random ones the best go on.
    tops[rated..].sort_by(|a, b| b.lnl.total_cmp(&a.lnl));
    for top in tops.iter().take(rated + ENDED) {
        classes.take(top);
        let lnl = classes.climb(fit, epsilon)?.lnl;
        if lnl > best.lnl {
            best = classes.kept(lnl);
        }
    }
    classes.take(&best);
    let shares = classes.shares()?;
    Ok((classes, shares))
}

/// The models that a fit of rates across sites found, as those of classes without such rates.
fn without_rates<R: Runner>(likelihood: &Likelihood<R>, found: &Model) -> Vec<Model> {
    let own = |part: &Part| {
        let mut own = part.model().clone();
        // The numbers of rates come last, behind those that the two have in common.
        let mut numbers = found.numbers();
        numbers.truncate(own.numbers().len());
        let same = own.name().exchange == found.name().exchange
            && own.name().frequencies == found.name().frequencies
            && own.class_weights().is_empty();
        match same && own.set_numbers(&numbers) {
            true => own,
            false => part.model().clone(),
        }
    };
    likelihood.parts().iter().map(own).collect()
}

impl<R: Runner + Copy> Classes<R> {
    /// Equal weights unless they are given, and the tree's lengths.
    fn begin(
        tree: &Tree,
        patterns: &Patterns,
        model: &ClassedModel,
        runner: R,
    ) -> Result<Self, LikelihoodError> {
        let part = |name| PartOptions::new(ModelName::clone(name), patterns.clone());
        let parts = model.names.iter().map(part).collect();
        let options = Options::default();
        let mut likelihood = Likelihood::partitioned(tree.clone(), parts, runner, options)?;
        likelihood.set_lengths(Lengths::Unlinked);
        let counts = patterns.weights().iter().copied().map(f64::from).collect();
        Ok(Self {
            likelihood,
            weights: model.first_weights(),
            fixed_weights: model.weights.is_some(),
            counts,
        })
    }

    /// Rates across sites as classes, under the models at the start and under those that they were
    /// fitted with, and their number; then these and equal rates in turn, with random factors of
    /// each length.
    fn starts(
        &self,
        tree: &Tree,
        patterns: &Patterns,
        model: &ClassedModel,
        (fit, runner): (Fit, R),
    ) -> Result<(Vec<Kept>, usize), LikelihoodError> {
        let mut name = model.first().clone();
        name.rates = RatesName::Free {
            categories: model.names.len(),
            given: None,
        };
        let (start, options) = (Model::new(name, patterns), Options::default());
        let mut rates = Likelihood::new(tree.clone(), patterns.clone(), start, runner, options)?;
        rates.optimise(START_EPSILON)?;
        let (tree, found) = (rates.tree(), rates.parts()[0].model());
        let process = found.process();
        let mut random = Random::new(SEED);
        let mut point = |equal: bool, spread: f64| {
            let mut point = Vec::new();
            for edge in tree.edges() {
                // A length of 0 has no logarithm.
                let length = tree.length(edge).max(1e-6);
                for rate in &process.rates {
                    let rate = if equal { 1.0 } else { rate.max(1e-3) };
                    point.push(libm::log(length * rate) + spread * normal(&mut random));
                }
            }
            let weight = |weight: &f64| if equal { 0.0 } else { libm::log(*weight) };
            point.extend(process.weights.iter().map(weight));
            point
        };
        let parts = self.likelihood.parts().iter();
        let first: Vec<Model> = parts.map(|part| part.model().clone()).collect();
        let lnl = f64::NEG_INFINITY;
        let kept = |point, models: &Vec<Model>| Kept {
            point,
            models: models.clone(),
            lnl,
        };
        let mut starts = Vec::new();
        let mut models = &first;
        let fitted = without_rates(&self.likelihood, found);
        // Where models are not fitted they stay as they are.
        if fit == Fit::All {
            starts.push(kept(point(false, 0.0), &first));
            models = &fitted;
        }
        starts.push(kept(point(false, 0.0), models));
        let rated = starts.len();
        for (equal, spread) in RANDOM {
            starts.push(kept(point(equal, spread), models));
        }
        Ok((starts, rated))
    }

    fn kept(&self, lnl: f64) -> Kept {
        let parts = self.likelihood.parts().iter();
        Kept {
            point: self.point(),
            models: parts.map(|part| part.model().clone()).collect(),
            lnl,
        }
    }

    fn take(&mut self, kept: &Kept) {
        for (part, model) in kept.models.iter().enumerate() {
            self.likelihood.set_model(part, model.clone());
        }
        self.set_point(&kept.point);
    }

    fn point(&self) -> Point {
        let tree = self.likelihood.tree();
        let own = |edge| {
            let of_class = move |class| libm::log(tree.length(edge) * tree.factor(class, edge));
            (0..self.weights.len()).map(of_class)
        };
        let lengths = tree.edges().flat_map(own);
        lengths
            .chain(self.weights.iter().map(|weight| libm::log(*weight)))
            .collect()
    }

    fn set_point(&mut self, point: &[f64]) {
        let classes = self.weights.len();
        let (lengths, weights) = point.split_at(point.len() - classes);
        let (mut means, mut factors) = (Vec::new(), vec![Vec::new(); classes]);
        for own in lengths.chunks_exact(classes) {
            // A leap may end anywhere; lengths stay where the likelihood can be computed.
            let own: Vec<f64> = own
                .iter()
                .map(|log| libm::exp(*log).clamp(1e-6, 100.0))
                .collect();
            // The likelihood keeps one mean for each branch, and a factor for each class.
            let mean = own.iter().sum::<f64>() / classes as f64;
            means.push(mean);
            let each = factors.iter_mut().zip(own);
            each.for_each(|(factors, own)| factors.push(own / mean));
        }
        self.likelihood.restore_lengths((means, factors));
        if !self.fixed_weights {
            // A leap does not keep the sum of the weights, which is 1.
            let sum: f64 = weights.iter().map(|log| libm::exp(*log)).sum();
            let each = self.weights.iter_mut().zip(weights);
            each.for_each(|(weight, log)| *weight = libm::exp(*log) / sum);
        }
    }

    fn shares(&mut self) -> Result<Shares, LikelihoodError> {
        let mut own = Vec::new();
        for class in 0..self.weights.len() {
            own.push(SiteClasses(&mut self.likelihood).log_likelihoods(class)?);
        }
        Ok(Shares::of(&own, &self.weights, &self.counts))
    }

    /// Fits everything to the patterns' shares.
    fn step(&mut self, fit: Fit, shares: &Shares) -> Result<(), LikelihoodError> {
        let classes = self.weights.len();
        let total: f64 = self.counts.iter().sum();
        for class in 0..classes {
            // Expectation: a class's share of a pattern is the pattern's weight in its fit.
            let own = shares.classes.iter().skip(class).step_by(classes);
            let own: Vec<f64> = own
                .zip(&self.counts)
                .map(|(share, count)| share * count)
                .collect();
            // A class of weight 0 would have no logarithm, and would never come back.
            if !self.fixed_weights {
                self.weights[class] = (own.iter().sum::<f64>() / total).max(WEIGHT_LEAST);
            }
            SiteClasses(&mut self.likelihood).set_weights(class, &own);
        }
        // One pass: the shares change anyway before the lengths are exact.
        self.likelihood.optimise_lengths(STEP_EPSILON, 1)?;
        if fit == Fit::All {
            self.likelihood.optimise_models(STEP_EPSILON)?;
        }
        Ok(())
    }

    /// Steps until a cycle of them gains little.
    fn climb(&mut self, fit: Fit, epsilon: f64) -> Result<Shares, LikelihoodError> {
        let mut shares = self.shares()?;
        let mut last_gain = f64::INFINITY;
        for _ in 0..CYCLES_MAX {
            let before = shares.lnl;
            let start = self.point();
            self.step(fit, &shares)?;
            let first = self.point();
            shares = self.shares()?;
            self.step(fit, &shares)?;
            let second = self.point();
            shares = self.shares()?;
            // The paper's r and v: the first step, and the change from it to the second.
            let moved: Vec<f64> = first.iter().zip(&start).map(|(a, b)| a - b).collect();
            let ends = second.iter().zip(&first).zip(&moved);
            let turned: Vec<f64> = ends.map(|((b, a), moved)| b - a - moved).collect();
            let norm = |of: &[f64]| of.iter().map(|value| value * value).sum::<f64>().sqrt();
            let far = norm(&moved) / norm(&turned).max(f64::MIN_POSITIVE);
            // At 1 the leap ends at the second step; a shorter one would lose what it gained.
            let far = far.clamp(1.0, FAR_MAX);
            let leap = |k: usize| start[k] + far * (2.0 * moved[k] + far * turned[k]);
            let leap: Vec<f64> = (0..start.len()).map(leap).collect();
            self.set_point(&leap);
            let there = self.shares()?;
            // A leap that does not gain is taken back: the log-likelihood never falls.
            if there.lnl > shares.lnl {
                shares = there;
            } else {
                self.set_point(&second);
                shares = self.shares()?;
            }
            let gain = shares.lnl - before;
            // Gains fall like a geometric series: this is the sum of its rest.
            let left = gain * gain / (last_gain - gain).max(f64::MIN_POSITIVE);
            if gain < 0.1 * epsilon || gain < epsilon && left < epsilon {
                break;
            }
            last_gain = gain;
        }
        Ok(shares)
    }
}

/// Trees, each with a likelihood of all patterns, and their weights.
pub(super) struct Mixture<R: Runner> {
    pub(super) trees: Vec<Likelihood<R>>,
    pub(super) weights: Vec<f64>,
    fixed_weights: bool,
    linked: bool,
    /// Number of times that each pattern is in the alignment.
    counts: Vec<f64>,
}

impl<R: Runner + Copy> Mixture<R> {
    /// Equal weights unless they are given, and the trees' lengths.
    pub(super) fn begin(
        trees: &[Tree],
        patterns: &Patterns,
        model: &TreesModel,
        runner: R,
    ) -> Result<Self, LikelihoodError> {
        let part = Model::new(model.name.clone(), patterns);
        let made = trees.iter().map(|tree| {
            let (tree, part, options) = (tree.clone(), part.clone(), Options::default());
            Likelihood::new(tree, patterns.clone(), part, runner, options)
        });
        let equal = || vec![1.0 / trees.len() as f64; trees.len()];
        let weights = model.weights.clone().unwrap_or_else(equal);
        assert_eq!(weights.len(), trees.len(), "weights");
        Ok(Self {
            trees: made.collect::<Result<_, _>>()?,
            weights,
            fixed_weights: model.weights.is_some(),
            linked: model.linked,
            counts: patterns.weights().iter().copied().map(f64::from).collect(),
        })
    }

    pub(super) fn shares(&mut self) -> Result<Shares, LikelihoodError> {
        let mut own = Vec::new();
        for one in &mut self.trees {
            own.push(SiteClasses(one).log_likelihoods(0)?);
        }
        Ok(Shares::of(&own, &self.weights, &self.counts))
    }

    /// Fits each tree to all sites: their topologies keep them apart.
    pub(super) fn start(&mut self, fit: Fit) -> Result<(), LikelihoodError> {
        for at in 0..self.trees.len() {
            match fit {
                // Free rates have their own start within this fit.
                Fit::All if at == 0 || !self.linked => {
                    self.trees[at].optimise(START_EPSILON)?;
                }
                _ => {
                    if fit == Fit::All {
                        let model = self.trees[0].parts()[0].model().clone();
                        self.trees[at].set_model(0, model);
                    }
                    self.trees[at].optimise_lengths(START_EPSILON, START_ROUNDS)?;
                }
            }
        }
        Ok(())
    }

    /// Fits everything to the patterns' shares.
    fn step(&mut self, fit: Fit, shares: &Shares) -> Result<(), LikelihoodError> {
        let count = self.trees.len();
        let total: f64 = self.counts.iter().sum();
        for (at, one) in self.trees.iter_mut().enumerate() {
            let own = shares.classes.iter().skip(at).step_by(count);
            let own = own.zip(&self.counts).map(|(share, count)| share * count);
            let own: Vec<f64> = own.collect();
            if !self.fixed_weights {
                self.weights[at] = (own.iter().sum::<f64>() / total).max(WEIGHT_LEAST);
            }
            SiteClasses(&mut *one).set_weights(0, &own);
            one.optimise_lengths(STEP_EPSILON, 1)?;
            if fit == Fit::All && !self.linked {
                one.optimise_models(STEP_EPSILON)?;
            }
        }
        if fit == Fit::All && self.linked {
            optimise_shared_model(&mut self.trees, STEP_EPSILON)?;
        }
        Ok(())
    }

    /// Steps until they gain little.
    pub(super) fn climb(&mut self, fit: Fit, epsilon: f64) -> Result<Shares, LikelihoodError> {
        let mut shares = self.shares()?;
        let mut last_gain = f64::INFINITY;
        for _ in 0..CYCLES_MAX {
            self.step(fit, &shares)?;
            let next = self.shares()?;
            let gain = next.lnl - shares.lnl;
            shares = next;
            // Gains fall like a geometric series: this is the sum of its rest.
            let left = gain * gain / (last_gain - gain).max(f64::MIN_POSITIVE);
            if gain < 0.1 * epsilon || gain < epsilon && left < epsilon {
                break;
            }
            last_gain = gain;
        }
        Ok(shares)
    }
}

const CYCLES_MAX: usize = 300;
/// Rounds of lengths at the start of trees.
const START_ROUNDS: usize = 8;
/// Gains at which the fits within a step, and that of the start, end.
const STEP_EPSILON: f64 = 1e-3;
const START_EPSILON: f64 = 0.1;
/// The longest leap, in steps.
const FAR_MAX: f64 = 64.0;
/// A cycle of a coarse climb that gains less ends it.
const COARSE: f64 = 0.5;
/// Random starts: true with equal rates, and the standard deviation of the factors' logarithms.
const RANDOM: [(bool, f64); 10] = [
    (true, 0.7),
    (false, 0.3),
    (true, 0.7),
    (false, 0.7),
    (true, 0.7),
    (false, 0.15),
    (true, 0.7),
    (true, 0.3),
    (true, 0.7),
    (true, 1.0),
];
/// The number of them that are fitted to the end.
const ENDED: usize = 4;
const SEED: u64 = 1;
const WEIGHT_LEAST: f64 = 1e-9;

/// Nearly normal, of mean 0 and variance 1.
fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.unit()).sum::<f64>() - 6.0
}
