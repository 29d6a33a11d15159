//! The trace that `sidecore spe run` shows and draws: lines of tab-separated fields in a file.
//!
//! Fields: microseconds since the library's first use, context, event, and the event's own fields:
//!
//! | event | fields | |
//! |---|---|---|
//! | `ready` | | it waits for an engine |
//! | `run` | engine | that engine has it |
//! | `wait` | operation, channel | parked |
//! | `spun` | operation, channel, microseconds | waited on its engine until now |
//! | `at` | DMA commands, bytes got, put; bytes of the store: program, heap, stack | |
//! | `stop` | | |
//! | `full` | | nothing follows: the file has as many lines as it may |
//!
//! Why here: the format has one place. `write` is the library's side, `read` that of the command
//! which started the program; the two run in different processes.

mod read;
#[cfg(target_arch = "x86_64")]
mod write;

pub use read::{Cause, Part, State, Trace};
#[cfg(target_arch = "x86_64")]
pub(crate) use write::*;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
