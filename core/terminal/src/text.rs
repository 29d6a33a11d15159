//! Lines and tables in their order, rendered for a width.

use crate::Table;
use crate::table::{fold, hang};
use std::fmt::Write as _;
use textwrap::core::display_width;

/// Lines and tables, in the order in which they are printed.
#[derive(Debug, Clone, Default)]
pub struct Text {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    /// A line, and the columns by which its continuation is indented.
    Line(String, usize),
    /// A name and what is said of it; names that follow one another are of one width.
    Fact(String, String),
    Table(Table),
}

impl Text {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line, whose continuation is indented by two columns more than the line itself.
    pub fn line(&mut self, line: impl Into<String>) {
        let line = line.into();
        let indent = line.len() - line.trim_start_matches(' ').len();
        self.parts.push(Part::Line(line, indent + 2));
    }

    /// Adds lines.
    pub fn lines(&mut self, lines: impl IntoIterator<Item = String>) {
        lines.into_iter().for_each(|line| self.line(line));
    }

    /// Adds a line whose continuation stands under its text, behind the name of `indent` columns.
    pub fn hanging(&mut self, line: impl Into<String>, indent: usize) {
        self.parts.push(Part::Line(line.into(), indent));
    }

    /// Adds a name and what is said of it. The facts that follow one another are aligned.
    pub fn fact(&mut self, name: impl Into<String>, said: impl Into<String>) {
        self.parts.push(Part::Fact(name.into(), said.into()));
    }

    /// Facts alone ([`Text::fact`]).
    pub fn of_facts<N: Into<String>>(facts: impl IntoIterator<Item = (N, String)>) -> Self {
        let mut text = Self::new();
        for (name, said) in facts {
            text.fact(name, said);
        }
        text
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.parts.push(Part::Table(table));
    }

    /// The text for a terminal of `columns`, or, without them, for a file. Each line ends in a
    /// newline.
    #[must_use]
    pub fn render(&self, columns: Option<usize>) -> String {
        let mut out = String::new();
        for (at, part) in self.parts.iter().enumerate() {
            match part {
                Part::Fact(name, said) => {
                    let width = self.facts_width(at);
                    let line = format!("{name:width$}  {said}");
                    out += &hang(&line, columns, width + 2);
                    out.push('\n');
                }
                Part::Line(line, indent) => {
                    out += &hang(line, columns, *indent);
                    out.push('\n');
                }
                Part::Table(table) => {
                    out += &table.text(columns);
                    let left_out = table.left_out(columns);
                    if !left_out.is_empty() {
                        let said = format!("({} more: {})", left_out.len(), left_out.join(", "));
                        // Writing to a String does not fail.
                        let _ = writeln!(out, "{}", fold(&said, columns));
                    }
                }
            }
        }
        out
    }
}

impl From<String> for Text {
    fn from(line: String) -> Self {
        let mut text = Self::new();
        text.line(line);
        text
    }
}

impl From<Table> for Text {
    fn from(table: Table) -> Self {
        Self {
            parts: vec![Part::Table(table)],
        }
    }
}

impl Text {
    /// Width of the names among which the fact at `at` stands.
    fn facts_width(&self, at: usize) -> usize {
        let width = |part: &Part| match part {
            Part::Fact(name, _) => Some(display_width(name)),
            _ => None,
        };
        let before = self.parts[..at].iter().rev().map_while(width);
        let from = self.parts[at..].iter().map_while(width);
        before.chain(from).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_folded_at_words_and_whole_without_a_width() {
        let long = "sidecore: cannot read a file of which the name is long";
        assert_eq!(fold(long, None), long);
        let folded = fold(long, Some(20));
        assert!(folded.lines().all(|line| line.chars().count() <= 20));
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&folded), words(long));
        assert!(folded.lines().skip(1).all(|line| line.starts_with("  ")));
        // A path must stay whole.
        let path = "/a/path/that/is/longer/than/the/line";
        assert_eq!(fold(path, Some(20)), path);
        let deep = "          to have it: echo madvise > /sys/kernel/mm/enabled";
        let folded = fold(deep, Some(30));
        assert!(folded.lines().all(|line| line.len() <= 30), "{folded}");
        assert_eq!(fold("    a b c d e f", Some(12)), "    a b c d\n      e f");
    }

    #[test]
    fn facts_are_aligned_and_continue_under_themselves() {
        let mut text = Text::new();
        text.fact("a", "one two three");
        text.fact("long", "four");
        text.line("end");
        assert_eq!(text.render(None), "a     one two three\nlong  four\nend\n");
        let narrow = "a     one two\n      three\nlong  four\nend\n";
        assert_eq!(text.render(Some(14)), narrow);
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped_before_it_is_measured() {
        assert_eq!(fold("\x1b[2J abc", Some(10)), "\\x1b[2J\n  abc");
    }

    #[test]
    fn facts_alone_are_aligned() {
        let facts = [("a", "1".to_owned()), ("bcd", "2".to_owned())];
        assert_eq!(Text::of_facts(facts).render(None), "a    1\nbcd  2\n");
    }
}
