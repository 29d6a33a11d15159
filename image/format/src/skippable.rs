//! Skippable frames of zstd and LZ4, and numbers in them.
//!
//! Source: RFC 8878 section 3.1.2; LZ4 Frame Format Description 1.6.4.

/// One of the sixteen magics of skippable frames; zstd's seek table takes `...5E`, pzstd `...50`.
pub(super) const MAGIC: u32 = 0x184D_2A5C;
/// Magic and length, before the content.
pub(super) const SKIPPABLE_BYTES: u64 = 8;

/// The lengths of a skippable frame, as they are written: of its content, and of all of it. `None`
/// if 32 bits cannot hold them.
pub(super) fn lengths(content_bytes: u64) -> Option<(u32, u32)> {
    let total = u32::try_from(content_bytes + SKIPPABLE_BYTES).ok()?;
    Some((u32::try_from(content_bytes).ok()?, total))
}

/// The little-endian `u32` at the start of `bytes`.
pub(super) fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The little-endian `u64` at the start of `bytes`.
pub(super) fn le64(bytes: &[u8]) -> u64 {
    u64::from(le32(bytes)) | u64::from(le32(&bytes[4..])) << 32
}
