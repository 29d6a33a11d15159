//! Operands of instructions in the order of assembly, and the places of their numbers.
//!
//! Why here: the assembler writes them, the linker changes them, the disassembler reads them.
//!
//! Must stay true: what `disassemble` writes is assembled to the same word. Sources: SPU Assembly
//! Language Specification 1.7; SPU Application Binary Interface Specification 1.9 (relocations).

use super::expression::{Expression, Parser};
use super::text::{arguments, is_name, shown, trim};
use crate::isa::{Format, Instruction, Op, decode, named};
use crate::object::{EXECUTED, Object, ObjectError, Place as Defined};
use sidecore_bare::text::printable;
use std::collections::BTreeMap;

/// An operand of an instruction, in the order of assembly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A register, whose number begins at this bit.
    Register(u32),
    /// A channel or a special register, whose number begins at bit 7.
    Channel,
    /// A number.
    Number(Place),
    /// A number, and in parentheses the register that it is added to, at bit 7.
    Displaced(Place),
}

/// A number's place in an instruction: its bits, its range, and the unit in which it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// 7 bits.
    Seven,
    /// 7 bits, shown with a sign.
    Count,
    /// The binary point of a conversion, subtracted from this.
    Scale(u8),
    /// 10 bits with a sign.
    Ten,
    /// 10 bits with a sign, of quadwords.
    Quadword,
    /// 16 bits, with a sign or without.
    Any,
    /// 16 bits with a sign.
    Signed,
    /// 18 bits.
    Eighteen,
    /// 16 bits of words: an address in the store.
    Absolute,
    /// 16 bits of words: a distance from the instruction.
    Relative,
    /// A hint's branch: 9 bits of words from the instruction, the first two of them at bit 23.
    Hint,
    /// The same with the first two at bit 14.
    IndirectHint,
    /// A code of `stop`.
    Code,
    /// 16 bits: the upper half of a word.
    High,
    /// 16 bits: the lower half of a word.
    Low,
}

impl Place {
    /// Places with the numbers that the ABI's relocations have for them.
    const RELOCATIONS: &'static [(u8, Self)] = &[
        (1, Self::Quadword),
        (2, Self::Absolute),
        (3, Self::High),
        (4, Self::Low),
        (5, Self::Eighteen),
        (7, Self::Relative),
        (8, Self::Seven),
        (9, Self::Hint),
        (10, Self::IndirectHint),
        (11, Self::Ten),
        (12, Self::Signed),
        (14, Self::Any),
    ];

    /// The place that a relocation of the ABI changes.
    pub(crate) fn of_relocation(number: u8) -> Option<Self> {
        let mut all = Self::RELOCATIONS.iter();
        all.find(|row| row.0 == number).map(|row| row.1)
    }

    /// The ABI's relocation of the place.
    pub(crate) fn relocation(self) -> Option<u8> {
        let place = if self == Self::Count {
            Self::Seven
        } else {
            self
        };
        let mut all = Self::RELOCATIONS.iter();
        all.find(|row| row.1 == place).map(|row| row.0)
    }

    /// True where the number is a distance from the instruction.
    pub(crate) fn is_relative(self) -> bool {
        matches!(self, Self::Relative | Self::Hint | Self::IndirectHint)
    }

    /// The least and the greatest number.
    pub(crate) const fn range(self) -> (i64, i64) {
        match self {
            Self::Seven | Self::Count => (-64, 127),
            Self::Scale(_) => (0, 127),
            Self::Ten => (-512, 511),
            Self::Quadword => (-8192, 8191),
            Self::Any => (-0x8000, 0xffff),
            Self::Signed => (-0x8000, 0x7fff),
            Self::Eighteen => (0, 0x3_ffff),
            Self::Absolute => (-0x2_0000, 0x3_ffff),
            // A store's addresses wrap around.
            Self::Relative => (-0x4_0000, 0x3_ffff),
            Self::Hint | Self::IndirectHint => (-1024, 1023),
            Self::Code => (0, 0x3fff),
            Self::High | Self::Low => (i64::MIN, i64::MAX),
        }
    }

    /// Bits, and the first of them.
    const fn field(self) -> (u32, u32) {
        match self {
            Self::Seven | Self::Count => (7, 14),
            Self::Scale(_) => (8, 14),
            Self::Ten | Self::Quadword => (10, 14),
            Self::Eighteen => (18, 7),
            Self::Code => (14, 0),
            Self::Hint | Self::IndirectHint => (7, 0),
            _ => (16, 7),
        }
    }

    /// The word with a number in the place, whose other bits stay. Bits without room are lost.
    pub(crate) fn write(self, word: u32, value: i64) -> u32 {
        let number = match self {
            Self::Scale(from) => i64::from(from) - value,
            Self::Quadword => value >> 4,
            Self::Absolute | Self::Relative | Self::Hint | Self::IndirectHint => value >> 2,
            Self::High => value >> 16,
            _ => value,
        };
        let number = u32::try_from(number & 0xffff_ffff).unwrap_or_default();
        let put = |word: u32, number: u32, (bits, shift): (u32, u32)| {
            let mask = (1 << bits) - 1;
            word & !(mask << shift) | (number & mask) << shift
        };
        let word = put(word, number, self.field());
        match self {
            Self::Hint => put(word, number >> 7, (2, 23)),
            Self::IndirectHint => put(word, number >> 7, (2, 14)),
            _ => word,
        }
    }

    /// The number in the place.
    fn read(self, word: u32) -> i64 {
        let get = |(bits, shift): (u32, u32)| i64::from(word >> shift & ((1 << bits) - 1));
        let signed = |number: i64, bits: u32| number << (64 - bits) >> (64 - bits);
        let field = self.field();
        let number = get(field);
        match self {
            Self::Scale(from) => i64::from(from) - number,
            Self::Count | Self::Ten | Self::Signed => signed(number, field.0),
            Self::Quadword => signed(number, field.0) << 4,
            Self::Absolute => number << 2,
            Self::Relative => signed(number, field.0) << 2,
            Self::Hint => signed(number | get((2, 23)) << 7, 9) << 2,
            Self::IndirectHint => signed(number | get((2, 14)) << 7, 9) << 2,
            _ => number,
        }
    }
}

