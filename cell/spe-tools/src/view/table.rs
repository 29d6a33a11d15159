//! The table that `sidecore spe run` prints: a line for each context.

use sidecore_terminal::{Column, Table, Text};
use spe2::trace::{Part, Trace};

/// A row for each context: its runs, waits, DMA and use of its store.
#[must_use]
pub fn table(trace: &Trace) -> Text {
    let mut text = Text::new();
    if trace.contexts.is_empty() {
        text.line("no context ran: is the program linked with libspe2?");
        return text;
    }
    let mut table = Table::new([
        Column::right("context"),
        Column::right("ran_ms"),
        Column::right("ready_ms").rank(1),
        Column::right("word_ms").rank(4),
        Column::right("taken_ms").rank(7),
        Column::right("signal_ms").rank(8),
        Column::right("event_ms").rank(9),
        Column::right("dma_ms").rank(2),
        Column::right("dma_commands").rank(6),
        Column::right("got_KiB").rank(3),
        Column::right("put_KiB").rank(3),
        Column::right("store_KiB").rank(5),
    ]);
    for (id, part) in &trace.contexts {
        let Part {
            ran_us,
            ready_us,
            waits_us,
            commands,
            got_bytes,
            put_bytes,
            store_bytes,
            ..
        } = part;
        let ms = |us: &u64| format!("{:.1}", *us as f64 / 1000.0);
        let store = store_bytes.iter().sum::<u64>().div_ceil(1024);
        let mut cells = vec![id.to_string(), ms(ran_us), ms(ready_us)];
        cells.extend(waits_us.iter().map(ms));
        let counts = [*commands, got_bytes / 1024, put_bytes / 1024, store];
        cells.extend(counts.map(|count| count.to_string()));
        table.row(cells);
    }
    text.table(table);
    if trace.full {
        let end = trace.end_us as f64 / 1e6;
        text.line(format!(
            "the trace was full after {end:.1} s: later times are missing"
        ));
    }
    text
}
