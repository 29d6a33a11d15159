//! Every instruction: those that compute against results that a second, independent description of
//! the document gave, the others by small programs.

mod assembly;
mod rows;

use super::*;
use rows::{OPERANDS, ROWS};
use std::collections::BTreeSet;

/// Registers of a row: RA, RB, and RC or the old RT.
type Operands = [u128; 3];

fn register(value: u128) -> Quadword {
    Quadword::of_bytes(value.to_be_bytes())
}

fn value(register: Quadword) -> u128 {
    u128::from_be_bytes(register.bytes())
}

fn word(name: &str, rt: u8, ra: u8, rb: u8, immediate: i32) -> u32 {
    let fields = Fields {
        rt,
        ra,
        rb,
        rc: 0,
        immediate,
    };
    named(name).expect("a row of the table").encode(fields)
}

fn store(words: &[u32]) -> Vec<u8> {
    let mut store = vec![0; STORE_BYTES];
    for (place, word) in words.iter().enumerate() {
        store[4 * place..][..4].copy_from_slice(&word.to_be_bytes());
    }
    store
}

/// Runs one instruction on operands; returns the result and the status of floats.
fn computed(row: &Instruction, immediate: i32, operands: Operands, rounding: u32) -> (u128, u128) {
    let mut machine = Machine::new(0);
    for (number, operand) in (1..).zip(operands) {
        machine.set_register(number, register(operand));
    }
    machine.set_register(9, Quadword([rounding << 8, 0, 0, 0]));
    let rt = if row.format == Format::Rrr { 4 } else { 3 };
    let instruction = row.encode(Fields {
        rt,
        ra: 1,
        rb: 2,
        rc: if rt == 4 { 3 } else { 0 },
        immediate,
    });
    let mut store = store(&[word("fscrwr", 0, 9, 0, 0), instruction]);
    assert_eq!(machine.run(&mut store, 2), Exit::Budget, "{}", row.name);
    let status = value(machine.float_status()) & !(u128::from(rounding) << 104);
    (value(machine.register(rt)), status)
}

/// The names of the rows, each of which has the results that it says.
fn rows() -> BTreeSet<&'static str> {
    ROWS.lines()
        .map(|line| {
            let words = line.split(' ').collect::<Vec<_>>();
            let number = |at: usize| u128::from_str_radix(words[at], 16).expect("hexadecimal");
            let small = |at: usize| u32::try_from(number(at)).expect("small");
            let row = named(words[0]).expect("a row of the table");
            let operands = OPERANDS[small(3) as usize];
            let found = computed(row, small(1).cast_signed(), operands, small(2));
            let status = if words.len() > 5 { number(5) } else { 0 };
            assert_eq!(found, (number(4), status), "{line}: {:032x}", found.0);
            row.name
        })
        .collect()
}

#[test]
fn instructions_that_compute_have_the_documents_results() {
    let covered = rows();
    for row in INSTRUCTIONS {
        let other = OTHERS
            .iter()
            .any(|names| names.split(' ').any(|name| name == row.name));
        assert!(covered.contains(row.name) != other, "{}", row.name);
    }
}

#[test]
fn words_decode_to_what_they_were_encoded_from() {
    let mut random = 1_u32;
    let mut known = 0;
    for _ in 0..200_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if let Some((row, fields)) = decode(random) {
            let again = row.encode(fields);
            assert_eq!(
                decode(again).map(|(row, fields)| (row.op, fields)),
                Some((row.op, fields))
            );
            known += 1;
        }
    }
    assert!(known > 100_000);
}

/// Instructions of the tests below.
const OTHERS: &[&str] = &[
    "lqd lqx lqa lqr stqd stqx stqa stqr",
    "heq heqi hgt hgti hlgt hlgti",
    "br bra brsl brasl bi iret bisled bisl brnz brz brhnz brhz biz binz bihz bihnz",
    "hbr hbra hbrr frest frsqest fi fscrwr fscrrd",
    "stop stopd lnop nop sync dsync mfspr mtspr rdch rchcnt wrch",
];

