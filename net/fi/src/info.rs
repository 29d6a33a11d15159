//! `fi_getinfo`: the only kind of endpoint, for each address of this side.
//!
//! Must stay true: everything that a `fi_info` points to is allocated by `calloc` and `strdup`,
//! because `fi_freeinfo` frees it; an answer matches the hints.

use crate::abi::*;
use crate::place::{CM_BYTES, DEPTH_MAX, INJECT_BYTES, stack_addresses, stack_socket};
use sidecore_rdma::ConnectionId;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The provider's name.
pub(crate) const NAME: &CStr = c"sidecore";
const CAPS: u64 = FI_MSG
    | FI_RMA
    | FI_ATOMIC
    | FI_SEND
    | FI_RECV
    | FI_READ
    | FI_WRITE
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM;
const RMA_CAPS: u64 = FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const TX_CAPS: u64 = FI_MSG | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE;
const RX_CAPS: u64 = FI_MSG | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE;
const TX_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_FENCE;
const MR_MODE: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// Default number of operations each way.
const SIZE: usize = 256;
/// Most pieces of an operation.
pub(crate) const PIECES: usize = 4;
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// Addresses listed at most.
const ADDRESSES_MAX: usize = 16;

/// A peer's request for a connection, as `fi_info` carries it.
#[repr(C)]
pub(crate) struct Request {
    fid: fid,
    connection: ConnectionId,
    pub(crate) pep: usize,
}

/// Implements `fi_getinfo`.
///
/// # Safety
/// The pointers are those of `fi_getinfo`: NULL or valid.
pub(crate) unsafe extern "C" fn getinfo(
    api_version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    // SAFETY: the caller's promise, here and for what the hints point to.
    let (node, service, hints) = unsafe { (text(node), text(service), hints.as_ref()) };
    if hints.is_some_and(|hints| !fits(hints, api_version)) {
        return -libc::ENODATA;
    }
    let Ok((sources, destination)) = addresses(node, service, flags, hints) else {
        return -libc::ENODATA;
    };
    let mut first = std::ptr::null_mut();
    let mut last: *mut *mut fi_info = &mut first;
    // SAFETY: NULL or valid, and its name NULL or a string, by the caller's promise.
    let asked = unsafe {
        let fabric = hints.and_then(|hints| hints.fabric_attr.as_ref());
        fabric.and_then(|fabric| text(fabric.name))
    };
    for source in sources {
        let name = network(source.ip());
        if asked.is_some_and(|asked| asked != name) {
            continue;
        }
        let info = make(
            Some(source),
            destination,
            hints,
            registration(hints, api_version),
        );
        // SAFETY: `last` is `first`, or the field of an info that was made here.
        unsafe {
            last.write(info);
            last = &mut (*info).next;
        }
    }
    if first.is_null() {
        return -libc::ENODATA;
    }
    // SAFETY: a place for a pointer, by the caller's promise.
    unsafe { out.write(first) };
    0
}

