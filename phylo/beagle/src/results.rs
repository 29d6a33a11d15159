//! Log-likelihoods at a root or over an edge, with derivatives.
//!
//! How: frequencies and category weights are folded into one span for a root, and into the matrix
//! of an edge. So a pattern's likelihood is one product of spans.

use crate::abi::Refusal;
use crate::data::{below, below_or_none};
use crate::instance::{Instance, Mode};
use crate::matrices::Matrix;
use crate::steps::{Group, Member};
use std::ffi::c_int;

/// One model's root or edge, as the client names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The root's buffer, or the parent's.
    pub(crate) near: c_int,
    /// The child and its matrices by order of derivative: none at a root.
    pub(crate) edge: Option<(c_int, [Option<c_int>; 3])>,
    pub(crate) weights: c_int,
    pub(crate) frequencies: c_int,
    pub(crate) scale: c_int,
}

impl Instance {
    /// The log-likelihood of a mixture of models, and its derivatives if matrices for them were
    /// named; the sums over patterns.
    pub(crate) fn likelihood(
        &mut self,
        places: impl ExactSizeIterator<Item = Place>,
    ) -> Result<[f64; 3], Refusal> {
        let several = places.len() > 1;
        let places: Vec<Place> = places.collect();
        let derived = |place: &Place| place.edge.is_some_and(|(_, orders)| orders[1].is_some());
        if places.is_empty() {
            return Err(Refusal::OutOfRange);
        }
        // Original: roots may be mixed under either of these, edges may not.
        if several
            && (places.iter().any(derived)
                || self.mode == Mode::Auto
                || (self.mode == Mode::Always && places[0].edge.is_some()))
        {
            return Err(Refusal::NoImplementation);
        }
        let members = places.iter().map(|place| self.member(place));
        let members = members.collect::<Result<Vec<Member>, Refusal>>()?;
        // Only a single place can be an edge in this mode: mixtures were refused above.
        if let (Mode::Always, [member]) = (self.mode, members.as_slice()) {
            self.add_below(member)?;
        }
        let group = Group {
            partition: None,
            members,
        };
        self.run(&[group], None)?;
        Ok(self.results[0].0)
    }

    /// The same for each of some partitions, one model each.
    pub(crate) fn likelihoods_of_partitions(
        &mut self,
        places: impl Iterator<Item = (Place, c_int)>,
    ) -> Result<Vec<[f64; 3]>, Refusal> {
        if self.scales_by_itself() {
            return Err(Refusal::NoImplementation);
        }
        let groups = places.map(|(place, partition)| {
            Ok(Group {
                partition: Some(below(partition, self.partitions)?),
                members: vec![self.member(&place)?],
            })
        });
        let groups = groups.collect::<Result<Vec<Group>, Refusal>>()?;
        if groups.is_empty() {
            return Err(Refusal::OutOfRange);
        }
        self.run(&groups, None)?;
        Ok(self.results.iter().map(|sums| sums.0).collect())
    }

    fn member(&self, place: &Place) -> Result<Member, Refusal> {
        let near = below(place.near, self.buffers)?;
        // The near side is read as partials, which a tip with states lacks.
        if self.coded[near] || self.lacks_data(near) {
            return Err(Refusal::OutOfRange);
        }
        let factors = self.factors(place.weights, place.frequencies)?;
        let mut child = None;
        let mut folded = Vec::new();
        match place.edge {
            None => folded.push(Matrix::of_root(self.kernels, &factors)),
            Some((buffer, matrices)) => {
                let buffer = below(buffer, self.buffers)?;
                if self.lacks_data(buffer) {
                    return Err(Refusal::OutOfRange);
                }
                child = Some(buffer);
                for index in matrices.into_iter().flatten() {
                    let matrix = &self.matrices[below(index, self.matrices.len())?];
                    if !matrix.is_set() {
                        return Err(Refusal::OutOfRange);
                    }
                    folded.push(matrix.folded(self.kernels, self.states, &factors));
                }
            }
        }
        let scale = match self.mode {
            Mode::Auto => Some(0),
            // The buffer's own scale at a root, a sum over an edge.
            Mode::Always if child.is_some() => Some(self.scales - 1),
            Mode::Always => Some(near.checked_sub(self.tips).ok_or(Refusal::OutOfRange)?),
            _ => below_or_none(place.scale, self.scales)?,
        };
        Ok(Member {
            near,
            child,
            folded,
            scale,
        })
    }

    /// Over an edge the scale is the sum of both ends'.
    fn add_below(&mut self, member: &Member) -> Result<(), Refusal> {
        let Some(child) = member.child else {
            return Ok(());
        };
        let into = c_int::try_from(self.scales - 1).map_err(|_| Refusal::OutOfRange)?;
        let ends = [member.near, child].into_iter();
        // Tips have no scale buffer.
        let ends = ends.filter_map(|end| end.checked_sub(self.tips));
        let ends: Vec<c_int> = ends.filter_map(|end| c_int::try_from(end).ok()).collect();
        self.reset(into, None)?;
        self.accumulate(&ends, into, 1.0, None)
    }

    /// For each category and state the weight times the frequency.
    fn factors(&self, weights: c_int, frequencies: c_int) -> Result<Vec<f64>, Refusal> {
        let weights = below(weights, self.models.weights.len())?;
        let frequencies = below(frequencies, self.models.frequencies.len())?;
        let weights = self.models.weights[weights].as_ref();
        let frequencies = self.models.frequencies[frequencies].as_ref();
        let (Some(weights), Some(frequencies)) = (weights, frequencies) else {
            return Err(Refusal::OutOfRange);
        };
        let shape = self.kernels.shape();
        // Padding keeps the factor 0, so it adds nothing to a likelihood.
        let mut factors = vec![0.0; shape.span()];
        for (factors, weight) in factors.chunks_exact_mut(shape.states).zip(weights) {
            for (factor, frequency) in factors.iter_mut().zip(frequencies) {
                *factor = weight * frequency;
            }
        }
        Ok(factors)
    }
}
