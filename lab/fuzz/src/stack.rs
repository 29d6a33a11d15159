//! The stack's whole receive path under damaged and hostile frames.
//!
//! A [`Target`] is a stack with a listener, a UDP socket and an honest peer (another stack). Each
//! input is a frame that the honest pair really exchanged, mutated, with its checksums corrected
//! half of the time, so that mutations reach the layers behind them. After each input the honest
//! pair goes on talking; the invariants are in [`Target::input`]. [`fuzz_stack`] does the same with
//! decisions from bytes, for fuzzers that are guided by coverage.

mod frames;

use frames::{check, mutate, repair, turn};
use sidecore_net_stack::frame::{Capabilities, Received, ReceivedChecksum};
use sidecore_net_stack::{
    Cidr, Config, Counters, ListenerId, REASSEMBLY_BYTES_MAX, REASSEMBLY_DATAGRAMS_MAX, SessionId,
    Stack, UdpId,
};
use sidecore_random::choices::Choices;
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

/// Frames that are kept as seeds.
const SEEDS_MAX: usize = 512;
/// Sessions of the fuzzed stack: few, so that exhaustion is reached.
const SESSIONS: usize = 64;

/// Start of a target, on its clock.
const BEGIN_NS: u64 = 1_000_000_000;
/// Time given to sessions that end: the first step, which doubles, the longest, and how many.
const ENDING_NS: u64 = 1_000_000;
const ENDING_NS_MAX: u64 = 120_000_000_000;
const ENDING_ROUNDS: u32 = 60;

/// A stack under attack.
pub struct Target {
    stack: Stack,
    peer: Stack,
    listener: ListenerId,
    udp: UdpId,
    /// Of the honest peer.
    peer_udp: UdpId,
    sessions: Vec<SessionId>,
    clients: Vec<SessionId>,
    seeds: Vec<Vec<u8>>,
    choices: Choices,
    now_ns: u64,
    inputs: u64,
    scratch: Vec<u8>,
}

