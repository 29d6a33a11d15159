//! A client that is served: its message, its faults, its end.
//!
//! Why here: the server knows clients, and not their pages.
//! Must stay true: a page that the guest gives back is never filled with the image's bytes
//! afterwards ([`Session::removed`]). A damaged frame reaches no guest. Any thread of the session.

use super::{
    HANDSHAKE, HUGE_PAGE_BYTES, MESSAGE_BYTES_MAX, Mapping, PAGE_BYTES, Refusal, Region, Regions,
    Removed, Shared, TICK,
};
use parking_lot::RwLock;
use rustix::io::Errno;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::cpu;
use sidecore_sys::local_socket::{self, Received};
use sidecore_sys::userfault::{FaultEvent, UserFaults};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Serves a client until its process ends or the server does; the number of its faults.
pub(super) fn serve_client(shared: &Shared, client: &OwnedFd) -> Result<u64, Refusal> {
    let (mappings, descriptor) = receive(shared, client.as_fd())?;
    let regions = Regions::check(&mappings, shared.source.size_bytes())?;
    let faults = UserFaults::adopt(descriptor).map_err(Refusal::Descriptor)?;
    // The client may close its socket behind the message: its process tells its end.
    let peer = local_socket::peer(client.as_fd())?;
    let process = local_socket::process_of(client.as_fd(), &peer);
    let session = Session {
        shared,
        faults,
        removed: RwLock::new(Removed::new(&regions)),
        zeros: match regions.0.iter().any(|it| it.page_bytes > PAGE_BYTES) {
            true => vec![0; HUGE_PAGE_BYTES.to_usize()],
            false => Vec::new(),
        },
        regions,
        peer: process.as_ref().map_or(client.as_fd(), AsFd::as_fd),
        is_over: AtomicBool::new(false),
        has_complained: AtomicBool::new(false),
        answered: AtomicU64::new(0),
    };
    session.serve();
    Ok(session.answered.into_inner())
}

/// Takes a client's message.
fn receive(shared: &Shared, client: BorrowedFd<'_>) -> Result<(Vec<Mapping>, OwnedFd), Refusal> {
    let end = Instant::now() + HANDSHAKE;
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let (mut used, mut descriptors, mut ready) = (0, Vec::new(), Vec::new());
    loop {
        let left = end.saturating_duration_since(Instant::now());
        local_socket::poll(&[client, shared.over.as_fd()], &mut ready, left)?;
        if ready[1] || !ready[0] {
            return Err(Refusal::Silent);
        }
        match local_socket::receive(client, &mut message[used..])? {
            Received::Message(bytes, more) => {
                used += bytes;
                descriptors.extend(more);
            }
            Received::Nothing => continue,
            Received::End => return Err(Refusal::Silent),
        }
        if descriptors.len() > 1 {
            return Err(Refusal::Descriptors(descriptors.len()));
        }
        match serde_json::from_slice(&message[..used]) {
            Ok(mappings) => {
                let descriptor = descriptors.pop().ok_or(Refusal::Descriptors(0))?;
                return Ok((mappings, descriptor));
            }
            Err(_) if used == message.len() => return Err(Refusal::Long),
            // A stream may bring a long message in parts.
            Err(error) if error.is_eof() => {}
            Err(error) => return Err(Refusal::Json(error)),
        }
    }
}

/// A client that is served.
struct Session<'s> {
    shared: &'s Shared,
    faults: UserFaults,
    regions: Regions,
    /// Written while an event is read, read while pages are filled: so a page that the guest gives
    /// back is either filled before that, and lost with it, or filled with zeros.
    removed: RwLock<Removed>,
    /// A huge page of zeros, where one may be needed.
    zeros: Vec<u8>,
    /// Readable once the client has ended.
    peer: BorrowedFd<'s>,
    is_over: AtomicBool,
    /// A line about it is in the log.
    has_complained: AtomicBool,
    answered: AtomicU64,
}

