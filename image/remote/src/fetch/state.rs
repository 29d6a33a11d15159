//! Book-keeping of the frames in flight and of those that are kept.
//!
//! Must stay true: a frame's bytes count in `held_bytes` from its entry to its removal, and in
//! `fresh_bytes` until it is used; an entry with waiters stays. Used under the fetcher's one lock.

use parking_lot::Condvar;
use sidecore_block::format::Frame;
use sidecore_block::image::Stored;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The frames of one image, and the requests to make.
#[derive(Default)]
pub(super) struct State {
    pub(super) frames: HashMap<Key, Entry>,
    pub(super) urgent: VecDeque<Vec<Frame>>,
    pub(super) expected: VecDeque<Vec<Frame>>,
    /// Fetched frames in the order of eviction; some may be evicted already.
    pub(super) used: VecDeque<Key>,
    /// The same of those that were not used yet; some may be used by now ([`State::queue_fresh`]).
    fresh: VecDeque<Key>,
    /// Bytes of frames that are cached or in flight.
    pub(super) held_bytes: u64,
    /// Part of `held_bytes`: frames that were not used yet.
    pub(super) fresh_bytes: u64,
    /// Frames used since the current prefetch began: they are not requested again.
    pub(super) passed: Option<HashSet<Key>>,
    pub(super) workers: usize,
    pub(super) idle: usize,
    pub(super) ended: bool,
}

/// A frame's place and size: parts of tables are held here, too, and may begin where frames do.
pub(super) type Key = (u64, u32);

/// A frame that is kept, in flight or waited for.
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) waiters: u32,
    /// Threads among the waiters that sleep until the frame is fetched or fails.
    pub(super) sleepers: Vec<Arc<Sleeper>>,
    pub(super) used: bool,
}

/// A thread that waits for some frames. It is woken once, when the last of them was fetched or
/// failed: waking all waiting threads for each frame would cost more than fetching it.
#[derive(Default)]
pub(super) struct Sleeper {
    /// Frames that are not settled yet.
    pub(super) left: AtomicUsize,
    pub(super) woken: Condvar,
}

impl Entry {
    /// Sets the state of a frame that was fetched or failed, and wakes the threads that wait for
    /// it.
    pub(super) fn settle(&mut self, place: Place) {
        self.place = place;
        for sleeper in self.sleepers.drain(..) {
            if sleeper.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                sleeper.woken.notify_one();
            }
        }
    }
}

pub(super) enum Place {
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

pub(super) fn key(frame: &Frame) -> Key {
    (frame.offset, frame.stored_bytes)
}

impl State {
    /// Adds a waiter to each of `wanted`, and a queued entry for those that are new; returns these.
    pub(super) fn wait_for(&mut self, wanted: &[Frame]) -> Vec<Frame> {
        let mut missing = Vec::new();
        for frame in wanted {
            match self.frames.get_mut(&key(frame)) {
                Some(entry) => {
                    entry.waiters += 1;
                    if let Place::Queued { urgent } = &mut entry.place
                        && !std::mem::replace(urgent, true)
                    {
                        self.make_urgent(frame);
                    }
                }
                None => {
                    self.insert(frame, Place::Queued { urgent: true }, 1);
                    missing.push(*frame);
                }
            }
        }
        missing
    }

    /// A sleeper that is woken once all of `wanted` have been fetched or have failed.
    pub(super) fn sleeper(&mut self, wanted: &[Frame]) -> Arc<Sleeper> {
        let sleeper = Arc::new(Sleeper::default());
        for frame in wanted {
            if let Some(entry) = self.frames.get_mut(&key(frame))
                && matches!(entry.place, Place::Queued { .. } | Place::Asked)
            {
                // Relaxed, as all of its uses: the fetcher's lock orders them.
                sleeper.left.fetch_add(1, Ordering::Relaxed);
                entry.sleepers.push(Arc::clone(&sleeper));
            }
        }
        sleeper
    }

