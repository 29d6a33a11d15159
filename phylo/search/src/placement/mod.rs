//! Placement of sequences on a tree: the branches that each could stem from, with likelihoods.
//!
//! A query becomes a new tip on a branch of the reference tree, which itself stays as it is, with
//! its lengths and its model. First each branch is scored with the query in its middle; for those
//! of the best scores the place on the branch and the length of the query's own branch are fitted.
//! The likelihood weight ratio is a branch's share of the fitted ones' likelihoods.
//! Why here: the CLVs of all directions of all nodes are made once, and each query costs three.
//!
//! Must stay true: a likelihood is that of the tree with the query in that place, to rounding; the
//! same input gives the same result on any number of engines.
//! Source: Matsen, Kodner and Armbrust, "pplacer: linear time maximum-likelihood and Bayesian
//! phylogenetic placement", BMC Bioinformatics 11 (2010), 538.

mod jplace;

pub use jplace::Placements;

use crate::ancestors::{Block, LARGE};
use crate::likelihood::Part;
use crate::model::AscertainmentName;
use crate::msa::{Alignment, MsaError, Patterns};
use crate::newick::Newick;
use crate::runner::{Runner, Work};
use crate::tree::{HalfId, LENGTH_MIN, Tree};
use jplace::{Place, Placed, numbered};
use sidecore_bare::width::ToU64;
use sidecore_offload::OffloadError;
use std::collections::HashSet;

