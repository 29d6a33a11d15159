//! A stack whose input is built manually: fragmented packets of either family.
#![allow(dead_code, missing_docs, unreachable_pub)] // each test file uses its part

use crate::common::{Frame, Random, S, config, plain};
use sidecore_net_stack::frame::{Received, ReceivedChecksum};
use sidecore_net_stack::{Stack, UdpId};

pub const UDP: u8 = 17;
pub const TCP: u8 = 6;

/// A fragment of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub identification: u32,
    pub offset: usize,
    pub more: bool,
    pub protocol: u8,
    pub bytes: Vec<u8>,
}

impl Piece {
    pub fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }
}

/// Cuts the payload of a packet.
pub fn cut(identification: u32, protocol: u8, whole: &[u8], each: usize) -> Vec<Piece> {
    let count = whole.len().div_ceil(each);
    let pieces = whole.chunks(each).enumerate();
    let piece = |(number, bytes): (usize, &[u8])| Piece {
        identification,
        offset: number * each,
        more: number + 1 < count,
        protocol,
        bytes: bytes.to_vec(),
    };
    pieces.map(piece).collect()
}

/// Two of one address, the last of which is `number`.
fn address(v4: bool, number: u8) -> Vec<u8> {
    if v4 {
        vec![10, 0, 0, number]
    } else {
        let mut address = vec![0xfd; 1];
        address.resize(15, 0);
        address.push(number);
        address
    }
}

fn ends(v4: bool, from: u8) -> Vec<u8> {
    [address(v4, from), address(v4, 1)].concat()
}

/// 16-bit words, summed and folded.
fn folded(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u32 = words.map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A datagram to port 80 with its checksum, as a packet carries it.
pub fn datagram(v4: bool, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len() as u16;
    let mut bytes = [4000_u16, 80, len, 0].map(u16::to_be_bytes).concat();
    bytes.extend_from_slice(payload);
    let sum = checksum(v4, UDP, &bytes);
    bytes[6..8].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Over a pseudo-header.
pub fn checksum(v4: bool, protocol: u8, bytes: &[u8]) -> u16 {
    let mut all = ends(v4, 2);
    all.extend_from_slice(&[0, protocol]);
    all.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    all.extend_from_slice(bytes);
    // RFC 768: zero would mean no checksum.
    match !folded(&all) {
        0 => 0xffff,
        sum => sum,
    }
}

/// An echo request of `len` bytes.
pub fn echo(v4: bool, len: usize) -> Vec<u8> {
    let mut bytes = vec![if v4 { 8 } else { 128 }, 0, 0, 0, 0, 7, 0, 1];
    bytes.extend((0..len).map(|at| at as u8));
    let sum = if v4 {
        !folded(&bytes)
    } else {
        checksum(v4, 58, &bytes)
    };
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// A fragment's frame, from the host with this number.
pub fn frame(v4: bool, from: u8, piece: &Piece) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, from];
    let place = (piece.offset / 8) as u16;
    if v4 {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + piece.bytes.len() as u16).to_be_bytes());
        frame.extend((piece.identification as u16).to_be_bytes());
        frame.extend((place | u16::from(piece.more) << 13).to_be_bytes());
        frame.extend([64, piece.protocol, 0, 0]);
        frame.extend(ends(v4, from));
        let sum = !folded(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((8 + piece.bytes.len() as u16).to_be_bytes());
        frame.extend([44, 64]);
        frame.extend(ends(v4, from));
        frame.extend([piece.protocol, 0]);
        frame.extend((place << 3 | u16::from(piece.more)).to_be_bytes());
        frame.extend(piece.identification.to_be_bytes());
    }
    frame.extend_from_slice(&piece.bytes);
    frame
}

/// The fragment in a frame.
pub fn read(frame: &[u8]) -> Option<Piece> {
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if frame[12..14] == [8, 0] {
        let field = half(20);
        assert_eq!(folded(&frame[14..34]), 0xffff, "the header's checksum");
        (field & 0x3fff != 0).then(|| {
            assert_eq!(field & 0x4000, 0, "it may be cut again");
            assert_eq!(frame.len(), 14 + usize::from(half(16)));
            Piece {
                identification: half(18).into(),
                offset: usize::from(field & 0x1fff) * 8,
                more: field & 0x2000 != 0,
                protocol: frame[23],
                bytes: frame[34..].to_vec(),
            }
        })
    } else {
        (frame[20] == 44).then(|| {
            assert_eq!(frame.len(), 54 + usize::from(half(18)));
            Piece {
                identification: u32::from_be_bytes(frame[58..62].try_into().expect("four")),
                offset: usize::from(half(56) & !7),
                more: frame[57] & 1 != 0,
                protocol: frame[54],
                bytes: frame[62..].to_vec(),
            }
        })
    }
}

