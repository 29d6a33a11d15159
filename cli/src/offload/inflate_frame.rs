//! Decompression of one frame for another process: a kernel that `sidecore daemon` serves.
//!
//! Why here: only the program knows both the image codecs and the daemon. Programs that hold
//! compressed data, and no codec, use its engines.
//! Must stay true: the input is untrusted. It is copied into the local store, decompressed there by
//! a decompressor that takes any input, and put only when it is whole.
//! Called on engines, or on a client's own thread. Source: own.

use sidecore_block::codec::{CodecId, Inflater, make_inflater};
use sidecore_daemon::served::{Cx, Memory, Reply, Request, Served};
use sidecore_engine::KernelError;

/// Decompresses input 0, one whole frame, into output 0, whose length is the frame's raw length.
/// Word 0 of the request is the codec, as [`CodecId`] numbers them; word 0 of the reply is the
/// number of bytes put. Neither side may be longer than [`FRAME_BYTES_MAX`].
#[derive(Debug)]
pub(super) struct InflateFrame;

/// The longest frame, compressed or raw: both halves together fit an engine's store.
pub(super) const FRAME_BYTES_MAX: usize = 112 << 10;

/// An engine's decompressors, each made on first use.
#[derive(Default)]
pub(super) struct Inflaters([Option<Box<dyn Inflater>>; CodecId::ALL.len()]);

impl Served for InflateFrame {
    const NAME: &'static str = "inflate_frame";
    const LS: usize = 2 * FRAME_BYTES_MAX;
    type State = Inflaters;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let (input, output) = (memory.input(0)?, memory.output(0)?);
        let number = usize::try_from(request.words[0]).unwrap_or(usize::MAX);
        let Some(&codec) = CodecId::ALL.get(number) else {
            let codecs = CodecId::ALL.len();
            let text = format!("inflate_frame: no codec {number}; there are {codecs}");
            return Err(KernelError::failed(text));
        };
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
        let place = &mut cx.state.0[number];
        let inflater = place.get_or_insert_with(|| make_inflater(codec));
        inflater.set_verified(false);
        let inflated = inflater.inflate(&frame, &mut raw);
        inflated.map_err(|error| KernelError::failed(format!("inflate_frame: {error}")))?;
        let put = cx.mfc.put_large(raw, output)?.wait();
        Ok(Reply::word(put.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_block::codec::make_deflater;
    use sidecore_daemon::client::{Args, Client, ClientOptions};
    use sidecore_daemon::served::Registry;
    use sidecore_daemon::{Daemon, DaemonOptions};

    fn registry() -> Registry {
        Registry::builtin().with::<InflateFrame>().unwrap()
    }

    /// Frames of all codecs through `client`; then a damaged one.
    fn inflate_all(client: &Client) {
        let inflate = client.kernel(InflateFrame::NAME).unwrap();
        let raw: Vec<u8> = (0..64_u32 << 10)
            .map(|at| ((at * at) >> 12) as u8)
            .collect();
        for codec in CodecId::ALL {
            let mut frame = Vec::new();
            make_deflater(codec, None)
                .unwrap()
                .deflate(&raw, &mut frame)
                .unwrap();
            let mut input = client.buffer(frame.len());
            input.bytes_mut().copy_from_slice(&frame);
            let mut output = client.buffer(raw.len());
            let args = Args::new()
                .words(&[codec as u64])
                .input(&input)
                .output(&mut output);
            let reply = client.call(inflate, args).unwrap();
            assert_eq!(reply.words[0], raw.len() as u64, "{codec}");
            assert!(output.bytes() == raw, "{codec}");
        }
        let rubbish = client.buffer(100);
        let mut output = client.buffer(raw.len());
        let args = Args::new()
            .words(&[CodecId::Zlib as u64])
            .input(&rubbish)
            .output(&mut output);
        let error = client.call(inflate, args).unwrap_err().to_string();
        assert!(error.contains("inflate_frame"), "{error}");
        let args = Args::new().words(&[99]).input(&rubbish).output(&mut output);
        assert!(client.call(inflate, args).is_err());
    }

    #[test]
    fn frames_of_all_codecs_are_inflated_by_a_daemon_and_without_one() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("daemon.sock");
        let options = || ClientOptions {
            registry: registry(),
            ..ClientOptions::patient()
        };
        inflate_all(&Client::detached(&socket, options()));
        let daemon = Daemon::start(DaemonOptions {
            socket: socket.clone(),
            engines: 1,
            registry: registry(),
            ..DaemonOptions::default()
        })
        .unwrap();
        let client = Client::attach_with(&socket, options()).unwrap();
        inflate_all(&client);
        assert!(client.counters().on_engines > 0, "{:?}", client.counters());
        daemon.stop();
    }
}
