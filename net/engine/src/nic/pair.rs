//! A link between two stacks: two rings in shared memory, in one process or across two.
//!
//! Why here: tests and benches of the stack against itself without a kernel in between, and the
//! fast path between two engines of one machine. Its sender copies a frame in and its receiver
//! copies it out; the stack sees private memory only.
//!
//! Layout of one direction: the sender's position, the receiver's position, and the receiver's
//! *asleep* word, each on its own lines, then `ring_bytes` of records: 16 bytes that describe the
//! frame, the frame, padding to a whole line. A record does not wrap; a skip record fills the rest
//! of the ring instead. Records are written with streaming stores that bypass the sender's cache:
//! on a machine whose cores share no cache, every line would otherwise have to be fetched from the
//! receiver's cache before it is written again.
//!
//! Must stay true: positions and sleep words are those of `sidecore-sync`, which checks every
//! position that the other side writes; every length is copied once and checked, so that a hostile
//! other side can only end the link. One thread at a time on each side.
//!
//! ```
//! use sidecore_net::engine::{Engine, EngineOptions};
//! use sidecore_net::memory::mapped_stack;
//! use sidecore_net::nic::Nic;
//! use sidecore_net::nic::pair::{PairOptions, link};
//! use sidecore_net::{Cidr, Config, Stack};
//! use std::net::{IpAddr, SocketAddr};
//!
//! let (near, far) = link(&PairOptions::default())?;
//! let engine = |nic: sidecore_net::nic::pair::Pair, number| {
//!     let config = Config {
//!         addresses: vec![Cidr {
//!             address: IpAddr::from([10, 0, 0, number]),
//!             prefix_bits: 24,
//!         }],
//!         sessions_max: 16,
//!         buffers_bytes: 16 << 20,
//!         ..Config::default()
//!     };
//!     let stack = mapped_stack(config, &nic.capabilities())?;
//!     let options = EngineOptions::default();
//!     Ok::<_, sidecore_net::NetError>(Engine::new(nic, stack, None, options))
//! };
//! let (mut near, mut far) = (engine(near, 1)?, engine(far, 2)?);
//! let server = SocketAddr::from(([10, 0, 0, 2], 7));
//! far.stack().listen(server, 8)?;
//! let session = near.stack().connect(server, None)?;
//! // Round by round, until the handshake is over.
//! while !near.stack().readiness(session)?.writable {
//!     near.round(&mut |_: &mut Stack| 0)?;
//!     far.round(&mut |_: &mut Stack| 0)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::checksum;
use super::{
    Capabilities, FRAME_BYTES_MAX, Nic, NicError, Outgoing, Received, ReceivedChecksum,
    TransmitChecksum,
};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sync::spsc::{Consumer, Producer};
use sidecore_sync::{Changed, Shared, SleepWord};
use sidecore_sys::local_socket;
use sidecore_sys::prefetch::LINE_BYTES;
use sidecore_sys::stream::fence_streamed;
use sidecore_sys::{SharedMap, SharedSlice, Sharing, SysError};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Options of a link.
#[derive(Debug, Clone)]
pub struct PairOptions {
    /// The hardware addresses of the first and the second side.
    pub addresses: [[u8; 6]; 2],
    /// The largest IP packet that is one frame, in bytes.
    pub mtu_bytes: usize,
    /// Segmentation and checksum offload: super-segments cross whole, checksums stay partial.
    pub offload: bool,
    /// Ring size of each direction; a power of two from 128 KiB to 1 GiB.
    pub ring_bytes: usize,
}

impl Default for PairOptions {
    fn default() -> Self {
        Self {
            addresses: [
                [0x02, 0x51, 0xde, 0xc0, 0x4e, 0xa1],
                [0x02, 0x51, 0xde, 0xc0, 0x4e, 0xa2],
            ],
            mtu_bytes: 1500,
            offload: false,
            ring_bytes: 512 << 10,
        }
    }
}

/// One side of a link.
#[derive(Debug)]
pub struct Pair {
    memory: Arc<SharedMap>,
    /// Bells of the first and the second side.
    bells: Arc<[OwnedFd; 2]>,
    side: usize,
    capabilities: Capabilities,
    ring_bytes: usize,
    buffer: Box<[u8]>,
    /// Our end of the ring to send, in bytes; published at the end of a round.
    sender: Producer,
    /// Our end of the ring to receive, in bytes.
    receiver: Consumer,
    asleep: bool,
}

