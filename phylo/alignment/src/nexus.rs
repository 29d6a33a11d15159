//! NEXUS: the matrix of a DATA or CHARACTERS block.
//!
//! Understood: DIMENSIONS; TAXLABELS; FORMAT with DATATYPE, GAP, MISSING, MATCHCHAR, INTERLEAVE,
//! NOLABELS, RESPECTCASE, SYMBOLS and EQUATE; sets of states in a cell; quoted names, comments in
//! brackets. Blocks and commands that change nothing in the matrix are skipped.
//! Must stay true: commands that would change the data are followed, refused by name, or reported
//! by a warning ([`Warning`]): options of FORMAT, ELIMINATE, a second matrix, and sets of
//! characters or taxa that other blocks leave out or weigh.
//! Source: Maddison, Swofford, Maddison, "NEXUS: an extensible file format for systematic
//! information", Systematic Biology 46 (1997), 590-621.

mod cells;
mod format;
mod tokens;

use super::{Accept, Dots, MsaError, Rows, Warning, check_declared, name, shown};
use cells::Cells;
use format::Format;
use std::collections::HashMap;
use tokens::Tokens;
pub(crate) use tokens::quoted_end;
pub use tokens::without_comments;

/// Contents of a file.
pub(super) struct Found {
    pub(super) rows: Rows,
    /// Sets of states that bytes from [`super::SET_FIRST`] on stand for.
    pub(super) sets: Vec<Vec<u8>>,
    /// The meaning of dots. If a file names another gap symbol, a dot can only be the first
    /// sequence's character.
    pub(super) dots: Dots,
    pub(super) warnings: Vec<Warning>,
}

pub(super) fn parse(bytes: &[u8], accept: Accept) -> Result<Found, MsaError> {
    let text = without_comments(bytes)?;
    let mut tokens = Tokens { text: &text, at: 0 };
    let mut taxa = Taxa::default();
    let mut format = Format::default();
    let mut size = Size::default();
    let mut block = Vec::new();
    let mut found: Option<Found> = None;
    let mut unapplied: Vec<String> = Vec::new();
    while let Some(word) = tokens.word() {
        let word = word.to_ascii_uppercase();
        let in_data = matches!(block.as_slice(), b"DATA" | b"CHARACTERS");
        let in_taxa = in_data || block == b"TAXA";
        match word.as_slice() {
            b";" | b"#NEXUS" => {}
            b"BEGIN" => {
                block = tokens.word().unwrap_or_default().to_ascii_uppercase();
                // FORMAT and DIMENSIONS are valid within their block only.
                (format, size) = (Format::default(), Size::default());
                tokens.skip_command();
            }
            b"END" | b"ENDBLOCK" => {
                block.clear();
                tokens.skip_command();
            }
            b"DIMENSIONS" if in_taxa => {
                let read = Size::read(&mut tokens)?;
                // NTAX of a TAXA block counts the labels, not the rows.
                match in_data {
                    true => size = read,
                    false => taxa.declared = read.taxa,
                }
            }
            b"TAXLABELS" if in_taxa => taxa.read(&mut tokens)?,
            b"FORMAT" if in_data => format = Format::read(&mut tokens)?,
            b"MATRIX" if in_data => {
                // A second matrix could be another alignment: reading either would be a guess.
                if found.is_some() {
                    let what = "a second DATA or CHARACTERS block with a matrix: leave one in \
                                the file";
                    return Err(tokens.error(what));
                }
                found = Some(Matrix::new(&format, &size, &taxa, accept).read(&mut tokens)?);
            }
            b"ELIMINATE" if in_data => {
                let what = "ELIMINATE leaves characters out: take them out of the matrix, and the \
                            command out of the file";
                return Err(tokens.error(what));
            }
            _ => {
                // Commands that would change the result are reported; all others are passed over.
                if is_applied(&word, tokens.command(), in_data) {
                    unapplied.push(name(&word));
                }
            }
        }
    }
    let Some(mut found) = found else {
        return Err(MsaError::Format {
            format: "NEXUS",
            line: 1,
            what: "no MATRIX in a DATA or CHARACTERS block".to_owned(),
        });
    };
    if !unapplied.is_empty() {
        let count = unapplied.len();
        unapplied.sort_unstable();
        unapplied.dedup();
        let commands = unapplied.join(", ");
        found.warnings.push(Warning::Unapplied { count, commands });
    }
    Ok(found)
}

