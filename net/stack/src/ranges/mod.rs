//! Ranges of sequence numbers, and the books kept of them: what was sent ([`board`]), what came out
//! of order ([`gaps`]).
//!
//! Must stay true: nothing here knows a session; each book has a bound.

pub(crate) mod order;
pub(crate) mod out_of_order;
pub(crate) mod scoreboard;
