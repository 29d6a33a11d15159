//! Translated code against the interpreter.

use super::*;
use sidecore_spu::{Fields, Format, INSTRUCTIONS, Instruction, named};

/// A store of a test.
struct Place(Vec<u128>);

impl Place {
    fn new(words: &[u32]) -> Self {
        let mut place = Self(vec![0; STORE_BYTES / 16]);
        place.set(words);
        place
    }

    fn set(&mut self, words: &[u32]) {
        let mut store = self.words();
        for (at, four) in (0..).step_by(16).zip(words.chunks(4)) {
            let of = |word: usize| four.get(word).copied().unwrap_or(0);
            let value = Quadword(std::array::from_fn(of));
            sidecore_spu::Store::save(&mut store, at, value);
        }
    }

    fn words(&mut self) -> Words {
        // SAFETY: the vector outlives each use in these tests.
        unsafe { Words::new(self.0.as_mut_ptr().cast()) }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// A word of a kind that instructions treat in a way of its own.
    fn special(&mut self) -> u32 {
        let sign = self.word() & 1 << 31;
        match self.below(12) {
            0 => sign,
            1 => self.word() & 0x1ff,
            2 => sign | self.word() & 0x7f_ffff,
            3 => sign | 0x7f80_0000 | self.word() & 0x7f_ffff,
            4 => sign | 0x7ff0_0000 | self.word() & 0xf,
            5 => u32::MAX,
            6 => sign | 0x0080_0000 | self.word() & 3,
            7 => sign | 0x7f7f_fffc | self.word() & 3,
            8..10 => sign | 0x3f00_0000 | self.word() & 0x1ff_ffff,
            _ => self.word(),
        }
    }

    fn register(&mut self, kind: u64) -> Quadword {
        // Numbers of any size and zeros: results that are too small, too large or cancel.
        let (few, exponents) = (self.below(4), self.below(3));
        let wide = |random: &mut Self, bits: u32| {
            let size = match exponents {
                0 => random.word() & 0x7fff_ffff,
                1 => [1 << bits, 0x3f00_0000, 0x7e00_0000][random.below(3) as usize],
                _ => [0x2000_0000, 0x1ff0_0000][random.below(2) as usize],
            };
            let fraction = random.word() & ((1 << bits) - 1);
            let kept = if random.below(2) == 0 {
                fraction
            } else {
                fraction & 3
            };
            let zero = few == 0 && random.below(2) == 0;
            if zero {
                0
            } else {
                random.word() & 1 << 31 | size >> bits << bits | kept
            }
        };
        match kind {
            // The same in all lanes, so that no other lane hides what one does.
            7 => Quadword([wide(self, 23); 4]),
            8 => {
                let high = wide(self, 20);
                Quadword([high, 0, high, 0])
            }
            4 => Quadword(std::array::from_fn(|_| wide(self, 23))),
            5..7 => Quadword(std::array::from_fn(|at| match (at % 2, few) {
                (0, _) => wide(self, 20),
                (_, 0 | 1) => 0,
                _ => self.word(),
            })),
            // Doublewords near one, and plain numbers.
            0 => Quadword(std::array::from_fn(|at| match at % 2 {
                0 => self.word() & 0x800f_ffff | 0x3fe0_0000,
                _ => self.word(),
            })),
            1 => Quadword([self.special(); 4]),
            2 => Quadword([self.word() & 0x3f_ffff, 0, 0, 0]),
            _ => Quadword(std::array::from_fn(|_| self.special())),
        }
    }
}

/// Both ways to run a program.
struct Both {
    places: [Place; 2],
    machines: [Machine; 2],
    translated: Translated,
}

impl Both {
    fn new() -> Self {
        Self {
            places: [Place::new(&[]), Place::new(&[])],
            machines: [Machine::new(0), Machine::new(0)],
            translated: Translated::new().expect("a processor with AVX2 and FMA"),
        }
    }

