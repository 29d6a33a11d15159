//! An aligned Markdown table: for a terminal, and for `docs/results` as it is.
//!
//! Why here: every bench writes its figures in this form. Must stay true: a terminal's output can
//! be pasted into a document. Pure. Source: own.

/// Heads and rows of the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these heads; every row has as many cells as there are heads.
    #[must_use]
    pub fn new(heads: &[&str], rows: Vec<Vec<String>>) -> Self {
        let heads = heads.iter().map(ToString::to_string).collect();
        Self { heads, rows }
    }

    /// True if it has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Aligned Markdown: columns of numbers to the right, others to the left.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = || std::iter::once(&self.heads).chain(&self.rows);
        let width = |column: usize| {
            let widths = lines().map(|line| line[column].chars().count());
            // Three characters are the least for the line below the heads.
            widths.max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        // Numbers are compared by their last digits.
        let right = |column: usize| {
            let numeric = |row: &Vec<String>| {
                row[column].is_empty() || row[column].starts_with(|c: char| c.is_ascii_digit())
            };
            self.rows.iter().all(numeric)
        };
        let mut out = String::new();
        for (number, line) in lines().enumerate() {
            for (column, cell) in line.iter().enumerate() {
                let width = widths[column];
                if right(column) {
                    out.push_str(&format!("| {cell:>width$} "));
                } else {
                    out.push_str(&format!("| {cell:<width$} "));
                }
            }
            out.push_str("|\n");
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let end = if right(column) { ':' } else { '-' };
                    out.push_str(&format!("|{}{end}", "-".repeat(width + 1)));
                }
                out.push_str("|\n");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_numbers_stand_to_the_right() {
        let rows = vec![
            vec!["a".into(), "1".into()],
            vec!["long".into(), "22".into()],
        ];
        let text = Table::new(&["name", "ns"], rows).text();
        assert_eq!(
            text,
            "| name |  ns |\n|------|----:|\n| a    |   1 |\n| long |  22 |\n"
        );
    }
}
