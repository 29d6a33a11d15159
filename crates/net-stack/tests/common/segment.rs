//! TCP segments and their checksums as a peer at 10.0.0.2 sends them, written by hand.
//!
//! Must stay true: nothing of the stack is used to write them.

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

/// A segment of the stack's, or one for it.
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

/// RFC 1071, the slow way.
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
