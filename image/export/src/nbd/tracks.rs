//! Names of the requests that NBD clients make, as they are recorded: `docs/trace.md`.

use super::session::Command;
use sidecore_trace::{Name, Span, span};

static NBD_READ: Name = Name::new("export", "NBD read", ["offset", "bytes"]);
static NBD_STATUS: Name = Name::new("export", "NBD block status", ["offset", "bytes"]);
static NBD_CACHE: Name = Name::new("export", "NBD cache", ["offset", "bytes"]);
static NBD_WRITE: Name = Name::new("export", "NBD write", ["offset", "bytes"]);
static NBD_ZERO: Name = Name::new("export", "NBD write zeroes", ["offset", "bytes"]);
static NBD_TRIM: Name = Name::new("export", "NBD trim", ["offset", "bytes"]);
static NBD_FLUSH: Name = Name::new("export", "NBD flush", ["", ""]);
static NBD_REFUSE: Name = Name::new("export", "NBD refused", ["errno", ""]);

/// Begins the span of an NBD request: until its reply was sent.
#[inline]
pub(super) fn nbd_request(command: &Command) -> Span {
    let (name, first, second) = match *command {
        Command::Read { offset, len, .. } => (&NBD_READ, offset, len.into()),
        Command::Status { offset, len, .. } => (&NBD_STATUS, offset, len),
        Command::Cache { offset, len, .. } => (&NBD_CACHE, offset, len.into()),
        Command::Write { offset, len, .. } => (&NBD_WRITE, offset, len.into()),
        Command::Zero { offset, len, .. } => (&NBD_ZERO, offset, len),
        Command::Trim { offset, len, .. } => (&NBD_TRIM, offset, len),
        Command::Flush { .. } => (&NBD_FLUSH, 0, 0),
        Command::Refuse(refusal) => (&NBD_REFUSE, refusal.error.into(), 0),
    };
    span(name, first, second)
}
