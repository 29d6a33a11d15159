//! Rings against a queue, and against an other side that writes anything at any time.
use proptest::collection::vec;
use proptest::prelude::*;
use sidecore_sync::spsc::lines::{LINE_WORDS, Line, Lines, Reader, SharedLines, Writer};
use sidecore_sync::spsc::{Consumer, Producer, ring};
use sidecore_sys::{SharedMap, Sharing};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

const N: usize = 8;
const POSITION_OFFSET: usize = N * 64;

/// A ring in private memory.
#[derive(Default)]
struct Own {
    lines: [Line; N],
    position: AtomicU64,
}

impl Lines<N> for Own {
    fn line(&self, index: usize) -> Option<&Line> {
        self.lines.get(index)
    }

    fn position(&self) -> Option<&AtomicU64> {
        Some(&self.position)
    }
}

fn entry(number: u64) -> [u64; LINE_WORDS] {
    std::array::from_fn(|word| number.wrapping_mul(word as u64 + 1))
}

proptest! {
    #[test]
    fn a_ring_of_lines_is_a_bounded_queue(steps in vec(any::<bool>(), 0..200)) {
        let own = Own::default();
        let (mut writer, mut reader) = (Writer::<N>::default(), Reader::<N>::default());
        let (mut queue, mut number) = (VecDeque::new(), 0);
        for is_write in steps {
            if is_write {
                let written = writer.write(&own, &entry(number)).unwrap();
                // The reader releases entries in eighths of a ring, here one by one.
                prop_assert_eq!(written, queue.len() < N);
                if written {
                    queue.push_back(entry(number));
                    number += 1;
                }
            } else {
                prop_assert_eq!(reader.is_empty(&own), queue.is_empty());
                prop_assert_eq!(reader.read(&own), queue.pop_front());
            }
        }
    }

    #[test]
    fn a_typed_ring_is_a_bounded_queue(
        capacity in 1_usize..6,
        steps in vec(any::<bool>(), 0..200),
    ) {
        let (mut sender, mut receiver) = ring(capacity, |_| 0_u64);
        let (mut queue, mut number) = (VecDeque::new(), 0);
        for is_write in steps {
            if is_write {
                let place = sender.acquire();
                prop_assert_eq!(place.is_some(), queue.len() < capacity);
                if let Some(mut place) = place {
                    *place = number;
                    place.commit();
                    queue.push_back(number);
                    number += 1;
                }
            } else {
                let place = receiver.wait();
                prop_assert_eq!(place.as_deref().copied(), queue.pop_front());
                if let Some(place) = place {
                    place.release();
                }
            }
        }
    }

    /// Whatever words and positions the other process writes between our steps: no panic, no
    /// access outside, never more entries than steps.
    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn a_hostile_side_gets_a_violation_or_nothing(
        rubbish in vec((0..(POSITION_OFFSET + 64) / 8, any::<u64>()), 1..100),
        small in vec(0..20_u64, 1..100),
    ) {
        let map = SharedMap::create("hostile", 4096, Sharing::ReadWrite).unwrap();
        let lines = SharedLines {
            memory: map.slice(),
            lines_offset: 0,
            position_offset: POSITION_OFFSET,
        };
        let (mut writer, mut reader) = (Writer::<N>::default(), Reader::<N>::default());
        for ((word, value), small) in rubbish.into_iter().zip(small.into_iter().cycle()) {
            let at: &AtomicU64 = map.slice().overlay(word * 8).unwrap();
            // Half of them plausible.
            at.store(if value & 1 == 0 { small } else { value }, Ordering::Release);
            if let Ok(room) = writer.room(&lines, N) {
                prop_assert!(room <= N);
            }
            let _ = writer.write(&lines, &entry(value));
            let mut entries = 0;
            while reader.read(&lines).is_some() {
                entries += 1;
                prop_assert!(entries <= N, "a ring that never ends");
            }
        }
    }

    #[test]
    fn positions_keep_their_order_whatever_the_other_side_writes(
        capacity in 1_u64..100,
        positions in vec(prop_oneof![0..300_u64, any::<u64>()], 1..100),
    ) {
        let (mut producer, mut consumer) = (Producer::new(capacity), Consumer::new(capacity));
        let (ours, theirs) = (AtomicU64::new(0), AtomicU64::new(0));
        for position in positions {
            theirs.store(position, Ordering::Relaxed);
            if let Ok(room) = producer.room(1, &theirs) {
                prop_assert!(room <= capacity);
                producer.advance(room / 2);
                producer.publish(&ours);
            }
            if let Ok(waiting) = consumer.available(&theirs) {
                prop_assert!(waiting <= capacity);
                consumer.advance(waiting / 2);
                consumer.release(&ours);
            }
        }
    }
}

#[test]
fn entries_cross_two_threads_in_order() {
    const ENTRIES: u64 = if cfg!(miri) { 100 } else { 100_000 };
    let own = Own::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = Writer::<N>::default();
            for number in 0..ENTRIES {
                while !writer.write(&own, &entry(number)).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        let mut reader = Reader::<N>::default();
        for number in 0..ENTRIES {
            let words = loop {
                match reader.read(&own) {
                    Some(words) => break words,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(words, entry(number));
        }
        assert!(reader.is_empty(&own));
    });
}
