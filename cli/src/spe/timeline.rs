//! The timeline: above, a row for each engine with the contexts that it ran; below, a row for each
//! context, coloured by what it did or waited for.
//!
//! Must stay true: a picture of bounded size; states shorter than a pixel are drawn as one.

use super::trace::{Cause, State, Trace};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use sidecore_plot::{Area, COLOURS, GREY, PlotError, failed, picture, text};
use std::collections::BTreeSet;

const WIDTH: u32 = 1200;
const LEFT: i32 = 90;
const RIGHT: i32 = 1180;
const TOP: i32 = 70;
const ROW: i32 = 16;
/// Rows of contexts at most, and of engines; those left out are counted in a line.
const ROWS_MAX: usize = 64;
/// Divisions of the time's axis at most.
const TICKS_MAX: u64 = 10;
/// Pixels that a context's number takes in its engine's row.
const LABEL: i32 = 26;

/// More of Okabe's and Ito's colours.
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const SKY: RGBColor = RGBColor(86, 180, 233);
const PALE: RGBColor = RGBColor(215, 215, 215);

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

/// Draws a trace.
pub(crate) fn draw(trace: &Trace) -> Result<String> {
    let engines = engines(trace);
    let (above, below) = (
        engines.len().min(ROWS_MAX) as i32,
        trace.contexts.len().min(ROWS_MAX) as i32,
    );
    let contexts_top = TOP + ROW * above + 14;
    let axis = contexts_top + ROW * below + 4;
    let scale = Scale {
        end_us: trace.end_us.max(1),
    };
    Ok(picture::<PlotError>((WIDTH, (axis + 60) as u32), |area| {
        let title = format!(
            "{} on {} over {}",
            counted(trace.contexts.len(), "context"),
            counted(engines.len(), "engine"),
            duration(scale.end_us)
        );
        text(area, &title, (20, 18), 18, HPos::Left)?;
        for (index, (name, colour)) in LEGEND.iter().enumerate() {
            let x = 20 + 165 * index as i32;
            bar(area, (x, x + 12), 38, *colour)?;
            text(area, name, (x + 18, 44), 13, HPos::Left)?;
        }
        scale.draw(area, axis)?;
        for (row, engine) in engines.iter().take(ROWS_MAX).enumerate() {
            let top = TOP + ROW * row as i32;
            let name = format!("engine {engine}");
            text(area, &name, (LEFT - 8, top + 6), 12, HPos::Right)?;
            engine_row(area, trace, *engine, top, &scale)?;
        }
        for (row, (id, part)) in trace.contexts.iter().take(ROWS_MAX).enumerate() {
            let top = contexts_top + ROW * row as i32;
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
    })?)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Left end, width and top of the bars of a colour below the legend.
    fn bars(svg: &str, colour: RGBColor) -> Vec<(i32, i32, i32)> {
        let hex = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
        let bars = svg.split("<rect").filter(|rect| rect.contains(&hex));
        let number = |rect: &str, name: &str| {
            let text = rect.split_once(&format!("{name}=\"")).unwrap().1;
            text.split('"').next().unwrap().parse::<i32>().unwrap()
        };
        bars.map(|rect| {
            (
                number(rect, " x").max(0),
                number(rect, "width"),
                number(rect, " y"),
            )
        })
        .filter(|(_, _, top)| *top >= TOP)
        .collect()
    }

    #[test]
    fn spans_are_where_their_times_are() {
        let mut trace = Trace::default();
        // One context: ready, on engine 0, waits for a word, on engine 1, spins for a signal there,
        // waits for DMA, and stops at the end.
        trace.feed(
            "0\t3\tready\n100\t3\trun\t0\n300\t3\twait\t1\t29\n500\t3\tready\n500\t3\trun\t1\n\
             700\t3\tspun\t1\t3\t100\n800\t3\twait\t1\t24\n1000\t3\tstop\n1090\t4\tready\n",
        );
        let svg = draw(&trace).unwrap();
        // 1,090 microseconds on as many pixels.
        let below = TOP + 2 * ROW + 14;
        let row = |spans: &[(i32, i32)]| {
            let places = spans
                .iter()
                .map(|(from, to)| (LEFT + from, to - from, below));
            places.collect::<Vec<_>>()
        };
        assert_eq!(bars(&svg, PALE)[..1], row(&[(0, 100)]));
        assert_eq!(bars(&svg, COLOURS[1]), row(&[(300, 500)]));
        assert_eq!(bars(&svg, COLOURS[2]), row(&[(600, 700)]));
        assert_eq!(bars(&svg, COLOURS[4]), row(&[(800, 1000)]));
        // The first context's colour in the engines' rows is that of running, too.
        let mut runs = vec![(LEFT + 100, 200, TOP)];
        runs.extend([(500, 600), (700, 800)].map(|(from, to)| (LEFT + from, to - from, TOP + ROW)));
        runs.extend(row(&[(100, 300), (500, 600), (700, 800)]));
        assert_eq!(bars(&svg, COLOURS[0]), runs);
        for label in ["engine 0", "engine 1", "context 3", "context 4", "1000 µs"] {
            assert!(svg.contains(label), "{label}");
        }
    }

    #[test]
    fn any_trace_can_be_drawn() {
        let mut trace = Trace::default();
        assert!(draw(&trace).unwrap().contains("0 contexts"));
        for context in 0..100 {
            for time in 0..1000 {
                trace.feed(&format!("{time}\t{context}\trun\t{}\n", context * 3));
            }
        }
        trace.feed("18446744073709551615\t1\tfull\n");
        let svg = draw(&trace).unwrap();
        assert!(svg.contains("36 more contexts") && svg.contains("the trace was full"));
        assert!(svg.len() < 200_000, "{}", svg.len());
    }
}