/// Payload of a packet, joined from pieces in order.
pub fn join(pieces: &[Piece]) -> Vec<u8> {
    let mut whole = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        assert_eq!(piece.offset, whole.len());
        assert_eq!(piece.more, at + 1 < pieces.len());
        assert_eq!(piece.identification, pieces[0].identification);
        whole.extend_from_slice(&piece.bytes);
    }
    whole
}

/// A fragmented datagram as from a bad network or a hostile sender.
#[derive(Debug)]
pub struct Jumble {
    pub v4: bool,
    /// Payload; its first four bytes are the identification, unique to the packet.
    pub sent: Vec<u8>,
    pub pieces: Vec<Piece>,
    /// True if no two fragments contradict each other.
    pub honest: bool,
}

impl Jumble {
    pub fn new(random: &mut Random, identification: u32) -> Self {
        let v4 = random.happens(500_000);
        let len = 100 + random.below(9000) as usize;
        let mut sent: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
        sent[..4].copy_from_slice(&identification.to_be_bytes());
        let packet = datagram(v4, &sent);
        let units = packet.len().div_ceil(8) as u64 / 2;
        let each = 8 * (1 + random.below(units.min(180)) as usize);
        let mut pieces = cut(identification, UDP, &packet, each.max(40));
        // Fewer than all: otherwise it may be delivered twice, as without fragmentation.
        for _ in 0..random.below(4).min(pieces.len() as u64 - 1) {
            let again = pieces[random.below(pieces.len() as u64) as usize].clone();
            pieces.push(again);
        }
        let mut honest = true;
        if random.happens(300_000) {
            let place = random.below(pieces.len() as u64) as usize;
            let (other, is_honest) = contradict(random, &packet, &pieces[place]);
            pieces.push(other);
            honest = is_honest;
        }
        for at in (1..pieces.len()).rev() {
            pieces.swap(at, random.below(at as u64 + 1) as usize);
        }
        Self {
            v4,
            sent,
            pieces,
            honest,
        }
    }
}

/// A fragment that contradicts this one; or does not, after all, at the end of the packet.
fn contradict(random: &mut Random, packet: &[u8], piece: &Piece) -> (Piece, bool) {
    let mut other = piece.clone();
    match random.below(3) {
        // Overlapping the next one.
        0 if other.more => {
            let end = (other.end() + 8).min(packet.len() / 8 * 8);
            let honest = end <= other.end();
            other.bytes = packet[other.offset..end.max(other.end())].to_vec();
            (other, honest)
        }
        // Other bytes at the same offset.
        1 => {
            let at = random.below(other.bytes.len() as u64) as usize;
            other.bytes[at] ^= 1;
            (other, false)
        }
        // Beyond the fragment that is marked as the last.
        _ => {
            other.offset = packet.len().next_multiple_of(8);
            (other, false)
        }
    }
}

/// A stack at 10.0.0.1 and fd00::1 with a socket at port 80.
pub struct Target {
    pub stack: Stack,
    pub udp: UdpId,
    pub now_ns: u64,
    pub out: Vec<Vec<u8>>,
}

impl Target {
    pub fn new() -> Self {
        let mut stack = Stack::new(config(1, 5), &plain(1)).expect("a stack");
        let udp = stack
            .bind_udp("[::]:80".parse().expect("an address"))
            .expect("binds");
        let mut target = Self {
            stack,
            udp,
            now_ns: 10 * S,
            out: Vec::new(),
        };
        target.flush();
        target.out.clear();
        target
    }

    /// Passes a frame in, and handles the effects.
    pub fn put(&mut self, mut bytes: Vec<u8>) {
        let received = Received {
            bytes: &mut bytes,
            checksum: ReceivedChecksum::Unknown,
            segment_bytes: None,
        };
        self.stack.receive(self.now_ns, received);
        self.flush();
    }

    pub fn flush(&mut self) {
        let out = &mut self.out;
        self.stack.transmit(self.now_ns, &mut |frame| {
            out.push(Frame::of(frame).bytes);
            true
        });
    }

    /// Lets time pass, and runs the timers.
    pub fn wait(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while let Some(at) = self.stack.next_timer().filter(|&at| at <= until) {
            self.now_ns = at.max(self.now_ns + 1);
            self.flush();
        }
        self.now_ns = until;
        self.flush();
    }

    /// The next datagram's payload.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 70_000];
        let got = self.stack.receive_from(self.udp, &mut bytes).expect("open");
        got.map(|(_, _, len)| bytes[..len].to_vec())
    }
}
