//! Two stacks over a link in shared memory, compared with the kernel's wire between two namespaces:
//! MTU 1500, no segmentation by hardware on either side.
//!
//! Why here: the cost of a stack per packet. The kernel gets a core for each side, CUBIC and its
//! checksums for free (a veth never computes them); ours computes and checks them.
//! Source: the paper's packet rates; veth(4), iperf3(1).

use super::interfaces;
use super::namespace::Namespace;
use super::programs::{Running, tool};
use super::stacks::{Load, Way};
use super::{Bench, BenchError, Better, Candidate, Comparison, Group};
use sidecore_net::Placement;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The group.
pub(super) const GROUP: Group = Group { name: "pair", run };

fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpus = [bench.engine_cpu(), bench.partner_cpu()];
    stream(bench, cpus)?;
    datagrams(bench, cpus)
}

fn stream(bench: &mut Bench<'_>, cpus: [usize; 2]) -> Result<(), BenchError> {
    let time = Duration::from_millis(bench.choose(150, 800));
    let seconds = bench.choose(1, 2);
    let way = Way {
        load: Load::Tcp { window: None },
        mtu_bytes: MTU_BYTES,
        placement: Placement::MainMemory,
        cpus: cpus.map(Some),
    };
    let wire = match Wire::new(&bench.cancel()) {
        Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
        wire => wire,
    };
    // The candidate reports it, so that the other is measured all the same.
    let mut refused = wire.as_ref().err().map(ToString::to_string);
    let wire = wire.ok();
    let metrics = [(STREAM, "Gb/s"), ("its packets", "M/s")];
    let series = bench.interleave_of(
        &metrics,
        &mut [
            Candidate::new("two stacks", |cancel| {
                let carried = way.carry(time, cancel)?;
                Ok(vec![carried.bits_s / 1e9, carried.packets_s / 1e6])
            }),
            Candidate::new(KERNEL, |cancel| match &wire {
                Some(wire) => {
                    let bits_s = wire.stream(cpus, seconds, cancel)?;
                    Ok(vec![bits_s / 1e9, bits_s / 8e6 / KERNEL_MSS_BYTES])
                }
                None => Err(BenchError::Missing(refused.take().unwrap_or_default())),
            }),
        ],
    )?;
    let one = |who: usize, metric: usize| series[who].as_ref().map(|series| &series[metric]);
    bench.compare(
        &Comparison {
            name: KERNEL,
            metric: STREAM,
            unit: "Gb/s",
            better: Better::Higher,
            target: Some(5.0),
            note: "",
        },
        one(0, 0),
        one(1, 0),
    );
    if let Some(packets) = one(0, 1) {
        let name = "two stacks, one stream at MTU 1500: packets with data";
        bench
            .row(name, None, packets, "M/s")
            .target(Better::Higher, 3.0)
            .note("acknowledgments, which go the other way, are not counted");
    }
    Ok(())
}

/// The paper's packet rates are of UDP, end to end.
fn datagrams(bench: &mut Bench<'_>, cpus: [usize; 2]) -> Result<(), BenchError> {
    let time = Duration::from_millis(bench.choose(100, 400));
    let places = [
        (Placement::LocalStore, "local store only", 870e3),
        (Placement::MainMemory, "main memory", 530e3),
    ];
    let candidate = |(placement, name, _): (Placement, &str, f64)| {
        let way = Way {
            load: Load::Udp { bytes: 64 },
            mtu_bytes: MTU_BYTES,
            placement,
            cpus: cpus.map(Some),
        };
        Candidate::of_one(name, move |cancel| {
            Ok(way.carry(time, cancel)?.packets_s / 1e3)
        })
    };
    let series = bench.interleave("UDP, 64 bytes", "k/s", &mut places.map(candidate))?;
    for ((_, name, paper), series) in places.iter().zip(&series) {
        if let Some(series) = series {
            let name = format!("UDP packets of 64 bytes, two stacks, {name}");
            bench
                .row(name, Some(paper / 1e3), series, "k/s")
                .target(Better::Higher, paper / 1e3)
                .note("as read by the receiving program");
        }
    }
    Ok(())
}

/// Two namespaces with a wire that neither segments nor merges.
struct Wire {
    near: Namespace,
    far: Namespace,
}

impl Wire {
    fn new(cancel: &AtomicBool) -> Result<Self, BenchError> {
        tool("iperf3")?;
        let (near, far) = interfaces::wired(cancel)?;
        for (namespace, name) in [(&near, "near"), (&far, "far")] {
            let mut command = tool("ethtool")?;
            command.args(["-K", name, "tso", "off", "gso", "off", "gro", "off"]);
            Running::start(Some(namespace), command)?.output(cancel)?;
        }
        Ok(Self { near, far })
    }

    /// Bits a second that arrive of one stream.
    fn stream(
        &self,
        cpus: [usize; 2],
        seconds: u32,
        cancel: &AtomicBool,
    ) -> Result<f64, BenchError> {
        let mut command = tool("iperf3")?;
        command.args(["-s", "-1", "--forceflush"]);
        let server = Running::start(Some(&self.far), command)?;
        server.wait_for_words("Server listening", cancel)?;
        let mut command = tool("iperf3")?;
        let (cores, seconds) = (format!("{},{}", cpus[0], cpus[1]), seconds.to_string());
        command.args([
            "-c",
            "10.99.0.2",
            "-C",
            "cubic",
            "-J",
            "-A",
            &cores,
            "-t",
            &seconds,
        ]);
        let client = Running::start(Some(&self.near), command)?;
        let said = client.output(cancel)?;
        arrived(&said)
    }
}

/// Bits a second that arrived, from the output of iperf3's client with `-J`.
pub(super) fn arrived(said: &str) -> Result<f64, BenchError> {
    let report: serde_json::Value = serde_json::from_str(said)
        .map_err(|error| BenchError::Wrong(format!("iperf3 said no JSON: {error}")))?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.filter(|rate| *rate > 0.0)
        .ok_or_else(|| BenchError::Wrong("iperf3 did not say what arrived".into()))
}

const STREAM: &str = "one stream at MTU 1500, nothing segmented by hardware";
const KERNEL: &str = "kernel, veth between two namespaces, iperf3, CUBIC";
const MTU_BYTES: usize = 1500;
/// Payload of a full segment of the kernel's: 1500 less the headers and timestamps.
const KERNEL_MSS_BYTES: f64 = 1448.0;
