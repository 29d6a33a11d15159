//! Congestion control at a bottleneck with a finite queue: the link is used, and the queue drops
//! only what probing for its end costs.
//!
//! Random loss (`losses.rs`) never shows whether a sender respects a queue: there, a needless undo
//! or a burst costs nothing.
//! `lab/apps/tests/suite/bottleneck_kernel.rs` compares with the kernel on a live link.
//!
//! BBR in virtual time: it finds the bottleneck's rate, keeps its queue short, and does not take
//! random loss for congestion.

use crate::common;

use common::bottleneck::Bottleneck;
use common::{MS, S, World, offloading, plain, v4};
use sidecore_net_stack::frame::Capabilities;
use sidecore_net_stack::{Algorithm, Config, Ecn, SessionId};

/// One transfer of `seconds`.
#[derive(Debug, Clone, Copy)]
struct Link {
    mbit: u64,
    queue_bytes: usize,
    delay_us: u64,
    seconds: u64,
}

#[derive(Debug)]
struct Outcome {
    /// Received payload, as a share of what the rate allows.
    used: f64,
    dropped: u64,
    resent: u64,
    recoveries: u64,
    undone: u64,
    timeouts: u64,
}

fn transfer(link: Link, nics: [Capabilities; 2], timestamps: bool) -> Outcome {
    transfer_with(link, nics, |config| config.offers.timestamps = timestamps)
}

fn transfer_with(link: Link, nics: [Capabilities; 2], change: impl Fn(&mut Config)) -> Outcome {
    let mut world = World::with(1, nics, change);
    world.impairment.delay_ns = link.delay_us * 1_000;
    world.bottleneck = Some(Bottleneck::new(link.mbit * 1_000_000, link.queue_bytes));
    let listener = world.stacks[1].listen(v4(2, 80), 4).expect("listens");
    let client = world.stacks[0].connect(v4(2, 80), None).expect("connects");
    world.run(S);
    let server = world.stacks[1].accept(listener).expect("open");
    let server = server.expect("one session");
    let (data, mut scratch) = (vec![7; 1 << 20], vec![0; 1 << 20]);
    let until = world.now_ns + link.seconds * S;
    let mut got = 0;
    while world.now_ns < until {
        world.stacks[0].write(client, &data).expect("open");
        got += world.stacks[1].read(server, &mut scratch).expect("open");
        let at = (world.now_ns + MS).min(until);
        if !world.step(at) {
            world.now_ns = at;
        }
    }
    let counters = world.stacks[0].counters();
    let queue = world.bottleneck.expect("still there");
    // 1,514 bytes of a frame carry 1,448 of payload, or 1,460 without timestamps.
    let most = (link.mbit * 1_000_000 / 8 * link.seconds) as f64 * 1448.0 / 1514.0;
    Outcome {
        used: got as f64 / most,
        dropped: queue.dropped,
        resent: counters.retransmitted,
        recoveries: counters.recoveries,
        undone: counters.undone,
        timeouts: counters.timeouts,
    }
}

/// Drops of a transfer at most: three for each loss event of CUBIC's growth, and the cost of
/// leaving slow start: a quarter of what the queue and the round trip hold.
fn dropped_max(link: Link, outcome: &Outcome) -> u64 {
    let round_trip_bytes = link.mbit * 1_000_000 / 8 * 2 * link.delay_us / 1_000_000;
    let held = (link.queue_bytes as u64 + round_trip_bytes) / 1514;
    3 * outcome.recoveries + held / 4 + 10
}

