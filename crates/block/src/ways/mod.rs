//! How reads come in. Thin: each way turns one existing interface into [`crate::source::BlockSource`] calls.

pub mod attach;
pub mod fuse;
pub mod loopdev;
pub mod mount;
pub mod nbd;
pub mod state;
pub mod ublk;
