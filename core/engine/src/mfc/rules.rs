//! The MFC's rules on sizes and alignment.
//!
//! Source: Cell Broadband Engine Architecture, "MFC Commands" (transfer sizes, alignment) and "DMA
//! List Commands" (the number of elements, which bounds a large transfer).

use crate::error::DmaError;
use crate::limits::{LIST_ELEMENTS_MAX, TRANSFER_BYTES_MAX};

/// Checks one transfer.
#[inline]
pub(crate) fn check(bytes: usize, local: usize, main: usize) -> Result<(), DmaError> {
    // A transfer below a quadword is a naturally aligned scalar.
    let alignment = match bytes {
        1 | 2 | 4 | 8 => bytes,
        0 => return Err(DmaError::Size { bytes }),
        _ if bytes.is_multiple_of(16) && bytes <= TRANSFER_BYTES_MAX => 16,
        _ => return Err(DmaError::Size { bytes }),
    };
    let aligned = local.is_multiple_of(alignment) && main.is_multiple_of(alignment);
    // The hardware moves quadwords: a shorter transfer keeps its place within one.
    if aligned && local % 16 == main % 16 {
        Ok(())
    } else {
        Err(DmaError::Alignment { bytes, local, main })
    }
}

/// Checks a transfer of any size: as a list of 16 KiB elements it must not be too long.
#[inline]
pub(crate) fn check_large(bytes: usize) -> Result<(), DmaError> {
    let elements = bytes.div_ceil(TRANSFER_BYTES_MAX);
    if elements <= LIST_ELEMENTS_MAX {
        Ok(())
    } else {
        Err(DmaError::ListLength { elements })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_alignment_are_the_hardwares() {
        for bytes in 0..=TRANSFER_BYTES_MAX + 32 {
            let allowed =
                matches!(bytes, 1 | 2 | 4 | 8) || (bytes != 0 && bytes % 16 == 0 && bytes <= 16384);
            assert_eq!(check(bytes, 0, 0).is_ok(), allowed, "{bytes}");
        }
        for (bytes, local, main, allowed) in [
            (4, 4, 20, true),
            (4, 4, 24, false),
            (4, 2, 2, false),
            (1, 7, 23, true),
            (1, 7, 8, false),
            (16, 16, 1600, true),
            (16, 8, 8, false),
            (16, 0, 8, false),
        ] {
            assert_eq!(
                check(bytes, local, main).is_ok(),
                allowed,
                "{bytes} {local} {main}"
            );
        }
        let text = check(24, 0, 0).unwrap_err().to_string();
        assert!(
            text.contains("1, 2, 4, 8, or a multiple of 16 up to 16384"),
            "{text}"
        );
        assert!(check_large(32 << 20).is_ok() && check_large((32 << 20) + 1).is_err());
    }
}
