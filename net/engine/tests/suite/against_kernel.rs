//! Comparison with the kernel's own TCP, under one seed: the same applications over the same
//! impaired wire, once between two of its sockets and once with our stack at either end, over IPv4
//! and IPv6. The applications must see the same, and the traffic must be valid.
//!
//! Needs root and /dev/net/tun, or is skipped with a note, unless `SIDECORE_ALL_PROGRAMS` is set.
//! Many seeds: `cargo run --release -p sidecore-net --example differential_net`.

use crate::kernel;
use crate::namespace;

use kernel::Run;
use kernel::case::{Bottleneck, Case};
use kernel::judge::{DROPS_MORE, Drops, Tally, judge, judge_drops};
use kernel::script::Event;
use kernel::segment::{ACK, FIN, RST, SYN, Segment};
use kernel::wire::{DROPPED, Flow, Passed};
use std::time::Duration;

#[test]
fn applications_see_the_same_as_between_two_kernels() {
    if namespace::is_left_out(kernel::obstacle()) {
        return;
    }
    let cases: Vec<Case> = (1..=SEEDS).map(Case::of).collect();
    assert!(cases.iter().any(|case| case.v6) && cases.iter().any(|case| !case.v6));
    let narrow = |case: &Case| case.bottlenecks.iter().any(Option::is_some);
    assert!(cases.iter().any(narrow));
    let runs = kernel::run(&cases, LIMIT);
    let mut failed = Vec::new();
    for (case, runs) in cases.iter().zip(&runs) {
        let mut complaints = judge(case, runs);
        complaints.extend(heedless(runs));
        for complaint in complaints {
            failed.push(format!("seed {} ({:?}): {complaint}", case.seed, case.kind));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Reports a sender of ours that ignores a full queue. `judge_drops` is more precise, but needs
/// further attempts and an idle machine.
fn heedless(runs: &[Run; 3]) -> Option<String> {
    (0..2).find_map(|side| {
        let sent = Tally::of(&runs[2 - side].flow, side).sent;
        let drops = Drops::of(runs, side);
        let most = 2 * drops.kernels + sent / 4 + DROPS_MORE;
        (drops.ours > most).then(|| format!("of {sent} segments queues drop {drops:?}"))
    })
}

/// A segment of the client's (0) or of the server's (1); their first numbers are 100 and 500.
fn segment(from: usize, sequence: u32, acknowledgment: u32, payload_bytes: usize) -> Segment {
    Segment {
        ports: [[40_000, 20_000], [20_000, 40_000]][from],
        sequence,
        acknowledgment,
        flags: ACK,
        window: 1000,
        payload_bytes,
        kinds: vec![1, 1, 8],
        mss: None,
        scale: None,
        stamps: Some((7, 7)),
        blocks: Vec::new(),
        intact: true,
    }
}

/// A session whose server then sends these segments.
fn flow(more: Vec<Segment>) -> Flow {
    let opening = |from, sequence, acknowledgment, flags| Segment {
        flags,
        kinds: vec![2, 4, 8, 1, 3],
        mss: Some(1460),
        scale: Some(0),
        ..segment(from, sequence, acknowledgment, 0)
    };
    let mut segments = vec![
        (0, opening(0, 100, 0, SYN)),
        (1, opening(1, 500, 101, SYN | ACK)),
        (0, segment(0, 101, 501, 300)),
        (1, segment(1, 501, 401, 100)),
    ];
    segments.extend(more.into_iter().map(|segment| (1, segment)));
    let mut flow = Flow::default();
    for (direction, segment) in segments {
        for arrived in [false, true] {
            flow.passed.push(Passed {
                at_ns: 0,
                direction,
                arrived,
                fate: "",
                segment: segment.clone(),
            });
        }
    }
    flow
}

/// Findings on the wire if our server sends these segments as well.
fn found(more: Vec<Segment>) -> String {
    let run = |more| Run {
        logs: Default::default(),
        flow: flow(more),
    };
    let mut case = Case::of(1);
    for script in &mut case.scripts {
        script.segment_bytes = None;
    }
    judge(&case, &[run(vec![]), run(more), run(vec![])]).join("\n")
}

#[test]
fn the_judge_finds_what_is_wrong_and_nothing_else() {
    let next = || segment(1, 601, 401, 100);
    assert_eq!(found(vec![next()]), "");
    let with = |change: fn(&mut Segment)| {
        let mut segment = segment(1, 601, 401, 100);
        change(&mut segment);
        vec![segment]
    };
    for (more, complaint) in [
        (with(|it| it.payload_bytes = 901), "goes beyond the window"),
        (with(|it| it.sequence = 602), "leaves out"),
        (with(|it| it.acknowledgment = 402), "acknowledges more"),
        (with(|it| it.acknowledgment = 400), "acknowledges less"),
        (with(|it| it.window = 998), "takes back a window"),
        (with(|it| it.kinds = vec![8, 1, 1]), "options [8, 1, 1]"),
        (
            with(|it| it.stamps = Some((6, 7))),
            "a clock that goes back",
        ),
        (
            with(|it| it.stamps = Some((7, 8))),
            "an echo of what never came",
        ),
        (with(|it| it.intact = false), "a wrong checksum"),
        (
            with(|it| it.blocks = vec![(450, 460)]),
            "did not come whole",
        ),
        (
            with(|it| it.blocks = vec![(101, 201), (301, 401)]),
            "which it acknowledges",
        ),
        (
            [with(|it| it.flags = RST), vec![next()]].concat(),
            "something after a reset",
        ),
        (
            [with(|it| it.flags |= FIN), vec![segment(1, 701, 401, 9)]].concat(),
            "goes beyond its FIN",
        ),
        (vec![segment(1, 501, 401, 100); 20], "were sent again"),
    ] {
        let found = found(more);
        assert!(found.contains(complaint), "{complaint}: {found}");
    }
}

#[test]
fn another_end_is_a_difference() {
    let run = |event: Event| Run {
        logs: [[vec![event], vec![]], Default::default()],
        flow: flow(vec![]),
    };
    let runs = [run(Event::End), run(Event::End), run(Event::Read(1))];
    let found = judge(&Case::of(1), &runs);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("OursConnects: the client saw"));
}

/// Runs in which a queue drops this many of the server's frames: between kernels, and of ours.
fn dropping(kernels: usize, ours: usize) -> [Run; 3] {
    [kernels, ours, kernels].map(|count| {
        let mut flow = flow(vec![]);
        let sent = flow.passed[4].clone();
        let dropped = Passed {
            direction: 1,
            arrived: false,
            fate: DROPPED,
            ..sent
        };
        flow.passed.extend(std::iter::repeat_n(dropped, count));
        Run {
            logs: Default::default(),
            flow,
        }
    })
}

#[test]
fn too_many_drops_at_each_attempt_are_found() {
    let mut case = Case::of(1);
    case.bottlenecks = [
        None,
        Some(Bottleneck {
            bits_per_second: 1_000_000,
            queue_bytes: 15_000,
        }),
    ];
    let chance = DROPS_MORE + case.held_frames(1) / 2;
    let few = dropping(30, 60 + chance);
    let many = dropping(30, 61 + chance);
    assert_eq!(
        Drops::of(&many, 1),
        Drops {
            kernels: 30,
            ours: 61 + chance,
            towards_ours: 30
        }
    );
    assert!(judge_drops(&case, &[&few]).is_empty());
    assert!(judge_drops(&case, &[&many, &few]).is_empty());
    let found = judge_drops(&case, &[&many, &many]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("too much of the server's"), "{found:?}");
    assert!(heedless(&dropping(0, DROPS_MORE)).is_none());
    assert!(heedless(&dropping(0, 2 * DROPS_MORE)).is_some());
}

/// Two of each kind.
const SEEDS: u64 = 24;
/// Time limit of a case.
const LIMIT: Duration = Duration::from_secs(240);
