//! Frames in flight: which threads wait for which frames, the next requests, and the kept frames.
//!
//! One lock guards all bookkeeping; no network or disk I/O is done under it. Worker threads make
//! the requests. A worker is started if all others are busy, up to [`WORKERS_MAX`], and ends when
//! idle.
//!
//! - A frame with waiting readers goes before a prefetched one; a queued prefetch that gets a
//!   waiting reader changes queues.
//! - A frame is requested once, however many readers wait for it.
//! - Fetched frames are kept until their memory is needed: used frames are evicted first.
//!
//! Must stay true: every waiting reader gets an answer, since every request ends (its attempts are
//! bounded, and each has a time limit) and settles all its frames. Cached and requested bytes stay
//! within `memory_bytes`. A frame whose checksum is wrong at the last attempt is delivered as
//! received, so that its neighbours are usable: the device checks it again and refuses it.
//! Called from: any thread.

mod plan;

use crate::disk::{Disk, is_sound};
use crate::fault::Fault;
use crate::link::Link;
use crate::origin::{Ask, Identity, Origin, Reply};
use crate::retry::Retry;
use parking_lot::{Condvar, Mutex};
use sidecore_block::format::Frame;
use sidecore_block::image::Stored;
use sidecore_random::Random;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Totals since an image was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were made, each attempt counted.
    pub requests: u64,
    /// Bytes of the image that came over the network and were used.
    pub fetched_bytes: u64,
    /// Failed attempts that were repeated.
    pub retries: u64,
    /// Frames that were found on disk.
    pub disk_hits: u64,
}

/// The frames of one image.
pub(crate) struct Fetcher {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) origin: Arc<Origin>,
    pub(crate) retry: Retry,
    link: Mutex<Link>,
    begun: Instant,
    identity: Identity,
    disk: Option<Disk>,
    memory_bytes: u64,
    state: Mutex<State>,
    /// Notified when frames arrive; only prefetching waits here, for no particular frame.
    arrived: Condvar,
    /// Notified when there is a request to make.
    asked: Condvar,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    fetched_bytes: AtomicU64,
    retries: AtomicU64,
    disk_hits: AtomicU64,
    seed: AtomicU64,
}

#[derive(Default)]
struct State {
    frames: HashMap<Key, Entry>,
    urgent: VecDeque<Vec<Frame>>,
    expected: VecDeque<Vec<Frame>>,
    /// Fetched frames in the order of eviction; some may be evicted already.
    used: VecDeque<Key>,
    fresh: VecDeque<Key>,
    /// Bytes of frames that are cached or in flight.
    held_bytes: u64,
    /// Part of `held_bytes`: frames that were not used yet.
    fresh_bytes: u64,
    /// Frames used since the current prefetch began: they are not requested again.
    passed: Option<HashSet<Key>>,
    workers: usize,
    idle: usize,
    ended: bool,
}

/// A frame's place and size: parts of tables are held here, too, and may begin where frames do.
type Key = (u64, u32);

struct Entry {
    place: Place,
    waiters: u32,
    /// Threads among the waiters that sleep until the frame is fetched or fails.
    sleepers: Vec<Arc<Sleeper>>,
    used: bool,
}

/// A thread that waits for some frames. It is woken once, when the last of them was fetched or
/// failed: waking all waiting threads for each frame would cost more than fetching it.
#[derive(Default)]
struct Sleeper {
    /// Frames that are not settled yet.
    left: AtomicUsize,
    woken: Condvar,
}

impl Entry {
    /// Sets the state of a frame that was fetched or failed, and wakes the threads that wait for
    /// it.
    fn settle(&mut self, place: Place) {
        self.place = place;
        for sleeper in self.sleepers.drain(..) {
            if sleeper.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                sleeper.woken.notify_one();
            }
        }
    }
}

enum Place {
    /// In a queue: urgent if a reader waits for it, else a prefetch.
    Queued {
        urgent: bool,
    },
    /// Part of a request in flight.
    Asked,
    Here(Stored),
    /// Its bytes do not match its checksum: delivered only to the readers that wait for it now.
    Unsound(Stored),
    Failed(String),
}

fn key(frame: &Frame) -> Key {
    (frame.offset, frame.stored_bytes)
}

