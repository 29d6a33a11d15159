//! A stream's two rings.

use crate::positions::{Broken, between, between_moving};
use crate::{LARGE_BYTES, LARGE_RING_BYTES, RING_BYTES, SLAB_STREAMS, STREAM_BYTES};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::SharedSlice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// View of a stream's memory, and of its large rings, if it has them.
#[derive(Debug, Clone, Copy)]
pub struct Stream<'m>(SharedSlice<'m>, Option<SharedSlice<'m>>);

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// To the program.
    Down,
    /// From it.
    Up,
}

/// Readiness of a stream, as its program sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamState {
    /// Bytes to read.
    pub readable_bytes: usize,
    /// Room for bytes to write.
    pub writable_bytes: usize,
    /// The peer sends nothing after the readable bytes.
    pub ended: bool,
    /// The session failed: an errno, or 0.
    pub error: i32,
}

/// Result of trying to take the lock.
#[derive(Debug)]
pub enum Lock<'m> {
    /// Held by the program, until it is dropped.
    Held(Held<'m>),
    /// Another thread of the program holds it.
    Busy,
    /// The supervisor has taken the stream back.
    TakenBack,
}

/// A program's lock of a stream: it may copy.
#[derive(Debug)]
pub struct Held<'m> {
    stream: Stream<'m>,
    lock: &'m AtomicU32,
}

/// The supervisor's positions in a stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct Served {
    /// Bytes read from the program.
    taken: u64,
    /// Bytes written to it.
    given: u64,
    /// Position of the byte at the start of the ring to the program.
    given_start: u64,
    /// The program writes to its large ring.
    takes_large: bool,
    /// Bytes to the program go to its large ring.
    gives_large: bool,
    /// The small ring was full.
    wants_large: bool,
}

impl<'m> Stream<'m> {
    /// A view of memory of [`STREAM_BYTES`]; none if it is shorter.
    #[must_use]
    pub fn over(memory: SharedSlice<'m>) -> Option<Self> {
        (memory.len() >= STREAM_BYTES).then_some(Self(memory, None))
    }

    /// The view of the stream with this number in a slab.
    #[must_use]
    pub fn of_slab(slab: SharedSlice<'m>, number: u32) -> Option<Self> {
        let start = (number % SLAB_STREAMS).to_usize() * STREAM_BYTES;
        Self::over(slab.range(start..start + STREAM_BYTES)?)
    }

    /// The same with large rings, of [`LARGE_BYTES`].
    #[must_use]
    pub fn with_large(self, memory: Option<SharedSlice<'m>>) -> Self {
        Self(self.0, memory.filter(|it| it.len() >= LARGE_BYTES))
    }

    /// Supervisor: initializes it, before the program knows of it.
    pub fn begin(self) {
        for at in [WRITTEN, TAKEN, GIVEN, READ, UP_START, DOWN_START] {
            self.set_position(at, 0);
        }
        for at in [ENDED, ERROR, PROGRAM_WAITS, SUPERVISOR_WAITS] {
            self.store(at, 0);
        }
        for at in [DOWN_IS_LARGE, UP_IS_LARGE, LARGE_IS_THERE] {
            self.store(at, 0);
        }
        for index in 0..TELL_COUNT {
            self.store(TELL + index * 4, 0);
        }
        self.store(LOCK, FREE);
    }

    /// Supervisor: initializes it as [`Self::begin`] does, with the large rings in use from the
    /// start, which this view has, and the program maps before it uses them.
    #[must_use]
    pub fn begin_large(self) -> Served {
        self.begin();
        self.store(DOWN_IS_LARGE, 1);
        self.store(UP_IS_LARGE, 1);
        Served {
            takes_large: true,
            gives_large: true,
            ..Served::default()
        }
    }

