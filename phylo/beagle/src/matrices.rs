//! Transition matrices and the eigen-decompositions that they are made of.
//!
//! How: a matrix is the eigenvectors times the inverse eigenvectors, whose rows were multiplied by
//! the exponentials. That is a newview with the eigenvectors as matrix and the columns of the other
//! as classes, so the kernels of the nodes make matrices, too.

use crate::abi::Refusal;
use crate::kernels::{Kernels, Multiplier};
use sidecore_likelihood::kernel::single::{SingleBuffer, SingleShape};
use sidecore_likelihood::kernel::{Buffer, Quad};
use sidecore_likelihood::kernel::{exponentiate, spectral_products};

/// A transition matrix, or a derivative of one, for all categories.
#[derive(Debug, Default)]
pub(crate) struct Matrix {
    /// A block a category, a column a state of the child.
    pub(crate) columns: Buffer,
    /// The entry of each row for a child whose state is unknown.
    pub(crate) unknown: f64,
    /// For each state of the child and for the unknown one, a span.
    pub(crate) table: Buffer,
    /// True while the table is of these columns.
    pub(crate) tabulated: bool,
    /// The columns of an instance of single precision; empty until partials are multiplied by them.
    pub(crate) floats: SingleBuffer,
    /// Its table.
    pub(crate) float_table: SingleBuffer,
    /// True while the floats are of these columns.
    rounded: bool,
    /// It transposed, for pre-order partials; none until they are multiplied by it.
    transposed: Option<Box<Self>>,
    /// True while that is of these columns.
    is_transposed: bool,
}

impl Matrix {
    /// A row-by-row matrix for each category.
    pub(crate) fn set(&mut self, kernels: Kernels, states: usize, rows: &[f64], unknown: f64) {
        let columns = self.renew(kernels, unknown);
        let padded = kernels.shape().states;
        for (rows, block) in blocks(rows, columns, states, padded) {
            // Clients give rows; the kernels read columns, which are contiguous in the block.
            for (i, row) in rows.chunks_exact(states).enumerate() {
                for (j, &entry) in row.iter().enumerate() {
                    block[j * padded + i] = entry;
                }
            }
        }
    }

    /// Its entries, row by row for each category.
    pub(crate) fn get(&self, kernels: Kernels, states: usize, rows: &mut [f64]) {
        let padded = kernels.shape().states;
        let blocks = self.columns.doubles().chunks_exact(padded * padded);
        for (rows, block) in rows.chunks_exact_mut(states * states).zip(blocks) {
            for (i, row) in rows.chunks_exact_mut(states).enumerate() {
                for (j, entry) in row.iter_mut().enumerate() {
                    *entry = block[j * padded + i];
                }
            }
        }
    }

    /// True once it was written.
    pub(crate) fn is_set(&self) -> bool {
        !self.columns.doubles().is_empty()
    }

    /// Makes room and forgets the table; the columns are all 0.
    fn renew(&mut self, kernels: Kernels, unknown: f64) -> &mut [f64] {
        let columns = self.renew_all(kernels, unknown);
        // Padding must be 0: the kernels sum over it.
        columns.fill(0.0);
        columns
    }

    /// The same for columns that are all written next, with any contents.
    fn renew_all(&mut self, kernels: Kernels, unknown: f64) -> &mut [f64] {
        self.columns.resize(kernels.shape().matrix() / 4);
        // All that was derived from the old columns is out of date.
        (self.tabulated, self.rounded, self.is_transposed) = (false, false, false);
        self.unknown = unknown;
        self.columns.doubles_mut()
    }

    /// Makes the table if there is none.
    pub(crate) fn tabulate(&mut self, kernels: Kernels, states: usize) {
        if !self.tabulated {
            self.tabulated = true;
            // One table of doubles is made first, so that both precisions have the same entries.
            let columns = self.columns.doubles();
            table(kernels, states, columns, self.unknown, &mut self.table);
            self.round_table(kernels);
        }
    }

    /// Rounds the columns, if partials are floats and it was not done.
    pub(crate) fn round(&mut self, kernels: Kernels) {
        if let (Some(shape), false) = (kernels.single(), self.rounded) {
            self.rounded = true;
            let padded = kernels.shape().states;
            round_columns(shape, padded, self.columns.doubles(), &mut self.floats);
        }
    }

    /// Makes it transposed, if that was not done.
    pub(crate) fn transpose(&mut self, kernels: Kernels) {
        if !self.is_transposed {
            self.is_transposed = true;
            // Its memory is used again.
            let mut transposed = self.transposed.take().unwrap_or_default();
            transposed.set_transposed(kernels, self);
            transposed.round(kernels);
            self.transposed = Some(transposed);
        }
    }

