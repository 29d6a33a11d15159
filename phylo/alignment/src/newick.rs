//! Newick: trees as text, in and out.
//!
//! The text holds a rooted tree of any shape ([`Newick`]); a tree to search from is made of it.
//! Must stay true: the parser takes any text, never recurses, and uses memory in proportion to it.
//! A file of trees is Newick or NEXUS ([`Newick::parse_file`]).
//! Source: Olsen, "Newick's 8:45 tree format standard" (1990): quotes, comments in brackets.
//! Underscores stay underscores, as all programs of this trade keep them.
//!
//! ```
//! use sidecore_alignment::newick::Newick;
//!
//! let tree = Newick::parse("((a:0.1,b:0.2)90:0.3,c:0.4,'d e':0.5);")?;
//! let labels: Vec<&str> = tree.tips().map(|tip| tree.nodes()[tip].label.as_str()).collect();
//! assert_eq!(labels, ["a", "b", "c", "d e"]);
//! let flaw = Newick::parse("((a,b);").expect_err("a parenthesis is missing");
//! println!("byte {}: {}", flaw.at, flaw.what);
//! # Ok::<(), sidecore_alignment::newick::NewickError>(())
//! ```

mod nexus;

use sidecore_bare::width::ToU64;
use std::fmt::Write;

/// Errors of a tree's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Newick, character {at}: {what}")]
pub struct NewickError {
    /// Byte number, from 1.
    pub at: usize,
    /// The reason.
    pub what: &'static str,
}

/// A rooted tree of any shape. Node 0 is the root; children stand after their parents.
#[derive(Debug, Clone, PartialEq)]
pub struct Newick {
    nodes: Vec<Node>,
}

/// One node of a [`Newick`] tree.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Node {
    /// The node above; the root has none.
    pub parent: Option<usize>,
    /// The nodes below, in the text's order.
    pub children: Vec<usize>,
    /// The label; empty if there is none.
    pub label: String,
    /// The length of the branch above, finite.
    pub length: Option<f64>,
}

impl Newick {
    /// A tree of its root alone, to which [`Newick::push`] adds the rest.
    #[must_use]
    pub fn root(label: String) -> Self {
        let root = Node {
            label,
            ..Node::default()
        };
        Self { nodes: vec![root] }
    }

    /// Adds a node as the last child of `parent`; returns its number.
    ///
    /// # Panics
    /// When there is no such parent.
    pub fn push(&mut self, parent: usize, label: String, length: Option<f64>) -> usize {
        let node = child(&mut self.nodes, parent);
        self.nodes[node].label = label;
        self.nodes[node].length = length;
        node
    }

    /// Parses exactly one tree.
    ///
    /// # Errors
    /// [`NewickError`].
    pub fn parse(text: &str) -> Result<Self, NewickError> {
        let mut parser = Parser {
            text: text.as_bytes(),
            at: 0,
            nested: false,
        };
        let tree = parser.tree()?;
        parser.blanks()?;
        // A second tree would be dropped silently.
        if parser.at < parser.text.len() {
            return Err(parser.error("there is more after the tree's `;`"));
        }
        Ok(tree)
    }

    /// Parses all trees of a file.
    ///
    /// # Errors
    /// [`NewickError`].
    pub(crate) fn parse_all(text: &str) -> Result<Vec<Self>, NewickError> {
        let mut parser = Parser {
            text: text.as_bytes(),
            at: 0,
            nested: false,
        };
        let mut trees = Vec::new();
        loop {
            parser.blanks()?;
            if parser.at == parser.text.len() {
                return Ok(trees);
            }
            trees.push(parser.tree()?);
        }
    }

    /// Parses all trees of a file, Newick or NEXUS (a `TREES` block, with its `TRANSLATE` table),
    /// in the file's order; empty if it has none. `[&R]` and `[&U]` are comments: only the text's
    /// shape decides if a tree is rooted.
    ///
    /// # Errors
    /// [`NewickError`].
    pub fn parse_file(text: &str) -> Result<Vec<Self>, NewickError> {
        match nexus::is_nexus(text) {
            true => nexus::parse(text),
            // Editors on Windows begin a file with a byte order mark.
            false => Self::parse_all(text.trim_start_matches('\u{FEFF}')),
        }
    }

