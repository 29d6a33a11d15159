//! The exchange of rdmacm-utils' `rping`: the client advertises a buffer with a text, the server
//! reads it by RDMA, the client advertises another, the server writes the text there by RDMA; all
//! in messages of 16 bytes (address, key, length, big-endian). This module has both sides.
//!
//! Must stay true: the returned text is compared with the original; lengths that a peer advertises
//! are limited to [`TEXT_BYTES_MAX`].

use crate::{
    Access, Adapter, Connection, Kind, Piece, Pieces, RdmaError, Receive, Region, Remote, Request,
    Stag, Status, Stream,
};
use sidecore_bare::width::{ToU64, ToUsize};
use std::net::SocketAddr;
use std::time::Duration;

/// The longest text, in bytes, as in `rping -S`.
pub const TEXT_BYTES_MAX: u32 = 65_535;
/// The shortest.
pub const TEXT_BYTES_MIN: u32 = 16;

const MESSAGE_BYTES: usize = 16;
/// Receives posted at a time.
const RECEIVES: usize = 4;

/// Progress of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pinged {
    /// Completed rounds.
    pub rounds: u64,
    /// Bytes transferred each way.
    pub bytes: u64,
}

impl Pinged {
    /// The exchange with a peer, on a line for people.
    #[must_use]
    pub fn line(&self, peer: SocketAddr) -> String {
        let Self { rounds, bytes } = self;
        format!("{peer}: {rounds} rounds, {bytes} bytes each way")
    }
}

/// Buffers of one side: messages to send, received messages, texts.
struct Buffers {
    sent: Region,
    received: Region,
    text: Region,
    back: Region,
}

