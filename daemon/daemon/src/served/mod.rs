//! Kernels that other processes may call: by name, with words and stretches of memory.
//!
//! Why here: code cannot cross from one process to another, so both sides know each kernel by its
//! name: the daemon runs the engine version, a client whose daemon has ended runs the host version.
//! A kernel for another crate's work is one `impl` and one line:
//!
//! ```
//! use sidecore_daemon::served::{Cx, Memory, Registry, Reply, Request, Served};
//! use sidecore_engine::KernelError;
//!
//! /// Adds up bytes.
//! struct SumBytes;
//!
//! impl Served for SumBytes {
//!     const NAME: &'static str = "sum_bytes";
//!     const LS: usize = 16 << 10;
//!     type State = ();
//!
//!     fn engine<'c>(
//!         cx: &mut Cx<'c, Self>,
//!         _request: &Request,
//!         memory: &'c Memory<'c>,
//!     ) -> Result<Reply, KernelError> {
//!         let input = memory.input(0)?;
//!         let mut buffer = cx.store.alloc::<u8>(16 << 10)?;
//!         let mut sum = 0;
//!         for part in sidecore_daemon::served::chunks(input, 16 << 10) {
//!             buffer = cx.mfc.get_large(buffer, part)?.wait();
//!             sum += buffer.iter().map(|&byte| u64::from(byte)).sum::<u64>();
//!         }
//!         Ok(Reply::word(sum))
//!     }
//! }
//!
//! let registry = Registry::builtin().with::<SumBytes>()?;
//! assert!(registry.find("sum_bytes").is_some());
//! # Ok::<(), sidecore_daemon::served::RegistryError>(())
//! ```
//!
//! Must stay true: **a client's memory is hostile.** It may change while the kernel runs, so there
//! are no slices of it: a kernel gets into its local store, checks the copy, works there, and puts
//! the result. It never puts to an input. The same request on the same inputs puts the same bytes
//! and replies the same, so that a call which an engine began and did not end can be done again on
//! the host.

mod builtin;
mod foreign;
mod hash;
mod origin;
mod pairwise;

pub use builtin::{Echo, Empty, SPIN_US_MAX, Xxh3};

pub(crate) use builtin::SpinUs;

pub(crate) use builtin::SumF64;
pub use foreign::Foreign;
pub use hash::KernelHash;
pub use origin::Origin;
pub(crate) use origin::{Attached, Companions, KeptCompanions};
pub(crate) use pairwise::Pairwise;
pub(crate) use pairwise::SUM_BLOCK_VALUES;

use crate::shm::ring::TAKEN;
use crate::shm::slot::{RANGES_MAX, WORDS};
use sidecore_engine::{Core, CoreOptions, Ctx, Kernel, KernelError};
use sidecore_sys::{HugePages, RegionOptions, SharedSlice, SysError};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub use crate::shm::introduction::NAME_BYTES_MAX;

/// Kernels that a registry holds at most: as many as an engine keeps state for.
pub const KERNELS_MAX: usize = sidecore_engine::KERNELS_MAX;

/// Request to a kernel: six words whose meaning the kernel defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// The words.
    pub words: [u64; WORDS],
}

/// Reply of a kernel, besides the outputs that it put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reply {
    /// Words with a meaning that the kernel defines.
    pub words: [u64; WORDS],
}

impl Reply {
    /// A reply of one word.
    #[must_use]
    pub fn word(word: u64) -> Self {
        let mut reply = Self::default();
        reply.words[0] = word;
        reply
    }
}

/// The memory that one request lets its kernel touch: inputs to get from, outputs to put to, which
/// overlap neither inputs nor one another.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'m> {
    /// Inputs, then outputs.
    slices: [SharedSlice<'m>; RANGES_MAX],
    /// Those of a job, in their place: they may be more.
    of_job: &'m [SharedSlice<'m>],
    inputs: usize,
    outputs: usize,
    gone: &'m AtomicBool,
    /// The state of a job that its client can cancel.
    state: Option<&'m AtomicU32>,
    /// The client and the engine, where a daemon serves it.
    origin: Option<Origin<'m>>,
}

impl<'m> Memory<'m> {
    #[inline]
    pub(crate) fn new(gone: &'m AtomicBool) -> Self {
        Self {
            slices: [SharedSlice::EMPTY; RANGES_MAX],
            of_job: &[],
            inputs: 0,
            outputs: 0,
            gone,
            state: None,
            origin: None,
        }
    }

