//! Dates of a tree's nodes: a clock fitted to the branch lengths by least squares.
//!
//! A branch of length `b` that lasts from one date to another is expected to have the length
//! `rate * duration`. The fit is that of the least sum of squared differences, each divided by the
//! variance of the length, `(b + c / s) / s` for `s` sites with `c = 10`. No node is younger than
//! its descendants, and known dates are kept: those of tips, and any bounds of inner nodes.
//!
//! For a given rate that is a convex problem on a tree, and is solved exactly: from the tips to the
//! root each clade's least cost is a function of the date of the node above it, and what is passed
//! on is that function's derivative, which is piecewise linear and never falls (`clock`). The least
//! cost is a convex function of the rate, too, so the rate is where its derivative is 0.
//! Confidence comes from replicates of lengths that are drawn under the fit (a Poisson number of
//! substitutions, at rates that vary from branch to branch), dated in the same way, with the
//! variances of the fit's lengths.
//!
//! Must stay true: the text's root is the root; one seed, one result, on any number of engines.
//! Source: To, Jung, Lycett and Gascuel, "Fast dating using least-squares criteria and
//! algorithms", Systematic Biology 65 (2016), 82-97, for the criterion, the variances and the
//! confidence.
//!
//! ```
//! use sidecore_phylo::dating::{ClockOptions, Dates, date};
//! use sidecore_phylo::newick::Newick;
//! use sidecore_phylo::runner::Serial;
//!
//! let tree = Newick::parse("(a:0.01,b:0.03);")?;
//! let dates = Dates::parse("a 2000\nb 2010\n")?;
//! let found = date(&tree, &dates, &ClockOptions::new(1_000), &Serial)?;
//! assert!((found.rate - 0.002).abs() < 1e-9 && (found.root_date - 1995.0).abs() < 1e-6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod dates;

pub use clock::ClockOptions;
pub use dates::{Dates, DatingError};

use crate::newick::Newick;
use crate::rooting::{Method, RootError, as_text, root};
use crate::runner::{Runner, Work};
use clock::{Clock, Fit};
use dates::first_tip;
use sidecore_bare::width::ToU64;

/// A tree with dates.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Dated {
    /// The rate, in substitutions a site and unit of time.
    pub rate: f64,
    /// 95 % of the replicates' rates; none without replicates.
    pub rate_interval: Option<[f64; 2]>,
    /// The date of the root.
    pub root_date: f64,
    /// 95 % of the replicates' dates of it.
    pub root_interval: Option<[f64; 2]>,
    /// The sum of squares.
    pub cost: f64,
    /// Dates of labels that the tree does not have.
    pub dates_unused: usize,
    nodes: Vec<NodeDate>,
    /// The tree; lengths are durations.
    #[serde(serialize_with = "as_text")]
    pub tree: Newick,
}

/// A node's date.
#[derive(Debug, Clone, serde::Serialize)]
struct NodeDate {
    /// A tip's or a node's label; else `Node` and a number, in the order of the text.
    name: String,
    /// Of an inner node two tips whose last common ancestor it is.
    of: Vec<String>,
    date: f64,
    interval: Option<[f64; 2]>,
}

impl Dated {
    /// The dates as a table: a heading, then a line a node, with tabs between; `NA` where there is
    /// no value.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = "name\tancestor_of\tdate\tearliest\tlatest\n".to_owned();
        for node in &self.nodes {
            let ends = match node.interval {
                Some([low, high]) => format!("{low:.6}\t{high:.6}"),
                None => "NA\tNA".to_owned(),
            };
            let of = node.of.join(",");
            text.push_str(&format!("{}\t{of}\t{:.6}\t{ends}\n", node.name, node.date));
        }
        text
    }
}

