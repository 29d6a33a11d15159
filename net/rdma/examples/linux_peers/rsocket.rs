//! librdmacm's rsockets over iWARP: a stream by RDMA writes into the peer's buffers, each followed
//! by a message of 4 bytes (rdma-core's "rsocket Protocol and Design Guide" describes it; without
//! immediate data on the wire, the message is a separate send).
//!
//! Each side announces a table for the peer's buffers (`Entry`) and its own first buffer when it
//! connects; it writes further buffers into the peer's table. A buffer is used up before the next
//! one in the table. A message's upper 3 bits are its kind: data, credits (the number of data
//! messages that may have been sent, modulo 2^16), control (0: disconnect).

use crate::node::{Failure, Node};
use sidecore_rdma::{Access, ConnectionId, Region, Remote, Stag};
use std::collections::VecDeque;
use std::net::SocketAddr;

const HALF_BYTES: usize = 64 << 10;
const ENTRIES: usize = 2;
const ENTRY_BYTES: usize = 16;
/// Data messages that a side may send before new credits.
const CREDITS: u16 = 384;
/// Receives: some more, for messages without a credit.
const RECEIVES: usize = 512;
const MESSAGE_BYTES: usize = 4;
/// Staged writes that were not sent yet.
const STAGED: usize = 16;

const DATA: u32 = 0;
const GRANT: u32 = 4;
const CONTROL: u32 = 7;
const DISCONNECT: u32 = 0;
const CONNECT_BYTES: usize = 40;

/// A buffer of the peer, or a table.
#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    key: u32,
    bytes: u32,
}

impl Entry {
    /// From the form in private data.
    fn read_connect(bytes: &[u8]) -> Result<Self, Failure> {
        Ok(Self {
            address: u64::from_be_bytes(bytes[..8].try_into()?),
            key: u32::from_be_bytes(bytes[8..12].try_into()?),
            bytes: u32::from_be_bytes(bytes[12..16].try_into()?),
        })
    }

    fn connect_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.bytes.to_be_bytes());
        bytes
    }

    /// From the form in a table of a little-endian machine.
    fn read(bytes: &[u8]) -> Result<Self, Failure> {
        Ok(Self {
            address: u64::from_le_bytes(bytes[..8].try_into()?),
            key: u32::from_le_bytes(bytes[8..12].try_into()?),
            bytes: u32::from_le_bytes(bytes[12..16].try_into()?),
        })
    }

    fn table_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_le_bytes());
        bytes[12..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }
}

/// A connected stream.
pub(crate) struct Rsocket {
    pub(crate) node: Node,
    connection: ConnectionId,
    /// Two buffers for received data.
    input: Region,
    /// Bytes received in the current one.
    filled: usize,
    half: usize,
    /// Table of the peer's buffers, which the peer writes.
    table: Region,
    current: usize,
    /// The peer's table for our buffers.
    peer_table: Entry,
    peer_current: usize,
    /// Received messages, followed by those to send.
    words: Region,
    next_word: usize,
    /// Bytes to send.
    staged: Region,
    next_stage: usize,
    /// Work that was not sent yet.
    posted: usize,
    sent: u16,
    may_send: u16,
    received: u16,
    granted: u16,
    came: VecDeque<u8>,
    is_over: bool,
}

/// Regions of a stream, created before it.
struct Regions {
    input: Region,
    table: Region,
    words: Region,
    staged: Region,
}

impl Regions {
    fn new(node: &mut Node) -> Result<Self, Failure> {
        let adapter = node.device.adapter_mut();
        let written = Access::REMOTE_WRITE;
        Ok(Self {
            input: adapter.register(vec![0; ENTRIES * HALF_BYTES], written)?,
            table: adapter.register(vec![0; ENTRIES * ENTRY_BYTES], written)?,
            words: adapter.register(vec![0; 2 * RECEIVES * MESSAGE_BYTES], Access::LOCAL_WRITE)?,
            staged: adapter.register(vec![0; STAGED * HALF_BYTES], Access::NONE)?,
        })
    }

    /// Private data of the start.
    fn told(&self) -> [u8; CONNECT_BYTES] {
        let entry = |region: Region, bytes| {
            let Remote { stag, offset } = region.remote(0);
            Entry {
                address: offset,
                key: stag.0,
                bytes,
            }
            .connect_bytes()
        };
        let mut told = [0; CONNECT_BYTES];
        told[0] = 1; // version
        told[2..4].copy_from_slice(&CREDITS.to_be_bytes());
        told[8..24].copy_from_slice(&entry(self.table, ENTRIES as u32));
        told[24..40].copy_from_slice(&entry(self.input, HALF_BYTES as u32));
        told
    }

