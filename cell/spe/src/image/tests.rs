//! Files that run, and files that are refused: built byte by byte.

use super::*;

/// A file in the making: the least that runs, to be changed.
struct File {
    header: Vec<u8>,
    segments: Vec<[u32; 8]>,
    body: Vec<u8>,
}

const BODY: u32 = 0x400;

fn note(abi: u32) -> Vec<u8> {
    let mut note = Vec::new();
    for word in [13_u32, 4, 1] {
        note.extend(word.to_le_bytes());
    }
    note.extend(NOTE_NAME);
    note.extend([0; 3]);
    note.extend(abi.to_le_bytes());
    note
}

impl File {
    /// One segment of 64 bytes at 0x80, and the note.
    fn new() -> File {
        let mut header = vec![0; 52];
        header[..8].copy_from_slice(b"\x7fELF\x01\x01\x01\0");
        let mut file = File {
            header,
            segments: Vec::new(),
            body: Vec::new(),
        };
        file.half(16, 3);
        file.half(18, 62);
        file.word(24, 0x84);
        file.word(28, 52);
        file.half(42, 32);
        file.segment(PT_LOAD, 0x80, &[0x11; 64], 64, PF_X);
        file.segment(PT_NOTE, 0, &note(ABI), 0, 0);
        file
    }

