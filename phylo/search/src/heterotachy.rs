//! Heterotachy: classes of sites with branch lengths of their own on one tree (GHOST), or on a tree
//! of their own each (MAST).
//!
//! `GTR+FO+H4` has four classes whose parameters are linked; with a star, `GTR+FO*H4`, each class
//! has its own. Weights in braces are fixed: `+H2{0.3/0.7}`. A class is a partition of one
//! likelihood that has all patterns, each weighted by the class's share of it; expectation
//! maximisation fits lengths, parameters and weights, with extrapolated steps (Varadhan and Roland,
//! Scandinavian Journal of Statistics 35 (2008), 335-353).
//!
//! `GTR+G+T` has a class for each tree that is given: the classes share the model's parameters;
//! with a star, `GTR+G*T`, each has its own.
//! Must stay true: no step lowers the log-likelihood. Sources: Crotty and others, "GHOST:
//! recovering historical signal from heterotachously evolved sequence alignments", Systematic
//! Biology 69 (2020), 249-264; Wong and others, "MAST: phylogenetic inference with mixtures across
//! sites and trees", Systematic Biology 73 (2024), 375-391; names as in IQ-TREE.

mod fit;

use crate::evaluation::{Fit, class_rows};
use crate::likelihood::{Likelihood, LikelihoodError, Options, SiteClasses};
use crate::model::{
    AscertainmentName, InvariantName, Model, ModelError, ModelName, RatesName, ScalerName,
};
use crate::msa::Patterns;
use crate::runner::Runner;
use crate::tree::Tree;
use sidecore_terminal::Text;

/// A model with classes of branch lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassedModel {
    /// The model of each class.
    names: Vec<ModelName>,
    /// Their weights, if they are given.
    weights: Option<Vec<f64>>,
    /// True if the classes share their parameters.
    linked: bool,
}

/// Reads the file that a brace names.
type Read<'r> = &'r mut dyn FnMut(&str) -> std::io::Result<String>;

impl ClassedModel {
    /// The given weights, or equal ones.
    fn first_weights(&self) -> Vec<f64> {
        let classes = self.names.len();
        let given = self.weights.clone();
        given.unwrap_or_else(|| vec![1.0 / classes as f64; classes])
    }

    /// Parses a name; none where it has no part `+H` or `*H` with a number. The classes of a star
    /// may be listed: `MIX{GTR+FO,HKY+FO}*H2`.
    ///
    /// # Errors
    /// [`ModelError`]: of the classes' model; rates across sites, which lengths stand for here.
    pub fn parse(text: &str, read: Read<'_>) -> Result<Option<Self>, ModelError> {
        let numbered = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
        let Some((base, linked, part)) = split(text.trim(), ['H', 'h'], numbered) else {
            return Ok(None);
        };
        let (digits, given) = match part.split_once('{') {
            Some((digits, rest)) => (digits, Some(rest.trim_end_matches('}'))),
            None => (part, None),
        };
        let value = |value: &str, what, range| ModelError::Value {
            model: text.to_owned(),
            value: value.to_owned(),
            what,
            range,
        };
        let count: Option<usize> = digits.parse().ok();
        let count = count.filter(|count| (2..=CLASSES_MAX).contains(count));
        let count = count.ok_or_else(|| value(digits, "number of classes", "2 to 16"))?;
        let weights = match given {
            None => None,
            Some(list) => {
                let each = weights_of(list);
                Some(each.ok_or_else(|| value(list, "list of weights", "above 0, of sum 1"))?)
            }
        };
        let listed = base
            .strip_prefix("MIX{")
            .and_then(|list| list.strip_suffix('}'));
        let bases: Vec<&str> = match listed {
            // Linked classes share one model, so only a star has a list.
            Some(list) if !linked => outside(list, ',').collect(),
            _ => vec![base; count],
        };
        let mut names = Vec::new();
        for base in &bases {
            names.push(ModelName::parse(base, read)?);
        }
        for found in [Some(names.len()), weights.as_ref().map(Vec::len)]
            .into_iter()
            .flatten()
        {
            if found != count {
                let (model, what) = (text.to_owned(), "+H");
                return Err(ModelError::Count {
                    model,
                    what,
                    expected: count,
                    found,
                });
            }
        }
        let plain = |name: &ModelName| {
            name.rates == RatesName::Uniform
                && name.invariant == InvariantName::None
                && name.ascertainment == AscertainmentName::None
                && name.scaler == ScalerName::None
        };
        let alphabet = names[0].alphabet();
        if !names.iter().all(plain) || names.iter().any(|name| name.alphabet() != alphabet) {
            return Err(ModelError::Contradiction {
                model: text.to_owned(),
                what: "classes of +H have one alphabet, and lengths in place of rates across \
                       sites: leave out +G, +R, +I, +B and +ASC",
            });
        }
        Ok(Some(Self {
            names,
            weights,
            linked,
        }))
    }

