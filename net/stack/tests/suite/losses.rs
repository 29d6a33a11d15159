//! Losses are recovered by the peer's reports, not by timeouts: a long transfer over a lossy link
//! has few timeouts, retransmissions hardly exceed losses, and the rate is that of the congestion
//! control. Late or duplicated segments are not losses, and do not cost rate.

use crate::common;

use common::{Impairment, MS, S, World, offloading, plain, v4};
use sidecore_net_stack::frame::Capabilities;

const BYTES: usize = 8 << 20;

struct Outcome {
    ns: u64,
    timeouts: u64,
    resent: u64,
    recoveries: u64,
    undone: u64,
}

fn transfer(nics: [Capabilities; 2], impairment: Impairment, seed: u64) -> Outcome {
    let mut world = World::with(seed, nics, |_| {});
    let listener = world.stacks[1].listen(v4(2, 80), 4).expect("listens");
    let client = world.stacks[0].connect(v4(2, 80), None).expect("connects");
    world.run(10 * MS);
    let server = world.stacks[1]
        .accept(listener)
        .expect("open")
        .expect("one");
    world.impairment = impairment;
    let data: Vec<u8> = (0..1 << 16_u32)
        .map(|at: u32| ((at * 31) >> 3) as u8)
        .collect();
    let (mut written, mut got) = (0, 0);
    let began = world.now_ns;
    let mut scratch = vec![0; 1 << 20];
    while got < BYTES {
        if written < BYTES {
            let from = written % data.len();
            written += world.stacks[0].write(client, &data[from..]).expect("open");
        }
        let count = world.stacks[1].read(server, &mut scratch).expect("open");
        for (at, &byte) in scratch[..count].iter().enumerate() {
            assert_eq!(byte, data[(got + at) % data.len()], "byte {}", got + at);
        }
        got += count;
        assert!(
            world.now_ns < began + 1_000 * S,
            "{got} of {BYTES} after 1,000 s"
        );
        let until = world.now_ns + MS;
        world.step(until);
    }
    let counters = world.stacks[0].counters();
    Outcome {
        ns: world.now_ns - began,
        timeouts: counters.timeouts,
        resent: counters.retransmitted,
        recoveries: counters.recoveries,
        undone: counters.undone,
    }
}

/// RFC 9438 section 5.1 with its numbers for the Reno-friendly region, which applies on such a
/// short path: the mean window in segments is sqrt(3/2) / sqrt(p). Section 5.2's for the cubic
/// region is much smaller here. Nanoseconds for all bytes, with a round trip per window.
fn expected_ns(loss: u64, round_trip_ns: u64) -> u64 {
    let window = (1.5 / (loss as f64 / 1e6)).sqrt();
    ((BYTES as f64 / 1448.0) / window * round_trip_ns as f64) as u64
}

#[test]
fn one_and_five_per_cent_are_repaired_without_waiting() {
    let segments = (BYTES / 1448) as u64;
    for (loss, timeouts_max, times_max) in [(10_000, 1, 1.5), (50_000, 5, 2.0)] {
        let mut all_ns = 0;
        for seed in 1..9 {
            let impairment = Impairment {
                loss,
                delay_ns: 500_000,
                ..Impairment::default()
            };
            let outcome = transfer([plain(1), plain(2)], impairment, seed);
            let lost = segments * loss / 1_000_000;
            eprintln!(
                "loss {loss}: {} ms, {} timeouts, {} resent of about {lost} lost, {} recoveries",
                outcome.ns / MS,
                outcome.timeouts,
                outcome.resent,
                outcome.recoveries
            );
            assert!(
                outcome.timeouts <= timeouts_max,
                "{} timeouts",
                outcome.timeouts
            );
            assert!(outcome.resent <= 2 * lost + 50, "{} resent", outcome.resent);
            all_ns += outcome.ns;
        }
        // The model ignores the round trip of a recovery, and lost acknowledgments.
        let times = all_ns as f64 / 8.0 / expected_ns(loss, MS) as f64;
        eprintln!("loss {loss}: {times:.2} times as long as RFC 9438 section 5.1 has it");
        assert!(times < times_max, "{times:.2} times as long as expected");
    }
}