/// Makes a link; both sides are in this process.
///
/// # Errors
/// [`NicError::Options`] for a ring that is no power of two or out of range; [`NicError::Sys`].
pub fn link(options: &PairOptions) -> Result<(Pair, Pair), NicError> {
    if !options.ring_bytes.is_power_of_two() || !RING_BYTES.contains(&options.ring_bytes) {
        return Err(NicError::Options(format!(
            "a ring of {} bytes is not allowed; a power of two from 131072 (128 KiB) to 1 GiB is",
            options.ring_bytes
        )));
    }
    let failed = |error| NicError::sys("cannot make a link between two stacks".to_owned(), error);
    let bytes = 2 * (HEAD_BYTES + options.ring_bytes);
    let memory = SharedMap::create("sidecore-pair", bytes, Sharing::ReadWrite).map_err(failed)?;
    let bells = [
        local_socket::bell().map_err(failed)?,
        local_socket::bell().map_err(failed)?,
    ];
    let first = Pair::new(Arc::new(memory), Arc::new(bells), 0, options);
    let second = Pair::new(
        Arc::clone(&first.memory),
        Arc::clone(&first.bells),
        1,
        options,
    );
    Ok((first, second))
}

impl Pair {
    /// The second side, in another process: from the result of [`Self::descriptors`] of the first
    /// side, and the same options.
    ///
    /// # Errors
    /// [`NicError::Sys`] if the memory does not match the options.
    pub fn open(
        memory: OwnedFd,
        bells: [OwnedFd; 2],
        options: &PairOptions,
    ) -> Result<Self, NicError> {
        let bytes = 2 * (HEAD_BYTES + options.ring_bytes);
        let memory = SharedMap::open(memory, bytes, Sharing::ReadWrite).map_err(|error| {
            NicError::sys(
                "cannot open a link between two stacks; both sides need the same options"
                    .to_owned(),
                error,
            )
        })?;
        Ok(Self::new(Arc::new(memory), Arc::new(bells), 1, options))
    }

