//! The SPU's assembler: source as the GNU assembler of the SPU reads it, and as its compilers
//! wrote it, into relocatable objects.
//!
//! Layers, bottom up: `text` cuts source into statements and writes macros out; `expression` has
//! symbols and their values; `operands` the instructions; `directives` the rest of the words.
//!
//! Must stay true: source is hostile. Every count is checked before memory is taken for it, and
//! work is bounded by the size of the source and the constants here and in `text`.
//! Sources: SPU Assembly Language Specification 1.7; the manual of the GNU assembler.

mod directives;
mod expression;
pub(crate) mod operands;
mod text;

pub use operands::{disassemble, listing};

use crate::STORE_BYTES;
use crate::object::{
    ALLOCATED, Binding, EXECUTED, NOBITS, Object, PROGBITS, Place as Defined, Relocation,
    SECTION_TYPE, Section, Symbol, WRITABLE,
};
use expression::{Base, Expression, Label, Meaning, Parser, Symbols, Value};
use operands::{Place, mnemonic};
use sidecore_bare::width::ToUsize;
use std::collections::BTreeMap;
use std::rc::Rc;
use text::{Input, Statement, cut_label, cut_name, shown, split_word, trim};

/// Source that could not be assembled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct AssemblyError {
    /// The source's name, or that of a file that it includes.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The reason, in one line.
    pub reason: String,
}

/// Reads a file that source includes by its name.
pub type Files<'a> = &'a mut dyn FnMut(&str) -> Option<Vec<u8>>;

/// Assembles source, which the preprocessor has read where it needs that. `file` stands in
/// messages; `files` gives what `.include` and `.incbin` name.
///
/// # Errors
/// The first statement that is none, with its file and line.
pub fn assemble(source: &[u8], file: &str, files: Files<'_>) -> Result<Object, AssemblyError> {
    let mut assembler = Assembler::new(files);
    let mut place = (Rc::from(file), 1);
    let result = assembler.read(source, &mut place);
    let result = result.and_then(|()| assembler.finish(&mut place));
    result.map_err(|reason| AssemblyError {
        file: place.0.to_string(),
        line: place.1,
        reason,
    })
}

/// File and line.
type Position = (Rc<str>, u32);

/// The state of an assembly.
struct Assembler<'a> {
    input: Input,
    symbols: Symbols,
    sections: Vec<Section>,
    /// The sections' numbers by their names.
    section_numbers: BTreeMap<String, usize>,
    current: usize,
    previous: usize,
    /// Sections that `.pushsection` left.
    pushed: Vec<(usize, usize)>,
    conditions: Vec<Condition>,
    changes: Vec<Change>,
    /// Bytes of all sections.
    bytes: usize,
    files: Files<'a>,
}

/// A part of the source that a condition chooses.
#[derive(Debug, Clone, Copy)]
struct Condition {
    /// True where the text around it is read.
    outer: bool,
    /// True where this part is read.
    active: bool,
    /// True where a part before was.
    taken: bool,
}

/// A number that is put into a section when all symbols are known.
struct Change {
    section: usize,
    offset: usize,
    field: Field,
    value: Expression,
    position: Position,
}

/// Kinds of numbers in a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// A place of an instruction.
    Operand(Place),
    /// Bytes of data.
    Data(usize),
    /// Bytes of data: an address of the host's (`@ppu`).
    Host(usize),
}

/// Bytes of a section that is not loaded, as debuggers' are.
const SECTION_BYTES_MAX: usize = 16 << 20;
/// Bytes of all sections.
const BYTES_MAX: usize = 32 << 20;
/// Sections of a source.
const SECTIONS_MAX: usize = 4_000;
/// Numbers that hang on symbols.
const CHANGES_MAX: usize = 1 << 20;
/// The greatest alignment: that of the store itself.
const ALIGN_MAX: i64 = 0x4_0000;
const ADDRESS: u8 = 6;
const DISTANCE: u8 = 13;
const HOST_32: u8 = 15;
const HOST_64: u8 = 16;

