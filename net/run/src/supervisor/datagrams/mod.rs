//! UDP: taking over sockets, and their peers. `crate::carrier` describes how datagrams enter and
//! leave a program's socket; [`route`] moves them, [`sending`] and [`receiving`] have the calls,
//! [`ring`] those that go by rings.

mod header;
pub(super) mod interfaces;
mod receiving;
mod refusing;
mod ring;
mod route;
mod sending;

use super::engine::Request;
use super::mark::Mark;
use super::table::Table;
use super::{Reply, WATCHED, ZERO, errno_of};
use crate::address::{self, Given};
use crate::caller::{Caller, Descriptor, Flags};
use crate::carrier::{self, Carrier, Senders, Way};
use crate::control::{Faults, Marks};
use crate::direct::habits_of;
use crate::ports::{Claim, Transport};
use crate::scope::Server;
use crate::socket::files::{inode_of, owner_of, set_nonblocking};
use crate::socket::{
    Adopting, Datagram, Holder, Opened, Purpose, RingEnd, SetOption, Socket, State,
};
use rustix::event::epoll;
use rustix::io::Errno;
use sidecore_net::sock::client::Socket as Session;
use sidecore_net_rings::datagram::{self as direct, Place, PlaceState};
use sidecore_sys::message::{self, Batch};
use sidecore_sys::seccomp::{Answer, Call};
use sidecore_sys::socket_option;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// The datagram sockets' parts that are no socket's own.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    senders: Senders,
    /// Sockets that were connected to a port without a socket. Those that were closed since are
    /// removed when a port is bound.
    refused: HashSet<u64>,
    refusers: refusing::Refusers,
    /// Sockets whose programs wrote more than one round takes.
    unfinished: VecDeque<u64>,
    /// Memory for datagrams that programs wrote; none until the first.
    batch: Option<Batch>,
    /// The same for one of a ring; empty until the first.
    payload: Vec<u8>,
    /// Sockets whose programs sent more by rings than one round takes.
    waiting: VecDeque<u64>,
    /// Sockets whose rings have changed in this round.
    noted: Vec<u64>,
    /// Sockets whose rings are to end once no copy is in progress.
    ending: Vec<u64>,
    /// Rings that have ended in this round.
    ended: Vec<RingEnd>,
    /// A ring's datagrams are being forwarded: no rings end meanwhile. A program that forges some
    /// may send each to itself, and each end would forward the rest, one inside the other.
    forwards: bool,
    /// Answers about interfaces, which programs ask for by netlink sockets.
    interfaces: interfaces::Interfaces,
}

impl Datagrams {
    /// True while datagrams are left that no event reports.
    pub(super) fn are_pressing(&self) -> bool {
        let lists = [
            self.unfinished.is_empty(),
            self.waiting.is_empty(),
            self.ending.is_empty(),
        ];
        lists.contains(&false)
    }

