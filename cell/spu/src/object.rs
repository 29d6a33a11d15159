//! Relocatable objects and executables of the SPU: ELF files of class 32, machine 23, the most
//! significant byte first.
//!
//! Must stay true: what an object names, sections, symbols and places, lies within it. Reading
//! costs no more than a few times the file's size. Sources: System V ABI, chapter 4; SPU
//! Application Binary Interface Specification 1.9.

use crate::{half, word};
use sidecore_bare::width::ToUsize;

/// A relocatable object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object {
    pub(crate) sections: Vec<Section>,
    pub(crate) symbols: Vec<Symbol>,
}

/// A section of an object or an executable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    /// `sh_type`.
    pub(crate) kind: u32,
    /// `sh_flags`.
    pub(crate) flags: u32,
    /// A power of two.
    pub(crate) align: u32,
    /// 0 in an object.
    pub(crate) address: u32,
    /// None of a section without bytes in the file.
    pub(crate) bytes: Vec<u8>,
    /// Bytes in the store: those of the file, or zeros.
    pub(crate) memory: u32,
    pub(crate) relocations: Vec<Relocation>,
}

impl Section {
    /// True where the section has a place in the store.
    pub(crate) fn is_loaded(&self) -> bool {
        self.flags & ALLOCATED != 0
    }
}

/// A change that the linker makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Relocation {
    pub(crate) offset: u32,
    pub(crate) symbol: usize,
    /// The ABI's number.
    pub(crate) kind: u8,
    pub(crate) addend: i32,
}

/// A name, or a section's beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) bytes: u32,
    pub(crate) binding: Binding,
    /// `STT_…`.
    pub(crate) kind: u8,
}

/// A symbol's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Unknown,
    /// A section and an offset, in an executable an address.
    Section(usize, u32),
    Absolute(u32),
    /// Memory of the linker's choice, aligned to this.
    Common(u32),
}

/// The reach of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binding {
    Local,
    Global,
    Weak,
}

/// Reasons for which an object is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// Not such a file at all.
    #[error("not an object of the SPU")]
    Other,
    /// An executable or a library.
    #[error("ELF type {0} of the SPU, not an object (1)")]
    Kind(u16),
    /// A part of it lies outside of the file.
    #[error("cut off or damaged at {0}")]
    Damaged(&'static str),
    /// It uses a part of ELF that assemblers of the SPU do not write.
    #[error("has {0}, which is not linked here")]
    Unknown(&'static str),
}

pub(crate) const PROGBITS: u32 = 1;
pub(crate) const NOBITS: u32 = 8;
pub(crate) const NOTE: u32 = 7;
pub(crate) const WRITABLE: u32 = 1;
pub(crate) const ALLOCATED: u32 = 2;
pub(crate) const EXECUTED: u32 = 4;
const SYMBOLS: u32 = 2;
const STRINGS: u32 = 3;
const ADDENDS: u32 = 4;
const CHANGES: u32 = 9;
/// The type of a section's own symbol.
pub(crate) const SECTION_TYPE: u8 = 3;
const OBJECT: u16 = 1;
const ABSOLUTE: u16 = 0xfff1;
const COMMON: u16 = 0xfff2;
/// Indices of sections end here.
const RESERVED: u16 = 0xff00;
const HEADER_BYTES: usize = 52;
const PROGRAM_BYTES: usize = 32;
const SECTION_BYTES: usize = 40;

impl Object {
    /// True for an object of the SPU's, by its first bytes.
    #[must_use]
    pub fn is_spus(file: &[u8]) -> bool {
        crate::Executable::is_spus(file) && half(file, 16) == Some(OBJECT)
    }

    /// The object as a file.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        Writer::new(self).write(OBJECT, 0)
    }

    /// The parts as an executable that begins at `entry`; their addresses are the sections'.
    pub(crate) fn write_executable(&self, entry: u32) -> Vec<u8> {
        Writer::new(self).write(2, entry)
    }

    /// Reads an object.
    ///
    /// # Errors
    /// It is another kind of file, is damaged, or has parts that are not linked here.
    pub fn read(file: &[u8]) -> Result<Self, ObjectError> {
        match half(file, 16) {
            Some(OBJECT) => Self::read_any(file),
            Some(kind) if crate::Executable::is_spus(file) => Err(ObjectError::Kind(kind)),
            _ => Err(ObjectError::Other),
        }
    }

    /// Reads an object, or the sections of an executable.
    pub(crate) fn read_any(file: &[u8]) -> Result<Self, ObjectError> {
        if !crate::Executable::is_spus(file) {
            return Err(ObjectError::Other);
        }
        Reader::new(file)?.read()
    }
}

