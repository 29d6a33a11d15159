//! Requests of a process.

use super::books::Kind;
use super::{Client, Round};
use crate::sock::layout::{CHUNK_BYTES, Entry, Event, KEPT, NO_CHUNK, Request};
use crate::sock::ring::Violation;
use crate::sock::stack::{Id, SocketError, SocketOption, Sockets};

impl Client {
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
                let backlog = entry.argument.clamp(1, BACKLOG_MAX) as usize;
                let opened = round.stack.listen(entry.socket_address(), backlog);
                self.opened(entry, opened, Kind::Listener, round)
            }
            Request::Connect => {
                let opened = round
                    .stack
                    .connect(entry.socket_address(), entry.argument as u16);
                self.opened(entry, opened, Kind::Session, round)
            }
            Request::BindUdp => {
                let opened = round.stack.bind_udp(entry.socket_address());
                self.opened(entry, opened, Kind::Udp, round)
            }
            Request::Send => self.send(entry, round),
            Request::Give => Ok(()),
            // A socket that is over is ignored here and below: the process may not have read the
            // event yet.
            Request::Shutdown => {
                self.check_whole(entry)?;
                self.with_socket(entry, |socket| socket.shutdown_asked = true);
                Ok(())
            }
            Request::Close => {
                self.check_whole(entry)?;
                self.with_socket(entry, |socket| socket.close_asked = true);
                self.free_address(entry.socket, round);
                Ok(())
            }
            Request::Abort => {
                self.with_socket(entry, |socket| {
                    socket.close_asked = true;
                    socket.abort_asked = true;
                });
                Ok(())
            }
            Request::Credit => {
                if let Some(place) = self.sockets.find(entry.socket) {
                    self.credit(place, entry.argument);
                }
                Ok(())
            }
            Request::Option => {
                let option = SocketOption::from_numbers(entry.argument, entry.bytes);
                if let (Some(place), Some(option)) = (self.sockets.find(entry.socket), option)
                    && let Some(socket) = self.sockets.get(place)
                {
                    // Fails if the session is over, which is fine.
                    round.stack.set(socket.id, option).ok();
                }
                Ok(())
            }
        }
    }

    /// Closes a socket that is being closed and has nothing to send: the next request may need its
    /// address.
    fn free_address(&mut self, number: u32, round: &mut Round<'_, impl Sockets>) {
        if let Some(place) = self.sockets.find_closing(number)
            && let Some(socket) = self.sockets.get(place)
            && socket.kind != Kind::Session
            && socket.first == NO_CHUNK
        {
            self.let_go(place, round);
        }
    }

    /// Changes a socket and queues it for the next look.
    fn with_socket(&mut self, entry: &Entry, change: impl FnOnce(&mut super::books::Socket)) {
        // An unknown number belongs to a socket that was closed.
        if let Some(place) = self.sockets.find(entry.socket)
            && let Some(socket) = self.sockets.get(place)
        {
            change(socket);
            self.make_ready(place);
        }
    }

    /// Refuses a request that would end a socket in the middle of a datagram.
    fn check_whole(&mut self, entry: &Entry) -> Result<(), Violation> {
        let place = self.sockets.find(entry.socket);
        match place.and_then(|place| self.sockets.get(place)) {
            Some(socket) if socket.first != NO_CHUNK && self.chunks.is_begun(socket.last) => {
                Err(Violation)
            }
            _ => Ok(()),
        }
    }

    fn take_back(&mut self, give: u32) -> Result<(), Violation> {
        let place = self.chunks.give(give & !KEPT).ok_or(Violation)?;
        if give & KEPT == 0 {
            // The socket may be closed by now and its place reused: then the new one may borrow one
            // more.
            self.credit(place, 1);
        }
        Ok(())
    }

    /// Credits `count` chunks of a socket that the process has read.
    fn credit(&mut self, place: u32, count: u32) {
        if let Some(socket) = self.sockets.get(place) {
            let was_at_limit = socket.lent >= super::deliver::LENT_MAX;
            socket.lent = socket.lent.saturating_sub(count);
            if was_at_limit {
                self.make_ready(place);
            }
        }
    }

    fn opened(
        &mut self,
        entry: &Entry,
        opened: Result<Id, SocketError>,
        kind: Kind,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<(), Violation> {
        let mut answer = Entry {
            kind: Event::Opened as u32,
            tag: entry.tag,
            ..Entry::default()
        };
        match opened {
            Ok(id) => match self.sockets.add(id, kind, false) {
                Some(place) => {
                    round.owners.insert(id, (round.index, place));
                    answer.socket = self.sockets.number(place);
                    if let Some(local) = round.stack.local(id) {
                        answer = answer.at(local);
                    }
                    self.make_ready(place);
                }
                None => {
                    round.stack.abort(id);
                    answer.argument = SocketError::Full as u32;
                }
            },
            Err(error) => answer.argument = error as u32,
        }
        self.send_event(&answer).map(drop)
    }

    fn send(
        &mut self,
        entry: &Entry,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<(), Violation> {
        if entry.bytes as usize > CHUNK_BYTES {
            return Err(Violation);
        }
        let place = self.sockets.find(entry.socket);
        let socket = place.and_then(|place| self.sockets.get(place));
        let Some((place, socket)) = place.zip(socket) else {
            return self.refuse(entry, SocketError::NotOpen);
        };
        if socket.kind == Kind::Listener || socket.shutdown_asked {
            return self.refuse(entry, SocketError::NotOpen);
        }
        let kind = socket.kind;
        // Chunks that wait form a list, in the order of the requests.
        if !self.chunks.take(entry, kind == Kind::Udp) {
            return Err(Violation);
        }
        if socket.first == NO_CHUNK {
            socket.first = entry.chunk;
        } else if let Some(last) = self.chunks.sending(socket.last) {
            last.next = entry.chunk;
        }
        socket.last = entry.chunk;
        // At once, while it is cached; the rest waits until the stack reports room.
        if self.sockets.queue(place) {
            self.sockets.unqueue(place);
            let notified = match kind {
                Kind::Udp => self.send_datagrams(place, round)?,
                _ => self.send_waiting(place, round)?,
            };
            if !notified {
                self.make_ready(place);
            }
            self.look_again(place);
        }
        Ok(())
    }

    fn refuse(&mut self, entry: &Entry, error: SocketError) -> Result<(), Violation> {
        let answer = Entry {
            kind: Event::Sent as u32,
            tag: entry.tag,
            socket: entry.socket,
            chunk: entry.chunk,
            argument: error as u32,
            ..Entry::default()
        };
        self.send_event(&answer).map(drop)
    }
}

const BACKLOG_MAX: u32 = 65_536;
