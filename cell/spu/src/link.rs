//! Objects of the SPU into an executable.
//!
//! Must stay true: each part of an executable lies in the store, and each relocation in its
//! section. Nothing is linked that does not fit. An executable has no parts but its objects' and,
//! without a `_start` of theirs, the start code below.
//! Source: SPU Application Binary Interface Specification 1.9.

use crate::STORE_BYTES;
use crate::assembler::assemble;
use crate::assembler::operands::Place as Field;
use crate::object::{
    Binding, EXECUTED, NOBITS, Object, PROGBITS, Place, Relocation, SECTION_TYPE, Section, Symbol,
    WRITABLE,
};
use sidecore_bare::width::ToUsize;
use std::collections::{BTreeMap, BTreeSet};

/// An object that is linked.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its file, for messages.
    pub name: String,
    /// The object.
    pub object: Object,
    /// True for an archive's member: it is linked only for a symbol that is missing.
    pub is_optional: bool,
}

/// Settings of a link.
#[derive(Debug, Clone, Default)]
pub struct Linking {
    /// The symbol of the first instruction; `_start` where it is none.
    pub entry: Option<String>,
    /// True to link no start code.
    pub is_bare: bool,
    /// Symbols with addresses, as `--defsym` has them.
    pub symbols: Vec<(String, u32)>,
    /// True to leave the symbols out.
    pub strips: bool,
}

/// Reasons for which objects are not linked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A symbol has no definition.
    #[error("{part}: {symbol} is not defined")]
    Undefined {
        /// The object that uses it.
        part: String,
        /// The symbol.
        symbol: String,
    },
    /// Two definitions.
    #[error("{symbol} is defined in {first} and in {second}")]
    Twice {
        /// The symbol.
        symbol: String,
        /// The first object.
        first: String,
        /// The second one.
        second: String,
    },
    /// The entry is not defined.
    #[error("neither {0} nor main is defined: a program needs one of them")]
    NoStart(String),
    /// Constructors, which the start code does not call.
    #[error("{0} has constructors: they need a _start of the program's own")]
    Constructors(String),
    /// All together are larger than a store.
    #[error("the program ends at {0} of a local store of {STORE_BYTES} bytes")]
    TooLarge(u64),
    /// A relocation that cannot be made.
    #[error("{part}: {section}+{offset:#x}: {reason}")]
    Relocation {
        /// The object.
        part: String,
        /// Its section.
        section: String,
        /// The place in it.
        offset: u32,
        /// The reason.
        reason: String,
    },
}

/// The start code: the stack that contexts begin with, a frame, `main` with the context's number,
/// argp and envp, and a stop with its result, which is `exit` as well.
const START: &str = "
        .section .init,\"ax\"
        .align  4
        .global _start
        .type   _start, @function
_start:
        ila     $sp, 0x3ffd0
        il      $lr, 0
        stqd    $lr, 0($sp)
        stqd    $sp, -32($sp)
        ai      $sp, $sp, -32
        brsl    $lr, main
        .weak   exit, _exit
exit:
_exit:
        andi    $3, $3, 255
        il      $4, 0x2000
        or      $3, $3, $4
        stqr    $3, 1f
        sync
        br      1f
        .align  4
1:      .space  16
";
/// The first bytes of a store are those of interrupts.
const TEXT: u32 = 0x80;
/// Alignment of parts, which a DMA of whole quadwords wants.
const QUADWORD: u32 = 16;

