//! Partition files in RAxML's style: which sites have which model.
//!
//! ```text
//! GTR+G, gene1 = 1-500
//! HKY+F+I, codon3 = 503-900\3, 1001 - 1200
//! ```
//! A line: model, name, ranges (from 1, both ends included, `\3` every third; `/3` as well). Blank
//! lines and lines that begin with `#` are passed over. The model is any that
//! `ModelName::parse` takes, RAxML-NG's `DNA` among them.
//! Must stay true: every site is in exactly one partition.
//!
//! ```
//! use sidecore_phylo::msa::partitions;
//!
//! let text = "GTR+G, codons = 1-6\\3, 2-6\\3\nJC, third = 3-6\\3";
//! let found = partitions::parse(text, 6)?;
//! assert_eq!(found[0].sites, [0, 3, 1, 4]); // range by range; from 0 here, from 1 in the file
//! assert_eq!((found[1].model.as_str(), found[1].name.as_str()), ("JC", "third"));
//! # Ok::<(), partitions::PartitionError>(())
//! ```

use super::shown;

/// One line: sites that share a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The model, as text.
    pub model: String,
    /// Its name.
    pub name: String,
    /// Its sites, from 0.
    pub sites: Vec<u32>,
}

/// Errors of a partition file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// A line that is not understood.
    #[error("partition file, line {line}: {what}; a line is `MODEL, NAME = 1-500, 700-900\\3`")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The reason.
        what: String,
    },
    /// A site that two partitions have.
    #[error("partition file: site {site} is in `{first}` and in `{second}`")]
    Twice {
        /// The site, from 1.
        site: usize,
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
    /// A site that none has.
    #[error("partition file: site {site} is in no partition ({count} such sites)")]
    Missing {
        /// The first such site, from 1.
        site: usize,
        /// Number found.
        count: usize,
    },
    /// No lines.
    #[error("the partition file has no lines")]
    Empty,
}

/// Parses a partition file for an alignment of `sites` sites.
///
/// # Errors
/// [`PartitionError`].
pub fn parse(text: &str, sites: usize) -> Result<Vec<Partition>, PartitionError> {
    let mut partitions: Vec<Partition> = Vec::new();
    let mut owner: Vec<u32> = vec![u32::MAX; sites];
    for (number, line) in text.lines().enumerate() {
        let line = line.trim().trim_end_matches(';');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let error = |what: &str| PartitionError::Line {
            line: number + 1,
            what: what.to_owned(),
        };
        let (head, ranges) = line.split_once('=').ok_or_else(|| error("no `=`"))?;
        let (model, name) = split_head(head).ok_or_else(|| error("no `,` after the model"))?;
        if model.is_empty() || name.is_empty() {
            return Err(error("a model and a name must stand before `=`"));
        }
        let mut own = Vec::new();
        for range in ranges.split(',') {
            let (first, last, step) =
                parse_range(range).ok_or_else(|| error(&format!("range `{}`", shown(range))))?;
            if last > sites {
                let what = format!("site {last} is beyond the alignment's {sites}");
                return Err(error(&what));
            }
            for site in (first..=last).step_by(step) {
                let before = std::mem::replace(&mut owner[site - 1], partitions.len() as u32);
                if before != u32::MAX {
                    let first = partitions
                        .get(before as usize)
                        .map_or(name, |other| &other.name);
                    let (first, second) = (shown(first), shown(name));
                    return Err(PartitionError::Twice {
                        site,
                        first,
                        second,
                    });
                }
                own.push(site as u32 - 1);
            }
        }
        partitions.push(Partition {
            model: model.to_owned(),
            name: name.to_owned(),
            sites: own,
        });
    }
    if partitions.is_empty() {
        return Err(PartitionError::Empty);
    }
    let mut missing = owner
        .iter()
        .enumerate()
        .filter(|(_, owner)| **owner == u32::MAX);
    if let Some((site, _)) = missing.next() {
        return Err(PartitionError::Missing {
            site: site + 1,
            count: 1 + missing.count(),
        });
    }
    Ok(partitions)
}

/// Model and name: the last `,` outside braces separates them.
fn split_head(head: &str) -> Option<(&str, &str)> {
    let (mut depth, mut comma) = (0_usize, None);
    for (at, byte) in head.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => comma = Some(at),
            _ => {}
        }
    }
    let comma = comma?;
    Some((head[..comma].trim(), head[comma + 1..].trim()))
}

fn parse_range(range: &str) -> Option<(usize, usize, usize)> {
    let (range, step) = match range.split_once(['\\', '/']) {
        Some((range, step)) => (range, step.trim().parse().ok()?),
        None => (range, 1),
    };
    let (first, last) = match range.split_once('-') {
        Some((first, last)) => (first.trim().parse().ok()?, last.trim().parse().ok()?),
        None => {
            let site: usize = range.trim().parse().ok()?;
            (site, site)
        }
    };
    (first >= 1 && last >= first && step >= 1).then_some((first, last, step))
}
