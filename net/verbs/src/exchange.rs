//! Pairs that programs connect themselves: they exchange identifiers and numbers by means of their
//! own, and call ibv_modify_qp(3) up to "ready to send".
//!
//! A number has ten bits for its process and fourteen for the pair. The first are a TCP port that
//! the process has for itself, so the peer finds the listener without a directory. The end whose
//! identifier and number are smaller connects. Both ends then compare what the first frames say
//! with their attributes.
//!
//! Must stay true: a connection is attached only to a pair that names its identifier, number and
//! address; requests that come too early are bounded; work that waits for the connection ends by
//! the pair's time limit; the end of a peer is silent until there is work for it, as of adapters.

use crate::abi::*;
use crate::address::{self, identifier};
use crate::device::{QP_MAX, READS_MAX};
use crate::direct::{Direct, Greeting, Point, Stage, ends_of, patience};
use crate::fast::Held;
use crate::number_of;
use crate::pair::{Qp, options};
use crate::state::{Core, Table, Users, flushed};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use sidecore_rdma::{ConnectionId, Device, End, ListenerId};
use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The port below those of processes: Linux chooses none of them by itself.
const PORT_BASE: u16 = 61_440;
/// The place of no process, and those of processes from 1 on.
const SLOTS: u16 = 1 << 10;
/// Bits of a number that a process gives.
const INDEX_BITS: u32 = 14;
/// InfiniBand has reserved the numbers before.
const INDEX_FIRST: u32 = 2;
/// Most requests that wait until their pair is ready; and those for one pair.
const PARKED_MAX: usize = 256;
const PARKED_FOR_ONE: usize = 4;
/// Connections that the listener has and that are not accepted.
const BACKLOG: usize = 1024;
/// Least time between two looks at the pairs that wait.
const LOOK: Duration = Duration::from_millis(1);

/// The parts of a process for the pairs that its program connects.
#[derive(Default)]
pub(crate) struct Exchange {
    /// 0 until it has one.
    slot: u16,
    /// Keeps the port until the listener is needed.
    reserved: Option<OwnedFd>,
    pub(crate) listener: Option<ListenerId>,
    /// Pairs by their numbers.
    numbers: HashMap<u32, u32>,
    last: u32,
    parked: Vec<(ConnectionId, Greeting)>,
    /// Pairs that wait for their connection.
    apart: Vec<u32>,
    due: Option<Instant>,
}

/// The port of the process that has given a number; none for a number of no process.
pub(crate) fn port_of(number: u32) -> Option<u16> {
    let slot = u16::try_from(number >> INDEX_BITS).ok()?;
    (1..SLOTS).contains(&slot).then_some(PORT_BASE + slot)
}

