//! The MFC's rules on sizes, alignment and lists.
//!
//! Source: Cell Broadband Engine Architecture, "MFC Commands" (transfer sizes, alignment) and "DMA
//! List Commands".

use crate::error::DmaError;
use crate::limits::{LIST_ELEMENTS_MAX, TRANSFER_BYTES_MAX};

/// One element of a DMA list: a stretch of the main memory that the list is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListElement {
    /// Its first byte, counted from the start of that memory.
    pub offset: u32,
    /// Its bytes.
    pub bytes: u32,
}

/// Checks one transfer.
#[inline]
pub(crate) fn check(bytes: usize, local: usize, main: usize) -> Result<(), DmaError> {
    let alignment = match bytes {
        1 | 2 | 4 | 8 => bytes,
        0 => return Err(DmaError::Size { bytes }),
        _ if bytes.is_multiple_of(16) && bytes <= TRANSFER_BYTES_MAX => 16,
        _ => return Err(DmaError::Size { bytes }),
    };
    let aligned = local.is_multiple_of(alignment) && main.is_multiple_of(alignment);
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

/// Checks a list over main memory of `main_bytes` from address `main`.
pub(crate) fn check_list(
    list: &[ListElement],
    main: usize,
    main_bytes: usize,
) -> Result<(), DmaError> {
    if list.is_empty() || list.len() > LIST_ELEMENTS_MAX {
        return Err(DmaError::ListLength {
            elements: list.len(),
        });
    }
    for (index, (element, local)) in list_places(list, main).enumerate() {
        let offset = element.offset as usize;
        let end = offset.saturating_add(element.bytes as usize);
        if end > main_bytes {
            return Err(DmaError::ListElement {
                index,
                offset,
                end,
                main_bytes,
            });
        }
        // Buffers start on a line, so a place within one has the alignment of an address.
        check(element.bytes as usize, local, main + offset)?;
    }
    Ok(())
}

/// Offset in the buffer of each element: from the next 16-byte boundary on, and below 16 bytes at
/// the place within those 16 that its main address has.
pub(crate) fn list_places(
    list: &[ListElement],
    main: usize,
) -> impl Iterator<Item = (ListElement, usize)> {
    list.iter().scan(0usize, move |next, &element| {
        let within = if element.bytes < 16 {
            main.wrapping_add(element.offset as usize) % 16
        } else {
            0
        };
        let start = *next + within;
        *next = (start + element.bytes as usize).next_multiple_of(16);
        Some((element, start))
    })
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

    #[test]
    fn list_elements_start_on_quadwords() {
        let element = |offset, bytes| ListElement { offset, bytes };
        let list = [
            element(0, 32),
            element(68, 4),
            element(4, 1),
            element(64, 16),
        ];
        let places: Vec<usize> = list_places(&list, 1024).map(|(_, place)| place).collect();
        assert_eq!(places, [0, 36, 52, 64]);
        assert!(check_list(&list, 1024, 80).is_ok());
        assert!(matches!(
            check_list(&list, 1024, 79),
            Err(DmaError::ListElement { index: 3, .. })
        ));
        assert!(matches!(
            check_list(&[], 0, 0),
            Err(DmaError::ListLength { .. })
        ));
        let long = vec![element(0, 16); LIST_ELEMENTS_MAX + 1];
        assert!(matches!(
            check_list(&long, 0, 16),
            Err(DmaError::ListLength { .. })
        ));
        assert!(check_list(&long[1..], 0, 16).is_ok());
    }
}
