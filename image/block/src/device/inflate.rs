//! The kernel that runs on an engine: gets a frame's compressed bytes, checks and decompresses
//! them.
//!
//! The output is written where it is wanted (a slot or the caller's buffer). So the local store
//! holds only the codec's tables and state, and stays in the core's second-level cache.
//!
//! **Where the compressed bytes come from.** An image that fits its share of the memory is mapped,
//! and stays mapped: the engine's `get` is then a borrow after a prefetch. A larger one is read
//! with `pread` into a buffer of the engine's. Mapping it would mean unmapping pages all the time.
//! Measured on random reads of a 380 MB image: a copy of 25 KB took 6 us, the page faults for them
//! 9 us, and unmapping 4 to 6 us a frame. One read in hundreds paid for all the unmapping, 2 ms at
//! a time.
//!
//! Must stay true: nothing is delivered from a frame whose check has not passed. With a checksum of
//! the compressed bytes the wanted bytes are delivered as soon as they are decompressed; without
//! one the whole frame has to be decompressed and checked first.

use super::Device;
use super::stages::{Stage, nanos};
use crate::codec::{CodecError, CodecId, Inflater, make_inflater};
use crate::format::{Frame, FrameCheck, ReadAt};
use crate::source::ReadError;
use crate::tracks;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_engine::{Core, Ctx, Kernel, KernelError};
use sidecore_sys::{FileMap, prefetch};
use sidecore_trace as trace;
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Instant;
// Chooses AVX2 at run time, which halves the cost of the check.
use twox_hash::XxHash3_64;
use xxhash_rust::xxh64::xxh64;

/// Choice for the rest of a frame once the wanted bytes are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Decompress it to its end.
    Finish,
    /// Stop; the valid bytes stay valid.
    Leave,
}

/// Number of codecs.
const CODECS: usize = 7;

/// Compressed bytes that are prefetched; the processor follows the stream from there.
const PREFETCH_BYTES: usize = 4096;

/// State of an engine from frame to frame: the codecs' tables, made at first use, once.
#[derive(Default)]
pub(crate) struct InflateState {
    inflaters: [Option<Box<dyn Inflater>>; CODECS],
    /// Compressed bytes of a frame that were read from the file; as long as the longest so far.
    stored: Vec<u8>,
    /// The compressed bytes of an encrypted frame, decrypted.
    opened: Vec<u8>,
    /// One decompressed frame that has no place in the cache; see [`Out::Spare`].
    spare: Vec<u8>,
}

impl InflateState {
    fn inflater(&mut self, codec: CodecId) -> &mut dyn Inflater {
        self.inflaters[codec as usize]
            .get_or_insert_with(|| make_inflater(codec))
            .as_mut()
    }
}

/// Decompresses one frame. See the module's head.
pub(crate) struct InflateFrame;

/// Destination of a decompressed frame.
#[derive(Debug)]
pub(crate) enum Out<'j> {
    /// Memory of the caller's: at least the frame's raw size.
    Here(&'j mut [u8]),
    /// The engine's spare frame, for readers that found no slot; seen only by `on_wanted`.
    Spare,
}

/// Arguments of [`InflateFrame`].
pub(crate) struct InflateArgs<'j> {
    /// The device that has the image.
    pub device: &'j Device,
    /// Which frame.
    pub index: u64,
    /// Its compressed bytes, if they were fetched before.
    pub stored: Option<&'j [u8]>,
    /// Destination of the decompressed bytes.
    pub out: Out<'j>,
    /// Length in bytes of the prefix waited for, at least 1.
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
    /// Decompresses a frame on this engine, from the fetched bytes if there are any; see
    /// [`InflateArgs`]. Returns how many bytes of it are valid.
    pub(super) fn inflate(
        &self,
        core: &mut Core,
        frame: (u64, Option<&[u8]>),
        out: Out<'_>,
        want: usize,
        claimed: Instant,
        on_wanted: &mut dyn FnMut(&[u8]) -> After,
    ) -> Result<usize, ReadError> {
        let (index, stored) = frame;
        let args = InflateArgs {
            device: self,
            index,
            stored,
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

/// Source of a frame's compressed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The mapped image, without a copy.
    Map,
    /// `pread`: where there is no map, or after the map met a page that could not be read (errors
    /// are then known for each frame).
    File,
}

fn inflate(state: &mut InflateState, args: InflateArgs<'_>) -> Result<usize, ReadError> {
    let begun = Instant::now();
    let stages = args.device.stages();
    stages.record(Stage::HandOver, nanos_between(args.claimed, begun));
    let device = args.device;
    // Taken out of the state, which is borrowed again for the codec's tables, and put back.
    let mut spare = std::mem::take(&mut state.spare);
    let out = match args.out {
        Out::Here(out) => out,
        Out::Spare => {
            // Grows at an engine's first use of it only: most never meet a full cache.
            spare.resize(device.index.frame_bytes().to_usize(), 0);
            &mut spare
        }
    };
    let mut work = Work {
        device,
        index: args.index,
        stored: args.stored,
        out,
        want: args.want,
        on_wanted: args.on_wanted,
        begun,
        delivered: false,
    };
    let result = work.run(state);
    state.spare = spare;
    result
}

struct Work<'j> {
    device: &'j Device,
    index: u64,
    stored: Option<&'j [u8]>,
    out: &'j mut [u8],
    want: usize,
    on_wanted: &'j mut dyn FnMut(&[u8]) -> After,
    begun: Instant,
    delivered: bool,
}

