//! The shape of everything that is printed: lines, tables, progress bars, a full screen; and of
//! sizes and durations that are typed.
//!
//! Why here: a table that knows nothing of its terminal wraps, and each command wrapped in its own
//! way. Must stay true: without a width nothing is folded, cut or dropped; with one, no line is
//! longer, but for a single word (a path, a hash) that must stay whole to be copied. Foreign text
//! is escaped before it is measured. Nothing here writes to a terminal except `print`, `usage`,
//! `progress` and `screen`. Source: own.

#[cfg(feature = "command-line")]
pub mod manual;
#[cfg(feature = "print")]
pub mod print;
#[cfg(feature = "progress")]
pub mod progress;
pub mod quantity;
#[cfg(feature = "screen")]
pub mod screen;
mod table;
mod text;
#[cfg(feature = "command-line")]
pub mod usage;
#[cfg(feature = "command-line")]
pub mod values;

pub use table::{Column, Table, cut, fold};
pub use text::Text;

use rustix::fd::AsFd;

/// Columns of the terminal behind a descriptor; `None` where it is none, or says nothing of its
/// size.
#[must_use]
pub fn columns(descriptor: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(descriptor).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}