impl Target {
    /// A target whose every step follows from `seed`.
    ///
    /// # Panics
    /// If memory is exhausted.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with(seed, Choices::seeded(seed))
    }

    #[expect(clippy::expect_used, reason = "a broken set-up is to be seen at once")]
    fn with(seed: u64, choices: Choices) -> Self {
        let stack =
            |number| Stack::new(config(seed, number), &nic(number)).expect("memory for a stack");
        let (mut fuzzed, mut peer) = (stack(1), stack(2));
        let (listener, udp) = open(&mut fuzzed);
        let peer_udp = peer.bind_udp(any_address()).expect("a socket");
        Self {
            stack: fuzzed,
            peer,
            listener,
            udp,
            peer_udp,
            sessions: Vec::new(),
            clients: Vec::new(),
            seeds: Vec::new(),
            choices,
            now_ns: BEGIN_NS,
            inputs: 0,
            scratch: vec![0; 4096],
        }
    }

    /// One mutated frame, and the actions of the application and the honest peer meanwhile.
    ///
    /// # Panics
    /// When an invariant is broken, whatever comes in: that is its purpose.
    pub fn input(&mut self) {
        self.inputs += 1;
        if self.seeds.len() < 16 || self.inputs.is_multiple_of(64) {
            self.talk();
        }
        let at = self.choices.below(self.seeds.len() as u64) as usize;
        let mut frame = self.seeds[at].clone();
        mutate(&mut frame, &mut self.choices);
        let hop = [1_000, 1_000_000, 300_000_000, 5_000_000_000];
        if self.choices.below(16) == 0 {
            self.now_ns += self.choices.below(hop[(self.inputs % 4) as usize]);
        }
        self.put(&mut frame);
        if self.choices.below(8) == 0 {
            self.answer();
        }
        self.bounds_hold();
    }

    /// The steps of a fuzzer's input.
    fn play(&mut self, choices: Choices) {
        self.choices = choices;
        for _ in 0..STEPS_MAX {
            if self.choices.is_over() {
                break;
            }
            self.step();
        }
        self.answer();
    }

    /// Ends all sessions on both sides, and returns both stacks to their initial state.
    #[expect(clippy::expect_used, reason = "what fails here is what is looked for")]
    fn end(&mut self) {
        self.choices = Choices::of(&[]);
        while let Some(session) = self.stack.accept(self.listener).expect("listens") {
            self.sessions.push(session);
        }
        for client in self.clients.drain(..) {
            self.peer.abort(client).expect("open");
        }
        for session in self.sessions.drain(..) {
            self.stack.abort(session).expect("open");
        }
        self.sessions_end();
        self.stack.close_udp(self.udp).expect("open");
        self.peer.close_udp(self.peer_udp).expect("open");
        self.stack.renew(&nic(1));
        self.peer.renew(&nic(2));
        (self.listener, self.udp) = open(&mut self.stack);
        self.peer_udp = self.peer.bind_udp(any_address()).expect("a socket");
        self.seeds.clear();
        self.now_ns = BEGIN_NS;
    }

    /// Lets every wait for an answer or a fragment time out; nothing arrives.
    fn sessions_end(&mut self) {
        for round in 0..ENDING_ROUNDS {
            if self.stack.sessions() + self.peer.sessions() == 0 {
                return;
            }
            for stack in [&mut self.stack, &mut self.peer] {
                stack.transmit(self.now_ns, &mut |_| true);
                while stack.next_event().is_some() {}
            }
            // Long steps only where short ones were not enough.
            self.now_ns += (ENDING_NS << round.min(20)).min(ENDING_NS_MAX);
        }
        let left = [&self.stack, &self.peer].map(Stack::open_sessions);
        panic!("sessions never end: {}", left.join("\n"));
    }

    /// One step of a fuzzer's choice.
    fn step(&mut self) {
        match self.choices.below(16) {
            0 | 1 => self.talk(),
            2..=6 => {
                let at = self.choices.below(self.seeds.len() as u64) as usize;
                let mut frame = self.seeds.get(at).cloned().unwrap_or_default();
                mutate(&mut frame, &mut self.choices);
                self.put(&mut frame);
            }
            7..=10 => {
                let mut frame = self.written();
                self.put(&mut frame);
            }
            11 => {
                let shift = self.choices.below(34);
                self.now_ns += 1 << shift;
            }
            12 => self.ask(),
            _ => self.answer(),
        }
        self.bounds_hold();
    }

    /// A frame whose packet the fuzzer wrote, to us, with right checksums most of the time.
    fn written(&mut self) -> Vec<u8> {
        let kind = self.choices.below(8);
        let len = self.choices.below(160) as usize;
        let mut packet = self.choices.take(len);
        let (ours, theirs) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut frame = [ours, theirs].concat();
        match kind {
            0 => frame.extend([8, 6]),
            1..=3 => {
                frame.extend([8, 0]);
                // Ends that are believed; the fuzzer need not find them.
                if kind < 3 && packet.len() >= 20 {
                    packet[0] = 0x40 | packet[0] & 15;
                    packet[12..20].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
                }
            }
            4..=6 => {
                frame.extend([0x86, 0xdd]);
                if kind < 6 && packet.len() >= 40 {
                    packet[0] = 0x60 | packet[0] & 15;
                    packet[8..40].fill(0);
                    packet[8..10].copy_from_slice(&[0xfd, 0]);
                    packet[24..26].copy_from_slice(&[0xfd, 0]);
                    (packet[23], packet[39]) = (2, 1);
                }
            }
            _ => frame.extend(self.choices.take(2)),
        }
        frame.extend(packet);
        if self.choices.below(8) > 0 {
            repair(&mut frame);
        }
        frame
    }

    /// The application opens, shuts or breaks off a session of its own will.
    fn ask(&mut self) {
        let at = self.choices.below(SESSIONS as u64) as usize;
        let own = self.sessions.get(at).copied();
        match (self.choices.below(4), own) {
            (0, _) => {
                let to = SocketAddr::from(([10, 0, 0, 2], 80 + self.choices.below(2) as u16));
                if let Ok(session) = self.stack.connect(to, None) {
                    self.sessions.push(session);
                }
            }
            (1, Some(session)) => {
                // It may have been shut already.
                let _ = self.stack.shutdown_write(session);
            }
            (2, Some(session)) => {
                let _ = self.stack.abort(session);
                self.sessions.swap_remove(at);
            }
            (_, Some(session)) => {
                let len = self.choices.below(4096) as usize;
                let _ = self.stack.write(session, &self.scratch[..len]);
            }
            _ => {}
        }
    }

    /// The application has its turn, and the stack's output is checked.
    fn answer(&mut self) {
        self.serve();
        let mut out = 0;
        self.stack.transmit(self.now_ns, &mut |frame| {
            check(frame);
            out += 1;
            out < 512
        });
    }

    fn bounds_hold(&self) {
        assert!(self.stack.sessions() <= SESSIONS);
        let (datagrams, bytes) = self.stack.fragments_held();
        assert!(
            datagrams <= REASSEMBLY_DATAGRAMS_MAX && bytes <= REASSEMBLY_BYTES_MAX,
            "{bytes}"
        );
    }

    /// The honest peer opens, writes, closes; the frames of both become seeds.
    #[expect(clippy::expect_used, reason = "what fails here is what is looked for")]
    fn talk(&mut self) {
        let r = self.choices.bits();
        if self.clients.len() < 4 || r.is_multiple_of(8) {
            let own = r >> 8 & 1;
            let to = if own == 0 {
                SocketAddr::from(([10, 0, 0, 1], 80))
            } else {
                SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], 80))
            };
            if let Ok(client) = self.peer.connect(to, None) {
                self.clients.push(client);
            }
        }
        if let Some(&client) = self.clients.get(r as usize >> 16 & 7) {
            let len = (r >> 20 & 0xfff) as usize;
            // It may have been reset by a forged segment.
            let _ = self.peer.write(client, &self.scratch[..len]);
            if r >> 40 & 15 == 0 {
                self.clients.retain(|&other| other != client);
                self.peer.close(client).expect("was open");
            }
        }
        if r >> 44 & 3 == 0 {
            self.talk_in_datagrams(r >> 48);
        }
        for _ in 0..4 {
            self.now_ns += 20_000;
            let mut frames: Vec<Vec<u8>> = Vec::new();
            self.peer.transmit(self.now_ns, &mut |frame| {
                frames.push([frame.header, frame.payload[0], frame.payload[1]].concat());
                true
            });
            for mut bytes in frames {
                self.keep(&bytes);
                self.put(&mut bytes);
            }
            self.serve();
            let mut frames: Vec<Vec<u8>> = Vec::new();
            self.stack.transmit(self.now_ns, &mut |frame| {
                check(frame);
                frames.push([frame.header, frame.payload[0], frame.payload[1]].concat());
                frames.len() < 512
            });
            for mut bytes in frames {
                let mut turned = bytes.clone();
                turn(&mut turned);
                self.keep(&turned);
                let received = Received {
                    bytes: &mut bytes,
                    checksum: ReceivedChecksum::Unknown,
                    segment_bytes: None,
                };
                self.peer.receive(self.now_ns, received);
            }
            self.peer.process_staged();
        }
        let peer = &mut self.peer;
        self.clients.retain(|&client| {
            let mut bytes = [0; 2048];
            let open = peer.read(client, &mut bytes).is_ok();
            if !open {
                let _ = peer.close(client);
            }
            open
        });
        while self.peer.next_event().is_some() {}
    }

    /// A frame comes in, from one kind of NIC or another.
    fn put(&mut self, frame: &mut [u8]) {
        if self.choices.below(4) == 0 {
            self.put_split(frame);
            return;
        }
        let received = Received {
            bytes: frame,
            checksum: ReceivedChecksum::Unknown,
            segment_bytes: None,
        };
        self.stack.receive(self.now_ns, received);
    }

    /// A frame from a NIC that puts the bytes behind some headers into a session's ring, whether
    /// they belong there or not.
    fn put_split(&mut self, frame: &mut [u8]) {
        let r = self.choices.bits();
        if let Some(&session) = self.sessions.get(r as usize % self.sessions.len().max(1)) {
            let header_bytes = [66, 66, 86, 86, 54, 67][(r >> 32) as usize % 6];
            self.stack.expect_at(session, header_bytes);
        }
        let mut split = false;
        if let Some(room) = self.stack.room()
            && let Some(behind) = frame.get_mut(room.header_bytes..)
            && !behind.is_empty()
        {
            let [first, second] = room.payload;
            let count = behind.len().min(first.len());
            first[..count].copy_from_slice(&behind[..count]);
            second[..behind.len() - count].copy_from_slice(&behind[count..]);
            behind.fill(0xee);
            split = true;
        }
        let received = Received {
            bytes: frame,
            checksum: match r >> 48 & 1 {
                0 => ReceivedChecksum::Unknown,
                _ => ReceivedChecksum::Verified,
            },
            segment_bytes: None,
        };
        if split {
            self.stack.receive_split(self.now_ns, received);
        } else {
            self.stack.receive(self.now_ns, received);
        }
    }

    /// Some are longer than a packet of the link.
    fn talk_in_datagrams(&mut self, r: u64) {
        let to = if r & 1 == 0 {
            SocketAddr::from(([10, 0, 0, 1], 80))
        } else {
            SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], 80))
        };
        let len = (r >> 1 & 0xfff) as usize;
        // The queue may be full.
        let _ = self.peer.send_to(self.peer_udp, to, &self.scratch[..len]);
        let peer = &mut self.peer;
        while let Ok(Some(_)) = peer.receive_from(self.peer_udp, &mut self.scratch) {}
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.seeds.len() < SEEDS_MAX {
            self.seeds.push(bytes.to_vec());
        } else {
            let at = self.choices.below(SEEDS_MAX as u64) as usize;
            self.seeds[at] = bytes.to_vec();
        }
    }

    /// The application on the fuzzed stack: echoes, and closes now and then.
    #[expect(clippy::expect_used, reason = "what fails here is what is looked for")]
    fn serve(&mut self) {
        self.stack.process_staged();
        while let Some(session) = self.stack.accept(self.listener).expect("listens") {
            self.sessions.push(session);
        }
        let close = self.choices.below(64) as usize;
        let mut at = 0;
        while at < self.sessions.len() {
            let session = self.sessions[at];
            let read = self.stack.read(session, &mut self.scratch);
            let readiness = self.stack.readiness(session).expect("open");
            if let Ok(count @ 1..) = read {
                let _ = self.stack.write(session, &self.scratch[..count]);
            }
            self.stack.info(session).expect("open");
            if readiness.is_closed() || readiness.end_of_input() || at == close {
                self.stack.close(session).expect("open");
                self.sessions.swap_remove(at);
            } else {
                at += 1;
            }
        }
        let datagram = self.stack.receive_from(self.udp, &mut self.scratch);
        if let Ok(Some((from, _, len))) = datagram {
            let len = len.min(self.scratch.len());
            let _ = self.stack.send_to(self.udp, from, &self.scratch[..len]);
        }
        while self.stack.next_event().is_some() {}
    }

    /// The stack's counters, so that a run can show how far its inputs got.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.stack.counters()
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target after {} inputs", self.inputs)
    }
}

