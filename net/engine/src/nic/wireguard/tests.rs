//! Tunnels between NICs of this process, over sockets of the loopback.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use super::*;
use sidecore_net_stack::wire::arp::{Arp, Operation};
use sidecore_random::SplitMix;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const ADDRESS: Mac = [2, 0x51, 0, 0, 0, 7];
const PATIENCE: Duration = Duration::from_secs(60);

/// The key pair of an end, from its number.
fn keys(number: u8) -> (Zeroizing<[u8; 32]>, [u8; 32]) {
    let private_key = [number; 32];
    let public_key = PublicKey::from(&StaticSecret::from(private_key));
    (Zeroizing::new(private_key), public_key.to_bytes())
}

/// `10.0.0.NUMBER` and `fd00::NUMBER`.
fn addresses(number: u8) -> [IpAddr; 2] {
    let mut long = [0; 16];
    (long[0], long[15]) = (0xfd, number);
    [IpAddr::from([10, 0, 0, number]), IpAddr::from(long)]
}

/// The end with this number as a peer, its two addresses behind it.
fn peer(number: u8, endpoint: Option<SocketAddr>) -> PeerOptions {
    let allowed = addresses(number).map(|address| Cidr {
        address,
        prefix_bits: if address.is_ipv4() { 32 } else { 128 },
    });
    PeerOptions {
        public_key: keys(number).1,
        preshared_key: Some(Zeroizing::new([9; 32])),
        endpoint,
        allowed: allowed.to_vec(),
        keepalive_s: None,
    }
}

fn open(number: u8, listen: &str, peers: Vec<PeerOptions>) -> Wireguard {
    let options = WireguardOptions {
        name: "wg".to_owned(),
        private_key: keys(number).0,
        listen: listen.parse().unwrap(),
        address: ADDRESS,
        mtu_bytes: 1420,
        peers,
    };
    Wireguard::open(&options).unwrap()
}

/// The ends 1 and 2; the second knows where the first is.
fn pair() -> (Wireguard, Wireguard) {
    let one = open(1, "127.0.0.1:0", vec![peer(2, None), peer(3, None)]);
    let at = one.local_address().unwrap();
    let two = open(2, "127.0.0.1:0", vec![peer(1, Some(at))]);
    (one, two)
}

/// A frame with a packet of `len` bytes of payload from one address to another.
fn frame(source: IpAddr, destination: IpAddr, len: usize) -> Vec<u8> {
    let (source, destination) = (Ip::from(source), Ip::from(destination));
    let kind = ethernet::kind_of(&source);
    let mut frame = Ethernet::new(PEER_ADDRESS, ADDRESS, kind)
        .to_bytes()
        .to_vec();
    let mut header = vec![0; ip::header_bytes(&source)];
    ip::write(&mut header, &source, &destination, 253, 64, len);
    frame.extend(header);
    frame.extend((0..len).map(|at| at.to_le_bytes()[0]));
    frame
}

fn send(nic: &mut Wireguard, frame: &[u8]) {
    let frame = Outgoing {
        header: frame,
        payload: [&[], &[]],
        checksum: TransmitChecksum::Complete,
        segment_bytes: None,
    };
    assert!(nic.transmit(&frame).unwrap());
    nic.flush().unwrap();
}

/// A round of a NIC; what it passes on.
fn round(nic: &mut Wireguard) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let count = nic.receive(64, &mut |frame| frames.push(frame.bytes.to_vec()));
    nic.flush().unwrap();
    assert_eq!(count.unwrap(), frames.len());
    frames
}

/// Rounds of both until the first has this many frames.
fn await_frames(nic: &mut Wireguard, other: &mut Wireguard, count: usize) -> Vec<Vec<u8>> {
    let (begun, mut frames) = (Instant::now(), Vec::new());
    while frames.len() < count {
        assert!(begun.elapsed() < PATIENCE, "{} of {count}", frames.len());
        frames.extend(round(nic));
        assert!(round(other).is_empty());
    }
    frames
}

