//! Data that clients set and get: tips, partials, models, matrices, weights, partitions.

use crate::abi::{NONE, Refusal};
use crate::chunk::Chunk;
use crate::engines;
use crate::instance::{Instance, Mode, Models, count};
use crate::kernels::Kernels;
use crate::matrices::{Eigen, Matrix};
use sidecore_bare::width::ToU64;
use std::ffi::c_int;

/// An index below `limit`.
pub(crate) fn below(index: c_int, limit: usize) -> Result<usize, Refusal> {
    count(index)
        .ok()
        .filter(|index| *index < limit)
        .ok_or(Refusal::OutOfRange)
}

/// An index below `limit`, or none.
pub(crate) fn below_or_none(index: c_int, limit: usize) -> Result<Option<usize>, Refusal> {
    match index {
        NONE => Ok(None),
        index => below(index, limit).map(Some),
    }
}

/// A branch whose matrices are wanted, as the client names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Branch {
    pub(crate) model: c_int,
    pub(crate) rates: c_int,
    /// The matrix, and those of its derivatives.
    pub(crate) indices: [Option<c_int>; 3],
    pub(crate) length: f64,
}

/// Matrices that are made.
struct Job {
    model: usize,
    rates: usize,
    length: f64,
    indices: Indices,
    /// Empty unless engines make them.
    made: Vec<Matrix>,
}

/// The places of a matrix and its derivatives, up to the last that is wanted.
#[derive(Debug, Clone, Copy)]
struct Indices {
    all: [Option<usize>; 3],
    number: usize,
}

impl Indices {
    fn iter(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        self.all[..self.number].iter().copied()
    }
}

impl Job {
    fn make(&self, kernels: Kernels, models: &Models, made: &mut [Matrix]) {
        // There is one: `Instance::job` looked.
        if let Some(eigen) = &models.eigen[self.model] {
            eigen.matrices(kernels, &models.rates[self.rates], self.length, made);
        }
    }
}

impl Instance {
    /// Doubles of a matrix as clients see it.
    pub(crate) fn matrix_entries(&self) -> usize {
        self.categories * self.states * self.states
    }

    /// Doubles of partials as clients see them.
    pub(crate) fn partials_entries(&self) -> usize {
        self.categories * self.patterns * self.states
    }

    pub(crate) fn set_tip_states(&mut self, tip: c_int, states: &[c_int]) -> Result<(), Refusal> {
        let tip = below(tip, self.tips)?;
        // Steps that wait read the states that the tip has now.
        self.settle()?;
        let unknown = self.states;
        // Negative numbers and numbers beyond the states are unknown, as the interface says.
        let code = |state: c_int| count(state).unwrap_or(unknown).min(unknown);
        // A shape's states are at most the columns of a matrix, which have 16 bits.
        let codes = states
            .iter()
            .map(|&state| u16::try_from(code(state)).unwrap_or(u16::MAX));
        let codes: Vec<u16> = codes.collect();
        for chunk in &mut self.chunks {
            // Chunks are sorted by partition; `order` maps them to the client's patterns.
            let places = &self.order[chunk.first..][..chunk.patterns()];
            let of_chunk = places.iter().map(|&pattern| codes[pattern]).collect();
            chunk.set_codes(tip, of_chunk);
        }
        self.coded[tip] = true;
        Ok(())
    }

    /// `partials` are a category's, the same for all.
    pub(crate) fn set_tip_partials(&mut self, tip: c_int, partials: &[f64]) -> Result<(), Refusal> {
        let tip = below(tip, self.tips)?;
        let states = self.states;
        self.set(tip, |_, pattern| &partials[pattern * states..][..states])
    }

    /// `partials` are category by category.
    pub(crate) fn set_partials(&mut self, buffer: c_int, partials: &[f64]) -> Result<(), Refusal> {
        let buffer = below(buffer, self.buffers)?;
        let (states, patterns) = (self.states, self.patterns);
        self.set(buffer, |category, pattern| {
            &partials[(category * patterns + pattern) * states..][..states]
        })
    }

