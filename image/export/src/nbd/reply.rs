//! Serves one request: reads the device and composes the reply, independent of sockets.
//!
//! Why here: replies have rules of their own (how they may be split, where an error goes), and the
//! fuzzer drives the same code as clients do, with a [`Sink`] in memory.
//! Must stay true: bytes of the device leave only from inside `deliver`, that is, only after their
//! check. One request gets exactly one reply, whose last chunk carries `DONE`, or the connection
//! ends.
//! Any number of threads may call it at once, each with its own sink.
//! Source: the NBD protocol document, "Structured reply types", "Request types".

use super::handshake::{ALLOCATION_CONTEXT_ID, BITMAP_CONTEXT_ID, Contexts};
use super::session::{Command, Refusal};
use super::wire::{self, chunk, errno, state};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_format::source::{BlockSource, ReadError, WriteError};

/// Destination of replies.
pub trait Sink {
    /// Takes `head` and then `pieces`. With `more` the message is not complete: nothing else may
    /// come in between until a call without it. The slices may be used only during the call. Must
    /// return soon: a slow client's bytes are set aside.
    ///
    /// # Errors
    /// [`Disconnected`] when the client cannot be reached any more.
    fn send(&mut self, head: &[u8], pieces: &[&[u8]], more: bool) -> Result<(), Disconnected>;

    /// Called outside `deliver`: sends the bytes that [`Self::send`] has set aside; may block for
    /// the client's time limit.
    ///
    /// # Errors
    /// [`Disconnected`] when the client cannot be reached any more.
    fn flush(&mut self) -> Result<(), Disconnected>;
}

/// The connection is unusable and must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disconnected {
    /// The client left, or took no bytes for too long.
    Client,
    /// Half a simple reply was sent when the device failed; the protocol can report that only by
    /// closing the connection.
    HalfReply,
}

/// Serves `command` from `source`.
///
/// # Errors
/// [`Disconnected`]: the connection must be closed; replies in progress on other threads may end
/// first.
pub fn reply(
    source: &dyn BlockSource,
    structured: bool,
    command: &Command,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    match *command {
        Command::Read { cookie, len: 0, .. } => done(structured, cookie, sink)?,
        Command::Read {
            cookie,
            offset,
            len,
            whole,
        } => {
            let range = Range { offset, len };
            if structured {
                read_in_chunks(source, cookie, range, whole, sink)?;
            } else {
                read_simple(source, cookie, range, sink)?;
            }
        }
        Command::Status {
            cookie,
            offset,
            len,
            one,
            contexts,
        } => status(source, cookie, Range { offset, len }, one, contexts, sink)?,
        Command::Cache {
            cookie,
            offset,
            len,
        } => cache(source, structured, cookie, Range { offset, len }, sink)?,
        Command::Write { cookie, .. } => {
            // The function that receives the payload writes it, and replies by `reply_change`.
            refuse(structured, cookie, errno::EINVAL, "no payload", sink)?;
        }
        Command::Zero { cookie, .. } | Command::Trim { cookie, .. } | Command::Flush { cookie } => {
            let outcome = change(source, command);
            reply_change(structured, cookie, outcome, sink)?;
        }
        Command::Refuse(Refusal { cookie, error, why }) => {
            refuse(structured, cookie, error, why, sink)?;
        }
    }
    sink.flush()
}

/// Makes a change that has no payload.
fn change(source: &dyn BlockSource, command: &Command) -> Result<(), WriteError> {
    let Some(writes) = source.writes() else {
        return Err(WriteError::Io {
            reason: "the device takes no writes".to_owned(),
        });
    };
    let durable = match *command {
        Command::Zero {
            offset,
            len,
            no_hole,
            durable,
            ..
        } => {
            match no_hole {
                false => writes.write_zeroes(offset, u64::from(len))?,
                true => {
                    let end = offset + u64::from(len);
                    // NO_HOLE asks for allocated zeros: written like data.
                    for at in (offset..end).step_by(ZEROS.len()) {
                        let part = (end - at).min(ZEROS.len().to_u64()).to_usize();
                        writes.write(at, &ZEROS[..part])?;
                    }
                }
            }
            durable
        }
        Command::Trim {
            offset,
            len,
            durable,
            ..
        } => {
            writes.discard(offset, u64::from(len))?;
            durable
        }
        _ => true,
    };
    match durable {
        true => writes.flush(),
        false => Ok(()),
    }
}