const T: Slot = Slot::Register(0);
const A: Slot = Slot::Register(7);
const B: Slot = Slot::Register(14);
const C: Slot = Slot::Register(21);

impl Instruction {
    /// The operands in the order of assembly.
    pub(crate) fn slots(&self) -> &'static [Slot] {
        use Slot::{Channel, Displaced, Number};
        match (self.format, self.op) {
            (Format::Rrr, _) => &[C, A, B, T],
            (Format::Ri8, Op::Csflt | Op::Cuflt) => &[T, A, Number(Place::Scale(155))],
            (Format::Ri8, _) => &[T, A, Number(Place::Scale(173))],
            (Format::Ri7, Op::Cbd | Op::Chd | Op::Cwd | Op::Cdd) => &[T, Displaced(Place::Seven)],
            (Format::Ri7, _) if self.name.starts_with("rot") => &[T, A, Number(Place::Count)],
            (Format::Ri7, _) => &[T, A, Number(Place::Seven)],
            (Format::Ri10, Op::Lqd | Op::Stqd) => &[T, Displaced(Place::Quadword)],
            (Format::Ri10, _) => &[T, A, Number(Place::Ten)],
            (Format::Ri16, Op::Br) => &[Number(Place::Relative)],
            (Format::Ri16, Op::Bra) => &[Number(Place::Absolute)],
            (Format::Ri16, Op::Brasl | Op::Lqa | Op::Stqa) => &[T, Number(Place::Absolute)],
            (Format::Ri16, Op::Il) => &[T, Number(Place::Signed)],
            (Format::Ri16, Op::Fsmbi | Op::Ilh | Op::Ilhu | Op::Iohl) => &[T, Number(Place::Any)],
            (Format::Ri16, _) => &[T, Number(Place::Relative)],
            (Format::Ri18, Op::Ila) => &[T, Number(Place::Eighteen)],
            (Format::Ri18, Op::Hbra) => &[Number(Place::Hint), Number(Place::Absolute)],
            (Format::Ri18, _) => &[Number(Place::Hint), Number(Place::Relative)],
            (Format::Rr, Op::Stop) => &[Number(Place::Code)],
            (Format::Rr, Op::Lnop | Op::Sync | Op::Dsync) => &[],
            (Format::Rr, Op::Hbr) => &[Number(Place::IndirectHint), A],
            (Format::Rr, Op::Bi | Op::Iret) => &[A],
            (Format::Rr, Op::Nop | Op::Fscrrd) => &[T],
            (Format::Rr, Op::Mfspr | Op::Rdch | Op::Rchcnt) => &[T, Channel],
            (Format::Rr, Op::Mtspr | Op::Wrch) => &[Channel, T],
            (Format::Rr, _) if TWO.contains(&self.op) => &[T, A],
            (Format::Rr, _) => &[T, A, B],
        }
    }

    /// True where assembly may leave the first operand out, which is 0 then.
    fn omits_first(&self) -> bool {
        match self.op {
            Op::Heq | Op::Heqi | Op::Hgt | Op::Hgti | Op::Hlgt | Op::Hlgti => true,
            op => matches!(op, Op::Nop | Op::Iret | Op::Fscrwr | Op::Stop),
        }
    }
}