#[test]
fn quadwords_are_loaded_and_stored_where_the_document_says() {
    let wanted = register(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    let place = |at: u32| Quadword([at, 7, 7, 7]);
    for (save, load) in [
        (word("stqd", 1, 2, 0, -3), word("lqd", 4, 2, 0, -3)),
        (word("stqx", 1, 2, 3, 0), word("lqx", 4, 2, 3, 0)),
        (word("stqa", 1, 0, 0, 0x123), word("lqa", 4, 0, 0, 0x123)),
        (word("stqr", 1, 0, 0, 0x121), word("lqr", 4, 0, 0, 0x120)),
    ] {
        let mut store = store(&[save, load]);
        let mut machine = Machine::new(0);
        machine.set_register(1, wanted);
        // Bits above the store's size and below a quadword's do not count.
        machine.set_register(2, place(0xfff0_04bd));
        machine.set_register(3, place(0xffff_ffd0));
        assert_eq!(machine.run(&mut store, 2), Exit::Budget);
        assert_eq!(machine.register(4), wanted, "{save:08x}");
        assert_eq!(store[0x480..0x490], wanted.bytes());
    }
}

#[test]
fn branches_go_where_the_document_says() {
    let at = 0x1000_u32;
    let half = 0x0001_0000;
    for (name, rt, immediate, register, taken) in [
        ("br", 0, -4, 0, 0xff0),
        ("bra", 0, 0x300, 0, 0xc00),
        ("brsl", 5, 4, 0, 0x1010),
        ("brasl", 5, 0x300, 0, 0xc00),
        ("bi", 0, 0, 0, 0x2468),
        ("bisl", 5, 0, 0, 0x2468),
        ("bisled", 5, 0, 0, 0x1004),
        ("iret", 0, 0, 0, 0x40),
        ("brnz", 3, 4, half, 0x1010),
        ("brnz", 3, 4, 0, 0x1004),
        ("brz", 3, 4, 0, 0x1010),
        ("brz", 3, 4, half, 0x1004),
        ("brhnz", 3, 4, half, 0x1004),
        ("brhnz", 3, 4, 1, 0x1010),
        ("brhz", 3, 4, half, 0x1010),
        ("brhz", 3, 4, 1, 0x1004),
        ("biz", 3, 0, 0, 0x2468),
        ("biz", 3, 0, half, 0x1004),
        ("binz", 3, 0, half, 0x2468),
        ("binz", 3, 0, 0, 0x1004),
        ("bihz", 3, 0, half, 0x2468),
        ("bihz", 3, 0, 1, 0x1004),
        ("bihnz", 3, 0, 1, 0x2468),
        ("bihnz", 3, 0, half, 0x1004),
    ] {
        let mut store = store(&[]);
        store[0x1000..0x1004].copy_from_slice(&word(name, rt, 2, 0, immediate).to_be_bytes());
        let mut machine = Machine::new(at);
        machine.set_register(2, Quadword([0xfffc_246b, 0, 0, 0]));
        machine.set_register(3, Quadword([register, 9, 9, 9]));
        machine.set_return_to(0x40);
        assert_eq!(machine.run(&mut store, 1), Exit::Budget);
        assert_eq!(machine.pc(), taken, "{name} {register:x}");
        if rt == 5 {
            assert_eq!(machine.register(5), Quadword([0x1004, 0, 0, 0]), "{name}");
        }
    }
}

#[test]
fn interrupts_come_where_they_are_enabled_and_return() {
    // Enabled by the branch to 8; the handler at 0 leaves with interrupts disabled.
    let mut store = store(&[word("iret", 0, 0, 0x20, 0), 0, word("nop", 0, 0, 0, 0)]);
    let mut machine = Machine::new(0x100);
    store[0x100..0x104].copy_from_slice(&word("bi", 0, 2, 0x10, 0).to_be_bytes());
    machine.set_register(2, Quadword([8, 0, 0, 0]));
    machine.set_event(true);
    machine.run(&mut store, 1);
    assert!(machine.interrupts());
    machine.run(&mut store, 1);
    assert_eq!((machine.pc(), machine.return_to()), (8, 8));
    machine.run(&mut store, 1);
    assert_eq!((machine.pc(), machine.interrupts()), (12, false));
    // With an event this one branches.
    store[12..16].copy_from_slice(&word("bisled", 5, 2, 0, 0).to_be_bytes());
    machine.run(&mut store, 1);
    assert_eq!(machine.pc(), 8);
}

#[test]
fn comparisons_halt() {
    for (name, a, b, immediate, halts) in [
        ("heq", 5, 5, 0, true),
        ("heq", 5, 6, 0, false),
        ("heqi", u32::MAX, 0, -1, true),
        ("heqi", 0x3ff, 0, -1, false),
        ("hgt", 1, u32::MAX, 0, true),
        ("hgt", u32::MAX, 1, 0, false),
        ("hgti", 1, 0, -1, true),
        ("hgti", 0x8000_0000, 0, -1, false),
        ("hlgt", u32::MAX, 1, 0, true),
        ("hlgt", 1, u32::MAX, 0, false),
        ("hlgti", u32::MAX, 0, -2, true),
        ("hlgti", 5, 0, -2, false),
    ] {
        let mut machine = Machine::new(0);
        machine.set_register(1, Quadword([a, 0, 0, 0]));
        machine.set_register(2, Quadword([b, 0, 0, 0]));
        let exit = machine.run(&mut store(&[word(name, 0, 1, 2, immediate)]), 1);
        assert_eq!(exit == Exit::Halt, halts, "{name} {a:x} {b:x}");
    }
}

#[derive(Default)]
struct Words(Vec<(u8, u32)>);

impl Channels for Words {
    fn read(&mut self, channel: Channel) -> Option<u32> {
        (channel.0 == 29).then_some(77)
    }

    fn write(&mut self, channel: Channel, value: u32) -> bool {
        self.0.push((channel.0, value));
        self.0.len() < 3
    }

    fn count(&mut self, channel: Channel) -> u32 {
        channel.0.into()
    }
}

#[test]
fn channels_are_asked_and_stops_come_back() {
    let program = [
        word("rdch", 3, 29, 0, 0),
        word("rchcnt", 4, 21, 0, 0),
        word("wrch", 3, 28, 0, 0),
        word("wrch", 4, 14, 0, 0),
        word("rdch", 5, 15, 0, 0),
        word("rdch", 6, 13, 0, 0),
        word("mtspr", 3, 7, 0, 0),
        word("mfspr", 3, 7, 0, 0),
        word("lnop", 0, 0, 0, 0),
        word("nop", 127, 0, 0, 0),
        word("sync", 0, 0, 0, 0),
        word("dsync", 0, 0, 0, 0),
        word("hbr", 1, 3, 0, 0),
        word("hbra", 1, 0, 0, 0x100),
        word("hbrr", 1, 0, 0, 0x100),
        word("fscrwr", 0, 8, 0, 0),
        word("fscrrd", 7, 0, 0, 0),
        0x2101,
        word("stopd", 0, 0, 0, 0),
        word("rdch", 3, 3, 0, 0),
    ];
    let mut store = store(&program);
    let mut machine = Machine::new(0);
    machine.set_register(8, Quadword([u32::MAX; 4]));
    let mut channels = Words::default();
    assert_eq!(
        machine.run_with(&mut store, &mut channels, 100),
        Exit::Stop(0x2101)
    );
    assert_eq!(machine.executed(), 18);
    assert_eq!(channels.0, [(28, 77)]);
    let registers = [3, 4, 5, 6].map(|number| machine.register(number).0[0]);
    assert_eq!(registers, [0, 21, 20, 0]);
    assert_eq!(
        machine.register(7),
        Quadword([0xf07, 0x3f07, 0x3f07, 0xf07])
    );
    assert_eq!(
        machine.run_with(&mut store, &mut channels, 100),
        Exit::Stop(0x3fff)
    );
    // A channel without a value: the answer goes on later.
    let exit = machine.run_with(&mut store, &mut channels, 100);
    assert_eq!(exit, Exit::Read(Channel(3)));
    machine.answer(5);
    assert_eq!(machine.register(3), Quadword([5, 0, 0, 0]));
    assert_eq!(machine.run(&mut store, 1), Exit::Stop(0));
    store[80..84].copy_from_slice(&0x00a0_0000_u32.to_be_bytes());
    machine.set_pc(80);
    assert_eq!(machine.run(&mut store, 1), Exit::Invalid(0x00a0_0000));
    assert_eq!(machine.pc(), 80);
}

#[test]
fn changed_code_is_the_code_that_runs() {
    let mut store = store(&[word("il", 3, 0, 0, 5)]);
    let mut machine = Machine::new(0);
    for number in [5, -9] {
        store[..4].copy_from_slice(&word("il", 3, 0, 0, number).to_be_bytes());
        machine.set_pc(0);
        machine.run(&mut store, 1);
        assert_eq!(machine.register(3).0[0].cast_signed(), number);
    }
}

#[test]
fn estimates_are_near_and_interpolated_nearer() {
    for name in ["frest", "frsqest"] {
        for step in 0_u32..4096 {
            let bits = 0x3f00_0000 + step * 0x1357;
            let mut machine = Machine::new(0);
            machine.set_register(1, Quadword([bits, 0x8000_0000, 0, bits]));
            machine.run(
                &mut store(&[word(name, 2, 1, 0, 0), word("fi", 3, 1, 2, 0)]),
                2,
            );
            let of = f64::from(f32::from_bits(bits));
            let exact = if name == "frest" {
                1.0 / of
            } else {
                1.0 / of.sqrt()
            };
            let found = f64::from(f32::from_bits(machine.register(3).0[0]));
            assert!(
                (found / exact - 1.0).abs() < 1.0 / 3000.0,
                "{name} {of}: {found}"
            );
            // Divided by zero.
            assert_eq!(machine.float_status().0[3], 0x600, "{name}");
            assert_eq!(machine.register(2).0[2], 0x7fff_ffff);
        }
    }
}

#[test]
fn executables_are_read_and_damaged_ones_refused() {
    let mut file = vec![0_u8; 0x100];
    file[..7].copy_from_slice(b"\x7fELF\x01\x02\x01");
    for (at, half) in [(16, 2_u16), (18, 23), (42, 32), (44, 1)] {
        file[at..at + 2].copy_from_slice(&half.to_be_bytes());
    }
    for (at, word) in [
        (24, 0x80_u32),
        (28, 52),
        (52, 1),
        (56, 0xf0),
        (60, 0x80),
        (68, 16),
        (72, 64),
    ] {
        file[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    let read = Executable::parse(&file).expect("a whole one");
    assert_eq!((read.entry(), read.end()), (0x80, 0xc0));
    assert_eq!(
        read.parts()
            .map(|(at, part)| (at, part.len()))
            .collect::<Vec<_>>(),
        [(0x80, 16)]
    );
    for length in 0..file.len() {
        assert!(Executable::parse(&file[..length]).is_err(), "{length}");
    }
    for at in 28..84 {
        let mut other = file.clone();
        other[at] ^= 0xff;
        // Any answer but a panic, and no part outside of the store.
        if let Ok(read) = Executable::parse(&other) {
            assert!(read.end() <= STORE_BYTES);
        }
    }
    // Its segment's bytes in memory, fewer than the 16 of the file.
    let mut other = file.clone();
    other[75] = 15;
    let error = Executable::parse(&other).expect_err("no such segment");
    assert!(error.to_string().contains("than in memory"), "{error}");
    file[17] = 1;
    assert_eq!(
        Executable::parse(&file).err(),
        Some(ExecutableError::Kind(1))
    );
}
