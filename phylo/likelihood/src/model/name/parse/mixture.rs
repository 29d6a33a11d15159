//! Mixtures in names: `MIX{LG+F,WAG:1:0.3}`, `EX2`, `C20`, and the part `+C20` or `+FMIX{…}`.
//!
//! A class is written `MATRIX:RATE:WEIGHT`, of which the rate and the weight may be missing. Given
//! weights are not fitted, as in IQ-TREE.

use super::{Parser, shown, split_parts};
use crate::kernel::RATES_MAX;
use crate::model::name::{ClassName, MixtureName};
use crate::model::name::{ExchangeName, FrequencyName, ModelName};
use crate::model::protein::{PROFILES, STOCK};
use crate::model::{ModelError, RatesName};
use crate::msa::Alphabet;

/// The profiles that a part of a name lists.
pub(super) struct Profiles {
    label: String,
    /// Rate and weight, and the frequencies.
    classes: Vec<([f64; 2], FrequencyName)>,
    fits_weights: bool,
}

impl Parser<'_, '_> {
    /// The list of a mixture's classes, if the head of a name is one: in `MIX{…}`, or by a name.
    pub(super) fn mixture_list<'t>(
        &self,
        head: &'t str,
    ) -> Result<Option<(&'t str, &'t str)>, ModelError> {
        let is = |name: &str| name.eq_ignore_ascii_case(head);
        if let Some((name, list)) = STOCK.iter().find(|(name, _)| is(name)) {
            return Ok(Some((name, list)));
        }
        let Some(rest) = head
            .split_at_checked(4)
            .filter(|(start, _)| start.eq_ignore_ascii_case("MIX{"))
            .map(|(_, rest)| rest)
        else {
            return Ok(None);
        };
        let list = rest.strip_suffix('}').filter(|list| balanced(list));
        let list = list.ok_or_else(|| ModelError::Braces {
            model: shown(self.model),
            part: shown(head),
        })?;
        Ok(Some((head, list)))
    }

    /// The classes of a list.
    pub(super) fn classes_of(
        &mut self,
        label: &str,
        list: &str,
    ) -> Result<ExchangeName, ModelError> {
        let mut classes: Vec<ClassName> = Vec::new();
        let mut given = false;
        for item in split_outside(list, ',') {
            let words = split_outside(item, ':');
            let [rate, weight] = self.rate_and_weight(&words, &mut given)?;
            if classes.len() == RATES_MAX {
                return Err(self.too_many());
            }
            let name = ModelName::parse_class(words[0].trim(), self.read)?;
            let alphabet = name.alphabet();
            if classes.iter().any(|own| own.name.alphabet() != alphabet) {
                return Err(self.contradiction("the classes of MIX have one alphabet"));
            }
            classes.push(ClassName { name, rate, weight });
        }
        Ok(ExchangeName::Mix(MixtureName {
            label: label.to_owned(),
            classes,
            fits_weights: !given,
            fused: false,
        }))
    }

    /// `+C20`, or a name alone as in `C20`.
    pub(super) fn named_profiles(part: &str) -> Option<Profiles> {
        let is = |name: &str| name.eq_ignore_ascii_case(part);
        let mixture = PROFILES.iter().position(|profiles| is(profiles.name))?;
        let own = &PROFILES[mixture];
        let class = |(at, row): (usize, &[f64; 21])| {
            let frequencies = FrequencyName::Profile { mixture, at };
            ([1.0, row[0]], frequencies)
        };
        Some(Profiles {
            label: own.name.to_owned(),
            classes: own.rows().iter().enumerate().map(class).collect(),
            fits_weights: own.fits_weights,
        })
    }

    /// `+FMIX{C10pi1:1:0.2,C10pi2,…}`.
    pub(super) fn listed_profiles(&mut self, part: &str) -> Result<Profiles, ModelError> {
        let (_, braces) = self.braces(part)?;
        self.count("+FMIX", 1, braces.len())?;
        let mut classes = Vec::new();
        let mut given = false;
        for item in split_outside(braces[0], ',') {
            let words = split_outside(item, ':');
            let values = self.rate_and_weight(&words, &mut given)?;
            let label = words[0].trim();
            let empirical = label.eq_ignore_ascii_case("empirical");
            let found = match empirical {
                true => Some(FrequencyName::Empirical),
                false => profile(label),
            };
            let found = found.ok_or_else(|| self.unknown_part(label))?;
            if classes.len() == RATES_MAX {
                return Err(self.too_many());
            }
            classes.push((values, found));
        }
        Ok(Profiles {
            label: part.to_owned(),
            classes,
            fits_weights: !given,
        })
    }

    /// Makes a mixture of a name whose parts were parsed. `frequencies` is true if a part of
    /// the name gave them, `fused` if the rates across sites follow a star.
    pub(super) fn finish_mixture(
        &self,
        name: &mut ModelName,
        profiles: Option<Profiles>,
        frequencies: bool,
        fused: bool,
    ) -> Result<(), ModelError> {
        match profiles {
            Some(profiles) => self.with_profiles(name, profiles, frequencies)?,
            None if frequencies => spread_frequencies(name, &split_parts(self.model)[1..]),
            None => {}
        }
        let (rates, uniform) = (name.rates.categories(), name.rates == RatesName::Uniform);
        let ExchangeName::Mix(mixture) = &mut name.exchange else {
            return match fused && !matches!(name.exchange, ExchangeName::Mixture(_)) {
                true => Err(self.contradiction("a star stands only before a mixture's rates")),
                false => Ok(()),
            };
        };
        let weights: f64 = mixture.classes.iter().map(|class| class.weight).sum();
        let moved: f64 = mixture
            .classes
            .iter()
            .map(|own| own.weight * own.rate)
            .sum();
        if !(weights > 0.0 && moved > 0.0) {
            return Err(self.contradiction("some class needs a weight and a rate above 0"));
        }
        let each = 1.0 / mixture.classes.len() as f64;
        for class in &mut mixture.classes {
            class.weight /= weights;
            // Nothing was given: the start is the same for all.
            if mixture.fits_weights && !frequencies {
                class.weight = each;
            }
        }
        mixture.fused = fused;
        let classes = mixture.classes.len();
        if fused && !uniform && rates != classes {
            return Err(self.miscount("a fused mixture's rates", classes, rates));
        }
        if fused && mixture.classes.iter().any(|class| class.rate != 1.0) {
            let what = "a star makes the rates across sites those of the classes: leave out the \
                        rates in MIX";
            return Err(self.contradiction(what));
        }
        match fused || classes * rates <= RATES_MAX {
            true => Ok(()),
            false => Err(self.too_many()),
        }
    }

    /// Each class of the name with each profile.
    fn with_profiles(
        &self,
        name: &mut ModelName,
        mut profiles: Profiles,
        frequencies: bool,
    ) -> Result<(), ModelError> {
        let bare = match &name.exchange {
            ExchangeName::Mix(mixture) => mixture.clone(),
            ExchangeName::Published(_) | ExchangeName::Protein { .. } => MixtureName {
                label: name.exchange.label().to_owned(),
                classes: vec![class_of(name)],
                fits_weights: profiles.fits_weights,
                fused: false,
            },
            _ => {
                let what = "profiles of amino acids go with a protein matrix, such as LG+C20";
                return Err(self.contradiction(what));
            }
        };
        if bare.classes[0].name.alphabet() != Alphabet::Protein {
            return Err(self.contradiction("profiles of amino acids go with protein matrices"));
        }
        let mut label = format!("{}+{}", bare.label, profiles.label);
        let mut fits_weights = bare.fits_weights && profiles.fits_weights;
        if frequencies {
            // One class more, of these frequencies, whose weight the fit finds.
            let own = match name.frequencies {
                FrequencyName::Empirical => FrequencyName::Empirical,
                FrequencyName::Fitted => FrequencyName::Fitted,
                _ => {
                    let what = "with profiles there are only +F and +FO, for one class more";
                    return Err(self.contradiction(what));
                }
            };
            let sum: f64 = profiles.classes.iter().map(|([_, weight], _)| weight).sum();
            let share = sum / (profiles.classes.len() + 1) as f64;
            profiles.classes.insert(0, ([1.0, share], own));
            fits_weights = true;
            label.push_str("+F");
        }
        let mut classes = Vec::new();
        for base in &bare.classes {
            for ([rate, weight], frequencies) in &profiles.classes {
                if classes.len() == RATES_MAX {
                    return Err(self.too_many());
                }
                let mut own = base.clone();
                own.name.frequencies = frequencies.clone();
                own.rate *= rate;
                own.weight *= weight;
                classes.push(own);
            }
        }
        name.frequencies = FrequencyName::Matrix;
        name.exchange = ExchangeName::Mix(MixtureName {
            label,
            classes,
            fits_weights,
            fused: false,
        });
        Ok(())
    }

    /// The rate and the weight of a class, whose text is cut at its colons.
    fn rate_and_weight(
        &mut self,
        words: &[&str],
        given: &mut bool,
    ) -> Result<[f64; 2], ModelError> {
        let mut value = |text: Option<&&str>, what: &'static str| -> Result<f64, ModelError> {
            let Some(text) = text else { return Ok(1.0) };
            let range = "0 to 1,000,000";
            let values = self.numbers(text, what, [0.0, 1e6], range)?;
            self.count("a class's rate or weight", 1, values.len())?;
            Ok(values[0])
        };
        let values = [value(words.get(1), "rate")?, value(words.get(2), "weight")?];
        *given |= words.len() > 2;
        match words.len() > 3 {
            true => Err(self.miscount("a class", 3, words.len())),
            false => Ok(values),
        }
    }

    fn contradiction(&self, what: &'static str) -> ModelError {
        ModelError::Contradiction {
            model: shown(self.model),
            what,
        }
    }

    fn too_many(&self) -> ModelError {
        self.contradiction("classes times rates across sites are at most 256")
    }
}