/// A file that is being written.
struct Writer<'a> {
    object: &'a Object,
    file: Vec<u8>,
    names: Vec<u8>,
    headers: Vec<[u32; 10]>,
}

impl<'a> Writer<'a> {
    fn new(object: &'a Object) -> Self {
        Self {
            object,
            file: vec![0; HEADER_BYTES],
            names: vec![0],
            headers: vec![[0; 10]],
        }
    }

    /// Adds a section's bytes.
    fn add(&mut self, name: &str, header: [u32; 10], bytes: &[u8], align: usize) {
        self.file.resize(self.file.len().next_multiple_of(align), 0);
        let mut header = header;
        header[0] = size(self.names.len());
        header[4] = size(self.file.len());
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        self.file.extend_from_slice(bytes);
        self.headers.push(header);
    }

    fn write(mut self, kind: u16, entry: u32) -> Vec<u8> {
        let object = self.object;
        let loaded = |section: &&Section| section.is_loaded() && section.memory > 0;
        let programs = if kind == OBJECT {
            0
        } else {
            object.sections.iter().filter(loaded).count()
        };
        self.file.resize(HEADER_BYTES + PROGRAM_BYTES * programs, 0);
        for section in &object.sections {
            let header = [
                0,
                section.kind,
                section.flags,
                section.address,
                0,
                section.memory,
                0,
                0,
                section.align,
                0,
            ];
            self.add(&section.name, header, &section.bytes, 16);
        }
        let (symbols, strings, order, locals) = symbol_table(object);
        let table = size(object.sections.len() + 1);
        for (number, section) in object.sections.iter().enumerate() {
            if section.relocations.is_empty() {
                continue;
            }
            let mut bytes = Vec::with_capacity(12 * section.relocations.len());
            for change in &section.relocations {
                let symbol = order.get(change.symbol).copied().unwrap_or_default();
                put(&mut bytes, change.offset);
                put(&mut bytes, symbol << 8 | u32::from(change.kind));
                put(&mut bytes, change.addend.cast_unsigned());
            }
            // The table of symbols follows all of these.
            let relocated = object.sections.iter();
            let relocated = relocated.filter(|section| !section.relocations.is_empty());
            let table = table + size(relocated.count());
            let length = size(bytes.len());
            let header = [0, ADDENDS, 0, 0, 0, length, table, size(number + 1), 4, 12];
            self.add(&format!(".rela{}", section.name), header, &bytes, 4);
        }
        let next = size(self.headers.len() + 1);
        let length = size(symbols.len());
        let header = [0, SYMBOLS, 0, 0, 0, length, next, locals, 4, 16];
        self.add(".symtab", header, &symbols, 4);
        let header = [0, STRINGS, 0, 0, 0, size(strings.len()), 0, 0, 1, 0];
        self.add(".strtab", header, &strings, 1);
        let name = ".shstrtab";
        let all = size(self.names.len() + name.len() + 1);
        self.add(name, [0, STRINGS, 0, 0, 0, all, 0, 0, 1, 0], &[], 1);
        self.file.extend_from_slice(&self.names);
        self.file.resize(self.file.len().next_multiple_of(4), 0);
        self.finish(kind, entry, programs)
    }

    /// Writes the headers.
    fn finish(mut self, kind: u16, entry: u32, programs: usize) -> Vec<u8> {
        let sections = self.file.len();
        for word in self.headers.iter().flatten() {
            put(&mut self.file, *word);
        }
        let halves = |left: u16, right: u16| u32::from(left) << 16 | u32::from(right);
        let count = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let mut head = b"\x7fELF\x01\x02\x01".to_vec();
        head.resize(16, 0);
        let (program, header) = (count(PROGRAM_BYTES), count(HEADER_BYTES));
        let programs_at = if programs == 0 { 0 } else { HEADER_BYTES };
        for word in [
            halves(kind, 23),
            1,
            entry,
            size(programs_at),
            size(sections),
            0,
            halves(header, if programs == 0 { 0 } else { program }),
            halves(count(programs), count(SECTION_BYTES)),
            halves(count(self.headers.len()), count(self.headers.len() - 1)),
        ] {
            put(&mut head, word);
        }
        if programs > 0 {
            let all = self.headers.iter().skip(1).zip(&self.object.sections);
            for (header, section) in all.filter(|(_, section)| section.is_loaded()) {
                if section.memory == 0 {
                    continue;
                }
                let bytes = size(section.bytes.len());
                // Readable, and the section's own rights.
                let flags = 4
                    | if section.flags & WRITABLE != 0 { 2 } else { 0 }
                    | if section.flags & EXECUTED != 0 { 1 } else { 0 };
                let address = section.address;
                let place = header[4];
                for word in [1, place, address, address, bytes, section.memory, flags, 16] {
                    put(&mut head, word);
                }
            }
        }
        if let Some(start) = self.file.get_mut(..head.len()) {
            start.copy_from_slice(&head);
        }
        self.file
    }
}

