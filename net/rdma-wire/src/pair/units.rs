//! Units to send: framed segments with their headers, numbered in their queues.

use crate::Stag;
use crate::framing::{Framer, HEAD_BYTES};
use crate::memory::RegionId;
use crate::piece::Pieces;
use crate::wire::ddp::{Header, Opcode, QUEUES, ReadRequest, Target};
use crate::wire::segment_length;
use arrayvec::ArrayVec;
use sidecore_bare::width::ToUsize;
use std::convert::Infallible;

/// The number of the next message of each untagged queue, from 1 (RFC 5041, section 4.3).
#[derive(Debug)]
pub(super) struct MessageNumbers([u32; QUEUES]);

impl MessageNumbers {
    pub(super) fn first() -> Self {
        Self([1; QUEUES])
    }

    /// The number of a queue's next message; none if there is no such queue.
    pub(super) fn of(&self, queue: u32) -> Option<u32> {
        self.0.get(queue.to_usize()).copied()
    }

    /// The next message of a queue is complete.
    pub(super) fn advance(&mut self, queue: u32) {
        if let Some(number) = self.0.get_mut(queue.to_usize()) {
            // Numbers wrap: 2^32 messages are a matter of hours.
            *number = number.wrapping_add(1);
        }
    }
}

/// A unit whose payload is sent from its place.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) head: ArrayVec<u8, HEAD_BYTES>,
    pub(super) source: Source,
    /// The payload: its place in the message, its length; true if it is the message's last.
    pub(super) at: u32,
    pub(super) bytes: u32,
    pub(super) last: bool,
    /// Padding and an empty CRC.
    pub(super) tail: usize,
    /// Bytes of the unit that the stream has taken.
    pub(super) gone: usize,
}

/// A message whose payload is sent from its place.
#[derive(Debug)]
pub(super) enum Source {
    Send(Pieces),
    Write(Pieces),
    Read(ReadRequest),
}

impl Lent {
    /// True if the stream has taken some of it.
    pub(super) fn is_begun(&self) -> bool {
        self.gone > 0
    }

    pub(super) fn count(&self) -> usize {
        self.head.len() + self.bytes.to_usize() + self.tail
    }
}

/// A part of a unit that is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// Bytes of the pair.
    Bytes(&'a [u8]),
    /// A region, an offset in it, and the number of bytes from there on.
    Memory(RegionId, u64, usize),
}

/// Writer of units.
#[derive(Debug)]
pub(super) struct Units {
    pub(super) framer: Framer,
    numbers: MessageNumbers,
}

impl Units {
    pub(super) fn new() -> Self {
        Self {
            framer: Framer::new(false, false),
            numbers: MessageNumbers::first(),
        }
    }

    /// Target of a segment of a queue's current message.
    pub(super) fn target(&self, queue: u32, invalidate: Option<Stag>, offset: u32) -> Target {
        Target::Untagged {
            invalidate: invalidate.unwrap_or(Stag(0)),
            queue,
            msn: self.numbers.of(queue).unwrap_or_default(),
            offset,
        }
    }

    /// A queue's current message was sent completely.
    pub(super) fn end_message(&mut self, queue: u32) {
        self.numbers.advance(queue);
    }

    /// Bytes of the next segment, in a unit of `room` bytes at most, of a message with `rest` bytes
    /// left; true if it is the last.
    pub(super) fn part(&self, room: usize, header: &Header, rest: u32) -> (u32, bool) {
        let room = self.framer.segment_bytes_max(room) - header.count();
        let bytes = rest.min(u32::try_from(room).unwrap_or(u32::MAX));
        (bytes, bytes == rest)
    }

    /// The head of a unit whose payload of `bytes` bytes its caller sends itself; none if units
    /// have CRCs or markers.
    pub(super) fn head(&self, header: &Header, bytes: u32) -> Option<ArrayVec<u8, HEAD_BYTES>> {
        let length = self.framer.head(header.count() + bytes.to_usize())?;
        let mut head = [0; HEAD_BYTES];
        let (front, back) = head.split_at_mut(length.len());
        front.copy_from_slice(&length);
        header.write(back);
        let mut head = ArrayVec::from(head);
        head.truncate(length.len() + header.count());
        Some(head)
    }

    /// A unit with the header's segment of `bytes` bytes, which `fill` writes; its length.
    pub(super) fn write<E>(
        &mut self,
        target: &mut [u8],
        header: &Header,
        bytes: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let count = header.count();
        let segment_bytes = count + bytes.to_usize();
        self.framer.write(target, segment_bytes, |target| {
            header.write(target);
            fill(&mut target[count..])
        })
    }

    /// A unit with a short message of a queue; its length.
    pub(super) fn message(
        &mut self,
        target: &mut [u8],
        queue: u32,
        opcode: Opcode,
        payload: &[u8],
    ) -> usize {
        let place = self.target(queue, None, 0);
        self.end_message(queue);
        self.short(target, opcode, place, payload)
    }

    /// A unit with a whole message; its length.
    pub(super) fn short(
        &mut self,
        target: &mut [u8],
        opcode: Opcode,
        place: Target,
        payload: &[u8],
    ) -> usize {
        let header = Header::new(true, opcode, place);
        let written = self.write(target, &header, segment_length(payload), |target| {
            target.copy_from_slice(payload);
            Ok::<_, Infallible>(())
        });
        written.unwrap_or_else(|never| match never {})
    }

    /// A unit without a message (RFC 6581, section 9.2); its length.
    pub(super) fn empty(&mut self, target: &mut [u8]) -> usize {
        let written = self.framer.write(target, 0, |_| Ok::<_, Infallible>(()));
        written.unwrap_or_else(|never| match never {})
    }
}
