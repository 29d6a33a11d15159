//! An instance: the buffers of one client's likelihood, in chunks of patterns, and what is still to
//! be done to them.
//!
//! How: operations are checked and put down as steps at once, and run when a result or a value is
//! asked for. A loop over the chunks then does all of them, chunk by chunk, on as many engines as
//! the work is worth.
//! Must stay true: every index is checked before it becomes part of a step; an error changes
//! nothing.

use crate::abi::{Refusal, flag};
use crate::chunk::{Chunk, Context, Extents};
use crate::engines::{self, Width};
use crate::kernels::Kernels;
use crate::matrices::{Eigen, Matrix};
use crate::steps::{Gradient, Group, Order, Step, Sums, fused, runs};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_likelihood::kernel::SharedArena;
use std::ffi::{c_int, c_long};
use std::sync::OnceLock;

/// Numbers that an instance is made with, as the client gives them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) tips: c_int,
    pub(crate) partials: c_int,
    pub(crate) compact: c_int,
    pub(crate) states: c_int,
    pub(crate) patterns: c_int,
    pub(crate) models: c_int,
    pub(crate) matrices: c_int,
    pub(crate) categories: c_int,
    pub(crate) scales: c_int,
}

/// Ways to scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Manual,
    Auto,
    Always,
    Dynamic,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) tips: usize,
    pub(crate) buffers: usize,
    pub(crate) states: usize,
    pub(crate) patterns: usize,
    pub(crate) categories: usize,
    pub(crate) scales: usize,
    pub(crate) mode: Mode,
    pub(crate) logs: bool,
    pub(crate) complex: bool,
    pub(crate) transposed: bool,
    pub(crate) kernels: Kernels,
    pub(crate) width: Width,
    pub(crate) models: Models,
    pub(crate) matrices: Vec<Matrix>,
    /// The matrix that changes nothing; not set before a slope is wanted.
    pub(crate) identity: Matrix,
    /// True for tips with states.
    pub(crate) coded: Vec<bool>,
    /// The pattern at each place: chunks are of one partition.
    pub(crate) order: Vec<usize>,
    pub(crate) partitions: usize,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) pending: Vec<Step>,
    /// The last results, by group.
    pub(crate) results: Vec<Sums>,
    /// Matrices of earlier results, whose memory is used again.
    pub(crate) folded: Vec<Vec<Matrix>>,
}

/// Parts of the models, by index.
#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) eigen: Vec<Option<Eigen>>,
    pub(crate) rates: Vec<Vec<f64>>,
    pub(crate) frequencies: Vec<Option<Vec<f64>>>,
    pub(crate) weights: Vec<Option<Vec<f64>>>,
}

impl Instance {
    /// An instance whose flags are `wanted`.
    ///
    /// # Errors
    /// [`Refusal::OutOfRange`] for numbers that make no instance, [`Refusal::OutOfMemory`] for more
    /// than this machine's memory.
    pub(crate) fn new(counts: Counts, wanted: c_long) -> Result<Self, Refusal> {
        let [tips, partials, compact, models, matrices, scales] = [
            counts.tips,
            counts.partials,
            counts.compact,
            counts.models,
            counts.matrices,
            counts.scales,
        ]
        .map(count);
        let (tips, models, matrices, mut scales) = (tips?, models?, matrices?, scales?);
        // Both are below 2^31, so the sum fits.
        let buffers = partials? + compact?;
        let [states, patterns, categories] =
            [counts.states, counts.patterns, counts.categories].map(at_least_one);
        let (states, patterns, categories) = (states?, patterns?, categories?);
        let inner = buffers.checked_sub(tips).ok_or(Refusal::OutOfRange)?;
        // A client may allow several ways; the one that asks least of it comes first.
        let mode = match wanted {
            _ if wanted & flag::SCALING_AUTO != 0 => Mode::Auto,
            _ if wanted & flag::SCALING_ALWAYS != 0 => Mode::Always,
            _ if wanted & flag::SCALING_DYNAMIC != 0 => Mode::Dynamic,
            _ => Mode::Manual,
        };
        let logs = match mode {
            Mode::Auto | Mode::Always => true,
            Mode::Dynamic => false,
            Mode::Manual => wanted & flag::SCALERS_LOG != 0,
        };
        match mode {
            // The last one is for edges.
            Mode::Always => scales = inner + 1,
            // The sum of what was taken is in the first buffer, which the client may not have.
            Mode::Auto => scales = scales.max(1),
            Mode::Dynamic | Mode::Manual => {}
        }
        let kernels = Kernels::new(states, categories, is_single(wanted));
        // Checked before the first allocation: one that fails ends the process.
        budget(kernels, states, patterns, [buffers, matrices, scales])?;
        let mut instance = Self {
            tips,
            buffers,
            states,
            patterns,
            categories,
            scales,
            mode,
            logs,
            complex: wanted & flag::EIGEN_COMPLEX != 0,
            transposed: wanted & flag::INVEVEC_TRANSPOSED != 0,
            kernels,
            width: Width::of_environment(),
            models: Models {
                eigen: (0..models).map(|_| None).collect(),
                // Without models there is still one set of rates, frequencies and weights.
                rates: vec![vec![1.0; categories]; models.max(1)],
                frequencies: vec![None; models.max(1)],
                weights: vec![None; models.max(1)],
            },
            matrices: (0..matrices).map(|_| Matrix::default()).collect(),
            identity: Matrix::default(),
            coded: vec![false; buffers],
            order: (0..patterns).collect(),
            partitions: 1,
            chunks: Vec::new(),
            pending: Vec::new(),
            results: Vec::new(),
            folded: Vec::new(),
        };
        instance.chunks = instance.chunks_of(&vec![0; patterns]);
        Ok(instance)
    }

