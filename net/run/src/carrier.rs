//! The path of datagrams into and out of a program's own UDP socket.
//!
//! A program keeps the UDP socket that it opened: its reads, writes, polls and options are handled
//! by the kernel, with the kernel's limits, errors and control messages. The supervisor binds it to
//! the kernel's loopback, at an arbitrary port, and opens one socket there for each, the *far* end.
//! The program's socket is connected to the far end while it has a peer. Datagrams for the program
//! are sent to its socket by the far end or, while it has no peer, by a *sender*: a socket that
//! represents one pair of source and destination.
//!
//! A *parked* far end receives nothing, so that the kernel refuses the program's writes, as it does
//! where no socket has the peer's port.
//!
//! Must stay true: no duplicate of a program's socket is kept longer than a call waits for it, so
//! that its port becomes free when the last program closes it; the number of senders is bounded.

use crate::control::{Faults, Marks};
use crate::direct::{Direct, Directory, ERRORS_HEARD, Ends, Habits, Records};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sidecore_sys::{message, socket_option};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// The supervisor's side of a program's socket.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(crate) far: OwnedFd,
    /// The far end's address.
    pub(crate) at: SocketAddr,
    /// The address of the program's socket on the kernel's loopback.
    pub(crate) near: SocketAddr,
    /// A duplicate of the program's socket, while one of its calls waits.
    pub(crate) watched: Option<Rc<OwnedFd>>,
    /// The options with which the program's socket sends; none: to be queried again.
    pub(crate) habits: Option<Habits>,
    /// The addresses for which the far end stands: those of the peer, also after a disconnect.
    pub(crate) represents: Option<Way>,
    /// The first parts of a datagram with an address.
    pub(crate) corked: Option<Corked>,
    /// ICMP errors about its datagrams.
    pub(crate) faults: Faults,
    /// Its datagrams without calls.
    pub(crate) direct: Direct,
    /// The rings of its process, while they carry its datagrams in place of the kernel.
    pub(crate) records: Option<Box<Records>>,
}

impl Carrier {
    /// Opens a far end; [`Self::settle`] binds the program's socket.
    ///
    /// # Errors
    /// The kernel's: no descriptors left, no loopback.
    pub(crate) fn new(is_v6: bool) -> Result<Self, Errno> {
        let (far, at) = marked(is_v6)?;
        Ok(Self {
            far,
            at,
            near: at,
            watched: None,
            habits: None,
            represents: None,
            corked: None,
            faults: Faults::default(),
            direct: Direct::default(),
            records: None,
        })
    }

    /// Binds the program's socket, unless it is bound, and receives what it sends from now on.
    /// `shared` are its options (such as SO_REUSEPORT) with which the kernel might choose a port
    /// that other sockets have, too; they are cleared first.
    ///
    /// # Errors
    /// The kernel's: no loopback.
    pub(crate) fn settle(&mut self, near: &OwnedFd, shared: &[i32]) -> Result<(), Errno> {
        let name = || {
            let name = rustix::net::getsockname(near)?;
            SocketAddr::try_from(name).map_err(|_| Errno::INVAL)
        };
        let mut bound = name()?;
        // A socket that was settled before keeps its port: other programs' datagrams go there.
        if bound.port() == 0 {
            for option in shared {
                let off = 0i32.to_ne_bytes();
                socket_option::set(near.as_fd(), libc::SOL_SOCKET, *option, &off)?;
            }
            rustix::net::bind(near, &SocketAddr::new(self.at.ip(), 0))?;
            bound = name()?;
        }
        self.near = SocketAddr::new(self.at.ip(), bound.port());
        self.unpark()
    }

    /// Stops receiving from the program: the kernel refuses its writes.
    pub(crate) fn park(&self) -> Result<(), Errno> {
        rustix::net::connect(&self.far, &self.at)
    }

    /// Receives what the program writes.
    pub(crate) fn unpark(&self) -> Result<(), Errno> {
        rustix::net::connect(&self.far, &self.near)
    }

    /// True for the far end's address, as the source of a datagram: exactly that one, because any
    /// local process can bind the same port of another loopback address. `by` is plain, see
    /// [`crate::address::plain`].
    pub(crate) fn is_far(&self, by: SocketAddr) -> bool {
        // The far end's own is IPv4-mapped on a machine without IPv6.
        by == crate::address::plain(self.at)
    }

