//! Names of the requests that exports record: `docs/trace.md` explains them.

use sidecore_trace::Name;

/// A read that the kernel asks of a FUSE file.
pub(crate) static FUSE_READ: Name = Name::new("export", "FUSE read", ["offset", "bytes"]);
/// Another operation, by its number in `linux/fuse.h`.
pub(crate) static FUSE_OTHER: Name = Name::new("export", "FUSE request", ["operation", "node"]);
/// A read that the kernel asks of a ublk device.
pub(crate) static UBLK_READ: Name = Name::new("export", "ublk read", ["offset", "bytes"]);