/// The table of symbols, their names, each symbol's number in the table, and the number of local
/// ones, which come first.
fn symbol_table(object: &Object) -> (Vec<u8>, Vec<u8>, Vec<u32>, u32) {
    let mut table = vec![0; 16];
    let mut strings = vec![0];
    let mut order = vec![0; object.symbols.len()];
    let mut count = 1_u32;
    let mut locals = 1;
    for is_local in [true, false] {
        for (symbol, number) in object.symbols.iter().zip(&mut order) {
            if (symbol.binding == Binding::Local) != is_local {
                continue;
            }
            *number = count;
            count += 1;
            let section = |number: usize| u16::try_from(number + 1).unwrap_or(ABSOLUTE);
            let (value, place) = match symbol.place {
                Place::Unknown => (0, 0),
                Place::Section(number, value) => (value, section(number)),
                Place::Absolute(value) => (value, ABSOLUTE),
                Place::Common(align) => (align, COMMON),
            };
            let name = if symbol.name.is_empty() {
                0
            } else {
                size(strings.len())
            };
            if name > 0 {
                strings.extend_from_slice(symbol.name.as_bytes());
                strings.push(0);
            }
            put(&mut table, name);
            put(&mut table, value);
            put(&mut table, symbol.bytes);
            let binding = match symbol.binding {
                Binding::Local => 0_u8,
                Binding::Global => 1,
                Binding::Weak => 2,
            };
            table.extend_from_slice(&[binding << 4 | symbol.kind & 15, 0]);
            table.extend_from_slice(&place.to_be_bytes());
        }
        if is_local {
            locals = count;
        }
    }
    (table, strings, order, locals)
}

fn put(file: &mut Vec<u8>, word: u32) {
    file.extend_from_slice(&word.to_be_bytes());
}

/// A length as ELF has it. Those of objects are bounded by the assembler and the linker.
fn size(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A file that is being read.
struct Reader<'a> {
    file: &'a [u8],
    headers: Vec<[u32; 10]>,
    /// Bytes that may still be copied: sections of a hostile file may lie upon one another.
    budget: usize,
}

impl<'a> Reader<'a> {
    fn new(file: &'a [u8]) -> Result<Self, ObjectError> {
        let damaged = ObjectError::Damaged("its header");
        let table = word(file, 32).ok_or(damaged)?.to_usize();
        let bytes = usize::from(half(file, 46).ok_or(damaged)?);
        let count = usize::from(half(file, 48).ok_or(damaged)?);
        let mut headers = Vec::new();
        for number in 0..count {
            let mut header = [0; 10];
            for (place, value) in header.iter_mut().enumerate() {
                let at = table + number * bytes + 4 * place;
                *value = word(file, at).ok_or(ObjectError::Damaged("its section headers"))?;
            }
            headers.push(header);
        }
        Ok(Self {
            file,
            headers,
            budget: 4 * file.len() + (1 << 20),
        })
    }

    /// The bytes of a section in the file.
    fn bytes(&mut self, header: &[u32; 10]) -> Result<&'a [u8], ObjectError> {
        let (start, length) = (header[4].to_usize(), header[5].to_usize());
        let part = self.file.get(start..start + length);
        self.spend(length)?;
        part.ok_or(ObjectError::Damaged("a section"))
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ObjectError> {
        let left = self.budget.checked_sub(bytes);
        self.budget = left.ok_or(ObjectError::Damaged("its sections, which overlap"))?;
        Ok(())
    }

    /// A name in a table of strings.
    fn name(&mut self, table: &[u8], at: u32) -> Result<String, ObjectError> {
        let damaged = ObjectError::Damaged("a name");
        let text = table.get(at.to_usize()..).ok_or(damaged)?;
        let end = text.iter().take(NAME_BYTES_MAX).position(|byte| *byte == 0);
        let end = end.ok_or(damaged)?;
        self.spend(end)?;
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    fn table(&mut self, number: u32) -> Result<&'a [u8], ObjectError> {
        let header = self.headers.get(number.to_usize()).copied();
        self.bytes(&header.ok_or(ObjectError::Damaged("its section headers"))?)
    }

