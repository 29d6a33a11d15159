//! The pictures of the tables and figures: lines over the number of workers, engines or tasks; bars
//! for the block device.
//!
//! Must stay true: axes are named with their units; the paper's points differ from the model's
//! lines by shape, not by colour alone. Pure: SVG text comes out.
//! Source: own; colours after Okabe and Ito, which colour-blind people can distinguish, too.

use crate::figures::Point;
use crate::report::Figure;
use crate::tables::{Table1Row, Table2Row};
use crate::uio::{Kind, Row};
use plotters::prelude::*;
use sidecore_plot::{Area, Axis, COLOURS, GREY, Mark, PlotError, Series, failed};

pub(crate) fn table1(machine: &str, rows: &[Table1Row]) -> Result<String, PlotError> {
    let at = |row: &Table1Row| f64::from(row.workers);
    let model = |name: &str, of: &dyn Fn(&Table1Row) -> f64| {
        line(name, rows.iter().map(|row| (at(row), of(row))).collect())
    };
    let paper = |name: &str, of: &dyn Fn(&Table1Row) -> Option<f64>| {
        // On a machine of the user's there is no paper's point.
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

pub(crate) fn table2(machine: &str, rows: &[Table2Row]) -> Result<String, PlotError> {
    let at = |row: &Table2Row| f64::from(row.engines);
    let paper = rows.iter().filter_map(|row| Some((at(row), row.paper_s?)));
    let series = [
        line(
            "model",
            rows.iter().map(|row| (at(row), row.model_s)).collect(),
        ),
        // Said in the picture, too: the agreement proves nothing.
        measured("paper (an input)", paper.collect()),
    ];
    one_chart(
        &format!("Table 2: one task, loops split over engines ({machine})"),
        "engines a loop",
        &series,
    )
}

pub(crate) fn figure(figure: Figure, machine: &str, points: &[Point]) -> Result<String, PlotError> {
    let of = |name: &str, value: &dyn Fn(&Point) -> Option<f64>| {
        let points = points.iter();
        let points = points.filter_map(|p| Some((f64::from(p.bootstraps), value(p)?)));
        line(name, points.collect())
    };
    let mut series = vec![
        of("EDTLP", &|p| Some(p.edtlp_s)),
        of("static EDTLP-LLP", &|p| Some(p.hybrid_s)),
    ];
    // The paper's figure 7 has the static policies alone.
    if figure == Figure::Seven {
        series.push(of("mixed (needs an oracle)", &|p| p.mixed_s));
    } else {
        series.push(of("MGPS", &|p| Some(p.mgps_s)));
        series.push(of("equi", &|p| Some(p.equi_s)));
    }
    series.push(of("lower bound", &|p| Some(p.lower_bound_s)));
    // Two charts: on the scale of 128 tasks, the lines to 16 cannot be told apart.
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
            &format!("Figure {} (a): 1 to 16 tasks", figure.number()),
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
pub(crate) fn runs<'a>(
    machine: &str,
    runs: impl Iterator<Item = (&'a str, u32, f64)>,
) -> Result<String, PlotError> {
    let mut series: Vec<Series> = Vec::new();
    for (policy, tasks, seconds) in runs {
        let point = (f64::from(tasks), seconds);
        // In the order in which the policies came, which is the caller's.
        match series.iter_mut().find(|each| each.name == policy) {
            Some(each) => each.points.push(point),
            None => series.push(line(policy, vec![point])),
        }
    }
    one_chart(machine, "tasks", &series)
}

/// The block device: model over paper where the papers have a figure.
pub(crate) fn uio(rows: &[Row]) -> Result<String, PlotError> {
    let rows: Vec<(&Row, f64)> = rows
        .iter()
        .filter_map(|row| Some((row, row.model / row.paper?)))
        // A bar that leaves the picture would be cut and look like a smaller one.
        .filter(|(_, ratio)| *ratio < UIO_RATIO_MAX)
        .collect();
    let height = 90 + ROW * i32::try_from(rows.len()).unwrap_or(0);
    sidecore_plot::picture((WIDTH, height.cast_unsigned()), |root| {
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
        for (place, (row, ratio)) in (0..).zip(&rows) {
            let top = 75 + ROW * place;
            // Only a prediction can be wrong, so only predictions have a colour.
            let predicted = row.kind == Kind::Predicted;
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

fn one_chart(title: &str, x: &str, series: &[Series]) -> Result<String, PlotError> {
    draw(|root| chart(root, title, x, series))
}

fn draw(inside: impl FnOnce(&Area<'_>) -> Result<(), PlotError>) -> Result<String, PlotError> {
    sidecore_plot::picture((WIDTH, HEIGHT), inside)
}

fn chart(area: &Area<'_>, title: &str, x: &str, series: &[Series]) -> Result<(), PlotError> {
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
    sidecore_plot::chart(area, &axis, &coloured)
}

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 560;
/// Height of a row of the block device's.
const ROW: i32 = 30;
const UIO_RATIO_MAX: f64 = 1.5;
