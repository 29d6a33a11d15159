//! Alignments of several loci as one: side by side, with `?` where a locus lacks a taxon.
//!
//! Must stay true: the taxa are in the order in which they first occur, so that the same files give
//! the same numbers.

use super::{Alignment, MsaError, SET_FIRST};
use sidecore_bare::width::ToUsize;
use std::collections::HashMap;

impl Alignment {
    /// Joins alignments, each with the name of its locus; [`Alignment::loci`] has the columns of
    /// each.
    ///
    /// # Errors
    /// As [`Alignment::new`]; [`MsaError::TooMany`] where they have too many sets of states.
    pub fn concatenated(loci: Vec<(String, Self)>) -> Result<Self, MsaError> {
        let mut names: Vec<String> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        for name in loci.iter().flat_map(|(_, alignment)| &alignment.names) {
            if !places.contains_key(name) {
                places.insert(name.clone(), names.len());
                names.push(name.clone());
            }
        }
        let sites = loci.iter().map(|(_, alignment)| alignment.sites()).sum();
        let mut rows: Vec<Vec<u8>> = names.iter().map(|_| Vec::with_capacity(sites)).collect();
        let (mut sets, mut columns, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut width = 0;
        for (locus, alignment) in loci {
            let own = renumbered(&alignment.sets, &mut sets)?;
            for (name, row) in alignment.names.iter().zip(&alignment.rows) {
                let to = &mut rows[places[name]];
                let cell = |&cell: &u8| match cell.checked_sub(SET_FIRST) {
                    Some(set) => own.get(usize::from(set)).copied().unwrap_or(cell),
                    None => cell,
                };
                to.extend(row.iter().map(cell));
            }
            width += alignment.sites();
            // Rows of taxa that the locus lacks.
            rows.iter_mut().for_each(|row| row.resize(width, b'?'));
            columns.push((locus, alignment.sites()));
            warnings.extend(alignment.warnings);
        }
        Ok(Self {
            sets,
            loci: columns,
            warnings,
            ..Self::new(names, rows)?
        })
    }

    /// The loci that were joined, in order, each with its number of columns; none for an alignment
    /// of one file.
    #[must_use]
    pub fn loci(&self) -> &[(String, usize)] {
        &self.loci
    }

    /// Some of the columns, from 0, of the taxa that have a character there.
    ///
    /// # Errors
    /// [`MsaError::TooFewTaxa`]: fewer than three taxa have one.
    ///
    /// # Panics
    /// When a column is beyond the alignment.
    pub fn of_columns(&self, columns: &[u32]) -> Result<Self, MsaError> {
        let cut = |row: &Vec<u8>| -> Vec<u8> {
            let cells = columns.iter().map(|&column| row[column.to_usize()]);
            cells.collect()
        };
        let rows = self.names.iter().zip(self.rows.iter().map(cut));
        let says = |row: &[u8]| row.iter().any(|cell| !matches!(cell, b'-' | b'?' | b'~'));
        let (names, rows) = rows
            .filter(|(_, row)| says(row))
            .map(|(name, row)| (name.clone(), row))
            .unzip();
        Ok(Self {
            sets: self.sets.clone(),
            ..Self::new(names, rows)?
        })
    }

    /// The lines of a file of partitions that gives each locus this model.
    #[must_use]
    pub fn lines_of_loci(&self, model: &str) -> String {
        let mut text = String::new();
        let mut first = 1;
        for (locus, sites) in &self.loci {
            // `,` and `=` separate in such a line, and it ends with the line.
            let name = locus.replace([',', '=', '\n', '\r'], "_");
            let last = first + sites - 1;
            text.push_str(&format!("{model}, {name} = {first}-{last}\n"));
            first = last + 1;
        }
        text
    }
}

/// For each of an alignment's sets the byte that it has among `all`.
fn renumbered(own: &[Vec<u8>], all: &mut Vec<Vec<u8>>) -> Result<Vec<u8>, MsaError> {
    let max = usize::from(u8::MAX - SET_FIRST) + 1;
    let number = |set: &Vec<u8>| {
        let known = all.iter().position(|other| other == set);
        let place = known.unwrap_or_else(|| {
            all.push(set.clone());
            all.len() - 1
        });
        let byte = u8::try_from(place).ok();
        let byte = byte.and_then(|place| SET_FIRST.checked_add(place));
        byte.ok_or(MsaError::TooMany {
            what: "sets of states",
            found: place + 1,
            max,
        })
    };
    own.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loci_stand_side_by_side() {
        let read = |text: &str| Alignment::parse(text.as_bytes()).unwrap();
        let block = |matrix: &str| {
            let head = "#NEXUS begin data; dimensions nchar=2; format datatype=standard; matrix ";
            read(&format!("{head}{matrix}; end;"))
        };
        let joined = Alignment::concatenated(vec![
            ("one".to_owned(), read(">a\nACG\n>b\nAAG\n>c\nACC\n")),
            ("two".to_owned(), block("c {01}1 d 0{02} b 00")),
            ("three".to_owned(), block("a {02}1 b 00 e 11")),
        ])
        .unwrap();
        assert_eq!(joined.names(), ["a", "b", "c", "d", "e"]);
        let sizes = [("one", 3), ("two", 2), ("three", 2)];
        assert_eq!(
            joined.loci(),
            sizes.map(|(name, sites)| (name.to_owned(), sites))
        );
        assert_eq!(joined.row(1), b"AAG0000");
        assert_eq!(joined.row(4), b"?????11");
        let [c, d, a] = [(2, 3), (3, 4), (0, 5)].map(|(taxon, site)| joined.row(taxon)[site]);
        assert_eq!(
            [c, d, a].map(|cell| joined.set_of(cell)),
            [&b"01"[..], b"02", b"02"]
        );
        assert_eq!(&joined.row(0)[..5], b"ACG??");
        let lines = joined.lines_of_loci("JC");
        assert_eq!(lines, "JC, one = 1-3\nJC, two = 4-5\nJC, three = 6-7\n");
        // A locus again: without the taxa that it lacks.
        let cut = joined.of_columns(&[3, 4]).unwrap();
        assert_eq!(cut.names(), ["b", "c", "d"]);
        assert_eq!(cut.set_of(cut.row(2)[1]), b"02");
        assert!(joined.of_columns(&[4]).is_ok() && joined.of_columns(&[2]).is_ok());
        assert_eq!(joined.of_columns(&[5]).unwrap().names(), ["a", "b", "e"]);
    }
}
