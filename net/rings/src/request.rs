//! Numbers of the requests (README.md).

/// Option level of the requests: not used by the kernel.
pub const LEVEL: i32 = 0x5349_4452;
/// Version of the layout, in [`ATTACH`] and in its reply.
pub const VERSION: u32 = 3;
/// Requests a segment, with the library's [`VERSION`], which libraries before 3 did not pass.
pub const ATTACH: i32 = 1;
/// Requests a waiter.
pub const WAITER: i32 = 2;
/// Requests a stream's rings.
pub const UPGRADE: i32 = 3;
/// Gives a stream's rings back.
pub const TAKE_BACK: i32 = 4;
/// Requests a stream's large rings.
pub const GROW: i32 = 5;
/// Reports that a descriptor of a listener was closed, by its inode; the request itself uses no
/// descriptor.
pub const LISTENER_CLOSED: i32 = 6;
/// Words of 32 bits in each request's value.
pub const WORDS: usize = 4;
