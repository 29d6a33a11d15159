//! The pictures of `sidecore cell`: lines over the number of workers, engines or tasks; bars for
//! the block device.
//!
//! Why here: drawing is printing. Pure: SVG text comes out.
//! Must stay true: axes are named with their units; the paper's points are told from the model's
//! lines by shape, not by colour alone.
//! Source: own; colours after Okabe and Ito, told apart by colour-blind people, too.

use super::run::Row as RunRow;
use crate::picture::{Area, GREY, failed};
use anyhow::Result;
use plotters::prelude::*;
use sidecore_cell::figures::Point;
use sidecore_cell::tables::{Table1Row, Table2Row};
use sidecore_cell::uio::Row;

/// One line or one set of points.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    /// Points alone: something measured. Otherwise a line.
    measured: bool,
}

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
                measured: each.measured,
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

pub(super) fn run(machine: &str, rows: &[RunRow]) -> Result<String> {
    let mut series: Vec<Series> = Vec::new();
    for row in rows {
        let point = (f64::from(row.tasks), row.seconds);
        match series.iter_mut().find(|each| each.name == row.policy) {
            Some(each) => each.points.push(point),
            None => series.push(line(&row.policy, vec![point])),
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
    let mut svg = String::new();
    {
        let size = (WIDTH as u32, height as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
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
            let predicted = row.kind == sidecore_cell::uio::Kind::Predicted;
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
            .map_err(failed)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.into(),
        points,
        measured: false,
    }
}

fn measured(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.into(),
        points,
        measured: true,
    }
}

fn one_chart(title: &str, x: &str, series: &[Series]) -> Result<String> {
    draw(|root| chart(root, title, x, series))
}

fn draw(inside: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let size = (WIDTH as u32, HEIGHT as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        inside(&root)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn chart(area: &Area<'_>, title: &str, x: &str, series: &[Series]) -> Result<()> {
    let all = || series.iter().flat_map(|each| &each.points);
    let most = all().fold((1.0_f64, 0.0_f64), |most, point| {
        (most.0.max(point.0), most.1.max(point.1))
    });
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(18)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..most.0 * 1.04, 0.0..most.1 * 1.12)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(x)
        .y_desc("seconds")
        .axis_desc_style(("sans-serif", 15))
        .x_labels(9)
        .x_label_formatter(&|at| format!("{at:.0}"))
        .y_label_formatter(&|at| format!("{at:.0}"))
        .draw()
        .map_err(failed)?;
    // Points take the colour of the line that they belong to: the same order.
    let lines = series.iter().filter(|each| !each.measured).count().max(1);
    for (index, each) in series.iter().enumerate() {
        let colour = COLOURS[index % lines % COLOURS.len()];
        let style = colour.stroke_width(2);
        if each.measured {
            let crosses = each.points.iter().map(|&at| Cross::new(at, 6, style));
            chart
                .draw_series(crosses)
                .map_err(failed)?
                .label(&each.name)
                .legend(move |(x, y)| Cross::new((x + 12, y), 6, style));
            continue;
        }
        chart
            .draw_series(LineSeries::new(each.points.iter().copied(), style))
            .map_err(failed)?
            .label(&each.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
        let dots = each
            .points
            .iter()
            .map(|&at| Circle::new(at, 3, colour.filled()));
        chart.draw_series(dots).map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.filled())
        .border_style(GREY)
        .label_font(("sans-serif", 14))
        .legend_area_size(36)
        .draw()
        .map_err(failed)
}

const WIDTH: i32 = 1200;
const HEIGHT: i32 = 560;
const UIO_RATIO_MAX: f64 = 1.5;
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(90, 90, 90),
];
