//! Every instruction: those that compute against results that a second, independent description of
//! the document gave, the others by small programs.

use super::*;
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
    file[17] = 1;
    assert_eq!(
        Executable::parse(&file).err(),
        Some(ExecutableError::Kind(1))
    );
}

/// Sets of operands: integers, single, then double precision.
const OPERANDS: [Operands; 11] = [
    [
        0xffffffff_00000000_892f902b_9531985d,
        0x81e74ef5_1600a35a_00000001_8d116ece,
        0x00000001_00000009_0c0c0c0c_00000004,
    ],
    [
        0x00035a65_1e27a1c0_8f8f8f8f_000001a6,
        0xa3a3a3a3_18f135d2_10101010_9e9e9e9e,
        0xae2eb154_c6c6c6c6_00007fff_80000000,
    ],
    [
        0x11800001_80000001_3f800001_40000000,
        0x817fffff_3f320aa3_c1000001_236e970b,
        0xc0576378_00ffffff_006a6146_bf808623,
    ],
    [
        0xb47fffff_416f7c41_bf327286_007fffff,
        0x00000000_b4000000_b47fffff_80800001,
        0xc10fb94b_41000000_7f800001_4b1a447c,
    ],
    [
        0xc171cb1c_00668162_7fffffff_801358e7,
        0xb469cb18_00ffffff_b2000000_bf7fffff,
        0x80000001_b2000001_eb000001_7f685376,
    ],
    [
        0x4b430243_b2000000_80bc9b6a_cb29b9c8,
        0x320d94fe_81000000_4b000000_b440b5f7,
        0xbdd7b37b_00000000_8c3c9b6a_3fff87f4,
    ],
    [
        0x1f47e9ee_9212824c_c0000000_00000000,
        0x03c80000_00000000_1f4ed3a3_6af25748,
        0xc00fffff_ffffffff_bf4fffff_ffffffff,
    ],
    [
        0x80000000_00000000_0026ea33_a66d58b5,
        0xbfe80000_00000000_800121ae_03a63966,
        0x80080000_00000000_00000000_00000001,
    ],
    [
        0x00000000_00000000_014fffff_ffffffff,
        0x9f410e8a_86a74a63_c2400000_00000000,
        0x00180000_00000000_bcbfffff_ffffffff,
    ],
    [
        0x7fffffff_ffffffff_00000000_00000001,
        0xc2480000_00000000_c2400000_00000000,
        0x42480000_00000000_9f400000_00000000,
    ],
    [
        0x0144944f_de962a6d_bcbbd313_41785bc6,
        0x8144944f_de962a6d_bcbbd313_41785bc6,
        0x3ff00000_00000000_ffe00000_00000000,
    ],
];

