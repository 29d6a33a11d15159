//! The fitted parameters as one vector of logarithms: what a climb over all of them needs.
//!
//! Must stay true: any vector makes a valid model: values are brought into their ranges, shares to
//! sum 1, free rates to mean 1.

use super::{FREQUENCY_MIN, Model, Parameter};

impl Model {
    /// The logarithms of the fitted parameters, in the order of [`Model::fitted`].
    #[must_use]
    pub fn logarithms(&self) -> Vec<f64> {
        let fitted = self.fitted().into_iter();
        fitted
            .map(|parameter| libm::log(self.value(parameter)))
            .collect()
    }

    /// The same model with other values of its fitted parameters. Frequencies and weights stand
    /// for their proportions.
    ///
    /// # Panics
    /// When there are fewer logarithms than fitted parameters.
    #[must_use]
    pub fn with_logarithms(&self, logarithms: &[f64]) -> Self {
        let mut model = self.clone();
        for (k, parameter) in self.fitted().into_iter().enumerate() {
            let [least, most] = self.range(parameter);
            let value = libm::exp(logarithms[k]).clamp(least, most);
            match parameter {
                Parameter::Frequency(state) => model.frequencies[state] = value,
                Parameter::FreeRate(category) => model.free_rates[category] = value,
                Parameter::FreeWeight(category) => model.free_weights[category] = value,
                Parameter::Exchange(_) | Parameter::Invariant | Parameter::Alpha => {
                    model.set(parameter, value);
                }
            }
        }
        let sum: f64 = model.frequencies.iter().sum();
        for share in &mut model.frequencies {
            *share = (*share / sum).max(FREQUENCY_MIN);
        }
        if !model.free_rates.is_empty() {
            model.normalise_free_rates();
        }
        model
    }
}
