//! The words between a daemon and the processes of an object: messages, and the page of a call.
//!
//! ```text
//! daemon ── LOAD object ──► host process            the table of kernels, or why there is none
//!        ── SPAWN segment ► host process ── fork ──► worker: one client, at one engine
//!        ── REAP worker ──► host process            its status
//!
//! engine ── turn := RUN, wake ──► worker            one page, which both map; on one core
//!        ◄── turn := 0, wake ────                   so that its lines stay in that core's cache
//! ```
//!
//! Must stay true: a worker may write anything to its page at any time. The daemon reads it once,
//! checks lengths, and believes only the kernel's own word on whether a process lives. The turn
//! names the worker's thread as a robust futex does: the kernel marks it and wakes the engine where
//! that thread ends in its turn. Source: get_robust_list(2),
//! `Documentation/locking/robust-futex-ABI`.
#![allow(unsafe_code)] // Says of the page's type that it may lie in shared memory.

use sidecore_bare::width::ToUsize;
use sidecore_daemon::served::Memory;
use sidecore_kernel_abi::raw::WORDS;
use sidecore_sys::Overlay;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One call: the request, then its answer. Everything but the turn is relaxed: the turn's Release
/// and Acquire order it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Page {
    /// 0: the daemon's. [`RUN`] and the worker's thread: the worker's.
    pub(super) turn: AtomicU32,
    /// The number of the request, and of the one that the worker began last.
    pub(super) asked: AtomicU32,
    pub(super) begun: AtomicU32,
    /// [`Memory::WANTED`] while the answer is.
    pub(super) wanted: AtomicU32,
    pub(super) kernel: AtomicU32,
    pub(super) inputs: AtomicU32,
    pub(super) outputs: AtomicU32,
    pub(super) status: AtomicU32,
    /// Words of the request, then of the reply.
    pub(super) words: [AtomicU64; WORDS],
    /// Offset in the segment and length of each stretch.
    pub(super) ranges: [[AtomicU64; 2]; RANGES_MAX],
    /// The signal that ended the worker, and what its handler saw.
    pub(super) signal: AtomicU32,
    pub(super) cause: AtomicU32,
    pub(super) detail: AtomicU64,
    /// The text of a failure: its length, and its bytes.
    text_bytes: AtomicU32,
    unused: AtomicU32,
    text: [AtomicU64; TEXT_WORDS],
}

// SAFETY: atomics and arrays of them, `repr(C)`; the padding at the end is never looked at.
unsafe impl Overlay for Page {}

impl Page {
    /// Writes a text, cut to what there is room for.
    pub(super) fn set_text(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(TEXT_WORDS * 8)];
        for (word, part) in self.text.iter().zip(bytes.chunks(8)) {
            let mut value = [0; 8];
            value[..part.len()].copy_from_slice(part);
            word.store(u64::from_le_bytes(value), Ordering::Relaxed);
        }
        let count = u32::try_from(bytes.len()).unwrap_or(0);
        self.text_bytes.store(count, Ordering::Relaxed);
    }

    /// The text, whatever is there.
    pub(super) fn text(&self) -> String {
        let count = self.text_bytes.load(Ordering::Relaxed).to_usize();
        let words = self.text.iter().map(|word| word.load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(count).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Bytes of a page, which begin its file.
pub(super) const PAGE_BYTES: usize = 4096;
const _: () = assert!(size_of::<Page>() <= PAGE_BYTES);
/// Stretches of a request at most.
pub(super) const RANGES_MAX: usize = 16;
const TEXT_WORDS: usize = 32;
/// The turn's bit for a waiter (`FUTEX_WAITERS`), without which nothing wakes the engine at a
/// worker's end; the lower bits are its thread.
pub(super) const RUN: u32 = 1 << 31;
/// Ends of a run.
pub(super) const DONE: u32 = 1;
/// Done, with a text that says which control words the kernel left changed.
pub(super) const DONE_CHANGED: u32 = 2;
pub(super) const FAILED: u32 = 3;
/// Causes that a signal's handler found: the stack or the memory at its limit.
pub(super) const STACK: u32 = 1;
pub(super) const MEMORY: u32 = 2;
/// A call of the system that is not allowed.
pub(super) const CALL: u32 = 3;

const _: () = assert!(Memory::WANTED != 0);

/// Codes of the daemon's messages.
pub(super) const LOAD: u64 = 1;
pub(super) const SPAWN: u64 = 2;
pub(super) const REAP: u64 = 3;
/// Codes of answers.
pub(super) const GOOD: u64 = 0;
pub(super) const BAD: u64 = 1;
/// The longest message: a table of 64 kernels.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// A message that is being written: words of 64 bits, and texts with their lengths.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn of(words: &[u64]) -> Self {
        let mut writer = Self::default();
        for &word in words {
            writer.word(word);
        }
        writer
    }

    pub(super) fn word(&mut self, word: u64) {
        self.0.extend(word.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        // Names have 40 bytes; a linker's sentence must not make the message too long.
        let bytes = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
        self.word(u64::try_from(bytes.len()).unwrap_or(0));
        self.0.extend(bytes);
    }
}

/// A message that is being read. `None` where it ends too early.
#[derive(Debug)]
pub(super) struct Reader<'m>(pub(super) &'m [u8]);

impl<'m> Reader<'m> {
    fn take(&mut self, bytes: usize) -> Option<&'m [u8]> {
        let (part, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(part)
    }

    pub(super) fn word(&mut self) -> Option<u64> {
        let bytes = self.take(8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let bytes = usize::try_from(self.word()?).ok()?;
        let text = self.take(bytes.min(TEXT_BYTES_MAX))?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

const TEXT_BYTES_MAX: usize = 4 << 10;
