//! Conformance of every NIC. Needs root and /dev/net/tun: interfaces are created in the test's own
//! network namespace.
//!
//! One suite, run with each NIC as the near end. The far end is another NIC on the same wire, so
//! that both are tested in both directions.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::namespace;

use namespace::{in_namespace, veth};
use sidecore_net::nic::bond::{Bond, BondMode, BondOptions};
use sidecore_net::nic::middleware::{Clock, Delay, Impaired, Trace};
use sidecore_net::nic::packet::{Packet, PacketOptions};
use sidecore_net::nic::pair::{self, PairOptions};
use sidecore_net::nic::tap::{Tap, TapOptions};
use sidecore_net::nic::vlan::Vlan;
use sidecore_net::nic::xdp::{Mode, Xdp, XdpOptions};
use sidecore_net::nic::{Nic, Outgoing, ReceivedChecksum, TransmitChecksum};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

#[test]
fn pair_without_offload() {
    let (near, far) = pair::link(&PairOptions::default()).unwrap();
    conform(near, far);
}

#[test]
fn pair_with_super_segments() {
    let options = PairOptions {
        offload: true,
        ring_bytes: 128 << 10,
        ..PairOptions::default()
    };
    let (near, far) = pair::link(&options).unwrap();
    conform(near, far);
}

#[test]
fn pair_behind_middleware() {
    let (near, far) = pair::link(&PairOptions::default()).unwrap();
    let near = Impaired::new(near, Delay::new(1, 0, 0), Clock::default());
    let near = Trace::new(near, Clock::default(), std::io::sink(), 96).unwrap();
    conform(near, far);
}

/// Both ends in one VLAN, with and without offloads.
#[test]
fn pair_in_a_vlan() {
    for offload in [false, true] {
        let options = PairOptions {
            offload,
            ..PairOptions::default()
        };
        let (near, far) = pair::link(&options).unwrap();
        let in_vlan = |nic| Vlan::new(nic, 7, 3).unwrap();
        conform(in_vlan(near), in_vlan(far));
    }
}

/// Two links between two bonds, of which the first is in use.
#[test]
fn bond_of_pairs() {
    let [(one, far_one), (two, far_two)] =
        [(); 2].map(|()| pair::link(&PairOptions::default()).unwrap());
    let bond = |links: [pair::Pair; 2], last| {
        let options = BondOptions {
            mode: BondMode::Backup,
            address: [2, 0x51, 0, 0, 0, last],
            own: Vec::new(),
            probes: Vec::new(),
            clock: None,
        };
        let links = links.into_iter().map(|link| (link, "link".to_owned()));
        Bond::new(links.collect(), &options).unwrap()
    };
    conform(bond([one, two], 0x10), bond([far_one, far_two], 0x20));
}

#[test]
fn others_read_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.pcap");
    let (near, mut far) = pair::link(&PairOptions::default()).unwrap();
    let clock = Clock::default();
    clock.set_ns(1_500_000_000);
    let file = std::fs::File::create(&path).unwrap();
    let mut near = Trace::new(near, clock, file, 65_535).unwrap();
    let (header, _) = segment(false, b"a whole segment", true);
    send(&mut near, &header, [b"a whole", b" segment"]);
    send(&mut far, &plain(1, 60), [&[], &[]]);
    receive_plain(&mut near, 1);
    near.finish().unwrap();
    let fields = "-T fields -e frame.time_epoch -e eth.type -e tcp.srcport -e tcp.len";
    let said = namespace::run("tshark", &format!("-r {} {fields}", path.display()));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].starts_with("1.5") && lines[0].contains("0x0800"),
        "{said}"
    );
    assert!(lines[0].ends_with("4660\t15"), "{said}");
    assert!(lines[1].contains("0x88b5"), "{said}");
}

