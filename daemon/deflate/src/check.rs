//! Checksums of raw bytes as zlib (RFC 1950) and gzip (RFC 1952) streams end with. Pure.

/// The checksum that a stream's trailer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckKind {
    /// None: a raw stream.
    #[default]
    None,
    /// Adler-32: zlib.
    Adler32,
    /// CRC-32: gzip.
    Crc32,
}

impl CheckKind {
    /// All kinds, in the order of their numbers in requests.
    pub const ALL: [Self; 3] = [Self::None, Self::Adler32, Self::Crc32];

    /// The checksum of these bytes alone; 0 for [`Self::None`].
    #[must_use]
    pub fn of(self, raw: &[u8]) -> u32 {
        match self {
            Self::None => 0,
            Self::Adler32 => libdeflater::adler32(raw),
            Self::Crc32 => libdeflater::crc32(raw),
        }
    }
}
