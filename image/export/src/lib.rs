//! Exports: each turns one existing interface (FUSE, loop, ublk, NBD, vhost-user) into calls of
//! [`sidecore_format::source::BlockSource`]. Thin.

pub mod attach;
pub mod background;
mod error;
pub mod fuse;
pub mod keeper;
pub mod live;
mod loopdev;
pub mod mount;
pub mod nbd;
pub mod state;
pub mod vhost_user;
mod tracks;
mod ublk;

pub use error::ExportError;

use std::path::PathBuf;

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
