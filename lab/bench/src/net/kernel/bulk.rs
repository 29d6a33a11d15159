//! One stream between a plain socket of the kernel and our stack over a TAP, compared with kernel
//! to kernel over a veth with all its offloads on.

use super::ours::{self, PORT, Service};
use super::{Ending, gigabits, joined, plain, speed, start};
use crate::measure::stats::Series;
use crate::net::interfaces;
use crate::net::namespace::Namespace;
use crate::net::programs::{Running, tool};
use crate::net::{Bench, BenchError, Better, Candidate, Comparison};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Resources of a round.
pub(super) struct Wires {
    /// Namespace of the kernel's end of a TAP.
    pub(super) near: Namespace,
    /// The two ends of a veth.
    veth: (Namespace, Namespace),
    pub(super) time: Duration,
    pub(super) engine: usize,
    pub(super) partner: usize,
}

impl Wires {
    /// # Errors
    /// [`BenchError::Missing`] without the privilege for interfaces.
    pub(super) fn new(bench: &Bench<'_>) -> Result<Self, BenchError> {
        let cancel = bench.cancel();
        Ok(Self {
            near: interfaces::alone(&cancel)?,
            veth: interfaces::wired(&cancel)?,
            time: bench.choose(Duration::from_millis(400), Duration::from_secs(2)),
            engine: bench.engine_cpu(),
            partner: bench.partner_cpu(),
        })
    }
}

/// Direction of the bytes, seen from our stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the kernel to us.
    In,
    /// From us to the kernel.
    Out,
}

impl Way {
    /// Name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// Runs the group.
///
/// # Errors
/// [`BenchError::Missing`] without the privilege for interfaces.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let wires = Wires::new(bench)?;
    for (way, metric, target) in [
        (Way::In, "one stream, kernel to engine", 1.5),
        (Way::Out, "one stream, engine to kernel", 1.1),
    ] {
        let rate = |speed: Result<f64, BenchError>| speed.map(gigabits);
        let series = bench.interleave(
            metric,
            "Gb/s",
            &mut [
                Candidate::of_one("ours over a TAP", |cancel| rate(ours(&wires, way, cancel))),
                Candidate::of_one("plain sockets over a veth", |cancel| {
                    rate(kernel(&wires, cancel))
                }),
                Candidate::of_one("iperf3 over a veth", |cancel| rate(iperf3(&wires, cancel))),
            ],
        )?;
        let here = series[0].as_ref();
        let peers = ["plain sockets over a veth", "iperf3 over a veth"];
        for (name, peer) in peers.into_iter().zip(&series[1..]) {
            compare(bench, name, metric, target, here, peer.as_ref());
        }
    }
    Ok(())
}

fn compare(
    bench: &mut Bench<'_>,
    name: &str,
    metric: &str,
    target: f64,
    here: Option<&Series>,
    peer: Option<&Series>,
) {
    let comparison = Comparison {
        name,
        metric,
        unit: "Gb/s",
        better: Better::Higher,
        target: Some(target),
        note: "MTU 1500; super-segments and incomplete checksums pass on both wires; CUBIC; our \
               engine and its application on one core, the kernel's program on the other; kernel \
               to kernel: each end on one of the two; our application takes what came where it \
               lies (peek and consume), the kernel's programs read into a block of 128 KiB",
    };
    bench.compare(&comparison, here, peer);
}

/// Bytes a second over the TAP.
pub(super) fn ours(wires: &Wires, way: Way, cancel: &AtomicBool) -> Result<f64, BenchError> {
    let tap = ours::tap(&wires.near, ours::KERNEL, true)?;
    let service = match way {
        Way::In => Service::Discard,
        Way::Out => Service::Source,
    };
    through(wires, way, cancel, "engine", |stop, count| {
        ours::run(tap, ours::config(), service, wires.engine, stop, count).map(drop)
    })
}