#[test]
fn tap() {
    in_namespace(|| {
        for offload in [true, false] {
            let near = Tap::open(&TapOptions {
                name: "sidecore0".to_owned(),
                offload,
                ..TapOptions::default()
            })
            .unwrap();
            let far = packet("sidecore0", offload);
            conform(near, far);
            // The name is reused at once: opening waits while the kernel is still busy.
        }
    });
}

#[test]
fn packet_socket() {
    in_namespace(|| {
        veth("near", "far");
        conform(packet("near", true), packet("far", true));
        conform(packet("near", false), packet("far", false));
    });
}

#[test]
fn xdp() {
    in_namespace(|| {
        for mode in [Mode::Generic, Mode::Native] {
            veth("near", "far");
            // Otherwise the far end's kernel leaves checksums incomplete without reporting it.
            namespace::run("ethtool", "-K far tx off");
            let near = Xdp::open(&XdpOptions {
                name: "near".to_owned(),
                queue: 0,
                mode,
                address: None,
                checksum: ReceivedChecksum::Unknown,
            })
            .unwrap();
            conform(near, packet("far", false));
            namespace::ip("link del near");
        }
    });
}

#[test]
fn a_shield_keeps_the_kernel_out_and_goes_with_the_nic() {
    in_namespace(|| {
        veth("near", "far");
        // The kernel replies for its own address, unless it receives nothing.
        namespace::ip("addr add 192.0.2.1/24 dev near");
        for shield in [false, true, false] {
            let near = Packet::open(&PacketOptions {
                shield,
                ..options("near", true)
            })
            .unwrap();
            let (mut near, mut far) = (near, packet("far", true));
            send(&mut far, &arp_request(), [&[], &[]]);
            if shield {
                refuse_answer(&mut near, &mut far);
            } else {
                await_answer(&mut far);
            }
            conform(near, far);
        }
    });
}

/// An ARP request for 192.0.2.1.
fn arp_request() -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[8, 6]].concat();
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 192, 0, 2, 9]);
    frame.extend([0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
    frame
}

fn is_answer(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 6]) && frame[21] == 2
}

/// Waits for an ARP reply.
fn await_answer(nic: &mut dyn Nic) {
    let begun = Instant::now();
    let mut answered = false;
    while !answered {
        assert!(begun.elapsed() < PATIENCE, "the kernel does not answer");
        nic.receive(32, &mut |frame| answered |= is_answer(frame.bytes))
            .unwrap();
    }
}

/// No ARP reply arrives before a frame that follows the request there and back.
fn refuse_answer(near: &mut dyn Nic, far: &mut dyn Nic) {
    send(far, &plain(4, 100), [&[], &[]]);
    assert_eq!(receive_plain(near, 1), [plain(4, 100)]);
    send(near, &plain(5, 100), [&[], &[]]);
    let begun = Instant::now();
    let mut back = false;
    while !back {
        assert!(begun.elapsed() < PATIENCE, "nothing comes back");
        far.receive(32, &mut |frame| {
            assert!(!is_answer(frame.bytes), "the kernel heard the question");
            back |= is_plain(frame.bytes);
        })
        .unwrap();
    }
}

#[test]
fn what_cannot_be_opened_says_what_to_do() {
    in_namespace(|| {
        let error = Packet::open(&options("none", true))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no interface `none`"), "{error}");
        let taken = TapOptions {
            name: "lo".to_owned(),
            ..TapOptions::default()
        };
        let error = Tap::open(&taken).unwrap_err().to_string();
        assert!(error.contains("choose another"), "{error}");
        veth("near", "far");
        let error = Xdp::open(&XdpOptions {
            name: "near".to_owned(),
            queue: 0,
            mode: Mode::ZeroCopy,
            address: None,
            checksum: ReceivedChecksum::Unknown,
        })
        .unwrap_err()
        .to_string();
        assert!(error.contains("use the mode `generic`"), "{error}");
        let error = pair::link(&PairOptions {
            ring_bytes: 100_000,
            ..PairOptions::default()
        })
        .unwrap_err()
        .to_string();
        assert!(error.contains("power of two"), "{error}");
    });
}

