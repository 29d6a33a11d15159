//! Partitions as NEXUS sets: `charset`s, and a `charpartition` that gives them models.
//!
//! ```text
//! #NEXUS
//! begin sets;
//!   charset one = 1-500;
//!   charset two = 501-.\2 502-.\2;
//!   charpartition mine = GTR+G:one, HKY:two;
//! end;
//! ```
//! Without a `charpartition` each charset is a partition whose model is to be chosen (`auto`), as
//! IQ-TREE takes them. A charset may name earlier ones. Of several `charpartition`s the one with
//! `*` counts. A charset may name a file before its ranges, `one = gene1.phy: 1-500;`: then it is
//! of that file ([`file_sets`]). Charsets that no charpartition names are ignored, as are all other
//! blocks and commands.
//! Must stay true: the work is bounded by the size of the text and of the alignment, whatever
//! charsets refer to: a charset is expanded where a partition claims it, and no site can be claimed
//! twice. Sources: Maddison and others (1997), as for alignments; models in place of the labels of
//! `charpartition`: IQ-TREE's manual.

use super::{Claims, PartitionError, Range};
use crate::msa::{MsaError, shown, without_comments};
use std::collections::HashMap;

/// True for a file that begins with `#NEXUS`.
pub(super) fn is_nexus(text: &str) -> bool {
    let start = text.trim_start().as_bytes();
    start.len() >= 6 && start[..6].eq_ignore_ascii_case(b"#NEXUS")
}

fn plain(text: &str) -> Result<String, PartitionError> {
    let text = without_comments(text.as_bytes()).map_err(|error| match error {
        MsaError::Format { line, what, .. } => PartitionError::Sets { line, what },
        other => sets_error(1, other.to_string()),
    })?;
    // Comments are cut out at ASCII characters, so it is still UTF-8.
    Ok(String::from_utf8(text).unwrap_or_default())
}

/// A charset, and the file that it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileCharset {
    /// Its name.
    pub name: String,
    /// The file; none where it is of the alignment.
    pub file: Option<String>,
    /// Its ranges; empty or `*` where it is all of the file.
    pub ranges: String,
    /// Its line in the text, from 1.
    pub line: usize,
}

/// Charsets of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSets {
    /// The charsets that count.
    pub charsets: Vec<FileCharset>,
    /// For each partition its model, its name, and the places of its charsets.
    pub partitions: Vec<(String, String, Vec<usize>)>,
}

/// See [`super::file_sets`].
pub(super) fn file_sets(text: &str) -> Result<Option<FileSets>, PartitionError> {
    let text = plain(text)?;
    let commands = Commands::read(&text)?;
    let mut charsets = Vec::new();
    for ((line, value), name) in commands.charsets.iter().zip(&commands.shown) {
        // The last colon: paths may have colons, ranges have none.
        let (file, ranges) = match value.rsplit_once(':') {
            None => (None, *value),
            Some((file, ranges)) => (Some(file.trim().trim_matches(['\'', '"'])), ranges),
        };
        // `file.phy:CODON, 1-.`: the model says what the data are.
        let typed = ranges.split_once(',').filter(|(kind, _)| is_type(kind));
        charsets.push(FileCharset {
            name: name.clone(),
            file: file.map(str::to_owned),
            ranges: typed.map_or(ranges, |(_, rest)| rest).trim().to_owned(),
            line: *line,
        });
    }
    if charsets.iter().all(|own| own.file.is_none()) {
        return Ok(None);
    }
    let mut partitions: Vec<(String, String, Vec<usize>)> = Vec::new();
    match commands.partition()? {
        None => {
            let own = charsets.iter().enumerate();
            let each = own.map(|(at, own)| (AUTO.to_owned(), own.name.clone(), vec![at]));
            partitions.extend(each);
        }
        Some((line, entries)) => {
            for entry in split_outside_braces(entries, ',') {
                let (model, members, name) = self::entry(line, entry)?;
                let mut places = Vec::new();
                for word in words(members) {
                    let key = word.trim_matches('\'').to_lowercase();
                    let place = commands.names.get(&key).copied();
                    let what = || format!("`{}` is no charset", shown(&word));
                    places.push(place.ok_or_else(|| sets_error(line, what()))?);
                }
                partitions.push((model.to_owned(), name, places));
            }
        }
    }
    // A charset without a model is ignored, its file, too.
    let mut used: Vec<usize> = partitions.iter().flat_map(|own| own.2.clone()).collect();
    used.sort_unstable();
    used.dedup();
    // Places count among the charsets that are left.
    for place in partitions.iter_mut().flat_map(|own| &mut own.2) {
        *place = used.binary_search(place).unwrap_or_default();
    }
    Ok(Some(FileSets {
        charsets: used.iter().map(|&at| charsets[at].clone()).collect(),
        partitions,
    }))
}

