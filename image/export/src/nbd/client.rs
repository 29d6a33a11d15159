//! A small NBD client that measures a server: latency with one request at a time, requests per
//! second with several in flight.
//!
//! Why here: `block bench` compares this server with others, so all must be driven by the same
//! client, and one of low cost: one thread, one `recv` for all replies that have arrived, one
//! `send` for the requests that they allow.
//! Must stay true: it sends every server the same requests, in the same order (the offsets come
//! from the seed).
//! One thread uses a client; calls block until the server has answered or [`ANSWER_MAX`] is over.
//! Source: the NBD protocol document.

use super::NbdError;
use super::wire::{
    self, CHUNK_BYTES, Fields, OPTION_REPLY_BYTES, REQUEST_BYTES, Request, chunk, command, info,
    option, reply,
};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_random::split_mix;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Load of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Bytes in a request.
    pub block_bytes: u32,
    /// Requests in flight.
    pub depth: usize,
    /// Stop after this many requests, at most [`REQUESTS_MAX`]...
    pub requests_max: usize,
    /// ... or after this time, whichever comes first.
    pub time_max: Duration,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Requests answered.
    pub requests: usize,
    /// Bytes of data received, holes included.
    pub bytes: u64,
    /// Wall-clock time.
    pub wall_s: f64,
    /// Requests answered in a second.
    pub requests_per_s: f64,
    /// Data received in a second, in MB (10^6 bytes).
    pub mb_per_s: f64,
    /// From sending a request to having its last byte: median.
    pub p50_us: f64,
    /// The same: 99th percentile.
    pub p99_us: f64,
    /// The same: one in a thousand takes longer.
    pub p999_us: f64,
}

/// Reads blocks at random offsets, multiples of the block's size.
///
/// # Errors
/// [`NbdError::Client`] when the server cannot be reached, fails a read or breaks the protocol.
pub fn measure_random(socket: &Path, load: &Load, seed: u64) -> Result<Measured, NbdError> {
    let mut client = Client::connect(socket, "")?;
    let blocks = client.size_bytes / u64::from(load.block_bytes.max(1));
    if blocks == 0 {
        return Err(client.fault("has a device that is smaller than one block"));
    }
    let mut random = seed;
    client.measure(load, || {
        let block = split_mix(&mut random) % blocks;
        Some(block * u64::from(load.block_bytes))
    })
}

/// Reads the device from its beginning, block after block, at most once.
///
/// # Errors
/// [`NbdError::Client`] when the server cannot be reached, fails a read or breaks the protocol.
pub fn measure_sequential(socket: &Path, load: &Load) -> Result<Measured, NbdError> {
    let mut client = Client::connect(socket, "")?;
    let size_bytes = client.size_bytes;
    let mut next = 0;
    client.measure(load, || {
        let offset = next;
        next += u64::from(load.block_bytes);
        (next <= size_bytes).then_some(offset)
    })
}

