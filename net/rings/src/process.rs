//! A process's segment.

use crate::SEGMENT_BYTES;
use sidecore_bare::width::ToUsize;
use sidecore_sync::{Shared, SleepWord};
use sidecore_sys::SharedSlice;
use std::sync::atomic::{AtomicU64, Ordering};

/// View of the segment that a process shares with its supervisor; the same for both sides.
#[derive(Debug, Clone, Copy)]
pub struct Process<'m>(SharedSlice<'m>);

impl<'m> Process<'m> {
    /// A view of memory of [`SEGMENT_BYTES`]; none if it is shorter.
    #[must_use]
    pub fn over(memory: SharedSlice<'m>) -> Option<Self> {
        (memory.len() >= SEGMENT_BYTES).then_some(Self(memory))
    }

    /// The supervisor's sleep word.
    #[must_use]
    pub fn supervisor_word(self) -> Option<&'m SleepWord<Shared>> {
        self.0.overlay(SUPERVISOR_ASLEEP)
    }

    /// A waiter's sleep word; none beyond [`WAITERS`].
    #[must_use]
    pub fn waiter_word(self, waiter: u32) -> Option<&'m SleepWord<Shared>> {
        let waiter = usize::try_from(waiter).ok().filter(|it| *it < WAITERS)?;
        self.0.overlay(WAITER_WORDS + waiter * LINE)
    }

    /// Notifies the supervisor of a stream's event: bytes, or room.
    pub fn tell_supervisor(self, stream: u32) {
        self.set(SUPERVISOR_NEWS, stream);
    }

    /// Notifies a waiter of a stream's event.
    pub fn tell_waiter(self, waiter: u32, stream: u32) {
        if let Some(start) = waiter_news(waiter) {
            self.set(start, stream);
        }
    }

    /// True if a stream has an event for the supervisor.
    #[must_use]
    pub fn has_supervisor_news(self) -> bool {
        self.has_news(SUPERVISOR_NEWS)
    }

    /// True if a stream has an event for a waiter.
    #[must_use]
    pub fn has_waiter_news(self, waiter: u32) -> bool {
        waiter_news(waiter).is_some_and(|start| self.has_news(start))
    }

    /// Takes the events for the supervisor: the streams' numbers, each below [`STREAMS`].
    pub fn take_supervisor_news(self, each: impl FnMut(u32)) {
        self.take(SUPERVISOR_NEWS, each);
    }

    /// Takes the events for a waiter.
    pub fn take_waiter_news(self, waiter: u32, each: impl FnMut(u32)) {
        if let Some(start) = waiter_news(waiter) {
            self.take(start, each);
        }
    }

    fn set(self, start: usize, stream: u32) {
        let word = stream.to_usize() / 64;
        if word >= WORDS {
            return;
        }
        if let Some(word) = self.0.overlay::<AtomicU64>(start + word * 8) {
            let bit = 1 << (stream % 64);
            // Release: the thread that takes the bit sees the bytes that it announces. Set even if
            // it is set already: a thread that took it may check the stream before these bytes.
            word.fetch_or(bit, Ordering::Release);
        }
    }

    fn has_news(self, start: usize) -> bool {
        (0..WORDS).any(|word| {
            let word = self.0.overlay::<AtomicU64>(start + word * 8);
            // Relaxed: only a check; events are taken with Acquire.
            word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
        })
    }

    fn take(self, start: usize, mut each: impl FnMut(u32)) {
        for (word, first) in (0..WORDS).zip((0..).step_by(64)) {
            let Some(bits) = self.0.overlay::<AtomicU64>(start + word * 8) else {
                return;
            };
            // Relaxed: a check first, so that the cache line stays shared without events.
            if bits.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut taken = bits.swap(0, Ordering::Acquire);
            while taken != 0 {
                each(first + taken.trailing_zeros());
                taken &= taken - 1;
            }
        }
    }
}

fn waiter_news(waiter: u32) -> Option<usize> {
    let waiter = usize::try_from(waiter).ok().filter(|it| *it < WAITERS)?;
    Some(WAITER_NEWS + waiter * WORDS * 8)
}

/// Streams of a process.
pub const STREAMS: u32 = 1024;
/// Waiters of a process.
pub const WAITERS: usize = 64;
/// Offset of the supervisor's sleep word.
const SUPERVISOR_ASLEEP: usize = 128;
const SUPERVISOR_NEWS: usize = 256;
const WAITER_WORDS: usize = 4096;
const WAITER_NEWS: usize = 8192;
const LINE: usize = 64;
/// Words of a bit set of streams.
const WORDS: usize = STREAMS as usize / 64;
const _: () = assert!(WAITER_NEWS + WAITERS * WORDS * 8 <= SEGMENT_BYTES);
const _: () = assert!(WAITER_WORDS + WAITERS * LINE <= WAITER_NEWS);
