//! The lines `--name=value` at a script's head.

use super::error::Problem;
use super::script::Settings;
use crate::tcp::congestion::Algorithm;
use std::net::IpAddr;
use std::str::FromStr;

/// Sets what one line says; `setting` is behind the `--`.
pub(crate) fn set(settings: &mut Settings, setting: &str) -> Result<(), Problem> {
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
                _ => return Err(wrong("`cubic` or `reno`")),
            };
        }
        "tolerance_usecs" => settings.tolerance_us = number(value, wrong)?,
        "mtu" => settings.mtu_bytes = number(value, wrong)?,
        "tso" => settings.super_segments = switch()?,
        "send_bytes" => settings.send_bytes = number(value, wrong)?,
        "receive_bytes" => settings.receive_bytes = number(value, wrong)?,
        "window_scale" => settings.window_scale = number(value, wrong)?,
        "window_scaling" => settings.window_scaling = switch()?,
        "timestamps" => settings.timestamps = switch()?,
        "sack" => settings.sack = switch()?,
        "time_wait_ms" => settings.time_wait_ms = number(value, wrong)?,
        "delayed_ack_us" => settings.delayed_ack_us = number(value, wrong)?,
        "sessions_max" => settings.sessions_max = number(value, wrong)?,
        "seed" => settings.seed = number(value, wrong)?,
        _ => return Err(wrong("there is no such setting")),
    }
    Ok(())
}