    /// The same, of a client that a daemon serves.
    #[inline]
    pub(crate) fn from(self, origin: Origin<'m>) -> Self {
        Self {
            origin: Some(origin),
            ..self
        }
    }

    /// Memory that another process's engine was lent, for a process that runs its kernel:
    /// stretches of which the first `inputs` are inputs. `wanted` holds [`Self::WANTED`] for as
    /// long as the answer is.
    #[must_use]
    pub fn on_loan(stretches: &'m [SharedSlice<'m>], inputs: usize, wanted: &'m AtomicU32) -> Self {
        static GONE: AtomicBool = AtomicBool::new(false);
        Self::of_job(stretches, inputs.min(stretches.len()), &GONE, Some(wanted))
    }

    /// The value of a word that says that an answer is wanted. Others say that it is not.
    pub const WANTED: u32 = TAKEN;

    /// The client whose request this is; none where no daemon serves it.
    #[must_use]
    pub fn origin(&self) -> Option<Origin<'m>> {
        self.origin
    }

    /// The memory of a job: stretches of which the first `inputs` are inputs, and all others
    /// outputs. `state` is its word, where it has one.
    #[inline]
    pub(crate) fn of_job(
        stretches: &'m [SharedSlice<'m>],
        inputs: usize,
        gone: &'m AtomicBool,
        state: Option<&'m AtomicU32>,
    ) -> Self {
        Self {
            of_job: stretches,
            inputs,
            outputs: stretches.len() - inputs,
            state,
            ..Self::new(gone)
        }
    }

    /// All stretches, inputs first.
    #[inline]
    fn all(&self) -> &[SharedSlice<'m>] {
        if self.of_job.is_empty() {
            &self.slices
        } else {
            self.of_job
        }
    }

    /// Input number `index`; read-only.
    ///
    /// # Errors
    /// [`KernelError::Failed`] where the request has fewer.
    pub fn input(&self, index: usize) -> Result<SharedSlice<'m>, KernelError> {
        let slice = self.all()[..self.inputs].get(index).copied();
        slice.ok_or_else(|| KernelError::failed(format!("the request has no input {index}")))
    }

    /// Output number `index`; writable.
    ///
    /// # Errors
    /// [`KernelError::Failed`] where the request has fewer.
    pub fn output(&self, index: usize) -> Result<SharedSlice<'m>, KernelError> {
        let outputs = &self.all()[self.inputs..self.inputs + self.outputs];
        let slice = outputs.get(index).copied();
        slice.ok_or_else(|| KernelError::failed(format!("the request has no output {index}")))
    }

    /// Number of inputs.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// True if the client has disconnected or cancelled the job, so the answer is not needed. A
    /// kernel that runs for more than a millisecond polls it now and then.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        // Relaxed, both: advice.
        let is_wanted = |state: &AtomicU32| state.load(Ordering::Relaxed) == TAKEN;
        self.gone.load(Ordering::Relaxed) || !self.state.is_none_or(is_wanted)
    }

    /// The next input; they come before all outputs.
    pub(crate) fn add_input(&mut self, slice: SharedSlice<'m>) {
        debug_assert_eq!(self.outputs, 0, "inputs come first");
        if let Some(place) = self.slices.get_mut(self.inputs) {
            // On every engine alike: a kernel that puts to an input fails here, and does not just
            // harm the clients that share their inputs between jobs.
            *place = slice.read_only();
            self.inputs += 1;
        }
    }

    /// The next output.
    pub(crate) fn add_output(&mut self, slice: SharedSlice<'m>) {
        if let Some(place) = self.slices.get_mut(self.inputs + self.outputs) {
            *place = slice;
            self.outputs += 1;
        }
    }
}

