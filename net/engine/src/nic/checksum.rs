//! Completing a transport checksum in software, for a NIC that cannot.
//!
//! Not the stack's own checksum: this one is for frames with an incomplete checksum that were
//! passed by mistake or by a NIC that merges. Source: RFC 1071.

use super::Outgoing;

/// The whole frame in one piece with its checksum complete.
pub(crate) fn complete(frame: &Outgoing<'_>, start: u16, offset: u16) -> Vec<u8> {
    let mut whole = [frame.header, frame.payload[0], frame.payload[1]].concat();
    let (start, offset) = (usize::from(start), usize::from(offset));
    // The offsets come with the frame: those beyond it leave it as it is.
    if let Some(summed) = whole.get(start..) {
        // The field holds the sum of the pseudo-header, which is included so.
        let sum = match !sum(summed) {
            // RFC 768: zero means no checksum.
            0 => u16::MAX,
            sum => sum,
        };
        if let Some(field) = whole.get_mut(start + offset..start + offset + 2) {
            field.copy_from_slice(&sum.to_be_bytes());
        }
    }
    whole
}

/// The one's complement sum of 16-bit words, an odd byte padded with zero.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<2>();
    let mut sum: u64 = words
        .iter()
        .map(|&word| u64::from(u16::from_be_bytes(word)))
        .sum();
    if let [last] = rest {
        sum += u64::from(*last) << 8;
    }
    // Carries are added at the end: the order does not matter (RFC 1071).
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::TransmitChecksum;

    #[test]
    fn the_example_of_rfc_1071_and_a_completed_frame() {
        // RFC 1071, section 3.
        assert_eq!(
            sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            0xddf2
        );
        let frame = Outgoing {
            header: &[9, 9, 0x12, 0x34, 0, 0],
            payload: [&[1, 2, 3], &[4, 5]],
            checksum: TransmitChecksum::Partial {
                start: 2,
                offset: 2,
            },
            segment_bytes: None,
        };
        let whole = complete(&frame, 2, 2);
        assert_eq!(whole.len(), 11);
        assert_eq!(sum(&whole[2..]), 0xffff, "a right checksum sums to ones");
    }
}
