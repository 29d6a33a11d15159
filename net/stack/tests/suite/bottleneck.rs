//! Congestion control at a bottleneck with a finite queue: the link is used, and the queue drops
//! only what probing for its end costs.
//!
//! Random loss (`losses.rs`) never shows whether a sender respects a queue: there, a needless undo
//! or a burst costs nothing.
//! `lab/apps/tests/suite/bottleneck_kernel.rs` compares with the kernel on a live link.

use crate::common;

use common::bottleneck::Bottleneck;
use common::{MS, S, World, offloading, plain, v4};
use sidecore_net_stack::Config;
use sidecore_net_stack::frame::Capabilities;

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
