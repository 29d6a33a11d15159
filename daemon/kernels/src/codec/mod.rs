//! Codecs: DEFLATE (raw, zlib, gzip), Zstandard and LZ4.
//!
//! A request without a table takes input 0 as one item and puts the result to output 0; word 0 of
//! the reply is the bytes put, and an item that is not done is an error. With word 0 = N, input 1
//! has N rows of four words: offset and length in input 0, offset and room in output 0. Output 1
//! gets N results of two words: bytes put, and an [`ItemStatus`]. Word 0 of the reply is N, word 1
//! the number of items that were not done. Word 1 of the request is the format ([`Format`]), word 2
//! the level; 0 is each codec's usual one.
//!
//! Must stay true: the output of an item never exceeds its room, whatever size it claims. An item
//! has at most [`ITEM_BYTES_MAX`] bytes and fills as many, compressed ones a few more; a request's
//! have [`crate::REQUEST_BYTES_MAX`] together. Codecs that work in blocks check between them
//! whether to go on; DEFLATE compresses at most 128 KiB in one go.

mod deflate;
mod frame;
mod lz4;
mod zstd;

pub(crate) use deflate::{DeflateCompress, DeflateDecompress};
pub use frame::{FrameDecoders, InflateFrame};
pub(crate) use lz4::{Lz4Compress, Lz4Decompress};
pub(crate) use zstd::{ZstdCompress, ZstdDecompress};

use crate::table::{
    self, Budget, ITEM_BYTES_MAX, ItemStatus, REQUEST_BYTES_MAX, Stop, Table, go_on,
};
use sidecore_bare::width::ToU64;
use sidecore_daemon::served::{Cx, Memory, Reply, Request, Served};
use sidecore_engine::KernelError;
use sidecore_sys::SharedSlice;
use std::marker::PhantomData;

/// The format of items: word 1 of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Format {
    /// Each codec's own: an LZ4 or Zstandard frame, a raw DEFLATE stream.
    Plain = 0,
    /// A zlib stream (RFC 1950).
    Zlib = 1,
    /// A gzip member (RFC 1952).
    Gzip = 2,
    /// An LZ4 block without a frame.
    Block = 3,
}

impl Format {
    fn from_number(name: &str, number: u64) -> Result<Self, KernelError> {
        let all = [Self::Plain, Self::Zlib, Self::Gzip, Self::Block];
        let found = all.into_iter().find(|format| *format as u64 == number);
        found.ok_or_else(|| KernelError::failed(format!("{name}: no format {number}")))
    }
}

/// Arguments of a request that hold for all its items.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) format: Format,
    pub(crate) level: u64,
}

/// One direction of a codec.
pub(crate) trait Codec: Default + Send + 'static {
    /// Name of the kernel.
    const NAME: &'static str;
    /// The longest item.
    const ITEM_BYTES_MAX: usize = ITEM_BYTES_MAX;

    /// Bytes of memory for the result of an item of `bytes`, whose room is `room`: the codec's
    /// need, perhaps more than the room.
    fn scratch_bytes(_bytes: usize, room: usize) -> usize {
        room
    }
}

/// The work of a codec, apart from its name: private, as its errors are.
pub(crate) trait Work: Codec {
    /// Makes the result of an item at the beginning of `out` and returns its length. `asked` is
    /// asked between pieces.
    fn work(
        &mut self,
        settings: Settings,
        item: &[u8],
        out: &mut [u8],
        asked: &dyn Fn() -> Result<(), KernelError>,
    ) -> Result<usize, Stop>;
}

/// The kernel of a codec.
#[derive(Debug)]
pub(crate) struct Coded<C>(PhantomData<C>);

/// A codec's own state on an engine, and its copies of an item.
#[derive(Debug, Default)]
pub(crate) struct CodedState<C> {
    codec: C,
    item: Vec<u8>,
    out: Vec<u8>,
}