/// A string, if there is one.
///
/// # Safety
/// NULL or a string.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// True if the offer matches the hints.
fn fits(hints: &fi_info, api_version: u32) -> bool {
    // SAFETY: each is NULL or valid, as `fi_getinfo` demands of its caller.
    let (ep, domain, tx, rx) = unsafe {
        (
            hints.ep_attr.as_ref(),
            hints.domain_attr.as_ref(),
            hints.tx_attr.as_ref(),
            hints.rx_attr.as_ref(),
        )
    };
    let formats = [
        FI_FORMAT_UNSPEC,
        FI_SOCKADDR,
        FI_SOCKADDR_IN,
        FI_SOCKADDR_IN6,
    ];
    if hints.caps & !CAPS != 0 || !formats.contains(&hints.addr_format) {
        return false;
    }
    let named = |name: *mut c_char, own: &CStr| {
        // SAFETY: NULL or a string, as above.
        name.is_null() || unsafe { CStr::from_ptr(name) } == own
    };
    if let Some(ep) = ep {
        let is_ours = matches!(ep.type_, FI_EP_UNSPEC | FI_EP_MSG)
            && (ep.protocol == 0 || ep.protocol == FI_PROTO_IWARP)
            && ep.max_msg_size <= MESSAGE_BYTES_MAX
            && ep.tx_ctx_cnt <= 1
            && (ep.rx_ctx_cnt <= 1 || ep.rx_ctx_cnt == FI_SHARED_CONTEXT)
            && ep.max_order_war_size == 0
            && ep.auth_key_size == 0;
        if !is_ours {
            return false;
        }
    }
    if let Some(tx) = tx {
        let is_ours = tx.caps & !CAPS == 0
            && tx.op_flags & !TX_FLAGS == 0
            && tx.msg_order & !ORDERS == 0
            && tx.comp_order & !FI_ORDER_STRICT == 0
            && tx.inject_size <= INJECT_BYTES
            && tx.size <= DEPTH_MAX
            && tx.iov_limit <= PIECES
            && tx.rma_iov_limit <= 1;
        if !is_ours {
            return false;
        }
    }
    if let Some(rx) = rx {
        let is_shared = ep.is_some_and(|ep| ep.rx_ctx_cnt == FI_SHARED_CONTEXT);
        let receives_max = if is_shared {
            sidecore_rdma::RECEIVES_MAX
        } else {
            DEPTH_MAX
        };
        let is_ours = rx.caps & !CAPS == 0
            && rx.op_flags & !FI_COMPLETION == 0
            && rx.msg_order & !ORDERS == 0
            && rx.size <= receives_max
            && rx.iov_limit <= PIECES;
        if !is_ours {
            return false;
        }
    }
    if let Some(domain) = domain {
        let uses_rma = hints.caps == 0 || hints.caps & (FI_RMA | FI_ATOMIC) != 0;
        let mr = domain.mr_mode;
        let is_basic = mr & FI_MR_BASIC != 0;
        let is_old = api_version < version(1, 5) && mr == 0;
        let maps = is_basic || is_old || mr & MR_MODE == MR_MODE || (mr == 0 && hints.caps == 0);
        if (uses_rma && !maps)
            || !named(domain.name, domain_name())
            || domain.data_progress == FI_PROGRESS_AUTO
            || domain.control_progress == FI_PROGRESS_AUTO
            || domain.cq_data_size > data_bytes(hints.mode)
            || domain.mr_key_size > 8
            || domain.caps & !(FI_LOCAL_COMM | FI_REMOTE_COMM) != 0
        {
            return false;
        }
    }
    true
}

/// Mode of memory registration, among those in the hints.
fn registration(hints: Option<&fi_info>, api_version: u32) -> c_int {
    let Some(hints) = hints else {
        return MR_MODE;
    };
    // SAFETY: NULL or valid, as `fi_getinfo` demands of its caller.
    let mr = unsafe { hints.domain_attr.as_ref() }.map_or(0, |domain| domain.mr_mode);
    let is_old = api_version < version(1, 5) && mr == 0;
    if mr & FI_MR_BASIC != 0 || is_old {
        FI_MR_BASIC
    } else if mr == 0 && hints.caps & RMA_CAPS == 0 {
        0
    } else {
        MR_MODE
    }
}

/// Size of immediate data. A write's data takes a receive of the other side, which has to support
/// that.
fn data_bytes(mode: u64) -> usize {
    if mode & FI_RX_CQ_DATA != 0 { 8 } else { 0 }
}

fn domain_name() -> &'static CStr {
    if stack_socket().is_some() {
        c"stack"
    } else {
        c"kernel"
    }
}

type Addresses = (Vec<SocketAddr>, Option<SocketAddr>);

/// Addresses of this side, the best first, and of the other side.
fn addresses(
    node: Option<&str>,
    service: Option<&str>,
    flags: u64,
    hints: Option<&fi_info>,
) -> Result<Addresses, c_int> {
    let port = match service {
        None => 0,
        Some(service) => match service.parse() {
            Ok(port) => port,
            Err(_) => return Err(-libc::ENODATA),
        },
    };
    let named = match node {
        None => None,
        Some(node) if flags & FI_NUMERICHOST != 0 => {
            let address: IpAddr = node.parse().map_err(|_| -libc::ENODATA)?;
            Some(SocketAddr::new(address, port))
        }
        Some(node) => {
            let found: Vec<SocketAddr> = (node, port)
                .to_socket_addrs()
                .map_err(|_| -libc::ENODATA)?
                .collect();
            let first = found.iter().find(|address| address.is_ipv4());
            Some(*first.or(found.first()).ok_or(-libc::ENODATA)?)
        }
    };
    // SAFETY: addresses of the hints, as long as they say.
    let (source, destination) = unsafe {
        hints.map_or((None, None), |hints| {
            (
                address_of(hints.src_addr, hints.src_addrlen),
                address_of(hints.dest_addr, hints.dest_addrlen),
            )
        })
    };
    let is_source = flags & FI_SOURCE != 0;
    let destination = if is_source {
        destination
    } else {
        named.or(destination)
    };
    let own = if is_source { named.or(source) } else { source };
    if let Some(own) = own.filter(|own| !own.ip().is_unspecified()) {
        return Ok((vec![own], destination));
    }
    let port = match own {
        Some(own) => own.port(),
        None if is_source => port,
        None => 0,
    };
    let mut all = own_addresses();
    if let Some(destination) = destination {
        // Keep addresses of the same family, and on the loopback if the destination is.
        all.retain(|own| own.is_ipv4() == destination.is_ipv4());
        all.sort_by_key(|own| own.is_loopback() != destination.ip().is_loopback());
        all.truncate(1);
    }
    let all = all.into_iter().map(|own| SocketAddr::new(own, port));
    Ok((all.take(ADDRESSES_MAX).collect(), destination))
}

