//! One connection, shared by workers in the leader/followers pattern.
//!
//! Why here: this is the fast path. At queue depth 1 one thread receives, reads the device and
//! replies, with no other thread involved. At greater depth every worker does that, and none waits
//! for another.
//! How: an idle worker takes the *lead* (the read lock) and receives. It parses one request,
//! releases the lead and serves the request itself. Only if whole requests are left in its buffer
//! does it call a parked follower to take the lead at once (a wake-up costs several microseconds);
//! otherwise the first worker that is done takes it. The leader receives a write's payload before
//! it releases the lead. A payload of more than [`PAYLOAD_BYTES`] it writes piece by piece, so that
//! no client takes more memory than that for each worker.
//! Must stay true: a parked worker has registered under `turn` before it looks at the lead for the
//! last time, and a caller frees the lead before it looks at `turn`, so a call is never lost. The
//! leader neither reads the device nor sends, and writes only those long payloads.
//! Source: own; the leader/followers pattern.

use super::outlet::Outlet;
use super::reply::{Disconnected, reply, reply_change};
use super::session::{Command, Next, Session};
use super::tracks;
use super::wire::Headers;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_format::source::{BlockSource, WriteError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// State shared by the workers of one connection.
pub(super) struct Connection {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) source: Arc<dyn BlockSource>,
    /// Names the connection in logs and threads.
    pub(super) number: u64,
    pub(super) workers_max: usize,
    pub(super) patience: Duration,
    headers: Headers,
    reader: Mutex<Reader>,
    writer: Mutex<()>,
    turn: Mutex<Turn>,
    called: Condvar,
    ended: AtomicBool,
}

/// The receiving half; the holder of its lock leads.
struct Reader {
    session: Session,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

/// The parked workers.
#[derive(Default)]
struct Turn {
    parked: usize,
    /// Calls that no parked worker has taken yet.
    calls: usize,
    /// Workers that have not ended.
    workers: usize,
}

impl Connection {
    /// A connection whose handshake is done; `rest` holds the bytes received after it, at most
    /// [`BUFFER_BYTES`].
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        source: Arc<dyn BlockSource>,
        session: Session,
        rest: &[u8],
        number: u64,
        limits: (usize, Duration),
    ) -> Self {
        let mut buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        buffer[..rest.len()].copy_from_slice(rest);
        Self {
            socket,
            source,
            number,
            workers_max: limits.0.max(1),
            patience: limits.1,
            headers: session.terms().headers,
            reader: Mutex::new(Reader {
                session,
                buffer,
                start: 0,
                end: rest.len(),
            }),
            writer: Mutex::new(()),
            turn: Mutex::new(Turn {
                workers: 1,
                ..Turn::default()
            }),
            called: Condvar::new(),
            ended: AtomicBool::new(false),
        }
    }

    /// Serves until the connection ends and every reply in progress is sent. The calling thread is
    /// the first worker; others are started when they are needed.
    pub(super) fn serve(self: &Arc<Self>) {
        // Also when the device panics here: the client count must not drop while other workers
        // still serve this client.
        let _wait = WaitOnDrop(self);
        self.work();
    }

    fn work(self: &Arc<Self>) {
        let mut outlet = Outlet::new(self.socket.as_fd(), &self.writer, self.patience);
        // Whatever ends this worker, a panic of the device included, must not leave the others
        // waiting for it. It must count as ended before the outlet releases the write lock, for it
        // may have sent half a message.
        let _end = EndOnDrop(self);
        let mut payload = Vec::new();
        while let Some(mut reader) = self.take_lead() {
            let next = reader.next(self).and_then(|command| match command {
                Command::Write { offset, len, .. } => {
                    let arrival = reader.payload(self, offset, len, &mut payload)?;
                    Ok((command, Some(arrival)))
                }
                _ => Ok((command, None)),
            });
            let (command, arrival) = match next {
                Ok(next) => next,
                Err(End::Left) => return,
                Err(End::Fault(what)) => {
                    tracing::warn!("NBD client {}: {what}; closing it", self.number);
                    self.cut();
                    return;
                }
            };
            // Looked at under the lead: afterwards another worker may take the requests away.
            let more = reader.has_next();
            drop(reader);
            if more {
                self.call_follower();
            }
            let request = tracks::nbd_request(&command);
            let replied = match (command, arrival) {
                (Command::Write { durable, .. }, Some(arrival)) => {
                    let outcome = self.write(arrival, &payload, durable);
                    reply_change(command.reply_to(self.headers), outcome, &mut outlet)
                }
                _ => reply(&*self.source, self.headers, &command, &mut outlet),
            };
            drop(request);
            match replied {
                Ok(()) => {}
                Err(disconnected) => {
                    if disconnected == Disconnected::HalfReply {
                        let what = "the image failed within a long simple reply";
                        tracing::warn!("NBD client {}: {what}; closing it", self.number);
                    }
                    self.cut();
                    return;
                }
            }
        }
    }