    /// Flags of the instance.
    pub(crate) fn flags(&self, wanted: c_long) -> c_long {
        let one_of = |first: bool, yes: c_long, no: c_long| if first { yes } else { no };
        let scaling = match self.mode {
            Mode::Manual => flag::SCALING_MANUAL,
            Mode::Auto => flag::SCALING_AUTO,
            Mode::Always => flag::SCALING_ALWAYS,
            Mode::Dynamic => flag::SCALING_DYNAMIC,
        };
        let threads = wanted & flag::THREADING_CPP != 0;
        let vectors = flag::VECTOR_SSE | flag::VECTOR_AVX | flag::VECTOR_NONE;
        let vector = match wanted & vectors {
            0 => flag::VECTOR_AVX,
            // The lowest one that was asked for: a client compares.
            some => some & some.wrapping_neg(),
        };
        scaling
            | one_of(self.logs, flag::SCALERS_LOG, flag::SCALERS_RAW)
            | one_of(self.complex, flag::EIGEN_COMPLEX, flag::EIGEN_REAL)
            | one_of(
                self.transposed,
                flag::INVEVEC_TRANSPOSED,
                flag::INVEVEC_STANDARD,
            )
            | one_of(
                self.kernels.single().is_some(),
                flag::PRECISION_SINGLE,
                flag::PRECISION_DOUBLE,
            )
            | one_of(threads, flag::THREADING_CPP, flag::THREADING_NONE)
            | vector
            | flag::COMPUTATION_SYNCH
            | flag::PROCESSOR_CPU
            | flag::FRAMEWORK_CPU
    }

    /// Chunks for patterns whose partitions are given, in the order of patterns.
    pub(crate) fn chunks_of(&self, partitions: &[usize]) -> Vec<Chunk> {
        let wished = (CHUNK_BYTES / self.kernels.span_bytes()).clamp(PATTERNS_MIN, PATTERNS_MAX);
        let extents = Extents {
            nodes: self.buffers,
            scales: self.scales,
            // Old factors are removed before the first were written: 1 has the logarithm 0.
            scale: if self.mode == Mode::Dynamic { 1.0 } else { 0.0 },
            inner: self.buffers - self.tips,
        };
        let arena = SharedArena::new();
        let mut chunks = Vec::new();
        let mut first = 0;
        // A chunk has patterns of one partition, so that steps of others skip it.
        let runs = self.order.chunk_by(|&a, &b| partitions[a] == partitions[b]);
        for run in runs {
            let groups = run.len().div_ceil(PATTERNS_MULTIPLE);
            let pieces = even(run.len().div_ceil(wished)).min(groups);
            let mut rest = run;
            for left in (1..=pieces).rev() {
                // Pieces of even size: a short one at the end would leave an engine idle.
                let share = rest.len().div_ceil(PATTERNS_MULTIPLE).div_ceil(left);
                let (piece, after) = rest.split_at(rest.len().min(share * PATTERNS_MULTIPLE));
                rest = after;
                let partition = partitions[piece[0]];
                chunks.push(Chunk::new(
                    self.kernels,
                    extents,
                    partition,
                    first,
                    piece.len(),
                    &arena,
                ));
                first += piece.len();
            }
        }
        chunks
    }

