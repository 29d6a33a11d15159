//! Layouts and numbers of libfabric's interface, as of its version 1.17 (its installed headers and
//! manual pages are the source; `tests/words.rs` compares them).
//!
//! Must stay true: every type here is `repr(C)` and as long as the header's; structures end where
//! version 1.17 ends them.

use std::ffi::{c_char, c_int, c_void};

/// A version's number.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

pub(crate) const FI_MSG: u64 = 1 << 1;
pub(crate) const FI_RMA: u64 = 1 << 2;
pub(crate) const FI_ATOMIC: u64 = 1 << 4;
pub(crate) const FI_READ: u64 = 1 << 8;
pub(crate) const FI_WRITE: u64 = 1 << 9;
pub(crate) const FI_RECV: u64 = 1 << 10;
pub(crate) const FI_SEND: u64 = 1 << 11;
pub(crate) const FI_REMOTE_READ: u64 = 1 << 12;
pub(crate) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const FI_PEEK: u64 = 1 << 19;
pub(crate) const FI_FENCE: u64 = 1 << 21;
pub(crate) const FI_COMPLETION: u64 = 1 << 24;
pub(crate) const FI_INJECT: u64 = 1 << 25;
pub(crate) const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub(crate) const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(crate) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const FI_LOCAL_COMM: u64 = 1 << 51;
pub(crate) const FI_REMOTE_COMM: u64 = 1 << 52;
pub(crate) const FI_NUMERICHOST: u64 = 1 << 55;
pub(crate) const FI_SOURCE: u64 = 1 << 57;
pub(crate) const FI_RX_CQ_DATA: u64 = 1 << 56;
pub(crate) const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
// Used by fi_query_atomic only: the bit has other meanings elsewhere.
pub(crate) const FI_FETCH_ATOMIC: u64 = 1 << 58;
pub(crate) const FI_COMPARE_ATOMIC: u64 = 1 << 59;

pub(crate) const FI_MR_BASIC: c_int = 1;
pub(crate) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(crate) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(crate) const FI_MR_PROV_KEY: c_int = 1 << 6;

/// Orders that the protocol guarantees: all except a read that a later write or send may overtake.
pub(crate) const ORDERS: u64 =
    1 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 32 | 1 << 33 | 1 << 35;
pub(crate) const FI_ORDER_STRICT: u64 = 0x1ff;

pub(crate) const FI_FORMAT_UNSPEC: u32 = 0;
pub(crate) const FI_SOCKADDR: u32 = 1;
pub(crate) const FI_SOCKADDR_IN: u32 = 2;
pub(crate) const FI_SOCKADDR_IN6: u32 = 3;

pub(crate) const FI_EP_UNSPEC: c_int = 0;
pub(crate) const FI_EP_MSG: c_int = 1;
pub(crate) const FI_PROTO_IWARP: u32 = 2;
pub(crate) const FI_THREAD_SAFE: c_int = 1;
pub(crate) const FI_THREAD_ENDPOINT: c_int = 5;
pub(crate) const FI_PROGRESS_AUTO: c_int = 1;
pub(crate) const FI_PROGRESS_MANUAL: c_int = 2;
pub(crate) const FI_RM_ENABLED: c_int = 2;

pub(crate) const FI_CLASS_FABRIC: usize = 1;
pub(crate) const FI_CLASS_DOMAIN: usize = 2;
pub(crate) const FI_CLASS_EP: usize = 3;
pub(crate) const FI_CLASS_SRX_CTX: usize = 6;
pub(crate) const FI_CLASS_PEP: usize = 9;
pub(crate) const FI_CLASS_MR: usize = 12;
pub(crate) const FI_CLASS_EQ: usize = 13;
pub(crate) const FI_CLASS_CQ: usize = 14;
pub(crate) const FI_CLASS_CNTR: usize = 15;
pub(crate) const FI_CLASS_CONNREQ: usize = 18;

pub(crate) const FI_GETOPSFLAG: c_int = 2;
pub(crate) const FI_SETOPSFLAG: c_int = 3;
pub(crate) const FI_GETWAIT: c_int = 5;
pub(crate) const FI_ENABLE: c_int = 6;
pub(crate) const FI_BACKLOG: c_int = 7;
pub(crate) const FI_GETWAITOBJ: c_int = 16;

pub(crate) const FI_OPT_ENDPOINT: c_int = 0;
pub(crate) const FI_OPT_CM_DATA_SIZE: c_int = 1;

