//! Trees of a NEXUS file: `TREE` and `UTREE` of its `TREES` blocks.
//!
//! Tips are named by the block's `TRANSLATE` table, or else, where they are numbers, by their place
//! among the file's `TAXLABELS`. Blanks within quoted names become `_`, as in NEXUS alignments.
//! Other blocks and commands are skipped.
//! Must stay true: as in Newick, any text is accepted as input, and memory is proportional to it.
//! Source: Maddison, Swofford, Maddison, "NEXUS: an extensible file format for systematic
//! information", Systematic Biology 46 (1997), 590-621.
//!
//! ```
//! use sidecore_alignment::newick::Newick;
//!
//! let text = "#NEXUS begin trees; translate 1 ape, 2 bat; tree one = [&U] (1:2,2,cow); end;";
//! assert_eq!(Newick::parse_file(text)?[0].to_string(), "(ape:2,bat,cow);");
//! # Ok::<(), sidecore_alignment::newick::NewickError>(())
//! ```

use super::{Newick, NewickError, Parser};
use crate::quoted_end;
use std::collections::{HashMap, HashSet};

/// True for a file that begins with `#NEXUS`.
pub(super) fn is_nexus(text: &str) -> bool {
    let start = text.trim_start_matches('\u{FEFF}').trim_start().as_bytes();
    start.len() >= MARK.len() && start[..MARK.len()].eq_ignore_ascii_case(MARK)
}

pub(super) fn parse(text: &str) -> Result<Vec<Newick>, NewickError> {
    let mut parser = Parser {
        text: text.as_bytes(),
        at: text.find('#').unwrap_or(0) + MARK.len(),
        nested: true,
    };
    let mut names = Names::default();
    let mut trees = Vec::new();
    let mut in_trees = false;
    loop {
        parser.blanks()?;
        if parser.peek().is_none() {
            return Ok(trees);
        }
        let word = parser.word().to_ascii_uppercase();
        match word.as_slice() {
            b"BEGIN" => {
                parser.blanks()?;
                in_trees = parser.word().eq_ignore_ascii_case(b"TREES");
                // A translation table is valid within its block.
                names.table.clear();
                parser.skip_command()?;
            }
            b"TAXLABELS" => {
                names.labels = parser.labels()?;
                names.known = names.labels.iter().cloned().collect();
                parser.skip_command()?;
            }
            b"TRANSLATE" if in_trees => parser.table(&mut names.table)?,
            b"TREE" | b"UTREE" if in_trees => {
                let mut tree = parser.named_tree()?;
                names.give(&mut tree);
                trees.push(tree);
            }
            _ => parser.skip_command()?,
        }
    }
}

/// Names of tips that a tree's text does not spell out.
#[derive(Default)]
struct Names {
    table: HashMap<String, String>,
    labels: Vec<String>,
    /// The same, to look up.
    known: HashSet<String>,
}

impl Names {
    fn give(&self, tree: &mut Newick) {
        for node in &mut tree.nodes {
            if !node.children.is_empty() {
                continue;
            }
            let label = plain(std::mem::take(&mut node.label));
            // A number that is not a label means the taxon at that place.
            let numbered = || {
                let place = label.parse::<usize>().ok()?.checked_sub(1)?;
                self.labels
                    .get(place)
                    .filter(|_| !self.known.contains(&label))
            };
            let name = self.table.get(&label).or_else(numbered);
            node.label = name.cloned().unwrap_or(label);
        }
    }
}

/// A name without blanks.
fn plain(name: String) -> String {
    match name.contains(char::is_whitespace) {
        true => name.replace(char::is_whitespace, "_"),
        false => name,
    }
}