    /// Runs a program, and compares all that there is.
    fn same(&mut self, words: &[u32], registers: &[Quadword], budgets: &[u64], name: &str) {
        for (machine, place) in self.machines.iter_mut().zip(&mut self.places) {
            place.set(words);
            machine.set_pc(0);
            for (number, value) in (0..).zip(registers) {
                machine.set_register(number, *value);
            }
        }
        // Each program is new at its place: it is not to be taken for one that changes.
        self.translated.changes.fill(0);
        for budget in budgets {
            let [plain, other] = &mut self.machines;
            let [mut first, mut second] = self.places.each_mut().map(Place::words);
            let wanted = plain.run(&mut first, *budget);
            let found = self.translated.run(other, &mut second, *budget);
            assert_eq!(found, wanted, "{name}");
            assert_eq!(other.pc(), plain.pc(), "{name}");
            assert_eq!(other.executed(), plain.executed(), "{name}");
            for number in 0..128 {
                let of = |machine: &Machine| machine.register(number);
                let (found, wanted) = (of(other), of(plain));
                assert_eq!(
                    found, wanted,
                    "{name}: register {number} {found:x?} {wanted:x?}"
                );
            }
            let (found, wanted) = (other.float_status(), plain.float_status());
            assert_eq!(found, wanted, "{name}: status {found:x?} {wanted:x?}");
            assert!(self.places[0].0 == self.places[1].0, "{name}: the store");
            plain.answer(7);
            other.answer(7);
        }
    }
}

fn word(row: &Instruction, random: &mut Random, registers: u64) -> u32 {
    let mut number = || random.below(registers).to_le_bytes()[0];
    let [rt, ra, rb, rc] = [number(), number(), number(), number()];
    // Feature bits of branches are rare.
    let immediate = random.word().cast_signed();
    let near = row.format == Format::Ri16 && row.name.starts_with('b');
    row.encode(Fields {
        rt,
        ra,
        rb,
        rc,
        immediate: if near { immediate % 24 } else { immediate },
    })
}

#[test]
fn every_instruction_is_the_interpreters_to_the_bit() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut both = Both::new();
    let status = named("fscrwr").expect("a row").encode(Fields {
        ra: 7,
        ..Fields::default()
    });
    for row in INSTRUCTIONS {
        // Cases that floats have are rare.
        let rounds = if row.name.starts_with(['f', 'd']) {
            2000
        } else {
            100
        };
        for round in 0..rounds {
            let kind = random.below(11);
            let mut registers: Vec<_> = (0..8)
                .map(|_| {
                    let other = random.below(9);
                    random.register(if kind < 9 { kind } else { other })
                })
                .collect();
            if round % 3 > 0 {
                // Without flags that were set before, and with one rounding or two.
                let rounding = if round % 3 == 1 { 0 } else { random.word() };
                registers[7] = Quadword([rounding & 0xf00, 0, 0, 0]);
            }
            let words = [status, word(row, &mut random, 6), 0x2101, 0x2102];
            let name = format!("{} {words:x?} {registers:x?}", row.name);
            both.same(&words, &registers, &[8], &name);
        }
    }
}

#[test]
fn results_at_the_edges_of_formats_raise_what_the_interpreter_raises() {
    let below_one = Quadword([0x3fef_ffff, u32::MAX, 0x3fef_ffff, u32::MAX]);
    let least = Quadword([0x0010_0000, 0, 0x0010_0000, 0]);
    let small = Quadword([0x0080_0000; 4]);
    let large = Quadword([0x7f7f_ffff; 4]);
    let one = Quadword([0x3f80_0000; 4]);
    let mut both = Both::new();
    let registers = [Quadword::default(), below_one, least, small, large, one];
    for name in ["fm", "fa", "fs", "dfm", "dfa", "dfs"] {
        for (ra, rb) in (0..36).map(|pair| (pair / 6, pair % 6)) {
            let of = |name: &str, fields| named(name).expect("a row").encode(fields);
            let reset = of("fscrwr", Fields::default());
            let fields = Fields {
                rt: 6,
                ra,
                rb,
                ..Fields::default()
            };
            let words = [reset, of(name, fields), 0x2101];
            both.same(&words, &registers, &[8], &format!("{name} {ra} {rb}"));
        }
    }
}

