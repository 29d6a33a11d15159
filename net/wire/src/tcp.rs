//! TCP's header and options: parsing and writing.
//!
//! Options are written in Linux's order, because conformance scripts and middleboxes expect it:
//! MSS, SACK permitted, timestamps, window scale on a SYN; NOP NOP timestamps, then NOP NOP SACK on
//! other segments. Source: RFC 9293 sections 3.1 and 3.2, RFC 7323, RFC 2018.
//!
//! ```
//! use sidecore_net_wire::tcp;
//!
//! let options = tcp::Options {
//!     mss: Some(1460),
//!     sack_permitted: true,
//!     ..tcp::Options::default()
//! };
//! let mut room = [0; tcp::OPTIONS_BYTES_MAX];
//! let options_bytes = tcp::write_options(&options, &mut room);
//! let mut segment = vec![0; tcp::HEADER_BYTES];
//! segment.extend(&room[..options_bytes]);
//! segment[12] = (segment.len() as u8 / 4) << 4; // the data offset, in words
//! segment[13] = tcp::SYN;
//! let read = tcp::parse(&segment).expect("a segment");
//! assert!(read.has(tcp::SYN) && !read.has(tcp::ACK));
//! assert_eq!(read.options, options);
//! ```
#![expect(missing_docs, reason = "fields and constants have the RFCs' names")]

use crate::ip::Codepoint;
use crate::sequence::{Range, Sequence};
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes that options may take: RFC 9293 section 3.1, a data offset of 15.
pub const OPTIONS_BYTES_MAX: usize = 40;
/// Bytes that the timestamps take with their padding.
pub const TIMESTAMPS_BYTES: u16 = 12;
/// SACK blocks that fit into a header: RFC 2018 section 3.
pub const BLOCKS_MAX: usize = 4;

/// No more data.
pub const FIN: u8 = 0x01;
/// First sequence number.
pub const SYN: u8 = 0x02;
/// Resets the session.
pub const RST: u8 = 0x04;
/// Push to the application at once.
pub const PSH: u8 = 0x08;
/// The acknowledgment field is valid.
pub const ACK: u8 = 0x10;
/// The path of the acknowledged data was congested (RFC 3168 section 6.1).
pub const ECE: u8 = 0x40;
/// The sender has reduced its congestion window (RFC 3168 section 6.1).
pub const CWR: u8 = 0x80;
/// Marks are counted one by one; located next to the data offset (RFC 9768 section 3.2.2, figure
/// 3).
pub(crate) const AE: u8 = 0x01;

/// CWR and ECE among the three bits of [`Segment::ace`].
pub const CWR_BIT: u8 = 0b010;
pub const ECE_BIT: u8 = 0b001;

/// The header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Tcp {
    pub source: U16,
    pub destination: U16,
    pub sequence: U32,
    pub acknowledgment: U32,
    pub offset: u8,
    pub flags: u8,
    pub window: U16,
    pub checksum: [u8; 2],
    pub urgent: U16,
}

/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: u16 = 16;

/// Parsed options, or options to write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// RFC 9293 section 3.7.1.
    pub mss: Option<u16>,
    /// RFC 7323 section 2.
    pub scale: Option<u8>,
    /// RFC 2018 section 2.
    pub sack_permitted: bool,
    /// RFC 7323 section 3: value and echo reply.
    pub timestamps: Option<(u32, u32)>,
    /// RFC 2018 section 3.
    pub blocks: [Range; BLOCKS_MAX],
    /// Count of valid `blocks`.
    pub block_count: usize,
}

/// The byte of the data offset for a header of `len` bytes with its options: RFC 9293 section 3.1.
#[inline]
pub fn offset_of(len: usize) -> u8 {
    debug_assert!(len <= HEADER_BYTES + OPTIONS_BYTES_MAX && len.is_multiple_of(4));
    // At most 60 bytes, in words of four.
    (len / 4) as u8 * 16
}

