//! Accept queues, and how programs see that sessions wait in them.

use super::*;
use crate::loopback::Arrival;
use crate::socket::files::{is_hung_up, local_stream};
use rustix::process::{Pid, PidfdFlags};

/// A loopback session that was opened to a listener.
pub(in super::super) struct Between {
    /// The near end of the connecting program.
    pub(in super::super) near: OwnedFd,
    /// The other end's inode, if it belongs to a program of this supervisor.
    pub(in super::super) peer: Option<u64>,
}

impl Listeners {
    /// Queues sessions that programs of other supervisors open.
    pub(in super::super) fn look_at_rendezvous(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        inode: u64,
    ) {
        let mut came = Vec::new();
        if let Some(listening) = table.listening(inode) {
            // A dual-stack listener has a socket of each family, and the event names none.
            for socket in &listening.rendezvous {
                while came.len() < VISITS_MAX
                    && let Some(Arrival { near, local, peer }) = socket.next()
                {
                    let origin = Origin::Program(near);
                    came.push(Pending {
                        local,
                        peer,
                        origin,
                    });
                }
            }
        }
        for pending in came {
            // A full listener drops the session, which its opener sees as a hang-up.
            self.queue(table, streams, inode, pending).ok();
        }
    }

    /// Opens a loopback session between two addresses.
    ///
    /// # Errors
    /// `ECONNREFUSED`: no listener is there, or it is full.
    pub(in super::super) fn open_between(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<Between, Errno> {
        let mut is_refused = false;
        while let Some(listener) = turn_of(&table.listeners_at(peer), local) {
            let (near, other) = pair(true)?;
            let other_inode = inode_of(&other)?;
            let pending = Pending {
                local: peer,
                peer: local,
                origin: Origin::Program(other),
            };
            match self.queue(table, streams, listener, pending) {
                Ok(()) => {
                    let peer = Some(other_inode);
                    return Ok(Between { near, peer });
                }
                // It was closed unnoticed and is forgotten now. Another one may share its port.
                Err(_) if table.listening(listener).is_none() => is_refused = true,
                Err(error) => return Err(error),
            }
        }
        if is_refused {
            return Err(Errno::CONNREFUSED);
        }
        let rendezvous = self.rendezvous.as_ref().ok_or(Errno::CONNREFUSED)?;
        let mut name = table.names.make(Role::Program);
        // The listener's family is not known here: IPv4-mapped addresses work for both.
        name.ends = [local, peer].map(|end| named::end_bytes(end, true));
        let near = rendezvous.connect(peer, &name)?;
        Ok(Between { near, peer: None })
    }

    /// Adds a session to the accept queue of a listener.
    ///
    /// # Errors
    /// `ECONNREFUSED`: the queue is full, or no program would see the session.
    pub(super) fn queue(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        inode: u64,
        pending: Pending,
    ) -> Result<(), Errno> {
        let listening = table.listening(inode).ok_or(Errno::CONNREFUSED)?;
        // Each holds a descriptor of this process.
        if listening.pending.len() >= PENDING_MAX {
            return Err(Errno::CONNREFUSED);
        }
        listening.pending.push_back(pending);
        if !self.show_pending(table, streams, inode) {
            table.forget(inode);
            return Err(Errno::CONNREFUSED);
        }
        // A call that waits takes the session, whether it is shown or not.
        if table.calls.has_live(inode) {
            table.calls.wake(inode);
            return Ok(());
        }
        refuse_unshown(table, inode)
    }

    /// Queues sessions that the stack has accepted for a listener.
    pub(in super::super) fn take_accepted(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        inode: u64,
    ) {
        let (Some(socket), Some(client)) =
            (table.sockets.get_mut(&inode), &mut table.engine.client)
        else {
            return;
        };
        let local = socket.local;
        let State::Listening(listening) = &mut socket.state else {
            return;
        };
        for engine in &listening.engines {
            while let Some((session, peer)) = client.accept(*engine) {
                listening.pending.push_back(Pending {
                    local: client.local(session).unwrap_or(local),
                    peer,
                    origin: Origin::Stack(session),
                });
            }
        }
        if !self.show_pending(table, streams, inode) {
            return table.forget(inode);
        }
        table.calls.wake(inode);
    }

    /// Makes the near end readable while sessions wait. Each new session adds a connection, up to a
    /// bound, for edge-triggered polls (EPOLLET). False if no program has the near end any more.
    pub(super) fn show_pending(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        inode: u64,
    ) -> bool {
        let Some(listening) = table.listening(inode) else {
            return true;
        };
        if listening.is_direct {
            return self.show_direct(table, streams, inode);
        }
        let Some(name) = &listening.name else {
            return true;
        };
        if listening.pending.is_empty() {
            return true;
        }
        if listening.tokens.len() >= TOKENS_MAX {
            return !listening.tokens.front().is_some_and(is_hung_up);
        }
        let shown = local_stream(true).and_then(|token| {
            rustix::net::connect(&token, name)?;
            listening.tokens.push_back(token);
            Ok(())
        });
        listening.unshown = shown.err().filter(|error| *error != Errno::AGAIN);
        if listening.tokens.is_empty() {
            // A program that polls it would wait for ever: the announcement is repeated later.
            self.overdue.insert(inode);
        }
        shown != Err(Errno::CONNREFUSED)
    }

    /// True if listeners have to be polled soon.
    pub(in super::super) fn are_overdue(&self) -> bool {
        !self.overdue.is_empty()
    }

    /// Polls the overdue listeners.
    pub(in super::super) fn look_at_overdue(&mut self, table: &mut Table, streams: &mut Streams) {
        for inode in std::mem::take(&mut self.overdue) {
            let Some(listening) = table.listening(inode) else {
                continue;
            };
            if !listening.is_direct {
                // Only an announcement that failed is repeated.
                if listening.tokens.is_empty() && !self.show_pending(table, streams, inode) {
                    table.forget(inode);
                }
                continue;
            }
            if !listening.pending.is_empty() && !self.show_direct(table, streams, inode) {
                table.forget(inode);
                continue;
            }
            // A repeated call looks into the near end, and waits again if it is empty.
            table.calls.wake(inode);
            let has_pending = table
                .listening(inode)
                .is_some_and(|it| !it.pending.is_empty());
            if has_pending || table.calls.has(inode) {
                self.overdue.insert(inode);
            }
        }
    }

    /// A program has closed a descriptor of a listener: if it was the last one, connections are
    /// refused from now on.
    pub(in super::super) fn look_at_closed(table: &mut Table, inode: u64) {
        let name = table.listening(inode).and_then(|it| it.name.clone());
        if name.is_some_and(|name| !named::is_there(&name)) {
            table.forget(inode);
        }
    }

    /// The process that has made a listener is gone; others may have it.
    pub(in super::super) fn look_at_owner(table: &mut Table, inode: u64) {
        Self::look_at_closed(table, inode);
        // The event would come again and again.
        let listening = table.listening(inode);
        drop(listening.and_then(|it| it.owner.take()));
    }

    /// Forgets the listeners at an address of the stack that no program has any more: what is
    /// opened from now on is refused.
    pub(in super::super) fn look_at_port(table: &mut Table, at: SocketAddr) {
        if table.scope.addresses.contains(&address::plain_ip(at.ip())) {
            for inode in table.ports.at(Transport::Tcp, at) {
                Self::look_at_closed(table, inode);
            }
        }
    }
}

/// Watches the end of the process that has made a listener at the stack: its peers on other hosts
/// are to be refused from then on.
pub(super) fn watch_owner(table: &mut Table, caller: &Caller<'_>, inode: u64) {
    let leader = caller.leader().and_then(Pid::from_raw);
    let open = |pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    let is_at_stack = |it: &&mut Listening| !it.engines.is_empty();
    if table.listening(inode).filter(is_at_stack).is_none() {
        return;
    }
    // If it cannot be watched, a sweep finds that the listener is closed.
    if let Some(owner) = leader.and_then(open)
        && epoll::add(
            &table.epoll,
            &owner,
            Mark::Owner(inode).data(),
            EventFlags::IN,
        )
        .is_ok()
        && let Some(listening) = table.listening(inode)
    {
        listening.owner = Some(owner);
    }
}

/// Refuses the newest session if no connection announces that sessions wait. The opener gets an
/// error then, instead of both programs waiting for each other.
fn refuse_unshown(table: &mut Table, inode: u64) -> Result<(), Errno> {
    if let Some(listening) = table.listening(inode)
        && listening.unshown.is_some()
        && listening.tokens.is_empty()
        && listening.pending.pop_back().is_some()
    {
        return Err(Errno::CONNREFUSED);
    }
    Ok(())
}

/// Loopback sessions in one accept queue.
const PENDING_MAX: usize = 8192;
/// Sessions from other supervisors that one event accepts.
const VISITS_MAX: usize = 256;
