//! Values of one thing a line, on a logarithmic axis.
//!
//! Why here: 636 us of 2007 are 20 us today, and 0.4 are 0.08. Only a logarithmic axis shows both,
//! and only dots stand for a value on one (bars have no foot there).
//! Must stay true: each kind of value has its own shape, not its own colour alone; a value that is
//! not above 0 is left out.

use crate::chart::RULE;
use crate::{Area, COLOURS, PlotError, failed, text};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use sidecore_bare::width::ToUsize;

/// One row: its label, and one value of each kind.
#[derive(Debug, Clone, PartialEq)]
pub struct DotRow {
    /// Label of the row.
    pub label: String,
    /// Values, one of each kind, at most three; `None` if there is none.
    pub values: Vec<Option<f64>>,
}

/// Height in pixels of a picture with this many rows.
#[must_use]
pub fn dots_height(rows: usize, letters: u32) -> u32 {
    let row = letters * 5 / 2;
    letters * 5 + u32::try_from(rows).unwrap_or(u32::MAX).saturating_mul(row)
}

/// Draws `rows` in all of `area`, which is `size` large; `kinds` names the values (an empty name
/// stays out of the legend); `unit` is for the axis.
///
/// # Errors
/// [`PlotError`].
pub fn dots(
    area: &Area<'_>,
    size: (u32, u32),
    letters: u32,
    unit: &str,
    kinds: &[&str],
    rows: &[DotRow],
) -> Result<(), PlotError> {
    let letters = letters.cast_signed();
    let (width, height) = (size.0.cast_signed(), size.1.cast_signed());
    let values = || rows.iter().flat_map(|row| row.values.iter().flatten());
    let usable = || values().copied().filter(|value| *value > 0.0);
    let least = usable().fold(f64::INFINITY, f64::min);
    let most = usable().fold(0.0_f64, f64::max);
    // Nothing to draw: a logarithmic axis has no place for zeros.
    if !(least.is_finite() && most > 0.0) {
        return Ok(());
    }
    // Whole powers of ten, one at least.
    let from = least.log10().floor();
    let to = most.log10().ceil().max(from + 1.0);
    // Half a label of the last power stands right of its line.
    let (left, right) = (letters, width - 2 * letters);
    let across = |value: f64| {
        let share = (value.log10() - from) / (to - from);
        left + (share * f64::from(right - left)) as i32
    };
    legend(area, letters, kinds)?;
    let (top, bottom) = (letters * 2, height - letters * 5 / 2);
    // Where there are few powers of ten, 2 and 5 times each are marked, too.
    let steps: &[f64] = match to - from {
        powers if powers <= 2.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    // Decimal exponents of doubles: 308 at most.
    let (first, last) = (from as i32, to as i32);
    for power in first..=last {
        for step in steps.iter().filter(|step| power < last || **step == 1.0) {
            let value = step * 10f64.powi(power);
            let x = across(value);
            let line = PathElement::new([(x, top), (x, bottom)], RULE.stroke_width(1));
            area.draw(&line).map_err(failed)?;
            // As many decimal places as the power needs.
            let label = match power {
                0.. => format!("{value:.0}"),
                _ => format!("{value:.0$}", power.unsigned_abs().to_usize()),
            };
            text(area, &label, (x, bottom + letters), letters, HPos::Center)?;
        }
    }
    // The unit stands at the end of the axis, below its numbers.
    let end = (width - letters / 2, height - letters * 2 / 3);
    text(area, unit, end, letters, HPos::Right)?;
    for (index, row) in (0..).zip(rows) {
        let y = top + index * letters * 5 / 2;
        text(area, &row.label, (left, y + letters), letters, HPos::Left)?;
        let y = y + letters * 2;
        let line = PathElement::new([(left, y), (right, y)], RULE.stroke_width(1));
        area.draw(&line).map_err(failed)?;
        for (kind, value) in row.values.iter().enumerate() {
            if let Some(value) = value.filter(|value| *value > 0.0) {
                mark(area, (across(value), y), kind)?;
            }
        }
    }
    Ok(())
}

fn legend(area: &Area<'_>, letters: i32, kinds: &[&str]) -> Result<(), PlotError> {
    let mut x = letters;
    for (kind, name) in kinds
        .iter()
        .enumerate()
        .filter(|(_, name)| !name.is_empty())
    {
        mark(area, (x + letters / 2, letters), kind)?;
        let begin = (x + letters * 3 / 2, letters);
        text(area, name, begin, letters, HPos::Left)?;
        // Letters are about half as wide as they are high.
        let count = i32::try_from(name.chars().count()).unwrap_or_default();
        x += letters * 3 + count * letters * 11 / 20;
    }
    Ok(())
}

/// A cross, a circle, a square.
fn mark(area: &Area<'_>, at: (i32, i32), kind: usize) -> Result<(), PlotError> {
    // Shape and colour both differ, for readers that do not see the colours.
    let colour = COLOURS[[4, 0, 1][kind % 3]];
    let drawn = match kind % 3 {
        0 => area.draw(&Cross::new(at, 6, colour.stroke_width(3))),
        1 => area.draw(&Circle::new(at, 6, colour.stroke_width(3))),
        _ => {
            let corners = [(at.0 - 5, at.1 - 5), (at.0 + 5, at.1 + 5)];
            area.draw(&Rectangle::new(corners, colour.filled()))
        }
    };
    drawn.map_err(failed)
}
