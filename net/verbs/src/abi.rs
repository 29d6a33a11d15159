//! Layouts and numbers of libibverbs' and librdmacm's interfaces, as of rdma-core 44 (its
//! installed headers and manual pages are the source; `tests/suite.rs` compares them).
//!
//! Must stay true: every type here is `repr(C)` and as long as the header's. Calls that this
//! library does not have are empty pointers, which the interface's own inline functions refuse.

#![allow(non_snake_case)] // the interface's own names

use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! numbers {
    ($type:ty: $($name:ident = $value:expr),* $(,)?) => {
        $(pub(crate) const $name: $type = $value;)*
    };
}

numbers! { c_int:
    IBV_NODE_CA = 1, IBV_TRANSPORT_IB = 0, IBV_ATOMIC_HCA = 1,
    IBV_MTU_4096 = 5, IBV_PORT_ACTIVE = 4,
    IBV_QPT_RC = 2, IBV_QPT_UD = 4,
    IBV_QPS_RESET = 0, IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_SQD = 4,
    IBV_QPS_ERR = 6,
    IBV_EVENT_QP_FATAL = 1, IBV_EVENT_QP_ACCESS_ERR = 3,
    IBV_EVENT_SRQ_LIMIT_REACHED = 15, IBV_EVENT_QP_LAST_WQE_REACHED = 16,
    IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1, IBV_WR_SEND = 2,
    IBV_WR_SEND_WITH_IMM = 3, IBV_WR_RDMA_READ = 4, IBV_WR_ATOMIC_CMP_AND_SWP = 5,
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6, IBV_WR_LOCAL_INV = 7, IBV_WR_SEND_WITH_INV = 9,
    IBV_WC_SUCCESS = 0, IBV_WC_LOC_LEN_ERR = 1, IBV_WC_LOC_PROT_ERR = 4,
    IBV_WC_WR_FLUSH_ERR = 5, IBV_WC_REM_INV_REQ_ERR = 9, IBV_WC_REM_ACCESS_ERR = 10,
    IBV_WC_REM_OP_ERR = 11, IBV_WC_RETRY_EXC_ERR = 12,
    IBV_WC_SEND = 0, IBV_WC_RDMA_WRITE = 1, IBV_WC_RDMA_READ = 2, IBV_WC_COMP_SWAP = 3,
    IBV_WC_FETCH_ADD = 4, IBV_WC_RECV = 128,
    IBV_WC_RECV_RDMA_WITH_IMM = 129,
    IBV_QP_STATE = 1, IBV_QP_CUR_STATE = 1 << 1, IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
    IBV_QP_ACCESS_FLAGS = 1 << 3, IBV_QP_PKEY_INDEX = 1 << 4, IBV_QP_PORT = 1 << 5,
    IBV_QP_QKEY = 1 << 6, IBV_QP_AV = 1 << 7, IBV_QP_PATH_MTU = 1 << 8, IBV_QP_TIMEOUT = 1 << 9,
    IBV_QP_RETRY_CNT = 1 << 10, IBV_QP_RNR_RETRY = 1 << 11, IBV_QP_RQ_PSN = 1 << 12,
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13, IBV_QP_MIN_RNR_TIMER = 1 << 15,
    IBV_QP_SQ_PSN = 1 << 16, IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17, IBV_QP_DEST_QPN = 1 << 20,
    IBV_SRQ_MAX_WR = 1, IBV_SRQ_LIMIT = 2,
    IBV_REREG_MR_CHANGE_TRANSLATION = 1, IBV_REREG_MR_CHANGE_PD = 2,
    IBV_REREG_MR_CHANGE_ACCESS = 4,
}

numbers! { c_uint:
    IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 2, IBV_SEND_SOLICITED = 4, IBV_SEND_INLINE = 8,
    IBV_WC_GRH = 1, IBV_WC_WITH_IMM = 2, IBV_WC_WITH_INV = 8,
    IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4,
    IBV_ACCESS_REMOTE_ATOMIC = 8, IBV_ACCESS_ZERO_BASED = 32,
    IBV_QP_INIT_ATTR_PD = 1, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64,
    IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12, IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
    IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7, IBV_PORT_IP_BASED_GIDS = 1 << 26,
}

/// Operations of work of [`ibv_qp_ex`] that this library has, of
/// `enum ibv_qp_create_send_ops_flags`.
pub(crate) const SEND_OPS: u64 = 0x27f;
/// Parts of a completion that [`ibv_cq_ex`] can read here, of `enum ibv_create_cq_wc_flags`.
pub(crate) const WC_PARTS: u64 = 0x7f;

type Call = *const c_void;

