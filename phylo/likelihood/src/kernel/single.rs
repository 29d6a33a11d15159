//! Conditional likelihood vectors in single precision: their layout and what the loops take.
//!
//! Layout. Eight floats are an octet. With up to four states an octet holds two rates, four places
//! each; with more it holds eight states of one rate, padded with zeros. A span is the octets of a
//! class, rate by rate. A matrix has for each pair of rates four columns, or for each rate as many
//! columns as there are states.
//! Must stay true: places that no state has are 0 in matrices, hence in every result.

use super::{Buffer, Quad, SharedArena};
use zerocopy::{FromBytes, IntoBytes};

/// Eight floats: what one AVX register holds.
pub(crate) type Octet = [f32; 8];

/// Dimensions of one class's entries: any number of states and of rates, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SingleShape {
    /// States, not padded.
    pub states: usize,
    /// Rate categories.
    pub rates: usize,
}

impl SingleShape {
    /// True if an octet holds two rates.
    #[must_use]
    pub fn is_paired(self) -> bool {
        self.states <= 4
    }

    /// Octets of one rate's states, where an octet does not hold two rates.
    #[must_use]
    pub fn width(self) -> usize {
        self.states.div_ceil(8)
    }

    /// Octets of one class.
    #[must_use]
    pub fn span(self) -> usize {
        match self.is_paired() {
            true => self.rates.div_ceil(2),
            false => self.rates * self.width(),
        }
    }

    /// Octets of a matrix for every rate.
    #[must_use]
    pub fn matrix(self) -> usize {
        match self.is_paired() {
            true => 4 * self.span(),
            false => self.span() * self.states,
        }
    }

    /// Place in a span, in floats, of a rate's first state; the others follow it.
    #[must_use]
    pub fn place(self, rate: usize) -> usize {
        match self.is_paired() {
            true => 4 * rate,
            false => 8 * self.width() * rate,
        }
    }

    /// Place in a matrix, in floats, of the first row of a rate's column; the others follow it.
    #[must_use]
    pub fn column(self, rate: usize, column: usize) -> usize {
        match self.is_paired() {
            true => (rate / 2 * 4 + column) * 8 + rate % 2 * 4,
            false => (rate * self.states + column) * self.width() * 8,
        }
    }
}

/// One side of a node.
#[derive(Debug, Clone, Copy)]
pub struct SingleSide<'a> {
    /// The matrix of the branch; none where it is in the spans already, as in a tip's table.
    pub matrix: Option<&'a [Octet]>,
    /// One span for each class of the side.
    pub spans: &'a [Octet],
    /// The side's class for each class of the result.
    pub index: &'a [u16],
}

/// A growable run of octets that begins on a line of 64 bytes.
#[derive(Debug, Default)]
pub struct SingleBuffer(Buffer);

/// A quad has the bytes of an octet.
const _: () = assert!(size_of::<Quad>() == size_of::<Octet>());

impl SingleBuffer {
    /// A buffer of `octets` octets, all 0.
    #[must_use]
    pub fn new(octets: usize) -> Self {
        Self(Buffer::new(octets))
    }

    /// Makes it `octets` long. Its contents are kept if it was long enough, else lost.
    pub fn resize(&mut self, octets: usize) {
        self.0.resize(octets);
    }

    /// As [`Self::resize`], with memory from an arena if it needs more.
    pub fn resize_in(&mut self, octets: usize, arena: &SharedArena) {
        self.0.resize_in(octets, arena);
    }

    /// The octets.
    #[must_use]
    pub fn as_slice(&self) -> &[Octet] {
        self.floats().as_chunks().0
    }

