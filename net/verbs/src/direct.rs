//! One pair that its program connects itself: the states of ibv_modify_qp(3), and its peer.
//!
//! Must stay true: a change of state has the attributes that verbs demand, within their ranges, or
//! changes nothing.

use crate::abi::*;
use crate::address::{self, identifier};
use crate::device::READS_MAX;
use crate::fast::Held;
use crate::pair::reset;
use crate::state::Core;
use sidecore_rdma::ConnectionId;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

/// The time between two attempts to connect: it doubles.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// The unit of a pair's time limit, four times: an adapter may take so long (InfiniBand, volume 1,
/// section 9.7.6.1.3).
const TICK: Duration = Duration::from_nanos(4 * 4096);

/// One end: the identifier of its port, and its pair's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) gid: Ipv6Addr,
    pub(crate) number: u32,
}

/// A pair with a peer that the program has named.
pub(crate) struct Direct {
    pub(crate) own: Point,
    pub(crate) peer: Point,
    pub(crate) stage: Stage,
    pause: Duration,
    pub(crate) next_try: Instant,
    /// The time when work that waits has waited too long.
    pub(crate) deadline: Option<Instant>,
    /// Requests that wait for the connection.
    pub(crate) held: VecDeque<Held>,
    /// Receives of a connection that has ended.
    kept: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Apart,
    /// This side has asked.
    Asking(ConnectionId),
    /// This side has answered.
    Answered,
    Joined,
    /// The peer has left.
    Gone,
}

impl Direct {
    pub(crate) fn new(own: Point, peer: Point) -> Self {
        Self {
            own,
            peer,
            stage: Stage::Apart,
            pause: PAUSES[0],
            next_try: Instant::now(),
            deadline: None,
            held: VecDeque::new(),
            kept: Vec::new(),
        }
    }

    pub(crate) fn is_joined(&self) -> bool {
        self.stage == Stage::Joined
    }

    /// Keeps a receive that no message can fill any more: it is reported with the pair's error.
    pub(crate) fn keep(&mut self, id: u64) {
        self.kept.push(id);
    }

    pub(crate) fn take_kept(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.kept)
    }

    pub(crate) fn is_its_own_peer(&self) -> bool {
        self.own == self.peer
    }

    /// True if this side connects; otherwise it is asked.
    pub(crate) fn connects(&self) -> bool {
        self.own <= self.peer
    }

    pub(crate) fn retry_later(&mut self) {
        self.stage = Stage::Apart;
        self.next_try = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(PAUSES[1]);
    }

    /// The next time at which something is to be done.
    pub(crate) fn due(&self) -> Option<Instant> {
        let next_try = (self.stage == Stage::Apart && self.connects()).then_some(self.next_try);
        next_try.into_iter().chain(self.deadline).min()
    }
}

/// The private data of both first frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) from: Point,
    /// The number of the pair that is meant.
    pub(crate) to: u32,
}

impl Greeting {
    const MAGIC: [u8; 8] = *b"SC-pair1";
    const BYTES: usize = 32;

    pub(crate) fn of(direct: &Direct) -> Self {
        Self {
            from: direct.own,
            to: direct.peer.number,
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..24].copy_from_slice(&self.from.gid.octets());
        bytes[24..28].copy_from_slice(&self.from.number.to_be_bytes());
        bytes[28..].copy_from_slice(&self.to.to_be_bytes());
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let gid: [u8; 16] = std::array::from_fn(|at| bytes[8 + at]);
        let from = Point {
            gid: gid.into(),
            number: number(24),
        };
        let to = number(28);
        bytes.starts_with(&Self::MAGIC).then_some(Self { from, to })
    }
}

/// A pair's time limit for work; none for ever.
pub(crate) fn patience(timeout: u8, retries: u8) -> Option<Duration> {
    let once = TICK.saturating_mul(1 << timeout.min(31));
    (timeout > 0).then(|| once.saturating_mul(1 + u32::from(retries)))
}

/// The identifiers of both ends of a route.
///
/// # Errors
/// EINVAL: no global route, another port, an identifier that no peer has.
pub(crate) fn ends_of(route: &ibv_ah_attr) -> Result<(Ipv6Addr, Ipv6Addr), c_int> {
    let place = address::places().get(usize::from(route.grh.sgid_index));
    // RoCE has no local routes.
    let place = place.filter(|_| route.is_global != 0 && route.port_num == 1);
    let own = place.ok_or(libc::EINVAL)?.ip;
    let peer = address::from_halves(route.grh.dgid);
    // Of IPv4, too: a datagram to all must not leave.
    let address = peer.to_canonical();
    let is_one = !address.is_unspecified() && !address.is_multicast();
    // An address of one family has no way to one of the other.
    let is_reachable = address.is_ipv4() == own.is_ipv4();
    match is_one && is_reachable {
        true => Ok((identifier(own), peer)),
        false => Err(libc::EINVAL),
    }
}