    /// The memory and the two bells, for the process that calls [`Self::open`].
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.memory.file(),
            self.bells[0].as_fd(),
            self.bells[1].as_fd(),
        ]
    }

    fn new(
        memory: Arc<SharedMap>,
        bells: Arc<[OwnedFd; 2]>,
        side: usize,
        options: &PairOptions,
    ) -> Self {
        Self {
            memory,
            bells,
            side,
            capabilities: Capabilities {
                address: options.addresses[side],
                mtu_bytes: options.mtu_bytes,
                super_segment_bytes: if options.offload { 65_535 } else { 0 },
                completes_checksums: options.offload,
                cuts_datagrams: false,
                merges_received: options.offload,
            },
            ring_bytes: options.ring_bytes,
            buffer: vec![0; FRAME_BYTES_MAX].into(),
            sender: Producer::new(options.ring_bytes.to_u64()),
            receiver: Consumer::new(options.ring_bytes.to_u64()),
            asleep: false,
        }
    }

    /// The direction that side `sender` writes.
    #[inline]
    fn ring(&self, sender: usize) -> Option<RingView<'_>> {
        RingView::new(&self.memory, sender, self.ring_bytes)
    }

    /// Reserves contiguous space for a record of `bytes`, after a skip record if necessary; its
    /// offset.
    #[inline]
    fn reserve(&mut self, bytes: usize) -> Option<usize> {
        let at = self.sender.position().to_usize() & (self.ring_bytes - 1);
        let to_end = self.ring_bytes - at;
        // A record does not wrap: the rest of the ring counts as used by a skip record.
        let needed = if bytes > to_end {
            to_end + bytes
        } else {
            bytes
        };
        let ring = RingView::new(&self.memory, self.side, self.ring_bytes)?;
        // An invalid position of a hostile receiver counts as a full ring.
        let room = self.sender.room(needed.to_u64(), ring.receiver).ok()?;
        if room < needed.to_u64() {
            return None;
        }
        if bytes > to_end {
            let skip = Record::skip(to_end).encode();
            ring.records.stream_at(at, &[&skip]);
            self.sender.advance(to_end.to_u64());
            return Some(0);
        }
        Some(at)
    }

    fn publish(&mut self) {
        if self.sender.unpublished() == 0 {
            return;
        }
        let Some(ring) = RingView::new(&self.memory, self.side, self.ring_bytes) else {
            return;
        };
        // Streaming stores are not ordered by a Release: the records come first.
        fence_streamed();
        self.sender.publish(ring.sender);
        // The other side sleeps on descriptors, so it is woken by its bell.
        if ring.asleep.claim_after(Changed::publish()) {
            local_socket::poke(self.bells[1 - self.side].as_fd());
        }
    }

    /// True if a frame waits; reads the other side's position only if none is known to wait.
    #[inline]
    fn look(&mut self) -> Result<bool, NicError> {
        let ring = RingView::new(&self.memory, 1 - self.side, self.ring_bytes);
        let ring = ring.ok_or_else(nonsense)?;
        let waiting = self.receiver.available(ring.sender);
        Ok(waiting.map_err(|_| nonsense())? > 0)
    }

    /// Copies the next record's frame into the buffer.
    #[inline]
    fn take(&mut self) -> Result<Option<Record>, NicError> {
        let at = self.receiver.position().to_usize() & (self.ring_bytes - 1);
        // Only what was published counts; its length is checked against this below.
        let waiting = self.receiver.known().to_usize();
        let start = (1 - self.side) * (HEAD_BYTES + self.ring_bytes) + HEAD_BYTES;
        let records = self
            .memory
            .slice()
            .range(start..start + self.ring_bytes)
            .ok_or_else(nonsense)?;
        let record = Record::decode([records.load_u64(at), records.load_u64(at + 8)]);
        let bytes = record.bytes.to_usize();
        let whole = if record.is_skip {
            bytes
        } else {
            record_bytes(bytes)
        };
        let fits = whole <= waiting && whole <= self.ring_bytes - at && whole % ALIGN == 0;
        // A length of 0 would keep the reader at the same place for ever.
        if whole == 0 || !fits || (!record.is_skip && bytes > self.buffer.len()) {
            return Err(nonsense());
        }
        self.receiver.advance(whole.to_u64());
        if record.is_skip {
            return Ok(None);
        }
        // Prefetches the next record while this one is processed; it probably has the same length.
        let ahead = whole.min(waiting - whole);
        for line in (0..ahead).step_by(ALIGN) {
            records.prefetch(at + whole + line);
        }
        // Copied out first: the other side may change the ring at any time.
        records.read_at(at + RECORD_BYTES, &mut self.buffer[..bytes]);
        Ok(Some(record))
    }
}

impl Nic for Pair {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        // Awake: the peer need not ring the bell any more.
        if self.asleep {
            self.asleep = false;
            if let Some(ring) = self.ring(1 - self.side) {
                ring.asleep.cancel_sleep();
            }
            local_socket::drain(self.bells[self.side].as_fd());
        }
        let mut count = 0;
        while count < budget && self.look()? {
            if let Some(record) = self.take()? {
                sink(Received {
                    bytes: &mut self.buffer[..record.bytes.to_usize()],
                    checksum: if record.is_partial {
                        ReceivedChecksum::Partial
                    } else {
                        ReceivedChecksum::Unknown
                    },
                    segment_bytes: NonZeroU16::new(record.segment_bytes),
                });
                count += 1;
            }
        }
        if self.receiver.unreleased() > 0 {
            // Space is given back once for all records that were taken.
            let ring = RingView::new(&self.memory, 1 - self.side, self.ring_bytes);
            if let Some(ring) = ring {
                self.receiver.release(ring.receiver);
            }
        }
        Ok(count)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        let bytes = frame.len();
        let capabilities = &self.capabilities;
        // It can never be sent, so it is dropped: the stack must not keep it.
        if bytes > capabilities.frame_bytes_max() {
            return Ok(true);
        }
        if let (TransmitChecksum::Partial { start, offset }, false) =
            (frame.checksum, capabilities.completes_checksums)
        {
            // Our capabilities do not request this; a frame with a partial checksum is served
            // anyway.
            let whole = checksum::complete(frame, start, offset);
            return self.transmit(&Outgoing {
                header: &whole,
                payload: [&[], &[]],
                checksum: TransmitChecksum::Complete,
                segment_bytes: None,
            });
        }
        let whole = record_bytes(bytes);
        let Some(at) = self.reserve(whole) else {
            // The receiver frees space only after it has taken published records.
            self.publish();
            return Ok(false);
        };
        let Some(ring) = self.ring(self.side) else {
            return Err(nonsense());
        };
        let record = Record {
            bytes: bytes as u32,
            is_skip: false,
            is_partial: frame.checksum != TransmitChecksum::Complete,
            segment_bytes: frame.segment_bytes.map_or(0, NonZeroU16::get),
        };
        let [first, second] = frame.payload;
        let pieces = [&record.encode()[..], frame.header, first, second];
        ring.records.stream_at(at, &pieces);
        self.sender.advance(whole.to_u64());
        // The receiver can begin before the round ends, while the lines are on their way.
        if self.sender.unpublished() >= PUBLISH_BYTES.to_u64() {
            self.publish();
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.publish();
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bells[self.side].as_fd())
    }

    fn arm(&mut self) -> Result<bool, NicError> {
        self.asleep = true;
        if let Some(ring) = self.ring(1 - self.side) {
            ring.asleep.announce_sleep();
        }
        Ok(!self.look()?)
    }
}

