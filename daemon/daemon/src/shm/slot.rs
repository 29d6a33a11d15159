//! A request and its answer, and how they change hands.
//!
//! One [`CallSlot`] (and a line for sleepers) per client and engine. The client writes words and
//! rings the **bell**: a word that holds the number of the request. The engine sees a number that
//! it has not served, copies the packet out, runs the kernel, writes the answer's words over those
//! of the request, and stores the same number in **done**. A side that is about to sleep announces
//! it in a word of another line, which is written only then:
//!
//! ```text
//!             client                                  engine
//!   packet; bell = n                                engine_asleep = 1
//!   ── fence ──                                     ── fence ──
//!   engine_asleep? then 0, wake it     ◄──────►     bell != seen? then do not sleep
//!
//!   client_asleep = 1                               answer; done = n
//!   ── fence ──                                     ── fence ──
//!   done == n? then do not sleep       ◄──────►     client_asleep? then 0, wake it
//! ```
//!
//! The protocol of the sleep words, and why no wake-up is lost, is that of `sidecore-sync`. Neither
//! side makes a system call unless the other sleeps.
//!
//! Why one line for both directions: the answering side has just fetched the line, and writes to it
//! in its own cache; the line moves twice a call, once there and once back. With a line for each
//! direction every store first fetches its line back from the other side's cache, and there are
//! four moves (measured: 1.5 to 1.7 times the round trip, the more the further apart the cores
//! are). So the words that nearly all calls need fit in 64 bytes; ranges, the text of a failure,
//! and the sleepers' words lie elsewhere and are touched only by calls that have them. A look by
//! the other side between two stores moves the line once more: so each side stores in one go, the
//! polled word last, and no more words than count.
//!
//! Must stay true: in a client one thread at a time uses a slot; in the daemon only the engine that
//! it belongs to. The client writes from one answer to the next ring, the engine from a bell to its
//! answer. The other side's words are copied once; nothing in a packet is trusted.
#![allow(unsafe_code)] // Says that these types may lie over shared memory.

use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sync::atomic::{AtomicU64, Ordering};
use sidecore_sync::{Shared, SleepWord};

/// Words that a request or a reply carries.
pub const WORDS: usize = 6;
/// Stretches of the arena that a request names at most, inputs and outputs together.
pub const RANGES_MAX: usize = 4;
/// Bytes of text that a failure says at most.
pub(crate) const TEXT_BYTES_MAX: usize = 64;

/// Request of a client, as copied from its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packet {
    /// The kernel's number.
    pub kernel: u32,
    /// Its words.
    pub words: [u64; WORDS],
    /// Number of `ranges` that are inputs; they come first.
    pub inputs: u8,
    /// Number of `ranges` that are outputs; they follow.
    pub outputs: u8,
    /// Offset in the arena and length, in bytes.
    pub ranges: [(u64, u64); RANGES_MAX],
}

/// A request and its answer in shared memory.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct CallSlot {
    /// The bell, written by the client: number (32 bits), kernel (16), inputs (4), outputs (4),
    /// words that count (8).
    bell: AtomicU64,
    /// Written by the engine: the number of the request that is answered (32 bits), status (16),
    /// words that count (8), bytes of text (8).
    done: AtomicU64,
    /// Words of the request, then of its answer. The first line ends here.
    words: [AtomicU64; WORDS],
    /// Written by the client where there are any.
    ranges: [[AtomicU64; 2]; RANGES_MAX],
    /// Written by the engine where a request failed.
    text: [AtomicU64; TEXT_BYTES_MAX / 8],
    spare: [AtomicU64; 8],
}

