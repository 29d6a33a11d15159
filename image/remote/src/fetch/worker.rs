//! Threads that make the requests: from the disk cache, or over the network with retries.

use super::state::{Place, State, key};
use super::{Shared, plan};
use crate::disk::is_sound;
use crate::fault::Fault;
use crate::origin::{Ask, Reply};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_block::format::Frame;
use sidecore_block::image::Stored;
use sidecore_random::Random;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Shared {
    /// Makes sure that a worker handles the queued request.
    pub(super) fn call_worker(self: &Arc<Self>, state: &mut State) {
        let queued = state.urgent.len() + state.expected.len();
        self.asked.notify_one();
        // Woken workers still count as idle until they hold the lock, so queued ones are compared.
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
            // Readers that wait go before prefetches, at each request anew.
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
        // Each request and process draws other pauses: retries must not come all at once.
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
        let bytes = reply.bytes.len().to_u64();
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
                    state.queue_fresh(key(frame));
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
        .get(start..start.checked_add(frame.stored_bytes.to_usize())?)
}

/// Concurrent requests: at a round trip of 200 ms these transfer 1 MiB each five times a second.
const WORKERS_MAX: usize = 64;
/// Deep enough for a request; many threads mostly wait.
const STACK_BYTES: usize = 256 << 10;
/// Time after which an idle thread ends.
const IDLE_MAX: Duration = Duration::from_secs(30);