fn check(link: Link, nics: [Capabilities; 2], timestamps: bool, used_min: f64) {
    let outcome = transfer(link, nics, timestamps);
    eprintln!("{link:?}, timestamps {timestamps}: {outcome:?}");
    let allowed = dropped_max(link, &outcome);
    assert!(
        outcome.used >= used_min,
        "{link:?}: {:.3} of the rate",
        outcome.used
    );
    assert!(
        outcome.dropped <= allowed,
        "{link:?}: {} dropped, {allowed} allowed",
        outcome.dropped
    );
    // Nothing is reordered here: no recovery is spurious, and no delivered data is retransmitted.
    assert_eq!(outcome.undone, 0, "{link:?}: undone");
    assert!(
        outcome.resent <= outcome.dropped,
        "{link:?}: {} sent again, {} dropped",
        outcome.resent,
        outcome.dropped
    );
    assert!(
        outcome.timeouts <= 1,
        "{link:?}: {} timeouts",
        outcome.timeouts
    );
}

/// The first measurement: 10 Mbit, 60 KB, practically no delay; 4,721 were dropped, 13 by the
/// kernel.
#[test]
fn a_shallow_queue_is_not_drowned() {
    let link = Link {
        mbit: 10,
        queue_bytes: 60_000,
        delay_us: 0,
        seconds: 10,
    };
    for timestamps in [true, false] {
        check(link, [plain(1), plain(2)], timestamps, 0.95);
        check(link, [offloading(1), offloading(2)], timestamps, 0.95);
    }
}

#[test]
fn rates_queues_and_delays() {
    for (mbit, queue_bytes, delay_ms, seconds) in [
        (1, 15_000, 1, 40),
        (1, 60_000, 20, 60),
        (10, 15_000, 1, 10),
        (10, 60_000, 1, 10),
        (10, 60_000, 20, 20),
        (10, 200_000, 1, 10),
        (10, 200_000, 20, 20),
        (10, 1_000_000, 1, 20),
        (100, 60_000, 1, 5),
        (100, 200_000, 1, 5),
        (100, 1_000_000, 20, 10),
    ] {
        let link = Link {
            mbit,
            queue_bytes,
            delay_us: delay_ms * 1_000,
            seconds,
        };
        check(link, [plain(1), plain(2)], true, 0.9);
        check(link, [offloading(1), offloading(2)], true, 0.9);
    }
}

/// The links of `net bench --only bottleneck`, and the drops of the kernel's CUBIC there in ten
/// seconds.
#[test]
fn no_more_than_twice_the_kernels_drops() {
    for (queue_bytes, delay_us, kernel) in [
        (60_000, 20_000, 7),
        (15_000, 500, 126),
        (60_000, 500, 11),
        (200_000, 500, 9),
        (1_000_000, 500, 0),
        (15_000, 20_000, 18),
        (60_000, 20_000, 7),
        (200_000, 20_000, 12),
        (1_000_000, 20_000, 0),
    ] {
        let link = Link {
            mbit: 10,
            queue_bytes,
            delay_us,
            seconds: 10,
        };
        for nics in [[plain(1), plain(2)], [offloading(1), offloading(2)]] {
            let outcome = transfer(link, nics, true);
            assert!(
                outcome.dropped <= 2 * kernel + 5,
                "{link:?}: {outcome:?}, the kernel {kernel}"
            );
            assert!(outcome.used >= 0.9, "{link:?}: {outcome:?}");
            assert_eq!(outcome.undone, 0, "{link:?}: {outcome:?}");
        }
    }
}

/// Found by `differential_net`: the round trip grows by less than HyStart++'s four milliseconds
/// until it is too late. With the kernel's drops for comparison.
#[test]
fn a_short_path_does_not_overshoot() {
    for (mbit, queue_bytes, delay_us, seconds, kernel) in [
        (27, 50_000, 2_400, 2, 4),
        (23, 85_000, 1_900, 2, 8),
        (17, 91_000, 2_100, 2, 8),
        (32, 27_000, 800, 1, 8),
    ] {
        let link = Link {
            mbit,
            queue_bytes,
            delay_us,
            seconds,
        };
        for nics in [[plain(1), plain(2)], [offloading(1), offloading(2)]] {
            let outcome = transfer(link, nics, true);
            eprintln!("{link:?}: {outcome:?}");
            assert!(
                outcome.dropped <= 2 * kernel + 5,
                "{link:?}: {outcome:?}, the kernel {kernel}"
            );
            assert!(outcome.used >= 0.9, "{link:?}: {outcome:?}");
        }
    }
}

