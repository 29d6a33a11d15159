//! SYN cookies: a listener with a full SYN queue answers without keeping state.
//!
//! The state of the handshake is in the numbers that the peer echoes. Our initial sequence number
//! has 5 bits of a slow clock, 3 of its MSS and 24 that only we can compute; the low bits of our
//! timestamp have the window scale, SACK and ECN. Source: RFC 4987 section 3.6 and appendix A;
//! Bernstein.

use crate::secrets::{Ends, Secrets};
use crate::wire::sequence::Sequence;

/// MSS values that a cookie can encode, rising.
const SIZES: [u16; 8] = [216, 536, 966, 1200, 1300, 1400, 1440, 1460];
/// Nanoseconds of a tick of the slow clock, as a power of two: 69 s.
const SLOW_SHIFT: u32 = 36;
/// Ticks for which a cookie is valid.
const GOOD: u32 = 2;
/// Low bits of the timestamp that encode options.
const STAMP_BITS: u32 = 6;
/// The scale that stands for none.
const NO_SCALE: u32 = 15;

/// Options encoded in the timestamp of a SYN cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CookieOptions {
    pub(crate) scale: Option<u8>,
    pub(crate) sack: bool,
    /// The SYN asked for ECN, and the reply accepted it (RFC 3168 section 6.1.1).
    pub(crate) ecn: bool,
}

/// The initial sequence number that answers a SYN.
pub(crate) fn make(
    secrets: &Secrets,
    ends: &Ends,
    sequence: Sequence,
    mss: u16,
    now_ns: u64,
) -> Sequence {
    let count = (now_ns >> SLOW_SHIFT) as u32;
    // Rounded down, so that no segment exceeds the peer's MSS.
    let index = SIZES.iter().rposition(|&size| size <= mss).unwrap_or(0) as u32;
    let proof = secrets.cookie(ends, count << 3 | index, sequence) & 0x00ff_ffff;
    Sequence::new((count & 0x1f) << 27 | index << 24 | proof)
}

/// The MSS encoded in `cookie`, if the cookie is ours and recent enough.
pub(crate) fn check(
    secrets: &Secrets,
    ends: &Ends,
    cookie: Sequence,
    sequence: Sequence,
    now_ns: u64,
) -> Option<u16> {
    let (now, cookie) = ((now_ns >> SLOW_SHIFT) as u32, cookie.get());
    // The cookie has five bits of the clock; the proof covers all of it, so that a cookie from an
    // earlier wrap of these bits fails.
    let age = now.wrapping_sub(cookie >> 27) & 0x1f;
    if age >= GOOD {
        return None;
    }
    let count = now.wrapping_sub(age);
    let index = cookie >> 24 & 7;
    let proof = secrets.cookie(ends, count << 3 | index, sequence) & 0x00ff_ffff;
    (proof == cookie & 0x00ff_ffff).then(|| SIZES[index as usize])
}

/// A timestamp with options in its low bits, not after `clock`.
pub(crate) fn stamp(clock: u32, options: CookieOptions) -> u32 {
    let switches = u32::from(options.ecn) << 5 | u32::from(options.sack) << 4;
    let bits = switches | options.scale.map_or(NO_SCALE, u32::from);
    let low = (1 << STAMP_BITS) - 1;
    let stamped = clock & !low | bits;
    // A timestamp ahead of the clock would make the peer drop later segments (PAWS).
    if stamped > clock {
        stamped.wrapping_sub(1 << STAMP_BITS)
    } else {
        stamped
    }
}

/// The options encoded in an echoed timestamp.
pub(crate) fn options_in(echo: u32) -> CookieOptions {
    let scale = echo & 15;
    CookieOptions {
        scale: (scale != NO_SCALE).then_some(scale.min(14) as u8),
        sack: echo & 16 != 0,
        ecn: echo & 32 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Ip;
    use sidecore_random::Random;

    #[test]
    fn a_cookie_is_good_for_its_session_and_a_while() {
        let mut random = Random::new(1);
        let secrets = Secrets::new(&mut random);
        let ends = Ends {
            local: Ip::v4([10, 0, 0, 1]),
            remote: Ip::v4([10, 0, 0, 2]),
            local_port: 80,
            remote_port: 4000,
        };
        for _ in 0..if cfg!(miri) { 10 } else { 1000 } {
            let now = random.below(1 << 44);
            let sequence = Sequence::new(random.bits() as u32);
            let mss = random.below(9000) as u16;
            let cookie = make(&secrets, &ends, sequence, mss, now);
            let found = check(&secrets, &ends, cookie, sequence, now + (1 << 36)).expect("good");
            assert!(found <= mss.max(216));
            assert_eq!(
                check(&secrets, &ends, cookie, sequence, now + (3 << 36)),
                None
            );
            let other = Ends {
                remote_port: 4001,
                ..ends
            };
            assert_eq!(check(&secrets, &other, cookie, sequence, now), None);
            assert_eq!(
                check(
                    &secrets,
                    &ends,
                    Sequence::new(cookie.get() ^ 1),
                    sequence,
                    now
                ),
                None
            );
        }
    }

    #[test]
    fn options_survive_the_timestamp() {
        for clock in [0, 63, 64, 1_000_000, u32::MAX] {
            for scale in [None, Some(0), Some(8), Some(14)] {
                for (sack, ecn) in [(false, false), (false, true), (true, false), (true, true)] {
                    let options = CookieOptions { scale, sack, ecn };
                    let stamped = stamp(clock, options);
                    assert_eq!(options_in(stamped), options);
                    assert!(clock.wrapping_sub(stamped) < 128);
                }
            }
        }
    }
}