/// A socket that keeps a port of all addresses from others, as long as it exists.
fn reserve(port: u16) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let any: [(AddressFamily, IpAddr); 2] = [
        (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
        (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
    ];
    for (family, ip) in any {
        // Hosts without IPv6 refuse one of its sockets.
        let Ok(socket) = rustix::net::socket_with(family, SocketType::STREAM, flags, None) else {
            continue;
        };
        if family == AddressFamily::INET6 && sockopt::set_ipv6_v6only(&socket, false).is_err() {
            continue;
        }
        // Without SO_REUSEADDR, by which several processes could have the port.
        match rustix::net::bind(&socket, &SocketAddr::new(ip, port)) {
            Ok(()) => return Some(socket),
            // Another process has it at an address of IPv6 at least, and would get peers' requests.
            Err(rustix::io::Errno::ADDRINUSE) => return None,
            Err(_) => {}
        }
    }
    None
}

impl Exchange {
    /// A number for a new pair.
    ///
    /// # Errors
    /// There are too many pairs.
    pub(crate) fn new_number(&mut self, device: &mut Device) -> Result<u32, c_int> {
        if self.slot == 0 {
            self.take_slot(device);
        }
        let slot = u32::from(self.slot) << INDEX_BITS;
        for _ in 0..QP_MAX {
            // As late as possible again: a late request for an old pair must not find a new one.
            self.last = (self.last + 1) % u32::from(QP_MAX);
            let number = slot | (INDEX_FIRST + self.last);
            if !self.numbers.contains_key(&number) {
                return Ok(number);
            }
        }
        Err(libc::ENOMEM)
    }

    /// Enters a pair by its number.
    pub(crate) fn enter(&mut self, number: u32, handle: u32) {
        self.numbers.insert(number, handle);
    }

    /// The pair with a number.
    pub(crate) fn pair_with(&self, number: u32) -> Option<u32> {
        self.numbers.get(&number).copied()
    }

    /// Takes a place among the host's processes, if there is one.
    fn take_slot(&mut self, device: &mut Device) {
        // Processes that start one after the other begin at different places.
        let first = std::process::id().wrapping_mul(7);
        let all = u32::from(SLOTS - 1);
        for step in 0..all {
            let slot = u16::try_from(1 + first.wrapping_add(step) % all).unwrap_or(1);
            let port = PORT_BASE + slot;
            if address::is_on_stack() {
                // A stack's ports cannot be kept without a listener.
                let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
                let options = options(u8::MAX, u8::MAX);
                self.listener = device.listen(any, BACKLOG, options).ok();
            } else {
                self.reserved = reserve(port);
            }
            if self.listener.is_some() || self.reserved.is_some() {
                self.slot = slot;
                return;
            }
        }
    }

    /// Listens for peers of this process's pairs.
    ///
    /// # Errors
    /// The process has no port.
    pub(crate) fn listen(&mut self, device: &mut Device) -> Result<(), c_int> {
        if self.listener.is_some() {
            return Ok(());
        }
        // A second descriptor: after an error the process still has the port of its numbers.
        let kept = self.reserved.as_ref().ok_or(libc::EADDRNOTAVAIL)?;
        let socket = kept.try_clone();
        let socket = socket.map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        let listener = device.listen_at(socket, BACKLOG, options(u8::MAX, u8::MAX));
        self.listener = Some(listener.map_err(|error| number_of(&error))?);
        self.reserved = None;
        Ok(())
    }

    /// The process's port, if it has one.
    pub(crate) fn port(&self) -> Option<u16> {
        port_of(u32::from(self.slot) << INDEX_BITS)
    }

    /// Time until the next look at pairs that wait.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        Some(self.due?.saturating_duration_since(Instant::now()))
    }

    /// Notes when a pair is to be looked at.
    fn look_again(&mut self, qps: &mut Table<Qp>, handle: u32) {
        let due = qps.direct(handle).and_then(|direct| direct.due());
        self.due = self.due.into_iter().chain(due).min();
    }

    /// Keeps a request until its pair is ready; false if there is no room.
    fn park(&mut self, connection: ConnectionId, greeting: Greeting) -> bool {
        let same = self.parked.iter().filter(|(_, one)| one.to == greeting.to);
        let has_room = self.parked.len() < PARKED_MAX && same.count() < PARKED_FOR_ONE;
        if has_room {
            self.parked.push((connection, greeting));
        }
        has_room
    }

    /// Forgets a request that has ended.
    pub(crate) fn unpark(&mut self, connection: ConnectionId) {
        self.parked.retain(|one| one.0 != connection);
    }
}

impl Table<Qp> {
    /// The peer of a pair that its program has named.
    fn direct(&mut self, handle: u32) -> Option<&mut Direct> {
        self.get(handle)?.direct.as_deref_mut()
    }

    /// True if the program has connected a pair itself.
    pub(crate) fn is_direct(&mut self, handle: u32) -> bool {
        self.direct(handle).is_some()
    }
}

/// Ends a request without an answer: one that waits for its peer's end would take a place of the
/// listener meanwhile, and anyone can ask. A pair tries again either way.
fn turn_away(device: &mut Device, connection: ConnectionId) {
    device.abort(connection).ok();
}

impl Core {
    /// Forgets a number, whose pair is gone.
    pub(crate) fn forget_number(&mut self, number: u32) {
        self.exchange.numbers.remove(&number);
        self.answer_parked(number);
    }

