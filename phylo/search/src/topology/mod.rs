//! Tests of trees against one another: the trees that an alignment rejects.
//!
//! All of them use the variation of the trees' log-likelihoods over bootstrap replicates. RELL
//! (resampling of estimated log-likelihoods) computes a replicate's from the sites' values, without
//! fitting a tree again: `rell`. Based on these are the bootstrap proportions, the tests of Kishino
//! and Hasegawa (KH) and of Shimodaira and Hasegawa (SH), their weighted forms, the expected
//! likelihood weights (ELW), and, with replicates of ten sizes, the approximately unbiased test
//! (AU): `unbiased`.
//! Why here: pure sums over numbers from any likelihood, so that the tests need no tree.
//! Must stay true: one seed, one result, on any number of engines.
//! Sources: Kishino and Hasegawa, Journal of Molecular Evolution 29 (1989), 170-179; Kishino,
//! Miyata and Hasegawa, Journal of Molecular Evolution 31 (1990), 151-160, for RELL; Shimodaira and
//! Hasegawa, Molecular Biology and Evolution 16 (1999), 1114-1116; Strimmer and Rambaut,
//! Proceedings of the Royal Society B 269 (2002), 137-142; Shimodaira, Systematic Biology 51
//! (2002), 492-508.
//!
//! ```
//! use sidecore_phylo::runner::Serial;
//! use sidecore_phylo::topology::{Options, SiteTable, compare};
//!
//! // Log-likelihoods of twenty sites under two trees: the first is better at most of them.
//! let one: Vec<f64> = (0..20).map(|site| -3.0 - 0.1 * f64::from(site % 3)).collect();
//! let other: Vec<f64> = (0..20).map(|site| -3.2 + 0.2 * f64::from(site % 2)).collect();
//! let table = SiteTable::new(&[one, other])?;
//! let verdicts = compare(&table, &Options::default(), &Serial, |_, _| {})?;
//! assert!(verdicts[0].lnl > verdicts[1].lnl && verdicts[0].p_au > verdicts[1].p_au);
//! # Ok::<(), sidecore_phylo::topology::TopologyError>(())
//! ```

mod likelihoods;
mod rell;
mod unbiased;

use crate::runner::Runner;
pub use likelihoods::fitted_sites;
use rell::Replicates;
pub use rell::SiteTable;
pub use shown::text;
use sidecore_bare::width::ToU64;
use sidecore_offload::OffloadError;

mod shown {
    //! Verdicts as a table.

    use super::Verdict;
    use sidecore_terminal::{Column, Table, Text};

    /// A row for each tree, in the file's order.
    #[must_use]
    pub fn text(verdicts: &[Verdict]) -> Text {
        let mut table = Table::new([
            Column::right("tree"),
            Column::right("log-likelihood"),
            Column::right("delta").rank(4),
            Column::right("bp-RELL").rank(3),
            Column::right("p-KH").rank(2),
            Column::right("p-SH").rank(1),
            Column::right("p-WKH").rank(6),
            Column::right("p-WSH").rank(6),
            Column::right("c-ELW").rank(5),
            Column::right("p-AU"),
        ]);
        for (at, verdict) in verdicts.iter().enumerate() {
            let mut cells = vec![(at + 1).to_string()];
            let figures = [
                verdict.lnl,
                verdict.delta,
                verdict.bp_rell,
                verdict.p_kh,
                verdict.p_sh,
                verdict.p_wkh,
                verdict.p_wsh,
                verdict.c_elw,
                verdict.p_au,
            ];
            cells.extend(figures.map(|figure| format!("{figure:.4}")));
            table.row(cells);
        }
        table.into()
    }
}