impl<'a> Assembler<'a> {
    fn new(files: Files<'a>) -> Self {
        let mut own = Self {
            input: Input::default(),
            symbols: Symbols::default(),
            sections: Vec::new(),
            section_numbers: BTreeMap::new(),
            current: 0,
            previous: 0,
            pushed: Vec::new(),
            conditions: Vec::new(),
            changes: Vec::new(),
            bytes: 0,
            files,
        };
        for name in [".text", ".data", ".bss"] {
            let (kind, flags) = usual(name);
            let number = own.sections.len();
            own.section_numbers.insert(name.into(), number);
            own.sections.push(section(name, kind, flags));
        }
        own
    }

    /// Reads all statements. The position is the last one's.
    fn read(&mut self, source: &[u8], position: &mut Position) -> Result<(), String> {
        self.input.open(source, &position.0)?;
        while let Some(statement) = self.input.next()? {
            *position = (statement.file.clone(), statement.line);
            self.statement(&statement)?;
        }
        if self.conditions.is_empty() {
            Ok(())
        } else {
            Err(".if without .endif".into())
        }
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), String> {
        let mut text = trim(&statement.text);
        let (word, rest) = split_word(text);
        if self.conditional(word, rest)? || !self.is_active() {
            return Ok(());
        }
        while let Some((name, rest)) = cut_label(text) {
            self.define_label(name)?;
            text = rest;
        }
        if text.is_empty() {
            return Ok(());
        }
        self.symbols.here = (self.current, self.offset());
        if let Some((name, value)) = assignment(text) {
            return self.assign(name, value);
        }
        let (word, rest) = split_word(text);
        if self.input.call(word, rest, self.conditions.len())? {
            return Ok(());
        }
        let position = (statement.file.clone(), statement.line);
        let name = String::from_utf8_lossy(word);
        if let Some(found) = mnemonic(&name) {
            let mut parser = Parser::new(rest, &mut self.symbols);
            let (word, numbers) = parser.operands(&found)?;
            return self.instruction(word, numbers, &position);
        }
        // Those of the SPU's assembler may stand without their point.
        let bare = name.strip_prefix('.').unwrap_or(&name);
        if !bare.is_empty() && self.directive(bare, rest, &position)? {
            return Ok(());
        }
        Err(match name.strip_prefix('.') {
            Some(_) => format!("the directive {} is not known", shown(word)),
            None => format!("`{}` is no instruction of the SPU", shown(text)),
        })
    }

    /// The offset behind what the section has.
    fn offset(&self) -> i64 {
        let bytes = self.sections.get(self.current).map(|part| part.memory);
        bytes.unwrap_or_default().into()
    }

    fn define_label(&mut self, name: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(name);
        let symbol = match text.parse::<u32>() {
            Ok(number) => self.symbols.label(number, Label::New)?,
            Err(_) if name.first().is_some_and(u8::is_ascii_digit) => {
                return Err(format!("{} is no label", shown(name)));
            }
            Err(_) => self.symbols.named(&text),
        };
        let place = Meaning::Place(self.current, self.offset());
        match self.symbols.all.get_mut(symbol) {
            Some(symbol) if matches!(symbol.meaning, Meaning::Unknown) => {
                symbol.meaning = place;
                Ok(())
            }
            _ => Err(format!("{} is defined twice", shown(name))),
        }
    }

