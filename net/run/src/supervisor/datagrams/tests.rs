use super::ring::{RINGS_FROM, ring_room};
use super::route::Outgoing;
use super::*;
use crate::direct::Records;
use crate::supervisor::tests::fixtures::{callers, table};
use rustix::net::{RecvFlags, SendFlags};
use sidecore_net_rings::datagram::{Frame, HEAD_BYTES, Head};
use sidecore_net_rings::{LARGE_BYTES, Lock, SLAB_BYTES, Served};
use sidecore_sys::{SharedMap, Sharing, local_socket};
use std::time::Duration;

/// Programs' sockets, by their numbers.
struct Programs {
    table: Table,
    datagrams: Datagrams,
    near: Vec<OwnedFd>,
}

const PATIENCE: Duration = Duration::from_secs(60);

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn claim(reuses_port: bool) -> Claim {
    Claim {
        ip: at(1).ip(),
        is_v6_only: false,
        reuses_address: false,
        reuses_port,
        owner: 0,
        listens: false,
    }
}

impl Programs {
    /// Sockets that are bound to these ports.
    fn at(ports: &[u16]) -> Self {
        let (listener, _callers) = callers(0);
        let mut it = Self {
            table: table(listener),
            datagrams: Datagrams::default(),
            near: Vec::new(),
        };
        for port in ports {
            it.add(*port);
        }
        it
    }

    fn add(&mut self, port: u16) -> u64 {
        let (mut socket, near) = crate::socket::tests::datagram_socket();
        let inode = inode_of(&near).unwrap();
        socket.local = at(port);
        assert!(
            self.table
                .ports
                .take(Transport::Udp, port, inode, claim(true))
        );
        self.table.insert(inode, socket).unwrap();
        self.near.push(near);
        inode
    }

    fn inode(&self, number: usize) -> u64 {
        inode_of(&self.near[number]).unwrap()
    }

    fn connect(&mut self, number: usize, peer: Option<SocketAddr>) {
        let inode = self.inode(number);
        self.datagrams
            .connect(&mut self.table, inode, &self.near[number], peer)
            .unwrap();
    }

    /// Sends from a socket to an address, as sendto(2).
    fn send_to(&mut self, number: usize, peer: SocketAddr, payload: &[u8]) -> Result<(), Errno> {
        let inode = self.inode(number);
        let outgoing = Outgoing {
            source: None,
            peer,
            payloads: &[payload],
            marks: Marks::default(),
        };
        self.datagrams.route(&mut self.table, inode, outgoing)
    }

    /// Sends from a socket to its peer, as write(2), and forwards it.
    fn write(&mut self, number: usize, payload: &[u8]) -> Result<usize, Errno> {
        let written = message::send(self.near[number].as_fd(), &[], payload, &[], 0)?;
        let inode = self.inode(number);
        let far = &self.table.sockets[&inode].carrier().unwrap().far;
        wait(far);
        self.datagrams.take(&mut self.table, inode);
        Ok(written)
    }

    /// The next datagram of a socket, and its source as the program learns it.
    fn receive(&self, number: usize) -> (Vec<u8>, Option<SocketAddr>) {
        let near = &self.near[number];
        wait(near);
        let mut payload = [0; 16];
        let received = message::receive(near.as_fd(), &mut payload, &mut [], 0).unwrap();
        let by = address::read(&received.name);
        let way = self.datagrams.way(&self.table, self.inode(number), by);
        let payload = payload[..received.bytes].to_vec();
        (payload, way.map(|way| way.from))
    }

    fn is_empty(&self, number: usize) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        rustix::net::recv(&self.near[number], &mut [0; 4], flags) == Err(Errno::AGAIN)
    }
}

fn wait(file: &OwnedFd) {
    local_socket::poll(&[file.as_fd()], &mut Vec::new(), PATIENCE).unwrap();
}

#[test]
fn a_datagram_comes_from_the_address_of_its_sender() {
    let mut programs = Programs::at(&[1, 2]);
    programs.send_to(0, at(2), b"hello").unwrap();
    assert_eq!(programs.receive(1), (b"hello".to_vec(), Some(at(1))));
    programs.send_to(1, at(1), b"").unwrap();
    assert_eq!(programs.receive(0), (Vec::new(), Some(at(2))));
    // An address in no network of the scope.
    let elsewhere = "192.0.2.1:1".parse().unwrap();
    let refused = programs.send_to(0, elsewhere, b"x");
    assert_eq!(refused, Err(Errno::NETUNREACH));
}