    /// Puts a step down; many are run before more are taken.
    pub(crate) fn put(&mut self, step: Step) -> Result<(), Refusal> {
        self.make_room()?;
        self.pending.push(step);
        Ok(())
    }

    /// Before steps are put down.
    pub(crate) fn make_room(&mut self) -> Result<(), Refusal> {
        // Bounded: a client may go on for ever without asking for a result.
        match self.pending.len() >= PENDING_MAX {
            true => self.settle(),
            false => Ok(()),
        }
    }

    /// Runs all steps that were put down.
    pub(crate) fn settle(&mut self) -> Result<(), Refusal> {
        match self.pending.is_empty() {
            true => Ok(()),
            false => self.run(&[], None),
        }
    }

    /// Runs all steps, then gets the results of the groups, and the slopes of a gradient.
    pub(crate) fn run(
        &mut self,
        groups: &[Group],
        gradient: Option<&Gradient>,
    ) -> Result<(), Refusal> {
        // Taken even if the run fails: some chunks may have done them already.
        let steps = std::mem::take(&mut self.pending);
        for step in &steps {
            if let Step::Update(update) = step {
                for (at, (source, matrix)) in update.sources.iter().zip(update.matrices).enumerate()
                {
                    // Forms that are made on demand are made here: chunks only share matrices.
                    let matrix = &mut self.matrices[matrix];
                    match (update.order, self.coded[*source]) {
                        // Partials go down the node's own branch, so its
                        // matrix is needed transposed.
                        (Order::Pre, _) if at == 0 => matrix.transpose(self.kernels),
                        (_, true) => matrix.tabulate(self.kernels, self.states),
                        (_, false) => matrix.round(self.kernels),
                    }
                }
            }
        }
        let context = Context {
            kernels: self.kernels,
            matrices: &self.matrices,
            logs: self.logs,
        };
        let slopes = gradient.map_or(0, |gradient| gradient.branches.len());
        let ns = self.nanoseconds(&steps, groups) + self.likelihoods_ns(2 * slopes);
        let identity = &self.identity;
        // Single precision has no kernel for some patterns of a slope.
        let is_fused = gradient.is_some() && self.kernels.single().is_none();
        let fused = if is_fused { fused(&steps) } else { steps.len() };
        let (steps_before, fused) = steps.split_at(fused);
        // Once for all chunks.
        let runs = runs(steps_before);
        engines::run(self.width, ns, &mut self.chunks, |chunk| {
            chunk.run(context, &runs, groups);
            if let Some(gradient) = gradient {
                chunk.gradient(context, identity, fused, gradient);
            }
        })?;
        if !groups.is_empty() {
            self.results.clear();
            self.results.resize(groups.len(), Sums::default());
            // In the order of chunks, so the sum does not depend on which engine was first.
            for chunk in &self.chunks {
                for (sum, result) in self.results.iter_mut().zip(&chunk.results) {
                    *sum += *result;
                }
            }
        }
        drop(runs);
        // The list's memory is used again.
        let mut steps = steps;
        steps.clear();
        self.pending = steps;
        Ok(())
    }

    /// About how long one core takes.
    fn nanoseconds(&self, steps: &[Step], groups: &[Group]) -> u64 {
        let node = self.node_picoseconds();
        let picoseconds: u64 = steps
            .iter()
            .map(|step| match step {
                Step::Update(_) => node,
                Step::Accumulate { from, .. } => from.len().to_u64() * PICOSECONDS_LOG,
                Step::Collect { .. } | Step::Reset { .. } | Step::Copy { .. } => 0,
            })
            .sum();
        let members: usize = groups.iter().map(|group| group.members.len()).sum();
        let steps = picoseconds.saturating_mul(self.patterns.to_u64()) / 1000;
        steps.saturating_add(self.likelihoods_ns(members))
    }

    /// About how long one core takes for the likelihoods of some models.
    pub(crate) fn likelihoods_ns(&self, models: usize) -> u64 {
        let each = self.node_picoseconds() + PICOSECONDS_LOG;
        let all = models.to_u64().saturating_mul(each);
        all.saturating_mul(self.patterns.to_u64()) / 1000
    }

    /// Picoseconds of a pattern at a node.
    fn node_picoseconds(&self) -> u64 {
        let padded = self.kernels.shape().states.to_u64();
        // Vectors of floats have twice the entries.
        let entry = match self.kernels.single() {
            Some(_) => PICOSECONDS / 2,
            None => PICOSECONDS,
        };
        self.categories.to_u64() * padded * padded * entry
    }
}