/// The stretches of `bytes` each that memory consists of; the last may be shorter.
pub fn chunks(memory: SharedSlice<'_>, bytes: usize) -> impl Iterator<Item = SharedSlice<'_>> {
    // At least one, so that a length of 0 does not divide by it.
    let bytes = bytes.max(1);
    (0..memory.len().div_ceil(bytes)).filter_map(move |index| {
        let start = index * bytes;
        memory.range(start..memory.len().min(start + bytes))
    })
}

/// A kernel that other processes may call. See the module for the rules that it keeps.
pub trait Served: Sized + 'static {
    /// Name by which clients call it; 1 to 40 bytes.
    const NAME: &'static str;
    /// Changes when words, ranges or results change their meaning. A client whose version differs
    /// from the daemon's runs its own on the host.
    const VERSION: u32 = 1;
    /// Names the build; part of the kernel's hash. The release of this crate unless given.
    const BUILD: &'static str = env!("CARGO_PKG_VERSION");
    /// Bytes of local store that a run needs at most.
    const LS: usize = 0;
    /// State that stays on an engine between runs.
    type State: Default + Send + 'static;

    /// Runs it on an engine of the daemon.
    ///
    /// # Errors
    /// Whatever keeps it from giving a result; the client gets the first 64 bytes of the text.
    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError>;

    /// Runs it in the client, on the calling thread: when there is no daemon. The same, on a local
    /// store of that thread, unless there is something better to do.
    ///
    /// # Errors
    /// As [`Self::engine`].
    fn host(request: &Request, memory: &Memory<'_>) -> Result<Reply, KernelError> {
        with_host_core(Self::LS, |core| core.run::<Run<Self>>((request, memory)))
    }
}

/// Context of a running served kernel: its state, a local store, DMA.
pub type Cx<'c, S> = Ctx<'c, Run<S>>;

/// A served kernel as an engine knows it.
#[derive(Debug)]
pub struct Run<S>(PhantomData<S>);

impl<S: Served> Kernel for Run<S> {
    type Args<'j> = (&'j Request, &'j Memory<'j>);
    type Out = Reply;
    type State = S::State;
    const LS: usize = S::LS;

    #[inline]
    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        (request, memory): Self::Args<'j>,
    ) -> Result<Reply, KernelError> {
        S::engine(cx, request, memory)
    }
}

type EngineFn =
    &'static (dyn Fn(&mut Core, &Request, &Memory<'_>) -> Result<Reply, KernelError> + Sync);
type HostFn = &'static (dyn Fn(&Request, &Memory<'_>) -> Result<Reply, KernelError> + Sync);
type PrepareFn = &'static (dyn Fn(&mut Core) -> Result<(), KernelError> + Sync);

/// A kernel in a registry.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) version: u32,
    pub(crate) hash: KernelHash,
    /// The hash that a daemon's kernel must have to be called.
    pub(crate) expected: Option<KernelHash>,
    pub(crate) store_bytes: usize,
    /// Only a daemon has it: `host` is an error.
    pub(crate) is_remote: bool,
    pub(crate) engine: EngineFn,
    pub(crate) host: HostFn,
    pub(crate) prepare: PrepareFn,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} version {} ({})", self.name, self.version, self.hash)
    }
}

/// Error of adding a kernel to a registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Another kernel has this name.
    #[error("there is a kernel `{name}` already; give this one another name")]
    NameTaken {
        /// The name.
        name: &'static str,
    },
    /// Its name is empty or too long.
    #[error("a kernel's name has 1 to {NAME_BYTES_MAX} bytes, `{name}` has {}", name.len())]
    NameLength {
        /// The name.
        name: &'static str,
    },
    /// The registry is full.
    #[error("a registry holds {KERNELS_MAX} kernels; `{name}` is one too many")]
    Full {
        /// Name of the refused kernel.
        name: &'static str,
    },
    /// A hash is expected of a kernel that is not there.
    #[error("there is no kernel `{name}` whose hash could be expected")]
    Unknown {
        /// The name.
        name: String,
    },
}

/// The kernels that a daemon serves, or that a client knows how to run itself.
#[derive(Debug, Clone)]
pub struct Registry {
    entries: Vec<Entry>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::builtin()
    }
}

impl Registry {
    /// The kernels that every daemon has: `empty`, `echo`, `sum_f64`, `xxh3`.
    #[must_use]
    pub fn builtin() -> Self {
        let entries = vec![
            entry::<Empty>(),
            entry::<Echo>(),
            entry::<SumF64>(),
            entry::<Xxh3>(),
        ];
        Self { entries }
    }

    /// [`Self::builtin`] with `SpinUs`, for tests and measurements: with it, any client can keep
    /// an engine busy for up to a second.
    #[must_use]
    pub fn with_spin_us() -> Self {
        let mut registry = Self::builtin();
        // Its name is not among the built-in ones, so nothing is to be refused.
        registry.entries.push(entry::<SpinUs>());
        registry
    }

    /// Adds a kernel.
    ///
    /// # Errors
    /// [`RegistryError`] where its name is taken or unfit, or there are too many.
    pub fn with<S: Served>(self) -> Result<Self, RegistryError> {
        self.with_entry(entry::<S>())
    }

