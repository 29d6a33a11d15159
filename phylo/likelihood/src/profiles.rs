//! Frequencies of amino acids for each site, as posterior means of a mixture's classes (PMSF).
//!
//! A mixture's fit on a guide tree gives each site the mean of the classes' frequencies, weighted
//! by their posterior probabilities. A model with these has one class a site in place of sixty.
//! Must stay true: sites of one pattern have one profile; invariable sites have its frequencies,
//! not the alignment's (IQ-TREE's do since 3.1.3). Source: Wang, Minh, Susko and Roger, Systematic
//! Biology 67 (2018), 216-235. The file's format is IQ-TREE's `.sitefreq`: a line for each site,
//! its number from 1 and twenty frequencies, in the order `ARNDCQEGHILKMFPSTWYV`.

use crate::likelihood::{Likelihood, LikelihoodError, Options, PartOptions, Posteriors};
use crate::model::{ModelError, Parameter};
use crate::msa::Patterns;
use crate::runner::Runner;
use crate::tree::Tree;
use std::collections::HashMap;
use std::fmt::Write;

/// Errors of a file of site frequencies.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A line that is not understood.
    #[error("site frequencies, line {line}: {what}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The reason.
        what: &'static str,
    },
    /// A site of the alignment that has none.
    #[error("site frequencies: site {site} has none, and each site of the alignment needs them")]
    Missing {
        /// The site, from 1.
        site: usize,
    },
    /// Equal columns with frequencies that differ.
    #[error("site frequencies: site {site} equals an earlier one, but its frequencies differ")]
    Differ {
        /// The site, from 1.
        site: usize,
    },
    /// Data that are no amino acids.
    #[error("site frequencies are of amino acids, and the alignment has one part")]
    Data,
    /// A model that they do not go with.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Reads frequencies of sites and gives those of the patterns, twenty each.
///
/// # Errors
/// [`ProfileError`].
pub fn parse(text: &str, patterns: &Patterns) -> Result<Vec<f64>, ProfileError> {
    let mut by_site: HashMap<usize, Vec<f64>> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        let Some(site) = words.next().filter(|word| !word.starts_with('#')) else {
            continue;
        };
        let error = |what| ProfileError::Line {
            line: number + 1,
            what,
        };
        let site: Option<usize> = site.parse().ok().filter(|&site| site > 0);
        let site = site.ok_or_else(|| error("it begins with no site's number, from 1"))?;
        // Ends at a word that is no number, which the count then gives away.
        let own: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
        let good = own.iter().all(|share| (0.0..=1.0).contains(share));
        let sum: f64 = own.iter().sum();
        // Files have few digits, so sums are 1 only nearly.
        if own.len() != STATES || !good || (sum - 1.0).abs() > 1e-2 {
            return Err(error("a site has twenty frequencies that sum to 1"));
        }
        let own = own.iter().map(|share| share / sum).collect();
        if by_site.insert(site - 1, own).is_some() {
            return Err(error("a site that was there before"));
        }
    }
    let mut all: Vec<f64> = vec![0.0; STATES * patterns.len()];
    let mut set = vec![false; patterns.len()];
    for (site, pattern) in patterns.site_patterns() {
        let own = by_site.get(&site);
        let own = own.ok_or(ProfileError::Missing { site: site + 1 })?;
        let to = &mut all[pattern * STATES..][..STATES];
        // A pattern has one profile, so equal columns may differ by rounding alone.
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
        if std::mem::replace(&mut set[pattern], true) && !to.iter().zip(own).all(near) {
            return Err(ProfileError::Differ { site: site + 1 });
        }
        to.copy_from_slice(own);
    }
    Ok(all)
}

/// The patterns' frequencies site by site, in the format of [`parse`].
#[must_use]
pub fn print(frequencies: &[f64], patterns: &Patterns) -> String {
    let mut sites: Vec<(usize, usize)> = patterns.site_patterns().collect();
    sites.sort_unstable();
    let mut text = String::new();
    for (site, pattern) in sites {
        let _ = write!(text, "{}", site + 1);
        for share in &frequencies[pattern * STATES..][..STATES] {
            let _ = write!(text, " {share:.10}");
        }
        text.push('\n');
    }
    text
}

