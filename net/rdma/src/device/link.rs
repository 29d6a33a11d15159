//! One connection of a device.

use super::Queues;
use super::transport::{Net, Wire};
use crate::flow::{Flow, Moved};
use crate::stream::Session;
use crate::{Adapter, State};
use rustix::event::epoll::EventFlags;
use sidecore_rdma_wire::Pair;
use std::io;
use std::net::TcpStream;
use std::time::Instant;

/// A connection, its stream, and the events reported to its owner.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) flow: Flow,
    pub(super) wire: Wire,
    /// The listener that it arrived at, until it is accepted.
    pub(super) listener: Option<u32>,
    pub(super) queues: Option<Queues>,
    /// The last event of its life that was reported.
    pub(super) reported: Reported,
    /// Time when its owner closed it.
    pub(super) released: Option<Instant>,
    /// True if it is in the device's list of busy connections.
    pub(super) is_busy: bool,
    pub(super) is_blocked: bool,
    /// Registered events of a kernel socket.
    pub(super) interest: EventFlags,
}

/// Events of a connection, in the order of its life; any of them may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reported {
    Nothing,
    Requested,
    Established,
    Ended,
}

impl Link {
    /// Events of a kernel socket that it waits for; none once it is over.
    pub(super) fn wanted(&self, is_blocked: bool) -> EventFlags {
        let mut wanted = EventFlags::empty();
        // While a message waits for a receive, the stream is not read: TCP slows the peer.
        if !self.flow.has_ended && !self.flow.pair.is_stalled() {
            wanted |= EventFlags::IN;
        }
        let is_over = self.flow.has_ended && self.flow.pair.state() != State::Open;
        if is_blocked && !is_over {
            wanted |= EventFlags::OUT;
        }
        wanted
    }

    /// True once its owner has learnt of its end.
    pub(super) fn has_reported_end(&self) -> bool {
        self.reported == Reported::Ended
    }

    pub(super) fn new(pair: Pair, wire: Wire, listener: Option<u32>) -> Self {
        Self {
            flow: Flow::new(pair),
            wire,
            listener,
            queues: None,
            reported: Reported::Nothing,
            released: None,
            is_busy: false,
            is_blocked: false,
            interest: EventFlags::empty(),
        }
    }

    pub(super) fn progress(
        &mut self,
        net: &mut Net,
        buffer: &mut [u8],
        adapter: &mut Adapter,
    ) -> io::Result<Moved> {
        match &mut self.wire {
            Wire::Kernel(stream, is_opening) => {
                if *is_opening && !is_open(stream)? {
                    return Ok(opening());
                }
                *is_opening = false;
                self.flow.progress(stream, buffer, adapter)
            }
            Wire::Stack(socket) => match net.session(*socket) {
                Some(mut session) => self.flow.progress(&mut session, buffer, adapter),
                None => Err(io::ErrorKind::NotConnected.into()),
            },
        }
    }

    pub(super) fn write(&mut self, net: &mut Net, adapter: &mut Adapter) -> io::Result<Moved> {
        let mut moved = Moved::default();
        match &mut self.wire {
            Wire::Kernel(_, true) => return Ok(opening()),
            Wire::Kernel(stream, false) => self.flow.write(stream, adapter, &mut moved)?,
            Wire::Stack(socket) => {
                let session: Option<Session<'_>> = net.session(*socket);
                let mut session = session.ok_or(io::ErrorKind::NotConnected)?;
                self.flow.write(&mut session, adapter, &mut moved)?;
            }
        }
        Ok(moved)
    }
}

/// Result while a socket is being opened, which is over when it is writable.
fn opening() -> Moved {
    Moved {
        is_blocked: true,
        ..Moved::default()
    }
}

/// False while the socket is being opened.
fn is_open(stream: &TcpStream) -> io::Result<bool> {
    // A failed connect is reported here alone: the socket is writable, too.
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}
