//! The stack's link and addresses, for programs that list interfaces.
//!
//! getifaddrs(3) and servers that bind to each address ask the kernel by a netlink socket
//! (rtnetlink(7)). The request goes to the kernel; one message of ours precedes its answer, with
//! the stack's link or addresses. The ioctl(2) requests about a link (netdevice(7)) are answered
//! for that link alone. Must stay true: the kernel's own links and addresses are as without a
//! supervisor; an answer that no program reads is dropped once there are too many.

use super::header::{CONTROL_BYTES_AT, FLAGS_AT, Header, NAME_BYTES_AT};
use super::*;
use crate::supervisor::{PROCEED, ZERO};
use rustix::net::netlink::SocketAddrNetlink;
use sidecore_bare::width::{ToU64 as _, ToUsize as _};
use sidecore_sys::interface;
use std::net::Ipv4Addr;

/// Answers that precede the kernel's, by the netlink socket's inode.
#[derive(Debug, Default)]
pub(super) struct Interfaces {
    answers: HashMap<u64, Vec<u8>>,
}

/// `struct nlmsghdr` of a request, and the family that it asks for.
struct Question {
    kind: u16,
    sequence: u32,
    family: u8,
    /// The socket's port, which answers repeat.
    port: u32,
}

impl Interfaces {
    /// Prepares the answer to a request of `bytes` bytes at `at`, which the kernel gets, too.
    pub(super) fn ask(&mut self, table: &Table, caller: &mut Caller<'_>, at: u64, bytes: usize) {
        if !table.scope.has_stack() || bytes < QUESTION_BYTES {
            return;
        }
        // The kernel reports what is wrong with the request.
        let Some((inode, question)) = read_question(caller, at) else {
            return;
        };
        let message = match question.kind {
            RTM_GETLINK => link_message(&question),
            _ => address_messages(table, &question),
        };
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.clear();
        }
        if !message.is_empty() {
            self.answers.insert(inode, message);
        }
    }

    /// True if no answer waits, the usual case.
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Answers recvmsg(2) on a netlink socket; none: the kernel does.
    pub(super) fn receive_message(
        &mut self,
        caller: &mut Caller<'_>,
    ) -> Result<Option<Reply>, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(2));
        let Some(message) = self.take(caller, flags) else {
            return Ok(None);
        };
        let header = Header::read(caller, at)?;
        let mut rest = message.as_slice();
        for (piece, room) in header.pieces {
            let (now, later) = rest.split_at(room.min(rest.len()));
            caller.write(piece, now)?;
            rest = later;
        }
        if header.name != 0 {
            let room = header.name_bytes.to_usize().min(KERNEL.len());
            caller.write(header.name, &KERNEL[..room])?;
            let bytes = length(KERNEL.len());
            caller.write(at + NAME_BYTES_AT, &bytes.to_ne_bytes())?;
        }
        caller.write(at + CONTROL_BYTES_AT, &0_usize.to_u64().to_ne_bytes())?;
        let truncated = if rest.is_empty() { 0 } else { libc::MSG_TRUNC };
        caller.write(at + FLAGS_AT, &truncated.to_ne_bytes())?;
        Ok(Some(taken(&message, rest.len(), flags)))
    }

    /// Answers recvfrom(2) on a netlink socket; none: the kernel does.
    pub(super) fn receive_from(&mut self, caller: &mut Caller<'_>) -> Result<Option<Reply>, Errno> {
        let [_, target, room, _, name, name_length] = caller.call.arguments;
        let flags = caller.int(3);
        let Some(message) = self.take(caller, flags) else {
            return Ok(None);
        };
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let (now, rest) = message.split_at(room.min(message.len()));
        caller.write(target, now)?;
        if name != 0 {
            caller.write_sized(name, name_length, &KERNEL)?;
        }
        Ok(Some(taken(&message, rest.len(), flags)))
    }

    fn take(&mut self, caller: &Caller<'_>, flags: i32) -> Option<Vec<u8>> {
        let inode = caller.inode(caller.int(0))?;
        match flags & libc::MSG_PEEK {
            0 => self.answers.remove(&inode),
            _ => self.answers.get(&inode).cloned(),
        }
    }
}

/// The result of a call that had no room for `left` bytes of a message.
fn taken(message: &[u8], left: usize, flags: i32) -> Reply {
    let whole = flags & libc::MSG_TRUNC != 0;
    Reply::bytes(message.len() - if whole { 0 } else { left })
}

