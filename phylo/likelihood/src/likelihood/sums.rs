//! Sums over the chunks of all processes.
//!
//! Why here: where a search is split among processes ([`crate::runner::split`]), a likelihood holds
//! only a share of the chunks, and every sum needs the terms of all processes. No other file of
//! this folder adds over chunks.
//! Must stay true: terms are added in a tree that depends on the number of all chunks alone, so a
//! sum has the same bits on any number of processes; nothing is allocated after the widest sum.

use super::Part;
use super::chunk::{Chunk, Unseen};
use super::chunks::Chunks;
use super::exchange::{Exchange, chunk_range};
use crate::kernel::Derivatives;
use crate::runner::{Runner, sum_in_tree_at, sum_in_tree_of};
use std::ops::Range;

impl<R: Runner> Chunks<R> {
    /// The sum of a term of each chunk of some partitions.
    pub(super) fn sum(&mut self, parts: Range<usize>, term: impl Fn(&Chunk) -> f64) -> f64 {
        let mut sum = 0.0;
        self.sums(parts, 1, |chunk, _| term(chunk), |_, found| sum = found);
        sum
    }

    /// The sum of the last derivatives of some partitions' chunks; `scale` leads from the length
    /// that they are derivatives by to each partition's own.
    pub(super) fn sum_slopes(
        &mut self,
        parts: Range<usize>,
        scale: impl Fn(usize) -> f64,
    ) -> Derivatives {
        let mut sum = [0.0; 2];
        let term = |chunk: &Chunk, k| {
            let (slope, scale) = (chunk.slope(), scale(chunk.part()));
            match k {
                0 => slope.first * scale,
                // The chain rule: each partition's length is the tree's times its scale.
                _ => slope.second * scale * scale,
            }
        };
        self.sums(parts, 2, term, |k, found| sum[k] = found);
        let [first, second] = sum;
        Derivatives { first, second }
    }

    /// `width` sums over the chunks of some partitions: `term` gives a chunk's term of the `k`th,
    /// `tell` receives the `k`th sum.
    pub(super) fn sums(
        &mut self,
        parts: Range<usize>,
        width: usize,
        term: impl Fn(&Chunk, usize) -> f64,
        mut tell: impl FnMut(usize, f64),
    ) {
        if self.runner.share().count == 1 {
            let own = &self.own[self.of_parts(parts)];
            for k in 0..width {
                tell(k, sum_in_tree_of(own, |chunk| term(chunk, k)));
            }
            return;
        }
        let len = self.bounds[parts.end] - self.bounds[parts.start];
        // The sum of a block is a subtree of the summation tree, so the block's owner adds it.
        let len = len.div_ceil(self.block);
        let gathered = self.gather(parts, width, self.block, term);
        for k in 0..width {
            tell(k, sum_in_tree_at(0..len, &|at| gathered.term(at, k)));
        }
        self.exchange = gathered.exchange;
    }

    /// The log-likelihoods of a partition's patterns, as evaluated last; an ascertainment
    /// correction is spread over the sites.
    pub(super) fn pattern_log_likelihoods(&mut self, parts: &[Part], part: usize) -> Vec<f64> {
        let (patterns, sites) = (parts[part].patterns().len(), parts[part].sites());
        let corrected = usize::from(Unseen::of(&parts[part]).is_some());
        let chunks = self.bounds[part + 1] - self.bounds[part] - corrected;
        let width = patterns.div_ceil(chunks);
        // The last chunk of a corrected partition has no sites, but the correction of all.
        let term = |chunk: &Chunk, k| match chunk.is_unseen() {
            true => chunk.lnl(),
            false => chunk.site_lnl().get(k).copied().unwrap_or(0.0),
        };
        // One chunk a unit: the blocks' owners must not add here.
        let gathered = self.gather(part..part + 1, width, 1, term);
        let share = match corrected {
            0 => 0.0,
            _ => gathered.term(chunks, 0) / sites as f64,
        };
        let mut found = Vec::with_capacity(patterns);
        for at in 0..chunks {
            let len = chunk_range(patterns, chunks, at).len();
            found.extend((0..len).map(|k| gathered.term(at, k) + share));
        }
        self.exchange = gathered.exchange;
        found
    }

    /// The shares of a partition's categories, pattern by pattern, as evaluated last.
    pub(super) fn gather_categories(&mut self, parts: &[Part], part: usize) -> Vec<f64> {
        let (patterns, rates) = (
            parts[part].patterns().len(),
            parts[part].process().shape.rates,
        );
        let corrected = usize::from(Unseen::of(&parts[part]).is_some());
        let chunks = self.bounds[part + 1] - self.bounds[part] - corrected;
        let width = patterns.div_ceil(chunks) * rates;
        let term = |chunk: &Chunk, k: usize| match chunk.is_unseen() {
            true => 0.0,
            false => chunk.shares().get(k).copied().unwrap_or(0.0),
        };
        let gathered = self.gather(part..part + 1, width, 1, term);
        let mut found = Vec::with_capacity(patterns * rates);
        for at in 0..chunks {
            let len = chunk_range(patterns, chunks, at).len();
            found.extend((0..len * rates).map(|k| gathered.term(at, k)));
        }
        self.exchange = gathered.exchange;
        found
    }

    /// All processes' `width` terms of each `unit` chunks of some partitions, added in the tree:
    /// of every chunk, or of every block.
    fn gather(
        &mut self,
        parts: Range<usize>,
        width: usize,
        unit: usize,
        term: impl Fn(&Chunk, usize) -> f64,
    ) -> Gathered {
        let (count, block) = (self.runner.share().count, self.block / unit);
        let first = self.bounds[parts.start];
        let blocks = (self.bounds[parts.end] - first).div_ceil(self.block);
        let rows = blocks.div_ceil(count) * block;
        // The buffers are reused: repeated evaluations allocate nothing.
        let mut exchange = std::mem::take(&mut self.exchange);
        exchange.own.clear();
        for chunks in self.own[self.of_parts(parts)].chunks(unit) {
            let sum = |k| sum_in_tree_of(chunks, |chunk| term(chunk, k));
            // Row by row, so that one exchange serves all sums of a call.
            exchange.own.extend((0..width).map(sum));
        }
        // All processes send the same number of terms, even if one has a block less.
        exchange.own.resize(rows * width, 0.0);
        exchange.all.resize(rows * width * count, 0.0);
        // One exchange a call: its latency is what a small alignment on many processes waits for.
        self.runner.gather(&exchange.own, &mut exchange.all);
        Gathered {
            exchange,
            first,
            count,
            block,
            rows,
            width,
        }
    }
}

/// All processes' terms, indexed by place.
struct Gathered {
    exchange: Exchange,
    /// The first chunk, counted over all partitions.
    first: usize,
    count: usize,
    /// Chunks of a block.
    block: usize,
    rows: usize,
    width: usize,
}

impl Gathered {
    /// The `k`th term of the chunk, or block, that is `at` after the first.
    fn term(&self, at: usize, k: usize) -> f64 {
        let block = at / self.block;
        let owner = (self.first + block) % self.count;
        let row = block / self.count * self.block + at % self.block;
        self.exchange.all[(owner * self.rows + row) * self.width + k]
    }
}
