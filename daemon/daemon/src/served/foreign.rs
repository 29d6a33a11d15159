//! Kernels that are known when the program runs: loaded from a shared object, or served by a daemon
//! alone.
//!
//! Why here: [`Served`](super::Served) is a type, known to the compiler; code that is found at
//! start is a value. Both end up as entries of a [`Registry`](super::Registry), and an engine calls
//! them alike. All foreign kernels are one [`Kernel`] to the engine, whose state holds theirs. Must
//! stay true: a kernel's state is made and used by the driver of one core at a time. A registered
//! kernel stays for the life of the process, since engines and clients keep pointers to it.

use super::{Entry, KernelHash, Memory, Reply, Request, with_host_core};
use sidecore_engine::{Core, Ctx, Kernel, KernelError, StoreError};
use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kernel as a value. The rules are those of [`Served`](super::Served).
pub trait Foreign: Debug + Send + Sync + 'static {
    /// Name by which clients call it; 1 to 40 bytes.
    fn name(&self) -> &str;

    /// Changes when words, ranges or results change their meaning.
    fn version(&self) -> u32;

    /// Hash of its code.
    fn hash(&self) -> KernelHash;

    /// Bytes of local store that a run needs at most.
    fn store_bytes(&self) -> usize {
        0
    }

    /// Makes the state that one engine keeps for it between runs.
    ///
    /// # Errors
    /// Whatever keeps it from being made; requests fail with it, and each tries again.
    fn state(&self) -> Result<Box<dyn Any + Send>, KernelError> {
        Ok(Box::new(()))
    }

    /// Runs one request, on an engine or on a client's own thread. `state` was made by
    /// [`Self::state`] on this core; `store` has [`Self::store_bytes`] bytes, aligned to 128.
    ///
    /// # Errors
    /// Whatever keeps it from giving a result; the client gets the first 64 bytes of the text.
    fn run(
        &self,
        state: &mut (dyn Any + Send),
        store: &mut [u8],
        request: &Request,
        memory: &Memory<'_>,
    ) -> Result<Reply, KernelError>;
}

/// A kernel of a daemon that this process cannot run itself.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) name: String,
    pub(super) version: u32,
    pub(super) hash: Option<KernelHash>,
}

impl Foreign for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn hash(&self) -> KernelHash {
        // Only a daemon's answer is compared, and this process serves no client with it.
        self.hash.unwrap_or(KernelHash::from_bytes([0; 32]))
    }

    fn run(
        &self,
        _state: &mut (dyn Any + Send),
        _store: &mut [u8],
        _request: &Request,
        _memory: &Memory<'_>,
    ) -> Result<Reply, KernelError> {
        let (name, version) = (&self.name, self.version);
        let with_hash = self.hash.map(|hash| format!(" with hash {hash}"));
        Err(KernelError::failed(format!(
            "no daemon serves `{name}` version {version}{}, and this process has none of its own",
            with_hash.unwrap_or_default()
        )))
    }
}

/// The entry of a kernel, which stays for the life of the process.
pub(super) fn entry(kernel: Box<dyn Foreign>) -> Entry {
    // Relaxed: only a unique number.
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let known: &'static Known = Box::leak(Box::new(Known { id, kernel }));
    let kernel = &known.kernel;
    let store_bytes = kernel.store_bytes();
    Entry {
        name: kernel.name(),
        version: kernel.version(),
        hash: kernel.hash(),
        expected: None,
        is_remote: false,
        store_bytes,
        engine: Box::leak(Box::new(
            move |core: &mut Core, request: &Request, memory: &Memory<'_>| {
                core.run::<RunForeign>((known, request, memory))
            },
        )),
        host: Box::leak(Box::new(move |request: &Request, memory: &Memory<'_>| {
            with_host_core(store_bytes, |core| {
                core.run::<RunForeign>((known, request, memory))
            })
        })),
        prepare: Box::leak(Box::new(move |core: &mut Core| {
            let has = core.store().len();
            if store_bytes > has {
                let needs = store_bytes;
                return Err(StoreError::TooSmall { needs, has }.into());
            }
            // A state that cannot be made is an error of the requests, not of the daemon.
            core.state::<RunForeign>()?
                .of(known)
                .map_or(Ok(()), |_| Ok(()))
        })),
    }
}

/// A foreign kernel with its number in this process.
#[derive(Debug)]
struct Known {
    id: u64,
    kernel: Box<dyn Foreign>,
}

/// All foreign kernels, as an engine knows them.
struct RunForeign;

/// States of the foreign kernels of one core. Found by a search: there are few.
#[derive(Default)]
struct States(Vec<(u64, Box<dyn Any + Send>)>);

impl States {
    fn of(&mut self, known: &Known) -> Result<&mut (dyn Any + Send), KernelError> {
        let found = self.0.iter().position(|&(id, _)| id == known.id);
        let place = match found {
            Some(place) => place,
            None => {
                self.0.push((known.id, known.kernel.state()?));
                self.0.len() - 1
            }
        };
        Ok(&mut *self.0[place].1)
    }
}

impl Kernel for RunForeign {
    type Args<'j> = (&'static Known, &'j Request, &'j Memory<'j>);
    type Out = Reply;
    type State = States;

    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        (known, request, memory): Self::Args<'j>,
    ) -> Result<Reply, KernelError> {
        let mut store = cx.store.alloc::<u8>(known.kernel.store_bytes())?;
        let state = cx.state.of(known)?;
        known.kernel.run(state, &mut store, request, memory)
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);