    /// Program: tries to take the lock.
    #[must_use]
    pub fn lock(self) -> Lock<'m> {
        let Some(lock) = self.0.overlay::<AtomicU32>(LOCK) else {
            return Lock::TakenBack;
        };
        // Acquire: sees the writes of the last holder.
        match lock.compare_exchange(FREE, COPIES, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Lock::Held(Held { stream: self, lock }),
            Err(COPIES) => Lock::Busy,
            Err(_) => Lock::TakenBack,
        }
    }

    /// Supervisor: takes the stream back; false while the program copies, unless `by_force`, when
    /// the program is gone.
    #[must_use]
    pub fn take_back(self, by_force: bool) -> bool {
        let Some(lock) = self.0.overlay::<AtomicU32>(LOCK) else {
            return true;
        };
        let free = lock.compare_exchange(FREE, OVER, Ordering::Acquire, Ordering::Relaxed);
        match free {
            Ok(_) => true,
            // A copy ends soon, and its bytes would be lost; the supervisor asks again.
            Err(COPIES) if !by_force => false,
            Err(_) => {
                lock.store(OVER, Ordering::Release);
                true
            }
        }
    }

    /// Program: sets a waiter to notify: 0 the epoll instance that contains the stream, 1 a waiting
    /// reader, 2 a waiting writer; see [`Self::tells`]. Returns the waiter that was set before: a
    /// caller that replaces another one has to set that again, or it is never woken.
    pub fn tell(self, whom: usize, waiter: Option<u32>) -> Option<u32> {
        if whom >= TELL_COUNT {
            return None;
        }
        let waiter = waiter.map_or(0, |waiter| waiter + 1);
        self.swap(TELL + whom * 4, waiter).checked_sub(1)
    }

    /// Supervisor: the waiters to notify.
    pub fn tells(self) -> impl Iterator<Item = u32> + use<'m> {
        // A number beyond the waiters, which only a hostile program writes, wakes none.
        (0..TELL_COUNT).filter_map(move |index| self.load(TELL + index * 4).checked_sub(1))
    }

    /// Program: readiness, without the lock; it may be outdated.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn state(self) -> Result<StreamState, Broken> {
        // The end is read first: the bytes were written before it.
        let ended = self.load(ENDED) != 0;
        let error = self.load(ERROR).cast_signed();
        // Read in this order, so that a position reached is never ahead of the one written.
        let positions = |from, to, way| {
            let room = || Ok(self.room(self.is_large(way)?));
            between_moving(|| self.position(from), || self.position(to), room)
        };
        let (readable_bytes, _) = positions(READ, GIVEN, Way::Down)?;
        let (waiting, room) = positions(TAKEN, WRITTEN, Way::Up)?;
        Ok(StreamState {
            readable_bytes,
            writable_bytes: room - waiting,
            ended,
            error,
        })
    }

    /// Program: true if the supervisor has taken the stream back.
    #[must_use]
    pub fn is_taken_back(self) -> bool {
        self.load(LOCK) == OVER
    }

    /// Program: makes the supervisor notify when there is room to write. To be followed by a fence
    /// and another check.
    pub fn wait_for_room(self) {
        self.store(PROGRAM_WAITS, 1);
    }

    /// Supervisor: number of bytes that the program wrote and that were not read.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn waiting(self, served: &Served) -> Result<usize, Broken> {
        let written = self.position(WRITTEN);
        let is_large = served.takes_large || self.is_large(Way::Up)?;
        between(served.taken, written, self.room(is_large))
    }

    /// Supervisor: reads bytes that the program wrote, as many as there are and fit into `target`.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn take(self, served: &mut Served, target: &mut [u8]) -> Result<usize, Broken> {
        let count = self.waiting(served)?.min(target.len());
        // After the position, which is published after both.
        served.takes_large |= self.is_large(Way::Up)?;
        let at = served.taken.wrapping_sub(self.position(UP_START));
        self.copy_out(Way::Up, served.takes_large, at, &mut target[..count]);
        served.taken += count.to_u64();
        // Release: the bytes were read before the program may overwrite them.
        self.set_position(TAKEN, served.taken);
        Ok(count)
    }

    /// Supervisor: true if the program waits for room; returned once. After [`Self::take`] and a
    /// fence.
    #[must_use]
    pub fn program_waits(self) -> bool {
        self.load(PROGRAM_WAITS) != 0 && self.swap(PROGRAM_WAITS, 0) != 0
    }

    /// Supervisor: writes bytes to the program, as many as there is room for.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn give(self, served: &mut Served, source: &[u8]) -> Result<usize, Broken> {
        let room = self.room(served.gives_large);
        // Its own position is the supervisor's; only the program's is read from the memory.
        let unread = between(self.position(READ), served.given, room)?;
        if unread == 0 && served.wants_large && !served.gives_large && self.may_grow() {
            // The small ring is empty: a thread that sees a later position sees this, too.
            served.gives_large = true;
            self.store(DOWN_IS_LARGE, 1);
        }
        self.give_from_start(served, unread);
        let count = source.len().min(self.room(served.gives_large) - unread);
        // Noted for later: the small ring has to run empty first.
        served.wants_large |= count < source.len();
        let at = served.given - served.given_start;
        self.copy_in(Way::Down, served.gives_large, at, &source[..count]);
        served.given += count.to_u64();
        // Release: the bytes are visible before the position.
        self.set_position(GIVEN, served.given);
        Ok(count)
    }

    /// Supervisor: writes all of these pieces to the program, which sees them at once; false, and
    /// nothing written, if there is no room for all.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn give_all(self, served: &mut Served, pieces: &[&[u8]]) -> Result<bool, Broken> {
        let room = self.room(served.gives_large);
        let unread = between(self.position(READ), served.given, room)?;
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if bytes > room - unread {
            return Ok(false);
        }
        self.give_from_start(served, unread);
        for piece in pieces {
            let at = served.given - served.given_start;
            self.copy_in(Way::Down, served.gives_large, at, piece);
            served.given += piece.len().to_u64();
        }
        // Release: all bytes are visible before the position.
        self.set_position(GIVEN, served.given);
        Ok(true)
    }

    /// Supervisor: begins at the ring's start again, if the program has read all. Short messages so
    /// use the same few cache lines each time, instead of the whole ring's in turn.
    fn give_from_start(self, served: &mut Served, unread: usize) {
        if unread == 0 {
            // Neither side uses the start until `GIVEN` is published, as the ring is empty.
            served.given_start = served.given;
            self.set_position(DOWN_START, served.given);
        }
    }

    /// Supervisor: makes the program notify when there is room. To be followed by a fence and
    /// another [`Self::give`].
    pub fn wait_for_reading(self) {
        self.store(SUPERVISOR_WAITS, 1);
    }

    /// Supervisor: the bytes that the program has not read, after [`Self::take_back`].
    ///
    /// # Errors
    /// [`Broken`].
    pub fn unread(self, served: &Served) -> Result<Vec<u8>, Broken> {
        let read = self.position(READ);
        let room = self.room(served.gives_large);
        // Bounded by the ring, whatever position the program has left.
        let mut unread = vec![0; between(read, served.given, room)?];
        let at = read.wrapping_sub(served.given_start);
        self.copy_out(Way::Down, served.gives_large, at, &mut unread);
        Ok(unread)
    }

    /// Supervisor: the peer sends no more.
    pub fn end(self) {
        self.store(ENDED, 1);
    }

    /// Supervisor: the session failed.
    pub fn fail(self, errno: i32) {
        // Before the end: a program that sees the end finds the reason.
        self.store(ERROR, errno.cast_unsigned());
        self.store(ENDED, 1);
    }

    /// Program: announces that the large rings are mapped and may be used.
    pub fn show_large(self) {
        if self.1.is_some() {
            self.store(LARGE_IS_THERE, 1);
        }
    }

    /// True if this view has large rings.
    #[must_use]
    pub fn has_large(self) -> bool {
        self.1.is_some()
    }

    /// Program: the position of the byte at the start of the ring to the supervisor, which is this
    /// one from now on if the supervisor has taken all.
    fn written_start(self, written: u64, waiting: usize) -> u64 {
        if waiting == 0 {
            // Neither side uses the start until `WRITTEN` is published, as the ring is empty.
            self.set_position(UP_START, written);
            return written;
        }
        self.position(UP_START)
    }

    fn may_grow(self) -> bool {
        self.1.is_some() && self.load(LARGE_IS_THERE) != 0
    }

    /// True if bytes of a direction go to the large ring, as published by their writer.
    fn is_large(self, way: Way) -> Result<bool, Broken> {
        // Published by the writer before the first position that counts in it.
        let is_large = match way {
            Way::Down => self.load(DOWN_IS_LARGE),
            Way::Up => self.load(UP_IS_LARGE),
        } != 0;
        match self.1 {
            None if is_large => Err(Broken),
            _ => Ok(is_large),
        }
    }

    fn room(self, is_large: bool) -> usize {
        if is_large {
            LARGE_RING_BYTES
        } else {
            RING_BYTES
        }
    }

    fn position(self, at: usize) -> u64 {
        let word = self.0.overlay::<AtomicU64>(at);
        // Acquire: partner of the Release in `set_position`.
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn set_position(self, at: usize, value: u64) {
        if let Some(word) = self.0.overlay::<AtomicU64>(at) {
            word.store(value, Ordering::Release);
        }
    }

    fn load(self, at: usize) -> u32 {
        let word = self.0.overlay::<AtomicU32>(at);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(self, at: usize, value: u32) {
        if let Some(word) = self.0.overlay::<AtomicU32>(at) {
            word.store(value, Ordering::Release);
        }
    }

    fn swap(self, at: usize, value: u32) -> u32 {
        let word = self.0.overlay::<AtomicU32>(at);
        word.map_or(0, |word| word.swap(value, Ordering::AcqRel))
    }

    /// A direction's ring: its memory, its offset there, and its size in bytes.
    fn ring(self, way: Way, is_large: bool) -> (SharedSlice<'m>, usize, usize) {
        match (self.1.filter(|_| is_large), way) {
            (Some(large), Way::Down) => (large, 0, LARGE_RING_BYTES),
            (Some(large), Way::Up) => (large, LARGE_RING_BYTES, LARGE_RING_BYTES),
            (None, Way::Down) => (self.0, TO_PROGRAM, RING_BYTES),
            (None, Way::Up) => (self.0, FROM_PROGRAM, RING_BYTES),
        }
    }

    /// Copies what is `distance` bytes behind the byte at the ring's start.
    fn copy_out(self, way: Way, is_large: bool, distance: u64, target: &mut [u8]) {
        let (memory, ring, bytes) = self.ring(way, is_large);
        let at = distance.to_usize() % bytes;
        let first = target.len().min(bytes - at);
        let (head, tail) = target.split_at_mut(first);
        memory.read_at(ring + at, head);
        memory.read_at(ring, tail);
    }

    fn copy_in(self, way: Way, is_large: bool, distance: u64, source: &[u8]) {
        let (memory, ring, bytes) = self.ring(way, is_large);
        let at = distance.to_usize() % bytes;
        let first = source.len().min(bytes - at);
        let (head, tail) = source.split_at(first);
        memory.write_at(ring + at, head);
        memory.write_at(ring, tail);
    }
}

impl Held<'_> {
    /// Reads as many bytes as there are and fit into `target`; with `peeks` they stay, and the
    /// first `skip` bytes are skipped.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(&mut self, target: &mut [u8], peeks: bool, skip: usize) -> Result<usize, Broken> {
        let stream = self.stream;
        let (read, given) = (stream.position(READ), stream.position(GIVEN));
        // After the position, which is published after both.
        let is_large = stream.is_large(Way::Down)?;
        let start = stream.position(DOWN_START);
        let there = between(read, given, stream.room(is_large))?;
        let count = there.saturating_sub(skip).min(target.len());
        let at = read.wrapping_add(skip.to_u64()).wrapping_sub(start);
        stream.copy_out(Way::Down, is_large, at, &mut target[..count]);
        if !peeks {
            stream.set_position(READ, read.wrapping_add(count.to_u64()));
        }
        Ok(count)
    }

    /// Skips `count` bytes, or as many as there are.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn skip(&mut self, count: usize) -> Result<usize, Broken> {
        let stream = self.stream;
        let read = stream.position(READ);
        let given = stream.position(GIVEN);
        let room = stream.room(stream.is_large(Way::Down)?);
        let count = between(read, given, room)?.min(count);
        stream.set_position(READ, read.wrapping_add(count.to_u64()));
        Ok(count)
    }

    /// Writes as many bytes as there is room for.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn write(&mut self, source: &[u8]) -> Result<usize, Broken> {
        let stream = self.stream;
        let written = stream.position(WRITTEN);
        let mut is_large = stream.is_large(Way::Up)?;
        let waiting = between(stream.position(TAKEN), written, stream.room(is_large))?;
        // Only a write that is large for the small ring: going over ends the small one's use.
        if waiting == 0 && !is_large && source.len() > RING_BYTES / 2 && stream.may_grow() {
            // The small ring is empty: a thread that sees a later position sees this, too.
            is_large = true;
            stream.store(UP_IS_LARGE, 1);
        }
        let count = source.len().min(stream.room(is_large) - waiting);
        let at = written.wrapping_sub(stream.written_start(written, waiting));
        stream.copy_in(Way::Up, is_large, at, &source[..count]);
        stream.set_position(WRITTEN, written.wrapping_add(count.to_u64()));
        Ok(count)
    }

    /// Bytes to read.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn readable(&self) -> Result<usize, Broken> {
        let stream = self.stream;
        let (read, given) = (stream.position(READ), stream.position(GIVEN));
        between(read, given, stream.room(stream.is_large(Way::Down)?))
    }

    /// Room for bytes to write.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn room(&self) -> Result<usize, Broken> {
        let stream = self.stream;
        let room = stream.room(stream.is_large(Way::Up)?);
        let (taken, written) = (stream.position(TAKEN), stream.position(WRITTEN));
        Ok(room - between(taken, written, room)?)
    }

    /// Copies bytes to where those will be that are `skip` bytes behind the last one written, as
    /// many as there is room for. They are written once [`Self::publish`] says so. The first piece
    /// of several is the one with `skip` 0, by which the others are placed.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn put(&mut self, skip: usize, source: &[u8]) -> Result<usize, Broken> {
        let stream = self.stream;
        let is_large = stream.is_large(Way::Up)?;
        let room = stream.room(is_large);
        let written = stream.position(WRITTEN);
        let waiting = between(stream.position(TAKEN), written, room)?;
        let count = (room - waiting).saturating_sub(skip).min(source.len());
        // The first piece decides where the later ones are.
        let waiting = if skip == 0 { waiting } else { room };
        let start = stream.written_start(written, waiting);
        let at = written.wrapping_add(skip.to_u64()).wrapping_sub(start);
        stream.copy_in(Way::Up, is_large, at, &source[..count]);
        Ok(count)
    }

    /// Bytes that were copied by [`Self::put`] are written.
    pub fn publish(&mut self, bytes: usize) {
        let stream = self.stream;
        let written = stream.position(WRITTEN);
        stream.set_position(WRITTEN, written.wrapping_add(bytes.to_u64()));
    }

    /// True if a ring is full that could be larger.
    #[must_use]
    pub fn is_cramped(&self) -> bool {
        let stream = self.stream;
        // Positions may be invalid here: then it is not cramped, and the next access says so.
        let fills = |from, to, way| {
            let bytes = stream.position(to).wrapping_sub(stream.position(from));
            bytes == RING_BYTES.to_u64() && stream.is_large(way) == Ok(false)
        };
        !stream.may_grow() && (fills(READ, GIVEN, Way::Down) || fills(TAKEN, WRITTEN, Way::Up))
    }

    /// True if the supervisor waits for room; returned once. After a read and a fence.
    #[must_use]
    pub fn supervisor_waits(&self) -> bool {
        let stream = self.stream;
        stream.load(SUPERVISOR_WAITS) != 0 && stream.swap(SUPERVISOR_WAITS, 0) != 0
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // If the supervisor has taken it by force, it stays taken.
        let lock = self.lock;
        lock.compare_exchange(COPIES, FREE, Ordering::Release, Ordering::Relaxed)
            .ok();
    }
}

const FREE: u32 = 0;
const COPIES: u32 = 1;
const OVER: u32 = 2;
// What one side writes at each message is in one cache line, so that a message moves two: this and
// its bytes'. What both only read is apart.
const LOCK: usize = 0;
// The program's.
const WRITTEN: usize = 64;
const UP_START: usize = 72;
const READ: usize = 80;
// The supervisor's.
const GIVEN: usize = 128;
const DOWN_START: usize = 136;
const TAKEN: usize = 144;
const ENDED: usize = 152;
const ERROR: usize = 156;
// Rarely written.
const TELL: usize = 192;
const TELL_COUNT: usize = 3;
const PROGRAM_WAITS: usize = 256;
const SUPERVISOR_WAITS: usize = 260;
const DOWN_IS_LARGE: usize = 264;
const UP_IS_LARGE: usize = 268;
const LARGE_IS_THERE: usize = 272;
// In the page of the positions: one page less for each message.
const TO_PROGRAM: usize = 512;
const FROM_PROGRAM: usize = TO_PROGRAM + RING_BYTES;