    /// It transposed, once [`Self::transpose`] was called.
    pub(crate) fn transposed(&self) -> Option<&Self> {
        self.transposed.as_deref()
    }

    /// Becomes another one transposed.
    pub(crate) fn set_transposed(&mut self, kernels: Kernels, other: &Self) {
        let padded = kernels.shape().states;
        let columns = self.renew(kernels, other.unknown);
        let from = other.columns.doubles().chunks_exact(padded * padded);
        for (to, from) in columns.chunks_exact_mut(padded * padded).zip(from) {
            for (i, to) in to.chunks_exact_mut(padded).enumerate() {
                for (to, from) in to.iter_mut().zip(from[i..].iter().step_by(padded)) {
                    *to = *from;
                }
            }
        }
    }

    /// Becomes the sum of two.
    pub(crate) fn set_sum(&mut self, kernels: Kernels, [first, second]: [&Self; 2]) {
        // An unknown state sums a row, and the sums of rows add up.
        let columns = self.renew(kernels, first.unknown + second.unknown);
        let both = first.columns.doubles().iter().zip(second.columns.doubles());
        for (to, (first, second)) in columns.iter_mut().zip(both) {
            *to = first + second;
        }
    }

    /// One category's block becomes a matrix of one category. The first category comes first.
    pub(crate) fn set_category(&mut self, kernels: Kernels, category: usize, one: &Self) {
        // The first block makes room for all and clears what was there.
        if category == 0 {
            self.renew(kernels, one.unknown);
        }
        let block = one.columns.doubles();
        self.columns.doubles_mut()[category * block.len()..][..block.len()].copy_from_slice(block);
    }

    /// The matrix that changes nothing.
    pub(crate) fn identity(kernels: Kernels, states: usize) -> Self {
        let mut identity = Self::default();
        let padded = kernels.shape().states;
        let columns = identity.renew(kernels, 1.0);
        // The diagonal of the padding stays 0, so padding adds nothing.
        for block in columns.chunks_exact_mut(padded * padded) {
            for state in 0..states {
                block[state * padded + state] = 1.0;
            }
        }
        identity
    }

    fn round_table(&mut self, kernels: Kernels) {
        if let Some(shape) = kernels.single() {
            let padded = kernels.shape().states;
            round_spans(shape, padded, self.table.doubles(), &mut self.float_table);
        }
    }

    /// Becomes one whose table is a single span, for a root.
    pub(crate) fn set_root(&mut self, kernels: Kernels, factors: &[f64]) {
        self.table.resize(kernels.shape().quads());
        self.table.doubles_mut().copy_from_slice(factors);
        self.round_table(kernels);
    }

    /// Puts it, with each row multiplied by `factors`, a span, into another one: the table for a
    /// child with states, the columns for another.
    pub(crate) fn fold_into(
        &self,
        kernels: Kernels,
        states: usize,
        factors: &[f64],
        is_coded: bool,
        folded: &mut Self,
    ) {
        if is_coded {
            let (from, to) = (self.columns.doubles(), &mut folded.table);
            table(kernels, states, from, self.unknown, to);
            for span in to.doubles_mut().chunks_exact_mut(factors.len()) {
                let both = span.iter_mut().zip(factors);
                both.for_each(|(to, factor)| *to *= factor);
            }
            folded.round_table(kernels);
            return;
        }
        let padded = kernels.shape().states;
        folded.columns.resize(kernels.shape().matrix() / 4);
        let to = folded.columns.doubles_mut();
        to.copy_from_slice(self.columns.doubles());
        let blocks = to.chunks_exact_mut(padded * padded);
        for (block, factors) in blocks.zip(factors.chunks_exact(padded)) {
            for column in block.chunks_exact_mut(padded) {
                let both = column.iter_mut().zip(factors);
                both.for_each(|(to, factor)| *to *= factor);
            }
        }
        folded.rounded = false;
        folded.round(kernels);
    }

    /// The product of two.
    pub(crate) fn convolve(&mut self, kernels: Kernels, [first, second]: [&Self; 2]) {
        // An unknown state sums a row; where the second's rows have one sum, it is a factor.
        self.renew(kernels, first.unknown * second.unknown);
        let padded = kernels.shape().states;
        let block = padded * padded;
        // Each category has a left matrix of its own, so each is a product of its own.
        let one = kernels.of_one_category();
        let mut multiplier = Multiplier::new(one, padded);
        for rate in 0..kernels.shape().rates {
            let quads = rate * block / 4..(rate + 1) * block / 4;
            let matrix = &first.columns.as_slice()[quads.clone()];
            let values = &second.columns.as_slice()[quads.clone()];
            let to = &mut self.columns.as_mut_slice()[quads];
            multiplier.multiply(matrix, values, to);
        }
    }
}

