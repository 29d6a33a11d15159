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
use super::wire::{self, Headers, To, chunk, errno, state};
use arrayvec::ArrayVec;
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
    headers: Headers,
    command: &Command,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let to = command.reply_to(headers);
    match *command {
        Command::Read { len: 0, .. } => done(to, sink)?,
        Command::Read {
            offset, len, whole, ..
        } => {
            let range = Range::new(offset, len.into());
            if headers == Headers::Simple {
                read_simple(source, to, range, sink)?;
            } else {
                read_in_chunks(source, to, range, whole, sink)?;
            }
        }
        Command::Status {
            offset,
            len,
            one,
            contexts,
            block_bytes,
            ..
        } => {
            let least = u64::from(block_bytes).max(SECTOR_BYTES);
            let range = Range::new(offset, len);
            status(source, to, range, one, (contexts, least), sink)?;
        }
        Command::Cache { offset, len, .. } => {
            cache(source, to, Range::new(offset, len.into()), sink)?;
        }
        Command::Write { .. } => {
            // The function that receives the payload writes it, and replies by `reply_change`.
            refuse(to, errno::EINVAL, "no payload", sink)?;
        }
        Command::Zero { .. } | Command::Trim { .. } | Command::Flush { .. } => {
            let outcome = change(source, command);
            reply_change(to, outcome, sink)?;
        }
        Command::Refuse(Refusal { error, why, .. }) => refuse(to, error, why, sink)?,
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
                false => writes.write_zeroes(offset, len)?,
                true => {
                    let end = offset + len;
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
            writes.discard(offset, len)?;
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
    to: To,
    outcome: Result<(), WriteError>,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    match outcome {
        Ok(()) => done(to, sink)?,
        Err(error) => {
            let number = error.errno().unsigned_abs();
            refuse(to, number, &error.to_string(), sink)?;
        }
    }
    sink.flush()
}

/// A range of the device, checked against its size.
#[derive(Clone, Copy)]
struct Range {
    offset: u64,
    len: u64,
}

impl Range {
    fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    fn end(self) -> u64 {
        self.offset + self.len
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

    fn between(offset: u64, end: u64) -> Self {
        Self::new(offset, end - offset)
    }

    /// Its length, where it is a part of a transfer, and so at most `REQUEST_LEN_MAX`.
    fn transfer_bytes(self) -> u32 {
        u32::try_from(self.len).unwrap_or(u32::MAX)
    }
}

fn read_in_chunks(
    source: &dyn BlockSource,
    to: To,
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
        let Err(error) = read_chunk(source, to, part, last, sink)? else {
            continue;
        };
        // "an error chunk of type NBD_REPLY_TYPE_ERROR_OFFSET gives fine-grained information": the
        // part is read again frame by frame, so that only what is damaged is missing. An
        // unfragmented read has no second content chunk.
        let mut at = part.offset;
        if whole || part.in_frame(at, frame_bytes).len == part.len {
            error_at(to, part.offset, &error, last, sink)?;
            continue;
        }
        while at < part.end() {
            let frame = part.in_frame(at, frame_bytes);
            at = frame.end();
            let last = at == range.end();
            if let Err(error) = read_chunk(source, to, frame, last, sink)? {
                error_at(to, frame.offset, &error, last, sink)?;
            }
        }
    }
    Ok(())
}

/// Sends one content chunk, or returns the device's error with nothing sent.
fn read_chunk(
    source: &dyn BlockSource,
    to: To,
    part: Range,
    last: bool,
    sink: &mut dyn Sink,
) -> Result<Result<(), ReadError>, Disconnected> {
    // DONE on a content chunk "MUST NOT [be set] if it would still be possible to detect an error
    // while transmitting the chunk": all bytes are there before the first is sent.
    let flags = if last { chunk::DONE } else { 0 };
    let head = wire::data_chunk(to, flags, part.offset, part.transfer_bytes());
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
    to: To,
    range: Range,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let part_bytes = source.read_with_max_bytes().min(CHUNK_DATA_BYTES_MAX);
    let frame_bytes = source.preferred_bytes();
    let head = wire::simple_reply(to.cookie, 0);
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
                return refuse(to, error_number(&error), "", sink);
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
    to: To,
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
            return refuse(to, error_number(&error), &why, sink);
        }
        offset = part.end();
    }
    done(to, sink)
}

