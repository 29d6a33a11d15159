//! The document's other path: an engine gets 128 bytes of each page by DMA.
//!
//! Why here: an engine does not load, it gets. The document's question for an SPE was whether its
//! gets pay for translation as loads do. Every get's place is in the bytes of the get before.
//! Source: papers/003.

use super::TlbError;
use sidecore_bare::width::ToUsize;
use sidecore_engine::{Core, Ctx, In, Kernel, KernelError};

/// Numbers in a get of 128 bytes.
pub(crate) const BLOCK_VALUES: usize = 32;

struct Chase;

struct Args<'j> {
    memory: In<'j, u32>,
    from: u32,
    steps: u64,
}

impl Kernel for Chase {
    type Args<'j> = Args<'j>;
    type Out = u32;
    type State = ();
    const LS: usize = BLOCK_VALUES * size_of::<u32>();

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, args: Args<'j>) -> Result<u32, KernelError> {
        let mut buffer = cx.store.alloc::<u32>(BLOCK_VALUES)?;
        let mut at = args.from;
        for _ in 0..args.steps {
            let (block, slot) = (at.to_usize() / BLOCK_VALUES, at.to_usize() % BLOCK_VALUES);
            let source = args.memory.chunk(block, BLOCK_VALUES);
            let source = source.ok_or_else(|| KernelError::failed("a chase left its memory"))?;
            buffer = cx.mfc.get(buffer, source)?.wait();
            at = buffer[slot];
        }
        Ok(at)
    }
}

/// Follows a chain from `from` for `steps` steps, on this thread.
pub(crate) fn chase(
    core: &mut Core,
    values: &[u32],
    from: u32,
    steps: u64,
) -> Result<u32, TlbError> {
    let args = Args {
        memory: In::new(values),
        from,
        steps,
    };
    core.run::<Chase>(args).map_err(TlbError::Engine)
}
