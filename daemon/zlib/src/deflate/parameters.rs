//! Parameters of a deflating stream, checked as zlib checks them. Pure.

use libc::c_int;
use libz_rs_sys::{
    Z_DEFAULT_COMPRESSION, Z_DEFAULT_STRATEGY, Z_DEFLATED, Z_FILTERED, Z_FIXED, Z_HUFFMAN_ONLY,
};
use sidecore_deflate::CheckKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// 0 to 9.
    pub(crate) level: c_int,
    /// As the program gave it: negative for raw streams, more than 15 for gzip.
    pub(crate) window_bits: c_int,
    pub(crate) memory_level: c_int,
    pub(crate) strategy: c_int,
    /// The wrapper, by its checksum.
    pub(crate) wrapper: CheckKind,
}

impl Parameters {
    /// `None` where zlib would refuse them.
    pub(crate) fn checked(
        level: c_int,
        method: c_int,
        window_bits: c_int,
        memory_level: c_int,
        strategy: c_int,
    ) -> Option<Self> {
        let (wrapper, size) = match window_bits {
            ..0 => (CheckKind::None, window_bits.checked_neg()?),
            0..=15 => (CheckKind::Adler32, window_bits),
            _ => (CheckKind::Crc32, window_bits - 16),
        };
        let parameters = Self {
            level: Self::level(level)?,
            window_bits,
            memory_level,
            strategy: Self::strategy(strategy)?,
            wrapper,
        };
        let fits = method == Z_DEFLATED
            && (1..=9).contains(&memory_level)
            && (8..=15).contains(&size)
            && (size != 8 || wrapper == CheckKind::Adler32);
        fits.then_some(parameters)
    }

    pub(crate) fn level(level: c_int) -> Option<c_int> {
        match level {
            Z_DEFAULT_COMPRESSION => Some(6),
            0..=9 => Some(level),
            _ => None,
        }
    }

    pub(crate) fn strategy(strategy: c_int) -> Option<c_int> {
        (Z_DEFAULT_STRATEGY..=Z_FIXED)
            .contains(&strategy)
            .then_some(strategy)
    }

    /// True where these parameters allow blocks of ours: matches are found, in a window of 32 KiB.
    pub(crate) fn suit_blocks(&self) -> bool {
        let whole_window = matches!(self.window_bits, -15 | 15 | 31);
        self.level > 0 && whole_window && matches!(self.strategy, Z_DEFAULT_STRATEGY | Z_FILTERED)
    }

    /// The level at which the base library behaves as zlib at this one. Its own first level keeps a
    /// block open between calls, in whose middle `deflatePrime` would put its bits.
    pub(crate) fn base_level(&self) -> c_int {
        match self.level {
            1 => 2,
            level => level,
        }
    }

    /// The memory level at which the base library takes about what zlib takes at this one: besides
    /// zlib's buffers it has one of 3 << (level + 6) bytes, 48 KiB at the usual level.
    pub(crate) fn base_memory_level(&self) -> c_int {
        (self.memory_level - 1).max(1)
    }

    /// Bits of the window: zlib takes 9 for a requested 8.
    pub(crate) fn window_size_bits(&self) -> c_int {
        let bits = match self.window_bits {
            ..0 => -self.window_bits,
            0..16 => self.window_bits,
            _ => self.window_bits - 16,
        };
        bits.max(9)
    }

    /// True where zlib goes on with the same function at another level or strategy, so that nothing
    /// has to be put out before.
    pub(crate) fn goes_on_as(&self, other: &Self) -> bool {
        let function = |level| match level {
            0 => 0,
            1..=3 => 1,
            _ => 2,
        };
        self.strategy == other.strategy && function(self.level) == function(other.level)
    }

    /// The two bytes before a zlib stream (RFC 1950, 2.2).
    pub(crate) fn zlib_header(&self, has_dictionary: bool) -> [u8; 2] {
        let effort: u16 = match self.level {
            _ if self.strategy >= Z_HUFFMAN_ONLY => 0,
            ..2 => 0,
            2..6 => 1,
            6 => 2,
            _ => 3,
        };
        let window = (self.window_size_bits() - 8) as u16;
        let header = 0x800 | window << 12 | effort << 6 | u16::from(has_dictionary) << 5;
        (header + (31 - header % 31)).to_be_bytes()
    }

    /// The byte XFL of a gzip header (RFC 1952, 2.3.1).
    pub(crate) fn gzip_effort(&self) -> u8 {
        match self.level {
            9 => 2,
            _ if self.strategy >= Z_HUFFMAN_ONLY => 4,
            ..2 => 4,
            _ => 0,
        }
    }
}

/// The most bytes back that a block may refer to.
pub(super) const HISTORY_BYTES: usize = 32 << 10;