fn options(name: &str, offload: bool) -> PacketOptions {
    PacketOptions {
        name: name.to_owned(),
        address: None,
        offload,
        shield: false,
    }
}

fn packet(name: &str, offload: bool) -> Packet {
    Packet::open(&options(name, offload)).unwrap()
}

/// All of it.
fn conform(mut near: impl Nic, mut far: impl Nic) {
    let (near, far): (&mut dyn Nic, &mut dyn Nic) = (&mut near, &mut far);
    capabilities_make_sense(near);
    frames_cross_unchanged(near, far);
    frames_cross_unchanged(far, near);
    a_budget_is_kept(near, far);
    too_long_is_lost_and_nothing_else(near, far);
    many_cross_in_order(near, far);
    many_cross_in_order(far, near);
    segments_arrive_whole_and_right(near, far);
    segments_arrive_whole_and_right(far, near);
    a_sleeper_is_woken(near, far);
}

fn capabilities_make_sense(nic: &dyn Nic) {
    let capabilities = nic.capabilities();
    assert_eq!(capabilities.address[0] & 1, 0, "a multicast address");
    assert!((576..=65_535).contains(&capabilities.mtu_bytes));
    let super_bytes = capabilities.super_segment_bytes;
    assert!(super_bytes == 0 || super_bytes > capabilities.mtu_bytes);
    assert!(
        super_bytes == 0 || capabilities.completes_checksums,
        "cutting segments needs new checksums"
    );
    assert_eq!(capabilities, nic.capabilities());
}

fn frames_cross_unchanged(from: &mut dyn Nic, to: &mut dyn Nic) {
    let longest = from
        .capabilities()
        .mtu_bytes
        .min(to.capabilities().mtu_bytes)
        + 14;
    for (number, length) in (0u32..).zip([60, 61, 64, 127, 128, 129, 1000, longest - 1, longest]) {
        let frame = plain(number, length);
        // Every way to split a frame into three pieces.
        for (first, second) in [(length, 0), (14, length - 14), (20, 1), (54, 0), (33, 17)] {
            let (header, payload) = frame.split_at(first);
            let (one, two) = payload.split_at(second.min(payload.len()));
            send(from, header, [one, two]);
            assert!(receive_plain(to, 1) == [frame.clone()], "{length} bytes");
        }
    }
}

fn a_budget_is_kept(near: &mut dyn Nic, far: &mut dyn Nic) {
    assert_eq!(near.receive(0, &mut |_| panic!("no budget")).unwrap(), 0);
    for number in 0..5 {
        send(far, &plain(number, 80), [&[], &[]]);
    }
    let begun = Instant::now();
    let mut found = 0;
    while found < 5 {
        assert!(begun.elapsed() < PATIENCE, "{found} of 5");
        let mut handed = 0;
        let count = near.receive(2, &mut |frame| {
            handed += 1;
            found += usize::from(is_plain(frame.bytes));
        });
        assert_eq!(count.unwrap(), handed);
        assert!(handed <= 2);
    }
}

fn too_long_is_lost_and_nothing_else(near: &mut dyn Nic, far: &mut dyn Nic) {
    let capabilities = near.capabilities();
    let limit = capabilities.mtu_bytes.max(capabilities.super_segment_bytes);
    let long = plain(1, limit + 200);
    send(near, &long, [&[], &[]]);
    let right = plain(2, 100);
    send(near, &right, [&[], &[]]);
    assert!(receive_plain(far, 1) == [right]);
}

