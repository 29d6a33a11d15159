//! Datagrams without calls of the supervisor: the directory of a run, by which the preload library
//! receives and sends by the kernel alone, and the options of a program's socket that forbid it.
//!
//! [`sidecore_net_rings::datagram`] has the layout. Must stay true: the directory has every sender,
//! so that the library drops no datagram of the supervisor's; what is not allowed is not in it, and
//! the call comes here. It is made for the first socket that asks for a place.
//!
//! Where one process uses a socket, its datagrams may go by rings instead ([`Records`]): what the
//! ring to the program has no room for waits here, up to what the kernel's socket would hold.

use crate::address::plain;
use crate::control::Marks;
use crate::socket::RingEnd;
use rustix::io::Errno;
use sidecore_net_rings::datagram::{
    self as shared, DIRECTORY_BYTES, Head, PLACES, Place, PlaceState, WAYS,
};
use sidecore_net_rings::{Broken, LARGE_RING_BYTES, Stream};
use sidecore_sync::Changed;
use sidecore_sys::{SharedMap, Sharing, local_socket, socket_option};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A socket's part in it.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// Its place; none: its library has not asked for one.
    pub(crate) place: Option<Place>,
    /// The socket to which the library sends frames, and its address; none without a stack.
    pub(crate) desk: Option<(OwnedFd, SocketAddr)>,
}

impl Direct {
    /// Makes a socket of the kernel's loopback the desk.
    pub(crate) fn open_desk(&mut self, desk: (OwnedFd, SocketAddr)) {
        // The kernel cuts it to what it allows (net.core.rmem_max).
        let room = DESK_BYTES.to_ne_bytes();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUF);
        socket_option::set(desk.0.as_fd(), level, name, &room).ok();
        self.desk = Some(desk);
    }

    /// True if the desk has frames that were not taken.
    pub(crate) fn has_frames(&self) -> bool {
        let desk = self.desk.as_ref();
        desk.is_some_and(|(desk, _)| local_socket::is_readable(desk.as_fd()))
    }
}

/// The supervisor's end of a datagram socket's rings.
#[derive(Debug)]
pub(crate) struct Records {
    pub(crate) ring: RingEnd,
    /// Datagrams for which the ring to the program had no room, the oldest first.
    backlog: VecDeque<(Head, Vec<u8>)>,
    backlog_bytes: usize,
    /// The most of these.
    room: usize,
    /// SO_RCVBUF of the kernel's socket.
    receive_bytes: usize,
    /// Its program is to be notified at the end of the round.
    pub(crate) is_noted: bool,
    /// Requests to end it.
    pub(crate) delays: u32,
    /// The hop limit of datagrams that have none of their own.
    pub(crate) usual_hops: u8,
}

impl Records {
    /// Begins rings that the program does not know of yet, for a socket whose SO_RCVBUF is
    /// `receive_bytes`; none if the memory is too short.
    pub(crate) fn begin(mut ring: RingEnd, receive_bytes: usize, usual_hops: u8) -> Option<Self> {
        ring.served = ring.view()?.begin_large();
        let beyond = receive_bytes.saturating_sub(LARGE_RING_BYTES);
        Some(Self {
            ring,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            room: beyond.min(BACKLOG_BYTES_MAX),
            receive_bytes,
            is_noted: false,
            delays: 0,
            usual_hops,
        })
    }

    /// Gives the program a datagram, which is lost where the kernel's socket would be full, too.
    ///
    /// # Errors
    /// The program has corrupted its positions.
    pub(crate) fn give(&mut self, head: Head, payload: &[u8]) -> Result<(), Broken> {
        if self.backlog.is_empty() && self.put(head, payload)? {
            return Ok(());
        }
        let cost = payload.len() + KEPT_BYTES;
        if self.room - self.backlog_bytes < cost {
            return Ok(());
        }
        self.backlog_bytes += cost;
        self.backlog.push_back((head, payload.to_vec()));
        self.flush().map(drop)
    }

    /// Gives the program what waits for room; true if some of it found room.
    ///
    /// # Errors
    /// The program has corrupted its positions.
    pub(crate) fn flush(&mut self) -> Result<bool, Broken> {
        let before = self.backlog.len();
        let mut is_announced = false;
        while let Some((head, payload)) = self.backlog.pop_front() {
            if self.put(head, &payload)? {
                self.backlog_bytes -= payload.len() + KEPT_BYTES;
                continue;
            }
            self.backlog.push_front((head, payload));
            if is_announced {
                break;
            }
            // The program may read between the look and the announcement: one more look.
            self.view()?.wait_for_reading();
            let _ = Changed::publish();
            is_announced = true;
        }
        Ok(self.backlog.len() < before)
    }

