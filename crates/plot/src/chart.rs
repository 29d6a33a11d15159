//! Lines over a number.
//!
//! Why here: drawing is the same for every table that has an axis of numbers.
//! Must stay true: axes are named; both begin at 0; kinds of series are told apart by shape, not by
//! colour alone; series of one colour belong together.

use crate::{Area, COLOURS, GREY, PlotError, failed};
use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line with dots: something computed.
    Line,
    /// A dashed line with squares: something measured here.
    Dashed,
    /// Crosses: something that was printed elsewhere.
    Crosses,
}

/// One line or one set of points.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Across and up.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub mark: Mark,
    /// Which of [`COLOURS`], taken round.
    pub colour: usize,
}

/// What the axes say, and how large.
#[derive(Debug, Clone, Copy)]
pub struct Axis<'a> {
    /// Over the chart; nothing where empty.
    pub title: &'a str,
    /// Below.
    pub x: &'a str,
    /// At the side.
    pub y: &'a str,
    /// The height of letters in pixels.
    pub letters: u32,
}

/// Draws `series` in all of `area`.
///
/// # Errors
/// [`PlotError`].
pub fn chart(area: &Area<'_>, axis: &Axis<'_>, series: &[Series]) -> Result<(), PlotError> {
    let all = || series.iter().flat_map(|each| &each.points);
    let most = all().fold((1e-9_f64, 1e-9_f64), |most, point| {
        (most.0.max(point.0), most.1.max(point.1))
    });
    let letters = axis.letters;
    let room = room(area, axis, series.len());
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(letters)
        .x_label_area_size(letters * 3)
        .y_label_area_size(letters * 9 / 2);
    if !axis.title.is_empty() {
        builder.caption(axis.title, ("sans-serif", letters * 4 / 3));
    }
    let mut chart = builder
        .build_cartesian_2d(0.0..most.0 * 1.04, 0.0..most.1 * room)
        .map_err(failed)?;
    let digits = |top: f64| match top {
        top if top >= 10.0 => 0,
        top if top >= 1.0 => 1,
        _ => 3,
    };
    let (x_digits, y_digits) = (if most.0 < 4.0 { 1 } else { 0 }, digits(most.1));
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RULE)
        .axis_style(GREY)
        .x_desc(axis.x)
        .y_desc(axis.y)
        .label_style(("sans-serif", letters))
        .axis_desc_style(("sans-serif", letters))
        .x_labels(9)
        .y_labels(7)
        .x_label_formatter(&|at| format!("{at:.x_digits$}"))
        .y_label_formatter(&|at| format!("{at:.y_digits$}"))
        .draw()
        .map_err(failed)?;
    for each in series {
        let colour = COLOURS[each.colour % COLOURS.len()];
        let style = colour.stroke_width(2);
        let points = || each.points.iter().copied();
        match each.mark {
            Mark::Crosses => chart
                .draw_series(points().map(|at| Cross::new(at, 6, style)))
                .map_err(failed)?
                .label(&each.name)
                .legend(move |(x, y)| Cross::new((x + 12, y), 6, style).into_dyn()),
            Mark::Line => {
                let line = LineSeries::new(points(), style);
                let dots = points().map(|at| Circle::new(at, 3, colour.filled()));
                chart.draw_series(dots).map_err(failed)?;
                chart
                    .draw_series(line)
                    .map_err(failed)?
                    .label(&each.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style).into_dyn())
            }
            Mark::Dashed => {
                let line = DashedLineSeries::new(points(), 6, 4, style);
                let squares = points().map(|at| {
                    let square = [(-4, -4), (4, 4)];
                    EmptyElement::at(at) + Rectangle::new(square, colour.filled())
                });
                chart.draw_series(squares).map_err(failed)?;
                chart
                    .draw_series(line)
                    .map_err(failed)?
                    .label(&each.name)
                    .legend(move |(x, y)| {
                        DashedPathElement::new([(x, y), (x + 24, y)], 6, 4, style).into_dyn()
                    })
            }
        };
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.filled())
        .border_style(GREY)
        .label_font(("sans-serif", letters))
        .legend_area_size(36)
        .draw()
        .map_err(failed)
}

/// By how much the vertical axis is longer than the values: as much as the legend hides.
fn room(area: &Area<'_>, axis: &Axis<'_>, series: usize) -> f64 {
    let letters = f64::from(axis.letters);
    let title = if axis.title.is_empty() { 0.0 } else { 2.0 };
    let height = f64::from(area.dim_in_pixel().1) - letters * (5.0 + title);
    let legend = letters * (1.35 * series as f64 + 0.8);
    (height / (height - legend).max(height / 3.0)).max(1.1)
}

/// For lines behind the values.
pub(crate) const RULE: RGBColor = RGBColor(221, 221, 221);
