//! The table that `sidecore spe run` prints: a line for each context.

use spe2::trace::{Part, Trace};
use std::fmt::Write as _;

/// A row for each context: its runs, waits, DMA and use of its store.
#[must_use]
pub fn table(trace: &Trace) -> String {
    let mut text = String::new();
    if trace.contexts.is_empty() {
        return "no context ran: is the program linked with libspe2?\n".to_owned();
    }
    text += "context  ran_ms  ready_ms  word_ms  taken_ms  signal_ms  event_ms  dma_ms";
    text += "  dma_commands  got_KiB  put_KiB  store_KiB\n";
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
        let ms = |us: u64| us as f64 / 1000.0;
        let [word, taken, signal, event, dma] = waits_us.map(ms);
        let store = store_bytes.iter().sum::<u64>().div_ceil(1024);
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{id:>7}  {:>6.1}  {:>8.1}  {word:>7.1}  {taken:>8.1}  {signal:>9.1}  {event:>8.1}  \
             {dma:>6.1}  {commands:>12}  {:>7}  {:>7}  {store:>9}",
            ms(*ran_us),
            ms(*ready_us),
            got_bytes / 1024,
            put_bytes / 1024,
        );
    }
    if trace.full {
        let end = trace.end_us as f64 / 1e6;
        let _ = writeln!(
            text,
            "the trace was full after {end:.1} s: later times are missing"
        );
    }
    text
}
