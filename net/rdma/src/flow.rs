//! Transfer between a queue pair and its stream.
//!
//! Must stay true: nothing blocks; one call moves at most [`ROUNDS_MAX`] buffers each way; an error
//! of the stream ends the pair, whose work is then flushed; one of writing does so behind the data
//! that has arrived, as a peer that has closed may have sent its last messages before.

use crate::stream::Sent;
use crate::{Adapter, Stream};
use sidecore_rdma_wire::{Pair, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, State};
use std::io;
use std::time::{Duration, Instant};

/// Reads and writes of the stream in one [`Flow::progress`].
const ROUNDS_MAX: usize = 16;
/// Bytes read, and written, at a time.
pub(crate) const BUFFER_BYTES: usize = 2 * SEGMENT_BYTES_MAX;

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
    /// An error of writing, until what had arrived before it is read.
    broken: Option<io::Error>,
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
            self.lose_if_broken()?;
            // Neither read nor written: a reset of the peer would be reported for ever.
            if !moved.anything {
                stream.check()?;
            }
            return Ok(moved);
        }
        let was_broken = self.broken.is_some();
        for round in 0..ROUNDS_MAX {
            if self.has_ended || self.pair.is_stalled() {
                break;
            }
            // The stream's bytes are lent for this call only, so what the pair leaves is copied.
            let (pair, behind) = (&mut self.pair, &mut self.behind);
            let take = &mut |bytes: &[u8]| {
                let taken = pair.receive(bytes, &mut adapter.domain, &mut adapter.memory);
                behind.extend_from_slice(&bytes[taken..]);
            };
            let Some(count) = stream.receive(buffer, take)? else {
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
            if !S::LENDS && count < buffer.len() {
                moved.has_more = false;
                break;
            }
        }
        // Once nothing is left to read after the stream broke.
        if was_broken && !moved.has_more {
            self.lose_if_broken()?;
        }
        self.write(stream, adapter, &mut moved);
        moved.has_more |= self.broken.is_some();
        Ok(moved)
    }

    /// Reports an error of writing that was put off.
    fn lose_if_broken(&mut self) -> io::Result<()> {
        self.broken.take().map_or(Ok(()), Err)
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
            self.broken = Some(error);
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
        for round in 0..ROUNDS_MAX {
            // Earlier units first: the stream took a part of them only.
            if self.is_drained() && !self.pair.wants_to_transmit() {
                break;
            }
            let pair = &mut self.pair;
            let sent = stream.send(&mut |target| fill(pair, target, adapter))?;
            let count = match sent {
                Sent::Bytes(count) => count,
                Sent::NoRoom => {
                    moved.is_blocked = true;
                    break;
                }
                Sent::NotLent => self.write_buffered(stream, adapter)?,
            };
            moved.anything |= count > 0;
            if !self.is_drained() {
                moved.is_blocked = true;
                break;
            }
            if count == 0 {
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

    fn write_buffered<S: Stream>(
        &mut self,
        stream: &mut S,
        adapter: &mut Adapter,
    ) -> io::Result<usize> {
        if self.is_drained() {
            // One buffer for all connections: data that the stream does not take is kept here.
            let mut units = std::mem::take(&mut adapter.units);
            units.resize(BUFFER_BYTES, 0);
            let count = fill(&mut self.pair, &mut units, adapter);
            let written = if count == 0 {
                Ok(0)
            } else {
                stream.write(&units[..count])
            };
            if let Ok(gone) = written {
                self.gone = 0;
                self.output.clear();
                self.output.extend_from_slice(&units[gone..count]);
            }
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
        Ok(count)
    }
}

/// Writes as many units as fit.
fn fill(pair: &mut Pair, target: &mut [u8], adapter: &mut Adapter) -> usize {
    let mut count = 0;
    while target.len() - count >= SEGMENT_BYTES_MIN {
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