/// The packet of a frame, without the link's header.
fn packet(frame: &[u8]) -> &[u8] {
    &frame[ethernet::HEADER_BYTES..]
}

#[test]
fn packets_cross_both_ways_and_in_both_families() {
    let (mut one, mut two) = pair();
    for (first, second) in addresses(1).into_iter().zip(addresses(2)) {
        for len in [0, 1, 100, 1360] {
            // The first of them waits for the handshake.
            let there = frame(second, first, len);
            send(&mut two, &there);
            let came = await_frames(&mut one, &mut two, 1);
            assert_eq!(packet(&came[0]), packet(&there));
            assert!(came[0].starts_with(&ADDRESS));
            let back = frame(first, second, len);
            send(&mut one, &back);
            let came = await_frames(&mut two, &mut one, 1);
            assert_eq!(packet(&came[0]), packet(&back));
        }
    }
    let report = one.report().unwrap();
    assert_eq!(report.kind, "wireguard");
    let [peer, silent] = &report.peers[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        peer.endpoint,
        Some(two.local_address().unwrap().to_string())
    );
    assert!(peer.handshake_age_s.is_some_and(|age| age < 60));
    assert!(peer.rx_bytes > 2 * 1360 && peer.tx_bytes > 2 * 1360);
    assert_eq!(peer.allowed, ["10.0.0.2/32", "fd00::2/128"]);
    assert_eq!((peer.dropped, silent.handshake_age_s), (0, None));
    assert_eq!(peer.public_key, STANDARD.encode(keys(2).1));
}

#[test]
fn many_packets_wait_for_the_handshake_and_keep_their_order() {
    let (mut one, mut two) = pair();
    let frames: Vec<_> = (0..100)
        .map(|len| frame(addresses(2)[0], addresses(1)[0], len))
        .collect();
    for frame in &frames {
        send(&mut two, frame);
    }
    let came = await_frames(&mut one, &mut two, 100);
    assert!(
        came.iter()
            .zip(&frames)
            .all(|(one, other)| packet(one) == packet(other))
    );
}

#[test]
fn a_source_of_another_is_dropped() {
    let (mut one, mut two) = pair();
    for source in [addresses(3), addresses(9)].concat() {
        let to = addresses(1)[usize::from(source.is_ipv6())];
        send(&mut two, &frame(source, to, 10));
    }
    let right = frame(addresses(2)[0], addresses(1)[0], 10);
    send(&mut two, &right);
    let came = await_frames(&mut one, &mut two, 1);
    assert_eq!(packet(&came[0]), packet(&right));
    assert_eq!(one.report().unwrap().peers[0].dropped, 4);
    // Nor does anything leave to where no peer is.
    send(&mut one, &frame(addresses(1)[0], addresses(9)[0], 10));
    assert_eq!(one.report().unwrap().dropped, 1);
    send(&mut one, &frame(addresses(1)[0], addresses(3)[0], 10));
    assert_eq!(
        one.report().unwrap().peers[1].dropped,
        1,
        "it has no endpoint yet"
    );
}

#[test]
fn an_unknown_peer_and_a_wrong_shared_secret_get_no_session() {
    let (mut one, _) = pair();
    let at = one.local_address().unwrap();
    let mut wrong = peer(1, Some(at));
    wrong.preshared_key = None;
    for mut other in [
        open(4, "127.0.0.1:0", vec![peer(1, Some(at))]),
        open(2, "127.0.0.1:0", vec![wrong]),
    ] {
        let dropped = |one: &Wireguard| {
            let report = one.report().unwrap();
            report.dropped + report.peers[0].dropped
        };
        let before = dropped(&one);
        send(&mut other, &frame(addresses(2)[0], addresses(1)[0], 10));
        let begun = Instant::now();
        // An unknown key ends at this end, a wrong secret at the other.
        while dropped(&one) + other.report().unwrap().peers[0].dropped == before {
            assert!(begun.elapsed() < PATIENCE);
            assert!(round(&mut one).is_empty() && round(&mut other).is_empty());
        }
        assert_eq!(other.report().unwrap().peers[0].handshake_age_s, None);
    }
}

