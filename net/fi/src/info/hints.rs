//! Hints of a program: what it asks for, and whether the offer matches.
//!
//! Must stay true: an offer that matches has everything that is asked for; a field that is 0 asks
//! for nothing (fi_getinfo(3)).

use super::{CAPS, MESSAGE_BYTES_MAX, MR_MODE, PIECES, RMA_CAPS, TX_FLAGS};
use super::{ENDPOINTS_MAX, PROTOCOL_VERSION, QUEUES_MAX, REGIONS_MAX};
use crate::abi::*;
use crate::place::{CM_BYTES, DEPTH_MAX, INJECT_BYTES, stack_socket};
use std::ffi::{CStr, c_char, c_int};

/// The hints of a program, with their parts.
#[derive(Clone, Copy)]
pub(super) struct Hints<'a> {
    pub(super) info: &'a fi_info,
    pub(super) tx: Option<&'a fi_tx_attr>,
    pub(super) rx: Option<&'a fi_rx_attr>,
    pub(super) ep: Option<&'a fi_ep_attr>,
    pub(super) domain: Option<&'a fi_domain_attr>,
    pub(super) fabric: Option<&'a fi_fabric_attr>,
    /// Version of the interface that the program was written for.
    pub(super) api_version: u32,
}

impl<'a> Hints<'a> {
    /// Hints at an address, if there are any.
    ///
    /// # Safety
    /// NULL or valid, with all that they point to, as `fi_getinfo` demands of its caller.
    pub(super) unsafe fn of(info: *const fi_info, api_version: u32) -> Option<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            let info: &'a fi_info = info.as_ref()?;
            Some(Self {
                info,
                tx: info.tx_attr.as_ref(),
                rx: info.rx_attr.as_ref(),
                ep: info.ep_attr.as_ref(),
                domain: info.domain_attr.as_ref(),
                fabric: info.fabric_attr.as_ref(),
                api_version,
            })
        }
    }

    /// True if the offer matches.
    pub(super) fn fit(&self) -> bool {
        let formats = [
            FI_FORMAT_UNSPEC,
            FI_SOCKADDR,
            FI_SOCKADDR_IN,
            FI_SOCKADDR_IN6,
        ];
        self.info.caps & !CAPS == 0
            && formats.contains(&self.info.addr_format)
            && self.ep.is_none_or(fits_ep)
            && self.tx.is_none_or(fits_tx)
            && self.rx.is_none_or(|rx| fits_rx(rx, self.shares_receives()))
            && self.has_caps(self.tx.map_or(0, |tx| tx.caps))
            && self.has_caps(self.rx.map_or(0, |rx| rx.caps))
            && self.domain.is_none_or(|domain| self.fits_domain(domain))
    }

    /// True if one direction has no more capabilities than the endpoint (fi_endpoint(3)).
    fn has_caps(&self, caps: u64) -> bool {
        self.info.caps == 0 || caps & !caps_of(self.info.caps) == 0
    }

    /// The format that addresses have to have.
    pub(super) fn format(&self) -> u32 {
        self.info.addr_format
    }

    /// True if receives come from shared contexts.
    pub(super) fn shares_receives(&self) -> bool {
        self.ep.is_some_and(|ep| ep.rx_ctx_cnt == FI_SHARED_CONTEXT)
    }

    fn fits_domain(&self, domain: &fi_domain_attr) -> bool {
        let caps = self.info.caps;
        // No capability named: all are meant, those that need registered memory among them.
        let uses_rma = caps == 0 || caps & (FI_RMA | FI_ATOMIC) != 0;
        let mr = domain.mr_mode;
        // A program that sets nothing at all leaves the choice to the provider.
        let is_open = mr == 0 && caps == 0;
        let maps =
            mr & FI_MR_BASIC != 0 || self.is_before_modes(mr) || mr & MR_MODE == MR_MODE || is_open;
        (maps || !uses_rma)
            && names(domain.name, domain_name())
            && domain.data_progress != FI_PROGRESS_AUTO
            && domain.control_progress != FI_PROGRESS_AUTO
            && domain.cq_data_size <= data_bytes(self.info.mode)
            && domain.mr_key_size <= KEY_BYTES
            && domain.caps & !(FI_LOCAL_COMM | FI_REMOTE_COMM) == 0
            && (0..=FI_THREAD_ENDPOINT).contains(&domain.threading)
            && fits_counts(domain)
    }

    /// Mode of memory registration, among those in the hints.
    pub(super) fn registration(&self) -> c_int {
        let mr = self.domain.map_or(0, |domain| domain.mr_mode);
        if mr & FI_MR_BASIC != 0 || self.is_before_modes(mr) {
            FI_MR_BASIC
        } else if mr == 0 && self.info.caps & RMA_CAPS == 0 {
            0
        } else {
            MR_MODE
        }
    }

    /// True for a program from before version 1.5, which had one mode of registration, the number
    /// 0, with the meaning of today's basic one.
    fn is_before_modes(&self, mr_mode: c_int) -> bool {
        self.api_version < version(1, 5) && mr_mode == 0
    }
}