/// A request for all links or addresses, with the socket's inode.
fn read_question(caller: &mut Caller<'_>, at: u64) -> Option<(u64, Question)> {
    let bytes = caller.read(at, QUESTION_BYTES).ok()?;
    let half = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (kind, flags) = (half(4)?, half(6)?);
    if !matches!(kind, RTM_GETLINK | RTM_GETADDR) || flags & NLM_F_DUMP != NLM_F_DUMP {
        return None;
    }
    let near = caller.fetch(caller.int(0)).ok()?;
    let number = |name| {
        let value = socket_option::get(near.as_fd(), libc::SOL_SOCKET, name, 4).ok()?;
        Some(i32::from_ne_bytes(*value.first_chunk()?))
    };
    let is_route = number(libc::SO_PROTOCOL) == Some(libc::NETLINK_ROUTE);
    if number(libc::SO_DOMAIN) != Some(libc::AF_NETLINK) || !is_route {
        return None;
    }
    let name = rustix::net::getsockname(&near).ok()?;
    // Unbound, it gets the process's number by this request.
    let port = match SocketAddrNetlink::try_from(name).ok()?.pid() {
        0 => caller.leader()?.cast_unsigned(),
        port => port,
    };
    let question = Question {
        kind,
        sequence: u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
        family: *bytes.get(16)?,
        port,
    };
    Some((inode_of(&near).ok()?, question))
}

/// `RTM_NEWLINK` of the stack's link.
fn link_message(question: &Question) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(ARPHRD_ETHER.to_ne_bytes());
    body.extend(INDEX.to_ne_bytes());
    body.extend(FLAGS.to_ne_bytes());
    body.extend(u32::MAX.to_ne_bytes());
    attribute(&mut body, IFLA_ADDRESS, &[0; 6]);
    attribute(&mut body, IFLA_BROADCAST, &[0xff; 6]);
    attribute(&mut body, IFLA_IFNAME, &NAME);
    attribute(&mut body, IFLA_MTU, &MTU_BYTES.to_ne_bytes());
    message(question, RTM_NEWLINK, &body)
}

/// `RTM_NEWADDR` for each of the stack's addresses of the family.
fn address_messages(table: &Table, question: &Question) -> Vec<u8> {
    let mut all = Vec::new();
    for ip in &table.scope.addresses {
        let family = match ip {
            IpAddr::V4(_) => FAMILY_V4,
            IpAddr::V6(_) => FAMILY_V6,
        };
        if question.family != 0 && question.family != family {
            continue;
        }
        let octets = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let is_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let scope = if is_link { SCOPE_LINK } else { 0 };
        let mut body = vec![family, prefix_bits(table, *ip), IFA_F_PERMANENT, scope];
        body.extend(INDEX.to_ne_bytes());
        attribute(&mut body, IFA_ADDRESS, &octets);
        if ip.is_ipv4() {
            attribute(&mut body, IFA_LOCAL, &octets);
            if let IpAddr::V4(ip) = ip {
                attribute(&mut body, IFA_BROADCAST, &broadcast(table, *ip).octets());
            }
            attribute(&mut body, IFA_LABEL, &NAME);
        }
        all.extend(message(question, RTM_NEWADDR, &body));
    }
    all
}

/// Prefix length of an address of the stack.
fn prefix_bits(table: &Table, ip: IpAddr) -> u8 {
    let mut networks = table.scope.networks.iter();
    let whole = if ip.is_ipv4() { 32 } else { 128 };
    networks
        .find(|(own, _)| *own == ip)
        .map_or(whole, |(_, bits)| *bits)
}