/// `pieces`, or a few more: a number that two engines share without a rest and, beyond a few, four
/// engines. The machine's cores do not count: sums over chunks would depend on them.
fn even(pieces: usize) -> usize {
    match pieces {
        ..=1 => pieces,
        2..=4 => pieces.next_multiple_of(2),
        _ => pieces.next_multiple_of(4),
    }
}

/// True if an instance is of single precision: a client that allows both gets doubles.
fn is_single(wanted: c_long) -> bool {
    wanted & flag::PRECISION_DOUBLE == 0 && wanted & flag::PRECISION_SINGLE != 0
}

/// A number of things.
pub(crate) fn count(count: c_int) -> Result<usize, Refusal> {
    u32::try_from(count)
        .map(ToUsize::to_usize)
        .map_err(|_| Refusal::OutOfRange)
}

fn at_least_one(number: c_int) -> Result<usize, Refusal> {
    count(number).and_then(|number| match number {
        0 => Err(Refusal::OutOfRange),
        number => Ok(number),
    })
}

/// Refuses what is beyond this machine's memory, or beyond what an index of a matrix holds.
fn budget(
    kernels: Kernels,
    states: usize,
    patterns: usize,
    [buffers, matrices, scales]: [usize; 3],
) -> Result<(), Refusal> {
    let padded = states.next_multiple_of(4);
    if padded.saturating_mul(kernels.shape().rates) > COLUMNS_MAX {
        return Err(Refusal::NoImplementation);
    }
    let values = buffers
        .checked_mul(patterns)
        .and_then(|all| all.checked_mul(kernels.span_bytes()))
        .map(|bytes| bytes / size_of::<f64>());
    let entries = matrices.checked_mul(kernels.shape().matrix());
    let scales = scales.checked_mul(patterns);
    let mut doubles = [values, entries, scales].into_iter();
    // An overflow is more memory than there is, too.
    let doubles = doubles.try_fold(0_usize, |sum, part| sum.checked_add(part?));
    let bytes = doubles.and_then(|doubles| doubles.checked_mul(size_of::<f64>()));
    match bytes {
        Some(bytes) if bytes.to_u64() <= memory() => Ok(()),
        _ => Err(Refusal::OutOfMemory),
    }
}

/// Bytes of memory of this machine; without limit where it does not say.
fn memory() -> u64 {
    // Read once: it was most of the time that a small instance took.
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let line = line.map(|line| line.trim().trim_end_matches("kB").trim());
        let kibibytes: Option<u64> = line.and_then(|line| line.parse().ok());
        kibibytes.map_or(u64::MAX, |kibibytes| kibibytes.saturating_mul(1024))
    })
}

/// Bytes of one buffer of a chunk: a node and its children stay in the second-level cache.
const CHUNK_BYTES: usize = 64 << 10;
const PATTERNS_MIN: usize = 32;
const PATTERNS_MAX: usize = 2048;
/// Kernels take patterns in groups of this many.
const PATTERNS_MULTIPLE: usize = 16;
/// Steps that may wait.
const PENDING_MAX: usize = 16_384;
/// Columns of the matrices of all categories, at most: the kernels' indices have 16 bits.
const COLUMNS_MAX: usize = 65_536;
/// Picoseconds of one entry of a matrix times one of a span, both children together.
const PICOSECONDS: u64 = 60;
/// Picoseconds of a logarithm.
const PICOSECONDS_LOG: u64 = 6_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_share_the_chunks_of_an_alignment_evenly() {
        for (states, patterns, chunks) in [
            (4, 1, 1),
            (4, 512, 1),
            (4, 513, 2),
            (4, 1_100, 4),
            (4, 6_394, 16),
            (20, 1_000, 12),
        ] {
            let counts = Counts {
                tips: 2,
                partials: 1,
                compact: 2,
                states,
                patterns,
                models: 1,
                matrices: 2,
                categories: 4,
                scales: 0,
            };
            let instance = Instance::new(counts, flag::PRECISION_DOUBLE);
            let lengths = |instance: Instance| {
                let lengths = instance.chunks.iter().map(Chunk::patterns);
                lengths.collect::<Vec<_>>()
            };
            let lengths = instance.map(lengths).unwrap_or_default();
            assert_eq!(lengths.len(), chunks, "{patterns} patterns: {lengths:?}");
            let most = lengths.iter().max().copied().unwrap_or(0);
            // One group of patterns more or less, of which the last may be short.
            let near = |&length: &usize| length + 2 * PATTERNS_MULTIPLE > most;
            assert!(lengths.iter().all(near), "{lengths:?}");
        }
    }
}
