//! Streams of random instructions, damage to them, and round trips.
//!
//! Why here: the codec's tests use them. `lab/fuzz` includes this file for its target and its
//! bounded run; names of the codec are imported from the parent module, which differs.
//!
//! Source: docs/formats/lzo1x.md.

use super::{Deflater, Inflate, Inflater, bound};

/// Compresses `raw` at `level`, checks the stream's bound, and decompresses it again; leaves the
/// stream in `stream`.
///
/// # Panics
/// If the result is not `raw`, or the stream is longer than the bound.
pub fn round_trip(deflate: &mut dyn Deflater, raw: &[u8], stream: &mut Vec<u8>) {
    deflate
        .deflate(raw, stream)
        .unwrap_or_else(|error| panic!("deflating failed: {error}"));
    let bound = bound(raw.len());
    assert!(
        stream.len() <= bound,
        "{} bytes became {}",
        raw.len(),
        stream.len()
    );
    let mut out = vec![0; raw.len()];
    Inflate::new()
        .inflate(stream, &mut out)
        .unwrap_or_else(|error| panic!("inflating: {error}"));
    assert!(out == raw, "{} bytes came back changed", raw.len());
}

/// Random numbers, so that a seed replays a run.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        sidecore_random::split_mix(&mut self.0)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// True once in `odds`.
    pub fn once_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }
}

/// A stream of random instructions of every class, and its output length. All are valid, except
/// that one in `lies` distances reaches back too far.
pub fn random_stream(random: &mut Random, output_max: usize, lies: usize) -> (Vec<u8>, usize) {
    let mut stream = Vec::new();
    let mut output = 1 + random.below(300);
    if output <= 238 {
        stream.push(17 + output as u8);
    } else {
        put_length(&mut stream, 0, output - 3, 15);
    }
    put_random(random, &mut stream, output);
    let mut after = output.min(4);
    while output < output_max {
        let reach = if random.once_in(lies.max(1)) {
            usize::MAX
        } else {
            output
        };
        let class = random.below(if after > 0 { 5 } else { 6 });
        let count = random.below(4);
        let length = match class {
            0 if after > 0 => {
                let base = if after == 4 { 2049 } else { 1 };
                if reach < base {
                    continue;
                }
                let near = random.below((reach - base + 1).min(1024));
                stream.extend([(near << 2 & 12 | count) as u8, (near >> 2) as u8]);
                if after == 4 { 3 } else { 2 }
            }
            1 | 2 => {
                let (length, near) = (3 + random.below(6), random.below(reach.min(2048)));
                stream.push(((length - 1) << 5 | (near & 7) << 2 | count) as u8);
                stream.push((near >> 3) as u8);
                length
            }
            3 => {
                let (length, near) = (some_length(random), random.below(reach.min(0x4000)));
                put_length(&mut stream, 0x20, length - 2, 31);
                stream.extend(((near << 2 | count) as u16).to_le_bytes());
                length
            }
            4 => {
                if reach <= 0x4000 {
                    continue;
                }
                let far = 1 + random.below((reach - 0x4000).min(FAR - 0x4000));
                let length = some_length(random);
                put_length(&mut stream, 0x10 | (far >> 11 & 8) as u8, length - 2, 7);
                stream.extend(((far << 2 | count) as u16).to_le_bytes());
                length
            }
            _ => {
                let longest = if random.once_in(8) { 700 } else { 20 };
                let length = 4 + random.below(longest);
                put_length(&mut stream, 0, length - 3, 15);
                put_random(random, &mut stream, length);
                (after, output) = (4, output + length);
                continue;
            }
        };
        put_random(random, &mut stream, count);
        (after, output) = (count, output + length + count);
    }
    stream.extend([0x11, 0, 0]);
    (stream, output)
}

/// Mostly short, sometimes long.
fn some_length(random: &mut Random) -> usize {
    match random.below(16) {
        0 => 2 + random.below(3000),
        1..=4 => 2 + random.below(70),
        _ => 2 + random.below(12),
    }
}

fn put_random(random: &mut Random, stream: &mut Vec<u8>, count: usize) {
    stream.extend((0..count).map(|_| random.bits() as u8));
}

fn put_length(stream: &mut Vec<u8>, instruction: u8, length: usize, all_ones: usize) {
    match length {
        1.. if length <= all_ones => stream.push(instruction | length as u8),
        // A length of 0 has no encoding; use the shortest.
        0 => stream.push(instruction | 1),
        _ => {
            stream.push(instruction);
            let more = length - all_ones;
            stream.extend(std::iter::repeat_n(0, (more - 1) / 255));
            stream.push(((more - 1) % 255 + 1) as u8);
        }
    }
}

/// Changes a few bytes of `data`: bits, values, lengths cut and repeated.
pub fn mutate(random: &mut Random, data: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        if data.is_empty() {
            return;
        }
        let at = random.below(data.len());
        match random.below(8) {
            0 => data[at] ^= 1 << random.below(8),
            1 => data[at] = random.bits() as u8,
            2 => data[at] = [0, 1, 15, 16, 17, 18, 31, 32, 63, 64, 255][random.below(11)],
            3 => data.truncate(at),
            4 => data.insert(at, random.bits() as u8),
            5 => drop(data.remove(at)),
            6 => data.extend((0..random.below(40)).map(|byte| byte as u8)),
            _ => {
                let end = data.len().min(at + random.below(32));
                let piece = data[at..end].to_vec();
                let to = random.below(data.len());
                data.splice(to..to, piece);
            }
        }
    }
}

/// The farthest distance that an instruction can name.
const FAR: usize = 0xbfff;
