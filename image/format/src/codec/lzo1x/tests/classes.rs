//! Every instruction class at the limits of its lengths and distances, inside the fast loop and
//! near the ends.
//!
//! A small encoder of raw instructions: writes exactly the given ones, and records the expected
//! output.
//!
//! Why here: the boundary tests need streams that no real compressor makes. It shares no code with
//! `emit`.

use super::{Inflate, inflate};

/// Checks a stream as it is (its instruction near the end, for the plain step) and with enough
/// bytes after it that the fast loop takes it.
#[track_caller]
fn check(raw: Raw) {
    let long = raw
        .clone()
        .middle(40, 1, 0)
        .run(300)
        .short(5, 7, 0)
        .run(100);
    for raw in [raw, long] {
        let raw = raw.end();
        let room = raw.output.len();
        match inflate(&raw.stream, room) {
            Ok(bytes) => assert!(bytes == raw.output, "other bytes"),
            Err(error) => panic!("{error}"),
        }
        let oracle = super::lzokay_inflate(&raw.stream, room);
        assert!(
            oracle == raw.output,
            "the oracle reads the test's stream differently"
        );
    }
}

/// Output long enough for every distance; 0xc000 bytes of distinct literals.
fn deep() -> Raw {
    Raw::first(4).middle(4, 4, 0).run(0xc000)
}

#[test]
fn first_byte_counts_literals() {
    for count in [1, 2, 3] {
        // After one to three literals, a byte below 16 is a match of two bytes.
        check(Raw::first(count).pair(1, 0));
        check(Raw::first(count).short(3, 1, 3));
    }
    for count in [4, 5, 15, 16, 17, 18, 237, 238] {
        check(Raw::first(count).short(8, 2, 1));
    }
}

#[test]
fn a_stream_may_start_with_a_run() {
    for count in [4, 17, 18, 19, 272, 273, 274, 528, 529, 1000] {
        check(Raw::default().run(count).short(4, 3, 0));
    }
}

#[test]
fn runs_of_every_spelling() {
    for count in 4..=40 {
        check(Raw::first(9).short(3, 5, 0).run(count).short(3, count, 1));
    }
    for count in [272, 273, 274, 527, 528, 529, 5000] {
        check(Raw::first(9).short(3, 5, 0).run(count).short(3, 2, 0));
    }
}

#[test]
fn pairs_after_few_literals() {
    for literals in 1..=3 {
        for distance in [1, 2, 3, 4, 5, 1023, 1024] {
            for behind in 0..=3 {
                check(deep().short(3, 9, literals).pair(distance, behind));
            }
        }
    }
}

#[test]
fn triples_after_a_run() {
    for distance in [2049, 2050, 2052, 2053, 3071, 3072] {
        for literals in 0..=3 {
            check(deep().after_run(distance, literals));
            check(deep().short(3, 9, 0).run(20).after_run(distance, literals));
        }
    }
}

#[test]
fn short_matches() {
    for length in 3..=8 {
        for distance in [1, 2, 3, 7, 8, 9, 15, 16, 17, 2047, 2048] {
            for literals in 0..=3 {
                check(deep().short(length, distance, literals));
            }
        }
    }
}

#[test]
fn middle_matches() {
    for length in [
        3, 4, 15, 16, 17, 31, 32, 33, 34, 35, 64, 65, 287, 288, 289, 290, 543, 544, 9999,
    ] {
        for distance in [1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 0x3fff, 0x4000] {
            check(deep().middle(length, distance, length & 3));
        }
    }
}

#[test]
fn far_matches() {
    for length in [
        3, 8, 9, 10, 11, 16, 17, 32, 33, 64, 263, 264, 265, 266, 519, 520, 5000,
    ] {
        for distance in [0x4001, 0x4002, 0x7fff, 0x8000, 0x8001, 0xbffe, 0xbfff] {
            check(deep().far(length, distance, length & 3));
        }
    }
}

#[test]
fn every_overlap_repeats() {
    for distance in 1..=40 {
        for length in [3, 8, 31, 32, 33, 34, 100, 300] {
            check(Raw::first(60).middle(length, distance, 0));
        }
    }
}

/// liblzo2 and Linux disagree here, and no compressor writes it: liblzo2 accepts any length in an
/// end marker, and so do we.
#[test]
fn end_marker_with_other_lengths() {
    for marker in [
        &[0x12, 0, 0][..],
        &[0x17, 3, 0],
        &[0x10, 1, 0, 0],
        &[0x10, 0, 9, 2, 0],
    ] {
        let mut stream = Raw::first(5).stream;
        stream.extend(marker);
        assert_eq!(inflate(&stream, 5).unwrap().len(), 5);
    }
}

