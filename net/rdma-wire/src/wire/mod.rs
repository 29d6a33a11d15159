//! The formats on the wire: parsers of arbitrary bytes, and writers.
//!
//! Must stay true: parsing never panics; a written value is parsed as the same value.

pub mod ddp;
pub mod mpa;
pub mod terminate;
#[cfg(test)]
mod tests;

/// `N` bytes at `at`, or none if the bytes end before.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

pub(crate) fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

pub(crate) fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

/// Length of a segment or of a part of one, whose own field has 16 bits (RFC 5044, section 4.1).
pub(crate) fn segment_length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
