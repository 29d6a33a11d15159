//! Kernels in processes of their own: an object's host process, and its workers.
//!
//! ```text
//! sidecore daemon                 host process (one an object)      worker (of one client)
//!   register ──── start, LOAD ──► links the object
//!   engine, 1st call ── SPAWN ──► fork ───────────────────────────► confined: no files, few calls
//!   engine ◄══════════ one page: request, turn, reply ════════════► runs kernels in the client's
//!   engine, dead or late: kill ── REAP ──► waits for it              memory, on the engine's core
//! ```
//!
//! Why here: whatever a kernel does, its request fails with a reason, and the next one gets a new
//! worker. A worker shares its engine's core, and only one of the two runs at a time: the hand-over
//! is a wake and a sleep each way (some 2 us), and its lines never leave that core's cache. A
//! worker of its own for each client and engine keeps clients' memory apart, ends with the session,
//! and needs no descriptors later. Must stay true: the engine's thread waits for a worker only
//! while the kernel has time left (the worker's processor time; ten times that without any), and
//! looks at its end on a clock, too, since a worker may unregister from the kernel's notice.
//! Engines' threads; a lock for each host process, held while it makes a worker.
//! Source: `Documentation/locking/robust-futex-ABI`, pidfd_open(2).

mod confine;
mod host;
mod link;
mod protocol;

pub use confine::Limits;
pub use host::{HostProgram, Loading, serve_as_host};

use crate::error::ObjectError;
use crate::folder::Copy;
use crate::kernel::Spoiler;
use crate::object::check_name;
use host::{ABI, LINKER, NO_MODULE, STORE, TABLE};
use link::{NEXT_KEY, Object, broken};
use protocol::{DONE, DONE_CHANGED, GOOD, PAGE_BYTES, Page, RANGES_MAX, RUN, Reader};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use sidecore_bare::width::ToU64;
use sidecore_daemon::served::{Foreign, KernelHash, Memory, Origin, Reply, Request};
use sidecore_engine::{CoreOptions, KernelError};
use sidecore_sys::futex::Woken;
use sidecore_sys::{SharedMap, Sharing, clock, cpu, local_socket, shared_futex};
use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A kernel that workers run.
#[derive(Debug)]
pub(crate) struct ChildKernel {
    name: String,
    version: u32,
    hash: KernelHash,
    store_bytes: usize,
    /// Its place in its object.
    number: u32,
    object: Arc<Object>,
    spoiler: Spoiler,
    /// Workers that it has ended.
    ends: AtomicU64,
}

/// Links an object in a process of its own; its kernels.
pub(crate) fn load(
    copy: Copy,
    program: &HostProgram,
    most: &Limits,
) -> Result<Vec<ChildKernel>, ObjectError> {
    let mut object = Object {
        // Relaxed: only a unique number.
        key: NEXT_KEY.fetch_add(1, Ordering::Relaxed),
        program: program.clone(),
        name: copy.name.to_string_lossy().into_owned(),
        memory: copy.memory,
        limits: *most,
        link: Mutex::new(None),
    };
    let (link, table) = object.start()?;
    let mut reader = Reader(&table);
    let read =
        read_table(&mut reader).ok_or_else(|| broken("its host process made no sense"))??;
    object.limits = most.of(&read.asks)?;
    object.link = Mutex::new(Some(link));
    let object = Arc::new(object);
    let kernels = read.kernels.into_iter().zip(0..);
    let kernel = |((name, version, store_bytes), number)| ChildKernel {
        name,
        version,
        hash: copy.hash,
        store_bytes,
        number,
        object: Arc::clone(&object),
        spoiler: Spoiler::default(),
        ends: AtomicU64::new(0),
    };
    Ok(kernels.map(kernel).collect())
}

/// An object's answer: its limits, and its kernels' names, versions and local stores.
struct Table {
    asks: [u64; 3],
    kernels: Vec<(String, u32, usize)>,
}

