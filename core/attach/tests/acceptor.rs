//! The acceptor, with clients of the own user in the same process.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_attach::protocol::{KIND_ATTACH, KIND_STATUS};
use sidecore_attach::{
    Acceptor, AcceptorOptions, Allow, Answer, AttachError, Event, Introduction, Protocol, Quota,
    Segment, Trust,
};
use sidecore_attach::{INTRODUCTION_TIME_MAX, PENDING_MAX};
use sidecore_sys::{SharedMap, Sharing, local_socket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

const PROTOCOL: Protocol = Protocol {
    magic: u64::from_le_bytes(*b"TESTING1"),
    version: 3,
    server: "test",
};
const SEGMENT_BYTES: usize = 1 << 16;

/// A session: its number and its memory.
type Session = (u64, Segment);

fn open(folder: &Path) -> Acceptor<Session> {
    let options = AcceptorOptions {
        allow: Allow::default(),
        quota: Quota {
            places_max: 4,
            user_places_max: 2,
            bytes_max: 1 << 20,
            user_bytes_max: 1 << 19,
        },
        cpus: Vec::new(),
        acceptors: 1,
        remedy: |_| "no remedy".to_owned(),
    };
    Acceptor::open(PROTOCOL, &folder.join("test.sock"), options).unwrap()
}

/// Serves until nothing has happened for a moment; the sessions that parted.
fn serve(acceptor: &mut Acceptor<Session>) -> Vec<u64> {
    let mut parted = Vec::new();
    let (mut quiet, mut ordered) = (0, 0);
    let begun = Instant::now();
    while quiet < 3 || ordered > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is made");
        acceptor.wait(&[], Duration::from_millis(10)).unwrap();
        quiet += 1;
        while let Some(event) = acceptor.next_event() {
            quiet = 0;
            match event {
                Event::Question {
                    from,
                    kind,
                    is_attached,
                    ..
                } if kind == KIND_ATTACH => {
                    if is_attached {
                        acceptor.refuse(from, "again");
                    } else {
                        ordered += 1;
                        acceptor.order(from, "test", SEGMENT_BYTES, 1);
                    }
                }
                Event::Made { to, tag, made, .. } => {
                    ordered -= 1;
                    match made {
                        Ok((segment, lent)) => {
                            let files = [lent.as_fd()];
                            let session = (tag, segment);
                            assert!(acceptor.attach(to, session, b"terms", &files).is_ok());
                        }
                        Err(reason) => acceptor.refuse(to, &reason),
                    }
                }
                Event::Question { from, kind, .. } if kind == KIND_STATUS => {
                    acceptor.answer(from, KIND_STATUS, b"well");
                }
                Event::Question { from, .. } => acceptor.refuse(from, "unknown"),
                Event::Parted((number, _)) => parted.push(number),
            }
        }
    }
    parted
}

fn begin(path: &Path, kind: u32) -> Introduction {
    let question = PROTOCOL.question(kind, &[]);
    Introduction::begin(PROTOCOL, path, &Trust::default(), &question, 4096).unwrap()
}

fn attach(acceptor: &mut Acceptor<Session>) -> Result<(OwnedFd, Answer), AttachError> {
    let asked = begin(acceptor.path(), KIND_ATTACH);
    serve(acceptor);
    let answer = asked.wait(Duration::from_secs(10))?;
    Ok((asked.into_socket(), answer))
}

#[test]
fn a_segment_is_handed_over_and_its_charge_ends_with_its_last_holder() {
    let folder = tempfile::tempdir().unwrap();
    let mut acceptor = open(folder.path());
    let uid = local_socket::effective_uid();
    let (socket, mut answer) = attach(&mut acceptor).unwrap();
    assert_eq!((answer.kind, &*answer.body), (KIND_ATTACH, &b"terms"[..]));
    let file = answer.descriptors.pop().unwrap();
    let map = SharedMap::open(file, SEGMENT_BYTES, Sharing::ReadWrite).unwrap();
    let ours = acceptor.sessions().next().unwrap().1.slice();
    map.slice().write_at(5, b"seen");
    let mut seen = [0; 4];
    ours.read_at(5, &mut seen);
    assert_eq!(&seen, b"seen");
    drop(socket);
    assert_eq!(serve(&mut acceptor), [1]);
    assert_eq!(
        acceptor.usage(uid).bytes,
        SEGMENT_BYTES as u64,
        "it is mapped"
    );
    drop(map);
    let begun = Instant::now();
    while acceptor.usage(uid).places > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the charge stays"
        );
        serve(&mut acceptor);
    }
}

#[test]
fn places_are_limited_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut acceptor = open(folder.path());
    let held: Vec<_> = (0..4).map(|_| attach(&mut acceptor).unwrap()).collect();
    match attach(&mut acceptor) {
        Err(AttachError::Refused { reason }) => {
            assert!(
                reason.contains("4 segments, the most allowed is 4"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
    drop(held);
    assert_eq!(serve(&mut acceptor), [1; 4]);
    attach(&mut acceptor).unwrap();
}

#[test]
fn who_is_silent_is_crowded_out_and_hung_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut acceptor = open(folder.path());
    let connect = |_| local_socket::connect(&folder.path().join("test.sock")).unwrap();
    let gone = |mute: &[OwnedFd]| {
        let gone = mute.iter().map(|it| local_socket::is_hung_up(it.as_fd()));
        gone.collect::<Vec<_>>()
    };
    let all_begun = Instant::now();
    let (mute, now_gone) = loop {
        let begun = Instant::now();
        let mute: Vec<OwnedFd> = (0..PENDING_MAX + 20).map(connect).collect();
        serve(&mut acceptor);
        let now_gone = gone(&mute);
        // Else some may have been silent for too long already.
        if begun.elapsed() < INTRODUCTION_TIME_MAX {
            break (mute, now_gone);
        }
        drop(mute);
        serve(&mut acceptor);
        assert!(
            all_begun.elapsed() < Duration::from_secs(60),
            "never in time"
        );
    };
    assert_eq!(now_gone[..20], [true; 20], "the oldest go first");
    assert_eq!(now_gone[20..], [false; PENDING_MAX]);
    // One that asks gets its answer all the same.
    let asked = begin(acceptor.path(), KIND_STATUS);
    serve(&mut acceptor);
    assert_eq!(asked.wait(Duration::from_secs(10)).unwrap().body, b"well");
    let attached = attach(&mut acceptor).unwrap();
    std::thread::sleep(INTRODUCTION_TIME_MAX);
    serve(&mut acceptor);
    assert!(gone(&mute).iter().all(|&gone| gone));
    assert!(!local_socket::is_hung_up(attached.0.as_fd()));
}

#[test]
fn nonsense_ends_its_connection_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut acceptor = open(folder.path());
    let other = Protocol {
        version: 4,
        ..PROTOCOL
    };
    for (question, reason) in [
        (PROTOCOL.question(9, &[]).to_vec(), "unknown"),
        (
            other.question(KIND_STATUS, &[]).to_vec(),
            "speaks version 4",
        ),
        (
            PROTOCOL.message(KIND_STATUS, &[0; 3]),
            "a question of 19 bytes",
        ),
        (
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            "no message of a sidecore client",
        ),
    ] {
        let trust = Trust::default();
        let asked =
            Introduction::begin(PROTOCOL, acceptor.path(), &trust, &question, 4096).unwrap();
        serve(&mut acceptor);
        match asked.wait(Duration::from_secs(10)) {
            Err(AttachError::Refused { reason: said }) => {
                assert!(said.contains(reason), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(acceptor.refused_total(), 4);
}
