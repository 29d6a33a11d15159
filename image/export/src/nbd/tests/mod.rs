//! Tests of the NBD server: `core` and `extended` without I/O, `live` and `soak` over sockets.

mod bitmap;
mod core;
mod extended;
mod live;
mod soak;