    /// The model of a class alone.
    #[must_use]
    pub fn first(&self) -> &ModelName {
        &self.names[0]
    }

    /// Number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.names.len()
    }
}

/// Weights above 0 that sum to 1, or nearly so.
fn weights_of(list: &str) -> Option<Vec<f64>> {
    let each = list.split(['/', ',']).map(|word| word.trim().parse().ok());
    let each: Vec<f64> = each.collect::<Option<_>>()?;
    let sum: f64 = each.iter().sum();
    // Weights that were printed with few digits miss 1 by a little.
    let good = each.iter().all(|weight| *weight > 0.0) && (sum - 1.0).abs() < 0.02;
    good.then(|| each.iter().map(|weight| weight / sum).collect())
}

/// The base, true where its parameters are linked, and what follows the letter, if it is as
/// `follows` has it.
fn split(
    text: &str,
    letter: [char; 2],
    follows: impl Fn(&str) -> bool,
) -> Option<(&str, bool, &str)> {
    let mut depth = 0_usize;
    let mut found = None;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b'+' | b'*' if depth == 0 => {
                // Only a last part counts: any later one clears what was found.
                let rest = &text[at + 1..];
                let part = rest.strip_prefix(letter);
                let part = part.filter(|part| follows(part));
                found = part.map(|part| (&text[..at], byte == b'+', part));
            }
            _ => {}
        }
    }
    found
}

/// A model with a class for each of several trees.
#[derive(Debug, Clone, PartialEq)]
pub struct TreesModel {
    name: ModelName,
    /// The trees' weights, if they are given.
    weights: Option<Vec<f64>>,
    /// True if the trees share the parameters.
    linked: bool,
}

impl TreesModel {
    /// Parses a name; none where its last part is not `+T` or `*T`.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn parse(text: &str, read: Read<'_>) -> Result<Option<Self>, ModelError> {
        let braces = |part: &str| part.is_empty() || part.starts_with('{') && part.ends_with('}');
        let Some((base, linked, part)) = split(text.trim(), ['T', 't'], braces) else {
            return Ok(None);
        };
        let list = part.strip_prefix('{').and_then(|own| own.strip_suffix('}'));
        let weights = match list {
            None => None,
            Some(list) => Some(weights_of(list).ok_or_else(|| ModelError::Value {
                model: text.to_owned(),
                value: list.to_owned(),
                what: "list of weights",
                range: "above 0, of sum 1",
            })?),
        };
        let name = ModelName::parse(base, read)?;
        if name.ascertainment != AscertainmentName::None || name.scaler != ScalerName::None {
            return Err(ModelError::Contradiction {
                model: text.to_owned(),
                what: "trees of +T have lengths and weights of their own: leave out +B and +ASC",
            });
        }
        Ok(Some(Self {
            name,
            weights,
            linked,
        }))
    }

    /// The model of each tree.
    #[must_use]
    pub fn name(&self) -> &ModelName {
        &self.name
    }

    /// Number of trees that have given weights; none where any number will do.
    #[must_use]
    pub fn trees(&self) -> Option<usize> {
        self.weights.as_ref().map(Vec::len)
    }
}

/// Pieces between separators outside braces.
fn outside(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |c: char| {
        depth = match c {
            '{' => depth + 1,
            '}' => depth.saturating_sub(1),
            _ => depth,
        };
        depth == 0 && c == separator
    })
}

/// A likelihood with classes of branch lengths.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ClassedEvaluation {
    /// The log-likelihood.
    pub lnl: f64,
    /// The classes' weights.
    pub weights: Vec<f64>,
    /// Each class's model with all values.
    pub models: Vec<String>,
    /// Each class's tree.
    pub newicks: Vec<String>,
    /// Sums of the branch lengths, class by class.
    pub tree_lengths: Vec<f64>,
    /// For each pattern its log-likelihood.
    #[serde(skip)]
    patterns: Vec<f64>,
    /// Pattern by pattern the probability of each class.
    #[serde(skip)]
    posteriors: Vec<f64>,
}

impl ClassedEvaluation {
    /// The log-likelihood of each of `columns` columns on a line; 0 where no taxon has a character.
    ///
    /// # Panics
    /// If `patterns` and `columns` are not those of the alignment that was evaluated.
    #[must_use]
    pub fn site_table(&self, patterns: &Patterns, columns: usize) -> String {
        let mut sites = vec![0.0; columns];
        for (site, pattern) in patterns.site_patterns() {
            sites[site] = self.patterns[pattern];
        }
        sites.iter().map(|lnl| format!("{lnl:.9}\n")).collect()
    }

