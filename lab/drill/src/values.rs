//! Values of calls, and named ones for assertions: the state of a session, the stack's counters.
//!
//! Names that begin with `tcpi_` and their units are TCP_INFO's (the kernel's
//! `include/uapi/linux/tcp.h`); `net_` begins the stack's counters.

use super::error::Problem;
use super::files::{Errno, Files};
use super::script::{Check, Operand, Relation, Term};
use sidecore_net_stack::Counters;
use sidecore_net_stack::{EcnMode, RecoveryPhase, SessionInfo, SessionState};
use std::fmt;

/// Evaluates a comparison; names without a descriptor refer to `newest`.
pub(super) fn hold(check: &Check, files: &mut Files, newest: Option<i32>) -> Result<(), Problem> {
    let left = term(&check.left, files, newest)?;
    let right = term(&check.right, files, newest)?;
    let holds = match check.relation {
        Relation::Equal => left == right,
        Relation::Unequal => left != right,
        Relation::Less => left < right,
        Relation::LessOrEqual => left <= right,
        Relation::Greater => left > right,
        Relation::GreaterOrEqual => left >= right,
    };
    if holds {
        return Ok(());
    }
    let sign = super::parse::RELATIONS.iter();
    let sign = sign.clone().find(|(_, other)| *other == check.relation);
    Err(Problem::Assertion {
        what: format!(
            "{} {} {}",
            shown(&check.left),
            sign.map_or("", |(sign, _)| sign),
            shown(&check.right)
        ),
        left,
        right,
    })
}

fn shown(term: &Term) -> String {
    let operand = |operand: &Operand| match operand {
        Operand::Number(number) => number.to_string(),
        Operand::Named(name, Some(fd)) => format!("{name}[{fd}]"),
        Operand::Named(name, None) => name.clone(),
    };
    let mut out = operand(&term.first);
    for (sign, next) in &term.rest {
        out.push_str(&format!(" {sign} {}", operand(next)));
    }
    out
}

fn term(term: &Term, files: &mut Files, newest: Option<i32>) -> Result<i64, Problem> {
    let mut sum = operand(&term.first, files, newest)?;
    for (sign, next) in &term.rest {
        let next = operand(next, files, newest)?;
        sum = match sign {
            '+' => sum.saturating_add(next),
            '-' => sum.saturating_sub(next),
            _ => sum.saturating_mul(next),
        };
    }
    Ok(sum)
}

fn operand(operand: &Operand, files: &mut Files, newest: Option<i32>) -> Result<i64, Problem> {
    let (name, of) = match operand {
        Operand::Number(number) => return Ok(*number),
        Operand::Named(name, of) => (name, of),
    };
    let unknown = || Problem::Syntax(format!("`{name}` is no value that is known here"));
    if let Some(name) = name.strip_prefix("net_") {
        let stack = files.host().stack();
        if name == "sessions" {
            return Ok(stack.sessions() as i64);
        }
        return counter(&stack.counters(), name).ok_or_else(unknown);
    }
    let no_session = || Problem::Syntax(format!("`{name}`: there is no session"));
    let fd = of.or(newest).ok_or_else(no_session)?;
    let info = files.info(fd).map_err(|_| no_session())?;
    of_session(&info, name).ok_or_else(unknown)
}

