//! The ECN state of a session that its segments need: 16 bits of the control block.
//!
//! Why here: header prediction and every sent segment read it; [`crate::tcp::ecn`] has the rules,
//! and the counters that only marked packets touch.

use crate::wire::tcp::CWR_BIT;
use std::ops::BitOr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The state: flags, and ACE, the three bits for each outgoing segment (RFC 9768 section 3.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(crate) struct EcnState(u16);

/// Position of ACE: the low bits of the counter of marked packets.
const ACE_SHIFT: u32 = 9;

impl EcnState {
    /// ECN is not in use.
    pub(crate) const OFF: Self = Self(0);
    /// ECN-setup SYN and SYN-ACK were exchanged: marks are echoed, echoes are obeyed.
    pub(crate) const NEGOTIATED: Self = Self(1 << 0);
    /// A mark was received: all acknowledgments carry ECE until a segment with CWR (RFC 3168
    /// section 6.1.3).
    pub(crate) const ECHO_OWED: Self = Self(1 << 1);
    /// The window was reduced: the next new data carries CWR (RFC 3168 section 6.1.2).
    pub(crate) const CWR_OWED: Self = Self(1 << 2);
    /// The window was reduced in the window of data that is being acknowledged. Acknowledgments
    /// take the slow path meanwhile, which detects its end.
    pub(crate) const REDUCED: Self = Self(1 << 3);
    /// The peer has sent data as ECN-capable (TCP_INFO's `TCPI_OPT_ECN_SEEN`).
    pub(crate) const ECT_SEEN: Self = Self(1 << 4);
    /// We have sent both a SYN that asked for ECN and one that did not, so that our data must not
    /// be ECN-capable, while the peer's is (RFC 3168 section 6.1.1).
    pub(crate) const NO_ECT: Self = Self(1 << 5);
    /// Marks are counted (RFC 9768).
    pub(crate) const ACCURATE: Self = Self(1 << 6);
    /// If it is accurate: the last received segment was marked.
    pub(crate) const CE_LAST: Self = Self(1 << 7);
    /// If it is accurate: the next pure acknowledgment has the handshake's encoding (RFC 9768
    /// section 3.2.2.1).
    pub(crate) const OPENING: Self = Self(1 << 8);

    /// True if any of `flags` is set.
    #[inline]
    pub(crate) fn has(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flags: Self) {
        self.0 |= flags.0;
    }

    #[inline]
    pub(crate) fn clear(&mut self, flags: Self) {
        self.0 &= !flags.0;
    }

    /// True if ECN was negotiated.
    #[inline]
    pub(crate) fn is_negotiated(self) -> bool {
        self.has(Self::NEGOTIATED)
    }

    /// True if marks are counted.
    #[inline]
    pub(crate) fn is_accurate(self) -> bool {
        self.has(Self::ACCURATE)
    }

    /// ACE: flags AE, CWR and ECE of an outgoing segment in accurate ECN.
    #[inline]
    pub(crate) fn ace(self) -> u8 {
        // Three bits are left.
        (self.0 >> ACE_SHIFT) as u8
    }

    /// Stores the low bits of the counter where each outgoing segment reads them.
    pub(crate) fn set_ace(&mut self, received: u32) {
        let others = self.0 & !(7 << ACE_SHIFT);
        self.0 = others | low_bits(received) << ACE_SHIFT;
    }

    /// True if a segment of ours may carry CWR, which is then never a super-segment: the NIC that
    /// cuts it may set CWR in the first segment only, as RFC 3168 requires, or repeat it in each.
    #[inline]
    pub(crate) fn may_carry_cwr(self) -> bool {
        self.has(Self::CWR_OWED) || self.is_accurate() && self.ace() & CWR_BIT != 0
    }
}

impl BitOr for EcnState {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The bits of a counter of marked packets that a segment shows.
#[inline]
fn low_bits(counter: u32) -> u16 {
    (counter & 7) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_low_bits_stand_next_to_the_flags() {
        let mut ecn = EcnState::OFF;
        ecn.set(EcnState::NEGOTIATED | EcnState::ACCURATE | EcnState::OPENING);
        for received in [5, 6, 7, 8, 0xffff_fffa] {
            ecn.set_ace(received);
            assert_eq!(u32::from(ecn.ace()), received & 7);
            assert_eq!(ecn.may_carry_cwr(), received & 2 != 0);
            assert!(ecn.is_accurate() && ecn.has(EcnState::OPENING));
            assert!(!ecn.has(EcnState::REDUCED | EcnState::NO_ECT));
        }
        ecn.clear(EcnState::ACCURATE);
        assert!(!ecn.may_carry_cwr(), "classic ECN owes none");
        ecn.set(EcnState::CWR_OWED);
        assert!(ecn.may_carry_cwr());
    }
}
