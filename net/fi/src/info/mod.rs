//! `fi_getinfo`: the only kind of endpoint, for each address of this side.
//!
//! Must stay true: everything that a `fi_info` points to is allocated by `calloc` and `strdup`,
//! because `fi_freeinfo` frees it; an answer matches the hints.

mod addresses;
mod hints;

pub(crate) use addresses::{address_of, raw_address};

use crate::abi::*;
use crate::place::{CM_BYTES, INJECT_BYTES};
use addresses::{addresses, network};
use hints::{Hints, KEY_BYTES, caps_of, data_bytes, domain_name};
use sidecore_rdma::ConnectionId;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr;

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
    | FI_FENCE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM;
const RMA_CAPS: u64 = FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
const TX_CAPS: u64 = FI_MSG | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE | FI_FENCE;
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
/// Completion queues and counters of a domain, each; endpoints; and registered regions.
const QUEUES_MAX: usize = 1 << 12;
const ENDPOINTS_MAX: usize = 1 << 13;
const REGIONS_MAX: usize = 1 << 14;
/// Version of the protocol that `FI_PROTO_IWARP` names.
const PROTOCOL_VERSION: u32 = 1;

/// A peer's request for a connection, as `fi_info` carries it.
#[repr(C)]
struct Request {
    fid: fid,
    connection: ConnectionId,
}

/// Implements `fi_getinfo`.
///
/// # Safety
/// The pointers are those of `fi_getinfo`: NULL or valid.
pub(crate) unsafe fn getinfo(
    api_version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    // SAFETY: the caller's promise, here and for what the hints point to.
    let offered = unsafe {
        let hints = Hints::of(hints, api_version);
        offers(node, service, flags, hints.as_ref())
    };
    match offered {
        Ok(first) => {
            // SAFETY: a place for a pointer, by the caller's promise.
            unsafe { out.write(first) };
            0
        }
        Err(error) => error,
    }
}

/// The list of offers; none is an error.
///
/// # Safety
/// NULL or strings.
unsafe fn offers(
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: Option<&Hints<'_>>,
) -> Result<*mut fi_info, c_int> {
    // SAFETY: the caller's promise, and that of `Hints::of`.
    let (node, service, asked) = unsafe {
        let fabric = hints.and_then(|hints| hints.fabric);
        let asked = fabric.map_or(Ok(None), |fabric| text(fabric.name))?;
        (text(node)?, text(service)?, asked)
    };
    if hints.is_some_and(|hints| !hints.fit()) {
        return Err(-libc::ENODATA);
    }
    let (sources, destination) = addresses(node, service, flags, hints)?;
    let mr_mode = hints.map_or(MR_MODE, Hints::registration);
    let mut first = ptr::null_mut();
    let mut last: *mut *mut fi_info = &mut first;
    for source in sources {
        // A program that names a fabric wants addresses of that network alone.
        let name = network(source.ip());
        if asked.is_some_and(|asked| asked != name) {
            continue;
        }
        let info = make(Some(source), destination, hints, mr_mode);
        // SAFETY: `last` is `first`, or the field of an info that was made here.
        unsafe {
            last.write(info);
            last = &mut (*info).next;
        }
    }
    if first.is_null() {
        return Err(-libc::ENODATA);
    }
    Ok(first)
}

/// A string, if there is one. One of another encoding names nothing here.
///
/// # Safety
/// NULL or a string.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, c_int> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| -libc::ENODATA)
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
    // A vector's memory belongs to another allocator than C's `free`.
    let bytes = raw_address(address);
    // SAFETY: calloc has no conditions.
    let place = unsafe { libc::calloc(1, bytes.len()) };
    if place.is_null() {
        return (place, 0);
    }
    // SAFETY: it is that long.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
    (place, bytes.len())
}

/// A `fi_info`.
fn make(
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    hints: Option<&Hints<'_>>,
    mr_mode: c_int,
) -> *mut fi_info {
    // The only mode that is used; others in the hints are what the program could do, too. Without
    // hints, it is what the provider supports.
    let mode = hints.map_or(FI_RX_CQ_DATA, |hints| hints.info.mode & FI_RX_CQ_DATA);
    let caps = match hints.map(|hints| hints.info.caps) {
        // Callers without memory registration are not offered features that need it.
        None | Some(0) if mr_mode == 0 => CAPS & !RMA_CAPS,
        None | Some(0) => CAPS,
        // Without a direction, both are meant.
        Some(caps) => caps_of(caps),
    };
    let address =
        |address: Option<SocketAddr>| address.map_or((ptr::null_mut(), 0), allocated_address);
    let (src_addr, src_addrlen) = address(source);
    let (dest_addr, dest_addrlen) = address(destination);
    let is_v6 = source
        .or(destination)
        .is_some_and(|address| address.is_ipv6());
    allocated(fi_info {
        next: ptr::null_mut(),
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
        handle: hints.map_or(ptr::null_mut(), |hints| hints.info.handle),
        tx_attr: allocated(tx_attr(caps, hints)),
        rx_attr: allocated(rx_attr(caps, mode, hints)),
        ep_attr: allocated(ep_attr(hints)),
        domain_attr: allocated(domain_attr(mode, mr_mode, hints)),
        fabric_attr: allocated(fabric_attr(source, hints)),
        nic: ptr::null_mut(),
    })
}

/// The size that is asked for, or the usual one.
fn size(asked: Option<usize>) -> usize {
    asked.filter(|&size| size > 0).unwrap_or(SIZE)
}