macro_rules! layouts {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(non_camel_case_types, missing_docs)] // the interface's own names
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        )*
        /// Each structure's name, length, and a field with its offset, for all fields.
        #[doc(hidden)]
        #[must_use]
        pub fn layouts() -> Vec<(&'static str, usize, &'static str, usize)> {
            let mut all = Vec::new();
            $($(all.push((
                stringify!($name), size_of::<$name>(), stringify!($field),
                std::mem::offset_of!($name, $field),
            ));)*)*
            all.extend(cm_layouts());
            all
        }
    };
}

layouts! {
    ibv_device {
        _ops: [Call; 2], node_type: c_int, transport_type: c_int, name: [c_char; 64],
        dev_name: [c_char; 64], dev_path: [c_char; 256], ibdev_path: [c_char; 256],
    }
    ibv_context_ops {
        _compat_query_device: [Call; 7],
        alloc_mw: Call, bind_mw: Call, dealloc_mw: Call, _compat_create_cq: Call,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: [Call; 7],
        post_srq_recv: Option<unsafe extern "C" fn(
            *mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_qp: [Call; 4],
        post_send: Option<unsafe extern "C" fn(
            *mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(
            *mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_ah: [Call; 5],
    }
    ibv_context {
        device: *mut ibv_device, ops: ibv_context_ops, cmd_fd: c_int, async_fd: c_int,
        num_comp_vectors: c_int, mutex: libc::pthread_mutex_t, abi_compat: *mut c_void,
    }
    verbs_context {
        query_port: Option<unsafe extern "C" fn(
            *mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(
            *mut ibv_pd, c_int, u32, *mut ibv_sge, u32) -> c_int>,
        alloc_null_mr: Call, read_counters: Call, attach_counters_point_flow: Call,
        create_counters: Call, destroy_counters: Call, reg_dm_mr: Call, alloc_dm: Call,
        free_dm: Call, modify_flow_action_esp: Call, destroy_flow_action: Call,
        create_flow_action_esp: Call, modify_qp_rate_limit: Call, alloc_parent_domain: Call,
        dealloc_td: Call, alloc_td: Call,
        modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut c_void) -> c_int>,
        post_srq_ops: Call, destroy_rwq_ind_table: Call, create_rwq_ind_table: Call,
        destroy_wq: Call, modify_wq: Call, create_wq: Call,
        query_rt_values: Call,
        create_cq_ex: Option<unsafe extern "C" fn(
            *mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
        r#priv: *mut c_void,
        query_device_ex: Option<unsafe extern "C" fn(
            *mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int>,
        ibv_destroy_flow: Call, ABI_placeholder2: Call, ibv_create_flow: Call,
        ABI_placeholder1: Call, open_qp: Call,
        create_qp_ex: Option<unsafe extern "C" fn(
            *mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
        get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
        create_srq_ex: Option<unsafe extern "C" fn(
            *mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
        open_xrcd: Call, close_xrcd: Call, _ABI_placeholder3: u64, sz: usize,
        context: ibv_context,
    }
    ibv_device_attr {
        fw_ver: [c_char; 64], node_guid: u64, sys_image_guid: u64, max_mr_size: u64,
        page_size_cap: u64, vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: c_int,
        max_qp_wr: c_int, device_cap_flags: c_uint, max_sge: c_int, max_sge_rd: c_int,
        max_cq: c_int, max_cqe: c_int, max_mr: c_int, max_pd: c_int, max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int, max_res_rd_atom: c_int, max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int, atomic_cap: c_int, max_ee: c_int, max_rdd: c_int,
        max_mw: c_int, max_raw_ipv6_qp: c_int, max_raw_ethy_qp: c_int, max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int, max_total_mcast_qp_attach: c_int, max_ah: c_int,
        max_fmr: c_int, max_map_per_fmr: c_int, max_srq: c_int, max_srq_wr: c_int,
        max_srq_sge: c_int, max_pkeys: u16, local_ca_ack_delay: u8, phys_port_cnt: u8,
    }
    ibv_device_attr_ex {
        orig_attr: ibv_device_attr, comp_mask: u32, odp_caps: [u64; 3],
        completion_timestamp_mask: u64, hca_core_clock: u64, device_cap_flags_ex: u64,
        tso_caps: [u32; 2], rss_caps: [u64; 4], max_wq_type_rq: u32,
        packet_pacing_caps: [u32; 3], raw_packet_caps: u32, tm_caps: [u32; 5],
        cq_mod_caps: [u16; 2], max_dm_size: u64, pci_atomic_caps: [u16; 3], xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }
    ibv_port_attr {
        state: c_int, max_mtu: c_int, active_mtu: c_int, gid_tbl_len: c_int,
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32,
        pkey_tbl_len: u16, lid: u16, sm_lid: u16, lmc: u8, max_vl_num: u8, sm_sl: u8,
        subnet_timeout: u8, init_type_reply: u8, active_width: u8, active_speed: u8,
        phys_state: u8, link_layer: u8, flags: u8, port_cap_flags2: u16,
    }
    ibv_gid_entry {
        gid: [u64; 2], gid_index: u32, port_num: u32, gid_type: u32, ndev_ifindex: u32,
    }
    ibv_async_event { element: *mut c_void, event_type: c_int, }
    ibv_wc {
        wr_id: u64, status: c_int, opcode: c_int, vendor_err: u32, byte_len: u32, imm_data: u32,
        qp_num: u32, src_qp: u32, wc_flags: c_uint, pkey_index: u16, slid: u16, sl: u8,
        dlid_path_bits: u8,
    }
    ibv_pd { context: *mut ibv_context, handle: u32, }
    ibv_mr {
        context: *mut ibv_context, pd: *mut ibv_pd, addr: *mut c_void, length: usize,
        handle: u32, lkey: u32, rkey: u32,
    }
    ibv_global_route {
        dgid: [u64; 2], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8,
    }
    ibv_ah_attr {
        grh: ibv_global_route, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8,
        is_global: u8, port_num: u8,
    }
    ibv_ah { context: *mut ibv_context, pd: *mut ibv_pd, handle: u32, }
    ibv_srq_attr { max_wr: u32, max_sge: u32, srq_limit: u32, }
    ibv_srq_init_attr { srq_context: *mut c_void, attr: ibv_srq_attr, }
    ibv_srq_init_attr_ex {
        srq_context: *mut c_void, attr: ibv_srq_attr, comp_mask: u32, srq_type: c_int,
        pd: *mut ibv_pd, xrcd: *mut c_void, cq: *mut ibv_cq, tm_cap: [u32; 2],
    }
    ibv_qp_cap {
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32,
        max_inline_data: u32,
    }
    ibv_qp_init_attr {
        qp_context: *mut c_void, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, srq: *mut ibv_srq,
        cap: ibv_qp_cap, qp_type: c_int, sq_sig_all: c_int,
    }
    ibv_qp_init_attr_ex {
        qp_context: *mut c_void, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, srq: *mut ibv_srq,
        cap: ibv_qp_cap, qp_type: c_int, sq_sig_all: c_int, comp_mask: u32, pd: *mut ibv_pd,
        xrcd: *mut c_void, create_flags: u32, max_tso_header: u16, rwq_ind_tbl: *mut c_void,
        rx_hash_conf: [u64; 3], source_qpn: u32, send_ops_flags: u64,
    }
    ibv_qp_attr {
        qp_state: c_int, cur_qp_state: c_int, path_mtu: c_int, path_mig_state: c_int, qkey: u32,
        rq_psn: u32, sq_psn: u32, dest_qp_num: u32, qp_access_flags: c_uint, cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr, alt_ah_attr: ibv_ah_attr, pkey_index: u16, alt_pkey_index: u16,
        en_sqd_async_notify: u8, sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8,
        min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8,
        alt_port_num: u8, alt_timeout: u8, rate_limit: u32,
    }
    ibv_data_buf { addr: *mut c_void, length: usize, }
    ibv_sge { addr: u64, length: u32, lkey: u32, }
    ibv_send_wr {
        wr_id: u64, next: *mut ibv_send_wr, sg_list: *mut ibv_sge, num_sge: c_int,
        opcode: c_int, send_flags: c_uint, imm_data: u32, wr: WrTarget, qp_type: u32,
        bind_mw: [u64; 6],
    }
    ibv_recv_wr {
        wr_id: u64, next: *mut ibv_recv_wr, sg_list: *mut ibv_sge, num_sge: c_int,
    }
    ibv_srq {
        context: *mut ibv_context, srq_context: *mut c_void, pd: *mut ibv_pd, handle: u32,
        mutex: libc::pthread_mutex_t, cond: libc::pthread_cond_t, events_completed: u32,
    }
    ibv_qp {
        context: *mut ibv_context, qp_context: *mut c_void, pd: *mut ibv_pd,
        send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, srq: *mut ibv_srq, handle: u32, qp_num: u32,
        state: c_int, qp_type: c_int, mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t, events_completed: u32,
    }
    ibv_qp_ex {
        qp_base: ibv_qp, comp_mask: u64, wr_id: u64, wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(
            *mut ibv_qp_ex, usize, *const ibv_data_buf)>,
        wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
        wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
        wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    }
    ibv_comp_channel { context: *mut ibv_context, fd: c_int, refcnt: c_int, }
    ibv_cq {
        context: *mut ibv_context, channel: *mut ibv_comp_channel, cq_context: *mut c_void,
        handle: u32, cqe: c_int, mutex: libc::pthread_mutex_t, cond: libc::pthread_cond_t,
        comp_events_completed: u32, async_events_completed: u32,
    }
    ibv_cq_ex {
        context: *mut ibv_context, channel: *mut ibv_comp_channel, cq_context: *mut c_void,
        handle: u32, cqe: c_int, mutex: libc::pthread_mutex_t, cond: libc::pthread_cond_t,
        comp_events_completed: u32, async_events_completed: u32, comp_mask: u32, status: c_int,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
        read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
        read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
        read_sl: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>,
        read_completion_ts: Call, read_cvlan: Call, read_flow_tag: Call, read_tm_info: Call,
        read_completion_wallclock_ns: Call,
    }
    ibv_cq_init_attr_ex {
        cqe: u32, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: u32,
        wc_flags: u64, comp_mask: u32, flags: u32, parent_domain: *mut ibv_pd,
    }
}

/// The target of work: the interface's union `wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union WrTarget {
    pub(crate) rdma: RdmaTarget,
    pub(crate) atomic: AtomicTarget,
    pub(crate) ud: UdTarget,
}

/// The target of a datagram.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdTarget {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The target of a write or a read.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaTarget {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// The target of an atomic.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AtomicTarget {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// A structure of zeros, which is a valid value of each of this interface's.
pub(crate) fn zeroed<T: Copy>() -> T {
    // SAFETY: structures of numbers, pointers and optional calls (`layouts!` makes no other).
    unsafe { std::mem::zeroed() }
}

/// Events of connections, of `enum rdma_cm_event_type`.
pub(crate) const EVENTS: [&std::ffi::CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];
pub(crate) const ADDR_RESOLVED: c_int = 0;
pub(crate) const ADDR_ERROR: c_int = 1;
pub(crate) const ROUTE_RESOLVED: c_int = 2;
pub(crate) const CONNECT_REQUEST: c_int = 4;
pub(crate) const CONNECT_ERROR: c_int = 6;
pub(crate) const UNREACHABLE: c_int = 7;
pub(crate) const REJECTED: c_int = 8;
pub(crate) const ESTABLISHED: c_int = 9;
pub(crate) const DISCONNECTED: c_int = 10;

pub(crate) const RDMA_PS_TCP: c_int = 0x106;
pub(crate) const RAI_PASSIVE: c_int = 1;
pub(crate) const RAI_NUMERICHOST: c_int = 2;
pub(crate) const RAI_NOROUTE: c_int = 4;
pub(crate) const RAI_FAMILY: c_int = 8;

macro_rules! cm_layouts {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(non_camel_case_types, missing_docs)] // the interface's own names
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        )*
        /// As [`layouts`], for librdmacm.
        fn cm_layouts() -> Vec<(&'static str, usize, &'static str, usize)> {
            let mut all = Vec::new();
            $($(all.push((
                stringify!($name), size_of::<$name>(), stringify!($field),
                std::mem::offset_of!($name, $field),
            ));)*)*
            all
        }
    };
}

cm_layouts! {
    rdma_addr { src_storage: Address, dst_storage: Address, addr: [u64; 5], }
    rdma_route { addr: rdma_addr, path_rec: *mut c_void, num_paths: c_int, }
    rdma_event_channel { fd: c_int, }
    rdma_cm_id {
        verbs: *mut ibv_context, channel: *mut rdma_event_channel, context: *mut c_void,
        qp: *mut ibv_qp, route: rdma_route, ps: c_int, port_num: u8, event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel, send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel, recv_cq: *mut ibv_cq, srq: *mut ibv_srq,
        pd: *mut ibv_pd, qp_type: c_int,
    }
    rdma_conn_param {
        private_data: *const c_void, private_data_len: u8, responder_resources: u8,
        initiator_depth: u8, flow_control: u8, retry_count: u8, rnr_retry_count: u8, srq: u8,
        qp_num: u32,
    }
    rdma_ud_param {
        private_data: *const c_void, private_data_len: u8, ah_attr: ibv_ah_attr, qp_num: u32,
        qkey: u32,
    }
    rdma_cm_event {
        id: *mut rdma_cm_id, listen_id: *mut rdma_cm_id, event: c_int, status: c_int,
        param: Param,
    }
    rdma_addrinfo {
        ai_flags: c_int, ai_family: c_int, ai_qp_type: c_int, ai_port_space: c_int,
        ai_src_len: libc::socklen_t, ai_dst_len: libc::socklen_t,
        ai_src_addr: *mut libc::sockaddr, ai_dst_addr: *mut libc::sockaddr,
        ai_src_canonname: *mut c_char, ai_dst_canonname: *mut c_char, ai_route_len: usize,
        ai_route: *mut c_void, ai_connect_len: usize, ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }
}

/// Room for a socket's address.
pub(crate) type Address = libc::sockaddr_storage;

/// Parameters of an event: the interface's union `param`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Param {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
}
