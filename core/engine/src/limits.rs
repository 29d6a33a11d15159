//! Limits of an MFC: the hardware's own numbers.
//!
//! Why here: errors name them and the MFC keeps them; neither needs the other for that.
//! Source: the Cell Broadband Engine Architecture.

/// Bytes that one command moves at most.
pub const TRANSFER_BYTES_MAX: usize = 16 << 10;
/// Elements that a list has at most.
pub const LIST_ELEMENTS_MAX: usize = 2048;
/// Tag groups.
pub const TAGS: u8 = 32;
/// Commands that queue at most.
pub const QUEUE_COMMANDS: usize = 16;
/// Transfers that may be in flight, done or not, without having been waited for; only `Checked`
/// mode counts them.
pub const IN_FLIGHT_MAX: usize = 32;
