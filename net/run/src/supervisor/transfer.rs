//! Bytes between pairs and sessions.
//!
//! From a program: a read of the pair directly into a chunk that the stack sends from. To a
//! program: a write to the pair directly from the chunk that was received. Must stay true: bytes
//! without room stay where they are, so that each side applies back pressure to the other; ends and
//! resets pass in both directions.

use super::named;
use super::{Supervisor, errno_of};
use crate::caller;
use crate::socket::{RingEnd, State, Stream, is_hung_up};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use sidecore_net::sock::client::ClientError;
use sidecore_net_rings::{Broken, HELLO_BYTES, Hello, Stream as Rings};
use sidecore_sync::Changed;
use std::os::fd::OwnedFd;

impl Supervisor {
    /// Handles an event of a far end.
    pub(super) fn look_at_pair(&mut self, inode: u64, flags: EventFlags) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let is_gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let is_ending = is_gone || flags.contains(EventFlags::RDHUP);
        match &mut socket.state {
            State::Open(stream) => {
                stream.near_is_ending |= is_ending;
                let has_rings = stream.ring.as_ref().is_some_and(|ring| !ring.is_back);
                if has_rings && flags == EventFlags::IN {
                    // The owner of the rings does not write to the pair, so another process has.
                    self.take_back_soon(inode);
                    self.retake();
                    return;
                }
                if flags != EventFlags::OUT {
                    self.take_from_program(inode);
                }
                if flags.contains(EventFlags::OUT) {
                    self.give_to_program(inode);
                }
                if is_gone && self.has_ended(inode) {
                    self.forget(inode);
                }
            }
            State::Datagram(_) => {
                self.take_datagrams(inode);
                // HUP or ERR: the kernel has refused a datagram to the program.
                if is_gone && self.is_closed(inode) {
                    self.forget(inode);
                }
            }
            State::Doomed => {
                self.take_hello(inode);
                if is_gone {
                    self.forget(inode);
                }
            }
            // A session that no program waits for any more is not opened.
            _ if is_gone => self.forget(inode),
            _ => {}
        }
    }

    /// Processes the stack's events.
    pub(super) fn take_session_events(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(client) = &mut self.client else {
                return;
            };
            let Some(session) = client.next_ready() else {
                return;
            };
            let Some(&inode) = self.sessions.get(&session) else {
                continue;
            };
            let Some(socket) = self.sockets.get(&inode) else {
                continue;
            };
            match socket.state {
                State::Open(ref stream) => {
                    let near_waits = stream.near_waits;
                    self.give_to_program(inode);
                    // A chunk may have become free for bytes that wait in the pair.
                    if near_waits {
                        self.take_from_program(inode);
                    }
                }
                State::Listening(_) => self.take_accepted(inode),
                State::Connecting(_) => {
                    self.finish_connecting(inode);
                    self.give_to_program(inode);
                }
                State::Datagram(_) => self.give_datagrams(session),
                _ => {}
            }
        }
    }

    /// Continues with the pairs whose bytes found no buffer.
    pub(super) fn feed_starved(&mut self) {
        for _ in 0..self.starved.len() {
            let Some(inode) = self.starved.pop_front() else {
                return;
            };
            match self.sockets.get(&inode).map(|socket| &socket.state) {
                Some(State::Datagram(_)) => self.take_datagrams(inode),
                _ => self.take_from_program(inode),
            }
        }
    }

    /// Moves bytes from the pair to the stack, as long as there is room.
    pub(super) fn take_from_program(&mut self, inode: u64) {
        let (Some(socket), Some(client)) = (self.sockets.get_mut(&inode), &mut self.client) else {
            return;
        };
        let (State::Open(stream), Some(far)) = (&mut socket.state, &socket.far) else {
            return;
        };
        let engine = stream.engine;
        stream.near_waits = false;
        while !stream.near_ended {
            // One session cannot take all chunks.
            if client.sending(engine) >= SENDING_MAX {
                stream.near_waits = true;
                return;
            }
            let Some(mut buffer) = client.buffer() else {
                self.starved.push_back(inode);
                return;
            };
            let room = buffer.bytes_mut();
            // Padding and the greeting of the accepting program precede the data.
            let room_bytes = match (stream.filler, stream.hello) {
                (0, None) => room.len(),
                (0, Some(_)) => HELLO_BYTES,
                (filler, _) => room.len().min(filler),
            };
            let room = &mut room[..room_bytes];
            let fetched = fetch(&mut self.rings, stream, far, room);
            let greeted = match fetched {
                Ok(count) if count > 0 && stream.filler == 0 => {
                    (stream.hello.take()).and_then(|number| Hello::read(&room[..count], number))
                }
                _ => None,
            };
            if let Some(hello) = greeted {
                socket.holder = (hello.thread, hello.descriptor);
                client.give_buffer_back(buffer);
                continue;
            }
            match fetched {
                Ok(count) if count > 0 && stream.filler > 0 => {
                    stream.filler -= count;
                    client.give_buffer_back(buffer);
                }
                Ok(0) => {
                    client.give_buffer_back(buffer);
                    stream.near_ended = true;
                    // A shutdown(2) ends the sending only; after a close, the whole session is
                    // closed.
                    if !is_hung_up(far) {
                        client.shutdown(engine).ok();
                    }
                }
                Ok(count) => match client.send(engine, buffer, count) {
                    // The pair is empty: new bytes trigger a new event.
                    Ok(()) if count < room_bytes && !stream.may_have_more() => return,
                    Ok(()) => {}
                    Err(ClientError::Socket(error)) => {
                        let error = errno_of(&error.into());
                        self.reset(inode, error);
                        return;
                    }
                    // The loop notices that the engine is gone.
                    Err(_) => return,
                },
                Err(Errno::CONNRESET) => {
                    // The program closed with unread bytes: its peer gets a reset (RFC 1122 section
                    // 4.2.2.13).
                    client.give_buffer_back(buffer);
                    socket.resets_on_close = true;
                    self.forget(inode);
                    return;
                }
                Err(_) => {
                    client.give_buffer_back(buffer);
                    return;
                }
            }
        }
    }

    /// Moves bytes from the stack to the pair, as long as there is room.
    pub(super) fn give_to_program(&mut self, inode: u64) {
        loop {
            let (Some(socket), Some(client)) = (self.sockets.get_mut(&inode), &mut self.client)
            else {
                return;
            };
            let (State::Open(stream), Some(far)) = (&mut socket.state, &socket.far) else {
                return;
            };
            let ring = stream.ring.as_mut().filter(|ring| !ring.is_back);
            // Bytes of rings that were taken back precede those received since.
            let (bytes, at) = match (&mut stream.leftover, &mut stream.carried) {
                (Some((bytes, at)), _) => (bytes.as_slice(), at),
                (None, Some((piece, at))) => (piece.bytes(), at),
                (None, None) => match client.receive(stream.engine) {
                    Ok(Some(piece)) => {
                        stream.carried = Some((piece, 0));
                        continue;
                    }
                    Ok(None) => {
                        let readiness = client.readiness(stream.engine);
                        if readiness.ended || readiness.closed {
                            tell_end(&mut self.rings, stream, far);
                        }
                        return;
                    }
                    Err(ClientError::Socket(error)) => {
                        let error = errno_of(&error.into());
                        self.reset(inode, error);
                        return;
                    }
                    Err(_) => return,
                },
            };
            let given = match ring {
                Some(ring) => {
                    let given = give(ring, &bytes[*at..]);
                    if given.is_ok_and(|count| count > 0) {
                        self.rings.tell(ring);
                    }
                    given.map_err(|Broken| Stop::Broken)
                }
                None => give_to_pair(far, &bytes[*at..]),
            };
            match given {
                // The program notifies when the ring has room again.
                Ok(0) if *at < bytes.len() => return,
                Ok(count) => *at += count,
                Err(Stop::Full) => {
                    watch_room(&self.epoll, far, inode, &mut stream.watches_room);
                    return;
                }
                Err(Stop::Gone) => {
                    // The bytes will never be read: their sender gets a reset.
                    socket.resets_on_close = true;
                    self.forget(inode);
                    return;
                }
                Err(Stop::Broken) => return self.reset(inode, Errno::CONNRESET),
            }
            if *at < bytes.len() {
                continue;
            }
            if stream.leftover.take().is_none()
                && let Some((piece, _)) = stream.carried.take()
            {
                client.release(piece);
            }
        }
    }

    /// True once the stack has all bytes that a program wrote before it closed the socket.
    fn has_ended(&self, inode: u64) -> bool {
        let state = self.sockets.get(&inode).map(|socket| &socket.state);
        matches!(state, Some(State::Open(stream)) if stream.near_ended)
    }

    /// The session was reset, or cannot continue: the program's calls fail.
    pub(super) fn reset(&mut self, inode: u64, error: Errno) {
        self.fail_waiting(inode, error);
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let engines = socket.engines();
        let connects = matches!(socket.state, State::Connecting(_));
        if let State::Open(stream) = &mut socket.state
            && stream.hello.is_some()
        {
            // It is not accepted yet: the accepting program has to see the reset.
            socket.state = State::Doomed;
            for engine in engines {
                self.sessions.remove(&engine);
                self.close_session(engine, true);
            }
            return self.take_hello(inode);
        }
        let far = socket.far.take();
        let ring = match &mut socket.state {
            State::Open(stream) => stream.ring.take(),
            _ => None,
        };
        socket.state = if connects {
            State::Failed(Some(error))
        } else {
            State::Over
        };
        let holder = socket.holder;
        self.unseen += 1;
        if let Some(ring) = ring
            && let Some(view) = ring.view()
        {
            view.fail(error.raw_os_error());
            self.rings.tell(&ring);
        }
        if let Some(far) = &far {
            leave_unread(far, inode, holder);
        }
        // Closing it with unread bytes is a reset for the near end.
        drop(far);
        for engine in engines {
            self.sessions.remove(&engine);
            self.close_session(engine, true);
        }
    }
}

