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
use crate::process::{ProcessMark, is_limited};
use sidecore_attach::Trust;
use sidecore_daemon::client::{Client, ClientOptions, Job, KernelId, Ticket};
use sidecore_daemon::find_socket;
use sidecore_daemon::served::{Registry, Served};
use sidecore_deflate::{BLOCK_BYTES, Deflater, block_bytes_max, served};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Makes blocks of `raw` and appends them to `out`.
pub(crate) fn deflate(
    raw: &[u8],
    level: u8,
    is_last: bool,
    out: &mut Bytes,
) -> Result<(), NoMemory> {
    // Only full blocks are worth the way.
    if raw.len() >= BLOCK_BYTES
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

/// Allocates all that blocks need besides a stream's own memory: a program that begins a stream
/// may then forbid itself all system calls but `read`, `write` and `exit`, as zlib allows. Engines
/// are looked for here and nowhere else.
pub(crate) fn prepare(level: u8) {
    look();
    prepare_level(level);
}

/// Allocates what blocks of another level need, for a stream that was begun.
pub(crate) fn prepare_level(level: u8) {
    // Without memory, the first block says so.
    with_tools(|tools| tools.prepare(level)).ok();
}

/// Attaches this process where there is a daemon. The usual case, without one, costs a look at the
/// socket once in a second.
pub(crate) fn look() {
    if settings().used == Use::Engines {
        Attachment::look();
    }
}

/// Runs work with this thread's compressors.
fn with_tools<R>(work: impl FnOnce(&mut Tools) -> R) -> R {
    thread_local! {
        static TOOLS: RefCell<Tools> = RefCell::default();
    }
    let mut work = Some(work);
    // While a thread ends, its thread-local value may have been dropped.
    let done = TOOLS.try_with(|tools| {
        let mut tools = tools.try_borrow_mut().ok()?;
        work.take().map(|work| work(&mut tools))
    });
    match (done, work) {
        (Ok(Some(result)), _) => result,
        (_, Some(work)) => work(&mut Tools::default()),
        (_, None) => unreachable!("work that was taken has a result"),
    }
}

/// The same as [`deflate`], on this thread.
fn deflate_here(raw: &[u8], level: u8, is_last: bool, out: &mut Bytes) -> Result<(), NoMemory> {
    with_tools(|tools| {
        let blocks = block_count(raw.len());
        for index in 0..blocks {
            let start = index * BLOCK_BYTES;
            let block = &raw[start..raw.len().min(start + BLOCK_BYTES)];
            let is_last = is_last && index + 1 == blocks;
            out.extend(tools.block(block, level, is_last)?)?;
        }
        Ok(())
    })
}

/// Makes one block of the bytes, on this thread, and puts it in their place; `before` sees them
/// last. Without memory nothing has changed.
pub(crate) fn replace(
    bytes: &mut Bytes,
    level: u8,
    is_last: bool,
    before: impl FnOnce(&[u8]) -> Result<(), NoMemory>,
) -> Result<(), NoMemory> {
    with_tools(|tools| {
        let made = tools.block(bytes.as_slice(), level, is_last)?;
        bytes.reserve_to(made.len())?;
        before(bytes.as_slice())?;
        bytes.clear();
        bytes.extend(made)
    })
}

/// A thread's compressors, and room for a block until its length is known: a stream's own memory
/// may be short.
#[derive(Default)]
struct Tools {
    deflater: Deflater,
    room: Vec<u8>,
}

impl Tools {
    fn prepare(&mut self, level: u8) -> Result<(), NoMemory> {
        self.deflater.prepare(level);
        self.make_room(block_bytes_max(BLOCK_BYTES))
    }

    fn make_room(&mut self, bytes: usize) -> Result<(), NoMemory> {
        let missing = bytes.saturating_sub(self.room.len());
        // A program may go on after Z_MEM_ERROR: an abort would take that from it.
        self.room.try_reserve_exact(missing).map_err(|_| NoMemory)?;
        self.room.resize(bytes.max(self.room.len()), 0);
        Ok(())
    }

    fn block(&mut self, raw: &[u8], level: u8, is_last: bool) -> Result<&[u8], NoMemory> {
        self.make_room(block_bytes_max(raw.len()))?;
        let made = self.deflater.block(raw, level, is_last, &mut self.room);
        // There is room: it was made just now.
        made.map(|bytes| &self.room[..bytes]).ok_or(NoMemory)
    }
}

/// True where this process is attached to a daemon's engines.
pub(crate) fn are_there() -> bool {
    Attachment::current().is_some()
}

/// Leave of a stream to gather [`GATHERED_BLOCKS`] blocks before any is made, for engines to share
/// them. A few streams have it at a time: programs with hundreds of them count on zlib's memory.
#[derive(Debug)]
pub(crate) struct Leave(());

impl Leave {
    /// `None` where there are no engines, or enough streams have leave.
    pub(crate) fn ask() -> Option<Self> {
        if !are_there() {
            return None;
        }
        GIVEN
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |given| {
                (given < LEAVES_MAX).then_some(given + 1)
            })
            .ok()
            .map(|_| Self(()))
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        GIVEN.fetch_sub(1, Ordering::Relaxed);
    }
}

static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// A process's attachment to a daemon. Never freed.
struct Attachment {
    process: ProcessMark,
    client: Client,
    kernel: KernelId,
}

static CURRENT: AtomicPtr<Attachment> = AtomicPtr::new(std::ptr::null_mut());
/// Milliseconds of [`since_start_ms`] before which no thread tries to attach; for the process in
/// the upper half.
static NEXT_TRY: AtomicU64 = AtomicU64::new(0);

