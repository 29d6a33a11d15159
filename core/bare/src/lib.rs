//! Processor features that need no operating system, behind interfaces that are safe to call.
//!
//! Why here: pure crates use them as well as those that talk to the system, and the intrinsics and
//! casts behind them are `unsafe`.
//!
//! - [`float`]: the control words of floating-point arithmetic, restored after foreign code.
//! - `memory`: a run of zeroed bytes with its owner, of any kind.
//! - [`plain`]: casts between numbers and their bytes.
//! - [`prefetch`]: hints to the cache.
//! - [`sum`]: the loop of the Internet checksum, in the widest registers there are.
//! - [`text`]: untrusted text, escaped before it is shown.
//! - [`width`]: lossless conversions between `usize` and the integers of a fixed width.
//!
//! Must stay true: no system call, no clock, no thread, no I/O; no function here can make a
//! caller's safe code unsound; any thread may call any of them.

pub mod float;
mod memory;
pub mod plain;
pub mod prefetch;
pub mod sum;
pub mod text;
pub mod width;

pub use memory::{Memory, Owner};
pub use plain::Plain;