/// More than any ring holds, with a number in flight that does not overflow a kernel's queue.
fn many_cross_in_order(from: &mut dyn Nic, to: &mut dyn Nic) {
    let (mut sent, mut received) = (0, 0);
    let begun = Instant::now();
    while received < FRAMES {
        assert!(begun.elapsed() < PATIENCE, "{received} of {FRAMES}");
        while sent < FRAMES && sent < received + 64 {
            let frame = plain(sent, 60 + sent as usize % 1400);
            if !transmit(from, &frame, [&[], &[]]) {
                break;
            }
            sent += 1;
        }
        from.flush().unwrap();
        to.receive(32, &mut |frame| {
            if is_plain(frame.bytes) {
                assert!(
                    frame.bytes == plain(received, frame.bytes.len()),
                    "{received}"
                );
                received += 1;
            }
        })
        .unwrap();
    }
}

/// TCP segments over IPv4 and IPv6: plain with a complete checksum, plain with an incomplete one,
/// super-segments.
fn segments_arrive_whole_and_right(from: &mut dyn Nic, to: &mut dyn Nic) {
    let capabilities = from.capabilities();
    let payload: Vec<u8> = (0..40_000u32).map(|byte| (byte * 7 / 3) as u8).collect();
    for is_ipv6 in [false, true] {
        let mut cases = vec![(1000, None, false)];
        if capabilities.completes_checksums {
            cases.push((1001, None, true));
        }
        if capabilities.super_segment_bytes > 0 {
            cases.push((40_000, NonZeroU16::new(1400), true));
            cases.push((2801, NonZeroU16::new(1400), true));
        }
        for (bytes, segment_bytes, partial) in cases {
            let payload = &payload[..bytes];
            let (header, start) = segment(is_ipv6, payload, !partial);
            let (one, two) = payload.split_at(bytes / 3);
            let frame = Outgoing {
                header: &header,
                payload: [one, two],
                checksum: if partial {
                    TransmitChecksum::Partial { start, offset: 16 }
                } else {
                    TransmitChecksum::Complete
                },
                segment_bytes,
            };
            assert!(from.transmit(&frame).unwrap());
            from.flush().unwrap();
            let arrived = receive_stream(to, is_ipv6, bytes);
            assert!(arrived == payload, "IPv6 {is_ipv6}, {bytes} bytes");
        }
    }
}

fn a_sleeper_is_woken(near: &mut dyn Nic, far: &mut dyn Nic) {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "it never falls asleep");
        while near.receive(32, &mut |_| ()).unwrap() > 0 {}
        if near.arm().unwrap() && !is_readable(near, Duration::ZERO) {
            break;
        }
    }
    send(far, &plain(3, 100), [&[], &[]]);
    assert!(is_readable(near, PATIENCE));
    assert_eq!(receive_plain(near, 1), [plain(3, 100)]);
}

fn is_readable(nic: &dyn Nic, timeout: Duration) -> bool {
    let mut ready = Vec::new();
    let descriptor = nic.descriptor().unwrap();
    sidecore_sys::local_socket::poll(&[descriptor], &mut ready, timeout).unwrap();
    ready[0]
}

/// A frame of the type for experiments (IEEE 802, 88B5), identified by its number.
fn plain(number: u32, length: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..length)
        .map(|at| (at as u32 * 31 + number) as u8)
        .collect();
    frame[..6].copy_from_slice(&[0xff; 6]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_le_bytes());
    frame
}

fn is_plain(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[0x88, 0xb5])
}

fn transmit(nic: &mut dyn Nic, header: &[u8], payload: [&[u8]; 2]) -> bool {
    let frame = Outgoing {
        header,
        payload,
        checksum: TransmitChecksum::Complete,
        segment_bytes: None,
    };
    nic.transmit(&frame).unwrap()
}

fn send(nic: &mut dyn Nic, header: &[u8], payload: [&[u8]; 2]) {
    assert!(transmit(nic, header, payload));
    nic.flush().unwrap();
}