/// One direction's words and records.
struct RingView<'m> {
    /// Positions of the sender and the receiver.
    sender: &'m AtomicU64,
    receiver: &'m AtomicU64,
    /// Sleep word of the receiver.
    asleep: &'m SleepWord<Shared>,
    records: SharedSlice<'m>,
}

impl<'m> RingView<'m> {
    /// The direction that side `sender` writes; `None` if the memory is too short for it.
    #[inline]
    fn new(memory: &'m SharedMap, sender: usize, ring_bytes: usize) -> Option<Self> {
        let start = sender * (HEAD_BYTES + ring_bytes);
        let all = memory
            .slice()
            .range(start..start + HEAD_BYTES + ring_bytes)?;
        Some(Self {
            sender: all.overlay(0)?,
            receiver: all.overlay(128)?,
            asleep: all.overlay(256)?,
            records: all.range(HEAD_BYTES..HEAD_BYTES + ring_bytes)?,
        })
    }
}

/// Header of a frame in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    /// Length of the frame; for a skip, of the whole record.
    bytes: u32,
    is_skip: bool,
    is_partial: bool,
    segment_bytes: u16,
}

impl Record {
    fn skip(bytes: usize) -> Self {
        Self {
            bytes: bytes as u32,
            is_skip: true,
            is_partial: false,
            segment_bytes: 0,
        }
    }

    #[inline]
    fn encode(self) -> [u8; RECORD_BYTES] {
        let flags = u64::from(self.is_skip) | u64::from(self.is_partial) << 1;
        let word = u64::from(self.bytes) | u64::from(self.segment_bytes) << 32 | flags << 48;
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&word.to_ne_bytes());
        bytes
    }

    #[inline]
    fn decode([word, _]: [u64; 2]) -> Self {
        Self {
            bytes: word as u32,
            is_skip: word >> 48 & 1 != 0,
            is_partial: word >> 49 & 1 != 0,
            segment_bytes: (word >> 32) as u16,
        }
    }
}

#[inline]
fn record_bytes(frame_bytes: usize) -> usize {
    (RECORD_BYTES + frame_bytes).next_multiple_of(ALIGN)
}

fn nonsense() -> NicError {
    NicError::sys(
        "the other side of a link between two stacks wrote what makes no sense".to_owned(),
        SysError::Size {
            what: "a record of the link",
            value: 0,
            rule: "within what the sender announced",
        },
    )
}

/// The three words of a direction, each on two lines of its own (processors fetch lines in pairs),
/// in one page.
const HEAD_BYTES: usize = 4096;
const RECORD_BYTES: usize = 16;
/// Alignment of records: a line, so that no line belongs to two records.
const ALIGN: usize = LINE_BYTES;
const RING_BYTES: std::ops::RangeInclusive<usize> = 128 << 10..=1 << 30;
/// Bytes after which a position is published early; the rest follows at the end of the round.
const PUBLISH_BYTES: usize = 32 << 10;
