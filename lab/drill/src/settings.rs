//! The lines `--name=value` at a script's head.

use super::error::Problem;
use sidecore_net_stack::{Algorithm, Behaviour, Cidr, Config, Ecn, Offers, Route};
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Settings from the `--name=value` lines at the head of a script.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Address family of addresses that a script leaves out (`...`): true for IPv6.
    pub v6: bool,
    /// The stack's addresses; all other hosts' are behind them.
    pub local_v4: IpAddr,
    /// See `local_v4`.
    pub local_v6: IpAddr,
    /// The peer's.
    pub remote_v4: IpAddr,
    /// See `remote_v4`.
    pub remote_v6: IpAddr,
    /// Largest difference between a packet's or result's time and the script's, in microseconds.
    pub tolerance_us: u64,
    /// Of the link, in bytes.
    pub mtu_bytes: usize,
    /// Segmentation offload: packets of up to 64 KiB are expected where it is on.
    pub super_segments: bool,
    /// See [`Config`].
    pub congestion: Algorithm,
    /// See [`Config`].
    pub send_bytes: u32,
    /// Send buffer of new sockets as `getsockopt` of `SO_SNDBUF` tells it; see
    /// [`SessionOption::SendMemory`](sidecore_net_stack::SessionOption::SendMemory).
    pub send_memory: Option<u32>,
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
    pub ecn: Ecn,
    /// See [`Config`]; off unless a script asks, as the packets that Linux's scripts expect are not
    /// paced.
    pub pacing: bool,
    /// See [`Config`].
    pub behaviour: Behaviour,
    /// A file: while it exists, the link takes no packets.
    pub stopped_by: Option<PathBuf>,
    /// See [`Config`].
    pub time_wait_ms: u32,
    /// See [`Config`].
    pub delayed_ack_us: u32,
    /// See [`Config`].
    pub restart_after_idle: bool,
    /// See [`Config`].
    pub unsent_low_bytes: u32,
    /// See [`Config`].
    pub burst_segments_min: u16,
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
            send_memory: None,
            receive_bytes: config.receive_bytes,
            window_scale: config.window_scale,
            window_scaling: config.offers.window_scaling,
            timestamps: config.offers.timestamps,
            sack: config.offers.sack,
            ecn: config.ecn,
            pacing: false,
            behaviour: config.behaviour,
            stopped_by: None,
            time_wait_ms: config.time_wait_ms,
            delayed_ack_us: config.delayed_ack_us,
            restart_after_idle: config.restart_after_idle,
            unsent_low_bytes: config.unsent_low_bytes,
            burst_segments_min: config.burst_segments_min,
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

    /// Applies a line `--name=value` at a script's head; `setting` is `name=value`.
    ///
    /// # Errors
    /// [`Problem::Syntax`](super::Problem::Syntax).
    pub fn set(&mut self, setting: &str) -> Result<(), super::Problem> {
        set(self, setting)
    }

    /// Stack configuration of the host under test.
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
            offers: Offers {
                window_scaling: self.window_scaling,
                timestamps: self.timestamps,
                sack: self.sack,
            },
            ecn: self.ecn,
            pacing: self.pacing,
            congestion: self.congestion,
            behaviour: self.behaviour,
            delayed_ack_us: self.delayed_ack_us,
            restart_after_idle: self.restart_after_idle,
            unsent_low_bytes: self.unsent_low_bytes,
            burst_segments_min: self.burst_segments_min,
            time_wait_ms: self.time_wait_ms,
            ..Config::default()
        }
    }
}

/// Sets what one line says; `setting` is behind the `--`.
fn set(settings: &mut Settings, setting: &str) -> Result<(), Problem> {
    let wrong = |rule: &str| Problem::Syntax(format!("`--{setting}`: {rule}"));
    let Some((name, value)) = setting.split_once('=') else {
        return Err(wrong("settings are written --name=value"));
    };
    let (name, value) = (name.trim(), value.trim());
    let switch = || match value {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err(wrong("`on` or `off`")),
    };
    fn number<T: FromStr>(value: &str, wrong: impl Fn(&str) -> Problem) -> Result<T, Problem> {
        value.parse().map_err(|_| wrong("a number in range"))
    }
    match name {
        "ip_version" => {
            settings.v6 = match value {
                "ipv4" => false,
                "ipv6" => true,
                _ => return Err(wrong("`ipv4` or `ipv6`")),
            };
        }
        "local_ip" | "remote_ip" => {
            let address: IpAddr = value.parse().map_err(|_| wrong("an address"))?;
            let place = match (name, address.is_ipv4()) {
                ("local_ip", true) => &mut settings.local_v4,
                ("local_ip", false) => &mut settings.local_v6,
                (_, true) => &mut settings.remote_v4,
                (_, false) => &mut settings.remote_v6,
            };
            *place = address;
        }
        "congestion" => {
            settings.congestion = match value {
                "cubic" => Algorithm::Cubic,
                "reno" => Algorithm::Reno,
                "bbr" => Algorithm::Bbr,
                _ => return Err(wrong("`cubic`, `reno` or `bbr`")),
            };
        }
        "ecn" => {
            settings.ecn = match value {
                "off" => Ecn::Off,
                "passive" => Ecn::Passive,
                "active" => Ecn::Active,
                "accurate" => Ecn::Accurate,
                _ => return Err(wrong("`off`, `passive`, `active` or `accurate`")),
            };
        }
        "behaviour" => {
            settings.behaviour = match value {
                "standard" => Behaviour::Standard,
                "linux" => Behaviour::Linux,
                _ => return Err(wrong("`standard` or `linux`")),
            };
        }
        "stopped_by" => settings.stopped_by = Some(PathBuf::from(value)),
        "pacing" => settings.pacing = switch()?,
        "tolerance_usecs" => settings.tolerance_us = number(value, wrong)?,
        "mtu" => settings.mtu_bytes = number(value, wrong)?,
        "tso" => settings.super_segments = switch()?,
        "send_bytes" => settings.send_bytes = number(value, wrong)?,
        "send_memory" => settings.send_memory = Some(number(value, wrong)?),
        "receive_bytes" => settings.receive_bytes = number(value, wrong)?,
        "window_scale" => settings.window_scale = number(value, wrong)?,
        "window_scaling" => settings.window_scaling = switch()?,
        "timestamps" => settings.timestamps = switch()?,
        "sack" => settings.sack = switch()?,
        "time_wait_ms" => settings.time_wait_ms = number(value, wrong)?,
        "delayed_ack_us" => settings.delayed_ack_us = number(value, wrong)?,
        "restart_after_idle" => settings.restart_after_idle = switch()?,
        "unsent_low_bytes" => settings.unsent_low_bytes = number(value, wrong)?,
        "burst_segments_min" => settings.burst_segments_min = number(value, wrong)?,
        "sessions_max" => settings.sessions_max = number(value, wrong)?,
        "seed" => settings.seed = number(value, wrong)?,
        _ => return Err(wrong("there is no such setting")),
    }
    Ok(())
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
