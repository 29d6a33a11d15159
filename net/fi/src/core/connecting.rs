//! Connections of endpoints: requests, their outcome, the end; and the events about them.

use super::{Core, EqEvent, FLUSHED, negative, options};
use crate::abi::*;
use crate::info;
use sidecore_rdma::{ConnectionId, End, Event, ListenerId};
use std::net::SocketAddr;

/// Rounds of progress for a closed endpoint's last bytes before it is dropped.
const LAST_MOVES: usize = 2000;

impl Core {
    /// Passes an event of the device on to the queue of its endpoint.
    pub(super) fn event(&mut self, event: Event) {
        match event {
            Event::Requested {
                listener,
                connection,
                private_data,
            } => self.requested(listener, connection, private_data),
            Event::Established {
                connection,
                private_data,
            } => {
                let ep = self.by_connection.get(&connection);
                if let Some(ep) = ep.and_then(|&index| self.eps.get(index)) {
                    ep.is_connected = true;
                    let (eq, event) = (ep.eq, EqEvent::of_ep(FI_CONNECTED, ep));
                    self.queue_event(eq, event.with_data(private_data));
                }
            }
            Event::Ended {
                connection,
                end,
                private_data,
            } => {
                let ep = self.by_connection.get(&connection);
                let Some(ep) = ep.and_then(|&index| self.eps.get(index)) else {
                    return;
                };
                ep.is_over = true;
                let (eq, event) = (ep.eq, EqEvent::of_ep(FI_SHUTDOWN, ep));
                // An end is an error only where there was no connection yet (fi_eq(3)).
                let event = if ep.is_connected {
                    event
                } else {
                    EqEvent {
                        err: match end {
                            End::Rejected | End::Lost | End::Orderly => libc::ECONNREFUSED,
                            _ => libc::ECONNABORTED,
                        },
                        ..event.with_data(private_data)
                    }
                };
                self.queue_event(eq, event);
            }
            _ => {}
        }
    }

    fn requested(&mut self, listener: ListenerId, connection: ConnectionId, data: Vec<u8>) {
        let mut peps = self.peps.each();
        let pep = peps.find(|(_, pep)| pep.listener == Some(listener));
        let Some((_, pep)) = pep else {
            drop(peps);
            // It arrived before its passive endpoint was closed.
            self.device.reject(connection, &[]).ok();
            return;
        };
        let (fid, eq, mode) = (pep.fid, pep.eq, pep.mode);
        drop(peps);
        let addresses = self.device.addresses(connection);
        let info = info::request(addresses, mode, connection);
        let event = EqEvent {
            info,
            ..EqEvent::new(FI_CONNREQ, fid)
        };
        self.queue_event(eq, event.with_data(data));
    }

    fn queue_event(&mut self, eq: Option<usize>, event: EqEvent) {
        if let Some(eq) = eq.and_then(|eq| self.eqs.get(eq)) {
            eq.events.push_back(event);
            eq.bell.ring();
        }
    }

    /// Removes events about a closed object; connection requests among them are rejected.
    pub(crate) fn forget_events(&mut self, fid: usize) {
        let mut infos = Vec::new();
        for (_, eq) in self.eqs.each() {
            eq.events.retain(|event| {
                if event.fid == fid && event.info != 0 {
                    infos.push(event.info);
                }
                event.fid != fid
            });
        }
        // An unread request is not the program's yet: nothing else would free it.
        for info in infos {
            if let Some(connection) = info::free_request(info) {
                self.device.reject(connection, &[]).ok();
            }
        }
    }

    /// Listens at a passive endpoint's address.
    pub(crate) fn listen(&mut self, pep: usize) -> Result<(), i32> {
        let pep = self.peps.get(pep).ok_or(-libc::EINVAL)?;
        let (address, backlog) = (pep.address, pep.backlog);
        let listener = self.device.listen(address, backlog, options());
        let listener = listener.map_err(|error| negative(&error))?;
        pep.listener = Some(listener);
        // Port 0 has become a port, which the program asks for by its name.
        if let Some(address) = self.device.listener_address(listener) {
            pep.address = address;
        }
        Ok(())
    }

    /// Connects an endpoint.
    pub(crate) fn connect(&mut self, ep: usize, peer: SocketAddr, data: &[u8]) -> Result<(), i32> {
        let queues = self.queues();
        let bound = self.eps.get(ep).and_then(|ep| ep.bound);
        let connected = self
            .device
            .connect_from(bound, peer, options(), queues, data);
        let connection = connected.map_err(|error| negative(&error))?;
        self.attach(ep, connection)?;
        // A thread may already wait for the outcome, in a call that began before.
        self.progress();
        Ok(())
    }

    /// Attaches a connection to an endpoint, and posts the receives that came before.
    pub(crate) fn attach(&mut self, index: usize, connection: ConnectionId) -> Result<(), i32> {
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        ep.connection = Some(connection);
        // Before the receives below: a pair has its own ones or shared ones.
        if let Some(srx) = ep.srx {
            self.share(connection, srx)?;
        }
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        for receive in std::mem::take(&mut ep.early) {
            let posted = self.device.post_receive(connection, receive);
            posted.map_err(|error| negative(&error))?;
        }
        self.by_connection.insert(connection, index);
        Ok(())
    }

    pub(crate) fn accept(&mut self, ep: usize, data: &[u8]) -> Result<(), i32> {
        let queues = self.queues();
        let connection = self.connection(ep)?;
        let accepted = self.device.accept(connection, queues, data);
        accepted.map_err(|error| negative(&error))?;
        // The event of the connection is on this side's queue when the call returns.
        self.progress();
        Ok(())
    }

    pub(crate) fn connection(&mut self, ep: usize) -> Result<ConnectionId, i32> {
        let ep = self.eps.get(ep).ok_or(-libc::EINVAL)?;
        ep.connection.ok_or(-libc::ENOTCONN)
    }

    /// Closes an endpoint's connection in order, as far as the peer cooperates.
    pub(crate) fn shut(&mut self, index: usize) {
        if let Ok(connection) = self.connection(index) {
            self.device.shut(connection).ok();
            self.progress();
        }
    }

    /// Closes an endpoint: data reported as sent is still sent, other work is cancelled.
    pub(crate) fn close_ep(&mut self, index: usize) {
        let Some(ep) = self.eps.get(index) else {
            return;
        };
        let (fid, connection) = (ep.fid, ep.connection);
        if let Some(connection) = connection {
            // Bounded: a peer that does not read must not keep a program from closing.
            for _ in 0..LAST_MOVES {
                if self.device.is_drained(connection) {
                    break;
                }
                self.device.progress().ok();
                std::thread::yield_now();
            }
            self.book();
            self.device.abort(connection).ok();
            self.by_connection.remove(&connection);
        }
        let Some(ep) = self.eps.get(index) else {
            return;
        };
        let sends = std::mem::take(&mut ep.sends);
        let receives = std::mem::take(&mut ep.receives);
        for op in sends {
            self.finish(index, op, false, &FLUSHED);
        }
        for op in receives {
            self.finish(index, op, true, &FLUSHED);
        }
        self.eps.remove(index);
        // Its address may be that of another object soon.
        self.forget_events(fid);
    }
}