    /// The probabilities of each column's classes, as a table with tabs between.
    ///
    /// # Panics
    /// If `patterns` are not those of the alignment that was evaluated.
    #[must_use]
    pub fn class_table(&self, patterns: &Patterns) -> String {
        let classes = self.weights.len();
        let shares = |pattern: usize| &self.posteriors[pattern * classes..][..classes];
        let rows: Vec<_> = patterns.site_patterns().collect();
        let rows = rows.iter();
        class_rows(rows.map(|&(site, pattern)| (site, "all", shares(pattern))))
    }

    /// The result for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.fact("log-likelihood", format!("{:.6}", self.lnl));
        let classes = self.weights.iter().zip(&self.tree_lengths);
        for ((weight, length), model) in classes.zip(&self.models) {
            text.fact(
                "class",
                format!("weight {weight:.6}, tree length {length:.6}, {model}"),
            );
        }
        text
    }
}

/// Evaluates trees under a model of classes: without a fit one tree, or one for each class; else
/// the first tree is fitted. Blocks.
///
/// # Errors
/// [`LikelihoodError`].
///
/// # Panics
/// When there is no tree.
pub fn evaluate(
    trees: &[Tree],
    names: &[String],
    patterns: &Patterns,
    model: &ClassedModel,
    (fit, epsilon): (Fit, f64),
    runner: impl Runner + Copy,
) -> Result<ClassedEvaluation, LikelihoodError> {
    let classes = model.names.len();
    if fit == Fit::Nothing {
        let weights = model.first_weights();
        let counts: Vec<f64> = patterns.weights().iter().copied().map(f64::from).collect();
        let (mut likelihoods, mut own, mut shown) = (Vec::new(), Vec::new(), Vec::new());
        for (class, name) in model.names.iter().enumerate() {
            let tree = trees.get(class).unwrap_or(&trees[0]).clone();
            let part = Model::new(name.clone(), patterns);
            let mut one =
                Likelihood::new(tree, patterns.clone(), part, runner, Options::default())?;
            own.push(SiteClasses(&mut one).log_likelihoods(0)?);
            shown.push(one.tree().clone());
            likelihoods.push(one.parts()[0].model_text());
        }
        let shares = Shares::of(&own, &weights, &counts);
        return Ok(shares.report(weights, likelihoods, &shown, names));
    }
    let (fitted, shares) = fit::fitted(&trees[0], patterns, model, (fit, epsilon), runner)?;
    let parts = fitted.likelihood.parts();
    let models = parts.iter().map(|part| part.model_text()).collect();
    let of_class = |class| fitted.likelihood.tree().of_part(class, 1.0);
    let shown: Vec<Tree> = (0..classes).map(of_class).collect();
    Ok(shares.report(fitted.weights, models, &shown, names))
}

/// Evaluates a mixture of trees. With a fit the trees get lengths and weights, and with
/// [`Fit::All`] the model its parameters, by expectation maximisation. Blocks.
///
/// # Errors
/// [`LikelihoodError`].
///
/// # Panics
/// When there is no tree, or another number of them than of given weights.
pub fn evaluate_trees(
    trees: &[Tree],
    names: &[String],
    patterns: &Patterns,
    model: &TreesModel,
    (fit, epsilon): (Fit, f64),
    runner: impl Runner + Copy,
) -> Result<ClassedEvaluation, LikelihoodError> {
    let mut mixture = fit::Mixture::begin(trees, patterns, model, runner)?;
    let mut shares = mixture.shares()?;
    if fit != Fit::Nothing {
        let given = shares.lnl;
        mixture.start(fit)?;
        shares = mixture.climb(fit, epsilon)?;
        // The given values may lie at a top of their own, which is higher.
        if shares.lnl < given {
            mixture = fit::Mixture::begin(trees, patterns, model, runner)?;
            shares = mixture.climb(fit, epsilon)?;
        }
    }
    let all = mixture.trees.iter();
    let models = all.clone().map(|one| one.parts()[0].model_text());
    let shown: Vec<Tree> = all.map(|one| one.tree().clone()).collect();
    Ok(shares.report(mixture.weights, models.collect(), &shown, names))
}

/// The classes' shares of each pattern.
struct Shares {
    lnl: f64,
    patterns: Vec<f64>,
    /// Pattern by pattern.
    classes: Vec<f64>,
}

