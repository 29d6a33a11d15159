//! Programs: x32 executables that are position-independent and name the ABI in a note.
//!
//! Must stay true: every offset read from a file is checked before it is used. A refused file
//! leaves a message of one line with the reason. Source: System V ABI, x86-64, chapter 10 (ILP32),
//! and the generic ABI for RELR.

use crate::store::{STORE_BYTES, Store};
use sidecore_bare::width::{ToU64, ToUsize};

/// Reasons for which a program is refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ImageError {
    #[error("not an ELF file")]
    NotElf,
    #[error("a 64-bit executable; SPU programs are built with spu-gcc (gcc -mx32)")]
    Wide,
    #[error("for machine {0}, not x32 (62)")]
    Machine(u16),
    #[error("not position-independent (ELF type {0}, needs 3); link it with spu-gcc")]
    NotRelocatable(u16),
    #[error("no note names ABI version {ABI} of Sidecore-SPU; link it with spu-gcc")]
    NoNote,
    #[error("built for version {0} of the ABI, this library has {ABI}")]
    OtherAbi(u32),
    #[error("needs {0} bytes of a local store of {STORE_BYTES}, {STACK_MIN} of them for its stack")]
    TooLarge(usize),
    #[error("relocation type {0} needs another object; link it with spu-gcc")]
    Relocation(u32),
    #[error("cut off or damaged at {0}")]
    Damaged(&'static str),
}

/// Version of the ABI between programs and this library.
const ABI: u32 = 1;
/// Bytes that stay free for a program's stack.
const STACK_MIN: usize = 4096;
const NOTE_NAME: &[u8] = b"Sidecore-SPU\0";

const PF_X: u32 = 1;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const DT_RELA: u32 = 7;
const DT_RELASZ: u32 = 8;
const DT_REL: u32 = 17;
const DT_RELSZ: u32 = 18;
const DT_RELRSZ: u32 = 35;
const DT_RELR: u32 = 36;
const DT_PLTRELSZ: u32 = 2;
const DT_JMPREL: u32 = 23;
const R_NONE: u32 = 0;
const R_RELATIVE: u32 = 8;
const R_RELATIVE64: u32 = 38;

/// A program whose headers were checked; borrows the file's bytes.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    bytes: &'a [u8],
    segments: Vec<Segment>,
    entry: u32,
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: u32,
    offset: usize,
    address: usize,
    file_bytes: usize,
    memory_bytes: usize,
    flags: u32,
}

impl<'a> Image<'a> {
    /// Checks a file's headers.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Image<'a>, ImageError> {
        if bytes.get(..4) != Some(b"\x7fELF") {
            return Err(ImageError::NotElf);
        }
        // Programs of the SPU's own are read elsewhere; other files are named in the message.
        let big = bytes.get(5) == Some(&2);
        let machine = half(bytes, 18).ok_or(ImageError::Damaged("its header"))?;
        let machine = if big { machine.swap_bytes() } else { machine };
        match (machine, bytes[4]) {
            (_, 2) => return Err(ImageError::Wide),
            (62, 1) if !big => {}
            _ => return Err(ImageError::Machine(machine)),
        }
        let header = ImageError::Damaged("its header");
        let kind = half(bytes, 16).ok_or(header.clone())?;
        // Stores lie at different addresses, so each program is moved to its own.
        if kind != 3 {
            return Err(ImageError::NotRelocatable(kind));
        }
        let entry = word(bytes, 24).ok_or(header.clone())?;
        let table = size(bytes, 28).ok_or(header.clone())?;
        let entry_bytes = usize::from(half(bytes, 42).ok_or(header.clone())?);
        let count = usize::from(half(bytes, 44).ok_or(header)?);
        let mut segments = Vec::new();
        // At most 65,535 of them, each checked against the file's length.
        for index in 0..count {
            let at = table + index * entry_bytes;
            segments.push(segment(bytes, at).ok_or(ImageError::Damaged("its program headers"))?);
        }
        let image = Image {
            bytes,
            entry,
            end: extent(&segments)?,
            segments,
        };
        image.check_note()?;
        Ok(image)
    }

    /// Offset of the entry in the store.
    pub(crate) fn entry(&self) -> u32 {
        self.entry
    }

    /// First byte of the store behind the program.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Copies the program into a store and relocates it.
    pub(crate) fn load(&self, store: &Store) -> Result<(), ImageError> {
        let damaged = ImageError::Damaged("a segment");
        // The program before may have left code that can still be executed.
        store.clear();
        for segment in self.of_kind(PT_LOAD) {
            let from = segment.offset;
            let data = from
                .checked_add(segment.file_bytes)
                .and_then(|end| self.bytes.get(from..end))
                .ok_or(damaged.clone())?;
            if !store.write(segment.address, data) {
                return Err(damaged);
            }
            // Data is not executable, so that a jump into it is found: old programs build stop
            // instructions there.
            if segment.flags & PF_X != 0 {
                // `extent` saw to it that it lies in the store.
                store.allow_execution(segment.address, segment.memory_bytes);
            }
        }
        self.relocate(store)
    }

    fn of_kind(&self, kind: u32) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |s| s.kind == kind)
    }

    /// Looks for the note that names the ABI.
    fn check_note(&self) -> Result<(), ImageError> {
        for segment in self.of_kind(PT_NOTE) {
            let mut at = segment.offset;
            let end = at.saturating_add(segment.file_bytes);
            // A note is three words, a name and a value, both padded to words.
            while at + 12 <= end {
                let damaged = ImageError::Damaged("a note");
                let name = size(self.bytes, at).ok_or(damaged.clone())?;
                let value = size(self.bytes, at + 4).ok_or(damaged)?;
                let value_at = at + 12 + name.next_multiple_of(4);
                if self.bytes.get(at + 12..at + 12 + name) == Some(NOTE_NAME) {
                    return match word(self.bytes, value_at) {
                        Some(ABI) => Ok(()),
                        Some(other) => Err(ImageError::OtherAbi(other)),
                        None => Err(ImageError::Damaged("its note")),
                    };
                }
                at = value_at.saturating_add(value.next_multiple_of(4));
            }
        }
        Err(ImageError::NoNote)
    }

    /// Applies the relocations that the dynamic section lists.
    fn relocate(&self, store: &Store) -> Result<(), ImageError> {
        let Some(dynamic) = self.of_kind(PT_DYNAMIC).next() else {
            return Ok(());
        };
        // From the file's bytes, not from the store: the section may lie outside of what is loaded.
        let value = |wanted: u32| {
            (0..dynamic.memory_bytes / 8)
                .map(|index| dynamic.offset + index * 8)
                .find(|at| word(self.bytes, *at) == Some(wanted))
                .and_then(|at| word(self.bytes, at + 4))
        };
        let table = |at: u32, bytes: u32| Some((value(at)?, value(bytes)?));
        // Stores lie below 4 GiB, so that a relocated pointer has 32 bits.
        let base = store.base() as u32;
        if let Some((at, bytes)) = table(DT_RELA, DT_RELASZ) {
            addends(store, base, at, bytes)?;
        }
        if let Some((at, bytes)) = table(DT_JMPREL, DT_PLTRELSZ) {
            addends(store, base, at, bytes)?;
        }
        if let Some((at, bytes)) = table(DT_RELR, DT_RELRSZ) {
            packed(store, base, at, bytes)?;
        }
        match table(DT_REL, DT_RELSZ) {
            Some((_, bytes)) if bytes > 0 => Err(ImageError::Damaged("REL relocations")),
            _ => Ok(()),
        }
    }
}

