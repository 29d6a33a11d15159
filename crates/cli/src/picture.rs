//! What every picture is drawn with: text at a place, colours.
//!
//! Why here: two commands draw. Must stay true: pure, SVG text comes out.
//! Source: own; colours after Okabe and Ito, told apart by colour-blind people, too.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Where one draws.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Writes a line; `at` is its left end, middle or right end, as `side` says, halfway up.
pub(crate) fn text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    side: HPos,
) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(&BLACK);
    area.draw_text(text, &style.pos(Pos::new(side, VPos::Center)), at)
        .map_err(failed)
}

/// What the drawing library says went wrong.
pub(crate) fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw the picture: {error}")
}

/// For axes.
pub(crate) const GREY: RGBColor = RGBColor(150, 150, 150);
/// For lines, in this order.
pub(crate) const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];
