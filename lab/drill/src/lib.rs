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
mod parts;
mod pieces;
mod run;
mod script;
mod settings;
mod values;

pub use error::{DrillError, Problem};
pub use host::{Host, Sent};
pub use names::SIOCOUTQNSD;
pub use parse::parse;
pub use parts::{Part, parts};
pub use script::Script;
pub use settings::Settings;
pub use values::{phase_number, state_number, threshold_segments};

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
