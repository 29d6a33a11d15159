//! Names of what a daemon's engines record: `docs/trace.md` explains them.

use sidecore_trace::Name;
use sidecore_trace::summary::IDLE;

/// A request of a client: by the kernel's name and the client's process.
pub(super) static CALL: Name = Name::new("daemon", "call", ["$kernel", "client_pid"]);
/// A part of a client's job.
pub(super) static JOB: Name = Name::new("daemon", "job", ["client_pid", ""]);
/// No client rings: the engine looks at all of them, again and again.
pub(super) static POLL: Name = Name::new(IDLE, "poll", ["", ""]);
/// The engine sleeps until a client rings.
pub(super) static SLEEP: Name = Name::new(IDLE, "sleep", ["", ""]);