/// Links objects. Those of archives are taken where a symbol needs them.
///
/// # Errors
/// A symbol is missing or there twice, or the program does not fit the store.
pub fn link(parts: Vec<Part>, settings: &Linking) -> Result<Vec<u8>, LinkError> {
    let entry = settings.entry.as_deref().unwrap_or("_start");
    let mut parts = chosen(parts, entry);
    let has_entry = parts.iter().any(|part| defines(part, entry));
    if !has_entry {
        let missing = || LinkError::NoStart(entry.into());
        if settings.is_bare || settings.entry.is_some() {
            return Err(missing());
        }
        let start = assemble(START.as_bytes(), "start", &mut |_| None);
        parts.insert(
            0,
            Part {
                name: "start".into(),
                object: start.map_err(|_| missing())?,
                is_optional: false,
            },
        );
        // For `main` in an archive.
        parts = chosen(parts, "main");
        if !parts.iter().any(|part| defines(part, "main")) {
            return Err(missing());
        }
        if let Some(part) = parts.iter().find(|part| constructs(part)) {
            return Err(LinkError::Constructors(part.name.clone()));
        }
    }
    parts.retain(|part| !part.is_optional);
    let names = definitions(&parts, settings)?;
    let layout = Layout::new(&parts, &names)?;
    let mut image = layout.image(&parts);
    let addresses = Addresses {
        layout: &layout,
        names: &names,
        parts: &parts,
    };
    for (number, part) in parts.iter().enumerate() {
        addresses.relocate(&mut image, number, part)?;
    }
    let start = addresses.named(entry).unwrap_or(TEXT);
    if !settings.strips {
        addresses.add_symbols(&mut image);
    }
    Ok(image.write_executable(start))
}

/// True where an object defines a name for others.
fn defines(part: &Part, name: &str) -> bool {
    let mut symbols = part.object.symbols.iter();
    !part.is_optional && symbols.any(|symbol| is_offered(symbol) && symbol.name == name)
}

/// True for a symbol that other objects can use.
fn is_offered(symbol: &Symbol) -> bool {
    symbol.binding != Binding::Local && symbol.place != Place::Unknown
}

fn constructs(part: &Part) -> bool {
    let mut sections = part.object.sections.iter();
    !part.is_optional
        && sections.any(|section| {
            let name = section.name.as_str();
            section.memory > 0 && (name.starts_with(".ctors") || name.starts_with(".init_array"))
        })
}

/// The parts, those of archives marked that a missing symbol needs, `entry` first.
fn chosen(mut parts: Vec<Part>, entry: &str) -> Vec<Part> {
    let mut offers: BTreeMap<String, usize> = BTreeMap::new();
    let mut known = BTreeSet::new();
    let mut wanted = vec![entry.to_owned()];
    let note = |part: &Part, known: &mut BTreeSet<String>, wanted: &mut Vec<String>| {
        for symbol in &part.object.symbols {
            if is_offered(symbol) {
                known.insert(symbol.name.clone());
            } else if symbol.place == Place::Unknown && symbol.binding == Binding::Global {
                wanted.push(symbol.name.clone());
            }
        }
    };
    for (number, part) in parts.iter().enumerate() {
        if !part.is_optional {
            note(part, &mut known, &mut wanted);
            continue;
        }
        let offered = part.object.symbols.iter().filter(|one| is_offered(one));
        for symbol in offered {
            offers.entry(symbol.name.clone()).or_insert(number);
        }
    }
    while let Some(name) = wanted.pop() {
        if known.contains(&name) {
            continue;
        }
        let Some(part) = offers.get(&name).and_then(|number| parts.get_mut(*number)) else {
            continue;
        };
        if part.is_optional {
            part.is_optional = false;
            note(part, &mut known, &mut wanted);
        }
    }
    parts
}

/// A name's definition: an object's symbol, or an address.
#[derive(Debug, Clone, Copy)]
enum Definition {
    Symbol { part: usize, symbol: usize },
    Address(u32),
}

