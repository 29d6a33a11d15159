//! Tests of the NBD server: `core` without I/O, `live` over sockets.

mod core;
mod live;
