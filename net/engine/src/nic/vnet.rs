//! The header that TAP and packet sockets put in front of each frame: the state of its checksum,
//! and its segment size if it is a super-segment.
//!
//! Must stay true: decoding accepts any bytes; unknown types count as a plain frame. The byte order
//! is the machine's own. Source: `struct virtio_net_hdr` in `include/uapi/linux/virtio_net.h`;
//! segmentation types as in the virtio specification 1.2, section 5.1.6.

use super::vlan::TAGGED;
use super::{Outgoing, Received, ReceivedChecksum, TransmitChecksum};
use std::num::NonZeroU16;

/// Bytes of the short form; the long one has two more, which are unused here.
pub const HEADER_BYTES: usize = 10;

/// The frame after its header; none if the input is too short.
pub(crate) fn received(read: &mut [u8]) -> Option<Received<'_>> {
    let (header, bytes) = read.split_first_chunk_mut()?;
    let (checksum, segment_bytes) = decode(header);
    Some(Received {
        bytes,
        checksum,
        segment_bytes,
    })
}

/// Checksum state and segment size of a received frame, from its virtio-net header.
fn decode(header: &[u8; HEADER_BYTES]) -> (ReceivedChecksum, Option<NonZeroU16>) {
    let checksum = if header[0] & NEEDS_CHECKSUM != 0 {
        ReceivedChecksum::Partial
    } else if header[0] & DATA_VALID != 0 {
        ReceivedChecksum::Verified
    } else {
        ReceivedChecksum::Unknown
    };
    let segment = match header[1] & !SEGMENTS_ECN {
        SEGMENTS_TCP4 | SEGMENTS_TCP6 | SEGMENTS_UDP => {
            NonZeroU16::new(u16::from_ne_bytes([header[4], header[5]]))
        }
        _ => None,
    };
    (checksum, segment)
}

/// The header of a frame to send.
pub(crate) fn encode(frame: &Outgoing<'_>) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let TransmitChecksum::Partial { start, offset } = frame.checksum else {
        return header;
    };
    header[0] = NEEDS_CHECKSUM;
    // Where the sum begins, and where it goes, counted from there.
    header[6..8].copy_from_slice(&start.to_ne_bytes());
    header[8..10].copy_from_slice(&offset.to_ne_bytes());
    if let Some(segment) = frame.segment_bytes {
        // A VLAN's tag stands before the type.
        let place = match frame.header.get(12..14) == Some(&TAGGED) {
            true => 16,
            false => 12,
        };
        let is_ipv6 = frame.header.get(place..place + 2) == Some(&[0x86, 0xdd]);
        header[1] = match (offset, is_ipv6) {
            // The place of the checksum tells the protocol: the frame need not be parsed.
            (UDP_CHECKSUM_AT, _) => SEGMENTS_UDP,
            (_, false) => SEGMENTS_TCP4,
            (_, true) => SEGMENTS_TCP6,
        };
        let header_bytes = u16::try_from(frame.header.len()).unwrap_or(u16::MAX);
        header[2..4].copy_from_slice(&header_bytes.to_ne_bytes());
        header[4..6].copy_from_slice(&segment.get().to_ne_bytes());
    }
    header
}

const NEEDS_CHECKSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const SEGMENTS_TCP4: u8 = 1;
const SEGMENTS_TCP6: u8 = 4;
const SEGMENTS_UDP: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: CWR is set in the first segment only. Accepted from the kernel; never
/// set, because the stack sends CWR in a segment of its own (`net_stack::tcp::ecn`).
const SEGMENTS_ECN: u8 = 0x80;
/// Offset of the checksum in UDP's header; TCP's is 16.
const UDP_CHECKSUM_AT: u16 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_the_other_end_sees() {
        let mut ethernet = [0; 66];
        ethernet[12..14].copy_from_slice(&[0x86, 0xdd]);
        let frame = Outgoing {
            header: &ethernet,
            payload: [&[], &[]],
            checksum: TransmitChecksum::Partial {
                start: 54,
                offset: 16,
            },
            segment_bytes: NonZeroU16::new(1448),
        };
        let header = encode(&frame);
        assert_eq!(header[1], SEGMENTS_TCP6);
        assert_eq!(u16::from_ne_bytes([header[2], header[3]]), 66);
        assert_eq!(
            decode(&header),
            (ReceivedChecksum::Partial, NonZeroU16::new(1448))
        );
        let mut tagged = [0; 70];
        tagged[12..18].copy_from_slice(&[0x81, 0, 0, 7, 0x86, 0xdd]);
        let behind_tag = Outgoing {
            header: &tagged,
            ..frame
        };
        assert_eq!(encode(&behind_tag)[1], SEGMENTS_TCP6);
        tagged[16..18].copy_from_slice(&[8, 0]);
        let behind_tag = Outgoing {
            header: &tagged,
            ..frame
        };
        assert_eq!(encode(&behind_tag)[1], SEGMENTS_TCP4);
        let plain = Outgoing {
            checksum: TransmitChecksum::Complete,
            segment_bytes: None,
            ..frame
        };
        assert_eq!(decode(&encode(&plain)), (ReceivedChecksum::Unknown, None));
        let [low, high] = 1000_u16.to_ne_bytes();
        let with_cwr = [
            1,
            SEGMENTS_TCP4 | SEGMENTS_ECN,
            54,
            0,
            low,
            high,
            34,
            0,
            16,
            0,
        ];
        assert_eq!(decode(&with_cwr).1, NonZeroU16::new(1000));
        assert_eq!(
            decode(&[DATA_VALID, 99, 0, 0, 1, 1, 0, 0, 0, 0]),
            (ReceivedChecksum::Verified, None)
        );
    }
}
