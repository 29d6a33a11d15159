//! The kernel that runs on an engine: brings a frame's compressed bytes, checks them, inflates.
//!
//! The compressed bytes lie in the mapped image; the engine's `get` of them is a borrow after a
//! prefetch, and the output is written where it is wanted (a slot or the caller's buffer): the
//! local store then holds what the codec needs, its tables and state, and stays in the core's
//! second-level cache.
//!
//! Must stay true: nothing is delivered from a frame whose check has not passed. With a checksum of
//! the compressed bytes that is before inflating, so the wanted bytes may leave early; otherwise
//! only the whole frame will do.

use super::Device;
use super::stages::Stage;
use crate::codec::{CodecError, CodecId, Inflater, make_inflater};
use crate::format::{Frame, FrameCheck};
use crate::source::ReadError;
use sidecore_engine::{Core, Ctx, Kernel, KernelError};
use sidecore_sys::prefetch;
use std::os::unix::fs::FileExt;
use std::time::Instant;
// Chooses AVX2 at run time, which halves what the check costs.
use twox_hash::XxHash3_64;
use xxhash_rust::xxh64::xxh64;

/// What becomes of the rest of a frame once the wanted bytes are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Inflate it to its end.
    Finish,
    /// Leave it; what is there stays valid.
    Leave,
}

/// How many codecs there are.
const CODECS: usize = 7;

/// How much of the compressed bytes is fetched ahead; the processor follows the stream from there.
const PREFETCH_BYTES: usize = 4096;

/// What an engine keeps from frame to frame: the codecs' tables, made at first use, once.
#[derive(Default)]
pub struct InflateState {
    inflaters: [Option<Box<dyn Inflater>>; CODECS],
    /// Compressed bytes of a frame that had to be read past a damaged map.
    reread: Vec<u8>,
}

impl InflateState {
    fn inflater(&mut self, codec: CodecId) -> &mut dyn Inflater {
        self.inflaters[codec as usize]
            .get_or_insert_with(|| make_inflater(codec))
            .as_mut()
    }
}

/// Inflates one frame. See the module's head.
pub struct InflateFrame;

/// What [`InflateFrame`] works on.
pub struct InflateArgs<'j> {
    /// Where the image is.
    pub device: &'j Device,
    /// Which frame.
    pub index: u64,
    /// Where it goes; at least the frame's raw size.
    pub out: &'j mut [u8],
    /// How many of its bytes are waited for, at least 1.
    pub want: usize,
    /// When the caller was ready for an engine.
    pub claimed: Instant,
    /// Called once, with a prefix of the frame of at least `want` bytes.
    pub on_wanted: &'j mut dyn FnMut(&[u8]) -> After,
}

impl Kernel for InflateFrame {
    type Args<'j> = InflateArgs<'j>;
    /// Bytes of the frame that are valid, or why none is.
    type Out = Result<usize, ReadError>;
    type State = InflateState;

    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        args: InflateArgs<'j>,
    ) -> Result<Self::Out, KernelError> {
        Ok(inflate(cx.state, args))
    }
}

impl Device {
    /// Inflates a frame on this engine; see [`InflateArgs`]. Returns how many bytes of it are valid.
    pub(super) fn inflate(
        &self,
        core: &mut Core,
        index: u64,
        out: &mut [u8],
        want: usize,
        claimed: Instant,
        on_wanted: &mut dyn FnMut(&[u8]) -> After,
    ) -> Result<usize, ReadError> {
        let args = InflateArgs {
            device: self,
            index,
            out,
            want,
            claimed,
            on_wanted,
        };
        match core.run::<InflateFrame>(args) {
            Ok(result) => result,
            Err(error) => Err(ReadError::BadFrame {
                frame: index,
                reason: error.to_string(),
            }),
        }
    }
}

/// Where a frame's compressed bytes are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The mapped image, without a copy.
    Map,
    /// `pread`, once the map has met a page that could not be had: then each frame is told apart.
    File,
}