impl CallSlot {
    /// Client: writes the packet and hands it over as request `sequence`.
    #[inline]
    pub fn ring(&self, sequence: u32, packet: &Packet) {
        let used = usize::from(packet.inputs) + usize::from(packet.outputs);
        for (range, (offset, bytes)) in self.ranges.iter().zip(packet.ranges).take(used) {
            range[0].store(offset, Ordering::Relaxed);
            range[1].store(bytes, Ordering::Relaxed);
        }
        let words = counted(&packet.words);
        let bell = u64::from(sequence)
            | u64::from(packet.kernel as u16) << 32
            | u64::from(packet.inputs & 15) << 48
            | u64::from(packet.outputs & 15) << 52
            | (words.to_u64()) << 56;
        for (word, value) in self.words.iter().zip(packet.words).take(words) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: partner of the Acquire in `rung`, publishes the packet.
        self.bell.store(bell, Ordering::Release);
    }

    /// Engine: the bell, if it holds the number of a request that is not the one seen last.
    #[inline]
    pub(crate) fn rung(&self, seen: u32) -> Option<Bell> {
        // Acquire: partner of the Release in `ring`.
        let bell = Bell(self.bell.load(Ordering::Acquire));
        (bell.sequence() != seen).then_some(bell)
    }

    /// Engine: copies the packet out. Counts that make no sense come out as they are.
    #[inline]
    pub(crate) fn packet(&self, bell: Bell) -> Packet {
        let mut packet = Packet {
            kernel: u32::from((bell.0 >> 32) as u16),
            inputs: (bell.0 >> 48) as u8 & 15,
            outputs: (bell.0 >> 52) as u8 & 15,
            ..Packet::default()
        };
        let words = (bell.0 >> 56).to_usize();
        for (value, word) in packet.words.iter_mut().zip(&self.words).take(words) {
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

    /// Engine: writes the answer and hands it over as that to request `sequence`. `text` beyond 64
    /// bytes is cut. [`SleepWord::notify`] of the client's word follows.
    #[inline]
    pub(crate) fn publish(&self, sequence: u32, answer: &Answer, text: &str) {
        let words = counted(&answer.words);
        let text_bytes = if text.is_empty() {
            0
        } else {
            self.write_text(text)
        };
        let done = u64::from(sequence)
            | u64::from(answer.status as u16) << 32
            | (words.to_u64()) << 48
            | (text_bytes.to_u64()) << 56;
        for (word, value) in self.words.iter().zip(answer.words).take(words) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: partner of the Acquire in `answered`, publishes the answer and all that the
        // kernel put in the arena.
        self.done.store(done, Ordering::Release);
    }

    /// Client: true if request `sequence` was answered.
    #[inline]
    pub fn answered(&self, sequence: u32) -> bool {
        // Acquire: partner of the Release in `publish`.
        self.done.load(Ordering::Acquire) as u32 == sequence
    }

    /// Engine: the number of the request that was answered last here; 0 in a new slot.
    pub(crate) fn last_answered(&self) -> u32 {
        // Acquire: partner of the Release in `publish` by an earlier thread of this engine.
        self.done.load(Ordering::Acquire) as u32
    }

    /// Client: copies the answer out, once it was given.
    #[inline]
    pub fn answer(&self) -> Answer {
        let done = self.done.load(Ordering::Relaxed);
        let mut answer = Answer {
            status: u32::from((done >> 32) as u16),
            ..Answer::default()
        };
        let words = usize::from((done >> 48) as u8);
        for (value, word) in answer.words.iter_mut().zip(&self.words).take(words) {
            *value = word.load(Ordering::Relaxed);
        }
        answer
    }

    /// Client: text of a failure.
    pub fn text(&self) -> String {
        let bytes = (self.done.load(Ordering::Relaxed) >> 56).to_usize();
        let text: Vec<u8> = self
            .text
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .take(bytes)
            .collect();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn write_text(&self, text: &str) -> usize {
        let mut bytes = [0; TEXT_BYTES_MAX];
        // Up to a character's end.
        let used = (0..=text.len().min(TEXT_BYTES_MAX))
            .rev()
            .find(|&end| text.is_char_boundary(end))
            .unwrap_or(0);
        bytes[..used].copy_from_slice(&text.as_bytes()[..used]);
        for (word, part) in self.text.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*part), Ordering::Relaxed);
        }
        used
    }
}

/// Value of a bell, as copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bell(u64);

