//! This process's chunks of all partitions, and the loops over them.
//!
//! Why here: where a search is split among processes ([`crate::runner::split`]), a likelihood holds
//! only a share of the chunks; their numbers count all of them.
//! Must stay true: chunks are ordered by partition; a loop gives each chunk to one engine, which
//! reads the partitions' tables and writes the chunk alone.

use super::chunk::{Chunk, Unseen, room_bytes};
use super::exchange::{self, Exchange};
use super::validity::Step;
use super::{LikelihoodError, Options, Part, PartOptions};
use crate::kernel::repeats::{Classes, Pairs};
use crate::kernel::{Isa, Shape, SharedArena};
use crate::msa::Patterns;
use crate::runner::{Runner, Work};
use crate::tree::{HalfId, Tree};
use sidecore_bare::width::ToU64;
use sidecore_offload::OffloadError;
use std::collections::HashMap;
use std::ops::Range;

/// This process's share of the chunks, and the engines that run them.
#[derive(Debug)]
pub(super) struct Chunks<R> {
    /// In order.
    pub(super) own: Vec<Chunk>,
    /// For each partition the number of its first chunk, counted over all processes; then the
    /// number of all chunks.
    pub(super) bounds: Vec<usize>,
    /// Size of a block: neighbouring chunks that belong to one process together.
    pub(super) block: usize,
    pub(super) exchange: Exchange,
    pub(super) runner: R,
    options: Options,
    /// Estimated time of one core for one node's CLV.
    newview_ns: f64,
}

impl<R: Runner> Chunks<R> {
    /// Cuts the partitions' patterns, for trees of `nodes` inner nodes.
    pub(super) fn new(parts: &[Part], nodes: usize, runner: R, options: Options) -> Self {
        let mut bounds = vec![0];
        for (number, part) in parts.iter().enumerate() {
            // Chunks are cut by bytes, so that protein and codon chunks fit the cache as well as
            // DNA's.
            let size = patterns_of(part.process().shape, options);
            let unseen = usize::from(Unseen::of(part).is_some());
            bounds.push(bounds[number] + part.patterns().len().div_ceil(size) + unseen);
        }
        let share = runner.share();
        // The bounds count the chunks of all processes; only this process's share is allocated.
        let block = exchange::block(parts.len(), bounds[parts.len()], share.count);
        let arena = SharedArena::new();
        let mut own = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let (first, mut count) = (bounds[number], bounds[number + 1] - bounds[number]);
            let has = |k: usize| share.has((first + k) / block);
            let unseen = Unseen::of(part);
            // A correction is one more chunk, the partition's last.
            count -= usize::from(unseen.is_some());
            for k in (0..count).filter(|&k| has(k)) {
                let range = exchange::chunk_range(part.patterns().len(), count, k);
                own.push(Chunk::new(number, part, range, nodes, &arena));
            }
            if let Some(unseen) = unseen.filter(|_| has(count)) {
                own.push(Chunk::unseen(number, part, unseen, nodes, &arena));
            }
        }
        let mut chunks = Self {
            own,
            bounds,
            block,
            exchange: Exchange::default(),
            runner,
            options,
            newview_ns: 0.0,
        };
        // A rough estimate, by which the runner decides if a loop is worth an engine.
        for chunk in &chunks.own {
            let shape = parts[chunk.part()].process().shape;
            chunks.newview_ns += (shape.matrix() * chunk.patterns()) as f64 * ENTRY_NS;
        }
        (0..parts.len()).for_each(|part| chunks.refresh_invariable(parts, part));
        chunks
    }

    /// Number of chunks.
    pub(super) fn len(&self) -> usize {
        self.own.len()
    }

    /// The chunks of some partitions.
    pub(super) fn of_parts(&self, parts: Range<usize>) -> Range<usize> {
        let before = |part| self.own.partition_point(|chunk| chunk.part() < part);
        before(parts.start)..before(parts.end)
    }

    /// Sets the weights of a partition's patterns.
    pub(super) fn set_weights(&mut self, part: usize, weights: &[f64]) {
        let (own, mut left) = (self.of_parts(part..part + 1), weights);
        for chunk in self.own[own].iter_mut().filter(|chunk| !chunk.is_unseen()) {
            let (first, rest) = left.split_at(chunk.patterns());
            chunk.set_weights(first);
            left = rest;
        }
    }

    /// Sets the contribution of invariable sites under a partition's model.
    pub(super) fn refresh_invariable(&mut self, parts: &[Part], part: usize) {
        let own = self.of_parts(part..part + 1);
        for chunk in &mut self.own[own] {
            chunk.set_invariable(parts[part].process());
        }
    }

    /// Runs a plan's steps, then `then`, chunk by chunk; `then` takes as long as `more` newviews.
    pub(super) fn run_steps(
        &mut self,
        parts: &[Part],
        steps: &[Step],
        chunks: Range<usize>,
        more: f64,
        then: impl Fn(&mut Chunk, &Part, Isa) + Sync,
    ) -> Result<(), LikelihoodError> {
        let options = self.options;
        let chunks = match steps.iter().any(|step| step.repeats) {
            // Repeats are marked for all chunks at once.
            true => 0..self.own.len(),
            false => chunks,
        };
        let newviews = steps.len() as f64 + more;
        self.run(
            parts,
            Work::Traverse,
            chunks,
            newviews,
            |chunk, part, isa| {
                // Chunk by chunk: a node's CLV is still in the cache when its parent reads it.
                for step in steps {
                    chunk.newview(part, step, options);
                }
                then(chunk, part, isa);
            },
        )?;
        Ok(())
    }

    /// Runs `unit` on some chunks, on each as long as `newviews` newviews.
    pub(super) fn run(
        &mut self,
        parts: &[Part],
        work: Work,
        chunks: Range<usize>,
        newviews: f64,
        unit: impl Fn(&mut Chunk, &Part, Isa) + Sync,
    ) -> Result<(), OffloadError> {
        let share = chunks.len() as f64 / self.own.len() as f64;
        let ns = (self.newview_ns * share * newviews) as u64;
        let isa = self.options.isa;
        // The estimate is for all chunks; some have a share of it.
        let own = &mut self.own[chunks];
        self.runner.run_sized(work, ns, own, |chunk| {
            unit(chunk, &parts[chunk.part()], isa);
        })
    }

    /// The same on all chunks.
    pub(super) fn run_all(
        &mut self,
        parts: &[Part],
        work: Work,
        newviews: f64,
        unit: impl Fn(&mut Chunk, &Part, Isa) + Sync,
    ) -> Result<(), OffloadError> {
        self.run(parts, work, 0..self.own.len(), newviews, unit)
    }
}

