//! Exports: each turns one existing interface (FUSE, loop, ublk, NBD, vhost-user, userfaultfd) into
//! calls of [`sidecore_format::source::BlockSource`]. Thin.

pub mod attach;
pub mod background;
mod error;
pub mod fuse;
pub mod guest_memory;
pub mod keeper;
pub mod live;
mod loopdev;
pub mod mount;
pub mod nbd;
pub mod serving;
pub mod state;
mod ublk;
pub mod vhost_user;

pub use error::ExportError;

use std::path::PathBuf;

mod tracks {
    //! Names of the requests that exports record: `docs/trace.md` explains them.

    use sidecore_trace::Name;

    /// A read that the kernel asks of a FUSE file.
    pub(crate) static FUSE_READ: Name = Name::new("export", "FUSE read", ["offset", "bytes"]);
    /// Another operation, by its number in `linux/fuse.h`.
    pub(crate) static FUSE_OTHER: Name = Name::new("export", "FUSE request", ["operation", "node"]);
    /// A read that the kernel asks of a ublk device.
    pub(crate) static UBLK_READ: Name = Name::new("export", "ublk read", ["offset", "bytes"]);
}

/// A mount, a file or a device that is ready for use, and the server behind it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Ready {
    /// The directory, the file or the device.
    pub place: PathBuf,
    /// The path of reads, for messages: "erofs, straight from the FUSE file".
    pub way: String,
    /// The server's directory of records, with its log.
    pub state: PathBuf,
    /// The server's process number.
    pub pid: u32,
}