/// A word that assembly begins a statement with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mnemonic {
    row: &'static Instruction,
    slots: &'static [Slot],
    /// Bits of the word that no operand has.
    bits: u32,
}

/// The instruction of a name in assembly, with the names that are not the table's own.
pub(super) fn mnemonic(name: &str) -> Option<Mnemonic> {
    let of = |row: &'static Instruction, feature: u32| Mnemonic {
        row,
        slots: row.slots(),
        bits: feature << 14,
    };
    if let Some(row) = named(name) {
        return Some(of(row, 0));
    }
    let indirect = |name: &str| {
        let mut synonyms = SYNONYMS.iter();
        let real = synonyms.find(|pair| pair.0 == name);
        let row = named(real.map_or(name, |pair| pair.1))?;
        INDIRECT.contains(&row.op).then_some(row)
    };
    match name {
        "lr" => Some(Mnemonic {
            slots: &[T, A],
            ..of(named("ori")?, 0)
        }),
        "hbrp" => Some(Mnemonic {
            slots: &[],
            ..of(named("hbr")?, 0x40)
        }),
        "syncc" => Some(of(named("sync")?, 0x40)),
        _ => {
            if let Some(row) = indirect(name) {
                return Some(of(row, 0));
            }
            let (base, feature) = match name.strip_suffix('d') {
                Some(base) => (base, 0x20),
                None => (name.strip_suffix('e')?, 0x10),
            };
            Some(of(indirect(base)?, feature))
        }
    }
}

/// Other names of branches.
const SYNONYMS: &[(&str, &str)] = &[
    ("bit", "binz"),
    ("bif", "biz"),
    ("biht", "bihnz"),
    ("bihf", "bihz"),
];

/// The number of a channel's name.
fn channel_named(name: &str) -> Option<u8> {
    let bare = |text: &'static str| text.split_once('_').map_or(text, |parts| parts.1);
    let is_named = |row: &&(u8, &'static str)| {
        row.1.eq_ignore_ascii_case(name) || bare(row.1).eq_ignore_ascii_case(name)
    };
    CHANNELS.iter().find(is_named).map(|row| row.0)
}

/// Channels with the names of the assembly language's specification.
const CHANNELS: &[(u8, &str)] = &[
    (0, "SPU_RdEventStat"),
    (1, "SPU_WrEventMask"),
    (2, "SPU_WrEventAck"),
    (3, "SPU_RdSigNotify1"),
    (4, "SPU_RdSigNotify2"),
    (7, "SPU_WrDec"),
    (8, "SPU_RdDec"),
    (9, "MFC_WrMSSyncReq"),
    (11, "SPU_RdEventMask"),
    (12, "MFC_RdTagMask"),
    (13, "SPU_RdMachStat"),
    (14, "SPU_WrSRR0"),
    (15, "SPU_RdSRR0"),
    (16, "MFC_LSA"),
    (17, "MFC_EAH"),
    (18, "MFC_EAL"),
    (19, "MFC_Size"),
    (20, "MFC_TagID"),
    (21, "MFC_Cmd"),
    (22, "MFC_WrTagMask"),
    (23, "MFC_WrTagUpdate"),
    (24, "MFC_RdTagStat"),
    (25, "MFC_RdListStallStat"),
    (26, "MFC_WrListStallAck"),
    (27, "MFC_RdAtomicStat"),
    (28, "SPU_WrOutMbox"),
    (29, "SPU_RdInMbox"),
    (30, "SPU_WrOutIntrMbox"),
];