    fn half(&mut self, at: usize, value: u16) {
        self.header[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn word(&mut self, at: usize, value: u32) {
        self.header[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Adds a segment with these bytes.
    fn segment(&mut self, kind: u32, address: u32, bytes: &[u8], memory: u32, flags: u32) {
        let (at, length) = (BODY + self.body.len() as u32, bytes.len() as u32);
        self.segments
            .push([kind, at, address, 0, length, memory, flags, 4]);
        self.body.extend(bytes);
    }

    /// Adds a dynamic section, and tables that are loaded at 0x1000.
    fn dynamic(&mut self, entries: &[(u32, u32)], tables: &[u32]) {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let tables: Vec<u8> = words(tables);
        self.segment(PT_LOAD, 0x1000, &tables, tables.len() as u32, 0);
        let flat: Vec<u32> = entries
            .iter()
            .flat_map(|(tag, value)| [*tag, *value])
            .collect();
        let section: Vec<u8> = words(&flat);
        self.segment(PT_DYNAMIC, 0, &section, section.len() as u32, 0);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.clone();
        bytes[44..46].copy_from_slice(&(self.segments.len() as u16).to_le_bytes());
        for segment in &self.segments {
            bytes.extend(segment.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes.resize(BODY as usize, 0);
        bytes.extend(&self.body);
        bytes
    }

    fn refused(&self) -> ImageError {
        let bytes = self.bytes();
        let loaded = Image::parse(&bytes).and_then(|image| {
            let store = Store::new().unwrap();
            image.load(&store)
        });
        loaded.expect_err("it is refused")
    }
}

#[test]
fn the_least_that_runs_is_loaded() {
    let bytes = File::new().bytes();
    let image = Image::parse(&bytes).unwrap();
    assert_eq!((image.entry(), image.end()), (0x84, 0x80 + 64));
    let store = Store::new().unwrap();
    store.set_word(0x2000, 1);
    image.load(&store).unwrap();
    assert_eq!(
        (store.word(0x80), store.word(0xbc)),
        (0x1111_1111, 0x1111_1111)
    );
    // All else is zeroed, also what an earlier program left.
    assert_eq!(
        (store.word(0x7c), store.word(0xc0), store.word(0x2000)),
        (0, 0, 0)
    );
}

#[test]
fn a_segment_may_have_more_memory_than_bytes() {
    let mut file = File::new();
    file.segment(PT_LOAD, 0x200, &[1, 2, 3, 4], 0x100, 0);
    let bytes = file.bytes();
    let image = Image::parse(&bytes).unwrap();
    assert_eq!(image.end(), 0x300);
    let store = Store::new().unwrap();
    image.load(&store).unwrap();
    assert_eq!((store.word(0x200), store.word(0x204)), (0x0403_0201, 0));
}

#[test]
fn other_files_are_refused_with_a_reason() {
    assert_eq!(Image::parse(b"").unwrap_err(), ImageError::NotElf);
    assert_eq!(Image::parse(b"#!/bin/sh").unwrap_err(), ImageError::NotElf);
    let of_machine = |machine: u16, class: u8, order: u8| {
        let mut file = File::new();
        file.half(
            18,
            if order == 2 {
                machine.swap_bytes()
            } else {
                machine
            },
        );
        file.header[4] = class;
        file.header[5] = order;
        file.refused()
    };
    assert_eq!(of_machine(23, 1, 2), ImageError::Machine(23));
    assert_eq!(of_machine(62, 2, 1), ImageError::Wide);
    assert_eq!(of_machine(3, 1, 1), ImageError::Machine(3));
    assert_eq!(of_machine(21, 1, 2), ImageError::Machine(21));
    assert_eq!(of_machine(62, 1, 2), ImageError::Machine(62));
    let mut file = File::new();
    file.half(16, 2);
    assert_eq!(file.refused(), ImageError::NotRelocatable(2));
    let mut file = File::new();
    file.segments.pop();
    assert_eq!(file.refused(), ImageError::NoNote);
    let mut file = File::new();
    file.segments.pop();
    file.segment(PT_NOTE, 0, &note(ABI + 1), 0, 0);
    assert_eq!(file.refused(), ImageError::OtherAbi(ABI + 1));
}

#[test]
fn notes_of_others_are_passed_over() {
    let mut file = File::new();
    file.segments.pop();
    let mut notes = Vec::new();
    for word in [4_u32, 3, 7] {
        notes.extend(word.to_le_bytes());
    }
    notes.extend(b"GNU\0");
    notes.extend([9, 9, 9, 0]);
    notes.extend(note(ABI));
    file.segment(PT_NOTE, 0, &notes, 0, 0);
    Image::parse(&file.bytes()).unwrap();
    // A length that leads out of the file ends the search.
    notes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    file.segments.pop();
    file.segment(PT_NOTE, 0, &notes, 0, 0);
    assert_eq!(file.refused(), ImageError::NoNote);
}

#[test]
fn what_does_not_fit_into_a_store_is_refused() {
    let mut file = File::new();
    let room = (STORE_BYTES - STACK_MIN) as u32;
    file.segment(PT_LOAD, room - 4, &[0; 4], 4, 0);
    Image::parse(&file.bytes()).unwrap();
    file.segment(PT_LOAD, room - 4, &[0; 4], 5, 0);
    assert_eq!(file.refused(), ImageError::TooLarge(STORE_BYTES + 1));
    let mut file = File::new();
    file.segment(PT_LOAD, u32::MAX, &[0; 4], u32::MAX, 0);
    assert!(matches!(file.refused(), ImageError::TooLarge(_)));
    let mut file = File::new();
    file.segments.remove(0);
    assert!(matches!(file.refused(), ImageError::Damaged(_)));
}

#[test]
fn segments_and_tables_that_are_cut_off_are_damaged() {
    let mut file = File::new();
    file.segments[0][1] = u32::MAX;
    assert_eq!(file.refused(), ImageError::Damaged("a segment"));
    let mut file = File::new();
    file.segments[0][4] = 0x1_0000;
    assert_eq!(file.refused(), ImageError::Damaged("a segment"));
    let whole = File::new().bytes();
    for length in 0..whole.len() {
        let cut = Image::parse(&whole[..length]);
        assert!(cut.is_err() || length > BODY as usize, "{length}");
    }
    let mut file = File::new();
    file.word(28, u32::MAX - 8);
    assert_eq!(file.refused(), ImageError::Damaged("its program headers"));
}

#[test]
fn relocations_add_the_stores_place() {
    let mut file = File::new();
    let addends = [
        0x2000,
        R_RELATIVE,
        0x44, // a pointer of 32 bits
        0x2008,
        R_RELATIVE64,
        0x80, // one of 64
        0x2010,
        R_NONE,
        1,
    ];
    file.dynamic(&[(DT_RELA, 0x1000), (DT_RELASZ, 36)], &addends);
    let bytes = file.bytes();
    let store = Store::new().unwrap();
    Image::parse(&bytes).unwrap().load(&store).unwrap();
    let base = store.base() as u32;
    assert_eq!(store.word(0x2000), base + 0x44);
    assert_eq!((store.word(0x2008), store.word(0x200c)), (base + 0x80, 0));
    assert_eq!(store.word(0x2010), 0);
}

#[test]
fn packed_relocations_are_places_and_bits() {
    let mut file = File::new();
    // A place, then two of the 31 words behind it, then the words behind those.
    let map = 1 | 1 << 1 | 1 << 31;
    file.dynamic(
        &[(DT_RELR, 0x1000), (DT_RELRSZ, 12)],
        &[0x1010, map, 1 | 1 << 2, 0, 5, 6],
    );
    let bytes = file.bytes();
    let store = Store::new().unwrap();
    Image::parse(&bytes).unwrap().load(&store).unwrap();
    let base = store.base() as u32;
    assert_eq!(store.word(0x1010), base + 5);
    assert_eq!(store.word(0x1014), base + 6);
    assert_eq!(store.word(0x1014 + 30 * 4), base);
    assert_eq!(store.word(0x1014 + 32 * 4), base);
    assert_eq!(store.word(0x1018), 0);
}

#[test]
fn relocations_that_cannot_be_done_are_refused() {
    let damaged = ImageError::Damaged("its relocations");
    let refused = |entries: &[(u32, u32)], tables: &[u32]| {
        let mut file = File::new();
        file.dynamic(entries, tables);
        file.refused()
    };
    let rela = |at, bytes| [(DT_RELA, at), (DT_RELASZ, bytes)];
    let relr = |at, bytes| [(DT_RELR, at), (DT_RELRSZ, bytes)];
    // A symbol of another object.
    assert_eq!(
        refused(&rela(0x1000, 12), &[0, 10, 0]),
        ImageError::Relocation(10)
    );
    // A place outside, a table outside, one that is not aligned.
    let outside = STORE_BYTES as u32;
    assert_eq!(
        refused(&rela(0x1000, 12), &[outside, R_RELATIVE, 0]),
        damaged
    );
    assert_eq!(
        refused(&rela(0x1000, 12), &[outside - 4, R_RELATIVE64, 0]),
        damaged
    );
    assert_eq!(refused(&rela(outside - 8, 12), &[]), damaged);
    assert_eq!(refused(&rela(u32::MAX, u32::MAX), &[]), damaged);
    assert_eq!(refused(&rela(0x1002, 12), &[]), damaged);
    assert_eq!(refused(&relr(0x1000, 4), &[outside]), damaged);
    assert_eq!(refused(&relr(0x1000, 4), &[0x1002]), damaged);
    assert_eq!(refused(&relr(0x1000, 8), &[outside - 4, 3]), damaged);
    assert_eq!(refused(&relr(outside, 4), &[]), damaged);
    // The other form of a table has no addends.
    let rel = [(DT_REL, 0x1000), (DT_RELSZ, 8)];
    assert_eq!(
        refused(&rel, &[0; 2]),
        ImageError::Damaged("REL relocations")
    );
}

/// Whatever a byte is changed to, a file is refused or runs: it never leads out of its bytes.
#[test]
fn damaged_files_do_no_harm() {
    let mut file = File::new();
    let tables = [
        0x2000,
        R_RELATIVE,
        4,
        0x2004,
        R_RELATIVE64,
        8,
        0x1000,
        0xffff_ffff,
    ];
    let entries = [
        (DT_RELA, 0x1000),
        (DT_RELASZ, 24),
        (DT_RELR, 0x1018),
        (DT_RELRSZ, 8),
    ];
    file.dynamic(&entries, &tables);
    let whole = file.bytes();
    let store = Store::new().unwrap();
    let parts = (0..52 + 32 * 4).chain(BODY as usize..whole.len());
    for at in parts {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if let Ok(image) = Image::parse(&bytes) {
                image.load(&store).ok();
                assert!(image.end() <= STORE_BYTES - STACK_MIN);
            }
        }
    }
}
