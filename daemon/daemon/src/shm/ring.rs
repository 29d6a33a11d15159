//! Jobs: asynchronous requests, and their two rings.
//!
//! A client has [`JOBS_MAX`] places for jobs, in a [`JobSlot`] each, and two rings of numbers of
//! such places. **submitted** is the ring from which any engine takes, **completed** the one to
//! which any engine adds. An entry of a ring holds the place and the number of times that the ring
//! was filled up to it (its *lap*). So a reader looks at the entry alone: no position lies in
//! shared memory.
//!
//! ```text
//!          client                                        engines
//!   slot s = packet; state = WAITING
//!   submitted[p] = (lap, s)        ── acquire ──►  taken = p + 1   by one of them (private)
//!                                                  state: WAITING → TAKEN, else taken back
//!                                                  packet copied, checked, run
//!   completed[q] = (lap, s, status) ◄── acquire ── slot s = answer; done = q + 1   (private)
//! ```
//!
//! **No position is trusted.** The engines' positions ([`JobHeads`]) lie in the daemon's own
//! memory, so a hostile client can repeat, lose or invent entries of its own and no more. An entry
//! of `completed` is never overwritten before the client has read it: an honest one has at most
//! [`JOBS_MAX`] jobs open, and every open job has one entry at most. A dishonest client loses only
//! its own entries. The client, too, counts its positions by itself.
//!
//! **Taking back.** `state` is the one word that both sides change, by compare-and-exchange: a job
//! is either begun by an engine or taken back by its client. The place of a job that was taken back
//! stays in the ring until an engine comes by it and hands it back unread. Where the job was begun,
//! the same word carries the cancellation.
//!
//! **Sleep.** Engines sleep at the words of their pairs ([`super::slot`]), which the client looks
//! at after a submission (`wake_one`). The client sleeps at `waiter`, or in `poll(2)` at a
//! descriptor, and then says so in `descriptor`; an engine looks at both after a completion, with
//! one fence for both.
//!
//! Must stay true: a client's threads submit and collect one at a time; a slot belongs to the
//! client from its completion to its submission, and else to the engine that took it.
#![allow(unsafe_code)] // Says that these types may lie over shared memory.

use super::slot::{TEXT_BYTES_MAX, WORDS};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sidecore_sync::{Changed, Shared, SleepWord};

/// Jobs of one client that are open at most: submitted and not collected.
#[cfg(not(loom))]
pub const JOBS_MAX: usize = 1024;
#[cfg(loom)]
pub const JOBS_MAX: usize = 2;
/// Stretches of the arena that a job names at most.
pub(crate) const JOB_RANGES_MAX: usize = 16;
/// Of these, the most that lie in its slot; more are listed in the arena.
pub(crate) const SLOT_RANGES_MAX: usize = 4;

/// A ring of places.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct JobRing([AtomicU64; JOBS_MAX]);

impl JobRing {
    /// Writes the entry at `position`.
    #[inline]
    fn put(&self, position: u64, value: u32) {
        let entry = u64::from(lap(position)) << 32 | u64::from(value);
        // Release: partner of the Acquire in `get`, publishes the slot that the entry names.
        self.0[index(position)].store(entry, Ordering::Release);
    }

    /// The entry at `position`, if it was written.
    #[inline]
    fn get(&self, position: u64) -> Option<u32> {
        // Acquire: partner of the Release in `put`.
        let entry = self.0[index(position)].load(Ordering::Acquire);
        ((entry >> 32) as u32 == lap(position)).then_some(entry as u32)
    }

    /// Client: hands over the job of `place` as number `position`.
    #[inline]
    pub fn submit(&self, position: u64, place: usize) {
        self.put(position, place as u32);
    }

    /// Client: the completion at `position`, if it is there.
    #[inline]
    pub fn completion(&self, position: u64) -> Option<Completion> {
        self.get(position).map(Completion)
    }
}

/// Completion of a job, as copied from the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion(u32);

