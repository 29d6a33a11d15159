//! What the commands' pictures are drawn with: `sidecore_plot`, and a name for its errors.
//!
//! Why here: the commands' errors are of one kind, the drawing crate's of another.

use anyhow::Result;
use plotters::style::RGBColor;
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

/// What the drawing library says went wrong.
pub(crate) fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    sidecore_plot::failed(error).into()
}

/// For bars, in this order.
pub(crate) const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];
