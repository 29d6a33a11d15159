//! Tables: aligned columns that fit a terminal, and Markdown for documents; lines that are folded
//! at words, or cut.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, presets};
use sidecore_bare::text::printable;
use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    head: String,
    is_right: bool,
    /// Its cells lose their beginnings where there is no room, not their ends.
    is_tail: bool,
    /// 0: always there. Of the others the highest goes first where there is no room.
    rank: u8,
}

impl Column {
    /// A column of text.
    #[must_use]
    pub fn left(head: impl Into<String>) -> Self {
        Self {
            head: head.into(),
            is_right: false,
            is_tail: false,
            rank: 0,
        }
    }

    /// A column of paths and addresses, whose ends say most: without room a cell keeps its end.
    #[must_use]
    pub fn tail(head: impl Into<String>) -> Self {
        Self {
            is_tail: true,
            ..Self::left(head)
        }
    }

    /// A column of numbers, which are compared by their last digits.
    #[must_use]
    pub fn right(head: impl Into<String>) -> Self {
        Self {
            is_right: true,
            ..Self::left(head)
        }
    }

    /// The same column; where there is no room, columns of a higher rank are left out first, and
    /// of one rank the last ones.
    #[must_use]
    pub fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// Columns, and rows with a cell for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    is_headless: bool,
}

