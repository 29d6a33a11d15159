//! The grain as a picture: the paper's words, the Cell's model, this machine.
//!
//! Why here: drawing is printing. Must stay true: model and machine are drawn alike, each relative
//! to its own better of EDTLP and hybrid, since their seconds have nothing in common. The paper
//! printed no numbers for its curves, so the picture names only the winners. Pure: SVG text comes
//! out.

use super::{GrainOptions, GrainRow};
use crate::frame::picture::COLOURS;
use crate::measure::Machine;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use sidecore_cell_sim::figures::Point;
use sidecore_plot::{Area, GREY, PlotError, failed, text};

/// Draws the rows and the model's.
///
/// # Errors
/// [`PlotError`].
pub(super) fn draw(
    machine: &Machine,
    options: &GrainOptions,
    rows: &[GrainRow],
    model: &[Point],
) -> Result<String, PlotError> {
    sidecore_plot::picture((WIDTH, HEIGHT), |root| {
        let (head, charts) = root.split_vertically(HEAD);
        let title = "Bootstraps under four policies, relative to the better of EDTLP and hybrid";
        text(&head, title, (MARGIN, 20), 20, HPos::Left)?;
        let line = format!(
            "{}, {} engines, load {}, commit {}; {} taxa, {} sites, medians",
            machine.cpu,
            options.engines,
            machine.load_start,
            machine.commit,
            options.taxa,
            options.sites
        );
        text(&head, &line, (MARGIN, 46), 12, HPos::Left)?;
        for (k, line) in PAPER.iter().enumerate() {
            text(&head, line, (MARGIN, 72 + 18 * k as i32), 13, HPos::Left)?;
        }
        let (left, rest) = charts.split_horizontally(WIDTH / 3);
        let (right, replayed) = rest.split_horizontally(WIDTH / 3);
        let model = model.iter().map(|p| {
            let seconds = [p.edtlp_s, p.hybrid_s, p.mgps_s, p.equi_s];
            (p.bootstraps, seconds)
        });
        chart(&left, "Model of the Cell, 8 SPEs", &relative(model))?;
        let here = rows.iter().map(|row| {
            let seconds = [row.edtlp_s, row.hybrid_s, row.mgps_s, row.equi_s];
            (row.bootstraps, seconds)
        });
        let title = format!("This machine, hybrid({})", options.hybrid);
        chart(&right, &title, &relative(here))?;
        let virtually = rows.iter().map(|row| (row.bootstraps, row.replayed_s));
        chart(&replayed, "Replayed in virtual time", &relative(virtually))
    })
}

/// Seconds over the better of the first two.
fn relative(rows: impl Iterator<Item = (u32, [f64; 4])>) -> Vec<(u32, [f64; 4])> {
    rows.map(|(count, seconds)| {
        let better = seconds[0].min(seconds[1]);
        (count, seconds.map(|one| one / better))
    })
    .collect()
}

/// Groups of four bars.
fn chart(area: &Area<'_>, title: &str, rows: &[(u32, [f64; 4])]) -> Result<(), PlotError> {
    let groups = rows.len().max(1) as f64;
    let most = rows.iter().flat_map(|(_, values)| values);
    let most = most.copied().fold(1.2, f64::max).min(MOST);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(MARGIN)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..groups, 0.0..most * 1.15)
        .map_err(failed)?;
    let label = |x: &f64| {
        let row = rows.get(*x as usize);
        row.map_or_else(String::new, |(count, _)| count.to_string())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(WHITE)
        .y_label_formatter(&|y| format!("{y:.1}"))
        .draw()
        .map_err(failed)?;
    for (k, (name, colour)) in NAMES.iter().zip(COLOURS).enumerate() {
        let bars = rows.iter().enumerate().map(|(group, (_, values))| {
            let from = group as f64 + 0.1 + 0.2 * k as f64;
            let top = values[k].min(most * 1.1);
            Rectangle::new([(from, 0.0), (from + 0.18, top)], colour.filled())
        });
        chart
            .draw_series(bars)
            .map_err(failed)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    let level = [(0.0, 1.0), (groups, 1.0)];
    let drawn = chart.draw_series(LineSeries::new(level, BLACK.stroke_width(1)));
    drawn.map_err(failed)?;
    for group in 0..rows.len() {
        let at = chart.backend_coord(&(group as f64 + 0.5, 0.0));
        let base = area.get_base_pixel();
        let at = (at.0 - base.0, at.1 - base.1 + 14);
        text(area, &label(&(group as f64)), at, 12, HPos::Center)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.filled())
        .border_style(GREY)
        .draw()
        .map_err(failed)
}

const NAMES: [&str; 4] = ["EDTLP", "hybrid", "MGPS", "equi"];
const PAPER: [&str; 2] = [
    "Paper, Figure 7: static EDTLP-LLP beats EDTLP for 1 to 4 bootstraps, EDTLP wins for 5 to 8 \
     and from 13 on, a mixture for 9 to 12.",
    "Paper, Figure 8: MGPS is never slower than the better of both, and equals EDTLP beyond 28. \
     (Curves without printed numbers.)",
];
const WIDTH: u32 = 1620;
const HEIGHT: u32 = 540;
const HEAD: i32 = 110;
const MARGIN: i32 = 20;
/// Ratio at which taller bars are cut.
const MOST: f64 = 3.0;
