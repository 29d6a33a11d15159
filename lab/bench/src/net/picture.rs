//! The bench as a picture: bars of ours and the peers', below them curves over segment and payload
//! sizes, windows and sessions, with the paper's points.
//!
//! Why here: drawing is printing. Must stay true: as `frame::picture` says; a curve's axis begins
//! at 0; the paper's point has its value next to it. Pure: SVG text comes out. Source: own.

use super::report::{Curve, Report};
use crate::frame::Measured;
use crate::frame::picture::{COLOURS, MARGIN, Picture};
use crate::measure::stats::number;
use plotters::prelude::*;
use sidecore_plot::{Area, GREY, PlotError, failed};

impl Measured for Report {
    fn tsv(&self) -> String {
        self.head.tsv(&self.figures.samples)
    }

    fn draw(&self) -> Result<String, PlotError> {
        draw(self)
    }

    fn failures(&self) -> &[String] {
        &self.figures.failures
    }
}

/// Draws a report.
///
/// # Errors
/// [`PlotError`].
pub fn draw(report: &Report) -> Result<String, PlotError> {
    let charts = charts(report);
    let rows = charts.len().div_ceil(2);
    let picture = Picture {
        head: &report.head,
        peers: &report.figures.peers,
        lower_height: rows as i32 * CHART_HEIGHT,
    };
    picture.draw(|lower| {
        for (area, chart) in lower.split_evenly((rows, 2)).iter().zip(&charts) {
            draw_chart(area, chart)?;
        }
        Ok(())
    })
}

/// Curves that belong together.
fn charts(report: &Report) -> Vec<Vec<&Curve>> {
    let mut charts: Vec<Vec<&Curve>> = Vec::new();
    for curve in &report.curves {
        match charts
            .iter_mut()
            .find(|chart| chart[0].chart == curve.chart)
        {
            Some(chart) => chart.push(curve),
            None => charts.push(vec![curve]),
        }
    }
    charts
}

/// The horizontal axis is by powers: sizes and numbers of sessions are.
fn draw_chart(area: &Area<'_>, curves: &[&Curve]) -> Result<(), PlotError> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let papers = || curves.iter().filter_map(|curve| curve.paper);
    let xs = points()
        .map(|point| point.at)
        .chain(papers().map(|at| at.0));
    let (least, most) = xs.fold((f64::MAX, 1.0), |(least, most): (f64, f64), x| {
        (least.min(x), most.max(x))
    });
    let ys = points()
        .map(|point| point.here)
        .chain(papers().map(|at| at.1));
    let highest = ys.fold(0.0, f64::max);
    let first = curves[0];
    let title = format!("{}, {}", first.chart, first.unit);
    let wide = (least * 0.8..most * 1.3).log_scale();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(MARGIN)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(wide, 0.0..highest * 1.25)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_desc(first.over)
        .x_labels(5)
        .x_label_formatter(&|x| round_number(*x))
        .y_label_formatter(&|y| number(*y))
        .draw()
        .map_err(failed)?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(3);
        let points = || curve.points.iter().map(|point| (point.at, point.here));
        chart
            .draw_series(LineSeries::new(points(), style))
            .map_err(failed)?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
        let dots = points().map(|point| Circle::new(point, 4, colour.filled()));
        chart.draw_series(dots).map_err(failed)?;
        if let Some(paper) = curve.paper {
            let cross = Cross::new(paper, 6, colour.stroke_width(2));
            chart.draw_series([cross]).map_err(failed)?;
            let label = format!("paper: {}", number(paper.1));
            let font = ("sans-serif", 12).into_font().color(colour);
            let beside = EmptyElement::at(paper) + Text::new(label, (-66, -18), font);
            chart.draw_series([beside]).map_err(failed)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.filled())
        .border_style(GREY)
        .legend_area_size(36)
        .draw()
        .map_err(failed)
}

/// 1, 2 and 5 with zeros; the numbers between would cover each other on an axis by powers.
fn round_number(x: f64) -> String {
    let text = format!("{x:.0}");
    let leading = text.trim_end_matches('0');
    match leading {
        "1" | "2" | "5" => text,
        _ => String::new(),
    }
}

const CHART_HEIGHT: i32 = 380;
