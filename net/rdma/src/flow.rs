//! Transfer between a queue pair and its stream.
//!
//! Must stay true: nothing blocks; one call moves at most [`ROUNDS_MAX`] buffers each way; an error
//! of the stream ends the pair, whose work is then flushed; one of writing does so behind the data
//! that has arrived, as a peer that has closed may have sent its last messages before.
//!
//! A small unit costs one call of the system each way. The payload of a long one without a CRC is
//! sent from its memory and received into it: the kernel's copies are the only ones.

use crate::regions::Vectors;
use crate::stream::Sent;
use crate::{Adapter, Stream};
use sidecore_rdma_wire::{Gone, Memory, Pair, Part, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, State};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Reads and writes of the stream in one [`Flow::progress`].
const ROUNDS_MAX: usize = 16;
/// Bytes read, and written, at a time.
pub(crate) const BUFFER_BYTES: usize = 2 * SEGMENT_BYTES_MAX;
/// Bytes that one call receives into the buffer where long payloads go to their places: many small
/// units, and little of a long one.
const FRONT_BYTES: usize = 16 << 10;
/// Bytes that are received behind a payload: the rest of its unit, and the next one's head.
const BEHIND_BYTES: usize = 32;

/// A pair with the data in transit between it and its stream.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) pair: Pair,
    /// Units for a stream that lends no memory: those from `gone` on are pending.
    output: Vec<u8>,
    gone: usize,
    /// Bytes received after a message that waits for a receive.
    behind: Vec<u8>,
    is_shut: bool,
    /// An error of the stream, until what had arrived before it is read; and its time.
    broken: Option<(io::Error, Instant)>,
    /// The peer's stream has ended.
    pub(crate) has_ended: bool,
    /// Messages are delayed until then.
    pub(crate) settles: Option<Instant>,
    /// Delay of the first message after the peer's reply, if it is sent without a call.
    pub(crate) settle: Duration,
}

/// Outcome of a [`Flow::progress`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    /// Bytes were moved in any direction.
    pub(crate) anything: bool,
    /// More may be possible at once: it stopped at its bound.
    pub(crate) has_more: bool,
    /// The stream has no room for pending data.
    pub(crate) is_blocked: bool,
}

impl Flow {
    pub(crate) fn new(pair: Pair) -> Self {
        Self {
            pair,
            output: Vec::new(),
            gone: 0,
            behind: Vec::new(),
            is_shut: false,
            broken: None,
            has_ended: false,
            settles: None,
            settle: Duration::ZERO,
        }
    }

    /// True if no byte waits for room in the stream.
    pub(crate) fn is_drained(&self) -> bool {
        self.gone == self.output.len()
    }

    /// True while messages are delayed.
    pub(crate) fn is_settling(&self) -> bool {
        self.settles.is_some_and(|settles| Instant::now() < settles)
    }

    /// True while messages are, or will be, delayed.
    pub(crate) fn is_held(&self) -> bool {
        self.settle > Duration::ZERO || self.is_settling()
    }