/// Addresses of the stack, or of the kernel's interfaces, with loopback addresses last.
fn own_addresses() -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = networks().into_iter().map(|(address, _)| address).collect();
    // Link-local addresses are ambiguous without a scope.
    found.retain(|address| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    });
    found.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    found
}

/// Name of the network of an address, used as the fabric's name: programs take endpoints of one
/// fabric as equivalent.
fn network(own: IpAddr) -> String {
    let networks = networks();
    let found = networks.iter().find(|(address, _)| *address == own);
    let bits = found.map_or(if own.is_ipv4() { 32 } else { 128 }, |(_, bits)| *bits);
    match own {
        IpAddr::V4(own) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            format!("{}/{bits}", Ipv4Addr::from(u32::from(own) & mask))
        }
        IpAddr::V6(own) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            format!("{}/{bits}", Ipv6Addr::from(u128::from(own) & mask))
        }
    }
}

/// Addresses of this side, each with its prefix length.
fn networks() -> Vec<(IpAddr, u32)> {
    if let Some(path) = stack_socket() {
        return stack_addresses(&path);
    }
    let mut found = Vec::new();
    let mut list = std::ptr::null_mut();
    // SAFETY: a place for the list, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } == 0 {
        let mut at = list;
        // SAFETY: the list's links are valid until it is freed, or NULL at its end.
        while let Some(interface) = unsafe { at.as_ref() } {
            let is_up = interface.ifa_flags & libc::IFF_UP as u32 != 0;
            // SAFETY: NULL, or an address whose family says how long it is.
            let (address, mask) = unsafe {
                (
                    address_of(interface.ifa_addr.cast(), usize::MAX),
                    address_of(interface.ifa_netmask.cast(), usize::MAX),
                )
            };
            if let (true, Some(address)) = (is_up, address) {
                let bits = match mask.map(|mask| mask.ip()) {
                    Some(IpAddr::V4(mask)) => u32::from(mask).leading_ones(),
                    Some(IpAddr::V6(mask)) => u128::from(mask).leading_ones(),
                    None => 0,
                };
                found.push((address.ip(), bits));
            }
            at = interface.ifa_next;
        }
        // SAFETY: it came from getifaddrs.
        unsafe { libc::freeifaddrs(list) };
    }
    found
}

/// A socket address of C.
///
/// # Safety
/// NULL, or an address of at most `bytes` bytes.
pub(crate) unsafe fn address_of(at: *const c_void, bytes: usize) -> Option<SocketAddr> {
    if at.is_null() || bytes < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: it begins with its family, of which there are bytes enough.
    let family = unsafe { at.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET if bytes >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: as long as its family says.
            let raw = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(raw.sin_port)))
        }
        libc::AF_INET6 if bytes >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as long as its family says.
            let raw = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = IpAddr::from(raw.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip, u16::from_be(raw.sin6_port)))
        }
        _ => None,
    }
}

/// An address in C's form.
pub(crate) fn raw_address(address: SocketAddr) -> Vec<u8> {
    match address {
        SocketAddr::V4(address) => {
            let mut bytes = vec![0; size_of::<libc::sockaddr_in>()];
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
            bytes
        }
        SocketAddr::V6(address) => {
            let mut bytes = vec![0; size_of::<libc::sockaddr_in6>()];
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes
        }
    }
}

/// A structure that `fi_freeinfo` frees.
fn allocated<T: Copy>(value: T) -> *mut T {
    // SAFETY: calloc has no conditions; what it gives is aligned for every type of C.
    let place: *mut T = unsafe { libc::calloc(1, size_of::<T>()) }.cast();
    if place.is_null() {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<T>());
    }
    // SAFETY: it is as long as T.
    unsafe { place.write(value) };
    place
}

