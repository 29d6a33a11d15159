//! A model's free parameters as a point, for optimisation along all of them at once.
//!
//! Every coordinate is a logarithm: of a parameter, or of one share of a whole relative to the
//! last. So any point within the bounds is a valid model, and a step means the same for small
//! values as for large ones. An offset is added first to parameters that data may leave near 0
//! (exchange rates, the share of invariable sites). The effect of a rate far below the others is
//! proportional to the rate itself. So along its plain logarithm the likelihood is flat there, and
//! a climb that overshot once would take that for a maximum.

use super::{FREQUENCY_MIN, Model, Parameter};

/// A coordinate and its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Coordinate {
    /// The present value.
    pub(crate) at: f64,
    /// The least and the largest value.
    pub(crate) range: [f64; 2],
}

impl Coordinate {
    /// The logarithm of a value above 0 with a range.
    #[must_use]
    pub(crate) fn of(value: f64, range: [f64; 2]) -> Self {
        let range = range.map(libm::log);
        let at = libm::log(value).clamp(range[0], range[1]);
        Self { at, range }
    }
}

impl Model {
    /// The model's present point; empty where no parameter is fitted.
    #[must_use]
    pub(crate) fn coordinates(&self) -> Vec<Coordinate> {
        let mut point = Vec::new();
        for parameter in self.fitted() {
            let within = |shares: &[f64], at: usize, most: f64| Coordinate {
                at: libm::log(shares[at] / shares[shares.len() - 1]).clamp(-most, most),
                range: [-most, most],
            };
            let share = |shares: &[f64], at: usize| within(shares, at, SHARE_MAX);
            match parameter {
                Parameter::Frequency(state) if state + 1 < self.frequencies.len() => {
                    point.push(share(&self.frequencies, state));
                }
                Parameter::FreeWeight(category) if category + 1 < self.free_weights.len() => {
                    point.push(share(&self.free_weights, category));
                }
                Parameter::ClassWeight(class) => {
                    // Many weights are fitted by another method.
                    if class + 1 < self.classes.weights.len() && !self.fits_many_weights() {
                        point.push(within(&self.classes.weights, class, CLASS_SHARE_MAX));
                    }
                }
                // Each class gives all of its coordinates at once.
                Parameter::OfClass { class, at: 0 } => {
                    point.extend(self.classes.models[class].coordinates());
                }
                Parameter::OfClass { .. } => {}
                // The last share is 1 minus the others.
                Parameter::Frequency(_) | Parameter::FreeWeight(_) => {}
                _ => {
                    let shift = self.shift(parameter);
                    let range = self.range(parameter).map(|end| end + shift);
                    point.push(Coordinate::of(self.value(parameter) + shift, range));
                }
            }
        }
        point
    }

    /// Offset added to a parameter before its logarithm is taken.
    fn shift(&self, parameter: Parameter) -> f64 {
        match parameter {
            Parameter::Exchange(_) => {
                let sum: f64 = self.exchange.iter().sum();
                EXCHANGE_SHIFT * sum / self.exchange.len() as f64
            }
            Parameter::Invariant => INVARIANT_SHIFT,
            _ => 0.0,
        }
    }

    /// Moves the model to a point with as many coordinates as `Model::coordinates` has. A point
    /// is valid only for the model that returned it and for its copies, before they move.
    ///
    /// # Panics
    /// When there are fewer.
    pub(crate) fn move_to(&mut self, point: &[f64]) {
        let mut frequencies = vec![1.0; self.frequencies.len()];
        let mut weights = vec![1.0; self.free_weights.len()];
        let mut class_weights = vec![1.0; self.classes.weights.len()];
        let mut moved = [false; 3];
        let many = self.fits_many_weights();
        let used = std::cell::Cell::new(0);
        let take = || {
            let at = used.replace(used.get() + 1);
            libm::exp(point[at])
        };
        let fitted = self.fitted().into_iter();
        // Collected first: the shifts depend on the old values, which the loop overwrites.
        let shifted: Vec<(Parameter, f64)> = fitted
            .map(|parameter| (parameter, self.shift(parameter)))
            .collect();
        for (parameter, shift) in shifted {
            match parameter {
                Parameter::Frequency(state) => {
                    moved[0] = true;
                    // The last frequency or weight is the reference, 1, and has no coordinate.
                    if state + 1 < frequencies.len() {
                        frequencies[state] = take();
                    }
                }
                Parameter::FreeWeight(category) => {
                    moved[1] = true;
                    if category + 1 < weights.len() {
                        weights[category] = take();
                    }
                }
                Parameter::ClassWeight(class) => {
                    moved[2] = !many;
                    if class + 1 < class_weights.len() && !many {
                        class_weights[class] = take();
                    }
                }
                Parameter::OfClass { class, at: 0 } => {
                    let own = &mut self.classes.models[class];
                    let count = own.coordinates().len();
                    own.move_to(&point[used.get()..][..count]);
                    used.set(used.get() + count);
                }
                Parameter::OfClass { .. } => {}
                // Normalised below, when all are there.
                Parameter::FreeRate(category) => self.free_rates[category] = take(),
                _ => self.set(parameter, take() - shift),
            }
        }
        if moved[0] {
            self.frequencies = to_whole(frequencies);
        }
        if moved[1] {
            self.free_weights = to_whole(weights);
            self.normalise_free_rates();
        }
        if moved[2] {
            self.set_class_weights(&class_weights);
        }
    }
}

/// Shares that sum to 1, none too small.
fn to_whole(mut shares: Vec<f64>) -> Vec<f64> {
    for least in [0.0, FREQUENCY_MIN] {
        shares
            .iter_mut()
            .for_each(|share| *share = share.max(least));
        let sum: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= sum);
    }
    shares
}

/// The logarithm of how many times larger or smaller than the last a share may be.
const SHARE_MAX: f64 = 7.0;
/// Likewise of a class's weight: alignments may lack a class altogether.
const CLASS_SHARE_MAX: f64 = 20.0;
/// Offset of an exchange rate, as a share of the mean rate: about the effect of two steps through a
/// third state.
const EXCHANGE_SHIFT: f64 = 0.1;
/// Offset of the share of invariable sites.
const INVARIANT_SHIFT: f64 = 0.1;