impl Completion {
    #[inline]
    fn new(place: usize, status: u32) -> Self {
        Self(place as u32 & 0xffff | status << 16)
    }

    /// The place of the job.
    #[inline]
    pub fn place(self) -> usize {
        (self.0 & 0xffff).to_usize()
    }

    /// A [`Status`](crate::shm::layout) number.
    #[inline]
    pub fn status(self) -> u32 {
        self.0 >> 16
    }
}

/// Positions of the engines in one client's rings. In the daemon's own memory.
#[derive(Debug, Default)]
pub struct JobHeads {
    taken: AtomicU64,
    done: AtomicU64,
}

impl JobHeads {
    /// Engine: true if a job waits to be taken.
    #[inline]
    pub(crate) fn waits(&self, submitted: &JobRing) -> bool {
        submitted.get(self.taken.load(Ordering::Relaxed)).is_some()
    }

    /// Jobs that wait to be taken, at this moment: for reports.
    #[cfg(not(loom))]
    pub(crate) fn waiting(&self, submitted: &JobRing) -> usize {
        let positions = (self.taken.load(Ordering::Relaxed)..).take(JOBS_MAX);
        let waits = |position: &u64| submitted.get(*position).is_some();
        positions.take_while(waits).count()
    }

    /// Position of the next job to be taken: for the fuzzer, which would have to guess it.
    #[cfg(not(loom))]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Engine: takes the job that waits longest; the number of its place, which may be any. `None`
    /// where none waits, or another engine was quicker.
    #[inline]
    pub(crate) fn take(&self, submitted: &JobRing) -> Option<usize> {
        let taken = self.taken.load(Ordering::Relaxed);
        let place = submitted.get(taken)?;
        // Relaxed: the word only says which engine it is; the job was published by the entry.
        let took =
            self.taken
                .compare_exchange(taken, taken + 1, Ordering::Relaxed, Ordering::Relaxed);
        took.is_ok().then_some(place.to_usize())
    }

    /// Engine: tells the client that the job of `place` is done. [`JobSleep::tell`] follows.
    #[inline]
    pub(crate) fn complete(&self, completed: &JobRing, place: usize, status: u32) {
        // Relaxed: positions are dealt; each engine publishes its own entry.
        let position = self.done.fetch_add(1, Ordering::Relaxed);
        completed.put(position, Completion::new(place, status).0);
    }
}

/// Words at which a client sleeps until a job of its own is done.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct JobSleep {
    /// A thread of the client sleeps here.
    pub(crate) waiter: SleepWord<Shared>,
    /// A thread waits for the descriptor that came with the attachment.
    pub(crate) descriptor: SleepWord<Shared>,
    spare: [AtomicU64; 15],
}

impl JobSleep {
    /// Engine: wakes the sleepers, after a completion. True if a byte is to be sent to the
    /// descriptor.
    #[inline]
    #[must_use = "the sleeper counts on being woken"]
    pub(crate) fn tell(&self) -> bool {
        let changed = Changed::publish();
        self.waiter.notify_after(changed);
        self.descriptor.claim_after(changed)
    }
}

/// Client, after a submission: wakes an engine where those that are awake do not suffice for its
/// `open` jobs. `engines` are the words that the engines sleep at, and for each whether it would
/// come to this client's jobs soon if it is awake.
///
/// No job is left lying: an engine that is awake looks at the ring before it sleeps, after it has
/// announced that in its word; so it sees the job, or its announcement is seen here, and one that
/// sleeps is woken unless enough others are awake.
#[inline]
pub(crate) fn wake_one<'a>(
    engines: impl Iterator<Item = &'a SleepWord<Shared>> + Clone,
    comes_soon: impl Fn(usize) -> bool,
    open: usize,
) {
    let changed = Changed::publish();
    let is_asleep = |word: &SleepWord<Shared>| {
        // Relaxed: the fence above orders it after the submission.
        word.as_atomic().load(Ordering::Relaxed) == SleepWord::<Shared>::ASLEEP
    };
    let Some(sleeper) = engines.clone().find(|word| is_asleep(word)) else {
        return;
    };
    let awake =
        |(engine, word): &(usize, &SleepWord<Shared>)| !is_asleep(word) && comes_soon(*engine);
    // Counted up to where it is decided: with many engines each is a line of memory.
    if engines.enumerate().filter(awake).take(open).count() < open {
        // One that woke by itself meanwhile looks at the ring by itself.
        sleeper.notify_after(changed);
    }
}