fn allocated_text(text: &CStr) -> *mut c_char {
    // SAFETY: a string.
    unsafe { libc::strdup(text.as_ptr()) }
}

fn allocated_address(address: SocketAddr) -> (*mut c_void, usize) {
    let bytes = raw_address(address);
    // SAFETY: calloc has no conditions.
    let place = unsafe { libc::calloc(1, bytes.len()) };
    if place.is_null() {
        return (place, 0);
    }
    // SAFETY: it is that long.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
    (place, bytes.len())
}

/// A `fi_info`.
fn make(
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    hints: Option<&fi_info>,
    mr_mode: c_int,
) -> *mut fi_info {
    let mode = hints.map_or(0, |hints| hints.mode & FI_RX_CQ_DATA);
    let caps = match hints.map(|hints| hints.caps) {
        // Callers without memory registration are not offered features that need it.
        None | Some(0) if mr_mode == 0 => CAPS & !RMA_CAPS,
        None | Some(0) => CAPS,
        // Without a direction, both are meant.
        Some(caps) => caps_of(caps),
    };
    // SAFETY: NULL or valid, as `fi_getinfo` demands of its caller.
    let (tx, rx, domain, ep) = unsafe {
        hints.map_or((None, None, None, None), |hints| {
            (
                hints.tx_attr.as_ref(),
                hints.rx_attr.as_ref(),
                hints.domain_attr.as_ref(),
                hints.ep_attr.as_ref(),
            )
        })
    };
    let or = |asked: Option<usize>, usual: usize| asked.filter(|&size| size > 0).unwrap_or(usual);
    let (src_addr, src_addrlen) = source.map_or((std::ptr::null_mut(), 0), allocated_address);
    let (dest_addr, dest_addrlen) =
        destination.map_or((std::ptr::null_mut(), 0), allocated_address);
    let is_v6 = source
        .or(destination)
        .is_some_and(|address| address.is_ipv6());
    let tx_attr = allocated(fi_tx_attr {
        caps: caps & TX_CAPS,
        mode: 0,
        op_flags: tx.map_or(0, |tx| tx.op_flags & TX_FLAGS),
        msg_order: tx.map_or(0, |tx| tx.msg_order).max(ORDERS),
        comp_order: FI_ORDER_STRICT,
        inject_size: INJECT_BYTES,
        size: or(tx.map(|tx| tx.size), SIZE),
        iov_limit: PIECES,
        rma_iov_limit: 1,
        tclass: 0,
    });
    let rx_attr = allocated(fi_rx_attr {
        caps: caps & RX_CAPS,
        mode,
        op_flags: rx.map_or(0, |rx| rx.op_flags),
        msg_order: ORDERS,
        comp_order: FI_ORDER_STRICT,
        total_buffered_recv: 0,
        size: or(rx.map(|rx| rx.size), SIZE),
        iov_limit: PIECES,
    });
    let ep_attr = allocated(fi_ep_attr {
        type_: FI_EP_MSG,
        protocol: FI_PROTO_IWARP,
        protocol_version: 1,
        max_msg_size: MESSAGE_BYTES_MAX,
        msg_prefix_size: 0,
        max_order_raw_size: MESSAGE_BYTES_MAX,
        max_order_war_size: 0,
        max_order_waw_size: MESSAGE_BYTES_MAX,
        mem_tag_format: 0,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: match ep.map_or(0, |ep| ep.rx_ctx_cnt) {
            FI_SHARED_CONTEXT => FI_SHARED_CONTEXT,
            _ => 1,
        },
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
    });
    let domain_attr = allocated(fi_domain_attr {
        domain: std::ptr::null_mut(),
        name: allocated_text(domain_name()),
        threading: match domain.map_or(0, |domain| domain.threading) {
            0 => FI_THREAD_SAFE,
            asked => asked,
        },
        control_progress: FI_PROGRESS_MANUAL,
        data_progress: FI_PROGRESS_MANUAL,
        resource_mgmt: FI_RM_ENABLED,
        av_type: 0,
        mr_mode,
        mr_key_size: 8,
        cq_data_size: data_bytes(mode),
        cq_cnt: 1 << 12,
        ep_cnt: 1 << 13,
        tx_ctx_cnt: 1 << 13,
        rx_ctx_cnt: 1 << 13,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 0,
        max_ep_srx_ctx: sidecore_rdma::SHARED_QUEUES_MAX,
        cntr_cnt: 1 << 12,
        mr_iov_limit: 1,
        caps: FI_LOCAL_COMM | FI_REMOTE_COMM,
        mode: 0,
        auth_key: std::ptr::null_mut(),
        auth_key_size: 0,
        max_err_data: CM_BYTES,
        mr_cnt: 1 << 14,
        tclass: 0,
    });
    let network = source.map_or_else(String::new, |source| network(source.ip()));
    let network = std::ffi::CString::new(network).unwrap_or_default();
    let fabric_attr = allocated(fi_fabric_attr {
        fabric: std::ptr::null_mut(),
        name: allocated_text(&network),
        // libfabric fills it in, and those of providers layered above.
        prov_name: std::ptr::null_mut(),
        prov_version: crate::VERSION,
        api_version: crate::API_VERSION,
    });
    allocated(fi_info {
        next: std::ptr::null_mut(),
        caps,
        mode,
        addr_format: if is_v6 {
            FI_SOCKADDR_IN6
        } else {
            FI_SOCKADDR_IN
        },
        src_addrlen,
        dest_addrlen,
        src_addr,
        dest_addr,
        handle: hints.map_or(std::ptr::null_mut(), |hints| hints.handle),
        tx_attr,
        rx_attr,
        ep_attr,
        domain_attr,
        fabric_attr,
        nic: std::ptr::null_mut(),
    })
}

