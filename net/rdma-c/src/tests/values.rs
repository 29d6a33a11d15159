//! The header's numbers and layouts, as this crate reads and writes them.

use super::*;
use sidecore_rdma::{
    Atomic, Completion, End, Event, Kind, Options, Piece, Pieces, Post, Queued, ReadyBy, Remote,
    Setup, Stag, Status, Work,
};

#[test]
fn layouts_are_the_same_on_both_sides() {
    let sizes = [
        ("region", size_of::<RawRegion>()),
        ("piece", size_of::<RawPiece>()),
        ("options", size_of::<RawOptions>()),
        ("work", size_of::<RawWork>()),
        ("completion", size_of::<RawCompletion>()),
        ("event", size_of::<RawEvent>()),
    ];
    let checks = sizes.map(|(name, bytes)| {
        format!("_Static_assert(sizeof(struct sidecore_rdma_{name}) == {bytes}, \"{name}\");\n")
    });
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layouts.c");
    let text = format!("#include \"sidecore_rdma.h\"\n{}", checks.concat());
    std::fs::write(&source, text).unwrap();
    let output = std::process::Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(&source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn options_that_are_zero_are_the_usual_ones() {
    let usual = Options::default();
    // SAFETY: NULL or options.
    unsafe {
        assert_eq!(options_of(ptr::null()), Ok(usual));
        assert_eq!(options_of(&options()), Ok(usual));
    }
    let all = RawOptions {
        send_depth: 3,
        receive_depth: 4,
        reads: 5,
        without_crc: 1,
        waits: 2,
        peer_to_peer: 255,
        immediate_alone: 1,
        ..options()
    };
    let expected = Options {
        crc: false,
        waits_for_receives: true,
        setup: Setup::PeerToPeer(ReadyBy::Message),
        immediate_without_receive: true,
        send_depth: 3,
        receive_depth: 4,
        ird: 5,
        ord: 5,
        ..usual
    };
    // SAFETY: options.
    assert_eq!(unsafe { options_of(&all) }, Ok(expected));
}

#[test]
fn each_kind_of_work_becomes_what_the_header_says() {
    let raw = RawPiece {
        address: 0x1000,
        bytes: 24,
        key: 9,
    };
    let own = Piece {
        stag: Stag(9),
        offset: 0x1000,
        bytes: 24,
    };
    let pieces = Pieces::from_iter([own]);
    let remote = Remote {
        stag: Stag(77),
        offset: 0x2000,
    };
    let send = |invalidate, solicited| Work::Send {
        pieces: pieces.clone(),
        invalidate,
        solicited,
    };
    let atomic = |atomic| Work::Atomic { atomic, remote };
    let masked = |mask| Atomic::Swap { new: 6, mask };
    let compared = |compared, swapped| Atomic::CompareSwapBits {
        expected: 5,
        compared,
        new: 6,
        swapped,
    };
    let add = |mask| Atomic::AddFields { value: 6, mask };
    let cases = [
        (0, 0, 0, send(None, false)),
        (1, 0, 0, send(Some(Stag(77)), false)),
        (
            2,
            0,
            0,
            Work::Immediate {
                value: 6,
                solicited: false,
            },
        ),
        (
            3,
            0,
            0,
            Work::Write {
                pieces: pieces.clone(),
                remote,
            },
        ),
        (4, 0, 0, Work::Read { into: own, remote }),
        (5, 0, 0, atomic(add(0))),
        (5, 0x80, 0, atomic(add(0x80))),
        (6, 0, 0, atomic(masked(u64::MAX))),
        (6, 0xff, 0, atomic(masked(0xff))),
        (7, 0, 0, atomic(compared(u64::MAX, u64::MAX))),
        (7, 1, 2, atomic(compared(2, 1))),
    ];
    for (kind, operand_mask, compare_mask, expected) in cases {
        let raw = RawWork {
            key: 77,
            remote: 0x2000,
            operand: 6,
            compare: 5,
            operand_mask,
            compare_mask,
            fence: kind % 2,
            ..work(3, kind, &[raw])
        };
        let expected = Post {
            id: 3,
            work: expected,
            fence: kind % 2 == 1,
        };
        assert_eq!(post_of(&raw), Ok(expected), "{kind}");
    }
    let solicited = RawWork {
        solicited: 1,
        ..work(3, 0, &[raw])
    };
    let posted = post_of(&solicited).expect("a send");
    assert_eq!(posted.work, send(None, true));
}

#[test]
fn completions_have_the_header_s_numbers() {
    let done = Completion {
        id: 8,
        kind: Kind::Send,
        status: Status::Done,
        bytes: 12,
        immediate: None,
        invalidated: None,
        solicited: false,
        original: None,
    };
    let raw = |completion| {
        RawCompletion::from(&Queued {
            connection: connection(1 << 32 | 6),
            completion,
        })
    };
    let kinds = [
        (Kind::Send, 0),
        (Kind::Immediate, 2),
        (Kind::Write, 3),
        (Kind::Read, 4),
        (Kind::Atomic, 5),
        (Kind::Receive, 8),
    ];
    for (kind, number) in kinds {
        let raw = raw(Completion { kind, ..done });
        assert_eq!((raw.kind, raw.id, raw.bytes), (number, 8, 12));
        assert_eq!(raw.connection, 1 << 32 | 6);
        assert_eq!((raw.has_immediate, raw.value, raw.invalidated), (0, 0, 0));
    }
    let local = Status::Local(sidecore_rdma::Fault::Bounds);
    for (status, number) in [(Status::Done, 0), (Status::Flushed, 1), (local, 2)] {
        assert_eq!(raw(Completion { status, ..done }).status, number);
    }
    let received = raw(Completion {
        immediate: Some(0),
        invalidated: Some(Stag(5)),
        solicited: true,
        ..done
    });
    assert_eq!((received.has_immediate, received.value), (1, 0));
    assert_eq!((received.invalidated, received.solicited), (5, 1));
    let changed = raw(Completion {
        original: Some(41),
        ..done
    });
    assert_eq!((changed.has_immediate, changed.value), (0, 41));
}

#[test]
fn events_and_ends_have_the_header_s_numbers() {
    let connection = connection(7);
    let requested = RawEvent::from(&Event::Requested {
        listener: ListenerId::from_number(3),
        connection,
        private_data: vec![1, 2, 3],
    });
    assert_eq!((requested.kind, requested.listener), (1, 3));
    assert_eq!((requested.connection, requested.private_bytes), (7, 3));
    assert_eq!(requested.private_data[..4], [1, 2, 3, 0]);
    // More than a frame holds is cut off, not written past the end.
    let established = RawEvent::from(&Event::Established {
        connection,
        private_data: vec![9; 600],
    });
    assert_eq!((established.kind, established.listener), (2, -1));
    assert_eq!(
        (established.private_bytes, established.private_data[511]),
        (512, 9)
    );
    let start = sidecore_rdma::StartFault::NotRequested;
    for (end, number) in [
        (End::Orderly, 0),
        (End::Rejected, 1),
        (End::Lost, 2),
        (End::Start(start), 3),
    ] {
        let private_data = Vec::new();
        let ended = RawEvent::from(&Event::Ended {
            connection,
            end,
            private_data,
        });
        assert_eq!((ended.kind, ended.end, ended.private_bytes), (3, number, 0));
    }
}