fn of_session(info: &SessionInfo, name: &str) -> Option<i64> {
    let mss = u32::from(info.mss).max(1);
    let flying = info.in_flight;
    Some(match name {
        "tcpi_state" => i64::from(state_number(info.state)),
        "tcpi_snd_mss" => i64::from(info.mss),
        "tcpi_rto" => i64::from(info.timeout_us),
        "tcpi_rtt" => i64::from(info.rtt_us),
        "tcpi_rttvar" => i64::from(info.rttvar_us),
        "tcpi_min_rtt" => i64::from(info.rtt_min_us),
        "tcpi_snd_cwnd" => i64::from(info.window / mss),
        "tcpi_snd_ssthresh" => i64::from(threshold_segments(info)),
        "tcpi_unacked" => i64::from(info.segments_unacked),
        "tcpi_sacked" => i64::from(info.segments_sacked),
        "tcpi_lost" => i64::from(info.segments_lost),
        "tcpi_retrans" => i64::from(info.segments_resent),
        "tcpi_ca_state" => i64::from(phase_number(info.phase)),
        "tcpi_reordering" => i64::from(info.reordering_segments),
        "tcpi_reord_seen" => i64::from(info.reorderings),
        "tcpi_advmss" => i64::from(info.mss_announced),
        "tcpi_probes" => i64::from(info.window_probes),
        "tcpi_last_data_recv" => i64::from(info.silent_ms),
        "tcpi_busy_time" => i64::try_from(info.busy_us).unwrap_or(i64::MAX),
        "tcpi_rwnd_limited" => i64::try_from(info.window_limited_us).unwrap_or(i64::MAX),
        "tcpi_sndbuf_limited" => i64::try_from(info.buffer_limited_us).unwrap_or(i64::MAX),
        "tcpi_bytes_acked" => i64::from(info.acked_bytes),
        "tcpi_bytes_received" => i64::from(info.received_bytes),
        "tcpi_retransmits" => i64::from(info.retries),
        "tcpi_total_retrans" => i64::from(info.retransmitted),
        "tcpi_notsent_bytes" => i64::from(info.unsent),
        "tcpi_snd_wnd" => i64::from(info.peer_window),
        "tcpi_snd_wscale" => i64::from(info.scales.0),
        "tcpi_rcv_wscale" => i64::from(info.scales.1),
        // In bytes, where the kernel counts segments.
        "cwnd_bytes" => i64::from(info.window),
        "ssthresh_bytes" => i64::from(info.threshold),
        "in_flight_bytes" => i64::from(flying),
        "unread_bytes" => i64::from(info.unread),
        "recovering" => i64::from(info.recovering),
        "timestamps" => i64::from(info.timestamps),
        "sack" => i64::from(info.sack),
        "ecn" => i64::from(info.ecn.is_on()),
        "accurate_ecn" => i64::from(info.ecn == EcnMode::Accurate),
        "ecn_seen" => i64::from(info.ecn_seen),
        _ => return None,
    })
}

fn counter(counters: &Counters, name: &str) -> Option<i64> {
    let (_, value) = counters.named().find(|(known, _)| *known == name)?;
    i64::try_from(value).ok()
}

/// Slow-start threshold in segments, with the kernel's `TCP_INFINITE_SSTHRESH` for none.
#[must_use]
pub fn threshold_segments(info: &SessionInfo) -> u32 {
    match info.threshold {
        u32::MAX => 0x7fff_ffff,
        bytes => bytes / u32::from(info.mss).max(1),
    }
}

/// The kernel's number of a phase of loss recovery: `enum tcp_ca_state`.
#[must_use]
pub fn phase_number(phase: RecoveryPhase) -> u8 {
    match phase {
        RecoveryPhase::Open => 0,
        RecoveryPhase::Disorder => 1,
        RecoveryPhase::Reduction => 2,
        RecoveryPhase::Recovery => 3,
        RecoveryPhase::Loss => 4,
    }
}

/// The kernel's number of a state, as in TCP_INFO: `include/net/tcp_states.h`.
#[must_use]
pub fn state_number(state: SessionState) -> u8 {
    match state {
        SessionState::Established => 1,
        SessionState::SynSent => 2,
        SessionState::SynReceived => 3,
        SessionState::FinWait1 => 4,
        SessionState::FinWait2 => 5,
        SessionState::TimeWait => 6,
        SessionState::Closed => 7,
        SessionState::CloseWait => 8,
        SessionState::LastAck => 9,
        SessionState::Closing => 11,
    }
}

/// Result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Returned {
    Value(i64),
    Error(Errno),
    /// It cannot be done yet, and its descriptor waits.
    Waits,
    /// It returned, but its outputs differ from the script's.
    Other(String),
}

/// Progress of a blocking call.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// `connect` has begun.
    pub(crate) begun: bool,
    /// Bytes that `write` has handed over.
    pub(crate) written: usize,
    /// When `poll` gives up, on the virtual clock.
    pub(crate) until_ns: Option<u64>,
}

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::Error(error) => write!(f, "-1 {error}"),
            Self::Waits => write!(f, "nothing yet: it waits (write its time as FROM...TO)"),
            Self::Other(what) => write!(f, "{what}"),
        }
    }
}
