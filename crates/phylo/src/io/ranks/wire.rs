//! Lines of JSON.
//!
//! Must stay true: a stranger's line costs at most [`HELLO_MAX`] bytes of memory.

use crate::analysis::workers::{Event, Order};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Error, ErrorKind, Read, Write};

/// A message from a member to rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Upward {
    /// First of all.
    Hello {
        token: String,
        rank: u32,
        /// The identity of its settings: must be rank 0's.
        run: String,
    },
    Event(Event),
    /// Nothing, but that it is there.
    Beat,
}

/// A message from rank 0 to a member.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Downward {
    Order(Order),
    /// The member cannot take part.
    Refused(String),
}

/// Writes one line.
pub(super) fn write<T: Serialize>(to: &mut impl Write, value: &T) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads one line of at most `most` bytes; nothing at the end.
pub(super) fn read<T: DeserializeOwned>(
    from: &mut impl BufRead,
    most: u64,
) -> std::io::Result<Option<T>> {
    let mut line = Vec::new();
    let read = from.take(most).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) if read as u64 == most => {
            Err(Error::new(ErrorKind::InvalidData, "a line too long"))
        }
        // Cut off in the middle of a line.
        Some(_) => Ok(None),
    }
}

/// The longest first line.
pub(super) const HELLO_MAX: u64 = 4 << 10;
/// The longest line: the saved state of a tree of a million taxa.
pub(super) const LINE_MAX: u64 = 1 << 30;
