//! TCP segments and their checksums as sent by a peer at 10.0.0.2, built manually.
//!
//! Must stay true: the stack's own code is not used to build them.

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

/// ECN fields: RFC 3168 section 5.
pub const NOT_ECT: u8 = 0;
pub const ECT_0: u8 = 2;
pub const CE: u8 = 3;
/// RFC 3168 section 6.1.
pub const ECE: u8 = 0x40;
pub const CWR: u8 = 0x80;

/// ECN field of an IP packet in a frame; not ECN-capable for other frames.
pub fn ecn(frame: &[u8]) -> u8 {
    match frame[12..14] {
        [8, 0] => frame[15] & 3,
        [0x86, 0xdd] => frame[15] >> 4 & 3,
        _ => NOT_ECT,
    }
}

/// Sets it, and IPv4's checksum.
pub fn set_ecn(frame: &mut [u8], field: u8) {
    match frame[12..14] {
        [8, 0] => {
            frame[15] = frame[15] & !3 | field;
            frame[24..26].fill(0);
            let sum = internet_checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        [0x86, 0xdd] => frame[15] = frame[15] & !0x30 | field << 4,
        _ => {}
    }
}

/// Offset of the flags in the frame of a TCP segment; none in other frames.
pub fn flags_at(frame: &[u8]) -> Option<usize> {
    match (&frame[12..14], frame.get(23), frame.get(20)) {
        ([8, 0], Some(6), _) => Some(47),
        ([0x86, 0xdd], _, Some(6)) => Some(67),
        _ => None,
    }
}

/// Sets a segment's flags, and updates its checksum if that is complete (RFC 1624).
pub fn set_flags(frame: &mut [u8], at: usize, flags: u8, checksum_is_whole: bool) {
    let offset = frame[at - 1];
    set_offset_and_flags(frame, at, [offset, flags], checksum_is_whole);
}

/// The same with the byte before them, whose last bit is RFC 9768's AE.
pub fn set_offset_and_flags(frame: &mut [u8], at: usize, bytes: [u8; 2], checksum_is_whole: bool) {
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let before = word(frame, at - 1);
    frame[at - 1..=at].copy_from_slice(&bytes);
    if checksum_is_whole {
        let sum = u32::from(!word(frame, at + 3)) + u32::from(!before);
        let sum = sum + u32::from(word(frame, at - 1));
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        frame[at + 3..at + 5].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
}

/// A segment from the stack, or one for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Segment {
    pub port: u16,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Segment {
    /// From 10.0.0.2 to 10.0.0.1, port 80.
    pub fn frame(&self) -> Vec<u8> {
        let len = 40 + self.options.len() + self.payload.len();
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let [high, low] = (len as u16).to_be_bytes();
        bytes.extend([0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([10, 0, 0, 2, 10, 0, 0, 1]);
        let sum = internet_checksum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(self.port.to_be_bytes());
        bytes.extend(80_u16.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgment.to_be_bytes());
        bytes.push((20 + self.options.len() as u8) / 4 * 16);
        bytes.push(self.flags);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.options);
        bytes.extend(&self.payload);
        bytes
    }
}

/// RFC 1071, in the simplest way.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
