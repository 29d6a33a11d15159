//! A small encoder of raw instructions: writes exactly the given ones, and records the expected
//! output.
//!
//! Why here: the boundary tests need streams that no real compressor makes. It shares no code with
//! `emit`.

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
