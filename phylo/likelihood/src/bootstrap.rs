//! Bootstraps: branch support from replicates that resample the alignment's columns, and the test
//! of their convergence: if more of them would still change the consensus.
//!
//! A *standard* replicate is a search of its own, from a start of its own, on resampled weights. A
//! *rapid* one begins where another replicate's search ended. Replicates come in chains of
//! `CHAIN`: the first of a chain starts from a parsimony tree, each later one from the tree of
//! the one before it, and all of them stop after the lazy rounds, without the slow ones. That is
//! the idea of RAxML's rapid bootstrap. Ours has no approximation of rate categories, and its
//! chains are short, so that they can be parallel tasks whose result does not depend on the worker.
//!
//! The replicates are cut in two random halves, again and again. A consensus is made of each half:
//! splits by falling frequency, each compatible with those taken before (extended majority rule).
//! The distance of two consensuses is the weighted Robinson-Foulds distance of their splits'
//! frequencies, in per cent of its value if no split were shared. There are enough replicates when
//! that distance is small, on the mean and in nearly all cuts.
//!
//! Must stay true: a replicate's weights depend on the seed and its index alone; a chain's trees on
//! these and the chain's number. A cut depends on the seed and its number alone, so the result does
//! not depend on the thread that made a cut.
//! Sources: Felsenstein, Evolution 39 (1985), 783-791; Stamatakis, Hoover and Rougemont, Systematic
//! Biology 57 (2008), 758-771; Pattengale and others, Journal of Computational Biology 17 (2010),
//! 337-354: the test WC with extended majority rule, 1,000 cuts, 3 %, 99 of 100 cuts. A split that
//! a half's trees do not have is never in its consensus; RAxML-NG adds such splits, which makes it
//! a little more lenient.
//!
//! ```
//! use sidecore_likelihood::bootstrap::{Options, Replicates};
//! use sidecore_likelihood::newick::Newick;
//! use sidecore_likelihood::runner::Serial;
//!
//! let tree = Newick::parse("((a,b),c,(d,e));")?;
//! let mut replicates = Replicates::new(&tree)?;
//! for _ in 0..50 {
//!     replicates.add(&tree)?;
//! }
//! // All agree, so any two halves of them do.
//! let verdict = replicates.test(1, &Options::default(), &Serial)?;
//! assert!(verdict.converged && verdict.distance == 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::newick::Newick;
use crate::random::Random;
use crate::runner::{Runner, Work};
use crate::splits::{self, CompareError, Split, Taxa};
use sidecore_bare::width::ToUsize;
use sidecore_offload::OffloadError;
use std::collections::HashMap;

/// Options of the test.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Options {
    /// Replicates between two tests.
    pub every: u32,
    /// Cuts in halves.
    pub cuts: u32,
    /// The largest distance of two halves, as a share.
    pub cutoff: f64,
    /// Most replicates.
    pub most: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            every: 50,
            cuts: 1_000,
            cutoff: 0.03,
            most: 1_000,
        }
    }
}

/// Result of a test.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Verdict {
    /// Replicates tested.
    pub replicates: u32,
    /// The mean distance of two halves, as a share.
    pub distance: f64,
    /// Cuts whose distance is within the cutoff.
    pub within: u32,
    /// True if these are enough replicates.
    pub converged: bool,
}

/// Replicates by their splits.
#[derive(Debug)]
pub struct Replicates {
    taxa: Taxa,
    by_split: HashMap<Split, u32>,
    splits: Vec<Split>,
    /// For each split the replicates that have it, a bit each.
    owners: Vec<Vec<u64>>,
    count: u32,
}

impl Replicates {
    /// None yet; `tree` is any tree of these taxa.
    ///
    /// # Errors
    /// [`CompareError::Twice`], [`CompareError::TooSmall`].
    pub fn new(tree: &Newick) -> Result<Self, CompareError> {
        Ok(Self {
            taxa: Taxa::of(tree)?,
            by_split: HashMap::new(),
            splits: Vec::new(),
            owners: Vec::new(),
            count: 0,
        })
    }

    /// Number of replicates.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Adds one. To be called in the order of the replicates' indices: ties are broken by it.
    ///
    /// # Errors
    /// [`CompareError::Tips`], [`CompareError::Twice`].
    pub fn add(&mut self, replicate: &Newick) -> Result<(), CompareError> {
        self.taxa.check(replicate)?;
        let (word, bit) = (self.count.to_usize() / 64, self.count % 64);
        for split in splits::of(replicate, &self.taxa) {
            // Every tree has these: they would make all distances smaller than the paper's.
            if split.is_trivial(self.taxa.len()) {
                continue;
            }
            let number = *self.by_split.entry(split.clone()).or_insert_with(|| {
                self.splits.push(split);
                self.owners.push(Vec::new());
                self.splits.len() as u32 - 1
            });
            let owners = &mut self.owners[number.to_usize()];
            // Words are added when needed: most splits occur in few replicates.
            owners.resize(word + 1, 0);
            owners[word] |= 1 << bit;
        }
        self.count += 1;
        Ok(())
    }

