//! A summary as text of at most 80 columns.

use crate::summary::Summary;
use std::fmt::Write;

impl Summary {
    /// Its tables, for a terminal of 80 columns. Names are cut, with `…`, where they are longer
    /// than their column.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = Text(String::new());
        text.line(format_args!(
            "{}: {} ms, {} events",
            short(&self.process, 30),
            number(self.recorded_ms),
            self.events
        ));
        if self.events_lost > 0 {
            text.line(format_args!(
                "{} older records were overwritten before the file was written",
                self.events_lost
            ));
        }
        text.head("engine or thread                    spans     busy ms     idle ms   busy");
        for track in &self.tracks {
            text.line(format_args!(
                "{:<30} {:>10} {:>11} {:>11} {:>5.1}%",
                short(&track.name, 30),
                track.spans,
                number(track.busy_ms),
                number(track.idle_ms),
                track.busy_share * 100.0
            ));
        }
        text.head("spans of one name                   count    total ms   median ms      max ms");
        for name in &self.names {
            text.line(format_args!(
                "{:<30} {:>10} {:>11} {:>11} {:>11}",
                short(&name.name, 30),
                name.count,
                number(name.total_ms),
                number(name.median_ms),
                number(name.max_ms)
            ));
        }
        text.head("from a request to its engine        count               median ms      max ms");
        for wait in &self.waits {
            text.line(format_args!(
                "{:<30} {:>10} {:>23} {:>11}",
                short(&wait.name, 30),
                wait.count,
                number(wait.median_ms),
                number(wait.max_ms)
            ));
        }
        text.head("longest spans            on                             at ms        ms");
        for span in &self.longest {
            let open = if span.open { " (open)" } else { "" };
            text.line(format_args!(
                "{:<24} {:<22} {:>13} {:>9}{open}",
                short(&span.name, 24),
                short(&span.track, 22),
                number(span.begin_ms),
                number(span.length_ms)
            ));
            if !span.arguments.is_empty() {
                text.line(format_args!("  {}", short(&span.arguments, 76)));
            }
        }
        text.0
    }
}

struct Text(String);

impl Text {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn head(&mut self, head: &str) {
        self.line(format_args!("\n{head}"));
    }
}

/// A text of at most `most` characters.
fn short(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Milliseconds, with digits for three places or more.
fn number(ms: f64) -> String {
    match ms {
        ms if ms >= 1000.0 => format!("{ms:.0}"),
        ms if ms >= 1.0 => format!("{ms:.2}"),
        ms => format!("{ms:.4}"),
    }
}