    fn post_receives(&self, node: &mut Node, connection: ConnectionId) -> Result<(), Failure> {
        (0..RECEIVES)
            .try_for_each(|slot| node.post_receive(connection, slot as u64, word(self.words, slot)))
    }
}

fn word(words: Region, slot: usize) -> sidecore_rdma::Piece {
    words.piece((slot * MESSAGE_BYTES) as u64, MESSAGE_BYTES as u32)
}

impl Rsocket {
    /// Waits for a client; the node is listening.
    pub(crate) fn accept(mut node: Node) -> Result<Self, Failure> {
        let regions = Regions::new(&mut node)?;
        let (connection, told) = node.requested()?;
        regions.post_receives(&mut node, connection)?;
        node.accept(connection, &regions.told())?;
        Self::begin(node, connection, regions, &told)
    }

    pub(crate) fn connect(mut node: Node, peer: SocketAddr) -> Result<Self, Failure> {
        let regions = Regions::new(&mut node)?;
        let prepare = |node: &mut Node, connection| regions.post_receives(node, connection);
        let (connection, told) = node.connect(peer, &regions.told(), prepare)?;
        Self::begin(node, connection, regions, &told)
    }

    fn begin(
        mut node: Node,
        connection: ConnectionId,
        regions: Regions,
        told: &[u8],
    ) -> Result<Self, Failure> {
        if told.len() < CONNECT_BYTES || told[0] != 1 {
            return Err(format!("no rsocket: private data {told:?}").into());
        }
        if told[1] & 1 != 0 {
            return Err("the peer is a big-endian machine".into());
        }
        let first = Entry::read_connect(&told[24..40])?;
        node.bytes_mut(regions.table)[..ENTRY_BYTES].copy_from_slice(&first.table_bytes());
        let mut socket = Self {
            node,
            connection,
            input: regions.input,
            filled: 0,
            half: 0,
            table: regions.table,
            current: 0,
            peer_table: Entry::read_connect(&told[8..24])?,
            peer_current: 1,
            words: regions.words,
            next_word: 0,
            staged: regions.staged,
            next_stage: 0,
            posted: 0,
            sent: 0,
            may_send: u16::from_be_bytes(told[2..4].try_into()?),
            received: 0,
            granted: CREDITS,
            came: VecDeque::new(),
            is_over: false,
        };
        // The peer knows the first buffer from the start.
        socket.offer(1)?;
        Ok(socket)
    }

    /// Announces a buffer to the peer, and grants credits.
    fn offer(&mut self, half: usize) -> Result<(), Failure> {
        let Remote { stag, offset } = self.input.remote((half * HALF_BYTES) as u64);
        let entry = Entry {
            address: offset,
            key: stag.0,
            bytes: HALF_BYTES as u32,
        };
        let at = self.stage(&entry.table_bytes())?;
        let remote = Remote {
            stag: Stag(self.peer_table.key),
            offset: self.peer_table.address + (self.peer_current * ENTRY_BYTES) as u64,
        };
        self.peer_current = (self.peer_current + 1) % (self.peer_table.bytes.max(1) as usize);
        self.post(|socket| socket.node.post_write(socket.connection, at, remote))?;
        self.grant()
    }

    fn grant(&mut self) -> Result<(), Failure> {
        self.granted = self.received.wrapping_add(CREDITS);
        self.message(GRANT, self.granted.into())
    }