/// Errors that keep sequences from being placed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// Sequences that cannot be read.
    #[error(transparent)]
    Msa(#[from] MsaError),
    /// All sequences are of the tree.
    #[error("the alignment has no sequence that the tree lacks: none is to be placed")]
    NoQuery,
    /// A model that a query would change.
    #[error("placement takes no model with +ASC, whose correction depends on all sequences")]
    Ascertainment,
    /// An engine failed.
    #[error("the loop over branches failed: {0}")]
    Offload(#[from] OffloadError),
}

/// An alignment of a tree's taxa, and of others that are to be placed on it.
#[derive(Debug, Clone)]
pub struct Queries {
    /// The tree's taxa.
    pub reference: Alignment,
    /// These first, then the others.
    all: Alignment,
}

impl Queries {
    /// The sequences of an alignment that `tree` has, and those that it lacks.
    ///
    /// # Errors
    /// [`PlacementError::NoQuery`], [`PlacementError::Msa`].
    pub fn new(alignment: &Alignment, tree: &Newick) -> Result<Self, PlacementError> {
        // Alignment formats write `_` for the blanks of a quoted name.
        let plain = |label: String| label.replace(char::is_whitespace, "_");
        let labels = tree.tip_labels().into_iter();
        let tips: HashSet<String> = labels.flat_map(|own| [plain(own.clone()), own]).collect();
        let all = 0..alignment.names().len();
        let is_tip = |taxon: &usize| tips.contains(&alignment.names()[*taxon]);
        let (mut order, others): (Vec<usize>, Vec<usize>) = all.partition(is_tip);
        if others.is_empty() {
            return Err(PlacementError::NoQuery);
        }
        let of = |order: &[usize]| {
            let names = order.iter().map(|&taxon| alignment.names()[taxon].clone());
            let rows = order.iter().map(|&taxon| alignment.row(taxon).to_vec());
            Alignment::new(names.collect(), rows.collect())
        };
        let reference = of(&order)?;
        order.extend(others);
        Ok(Self {
            reference,
            all: of(&order)?,
        })
    }

    /// Number of sequences that are to be placed.
    fn count(&self) -> usize {
        self.all.names().len() - self.reference.names().len()
    }
}

/// Approximate bytes of memory that placing these on a tree under these parts takes.
#[must_use]
pub fn placement_bytes(queries: &Queries, parts: &[Part]) -> u64 {
    let taxa = queries.reference.names().len().to_u64();
    let values = parts.iter().map(|part| {
        // Queries part the patterns: each site may be one.
        let cells = part.patterns().sites().to_u64() * part.process().shape.span().to_u64();
        3 * taxa * cells
    });
    let scores = 2 * taxa * queries.count().to_u64();
    (values.sum::<u64>() + scores).saturating_mul(8)
}

/// Places all queries on a tree with its lengths, under partitions with all their values; `keep` is
/// the most places that are reported of one. Blocks.
///
/// # Errors
/// [`PlacementError`].
pub fn place(
    queries: &Queries,
    (tree, parts): (&Tree, &[Part]),
    keep: usize,
    runner: &impl Runner,
) -> Result<Placements, PlacementError> {
    let has_correction = |part: &Part| part.model().name().ascertainment != AscertainmentName::None;
    if parts.iter().any(has_correction) {
        return Err(PlacementError::Ascertainment);
    }
    let names = queries.reference.names();
    let (text, branches) = numbered(tree, names);
    let sites = parts
        .iter()
        .map(|part| Sites::new(&queries.all, tree, part));
    let sites: Vec<Sites<'_>> = sites.collect::<Result<_, MsaError>>()?;
    let junctions = Junctions {
        tree,
        parts: &sites,
    };
    let mean = tree.total_length() / branches.len() as f64;
    let own = mean.clamp(OWN_MIN, OWN_MAX);
    let first = names.len();
    let rows: Vec<usize> = (first..first + queries.count()).collect();
    // Branch by branch, since a branch's CLVs serve all queries.
    let mut scores: Vec<(HalfId, Vec<f64>)> = branches.iter().map(|&at| (at, Vec::new())).collect();
    runner.run(Work::Support, &mut scores, |(below, found)| {
        *found = junctions.middles(*below, own, &rows);
    })?;
    let mut items: Vec<(usize, Vec<Place>)> = rows.iter().map(|&row| (row, Vec::new())).collect();
    runner.run(Work::Support, &mut items, |(row, places)| {
        let mut order: Vec<usize> = (0..branches.len()).collect();
        let score = |edge: usize| scores[edge].1[*row - first];
        // A stable sort: of equal scores the first branch.
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        order.truncate(keep.max(CANDIDATES));
        let fit = |&edge: &usize| (edge, junctions.fitted(*row, branches[edge], own));
        *places = ranked(order.iter().map(fit).collect(), keep);
    })?;
    let placed = items.into_iter().map(|(row, p)| Placed {
        p,
        n: [queries.all.names()[row].clone()],
    });
    Ok(Placements::new(text, placed.collect()))
}

/// The best places, with their weight ratios; those of less than a hundredth are left out, but for
/// the best.
fn ranked(mut fitted: Vec<(usize, Fitted)>, keep: usize) -> Vec<Place> {
    fitted.sort_by(|(_, a), (_, b)| b.lnl.total_cmp(&a.lnl));
    let best = fitted.first().map_or(0.0, |(_, own)| own.lnl);
    let weight = |own: &Fitted| libm::exp(own.lnl - best);
    let all: f64 = fitted.iter().map(|(_, own)| weight(own)).sum();
    let places = fitted.iter().enumerate().filter_map(|(at, (edge, own))| {
        let ratio = weight(own) / all;
        let is_kept = at == 0 || at < keep && ratio >= RATIO_MIN;
        is_kept.then_some((*edge, own.lnl, ratio, own.distal, own.pendant))
    });
    places.collect()
}

/// A place on a branch.
#[derive(Debug, Clone, Copy)]
struct Fitted {
    lnl: f64,
    distal: f64,
    pendant: f64,
}

/// The sites of a partition: those of the tree's taxa and of all queries.
struct Sites<'p> {
    part: &'p Part,
    patterns: Patterns,
    block: Block<'p>,
    /// For each pattern the states that all of the tree's taxa may have.
    common: Vec<u64>,
    /// For each pattern its log-likelihood without a query, times its weight.
    alone: Vec<f64>,
}

impl<'p> Sites<'p> {
    fn new(all: &Alignment, tree: &Tree, part: &'p Part) -> Result<Self, MsaError> {
        let columns = part.patterns().site_columns().flatten().copied().collect();
        let patterns = Patterns::of_sites(all, part.patterns().alphabet(), columns)?;
        let count = patterns.len();
        let mut block = Block::new(tree, part.process(), part.scale(), count);
        block.fill(tree, &patterns, 0, count);
        let mask =
            |taxon: usize, at: usize| patterns.masks()[usize::from(patterns.codes(taxon)[at])];
        let common =
            |at: usize| (0..tree.taxa()).fold(u64::MAX, |common, taxon| common & mask(taxon, at));
        let mut made = Self {
            part,
            common: (0..count).map(common).collect(),
            block,
            patterns,
            alone: Vec::new(),
        };
        // In the middle of any branch.
        let half = HalfId(0);
        let middle = [0.5 * tree.length(tree.edge(half)); 2];
        let all: Vec<usize> = (0..count).collect();
        let joint = made.joint(tree, half, middle, &all);
        let (tip, unknown) = (made.tip_values(OWN_MIN), made.patterns.alphabet().unknown());
        let log = |at: usize| made.log((&joint, at), at, unknown, &tip);
        let weighted = |at: usize| f64::from(made.patterns.weights()[at]) * log(at);
        made.alone = all.into_iter().map(weighted).collect();
        Ok(made)
    }

