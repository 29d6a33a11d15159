//! Decompression of one frame by decoders of the program: the kernel `inflate_frame`.
//!
//! Why here: an image's codecs are in another product; a program that has both joins them
//! ([`FrameDecoders`]). Programs that hold compressed data, and no codec, use its engines.
//! Must stay true: the input is untrusted. It is copied into the local store, decompressed there by
//! a decoder that takes any input, and put only when it is whole.
//! Called on engines, or on a client's own thread. Source: own.

use sidecore_bare::width::ToU64;
use sidecore_daemon::served::{Cx, Memory, Reply, Request, Served};
use sidecore_engine::KernelError;
use std::marker::PhantomData;

/// An engine's decoders of whole frames, by the numbers of their codecs.
pub trait FrameDecoders: Default + Send + 'static {
    /// Number of the codecs.
    const CODECS: usize;

    /// Decompresses a frame of a codec, whose number is below [`Self::CODECS`], to exactly the
    /// bytes of `raw`. Must take any input.
    ///
    /// # Errors
    /// The fault of the frame.
    fn decode(&mut self, codec: usize, frame: &[u8], raw: &mut [u8]) -> Result<(), String>;
}

/// Decompresses input 0, one whole frame, into output 0, whose length is the frame's raw length.
/// Word 0 of the request is the codec's number; word 0 of the reply is the number of bytes put.
/// Neither side may be longer than 112 KiB.
#[derive(Debug)]
pub struct InflateFrame<D>(PhantomData<D>);

/// The longest frame, compressed or raw: both halves together fit an engine's store.
const FRAME_BYTES_MAX: usize = 112 << 10;

impl<D: FrameDecoders> Served for InflateFrame<D> {
    const NAME: &'static str = "inflate_frame";
    const LS: usize = 2 * FRAME_BYTES_MAX;
    type State = D;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let (input, output) = (memory.input(0)?, memory.output(0)?);
        let codec = usize::try_from(request.words[0]).unwrap_or(usize::MAX);
        if codec >= D::CODECS {
            let text = format!("inflate_frame: no codec {codec}; there are {}", D::CODECS);
            return Err(KernelError::failed(text));
        }
        for (side, bytes) in [("frame", input.len()), ("output", output.len())] {
            if bytes == 0 || bytes > FRAME_BYTES_MAX {
                return Err(KernelError::failed(format!(
                    "inflate_frame: {side} of {bytes} bytes, not 1 to {FRAME_BYTES_MAX}"
                )));
            }
        }
        let frame = cx
            .mfc
            .get_large(cx.store.alloc::<u8>(input.len())?, input)?;
        let frame = frame.wait();
        let mut raw = cx.store.alloc::<u8>(output.len())?;
        let decoded = cx.state.decode(codec, &frame, &mut raw);
        decoded.map_err(|error| KernelError::failed(format!("inflate_frame: {error}")))?;
        let put = cx.mfc.put_large(raw, output)?.wait();
        Ok(Reply::word(put.len().to_u64()))
    }
}