#[test]
fn resumes_at_every_target() {
    let raw = deep()
        .short(3, 2, 3)
        .pair(700, 1)
        .middle(40, 3, 0)
        .run(30)
        .after_run(2100, 2)
        .far(700, 0xa000, 0)
        .run(4)
        .middle(33, 33, 1)
        .end();
    let room = raw.output.len();
    let tail = room - 1500;
    let mut inflate = Inflate::new();
    for target in (1..=room).filter(|&target| target < 300 || target > tail || target % 977 == 0) {
        // Once to the target and then to the end in one go; step by step in another decompressor.
        let mut out = vec![0; room];
        let mut once = Inflate::new();
        let done = once.try_advance(&raw.stream, &mut out, target).unwrap();
        assert!(done >= target);
        assert!(out[..done] == raw.output[..done], "target {target}");
        assert_eq!(once.try_advance(&raw.stream, &mut out, room), Ok(room));
        assert!(once.has_ended());
        assert!(out == raw.output, "resumed from target {target}");
    }
    let mut out = vec![0; room];
    for target in 1..=room {
        let done = inflate.try_advance(&raw.stream, &mut out, target).unwrap();
        assert!(done >= target && out[..done] == raw.output[..done]);
    }
    assert!(inflate.has_ended());
}

/// A stream under construction.
#[derive(Clone, Default)]
pub(super) struct Raw {
    pub(super) stream: Vec<u8>,
    pub(super) output: Vec<u8>,
}

impl Raw {
    /// Starts with literals counted in the first byte: 1 to 238.
    pub(super) fn first(count: usize) -> Self {
        let mut raw = Self::default();
        raw.stream.push((17 + count).try_into().unwrap());
        raw.bytes(count);
        raw
    }

    /// A literal run of 4 or more (3 has no encoding).
    pub(super) fn run(mut self, count: usize) -> Self {
        self.length(0, count - 3, 15);
        self.bytes(count);
        self
    }

    /// Two bytes from up to 1 KiB back, after one to three literals.
    pub(super) fn pair(self, distance: usize, literals: usize) -> Self {
        self.one(2, distance, distance - 1, literals)
    }

    /// Three bytes from 2 to 3 KiB back, after a run.
    pub(super) fn after_run(self, distance: usize, literals: usize) -> Self {
        self.one(3, distance, distance - 2049, literals)
    }

    fn one(mut self, length: usize, distance: usize, near: usize, literals: usize) -> Self {
        assert!(near < 1024);
        self.stream.push(((near & 3) << 2 | literals) as u8);
        self.stream.push((near >> 2) as u8);
        self.copy(length, distance, literals)
    }

    /// 3 to 8 bytes from up to 2 KiB back.
    pub(super) fn short(mut self, length: usize, distance: usize, literals: usize) -> Self {
        let near = distance - 1;
        assert!((3..=8).contains(&length) && near < 2048);
        self.stream
            .push(((length - 1) << 5 | (near & 7) << 2 | literals) as u8);
        self.stream.push((near >> 3) as u8);
        self.copy(length, distance, literals)
    }

    /// Any length of 3 or more from up to 16 KiB back.
    pub(super) fn middle(mut self, length: usize, distance: usize, literals: usize) -> Self {
        self.length(0x20, length - 2, 31);
        self.word(distance - 1, literals);
        self.copy(length, distance, literals)
    }

    /// Any length of 3 or more from 16 KiB + 1 to 48 KiB - 1 back.
    pub(super) fn far(mut self, length: usize, distance: usize, literals: usize) -> Self {
        let far = distance - 0x4000;
        self.length(0x10 | (far >> 14 << 3) as u8, length - 2, 7);
        self.word(far & 0x3fff, literals);
        self.copy(length, distance, literals)
    }

    /// The end marker.
    pub(super) fn end(mut self) -> Self {
        self.stream.extend([0x11, 0, 0]);
        self
    }

    fn word(&mut self, field: usize, literals: usize) {
        assert!(field < 0x4000 && literals < 4);
        self.stream
            .extend(((field << 2 | literals) as u16).to_le_bytes());
    }

    fn length(&mut self, instruction: u8, mut length: usize, all_ones: usize) {
        if (1..=all_ones).contains(&length) {
            self.stream.push(instruction | length as u8);
            return;
        }
        self.stream.push(instruction);
        length -= all_ones;
        while length > 255 {
            self.stream.push(0);
            length -= 255;
        }
        self.stream.push(length as u8);
    }

    fn copy(mut self, length: usize, distance: usize, literals: usize) -> Self {
        for _ in 0..length {
            // A distance beyond the output makes a broken stream: the output no longer matters.
            let byte = self
                .output
                .len()
                .checked_sub(distance)
                .map_or(0, |from| self.output[from]);
            self.output.push(byte);
        }
        self.bytes(literals);
        self
    }

    /// Literals that differ from their neighbours and from those one match away.
    fn bytes(&mut self, count: usize) {
        for _ in 0..count {
            let at = self.output.len();
            let byte = (at.wrapping_mul(167) ^ at >> 8) as u8;
            self.stream.push(byte);
            self.output.push(byte);
        }
    }
}