/// True of a kind of data, as it may stand before ranges.
fn is_type(text: &str) -> bool {
    let text = text.trim();
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

pub(super) fn parse(text: &str, claims: &mut Claims) -> Result<(), PartitionError> {
    let text = plain(text)?;
    let commands = Commands::read(&text)?;
    let Some((line, entries)) = commands.partition()? else {
        return commands.claim_each(claims);
    };
    for entry in split_outside_braces(entries, ',') {
        let (model, members, name) = self::entry(line, entry)?;
        claims.begin(model, &name);
        commands.claim(line, members, claims)?;
    }
    Ok(())
}

/// The model, the members and the name of a charpartition's entry.
fn entry(line: usize, entry: &str) -> Result<(&str, &str, String), PartitionError> {
    let bad = || {
        sets_error(
            line,
            format!("`{}` is no MODEL:CHARSET", shown(entry.trim())),
        )
    };
    let mut halves = split_outside_braces(entry, ':');
    let (model, members) = match (halves.next(), halves.next(), halves.next()) {
        (Some(model), Some(members), None) => (model.trim(), members.trim()),
        _ => return Err(bad()),
    };
    if model.is_empty() || members.is_empty() {
        return Err(bad());
    }
    // Blanks, `=` and `,` are separators in RAxML's partition format.
    let name = members.split_whitespace().collect::<Vec<_>>().join("_");
    let name = name.trim_matches('\'').replace(['=', ','], "_");
    Ok((model, members, name))
}

/// The commands of `sets` blocks that matter.
struct Commands<'t> {
    /// Charsets in their order: line, members as text.
    charsets: Vec<(usize, &'t str)>,
    /// Names of charsets in lower case, and the place of each.
    names: HashMap<String, usize>,
    /// Their names as they are written.
    shown: Vec<String>,
    /// Charpartitions: line, marked with `*`, entries as text.
    partitions: Vec<(usize, bool, &'t str)>,
    last_line: usize,
}

impl<'t> Commands<'t> {
    fn read(text: &'t str) -> Result<Self, PartitionError> {
        let mut found = Self {
            charsets: Vec::new(),
            names: HashMap::new(),
            shown: Vec::new(),
            partitions: Vec::new(),
            last_line: 1,
        };
        let mut end_line = 1;
        for command in text.split(';') {
            // Errors name the line of the command's first word, not that of the blanks before it.
            let blanks = command.len() - command.trim_start().len();
            let line = end_line + newlines(&command[..blanks]);
            end_line += newlines(command);
            found.last_line = line;
            let command = command.trim();
            let (word, rest) = first_word(command);
            // The first command has the `#NEXUS` before it.
            let (word, rest) = match word.eq_ignore_ascii_case("#NEXUS") {
                true => first_word(rest),
                false => (word, rest),
            };
            let is = |name: &str| word.eq_ignore_ascii_case(name);
            // Only `EXSET *` takes effect by itself.
            if is("EXSET") && rest.trim_start().starts_with('*') {
                let what = "EXSET leaves sites out: take them out of the alignment, and the \
                            command out of the file";
                return Err(sets_error(line, what.to_owned()));
            }
            if !is("CHARSET") && !is("CHARPARTITION") {
                continue;
            }
            let Some((name, value)) = rest.split_once('=') else {
                return Err(sets_error(
                    line,
                    format!("{} without `=`", word.to_lowercase()),
                ));
            };
            let name = name.trim();
            let starred = name.starts_with('*');
            let name = name.trim_start_matches('*').trim();
            if name.is_empty() || words(value).len() == 0 {
                let what = format!("{} without a name or a value", word.to_lowercase());
                return Err(sets_error(line, what));
            }
            if is("CHARPARTITION") {
                found.partitions.push((line, starred, value));
                continue;
            }
            let place = found.charsets.len();
            let key = name.trim_matches('\'').to_lowercase();
            if found.names.insert(key, place).is_some() {
                return Err(sets_error(line, format!("charset `{}` twice", shown(name))));
            }
            // Blanks, `=` and `,` are separators in RAxML's partition format.
            let plain = name.trim_matches('\'').replace(['=', ','], "_");
            found
                .shown
                .push(plain.split_whitespace().collect::<Vec<_>>().join("_"));
            found.charsets.push((line, value));
        }
        Ok(found)
    }

    /// The charpartition that counts: its line and entries.
    fn partition(&self) -> Result<Option<(usize, &'t str)>, PartitionError> {
        let starred = self.partitions.iter().find(|(_, starred, _)| *starred);
        match (starred, &self.partitions[..]) {
            (Some((line, _, entries)), _) | (None, [(line, _, entries)]) => {
                Ok(Some((*line, entries)))
            }
            (None, []) if !self.charsets.is_empty() => Ok(None),
            (None, []) => Err(sets_error(
                self.last_line,
                "no charpartition says which model each charset has".to_owned(),
            )),
            (None, [_, (line, ..), ..]) => Err(sets_error(
                *line,
                "a second charpartition: mark the one that counts with `*`".to_owned(),
            )),
        }
    }

    /// Makes each charset a partition, its model to be chosen.
    fn claim_each(&self, claims: &mut Claims) -> Result<(), PartitionError> {
        for (place, (line, members)) in self.charsets.iter().enumerate() {
            claims.begin(AUTO, &self.shown[place]);
            self.claim(*line, members, claims)?;
        }
        Ok(())
    }

    /// Gives the sites of `members` to the partition that was begun last.
    fn claim(&self, line: usize, members: &str, claims: &mut Claims) -> Result<(), PartitionError> {
        // Pending words, innermost last. Each charset has a word, and each word ends at sites,
        // which cannot be claimed twice; so this ends.
        let own = self.charsets.len();
        let mut open: Vec<(usize, usize, std::vec::IntoIter<String>)> =
            vec![(line, own, words(members))];
        while let Some((line, place, words)) = open.last_mut() {
            let (line, place) = (*line, *place);
            let Some(word) = words.next() else {
                open.pop();
                continue;
            };
            let error = |what: String| sets_error(line, what);
            if word.eq_ignore_ascii_case("ALL") {
                let (first, last, step) = (1, claims.sites(), 1);
                claims.claim(Range { first, last, step })?;
            } else if let Some(range) = Range::parse(&word, claims.sites()) {
                if range.last > claims.sites() {
                    return Err(error(claims.beyond(range)));
                }
                claims.claim(range)?;
            } else {
                let key = word.trim_matches('\'').to_lowercase();
                // Earlier ones only, so that there are no cycles.
                let other = self.names.get(&key).filter(|&&other| other < place);
                let Some(&other) = other else {
                    let word = shown(&word);
                    let what = format!("`{word}` is neither a range nor an earlier charset");
                    return Err(error(what));
                };
                let (line, members) = self.charsets[other];
                open.push((line, other, self::words(members)));
            }
        }
        Ok(())
    }
}

/// Ranges and names of a charset, blanks within ranges taken out.
pub(super) fn words(members: &str) -> std::vec::IntoIter<String> {
    let glue = |c: char| "-\\/".contains(c);
    let mut all: Vec<String> = Vec::new();
    let mut glued = false;
    for word in members.split(|c: char| c.is_whitespace() || c == ',') {
        if word.is_empty() {
            continue;
        }
        match all.last_mut() {
            Some(last) if glued || word.starts_with(glue) => last.push_str(word),
            _ => all.push(word.to_owned()),
        }
        glued = word.ends_with(glue);
    }
    all.into_iter()
}

/// Cuts at a character, but not between braces.
fn split_outside_braces(text: &str, at: char) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && c == at
    })
}

fn first_word(text: &str) -> (&str, &str) {
    text.split_once(char::is_whitespace).unwrap_or((text, ""))
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b'\n').count()
}

/// The model of a charset that has none.
const AUTO: &str = "auto";

fn sets_error(line: usize, what: String) -> PartitionError {
    PartitionError::Sets { line, what }
}
