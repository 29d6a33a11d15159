//! `sidecore spe run`: a host program with what its contexts did, as a table and a timeline.
//!
//! Must stay true: the program's standard input and output are its own; the table goes to the
//! standard error; the exit status is the program's. A signal that would end this command ends the
//! program, and the terminal is left as it was.

use super::live::Live;
use super::trace::{Part, Trace};
use crate::Outcome;
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Arguments of `spe run`.
#[derive(clap::Args)]
#[command(after_help = "\
On a terminal the lowest lines show the contexts while the program runs; behind it comes a table \
of what each ran, waited for, moved by DMA and took of its store.

Exit status: the program's; 128 + N where signal N ended it.")]
pub(crate) struct Run {
    /// Draw an SVG timeline of the contexts: on which engine each ran, and what it waited for.
    #[arg(long, value_name = "FILE.svg")]
    timeline: Option<PathBuf>,
    /// Engines that contexts share [default: the processors, at least 6].
    #[arg(long, value_name = "N")]
    engines: Option<u16>,
    /// Show nothing while the program runs.
    #[arg(long)]
    no_live: bool,
    /// The program and its arguments.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

impl Run {
    pub(crate) fn run(self) -> Result<Outcome> {
        let kit = super::kit()?;
        let folder = tempfile::tempdir().context("cannot make a folder for the trace")?;
        let file = folder.path().join("trace");
        let mut reader = File::create_new(&file)
            .and_then(|_| File::open(&file))
            .context("cannot make the trace")?;
        let (program, arguments) = self.program.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments).env("SIDECORE_SPE_TRACE", &file);
        if let Some(libraries) = kit.programs().parent().map(|root| root.join("lib")) {
            let mut path = libraries.into_os_string();
            if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
                path.push(":");
                path.push(before);
            }
            command.env("LD_LIBRARY_PATH", path);
        }
        if let Some(engines) = self.engines {
            command.env("SIDECORE_SPE_ENGINES", engines.to_string());
        }
        let mut trace = Trace::default();
        let signals = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let live = !self.no_live && std::io::stderr().is_terminal();
        let mut live = live.then(Live::open).flatten();
        let mut shown = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().context("cannot wait for the program")? {
                break status;
            }
            if signals.swap(false, Ordering::Relaxed) {
                pass_on(&child);
            }
            std::thread::sleep(LOOK);
            if let Some(live) = &mut live
                && shown.elapsed() >= REFRESH
            {
                shown = Instant::now();
                read(&mut reader, &mut trace);
                live.show(&trace);
            }
        };
        drop(live);
        read(&mut reader, &mut trace);
        crate::output::error_text(table(&trace).trim_end());
        if let Some(path) = &self.timeline {
            crate::output::file(path, &super::timeline::draw(&trace)?)?;
        }
        drop(folder);
        match exit_code(status) {
            0 => Ok(Outcome::Done),
            code => std::process::exit(code),
        }
    }
}

/// Time between two looks whether the program has ended.
const LOOK: Duration = Duration::from_millis(10);
/// Time between two pictures.
const REFRESH: Duration = Duration::from_millis(250);

/// A terminal sends its signals to the program, too; a second one does no harm.
fn pass_on(child: &Child) {
    if let Some(id) = rustix::process::Pid::from_raw(child.id() as i32) {
        // A failure means that the program has ended, which the next poll finds.
        rustix::process::kill_process(id, rustix::process::Signal::TERM).ok();
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    let code = status.code();
    code.unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Feeds what was appended since the last call.
fn read(file: &mut File, trace: &mut Trace) {
    let mut bytes = Vec::new();
    // Unreadable lines are missing in the table, like unwritten ones.
    file.read_to_end(&mut bytes).ok();
    trace.feed(&String::from_utf8_lossy(&bytes));
}

/// The table: a line for each context.
fn table(trace: &Trace) -> String {
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
