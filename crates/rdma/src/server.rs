//! Serving rping's exchange, and taking part in it, at addresses: on kernel sockets or on the
//! stack.
//!
//! Must stay true: a client that is slow, silent or at fault ends or delays its own connection
//! only; no more than [`CLIENTS_MAX`] are served at a time.

use crate::ping::{self, Pinged};
use crate::{Adapter, Connection, Options, RdmaError, Request, StackStream, Stream};
use sidecore_net::sock::client::Client;
use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener, TcpStream};
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
/// each that has ended, says no.
///
/// # Errors
/// The listener's.
pub fn serve_kernel(
    listener: &TcpListener,
    exchange: &Exchange,
    told: impl Fn(SocketAddr, Result<Pinged, RdmaError>) -> bool + Sync,
) -> Result<(), RdmaError> {
    let (serving, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (serving, over, told) = (&serving, &over, &told);
    let own = listener.local_addr()?;
    thread::scope(|scope| {
        loop {
            let (stream, peer) = listener.accept()?;
            // Relaxed: a count and a flag, nothing else is published by them.
            if over.load(Ordering::Relaxed) > 0 {
                return Ok(());
            }
            if serving.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
                serving.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            scope.spawn(move || {
                let outcome = kernel_stream(stream).and_then(|stream| serve_one(stream, exchange));
                serving.fetch_sub(1, Ordering::Relaxed);
                if !told(peer, outcome) {
                    over.store(1, Ordering::Relaxed);
                    // What accepts looks at it with the next connection: this one.
                    TcpStream::connect(own).ok();
                }
            });
        }
    })
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