/// Requested capabilities and those that they imply: no direction means every direction.
fn caps_of(asked: u64) -> u64 {
    let mut caps = asked | FI_LOCAL_COMM | FI_REMOTE_COMM;
    if caps & FI_MSG != 0 && caps & (FI_SEND | FI_RECV) == 0 {
        caps |= FI_SEND | FI_RECV;
    }
    let directions = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if caps & (FI_RMA | FI_ATOMIC) != 0 && caps & directions == 0 {
        caps |= directions;
    }
    caps
}

/// The info of a peer's request.
pub(crate) fn request(
    addresses: Option<(SocketAddr, SocketAddr)>,
    mode: u64,
    connection: ConnectionId,
    pep: usize,
) -> usize {
    let (own, peer) = match addresses {
        Some((own, peer)) => (Some(own), Some(peer)),
        None => (None, None),
    };
    let info = make(own, peer, None, MR_MODE);
    let handle = Box::new(Request {
        fid: fid {
            fclass: FI_CLASS_CONNREQ,
            context: std::ptr::null_mut(),
            ops: std::ptr::null(),
        },
        connection,
        pep,
    });
    // SAFETY: it was made here, with its attributes.
    unsafe {
        (*info).mode = mode;
        (*(*info).rx_attr).mode = mode;
        (*(*info).domain_attr).cq_data_size = data_bytes(mode);
        (*info).handle = Box::into_raw(handle).cast();
    }
    info.expose_provenance()
}

/// The connection of a request, which is freed.
///
/// # Safety
/// NULL, or a handle of an info that [`request`] made, for the last time.
pub(crate) unsafe fn take_request(handle: *mut fid) -> Option<ConnectionId> {
    // SAFETY: the caller's promise; every handle begins with its class.
    let class = unsafe { handle.as_ref() }?.fclass;
    if class != FI_CLASS_CONNREQ {
        return None;
    }
    // SAFETY: the class says that `request` made it.
    Some(unsafe { Box::from_raw(handle.cast::<Request>()) }.connection)
}

/// Frees an unread info; returns the connection that it requests.
pub(crate) fn free_request(info: usize) -> Option<ConnectionId> {
    let info: *mut fi_info = std::ptr::with_exposed_provenance_mut(info);
    // SAFETY: it came from `request`, and its event was removed before it was read.
    unsafe {
        let connection = take_request((*info).handle);
        let (fabric, domain) = ((*info).fabric_attr, (*info).domain_attr);
        libc::free((*fabric).name.cast());
        libc::free((*fabric).prov_name.cast());
        libc::free((*domain).name.cast());
        for part in [
            fabric.cast::<c_void>(),
            domain.cast(),
            (*info).ep_attr.cast(),
            (*info).rx_attr.cast(),
            (*info).tx_attr.cast(),
            (*info).src_addr,
            (*info).dest_addr,
            info.cast(),
        ] {
            libc::free(part);
        }
        connection
    }
}
