//! Ranges of sequence numbers, and tables of them: transmitted ranges ([`scoreboard`]), ranges
//! received out of order ([`out_of_order`]).
//!
//! Must stay true: nothing here knows a session; each table is bounded.

pub(crate) mod order;
pub(crate) mod out_of_order;
pub(crate) mod scoreboard;
