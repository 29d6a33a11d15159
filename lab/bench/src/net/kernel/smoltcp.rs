//! smoltcp over the same TAP: the same kernel's socket at the other end, the same cores.
//!
//! Must stay true: smoltcp gets its best conditions: buffers of several MiB, no congestion control,
//! no checksum to compute or check in either direction, a device that hands frames over without a
//! copy of its own. It has no segmentation offload for sending. It may receive super-segments all
//! the same: they are valid packets, so both those and plain frames are measured.
//! Source: smoltcp's documentation (`phy::Device`, `socket::tcp`).

use super::bulk::{self, Way, Wires};
use super::gigabits;
use super::ours::{KERNEL, OURS, PORT};
use crate::net::{Bench, BenchError, Better, Candidate, Comparison};
use sidecore_net::nic::VNET_HEADER_BYTES as HEADER_BYTES;
use sidecore_sys::tun::{Queues, Tap};
use sidecore_sys::{cpu, interface};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Runs the group.
///
/// # Errors
/// [`BenchError::Missing`] without the privilege for interfaces.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let wires = Wires::new(bench)?;
    for (way, metric) in [
        (Way::In, "one stream, kernel to stack"),
        (Way::Out, "one stream, stack to kernel"),
    ] {
        let rate = |speed: Result<f64, BenchError>| speed.map(gigabits);
        let mut candidates = vec![
            Candidate::of_one("ours", |cancel| rate(bulk::ours(&wires, way, cancel))),
            Candidate::of_one("smoltcp", |cancel| rate(theirs(&wires, way, false, cancel))),
        ];
        // Only input can be super-segments: smoltcp has no segmentation offload for sending.
        if way == Way::In {
            candidates.push(Candidate::of_one(
                "smoltcp, handed super-segments",
                |cancel| rate(theirs(&wires, way, true, cancel)),
            ));
        }
        let series = bench.interleave(metric, "Gb/s", &mut candidates)?;
        drop(candidates);
        for (peer, name, target) in [
            (1, "smoltcp over the same TAP", Some(7.0)),
            (2, "smoltcp over the same TAP, handed super-segments", None),
        ] {
            let comparison = Comparison {
                name,
                metric,
                unit: "Gb/s",
                better: Better::Higher,
                target,
                note: "both on one core, the kernel's program on the other; smoltcp with buffers \
                       of 4 MiB, without congestion control and transport checksums",
            };
            let there = series.get(peer).and_then(Option::as_ref);
            bench.compare(&comparison, series[0].as_ref(), there);
        }
    }
    Ok(())
}

/// Bytes a second of smoltcp over the TAP.
fn theirs(wires: &Wires, way: Way, offload: bool, cancel: &AtomicBool) -> Result<f64, BenchError> {
    let tap = wires.near.run(move || open(offload))??;
    bulk::through(wires, way, cancel, "smoltcp", |stop, count| {
        serve(tap, way, wires.engine, stop, count)
    })
}

fn open(offload: bool) -> Result<Tap, BenchError> {
    let tap = Tap::open("smoltcp0", HEADER_BYTES as u8, offload, Queues::One)?;
    interface::add_address(tap.name(), KERNEL, 24)?;
    interface::set_up(tap.name())?;
    Ok(tap)
}

/// smoltcp's own loop, polling like our engine: one session, all it sends or receives.
fn serve(
    tap: Tap,
    way: Way,
    core: usize,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Result<(), BenchError> {
    cpu::pin(core)?;
    let mut wire = Wire {
        tap,
        incoming: vec![0; FRAME_BYTES_MAX],
        outgoing: vec![0; FRAME_BYTES_MAX],
    };
    let address = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, 2]));
    let begun = std::time::Instant::now();
    let now = || Instant::from_micros(begun.elapsed().as_micros() as i64);
    let mut interface = Interface::new(Config::new(address), &mut wire, now());
    interface.update_ip_addrs(|addresses| {
        // The list is empty and has room for at least one.
        addresses.push(IpCidr::new(OURS.into(), 24)).ok();
    });
    let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.set_nagle_enabled(false);
    let listening = socket.listen(PORT);
    listening.map_err(|error| BenchError::Wrong(format!("smoltcp does not listen: {error}")))?;
    let mut sockets = SocketSet::new(vec![]);
    let handle = sockets.add(socket);
    let block = vec![b'x'; BLOCK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        interface.poll(now(), &mut wire, &mut sockets);
        match way {
            Way::In => take(&mut sockets, handle, count),
            Way::Out => fill(&mut sockets, handle, &block),
        }
    }
    Ok(())
}

fn take(sockets: &mut SocketSet<'_>, handle: SocketHandle, count: &AtomicU64) {
    let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
    while socket.can_recv() {
        // It can: the check came just before.
        let taken = socket.recv(|bytes| (bytes.len(), bytes.len()));
        count.fetch_add(taken.unwrap_or(0) as u64, Ordering::Relaxed);
    }
}

fn fill(sockets: &mut SocketSet<'_>, handle: SocketHandle, block: &[u8]) {
    let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
    while socket.can_send() && socket.send_slice(block).is_ok_and(|sent| sent > 0) {}
}

/// A TAP as smoltcp's device.
struct Wire {
    tap: Tap,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Device for Wire {
    type RxToken<'w> = Rx<'w>;
    type TxToken<'w> = Tx<'w>;

    fn receive(&mut self, _: Instant) -> Option<(Rx<'_>, Tx<'_>)> {
        // A TAP that is gone gives no more frames; the group sees that no byte arrives.
        let length = self.tap.read(&mut self.incoming).ok().flatten()?;
        let bytes = self.incoming.get(HEADER_BYTES..length)?;
        let sending = Tx {
            tap: &self.tap,
            bytes: &mut self.outgoing,
        };
        Some((Rx(bytes), sending))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx {
            tap: &self.tap,
            bytes: &mut self.outgoing,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.max_transmission_unit = ETHERNET_BYTES + 1500;
        capabilities.medium = Medium::Ethernet;
        capabilities.checksum = ChecksumCapabilities::ignored();
        // No hardware completes IPv4's own checksum, of 20 bytes.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities
    }
}

struct Rx<'w>(&'w [u8]);

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

struct Tx<'w> {
    tap: &'w Tap,
    bytes: &'w mut [u8],
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let result = f(&mut self.bytes[..length]);
        let header = header(&self.bytes[..length]);
        let pieces = [IoSlice::new(&header), IoSlice::new(&self.bytes[..length])];
        // A frame that the kernel does not take is lost, as on a wire.
        self.tap.write(&pieces).ok();
        result
    }
}

/// Virtio-net header that precedes a frame on a TAP: marks the TCP checksum as left to hardware, so
/// that this machine neither computes nor checks it.
fn header(frame: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    if frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&6) {
        header[0] = NEEDS_CHECKSUM;
        // The start of the sum, and the field's offset from there.
        header[6..8].copy_from_slice(&34_u16.to_ne_bytes());
        header[8..10].copy_from_slice(&16_u16.to_ne_bytes());
    }
    header
}

/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;
const ETHERNET_BYTES: usize = 14;
const FRAME_BYTES_MAX: usize = HEADER_BYTES + sidecore_net::nic::FRAME_BYTES_MAX;
const BUFFER_BYTES: usize = 4 << 20;
const BLOCK_BYTES: usize = 128 << 10;
