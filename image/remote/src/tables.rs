//! An image's headers and tables, read by parsers in small pieces and fetched in large ones.
//!
//! Why here: a parser reads a file's first and last bytes and then walks through a table; each read
//! would cost a round trip. Head and tail are fetched by the first two requests, together with the
//! bytes after the head if wanted ([`Beyond`]). Pieces of a table are fetched many at a time: the
//! whole table if the parser gives its length, otherwise twice as many with each request.
//! Must stay true: bytes come from the same image as frames do; a bounded number of them is held.

use crate::disk::is_sound;
use crate::fetch::Fetcher;
use crate::origin::{Identity, Reply};
use parking_lot::{Condvar, Mutex};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_block::codec::CodecId;
use sidecore_block::format::{Frame, FrameCheck};
use sidecore_block::image::Stored;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the image that were fetched.
pub(crate) struct Tables {
    size_bytes: u64,
    /// Head and tail.
    ends: [(u64, Stored); 2],
    beyond: Option<Arc<Beyond>>,
    recent: Mutex<Recent>,
}

/// Bytes after the head, in flight when the image is opened. A tree's metadata lie there, so a
/// reader of its first file need not fetch each piece of them in turn.
pub(crate) struct Beyond {
    range: Range<u64>,
    state: Mutex<State>,
    came: Condvar,
}

enum State {
    Asked,
    /// Received before the opened image was known.
    Unjudged(Reply),
    /// In flight; expected to be of this image, identified by digest if true.
    Expected(Identity, bool),
    Here(Stored),
    /// Not received, and no longer expected.
    Gone,
}

impl Beyond {
    pub(crate) fn new(range: Range<u64>) -> Self {
        Self {
            range,
            state: Mutex::new(State::Asked),
            came: Condvar::new(),
        }
    }

    /// Sets the image that was opened; with `by_digest`, the validator is ignored.
    pub(crate) fn expect(&self, identity: Identity, by_digest: bool) {
        let mut state = self.state.lock();
        // The reply may come before or after the image's head: each side judges what it finds.
        *state = match std::mem::replace(&mut *state, State::Gone) {
            State::Unjudged(reply) => self.judge(reply, &identity, by_digest),
            State::Asked => State::Expected(identity, by_digest),
            other => other,
        };
    }

    /// Takes the reply, or `None` after a failure.
    pub(crate) fn settle(&self, reply: Option<Reply>) {
        let mut state = self.state.lock();
        *state = match (reply, &*state) {
            (Some(reply), State::Expected(identity, by_digest)) => {
                self.judge(reply, identity, *by_digest)
            }
            (Some(reply), _) => State::Unjudged(reply),
            (None, _) => State::Gone,
        };
        self.came.notify_all();
    }

    /// Drops the bytes of a reply if they are of another image.
    fn judge(&self, reply: Reply, identity: &Identity, by_digest: bool) -> State {
        let same = reply.identity.size_bytes == identity.size_bytes
            && (by_digest || reply.identity.validator == identity.validator);
        match same && reply.offset == self.range.start {
            true => State::Here(reply.bytes.into()),
            false => State::Gone,
        }
    }

    /// True if the bytes of a frame are here or in flight.
    fn covers(&self, frame: &Frame) -> bool {
        let end = frame.offset + u64::from(frame.stored_bytes);
        self.range.start <= frame.offset
            && end <= self.range.end
            && !matches!(*self.state.lock(), State::Gone)
    }

    /// Returns the piece; waits for it at most `wait_max`, a time in which another request would
    /// hardly be faster.
    fn piece(&self, wait_max: Duration) -> Option<(u64, Stored)> {
        let mut state = self.state.lock();
        // One wait, although it may wake too early: the caller then fetches the frame itself.
        if matches!(*state, State::Asked | State::Expected(..)) && !wait_max.is_zero() {
            self.came.wait_for(&mut state, wait_max);
        }
        match &*state {
            State::Here(bytes) => Some((self.range.start, Arc::clone(bytes))),
            _ => None,
        }
    }
}

/// A frame that was received when the image was opened.
pub(crate) struct Found {
    pub(crate) stored: Stored,
    /// True if it lies in the head or the tail, which every opening fetches.
    pub(crate) is_end: bool,
}

/// Pieces that a parser is walking through.
#[derive(Default)]
struct Recent {
    pieces: Vec<(u64, Stored)>,
    /// The byte after the last fetched piece.
    end: u64,
    /// Number of bytes that were fetched last.
    ahead_bytes: u64,
    /// The table that is about to be read.
    table: Range<u64>,
}