    /// The nodes; 0 is the root.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Gives a node another label.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn set_label(&mut self, node: usize, label: String) {
        self.nodes[node].label = label;
    }

    /// Gives the branch above a node another length, or none.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn set_length(&mut self, node: usize, length: Option<f64>) {
        self.nodes[node].length = length;
    }

    /// Number of branches without a length, and of all, without the root. The two branches at a
    /// root of degree 2 count as one, which has no length if neither has one.
    #[must_use]
    pub(crate) fn branches_without_length(&self) -> [usize; 2] {
        let lacks = |node: &usize| self.nodes[*node].length.is_none();
        let mut none = (1..self.nodes.len()).filter(lacks).count();
        let mut all = self.nodes.len() - 1;
        if let [a, b] = self.nodes[0].children[..] {
            // The two are one branch of the unrooted tree, whose length is their sum.
            none -= usize::from(lacks(&a) || lacks(&b));
            all -= 1;
        }
        [none, all]
    }

    /// Approximate bytes of memory that a text of trees takes once it is parsed: found before it
    /// is, since a node takes many times the memory of its text.
    #[must_use]
    pub fn parsed_bytes(text: &str) -> u64 {
        let marks = text.bytes().filter(|byte| matches!(byte, b'(' | b','));
        // Each node but the root follows a parenthesis or a comma, so this is a bound before a byte
        // is parsed.
        marks.count().to_u64().saturating_mul(NODE_BYTES) + text.len().to_u64()
    }

    /// The labels of all tips.
    #[must_use]
    pub fn tip_labels(&self) -> Vec<String> {
        self.tips()
            .map(|tip| self.nodes[tip].label.clone())
            .collect()
    }

    /// The nodes without children.
    pub fn tips(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|&node| self.nodes[node].children.is_empty())
    }
}

/// The length of a branch that has none in its file: RAxML's.
pub const LENGTH_DEFAULT: f64 = 0.1;
/// Bytes of a node of a parsed tree: its label and its place among its parent's children.
pub const NODE_BYTES: u64 = 176;

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    /// True where comments nest.
    nested: bool,
}