/// The most patterns of a chunk.
fn patterns_of(shape: Shape, options: Options) -> usize {
    let bytes = shape.span() * size_of::<f64>();
    (options.chunk_bytes / bytes).clamp(CHUNK_MIN, CHUNK_MAX)
}

/// Approximate bytes of memory that a [`Likelihood`] of a tree takes for its CLVs and site repeats,
/// all CLVs seen from one tip. Takes about as long as finding the site repeats.
///
/// # Panics
/// When a partition has another number of taxa than the tree.
///
/// [`Likelihood`]: super::Likelihood
#[must_use]
pub fn clv_bytes(tree: &Tree, parts: &[PartOptions], options: Options) -> u64 {
    let order = tree.post_order(tree.back(HalfId(0)), |_| true);
    let mut bytes = 0;
    for part in parts {
        let (patterns, shape) = (&part.patterns, part.model.process().shape);
        assert_eq!(patterns.taxa(), tree.taxa(), "taxa of a partition");
        let count = patterns.len().div_ceil(patterns_of(shape, options));
        for k in 0..count {
            let range = exchange::chunk_range(patterns.len(), count, k);
            bytes += chunk_bytes(tree, &order, patterns, range, shape);
        }
    }
    bytes
}

/// The same of one chunk.
fn chunk_bytes(
    tree: &Tree,
    order: &[HalfId],
    patterns: &Patterns,
    range: Range<usize>,
    shape: Shape,
) -> u64 {
    let (len, code_count) = (range.len(), patterns.masks().len());
    let identity: Vec<u16> = (0..=u16::MAX).take(len).collect();
    let mut pairs = Pairs::default();
    // Of each node until its parent has read it.
    let mut made: HashMap<HalfId, Classes> = HashMap::new();
    let mut bytes = 0;
    for &half in order {
        let children = tree.others(half).map(|other| tree.back(other));
        let codes = children.map(|child| match tree.is_tip(child) {
            true => patterns.codes(child.index())[range.clone()].to_vec(),
            false => Vec::new(),
        });
        let codes = codes.map(|own| own.into_iter().map(u16::from).collect::<Vec<u16>>());
        let below = children.map(|child| made.remove(&child));
        let both: [(&[u16], usize); 2] = std::array::from_fn(|at| match &below[at] {
            Some(own) => (own.of_pattern().unwrap_or(&identity), own.count()),
            None => (&codes[at][..], code_count),
        });
        let mut classes = Classes::default();
        let [(left, a), (right, b)] = both;
        classes.join(left, right, [a, b], &mut pairs);
        bytes += room_bytes(classes.count(), len, shape);
        // The classes of all three directions, most of them much alike.
        bytes += (REPEATS_BYTES * len + DIRECTIONS_BYTES).to_u64();
        made.insert(half, classes);
    }
    bytes
}

/// Cost of one matrix entry for a pattern, everything included: DNA with four rates has 64 entries
/// and takes about seven nanoseconds a node.
const ENTRY_NS: f64 = 0.1;
/// Bounds of a chunk's patterns: with fewer, the calls cost more than the chunks gain; more would
/// not fit the classes' 16-bit numbers.
const CHUNK_MIN: usize = 32;
/// Memory of a node's site repeats: for each pattern, and besides.
const REPEATS_BYTES: usize = 8;
const DIRECTIONS_BYTES: usize = 256;
const CHUNK_MAX: usize = crate::kernel::repeats::PATTERNS_MAX;
