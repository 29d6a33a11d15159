//! Requests of a process.

use super::books::{Kind, Ready, Reported, Requested};
use super::{Owner, Process, Round};
use crate::sock::layout::{CHUNK_BYTES, Entry, Event, KEPT, NO_CHUNK, Request, SHARES};
use crate::sock::ring::Violation;
use crate::sock::stack::{Id, SocketError, SocketOption, Sockets};
use sidecore_bare::width::ToUsize;

impl Process {
    /// Executes the request `entry`, a private copy. There is room for one event.
    pub(super) fn request(
        &mut self,
        entry: &Entry,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<(), Violation> {
        // Each request can also return a chunk of received bytes.
        if entry.give != NO_CHUNK {
            self.take_back(entry.give)?;
        }
        match Request::from_number(entry.kind).ok_or(Violation)? {
            Request::Listen => {
                let backlog = entry.argument.clamp(1, BACKLOG_MAX).to_usize();
                let owner = self.owner_of(entry);
                let opened = round.stack.listen(entry.socket_address(), backlog, owner);
                self.opened(entry, opened, Kind::Listener, round)
            }
            Request::Connect => {
                let opened = match u16::try_from(entry.argument) {
                    Ok(port) => round.stack.connect(entry.socket_address(), port),
                    Err(_) => Err(SocketError::Invalid),
                };
                if let Ok(session) = opened
                    && entry.bytes != 0
                {
                    // Before the SYN is sent, which has the window and its scale. A value outside
                    // the range leaves the stack's.
                    let option = SocketOption::ReceiveBytes(entry.bytes);
                    round.stack.set(session, option).ok();
                }
                self.opened(entry, opened, Kind::Session, round)
            }
            Request::BindUdp => {
                let owner = self.owner_of(entry);
                let opened = round.stack.bind_udp(entry.socket_address(), owner);
                self.opened(entry, opened, Kind::Udp, round)
            }
            Request::Send => self.send(entry, round),
            Request::Give => Ok(()),
            // A socket that is over is ignored here and below: the process may not have read the
            // event yet.
            Request::Shutdown => self.request_end(entry, Requested::Shutdown),
            Request::Close => {
                self.request_end(entry, Requested::Close)?;
                self.free_address(entry.socket, round);
                Ok(())
            }
            Request::Abort => self.request_end(entry, Requested::Abort),
            Request::Credit => {
                if let Some(socket) = self.sockets.find_open(entry.socket)
                    && socket.credit(entry.argument)
                {
                    self.ready.add(socket);
                }
                Ok(())
            }
            Request::Acknowledged => {
                let socket = self.sockets.find_open(entry.socket);
                if socket.is_some_and(|it| !it.has_pending() && round.stack.is_acknowledged(it.id))
                {
                    let answer = Entry {
                        socket: entry.socket,
                        ..Entry::default()
                    };
                    self.link.send(Event::Acknowledged, answer)?;
                }
                Ok(())
            }
            Request::Peer => {
                if let Some(socket) = self.sockets.find_open(entry.socket) {
                    let peer = Some(entry.socket_address()).filter(|peer| peer.port() != 0);
                    round.stack.set_peer(socket.id, peer);
                }
                Ok(())
            }
            Request::Option => {
                let option = SocketOption::from_numbers(entry.argument, entry.bytes);
                if let Some(socket) = self.sockets.find_open(entry.socket)
                    && let Some(option) = option
                {
                    // Fails if the session is over, which is fine.
                    round.stack.set(socket.id, option).ok();
                }
                Ok(())
            }
        }
    }

    /// The owner of a socket that may share its address: the user, by the kernel's word.
    fn owner_of(&self, entry: &Entry) -> Option<u32> {
        (entry.bytes == SHARES).then_some(self.status.uid)
    }

    /// Notes the requested end of a socket for its next turn.
    ///
    /// # Errors
    /// It would end the socket in the middle of a datagram, except by an abort.
    fn request_end(&mut self, entry: &Entry, end: Requested) -> Result<(), Violation> {
        // An unknown number belongs to a socket that was closed.
        let Some(socket) = self.sockets.find_open(entry.socket) else {
            return Ok(());
        };
        if end != Requested::Abort && self.chunks.is_in_datagram(socket) {
            return Err(Violation);
        }
        socket.requested = end;
        self.ready.add(socket);
        Ok(())
    }

    /// Closes a socket that is being closed and has nothing to send: the next request may need its
    /// address.
    fn free_address(&mut self, number: u32, round: &mut Round<'_, impl Sockets>) {
        let socket = self.sockets.find(number);
        let is_idle = socket.as_ref().is_some_and(|socket| {
            socket.is_closing() && socket.kind != Kind::Session && !socket.has_pending()
        });
        if let Some(place) = socket.map(|socket| socket.place())
            && is_idle
        {
            self.end(place, round);
        }
    }

    fn take_back(&mut self, give: u32) -> Result<(), Violation> {
        let number = self.chunks.give(give & !KEPT)?;
        // A chunk whose bytes are kept counts until they are read (`Request::Credit`).
        if give & KEPT == 0
            // The socket may be closed by now, and another be in its place.
            && let Some(socket) = self.sockets.find(number)
            && socket.credit(1)
        {
            self.ready.add(socket);
        }
        Ok(())
    }

    fn opened(
        &mut self,
        entry: &Entry,
        opened: Result<Id, SocketError>,
        kind: Kind,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<(), Violation> {
        let mut answer = Entry {
            tag: entry.tag,
            ..Entry::default()
        };
        match opened {
            Ok(id) => match self.sockets.add(id, kind, Reported::Nothing) {
                Some(socket) => {
                    let owner = Owner {
                        process: round.index,
                        place: socket.place(),
                    };
                    round.owners.insert(id, owner);
                    answer.socket = socket.number;
                    if let Some(local) = round.stack.local(id) {
                        answer = answer.at(local);
                    }
                    self.ready.add(socket);
                }
                None => {
                    round.stack.abort(id);
                    answer.argument = SocketError::Full.number();
                }
            },
            Err(error) => answer.argument = error.number(),
        }
        self.link.send(Event::Opened, answer).map(drop)
    }

    fn send(
        &mut self,
        entry: &Entry,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<(), Violation> {
        if entry.bytes.to_usize() > CHUNK_BYTES {
            return Err(Violation);
        }
        let found = self.delivery(|table| table.find_open(entry.socket));
        let Some(mut delivery) = found.filter(|it| {
            it.socket.kind != Kind::Listener && it.socket.requested == Requested::Nothing
        }) else {
            return self.refuse(entry, SocketError::NotOpen);
        };
        // Chunks that wait form a list, in the order of the requests.
        delivery.chunks.queue(entry, delivery.socket)?;
        // A queued socket has its turn in this round, after all requests of its process.
        if Ready::has(delivery.socket) {
            return Ok(());
        }
        // At once, while it is cached; the rest waits until the stack reports room.
        let has_room = match delivery.socket.kind {
            Kind::Udp => delivery.send_datagrams(round)?,
            _ => delivery.send_waiting(round)?,
        };
        if !has_room {
            delivery.ready.add(delivery.socket);
        }
        if delivery.socket.kind == Kind::Udp {
            delivery.look_again();
        }
        Ok(())
    }

    /// Returns a chunk that cannot be sent.
    fn refuse(&mut self, entry: &Entry, error: SocketError) -> Result<(), Violation> {
        let answer = Entry {
            tag: entry.tag,
            socket: entry.socket,
            chunk: entry.chunk,
            argument: error.number(),
            ..Entry::default()
        };
        self.link.send(Event::Sent, answer).map(drop)
    }
}

const BACKLOG_MAX: u32 = 65_536;