    /// `.set NAME, VALUE` and `NAME = VALUE`.
    fn assign(&mut self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let mut parser = Parser::new(value, &mut self.symbols);
        let mut formula = parser.expression()?;
        parser.finish()?;
        let name = String::from_utf8_lossy(name);
        if name == "." {
            let to = self.symbols.value(&formula, true)?;
            return self.advance(to);
        }
        // Now, where it is known: a later value of the same symbol hangs on this one.
        if let Ok(value) = self.symbols.value(&formula, true) {
            match (value.base, value.minus) {
                (Base::Nothing, None) => formula = Expression::Number(value.number),
                (Base::Section(section), None) => {
                    formula = Expression::Here(section, value.number);
                }
                _ => {}
            }
        }
        let symbol = self.symbols.named(&name);
        match self.symbols.all.get_mut(symbol) {
            Some(symbol) if matches!(symbol.meaning, Meaning::Unknown | Meaning::Formula(_)) => {
                symbol.meaning = Meaning::Formula(formula);
                Ok(())
            }
            _ => Err(format!("{name} is a label already")),
        }
    }

    fn instruction(
        &mut self,
        word: u32,
        numbers: Vec<(Place, Expression)>,
        position: &Position,
    ) -> Result<(), String> {
        let offset = self.offset();
        if offset % 4 != 0 {
            return Err("an instruction begins at a multiple of 4 bytes; use .align 2".into());
        }
        if let Some(part) = self.sections.get_mut(self.current) {
            part.align = part.align.max(4);
        }
        self.emit(&word.to_be_bytes())?;
        for (place, value) in numbers {
            self.change(offset, Field::Operand(place), value, position)?;
        }
        Ok(())
    }

