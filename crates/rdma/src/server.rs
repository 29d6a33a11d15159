//! Serving rping's exchange, and taking part in it, at addresses: on kernel sockets or on the
//! stack.
//!
//! Must stay true: a client that is slow, silent or at fault ends or delays its own connection
//! only; no more than [`CLIENTS_MAX`] are served at a time.

use crate::ping::{self, Pinged};
use crate::{Adapter, Connection, Options, RdmaError, Request, StackStream, Stream};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use sidecore_net::sock::client::Client;
use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Clients on kernel sockets that are served at a time; more are closed at once.
pub const CLIENTS_MAX: usize = 64;

/// Properties of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// Of the pair.
    pub options: Options,
    /// The longest wait for a peer.
    pub timeout: Duration,
    /// The client's first message waits this long: Linux's siw may lose one that comes right behind
    /// its reply.
    pub settle: Duration,
}

/// Serves clients of a kernel's socket, each on a thread of its own, until `told`, which hears of
/// each that has ended, says no. Blocks.
///
/// # Errors
/// The listener's.
///
/// # Panics
/// When `told` does, once those that are being served have ended.
pub fn serve_kernel(
    listener: &TcpListener,
    exchange: &Exchange,
    told: impl Fn(SocketAddr, Result<Pinged, RdmaError>) -> bool + Sync,
) -> Result<(), RdmaError> {
    let serving = &AtomicUsize::new(0);
    let over = &eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let told = &told;
    thread::scope(|scope| {
        while awaits_client(listener, over)? {
            let (stream, peer) = listener.accept()?;
            // Relaxed: a count, nothing else is published by it.
            if serving.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
                serving.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            scope.spawn(move || {
                let last = EndsServing(over);
                let outcome = kernel_stream(stream).and_then(|stream| serve_one(stream, exchange));
                serving.fetch_sub(1, Ordering::Relaxed);
                if told(peer, outcome) {
                    std::mem::forget(last);
                }
            });
        }
        Ok(())
    })
}

/// Ends the serving when dropped, in a panic too: what accepts would wait for ever.
struct EndsServing<'a>(&'a OwnedFd);

impl Drop for EndsServing<'_> {
    fn drop(&mut self) {
        // Fails only where it has been said 2^64 - 1 times.
        rustix::io::write(self.0, &1_u64.to_ne_bytes()).ok();
    }
}

/// Waits for a client; false when it is over.
fn awaits_client(listener: &TcpListener, over: &OwnedFd) -> io::Result<bool> {
    loop {
        let mut places = [
            PollFd::new(over, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        match poll(&mut places, None) {
            Ok(_) => return Ok(places[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Serves clients of the stack at `local`, one after the other, until `told` says no.
///
/// # Errors
/// The engine's.
pub fn serve_stack(
    client: Client,
    local: SocketAddr,
    exchange: &Exchange,
    told: impl Fn(SocketAddr, Result<Pinged, RdmaError>) -> bool,
) -> Result<(), RdmaError> {
    let client = Rc::new(RefCell::new(client));
    let listener = client
        .borrow_mut()
        .listen(local, CLIENTS_MAX as u32)
        .map_err(failed)?;
    loop {
        let accepted = client.borrow_mut().accept(listener);
        match accepted {
            Some((session, peer)) => {
                let stream = StackStream::new(Rc::clone(&client), session);
                if !told(peer, serve_one(stream, exchange)) {
                    return Ok(());
                }
            }
            None => {
                client.borrow_mut().poll(exchange.timeout).map_err(failed)?;
            }
        }
    }
}

/// Takes part as the client, from a kernel's socket; how far it came, and the time of the rounds.
///
/// # Errors
/// The connection's; another text comes back.
pub fn ping_kernel(
    peer: SocketAddr,
    exchange: &Exchange,
    rounds: u64,
    text_bytes: u32,
) -> Result<(Pinged, Duration), RdmaError> {
    let stream = TcpStream::connect_timeout(&peer, exchange.timeout)?;
    ping_one(kernel_stream(stream)?, exchange, rounds, text_bytes)
}

/// Takes part as the client, from the stack.
///
/// # Errors
/// The connection's; another text comes back.
pub fn ping_stack(
    mut client: Client,
    peer: SocketAddr,
    exchange: &Exchange,
    rounds: u64,
    text_bytes: u32,
) -> Result<(Pinged, Duration), RdmaError> {
    let session = client.connect(peer).map_err(failed)?;
    let stream = StackStream::new(Rc::new(RefCell::new(client)), session);
    ping_one(stream, exchange, rounds, text_bytes)
}

fn kernel_stream(stream: TcpStream) -> Result<TcpStream, RdmaError> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn serve_one<S: Stream>(stream: S, exchange: &Exchange) -> Result<Pinged, RdmaError> {
    let mut adapter = Adapter::new()?;
    let request = Request::wait(stream, &mut adapter, exchange.options, exchange.timeout)?;
    ping::serve(request, &mut adapter, exchange.timeout)
}

fn ping_one<S: Stream>(
    stream: S,
    exchange: &Exchange,
    rounds: u64,
    text_bytes: u32,
) -> Result<(Pinged, Duration), RdmaError> {
    let mut adapter = Adapter::new()?;
    let (options, timeout) = (exchange.options, exchange.timeout);
    let mut connection = Connection::connect(stream, &mut adapter, options, &[], timeout)?;
    connection.settle(exchange.settle);
    ping::ping_timed(connection, &mut adapter, rounds, text_bytes, timeout)
}

fn failed(error: sidecore_net::sock::client::ClientError) -> RdmaError {
    RdmaError::Io(std::io::Error::other(error))
}
