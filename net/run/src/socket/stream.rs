//! State of an open session: a small machine for each direction, for the path of its bytes, and for
//! what is watched and reported of it.
//!
//! Must stay true: an end passes once in each direction, behind all bytes that precede it; a stream
//! that has given up its rings never gets others. The machines do no I/O: `supervisor::streams`
//! moves the bytes.

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use sidecore_net::sock::client::{Received, Socket as Session};
use sidecore_net_rings::{HELLO_BYTES, Hello, Served, Stream as Rings};
use sidecore_sys::SharedMap;
use std::rc::Rc;
use std::time::Instant;

/// State of an open session.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) engine: Session,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) report: Report,
    pub(crate) head: Head,
    pub(crate) interest: Interest,
    pub(crate) path: Path,
    /// A received piece, and how many of its bytes were written to the pair.
    pub(crate) carried: Option<(Received, usize)>,
    /// Unread bytes of rings that were taken back, and how many of them were written to the pair.
    pub(crate) leftover: Option<(Vec<u8>, usize)>,
    /// The time when the stack last took bytes, while more wait.
    pub(crate) progress_at: Instant,
    /// The program has shut it down for sending.
    pub(crate) is_shut: bool,
    /// The program has ended its receiving by shutdown(2).
    pub(crate) is_deaf: bool,
}

impl Stream {
    /// A session of the stack that is joined to the pair.
    pub(crate) fn new(engine: Session, report: Report, head: Head) -> Self {
        Self {
            engine,
            outbound: Outbound::Open(Backlog::None),
            inbound: Inbound::Open,
            report,
            head,
            interest: Interest::Input,
            path: Path::Pair,
            carried: None,
            leftover: None,
            progress_at: Instant::now(),
            is_shut: false,
            is_deaf: false,
        }
    }

    /// True if bytes may be left after a read without a new event.
    pub(crate) fn may_have_more(&self) -> bool {
        // The end of the pair was the last event of it, and rings that were taken back have none.
        matches!(self.outbound, Outbound::Ending(_)) || matches!(self.path, Path::Reclaimed(_))
    }

    /// True once either direction has ended, or is about to.
    pub(crate) fn is_ending(&self) -> bool {
        !matches!(self.outbound, Outbound::Open(_)) || self.inbound != Inbound::Open
    }
}

/// The direction from the program to the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outbound {
    /// The program may send.
    Open(Backlog),
    /// The program was seen to send no more; earlier bytes may still be in the pair.
    Ending(Backlog),
    /// The stack has all bytes, and was notified of the end.
    Ended,
}

/// Bytes that the program has written and the stack does not take yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backlog {
    /// None is known of.
    None,
    /// Bytes wait in the pair because the stack had no room.
    Waiting,
}

impl Outbound {
    /// The pair has reported that the program sends no more.
    pub(crate) fn see_end(&mut self) {
        if let Self::Open(backlog) = *self {
            *self = Self::Ending(backlog);
        }
    }

    /// The last byte has passed.
    pub(crate) fn end(&mut self) {
        *self = Self::Ended;
    }

    pub(crate) fn has_ended(self) -> bool {
        self == Self::Ended
    }

    pub(crate) fn set_backlog(&mut self, now: Backlog) {
        match self {
            Self::Open(backlog) | Self::Ending(backlog) => *backlog = now,
            Self::Ended => {}
        }
    }

    /// True if bytes wait for the stack.
    pub(crate) fn is_waiting(self) -> bool {
        matches!(
            self,
            Self::Open(Backlog::Waiting) | Self::Ending(Backlog::Waiting)
        )
    }
}

/// The direction from the stack to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inbound {
    /// The peer may send.
    Open,
    /// The program was notified of the end through its rings.
    EndedInRings,
    /// The pair takes no more bytes (shutdown(2)); every process that has it sees the end.
    EndedInPair,
}

/// The way by which a program has to be notified of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Through the rings.
    Rings,
    /// Through the pair.
    Pair,
}

impl Inbound {
    /// The peer sends no more, and the program has all earlier bytes. Returns the notice that is
    /// due. An end that passed in rings is repeated in the pair once the rings are taken back,
    /// because other processes read the pair alone.
    pub(crate) fn end(&mut self, has_rings: bool) -> Option<Notice> {
        let (next, notice) = match (*self, has_rings) {
            (Self::Open, true) => (Self::EndedInRings, Some(Notice::Rings)),
            (Self::Open | Self::EndedInRings, false) => (Self::EndedInPair, Some(Notice::Pair)),
            (ended @ (Self::EndedInRings | Self::EndedInPair), _) => (ended, None),
        };
        *self = next;
        notice
    }
}

/// The report of a success by connect(2), which is made once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// No call has reported it.
    Due,
    /// A call has.
    Made,
}

impl Report {
    /// Makes the report.
    ///
    /// # Errors
    /// `EISCONN`: it was made before.
    pub(crate) fn make(&mut self) -> Result<(), Errno> {
        match std::mem::replace(self, Self::Made) {
            Self::Due => Ok(()),
            Self::Made => Err(Errno::ISCONN),
        }
    }
}

