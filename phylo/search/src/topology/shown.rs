//! Verdicts as a table.

use super::Verdict;
use sidecore_terminal::{Column, Table, Text};

/// A row for each tree, in the file's order.
#[must_use]
pub fn text(verdicts: &[Verdict]) -> Text {
    let mut table = Table::new([
        Column::right("tree"),
        Column::right("log-likelihood"),
        Column::right("delta").rank(4),
        Column::right("bp-RELL").rank(3),
        Column::right("p-KH").rank(2),
        Column::right("p-SH").rank(1),
        Column::right("p-WKH").rank(6),
        Column::right("p-WSH").rank(6),
        Column::right("c-ELW").rank(5),
        Column::right("p-AU"),
    ]);
    for (at, verdict) in verdicts.iter().enumerate() {
        let mut cells = vec![(at + 1).to_string()];
        let figures = [
            verdict.lnl,
            verdict.delta,
            verdict.bp_rell,
            verdict.p_kh,
            verdict.p_sh,
            verdict.p_wkh,
            verdict.p_wsh,
            verdict.c_elw,
            verdict.p_au,
        ];
        cells.extend(figures.map(|figure| format!("{figure:.4}")));
        table.row(cells);
    }
    table.into()
}