/// Dates a rooted tree of any shape. Blocks.
///
/// # Errors
/// [`DatingError`].
pub fn date(
    tree: &Newick,
    dates: &Dates,
    options: &ClockOptions,
    runner: &impl Runner,
) -> Result<Dated, DatingError> {
    let (clock, unused) = Clock::new(tree, dates, options)?;
    let best = clock.fit(&clock.branches, options.rate)?;
    let mut items: Vec<(u32, Option<Fit>)> = (0..options.replicates).map(|k| (k, None)).collect();
    runner.run(Work::Support, &mut items, |(index, found)| {
        // A replicate without a signal says nothing of the dates.
        *found = clock
            .fit(&clock.drawn(&best, options, *index), options.rate)
            .ok();
    })?;
    let found: Vec<Fit> = items.into_iter().filter_map(|(_, found)| found).collect();
    let at = |node: usize| interval(best.dates[node], found.iter().map(|one| one.dates[node]));
    let mut dated = tree.clone();
    for (node, own) in tree.nodes().iter().enumerate() {
        let duration = own
            .parent
            .map(|parent| best.dates[node] - best.dates[parent]);
        // To ten decimals, as trees are written elsewhere; rounding may leave a little below 0.
        let duration = duration.map(|span| (1e10 * span.max(0.0)).round() / 1e10);
        dated.set_length(node, duration);
    }
    let inner = tree.nodes().iter().scan(0, |inner, own| {
        *inner += usize::from(!own.children.is_empty());
        Some(*inner)
    });
    let nodes = inner.enumerate().map(|(node, number)| {
        let own = &tree.nodes()[node];
        let of = match own.children[..] {
            [] => Vec::new(),
            [one] => vec![first_tip(tree, one)],
            [first, .., last] => vec![first_tip(tree, first), first_tip(tree, last)],
        };
        // Numbers, also several with `/` between, are supports, not names.
        let mut words = own.label.split('/');
        let is_named = of.is_empty() || words.any(|word| word.parse::<f64>().is_err());
        let is_named = is_named && !own.label.is_empty();
        NodeDate {
            name: match is_named {
                true => own.label.clone(),
                false => format!("Node{number}"),
            },
            of,
            date: best.dates[node],
            interval: at(node),
        }
    });
    Ok(Dated {
        rate: best.rate,
        rate_interval: interval(best.rate, found.iter().map(|one| one.rate)),
        root_date: best.dates[0],
        root_interval: at(0),
        cost: best.cost,
        dates_unused: unused,
        nodes: nodes.collect(),
        tree: dated,
    })
}

/// Roots a tree by an outgroup and removes that: what is left has a root that the lengths say.
///
/// # Errors
/// [`RootError`].
pub fn without_outgroup(tree: &Newick, outgroup: Vec<String>) -> Result<Newick, RootError> {
    let rooted = root(tree, &Method::Outgroup(outgroup.clone()))?.tree;
    let nodes = rooted.nodes();
    let is_kept = |child: &usize| !outgroup.contains(&first_tip(&rooted, *child));
    let kept = nodes[0].children.iter().copied().find(is_kept).unwrap_or(0);
    let mut made = Newick::root(String::new());
    let mut new = vec![None; nodes.len()];
    new[kept] = Some(0);
    for (node, own) in nodes.iter().enumerate().skip(kept + 1) {
        if let Some(parent) = own.parent.and_then(|parent| new[parent]) {
            new[node] = Some(made.push(parent, own.label.clone(), own.length));
        }
    }
    Ok(made)
}

/// Approximate bytes of memory that the dating of a tree takes on this many engines.
#[must_use]
pub fn dating_bytes(tree: &Newick, engines: u64, replicates: u32) -> u64 {
    let nodes = tree.nodes();
    let mut below = vec![1_u64; nodes.len()];
    let mut sum = 0_u64;
    for (node, own) in nodes.iter().enumerate().rev() {
        sum = sum.saturating_add(below[node]);
        if let Some(parent) = own.parent {
            below[parent] += below[node];
        }
    }
    // A clade adds at most two knots for each of its branches.
    let curves = sum.saturating_mul(2 * size_of::<[f64; 2]>().to_u64());
    // All dates of each replicate stay until there are intervals.
    let dates = nodes.len().to_u64() * size_of::<f64>().to_u64();
    let kept = dates.saturating_mul(u64::from(replicates));
    curves.saturating_mul(engines).saturating_add(kept)
}

