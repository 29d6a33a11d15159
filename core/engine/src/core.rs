//! An engine's hardware without a thread: its local store, DMA, and its kernels' state.
//!
//! Why here: on machines whose cores are all alike, an off-load to an idle engine on the caller's
//! own core is best a call. So the hardware is a value that its owner may drive: an engine's
//! thread, or a caller that borrowed it from a pool. Must stay true: one driver at a time (`&mut`).
//! When a run has ended, in any way, its transfers are done and the store is free again. A panic of
//! a kernel is an error of its job, never of the driver. A run of a kernel that this core has run
//! or prepared before does not allocate, unless the kernel itself does.

use crate::error::{KernelError, StoreError};
use crate::kernel::{Ctx, Kernel};
use crate::mfc::{DmaCounters, DmaMode, Mfc};
use crate::page_advice::PageAdvice;
use crate::store::{LocalStore, STORE_BYTES_DEFAULT};
use sidecore_sys::{RegionOptions, SysError};
use std::any::{Any, TypeId};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Kinds of kernels that one core keeps state for.
pub const KERNELS_MAX: usize = 64;

/// Options of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreOptions {
    /// Bytes of its local store.
    pub store_bytes: usize,
    /// Memory of the local store.
    pub region: RegionOptions,
    /// Mode of its transfers.
    pub mode: DmaMode,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self {
            store_bytes: STORE_BYTES_DEFAULT,
            region: RegionOptions::default(),
            mode: DmaMode::default(),
        }
    }
}

impl CoreOptions {
    /// The default, with the store's memory made as this machine was found to want it
    /// ([`PageAdvice::of_this_machine`]).
    #[must_use]
    pub fn of_this_machine() -> Self {
        let mut options = Self::default();
        if let Some(learned) = PageAdvice::of_this_machine() {
            options.region = learned.advise(options.store_bytes).region_options();
        }
        options
    }
}

/// Counters of a core since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CoreCounters {
    /// Jobs that gave a result.
    pub runs: u64,
    /// Jobs that gave an error; panics are among them.
    pub failures: u64,
    /// Kernels that panicked.
    pub panics: u64,
    /// Counters of its transfers.
    pub dma: DmaCounters,
}

impl CoreCounters {
    /// Adds another core's counters, for a total.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.failures += other.failures;
        self.panics += other.panics;
        self.add_dma(&other.dma);
    }

    fn add_dma(&mut self, dma: &DmaCounters) {
        self.dma.gets += dma.gets;
        self.dma.puts += dma.puts;
        self.dma.bytes_in += dma.bytes_in;
        self.dma.bytes_out += dma.bytes_out;
    }
}

/// The hardware of one engine. The module's head names the threads that may drive it.
#[derive(Debug)]
pub struct Core {
    store: LocalStore,
    states: States,
    mode: DmaMode,
    counters: CoreCounters,
}

impl Core {
    /// Makes a core; its local store is mapped, locked where that is allowed, and touched.
    ///
    /// # Errors
    /// [`SysError`] where the memory for the store cannot be had.
    pub fn new(options: CoreOptions) -> Result<Self, SysError> {
        Ok(Self {
            store: LocalStore::new(options.store_bytes, options.region)?,
            states: States::default(),
            mode: options.mode,
            counters: CoreCounters::default(),
        })
    }

