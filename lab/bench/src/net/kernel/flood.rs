//! Speed of an established session during a flood of SYNs.
//!
//! SYNs from ever new addresses come over the TAP at the same time as one stream. On two cores
//! their generator shares a core with the stream's sender. So the same frames, at the same pace but
//! to another station, are measured too: the difference is the cost of the flood for our stack.
//! Must stay true: frames are bounded in number and stay within a namespace of the bench's own;
//! their sources are addresses for benchmarks (RFC 2544), to which there is no route here. Source:
//! RFC 4987.

use super::ours::{self, KERNEL, OURS, PORT, Service};
use super::{Ending, gigabits, joined, plain, speed, start};
use crate::measure::stats::Series;
use crate::net::interfaces;
use crate::net::namespace::Namespace;
use crate::net::{Bench, BenchError, Better, Candidate, Comparison};
use sidecore_net::nic::packet::{Packet, PacketOptions};
use sidecore_net::nic::{Nic, Outgoing, TransmitChecksum};
use sidecore_net::{Cidr, Route};
use sidecore_net_stack::checksum::Sum;
use sidecore_net_stack::checksum::pseudo;
use sidecore_net_stack::wire::Ip;
use sidecore_net_stack::wire::ethernet::{self, Ethernet};
use sidecore_net_stack::wire::ip;
use sidecore_net_stack::wire::tcp::{self, SYN, Tcp};
use sidecore_sys::cpu;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32};

/// Traffic on the TAP next to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Frames for other stations.
    Strangers,
    Syns,
}

/// Resources of a round.
struct Place {
    near: Namespace,
    time: Duration,
    engine: usize,
    partner: usize,
}

/// Runs the group.
///
/// # Errors
/// [`BenchError::Missing`] without the privilege for interfaces.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let place = Place {
        near: interfaces::alone(&bench.cancel())?,
        time: bench.choose(Duration::from_millis(400), Duration::from_secs(2)),
        engine: bench.engine_cpu(),
        partner: bench.partner_cpu(),
    };
    let metrics = [
        ("one stream during a flood", "Gb/s"),
        ("SYNs that came", "/s"),
    ];
    let beside = [
        ("SYNs", Beside::Syns),
        ("nothing", Beside::Nothing),
        ("as many frames to another station", Beside::Strangers),
    ];
    let mut candidates = beside.map(|(name, beside)| {
        let place = &place;
        Candidate::new(format!("beside: {name}"), move |cancel| {
            round(place, beside, cancel)
        })
    });
    let series = bench.interleave_of(&metrics, &mut candidates)?;
    drop(candidates);
    let value = |at: usize, metric: usize| -> Option<&Series> { series[at].as_ref()?.get(metric) };
    let note = format!(
        "{SYNS_PER_SECOND} SYNs a second from {SOURCES} addresses are sent; a new session opens \
         in between"
    );
    for (at, (name, _)) in beside.iter().enumerate().skip(1) {
        let comparison = Comparison {
            name: &format!("the same, beside it {name}"),
            metric: metrics[0].0,
            unit: metrics[0].1,
            better: Better::Higher,
            target: Some(0.8),
            note: &note,
        };
        bench.compare(&comparison, value(0, 0), value(at, 0));
    }
    if let Some(came) = value(0, 1) {
        bench.row("SYNs that came during the flood", None, came, "/s");
    }
    Ok(())
}

/// The stream's Gb/s, and the SYNs that arrived a second.
fn round(place: &Place, beside: Beside, cancel: &AtomicBool) -> Result<Vec<f64>, BenchError> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let tap = ours::tap(&place.near, KERNEL, true)?;
    let address = tap.capabilities().address;
    let mut config = ours::config();
    // Answers leave by the interface of the questions.
    config.routes.push(Route {
        network: Cidr {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            prefix_bits: 0,
        },
        gateway: KERNEL,
    });
    let stop = &stop;
    std::thread::scope(|scope| {
        let ending = Ending(stop);
        let begun = Instant::now();
        let engine = start(scope, "engine", || {
            ours::run(tap, config, Service::Discard, place.engine, stop, &count)
        })?;
        let stream = plain::connect(&place.near, SocketAddr::new(OURS, PORT))?;
        let sender = start(scope, "program", || {
            plain::send(stream, place.partner, stop)
        })?;
        let target = match beside {
            Beside::Nothing => None,
            Beside::Syns => Some(address),
            Beside::Strangers => Some(STRANGER),
        };
        let flood = target
            .map(|target| {
                let nic = open(&place.near)?;
                start(scope, "flood", move || {
                    send(nic, target, place.partner, stop)
                })
            })
            .transpose()?;
        let measured = speed(&count, place.time, cancel);
        let seconds = begun.elapsed().as_secs_f64();
        // An honest client still gets in.
        let newcomer = plain::connect(&place.near, SocketAddr::new(OURS, PORT));
        drop(ending);
        joined(sender)?;
        flood.map(joined).transpose()?;
        let counters = joined(engine)?;
        newcomer?;
        // The two honest ones were opened; each other SYN is answered with a cookie or takes a
        // place.
        let syns = counters.cookies_sent + counters.opened.saturating_sub(2);
        if beside == Beside::Syns && syns == 0 {
            return Err(BenchError::Wrong("no SYN of the flood came".into()));
        }
        Ok(vec![gigabits(measured?), syns as f64 / seconds])
    })
}