impl Table {
    /// A table of these columns without rows.
    #[must_use]
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self {
            columns: columns.into_iter().collect(),
            ..Self::default()
        }
    }

    /// A table of these columns that prints no heads on a terminal.
    #[must_use]
    pub fn headless(columns: impl IntoIterator<Item = Column>) -> Self {
        Self {
            is_headless: true,
            ..Self::new(columns)
        }
    }

    /// A table of whole rows. Columns of numbers stand to the right; where there is no room the
    /// last columns are left out first.
    #[must_use]
    pub fn of(heads: &[&str], rows: Vec<Vec<String>>) -> Self {
        let is_number = |cell: &String| {
            cell.is_empty() || cell.starts_with(|letter: char| letter.is_ascii_digit())
        };
        let columns = heads.iter().enumerate().map(|(at, head)| {
            let is_right = rows.iter().all(|row| row.get(at).is_none_or(is_number));
            let column = match is_right {
                true => Column::right(*head),
                false => Column::left(*head),
            };
            column.rank(u8::try_from(at).unwrap_or(u8::MAX))
        });
        let mut table = Self::new(columns);
        rows.into_iter().for_each(|row| table.row(row));
        table
    }

    /// Adds a row. Control characters in it are escaped.
    pub fn row<C: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells = cells.into_iter();
        let mut cells: Vec<_> = cells
            .map(|cell| printable(cell.as_ref()).into_owned())
            .collect();
        // A row may lack its last cells.
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// True if it has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Lines of the whole table.
    #[must_use]
    pub fn height(&self) -> usize {
        self.rows.len() + usize::from(!self.is_headless)
    }

    /// Aligned lines, which fit `columns` where these are given: columns are left out by their
    /// rank, and what is still too long is cut with an ellipsis.
    #[must_use]
    pub fn text(&self, columns: Option<usize>) -> String {
        let shown = self.shown(columns);
        let mut table = comfy_table::Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_truncation_indicator("…");
        match columns {
            Some(columns) => {
                let width = u16::try_from(columns).unwrap_or(u16::MAX);
                table
                    .set_content_arrangement(ContentArrangement::Dynamic)
                    .set_width(width);
            }
            None => {
                table.set_content_arrangement(ContentArrangement::Disabled);
            }
        }
        let rooms = columns.map(|columns| self.rooms(&shown, columns));
        let cell = |row: &[String], at: usize| match rooms.as_ref().and_then(|it| it[at]) {
            Some(room) => end_of(&row[at], room),
            None => row[at].clone(),
        };
        let cells = |row: &[String]| {
            let mut row = Row::from(shown.iter().map(|&at| cell(row, at)));
            row.max_height(1);
            row
        };
        if !self.is_headless {
            let heads: Vec<_> = self.columns.iter().map(|it| it.head.clone()).collect();
            table.set_header(cells(&heads));
        }
        for row in &self.rows {
            table.add_row(cells(row));
        }
        let last = shown.len().saturating_sub(1);
        for (place, &at) in shown.iter().enumerate() {
            if let Some(column) = table.column_mut(place) {
                let gap = if place == last { 0 } else { GAP };
                column.set_padding((0, gap));
                if self.columns[at].is_right {
                    column.set_cell_alignment(CellAlignment::Right);
                    // A number that is cut is another number.
                    column.set_constraint(ColumnConstraint::ContentWidth);
                }
            }
        }
        let lines = table.lines();
        let lines = lines.map(|line| {
            let line = line.trim_end();
            // Columns of numbers alone may be wider than the terminal.
            columns.map_or_else(|| line.to_owned(), |columns| cut(line, columns)) + "\n"
        });
        lines.collect()
    }

    /// Heads of the columns that have no room.
    #[must_use]
    pub fn left_out(&self, columns: Option<usize>) -> Vec<&str> {
        let shown = self.shown(columns);
        let all = self.columns.iter().enumerate();
        all.filter(|(at, _)| !shown.contains(at))
            .map(|(_, column)| column.head.as_str())
            .collect()
    }

    /// Indices of the columns that are shown.
    fn shown(&self, columns: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let Some(columns) = columns else {
            return shown;
        };
        let mut widths = self.widths();
        for (width, column) in widths.iter_mut().zip(&self.columns) {
            if column.is_tail {
                *width = (*width).min(TAIL_COLUMNS_MIN);
            }
        }
        loop {
            let gaps = usize::from(GAP) * shown.len().saturating_sub(1);
            let width = shown.iter().map(|&at| widths[at]).sum::<usize>() + gaps;
            let ranked = shown.iter().enumerate();
            // Of equal ranks the last column, which `max_by_key` gives.
            let least = ranked.max_by_key(|&(_, &at)| self.columns[at].rank);
            match least {
                Some((place, &at)) if width > columns && self.columns[at].rank > 0 => {
                    shown.remove(place);
                }
                _ => return shown,
            }
        }
    }

    /// Width of each column that keeps the ends of its cells: they share the rest of the line, the
    /// narrow ones first.
    fn rooms(&self, shown: &[usize], columns: usize) -> Vec<Option<usize>> {
        let widths = self.widths();
        let (mut tails, others): (Vec<usize>, Vec<usize>) =
            shown.iter().partition(|&&at| self.columns[at].is_tail);
        let gaps = usize::from(GAP) * shown.len().saturating_sub(1);
        let taken = others.iter().map(|&at| widths[at]).sum::<usize>() + gaps;
        let mut left = columns.saturating_sub(taken);
        // The narrowest first: what they leave goes to the others.
        tails.sort_by_key(|&at| widths[at]);
        let mut rooms = vec![None; self.columns.len()];
        for (place, &at) in tails.iter().enumerate() {
            let room = widths[at].min(left / (tails.len() - place));
            left -= room;
            rooms[at] = Some(room);
        }
        rooms
    }

    /// Width of each column.
    fn widths(&self) -> Vec<usize> {
        let heads = self.columns.iter().map(|column| match self.is_headless {
            true => 0,
            false => display_width(&column.head),
        });
        let mut widths: Vec<usize> = heads.collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(display_width(cell));
            }
        }
        widths
    }

    /// Aligned Markdown, for documents: the whole table.
    #[must_use]
    pub fn markdown(&self) -> String {
        // Three characters are the least for the line below the heads.
        let widths: Vec<usize> = self.widths().iter().map(|width| (*width).max(3)).collect();
        let heads: Vec<String> = self.columns.iter().map(|it| it.head.clone()).collect();
        let mut out = String::new();
        for (number, line) in std::iter::once(&heads).chain(&self.rows).enumerate() {
            for ((column, cell), width) in self.columns.iter().zip(line).zip(&widths) {
                out += &match column.is_right {
                    true => format!("| {cell:>width$} "),
                    false => format!("| {cell:<width$} "),
                };
            }
            out += "|\n";
            if number == 0 {
                for (column, width) in self.columns.iter().zip(&widths) {
                    let end = if column.is_right { ':' } else { '-' };
                    out += &format!("|{}{end}", "-".repeat(width + 1));
                }
                out += "|\n";
            }
        }
        out
    }
}

