//! ECN of one session without a session: negotiation, echoes, and one reduction per window.

use super::*;
use crate::wire::tcp::Options;

/// A session's ECN with storage of its own.
struct Owned(EcnState, EcnCounters);

impl Owned {
    fn new() -> Self {
        Self(EcnState::OFF, EcnCounters::default())
    }

    fn ecn(&mut self) -> Ecn<'_> {
        Ecn {
            state: &mut self.0,
            counters: &mut self.1,
        }
    }

    /// After a handshake in which both asked for RFC 3168's ECN.
    fn classic() -> Self {
        let mut owned = Self::new();
        let opening = Opening {
            answer: true,
            bits: TAKES_CLASSIC,
            codepoint: Codepoint::NotEct,
        };
        owned.ecn().agree(client(0), opening);
        assert!(owned.0.is_negotiated());
        owned
    }
}

fn client(retries: u8) -> Side {
    Side {
        config: config::Ecn::Active,
        state: State::SynSent,
        retries,
    }
}

fn data(flags: u8, ecn: Codepoint) -> Segment<'static> {
    Segment {
        sequence: Sequence::new(1),
        acknowledgment: Sequence::new(1),
        flags: ACK | flags,
        ae: false,
        window: 1_000,
        options: Options::default(),
        payload: b"data",
        ecn,
        placed: false,
    }
}

#[test]
fn a_client_asks_once_and_falls_back() {
    let mut owned = Owned::new();
    assert_eq!(owned.ecn().setup(client(0)), ASKS_CLASSIC);
    assert_eq!(owned.ecn().setup(client(1)), 0);
    let opening = Opening {
        answer: true,
        bits: TAKES_CLASSIC,
        codepoint: Codepoint::NotEct,
    };
    owned.ecn().agree(client(1), opening);
    // RFC 3168 section 6.1.1: the peer may mark, and our data is not ECN-capable.
    assert_eq!(owned.ecn().to_send(true, false), (0, Codepoint::NotEct));
    let reflected = Opening {
        bits: ASKS_CLASSIC,
        ..opening
    };
    owned.ecn().agree(client(0), reflected);
    assert!(!owned.0.is_negotiated(), "a host that copies reserved bits");
}

#[test]
fn a_mark_is_echoed_until_the_peer_reports_a_reduction() {
    let mut owned = Owned::classic();
    let noted = owned.ecn().note_data(&data(0, Codepoint::Ce));
    assert_eq!((noted.marks, noted.acknowledge), (1, true));
    let again = owned.ecn().note_data(&data(0, Codepoint::Ce));
    assert_eq!((again.marks, again.acknowledge), (1, false));
    assert_eq!(owned.ecn().to_send(false, true).0, ECE_BIT);
    let reduced = owned.ecn().note_data(&data(CWR, Codepoint::Ect0));
    assert_eq!((reduced.marks, reduced.acknowledge), (0, true));
    assert_eq!(owned.ecn().to_send(false, true).0, 0);
    assert!(owned.ecn().is_quiet(&data(0, Codepoint::Ect0)));
}

#[test]
fn one_window_of_data_is_reduced_once_and_reported_once() {
    let (mut owned, una, nxt) = (Owned::classic(), Sequence::new(100), Sequence::new(200));
    assert!(
        owned
            .ecn()
            .is_echo(&data(ECE, Codepoint::NotEct), Sequence::new(0))
    );
    owned.ecn().note_reduction(nxt, nxt - una);
    assert!(owned.ecn().is_echo_of_the_past() && owned.ecn().is_reduced_already(una));
    assert!(!owned.ecn().is_quiet(&data(0, Codepoint::NotEct)));
    assert_eq!(owned.ecn().to_send(true, false), (CWR_BIT, Codepoint::Ect0));
    owned.ecn().sent(CWR, false);
    assert_eq!(owned.ecn().to_send(true, false), (0, Codepoint::Ect0));
    owned.ecn().end_reduced_window(nxt, 50);
    assert!(
        owned.0.has(EcnState::REDUCED),
        "its last byte belongs to it"
    );
    owned.ecn().end_reduced_window(nxt + 1, 50);
    assert!(!owned.ecn().is_echo_of_the_past());
}

#[test]
fn an_undone_reduction_is_not_reported() {
    let mut owned = Owned::classic();
    owned.ecn().note_reduction(Sequence::new(9), 9);
    owned.ecn().undo_reduction();
    assert!(!owned.ecn().is_echo_of_the_past());
    assert_eq!(owned.ecn().to_send(true, false), (0, Codepoint::Ect0));
}
