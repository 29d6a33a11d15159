//! Files made by lzop: a container around blocks of LZO1X.
//!
//! The container, integers big-endian: 9 bytes of magic; u16 version, library version, version
//! needed; u8 method, level; u32 flags, [filter], mode, time, time high; u8 length and the name;
//! u32 checksum. Then per block u32 raw length (0 ends), stored length, and a checksum of the raw
//! bytes for each of flags 0x1 and 0x100. Unless the block is stored uncompressed, a checksum of
//! the stored bytes follows for each of 0x2 and 0x200.

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
