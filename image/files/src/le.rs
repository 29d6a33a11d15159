//! Little-endian numbers out of bytes. Bytes past the end count as zeros, so that no place panics;
//! lengths are checked where they matter. Pure.

fn bytes<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
    let mut found = [0; N];
    if let Some(part) = at.checked_add(N).and_then(|end| raw.get(at..end)) {
        found.copy_from_slice(part);
    }
    found
}

/// 16 bits at a place.
pub(crate) fn le16(raw: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes(raw, at))
}

/// 32 bits at a place.
pub(crate) fn le32(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes(raw, at))
}

/// 64 bits at a place.
pub(crate) fn le64(raw: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes(raw, at))
}