/// Attributes that a change of state must have, and those that it may have besides (InfiniBand,
/// volume 1, section 10.2.4); none if there is no such change. Other paths are not offered.
pub(crate) fn change(from: c_int, to: c_int) -> Option<(c_int, c_int)> {
    let place = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    let later = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
    let sending = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    let receiving = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    Some(match (from, to) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => (0, 0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => (place, 0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => (0, place),
        (IBV_QPS_INIT, IBV_QPS_RTR) => (receiving, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX),
        (IBV_QPS_RTR, IBV_QPS_RTS) => (sending | IBV_QP_SQ_PSN, later),
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => (0, later),
        (IBV_QPS_RTS, IBV_QPS_SQD) => (0, IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (IBV_QPS_SQD, IBV_QPS_SQD) => {
            let served = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            (0, place | sending | served)
        }
        _ => return None,
    })
}

/// The same for datagram pairs.
fn change_of_datagrams(from: c_int, to: c_int) -> Option<(c_int, c_int)> {
    let place = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    let later = IBV_QP_CUR_STATE | IBV_QP_QKEY;
    Some(match (from, to) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => (0, 0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => (place, 0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => (0, place),
        (IBV_QPS_INIT, IBV_QPS_RTR) => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        (IBV_QPS_RTR, IBV_QPS_RTS) => (IBV_QP_SQ_PSN, later),
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => (0, later),
        (IBV_QPS_RTS, IBV_QPS_SQD) => (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (IBV_QPS_SQD, IBV_QPS_SQD) => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        _ => return None,
    })
}

/// True if the attributes of a mask are within their ranges.
fn is_valid(attr: &ibv_qp_attr, mask: c_int) -> bool {
    let reads = u32::from(READS_MAX);
    let mtu = u32::try_from(attr.path_mtu).unwrap_or(0);
    let ranges = [
        (IBV_QP_PKEY_INDEX, attr.pkey_index.into(), 0..=0),
        (IBV_QP_PORT, attr.port_num.into(), 1..=1),
        (IBV_QP_PATH_MTU, mtu, 1..=5),
        (IBV_QP_DEST_QPN, attr.dest_qp_num, 0..=0xff_ffff),
        (IBV_QP_TIMEOUT, attr.timeout.into(), 0..=31),
        (IBV_QP_RETRY_CNT, attr.retry_cnt.into(), 0..=7),
        (IBV_QP_RNR_RETRY, attr.rnr_retry.into(), 0..=7),
        (IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer.into(), 0..=31),
        (
            IBV_QP_MAX_QP_RD_ATOMIC,
            attr.max_rd_atomic.into(),
            0..=reads,
        ),
        (
            IBV_QP_MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic.into(),
            0..=reads,
        ),
    ];
    let mut all = ranges.into_iter();
    all.all(|(bit, value, range): (c_int, u32, _)| mask & bit == 0 || range.contains(&value))
}

/// Takes over the attributes of a mask.
fn apply(own: &mut ibv_qp_attr, attr: &ibv_qp_attr, mask: c_int) {
    macro_rules! take {
        ($($bit:ident: $field:ident;)*) => {$(
            if mask & $bit != 0 {
                own.$field = attr.$field;
            }
        )*};
    }
    take! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_DEST_QPN: dest_qp_num;
    }
}

impl Core {
    /// Changes a pair that librdmacm has not connected.
    ///
    /// # Errors
    /// EINVAL: there is no such change, an attribute is missing, is one too many, or out of range.
    /// Nothing is changed then.
    pub(crate) fn change_pair(
        &mut self,
        handle: u32,
        attr: &ibv_qp_attr,
        mask: c_int,
    ) -> Result<(), c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        let from = qp.state;
        let to = match mask & IBV_QP_STATE {
            0 => from,
            _ => attr.qp_state,
        };
        let is_datagram = qp.is_datagram;
        let changes = match is_datagram {
            true => change_of_datagrams(from, to),
            false => change(from, to),
        };
        let (required, optional) = changes.ok_or(libc::EINVAL)?;
        let given = mask & !IBV_QP_STATE;
        let is_current = mask & IBV_QP_CUR_STATE == 0 || attr.cur_qp_state == from;
        if given & required != required
            || given & !(required | optional) != 0
            || !is_current
            || !is_valid(attr, mask)
        {
            return Err(libc::EINVAL);
        }
        // A pair without a number of a peer is librdmacm's, which connects it later.
        let is_named = mask & IBV_QP_DEST_QPN != 0 && attr.dest_qp_num != 0;
        let is_direct = (from, to) == (IBV_QPS_INIT, IBV_QPS_RTR) && is_named;
        let begins = (from, to) == (IBV_QPS_RESET, IBV_QPS_INIT);
        if begins && is_datagram {
            self.datagrams
                .open(&mut self.device, self.exchange.port())?;
        }
        if is_direct {
            self.meet(handle, attr)?;
        }
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        apply(&mut qp.attr, attr, mask);
        let number = qp.number;
        match (from, to) {
            (_, IBV_QPS_ERR) => {
                // What was reported as sent is sent.
                self.drain(handle);
                self.fail_pair(handle);
            }
            (_, IBV_QPS_RESET) => reset(self, handle),
            _ => self.set_state(handle, to),
        }
        if begins && !is_datagram {
            // From now on the peer may ask; without a port, the next change says so.
            self.exchange.listen(&mut self.device).ok();
        }
        if is_direct {
            self.answer_parked(number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(text: &str, number: u32) -> Point {
        Point {
            gid: text.parse().unwrap(),
            number,
        }
    }

    #[test]
    fn a_greeting_of_other_bytes_is_none() {
        let greeting = Greeting {
            from: point("::ffff:192.0.2.7", 0x123_4567),
            to: 0x89_abcd,
        };
        let bytes = greeting.to_bytes();
        assert_eq!(Greeting::read(&bytes), Some(greeting));
        for count in 0..bytes.len() {
            assert_eq!(Greeting::read(&bytes[..count]), None);
        }
        assert_eq!(Greeting::read(&[&bytes[..], &[0]].concat()), None);
        for at in 0..bytes.len() {
            let mut other = bytes;
            other[at] ^= 0x80;
            // Each bit counts: in the name of the protocol, or as a value of its own.
            let read = Greeting::read(&other);
            assert_ne!(read, Some(greeting));
            assert_eq!(read.is_none(), at < 8, "{at}");
        }
    }

    #[test]
    fn one_side_connects() {
        let all = [
            point("::ffff:192.0.2.7", 5),
            point("::ffff:192.0.2.7", 6),
            point("::ffff:192.0.2.8", 5),
            point("2001:db8::1", 1),
        ];
        for a in all {
            for b in all {
                let (one, other) = (Direct::new(a, b), Direct::new(b, a));
                assert_eq!(one.is_its_own_peer(), a == b);
                // A pair that is its own peer does both.
                assert_eq!(one.connects() && other.connects(), a == b);
                assert!(one.connects() || other.connects());
            }
        }
    }

    #[test]
    fn patience_is_a_power_of_two() {
        assert_eq!(patience(0, 7), None);
        for (timeout, retries, nanoseconds) in [
            (1, 0, 4 * 2 * 4096),
            (14, 7, 4 * 8 * (4096 << 14)),
            (31, 7, 4 * 8 * (4096 << 31)),
        ] {
            let expected = Duration::from_nanos(nanoseconds);
            assert_eq!(patience(timeout, retries), Some(expected));
        }
    }

    #[test]
    fn a_route_to_all_or_to_nothing_is_none() {
        for (place, index) in address::places().iter().zip(0_u8..) {
            let mut route: ibv_ah_attr = zeroed();
            (route.is_global, route.port_num, route.grh.sgid_index) = (1, 1, index);
            route.grh.dgid = address::gid(place.ip);
            let own = identifier(place.ip);
            assert_eq!(ends_of(&route), Ok((own, own)));
            for text in ["::", "ff02::1", "::ffff:0.0.0.0", "::ffff:224.0.0.1"] {
                let other: Ipv6Addr = text.parse().unwrap();
                route.grh.dgid = address::gid(other.into());
                assert_eq!(ends_of(&route), Err(libc::EINVAL), "{text}");
            }
        }
    }

    #[test]
    fn states_follow_one_another_as_verbs_say() {
        let states = IBV_QPS_RESET..=IBV_QPS_ERR;
        let mut found = Vec::new();
        for from in states.clone() {
            for to in states.clone() {
                if let Some((required, optional)) = change(from, to) {
                    assert_eq!(required & optional, 0, "{from} to {to}");
                    found.push((from, to));
                }
            }
        }
        // Of those to other states than reset and error.
        found.retain(|&(_, to)| to != IBV_QPS_RESET && to != IBV_QPS_ERR);
        let expected = [
            (0, 1),
            (1, 1),
            (1, 2),
            (2, 3),
            (3, 3),
            (3, 4),
            (4, 3),
            (4, 4),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        let mut direct = Direct::new(point("::1", 1), point("::1", 2));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pauses.push(direct.pause);
            direct.retry_later();
        }
        assert!(pauses.is_sorted() && pauses[0] == PAUSES[0] && pauses[9] == PAUSES[1]);
        // With nothing to wait for but the next attempt, that is due; then an earlier limit.
        assert_eq!(direct.due(), Some(direct.next_try));
        let limit = direct.next_try - Duration::from_millis(1);
        direct.deadline = Some(limit);
        assert_eq!(direct.due(), Some(limit));
        direct.stage = Stage::Answered;
        assert_eq!(direct.due(), Some(limit));
    }
}