    /// The family of control messages for the program's socket; none for IPv4-mapped addresses on a
    /// machine without IPv6.
    fn marks_are_v6(&self) -> Option<bool> {
        match self.at.ip() {
            IpAddr::V4(_) => Some(false),
            IpAddr::V6(ip) => ip.to_ipv4_mapped().is_none().then_some(true),
        }
    }

    /// Sends datagrams to the program's socket, from the far end or from a sender. Those for which
    /// the socket's buffer has no room are lost. Returns false if no program has the socket any
    /// more.
    pub(crate) fn deliver(&self, by: Option<&OwnedFd>, payloads: &[&[u8]], marks: Marks) -> bool {
        // A socket with a peer is connected to the far end, and the kernel drops all other sources.
        let file = by.unwrap_or(&self.far);
        let control = self.marks_are_v6().map(|is_v6| marks.write(is_v6));
        let control = control.unwrap_or_default();
        let name = crate::address::write(self.near, self.near.is_ipv6());
        let mut rest = payloads;
        while !rest.is_empty() {
            let sent = message::send_all(file.as_fd(), &name, rest, &control);
            let error = match sent {
                Err(error) => Some(error),
                // The kernel reports a refusal before the call returns, or with the next call.
                Ok(_) => pending_error(file),
            };
            if error == Some(Errno::CONNREFUSED) {
                // Drains the error queue of a sender with IP_RECVERR, or its next call would fail.
                message::receive(file.as_fd(), &mut [], &mut [], libc::MSG_ERRQUEUE).ok();
                if !is_live(self.near) {
                    return false;
                }
            }
            // What fails, or finds no memory, is lost, which UDP allows.
            rest = rest.get(sent.unwrap_or(0).max(1)..).unwrap_or_default();
        }
        true
    }
}

/// True if a program still has the socket at `near`.
pub(crate) fn is_live(near: SocketAddr) -> bool {
    // No event reports the close of another process's socket; its port is free from then on.
    let probe = datagram_socket(near.is_ipv6());
    let Ok(probe) = probe else {
        return true;
    };
    rustix::net::bind(&probe, &near) == Err(Errno::ADDRINUSE)
}

/// Sockets that represent pairs of source and destination of datagrams.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    files: HashMap<Way, (Rc<OwnedFd>, SocketAddr)>,
    /// By the sender's exact address, plain: other processes can bind its port at another loopback
    /// address.
    ways: HashMap<(bool, SocketAddr), Way>,
    order: VecDeque<Way>,
    /// One socket per family that discards all datagrams.
    sinks: [Option<(OwnedFd, SocketAddr)>; 2],
}

/// A source, a destination, and the family of the sockets (IPv6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Way {
    pub(crate) from: SocketAddr,
    pub(crate) to: IpAddr,
    pub(crate) is_v6: bool,
}

impl Senders {
    /// The sender for a way, which the directory has from now on.
    ///
    /// # Errors
    /// The kernel's: no descriptors left.
    pub(crate) fn sender(
        &mut self,
        way: Way,
        directory: &mut Directory,
    ) -> Result<Rc<OwnedFd>, Errno> {
        if let Some((file, _)) = self.files.get(&way) {
            return Ok(Rc::clone(file));
        }
        if self.order.len() >= SENDERS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some((_, at)) = self.files.remove(&oldest)
        {
            self.ways.remove(&(oldest.is_v6, at));
            directory.clear_way(at);
        }
        let (file, at) = bound(way.is_v6)?;
        let at = crate::address::plain(at);
        // Unconnected sockets get errors of ICMP only with these options.
        let on = 1i32.to_ne_bytes();
        for (level, name) in ERRORS_HEARD {
            // One of the two fails: it belongs to the other family.
            socket_option::set(file.as_fd(), level, name, &on).ok();
        }
        let file = Rc::new(file);
        self.files.insert(way, (Rc::clone(&file), at));
        self.ways.insert((way.is_v6, at), way);
        directory.set_way(at, (way.from, way.to));
        self.order.push_back(way);
        Ok(file)
    }

