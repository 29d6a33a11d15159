//! Levels of data translation as the processor's identification leaves describe them.
//!
//! Why here: a report shows each measured level next to the processor's own description, which
//! needs decoding: three leaves, tables of codes, and on some processors a unit of 32 entries. Must
//! stay true: nothing measured depends on it. [`decode`] is pure; [`levels`] reads this machine's
//! leaves and decodes them. Any thread.
//! Source: AMD64 Architecture Programmer's Manual, volume 3, appendix E (leaves 0x8000_0005,
//! 0x8000_0006, 0x8000_0021); Intel SDM, volume 2, CPUID (leaves 0x02 and 0x18).
//!
//! ```
//! use sidecore_tlb::cpuid::{Leaves, decode};
//!
//! // 64 entries, any for any page; then 2,048 in 8 ways.
//! let mut leaves = Leaves::of("AuthenticAMD", 25);
//! leaves.set(0x8000_0005, 0, [0xff40_ff40, 0xff40_ff40, 0, 0]);
//! leaves.set(0x8000_0006, 0, [0x5800_2200, 0x6800_4200, 0, 0]);
//! let levels = decode(&leaves);
//! assert_eq!((levels[0].entries, levels[0].ways), (64, None));
//! assert_eq!((levels[1].entries, levels[1].ways), (2048, Some(8)));
//! ```

use serde::Serialize;
use sidecore_bare::width::ToUsize;
use std::collections::BTreeMap;

/// One level for loads from pages of 4 KiB, as a leaf describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuidLevel {
    /// 1 for the first level.
    pub level: usize,
    /// Translations that it holds.
    pub entries: usize,
    /// Entries that may hold one translation; `None` where any may, or where the leaf does not say.
    pub ways: Option<usize>,
    /// True if any entry may hold any translation.
    pub fully_associative: bool,
    /// Leaf and register that were believed.
    pub leaf: String,
    /// Number in the leaf's field, before it was decoded.
    pub field: u32,
    /// Remark on the decoding; empty where the field is the number of entries.
    pub note: &'static str,
}

impl CpuidLevel {
    /// The leaf in words: `4096 entries in 8 ways (leaf 0x80000006 EBX: 0x80, in units
    /// of 32: ...)`.
    #[must_use]
    pub fn words(&self) -> String {
        let ways = match (self.fully_associative, self.ways) {
            (true, _) => ", any for any page".to_owned(),
            (false, Some(ways)) => format!(" in {ways} ways"),
            (false, None) => String::new(),
        };
        let (entries, leaf) = (self.entries, &self.leaf);
        let field = match self.note.is_empty() {
            true => String::new(),
            false => format!(": {:#x}, {}", self.field, self.note),
        };
        format!("{entries} entries{ways} (leaf {leaf}{field})")
    }
}

/// Registers of the leaves that [`decode`] looks at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leaves {
    vendor: String,
    family: u32,
    registers: BTreeMap<(u32, u32), [u32; 4]>,
}

impl Leaves {
    /// No leaves yet, of a processor of this vendor and family (the extended one added).
    #[must_use]
    pub fn of(vendor: &str, family: u32) -> Self {
        Self {
            vendor: vendor.to_owned(),
            family,
            registers: BTreeMap::new(),
        }
    }

    /// Sets a leaf's registers: EAX, EBX, ECX, EDX.
    pub fn set(&mut self, leaf: u32, subleaf: u32, registers: [u32; 4]) {
        self.registers.insert((leaf, subleaf), registers);
    }

    /// A leaf's registers; zeros where it was not set, as for one that the processor lacks.
    fn get(&self, leaf: u32, subleaf: u32) -> [u32; 4] {
        let registers = self.registers.get(&(leaf, subleaf));
        registers.copied().unwrap_or_default()
    }