    /// Adds a kernel that is a value. It stays in memory for the life of the process, as does one
    /// that is refused.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub fn with_foreign(self, kernel: impl Foreign) -> Result<Self, RegistryError> {
        self.with_entry(foreign::entry(Box::new(kernel)))
    }

    /// Adds a kernel that only a daemon has. Calls of it fail where no daemon serves it in this
    /// version, and with this hash where one is given. Else they wait for an engine, up to the
    /// caller's limit (`ClientOptions::remote_time_max`, `Args::within`).
    ///
    /// # Errors
    /// As [`Self::with`].
    pub fn with_remote(
        self,
        name: &str,
        version: u32,
        hash: Option<KernelHash>,
    ) -> Result<Self, RegistryError> {
        let mut entry = foreign::entry(Box::new(foreign::Remote {
            name: name.to_owned(),
            version,
            hash,
        }));
        // Both: no host version could stand in where the daemon's kernel is another.
        entry.expected = hash;
        entry.is_remote = true;
        self.with_entry(entry)
    }

    /// Lets a client call a daemon's kernel `name` only where it has this hash
    /// (`sidecore offload kernels` lists them), at every attachment anew. Where it has another, the
    /// client's own is called, as where the versions differ.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`] where this registry has no such kernel.
    pub fn expecting(mut self, name: &str, hash: KernelHash) -> Result<Self, RegistryError> {
        let entry = self.entries.iter_mut().find(|entry| entry.name == name);
        let unknown = || RegistryError::Unknown {
            name: name.to_owned(),
        };
        // Silence would mean that a hash with a wrong name is expected of nothing.
        entry.ok_or_else(unknown)?.expected = Some(hash);
        Ok(self)
    }

    fn with_entry(mut self, entry: Entry) -> Result<Self, RegistryError> {
        let name = entry.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(RegistryError::NameLength { name });
        }
        if self.find(name).is_some() {
            return Err(RegistryError::NameTaken { name });
        }
        if self.entries.len() == KERNELS_MAX {
            return Err(RegistryError::Full { name });
        }
        self.entries.push(entry);
        Ok(self)
    }

    /// The number of the kernel of that name, in this registry.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name)
    }

    /// True if only a daemon has that kernel.
    pub(crate) fn is_remote(&self, number: usize) -> bool {
        self.entry(number).is_some_and(|entry| entry.is_remote)
    }

    /// The names, by number.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.entries.iter().map(|entry| entry.name)
    }

    #[inline]
    pub(crate) fn entry(&self, number: usize) -> Option<&Entry> {
        self.entries.get(number)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

fn entry<S: Served>() -> Entry {
    Entry {
        name: S::NAME,
        version: S::VERSION,
        hash: KernelHash::of_built_in(S::NAME, S::VERSION, S::BUILD),
        expected: None,
        is_remote: false,
        store_bytes: S::LS,
        engine: &|core, request, memory| core.run::<Run<S>>((request, memory)),
        host: &S::host,
        prepare: &|core| core.prepare::<Run<S>>(),
    }
}

/// Gives `work` a core that this thread keeps for host versions. Its local store is at least
/// `store_bytes` long.
fn with_host_core(
    store_bytes: usize,
    work: impl FnOnce(&mut Core) -> Result<Reply, KernelError>,
) -> Result<Reply, KernelError> {
    thread_local! {
        static CORE: RefCell<Option<Core>> = const { RefCell::new(None) };
    }
    CORE.with(|kept| {
        // A host version that calls another one finds the core in use, and gets one of its own.
        let Ok(mut kept) = kept.try_borrow_mut() else {
            // Its own state is fresh, too: a host version keeps nothing that it relies on.
            return work(&mut host_core(store_bytes)?);
        };
        match &mut *kept {
            Some(core) if core.store().len() >= store_bytes => work(core),
            // A larger one takes the place of a smaller one, whose states are only caches.
            other => work(other.insert(host_core(store_bytes)?)),
        }
    })
}

fn host_core(store_bytes: usize) -> Result<Core, KernelError> {
    let options = CoreOptions::default();
    Core::new(CoreOptions {
        store_bytes: options.store_bytes.max(store_bytes),
        region: RegionOptions {
            // A store for one thread's calls, now and then: not worth locked or huge pages.
            huge: HugePages::None,
            lock: false,
            touch: false,
        },
        ..options
    })
    .map_err(|error: SysError| KernelError::failed(error.to_string()))
}

#[cfg(test)]
mod tests;
