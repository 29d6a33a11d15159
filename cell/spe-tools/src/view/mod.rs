//! What a host program's contexts did, from the trace that libspe2 writes: as a table, on a
//! terminal while the program runs, and as a timeline.
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