impl Fetcher {
    pub(crate) fn new(
        origin: Arc<Origin>,
        retry: Retry,
        identity: Identity,
        link: Link,
        disk: Option<Disk>,
        memory_bytes: u64,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                origin,
                retry,
                link: Mutex::new(link),
                begun: Instant::now(),
                identity,
                disk,
                memory_bytes,
                state: Mutex::default(),
                arrived: Condvar::new(),
                asked: Condvar::new(),
                counters: Counters::default(),
            }),
        }
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.shared.origin
    }

    pub(crate) fn counts(&self) -> Counts {
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            requests: read(&counters.requests),
            fetched_bytes: read(&counters.fetched_bytes),
            retries: read(&counters.retries),
            disk_hits: read(&counters.disk_hits),
        }
    }

    /// Upper bound of the memory for frames in flight and cached frames.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.shared.memory_bytes
    }

    /// Bytes to keep in flight ahead of a reader.
    pub(crate) fn window_bytes(&self) -> u64 {
        let most = self.shared.memory_bytes / 4 * 3;
        self.shared.link.lock().window_bytes(most)
    }

    /// Writes a frame that was received in another way to the disk cache.
    pub(crate) fn keep(&self, frame: &Frame, stored: &[u8]) {
        if let Some(disk) = &self.shared.disk
            && disk.get(frame).is_none()
        {
            disk.put(frame, stored);
        }
    }

    /// True if there is a disk cache.
    pub(crate) fn keeps(&self) -> bool {
        self.shared.disk.is_some()
    }

    /// See [`sidecore_block::image::Far::bring`].
    pub(crate) fn bring(
        &self,
        wanted: &[Frame],
        ahead: &mut dyn Iterator<Item = Frame>,
    ) -> io::Result<Vec<Stored>> {
        let shared = &self.shared;
        if let Some(disk) = &shared.disk {
            // Read from disk before taking the lock, since file I/O may take long.
            let missing: Vec<Frame> = {
                let state = shared.state.lock();
                let is_new = |frame: &&Frame| !state.frames.contains_key(&key(frame));
                wanted.iter().filter(is_new).copied().collect()
            };
            for frame in missing {
                if let Some(bytes) = disk.get(&frame) {
                    shared.counters.disk_hits.fetch_add(1, Ordering::Relaxed);
                    shared.state.lock().insert_here(&frame, bytes.into());
                }
            }
        }
        let mut state = shared.state.lock();
        let mut missing = Vec::new();
        for frame in wanted {
            match state.frames.get_mut(&key(frame)) {
                Some(entry) => {
                    entry.waiters += 1;
                    if let Place::Queued { urgent } = &mut entry.place
                        && !std::mem::replace(urgent, true)
                    {
                        state.make_urgent(frame);
                    }
                }
                None => {
                    state.insert(frame, Place::Queued { urgent: true }, 1);
                    missing.push(*frame);
                }
            }
        }
        for request in plan::join(missing) {
            state.urgent.push_back(request);
            shared.call_worker(&mut state);
        }
        self.expect(&mut state, ahead);
        state.make_room(shared.memory_bytes);
        let sleeper = Arc::new(Sleeper::default());
        for frame in wanted {
            if let Some(entry) = state.frames.get_mut(&key(frame))
                && matches!(entry.place, Place::Queued { .. } | Place::Asked)
            {
                sleeper.left.fetch_add(1, Ordering::Relaxed);
                entry.sleepers.push(Arc::clone(&sleeper));
            }
        }
        // Every request ends and settles all its frames, so this loop ends.
        while sleeper.left.load(Ordering::Relaxed) > 0 {
            sleeper.woken.wait(&mut state);
        }
        let mut stored = Vec::with_capacity(wanted.len());
        let mut failed = None;
        for frame in wanted {
            match state.take(frame) {
                Ok(bytes) => stored.push(bytes),
                Err(reason) => failed = failed.or(Some(reason)),
            }
        }
        match failed {
            None => Ok(stored),
            Some(reason) => Err(io::Error::other(reason)),
        }
    }

    /// Prefetches frames that no reader waits for yet, as far as memory allows.
    fn expect(&self, state: &mut State, ahead: &mut dyn Iterator<Item = Frame>) {
        let limit = self.shared.memory_bytes / 8 * 7;
        let mut frames = Vec::new();
        for frame in ahead {
            if state.fresh_bytes + u64::from(frame.stored_bytes) > limit {
                break;
            }
            let passed = state
                .passed
                .as_ref()
                .is_some_and(|it| it.contains(&key(&frame)));
            if !passed && !state.frames.contains_key(&key(&frame)) {
                state.insert(&frame, Place::Queued { urgent: false }, 0);
                frames.push(frame);
            }
        }
        for request in plan::join(frames) {
            state.expected.push_back(request);
            self.shared.call_worker(state);
        }
    }

    /// Starts or stops recording the frames that are used; called with true before
    /// [`Self::prefetch`].
    pub(crate) fn remember_used(&self, on: bool) {
        self.shared.state.lock().passed = on.then(HashSet::new);
    }

    /// Fetches `frames` in their order, at full rate, while `more` returns true; frames in the disk
    /// cache are skipped. Without a disk cache it pauses when memory is full of unused frames, and
    /// resumes when they are used.
    pub(crate) fn prefetch(&self, frames: &[Frame], more: &dyn Fn() -> bool) {
        let shared = &self.shared;
        let mut rest = frames.iter().copied().peekable();
        while rest.peek().is_some() && more() {
            let window = self.window_bytes();
            let mut state = shared.state.lock();
            if state.fresh_bytes >= window {
                if shared.disk.is_some() {
                    // With a disk cache they are on disk, or will be once fetched.
                    state.forget_fresh(window / 2);
                }
                if state.fresh_bytes >= window {
                    shared.arrived.wait_for(&mut state, PREFETCH_PAUSE);
                    continue;
                }
            }
            let mut room = window - state.fresh_bytes;
            let mut some = std::iter::from_fn(|| {
                let frame = rest.next_if(|frame| u64::from(frame.stored_bytes) <= room)?;
                room -= u64::from(frame.stored_bytes);
                Some(frame)
            });
            self.expect(&mut state, &mut some);
            if rest.peek().is_some() {
                // Too little room for the next frame: wait until others have arrived.
                shared.arrived.wait_for(&mut state, PREFETCH_PAUSE);
            }
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.asked.notify_all();
    }
}

