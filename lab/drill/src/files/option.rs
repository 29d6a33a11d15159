//! Options of sockets: the ones that C programs set and get.

use super::{Answer, Errno, Files, Kind, errno, fail};
use sidecore_net_stack::Algorithm;
use sidecore_net_stack::Keepalive;
use sidecore_net_stack::SessionOption;
use sidecore_net_stack::Stack;
use sidecore_net_stack::StampKinds;
use sidecore_net_stack::{ListenerId, SessionId};

/// A value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionValue {
    /// Of most.
    Number(i32),
    /// Of `SO_LINGER`: whether, and for how many seconds.
    Linger(bool, i32),
    /// Of `TCP_CONGESTION`.
    Name(String),
}

/// Socket options requested before a session exists to set them on; inherited from a listener.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestedOptions {
    no_delay: Option<bool>,
    cork: Option<bool>,
    keep_alive: Option<bool>,
    keepalive: Keepalive,
    pub(super) send_bytes: Option<u32>,
    receive_bytes: Option<u32>,
    segment_bytes_max: Option<u16>,
    user_timeout_ms: Option<u32>,
    congestion: Option<Algorithm>,
    unsent_low: Option<u32>,
    traffic_class: Option<u8>,
    /// `SO_TIMESTAMPING`'s flags.
    stamps: u32,
    /// `IP_MTU_DISCOVER`: the requested value. The path's MTU is discovered in any case.
    discover: Option<i32>,
    pub(super) zero_copy: bool,
    linger: Option<(bool, i32)>,
    reuse_address: bool,
    reuse_port: bool,
    only_v6: bool,
}

impl RequestedOptions {
    /// True if close(2) resets the connection: `SO_LINGER` with a time of zero.
    pub(super) fn resets(&self) -> bool {
        self.linger == Some((true, 0))
    }

    /// True if stamps tell which byte they are of.
    pub(super) fn numbers_stamps(&self) -> bool {
        self.stamps & libc::SOF_TIMESTAMPING_OPT_ID != 0
    }

    pub(super) fn apply(&self, stack: &mut Stack, id: SessionId) -> Answer<()> {
        self.options()
            .try_for_each(|option| stack.set_option(id, option).map_err(errno))
    }

    pub(super) fn apply_to_listener(&self, stack: &mut Stack, id: ListenerId) -> Answer<()> {
        self.options()
            .try_for_each(|option| stack.set_listener_option(id, option).map_err(errno))
    }

    fn options(&self) -> impl Iterator<Item = SessionOption> {
        let keepalive = self.keep_alive.map(|on| on.then_some(self.keepalive));
        let has = |flag| self.stamps & flag != 0;
        let stamps = StampKinds {
            scheduled: has(libc::SOF_TIMESTAMPING_TX_SCHED),
            sent: has(libc::SOF_TIMESTAMPING_TX_SOFTWARE),
            acknowledged: has(libc::SOF_TIMESTAMPING_TX_ACK),
        };
        let stamps = (self.stamps != 0).then_some(SessionOption::Stamps(stamps));
        let options = [
            self.no_delay.map(SessionOption::NoDelay),
            self.cork.map(SessionOption::Cork),
            keepalive.map(SessionOption::Keepalive),
            self.send_bytes.map(SessionOption::SendMemory),
            self.receive_bytes.map(SessionOption::ReceiveBytes),
            self.segment_bytes_max.map(SessionOption::SegmentBytesMax),
            self.user_timeout_ms.map(SessionOption::UserTimeout),
            self.congestion.map(SessionOption::Congestion),
            self.unsent_low.map(SessionOption::UnsentLow),
            self.traffic_class.map(SessionOption::TrafficClass),
            stamps,
        ];
        options.into_iter().flatten()
    }
}

