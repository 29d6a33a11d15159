//! Network interfaces of the kernel: number, MTU, hardware address, up or down, addresses.
//!
//! Why here: a program that makes a TAP or binds to a device must set its other end up, and the
//! requests are untyped. Must stay true: the request has the kernel's layout, which the sizes below
//! check; names are at most 15 bytes. Any thread; acts in the network namespace of the calling
//! thread.
//! Source: netdevice(7), rtnetlink(7), `include/uapi/linux/if.h`.
//!
//! ```
//! use sidecore_sys::interface;
//!
//! // The loopback has no hardware, so its address is all zeros.
//! assert!(interface::index("lo")? > 0);
//! assert!(interface::mtu_bytes("lo")? >= 1280);
//! assert_eq!(interface::hardware_address("lo")?, [0; 6]);
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```
#![allow(unsafe_code)] // the kernel's C surface: ioctl(2) takes an untyped argument

use crate::SysError;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{BorrowedFd, OwnedFd};
use zerocopy::{Immutable, IntoBytes};

/// The most bytes of an interface's name.
pub const NAME_BYTES_MAX: usize = 15;

/// `struct ifreq`: a name, and the argument of the request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) name: [u8; NAME_BYTES_MAX + 1],
    pub(crate) value: [u8; 24],
}

/// `struct ifconf`.
#[repr(C)]
struct List {
    bytes: i32,
    entries: *mut u8,
}

/// `RTM_NEWADDR` of an IPv6 address: `struct nlmsghdr`, `struct ifaddrmsg`, one attribute.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct NewAddress6 {
    bytes: u32,
    kind: u16,
    flags: u16,
    number: u32,
    port: u32,
    family: u8,
    prefix_bits: u8,
    address_flags: u8,
    scope: u8,
    index: u32,
    attribute_bytes: u16,
    attribute: u16,
    address: [u8; 16],
}

impl NewAddress6 {
    fn make(&self) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC;
        let asker = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&asker, self.as_bytes(), SendFlags::empty(), &kernel)?;
        // `struct nlmsgerr` after its header: the negative error, or zero.
        let mut reply = [0u8; 512];
        let (filled, _) = recv(&asker, &mut reply[..], RecvFlags::empty())?;
        let error = reply[..filled]
            .get(16..20)
            .and_then(|it| it.try_into().ok());
        match -error.map_or(-i32::MAX, i32::from_ne_bytes) {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error)),
        }
    }
}

/// Bytes of a `struct ifreq`.
pub const REQUEST_BYTES: usize = 40;
const _: () = assert!(size_of::<Request>() == REQUEST_BYTES && size_of::<NewAddress6>() == 44);

impl Request {
    /// # Errors
    /// [`SysError::Size`] for a name that no interface can have.
    pub(crate) fn new(name: &str) -> Result<Self, SysError> {
        // IFNAMSIZ less its zero byte; the kernel would cut a longer name off.
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(['\0', '/']) {
            return Err(SysError::Size {
                what: "the name of a network interface",
                value: name.len(),
                rule: "1 to 15 bytes without a slash",
            });
        }
        let mut request = Self {
            name: [0; NAME_BYTES_MAX + 1],
            value: [0; 24],
        };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }

    /// The name that the kernel filled in.
    pub(crate) fn name(&self) -> String {
        let used = self.name.iter().position(|&byte| byte == 0);
        String::from_utf8_lossy(&self.name[..used.unwrap_or(0)]).into_owned()
    }

    fn with_i32(mut self, value: i32) -> Self {
        self.value[..4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn with_ipv4(mut self, address: Ipv4Addr) -> Self {
        // `struct sockaddr_in`: family, port, address.
        self.value[..2].copy_from_slice(&AF_INET.to_ne_bytes());
        self.value[4..8].copy_from_slice(&address.octets());
        self
    }
}

/// The number of an interface.
///
/// # Errors
/// [`SysError::Call`]: `ENODEV` where there is none of that name.
pub fn index(name: &str) -> Result<u32, SysError> {
    Request::new(name)?;
    rustix::net::netdevice::name_to_index(socket(AddressFamily::INET)?, name)
        .map_err(refused("SIOCGIFINDEX"))
}

/// The largest IP packet that it sends as one frame, in bytes.
///
/// # Errors
/// [`SysError::Call`].
pub fn mtu_bytes(name: &str) -> Result<usize, SysError> {
    get_size::<SIOCGIFMTU>(name, "SIOCGIFMTU")
}

/// Sets [`mtu_bytes`].
///
/// # Errors
/// [`SysError::Call`]: `EPERM` without CAP_NET_ADMIN, `EINVAL` for a size that the device refuses.
pub fn set_mtu(name: &str, bytes: usize) -> Result<(), SysError> {
    set_size::<SIOCSIFMTU>(name, bytes, "SIOCSIFMTU")
}

/// Frames that wait to be sent, at most (`txqueuelen`).
///
/// # Errors
/// [`SysError::Call`].
pub fn queue_frames(name: &str) -> Result<usize, SysError> {
    get_size::<SIOCGIFTXQLEN>(name, "SIOCGIFTXQLEN")
}

/// Sets [`queue_frames`].
///
/// # Errors
/// [`SysError::Call`]: `EPERM` without CAP_NET_ADMIN.
pub fn set_queue_frames(name: &str, frames: usize) -> Result<(), SysError> {
    set_size::<SIOCSIFTXQLEN>(name, frames, "SIOCSIFTXQLEN")
}

/// The hardware address.
///
/// # Errors
/// [`SysError::Call`].
pub fn hardware_address(name: &str) -> Result<[u8; 6], SysError> {
    let request = get::<SIOCGIFHWADDR>(name, "SIOCGIFHWADDR")?;
    let [_, _, a, b, c, d, e, f, ..] = request.value;
    Ok([a, b, c, d, e, f])
}

/// Sets the interface up; all else stays the same.
///
/// # Errors
/// [`SysError::Call`]: `EPERM` without CAP_NET_ADMIN.
pub fn set_up(name: &str) -> Result<(), SysError> {
    let mut request = get::<SIOCGIFFLAGS>(name, "SIOCGIFFLAGS")?;
    // The other flags as they are: the call replaces all of them.
    let flags = u16::from_ne_bytes([request.value[0], request.value[1]]) | IFF_UP;
    request.value[..2].copy_from_slice(&flags.to_ne_bytes());
    set::<SIOCSIFFLAGS>(request, "SIOCSIFFLAGS")
}

/// True if the interface is up and its link can carry frames (`IFF_RUNNING`).
///
/// # Errors
/// [`SysError::Call`].
pub fn is_running(name: &str) -> Result<bool, SysError> {
    let request = get::<SIOCGIFFLAGS>(name, "SIOCGIFFLAGS")?;
    let flags = u16::from_ne_bytes([request.value[0], request.value[1]]);
    let both = IFF_UP | IFF_RUNNING;
    Ok(flags & both == both)
}

/// Gives the interface an address and the network around it. One that it has already is no error.
///
/// # Errors
/// [`SysError::Call`]: `EPERM` without CAP_NET_ADMIN; [`SysError::Size`] for a prefix that is
/// longer than the address.
pub fn add_address(name: &str, address: IpAddr, prefix_bits: u8) -> Result<(), SysError> {
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    if prefix_bits > bits_max {
        return Err(SysError::Size {
            what: "an address's prefix",
            value: usize::from(prefix_bits),
            rule: "at most 32 bits for IPv4, 128 for IPv6",
        });
    }
    let request = Request::new(name)?;
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(prefix_bits))
                .unwrap_or(0);
            // The address first: setting it resets the mask to that of its class.
            set::<SIOCSIFADDR>(request.with_ipv4(address), "SIOCSIFADDR")?;
            set::<SIOCSIFNETMASK>(
                request.with_ipv4(Ipv4Addr::from_bits(mask)),
                "SIOCSIFNETMASK",
            )
        }
        IpAddr::V6(address) => {
            let request = NewAddress6 {
                bytes: size_of::<NewAddress6>() as u32,
                kind: RTM_NEWADDR,
                flags: NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE,
                number: 1,
                port: 0,
                family: AF_INET6,
                prefix_bits,
                // Its other end is a stack that has no other addresses than its own: without a
                // second or two of duplicate address detection it can be reached at once.
                address_flags: IFA_F_NODAD,
                scope: RT_SCOPE_UNIVERSE,
                index: index(name)?,
                attribute_bytes: 20,
                attribute: IFA_LOCAL,
                address: address.octets(),
            };
            match request.make() {
                // It has the address already, which is what was asked for.
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(error) => Err(refused("RTM_NEWADDR")(error)),
            }
        }
    }
}

/// The interfaces with an IPv4 address that the network of `socket` has: a `struct ifreq` of
/// [`REQUEST_BYTES`] for each address, at most 4,096 of them.
///
/// # Errors
/// The kernel's: `socket` is none.
pub fn configured(socket: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut entries = vec![0u8; 64 * REQUEST_BYTES];
    loop {
        let mut list = List {
            bytes: i32::try_from(entries.len()).unwrap_or(i32::MAX),
            entries: entries.as_mut_ptr(),
        };
        // SAFETY: SIOCGIFCONF reads one `struct ifconf`, which `List` is, and writes at most as
        // many bytes as it says to the memory that it names, which lives for the call.
        unsafe { ioctl(socket, Updater::<SIOCGIFCONF, List>::new(&mut list)) }?;
        let filled = usize::try_from(list.bytes).unwrap_or(0);
        // A full list may lack entries.
        if filled < entries.len() || entries.len() >= 4096 * REQUEST_BYTES {
            entries.truncate(filled);
            return Ok(entries);
        }
        entries.resize(2 * entries.len(), 0);
    }
}

fn get<const OPCODE: Opcode>(name: &str, call: &'static str) -> Result<Request, SysError> {
    let mut request = Request::new(name)?;
    // SAFETY: these requests read and write one `struct ifreq`, which `Request` is, byte for byte;
    // none of those used here puts a pointer in it.
    unsafe {
        ioctl(
            socket(AddressFamily::INET)?,
            Updater::<OPCODE, Request>::new(&mut request),
        )
    }
    .map_err(refused(call))?;
    Ok(request)
}

fn set<const OPCODE: Opcode>(request: Request, call: &'static str) -> Result<(), SysError> {
    let socket = socket(AddressFamily::INET)?;
    // SAFETY: these requests read one `struct ifreq`, which `Request` is, byte for byte.
    unsafe { ioctl(socket, Setter::<OPCODE, Request>::new(request)) }.map_err(refused(call))
}

fn get_size<const OPCODE: Opcode>(name: &str, call: &'static str) -> Result<usize, SysError> {
    let [a, b, c, d, ..] = get::<OPCODE>(name, call)?.value;
    Ok(usize::try_from(i32::from_ne_bytes([a, b, c, d])).unwrap_or(0))
}

fn set_size<const OPCODE: Opcode>(
    name: &str,
    size: usize,
    call: &'static str,
) -> Result<(), SysError> {
    let value = i32::try_from(size).unwrap_or(i32::MAX);
    set::<OPCODE>(Request::new(name)?.with_i32(value), call)
}

pub(crate) fn socket(family: AddressFamily) -> Result<OwnedFd, SysError> {
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(refused("socket"))
}

pub(crate) fn refused(call: &'static str) -> impl Fn(Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}

const AF_INET: u16 = 2;
const AF_INET6: u8 = 10;
const IFA_F_NODAD: u8 = 2;
const IFA_LOCAL: u16 = 2;
const IFF_RUNNING: u16 = 0x40;
const IFF_UP: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_REQUEST: u16 = 1;
const RTM_NEWADDR: u16 = 20;
const RT_SCOPE_UNIVERSE: u8 = 0;
const SIOCGIFCONF: Opcode = 0x8912;
const SIOCGIFFLAGS: Opcode = 0x8913;
const SIOCSIFFLAGS: Opcode = 0x8914;
const SIOCSIFADDR: Opcode = 0x8916;
const SIOCSIFNETMASK: Opcode = 0x891c;
const SIOCGIFMTU: Opcode = 0x8921;
const SIOCSIFMTU: Opcode = 0x8922;
const SIOCGIFHWADDR: Opcode = 0x8927;
const SIOCGIFTXQLEN: Opcode = 0x8942;
const SIOCSIFTXQLEN: Opcode = 0x8943;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_among_those_that_are_configured() {
        use std::os::fd::AsFd as _;
        let asker = socket(AddressFamily::INET).unwrap();
        let list = configured(asker.as_fd()).unwrap();
        assert!(list.len().is_multiple_of(REQUEST_BYTES));
        let mut entries = list.chunks_exact(REQUEST_BYTES);
        assert!(entries.any(|entry| entry.starts_with(b"lo\0") && entry[20..24] == [127, 0, 0, 1]));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(configured(file.as_fd()), Err(Errno::NOTTY));
    }

    #[test]
    fn the_loopback_is_found_and_nonsense_is_not() {
        assert!(index("lo").unwrap() > 0);
        assert!(mtu_bytes("lo").unwrap() >= 1280);
        assert_eq!(hardware_address("lo").unwrap(), [0; 6]);
        assert!(index("no-such-one").is_err());
        assert!(is_running("no-such-one").is_err());
        assert!(matches!(index("").unwrap_err(), SysError::Size { .. }));
        assert!(matches!(
            index("sixteen-bytes-xx").unwrap_err(),
            SysError::Size { .. }
        ));
    }
}