/// Pacing drops no more than bursts do, and costs no goodput; if the path is long for its queue it
/// carries more, and drops a smaller share.
#[test]
fn pacing_drops_no_more_than_bursts() {
    for (mbit, delay_us, queue_bytes) in [
        (10, 500, 15_000),
        (10, 500, 60_000),
        (10, 500, 200_000),
        (10, 500, 1_000_000),
        (10, 20_000, 15_000),
        (10, 20_000, 60_000),
        (10, 20_000, 200_000),
        (10, 20_000, 1_000_000),
        (10, 40_000, 15_000),
        (10, 40_000, 60_000),
        (100, 1_000, 60_000),
        (100, 1_000, 200_000),
    ] {
        for [burst, paced] in in_bursts_and_paced(mbit, delay_us, queue_bytes) {
            // One loss event more, if the link is filled sooner; and one segment depending on the
            // position of the last loss in the window's growth.
            let events = paced.recoveries.saturating_sub(burst.recoveries);
            let allowed = burst.dropped + events + 1;
            assert!(paced.dropped <= allowed, "{burst:?} {paced:?}");
            assert!(paced.used >= 0.99 * burst.used, "{burst:?} {paced:?}");
        }
    }
    let (mut dropped, mut used) = ([0.0; 2], [0.0; 2]);
    for (mbit, delay_us, queue_bytes) in [
        (100, 10_000, 30_000),
        (100, 10_000, 60_000),
        (100, 20_000, 60_000),
        (100, 40_000, 100_000),
    ] {
        for outcomes in in_bursts_and_paced(mbit, delay_us, queue_bytes) {
            for (at, outcome) in outcomes.iter().enumerate() {
                dropped[at] += outcome.dropped as f64;
                used[at] += outcome.used;
            }
            let [burst, paced] = outcomes;
            assert!(paced.used >= burst.used, "{burst:?} {paced:?}");
        }
    }
    assert!(used[1] > 1.15 * used[0], "{used:?}");
    assert!(
        dropped[1] / used[1] < dropped[0] / used[0],
        "{dropped:?} {used:?}"
    );
}

/// A session through the link without pacing and with it, with plain and with offloading NICs.
fn in_bursts_and_paced(mbit: u64, delay_us: u64, queue_bytes: usize) -> [[Outcome; 2]; 2] {
    let link = Link {
        mbit,
        queue_bytes,
        delay_us,
        seconds: 10,
    };
    let nics = [[plain(1), plain(2)], [offloading(1), offloading(2)]];
    nics.map(|nics| {
        let run = |pacing| transfer_with(link, nics, |it| it.pacing = pacing);
        let outcomes = [false, true].map(run);
        eprintln!("{link:?}:\n  {outcomes:?}");
        outcomes
    })
}

const MBIT: u64 = 10;
/// Payload bytes a second at the bottleneck's rate.
const GOODPUT: f64 = (MBIT * 1_000_000 / 8) as f64 * 1448.0 / 1514.0;

struct Pair {
    client: SessionId,
    server: SessionId,
    got: u64,
}

fn world(delay_us: u64, queue_bytes: usize, nics: [Capabilities; 2]) -> World {
    let mut world = World::with(1, nics, |config| config.congestion = Algorithm::Bbr);
    world.impairment.delay_ns = delay_us * 1_000;
    world.bottleneck = Some(Bottleneck::new(MBIT * 1_000_000, queue_bytes));
    world
}

fn connect(world: &mut World, port: u16) -> Pair {
    let listener = world.stacks[1].listen(v4(2, port), 4).expect("listens");
    let client = world.stacks[0]
        .connect(v4(2, port), None)
        .expect("connects");
    world.run(S);
    let server = world.stacks[1].accept(listener).expect("open");
    let server = server.expect("one session");
    Pair {
        client,
        server,
        got: 0,
    }
}