/// Request of a job, as copied from its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobPacket {
    /// The kernel's number.
    pub kernel: u32,
    /// Its words.
    pub words: [u64; WORDS],
    /// Number of ranges that are inputs; they come first.
    pub inputs: u8,
    /// Number of ranges that are outputs.
    pub outputs: u8,
    /// Offset in the arena and length, in bytes. Of more than `SLOT_RANGES_MAX` ranges, the
    /// first says where in the arena all of them are listed.
    pub ranges: [(u64, u64); SLOT_RANGES_MAX],
}

impl JobPacket {
    /// Number of its ranges, as it says.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        usize::from(self.inputs) + usize::from(self.outputs)
    }

    /// Number of `ranges` that count.
    #[inline]
    fn in_slot(&self) -> usize {
        match self.used() {
            used if used > SLOT_RANGES_MAX => 1,
            used => used,
        }
    }
}

/// A job and its answer in shared memory.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct JobSlot {
    /// One of the states below.
    state: AtomicU32,
    spare: AtomicU32,
    /// By the client: kernel (bits 0 to 15), inputs (16 to 23), outputs (24 to 31), words that
    /// count (32 to 39). By the engine: bytes of text (0 to 7), words that count (32 to 39).
    head: AtomicU64,
    words: [AtomicU64; WORDS],
    /// By the client: ranges. By the engine: the text of a failure.
    rest: [AtomicU64; 2 * SLOT_RANGES_MAX],
}

/// Submitted, not begun.
const WAITING: u32 = 1;
/// Begun by an engine.
pub(crate) const TAKEN: u32 = 2;
/// Not wanted any more by the client.
const CANCELLED: u32 = 3;

impl JobSlot {
    /// Client: writes a job. [`JobRing::submit`] follows.
    pub fn ask(&self, packet: &JobPacket) {
        let words = counted(&packet.words);
        let head = u64::from(packet.kernel as u16)
            | u64::from(packet.inputs) << 16
            | u64::from(packet.outputs) << 24
            | (words.to_u64()) << 32;
        for (word, value) in self.words.iter().zip(packet.words).take(words) {
            word.store(value, Ordering::Relaxed);
        }
        let ranges = packet.ranges.iter().take(packet.in_slot());
        for (pair, (offset, bytes)) in self.rest.as_chunks::<2>().0.iter().zip(ranges) {
            pair[0].store(*offset, Ordering::Relaxed);
            pair[1].store(*bytes, Ordering::Relaxed);
        }
        self.head.store(head, Ordering::Relaxed);
        // Relaxed, as all above: published by the ring's entry.
        self.state.store(WAITING, Ordering::Relaxed);
    }