impl Supervisor {
    /// Checks if a failed session was accepted meanwhile.
    fn take_hello(&mut self, inode: u64) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let (State::Doomed, Some(far), Some(number)) = (&socket.state, &socket.far, socket.named)
        else {
            return;
        };
        let mut bytes = [0; HELLO_BYTES];
        let received = rustix::net::recv(far, &mut bytes, RecvFlags::DONTWAIT);
        if let Ok((_, count)) = received
            && let Some(hello) = Hello::read(&bytes[..count], number)
        {
            socket.holder = (hello.thread, hello.descriptor);
            self.end_doomed(inode);
        }
    }

    /// Resets a failed session towards the program that has accepted it.
    pub(super) fn end_doomed(&mut self, inode: u64) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        if !matches!(socket.state, State::Doomed) {
            return;
        }
        socket.state = State::Over;
        self.unseen += 1;
        if let Some(far) = socket.far.take() {
            leave_unread(&far, inode, socket.holder);
        }
    }
}

impl Stream {
    /// True if bytes may be left after a read without a new event.
    fn may_have_more(&self) -> bool {
        self.near_is_ending || self.ring.as_ref().is_some_and(|ring| ring.is_back)
    }
}

/// Bytes that a program wrote: first those in rings, then those in the pair.
fn fetch(
    rings: &mut super::rings::Rings,
    stream: &mut Stream,
    far: &OwnedFd,
    room: &mut [u8],
) -> Result<usize, Errno> {
    if let Some(ring) = &mut stream.ring {
        // A stream with rings has no filler left.
        let taken = take(ring, room)?;
        if taken > 0 {
            let _ = Changed::publish();
            let view = ring.view();
            if view.is_some_and(Rings::program_waits) {
                rings.tell(ring);
            }
            return Ok(taken);
        }
        if !ring.is_back && !stream.near_is_ending {
            return Err(Errno::AGAIN);
        }
    }
    let received = rustix::net::recv(far, &mut *room, RecvFlags::DONTWAIT);
    let received = received.map(|(_, count)| count);
    if received == Ok(0)
        && let Some(ring) = &mut stream.ring
    {
        // Bytes in the rings were written before the pair was closed.
        let taken = take(ring, room)?;
        if taken == 0 && unread(ring) && is_hung_up(far) {
            return Err(Errno::CONNRESET);
        }
        return Ok(taken);
    }
    received
}