    /// Patterns at which a taxon says something.
    fn said_by(&self, row: usize) -> Vec<usize> {
        let unknown = self.patterns.alphabet().unknown();
        let codes = self.patterns.codes(row);
        (0..codes.len())
            .filter(|&at| codes[at] != unknown)
            .collect()
    }

    /// For each code of a tip at the end of a branch of this length its CLV at the other end.
    fn tip_values(&self, length: f64) -> Vec<f64> {
        let process = self.part.process();
        let (n, span) = (process.shape.states, process.shape.span());
        let mut matrix = vec![0.0; process.shape.matrix()];
        process.transitions(self.part.scale() * length, &mut matrix);
        let masks = self.patterns.masks();
        let mut values = vec![0.0; masks.len() * span];
        for (own, mask) in values.chunks_mut(span).zip(masks) {
            for (sums, matrix) in own.chunks_mut(n).zip(matrix.chunks(n * n)) {
                for state in (0..n).filter(|state| mask >> state & 1 == 1) {
                    let column = &matrix[state * n..][..n];
                    sums.iter_mut().zip(column).for_each(|(sum, p)| *sum += p);
                }
            }
        }
        values
    }

    /// At some patterns, the joint probabilities of states and data at a place on a branch, at
    /// these distances from both of its ends, and the patterns' scalers.
    fn joint(&self, tree: &Tree, below: HalfId, ends: [f64; 2], at: &[usize]) -> Joint {
        let process = self.part.process();
        let (n, span) = (process.shape.states, process.shape.span());
        let mut joint = Joint {
            values: vec![0.0; at.len() * span],
            scalers: vec![0; at.len()],
        };
        let matrices = ends.map(|length| {
            let mut matrix = vec![0.0; process.shape.matrix()];
            process.transitions(self.part.scale() * length, &mut matrix);
            matrix
        });
        let mut sums = vec![0.0; span];
        let places = joint.values.chunks_mut(span).zip(&mut joint.scalers);
        for ((values, scaler), &pattern) in places.zip(at) {
            for (rate, values) in values.chunks_mut(n).enumerate() {
                let pairs = values.iter_mut().zip(process.frequencies_of(rate));
                pairs.for_each(|(value, p)| *value = process.weights[rate] * p);
            }
            for (half, matrix) in [below, tree.back(below)].into_iter().zip(&matrices) {
                let place = (0, pattern);
                let moved =
                    (self.block).moved(tree, &self.patterns, place, half, matrix, &mut sums);
                *scaler += moved;
                values
                    .iter_mut()
                    .zip(&sums)
                    .for_each(|(value, sum)| *value *= sum);
            }
        }
        joint
    }

    /// The log-likelihood of a pattern with a code for the query.
    fn log(&self, (joint, at): (&Joint, usize), pattern: usize, code: u8, tip: &[f64]) -> f64 {
        let process = self.part.process();
        let span = process.shape.span();
        let values = &joint.values[at * span..][..span];
        let tip = &tip[usize::from(code) * span..][..span];
        let value: f64 = values.iter().zip(tip).map(|(value, p)| value * p).sum();
        let common = self.common[pattern] & self.patterns.masks()[usize::from(code)];
        let scaler = joint.scalers[at];
        if process.invariant > 0.0 && common != 0 {
            let states = (0..process.shape.states).filter(|state| common >> state & 1 == 1);
            let constant: f64 = states.map(|state| process.frequencies[state]).sum();
            // Values that were scaled are negligible next to the invariable part, or nearly so.
            return libm::log(value * LARGE.powi(-scaler) + process.invariant * constant);
        }
        libm::log(value) - f64::from(scaler) * libm::log(LARGE)
    }
}