    /// Tests if these are enough. Blocks; the cuts are a loop that `runner` may spread.
    ///
    /// # Errors
    /// [`OffloadError`] when an engine failed.
    pub fn test(
        &self,
        seed: u64,
        options: &Options,
        runner: &impl Runner,
    ) -> Result<Verdict, OffloadError> {
        // By the number of cuts alone, never by the engines: the sum below has a fixed order.
        let per_item = options.cuts.div_ceil(ITEMS).max(1);
        let starts = (0..options.cuts).step_by(per_item.to_usize());
        let mut items: Vec<(u32, Vec<f64>)> = starts.map(|cut| (cut, Vec::new())).collect();
        runner.run(Work::Cuts, &mut items, |(first, distances)| {
            let mut halves = [Half::new(self), Half::new(self)];
            let last = (*first + per_item).min(options.cuts);
            distances.extend((*first..last).map(|cut| self.distance(seed, cut, &mut halves)));
        })?;
        let all: Vec<f64> = items.into_iter().flat_map(|(_, found)| found).collect();
        // A runner gives items back in their order, whichever engine finished first.
        let distance = all.iter().sum::<f64>() / all.len().max(1) as f64;
        let within = all.iter().filter(|&&one| one <= options.cutoff).count() as u32;
        let enough = (0.99 * f64::from(options.cuts)).ceil() as u32;
        Ok(Verdict {
            replicates: self.count,
            distance,
            within,
            // One tree has an empty half, whose distance would be 0.
            converged: self.count >= 2 && within >= enough && distance <= options.cutoff,
        })
    }

    /// The distance of the two halves of one cut, as a share.
    fn distance(&self, seed: u64, cut: u32, halves: &mut [Half; 2]) -> f64 {
        let mut random = Random::new(seed ^ u64::from(cut).wrapping_mul(CUT_STREAM));
        // The first half of a shuffle is a half.
        let mut order: Vec<u32> = (0..self.count).collect();
        let mut members = vec![0_u64; self.count.to_usize().div_ceil(64)];
        for k in 0..order.len() / 2 {
            let other = k + random.index(order.len() - k);
            order.swap(k, other);
            members[order[k].to_usize() / 64] |= 1 << (order[k] % 64);
        }
        let [one, two] = halves;
        for (split, owners) in self.owners.iter().enumerate() {
            let all: u32 = owners.iter().map(|word| word.count_ones()).sum();
            let pairs = owners.iter().zip(&members);
            let own = pairs.map(|(word, member)| (word & member).count_ones());
            one.support[split] = own.sum();
            // What is not in one half is in the other: half of the bits need not be counted.
            two.support[split] = all - one.support[split];
        }
        one.agree(self);
        two.agree(self);
        let (mut apart, mut taken) = (0, 0);
        for split in 0..self.splits.len() {
            let support = |half: &Half| u32::from(half.taken[split]) * half.support[split];
            // Whole numbers: sums of thousands of frequencies keep all digits, in any order.
            apart += u64::from(support(one).abs_diff(support(two)));
            taken += u32::from(one.taken[split]) + u32::from(two.taken[split]);
        }
        // The support of the splits of both halves if every tree had them.
        let whole = 0.5 * f64::from(self.count) * f64::from(taken);
        match taken {
            0 => 0.0,
            _ => apart as f64 / whole,
        }
    }
}

/// One half's consensus; kept from cut to cut for its `rival` table.
struct Half {
    /// For each split the number of the half's trees that have it.
    support: Vec<u32>,
    /// For each split: true if it is in the consensus.
    taken: Vec<bool>,
    /// For each split the one that excluded it the last time: it mostly does so again.
    rival: Vec<u32>,
}

impl Half {
    fn new(all: &Replicates) -> Self {
        let splits = all.splits.len();
        Self {
            support: vec![0; splits],
            taken: vec![false; splits],
            rival: vec![0; splits],
        }
    }

    /// Makes the consensus.
    fn agree(&mut self, all: &Replicates) {
        self.taken.fill(false);
        let most = self.support.iter().copied().max().unwrap_or(0);
        let mut by_support: Vec<Vec<u32>> = vec![Vec::new(); most.to_usize() + 1];
        for (split, &support) in self.support.iter().enumerate() {
            // A bucket sort: a thousand cuts each sort all splits. Equal supports stay in the order
            // of appearance, so that the result is one.
            by_support[support.to_usize()].push(split as u32);
        }
        let inner = all.taxa.len() - 3;
        let mut taken: Vec<u32> = Vec::with_capacity(inner);
        // Splits that occur in no tree of this half are left out.
        for &split in by_support[1..].iter().rev().flatten() {
            // A tree of n taxa has at most n - 3 inner branches.
            if taken.len() == inner {
                return;
            }
            let own = &all.splits[split.to_usize()];
            let rival = self.rival[split.to_usize()];
            let fits = |other: u32| own.is_compatible(&all.splits[other.to_usize()]);
            // The split that last excluded this one is tried first: most often it excludes it
            // again.
            if self.taken[rival.to_usize()] && !fits(rival) {
                continue;
            }
            match taken.iter().find(|&&other| !fits(other)) {
                Some(&other) => self.rival[split.to_usize()] = other,
                // Compatible in pairs is compatible as a set (Buneman's theorem), so pairs are all
                // that is tested.
                None => {
                    self.taken[split.to_usize()] = true;
                    taken.push(split);
                }
            }
        }
    }
}