/// Errors that keep trees from being tested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// One tree, or none.
    #[error("{trees} trees: a test compares at least 2")]
    TooFew {
        /// The number.
        trees: usize,
    },
    /// Trees whose sites are not the same.
    #[error("tree {tree} has {found} sites, the first one has {expected}")]
    Sites {
        /// The tree, from 1.
        tree: usize,
        /// Its sites.
        found: usize,
        /// The first tree's.
        expected: usize,
    },
    /// A value that is no number.
    #[error("tree {tree}, site {site}: the log-likelihood {value} is no number")]
    Value {
        /// The tree, from 1.
        tree: usize,
        /// The site, from 1.
        site: usize,
        /// The value.
        value: f64,
    },
    /// More values than the memory bound.
    #[error(
        "{trees} trees times {replicates} replicates are more than {VALUES_MAX}: test fewer trees, \
         or with fewer replicates"
    )]
    TooMany {
        /// Trees.
        trees: usize,
        /// Replicates of each size.
        replicates: usize,
    },
    /// An engine failed.
    #[error("the loop over replicates failed: {0}")]
    Offload(#[from] OffloadError),
}

/// Options of the tests.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Replicates; the AU test makes this many of each of ten sizes.
    pub replicates: usize,
    /// Seed of the replicates.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replicates: 50_000,
            seed: 1,
        }
    }
}

/// Results of all tests for one tree. Those called `p` are p-values: a tree with a value below 0.05
/// is rejected at that level.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Verdict {
    /// Its log-likelihood.
    pub lnl: f64,
    /// Difference to the best tree's.
    pub delta: f64,
    /// Share of the replicates in which it is the best; equally good trees share it evenly.
    pub bp_rell: f64,
    /// KH test, one-sided, against the best of the other trees.
    pub p_kh: f64,
    /// SH test.
    pub p_sh: f64,
    /// KH test against the tree of the largest difference in standard deviations.
    pub p_wkh: f64,
    /// SH test with differences in standard deviations.
    pub p_wsh: f64,
    /// Expected likelihood weight; they sum to 1 over the trees.
    pub c_elw: f64,
    /// AU test.
    pub p_au: f64,
}