fn take(ring: &mut RingEnd, room: &mut [u8]) -> Result<usize, Errno> {
    let view = ring.view().ok_or(Errno::CONNRESET)?;
    let mut served = ring.served;
    let taken = view.take(&mut served, room);
    ring.served = served;
    taken.map_err(|Broken| Errno::CONNRESET)
}

/// True if the program has left bytes unread in a ring.
fn unread(ring: &RingEnd) -> bool {
    let view = ring.view();
    let unread = view.and_then(|view| view.unread(&ring.served).ok());
    !ring.is_back && unread.is_some_and(|unread| !unread.is_empty())
}

/// Writes to a ring; if it is full, the program notifies when it has room.
fn give(ring: &mut RingEnd, bytes: &[u8]) -> Result<usize, Broken> {
    let view = ring.view().ok_or(Broken)?;
    let mut served = ring.served;
    let mut given = view.give(&mut served, bytes)?;
    if given == 0 {
        view.wait_for_reading();
        let _ = Changed::publish();
        given = view.give(&mut served, bytes)?;
    }
    ring.served = served;
    Ok(given)
}

/// Reports that the peer sends no more: through the rings if there are any, else through the pair,
/// which then takes no more bytes.
fn tell_end(rings: &mut super::rings::Rings, stream: &mut Stream, far: &OwnedFd) {
    match stream.ring.as_ref().filter(|ring| !ring.is_back) {
        Some(ring) => {
            if !std::mem::replace(&mut stream.peer_ended, true)
                && let Some(view) = ring.view()
            {
                view.end();
                rings.tell(ring);
            }
        }
        None => {
            stream.peer_ended = true;
            if !std::mem::replace(&mut stream.pair_is_told, true) {
                rustix::net::shutdown(far, Shutdown::Write).ok();
            }
        }
    }
}

