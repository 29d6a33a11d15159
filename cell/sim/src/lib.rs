//! The Cell in virtual time: runs the policies of `sidecore-sched` on a modelled machine, and shows
//! the papers' tables and figures next to the results.
//!
//! Why here: the Cell is no longer made, and its policies are worth keeping. The model runs the
//! same policy code as the real pool. So it can predict the effect of more engines, slower switches
//! or another task mix.
//!
//! - `machine`: a host, engines and a task mix; TOML. [`fit`]: the source of the built-in one.
//! - `model`: the discrete events and their random times.
//! - [`tables`], [`figures`], [`uio`]: the model's versions of the papers' tables and figures;
//!   [`paper`]: the printed values; [`property`]: statements that must hold of the results.
//! - [`report`]: the same as text and pictures; [`constants()`]: the documents' figures that are
//!   constants here.
//!
//! Deterministic: equal seeds give equal figures. Reads nothing but machine files.
//!
//! ```
//! use sidecore_cell_sim::{Machine, Options, simulate};
//!
//! let machine = Machine::cell()?;
//! let mut policy = sidecore_sched::by_name("edtlp").expect("a known name");
//! let outcome = simulate(&machine, 8, &mut *policy, Options::for_tasks(8, 1));
//! assert!((outcome.seconds / 43.32 - 1.0).abs() < 0.02); // Table 1, row 8
//! # Ok::<(), sidecore_cell_sim::CellError>(())
//! ```

mod constants;
pub mod figures;
pub mod fit;
mod host;
mod machine;
mod model;
pub mod paper;
mod picture;
pub mod property {
    //! Statements that a figure must satisfy, with the value and the verdict.
    //!
    //! Why here: the same list is printed by the command, decides its exit status, and is asserted
    //! by the tests.
    //!
    //! ```
    //! use sidecore_cell_sim::property::Property;
    //!
    //! let property = Property::at_most("largest error of Table 1", 0.04, 0.05);
    //! assert!(property.holds);
    //! ```

    use serde::Serialize;

    /// One statement with the value that it rests on.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub struct Property {
        /// The statement.
        pub text: String,
        /// The value, the worst of all points that the statement is about.
        pub value: f64,
        /// The value may be at most this.
        pub limit: f64,
        /// True if it holds.
        pub holds: bool,
    }

    impl Property {
        /// `value` is at most `limit`. Not a number is more than any limit.
        #[must_use]
        pub fn at_most(text: impl Into<String>, value: f64, limit: f64) -> Self {
            Self {
                text: text.into(),
                value,
                limit,
                holds: value <= limit,
            }
        }
    }
}
pub mod report;
pub mod shown;
pub mod tables;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::print_stderr)] // Helper functions of tests.
mod tests {
    mod paper;
}
mod text;
pub mod uio;

pub use constants::{Constant, constants};
pub use machine::{CellError, Engines, Host, Loop, Machine, Task};
pub use model::{Options, Outcome, simulate};

/// The README's example: it compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