/// Operations of two registers among those whose layout has three.
const TWO: &[Op] = &[
    Op::Clz,
    Op::Cntb,
    Op::Fsmb,
    Op::Fsmh,
    Op::Fsm,
    Op::Gbb,
    Op::Gbh,
    Op::Gb,
    Op::Xsbh,
    Op::Xshw,
    Op::Xswd,
    Op::Orx,
    Op::Frest,
    Op::Frsqest,
    Op::Frds,
    Op::Fesd,
    Op::Fscrwr,
    Op::Bisl,
    Op::Bisled,
    Op::Biz,
    Op::Binz,
    Op::Bihz,
    Op::Bihnz,
];

/// The instruction of a word at an address as a line of assembly; nothing for a word that is none,
/// or that no assembly makes.
#[must_use]
pub fn disassemble(word: u32, address: u32) -> Option<String> {
    let (row, _) = decode(word)?;
    let register = |shift: u32| format!("${}", word >> shift & 127);
    let mut name = row.name.to_owned();
    let mut slots = row.slots();
    // Branches by a register enable or disable interrupts by bits of their own.
    match (row.op, word >> 14 & 0x7f) {
        (Op::Sync, 0x40) => name.push('c'),
        (Op::Hbr, bits) if bits & 0x40 != 0 => {
            name.push('p');
            slots = &[];
        }
        (op, 0x10) if INDIRECT.contains(&op) => name.push('e'),
        (op, 0x20) if INDIRECT.contains(&op) => name.push('d'),
        _ => {}
    }
    let number = |place: Place| {
        let number = place.read(word);
        let (low, high) = place.range();
        if place.is_relative() {
            // A store's addresses wrap around.
            let target = (i64::from(address) + number) & i64::from(STORE_BYTES_LAST);
            return Some(format!("{target:#x}"));
        }
        let text = match place {
            Place::Absolute | Place::Eighteen | Place::Any | Place::Code => format!("{number:#x}"),
            _ => number.to_string(),
        };
        (low..=high).contains(&number).then_some(text)
    };
    let operands = slots.iter().map(|slot| match *slot {
        Slot::Register(shift) => Some(register(shift)),
        Slot::Channel => Some(format!("$ch{}", word >> 7 & 127)),
        Slot::Number(place) => number(place),
        Slot::Displaced(place) => Some(format!("{}({})", number(place)?, register(7))),
    });
    let operands = operands.collect::<Option<Vec<_>>>()?;
    if operands.is_empty() {
        return Some(name);
    }
    Some(format!("{name}\t{}", operands.join(", ")))
}

/// The sections with instructions of an object or an executable as lines of assembly, with the
/// names of their places.
///
/// # Errors
/// It is another kind of file, or is damaged.
pub fn listing(file: &[u8]) -> Result<String, ObjectError> {
    let object = Object::read_any(file)?;
    let mut text = String::new();
    let mut names = BTreeMap::new();
    for symbol in &object.symbols {
        if let Defined::Section(section, value) = symbol.place
            && !symbol.name.is_empty()
        {
            names.entry((section, value)).or_insert(&symbol.name);
        }
    }
    for (number, section) in object.sections.iter().enumerate() {
        if section.flags & EXECUTED == 0 || section.bytes.is_empty() {
            continue;
        }
        text += &format!("\nDisassembly of section {}:\n", printable(&section.name));
        let mut address = section.address;
        for bytes in section.bytes.chunks(4) {
            if let Some(name) = names.get(&(number, address)) {
                text += &format!("\n{address:08x} <{}>:\n", printable(name));
            }
            let word = bytes.first_chunk().copied().map(u32::from_be_bytes);
            let line = word.and_then(|word| disassemble(word, address));
            let line = line.unwrap_or_else(|| match word {
                Some(word) => format!(".long\t{word:#x}"),
                None => ".byte".into(),
            });
            let hex = bytes.iter().map(|byte| format!("{byte:02x} "));
            text += &format!("{address:8x}:\t{}\t{line}\n", hex.collect::<String>());
            address = address.wrapping_add(4);
        }
    }
    Ok(text)
}

/// Operations that go where a register says, and may change whether interrupts come.
const INDIRECT: &[Op] = &[
    Op::Bi,
    Op::Bisl,
    Op::Iret,
    Op::Bisled,
    Op::Biz,
    Op::Binz,
    Op::Bihz,
    Op::Bihnz,
];
/// The last address of a store.
const STORE_BYTES_LAST: u32 = 0x3_ffff;

