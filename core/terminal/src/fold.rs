//! Lines folded at words, or cut: for a terminal of any width.
//!
//! Pure. Source: own.

use sidecore_bare::text::printable;
use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Each line of a text folded at words; what continues a line is indented by two columns more
/// than it. A word that is longer than the line stays whole. Control characters are escaped.
#[must_use]
pub fn fold(text: &str, columns: Option<usize>) -> String {
    let folded = text.split('\n').map(|line| {
        let indent = line.len() - line.trim_start_matches(' ').len();
        hang(line, columns, indent + 2)
    });
    folded.collect::<Vec<_>>().join("\n")
}

/// A line of at most `columns`, cut with an ellipsis.
#[must_use]
pub fn cut(line: &str, columns: usize) -> String {
    if display_width(line) <= columns {
        return line.to_owned();
    }
    let mut out = String::new();
    for letter in line.chars() {
        out.push(letter);
        // One column is left for the ellipsis.
        if display_width(&out) >= columns {
            out.pop();
            break;
        }
    }
    out + "…"
}

pub(crate) fn hang(line: &str, columns: Option<usize>, indent: usize) -> String {
    // Tabs part columns that scripts read: they are no control characters here.
    let line: Vec<_> = line.split('\t').map(printable).collect();
    let line = line.join("\t");
    let Some(columns) = columns else {
        return line;
    };
    // A narrow terminal keeps half of its width for text, and room for its longest word.
    let longest = line.split(' ').map(display_width).max().unwrap_or(0);
    let most = columns.saturating_sub(longest).min(columns / 2);
    let text = line.trim_start_matches(' ');
    let (first, rest) = (line.len() - text.len(), indent);
    let [first, rest] = [first, rest].map(|indent| " ".repeat(indent.min(most)));
    let options = Options::new(columns)
        .initial_indent(&first)
        .subsequent_indent(&rest)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::fill(text, options)
}
