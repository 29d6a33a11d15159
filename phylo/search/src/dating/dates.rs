//! Known dates of a tree's nodes, and the texts that have them.

use crate::newick::Newick;
use sidecore_offload::OffloadError;
use std::collections::HashMap;

/// Errors that keep a tree from being dated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatingError {
    /// A line that gives no date.
    #[error(
        "line {line}: `{text}` is no date; dates are 2013.5, 2013-05-31, 2013-05, b(2012,2013)"
    )]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The text that stands there.
        text: String,
    },
    /// A name that ends in no date.
    #[error("the name `{label}` does not end in a date behind `|`, `@`, `_` or `/`")]
    Name {
        /// The tip.
        label: String,
    },
    /// An ancestor of taxa that the tree does not have.
    #[error("the tree has no `{label}`, whose ancestor has a date")]
    Unknown {
        /// The label.
        label: String,
    },
    /// Dates of other taxa alone.
    #[error("no date is of a node of the tree")]
    NoDates,
    /// A rate cannot be found.
    #[error(
        "more than one rate fits, as all dates are the same or have room in their ranges: give \
         --rate, or the date of an ancestor"
    )]
    OneDate,
    /// Bounds that no date satisfies.
    #[error("the dates of `{label}` exclude each other, or those of its descendants")]
    Excluded {
        /// The node, or a tip below it.
        label: String,
    },
    /// A branch without a length.
    #[error("a branch of the tree has no length, or one below 0")]
    NoLength,
    /// Later tips are not farther from the root.
    #[error(
        "the lengths have no signal of time: later tips are not farther from the root; look at the \
         root (phylo root), or give --rate"
    )]
    NoSignal,
    /// An engine failed.
    #[error("the loop over replicates failed: {0}")]
    Offload(#[from] OffloadError),
}

/// Dates of tips, and of last common ancestors.
#[derive(Debug, Clone)]
pub struct Dates(Vec<Known>);

#[derive(Debug, Clone)]
struct Known {
    /// A node's label, or those of tips whose last common ancestor is meant.
    labels: Vec<String>,
    bounds: Bounds,
}

/// The dates that a node may have, ends included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    pub(super) earliest: f64,
    pub(super) latest: f64,
}

impl Bounds {
    /// Nothing is known.
    const NONE: Self = Self {
        earliest: f64::NEG_INFINITY,
        latest: f64::INFINITY,
    };

    fn exactly(date: f64) -> Self {
        Self {
            earliest: date,
            latest: date,
        }
    }

    /// Reads `2013.5`, `2013-05-31`, `2013-05`, `2013-XX-XX`, `b(2012,2013)`, `l(2012)`, `u(2013)`
    /// or `[2012:2013]`.
    fn parse(text: &str) -> Option<Self> {
        let inside = |open: &str, close: char| {
            let rest = text.strip_prefix(open)?;
            rest.strip_suffix(close)
        };
        let between = |text: &str, mark: char| {
            let (low, high) = text.split_once(mark)?;
            let (low, high) = (Self::point(low.trim())?, Self::point(high.trim())?);
            (low.earliest <= high.latest).then_some(Self {
                earliest: low.earliest,
                latest: high.latest,
            })
        };
        if let Some(own) = inside("b(", ')') {
            return between(own, ',');
        }
        if let Some(own) = inside("[", ']') {
            return between(own, ':');
        }
        if let Some(own) = inside("l(", ')') {
            let earliest = Self::point(own.trim())?.earliest;
            return Some(Self {
                earliest,
                ..Self::NONE
            });
        }
        if let Some(own) = inside("u(", ')') {
            let latest = Self::point(own.trim())?.latest;
            return Some(Self {
                latest,
                ..Self::NONE
            });
        }
        Self::point(text)
    }

    /// A number, or a day, month or year of the calendar, of which parts may be unknown (`XX`).
    fn point(text: &str) -> Option<Self> {
        if let Ok(date) = text.parse::<f64>() {
            return date.is_finite().then(|| Self::exactly(date));
        }
        let mut parts = text.split('-');
        let year: Option<u32> = parts.next()?.parse().ok();
        let year = year.filter(|year| *year < 10_000)?;
        let is_unknown = |part: &str| part.bytes().all(|byte| matches!(byte, b'X' | b'x'));
        let number = |part: Option<&str>, most: u32| match part {
            Some(part) if !is_unknown(part) => {
                let number: Option<u32> = part.parse().ok();
                Some(Some(number.filter(|number| (1..=most).contains(number))?))
            }
            _ => Some(None),
        };
        let month = number(parts.next(), 12)?;
        let day = number(parts.next(), 31)?;
        if parts.next().is_some() || month.is_none() && day.is_some() {
            return None;
        }
        let first = [month.unwrap_or(1), day.unwrap_or(1)];
        let last_month = month.unwrap_or(12);
        let last = [last_month, day.unwrap_or(days(year, last_month))];
        let at = |[month, day]: [u32; 2]| {
            let before: u32 = (1..month).map(|month| days(year, month)).sum();
            let all: u32 = (1..=12).map(|month| days(year, month)).sum();
            let is_there = day <= days(year, month);
            is_there.then(|| f64::from(year) + f64::from(before + day - 1) / f64::from(all))
        };
        Some(Self {
            earliest: at(first)?,
            latest: at(last)?,
        })
    }