/// Answers a request that changed the device, or should have.
///
/// # Errors
/// As [`reply`].
pub fn reply_change(
    structured: bool,
    cookie: u64,
    outcome: Result<(), WriteError>,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    match outcome {
        Ok(()) => done(structured, cookie, sink)?,
        Err(error) => {
            let number = error.errno().unsigned_abs();
            refuse(structured, cookie, number, &error.to_string(), sink)?;
        }
    }
    sink.flush()
}

/// A range of the device, checked against its size.
#[derive(Clone, Copy)]
struct Range {
    offset: u64,
    len: u32,
}

impl Range {
    fn end(self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// The first part of the range from `offset`: at most `part_bytes` long and ending on a
    /// multiple of `align` where that leaves any bytes.
    fn part(self, offset: u64, part_bytes: usize, align: u32) -> Self {
        let most = (self.end() - offset).min(part_bytes.to_u64());
        let end = offset + most;
        // Parts that end between frames would decompress the frame at each boundary twice.
        let aligned = end - end % u64::from(align);
        let end = if end < self.end() && aligned > offset {
            aligned
        } else {
            end
        };
        Self::between(offset, end)
    }

    /// Bytes from `offset` to the end of its frame.
    fn in_frame(self, offset: u64, frame_bytes: u32) -> Self {
        let frame_bytes = u64::from(frame_bytes);
        let end = (offset - offset % frame_bytes)
            .saturating_add(frame_bytes)
            .min(self.end());
        Self::between(offset, end)
    }

    /// A part of a range, which is no longer than the range's own 32 bits.
    fn between(offset: u64, end: u64) -> Self {
        Self {
            offset,
            len: (end - offset) as u32,
        }
    }
}

fn read_in_chunks(
    source: &dyn BlockSource,
    cookie: u64,
    range: Range,
    whole: bool,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let frame_bytes = source.preferred_bytes();
    let part_bytes = source.read_with_max_bytes().min(CHUNK_DATA_BYTES_MAX);
    // The session has refused a whole read that does not fit one chunk.
    let part_bytes = if whole {
        range.len.to_usize()
    } else {
        part_bytes
    };
    let mut offset = range.offset;
    while offset < range.end() {
        let part = range.part(offset, part_bytes, frame_bytes);
        offset = part.end();
        let last = offset == range.end();
        let Err(error) = read_chunk(source, cookie, part, last, sink)? else {
            continue;
        };
        // "an error chunk of type NBD_REPLY_TYPE_ERROR_OFFSET gives fine-grained information": the
        // part is read again frame by frame, so that only what is damaged is missing. An
        // unfragmented read has no second content chunk.
        let mut at = part.offset;
        if whole || part.in_frame(at, frame_bytes).len == part.len {
            error_at(cookie, part.offset, &error, last, sink)?;
            continue;
        }
        while at < part.end() {
            let frame = part.in_frame(at, frame_bytes);
            at = frame.end();
            let last = at == range.end();
            if let Err(error) = read_chunk(source, cookie, frame, last, sink)? {
                error_at(cookie, frame.offset, &error, last, sink)?;
            }
        }
    }
    Ok(())
}

/// Sends one content chunk, or returns the device's error with nothing sent.
fn read_chunk(
    source: &dyn BlockSource,
    cookie: u64,
    part: Range,
    last: bool,
    sink: &mut dyn Sink,
) -> Result<Result<(), ReadError>, Disconnected> {
    // DONE on a content chunk "MUST NOT [be set] if it would still be possible to detect an error
    // while transmitting the chunk": all bytes are there before the first is sent.
    let flags = if last { chunk::DONE } else { 0 };
    let head = wire::data_chunk(cookie, flags, part.offset, part.len);
    deliver(source, part, &head, false, sink)
}

/// Reads `part` and sends it behind `head`.
fn deliver(
    source: &dyn BlockSource,
    part: Range,
    head: &[u8],
    more: bool,
    sink: &mut dyn Sink,
) -> Result<Result<(), ReadError>, Disconnected> {
    // Stays only if the device breaks its promise to deliver exactly once.
    let mut outcome = Ok(Err(ReadError::Io {
        reason: "the device gave no answer".to_owned(),
    }));
    source.read_with(part.offset, part.len.to_usize(), &mut |result| {
        outcome = match result {
            Ok(pieces) => sink.send(head, pieces, more).map(Ok),
            Err(error) => Ok(Err(error.clone())),
        };
    });
    sink.flush()?;
    outcome
}

fn read_simple(
    source: &dyn BlockSource,
    cookie: u64,
    range: Range,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let part_bytes = source.read_with_max_bytes().min(CHUNK_DATA_BYTES_MAX);
    let frame_bytes = source.preferred_bytes();
    let head = wire::simple_reply(cookie, 0);
    let mut offset = range.offset;
    while offset < range.end() {
        let part = range.part(offset, part_bytes, frame_bytes);
        let first = offset == range.offset;
        offset = part.end();
        let more = offset < range.end();
        let head = if first { &head[..] } else { &[] };
        match deliver(source, part, head, more, sink)? {
            Ok(()) => {}
            Err(error) if first => {
                return refuse(false, cookie, error_number(&error), "", sink);
            }
            // "If an error occurs while reading after the server has already sent out the reply
            // header with an error field set to zero, the server MUST immediately initiate a hard
            // disconnect".
            Err(_) => return Err(Disconnected::HalfReply),
        }
    }
    Ok(())
}

fn cache(
    source: &dyn BlockSource,
    structured: bool,
    cookie: u64,
    range: Range,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let part_bytes = source.read_with_max_bytes();
    let mut offset = range.offset;
    while offset < range.end() {
        let part = range.part(offset, part_bytes, source.preferred_bytes());
        let mut failed = None;
        source.read_with(part.offset, part.len.to_usize(), &mut |result| {
            failed = result.err().cloned();
        });
        if let Some(error) = failed {
            let why = error.to_string();
            return refuse(structured, cookie, error_number(&error), &why, sink);
        }
        offset = part.end();
    }
    done(structured, cookie, sink)
}

/// Sends the extents of each selected context, a chunk each.
fn status(
    source: &dyn BlockSource,
    cookie: u64,
    range: Range,
    one: bool,
    contexts: Contexts,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    if contexts.allocation {
        let flags = if contexts.bitmap { 0 } else { chunk::DONE };
        let allocation = |offset| {
            let (end, zero) = sector_extent(source, offset);
            // A range of zeros is not stored at all.
            (end, if zero { state::HOLE | state::ZERO } else { 0 })
        };
        let head = (cookie, flags, ALLOCATION_CONTEXT_ID);
        extents(head, range, one, &allocation, sink)?;
    }
    if contexts.bitmap {
        let size_bytes = source.size_bytes();
        let written = |offset: u64| match source.written(offset) {
            Some(written) => {
                let end = offset.saturating_add(written.len.max(1)).min(size_bytes);
                (end, if written.since { state::DIRTY } else { 0 })
            }
            // A device without a checkpoint: all counts as written since.
            None => (size_bytes, state::DIRTY),
        };
        let head = (cookie, chunk::DONE, BITMAP_CONTEXT_ID);
        extents(head, range, one, &written, sink)?;
    }
    Ok(())
}

/// Sends the extents of a context, whose end and flags `look_up` gives: cookie, flags of the chunk
/// and the context's number are in `head`.
fn extents(
    (cookie, flags, context): (u64, u16, u32),
    range: Range,
    one: bool,
    look_up: &dyn Fn(u64) -> (u64, u32),
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let mut payload = [0_u8; 4 + 8 * EXTENTS_MAX];
    payload[..4].copy_from_slice(&context.to_be_bytes());
    let extents_max = if one { 1 } else { EXTENTS_MAX };
    let mut count = 0;
    let mut offset = range.offset;
    let mut open: Option<(u64, u32)> = None;
    let mut close = |from: u64, end: u64, state: u32| {
        let at = 4 + 8 * count;
        payload[at..at + 4].copy_from_slice(&((end - from) as u32).to_be_bytes());
        payload[at + 4..at + 8].copy_from_slice(&state.to_be_bytes());
        count += 1;
        count == extents_max
    };
    // Bounded, whatever the map: a reply that covers less than was asked for is allowed.
    for _ in 0..EXTENT_LOOKUPS_MAX {
        if offset >= range.end() {
            break;
        }
        let (end, state) = look_up(offset);
        match open {
            // Neighbours of one kind become one extent.
            Some((_, was)) if was == state => {}
            Some((from, was)) => {
                open = None;
                if close(from, offset, was) {
                    break;
                }
                open = Some((offset, state));
            }
            None => open = Some((offset, state)),
        }
        offset = end.min(range.end());
    }
    if let Some((from, state)) = open {
        close(from, offset, state);
    }
    let payload = &payload[..4 + 8 * count];
    let payload_bytes = payload.len() as u32;
    let head = wire::chunk_head(cookie, flags, chunk::BLOCK_STATUS, payload_bytes);
    sink.send(&head, &[payload], false)
}

/// The extent at `offset`, with its end on a multiple of 512 bytes: "SHOULD use descriptor lengths
/// that are an integer multiple of 512 bytes where possible". Zeros shrink and data grows, which is
/// always correct.
fn sector_extent(source: &dyn BlockSource, offset: u64) -> (u64, bool) {
    let size_bytes = source.size_bytes();
    let extent = source.extent(offset);
    let end = offset.saturating_add(extent.len.max(1)).min(size_bytes);
    let down = end - end % SECTOR_BYTES;
    if extent.zero && end == size_bytes {
        return (end, true);
    }
    if extent.zero && down > offset {
        return (down, true);
    }
    (end.next_multiple_of(SECTOR_BYTES).min(size_bytes), false)
}

fn done(structured: bool, cookie: u64, sink: &mut dyn Sink) -> Result<(), Disconnected> {
    if structured {
        sink.send(
            &wire::chunk_head(cookie, chunk::DONE, chunk::NONE, 0),
            &[],
            false,
        )
    } else {
        sink.send(&wire::simple_reply(cookie, 0), &[], false)
    }
}

fn refuse(
    structured: bool,
    cookie: u64,
    error: u32,
    why: &str,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    if !structured {
        return sink.send(&wire::simple_reply(cookie, error), &[], false);
    }
    let (why, why_bytes) = cut(why);
    let payload_bytes = 6 + u32::from(why_bytes);
    let head = wire::chunk_head(cookie, chunk::DONE, chunk::ERROR, payload_bytes);
    let error = error.to_be_bytes();
    let why_bytes = why_bytes.to_be_bytes();
    sink.send(&head, &[&error, &why_bytes, why.as_bytes()], false)
}

fn error_at(
    cookie: u64,
    offset: u64,
    error: &ReadError,
    last: bool,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let why = error.to_string();
    let (why, why_bytes) = cut(&why);
    let flags = if last { chunk::DONE } else { 0 };
    let payload_bytes = 14 + u32::from(why_bytes);
    let head = wire::chunk_head(cookie, flags, chunk::ERROR_OFFSET, payload_bytes);
    let number = error_number(error).to_be_bytes();
    let why_bytes = why_bytes.to_be_bytes();
    let offset = offset.to_be_bytes();
    sink.send(
        &head,
        &[&number, &why_bytes, why.as_bytes(), &offset],
        false,
    )
}

/// NBD's error numbers are Linux's (protocol, "Error values").
fn error_number(error: &ReadError) -> u32 {
    error.errno().unsigned_abs()
}

/// The text that is sent, and its length.
fn cut(why: &str) -> (&str, u16) {
    let mut end = u16::try_from(why.len()).map_or(ERROR_TEXT_BYTES_MAX, |bytes| {
        bytes.min(ERROR_TEXT_BYTES_MAX)
    });
    // The protocol's strings are UTF-8: half a character would make the reply malformed.
    while !why.is_char_boundary(end.into()) {
        end -= 1;
    }
    (&why[..end.into()], end)
}

/// The most data in one content chunk.
pub const CHUNK_DATA_BYTES_MAX: usize = 1 << 20;
/// The most extents in one reply; clients ask again for the rest.
pub const EXTENTS_MAX: usize = 512;
/// The most extents that one request looks up, merged or not.
pub(crate) const EXTENT_LOOKUPS_MAX: usize = 8192;
/// The longest text in an error chunk.
pub const ERROR_TEXT_BYTES_MAX: u16 = 512;
const SECTOR_BYTES: u64 = 512;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