/// True of commands that are in effect and by which another program would leave out characters or
/// taxa, or weigh them. Sets are in effect where they are marked with `*`.
fn is_applied(word: &[u8], rest: &[u8], in_data: bool) -> bool {
    let value = || rest.splitn(2, |&byte| byte == b'=').nth(1);
    match word {
        b"EXSET" | b"WTSET" => {
            rest.starts_with(b"*") && value().is_some_and(|value| !value.trim_ascii().is_empty())
        }
        b"EXCLUDE" | b"DELETE" | b"WEIGHTS" | b"WTS" => !rest.is_empty(),
        b"OPTIONS" if in_data => rest
            .to_ascii_uppercase()
            .windows(b"NEWSTATE".len())
            .any(|part| part == b"NEWSTATE"),
        _ => false,
    }
}

/// DIMENSIONS.
#[derive(Default)]
struct Size {
    taxa: Option<usize>,
    sites: Option<usize>,
}

impl Size {
    fn read(tokens: &mut Tokens<'_>) -> Result<Self, MsaError> {
        let mut size = Self::default();
        while !tokens.take(b';') {
            let key = tokens.key().to_ascii_uppercase();
            if key.is_empty() {
                return Err(tokens.error("DIMENSIONS wants NTAX=… NCHAR=…;"));
            }
            // A word without a value, such as NEWTAXA, is allowed.
            if !tokens.take(b'=') {
                continue;
            }
            let word = tokens.word().unwrap_or_default();
            let number = std::str::from_utf8(word)
                .ok()
                .and_then(|word| word.parse().ok());
            let number: usize = number.ok_or_else(|| {
                let (key, word) = (name(&key), shown(&name(word)));
                tokens.error(&format!("{key}={word} is no number"))
            })?;
            match key.as_slice() {
                b"NTAX" => size.taxa = Some(number),
                b"NCHAR" => size.sites = Some(number),
                _ => {}
            }
        }
        Ok(size)
    }
}

/// The taxa that a file lists outside its matrix.
#[derive(Default)]
struct Taxa {
    labels: Vec<String>,
    /// Names without case, and the place of each.
    places: HashMap<String, usize>,
    /// NTAX of the TAXA block.
    declared: Option<usize>,
}

impl Taxa {
    fn read(&mut self, tokens: &mut Tokens<'_>) -> Result<(), MsaError> {
        // A later list of labels replaces an earlier one.
        self.labels.clear();
        self.places.clear();
        while !tokens.take(b';') {
            let label = tokens.label();
            let Some(label) = label.filter(|label| !label.is_empty()) else {
                return Err(tokens.error("TAXLABELS does not end with `;`"));
            };
            let label = name(&label);
            // Labels in NEXUS ignore case.
            self.places.insert(label.to_lowercase(), self.labels.len());
            self.labels.push(label);
        }
        match self.declared.filter(|&count| count != self.labels.len()) {
            Some(expected) => Err(MsaError::TaxonCount {
                found: self.labels.len(),
                expected,
            }),
            None => Ok(()),
        }
    }

    /// The taxon that a row's label names: by name, or by its place in the list.
    fn of_row(&self, label: String) -> Option<String> {
        if self.labels.is_empty() || self.places.contains_key(&label.to_lowercase()) {
            return Some(label);
        }
        let place = label.parse::<usize>().ok()?.checked_sub(1)?;
        self.labels.get(place).cloned()
    }
}

/// A matrix being read.
struct Matrix<'m> {
    format: &'m Format,
    size: &'m Size,
    taxa: &'m Taxa,
    cells: Cells<'m>,
    names: Vec<String>,
    rows: Vec<Vec<u8>>,
    known: HashMap<String, usize>,
    /// Names that begin a line, and those that do not.
    begins: [usize; 2],
}

impl<'m> Matrix<'m> {
    fn new(format: &'m Format, size: &'m Size, taxa: &'m Taxa, accept: Accept) -> Self {
        Self {
            format,
            size,
            taxa,
            cells: Cells::new(format, accept),
            names: Vec::new(),
            rows: Vec::new(),
            known: HashMap::new(),
            begins: [0, 0],
        }
    }

