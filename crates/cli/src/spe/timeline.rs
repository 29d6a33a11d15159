//! The timeline: a row for each context, coloured by what it did.
//!
//! Must stay true: a picture of bounded size; states shorter than a pixel are drawn as one.

use super::trace::{Cause, State, Trace};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use sidecore_plot::{COLOURS, GREY, PlotError, failed, picture, text};

const WIDTH: u32 = 1200;
const LEFT: i32 = 60;
const RIGHT: i32 = 1180;
const TOP: i32 = 70;
const ROW: i32 = 16;
/// Rows at most; the others are counted in a line below.
const ROWS_MAX: usize = 64;

const LEGEND: [(&str, RGBColor); 6] = [
    ("runs", COLOURS[0]),
    ("waits at a mailbox", COLOURS[1]),
    ("for a signal", COLOURS[2]),
    ("for an event", COLOURS[3]),
    ("for DMA", COLOURS[4]),
    ("ready, no engine free", GREY),
];

/// Draws a trace.
pub(crate) fn draw(trace: &Trace) -> Result<String> {
    let rows = trace.contexts.len().min(ROWS_MAX);
    let height = TOP + ROW * rows as i32 + 50;
    let end = trace.end_us.max(1);
    let place = |time: u64| LEFT + (time as f64 / end as f64 * f64::from(RIGHT - LEFT)) as i32;
    Ok(picture::<PlotError>((WIDTH, height as u32), |area| {
        let title = format!("Contexts over {:.1} ms", end as f64 / 1000.0);
        text(area, &title, (20, 18), 18, HPos::Left)?;
        for (index, (name, colour)) in LEGEND.iter().enumerate() {
            let x = 20 + 190 * index as i32;
            let bar = [(x, 38), (x + 12, 50)];
            area.draw(&Rectangle::new(bar, colour.filled()))
                .map_err(failed)?;
            text(area, name, (x + 18, 44), 13, HPos::Left)?;
        }
        for (row, (id, part)) in trace.contexts.iter().take(ROWS_MAX).enumerate() {
            let top = TOP + ROW * row as i32;
            text(area, &id.to_string(), (LEFT - 8, top + 6), 12, HPos::Right)?;
            let ends = part
                .states
                .iter()
                .skip(1)
                .map(|(time, _)| *time)
                .chain([end]);
            let mut drawn = i32::MIN;
            for ((begin, state), until) in part.states.iter().zip(ends) {
                let Some(colour) = colour(*state) else {
                    continue;
                };
                let (from, to) = (place(*begin), place(until).max(place(*begin) + 1));
                // What lies within one pixel is drawn once: traces have millions of states.
                if to <= drawn {
                    continue;
                }
                drawn = to;
                let bar = [(from, top), (to, top + ROW - 4)];
                area.draw(&Rectangle::new(bar, colour.filled()))
                    .map_err(failed)?;
            }
        }
        if trace.contexts.len() > rows {
            let more = format!("and {} more contexts", trace.contexts.len() - rows);
            text(area, &more, (20, height - 20), 13, HPos::Left)?;
        }
        Ok(())
    })?)
}

fn colour(state: State) -> Option<RGBColor> {
    Some(match state {
        State::Runs => COLOURS[0],
        State::Waits(Cause::Mailbox) => COLOURS[1],
        State::Waits(Cause::Signal) => COLOURS[2],
        State::Waits(Cause::Event) => COLOURS[3],
        State::Waits(Cause::Dma) => COLOURS[4],
        State::Ready => GREY,
        State::Stopped => return None,
    })
}
