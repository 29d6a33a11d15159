//! Instructions a second of the interpreter, for three loops: `cargo run --release --example
//! speed`.

use sidecore_spu::{Exit, Fields, Machine, Quadword, STORE_BYTES, named};
use std::io::Write as _;
use std::time::Instant;

/// Instructions of each measurement, which is shorter than a slice of the processor.
const COUNT: u64 = 1_000_000;
/// The best of as many is printed.
const ROUNDS: usize = 100;

fn word(name: &str, rt: u8, ra: u8, rb: u8, immediate: i32) -> u32 {
    let fields = Fields {
        rt,
        ra,
        rb,
        rc: 4,
        immediate,
    };
    named(name).map_or(0, |row| row.encode(fields))
}

fn main() -> std::io::Result<()> {
    let integers = [
        word("a", 5, 5, 6, 0),
        word("roti", 7, 5, 0, 7),
        word("xor", 6, 6, 7, 0),
        word("ai", 3, 3, 0, -1),
        word("brnz", 3, 0, 0, -4),
    ];
    let memory = [
        word("lqd", 5, 8, 0, 4),
        word("shufb", 6, 5, 5, 0),
        word("a", 6, 6, 5, 0),
        word("stqd", 6, 8, 0, 5),
        word("ai", 3, 3, 0, -1),
        word("brnz", 3, 0, 0, -5),
    ];
    let floats = [
        word("fma", 5, 6, 7, 0),
        word("fm", 6, 5, 7, 0),
        word("fa", 9, 6, 5, 0),
        word("ai", 3, 3, 0, -1),
        word("brnz", 3, 0, 0, -4),
    ];
    let mut output = std::io::stdout();
    for (name, program) in [
        ("integers", &integers[..]),
        ("memory and shuffles", &memory[..]),
        ("single precision", &floats[..]),
    ] {
        let mut store = vec![0; STORE_BYTES];
        for (place, word) in program.iter().enumerate() {
            store[4 * place..][..4].copy_from_slice(&word.to_be_bytes());
        }
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let mut machine = Machine::new(0);
            for number in 4..8 {
                let value = [0x3f00_0203, 0x3f40_0001, 0x3e85_0607, 0x3f00_1234];
                machine.set_register(number, Quadword(value));
            }
            // The loop's count, and an address.
            machine.set_register(3, Quadword([u32::MAX, 0, 0, 0]));
            machine.set_register(8, Quadword([0x1000, 0, 0, 0]));
            let start = Instant::now();
            if machine.run(&mut store, COUNT) != Exit::Budget {
                return Err(std::io::Error::other(format!("{machine:?} ended")));
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        let millions = 1.0 / best;
        writeln!(
            output,
            "{name}: {millions:.0} million instructions a second"
        )?;
    }
    Ok(())
}
