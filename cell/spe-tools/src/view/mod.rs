//! Views of the trace that libspe2 writes of a host program's contexts: a table, a terminal's
//! screen while the program runs, and a timeline.
//!
//! - [`Traced`]: a program that runs with a trace, and the trace as far as it was read.
//! - `live`: the lowest lines of a terminal.
//! - [`table()`], [`timeline()`]: text and SVG, when it has ended.
//!
//! Must stay true: the program's standard streams are its own. The trace is read while it grows, so
//! that a program which is killed leaves all that it wrote.

use crate::{Error, Kit};
use rustix::process::{Pid, Signal, kill_process};
use sidecore_terminal::{Column, Table, Text};
use spe2::trace::{Part, Trace};
use std::fs::File;
use std::io::{IsTerminal as _, Read, stderr};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use live::Live;
pub use timeline::timeline;

mod live;
mod timeline;

// The table that `sidecore spe run` prints: a line for each context.

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

/// A running program and its trace.
#[derive(Debug)]
pub struct Traced {
    child: Child,
    file: File,
    trace: Trace,
}

impl Traced {
    /// Starts a program with our libspe2, and with a trace in a new file at `place`; `engines` of
    /// them run its contexts, or as many as the library finds right.
    ///
    /// # Errors
    /// The trace cannot be made, or the program not be started.
    pub fn start(
        kit: &Kit,
        mut command: Command,
        place: &Path,
        engines: Option<u16>,
    ) -> Result<Self, Error> {
        let file = File::create_new(place).and_then(|_| File::open(place));
        let file = file.map_err(Error::file("make the trace", place))?;
        command.env("SIDECORE_SPE_TRACE", place);
        if let Some(libraries) = kit.programs().parent().map(|root| root.join("lib")) {
            let mut path = libraries.into_os_string();
            if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
                path.push(":");
                path.push(before);
            }
            command.env("LD_LIBRARY_PATH", path);
        }
        if let Some(engines) = engines {
            command.env("SIDECORE_SPE_ENGINES", engines.to_string());
        }
        let child = command.spawn().map_err(|source| Error::Start {
            tool: command.get_program().display().to_string(),
            source,
        })?;
        Ok(Self {
            child,
            file,
            trace: Trace::default(),
        })
    }

    /// Waits for the program's end, and passes on that this process is to `end`. Meanwhile the
    /// lowest lines of standard error show the contexts, where it is a terminal and they are
    /// wanted; they are given back at the end. Returns the status and the whole trace.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn watched(
        self,
        end: &AtomicBool,
        is_wanted: bool,
    ) -> std::io::Result<(ExitStatus, Trace)> {
        let is_shown = is_wanted && stderr().is_terminal();
        let mut live = is_shown.then(|| Live::open(stderr())).flatten();
        self.wait(end, |trace| {
            if let Some(live) = &mut live {
                live.show(trace);
            }
        })
    }

    /// Waits for the program's end, passes on that this process is to `end`, and has the trace
    /// looked at now and then. Returns the status and the whole trace.
    fn wait(
        mut self,
        end: &AtomicBool,
        mut look: impl FnMut(&Trace),
    ) -> std::io::Result<(ExitStatus, Trace)> {
        let mut looked = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            // A terminal sends its signals to the program, too; a second one does no harm.
            if end.swap(false, Ordering::Relaxed) {
                // A failure means that the program has ended, which the next poll finds.
                kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
            }
            std::thread::sleep(POLL);
            if looked.elapsed() >= REFRESH {
                looked = Instant::now();
                self.read();
                look(&self.trace);
            }
        };
        self.read();
        Ok((status, self.trace))
    }

    /// Takes what was appended since the last call.
    fn read(&mut self) {
        let mut bytes = Vec::new();
        // Unreadable lines are missing in the table, like unwritten ones.
        self.file.read_to_end(&mut bytes).ok();
        self.trace.feed(&String::from_utf8_lossy(&bytes));
    }
}