/// Applies all tests to the trees of a table. `progress` receives the number of replicate sets that
/// are done and their total. Blocks.
///
/// # Errors
/// [`TopologyError::TooMany`], [`TopologyError::Offload`].
pub fn compare(
    table: &SiteTable,
    options: &Options,
    runner: &impl Runner,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Verdict>, TopologyError> {
    // The AU test interpolates between replicates, of which it needs two.
    let (trees, replicates) = (table.trees(), options.replicates.max(2));
    if trees.saturating_mul(replicates) > VALUES_MAX {
        return Err(TopologyError::TooMany { trees, replicates });
    }
    let sets = unbiased::SCALES.len() + 1;
    progress(0, sets);
    let drawn = table.replicates(1.0, replicates, options.seed, runner)?;
    progress(1, sets);
    let mut verdicts = resampled(table, &drawn);
    let mut gaps = Vec::new();
    for (at, scale) in unbiased::SCALES.into_iter().enumerate() {
        // One seed for all sizes would correlate them.
        let seed = sidecore_random::mix(options.seed.wrapping_add(at.to_u64() + 1));
        let drawn = table.replicates(scale, replicates, seed, runner)?;
        gaps.push(unbiased::sorted_gaps(&drawn, trees));
        progress(at + 2, sets);
    }
    for (tree, verdict) in verdicts.iter_mut().enumerate() {
        let own: Vec<&[f32]> = gaps.iter().map(|gaps| gaps[tree].as_slice()).collect();
        verdict.p_au = unbiased::p_value(&own);
    }
    Ok(verdicts)
}

/// All but the AU test.
fn resampled(table: &SiteTable, drawn: &Replicates) -> Vec<Verdict> {
    let trees = table.trees();
    let lnl = table.sums();
    let count = drawn.rows().count() as f64;
    let mut mean = vec![0.0; trees];
    let mut verdicts: Vec<Verdict> = Vec::with_capacity(trees);
    let best = lnl.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for &lnl in &lnl {
        verdicts.push(Verdict {
            lnl,
            delta: best - lnl,
            bp_rell: 0.0,
            p_kh: 0.0,
            p_sh: 0.0,
            p_wkh: 0.0,
            p_wsh: 0.0,
            c_elw: 0.0,
            p_au: 0.0,
        });
    }
    for row in drawn.rows() {
        // Subtracting the largest keeps the exponentials from underflowing; ties share the
        // replicate.
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let best = row.iter().filter(|&&value| value > most - TIE).count() as f64;
        let sum: f64 = row.iter().map(|value| libm::exp(value - most)).sum();
        for (tree, &value) in row.iter().enumerate() {
            mean[tree] += value / count;
            verdicts[tree].c_elw += libm::exp(value - most) / sum / count;
            if value > most - TIE {
                verdicts[tree].bp_rell += 1.0 / best / count;
            }
        }
    }
    // Each tree's rivals: the best other tree, and the one that is ahead by most standard
    // deviations.
    let weights = table.difference_weights();
    let weight = |a: usize, b: usize| weights[a * trees + b];
    let others = |tree: usize| (0..trees).filter(move |&other| other != tree);
    let rival = |tree: usize, by: &dyn Fn(usize) -> f64| {
        let mut best = (tree, f64::NEG_INFINITY);
        for other in others(tree) {
            if by(other) > best.1 {
                best = (other, by(other));
            }
        }
        best
    };
    let plain: Vec<(usize, f64)> = (0..trees)
        .map(|tree| rival(tree, &|other| lnl[other] - lnl[tree]))
        .collect();
    let weighted: Vec<(usize, f64)> = (0..trees)
        .map(|tree| {
            rival(tree, &|other| {
                (lnl[other] - lnl[tree]) * weight(tree, other)
            })
        })
        .collect();
    // Centred replicates have the null hypothesis's mean, 0.
    let mut centred = vec![0.0; trees];
    for row in drawn.rows() {
        for ((to, value), mean) in centred.iter_mut().zip(row).zip(&mean) {
            *to = value - mean;
        }
        let most = centred.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        for (tree, verdict) in verdicts.iter_mut().enumerate() {
            // KH compares with one rival, SH with the best of all.
            let ahead = |other: usize| centred[other] - centred[tree];
            let (other, by) = plain[tree];
            verdict.p_kh += at_least(ahead(other), by) / count;
            verdict.p_sh += at_least(most - centred[tree], by) / count;
            let (other, by) = weighted[tree];
            let by_plain = lnl[other] - lnl[tree];
            // Both sides would have the same weight, so it is left out.
            verdict.p_wkh += at_least(ahead(other), by_plain) / count;
            let farthest = others(tree).map(|other| ahead(other) * weight(tree, other));
            let farthest = farthest.fold(f64::NEG_INFINITY, f64::max);
            verdict.p_wsh += at_least(farthest, by) / count;
        }
    }
    verdicts
}

/// 1 if a replicate's statistic is not below the observed one. A tie counts: a Monte Carlo p-value
/// is the chance of a value at least as large.
fn at_least(replicate: f64, observed: f64) -> f64 {
    f64::from(u8::from(replicate > observed - TIE))
}

/// Log-likelihoods of a replicate that differ by less are equal.
const TIE: f64 = 1e-6;
/// The most values of one set of replicates.
const VALUES_MAX: usize = 20_000_000;

#[cfg(test)]
mod tests {
    use super::unbiased::normal;
    use super::*;
    use crate::random::Random;
    use crate::runner::Serial;

    /// Site log-likelihoods of trees that differ from the first by noise and by `behind` in all.
    fn table(behind: &[f64], seed: u64) -> SiteTable {
        let mut random = Random::new(seed);
        let sites = 400;
        let mut columns: Vec<Vec<f64>> = vec![Vec::new(); behind.len()];
        for _ in 0..sites {
            let base = -2.0 - 3.0 * random.unit();
            for (tree, behind) in behind.iter().enumerate() {
                let noise = if tree == 0 { 0.0 } else { random.unit() - 0.5 };
                columns[tree].push(base + 0.5 * noise - behind / f64::from(sites));
            }
        }
        SiteTable::new(&columns).unwrap()
    }

    fn quick(table: &SiteTable, seed: u64) -> Vec<Verdict> {
        let options = Options {
            replicates: 2_000,
            seed,
        };
        compare(table, &options, &Serial, |_, _| {}).unwrap()
    }

    #[test]
    fn verdicts_are_ordered_as_they_should_be() {
        let found = quick(&table(&[0.0, 8.0, 14.0, 40.0], 3), 1);
        assert!(found.iter().map(|v| v.bp_rell).sum::<f64>() > 1.0 - 1e-9);
        assert!((found.iter().map(|v| v.c_elw).sum::<f64>() - 1.0).abs() < 1e-9);
        for verdict in &found {
            // SH is the most careful, and AU lies between it and the plain proportion.
            assert!(verdict.p_sh >= verdict.p_kh - 1e-9, "{verdict:?}");
            assert!(verdict.p_wsh >= verdict.p_wkh - 1e-9, "{verdict:?}");
        }
        let last = &found[3];
        assert!(
            last.p_au < 0.001 && last.p_sh < 0.01 && last.c_elw < 0.01,
            "{last:?}"
        );
        assert!(found[0].p_au > 0.5, "{found:?}");
        assert_eq!(found[0].delta, 0.0);
    }

    #[test]
    fn one_seed_one_result() {
        let table = table(&[0.0, 1.0, 3.0], 5);
        assert_eq!(quick(&table, 7), quick(&table, 7));
        let [a, b] = [quick(&table, 7), quick(&table, 8)];
        assert_ne!(a, b);
        for (a, b) in a.iter().zip(&b) {
            assert!((a.p_au - b.p_au).abs() < 0.12, "{a:?} {b:?}");
        }
    }

    /// For two trees the border is flat: the AU test is the one-sided test of the difference's
    /// mean.
    #[test]
    fn two_trees_are_a_normal_test() {
        let table = table(&[0.0, 4.0], 11);
        let options = Options {
            replicates: 10_000,
            seed: 1,
        };
        let found = compare(&table, &options, &Serial, |_, _| {}).unwrap();
        let weights = table.difference_weights();
        let z = (found[0].lnl - found[1].lnl) * weights[1];
        let (better, worse) = if z > 0.0 { (0, 1) } else { (1, 0) };
        let expected = normal::below(-z.abs());
        for p in [found[worse].p_au, found[worse].p_kh, found[worse].bp_rell] {
            assert!((p - expected).abs() < 0.03, "{p} {expected}");
        }
        assert!((found[better].p_au - (1.0 - expected)).abs() < 0.03);
    }

    /// Proportions that follow the theory exactly give back its p-value.
    #[test]
    fn distance_and_curvature_are_found_again() {
        for (d, c) in [(1.0, 0.3), (2.0, 0.5), (-0.5, 0.2)] {
            let count = 20_000;
            // Gaps whose share below 0 is what distance and curvature make it.
            let gaps: Vec<Vec<f32>> = unbiased::SCALES
                .into_iter()
                .map(|r: f64| {
                    let z = d * r.sqrt() + c / r.sqrt();
                    let quantile = |k: usize| normal::quantile((k as f64 + 0.5) / f64::from(count));
                    (0..count as usize)
                        .map(|k| (quantile(k) + z) as f32)
                        .collect()
                })
                .collect();
            let gaps: Vec<&[f32]> = gaps.iter().map(Vec::as_slice).collect();
            let p = unbiased::p_value(&gaps);
            assert!((p - normal::below(c - d)).abs() < 2e-3, "{d} {c}: {p}");
        }
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        assert!(matches!(
            SiteTable::new(&[vec![1.0]]),
            Err(TopologyError::TooFew { trees: 1 })
        ));
        let error = SiteTable::new(&[vec![1.0, 2.0], vec![1.0]]).unwrap_err();
        assert_eq!(error.to_string(), "tree 2 has 1 sites, the first one has 2");
        let error = SiteTable::new(&[vec![1.0], vec![f64::NAN]]).unwrap_err();
        assert!(matches!(
            error,
            TopologyError::Value {
                tree: 2,
                site: 1,
                ..
            }
        ));
        let equal = SiteTable::new(&[vec![-1.0; 30], vec![-1.0; 30]]).unwrap();
        let found = quick(&equal, 1);
        assert!((found[0].bp_rell - 0.5).abs() < 1e-9);
        assert!(found.iter().all(|verdict| verdict.p_au.is_finite()));
        for own in &found {
            let all = [own.p_kh, own.p_sh, own.p_wkh, own.p_wsh];
            assert!(all.iter().all(|&p| p > 0.5), "trees that tie: {own:?}");
        }
        let options = Options {
            replicates: 10_000_001,
            seed: 1,
        };
        assert!(compare(&equal, &options, &Serial, |_, _| {}).is_err());
    }
}