/// A received segment.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'p> {
    pub sequence: Sequence,
    pub acknowledgment: Sequence,
    pub flags: u8,
    /// See `AE`.
    pub ae: bool,
    /// As in the header, not scaled.
    pub window: u16,
    pub options: Options,
    pub payload: &'p [u8],
    /// ECN field of the segment's packet; [`parse`] does not set it.
    pub ecn: Codepoint,
    /// Only the payload's length is valid: the bytes are in the receive ring already, after its
    /// content.
    pub placed: bool,
}

impl Tcp {
    /// Sets the flags AE, CWR and ECE, which are clear, to what [`Segment::ace`] reads.
    #[inline]
    pub fn set_ace(&mut self, ace: u8) {
        self.offset |= ace >> 2 & AE;
        self.flags |= ace << 6;
    }
}

impl Segment<'_> {
    /// The number after its last: SYN and FIN occupy one each (RFC 9293 section 3.4).
    #[inline]
    pub fn end(&self) -> Sequence {
        let flags = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        self.sequence.after(self.payload.len()) + flags
    }

    /// True if it occupies no sequence number: a pure acknowledgment or reset.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty() && self.flags & (SYN | FIN) == 0
    }

    /// Its timestamp and the echoed one, if the option was negotiated.
    #[inline]
    pub fn stamps(&self, negotiated: bool) -> Option<(u32, u32)> {
        self.options.timestamps.filter(|_| negotiated)
    }

    /// The flags AE, CWR and ECE as a number, the field ACE: RFC 9768 section 3.2.2, figure 3.
    #[inline]
    pub fn ace(&self) -> u8 {
        u8::from(self.ae) << 2 | self.flags >> 6
    }

    /// True if all of these flags are set.
    #[inline]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

/// Parses the part after the ports of a segment with a correct checksum. `None` if its data offset
/// is invalid.
#[inline]
pub fn parse(bytes: &[u8]) -> Option<Segment<'_>> {
    let (header, _) = Tcp::ref_from_prefix(bytes).ok()?;
    let start = usize::from(header.offset >> 4) * 4;
    if start < HEADER_BYTES || start > bytes.len() {
        return None;
    }
    let options = &bytes[HEADER_BYTES..start];
    Some(Segment {
        sequence: header.sequence.into(),
        acknowledgment: header.acknowledgment.into(),
        flags: header.flags,
        ae: header.offset & AE != 0,
        window: header.window.get(),
        options: match options {
            // The options of nearly every segment: NOP, NOP, timestamps (RFC 7323, appendix A).
            [1, 1, 8, 10, stamps @ ..] if stamps.len() == 8 => Options {
                timestamps: Some((number(&stamps[..4]), number(&stamps[4..]))),
                ..Options::default()
            },
            [] => Options::default(),
            others => parse_options(others),
        },
        payload: &bytes[start..],
        ecn: Codepoint::NotEct,
        placed: false,
    })
}

/// Parses options one by one. An invalid length ends the parsing: earlier options count.
fn parse_options(mut bytes: &[u8]) -> Options {
    let mut options = Options::default();
    while let [kind, rest @ ..] = bytes {
        match kind {
            // The end of the list and the NOP have no length.
            0 => break,
            1 => {
                bytes = rest;
                continue;
            }
            _ => {}
        }
        let Some(&len) = rest.first() else { break };
        let len = usize::from(len);
        if len < 2 || len > bytes.len() {
            break;
        }
        let value = &bytes[2..len];
        match (kind, value.len()) {
            (2, 2) => options.mss = Some(u16::from_be_bytes([value[0], value[1]])),
            // RFC 7323 section 2.3: values above 14 count as 14.
            (3, 1) => options.scale = Some(value[0].min(14)),
            (4, 0) => options.sack_permitted = true,
            (5, 8 | 16 | 24 | 32) => {
                options.block_count = value.len() / 8;
                for (block, bytes) in options.blocks.iter_mut().zip(value.chunks_exact(8)) {
                    *block = Range {
                        start: Sequence::new(number(&bytes[..4])),
                        end: Sequence::new(number(&bytes[4..])),
                    };
                }
            }
            (8, 8) => options.timestamps = Some((number(&value[..4]), number(&value[4..]))),
            _ => {}
        }
        bytes = &bytes[len..];
    }
    options
}

