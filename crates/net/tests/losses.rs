//! Losses are repaired by what the peer tells, not by waiting: a long transfer over a lossy link takes
//! few timeouts, and what is sent twice is hardly more than what was lost.

mod common;

use common::{Impairment, MS, S, World, offloading, plain, v4};
use sidecore_net::nic::Capabilities;

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

#[test]
fn one_and_five_per_cent_are_repaired_without_waiting() {
    let segments = (BYTES / 1448) as u64;
    for (loss, timeouts_max) in [(10_000, 3), (50_000, 60)] {
        for seed in 1..5 {
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
        }
    }
}

#[test]
fn reordering_is_no_loss() {
    for seed in 1..5 {
        let impairment = Impairment {
            reorder: 20_000,
            delay_ns: 500_000,
            ..Impairment::default()
        };
        let outcome = transfer([plain(1), plain(2)], impairment, seed);
        eprintln!(
            "reordering: {} ms, {} resent, {} recoveries, {} undone",
            outcome.ns / MS,
            outcome.resent,
            outcome.recoveries,
            outcome.undone
        );
        assert_eq!(outcome.timeouts, 0);
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
