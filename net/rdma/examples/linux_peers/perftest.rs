//! perftest's `ib_send_lat`, `ib_send_bw`, `ib_write_*` and `ib_read_*` with `-R` (version 4.5).
//!
//! The client opens a control connection and exchanges messages on it, each answered by one of the
//! same length: 16 bytes of version, 4 of page size, 4 of cache line, 2 of MTU, an empty address.
//! Then it opens the measured connection, to the same port, and continues: an empty address, the
//! true ones, some more of them as barriers, the test, and barriers again, between which a
//! bandwidth test of reads or writes exchanges its results in 8 bytes each. Numbers are big-endian.
//!
//! An address is 56 bytes: 4 of outstanding reads from byte 4 on, key at 16, address at 24. In a
//! latency test with writes the server writes first; both poll the last byte for the number of the
//! round. The server of a bandwidth test with sends writes the number of received messages to the
//! client's address (4 bytes, little-endian), which grants more.

use crate::node::{DEPTH, Failure, Node, Side};
use sidecore_rdma::{Access, ConnectionId, Region, Remote, Stag, Work};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The version of the exchange that perftest 4.5 reports.
const VERSION: &[u8] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
const PAGE_BYTES: u32 = 4096;
const LINE_BYTES: u32 = 64;
/// Verbs' number of an MTU of 1024 bytes, as a text.
const MTU: &[u8] = b"3\0";
const ADDRESS_BYTES: usize = 56;
const SLOT_BYTES: usize = 64;
/// Receives of the control connection.
const SLOTS: usize = 16;
/// perftest's own depth of receives: the number of sends without a grant.
const WINDOW: usize = 512;
const LIMIT: Duration = Duration::from_secs(60);

/// A test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Test {
    pub(crate) kind: Kind,
    pub(crate) measure: Measure,
    pub(crate) count: usize,
    pub(crate) bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    Latency,
    Bandwidth,
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "send" => Ok(Self::Send),
            "write" => Ok(Self::Write),
            "read" => Ok(Self::Read),
            other => Err(format!("send, write or read, not {other}")),
        }
    }
}

impl std::str::FromStr for Measure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "lat" => Ok(Self::Latency),
            "bw" => Ok(Self::Bandwidth),
            other => Err(format!("lat or bw, not {other}")),
        }
    }
}

impl Test {
    /// Exchanges of true addresses before the test.
    fn barriers(self) -> usize {
        match (self.kind, self.measure) {
            (Kind::Write | Kind::Read, Measure::Bandwidth) => 3,
            _ => 4,
        }
    }

    fn tells_figures(self) -> bool {
        self.measure == Measure::Bandwidth && self.kind != Kind::Send
    }
}

/// Both connections and their memory.
struct Ends {
    node: Node,
    test: Test,
    control: ConnectionId,
    data: ConnectionId,
    /// Messages received on the control connection, followed by those to send.
    words: Region,
    /// Memory that the peer reads or writes, or that receives; followed by the memory to send from.
    memory: Region,
    /// Grants that the peer writes.
    grants: Region,
    peer: Remote,
}

pub(crate) fn run(
    mut node: Node,
    side: Side,
    address: SocketAddr,
    test: Test,
) -> Result<String, Failure> {
    let words = vec![0; SLOT_BYTES * (SLOTS + 1)];
    let mut memory = vec![0; 2 * test.bytes as usize];
    let (_, own) = memory.split_at_mut(test.bytes as usize);
    (0..)
        .zip(own)
        .for_each(|(at, byte): (usize, _)| *byte = (at % 251) as u8);
    // For reads, the peer reads the front part.
    if test.kind == Kind::Read && side == Side::Serve {
        memory.rotate_left(test.bytes as usize);
    }
    let everything = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let adapter = node.device.adapter_mut();
    let words = adapter.register(words, Access::LOCAL_WRITE)?;
    let memory = adapter.register(memory, everything)?;
    let grants = adapter.register(vec![0; 4], Access::REMOTE_WRITE)?;
    let prepare = |node: &mut Node, control| {
        (0..SLOTS)
            .try_for_each(|slot| node.post_receive(control, slot as u64, slot_of(words, slot)))
    };
    let control = match side {
        Side::Serve => {
            let (control, _) = node.requested()?;
            prepare(&mut node, control)?;
            node.accept(control, &[])?;
            control
        }
        Side::Connect => node.connect(address, &[], prepare)?.0,
    };
    let nowhere = Remote {
        stag: Stag(0),
        offset: 0,
    };
    let ends = Ends {
        node,
        test,
        control,
        data: control,
        words,
        memory,
        grants,
        peer: nowhere,
    };
    match side {
        Side::Serve => ends.serve(),
        Side::Connect => ends.connect(address),
    }
}