impl Shares {
    /// From each class's log-likelihoods of the patterns.
    fn of(own: &[Vec<f64>], weights: &[f64], counts: &[f64]) -> Self {
        // Not the system's logarithm, whose last digit depends on the platform.
        let logs: Vec<f64> = weights.iter().map(|weight| libm::log(*weight)).collect();
        let mut shares = Self {
            lnl: 0.0,
            patterns: Vec::with_capacity(counts.len()),
            classes: Vec::with_capacity(counts.len() * own.len()),
        };
        for (pattern, count) in counts.iter().enumerate() {
            let each = logs.iter().zip(own).map(|(log, own)| log + own[pattern]);
            // Relative to the largest, as exponentials of log-likelihoods underflow.
            let most = each.clone().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = each.clone().map(|value| libm::exp(value - most)).sum();
            let whole = most + libm::log(sum);
            shares.lnl += count * whole;
            shares.patterns.push(whole);
            shares
                .classes
                .extend(each.map(|value| libm::exp(value - whole)));
        }
        shares
    }

    fn report(
        self,
        weights: Vec<f64>,
        models: Vec<String>,
        trees: &[Tree],
        names: &[String],
    ) -> ClassedEvaluation {
        ClassedEvaluation {
            lnl: self.lnl,
            weights,
            models,
            newicks: trees.iter().map(|tree| tree.to_newick(names)).collect(),
            tree_lengths: trees.iter().map(Tree::total_length).collect(),
            patterns: self.patterns,
            posteriors: self.classes,
        }
    }
}