    /// This machine's; none where the processor has no such instruction.
    #[cfg(target_arch = "x86_64")]
    fn of_this_machine() -> Self {
        let read = |leaf, subleaf| {
            let result = raw_cpuid::native_cpuid::cpuid_count(leaf, subleaf);
            [result.eax, result.ebx, result.ecx, result.edx]
        };
        // The vendor's name is in EBX, EDX, ECX, in this order.
        let [basic_max, b, c, d] = read(0, 0);
        let vendor: Vec<u8> = [b, d, c].into_iter().flat_map(u32::to_le_bytes).collect();
        let mut leaves = Self::of(&String::from_utf8_lossy(&vendor), family(read(1, 0)[0]));
        let extended_max = read(EXTENDED, 0)[0];
        // A leaf past the greatest one gives the greatest one's registers, on some.
        for leaf in [LEAF_CODES, LEAF_TRANSLATION] {
            if leaf <= basic_max {
                leaves.set(leaf, 0, read(leaf, 0));
            }
        }
        for subleaf in 1..=leaves.get(LEAF_TRANSLATION, 0)[0].min(SUBLEAVES_MAX) {
            leaves.set(LEAF_TRANSLATION, subleaf, read(LEAF_TRANSLATION, subleaf));
        }
        for leaf in [LEAF_FIRST, LEAF_SECOND, LEAF_FEATURES] {
            if leaf <= extended_max {
                leaves.set(leaf, 0, read(leaf, 0));
            }
        }
        leaves
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of_this_machine() -> Self {
        Self::default()
    }
}

/// Levels of this machine's processor; none where it does not say.
#[must_use]
pub fn levels() -> Vec<CpuidLevel> {
    decode(&Leaves::of_this_machine())
}

/// Levels of data translation of 4 KiB pages, the first one first. Of Intel's two ways to say it
/// the newer one is believed.
#[must_use]
pub fn decode(leaves: &Leaves) -> Vec<CpuidLevel> {
    match &leaves.vendor[..] {
        "AuthenticAMD" | "HygonGenuine" => amd(leaves),
        _ => match intel(leaves) {
            // Leaf 2 is the older form; newer processors only refer to leaf 0x18 there.
            levels if levels.is_empty() => intel_codes(leaves),
            levels => levels,
        },
    }
}

/// Family number: the extended part counts where the first part is all ones.
#[cfg(any(test, target_arch = "x86_64"))]
fn family(signature: u32) -> u32 {
    match signature >> 8 & 0xf {
        // The extended family is added only to 15.
        0xf => 0xf + (signature >> 20 & 0xff),
        family => family,
    }
}

fn amd(leaves: &Leaves) -> Vec<CpuidLevel> {
    let first = leaves.get(LEAF_FIRST, 0)[1];
    let second = leaves.get(LEAF_SECOND, 0)[1];
    // 0: no such level; 0xff: fully associative.
    let code = first >> 24;
    let mut levels = Vec::new();
    if code != 0 {
        levels.push(CpuidLevel {
            level: 1,
            entries: (first >> 16 & 0xff).to_usize(),
            ways: (code != 0xff).then_some(code.to_usize()),
            fully_associative: code == 0xff,
            leaf: "0x80000005 EBX".to_owned(),
            field: first >> 16 & 0xff,
            note: "",
        });
    }
    let (field, code) = (second >> 16 & 0xfff, second >> 28);
    let (unit, note) = unit(leaves, field);
    if code != 0 {
        levels.push(CpuidLevel {
            level: 2,
            entries: field.to_usize() * unit,
            ways: ways(code),
            fully_associative: code == 0xf,
            leaf: "0x80000006 EBX".to_owned(),
            field,
            note,
        });
    }
    // A hypervisor may clear the number and leave the ways.
    levels.retain(|level| level.entries > 0);
    levels
}

/// Entries that the second level's field counts in one, and the reason. A field of 12 bits has no
/// room for 4,096.
fn unit(leaves: &Leaves, field: u32) -> (usize, &'static str) {
    let says_so = leaves.get(LEAF_FEATURES, 0)[0] >> SIZE_X32_BIT & 1 == 1;
    if says_so {
        (32, "in units of 32: leaf 0x80000021 EAX says so (bit 14)")
    } else if leaves.family == FAMILY_X32 && field < FIELD_X32_MAX {
        // Hosts hide the bit from their guests and pass the field on.
        (
            32,
            "in units of 32: family 26, whose bit that says so is hidden here",
        )
    } else {
        (1, "")
    }
}

/// Ways by the code of leaf 0x80000006; `None` where it is full, or left to other leaves.
fn ways(code: u32) -> Option<usize> {
    Some(match code {
        1..=4 => code.to_usize(),
        5 => 6,
        6 => 8,
        8 => 16,
        0xa => 32,
        0xb => 48,
        0xc => 64,
        0xd => 96,
        0xe => 128,
        _ => return None,
    })
}

/// Leaf 0x18: one subleaf a structure.
fn intel(leaves: &Leaves) -> Vec<CpuidLevel> {
    let last = leaves.get(LEAF_TRANSLATION, 0)[0].min(SUBLEAVES_MAX);
    let mut levels = Vec::new();
    for subleaf in 0..=last {
        let [_, b, sets, d] = leaves.get(LEAF_TRANSLATION, subleaf);
        // Instruction and store buffers are not measured here.
        let for_loads = matches!(d & 0x1f, DATA | UNIFIED | LOADS);
        // Bit 0: holds translations of 4 KiB pages.
        let small = b & 1 == 1;
        let ways = b >> 16;
        if for_loads && small && ways * sets > 0 {
            levels.push(CpuidLevel {
                level: (d >> 5 & 7).to_usize(),
                entries: ways.to_usize() * sets.to_usize(),
                ways: Some(ways.to_usize()),
                fully_associative: d >> 8 & 1 == 1,
                leaf: format!("0x18, subleaf {subleaf}"),
                field: b,
                note: "sets times ways",
            });
        }
    }
    levels.sort_by_key(|level| level.level);
    levels
}

/// Leaf 2: up to 15 codes of a byte each. They do not say which level they are: the smaller one is
/// taken for the first.
fn intel_codes(leaves: &Leaves) -> Vec<CpuidLevel> {
    let registers = leaves.get(LEAF_CODES, 0);
    // Bit 31 set: the register holds no descriptors.
    let valid = registers.iter().filter(|register| *register >> 31 == 0);
    let bytes = valid.flat_map(|register| register.to_le_bytes());
    let mut levels: Vec<CpuidLevel> = bytes
        // The first byte is a number of calls, always 1, and no code of ours.
        .filter_map(|byte| CODES.iter().find(|code| code.0 == byte))
        .map(|&(code, entries, ways)| CpuidLevel {
            level: 0,
            entries,
            ways: (ways != FULL).then_some(ways),
            fully_associative: ways == FULL,
            leaf: "0x2".to_owned(),
            field: code.into(),
            note: "a code of the manual's table",
        })
        .collect();
    levels.sort_by_key(|level| level.entries);
    for (number, level) in (1..).zip(&mut levels) {
        level.level = number;
    }
    levels
}

const LEAF_CODES: u32 = 0x2;
const LEAF_TRANSLATION: u32 = 0x18;
#[cfg(target_arch = "x86_64")]
const EXTENDED: u32 = 0x8000_0000;
const LEAF_FIRST: u32 = 0x8000_0005;
const LEAF_SECOND: u32 = 0x8000_0006;
const LEAF_FEATURES: u32 = 0x8000_0021;
/// Bit that says that leaf 0x80000006 counts translations in units of 32.
const SIZE_X32_BIT: u32 = 14;
/// First family that does so.
const FAMILY_X32: u32 = 26;
/// Greatest field of that family that is believed to be in units of 32: 16,384 entries.
const FIELD_X32_MAX: u32 = 512;
const SUBLEAVES_MAX: u32 = 32;
/// Types of leaf 0x18.
const DATA: u32 = 1;
const UNIFIED: u32 = 3;
const LOADS: u32 = 4;
const FULL: usize = 0;
/// Codes of leaf 2 for loads from 4 KiB pages: code, entries, ways.
const CODES: [(u8, usize, usize); 18] = [
    (0x03, 64, 4),
    (0x57, 16, 4),
    (0x59, 16, FULL),
    (0x5b, 64, FULL),
    (0x5c, 128, FULL),
    (0x5d, 256, FULL),
    (0x64, 512, 4),
    (0x6a, 64, 8),
    (0x6b, 256, 8),
    (0xa0, 32, FULL),
    (0xb3, 128, 4),
    (0xb4, 256, 4),
    (0xba, 64, 4),
    (0xc0, 8, 4),
    (0xc1, 1024, 8),
    (0xc2, 16, 4),
    (0xc3, 1536, 6),
    (0xca, 512, 4),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn said(levels: &[CpuidLevel]) -> Vec<(usize, usize, Option<usize>)> {
        let of = |level: &CpuidLevel| (level.level, level.entries, level.ways);
        levels.iter().map(of).collect()
    }

    fn amd(family: u32, [first, second, features]: [u32; 3]) -> Vec<CpuidLevel> {
        let mut leaves = Leaves::of("AuthenticAMD", family);
        leaves.set(LEAF_FIRST, 0, [0, first, 0, 0]);
        leaves.set(LEAF_SECOND, 0, [0, second, 0, 0]);
        leaves.set(LEAF_FEATURES, 0, [features, 0, 0, 0]);
        decode(&leaves)
    }

    #[test]
    fn zen_3_and_zen_4_count_entries() {
        let zen_3 = amd(25, [0xff40_ff40, 0x6800_4200, 0]);
        assert_eq!(said(&zen_3), [(1, 64, None), (2, 2048, Some(8))]);
        assert!(zen_3[0].fully_associative && !zen_3[1].fully_associative);
        let zen_4 = amd(25, [0xff48_ff40, 0x6c00_4200, 0]);
        assert_eq!(said(&zen_4), [(1, 72, None), (2, 3072, Some(8))]);
        assert_eq!((zen_4[1].field, zen_4[1].note), (3072, ""));
    }

    #[test]
    fn zen_5_counts_in_units_of_32_with_the_bit_and_without() {
        let said_so = amd(26, [0xff60_ff40, 0x6080_4040, 1 << 14 | 0x204]);
        assert_eq!(said(&said_so), [(1, 96, None), (2, 4096, Some(8))]);
        assert!(said_so[1].note.contains("bit 14"), "{said_so:?}");
        // As a guest sees it.
        let hidden = amd(26, [0xff60_ff40, 0x6080_4040, 0x204]);
        assert_eq!(said(&hidden), said(&said_so));
        assert!(hidden[1].note.contains("hidden"), "{hidden:?}");
        assert_eq!(
            (hidden[1].field, &hidden[1].leaf[..]),
            (128, "0x80000006 EBX")
        );
        assert_eq!(
            hidden[0].words(),
            "96 entries, any for any page (leaf 0x80000005 EBX)"
        );
        let words = hidden[1].words();
        assert!(
            words.starts_with("4096 entries in 8 ways (leaf 0x80000006 EBX: 0x80, in"),
            "{words}"
        );
        // The bit holds for any family; without it a field that would be absurd is a count.
        assert_eq!(amd(27, [0, 0x6080_4040, 1 << 14])[0].entries, 4096);
        assert_eq!(amd(27, [0, 0x6080_4040, 0])[0].entries, 128);
        assert_eq!(amd(26, [0, 0x6800_4040, 0])[0].entries, 2048);
    }

    #[test]
    fn levels_that_are_disabled_or_empty_are_none() {
        assert_eq!(amd(25, [0, 0, 0]), []);
        assert_eq!(amd(25, [0xff00_0000, 0x0800_0000, 0]), []);
        assert_eq!(decode(&Leaves::default()), []);
    }

    #[test]
    fn every_code_of_ways_is_known() {
        let known = [1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 13, 14].map(|code| ways(code).unwrap());
        assert_eq!(known, [1, 2, 3, 4, 6, 8, 16, 32, 48, 64, 96, 128]);
        assert!([0, 7, 9, 15].iter().all(|&code| ways(code).is_none()));
    }

    #[test]
    fn intels_leaf_of_structures() {
        let mut leaves = Leaves::of("GenuineIntel", 6);
        // As a recent server core: loads 16 x 6, stores 16, instructions 256, all pages 256 x 8.
        leaves.set(LEAF_TRANSLATION, 0, [4, 0, 0, 0]);
        leaves.set(LEAF_TRANSLATION, 1, [0, 0x0008_0001, 32, 0x22]);
        leaves.set(LEAF_TRANSLATION, 2, [0, 0x0006_0001, 16, 0x24]);
        leaves.set(LEAF_TRANSLATION, 3, [0, 0x0010_000f, 1, 0x125]);
        leaves.set(LEAF_TRANSLATION, 4, [0, 0x0008_0003, 256, 0x43]);
        leaves.set(LEAF_CODES, 0, [0x00fe_ff01, 0xf0, 0, 0]);
        let levels = decode(&leaves);
        assert_eq!(said(&levels), [(1, 96, Some(6)), (2, 2048, Some(8))]);
        assert_eq!(levels[1].leaf, "0x18, subleaf 4");
    }

    #[test]
    fn intels_codes_where_there_is_nothing_newer() {
        let mut leaves = Leaves::of("GenuineIntel", 6);
        // As a core of 2013: 64 entries, 1,024 behind them; the codes of caches are ignored.
        leaves.set(LEAF_CODES, 0, [0x7603_6301, 0x00f0_b5ff, 0, 0x00c1_0000]);
        let levels = decode(&leaves);
        assert_eq!(said(&levels), [(1, 64, Some(4)), (2, 1024, Some(8))]);
        assert_eq!((levels[0].field, &levels[0].leaf[..]), (3, "0x2"));
        // A register whose top bit is set holds no codes.
        leaves.set(LEAF_CODES, 0, [0x0000_0001, 0x8000_00c1, 0, 0]);
        assert_eq!(decode(&leaves), []);
    }

    #[test]
    fn families_are_put_together() {
        assert_eq!(family(0x00b0_0f21), 26);
        assert_eq!(family(0x00a1_0f11), 25);
        assert_eq!(family(0x0008_06f8), 6);
    }

    #[test]
    fn this_machine_says_something_or_nothing() {
        let levels = levels();
        assert!(levels.iter().all(|level| level.entries > 0), "{levels:?}");
        assert!(levels.is_sorted_by_key(|level| level.level), "{levels:?}");
    }
}
