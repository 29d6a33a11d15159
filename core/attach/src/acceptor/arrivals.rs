//! New connections: admission by user and group, and their questions.
//!
//! Why here: this half decides by what a client is and says; the other one keeps the connections
//! that it let in.
//! Must stay true: a connection that was refused leaves nothing behind. No message of a client is
//! believed before it was parsed.

use super::{Acceptor, Connection, Event, refuse};
use crate::protocol::{ConnectionId, QUESTION_BYTES};
use sidecore_sys::local_socket::{self, Peer, Received};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

impl<S> Acceptor<S> {
    pub(super) fn accept(&mut self) {
        // Bounded, so that attached connections are served, too.
        for _ in 0..ACCEPTED_AT_ONCE_MAX {
            let now = self.now();
            if !self.book.accepts(now) {
                return;
            }
            match local_socket::accept(self.socket.listener()) {
                Ok(Some(socket)) => {
                    // Credentials are those of connect(2): a client cannot choose them.
                    if let Ok(peer) = local_socket::peer(socket.as_fd()) {
                        self.admit(socket, peer, now);
                    }
                }
                Ok(None) => return,
                // Out of descriptors or of memory.
                Err(_) => {
                    if !self.book.run_out(now) {
                        return;
                    }
                }
            }
            self.sweep();
        }
    }

    /// Keeps a new connection, or refuses it.
    fn admit(&mut self, socket: OwnedFd, peer: Peer, now: Duration) {
        if let Err(reason) = self.judge(&socket, &peer) {
            self.book.count_refused();
            refuse(&self.protocol, socket.as_fd(), &reason);
            return;
        }
        // Root and the own user have places of their own.
        let is_preferred = self.makers.with_ledger(|it| it.is_preferred(peer.uid));
        let connection = Connection {
            socket,
            peer,
            process_end: None,
            session: None,
        };
        match self.book.arrive(peer.uid, is_preferred, connection, now) {
            Ok(id) => {
                let guest = self.book.live(id);
                let socket = guest.map(|guest| guest.connection.socket.as_fd());
                if socket.is_some_and(|socket| self.watch(socket, id * 2).is_err()) {
                    // The kernel is out of memory, or of watches: as if it had not come.
                    self.book.close(id);
                    return;
                }
                // An honest client asks at once: it is introduced before others crowd it out.
                self.take_question(id);
            }
            Err(connection) => refuse(
                &self.protocol,
                connection.socket.as_fd(),
                "too many clients wait for their memory; try later",
            ),
        }
    }

    /// Decides whether the user may attach.
    ///
    /// # Errors
    /// The reason, in words for the client.
    fn judge(&self, socket: &OwnedFd, peer: &Peer) -> Result<(), String> {
        let own_uid = local_socket::effective_uid();
        let server = self.protocol.server;
        if !self.identities.is_user(peer.uid) {
            return Err(format!(
                "the {server} runs in a user namespace that does not map this user, so that it \
                 cannot be told from others (user {}); map the user there, or run a {server} \
                 outside",
                peer.uid
            ));
        }
        // A peer without a list of groups is judged by its own group alone.
        let mut groups = if self.options.allow.gids.is_empty() {
            Vec::new()
        } else {
            local_socket::peer_groups(socket.as_fd()).unwrap_or_default()
        };
        groups.push(peer.gid);
        groups.retain(|&gid| self.identities.is_group(gid));
        if self.options.allow.admits(peer.uid, &groups, own_uid) {
            return Ok(());
        }
        Err(format!(
            "user {} (group {}) may not attach to the {server} of user {own_uid}; {}",
            peer.uid,
            peer.gid,
            (self.options.remedy)(peer)
        ))
    }

    /// Takes one message of a connection.
    pub(super) fn take_question(&mut self, id: u64) {
        let Some(guest) = self.book.live_mut(id) else {
            return;
        };
        let has_ordered = guest.has_ordered();
        let connection = &mut guest.connection;
        // One byte more than a question, to detect longer messages.
        let mut bytes = [0; QUESTION_BYTES + 1];
        let length = match local_socket::receive(connection.socket.as_fd(), &mut bytes) {
            // Descriptors that came with it are closed.
            Ok(Received::Message(length, _)) => length,
            Ok(Received::Nothing) => return,
            Ok(Received::End) | Err(_) => {
                self.book.close(id);
                return;
            }
        };
        match self.protocol.parse_question(&bytes[..length]) {
            Ok((kind, body)) => {
                let peer = connection.peer;
                self.follow_process(id);
                self.events.push_back(Event::Question {
                    from: ConnectionId(id),
                    peer,
                    is_attached: has_ordered,
                    kind,
                    body,
                });
            }
            Err(reason) => self.refuse(ConnectionId(id), &reason),
        }
    }

    /// Watches the process behind a connection from now on. Not for a connection that has sent
    /// nothing: watching costs some system calls and a descriptor.
    fn follow_process(&mut self, id: u64) {
        let Some(guest) = self.book.live_mut(id) else {
            return;
        };
        let connection = &mut guest.connection;
        if connection.process_end.is_some() {
            return;
        }
        let socket = connection.socket.as_fd();
        connection.process_end = local_socket::process_of(socket, &connection.peer);
        let guest = self.book.live(id);
        if let Some(end) = guest.and_then(|guest| guest.connection.process_end.as_ref()) {
            // Where that fails, the hang-up tells.
            self.watch(end.as_fd(), id * 2 + 1).ok();
        }
    }
}

const ACCEPTED_AT_ONCE_MAX: usize = 64;
