//! Placement of blocks: on the engines of a daemon where there is one, else on the caller.
//!
//! Why here: a block has the same bytes wherever it is made, so everything about engines
//! (attaching, loss) stays in this file.
//! Must stay true: no thread is started in a host program's process. A child of `fork` does not use
//! its parent's attachment, nor any lock of it: it makes its own. An attachment that was lost is
//! never dropped, because a program may have closed its descriptors, ours among them, and opened
//! its own under their numbers. Nothing waits for a daemon that does not answer, except
//! [`ATTACH_LOOKS`] once in a while. Any thread.

use crate::memory::{Bytes, NoMemory};
use crate::settings::{Use, settings};
use sidecore_attach::Trust;
use sidecore_daemon::client::{Client, ClientOptions, KernelId, Piece};
use sidecore_daemon::find_socket;
use sidecore_daemon::served::{Registry, Served};
use sidecore_deflate::{BLOCK_BYTES, Deflater, block_bytes_max, served};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Makes blocks of `raw` and appends them to `out`.
pub(crate) fn deflate(
    raw: &[u8],
    level: u8,
    is_last: bool,
    out: &mut Bytes,
) -> Result<(), NoMemory> {
    // A full block may be the first of many, for which it is worth looking for engines.
    if raw.len() >= BLOCK_BYTES
        && settings().used == Use::Engines
        && let Some(attachment) = Attachment::current()
    {
        let before = out.len();
        if attachment.deflate(raw, level, is_last, out).is_some() {
            return Ok(());
        }
        // Blocks of a daemon that went in the middle: all of them are made again.
        out.truncate(before);
    }
    deflate_here(raw, level, is_last, out)
}

/// The same, on this thread.
fn deflate_here(raw: &[u8], level: u8, is_last: bool, out: &mut Bytes) -> Result<(), NoMemory> {
    thread_local! {
        static TOOLS: RefCell<Tools> = RefCell::default();
    }
    let mut work = |tools: &mut Tools| {
        let blocks = block_count(raw.len());
        for index in 0..blocks {
            let start = index * BLOCK_BYTES;
            let block = &raw[start..raw.len().min(start + BLOCK_BYTES)];
            let is_last = is_last && index + 1 == blocks;
            out.extend(tools.block(block, level, is_last)?)?;
        }
        Ok(())
    };
    // While a thread ends, its thread-local value may have been dropped.
    match TOOLS.try_with(|tools| tools.try_borrow_mut().map(|mut kept| work(&mut kept))) {
        Ok(Ok(result)) => result,
        _ => work(&mut Tools::default()),
    }
}

/// A thread's compressor, and room for a block until its length is known: a stream's own memory may
/// be short.
#[derive(Default)]
struct Tools {
    deflater: Deflater,
    room: Vec<u8>,
}

impl Tools {
    fn block(&mut self, raw: &[u8], level: u8, is_last: bool) -> Result<&[u8], NoMemory> {
        let wanted = block_bytes_max(raw.len());
        let missing = wanted.saturating_sub(self.room.len());
        // A program may go on after Z_MEM_ERROR: an abort would take that from it.
        self.room.try_reserve_exact(missing).map_err(|_| NoMemory)?;
        self.room.resize(wanted.max(self.room.len()), 0);
        let made = self.deflater.block(raw, level, is_last, &mut self.room);
        // There is room: it was made just now.
        made.map(|bytes| &self.room[..bytes]).ok_or(NoMemory)
    }
}

/// Blocks that a stream gathers before any is made: several where engines can share them.
pub(crate) fn gathered_blocks() -> usize {
    // Acquire: pairs with the release of the thread that made it.
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: attachments are never freed.
    match unsafe { current.as_ref() } {
        Some(attachment) if !attachment.lost.load(Ordering::Relaxed) => GATHERED_BLOCKS,
        _ => 1,
    }
}

/// A process's attachment to a daemon. Never freed.
struct Attachment {
    process: u32,
    client: Client,
    kernel: KernelId,
    lost: AtomicBool,
}

static CURRENT: AtomicPtr<Attachment> = AtomicPtr::new(std::ptr::null_mut());
/// Milliseconds of [`since_start_ms`] before which no thread tries to attach; for the process in
/// the upper half.
static NEXT_TRY: AtomicU64 = AtomicU64::new(0);