impl Parser<'_> {
    fn error(&self, what: &'static str) -> NewickError {
        NewickError {
            at: self.at + 1,
            what,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Skips blanks and comments.
    fn blanks(&mut self) -> Result<(), NewickError> {
        loop {
            match self.peek() {
                Some(byte) if byte.is_ascii_whitespace() => self.at += 1,
                Some(b'[') => {
                    let mut rest = self.text[self.at..].iter().enumerate();
                    let mut depth = 0;
                    // Those of NEXUS nest.
                    let end = rest.find(|&(at, &byte)| {
                        depth += u64::from(byte == b'[' && (self.nested || at == 0));
                        depth -= u64::from(byte == b']');
                        depth == 0
                    });
                    // The error shows where the comment begins; its end could be anywhere.
                    let (last, _) = end.ok_or_else(|| self.error("a comment is not closed"))?;
                    self.at += last + 1;
                }
                _ => return Ok(()),
            }
        }
    }

    fn tree(&mut self) -> Result<Newick, NewickError> {
        let mut nodes = vec![Node::default()];
        let mut here = 0;
        // A loop with an explicit position: a recursion on a deep tree would overflow the stack.
        loop {
            self.blanks()?;
            if self.peek() == Some(b'(') {
                self.at += 1;
                here = child(&mut nodes, here);
                continue;
            }
            self.finish(&mut nodes[here])?;
            // Upwards while parentheses close.
            loop {
                self.blanks()?;
                let parent = nodes[here].parent;
                match (self.peek(), parent) {
                    (Some(b','), Some(parent)) => {
                        self.at += 1;
                        here = child(&mut nodes, parent);
                        break;
                    }
                    (Some(b')'), Some(parent)) => {
                        self.at += 1;
                        here = parent;
                        self.finish(&mut nodes[here])?;
                    }
                    (Some(b';'), None) => {
                        self.at += 1;
                        return Ok(Newick { nodes });
                    }
                    (Some(b';') | None, Some(_)) => {
                        return Err(self.error("a parenthesis is not closed"));
                    }
                    (Some(b')'), None) => return Err(self.error("a `)` without its `(`")),
                    (None, None) => return Err(self.error("the tree does not end with `;`")),
                    _ => return Err(self.error("expected `,`, `)`, `:` or `;`")),
                }
            }
        }
    }

    /// Reads a label and a length, if present.
    fn finish(&mut self, node: &mut Node) -> Result<(), NewickError> {
        self.blanks()?;
        node.label = self.label()?;
        self.blanks()?;
        if self.peek() != Some(b':') {
            return Ok(());
        }
        self.at += 1;
        self.blanks()?;
        let start = self.at;
        // The whole word is read, so that the error names its beginning.
        while self
            .peek()
            .is_some_and(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        {
            self.at += 1;
        }
        let word = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        let length = word.parse().ok().filter(|length: &f64| length.is_finite());
        if length.is_none() {
            self.at = start;
            return Err(self.error("a branch length is not a number"));
        }
        node.length = length;
        Ok(())
    }

    fn label(&mut self) -> Result<String, NewickError> {
        let mut label = Vec::new();
        if self.peek() == Some(b'\'') {
            let start = self.at;
            self.at += 1;
            loop {
                match self.peek() {
                    None => {
                        self.at = start;
                        return Err(self.error("a quoted label is not closed"));
                    }
                    // Two quotes within a quoted label are one.
                    Some(b'\'') if self.text.get(self.at + 1) == Some(&b'\'') => {
                        label.push(b'\'');
                        self.at += 2;
                    }
                    Some(b'\'') => {
                        self.at += 1;
                        break;
                    }
                    Some(byte) => {
                        label.push(byte);
                        self.at += 1;
                    }
                }
            }
        } else {
            while let Some(byte) = self.peek() {
                if byte.is_ascii_whitespace() || b"()[]':;,".contains(&byte) {
                    break;
                }
                label.push(byte);
                self.at += 1;
            }
        }
        // Cut only at ASCII characters, so still UTF-8.
        Ok(String::from_utf8(label).unwrap_or_default())
    }
}

fn child(nodes: &mut Vec<Node>, parent: usize) -> usize {
    let node = nodes.len();
    nodes.push(Node {
        parent: Some(parent),
        ..Node::default()
    });
    nodes[parent].children.push(node);
    node
}

impl std::fmt::Display for Newick {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A node, and the number of its children that are written.
        let mut path = vec![(0, 0)];
        while let Some((node, done)) = path.pop() {
            let Node {
                children,
                label,
                length,
                ..
            } = &self.nodes[node];
            if let Some(&next) = children.get(done) {
                f.write_char(if done == 0 { '(' } else { ',' })?;
                path.push((node, done + 1));
                path.push((next, 0));
                continue;
            }
            if !children.is_empty() {
                f.write_char(')')?;
            }
            write_label(f, label)?;
            if let Some(length) = length {
                write!(f, ":{length}")?;
            }
        }
        f.write_char(';')
    }
}

/// Writes a label, in quotes if necessary.
///
/// # Errors
/// Those of the writer.
pub fn write_label(f: &mut dyn Write, label: &str) -> std::fmt::Result {
    let special = |c: char| c.is_whitespace() || "()[]':;,".contains(c);
    if label.contains(special) {
        write!(f, "'{}'", label.replace('\'', "''"))
    } else {
        f.write_str(label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_programs_write() {
        let text = " [a comment] ((a:0.1,'b c':1e-3)0.95[&x]:2,(c,d_e:3):0.5,'it''s')root:0 ; ";
        let tree = Newick::parse(text).unwrap();
        let labels: Vec<&str> = tree
            .tips()
            .map(|tip| tree.nodes()[tip].label.as_str())
            .collect();
        assert_eq!(labels, ["a", "b c", "c", "d_e", "it's"]);
        assert_eq!(tree.nodes()[1].label, "0.95");
        assert_eq!(tree.nodes()[1].length, Some(2.0));
        assert_eq!(
            tree.to_string(),
            "((a:0.1,'b c':0.001)0.95:2,(c,d_e:3):0.5,'it''s')root:0;"
        );
        assert_eq!(Newick::parse(&tree.to_string()).unwrap(), tree);
        assert_eq!(Newick::parse_all("(a,b);\n(c,d);\n").unwrap().len(), 2);
    }

    #[test]
    fn says_where_it_is_wrong() {
        for (text, at) in [
            ("", 1),
            ("(a,b)", 6),
            ("(a,b", 5),
            ("(a,b));", 6),
            ("(a,b:x);", 6),
            ("(a,b:inf);", 6),
            ("(a,b);c", 7),
            ("(a b);", 4),
            ("('a);", 2),
            ("[", 1),
        ] {
            assert_eq!(Newick::parse(text).unwrap_err().at, at, "{text}");
        }
    }

    #[test]
    fn branches_without_a_length_are_counted() {
        for (text, counts) in [
            ("(a:1,b:1,c:1);", [0, 3]),
            ("(a,b:1,(c,d:2));", [3, 5]),
            // The root's two branches are one.
            ("((a,b),(c,d));", [5, 5]),
            ("((a:1,b:1):1,(c:1,d:1));", [0, 5]),
            ("a;", [0, 0]),
        ] {
            let tree = Newick::parse(text).unwrap();
            assert_eq!(tree.branches_without_length(), counts, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded_by_memory_alone() {
        let deep = format!("{}a{};", "(".repeat(200_000), ")".repeat(200_000));
        let tree = Newick::parse(&deep).unwrap();
        assert_eq!(tree.to_string(), deep);
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused(text in "[(),:;a-c0-9.'\\[\\] e+-]{0,60}") {
            if let Ok(tree) = Newick::parse(&text) {
                prop_assert_eq!(Newick::parse(&tree.to_string()).unwrap(), tree);
            }
        }
    }
}