impl<C: Work> Served for Coded<C> {
    const NAME: &'static str = C::NAME;
    const LS: usize = table::store_bytes(ROW_WORDS, RESULT_BYTES);
    type State = CodedState<C>;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let (data, output) = (memory.input(0)?, memory.output(0)?);
        let [count, format, level, ..] = request.words;
        let settings = Settings {
            format: Format::from_number(C::NAME, format)?,
            level,
        };
        let state = &mut *cx.state;
        if count == 0 {
            return match state.item(settings, data, output, memory) {
                Ok(bytes) => Ok(Reply::word(bytes.to_u64())),
                Err(Stop::Request(error)) => Err(error),
                Err(Stop::Item(status)) => Err(refused(C::NAME, status, data.len(), output.len())),
            };
        }
        let results = (memory.output(1)?, RESULT_BYTES);
        let table = Table::new(C::NAME, count, (memory.input(1)?, 0, ROW_WORDS), results)?;
        let mut budget = Budget::new(C::NAME, REQUEST_BYTES_MAX);
        let mut failures = 0;
        table.each::<ROW_WORDS, RESULT_BYTES>(cx.store, cx.mfc, |row, result| {
            let &[offset, bytes, to, room] = row;
            let item = table::part(data, offset, bytes);
            let done = match item.zip(table::part(output, to, room)) {
                Some((item, target)) => {
                    budget.take_item(item.len() + target.len().min(ITEM_BYTES_MAX))?;
                    state.item(settings, item, target, memory)
                }
                // A wrong row costs its own item only.
                None => Err(Stop::Item(ItemStatus::BadRow)),
            };
            *result = table::settled(done, &mut failures)?;
            Ok(())
        })?;
        let mut reply = Reply::word(count);
        reply.words[1] = failures;
        Ok(reply)
    }
}

impl<C> CodedState<C> {
    /// Does one item; the bytes that were put.
    fn item(
        &mut self,
        settings: Settings,
        item: SharedSlice<'_>,
        target: SharedSlice<'_>,
        memory: &Memory<'_>,
    ) -> Result<usize, Stop>
    where
        C: Work,
    {
        go_on(memory)?;
        // Some codecs cannot be interrupted within an item.
        if item.len() > C::ITEM_BYTES_MAX {
            return Err(Stop::Item(ItemStatus::BadRow));
        }
        // The room that a row claims must not decide on the engine's memory.
        let room = target.len().min(ITEM_BYTES_MAX + EXPANSION_MAX);
        let scratch = C::scratch_bytes(item.len(), room);
        grow(&mut self.item, item.len());
        grow(&mut self.out, scratch);
        let copy = &mut self.item[..item.len()];
        // Once: the client may change the item while the codec reads it.
        item.read_at(0, copy);
        let out = &mut self.out[..scratch];
        let bytes = self.codec.work(settings, copy, out, &|| go_on(memory))?;
        // The scratch may be larger than the room.
        if bytes > room {
            return Err(Stop::Item(ItemStatus::NoRoom));
        }
        target.write_at(0, &self.out[..bytes]);
        Ok(bytes)
    }
}

/// The error of a request of one item that was not done.
fn refused(name: &str, status: ItemStatus, bytes: usize, room: usize) -> KernelError {
    let text = match status {
        // A client sees the first 64 bytes.
        ItemStatus::Damaged => format!("{name}: damaged"),
        ItemStatus::NoRoom => format!("{name}: over {room} bytes"),
        ItemStatus::BadRow | ItemStatus::Done => format!("{name}: {bytes} bytes long"),
    };
    KernelError::failed(text)
}

fn grow(memory: &mut Vec<u8>, bytes: usize) {
    // Never smaller again: items of an engine are of similar sizes, and zeroing costs.
    if memory.len() < bytes {
        memory.resize(bytes, 0);
    }
}

/// Words of a row: offset, length, offset of the output, room there.
const ROW_WORDS: usize = 4;
/// Bytes of a result: bytes put, status.
const RESULT_BYTES: usize = 16;
/// Bytes by which incompressible data may grow, for the longest item.
const EXPANSION_MAX: usize = 64 << 10;