/// Ratio of a transfer's virtual time with the impairment to that without.
fn slowdown(impairment: Impairment, seed: u64) -> (f64, Outcome) {
    let clean = Impairment {
        delay_ns: impairment.delay_ns,
        jitter_ns: impairment.jitter_ns,
        ..Impairment::default()
    };
    let clean = transfer([plain(1), plain(2)], clean, seed);
    let outcome = transfer([plain(1), plain(2)], impairment, seed);
    (outcome.ns as f64 / clean.ns as f64, outcome)
}

/// A late segment holds back later data, and the receive window fills: with an extra delay of up to
/// two round trips for one segment of fifty, some of them in each window, a window takes up to
/// three round trips. Window reductions without an undo would cost ten times as much.
#[test]
fn reordering_is_no_loss() {
    let (mut all, mut kept) = (0.0, 0);
    for seed in 1..9 {
        let impairment = Impairment {
            reorder: 20_000,
            delay_ns: 500_000,
            ..Impairment::default()
        };
        let (times, outcome) = slowdown(impairment, seed);
        eprintln!(
            "reordering: {times:.2} times as long, {} resent, {} recoveries, {} undone",
            outcome.resent, outcome.recoveries, outcome.undone
        );
        assert_eq!(outcome.timeouts, 0);
        kept += outcome.recoveries - outcome.undone;
        all += times;
    }
    // Two of a transfer.
    assert!(kept <= 2 * 8, "{kept} recoveries were not undone");
    assert!(all / 8.0 < 4.0, "{:.2} times as long", all / 8.0);
}

#[test]
fn duplicates_are_no_loss() {
    for seed in 1..9 {
        let impairment = Impairment {
            duplicate: 50_000,
            delay_ns: 500_000,
            ..Impairment::default()
        };
        let (times, outcome) = slowdown(impairment, seed);
        assert_eq!(outcome.resent + outcome.timeouts + outcome.recoveries, 0);
        assert!(times < 1.05, "{times:.2} times as long");
    }
}

/// Once RACK has learned the reordering window, it waits for late segments: RFC 8985 section 6.2.4.
#[test]
fn patience_is_learned() {
    for seed in 1..9 {
        let impairment = Impairment {
            // All within half a round trip.
            jitter_ns: 500_000,
            delay_ns: 500_000,
            ..Impairment::default()
        };
        let outcome = transfer([plain(1), plain(2)], impairment, seed);
        let segments = (BYTES / 1448) as u64;
        eprintln!(
            "jitter: {} ms, {} timeouts, {} resent, {} recoveries, {} undone",
            outcome.ns / MS,
            outcome.timeouts,
            outcome.resent,
            outcome.recoveries,
            outcome.undone
        );
        assert!(outcome.resent < segments / 50, "{} resent", outcome.resent);
        assert!(outcome.recoveries - outcome.undone <= 1);
    }
}

#[test]
fn a_clean_link_sends_nothing_twice() {
    let impairment = Impairment {
        delay_ns: 500_000,
        ..Impairment::default()
    };
    for nics in [[plain(1), plain(2)], [offloading(1), offloading(2)]] {
        let outcome = transfer(nics, impairment, 1);
        assert_eq!(outcome.resent + outcome.timeouts + outcome.recoveries, 0);
        // A window of a mebibyte in a round trip of a millisecond, after slow start.
        assert!(outcome.ns < 40 * MS, "{} ms", outcome.ns / MS);
    }
}