#[test]
fn a_socket_with_a_peer_writes_to_it_and_hears_it_alone() {
    let mut programs = Programs::at(&[1, 2, 3]);
    programs.connect(0, Some(at(2)));
    assert_eq!(programs.write(0, b"ping"), Ok(4));
    assert_eq!(programs.receive(1), (b"ping".to_vec(), Some(at(1))));
    programs.send_to(2, at(1), b"other").unwrap();
    assert!(programs.is_empty(0));
    programs.send_to(1, at(1), b"pong").unwrap();
    assert_eq!(programs.receive(0), (b"pong".to_vec(), Some(at(2))));
    // After a disconnect it hears all again, and datagrams of before have the old source.
    programs.send_to(1, at(1), b"late").unwrap();
    programs.connect(0, None);
    assert_eq!(programs.receive(0), (b"late".to_vec(), Some(at(2))));
    programs.send_to(2, at(1), b"other").unwrap();
    assert_eq!(programs.receive(0), (b"other".to_vec(), Some(at(3))));
}

#[test]
fn of_sockets_that_share_a_port_the_connected_one_is_preferred() {
    let mut programs = Programs::at(&[1, 1, 2, 3]);
    programs.send_to(2, at(1), b"last").unwrap();
    assert_eq!(programs.receive(1).0, b"last");
    programs.connect(0, Some(at(2)));
    programs.send_to(2, at(1), b"peer").unwrap();
    assert_eq!(programs.receive(0).0, b"peer");
    programs.send_to(3, at(1), b"other").unwrap();
    assert_eq!(programs.receive(1).0, b"other");
    assert!(programs.is_empty(0));
}

#[test]
fn a_closed_receiver_is_forgotten_and_the_next_one_taken() {
    let mut programs = Programs::at(&[2, 1, 1]);
    let closed = programs.inode(2);
    programs.near.pop();
    programs.send_to(0, at(1), b"x").unwrap();
    assert_eq!(programs.receive(1), (b"x".to_vec(), Some(at(2))));
    assert!(!programs.table.sockets.contains_key(&closed));
}

#[test]
fn a_peer_without_a_socket_refuses_until_there_is_one() {
    let mut programs = Programs::at(&[1]);
    programs.connect(0, Some(at(9)));
    assert_eq!(programs.datagrams.refused.len(), 1);
    // The kernel refuses the first write with the next call, as it does where no port is bound.
    let near = programs.near[0].as_fd();
    assert_eq!(message::send(near, &[], b"x", &[], 0), Ok(1));
    let refused = rustix::net::send(near, b"x", SendFlags::DONTWAIT);
    assert_eq!(refused, Err(Errno::CONNREFUSED));
    let other = programs.add(9);
    programs.datagrams.welcome(&mut programs.table, at(9));
    assert!(programs.datagrams.refused.is_empty());
    assert_eq!(programs.write(0, b"now"), Ok(3));
    assert_eq!(programs.receive(1), (b"now".to_vec(), Some(at(1))));
    // The receiver closes: the next datagram finds out, and is refused with the one after it.
    programs.near.pop();
    assert_eq!(programs.write(0, b"gone"), Ok(4));
    assert!(!programs.table.sockets.contains_key(&other));
    assert_eq!(programs.datagrams.refused.len(), 1);
}

#[test]
fn a_port_that_others_wait_for_welcomes_them_alone() {
    let mut programs = Programs::at(&[1, 2, 3]);
    programs.connect(0, Some(at(8)));
    programs.connect(1, Some(at(9)));
    programs.connect(2, Some(at(9)));
    programs.add(9);
    // Closed and removed meanwhile.
    let gone = programs.inode(2);
    programs.table.forget(gone);
    programs.datagrams.welcome(&mut programs.table, at(9));
    let left: Vec<u64> = programs.datagrams.refused.iter().copied().collect();
    assert_eq!(left, [programs.inode(0)]);
}

#[test]
fn datagrams_of_other_processes_are_not_a_programs() {
    let mut programs = Programs::at(&[1, 2]);
    programs.connect(0, Some(at(2)));
    let inode = programs.inode(0);
    let (near, far) = {
        let carrier = programs.table.sockets[&inode].carrier().unwrap();
        (carrier.near, carrier.at)
    };
    let other = carrier::datagram_socket(false).unwrap();
    // To the far end: it would go on to the peer.
    rustix::net::sendto(&other, b"x", SendFlags::empty(), &far).unwrap();
    programs.datagrams.take(&mut programs.table, inode);
    assert!(programs.is_empty(1));
    // To the near end, which is not connected: its source is no sender's.
    let second = programs.inode(1);
    let near_of_second = programs.table.sockets[&second].carrier().unwrap().near;
    rustix::net::sendto(&other, b"x", SendFlags::empty(), &near_of_second).unwrap();
    assert_eq!(programs.receive(1), (b"x".to_vec(), None));
    assert_ne!(near, near_of_second);
}

