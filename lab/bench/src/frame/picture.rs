//! A bench's figures as a picture: bars of ours and the peers'.
//!
//! Why here: every bench is drawn alike. Must stay true: every bar carries its ratio, losses like
//! wins; labels have rows of their own, so that none covers another. Pure: SVG text comes out.
//! Source: own; colours after Okabe and Ito, which colour-blind people can distinguish, too.

use super::Head;
use crate::measure::stats::{number, percent};
use crate::measure::{Better, Peer, markdown};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use sidecore_plot::{Area, GREY, PlotError, failed, text};

/// A picture to draw.
pub(crate) struct Picture<'r> {
    /// Machine, rounds, foreign load.
    pub head: &'r Head,
    /// Comparisons; those that were not measured are left out.
    pub peers: &'r [Peer],
    /// Height of the drawing below the bars, in pixels.
    pub lower_height: i32,
}

impl Picture<'_> {
    /// Draws the bars, and lets `lower` draw below them.
    pub(crate) fn draw(
        &self,
        lower: impl FnOnce(&Area<'_>) -> Result<(), PlotError>,
    ) -> Result<String, PlotError> {
        let measured = |peer: &&Peer| peer.ratio.is_some();
        let bars: Vec<_> = self.peers.iter().filter(measured).collect();
        let bars_height = HEAD_HEIGHT + bars.len() as i32 * ROW_HEIGHT;
        let height = bars_height + self.lower_height + MARGIN;
        sidecore_plot::picture((WIDTH as u32, height as u32), |root| {
            let (upper, below) = root.split_vertically(bars_height);
            self.draw_head(&upper)?;
            for (row, peer) in bars.iter().enumerate() {
                draw_bar(&upper, peer, HEAD_HEIGHT + row as i32 * ROW_HEIGHT)?;
            }
            if self.lower_height > 0 {
                lower(&below)?;
            }
            Ok(())
        })
    }

    fn draw_head(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let title = "Ours beside the peers: how many times as good";
        text(area, title, (MARGIN, 16), 20, HPos::Left)?;
        let line = circumstances(self.head);
        text(area, &line, (MARGIN, 42), 12, HPos::Left)?;
        let legend = "blue: better than the peer; orange: worse; black mark: what is wanted";
        text(area, legend, (MARGIN, 60), 12, HPos::Left)?;
        for gain in [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0] {
            let label = if gain == 1.0 {
                "peer".into()
            } else {
                format!("{gain}x")
            };
            let at = (scale(gain), HEAD_HEIGHT - 12);
            text(area, &label, at, 12, HPos::Center)?;
        }
        Ok(())
    }
}

/// Our figure as a multiple of the peer's: more is better, whichever way the metric goes.
fn gain(better: Better, ratio: f64) -> f64 {
    match better {
        Better::Higher => ratio,
        Better::Lower => 1.0 / ratio.max(1e-9),
    }
}

/// Position of a gain: a scale by powers, from a quarter to sixteen times.
fn scale(gain: f64) -> i32 {
    let share = (gain.clamp(GAIN_MIN, GAIN_MAX) / GAIN_MIN).log2() / (GAIN_MAX / GAIN_MIN).log2();
    BARS_LEFT + (share * f64::from(BARS_RIGHT - BARS_LEFT)) as i32
}

fn draw_bar(area: &Area<'_>, peer: &Peer, top: i32) -> Result<(), PlotError> {
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
    let show = |value: Option<f64>| number(value.unwrap_or(0.0));
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
    let spread = percent(peer.spread.unwrap_or(0.0));
    let second = format!("spread {spread}  {wanted} {standing}");
    text(area, &second, (WIDTH - MARGIN, middle + 8), 11, HPos::Right)
}

/// Machine, load, commit, rounds, and if the run was a smoke run or noisy: one line.
#[must_use]
pub(crate) fn circumstances(head: &Head) -> String {
    let smoke = if head.quick {
        "; quick run, a smoke run"
    } else {
        ""
    };
    let noisy = if head.noise.noisy { "; noisy" } else { "" };
    let machine = &head.machine;
    format!(
        "{}, {} cores, load {}, commit {}, {} rounds{smoke}{noisy}",
        machine.cpu, machine.cores, machine.load_start, machine.commit, head.rounds
    )
}

/// For bars and lines, in this order.
pub(crate) const COLOURS: [RGBColor; 4] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];
const WIDTH: i32 = 1200;
/// Pixels left free around everything.
pub(crate) const MARGIN: i32 = 20;
const HEAD_HEIGHT: i32 = 100;
const ROW_HEIGHT: i32 = 40;
const BARS_LEFT: i32 = 500;
const BARS_RIGHT: i32 = 890;
const GAIN_MIN: f64 = 0.25;
const GAIN_MAX: f64 = 16.0;
const BETTER: RGBColor = RGBColor(0, 114, 178);
const WORSE: RGBColor = RGBColor(213, 94, 0);
