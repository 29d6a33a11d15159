//! The curves of `tlb` as a picture, their knees marked.
//!
//! Must stay true: a knee is marked where it was found, and only
//! there; values above the picture's top are clipped, not scaled. Pure: SVG text comes out.
//! Source: own; colours after Okabe and Ito, which colour-blind people can distinguish, too.

use crate::access::{Pages, Path};
use crate::report::{Level, Measured, Report, bytes};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use sidecore_plot::{Area, GREY, PlotError, failed, text};

/// Draws a report as SVG: loads above, an engine's gets below.
///
/// # Errors
/// The drawing library's.
pub fn draw(report: &Report) -> Result<String, PlotError> {
    let curves = |dma: bool| -> Vec<&Measured> {
        let all = report.curves.iter();
        all.filter(|measured| (measured.path != Path::Load) == dma)
            .collect()
    };
    let panels: Vec<(&str, Vec<&Measured>)> = [
        ("a core's loads", curves(false)),
        ("an engine's DMA gets of 128 bytes", curves(true)),
    ]
    .into_iter()
    .filter(|(_, curves)| !curves.is_empty())
    .collect();
    let heights = panels.iter().map(|_| PANEL_HEIGHT);
    let height = HEAD_HEIGHT + heights.sum::<u32>();
    sidecore_plot::picture((WIDTH, height), |root| {
        let (head, mut rest) = root.split_vertically(HEAD_HEIGHT);
        draw_head(&head, report)?;
        for (title, curves) in &panels {
            let (panel, below) = rest.split_vertically(PANEL_HEIGHT);
            draw_panel(&panel, title, curves, report)?;
            rest = below;
        }
        Ok(())
    })
}

fn draw_head(area: &Area<'_>, report: &Report) -> Result<(), PlotError> {
    let quick = if report.quick { ", quick run" } else { "" };
    let machine = &report.machine;
    let line = format!(
        "{}, {} cores, kernel {}, load {}{quick}",
        machine.cpu, machine.cores, machine.kernel, machine.load_start
    );
    text(
        area,
        "What address translation costs",
        (MARGIN, 20),
        20,
        HPos::Left,
    )?;
    text(area, &line, (MARGIN, 46), 13, HPos::Left)?;
    let legend = "fastest windows; an access in each 4 KiB, in random order; marks: half of the \
                  accesses miss a level of that many entries";
    text(area, legend, (MARGIN, 66), 13, HPos::Left)
}

fn draw_panel(
    area: &Area<'_>,
    title: &str,
    curves: &[&Measured],
    report: &Report,
) -> Result<(), PlotError> {
    let top = top(curves);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("cycles of {title}"), ("sans-serif", 18))
        .margin(MARGIN)
        .margin_right(3 * MARGIN)
        .x_label_area_size(44)
        .y_label_area_size(54)
        .build_cartesian_2d(FIRST_OCTAVE..LAST_OCTAVE, 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(12)
        .x_label_formatter(&|octave| {
            let pages = octave.exp2() as usize;
            format!("{pages} ({})", bytes(pages * 4096))
        })
        .x_label_style(("sans-serif", 11))
        .x_desc("pages of 4 KiB")
        .y_desc("cycles per access")
        .draw()
        .map_err(failed)?;
    for (measured, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let step = (measured.stride_bytes / 4096) as f64;
        let points = measured.curve.fastest().into_iter();
        let points = points.map(|(pages, cycles)| ((pages * step).log2(), cycles));
        // Points outside the picture are not drawn along its edge.
        let inside: Vec<(f64, f64)> = points
            .take_while(|&(octave, cycles)| octave <= LAST_OCTAVE && cycles <= top)
            .collect();
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(inside, style))
            .map_err(failed)?
            .label(name(measured))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
    }
    let shown = |level: &&Level| {
        let of = |measured: &&&Measured| {
            measured.path.name() == level.path && level.pages == Pages::SmallAliased.name()
        };
        curves.iter().any(|measured| of(&measured)) && level.path != Path::DmaBorrow.name()
    };
    for level in report.levels.iter().filter(shown) {
        let at = level.knee.entries_half.log2();
        let mark = [(at, 0.0), (at, top * 0.9)];
        chart
            .draw_series(DashedLineSeries::new(mark, 5, 4, BLACK.stroke_width(1)))
            .map_err(failed)?;
        let label = format!(
            "{} entries: +{:.0} cycles",
            level.entries, level.penalty_cycles
        );
        let style = ("sans-serif", 14).into_font().color(&BLACK);
        let style = style.pos(Pos::new(HPos::Right, VPos::Bottom));
        chart
            .draw_series([Text::new(label, (at - 0.06, top * 0.84), style)])
            .map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperMiddle)
        .background_style(WHITE)
        .border_style(GREY)
        .legend_area_size(36)
        .label_font(("sans-serif", 13))
        .draw()
        .map_err(failed)?;
    Ok(())
}

fn name(measured: &Measured) -> String {
    let path = match measured.path {
        Path::Load => String::new(),
        path => format!("{}, ", path.name()),
    };
    let layout = match (measured.pages, measured.layout) {
        (Pages::SmallAliased, "near") => ", data in the first cache",
        (Pages::SmallAliased, _) if measured.path == Path::Load => ", data in the second cache",
        _ => "",
    };
    format!("{path}{}{layout}", measured.pages.name())
}

/// High enough for every level of translation, without room for cache misses.
fn top(curves: &[&Measured]) -> f64 {
    let knees = curves.iter().flat_map(|measured| &measured.knees);
    let highest = knees
        .map(|knee| knee.base_cycles + knee.penalty_cycles)
        .fold(0.0, f64::max);
    match highest > 0.0 {
        true => highest * 1.35,
        false => {
            let points = curves.iter().flat_map(|measured| measured.curve.points());
            points.map(|point| point.cycles).fold(1.0, f64::max) * 1.1
        }
    }
}

const WIDTH: u32 = 1200;
const MARGIN: i32 = 20;
const HEAD_HEIGHT: u32 = 84;
const PANEL_HEIGHT: u32 = 460;
/// 8 pages.
const FIRST_OCTAVE: f64 = 3.0;
/// 16,384 pages.
const LAST_OCTAVE: f64 = 14.0;
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(0, 0, 0),
    RGBColor(240, 228, 66),
];