    /// Engine: begins the job. False if its client took it back.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        // AcqRel: partner of the exchange in `take_back`. The first of the two has the job.
        self.state
            .compare_exchange(WAITING, TAKEN, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Client: takes the job back. False if an engine has begun it; the engine then sees the
    /// cancellation.
    pub fn take_back(&self) -> bool {
        // A read-modify-write in one order with the one in `begin`: the engine comes before it and
        // finds WAITING, or after it and finds CANCELLED.
        self.state.swap(CANCELLED, Ordering::AcqRel) == WAITING
    }

    /// The word that is [`TAKEN`] for as long as the client of a job that was begun wants it.
    #[cfg(not(loom))]
    pub(crate) fn state(&self) -> &AtomicU32 {
        &self.state
    }

    /// Engine: copies the request out. Counts that make no sense come out as they are.
    #[inline]
    pub(crate) fn packet(&self) -> JobPacket {
        let head = self.head.load(Ordering::Relaxed);
        let mut packet = JobPacket {
            kernel: u32::from(head as u16),
            inputs: (head >> 16) as u8,
            outputs: (head >> 24) as u8,
            ..JobPacket::default()
        };
        let words = usize::from((head >> 32) as u8);
        for (value, word) in packet.words.iter_mut().zip(&self.words).take(words) {
            *value = word.load(Ordering::Relaxed);
        }
        let used = packet.in_slot();
        let pairs = self.rest.as_chunks::<2>().0.iter();
        for (copy, pair) in packet.ranges.iter_mut().zip(pairs).take(used) {
            *copy = (
                pair[0].load(Ordering::Relaxed),
                pair[1].load(Ordering::Relaxed),
            );
        }
        packet
    }

    /// Engine: writes the answer; `text` is cut at the end of a character after 64 bytes at most.
    /// [`JobHeads::complete`] follows, which publishes it.
    pub(crate) fn answer(&self, words: &[u64; WORDS], text: &str) {
        let used = counted(words);
        for (word, value) in self.words.iter().zip(words).take(used) {
            word.store(*value, Ordering::Relaxed);
        }
        let end = text.floor_char_boundary(TEXT_BYTES_MAX);
        let mut bytes = [0; TEXT_BYTES_MAX];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        // A text is rare, and the ranges behind it were copied.
        let parts = bytes.as_chunks::<8>().0.iter();
        for (word, part) in self.rest.iter().zip(parts).take(end.div_ceil(8)) {
            word.store(u64::from_le_bytes(*part), Ordering::Relaxed);
        }
        let head = end.to_u64() | (used.to_u64()) << 32;
        self.head.store(head, Ordering::Relaxed);
    }

    /// Client: the words of the answer.
    pub fn reply(&self) -> [u64; WORDS] {
        let used = usize::from((self.head.load(Ordering::Relaxed) >> 32) as u8);
        let mut words = [0; WORDS];
        for (value, word) in words.iter_mut().zip(&self.words).take(used) {
            *value = word.load(Ordering::Relaxed);
        }
        words
    }

    /// Client: text of a failure.
    pub fn text(&self) -> String {
        let bytes = usize::from(self.head.load(Ordering::Relaxed) as u8);
        let text: Vec<u8> = self
            .rest
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .take(bytes)
            .collect();
        String::from_utf8_lossy(&text).into_owned()
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

/// Index of a position in a ring.
#[inline]
fn index(position: u64) -> usize {
    position.to_usize() % JOBS_MAX
}

/// Mark of an entry at a position; differs from those of the entries before it in the same place,
/// and from the zeros of a new ring.
#[inline]
fn lap(position: u64) -> u32 {
    (position as u32).wrapping_add(1)
}

#[cfg(not(loom))]
mod overlay {
    use super::{JOBS_MAX, JobRing, JobSleep, JobSlot};
    use sidecore_sys::Overlay;
    use std::mem::{offset_of, size_of};

    // SAFETY: `repr(C)`, all fields are atomics or arrays of them, and there is no padding (see the
    // sizes below).
    unsafe impl Overlay for JobRing {}
    // SAFETY: as above.
    unsafe impl Overlay for JobSleep {}
    // SAFETY: as above.
    unsafe impl Overlay for JobSlot {}

    const _: () = {
        assert!(JOBS_MAX.is_power_of_two() && JOBS_MAX <= 1 << 16);
        assert!(size_of::<JobRing>() == 8 * JOBS_MAX && size_of::<JobSleep>() == 128);
        assert!(size_of::<JobSlot>() == 128 && offset_of!(JobSlot, head) == 8);
        assert!(offset_of!(JobSlot, words) == 16 && offset_of!(JobSlot, rest) == 64);
        assert!(offset_of!(JobSleep, descriptor) == 4);
    };
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring() -> JobRing {
        JobRing(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn slot() -> JobSlot {
        JobSlot {
            state: AtomicU32::new(0),
            spare: AtomicU32::new(0),
            head: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            rest: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[test]
    fn a_ring_gives_each_entry_once_in_its_lap() {
        let (ring, heads) = (ring(), JobHeads::default());
        assert!(!heads.waits(&ring) && heads.take(&ring).is_none());
        assert_eq!(heads.waiting(&ring), 0);
        for position in 0..3 * JOBS_MAX.to_u64() {
            ring.submit(position, (position % 7).to_usize());
            assert!(heads.waits(&ring));
            assert_eq!(heads.waiting(&ring), 1);
            assert_eq!(heads.take(&ring), Some((position % 7).to_usize()));
            assert!(heads.take(&ring).is_none());
        }
        // Also where the mark comes round to the zeros of a new ring.
        let late = u64::from(u32::MAX);
        ring.submit(late, 5);
        assert_eq!((ring.get(late), ring.get(late + 1)), (Some(5), None));
    }

    #[test]
    fn a_completion_names_its_place_and_status() {
        let (ring, heads) = (ring(), JobHeads::default());
        heads.complete(&ring, JOBS_MAX - 1, 4);
        let completion = ring.completion(0).unwrap();
        assert_eq!((completion.place(), completion.status()), (JOBS_MAX - 1, 4));
        assert!(ring.completion(1).is_none());
    }

    #[test]
    fn a_job_is_begun_or_taken_back() {
        let slot = slot();
        slot.ask(&JobPacket::default());
        assert!(slot.begin() && !slot.begin());
        // The engine sees the cancellation.
        assert!(!slot.take_back());
        assert_ne!(slot.state().load(Ordering::Relaxed), TAKEN);
        slot.ask(&JobPacket::default());
        assert!(slot.take_back() && !slot.begin());
    }

    #[test]
    fn only_an_engine_that_is_needed_is_woken() {
        let engines: [SleepWord<Shared>; 3] = std::array::from_fn(|_| SleepWord::new());
        let asleep = || {
            let is_asleep =
                |word: &&SleepWord<Shared>| word.as_atomic().load(Ordering::Relaxed) == 1;
            engines.iter().filter(is_asleep).count()
        };
        engines[1].announce_sleep();
        engines[2].announce_sleep();
        wake_one(engines.iter(), |_| true, 1);
        assert_eq!(asleep(), 2);
        // The engine that is awake serves another client.
        wake_one(engines.iter(), |_| false, 1);
        assert_eq!(asleep(), 1);
        wake_one(engines.iter(), |_| true, 3);
        assert_eq!(asleep(), 0);
        wake_one(engines.iter(), |_| true, 9);
    }

    proptest! {
        #[test]
        fn a_job_is_read_as_it_was_written(
            kernel in 0u32..0x1_0000,
            words in prop::array::uniform6(any::<u64>()),
            counts in (0u8..16, 0u8..16),
            ranges in prop::array::uniform4(any::<(u64, u64)>()),
            text in ".{0,80}",
        ) {
            let slot = slot();
            let packet = JobPacket {
                kernel, words, inputs: counts.0, outputs: counts.1, ranges,
            };
            slot.ask(&packet);
            let read = slot.packet();
            prop_assert_eq!((read.kernel, read.words), (kernel, words));
            prop_assert_eq!((read.inputs, read.outputs), counts);
            prop_assert_eq!(&read.ranges[..packet.in_slot()], &ranges[..packet.in_slot()]);
            slot.answer(&words, &text);
            prop_assert_eq!(slot.reply(), words);
            let said = slot.text();
            prop_assert!(text.starts_with(&said) && said.len() <= TEXT_BYTES_MAX);
            prop_assert!(said == text || said.len() + 4 > TEXT_BYTES_MAX);
        }
    }
}
