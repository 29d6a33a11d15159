//! A script as the parser leaves it: settings, then events in order.

use super::packet::Packet;
use super::pieces::Cut;
use crate::stack::config::{Cidr, Config, Route};
use crate::tcp::congestion::Algorithm;
use std::net::IpAddr;

/// What the lines `--name=value` at a script's head set.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Whether addresses that a script leaves out (`...`) are IPv6.
    pub v6: bool,
    /// The stack's addresses; everybody else's is behind them.
    pub local_v4: IpAddr,
    /// See `local_v4`.
    pub local_v6: IpAddr,
    /// The peer's.
    pub remote_v4: IpAddr,
    /// See `remote_v4`.
    pub remote_v6: IpAddr,
    /// How far a packet or a result may be from its time, in microseconds.
    pub tolerance_us: u64,
    /// Of the link, in bytes.
    pub mtu_bytes: usize,
    /// Whether the link cuts super-segments: packets of up to 64 KiB are then expected.
    pub super_segments: bool,
    /// See [`Config`].
    pub congestion: Algorithm,
    /// See [`Config`].
    pub send_bytes: u32,
    /// See [`Config`].
    pub receive_bytes: u32,
    /// See [`Config`].
    pub window_scale: u8,
    /// See [`Config`].
    pub window_scaling: bool,
    /// See [`Config`].
    pub timestamps: bool,
    /// See [`Config`].
    pub sack: bool,
    /// See [`Config`].
    pub time_wait_ms: u32,
    /// See [`Config`].
    pub delayed_ack_us: u32,
    /// See [`Config`].
    pub sessions_max: usize,
    /// See [`Config`].
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let config = Config::default();
        Self {
            v6: false,
            // RFC 1918 and RFC 4193 for us, RFC 5737 and RFC 3849 for the others.
            local_v4: IpAddr::from([192, 168, 0, 1]),
            local_v6: IpAddr::from([0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1]),
            remote_v4: IpAddr::from([192, 0, 2, 1]),
            remote_v6: IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
            tolerance_us: 1_000,
            mtu_bytes: 1_500,
            super_segments: false,
            congestion: config.congestion,
            send_bytes: config.send_bytes,
            receive_bytes: config.receive_bytes,
            window_scale: config.window_scale,
            window_scaling: config.window_scaling,
            timestamps: config.timestamps,
            sack: config.sack,
            time_wait_ms: config.time_wait_ms,
            delayed_ack_us: config.delayed_ack_us,
            sessions_max: 1_024,
            seed: 1,
        }
    }
}

impl Settings {
    /// Our address, of the family that the script is about.
    #[must_use]
    pub fn local(&self) -> IpAddr {
        if self.v6 {
            self.local_v6
        } else {
            self.local_v4
        }
    }

    /// The peer's.
    #[must_use]
    pub fn remote(&self) -> IpAddr {
        if self.v6 {
            self.remote_v6
        } else {
            self.remote_v4
        }
    }

    /// Sets what a line `--name=value` at a script's head sets; `setting` is `name=value`.
    ///
    /// # Errors
    /// [`Problem::Syntax`](super::Problem::Syntax).
    pub fn set(&mut self, setting: &str) -> Result<(), super::Problem> {
        super::settings::set(self, setting)
    }

    /// How the stack is set up.
    pub(crate) fn config(&self) -> Config {
        let cidr = |address, prefix_bits| Cidr {
            address,
            prefix_bits,
        };
        let all = |address, gateway| Route {
            network: cidr(address, 0),
            gateway,
        };
        Config {
            addresses: vec![cidr(self.local_v4, 16), cidr(self.local_v6, 48)],
            routes: vec![
                all(IpAddr::from([0; 4]), neighbour(self.local_v4)),
                all(IpAddr::from([0_u16; 8]), neighbour(self.local_v6)),
            ],
            seed: self.seed,
            sessions_max: self.sessions_max,
            buffers_bytes: 1 << 26,
            send_bytes: self.send_bytes,
            receive_bytes: self.receive_bytes,
            window_scale: self.window_scale,
            window_scaling: self.window_scaling,
            timestamps: self.timestamps,
            sack: self.sack,
            congestion: self.congestion,
            delayed_ack_us: self.delayed_ack_us,
            time_wait_ms: self.time_wait_ms,
            ..Config::default()
        }
    }
}

/// A router on the address's network: another last bit but one.
fn neighbour(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = v4.octets();
            bytes[3] ^= 3;
            IpAddr::from(bytes)
        }
        IpAddr::V6(v6) => {
            let mut words = v6.segments();
            words[3] ^= 0x8888;
            IpAddr::from(words)
        }
    }
}

/// A whole script.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// From its head.
    pub settings: Settings,
    /// In order.
    pub(crate) events: Vec<Event>,
}

/// One line, or one block of assertions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) when: When,
    pub(crate) action: Action,
}

/// What a time is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// The script's begin.
    Begin,
    /// The event before.
    Before,
    /// Nothing: any time will do.
    Any,
}

/// How far a time reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// It is one moment.
    Point,
    /// Anywhere up to this much after the event's time, in nanoseconds.
    Until(u64),
    /// A call that waits, and returns this much after it began.
    Blocks(u64),
}

/// When something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) base: Base,
    /// After its base, in nanoseconds.
    pub(crate) at_ns: u64,
    pub(crate) span: Span,
}

/// What happens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// The peer sends it, whole or in fragments.
    Inject(Flow, Packet, Option<Cut>),
    /// The stack sends it, whole or in fragments.
    Expect(Flow, Packet, Option<Cut>),
    /// The application calls.
    Call(Call),
    /// What must hold.
    Assert(Vec<Check>),
}

/// Which pair of ends a packet travels between; the first is 1.
pub(crate) type Flow = usize;

/// A call, and what it must return.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Vec<Value>,
    /// None where anything will do (`...`).
    pub(crate) result: Option<i64>,
    /// With `-1`, the error's name.
    pub(crate) error: Option<String>,
}

/// An argument.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// `...`: what is usual here.
    Usual,
    /// A number, or names of numbers joined by `|`.
    Number(i64),
    /// In quotes.
    Text(String),
    /// In brackets.
    List(Vec<Value>),
    /// In braces.
    Fields(Vec<(String, Value)>),
}

/// A comparison.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Check {
    pub(crate) left: Term,
    pub(crate) relation: Relation,
    pub(crate) right: Term,
}

/// How two values compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A side of a comparison: numbers and named values, joined by `+`, `-` and `*`, from left to right.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Term {
    pub(crate) first: Operand,
    pub(crate) rest: Vec<(char, Operand)>,
}

/// A number, or the name of one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Number(i64),
    /// The value's name, and of which descriptor if not of the newest session's.
    Named(String, Option<i32>),
}
