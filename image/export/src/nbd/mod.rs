//! Network block device (newstyle), our own; writes where the source takes them.
//!
//! Why here: NBD is the export that works on every machine, without privileges and without a
//! module: `nbdcopy`, `qemu`, `nbd-client` and virtual machines read it.
//!
//! Two halves. The core does no I/O and is deterministic: bytes in, bytes out. It is public, and
//! hidden, for the target `nbd` of `lab/fuzz`, which holds whole dialogues to a device.
//! - `wire`: numbers and layouts.
//! - `handshake`: options and their replies.
//! - `session`: validates requests.
//! - `reply`: reads and replies for one request.
//!
//! The export has the sockets and the threads:
//! - `listen`: addresses, stale sockets; `server`: accepting, limits, stopping;
//! - `connection`: the workers of a connection; `outlet`: sending; `tls`: the relay thread.
//! - [`client`]: a small client that measures any NBD server.
//!
//! Must stay true: no thread that decompresses for others ever waits for a client.
//! Not supported: extended headers, several exports.
//! Source: the NBD protocol document (`doc/proto.md` of the reference implementation).

pub mod client;
mod connection;
#[doc(hidden)]
pub mod handshake;
mod listen;
mod outlet;
#[doc(hidden)]
pub mod reply;
mod server;
#[doc(hidden)]
pub mod session;
mod tls;
#[doc(hidden)]
pub mod wire;

#[cfg(test)]
/// `core` and `extended` without I/O, `live` and `soak` over sockets.
mod tests {
    mod bitmap;
    mod core;
    mod extended;
    mod live;
    mod soak;
}

pub use listen::Address;
pub use server::{Options, Server, Stopper, bitmap_name};
pub use tls::Tls;

use std::path::PathBuf;

mod tracks {
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
}

/// Errors of a server, or of a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// An address that is not valid.
    #[error("`{text}` is no address to serve at; write unix:PATH or tcp:HOST:PORT")]
    Address {
        /// The text given.
        text: String,
    },
    /// An address at which the server cannot listen.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// The address.
        address: String,
        /// The operating system's error.
        reason: String,
    },
    /// Certificates or keys that cannot be used.
    #[error(
        "{}: {reason}; TLS takes server-cert.pem and server-key.pem in PEM, and ca-cert.pem where \
         clients have to show a certificate", .path.display()
    )]
    Certificates {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A device that ends within a block.
    #[error(
        "the device has {size_bytes} bytes, which are not whole sectors of {block_bytes}; make it \
         larger with --overlay and --size"
    )]
    Blocks {
        /// The device's size.
        size_bytes: u64,
        /// A block's size.
        block_bytes: u32,
    },
    /// A live server has the socket.
    #[error(
        "a server is already listening at {}; stop it, or serve at another path", .path.display()
    )]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another kind of file is at the path.
    #[error(
        "{} exists and is no socket; it is left alone: serve at another path", .path.display()
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A passed descriptor is no listening socket.
    #[error(
        "a descriptor that was passed (LISTEN_FDS) is {what}; NBD takes listening stream sockets, \
         local or TCP"
    )]
    Passed {
        /// Its defect.
        what: String,
    },
    /// The operating system refused something that the server needs.
    #[error("cannot serve: {what}: {reason}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        reason: String,
    },
    /// A measured server violated the protocol.
    #[error("the NBD server at {server} {what}")]
    Client {
        /// The server's address.
        server: String,
        /// The fault of the peer.
        what: String,
    },
}