/// `C20pi3`: a profile by its name.
pub(super) fn profile(label: &str) -> Option<FrequencyName> {
    let named = |profiles: &crate::model::protein::Profiles| {
        let (head, number) = label.split_at_checked(profiles.prefix.len())?;
        let number: usize = number.parse().ok()?;
        let known = head.eq_ignore_ascii_case(profiles.prefix);
        (known && (1..=profiles.rows().len()).contains(&number)).then(|| number - 1)
    };
    let mut all = PROFILES.iter().enumerate();
    all.find_map(|(mixture, own)| {
        Some(FrequencyName::Profile {
            mixture,
            at: named(own)?,
        })
    })
}

/// Frequencies that the whole name gives in one of its parts: those of each class that has none of
/// its own.
fn spread_frequencies(name: &mut ModelName, parts: &[&str]) {
    if let ExchangeName::Mix(mixture) = &mut name.exchange {
        for class in &mut mixture.classes {
            let own = &mut class.name.frequencies;
            if *own == FrequencyName::Matrix || *own == FrequencyName::Fitted {
                own.clone_from(&name.frequencies);
            }
        }
        name.frequencies = FrequencyName::Matrix;
        // The label alone would stand for the classes' own.
        for part in parts.iter().filter(|part| part.starts_with(['F', 'f'])) {
            mixture.label = format!("{}+{part}", mixture.label);
        }
    }
}

/// A class of a name's matrix.
fn class_of(name: &ModelName) -> ClassName {
    let mut own = name.clone();
    (own.rates, own.frequencies) = (RatesName::Uniform, FrequencyName::Matrix);
    ClassName {
        name: ModelName {
            invariant: super::InvariantName::None,
            scaler: super::ScalerName::None,
            ascertainment: super::AscertainmentName::None,
            ..own
        },
        rate: 1.0,
        weight: 1.0,
    }
}

/// Pieces between separators that stand outside braces.
fn split_outside(text: &str, separator: char) -> Vec<&str> {
    let mut depth = 0_usize;
    let outside = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == separator && depth == 0
    };
    text.split(outside).collect()
}

/// True if each brace that closes was opened, and the other way round.
fn balanced(text: &str) -> bool {
    let mut depth = 0_i32;
    let each = text.bytes().all(|byte| {
        depth += i32::from(byte == b'{') - i32::from(byte == b'}');
        depth >= 0
    });
    each && depth == 0 && !split_parts(text).is_empty()
}
