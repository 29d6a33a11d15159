//! The pictures of `sidecore cell`: lines over the number of workers, engines or tasks; bars for
//! the block device.
//!
//! Why here: drawing is printing. Pure: SVG text comes out.
//! Must stay true: axes are named with their units; the paper's points differ from the model's
//! lines by shape, not by colour alone.
//! Source: own; colours after Okabe and Ito, which colour-blind people can distinguish, too.

use crate::picture::{Area, GREY, failed};
use anyhow::Result;
use plotters::prelude::*;
use sidecore_cell_sim::figures::Point;
use sidecore_cell_sim::tables::{Table1Row, Table2Row};
use sidecore_cell_sim::uio::Row;
use sidecore_plot::{Axis, COLOURS, Mark, Series};

pub(super) fn table1(machine: &str, rows: &[Table1Row]) -> Result<String> {
    let at = |row: &Table1Row| f64::from(row.workers);
    let model = |name: &str, of: &dyn Fn(&Table1Row) -> f64| {
        line(name, rows.iter().map(|row| (at(row), of(row))).collect())
    };
    let paper = |name: &str, of: &dyn Fn(&Table1Row) -> Option<f64>| {
        let points = rows.iter().filter_map(|row| Some((at(row), of(row)?)));
        measured(name, points.collect())
    };
    let series = [
        model("EDTLP, model", &|row| row.model_edtlp_s),
        model("Linux, model", &|row| row.model_linux_s),
        paper("EDTLP, paper", &|row| row.paper_edtlp_s),
        paper("Linux, paper", &|row| row.paper_linux_s),
    ];
    one_chart(
        &format!("Table 1: one task a worker ({machine})"),
        "workers",
        &series,
    )
}

pub(super) fn table2(machine: &str, rows: &[Table2Row]) -> Result<String> {
    let at = |row: &Table2Row| f64::from(row.engines);
    let paper = rows.iter().filter_map(|row| Some((at(row), row.paper_s?)));
    let series = [
        line(
            "model",
            rows.iter().map(|row| (at(row), row.model_s)).collect(),
        ),
        measured("paper (an input)", paper.collect()),
    ];
    one_chart(
        &format!("Table 2: one task, loops split over engines ({machine})"),
        "engines a loop",
        &series,
    )
}

pub(super) fn figure(number: u32, machine: &str, points: &[Point]) -> Result<String> {
    let of = |name: &str, value: &dyn Fn(&Point) -> Option<f64>| {
        let points = points.iter();
        let points = points.filter_map(|p| Some((f64::from(p.bootstraps), value(p)?)));
        line(name, points.collect())
    };
    let mut series = vec![
        of("EDTLP", &|p| Some(p.edtlp_s)),
        of("static EDTLP-LLP", &|p| Some(p.hybrid_s)),
    ];
    if number == 7 {
        series.push(of("mixed (needs an oracle)", &|p| p.mixed_s));
    } else {
        series.push(of("MGPS", &|p| Some(p.mgps_s)));
        series.push(of("equi", &|p| Some(p.equi_s)));
    }
    series.push(of("lower bound", &|p| Some(p.lower_bound_s)));
    draw(|root| {
        let (left, right) = root.split_horizontally(WIDTH / 2);
        let few: Vec<Series> = series
            .iter()
            .map(|each| Series {
                name: each.name.clone(),
                points: each
                    .points
                    .iter()
                    .copied()
                    .filter(|p| p.0 <= 16.0)
                    .collect(),
                ..each.clone()
            })
            .collect();
        chart(
            &left,
            &format!("Figure {number} (a): 1 to 16 tasks"),
            "tasks",
            &few,
        )?;
        chart(
            &right,
            &format!("(b): 1 to 128 tasks; {machine}"),
            "tasks",
            &series,
        )
    })
}

/// Lines over the number of tasks, one a policy: of each run the policy's name, tasks and seconds.
pub(super) fn run<'a>(
    machine: &str,
    runs: impl Iterator<Item = (&'a str, u32, f64)>,
) -> Result<String> {
    let mut series: Vec<Series> = Vec::new();
    for (policy, tasks, seconds) in runs {
        let point = (f64::from(tasks), seconds);
        match series.iter_mut().find(|each| each.name == policy) {
            Some(each) => each.points.push(point),
            None => series.push(line(policy, vec![point])),
        }
    }
    one_chart(machine, "tasks", &series)
}

/// The block device: model over paper where the papers have a figure.
pub(super) fn uio(rows: &[Row]) -> Result<String> {
    let rows: Vec<(&Row, f64)> = rows
        .iter()
        .filter_map(|row| Some((row, row.model / row.paper?)))
        .filter(|(_, ratio)| *ratio < UIO_RATIO_MAX)
        .collect();
    let height = 90 + 30 * rows.len() as i32;
    sidecore_plot::picture((WIDTH as u32, height as u32), |root| {
        let text = |at: (i32, i32), text: &str, size: i32| {
            let style = ("sans-serif", size).into_font().color(&BLACK);
            root.draw_text(text, &style, at).map_err(failed)
        };
        text(
            (20, 14),
            "The block device: model over paper (line: the same)",
            20,
        )?;
        text((20, 44), "blue: predicted; grey: put in or fitted", 13)?;
        let scale = |ratio: f64| 560 + (ratio / UIO_RATIO_MAX * 400.0) as i32;
        for (index, (row, ratio)) in rows.iter().enumerate() {
            let top = 75 + 30 * index as i32;
            let predicted = row.kind == sidecore_cell_sim::uio::Kind::Predicted;
            let colour = if predicted { COLOURS[0] } else { GREY };
            text((20, top + 3), row.name, 13)?;
            let bar = [(scale(0.0), top), (scale(*ratio), top + 20)];
            root.draw(&Rectangle::new(bar, colour.filled()))
                .map_err(failed)?;
            let paper = row.paper.unwrap_or_default();
            let values = format!("{:.1} / {paper:.1} {} = {ratio:.2}", row.model, row.unit);
            text((scale(UIO_RATIO_MAX) + 10, top + 3), &values, 13)?;
        }
        let one = [(scale(1.0), 70), (scale(1.0), height - 15)];
        root.draw(&PathElement::new(one, BLACK.stroke_width(2)))
            .map_err(failed)
    })
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    series(name, points, Mark::Line)
}

fn measured(name: &str, points: Vec<(f64, f64)>) -> Series {
    series(name, points, Mark::Crosses)
}

fn series(name: &str, points: Vec<(f64, f64)>, mark: Mark) -> Series {
    Series {
        name: name.into(),
        points,
        mark,
        colour: 0,
    }
}

fn one_chart(title: &str, x: &str, series: &[Series]) -> Result<String> {
    draw(|root| chart(root, title, x, series))
}

fn draw(inside: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    sidecore_plot::picture((WIDTH as u32, HEIGHT as u32), inside)
}

fn chart(area: &Area<'_>, title: &str, x: &str, series: &[Series]) -> Result<()> {
    // Points take the colour of their line: the same order.
    let lines = series.iter().filter(|each| each.mark == Mark::Line).count();
    let coloured = series.iter().cloned().enumerate();
    let coloured: Vec<Series> = coloured
        .map(|(index, each)| Series {
            colour: index % lines.max(1),
            ..each
        })
        .collect();
    let axis = Axis {
        title,
        x,
        y: "seconds",
        letters: 15,
        by_powers: false,
    };
    Ok(sidecore_plot::chart(area, &axis, &coloured)?)
}

const WIDTH: i32 = 1200;
const HEIGHT: i32 = 560;
const UIO_RATIO_MAX: f64 = 1.5;