/// Bytes a second between a plain socket of the kernel and `stack`, which runs on the engine's core
/// in a thread of that name until its flag is raised, and counts its input.
pub(super) fn through(
    wires: &Wires,
    way: Way,
    cancel: &AtomicBool,
    name: &str,
    stack: impl FnOnce(&AtomicBool, &AtomicU64) -> Result<(), BenchError> + Send,
) -> Result<f64, BenchError> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let ending = Ending(&stop);
        let stack = start(scope, name, || stack(&stop, &count))?;
        let stream = plain::connect(&wires.near, SocketAddr::new(ours::OURS, PORT))?;
        let program = start(scope, "program", || match way {
            Way::In => plain::send(stream, wires.partner, &stop),
            Way::Out => plain::receive(stream, wires.partner, &stop, &count),
        })?;
        let speed = speed(&count, wires.time, cancel);
        drop(ending);
        joined(program)?;
        joined(stack)?;
        speed
    })
}

/// Bytes a second of two plain sockets over the veth.
fn kernel(wires: &Wires, cancel: &AtomicBool) -> Result<f64, BenchError> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let listener = plain::listen(&wires.veth.1, SocketAddr::new(FAR, PORT))?;
    let near = plain::connect(&wires.veth.0, SocketAddr::new(FAR, PORT))?;
    let far = plain::accept(&listener)?;
    std::thread::scope(|scope| {
        let ending = Ending(&stop);
        let sender = start(scope, "sender", || plain::send(near, wires.partner, &stop))?;
        let receiver = start(scope, "receiver", || {
            plain::receive(far, wires.engine, &stop, &count)
        })?;
        let speed = speed(&count, wires.time, cancel);
        drop(ending);
        joined(sender)?;
        joined(receiver)?;
        speed
    })
}

/// Bytes a second that iperf3 says its receiver got over the veth.
fn iperf3(wires: &Wires, cancel: &AtomicBool) -> Result<f64, BenchError> {
    let mut server = tool("iperf3")?;
    let core = wires.engine.to_string();
    let port = IPERF_PORT.to_string();
    server.args(["-s", "-1", "-p", &port, "-A", &core, "-B", "10.99.0.2"]);
    let server = Running::start(Some(&wires.veth.1), server)?;
    wait_for_listener(&wires.veth.1, cancel)?;
    let mut client = tool("iperf3")?;
    let seconds = wires.time.as_secs().max(1).to_string();
    let core = format!("{},{}", wires.partner, wires.engine);
    client.args([
        "-c",
        "10.99.0.2",
        "-p",
        &port,
        "-C",
        "cubic",
        "-t",
        &seconds,
    ]);
    client.args(["-O", "0", "-A", &core, "-J"]);
    let said = Running::start(Some(&wires.veth.0), client)?.output(cancel)?;
    drop(server);
    bits_per_second(&said).map(|bits| bits / 8.0)
}

/// The receiver's figures in iperf3's report.
fn bits_per_second(report: &str) -> Result<f64, BenchError> {
    let json: serde_json::Value = serde_json::from_str(report)
        .map_err(|error| BenchError::Wrong(format!("iperf3's report is no JSON: {error}")))?;
    json["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .ok_or_else(|| BenchError::Wrong("iperf3's report names no speed".into()))
}

/// Waits until a program in the namespace listens at [`IPERF_PORT`].
fn wait_for_listener(at: &Namespace, cancel: &AtomicBool) -> Result<(), BenchError> {
    // ":PORT", then any peer, then 0A: listening (proc_net_tcp(5)).
    let wanted = format!(":{IPERF_PORT:04X} 00000000:0000 0A");
    for _ in 0..LOOKS_MAX {
        let found = at.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp"))?;
        if found.is_ok_and(|text| text.contains(&wanted)) {
            return Ok(());
        }
        super::sleep(Duration::from_millis(10), cancel)?;
    }
    Err(BenchError::Wrong("iperf3 does not begin to listen".into()))
}

/// The far end of the veth.
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 99, 0, 2));
const IPERF_PORT: u16 = 5201;
const LOOKS_MAX: usize = 500;