    fn read(mut self, tokens: &mut Tokens<'_>) -> Result<Found, MsaError> {
        if !self.format.labels && self.taxa.labels.is_empty() {
            return Err(tokens.error("NOLABELS, and no TAXLABELS before the matrix name the rows"));
        }
        let mut line = 0;
        loop {
            tokens.skip_blanks();
            match tokens.peek() {
                Some(b';') => break,
                None => return Err(tokens.error("the matrix does not end with `;`")),
                Some(_) => {}
            }
            let row = match self.format.labels {
                true => self.labelled(tokens)?,
                false => self.unlabelled(line, tokens)?,
            };
            line += 1;
            self.cells_of(row, tokens)?;
        }
        tokens.take(b';');
        self.done(tokens)
    }

    /// The row that a label names.
    fn labelled(&mut self, tokens: &mut Tokens<'_>) -> Result<usize, MsaError> {
        let start = tokens.at;
        let Some(word) = tokens.label() else {
            return Err(tokens.error("the matrix does not end with `;`"));
        };
        let label = name(&word);
        let taxon = self.taxa.of_row(label.clone()).ok_or_else(|| {
            let what = "is none of the TAXLABELS; is NCHAR right?";
            tokens.error(&format!("`{}` {what}", shown(&label)))
        })?;
        // Only blocks repeat names; otherwise the caller that receives the rows finds duplicates.
        let earlier = self.known.get(&taxon).filter(|_| self.format.interleave);
        if let Some(&row) = earlier {
            return Ok(row);
        }
        if !self.rows.is_empty() {
            self.begins[usize::from(!tokens.begins_line(start))] += 1;
        }
        self.known.insert(taxon.clone(), self.rows.len());
        self.names.push(taxon);
        self.rows.push(Vec::new());
        Ok(self.rows.len() - 1)
    }

    /// The next row in order.
    fn unlabelled(&mut self, line: usize, tokens: &Tokens<'_>) -> Result<usize, MsaError> {
        let all = self.taxa.labels.len();
        if line < all {
            self.names.push(self.taxa.labels[line].clone());
            self.rows.push(Vec::new());
        } else if !self.format.interleave {
            let what = format!("more rows than the {all} TAXLABELS, or longer ones than NCHAR");
            return Err(tokens.error(&what));
        }
        Ok(line % all)
    }

    /// Reads a row's cells, as many as there are here.
    fn cells_of(&mut self, row: usize, tokens: &mut Tokens<'_>) -> Result<(), MsaError> {
        let (interleave, sites) = (self.format.interleave, self.size.sites);
        loop {
            let whole = !interleave && sites == Some(self.rows[row].len());
            match tokens.peek() {
                None | Some(b';') => return Ok(()),
                Some(_) if whole => return Ok(()),
                Some(b'\n') if interleave || sites.is_none() => return Ok(()),
                Some(byte) if byte.is_ascii_whitespace() => {}
                Some(_) => {
                    let site = self.rows[row].len();
                    // A matching character (`.`) has the state of the first row.
                    let first = self.rows.first().filter(|_| row > 0);
                    let first = first.and_then(|first| first.get(site)).copied();
                    let cell = self.cells.next(tokens, || first)?;
                    self.rows[row].push(cell);
                }
            }
            tokens.at += 1;
        }
    }

    fn done(self, tokens: &Tokens<'_>) -> Result<Found, MsaError> {
        let (names, rows, taxa) = (self.names, self.rows, self.taxa);
        // Without row labels the names, and so their number, come from TAXLABELS.
        let declared = match self.format.labels {
            true => self.size.taxa,
            false => Some(taxa.labels.len()),
        };
        check_declared(&names, &rows, declared, self.size.sites)?;
        // With too small an NCHAR the rest of a row reads as a name.
        if self.size.taxa.is_none() && self.begins[0] > 0 && self.begins[1] > 0 {
            let what = "names begin some lines and stand within others: is NCHAR right?";
            return Err(tokens.error(what));
        }
        let mut warnings = Vec::new();
        if self.cells.polymorphic > 0 {
            let count = self.cells.polymorphic;
            warnings.push(Warning::Polymorphic { count });
        }
        let mut left: Vec<&String> = Vec::new();
        if !taxa.labels.is_empty() {
            // NEXUS names do not depend on case.
            let rows: std::collections::HashSet<String> =
                names.iter().map(|name| name.to_lowercase()).collect();
            left.extend(
                taxa.labels
                    .iter()
                    .filter(|label| !rows.contains(&label.to_lowercase())),
            );
        }
        if !left.is_empty() {
            warnings.push(Warning::no_row(&left, taxa.labels.len()));
        }
        Ok(Found {
            rows: (names, rows),
            sets: self.cells.sets,
            dots: self.format.dots,
            warnings,
        })
    }
}

#[cfg(test)]
mod tests;