impl State {
    fn insert(&mut self, frame: &Frame, place: Place, waiters: u32) {
        let bytes = u64::from(frame.stored_bytes);
        self.held_bytes += bytes;
        self.fresh_bytes += bytes;
        let entry = Entry {
            place,
            waiters,
            sleepers: Vec::new(),
            used: false,
        };
        self.frames.insert(key(frame), entry);
    }

    fn insert_here(&mut self, frame: &Frame, stored: Stored) {
        if !self.frames.contains_key(&key(frame)) {
            self.insert(frame, Place::Here(stored), 0);
            self.fresh.push_back(key(frame));
        }
    }

    /// Removes a frame that no reader waits for.
    fn remove(&mut self, key: Key) {
        if let Some(entry) = self.frames.remove(&key) {
            let bytes = u64::from(key.1);
            self.held_bytes -= bytes;
            self.fresh_bytes -= if entry.used { 0 } else { bytes };
        }
    }

    /// Returns a waiter's frame, or the reason for a failure.
    fn take(&mut self, frame: &Frame) -> Result<Stored, String> {
        let key = key(frame);
        let Some(entry) = self.frames.get_mut(&key) else {
            return Err("the frame was forgotten while it was waited for".into());
        };
        entry.waiters -= 1;
        match &entry.place {
            Place::Here(stored) => {
                let stored = Arc::clone(stored);
                if let Some(passed) = &mut self.passed {
                    passed.insert(key);
                }
                if !std::mem::replace(&mut entry.used, true) {
                    self.fresh_bytes -= u64::from(key.1);
                    self.used.push_back(key);
                }
                Ok(stored)
            }
            Place::Unsound(stored) => {
                let stored = Arc::clone(stored);
                if entry.waiters == 0 {
                    self.remove(key);
                }
                Ok(stored)
            }
            Place::Failed(reason) => {
                let reason = reason.clone();
                // The last waiter removes the failed entry, so that the next reader tries again.
                if entry.waiters == 0 {
                    self.remove(key);
                }
                Err(reason)
            }
            Place::Queued { .. } | Place::Asked => Err("the frame did not come".into()),
        }
    }

    /// Moves the request that has `frame` to the urgent ones.
    fn make_urgent(&mut self, frame: &Frame) {
        let has_it = |request: &Vec<Frame>| request.iter().any(|it| key(it) == key(frame));
        if let Some(request) = self.expected.iter().position(has_it)
            && let Some(request) = self.expected.remove(request)
        {
            for frame in &request {
                if let Some(entry) = self.frames.get_mut(&key(frame)) {
                    entry.place = Place::Queued { urgent: true };
                }
            }
            self.urgent.push_back(request);
        }
    }