/// Time between two looks whether the program has ended.
const POLL: Duration = Duration::from_millis(10);
/// Time between two looks at the trace.
const REFRESH: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    //! Table, lines and timeline of traces as libspe2 writes them.

    use super::live::{Before, lines};
    use super::timeline::{LEFT, PALE, ROW, TOP};
    use super::{table, timeline};
    use plotters::style::RGBColor;
    use sidecore_plot::COLOURS;
    use spe2::trace::Trace;

    /// Left end, width and top of the bars of a colour below the legend.
    fn bars(svg: &str, colour: RGBColor) -> Vec<(i32, i32, i32)> {
        let hex = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
        let bars = svg.split("<rect").filter(|rect| rect.contains(&hex));
        let number = |rect: &str, name: &str| {
            let text = rect.split_once(&format!("{name}=\"")).unwrap().1;
            text.split('"').next().unwrap().parse::<i32>().unwrap()
        };
        bars.map(|rect| {
            (
                number(rect, " x").max(0),
                number(rect, "width"),
                number(rect, " y"),
            )
        })
        .filter(|(_, _, top)| *top >= TOP)
        .collect()
    }

    #[test]
    fn spans_are_where_their_times_are() {
        let mut trace = Trace::default();
        // One context: ready, on engine 0, waits for a word, on engine 1, spins for a signal there,
        // waits for DMA, and stops at the end.
        trace.feed(
            "0\t3\tready\n100\t3\trun\t0\n300\t3\twait\t1\t29\n500\t3\tready\n500\t3\trun\t1\n\
         700\t3\tspun\t1\t3\t100\n800\t3\twait\t1\t24\n1000\t3\tstop\n1090\t4\tready\n",
        );
        let svg = timeline(&trace).unwrap();
        // 1,090 microseconds on as many pixels.
        let below = TOP + 2 * ROW + 14;
        let row = |spans: &[(i32, i32)]| {
            let places = spans
                .iter()
                .map(|(from, to)| (LEFT + from, to - from, below));
            places.collect::<Vec<_>>()
        };
        assert_eq!(bars(&svg, PALE)[..1], row(&[(0, 100)]));
        assert_eq!(bars(&svg, COLOURS[1]), row(&[(300, 500)]));
        assert_eq!(bars(&svg, COLOURS[2]), row(&[(600, 700)]));
        assert_eq!(bars(&svg, COLOURS[4]), row(&[(800, 1000)]));
        // The first context's colour in the engines' rows is that of running, too.
        let mut runs = vec![(LEFT + 100, 200, TOP)];
        runs.extend([(500, 600), (700, 800)].map(|(from, to)| (LEFT + from, to - from, TOP + ROW)));
        runs.extend(row(&[(100, 300), (500, 600), (700, 800)]));
        assert_eq!(bars(&svg, COLOURS[0]), runs);
        for label in ["engine 0", "engine 1", "context 3", "context 4", "1000 µs"] {
            assert!(svg.contains(label), "{label}");
        }
    }

    #[test]
    fn any_trace_can_be_drawn() {
        let mut trace = Trace::default();
        assert!(timeline(&trace).unwrap().contains("0 contexts"));
        for context in 0..100 {
            for time in 0..1000 {
                trace.feed(&format!("{time}\t{context}\trun\t{}\n", context * 3));
            }
        }
        trace.feed("18446744073709551615\t1\tfull\n");
        let svg = timeline(&trace).unwrap();
        assert!(svg.contains("36 more contexts") && svg.contains("the trace was full"));
        assert!(svg.len() < 200_000, "{}", svg.len());
    }

    #[test]
    fn the_view_says_what_each_context_does() {
        let mut trace = Trace::default();
        trace.feed("0\t0\tready\n0\t0\trun\t1\n0\t1\tready\n5\t1\trun\t0\n10\t1\twait\t2\t28\n");
        trace.feed("1000000\t0\tat\t8\t3145728\t1048576\t2048\t1024\t300\n");
        let mut before = Before::default();
        let shown = lines(&trace, &mut before, (12, 200));
        assert!(shown[0].contains("1 run, 0 ready, 1 wait, 0 stopped; DMA 4 MiB/s, 8 commands/s"));
        assert!(shown[2].contains("runs on engine 1"), "{shown:?}");
        assert!(shown[3].contains("waits: outbound full"), "{shown:?}");
        assert_eq!(shown.len(), 4);
        // No event came since.
        assert!(
            lines(&trace, &mut before, (12, 200))[0].contains("DMA 0 MiB/s, 0 commands/s, 4 MiB")
        );
        for context in 2..40 {
            trace.feed(&format!(
                "1000000\t{context}\trun\t0\n1000000\t{context}\tstop\n"
            ));
        }
        let shown = lines(&trace, &mut before, (6, 200));
        assert_eq!(shown.len(), 6);
        assert!(shown[5].contains("and 37 more"), "{shown:?}");
    }

    #[test]
    fn the_table_has_a_line_a_context_and_says_where_the_trace_ends() {
        let mut trace = Trace::default();
        assert!(table(&trace).render(None).contains("no context ran"));
        trace.feed(
            "0\t7\trun\t0\n2000\t7\twait\t1\t29\n3500\t7\trun\t0\n\
         4000\t7\tat\t3\t4096\t2048\t900\t0\t200\n\
         4000\t7\tstop\n4100\t7\tfull\n",
        );
        let text = table(&trace).render(None);
        let lines: Vec<&str> = text.lines().collect();
        let fields: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            fields,
            [
                "7", "2.5", "0.0", "1.5", "0.0", "0.0", "0.0", "0.0", "3", "4", "2", "2"
            ]
        );
        assert!(lines[2].contains("full after 0.0 s"), "{text}");
    }
}