/// Size of a region's key.
pub(super) const KEY_BYTES: usize = 8;

/// True if a domain has as many objects as are asked for.
fn fits_counts(domain: &fi_domain_attr) -> bool {
    let counts = [
        (domain.cq_cnt, QUEUES_MAX),
        (domain.cntr_cnt, QUEUES_MAX),
        (domain.ep_cnt, ENDPOINTS_MAX),
        (domain.tx_ctx_cnt, ENDPOINTS_MAX),
        (domain.rx_ctx_cnt, ENDPOINTS_MAX),
        (domain.max_ep_tx_ctx, 1),
        (domain.max_ep_rx_ctx, 1),
        (domain.max_ep_stx_ctx, 0),
        (domain.max_ep_srx_ctx, sidecore_rdma::SHARED_QUEUES_MAX),
        (domain.mr_iov_limit, 1),
        (domain.mr_cnt, REGIONS_MAX),
        (domain.max_err_data, CM_BYTES),
    ];
    counts.iter().all(|(asked, ours)| asked <= ours)
}

fn fits_ep(ep: &fi_ep_attr) -> bool {
    matches!(ep.type_, FI_EP_UNSPEC | FI_EP_MSG)
        && (ep.protocol == 0 || ep.protocol == FI_PROTO_IWARP)
        && ep.protocol_version <= PROTOCOL_VERSION
        && ep.max_msg_size <= MESSAGE_BYTES_MAX
        && ep.tx_ctx_cnt <= 1
        && (ep.rx_ctx_cnt <= 1 || ep.rx_ctx_cnt == FI_SHARED_CONTEXT)
        // A later write may overtake a read (`ORDERS`), of any size.
        && ep.max_order_war_size == 0
        && ep.max_order_raw_size <= MESSAGE_BYTES_MAX
        && ep.max_order_waw_size <= MESSAGE_BYTES_MAX
        && ep.auth_key_size == 0
}

fn fits_tx(tx: &fi_tx_attr) -> bool {
    tx.caps & !CAPS == 0
        && tx.op_flags & !TX_FLAGS == 0
        && tx.msg_order & !ORDERS == 0
        && tx.comp_order & !FI_ORDER_STRICT == 0
        && tx.inject_size <= INJECT_BYTES
        && tx.size <= DEPTH_MAX
        && tx.iov_limit <= PIECES
        && tx.rma_iov_limit <= 1
}

fn fits_rx(rx: &fi_rx_attr, is_shared: bool) -> bool {
    // A shared context serves many endpoints, and has room for more.
    let receives_max = if is_shared {
        sidecore_rdma::RECEIVES_MAX
    } else {
        DEPTH_MAX
    };
    rx.caps & !CAPS == 0
        && rx.op_flags & !FI_COMPLETION == 0
        && rx.msg_order & !ORDERS == 0
        && rx.comp_order & !FI_ORDER_STRICT == 0
        && rx.size <= receives_max
        && rx.iov_limit <= PIECES
}

/// True if a name is not given, or ours.
fn names(name: *mut c_char, own: &CStr) -> bool {
    // SAFETY: NULL or a string, as `Hints::of` demands.
    name.is_null() || unsafe { CStr::from_ptr(name) } == own
}

/// Size of immediate data. A write's data takes a receive of the other side, which has to support
/// that.
pub(super) fn data_bytes(mode: u64) -> usize {
    if mode & FI_RX_CQ_DATA != 0 { 8 } else { 0 }
}

/// Requested capabilities and those that they imply: no direction means every direction.
pub(super) fn caps_of(asked: u64) -> u64 {
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

/// Name of the domain: the transport below it.
pub(super) fn domain_name() -> &'static CStr {
    if stack_socket().is_some() {
        c"stack"
    } else {
        c"kernel"
    }
}
