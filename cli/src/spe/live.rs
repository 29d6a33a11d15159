//! The view of a running program: the terminal's lowest lines, below what the program prints.
//!
//! Why lines and not a screen: the program's output stays where it would be. The terminal scrolls
//! only the lines above (DECSTBM), and the cursor is put back where the program had it.
//!
//! Must stay true: whatever happens, dropping it gives all lines back to the terminal.

use super::trace::{Cause, State, Trace};
use std::io::Write;

/// A part of the terminal.
pub(crate) struct Live {
    rows: u16,
    columns: u16,
    /// Lines of the view.
    taken: u16,
    before: Before,
}

/// Sums of the previous picture, for rates.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    time_us: u64,
    bytes: u64,
    commands: u64,
}

/// Limit of the lines: a head and the contexts.
const LINES_MAX: u16 = 12;
/// Rows that a terminal needs for a view at all.
const ROWS_MIN: u16 = 8;

impl Live {
    /// Takes lines of the terminal that the standard error is; `None` where it is too small.
    pub(crate) fn open() -> Option<Live> {
        let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok()?;
        let (rows, columns) = (size.ws_row, size.ws_col);
        if rows < ROWS_MIN {
            return None;
        }
        let taken = LINES_MAX.min(rows / 2);
        let live = Live {
            rows,
            columns,
            taken,
            before: Before::default(),
        };
        // Makes room below the cursor, goes back up, and keeps the rest from scrolling.
        let room = "\n".repeat(taken.into());
        let kept = rows - taken;
        live.write(&format!("{room}\x1b[{taken}A\x1b7\x1b[1;{kept}r\x1b8"));
        Some(live)
    }

    /// Draws the present state.
    pub(crate) fn show(&mut self, trace: &Trace) {
        let size = rustix::termios::tcgetwinsize(std::io::stderr());
        if size.is_ok_and(|size| (size.ws_row, size.ws_col) != (self.rows, self.columns)) {
            // The window was resized: the old positions are invalid.
            self.close();
            match Live::open() {
                Some(other) => {
                    (self.rows, self.columns, self.taken) =
                        (other.rows, other.columns, other.taken);
                    std::mem::forget(other);
                }
                None => self.taken = 0,
            }
        }
        if self.taken == 0 {
            return;
        }
        let lines = lines(trace, &mut self.before, self.taken.into());
        let mut text = "\x1b7".to_owned();
        for (index, line) in lines.iter().enumerate() {
            let row = self.rows - self.taken + 1 + index as u16;
            let line: String = line.chars().take(self.columns.into()).collect();
            text += &format!("\x1b[{row};1H\x1b[2K{line}");
        }
        text += "\x1b[J\x1b8";
        self.write(&text);
    }

    fn close(&self) {
        if self.taken == 0 {
            return;
        }
        let first = self.rows - self.taken + 1;
        self.write(&format!("\x1b7\x1b[r\x1b[{first};1H\x1b[J\x1b8"));
    }

    fn write(&self, text: &str) {
        // A closed terminal is not an error.
        std::io::stderr().write_all(text.as_bytes()).ok();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.close();
    }
}