/// None where it makes no sense; an error is the object's.
fn read_table(reader: &mut Reader<'_>) -> Option<Result<Table, ObjectError>> {
    let code = reader.word()?;
    let number = reader.word()?;
    if code != GOOD {
        let text = reader.text()?;
        return Some(Err(match code {
            LINKER => ObjectError::Linker(text),
            NO_MODULE => ObjectError::NoModule,
            ABI => ObjectError::Abi {
                abi: u32::try_from(number).ok()?,
            },
            TABLE => ObjectError::Table(text),
            STORE => ObjectError::Store {
                name: text,
                bytes: number,
                has: CoreOptions::default().store_bytes,
            },
            _ => broken(&text),
        }));
    }
    let mut asks = [0; 3];
    for ask in &mut asks {
        *ask = reader.word()?;
    }
    let mut kernels = Vec::new();
    // The number is foreign: a bound keeps it from filling the daemon's memory.
    for _ in 0..number.min(sidecore_kernel_abi::raw::KERNELS_MAX.into()) {
        let version = u32::try_from(reader.word()?).ok()?;
        let store_bytes = usize::try_from(reader.word()?).ok()?;
        let name = reader.text()?;
        // Checked there, too; but there, an initializer may have done anything.
        if let Err(error) = check_name(&name) {
            return Some(Err(error));
        }
        kernels.push((name, version, store_bytes));
    }
    Some(Ok(Table { asks, kernels }))
}

impl Foreign for ChildKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn hash(&self) -> KernelHash {
        self.hash
    }

    fn store_bytes(&self) -> usize {
        self.store_bytes
    }

    #[inline]
    fn run(
        &self,
        _state: &mut (dyn Any + Send),
        _store: &mut [u8],
        request: &Request,
        memory: &Memory<'_>,
    ) -> Result<Reply, KernelError> {
        let origin = memory
            .origin()
            .ok_or_else(|| self.failed("it runs in a daemon's processes only"))?;
        origin.companion(self.object.key, |kept| {
            self.run_in(kept, origin, request, memory)
        })
    }
}

impl ChildKernel {
    fn failed(&self, reason: &str) -> KernelError {
        KernelError::failed(format!("{}: {reason}", self.name))
    }

    /// Runs a request in the session's worker, which is made where there is none.
    fn run_in(
        &self,
        kept: &mut Option<Box<dyn Any + Send>>,
        origin: Origin<'_>,
        request: &Request,
        memory: &Memory<'_>,
    ) -> Result<Reply, KernelError> {
        let mut is_new = false;
        loop {
            // Taken out: a worker that fails below is dropped, and so killed.
            let known = kept.take().and_then(|kept| kept.downcast::<Worker>().ok());
            let mut worker = match known {
                Some(worker) => worker,
                None => {
                    is_new = true;
                    let made = Worker::new(&self.object, origin);
                    Box::new(made.map_err(|reason| self.failed(&reason))?)
                }
            };
            worker.ask(self.number, origin, request, memory)?;
            match worker.wait(memory, &self.object.limits) {
                Ok(()) => {
                    let answer = self.answer(worker.page());
                    *kept = Some(worker);
                    return answer;
                }
                // It had ended before the request came, as by a lack of memory: nothing was done.
                Err(Ended::Gone) if !is_new && !worker.has_begun() => {}
                Err(ended) => {
                    let reason = worker.reason(ended);
                    self.note(ended, &reason);
                    return Err(self.failed(&reason));
                }
            }
        }
    }

    /// Logs the end of a worker: the first few, since a client may bring about any number.
    fn note(&self, ended: Ended, reason: &str) {
        if matches!(ended, Ended::Unwanted) {
            return;
        }
        // Relaxed: a count alone.
        let before = self.ends.fetch_add(1, Ordering::Relaxed);
        if before < LOGGED_MAX {
            let last = if before + 1 == LOGGED_MAX {
                "; no more of it is logged"
            } else {
                ""
            };
            tracing::warn!(
                "kernel `{}` of {}: {reason}{last}",
                self.name,
                self.object.name
            );
        }
    }

    /// The answer that a worker has written.
    #[inline]
    fn answer(&self, page: &Page) -> Result<Reply, KernelError> {
        let status = page.status.load(Ordering::Relaxed);
        if status != DONE && status != DONE_CHANGED {
            return Err(KernelError::failed(page.text()));
        }
        if status == DONE_CHANGED {
            self.spoiler.report(&self.name, &page.text());
        }
        let mut reply = Reply::default();
        for (word, from) in reply.words.iter_mut().zip(&page.words) {
            *word = from.load(Ordering::Relaxed);
        }
        Ok(reply)
    }
}

