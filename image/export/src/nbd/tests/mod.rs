//! Tests of the NBD server: `core` without I/O, `live` and `soak` over sockets.

mod bitmap;
mod core;
mod live;
mod soak;
