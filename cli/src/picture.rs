//! Drawing for the commands' pictures: `sidecore_plot`, with errors of the commands' type.
//!
//! Why here: the commands' errors are of one kind, the drawing crate's of another.

use anyhow::Result;
use plotters::style::text_anchor::HPos;
pub(crate) use sidecore_plot::{Area, GREY};

/// Writes a line; `at` is its left end, middle or right end, as `side` says, halfway up.
pub(crate) fn text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    side: HPos,
) -> Result<()> {
    Ok(sidecore_plot::text(area, text, at, size, side)?)
}

/// Turns an error of the drawing library into one of the commands'.
pub(crate) fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    sidecore_plot::failed(error).into()
}