    /// Begins to connect a pair to the peer that its attributes name.
    ///
    /// # Errors
    /// EINVAL: there can be no such peer; the process has no port.
    pub(crate) fn meet(&mut self, handle: u32, attr: &ibv_qp_attr) -> Result<(), c_int> {
        let number = self.qps.get(handle).ok_or(libc::EINVAL)?.number;
        let (own, peer) = ends_of(&attr.ah_attr)?;
        self.exchange.listen(&mut self.device)?;
        let own = Point { gid: own, number };
        let peer = Point {
            gid: peer,
            number: attr.dest_qp_num,
        };
        if let Some(qp) = self.qps.get(handle) {
            qp.direct = Some(Box::new(Direct::new(own, peer)));
        }
        self.exchange.apart.push(handle);
        self.exchange.due = Some(Instant::now());
        Ok(())
    }

    /// Looks at pairs that wait, if the time has come.
    pub(crate) fn advance_exchange(&mut self) {
        let Some(due) = self.exchange.due else {
            return;
        };
        let now = Instant::now();
        if now < due {
            return;
        }
        self.exchange.due = None;
        // A copy: each may leave the list.
        for handle in self.exchange.apart.clone() {
            let Some(direct) = self.qps.direct(handle) else {
                continue;
            };
            if direct.deadline.is_some_and(|deadline| now >= deadline) {
                self.give_up(handle);
            } else if direct.stage == Stage::Apart && direct.connects() && now >= direct.next_try {
                self.ask(handle);
            }
            self.exchange.look_again(&mut self.qps, handle);
        }
        // Many pairs that wait must not fill the time with looks at all of them.
        let earliest = now + LOOK;
        self.exchange.due = self.exchange.due.map(|due| due.max(earliest));
    }

    /// Tries to connect.
    fn ask(&mut self, handle: u32) {
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        let reads = qp.attr.max_dest_rd_atomic;
        let Some(direct) = &qp.direct else {
            return;
        };
        let (greeting, own, peer) = (Greeting::of(direct), direct.own, direct.peer);
        // On a stack the source is the stack's.
        let local = match address::is_on_stack() {
            true => None,
            false => Some(SocketAddr::new(own.gid.to_canonical(), 0)),
        };
        let queues = self.queues();
        let options = self.options_of(handle, reads, READS_MAX);
        let asked = port_of(peer.number)
            .zip(options)
            .and_then(|(port, options)| {
                let at = SocketAddr::new(peer.gid.to_canonical(), port);
                let device = &mut self.device;
                let asked = device.connect_from(local, at, options, queues, &greeting.to_bytes());
                asked.ok()
            });
        if let Some(connection) = asked {
            let users = Users {
                qp: Some(handle),
                id: None,
            };
            self.connections.insert(connection, users);
        }
        let Some(direct) = self.qps.direct(handle) else {
            return;
        };
        match asked {
            Some(connection) => direct.stage = Stage::Asking(connection),
            None => direct.retry_later(),
        }
    }

    /// A peer's pair asks for a connection.
    pub(crate) fn asked_by_pair(&mut self, connection: ConnectionId, data: &[u8]) {
        let addresses = self.device.addresses(connection);
        let greeting = Greeting::read(data).filter(|greeting| {
            // The peer is where it says that it is.
            addresses
                .is_some_and(|(_, peer)| identifier(peer.ip().to_canonical()) == greeting.from.gid)
        });
        match greeting {
            Some(greeting) => self.answer(connection, greeting),
            None => turn_away(&mut self.device, connection),
        }
    }

    /// Accepts the request of a pair's peer, keeps it until the pair is ready, or rejects it.
    fn answer(&mut self, connection: ConnectionId, greeting: Greeting) {
        let local = self.device.addresses(connection).map(|both| both.0.ip());
        let local = local.map(|ip| identifier(ip.to_canonical()));
        let Some(handle) = self.exchange.pair_with(greeting.to) else {
            return turn_away(&mut self.device, connection);
        };
        let Some(qp) = self.qps.get(handle) else {
            return turn_away(&mut self.device, connection);
        };
        let is_new = !qp.is_datagram
            && qp.connection.is_none()
            && matches!(qp.state, IBV_QPS_RESET | IBV_QPS_INIT);
        match &qp.direct {
            None if is_new => {
                if !self.exchange.park(connection, greeting) {
                    turn_away(&mut self.device, connection);
                }
            }
            Some(direct) if direct.peer == greeting.from && local == Some(direct.own.gid) => {
                let is_own = direct.is_its_own_peer() && qp.inbound.is_none();
                let is_asked = match direct.stage {
                    Stage::Apart => is_own || !direct.connects(),
                    Stage::Asking(_) => is_own,
                    Stage::Answered | Stage::Joined | Stage::Gone => false,
                };
                match is_asked {
                    true => self.accept_pair(handle, connection),
                    false => turn_away(&mut self.device, connection),
                }
            }
            _ => turn_away(&mut self.device, connection),
        }
    }