/// A row-by-row block and its columns, for each category.
fn blocks<'a>(
    rows: &'a [f64],
    columns: &'a mut [f64],
    states: usize,
    padded: usize,
) -> impl Iterator<Item = (&'a [f64], &'a mut [f64])> {
    let rows = rows.chunks_exact(states * states);
    rows.zip(columns.chunks_exact_mut(padded * padded))
}

/// A span for each state of a tip and, last, for the unknown one.
fn table(kernels: Kernels, states: usize, columns: &[f64], unknown: f64, table: &mut Buffer) {
    let (padded, span) = (kernels.shape().states, kernels.shape().span());
    table.resize((states + 1) * span / 4);
    if padded == QUAD {
        let columns = columns.as_chunks::<QUAD>().0;
        return table_of_four(states, columns, unknown, table.as_mut_slice());
    }
    let spans = table.doubles_mut().chunks_exact_mut(span);
    for (state, to) in spans.enumerate() {
        if state == states {
            for to in to.chunks_exact_mut(padded) {
                to[..states].fill(unknown);
                to[states..].fill(0.0);
            }
            continue;
        }
        for (to, block) in to
            .chunks_exact_mut(padded)
            .zip(columns.chunks_exact(padded * padded))
        {
            to.copy_from_slice(&block[state * padded..][..padded]);
        }
    }
}

/// The same for at most four states: copies of known length take a quarter of the time.
fn table_of_four(states: usize, columns: &[Quad], unknown: f64, table: &mut [Quad]) {
    // At least one, so that there are chunks.
    let rates = (columns.len() / QUAD).max(1);
    let (known, last) = table.split_at_mut(states * rates);
    for (state, span) in known.chunks_exact_mut(rates).enumerate() {
        for (to, block) in span.iter_mut().zip(columns.as_chunks::<QUAD>().0) {
            *to = block[state];
        }
    }
    last.fill(std::array::from_fn(|state| {
        if state < states { unknown } else { 0.0 }
    }));
}

/// An eigen-decomposition.
#[derive(Debug)]
pub(crate) struct Eigen {
    /// The eigenvectors, a column for each.
    vectors: Buffer,
    /// The inverse eigenvectors, row by row, not padded.
    inverse: Vec<f64>,
    /// Real parts, and imaginary parts or zeros.
    values: Vec<(f64, f64)>,
}

impl Eigen {
    /// `values` are as many as states, or twice as many if they are complex. `transposed` says that
    /// `inverse` is column by column.
    ///
    /// # Errors
    /// [`Refusal::OutOfRange`] where imaginary parts are not in pairs.
    pub(crate) fn new(
        kernels: Kernels,
        vectors: &[f64],
        inverse: &[f64],
        values: &[f64],
        transposed: bool,
    ) -> Result<Self, Refusal> {
        // The matrix is square.
        let states = vectors.len().isqrt();
        let padded = kernels.shape().states;
        let mut columns = Buffer::new(padded * padded / 4);
        let to = columns.doubles_mut();
        // The kernels read the left matrix by columns.
        for (i, row) in vectors.chunks_exact(states).enumerate() {
            for (k, &entry) in row.iter().enumerate() {
                to[k * padded + i] = entry;
            }
        }
        let mut rows = inverse.to_vec();
        if transposed {
            for i in 0..states {
                for j in 0..states {
                    rows[i * states + j] = inverse[j * states + i];
                }
            }
        }
        // Without imaginary parts the zeros make every eigenvalue a real one.
        let imaginary = values.get(states..).unwrap_or(&[]);
        let imaginary = imaginary.iter().copied().chain(std::iter::repeat(0.0));
        let made = Self {
            vectors: columns,
            inverse: rows,
            values: values[..states].iter().copied().zip(imaginary).collect(),
        };
        // Here and not when matrices are made: a list of these would change in part.
        match made.blocks().last() {
            Some((at, true)) if at + 1 == states => Err(Refusal::OutOfRange),
            _ => Ok(made),
        }
    }

