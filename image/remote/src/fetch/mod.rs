//! Frames in flight: which threads wait for which frames, the next requests, and the kept frames.
//!
//! One lock guards all bookkeeping (`state`); no network or disk I/O is done under it. Worker
//! threads make the requests (`worker`). A worker is started if all others are busy, up to a limit,
//! and ends when idle. `plan` joins neighbouring frames into requests.
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
mod state;
mod worker;

use crate::Retry;
use crate::disk::Disk;
use crate::link::Link;
use crate::origin::{Identity, Origin};
use parking_lot::{Condvar, Mutex};
use sidecore_block::format::Frame;
use sidecore_block::image::Stored;
use state::{Place, State, key};
use std::collections::HashSet;
use std::io;
use std::iter::Peekable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

    /// The image's ETag, date or digest.
    pub(crate) fn validator(&self) -> Option<&str> {
        self.shared.identity.validator.as_deref()
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
        // Less than the memory: frames ahead must not evict one another before they are read.
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

    /// See [`sidecore_block::image::RemoteSource::fetch`].
    pub(crate) fn fetch(
        &self,
        wanted: &[Frame],
        ahead: &mut dyn Iterator<Item = Frame>,
    ) -> io::Result<Vec<Stored>> {
        let shared = &self.shared;
        self.fetch_from_disk(wanted);
        let mut state = shared.state.lock();
        let missing = state.wait_for(wanted);
        for request in plan::join(missing) {
            state.urgent.push_back(request);
            shared.call_worker(&mut state);
        }
        // After the wanted frames, so that their requests are made first.
        self.expect(&mut state, ahead);
        state.make_room(shared.memory_bytes);
        let sleeper = state.sleeper(wanted);
        // Every request ends and settles all its frames, so this loop ends.
        while sleeper.left.load(Ordering::Relaxed) > 0 {
            sleeper.woken.wait(&mut state);
        }
        state.take_all(wanted).map_err(io::Error::other)
    }

    /// Puts those of `wanted` into memory that are new there and in the disk cache.
    fn fetch_from_disk(&self, wanted: &[Frame]) {
        let shared = &self.shared;
        let Some(disk) = &shared.disk else { return };
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

    /// Prefetches frames that no reader waits for yet, as far as memory allows.
    fn expect(&self, state: &mut State, ahead: &mut dyn Iterator<Item = Frame>) {
        // An eighth stays free for frames that readers ask for meanwhile.
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
            // Without room for one frame its reader has to fetch it: nothing after it waits.
            if skip_large(&mut rest, window) {
                continue;
            }
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

/// Skips a frame that is larger than all that may be ahead; true if one was.
fn skip_large(rest: &mut Peekable<impl Iterator<Item = Frame>>, window: u64) -> bool {
    rest.next_if(|frame| u64::from(frame.stored_bytes) > window)
        .is_some()
}

/// Interval at which a paused prefetch checks for room.
const PREFETCH_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_block::codec::CodecId;
    use sidecore_block::format::FrameCheck;

    #[test]
    fn a_frame_that_never_fits_does_not_hold_up_a_prefetch() {
        let frame = |stored_bytes| Frame {
            offset: 0,
            stored_bytes,
            raw_bytes: 1 << 16,
            raw_offset: 0,
            number: 0,
            codec: CodecId::Zstd,
            check: FrameCheck::None,
        };
        let mut rest = [11, 12, 10, 13].map(frame).into_iter().peekable();
        let skipped = std::iter::from_fn(|| skip_large(&mut rest, 10).then_some(()));
        assert_eq!(skipped.count(), 2);
        assert_eq!(rest.next().map(|it| it.stored_bytes), Some(10));
        assert!(skip_large(&mut rest, 10) && rest.next().is_none());
    }
}