fn slot_of(words: Region, slot: usize) -> sidecore_rdma::Piece {
    words.piece((slot * SLOT_BYTES) as u64, SLOT_BYTES as u32)
}

impl Ends {
    fn serve(mut self) -> Result<String, Failure> {
        for bytes in [VERSION.len(), 4, 4, MTU.len()] {
            let told = self.heard(bytes)?;
            self.tell(&told)?;
        }
        self.heard(ADDRESS_BYTES)?;
        self.tell(&[0; ADDRESS_BYTES])?;
        let (data, _) = self.node.requested()?;
        self.data = data;
        self.post_receives()?;
        self.node.accept(data, &[])?;
        self.heard(ADDRESS_BYTES)?;
        self.tell(&[0; ADDRESS_BYTES])?;
        for _ in 0..self.test.barriers() {
            let told = self.heard(ADDRESS_BYTES)?;
            self.learn(&told)?;
            self.tell(&self.own_address())?;
        }
        let begun = Instant::now();
        match (self.test.kind, self.test.measure) {
            (Kind::Send, Measure::Latency) => self.answer_sends()?,
            (Kind::Send, Measure::Bandwidth) => self.take_sends()?,
            (Kind::Write, Measure::Latency) => self.write_in_turn(true)?,
            _ => {}
        }
        let elapsed = begun.elapsed();
        // The rest is only answered for form's sake: barriers and results, until the client closes.
        while let Some(told) = self.heard_until_end()? {
            let answer = match told.len() {
                ADDRESS_BYTES => self.own_address().to_vec(),
                bytes => vec![0; bytes],
            };
            self.tell(&answer)?;
        }
        self.check_memory()?;
        self.node.close(self.data)?;
        self.node.close(self.control)?;
        Ok(self.report("serve", elapsed))
    }

    fn connect(mut self, address: SocketAddr) -> Result<String, Failure> {
        let told = self.exchange(VERSION)?;
        if told[..4] != VERSION[..4] {
            let told = String::from_utf8_lossy(&told);
            return Err(format!("the peer's exchange has version {told}").into());
        }
        self.exchange(&PAGE_BYTES.to_be_bytes())?;
        self.exchange(&LINE_BYTES.to_be_bytes())?;
        self.exchange(MTU)?;
        self.exchange(&[0; ADDRESS_BYTES])?;
        let memory = self.memory;
        let (kind, bytes) = (self.test.kind, self.test.bytes);
        let receives = self.receives();
        let prepare = |node: &mut Node, data| match kind {
            Kind::Send => {
                (0..receives).try_for_each(|id| node.post_receive(data, id, memory.piece(0, bytes)))
            }
            _ => Ok(()),
        };
        self.data = self.node.connect(address, &[], prepare)?.0;
        self.exchange(&[0; ADDRESS_BYTES])?;
        for _ in 0..self.test.barriers() {
            let told = self.exchange(&self.own_address())?;
            self.learn(&told)?;
        }
        let begun = Instant::now();
        match (self.test.kind, self.test.measure) {
            (Kind::Send, Measure::Latency) => self.send_in_turn()?,
            (Kind::Send, Measure::Bandwidth) => self.send_all()?,
            (Kind::Write, Measure::Latency) => self.write_in_turn(false)?,
            (Kind::Write, Measure::Bandwidth) => self.post_all()?,
            (Kind::Read, _) => self.post_all()?,
        }
        let elapsed = begun.elapsed();
        // A latency test with writes has no barrier after it.
        if (self.test.kind, self.test.measure) != (Kind::Write, Measure::Latency) {
            self.exchange(&self.own_address())?;
        }
        if self.test.tells_figures() {
            let rate = self.mega_bytes_per_s(elapsed) / 1.048_576;
            let each = rate / f64::from(self.test.bytes);
            let (bytes, count) = (u64::from(self.test.bytes), self.test.count as u64);
            for word in [bytes, count, rate.to_bits(), rate.to_bits(), each.to_bits()] {
                self.exchange(&word.to_be_bytes())?;
            }
            self.exchange(&self.own_address())?;
        }
        if self.test.kind == Kind::Read {
            self.check_memory()?;
        }
        self.node.close(self.data)?;
        self.node.close(self.control)?;
        Ok(self.report("connect", elapsed))
    }