fn inflate(state: &mut InflateState, args: InflateArgs<'_>) -> Result<usize, ReadError> {
    let begun = Instant::now();
    let stages = args.device.stages();
    stages.record(Stage::HandOver, nanos_between(args.claimed, begun));
    let mut work = Work {
        args,
        begun,
        delivered: false,
    };
    let device = work.args.device;
    if !device.map.damaged() {
        let result = work.attempt(state, Source::Map);
        if !device.map.damaged() || work.delivered {
            return result;
        }
        // Somewhere in the image a page is gone; what we read may have been zeros in its place.
    }
    work.attempt(state, Source::File)
}

struct Work<'j> {
    args: InflateArgs<'j>,
    begun: Instant,
    delivered: bool,
}

impl Work<'_> {
    fn attempt(&mut self, state: &mut InflateState, source: Source) -> Result<usize, ReadError> {
        let (device, index) = (self.args.device, self.args.index);
        let frame = device.index.frame(index);
        let raw_bytes = frame.raw_bytes as usize;
        let mut reread = std::mem::take(&mut state.reread);
        let stored = device.get(&frame, source, &mut reread);
        let result = stored.and_then(|stored| {
            if let FrameCheck::Stored(expected) = frame.check
                && XxHash3_64::oneshot(stored) != expected
            {
                return Err(damaged(
                    index,
                    "its compressed bytes do not match their checksum",
                ));
            }
            let got = Instant::now();
            device
                .stages()
                .record(Stage::Get, nanos_between(self.begun, got));
            let early = matches!(frame.check, FrameCheck::Stored(_));
            let inflater = state.inflater(frame.codec);
            inflater.set_verified(early);
            let target = if early {
                self.args.want.clamp(1, raw_bytes)
            } else {
                raw_bytes
            };
            let out = &mut self.args.out[..raw_bytes];
            let valid = inflater
                .advance(stored, out, target)
                .map_err(|e| refused(index, &e))?;
            if let FrameCheck::Raw(expected) = frame.check
                && xxh64(out, 0) as u32 != expected
            {
                return Err(damaged(index, "its contents do not match their checksum"));
            }
            if source == Source::Map && device.map.damaged() {
                return Err(damaged(index, "the image lost pages while it was read"));
            }
            device
                .stages()
                .record(Stage::Inflate, nanos_between(got, Instant::now()));
            self.delivered = true;
            if (self.args.on_wanted)(&out[..valid]) == After::Finish && valid < raw_bytes {
                return inflater
                    .advance(stored, out, raw_bytes)
                    .map_err(|e| refused(index, &e));
            }
            Ok(valid)
        });
        state.reread = reread;
        result
    }
}

impl Device {
    /// Brings a frame's compressed bytes to this engine.
    fn get<'s>(
        &'s self,
        frame: &Frame,
        source: Source,
        reread: &'s mut Vec<u8>,
    ) -> Result<&'s [u8], ReadError> {
        let start = frame.offset as usize;
        let bytes = frame.stored_bytes as usize;
        match source {
            Source::Map => {
                self.count_resident(u64::from(frame.stored_bytes));
                let stored = self.map.bytes(start..start + bytes);
                let stored = stored.ok_or_else(|| ReadError::Io {
                    reason: format!("bytes {start} and {bytes} more lie past the image's end"),
                })?;
                prefetch::for_read(stored, PREFETCH_BYTES);
                Ok(stored)
            }
            Source::File => {
                reread.resize(bytes, 0);
                self.file
                    .read_exact_at(reread, frame.offset)
                    .map_err(|error| ReadError::Io {
                        reason: format!("{bytes} bytes at {}: {error}", frame.offset),
                    })?;
                Ok(reread)
            }
        }
    }
}

fn refused(frame: u64, error: &CodecError) -> ReadError {
    damaged(frame, &error.to_string())
}

fn damaged(frame: u64, reason: &str) -> ReadError {
    ReadError::BadFrame {
        frame,
        reason: reason.to_owned(),
    }
}

fn nanos_between(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_nanos() as u64
}
