//! A request packet and its completion, and how they change hands.
//!
//! One pair per client and engine. The client writes the packet and rings its **bell**: a word that
//! holds the number of the request. The engine sees a number that it has not served, copies the
//! packet out, runs the kernel, writes the completion, and stores the same number in **done**.
//! Numbers are even; the lowest bit of either word says *the other side sleeps on this word*:
//!
//! ```text
//!             client                                  engine
//!   packet;  old = swap(bell, n)  ───────────►  bell != seen: serve it
//!            old & 1: wake(bell)                compare_exchange(bell, seen, seen|1): sleep(bell)
//!   done == n: read it            ◄───────────  completion; old = swap(done, n)
//!   compare_exchange(done, n-2, n-1): sleep     old & 1: wake(done)
//! ```
//!
//! No wake-up is lost: a sleeper marks the very word that the other side swaps. If the mark comes
//! first, the swap returns it; if the swap comes first, the mark fails. Neither side makes a system
//! call unless the other sleeps.
//!
//! Must stay true: in a client one thread at a time uses a pair; in the daemon only the engine that
//! it belongs to. What the other side wrote is copied once; nothing in a packet is trusted.
#![allow(unsafe_code)] // Says that these types may lie over shared memory.

/// Atomics, replaced by loom's under `--cfg loom`.
mod sync {
    #[cfg(loom)]
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    #[cfg(not(loom))]
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use sync::{AtomicU32, AtomicU64, Ordering};

/// Words that a request or a reply carries.
pub(crate) const WORDS: usize = 6;
/// Stretches of the arena that a request names at most, inputs and outputs together.
pub(crate) const RANGES_MAX: usize = 4;
/// Bytes of text that a failure says at most.
pub(crate) const TEXT_BYTES_MAX: usize = 64;

/// The other side sleeps on the word.
const ASLEEP: u32 = 1;
/// From one request's number to the next.
const STEP: u32 = 2;

/// The number after `sequence`.
pub(crate) fn next(sequence: u32) -> u32 {
    sequence.wrapping_add(STEP)
}

/// The number before `sequence`.
pub(crate) fn before(sequence: u32) -> u32 {
    sequence.wrapping_sub(STEP)
}

/// What a client asks for, as copied from a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Packet {
    pub(crate) kernel: u32,
    pub(crate) words: [u64; WORDS],
    /// How many of `ranges` are inputs; they come first.
    pub(crate) inputs: u8,
    /// How many of `ranges` are outputs; they follow.
    pub(crate) outputs: u8,
    /// Offset in the arena and length, in bytes.
    pub(crate) ranges: [(u64, u64); RANGES_MAX],
}

/// A request packet in shared memory, written by the client.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct RequestSlot {
    bell: AtomicU32,
    kernel: AtomicU32,
    words: [AtomicU64; WORDS],
    /// Inputs in the lowest byte, outputs in the next.
    counts: AtomicU32,
    spare: AtomicU32,
    ranges: [[AtomicU64; 2]; RANGES_MAX],
}

impl RequestSlot {
    /// Client: writes the packet. Nobody sees it before [`Self::ring`].
    #[inline]
    pub(crate) fn write(&self, packet: &Packet) {
        self.kernel.store(packet.kernel, Ordering::Relaxed);
        for (word, value) in self.words.iter().zip(packet.words) {
            word.store(value, Ordering::Relaxed);
        }
        let counts = u32::from(packet.inputs) | u32::from(packet.outputs) << 8;
        self.counts.store(counts, Ordering::Relaxed);
        let used = usize::from(packet.inputs) + usize::from(packet.outputs);
        for (range, (offset, bytes)) in self.ranges.iter().zip(packet.ranges).take(used) {
            range[0].store(offset, Ordering::Relaxed);
            range[1].store(bytes, Ordering::Relaxed);
        }
    }

    /// Client: hands the packet over as request `sequence`. True where the engine sleeps on the
    /// bell and has to be woken.
    #[inline]
    #[must_use]
    pub(crate) fn ring(&self, sequence: u32) -> bool {
        // Release: partner of the Acquire in `poll`, publishes the packet. Acquire: of `doze`.
        self.bell.swap(sequence, Ordering::AcqRel) & ASLEEP != 0
    }

    /// Engine: the number of a request that is not the one seen last.
    #[inline]
    pub(crate) fn poll(&self, seen: u32) -> Option<u32> {
        // Acquire: partner of the Release in `ring`.
        let sequence = self.bell.load(Ordering::Acquire) & !ASLEEP;
        (sequence != seen).then_some(sequence)
    }

