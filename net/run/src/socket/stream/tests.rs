use super::*;
use sidecore_net_rings::SLAB_BYTES;
use sidecore_sys::Sharing;

const OUTBOUND: [Outbound; 5] = [
    Outbound::Open(Backlog::None),
    Outbound::Open(Backlog::Waiting),
    Outbound::Ending(Backlog::None),
    Outbound::Ending(Backlog::Waiting),
    Outbound::Ended,
];

#[test]
fn the_end_of_a_pair_is_seen_before_the_last_byte_passes() {
    for before in OUTBOUND {
        let mut seen = before;
        seen.see_end();
        let expected = match before {
            Outbound::Open(backlog) | Outbound::Ending(backlog) => Outbound::Ending(backlog),
            Outbound::Ended => Outbound::Ended,
        };
        assert_eq!(seen, expected, "{before:?}");
        assert_eq!(seen.has_ended(), before.has_ended(), "{before:?}");
        seen.end();
        assert_eq!(seen, Outbound::Ended, "{before:?}");
        // An event of the closed pair changes nothing any more.
        seen.see_end();
        assert_eq!(seen, Outbound::Ended, "{before:?}");
    }
}

#[test]
fn bytes_wait_only_while_the_program_may_have_some() {
    for before in OUTBOUND {
        let mut outbound = before;
        outbound.set_backlog(Backlog::Waiting);
        assert_eq!(
            outbound.is_waiting(),
            before != Outbound::Ended,
            "{before:?}"
        );
        outbound.see_end();
        // The end does not take the bytes away that precede it.
        assert_eq!(
            outbound.is_waiting(),
            before != Outbound::Ended,
            "{before:?}"
        );
        outbound.set_backlog(Backlog::None);
        assert!(!outbound.is_waiting(), "{before:?}");
        assert_eq!(outbound.has_ended(), before.has_ended(), "{before:?}");
    }
}

#[test]
fn an_end_is_notified_once_on_each_path() {
    for (before, has_rings, after, notice) in [
        (
            Inbound::Open,
            true,
            Inbound::EndedInRings,
            Some(Notice::Rings),
        ),
        (
            Inbound::Open,
            false,
            Inbound::EndedInPair,
            Some(Notice::Pair),
        ),
        (Inbound::EndedInRings, true, Inbound::EndedInRings, None),
        // The rings were taken back: readers of the pair have not seen the end.
        (
            Inbound::EndedInRings,
            false,
            Inbound::EndedInPair,
            Some(Notice::Pair),
        ),
        (Inbound::EndedInPair, true, Inbound::EndedInPair, None),
        (Inbound::EndedInPair, false, Inbound::EndedInPair, None),
    ] {
        let mut inbound = before;
        assert_eq!(inbound.end(has_rings), notice, "{before:?} {has_rings}");
        assert_eq!(inbound, after, "{before:?} {has_rings}");
        assert_eq!(inbound.end(has_rings), None, "{before:?} {has_rings}");
    }
}

#[test]
fn a_success_is_reported_once() {
    let mut report = Report::Due;
    assert_eq!(report.make(), Ok(()));
    assert_eq!(report, Report::Made);
    assert_eq!(report.make(), Err(Errno::ISCONN));
    assert_eq!(report, Report::Made);
}

#[test]
fn a_pair_without_a_head_has_data_only() {
    let mut head = Head::Data;
    assert_eq!(head.room(7), 7);
    assert_eq!(head.consume(b"1234567"), Consumed::Data);
    head.expect_no_greeting();
    assert_eq!(head, Head::Data);
    assert!(!head.is_filler() && !head.is_greeting());
}

#[test]
fn padding_is_taken_off_to_its_last_byte() {
    let mut head = Head::Filler(10);
    assert!(head.is_filler());
    // No read crosses its end, or data would be taken for padding.
    assert_eq!((head.room(4), head.room(10), head.room(99)), (4, 10, 10));
    assert_eq!(head.consume(&[0; 4]), Consumed::Filler);
    assert_eq!(head, Head::Filler(6));
    assert_eq!(head.room(99), 6);
    // A direct accept does not concern a session that the program has opened itself.
    head.expect_no_greeting();
    assert_eq!(head, Head::Filler(6));
    assert_eq!(head.consume(&[0; 6]), Consumed::Filler);
    assert_eq!(head, Head::Data);
    assert_eq!(head.consume(b"x"), Consumed::Data);
}

