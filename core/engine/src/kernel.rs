//! Kernels: code that runs on an engine.
//!
//! Why here: a kernel is a type, so the compiler knows its code, its arguments, its result and its
//! state on each engine; an off-load carries only the arguments. On the Cell the state was the
//! program and its data, uploaded once and then run again and again.
//!
//! ```
//! use sidecore_engine::{Core, CoreOptions, Ctx, DmaMode, In, Kernel, KernelError, Out};
//!
//! /// Adds a constant to every value, block by block in the local store.
//! struct Add;
//!
//! #[derive(Default)]
//! struct Seen {
//!     values: u64,
//! }
//!
//! struct AddArgs<'j> {
//!     constant: u32,
//!     source: In<'j, u32>,
//!     target: Out<'j, u32>,
//! }
//!
//! impl Kernel for Add {
//!     type Args<'j> = AddArgs<'j>;
//!     type Out = u64;
//!     type State = Seen;
//!     const LS: usize = 16 << 10;
//!
//!     fn run<'c, 'j: 'c>(
//!         cx: &mut Ctx<'c, Self>,
//!         args: AddArgs<'j>,
//!     ) -> Result<u64, KernelError> {
//!         let mut buffer = cx.store.alloc::<u32>(4096)?;
//!         for (from, to) in args.source.chunks(4096).zip(args.target.chunks(4096)) {
//!             buffer = cx.mfc.get_large(buffer, from)?.wait();
//!             buffer.iter_mut().for_each(|value| *value += args.constant);
//!             cx.state.values += buffer.len() as u64;
//!             buffer = cx.mfc.put_large(buffer, to)?.wait();
//!         }
//!         Ok(cx.state.values)
//!     }
//! }
//!
//! let source: Vec<u32> = (0..10_000).collect();
//! let mut target = vec![0; 10_000];
//! for mode in [DmaMode::Copy, DmaMode::Borrow] {
//!     let mut core = Core::new(CoreOptions { mode, ..CoreOptions::default() })?;
//!     for round in 1..=2 {
//!         let args = AddArgs {
//!             constant: 5,
//!             source: In::new(&source),
//!             target: Out::new(&mut target),
//!         };
//!         assert_eq!(core.run::<Add>(args)?, round * 10_000);
//!         assert!(target.iter().zip(&source).all(|(new, old)| *new == old + 5));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::error::KernelError;
use crate::mfc::Mfc;
use crate::store::Arena;

/// Something that engines run.
///
/// `'j` is the life of the memory that the host lends to a job, `'c` that of one run: of buffers in
/// the local store and of transfers. Nothing of `'c` can leave the run.
pub trait Kernel: Sized + 'static {
    /// Arguments of a job: values, and borrows of the host's memory ([`crate::In`],
    /// [`crate::Out`]). It must be `Send` to go to an engine on another thread.
    type Args<'j>;
    /// Result of a job.
    type Out: Send + 'static;
    /// State that stays on an engine between runs: tables, scratch memory, a codec. Made once on
    /// each engine, and again after a panic. `()` for nothing.
    type State: Default + Send + 'static;
    /// Bytes of local store that a run needs at most; an engine with less refuses it. 0 where none
    /// is used.
    const LS: usize = 0;

    /// Runs one job. The local store is all free at first. Transferred data ends with the run, and
    /// all transfers are done by then.
    ///
    /// # Errors
    /// Whatever keeps it from giving a result: [`KernelError::failed`] for reasons of its own.
    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        args: Self::Args<'j>,
    ) -> Result<Self::Out, KernelError>;
}

/// Context of a running kernel. The parts are separate fields so that they can be used
/// at the same time.
#[derive(Debug)]
#[non_exhaustive]
pub struct Ctx<'c, K: Kernel> {
    /// State of this kernel on this engine.
    pub state: &'c mut K::State,
    /// The local store.
    pub store: &'c Arena<'c>,
    /// DMA.
    pub mfc: &'c Mfc<'c>,
}

impl<'c, K: Kernel> Ctx<'c, K> {
    pub(crate) fn new(state: &'c mut K::State, store: &'c Arena<'c>, mfc: &'c Mfc<'c>) -> Self {
        Self { state, store, mfc }
    }
}
