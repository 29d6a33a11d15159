//! The loop of a server with sessions: accepts them, and reports those that have work.
//!
//! Why here: all servers of this folder run it. Must stay true: a session that cannot make progress
//! holds up no other.

use super::{BACKLOG, NAP, SHORT_NAP, Served};
use sidecore_net::sock::client::{Client, ClientError, Socket};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

/// Handler of a server's sessions.
pub(super) trait Server {
    fn client(&mut self) -> &mut Client;

    fn served(&mut self) -> &mut Served;

    /// True if work is pending that no event will announce: [`attend`] polls soon instead of
    /// sleeping.
    fn is_pressed(&self) -> bool;

    /// A new session; the next call is about it.
    fn opened(&mut self, _: Socket) {}

    /// An event of a session, or of a socket that the server opened by itself.
    fn look(&mut self, socket: Socket) -> Result<(), ClientError>;

    /// The end of a round: retries the work that was blocked before.
    fn go_on(&mut self) -> Result<(), ClientError>;
}

/// Listens at `local`, calls back once it does, and serves until `stop`.
pub(super) fn attend(
    mut server: impl Server,
    local: SocketAddr,
    stop: &AtomicBool,
    listening: impl FnOnce(),
) -> Result<Served, ClientError> {
    let mut listeners = Vec::new();
    for local in everywhere(local) {
        listeners.push(server.client().listen(local, BACKLOG)?);
    }
    listening();
    while !stop.load(Ordering::Acquire) {
        let nap = if server.is_pressed() { SHORT_NAP } else { NAP };
        server.client().poll(nap)?;
        while let Some(socket) = server.client().next_ready() {
            if !listeners.contains(&socket) {
                server.look(socket)?;
                continue;
            }
            while let Some((session, _)) = server.client().accept(socket) {
                server.served().sessions += 1;
                server.opened(session);
                server.look(session)?;
            }
        }
        server.go_on()?;
    }
    Ok(*server.served())
}

/// The addresses that `local` stands for: any address of IPv6 includes any of IPv4, as programs
/// that listen there on Linux expect.
pub(super) fn everywhere(local: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let any = local.is_ipv6() && local.ip().is_unspecified();
    let other = any.then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, local.port())));
    std::iter::once(local).chain(other)
}

/// UDP sockets at all of these.
pub(super) fn bind(client: &mut Client, local: SocketAddr) -> Result<Vec<Socket>, ClientError> {
    everywhere(local)
        .map(|local| client.bind_udp(local))
        .collect()
}