const CLASSES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msa::Alignment;
    use crate::newick::Newick;
    use crate::runner::Serial;
    use crate::simulate::simulate;

    fn parse(text: &str) -> Result<Option<ClassedModel>, ModelError> {
        ClassedModel::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()))
    }

    fn names() -> Vec<String> {
        "abcdef".chars().map(String::from).collect()
    }

    fn tree(text: &str) -> Tree {
        Tree::from_newick(&Newick::parse(text).unwrap(), &names()).unwrap()
    }

    const SLOW: &str = "((a:0.4,b:0.02):0.1,(c:0.5,d:0.02):0.05,(e:0.5,f:0.02):0.1);";
    const FAST: &str = "((a:0.02,b:0.4):0.1,(c:0.02,d:0.5):0.05,(e:0.02,f:0.5):0.1);";

    fn two_histories() -> Patterns {
        let name = ModelName::parse("JC", &mut |_| Ok(String::new())).unwrap();
        let model = Model::without_alignment(name.clone());
        let mut rows = vec![Vec::new(); 6];
        for (text, seed) in [(SLOW, 1), (FAST, 2)] {
            let more = simulate(&tree(text), &names(), &model, 400, seed).unwrap();
            let each = rows.iter_mut().enumerate();
            each.for_each(|(taxon, row)| row.extend_from_slice(more.row(taxon)));
        }
        let alignment = Alignment::new(names(), rows).unwrap();
        Patterns::new(&alignment, name.alphabet()).unwrap()
    }

    #[test]
    fn names_of_classes() {
        let linked = parse("GTR+FO+H4").unwrap().unwrap();
        assert!(linked.linked && linked.classes() == 4);
        let own = parse("MIX{HKY+FO,JC}*H2{0.3/0.7}").unwrap().unwrap();
        assert!(!own.linked && own.weights == Some(vec![0.3, 0.7]));
        assert_ne!(own.names[0], own.names[1]);
        for plain in ["HKY+F+G4", "LG", "LG+C20+H", "x{+H2}"] {
            assert_eq!(parse(plain).unwrap(), None, "{plain}");
        }
        for wrong in [
            "GTR+H1",
            "GTR+H99",
            "GTR+G4+H2",
            "GTR+H2{0.3}",
            "GTR+H2{1/1}",
            "XX+H2",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn classes_find_two_histories() {
        let patterns = two_histories();
        let trees = [tree(SLOW), tree(FAST)];
        let run = |model: &str, fit| {
            let model = parse(model).unwrap().unwrap();
            evaluate(&trees, &names(), &patterns, &model, (fit, 1e-3), Serial).unwrap()
        };
        let truth = run("JC+H2{0.5/0.5}", Fit::Nothing);
        let fitted = run("JC+H2", Fit::All);
        assert!(fitted.lnl > truth.lnl, "{} {}", fitted.lnl, truth.lnl);
        assert!(
            fitted
                .weights
                .iter()
                .all(|weight| (weight - 0.5).abs() < 0.15)
        );
        let sum: f64 = fitted.posteriors.iter().take(2).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        // What is printed gives the same log-likelihood.
        let again: Vec<Tree> = fitted.newicks.iter().map(|text| tree(text)).collect();
        let weights = format!("JC+H2{{{}/{}}}", fitted.weights[0], fitted.weights[1]);
        let model = parse(&weights).unwrap().unwrap();
        let once = (Fit::Nothing, 1.0);
        let again = evaluate(&again, &names(), &patterns, &model, once, Serial).unwrap();
        assert!(
            (again.lnl - fitted.lnl).abs() < 1e-3,
            "{} {}",
            again.lnl,
            fitted.lnl
        );
        // Parameters of each class: no worse fit. (Those of all classes may end in a local optimum:
        // docs/limits.)
        let own = run("HKY*H2", Fit::All);
        assert!(own.lnl > fitted.lnl - 0.01, "{} {}", own.lnl, fitted.lnl);
    }
    #[test]
    fn trees_share_the_sites() {
        let other = "((a:0.3,c:0.1):0.3,(b:0.2,e:0.1):0.2,(d:0.2,f:0.1):0.3);";
        let name = ModelName::parse("HKY{1/3}+FU{0.1/0.2/0.3/0.4}", &mut |_| Ok(String::new()));
        let name = name.unwrap();
        let model = Model::without_alignment(name.clone());
        let mut rows = vec![Vec::new(); 6];
        for (text, sites, seed) in [(SLOW, 900, 1), (other, 300, 2)] {
            let more = simulate(&tree(text), &names(), &model, sites, seed).unwrap();
            let each = rows.iter_mut().enumerate();
            each.for_each(|(taxon, row)| row.extend_from_slice(more.row(taxon)));
        }
        let alignment = Alignment::new(names(), rows).unwrap();
        let patterns = Patterns::new(&alignment, name.alphabet()).unwrap();
        let both = [tree(SLOW), tree(other)];
        let run = |trees: &[Tree], model: &str, fit| {
            let model = TreesModel::parse(model, &mut |_| Ok(String::new()));
            let model = model.unwrap().unwrap();
            evaluate_trees(trees, &names(), &patterns, &model, (fit, 0.01), Serial).unwrap()
        };
        // A tree alone is no mixture.
        let one = run(&both[..1], "HKY{1/3}+FE+T", Fit::Nothing);
        let part = ModelName::parse("HKY{1/3}+FE", &mut |_| Ok(String::new())).unwrap();
        let part = Model::new(part, &patterns);
        let (plain, options) = (both[0].clone(), Options::default());
        let mut alone = Likelihood::new(plain, patterns.clone(), part, Serial, options).unwrap();
        assert!((one.lnl - alone.evaluate().unwrap()).abs() < 1e-8);
        let truth = run(
            &both,
            "HKY{1/3}+FU{0.1/0.2/0.3/0.4}+T{0.75/0.25}",
            Fit::Nothing,
        );
        let fitted = run(&both, "HKY+FO+T", Fit::All);
        assert!(fitted.lnl > truth.lnl && fitted.lnl < truth.lnl + 40.0);
        assert!((fitted.weights[0] - 0.75).abs() < 0.15, "{fitted:?}");
        assert_eq!(fitted.models[0], fitted.models[1]);
        let single = run(&both[..1], "HKY+FO+T", Fit::All);
        assert!(
            single.lnl < fitted.lnl - 10.0,
            "{} {}",
            single.lnl,
            fitted.lnl
        );
        let own = run(&both, "HKY+FO*T", Fit::All);
        assert!(own.lnl > fitted.lnl - 0.5, "{} {}", own.lnl, fitted.lnl);
        let fixed = run(&both, "JC+T{0.5/0.5}", Fit::Branches);
        assert_eq!(fixed.weights, [0.5, 0.5]);
        // What is printed gives the same log-likelihood.
        let again: Vec<Tree> = fitted.newicks.iter().map(|text| tree(text)).collect();
        let weights = format!("+T{{{}/{}}}", fitted.weights[0], fitted.weights[1]);
        let again = run(&again, &(fitted.models[0].clone() + &weights), Fit::Nothing);
        assert!(
            (again.lnl - fitted.lnl).abs() < 0.05,
            "{} {}",
            again.lnl,
            fitted.lnl
        );
        for wrong in ["JC+T{1/1}", "XX+T", "JC+ASC_LEWIS+T"] {
            let parsed = TreesModel::parse(wrong, &mut |_| Ok(String::new()));
            assert!(parsed.is_err(), "{wrong}");
        }
        let plain = TreesModel::parse("GTR+G", &mut |_| Ok(String::new()));
        assert_eq!(plain.unwrap(), None);
    }
}
