//! Programs that share engines, in virtual time and from a seed.

use crate::contexts::{Operation, Ready, ReadyQueue, Sharing, Turn};
use crate::policy::Nanos;

const SWITCH_NS: Nanos = 1_000;
const POLL_NS: Nanos = 200;

/// A program's way of life.
#[derive(Clone, Copy)]
enum Life {
    /// Works all the time, with an operation every so often.
    Works { step_ns: Nanos },
    /// Asks again and again whether a word is there; none comes.
    Polls,
    /// Waits for a word, which comes after a pause, and works a little on each.
    Answers { pause_ns: Nanos, work_ns: Nanos },
}

/// Outcome of one program.
#[derive(Clone, Copy, Default)]
struct Lived {
    worked_ns: Nanos,
    answers: u64,
    /// From a word's coming to the program's getting an engine.
    late_ns_max: Nanos,
    late_ns_sum: Nanos,
    /// Ready without an engine, at a stretch.
    waited_ns_max: Nanos,
}

/// One engine's time, shared for so long.
fn share(sharing: Sharing, lives: &[Life], long_ns: Nanos, mut seed: u64) -> Vec<Lived> {
    let mut drawn = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut lived = vec![Lived::default(); lives.len()];
    let mut queue = ReadyQueue::new(sharing);
    // Words under way: their times and receivers.
    let mut words: Vec<(Nanos, usize)> = Vec::new();
    let mut ready_since = vec![0; lives.len()];
    let mut now = 0;
    for (index, life) in lives.iter().enumerate() {
        match life {
            Life::Answers { pause_ns, .. } => words.push((drawn() % pause_ns, index)),
            _ => queue.push(index, Ready::Event),
        }
    }
    while now < long_ns {
        words.sort_unstable();
        while words.first().is_some_and(|(at, _)| *at <= now) {
            let (at, index) = words.remove(0);
            queue.push(index, Ready::Event);
            ready_since[index] = at;
        }
        let Some(index) = queue.take(|| now) else {
            now = words.first().map_or(long_ns, |(at, _)| *at);
            continue;
        };
        let late = now - ready_since[index];
        lived[index].waited_ns_max = lived[index].waited_ns_max.max(late);
        now += SWITCH_NS;
        let mut turn = Turn::new(sharing, now);
        loop {
            let (step, operation) = match lives[index] {
                Life::Works { step_ns } => (step_ns / 2 + drawn() % step_ns, Operation::Done),
                Life::Polls => (POLL_NS, Operation::InVain),
                Life::Answers { work_ns, .. } => (work_ns, Operation::Done),
            };
            now += step;
            if let Life::Answers { pause_ns, .. } = lives[index] {
                let own = &mut lived[index];
                own.answers += 1;
                own.late_ns_sum += late;
                own.late_ns_max = own.late_ns_max.max(late);
                words.push((now + pause_ns / 2 + drawn() % pause_ns, index));
                break;
            }
            if operation == Operation::Done {
                lived[index].worked_ns += step;
            }
            let others = !queue.is_empty() || words.iter().any(|(at, _)| *at <= now);
            let gives_way = turn.operation(now, operation);
            if let Some(ready) = gives_way.filter(|_| others) {
                queue.push(index, ready);
                ready_since[index] = now;
                break;
            }
            if now >= long_ns {
                break;
            }
        }
    }
    lived
}

const SEEDS: std::ops::Range<u64> = 1..20;
const LONG_NS: Nanos = 200_000_000;

#[test]
fn who_polls_leaves_the_engine_to_who_works() {
    let mut lives = vec![Life::Polls; 7];
    lives.push(Life::Works { step_ns: 10_000 });
    for seed in SEEDS {
        let share_of = |sharing| share(sharing, &lives, LONG_NS, seed)[7].worked_ns * 100 / LONG_NS;
        let (before, now) = (share_of(Sharing::Arrival), share_of(Sharing::Edtlp));
        assert!(before < 15, "seed {seed}: {before} %");
        assert!(now > 90, "seed {seed}: {now} %");
    }
}

