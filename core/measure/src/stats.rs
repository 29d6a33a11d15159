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