/// Fits a mixture on a guide tree, lengths and all, and gives the patterns' posterior mean
/// frequencies, in the format of [`parse`]. Blocks.
///
/// The fit begins where that of the mixture's matrix alone ends.
///
/// # Errors
/// [`LikelihoodError`].
pub fn of_guide_tree(
    mut tree: Tree,
    mut part: PartOptions,
    runner: impl Runner + Copy,
) -> Result<String, LikelihoodError> {
    let options = Options::default();
    if let Ok(name) = part.model.name().of_site_frequencies() {
        // Sixty classes take sixty times as long, and only the last steps need them.
        let plain = PartOptions::new(name, part.patterns.clone());
        let mut plain = Likelihood::partitioned(tree, vec![plain], runner, options)?;
        plain.optimise(EPSILON)?;
        tree = plain.tree().clone();
        let found = plain.parts()[0].model();
        for parameter in part.model.fitted() {
            let of_class = matches!(
                parameter,
                Parameter::ClassWeight(_) | Parameter::OfClass { .. }
            );
            if !of_class {
                part.model.set(parameter, found.value(parameter));
            }
        }
    }
    let mut likelihood = Likelihood::partitioned(tree, vec![part], runner, options)?;
    likelihood.optimise_onward(EPSILON)?;
    let frequencies = Posteriors::of(&mut likelihood, 0)?.frequencies();
    Ok(print(&frequencies, likelihood.parts()[0].patterns()))
}

/// The part under its model's matrix and rates across sites, with the frequencies of a text for
/// [`parse`].
///
/// # Errors
/// [`ProfileError`].
pub fn apply(part: &PartOptions, text: &str) -> Result<PartOptions, ProfileError> {
    if part.patterns.alphabet().states() != STATES {
        return Err(ProfileError::Data);
    }
    let name = part.model.name().of_site_frequencies()?;
    let frequencies = parse(text, &part.patterns)?;
    let mut own = PartOptions::new(name, part.patterns.clone());
    own.patterns = own
        .model
        .with_site_frequencies(own.patterns, &frequencies)?;
    Ok(own)
}

