//! LZO1X: streams of all instructions, noise and round trips, each damaged or not.

use sidecore_block::codec::Deflater;
use sidecore_block::codec::lzo1x::{Deflate, LEVEL_MAX, LEVEL_MIN};
use sidecore_fuzz::lzo1x::{Differ, Random, mutate, random_stream, round_trip};

/// The fast decompressor against the plain one.
pub(crate) struct Lzo1x {
    differ: Differ,
    deflaters: Vec<Deflate>,
    stream: Vec<u8>,
    data: Vec<u8>,
}

impl Lzo1x {
    pub(crate) fn new() -> Self {
        Self {
            differ: Differ::new(),
            deflaters: (LEVEL_MIN..=LEVEL_MAX).map(Deflate::new).collect(),
            stream: Vec::new(),
            data: Vec::new(),
        }
    }

    /// One case; returns true if its stream was good.
    pub(crate) fn case(&mut self, seed: u64, case: u64) -> bool {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ case << 20);
        let kind = random.below(64);
        let (mut stream, mut room) = if kind == 0 {
            let raw = random_raw(&mut random);
            let level = random.below(self.deflaters.len());
            let deflater: &mut dyn Deflater = &mut self.deflaters[level];
            round_trip(deflater, &raw, &mut self.stream);
            (self.stream.clone(), raw.len())
        } else if kind < 8 {
            let bytes = (0..random.below(200))
                .map(|_| random.bits() as u8)
                .collect();
            (bytes, random.below(2000))
        } else {
            let longest = if random.once_in(50) { 60_000 } else { 1500 };
            let output_max = 1 + random.below(longest);
            random_stream(&mut random, output_max, 2000)
        };
        if !random.once_in(3) {
            mutate(&mut random, &mut stream);
        }
        if random.once_in(8) {
            room = (room + 40).saturating_sub(random.below(80));
        }
        self.data.clear();
        self.data
            .extend_from_slice(&(room as u32).to_le_bytes()[..3]);
        self.data.push(random.bits() as u8);
        self.data.extend_from_slice(&stream);
        self.differ.compare(&self.data)
    }
}

/// Bytes with repetitions of many lengths and distances.
fn random_raw(random: &mut Random) -> Vec<u8> {
    let longest = if random.once_in(8) { 65_536 } else { 3000 };
    let length = random.below(longest);
    let letters = 1 + random.below(256);
    let mut raw = Vec::with_capacity(length);
    while raw.len() < length {
        if raw.is_empty() || random.once_in(3) {
            for _ in 0..=random.below(30) {
                raw.push(random.below(letters) as u8);
            }
        } else {
            let distance = 1 + random.below(raw.len());
            for _ in 0..=random.below(60) {
                raw.push(raw[raw.len() - distance]);
            }
        }
    }
    raw.truncate(length);
    raw
}