    /// Engine: copies the packet out. Counts that make no sense come out as they are.
    #[inline]
    pub(crate) fn read(&self) -> Packet {
        let counts = self.counts.load(Ordering::Relaxed);
        let mut packet = Packet {
            kernel: self.kernel.load(Ordering::Relaxed),
            inputs: counts as u8,
            outputs: (counts >> 8) as u8,
            ..Packet::default()
        };
        for (value, word) in packet.words.iter_mut().zip(&self.words) {
            *value = word.load(Ordering::Relaxed);
        }
        let used = usize::from(packet.inputs) + usize::from(packet.outputs);
        for (copy, range) in packet.ranges.iter_mut().zip(&self.ranges).take(used) {
            *copy = (
                range[0].load(Ordering::Relaxed),
                range[1].load(Ordering::Relaxed),
            );
        }
        packet
    }

    /// Engine: says that it sleeps on the bell. False where a request is there: do not sleep.
    pub(crate) fn doze(&self, seen: u32) -> bool {
        // Release: what the engine did before is seen by whoever wakes it; Acquire on failure: the
        // partner is `ring`.
        let marked =
            self.bell
                .compare_exchange(seen, seen | ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        marked.is_ok() || marked == Err(seen | ASLEEP)
    }

    /// Engine: takes the mark of [`Self::doze`] back.
    pub(crate) fn rouse(&self, seen: u32) {
        // Relaxed: a failure means a request, which `poll` looks at with Acquire.
        let _ =
            self.bell
                .compare_exchange(seen | ASLEEP, seen, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The word that the engine sleeps on, and the value that it has meanwhile.
    pub(crate) fn bell(&self, seen: u32) -> (&AtomicU32, u32) {
        (&self.bell, seen | ASLEEP)
    }
}

/// What an engine answers, as copied from a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Answer {
    /// A [`Status`](crate::shm::layout) number.
    pub(crate) status: u32,
    pub(crate) words: [u64; WORDS],
}

/// A completion in shared memory, written by the engine.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct CompletionSlot {
    done: AtomicU32,
    status: AtomicU32,
    words: [AtomicU64; WORDS],
    text_bytes: AtomicU32,
    spare: AtomicU32,
    text: [AtomicU64; TEXT_BYTES_MAX / 8],
}

impl CompletionSlot {
    /// Engine: writes the answer and hands it over as that to request `sequence`. True where the
    /// client sleeps on the word and has to be woken. `text` beyond 64 bytes is cut.
    #[inline]
    #[must_use]
    pub(crate) fn publish(&self, sequence: u32, answer: &Answer, text: &str) -> bool {
        self.status.store(answer.status, Ordering::Relaxed);
        for (word, value) in self.words.iter().zip(answer.words) {
            word.store(value, Ordering::Relaxed);
        }
        if answer.status != 0 {
            self.write_text(text);
        }
        // Release: partner of the Acquire in `poll`, publishes the answer and all that the kernel
        // put in the arena. Acquire: of the client's `doze`.
        self.done.swap(sequence, Ordering::AcqRel) & ASLEEP != 0
    }

    /// Client: whether request `sequence` was answered.
    #[inline]
    pub(crate) fn poll(&self, sequence: u32) -> bool {
        // Acquire: partner of the Release in `publish`.
        self.done.load(Ordering::Acquire) & !ASLEEP == sequence
    }

    /// Client: copies the answer out, once it was given.
    #[inline]
    pub(crate) fn read(&self) -> Answer {
        let mut answer = Answer {
            status: self.status.load(Ordering::Relaxed),
            ..Answer::default()
        };
        for (value, word) in answer.words.iter_mut().zip(&self.words) {
            *value = word.load(Ordering::Relaxed);
        }
        answer
    }