    /// The memory that is announced to the peer: grants, if the peer receives many sends.
    fn own_address(&self) -> [u8; ADDRESS_BYTES] {
        let region = match (self.test.kind, self.test.measure) {
            (Kind::Send, Measure::Bandwidth) => self.grants,
            _ => self.memory,
        };
        let Remote { stag, offset } = region.remote(0);
        let reads = if self.test.kind == Kind::Read {
            128_u32
        } else {
            1
        };
        let mut address = [0; ADDRESS_BYTES];
        address[4..8].copy_from_slice(&reads.to_be_bytes());
        address[8..12].copy_from_slice(&2_u32.to_be_bytes());
        address[16..20].copy_from_slice(&stag.0.to_be_bytes());
        address[24..32].copy_from_slice(&offset.to_be_bytes());
        address
    }

    fn learn(&mut self, told: &[u8]) -> Result<(), Failure> {
        let stag = Stag(u32::from_be_bytes(told[16..20].try_into()?));
        let offset = u64::from_be_bytes(told[24..32].try_into()?);
        self.peer = Remote { stag, offset };
        Ok(())
    }

    /// The next message of the control connection, of `bytes` bytes.
    fn heard(&mut self, bytes: usize) -> Result<Vec<u8>, Failure> {
        let done = self.node.await_done(self.control, true)?;
        let told = self.taken(done.id, done.bytes)?;
        if told.len() != bytes {
            return Err(format!("{} bytes of control, not {bytes}", told.len()).into());
        }
        Ok(told)
    }

    /// The same with any length; none once the client has closed.
    fn heard_until_end(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let control = self.control;
        let done = self.node.until("a barrier", |node| {
            if node.has_ended(control) {
                return Ok(Some(None));
            }
            Ok(node.next_done(control, true)?.map(Some))
        })?;
        done.map(|done| self.taken(done.id, done.bytes)).transpose()
    }

    fn taken(&mut self, slot: u64, bytes: u32) -> Result<Vec<u8>, Failure> {
        let at = slot as usize * SLOT_BYTES;
        let told = self.node.bytes(self.words)[at..at + bytes as usize].to_vec();
        let piece = slot_of(self.words, slot as usize);
        self.node.post_receive_again(self.control, slot, piece)?;
        Ok(told)
    }

    fn tell(&mut self, message: &[u8]) -> Result<(), Failure> {
        let at = SLOTS * SLOT_BYTES;
        self.node.bytes_mut(self.words)[at..at + message.len()].copy_from_slice(message);
        let piece = self.words.piece(at as u64, message.len() as u32);
        self.node.send(self.control, piece)
    }

    fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, Failure> {
        self.tell(message)?;
        self.heard(message.len())
    }

    fn receives(&self) -> u64 {
        self.test.count.min(WINDOW) as u64
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        if self.test.kind != Kind::Send {
            return Ok(());
        }
        (0..self.receives()).try_for_each(|id| self.post_receive(id))
    }

    fn post_receive(&mut self, id: u64) -> Result<(), Failure> {
        let piece = self.memory.piece(0, self.test.bytes);
        self.node.post_receive(self.data, id, piece)
    }

    /// The memory to send from.
    fn outgoing(&self) -> sidecore_rdma::Piece {
        self.memory.piece(self.test.bytes.into(), self.test.bytes)
    }

    fn received(&mut self) -> Result<(), Failure> {
        let done = self.node.await_done(self.data, true)?;
        if done.bytes != self.test.bytes {
            return Err(format!("{} bytes came, not {}", done.bytes, self.test.bytes).into());
        }
        let piece = self.memory.piece(0, self.test.bytes);
        self.node.post_receive_again(self.data, done.id, piece)
    }

    fn answer_sends(&mut self) -> Result<(), Failure> {
        for _ in 0..self.test.count {
            self.received()?;
            self.node.send(self.data, self.outgoing())?;
        }
        Ok(())
    }

    fn send_in_turn(&mut self) -> Result<(), Failure> {
        for _ in 0..self.test.count {
            self.node.send(self.data, self.outgoing())?;
            self.received()?;
        }
        Ok(())
    }

    fn take_sends(&mut self) -> Result<(), Failure> {
        let each = (self.receives() as usize / 2).max(1);
        for count in 1..=self.test.count {
            self.received()?;
            if count.is_multiple_of(each) {
                // The word is sent with its value at that time: a later number grants no less.
                let at = SLOTS * SLOT_BYTES;
                let word = (count as u32).to_le_bytes();
                self.node.bytes_mut(self.words)[at..at + 4].copy_from_slice(&word);
                let piece = self.words.piece(at as u64, 4);
                self.node.post_write(self.data, piece, self.peer)?;
                self.node.await_done(self.data, false)?;
            }
        }
        Ok(())
    }