impl Attachment {
    /// The one of this process; made if there is a daemon.
    fn current() -> Option<&'static Self> {
        // Acquire: pairs with the release in `attach`.
        let current = CURRENT.load(Ordering::Acquire);
        let process = std::process::id();
        // SAFETY: attachments are never freed.
        match unsafe { current.as_ref() } {
            // A child of a `fork` has its parent's attachment, and must not use it.
            Some(attachment) if attachment.process == process => {
                if attachment.client.is_attached() {
                    return Some(attachment);
                }
                attachment.lost.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        Self::attach(current, process)
    }

    #[cold]
    fn attach(before: *mut Self, process: u32) -> Option<&'static Self> {
        let now_ms = since_start_ms();
        let next_try = NEXT_TRY.load(Ordering::Relaxed);
        let is_ours = (next_try >> 32) as u32 == process;
        if is_ours && now_ms < next_try & u64::from(u32::MAX) {
            return None;
        }
        // One thread tries; the others go on without meanwhile.
        let then = u64::from(process) << 32 | ((now_ms + RETRY_MS) & u64::from(u32::MAX));
        NEXT_TRY
            .compare_exchange(next_try, then, Ordering::Relaxed, Ordering::Relaxed)
            .ok()?;
        let attachment = Box::into_raw(Box::new(Self::to_daemon(process)?));
        // Release: pairs with the acquire of its users.
        match CURRENT.compare_exchange(before, attachment, Ordering::AcqRel, Ordering::Relaxed) {
            // SAFETY: attachments are never freed.
            Ok(_) => unsafe { attachment.as_ref() },
            Err(_) => {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(attachment) });
                None
            }
        }
    }

    fn to_daemon(process: u32) -> Option<Self> {
        let trust = Trust::default();
        let socket = settings().socket.clone();
        let socket = socket.unwrap_or_else(|| find_socket(&trust));
        // The usual case, without a daemon, costs one system call.
        if !socket.exists() {
            return None;
        }
        let options = ClientOptions {
            arena_bytes: ARENA_BYTES,
            registry: served::register(Registry::builtin()).ok()?,
            trust,
            ..ClientOptions::default()
        };
        let client = Client::detached(socket, options);
        let kernel = client.kernel(served::Deflate::NAME).ok()?;
        for _ in 0..ATTACH_LOOKS {
            // It looks for the daemon's answer whenever memory is requested.
            drop(client.buffer(1));
            if client.is_attached() {
                return Some(Self {
                    process,
                    client,
                    kernel,
                    lost: AtomicBool::new(false),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// `None` where it did not come to an end; then `out` holds part of it.
    fn deflate(&self, raw: &[u8], level: u8, is_last: bool, out: &mut Bytes) -> Option<()> {
        let blocks = block_count(raw.len());
        let mut begun = 0;
        while begun < blocks {
            if !self.client.is_attached() {
                // The remaining blocks are made here; the finished ones are right.
                return deflate_here(&raw[begun * BLOCK_BYTES..], level, is_last, out).ok();
            }
            let count = (blocks - begun).min(WAVE_BLOCKS);
            let start = begun * BLOCK_BYTES;
            let wave = &raw[start..raw.len().min(start + count * BLOCK_BYTES)];
            // In waves: the arena is bounded, and the input may be of any length.
            begun += count;
            self.wave(wave, level, is_last && begun == blocks, out)?;
        }
        Some(())
    }

    fn wave(&self, raw: &[u8], level: u8, is_last: bool, out: &mut Bytes) -> Option<()> {
        let count = block_count(raw.len());
        // Whole cache lines: two engines do not write to one.
        let stride = block_bytes_max(BLOCK_BYTES).next_multiple_of(64);
        let mut input = self.client.buffer(raw.len());
        let mut output = self.client.buffer(count * stride);
        input.bytes_mut().copy_from_slice(raw);
        let spread = self
            .client
            .for_each(self.kernel, &[&input], &mut [&mut output], count, |index| {
                let start = index * BLOCK_BYTES;
                let end = raw.len().min(start + BLOCK_BYTES);
                let is_last = is_last && index + 1 == count;
                let room = index * stride..index * stride + block_bytes_max(end - start);
                Piece::new(&[level.into(), is_last.into()])
                    .input(0, start..end)
                    .output(0, room)
            })
            .ok()?;
        for (index, reply) in spread.replies.iter().enumerate() {
            // The daemon's word, looked up with a bound like any other.
            let bytes = usize::try_from(reply.words[0]).ok()?;
            let block = output.bytes().get(index * stride..(index + 1) * stride)?;
            out.extend(block.get(..bytes)?).ok()?;
        }
        (spread.replies.len() == count).then_some(())
    }
}

/// No bytes are a block too.
fn block_count(raw_bytes: usize) -> usize {
    raw_bytes.div_ceil(BLOCK_BYTES).max(1)
}

fn since_start_ms() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    // Never 0, which would be no time set.
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

/// Blocks that a stream gathers for engines.
const GATHERED_BLOCKS: usize = 8;
/// Blocks handed to the engines at once.
const WAVE_BLOCKS: usize = 16;
/// Room for a wave of two threads, raw and deflated.
const ARENA_BYTES: u64 = 12 << 20;
/// Looks for a daemon's answer, a millisecond apart.
const ATTACH_LOOKS: u32 = 100;
/// Time between two tries to attach.
const RETRY_MS: u64 = 1000;