    /// Takes a UDP socket from the kernel's network and binds it to `asked`, with any port if that
    /// is 0; its inode. If the stack has not answered yet ([`Table::is_asking`]), the call has to
    /// wait.
    ///
    /// # Errors
    /// `EADDRINUSE`; the kernel's.
    pub(super) fn adopt(
        &mut self,
        table: &mut Table,
        caller: &Caller<'_>,
        descriptor: i32,
        opened: Opened,
        asked: SocketAddr,
    ) -> Result<u64, Errno> {
        let carrier = Carrier::new(opened.is_v6)?;
        let (is_v6, is_v6_only) = (opened.is_v6, opened.is_v6_only);
        // Saved, because they are cleared before the kernel's socket is bound.
        let options = sharing_options(&opened.file);
        let is_set = |name| options.iter().any(|it| it.name == name);
        let claim = Claim {
            ip: asked.ip(),
            is_v6_only,
            reuses_address: is_set(libc::SO_REUSEADDR),
            reuses_port: is_set(libc::SO_REUSEPORT),
            owner: owner_of(&opened.file),
            listens: false,
        };
        let shared = options.iter().map(|it| it.name).collect();
        let adopting = adopting(opened, &carrier, caller.flags(descriptor), shared)?;
        let inode = inode_of(&adopting.near)?;
        let kernel = Rc::new(carrier.far.try_clone().map_err(|_| Errno::MFILE)?);
        let state = State::Datagram(Datagram {
            engines: Vec::new(),
            carrier,
        });
        let mut socket = Socket {
            is_v6,
            is_v6_only,
            options,
            holder: Holder::of(caller, descriptor),
            ..Socket::new(Transport::Udp, kernel, asked, state)
        };
        if asked.port() == 0
            && let Some(carrier) = socket.carrier_mut()
        {
            // The kernel chooses the port, unless another program's socket at the stack has that
            // one.
            carrier.settle(&adopting.near, &adopting.shared)?;
            let chosen = carrier.near.port();
            let port = match table.ports.is_free(Transport::Udp, chosen) {
                true => chosen,
                false => table.ports.ephemeral(Transport::Udp),
            };
            socket.local.set_port(port);
        }
        let port = socket.local.port();
        // A socket that was closed there is forgotten below.
        for owner in table.ports.owners(Transport::Udp, port) {
            self.take_frames(table, owner);
        }
        // Conflicts between the programs' own sockets are found before the stack is asked.
        if !table.take_port(inode, Transport::Udp, port, claim) {
            return Err(Errno::ADDRINUSE);
        }
        let requested = table
            .insert(inode, socket)
            .and_then(|()| table.ask_stack(inode, None, Purpose::Datagrams(adopting.clone())));
        // Its close may be found by a sweep only, and its port at the stack must be free soon
        // after.
        if table.scope.has_stack() {
            table.sweeps.hurry();
        }
        match requested {
            // The call waits for the stack's answer.
            Ok(Request::Pending) => return Ok(inode),
            Ok(Request::Complete) => {
                self.settle(table, inode, &adopting, Some(caller.call))?;
            }
            Err(error) => {
                table.forget(inode);
                table.ports.release(Transport::Udp, port, inode);
                return Err(error);
            }
        }
        if !adopting.is_near {
            caller.forget_inode();
        }
        Ok(inode)
    }

    /// Continues the calls that waited for a datagram socket at the stack.
    pub(super) fn finish_adopting(&mut self, table: &mut Table, inode: u64) {
        let mut waiting = table.calls.take(inode);
        let asked = table.sockets.get_mut(&inode).and_then(|it| {
            let purpose = &mut it.asked.as_mut()?.purpose;
            Some(std::mem::replace(purpose, Purpose::Again))
        });
        let Some(Purpose::Datagrams(adopting)) = asked else {
            return;
        };
        let first = waiting.front().map(|it| it.call);
        match self.settle(table, inode, &adopting, first) {
            Ok(()) => {
                // bind(2) is complete; the other calls have only begun.
                waiting.retain(|it| {
                    let is_bind = it.call.number == libc::SYS_bind;
                    if is_bind {
                        let answer = Answer::Value(0);
                        table.calls.answer_placed(it.call, answer, Some(inode));
                    }
                    !is_bind
                });
                table.calls.put_back(inode, waiting);
                table.calls.wake(inode);
            }
            Err(error) => {
                for it in waiting {
                    table.calls.answer(&it.call, Answer::Fail(error));
                }
            }
        }
    }

    /// Puts a datagram socket into service, or removes it if that fails.
    fn settle(
        &mut self,
        table: &mut Table,
        inode: u64,
        adopting: &Adopting,
        call: Option<Call>,
    ) -> Result<(), Errno> {
        match serve(table, inode, adopting, call) {
            Ok(()) => {
                if let Some(local) = table.sockets.get(&inode).map(|socket| socket.local) {
                    self.welcome(table, local);
                }
                Ok(())
            }
            Err(error) => {
                let port = table.sockets.get(&inode).map(|it| it.local.port());
                table.forget(inode);
                let port = port.unwrap_or_default();
                table.ports.release(Transport::Udp, port, inode);
                Err(error)
            }
        }
    }

