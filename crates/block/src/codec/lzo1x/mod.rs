//! x
mod fast;
mod inflate;
mod reference;
pub use inflate::Inflate;
pub use reference::Lzo1xError;
