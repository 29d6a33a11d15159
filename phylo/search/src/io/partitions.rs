//! Partition files: which sites have which model, in RAxML's style or as NEXUS sets.
//!
//! ```text
//! GTR+G, gene1 = 1-500
//! HKY+F+I, codon3 = 503-900\3, 1001 - .
//! ```
//! A line: model, name, ranges (from 1, both ends included, `.` for the last site, `\3` every
//! third; `/3` as well). Blank lines and lines that begin with `#` are passed over. The model is
//! any that `ModelName::parse` takes, RAxML-NG's `DNA` among them. A file that begins with
//! `#NEXUS` has `charset`s and a `charpartition` (`sets`).
//! Must stay true: every site is in exactly one partition.
//!
//! ```
//! use sidecore_phylo::io::partitions;
//!
//! let text = "GTR+G, codons = 1-6\\3, 2-6\\3\nJC, third = 3-6\\3";
//! let found = partitions::parse(text, 6)?;
//! assert_eq!(found[0].sites, [0, 3, 1, 4]); // range by range; from 0 here, from 1 in the file
//! assert_eq!((found[1].model.as_str(), found[1].name.as_str()), ("JC", "third"));
//! # Ok::<(), partitions::PartitionError>(())
//! ```

mod sets;

pub(crate) use sets::FileSets;

use crate::msa::{shown, site_ranges};
use sidecore_bare::width::ToUsize;

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

/// A line that [`parse`] reads; sites are counted from 0 here, from 1 in the line. Excluded
/// columns are part of them, since such a file must name each column.
#[must_use]
pub fn line(model: &str, name: &str, sites: &[u32]) -> String {
    let ranges = site_ranges(sites).map(|[from, to]| match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    });
    let ranges: Vec<String> = ranges.collect();
    format!("{model}, {name} = {}", ranges.join(", "))
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
    /// A NEXUS command that is not understood, or one that is missing.
    #[error(
        "partition file (NEXUS), line {line}: {what}; there must be `charset NAME = 1-500\\3;` and \
         `charpartition NAME = MODEL:CHARSET, MODEL:CHARSET;`"
    )]
    Sets {
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
    // Some editors put a byte-order mark first.
    let text = text.trim_start_matches('\u{FEFF}');
    let mut claims = Claims::new(sites);
    if sets::is_nexus(text) {
        sets::parse(text, &mut claims)?;
    } else {
        lines(text, &mut claims)?;
    }
    claims.all()
}

/// Columns of a file that has `sites`, from 0, by the ranges of a charset; `*` and nothing are all.
/// `line` is the charset's.
///
/// # Errors
/// [`PartitionError`]: no range, or one beyond the file.
pub fn columns(ranges: &str, sites: usize, line: usize) -> Result<Vec<u32>, PartitionError> {
    let mut claims = Claims::new(sites);
    claims.begin("", "");
    let ranges = ranges.trim();
    let all = [String::from("1-.")];
    let words = match ranges.is_empty() || ranges == "*" {
        true => all.to_vec(),
        false => sets::words(ranges).collect(),
    };
    for word in words {
        let error = |what| PartitionError::Sets { line, what };
        let range = Range::parse(&word, sites);
        let range = range.ok_or_else(|| error(format!("`{}` is no range", shown(&word))))?;
        if range.last > sites {
            return Err(error(claims.beyond(range)));
        }
        claims.claim(range)?;
    }
    Ok(claims.partitions.remove(0).sites)
}

/// The charsets of a NEXUS text that name files, and which model has which; none where no charset
/// names a file.
///
/// # Errors
/// [`PartitionError`].
pub(crate) fn file_sets(text: &str) -> Result<Option<FileSets>, PartitionError> {
    let text = text.trim_start_matches('\u{FEFF}');
    match sets::is_nexus(text) {
        true => sets::file_sets(text),
        false => Ok(None),
    }
}

/// Lines in RAxML's style.
fn lines(text: &str, claims: &mut Claims) -> Result<(), PartitionError> {
    for (number, line) in text.lines().enumerate() {
        // Some programs end lines as NEXUS does.
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
        // Begun before its ranges are read: an error in one names the partition.
        claims.begin(model, name);
        for range in ranges.split(',') {
            let range = Range::parse(range, claims.sites())
                .ok_or_else(|| error(&format!("range `{}`", shown(range))))?;
            // Checked here, since `claim` indexes by site.
            if range.last > claims.sites() {
                return Err(error(&claims.beyond(range)));
            }
            claims.claim(range)?;
        }
    }
    Ok(())
}

/// Partitions so far, and the sites that they have.
struct Claims {
    partitions: Vec<Partition>,
    /// For each site its partition.
    owner: Vec<u32>,
}

impl Claims {
    fn new(sites: usize) -> Self {
        Self {
            partitions: Vec::new(),
            owner: vec![u32::MAX; sites],
        }
    }

