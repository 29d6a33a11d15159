//! Whatever the network does, the application reads the written data: seeded schedules.
//!
//! A failure prints its seed; to run that one alone:
//!
//! `SIDECORE_SEED=n cargo test -p sidecore-net-stack --test suite simulation::`.

use crate::common;

use common::{Impairment, MS, Random, S, World, offloading, plain, v4, v6};
use sidecore_net_stack::{Algorithm, Ecn, SessionId};

const MODES: [Ecn; 4] = [Ecn::Off, Ecn::Passive, Ecn::Active, Ecn::Accurate];

/// Bytes that both ends write, and those that they have read.
struct Flow {
    id: SessionId,
    data: Vec<u8>,
    written: usize,
    got: Vec<u8>,
    closed: bool,
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut state = random.bits();
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

/// One schedule: a session that carries data both ways over an impaired link and is closed.
fn schedule(seed: u64) {
    let mut random = Random(seed);
    let offload = random.below(3) == 0;
    let nics = if offload {
        [offloading(1), offloading(2)]
    } else {
        [plain(1), plain(2)]
    };
    let choice = random.clone();
    let mut world = World::with(seed, nics, |config| {
        let mut random = choice.clone();
        config.offers.sack = random.below(4) > 0;
        config.offers.timestamps = random.below(4) > 0;
        config.offers.window_scaling = random.below(4) > 0;
        config.no_delay = random.below(2) == 0;
        config.ecn = MODES[random.below(4) as usize];
        let algorithms = [Algorithm::Cubic, Algorithm::Reno, Algorithm::Bbr];
        config.congestion = algorithms[random.below(3) as usize];
        if random.below(3) == 0 {
            config.receive_bytes = 4096 + random.below(60_000) as u32;
            config.send_bytes = 4096 + random.below(60_000) as u32;
        }
    });
    let to = if random.below(2) == 0 {
        v4(2, 80)
    } else {
        v6(2)
    };
    let listener = world.stacks[1].listen(to, 16).expect("listens");
    let client = world.stacks[0].connect(to, None).expect("connects");
    let level = [0, 1_000, 20_000, 60_000];
    let pick = |random: &mut Random| level[random.below(4) as usize];
    world.impairment = Impairment {
        loss: pick(&mut random),
        reorder: pick(&mut random) * 3,
        duplicate: pick(&mut random),
        corrupt: pick(&mut random) / 4,
        delay_ns: 10_000 + random.below(5_000_000),
        jitter_ns: random.below(100_000),
    };
    let mut flows: Vec<Option<Flow>> = vec![None, None];
    let len = [0, 10, 5_000, 300_000];
    let flow = |id, random: &mut Random| {
        let most = len[random.below(4) as usize] + 1;
        let len = random.below(most) as usize;
        Flow {
            id,
            data: bytes(random, len),
            written: 0,
            got: Vec::new(),
            closed: false,
        }
    };
    flows[0] = Some(flow(client, &mut random));
    let limit = world.now_ns + 3_000 * S;
    let mut scratch = vec![0; 1 << 16];
    loop {
        if flows[1].is_none()
            && let Some(id) = world.stacks[1].accept(listener).expect("listens")
        {
            flows[1] = Some(flow(id, &mut random));
        }
        for (end, flow) in flows.iter_mut().enumerate() {
            let Some(flow) = flow else { continue };
            let stack = &mut world.stacks[end];
            if let Some(error) = stack.readiness(flow.id).expect("open").error {
                panic!("end {end}: {error} after {} bytes", flow.got.len());
            }
            if random.below(3) > 0 {
                let most = random.below(scratch.len() as u64) as usize;
                let count = stack.read(flow.id, &mut scratch[..most]).expect("reads");
                flow.got.extend(&scratch[..count]);
            }
            if flow.written < flow.data.len() {
                let most = (1 + random.below(40_000) as usize).min(flow.data.len() - flow.written);
                let piece = &flow.data[flow.written..flow.written + most];
                flow.written += stack.write(flow.id, piece).expect("writes");
            } else if !flow.closed {
                stack.shutdown_write(flow.id).expect("open");
                flow.closed = true;
            }
        }
        if let [Some(a), Some(b)] = &flows[..] {
            let done = |stack: &sidecore_net_stack::Stack, flow: &Flow| {
                stack.readiness(flow.id).expect("open").end_of_input()
            };
            let all = a.got.len() == b.data.len() && b.got.len() == a.data.len();
            if all && done(&world.stacks[0], a) && done(&world.stacks[1], b) {
                break;
            }
        }
        assert!(
            world.now_ns < limit,
            "not done after 3,000 s: {:?}",
            progress(&flows)
        );
        let until = world.now_ns + 1 + random.below(20 * MS);
        if !world.step(until) {
            world.now_ns = until;
        }
    }
    let [Some(a), Some(b)] = &flows[..] else {
        unreachable!()
    };
    assert!(
        a.got == b.data && b.got == a.data,
        "other bytes than were written"
    );
    let (a, b) = (a.id, b.id);
    world.stacks[0].close(a).expect("open");
    world.stacks[1].close(b).expect("open");
    world.run(400 * S);
    for stack in &world.stacks {
        assert_eq!(stack.sessions(), 0, "a session is left over");
        assert_eq!(stack.buffers().in_use, 0, "a buffer is left over");
    }
}

fn progress(flows: &[Option<Flow>]) -> Vec<(usize, usize, usize)> {
    let of = |flow: &Flow| (flow.written, flow.data.len(), flow.got.len());
    flows.iter().flatten().map(of).collect()
}

#[test]
fn any_schedule_yields_the_bytes_that_were_written() {
    let chosen = std::env::var("SIDECORE_SEED").ok();
    let seeds = match chosen.and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 1..2_001_u64,
    };
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| schedule(seed)) {
            eprintln!("the schedule of SIDECORE_SEED={seed} failed");
            std::panic::resume_unwind(panic);
        }
    }
}