    /// Writes the last piece of a payload.
    fn write(&self, arrival: Arrival, payload: &[u8], durable: bool) -> Result<(), WriteError> {
        arrival.earlier?;
        // The session refuses writes of a read-only export; the device has the last word.
        let Some(writes) = self.source.writes() else {
            return Err(WriteError::Io {
                reason: "the device takes no writes".to_owned(),
            });
        };
        writes.write(arrival.offset, payload)?;
        match durable {
            true => writes.flush(),
            false => Ok(()),
        }
    }

    /// The lead, or `None` when the connection has ended. Parks while another worker leads.
    fn take_lead(&self) -> Option<MutexGuard<'_, Reader>> {
        loop {
            // Pairs with the store in `end`; a worker that misses it finds the socket at its end.
            if self.ended.load(Ordering::Acquire) {
                return None;
            }
            if let Some(reader) = self.reader.try_lock() {
                return Some(reader);
            }
            let mut turn = self.turn.lock();
            // Again, now that no caller can look at `turn` in between.
            if let Some(reader) = self.reader.try_lock() {
                return Some(reader);
            }
            if self.ended.load(Ordering::Acquire) {
                return None;
            }
            turn.parked += 1;
            while turn.calls == 0 && !self.ended.load(Ordering::Acquire) {
                self.called.wait(&mut turn);
            }
            // A worker that was woken by the end of the connection has no call to take.
            turn.calls = turn.calls.saturating_sub(1);
            turn.parked -= 1;
        }
    }

    /// Gets another worker to take the lead: a parked one, or a new one while there are too few.
    fn call_follower(self: &Arc<Self>) {
        let mut turn = self.turn.lock();
        if turn.parked > turn.calls {
            turn.calls += 1;
            drop(turn);
            self.called.notify_one();
        } else if turn.workers < self.workers_max {
            turn.workers += 1;
            // Counted before the thread exists: the count bounds how many start at once.
            let name = format!("nbd-{}-{}", self.number, turn.workers);
            drop(turn);
            let follower = Arc::clone(self);
            let started = std::thread::Builder::new()
                .name(name)
                .spawn(move || follower.work());
            if started.is_err() {
                // The existing workers continue; the next call tries again.
                self.turn.lock().workers -= 1;
                self.called.notify_all();
            }
        }
    }

    /// Stops receiving; replies in progress are still sent.
    fn end(&self) {
        // Pairs with the loads in `take_lead`; under `turn`, so that no worker parks on the old
        // value.
        let turn = self.turn.lock();
        self.ended.store(true, Ordering::Release);
        drop(turn);
        self.called.notify_all();
    }

    /// Ends at once, in both directions.
    fn cut(&self) {
        self.end();
        // Fails only where the client has closed it already.
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }
}

struct EndOnDrop<'c>(&'c Arc<Connection>);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cut();
        } else {
            self.0.end();
        }
        // Last: `WaitOnDrop` returns when none is left, and the source may then be freed.
        self.0.turn.lock().workers -= 1;
        self.0.called.notify_all();
    }
}

/// Waits for the last worker.
struct WaitOnDrop<'c>(&'c Connection);

