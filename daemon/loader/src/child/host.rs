//! The host process of an object: links it, and forks a worker for each client at each engine.
//!
//! Why here: an object's initializers and kernels are foreign code. This process alone runs the
//! former, and a worker is a copy of it that is confined before a kernel runs. A fork of a small
//! process takes some 200 us, a start of a program and a link of an object some milliseconds.
//! Must stay true: one thread. A worker's page and segment are mapped before it is confined, and
//! nothing is opened afterwards. The daemon is trusted; it ends this process by closing its socket.

use super::confine::{self, Filters, Limits};
use super::protocol::{
    BAD, DONE, DONE_CHANGED, FAILED, GOOD, LOAD, MESSAGE_BYTES_MAX, PAGE_BYTES, Page, RANGES_MAX,
    REAP, Reader, SPAWN, Writer,
};
use crate::error::ObjectError;
use crate::folder::Copy;
use crate::kernel::LoadedKernel;
use crate::object;
use rustix::process::Pid;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_daemon::served::{Foreign, KernelHash, Memory, Reply, Request};
use sidecore_engine::KernelError;
use sidecore_kernel_abi::raw::WORDS;
use sidecore_sys::futex::Woken;
use sidecore_sys::local_socket::{self, Received};
use sidecore_sys::{SharedMap, SharedSlice, Sharing, cpu, shared_futex};
use std::any::Any;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The place where loaded kernels run, and what they may use there.
#[derive(Debug, Clone)]
pub struct Loading {
    /// None: in this process, with all its rights; a crash of a kernel is this process's.
    pub host: Option<HostProgram>,
    /// The most that an object may ask for.
    pub limits: Limits,
}

/// A program that calls [`serve_as_host`] when it is started with these arguments.
#[derive(Debug, Clone)]
pub struct HostProgram {
    /// The program.
    pub file: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl HostProgram {
    /// This program, started with other arguments.
    pub fn this(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            file: PathBuf::from("/proc/self/exe"),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }
}

/// Serves a daemon as the host process of an object, over standard input. Ends the process with the
/// daemon.
///
/// A program that starts a daemon calls it where it was started by [`crate::HostProgram`], before
/// it has a second thread.
pub fn serve_as_host() -> ! {
    let input = std::io::stdin();
    let mut host = Host::default();
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut ready = Vec::new();
    loop {
        if local_socket::poll(&[input.as_fd()], &mut ready, Duration::from_secs(3600)).is_err() {
            confine::end();
        }
        match local_socket::receive(input.as_fd(), &mut buffer) {
            Ok(Received::Message(bytes, files)) => {
                let Some(answer) = host.serve(&buffer[..bytes], files) else {
                    continue;
                };
                let files: Vec<BorrowedFd<'_>> = answer.1.iter().map(AsFd::as_fd).collect();
                if local_socket::send(input.as_fd(), &answer.0.0, &files).is_err() {
                    confine::end();
                }
            }
            Ok(Received::Nothing) => {}
            // The object's own clean-up is not waited for.
            Ok(Received::End) | Err(_) => confine::end(),
        }
    }
}

type Answer = (Writer, Vec<OwnedFd>);

#[derive(Default)]
struct Host {
    kernels: Vec<LoadedKernel>,
    filters: Option<Filters>,
}

impl Host {
    fn serve(&mut self, message: &[u8], files: Vec<OwnedFd>) -> Option<Answer> {
        let mut reader = Reader(message);
        let code = reader.word()?;
        let answered = match code {
            LOAD => self.load(reader, files),
            SPAWN => self.spawn(reader, files),
            REAP => {
                let child = i32::try_from(reader.word()?).ok()?;
                let is_asked = reader.word()? != 0;
                let status = confine::wait(child).unwrap_or(0);
                let answer = Writer::of(&[GOOD, status.unsigned_abs().into()]);
                return is_asked.then_some((answer, vec![]));
            }
            _ => return None,
        };
        Some(answered.unwrap_or_else(|reason| {
            let mut answer = Writer::of(&[BAD]);
            answer.text(&reason);
            (answer, vec![])
        }))
    }

