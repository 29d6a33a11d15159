//! Drawing of pictures as SVG: placed text, colours, charts of lines and of dots.
//!
//! - this file: the canvas, text, colours.
//! - [`chart()`]: lines over a number.
//! - [`dots()`]: values of one thing a line, on a logarithmic axis.
//! - [`terminal()`]: a terminal session, line by line.
//! - [`themed()`]: the same picture inside a page that may be dark.
//! - [`tree_picture()`]: phylogenetic trees, rectangular and circular.
//!
//! Why here: several commands draw, and the page of the papers' figures does.
//! Must stay true: drawing is pure, and the drawing library escapes the text of the SVG; only
//! [`write()`] and [`check()`] touch files.
//! Source: own; colours after Okabe and Ito, which colour-blind readers can distinguish, too.

mod chart;
mod dots;
mod file;
mod terminal;
mod themed;
mod tree;

pub use chart::{Axis, Mark, Series, chart};
pub use dots::{DotRow, dots, dots_height};
pub use file::{FileForm, check, write};
pub use terminal::{TerminalLine, terminal};
pub use themed::themed;
pub use tree::{TreeForm, TreeNode, TreeOptions, TreeTheme, tree_picture};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

mod xml {
    //! Text in XML. Pure.

    /// Text for an element or an attribute; characters that XML forbids are left out.
    pub(crate) fn escaped(text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for letter in text.chars() {
            match letter {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&quot;"),
                // XML would change them, and other controls are not allowed in it at all.
                '\t' | '\n' | '\r' => out.push(' '),
                _ if letter < ' ' || letter == '\u{FFFE}' || letter == '\u{FFFF}' => {}
                _ => out.push(letter),
            }
        }
        out
    }
}

/// Reasons why there is no picture, or none in the form that its file's name asks for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The drawing library's.
    #[error("cannot draw the picture: {0}")]
    Drawing(String),
    /// An ending of another form.
    #[error("pictures are written as .svg, .html, .png or .pdf, not as .{ending}")]
    Form {
        /// The ending.
        ending: String,
    },
    /// The program that makes PNG and PDF is not installed.
    #[error(
        "cannot run rsvg-convert, which makes PNG and PDF: {source}; install it (Debian: \
         librsvg2-bin), or write .svg"
    )]
    NoConverter {
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A picture of a file that is not made.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// The cause.
        source: Box<PlotError>,
    },
    /// A file that cannot be written.
    #[error(transparent)]
    Output(#[from] sidecore_sys::output::OutputError),
    /// That program failed.
    #[error("rsvg-convert made no picture: {said}")]
    Conversion {
        /// Its message.
        said: String,
    },
}

/// Drawing area of an SVG picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws a picture of `size` pixels on white; dark where its reader prefers dark pages.
///
/// # Errors
/// [`PlotError`].
pub fn picture<E: From<PlotError>>(
    size: (u32, u32),
    inside: impl FnOnce(&Area<'_>) -> Result<(), E>,
) -> Result<String, E> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        inside(&root)?;
        root.present().map_err(failed)?;
    }
    Ok(themed::adaptive(&svg))
}

/// Writes a line; `at` is its left end, middle or right end, as `side` says, halfway up.
///
/// # Errors
/// [`PlotError`].
pub fn text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    side: HPos,
) -> Result<(), PlotError> {
    let style = ("sans-serif", size).into_font().color(&BLACK);
    area.draw_text(text, &style.pos(Pos::new(side, VPos::Center)), at)
        .map_err(failed)
}

/// Turns an error of the drawing library into a [`PlotError`].
#[must_use]
pub fn failed(error: impl std::fmt::Display) -> PlotError {
    PlotError::Drawing(error.to_string())
}

/// Colour of axes.
pub const GREY: RGBColor = RGBColor(150, 150, 150);
/// Colours of lines, in this order.
pub const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(90, 90, 90),
];

/// The README's example: it compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