/// RFC 9438 section 4.2, figure 1: the window after one loss, over the time since the recovery
/// ended, is C (t - K)^3 + W_max; in segments and seconds. A round trip of 100 ms, so that the
/// Reno-friendly region does not apply.
#[test]
fn the_window_follows_the_cubic_function() {
    let mut world = World::with(3, [plain(1), plain(2)], |config| {
        config.send_bytes = 8 << 20;
        config.receive_bytes = 8 << 20;
    });
    world.impairment.delay_ns = 50 * MS;
    let listener = world.stacks[1].listen(v4(2, 80), 4).expect("listens");
    let client = world.stacks[0].connect(v4(2, 80), None).expect("connects");
    world.run(S);
    let server = world.stacks[1].accept(listener).expect("open");
    let server = server.expect("one");
    let data = vec![5; 1 << 20];
    let mut scratch = vec![0; 1 << 20];
    let mut go_on = |world: &mut World, ns: u64| {
        let until = world.now_ns + ns;
        while world.now_ns < until {
            world.stacks[0].write(client, &data).expect("open");
            while world.stacks[1].read(server, &mut scratch).expect("open") > 0 {}
            let at = (world.now_ns + MS).min(until);
            if !world.step(at) {
                world.now_ns = at;
            }
        }
        let info = world.stacks[0].info(client).expect("open");
        (
            f64::from(info.window) / f64::from(info.mss),
            info.recovering,
        )
    };
    let mut window = 0.0;
    while window < 100.0 {
        window = go_on(&mut world, 10 * MS).0;
    }
    // One full segment is lost.
    let mut lost = false;
    world.filter = Some(Box::new(move |from, bytes| {
        let loses = from == 0 && bytes.len() > 1_000 && !lost;
        lost |= loses;
        !loses
    }));
    let mut at_loss = window;
    loop {
        let (now, recovering) = go_on(&mut world, MS);
        if recovering {
            break;
        }
        at_loss = now;
    }
    while go_on(&mut world, MS).1 {}
    let began_ns = world.now_ns;
    let w_max = at_loss;
    let k = (w_max * 0.3 / 0.4_f64).cbrt();
    assert!(k > 5.0, "W_max {w_max}, K {k}");
    let (mut worst, mut last, mut samples): (f64, f64, u32) = (0.0, 0.0, 0);
    while last < 1.3 * w_max {
        last = go_on(&mut world, 200 * MS).0;
        let t = (world.now_ns - began_ns) as f64 / 1e9;
        let expected = 0.4 * (t - k).powi(3) + w_max;
        worst = worst.max((last / expected - 1.0).abs());
        samples += 1;
        assert!(t < 3.0 * k, "{last} of {w_max} after {t} s");
    }
    let per_cent = 100.0 * worst;
    eprintln!("W_max {w_max:.0}, K {k:.1} s: {per_cent:.2} % off at most, {samples} samples");
    assert!(
        samples > 40 && per_cent < 4.0,
        "{per_cent:.2} % off, {samples} samples"
    );
    assert_eq!(world.stacks[0].counters().recoveries, 1);
}

/// The time of the segment that was delivered last before a pause of 36 to 71 minutes was later
/// than those of new ones, by a clock of 32 bits: with a longer round trip, all of them were lost.
#[test]
fn a_long_pause_makes_no_segment_look_lost() {
    let mut world = World::new(1);
    let listener = world.stacks[1].listen(v4(2, 80), 4).expect("listens");
    let client = world.stacks[0].connect(v4(2, 80), None).expect("connects");
    world.run(10 * MS);
    let server = world.stacks[1].accept(listener).expect("open");
    let server = server.expect("one");
    world.impairment.delay_ns = 5 * MS;
    let (data, mut scratch) = (vec![1; 64 << 10], vec![0; 1 << 20]);
    for _ in 0..2 {
        let (mut written, mut got) = (0, 0);
        while got < 1 << 20 {
            if written < 1 << 20 {
                written += world.stacks[0].write(client, &data).expect("open");
            }
            got += world.stacks[1].read(server, &mut scratch).expect("open");
            let until = world.now_ns + MS;
            world.step(until);
        }
        world.run(40 * 60 * S);
        world.impairment.delay_ns *= 2;
    }
    let counters = world.stacks[0].counters();
    assert_eq!((counters.recoveries, counters.timeouts), (0, 0));
}