/// Name, number, rounding, set of operands, result, status; hexadecimal.
const ROWS: &str = "\
ah 0 0 0 81e64ef41600a35a892f902c2242072b
ah 0 0 1 a3a6fe083718d7929f9f9f9f9e9ea044
ahi 3c4 0 0 ffc3ffc3ffc4ffc488f38fef94f59821
a 0 0 0 81e74ef41600a35a892f902c2243072b
a 0 0 1 a3a6fe083718d7929f9f9f9f9e9ea044
ai 34d 0 1 000359b21e27a10d8f8f8edc000000f3
sfh 0 0 0 81e84ef61600a35a76d16fd6f7e0d671
sfh 0 0 1 a3a0493efaca9412808180819e9e9cf8
sfhi 2e3 0 0 fee4fee4fee3fee375b46eb869b26686
sf 0 0 0 81e74ef61600a35a76d06fd6f7dfd671
sf 0 0 1 a3a0493efac99412808080819e9e9cf8
sfi 2cd 0 1 fffca468e1d85d0d70706f3efffffd27
addx 0 0 0 81e74ef51600a35b892f902c2243072b
addx 0 0 1 a3a6fe083718d7929f9f9fa09e9ea044
cg 0 0 0 00000001000000000000000000000001
cg 0 0 1 00000000000000000000000000000000
cgx 0 0 0 00000001000000000000000000000001
cgx 0 0 1 00000000000000000000000000000000
sfx 0 0 0 81e74ef61600a35a76d06fd5f7dfd670
sfx 0 0 1 a3a0493dfac99411808080819e9e9cf7
bg 0 0 0 00000000000000010000000000000000
bg 0 0 1 00000001000000000000000000000001
bgx 0 0 0 00000000000000010000000000000000
bgx 0 0 1 00000001000000000000000000000001
mpy 0 0 0 ffffb10b00000000ffff902bd32490d6
mpy 0 0 1 df62dd4fec2f6f80f8f1e8f0ff5f7874
mpyu 0 0 0 4ef4b10b000000000000902b41f290d6
mpyu 0 0 1 39c7dd4f22016f800901e8f001057874
mpyi 296 0 0 0000016a00000000009e233200928c7e
mpyui 362 0 1 5a2d35aaa15c2b808f3665be01a4fb8c
mpya 0 0 0 ffffb10c000000090c0b9c37d32490da
mpya 0 0 1 8d918ea3b2f63646f8f268ef7f5f7874
mpyh 0 0 0 b10b000000000000892f00001b6e0000
mpyh 0 0 1 eae90000cefe0000e8f0000000000000
mpys 0 0 0 ffffffff00000000ffffffffffffd324
mpys 0 0 1 ffffdf62ffffec2ffffff8f1ffffff5f
mpyhh 0 0 0 00007e1900000000000000002ff3e541
mpyhh 0 0 1 fffeeae902f00ab7f8f1e8f000000000
mpyhha 0 0 0 00007e1a000000090c0c0c0c2ff3e545
mpyhha 0 0 1 ae2d9c3dc9b6d17df8f268ef80000000
mpyhhu 0 0 0 81e67e1900000000000000005235e541
mpyhhu 0 0 1 0001eae902f00ab70901e8f000000000
mpyhhau 0 0 0 81e67e1a000000090c0c0c0c5235e545
mpyhhau 0 0 1 ae309c3dc9b6d17d090268ef80000000
clz 0 0 0 00000000000000200000000000000000
clz 0 0 1 0000000e000000030000000000000017
cntb 0 0 0 08080808000000000305020404030305
cntb 0 0 1 00020404040403020505050500000104
fsmb 0 0 0 ffffffffffffffffffffffffffffffff
fsmb 0 0 1 00ff00ffff00ff0000ffff0000ff00ff
fsmh 0 0 0 ffffffffffffffffffffffffffffffff
fsmh 0 0 1 0000ffffffff00000000ffff0000ffff
fsm 0 0 0 ffffffffffffffffffffffffffffffff
fsm 0 0 1 00000000ffffffff00000000ffffffff
fsmbi c3c9 0 0 ffff00000000ffffffff0000ff0000ff
gbb 0 0 0 0000f0dd000000000000000000000000
gbb 0 0 1 000056f2000000000000000000000000
gbh 0 0 0 000000cf000000000000000000000000
gbh 0 0 1 000000ec000000000000000000000000
gb 0 0 0 0000000b000000000000000000000000
gb 0 0 1 0000000a000000000000000000000000
avgb 0 0 0 c0f3a7fa0b00522d4518481691218396
avgb 0 0 1 52537f841b8c6bc9505050504f4f50a2
absdb 0 0 0 7e18b10a1600a35a892f902a08202a71
absdb 0 0 1 a3a0493e06ca6c127f7f7f7f9e9e9d08
sumb 0 0 0 02ab03fc011300000001017301da01bb
sumb 0 0 1 028c00c2021001a60040023c027800a7
xsbh 0 0 0 ffffffff00000000002f002b0031005d
xsbh 0 0 1 000300650027ffc0ff8fff8f0000ffa6
xshw 0 0 0 ffffffff00000000ffff902bffff985d
xshw 0 0 1 00005a65ffffa1c0ffff8f8f000001a6
xswd 0 0 0 0000000000000000ffffffff9531985d
xswd 0 0 1 000000001e27a1c000000000000001a6
and 0 0 0 81e74ef500000000000000018511084c
and 0 0 1 00030221182121c00000000000000086
andc 0 0 0 7e18b10a00000000892f902a10209011
andc 0 0 1 00005844060680008f8f8f8f00000120
or 0 0 0 ffffffff1600a35a892f902b9d31fedf
or 0 0 1 a3a3fbe71ef7b5d29f9f9f9f9e9e9fbe
orc 0 0 0 ffffffffe9ff5ca5fffffffff7ff997d
orc 0 0 1 5c5f5e7dff2febedefefefef616161e7
xor 0 0 0 7e18b10a1600a35a892f902a1820f693
xor 0 0 1 a3a0f9c606d694129f9f9f9f9e9e9f38
nand 0 0 0 7e18b10afffffffffffffffe7aeef7b3
nand 0 0 1 fffcfddee7dede3fffffffffffffff79
nor 0 0 0 00000000e9ff5ca576d06fd462ce0120
nor 0 0 1 5c5c0418e1084a2d6060606061616041
eqv 0 0 0 81e74ef5e9ff5ca576d06fd5e7df096c
eqv 0 0 1 5c5f0639f9296bed60606060616160c7
andbi 394 0 1 00001004140480808484848400000084
andhi 1d4 0 0 01d401d4000000000104000001100054
andi 57 0 1 00000045000000400000000700000006
orbi 234 0 0 ffffffff34343434bd3fb43fb535bc7d
orhi 31b 0 1 ff1bff7fff3fffdbff9fff9fff1bffbf
ori 28 0 0 ffffffff00000028892f902b9531987d
xorbi 1 0 1 01025b641f26a0c18e8e8e8e010100a7
xorhi 321 0 0 00de00deff21ff21760e6f0a6a10677c
xori 80 0 1 00035ae51e27a1408f8f8f0f00000126
orx 0 0 0 ffffffff000000000000000000000000
orx 0 0 1 9fafffef000000000000000000000000
selb 0 0 0 ffffffff00000008812390239531985d
selb 0 0 1 a223eb2118e125c28f8f9010800001a6
shufb 0 0 0 ffffffffffffff2f95959595ffffff00
shufb 0 0 1 00010018ffffffff00009e8000000000
shlh 0 0 0 ff80000000000000892f205600004000
shlh 0 0 1 0018d328000000000000000000000000
shlhi 1d 0 0 00000000000000000000000000000000
shl 0 0 0 0000000000000000125f205666174000
shl 0 0 1 00000000870000008f8f000080000000
shli 48 0 1 035a650027a1c0008f8f8f000001a600
roth 0 0 0 ffffffff00000000892f20572a636617
roth 0 0 1 0018d32a3c4e87028f8f8f8f00008069
rothi 75 0 0 ffffffff0000000025f10572a6320bb3
rot 0 0 0 ffffffff00000000125f20576617654c
rot 0 0 1 001ad3288700789e8f8f8f8f80000069
roti 4 0 1 0035a650e27a1c01f8f8f8f800001a60
rothm 0 0 0 0000001f00000000892f000000010000
rothm 0 0 1 00000000000000020000000000000069
rothmi 52 0 0 00030003000000000002000200020002
rotm 0 0 0 001fffff000000000000000000000000
rotm 0 0 1 00000000000000000000000000000000
rotmi 5b 0 1 00000000000000000000000000000000
rotmah 0 0 0 ffffffff00000000892fffffffffffff
rotmah 0 0 1 000000000000fffeffffffff00000069
rotmahi 26 0 0 ffffffff00000000ffffffffffffffff
rotma 0 0 0 ffffffff00000000ffffffffffffffff
rotma 0 0 1 0000000000000000ffffffff00000000
rotmai 7b 0 1 00001ad300f13d0efc7c7c7c0000000d
shlqbi 0 0 0 ffffffe00000001125f20572a6330ba0
shlqbi 0 0 1 001ad328f13d0e047c7c7c7800000d30
shlqbii 10 0 0 ffffffff00000000892f902b9531985d
rotqbi 0 0 0 ffffffe00000001125f20572a6330bbf
rotqbi 0 0 1 001ad328f13d0e047c7c7c7800000d30
rotqbii 50 0 1 00035a651e27a1c08f8f8f8f000001a6
rotqmbi 0 0 0 1fffffffe00000001125f20572a6330b
rotqmbi 0 0 1 00001ad328f13d0e047c7c7c7800000d
rotqmbii 20 0 0 ffffffff00000000892f902b9531985d
shlqby 0 0 0 00000000000000000000000000000000
shlqby 0 0 1 651e27a1c08f8f8f8f000001a6000000
shlqbyi 43 0 1 651e27a1c08f8f8f8f000001a6000000
shlqbybi 0 0 0 00000000000000000000000000000000
shlqbybi 0 0 1 00000000000000000000000000000000
rotqby 0 0 0 000000892f902b9531985dffffffff00
rotqby 0 0 1 651e27a1c08f8f8f8f000001a600035a
rotqbyi 51 0 0 ffffff00000000892f902b9531985dff
rotqbybi 0 0 0 985dffffffff00000000892f902b9531
rotqbybi 0 0 1 1e27a1c08f8f8f8f000001a600035a65
rotqmby 0 0 0 0000000000000000000000ffffffff00
rotqmby 0 0 1 00000000000000000000000000000000
rotqmbyi 37 0 1 00000000000000000000035a651e27a1
rotqmbybi 0 0 0 0000ffffffff00000000892f902b9531
rotqmbybi 0 0 1 00000000000000000000000000035a65
ceqb 0 0 0 0000000000ff00000000000000000000
ceqb 0 0 1 00000000000000000000000000000000
ceqbi 2cb 0 0 00000000000000000000000000000000
cgtb 0 0 0 ffff00ff0000ff0000ff00ffffff00ff
cgtb 0 0 1 ffffffffffff000000000000ffffffff
cgtbi 30e 0 1 0000ffffffff00000000000000000000
clgtb 0 0 0 ffffffff00000000ffffffffffffff00
clgtb 0 0 1 00000000ff00ff00ffffffff000000ff
clgtbi 72 0 0 ffffffff00000000ff00ff00ff00ff00
ceqh 0 0 0 00000000000000000000000000000000
ceqh 0 0 1 00000000000000000000000000000000
ceqhi 65 0 1 00000000000000000000000000000000
cgth 0 0 0 ffff00000000ffff00000000ffff0000
cgth 0 0 1 ffffffffffff000000000000ffffffff
cgthi 48 0 0 00000000000000000000000000000000
clgth 0 0 0 ffffffff00000000ffffffffffffffff
clgth 0 0 1 00000000ffffffffffffffff00000000
clgthi 133 0 1 0000ffffffffffffffffffff0000ffff
ceq 0 0 0 00000000000000000000000000000000
ceq 0 0 1 00000000000000000000000000000000
ceqi 219 0 0 00000000000000000000000000000000
cgt 0 0 0 ffffffff0000000000000000ffffffff
cgt 0 0 1 ffffffffffffffff00000000ffffffff
cgti 3c6 0 1 ffffffffffffffff00000000ffffffff
clgt 0 0 0 ffffffff00000000ffffffffffffffff
clgt 0 0 1 00000000ffffffffffffffff00000000
clgti 254 0 0 ffffffff000000000000000000000000
il 3113 0 0 00003113000031130000311300003113
ilh 6359 0 0 63596359635963596359635963596359
ilhu 42c9 0 0 42c9000042c9000042c9000042c90000
ila e4f2 0 0 0000e4f20000e4f20000e4f20000e4f2
iohl ca5d 0 0 0000ca5d0000ca5d0c0cce5d0000ca5d
cbd 4c 0 0 101112131415161718191a031c1d1e1f
cbx 0 0 0 101112130315161718191a1b1c1d1e1f
cbx 0 0 1 101112131415161703191a1b1c1d1e1f
chd 0 0 1 101112130203161718191a1b1c1d1e1f
chx 0 0 0 101112130203161718191a1b1c1d1e1f
chx 0 0 1 101112131415161702031a1b1c1d1e1f
cwd 1 0 0 000102031415161718191a1b1c1d1e1f
cwx 0 0 0 101112130001020318191a1b1c1d1e1f
cwx 0 0 1 1011121314151617000102031c1d1e1f
cdd 44 0 1 10111213141516170001020304050607
cdx 0 0 0 000102030405060718191a1b1c1d1e1f
cdx 0 0 1 10111213141516170001020304050607
fa 0 0 2 118000003f320aa3c0e0000140000000 10000000000000000
fa 0 0 3 b47fffff416f7c40bf32728980800001 1
fa 0 0 4 c171cb1c00ffffff7ffffffebf7fffff 10000000100000001
fa 0 0 5 4b430243b20000004affffffcb29b9c8
fs 0 0 2 11800001bf320aa3411000013fffffff 10000000000000000
fs 0 0 3 b47fffff416f7c41bf32728200800001 1
fs 0 0 4 c171cb1b80ffffff7fffffff3f7fffff 10000000100000001
fs 0 0 5 4b430242b1ffffffcb000000cb29b9c7
fm 0 0 2 0000000000000000c100000223ee970b 3000000010000000000000000
fm 0 0 3 00000000b5ef7c413432728500000000 1
fm 0 0 4 365cd1af00000000f27fffff00000000 10000000100000001
fm 0 0 5 3dd7b37b000000008c3c9b6a3fff87f4 30000000000000000
fma 0 0 2 c057637800ffffffc1000002bf808622 10000000100000000
fma 0 0 3 c10fb94b40fffffc7f8000014b1a447c 100000001
fma 0 0 4 365cd1afb2000001f28000ff7f685376 1000000010000000100000001
fma 0 0 5 3147e9e8000000008cbc9b6a407f87f4 30000000000000000
fms 0 0 2 4057637780ffffffc10000023f808623 10000000100000000
fms 0 0 3 410fb94bc1000001ff800000cb1a447c 100000001
fms 0 0 4 365cd1af32000001f27ffdfeff685376 1000000010000000100000001
fms 0 0 5 3e57b37b000000000000000032e53fc0 30000000000000000
fnms 0 0 2 c057637700ffffff41000002bf808623 10000000100000000
fnms 0 0 3 c10fb94b410000017f8000004b1a447c 100000001
fnms 0 0 4 b65cd1afb2000001727ffdfe7f685376 1000000010000000100000001
fnms 0 0 5 be57b37b0000000000000000b2e53fc0 30000000000000000
fceq 0 0 2 00000000000000000000000000000000
fceq 0 0 3 00000000000000000000000000000000
fceq 0 0 4 00000000000000000000000000000000
fcmeq 0 0 2 00000000000000000000000000000000
fcmeq 0 0 3 00000000000000000000000000000000
fcmeq 0 0 4 00000000000000000000000000000000
fcgt 0 0 2 ffffffff00000000ffffffffffffffff
fcgt 0 0 3 00000000ffffffff00000000ffffffff
fcgt 0 0 4 0000000000000000ffffffffffffffff
fcmgt 0 0 2 ffffffff0000000000000000ffffffff
fcmgt 0 0 3 ffffffffffffffffffffffff00000000
fcmgt 0 0 4 ffffffff00000000ffffffff00000000
csflt 8c 0 0 b800000000000000c76da0dfc7559ccf
csflt 9b 0 1 485699404df13d0ecee0e0e043d30000
cuflt 9b 0 0 4f7fffff000000004f092f904f153198
cuflt 9b 0 1 485699404df13d0e4f0f8f8f43d30000
cflts a5 0 2 00000000000000000000010000000200
cflts ad 0 3 000000000000000e0000000000000000
cflts a5 0 4 fffff0e4000000007fffffff00000000
cfltu 96 0 2 00000000000000000080000101000000
cfltu 96 0 3 00000000077be2080000000000000000
cfltu 96 0 4 0000000000000000ffffffff00000000
dfa 0 0 6 1f47e9ee9212824cc000000000000000 8000000080000000000
dfa 0 b 7 bfe80000000000000026ea33a66d58b5 10000000000
dfa 0 5 8 9f410e8a86a74a63c23fffffffffffff 80000000000
dfa 0 b 9 7ff8000000000000c240000000000000 2000000010000000000
dfa 0 6 a 0000000000000000bccbd31341785bc6
dfs 0 5 6 1f47e9ee9212824bc000000000000000 8000000080000000000
dfs 0 a 7 3fe80000000000000026ea33a66d58b5 10000000000
dfs 0 6 8 1f410e8a86a74a634240000000000001 80000000000
dfs 0 3 9 7ff80000000000004240000000000000 2000000010000000000
dfs 0 0 a 0154944fde962a6d0000000000000000
dfm 0 c 6 00000000000000009f5ed3a36af25748 18000000000000000000
dfm 0 4 7 00000000000000008000000000000000 10000000000
dfm 0 b 8 8000000000000000839fffffffffffff
dfm 0 d 9 7ff80000000000008000000000000000 2000000010000000000
dfm 0 8 a 8000000000000000398831a0c476145d 18000000080000000000
dfma 0 1 6 c00fffffffffffffbf4fffffffffffff 8000000080000000000
dfma 0 3 7 00000000000000008000000000000000 1000000010000000000
dfma 0 7 8 0018000000000000bcc0000000000000 80000000000
dfma 0 f 9 7ff80000000000009f40000000000000 2000000010000000000
dfma 0 3 a 3ff0000000000000ffe0000000000000 8000000080000000000
dfms 0 4 6 400fffffffffffff3f4fffffffffffff 8000000080000000000
dfms 0 c 7 00000000000000008000000000000000 1000000010000000000
dfms 0 d 8 80180000000000003cbffffffffffffe 80000000000
dfms 0 3 9 7ff80000000000001f40000000000000 2000000010000000000
dfms 0 3 a bff00000000000007fe0000000000000 8000000080000000000
dfnms 0 7 6 c00fffffffffffffbf4ffffffffffffe 8000000080000000000
dfnms 0 3 7 80000000000000000000000000000000 1000000010000000000
dfnms 0 4 8 0018000000000000bcbfffffffffffff 80000000000
dfnms 0 c 9 7ff80000000000009f40000000000000 2000000010000000000
dfnms 0 e a 3ff0000000000001ffe0000000000001 8000000080000000000
dfnma 0 4 6 400ffffffffffffe3f4fffffffffffff 8000000080000000000
dfnma 0 1 7 80000000000000008000000000000000 1000000010000000000
dfnma 0 f 8 80180000000000003cc0000000000000 80000000000
dfnma 0 9 9 7ff80000000000001f40000000000000 2000000010000000000
dfnma 0 7 a bfefffffffffffff7fe0000000000000 8000000080000000000
frds 0 9 6 0000000000000000c000000000000000 18000000000000000000
frds 0 2 7 80000000000000000000000000000000 180000000000
frds 0 e 8 00000000000000000000000000000000 180000000000
frds 0 3 9 7fc00000000000000000000000000000 2000000010000000000
frds 0 7 a 0000000000000000a5de989b00000000 18000000080000000000
fesd 0 6 2 3a300000200000003ff0000020000000
fesd 0 e 3 be8fffffe0000000bfe64e50c0000000
dfceq 0 a 6 00000000000000000000000000000000
dfceq 0 0 8 00000000000000000000000000000000
dfceq 0 f 9 00000000000000000000000000000000 2000000010000000000
dfcmeq 0 9 6 00000000000000000000000000000000
dfcmeq 0 2 8 00000000000000000000000000000000
dfcmeq 0 e 9 00000000000000000000000000000000 2000000010000000000
dfcgt 0 6 6 ffffffffffffffff0000000000000000
dfcgt 0 0 8 ffffffffffffffffffffffffffffffff
dfcgt 0 3 9 0000000000000000ffffffffffffffff 6000000010000000000
dfcmgt 0 0 6 ffffffffffffffffffffffffffffffff
dfcmgt 0 f 8 00000000000000000000000000000000
dfcmgt 0 9 9 00000000000000000000000000000000 6000000010000000000
dftsv 12 0 6 00000000000000000000000000000000
dftsv 35 0 8 00000000000000000000000000000000
dftsv 6 0 9 0000000000000000ffffffffffffffff";
