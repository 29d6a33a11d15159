//! Many bytes through a bad wire: whether they arrive intact, and how fast, compared with two of
//! the kernel's sockets at the ends of the same wire.
//!
//! Must stay true: both candidates meet the same wire in the same place (on the engine's core, each
//! direction bad), and every byte that arrives is compared with what was sent.

use super::bulk::Way;
use super::ours::{self, KERNEL, OURS, PORT, Service};
use super::pattern::Pattern;
use super::wire::{self, BadWire, DELAY_NS, LATE_NS, Weather};
use super::{Ending, Places, WRONG, gigabits, joined, plain, start};
use crate::measure::stats::Series;
use crate::net::{Bench, BenchError, Better, Candidate, Comparison, interrupted};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A wire by name, and how much is sent through it: less through one on which most of the time is
/// waiting for timers, so that a run ends.
struct Case {
    name: &'static str,
    weather: Weather,
    /// MiB of a round, of a quick run and of a full one.
    round_mib: [u64; 2],
    /// MiB of the one transfer at the end.
    whole_mib: u64,
}

const CASES: [Case; 4] = [
    Case {
        name: "1 % lost",
        weather: Weather::losing(0.01),
        round_mib: [4, 64],
        whole_mib: 1024,
    },
    Case {
        name: "5 % lost",
        weather: Weather::losing(0.05),
        round_mib: [1, 16],
        whole_mib: 256,
    },
    Case {
        name: "2 % overtaken",
        weather: Weather::overtaking(0.02),
        round_mib: [4, 64],
        whole_mib: 1024,
    },
    Case {
        name: "2 % twice",
        weather: Weather::doubling(0.02),
        round_mib: [4, 64],
        whole_mib: 1024,
    },
];

/// One transfer.
#[derive(Clone, Copy)]
struct Load {
    way: Way,
    weather: Weather,
    bytes: u64,
    seed: u64,
}

/// Runs the group.
///
/// # Errors
/// [`BenchError::Missing`] without the privilege for interfaces.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    // Made before any clock runs.
    Pattern::get();
    let places = Places::new(bench)?;
    for case in &CASES {
        for way in [Way::In, Way::Out] {
            beside_the_kernel(bench, &places, case, way)?;
            if !bench.quick() {
                whole(bench, &places, case, way)?;
            }
        }
    }
    Ok(())
}

fn beside_the_kernel(
    bench: &mut Bench<'_>,
    places: &Places,
    case: &Case,
    way: Way,
) -> Result<(), BenchError> {
    let [quick, full] = case.round_mib;
    let mib = bench.choose(quick, full);
    let metric = format!("{mib} MiB {}, {}", way.name(), case.name);
    // Each candidate counts its own seeds, so that both meet the same weather in a round.
    let (mut here_seed, mut there_seed) = (0, 0);
    let load = |seed: &mut u64| {
        *seed += 1;
        Load {
            way,
            weather: case.weather,
            bytes: mib << 20,
            seed: *seed,
        }
    };
    let series = bench.interleave(
        &metric,
        "Gb/s",
        &mut [
            Candidate::of_one("ours", |cancel| {
                through_ours(places, load(&mut here_seed), cancel)
            }),
            Candidate::of_one("kernel to kernel", |cancel| {
                through_kernels(places, load(&mut there_seed), cancel)
            }),
        ],
    )?;
    let note = format!(
        "a wire of {} us each way without super-segments, bad in both directions; overtaken: by \
         {} us; compared byte by byte; CUBIC; the wire (and our stack) on one core, the kernel's \
         programs on the other",
        DELAY_NS / 1000,
        LATE_NS / 1000
    );
    let comparison = Comparison {
        name: "kernel to kernel over the same wire",
        metric: &metric,
        unit: "Gb/s",
        better: Better::Higher,
        target: Some(0.8),
        note: &note,
    };
    bench.compare(&comparison, series[0].as_ref(), series[1].as_ref());
    Ok(())
}