/// A connection to an NBD server, with structured replies where the server has them.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    server: String,
    structured: bool,
    /// The device's size in bytes.
    pub size_bytes: u64,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Client {
    /// Connects to the server behind a Unix socket and begins to use its export `name`.
    ///
    /// # Errors
    /// [`NbdError::Client`] when there is no server, or none that has the export.
    pub fn connect(socket: &Path, name: &str) -> Result<Self, NbdError> {
        let server = socket.display().to_string();
        let stream = UnixStream::connect(socket)
            .and_then(|stream| {
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                stream.set_write_timeout(Some(ANSWER_MAX))?;
                Ok(stream)
            })
            .map_err(|error| NbdError::Client {
                server: server.clone(),
                what: format!("cannot be reached: {error}"),
            })?;
        let mut client = Self {
            stream,
            server,
            structured: false,
            size_bytes: 0,
            buffer: vec![0; CLIENT_BUFFER_BYTES],
            start: 0,
            end: 0,
        };
        client.shake_hands(name)?;
        Ok(client)
    }

    /// Reads `dst.len()` bytes from `offset`, as a single request.
    ///
    /// # Errors
    /// [`NbdError::Client`] when the server fails the read or breaks the protocol.
    pub fn read_at(&mut self, offset: u64, dst: &mut [u8]) -> Result<(), NbdError> {
        let len = dst.len() as u32;
        let request = request(command::READ, 0, offset, len);
        self.send(&request)?;
        let mut got = 0;
        loop {
            let message = self.message(|_| len)?;
            let part_bytes = (message.data_bytes + message.hole_bytes).to_usize();
            if part_bytes > dst.len() - got {
                return Err(self.fault("sent more data than it was asked for"));
            }
            // A simple reply and an error have no offset; chunks may come in any order.
            let from = match message.offset {
                Some(at) => at.wrapping_sub(offset).to_usize(),
                None => 0,
            };
            let Some(part) = dst.get_mut(from..from.saturating_add(part_bytes)) else {
                return Err(self.fault("sent data that it was not asked for"));
            };
            if message.hole_bytes > 0 {
                part.fill(0);
            } else {
                self.data(part.len(), Some(part))?;
            }
            got += part_bytes;
            if message.done {
                break;
            }
        }
        if got < dst.len() {
            return Err(self.fault("sent less data than it was asked for"));
        }
        Ok(())
    }

    fn shake_hands(&mut self, name: &str) -> Result<(), NbdError> {
        let greeting = self.take(wire::GREETING_BYTES)?;
        let mut fields = Fields(&greeting);
        if (fields.u64(), fields.u64()) != (Some(wire::INIT_MAGIC), Some(wire::OPTION_MAGIC)) {
            return Err(self.fault("does not speak newstyle NBD"));
        }
        let flags = fields.u16().unwrap_or(0);
        // The two flags that this client knows: fixed newstyle, and no zeros after an export's
        // name.
        self.send(&u32::from(flags & 3).to_be_bytes())?;
        self.option(option::STRUCTURED_REPLY, &[])?;
        self.structured = self.option_replies(option::STRUCTURED_REPLY)?;
        let mut data = Vec::new();
        data.extend_from_slice(&(name.len() as u32).to_be_bytes());
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&0_u16.to_be_bytes());
        self.option(option::GO, &data)?;
        if !self.option_replies(option::GO)? {
            return Err(self.fault("does not have that export"));
        }
        Ok(())
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<(), NbdError> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        self.send(&bytes)
    }

    /// Reads replies to an option up to the last; returns whether it was granted.
    fn option_replies(&mut self, option: u32) -> Result<bool, NbdError> {
        for _ in 0..OPTION_REPLIES_MAX {
            let head = self.take(OPTION_REPLY_BYTES)?;
            let mut fields = Fields(&head);
            let (magic, of) = (fields.u64(), fields.u32());
            let (kind, len) = (fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
            if (magic, of) != (Some(wire::OPTION_REPLY_MAGIC), Some(option)) || len > 1 << 16 {
                return Err(self.fault("answered an option that was not sent"));
            }
            let data = self.take(len.to_usize())?;
            match kind {
                reply::ACK => return Ok(true),
                reply::INFO => {
                    let mut fields = Fields(&data);
                    if fields.u16() == Some(info::EXPORT) {
                        self.size_bytes = fields.u64().unwrap_or(0);
                    }
                }
                _ if kind & (1 << 31) != 0 => return Ok(false),
                _ => {}
            }
        }
        Err(self.fault("answers an option without end"))
    }

    fn measure(
        &mut self,
        load: &Load,
        mut next_offset: impl FnMut() -> Option<u64>,
    ) -> Result<Measured, NbdError> {
        let depth = load.depth.clamp(1, DEPTH_MAX);
        let requests_max = load.requests_max.min(REQUESTS_MAX);
        let mut latencies_ns: Vec<u32> = Vec::with_capacity(requests_max);
        let mut sent_at = vec![Instant::now(); depth];
        let mut free: Vec<usize> = (0..depth).collect();
        let mut out = Vec::with_capacity(depth * REQUEST_BYTES);
        let mut under_way = 0;
        let mut asked = 0;
        let mut bytes = 0_u64;
        let began = Instant::now();
        let mut now = began;
        loop {
            while asked < requests_max && now - began < load.time_max {
                let Some(slot) = free.pop() else { break };
                let Some(offset) = next_offset() else { break };
                let request = request(command::READ, slot.to_u64(), offset, load.block_bytes);
                out.extend_from_slice(&request);
                sent_at[slot] = now;
                under_way += 1;
                asked += 1;
            }
            // No offsets are left, or the time is over: all replies were awaited.
            if under_way == 0 {
                break;
            }
            if !out.is_empty() {
                self.send(&out)?;
                out.clear();
            }
            // At least one reply, then as many as have arrived with it.
            loop {
                let message = self.message(|_| load.block_bytes)?;
                self.data(message.data_bytes.to_usize(), None)?;
                bytes += u64::from(message.data_bytes + message.hole_bytes);
                if message.done {
                    let slot = message.cookie.to_usize();
                    let Some(sent) = sent_at.get(slot) else {
                        return Err(self.fault("answered a request that was not sent"));
                    };
                    now = Instant::now();
                    // A wait of more than 4 s counts as 4 s: far beyond every percentile that is
                    // reported.
                    latencies_ns.push((now - *sent).as_nanos().min(u128::from(u32::MAX)) as u32);
                    free.push(slot);
                    under_way -= 1;
                    if self.start == self.end {
                        break;
                    }
                }
            }
        }
        let wall_s = began.elapsed().as_secs_f64();
        let disconnect = request(command::DISC, 0, 0, 0);
        self.send(&disconnect)?;
        Ok(measured(latencies_ns, bytes, wall_s))
    }

    /// The head of the next reply or chunk; its data, `data_bytes` long, follow. A reply with an
    /// error is an `Err`.
    fn message(&mut self, simple_len: impl Fn(u64) -> u32) -> Result<Message, NbdError> {
        if !self.structured {
            let (error, cookie) = self.with(wire::SIMPLE_REPLY_BYTES, |mut fields| {
                let magic = fields.u32();
                let error = fields.u32().unwrap_or(0);
                let known = magic == Some(wire::SIMPLE_REPLY_MAGIC);
                known.then_some((error, fields.u64().unwrap_or(0)))
            })?;
            if error != 0 {
                return Err(self.fault(&format!("failed a read with error {error}")));
            }
            return Ok(Message {
                cookie,
                data_bytes: simple_len(cookie),
                hole_bytes: 0,
                offset: None,
                done: true,
            });
        }
        let (flags, kind, cookie, len) = self.with(CHUNK_BYTES, |mut fields| {
            let known = fields.u32() == Some(wire::STRUCTURED_REPLY_MAGIC);
            let head = (fields.u16()?, fields.u16()?, fields.u64()?, fields.u32()?);
            known.then_some(head)
        })?;
        let mut message = Message {
            cookie,
            data_bytes: 0,
            hole_bytes: 0,
            offset: None,
            done: flags & chunk::DONE != 0,
        };
        match (kind, len) {
            (chunk::NONE, 0) => {}
            (chunk::OFFSET_DATA, 9..) => {
                message.offset = Some(self.with(8, |mut fields| fields.u64())?);
                message.data_bytes = len - 8;
            }
            (chunk::OFFSET_HOLE, 12) => {
                let hole = self.with(12, |mut fields| Some((fields.u64()?, fields.u32()?)))?;
                message.offset = Some(hole.0);
                // A message has data or a hole, never both: the sum of the two cannot overflow.
                message.hole_bytes = hole.1;
            }
            _ if kind & (1 << 15) != 0 && (6..1 << 16).contains(&len) => {
                let payload = self.take(len.to_usize())?;
                let error = Fields(&payload).u32().unwrap_or(0);
                return Err(self.fault(&format!("failed a read with error {error}")));
            }
            _ => return Err(self.fault("sent a chunk that makes no sense")),
        }
        Ok(message)
    }

    /// Receives `count` bytes of data, into `dst` or discarded.
    fn data(&mut self, count: usize, mut dst: Option<&mut [u8]>) -> Result<(), NbdError> {
        let mut done = 0;
        while done < count {
            if self.start == self.end {
                self.fill()?;
            }
            let part = (self.end - self.start).min(count - done);
            if let Some(dst) = dst.as_deref_mut() {
                dst[done..done + part].copy_from_slice(&self.buffer[self.start..self.start + part]);
            }
            self.start += part;
            done += part;
        }
        Ok(())
    }

    /// Passes the next `count` bytes, at most [`CHUNK_BYTES`], to `look`, and consumes them.
    fn with<T>(
        &mut self,
        count: usize,
        look: impl FnOnce(Fields<'_>) -> Option<T>,
    ) -> Result<T, NbdError> {
        while self.end - self.start < count {
            self.fill()?;
        }
        let seen = look(Fields(&self.buffer[self.start..self.start + count]));
        self.start += count;
        seen.ok_or_else(|| self.fault("sent a reply that makes no sense"))
    }

    fn take(&mut self, count: usize) -> Result<Vec<u8>, NbdError> {
        let mut bytes = vec![0; count];
        self.data(count, Some(&mut bytes))?;
        Ok(bytes)
    }

    /// Receives at least one byte.
    fn fill(&mut self) -> Result<(), NbdError> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        // Room for a chunk's header, the largest item that is looked at in place.
        } else if self.buffer.len() - self.end < CHUNK_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        match self.stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(self.fault("closed the connection")),
            Ok(count) => {
                self.end += count;
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.fault(&format!("sends no answer: {error}"))),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), NbdError> {
        self.stream
            .write_all(bytes)
            .map_err(|error| self.fault(&format!("takes no requests: {error}")))
    }

    fn fault(&self, what: &str) -> NbdError {
        NbdError::Client {
            server: self.server.clone(),
            what: what.to_owned(),
        }
    }
}