    /// Those that satisfy both.
    fn and(self, other: Self) -> Self {
        Self {
            earliest: self.earliest.max(other.earliest),
            latest: self.latest.min(other.latest),
        }
    }
}

impl Dates {
    /// Reads lines of a name and a date, with a tab, a comma or blanks between; `mrca(a,b,…)` is
    /// the last common ancestor of these. A first line may be a heading, or the number of lines.
    ///
    /// # Errors
    /// [`DatingError::Line`].
    pub fn parse(text: &str) -> Result<Self, DatingError> {
        let mut all = Vec::new();
        let lines = text.trim_start_matches('\u{FEFF}').lines().enumerate();
        let lines = lines.map(|(at, line)| (at, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        for (number, (at, line)) in lines.enumerate() {
            match known(line) {
                Some(known) => all.push(known),
                None if number == 0 && is_heading(line) => {}
                None => {
                    let shown = line.chars().take(60).flat_map(char::escape_debug);
                    return Err(DatingError::Line {
                        line: at + 1,
                        text: shown.collect(),
                    });
                }
            }
        }
        Ok(Self(all))
    }

    /// Takes the dates at the ends of the tips' names, behind `|`, `@`, `_` or `/`.
    ///
    /// # Errors
    /// [`DatingError::Name`].
    pub fn of_names(tree: &Newick) -> Result<Self, DatingError> {
        let known = |label: String| {
            let bounds = ['|', '@', '_', '/'].into_iter().find_map(|mark| {
                let (_, end) = label.rsplit_once(mark)?;
                Bounds::parse(end.trim())
            });
            match bounds {
                Some(bounds) => Ok(Known {
                    labels: vec![label],
                    bounds,
                }),
                None => Err(DatingError::Name { label }),
            }
        };
        let all = tree.tip_labels().into_iter().map(known);
        Ok(Self(all.collect::<Result<_, _>>()?))
    }

    /// For each node of a tree what is known of it, and the number of dates that are of none.
    pub(super) fn of_nodes(&self, tree: &Newick) -> Result<(Vec<Bounds>, usize), DatingError> {
        let nodes = tree.nodes();
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        for (node, own) in nodes.iter().enumerate() {
            // A tip wins over an inner node of the same label, which is a support.
            if !own.label.is_empty()
                && (own.children.is_empty() || !numbers.contains_key(&*own.label))
            {
                numbers.insert(&own.label, node);
            }
        }
        let mut bounds = vec![Bounds::NONE; nodes.len()];
        let mut unused = 0;
        for known in &self.0 {
            let found = known.labels.iter().map(|label| {
                let node = numbers.get(label.as_str()).copied();
                node.ok_or_else(|| label.clone())
            });
            let found: Result<Vec<usize>, String> = found.collect();
            let node = match found {
                Ok(found) => found.into_iter().reduce(|a, b| ancestor(tree, a, b)),
                // Tables of dates may have more names than the tree.
                Err(_) if known.labels.len() == 1 => None,
                Err(label) => return Err(DatingError::Unknown { label }),
            };
            match node {
                Some(node) => bounds[node] = bounds[node].and(known.bounds),
                None => unused += 1,
            }
        }
        Ok((bounds, unused))
    }
}

/// True for the number of lines, which is no name, and for names of columns. A date with a fault
/// has digits.
fn is_heading(line: &str) -> bool {
    let second = match line.split_once('\t') {
        Some((_, rest)) => rest.split('\t').next(),
        None => (line.split_once([',', ' '])).and_then(|(_, rest)| rest.split(',').next()),
    };
    second.is_none_or(|text| text.bytes().all(|byte| !byte.is_ascii_digit()))
}

/// Reads a name and a date.
fn known(line: &str) -> Option<Known> {
    if let Some(rest) = line.strip_prefix("mrca(") {
        let (labels, date) = rest.split_once(')')?;
        let labels = labels.split(',').map(|label| label.trim().to_owned());
        let date = date.trim_start_matches([',', ' ', '\t']);
        return Some(Known {
            labels: labels.collect(),
            bounds: Bounds::parse(date.trim())?,
        });
    }
    // A tab wins: names may have blanks. Further columns are not looked at.
    let (name, date) = match line.split_once('\t') {
        Some((name, rest)) => (name, rest.split('\t').next()?),
        None => {
            // Commas within brackets are of the date.
            let comma = line
                .find(',')
                .filter(|at| !line[..*at].contains(['(', '[']));
            match comma {
                Some(at) => (&line[..at], &line[at + 1..]),
                None => line.split_once(char::is_whitespace)?,
            }
        }
    };
    let date = date.trim();
    // Of a table with more columns the second one.
    let bounds = Bounds::parse(date).or_else(|| Bounds::parse(date.split(',').next()?.trim()))?;
    let name = name.trim();
    let quoted = name
        .strip_prefix(['\'', '"'])
        .and_then(|it| it.strip_suffix(['\'', '"']));
    Some(Known {
        labels: vec![quoted.unwrap_or(name).to_owned()],
        bounds,
    })
}

/// The last common ancestor of two nodes.
fn ancestor(tree: &Newick, mut a: usize, mut b: usize) -> usize {
    // Children come after their parents: the larger number is never above the other.
    while a != b {
        let later = if a > b { &mut a } else { &mut b };
        *later = tree.nodes()[*later].parent.unwrap_or(0);
    }
    a
}

/// The label of the first tip at or below a node.
pub(super) fn first_tip(tree: &Newick, mut node: usize) -> String {
    while let Some(&child) = tree.nodes()[node].children.first() {
        node = child;
    }
    tree.nodes()[node].label.clone()
}

/// Days of a month, from 1 to 12.
fn days(year: u32, month: u32) -> u32 {
    let is_leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_other_programs_write_them() {
        for (text, earliest, latest) in [
            ("2013.5", 2013.5, 2013.5),
            ("-12", -12.0, -12.0),
            ("2013-01-01", 2013.0, 2013.0),
            ("2012-12-31", 2012.0 + 365.0 / 366.0, 2012.0 + 365.0 / 366.0),
            ("2013-02", 2013.0 + 31.0 / 365.0, 2013.0 + 58.0 / 365.0),
            ("2013-02-XX", 2013.0 + 31.0 / 365.0, 2013.0 + 58.0 / 365.0),
            ("2013-XX-XX", 2013.0, 2013.0 + 364.0 / 365.0),
            ("b(2000,2001.5)", 2000.0, 2001.5),
            ("[2000:2001.5]", 2000.0, 2001.5),
            ("l(1999)", 1999.0, f64::INFINITY),
            ("u(2000-03-01)", f64::NEG_INFINITY, 2000.0 + 60.0 / 366.0),
        ] {
            let expected = Bounds { earliest, latest };
            assert_eq!(Bounds::parse(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "x",
            "2013-13",
            "2013-02-29",
            "b(3,2)",
            "2013-XX-05",
            "nan",
            "1-2-3-4",
        ] {
            assert_eq!(Bounds::parse(text), None, "{text}");
        }
    }

    #[test]
    fn files_of_several_kinds_say_the_same() {
        let tree = Newick::parse("((a:1,'b c':1)X:1,c:2);").unwrap();
        let expected = [None, Some(1.0), Some(5.0), Some(6.0), Some(7.0)];
        for text in [
            "4\na 5\nb_c\t6\nb c\t6\nc 7\nmrca(a,b c) 1\n",
            "strain,date,place\na,5,here\n'b c',6,there\nc,7,\nX,1,\n",
            "# dates\nname\tdate\nX\t1\tmore\na\t5\nb c\t6\nc\t7\nz\t9\n",
        ] {
            let (bounds, _) = Dates::parse(text).unwrap().of_nodes(&tree).unwrap();
            for (own, expected) in bounds.into_iter().zip(expected) {
                assert_eq!(
                    own,
                    expected.map_or(Bounds::NONE, Bounds::exactly),
                    "{text}"
                );
            }
        }
        let error = Dates::parse("a 5\nb then\n").unwrap_err().to_string();
        assert!(error.starts_with("line 2: `b then`"), "{error}");
        // A heading has no digits where dates are.
        for first in ["a 2013-02-30", "a\t2013-13\tx", "a,x2", "mrca(a,c) 20l3"] {
            let error = Dates::parse(&format!("{first}\nb 5\n")).unwrap_err();
            assert!(error.to_string().starts_with("line 1: `"), "{error}");
        }
        let error = Dates::parse("mrca(a,q) 1")
            .unwrap()
            .of_nodes(&tree)
            .unwrap_err();
        assert!(error.to_string().contains('q'), "{error}");
    }

    #[test]
    fn names_may_end_in_dates() {
        let tree = Newick::parse("(A/x/7|2012-01-01:1,'B|y_2013.5':1,c@2014:1);").unwrap();
        let (bounds, unused) = Dates::of_names(&tree).unwrap().of_nodes(&tree).unwrap();
        let found: Vec<f64> = bounds[1..].iter().map(|own| own.earliest).collect();
        assert_eq!((found, unused), (vec![2012.0, 2013.5, 2014.0], 0));
        let bare = Newick::parse("(a_2000:1,b:1);").unwrap();
        assert!(Dates::of_names(&bare).is_err());
    }
}