/// Steps that one input may have.
const STEPS_MAX: usize = 64;

/// Plays the decisions in `bytes`: honest traffic, mutated and written frames, time, an
/// application. The target's memory is kept from one call to the next, because making one takes
/// longer than most inputs; everything follows from `bytes`.
///
/// # Panics
/// When an invariant is broken, whatever comes in.
pub fn fuzz_stack(bytes: &[u8]) {
    thread_local! {
        static KEPT: Cell<Option<Box<Target>>> = const { Cell::new(None) };
    }
    // Where this panics the target is dropped, too: the next input begins with another.
    let mut target = KEPT.take().unwrap_or_else(|| Box::new(Target::new(1)));
    target.play(Choices::of(bytes));
    target.end();
    KEPT.set(Some(target));
}

/// Configuration of the stack with this number.
fn config(seed: u64, number: u8) -> Config {
    let address = |address| Cidr {
        address,
        prefix_bits: if matches!(address, IpAddr::V4(_)) {
            24
        } else {
            64
        },
    };
    Config {
        addresses: vec![
            address(IpAddr::from([10, 0, 0, number])),
            address(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)])),
        ],
        autoconfigure: true,
        seed: seed ^ u64::from(number) << 56,
        sessions_max: SESSIONS,
        buffers_bytes: 64 << 20,
        send_bytes: 64 << 10,
        receive_bytes: 64 << 10,
        window_scale: 2,
        ..Config::default()
    }
}