/// Joint probabilities of states and data, pattern by pattern.
struct Joint {
    values: Vec<f64>,
    scalers: Vec<i32>,
}

/// Places on a tree.
struct Junctions<'s> {
    tree: &'s Tree,
    parts: &'s [Sites<'s>],
}

impl Junctions<'_> {
    /// The log-likelihoods of each row's sequence in the middle of a branch.
    fn middles(&self, below: HalfId, own: f64, rows: &[usize]) -> Vec<f64> {
        let mut sums = vec![0.0; rows.len()];
        let half = 0.5 * self.tree.length(self.tree.edge(below));
        for sites in self.parts {
            let all: Vec<usize> = (0..sites.patterns.len()).collect();
            let joint = sites.joint(self.tree, below, [half; 2], &all);
            let tip = sites.tip_values(own);
            let codes = sites.patterns.masks().len();
            let mut logs = vec![f64::NAN; codes];
            for pattern in all {
                // Many queries, few codes: each is computed once.
                logs.fill(f64::NAN);
                let weight = f64::from(sites.patterns.weights()[pattern]);
                for (sum, &row) in sums.iter_mut().zip(rows) {
                    let code = sites.patterns.codes(row)[pattern];
                    let log = &mut logs[usize::from(code)];
                    if log.is_nan() {
                        *log = sites.log((&joint, pattern), pattern, code, &tip);
                    }
                    *sum += weight * *log;
                }
            }
        }
        sums
    }

    /// The best place of a row's sequence on a branch.
    fn fitted(&self, row: usize, below: HalfId, own: f64) -> Fitted {
        let length = self.tree.length(self.tree.edge(below));
        let said: Vec<Vec<usize>> = self.parts.iter().map(|sites| sites.said_by(row)).collect();
        let joints = |distal: f64| -> Vec<Joint> {
            let pairs = self.parts.iter().zip(&said);
            let ends = [distal, (length - distal).max(0.0)];
            pairs
                .map(|(sites, at)| sites.joint(self.tree, below, ends, at))
                .collect()
        };
        let tips = |pendant: f64| -> Vec<Vec<f64>> {
            self.parts
                .iter()
                .map(|sites| sites.tip_values(pendant))
                .collect()
        };
        let score = |joints: &[Joint], tips: &[Vec<f64>]| -> f64 {
            let parts = self.parts.iter().zip(&said).zip(joints.iter().zip(tips));
            let logs = parts.flat_map(|((sites, said), (joint, tip))| {
                said.iter().enumerate().map(move |(at, &pattern)| {
                    let code = sites.patterns.codes(row)[pattern];
                    let weight = f64::from(sites.patterns.weights()[pattern]);
                    weight * sites.log((joint, at), pattern, code, tip)
                })
            });
            logs.sum()
        };
        let (mut distal, mut pendant) = (0.5 * length, own);
        let mut best = f64::NEG_INFINITY;
        for _ in 0..ROUNDS_MAX {
            let here = joints(distal);
            // On a logarithmic scale: lengths differ by orders of magnitude.
            let ends = [libm::log(OWN_MIN), libm::log(OWN_MAX)];
            let (log, _) = highest(ends, |log| score(&here, &tips(libm::exp(log))));
            pendant = libm::exp(log);
            let tip = tips(pendant);
            let (place, lnl) = highest([0.0, length], |place| score(&joints(place), &tip));
            distal = place;
            let gain = lnl - best;
            best = best.max(lnl);
            if gain < GAIN_MIN {
                break;
            }
        }
        // What the query does not say is as likely as without it, wherever it is.
        let lnl = score(&joints(distal), &tips(pendant)) + self.rest(&said);
        Fitted {
            lnl,
            distal,
            pendant,
        }
    }

    /// The log-likelihood of the patterns at which a row says nothing: that without it.
    fn rest(&self, said: &[Vec<usize>]) -> f64 {
        let parts = self.parts.iter().zip(said).map(|(sites, said)| {
            let of_said: f64 = said.iter().map(|&at| sites.alone[at]).sum();
            sites.alone.iter().sum::<f64>() - of_said
        });
        parts.sum()
    }
}

