//! Statements that a figure must satisfy, with the value and the verdict.
//!
//! Why here: the same list is printed by the command, decides its exit status, and is asserted by
//! the tests.
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