    fn load(&mut self, mut reader: Reader<'_>, files: Vec<OwnedFd>) -> Result<Answer, String> {
        let name = reader.text().unwrap_or_default();
        let memory = files.into_iter().next().ok_or("no object came")?;
        self.filters = Some(Filters::new()?);
        let copy = Copy {
            name: OsString::from(name),
            memory,
            // The daemon has the hash; nothing here reads it.
            hash: KernelHash::from_bytes([0; 32]),
        };
        match object::load(copy) {
            Ok(object) => {
                let count = object.kernels.len().to_u64();
                let mut answer = Writer::of(&[GOOD, count]);
                for word in object.asks.words() {
                    answer.word(word);
                }
                for kernel in &object.kernels {
                    answer.word(kernel.version.into());
                    answer.word(kernel.store_bytes.to_u64());
                    answer.text(&kernel.name);
                }
                self.kernels = object.kernels;
                Ok((answer, vec![]))
            }
            Err(error) => Ok((refusal(error), vec![])),
        }
    }

    /// Makes a worker; its number, with its page.
    fn spawn(&mut self, mut reader: Reader<'_>, files: Vec<OwnedFd>) -> Result<Answer, String> {
        let mut word = || reader.word().ok_or("a message is too short");
        let (cpu, nice) = (word()?, word()?);
        let (segment_bytes, arena_offset) = (word()?, word()?);
        let limits = Limits {
            // The engine's thread looks at the time.
            time: Duration::MAX,
            memory_bytes: word()?,
            stack_bytes: word()?,
        };
        let segment = files.into_iter().next().ok_or("no segment came")?;
        let filters = self.filters.as_ref().ok_or("no object was loaded")?;
        let text = |error: sidecore_sys::SysError| error.to_string();
        let page = SharedMap::create("sidecore-kernel-call", PAGE_BYTES, Sharing::ReadWrite);
        let page = page.map_err(text)?;
        let file = page.file().try_clone_to_owned();
        let file = file.map_err(|error| error.to_string())?;
        let host = rustix::process::getpid();
        let kernels = std::mem::take(&mut self.kernels);
        let work = || {
            // Where memory is short, the one that takes it goes first.
            std::fs::write("/proc/self/oom_score_adj", "1000").ok();
            // Refusals of these cost speed alone.
            cpu::pin(cpu.to_usize()).ok();
            cpu::set_nice(i32::try_from(nice.cast_signed()).unwrap_or(0)).ok();
            let worker = Worker {
                kernels: &kernels,
                arena_offset,
            };
            let bytes = segment_bytes.to_usize();
            let map = SharedMap::open_on_demand(segment, bytes, Sharing::ReadWrite);
            worker.work(page, map.map_err(text), limits, filters, Some(host));
        };
        let child = confine::fork(work);
        self.kernels = kernels;
        let child = child.map_err(|error| format!("fork: {error}"))?;
        let answer = Writer::of(&[GOOD, child.unsigned_abs().into()]);
        Ok((answer, vec![file]))
    }
}

/// The answer that says why an object is not loaded.
fn refusal(error: ObjectError) -> Writer {
    let (code, number, text) = match error {
        ObjectError::Linker(text) => (LINKER, 0, text),
        ObjectError::NoModule => (NO_MODULE, 0, String::new()),
        ObjectError::Abi { abi } => (ABI, abi.into(), String::new()),
        ObjectError::Table(text) => (TABLE, 0, text),
        ObjectError::Store { name, bytes, .. } => (STORE, bytes, name),
        other => (BAD, 0, other.to_string()),
    };
    let mut answer = Writer::of(&[code, number]);
    answer.text(&text);
    answer
}

/// Codes of answers that say why an object is not loaded.
pub(super) const LINKER: u64 = 2;
pub(super) const NO_MODULE: u64 = 3;
pub(super) const ABI: u64 = 4;
pub(super) const TABLE: u64 = 5;
pub(super) const STORE: u64 = 6;

/// The process of one client at one engine.
struct Worker<'h> {
    kernels: &'h [LoadedKernel],
    arena_offset: u64,
}

