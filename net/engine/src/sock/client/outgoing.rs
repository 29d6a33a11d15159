//! Bytes of sessions on their way to the engine, and those that wait in private memory.
//!
//! Why here: a chunk whose bytes the peer does not take would be lost for all others. While chunks
//! are short, a session has one on trial: the engine returns it with what found no room, and the
//! rest waits here until the engine reports room. Must stay true: a session's bytes keep their
//! order, and its end follows them; a chunk on trial is the only one of its session.

use super::events::{Life, Sockets, State};
use super::held::Way;
use super::memory::{Buffer, Chunks};
use super::{Client, ClientError, Socket};
use crate::sock::layout::{Entry, RETURNS, Request, entry_bytes};
use crate::sock::stack::SocketError;
use std::collections::VecDeque;

/// Sessions whose bytes can go on.
#[derive(Debug, Default)]
pub(super) struct Resuming(VecDeque<Socket>);

impl Resuming {
    fn add(&mut self, state: &mut State) {
        let outgoing = &mut state.outgoing;
        if outgoing.goes_on() && !std::mem::replace(&mut outgoing.listed, true) {
            self.0.push_back(state.name());
        }
    }

    /// A chunk of a session was sent, or dropped with it.
    pub(super) fn note_sent(&mut self, state: &mut State) {
        state.outgoing.sent();
        self.add(state);
    }

    /// A session has room, or is over: its bytes may go on.
    pub(super) fn note_room(&mut self, sockets: &mut Sockets, session: Socket) {
        if let Some(state) = sockets.get_mut(session) {
            state.outgoing.awaits_room = false;
            self.add(state);
        }
    }
}

impl Sockets {
    /// Requests an end of a session after the bytes that wait; false if none do.
    pub(super) fn ends_later(&mut self, session: Socket, end: Request) -> bool {
        let Some(state) = self.get_mut(session) else {
            return false;
        };
        let waits = state.outgoing.is_held_back();
        if waits {
            state.outgoing.end = Some(end);
        }
        waits
    }
}

/// True if bytes of a session are posted at once, when the application has `taken` chunks for them
/// already.
fn takes(sockets: &Sockets, chunks: &Chunks, session: Socket, taken: usize) -> bool {
    let is_short = chunks.is_short_to_send(taken);
    let state = sockets.get(session);
    state.is_none_or(|state| !matches!(state.outgoing.way(is_short), Way::Hold))
}

impl Client {
    /// True if bytes of a session that are sent now go to the engine at once. Otherwise they are
    /// kept in private memory until those before them have found room, and the session is ready
    /// again then.
    #[must_use]
    pub fn takes(&self, session: Socket) -> bool {
        takes(&self.sockets, &self.chunks, session, 0)
    }

    /// Sends the first `bytes` bytes of a buffer of a session.
    pub(super) fn post_bytes(
        &mut self,
        session: Socket,
        mut buffer: Buffer,
        bytes: usize,
    ) -> Result<(), ClientError> {
        if !takes(&self.sockets, &self.chunks, session, 1) {
            // What stands before these bytes may be sent by now.
            self.take_events();
            self.resume()?;
        }
        let is_short = self.chunks.is_short_to_send(1);
        let Some(state) = self.sockets.get_mut(session) else {
            self.give_buffer_back(buffer);
            return Err(SocketError::NotOpen.into());
        };
        let outgoing = &mut state.outgoing;
        match outgoing.way(is_short) {
            Way::Post => self.post_send(session, buffer, bytes, sent_as(false)),
            Way::Try => {
                outgoing.trial = Some(entry_bytes(bytes));
                self.post_send(session, buffer, bytes, sent_as(true))
            }
            Way::Hold => {
                outgoing.held.push_back(buffer.bytes_mut()[..bytes].into());
                // The last chunk before may have been sent since the last look.
                self.resuming.add(state);
                self.give_buffer_back(buffer);
                Ok(())
            }
        }
    }

    /// Sends bytes that waited in private memory and can go on, and the ends after them.
    pub(super) fn resume(&mut self) -> Result<(), ClientError> {
        // Those that are listed again meanwhile have their turn next time.
        for _ in 0..self.resuming.0.len() {
            if self.chunks.free() == 0 {
                return Ok(());
            }
            let Some(session) = self.resuming.0.pop_front() else {
                return Ok(());
            };
            // A session that was closed meanwhile has nothing to go on with.
            if let Some(state) = self.sockets.get_mut(session) {
                state.outgoing.listed = false;
                self.resume_one(session)?;
            }
        }
        Ok(())
    }

    fn resume_one(&mut self, session: Socket) -> Result<(), ClientError> {
        loop {
            let is_short = self.chunks.is_short_to_send(0);
            let Some(state) = self.sockets.get_mut(session) else {
                return Ok(());
            };
            let outgoing = &mut state.outgoing;
            if state.life != Life::Alive {
                // The engine has dropped its chunks as well.
                outgoing.held.clear();
                outgoing.trial = None;
            }
            // Without chunks, those on their way bring it here again.
            if !outgoing.goes_on() || is_short && outgoing.posted > 0 {
                return Ok(());
            }
            let Some(bytes) = outgoing.held.pop_front() else {
                let end = outgoing.end.take();
                if end == Some(Request::Close) {
                    self.forget(session);
                }
                return end.map_or(Ok(()), |end| self.post(end, session, Entry::default()));
            };
            let Some(mut buffer) = self.chunks.buffer() else {
                // Back to its place: the session's next bytes wait behind it.
                outgoing.held.push_front(bytes);
                self.resuming.add(state);
                return Ok(());
            };
            buffer.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
            if is_short {
                outgoing.trial = Some(entry_bytes(bytes.len()));
            }
            self.post_send(session, buffer, bytes.len(), sent_as(is_short))?;
        }
    }
}

/// The request for bytes of a session, on trial or not.
fn sent_as(trial: bool) -> Entry {
    Entry {
        argument: if trial { RETURNS } else { 0 },
        ..Entry::default()
    }
}