    /// All senders: their plain addresses, and what they represent.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SocketAddr, Ends)> {
        let ways = self.ways.iter();
        ways.map(|((_, at), way)| (*at, (way.from, way.to)))
    }

    /// The pair that a sender represents, by the plain source address of a datagram from the
    /// kernel; none: another socket sent it.
    pub(crate) fn way(&self, is_v6: bool, by: SocketAddr) -> Option<Way> {
        self.ways.get(&(is_v6, by)).copied()
    }

    /// An address that discards datagrams, so that the kernel checks the arguments of a send.
    ///
    /// # Errors
    /// The kernel's: no descriptors left.
    pub(crate) fn sink(&mut self, is_v6: bool) -> Result<SocketAddr, Errno> {
        if let Some((_, at)) = &self.sinks[usize::from(is_v6)] {
            return Ok(*at);
        }
        let (file, at) = bound(is_v6)?;
        // The kernel rounds up to its least; what fits there is never read.
        let least = 1i32.to_ne_bytes();
        socket_option::set(file.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &least)?;
        self.sinks[usize::from(is_v6)] = Some((file, at));
        Ok(at)
    }

    /// Has the kernel check a datagram to an IPv4 address of a socket of IPv6, which itself reaches
    /// IPv6's loopback alone: the family of the destination decides which control messages count.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn check_v4(&mut self, payload: &[u8], control: &[u8]) -> Result<(), Errno> {
        let to = crate::address::write(self.sink(false)?, false);
        if let Some((file, _)) = &self.sinks[0] {
            message::send(file.as_fd(), &to, payload, control, libc::MSG_DONTWAIT)?;
        }
        Ok(())
    }
}

/// A UDP socket on the kernel's loopback that receives the TTL and the type of service of
/// datagrams, and its address.
///
/// # Errors
/// The kernel's: no descriptors left, no loopback.
pub(crate) fn marked(is_v6: bool) -> Result<(OwnedFd, SocketAddr), Errno> {
    let (file, at) = bound(is_v6)?;
    for (level, name) in MARKED[usize::from(is_v6)] {
        socket_option::set(file.as_fd(), level, name, &1i32.to_ne_bytes())?;
    }
    Ok((file, at))
}

/// TCP ports without a listener, one per family. They stay bound, so that none can appear.
#[derive(Debug, Default)]
pub(crate) struct VacantPorts([Option<(OwnedFd, SocketAddr)>; 2]);

impl VacantPorts {
    /// The port of a family.
    ///
    /// # Errors
    /// The kernel's: no descriptors left.
    pub(crate) fn of(&mut self, is_v6: bool) -> Result<SocketAddr, Errno> {
        let place = &mut self.0[usize::from(is_v6)];
        if let Some((_, at)) = place {
            return Ok(*at);
        }
        let (file, at) = bound_as(SocketType::STREAM, is_v6)?;
        *place = Some((file, at));
        Ok(at)
    }
}

/// Parts of a datagram that the program sends by several calls (MSG_MORE).
#[derive(Debug)]
pub(crate) struct Corked {
    pub(crate) source: Option<IpAddr>,
    pub(crate) peer: SocketAddr,
    pub(crate) marks: Marks,
    pub(crate) payload: Vec<u8>,
}

/// True if both sockets are in one network namespace, or the kernel (before Linux 5.14) cannot
/// tell.
pub(crate) fn share_network(one: &OwnedFd, other: &OwnedFd) -> bool {
    let of = |file: &OwnedFd| {
        socket_option::get(file.as_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 8).ok()
    };
    of(one) == of(other)
}

/// A UDP socket of this network namespace with the options of a socket of another one.
///
/// # Errors
/// The kernel's.
pub(crate) fn alike(other: &OwnedFd, is_v6: bool) -> Result<OwnedFd, Errno> {
    let file = datagram_socket(is_v6)?;
    for (level, name) in COPIED {
        if let Ok(value) = socket_option::get(other.as_fd(), level, name, 16) {
            // Fails for options of the other family.
            socket_option::set(file.as_fd(), level, name, &value).ok();
        }
    }
    Ok(file)
}

/// A nonblocking UDP socket.
///
/// # Errors
/// The kernel's.
pub(crate) fn datagram_socket(is_v6: bool) -> Result<OwnedFd, Errno> {
    socket(SocketType::DGRAM, is_v6)
}

fn socket(kind: SocketType, is_v6: bool) -> Result<OwnedFd, Errno> {
    let family = if is_v6 {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, kind, flags, None)
}

/// A UDP socket on the kernel's loopback, and its address.
pub(crate) fn bound(is_v6: bool) -> Result<(OwnedFd, SocketAddr), Errno> {
    let bound = bound_as(SocketType::DGRAM, is_v6);
    if let Err(error) = bound {
        crate::aside::say(format!(
            "UDP of programs needs the kernel's loopback (ip link set lo up): {error}"
        ));
    }
    bound
}