impl Work<'_> {
    fn run(&mut self, state: &mut InflateState) -> Result<usize, ReadError> {
        if let Some(map) = self.device.map.as_ref().filter(|map| !map.damaged()) {
            let result = self.attempt(state, Source::Map);
            // Delivered bytes had passed their check; they cannot be delivered twice.
            if !map.damaged() || self.delivered {
                return result;
            }
            // Somewhere in the image a page is gone; what we read may have been zeros in its place.
        }
        self.attempt(state, Source::File)
    }

    fn attempt(&mut self, state: &mut InflateState, source: Source) -> Result<usize, ReadError> {
        let (device, index) = (self.device, self.index);
        let frame = device.index.frame(index);
        let stored_bytes = u64::from(frame.stored_bytes);
        let mut span = trace::span(&tracks::DECOMPRESS, index, stored_bytes);
        trace::flow_to(&tracks::FRAME, index);
        let plain = frame.codec == CodecId::Store && frame.stored_bytes == frame.raw_bytes;
        // Nothing to check and nothing to decompress: a copy through `stored` would be wasted.
        if plain && frame.check == FrameCheck::None && source == Source::File {
            let result = self.read_plain(&frame);
            span.set_result(valid_bytes(&result));
            return result;
        }
        let mut buffer = std::mem::take(&mut state.stored);
        let mut opened = std::mem::take(&mut state.opened);
        let begun = trace::begin();
        let stored = match self.stored {
            // The index is checked to be this image's; the remote source's bytes are not.
            Some(stored) if stored.len() != frame.stored_bytes.to_usize() => {
                Err(damaged(index, "another number of bytes was fetched"))
            }
            Some(stored) => Ok(stored),
            None => device.get(&frame, source, &mut buffer),
        };
        trace::span_since(begun, &tracks::GET, stored_bytes);
        let begun = trace::begin();
        let checked = match stored {
            Ok(stored) => device.checked(index, &frame, stored, &mut opened),
            Err(error) => Err(error),
        };
        trace::span_since(begun, &tracks::CHECK, stored_bytes);
        let result = checked.and_then(|stored| {
            let inflater = state.inflater(frame.codec);
            self.decompress(inflater, &frame, stored, source)
        });
        state.stored = buffer;
        state.opened = opened;
        span.set_result(valid_bytes(&result));
        result
    }

    /// Decompresses checked bytes; delivers the wanted ones as soon as the frame's check allows.
    fn decompress(
        &mut self,
        inflater: &mut dyn Inflater,
        frame: &Frame,
        stored: &[u8],
        source: Source,
    ) -> Result<usize, ReadError> {
        let (device, index) = (self.device, self.index);
        let raw_bytes = frame.raw_bytes.to_usize();
        let got = Instant::now();
        let stages = device.stages();
        stages.record(Stage::Get, nanos_between(self.begun, got));
        // A checksum of the decompressed bytes needs all of them, so the whole frame first.
        let early = matches!(frame.check, FrameCheck::Stored(_) | FrameCheck::Sealed(..));
        // The codec need not check again what this check covers.
        inflater.set_verified(early);
        let target = match early {
            true => self.want.clamp(1, raw_bytes),
            false => raw_bytes,
        };
        let out = &mut self.out[..raw_bytes];
        let valid = inflater
            .advance(stored, out, target)
            .map_err(|e| refused(index, &e))?;
        if let FrameCheck::Raw(expected) = frame.check
            && xxh64(out, 0) as u32 != expected
        {
            return Err(damaged(index, "its contents do not match their checksum"));
        }
        // Checked after the last access and before any delivery: lost pages read as zeros, and
        // zeros may even be valid compressed data.
        let map = device.map.as_ref().filter(|_| source == Source::Map);
        if map.is_some_and(FileMap::damaged) {
            return Err(damaged(index, "the image lost pages while it was read"));
        }
        stages.record(Stage::Inflate, nanos_between(got, Instant::now()));
        self.delivered = true;
        let deliver = trace::span(&tracks::DELIVER, valid.to_u64(), 0);
        let after = (self.on_wanted)(&out[..valid]);
        drop(deliver);
        // The codec's state is kept: finishing costs only the rest.
        if after == After::Finish && valid < raw_bytes {
            return inflater
                .advance(stored, out, raw_bytes)
                .map_err(|e| refused(index, &e));
        }
        Ok(valid)
    }

    /// Copies a frame that is not compressed and has no check from the file to its destination.
    fn read_plain(&mut self, frame: &Frame) -> Result<usize, ReadError> {
        let out = &mut self.out[..frame.raw_bytes.to_usize()];
        match self.stored {
            Some(stored) if stored.len() == out.len() => out.copy_from_slice(stored),
            Some(_) => return Err(damaged(self.index, "another number of bytes was fetched")),
            None => self.device.read_image(out, frame.offset)?,
        }
        let stages = self.device.stages();
        stages.record(Stage::Get, nanos_between(self.begun, Instant::now()));
        self.delivered = true;
        (self.on_wanted)(out);
        Ok(out.len())
    }
}