impl<'t> Parser<'t> {
    /// Bytes up to a blank or a mark; at least one where there is one.
    fn word(&mut self) -> &'t [u8] {
        let start = self.at;
        while let Some(byte) = self.peek() {
            let mark = byte.is_ascii_whitespace() || b"[]'=;,()".contains(&byte);
            if mark && (self.at > start || byte == b';') {
                break;
            }
            self.at += 1;
            if mark {
                break;
            }
        }
        &self.text[start..self.at]
    }

    /// Skips the rest of a command and its `;`.
    fn skip_command(&mut self) -> Result<(), NewickError> {
        loop {
            self.blanks()?;
            let Some(byte) = self.peek() else {
                return Ok(());
            };
            // A `;` within quotes ends nothing.
            self.at = quoted_end(self.text, self.at).unwrap_or(self.at + 1);
            if byte == b';' {
                return Ok(());
            }
        }
    }

    /// Names up to the end of a command.
    fn labels(&mut self) -> Result<Vec<String>, NewickError> {
        let mut labels = Vec::new();
        loop {
            self.blanks()?;
            let label = plain(self.label()?);
            if label.is_empty() {
                return Ok(labels);
            }
            labels.push(label);
        }
    }

    /// `1 ape, 2 bat;`
    fn table(&mut self, table: &mut HashMap<String, String>) -> Result<(), NewickError> {
        loop {
            self.blanks()?;
            let start = self.at;
            let key = plain(self.label()?);
            self.blanks()?;
            // A comma may stand after the last pair.
            if key.is_empty() && self.peek() == Some(b';') {
                self.at += 1;
                return Ok(());
            }
            let name = plain(self.label()?);
            if key.is_empty() || name.is_empty() {
                return Err(self.error("TRANSLATE wants pairs of a number and a name"));
            }
            if table.insert(key, name).is_some() {
                self.at = start;
                return Err(self.error("TRANSLATE has this number twice"));
            }
            self.blanks()?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b';') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.error("expected `,` or `;` in TRANSLATE")),
            }
        }
    }

    /// `* name = [&U] (…);`
    fn named_tree(&mut self) -> Result<Newick, NewickError> {
        self.blanks()?;
        // `*` marks the default tree.
        if self.peek() == Some(b'*') {
            self.at += 1;
            self.blanks()?;
        }
        match self.peek() {
            Some(b'\'') => drop(self.label()?),
            Some(b'=') | None => {}
            Some(_) => drop(self.word()),
        }
        self.blanks()?;
        if self.peek() != Some(b'=') {
            return Err(self.error("expected `=` after a tree's name"));
        }
        self.at += 1;
        self.tree()
    }
}

const MARK: &[u8] = b"#NEXUS";

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Vec<String> {
        let trees = Newick::parse_file(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        trees.iter().map(Newick::to_string).collect()
    }

    #[test]
    fn trees_of_nexus_are_those_of_newick() {
        let mrbayes = "#NEXUS\n[ID: 1]\nbegin trees;\n translate\n 1 ape,\n 2 'big bat',\n\
            3 cow;\n tree gen.1 = [&U] ((1:1,2:2):0.5,3:1e-2);\n tree gen.2 = \
            [&R] (1,(2,3));\nend;";
        assert_eq!(
            printed(mrbayes),
            ["((ape:1,big_bat:2):0.5,cow:0.01);", "(ape,(big_bat,cow));"]
        );
        // BEAST: comments with `;`, a table with a comma at its end, other blocks around.
        let beast = "#nexus\nBegin taxa;\n Dimensions ntax=3;\n Taxlabels x y z;\nEnd;\n\
            Begin characters; matrix x A;' ; end;\nBegin trees;\n Translate 1 x, 2 y, 3 z,;\n\
            tree * TREE1 [&lnP=-1;] = [&R] ((1[&rate=1]:[&a={1,2}]2,2:1)[&p=1;]:1,3:1);\nEnd;\n\
            Begin other; tree a = (1,2); End;";
        assert_eq!(printed(beast), ["((x:2,y:1):1,z:1);"]);
        // Numbers without a table are places among the taxa.
        let paup = "#NEXUS begin taxa; taxlabels 'a b' c d; end; begin trees; \
            utree t=(1,c,(3,9)); end;";
        assert_eq!(printed(paup), ["(a_b,c,(d,9));"]);
        assert!(printed("#NEXUS begin trees; end;").is_empty());
        assert_eq!(printed("(a,b);(c,d);"), ["(a,b);", "(c,d);"]);
    }

    /// As the reader of alignments has it: one file holds both.
    #[test]
    fn comments_nest_and_apostrophes_may_stand_alone() {
        let nested = "#NEXUS [x [y] z] begin trees; tree t = [&R [old]] (a,(b,c)); end;";
        assert_eq!(printed(nested), ["(a,(b,c));"]);
        // In Newick they do not.
        assert_eq!(printed("[a [b] (a,b);"), ["(a,b);"]);
        let apostrophe = "#NEXUS begin data; matrix\nO'Brien ACGT\nb 'c\n;\nend;\n\
            begin trees; tree t = ('x y',b,c); title 'a; b'; tree u = (b,c); end;";
        assert_eq!(printed(apostrophe), ["(x_y,b,c);", "(b,c);"]);
    }

    #[test]
    fn says_where_it_is_wrong() {
        for (rest, at, what) in [
            ("tree x (1,2);", 8, "expected `=`"),
            ("tree x = (1,2;", 14, "not closed"),
            ("tree x = (1,2)", 15, "does not end"),
            ("tree", 5, "expected `=`"),
            ("translate 1 a, 1 b;", 16, "twice"),
            ("translate 1, 2 b;", 12, "pairs"),
            ("translate 1 a 2 b;", 15, "expected `,`"),
            ("translate 1 'a;", 13, "quoted label"),
            ("[", 1, "comment"),
        ] {
            let head = "#NEXUS begin trees; ";
            let error = Newick::parse_file(&format!("{head}{rest}")).unwrap_err();
            assert_eq!(error.at, head.len() + at, "{rest}: {error}");
            assert!(error.what.contains(what), "{rest}: {error}");
        }
    }
}
