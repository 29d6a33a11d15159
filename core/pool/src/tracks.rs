//! Names of what a pool records: `docs/trace.md` explains them.
//!
//! An engine's work stands on the engine's own track, whichever thread drives it.

use sidecore_trace::Name;
use sidecore_trace::summary::IDLE;

/// A caller drives the engine itself.
pub(crate) static CALL: Name = Name::new("engine", "call", ["", ""]);
/// The engine's thread runs a packet.
pub(crate) static PACKET: Name = Name::new("engine", "packet", ["", ""]);
/// The engine's thread helps with a loop.
pub(crate) static HELP: Name = Name::new("engine", "help", ["", ""]);
/// The engine's thread does posted work.
pub(crate) static BACKGROUND: Name = Name::new("engine", "background", ["token", ""]);
/// Neighbouring items of a loop, done in one go.
pub(crate) static CHUNK: Name = Name::new("engine", "chunk", ["items", ""]);
/// A loop, at its caller: until all engines have left it.
pub(crate) static LOOP: Name = Name::new("engine", "loop", ["items", "engines_max"]);
/// A caller sends a packet and waits for the reply.
pub(crate) static OFF_LOAD: Name = Name::new("engine", "off-load", ["", ""]);
/// From the sender of a command to the engine's thread.
pub(crate) static ASKS: Name = Name::new("engine", "command", ["", ""]);
/// A caller waits until an engine is idle.
pub(crate) static WAIT: Name = Name::new(IDLE, "wait for an engine", ["", ""]);
/// An engine's thread looks for commands.
pub(crate) static POLL: Name = Name::new(IDLE, "poll", ["", ""]);
/// It sleeps.
pub(crate) static SLEEP: Name = Name::new(IDLE, "sleep", ["", ""]);
