//! The device's pure parts, driven from seeds and against a plain model.

use super::cache::{Cache, Lookup, SlotId};
use super::readahead::{ReadAhead, Window};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

#[derive(Debug, Clone, Copy)]
enum Step {
    Read { frame: u64, want: usize },
    Finish { pick: usize, valid: usize, ok: bool },
    Unpin { pick: usize, spent: bool },
    Tick,
    Release { ticks: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u64..12, 1usize..100).prop_map(|(frame, want)| Step::Read { frame, want }),
        3 => (any::<usize>(), 1usize..=100, prop::bool::weighted(0.8))
            .prop_map(|(pick, valid, ok)| Step::Finish { pick, valid, ok }),
        3 => any::<(usize, bool)>().prop_map(|(pick, spent)| Step::Unpin { pick, spent }),
        1 => Just(Step::Tick),
        1 => (0u64..4).prop_map(|ticks| Step::Release { ticks }),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    /// Compared with a model that remembers each reader's pins: no slot serves two frames, a hit
    /// has the bytes that its filler left, and pinned slots are never taken. A reader gets no slot
    /// only when all are pinned.
    #[test]
    fn the_cache_never_mixes_frames(steps in steps()) {
        let mut cache = Cache::with_open(4, 1 + steps.len() % 4);
        let mut filling: Vec<(SlotId, u64)> = Vec::new();
        let mut pinned: Vec<(SlotId, u64)> = Vec::new();
        let mut tick = 0;
        let mut holds: HashMap<SlotId, (u64, usize)> = HashMap::new();
        for step in steps {
            match step {
                Step::Read { frame, want } => match cache.look_up(frame, want, true) {
                    Lookup::Hit(slot) => {
                        let (held, valid) = holds[&slot];
                        prop_assert_eq!(held, frame);
                        prop_assert!(valid >= want);
                        pinned.push((slot, frame));
                    }
                    Lookup::Filling(slot) => {
                        prop_assert!(filling.contains(&(slot, frame)));
                        pinned.push((slot, frame));
                    }
                    Lookup::Claimed { slot, .. } => {
                        prop_assert!(!filling.iter().any(|&(other, _)| other == slot));
                        prop_assert!(!pinned.iter().any(|&(other, _)| other == slot));
                        prop_assert!(!filling.iter().any(|&(_, other)| other == frame));
                        holds.remove(&slot);
                        filling.push((slot, frame));
                    }
                    Lookup::Full => {
                        let taken: HashSet<_> =
                            pinned.iter().chain(&filling).map(|&(slot, _)| slot).collect();
                        prop_assert_eq!(taken.len(), 4);
                    }
                },
                Step::Finish { pick, valid, ok } if !filling.is_empty() => {
                    let (slot, frame) = filling.swap_remove(pick % filling.len());
                    if ok {
                        cache.filled(slot, valid);
                        holds.insert(slot, (frame, valid));
                        prop_assert!(cache.is_ready(slot, frame, valid));
                    } else {
                        cache.failed(slot);
                        prop_assert!(!cache.is_ready(slot, frame, 1));
                        prop_assert!(!cache.contains(frame));
                    }
                    pinned.push((slot, frame));
                }
                Step::Unpin { pick, spent } if !pinned.is_empty() => {
                    let (slot, _) = pinned.swap_remove(pick % pinned.len());
                    cache.pins().unpin(slot, spent);
                }
                Step::Tick => {
                    tick += 1;
                    cache.set_tick(tick);
                }
                Step::Release { ticks } => cache.release_idle(ticks, 10, |slot| {
                    assert!(!pinned.iter().chain(&filling).any(|&(other, _)| other == slot));
                    holds.remove(&slot);
                }),
                Step::Finish { .. } | Step::Unpin { .. } => {}
            }
        }
    }

    /// Whatever the reads: nothing past the end, nothing wider than the window.
    #[test]
    fn read_ahead_stays_in_its_window(
        reads in prop::collection::vec((0u64..10_000_000, 1u64..300_000), 1..300),
        window in 0u64..3_000_000,
    ) {
        let mut readers = ReadAhead::default();
        for (offset, len) in reads {
            for window in [Window::Doubling, Window::Earned].map(|kind| kind(window)) {
                let advice = readers.observe(offset, len, 8_000_000, window);
                prop_assert!(advice.ahead.end <= 8_000_000);
                let (Window::Doubling(most) | Window::Earned(most)) = window;
                prop_assert!(advice.ahead.end.saturating_sub(advice.ahead.start) <= most);
            }
        }
    }
}

