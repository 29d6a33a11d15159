//! The Cell in virtual time.

pub mod draw;
pub mod error;
pub mod figures;
pub mod fit;
mod host;
pub mod machine;
pub mod model;
pub mod paper;
mod parallel;
pub mod property;
pub mod tables;
pub mod uio;

pub use error::CellError;
pub use machine::{Contention, Machine};
pub use model::{Options, Outcome, simulate};