fn open(at: &Namespace) -> Result<Packet, BenchError> {
    let options = PacketOptions {
        name: ours::TAP.into(),
        address: None,
        offload: false,
        shield: false,
    };
    Ok(at.run(move || Packet::open(&options))??)
}

/// Sends SYNs at a steady rate until `stop` is set.
fn send(
    mut nic: Packet,
    target: [u8; 6],
    core: usize,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    cpu::pin(core)?;
    let (begun, mut sent) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * SYNS_PER_SECOND as f64) as u64;
        // A generator that was descheduled does not make up for all of it at once.
        sent = sent.max(due.saturating_sub(BURST_MAX));
        while sent < due {
            let frame = syn(sent, target);
            let frame = Outgoing {
                header: &frame,
                payload: [&[], &[]],
                checksum: TransmitChecksum::Complete,
                segment_bytes: None,
            };
            // Frames without room are lost.
            nic.transmit(&frame)?;
            sent += 1;
        }
        nic.flush()?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The SYN with that number: addresses and ports follow one another.
fn syn(number: u64, target: [u8; 6]) -> [u8; FRAME_BYTES] {
    let host = (number % SOURCES) as u32;
    let from = Ip::from(IpAddr::V4(Ipv4Addr::from_bits(SOURCE_FIRST + host)));
    let to = Ip::from(OURS);
    let mut frame = [0; FRAME_BYTES];
    let (link, packet) = frame.split_at_mut(ethernet::HEADER_BYTES);
    link.copy_from_slice(Ethernet::new(target, STRANGER, ethernet::IPV4).as_bytes());
    ip::write(packet, &from, &to, ip::TCP, ip::HOPS, tcp::HEADER_BYTES);
    let mut head = Tcp {
        source: U16::new(1024 + (number / SOURCES) as u16 % 60_000),
        destination: U16::new(PORT),
        sequence: U32::new(number as u32),
        acknowledgment: U32::new(0),
        offset: (tcp::HEADER_BYTES / 4) as u8 * 16,
        flags: SYN,
        window: U16::new(0xffff),
        checksum: [0; 2],
        urgent: U16::new(0),
    };
    let sum = pseudo(&from, &to, ip::TCP).plus_word(tcp::HEADER_BYTES as u16);
    head.checksum = sum.plus(Sum::of(head.as_bytes())).field();
    packet[ip::V4_BYTES..].copy_from_slice(head.as_bytes());
    frame
}

const FRAME_BYTES: usize = ethernet::HEADER_BYTES + ip::V4_BYTES + tcp::HEADER_BYTES;
/// Hardware address of no station.
const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const SYNS_PER_SECOND: u64 = 50_000;
/// 198.18.0.0/15.
const SOURCE_FIRST: u32 = 0xc612_0000;
const SOURCES: u64 = 1 << 17;
/// Largest number of SYNs without a pause.
const BURST_MAX: u64 = 500;
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floods_frames_are_good_syns() {
        let frame = syn(3_000_000, STRANGER);
        let packet = ip::parse_v4(&frame[ethernet::HEADER_BYTES..]);
        assert!(packet.is_ok());
        let segment = &frame[ethernet::HEADER_BYTES + ip::V4_BYTES..];
        let parsed = tcp::parse(segment).unwrap();
        assert!(parsed.has(SYN) && parsed.sequence.get() == 3_000_000);
        let (from, to) = (&frame[26..30], &frame[30..34]);
        assert!(from[0] == 198 && (from[1] == 18 || from[1] == 19) && to == [10, 98, 0, 2]);
        let address = |bytes: &[u8]| Ip::v4([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let sum = pseudo(&address(from), &address(to), ip::TCP).plus_word(20);
        assert!(sum.plus(Sum::of(segment)).is_right());
    }
}
