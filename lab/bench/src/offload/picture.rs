//! The bench as a picture: round trips on a scale by powers, cycles over the number of workers,
//! efficiency of graphs of tasks over the granularity.
//!
//! Why here: drawing is printing. Must stay true: every bar carries its figures, ours and others'
//! alike; every curve is named; curves of cycles have the same scale.
//! Pure: SVG text comes out. Source: own.

use super::graphs::RUNNERS;
use super::report::{EdtlpRow, PatternRow, Report, Trip};
use crate::frame::Measured;
use crate::frame::picture::{COLOURS, circumstances};
use crate::measure::stats::number;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use sidecore_plot::{Area, Axis, GREY, Mark, PlotError, Series, chart, failed, text};

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
    let trips = &report.round_trip_ns;
    let charts = charts(report);
    let bars_height = match trips.len() {
        0 => HEAD_HEIGHT,
        count => HEAD_HEIGHT + TITLE_HEIGHT + count as i32 * ROW_HEIGHT + AXIS_HEIGHT,
    };
    let charts_height = charts.len().div_ceil(2) as i32 * CHART_HEIGHT;
    let longest = |row: &EdtlpRow| row.spin_us.max(row.block_us).max(row.edtlp_us);
    let most_us = report.edtlp.iter().map(longest).fold(200.0, f64::max);
    let patterns: Vec<&[PatternRow]> = (report.patterns)
        .chunk_by(|a, b| a.pattern == b.pattern)
        .collect();
    let patterns_height = match patterns.len() {
        0 => 0,
        count => TITLE_HEIGHT + count.div_ceil(PATTERNS_ACROSS) as i32 * PATTERN_HEIGHT,
    };
    let height = bars_height + charts_height + patterns_height + MARGIN;
    sidecore_plot::picture((WIDTH as u32, height as u32), |root| {
        let (upper, lower) = root.split_vertically(bars_height);
        draw_head(&upper, report)?;
        if !trips.is_empty() {
            draw_trips(&upper, trips)?;
        }
        let rows = charts.len().div_ceil(2).max(1);
        let (lower, below) = lower.split_vertically(charts_height);
        for (area, (title, rows)) in lower.split_evenly((rows, 2)).iter().zip(&charts) {
            draw_cycles(area, title, rows, most_us)?;
        }
        match patterns.is_empty() {
            true => Ok(()),
            false => draw_patterns(&below.split_vertically(patterns_height).0, &patterns),
        }
    })
}

fn draw_head(area: &Area<'_>, report: &Report) -> Result<(), PlotError> {
    let title = "What it costs to reach an engine, and what tasks gain over processes";
    text(area, title, (MARGIN, 20), 20, HPos::Left)?;
    text(
        area,
        &circumstances(&report.head),
        (MARGIN, 46),
        12,
        HPos::Left,
    )
}

/// A bar from the left edge to the median, a line on to the 99th percentile.
fn draw_trips(area: &Area<'_>, trips: &[Trip]) -> Result<(), PlotError> {
    let title = "Round trip to another core, ns: bar to the median, whisker to p99";
    text(area, title, (MARGIN, HEAD_HEIGHT + 10), 16, HPos::Left)?;
    let top = HEAD_HEIGHT + TITLE_HEIGHT;
    let bottom = top + trips.len() as i32 * ROW_HEIGHT;
    for power in 2..=7 {
        let x = scale(10_f64.powi(power));
        area.draw(&PathElement::new([(x, top), (x, bottom)], GREY))
            .map_err(failed)?;
        text(area, power_label(power), (x, bottom + 12), 12, HPos::Center)?;
    }
    for (row, trip) in trips.iter().enumerate() {
        let y = top + row as i32 * ROW_HEIGHT;
        let ours = OURS.contains(&trip.name);
        let colour = COLOURS[usize::from(!ours)];
        let bar = [(BARS_LEFT, y + 5), (scale(trip.median), y + ROW_HEIGHT - 5)];
        area.draw(&Rectangle::new(bar, colour.filled()))
            .map_err(failed)?;
        let middle = y + ROW_HEIGHT / 2;
        let whisker = [(scale(trip.median), middle), (scale(trip.p99), middle)];
        area.draw(&PathElement::new(whisker, BLACK.stroke_width(2)))
            .map_err(failed)?;
        let name = (MARGIN, middle);
        text(area, &trip.name.replace('_', " "), name, 14, HPos::Left)?;
        let values = format!(
            "{} (p99 {}), {} the bare line",
            time(trip.median),
            time(trip.p99),
            times(trip.ratio)
        );
        text(area, &values, (WIDTH - MARGIN, middle), 13, HPos::Right)?;
    }
    let legend = "blue: Sidecore; orange: others";
    text(area, legend, (MARGIN, bottom + 12), 12, HPos::Left)
}

/// Position of a time on a scale by powers of ten.
fn scale(ns: f64) -> i32 {
    let share = (ns.clamp(NS_MIN, NS_MAX) / NS_MIN).log10() / (NS_MAX / NS_MIN).log10();
    BARS_LEFT + (share * f64::from(BARS_RIGHT - BARS_LEFT)) as i32
}

