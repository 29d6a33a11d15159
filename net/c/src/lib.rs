#![doc = include_str!("../README.md")]
//!
//! Must stay true: the header, whose layouts are declared here with the same sizes (the test
//! compiles both). Nothing unwinds into the program. A NULL pointer for a required argument makes a
//! call fail; otherwise the caller guarantees valid pointers, as in C. After the first calls the
//! data path allocates nothing: lent chunks stand in a table that is reused.

#![allow(unsafe_code, reason = "a C surface")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header says what each function needs"
)]

mod convert;

use convert::{Errno, RawAddress, RawPiece, attach_errno, attach_text, guarded, socket};
use sidecore_attach::Trust;
use sidecore_net::sock::SocketOption;
use sidecore_net::sock::client::{Buffer, Client, ClientOptions, Received, Socket};
use sidecore_net::sock::control::find_socket;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// `struct sidecore_net`.
#[derive(Debug)]
pub(crate) struct SidecoreNet {
    client: Client,
    lent: Lent,
}

/// Chunks that the program has, by their number in its piece.
#[derive(Debug, Default)]
struct Lent {
    places: Vec<Option<Chunk>>,
    free: Vec<u32>,
}

/// A chunk that the program has.
#[derive(Debug)]
enum Chunk {
    Received(Received),
    Buffer(Buffer),
}

impl Lent {
    fn lend(&mut self, chunk: Chunk) -> Result<u32, Errno> {
        // Used again, so that the table grows no further than the chunks that are out at once.
        if let Some(place) = self.free.pop()
            && let Some(empty) = index(place).and_then(|at| self.places.get_mut(at))
        {
            *empty = Some(chunk);
            return Ok(place);
        }
        let place = u32::try_from(self.places.len()).map_err(|_| Errno::INVALID)?;
        self.places.push(Some(chunk));
        Ok(place)
    }

    /// `None` if the program does not have it, or gave it back already.
    fn take(&mut self, place: u32) -> Option<Chunk> {
        let taken = self.places.get_mut(index(place)?)?.take()?;
        self.free.push(place);
        Some(taken)
    }
}

fn index(place: u32) -> Option<usize> {
    usize::try_from(place).ok()
}

impl SidecoreNet {
    /// A socket that is open, or was and still has something to read.
    fn known(&self, number: i64) -> Result<Socket, Errno> {
        let socket = socket(number)?;
        let known = self.client.local(socket).is_some();
        known.then_some(socket).ok_or(Errno::BAD_SOCKET)
    }

    /// The result of a call that found no bytes.
    fn nothing(&mut self, socket: Socket) -> Result<usize, Errno> {
        // A read of no bytes tells an end and an error from nothing yet.
        self.client.read(socket, &mut [])?.ok_or(Errno::AGAIN)
    }

    fn receive(&mut self, number: i64, piece: &mut RawPiece) -> Result<usize, Errno> {
        let socket = self.known(number)?;
        let Some((received, peer)) = self.client.receive_from(socket) else {
            return self.nothing(socket);
        };
        let bytes = received.bytes();
        // The program may write to its chunk: the engine does not read it before it is reused.
        let (data, len) = (bytes.as_ptr().cast_mut(), bytes.len());
        let lent = self.lent.lend(Chunk::Received(received))?;
        *piece = RawPiece {
            data,
            bytes: len,
            peer: peer.into(),
            lent,
        };
        Ok(1)
    }

    fn buffer(&mut self, piece: &mut RawPiece) -> Result<usize, Errno> {
        let mut buffer = self.client.buffer().ok_or(Errno::AGAIN)?;
        let memory = buffer.bytes_mut();
        let (data, bytes) = (memory.as_mut_ptr(), memory.len());
        let lent = self.lent.lend(Chunk::Buffer(buffer))?;
        *piece = RawPiece {
            data,
            bytes,
            peer: RawAddress::default(),
            lent,
        };
        Ok(0)
    }

    fn release(&mut self, piece: &mut RawPiece) {
        // Zeroed pieces and those that were given back are no chunk of the program's.
        if !piece.data.is_null() {
            match self.lent.take(piece.lent) {
                Some(Chunk::Received(received)) => self.client.release(received),
                Some(Chunk::Buffer(buffer)) => self.client.give_buffer_back(buffer),
                None => {}
            }
            piece.data = std::ptr::null_mut();
        }
    }

    fn send(&mut self, number: i64, piece: &mut RawPiece, bytes: usize) -> Result<usize, Errno> {
        let socket = self.known(number);
        // Taken in any case: a call that fails gives the chunk back.
        let taken = self.lent.take(piece.lent).ok_or(Errno::INVALID)?;
        // The piece is empty from here on, so releasing it again does nothing.
        piece.data = std::ptr::null_mut();
        let Chunk::Buffer(mut buffer) = taken else {
            return Err(Errno::INVALID);
        };
        match socket {
            // Not the piece's own number, which the program may have changed.
            Ok(socket) if bytes <= buffer.bytes_mut().len() => {
                self.client.send(socket, buffer, bytes)?;
                Ok(0)
            }
            refused => {
                self.client.give_buffer_back(buffer);
                Err(refused.err().unwrap_or(Errno::TOO_LONG))
            }
        }
    }
}