#[test]
fn an_answer_does_not_wait_for_all_who_work() {
    let mut lives = vec![Life::Works { step_ns: 10_000 }; 9];
    lives.push(Life::Answers {
        pause_ns: 50_000,
        work_ns: 2_000,
    });
    for seed in SEEDS {
        let answers = |sharing| share(sharing, &lives, LONG_NS, seed)[9];
        let (before, now) = (answers(Sharing::Arrival), answers(Sharing::Edtlp));
        let mean = |lived: Lived| lived.late_ns_sum / lived.answers;
        assert!(mean(before) > 1_500_000, "seed {seed}: {} ns", mean(before));
        // Those that begin are ready by an event, too: the first word may wait for all of them.
        assert!(mean(now) < 400_000, "seed {seed}: {} ns", mean(now));
        assert!(
            now.late_ns_max <= 10 * 220_000,
            "seed {seed}: {}",
            now.late_ns_max
        );
    }
}

#[test]
fn those_who_work_get_equal_shares() {
    let lives = [1_000, 5_000, 20_000, 50_000, 100_000].map(|step_ns| Life::Works { step_ns });
    for seed in SEEDS {
        let shares: Vec<_> = share(Sharing::Edtlp, &lives, LONG_NS, seed)
            .iter()
            .map(|lived| lived.worked_ns * 100 / LONG_NS)
            .collect();
        // A slice ends at an operation: the last one's are a quarter longer.
        assert!(
            shares.iter().all(|share| (15..=27).contains(share)),
            "seed {seed}: {shares:?}"
        );
    }
}

#[test]
fn nobody_starves_beside_a_storm_of_answers() {
    let mut lives = vec![
        Life::Answers {
            pause_ns: 10_000,
            work_ns: 15_000,
        };
        20
    ];
    lives.push(Life::Works { step_ns: 10_000 });
    lives.push(Life::Polls);
    for seed in SEEDS {
        let lived = share(Sharing::Edtlp, &lives, LONG_NS, seed);
        for (index, own) in lived.iter().enumerate() {
            // Behind all programs of the same age: once round.
            let most = 1_000_000 + 22 * 2 * 220_000;
            assert!(
                own.waited_ns_max < most,
                "seed {seed}, {index}: {}",
                own.waited_ns_max
            );
        }
        assert!(
            lived[20].worked_ns > LONG_NS / 20,
            "seed {seed}: {}",
            lived[20].worked_ns
        );
    }
}

#[test]
fn who_works_between_two_questions_keeps_its_slice() {
    let mut turn = Turn::new(Sharing::Edtlp, 0);
    let gave = (1..)
        .map(|look| look * 5_000)
        .find(|now| turn.operation(*now, Operation::InVain).is_some());
    assert_eq!(gave, Some(205_000));
    let mut turn = Turn::new(Sharing::Edtlp, 0);
    // Three questions, an answer, three questions, ...
    let gave = (1..2_000u64).map(|look| look * 100);
    let mut gave = gave.map(|now| match now % 400 {
        0 => turn.operation(now, Operation::Done),
        _ => turn.operation(now, Operation::InVain),
    });
    assert_eq!(gave.find(Option::is_some), None);
    let mut turn = Turn::new(Sharing::Edtlp, 0);
    let gave = (1..)
        .map(|look| look * 100)
        .find(|now| turn.operation(*now, Operation::InVain).is_some());
    assert_eq!(
        (gave, turn.operation(500, Operation::InVain)),
        (Some(400), Some(Ready::Poll(500)))
    );
}

#[test]
fn what_came_makes_who_polled_ready_at_once() {
    let mut queue = ReadyQueue::new(Sharing::Edtlp);
    for program in 0..4 {
        queue.push(program, Ready::Poll(0));
    }
    queue.push(9, Ready::Slice);
    assert!(queue.came(|program| *program == 2));
    assert!(!queue.came(|program| *program == 2) && !queue.came(|program| *program == 9));
    let order: Vec<_> = std::iter::from_fn(|| queue.take(|| 10)).collect();
    assert_eq!(order, [2, 9, 0, 1, 3]);
    assert!(queue.is_empty());
    // In the order of arrival there are no kinds.
    queue.share_by(Sharing::named("fifo").unwrap_or_default());
    queue.push(1, Ready::Poll(0));
    queue.push(2, Ready::Event);
    assert_eq!(
        (queue.len(), queue.take(|| 0), queue.take(|| 0)),
        (2, Some(1), Some(2))
    );
    assert_eq!(Sharing::named("best"), None);
}