    /// Gives all patterns and categories of buffers the frequencies of a model each. All are
    /// checked first.
    pub(crate) fn set_root_pre_partials(
        &mut self,
        buffers: impl Iterator<Item = (c_int, c_int)>,
    ) -> Result<(), Refusal> {
        let buffers = buffers.map(|(buffer, frequencies)| {
            let buffer = below(buffer, self.buffers)?;
            let frequencies = below(frequencies, self.models.frequencies.len())?;
            let frequencies = self.models.frequencies[frequencies].clone();
            Ok((buffer, frequencies.ok_or(Refusal::OutOfRange)?))
        });
        for (buffer, frequencies) in buffers.collect::<Result<Vec<_>, Refusal>>()? {
            self.set(buffer, |_, _| &frequencies)?;
        }
        Ok(())
    }

    fn set<'a>(
        &mut self,
        buffer: usize,
        entries: impl Fn(usize, usize) -> &'a [f64],
    ) -> Result<(), Refusal> {
        // Steps that wait read the values that the buffer has now.
        self.settle()?;
        let kernels = self.kernels;
        for chunk in &mut self.chunks {
            let places = &self.order[chunk.first..][..chunk.patterns()];
            let values = chunk.spans_of_patterns(kernels, buffer);
            for (k, &pattern) in places.iter().enumerate() {
                for category in 0..self.categories {
                    let at = k * kernels.span() + kernels.place(category);
                    values.set(at, entries(category, pattern));
                }
            }
        }
        self.coded[buffer] = false;
        Ok(())
    }

    /// Partials category by category, multiplied by the exponential of a scale buffer. Of a tip's
    /// states 1 each, of unknown ones everywhere.
    pub(crate) fn partials(
        &mut self,
        buffer: c_int,
        scale: c_int,
        to: &mut [f64],
    ) -> Result<(), Refusal> {
        let buffer = below(buffer, self.buffers)?;
        let scale = below_or_none(scale, self.scales)?;
        self.settle()?;
        let kernels = self.kernels;
        let mut span = vec![0.0; self.categories * self.states];
        for chunk in &mut self.chunks {
            let places = &self.order[chunk.first..][..chunk.patterns()];
            let factors: Vec<f64> = match scale {
                Some(scale) => chunk.scales[scale]
                    .iter()
                    .map(|factor| factor.exp())
                    .collect(),
                None => vec![1.0; places.len()],
            };
            // A tip with states has no spans; its partials are made of the states.
            if !self.coded[buffer] {
                chunk.fill_in(kernels, buffer);
            }
            for (k, (&pattern, factor)) in places.iter().zip(factors).enumerate() {
                chunk.nodes[buffer].partials(kernels, self.states, k, &mut span);
                for (category, entries) in span.chunks_exact(self.states).enumerate() {
                    let at = (category * self.patterns + pattern) * self.states;
                    for (to, entry) in to[at..].iter_mut().zip(entries) {
                        *to = entry * factor;
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn eigen_values(&self) -> usize {
        if self.complex {
            2 * self.states
        } else {
            self.states
        }
    }

    pub(crate) fn set_eigen(
        &mut self,
        index: c_int,
        vectors: &[f64],
        inverse: &[f64],
        values: &[f64],
    ) -> Result<(), Refusal> {
        let index = below(index, self.models.eigen.len())?;
        // Not settled: matrices are made at once, so no step that waits reads a model.
        let eigen = Eigen::new(self.kernels, vectors, inverse, values, self.transposed)?;
        self.models.eigen[index] = Some(eigen);
        Ok(())
    }

    pub(crate) fn set_rates(&mut self, index: c_int, rates: &[f64]) -> Result<(), Refusal> {
        let index = below(index, self.models.rates.len())?;
        self.models.rates[index].copy_from_slice(rates);
        Ok(())
    }

    pub(crate) fn set_frequencies(&mut self, index: c_int, all: &[f64]) -> Result<(), Refusal> {
        let index = below(index, self.models.frequencies.len())?;
        self.models.frequencies[index] = Some(all.to_vec());
        Ok(())
    }

    pub(crate) fn set_weights(&mut self, index: c_int, weights: &[f64]) -> Result<(), Refusal> {
        let index = below(index, self.models.weights.len())?;
        self.models.weights[index] = Some(weights.to_vec());
        Ok(())
    }

    pub(crate) fn set_pattern_weights(&mut self, weights: &[f64]) -> Result<(), Refusal> {
        // Not settled: only results use weights, and they never wait.
        for chunk in &mut self.chunks {
            let places = &self.order[chunk.first..][..chunk.weights.len()];
            for (to, &pattern) in chunk.weights.iter_mut().zip(places) {
                *to = weights[pattern];
            }
        }
        Ok(())
    }

    /// A value of each pattern, in the client's order.
    pub(crate) fn of_patterns<'a>(
        &'a self,
        to: &mut [f64],
        values: impl Fn(&'a Chunk) -> &'a [f64],
    ) {
        for chunk in &self.chunks {
            // Longer than the chunk: the zip ends with its values.
            let places = &self.order[chunk.first..];
            if self.partitions == 1 {
                // The client's order is the chunks'.
                let values = values(chunk);
                to[chunk.first..][..values.len()].copy_from_slice(values);
                continue;
            }
            for (&pattern, &value) in places.iter().zip(values(chunk)) {
                to[pattern] = value;
            }
        }
    }

    /// Gives each pattern a partition below `partitions`; all values that were set stay.
    pub(crate) fn set_partitions(
        &mut self,
        partitions: c_int,
        of: &[c_int],
    ) -> Result<(), Refusal> {
        let partitions = count(partitions)?;
        let of = of.iter().map(|&partition| below(partition, partitions));
        // Complete before anything changes.
        let of = of.collect::<Result<Vec<usize>, Refusal>>()?;
        self.settle()?;
        let old_order = self.order.clone();
        // Within a partition the client's order stays, so earlier partitions leave no trace.
        self.order.sort_by_key(|&pattern| (of[pattern], pattern));
        let mut place_of = vec![0; self.patterns];
        for (place, &pattern) in old_order.iter().enumerate() {
            place_of[pattern] = place;
        }
        let new = self.chunks_of(&of);
        let old = std::mem::replace(&mut self.chunks, new);
        let starts: Vec<usize> = old.iter().map(|chunk| chunk.first).collect();
        let kernels = self.kernels;
        for chunk in &mut self.chunks {
            for k in 0..chunk.patterns() {
                let place = place_of[self.order[chunk.first + k]];
                // Chunks start in ascending order and the first at 0, so
                // there is always one before.
                let from = &old[starts.partition_point(|&start| start <= place) - 1];
                chunk.take_pattern(kernels, k, from, place - from.first);
            }
            // Classes belong to a chunk's own lists, so tips get new ones.
            for tip in (0..chunk.nodes.len()).filter(|&node| self.coded[node]) {
                let codes = std::mem::take(&mut chunk.nodes[tip].codes);
                chunk.set_codes(tip, codes);
            }
        }
        self.partitions = partitions;
        Ok(())
    }

    /// Sets matrices: each with its index, its rows, and what these have for an unknown state. All
    /// are checked first.
    pub(crate) fn set_matrices<'m>(
        &mut self,
        all: impl Iterator<Item = (c_int, &'m [f64], f64)>,
    ) -> Result<(), Refusal> {
        let limit = self.matrices.len();
        let all = all.map(|(index, rows, unknown)| Ok((below(index, limit)?, rows, unknown)));
        let all = all.collect::<Result<Vec<_>, Refusal>>()?;
        // Steps that wait read the matrices that are there now.
        self.settle()?;
        for (index, rows, unknown) in all {
            self.matrices[index].set(self.kernels, self.states, rows, unknown);
        }
        Ok(())
    }

    pub(crate) fn matrix(&mut self, index: c_int, rows: &mut [f64]) -> Result<(), Refusal> {
        let matrix = &self.matrices[below(index, self.matrices.len())?];
        // A matrix that was never set has no columns and reads as zeros.
        rows.fill(0.0);
        matrix.get(self.kernels, self.states, rows);
        Ok(())
    }

    /// Matrices that are made of two others each: their indices, the result's last. All are checked
    /// first.
    pub(crate) fn combine(
        &mut self,
        indices: impl Iterator<Item = [c_int; 3]>,
        make: impl Fn(&mut Matrix, Kernels, [&Matrix; 2]),
    ) -> Result<(), Refusal> {
        let mut is_set: Vec<bool> = self.matrices.iter().map(Matrix::is_set).collect();
        let indices = indices.map(|indices| {
            let [first, second, result] = indices.map(|at| below(at, is_set.len()));
            let (first, second, result) = (first?, second?, result?);
            // In place is not allowed.
            let in_place = first == result || second == result;
            if in_place || !is_set[first] || !is_set[second] {
                return Err(Refusal::OutOfRange);
            }
            // A later one may be made of this one.
            is_set[result] = true;
            Ok([first, second, result])
        });
        let indices = indices.collect::<Result<Vec<_>, Refusal>>()?;
        // Steps that wait may read the matrices that are overwritten here.
        self.settle()?;
        for [first, second, result] in indices {
            let mut to = std::mem::take(&mut self.matrices[result]);
            let both = [first, second].map(|at| &self.matrices[at]);
            make(&mut to, self.kernels, both);
            self.matrices[result] = to;
        }
        Ok(())
    }

    /// The matrices of branches, and derivatives where there are indices for them. All are checked
    /// first; they are made on as many engines as they are worth.
    pub(crate) fn update_matrices(
        &mut self,
        branches: impl Iterator<Item = Branch> + Clone,
    ) -> Result<(), Refusal> {
        let (mut count, mut matrices) = (0, 0);
        for branch in branches.clone() {
            count += 1;
            matrices += self.job(&branch)?.indices.number;
        }
        let ns = self.matrices_ns(matrices);
        if !engines::are_many(self.width, ns, count) {
            return self.make_matrices(branches);
        }
        let jobs = branches.map(|branch| self.job(&branch));
        let mut jobs = jobs.collect::<Result<Vec<Job>, Refusal>>()?;
        for job in &mut jobs {
            // Matrices move into their jobs, so engines write without locks.
            self.take_matrices(job.indices, &mut job.made);
        }
        let (kernels, models) = (self.kernels, &self.models);
        let ran = engines::run(self.width, ns, &mut jobs, |job| {
            let mut made = std::mem::take(&mut job.made);
            job.make(kernels, models, &mut made);
            job.made = made;
        });
        // All matrices go back even where a job failed.
        for job in jobs {
            self.put_matrices(job.indices, job.made.into_iter());
        }
        ran
    }

    /// On the caller's core, branch by branch. A client changes few lengths at a time: lists of
    /// jobs would take as long as the matrices.
    fn make_matrices(&mut self, branches: impl Iterator<Item = Branch>) -> Result<(), Refusal> {
        // One list serves all branches that have derivatives.
        let mut made = Vec::new();
        for branch in branches {
            let job = self.job(&branch)?;
            if let [Some(index), None, None] = job.indices.all {
                let matrix = std::slice::from_mut(&mut self.matrices[index]);
                job.make(self.kernels, &self.models, matrix);
                continue;
            }
            self.take_matrices(job.indices, &mut made);
            job.make(self.kernels, &self.models, &mut made);
            self.put_matrices(job.indices, made.drain(..));
        }
        Ok(())
    }

    fn take_matrices(&mut self, indices: Indices, made: &mut Vec<Matrix>) {
        for index in indices.iter() {
            let matrix = index.map(|index| std::mem::take(&mut self.matrices[index]));
            made.push(matrix.unwrap_or_default());
        }
    }

    fn put_matrices(&mut self, indices: Indices, made: impl Iterator<Item = Matrix>) {
        for (index, matrix) in indices.iter().zip(made) {
            if let Some(index) = index {
                self.matrices[index] = matrix;
            }
        }
    }

    /// The matrices of branches with a model for each category, whose rates are in the models.
    pub(crate) fn update_matrices_of_categories(
        &mut self,
        models: &[c_int],
        branches: impl Iterator<Item = Branch>,
    ) -> Result<(), Refusal> {
        let models = models.iter().map(|&model| {
            let model = below(model, self.models.eigen.len())?;
            self.models.eigen[model].as_ref().ok_or(Refusal::OutOfRange)
        });
        let models = models.collect::<Result<Vec<&Eigen>, Refusal>>()?;
        let (kernels, one) = (self.kernels, self.kernels.of_one_category());
        // Stored when all are made: an error of a late branch must change nothing.
        let mut made = Vec::new();
        for branch in branches {
            let indices = self.indices_of(&branch)?;
            let mut blocks: Vec<Matrix> = indices.iter().map(|_| Matrix::default()).collect();
            let mut whole: Vec<Matrix> = indices.iter().map(|_| Matrix::default()).collect();
            for (category, eigen) in models.iter().enumerate() {
                eigen.matrices(one, &[1.0], branch.length, &mut blocks);
                for (whole, block) in whole.iter_mut().zip(&blocks) {
                    whole.set_category(kernels, category, block);
                }
            }
            made.extend(indices.iter().zip(whole));
        }
        for (index, matrix) in made {
            if let Some(index) = index {
                self.matrices[index] = matrix;
            }
        }
        Ok(())
    }

    /// The matrix of a branch, and those of its derivatives up to the last that is wanted.
    fn indices_of(&self, branch: &Branch) -> Result<Indices, Refusal> {
        // Second derivatives may be wanted alone; each is made from the one before.
        let last = branch.indices.iter().rposition(Option::is_some);
        let number = last.map_or(0, |at| at + 1);
        let below = |index| below(index, self.matrices.len());
        let mut all = [None; 3];
        for (to, index) in all.iter_mut().zip(branch.indices) {
            *to = index.map(below).transpose()?;
        }
        Ok(Indices { all, number })
    }

    fn job(&self, branch: &Branch) -> Result<Job, Refusal> {
        let model = below(branch.model, self.models.eigen.len())?;
        let rates = below(branch.rates, self.models.rates.len())?;
        let indices = self.indices_of(branch)?;
        if self.models.eigen[model].is_none() {
            return Err(Refusal::OutOfRange);
        }
        Ok(Job {
            model,
            rates,
            length: branch.length,
            made: Vec::new(),
            indices,
        })
    }

    /// About how long one core takes for some matrices.
    fn matrices_ns(&self, matrices: usize) -> u64 {
        let padded = self.kernels.shape().states.to_u64();
        // A matrix is a product of two for each category: cubic in the states.
        let products = padded * padded * padded * self.categories.to_u64();
        let least = match padded {
            4 => NANOSECONDS_OF_FOUR,
            _ => NANOSECONDS_MATRIX,
        };
        let each = products * PICOSECONDS_PRODUCT / 1000 + least;
        matrices.to_u64().saturating_mul(each)
    }

    /// The factors of a scale buffer, as they are kept.
    pub(crate) fn scale_factors(&mut self, index: c_int, to: &mut [f64]) -> Result<(), Refusal> {
        let index = below(index, self.scales)?;
        self.settle()?;
        self.of_patterns(to, |chunk| &chunk.scales[index]);
        Ok(())
    }

    /// True if every operation scales, or none is the client's to scale.
    pub(crate) fn scales_by_itself(&self) -> bool {
        matches!(self.mode, Mode::Auto | Mode::Always)
    }
}

impl Chunk {
    /// Copies all values of one pattern from another chunk.
    fn take_pattern(&mut self, kernels: Kernels, to: usize, other: &Self, from: usize) {
        let patterns = self.patterns();
        for (number, node) in other.nodes.iter().enumerate() {
            if let Some(&code) = node.codes.get(from) {
                self.nodes[number].codes.resize(patterns, 0);
                self.nodes[number].codes[to] = code;
                continue;
            }
            let (span, at) = (kernels.span(), node.span_of(from));
            // A buffer that was never written stays empty, and reads as zeros later.
            if node.values.len() >= (at + 1) * span {
                let values = self.fill_in(kernels, number);
                // The new chunk has no classes at inner nodes: each pattern gets its own span.
                values.copy_span(span, to, &node.values, at);
            }
        }
        for (scale, other) in self.scales.iter_mut().zip(&other.scales) {
            scale[to] = other[from];
        }
        let lists = self.taken.iter_mut().chain(&mut self.totals);
        for (taken, other) in lists.zip(other.taken.iter().chain(&other.totals)) {
            if let Some(&value) = other.get(from) {
                taken.resize(patterns, 0.0);
                taken[to] = value;
            }
        }
        self.weights[to] = other.weights[from];
    }
}

/// Picoseconds of one product of entries while a matrix is made.
const PICOSECONDS_PRODUCT: u64 = 60;
/// Nanoseconds of a matrix however small.
const NANOSECONDS_MATRIX: u64 = 700;
/// The same for at most four states.
const NANOSECONDS_OF_FOUR: u64 = 200;