fn nic(number: u8) -> Capabilities {
    Capabilities::plain([2, 0, 0, 0, 0, number], 1500)
}

/// Opens the sockets that every input may use: a listener, a socket, a group.
#[expect(clippy::expect_used, reason = "a broken set-up is to be seen at once")]
fn open(stack: &mut Stack) -> (ListenerId, UdpId) {
    let group = IpAddr::from([224, 0, 0, 99]);
    stack.join(group).expect("a group");
    let listener = stack.listen(any_address(), 8).expect("a listener");
    (listener, stack.bind_udp(any_address()).expect("a socket"))
}

fn any_address() -> SocketAddr {
    SocketAddr::from(([0_u16; 8], 80))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_gets_behind_the_checksums() {
        let mut target = Target::new(1);
        for _ in 0..20_000 {
            target.input();
        }
        let counters = target.counters();
        assert!(counters.opened > 50, "{counters:?}");
        assert!(counters.unacceptable > 50, "{counters:?}");
        assert!(counters.bad_checksums > 100, "{counters:?}");
        assert!(counters.packets_reassembled > 50, "{counters:?}");
        assert!(counters.reassemblies_refused > 100, "{counters:?}");
        assert!(counters.fragments_sent > 50, "{counters:?}");
    }

    /// The effect of an input does not depend on earlier ones.
    #[test]
    fn played_inputs_leave_nothing() {
        let mut random = Choices::seeded(5);
        let inputs: Vec<Vec<u8>> = (0..200).map(|_| random.take(600)).collect();
        let mut kept = Target::new(1);
        for input in &inputs {
            let mut fresh = Target::new(1);
            let [again, first] = [&mut kept, &mut fresh].map(|target| {
                target.play(Choices::of(input));
                let counters = [target.stack.counters(), target.peer.counters()];
                target.end();
                format!("{counters:?}")
            });
            assert_eq!(again, first);
        }
    }
}