#[test]
fn frames_go_where_they_say() {
    let mut programs = Programs::at(&[1, 2, 3]);
    let inode = programs.inode(0);
    let desk = carrier::marked(false).unwrap();
    let name = address::write(desk.1, false);
    let socket = programs.table.sockets.get_mut(&inode).unwrap();
    socket.carrier_mut().unwrap().direct.open_desk(desk);
    let frame = |port, segment_bytes| {
        let peer = at(port);
        Frame {
            peer,
            segment_bytes,
        }
        .bytes()
        .to_vec()
    };
    let unspecified = Frame {
        peer: SocketAddr::from(([0; 4], 2)),
        segment_bytes: 0,
    };
    for (number, frame, payload) in [
        (0, frame(2, 0), "one"),
        (0, Vec::new(), "malformed, but as long as a frame is"),
        // Another socket's.
        (2, frame(2, 0), "other"),
        (0, frame(2, 2), "three"),
        // Nothing is bound there.
        (0, frame(9, 0), "lost"),
        (0, frame(2, 0), ""),
        // This host.
        (0, unspecified.bytes().to_vec(), "here"),
    ] {
        let message = [frame.as_slice(), payload.as_bytes()].concat();
        message::send(programs.near[number].as_fd(), &name, &message, &[], 0).unwrap();
        let socket = &programs.table.sockets[&inode];
        let (desk, _) = socket.carrier().unwrap().direct.desk.as_ref().unwrap();
        wait(desk);
        programs.datagrams.take(&mut programs.table, inode);
    }
    for expected in ["one", "th", "re", "e", "", "here"] {
        let expected = expected.as_bytes().to_vec();
        assert_eq!(programs.receive(1), (expected, Some(at(1))));
    }
    assert!(programs.is_empty(1));
    // Those that wait are sent before the socket is forgotten, and with the end of a run.
    let message = [frame(2, 0).as_slice(), b"last"].concat();
    message::send(programs.near[0].as_fd(), &name, &message, &[], 0).unwrap();
    programs.near[0] = carrier::datagram_socket(false).unwrap();
    programs.table.sweep();
    assert!(programs.table.sockets.contains_key(&inode));
    programs.datagrams.take_all(&mut programs.table);
    assert_eq!(programs.receive(1), (b"last".to_vec(), Some(at(1))));
    programs.table.sweep();
    assert!(!programs.table.sockets.contains_key(&inode));
}

/// Rings, full of datagrams to `peer`, of a program that has broken its own position.
fn forged(peer: SocketAddr) -> Records {
    let memory = |bytes| {
        let memory = SharedMap::reserve("test", bytes, Sharing::ReadWrite);
        Rc::new(memory.unwrap())
    };
    let slab = memory(SLAB_BYTES);
    let ring = RingEnd {
        process: 0,
        stream: 0,
        memory: Rc::clone(&slab),
        large: Some(memory(LARGE_BYTES)),
        served: Served::default(),
    };
    let records = Records::begin(ring, 1 << 20, 64).unwrap();
    let head = Head {
        bytes: 0,
        peer,
        to: at(1).ip(),
        segment_bytes: 0,
    };
    let Lock::Held(mut held) = records.view().unwrap().lock() else {
        panic!("the rings are new");
    };
    while held.room().unwrap() >= HEAD_BYTES {
        assert_eq!(held.put(0, &head.bytes()), Ok(HEAD_BYTES));
        held.publish(HEAD_BYTES);
    }
    drop(held);
    // It has read what was not given: its position, by the byte map in README.md of the rings.
    slab.slice().write_at(80, &1_u64.to_le_bytes());
    assert!(records.view().unwrap().state().is_err());
    records
}

/// Each datagram would end the rings: thousands of ends, one inside the other.
#[test]
fn forged_rings_end_once() {
    let its_peer = SocketAddr::from(([0; 4], 0));
    for (peer, to) in [(None, at(1)), (Some(at(9)), its_peer)] {
        let mut programs = Programs::at(&[1]);
        if peer.is_some() {
            programs.connect(0, peer);
        }
        let inode = programs.inode(0);
        let socket = programs.table.sockets.get_mut(&inode).unwrap();
        socket.carrier_mut().unwrap().records = Some(Box::new(forged(to)));
        let has_rings = |programs: &Programs| {
            let carrier = programs.table.sockets[&inode].carrier();
            carrier.unwrap().records.is_some()
        };
        programs.datagrams.look_at_rings(&mut programs.table, inode);
        assert!(has_rings(&programs));
        programs.datagrams.end_again(&mut programs.table);
        assert!(!has_rings(&programs));
        programs.datagrams.end_again(&mut programs.table);
        programs.datagrams.take_waiting(&mut programs.table);
        assert!(!programs.datagrams.are_pressing());
    }
}

