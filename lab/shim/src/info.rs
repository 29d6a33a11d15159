//! Session state in the kernel's structures.
//!
//! Source: the kernel's `include/uapi/linux/tcp.h` (`struct tcp_info`) and `linux/sock_diag.h`
//! (`SK_MEMINFO`). Values that the stack does not count are 0.

use sidecore_net_drill::{phase_number, state_number, threshold_segments};
use sidecore_net_stack::SessionInfo;

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
    out[4] = info.retries;
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