/// All names that objects offer one another.
fn definitions(
    parts: &[Part],
    settings: &Linking,
) -> Result<BTreeMap<String, Definition>, LinkError> {
    let mut all = BTreeMap::new();
    for (name, address) in &settings.symbols {
        all.insert(name.clone(), Definition::Address(*address));
    }
    // A weak or a common one gives way.
    let rank = |symbol: &Symbol| match (symbol.binding, symbol.place) {
        (Binding::Weak, _) => 0,
        (_, Place::Common(_)) => 1,
        _ => 2,
    };
    for (number, part) in parts.iter().enumerate() {
        for (place, symbol) in part.object.symbols.iter().enumerate() {
            if !is_offered(symbol) || symbol.name.is_empty() {
                continue;
            }
            let own = Definition::Symbol {
                part: number,
                symbol: place,
            };
            let Some(Definition::Symbol {
                part: other,
                symbol: before,
            }) = all.get(&symbol.name).copied()
            else {
                all.entry(symbol.name.clone()).or_insert(own);
                continue;
            };
            let other = &parts[other];
            let before = &other.object.symbols[before];
            let larger = rank(symbol) == 1 && rank(before) == 1 && symbol.bytes > before.bytes;
            if rank(symbol) == 2 && rank(before) == 2 {
                return Err(LinkError::Twice {
                    symbol: symbol.name.clone(),
                    first: other.name.clone(),
                    second: part.name.clone(),
                });
            }
            if rank(symbol) > rank(before) || larger {
                all.insert(symbol.name.clone(), own);
            }
        }
    }
    Ok(all)
}

/// The store of a program.
struct Layout {
    /// Sections of the executable, without their bytes.
    outputs: Vec<Section>,
    /// For each part and section the output and the offset in it.
    places: Vec<Vec<Option<(usize, u32)>>>,
    /// Addresses of symbols whose memory the linker chooses.
    commons: BTreeMap<(usize, usize), u32>,
}

/// Kinds of sections in the order of the store: interrupts, the start, code, constants, data, room.
const ORDER: [&str; 7] = [
    ".interrupt",
    ".init",
    ".text",
    ".fini",
    ".rodata",
    ".data",
    ".bss",
];