#[test]
fn an_endpoint_follows_its_peer() {
    let (mut one, mut two) = pair();
    let there = frame(addresses(2)[0], addresses(1)[0], 10);
    send(&mut two, &there);
    await_frames(&mut one, &mut two, 1);
    // Another network, another port.
    let moved = UdpSocket::bind("127.0.0.1:0").unwrap();
    moved.set_nonblocking(true).unwrap();
    let old = std::mem::replace(&mut two.outbox.socket, moved);
    send(&mut two, &there);
    await_frames(&mut one, &mut two, 1);
    let endpoint = one.report().unwrap().peers[0].endpoint.clone();
    assert_eq!(endpoint, Some(two.local_address().unwrap().to_string()));
    send(&mut one, &frame(addresses(1)[0], addresses(2)[0], 10));
    await_frames(&mut two, &mut one, 1);
    // What is not authenticated moves nothing.
    let mut forged = [9; 100];
    forged[..8].copy_from_slice(&[DATA, 0, 0, 0, 1, 0, 0, 0]);
    old.send_to(&forged, one.local_address().unwrap()).unwrap();
    let begun = Instant::now();
    while one.report().unwrap().peers[0].dropped == 0 {
        assert!(begun.elapsed() < PATIENCE);
        round(&mut one);
    }
    assert_eq!(one.report().unwrap().peers[0].endpoint, endpoint);
}

/// The end 2 whose datagrams to the end 1 pass by a socket of the test.
struct Tapped {
    one: Wireguard,
    two: Wireguard,
    wire: UdpSocket,
}

impl Wireguard {
    /// As if a datagram had been read from the socket.
    fn sort_bytes(&mut self, datagram: &[u8], from: SocketAddr) {
        self.slots[..datagram.len()].copy_from_slice(datagram);
        self.sort(0, datagram.len(), from);
    }
}

impl Tapped {
    /// With a session.
    fn new() -> Self {
        let wire = UdpSocket::bind("127.0.0.1:0").unwrap();
        wire.set_nonblocking(true).unwrap();
        let one = open(1, "127.0.0.1:0", vec![peer(2, None), peer(3, None)]);
        let at = wire.local_addr().unwrap();
        let mut this = Self {
            one,
            two: open(2, "127.0.0.1:0", vec![peer(1, Some(at))]),
            wire,
        };
        send(&mut this.two, &frame(addresses(2)[0], addresses(1)[0], 10));
        let begun = Instant::now();
        while round(&mut this.one).is_empty() {
            assert!(begun.elapsed() < PATIENCE);
            this.pass();
            round(&mut this.two);
        }
        this
    }

    /// Passes on what waits, in both directions; the last datagram from the end 2.
    fn pass(&self) -> Option<Vec<u8>> {
        let [one, two] = [&self.one, &self.two].map(|end| end.local_address().unwrap());
        let (mut buffer, mut last) = ([0; 2048], None);
        while let Ok((length, from)) = self.wire.recv_from(&mut buffer) {
            let to = if from == one { two } else { one };
            self.wire.send_to(&buffer[..length], to).unwrap();
            if from == two {
                last = Some(buffer[..length].to_vec());
            }
        }
        last
    }

    /// A datagram with a packet of the end 2 that has just been sent, and has passed.
    fn datagram(&mut self, len: usize) -> Vec<u8> {
        send(&mut self.two, &frame(addresses(2)[0], addresses(1)[0], len));
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE);
            if let Some(datagram) = self.pass() {
                return datagram;
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.one.report().unwrap().peers[0].dropped
    }

    /// Rounds until the end 1 has dropped something; no frame comes meanwhile.
    fn await_drop(&mut self) {
        let (begun, before) = (Instant::now(), self.dropped());
        while self.dropped() == before {
            assert!(begun.elapsed() < PATIENCE);
            assert!(round(&mut self.one).is_empty());
        }
    }
}