    fn put(&mut self, head: Head, payload: &[u8]) -> Result<bool, Broken> {
        let mut served = self.ring.served;
        let given = head.give(self.view()?, &mut served, payload);
        self.ring.served = served;
        given
    }

    /// The program's next datagram, copied to `payload`.
    ///
    /// # Errors
    /// The program has corrupted its positions or heads.
    pub(crate) fn take(&mut self, payload: &mut [u8]) -> Result<Option<Head>, Broken> {
        let mut served = self.ring.served;
        let taken = Head::take(self.view()?, &mut served, payload);
        self.ring.served = served;
        taken
    }

    /// True if the program has sent what was not taken, or is not known to have sent nothing.
    pub(crate) fn has_more(&self) -> bool {
        let waiting = self.view().and_then(|view| view.waiting(&self.ring.served));
        waiting.is_ok_and(|bytes| bytes > 0)
    }

    /// The datagrams that the program has not read, once its rings were taken back: as many as the
    /// kernel's socket holds. So a program that has forged many makes no more work than that.
    pub(crate) fn unread(self) -> Vec<(Head, Vec<u8>)> {
        let bytes = self.view().and_then(|view| view.unread(&self.ring.served));
        let bytes = bytes.unwrap_or_default();
        let mut unread = Vec::new();
        let mut rest = bytes.as_slice();
        // What the program has made of them: sources are only what is printed on a datagram.
        while let Some((head, payload, behind)) = Head::split(rest) {
            unread.push((head, payload.to_vec()));
            rest = behind;
        }
        unread.extend(self.backlog);
        let mut cost = 0;
        let fits = |(_, payload): &&(Head, Vec<u8>)| {
            cost += payload.len() + KEPT_BYTES;
            cost <= self.receive_bytes
        };
        let count = unread.iter().take_while(fits).count();
        unread.truncate(count);
        unread
    }

    pub(crate) fn view(&self) -> Result<Stream<'_>, Broken> {
        self.ring.view().ok_or(Broken)
    }
}

/// Datagrams of a socket that wait for room in its ring, at most.
const BACKLOG_BYTES_MAX: usize = 8 << 20;
/// The kernel's own memory for a datagram, about.
const KEPT_BYTES: usize = 768;

/// Source and destination of datagrams.
pub(crate) type Ends = (SocketAddr, IpAddr);

/// The directory of a run.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// None: no library has asked for it.
    memory: Option<SharedMap>,
    /// The ways of the kernel's addresses, plain, and their numbers.
    ways: HashMap<SocketAddr, u16>,
    free_ways: Vec<u16>,
    /// Places that sockets had.
    free_places: Vec<Place>,
    /// Places that no socket had yet are those from here on.
    next_place: u32,
}

impl Directory {
    /// Makes it, with these ways, if it is not there.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn open(
        &mut self,
        ways: impl Iterator<Item = (SocketAddr, Ends)>,
    ) -> Result<(), Errno> {
        if self.memory.is_some() {
            return Ok(());
        }
        let made = SharedMap::reserve("sidecore-directory", DIRECTORY_BYTES, Sharing::ReadOnly);
        self.memory = Some(made.map_err(|_| Errno::NOMEM)?);
        self.free_ways = (0..WAYS).rev().collect();
        for (at, way) in ways {
            self.set_way(at, way);
        }
        Ok(())
    }

    /// The memory, for a program.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory.as_ref().map(SharedMap::file)
    }

    /// A place for one more socket; none are left if it is none.
    pub(crate) fn take_place(&mut self) -> Option<Place> {
        if let Some(Place { number, generation }) = self.free_places.pop() {
            let generation = generation.wrapping_add(1);
            return Some(Place { number, generation });
        }
        let number = self.next_place;
        self.next_place = (number + 1).min(PLACES);
        (number < PLACES).then_some(Place {
            number,
            generation: 0,
        })
    }

    /// A socket is gone: its place, and the way of its far end.
    pub(crate) fn leave(&mut self, direct: &mut Direct, far: SocketAddr) {
        if let Some(place) = direct.place.take() {
            self.set_state(place, PlaceState::default());
            self.free_places.push(place);
            self.clear_way(far);
        }
    }

    /// Changes what the library may do with the socket in a place.
    pub(crate) fn set_state(&self, place: Place, state: PlaceState) {
        if let Some(view) = self.view() {
            view.set_state(place, state);
        }
    }

    /// The library may do nothing with a socket until its next call.
    pub(crate) fn withhold(&self, direct: &Direct) {
        if let Some(place) = direct.place {
            self.set_state(place, PlaceState::default());
        }
    }

    /// Datagrams from this address of the loopback come from this source, for this destination.
    pub(crate) fn set_way(&mut self, at: SocketAddr, (from, to): Ends) {
        let at = plain(at);
        // Before the memory is there, none is free.
        let Some(number) = self.free_ways.pop() else {
            return;
        };
        if let Some(view) = self.view() {
            view.set_way(number, at, from, to);
        }
        // Only now: no reader finds the one before without this.
        if let Some(before) = self.ways.insert(at, number) {
            self.free_ways.push(before);
        }
    }

    /// No datagrams come from this address of the loopback any more.
    pub(crate) fn clear_way(&mut self, at: SocketAddr) {
        let at = plain(at);
        if let Some(number) = self.ways.remove(&at) {
            if let Some(view) = self.view() {
                view.clear_way(at);
            }
            self.free_ways.push(number);
        }
    }

    /// The stack reaches a host, or does not.
    pub(crate) fn set_reaches(&self, peer: IpAddr, reaches: bool) {
        if let Some(view) = self.view() {
            view.set_reaches(peer, reaches);
        }
    }

    /// A view of its memory; none before it is made.
    pub(crate) fn view(&self) -> Option<shared::Directory<'_>> {
        shared::Directory::over(self.memory.as_ref()?.slice())
    }
}

