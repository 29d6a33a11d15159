//! The timeline: above, a row for each engine with the contexts that it ran; below, a row for each
//! context, coloured by what it did or waited for.
//!
//! Must stay true: a picture of bounded size; states shorter than a pixel are drawn as one. Pure.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use sidecore_plot::{Area, COLOURS, GREY, PlotError, failed, picture, text};
use spe2::trace::{Cause, State, Trace};
use std::collections::BTreeSet;

const WIDTH: u32 = 1200;
pub(super) const LEFT: i32 = 90;
const RIGHT: i32 = 1180;
pub(super) const TOP: i32 = 70;
pub(super) const ROW: i32 = 16;
/// Rows of contexts at most, and of engines; those left out are counted in a line.
const ROWS_MAX: usize = 64;
/// Divisions of the time's axis at most.
const TICKS_MAX: u64 = 10;
/// Pixels that a context's number takes in its engine's row.
const LABEL: i32 = 26;

/// More of Okabe's and Ito's colours.
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const SKY: RGBColor = RGBColor(86, 180, 233);
pub(super) const PALE: RGBColor = RGBColor(215, 215, 215);

const LEGEND: [(&str, RGBColor); 7] = [
    ("runs", COLOURS[0]),
    ("waits for a word", COLOURS[1]),
    ("to have one taken", ORANGE),
    ("for a signal", COLOURS[2]),
    ("for an event", COLOURS[3]),
    ("for DMA", COLOURS[4]),
    ("ready, no engine free", PALE),
];

/// Colours of contexts in the engines' rows.
const CONTEXTS: [RGBColor; 6] = [COLOURS[0], ORANGE, COLOURS[2], COLOURS[3], SKY, COLOURS[4]];

/// Draws a trace, as SVG.
///
/// # Errors
/// The drawing library's.
pub fn timeline(trace: &Trace) -> Result<String, PlotError> {
    let engines = engines(trace);
    let contexts_top = TOP + rows(engines.len()) + 14;
    let axis = contexts_top + rows(trace.contexts.len()) + 4;
    let scale = Scale {
        end_us: trace.end_us.max(1),
    };
    picture((WIDTH, (axis + 60).cast_unsigned()), |area| {
        let title = format!(
            "{} on {} over {}",
            counted(trace.contexts.len(), "context"),
            counted(engines.len(), "engine"),
            duration(scale.end_us)
        );
        text(area, &title, (20, 18), 18, HPos::Left)?;
        for (x, (name, colour)) in (20..).step_by(165).zip(LEGEND) {
            bar(area, (x, x + 12), 38, colour)?;
            text(area, name, (x + 18, 44), 13, HPos::Left)?;
        }
        scale.draw(area, axis)?;
        for (top, engine) in tops(TOP).zip(&engines) {
            let name = format!("engine {engine}");
            text(area, &name, (LEFT - 8, top + 6), 12, HPos::Right)?;
            engine_row(area, trace, *engine, top, &scale)?;
        }
        for (top, (id, part)) in tops(contexts_top).zip(&trace.contexts) {
            let name = format!("context {id}");
            text(area, &name, (LEFT - 8, top + 6), 12, HPos::Right)?;
            let mut drawn = i32::MIN;
            for (begin, end, state) in part.spans(trace.end_us) {
                if let Some(colour) = colour(state) {
                    scale.span(area, (begin, end), top, colour, &mut drawn)?;
                }
            }
        }
        let left_out = trace.contexts.len().saturating_sub(ROWS_MAX);
        let mut notes = Vec::new();
        if left_out > 0 {
            notes.push(format!("{left_out} more contexts"));
        }
        if trace.full {
            notes.push("the trace was full here: what came later is not drawn".to_owned());
        }
        text(area, &notes.join("; "), (20, axis + 45), 13, HPos::Left)
    })
}

/// Upper ends of as many rows as are drawn.
fn tops(first: i32) -> impl Iterator<Item = i32> {
    (0..).map(move |row| first + ROW * row).take(ROWS_MAX)
}

/// Height of that many rows, of which [`ROWS_MAX`] are drawn.
fn rows(count: usize) -> i32 {
    ROW * i32::try_from(count.min(ROWS_MAX)).unwrap_or(0)
}