    /// Returns the frames of a waiter, or the first reason for a failure.
    pub(super) fn take_all(&mut self, wanted: &[Frame]) -> Result<Vec<Stored>, String> {
        let mut stored = Vec::with_capacity(wanted.len());
        let mut failed = None;
        for frame in wanted {
            match self.take(frame) {
                Ok(bytes) => stored.push(bytes),
                // Goes on: this waiter must be taken off the other frames, too.
                Err(reason) => failed = failed.or(Some(reason)),
            }
        }
        failed.map_or(Ok(stored), Err)
    }

    pub(super) fn insert(&mut self, frame: &Frame, place: Place, waiters: u32) {
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

    pub(super) fn insert_here(&mut self, frame: &Frame, stored: Stored) {
        if !self.frames.contains_key(&key(frame)) {
            self.insert(frame, Place::Here(stored), 0);
            self.queue_fresh(key(frame));
        }
    }

    /// Queues a frame that has come for eviction.
    pub(super) fn queue_fresh(&mut self, key: Key) {
        self.fresh.push_back(key);
        // Keys stay when their frames are used or evicted. As long as used frames make room, none
        // is taken from the front: without a limit the queue would grow with each frame.
        if self.fresh.len() > 2 * self.frames.len() + FRESH_SPARE {
            let (frames, mut seen) = (&self.frames, HashSet::new());
            let is_fresh = |key: &Key| frames.get(key).is_some_and(|entry| !entry.used);
            self.fresh.retain(|key| is_fresh(key) && seen.insert(*key));
        }
    }

    /// Removes a frame that no reader waits for.
    pub(super) fn remove(&mut self, key: Key) {
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
        // Taken off first, whatever follows: an entry with waiters is never evicted.
        entry.waiters -= 1;
        match &entry.place {
            Place::Here(stored) => {
                let stored = Arc::clone(stored);
                // A prefetch that comes to this frame later skips it, although it may be evicted.
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
    pub(super) fn make_urgent(&mut self, frame: &Frame) {
        let has_it = |request: &Vec<Frame>| request.iter().any(|it| key(it) == key(frame));
        if let Some(request) = self.expected.iter().position(has_it)
            && let Some(request) = self.expected.remove(request)
        {
            // The whole request: its other frames come with the same bytes.
            for frame in &request {
                if let Some(entry) = self.frames.get_mut(&key(frame)) {
                    entry.place = Place::Queued { urgent: true };
                }
            }
            self.urgent.push_back(request);
        }
    }

    /// Evicts frames until those held take at most `limit`; used ones first.
    pub(super) fn make_room(&mut self, limit: u64) {
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
    pub(super) fn forget_fresh(&mut self, limit: u64) {
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

/// Keys that the queue of fresh frames may have beyond twice the frames, so that few are looked
/// through for each that comes.
const FRESH_SPARE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_block::codec::CodecId;
    use sidecore_block::format::FrameCheck;

    fn frame(number: u64) -> Frame {
        Frame {
            offset: number * 100,
            stored_bytes: 100,
            raw_bytes: 1 << 16,
            raw_offset: 0,
            number: 0,
            codec: CodecId::Zstd,
            check: FrameCheck::None,
        }
    }

    /// As of a reader that goes round in an image that does not fit.
    #[test]
    fn queues_stay_short_however_many_frames_come() {
        let mut state = State::default();
        for number in 0..100_000 {
            let frame = frame(number % 50);
            state.insert_here(&frame, vec![0; 100].into());
            state.frames.get_mut(&key(&frame)).unwrap().waiters = 1;
            state.take_all(&[frame]).unwrap();
            state.make_room(1000);
            assert!(state.frames.len() <= 11);
        }
        let (fresh, used) = (state.fresh.len(), state.used.len());
        assert!(fresh <= 2 * 11 + FRESH_SPARE, "{fresh}");
        assert!(used <= 11, "{used}");
        assert_eq!((state.held_bytes, state.fresh_bytes), (1000, 0));
        // Frames that were not used stay in the queue, each once, and are evicted from there.
        for number in 100..103 {
            state.insert_here(&frame(number), vec![0; 100].into());
        }
        for _ in 0..2000 {
            state.queue_fresh(key(&frame(100)));
        }
        assert!(state.fresh.len() <= 2 * state.frames.len() + FRESH_SPARE);
        state.make_room(0);
        assert_eq!((state.frames.len(), state.held_bytes), (0, 0));
    }
}