impl Attachment {
    /// The one of this process, if there is one that works. No system call.
    fn current() -> Option<&'static Self> {
        if is_limited() {
            return None;
        }
        // Acquire: pairs with the release in `attach`.
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: attachments are never freed.
        let attachment = unsafe { current.as_ref() }?;
        // A child of a `fork` has its parent's attachment, and must not use it.
        (attachment.process.is_here() && attachment.client.is_attached()).then_some(attachment)
    }

    /// Attaches this process if it is not attached, and there is a daemon.
    fn look() {
        if !is_limited() && Self::current().is_none() {
            Self::attach(CURRENT.load(Ordering::Acquire), std::process::id());
        }
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
        let attachment = Box::into_raw(Box::new(Self::to_daemon()?));
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

    fn to_daemon() -> Option<Self> {
        let trust = Trust::default();
        let socket = settings().socket.clone();
        let socket = socket.unwrap_or_else(|| find_socket(&trust));
        if !socket.exists() {
            return None;
        }
        let options = ClientOptions {
            arena_bytes: ARENA_BYTES,
            registry: served::register(Registry::builtin()).ok()?,
            trust,
            // A block takes a millisecond or more, and the core may be an engine's.
            spin: Duration::ZERO,
            ..ClientOptions::default()
        };
        let client = Client::detached(socket, options);
        let kernel = client.kernel(served::Deflate::NAME).ok()?;
        for _ in 0..ATTACH_LOOKS {
            // It looks for the daemon's answer whenever memory is requested.
            drop(client.buffer(1));
            if client.is_attached() {
                return Some(Self {
                    process: ProcessMark::new()?,
                    client,
                    kernel,
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// `None` where it did not come to an end; then `out` holds part of it.
    fn deflate(&self, raw: &[u8], level: u8, is_last: bool, out: &mut Bytes) -> Option<()> {
        // Each engine finds its next block without this thread, which takes others in meanwhile.
        let depth = (2 * self.client.engines() + 2).min(FLYING_MAX);
        let mut flying = VecDeque::with_capacity(depth);
        let mut patience = PATIENCE;
        let mut begun = 0;
        loop {
            while flying.len() < depth && begun < raw.len() && self.client.is_attached() {
                let end = raw.len().min(begun + BLOCK_BYTES);
                let is_last = is_last && end == raw.len();
                flying.push_back(self.submit(&raw[begun..end], level, is_last)?);
                begun = end;
            }
            match flying.pop_front() {
                Some(block) => block.take_in(&mut patience, out)?,
                None if begun == raw.len() => return Some(()),
                // The daemon has gone: the remaining blocks are made here, the others are right.
                None => return deflate_here(&raw[begun..], level, is_last, out).ok(),
            }
        }
    }

    /// `None` where there is no room for another job.
    fn submit<'r>(&self, raw: &'r [u8], level: u8, is_last: bool) -> Option<Flying<'r>> {
        let mut input = self.client.buffer(raw.len());
        input.bytes_mut().copy_from_slice(raw);
        let output = self.client.buffer(block_bytes_max(raw.len()));
        let job = Job::new(self.kernel)
            .words(&[level.into(), is_last.into()])
            .input(input)
            .output(output);
        Some(Flying {
            ticket: self.client.submit(job).ok()?,
            raw,
            level,
            is_last,
        })
    }
}

/// A block at the daemon.
struct Flying<'r> {
    ticket: Ticket,
    raw: &'r [u8],
    level: u8,
    is_last: bool,
}

impl Flying<'_> {
    /// Appends the block. One that no engine begins in time is made here; then no other is waited
    /// for before an engine has made one. `None` where it failed.
    fn take_in(self, patience: &mut Duration, out: &mut Bytes) -> Option<()> {
        let outcome = match self.ticket.wait_for(*patience) {
            Ok(outcome) => outcome,
            Err(ticket) if ticket.cancel() => {
                *patience = Duration::ZERO;
                return deflate_here(self.raw, self.level, self.is_last, out).ok();
            }
            // An engine is at it.
            Err(ticket) => ticket.wait(),
        };
        *patience = PATIENCE;
        // The daemon's word, looked up with a bound like any other.
        let bytes = usize::try_from(outcome.result.ok()?.words[0]).ok()?;
        out.extend(outcome.outputs.first()?.bytes().get(..bytes)?)
            .ok()
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

/// Blocks that a stream with leave gathers for engines.
pub(crate) const GATHERED_BLOCKS: usize = 8;
/// Streams that gather so at a time.
const LEAVES_MAX: usize = 8;
/// Blocks of a thread that are at the daemon at once.
const FLYING_MAX: usize = 16;
/// Room for these of two threads, raw and deflated.
const ARENA_BYTES: u64 = 12 << 20;
/// Time for which a block waits for an engine to begin it.
const PATIENCE: Duration = Duration::from_millis(20);
/// Looks for a daemon's answer, a millisecond apart.
const ATTACH_LOOKS: u32 = 100;
/// Time between two tries to attach.
const RETRY_MS: u64 = 1000;

/// Places where blocks may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// No blocks: the base library alone.
    Off,
    /// On the caller.
    Local,
    /// On engines where there are some.
    Engines,
}

pub(crate) struct Settings {
    pub(crate) used: Use,
    pub(crate) socket: Option<PathBuf>,
}

pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let used = match std::env::var_os("SIDECORE_ZLIB") {
            Some(word) if word == "off" => Use::Off,
            Some(word) if word == "local" => Use::Local,
            _ => Use::Engines,
        };
        let socket = std::env::var_os("SIDECORE_ZLIB_SOCKET").filter(|path| !path.is_empty());
        Settings {
            used,
            socket: socket.map(PathBuf::from),
        }
    })
}