/// The number in `ORDER` of the output that takes a section.
fn order(section: &Section) -> usize {
    let named = ORDER.iter().position(|name| {
        let rest = section.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    match named {
        // Without bytes in the file by its type, not by its name.
        Some(number) if number < 6 && section.kind != NOBITS => number,
        _ if section.kind == NOBITS => 6,
        _ if section.flags & EXECUTED != 0 => 2,
        _ if section.flags & WRITABLE != 0 => 5,
        _ => 4,
    }
}

impl Layout {
    fn new(parts: &[Part], names: &BTreeMap<String, Definition>) -> Result<Self, LinkError> {
        let mut layout = Self {
            outputs: Vec::new(),
            places: Vec::new(),
            commons: BTreeMap::new(),
        };
        for part in parts {
            layout.places.push(vec![None; part.object.sections.len()]);
        }
        let mut address = 0_u64;
        for (number, name) in ORDER.iter().enumerate() {
            let mut output = Section {
                name: (*name).into(),
                kind: PROGBITS,
                flags: crate::object::ALLOCATED,
                align: QUADWORD,
                ..Section::default()
            };
            let start = if number == 0 {
                0
            } else {
                address.max(TEXT.into())
            };
            let start = start.next_multiple_of(QUADWORD.into());
            let mut end = start;
            for (part, places) in parts.iter().zip(&mut layout.places) {
                for (section, place) in part.object.sections.iter().zip(places) {
                    if !section.is_loaded() || order(section) != number {
                        continue;
                    }
                    end = end.next_multiple_of(section.align.into());
                    let offset = u32::try_from(end - start);
                    *place = offset.ok().map(|offset| (number, offset));
                    end = fitting(end + u64::from(section.memory))?;
                    output.align = output.align.max(section.align);
                    output.flags |= section.flags & (EXECUTED | WRITABLE);
                }
            }
            if number == 6 {
                output.kind = NOBITS;
                end = layout.place_commons(parts, names, end)?;
            }
            output.address = fits(start);
            output.memory = fits(end - start);
            if end > start {
                address = end;
            }
            layout.outputs.push(output);
        }
        Ok(layout)
    }

    /// Gives memory to the symbols that have none in a section; returns its end.
    fn place_commons(
        &mut self,
        parts: &[Part],
        names: &BTreeMap<String, Definition>,
        mut end: u64,
    ) -> Result<u64, LinkError> {
        for definition in names.values() {
            let Definition::Symbol { part, symbol } = *definition else {
                continue;
            };
            let found = &parts[part].object.symbols[symbol];
            if let Place::Common(align) = found.place {
                end = end.next_multiple_of(u64::from(align.max(QUADWORD)).next_power_of_two());
                self.commons.insert((part, symbol), fits(end));
                end = fitting(end + u64::from(found.bytes))?;
            }
        }
        Ok(end)
    }

    /// The output of a part's section, and the offset in it.
    fn place(&self, part: usize, section: usize) -> Option<(usize, u32)> {
        self.places.get(part)?.get(section).copied().flatten()
    }

    /// The address of a part's section.
    fn address(&self, part: usize, section: usize) -> Option<u32> {
        let (output, offset) = self.place(part, section)?;
        Some(self.outputs.get(output)?.address + offset)
    }

    /// The executable before its relocations.
    fn image(&self, parts: &[Part]) -> Object {
        let mut sections = self.outputs.clone();
        for section in sections.iter_mut().filter(|one| one.kind != NOBITS) {
            section.bytes = vec![0; section.memory.to_usize()];
        }
        for (part, places) in parts.iter().zip(&self.places) {
            for (section, place) in part.object.sections.iter().zip(places) {
                let Some((output, offset)) = *place else {
                    continue;
                };
                let start = offset.to_usize();
                let output = sections.get_mut(output);
                let to = output
                    .and_then(|output| output.bytes.get_mut(start..start + section.bytes.len()));
                if let Some(to) = to {
                    to.copy_from_slice(&section.bytes);
                }
            }
        }
        Object {
            sections,
            symbols: Vec::new(),
        }
    }

    /// Addresses of the names that a linker gives.
    fn given(&self, name: &str) -> Option<u32> {
        let start = |number: usize| self.outputs.get(number).map(|one| one.address);
        let end = |number: usize| {
            let one = self.outputs.get(number)?;
            Some(one.address + one.memory)
        };
        match name {
            "_end" | "end" | "__end" => end(6),
            "__bss_start" => start(6),
            "_edata" | "edata" => end(5),
            "_etext" | "etext" => end(3),
            "__stack" => Some(0x3_ffd0),
            _ => None,
        }
    }
}

/// An end that lies in the store.
fn fitting(end: u64) -> Result<u64, LinkError> {
    if end.to_usize() > STORE_BYTES {
        return Err(LinkError::TooLarge(end));
    }
    Ok(end)
}

/// A number that was checked.
fn fits(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Addresses of symbols.
struct Addresses<'a> {
    layout: &'a Layout,
    names: &'a BTreeMap<String, Definition>,
    parts: &'a [Part],
}

impl Addresses<'_> {
    /// The address of a name that all objects know.
    fn named(&self, name: &str) -> Option<u32> {
        match self.names.get(name) {
            Some(Definition::Address(address)) => Some(*address),
            Some(Definition::Symbol { part, symbol }) => self.own(*part, *symbol),
            None => self.layout.given(name),
        }
    }

    /// The address of a symbol that an object defines.
    fn own(&self, part: usize, number: usize) -> Option<u32> {
        let symbol = self.parts.get(part)?.object.symbols.get(number)?;
        match symbol.place {
            Place::Section(section, offset) => {
                let start = self.layout.address(part, section)?;
                Some(start.wrapping_add(offset))
            }
            Place::Absolute(value) => Some(value),
            Place::Common(_) => self.layout.commons.get(&(part, number)).copied(),
            Place::Unknown => None,
        }
    }

    /// The value of a relocation: its symbol's address and its addend.
    fn value(&self, part: usize, relocation: &Relocation) -> Result<i64, LinkError> {
        let own = &self.parts[part];
        // An object's reader and the assembler name none that is not there.
        let symbol = &own.object.symbols[relocation.symbol];
        let address = if symbol.binding == Binding::Local && symbol.place != Place::Unknown {
            self.own(part, relocation.symbol)
        } else if symbol.name.is_empty() {
            Some(0)
        } else {
            let found = self.named(&symbol.name);
            found.or((symbol.binding == Binding::Weak).then_some(0))
        };
        let address = address.ok_or_else(|| LinkError::Undefined {
            part: own.name.clone(),
            symbol: symbol.name.clone(),
        })?;
        Ok(i64::from(address) + i64::from(relocation.addend))
    }

    /// Makes the relocations of a part.
    fn relocate(&self, image: &mut Object, number: usize, part: &Part) -> Result<(), LinkError> {
        for (place, section) in part.object.sections.iter().enumerate() {
            let Some((output, base)) = self.layout.place(number, place) else {
                continue;
            };
            let Some(output) = image.sections.get_mut(output) else {
                continue;
            };
            for relocation in &section.relocations {
                let value = self.value(number, relocation)?;
                let offset = relocation.offset.to_usize();
                let done = if offset + 4 > section.bytes.len() {
                    Err("a relocation lies outside of its section".to_owned())
                } else {
                    relocate(output, base.to_usize() + offset, relocation.kind, value)
                };
                done.map_err(|reason| LinkError::Relocation {
                    part: part.name.clone(),
                    section: section.name.clone(),
                    offset: relocation.offset,
                    reason,
                })?;
            }
        }
        Ok(())
    }

    /// Adds the symbols for debuggers and disassemblers.
    fn add_symbols(&self, image: &mut Object) {
        for (number, part) in self.parts.iter().enumerate() {
            for (place, symbol) in part.object.symbols.iter().enumerate() {
                // Numbers as labels have names that no tool shows.
                let inner = symbol.kind == SECTION_TYPE
                    || symbol.name.is_empty()
                    || symbol.name.contains('\u{1}');
                let Some(address) = self.own(number, place).filter(|_| !inner) else {
                    continue;
                };
                let output = match symbol.place {
                    Place::Section(section, _) => self.layout.place(number, section),
                    Place::Common(_) => Some((6, 0)),
                    _ => None,
                };
                image.symbols.push(Symbol {
                    place: match output {
                        Some((output, _)) => Place::Section(output, address),
                        None => Place::Absolute(address),
                    },
                    ..symbol.clone()
                });
            }
        }
    }
}

/// Changes a word as a relocation says.
fn relocate(section: &mut Section, start: usize, kind: u8, value: i64) -> Result<(), String> {
    let address = i64::from(section.address) + i64::try_from(start).unwrap_or_default();
    let word = section.bytes.get_mut(start..start + 4);
    let word = word.ok_or("a relocation lies outside of its section")?;
    let old = word.first_chunk().copied().map_or(0, u32::from_be_bytes);
    let whole = |number: i64| u32::try_from(number & 0xffff_ffff).unwrap_or_default();
    let new = match kind {
        // Nothing, and the mark of code that may lie anywhere.
        0 | 17 => return Ok(()),
        6 => whole(value),
        13 => whole(value.wrapping_sub(address)),
        15 | 16 => return Err("an address of the host's (@ppu) is not linked here".into()),
        _ => {
            let place = Field::of_relocation(kind);
            let place = place.ok_or_else(|| format!("relocation {kind} is not the SPU's"))?;
            let number = if place.is_relative() {
                value - address
            } else {
                value
            };
            let (low, high) = place.range();
            if !(low..=high).contains(&number) {
                return Err(format!("{number} is not between {low} and {high}"));
            }
            place.write(old, number)
        }
    };
    word.copy_from_slice(&new.to_be_bytes());
    Ok(())
}
