//! Session state in the kernel's structures.
//!
//! Source: the kernel's `include/uapi/linux/tcp.h` (`struct tcp_info`) and `linux/sock_diag.h`
//! (`SK_MEMINFO`). What the stack does not count is 0.

use sidecore_net_drill::state_number;
use sidecore_net_stack::SessionInfo;

/// Bytes of `struct tcp_info` up to and with `tcpi_snd_wnd`.
const TCP_INFO_BYTES: usize = 232;
/// Flag of `tcpi_options`: timestamps are on.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const SCALE: u8 = 4;
const ECN: u8 = 8;
const ECN_SEEN: u8 = 16;
/// Value of `tcpi_ca_state`: recovery.
const RECOVERY: u8 = 3;
const LOSS: u8 = 4;

/// `struct tcp_info`.
pub(crate) fn tcp_info(info: &SessionInfo) -> [u8; TCP_INFO_BYTES] {
    let mut out = [0; TCP_INFO_BYTES];
    let mss = u32::from(info.mss).max(1);
    out[0] = state_number(info.state);
    out[1] = match (info.recovering, info.retries) {
        (_, 1..) => LOSS,
        (true, 0) => RECOVERY,
        (false, 0) => 0,
    };
    out[2] = info.retries;
    out[4] = info.retries;
    let scaled = info.scales != (0, 0);
    for (on, bit) in [
        (info.timestamps, TIMESTAMPS),
        (info.sack, SACK),
        (scaled, SCALE),
        (info.ecn, ECN),
        (info.ecn_seen, ECN_SEEN),
    ] {
        out[5] |= if on { bit } else { 0 };
    }
    out[6] = info.scales.0 & 15 | info.scales.1 << 4;
    // Each where the kernel has it.
    let numbers = [
        (8, info.timeout_us),
        (16, mss),
        (24, info.in_flight.div_ceil(mss)),
        (68, info.rtt_us),
        (72, info.rttvar_us),
        (76, (info.threshold / mss).min(SSTHRESH_INFINITE)),
        (80, info.window / mss),
        (100, info.retransmitted),
        (144, info.unsent),
        (148, info.rtt_min_us),
        (228, info.peer_window),
    ];
    for (at, number) in numbers {
        out[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    out
}

/// The kernel's `TCP_INFINITE_SSTHRESH`.
const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;

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
