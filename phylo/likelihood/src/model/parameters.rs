//! A model's parameters, one number at a time, for optimisation along one of them.
//!
//! Must stay true: setting a parameter within its range leaves the model valid: frequencies and
//! weights sum to 1, free rates have mean 1.

use super::{
    ALPHA_RANGE, EXCHANGE_RANGE, ExchangeName, FREQUENCY_MIN, FrequencyName, INVARIANT_MAX,
    InvariantName, Model, RatesName,
};

/// One number that can be fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// The rate of one class of exchangeabilities, relative to the last class; of codons `omega`
    /// and `kappa`.
    Exchange(usize),
    /// The frequency of one state; the others keep their proportions.
    Frequency(usize),
    /// The share of invariable sites.
    Invariant,
    /// The shape of the gamma distribution.
    Alpha,
    /// One free rate, before the mean is made 1 again.
    FreeRate(usize),
    /// The weight of one free rate; the others keep their proportions.
    FreeWeight(usize),
    /// The weight of one class of a mixture; the others keep their proportions.
    ClassWeight(usize),
    /// A parameter of one class of a mixture.
    OfClass {
        /// The class.
        class: usize,
        /// Its place among the class's fitted parameters.
        at: usize,
    },
}

impl Model {
    /// The parameters to be fitted.
    #[must_use]
    pub fn fitted(&self) -> Vec<Parameter> {
        let mut fitted = Vec::new();
        if matches!(self.name.rates, RatesName::Gamma { alpha: None, .. }) {
            fitted.push(Parameter::Alpha);
        }
        if self.name.invariant == InvariantName::Fitted {
            fitted.push(Parameter::Invariant);
        }
        if let RatesName::Free {
            categories,
            given: None,
        } = self.name.rates
            && categories > 1
        {
            // One too many of each: normalising takes the surplus back, without a special category.
            fitted.extend((0..categories).map(Parameter::FreeRate));
            fitted.extend((0..categories).map(Parameter::FreeWeight));
        }
        let given = match &self.name.exchange {
            ExchangeName::Classes { given, .. } => given.is_some(),
            ExchangeName::Published(_) | ExchangeName::Mixture(_) | ExchangeName::Mix(_) => true,
            ExchangeName::Protein { given } => given.is_some(),
            ExchangeName::Codon { given, .. } => given.is_some(),
        };
        if !given {
            // Rates are relative to the last one; codon models have no such reference value.
            let codon = matches!(self.name.exchange, ExchangeName::Codon { .. });
            let free = self.exchange.len() - usize::from(!codon);
            fitted.extend((0..free).map(Parameter::Exchange));
        }
        if self.name.frequencies == FrequencyName::Fitted {
            fitted.extend((0..self.frequencies.len()).map(Parameter::Frequency));
        }
        self.fitted_of_classes(&mut fitted);
        fitted
    }

    /// The present value.
    ///
    /// # Panics
    /// When the model has no such parameter.
    #[must_use]
    pub fn value(&self, parameter: Parameter) -> f64 {
        match parameter {
            Parameter::Exchange(class) => self.exchange[class],
            Parameter::Frequency(state) => self.frequencies[state],
            Parameter::Invariant => self.invariant,
            Parameter::Alpha => self.alpha,
            Parameter::FreeRate(category) => self.free_rates[category],
            Parameter::FreeWeight(category) => self.free_weights[category],
            Parameter::ClassWeight(class) => self.classes.weights[class],
            Parameter::OfClass { class, at } => {
                let own = &self.classes.models[class];
                own.value(own.fitted()[at])
            }
        }
    }