fn message(question: &Question, kind: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(length(HEADER_BYTES + body.len()).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(NLM_F_MULTI.to_ne_bytes());
    message.extend(question.sequence.to_ne_bytes());
    message.extend(question.port.to_ne_bytes());
    message.extend(body);
    message
}

/// Adds a `struct rtattr`, padded to four bytes.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let bytes = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    body.extend(bytes.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Answers the ioctl(2) requests about the stack's link; those about others are the kernel's.
pub(in super::super) fn describe(table: &Table, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
    let (request, at) = (caller.int(1).cast_unsigned(), caller.call.arguments[2]);
    if !table.scope.has_stack() {
        return Ok(PROCEED);
    }
    if request == SIOCGIFCONF {
        return list(table, caller, at);
    }
    // `struct ifreq`: the name, and what is asked for or answered.
    let given = caller.read(at, 20)?;
    let is_named = given.starts_with(&NAME);
    if request == SIOCGIFNAME {
        if given.ends_with(&INDEX.to_ne_bytes()) {
            caller.write(at, &NAME)?;
            return Ok(ZERO);
        }
        return Ok(PROCEED);
    }
    if !is_named {
        return Ok(PROCEED);
    }
    let own = v4_addresses(table).next();
    let own = || own.ok_or(Errno::ADDRNOTAVAIL);
    let v4 = |ip: Ipv4Addr| address::write(SocketAddr::new(ip.into(), 0), false);
    let answer = match request {
        SIOCGIFINDEX => INDEX.to_ne_bytes().to_vec(),
        SIOCGIFMTU => MTU_BYTES.to_ne_bytes().to_vec(),
        // `ifr_flags` is a short.
        SIOCGIFFLAGS => FLAGS.to_ne_bytes()[..2].to_vec(),
        SIOCGIFADDR | SIOCGIFDSTADDR => v4(own()?),
        SIOCGIFNETMASK => v4(mask(table, own()?)),
        SIOCGIFBRDADDR => v4(broadcast(table, own()?)),
        // `struct sockaddr` of the link, whose address is zeros in dumps, too.
        SIOCGIFHWADDR => [&ARPHRD_ETHER.to_ne_bytes()[..], &[0; 14]].concat(),
        SIOCGIFMETRIC => 0i32.to_ne_bytes().to_vec(),
        _ => return Ok(PROCEED),
    };
    caller.write(at + REQUEST_AT, &answer)?;
    Ok(ZERO)
}

/// Answers SIOCGIFCONF: the kernel's interfaces, then the stack's link for each of its addresses.
fn list(table: &Table, caller: &mut Caller<'_>, at: u64) -> Result<Reply, Errno> {
    // `struct ifconf`: the bytes of room, and where they are; none: the bytes are asked for.
    let given = caller.read(at, 16)?;
    let (room, target) = given.split_at(8);
    let room = room.first_chunk().map_or(0, |it| i32::from_ne_bytes(*it));
    let target = target.first_chunk().map_or(0, |it| u64::from_ne_bytes(*it));
    let mut entries = interface::configured(caller.fetch(caller.int(0))?.as_fd())?;
    for ip in v4_addresses(table) {
        let begin = entries.len();
        entries.extend(NAME);
        entries.resize(begin + REQUEST_AT.to_usize(), 0);
        entries.extend(address::write(SocketAddr::new(ip.into(), 0), false));
        entries.resize(begin + interface::REQUEST_BYTES, 0);
    }
    if target != 0 {
        // Whole entries only.
        let room = usize::try_from(room).unwrap_or(0);
        entries.truncate(room - room % interface::REQUEST_BYTES);
        caller.write(target, &entries)?;
    }
    caller.write(at, &length(entries.len()).to_ne_bytes())?;
    Ok(ZERO)
}

fn v4_addresses(table: &Table) -> impl Iterator<Item = Ipv4Addr> {
    table.scope.addresses.iter().filter_map(|ip| match ip {
        IpAddr::V4(ip) => Some(*ip),
        IpAddr::V6(_) => None,
    })
}

fn mask(table: &Table, ip: Ipv4Addr) -> Ipv4Addr {
    let host_bits = 32 - u32::from(prefix_bits(table, ip.into()).min(32));
    Ipv4Addr::from_bits(u32::MAX.checked_shl(host_bits).unwrap_or(0))
}

fn broadcast(table: &Table, ip: Ipv4Addr) -> Ipv4Addr {
    ip | !mask(table, ip)
}

/// The link's name and number, which no link of the kernel has.
const NAME: [u8; 7] = *b"stack0\0";
const INDEX: u32 = 0x5349_4445;
const MTU_BYTES: u32 = 1500;
/// Up, broadcast, running, multicast, lower layer up (`include/uapi/linux/if.h`).
const FLAGS: u32 = 0x1_1043;
/// `struct sockaddr_nl` of the kernel.
const KERNEL: [u8; 12] = [libc::AF_NETLINK as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// `struct nlmsghdr`, and with the family that follows.
const HEADER_BYTES: usize = 16;
const QUESTION_BYTES: usize = HEADER_BYTES + 1;
const FAMILY_V4: u8 = libc::AF_INET as u8;
const FAMILY_V6: u8 = libc::AF_INET6 as u8;
/// `include/uapi/linux/netlink.h` and `rtnetlink.h`.
const NLM_F_MULTI: u16 = 2;
const NLM_F_DUMP: u16 = 0x300;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const ARPHRD_ETHER: u16 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_BROADCAST: u16 = 2;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_F_PERMANENT: u8 = 0x80;
const SCOPE_LINK: u8 = 253;
/// `include/uapi/linux/sockios.h`, and the offset of the answer in `struct ifreq`.
pub(in super::super) const SIOCGIFNAME: u32 = 0x8910;
pub(in super::super) const SIOCGIFCONF: u32 = 0x8912;
pub(in super::super) const SIOCGIFFLAGS: u32 = 0x8913;
pub(in super::super) const SIOCGIFADDR: u32 = 0x8915;
pub(in super::super) const SIOCGIFDSTADDR: u32 = 0x8917;
pub(in super::super) const SIOCGIFBRDADDR: u32 = 0x8919;
pub(in super::super) const SIOCGIFNETMASK: u32 = 0x891b;
pub(in super::super) const SIOCGIFMETRIC: u32 = 0x891d;
pub(in super::super) const SIOCGIFMTU: u32 = 0x8921;
pub(in super::super) const SIOCGIFHWADDR: u32 = 0x8927;
pub(in super::super) const SIOCGIFINDEX: u32 = 0x8933;
const REQUEST_AT: u64 = 16;
/// Answers that wait for their programs.
const ANSWERS_MAX: usize = 64;