    fn sites(&self) -> usize {
        self.owner.len()
    }

    fn begin(&mut self, model: &str, name: &str) {
        self.partitions.push(Partition {
            model: model.to_owned(),
            name: name.to_owned(),
            sites: Vec::new(),
        });
    }

    fn beyond(&self, range: Range) -> String {
        format!(
            "site {} is beyond the alignment's {}",
            range.last,
            self.sites()
        )
    }

    /// Gives sites, none beyond the last, to the partition that was begun last.
    fn claim(&mut self, range: Range) -> Result<(), PartitionError> {
        let Some(number) = self.partitions.len().checked_sub(1) else {
            return Err(PartitionError::Empty);
        };
        for site in (range.first..=range.last).step_by(range.step) {
            // Fewer partitions than sites, whose numbers have 32 bits.
            let before = std::mem::replace(&mut self.owner[site - 1], number as u32);
            if before != u32::MAX {
                return Err(PartitionError::Twice {
                    site,
                    first: shown(&self.partitions[before.to_usize()].name),
                    second: shown(&self.partitions[number].name),
                });
            }
            self.partitions[number].sites.push(site as u32 - 1);
        }
        Ok(())
    }

    /// The partitions, once every site has one.
    fn all(self) -> Result<Vec<Partition>, PartitionError> {
        if self.partitions.is_empty() {
            return Err(PartitionError::Empty);
        }
        let mut missing = (1..)
            .zip(&self.owner)
            .filter(|(_, owner)| **owner == u32::MAX);
        match missing.next() {
            None => Ok(self.partitions),
            Some((site, _)) => Err(PartitionError::Missing {
                site,
                count: 1 + missing.count(),
            }),
        }
    }
}

/// Model and name: the last `,` outside braces separates them.
fn split_head(head: &str) -> Option<(&str, &str)> {
    // A model's braces have commas of their own: `GTR{1,2,1,1,2,1}`.
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

/// Sites from `first` to `last`, both from 1; every `step`th.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: usize,
    last: usize,
    step: usize,
}

impl Range {
    /// `7`, `1-500`, `3-.\3`; `sites` is what `.` stands for.
    fn parse(text: &str, sites: usize) -> Option<Self> {
        let (text, step) = match text.split_once(['\\', '/']) {
            Some((text, step)) => (text, step.trim().parse().ok()?),
            None => (text, 1),
        };
        let site = |text: &str| match text.trim() {
            "." => Some(sites),
            number => number.parse().ok(),
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (site(first)?, site(last)?),
            None => (site(text)?, site(text)?),
        };
        // A step of 0 would not end, and sites are counted from 1.
        (first >= 1 && last >= first && step >= 1).then_some(Self { first, last, step })
    }
}

#[cfg(test)]
mod tests {
    //! Partition files of both styles, and their faults.

    use super::*;

    #[test]
    fn partition_files_as_raxml_has_them() {
        let text = "# genes\nGTR+G, one = 1-4, 9\n\n\
        HKY{1/2}+FU{0.1/0.2/0.3/0.4}, two=5-8\\2\nDNA,three=6-8/2,10\n";
        let found = parse(text, 10).unwrap();
        let view: Vec<_> = found
            .iter()
            .map(|p| (p.model.as_str(), p.name.as_str(), p.sites.clone()))
            .collect();
        assert_eq!(
            view,
            [
                ("GTR+G", "one", vec![0, 1, 2, 3, 8]),
                ("HKY{1/2}+FU{0.1/0.2/0.3/0.4}", "two", vec![4, 6]),
                ("DNA", "three", vec![5, 7, 9]),
            ]
        );
        let error = |text: &str| parse(text, 10).unwrap_err();
        assert!(matches!(
            error("GTR, a = 1-10\nGTR, b = 3"),
            PartitionError::Twice { site: 3, .. }
        ));
        assert!(matches!(
            error("GTR, a = 1-8"),
            PartitionError::Missing { site: 9, count: 2 }
        ));
        assert!(matches!(
            error("GTR, a = 1-11"),
            PartitionError::Line { line: 1, .. }
        ));
        assert!(matches!(
            error("GTR, a = 1-4, 4-10"),
            PartitionError::Twice { site: 4, .. }
        ));
        for text in [
            "",
            "GTR a = 1-10",
            "GTR, a",
            "GTR, a = 10-1",
            "GTR, a = 0-3",
            "GTR, = 1-10",
            "x",
        ] {
            assert!(parse(text, 10).is_err(), "{text}");
        }
    }