/// Work items into which the cuts are divided.
const ITEMS: u32 = 64;
const CUT_STREAM: u64 = 0x9E37_79B9_7F4A_7C15;

/// Replicates of a rapid chain.
pub const CHAIN: u32 = 10;

#[cfg(test)]
mod tests {
    //! Convergence of bootstraps; the same on engines, with and without memory.

    use super::*;
    use crate::runner::Serial;
    use crate::tree::{Tree, random_tree};

    fn names(taxa: usize) -> Vec<String> {
        (0..taxa).map(|k| format!("t{k}")).collect()
    }

    /// `count` trees that are `moves` random interchanges away from one tree.
    fn replicates(taxa: usize, count: u32, moves: u32, seed: u64) -> Replicates {
        let names = names(taxa);
        let mut random = Random::new(seed);
        let tree = random_tree(taxa, 0.1, &mut random);
        let parsed = |tree: &Tree| Newick::parse(&tree.to_newick(&names)).unwrap();
        let mut all = Replicates::new(&parsed(&tree)).unwrap();
        for _ in 0..count {
            let mut moved = tree.clone();
            for _ in 0..moves {
                let edge = random.below(2 * taxa as u64 - 3) as usize;
                let edge = moved.edges().nth(edge).unwrap();
                let _ = moved.nni(edge, random.below(2) == 0);
            }
            all.add(&parsed(&moved)).unwrap();
        }
        all
    }

    #[test]
    fn equal_trees_have_converged_and_random_ones_have_not() {
        let options = Options {
            cuts: 100,
            ..Options::default()
        };
        let same = replicates(20, 50, 0, 1).test(1, &options, &Serial).unwrap();
        assert_eq!(
            (same.distance, same.within, same.converged),
            (0.0, 100, true)
        );
        let wild = replicates(20, 50, 60, 1)
            .test(1, &options, &Serial)
            .unwrap();
        assert!(wild.distance > 0.05 && !wild.converged, "{wild:?}");
        assert!(wild.within < 10, "{wild:?}");
        let one = replicates(20, 1, 0, 1).test(1, &options, &Serial).unwrap();
        assert!(!one.converged);
    }

    #[test]
    fn more_replicates_bring_halves_together() {
        let options = Options {
            cuts: 100,
            ..Options::default()
        };
        let at = |count| {
            let all = replicates(16, count, 2, 5);
            all.test(7, &options, &Serial).unwrap()
        };
        let verdicts = [20, 100, 800].map(at);
        assert!(
            verdicts.is_sorted_by(|a, b| a.distance > b.distance),
            "{verdicts:?}"
        );
        assert!(
            !verdicts[0].converged && verdicts[2].converged,
            "{verdicts:?}"
        );
    }

    #[test]
    fn the_answer_is_the_same_on_engines() {
        let all = replicates(30, 60, 4, 2);
        let options = Options {
            cuts: 130,
            ..Options::default()
        };
        let pool = sidecore_offload::Pool::start(sidecore_offload::PoolConfig {
            engines: 3,
            ..Default::default()
        })
        .unwrap();
        let serial = all.test(9, &options, &Serial).unwrap();
        assert_eq!(all.test(9, &options, &pool).unwrap(), serial);
        assert_ne!(
            all.test(10, &options, &Serial).unwrap().distance,
            serial.distance
        );
    }

    /// The consensus by its definition, without the state that a half keeps.
    fn agree_by_definition(all: &Replicates, support: &[u32]) -> Vec<bool> {
        let mut order: Vec<usize> = (0..all.splits.len()).collect();
        order.sort_by_key(|&split| std::cmp::Reverse(support[split]));
        let mut taken = vec![false; order.len()];
        for split in order.into_iter().filter(|&split| support[split] > 0) {
            let mut others = (0..taken.len()).filter(|&other| taken[other]);
            if others.all(|other| all.splits[split].is_compatible(&all.splits[other])) {
                taken[split] = true;
            }
        }
        taken
    }

    #[test]
    fn a_consensus_is_the_same_with_and_without_memory() {
        let all = replicates(24, 40, 6, 3);
        let mut halves = [Half::new(&all), Half::new(&all)];
        let mut whole = 0.0;
        for cut in 0..50 {
            whole += all.distance(4, cut, &mut halves);
            for half in &halves {
                assert_eq!(half.taken, agree_by_definition(&all, &half.support));
                // Each tree of the half has all its inner splits.
                assert_eq!(half.support.iter().sum::<u32>(), 20 * 21);
            }
        }
        assert!(whole > 0.0);
    }
}