impl Worker<'_> {
    /// Serves its engine until it is killed.
    fn work(
        &self,
        page: SharedMap,
        segment: Result<SharedMap, String>,
        limits: Limits,
        filters: &Filters,
        host: Option<Pid>,
    ) {
        let page: &'static SharedMap = Box::leak(Box::new(page));
        let Some(page) = page.slice().overlay::<Page>(0) else {
            return;
        };
        let segment = match self.confined(page, segment, limits, filters, host) {
            Ok(segment) => segment,
            Err(reason) => {
                page.set_text(&reason);
                return;
            }
        };
        let mut states: Vec<Option<Box<dyn Any + Send>>> =
            self.kernels.iter().map(|_| None).collect();
        let most = self.kernels.iter().map(|kernel| kernel.store_bytes).max();
        // A line more than is needed, so that an aligned start lies within it.
        let mut store = vec![0; most.unwrap_or(0) + LINE_BYTES];
        let start = store.as_ptr().align_offset(LINE_BYTES);
        let store = &mut store[start..];
        loop {
            while page.turn.load(Ordering::Acquire) == 0 {
                let _: Woken = shared_futex::wait(&page.turn, 0, IDLE);
            }
            let asked = page.asked.load(Ordering::Relaxed);
            // From here on the kernel may have had effects: the daemon does not repeat the request.
            page.begun.store(asked, Ordering::Relaxed);
            let status = match self.run(page, segment.slice(), &mut states, store) {
                Ok((reply, None)) => {
                    put(page, &reply);
                    DONE
                }
                Ok((reply, Some(changed))) => {
                    put(page, &reply);
                    page.set_text(&changed);
                    DONE_CHANGED
                }
                Err(error) => {
                    page.set_text(&match error {
                        KernelError::Failed { reason } => reason.into_owned(),
                        other => other.to_string(),
                    });
                    FAILED
                }
            };
            page.status.store(status, Ordering::Relaxed);
            // Release: partner of the engine's Acquire.
            page.turn.store(0, Ordering::Release);
            shared_futex::wake(&page.turn, 1);
        }
    }

    fn confined(
        &self,
        page: &'static Page,
        segment: Result<SharedMap, String>,
        limits: Limits,
        filters: &Filters,
        host: Option<Pid>,
    ) -> Result<SharedMap, String> {
        let segment = segment?;
        // A kernel's stray write must not reach the client's rings.
        confine::hide(segment.slice().as_ptr(), self.arena_offset)
            .map_err(|error| format!("mprotect: {error}"))?;
        confine::confine(page, limits, filters, host)?;
        Ok(segment)
    }

    fn run(
        &self,
        page: &Page,
        segment: SharedSlice<'_>,
        states: &mut [Option<Box<dyn Any + Send>>],
        store: &mut [u8],
    ) -> Result<(Reply, Option<String>), KernelError> {
        let number = page.kernel.load(Ordering::Relaxed).to_usize();
        let (Some(kernel), Some(state)) = (self.kernels.get(number), states.get_mut(number)) else {
            return Err(KernelError::failed("no such kernel"));
        };
        let mut stretches = [SharedSlice::EMPTY; RANGES_MAX];
        let inputs = page.inputs.load(Ordering::Relaxed).to_usize();
        // A kernel that ran before may have written to the page: its numbers are bounded first.
        let used = (inputs + page.outputs.load(Ordering::Relaxed).to_usize()).min(RANGES_MAX);
        for (index, (stretch, range)) in stretches[..used].iter_mut().zip(&page.ranges).enumerate()
        {
            let [start, bytes] = [0, 1].map(|at| range[at].load(Ordering::Relaxed).to_usize());
            let found = segment.range(start..start.saturating_add(bytes));
            let found = found.ok_or_else(|| KernelError::failed("no such memory"))?;
            *stretch = if index < inputs {
                found.read_only()
            } else {
                found
            };
        }
        let memory = Memory::on_loan(&stretches[..used], inputs, &page.wanted);
        let mut request = Request::default();
        for (word, from) in request.words.iter_mut().zip(&page.words) {
            *word = from.load(Ordering::Relaxed);
        }
        let state = match state {
            Some(state) => state,
            none => none.insert(kernel.state()?),
        };
        let (store, _) = store.split_at_mut(kernel.store_bytes);
        let reply = kernel.run(&mut **state, store, &request, &memory)?;
        Ok((reply, kernel.spoiler.take()))
    }
}

fn put(page: &Page, reply: &Reply) {
    for (word, from) in page.words.iter().zip(reply.words) {
        word.store(from, Ordering::Relaxed);
    }
}

/// The alignment of a local store.
const LINE_BYTES: usize = 128;
const IDLE: Duration = Duration::from_secs(3600);
const _: () = assert!(WORDS == 6);
