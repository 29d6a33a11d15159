//! Numbers of the requests (README.md).

/// Level of the requests' options: none of the kernel's.
pub const LEVEL: i32 = 0x5349_4452;
/// Version of the layout, in [`ATTACH`] and in the answer to it.
pub const VERSION: u32 = 3;
/// Asks for a segment; says the library's [`VERSION`], which libraries before 3 did not.
pub const ATTACH: i32 = 1;
/// Asks for a waiter.
pub const WAITER: i32 = 2;
/// Asks for a stream's rings.
pub const UPGRADE: i32 = 3;
/// Gives a stream's rings back.
pub const TAKE_BACK: i32 = 4;
/// Asks for a stream's large rings.
pub const GROW: i32 = 5;
/// Says that a descriptor of a listener was closed, by its inode's number: of no descriptor.
pub const LISTENER_CLOSED: i32 = 6;
/// Words of 32 bits in each request's value.
pub const WORDS: usize = 4;