/// The reason why bytes cannot be given to a program.
enum Stop {
    /// The pair has no room.
    Full,
    /// The program has closed the socket.
    Gone,
    /// The program has corrupted its rings.
    Broken,
}

fn give_to_pair(far: &OwnedFd, bytes: &[u8]) -> Result<usize, Stop> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(far, bytes, flags) {
        Ok(count) => Ok(count),
        Err(Errno::AGAIN) => Err(Stop::Full),
        Err(_) if is_hung_up(far) => Err(Stop::Gone),
        // The program shut down reading (shutdown(2)), and may still send: the bytes are discarded.
        Err(_) => Ok(bytes.len()),
    }
}

/// Arms EPOLLOUT for a pair.
fn watch_room(epoll: &OwnedFd, far: &OwnedFd, inode: u64, watches_room: &mut bool) {
    if !std::mem::replace(watches_room, true) {
        watch(epoll, far, inode, true);
    }
}

/// Sets the epoll data of a pair, and arms EPOLLOUT if `room`.
pub(super) fn watch(epoll: &OwnedFd, far: &OwnedFd, inode: u64, room: bool) {
    let mut flags = super::WATCHED;
    flags.set(EventFlags::OUT, room);
    epoll::modify(epoll, far, EventData::new_u64(inode), flags).ok();
}

/// Makes sure that a far end has unread bytes.
fn leave_unread(far: &OwnedFd, inode: u64, holder: (i32, i32)) {
    if rustix::io::ioctl_fionread(far).is_ok_and(|bytes| bytes > 0) {
        return;
    }
    let (thread, descriptor) = holder;
    let near = if named::is_accepting(inode) {
        // Its inode is not known, but the name of its peer is.
        let name = named::own_name(far);
        let number = caller::socket_inode(thread, descriptor);
        let near = number.and_then(|number| caller::fetch_socket(thread, descriptor, number));
        near.filter(|near| name.is_some() && named::peers_name(near) == name)
    } else {
        caller::fetch_socket(thread, descriptor, inode)
    };
    if let Some(near) = near {
        // If that fails, the program reads an end of file instead of a reset.
        rustix::net::send(&near, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).ok();
    }
}

/// Chunks of 16 KiB in flight per session.
const SENDING_MAX: u32 = 32;
/// Events that one round takes.
const EVENTS_MAX: usize = 1024;
