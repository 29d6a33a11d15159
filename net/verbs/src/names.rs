//! Names of numbers, and rates.

use crate::cm_abi;
use std::ffi::{CStr, c_char, c_int};

const NODES: [&CStr; 7] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
];
const PORTS: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];
const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];
const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory bind error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"remote aborted operation",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];
/// Rates: the interface's number, a multiple of 2.5 Gbit/s, Mbit/s.
const RATES: [(c_int, c_int, c_int); 10] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (15, 10, 25_781),
    (19, 20, 53_125),
    (16, 40, 103_125),
    (17, 80, 206_250),
];

fn text(table: &[&'static CStr], number: c_int) -> *const c_char {
    let found = usize::try_from(number).ok().and_then(|at| table.get(at));
    found.map_or(c"unknown", |text| text).as_ptr()
}

pub(crate) unsafe extern "C" fn node_type(number: c_int) -> *const c_char {
    text(&NODES, number)
}

pub(crate) unsafe extern "C" fn port_state(number: c_int) -> *const c_char {
    text(&PORTS, number)
}

pub(crate) unsafe extern "C" fn event_type(number: c_int) -> *const c_char {
    text(&EVENTS, number)
}

pub(crate) unsafe extern "C" fn wc_status(number: c_int) -> *const c_char {
    text(&STATUSES, number)
}

pub(crate) unsafe extern "C" fn cm_event(number: c_int) -> *const c_char {
    text(&cm_abi::EVENTS, number)
}

pub(crate) unsafe extern "C" fn rate_to_mult(rate: c_int) -> c_int {
    let found = RATES.iter().find(|one| one.0 == rate);
    found.map_or(-1, |one| one.1)
}

pub(crate) unsafe extern "C" fn mult_to_rate(mult: c_int) -> c_int {
    let found = RATES.iter().find(|one| one.1 == mult);
    found.map_or(0, |one| one.0)
}

pub(crate) unsafe extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
    let found = RATES.iter().find(|one| one.0 == rate);
    found.map_or(-1, |one| one.2)
}

pub(crate) unsafe extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    let found = RATES.iter().find(|one| one.2 == mbps);
    found.map_or(0, |one| one.0)
}
