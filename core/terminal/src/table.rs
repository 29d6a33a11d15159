//! Tables: aligned columns that fit a terminal, and Markdown for documents.

use crate::fold::cut;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, presets};
use sidecore_bare::text::printable;

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    head: String,
    is_right: bool,
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
            rank: 0,
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
        let cells = |row: &[String]| {
            let mut row = Row::from(shown.iter().map(|&at| row[at].clone()));
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
        let widths = self.widths();
        loop {
            let gaps = usize::from(GAP) * shown.len().saturating_sub(1);
            let width = shown.iter().map(|&at| widths[at]).sum::<usize>() + gaps;
            let ranked = shown.iter().enumerate();
            let least = ranked.max_by_key(|&(_, &at)| self.columns[at].rank);
            match least {
                Some((place, &at)) if width > columns && self.columns[at].rank > 0 => {
                    shown.remove(place);
                }
                _ => return shown,
            }
        }
    }

    /// Width of each column.
    fn widths(&self) -> Vec<usize> {
        let heads = self.columns.iter().map(|column| match self.is_headless {
            true => 0,
            false => textwrap::core::display_width(&column.head),
        });
        let mut widths: Vec<usize> = heads.collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(textwrap::core::display_width(cell));
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

/// Columns between two cells.
const GAP: u16 = 2;

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
                assert!(
                    textwrap::core::display_width(line) <= columns,
                    "{columns}: {line}"
                );
            }
        }
    }
}