impl Files {
    /// setsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT` for what is not known, `EINVAL` for a value out of range.
    pub fn set_option(
        &mut self,
        fd: i32,
        level: i32,
        name: i32,
        value: &OptionValue,
    ) -> Answer<()> {
        let socket = self.socket_mut(fd)?;
        let kind = socket.kind;
        let requested = &mut socket.requested;
        let number = match value {
            OptionValue::Number(number) => *number,
            OptionValue::Linger(on, _) => i32::from(*on),
            OptionValue::Name(_) => 0,
        };
        let on = number != 0;
        let size = || u32::try_from(number).map_err(|_| Errno(libc::EINVAL));
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => requested.reuse_address = on,
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => requested.reuse_port = on,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => requested.only_v6 = on,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let OptionValue::Linger(on, seconds) = *value else {
                    return fail(libc::EINVAL);
                };
                requested.linger = Some((on, seconds));
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => requested.keep_alive = Some(on),
            // Linux doubles both, for its overhead on top of the bytes (socket(7)). It lets a
            // writer use nearly all of that; the window is half of it.
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                let doubled = size()?.saturating_mul(2);
                requested.send_bytes = Some(doubled.clamp(SEND_MIN, BUFFER_MAX));
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                requested.receive_bytes = Some(size()?.clamp(BUFFER_MIN, BUFFER_MAX));
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => requested.no_delay = Some(on),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => requested.cork = Some(on),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if (88..=32_767).contains(&number) => {
                requested.segment_bytes_max = Some(number as u16);
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => return fail(libc::EINVAL),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if number > 0 => {
                requested.keepalive.idle_s = size()?;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) if number > 0 => {
                requested.keepalive.interval_s = size()?;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) if (1..128).contains(&number) => {
                requested.keepalive.probes = number as u8;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT) => {
                return fail(libc::EINVAL);
            }
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => {
                requested.unsent_low = Some(number as u32);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // One byte counts, as on Linux; -1 is the default.
                requested.traffic_class = Some(if number < 0 { 0 } else { number as u8 });
            }
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) if (0..=5).contains(&number) => {
                requested.discover = Some(number);
            }
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => return fail(libc::EINVAL),
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) if (0..=1).contains(&number) => {
                requested.zero_copy = on;
            }
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => return fail(libc::EINVAL),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => requested.stamps = number as u32,
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                requested.user_timeout_ms = Some(size()?)
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                requested.congestion = Some(match value {
                    OptionValue::Name(name) if name == "cubic" => Algorithm::Cubic,
                    OptionValue::Name(name) if name == "reno" => Algorithm::Reno,
                    OptionValue::Name(name) if name == "bbr" => Algorithm::Bbr,
                    _ => return fail(libc::ENOENT),
                });
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => {
                // It ends by itself; it cannot be turned off.
                if let Kind::Session(id) = kind
                    && on
                {
                    let stack = self.host.stack();
                    stack
                        .set_option(id, SessionOption::QuickAck)
                        .map_err(errno)?;
                }
                return Ok(());
            }
            _ => return fail(libc::ENOPROTOOPT),
        }
        let mut requested = requested.clone();
        match kind {
            Kind::Session(id) => {
                if (level, name) != (libc::IPPROTO_TCP, libc::TCP_NODELAY) {
                    // Setting it again flushes the held data: tcp(7).
                    requested.no_delay = None;
                }
                requested.apply(self.host.stack(), id)?;
                self.host.flush();
            }
            Kind::Listener(id) => requested.apply_to_listener(self.host.stack(), id)?,
            _ => {}
        }
        Ok(())
    }

    /// getsockopt(2), for all but structures (see [`Files::info`]).
    ///
    /// # Errors
    /// `ENOPROTOOPT` for what is not known.
    pub fn option(&mut self, fd: i32, level: i32, name: i32) -> Answer<OptionValue> {
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            let error = self.take_error(fd)?;
            return Ok(OptionValue::Number(error.map_or(0, |Errno(number)| number)));
        }
        let info = self.info(fd).ok();
        let socket = self.socket_at(fd)?;
        let udp = matches!(socket.kind, Kind::Udp(_));
        let requested = &socket.requested;
        let bytes = |number: Option<u32>, default: u32| number.unwrap_or(default) as i32;
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_TYPE) if udp => libc::SOCK_DGRAM,
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) if udp => libc::IPPROTO_UDP,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                i32::from(matches!(socket.kind, Kind::Listener(_)))
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => i32::from(requested.reuse_address),
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => i32::from(requested.reuse_port),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => i32::from(requested.only_v6),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => i32::from(requested.keep_alive == Some(true)),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => bytes(requested.send_bytes, BUFFER_DEFAULT),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                bytes(requested.receive_bytes, BUFFER_DEFAULT).saturating_mul(2)
            }
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => i32::from(requested.zero_copy),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) => requested.stamps as i32,
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => bytes(requested.unsent_low, 0),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                i32::from(requested.traffic_class.unwrap_or(0))
            }
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => {
                requested.discover.unwrap_or(libc::IP_PMTUDISC_WANT)
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, seconds) = requested.linger.unwrap_or_default();
                return Ok(OptionValue::Linger(on, seconds));
            }
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => i32::from(requested.no_delay == Some(true)),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => i32::from(requested.cork == Some(true)),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let requested = requested.segment_bytes_max.map_or(MSS_DEFAULT, i32::from);
                info.map_or(requested, |info| i32::from(info.mss))
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => requested.keepalive.idle_s as i32,
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => requested.keepalive.interval_s as i32,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => i32::from(requested.keepalive.probes),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => bytes(requested.user_timeout_ms, 0),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let now = info.map(|info| info.congestion).or(requested.congestion);
                let name = match now.unwrap_or_default() {
                    Algorithm::Reno => "reno",
                    Algorithm::Cubic => "cubic",
                    Algorithm::Bbr => "bbr",
                };
                return Ok(OptionValue::Name(name.to_owned()));
            }
            _ => return fail(libc::ENOPROTOOPT),
        };
        Ok(OptionValue::Number(number))
    }
}

/// Bounds of a session's buffers, in bytes, and what they are unless set.
const BUFFER_MIN: u32 = 4096;
/// Linux's `SOCK_MIN_SNDBUF`.
const SEND_MIN: u32 = 4608;
const BUFFER_MAX: u32 = 8 << 20;
const BUFFER_DEFAULT: u32 = 1 << 20;
/// Before a session says otherwise: RFC 9293 section 3.7.1.
const MSS_DEFAULT: i32 = 536;