/// Bytes at the head of a pair that are no data of the program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// None are left.
    Data,
    /// Padding, in bytes, which kept the near end from being writable.
    Filler(usize),
    /// The greeting of the program that accepts the session directly, with this number of its name.
    Greeting(u64),
}

/// Bytes that were read from a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consumed {
    /// Data of the program.
    Data,
    /// Padding.
    Filler,
    /// The greeting: the program that has accepted the session.
    Greeting(Hello),
}

impl Head {
    /// Bytes to read at once into a buffer of `room`, so that no read crosses the head's end.
    pub(crate) fn room(self, room: usize) -> usize {
        match self {
            Self::Data => room,
            Self::Filler(left) => room.min(left),
            Self::Greeting(_) => room.min(HELLO_BYTES),
        }
    }

    /// Takes bytes that were read; they are not empty.
    pub(crate) fn consume(&mut self, bytes: &[u8]) -> Consumed {
        match *self {
            Self::Data => Consumed::Data,
            Self::Filler(left) => {
                *self = match left.saturating_sub(bytes.len()) {
                    0 => Self::Data,
                    left => Self::Filler(left),
                };
                Consumed::Filler
            }
            Self::Greeting(number) => {
                *self = Self::Data;
                // A program without the library accepts without a greeting: these are its data.
                Hello::read(bytes, number).map_or(Consumed::Data, Consumed::Greeting)
            }
        }
    }

    /// The program has accepted the session by a call, so no greeting comes.
    pub(crate) fn expect_no_greeting(&mut self) {
        if let Self::Greeting(_) = self {
            *self = Self::Data;
        }
    }

    /// True while padding keeps the near end from being writable.
    pub(crate) fn is_filler(self) -> bool {
        matches!(self, Self::Filler(_))
    }

    /// True for a session that is not known to be accepted.
    pub(crate) fn is_greeting(self) -> bool {
        matches!(self, Self::Greeting(_))
    }
}

/// Events for which a far end is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Bytes and ends.
    Input,
    /// Room for more bytes, too: EPOLLOUT was armed once, and stays so.
    InputAndRoom,
}

impl Interest {
    /// Adds room; false if it is watched already.
    pub(crate) fn add_room(&mut self) -> bool {
        std::mem::replace(self, Self::InputAndRoom) == Self::Input
    }

    /// The events to arm, edge-triggered.
    pub(crate) fn flags(self) -> EventFlags {
        let input = EventFlags::IN
            .union(EventFlags::RDHUP)
            .union(EventFlags::ET);
        match self {
            // EPOLLOUT would fire each time that a program reads.
            Self::Input => input,
            Self::InputAndRoom => input.union(EventFlags::OUT),
        }
    }
}

/// The path of a stream's bytes between the program and the supervisor.
#[derive(Debug)]
pub(crate) enum Path {
    /// The pair, until the program's library requests rings.
    Pair,
    /// The pair for good: several processes use it, or its process reads and writes past the
    /// library.
    PairOnly,
    /// Rings, in both directions.
    Rings(RingEnd),
    /// The pair again. Bytes that the program wrote to its rings before may be left in them.
    Reclaimed(RingEnd),
}

impl Path {
    /// The rings, while the program uses them.
    pub(crate) fn rings(&self) -> Option<&RingEnd> {
        match self {
            Self::Rings(ring) => Some(ring),
            Self::Pair | Self::PairOnly | Self::Reclaimed(_) => None,
        }
    }

    /// The rings, also those that were taken back.
    pub(crate) fn all_rings(&self) -> Option<&RingEnd> {
        match self {
            Self::Rings(ring) | Self::Reclaimed(ring) => Some(ring),
            Self::Pair | Self::PairOnly => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn all_rings_mut(&mut self) -> Option<&mut RingEnd> {
        match self {
            Self::Rings(ring) | Self::Reclaimed(ring) => Some(ring),
            Self::Pair | Self::PairOnly => None,
        }
    }

    /// Keeps to the pair: rings are refused from now on. Rings in use have to be taken back.
    pub(crate) fn bar(&mut self) {
        if let Self::Pair = self {
            *self = Self::PairOnly;
        }
    }

    /// The program uses the pair again.
    pub(crate) fn reclaim(&mut self) {
        // PairOnly for a moment: the ring is moved, not copied.
        *self = match std::mem::replace(self, Self::PairOnly) {
            Self::Rings(ring) => Self::Reclaimed(ring),
            other => other,
        };
    }
}

/// The supervisor's end of a stream's rings.
#[derive(Debug, Clone)]
pub(crate) struct RingEnd {
    /// The process at the other end, and the stream's number there.
    pub(crate) process: usize,
    pub(crate) stream: u32,
    /// Memory of the slab with the stream's rings.
    pub(crate) memory: Rc<SharedMap>,
    /// The stream's large rings.
    pub(crate) large: Option<Rc<SharedMap>>,
    pub(crate) served: Served,
}

impl RingEnd {
    /// A view of the rings in its memory.
    pub(crate) fn view(&self) -> Option<Rings<'_>> {
        let large = self.large.as_ref().map(|large| large.slice());
        Some(Rings::of_slab(self.memory.slice(), self.stream)?.with_large(large))
    }
}

#[cfg(test)]
mod tests;