impl Drop for WaitOnDrop<'_> {
    fn drop(&mut self) {
        let mut turn = self.0.turn.lock();
        while turn.workers > 0 {
            self.0.called.wait(&mut turn);
        }
    }
}

/// A payload that has arrived, all but its last piece written.
struct Arrival {
    /// Offset of the last piece.
    offset: u64,
    /// Outcome of the pieces before.
    earlier: Result<(), WriteError>,
}

/// The reason why receiving ended.
enum End {
    /// The client disconnected in order.
    Left,
    /// It violated the protocol, or stopped within a request.
    Fault(&'static str),
}

impl Reader {
    /// Receives until a request is complete.
    fn next(&mut self, connection: &Connection) -> Result<Command, End> {
        loop {
            match self.session.next(&self.buffer[self.start..self.end]) {
                Next::Command(used, command) => {
                    self.start += used;
                    return Ok(command);
                }
                Next::Used(used) => self.start += used,
                Next::Disconnect => return Err(End::Left),
                Next::Violation(what) => return Err(End::Fault(what)),
                Next::Need => self.receive(connection)?,
            }
        }
    }

    /// Receives a write's payload into `payload`; pieces before the last are written at once.
    fn payload(
        &mut self,
        connection: &Connection,
        offset: u64,
        len: u32,
        payload: &mut Vec<u8>,
    ) -> Result<Arrival, End> {
        let mut arrival = Arrival {
            offset,
            earlier: Ok(()),
        };
        let mut left = len.to_usize();
        loop {
            let piece = left.min(PAYLOAD_BYTES);
            payload.resize(piece, 0);
            self.fill(connection, payload)?;
            left -= piece;
            if left == 0 {
                return Ok(arrival);
            }
            // After a failure the rest is still received, to stay in step with the client.
            if arrival.earlier.is_ok()
                && let Some(writes) = connection.source.writes()
            {
                arrival.earlier = writes.write(arrival.offset, payload);
            }
            arrival.offset += piece.to_u64();
        }
    }

    /// Fills `out` with bytes that were received already, then with new ones.
    fn fill(&mut self, connection: &Connection, out: &mut [u8]) -> Result<(), End> {
        // Small writes are most often in the buffer already; long ones go past it, without a copy.
        let there = (self.end - self.start).min(out.len());
        out[..there].copy_from_slice(&self.buffer[self.start..self.start + there]);
        self.start += there;
        let mut filled = there;
        while filled < out.len() {
            match recv(&*connection.socket, &mut out[filled..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(End::Fault("left within a write")),
                Ok((count, _)) => filled += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(End::Fault("stopped within a write")),
                Err(_) => return Err(End::Fault("its socket failed")),
            }
        }
        Ok(())
    }

    fn has_next(&self) -> bool {
        self.session.has_next(&self.buffer[self.start..self.end])
    }

    /// Waits for more input, asleep: polling for 8 to 50 us first made no request faster and cost
    /// half as much CPU time again.
    fn receive(&mut self, connection: &Connection) -> Result<(), End> {
        // At most a part of one request: a few bytes.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let room = self.end..self.buffer.len();
        loop {
            let flags = RecvFlags::empty();
            match recv(&*connection.socket, &mut self.buffer[room.clone()], flags) {
                Ok((0, _)) if self.end == 0 => return Err(End::Left),
                Ok((0, _)) => return Err(End::Fault("left within a request")),
                Ok((count, _)) => {
                    self.end += count;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                // The socket's time limit is over. Between requests a client may be quiet for as
                // long as it likes.
                Err(Errno::AGAIN) if self.end == 0 => {}
                Err(Errno::AGAIN) => return Err(End::Fault("stopped within a request")),
                Err(Errno::CONNRESET) => return Err(End::Left),
                Err(_) => return Err(End::Fault("its socket failed")),
            }
        }
    }
}

/// Bytes of a write that are held before they are written.
pub(super) const PAYLOAD_BYTES: usize = 1 << 20;
/// Bytes of the receive buffer: 292 requests.
pub(super) const BUFFER_BYTES: usize = 8192;
