//! Scripts against the stack, in virtual time: the peer's packets, the application's calls, and the
//! expected output, each line with its time.
//!
//! Why here: the rules of TCP are about moments and single segments, which neither a property over
//! random runs nor a transfer that succeeds can show. A script names the clause and its time. The
//! notation is that of packetdrill (Cardwell et al., USENIX ATC 2013); the interpreter and the
//! scripts are our own, the grammar is in `docs/formats/drill.md`.
//!
//! [`parse()`] reads, [`run()`] plays; nothing waits and nothing reads a clock. [`files`] has the
//! sockets as C programs know them, which also carry the C interface of `sidecore-net-shim`.
//!
//! Must stay true: a script's outcome follows from its text alone; no text causes a panic.

mod bytes;
mod call;
mod cursor;
mod error;
pub mod files;
mod flow;
mod host;
mod names;
mod notation;
mod packet;
mod parse;
mod pieces;
mod run;
mod script;
mod settings;
mod values;

pub use error::{DrillError, Problem};
pub use host::{Host, Sent};
pub use names::SIOCOUTQNSD;
pub use parse::parse;
pub use script::Script;
pub use settings::Settings;
pub use values::{phase_number, state_number, threshold_segments};

use serde::Serialize;

/// Plays a script, or the scripts of a file that has several ([`parts()`]); `name` is for their
/// errors. Returns the number of events.
///
/// ```
/// let script = "
///     +0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
///     +0 bind(3, ..., ...) = 0
///     +0 listen(3, 1) = 0
///     +0 < S 0:0(0) win 65535 <mss 1460>
///     +0 > S. 0:0(0) ack 1 <mss 1460>
///     +0 < . 1:1(0) ack 1 win 65535
///     +0 accept(3, ..., ...) = 4
/// ";
/// assert_eq!(sidecore_net_drill::run("handshake", script).expect("comes true"), 7);
/// ```
///
/// # Errors
/// [`DrillError`] with the first line that cannot be read or does not match.
pub fn run(name: &str, text: &str) -> Result<usize, DrillError> {
    let mut events = 0;
    for part in parts(text) {
        let played = parse(name, part.text)
            .and_then(|script| run::Run::new(name, &script)?.all())
            // Errors name lines of the file.
            .map_err(|error| DrillError {
                line: error.line + part.lines_before,
                ..error
            });
        events += played?;
    }
    Ok(events)
}

/// Scripts that were played, one after the other.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    scripts: Vec<Row>,
    /// Scripts with a problem.
    pub failed: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    script: String,
    /// Events that matched: all, or none where there is a problem.
    events: usize,
    /// The first line that cannot be read or did not match.
    problem: Option<String>,
}

impl Report {
    /// Plays a script; says for people what came of it.
    pub fn play(&mut self, name: &str, text: &str) -> String {
        let (events, problem) = match run(name, text) {
            Ok(events) => (events, None),
            Err(error) => (0, Some(error.to_string())),
        };
        self.failed += usize::from(problem.is_some());
        let said = match &problem {
            None => format!("{name}: {events} events came true"),
            Some(problem) => problem.clone(),
        };
        let script = name.to_owned();
        self.scripts.push(Row {
            script,
            events,
            problem,
        });
        said
    }

    /// The failures, for people; `None` without any.
    #[must_use]
    pub fn verdict(&self) -> Option<String> {
        let (failed, all) = (self.failed, self.scripts.len());
        (failed > 0).then(|| format!("{failed} of {all} scripts failed"))
    }
}

/// A script of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'t> {
    /// Its heading's name; empty for what stands before the first heading.
    pub name: &'t str,
    /// Lines of the file before its first line.
    pub lines_before: usize,
    /// Its text, without the heading.
    pub text: &'t str,
}

/// The scripts of a file, in their order. A text without a heading is one script.
///
/// ```
/// let parts = sidecore_net_drill::parts("-- a --\n+0 close(3) = 0\n-- b --\n");
/// let names: Vec<_> = parts.iter().map(|part| (part.name, part.lines_before)).collect();
/// assert_eq!(names, [("a", 1), ("b", 3)]);
/// ```
#[must_use]
pub fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut name, mut lines_before, mut from) = ("", 0, 0);
    let mut end = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if let Some(next) = heading(line) {
            parts.push(Part {
                name,
                lines_before,
                text: &text[from..end],
            });
            (name, lines_before, from) = (next, index + 1, end + line.len());
        }
        end += line.len();
    }
    parts.push(Part {
        name,
        lines_before,
        text: &text[from..],
    });
    // A file that begins with a heading has no script before it.
    if parts.len() > 1 && parts[0].text.trim().is_empty() {
        parts.remove(0);
    }
    parts
}

fn heading(line: &str) -> Option<&str> {
    let name = line.trim_end().strip_prefix("-- ")?.strip_suffix(" --")?;
    Some(name.trim())
}