    /// The first row of each block of eigenvalues, and true for one that has two rows: a complex
    /// value and its conjugate.
    fn blocks(&self) -> impl Iterator<Item = (usize, bool)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let at = next;
            let is_pair = self.values.get(at)?.1 != 0.0;
            next += if is_pair { 2 } else { 1 };
            Some((at, is_pair))
        })
    }

    /// The matrices over a branch of `length`: transition probabilities, and the first derivatives
    /// by the length for each matrix more.
    pub(crate) fn matrices(
        &self,
        kernels: Kernels,
        rates: &[f64],
        length: f64,
        matrices: &mut [Matrix],
    ) {
        let states = self.values.len();
        let padded = kernels.shape().states;
        if padded == QUAD {
            self.matrices_of_four(kernels, rates, length, matrices);
            return;
        }
        // The left matrix is the same for all categories, so one product makes all of them.
        let columns = rates.len() * padded;
        let mut multiplier = Multiplier::new(kernels.of_one_category(), columns);
        let mut grown = vec![0.0; states * states];
        let buffers = (0..matrices.len()).map(|_| Buffer::new(columns * padded / 4));
        let mut values: Vec<Buffer> = buffers.collect();
        for (category, &rate) in rates.iter().enumerate() {
            self.grow(rate * length, &mut grown);
            for (order, values) in values.iter_mut().enumerate() {
                // The next derivative multiplies by the eigenvalues again: no further exponentials.
                if order > 0 {
                    self.derive(rate, &mut grown);
                }
                let block = &mut values.doubles_mut()[category * padded * padded..];
                for (k, row) in grown.chunks_exact(states).enumerate() {
                    for (j, &entry) in row.iter().enumerate() {
                        block[j * padded + k] = entry;
                    }
                }
            }
        }
        // The kernel reads one matrix for all categories: the eigenvectors.
        for (order, (matrix, values)) in matrices.iter_mut().zip(&values).enumerate() {
            // Rows of probabilities sum to 1, so rows of their derivatives sum to 0.
            matrix.renew(kernels, if order == 0 { 1.0 } else { 0.0 });
            let to = matrix.columns.as_mut_slice();
            multiplier.multiply(self.vectors.as_slice(), values.as_slice(), to);
            if order == 0 {
                for entry in matrix.columns.doubles_mut() {
                    // Rounding makes some entries a little less than 0. Of NaN it makes 0, as in
                    // BEAGLE: such a model has the likelihood 0 in both.
                    *entry = if *entry > 0.0 { *entry } else { 0.0 };
                }
            }
        }
    }

    /// The same for at most four states, without the kernels: there all else took longer than they.
    fn matrices_of_four(
        &self,
        kernels: Kernels,
        rates: &[f64],
        length: f64,
        matrices: &mut [Matrix],
    ) {
        let states = self.values.len();
        // Rows of probabilities sum to 1, those of their derivatives to 0.
        let unknown = |order| if order == 0 { 1.0 } else { 0.0 };
        let quads = [self.vectors.as_slice(), self.inverse.as_chunks::<QUAD>().0];
        if let [Ok(vectors), Ok(inverse)] = quads.map(<&[Quad; QUAD]>::try_from)
            && self.values.iter().all(|(_, imaginary)| *imaginary == 0.0)
        {
            for (order, matrix) in matrices.iter_mut().enumerate() {
                matrix.renew_all(kernels, unknown(order));
            }
            return self.real_matrices_of_four(
                kernels,
                rates,
                length,
                [vectors, inverse],
                matrices,
            );
        }
        // Once for all categories: renewing clears every block.
        for (order, matrix) in matrices.iter_mut().enumerate() {
            matrix.renew(kernels, unknown(order));
        }
        let mut grown = [0.0; QUAD * QUAD];
        let grown = &mut grown[..states * states];
        for (category, &rate) in rates.iter().enumerate() {
            self.grow(rate * length, grown);
            for (order, matrix) in matrices.iter_mut().enumerate() {
                if order > 0 {
                    self.derive(rate, grown);
                }
                let block = &mut matrix.columns.as_mut_slice()[QUAD * category..][..states];
                for (j, column) in block.iter_mut().enumerate() {
                    let mut sums = [0.0; QUAD];
                    // Column `j` of a matrix that is kept row by row.
                    let entries = grown[j..].iter().step_by(states);
                    for (vector, entry) in self.vectors.as_slice().iter().zip(entries) {
                        for (sum, part) in sums.iter_mut().zip(vector) {
                            *sum += part * entry;
                        }
                    }
                    // As above.
                    *column = match order {
                        0 => sums.map(|sum| if sum > 0.0 { sum } else { 0.0 }),
                        _ => sums,
                    };
                }
            }
        }
    }

    /// The same for four states with real eigenvalues, all categories at once.
    fn real_matrices_of_four(
        &self,
        kernels: Kernels,
        rates: &[f64],
        length: f64,
        [vectors, inverse]: [&[Quad; QUAD]; 2],
        matrices: &mut [Matrix],
    ) {
        let values: Quad = std::array::from_fn(|k| self.values[k].0);
        let exponents = |rate: &f64| values.map(|value| value * (rate * length));
        // Most clients have few categories: a list on the heap would cost as much as they.
        let (mut few, mut many) = ([[0.0; QUAD]; CATEGORIES_FEW], Vec::new());
        let factors = match few.get_mut(..rates.len()) {
            Some(few) => few,
            None => {
                many.resize(rates.len(), [0.0; QUAD]);
                &mut many
            }
        };
        for (factors, rate) in factors.iter_mut().zip(rates) {
            *factors = exponents(rate);
        }
        exponentiate(kernels.isa(), factors);
        for (order, matrix) in matrices.iter_mut().enumerate() {
            if order > 0 {
                for (factors, rate) in factors.iter_mut().zip(rates) {
                    for (factor, value) in factors.iter_mut().zip(values) {
                        *factor *= value * rate;
                    }
                }
            }
            let columns = matrix.columns.as_mut_slice();
            spectral_products(kernels.isa(), vectors, inverse, factors, columns);
            if order == 0 {
                for entry in columns.as_flattened_mut() {
                    // As in `matrices`.
                    *entry = if *entry > 0.0 { *entry } else { 0.0 };
                }
            }
        }
    }

    /// The inverse eigenvectors multiplied by the exponentials at `time`.
    fn grow(&self, time: f64, grown: &mut [f64]) {
        let states = self.values.len();
        for (i, is_pair) in self.blocks() {
            let (real, imaginary) = self.values[i];
            let power = (real * time).exp();
            let row = &self.inverse[i * states..][..states];
            if !is_pair {
                for (to, from) in grown[i * states..].iter_mut().zip(row) {
                    *to = power * from;
                }
                continue;
            }
            // A pair a + bi, a - bi is a rotation by bt, stretched by e^(at).
            let (sin, cos) = (imaginary * time).sin_cos();
            let (sin, cos) = (power * sin, power * cos);
            for j in 0..states {
                let (x, y) = (row[j], self.inverse[(i + 1) * states + j]);
                grown[i * states + j] = cos * x + sin * y;
                grown[(i + 1) * states + j] = cos * y - sin * x;
            }
        }
    }

    /// The derivative by the length of what [`Self::grow`] gave.
    fn derive(&self, rate: f64, grown: &mut [f64]) {
        let states = self.values.len();
        for (i, is_pair) in self.blocks() {
            let (real, imaginary) = self.values[i];
            // Chain rule: time is the rate times the length, and the length is derived by.
            let (real, imaginary) = (real * rate, imaginary * rate);
            if !is_pair {
                grown[i * states..][..states]
                    .iter_mut()
                    .for_each(|x| *x *= real);
                continue;
            }
            // The pair's block is [a, b; -b, a].
            for j in 0..states {
                let (x, y) = (grown[i * states + j], grown[(i + 1) * states + j]);
                grown[i * states + j] = real * x + imaginary * y;
                grown[(i + 1) * states + j] = real * y - imaginary * x;
            }
        }
    }
}