/// Numbers of the engines that ran a context.
fn engines(trace: &Trace) -> Vec<u32> {
    let states = trace.contexts.values().flat_map(|part| &part.states);
    let engines: BTreeSet<u32> = states
        .filter_map(|(_, state)| match state {
            State::Runs(engine) => Some(*engine),
            _ => None,
        })
        .collect();
    engines.into_iter().collect()
}

/// Contexts on an engine: from when it took one until that parked, stopped or gave way.
fn engine_row(
    area: &Area<'_>,
    trace: &Trace,
    engine: u32,
    top: i32,
    scale: &Scale,
) -> Result<(), PlotError> {
    for (index, (id, part)) in trace.contexts.iter().enumerate() {
        let shade = CONTEXTS[index % CONTEXTS.len()];
        let mut drawn = i32::MIN;
        // A wait between two stretches on the same engine may be one that spun there; it is drawn
        // where the context is.
        for (begin, end, state) in part.spans(trace.end_us) {
            if state != State::Runs(engine) {
                continue;
            }
            let (from, to) = scale.span(area, (begin, end), top, shade, &mut drawn)?;
            if to - from > LABEL {
                let style = ("sans-serif", 11).into_font().color(&WHITE);
                area.draw_text(&id.to_string(), &style, (from + 3, top + 1))
                    .map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Time to pixels.
struct Scale {
    end_us: u64,
}

impl Scale {
    fn place(&self, time: u64) -> i32 {
        LEFT + (time as f64 / self.end_us as f64 * f64::from(RIGHT - LEFT)) as i32
    }

    /// Draws a span in a row and says where; what lies within pixels already `drawn` is not drawn
    /// again, for traces have millions of states.
    fn span(
        &self,
        area: &Area<'_>,
        (begin, end): (u64, u64),
        top: i32,
        colour: RGBColor,
        drawn: &mut i32,
    ) -> Result<(i32, i32), PlotError> {
        let from = self.place(begin);
        let to = self.place(end).max(from + 1);
        if to > *drawn {
            *drawn = to;
            bar(area, (from, to), top, colour)?;
        }
        Ok((from, to))
    }

    /// The axis: round times, at most [`TICKS_MAX`] of them.
    fn draw(&self, area: &Area<'_>, at: i32) -> Result<(), PlotError> {
        let step = (0..)
            .flat_map(|power| [1, 2, 5].map(|first| first * 10_u64.saturating_pow(power)))
            .find(|step| self.end_us / step <= TICKS_MAX)
            .unwrap_or(u64::MAX);
        for tick in 0..=self.end_us / step {
            let x = self.place(tick * step);
            let line = PathElement::new([(x, TOP - 4), (x, at)], GREY.mix(0.4));
            area.draw(&line).map_err(failed)?;
            text(area, &duration(tick * step), (x, at + 12), 12, HPos::Center)?;
        }
        Ok(())
    }
}

fn bar(
    area: &Area<'_>,
    (from, to): (i32, i32),
    top: i32,
    colour: RGBColor,
) -> Result<(), PlotError> {
    let corners = [(from, top), (to, top + ROW - 4)];
    area.draw(&Rectangle::new(corners, colour.filled()))
        .map_err(failed)
}

fn counted(count: usize, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

/// Microseconds in a unit that suits them.
fn duration(us: u64) -> String {
    match us {
        0 => "0".to_owned(),
        1..10_000 => format!("{us} µs"),
        10_000..10_000_000 => format!("{} ms", tenths(us as f64 / 1e3)),
        _ => format!("{} s", tenths(us as f64 / 1e6)),
    }
}

fn tenths(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// Colour of a state in a context's row.
fn colour(state: State) -> Option<RGBColor> {
    Some(match state {
        State::Runs(_) => LEGEND[0].1,
        State::Waits(Cause::InMailbox) => LEGEND[1].1,
        State::Waits(Cause::OutMailbox) => LEGEND[2].1,
        State::Waits(Cause::Signal) => LEGEND[3].1,
        State::Waits(Cause::Event) => LEGEND[4].1,
        State::Waits(Cause::Dma) => LEGEND[5].1,
        State::Ready => LEGEND[6].1,
        State::Stopped => return None,
    })
}
