//! Layouts and numbers of librdmacm's interface, as of rdma-core 44; the rules of `abi` apply.

use crate::abi::{ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_srq};
use std::ffi::{c_char, c_int, c_void};

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

macro_rules! layouts {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(non_camel_case_types, missing_docs)] // the interface's own names
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        )*
        /// As `abi::layouts`.
        pub(crate) fn layouts() -> Vec<(&'static str, usize, &'static str, usize)> {
            let mut all = Vec::new();
            $($(all.push((
                stringify!($name), size_of::<$name>(), stringify!($field),
                std::mem::offset_of!($name, $field),
            ));)*)*
            all
        }
    };
}

layouts! {
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