/// The next `count` of our frames; the kernel sends some of its own.
fn receive_plain(nic: &mut dyn Nic, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let begun = Instant::now();
    while frames.len() < count {
        assert!(begun.elapsed() < PATIENCE, "{} of {count}", frames.len());
        nic.receive(1, &mut |frame| {
            if is_plain(frame.bytes) {
                assert_eq!(frame.segment_bytes, None);
                frames.push(frame.bytes.to_vec());
            }
        })
        .unwrap();
    }
    frames
}

/// Headers of a TCP segment, and the offset of its transport header.
fn segment(is_ipv6: bool, payload: &[u8], complete: bool) -> (Vec<u8>, u16) {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9]);
    let tcp_bytes = 20 + payload.len();
    let addresses: Vec<u8>;
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((tcp_bytes as u16).to_be_bytes());
        frame.extend([6, 64]);
        addresses = [[0xfd; 16], [0xfe; 16]].concat();
        frame.extend(&addresses);
    } else {
        let mut header = vec![0x45, 0];
        header.extend((20 + tcp_bytes as u16).to_be_bytes());
        header.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        addresses = vec![192, 0, 2, 1, 192, 0, 2, 2];
        header.extend(&addresses);
        let sum = !sum(0, &header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend([8, 0]);
        frame.extend(header);
    }
    let start = frame.len();
    let mut tcp = PORTS.to_vec();
    tcp.extend([0, 0, 0, 0, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    let mut field = sum(tcp_bytes as u32 + 6, &addresses);
    if complete {
        field = !sum(u32::from(field), &[&tcp[..], payload].concat());
    }
    tcp[16..18].copy_from_slice(&field.to_be_bytes());
    frame.extend(tcp);
    (frame, start as u16)
}

/// The payload of our segments, ordered by their sequence numbers; checksums are verified.
fn receive_stream(nic: &mut dyn Nic, is_ipv6: bool, bytes: usize) -> Vec<u8> {
    let mut stream = vec![0; bytes];
    let mut arrived = 0;
    let ip_bytes = if is_ipv6 { 40 } else { 20 };
    let begun = Instant::now();
    while arrived < bytes {
        assert!(begun.elapsed() < PATIENCE, "{arrived} of {bytes}");
        let merges = nic.capabilities().merges_received;
        let mtu_bytes = nic.capabilities().mtu_bytes;
        nic.receive(1, &mut |frame| {
            let kind = if is_ipv6 { [0x86, 0xdd] } else { [8, 0] };
            let tcp = 14 + ip_bytes;
            if frame.bytes.get(12..14) != Some(&kind)
                || frame.bytes.get(tcp..tcp + 4) != Some(&PORTS)
            {
                return;
            }
            if frame.checksum == ReceivedChecksum::Unknown {
                let addresses = &frame.bytes[if is_ipv6 { 22 } else { 26 }..tcp];
                let pseudo = sum((frame.bytes.len() - tcp) as u32 + 6, addresses);
                let sum = sum(u32::from(pseudo), &frame.bytes[tcp..]);
                assert_eq!(sum, 0xffff, "a wrong checksum");
            }
            assert!(merges || frame.checksum != ReceivedChecksum::Partial);
            assert!(frame.segment_bytes.is_none() || merges);
            assert!(frame.segment_bytes.is_some() || frame.bytes.len() <= mtu_bytes + 14);
            let at = u32::from_be_bytes(frame.bytes[tcp + 4..tcp + 8].try_into().unwrap()) as usize;
            let payload = &frame.bytes[tcp + 20..];
            stream[at..at + payload.len()].copy_from_slice(payload);
            arrived += payload.len();
        })
        .unwrap();
    }
    stream
}

/// The one's complement sum, continued from `begin`.
fn sum(begin: u32, bytes: &[u8]) -> u16 {
    let mut sum = begin;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

const PORTS: [u8; 4] = [0x12, 0x34, 0x56, 0x78];
const FRAMES: u32 = 5_000;
/// Time limit for anything that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
