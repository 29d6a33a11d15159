//! Models of the jobs' rings: every interleaving of small cases.
//!
//! A lost wake-up shows as a deadlock.

use super::*;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use sidecore_bare::width::ToUsize;

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

/// A client's rings, the positions of the engines in it, and the words that these sleep at.
struct Area {
    submitted: JobRing,
    completed: JobRing,
    slots: [JobSlot; JOBS_MAX],
    sleep: JobSleep,
    heads: JobHeads,
    engines: Vec<SleepWord<Shared>>,
    /// Stands for the attachment's descriptor: bytes that were sent.
    sent: AtomicUsize,
    bell: SleepWord<Shared>,
}

impl Area {
    fn new(engines: usize) -> Arc<Self> {
        Arc::new(Self {
            submitted: JobRing(zeros()),
            completed: JobRing(zeros()),
            slots: std::array::from_fn(|_| JobSlot {
                state: AtomicU32::new(0),
                spare: AtomicU32::new(0),
                head: AtomicU64::new(0),
                words: zeros(),
                rest: zeros(),
            }),
            sleep: JobSleep {
                waiter: SleepWord::new(),
                descriptor: SleepWord::new(),
                spare: zeros(),
            },
            heads: JobHeads::default(),
            engines: (0..engines).map(|_| SleepWord::new()).collect(),
            sent: AtomicUsize::new(0),
            bell: SleepWord::new(),
        })
    }

    fn submit(&self, position: u64, place: usize, word: u64, open: usize) {
        let mut packet = JobPacket::default();
        packet.words[0] = word;
        self.slots[place].ask(&packet);
        self.submitted.submit(position, place);
        wake_one(self.engines.iter(), |_| true, open);
    }

    /// Serves the job that waits, if one does.
    fn serve(&self) -> bool {
        let Some(place) = self.heads.take(&self.submitted) else {
            return false;
        };
        let slot = &self.slots[place];
        let status = if slot.begin() {
            let mut words = slot.packet().words;
            words[0] += 1;
            slot.answer(&words, "");
            0
        } else {
            4
        };
        self.heads.complete(&self.completed, place, status);
        if self.sleep.tell() {
            self.sent.fetch_add(1, Ordering::Release);
            self.bell.notify();
        }
        true
    }

    /// Sleeps as engine `engine` until a job waits.
    fn doze(&self, engine: usize) {
        self.engines[engine].sleep_unless(None, || self.heads.waits(&self.submitted));
    }

    /// Waits for the completion at `position` at the futex.
    fn collect(&self, position: u64) -> Completion {
        loop {
            if let Some(completion) = self.completed.completion(position) {
                return completion;
            }
            let is_there = || self.completed.completion(position).is_some();
            self.sleep.waiter.sleep_unless(None, is_there);
        }
    }
}

/// One engine and its client, both asleep in between, over the end of a ring: no job, answer or
/// wake-up is lost.
#[test]
fn jobs_change_hands_with_both_sides_asleep() {
    loom::model(|| {
        let area = Area::new(1);
        let engine = {
            let area = Arc::clone(&area);
            loom::thread::spawn(move || {
                for _ in 0..2 {
                    while !area.serve() {
                        area.doze(0);
                    }
                }
            })
        };
        for round in 0..2 {
            let place = 1 - round.to_usize();
            area.submit(round, place, 10 * round, 1);
            let completion = area.collect(round);
            assert_eq!((completion.place(), completion.status()), (place, 0));
            assert_eq!(area.slots[place].reply()[0], 10 * round + 1);
        }
        engine.join().unwrap();
    });
}

/// Two engines at one ring: each job is done by one of them, and both completions arrive.
#[test]
fn two_engines_take_each_job_once() {
    loom::model(|| {
        let area = Area::new(2);
        area.submit(0, 0, 5, 1);
        area.submit(1, 1, 7, 2);
        let engine = {
            let area = Arc::clone(&area);
            loom::thread::spawn(move || usize::from(area.serve()) + usize::from(area.serve()))
        };
        let here = usize::from(area.serve()) + usize::from(area.serve());
        // The loser of a race looks again.
        let served = here + engine.join().unwrap();
        let rest = usize::from(area.serve()) + usize::from(area.serve());
        assert_eq!(served + rest, 2);
        let places = [area.collect(0).place(), area.collect(1).place()];
        assert!(places == [0, 1] || places == [1, 0]);
        let replies = [area.slots[0].reply()[0], area.slots[1].reply()[0]];
        assert_eq!(replies, [6, 8]);
    });
}

/// Two engines that fall asleep while a job comes: one of them does it.
#[test]
fn a_job_wakes_one_of_two_engines() {
    loom::model(|| {
        let area = Area::new(2);
        let engines: Vec<_> = (0..2)
            .map(|engine| {
                let area = Arc::clone(&area);
                loom::thread::spawn(move || {
                    if !area.serve() {
                        // As an engine whose nap ends after one sleep: woken, or done by the other.
                        let is_over = || {
                            area.heads.waits(&area.submitted)
                                || area.completed.completion(0).is_some()
                        };
                        area.engines[engine].sleep_unless(None, is_over);
                        area.serve();
                    }
                    // A thread that ends passes the wake-up on, as the daemon's end does.
                    area.engines[1 - engine].notify();
                })
            })
            .collect();
        area.submit(0, 0, 1, 1);
        for engine in engines {
            engine.join().unwrap();
        }
        area.serve();
        assert_eq!(area.collect(0).status(), 0);
    });
}

/// A job is run or taken back, never both; its completion says which.
#[test]
fn a_job_is_run_or_taken_back() {
    loom::model(|| {
        let area = Area::new(1);
        area.submit(0, 0, 3, 1);
        let engine = {
            let area = Arc::clone(&area);
            loom::thread::spawn(move || assert!(area.serve()))
        };
        let taken_back = area.slots[0].take_back();
        engine.join().unwrap();
        let completion = area.collect(0);
        assert_eq!(completion.status() == 4, taken_back);
        if !taken_back {
            assert_eq!(area.slots[0].reply()[0], 4);
        }
    });
}

/// A client that waits at the descriptor gets a byte, or sees the completion in its last look.
#[test]
fn who_waits_at_the_descriptor_is_told() {
    loom::model(|| {
        let area = Area::new(1);
        area.submit(0, 0, 3, 1);
        let engine = {
            let area = Arc::clone(&area);
            loom::thread::spawn(move || assert!(area.serve()))
        };
        area.sleep.descriptor.announce_sleep();
        if area.completed.completion(0).is_none() {
            // In place of poll(2).
            while area.sent.load(Ordering::Acquire) == 0 {
                let has_come = || area.sent.load(Ordering::Acquire) != 0;
                area.bell.sleep_unless(None, has_come);
            }
            assert!(area.completed.completion(0).is_some());
        }
        engine.join().unwrap();
    });
}