impl Tables {
    pub(crate) fn new(
        size_bytes: u64,
        ends: [(u64, Stored); 2],
        beyond: Option<Arc<Beyond>>,
    ) -> Self {
        Self {
            size_bytes,
            ends,
            beyond,
            recent: Mutex::default(),
        }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The bytes of a frame that lies in the image's head or tail, or after the head. Waits a while
    /// if they are in flight. A frame that is damaged there is fetched again like any other.
    pub(crate) fn of_ends(&self, frame: &Frame) -> Option<Found> {
        let of = |piece: &(u64, Stored), is_end| {
            // Damage must not stick: these bytes are never requested again.
            let bytes = part(piece, frame.offset).get(..frame.stored_bytes.to_usize())?;
            is_sound(frame, bytes).then(|| Found {
                stored: bytes.into(),
                is_end,
            })
        };
        let beyond = || {
            let beyond = self.beyond.as_ref().filter(|it| it.covers(frame))?;
            of(&beyond.piece(BEYOND_WAIT_MAX)?, false)
        };
        let mut ends = self.ends.iter();
        ends.find_map(|piece| of(piece, true)).or_else(beyond)
    }

    /// True if [`Self::of_ends`] has the frame, or probably will.
    pub(crate) fn covers(&self, frame: &Frame) -> bool {
        let end = frame.offset + u64::from(frame.stored_bytes);
        let has = |(start, bytes): &(u64, Stored)| {
            *start <= frame.offset && end <= start + bytes.len().to_u64()
        };
        self.ends.iter().any(has) || self.beyond.as_ref().is_some_and(|it| it.covers(frame))
    }

    /// Records that a parser will read this table, so that it is fetched at once.
    pub(crate) fn will_read(&self, table: Range<u64>) {
        self.recent.lock().table = table;
    }

    /// Fills `buf` from `offset`.
    pub(crate) fn read(&self, fetcher: &Fetcher, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len().to_u64());
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done.to_u64();
            let copied = self.copy(&mut buf[done..], at);
            done += copied;
            // The bytes that are fetched begin at `at`, so the next copy gets some.
            if copied == 0 {
                self.fetch(fetcher, at, (buf.len() - done).to_u64())?;
            }
        }
        Ok(())
    }

    /// Copies the available bytes from `at`; returns their number.
    fn copy(&self, buf: &mut [u8], at: u64) -> usize {
        let beyond = self.beyond.as_ref();
        let beyond = beyond.and_then(|beyond| beyond.piece(Duration::ZERO));
        let recent = self.recent.lock();
        for piece in self.ends.iter().chain(&beyond).chain(&recent.pieces) {
            let bytes = part(piece, at);
            let bytes = &bytes[..bytes.len().min(buf.len())];
            if !bytes.is_empty() {
                buf[..bytes.len()].copy_from_slice(bytes);
                return bytes.len();
            }
        }
        0
    }

    /// Fetches bytes from `at` on, at least those that are needed next.
    fn fetch(&self, fetcher: &Fetcher, at: u64, needed: u64) -> io::Result<()> {
        let ahead = {
            let recent = self.recent.lock();
            let most = (fetcher.memory_bytes() / 4).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
            // The tail is already here: a table is fetched only up to it.
            let table_end = recent.table.end.min(self.ends[1].0.max(at));
            let ahead = match recent.end == at {
                _ if recent.table.start <= at && at < table_end => (table_end - at).min(most),
                true => recent.ahead_bytes.saturating_mul(2).min(most),
                false => AHEAD_BYTES_MIN,
            };
            // A large read calls this repeatedly, so that no more than this is held.
            ahead.max(needed.min(most))
        };
        let bytes = ahead.min(self.size_bytes - at);
        let pieces: Vec<Frame> = (at..at + bytes)
            .step_by(PIECE_BYTES.to_usize())
            .map(|start| piece(start, at + bytes - start))
            .collect();
        let stored = fetcher.fetch(&pieces, &mut std::iter::empty())?;
        let mut recent = self.recent.lock();
        // Replaces the last ones: a parser goes forward, and the memory for tables is bounded.
        recent.pieces = pieces.iter().map(|it| it.offset).zip(stored).collect();
        recent.end = at + bytes;
        recent.ahead_bytes = bytes;
        Ok(())
    }
}

/// A part of a table, as if it were a frame: at most `rest_bytes`.
fn piece(offset: u64, rest_bytes: u64) -> Frame {
    Frame {
        offset,
        stored_bytes: u32::try_from(rest_bytes).map_or(PIECE_BYTES, |it| it.min(PIECE_BYTES)),
        raw_bytes: 0,
        raw_offset: 0,
        number: 0,
        codec: CodecId::Store,
        check: FrameCheck::None,
    }
}

/// The bytes of a piece from `at` on.
fn part((start, bytes): &(u64, Stored), at: u64) -> &[u8] {
    let skipped = at
        .checked_sub(*start)
        .and_then(|it| usize::try_from(it).ok());
    skipped
        .and_then(|skipped| bytes.get(skipped..))
        .unwrap_or_default()
}

/// Time after which the bytes after the head are no longer waited for.
const BEYOND_WAIT_MAX: Duration = Duration::from_secs(2);
const PIECE_BYTES: u32 = 512 << 10;
const AHEAD_BYTES_MIN: u64 = 256 << 10;
const AHEAD_BYTES_MAX: u64 = 16 << 20;
