//! Tests of our LZO1X with hand-built streams, streams of other programs, properties and fuzzing.

mod classes;
mod deflate;
#[allow(
    unreachable_pub,
    reason = "lab/fuzz, which includes the same file, passes it on"
)]
mod differ;
mod errors;
mod guarded;
mod oracle;
#[allow(
    dead_code,
    reason = "the benchmark, which includes the same file, calls the rest"
)]
mod peer;
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

mod lzop {
    //! Files made by lzop: a container around blocks of LZO1X.
    //!
    //! The container, integers big-endian: 9 bytes of magic; u16 version, library version, version
    //! needed; u8 method, level; u32 flags, [filter], mode, time, time high; u8 length and the
    //! name; u32 checksum. Then per block u32 raw length (0 ends), stored length, and a checksum of
    //! the raw bytes for each of flags 0x1 and 0x100. Unless the block is stored uncompressed, a
    //! checksum of the stored bytes follows for each of 0x2 and 0x200.

    use super::{inflate, samples};
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn inflates_lzop_files() {
        let raw: Vec<u8> = samples().into_iter().flat_map(|(_, raw)| raw).collect();
        for level in ["-1", "-3", "-9"] {
            let file = lzop(level, &raw);
            let mut inflated = Vec::new();
            let mut streams = 0;
            for (raw_bytes, stored) in blocks(&file) {
                if stored.len() == raw_bytes {
                    inflated.extend(stored);
                } else {
                    inflated.extend(inflate(stored, raw_bytes).unwrap());
                    streams += 1;
                }
            }
            assert!(
                inflated == raw && streams > 2,
                "lzop {level}: {streams} streams"
            );
        }
    }

    fn lzop(level: &str, raw: &[u8]) -> Vec<u8> {
        let mut child = Command::new("lzop")
            .args([level, "-c"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run lzop ({error}); run scripts/setup"));
        let mut input = child.stdin.take().unwrap();
        let raw = raw.to_vec();
        let writer = std::thread::spawn(move || input.write_all(&raw).unwrap());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(output.status.success());
        output.stdout
    }

    fn blocks(file: &[u8]) -> Vec<(usize, &[u8])> {
        let word = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!(&file[..9], b"\x89LZO\0\r\n\x1a\n");
        let flags = word(17);
        assert_eq!(flags & 0x800, 0, "a filter");
        let name = usize::from(file[33]);
        let mut at = 34 + name + 4;
        let mut blocks = Vec::new();
        while word(at) != 0 {
            let (raw_bytes, stored_bytes) = (word(at) as usize, word(at + 4) as usize);
            let mut checks = (flags & 0x1).count_ones() + (flags & 0x100).count_ones();
            if stored_bytes < raw_bytes {
                checks += (flags & 0x2).count_ones() + (flags & 0x200).count_ones();
            }
            at += 8 + 4 * checks as usize;
            blocks.push((raw_bytes, &file[at..at + stored_bytes]));
            at += stored_bytes;
        }
        blocks
    }
}
