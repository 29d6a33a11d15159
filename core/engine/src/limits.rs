//! Limits of an MFC: the hardware's own numbers.
//!
//! Why here: errors name them and the MFC keeps them; neither needs the other for that.
//! Source: the Cell Broadband Engine Architecture.

/// Bytes that one command moves at most.
pub(crate) const TRANSFER_BYTES_MAX: usize = 16 << 10;
/// Elements that a list, as which a large transfer counts, has at most.
pub(crate) const LIST_ELEMENTS_MAX: usize = 2048;