    /// The octets, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [Octet] {
        self.floats_mut().as_chunks_mut().0
    }

    /// The floats.
    #[must_use]
    pub fn floats(&self) -> &[f32] {
        // Never empty for another reason: doubles are aligned and whole numbers of floats.
        <[f32]>::ref_from_bytes(self.0.doubles().as_bytes()).unwrap_or_default()
    }

    /// The floats, to be written.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        <[f32]>::mut_from_bytes(self.0.doubles_mut().as_mut_bytes()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Isa;
    use crate::kernel::{any_single_beyond, lower_single, newview_single, total_single};
    use crate::random::Random;

    fn buffer(octets: usize, random: &mut Random) -> SingleBuffer {
        let mut buffer = SingleBuffer::new(octets);
        for value in buffer.floats_mut() {
            *value = (0.01 + random.unit()) as f32;
        }
        buffer
    }

    /// Random where there are states, else 0.
    fn matrix(shape: SingleShape, random: &mut Random) -> SingleBuffer {
        let mut matrix = SingleBuffer::new(shape.matrix());
        for rate in 0..shape.rates {
            for column in 0..shape.states {
                let at = shape.column(rate, column);
                for value in &mut matrix.floats_mut()[at..at + shape.states] {
                    *value = (0.01 + random.unit()) as f32;
                }
            }
        }
        matrix
    }

    /// By the definition, in double precision.
    fn expected(shape: SingleShape, side: SingleSide<'_>, class: usize, rate: usize) -> Vec<f64> {
        let at = usize::from(side.index[class]) * shape.span() * 8 + shape.place(rate);
        let x = &side.spans.as_flattened()[at..at + shape.states];
        let Some(matrix) = side.matrix else {
            return x.iter().map(|&x| f64::from(x)).collect();
        };
        let entry = |i: usize, j: usize| matrix.as_flattened()[shape.column(rate, j) + i];
        let row = |i| (0..shape.states).map(move |j| f64::from(entry(i, j)));
        (0..shape.states)
            .map(|i| row(i).zip(x).map(|(m, &x)| m * f64::from(x)).sum())
            .collect()
    }

    #[test]
    fn a_node_is_the_product_of_both_sides_whatever_the_shape() {
        let mut random = Random::new(7);
        for (states, rates) in [
            (2, 1),
            (4, 4),
            (3, 5),
            (5, 2),
            (20, 4),
            (32, 1),
            (61, 2),
            (70, 3),
        ] {
            let shape = SingleShape { states, rates };
            for (classes, tips) in [(1, 0), (5, 1), (16, 2), (37, 3), (50, 0)] {
                let matrices = [0, 1].map(|_| matrix(shape, &mut random));
                let spans = [0, 1].map(|_| buffer(9 * shape.span(), &mut random));
                let index = [0, 1].map(|_| {
                    let classes = (0..classes).map(|_| random.below(9) as u16);
                    classes.collect::<Vec<u16>>()
                });
                let side = |k: usize| SingleSide {
                    matrix: (tips >> k & 1 == 0).then(|| matrices[k].as_slice()),
                    spans: spans[k].as_slice(),
                    index: &index[k],
                };
                for isa in Isa::all() {
                    let mut out = SingleBuffer::new(classes * shape.span());
                    newview_single(isa, shape, side(0), side(1), out.as_mut_slice());
                    for class in 0..classes {
                        for rate in 0..rates {
                            let at = class * shape.span() * 8 + shape.place(rate);
                            let found = &out.floats()[at..at + states];
                            let sides = [0, 1].map(|k| expected(shape, side(k), class, rate));
                            for ((found, x), y) in found.iter().zip(&sides[0]).zip(&sides[1]) {
                                let far = (f64::from(*found) / (x * y) - 1.0).abs();
                                assert!(far < 1e-5, "{shape:?}, {isa:?}: {found}, {x} {y}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn spans_are_divided_by_their_largest_entry_and_added_up() {
        let mut random = Random::new(8);
        for (span, classes) in [(2, 37), (1, 8), (3, 9)] {
            let mut values = buffer(span * classes, &mut random);
            // One span without a positive entry, and one whose inverse would be infinite.
            values.floats_mut()[..span * 8].fill(0.0);
            let tiny = f32::from_bits(3);
            values.floats_mut()[span * 8..][..span * 8].fill(tiny);
            for isa in Isa::all() {
                let mut copy = SingleBuffer::new(span * classes);
                copy.floats_mut().copy_from_slice(values.floats());
                let mut factors = vec![0.0; classes];
                lower_single(isa, span, copy.as_mut_slice(), &mut factors);
                let mut sums = vec![0.0; classes];
                total_single(isa, span, copy.as_slice(), &mut sums);
                let spans = values.floats().chunks_exact(span * 8);
                for (k, span) in spans.enumerate() {
                    let largest = span.iter().copied().fold(0.0, f32::max);
                    let factor = if k == 0 { 1.0 } else { f64::from(largest) };
                    assert_eq!(factors[k], factor, "{isa:?}");
                    let sum: f64 = span.iter().map(|&x| f64::from(x) / factor).sum();
                    assert!(
                        (sums[k] - sum).abs() <= 1e-5 * sum,
                        "{isa:?}: {} {sum}",
                        sums[k]
                    );
                }
                assert!(any_single_beyond(isa, span, values.as_slice(), 1e-30, 1e30));
                assert!(!any_single_beyond(isa, span, copy.as_slice(), 1e-30, 1e30));
            }
        }
    }
}
