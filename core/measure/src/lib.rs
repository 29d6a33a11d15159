//! The parts of a measurement that products report themselves: the machine, medians, and programs
//! that run to their end.
//!
//! Why here: the services never import one another, and a report has one form in each of them.
//!
//! - [`stats`]: the median.
//! - [`Machine`]: the machine of a run, its load and the commit.
//! - [`job`]: other programs that run to their end, with [`child`]'s errors.
//!
//! Must stay true: whatever compares with a peer stands in `sidecore-bench`.
//! Source: own.

pub mod child;
pub mod job;
mod machine;
pub mod stats;

pub use machine::Machine;
