//! A stack in virtual time, on a link where the driver plays every other host.
//!
//! Only IP packets pass: ARP and neighbour requests are answered here, announcements and group
//! reports are dropped, so that a script sees its subject and nothing else.
//! Must stay true: time moves by [`Host::advance`] and [`Host::step`] alone and never goes back.

use crate::settings::Settings;
use sidecore_net_stack::Config;
use sidecore_net_stack::NetError;
use sidecore_net_stack::Stack;
use sidecore_net_stack::checksum::{Sum, pseudo};
use sidecore_net_stack::frame::{Capabilities, Outgoing, Received, ReceivedChecksum};
use sidecore_net_stack::wire::ip;
use sidecore_net_stack::wire::{Ip, Mac};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Hardware addresses of the stack, and of all other hosts.
const OURS: Mac = [2, 0, 0, 0, 0, 1];
const THEIRS: Mac = [2, 0, 0, 0, 0, 2];
const ETHERNET_BYTES: usize = 14;
/// A timer that is due again at once has this much time, so that the clock moves on.
const LEAST_STEP_NS: u64 = 131_072;
/// Packets that may wait to be looked at; what comes beyond is dropped, as a network may.
const SENT_MAX: usize = 65_536;
/// Timers that are run one by one; later ones all at the end of a wait. A script that reaches it is
/// broken, and ends all the same.
const STEPS_MAX: u64 = 10_000_000;
/// Start of the virtual clock; above zero, since 0 stands for "never" in many places.
const BEGIN_NS: u64 = 1_000_000_000;

/// A packet that went out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// When, in nanoseconds of the virtual clock.
    pub at_ns: u64,
    /// From the IP header on; a super-segment is one packet.
    pub packet: Vec<u8>,
}

/// The stack and its clock.
#[derive(Debug)]
pub struct Host {
    stack: Stack,
    now_ns: u64,
    sent: VecDeque<Sent>,
    steps_left: u64,
    /// See [`Settings`].
    pub(crate) send_memory: Option<u32>,
    /// See [`Settings`].
    stopped_by: Option<PathBuf>,
}

impl Host {
    /// A stack configured by the settings.
    ///
    /// # Errors
    /// [`NetError::Config`], [`NetError::Memory`].
    pub fn new(settings: &Settings) -> Result<Self, NetError> {
        let mut host = Self::with(
            settings.config(),
            settings.mtu_bytes,
            settings.super_segments,
        )?;
        host.send_memory = settings.send_memory;
        host.stopped_by.clone_from(&settings.stopped_by);
        Ok(host)
    }

    fn with(config: Config, mtu_bytes: usize, super_segments: bool) -> Result<Self, NetError> {
        let nic = Capabilities {
            address: OURS,
            mtu_bytes,
            super_segment_bytes: if super_segments { 65_535 } else { 0 },
            completes_checksums: false,
            cuts_datagrams: false,
            merges_received: super_segments,
        };
        let mut host = Self {
            stack: Stack::new(config, &nic)?,
            now_ns: BEGIN_NS,
            sent: VecDeque::new(),
            steps_left: STEPS_MAX,
            send_memory: None,
            stopped_by: None,
        };
        host.flush();
        Ok(host)
    }

    /// The stack, for calls of its sockets. [`Host::flush`] afterwards.
    pub fn stack(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// The virtual time in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Hands the stack an IP packet, now.
    pub fn inject(&mut self, packet: &[u8]) {
        let kind = match packet.first().map(|first| first >> 4) {
            Some(6) => [0x86, 0xdd],
            _ => [8, 0],
        };
        let mut frame = [&OURS[..], &THEIRS[..], &kind[..], packet].concat();
        self.receive(&mut frame);
        self.flush();
    }

    fn receive(&mut self, frame: &mut [u8]) {
        let frame = Received {
            bytes: frame,
            checksum: ReceivedChecksum::Unknown,
            segment_bytes: None,
        };
        self.stack.receive(self.now_ns, frame);
        self.stack.process_staged();
    }

    /// Sends the packets that are ready now.
    pub fn flush(&mut self) {
        let stopped = self.stopped_by.as_deref().is_some_and(Path::exists);
        loop {
            let mut frames = Vec::new();
            let mut take = |frame: &Outgoing<'_>| {
                if stopped {
                    return false;
                }
                frames.push([frame.header, frame.payload[0], frame.payload[1]].concat());
                true
            };
            self.stack.transmit(self.now_ns, &mut take);
            let mut asked = false;
            for frame in frames {
                if let Some(mut answer) = answer(&frame) {
                    self.receive(&mut answer);
                    asked = true;
                } else if concerns_a_script(&frame) && self.sent.len() < SENT_MAX {
                    self.sent.push_back(Sent {
                        at_ns: self.now_ns,
                        packet: frame[ETHERNET_BYTES..].to_vec(),
                    });
                }
            }
            if !asked {
                return;
            }
        }
    }

