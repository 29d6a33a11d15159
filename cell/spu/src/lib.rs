#![doc = include_str!("../README.md")]
//!
//! Layers, bottom up: `registers`, `float` and `double` compute; `isa` is the table of instructions
//! with its decoder and encoder; `machine` runs them from a store, with channels behind a trait;
//! `translate` makes x86-64 code of basic blocks, which others run. `object` has relocatable
//! objects, `assembler` makes them of source, and `link` makes executables of them.
//! Executables are read here.
//!
//! Must stay true: pure: no clock, no thread, no I/O, no unsafe code. The same store, registers and
//! answers give the same results on every machine. Every offset that a file names is checked before
//! it is used.

mod assembler;
mod double;
mod float;
mod isa;
mod link;
mod machine;
mod object;
mod registers;
pub mod translate;

pub use assembler::{AssemblyError, Files, assemble, disassemble, listing};
pub use isa::{Format, INSTRUCTIONS, Instruction, Op, decode, named};
pub use link::{LinkError, Linking, Part, link};
pub use machine::{Channel, Channels, Exit, Machine};
pub use object::{Object, ObjectError, archive_members};
pub use registers::{Fields, Quadword, STORE_BYTES, Store};

use sidecore_bare::width::ToUsize;

impl Store for Vec<u8> {
    fn load(&self, address: u32) -> Quadword {
        let start = address.to_usize();
        // A store that is shorter than the machine's reads as zeros behind its end.
        let bytes = self.get(start..).and_then(|rest| rest.first_chunk());
        Quadword::of_bytes(bytes.copied().unwrap_or_default())
    }

    fn save(&mut self, address: u32, value: Quadword) {
        let start = address.to_usize();
        if let Some(to) = self
            .get_mut(start..)
            .and_then(|rest| rest.first_chunk_mut())
        {
            *to = value.bytes();
        }
    }

    fn fetch(&self, address: u32) -> u32 {
        let start = address.to_usize();
        let bytes = self.get(start..).and_then(|rest| rest.first_chunk());
        u32::from_be_bytes(bytes.copied().unwrap_or_default())
    }
}

/// Reasons for which a file is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutableError {
    /// Not such a file at all.
    #[error("not an executable of the SPU")]
    Other,
    /// An object or a library.
    #[error("ELF type {0} of the SPU, not an executable (2); link it with the SPU's own linker")]
    Kind(u16),
    /// A part of it lies outside of the file.
    #[error("cut off or damaged at {0}")]
    Damaged(&'static str),
    /// A part of it lies outside of the store.
    #[error("its parts end at {0} of a local store of {STORE_BYTES} bytes")]
    TooLarge(usize),
}

/// An executable whose headers were checked; borrows the file's bytes.
#[derive(Debug)]
pub struct Executable<'a> {
    entry: u32,
    segments: Vec<Segment<'a>>,
}

#[derive(Debug)]
struct Segment<'a> {
    address: usize,
    bytes: &'a [u8],
    memory_bytes: usize,
}

const MACHINE: u16 = 23;
const EXECUTABLE: u16 = 2;
const LOADED: u32 = 1;

impl<'a> Executable<'a> {
    /// True for a file of the SPU's, by its first bytes.
    #[must_use]
    pub fn is_spus(file: &[u8]) -> bool {
        // ELF of 32 bits whose words begin with their highest byte.
        file.starts_with(b"\x7fELF\x01\x02") && half(file, 18) == Some(MACHINE)
    }

    /// Checks a file's headers.
    ///
    /// # Errors
    /// It is another kind of file, is damaged, or does not fit a store.
    pub fn parse(file: &'a [u8]) -> Result<Self, ExecutableError> {
        if !Self::is_spus(file) {
            return Err(ExecutableError::Other);
        }
        let damaged = ExecutableError::Damaged("its header");
        let kind = half(file, 16).ok_or(damaged)?;
        if kind != EXECUTABLE {
            return Err(ExecutableError::Kind(kind));
        }
        // `e_entry`, `e_phoff`, `e_phentsize` and `e_phnum`.
        let entry = word(file, 24).ok_or(damaged)?;
        let table = word(file, 28).ok_or(damaged)?.to_usize();
        let entry_bytes = usize::from(half(file, 42).ok_or(damaged)?);
        let count = usize::from(half(file, 44).ok_or(damaged)?);
        let mut segments = Vec::new();
        for index in 0..count {
            let at = table + index * entry_bytes;
            let damaged = ExecutableError::Damaged("its program headers");
            let field = |number: usize| word(file, at + 4 * number).ok_or(damaged);
            if field(0)? != LOADED {
                continue;
            }
            // `p_offset`, `p_vaddr`, `p_filesz` and `p_memsz`.
            let (offset, address) = (field(1)?.to_usize(), field(2)?.to_usize());
            let (file_bytes, memory_bytes) = (field(4)?.to_usize(), field(5)?.to_usize());
            // ELF forbids it, and the bytes beyond would lie behind the program's end.
            if file_bytes > memory_bytes {
                return Err(ExecutableError::Damaged(
                    "a segment: more bytes in the file than in memory",
                ));
            }
            let end = address + memory_bytes;
            if end > STORE_BYTES {
                return Err(ExecutableError::TooLarge(end));
            }
            let bytes = file.get(offset..offset + file_bytes);
            let bytes = bytes.ok_or(ExecutableError::Damaged("a segment"))?;
            segments.push(Segment {
                address,
                bytes,
                memory_bytes,
            });
        }
        if segments.is_empty() {
            return Err(ExecutableError::Damaged(
                "its program headers: nothing to load",
            ));
        }
        Ok(Self { entry, segments })
    }

    /// Address of the first instruction.
    #[must_use]
    pub fn entry(&self) -> u32 {
        self.entry
    }

    /// First byte of the store behind the program.
    #[must_use]
    pub fn end(&self) -> usize {
        let ends = self
            .segments
            .iter()
            .map(|part| part.address + part.memory_bytes);
        ends.max().unwrap_or(0)
    }

    /// The parts to be copied into a zeroed store: address and bytes.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &'a [u8])> {
        self.segments.iter().map(|part| (part.address, part.bytes))
    }
}

fn half(file: &[u8], at: usize) -> Option<u16> {
    let bytes = file.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

fn word(file: &[u8], at: usize) -> Option<u32> {
    let bytes = file.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests;