/// An instruction's word, and the numbers that are still to be put into it.
pub(super) type Encoded = (u32, Vec<(Place, Expression)>);

impl Parser<'_, '_> {
    /// Reads the operands of an instruction.
    pub(super) fn operands(&mut self, found: &Mnemonic) -> Result<Encoded, String> {
        let count = arguments(self.rest).len();
        let name = found.row.name;
        let slots = match found.slots.split_first() {
            Some((_, rest)) if rest.len() == count && found.row.omits_first() => rest,
            _ => found.slots,
        };
        if slots.len() != count {
            return Err(format!(
                "{name} takes {} operands, not {count}",
                found.slots.len()
            ));
        }
        let mut word = found.row.code << 21 | found.bits;
        let mut numbers = Vec::new();
        for (place, slot) in slots.iter().enumerate() {
            if place > 0 && !self.eat(b",") {
                return Err(format!("`{}`: a comma is missing", shown(trim(self.rest))));
            }
            match *slot {
                Slot::Register(shift) => word |= self.register(false)? << shift,
                Slot::Channel => word |= self.register(true)? << 7,
                Slot::Number(place) => numbers.push(self.operand(place)?),
                Slot::Displaced(place) => {
                    // Without a number it is 0.
                    let bare = self.rest.trim_ascii_start();
                    if !bare.starts_with(b"($") {
                        numbers.push(self.operand(place)?);
                    }
                    if !self.eat(b"(") {
                        return Err(format!("{name} needs a register in parentheses"));
                    }
                    word |= self.register(false)? << 7;
                    if !self.eat(b")") {
                        return Err("a parenthesis is not closed".into());
                    }
                }
            }
        }
        self.finish()?;
        Ok((word, numbers))
    }

    /// A register's number, or a channel's.
    fn register(&mut self, channel: bool) -> Result<u32, String> {
        let has_sign = self.eat(b"$");
        let end = self.rest.iter().position(|byte| !is_name(*byte));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        let name = String::from_utf8_lossy(word).to_ascii_lowercase();
        let bare = match name.get(..2) {
            Some("ch" | "sp") if channel => &name[2..],
            _ => &name[..],
        };
        let number = match &name[..] {
            _ if bare.bytes().all(|byte| byte.is_ascii_digit()) && !bare.is_empty() => {
                bare.parse().ok()
            }
            _ if channel => channel_named(&name).map(u32::from),
            "lr" | "rp" => Some(0),
            "sp" => Some(1),
            "fp" => Some(127),
            _ => None,
        };
        let number = match number {
            Some(number) => {
                self.rest = rest;
                Some(number)
            }
            // A symbol may stand for one.
            None if !has_sign && !word.is_empty() => {
                let found = self.expression()?;
                u32::try_from(self.symbols.number(&found)?).ok()
            }
            None => None,
        };
        let kind = if channel { "channel" } else { "register" };
        number
            .filter(|number| *number < 128)
            .ok_or_else(|| format!("`{}` is no {kind}", shown(word)))
    }

    /// A number and its place, which `@h` and `@l` change.
    fn operand(&mut self, place: Place) -> Result<(Place, Expression), String> {
        let mut half = None;
        self.rest = self.rest.trim_ascii_start();
        for (sign, of) in [
            (&b"%hi"[..], Some(Place::High)),
            (&b"%lo"[..], Some(Place::Low)),
            (&b"%pic"[..], None),
        ] {
            if let Some(after) = self
                .rest
                .strip_prefix(sign)
                .filter(|after| after.starts_with(b"("))
            {
                self.rest = after;
                half = of;
                break;
            }
        }
        let found = self.expression()?;
        if let [b'@', letter, after @ ..] = trim(self.rest)
            && !after.first().is_some_and(u8::is_ascii_alphanumeric)
        {
            half = match letter.to_ascii_lowercase() {
                b'h' => Some(Place::High),
                b'l' => Some(Place::Low),
                _ => return Err(format!("`{}` is not known", shown(trim(self.rest)))),
            };
            self.rest = after;
        }
        match (half, place) {
            (None, _) => Ok((place, found)),
            (Some(half), Place::Any | Place::Signed | Place::Eighteen) => Ok((half, found)),
            _ => Err("half of an address does not fit this instruction".into()),
        }
    }
}