#[test]
fn a_replayed_or_damaged_datagram_is_dropped() {
    let mut tapped = Tapped::new();
    let mut datagram = tapped.datagram(50);
    let begun = Instant::now();
    while round(&mut tapped.one).is_empty() {
        assert!(begun.elapsed() < PATIENCE);
    }
    let to = tapped.one.local_address().unwrap();
    tapped.wire.send_to(&datagram, to).unwrap();
    tapped.await_drop();
    // Its counter is a new one then, and the tag is wrong.
    datagram[8] = datagram[8].wrapping_add(40);
    tapped.wire.send_to(&datagram, to).unwrap();
    tapped.await_drop();
    assert_eq!(tapped.dropped(), 2);
}

#[test]
fn a_flood_costs_only_its_peer() {
    let mut tapped = Tapped::new();
    let datagram = tapped.datagram(50);
    let begun = Instant::now();
    while round(&mut tapped.one).is_empty() {
        assert!(begun.elapsed() < PATIENCE);
    }
    let from = SocketAddr::from(([127, 0, 0, 1], 9));
    // As if read from the socket: more than the queue of the peer has room for.
    for _ in 0..WAITING_MAX + 50 {
        tapped.one.sort_bytes(&datagram, from);
    }
    assert_eq!(tapped.dropped(), 50);
    assert!(!tapped.one.arm().unwrap(), "datagrams wait");
    assert_eq!(tapped.one.peers[0].waiting.len(), WAITING_MAX);
    // The other peer's handshake and packets are not held up.
    let at = tapped.one.local_address().unwrap();
    let mut three = open(3, "127.0.0.1:0", vec![peer(1, Some(at))]);
    let there = frame(addresses(3)[0], addresses(1)[0], 20);
    send(&mut three, &there);
    let came = await_frames(&mut tapped.one, &mut three, 1);
    assert_eq!(packet(&came[0]), packet(&there));
    assert_eq!(tapped.one.report().unwrap().peers[1].dropped, 0);
}

#[test]
fn a_path_that_is_kept_open_is_opened_without_data() {
    let mut one = open(1, "127.0.0.1:0", vec![peer(2, None)]);
    let mut first = peer(1, Some(one.local_address().unwrap()));
    first.keepalive_s = Some(25);
    let mut two = open(2, "127.0.0.1:0", vec![first]);
    let begun = Instant::now();
    while one.report().unwrap().peers[0].handshake_age_s.is_none() {
        assert!(begun.elapsed() < PATIENCE);
        assert!(round(&mut one).is_empty() && round(&mut two).is_empty());
    }
}

#[test]
fn under_load_an_address_must_be_proved() {
    let mut tapped = Tapped::new();
    let at = tapped.wire.local_addr().ok();
    let mut three = open(3, "127.0.0.1:0", vec![peer(1, at)]);
    send(&mut three, &frame(addresses(3)[0], addresses(1)[0], 20));
    let mut init = [0; HANDSHAKE_BYTES_MAX];
    let begun = Instant::now();
    while !matches!(tapped.wire.recv(&mut init), Ok(HANDSHAKE_BYTES_MAX)) {
        assert!(begun.elapsed() < PATIENCE);
    }
    // More than a second may have: the answers to the last are requests for a cookie.
    let to = three.local_address().unwrap();
    for _ in 0..2 * HANDSHAKES_A_SECOND {
        tapped.one.sort_bytes(&init, to);
    }
    tapped.one.flush().unwrap();
    let mut answer = [0; 256];
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE);
        let Ok(length) = three.outbox.socket.recv(&mut answer) else {
            continue;
        };
        if (length, answer[0]) == (COOKIE_REPLY_BYTES, COOKIE_REPLY) {
            break;
        }
    }
    assert_ne!(tapped.one.peers[1].endpoint, None, "the first was answered");
}

