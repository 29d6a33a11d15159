//! Frames: what the stack sends is checked, what it gets is damaged.

use sidecore_net_stack::checksum::{Sum, pseudo};
use sidecore_net_stack::frame::Outgoing;
use sidecore_net_stack::wire::fragment;
use sidecore_net_stack::wire::ip::{self, Bad};
use sidecore_random::choices::Choices;

/// Asserts that a frame which the stack sends is well-formed.
#[expect(clippy::expect_used, reason = "what fails here is what is looked for")]
pub(super) fn check(frame: &Outgoing<'_>) {
    let bytes = [frame.header, frame.payload[0], frame.payload[1]].concat();
    assert!(bytes.len() <= 14 + 1500, "a frame of {} bytes", bytes.len());
    let packet = match bytes[12..14] {
        [8, 0] => ip::parse_v4(&bytes[14..]),
        [0x86, 0xdd] => ip::parse_v6(&bytes[14..]),
        _ => return,
    };
    if packet == Err(Bad::Fragment) {
        if bytes[12] == 8 {
            fragment::parse_v4(&bytes[14..]).expect("a fragment");
        } else {
            fragment::parse_v6(&bytes[14..]).expect("a fragment");
        }
        return;
    }
    let packet = packet.expect("a packet");
    if packet.protocol == ip::TCP || packet.protocol == ip::UDP {
        let payload = &bytes[14 + packet.start..14 + packet.end];
        let sum = pseudo(&packet.source, &packet.destination, packet.protocol)
            .plus_word(payload.len() as u16)
            .plus(Sum::of(payload));
        assert!(sum.is_right(), "a wrong checksum");
    }
}

/// Turns a frame that we sent into one to us: its ends change places.
pub(super) fn turn(bytes: &mut [u8]) {
    if bytes.len() < 54 {
        return;
    }
    let (to, from) = bytes.split_at_mut(6);
    to.swap_with_slice(&mut from[..6]);
    if bytes[12..14] == [8, 0] {
        let (source, destination) = bytes[26..34].split_at_mut(4);
        source.swap_with_slice(destination);
    } else if bytes[12..14] == [0x86, 0xdd] {
        let (source, destination) = bytes[22..54].split_at_mut(16);
        source.swap_with_slice(destination);
    }
}

/// Damages a frame, and corrects its checksums half of the time.
pub(super) fn mutate(bytes: &mut Vec<u8>, choices: &mut Choices) {
    for _ in 0..=choices.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = choices.below(bytes.len() as u64) as usize;
        // Headers matter most.
        let at = if choices.below(4) > 0 {
            at % 74 % bytes.len()
        } else {
            at
        };
        match choices.below(10) {
            0 => bytes[at] ^= 1 << choices.below(8),
            1 => bytes[at] = choices.bits() as u8,
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][choices.below(5) as usize],
            3 => bytes.truncate(at),
            4 => bytes.insert(at, choices.bits() as u8),
            5 => {
                bytes.remove(at);
            }
            6 => {
                let len = choices.below(64) as usize;
                let end = (at + len).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = choices.below(bytes.len() as u64) as usize;
                let room = part.len().min(bytes.len() - to);
                bytes[to..to + room].copy_from_slice(&part[..room]);
            }
            7 => {
                // Where a fragment lies, and whether it is the last.
                let field = if bytes.get(12) == Some(&8) { 20 } else { 56 };
                if let Some(two) = bytes.get_mut(field..field + 2) {
                    two[choices.below(2) as usize] ^= 1 << choices.below(8);
                }
            }
            8 => {
                // A sequence or acknowledgment number, near where it was.
                let field = 14 + 20 + 4 + 4 * choices.below(2) as usize;
                if let Some(four) = bytes.get_mut(field..field + 4) {
                    let old = u32::from_be_bytes([four[0], four[1], four[2], four[3]]);
                    let step = choices.below(6000) as u32;
                    let new = old.wrapping_add(step).wrapping_sub(3000);
                    four.copy_from_slice(&new.to_be_bytes());
                }
            }
            _ => {
                // Flags.
                if let Some(flags) = bytes.get_mut(14 + 20 + 13) {
                    *flags ^= 1 << choices.below(6);
                }
            }
        }
    }
    if choices.below(8) > 0 {
        repair(bytes);
    }
}

/// Corrects lengths and checksums where the headers still make sense.
pub(super) fn repair(bytes: &mut [u8]) {
    let Some(kind) = bytes.get(12..14).map(|kind| [kind[0], kind[1]]) else {
        return;
    };
    let packet_bytes = bytes.len() - 14;
    if kind == [8, 0] && packet_bytes >= 20 {
        let len = (packet_bytes as u16).to_be_bytes();
        bytes[16..18].copy_from_slice(&len);
        let header = usize::from(bytes[14] & 15) * 4;
        if header >= 20 && header <= packet_bytes {
            bytes[24..26].fill(0);
            let field = Sum::of(&bytes[14..14 + header]).field();
            bytes[24..26].copy_from_slice(&field);
        }
    } else if kind == [0x86, 0xdd] && packet_bytes >= 40 {
        let len = ((packet_bytes - 40) as u16).to_be_bytes();
        bytes[18..20].copy_from_slice(&len);
    }
    let packet = match kind {
        [8, 0] => ip::parse_v4(&bytes[14..]),
        [0x86, 0xdd] => ip::parse_v6(&bytes[14..]),
        _ => return,
    };
    let Ok(packet) = packet else { return };
    let at = match packet.protocol {
        ip::TCP => 16,
        ip::UDP => 6,
        ip::ICMP | ip::ICMPV6 | ip::IGMP => 2,
        _ => return,
    };
    let payload = &mut bytes[14 + packet.start..14 + packet.end];
    if payload.len() < at + 2 {
        return;
    }
    payload[at..at + 2].fill(0);
    let len = payload.len() as u16;
    let mut sum = Sum::of(payload);
    if !matches!(packet.protocol, ip::ICMP | ip::IGMP) {
        sum = sum
            .plus(pseudo(&packet.source, &packet.destination, packet.protocol))
            .plus_word(len);
    }
    payload[at..at + 2].copy_from_slice(&sum.field());
}