/// Writes options, padded to whole words, and returns their length. SACK blocks that do not fit are
/// omitted.
#[inline]
pub fn write_options(options: &Options, out: &mut [u8; OPTIONS_BYTES_MAX]) -> usize {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
        at
    };
    let mut end = 0;
    if let Some(mss) = options.mss {
        let [high, low] = mss.to_be_bytes();
        end = put(&[2, 4, high, low]);
    }
    // "SACK permitted", if there is one, takes the place of two NOPs, as in Linux.
    if let Some((value, echo)) = options.timestamps {
        let head = if options.sack_permitted {
            [4, 2]
        } else {
            [1, 1]
        };
        put(&[head[0], head[1], 8, 10]);
        put(&value.to_be_bytes());
        end = put(&echo.to_be_bytes());
    } else if options.sack_permitted {
        end = put(&[1, 1, 4, 2]);
    }
    if let Some(scale) = options.scale {
        end = put(&[1, 3, 3, scale]);
    }
    // Two NOPs, the kind and the length precede the blocks.
    let room = (OPTIONS_BYTES_MAX - end).saturating_sub(4) / 8;
    let count = options.block_count.min(room);
    if count > 0 {
        end = put(&[1, 1, 5, 2 + 8 * count as u8]);
        for block in &options.blocks[..count] {
            put(&block.start.get().to_be_bytes());
            end = put(&block.end.get().to_be_bytes());
        }
    }
    end
}

#[inline]
fn number(bytes: &[u8]) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[..4]);
    u32::from_be_bytes(four)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(options: &Options) -> Vec<u8> {
        let mut out = [0; OPTIONS_BYTES_MAX];
        let len = write_options(options, &mut out);
        out[..len].to_vec()
    }

    #[test]
    fn a_syn_has_linux_order() {
        let options = Options {
            mss: Some(1460),
            scale: Some(8),
            sack_permitted: true,
            timestamps: Some((1, 0)),
            ..Options::default()
        };
        let bytes = written(&options);
        assert_eq!(
            bytes,
            [
                2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 8
            ]
        );
        assert_eq!(parse_options(&bytes), options);
    }

    #[test]
    fn three_blocks_fit_beside_timestamps_and_four_without() {
        let block = |n| Range {
            start: Sequence::new(n),
            end: Sequence::new(n + 1),
        };
        let mut options = Options {
            timestamps: Some((1, 2)),
            blocks: [block(10), block(20), block(30), block(40)],
            block_count: 4,
            ..Options::default()
        };
        assert_eq!(parse_options(&written(&options)).block_count, 3);
        options.timestamps = None;
        assert_eq!(parse_options(&written(&options)), options);
    }

    #[test]
    fn damaged_options_end_the_reading_and_nothing_else() {
        assert_eq!(parse_options(&[2, 4, 5]).mss, None);
        assert_eq!(parse_options(&[1, 1, 3, 0, 7]).scale, None);
        assert_eq!(
            parse_options(&[4, 2, 9]),
            Options {
                sack_permitted: true,
                ..Options::default()
            }
        );
        assert_eq!(parse_options(&[3, 3, 200]).scale, Some(14));
    }

    #[test]
    fn an_offset_outside_the_segment_is_refused() {
        let mut bytes = [0; 24];
        bytes[12] = 4 << 4;
        assert!(parse(&bytes).is_none());
        bytes[12] = 7 << 4;
        assert!(parse(&bytes).is_none());
        bytes[12] = 6 << 4;
        assert!(parse(&bytes).is_some());
    }
}