struct Message {
    cookie: u64,
    data_bytes: u32,
    /// Zeros that are not transferred.
    hole_bytes: u32,
    offset: Option<u64>,
    done: bool,
}

fn request(command: u16, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_BYTES] {
    let request = Request {
        flags: 0,
        command,
        cookie,
        offset,
        len: len.into(),
    };
    request.encode()
}

fn measured(mut latencies_ns: Vec<u32>, bytes: u64, wall_s: f64) -> Measured {
    latencies_ns.sort_unstable();
    let requests = latencies_ns.len();
    let at = |share: f64| {
        // Nearest rank; interpolation would report a latency that no request had.
        let index = (requests as f64 * share) as usize;
        let ns = latencies_ns.get(index.min(requests.saturating_sub(1)));
        ns.map_or(0.0, |&ns| f64::from(ns) / 1000.0)
    };
    Measured {
        requests,
        bytes,
        wall_s,
        requests_per_s: requests as f64 / wall_s,
        mb_per_s: bytes as f64 / wall_s / 1e6,
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
    }
}

/// The most requests in flight.
pub const DEPTH_MAX: usize = 256;
/// The most requests in one measurement.
pub const REQUESTS_MAX: usize = 4 << 20;
/// Time limit for a server's answer.
pub const ANSWER_MAX: Duration = Duration::from_secs(30);
const CLIENT_BUFFER_BYTES: usize = 256 << 10;
const OPTION_REPLIES_MAX: usize = 64;
