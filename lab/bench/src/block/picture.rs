//! The bench as a picture: bars of ours and the peers', a line for 1 to N engines.
//!
//! Why here: drawing is printing. Must stay true: as `frame::picture` says. Pure: SVG text comes
//! out. Source: own.

use super::report::Report;
use crate::frame::Measured;
use crate::frame::picture::{COLOURS, MARGIN, Picture};
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
    let lines = lines(report);
    let picture = Picture {
        head: &report.head,
        peers: &report.figures.peers,
        lower_height: if lines.is_empty() { 0 } else { LINES_HEIGHT },
    };
    picture.draw(|lower| draw_lines(lower, &lines))
}

/// One line a name, its points in order of the engines.
fn lines(report: &Report) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for point in &report.scaling {
        let at = (point.engines as f64, point.mb_s);
        match lines.iter_mut().find(|(name, _)| *name == point.name) {
            Some((_, points)) => points.push(at),
            None => lines.push((point.name.clone(), vec![at])),
        }
    }
    lines
}

fn draw_lines(area: &Area<'_>, lines: &[(String, Vec<(f64, f64)>)]) -> Result<(), PlotError> {
    let points = lines.iter().flat_map(|(_, points)| points);
    let (most_engines, most_mb_s) = points.fold((1.0_f64, 1.0_f64), |most, point| {
        (most.0.max(point.0), most.1.max(point.1))
    });
    let mut chart = ChartBuilder::on(area)
        .caption(
            "MB/s of one sequential reader, with 1 to N engines",
            ("sans-serif", 20),
        )
        .margin(MARGIN)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.5..most_engines + 0.5, 0.0..most_mb_s * 1.15)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc("engines")
        .y_desc("MB/s")
        .x_labels(most_engines.min(16.0) as usize + 1)
        .x_label_formatter(&|x| match x.fract() {
            0.0 => format!("{x:.0}"),
            _ => String::new(),
        })
        .draw()
        .map_err(failed)?;
    for ((name, points), colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let style = colour.stroke_width(3);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
        chart
            .draw_series(
                points
                    .iter()
                    .map(|&point| Circle::new(point, 4, colour.filled())),
            )
            .map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.filled())
        .border_style(GREY)
        .legend_area_size(36)
        .draw()
        .map_err(failed)?;
    Ok(())
}

const LINES_HEIGHT: i32 = 420;