impl Session<'_> {
    /// Answers until the end, on this thread and a few others.
    fn serve(&self) {
        let workers = cpu::affordable().clamp(1, WORKERS_MAX);
        std::thread::scope(|threads| {
            let name = |what: &str| Builder::new().name(format!("guest-memory-{what}"));
            if !self.shared.options.prefetch.is_empty() {
                let started = name("ahead").spawn_scoped(threads, || self.prefetch());
                if let Err(error) = started {
                    tracing::warn!("guest memory is not prefetched: no thread: {error}");
                }
            }
            for _ in 1..workers {
                if let Err(error) = name("faults").spawn_scoped(threads, || self.work()) {
                    tracing::debug!("fewer threads answer faults: {error}");
                    break;
                }
            }
            self.work();
        });
    }

    fn is_over(&self) -> bool {
        // Relaxed: it orders nothing.
        self.is_over.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Answers one event after another.
    fn work(&self) {
        let mut buffer = Vec::new();
        let mut ready = Vec::new();
        let waited_for = [self.faults.as_fd(), self.peer, self.shared.over.as_fd()];
        while !self.is_over() {
            match self.next_event() {
                Ok(Some(FaultEvent::Missing(address))) => self.answer(address, &mut buffer),
                Ok(Some(_)) => {}
                Ok(None) => {
                    let polled = local_socket::poll(&waited_for, &mut ready, TICK);
                    if polled.is_err() || ready[1] || ready[2] {
                        self.end();
                    }
                }
                Err(error) => {
                    tracing::info!("the faults of a guest cannot be read: {error}");
                    self.end();
                }
            }
        }
    }

    fn next_event(&self) -> Result<Option<FaultEvent>, Errno> {
        let mut removed = self.removed.write();
        let event = self.faults.next_event()?;
        if let Some(FaultEvent::Removed(start, end)) = event {
            removed.add(&self.regions, start..end);
        }
        Ok(event)
    }

    /// Brings the page of an address that a thread waits for, and then those around it.
    fn answer(&self, address: u64, buffer: &mut Vec<u8>) {
        let Some((number, region)) = self.regions.find(address) else {
            if self.is_first_complaint() {
                tracing::warn!("a guest waits for memory that it has not named, at {address:#x}");
            }
            return;
        };
        self.answered.fetch_add(1, Ordering::Relaxed);
        let page_bytes = region.page_bytes;
        let start = address - (address - region.start) % page_bytes;
        match self.bring(number, region, start..start + page_bytes, buffer) {
            Ok(()) => {}
            // The guest is giving memory back. Its thread asks again, behind that event.
            Err(Errno::AGAIN) => {
                std::thread::sleep(AGAIN_PAUSE);
                self.faults.wake(start, page_bytes).ok();
                return;
            }
            Err(Errno::NOMEM) => {
                std::thread::sleep(NO_MEMORY_PAUSE);
                self.faults.wake(start, page_bytes).ok();
                return;
            }
            Err(Errno::IO) => return self.poison(start, page_bytes),
            Err(error) => return self.failed(error),
        }
        let around = self.shared.options.around_bytes.max(page_bytes);
        let from = region.start + (start - region.start) / around * around;
        let to = (from + around).min(region.start + region.bytes);
        for rest in [start + page_bytes..to, from..start] {
            if !rest.is_empty() && self.bring(number, region, rest, buffer).is_err() {
                // The next fault there says why.
                return;
            }
        }
    }

    /// True once: a guest decides how often it waits for what is not there, and not for the log.
    fn is_first_complaint(&self) -> bool {
        !self.has_complained.swap(true, Ordering::Relaxed)
    }

    /// Makes a page unreadable whose bytes are lost.
    fn poison(&self, start: u64, page_bytes: u64) {
        match self.faults.poison(start, page_bytes) {
            Ok(()) => {}
            // Another thread has filled it after all.
            Err(Errno::EXIST) => {
                self.faults.wake(start, page_bytes).ok();
            }
            Err(error) if self.is_first_complaint() => tracing::error!(
                "a guest waits at {start:#x} for a page that cannot be read, and the kernel cannot \
                 make it unreadable: {error}"
            ),
            Err(_) => {}
        }
    }

    fn failed(&self, error: Errno) {
        match error {
            Errno::SRCH => self.end(),
            error => tracing::debug!("a page of a guest is not filled: {error}"),
        }
    }

    /// Fills the missing pages of a range of whole pages in a region.
    fn bring(
        &self,
        number: usize,
        region: &Region,
        range: Range<u64>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let bytes = (range.end - range.start).to_usize();
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        let bytes = &mut buffer[..bytes];
        let page = region.page_bytes.to_usize();
        let is_given_back = {
            let removed = self.removed.read();
            let mut pages = range.clone().step_by(page);
            pages.all(|at| removed.has(number, region, at))
        };
        // Pages that were given back are zeros whatever the image has.
        if !is_given_back {
            let read = (self.shared.source).read_into(region.offset_of(range.start), bytes);
            // The device has logged the cause.
            read.map_err(|_| Errno::IO)?;
        }
        let bytes = &*bytes;
        let removed = self.removed.read();
        let is_zero = |at: usize| {
            let is_removed = removed.has(number, region, range.start + at.to_u64());
            is_removed || bytes[at..at + page].iter().all(|&byte| byte == 0)
        };
        let mut at = 0;
        while at < bytes.len() {
            let zero = is_zero(at);
            let mut end = at + page;
            while end < bytes.len() && is_zero(end) == zero {
                end += page;
            }
            self.fill(range.start + at.to_u64(), &bytes[at..end], zero, page)?;
            at = end;
        }
        Ok(())
    }

    /// Fills the missing pages among those from an address on, with bytes or with as many zeros.
    fn fill(&self, start: u64, bytes: &[u8], zero: bool, page: usize) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let to = start + done.to_u64();
            let filled = match (zero, self.zeros.get(..page)) {
                (false, _) => self.faults.copy(to, &bytes[done..]),
                // The kernel has no zeros for huge pages.
                (true, Some(zeros)) if page > PAGE_BYTES.to_usize() => self.faults.copy(to, zeros),
                (true, _) => self.faults.zero(to, (bytes.len() - done).to_u64()),
            };
            match filled {
                Ok(0) => return Err(Errno::AGAIN),
                Ok(count) => done += count,
                // Another thread, or the prefetch, was faster.
                Err(Errno::EXIST) => {
                    self.faults.wake(to, page.to_u64())?;
                    done += page;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings the ranges of the image that a client is to have from the start.
    fn prefetch(&self) {
        let mut buffer = Vec::new();
        for wanted in &self.shared.options.prefetch {
            for (number, region) in self.regions.0.iter().enumerate() {
                let start = wanted.start.max(region.offset);
                let end = wanted.end.min(region.offset + region.bytes);
                if start >= end {
                    continue;
                }
                let page = region.page_bytes;
                let first = region.start + (start - region.offset) / page * page;
                let last = region.start + (end - region.offset).next_multiple_of(page);
                if let Err(Errno::SRCH) = self.bring_ahead(number, region, first..last, &mut buffer)
                {
                    return self.end();
                }
                if self.is_over() {
                    return;
                }
            }
        }
    }

    fn bring_ahead(
        &self,
        number: usize,
        region: &Region,
        range: Range<u64>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let piece = AHEAD_BYTES.max(region.page_bytes);
        let mut at = range.start;
        while at < range.end && !self.is_over() {
            let end = (at + piece).min(range.end);
            match self.bring(number, region, at..end, buffer) {
                Err(Errno::SRCH) => return Err(Errno::SRCH),
                // A fault brings what is missing here.
                _ => at = end,
            }
        }
        Ok(())
    }
}

/// Most threads that answer the faults of one client.
const WORKERS_MAX: usize = 4;
/// Bytes that the prefetch brings at once.
const AHEAD_BYTES: u64 = 256 << 10;
/// Pause before a thread asks again for a page while memory is given back.
const AGAIN_PAUSE: Duration = Duration::from_micros(50);
/// The same while the machine, or the guest's control group, has no memory for it.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(10);