/// The process that runs an object's kernels for one client at one engine. Dropping it kills it.
#[derive(Debug)]
struct Worker {
    object: Arc<Object>,
    process: Pid,
    /// Readable once it has ended.
    end: OwnedFd,
    map: SharedMap,
    /// The core that it is on: its engine's.
    cpu: usize,
    asked: u32,
    is_reaped: bool,
}

/// The reason for which a worker gave no answer.
#[derive(Debug, Clone, Copy)]
enum Ended {
    Gone,
    Late,
    Unwanted,
}

impl Worker {
    fn new(object: &Arc<Object>, origin: Origin<'_>) -> Result<Self, String> {
        let cpu = cpu::current();
        let (process, page) = object.spawn(origin, cpu)?;
        // Its parent has not waited for it yet, so the number is still that of this process.
        let made = rustix::process::pidfd_open(process, PidfdFlags::empty())
            .map_err(|error| format!("pidfd_open: {error}"))
            .and_then(|end| {
                let map = SharedMap::open(page, PAGE_BYTES, Sharing::ReadWrite);
                Ok((end, map.map_err(|error| error.to_string())?))
            });
        match made {
            Ok((end, map)) => Ok(Self {
                object: Arc::clone(object),
                process,
                end,
                map,
                cpu,
                asked: 0,
                is_reaped: false,
            }),
            Err(reason) => {
                rustix::process::kill_process(process, Signal::KILL).ok();
                object.reap(process, false);
                Err(reason)
            }
        }
    }

    fn page(&self) -> &Page {
        let Some(page) = self.map.slice().overlay(0) else {
            unreachable!("a page is longer than what lies on it");
        };
        page
    }

    fn turn(&self) -> u32 {
        RUN | self.process.as_raw_nonzero().get().unsigned_abs()
    }

    /// Hands over a request.
    #[inline]
    fn ask(
        &mut self,
        number: u32,
        origin: Origin<'_>,
        request: &Request,
        memory: &Memory<'_>,
    ) -> Result<(), KernelError> {
        self.asked = self.asked.wrapping_add(1);
        self.follow(cpu::current());
        let (page, turn) = (self.page(), self.turn());
        let (inputs, outputs) = (memory.inputs(), memory.outputs());
        if inputs + outputs > RANGES_MAX {
            return Err(KernelError::failed("too many inputs and outputs"));
        }
        let mut ranges = page.ranges.iter();
        for index in 0..inputs + outputs {
            let stretch = match index.checked_sub(inputs) {
                None => memory.input(index)?,
                Some(output) => memory.output(output)?,
            };
            if let Some([offset, bytes]) = ranges.next() {
                offset.store(origin.offset_of(stretch), Ordering::Relaxed);
                bytes.store(stretch.len().to_u64(), Ordering::Relaxed);
            }
        }
        let count = |value: usize| u32::try_from(value).unwrap_or(0);
        page.inputs.store(count(inputs), Ordering::Relaxed);
        page.outputs.store(count(outputs), Ordering::Relaxed);
        page.kernel.store(number, Ordering::Relaxed);
        page.wanted.store(Memory::WANTED, Ordering::Relaxed);
        page.asked.store(self.asked, Ordering::Relaxed);
        for (word, value) in page.words.iter().zip(request.words) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: partner of the worker's Acquire.
        page.turn.store(turn, Ordering::Release);
        shared_futex::wake(&page.turn, 1);
        Ok(())
    }

    /// Brings it to the core of its engine, where that has moved: a hand-over between two cores
    /// takes several times as long.
    #[inline]
    fn follow(&mut self, cpu: usize) {
        if cpu != self.cpu {
            let mut set = CpuSet::new();
            set.set(cpu);
            // A refusal costs speed alone.
            sched_setaffinity(Some(self.process), &set).ok();
            self.cpu = cpu;
        }
    }