/// The whole amount, once.
fn whole(bench: &mut Bench<'_>, places: &Places, case: &Case, way: Way) -> Result<(), BenchError> {
    let cancel = bench.cancel();
    let load = Load {
        way,
        weather: case.weather,
        bytes: case.whole_mib << 20,
        seed: 0,
    };
    let name = format!("{} MiB {}, {}", case.whole_mib, way.name(), case.name);
    bench.say(&name);
    let rate = through_ours(places, load, &cancel)?;
    bench
        .row(name, None, &Series::new(vec![rate]), "Gb/s")
        .note("arrived, and every byte was compared");
    Ok(())
}

/// Gb/s between a plain socket and our stack.
fn through_ours(places: &Places, load: Load, cancel: &AtomicBool) -> Result<f64, BenchError> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let tap = ours::tap(&places.near, KERNEL, false)?;
    let nic = BadWire::new(tap, load.weather, load.seed);
    let service = match load.way {
        Way::In => Service::Check,
        Way::Out => Service::Stream(load.bytes),
    };
    std::thread::scope(|scope| {
        let ending = Ending(&stop);
        let engine = start(scope, "engine", || {
            ours::run(nic, ours::config(), service, places.engine, &stop, &count)
        })?;
        let stream = plain::connect(&places.near, SocketAddr::new(OURS, PORT))?;
        let begun = Instant::now();
        let program = start(scope, "program", || match load.way {
            Way::In => plain::send_stream(stream, load.bytes, places.partner, &stop),
            Way::Out => plain::check_stream(stream, places.partner, &stop, &count),
        })?;
        let arrived = arrival(&count, load.bytes, begun, cancel);
        drop(ending);
        joined(program)?;
        joined(engine)?;
        arrived
    })
}

/// Gb/s between two plain sockets.
fn through_kernels(places: &Places, load: Load, cancel: &AtomicBool) -> Result<f64, BenchError> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let near = ours::tap(&places.near, KERNEL, false)?;
    let far = ours::tap(&places.far, OURS, false)?;
    let listener = plain::listen(&places.far, SocketAddr::new(OURS, PORT))?;
    let (weather, seed) = (load.weather, load.seed);
    std::thread::scope(|scope| {
        let ending = Ending(&stop);
        let wire = start(scope, "wire", || {
            wire::carry(near, far, weather, seed, places.engine, &stop)
        })?;
        let near = plain::connect(&places.near, SocketAddr::new(OURS, PORT))?;
        let far = plain::accept(&listener)?;
        let (from, to) = match load.way {
            Way::In => (near, far),
            Way::Out => (far, near),
        };
        let begun = Instant::now();
        let sender = start(scope, "sender", || {
            plain::send_stream(from, load.bytes, places.partner, &stop)
        })?;
        let receiver = start(scope, "receiver", || {
            plain::check_stream(to, places.partner, &stop, &count)
        })?;
        let arrived = arrival(&count, load.bytes, begun, cancel);
        drop(ending);
        joined(sender)?;
        joined(receiver)?;
        joined(wire)?;
        arrived
    })
}

/// Waits until all bytes have arrived; Gb/s since `begun`.
fn arrival(
    count: &AtomicU64,
    bytes: u64,
    begun: Instant,
    cancel: &AtomicBool,
) -> Result<f64, BenchError> {
    let mut pause = Duration::from_micros(100);
    loop {
        let now = count.load(Ordering::Relaxed);
        let elapsed = begun.elapsed();
        if now == WRONG {
            return Err(BenchError::Wrong(
                "other bytes arrived than were sent".into(),
            ));
        }
        if now >= bytes {
            return Ok(gigabits(now as f64 / elapsed.as_secs_f64()));
        }
        interrupted(cancel)?;
        if elapsed > TRANSFER_TIME_MAX {
            return Err(BenchError::Wrong(format!(
                "{now} of {bytes} bytes arrived in {elapsed:.1?}"
            )));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK_TIME);
    }
}

/// Time between two checks for the rest.
const LOOK_TIME: Duration = Duration::from_millis(1);
/// A transfer that takes longer has failed.
const TRANSFER_TIME_MAX: Duration = Duration::from_secs(240);