    /// A socket was bound to a port: sockets that are connected there are no longer refused.
    fn welcome(&mut self, table: &mut Table, local: SocketAddr) {
        self.refused.retain(|inode| {
            let socket = table.sockets.get(inode);
            // Those that were closed, or have no peer any more, are not refused, either.
            let Some((socket, peer)) = socket.and_then(|it| Some((it, it.peer?))) else {
                return false;
            };
            let is_welcome = peer.port() == local.port() && !is_vacant(table, peer);
            let carrier = socket.carrier().filter(|_| is_welcome);
            // If the kernel refuses, the next port that is bound tries again.
            carrier.is_none_or(|carrier| carrier.unpark().is_err())
        });
    }

    /// Sets or clears the peer of the socket with the near end `near`.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn connect(
        &mut self,
        table: &mut Table,
        inode: u64,
        near: &OwnedFd,
        peer: Option<SocketAddr>,
    ) -> Result<(), Errno> {
        // What it wrote before is its former peer's.
        self.take(table, inode);
        let Some(socket) = table.sockets.get(&inode) else {
            return Ok(());
        };
        let (is_v6, bound) = (socket.is_v6, socket.bound);
        let peer = peer.map(|peer| address::plain_peer(peer, is_v6));
        if let Some(peer) = peer {
            table.forget_closed(Transport::Udp, peer.port());
        }
        let is_vacant = peer.is_some_and(|peer| is_vacant(table, peer));
        // As in the kernel, connecting fixes the source address.
        let source = peer
            .filter(|_| bound.is_unspecified())
            .and_then(|peer| table.scope.source_for(peer.ip()));
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return Ok(());
        };
        let to = source.unwrap_or(bound);
        let State::Datagram(Datagram { carrier, .. }) = &mut socket.state else {
            return Ok(());
        };
        // Those of the peer before.
        carrier.faults = Faults::default();
        if is_vacant {
            carrier.park()?;
            self.refused.insert(inode);
        } else {
            carrier.unpark()?;
            self.refused.remove(&inode);
        }
        match peer {
            Some(from) => {
                rustix::net::connect(near, &carrier.at)?;
                carrier.represents = Some(Way { from, to, is_v6 });
                if carrier.direct.place.is_some() {
                    table.directory.set_way(carrier.at, (from, to));
                }
            }
            None => {
                rustix::net::connect_unspec(near)?;
                // The kernel has released the port that it chose at bind(2); if another socket has
                // it by now, the kernel chooses a new one.
                rustix::net::bind(near, &carrier.near).ok();
                carrier.settle(near, &[])?;
                // Datagrams that arrived before are still reported as the old peer's.
            }
        }
        socket.peer = peer;
        socket.local.set_ip(to);
        table.pass_peer_on(inode);
        publish(table, inode, Some(near));
        Ok(())
    }

    /// Serves a library's request for a place in the directory, which it also repeats before it
    /// sends more than the supervisor's sockets hold: what it sent before is taken first.
    ///
    /// # Errors
    /// `EAGAIN`: the socket is the kernel's, or the stack has not answered yet; `EOPNOTSUPP`: it is
    /// of another kind. No memory, descriptors or places are left.
    pub(super) fn serve_request(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let target = caller.call.arguments[3];
        let has_directory = caller.read_int(target)? != 0;
        let descriptor = caller.int(0);
        let inode = caller.inode(descriptor).ok_or(Errno::BADF)?;
        let near = caller.fetch(descriptor)?;
        let socket = table.sockets.get_mut(&inode).ok_or(Errno::AGAIN)?;
        if !socket.is_datagram() {
            return Err(Errno::OPNOTSUPP);
        }
        socket.holder = Holder::of(caller, descriptor);
        if socket.asked.is_some() {
            return Err(Errno::AGAIN);
        }
        self.take(table, inode);
        table.directory.open(self.senders.all())?;
        let place = place_of(table, inode)?;
        publish(table, inode, Some(&*near));
        let file = match table.directory.file() {
            Some(file) if !has_directory => caller.give(file)?,
            _ => -1,
        };
        let words = [place.number, place.generation, file.cast_unsigned(), 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        caller.write(target, &bytes)?;
        Ok(ZERO)
    }

    /// The caller's socket, if it is a datagram socket of ours, or becomes one because of the
    /// destination `to`.
    fn of_caller(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
        to: Given,
    ) -> Result<Option<u64>, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(None);
        };
        if let Some(socket) = table.sockets.get_mut(&inode) {
            socket.holder = Holder::of(caller, descriptor);
            return Ok(socket.is_datagram().then_some(inode));
        }
        let Given::Inet(peer) = to else {
            return Ok(None);
        };
        if table.scope.of_peer(peer.ip()).is_none() {
            return Ok(None);
        }
        let Some(opened) = Opened::of(caller.fetch(descriptor)?) else {
            return Ok(None);
        };
        let is_foreign = peer.is_ipv6() && !opened.is_v6;
        if opened.transport != Transport::Udp || opened.local.port() != 0 || is_foreign {
            return Ok(None);
        }
        let any = SocketAddr::new(opened.any(), 0);
        self.adopt(table, caller, descriptor, opened, any).map(Some)
    }
}

