//! Runs translated code of the SPU's own programs: memory for it, and the way in and out.
//!
//! The code is `sidecore_spu::translate`'s. Its memory is mapped twice, once writable and once
//! executable, so that no page is both. A block lies there until the room is used up; then all are
//! forgotten. A block whose words in the store changed is translated again, and interpreted once
//! that has happened often.
//!
//! Must stay true: one thread at a time has a value of this type and enters its code. No code is
//! written while it runs. Source: mmap(2), mremap(2); Intel 64 and IA-32 Architectures
//! Software Developer's Manual, volume 3, section 9.1.3, for code that is written anew.

use sidecore_bare::width::ToUsize;
use sidecore_spu::translate::{self, BLOCK_BYTES_MAX, Frame, Left};
use sidecore_spu::{Exit, Machine, Quadword, STORE_BYTES};
use std::io;
use std::sync::OnceLock;

/// Bytes of code that a context keeps.
const CODE_BYTES: usize = 4 << 20;
/// Changes after which a block is only interpreted.
const CHANGES_MAX: u8 = 16;
/// Instructions that are interpreted of such a block.
const INTERPRETED: u64 = 16;

/// A local store as programs of the SPU see it: the most significant byte of a word first.
#[derive(Debug)]
pub struct Words(*mut u8);

impl Words {
    /// The store at an address.
    ///
    /// # Safety
    /// 256 KiB from there, aligned to 16 bytes, stay mapped for reading and writing as long as this
    /// value is used. Others may write them at any time, but not by references.
    #[must_use]
    pub unsafe fn new(at: *mut u8) -> Self {
        Self(at)
    }

    fn word(&self, address: u32) -> *mut u32 {
        // Inside the store, so by the promise of `new` inside one allocation.
        self.0.wrapping_add(address.to_usize()).cast()
    }
}

impl sidecore_spu::Store for Words {
    fn load(&self, address: u32) -> Quadword {
        Quadword([0, 4, 8, 12].map(|at| self.fetch(address + at)))
    }

    fn save(&mut self, address: u32, value: Quadword) {
        for (at, word) in (address..).step_by(4).zip(value.0) {
            // SAFETY: as of `fetch`.
            unsafe { self.word(at).write_volatile(word.swap_bytes()) };
        }
    }

    fn fetch(&self, address: u32) -> u32 {
        // SAFETY: aligned and inside the store by the trait's promise; others may write it at any
        // time, so volatile.
        unsafe { self.word(address).read_volatile() }.swap_bytes()
    }
}

/// The blocks of a program.
#[derive(Debug)]
pub struct Translated {
    memory: Memory,
    used: usize,
    leave: usize,
    /// Bytes in front of the first block.
    gate: usize,
    entries: Box<[usize]>,
    changes: Box<[u8]>,
}

/// True where SIDECORE_SPE_SPU and the processor let programs be translated.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let asked = std::env::var("SIDECORE_SPE_SPU").ok();
        match asked.as_deref() {
            Some("interpreter") => return false,
            None | Some("" | "translated") => {}
            Some(other) => eprintln!(
                "libspe2: SIDECORE_SPE_SPU={other:?} is unknown; \
                 it is `translated` or `interpreter`"
            ),
        }
        is_possible()
    })
}

fn is_possible() -> bool {
    std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("lzcnt")
}

impl Translated {
    /// Room for blocks.
    ///
    /// # Errors
    /// The processor has neither AVX2 nor FMA, or the system refuses executable memory.
    pub fn new() -> io::Result<Self> {
        if !is_possible() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut memory = Memory::new(CODE_BYTES)?;
        let (gate, leave) = translate::gate();
        let leave = memory.place(0, &gate) + leave;
        Ok(Self {
            memory,
            used: gate.len().next_multiple_of(16),
            leave,
            gate: gate.len().next_multiple_of(16),
            entries: vec![0; STORE_BYTES / 4].into_boxed_slice(),
            changes: vec![0; STORE_BYTES / 4].into_boxed_slice(),
        })
    }