fn bound_as(kind: SocketType, is_v6: bool) -> Result<(OwnedFd, SocketAddr), Errno> {
    let file = socket(kind, is_v6)?;
    let homes: &[IpAddr] = if is_v6 { &V6_HOMES } else { &V4_HOMES };
    let mut made = Err(Errno::ADDRNOTAVAIL);
    for home in homes {
        made = rustix::net::bind(&file, &SocketAddr::new(*home, 0));
        if made.is_ok() {
            break;
        }
    }
    made?;
    let at = rustix::net::getsockname(&file)?;
    let at = SocketAddr::try_from(at).map_err(|_| Errno::INVAL)?;
    Ok((file, at))
}

fn pending_error(file: &OwnedFd) -> Option<Errno> {
    let value = socket_option::get(file.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR, 4).ok()?;
    let error = i32::from_ne_bytes(*value.first_chunk()?);
    (error != 0).then(|| Errno::from_raw_os_error(error))
}

const V4_HOMES: [IpAddr; 1] = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
/// The second is for machines without IPv6.
const V6_HOMES: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped()),
];
/// Options with which a socket receives the TTL and the type of service of a datagram.
const MARKED: [[(i32, i32); 2]; 2] = [
    [
        (libc::IPPROTO_IP, libc::IP_RECVTTL),
        (libc::IPPROTO_IP, libc::IP_RECVTOS),
    ],
    [
        (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    ],
];
/// Options that are copied to a socket in another network namespace.
const COPIED: [(i32, i32); 15] = [
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
];
/// Senders that are kept; a datagram of an evicted one that the program has not read is lost.
const SENDERS_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct::habits_of;
    use sidecore_sys::local_socket;
    use std::time::Duration;

    fn way(port: u16) -> Way {
        Way {
            from: SocketAddr::from(([10, 0, 0, 1], port)),
            to: IpAddr::from([10, 0, 0, 2]),
            is_v6: false,
        }
    }

    fn wait_for(file: &OwnedFd) {
        let patience = Duration::from_secs(60);
        local_socket::poll(&[file.as_fd()], &mut Vec::new(), patience).unwrap();
    }

    fn settled() -> (OwnedFd, Carrier) {
        let near = datagram_socket(false).unwrap();
        let mut carrier = Carrier::new(false).unwrap();
        carrier.settle(&near, &[]).unwrap();
        (near, carrier)
    }

    #[test]
    fn a_sender_stands_for_a_way_until_many_others_came() {
        let mut senders = Senders::default();
        let directory = &mut Directory::default();
        directory.open(senders.all()).unwrap();
        let at =
            |file: &OwnedFd| SocketAddr::try_from(rustix::net::getsockname(file).unwrap()).unwrap();
        let first = senders.sender(way(1), directory).unwrap();
        let again = senders.sender(way(1), directory).unwrap();
        assert!(Rc::ptr_eq(&first, &again));
        assert_eq!(senders.way(false, at(&first)), Some(way(1)));
        // By another family, and from another address, it belongs to another program.
        assert_eq!(senders.way(true, at(&first)), None);
        for other in [[192, 0, 2, 1], [127, 0, 0, 2]] {
            let elsewhere = SocketAddr::from((other, at(&first).port()));
            assert_eq!(senders.way(false, elsewhere), None);
        }
        for port in 2..=SENDERS_MAX as u16 + 1 {
            let sender = senders.sender(way(port), directory).unwrap();
            assert_eq!(senders.way(false, at(&sender)), Some(way(port)));
        }
        assert_eq!(senders.way(false, at(&first)), None);
        // The directory has the same.
        let view = directory.view().unwrap();
        assert_eq!(view.way(at(&first)), None);
        assert_eq!(senders.all().count(), SENDERS_MAX);
        assert!(senders.all().all(|(at, ends)| view.way(at) == Some(ends)));
    }

    #[test]
    fn a_far_end_is_known_by_its_address_on_the_loopback() {
        let (_near, carrier) = settled();
        assert!(carrier.is_far(carrier.at));
        for other in [[192, 0, 2, 1], [127, 0, 0, 2]] {
            assert!(!carrier.is_far(SocketAddr::from((other, carrier.at.port()))));
        }
        let other = carrier.at.port().wrapping_add(1);
        assert!(!carrier.is_far(SocketAddr::from(([127, 0, 0, 1], other))));
    }

    #[test]
    fn an_ipv4_mapped_far_end_is_known_by_its_datagrams() {
        // As on a machine without IPv6, whose AF_INET6 sockets are bound to this address.
        let home = V6_HOMES[1];
        let ends = || {
            let file = datagram_socket(true).unwrap();
            rustix::net::bind(&file, &SocketAddr::new(home, 0)).unwrap();
            let at = rustix::net::getsockname(&file).unwrap();
            (file, SocketAddr::try_from(at).unwrap())
        };
        let (mut carrier, near) = (Carrier::new(true).unwrap(), datagram_socket(true).unwrap());
        (carrier.far, carrier.at) = ends();
        carrier.settle(&near, &[]).unwrap();
        assert!(carrier.deliver(None, &[b"x".as_slice()], Marks::default()));
        wait_for(&near);
        let received = message::receive(near.as_fd(), &mut [0; 4], &mut [], 0).unwrap();
        let crate::address::Given::Inet(by) = crate::address::read(&received.name) else {
            panic!("{:?}", received.name);
        };
        assert!(carrier.is_far(by), "{by}");
    }

    #[test]
    fn a_vacant_port_refuses_and_stays_the_same() {
        let mut ports = VacantPorts::default();
        let at = ports.of(false).unwrap();
        assert_eq!(ports.of(false), Ok(at));
        let client = socket(SocketType::STREAM, false).unwrap();
        let connected = rustix::net::connect(&client, &at);
        let refused = match connected {
            // Nonblocking: the kernel answers at once on the loopback, or reports it later.
            Err(Errno::INPROGRESS) => {
                wait_for(&client);
                rustix::net::sockopt::socket_error(&client).unwrap()
            }
            other => other,
        };
        assert_eq!(refused, Err(Errno::CONNREFUSED));
    }

    #[test]
    fn the_options_of_a_socket_are_what_it_sends_with() {
        let near = datagram_socket(false).unwrap();
        let plain = habits_of(&near, false);
        assert_eq!(plain.segment_bytes, None);
        for (level, name, value) in [
            (libc::IPPROTO_IP, libc::IP_TTL, 9i32),
            (libc::IPPROTO_IP, libc::IP_TOS, 8),
        ] {
            socket_option::set(near.as_fd(), level, name, &value.to_ne_bytes()).unwrap();
        }
        let marks = Marks {
            hops: Some(9),
            class: Some(8),
        };
        assert_eq!(habits_of(&near, false).marks, marks);
        // A socket in the place of another has its options.
        let other = alike(&near, false).unwrap();
        assert_eq!(habits_of(&other, false).marks, marks);
        assert!(share_network(&near, &other));
    }

    #[test]
    fn a_datagram_arrives_with_its_marks_and_from_its_sender() {
        let (near, carrier) = settled();
        for (level, name) in MARKED[0] {
            socket_option::set(near.as_fd(), level, name, &1i32.to_ne_bytes()).unwrap();
        }
        let mut senders = Senders::default();
        let sender = senders.sender(way(1), &mut Directory::default()).unwrap();
        let marks = Marks {
            hops: Some(3),
            class: Some(8),
        };
        assert!(carrier.deliver(Some(&sender), &[b"hello".as_slice()], marks));
        wait_for(&near);
        let (mut payload, mut control) = ([0; 16], [0; 64]);
        let received = message::receive(near.as_fd(), &mut payload, &mut control, 0).unwrap();
        assert_eq!(payload[..received.bytes], *b"hello");
        assert_eq!(Marks::read(&control[..received.control_bytes]), marks);
        let crate::address::Given::Inet(by) = crate::address::read(&received.name) else {
            panic!("{:?}", received.name);
        };
        assert_eq!(senders.way(false, by), Some(way(1)));
    }

    #[test]
    fn a_parked_end_is_refused_and_a_closed_one_seen() {
        let (near, carrier) = settled();
        rustix::net::connect(&near, &carrier.at).unwrap();
        carrier.park().unwrap();
        assert_eq!(message::send(near.as_fd(), &[], b"x", &[], 0), Ok(1));
        wait_for(&near);
        let refused = message::receive(near.as_fd(), &mut [0; 4], &mut [], 0);
        assert_eq!(refused, Err(Errno::CONNREFUSED));
        carrier.unpark().unwrap();
        assert_eq!(message::send(near.as_fd(), &[], b"y", &[], 0), Ok(1));
        wait_for(&carrier.far);
        let mut payload = [0; 4];
        let received = message::receive(carrier.far.as_fd(), &mut payload, &mut [], 0);
        assert_eq!((received.unwrap().bytes, payload[0]), (1, b'y'));
        assert!(is_live(carrier.near));
        drop(near);
        assert!(!is_live(carrier.near));
    }
}
