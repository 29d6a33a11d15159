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
    fn programs() -> [(&'static str, Vec<u32>); 10] {
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
        let [saxpy, copy, hash, filter] = kernels();
        [
            ("integers", integers.to_vec()),
            ("memory and shuffles", memory.to_vec()),
            ("single precision", floats.to_vec()),
            ("double precision", doubles.to_vec()),
            ("bytes in memory", scalars.to_vec()),
            ("calls and branches", calls.to_vec()),
            ("saxpy", saxpy),
            ("copy of memory", copy),
            ("hash of words", hash),
            ("filter of four taps", filter),
        ]
    }

    /// Loops of kernels, by vectors of a buffer that the index in register 14 goes round.
    fn kernels() -> [Vec<u32>; 4] {
        let load = |to: u8, from: u8| word("lqx", to, from, 14, 0);
        let store = |from: u8, to: u8| word("stqx", from, to, 14, 0);
        let next = word("ai", 14, 14, 0, 16);
        let closed = |mut body: Vec<u32>| {
            body.extend([
                next,
                word("andi", 14, 14, 0, 0x1f0),
                word("ai", 3, 3, 0, -1),
            ]);
            let back = i32::try_from(body.len()).unwrap_or(0);
            body.push(word("brnz", 3, 0, 0, -back));
            body
        };
        let saxpy = vec![
            load(4, 15),
            load(5, 8),
            word("fma", 6, 5, 7, 0),
            store(6, 15),
        ];
        let copy = vec![load(5, 8), store(5, 15), next, load(6, 8), store(6, 15)];
        // The product of words by three of halves.
        let hash = vec![
            load(5, 8),
            word("xor", 9, 9, 5, 0),
            word("mpyh", 10, 9, 7, 0),
            word("mpyh", 11, 7, 9, 0),
            word("mpyu", 12, 9, 7, 0),
            word("a", 9, 10, 11, 0),
            word("a", 9, 9, 12, 0),
            word("roti", 9, 9, 0, 13),
        ];
        let filter = vec![
            load(5, 8),
            word("fm", 4, 5, 6, 0),
            load(5, 15),
            word("fma", 4, 5, 7, 0),
            load(5, 16),
            word("fma", 4, 5, 6, 0),
            load(5, 8),
            word("fma", 4, 5, 7, 0),
            store(4, 17),
        ];
        [saxpy, copy, hash, filter].map(closed)
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
            for at in (0x1000..0x5000).step_by(16) {
                store.save(
                    at,
                    Quadword([0x3f80_0000, 0x3f40_0001, 0x3e85_0607, 0x3f00_1234]),
                );
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
        // The loop's count, and addresses of buffers.
        machine.set_register(3, Quadword([u32::MAX, 0, 0, 0]));
        for (number, address) in [(8, 0x1000), (15, 0x2000), (16, 0x3000), (17, 0x4000)] {
            machine.set_register(number, Quadword([address, 0, 0, 0]));
        }
        for number in 9..12 {
            let value = [0x3fe0_1234, 0x5678_9abc, 0x3fe8_0000, 0x1111_1111];
            machine.set_register(number, Quadword(value));
        }
        machine
    }
}