    /// Advances to the next timer, if it comes by `until_ns`, and runs it; false if none does. The
    /// clock then stays unchanged.
    pub fn step(&mut self, until_ns: u64) -> bool {
        let Some(at_ns) = self.stack.next_timer() else {
            return false;
        };
        let at_ns = if at_ns > self.now_ns {
            at_ns
        } else {
            self.now_ns + LEAST_STEP_NS
        };
        if at_ns > until_ns || self.steps_left == 0 {
            return false;
        }
        self.steps_left -= 1;
        self.now_ns = at_ns;
        self.flush();
        true
    }

    /// Advances the time, with all timers in it.
    pub fn advance(&mut self, until_ns: u64) {
        while self.step(until_ns) {}
        if until_ns > self.now_ns {
            self.now_ns = until_ns;
            self.flush();
        }
    }

    /// The oldest frame sent and not taken yet.
    #[must_use]
    pub fn first_sent(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// Takes it.
    pub fn take_sent(&mut self) -> Option<Sent> {
        self.sent.pop_front()
    }
}

/// True for frames that scripts describe: TCP, UDP, and ICMP other than neighbour discovery.
fn concerns_a_script(frame: &[u8]) -> bool {
    match (frame.get(12..14), frame.get(ETHERNET_BYTES..)) {
        (Some([8, 0]), Some(packet)) => {
            matches!(packet.get(9), Some(&(ip::TCP | ip::UDP | ip::ICMP)))
        }
        (Some([0x86, 0xdd]), Some(packet)) => match packet.get(6) {
            Some(&(ip::TCP | ip::UDP | ip::FRAGMENT)) => true,
            Some(&ip::ICMPV6) => packet
                .get(ip::V6_BYTES)
                .is_some_and(|kind| !(130..=143).contains(kind)),
            _ => false,
        },
        _ => false,
    }
}

/// The answer to a request for a hardware address: all other hosts share one.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    let body = frame.get(ETHERNET_BYTES..)?;
    match frame.get(12..14)? {
        // RFC 826: a request, but not one for the sender's own address.
        [8, 6] if body.get(7) == Some(&1) && body.get(14..18)? != body.get(24..28)? => {
            let mut reply = [&OURS[..], &THEIRS[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
            reply.extend_from_slice(&THEIRS);
            reply.extend_from_slice(body.get(24..28)?);
            reply.extend_from_slice(body.get(8..18)?);
            Some(reply)
        }
        // RFC 4861 section 4.3.
        [0x86, 0xdd] if body.get(6) == Some(&ip::ICMPV6) && body.get(40) == Some(&135) => {
            let target = Ip(body.get(48..64)?.try_into().ok()?);
            let asker = Ip(body.get(8..24)?.try_into().ok()?);
            Some(advertisement(&target, &asker))
        }
        _ => None,
    }
}

/// RFC 4861 section 4.4: solicited, overriding, with the hardware address.
fn advertisement(target: &Ip, asker: &Ip) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    message.extend_from_slice(&target.0);
    message.extend_from_slice(&[2, 1]);
    message.extend_from_slice(&THEIRS);
    let sum = pseudo(target, asker, ip::ICMPV6)
        .plus_word(message.len() as u16)
        .plus(Sum::of(&message));
    message[2..4].copy_from_slice(&sum.field());
    let mut header = [0; ip::V6_BYTES];
    ip::write(&mut header, target, asker, ip::ICMPV6, 255, message.len());
    [&OURS[..], &THEIRS[..], &[0x86, 0xdd], &header, &message].concat()
}
