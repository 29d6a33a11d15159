//! Tests of our LZO1X with hand-built streams, streams of other programs, properties and fuzzing.

mod classes;
mod deflate;
#[allow(
    unreachable_pub,
    reason = "lab/fuzz, which includes the same file, passes it on"
)]
mod differ;
mod errors;
mod guard;
mod lzop;
mod oracle;
#[allow(
    dead_code,
    reason = "the benchmark, which includes the same file, calls the rest"
)]
mod peer;
mod raw;
#[allow(
    unreachable_pub,
    reason = "lab/fuzz, which includes the same file, passes it on"
)]
mod streams;

use super::inflate_plainly;
use super::{Deflate, Inflate, Lzo1xError, bound};
use crate::codec::{CodecError, Deflater, Inflater};

/// Decompresses with the fast decompressor and asserts that the plain one gives the same result.
fn inflate(stream: &[u8], room: usize) -> Result<Vec<u8>, Lzo1xError> {
    let mut out = vec![0; room];
    let mut inflate = Inflate::new();
    let fast = loop {
        match inflate.try_advance(stream, &mut out, room) {
            Ok(count) if inflate.has_ended() => break Ok(out[..count].to_vec()),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    let mut plain = vec![0; room];
    let expected = inflate_plainly(stream, &mut plain).map(|count| plain[..count].to_vec());
    match (&fast, &expected) {
        (Ok(fast), Ok(expected)) => assert!(fast == expected, "fast and plain make other bytes"),
        _ => assert_eq!(
            fast.as_ref().err(),
            expected.as_ref().err(),
            "fast and plain differ"
        ),
    }
    fast
}

/// Bytes of several kinds: text, machine code, zeros, noise, short periods. The same each time,
/// except for the machine code.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut random = streams::Random(7);
    let text = include_str!("../../../../../../docs/formats/lzo1x.md").as_bytes();
    let code = include_bytes!("../fast.rs");
    vec![
        ("empty", Vec::new()),
        ("one byte", b"x".to_vec()),
        ("two bytes", b"xx".to_vec()),
        ("three bytes", b"xxx".to_vec()),
        ("four bytes", b"abab".to_vec()),
        ("text", text.to_vec()),
        ("source", code.to_vec()),
        ("program", program[..200_000].to_vec()),
        (
            "program, middle",
            program[program.len() / 2..][..65_536].to_vec(),
        ),
        ("zeros", vec![0; 300_000]),
        ("noise", (0..70_000).map(|_| random.bits() as u8).collect()),
        (
            "two letters",
            (0..50_000)
                .map(|_| b'a' + (random.bits() & 1) as u8)
                .collect(),
        ),
        (
            "period 3",
            b"abc".iter().copied().cycle().take(10_000).collect(),
        ),
        ("period 15", (0..15u8).cycle().take(5_000).collect()),
        ("period 17", (0..17u8).cycle().take(5_000).collect()),
        ("far repeats", {
            let noise: Vec<u8> = (0..49_151).map(|_| random.bits() as u8).collect();
            [&noise[..], &noise[..], &noise[..1000]].concat()
        }),
    ]
}

/// Frames as in an image.
fn frames(raw: &[u8]) -> Vec<&[u8]> {
    raw.chunks(65_536).collect()
}

/// A frame's stream at a level.
fn deflated(level: u8, raw: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    Deflate::new(level).deflate(raw, &mut stream).unwrap();
    stream
}

/// Result of decompressing a stream through the trait.
fn through_trait(stream: &[u8], room: usize) -> Result<Vec<u8>, CodecError> {
    let mut out = vec![0; room];
    Inflate::new().inflate(stream, &mut out).map(|()| out)
}

/// Result of lzokay on a stream.
fn lzokay_inflate(stream: &[u8], room: usize) -> Vec<u8> {
    let mut out = vec![0; room];
    let count = lzokay::decompress::decompress(stream, &mut out)
        .unwrap_or_else(|error| panic!("lzokay refuses the stream: {error}"));
    out.truncate(count);
    out
}