/// Runs with all clients writing as much as fits; each millisecond `look` gets the queued bytes.
fn run(world: &mut World, pairs: &mut [Pair], ns: u64, mut look: impl FnMut(u64)) {
    let (data, mut scratch) = (vec![7; 1 << 20], vec![0; 1 << 20]);
    let until = world.now_ns + ns;
    while world.now_ns < until {
        for pair in &mut *pairs {
            world.stacks[0].write(pair.client, &data).expect("open");
            let got = world.stacks[1].read(pair.server, &mut scratch);
            pair.got += got.expect("open") as u64;
        }
        let at = (world.now_ns + MS).min(until);
        if !world.step(at) {
            world.now_ns = at;
            let now_ns = world.now_ns;
            look(world.bottleneck.as_mut().expect("there").backlog(now_ns) as u64);
        }
    }
}

#[test]
fn the_bottleneck_is_used_and_its_queue_stays_short() {
    for (delay_us, queue_bytes) in [
        (500, 15_000),
        (500, 60_000),
        (500, 200_000),
        (500, 1_000_000),
        (20_000, 15_000),
        (20_000, 60_000),
        (20_000, 200_000),
        (20_000, 1_000_000),
    ] {
        for nics in [[plain(1), plain(2)], [offloading(1), offloading(2)]] {
            let mut world = world(delay_us, queue_bytes, nics);
            let mut pairs = [connect(&mut world, 80)];
            run(&mut world, &mut pairs, 2 * S, |_| {});
            let early = pairs[0].got;
            let mut waits = Vec::new();
            run(&mut world, &mut pairs, 18 * S, |bytes| waits.push(bytes));
            waits.sort_unstable();
            let used = (pairs[0].got - early) as f64 / GOODPUT / 18.0;
            let info = world.stacks[0].info(pairs[0].client).expect("open");
            // A ping's round trip: both ways, its own time on the wire, and the queue.
            let base_us = 2 * delay_us + 1_514 * 8 / MBIT;
            let ping = |part: usize| {
                let bytes = waits[(waits.len() - 1) * part / 100];
                (base_us + bytes * 8 / MBIT) as f64 / base_us as f64
            };
            eprintln!(
                "{delay_us} {queue_bytes}: used {used:.3}, pings {:.2} {:.2} {:.2}, dropped {}",
                ping(50),
                ping(95),
                ping(100),
                world.bottleneck.as_ref().expect("there").dropped,
            );
            assert!(used > 0.9, "{delay_us} {queue_bytes}: {used:.3}");
            assert!(info.window < 120_000, "{}", info.window);
            assert_eq!(world.stacks[0].counters().timeouts, 0);
            if delay_us == 20_000 {
                assert!(ping(50) < 1.2 && ping(95) < 2.0 && ping(100) < 2.5);
            } else {
                // The path holds two segments, and the window is never below four; with the
                // allowance for segmentation, it is ten.
                assert!(waits[waits.len() - 1] <= 10 * 1_514);
            }
        }
    }
}

#[test]
fn random_loss_is_not_congestion() {
    for (delay_us, seed) in [(500, 1), (20_000, 1), (20_000, 2), (20_000, 3)] {
        let mut world = world(delay_us, 200_000, [plain(1), plain(2)]);
        let mut random = common::Random(seed);
        world.filter = Some(Box::new(move |from, bytes| {
            from == 1 || bytes.len() < 1_000 || !random.happens(10_000)
        }));
        let mut pairs = [connect(&mut world, 80)];
        run(&mut world, &mut pairs, 20 * S, |_| {});
        let used = pairs[0].got as f64 / GOODPUT / 20.0;
        let counters = world.stacks[0].counters();
        eprintln!(
            "{delay_us} {seed}: {used:.3} {} timeouts",
            counters.timeouts
        );
        assert!(used > 0.9, "{used:.3}");
    }
}

