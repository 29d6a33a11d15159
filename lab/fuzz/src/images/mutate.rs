//! Damage: from single bits to fields, cuts and moves, and tables that are deliberately wrong.

use super::fixtures::Seed;
use sidecore_random::split_mix;
use xxhash_rust::xxh3::xxh3_64;

/// Makes damaged images, one after another; the same seed makes the same ones.
#[derive(Debug)]
pub struct Mutator {
    noise: Noise,
    data: Vec<u8>,
}

/// A damaged image.
#[derive(Debug)]
pub struct Mutant<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// Its index was given a valid checksum after the damage: wrong bytes can then no longer be
    /// detected.
    pub resealed: bool,
}

impl Mutator {
    /// Begins with `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            noise: Noise(seed),
            data: Vec::new(),
        }
    }

    /// Damages `seed`'s image in one to four places.
    pub fn mutate(&mut self, seed: &Seed) -> Mutant<'_> {
        self.data.clear();
        self.data.extend_from_slice(&seed.image);
        for _ in 0..=self.noise.below(4) {
            self.damage();
        }
        let resealed = self.noise.below(4) == 0 && self.reseal();
        Mutant {
            data: &self.data,
            resealed,
        }
    }

    /// A place in the image: half of the time in headers and tables.
    fn place(&mut self) -> usize {
        let len = self.data.len();
        match self.noise.below(4) {
            0 => self.noise.below(len.min(200)),
            1 => len.saturating_sub(1 + self.noise.below(len.min(200))),
            _ => self.noise.below(len),
        }
    }

    fn damage(&mut self) {
        if self.data.is_empty() {
            return;
        }
        let at = self.place();
        let len = self.data.len();
        match self.noise.below(10) {
            0..=2 => self.data[at] ^= 1 << self.noise.below(8),
            3 => self.data[at] = self.noise.next() as u8,
            4 => {
                let value = self.value();
                let width = [2, 4, 8][self.noise.below(3)].min(len - at);
                let little = self.noise.below(2) == 0;
                let bytes = if little {
                    value.to_le_bytes()
                } else {
                    value.to_be_bytes()
                };
                let bytes = if little {
                    &bytes[..width]
                } else {
                    &bytes[8 - width..]
                };
                self.data[at..at + width].copy_from_slice(bytes);
            }
            5 => self.data.truncate(at),
            6 => {
                let more = self.noise.below(64);
                let noise = &mut self.noise;
                self.data.extend((0..more).map(|_| noise.next() as u8));
            }
            7 => {
                // Moves a run of bytes: entries duplicate, descend, overlap.
                let run = self.noise.below(64).min(len - at);
                let to = self.place().min(len - run);
                self.data.copy_within(at..at + run, to);
            }
            8 => {
                let run = self.noise.below(64).min(len - at);
                self.data.drain(at..at + run);
            }
            _ => {
                let run = self.noise.below(64).min(len - at);
                self.data[at..at + run].fill(0);
            }
        }
    }

    /// Numbers that provoke overflow.
    fn value(&mut self) -> u64 {
        let edges = [
            0,
            1,
            0x7F,
            0xFF,
            0x7FFF,
            0xFFFF,
            0x7FFF_FFFF,
            0x8000_0000,
            0xFFFF_FFFF,
            (1 << 60) - 1,
            1 << 60,
            i64::MAX as u64,
            u64::MAX - 7,
            u64::MAX,
            self.data.len() as u64,
            self.data.len() as u64 + 1,
        ];
        match self.noise.below(3) {
            0 => self.noise.next(),
            1 => self.noise.next() >> self.noise.below(64),
            _ => edges[self.noise.below(edges.len())],
        }
    }

    /// Gives our index frame, if there is one, a valid checksum of its damaged contents.
    fn reseal(&mut self) -> bool {
        let magic = MAGIC.to_le_bytes();
        let found = self
            .data
            .windows(16)
            .rposition(|window| window[..4] == magic && window[8..16] == TAG);
        let Some(start) = found else {
            return false;
        };
        let field = &self.data[start + 4..start + 8];
        let length = field
            .iter()
            .rev()
            .fold(0, |above, &byte| above << 8 | usize::from(byte));
        let Some(end) = (start + 8)
            .checked_add(length)
            .filter(|&end| end <= self.data.len())
        else {
            return false;
        };
        let Some(sealed) = end.checked_sub(16).filter(|&sealed| sealed >= start + 8) else {
            return false;
        };
        let check = xxh3_64(&self.data[start + 8..sealed]);
        self.data[sealed..sealed + 8].copy_from_slice(&check.to_le_bytes());
        true
    }
}

/// Noise: the same seed gives the same numbers.
#[derive(Debug, Clone)]
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number below `end`; 0 when that is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % (end as u64).max(1)) as usize
    }
}

/// A skippable frame's first bytes, and those of an index in one (`docs/formats/seekable-zstd.md`).
const MAGIC: u32 = 0x184D_2A5C;
const TAG: [u8; 8] = *b"sidecore";
