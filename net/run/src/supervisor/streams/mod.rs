//! Bytes between pairs, or rings, and sessions.
//!
//! From a program: a read of the pair directly into a chunk that the stack sends from. To a
//! program: a write to the pair directly from the chunk that was received. Must stay true: bytes
//! without room stay where they are, so that each side applies back pressure to the other; ends and
//! resets pass in both directions.

mod ends;
mod requests;
mod ring;

use super::engine::Close;
use super::mark::Mark;
use super::rings::Rings;
use super::table::Table;
use super::{errno_of, named};
use crate::socket::files::{is_hung_up, limit_sending};
use crate::socket::{Backlog, Consumed, Holder, Inbound, Interest, Path, Socket, State, Stream};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sidecore_bare::width::ToUsize as _;
use sidecore_net::sock::client::{Buffer, Client, ClientError};
use sidecore_net_rings::{Broken, HELLO_BYTES, Hello};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// The streams' parts that are no socket's own.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) rings: Rings,
    /// Sockets whose rings are to be taken back once no copy is in progress.
    retaking: Vec<u64>,
    /// Sockets whose bytes wait for a buffer.
    starved: VecDeque<u64>,
    /// The last search for sessions that hold chunks without progress.
    reclaimed_at: Option<Instant>,
}

/// An end of a stream that was found while its bytes were moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The session was reset, or the program has corrupted its rings.
    Reset(Errno),
    /// The program has closed the socket, and bytes are left that it will never read.
    ClosedUnread,
}

/// Outcome of moving bytes: they wait for an event, or for a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Idle,
    Starved,
}

impl Streams {
    /// True while streams wait for a buffer, or to be taken back: no event reports either.
    pub(super) fn are_pressing(&self) -> bool {
        !self.starved.is_empty() || !self.retaking.is_empty()
    }

    /// Handles an event of a stream's far end.
    pub(super) fn look_at_pair(&mut self, table: &mut Table, inode: u64, flags: EventFlags) {
        let state = table.sockets.get_mut(&inode).map(|it| &mut it.state);
        let Some(State::Open(stream)) = state else {
            return;
        };
        let is_gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        if is_gone || flags.contains(EventFlags::RDHUP) {
            stream.outbound.see_end();
        }
        if stream.path.rings().is_some() && flags == EventFlags::IN {
            // The owner of the rings does not write to the pair, so another process has.
            self.take_back_soon(table, inode);
            self.retake(table);
            return;
        }
        if flags != EventFlags::OUT {
            self.take_from_program(table, inode);
        }
        if flags.contains(EventFlags::OUT) {
            self.give_to_program(table, inode);
        }
        if is_gone {
            end_gone(table, inode);
        }
    }

    /// Handles an event of a stream's session.
    pub(super) fn look_at_session(&mut self, table: &mut Table, inode: u64) {
        let state = table.sockets.get_mut(&inode).map(|it| &mut it.state);
        let Some(State::Open(stream)) = state else {
            return;
        };
        let is_waiting = stream.outbound.is_waiting();
        if is_waiting {
            stream.progress_at = Instant::now();
        }
        self.give_to_program(table, inode);
        // A chunk may have become free for bytes that wait in the pair.
        if is_waiting {
            self.take_waiting(table, inode);
        }
    }

    /// Continues with the pairs whose bytes found no buffer.
    pub(super) fn feed_starved(&mut self, table: &mut Table) {
        // Those that starve again are for the next round.
        for _ in 0..self.starved.len() {
            let free = table.engine.client.as_mut().map(Client::buffers_free);
            if free == Some(0) {
                return self.reclaim(table);
            }
            let Some(inode) = self.starved.pop_front() else {
                return;
            };
            self.take_waiting(table, inode);
        }
    }

    /// Moves bytes that have waited in the pair. They may be the last of a program that has closed
    /// the socket long ago: no further event of its pair comes then.
    fn take_waiting(&mut self, table: &mut Table, inode: u64) {
        let was_open = table.sockets.get(&inode).is_some_and(is_sending);
        self.take_from_program(table, inode);
        let socket = table.sockets.get(&inode).filter(|_| was_open);
        let has_ended = socket.filter(|it| !is_sending(it));
        if has_ended.is_some_and(|it| it.far.as_ref().is_some_and(is_hung_up)) {
            end_gone(table, inode);
        }
    }

