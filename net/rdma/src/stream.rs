//! Streams for connections.
//!
//! Must stay true: reading and writing never block; [`Stream::wait`] does, at most for its timeout.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidecore_net::sock::client::{Client, ClientError, Socket};
use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Outcomes of [`Stream::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Number of bytes sent.
    Bytes(usize),
    /// There is no room now.
    NoRoom,
    /// The stream has no memory of its own: [`Stream::write`].
    NotLent,
}

/// A stream of bytes both ways.
pub trait Stream {
    /// True if it lends its own memory, and returns received data piece by piece.
    const LENDS: bool = false;

    /// Reads available data: none if there is none, 0 bytes at the end.
    ///
    /// # Errors
    /// The connection's.
    fn read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>>;

    /// Writes as much as there is room for; 0 if there is none.
    ///
    /// # Errors
    /// The connection's.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Passes available data to `take`, in place or through `buffer`; the number of bytes: none if
    /// there is no data, 0 at the end.
    ///
    /// # Errors
    /// The connection's.
    fn receive(
        &mut self,
        buffer: &mut [u8],
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<Option<usize>> {
        let count = self.read(buffer)?;
        if let Some(count) = count.filter(|&count| count > 0) {
            take(&buffer[..count]);
        }
        Ok(count)
    }

    /// Sends the data that `fill` writes into the stream's own memory; `fill` returns its length.
    ///
    /// # Errors
    /// The connection's.
    fn send(&mut self, _fill: &mut dyn FnMut(&mut [u8]) -> usize) -> io::Result<Sent> {
        Ok(Sent::NotLent)
    }

    /// The kernel's socket of the stream, if it is one: units are then sent from their memory, and
    /// received into it.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Looks for an error without reading or writing; for streams that report none so, nothing.
    ///
    /// # Errors
    /// The connection's.
    fn check(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Ends writing.
    ///
    /// # Errors
    /// The connection's.
    fn shutdown(&mut self) -> io::Result<()>;

    /// Waits until it is readable, or writable if `writing`, at most for `timeout`.
    ///
    /// # Errors
    /// The connection's.
    fn wait(&mut self, writing: bool, timeout: Duration) -> io::Result<()>;
}

/// A kernel socket, which must not block (`set_nonblocking`).
impl Stream for TcpStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        read(self, target)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write(self, bytes)
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn check(&mut self) -> io::Result<()> {
        self.take_error()?.map_or(Ok(()), Err)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        shutdown(self)
    }

    fn wait(&mut self, writing: bool, timeout: Duration) -> io::Result<()> {
        wait(self, writing, timeout)
    }
}

/// The same, with another handle through which it can be shut down.
impl Stream for Arc<TcpStream> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        read(self, target)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write(self, bytes)
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn check(&mut self) -> io::Result<()> {
        self.take_error()?.map_or(Ok(()), Err)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        shutdown(self)
    }

    fn wait(&mut self, writing: bool, timeout: Duration) -> io::Result<()> {
        wait(self, writing, timeout)
    }
}

fn read(mut stream: &TcpStream, target: &mut [u8]) -> io::Result<Option<usize>> {
    match Read::read(&mut stream, target) {
        Ok(count) => Ok(Some(count)),
        Err(error) if is_later(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match Write::write(&mut stream, bytes) {
        Err(error) if is_later(&error) => Ok(0),
        other => other,
    }
}

fn shutdown(stream: &TcpStream) -> io::Result<()> {
    match TcpStream::shutdown(stream, Shutdown::Write) {
        // The peer has closed first.
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

fn wait(stream: &TcpStream, writing: bool, timeout: Duration) -> io::Result<()> {
    let writing = if writing {
        PollFlags::OUT
    } else {
        PollFlags::empty()
    };
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut places = [PollFd::new(stream, PollFlags::IN | writing)];
    match poll(&mut places, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A session of the stack, of an attachment that several may share.
#[derive(Debug)]
pub(crate) struct StackStream {
    client: Rc<RefCell<Client>>,
    socket: Socket,
}

impl StackStream {
    /// A session that is open, or is being opened.
    #[must_use]
    pub(crate) fn new(client: Rc<RefCell<Client>>, socket: Socket) -> Self {
        Self { client, socket }
    }
}

impl Drop for StackStream {
    fn drop(&mut self) {
        // Errors are ignored: nothing waits for the engine here.
        if let Ok(mut client) = self.client.try_borrow_mut() {
            client.close(self.socket).ok();
            client.poll(Duration::ZERO).ok();
        }
    }
}

impl Stream for StackStream {
    const LENDS: bool = true;

    fn read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        self.session(|session| session.read(target))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session(|session| session.write(bytes))
    }

    fn receive(
        &mut self,
        buffer: &mut [u8],
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<Option<usize>> {
        self.session(|session| session.receive(buffer, take))
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> io::Result<Sent> {
        self.session(|session| session.send(fill))
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.session(|session| session.shutdown())
    }

    fn wait(&mut self, writing: bool, timeout: Duration) -> io::Result<()> {
        self.session(|session| session.wait(writing, timeout))
    }
}

impl StackStream {
    fn session<R>(&mut self, use_it: impl FnOnce(&mut Session<'_>) -> R) -> R {
        let mut client = self.client.borrow_mut();
        use_it(&mut Session {
            client: &mut client,
            socket: self.socket,
            chunks_max: u32::MAX,
        })
    }
}

/// A session of an attachment, for the duration of a call.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) client: &'a mut Client,
    pub(crate) socket: Socket,
    /// Chunks that it may have with the engine at a time; the rest is for other sessions.
    pub(crate) chunks_max: u32,
}

impl Stream for Session<'_> {
    const LENDS: bool = true;

    fn read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        self.client.read(self.socket, target).map_err(failed)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_writable() {
            return Ok(0);
        }
        self.client.write(self.socket, bytes).map_err(failed)
    }

    fn receive(
        &mut self,
        _buffer: &mut [u8],
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<Option<usize>> {
        if let Some(received) = self.client.receive(self.socket).map_err(failed)? {
            let count = received.bytes().len();
            take(received.bytes());
            self.client.release(received);
            return Ok(Some(count));
        }
        // The end is reported after the last data, which may have arrived in the same round.
        let readiness = self.client.readiness(self.socket);
        Ok((readiness.ended || readiness.closed).then_some(0))
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> io::Result<Sent> {
        if !self.is_writable() {
            return Ok(Sent::NoRoom);
        }
        let Some(mut buffer) = self.client.buffer() else {
            return Ok(Sent::NoRoom);
        };
        let count = fill(buffer.bytes_mut());
        // Buffers are few, and shared by all sessions.
        if count == 0 {
            self.client.give_buffer_back(buffer);
        } else {
            self.client
                .send(self.socket, buffer, count)
                .map_err(failed)?;
        }
        Ok(Sent::Bytes(count))
    }

    fn shutdown(&mut self) -> io::Result<()> {
        self.client.shutdown(self.socket).map_err(failed)?;
        // An engine on this thread sends it now: the caller may not call again.
        self.client.poll(Duration::ZERO).map(drop).map_err(failed)
    }

    fn wait(&mut self, _writing: bool, timeout: Duration) -> io::Result<()> {
        self.client.poll(timeout).map(drop).map_err(failed)
    }
}

impl Session<'_> {
    /// False while it is being opened, and while it uses its share of chunks. A session that has
    /// ended reports that when it is written to.
    fn is_writable(&self) -> bool {
        let is_open = self.client.is_connected(self.socket);
        let is_within = self.client.sending(self.socket) < self.chunks_max;
        (is_open && is_within && self.client.takes(self.socket))
            || self.client.readiness(self.socket).closed
    }
}

pub(crate) fn failed(error: ClientError) -> io::Error {
    io::Error::other(error)
}