    /// Client: what a failure said.
    pub(crate) fn text(&self) -> String {
        let bytes = self.text_bytes.load(Ordering::Relaxed) as usize;
        let text: Vec<u8> = self
            .text
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .take(bytes)
            .collect();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Client: says that it sleeps until the request after `answered` is answered. False where that
    /// has happened.
    pub(crate) fn doze(&self, answered: u32) -> bool {
        // As in `RequestSlot::doze`; the partner is `publish`.
        let marked = self.done.compare_exchange(
            answered,
            answered | ASLEEP,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        marked.is_ok() || marked == Err(answered | ASLEEP)
    }

    /// The word that the client sleeps on, and the value that it has meanwhile.
    pub(crate) fn done(&self, answered: u32) -> (&AtomicU32, u32) {
        (&self.done, answered | ASLEEP)
    }

    fn write_text(&self, text: &str) {
        let mut bytes = [0; TEXT_BYTES_MAX];
        let used = text.floor_char_boundary(TEXT_BYTES_MAX);
        bytes[..used].copy_from_slice(&text.as_bytes()[..used]);
        for (word, part) in self.text.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*part), Ordering::Relaxed);
        }
        self.text_bytes.store(used as u32, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
mod overlay {
    use super::{CompletionSlot, RequestSlot};
    use sidecore_sys::Overlay;
    use std::mem::{offset_of, size_of};

    // SAFETY: `repr(C)`, all fields are atomics or arrays of them, and there is no padding (see the
    // sizes below).
    unsafe impl Overlay for RequestSlot {}
    // SAFETY: as above.
    unsafe impl Overlay for CompletionSlot {}

    const _: () = {
        assert!(size_of::<RequestSlot>() == 128 && size_of::<CompletionSlot>() == 128);
        assert!(offset_of!(RequestSlot, words) == 8 && offset_of!(RequestSlot, counts) == 56);
        assert!(offset_of!(RequestSlot, ranges) == 64);
        assert!(offset_of!(CompletionSlot, words) == 8);
        assert!(offset_of!(CompletionSlot, text_bytes) == 56);
        assert!(offset_of!(CompletionSlot, text) == 64);
    };
}

#[cfg(all(test, loom))]
impl RequestSlot {
    fn new() -> Self {
        Self {
            bell: AtomicU32::new(0),
            kernel: AtomicU32::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            counts: AtomicU32::new(0),
            spare: AtomicU32::new(0),
            ranges: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

#[cfg(all(test, loom))]
impl CompletionSlot {
    fn new() -> Self {
        Self {
            done: AtomicU32::new(0),
            status: AtomicU32::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            text_bytes: AtomicU32::new(0),
            spare: AtomicU32::new(0),
            text: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};

    /// What a futex promises: sleep only while the word is unchanged.
    #[derive(Default)]
    struct Futex(Mutex<()>, Condvar);

    impl Futex {
        fn sleep(&self, (word, expected): (&AtomicU32, u32)) {
            let guard = self.0.lock().unwrap();
            if word.load(Ordering::Relaxed) == expected {
                drop(self.1.wait(guard).unwrap());
            }
        }

        fn wake(&self) {
            drop(self.0.lock().unwrap());
            self.1.notify_all();
        }
    }

    struct Pair {
        request: RequestSlot,
        completion: CompletionSlot,
        bell: Futex,
        done: Futex,
    }

    /// Two requests after another, both sides sleeping at once: no packet, answer or wake-up is
    /// lost. A lost one shows as a deadlock.
    #[test]
    fn requests_change_hands_with_both_sides_asleep() {
        loom::model(|| {
            let pair = Arc::new(Pair {
                request: RequestSlot::new(),
                completion: CompletionSlot::new(),
                bell: Futex::default(),
                done: Futex::default(),
            });
            let engine = {
                let pair = Arc::clone(&pair);
                loom::thread::spawn(move || {
                    let mut seen = 0;
                    for _ in 0..2 {
                        let sequence = loop {
                            if let Some(sequence) = pair.request.poll(seen) {
                                break sequence;
                            }
                            if pair.request.doze(seen) {
                                pair.bell.sleep(pair.request.bell(seen));
                                pair.request.rouse(seen);
                            }
                        };
                        seen = sequence;
                        let mut answer = Answer::default();
                        answer.words[0] = pair.request.read().words[0] + 1;
                        if pair.completion.publish(sequence, &answer, "") {
                            pair.done.wake();
                        }
                    }
                })
            };
            let mut sequence = 0;
            for round in 0..2 {
                let answered = sequence;
                sequence = next(sequence);
                let mut packet = Packet::default();
                packet.words[0] = 10 * (round + 1);
                pair.request.write(&packet);
                if pair.request.ring(sequence) {
                    pair.bell.wake();
                }
                while !pair.completion.poll(sequence) {
                    if pair.completion.doze(answered) {
                        pair.done.sleep(pair.completion.done(answered));
                    }
                }
                assert_eq!(pair.completion.read().words[0], 10 * (round + 1) + 1);
            }
            engine.join().unwrap();
        });
    }
}