/// Doubles of a quad.
const QUAD: usize = 4;
/// Categories whose exponentials are on the stack.
const CATEGORIES_FEW: usize = 16;

/// Rounds doubles to floats.
pub(crate) fn round(from: &[f64], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from as f32;
    }
}

/// A matrix's columns in single precision.
fn round_columns(shape: SingleShape, padded: usize, from: &[f64], to: &mut SingleBuffer) {
    to.resize(shape.matrix());
    // Places that no state has stay as they were made, 0.
    let blocks = from.chunks_exact(padded * padded);
    for (rate, block) in blocks.enumerate() {
        let columns = block.chunks_exact(padded).take(shape.states);
        for (j, column) in columns.enumerate() {
            round(column, &mut to.floats_mut()[shape.column(rate, j)..]);
        }
    }
}

/// A tip's table in single precision; a span of doubles has `rates` times `padded`.
fn round_spans(shape: SingleShape, padded: usize, from: &[f64], to: &mut SingleBuffer) {
    let spans = from.chunks_exact(padded * shape.rates);
    to.resize(spans.len() * shape.span());
    for (span, to) in spans.zip(to.floats_mut().chunks_exact_mut(shape.span() * 8)) {
        for (rate, states) in span.chunks_exact(padded).enumerate() {
            round(states, &mut to[shape.place(rate)..]);
        }
    }
}
