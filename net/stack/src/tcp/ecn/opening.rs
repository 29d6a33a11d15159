//! ECN in the segments that open a session: flags AE, CWR and ECE of SYN and SYN-ACK.
//!
//! Why here: both forms of ECN ([`super`], [`super::accurate`]) are negotiated by the same
//! three flags, and a host that supports both must distinguish them.
//! Source: RFC 3168 section 6.1.1; RFC 9768 section 3.1.2, table 2.

use crate::wire::ip::Codepoint;
use crate::wire::tcp::{ACK, CWR_BIT, ECE_BIT, Segment};

/// Flags of a SYN that asks for accurate ECN.
pub(crate) const ASKS: u8 = 0b111;
/// Flags of a SYN that asks for RFC 3168's ECN alone.
pub(crate) const ASKS_CLASSIC: u8 = CWR_BIT | ECE_BIT;
/// Flags of the SYN-ACK that accepts RFC 3168's ECN.
pub(crate) const TAKES_CLASSIC: u8 = ECE_BIT;

/// ECN in a SYN or a SYN-ACK: its flags, and its packet's field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    /// A SYN-ACK.
    pub(crate) answer: bool,
    /// Its flags AE, CWR and ECE: [`Segment::ace`].
    pub(crate) bits: u8,
    /// ECN field of its packet.
    pub(crate) codepoint: Codepoint,
}

impl Opening {
    pub(crate) fn of(segment: &Segment<'_>) -> Self {
        Self {
            answer: segment.has(ACK),
            bits: segment.ace(),
            codepoint: segment.ecn,
        }
    }
}