impl Buffers {
    fn new(adapter: &mut Adapter, text_bytes: u32) -> Result<Self, RdmaError> {
        let text = || vec![0; text_bytes.to_usize()];
        let messages = MESSAGE_BYTES * RECEIVES;
        Ok(Self {
            sent: adapter.register(vec![0; MESSAGE_BYTES], Access::NONE)?,
            received: adapter.register(vec![0; messages], Access::LOCAL_WRITE)?,
            text: adapter.register(text(), Access::LOCAL_WRITE | Access::REMOTE_READ)?,
            back: adapter.register(text(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
        })
    }

    fn receive(&self, index: usize) -> Receive {
        let at = (index * MESSAGE_BYTES).to_u64();
        let piece = self.received.piece(at, region_length(self.sent));
        Receive {
            id: index.to_u64(),
            pieces: Pieces::from_iter([piece]),
        }
    }

    fn free(self, adapter: &mut Adapter) {
        for region in [self.sent, self.received, self.text, self.back] {
            adapter.deregister(region);
        }
    }
}

/// The client's side: `rounds` rounds of texts of `text_bytes` bytes; then it closes.
///
/// # Errors
/// The connection's; the returned text differs.
pub fn ping<S: Stream>(
    connection: Connection<S>,
    adapter: &mut Adapter,
    rounds: u64,
    text_bytes: u32,
    timeout: Duration,
) -> Result<Pinged, RdmaError> {
    let timed = ping_timed(connection, adapter, rounds, text_bytes, timeout);
    timed.map(|(pinged, _)| pinged)
}

/// The same, and the time of the rounds, from the first message to the last.
///
/// # Errors
/// As of [`ping`].
pub(crate) fn ping_timed<S: Stream>(
    mut connection: Connection<S>,
    adapter: &mut Adapter,
    rounds: u64,
    text_bytes: u32,
    timeout: Duration,
) -> Result<(Pinged, Duration), RdmaError> {
    let text_bytes = text_bytes.clamp(TEXT_BYTES_MIN, TEXT_BYTES_MAX);
    let buffers = Buffers::new(adapter, text_bytes)?;
    for index in 0..RECEIVES {
        connection.post_receive(adapter, buffers.receive(index))?;
    }
    let begun = connection.first_message();
    for round in 0..rounds {
        let text = text_of(round, text_bytes.to_usize());
        adapter.bytes_mut(buffers.text).copy_from_slice(&text);
        // Otherwise an earlier round's text would stand for a missing write.
        adapter.bytes_mut(buffers.back).fill(0);
        // The server reads the first and writes the second: one message each, one reply each.
        for region in [buffers.text, buffers.back] {
            advertise(&mut connection, adapter, &buffers, region, timeout)?;
            message(&mut connection, adapter, &buffers, timeout)?;
        }
        // A server writes up to the text's end, which is a zero.
        if adapter.bytes(buffers.back) != text {
            return Err(RdmaError::Unexpected(
                "brings another text back than was sent",
            ));
        }
    }
    let elapsed = begun.elapsed();
    connection.close(adapter, timeout)?;
    buffers.free(adapter);
    let pinged = Pinged {
        rounds,
        bytes: rounds * u64::from(text_bytes),
    };
    Ok((pinged, elapsed))
}

/// The server's side of one connection, until the client closes.
///
/// # Errors
/// The connection's.
pub fn serve<S: Stream>(
    request: Request<S>,
    adapter: &mut Adapter,
    timeout: Duration,
) -> Result<Pinged, RdmaError> {
    serve_introduced(request, adapter, timeout, timeout, || Ok(()))
}

/// The same for a public server: the client's first message must arrive within `first`, and
/// `introduced` then decides if the client is served.
///
/// # Errors
/// The connection's; that of `introduced`.
pub(crate) fn serve_introduced<S: Stream>(
    mut request: Request<S>,
    adapter: &mut Adapter,
    first: Duration,
    timeout: Duration,
    introduced: impl FnOnce() -> Result<(), RdmaError>,
) -> Result<Pinged, RdmaError> {
    let buffers = Buffers::new(adapter, TEXT_BYTES_MAX)?;
    for index in 0..RECEIVES {
        request.post_receive(adapter, buffers.receive(index))?;
    }
    let mut connection = request.accept(adapter, &[])?;
    let source = advertised(&mut connection, adapter, &buffers, first);
    let served = source.and_then(|source| match source {
        None => Ok(Pinged::default()),
        Some(source) => {
            introduced()?;
            answer(&mut connection, adapter, &buffers, source, timeout)
        }
    });
    buffers.free(adapter);
    served
}

fn answer<S: Stream>(
    connection: &mut Connection<S>,
    adapter: &mut Adapter,
    buffers: &Buffers,
    mut source: (Remote, u32),
    timeout: Duration,
) -> Result<Pinged, RdmaError> {
    let mut pinged = Pinged::default();
    loop {
        let into = buffers.text.piece(0, source.1);
        connection.get(adapter, into, source.0, timeout)?;
        connection.send(adapter, whole(buffers.sent), timeout)?;
        let Some(sink) = advertised(connection, adapter, buffers, timeout)? else {
            return Ok(pinged);
        };
        // As in the original: up to the text's end.
        let text = adapter.bytes(buffers.text);
        let end = text
            .iter()
            .position(|&byte| byte == 0)
            .map_or(text.len(), |end| end + 1);
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        let bytes = end.min(sink.1).min(source.1);
        connection.put(adapter, buffers.text.piece(0, bytes), sink.0, timeout)?;
        connection.send(adapter, whole(buffers.sent), timeout)?;
        pinged.rounds += 1;
        pinged.bytes += u64::from(bytes);
        source = match advertised(connection, adapter, buffers, timeout)? {
            Some(source) => source,
            None => return Ok(pinged),
        };
    }
}

fn whole(region: Region) -> Piece {
    region.piece(0, region_length(region))
}

/// Length of one of the exchange's regions, which are all shorter than 4 GiB.
fn region_length(region: Region) -> u32 {
    u32::try_from(region.bytes).unwrap_or(u32::MAX)
}

/// Announces a region to the peer.
fn advertise<S: Stream>(
    connection: &mut Connection<S>,
    adapter: &mut Adapter,
    buffers: &Buffers,
    region: Region,
    timeout: Duration,
) -> Result<(), RdmaError> {
    let Remote { stag, offset } = region.remote(0);
    let message = adapter.bytes_mut(buffers.sent);
    message[..8].copy_from_slice(&offset.to_be_bytes());
    message[8..12].copy_from_slice(&stag.0.to_be_bytes());
    message[12..].copy_from_slice(&region_length(region).to_be_bytes());
    connection.send(adapter, whole(buffers.sent), timeout)
}

/// The peer's next message; its buffer is posted again. None if the peer has closed.
fn message<S: Stream>(
    connection: &mut Connection<S>,
    adapter: &mut Adapter,
    buffers: &Buffers,
    timeout: Duration,
) -> Result<Option<[u8; MESSAGE_BYTES]>, RdmaError> {
    let completion = match connection.wait(adapter, timeout) {
        Err(RdmaError::Ended(crate::End::Orderly)) => return Ok(None),
        other => other?,
    };
    match (completion.kind, completion.status) {
        // The receives that were left when the client closed.
        (Kind::Receive, Status::Flushed) => {
            return match connection.pair().end() {
                Some(crate::End::Orderly) | None => Ok(None),
                Some(end) => Err(RdmaError::Ended(end.clone())),
            };
        }
        (Kind::Receive, Status::Done) if completion.bytes.to_usize() == MESSAGE_BYTES => {}
        _ => return Err(RdmaError::Unexpected("has not 16 bytes")),
    }
    let index = completion.id.to_usize();
    let (messages, _) = adapter.bytes(buffers.received).as_chunks::<MESSAGE_BYTES>();
    let message = messages
        .get(index)
        .copied()
        .ok_or(RdmaError::Unexpected("has not 16 bytes"))?;
    // Copied before: the peer's next message may be placed there at once.
    connection.post_receive(adapter, buffers.receive(index))?;
    Ok(Some(message))
}

/// A region announced by the peer, and its length.
fn advertised<S: Stream>(
    connection: &mut Connection<S>,
    adapter: &mut Adapter,
    buffers: &Buffers,
    timeout: Duration,
) -> Result<Option<(Remote, u32)>, RdmaError> {
    let Some(message) = message(connection, adapter, buffers, timeout)? else {
        return Ok(None);
    };
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
    let remote = Remote {
        stag: Stag(word(8)),
        offset: u64::from(word(0)) << 32 | u64::from(word(4)),
    };
    let bytes = word(12);
    // What a peer advertises decides on the length of the read into our buffer.
    if bytes > TEXT_BYTES_MAX {
        return Err(RdmaError::Unexpected(
            "tells of a region of more than 65,535 bytes",
        ));
    }
    Ok(Some((remote, bytes)))
}

/// Printable letters from a position that depends on the round, with a zero at the end.
fn text_of(round: u64, bytes: usize) -> Vec<u8> {
    let first = format!("rdma-ping-{round}: ");
    let letters = (b'A'..=b'Z').cycle().skip((round % 26).to_usize());
    let mut text: Vec<u8> = first.bytes().chain(letters).take(bytes - 1).collect();
    text.push(0);
    text
}