/// Only the beginning of a frame is cached, and others read it all the time. A reader that needs
/// more of the frame gets another slot; the old slot is free once its readers are done.
#[test]
fn a_pinned_beginning_does_not_keep_the_whole_frame_away() {
    let mut cache = Cache::new(2);
    let claim = |cache: &mut Cache, want| match cache.look_up(7, want, true) {
        Lookup::Claimed { slot, again } => (slot, again),
        other => panic!("{other:?}"),
    };
    let (first, again) = claim(&mut cache, 10);
    assert!(!again && cache.leave(first, 10));
    assert_eq!(cache.look_up(7, 10, true), Lookup::Hit(first));
    let (second, again) = claim(&mut cache, 100);
    assert!(again && second != first);
    // Its readers keep their bytes.
    assert!(cache.is_ready(first, 7, 10));
    assert_eq!(cache.look_up(7, 100, true), Lookup::Filling(second));
    assert!(!cache.leave(second, 10), "somebody counts on the whole");
    cache.filled(second, 100);
    assert_eq!(cache.look_up(7, 100, true), Lookup::Hit(second));
    assert_eq!(cache.look_up(8, 1, true), Lookup::Full);
    cache.pins().unpin(first, false);
    cache.pins().unpin(first, false);
    assert!(matches!(cache.look_up(8, 1, true), Lookup::Claimed { slot, .. } if slot == first));
    assert_eq!(cache.look_up(7, 100, true), Lookup::Hit(second));
}

#[test]
fn a_scan_does_not_push_out_what_is_read_again() {
    let mut cache = Cache::new(8);
    let mut touch = |frame: u64, keep: bool| match cache.look_up(frame, 1, keep) {
        Lookup::Claimed { slot, .. } => {
            cache.filled(slot, 1);
            cache.pins().unpin(slot, false);
            false
        }
        Lookup::Hit(slot) => {
            cache.pins().unpin(slot, false);
            true
        }
        other => panic!("{other:?}"),
    };
    touch(1_000, true);
    let mut hits = 0;
    for frame in 0..100 {
        touch(frame, false);
        hits += u32::from(touch(1_000, true));
    }
    assert_eq!(hits, 100);
}

#[test]
fn a_sequential_reader_is_read_ahead_of_and_each_byte_only_once() {
    let mut readers = ReadAhead::default();
    let (size, step) = (64 << 20, 64 << 10);
    let mut asked = vec![false; (size / step) as usize];
    for offset in (0..size).step_by(step as usize) {
        let advice = readers.observe(offset, step, size, Window::Doubling(2 << 20));
        let (first, last) = (advice.ahead.start / step, advice.ahead.end / step);
        for (frame, asked) in asked
            .iter_mut()
            .enumerate()
            .take(last as usize)
            .skip(first as usize)
        {
            assert!(!*asked, "frame {frame} was asked for twice");
            *asked = true;
        }
    }
    let count = asked.iter().filter(|asked| **asked).count();
    assert!(count > asked.len() - 8, "{count} of {}", asked.len());
}

#[test]
fn an_earned_window_never_asks_for_more_than_was_read_and_soon_reaches_its_limit() {
    let (size, step, most) = (1_u64 << 30, 1_u64 << 20, 64 << 20);
    let mut readers = ReadAhead::default();
    let (mut ahead, mut reads) = (0, 0_u64);
    for offset in (0..size).step_by(step as usize) {
        let advice = readers.observe(offset, step, size, Window::Earned(most));
        ahead = advice.ahead.end.max(ahead);
        reads += 1;
        let read = offset + step;
        assert!(ahead <= 2 * read, "{ahead} after {read}");
        if ahead.saturating_sub(read) == most {
            break;
        }
    }
    assert!(reads <= 128, "{reads} reads until the window was whole");
}

