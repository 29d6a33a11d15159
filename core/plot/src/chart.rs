//! Lines over a number.
//!
//! Why here: drawing is the same for every table that has an axis of numbers.
//! Must stay true: axes are named; both begin at 0, except a horizontal one by powers, which has no
//! 0. Kinds of series differ in shape, not in colour alone; series of one colour belong together.

use crate::{Area, COLOURS, GREY, PlotError, failed};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::ops::Range;

/// Style of a series.
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
    /// Name in the legend; an empty one is left out.
    pub name: String,
    /// Points (x, y).
    pub points: Vec<(f64, f64)>,
    /// Style of the series.
    pub mark: Mark,
    /// Index into [`COLOURS`], modulo its length.
    pub colour: usize,
}

/// Labels and sizes of a chart.
#[derive(Debug, Clone, Copy)]
pub struct Axis<'a> {
    /// Title above the chart; none if empty.
    pub title: &'a str,
    /// Label of the horizontal axis.
    pub x: &'a str,
    /// Label of the vertical axis.
    pub y: &'a str,
    /// Height of letters in pixels.
    pub letters: u32,
    /// True for a logarithmic horizontal axis; values that are not above 0 are drawn at its edge.
    pub by_powers: bool,
}

/// Draws `series` in all of `area`.
///
/// # Errors
/// [`PlotError`].
pub fn chart(area: &Area<'_>, axis: &Axis<'_>, series: &[Series]) -> Result<(), PlotError> {
    let label = |at: &f64| match axis.by_powers {
        true => grouped(*at),
        false if most(series, |point| point.0) < 4.0 => format!("{at:.1}"),
        false => format!("{at:.0}"),
    };
    let across = match axis.by_powers {
        true => Across::by_powers(series),
        false => Across::from(0.0..most(series, |point| point.0) * 1.04),
    };
    let highest = most(series, |point| point.1);
    let letters = axis.letters;
    let room = room(area, axis, named(series));
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(letters)
        .x_label_area_size(letters * 3)
        .y_label_area_size(letters * 9 / 2);
    if !axis.title.is_empty() {
        builder.caption(axis.title, ("sans-serif", letters * 4 / 3));
    }
    // Longer than the highest value by the legend's room.
    let mut chart = builder
        .build_cartesian_2d(across, 0.0..highest * room)
        .map_err(failed)?;
    // So that neighbouring labels differ.
    let digits = match highest {
        top if top >= 10.0 => 0,
        top if top >= 0.5 => 1,
        top if top >= 0.05 => 2,
        _ => 3,
    };
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
        .x_label_formatter(&label)
        .y_label_formatter(&|at| format!("{at:.digits$}"))
        .draw()
        .map_err(failed)?;
    for each in series {
        let colour = COLOURS[each.colour % COLOURS.len()];
        let style = colour.stroke_width(2);
        let points = || each.points.iter().copied();
        let drawn = match each.mark {
            Mark::Crosses => chart
                .draw_series(points().map(|at| Cross::new(at, 6, style)))
                .map_err(failed)?,
            Mark::Line => {
                let dots = points().map(|at| Circle::new(at, 3, colour.filled()));
                chart.draw_series(dots).map_err(failed)?;
                let line = LineSeries::new(points(), style);
                chart.draw_series(line).map_err(failed)?
            }
            Mark::Dashed => {
                let squares = points().map(|at| {
                    let square = [(-4, -4), (4, 4)];
                    EmptyElement::at(at) + Rectangle::new(square, colour.filled())
                });
                chart.draw_series(squares).map_err(failed)?;
                let line = DashedLineSeries::new(points(), 6, 4, style);
                chart.draw_series(line).map_err(failed)?
            }
        };
        // A series without a name has the colour of one that has a name.
        if each.name.is_empty() {
            continue;
        }
        // In the legend each shape is drawn as in the chart.
        let mark = each.mark;
        drawn.label(&each.name).legend(move |(x, y)| match mark {
            Mark::Crosses => Cross::new((x + 12, y), 6, style).into_dyn(),
            Mark::Line => PathElement::new([(x, y), (x + 24, y)], style).into_dyn(),
            Mark::Dashed => DashedPathElement::new([(x, y), (x + 24, y)], 6, 4, style).into_dyn(),
        });
    }
    // An empty legend would still draw its box.
    if named(series) == 0 {
        return Ok(());
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

/// The largest value of `of` over all points.
fn most(series: &[Series], of: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let points = series.iter().flat_map(|each| &each.points);
    points.fold(1e-9_f64, |most, point| most.max(of(point)))
}

/// The horizontal axis.
enum Across {
    Plain(RangedCoordf64),
    /// Logarithmic, between two numbers above 0.
    Powers(Range<f64>),
}

impl Across {
    fn by_powers(series: &[Series]) -> Self {
        let points = series.iter().flat_map(|each| &each.points);
        let above = points.map(|point| point.0).filter(|at| *at > 0.0);
        let (least, most) = above.fold((f64::INFINITY, 0.0_f64), |(least, most), at| {
            (least.min(at), most.max(at))
        });
        match least.is_finite() {
            // So that a point at an end is seen whole.
            true => {
                let room = (most / least).powf(0.05).max(1.3);
                Self::Powers(least / room..most * room)
            }
            // Nothing above 0: any range will do.
            false => Self::Powers(1.0..10.0),
        }
    }
}

impl From<Range<f64>> for Across {
    fn from(range: Range<f64>) -> Self {
        Self::Plain(range.into())
    }
}

impl Ranged for Across {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Self::Plain(plain) => plain.map(value, limit),
            Self::Powers(range) => {
                let share = (value / range.start).ln() / (range.end / range.start).ln();
                // A value that is not above 0 has no place; it ends at the edge.
                let share = if share.is_finite() {
                    share.clamp(0.0, 1.0)
                } else {
                    0.0
                };
                limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
            }
        }
    }

    /// Of powers: powers of ten, and 2 and 5 times each where there is room for their numbers.
    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        let range = match self {
            Self::Plain(plain) => return plain.key_points(hint),
            Self::Powers(range) => range,
        };
        let steps: &[f64] = match range.end / range.start {
            // Below two powers of ten there would be one mark or none.
            few if few <= 60.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
        let marks = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        marks.filter(|mark| range.contains(mark)).collect()
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Plain(plain) => plain.range(),
            Self::Powers(range) => range.clone(),
        }
    }
}

