//! Streams with one fault each, and the errors that they give.

use super::classes::Raw;
use super::{CodecError, Inflate, Inflater, Lzo1xError, deflated, inflate, samples, through_trait};

/// Enough bytes after an instruction that the fast loop reaches it first.
fn padded(raw: Raw) -> Raw {
    raw.middle(3, 1, 0).run(200).short(8, 3, 0).run(200).end()
}

#[test]
fn every_truncation_is_an_error() {
    let raw = Raw::first(30)
        .short(8, 7, 2)
        .pair(9, 0)
        .run(300)
        .middle(600, 5, 1)
        .middle(40, 30, 0)
        .run(5)
        .end();
    for length in 0..raw.stream.len() {
        let cut = &raw.stream[..length];
        let error = inflate(cut, raw.output.len()).unwrap_err();
        assert!(
            matches!(error, Lzo1xError::InputOverrun { .. }),
            "{length} bytes: {error}"
        );
    }
    for (name, raw) in samples().iter().filter(|(_, raw)| raw.len() > 100) {
        let stream = deflated(1, raw);
        for length in (0..stream.len()).step_by(stream.len() / 500 + 1) {
            assert!(
                inflate(&stream[..length], raw.len()).is_err(),
                "{name}: {length} bytes"
            );
        }
    }
}

#[test]
fn lookbehind_is_reported() {
    let lies = [
        Raw::first(30).short(3, 31, 0),
        Raw::first(30).middle(3, 31, 0),
        Raw::first(30).middle(100, 31, 0),
        Raw::first(30).middle(3, 0x4000, 0),
        Raw::first(30).far(3, 0x4001, 0),
        Raw::first(30).far(20, 0xbfff, 0),
        Raw::first(3).pair(4, 0),
        Raw::first(30).after_run(2049, 0),
    ];
    for lie in lies {
        let room = lie.output.len() + 1000;
        for stream in [lie.clone().end().stream, padded(lie).stream] {
            let error = inflate(&stream, room).unwrap_err();
            assert!(
                matches!(error, Lzo1xError::LookbehindOverrun { .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn output_overrun_is_reported() {
    let raw = padded(
        Raw::first(30)
            .middle(300, 31 - 1, 2)
            .short(4, 1, 1)
            .middle(20, 3, 0),
    );
    for room in 0..raw.output.len() {
        match inflate(&raw.stream, room) {
            Err(Lzo1xError::OutputOverrun {
                needed, room: had, ..
            }) => {
                assert!(needed > room && had == room);
            }
            other => panic!("room {room}: {other:?}"),
        }
    }
    let got = through_trait(&raw.stream, 100);
    assert!(matches!(
        got,
        Err(CodecError::Length {
            at_least: true,
            expected: 100,
            ..
        })
    ));
}

#[test]
fn short_output_is_reported() {
    let raw = padded(Raw::first(30));
    let length = raw.output.len();
    for room in [length + 1, length + 100] {
        assert!(inflate(&raw.stream, room).unwrap() == raw.output);
        let got = through_trait(&raw.stream, room);
        assert!(
            matches!(got, Err(CodecError::Length { got, at_least: false, .. }) if got == length)
        );
    }
}

#[test]
fn trailing_garbage_is_reported() {
    for count in [1, 2, 100] {
        let raw = padded(Raw::first(30));
        let mut stream = raw.stream.clone();
        stream.resize(stream.len() + count, 0x20);
        let expected = Lzo1xError::TrailingGarbage {
            at: raw.stream.len(),
            count,
        };
        assert_eq!(inflate(&stream, raw.output.len()), Err(expected));
        let got = through_trait(&stream, raw.output.len());
        assert!(
            matches!(got, Err(CodecError::Corrupt { reason, .. }) if reason.contains("trailing"))
        );
    }
}

#[test]
fn a_full_output_still_needs_its_end_marker() {
    let raw = Raw::first(100);
    let error = inflate(&raw.stream, 100).unwrap_err();
    assert_eq!(
        error,
        Lzo1xError::InputOverrun {
            at: raw.stream.len()
        }
    );
}

#[test]
fn nothing_is_kept_from_a_frame_that_failed() {
    let bad = Raw::first(30).short(3, 31, 0).end();
    let good = padded(Raw::first(30));
    let mut inflate = Inflate::new();
    let mut out = vec![0; good.output.len()];
    assert!(inflate.inflate(&bad.stream, &mut out).is_err());
    inflate.inflate(&good.stream, &mut out).unwrap();
    assert!(out == good.output);
}

/// A caller that breaks its promise gets an error or wrong bytes, never a panic.
#[test]
fn another_frame_in_the_middle_does_no_harm() {
    let raw = padded(Raw::first(200).middle(600, 100, 0));
    let mut inflate = Inflate::new();
    let mut out = vec![0; raw.output.len()];
    inflate.try_advance(&raw.stream, &mut out, 700).unwrap();
    assert!(inflate.try_advance(&[0x11, 0], &mut out[..10], 10).is_err());
    assert!(inflate.try_advance(&[], &mut [], 0).is_err());
}

#[test]
fn messages_say_where() {
    let error = inflate(&Raw::first(3).short(3, 4, 0).end().stream, 100).unwrap_err();
    let expected = "the match at byte 4 reaches back 4 bytes where only 3 were written";
    assert_eq!(error.to_string(), expected);
}
