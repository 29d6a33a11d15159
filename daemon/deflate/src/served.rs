//! The kernels `deflate` and `inflate`, which `sidecore daemon` serves.
//!
//! Why here: a program's blocks are deflated by whichever engine is free, and by the program itself
//! where there is none; both run this code.
//! Must stay true: inputs are untrusted, and may change meanwhile: they are copied from the
//! client's memory once, and only the copy is read. Outputs are put when they are whole. The copies
//! lie in memory that the engine keeps, because a block and its result are longer than a local
//! store. Called on engines, or on a client's own thread.

use crate::block::{BLOCK_BYTES, Deflater, block_bytes_max};
use crate::check::CheckKind;
use libdeflater::Decompressor;
use sidecore_bare::width::ToU64;
use sidecore_daemon::served::{Cx, Memory, Registry, RegistryError, Reply, Request, Served};
use sidecore_engine::KernelError;
use sidecore_sys::SharedSlice;

/// Adds the kernels of this crate to a registry.
///
/// # Errors
/// As [`Registry::with`].
pub fn register(registry: Registry) -> Result<Registry, RegistryError> {
    registry.with::<Deflate>()?.with::<Inflate>()
}

/// Deflates input 0, at most [`BLOCK_BYTES`], to a block of a stream in output 0, which has room
/// for [`block_bytes_max`]. Words of the request: the level (0 to 9), 1 for the last block of the
/// stream, the number of the checksum wanted ([`CheckKind::ALL`]). Words of the reply: bytes put,
/// the input's checksum.
#[derive(Debug)]
pub struct Deflate;

/// An engine's compressor and its copies of a block.
#[derive(Default)]
pub struct DeflateState {
    deflater: Deflater,
    copies: Copies,
}

impl Served for Deflate {
    const NAME: &'static str = "deflate";
    type State = DeflateState;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let (input, output) = (memory.input(0)?, memory.output(0)?);
        let [level, is_last, check, ..] = request.words;
        if input.len() > BLOCK_BYTES || output.len() < block_bytes_max(input.len()) {
            let (raw, room) = (input.len(), output.len());
            return Err(KernelError::failed(format!(
                "deflate: {raw} bytes (at most {BLOCK_BYTES}) with room for {room}"
            )));
        }
        let check = check_kind(check)?;
        let level = u8::try_from(level).unwrap_or(u8::MAX);
        let DeflateState { deflater, copies } = cx.state;
        // Checked above, so a request cannot make the copies longer than a block.
        let (raw, out) = copies.get(input, block_bytes_max(input.len()));
        let made = deflater.block(raw, level, is_last != 0, out);
        let Some(bytes) = made else {
            return Err(KernelError::failed("deflate: no room"));
        };
        output.write_at(0, &out[..bytes]);
        Ok(reply(bytes, check.of(raw)))
    }
}

/// Inflates input 0, a whole stream, to output 0; neither is longer than `INFLATE_BYTES_MAX`.
/// Word 0 of the request is the stream's kind, by the number of its checksum ([`CheckKind::ALL`]:
/// raw, zlib, gzip). Words of the reply: bytes put, their checksum.
#[derive(Debug)]
pub struct Inflate;

/// The longest stream, deflated or raw, that an engine inflates in one request: it cannot be
/// interrupted.
pub(crate) const INFLATE_BYTES_MAX: usize = 1 << 20;

/// An engine's inflater and its copies of a stream.
#[derive(Default)]
pub struct InflateState {
    inflater: Decompressor,
    copies: Copies,
}

impl Served for Inflate {
    const NAME: &'static str = "inflate";
    type State = InflateState;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let (input, output) = (memory.input(0)?, memory.output(0)?);
        for (side, bytes) in [("stream", input.len()), ("output", output.len())] {
            if bytes > INFLATE_BYTES_MAX {
                return Err(KernelError::failed(format!(
                    "inflate: {side} of {bytes} bytes, at most {INFLATE_BYTES_MAX}"
                )));
            }
        }
        let kind = check_kind(request.words[0])?;
        let InflateState { inflater, copies } = cx.state;
        let (stream, out) = copies.get(input, output.len());
        let inflated = match kind {
            CheckKind::None => inflater.deflate_decompress(stream, out),
            CheckKind::Adler32 => inflater.zlib_decompress(stream, out),
            CheckKind::Crc32 => inflater.gzip_decompress(stream, out),
        };
        let bytes = inflated.map_err(|error| KernelError::failed(format!("inflate: {error}")))?;
        output.write_at(0, &out[..bytes]);
        Ok(reply(bytes, kind.of(&out[..bytes])))
    }
}

/// An input copied out of a client's memory, and room for its result.
#[derive(Default)]
struct Copies {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Copies {
    fn get(&mut self, input: SharedSlice<'_>, output_bytes: usize) -> (&[u8], &mut [u8]) {
        if self.input.len() < input.len() {
            self.input.resize(input.len(), 0);
        }
        if self.output.len() < output_bytes {
            self.output.resize(output_bytes, 0);
        }
        let copy = &mut self.input[..input.len()];
        input.read_at(0, copy);
        (copy, &mut self.output[..output_bytes])
    }
}

fn check_kind(number: u64) -> Result<CheckKind, KernelError> {
    let kind = usize::try_from(number).ok();
    let kind = kind.and_then(|number| CheckKind::ALL.get(number).copied());
    kind.ok_or_else(|| KernelError::failed(format!("no checksum {number}")))
}

fn reply(bytes: usize, check: u32) -> Reply {
    Reply {
        words: [bytes.to_u64(), check.into(), 0, 0, 0, 0],
    }
}