    /// Adds bytes to the section.
    fn emit(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some(part) = self.sections.get_mut(self.current) else {
            return Ok(());
        };
        let whole = part.memory.to_usize() + bytes.len();
        let most = if part.is_loaded() {
            STORE_BYTES
        } else {
            SECTION_BYTES_MAX
        };
        if whole > most {
            return Err(format!("{} gets more than {most} bytes", part.name));
        }
        self.bytes += bytes.len();
        if self.bytes > BYTES_MAX {
            return Err(format!("more than {BYTES_MAX} bytes in all sections"));
        }
        if part.kind != NOBITS {
            part.bytes.extend_from_slice(bytes);
        } else if bytes.iter().any(|byte| *byte != 0) {
            return Err(format!("{} has only zeros", part.name));
        }
        part.memory = u32::try_from(whole).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Adds as many bytes of a kind.
    fn fill(&mut self, count: i64, byte: u8) -> Result<(), String> {
        let count = usize::try_from(count).ok();
        let count = count.filter(|count| *count <= SECTION_BYTES_MAX);
        let count = count.ok_or_else(|| {
            format!("a number of bytes from 0 to {SECTION_BYTES_MAX} must stand here")
        })?;
        self.emit(&vec![byte; count])
    }

    /// Puts a number into the section: now where it is known, at the end where it is not.
    fn change(
        &mut self,
        offset: i64,
        field: Field,
        value: Expression,
        position: &Position,
    ) -> Result<(), String> {
        let offset = usize::try_from(offset).unwrap_or_default();
        let known = self
            .symbols
            .value(&value, false)
            .ok()
            .and_then(Value::known);
        match known {
            Some(number) => self.put(self.current, offset, field, number),
            None if self.changes.len() >= CHANGES_MAX => {
                Err(format!("more than {CHANGES_MAX} numbers hang on symbols"))
            }
            None => {
                self.changes.push(Change {
                    section: self.current,
                    offset,
                    field,
                    value,
                    position: position.clone(),
                });
                Ok(())
            }
        }
    }

    /// Writes a number into a section.
    fn put(
        &mut self,
        section: usize,
        offset: usize,
        field: Field,
        number: i64,
    ) -> Result<(), String> {
        let (low, high) = match field {
            Field::Operand(place) => place.range(),
            Field::Data(8) | Field::Host(_) => (i64::MIN, i64::MAX),
            Field::Data(bytes) => (-(1 << (8 * bytes - 1)), (1 << (8 * bytes)) - 1),
        };
        if !(low..=high).contains(&number) {
            return Err(format!("{number} is not between {low} and {high}"));
        }
        let Some(part) = self.sections.get_mut(section) else {
            return Ok(());
        };
        let bytes = match field {
            Field::Operand(_) => 4,
            Field::Data(bytes) | Field::Host(bytes) => bytes,
        };
        let Some(to) = part.bytes.get_mut(offset..offset + bytes) else {
            // One without bytes in the file.
            return if number == 0 {
                Ok(())
            } else {
                Err(format!("{} has only zeros", part.name))
            };
        };
        if let Field::Operand(place) = field {
            let word = to.first_chunk().copied().map_or(0, u32::from_be_bytes);
            to.copy_from_slice(&place.write(word, number).to_be_bytes());
        } else {
            let all = number.to_be_bytes();
            to.copy_from_slice(&all[all.len() - bytes..]);
        }
        Ok(())
    }

    /// Puts the numbers in that hang on symbols, and makes the object.
    fn finish(&mut self, position: &mut Position) -> Result<Object, String> {
        let mut used = vec![false; self.symbols.all.len()];
        let mut relocations = Vec::new();
        for change in std::mem::take(&mut self.changes) {
            *position = change.position.clone();
            let value = self.symbols.value(&change.value, false);
            let value = value.or_else(|_| self.symbols.value(&change.value, true))?;
            let found = self.resolved(&change, value)?;
            if let (Some(_), Base::Symbol(symbol)) = (found, value.base) {
                used[symbol] = true;
                if self.is_lost(symbol) {
                    return Err("a label that is a number is not defined behind".into());
                }
            }
            relocations.extend(found.map(|found| (change.section, value.base, found)));
        }
        let mut object = Object {
            sections: std::mem::take(&mut self.sections),
            symbols: Vec::new(),
        };
        let sections = object.sections.len();
        for number in 0..sections {
            object.symbols.push(Symbol {
                name: String::new(),
                place: Defined::Section(number, 0),
                bytes: 0,
                binding: Binding::Local,
                kind: SECTION_TYPE,
            });
        }
        let mut numbers = vec![0; used.len()];
        for (symbol, used) in used.iter().enumerate() {
            if let Some(found) = self.defined(symbol, *used)? {
                numbers[symbol] = object.symbols.len();
                object.symbols.push(found);
            }
        }
        for (section, base, relocation) in relocations {
            let symbol = match base {
                Base::Symbol(symbol) => numbers[symbol],
                Base::Section(section) => section,
                Base::Nothing => 0,
            };
            if let Some(part) = object.sections.get_mut(section) {
                part.relocations.push(Relocation {
                    symbol,
                    ..relocation
                });
            }
        }
        Ok(object)
    }

    /// True for a label that is a number and was not defined.
    fn is_lost(&self, symbol: usize) -> bool {
        let symbol = self.symbols.all.get(symbol);
        symbol.is_some_and(|symbol| {
            symbol.name.contains('\u{1}') && matches!(symbol.meaning, Meaning::Unknown)
        })
    }

    /// Puts a number in whose value is known now; else the relocation for it, whose symbol is the
    /// value's base.
    fn resolved(&mut self, change: &Change, value: Value) -> Result<Option<Relocation>, String> {
        let offset = i64::try_from(change.offset).unwrap_or_default();
        let relocation = |kind: u8, at: usize, addend: i64| -> Result<Option<Relocation>, String> {
            let addend = i32::try_from(addend);
            Ok(Some(Relocation {
                offset: u32::try_from(at).unwrap_or(u32::MAX),
                symbol: 0,
                kind,
                addend: addend.map_err(|_| "an address has 32 bits".to_owned())?,
            }))
        };
        if let Some(number) = value.known() {
            self.put(change.section, change.offset, change.field, number)?;
            return Ok(None);
        }
        let here = value.base == Base::Section(change.section);
        match (change.field, value.minus) {
            (Field::Operand(place), None) if place.is_relative() && here => {
                self.put(
                    change.section,
                    change.offset,
                    change.field,
                    value.number.wrapping_sub(offset),
                )?;
                Ok(None)
            }
            (Field::Operand(place), None) => {
                let kind = place.relocation().ok_or("a number must stand here")?;
                relocation(kind, change.offset, value.number)
            }
            (Field::Data(4), None) => relocation(ADDRESS, change.offset, value.number),
            // The upper half of an address is 0.
            (Field::Data(8), None) => relocation(ADDRESS, change.offset + 4, value.number),
            (Field::Host(4), None) => relocation(HOST_32, change.offset, value.number),
            (Field::Host(_), None) => relocation(HOST_64, change.offset, value.number),
            (Field::Data(4), Some(section)) if section == change.section => {
                let addend = value.number.wrapping_add(offset);
                relocation(DISTANCE, change.offset, addend)
            }
            _ => Err("an address does not fit here".into()),
        }
    }

    /// A symbol as the object has it; nothing for those that only the source knows.
    fn defined(&self, number: usize, used: bool) -> Result<Option<Symbol>, String> {
        let Some(symbol) = self.symbols.all.get(number) else {
            return Ok(None);
        };
        let is_inner = symbol.name.starts_with(".L") || symbol.name.contains('\u{1}');
        let reaches = symbol.is_global || symbol.is_weak;
        let low = |number: i64| u32::try_from(number & 0xffff_ffff).unwrap_or_default();
        let mut bytes = match &symbol.bytes {
            Some(bytes) => low(self.symbols.number(bytes)?),
            None => 0,
        };
        let place = match &symbol.meaning {
            Meaning::Unknown if !used => return Ok(None),
            Meaning::Unknown => Defined::Unknown,
            _ if is_inner && !used && !reaches => return Ok(None),
            Meaning::Place(section, offset) => Defined::Section(*section, low(*offset)),
            Meaning::Common { bytes: all, align } => {
                bytes = *all;
                Defined::Common(*align)
            }
            Meaning::Formula(formula) => {
                let value = self.symbols.value(formula, true)?;
                match (value.base, value.minus) {
                    (Base::Nothing, None) => Defined::Absolute(low(value.number)),
                    (Base::Section(section), None) => Defined::Section(section, low(value.number)),
                    _ if !reaches => return Ok(None),
                    _ => return Err(format!("{} stands for another object's", symbol.name)),
                }
            }
        };
        let binding = match place {
            _ if symbol.is_weak => Binding::Weak,
            Defined::Unknown | Defined::Common(_) => Binding::Global,
            _ if symbol.is_global => Binding::Global,
            _ => Binding::Local,
        };
        Ok(Some(Symbol {
            name: symbol.name.clone(),
            place,
            bytes,
            binding,
            kind: symbol.kind,
        }))
    }
}

/// Name and value of `NAME = VALUE`.
fn assignment(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = cut_name(text)?;
    let value = trim(rest).strip_prefix(b"=")?;
    Some((name, value.strip_prefix(b"=").unwrap_or(value)))
}

/// An empty section.
fn section(name: &str, kind: u32, flags: u32) -> Section {
    Section {
        name: name.into(),
        kind,
        flags,
        align: 1,
        ..Section::default()
    }
}

/// Type and flags of a section by its name.
fn usual(name: &str) -> (u32, u32) {
    let is = |known: &str| {
        let rest = name.strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let any = |all: &[&str]| all.iter().any(|known| is(known));
    if any(&[".text", ".init", ".fini", ".interrupt"]) {
        (PROGBITS, ALLOCATED | EXECUTED)
    } else if any(&[".data", ".ctors", ".dtors", ".init_array", ".fini_array"]) {
        (PROGBITS, ALLOCATED | WRITABLE)
    } else if is(".bss") {
        (NOBITS, ALLOCATED | WRITABLE)
    } else if is(".rodata") {
        (PROGBITS, ALLOCATED)
    } else {
        (PROGBITS, 0)
    }
}