/// The view's lines: a head with sums, then contexts, those that still run first.
fn lines(trace: &Trace, before: &mut Before, most: usize) -> Vec<String> {
    let sum = |of: fn(&super::trace::Part) -> u64| trace.contexts.values().map(of).sum::<u64>();
    let now = Before {
        time_us: trace.end_us,
        bytes: sum(|part| part.got_bytes + part.put_bytes),
        commands: sum(|part| part.commands),
    };
    let seconds = now.time_us.saturating_sub(before.time_us) as f64 / 1e6;
    let rate = |new: u64, old: u64| match seconds > 0.0 {
        true => new.saturating_sub(old) as f64 / seconds,
        false => 0.0,
    };
    let mut counts = [0_usize; 4];
    for part in trace.contexts.values() {
        counts[match part.state() {
            State::Runs(_) => 0,
            State::Ready => 1,
            State::Waits(_) => 2,
            State::Stopped => 3,
        }] += 1;
    }
    let [run, ready, wait, stopped] = counts;
    let mut lines = vec![
        format!(
            "\x1b[7m contexts: {run} run, {ready} ready, {wait} wait, {stopped} stopped; \
             DMA {:.0} MiB/s, {:.0} commands/s, {} MiB in all \x1b[0m",
            rate(now.bytes, before.bytes) / f64::from(1 << 20),
            rate(now.commands, before.commands),
            now.bytes >> 20,
        ),
        format!(
            "{:>7} {:<22} {:>6} {:>6}  {:<26} {:>9} {:>9}",
            "CONTEXT",
            "STATE",
            "RAN%",
            "READY%",
            "STORE KiB program heap stack",
            "GOT MiB",
            "PUT MiB"
        ),
    ];
    *before = now;
    let places = most.saturating_sub(lines.len());
    let mut order: Vec<_> = trace.contexts.iter().collect();
    order.sort_by_key(|(id, part)| (part.state() == State::Stopped, **id));
    let shown = if order.len() > places {
        places.saturating_sub(1)
    } else {
        places
    };
    for (id, part) in order.iter().take(shown) {
        let begun = part.states.first().map_or(0, |(time, _)| *time);
        let lived = trace.end_us.saturating_sub(begun).max(1) as f64;
        let [program, heap, stack] = part.store_bytes.map(|bytes| bytes.div_ceil(1024));
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        lines.push(format!(
            "{id:>7} {:<22} {:>6.1} {:>6.1}  {program:>10} {heap:>7} {stack:>7}   {:>9.1} {:>9.1}",
            said(part.state()),
            part.ran_us as f64 * 100.0 / lived,
            part.ready_us as f64 * 100.0 / lived,
            mib(part.got_bytes),
            mib(part.put_bytes),
        ));
    }
    if order.len() > shown {
        lines.push(format!("        and {} more", order.len() - shown));
    }
    lines
}

fn said(state: State) -> String {
    match state {
        State::Runs(engine) => return format!("runs on engine {engine}"),
        State::Ready => "ready, no engine free",
        State::Waits(Cause::InMailbox) => "waits for a word",
        State::Waits(Cause::OutMailbox) => "waits: outbound full",
        State::Waits(Cause::Signal) => "waits for a signal",
        State::Waits(Cause::Event) => "waits for an event",
        State::Waits(Cause::Dma) => "waits for DMA",
        State::Stopped => "stopped",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_says_who_does_what() {
        let mut trace = Trace::default();
        trace.feed("0\t0\tready\n0\t0\trun\t1\n0\t1\tready\n5\t1\trun\t0\n10\t1\twait\t2\t28\n");
        trace.feed("1000000\t0\tat\t8\t3145728\t1048576\t2048\t1024\t300\n");
        let mut before = Before::default();
        let shown = lines(&trace, &mut before, 12);
        assert!(shown[0].contains("1 run, 0 ready, 1 wait, 0 stopped; DMA 4 MiB/s, 8 commands/s"));
        assert!(shown[2].contains("runs on engine 1"), "{shown:?}");
        assert!(shown[3].contains("waits: outbound full"), "{shown:?}");
        assert_eq!(shown.len(), 4);
        // No event came since.
        assert!(lines(&trace, &mut before, 12)[0].contains("DMA 0 MiB/s, 0 commands/s, 4 MiB"));
        for context in 2..40 {
            trace.feed(&format!(
                "1000000\t{context}\trun\t0\n1000000\t{context}\tstop\n"
            ));
        }
        let shown = lines(&trace, &mut before, 6);
        assert_eq!(shown.len(), 6);
        assert!(shown[5].contains("and 37 more"), "{shown:?}");
    }
}