#[test]
fn two_share_the_bottleneck() {
    for (delay_us, queue_bytes) in [(20_000, 60_000), (20_000, 200_000), (20_000, 1_000_000)] {
        let mut world = world(delay_us, queue_bytes, [plain(1), plain(2)]);
        let first = connect(&mut world, 80);
        let mut pairs = vec![first];
        run(&mut world, &mut pairs, 3 * S, |_| {});
        let second = connect(&mut world, 81);
        pairs.push(second);
        run(&mut world, &mut pairs, 10 * S, |_| {});
        let before = [pairs[0].got, pairs[1].got];
        run(&mut world, &mut pairs, 40 * S, |_| {});
        let shares = [0, 1].map(|at| (pairs[at].got - before[at]) as f64);
        let sum = shares[0] + shares[1];
        let jain = sum * sum / (2.0 * (shares[0] * shares[0] + shares[1] * shares[1]));
        let used = sum / GOODPUT / 40.0;
        eprintln!("{queue_bytes}: {shares:?}: Jain {jain:.3}, used {used:.3}");
        assert!(jain > 0.9, "{shares:?}: {jain:.3}");
        assert!(used > 0.9, "{used:.3}");
    }
}

/// Rate of a transfer after some seconds with little or no data to send.
fn rate_after(pause: impl Fn(&mut World, &mut [Pair])) -> f64 {
    let mut world = world(20_000, 200_000, [plain(1), plain(2)]);
    let mut pairs = [connect(&mut world, 80)];
    run(&mut world, &mut pairs, 5 * S, |_| {});
    pause(&mut world, &mut pairs);
    let dropped = world.bottleneck.as_ref().expect("there").dropped;
    let before = pairs[0].got;
    run(&mut world, &mut pairs, S, |_| {});
    let after = world.bottleneck.as_ref().expect("there").dropped;
    assert_eq!(after, dropped, "the restart is no burst");
    (pairs[0].got - before) as f64 / GOODPUT
}

fn read_all(world: &mut World, pair: &Pair) {
    let mut scratch = vec![0; 1 << 20];
    while world.stacks[1]
        .read(pair.server, &mut scratch)
        .expect("open")
        > 0
    {}
}

#[test]
fn too_little_to_send_does_not_lower_the_estimate() {
    let used = rate_after(|world, pairs| {
        world.run(2 * S);
        read_all(world, &pairs[0]);
        // A tenth of the rate.
        for _ in 0..400 {
            world.stacks[0]
                .write(pairs[0].client, &[7; 1_250])
                .expect("open");
            world.run(10 * MS);
            read_all(world, &pairs[0]);
        }
    });
    assert!(used > 0.85, "{used:.3}");
}

#[test]
fn after_a_pause_the_rate_is_as_before() {
    let used = rate_after(|world, pairs| {
        world.run(4 * S);
        read_all(world, &pairs[0]);
        world.run(3 * S);
    });
    assert!(used > 0.85, "{used:.3}");
}

/// A router that marks instead of dropping keeps its queue short (RFC 3168, RFC 7567).
#[test]
fn marks_are_obeyed() {
    let mut world = World::with(1, [plain(1), plain(2)], |config| {
        config.congestion = Algorithm::Bbr;
        config.ecn = Ecn::Active;
    });
    world.impairment.delay_ns = 20 * MS;
    world.bottleneck = Some(Bottleneck::marking(MBIT * 1_000_000, 1_000_000, 10 * MS));
    let mut pairs = [connect(&mut world, 80)];
    run(&mut world, &mut pairs, 20 * S, |_| {});
    let used = pairs[0].got as f64 / GOODPUT / 20.0;
    let queue = world.bottleneck.as_ref().expect("there");
    eprintln!(
        "{} marked, {} dropped, used {used:.3}",
        queue.marked, queue.dropped
    );
    assert!(used > 0.85, "{used:.3}");
    assert_eq!(queue.dropped, 0);
    let sent = 20.0 * GOODPUT / 1_448.0;
    assert!((queue.marked as f64) < 0.08 * sent, "{}", queue.marked);
}
