//! The parts of a measurement that products report themselves: the machine, medians, and programs
//! that run to their end.
//!
//! Why here: the services never import one another, and a report has one form in each of them.
//!
//! - [`stats`]: the median.
//! - [`Machine`]: the machine of a run, its load and the commit.
//! - [`job`]: other programs that run to their end, with [`child`]'s errors.
//!
//! Must stay true: whatever compares with a peer stands in `sidecore-bench`.
//! Source: own.

pub mod child;
pub mod job;
mod machine;

pub use machine::Machine;

pub mod stats {
    //! The median, which every figure is.
    //!
    //! Pure. Source: own.
    //!
    //! ```
    //! assert_eq!(sidecore_measure::stats::median(&[3.0, 1.0, 2.0]), 2.0);
    //! ```

    /// The median; of an even number the mean of the two middle values; 0 of nothing.
    #[must_use]
    pub fn median(values: &[f64]) -> f64 {
        // A total order: a NaN sorts to an end instead of causing a panic.
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            count if count % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }
}