#[test]
fn the_stacks_questions_are_answered_and_groups_go_nowhere() {
    let (mut one, _) = pair();
    let asked = Arp {
        operation: Operation::Request,
        sender_mac: ADDRESS,
        sender: [10, 0, 0, 1],
        target_mac: [0; 6],
        target: [10, 0, 0, 77],
    };
    let header = Ethernet::new([0xff; 6], ADDRESS, ethernet::ARP).to_bytes();
    assert!(one.arm().unwrap());
    send(&mut one, &[&header[..], &asked.to_bytes()].concat());
    assert!(!one.arm().unwrap());
    let answers = round(&mut one);
    assert_eq!(answers.len(), 1);
    let answer = Arp::parse(packet(&answers[0])).unwrap();
    assert_eq!(
        (answer.sender, answer.sender_mac),
        (asked.target, PEER_ADDRESS)
    );
    for group in [IpAddr::from([224, 0, 0, 1]), IpAddr::from([0xff; 16])] {
        let source = addresses(1)[usize::from(group.is_ipv6())];
        send(&mut one, &frame(source, group, 10));
    }
    send(
        &mut one,
        &frame(addresses(1)[0], addresses(2)[0], 1420 - 20 + 5),
    );
    assert_eq!(one.report().unwrap().dropped, 0);
    assert!(round(&mut one).is_empty());
}

#[test]
fn any_datagram_is_refused() {
    let (mut one, _) = pair();
    let mut random = SplitMix::new(5);
    let from = SocketAddr::from(([192, 0, 2, 1], 1));
    for number in 0..2000_usize {
        let length = [0, 1, 4, 32, 64, 92, 148, 149, 1400][number % 9];
        let slot = &mut one.slots[..length];
        slot.fill_with(|| random.bits().to_le_bytes()[0]);
        if length >= 4 {
            slot[..4].copy_from_slice(&[random.bits().to_le_bytes()[0] % 6, 0, 0, 0]);
        }
        if length >= 12 {
            // Receivers that exist, half of the time.
            slot[5..8].copy_from_slice(&[(number % 2) as u8, 0, 0]);
        }
        one.sort(0, length, from);
        assert!(round(&mut one).is_empty());
    }
    let report = one.report().unwrap();
    assert!(report.peers.iter().all(|peer| peer.endpoint.is_none()));
    let all = report.dropped + report.peers.iter().map(|peer| peer.dropped).sum::<u64>();
    assert!(all >= 1900, "{all}");
}

#[test]
fn what_cannot_be_opened_is_refused() {
    let refused = |mtu_bytes, listen: SocketAddr, peers| {
        let options = WireguardOptions {
            name: "wg".to_owned(),
            private_key: keys(1).0,
            listen,
            address: ADDRESS,
            mtu_bytes,
            peers,
        };
        let refused = Wireguard::open(&options).err();
        refused.map_or(String::new(), |error| error.to_string())
    };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    assert!(refused(1279, any, Vec::new()).contains("1280 to 9000"));
    assert!(refused(1420, any, vec![peer(2, None), peer(2, None)]).contains("two peers"));
    let (one, _) = pair();
    let taken = refused(1420, one.local_address().unwrap(), Vec::new());
    assert!(taken.contains("nic.listen_port"), "{taken}");
    assert_eq!(refused(1420, any, Vec::new()), "");
}

#[test]
fn a_socket_of_both_families_has_peers_of_ipv4() {
    let Ok(_) = UdpSocket::bind("[::]:0") else {
        return; // A machine without IPv6.
    };
    let mut one = open(1, "[::]:0", vec![peer(2, None)]);
    let at = SocketAddr::from(([127, 0, 0, 1], one.local_address().unwrap().port()));
    let mut two = open(2, "[::]:0", vec![peer(1, Some(at))]);
    send(&mut two, &frame(addresses(2)[0], addresses(1)[0], 10));
    await_frames(&mut one, &mut two, 1);
    let endpoint = one.report().unwrap().peers[0].endpoint.clone().unwrap();
    assert!(endpoint.starts_with("127.0.0.1:"), "{endpoint}");
}