const STATES: usize = 20;
/// Gain of a round below which the fit on the guide tree ends.
const EPSILON: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, ModelName};
    use crate::msa::{Alignment, Alphabet};
    use crate::newick::Newick;
    use crate::random::Random;
    use crate::runner::Serial;

    const TREE: &str = "((a:0.2,b:0.1):0.1,(c:0.3,d:0.2):0.05,(e:0.1,f:0.4):0.2);";

    fn simulated() -> (Tree, Alignment) {
        let names: Vec<String> = "abcdef".chars().map(String::from).collect();
        let tree = Tree::from_newick(&Newick::parse(TREE).unwrap(), &names).unwrap();
        let model = Model::without_alignment(name("LG+C10+G4m{0.8}"));
        let alignment = crate::simulate::simulate(&tree, &names, &model, 60, 4).unwrap();
        (tree, alignment)
    }

    fn name(text: &str) -> ModelName {
        ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
    }

    fn part(alignment: &Alignment, model: &str) -> PartOptions {
        let patterns = Patterns::new(alignment, Alphabet::Protein).unwrap();
        PartOptions::new(name(model), patterns)
    }

    fn made(tree: &Tree, part: PartOptions) -> Likelihood<Serial> {
        Likelihood::partitioned(tree.clone(), vec![part], Serial, Options::default()).unwrap()
    }

    /// With the same frequencies at each site the model is that of one matrix.
    #[test]
    fn equal_profiles_are_a_model_of_one_matrix() {
        let (tree, alignment) = simulated();
        let shares: Vec<f64> = (1..=20).map(|k| f64::from(k) / 210.0).collect();
        let list = |by: &str| {
            let shares: Vec<String> = shares.iter().map(|share| format!("{share:.12}")).collect();
            shares.join(by)
        };
        let text: String = (1..=60)
            .map(|site| format!("{site} {}\n", list(" ")))
            .collect();
        for rates in ["+G4m{0.7}", "+IU{0.1}+R3{0.2/1/3}{0.3/0.5/0.2}", ""] {
            let plain = format!("LG+FU{{{}}}{rates}", list("/"));
            let mut plain = made(&tree, part(&alignment, &plain));
            let own = apply(&part(&alignment, &format!("LG+C20{rates}")), &text).unwrap();
            let mut own = made(&tree, own);
            let (a, b) = (plain.evaluate().unwrap(), own.evaluate().unwrap());
            assert!((a - b).abs() < 1e-9 * a.abs(), "{rates}: {a} {b}");
            let edge = tree.edges().nth(3).unwrap();
            for length in [0.01, 0.4] {
                let [a, b] =
                    [&mut plain, &mut own].map(|one| one.derivatives(edge, length).unwrap());
                assert!((a.first - b.first).abs() < 1e-7 * (1.0 + a.first.abs()));
                assert!((a.second - b.second).abs() < 1e-7 * (1.0 + a.second.abs()));
            }
            let (a, b) = (plain.optimise(1e-4).unwrap(), own.optimise(1e-4).unwrap());
            assert!((a - b).abs() < 1e-3, "{rates}: fitted {a} {b}");
        }
    }

    #[test]
    fn profiles_are_written_and_read_and_stay_with_resampled_sites() {
        let (tree, alignment) = simulated();
        let mixture = part(&alignment, "LG+C10+F+G4");
        let text = of_guide_tree(tree.clone(), mixture.clone(), Serial).unwrap();
        assert_eq!(text.lines().count(), 60);
        let own = apply(&mixture, &text).unwrap();
        assert_eq!(own.model.to_string(), "LG+G4m{1.000000}");
        let lnl = made(&tree, own.clone()).optimise(0.01).unwrap();
        let plain = made(&tree, part(&alignment, "LG+G4"))
            .optimise(0.01)
            .unwrap();
        assert!(lnl > plain, "{lnl} {plain}");
        // A replicate of all sites, each once, is the alignment.
        let mut replicate = own.clone();
        replicate.patterns = own.patterns.jackknifed(1.0, &mut Random::new(1));
        let [a, b] = [own, replicate].map(|one| made(&tree, one).evaluate().unwrap());
        assert!((a - b).abs() < 1e-9, "{a} {b}");
    }

    /// With equal exchangeabilities transition probabilities are known: `e + (1 - e) p` to stay,
    /// `(1 - e) p` to change to a state of frequency `p`. A site that never changes has the state
    /// that its profile draws: this is the limit of slow sites.
    #[test]
    fn invariable_sites_have_the_frequencies_of_their_profile() {
        let rows = ["AAR", "AAR", "ARR"].map(|row| row.as_bytes().to_vec());
        let names: Vec<String> = "abc".chars().map(String::from).collect();
        let alignment = Alignment::new(names.clone(), rows.to_vec()).unwrap();
        let newick = Newick::parse("(a:0.1,b:0.2,c:0.4);").unwrap();
        let tree = Tree::from_newick(&newick, &names).unwrap();
        // A and R are the first two.
        let profiles = [[0.4, 0.06], [0.1, 0.3], [0.2, 0.08]].map(|[a, r]| {
            let mut own = vec![(1.0 - a - r) / 18.0; STATES];
            own[..2].copy_from_slice(&[a, r]);
            own
        });
        let line = |(site, own): (usize, &Vec<f64>)| {
            let each: Vec<String> = own.iter().map(|share| format!("{share:.14}")).collect();
            format!("{} {}\n", site + 1, each.join(" "))
        };
        let text: String = profiles.iter().enumerate().map(line).collect();
        let invariant = 0.3;
        let own = apply(&part(&alignment, "POISSON+C10+IU{0.3}"), &text).unwrap();
        let sites = made(&tree, own).site_log_likelihoods().unwrap();
        for (site, (own, lnl)) in profiles.iter().zip(sites).enumerate() {
            let change = 1.0 - own.iter().map(|share| share * share).sum::<f64>();
            // Rates of the others rise, so that the mean over all sites is 1.
            let rate = 1.0 / (1.0 - invariant) / change;
            let states: Vec<usize> = (0..3)
                .map(|taxon| usize::from(alignment.row(taxon)[site] == b'R'))
                .collect();
            let from = |root: usize| {
                let ends = states.iter().zip([0.1, 0.2, 0.4]).map(|(&state, length)| {
                    let same = f64::exp(-rate * length);
                    (1.0 - same) * own[state] + same * f64::from(u8::from(state == root))
                });
                own[root] * ends.product::<f64>()
            };
            let variable: f64 = (0..STATES).map(from).sum();
            let constant = states.iter().all(|state| *state == states[0]);
            let fixed = if constant { own[states[0]] } else { 0.0 };
            let expected = f64::ln((1.0 - invariant) * variable + invariant * fixed);
            assert!((lnl - expected).abs() < 1e-10, "{site}: {lnl} {expected}");
        }
    }

    #[test]
    fn bad_profiles_are_refused() {
        let (_, alignment) = simulated();
        let own = part(&alignment, "LG+G4");
        let line = format!("1{}\n", " 0.05".repeat(20));
        let said = |part: &PartOptions, text: &str| apply(part, text).unwrap_err().to_string();
        assert!(said(&own, &line).contains("has none"));
        assert!(said(&own, &line.repeat(2)).contains("line 2: a site that was there"));
        assert!(said(&own, "1 0.5 0.5").contains("twenty"));
        assert!(said(&own, "x").contains("no site's number"));
        assert!(said(&part(&alignment, "LG4X"), &line).contains("one protein matrix"));
    }
}
