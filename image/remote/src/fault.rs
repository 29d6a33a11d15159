//! Failed requests, the distinction between transient and permanent faults, and the limits of
//! retries: exponential backoff with jitter.
//!
//! Must stay true: transient faults are retried, within [`crate::Retry`]. Permanent answers of a
//! server (no such object, no permission) are not, so that a wrong URL is refused at once. A
//! request is made [`Retry::attempts`] times at most. Pauses are drawn uniformly from half the
//! bound to the bound: clients that failed at the same time do not retry at the same time.

use sidecore_random::Random;
use std::io;
use std::time::Duration;

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A transient fault: the next attempt may succeed.
    #[error("{0}")]
    Passing(String),
    /// A permanent fault.
    #[error("{0}")]
    Final(String),
}

impl Fault {
    /// The fault for a status that is not a success.
    pub(crate) fn of_status(status: u16, doing: &str) -> Self {
        let text = |hint: &str| format!("the server answered {status} to {doing}{hint}");
        match status {
            // The server could not or would not yet: a later attempt may find it ready.
            408 | 425 | 429 | 500..=599 => Self::Passing(text("")),
            401 | 403 => Self::Final(text(": no right to it, or credentials are missing")),
            404 | 410 => Self::Final(text(": there is no such image")),
            412 | 416 => Self::Final(text(": the image has changed since it was opened")),
            _ => Self::Final(text("")),
        }
    }

    /// True if another attempt may help.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Passing(_))
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        Self::other(fault.to_string())
    }
}

impl From<reqwest::Error> for Fault {
    fn from(error: reqwest::Error) -> Self {
        // A URL may hold a signature; the innermost cause describes the fault.
        let error = error.without_url();
        let mut text = error.to_string();
        let mut is_mistrusted = false;
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            is_mistrusted |= is_of_certificate(error);
            let next = error.to_string();
            if !text.contains(&next) {
                text = format!("{text}: {next}");
            }
            cause = error.source();
        }
        if is_mistrusted {
            text.push_str(
                "; where an authority of your own signed it, name its certificate in SSL_CERT_FILE",
            );
        }
        // An error of the builder is one of the URL, which no attempt changes.
        match is_mistrusted || error.is_builder() {
            true => Self::Final(text),
            false => Self::Passing(text),
        }
    }
}

/// True if the server's certificate was refused: another attempt would fail in the same way.
fn is_of_certificate(error: &(dyn std::error::Error + 'static)) -> bool {
    // Connections wrap it in an error of the operating system's kind.
    let inner = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let refused = inner.or_else(|| error.downcast_ref());
    matches!(refused, Some(rustls::Error::InvalidCertificate(_)))
}

/// Limits of retries.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Maximum number of attempts, at least 1.
    pub attempts: u32,
    /// Bound of the first pause; it doubles with each further pause.
    pub pause_first: Duration,
    /// Upper bound of every pause.
    pub pause_max: Duration,
    /// Time limit without bytes from the server: for connecting, for a reply's head, and between
    /// two parts of its body. The whole body may take this and one second for each 16 KiB.
    pub attempt_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 6,
            pause_first: Duration::from_millis(200),
            pause_max: Duration::from_secs(5),
            attempt_max: Duration::from_secs(30),
        }
    }
}

impl Retry {
    /// The pause after attempt `attempt` (from 0) has failed; `None` after the last one.
    pub(crate) fn pause(&self, attempt: u32, random: &mut Random) -> Option<Duration> {
        if attempt + 1 >= self.attempts {
            return None;
        }
        // The shift is bounded; `pause_max` cuts the product long before that.
        let factor = 1_u32 << attempt.min(16);
        let bound = self.pause_first.saturating_mul(factor).min(self.pause_max);
        Some(bound.mul_f64(0.5 + random.unit() / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_certificate_is_told_from_other_failures() {
        let refused = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let other = rustls::Error::DecryptError;
        assert!(is_of_certificate(&refused));
        assert!(is_of_certificate(&io::Error::other(refused)));
        assert!(!is_of_certificate(&io::Error::other(other)));
        assert!(!is_of_certificate(&io::Error::from(
            io::ErrorKind::ConnectionReset
        )));
    }

    #[test]
    fn pauses_double_within_bounds_and_end() {
        let retry = Retry::default();
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let pauses: Vec<_> = (0..10).map(|n| retry.pause(n, &mut random)).collect();
            assert!(pauses[5..].iter().all(Option::is_none), "{pauses:?}");
            for (n, pause) in pauses[..5].iter().flatten().enumerate() {
                let bound = Duration::from_millis(200 << n);
                assert!(*pause <= bound && *pause >= bound / 2, "{n}: {pause:?}");
            }
        }
    }
}