    /// Runs one job on this thread, now, to its end.
    ///
    /// # Errors
    /// The kernel's error; [`StoreError::TooSmall`] where the kernel needs a larger store;
    /// [`KernelError::Panicked`]; [`KernelError::TooManyKernels`].
    pub fn run<'j, K: Kernel>(&mut self, args: K::Args<'j>) -> Result<K::Out, KernelError> {
        // Before the arguments are touched: a refused job has had no effect.
        let prepared = self.check::<K>().and_then(|()| self.states.find::<K>());
        let slot = match prepared {
            Ok(slot) => slot,
            Err(error) => {
                self.counters.failures += 1;
                return Err(error);
            }
        };
        let arena = self.store.arena();
        let mfc = Mfc::new(&arena, self.mode);
        let state = self.states.get::<K>(slot);
        // A panicking closure may leave its state half changed, which the code below repairs: it is
        // made anew. The store has no state.
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut cx = Ctx::new(state, &arena, &mfc);
            K::run(&mut cx, args)
        }));
        // Also of a run that failed: its transfers did happen.
        let dma = mfc.counters();
        self.counters.add_dma(&dma);
        let result = result.unwrap_or_else(|panic| {
            self.counters.panics += 1;
            // The next job of this kind must not find what a panic has left half done.
            self.states.renew::<K>(slot);
            Err(KernelError::Panicked {
                message: message_of(panic.as_ref()),
            })
        });
        match &result {
            Ok(_) => self.counters.runs += 1,
            Err(_) => self.counters.failures += 1,
        }
        result
    }

    /// Makes the state that `K` keeps on this core, so that the first job need not.
    ///
    /// # Errors
    /// [`StoreError::TooSmall`], [`KernelError::TooManyKernels`].
    pub fn prepare<K: Kernel>(&mut self) -> Result<(), KernelError> {
        self.check::<K>()?;
        self.states.find::<K>().map(drop)
    }

    /// The state that `K` keeps on this core, to be looked at or set between jobs.
    ///
    /// # Errors
    /// [`KernelError::TooManyKernels`].
    pub fn state<K: Kernel>(&mut self) -> Result<&mut K::State, KernelError> {
        let slot = self.states.find::<K>()?;
        Ok(self.states.get::<K>(slot))
    }

    /// The local store.
    #[must_use]
    pub fn store(&self) -> &LocalStore {
        &self.store
    }

    /// Mode of its transfers.
    #[must_use]
    pub fn mode(&self) -> DmaMode {
        self.mode
    }

    /// Changes the mode of transfers from the next run on.
    pub fn set_mode(&mut self, mode: DmaMode) {
        self.mode = mode;
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> CoreCounters {
        self.counters
    }

    fn check<K: Kernel>(&self) -> Result<(), KernelError> {
        let has = self.store.len();
        if K::LS <= has {
            Ok(())
        } else {
            Err(StoreError::TooSmall { needs: K::LS, has }.into())
        }
    }
}

/// State of each kind of kernel. Found by a search: a core runs few kinds, mostly one after
/// another.
#[derive(Default)]
struct States {
    kinds: Vec<(TypeId, Box<dyn Any + Send>)>,
}

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "states of {} kernels", self.kinds.len())
    }
}

impl States {
    /// Index of `K`'s state, which is made if there is none.
    fn find<K: Kernel>(&mut self) -> Result<usize, KernelError> {
        let kind = TypeId::of::<K>();
        if let Some(slot) = self.kinds.iter().position(|&(other, _)| other == kind) {
            return Ok(slot);
        }
        // States are never dropped while the core lives, so that their number needs a bound.
        if self.kinds.len() == KERNELS_MAX {
            return Err(KernelError::TooManyKernels { limit: KERNELS_MAX });
        }
        let state = make_state::<K>().map_err(|message| KernelError::Panicked { message })?;
        self.kinds.push((kind, state));
        Ok(self.kinds.len() - 1)
    }

    fn get<K: Kernel>(&mut self, slot: usize) -> &mut K::State {
        match self.kinds[slot].1.downcast_mut() {
            Some(state) => state,
            None => unreachable!("a slot holds the state of the kernel that it was found for"),
        }
    }

    /// Replaces a state that a panic may have left half changed.
    fn renew<K: Kernel>(&mut self, slot: usize) {
        // Taken out first: if making a new state fails, none is left, and the next run makes it.
        let (_, old) = self.kinds.swap_remove(slot);
        // A state that panics when dropped must not take the driver with it either.
        drop(catch_unwind(AssertUnwindSafe(|| drop(old))));
        if let Ok(state) = make_state::<K>() {
            self.kinds.push((TypeId::of::<K>(), state));
        }
    }
}

fn make_state<K: Kernel>() -> Result<Box<dyn Any + Send>, String> {
    catch_unwind(|| Box::new(K::State::default()) as Box<dyn Any + Send>)
        .map_err(|panic| message_of(panic.as_ref()))
}

/// Message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}
