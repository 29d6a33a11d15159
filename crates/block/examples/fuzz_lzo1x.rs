//! Fuzzes LZO1X for a bounded number of cases: the fast inflater against the plain one, and round
//! trips.
//!
//! `cargo run --release -p sidecore-block --example fuzz_lzo1x -- --count 1000000 --seed 1`
//!
//! Why here: the same check as the fuzzer's target, but deterministic and with an end, so that it
//! can be run to it. A difference panics with the number of the case; `--first N --count 1` with
//! the same seed replays it.

use sidecore_block::codec::Deflater;
use sidecore_block::codec::lzo1x::fuzzing::{Differ, Random, mutate, random_stream, round_trip};
use sidecore_block::codec::lzo1x::{Deflate, LEVEL_MAX, LEVEL_MIN};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut count, mut seed, mut first) = (100_000u64, 1u64, 0u64);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        match (name.as_str(), value) {
            ("--count", Some(value)) => count = value,
            ("--seed", Some(value)) => seed = value,
            ("--first", Some(value)) => first = value,
            _ => {
                let _ = writeln!(
                    std::io::stderr(),
                    "fuzz_lzo1x: cannot read `{name}`; usage: [--count N] [--seed N] [--first N]"
                );
                return ExitCode::from(2);
            }
        }
    }

    let mut fuzz = Fuzz::new();
    for case in first..first.saturating_add(count) {
        fuzz.case(seed, case);
        if (case + 1) % 100_000 == 0 {
            let _ = writeln!(std::io::stderr(), "{} cases", case + 1);
        }
    }
    let Fuzz {
        good,
        bad,
        round_trips,
        ..
    } = fuzz;
    let _ = writeln!(
        std::io::stdout(),
        "seed {seed}: {count} cases, no difference: {good} good streams, {bad} bad ones, \
         {round_trips} round trips"
    );
    ExitCode::SUCCESS
}

struct Fuzz {
    differ: Differ,
    deflaters: Vec<Deflate>,
    stream: Vec<u8>,
    data: Vec<u8>,
    case: u64,
    good: u64,
    bad: u64,
    round_trips: u64,
}

/// Says which case it was when a check panics.
impl Drop for Fuzz {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "in case {}", self.case);
        }
    }
}

impl Fuzz {
    fn new() -> Self {
        Self {
            differ: Differ::new(),
            deflaters: (LEVEL_MIN..=LEVEL_MAX).map(Deflate::new).collect(),
            stream: Vec::new(),
            data: Vec::new(),
            case: 0,
            good: 0,
            bad: 0,
            round_trips: 0,
        }
    }

    fn case(&mut self, seed: u64, case: u64) {
        self.case = case;
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ case << 20);
        let kind = random.below(64);
        let (mut stream, mut room) = if kind == 0 {
            let raw = random_raw(&mut random);
            let level = random.below(self.deflaters.len());
            let deflater: &mut dyn Deflater = &mut self.deflaters[level];
            round_trip(deflater, &raw, &mut self.stream);
            self.round_trips += 1;
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
        if self.differ.compare(&self.data) {
            self.good += 1;
        } else {
            self.bad += 1;
        }
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
