//! Tests of the NBD server: `core` without I/O, `live` and `soak` over sockets.

mod core;
mod live;
mod soak;
