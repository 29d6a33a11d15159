//! The kernels that every daemon has, as examples of the rules; and one for measurements.

use super::pairwise::{Pairwise, SUM_BLOCK_VALUES, block_sum};
use super::{Cx, Memory, Reply, Request, Served, chunks};
use sidecore_bare::width::ToU64;
use sidecore_engine::KernelError;
use sidecore_sys::clock;
use xxhash_rust::xxh3;

/// Does nothing: measures the cost of an off-load.
#[derive(Debug)]
pub struct Empty;

impl Served for Empty {
    const NAME: &'static str = "empty";
    type State = ();

    #[inline]
    fn engine<'c>(
        _cx: &mut Cx<'c, Self>,
        _request: &Request,
        _memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        Ok(Reply::default())
    }
}

/// Copies input 0 to the beginning of output 0, which must be as long or longer. Word 0 of the
/// reply is how many bytes; the other words of the request come back as they are.
#[derive(Debug)]
pub struct Echo;

impl Served for Echo {
    const NAME: &'static str = "echo";
    const LS: usize = CHUNK_BYTES;
    type State = ();

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let (input, output) = (memory.input(0)?, memory.output(0)?);
        // Before anything is put: a refused request leaves its output as it was.
        let Some(output) = output.range(0..input.len()) else {
            let (has, needs) = (output.len(), input.len());
            return Err(KernelError::failed(format!(
                "echo: {needs} bytes do not fit an output of {has}"
            )));
        };
        let mut buffer = cx.store.alloc::<u8>(CHUNK_BYTES)?;
        let parts = chunks(input, CHUNK_BYTES).zip(chunks(output, CHUNK_BYTES));
        for (from, to) in parts {
            buffer = cx.mfc.get_large(buffer, from)?.wait();
            buffer = cx.mfc.put_large(buffer, to)?.wait();
        }
        let mut reply = Reply {
            words: request.words,
        };
        reply.words[0] = input.len().to_u64();
        Ok(reply)
    }
}

/// Adds up the doubles of input 0, in an order that depends only on how many there are. Word 0 of
/// the reply is the sum's bits ([`f64::from_bits`]).
#[derive(Debug)]
pub(crate) struct SumF64;

impl Served for SumF64 {
    const NAME: &'static str = "sum_f64";
    const LS: usize = CHUNK_BYTES;
    type State = ();

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        _request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let input = memory.input(0)?;
        if !input.len().is_multiple_of(size_of::<f64>()) {
            let bytes = input.len();
            return Err(KernelError::failed(format!(
                "sum_f64: {bytes} bytes are no whole number of doubles"
            )));
        }
        let mut sum = Pairwise::default();
        let mut buffer = cx.store.alloc::<f64>(SUM_BLOCK_VALUES)?;
        for part in chunks(input, CHUNK_BYTES) {
            buffer = cx.mfc.get_large(buffer, part)?.wait();
            // Whole blocks but for the last: so the order of the additions depends only on the
            // length, and is the same on every engine and on the host.
            sum.push(block_sum(&buffer));
        }
        Ok(Reply::word(sum.finish().to_bits()))
    }
}

/// The XXH3 hash of input 0, with word 0 of the request as its seed. Word 0 of the reply is the
/// hash.
#[derive(Debug)]
pub struct Xxh3;

impl Served for Xxh3 {
    const NAME: &'static str = "xxh3";
    const LS: usize = CHUNK_BYTES;
    type State = ();

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let input = memory.input(0)?;
        let seed = request.words[0];
        let mut buffer = cx.store.alloc::<u8>(CHUNK_BYTES)?;
        // One shot is faster for short inputs, and has the same hash.
        if input.len() <= CHUNK_BYTES {
            let bytes = cx.mfc.get_large(buffer, input)?.wait();
            return Ok(Reply::word(xxh3::xxh3_64_with_seed(&bytes, seed)));
        }
        let mut hash = xxh3::Xxh3::with_seed(seed);
        for part in chunks(input, CHUNK_BYTES) {
            buffer = cx.mfc.get_large(buffer, part)?.wait();
            hash.update(&buffer);
        }
        Ok(Reply::word(hash.digest()))
    }
}

/// Keeps its engine busy for word 0 microseconds, at most [`SPIN_US_MAX`]: a task of known length,
/// for tests and measurements. Word 0 of the reply is the microseconds, word 1 comes back. Not
/// among the kernels that every daemon has
/// ([`Registry::with_spin_us`](super::Registry::with_spin_us)).
#[derive(Debug)]
pub(crate) struct SpinUs;

impl Served for SpinUs {
    const NAME: &'static str = "spin_us";
    type State = ();

    fn engine<'c>(
        _cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let begun_ns = clock::now_ns();
        let spin_us = request.words[0];
        // Else one client could hold an engine for ever, past all shares of its time.
        if spin_us > SPIN_US_MAX {
            return Err(KernelError::failed(format!(
                "spin_us: {spin_us} us is more than {SPIN_US_MAX}"
            )));
        }
        // By the clock, not by turns: engines differ in speed. Abandoned, it gives the engine back.
        while clock::now_ns() - begun_ns < spin_us * 1000 && !memory.is_abandoned() {
            std::hint::spin_loop();
        }
        Ok(Reply {
            words: request.words,
        })
    }
}

/// The longest spin that `SpinUs` does.
pub const SPIN_US_MAX: u64 = 1_000_000;

/// Size in bytes of one DMA of the kernels here.
const CHUNK_BYTES: usize = SUM_BLOCK_VALUES * size_of::<f64>();