    /// Sleeps until the worker has answered, has ended, or must end.
    #[inline]
    fn wait(&self, memory: &Memory<'_>, limits: &Limits) -> Result<(), Ended> {
        let (page, turn) = (self.page(), self.turn());
        let mut look = Look::default();
        loop {
            let woken = shared_futex::wait(&page.turn, turn, look.pause);
            // Acquire: partner of the worker's Release.
            match page.turn.load(Ordering::Acquire) {
                0 => return Ok(()),
                // The kernel marked the turn: the worker's thread has ended.
                now if now != turn => return Err(Ended::Gone),
                // A kernel may wake the engine for ever, without an answer.
                _ if woken == Woken::TimedOut || look.is_due() => {
                    self.look(&mut look, memory, limits)?;
                }
                _ => {}
            }
        }
    }

    /// Looks at a worker that has not answered for a while.
    #[cold]
    fn look(&self, look: &mut Look, memory: &Memory<'_>, limits: &Limits) -> Result<(), Ended> {
        look.pause = (look.pause * 2).min(PAUSE_MAX);
        look.due = None;
        if local_socket::is_readable(self.end.as_fd()) {
            return Err(Ended::Gone);
        }
        let number = self.process.as_raw_nonzero().get();
        let used = clock::process_cpu_ns(number).map_or(Duration::ZERO, Duration::from_nanos);
        let (begun, used_before) = *look.begun.get_or_insert((Instant::now(), used));
        let used = used.saturating_sub(used_before);
        // One that sleeps, on a lock of its own, say, uses no time.
        if used >= limits.time || begun.elapsed() >= limits.time * WALL_FACTOR {
            return Err(Ended::Late);
        }
        if memory.is_abandoned() {
            self.page().wanted.store(!Memory::WANTED, Ordering::Relaxed);
            let since = *look.unwanted.get_or_insert((Instant::now(), used));
            if used.saturating_sub(since.1) >= UNWANTED_MAX
                || since.0.elapsed() >= UNWANTED_MAX * UNWANTED_FACTOR
            {
                return Err(Ended::Unwanted);
            }
        }
        Ok(())
    }

    /// True if it has begun with the last request.
    fn has_begun(&self) -> bool {
        self.page().begun.load(Ordering::Relaxed) == self.asked
    }

    /// Ends it; the reason, in few words: clients get 64 bytes.
    fn reason(&mut self, ended: Ended) -> String {
        // Before its page is read, which it could change meanwhile.
        self.kill();
        match ended {
            Ended::Late => {
                let limit = self.object.limits.time.as_millis();
                return format!("still running after {limit} ms");
            }
            Ended::Unwanted => return "abandoned".to_owned(),
            Ended::Gone => {}
        }
        let status = self.object.reap(self.process, true);
        self.is_reaped = true;
        if let Some(fault) = confine::fault(self.page(), self.object.limits) {
            return fault;
        }
        let text = self.page().text();
        // A worker that could not be confined left its reason there and ended.
        if !self.has_begun() && !text.is_empty() {
            return text;
        }
        status.map_or_else(|| "its process is gone".to_owned(), confine::ending)
    }

    fn kill(&self) {
        rustix::process::pidfd_send_signal(&self.end, Signal::KILL).ok();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill();
            self.object.reap(self.process, false);
        }
    }
}

/// The looks at a worker that takes its time.
struct Look {
    pause: Duration,
    /// The time of the next look, where the engine was woken before it.
    due: Option<Instant>,
    /// The first look, and the processor time that it had used by then.
    begun: Option<(Instant, Duration)>,
    unwanted: Option<(Instant, Duration)>,
}

impl Default for Look {
    fn default() -> Self {
        Self {
            pause: PAUSE_MIN,
            due: None,
            begun: None,
            unwanted: None,
        }
    }
}

impl Look {
    /// True once the pause is over, although the engine was woken meanwhile.
    #[cold]
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        now >= *self.due.get_or_insert(now + self.pause)
    }
}

/// Lines of the log for the ends of one kernel's workers.
const LOGGED_MAX: u64 = 5;
/// Time between two looks: short at first, for a worker that ended unnoticed.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(8);
/// Time by the clock that a kernel has for each second of its processor time: machines are busy.
const WALL_FACTOR: u32 = 10;
/// Processor time that a kernel has once its answer is not wanted, and that by the clock: less than
/// the daemon waits before another thread takes the engine over.
const UNWANTED_MAX: Duration = Duration::from_millis(20);
const UNWANTED_FACTOR: u32 = 5;
