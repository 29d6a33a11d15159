//! Views of the trace that libspe2 writes of a host program's contexts: a table, a terminal's
//! screen while the program runs, and a timeline.
//!
//! - [`Traced`]: a program that runs with a trace, and the trace as far as it was read.
//! - [`Live`]: the lowest lines of a terminal.
//! - [`table()`], [`timeline()`]: text and SVG, when it has ended.

mod live;
mod table;
mod timeline;
mod traced;

pub use live::Live;
pub use table::table;
pub use timeline::timeline;
pub use traced::Traced;

#[cfg(test)]
mod tests;