/// The place of a datagram socket in the directory; if it had none, it gets one, and a desk if
/// there is a stack.
///
/// # Errors
/// No descriptors or places are left.
fn place_of(table: &mut Table, inode: u64) -> Result<Place, Errno> {
    let socket = table.sockets.get_mut(&inode).ok_or(Errno::BADF)?;
    let is_v6 = socket.is_v6;
    let carrier = socket.carrier_mut().ok_or(Errno::OPNOTSUPP)?;
    if let Some(place) = carrier.direct.place {
        return Ok(place);
    }
    let desk = match table.scope.has_stack() {
        true => Some(carrier::marked(is_v6)?),
        false => None,
    };
    let place = table.directory.take_place().ok_or(Errno::NOSPC)?;
    carrier.direct.place = Some(place);
    if let Some(way) = carrier.represents {
        table.directory.set_way(carrier.at, (way.from, way.to));
    }
    if let Some(desk) = desk {
        let mark = Mark::Desk(inode).data();
        // Without memory for it, datagrams are sent by calls.
        if epoll::add(&table.epoll, &desk.0, mark, WATCHED).is_ok() {
            carrier.direct.open_desk(desk);
        }
    }
    Ok(place)
}

/// Writes what the library may do with a socket now into the directory, if the socket has a place.
/// By `near`, the program's end, its options are read if they are not known.
fn publish(table: &mut Table, inode: u64, near: Option<&OwnedFd>) {
    let Some(socket) = table.sockets.get_mut(&inode) else {
        return;
    };
    let (is_v6, peer, is_asking) = (socket.is_v6, socket.peer, socket.asked.is_some());
    let State::Datagram(Datagram { engines, carrier }) = &mut socket.state else {
        return;
    };
    let Some(place) = carrier.direct.place else {
        return;
    };
    if carrier.habits.is_none() {
        carrier.habits = near.map(|near| habits_of(near, is_v6));
    }
    let is_odd = carrier.habits.is_none_or(|habits| habits.is_odd());
    if is_odd || is_asking || carrier.faults.are_pending() || carrier.corked.is_some() {
        // Its calls have results that only the supervisor knows.
        table.directory.withhold(&carrier.direct);
        return;
    }
    let client = table.engine.client.as_ref();
    let has_engine = |is_v4: bool| {
        let mut locals = engines.iter().filter_map(|it| client?.local(*it));
        peer.is_none() && locals.any(|local| local.is_ipv4() == is_v4)
    };
    let server = peer.and_then(|peer| table.scope.of_peer(peer.ip()));
    let desk = carrier.direct.desk.as_ref().map(|(_, at)| *at);
    let flags = [
        (direct::OPEN, true),
        (direct::IS_V6, is_v6),
        (
            direct::IS_MAPPED,
            desk.is_some_and(|at| address::plain(at).is_ipv4()),
        ),
        (direct::SENDS_V4, desk.is_some() && has_engine(true)),
        (direct::SENDS_V6, desk.is_some() && has_engine(false)),
        // To another program it is delivered before the call returns.
        (direct::WRITES, server == Some(Server::Stack)),
    ];
    let set = flags.iter().filter(|(_, is_set)| *is_set);
    let state = PlaceState {
        flags: set.fold(0, |all, (flag, _)| all | flag),
        desk_port: desk.map_or(0, |at| at.port()),
    };
    table.directory.set_state(place, state);
}