    /// Answers requests that waited for a pair, which is ready now, or gone.
    pub(crate) fn answer_parked(&mut self, number: u32) {
        let parked = std::mem::take(&mut self.exchange.parked);
        let (ready, parked) = parked
            .into_iter()
            .partition(|(_, greeting)| greeting.to == number);
        self.exchange.parked = parked;
        for (connection, greeting) in ready {
            self.answer(connection, greeting);
        }
    }

    fn accept_pair(&mut self, handle: u32, connection: ConnectionId) {
        let reads = self.qps.get(handle).map(|qp| qp.attr.max_dest_rd_atomic);
        let options = self.options_of(handle, reads.unwrap_or(0), READS_MAX);
        let adapted = options.is_some_and(|all| self.device.adapt(connection, all).is_ok());
        if !adapted {
            return turn_away(&mut self.device, connection);
        }
        let Some(direct) = self.qps.direct(handle) else {
            return;
        };
        let (greeting, is_own) = (Greeting::of(direct), direct.is_its_own_peer());
        if !is_own {
            direct.stage = Stage::Answered;
        }
        // Receives first: the peer's first message may be there by the end of the call.
        self.attach(handle, connection, is_own);
        let queues = self.queues();
        // If it has ended meanwhile, an event says so.
        let accepted = self.device.accept(connection, queues, &greeting.to_bytes());
        accepted.ok();
    }

    /// A pair's connection stands.
    pub(crate) fn joined(&mut self, handle: u32, connection: ConnectionId, data: &[u8]) {
        let Some(direct) = self.qps.direct(handle) else {
            return;
        };
        let expected = Greeting {
            from: direct.peer,
            to: direct.own.number,
        };
        match direct.stage {
            Stage::Asking(asked) if asked == connection => {
                if Greeting::read(data) != Some(expected) {
                    direct.retry_later();
                    self.exchange.look_again(&mut self.qps, handle);
                    self.connections.remove(&connection);
                    self.device.abort(connection).ok();
                    return;
                }
                direct.stage = Stage::Joined;
                self.attach(handle, connection, false);
            }
            Stage::Answered => direct.stage = Stage::Joined,
            // The other end of a pair that is its own peer.
            _ => return,
        }
        self.exchange.apart.retain(|&one| one != handle);
        let Some(direct) = self.qps.direct(handle) else {
            return;
        };
        direct.deadline = None;
        for held in std::mem::take(&mut direct.held) {
            self.launch_held(handle, connection, held);
        }
    }

    /// Keeps a request until the connection stands; or, if the peer has left, until the time limit.
    pub(crate) fn hold(&mut self, handle: u32, held: Held) {
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        let limit = patience(qp.attr.timeout, qp.attr.retry_cnt);
        let Some(direct) = &mut qp.direct else {
            return;
        };
        direct.held.push_back(held);
        if direct.deadline.is_none() {
            direct.deadline = limit.map(|limit| Instant::now() + limit);
            // One that was connected is looked at again.
            if !self.exchange.apart.contains(&handle) {
                self.exchange.apart.push(handle);
            }
        }
        self.exchange.look_again(&mut self.qps, handle);
    }

    /// Ends a pair whose peer does not answer: the first request has failed, others are flushed.
    fn give_up(&mut self, handle: u32) {
        let direct = self.qps.direct(handle);
        if let Some(first) = direct.and_then(|direct| direct.held.front_mut()) {
            first.op.failed = Some(IBV_WC_RETRY_EXC_ERR);
        }
        self.fail_pair(handle);
    }

