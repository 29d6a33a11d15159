//! The view of a running program: the terminal's lowest lines, below what the program prints.
//!
//! Why lines and not a screen: the program's output stays where it would be. The terminal scrolls
//! only the lines above (DECSTBM), and the cursor is put back where the program had it.
//!
//! Must stay true: whatever happens, dropping it gives all lines back to the terminal.

use rustix::fd::AsFd;
use sidecore_terminal::{Column, Table, cut};
use spe2::trace::{Cause, Part, State, Trace};
use std::io::Write;

/// A part of a terminal.
#[derive(Debug)]
pub(super) struct Live<T: AsFd + Write> {
    terminal: T,
    rows: u16,
    columns: u16,
    /// Lines of the view, from the lowest up; 0 where the terminal has no room for them.
    taken: u16,
    before: Before,
}

/// Sums of the previous picture, for rates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    time_us: u64,
    bytes: u64,
    commands: u64,
}

/// Limit of the lines: a head and the contexts.
const LINES_MAX: u16 = 12;
/// Rows that a terminal needs for a view at all.
const ROWS_MIN: u16 = 8;

impl<T: AsFd + Write> Live<T> {
    /// Takes lines of a terminal; `None` where it is too small, or none.
    pub(super) fn open(terminal: T) -> Option<Self> {
        let mut live = Live {
            terminal,
            rows: 0,
            columns: 0,
            taken: 0,
            before: Before::default(),
        };
        live.take();
        (live.taken > 0).then_some(live)
    }

    /// Takes the lowest lines of the terminal as it is now.
    fn take(&mut self) {
        self.taken = 0;
        let Ok(size) = rustix::termios::tcgetwinsize(&self.terminal) else {
            return;
        };
        (self.rows, self.columns) = (size.ws_row, size.ws_col);
        if self.rows < ROWS_MIN {
            return;
        }
        self.taken = LINES_MAX.min(self.rows / 2);
        // Makes room below the cursor, goes back up, and keeps the rest from scrolling.
        let room = "\n".repeat(self.taken.into());
        let kept = self.rows - self.taken;
        let up = self.taken;
        self.write(&format!("{room}\x1b[{up}A\x1b7\x1b[1;{kept}r\x1b8"));
    }

    /// Draws the present state.
    pub(super) fn show(&mut self, trace: &Trace) {
        let size = rustix::termios::tcgetwinsize(&self.terminal);
        if size.is_ok_and(|size| (size.ws_row, size.ws_col) != (self.rows, self.columns)) {
            // The window was resized: the old positions are invalid.
            self.give_back();
            self.take();
        }
        if self.taken == 0 {
            return;
        }
        let room = (self.taken.into(), self.columns.into());
        let lines = lines(trace, &mut self.before, room);
        let first = self.rows - self.taken + 1;
        let mut text = "\x1b7".to_owned();
        for (row, line) in (first..=self.rows).zip(&lines) {
            text += &format!("\x1b[{row};1H\x1b[2K{line}");
        }
        text += "\x1b[J\x1b8";
        self.write(&text);
    }

    fn give_back(&mut self) {
        if self.taken > 0 {
            let first = self.rows - self.taken + 1;
            self.write(&format!("\x1b7\x1b[r\x1b[{first};1H\x1b[J\x1b8"));
        }
    }

    fn write(&mut self, text: &str) {
        // A closed terminal is not an error.
        self.terminal.write_all(text.as_bytes()).ok();
    }
}

impl<T: AsFd + Write> Drop for Live<T> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The view's lines, for so many lines and columns: a head with sums, then contexts, those that
/// still run first.
pub(super) fn lines(
    trace: &Trace,
    before: &mut Before,
    (most, columns): (usize, usize),
) -> Vec<String> {
    let sum = |of: fn(&Part) -> u64| trace.contexts.values().map(of).sum::<u64>();
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
    let head = format!(
        " contexts: {run} run, {ready} ready, {wait} wait, {stopped} stopped; DMA {:.0} MiB/s, \
         {:.0} commands/s, {} MiB in all ",
        rate(now.bytes, before.bytes) / f64::from(1 << 20),
        rate(now.commands, before.commands),
        now.bytes >> 20,
    );
    // The sequences take no column.
    let mut lines = vec![format!("\x1b[7m{}\x1b[0m", cut(&head, columns))];
    *before = now;
    // Without the two heads.
    let places = most.saturating_sub(2);
    let mut order: Vec<_> = trace.contexts.iter().collect();
    order.sort_by_key(|(id, part)| (part.state() == State::Stopped, **id));
    let shown = if order.len() > places {
        places.saturating_sub(1)
    } else {
        places
    };
    let mut table = Table::new([
        Column::right("CONTEXT"),
        Column::left("STATE"),
        Column::right("RAN%"),
        Column::right("READY%").rank(1),
        Column::left("STORE KiB program heap stack").rank(4),
        Column::right("GOT MiB").rank(2),
        Column::right("PUT MiB").rank(3),
    ]);
    for (id, part) in order.iter().take(shown) {
        let begun = part.states.first().map_or(0, |(time, _)| *time);
        let lived = trace.end_us.saturating_sub(begun).max(1) as f64;
        let [program, heap, stack] = part.store_bytes.map(|bytes| bytes.div_ceil(1024));
        let share = |us: u64| format!("{:.1}", us as f64 * 100.0 / lived);
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        table.row([
            id.to_string(),
            said(part.state()),
            share(part.ran_us),
            share(part.ready_us),
            format!("{program:>10} {heap:>7} {stack:>7}"),
            mib(part.got_bytes),
            mib(part.put_bytes),
        ]);
    }
    lines.extend(table.text(Some(columns)).lines().map(str::to_owned));
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