pub(crate) const FI_NOTIFY: u32 = 0;
pub(crate) const FI_CONNREQ: u32 = 1;
pub(crate) const FI_CONNECTED: u32 = 2;
pub(crate) const FI_SHUTDOWN: u32 = 3;

pub(crate) const FI_WAIT_NONE: c_int = 0;
pub(crate) const FI_WAIT_UNSPEC: c_int = 1;
pub(crate) const FI_WAIT_FD: c_int = 3;

pub(crate) const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub(crate) const FI_CQ_FORMAT_MSG: c_int = 2;
pub(crate) const FI_CQ_FORMAT_DATA: c_int = 3;
pub(crate) const FI_CQ_FORMAT_TAGGED: c_int = 4;

pub(crate) const FI_ETOOSMALL: i32 = 257;
pub(crate) const FI_EAVAIL: i32 = 259;
pub(crate) const FI_ENOCQ: i32 = 263;

pub(crate) const FI_SHARED_CONTEXT: usize = usize::MAX;

pub(crate) const FI_INT64: c_int = 6;
pub(crate) const FI_UINT64: c_int = 7;
pub(crate) const FI_SUM: c_int = 2;
pub(crate) const FI_BOR: c_int = 6;
pub(crate) const FI_BAND: c_int = 7;
pub(crate) const FI_BXOR: c_int = 9;
pub(crate) const FI_ATOMIC_READ: c_int = 10;
pub(crate) const FI_ATOMIC_WRITE: c_int = 11;
pub(crate) const FI_CSWAP: c_int = 12;
pub(crate) const FI_MSWAP: c_int = 18;

/// Declares structures of plain words; all of them are copied as they are.
macro_rules! layouts {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        )*

        /// Name, size, last field and its offset, for each.
        #[doc(hidden)]
        #[must_use]
        pub fn layouts() -> Vec<(&'static str, usize, &'static str, usize)> {
            vec![$({
                let fields = [$((stringify!($field), std::mem::offset_of!($name, $field))),*];
                let last = fields[fields.len() - 1];
                (stringify!($name), size_of::<$name>(), last.0, last.1)
            }),*]
        }
    };
}

type Fn1<R> = Option<unsafe extern "C" fn() -> R>;