/// The program's own socket, or one of this network namespace in its place.
fn adopting(
    opened: Opened,
    carrier: &Carrier,
    flags: Flags,
    shared: Vec<i32>,
) -> Result<Adopting, Errno> {
    let is_near = carrier::share_network(&opened.file, &carrier.far);
    let near = if is_near {
        opened.file
    } else {
        // A socket of another network namespace cannot reach ours.
        let near = carrier::alike(&opened.file, opened.is_v6)?;
        set_nonblocking(&near, flags.is_nonblocking)?;
        Rc::new(near)
    };
    Ok(Adopting {
        near,
        is_near,
        shared,
        flags,
    })
}

/// Gives a datagram socket what it has at the stack, and binds the program's own socket.
fn serve(
    table: &mut Table,
    inode: u64,
    adopting: &Adopting,
    call: Option<Call>,
) -> Result<(), Errno> {
    let engines = table.take_asked(inode)?;
    table.give_engines(inode, engines);
    // Set before there was a socket at the stack.
    table.tell_class(inode, &adopting.near);
    let socket = table.sockets.get_mut(&inode);
    if let Some(carrier) = socket.and_then(Socket::carrier_mut) {
        carrier.settle(&adopting.near, &adopting.shared)?;
    }
    // The program keeps its own socket if that is in this network namespace.
    if adopting.is_near {
        return Ok(());
    }
    let listener = table.calls.listener();
    let caller = Caller::new(call.ok_or(Errno::SRCH)?, &listener);
    let at = Descriptor {
        number: caller.int(0),
        flags: adopting.flags,
    };
    table.replace(&caller, at, &adopting.near)
}

/// The options of a socket, if set, by which several sockets share a port.
fn sharing_options(file: &OwnedFd) -> Vec<SetOption> {
    let level = libc::SOL_SOCKET;
    let names = [libc::SO_REUSEADDR, libc::SO_REUSEPORT].into_iter();
    let set = names.filter_map(|name| {
        let value = socket_option::get(file.as_fd(), level, name, 4).ok()?;
        let is_set = value.iter().any(|byte| *byte != 0);
        is_set.then_some(SetOption { level, name, value })
    });
    set.collect()
}

/// True if no socket is bound at `peer`; known for the loopback only.
fn is_vacant(table: &Table, peer: SocketAddr) -> bool {
    table.scope.of_peer(peer.ip()) == Some(Server::Loopback)
        && table.ports.at(Transport::Udp, peer).is_empty()
}

/// The length of a datagram or an address, as `struct msghdr` has it; none reaches 64 KiB.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Datagrams of other processes that one call skips.
const FOREIGN_MAX: usize = 64;

#[cfg(test)]
mod tests;