/// Checks that all segments fit; their end.
fn extent(segments: &[Segment]) -> Result<usize, ImageError> {
    let loads = segments.iter().filter(|s| s.kind == PT_LOAD);
    let end = loads
        .map(|s| s.address + s.memory_bytes.max(s.file_bytes))
        .max()
        .ok_or(ImageError::Damaged("its program headers: nothing to load"))?;
    if end > STORE_BYTES - STACK_MIN {
        return Err(ImageError::TooLarge(end + STACK_MIN));
    }
    Ok(end)
}

/// Entries of 12 bytes: place, type, addend.
fn addends(store: &Store, base: u32, at: u32, bytes: u32) -> Result<(), ImageError> {
    let damaged = ImageError::Damaged("its relocations");
    if u64::from(at) + u64::from(bytes) > STORE_BYTES.to_u64() || !at.is_multiple_of(4) {
        return Err(damaged);
    }
    // Read from the store: the table is loaded, and checked above to lie in it.
    for entry in (at..at + bytes / 12 * 12).step_by(12) {
        let place = store.word(entry.into());
        // Its upper bits name a symbol, of which a program that stands alone has none.
        let kind = store.word(u64::from(entry) + 4) & 0xff;
        let value = store.word(u64::from(entry) + 8).wrapping_add(base);
        let written = match kind {
            R_NONE => true,
            R_RELATIVE => store.write(place.to_usize(), &value.to_le_bytes()),
            // x32 has pointers of 64 bits where code asks for them; the upper half is zero.
            R_RELATIVE64 => store.write(place.to_usize(), &u64::from(value).to_le_bytes()),
            other => return Err(ImageError::Relocation(other)),
        };
        if !written {
            return Err(damaged);
        }
    }
    Ok(())
}

/// RELR: an even word is a place, an odd one a bit map of the 31 places behind the last.
fn packed(store: &Store, base: u32, at: u32, bytes: u32) -> Result<(), ImageError> {
    if u64::from(at) + u64::from(bytes) > STORE_BYTES.to_u64() || !at.is_multiple_of(4) {
        return Err(ImageError::Damaged("its relocations"));
    }
    let add = |place: u32| {
        if place.to_usize() > STORE_BYTES - 4 || !place.is_multiple_of(4) {
            return Err(ImageError::Damaged("its relocations"));
        }
        let value = store.word(place.into()).wrapping_add(base);
        store.set_word(place.into(), value);
        Ok(())
    };
    let mut next: u32 = 0;
    for entry in (at..at + bytes / 4 * 4).step_by(4) {
        let entry = store.word(entry.into());
        // An even entry begins a run; the word itself is relocated, and the map goes on behind it.
        if entry & 1 == 0 {
            add(entry)?;
            next = entry.wrapping_add(4);
            continue;
        }
        for bit in (1..32).filter(|bit| entry >> bit & 1 == 1) {
            add(next.wrapping_add(4 * (bit - 1)))?;
        }
        next = next.wrapping_add(4 * 31);
    }
    Ok(())
}

fn segment(bytes: &[u8], at: usize) -> Option<Segment> {
    Some(Segment {
        kind: word(bytes, at)?,
        offset: size(bytes, at + 4)?,
        address: size(bytes, at + 8)?,
        file_bytes: size(bytes, at + 16)?,
        memory_bytes: size(bytes, at + 20)?,
        flags: word(bytes, at + 24)?,
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes([two[0], two[1]]))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

/// A word that counts bytes, or is a place among them.
fn size(bytes: &[u8], at: usize) -> Option<usize> {
    word(bytes, at).map(ToUsize::to_usize)
}

#[cfg(test)]
mod tests;