/// The range of 95 % of the values, and of the estimate in any case; none without values.
fn interval(estimate: f64, values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let cut = values.len() / 40;
    let (low, high) = (values.get(cut)?, values.get(values.len() - 1 - cut)?);
    Some([low.min(estimate), high.max(estimate)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::runner::Serial;
    use crate::tree::random_tree;

    fn parse(text: &str) -> Newick {
        Newick::parse(text).unwrap()
    }

    fn dated(tree: &str, dates: &str, options: &ClockOptions) -> Result<Dated, DatingError> {
        date(
            &parse(tree),
            &Dates::parse(dates).unwrap(),
            options,
            &Serial,
        )
    }

    #[test]
    fn a_clock_is_found_again() {
        let tree = "((a:0.02,b:0.01)X:0.01,(c:0.03,(d:0.005,e:0.01)90:0.01)80/0.97:0.005);";
        let dates = "a 2003\nb 2002\nc 2003.5\nd 2002\ne 2002.5\nf 1999\n";
        let found = dated(tree, dates, &ClockOptions::new(500)).unwrap();
        assert!((found.rate - 0.01).abs() < 1e-9, "{found:?}");
        assert!((found.root_date - 2000.0).abs() < 1e-6, "{found:?}");
        assert!(found.cost < 1e-12 && found.dates_unused == 1);
        let lengths = |text: &str| {
            let tree = parse(text);
            let nodes = tree.nodes().iter().skip(1);
            nodes.map(|node| node.length.unwrap()).collect::<Vec<_>>()
        };
        let pairs = lengths(tree)
            .into_iter()
            .zip(lengths(&found.tree.to_string()));
        assert!(
            pairs
                .into_iter()
                .all(|(length, years)| (length - 0.01 * years).abs() < 1e-8)
        );
        let table = found.table();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split('\t').collect())
            .collect();
        assert_eq!(rows[1], ["Node1", "a,c", "2000.000000", "NA", "NA"]);
        assert_eq!(rows[2][..3], ["X", "a,b", "2001.000000"]);
        assert_eq!(rows[4][..3], ["b", "", "2002.000000"]);
        assert_eq!(rows[5][..2], ["Node3", "c,d"]);
    }

    /// Two tips have a clock that fits both exactly, unless the later one is nearer.
    #[test]
    fn two_tips_by_hand() {
        let options = ClockOptions::new(100);
        let found = dated("(a:0.3,b:0.5);", "a 0\nb 8", &options).unwrap();
        assert!((found.rate - 0.025).abs() < 1e-9 && (found.root_date + 12.0).abs() < 1e-6);
        let none = dated("(a:0.5,b:0.3);", "a 0\nb 8", &options).unwrap_err();
        assert!(matches!(none, DatingError::NoSignal), "{none}");
        let one = dated("((a:1,b:1):1,c:2);", "a 5\nb 5\nc 5", &options).unwrap_err();
        assert!(matches!(one, DatingError::OneDate), "{one}");
        let known = ClockOptions {
            rate: Some(0.5),
            ..options
        };
        let found = dated("((a:1,b:1):1,c:2);", "a 5\nb 5\nc 5", &known).unwrap();
        assert!((found.root_date - 1.0).abs() < 1e-9);
        // A range has room for any rate here.
        let open = dated("((a:1,b:1):1,c:2);", "a 5\nb 5\nc u(10)", &options).unwrap_err();
        assert!(matches!(open, DatingError::OneDate), "{open}");
        // An ancestor's date is enough for a rate.
        let found = dated("((a:1,b:1):1,c:2);", "a 5\nb 5\nc 5\nmrca(a,b) 3", &options).unwrap();
        assert!((found.rate - 0.5).abs() < 1e-9 && (found.root_date - 1.0).abs() < 1e-6);
    }

    #[test]
    fn confidence_has_the_truth() {
        let tree = "((a:0.02,b:0.01):0.01,(c:0.03,(d:0.005,e:0.01):0.01):0.005);";
        let dates = "a 2003\nb 2002\nc 2003.5\nd 2002\ne 2002.5\n";
        let options = ClockOptions {
            replicates: 200,
            ..ClockOptions::new(2_000)
        };
        let found = dated(tree, dates, &options).unwrap();
        let [low, high] = found.rate_interval.unwrap();
        assert!(low < 0.009 && 0.011 < high && high < 0.1, "{low} {high}");
        let [low, high] = found.root_interval.unwrap();
        assert!(
            low < 1999.9 && 2000.1 < high && high < 2002.0,
            "{low} {high}"
        );
        // With more sites they are narrower, though not without bound: rates differ.
        let long = ClockOptions {
            sites: 200_000,
            spread: 0.0,
            ..options
        };
        let [narrow, wide] = [&long, &options].map(|options| {
            let [low, high] = dated(tree, dates, options).unwrap().rate_interval.unwrap();
            high - low
        });
        assert!(narrow < 0.3 * wide, "{narrow} {wide}");
        let again = dated(tree, dates, &options).unwrap();
        assert_eq!(again.rate_interval, found.rate_interval);
    }

    /// Variances of drawn lengths would lower all replicates' rates, and the intervals with them.
    #[test]
    fn confidence_has_the_true_rate_about_as_often_as_it_says() {
        let (rate, sites, rounds) = (0.001, 1_000.0, 60);
        let names: Vec<String> = (0..25).map(|tip| format!("t{tip}")).collect();
        let mut has = 0;
        for seed in 0..rounds {
            let mut random = Random::new(seed);
            // Lengths are years; tips are of many dates.
            let mut tree = parse(&random_tree(25, 5.0, &mut random).to_newick(&names));
            let (mut dates, mut far) = (String::new(), vec![0.0; tree.nodes().len()]);
            for node in 1..far.len() {
                let own = tree.nodes()[node].clone();
                let (years, parent) = (own.length.unwrap(), own.parent.unwrap());
                far[node] = far[parent] + years;
                if own.children.is_empty() {
                    dates.push_str(&format!("{} {}\n", own.label, far[node]));
                }
                // A Poisson number, as gaps of exponential lengths.
                let (mut sum, mut count) = (0.0, 0.0);
                while sum < rate * sites * years {
                    sum -= libm::log1p(-random.unit());
                    count += 1.0;
                }
                tree.set_length(node, Some((count - 1.0_f64).max(0.0) / sites));
            }
            let options = ClockOptions {
                replicates: 80,
                spread: 0.0,
                ..ClockOptions::new(1_000)
            };
            let dates = Dates::parse(&dates).unwrap();
            let found = date(&tree, &dates, &options, &Serial).unwrap();
            let [low, high] = found.rate_interval.unwrap();
            has += usize::from(low <= rate && rate <= high);
        }
        assert!(has >= 54, "{has} of {rounds}");
    }

    #[test]
    fn memory_is_that_of_engines_and_of_replicates() {
        let tree = parse("((a:1,b:1):1,c:2);");
        let one = dating_bytes(&tree, 1, 0);
        assert_eq!(dating_bytes(&tree, 3, 0), 3 * one);
        // Five dates in each.
        assert_eq!(dating_bytes(&tree, 1, 1_000), one + 1_000 * 5 * 8);
        assert_eq!(dating_bytes(&tree, u64::MAX, u32::MAX), u64::MAX);
    }

    #[test]
    fn an_outgroup_is_removed() {
        let tree = parse("((a:1,b:2)90:3,(c:1,d:1)80:1,(x:4,y:5)70:2);");
        let outgroup = vec!["x".to_owned(), "y".to_owned()];
        let found = without_outgroup(&tree, outgroup).unwrap();
        assert_eq!(found.to_string(), "((a:1,b:2)90:3,(c:1,d:1)80:1);");
        assert!(without_outgroup(&tree, vec!["z".to_owned()]).is_err());
    }

    #[test]
    fn dates_that_exclude_each_other_are_refused() {
        let options = ClockOptions::new(100);
        let tree = "((a:1,b:1):1,c:2);";
        for dates in ["a 5\nb 6\nmrca(a,b) l(7)", "a 5\na 6\nb 7"] {
            let error = dated(tree, dates, &options).unwrap_err();
            assert!(matches!(error, DatingError::Excluded { .. }), "{error}");
        }
        let error = dated("(a,b:1);", "a 1\nb 2", &options).unwrap_err();
        assert!(matches!(error, DatingError::NoLength), "{error}");
        let error = dated(tree, "z 1", &options).unwrap_err();
        assert!(matches!(error, DatingError::NoDates), "{error}");
    }
}