    /// Bytes of code at present.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.used
    }

    /// Runs a machine as [`Machine::run`] does.
    pub fn run(&mut self, machine: &mut Machine, store: &mut Words, budget: u64) -> Exit {
        let end = machine.executed().saturating_add(budget);
        loop {
            let left = end - machine.executed();
            if left == 0 {
                return Exit::Budget;
            }
            let place = (machine.pc() >> 2).to_usize();
            let changed = self.changes.get(place).copied().unwrap_or(0);
            let steps = if machine.interrupted() {
                1
            } else if changed >= CHANGES_MAX {
                INTERPRETED
            } else {
                if self.entries.get(place) == Some(&0) {
                    self.translate(store, machine.pc());
                }
                match self.enter(machine, store, left) {
                    Left::Missing => continue,
                    Left::Stale => {
                        self.forget((machine.pc() >> 2).to_usize());
                        continue;
                    }
                    Left::Interpret => 1,
                    Left::Budget => end - machine.executed(),
                }
            };
            let steps = steps.min(end - machine.executed());
            if steps == 0 {
                return Exit::Budget;
            }
            match machine.run(store, steps) {
                Exit::Budget => {}
                exit => return exit,
            }
        }
    }

    /// Enters the block at the program counter, which was translated.
    fn enter(&mut self, machine: &mut Machine, store: &mut Words, left: u64) -> Left {
        type Gate = unsafe extern "C" fn(*mut Frame, usize) -> i32;
        let place = (machine.pc() >> 2).to_usize();
        let block = self.entries[place];
        let budget = i64::try_from(left).unwrap_or(i64::MAX);
        let frame = machine.frame();
        frame.store = store.0.expose_provenance();
        frame.tables = std::ptr::from_ref(translate::tables()).expose_provenance();
        frame.entries = self.entries.as_ptr().expose_provenance();
        frame.leave = self.leave;
        frame.helper = (interpret as *const ()).expose_provenance();
        frame.budget = budget;
        frame.follow_status();
        let frame = std::ptr::from_mut(frame);
        // SAFETY: the gate's bytes are a function of this type, and mapped for execution.
        let gate = unsafe { std::mem::transmute::<*const u8, Gate>(self.memory.code) };
        // SAFETY: all pointers of the frame were just set; the block was made by `translate`.
        let left_by = unsafe { gate(frame, block) };
        // SAFETY: the code has ended, and the machine is borrowed by this function alone.
        let ran = budget - unsafe { (*frame).budget };
        machine.ran(ran.unsigned_abs());
        Left::of(left_by)
    }

    fn forget(&mut self, place: usize) {
        self.entries[place] = 0;
        self.changes[place] = self.changes[place].saturating_add(1);
    }

    fn translate(&mut self, store: &Words, address: u32) {
        if self.used + BLOCK_BYTES_MAX > CODE_BYTES {
            self.entries.fill(0);
            self.used = self.gate;
            serialize();
        }
        let code = translate::block(store, address);
        assert!(
            code.len() <= BLOCK_BYTES_MAX,
            "a block of {} bytes",
            code.len()
        );
        self.entries[(address >> 2).to_usize()] = self.memory.place(self.used, &code);
        self.used += code.len().next_multiple_of(16);
    }
}

/// Makes the processor fetch code again whose place had other code before.
fn serialize() {
    std::arch::x86_64::__cpuid(0);
}

/// Runs an instruction that has no code of its own.
extern "C" fn interpret(frame: *mut Frame, word: u32) {
    // SAFETY: called by translated code only, with the frame that it was entered with.
    unsafe { (*frame).interpret(word) };
}

/// Memory that is written at one address and executed at another.
#[derive(Debug)]
struct Memory {
    code: *const u8,
    written: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory of this value; nothing of it belongs to a thread.
unsafe impl Send for Memory {}

impl Memory {
    fn new(bytes: usize) -> io::Result<Self> {
        let (place, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever there is room.
        let written = unsafe { libc::mmap(place, bytes, access, kind, -1, 0) };
        if written == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // No descriptor, as in `store`: a host may count on the next one's number.
        // SAFETY: the mapping stays where it is; the second one lies wherever there is room.
        let code = unsafe { libc::mremap(written, 0, bytes, libc::MREMAP_MAYMOVE) };
        if code == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // SAFETY: mapped above, and in no use.
            unsafe { libc::munmap(written, bytes) };
            return Err(error);
        }
        // From here on dropping it unmaps both.
        let memory = Self {
            code: code.cast(),
            written: written.cast(),
            bytes,
        };
        // SAFETY: the range that was just mapped, of which nothing is used yet.
        if unsafe { libc::mprotect(code, bytes, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(memory)
    }

    /// Copies code to an offset, where there is room for it; returns its address.
    fn place(&mut self, at: usize, code: &[u8]) -> usize {
        assert!(at + code.len() <= self.bytes, "code at {at}");
        // SAFETY: inside the mapping, of which nothing runs now.
        unsafe {
            let to = self.written.add(at);
            std::ptr::copy_nonoverlapping(code.as_ptr(), to, code.len());
        }
        self.code.expose_provenance() + at
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this length, and in no other use.
        unsafe {
            libc::munmap(self.written.cast(), self.bytes);
            libc::munmap(self.code.cast_mut().cast(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
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
}