/// Sends the extents of each selected context, a chunk each, in multiples of `least` bytes.
fn status(
    source: &dyn BlockSource,
    to: To,
    range: Range,
    one: bool,
    (contexts, least): (Contexts, u64),
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    if contexts.allocation {
        let flags = if contexts.bitmap { 0 } else { chunk::DONE };
        let allocation = |offset| {
            let (end, zero) = sector_extent(source, offset, least);
            // A range of zeros is not stored at all.
            (end, if zero { state::HOLE | state::ZERO } else { 0 })
        };
        let head = (to, flags, ALLOCATION_CONTEXT_ID);
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
        let head = (to, chunk::DONE, BITMAP_CONTEXT_ID);
        extents(head, range, one, &written, sink)?;
    }
    Ok(())
}

/// Sends the extents of a context, whose end and flags `look_up` gives: address, flags of the chunk
/// and the context's number are in `head`.
fn extents(
    (to, flags, context): (To, u16, u32),
    range: Range,
    one: bool,
    look_up: &dyn Fn(u64) -> (u64, u32),
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let extents_max = if one { 1 } else { EXTENTS_MAX };
    let mut found: ArrayVec<(u64, u32), EXTENTS_MAX> = ArrayVec::new();
    let mut offset = range.offset;
    let mut open: Option<(u64, u32)> = None;
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
                found.push((offset - from, was));
                if found.len() == extents_max {
                    break;
                }
                open = Some((offset, state));
            }
            None => open = Some((offset, state)),
        }
        offset = end.min(range.end());
    }
    if let Some((from, state)) = open {
        found.push((offset - from, state));
    }
    let mut payload: ArrayVec<u8, { 8 + 16 * EXTENTS_MAX }> = ArrayVec::new();
    payload.extend(context.to_be_bytes());
    let kind = match to.headers {
        Headers::Extended => {
            let count = u32::try_from(found.len()).unwrap_or_default();
            payload.extend(count.to_be_bytes());
            for (len, state) in &found {
                payload.extend(len.to_be_bytes());
                payload.extend(u64::from(*state).to_be_bytes());
            }
            chunk::BLOCK_STATUS_EXT
        }
        _ => {
            for (len, state) in &found {
                // No longer than the request's own 32 bits.
                let len = u32::try_from(*len).unwrap_or(u32::MAX);
                payload.extend(len.to_be_bytes());
                payload.extend(state.to_be_bytes());
            }
            chunk::BLOCK_STATUS
        }
    };
    let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let head = wire::chunk_head(to, flags, kind, payload_bytes);
    sink.send(&head, &[&payload], false)
}

/// The extent at `offset`, with its end on a multiple of `least`, which is 512 bytes or a block:
/// "SHOULD use descriptor lengths that are an integer multiple of 512 bytes where possible". Zeros
/// shrink and data grows, which is always correct.
fn sector_extent(source: &dyn BlockSource, offset: u64, least: u64) -> (u64, bool) {
    let size_bytes = source.size_bytes();
    let extent = source.extent(offset);
    let end = offset.saturating_add(extent.len.max(1)).min(size_bytes);
    let down = end - end % least;
    if extent.zero && end == size_bytes {
        return (end, true);
    }
    if extent.zero && down > offset {
        return (down, true);
    }
    (end.next_multiple_of(least).min(size_bytes), false)
}

fn done(to: To, sink: &mut dyn Sink) -> Result<(), Disconnected> {
    match to.headers {
        Headers::Simple => sink.send(&wire::simple_reply(to.cookie, 0), &[], false),
        _ => sink.send(
            &wire::chunk_head(to, chunk::DONE, chunk::NONE, 0),
            &[],
            false,
        ),
    }
}

fn refuse(to: To, error: u32, why: &str, sink: &mut dyn Sink) -> Result<(), Disconnected> {
    if to.headers == Headers::Simple {
        return sink.send(&wire::simple_reply(to.cookie, error), &[], false);
    }
    let (why, why_bytes) = cut(why);
    let payload_bytes = 6 + u32::from(why_bytes);
    let head = wire::chunk_head(to, chunk::DONE, chunk::ERROR, payload_bytes);
    let error = error.to_be_bytes();
    let why_bytes = why_bytes.to_be_bytes();
    sink.send(&head, &[&error, &why_bytes, why.as_bytes()], false)
}

fn error_at(
    to: To,
    offset: u64,
    error: &ReadError,
    last: bool,
    sink: &mut dyn Sink,
) -> Result<(), Disconnected> {
    let why = error.to_string();
    let (why, why_bytes) = cut(&why);
    let flags = if last { chunk::DONE } else { 0 };
    let payload_bytes = 14 + u32::from(why_bytes);
    let head = wire::chunk_head(to, flags, chunk::ERROR_OFFSET, payload_bytes);
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