#[test]
fn many_writes_arrive_in_their_order() {
    let mut programs = Programs::at(&[1, 2]);
    programs.connect(0, Some(at(2)));
    let inode = programs.inode(0);
    for number in 0..100_u8 {
        message::send(programs.near[0].as_fd(), &[], &[number], &[], 0).unwrap();
    }
    wait(&programs.table.sockets[&inode].carrier().unwrap().far);
    programs.datagrams.take(&mut programs.table, inode);
    assert!(!programs.datagrams.are_pressing());
    for number in 0..100_u8 {
        assert_eq!(programs.receive(1), (vec![number], Some(at(1))));
    }
    // What waits when the peer changes is the former peer's.
    let third = programs.near.len();
    programs.add(3);
    message::send(programs.near[0].as_fd(), &[], b"before", &[], 0).unwrap();
    wait(&programs.table.sockets[&inode].carrier().unwrap().far);
    programs.connect(0, Some(at(3)));
    assert_eq!(programs.receive(1), (b"before".to_vec(), Some(at(1))));
    assert!(programs.is_empty(third));
}

#[test]
fn a_library_may_do_what_has_the_kernels_results() {
    let mut programs = Programs::at(&[1, 2]);
    let (inode, other) = (programs.inode(0), programs.inode(1));
    programs.table.directory.open(std::iter::empty()).unwrap();
    let place = place_of(&mut programs.table, inode).unwrap();
    assert_eq!(place_of(&mut programs.table, inode), Ok(place));
    let flags = |programs: &Programs| {
        let view = programs.table.directory.view().unwrap();
        view.state(place).map(|state| state.flags)
    };
    assert_eq!(flags(&programs), Some(0));
    publish(&mut programs.table, inode, Some(&programs.near[0]));
    // Without a stack it has no desk.
    assert_eq!(flags(&programs), Some(direct::OPEN));
    programs.connect(0, Some(at(2)));
    assert_eq!(flags(&programs), Some(direct::OPEN));
    let carrier = programs.table.sockets[&inode].carrier().unwrap();
    let way = programs.table.directory.view().unwrap().way(carrier.at);
    assert_eq!(way.map(|way| way.0), Some(at(2)));
    // Errors of the queue are the supervisor's.
    let on = 1i32.to_ne_bytes();
    let near = programs.near[0].as_fd();
    socket_option::set(near, libc::IPPROTO_IP, libc::IP_RECVERR, &on).unwrap();
    let socket = programs.table.sockets.get_mut(&inode).unwrap();
    socket.carrier_mut().unwrap().habits = None;
    publish(&mut programs.table, inode, Some(&programs.near[0]));
    assert_eq!(flags(&programs), Some(0));
    programs.table.forget(inode);
    place_of(&mut programs.table, other).unwrap();
    publish(&mut programs.table, other, Some(&programs.near[1]));
    assert_eq!(flags(&programs), None);
}

#[test]
fn only_the_options_that_are_set_are_saved() {
    let file = carrier::datagram_socket(false).unwrap();
    assert!(sharing_options(&file).is_empty());
    let on = 1i32.to_ne_bytes();
    let name = libc::SO_REUSEPORT;
    socket_option::set(file.as_fd(), libc::SOL_SOCKET, name, &on).unwrap();
    let saved = sharing_options(&file);
    assert_eq!(saved.len(), 1);
    assert_eq!((saved[0].name, saved[0].value.as_slice()), (name, &on[..]));
}

#[test]
fn a_vacant_port_is_known_on_the_loopback_only() {
    let mut programs = Programs::at(&[1]);
    assert!(!is_vacant(&programs.table, at(1)));
    assert!(is_vacant(&programs.table, at(2)));
    programs.table.scope.addresses.push([10, 0, 0, 1].into());
    assert!(!is_vacant(&programs.table, "10.0.0.1:2".parse().unwrap()));
}

#[test]
fn lengths_fit_the_fields_of_the_kernel() {
    assert_eq!(length(DATAGRAM_BYTES_MAX), 65_535);
    assert_eq!(length(usize::MAX), u32::MAX);
}

#[test]
fn sockets_of_which_the_kernel_says_more_have_no_rings() {
    let plain = || -> OwnedFd { std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into() };
    let room = ring_room(&plain());
    assert!(room.is_some_and(|bytes| bytes >= RINGS_FROM));
    let small = 10_000;
    for (level, name, value) in [
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1),
        (libc::IPPROTO_IP, libc::IP_RECVOPTS, 1),
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, small),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, small),
    ] {
        let near = plain();
        socket_option::set(near.as_fd(), level, name, &i32::to_ne_bytes(value)).unwrap();
        assert_eq!(ring_room(&near), None, "{level} {name}");
    }
}
