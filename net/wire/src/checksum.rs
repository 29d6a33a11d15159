//! The Internet checksum: whole, in pieces, and of pseudo-headers.
//!
//! Why here: if a NIC completes no checksums, this is the only loop that touches every payload
//! byte. Four bytes are added at a time, in several independent sums, as RFC 1071 section 2 allows:
//! the ones' complement sum does not depend on the order or width in which carries are folded.
//! Source: RFC 1071, RFC 1624 (changing a sum), RFC 9293 section 3.1 and RFC 8200 section 8.1
//! (pseudo-headers).
//!
//! ```
//! use sidecore_net_wire::checksum::{Sum, changed};
//!
//! let mut header = *b"\x45\0\0\x54\x12\x34\x40\0\x40\x01\0\0\x0a\0\0\x01\x0a\0\0\x02";
//! let field = Sum::of(&header).field();
//! header[10..12].copy_from_slice(&field);
//! assert!(Sum::of(&header).is_right());
//! // A router takes one off the hops, and need not sum the rest again.
//! let old = [header[8], header[9]];
//! header[8] -= 1;
//! let field = changed(field, old, [header[8], header[9]]);
//! header[10..12].copy_from_slice(&field);
//! assert!(Sum::of(&header).is_right());
//! ```

use crate::Ip;

/// An unfolded partial sum; at most 2^16 pieces of 64 KiB fit before it overflows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of `bytes`, which start at an even offset of the summed data.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = sidecore_bare::sum::of_words(bytes);
        // `of_words` leaves out an incomplete block of 16 bytes.
        let rest = &bytes[bytes.len() / 16 * 16..];
        let mut words = rest.chunks_exact(2);
        for word in &mut words {
            // RFC 1071 section 2 (B): words are added as they lie; the
            // sum's bytes then lie so, too.
            sum += u64::from(u16::from_ne_bytes([word[0], word[1]]));
        }
        if let [last] = words.remainder() {
            // An odd last byte is a word whose second byte is 0.
            sum += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        Self(sum)
    }

    /// The sum of both; `other` starts at an even offset.
    #[inline]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The sum of both, if `other` starts at an odd offset but was summed as if at an even one: its
    /// bytes are swapped (RFC 1071, section 2 (B)).
    #[inline]
    pub fn plus_odd(self, other: Self) -> Self {
        Self(self.0 + u64::from(other.folded().swap_bytes()))
    }

    /// Adds a number in network byte order.
    #[inline]
    pub fn plus_len(self, len: usize) -> Self {
        // A pseudo-header's length: packets have less than 64 KiB.
        self.plus_word(len as u16)
    }

    /// With one more word.
    #[inline]
    pub fn plus_word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be()))
    }

    /// 16 bits in memory order, not complemented.
    #[inline]
    pub fn folded(self) -> u16 {
        // 33 bits at most after this fold, then 18, 17, and 16.
        let mut sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum as u16
    }

    /// The bytes of a field with the plain sum: the starting value for a NIC that completes it.
    #[inline]
    pub fn partial(self) -> [u8; 2] {
        self.folded().to_ne_bytes()
    }

    /// The bytes of a checksum field.
    #[inline]
    pub fn field(self) -> [u8; 2] {
        (!self.folded()).to_ne_bytes()
    }

    /// True if a sum that includes the checksum field is that of intact data (RFC 1071 section 1).
    #[inline]
    pub fn is_right(self) -> bool {
        self.folded() == 0xffff
    }
}

/// The sum of the addresses and the protocol of a pseudo-header; the length is added per packet.
/// RFC 9293 section 3.1 and RFC 8200 section 8.1: both sum the same 16-bit words, and a mapped IPv4
/// address adds a constant that is left out here.
#[inline]
pub fn pseudo(source: &Ip, destination: &Ip, protocol: u8) -> Sum {
    let addresses = if source.is_v4() {
        Sum::of(&source.0[12..]).plus(Sum::of(&destination.0[12..]))
    } else {
        Sum::of(&source.0).plus(Sum::of(&destination.0))
    };
    addresses.plus_word(u16::from(protocol))
}

/// A checksum field after the 16-bit word `old` under it became `new` (RFC 1624, equation 3).
#[inline]
pub fn changed(field: [u8; 2], old: [u8; 2], new: [u8; 2]) -> [u8; 2] {
    let sum = u64::from(!u16::from_ne_bytes(field))
        + u64::from(!u16::from_ne_bytes(old))
        + u64::from(u16::from_ne_bytes(new));
    Sum(sum).field()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_random::Random;

    /// A word at a time, as in RFC 1071 section 4.1.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for word in bytes.chunks(2) {
            sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn agrees_with_the_plain_loop_at_every_length_and_split() {
        let mut random = Random::new(1);
        let len = if cfg!(miri) { 40 } else { 200 };
        let bytes: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
        for len in 0..bytes.len() {
            let whole = &bytes[..len];
            assert_eq!(Sum::of(whole).folded().to_be(), plain(whole), "{len}");
            for split in 0..len {
                let (a, b) = whole.split_at(split);
                let sum = if split % 2 == 0 {
                    Sum::of(a).plus(Sum::of(b))
                } else {
                    Sum::of(a).plus_odd(Sum::of(b))
                };
                assert_eq!(sum.folded(), Sum::of(whole).folded(), "{split} of {len}");
            }
        }
    }

    #[test]
    fn a_changed_word_changes_the_field_as_summing_again_does() {
        let mut bytes = *b"\x45\x00\x00\x54\x12\x34\x40\x00\x40\x01";
        let before = Sum::of(&bytes).field();
        let old = [bytes[4], bytes[5]];
        bytes[4] = 0xff;
        assert_eq!(
            changed(before, old, [bytes[4], bytes[5]]),
            Sum::of(&bytes).field()
        );
    }

    #[test]
    fn rfc_1071_example() {
        // Section 3: the words 0001 f203 f4f5 f6f7 sum to ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&bytes).folded().to_be(), 0xddf2);
    }
}