/// The window that a long stream earned serves the next ones; short ones use it up soon.
#[test]
fn a_stream_after_a_long_one_starts_with_a_wide_window() {
    let (size, step, most) = (1_u64 << 34, 1_u64 << 20, 48 << 20);
    let mut readers = ReadAhead::default();
    let mut read = |from: u64, reads: u64| {
        let mut widest = 0;
        for offset in (from..).step_by(step as usize).take(reads as usize) {
            let advice = readers.observe(offset, step, size, Window::Earned(most));
            widest = widest.max(advice.ahead.end.saturating_sub(offset + step));
        }
        widest
    };
    assert_eq!(read(0, 128), most, "it has earned all there is");
    // The first one might continue: it has its share for a while.
    assert_eq!(read(1 << 30, 4), most / 2, "the next one starts with it");
    let mut widths = (2..30).map(|file: u64| read(file << 30, 4));
    assert!(widths.by_ref().take(8).any(|width| width <= 8 * step));
    assert!(
        widths.all(|width| width <= 4 * step),
        "as if each were the first"
    );
}

/// Two readers of one disk, each of a piece of its own: together they ask for one window, and the
/// first asks for nothing that the second has read.
#[test]
fn streams_side_by_side_share_the_window_and_stop_at_one_another() {
    let (size, step, most) = (1_u64 << 34, 1_u64 << 20, 48 << 20);
    let piece = 128 << 20;
    let mut readers = ReadAhead::default();
    for offset in (0..piece).step_by(step as usize) {
        for from in [0, piece] {
            let advice = readers.observe(from + offset, step, size, Window::Earned(most));
            if from == 0 {
                assert!(advice.ahead.end <= piece, "{:?}", advice.ahead);
            }
            let ahead = advice.ahead.end.saturating_sub(from + offset + step);
            assert!(
                offset < 4 * step || ahead <= most / 2,
                "{ahead} at {offset}"
            );
        }
    }
}

#[test]
fn random_readers_cause_no_read_ahead() {
    let mut readers = ReadAhead::default();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let offset = (state >> 33) % (28 << 20) / 4096 * 4096;
        let advice = readers.observe(offset, 4096, 28 << 20, Window::Doubling(2 << 20));
        assert!(
            advice.ahead.is_empty(),
            "read-ahead after a read at {offset}"
        );
    }
}

#[test]
fn four_interleaved_streams_are_told_apart() {
    let mut readers = ReadAhead::default();
    let mut sequential = 0;
    for step in 0..100_u64 {
        for stream in 0..4_u64 {
            let offset = stream * (16 << 20) + step * 65536;
            let advice = readers.observe(offset, 65536, 64 << 20, Window::Doubling(1 << 20));
            sequential += u32::from(advice.sequential);
        }
    }
    assert!(sequential > 380, "{sequential} of 400");
}

#[test]
fn a_stream_goes_round_in_few_slots() {
    let mut cache = Cache::new(64);
    let mut used = std::collections::HashSet::new();
    for frame in 0..1_000 {
        match cache.look_up(frame, 1, false) {
            Lookup::Claimed { slot, .. } => {
                cache.filled(slot, 1);
                cache.pins().unpin(slot, true);
                used.insert(slot.0);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(used.len() < 4, "{} slots", used.len());
}

#[test]
fn the_clock_goes_round_in_open_slots_and_asks_for_more() {
    let mut cache = Cache::with_open(8, 3);
    let read = |cache: &mut Cache, frame| match cache.look_up(frame, 1, false) {
        Lookup::Claimed { slot, .. } => {
            cache.filled(slot, 100);
            slot
        }
        other => panic!("{other:?}"),
    };
    for frame in 0..30 {
        let slot = read(&mut cache, frame);
        assert!(slot.0 < 3, "frame {frame} in closed {slot:?}");
        let asked = frame == 0 || frame % 3 == 2;
        assert_eq!(cache.take_growth_request(), asked, "after frame {frame}");
        cache.pins().unpin(slot, false);
    }
    cache.open_slots(5);
    let slots: Vec<_> = (30..35).map(|frame| read(&mut cache, frame).0).collect();
    assert!(slots.contains(&3) && slots.contains(&4), "{slots:?}");
    // All open ones are pinned: one more is opened rather than to keep a reader waiting.
    assert_eq!(read(&mut cache, 35).0, 5);
    assert_eq!(cache.open(), 6);
}