    fn send_all(&mut self) -> Result<(), Failure> {
        let (mut posted, mut gone) = (0_usize, 0);
        while gone < self.test.count {
            let granted = u32::from_le_bytes(self.node.bytes(self.grants)[..4].try_into()?);
            let limit = granted as usize + WINDOW;
            while posted < self.test.count && posted < limit && posted - gone < DEPTH / 2 {
                self.node.post_send(self.data, self.outgoing())?;
                posted += 1;
            }
            if posted > gone {
                self.node.await_done(self.data, false)?;
                gone += 1;
            } else {
                let grants = self.grants;
                self.node.until("a grant", |node| {
                    let now = u32::from_le_bytes(node.bytes(grants)[..4].try_into()?);
                    Ok((now > granted).then_some(()))
                })?;
            }
        }
        Ok(())
    }

    /// Posts one read after the other for latency, else all reads or writes.
    fn post_all(&mut self) -> Result<(), Failure> {
        let ahead = match self.test.measure {
            Measure::Latency => 1,
            Measure::Bandwidth => DEPTH / 2,
        };
        let (mut posted, mut done) = (0, 0);
        while done < self.test.count {
            while posted < self.test.count && posted - done < ahead {
                match self.test.kind {
                    Kind::Read => {
                        let into = self.memory.piece(0, self.test.bytes);
                        self.node.post(
                            self.data,
                            Work::Read {
                                into,
                                remote: self.peer,
                            },
                        )?;
                    }
                    _ => self
                        .node
                        .post_write(self.data, self.outgoing(), self.peer)?,
                }
                posted += 1;
            }
            self.node.await_done(self.data, false)?;
            done += 1;
        }
        Ok(())
    }

    /// A round is one write by each side, with its number in the last byte.
    fn write_in_turn(&mut self, is_first: bool) -> Result<(), Failure> {
        let last = self.test.bytes as usize - 1;
        for round in 1..=self.test.count {
            for writes in [is_first, !is_first] {
                if writes {
                    let at = last + self.test.bytes as usize;
                    self.node.bytes_mut(self.memory)[at] = round as u8;
                    let piece = self.outgoing();
                    self.node.post_write(self.data, piece, self.peer)?;
                    self.node.await_done(self.data, false)?;
                } else {
                    self.see(last, round as u8)?;
                }
            }
        }
        Ok(())
    }

    /// Polls a byte of our memory until the peer has changed it, without sleeping.
    fn see(&mut self, at: usize, wanted: u8) -> Result<(), Failure> {
        let begun = Instant::now();
        while self.node.bytes(self.memory)[at] != wanted {
            self.node.move_on()?;
            std::thread::yield_now();
            if begun.elapsed() > LIMIT || self.node.has_ended(self.data) {
                return Err("a write of the peer does not come".into());
            }
        }
        Ok(())
    }

    /// The peer's bytes are random: both ends of the buffer must have been filled.
    fn check_memory(&self) -> Result<(), Failure> {
        let came = &self.node.bytes(self.memory)[..self.test.bytes as usize];
        let is_lat_by_writes =
            self.test.kind == Kind::Write && self.test.measure == Measure::Latency;
        let (first, second) = came.split_at(came.len() / 2);
        let is_filled = |part: &[u8]| part.len() < 16 || part.iter().any(|&byte| byte != 0);
        if is_lat_by_writes || (is_filled(first) && is_filled(second)) {
            Ok(())
        } else {
            Err("bytes of the peer are missing".into())
        }
    }

    fn mega_bytes_per_s(&self, elapsed: Duration) -> f64 {
        let bytes = self.test.count as f64 * f64::from(self.test.bytes);
        bytes / elapsed.as_secs_f64().max(1e-9) / 1e6
    }

    fn report(&self, side: &str, elapsed: Duration) -> String {
        let (tool, figure) = match self.test.measure {
            Measure::Bandwidth => (
                "bw",
                format!("\"mb_per_s\": {:.3}", self.mega_bytes_per_s(elapsed)),
            ),
            Measure::Latency => {
                let ways = if self.test.kind == Kind::Read {
                    1.0
                } else {
                    2.0
                };
                let each = elapsed.as_secs_f64() / (ways * self.test.count.max(1) as f64);
                ("lat", format!("\"us\": {:.2}", 1e6 * each))
            }
        };
        let kind = match self.test.kind {
            Kind::Send => "send",
            Kind::Write => "write",
            Kind::Read => "read",
        };
        // A server of reads, or of bandwidth with writes, notices neither start nor end.
        let is_passive = side == "serve"
            && matches!(
                (self.test.kind, self.test.measure),
                (Kind::Read, _) | (Kind::Write, Measure::Bandwidth)
            );
        let figure = if is_passive {
            "\"figure\": null"
        } else {
            &figure
        };
        format!(
            "{{\"tool\": \"ib_{kind}_{tool}\", \"side\": \"{side}\", \"count\": {}, \"bytes\": {}, \
             {figure}}}",
            self.test.count, self.test.bytes
        )
    }
}