/// Runs a call on an attachment.
///
/// # Safety
/// `net` is NULL or an attachment that no other thread uses now.
unsafe fn on<A: From<i32> + TryFrom<i64>>(
    net: *mut SidecoreNet,
    body: impl FnOnce(&mut SidecoreNet) -> Result<i64, Errno>,
) -> A {
    // SAFETY: the caller's promise.
    let net = unsafe { net.as_mut() };
    guarded(|| body(net.ok_or(Errno::INVALID)?))
}

/// A number of bytes, or 0 and 1.
fn count(number: usize) -> Result<i64, Errno> {
    i64::try_from(number).map_err(|_| Errno::INVALID)
}

/// See the header, as for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_attach(
    out: *mut *mut SidecoreNet,
    path: *const c_char,
    chunks: u32,
) -> c_int {
    // SAFETY: the same arguments.
    unsafe { sidecore_net_attach_trusting(out, path, chunks, -1) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_attach_trusting(
    out: *mut *mut SidecoreNet,
    path: *const c_char,
    chunks: u32,
    trusted_uid: i64,
) -> c_int {
    guarded(|| {
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        let mut trust = Trust::default();
        if trusted_uid >= 0 {
            trust = trust.and(u32::try_from(trusted_uid).map_err(|_| Errno::INVALID)?);
        }
        let path = if path.is_null() {
            find_socket(&trust)
        } else {
            // SAFETY: a string, by the caller's promise.
            let path = unsafe { CStr::from_ptr(path) };
            PathBuf::from(OsStr::from_bytes(path.to_bytes()))
        };
        let options = ClientOptions {
            chunks,
            trust,
            ..ClientOptions::default()
        };
        let client = Client::attach(&path, &options).map_err(|error| attach_errno(&error))?;
        let opened = Box::new(SidecoreNet {
            client,
            lent: Lent::default(),
        });
        // Last: a call that fails leaves the program's pointer as it was.
        // SAFETY: a place for a pointer, by the caller's promise.
        unsafe { out.write(Box::into_raw(opened)) };
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn sidecore_net_attach_text(error: c_int) -> *const c_char {
    attach_text(error).as_ptr()
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_detach(net: *mut SidecoreNet) {
    if !net.is_null() {
        // SAFETY: it came from `sidecore_net_attach`, and this is its last use.
        let opened = unsafe { Box::from_raw(net) };
        // A panic in a destructor is caught, too. There is no result to tell it by.
        let _: c_int = guarded(|| {
            drop(opened);
            Ok(0)
        });
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_listen(
    net: *mut SidecoreNet,
    local: RawAddress,
    backlog: u32,
) -> i64 {
    // SAFETY: an attachment, by the caller's promise; so in all calls below.
    unsafe {
        on(net, |net| {
            Ok(net.client.listen(local.into(), backlog)?.number().into())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_connect(
    net: *mut SidecoreNet,
    peer: RawAddress,
) -> i64 {
    // SAFETY: as above.
    unsafe {
        on(net, |net| {
            Ok(net.client.connect(peer.into())?.number().into())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_bind_udp(
    net: *mut SidecoreNet,
    local: RawAddress,
) -> i64 {
    // SAFETY: as above.
    unsafe {
        on(net, |net| {
            Ok(net.client.bind_udp(local.into())?.number().into())
        })
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_accept(
    net: *mut SidecoreNet,
    listener: i64,
    peer: *mut RawAddress,
) -> i64 {
    let body = |net: &mut SidecoreNet| {
        let listener = net.known(listener)?;
        let (session, from) = net.client.accept(listener).ok_or(Errno::AGAIN)?;
        if !peer.is_null() {
            // SAFETY: a place for an address, by the caller's promise.
            unsafe { peer.write(from.into()) };
        }
        Ok(session.number().into())
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_receive(
    net: *mut SidecoreNet,
    socket: i64,
    piece: *mut RawPiece,
) -> c_int {
    // SAFETY: NULL or a piece, by the caller's promise.
    let piece = unsafe { piece.as_mut() };
    let body = |net: &mut SidecoreNet| count(net.receive(socket, piece.ok_or(Errno::INVALID)?)?);
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_release(net: *mut SidecoreNet, piece: *mut RawPiece) {
    // SAFETY: NULL or a piece, by the caller's promise.
    let piece = unsafe { piece.as_mut() };
    let body = |net: &mut SidecoreNet| {
        net.release(piece.ok_or(Errno::INVALID)?);
        Ok(0)
    };
    // SAFETY: as above. The call has no result.
    let _: c_int = unsafe { on(net, body) };
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_read(
    net: *mut SidecoreNet,
    socket: i64,
    target: *mut c_void,
    bytes: usize,
) -> i64 {
    let body = |net: &mut SidecoreNet| {
        let socket = net.known(socket)?;
        // SAFETY: memory of that many bytes, by the caller's promise.
        let target = unsafe { convert::bytes_mut(target, bytes)? };
        count(net.client.read(socket, target)?.ok_or(Errno::AGAIN)?)
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_buffer(
    net: *mut SidecoreNet,
    piece: *mut RawPiece,
) -> c_int {
    // SAFETY: NULL or a piece, by the caller's promise.
    let piece = unsafe { piece.as_mut() };
    let body = |net: &mut SidecoreNet| count(net.buffer(piece.ok_or(Errno::INVALID)?)?);
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_send(
    net: *mut SidecoreNet,
    socket: i64,
    piece: *mut RawPiece,
    bytes: usize,
) -> c_int {
    // SAFETY: NULL or a piece, by the caller's promise.
    let piece = unsafe { piece.as_mut() };
    let body =
        |net: &mut SidecoreNet| count(net.send(socket, piece.ok_or(Errno::INVALID)?, bytes)?);
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_write(
    net: *mut SidecoreNet,
    socket: i64,
    source: *const c_void,
    bytes: usize,
) -> i64 {
    let body = |net: &mut SidecoreNet| {
        let socket = net.known(socket)?;
        // SAFETY: memory of that many bytes, by the caller's promise.
        let source = unsafe { convert::bytes(source, bytes)? };
        match net.client.write(socket, source)? {
            // No room now, which differs from a write of no bytes.
            0 if bytes > 0 => Err(Errno::AGAIN),
            written => count(written),
        }
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_send_to(
    net: *mut SidecoreNet,
    socket: i64,
    peer: RawAddress,
    source: *const c_void,
    bytes: usize,
) -> c_int {
    let body = |net: &mut SidecoreNet| {
        let socket = net.known(socket)?;
        // SAFETY: memory of that many bytes, by the caller's promise.
        let source = unsafe { convert::bytes(source, bytes)? };
        match net.client.send_to(socket, peer.into(), source)? {
            true => Ok(0),
            false => Err(Errno::AGAIN),
        }
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_shutdown(net: *mut SidecoreNet, socket: i64) -> c_int {
    let body = |net: &mut SidecoreNet| {
        let socket = net.known(socket)?;
        net.client.shutdown(socket)?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_close(net: *mut SidecoreNet, socket: i64) -> c_int {
    let body = |net: &mut SidecoreNet| {
        let socket = net.known(socket)?;
        net.client.close(socket)?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_abort(net: *mut SidecoreNet, socket: i64) -> c_int {
    let body = |net: &mut SidecoreNet| {
        let socket = net.known(socket)?;
        net.client.abort(socket)?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_set(
    net: *mut SidecoreNet,
    socket: i64,
    option: u32,
    value: u32,
) -> c_int {
    let body = |net: &mut SidecoreNet| {
        let socket = net.known(socket)?;
        let option = SocketOption::from_numbers(option, value).ok_or(Errno::INVALID)?;
        net.client.set(socket, option)?;
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_readiness(
    net: *mut SidecoreNet,
    socket: i64,
) -> c_int {
    let body = |net: &mut SidecoreNet| {
        let ready = net.client.readiness(net.known(socket)?);
        let flags = [
            (ready.readable, 1),
            (ready.writable, 2),
            (ready.ended, 4),
            (ready.closed, 8),
        ];
        Ok(flags
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, flag)| flag)
            .sum())
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_local(
    net: *mut SidecoreNet,
    number: i64,
    address: *mut RawAddress,
) -> c_int {
    let body = |net: &mut SidecoreNet| {
        if address.is_null() {
            return Err(Errno::INVALID);
        }
        let local: Option<SocketAddr> = net.client.local(socket(number)?);
        // SAFETY: a place for an address, by the caller's promise.
        unsafe { address.write(local.ok_or(Errno::BAD_SOCKET)?.into()) };
        Ok(0)
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_next_ready(net: *mut SidecoreNet) -> i64 {
    let body = |net: &mut SidecoreNet| {
        let ready = net.client.next_ready().ok_or(Errno::AGAIN)?;
        Ok(ready.number().into())
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_net_poll(
    net: *mut SidecoreNet,
    timeout_ms: c_int,
) -> c_int {
    let body = |net: &mut SidecoreNet| {
        // Any negative time is none, as for poll(2).
        let Ok(limit_ms) = u64::try_from(timeout_ms) else {
            // Without a limit.
            loop {
                match net.client.poll(NAP)? {
                    0 => {}
                    events => return count(events),
                }
            }
        };
        count(net.client.poll(Duration::from_millis(limit_ms))?)
    };
    // SAFETY: as above.
    unsafe { on(net, body) }
}

/// Waits without a limit are repeated waits of this length.
const NAP: Duration = Duration::from_secs(3600);