    /// Evicts frames until those held take at most `limit`; used ones first.
    fn make_room(&mut self, limit: u64) {
        let mut busy = Vec::new();
        while self.held_bytes > limit {
            let Some(oldest) = self.used.pop_front().or_else(|| self.fresh.pop_front()) else {
                break;
            };
            if !self.remove_if_idle(oldest) {
                busy.push(oldest);
            }
        }
        // Readers are about to take these; they stay for a later eviction.
        self.used.extend(busy);
    }

    /// Evicts unused frames until they take at most `limit`.
    fn forget_fresh(&mut self, limit: u64) {
        while self.fresh_bytes > limit {
            let Some(oldest) = self.fresh.pop_front() else {
                return;
            };
            if self.frames.get(&oldest).is_some_and(|entry| !entry.used) {
                let _ = self.remove_if_idle(oldest);
            }
        }
    }

    /// Removes a frame unless a reader waits for it. True when it is gone.
    fn remove_if_idle(&mut self, key: Key) -> bool {
        let Some(entry) = self.frames.get(&key) else {
            return true;
        };
        let idle = entry.waiters == 0 && matches!(entry.place, Place::Here(_));
        if idle {
            self.remove(key);
        }
        idle
    }
}

impl Shared {
    /// Makes sure that a worker handles the queued request.
    fn call_worker(self: &Arc<Self>, state: &mut State) {
        let queued = state.urgent.len() + state.expected.len();
        self.asked.notify_one();
        if state.idle >= queued || state.workers >= WORKERS_MAX {
            return;
        }
        state.workers += 1;
        let shared = Arc::clone(self);
        let name = "fetch".to_owned();
        if let Err(error) = std::thread::Builder::new()
            .name(name)
            .stack_size(STACK_BYTES)
            .spawn(move || shared.work())
        {
            state.workers -= 1;
            tracing::warn!("no thread to make requests: {error}");
            if state.workers == 0 {
                // Without a thread no request would ever be answered. This includes queued
                // prefetches, which may become urgent without another call of this function.
                let expected = std::mem::take(&mut state.expected);
                for request in std::mem::take(&mut state.urgent)
                    .into_iter()
                    .chain(expected)
                {
                    self.fail(state, &request, "no thread to make the request");
                }
            }
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let next = state
                .urgent
                .pop_front()
                .or_else(|| state.expected.pop_front());
            if let Some(request) = next.filter(|_| !state.ended) {
                for frame in &request {
                    if let Some(entry) = state.frames.get_mut(&key(frame)) {
                        entry.place = Place::Asked;
                    }
                }
                drop(state);
                // A panic in there must not leave a reader waiting.
                let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    self.serve(&request);
                }));
                state = self.state.lock();
                if served.is_err() {
                    self.fail(&mut state, &request, "a request panicked");
                }
                continue;
            }
            if state.ended {
                break;
            }
            state.idle += 1;
            let waited = self.asked.wait_for(&mut state, IDLE_MAX);
            state.idle -= 1;
            if waited.timed_out() && state.urgent.is_empty() && state.expected.is_empty() {
                break;
            }
        }
        state.workers -= 1;
    }

    /// Gets the frames of one request from disk or over the network.
    fn serve(&self, request: &[Frame]) {
        let mut missing = Vec::with_capacity(request.len());
        for frame in request {
            match self.disk.as_ref().and_then(|disk| disk.get(frame)) {
                Some(bytes) => {
                    self.counters.disk_hits.fetch_add(1, Ordering::Relaxed);
                    // The disk cache has verified its checksum.
                    self.publish(std::iter::once((frame, bytes.into(), true)));
                }
                None => missing.push(*frame),
            }
        }
        for request in plan::join(missing) {
            match self.fetch(&request) {
                Ok((reply, is_whole)) => {
                    let stored: Vec<Stored> = request
                        .iter()
                        .map(|frame| slice(&reply, frame).unwrap_or_default().into())
                        .collect();
                    // Waiting readers continue while the frames are written to disk.
                    self.publish(request.iter().zip(&stored).map(|(frame, stored)| {
                        let is_sound = is_whole || is_sound(frame, stored);
                        (frame, Arc::clone(stored), is_sound)
                    }));
                    if let Some(disk) = &self.disk {
                        for (frame, stored) in request.iter().zip(&stored) {
                            disk.put(frame, stored);
                        }
                    }
                }
                Err(fault) => {
                    let mut state = self.state.lock();
                    self.fail(&mut state, &request, &fault.to_string());
                }
            }
        }
    }

    /// Makes one request until it succeeds or its attempts are used up; returns whether all its
    /// frames match their checksums.
    fn fetch(&self, request: &[Frame]) -> Result<(Reply, bool), Fault> {
        let (start, end) = plan::span(request);
        let ask = Ask::Range(start..end);
        let seed = self.counters.seed.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::new(seed ^ u64::from(std::process::id()) << 32);
        let mut attempt = 0;
        loop {
            let result = self.attempt(&ask);
            let whole = |reply: &Reply| {
                let sound = |frame| slice(reply, frame).is_some_and(|it| is_sound(frame, it));
                request.iter().all(sound)
            };
            let fault = match result {
                Ok(reply) if whole(&reply) => return Ok((reply, true)),
                Ok(reply) => {
                    // The image itself may be damaged, and not the transfer.
                    let Some(pause) = self.retry.pause(attempt, &mut random) else {
                        return Ok((reply, false));
                    };
                    (
                        Fault::Passing("a frame does not match its checksum".into()),
                        pause,
                    )
                }
                Err(fault) => match self.retry.pause(attempt, &mut random) {
                    Some(pause) if fault.may_pass() => (fault, pause),
                    _ => return Err(fault),
                },
            };
            let (fault, pause) = fault;
            tracing::info!("bytes {start} to {end}, attempt {}: {fault}", attempt + 1);
            self.counters.retries.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(pause);
            attempt += 1;
        }
    }

    fn attempt(&self, ask: &Ask) -> Result<Reply, Fault> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let mut on_bytes = |bytes| self.link.lock().received(self.begun.elapsed(), bytes);
        let reply = self.origin.get(ask, Some(&self.identity), &mut on_bytes)?;
        self.link
            .lock()
            .answered(self.begun.elapsed(), reply.waited);
        let bytes = reply.bytes.len() as u64;
        self.counters
            .fetched_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        Ok(reply)
    }

    /// Delivers received frames, each with a flag that is true if its checksum matches.
    fn publish<'f>(&self, frames: impl Iterator<Item = (&'f Frame, Stored, bool)>) {
        let mut state = self.state.lock();
        for (frame, stored, is_sound) in frames {
            match state.frames.get_mut(&key(frame)) {
                Some(entry) if is_sound => {
                    entry.settle(Place::Here(stored));
                    state.fresh.push_back(key(frame));
                }
                Some(entry) if entry.waiters > 0 => entry.settle(Place::Unsound(stored)),
                // No reader waits for it: the next reader has it fetched again.
                _ => state.remove(key(frame)),
            }
        }
        state.make_room(self.memory_bytes);
        drop(state);
        self.arrived.notify_all();
    }

    /// Gives the reason of a failed `request` to all readers that wait for a missing frame of it.
    fn fail(&self, state: &mut State, request: &[Frame], reason: &str) {
        for frame in request {
            let key = key(frame);
            match state.frames.get_mut(&key) {
                Some(entry) if matches!(entry.place, Place::Here(_) | Place::Unsound(_)) => {}
                Some(entry) if entry.waiters > 0 => {
                    entry.settle(Place::Failed(reason.to_owned()));
                }
                // It was only a prefetch: the next reader requests it again.
                _ => state.remove(key),
            }
        }
        self.arrived.notify_all();
    }
}

/// A frame's bytes in a reply.
fn slice<'r>(reply: &'r Reply, frame: &Frame) -> Option<&'r [u8]> {
    let start = usize::try_from(frame.offset.checked_sub(reply.offset)?).ok()?;
    reply
        .bytes
        .get(start..start.checked_add(frame.stored_bytes as usize)?)
}

/// Concurrent requests: at a round trip of 200 ms these transfer 1 MiB each five times a second.
const WORKERS_MAX: usize = 64;
/// Deep enough for a request; many threads mostly wait.
const STACK_BYTES: usize = 256 << 10;
/// Time after which an idle thread ends.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Interval at which a paused prefetch checks for room.
const PREFETCH_PAUSE: Duration = Duration::from_millis(50);