/// The end of a text, of at most `columns`, with an ellipsis before it where it was cut.
fn end_of(text: &str, columns: usize) -> String {
    let mut end = String::new();
    if display_width(text) <= columns {
        return text.to_owned();
    }
    for letter in text.chars().rev() {
        end.insert(0, letter);
        // One column is left for the ellipsis.
        if display_width(&end) >= columns {
            end.remove(0);
            break;
        }
    }
    format!("…{end}")
}

/// Columns between two cells.
const GAP: u16 = 2;
/// Columns that are left to a path before other columns are left out for it.
const TAIL_COLUMNS_MIN: usize = 12;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let columns = [
            Column::left("name"),
            Column::right("ns").rank(1),
            Column::right("calls").rank(2),
        ];
        let mut table = Table::new(columns);
        table.row(["a", "1", "12345"]);
        table.row(["a long name", "22", "6"]);
        table
    }

    #[test]
    fn columns_go_by_their_rank_and_text_is_cut_last() {
        let table = sample();
        let whole = "name         ns  calls\na             1  12345\na long name  22      6\n";
        assert_eq!(table.text(None), whole);
        assert_eq!(table.text(Some(22)), whole);
        assert_eq!(
            table.text(Some(21)),
            "name         ns\na             1\na long name  22\n"
        );
        assert_eq!(table.left_out(Some(21)), ["calls"]);
        assert_eq!(table.text(Some(14)), "name\na\na long name\n");
        assert_eq!(table.text(Some(6)), "name\na\na lon…\n");
    }

    #[test]
    fn paths_share_the_room_and_keep_their_ends() {
        let columns = [
            Column::left("way"),
            Column::right("hits").rank(1),
            Column::tail("image"),
            Column::tail("where"),
        ];
        let mut table = Table::new(columns);
        table.row(["mount", "75 %", "/srv/images/2026/disk.img", "/mnt/disk"]);
        table.row(["serve", "3 %", "/a", "unix:/run/a"]);
        let wide = table.text(Some(80));
        assert_eq!(wide, table.text(None));
        let narrow = table.text(Some(40));
        assert_eq!(
            narrow,
            "way    hits  image           where\n\
             mount  75 %  …2026/disk.img  /mnt/disk\n\
             serve   3 %  /a              unix:/run/a\n"
        );
        assert_eq!(table.left_out(Some(30)), ["hits"]);
        for columns in 4..60 {
            for line in table.text(Some(columns)).lines() {
                assert!(display_width(line) <= columns, "{columns}: {line}");
            }
        }
    }

    #[test]
    fn markdown_is_aligned_and_numbers_stand_to_the_right() {
        let rows = vec![
            vec!["a".into(), "1".into()],
            vec!["long".into(), "22".into()],
        ];
        assert_eq!(
            Table::of(&["name", "ns"], rows).markdown(),
            "| name |  ns |\n|------|----:|\n| a    |   1 |\n| long |  22 |\n"
        );
    }

    #[test]
    fn control_characters_are_escaped_before_they_are_measured() {
        let mut table = Table::new([Column::left("a"), Column::left("b")]);
        table.row(["\x1b[1m", "x"]);
        assert_eq!(table.text(None), "a        b\n\\x1b[1m  x\n");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        for columns in 4..40 {
            let text = sample().text(Some(columns));
            for line in text.lines() {
                assert!(display_width(line) <= columns, "{columns}: {line}");
            }
        }
    }
}