    #[test]
    fn charsets_may_name_files() {
        let text = "#nexus\nbegin sets;\n charset a = dir/a.phy: 1-4 6-8\\2;\n\
            charset unused = x.fa:*;\n charset b = b.fa:CODON, *;\n charset c = 2-3;\n\
            charpartition p = JC:a c, GY:b;\nend;";
        let sets = file_sets(text).unwrap().unwrap();
        let files: Vec<_> = sets
            .charsets
            .iter()
            .map(|own| own.file.as_deref())
            .collect();
        assert_eq!(files, [Some("dir/a.phy"), Some("b.fa"), None]);
        assert_eq!(
            sets.partitions[0],
            ("JC".to_owned(), "a_c".to_owned(), vec![0, 2])
        );
        assert_eq!(sets.partitions[1].2, [1]);
        let of = |at: usize| columns(&sets.charsets[at].ranges, 9, 1);
        assert_eq!(of(0).unwrap(), [0, 1, 2, 3, 5, 7]);
        assert_eq!(of(1).unwrap().len(), 9);
        assert!(columns("1-10", 9, 1).is_err() && columns("x", 9, 1).is_err());
        let alone = "#nexus begin sets; charset a = a.phy:; end;";
        assert_eq!(file_sets(alone).unwrap().unwrap().partitions[0].0, "auto");
        assert_eq!(
            file_sets("#nexus begin sets; charset a = 1-2; end;").unwrap(),
            None
        );
    }

    #[test]
    fn nexus_sets_are_partitions() {
        let text = "#nexus\n[made by hand]\nBegin sets;\n  CharSet one = 1 - 4, 9;\n\
        charset odd = 5-8\\2;\n charset rest = 6 - 8 \\ 2 10-.;\ncharset both = odd rest;\n\
        charset unused = 1-99;\n charpartition other = JC:unused;\n\
        charpartition * mine = GTR{1/1/1/1/1/1}+G:one, HKY:both;\nEnd;\n";
        let found = parse(text, 10).unwrap();
        let lines = "GTR{1/1/1/1/1/1}+G, one = 1-4, 9\nHKY, both = 5-8\\2, 6-8\\2, 10-.\n";
        assert_eq!(found, parse(lines, 10).unwrap());
        assert_eq!(found[1].sites, [4, 6, 5, 7, 9]);
        let all = "#NEXUS begin sets; charpartition p = JC : all; end;";
        assert_eq!(parse(all, 3).unwrap()[0].sites, [0, 1, 2]);
        // Without a charpartition each charset counts, its model to be chosen.
        let alone = "#NEXUS\nbegin sets;\ncharset one=1-4 6;\ncharset 'the other' = 5;\nend;";
        let alone = parse(alone, 6).unwrap();
        assert_eq!(alone[0].sites, [0, 1, 2, 3, 5]);
        assert_eq!(
            (alone[1].model.as_str(), alone[1].name.as_str()),
            ("auto", "the_other")
        );
        let error = |sets: &str| {
            let said = parse(&format!("#NEXUS\nbegin sets;\n{sets}"), 10);
            let said = said.unwrap_err().to_string();
            assert!(!said.contains('\n'), "{said}");
            said
        };
        for (sets, line, what) in [
            ("taxset a = 1-10;", 3, "no charpartition"),
            ("charset a = 1-5;\ncharset b = 6-11;", 4, "beyond"),
            ("charset a 1-10;\n", 3, "charset without `=`"),
            ("charset a = , ;\n", 3, "without a name or a value"),
            (
                "charset a = 1-4;\ncharset A = 5-10;",
                4,
                "charset `A` twice",
            ),
            (
                "charset a = 1-10;\n\ncharpartition p = JC:b;",
                5,
                "`b` is neither",
            ),
            (
                "charset a = 1-10;\ncharpartition p = a;",
                4,
                "`a` is no MODEL:CHARSET",
            ),
            (
                "charset a = a;\ncharpartition p = JC:a;",
                3,
                "`a` is neither",
            ),
            (
                "charset a = x.phy:1-10;\ncharpartition p = JC:a;",
                3,
                "`x.phy:1-10` is",
            ),
            (
                "charset a = 1-11;\ncharpartition p = JC:a;",
                3,
                "beyond the alignment's 10",
            ),
            (
                "charpartition p = JC:1;\ncharpartition q = JC:2;",
                4,
                "a second",
            ),
            (
                "charset a = 1-10;\nexset * out = 3;",
                4,
                "EXSET leaves sites out",
            ),
            ("[", 3, "comment is not closed"),
        ] {
            let said = error(sets);
            let place = format!("line {line}: ");
            assert!(
                said.contains(what) && said.contains(&place),
                "{sets}: {said}"
            );
        }
        assert!(error("charpartition p = JC:1-9;").contains("site 10 is in no partition"));
        assert!(error("charpartition p = JC:1-9 3;").contains("site 3 is in `1-9_3`"));
        // Charsets that double each other end at the first site that comes twice.
        let doubled: String = (1..200)
            .map(|i| format!("charset s{i} = s{} s{0};\n", i - 1))
            .collect();
        let text = format!("charset s0 = 1;\n{doubled}charpartition p = JC:s199;");
        assert!(error(&text).contains("site 1 is in `s199` and in `s199`"));
    }
}
