//! Streams that a connection runs on.
//!
//! Must stay true: reading and writing never wait; [`Stream::wait`] does, at most as long as it is
//! told.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidecore_net::sock::client::{Client, ClientError, Socket};
use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::time::Duration;

/// A stream of bytes both ways.
pub trait Stream {
    /// Reads what is there: none where nothing is, 0 bytes at the end.
    ///
    /// # Errors
    /// The connection's.
    fn read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>>;

    /// Writes what there is room for; 0 where there is none.
    ///
    /// # Errors
    /// The connection's.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Writes no more.
    ///
    /// # Errors
    /// The connection's.
    fn shutdown(&mut self) -> io::Result<()>;

    /// Waits until something can be read, or written where `writing`, at most for `timeout`.
    ///
    /// # Errors
    /// The connection's.
    fn wait(&mut self, writing: bool, timeout: Duration) -> io::Result<()>;
}

/// A kernel's socket, which must not block (`set_nonblocking`).
impl Stream for TcpStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        match Read::read(self, target) {
            Ok(count) => Ok(Some(count)),
            Err(error) if is_later(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match Write::write(self, bytes) {
            Err(error) if is_later(&error) => Ok(0),
            other => other,
        }
    }

    fn shutdown(&mut self) -> io::Result<()> {
        match TcpStream::shutdown(self, Shutdown::Write) {
            // The peer was faster.
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }

    fn wait(&mut self, writing: bool, timeout: Duration) -> io::Result<()> {
        let writing = if writing {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut places = [PollFd::new(self, PollFlags::IN | writing)];
        match poll(&mut places, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A session of the stack, of an attachment that several may share.
#[derive(Debug)]
pub struct StackStream {
    client: Rc<RefCell<Client>>,
    socket: Socket,
}

impl StackStream {
    /// A session that is open, or is being opened.
    #[must_use]
    pub fn new(client: Rc<RefCell<Client>>, socket: Socket) -> Self {
        Self { client, socket }
    }
}

impl Drop for StackStream {
    fn drop(&mut self) {
        // Whether the engine is still there or not, nobody waits for it.
        if let Ok(mut client) = self.client.try_borrow_mut() {
            client.close(self.socket).ok();
            client.poll(Duration::ZERO).ok();
        }
    }
}

impl Stream for StackStream {
    fn read(&mut self, target: &mut [u8]) -> io::Result<Option<usize>> {
        let mut client = self.client.borrow_mut();
        client.read(self.socket, target).map_err(failed)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut client = self.client.borrow_mut();
        if !client.is_connected(self.socket) && !client.readiness(self.socket).closed {
            return Ok(0);
        }
        client.write(self.socket, bytes).map_err(failed)
    }

    fn shutdown(&mut self) -> io::Result<()> {
        let mut client = self.client.borrow_mut();
        client.shutdown(self.socket).map_err(failed)?;
        // An engine of this thread sends it now: nobody may wait for anything after it.
        client.poll(Duration::ZERO).map(drop).map_err(failed)
    }

    fn wait(&mut self, _writing: bool, timeout: Duration) -> io::Result<()> {
        let polled = self.client.borrow_mut().poll(timeout);
        polled.map(drop).map_err(failed)
    }
}

fn failed(error: ClientError) -> io::Error {
    io::Error::other(error)
}