/// The place of the one maximum of a function, and the value there: golden section.
fn highest([mut low, mut high]: [f64; 2], mut value: impl FnMut(f64) -> f64) -> (f64, f64) {
    let within = |low: f64, high: f64, share: f64| low + share * (high - low);
    let (mut left, mut right) = (within(low, high, 1.0 - GOLDEN), within(low, high, GOLDEN));
    let (mut at_left, mut at_right) = (value(left), value(right));
    for _ in 0..SECTIONS {
        if at_left >= at_right {
            (high, right, at_right) = (right, left, at_left);
            left = within(low, high, 1.0 - GOLDEN);
            at_left = value(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = within(low, high, GOLDEN);
            at_right = value(right);
        }
    }
    match at_left >= at_right {
        true => (left, at_left),
        false => (right, at_right),
    }
}

/// Branches on which a query is fitted, at least.
const CANDIDATES: usize = 20;
/// Weight ratio below which a place is left out.
const RATIO_MIN: f64 = 0.01;
/// Bounds of the length of a query's own branch.
const OWN_MIN: f64 = LENGTH_MIN;
const OWN_MAX: f64 = 10.0;
const ROUNDS_MAX: usize = 5;
/// Gain in log-likelihood below which a fit ends.
const GAIN_MIN: f64 = 1e-4;
/// The golden section, (sqrt(5) - 1) / 2.
const GOLDEN: f64 = 0.618_033_988_749_894_8;
/// Sections, each of which leaves 0.618 of an interval.
const SECTIONS: usize = 26;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::likelihood::{Lengths, Likelihood, Options, PartOptions};
    use crate::model::{Model, ModelName};
    use crate::msa::Alphabet;
    use crate::runner::Serial;
    use crate::simulate::simulate;

    const WHOLE: &str = "((a:0.1,b:0.2):0.15,(c:0.1,(d:0.2,e:0.1):0.1):0.2,(f:0.15,q:0.2):0.1);";
    const REFERENCE: &str = "((a:0.1,b:0.2):0.15,(c:0.1,(d:0.2,e:0.1):0.1):0.2,f:0.25);";

    fn named(text: &str) -> ModelName {
        ModelName::parse(text, &mut |_| unreachable!()).unwrap()
    }

    /// The likelihood under two partitions, the second of twice the rate.
    fn likelihood(newick: &Newick, alignment: &Alignment) -> Likelihood<Serial> {
        let tree = Tree::from_newick(newick, alignment.names()).unwrap();
        let models = ["HKY{1/3}+FU{0.3/0.2/0.2/0.3}+IU{0.2}+G4m{0.6}", "JC+B{2}"];
        let part = |(model, columns): (&str, std::ops::Range<u32>)| {
            let patterns = Patterns::of_sites(alignment, Alphabet::Dna, columns.collect());
            PartOptions::new(named(model), patterns.unwrap())
        };
        let parts = models.into_iter().zip([0..200, 200..400]).map(part);
        let options = Options::default();
        let made = Likelihood::partitioned(tree, parts.collect(), Serial, options);
        let mut made = made.unwrap();
        made.set_lengths(Lengths::Linked);
        made
    }

    /// Seven taxa, and `r`, which is `a` with gaps and an ambiguity.
    fn alignment() -> Alignment {
        let newick = Newick::parse(WHOLE).unwrap();
        let mut names = newick.tip_labels();
        let tree = Tree::from_newick(&newick, &names).unwrap();
        let model = Model::without_alignment(named("HKY{1/3}+FU{0.3/0.2/0.2/0.3}"));
        let made = simulate(&tree, &names, &model, 400, 5).unwrap();
        let mut rows: Vec<Vec<u8>> = (0..7).map(|taxon| made.row(taxon).to_vec()).collect();
        let mut last = rows[0].clone();
        last[..40].fill(b'-');
        last[100] = b'R';
        rows.push(last);
        names.push("r".to_owned());
        Alignment::new(names, rows).unwrap()
    }

    /// The tree with a query in one of its places.
    fn inserted(found: &Placements, placed: &Placed, place: Place) -> Newick {
        let (edge, _, _, distal, pendant) = place;
        let mut plain = String::new();
        let mut depth = 0;
        for c in found.tree.chars() {
            depth += i32::from(c == '{');
            if depth == 0 {
                plain.push(c);
            }
            depth -= i32::from(c == '}');
        }
        let tree = Newick::parse(&plain).unwrap();
        // Numbers are in the order in which the nodes end.
        let mut ended = Vec::new();
        let mut path = vec![(0, 0)];
        while let Some((node, done)) = path.pop() {
            match tree.nodes()[node].children.get(done) {
                Some(&child) => path.extend([(node, done + 1), (child, 0)]),
                None => ended.push(node),
            }
        }
        let mut made = Newick::root(String::new());
        let mut new = vec![0; tree.nodes().len()];
        for (node, own) in tree.nodes().iter().enumerate().skip(1) {
            let (mut parent, mut length) = (new[own.parent.unwrap()], own.length.unwrap());
            if node == ended[edge] {
                parent = made.push(parent, String::new(), Some(length - distal));
                made.push(parent, placed.n[0].clone(), Some(pendant));
                length = distal;
            }
            new[node] = made.push(parent, own.label.clone(), Some(length));
        }
        made
    }

    /// A place's likelihood is that of the tree with the query there, and the best one is where the
    /// query was.
    #[test]
    fn likelihoods_are_those_of_the_tree_with_the_query() {
        let (alignment, reference) = (alignment(), Newick::parse(REFERENCE).unwrap());
        let queries = Queries::new(&alignment, &reference).unwrap();
        let fitted = likelihood(&reference, &queries.reference);
        let found = place(&queries, (fitted.tree(), fitted.parts()), 7, &Serial).unwrap();
        let names: Vec<&str> = found.best().map(|(name, ..)| name).collect();
        assert_eq!(names, ["q", "r"]);
        for placed in &found.placements {
            let ratios: f64 = placed.p.iter().map(|place| place.2).sum();
            assert!(ratios > 0.8 && ratios < 1.0 + 1e-9, "{ratios}");
            let names = queries.reference.names().iter().cloned();
            let names: Vec<String> = names.chain([placed.n[0].clone()]).collect();
            let row = |name: &String| {
                let at = alignment.names().iter().position(|own| own == name);
                alignment.row(at.unwrap()).to_vec()
            };
            let some = Alignment::new(names.clone(), names.iter().map(row).collect()).unwrap();
            for &place in &placed.p {
                let whole = inserted(&found, placed, place);
                let expected = likelihood(&whole, &some).evaluate().unwrap();
                assert!((place.1 - expected).abs() < 1e-3, "{place:?} {expected}");
            }
        }
        let best = inserted(&found, &found.placements[0], found.placements[0].p[0]);
        assert_eq!(
            compare(&best, &Newick::parse(WHOLE).unwrap()).unwrap().rf,
            0
        );
        // As long as it was, about.
        let (_, _, ratio, _, pendant) = found.placements[0].p[0];
        assert!(ratio > 0.5 && (0.03..0.8).contains(&pendant), "{pendant}");
        // The other is at the end of its original's branch.
        let (_, _, _, distal, pendant) = found.placements[1].p[0];
        assert!(distal < 1e-3 && pendant < 0.02, "{distal} {pendant}");
        // More places have no better best one.
        let one = place(&queries, (fitted.tree(), fitted.parts()), 1, &Serial).unwrap();
        assert!(one.placements.iter().all(|placed| placed.p.len() == 1));
        assert_eq!(one.placements[0].p[0], found.placements[0].p[0]);
    }

    #[test]
    fn what_cannot_be_placed_is_refused() {
        let (alignment, reference) = (alignment(), Newick::parse(REFERENCE).unwrap());
        let tips: Vec<String> = alignment
            .names()
            .iter()
            .map(|name| format!("{name}:1"))
            .collect();
        let all = Newick::parse(&format!("({});", tips.join(","))).unwrap();
        let error = Queries::new(&alignment, &all).unwrap_err();
        assert!(matches!(error, PlacementError::NoQuery), "{error}");
        let queries = Queries::new(&alignment, &reference).unwrap();
        let tree = Tree::from_newick(&reference, queries.reference.names()).unwrap();
        let patterns = Patterns::new(&queries.reference, Alphabet::Dna).unwrap();
        let part = PartOptions::new(named("JC+ASC_LEWIS"), patterns);
        let made = Likelihood::partitioned(tree, vec![part], Serial, Options::default());
        let made = made.unwrap();
        let error = place(&queries, (made.tree(), made.parts()), 1, &Serial).unwrap_err();
        assert!(matches!(error, PlacementError::Ascertainment), "{error}");
    }
}
