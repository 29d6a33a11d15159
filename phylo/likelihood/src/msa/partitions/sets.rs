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
//! `*` counts. Charsets that it does not name are ignored, as are all other blocks and commands.
//! Must stay true: the work is bounded by the size of the text and of the alignment, whatever
//! charsets refer to: a charset is expanded where a partition claims it, and no site can be claimed
//! twice. Sources: Maddison and others (1997), as for alignments; models in place of the labels of
//! `charpartition`: IQ-TREE's manual.

use super::super::nexus::without_comments;
use super::{Claims, PartitionError, Range};
use crate::msa::{MsaError, shown};
use std::collections::HashMap;

/// True for a file that begins with `#NEXUS`.
pub(super) fn is_nexus(text: &str) -> bool {
    let start = text.trim_start().as_bytes();
    start.len() >= 6 && start[..6].eq_ignore_ascii_case(b"#NEXUS")
}

pub(super) fn parse(text: &str, claims: &mut Claims) -> Result<(), PartitionError> {
    let text = without_comments(text.as_bytes()).map_err(|error| match error {
        MsaError::Format { line, what, .. } => PartitionError::Sets { line, what },
        other => sets_error(1, other.to_string()),
    })?;
    // Comments are cut out at ASCII characters, so it is still UTF-8.
    let text = String::from_utf8(text).unwrap_or_default();
    let commands = Commands::read(&text)?;
    let Some((line, entries)) = commands.partition()? else {
        return commands.claim_each(claims);
    };
    for entry in split_outside_braces(entries, ',') {
        let error = |what: String| sets_error(line, what);
        let mut halves = split_outside_braces(entry, ':');
        let (model, members) = match (halves.next(), halves.next(), halves.next()) {
            (Some(model), Some(members), None) => (model.trim(), members.trim()),
            _ => {
                return Err(error(format!(
                    "`{}` is no MODEL:CHARSET",
                    shown(entry.trim())
                )));
            }
        };
        if model.is_empty() || members.is_empty() {
            return Err(error(format!(
                "`{}` is no MODEL:CHARSET",
                shown(entry.trim())
            )));
        }
        // Blanks, `=` and `,` are separators in RAxML's partition format.
        let name = members.split_whitespace().collect::<Vec<_>>().join("_");
        claims.begin(
            model,
            name.trim_matches('\'').replace(['=', ','], "_").as_str(),
        );
        commands.claim(line, members, claims)?;
    }
    Ok(())
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
fn words(members: &str) -> std::vec::IntoIter<String> {
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