    /// Ends sessions whose peers take nothing: their chunks are needed.
    #[cold]
    fn reclaim(&mut self, table: &mut Table) {
        let now = Instant::now();
        if self
            .reclaimed_at
            .is_some_and(|before| now - before < RECLAIM_EVERY)
        {
            return;
        }
        self.reclaimed_at = Some(now);
        let Some(client) = &table.engine.client else {
            return;
        };
        let is_stalled = |socket: &Socket| match &socket.state {
            State::Open(stream) => {
                let holds = client.sending(stream.engine) > 0;
                holds && now - stream.progress_at > STALLED
            }
            _ => false,
        };
        let stalled = table.sockets.iter().filter(|(_, it)| is_stalled(it));
        let stalled: Vec<u64> = stalled.map(|(inode, _)| *inode).collect();
        for inode in stalled.into_iter().take(RECLAIMED_MAX) {
            self.reset(table, inode, Errno::TIMEDOUT);
        }
    }

    /// A session has got the inode of its near end instead of its temporary number.
    pub(super) fn renumber(&mut self, key: u64, inode: u64) {
        for starved in self.starved.iter_mut().filter(|it| **it == key) {
            *starved = inode;
        }
    }

    /// Moves bytes from the program to the stack, as long as there is room.
    pub(super) fn take_from_program(&mut self, table: &mut Table, inode: u64) {
        let (Some(socket), Some(client)) =
            (table.sockets.get_mut(&inode), &mut table.engine.client)
        else {
            return;
        };
        match self.forward(socket, client) {
            Ok(Moved::Idle) => {}
            Ok(Moved::Starved) => self.starved.push_back(inode),
            Err(stop) => self.stop(table, inode, stop),
        }
    }

    fn forward(&mut self, socket: &mut Socket, client: &mut Client) -> Result<Moved, Stop> {
        let (State::Open(stream), Some(far)) = (&mut socket.state, &socket.far) else {
            return Ok(Moved::Idle);
        };
        let engine = stream.engine;
        stream.outbound.set_backlog(Backlog::None);
        while !stream.outbound.has_ended() {
            // One session cannot take all chunks, nor can some whose peers take nothing: the
            // second half of the chunks is for those that have none.
            let sending = client.sending(engine);
            // Chunks hold an eighth of what the program allows, or one.
            let most = socket.send_bytes.map_or(SENDING_MAX, |bytes| {
                (bytes / (8 * CHUNK)).clamp(1, SENDING_MAX)
            });
            let free = client.buffers_free();
            let is_enough = match sending {
                0 => free == 0,
                _ => {
                    let is_short = free <= client.buffers_max() / 2;
                    sending >= most || is_short || !client.takes(engine)
                }
            };
            if is_enough {
                stream.outbound.set_backlog(Backlog::Waiting);
                // Without a chunk on its way, no event of the session comes.
                return Ok(match sending {
                    0 => Moved::Starved,
                    _ => Moved::Idle,
                });
            }
            let Some(mut buffer) = client.buffer() else {
                return Ok(Moved::Starved);
            };
            let room = buffer.bytes_mut();
            let room_bytes = socket.send_bytes.map_or(room.len(), |it| it.to_usize() / 2);
            let room_bytes = stream.head.room(room_bytes.min(room.len()));
            let room = &mut room[..room_bytes];
            let count = match ring::fetch(&mut self.rings, stream, far, room) {
                Ok(0) => {
                    client.give_buffer_back(buffer);
                    stream.outbound.end();
                    // A shutdown(2) ends the sending only; after a close, the whole session is
                    // closed.
                    if !is_hung_up(far) {
                        client.shutdown(engine).ok();
                    }
                    return Ok(Moved::Idle);
                }
                Ok(count) => count,
                Err(error) => {
                    client.give_buffer_back(buffer);
                    return match error {
                        // The program closed with unread bytes: its peer gets a reset (RFC 1122
                        // section 4.2.2.13).
                        Errno::CONNRESET => Err(Stop::ClosedUnread),
                        _ => Ok(Moved::Idle),
                    };
                }
            };
            match stream.head.consume(&room[..count]) {
                Consumed::Data => {}
                Consumed::Filler => {
                    client.give_buffer_back(buffer);
                    continue;
                }
                Consumed::Greeting(hello) => {
                    socket.holder = Holder {
                        thread: hello.thread,
                        descriptor: hello.descriptor,
                        process: 0,
                    };
                    if let Some(bytes) = socket.send_bytes {
                        limit_accepted(far, socket.holder, bytes);
                    }
                    if let Some(window) = socket.window_max {
                        limit_sending(far.as_fd(), 2 * window);
                    }
                    client.give_buffer_back(buffer);
                    continue;
                }
            }
            if !send(client, stream, buffer, count)? {
                return Ok(Moved::Idle);
            }
            if sending == 0 {
                // What waits from now on waits since now.
                stream.progress_at = Instant::now();
            }
            // A short read has emptied the pair: new bytes trigger a new event.
            if count < room_bytes && !stream.may_have_more() {
                return Ok(Moved::Idle);
            }
        }
        Ok(Moved::Idle)
    }

