//! getsockopt(2) and setsockopt(2).
//!
//! Session state is in the kernel's structures: `include/uapi/linux/tcp.h` (`struct tcp_info`) and
//! `linux/sock_diag.h` (`SK_MEMINFO`). Values that the stack does not count are 0.
#![allow(unsafe_code)] // the C surface: reads and writes what C's pointers point to

use crate::abi::User;
use crate::shim::{self, c_result};
use libc::{c_int, c_void, socklen_t};
use sidecore_net_drill::files::{Answer, Errno, OptionValue};
use sidecore_net_drill::{phase_number, state_number, threshold_segments};
use sidecore_net_stack::SessionInfo;

/// The kernel's `include/uapi/asm-generic/socket.h` and `linux/tcp.h`, where libc has no name.
const SO_MEMINFO: c_int = 55;
const TCP_CC_INFO: c_int = 26;
/// Bytes of a congestion control's name: the kernel's `TCP_CA_NAME_MAX`.
const NAME_BYTES: usize = 16;

/// setsockopt(2).
pub(crate) unsafe extern "C" fn setsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let done = || -> Answer<c_int> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        if value.is_null() || len as usize > 4096 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: not null, and C says that there are `len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len as usize) };
        let number = |at: usize| -> Answer<c_int> {
            let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
            four.map(c_int::from_ne_bytes).ok_or(Errno(libc::EINVAL))
        };
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => OptionValue::Linger(number(0)? != 0, number(4)?),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
                OptionValue::Name(String::from_utf8_lossy(name).into_owned())
            }
            // One byte will do for these, as on Linux: ip(7).
            (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_MTU_DISCOVER) if bytes.len() == 1 => {
                OptionValue::Number(c_int::from(bytes[0]))
            }
            _ => OptionValue::Number(number(0)?),
        };
        let set = shim.call(
            |_| false,
            None,
            |files| files.set_option(fd, level, name, &value),
        );
        set.map(|()| 0)
    };
    c_result(done())
}

/// getsockopt(2): numbers, and the structures of `TCP_INFO`, `TCP_CC_INFO` and `SO_MEMINFO`.
pub(crate) unsafe extern "C" fn getsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let done = || -> Answer<c_int> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        if value.is_null() || len.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let mut state = shim.lock();
        let files = &mut state.files;
        let bytes = match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_INFO) => tcp_info(&files.info(fd)?).to_vec(),
            // Neither CUBIC nor Reno has more to report, here as in the kernel.
            (libc::IPPROTO_TCP, TCP_CC_INFO) => files.info(fd).map(|_| Vec::new())?,
            (libc::SOL_SOCKET, SO_MEMINFO) => {
                let sizes = [libc::SO_RCVBUF, libc::SO_SNDBUF];
                let [receive, send] = sizes.map(|size| match files.option(fd, level, size) {
                    Ok(OptionValue::Number(bytes)) => bytes as u32,
                    _ => 0,
                });
                memory(&files.info(fd)?, receive, send).to_vec()
            }
            _ => match files.option(fd, level, name)? {
                OptionValue::Number(number) => number.to_ne_bytes().to_vec(),
                OptionValue::Linger(on, seconds) => {
                    [c_int::from(on).to_ne_bytes(), seconds.to_ne_bytes()].concat()
                }
                OptionValue::Name(name) => {
                    let mut bytes = name.into_bytes();
                    bytes.resize(NAME_BYTES, 0);
                    bytes
                }
                _ => return Err(Errno(libc::ENOPROTOOPT)),
            },
        };
        // SAFETY: C says that `len` points to the number of bytes at `value`; no more are written.
        unsafe {
            let fits = bytes.len().min(*len as usize);
            value
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), fits);
            *len = fits as socklen_t;
        }
        Ok(0)
    };
    c_result(done())
}

/// Bytes of `struct tcp_info` as of Linux 6.18, with the counters of accurate ECN.
const TCP_INFO_BYTES: usize = 280;
/// Flags of `tcpi_options`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const SCALE: u8 = 4;
const ECN: u8 = 8;
const ECN_SEEN: u8 = 16;

/// `struct tcp_info`.
pub(crate) fn tcp_info(info: &SessionInfo) -> [u8; TCP_INFO_BYTES] {
    let mut out = [0; TCP_INFO_BYTES];
    let mss = u32::from(info.mss).max(1);
    out[0] = state_number(info.state);
    out[1] = phase_number(info.phase);
    // A timeout of a window probe is not one of data.
    out[2] = info.retries - info.window_probes;
    out[3] = info.window_probes;
    out[4] = info.backoffs;
    let scaled = info.scales != (0, 0);
    for (on, bit) in [
        (info.timestamps, TIMESTAMPS),
        (info.sack, SACK),
        (scaled, SCALE),
        (info.ecn.is_on(), ECN),
        (info.ecn_seen, ECN_SEEN),
    ] {
        out[5] |= if on { bit } else { 0 };
    }
    out[6] = info.scales.0 & 15 | info.scales.1 << 4;
    let acked = info.acked_bytes.div_ceil(mss);
    // Each at the kernel's offset.
    let numbers = [
        (8, info.timeout_us),
        (16, mss),
        (20, mss),
        (24, info.segments_unacked),
        (28, info.segments_sacked),
        (32, info.segments_lost),
        (36, info.segments_resent),
        (52, info.silent_ms),
        (56, info.silent_ms),
        (60, u32::from(info.path_mtu)),
        (64, info.receive_window),
        (68, info.rtt_us),
        (72, info.rttvar_us),
        (76, threshold_segments(info)),
        (80, info.window / mss),
        (84, u32::from(info.mss_announced)),
        (88, info.reordering_segments),
        (96, info.receive_window),
        (100, info.retransmitted),
        (144, info.unsent),
        (148, info.rtt_min_us),
        (192, acked + info.segments_sacked),
        (220, info.reorderings),
        (228, info.peer_window),
        (232, info.receive_window),
    ];
    for (at, number) in numbers {
        out[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    let numbers = [
        (104, pacing_rate(info)),
        (112, u64::MAX),
        (120, u64::from(info.acked_bytes)),
        (128, u64::from(info.received_bytes)),
        (168, info.busy_us),
        (176, info.window_limited_us),
        (184, info.buffer_limited_us),
        (200, u64::from(info.sent_bytes)),
        (208, u64::from(info.retransmitted) * u64::from(mss)),
    ];
    for (at, number) in numbers {
        out[at..at + 8].copy_from_slice(&number.to_ne_bytes());
    }
    out
}

/// Bytes in a second: a window in each round trip, an upper bound of the actual pacing rate.
fn pacing_rate(info: &SessionInfo) -> u64 {
    match info.rtt_us {
        0 => u64::MAX,
        rtt_us => u64::from(info.window) * 1_000_000 / u64::from(rtt_us),
    }
}

/// `SK_MEMINFO_VARS` numbers: what the two buffers hold and may hold, in bytes.
pub(crate) fn memory(info: &SessionInfo, receive_bytes: u32, send_bytes: u32) -> [u8; 36] {
    let written = info.in_flight + info.unsent;
    let numbers = [
        info.unread,
        receive_bytes,
        info.in_flight,
        send_bytes,
        0,
        written,
        0,
        0,
        0,
    ];
    let mut out = [0; 36];
    for (place, number) in out.chunks_exact_mut(4).zip(numbers) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    out
}
