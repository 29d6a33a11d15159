//! Instructions a second of the SPU's own programs, translated and interpreted in turn, for loops
//! of several kinds: `cargo run --release -p sidecore-spe --example speed`.
#![allow(
    unsafe_code,
    reason = "a store by its address, as translated code has it"
)]

fn main() -> std::io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    measured::print()?;
    Ok(())
}

#[cfg(target_arch = "x86_64")]
mod measured {
    use sidecore_spu::{Exit, Fields, Machine, Quadword, STORE_BYTES, Store as _, named};
    use spe2::translated::{Translated, Words};
    use std::io::Write as _;
    use std::time::Instant;

    /// Instructions of each measurement, which is shorter than a slice of the processor.
    const COUNT: u64 = 100_000;
    const RUN_MILLIONS: f64 = 0.1;
    /// The best of as many is printed.
    const ROUNDS: usize = 200;

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

    /// Loops by their names.
    fn programs() -> [(&'static str, Vec<u32>); 6] {
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
        let doubles = [
            word("dfma", 9, 10, 11, 0),
            word("dfm", 12, 10, 11, 0),
            word("dfa", 10, 12, 11, 0),
            word("ai", 3, 3, 0, -1),
            word("brnz", 3, 0, 0, -4),
        ];
        let scalars = [
            word("andi", 14, 3, 0, 0x1ff),
            word("lqx", 5, 8, 14, 0),
            word("cbx", 4, 8, 14, 0),
            word("shufb", 5, 7, 5, 0),
            word("stqx", 5, 8, 14, 0),
            word("ceqi", 13, 14, 0, 7),
            word("brnz", 13, 0, 0, 2),
            word("ai", 3, 3, 0, -1),
            word("brnz", 3, 0, 0, -8),
        ];
        let calls = [
            word("brsl", 0, 0, 0, 4),
            word("ai", 3, 3, 0, -1),
            word("brnz", 3, 0, 0, -2),
            word("nop", 0, 0, 0, 0),
            word("a", 5, 5, 6, 0),
            word("bi", 0, 0, 0, 0),
        ];
        [
            ("integers", integers.to_vec()),
            ("memory and shuffles", memory.to_vec()),
            ("single precision", floats.to_vec()),
            ("double precision", doubles.to_vec()),
            ("bytes in memory", scalars.to_vec()),
            ("calls and branches", calls.to_vec()),
        ]
    }

    /// Measures each loop, and prints it.
    pub(super) fn print() -> std::io::Result<()> {
        let mut output = std::io::stdout();
        writeln!(
            output,
            "million instructions a second, the best of {ROUNDS} runs"
        )?;
        writeln!(
            output,
            "{:24} {:>10} {:>11}",
            "loop", "translated", "interpreted"
        )?;
        for (name, program) in programs() {
            let mut memory = vec![0_u128; STORE_BYTES / 16];
            // SAFETY: aligned, of this size, and in no other use while the value is.
            let mut store = unsafe { Words::new(memory.as_mut_ptr().cast()) };
            for (at, four) in (0..).step_by(16).zip(program.chunks(4)) {
                let of = |word: usize| four.get(word).copied().unwrap_or(0);
                store.save(at, Quadword(std::array::from_fn(of)));
            }
            let mut translated = Translated::new()?;
            let mut best = [f64::INFINITY; 2];
            for _ in 0..ROUNDS {
                for (best, interpreted) in best.iter_mut().zip([false, true]) {
                    let mut machine = machine();
                    let start = Instant::now();
                    let exit = if interpreted {
                        machine.run(&mut store, COUNT)
                    } else {
                        translated.run(&mut machine, &mut store, COUNT)
                    };
                    if exit != Exit::Budget {
                        return Err(std::io::Error::other(format!("{machine:?} ended")));
                    }
                    *best = best.min(start.elapsed().as_secs_f64());
                }
            }
            let [translated, interpreted] = best.map(|seconds| RUN_MILLIONS / seconds);
            writeln!(output, "{name:24} {translated:10.0} {interpreted:11.0}")?;
        }
        Ok(())
    }

    /// A machine at the beginning of a loop.
    fn machine() -> Machine {
        let mut machine = Machine::new(0);
        for number in 4..8 {
            let value = [0x3f00_0203, 0x3f40_0001, 0x3e85_0607, 0x3f00_1234];
            machine.set_register(number, Quadword(value));
        }
        // The loop's count, and an address.
        machine.set_register(3, Quadword([u32::MAX, 0, 0, 0]));
        machine.set_register(8, Quadword([0x1000, 0, 0, 0]));
        for number in 9..12 {
            let value = [0x3fe0_1234, 0x5678_9abc, 0x3fe8_0000, 0x1111_1111];
            machine.set_register(number, Quadword(value));
        }
        machine
    }
}