/// The options with which a program's socket sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Habits {
    pub(crate) marks: Marks,
    /// Bytes of each datagram if one write sends several (UDP_SEGMENT).
    pub(crate) segment_bytes: Option<u16>,
    /// UDP_CORK: writes are parts of one datagram.
    pub(crate) is_corked: bool,
    /// IP_RECVERR or IPV6_RECVERR: it hears of datagrams that are refused.
    pub(crate) hears_errors: bool,
}

impl Habits {
    /// True if the number of datagrams is not that of the writes, or a send may report an error of
    /// an earlier one.
    pub(crate) fn is_odd(&self) -> bool {
        self.segment_bytes.is_some() || self.is_corked || self.hears_errors
    }
}

/// Queries the options with which a program's socket sends.
pub(crate) fn habits_of(near: &OwnedFd, is_v6: bool) -> Habits {
    let number = |level, name| {
        let value = socket_option::get(near.as_fd(), level, name, 4).ok()?;
        value.first_chunk().map(|it| i32::from_ne_bytes(*it))
    };
    let marks = if is_v6 {
        Marks {
            hops: number(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
            class: number(libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        }
    } else {
        Marks {
            hops: number(libc::IPPROTO_IP, libc::IP_TTL),
            class: number(libc::IPPROTO_IP, libc::IP_TOS),
        }
    };
    let segment_bytes = number(libc::SOL_UDP, libc::UDP_SEGMENT);
    Habits {
        marks,
        segment_bytes: segment_bytes
            .and_then(|bytes| bytes.try_into().ok())
            .filter(|bytes| *bytes > 0),
        is_corked: number(libc::SOL_UDP, libc::UDP_CORK).is_some_and(|on| on != 0),
        hears_errors: ERRORS_HEARD
            .iter()
            .any(|(level, name)| number(*level, *name).is_some_and(|on| on != 0)),
    }
}

/// Options with which a socket without a peer hears of ICMP errors, by family.
pub(crate) const ERRORS_HEARD: [(i32, i32); 2] = [
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
];
/// Frames that wait for the supervisor, in bytes with the kernel's own.
const DESK_BYTES: i32 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_net_rings::datagram::HEAD_BYTES;
    use sidecore_net_rings::{LARGE_BYTES, Lock, SLAB_BYTES, Served};
    use std::rc::Rc;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn ends(port: u16) -> Ends {
        let from = SocketAddr::from(([10, 0, 0, 1], port));
        (from, IpAddr::from([10, 0, 0, 2]))
    }

    fn seen(directory: &Directory, at: SocketAddr) -> Option<SocketAddr> {
        directory.view()?.way(at).map(|way| way.0)
    }

    #[test]
    fn ways_are_in_the_directory_from_its_beginning() {
        let mut directory = Directory::default();
        // Nothing has asked for it yet.
        directory.set_way(at(1), ends(1));
        assert!(directory.file().is_none());
        directory.open([(at(2), ends(2))].into_iter()).unwrap();
        directory.open([(at(3), ends(3))].into_iter()).unwrap();
        directory.set_way(at(4), ends(4));
        directory.set_way(at(4), ends(5));
        let mapped = |port| SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), port);
        directory.set_way(mapped(6), ends(6));
        let ports = [1, 2, 3, 4, 6].map(|port| seen(&directory, at(port)));
        assert_eq!(
            ports,
            [None, Some(2), None, Some(5), Some(6)].map(|it: Option<u16>| Some(ends(it?).0))
        );
        directory.clear_way(at(4));
        assert_eq!(seen(&directory, at(4)), None);
        // However often they change.
        for turn in 0..3 * WAYS {
            directory.set_way(at(7), ends(turn));
            assert_eq!(seen(&directory, at(7)), Some(ends(turn).0));
        }
    }

    #[test]
    fn a_place_is_free_once_its_socket_is_gone() {
        let mut directory = Directory::default();
        directory.open(std::iter::empty()).unwrap();
        let mut sockets: Vec<Direct> = (0..PLACES)
            .map(|_| Direct {
                place: directory.take_place(),
                desk: None,
            })
            .collect();
        assert!(sockets.iter().all(|it| it.place.is_some()));
        assert_eq!(directory.take_place(), None);
        let first = sockets[3].place.unwrap();
        let state = PlaceState {
            flags: shared::OPEN,
            desk_port: 7,
        };
        directory.set_state(first, state);
        directory.set_way(at(9), ends(9));
        directory.leave(&mut sockets[3], at(9));
        assert_eq!(sockets[3].place, None);
        assert_eq!(seen(&directory, at(9)), None);
        let next = directory.take_place().unwrap();
        assert_eq!((next.number, next.generation), (3, 1));
        directory.set_state(next, state);
        let view = directory.view().unwrap();
        assert_eq!((view.state(first), view.state(next)), (None, Some(state)));
    }

    #[test]
    fn a_desk_has_the_frames_that_were_sent_to_it() {
        let mut direct = Direct::default();
        assert!(!direct.has_frames());
        let desk = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = desk.local_addr().unwrap();
        direct.open_desk((desk.into(), to));
        assert!(!direct.has_frames());
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"x", to).unwrap();
        let (desk, _) = direct.desk.as_ref().unwrap();
        let patience = std::time::Duration::from_secs(60);
        local_socket::poll(&[desk.as_fd()], &mut Vec::new(), patience).unwrap();
        assert!(direct.has_frames());
    }

    fn records(receive_bytes: usize) -> Records {
        let memory = |bytes| {
            let memory = SharedMap::reserve("test", bytes, Sharing::ReadWrite);
            Rc::new(memory.unwrap())
        };
        let ring = RingEnd {
            process: 0,
            stream: 0,
            memory: memory(SLAB_BYTES),
            large: Some(memory(LARGE_BYTES)),
            served: Served::default(),
        };
        Records::begin(ring, receive_bytes, 64).unwrap()
    }

    fn head(number: u16) -> Head {
        Head {
            bytes: 1000,
            peer: at(number),
            to: IpAddr::from([10, 0, 0, 2]),
            segment_bytes: 0,
        }
    }

    /// The numbers of the datagrams that the library reads, at most this many.
    fn read(records: &Records, most: usize) -> Vec<u16> {
        let Lock::Held(mut held) = records.view().unwrap().lock() else {
            panic!("nobody has it");
        };
        let mut numbers = Vec::new();
        while numbers.len() < most
            && let Some(head) = Head::next(&mut held).unwrap()
        {
            held.skip(HEAD_BYTES + head.bytes).unwrap();
            numbers.push(head.peer.port());
        }
        numbers
    }

    #[test]
    fn a_full_ring_keeps_what_the_kernels_socket_would() {
        let in_ring = u16::try_from(LARGE_RING_BYTES / (HEAD_BYTES + 1000)).unwrap();
        let kept = u16::try_from(100_000 / (1000 + KEPT_BYTES)).unwrap();
        let mut records = records(LARGE_RING_BYTES + 100_000);
        for number in 0..1000 {
            records.give(head(number), &[0; 1000]).unwrap();
        }
        assert_eq!(records.flush(), Ok(false));
        assert_eq!(read(&records, 10), (0..10).collect::<Vec<_>>());
        assert_eq!(records.flush(), Ok(true));
        // Behind those that wait.
        records.give(head(5000), &[0; 1000]).unwrap();
        let mut rest: Vec<u16> = (10..in_ring + kept).collect();
        rest.push(5000);
        let mut came = read(&records, usize::MAX);
        assert_eq!(records.flush(), Ok(true));
        came.extend(read(&records, usize::MAX));
        assert_eq!(came, rest);
        // With the kernel's default nothing waits outside of the ring.
        let mut records = self::records(212_992);
        for number in 0..1000 {
            records.give(head(number), &[0; 1000]).unwrap();
        }
        assert_eq!(read(&records, usize::MAX).len(), usize::from(in_ring));
        assert_eq!(records.flush(), Ok(false));
    }

    #[test]
    fn what_was_not_read_comes_back_in_order() {
        let mut records = records(1 << 20);
        for number in 0..600 {
            records.give(head(number), &[0; 1000]).unwrap();
        }
        assert_eq!(read(&records, 7).len(), 7);
        assert!(records.view().unwrap().take_back(false));
        let unread = records.unread();
        assert!(unread.iter().all(|(_, payload)| payload.len() == 1000));
        let numbers: Vec<u16> = unread.iter().map(|(head, _)| head.peer.port()).collect();
        assert_eq!(numbers, (7..600).collect::<Vec<_>>());
    }
}