    /// The least and the largest value that a fit may try.
    #[must_use]
    pub fn range(&self, parameter: Parameter) -> [f64; 2] {
        match parameter {
            Parameter::Exchange(_) => EXCHANGE_RANGE,
            Parameter::Frequency(_) => [FREQUENCY_MIN.max(1e-4), 0.97],
            // No more sites can be invariable than are constant.
            Parameter::Invariant => [1e-6, self.constant_share.clamp(2e-6, INVARIANT_MAX)],
            Parameter::Alpha => ALPHA_RANGE,
            Parameter::FreeRate(_) => [1e-3, 100.0],
            Parameter::FreeWeight(_) => [1e-3, 0.99],
            Parameter::ClassWeight(_) => [0.0, 1.0],
            Parameter::OfClass { class, at } => {
                let own = &self.classes.models[class];
                own.range(own.fitted()[at])
            }
        }
    }

    /// Sets a value, clamped to its range.
    ///
    /// # Panics
    /// When the model has no such parameter.
    pub fn set(&mut self, parameter: Parameter, value: f64) {
        let [least, most] = self.range(parameter);
        let value = value.clamp(least, most);
        match parameter {
            Parameter::Exchange(class) => self.exchange[class] = value,
            Parameter::Frequency(state) => set_share(&mut self.frequencies, state, value),
            Parameter::Invariant => self.invariant = value,
            Parameter::Alpha => self.alpha = value,
            Parameter::FreeRate(category) => {
                self.free_rates[category] = value;
                // The mean rate must stay 1.
                self.normalise_free_rates();
            }
            Parameter::FreeWeight(category) => {
                set_share(&mut self.free_weights, category, value);
                self.normalise_free_rates();
            }
            Parameter::ClassWeight(class) => {
                set_share(&mut self.classes.weights, class, value.min(0.999));
            }
            Parameter::OfClass { class, at } => {
                let own = &mut self.classes.models[class];
                own.set(own.fitted()[at], value);
            }
        }
    }
}

impl Model {
    /// All numbers that a fit can change, in a fixed order: the part of a model that a checkpoint
    /// stores.
    #[must_use]
    pub fn numbers(&self) -> Vec<f64> {
        // Not as text: a resumed search must have the same bits.
        let mut numbers = self.exchange.clone();
        numbers.extend(&self.frequencies);
        numbers.extend([self.invariant, self.alpha]);
        numbers.extend(&self.free_rates);
        numbers.extend(&self.free_weights);
        numbers.extend(self.classes.models.iter().flat_map(Self::numbers));
        numbers.extend(&self.classes.weights);
        numbers
    }

    /// Takes the numbers of a model of the same name, to the last bit. False, with no change, where
    /// their number differs or one is not finite.
    #[must_use]
    pub fn set_numbers(&mut self, numbers: &[f64]) -> bool {
        if numbers.len() != self.numbers().len()
            || numbers
                .iter()
                // The negated comparison refuses NaN, too.
                .any(|number| !(*number >= 0.0 && number.is_finite()))
        {
            return false;
        }
        let mut left = numbers.iter();
        let (invariant, alpha) = (&mut self.invariant, &mut self.alpha);
        let own = self.exchange.iter_mut().chain(&mut self.frequencies);
        let own = own.chain([invariant, alpha]);
        let own = own
            .chain(&mut self.free_rates)
            .chain(&mut self.free_weights);
        for own in own {
            let Some(number) = left.next() else { break };
            *own = *number;
        }
        self.spectrum = std::sync::OnceLock::new();
        for class in &mut self.classes.models {
            let (own, rest) = left.as_slice().split_at(class.numbers().len());
            if !class.set_numbers(own) {
                return false;
            }
            left = rest.iter();
        }
        self.classes.weights.copy_from_slice(left.as_slice());
        true
    }
}

/// Sets one share of a whole; the others keep their proportions.
fn set_share(shares: &mut [f64], at: usize, value: f64) {
    let rest: f64 = shares.iter().sum::<f64>() - shares[at];
    let factor = (1.0 - value) / rest;
    shares.iter_mut().for_each(|share| *share *= factor);
    shares[at] = value;
    for share in shares.iter_mut() {
        // A frequency of 0 would make every site with that state impossible.
        *share = share.max(FREQUENCY_MIN);
    }
    let sum: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
}
