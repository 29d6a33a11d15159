//! Failed requests, and the distinction between transient and permanent faults.
//!
//! Must stay true: transient faults are retried, within [`crate::Retry`]. Permanent answers of a
//! server (no such object, no permission) are not, so that a wrong URL is refused at once.

use std::io;

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
}
