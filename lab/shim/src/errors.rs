//! Control messages of the error queue: stamps and reports about writes without a copy.
//!
//! Source: cmsg(3), the kernel's `include/uapi/linux/errqueue.h`.

#![allow(unsafe_code)] // the C surface: writes what C's pointers point to

use libc::{c_int, msghdr};
use sidecore_net_drill::files::Report;

/// `sock_extended_err`'s origins: `SO_EE_ORIGIN_*`.
const ORIGIN_TIMESTAMPING: u8 = 4;
const ORIGIN_ZERO_COPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED`.
const CODE_COPIED: u8 = 1;
/// Bytes of the address behind `sock_extended_err`, which stay zero.
const V4_BYTES: usize = size_of::<libc::sockaddr_in>();
const V6_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// Bytes of `struct cmsghdr`.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

/// The control messages of a report.
pub(crate) fn control(report: &Report, v6: bool) -> Vec<u8> {
    let mut out = Vec::new();
    match report {
        Report::Stamp { kind, at_ns, byte } => {
            let (seconds, ns) = (at_ns / 1_000_000_000, at_ns % 1_000_000_000);
            // Three times, of which the stack has the first: that of software.
            let mut times = [0; 48];
            times[..8].copy_from_slice(&seconds.to_ne_bytes());
            times[8..16].copy_from_slice(&ns.to_ne_bytes());
            push(&mut out, libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, &times);
            let origin = [ORIGIN_TIMESTAMPING, 0, 0, 0];
            push_error(&mut out, v6, libc::ENOMSG, origin, (*kind, *byte));
        }
        Report::Copied(writes) => {
            let origin = [ORIGIN_ZERO_COPY, 0, CODE_COPIED, 0];
            push_error(&mut out, v6, 0, origin, (*writes.start(), *writes.end()));
        }
        _ => {}
    }
    out
}

/// `IP_RECVERR` or `IPV6_RECVERR` with a `sock_extended_err`; `origin`: its origin, type, code and
/// padding.
fn push_error(out: &mut Vec<u8>, v6: bool, errno: c_int, origin: [u8; 4], says: (u32, u32)) {
    let mut data = Vec::new();
    data.extend_from_slice(&errno.to_ne_bytes());
    data.extend_from_slice(&origin);
    data.extend_from_slice(&says.0.to_ne_bytes());
    data.extend_from_slice(&says.1.to_ne_bytes());
    let (level, kind, address) = if v6 {
        (libc::SOL_IPV6, libc::IPV6_RECVERR, V6_BYTES)
    } else {
        (libc::SOL_IP, libc::IP_RECVERR, V4_BYTES)
    };
    data.resize(data.len() + address, 0);
    push(out, level, kind, &data);
}

fn push(out: &mut Vec<u8>, level: c_int, kind: c_int, data: &[u8]) {
    out.extend_from_slice(&(HEADER_BYTES + data.len()).to_ne_bytes());
    out.extend_from_slice(&level.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(size_of::<usize>()), 0);
}

/// Writes control messages, as much of them as there is room for, and reports the received data: a
/// report, and none of the bytes that it is about.
///
/// # Safety
/// The message's control buffer is null or good for its length.
pub(crate) unsafe fn write(control: &[u8], message: &mut msghdr) {
    let room = if message.msg_control.is_null() {
        0
    } else {
        control.len().min(message.msg_controllen)
    };
    if room > 0 {
        // SAFETY: not null, and valid for this length, by the caller's promise.
        unsafe {
            message
                .msg_control
                .cast::<u8>()
                .copy_from_nonoverlapping(control.as_ptr(), room);
        }
    }
    message.msg_controllen = room;
    message.msg_namelen = 0;
    message.msg_flags = libc::MSG_ERRQUEUE | libc::MSG_TRUNC;
    if room < control.len() {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
}