    /// Moves bytes from the stack to the program, as long as there is room.
    pub(super) fn give_to_program(&mut self, table: &mut Table, inode: u64) {
        let (Some(socket), Some(client)) =
            (table.sockets.get_mut(&inode), &mut table.engine.client)
        else {
            return;
        };
        if let Err(stop) = self.deliver(socket, client, &table.epoll, inode) {
            self.stop(table, inode, stop);
        }
    }

    fn deliver(
        &mut self,
        socket: &mut Socket,
        client: &mut Client,
        epoll: &OwnedFd,
        inode: u64,
    ) -> Result<(), Stop> {
        let (State::Open(stream), Some(far)) = (&mut socket.state, &socket.far) else {
            return Ok(());
        };
        loop {
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
                            ring::give_end(&mut self.rings, stream, far);
                        }
                        return Ok(());
                    }
                    Err(ClientError::Socket(error)) => {
                        return Err(Stop::Reset(errno_of(&error.into())));
                    }
                    // The loop notices that the engine is gone.
                    Err(_) => return Ok(()),
                },
            };
            let left = &bytes[*at..];
            let given = match &mut stream.path {
                Path::Rings(ring) => match ring::give(ring, left) {
                    Ok(count) => {
                        if count > 0 {
                            self.rings.notify(ring);
                        }
                        Given::Bytes(count)
                    }
                    // The program has corrupted its positions.
                    Err(Broken) => return Err(Stop::Reset(Errno::CONNRESET)),
                },
                Path::Pair | Path::PairOnly | Path::Reclaimed(_) => give_to_pair(far, left)?,
            };
            match given {
                // The program notifies when the ring has room again.
                Given::Bytes(0) if !left.is_empty() => return Ok(()),
                Given::Bytes(count) => *at += count,
                Given::Full => {
                    if stream.interest.add_room() {
                        watch(epoll, far, inode, stream.interest);
                    }
                    return Ok(());
                }
                Given::NoMemory => {
                    stream.interest.add_room();
                    // Armed anew, a pair that is writable is reported in the next round.
                    watch(epoll, far, inode, stream.interest);
                    return Ok(());
                }
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

    /// Ends a stream that cannot go on.
    fn stop(&mut self, table: &mut Table, inode: u64, stop: Stop) {
        match stop {
            Stop::Reset(errno) => self.reset(table, inode, errno),
            Stop::ClosedUnread => {
                if let Some(socket) = table.sockets.get_mut(&inode) {
                    socket.resets_on_close = true;
                }
                table.forget(inode);
            }
        }
    }
}

/// Bounds what the near end of a session holds that its program has accepted directly.
fn limit_accepted(far: &OwnedFd, holder: Holder, send_bytes: u32) {
    let inode = crate::caller::socket_inode(holder.thread, holder.descriptor);
    let near = inode.and_then(|inode| holder.fetch(inode));
    let name = named::own_name(far);
    // The descriptor may be another socket's by now.
    if let Some(near) = near.filter(|near| name.is_some() && named::peers_name(near) == name) {
        limit_sending(near.as_fd(), send_bytes);
    }
}