    /// True if the stream has taken all there was to send, and its end.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.is_shut && self.is_drained()
    }

    /// True if both streams have ended, or the peer's has and ours has nothing to send.
    pub(crate) fn is_over(&self) -> bool {
        self.has_ended && (self.is_shut || self.pair.state() == State::Ended)
    }

    /// Makes progress; `buffer` is for streams that lend none.
    ///
    /// # Errors
    /// The stream's.
    pub(crate) fn progress<S: Stream>(
        &mut self,
        stream: &mut S,
        buffer: &mut [u8],
        adapter: &mut Adapter,
    ) -> io::Result<Moved> {
        let mut moved = Moved::default();
        // Nothing is read while a message waits; what there is to send may go on.
        if self.pair.is_stalled() && !self.resume(adapter) {
            self.write(stream, adapter, &mut moved);
            // Neither read nor written: a reset of the peer would be reported for ever.
            if !moved.anything
                && let Err(error) = stream.check()
            {
                self.break_at_end(error);
            }
            // What came before it waits, too: its owner posts a receive, or gives it up.
            moved.has_more &= !self.is_broken();
            return Ok(moved);
        }
        let was_broken = self.is_broken();
        for round in 0..ROUNDS_MAX {
            if self.has_ended || self.pair.is_stalled() {
                break;
            }
            let Some((count, is_full)) = self.read(stream, buffer, adapter)? else {
                break;
            };
            moved.anything = true;
            moved.has_more = round + 1 == ROUNDS_MAX;
            if count == 0 {
                self.lose_if_broken()?;
                self.has_ended = true;
                self.pair.receive_end();
                break;
            }
            // Responses go out while the next requests arrive.
            self.write(stream, adapter, &mut moved);
            // Less than requested: there is no more for now.
            if !is_full {
                moved.has_more = false;
                break;
            }
        }
        // Once nothing is left to read after the stream broke.
        if was_broken && !moved.has_more && !self.pair.is_stalled() {
            self.lose_if_broken()?;
        }
        self.write(stream, adapter, &mut moved);
        moved.has_more |= self.is_broken() && !self.pair.is_stalled();
        Ok(moved)
    }

    /// Reads the stream once: the number of bytes, and true if there may be more; none if there is
    /// nothing now.
    fn read<S: Stream>(
        &mut self,
        stream: &mut S,
        buffer: &mut [u8],
        adapter: &mut Adapter,
    ) -> io::Result<Option<(usize, bool)>> {
        if let Some(socket) = stream.socket()
            && !self.pair.has_crc()
        {
            return self.read_into_places(socket, buffer, adapter);
        }
        let room = buffer.len();
        let count = stream.receive(buffer, &mut |bytes| self.take(bytes, adapter))?;
        Ok(count.map(|count| (count, S::LENDS || count == room)))
    }

    fn read_into_places(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
        adapter: &mut Adapter,
    ) -> io::Result<Option<(usize, bool)>> {
        let mut places = Vectors::new(&mut adapter.memory);
        let mut outcome = Ok(());
        let place = &mut |region, offset, count| {
            outcome = outcome.and_then(|()| places.memory(region, offset, count));
        };
        self.pair.landing(&adapter.domain, place);
        if outcome.is_err() {
            // The pair reports it with the bytes.
            places = Vectors::new(&mut adapter.memory);
        }
        let placed = places.bytes();
        let behind = match placed {
            0 => FRONT_BYTES,
            _ => BEHIND_BYTES,
        };
        let buffer = &mut buffer[..behind];
        let Some(count) = places.receive(socket, buffer)? else {
            return Ok(None);
        };
        let landed = count.min(placed);
        self.pair.landed(landed);
        self.take(&buffer[..count - landed], adapter);
        Ok(Some((count, count == placed + behind)))
    }

    /// Passes bytes to the pair. The stream's are lent for this call only, so what the pair leaves
    /// is copied.
    fn take(&mut self, bytes: &[u8], adapter: &mut Adapter) {
        let (domain, memory) = (&mut adapter.domain, &mut adapter.memory);
        let taken = self.pair.receive(bytes, domain, memory);
        self.behind.extend_from_slice(&bytes[taken..]);
    }

    /// True if the stream has failed, while what had arrived before is being read.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// The time when a stream failed whose data waits for a receive.
    pub(crate) fn broke_at(&self) -> Option<Instant> {
        let at = self.broken.as_ref().map(|(_, at)| *at);
        at.filter(|_| self.pair.is_stalled())
    }

    /// Puts an error of the stream off until what had arrived is read.
    fn break_at_end(&mut self, error: io::Error) {
        self.broken = Some((error, Instant::now()));
    }

    /// Reports an error of the stream that was put off.
    fn lose_if_broken(&mut self) -> io::Result<()> {
        self.broken.take().map_or(Ok(()), |(error, _)| Err(error))
    }

    /// Continues after a message waited for a receive; false if one still does.
    fn resume(&mut self, adapter: &mut Adapter) -> bool {
        let behind = std::mem::take(&mut self.behind);
        let (domain, memory) = (&mut adapter.domain, &mut adapter.memory);
        let taken = self.pair.receive(&behind, domain, memory);
        self.behind = behind;
        self.behind.drain(..taken);
        !self.pair.is_stalled()
    }

    /// Sends the pair's pending data. The next [`Self::progress`] reports an error.
    pub(crate) fn write<S: Stream>(
        &mut self,
        stream: &mut S,
        adapter: &mut Adapter,
        moved: &mut Moved,
    ) {
        if self.broken.is_none()
            && let Err(error) = self.try_write(stream, adapter, moved)
        {
            self.break_at_end(error);
            // Its owner comes back to read what is left.
            (moved.anything, moved.has_more, moved.is_blocked) = (true, true, false);
        }
    }

    fn try_write<S: Stream>(
        &mut self,
        stream: &mut S,
        adapter: &mut Adapter,
        moved: &mut Moved,
    ) -> io::Result<()> {
        // The delay begins with the peer's reply, not with the request.
        if self.settle > Duration::ZERO && self.pair.state() == State::Open {
            self.settles = Some(Instant::now() + std::mem::take(&mut self.settle));
        }
        if self.is_settling() {
            return Ok(());
        }
        moved.is_blocked = false;
        self.keep_rest(adapter)?;
        for round in 0..ROUNDS_MAX {
            // Earlier units first: the stream took a part of them only.
            if self.is_drained() && !self.pair.wants_to_transmit() {
                break;
            }
            let pair = &mut self.pair;
            let sent = stream.send(&mut |target| fill(pair, target, adapter, false))?;
            let count = match sent {
                Sent::Bytes(count) => count,
                Sent::NoRoom => {
                    moved.is_blocked = true;
                    break;
                }
                Sent::NotLent => {
                    let (count, is_whole) = self.write_buffered(stream, adapter)?;
                    moved.is_blocked = !is_whole;
                    count
                }
            };
            moved.anything |= count > 0;
            if moved.is_blocked || count == 0 {
                break;
            }
            moved.has_more |= round + 1 == ROUNDS_MAX;
        }
        if self.is_drained() && self.pair.wants_shutdown() && !self.is_shut {
            // Before the call: a stream that cannot be shut down is not asked again.
            self.is_shut = true;
            stream.shutdown()?;
        }
        Ok(())
    }

    /// Writes to a stream that lends no memory: the number of bytes, and true if it had room for
    /// all there was.
    fn write_buffered<S: Stream>(
        &mut self,
        stream: &mut S,
        adapter: &mut Adapter,
    ) -> io::Result<(usize, bool)> {
        if self.is_drained() {
            // One buffer for all connections: data that the stream does not take is kept here.
            let mut units = std::mem::take(&mut adapter.units);
            units.resize(BUFFER_BYTES, 0);
            let count = fill(
                &mut self.pair,
                &mut units,
                adapter,
                stream.socket().is_some(),
            );
            let written = self.write_units(stream, &units[..count], adapter);
            adapter.units = units;
            return written;
        }
        let count = stream.write(&self.output[self.gone..])?;
        self.gone += count;
        // Its memory is freed: with many connections few are blocked at a time.
        if self.is_drained() {
            self.gone = 0;
            self.output = Vec::new();
        }
        Ok((count, self.is_drained()))
    }

    /// Writes units, and the one that the pair lends.
    fn write_units<S: Stream>(
        &mut self,
        stream: &mut S,
        units: &[u8],
        adapter: &mut Adapter,
    ) -> io::Result<(usize, bool)> {
        let (written, all) = match stream.socket() {
            Some(socket) if self.pair.is_lending() => {
                let mut parts = Vectors::new(&mut adapter.memory);
                let mut outcome = parts.source(units);
                let add = &mut |part| {
                    outcome = outcome.and_then(|()| match part {
                        Part::Bytes(bytes) => parts.source(bytes),
                        Part::Memory(region, offset, count) => parts.memory(region, offset, count),
                    });
                };
                let lent = self.pair.lent(&adapter.domain, add);
                lent.and(outcome).map_err(gone)?;
                (parts.send(socket)?, parts.bytes())
            }
            _ if units.is_empty() => (0, 0),
            _ => (stream.write(units)?, units.len()),
        };
        let of_units = written.min(units.len());
        if of_units < units.len() {
            self.gone = 0;
            self.output.clear();
            self.output.extend_from_slice(&units[of_units..]);
        }
        if written > of_units {
            self.pair.taken(written - of_units);
        }
        Ok((written, written == all))
    }

    /// Copies the rest of a unit whose work was flushed: its owner learns of that next, and may use
    /// the memory again.
    fn keep_rest(&mut self, adapter: &mut Adapter) -> io::Result<()> {
        if self.pair.state() == State::Open || !self.pair.is_lending() {
            return Ok(());
        }
        let (output, memory) = (&mut self.output, &mut adapter.memory);
        let begin = output.len();
        let mut outcome = Ok(());
        let add = &mut |part| match part {
            Part::Bytes(bytes) => output.extend_from_slice(bytes),
            Part::Memory(region, offset, count) => {
                let at = output.len();
                output.resize(at + count, 0);
                let fetched = memory.fetch(region, offset, &mut output[at..]);
                outcome = outcome.and(fetched);
            }
        };
        let lent = self.pair.lent(&adapter.domain, add);
        lent.and(outcome).map_err(gone)?;
        self.pair.taken(self.output.len() - begin);
        Ok(())
    }
}

/// The error of a stream that cannot go on within a unit.
fn gone(_: Gone) -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// Writes as many units as fit, up to one that the pair lends.
fn fill(pair: &mut Pair, target: &mut [u8], adapter: &mut Adapter, lends: bool) -> usize {
    let mut count = 0;
    while target.len() - count >= SEGMENT_BYTES_MIN {
        if lends && pair.lend(&adapter.domain) {
            break;
        }
        // Whole units only: less room than the shortest limit holds none.
        let room = &mut target[count..];
        let unit = pair.transmit(room, &adapter.domain, &mut adapter.memory);
        if unit == 0 {
            break;
        }
        count += unit;
    }
    count
}