impl Bell {
    /// The number of the request.
    #[inline]
    pub(crate) fn sequence(self) -> u32 {
        self.0 as u32
    }
}

/// Number of words that count: those after it are 0.
#[inline]
fn counted(words: &[u64; WORDS]) -> usize {
    words
        .iter()
        .rposition(|&word| word != 0)
        .map_or(0, |last| last + 1)
}

/// Answer of an engine, as copied from its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answer {
    /// A [`Status`](crate::shm::layout) number.
    pub status: u32,
    /// Its words.
    pub words: [u64; WORDS],
}

/// Sleep words of a pair. Each is written by its side when it goes to sleep, and read by the other
/// after it has handed something over.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct SleepSlot {
    /// The client's, which sleeps until an answer.
    pub(crate) client: SleepWord<Shared>,
    /// The engine's, which sleeps until a request.
    pub(crate) engine: SleepWord<Shared>,
    spare: [AtomicU64; 15],
}

#[cfg(not(loom))]
mod overlay {
    use super::{CallSlot, SleepSlot};
    use sidecore_sys::Overlay;
    use std::mem::{offset_of, size_of};

    // SAFETY: `repr(C)`, all fields are atomics or arrays of them, and there is no padding (see the
    // sizes below).
    unsafe impl Overlay for CallSlot {}
    // SAFETY: as above.
    unsafe impl Overlay for SleepSlot {}

    const _: () = {
        assert!(size_of::<CallSlot>() == 256 && size_of::<SleepSlot>() == 128);
        assert!(offset_of!(CallSlot, done) == 8 && offset_of!(CallSlot, words) == 16);
        assert!(offset_of!(CallSlot, ranges) == 64 && offset_of!(CallSlot, text) == 128);
        assert!(offset_of!(SleepSlot, engine) == 4);
    };
}

#[cfg(test)]
#[cfg(loom)]
fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

#[cfg(test)]
#[cfg(loom)]
impl CallSlot {
    fn new() -> Self {
        Self {
            bell: AtomicU64::new(0),
            done: AtomicU64::new(0),
            words: zeros(),
            ranges: std::array::from_fn(|_| zeros()),
            text: zeros(),
            spare: zeros(),
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
impl SleepSlot {
    fn new() -> Self {
        Self {
            client: SleepWord::new(),
            engine: SleepWord::new(),
            spare: zeros(),
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    struct Pair {
        call: CallSlot,
        sleep: SleepSlot,
    }

    /// Two requests after another, both sides sleeping at once: no packet, answer or wake-up is
    /// lost. A lost one shows as a deadlock.
    #[test]
    fn requests_change_hands_with_both_sides_asleep() {
        loom::model(|| {
            let pair = Arc::new(Pair {
                call: CallSlot::new(),
                sleep: SleepSlot::new(),
            });
            let engine = {
                let pair = Arc::clone(&pair);
                loom::thread::spawn(move || {
                    let mut seen = 0;
                    for _ in 0..2 {
                        let bell = loop {
                            if let Some(bell) = pair.call.rung(seen) {
                                break bell;
                            }
                            let is_rung = || pair.call.rung(seen).is_some();
                            pair.sleep.engine.sleep_unless(None, is_rung);
                        };
                        seen = bell.sequence();
                        let mut answer = Answer::default();
                        answer.words[0] = pair.call.packet(bell).words[0] + 1;
                        pair.call.publish(seen, &answer, "");
                        pair.sleep.client.notify();
                    }
                })
            };
            for round in 0..2u32 {
                let sequence = round + 1;
                let mut packet = Packet::default();
                packet.words[0] = 10 * u64::from(sequence);
                pair.call.ring(sequence, &packet);
                pair.sleep.engine.notify();
                while !pair.call.answered(sequence) {
                    let is_answered = || pair.call.answered(sequence);
                    pair.sleep.client.sleep_unless(None, is_answered);
                }
                assert_eq!(pair.call.answer().words[0], packet.words[0] + 1);
            }
            engine.join().unwrap();
        });
    }
}