#[test]
fn random_programs_are_the_interpreters_to_the_bit() {
    let rounds = std::env::var("SIDECORE_SPE_PROGRAMS").ok();
    let rounds = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(400);
    let mut both = Both::new();
    for seed in 1..=rounds {
        let mut random = Random(seed << 20 | 0x5_4321);
        let registers: Vec<_> = (0..16)
            .map(|_| {
                let kind = random.below(9);
                random.register(kind)
            })
            .collect();
        let words: Vec<_> = (0..80)
            .map(|_| match random.below(40) {
                0 => random.word(),
                1..15 => {
                    let floats = ["fa", "fs", "fm", "fma", "fms", "fnms", "dfa", "dfm", "dfma"];
                    let name = floats[random.below(9) as usize];
                    word(named(name).expect("a row"), &mut random, 16)
                }
                _ => {
                    let row = random.below(INSTRUCTIONS.len() as u64) as usize;
                    word(&INSTRUCTIONS[row], &mut random, 16)
                }
            })
            .collect();
        let budgets = [random.below(9), random.below(90), 300, 300, 300];
        // What the last program left is a part of this one's beginning, the same in both.
        both.same(&words, &registers, &budgets, &format!("seed {seed}"));
    }
}

#[test]
fn code_that_changes_is_the_code_that_runs() {
    let of = |name: &str, rt, ra, immediate| {
        let fields = Fields {
            rt,
            ra,
            immediate,
            ..Fields::default()
        };
        named(name).expect("a row").encode(fields)
    };
    // A loop that replaces an instruction in front of it and one behind, in the same block.
    let program = [
        of("ai", 5, 5, 1),
        of("ai", 6, 6, 3),
        of("nop", 0, 0, 0),
        of("nop", 0, 0, 0),
        of("stqd", 8, 0, 2),
        of("ai", 3, 3, -1),
        of("nop", 0, 0, 0),
        of("nop", 0, 0, 0),
        of("ai", 7, 7, 1),
        of("stqd", 9, 0, 0),
        of("brnz", 3, 0, -10),
        0x2101,
    ];
    let four = |first| Quadword([first, program[1], program[2], program[3]]);
    let mut registers = vec![Quadword::default(); 10];
    registers[3] = Quadword([40, 0, 0, 0]);
    let seven = of("ai", 7, 7, 100);
    registers[8] = Quadword([seven, program[9], program[10], program[11]]);
    registers[9] = four(of("ai", 5, 5, 16));
    Both::new().same(
        &program,
        &registers,
        &[5, 1000],
        "a loop that changes itself",
    );
    // The host changes it between two calls.
    let mut place = Place::new(&program[..4]);
    let mut machine = Machine::new(0);
    let mut translated = Translated::new().expect("a processor with AVX2 and FMA");
    for step in 1..100 {
        let mut store = place.words();
        let value = Quadword([of("il", 5, 0, step), 0x2101, 0, 0]);
        sidecore_spu::Store::save(&mut store, 0, value);
        machine.set_pc(0);
        let exit = translated.run(&mut machine, &mut store, 10);
        assert_eq!(exit, Exit::Stop(0x2101));
        assert_eq!(machine.register(5).0[0].cast_signed(), step);
    }
}

#[test]
fn room_that_is_used_up_is_used_again() {
    let add = named("ai").expect("a row").encode(Fields {
        rt: 3,
        ra: 3,
        immediate: 1,
        ..Fields::default()
    });
    // A straight line through the whole store, three times around.
    let words = vec![add; STORE_BYTES / 4];
    let mut place = Place::new(&words);
    let mut machine = Machine::new(0);
    let mut translated = Translated::new().expect("a processor with AVX2 and FMA");
    let mut most = 0;
    for _ in 0..3 * 65_536 / 4096 {
        let exit = translated.run(&mut machine, &mut place.words(), 4096);
        assert_eq!(exit, Exit::Budget);
        most = most.max(translated.bytes());
    }
    assert_eq!(machine.register(3).0[0], 3 * 65_536);
    assert!(most <= CODE_BYTES);
}

#[test]
fn the_longest_blocks_fit_and_are_the_same_each_time() {
    let mut random = Random(0x77);
    for row in INSTRUCTIONS {
        let words: Vec<_> = (0..80).map(|_| word(row, &mut random, 128)).collect();
        let mut place = Place::new(&words);
        let code = translate::block(&place.words(), 0);
        assert!(
            code.len() <= BLOCK_BYTES_MAX,
            "{}: {}",
            row.name,
            code.len()
        );
        assert_eq!(code, translate::block(&place.words(), 0));
    }
}