/// A whole number with its thousands set apart, from five digits on.
fn grouped(value: f64) -> String {
    if value < 1.0 {
        return format!("{value:.2}");
    }
    // Grouped from five digits on, as the pages around the pictures do.
    let digits = format!("{value:.0}");
    match digits.len() {
        ..5 => digits,
        count => format!("{},{}", &digits[..count - 3], &digits[count - 3..]),
    }
}

/// Number of lines of the legend.
fn named(series: &[Series]) -> usize {
    series.iter().filter(|each| !each.name.is_empty()).count()
}

/// Factor by which the vertical axis is longer than the values: room for the legend.
fn room(area: &Area<'_>, axis: &Axis<'_>, series: usize) -> f64 {
    let letters = f64::from(axis.letters);
    let title = if axis.title.is_empty() { 0.0 } else { 2.0 };
    let height = f64::from(area.dim_in_pixel().1) - letters * (5.0 + title);
    // Room above the curves for a line each: the legend must not cover a curve.
    let legend = letters * (1.35 * series as f64 + 0.8);
    // The legend takes two thirds at most.
    (height / (height - legend).max(height / 3.0)).max(1.1)
}

/// Colour of lines behind the values.
pub(crate) const RULE: RGBColor = RGBColor(221, 221, 221);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture;

    fn drawn(by_powers: bool, points: &[(f64, f64)]) -> String {
        let series = [Series {
            name: String::new(),
            points: points.to_vec(),
            mark: Mark::Line,
            colour: 0,
        }];
        let axis = Axis {
            title: "",
            x: "bytes",
            y: "Gb/s",
            letters: 20,
            by_powers,
        };
        picture((520, 420), |area| chart(area, &axis, &series)).unwrap()
    }

    /// The numbers in an SVG's texts.
    fn numbers(svg: &str) -> Vec<&str> {
        svg.lines()
            .filter(|line| line.chars().all(|c| c.is_ascii_digit() || c == ','))
            .collect()
    }

    #[test]
    fn an_axis_by_powers_is_marked_by_powers() {
        let svg = drawn(true, &[(536.0, 3.0), (8972.0, 14.0)]);
        for mark in ["500", "1000", "2000", "5000", "10,000"] {
            assert!(numbers(&svg).contains(&mark), "{mark}: {:?}", numbers(&svg));
        }
        let svg = drawn(true, &[(16.0, 0.5), (100_000.0, 1.0)]);
        for mark in ["100", "1000", "10,000", "100,000"] {
            assert!(numbers(&svg).contains(&mark), "{mark}: {:?}", numbers(&svg));
        }
        assert!(!numbers(&svg).contains(&"200"));
    }

    #[test]
    fn odd_numbers_are_drawn_without_harm() {
        for points in [
            &[][..],
            &[(0.0, 1.0)],
            &[(-3.0, 1.0), (5.0, 0.0)],
            &[(7.0, 7.0)],
        ] {
            for by_powers in [false, true] {
                assert!(drawn(by_powers, points).contains("<svg"), "{points:?}");
            }
        }
    }
}
