//! Opening sockets without waiting for the engine.
//!
//! Why here: an application that serves other programs must not block while the engine is slow.
//! Must stay true: an opening is answered once ([`Client::next_opened`]), and events of the new
//! socket follow the answer; a cancelled opening leaves no socket behind.

use super::events::State;
use super::{Client, ClientError, Socket};
use crate::sock::layout::{Entry, NO_CHUNK, Request, SHARES};
use crate::sock::stack::SocketError;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// A socket that is being opened, until the engine has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opening(u32);

/// Permission of a socket to share its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Shares with none.
    #[default]
    Alone,
    /// Shares with sockets of the same user that allow it, too (`SO_REUSEPORT`): sessions and
    /// datagrams are spread over them by a hash of their ends.
    WithUser,
}

impl Sharing {
    /// The word of a request that has it.
    fn word(self) -> u32 {
        match self {
            Self::Alone => 0,
            Self::WithUser => SHARES,
        }
    }
}

/// All pending openings.
#[derive(Debug, Default)]
pub(super) struct Openings {
    begun: HashMap<u32, Begun>,
    answered: VecDeque<(Opening, Result<Socket, SocketError>)>,
}

#[derive(Debug)]
struct Begun {
    is_udp: bool,
    is_given_up: bool,
}

impl Client {
    /// As [`Client::listen`], without waiting for the engine: [`Self::next_opened`] returns its
    /// answer. `sharing` as with `SO_REUSEPORT`.
    ///
    /// # Errors
    /// Lost.
    pub fn begin_listen(
        &mut self,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<Opening, ClientError> {
        self.begin(Request::Listen, local, backlog, sharing.word())
    }

    /// As [`Client::connect_from`], without waiting for the engine. `receive_bytes` is the receive
    /// buffer, which the SYN announces already; none for the stack's.
    ///
    /// # Errors
    /// Lost.
    pub fn begin_connect(
        &mut self,
        port: u16,
        peer: SocketAddr,
        receive_bytes: Option<u32>,
    ) -> Result<Opening, ClientError> {
        let bytes = receive_bytes.unwrap_or(0);
        self.begin(Request::Connect, peer, port.into(), bytes)
    }

    /// As [`Client::bind_udp`], without waiting for the engine.
    ///
    /// # Errors
    /// Lost.
    pub fn begin_bind_udp(
        &mut self,
        local: SocketAddr,
        sharing: Sharing,
    ) -> Result<Opening, ClientError> {
        self.begin(Request::BindUdp, local, 0, sharing.word())
    }

    /// The engine's next answer to an opening.
    pub fn next_opened(&mut self) -> Option<(Opening, Result<Socket, SocketError>)> {
        self.openings.answered.pop_front()
    }

    /// Cancels an opening: its socket is closed.
    ///
    /// # Errors
    /// Lost.
    pub fn give_up(&mut self, opening: Opening) -> Result<(), ClientError> {
        if let Some(begun) = self.openings.begun.get_mut(&opening.0) {
            begun.is_given_up = true;
            return Ok(());
        }
        let answered = &mut self.openings.answered;
        // Answered already, but not yet fetched: then the socket exists and is closed here.
        let at = answered.iter().position(|(it, _)| *it == opening);
        match at.and_then(|at| answered.remove(at)) {
            Some((_, Ok(socket))) => self.abort(socket),
            _ => Ok(()),
        }
    }

    fn begin(
        &mut self,
        request: Request,
        address: SocketAddr,
        argument: u32,
        bytes: u32,
    ) -> Result<Opening, ClientError> {
        let tag = self.next_tag();
        let entry = Entry {
            tag,
            argument,
            bytes,
            ..Entry::default()
        };
        let begun = Begun {
            is_udp: request == Request::BindUdp,
            is_given_up: false,
        };
        // Before the request: its answer may arrive while the request waits for room.
        self.openings.begun.insert(tag, begun);
        self.post(request, Socket(NO_CHUNK), entry.at(address))
            .inspect_err(|_| {
                self.openings.begun.remove(&tag);
            })?;
        Ok(Opening(tag))
    }

    /// Processes the answer to an opening; false if it was not begun here.
    pub(super) fn note_opened(&mut self, entry: &Entry) -> bool {
        let Some(begun) = self.openings.begun.remove(&entry.tag) else {
            return false;
        };
        let answer = match SocketError::from_number(entry.argument) {
            Some(error) => Err(error),
            None => {
                // Events that follow need a place for the socket.
                let socket = Socket(entry.socket);
                let local = Some(entry.socket_address());
                self.sockets.insert(State::new(socket, begun.is_udp, local));
                Ok(socket)
            }
        };
        match answer {
            // The loop notices when the engine is gone.
            Ok(socket) if begun.is_given_up => drop(self.abort(socket)),
            _ if begun.is_given_up => {}
            answer => self
                .openings
                .answered
                .push_back((Opening(entry.tag), answer)),
        }
        true
    }
}