/// True while bytes of the program may come.
fn is_sending(socket: &Socket) -> bool {
    matches!(&socket.state, State::Open(stream) if !stream.outbound.has_ended())
}

/// Ends a session whose pair is hung up, once the stack has all bytes that the program wrote
/// before it closed the socket.
fn end_gone(table: &mut Table, inode: u64) {
    match table.sockets.get(&inode).map(|socket| &socket.state) {
        Some(State::Open(stream)) if !stream.outbound.has_ended() => {}
        // A pair reports the same for both shutdowns as for the program's close.
        Some(State::Open(stream))
            if stream.is_shut && (stream.is_deaf || stream.inbound != Inbound::Open) =>
        {
            table.end_shut(inode);
        }
        Some(State::Open(_)) => table.forget(inode),
        _ => {}
    }
}

/// Passes bytes of a program on to the stack; false if the engine is gone.
fn send(client: &mut Client, stream: &Stream, buffer: Buffer, count: usize) -> Result<bool, Stop> {
    match client.send(stream.engine, buffer, count) {
        Ok(()) => Ok(true),
        Err(ClientError::Socket(error)) => Err(Stop::Reset(errno_of(&error.into()))),
        // The loop notices it.
        Err(_) => Ok(false),
    }
}

/// Outcome of a write to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    Bytes(usize),
    /// The pair has no room.
    Full,
    /// The machine has no memory for more at present.
    NoMemory,
}

fn give_to_pair(far: &OwnedFd, bytes: &[u8]) -> Result<Given, Stop> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(far, bytes, flags) {
        Ok(count) => Ok(Given::Bytes(count)),
        Err(error) => judge_refusal(error, bytes.len(), || is_hung_up(far)),
    }
}

/// The outcome of a write to a program of `bytes` bytes that failed.
fn judge_refusal(
    error: Errno,
    bytes: usize,
    is_hung_up: impl FnOnce() -> bool,
) -> Result<Given, Stop> {
    match error {
        Errno::AGAIN => Ok(Given::Full),
        Errno::NOBUFS | Errno::NOMEM | Errno::INTR => Ok(Given::NoMemory),
        _ if is_hung_up() => Err(Stop::ClosedUnread),
        // The program shut down reading (shutdown(2)), and may still send: the bytes are discarded.
        _ => Ok(Given::Bytes(bytes)),
    }
}

/// Sets the epoll data of a pair, and its events.
pub(super) fn watch(epoll: &OwnedFd, far: &OwnedFd, inode: u64, interest: Interest) {
    epoll::modify(epoll, far, Mark::Far(inode).data(), interest.flags()).ok();
}

/// Time without progress after which a session's chunks are reclaimed, if others have none.
const STALLED: Duration = Duration::from_secs(10);
/// Time between two searches for such sessions.
const RECLAIM_EVERY: Duration = Duration::from_secs(1);
/// Sessions that one search ends.
const RECLAIMED_MAX: usize = 64;
/// Bytes of a chunk.
const CHUNK: u32 = 16 << 10;
/// Chunks of 16 KiB in flight per session, at most.
const SENDING_MAX: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// A shortage of memory counted as shut for reading, and the bytes were lost.
    #[test]
    fn bytes_are_discarded_only_where_no_program_reads_them() {
        let never = || -> bool { panic!("the pair is not the reason") };
        for error in [Errno::NOBUFS, Errno::NOMEM, Errno::INTR] {
            assert_eq!(judge_refusal(error, 7, never), Ok(Given::NoMemory));
        }
        assert_eq!(judge_refusal(Errno::AGAIN, 7, never), Ok(Given::Full));
        let shut = judge_refusal(Errno::PIPE, 7, || false);
        assert_eq!(shut, Ok(Given::Bytes(7)));
        let closed = judge_refusal(Errno::PIPE, 7, || true);
        assert_eq!(closed, Err(Stop::ClosedUnread));
    }
}