#[test]
fn more_padding_than_was_written_ends_it_too() {
    let mut head = Head::Filler(3);
    assert_eq!(head.consume(&[0; 9]), Consumed::Filler);
    assert_eq!(head, Head::Data);
}

#[test]
fn a_greeting_names_the_program_that_accepted() {
    let hello = Hello {
        thread: 7,
        descriptor: 9,
    };
    let mut head = Head::Greeting(5);
    assert!(head.is_greeting());
    assert_eq!((head.room(4), head.room(99)), (4, HELLO_BYTES));
    assert_eq!(head.consume(&hello.bytes(5)), Consumed::Greeting(hello));
    assert_eq!(head, Head::Data);
    // The same bytes are data afterwards.
    assert_eq!(head.consume(&hello.bytes(5)), Consumed::Data);
}

#[test]
fn data_of_a_program_without_the_library_is_no_greeting() {
    let other = Hello {
        thread: 7,
        descriptor: 9,
    };
    for bytes in [b"GET / HTTP/1.1\r\n".as_slice(), &other.bytes(6), b"x"] {
        let mut head = Head::Greeting(5);
        assert_eq!(head.consume(bytes), Consumed::Data, "{bytes:?}");
        assert_eq!(head, Head::Data);
    }
    let mut head = Head::Greeting(5);
    head.expect_no_greeting();
    assert_eq!(head, Head::Data);
}

#[test]
fn room_is_watched_once_and_for_good() {
    let mut interest = Interest::Input;
    let input = interest.flags();
    assert!(input.contains(EventFlags::IN | EventFlags::RDHUP | EventFlags::ET));
    assert!(!input.contains(EventFlags::OUT));
    assert!(interest.add_room());
    assert_eq!(interest.flags(), input | EventFlags::OUT);
    assert!(!interest.add_room());
    assert_eq!(interest, Interest::InputAndRoom);
}

fn ring() -> RingEnd {
    let memory = SharedMap::reserve("test-ring", SLAB_BYTES, Sharing::ReadWrite).unwrap();
    let ring = RingEnd {
        process: 0,
        stream: 3,
        memory: Rc::new(memory),
        large: None,
        served: Served::default(),
    };
    ring.view().unwrap().begin();
    ring
}

#[test]
fn a_pair_may_get_rings_until_it_is_barred() {
    let mut path = Path::Pair;
    assert!(path.rings().is_none() && path.all_rings().is_none());
    path.bar();
    assert!(matches!(path, Path::PairOnly));
    path.bar();
    assert!(matches!(path, Path::PairOnly));
    // There is nothing to take back.
    path.reclaim();
    assert!(matches!(path, Path::PairOnly));
}

#[test]
fn rings_that_were_taken_back_keep_their_bytes() {
    let mut path = Path::Rings(ring());
    assert_eq!(path.rings().map(|ring| ring.stream), Some(3));
    // Barring alone does not move the bytes: the program may be copying.
    path.bar();
    assert!(path.rings().is_some());
    path.reclaim();
    assert!(matches!(path, Path::Reclaimed(_)));
    assert!(path.rings().is_none());
    assert_eq!(path.all_rings().map(|ring| ring.stream), Some(3));
    assert!(path.all_rings_mut().is_some());
    // They are taken back once, and never given out again.
    path.reclaim();
    path.bar();
    assert!(matches!(path, Path::Reclaimed(_)));
}

#[test]
fn memory_that_is_too_short_has_no_view() {
    assert!(ring().view().is_some());
    let short = SharedMap::reserve("test-short", 4096, Sharing::ReadWrite).unwrap();
    let ring = RingEnd {
        memory: Rc::new(short),
        ..ring()
    };
    assert!(ring.view().is_none());
}
