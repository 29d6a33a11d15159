//! Ranges of sequence numbers, and tables of them: transmitted ranges ([`board`]), ranges received
//! out of order ([`gaps`]).
//!
//! Must stay true: nothing here knows a session; each table is bounded.

pub(crate) mod order;
pub(crate) mod out_of_order;
pub(crate) mod scoreboard;
