//! Cost of the first DMA from and to memory that was never touched before.
//!
//! Why here: the papers lost two to three orders of magnitude there; whether touching ahead is
//! worth its time is for this to say. Medians: an interruption more or less does not matter to
//! factors of this kind. Source: papers/000 ("SPE set-up"), papers/003.

use super::TlbError;
use crate::report::FirstUse;
use sidecore_engine::{Core, CoreOptions, Ctx, DmaMode, In, Kernel, KernelError};
use sidecore_measure::stats::median;
use sidecore_sys::{HugePages, RegionOptions, Slab, SysError, clock};

/// Measures all kinds.
pub(crate) fn measure(rounds: usize) -> Result<Vec<FirstUse>, TlbError> {
    Ok(vec![
        FirstUse {
            name: "get of 128 bytes",
            touched_ns: source(128, true, rounds)?,
            untouched_ns: source(128, false, rounds)?,
        },
        FirstUse {
            name: "get of 64 KiB",
            touched_ns: source(BLOCK_BYTES, true, rounds)?,
            untouched_ns: source(BLOCK_BYTES, false, rounds)?,
        },
        FirstUse {
            name: "get of 64 KiB into a new local store",
            touched_ns: store(true, rounds)?,
            untouched_ns: store(false, rounds)?,
        },
    ])
}

/// Kernel that gets one block into the local store.
struct Bring;

impl Kernel for Bring {
    type Args<'j> = In<'j, u8>;
    type Out = u8;
    type State = ();
    const LS: usize = BLOCK_BYTES;

    fn run<'c, 'j: 'c>(cx: &mut Ctx<'c, Self>, block: In<'j, u8>) -> Result<u8, KernelError> {
        let buffer = cx.store.alloc(block.len())?;
        let buffer = cx.mfc.get_large(buffer, block)?.wait();
        Ok(buffer[0])
    }
}

/// Median time of a get from memory that is, or is not, touched before each.
fn source(bytes: usize, touched: bool, rounds: usize) -> Result<f64, TlbError> {
    let mut core = core(RegionOptions::default())?;
    core.prepare::<Bring>().map_err(TlbError::Engine)?;
    let slab = Slab::new(bytes, 1, memory(touched))?;
    let mut block = slab.take().ok_or(TlbError::NoPages)?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        if touched {
            // Written, not read: a read would map the shared page of zeros.
            block.fill(1);
        } else {
            // The next access takes a page fault, as the first one did.
            let released = block.release_pages();
            released.map_err(|source| SysError::Call {
                call: "giving pages back",
                source,
            })?;
        }
        times.push(time(&mut core, &block[..bytes])?);
    }
    Ok(median(&times))
}

/// Median time of the first get into a local store.
fn store(touched: bool, rounds: usize) -> Result<f64, TlbError> {
    let block = vec![1; BLOCK_BYTES];
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        // A store of its own in each round: its first use happens once.
        let mut core = core(memory(touched))?;
        core.prepare::<Bring>().map_err(TlbError::Engine)?;
        times.push(time(&mut core, &block)?);
    }
    Ok(median(&times))
}

/// An engine whose gets copy: all of a lent block would not be touched.
fn core(region: RegionOptions) -> Result<Core, SysError> {
    Core::new(CoreOptions {
        region,
        mode: DmaMode::Copy,
        ..CoreOptions::default()
    })
}

fn memory(touch: bool) -> RegionOptions {
    RegionOptions {
        huge: HugePages::None,
        lock: false,
        touch,
    }
}

fn time(core: &mut Core, block: &[u8]) -> Result<f64, TlbError> {
    let begun = clock::cycles();
    core.run::<Bring>(In::new(block))
        .map_err(TlbError::Engine)?;
    let counted = clock::cycles().wrapping_sub(begun);
    Ok(counted as f64 * 1000.0 / clock::cycles_per_us())
}

const BLOCK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    #[test]
    fn untouched_memory_takes_longer() {
        let takes_longer = |first_use: &super::FirstUse| first_use.factor() > 1.0;
        let mut measured = Vec::new();
        // The one may be measured while others use the core or its memory, but not every time.
        for _ in 0..50 {
            measured = super::measure(100).unwrap();
            if measured.iter().all(takes_longer) {
                return;
            }
        }
        panic!("{measured:?}");
    }
}