/// A power of ten of nanoseconds.
fn power_label(power: i32) -> &'static str {
    match power {
        2 => "100 ns",
        3 => "1 us",
        4 => "10 us",
        5 => "100 us",
        6 => "1 ms",
        _ => "10 ms",
    }
}

/// A time with three digits or so.
fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e6 => format!("{} ms", number(ns / 1e6)),
        ns if ns >= 1e3 => format!("{} us", number(ns / 1e3)),
        ns => format!("{ns:.0} ns"),
    }
}

fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 10.0 => format!("{ratio:.0} x"),
        ratio => format!("{ratio:.2} x"),
    }
}

/// One chart for each number of cores, without and with a hog.
fn charts(report: &Report) -> Vec<(String, Vec<&EdtlpRow>)> {
    let mut charts: Vec<((usize, bool), Vec<&EdtlpRow>)> = Vec::new();
    for row in &report.edtlp {
        let key = (row.worker_cores, row.hog);
        match charts.iter_mut().find(|(other, _)| *other == key) {
            Some((_, rows)) => rows.push(row),
            None => charts.push((key, vec![row])),
        }
    }
    let title = |(cores, hog): (usize, bool)| {
        let plural = if cores == 1 { "" } else { "s" };
        let with = if hog { ", a foreign hog on each" } else { "" };
        format!("us for one cycle of a worker, {cores} worker core{plural}{with}")
    };
    let named = charts.into_iter().map(|(key, rows)| (title(key), rows));
    named.collect()
}

/// A way of waiting: what it is called, and where its figure is.
type Way = (&'static str, fn(&EdtlpRow) -> f64);

fn draw_cycles(
    area: &Area<'_>,
    title: &str,
    rows: &[&EdtlpRow],
    most_us: f64,
) -> Result<(), PlotError> {
    let ways: [Way; 3] = [
        ("tasks as fibers", |row| row.edtlp_us),
        ("processes that spin", |row| row.spin_us),
        ("processes that sleep", |row| row.block_us),
    ];
    let most_workers = rows.iter().map(|row| row.workers).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(MARGIN)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.8..most_workers as f64 + 0.2, 0.0..most_us * 1.1)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .y_label_formatter(&|us| format!("{us:.0}"))
        .x_desc("workers")
        .x_labels(most_workers + 1)
        .x_label_formatter(&|x| match x.fract() {
            0.0 => format!("{x:.0}"),
            _ => String::new(),
        })
        .draw()
        .map_err(failed)?;
    for ((name, value), colour) in ways.iter().zip(COLOURS) {
        let style = colour.stroke_width(3);
        let points: Vec<(f64, f64)> = rows
            .iter()
            .map(|row| (row.workers as f64, value(row)))
            .collect();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))
            .map_err(failed)?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
        let dots = points
            .iter()
            .map(|&point| Circle::new(point, 4, colour.filled()));
        chart.draw_series(dots).map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.filled())
        .border_style(GREY)
        .legend_area_size(36)
        .draw()
        .map_err(failed)?;
    Ok(())
}

/// A chart for each pattern, the legend above them.
fn draw_patterns(area: &Area<'_>, patterns: &[&[PatternRow]]) -> Result<(), PlotError> {
    let (title, charts) = area.split_vertically(TITLE_HEIGHT);
    let legend = "Graphs of tasks (Task Bench). Blue: Sidecore; orange: rayon; green: OpenMP, \
                  loops; purple: OpenMP, tasks; grey: oneTBB, flow graph";
    text(&title, legend, (MARGIN, 10), 14, HPos::Left)?;
    let rows = patterns.len().div_ceil(PATTERNS_ACROSS);
    let areas = charts.split_evenly((rows, PATTERNS_ACROSS));
    for (area, of_pattern) in areas.iter().zip(patterns) {
        let series: Vec<Series> = of_pattern.iter().map(curve).collect();
        let axis = Axis {
            title: of_pattern.first().map_or("", |row| row.pattern),
            x: "us for a task with its overhead",
            y: "efficiency, %",
            letters: 11,
            by_powers: true,
        };
        chart(area, &axis, &series)?;
    }
    Ok(())
}

/// Efficiency of one runtime, in its colour.
fn curve(row: &PatternRow) -> Series {
    let points = row.curve.iter();
    let colour = RUNNERS.iter().position(|runner| *runner == row.runner);
    Series {
        name: String::new(),
        points: points
            .map(|point| (point.granularity_us, 100.0 * point.efficiency))
            .collect(),
        mark: Mark::Line,
        colour: colour.unwrap_or(0),
    }
}

/// The ways that are ours.
const OURS: [&str; 2] = ["same_process", "cross_process"];
const WIDTH: i32 = 1200;
const MARGIN: i32 = 20;
const HEAD_HEIGHT: i32 = 70;
const TITLE_HEIGHT: i32 = 30;
const ROW_HEIGHT: i32 = 30;
const AXIS_HEIGHT: i32 = 40;
const CHART_HEIGHT: i32 = 360;
const PATTERN_HEIGHT: i32 = 260;
const PATTERNS_ACROSS: usize = 3;
const BARS_LEFT: i32 = 160;
const BARS_RIGHT: i32 = 900;
const NS_MIN: f64 = 50.0;
const NS_MAX: f64 = 1e7;