/// The capabilities of one direction: those of the endpoint, or what is asked for of them.
fn narrowed(caps: u64, asked: Option<u64>) -> u64 {
    match asked {
        None | Some(0) => caps,
        Some(asked) => caps & caps_of(asked),
    }
}

fn tx_attr(caps: u64, hints: Option<&Hints<'_>>) -> fi_tx_attr {
    let tx = hints.and_then(|hints| hints.tx);
    fi_tx_attr {
        caps: narrowed(caps, tx.map(|tx| tx.caps)) & TX_CAPS,
        mode: 0,
        op_flags: tx.map_or(0, |tx| tx.op_flags & TX_FLAGS),
        msg_order: ORDERS,
        comp_order: FI_ORDER_STRICT,
        inject_size: INJECT_BYTES,
        size: size(tx.map(|tx| tx.size)),
        iov_limit: PIECES,
        rma_iov_limit: 1,
        tclass: 0,
    }
}

fn rx_attr(caps: u64, mode: u64, hints: Option<&Hints<'_>>) -> fi_rx_attr {
    let rx = hints.and_then(|hints| hints.rx);
    fi_rx_attr {
        caps: narrowed(caps, rx.map(|rx| rx.caps)) & RX_CAPS,
        mode,
        op_flags: rx.map_or(0, |rx| rx.op_flags),
        msg_order: ORDERS,
        comp_order: FI_ORDER_STRICT,
        // Nothing is buffered: a message that finds no receive waits in the stream.
        total_buffered_recv: 0,
        size: size(rx.map(|rx| rx.size)),
        iov_limit: PIECES,
    }
}

fn ep_attr(hints: Option<&Hints<'_>>) -> fi_ep_attr {
    fi_ep_attr {
        type_: FI_EP_MSG,
        protocol: FI_PROTO_IWARP,
        protocol_version: PROTOCOL_VERSION,
        max_msg_size: MESSAGE_BYTES_MAX,
        msg_prefix_size: 0,
        max_order_raw_size: MESSAGE_BYTES_MAX,
        max_order_war_size: 0,
        max_order_waw_size: MESSAGE_BYTES_MAX,
        mem_tag_format: 0,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: match hints.is_some_and(Hints::shares_receives) {
            true => FI_SHARED_CONTEXT,
            false => 1,
        },
        auth_key_size: 0,
        auth_key: ptr::null_mut(),
    }
}

fn domain_attr(mode: u64, mr_mode: c_int, hints: Option<&Hints<'_>>) -> fi_domain_attr {
    let asked = hints.and_then(|hints| hints.domain);
    fi_domain_attr {
        domain: asked.map_or(ptr::null_mut(), |domain| domain.domain),
        name: allocated_text(domain_name()),
        // Every weaker promise of a program is kept by the strongest one of ours.
        threading: match asked.map_or(0, |domain| domain.threading) {
            0 => FI_THREAD_SAFE,
            asked => asked,
        },
        control_progress: FI_PROGRESS_MANUAL,
        data_progress: FI_PROGRESS_MANUAL,
        resource_mgmt: FI_RM_ENABLED,
        av_type: 0,
        mr_mode,
        mr_key_size: KEY_BYTES,
        cq_data_size: data_bytes(mode),
        cq_cnt: QUEUES_MAX,
        ep_cnt: ENDPOINTS_MAX,
        tx_ctx_cnt: ENDPOINTS_MAX,
        rx_ctx_cnt: ENDPOINTS_MAX,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 0,
        max_ep_srx_ctx: sidecore_rdma::SHARED_QUEUES_MAX,
        cntr_cnt: QUEUES_MAX,
        mr_iov_limit: 1,
        caps: FI_LOCAL_COMM | FI_REMOTE_COMM,
        mode: 0,
        auth_key: ptr::null_mut(),
        auth_key_size: 0,
        max_err_data: CM_BYTES,
        mr_cnt: REGIONS_MAX,
        tclass: 0,
    }
}

fn fabric_attr(source: Option<SocketAddr>, hints: Option<&Hints<'_>>) -> fi_fabric_attr {
    let network = source.map_or_else(String::new, |source| network(source.ip()));
    let network = CString::new(network).unwrap_or_default();
    let asked = hints.and_then(|hints| hints.fabric);
    fi_fabric_attr {
        fabric: asked.map_or(ptr::null_mut(), |fabric| fabric.fabric),
        name: allocated_text(&network),
        // libfabric fills it in, and those of providers layered above.
        prov_name: ptr::null_mut(),
        prov_version: crate::VERSION,
        api_version: crate::API_VERSION,
    }
}

/// The info of a peer's request.
pub(crate) fn request(
    addresses: Option<(SocketAddr, SocketAddr)>,
    mode: u64,
    connection: ConnectionId,
) -> usize {
    let (own, peer) = match addresses {
        Some((own, peer)) => (Some(own), Some(peer)),
        None => (None, None),
    };
    let info = make(own, peer, None, MR_MODE);
    let handle = Box::new(Request {
        fid: fid {
            fclass: FI_CLASS_CONNREQ,
            context: ptr::null_mut(),
            ops: ptr::null(),
        },
        connection,
    });
    // The passive endpoint's program has said that its receives may carry data.
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
    // A passive endpoint may be a handle, too: it is not freed here.
    if class != FI_CLASS_CONNREQ {
        return None;
    }
    // SAFETY: the class says that `request` made it.
    Some(unsafe { Box::from_raw(handle.cast::<Request>()) }.connection)
}

/// Frees an unread info; returns the connection that it requests.
pub(crate) fn free_request(info: usize) -> Option<ConnectionId> {
    let info: *mut fi_info = ptr::with_exposed_provenance_mut(info);
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
