//! Names of what an engine's loop records: `docs/trace.md` explains them.
//!
//! Only rounds with work are recorded, each with its stages; a time without work is one span.

use sidecore_trace::Name;
use sidecore_trace::summary::IDLE as IDLE_CATEGORY;

/// A round with work: its pieces (frames, requests, timers) in all.
pub(super) static ROUND: Name = Name::new("stack", "round", ["work", ""]);
/// The stages of a round, in the order of [`super::Stages`].
pub(super) static STAGES: [&Name; 3] = [&RECEIVE, &APPLICATIONS, &TRANSMIT];
/// The time from a round without work to the next one with some.
pub(super) static IDLE: Name = Name::new(IDLE_CATEGORY, "idle", ["", ""]);
/// The part of it that the loop sleeps, woken by the NIC, an application or a timer.
pub(super) static SLEEP: Name = Name::new(IDLE_CATEGORY, "sleep", ["at_most_us", ""]);

/// A burst of frames: checked, and their sessions processed as a batch.
static RECEIVE: Name = Name::new("stack", "receive and process", ["work", ""]);
/// Requests of applications, and what is delivered to them.
static APPLICATIONS: Name = Name::new("stack", "serve applications", ["work", ""]);
/// Timers, acknowledgments, and frames sent.
static TRANSMIT: Name = Name::new("stack", "timers and sending", ["work", ""]);
