//! The bench as a picture: bars of ours beside the peers', a line for 1 to N engines.
//!
//! Why here: drawing is printing. Must stay true: every bar carries its ratio, losses like wins;
//! labels have rows of their own, so that none covers another. Pure: SVG text comes out.
//! Source: own; colours after Okabe and Ito, told apart by colour-blind people, too.

use crate::picture::{Area, COLOURS, GREY, failed, text};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use sidecore_block::bench::markdown;
use sidecore_block::bench::report::{Better, Peer, Report};

/// Draws a report.
pub(super) fn draw(report: &Report) -> Result<String> {
    let bars: Vec<_> = report
        .peers
        .iter()
        .filter(|peer| peer.ratio.is_some())
        .collect();
    let lines = lines(report);
    let bars_height = HEAD_HEIGHT + bars.len() as i32 * ROW_HEIGHT;
    let lines_height = if lines.is_empty() { 0 } else { LINES_HEIGHT };
    let mut svg = String::new();
    {
        let size = (WIDTH as u32, (bars_height + lines_height + MARGIN) as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (upper, lower) = root.split_vertically(bars_height);
        draw_head(&upper, report)?;
        for (row, peer) in bars.iter().enumerate() {
            draw_bar(&upper, peer, HEAD_HEIGHT + row as i32 * ROW_HEIGHT)?;
        }
        if !lines.is_empty() {
            draw_lines(&lower, &lines)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn draw_head(area: &Area<'_>, report: &Report) -> Result<()> {
    text(
        area,
        "Ours beside the peers: how many times as good",
        (MARGIN, 16),
        20,
        HPos::Left,
    )?;
    let taste = if report.quick {
        "; quick run, a taste"
    } else {
        ""
    };
    let machine = &report.machine;
    let line = format!(
        "{}, {} cores, load {}, commit {}, {} rounds{taste}",
        machine.cpu, machine.cores, machine.load_start, machine.commit, report.rounds
    );
    text(area, &line, (MARGIN, 42), 12, HPos::Left)?;
    let legend = "blue: better than the peer; orange: worse; black mark: what is wanted";
    text(area, legend, (MARGIN, 60), 12, HPos::Left)?;
    for gain in [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0] {
        let label = if gain == 1.0 {
            "peer".into()
        } else {
            format!("{gain}x")
        };
        text(
            area,
            &label,
            (scale(gain), HEAD_HEIGHT - 12),
            12,
            HPos::Center,
        )?;
    }
    Ok(())
}

/// How many times as good as the peer: more is better, whichever way the metric goes.
fn gain(better: Better, ratio: f64) -> f64 {
    match better {
        Better::Higher => ratio,
        Better::Lower => 1.0 / ratio.max(1e-9),
    }
}

/// Where a gain stands: a scale by powers, from a quarter to sixteen times.
fn scale(gain: f64) -> i32 {
    let share = (gain.clamp(GAIN_MIN, GAIN_MAX) / GAIN_MIN).log2() / (GAIN_MAX / GAIN_MIN).log2();
    BARS_LEFT + (share * f64::from(BARS_RIGHT - BARS_LEFT)) as i32
}

fn draw_bar(area: &Area<'_>, peer: &Peer, top: i32) -> Result<()> {
    let middle = top + ROW_HEIGHT / 2;
    let gain_here = gain(peer.better, peer.ratio.unwrap_or(1.0));
    let (from, to) = (scale(1.0), scale(gain_here));
    let colour = if gain_here >= 1.0 { BETTER } else { WORSE };
    let bar = [
        (from.min(to), top + 6),
        (from.max(to).max(from.min(to) + 1), top + ROW_HEIGHT - 8),
    ];
    area.draw(&Rectangle::new(bar, colour.filled()))
        .map_err(failed)?;
    let axis = [(from, top), (from, top + ROW_HEIGHT)];
    area.draw(&PathElement::new(axis, GREY)).map_err(failed)?;
    if let Some(target) = peer.target {
        let at = scale(gain(peer.better, target));
        let mark = [(at - 1, top + 2), (at + 1, top + ROW_HEIGHT - 4)];
        area.draw(&Rectangle::new(mark, BLACK.filled()))
            .map_err(failed)?;
    }
    text(area, &peer.metric, (MARGIN, middle - 8), 13, HPos::Left)?;
    text(
        area,
        &format!("peer: {}", peer.name),
        (MARGIN, middle + 8),
        11,
        HPos::Left,
    )?;
    let show = |value: Option<f64>| markdown::number(value.unwrap_or(0.0));
    let values = format!(
        "{} : {} {} = {:.2}",
        show(peer.here),
        show(peer.peer),
        peer.unit,
        peer.ratio.unwrap_or(0.0)
    );
    text(area, &values, (WIDTH - MARGIN, middle - 8), 13, HPos::Right)?;
    let wanted = markdown::wanted(peer.better, peer.target);
    let standing = markdown::standing(peer).replace('*', "");
    let spread = markdown::percent(peer.spread.unwrap_or(0.0));
    let second = format!("spread {spread}  {wanted} {standing}");
    text(area, &second, (WIDTH - MARGIN, middle + 8), 11, HPos::Right)
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

fn draw_lines(area: &Area<'_>, lines: &[(String, Vec<(f64, f64)>)]) -> Result<()> {
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

const WIDTH: i32 = 1200;
const MARGIN: i32 = 20;
const HEAD_HEIGHT: i32 = 100;
const ROW_HEIGHT: i32 = 40;
const LINES_HEIGHT: i32 = 420;
const BARS_LEFT: i32 = 500;
const BARS_RIGHT: i32 = 890;
const GAIN_MIN: f64 = 0.25;
const GAIN_MAX: f64 = 16.0;
const BETTER: RGBColor = RGBColor(0, 114, 178);
const WORSE: RGBColor = RGBColor(213, 94, 0);