layouts! {
    fid { fclass: usize, context: *mut c_void, ops: *const fi_ops, }
    fi_ops {
        size: usize,
        close: Option<unsafe extern "C" fn(*mut fid) -> c_int>,
        bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
        control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
        ops_open: Option<unsafe extern "C" fn(
            *mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int>,
        tostr: Fn1<c_int>,
        ops_set: Fn1<c_int>,
    }
    fi_tx_attr {
        caps: u64, mode: u64, op_flags: u64, msg_order: u64, comp_order: u64,
        inject_size: usize, size: usize, iov_limit: usize, rma_iov_limit: usize, tclass: u32,
    }
    fi_rx_attr {
        caps: u64, mode: u64, op_flags: u64, msg_order: u64, comp_order: u64,
        total_buffered_recv: usize, size: usize, iov_limit: usize,
    }
    fi_ep_attr {
        type_: c_int, protocol: u32, protocol_version: u32, max_msg_size: usize,
        msg_prefix_size: usize, max_order_raw_size: usize, max_order_war_size: usize,
        max_order_waw_size: usize, mem_tag_format: u64, tx_ctx_cnt: usize, rx_ctx_cnt: usize,
        auth_key_size: usize, auth_key: *mut u8,
    }
    fi_domain_attr {
        domain: *mut fid_domain, name: *mut c_char, threading: c_int, control_progress: c_int,
        data_progress: c_int, resource_mgmt: c_int, av_type: c_int, mr_mode: c_int,
        mr_key_size: usize, cq_data_size: usize, cq_cnt: usize, ep_cnt: usize,
        tx_ctx_cnt: usize, rx_ctx_cnt: usize, max_ep_tx_ctx: usize, max_ep_rx_ctx: usize,
        max_ep_stx_ctx: usize, max_ep_srx_ctx: usize, cntr_cnt: usize, mr_iov_limit: usize,
        caps: u64, mode: u64, auth_key: *mut u8, auth_key_size: usize, max_err_data: usize,
        mr_cnt: usize, tclass: u32,
    }
    fi_fabric_attr {
        fabric: *mut fid_fabric, name: *mut c_char, prov_name: *mut c_char, prov_version: u32,
        api_version: u32,
    }
    fi_info {
        next: *mut fi_info, caps: u64, mode: u64, addr_format: u32, src_addrlen: usize,
        dest_addrlen: usize, src_addr: *mut c_void, dest_addr: *mut c_void, handle: *mut fid,
        tx_attr: *mut fi_tx_attr, rx_attr: *mut fi_rx_attr, ep_attr: *mut fi_ep_attr,
        domain_attr: *mut fi_domain_attr, fabric_attr: *mut fi_fabric_attr, nic: *mut c_void,
    }
    fi_provider {
        version: u32, fi_version: u32, context: [*mut c_void; 4], name: *const c_char,
        getinfo: Option<unsafe extern "C" fn(
            u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int>,
        fabric: Option<unsafe extern "C" fn(
            *mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int>,
        cleanup: Option<unsafe extern "C" fn()>,
    }
    fi_ops_fabric {
        size: usize,
        domain: Option<unsafe extern "C" fn(
            *mut fid_fabric, *mut fi_info, *mut *mut fid_domain, *mut c_void) -> c_int>,
        passive_ep: Option<unsafe extern "C" fn(
            *mut fid_fabric, *mut fi_info, *mut *mut fid_pep, *mut c_void) -> c_int>,
        eq_open: Option<unsafe extern "C" fn(
            *mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, *mut c_void) -> c_int>,
        wait_open: Fn1<c_int>,
        trywait: Option<unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int>,
        domain2: Fn1<c_int>,
    }
    fid_fabric { fid: fid, ops: *const fi_ops_fabric, api_version: u32, }
    fi_ops_domain {
        size: usize,
        av_open: Fn1<c_int>,
        cq_open: Option<unsafe extern "C" fn(
            *mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, *mut c_void) -> c_int>,
        endpoint: Option<unsafe extern "C" fn(
            *mut fid_domain, *mut fi_info, *mut *mut fid_ep, *mut c_void) -> c_int>,
        scalable_ep: Fn1<c_int>,
        cntr_open: Option<unsafe extern "C" fn(
            *mut fid_domain, *mut fi_cntr_attr, *mut *mut fid_cntr, *mut c_void) -> c_int>,
        poll_open: Fn1<c_int>,
        stx_ctx: Fn1<c_int>,
        srx_ctx: Option<unsafe extern "C" fn(
            *mut fid_domain, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int>,
        query_atomic: Option<unsafe extern "C" fn(
            *mut fid_domain, c_int, c_int, *mut fi_atomic_attr, u64) -> c_int>,
        query_collective: Fn1<c_int>,
        endpoint2: Fn1<c_int>,
    }
    fi_ops_mr {
        size: usize,
        reg: Option<unsafe extern "C" fn(
            *mut fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void)
            -> c_int>,
        regv: Option<unsafe extern "C" fn(
            *mut fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut fid_mr, *mut c_void)
            -> c_int>,
        regattr: Option<unsafe extern "C" fn(
            *mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int>,
    }
    fid_domain { fid: fid, ops: *const fi_ops_domain, mr: *const fi_ops_mr, }
    fid_mr { fid: fid, mem_desc: *mut c_void, key: u64, }
    fi_mr_attr {
        mr_iov: *const iovec, iov_count: usize, access: u64, offset: u64, requested_key: u64,
        context: *mut c_void, auth_key_size: usize, auth_key: *mut u8, iface: c_int, device: u64,
    }
    iovec { iov_base: *mut c_void, iov_len: usize, }
    fi_eq_attr {
        size: usize, flags: u64, wait_obj: c_int, signaling_vector: c_int,
        wait_set: *mut c_void,
    }
    fi_ops_eq {
        size: usize,
        read: Option<unsafe extern "C" fn(
            *mut fid_eq, *mut u32, *mut c_void, usize, u64) -> isize>,
        readerr: Option<unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize>,
        write: Option<unsafe extern "C" fn(
            *mut fid_eq, u32, *const c_void, usize, u64) -> isize>,
        sread: Option<unsafe extern "C" fn(
            *mut fid_eq, *mut u32, *mut c_void, usize, c_int, u64) -> isize>,
        strerror: Option<unsafe extern "C" fn(
            *mut fid_eq, c_int, *const c_void, *mut c_char, usize) -> *const c_char>,
    }
    fid_eq { fid: fid, ops: *const fi_ops_eq, }
    fi_eq_entry { fid: *mut fid, context: *mut c_void, data: u64, }
    fi_eq_err_entry {
        fid: *mut fid, context: *mut c_void, data: u64, err: c_int, prov_errno: c_int,
        err_data: *mut c_void, err_data_size: usize,
    }
    fi_cq_attr {
        size: usize, flags: u64, format: c_int, wait_obj: c_int, signaling_vector: c_int,
        wait_cond: c_int, wait_set: *mut c_void,
    }
    fi_ops_cq {
        size: usize,
        read: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize>,
        readfrom: Option<unsafe extern "C" fn(
            *mut fid_cq, *mut c_void, usize, *mut u64) -> isize>,
        readerr: Option<unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize>,
        sread: Option<unsafe extern "C" fn(
            *mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize>,
        sreadfrom: Option<unsafe extern "C" fn(
            *mut fid_cq, *mut c_void, usize, *mut u64, *const c_void, c_int) -> isize>,
        signal: Option<unsafe extern "C" fn(*mut fid_cq) -> c_int>,
        strerror: Option<unsafe extern "C" fn(
            *mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char>,
    }
    fid_cq { fid: fid, ops: *const fi_ops_cq, }
    fi_cq_tagged_entry {
        op_context: *mut c_void, flags: u64, len: usize, buf: *mut c_void, data: u64, tag: u64,
    }
    fi_cq_err_entry {
        op_context: *mut c_void, flags: u64, len: usize, buf: *mut c_void, data: u64, tag: u64,
        olen: usize, err: c_int, prov_errno: c_int, err_data: *mut c_void, err_data_size: usize,
    }
    fi_cntr_attr { events: c_int, wait_obj: c_int, wait_set: *mut c_void, flags: u64, }
    fi_ops_cntr {
        size: usize,
        read: Option<unsafe extern "C" fn(*mut fid_cntr) -> u64>,
        readerr: Option<unsafe extern "C" fn(*mut fid_cntr) -> u64>,
        add: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
        set: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
        wait: Option<unsafe extern "C" fn(*mut fid_cntr, u64, c_int) -> c_int>,
        adderr: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
        seterr: Option<unsafe extern "C" fn(*mut fid_cntr, u64) -> c_int>,
    }
    fid_cntr { fid: fid, ops: *const fi_ops_cntr, }
    fi_ops_ep {
        size: usize,
        cancel: Option<unsafe extern "C" fn(*mut fid, *mut c_void) -> isize>,
        getopt: Option<unsafe extern "C" fn(
            *mut fid, c_int, c_int, *mut c_void, *mut usize) -> c_int>,
        setopt: Option<unsafe extern "C" fn(
            *mut fid, c_int, c_int, *const c_void, usize) -> c_int>,
        tx_ctx: Fn1<c_int>,
        rx_ctx: Fn1<c_int>,
        rx_size_left: Fn1<isize>,
        tx_size_left: Fn1<isize>,
    }
    fi_ops_cm {
        size: usize,
        setname: Option<unsafe extern "C" fn(*mut fid, *mut c_void, usize) -> c_int>,
        getname: Option<unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int>,
        getpeer: Option<unsafe extern "C" fn(*mut fid_ep, *mut c_void, *mut usize) -> c_int>,
        connect: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, *const c_void, usize) -> c_int>,
        listen: Option<unsafe extern "C" fn(*mut fid_pep) -> c_int>,
        accept: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize) -> c_int>,
        reject: Option<unsafe extern "C" fn(
            *mut fid_pep, *mut fid, *const c_void, usize) -> c_int>,
        shutdown: Option<unsafe extern "C" fn(*mut fid_ep, u64) -> c_int>,
        join: Fn1<c_int>,
    }
    fi_msg {
        msg_iov: *const iovec, desc: *mut *mut c_void, iov_count: usize, addr: u64,
        context: *mut c_void, data: u64,
    }
    fi_ops_msg {
        size: usize,
        recv: Option<unsafe extern "C" fn(
            *mut fid_ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize>,
        recvv: Option<unsafe extern "C" fn(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> isize>,
        recvmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize>,
        send: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize>,
        sendv: Option<unsafe extern "C" fn(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> isize>,
        sendmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize>,
        inject: Option<unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64) -> isize>,
        senddata: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize>,
        injectdata: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, u64, u64) -> isize>,
    }
    fi_rma_iov { addr: u64, len: usize, key: u64, }
    fi_msg_rma {
        msg_iov: *const iovec, desc: *mut *mut c_void, iov_count: usize, addr: u64,
        rma_iov: *const fi_rma_iov, rma_iov_count: usize, context: *mut c_void, data: u64,
    }
    fi_ops_rma {
        size: usize,
        read: Option<unsafe extern "C" fn(
            *mut fid_ep, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize>,
        readv: Option<unsafe extern "C" fn(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void)
            -> isize>,
        readmsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize>,
        write: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void)
            -> isize>,
        writev: Option<unsafe extern "C" fn(
            *mut fid_ep, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void)
            -> isize>,
        writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize>,
        inject: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, u64, u64, u64) -> isize>,
        writedata: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, u64, u64, *mut c_void)
            -> isize>,
        injectdata: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, u64, u64, u64, u64) -> isize>,
    }
    fi_ioc { addr: *mut c_void, count: usize, }
    fi_rma_ioc { addr: u64, count: usize, key: u64, }
    fi_atomic_attr { count: usize, size: usize, }
    fi_msg_atomic {
        msg_iov: *const fi_ioc, desc: *mut *mut c_void, iov_count: usize, addr: u64,
        rma_iov: *const fi_rma_ioc, rma_iov_count: usize, datatype: c_int, op: c_int,
        context: *mut c_void, data: u64,
    }
    fi_ops_atomic {
        size: usize,
        write: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, u64, u64, u64, c_int, c_int,
            *mut c_void) -> isize>,
        writev: Option<unsafe extern "C" fn(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, u64, u64, u64, c_int, c_int,
            *mut c_void) -> isize>,
        writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_atomic, u64) -> isize>,
        inject: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, u64, u64, u64, c_int, c_int) -> isize>,
        readwrite: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64,
            u64, c_int, c_int, *mut c_void) -> isize>,
        readwritev: Option<unsafe extern "C" fn(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, *mut fi_ioc, *mut *mut c_void,
            usize, u64, u64, u64, c_int, c_int, *mut c_void) -> isize>,
        readwritemsg: Option<unsafe extern "C" fn(
            *mut fid_ep, *const fi_msg_atomic, *mut fi_ioc, *mut *mut c_void, usize, u64)
            -> isize>,
        compwrite: Option<unsafe extern "C" fn(
            *mut fid_ep, *const c_void, usize, *mut c_void, *const c_void, *mut c_void,
            *mut c_void, *mut c_void, u64, u64, u64, c_int, c_int, *mut c_void) -> isize>,
        compwritev: Option<unsafe extern "C" fn(
            *mut fid_ep, *const fi_ioc, *mut *mut c_void, usize, *const fi_ioc,
            *mut *mut c_void, usize, *mut fi_ioc, *mut *mut c_void, usize, u64, u64, u64, c_int,
            c_int, *mut c_void) -> isize>,
        compwritemsg: Option<unsafe extern "C" fn(
            *mut fid_ep, *const fi_msg_atomic, *const fi_ioc, *mut *mut c_void, usize,
            *mut fi_ioc, *mut *mut c_void, usize, u64) -> isize>,
        writevalid: Option<unsafe extern "C" fn(*mut fid_ep, c_int, c_int, *mut usize) -> c_int>,
        readwritevalid: Option<unsafe extern "C" fn(
            *mut fid_ep, c_int, c_int, *mut usize) -> c_int>,
        compwritevalid: Option<unsafe extern "C" fn(
            *mut fid_ep, c_int, c_int, *mut usize) -> c_int>,
    }
    fid_ep {
        fid: fid, ops: *const fi_ops_ep, cm: *const fi_ops_cm, msg: *const fi_ops_msg,
        rma: *const fi_ops_rma, tagged: *const c_void, atomic: *const fi_ops_atomic,
        collective: *const c_void,
    }
    fid_pep { fid: fid, ops: *const fi_ops_ep, cm: *const fi_ops_cm, }
}

/// Placeholder for an unsupported call that libfabric makes without a check.
///
/// # Safety
/// Always safe: it accesses nothing.
pub(crate) unsafe extern "C" fn missing_int() -> c_int {
    -libc::ENOSYS
}

/// The same, with the other return type.
///
/// # Safety
/// Always safe: it accesses nothing.
pub(crate) unsafe extern "C" fn missing_long() -> isize {
    -(libc::ENOSYS as isize)
}