    /// A connection of a pair, or an attempt at one, has ended; true if the pair goes on.
    pub(crate) fn parted(&mut self, handle: u32, connection: ConnectionId, end: &End) -> bool {
        let Some(qp) = self.qps.get(handle) else {
            return false;
        };
        let Some(direct) = &mut qp.direct else {
            return false;
        };
        let is_inbound = qp.inbound == Some(connection);
        if is_inbound {
            qp.inbound = None;
        }
        match direct.stage {
            Stage::Asking(asked) if asked == connection => {
                direct.retry_later();
                self.exchange.look_again(&mut self.qps, handle);
                return true;
            }
            // The other end of a pair that is its own peer, which tries again.
            Stage::Asking(_) | Stage::Apart => return true,
            Stage::Answered | Stage::Joined | Stage::Gone => {}
        }
        direct.stage = Stage::Gone;
        let other = match is_inbound {
            true => qp.connection,
            false => {
                qp.connection = None;
                qp.inbound
            }
        };
        // A peer that leaves is no fault, as long as nothing is under way to it.
        let is_fault = qp.is_blamed || matches!(end, End::Sent(_) | End::Received(_));
        // Work that waits ends by the time limit.
        if direct.held.is_empty() {
            self.exchange.apart.retain(|&one| one != handle);
        }
        if let Some(other) = other {
            self.device.break_off(other);
        }
        !is_fault
    }

    /// Ends what a pair does to be connected.
    pub(crate) fn stop_meeting(&mut self, handle: u32) {
        let Some(direct) = self.qps.direct(handle) else {
            return;
        };
        direct.deadline = None;
        let stage = std::mem::replace(&mut direct.stage, Stage::Gone);
        self.exchange.apart.retain(|&one| one != handle);
        if let Stage::Asking(connection) = stage {
            self.connections.remove(&connection);
            self.device.abort(connection).ok();
        }
    }

    /// Flushes requests that wait for the connection, which will not come.
    pub(crate) fn flush_held(&mut self, handle: u32) {
        self.stop_meeting(handle);
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        let Some(direct) = &mut qp.direct else {
            return;
        };
        for mut held in std::mem::take(&mut direct.held) {
            held.op.failed = held.op.failed.or(Some(IBV_WC_WR_FLUSH_ERR));
            qp.sends.push_back(held.op);
        }
        self.settle_sends(handle);
    }

    /// Flushes receives that the end of a connection has left.
    pub(crate) fn flush_kept(&mut self, handle: u32) {
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        let (number, recv_cq) = (qp.number, qp.recv_cq);
        // Shared receives are counted by their queue.
        let of = qp.srq.is_none().then_some(handle);
        let kept = qp.direct.as_mut().map(|direct| direct.take_kept());
        for id in kept.unwrap_or_default() {
            let wc = flushed(id, IBV_WC_RECV, number);
            self.emit(recv_cq, wc, false, of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_its_process_s_port() {
        let last = u32::from(SLOTS) - 1;
        assert_eq!(port_of(1 << INDEX_BITS | 7), Some(PORT_BASE + 1));
        assert_eq!(port_of(last << INDEX_BITS), Some(62_463));
        // Of no process, and longer than numbers are.
        for number in [0, 7, (1 << INDEX_BITS) - 1, 1 << 24, u32::MAX] {
            assert_eq!(port_of(number), None, "{number}");
        }
        assert_eq!(u32::from(QP_MAX) + INDEX_FIRST, 1 << INDEX_BITS);
    }

    #[test]
    fn a_port_that_is_kept_is_not_given_again() {
        // From the end: the processes of other tests begin elsewhere.
        let mut ports = (PORT_BASE + 1..PORT_BASE + SLOTS).rev();
        let (port, kept) = ports.find_map(|port| Some((port, reserve(port)?))).unwrap();
        assert!(reserve(port).is_none());
        drop(kept);
        assert!(reserve(port).is_some());
        // Nor one that another socket has at a single address, of either family.
        let alone: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for other in alone.map(|ip| std::net::TcpListener::bind((ip, port))) {
            assert!(other.is_err() || reserve(port).is_none());
        }
    }
}