    fn read(mut self) -> Result<Object, ObjectError> {
        let mut object = Object::default();
        // Numbers of the file's sections, and ours.
        let mut ours = Vec::with_capacity(self.headers.len());
        let names = u32::from(half(self.file, 50).unwrap_or_default());
        let names = self.table(names)?;
        for header in self.headers.clone() {
            let kind = header[1];
            // Tables of ELF's own, and what its extensions have.
            if matches!(kind, 0 | SYMBOLS | STRINGS | ADDENDS | CHANGES | 10..=13 | 17..) {
                ours.push(None);
                continue;
            }
            let align = header[8].max(1);
            if !align.is_power_of_two() {
                return Err(ObjectError::Damaged("a section's alignment"));
            }
            let bytes = if kind == NOBITS {
                Vec::new()
            } else {
                self.bytes(&header)?.to_vec()
            };
            ours.push(Some(object.sections.len()));
            object.sections.push(Section {
                name: self.name(names, header[0])?,
                kind,
                flags: header[2],
                align,
                address: header[3],
                bytes,
                memory: header[5],
                relocations: Vec::new(),
            });
        }
        self.read_symbols(&mut object, &ours)?;
        self.read_relocations(&mut object, &ours)?;
        Ok(object)
    }

    fn read_symbols(
        &mut self,
        object: &mut Object,
        ours: &[Option<usize>],
    ) -> Result<(), ObjectError> {
        let mut tables = self.headers.iter().filter(|header| header[1] == SYMBOLS);
        let Some(header) = tables.next().copied() else {
            return Ok(());
        };
        let names = self.table(header[6])?;
        let table = self.bytes(&header)?;
        for row in table.chunks_exact(16) {
            let field = |at: usize| word(row, at).unwrap_or_default();
            let (value, info) = (field(4), row[12]);
            let place = match half(row, 14).unwrap_or_default() {
                0 => Place::Unknown,
                ABSOLUTE => Place::Absolute(value),
                COMMON => Place::Common(value),
                RESERVED.. => return Err(ObjectError::Unknown("a section's number beyond 65,279")),
                number => match ours.get(usize::from(number)) {
                    Some(Some(section)) => Place::Section(*section, value),
                    // Of a table, which nothing loads.
                    Some(None) => Place::Absolute(0),
                    None => return Err(ObjectError::Damaged("a symbol")),
                },
            };
            object.symbols.push(Symbol {
                name: self.name(names, field(0))?,
                place,
                bytes: field(8),
                binding: match info >> 4 {
                    0 => Binding::Local,
                    2 => Binding::Weak,
                    _ => Binding::Global,
                },
                kind: info & 15,
            });
        }
        Ok(())
    }

    fn read_relocations(
        &mut self,
        object: &mut Object,
        ours: &[Option<usize>],
    ) -> Result<(), ObjectError> {
        for header in self.headers.clone() {
            let target = ours.get(header[7].to_usize()).copied().flatten();
            let Some(section) = target.and_then(|target| object.sections.get_mut(target)) else {
                continue;
            };
            match header[1] {
                ADDENDS => {}
                CHANGES => return Err(ObjectError::Unknown("relocations without addends")),
                _ => continue,
            }
            for row in self.bytes(&header)?.chunks_exact(12) {
                let field = |at: usize| word(row, at).unwrap_or_default();
                let info = field(4);
                let symbol = (info >> 8).to_usize();
                if symbol >= object.symbols.len() {
                    return Err(ObjectError::Damaged("a relocation"));
                }
                section.relocations.push(Relocation {
                    offset: field(0),
                    symbol,
                    kind: info.to_le_bytes()[0],
                    addend: field(8).cast_signed(),
                });
            }
        }
        Ok(())
    }
}

/// Bytes of a name, which C++ makes long.
const NAME_BYTES_MAX: usize = 16_384;

/// The members of an archive that are objects of the SPU: names and bytes. Nothing for a file that
/// is no archive.
#[must_use]
pub fn archive_members(file: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let mut rest = file.strip_prefix(b"!<arch>\n")?;
    let mut all = Vec::new();
    while let Some(header) = rest.get(..60) {
        let text = |from: usize, to: usize| String::from_utf8_lossy(&header[from..to]).into_owned();
        let Ok(bytes) = text(48, 58).trim().parse::<usize>() else {
            break;
        };
        let Some(body) = rest.get(60..).and_then(|rest| rest.get(..bytes)) else {
            break;
        };
        if Object::is_spus(body) {
            all.push((text(0, 16).trim().trim_end_matches('/').into(), body));
        }
        // Members begin at even places.
        let next = bytes.next_multiple_of(2).checked_add(60);
        rest = next.and_then(|next| rest.get(next..)).unwrap_or_default();
    }
    Some(all)
}