impl Device {
    /// Checks a frame's compressed bytes as far as that is possible, and decrypts them into
    /// `opened` where there is a key.
    fn checked<'s>(
        &self,
        index: u64,
        frame: &Frame,
        stored: &'s [u8],
        opened: &'s mut Vec<u8>,
    ) -> Result<&'s [u8], ReadError> {
        // Authentication covers the frame where there is a key; the checksum is for readers
        // without a key.
        let key = self.index.key();
        if let FrameCheck::Stored(expected) = frame.check
            && key.is_none()
            && XxHash3_64::oneshot(stored) != expected
        {
            return Err(damaged(
                index,
                "its compressed bytes do not match their checksum",
            ));
        }
        if let FrameCheck::Sealed(_, leaf) = frame.check
            && !leaf.is_of(frame.raw_bytes, stored)
        {
            return Err(damaged(
                index,
                "its compressed bytes are not those that the image's trusted root is of",
            ));
        }
        let Some(key) = key else { return Ok(stored) };
        key.decrypt(index, frame.raw_bytes, stored, opened)
            .map_err(|_| damaged(index, "its bytes are not those that were encrypted"))
    }

    /// Gets a frame's compressed bytes from the map or the file.
    fn get<'s>(
        &'s self,
        frame: &Frame,
        source: Source,
        buffer: &'s mut Vec<u8>,
    ) -> Result<&'s [u8], ReadError> {
        let bytes = frame.stored_bytes.to_usize();
        if let Some(map) = self.map.as_ref().filter(|_| source == Source::Map) {
            let start = frame.offset.to_usize();
            let stored = map.bytes(start..start + bytes);
            let stored = stored.ok_or_else(|| ReadError::Io {
                reason: format!("bytes {start} and {bytes} more lie past the image's end"),
            })?;
            // The checksum reads the lines first and would miss the cache on each.
            prefetch::for_read(stored, PREFETCH_BYTES);
            return Ok(stored);
        }
        if buffer.len() < bytes {
            // Resized to the longest frame at once, so that an image's frame sizes cannot make it
            // grow frame by frame.
            buffer.resize(self.index.stored_bytes_max().to_usize(), 0);
        }
        let stored = &mut buffer[..bytes];
        self.read_image(stored, frame.offset)?;
        Ok(stored)
    }

    fn read_image(&self, bytes: &mut [u8], offset: u64) -> Result<(), ReadError> {
        let read = self.image.read_exact_at(bytes, offset);
        read.map_err(|error| ReadError::Io {
            reason: format!("{} bytes at {offset}: {error}", bytes.len()),
        })
    }

    /// Asks the kernel to start reading bytes of the image from disk. Returns at once.
    pub(super) fn advise_willneed(&self, range: Range<u64>) {
        use rustix::fs::{Advice, fadvise};
        let len = NonZeroU64::new(range.end.saturating_sub(range.start));
        if let Some(file) = self.image.file() {
            // A hint: if it fails, the read itself does the work.
            let _ = fadvise(file, range.start, len, Advice::WillNeed);
        }
    }
}

/// Bytes of a frame that are valid, for a record.
fn valid_bytes(result: &Result<usize, ReadError>) -> u64 {
    result.as_ref().map_or(0, |valid| valid.to_u64())
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
    nanos(to.saturating_duration_since(from))
}