    /// Copies bytes to a place where they stay until they were sent.
    fn stage(&mut self, bytes: &[u8]) -> Result<sidecore_rdma::Piece, Failure> {
        // Work is sent in order and each place has some, so the previous user of this one is done.
        while self.posted + 2 > STAGED {
            self.one_gone()?;
        }
        let at = self.next_stage * HALF_BYTES;
        self.next_stage = (self.next_stage + 1) % STAGED;
        self.node.bytes_mut(self.staged)[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(self.staged.piece(at as u64, bytes.len() as u32))
    }

    fn post(&mut self, post: impl FnOnce(&mut Self) -> Result<(), Failure>) -> Result<(), Failure> {
        post(self)?;
        self.posted += 1;
        Ok(())
    }

    fn one_gone(&mut self) -> Result<(), Failure> {
        self.node.await_done(self.connection, false)?;
        self.posted -= 1;
        Ok(())
    }

    fn message(&mut self, kind: u32, value: u32) -> Result<(), Failure> {
        let slot = RECEIVES + self.next_word;
        self.next_word = (self.next_word + 1) % RECEIVES;
        let at = slot * MESSAGE_BYTES;
        let message = (kind << 29 | value).to_le_bytes();
        self.node.bytes_mut(self.words)[at..at + MESSAGE_BYTES].copy_from_slice(&message);
        let piece = word(self.words, slot);
        self.post(|socket| socket.node.post_send(socket.connection, piece))
    }

    /// Sends all of it.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let at = self.current * ENTRY_BYTES;
            let entry = Entry::read(&self.node.bytes(self.table)[at..at + ENTRY_BYTES])?;
            if entry.bytes == 0 || self.sent == self.may_send {
                self.wait_for_peer()?;
                continue;
            }
            let count = bytes.len().min(entry.bytes as usize).min(HALF_BYTES);
            let (now, later) = bytes.split_at(count);
            let piece = self.stage(now)?;
            let remote = Remote {
                stag: Stag(entry.key),
                offset: entry.address,
            };
            self.post(|socket| socket.node.post_write(socket.connection, piece, remote))?;
            self.message(DATA, count as u32)?;
            self.sent = self.sent.wrapping_add(1);
            let left = Entry {
                address: entry.address + count as u64,
                bytes: entry.bytes - count as u32,
                ..entry
            };
            self.node.bytes_mut(self.table)[at..at + ENTRY_BYTES]
                .copy_from_slice(&left.table_bytes());
            if left.bytes == 0 {
                self.current = (self.current + 1) % ENTRIES;
            }
            bytes = later;
        }
        Ok(())
    }

    /// The next bytes, at most `count`; none at the end.
    pub(crate) fn read(&mut self, count: usize) -> Result<Vec<u8>, Failure> {
        while self.came.is_empty() && !self.is_over {
            self.wait_for_peer()?;
        }
        let count = count.min(self.came.len());
        Ok(self.came.drain(..count).collect())
    }

    /// Processes the peer's next message.
    fn wait_for_peer(&mut self) -> Result<(), Failure> {
        let connection = self.connection;
        let done = self.node.until("the peer's message", |node| {
            Ok(match node.next_done(connection, true)? {
                None if node.has_ended(connection) => Some(None),
                None => None,
                done => Some(done),
            })
        })?;
        let Some(done) = done else {
            self.is_over = true;
            return Ok(());
        };
        if done.bytes as usize != MESSAGE_BYTES {
            return Err(format!("a message of {} bytes", done.bytes).into());
        }
        let slot = done.id as usize;
        let at = slot * MESSAGE_BYTES;
        let message: [u8; 4] = self.node.bytes(self.words)[at..at + MESSAGE_BYTES].try_into()?;
        let place = word(self.words, slot);
        self.node.post_receive_again(connection, done.id, place)?;
        let message = u32::from_le_bytes(message);
        let value = message & ((1 << 29) - 1);
        match message >> 29 {
            DATA => self.take(value as usize),
            GRANT => {
                self.may_send = value as u16;
                Ok(())
            }
            CONTROL if value == DISCONNECT => {
                self.is_over = true;
                Ok(())
            }
            CONTROL => Ok(()),
            kind => Err(format!("an rsocket's message of kind {kind}").into()),
        }
    }

    /// Data has arrived in the current buffer.
    fn take(&mut self, count: usize) -> Result<(), Failure> {
        if count > HALF_BYTES - self.filled {
            return Err(
                format!("{count} bytes came, {} had room", HALF_BYTES - self.filled).into(),
            );
        }
        let at = self.half * HALF_BYTES + self.filled;
        let came = self.node.bytes(self.input)[at..at + count].to_vec();
        self.came.extend(came);
        self.filled += count;
        self.received = self.received.wrapping_add(1);
        if self.filled == HALF_BYTES {
            let half = self.half;
            self.filled = 0;
            self.half = (half + 1) % ENTRIES;
            self.offer(half)?;
        } else if self.granted.wrapping_sub(self.received) < CREDITS / 2 {
            self.grant()?;
        }
        Ok(())
    }

    /// Ends sending, and closes.
    pub(crate) fn close(mut self) -> Result<(), Failure> {
        if !self.is_over {
            self.message(CONTROL, DISCONNECT)?;
        }
        while self.posted > 0 {
            self.one_gone()?;
        }
        self.node.close(self.connection)
    }
}
