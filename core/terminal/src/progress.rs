//! Progress bars on standard error: no line of them is longer than the terminal, and where that is
//! no terminal there are none.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sidecore_bare::width::ToU64;
use std::io::IsTerminal;

/// Form in which a bar shows its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Bytes of a known number, with rate and time left.
    Bytes,
    /// Things of a known number.
    Count,
    /// Things of an unknown number, before the message.
    Found(&'static str),
    /// A bar before a message of any length.
    Message,
}

/// A sign of life without an end: each tick shows the next letter, and the time so far.
#[must_use]
pub fn spinner() -> ProgressBar {
    spinner_on(target())
}

fn spinner_on(target: ProgressDrawTarget) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, target);
    // The style that it has by itself is a bar, of 0 steps out of 0.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}") {
        spinner.set_style(style);
    }
    spinner
}

/// Standard error, or nothing where that is no terminal.
fn target() -> ProgressDrawTarget {
    match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    }
}

/// A bar of `total`.
#[must_use]
pub fn bar(shape: Shape, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), target());
    // Without a known width every field has room.
    let columns = crate::columns(std::io::stderr()).unwrap_or(usize::MAX);
    if let Ok(style) = ProgressStyle::with_template(&template(shape, columns)) {
        bar.set_style(style);
    }
    bar
}

/// Does `work` under a bar of `total` bytes with this message; the bar is gone at the end. `work`
/// gets the receiver of its position. Without a total the bar's end moves along with it.
pub fn watched<R>(
    total: Option<u64>,
    doing: &'static str,
    work: impl FnOnce(&mut (dyn FnMut(u64) + Send)) -> R,
) -> R {
    let bar = bar(Shape::Bytes, total.unwrap_or(0));
    bar.set_message(doing);
    let done = work(&mut |position| {
        if total.is_none() {
            bar.set_length(position);
        }
        bar.set_position(position);
    });
    bar.finish_and_clear();
    done
}

/// Does `work` under a bar of `total` things with this message; the bar is gone at the end.
pub fn counted<R>(total: u64, doing: &'static str, work: impl FnOnce(&ProgressBar) -> R) -> R {
    let bar = bar(Shape::Count, total).with_message(doing);
    let done = work(&bar);
    bar.finish_and_clear();
    done
}

/// Moves a bar to `done` of `all`, of which the number may have changed.
pub fn advance(bar: &ProgressBar, done: usize, all: usize) {
    bar.set_length(all.to_u64());
    bar.set_position(done.to_u64());
}

/// Wide fields take the room that the others leave; narrow terminals get fewer fields.
fn template(shape: Shape, columns: usize) -> String {
    let is_wide = columns >= WIDE_COLUMNS;
    match shape {
        Shape::Bytes if is_wide => {
            "{msg:12!} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}".into()
        }
        Shape::Bytes => "{percent:>3}% {eta:>4} {wide_msg}".into(),
        Shape::Count if is_wide => "[{bar:24}] {pos}/{len} {wide_msg}".into(),
        Shape::Count => "{pos}/{len} {wide_msg}".into(),
        Shape::Found(what) => format!("{what} {{pos}}, {{wide_msg}}"),
        Shape::Message if is_wide => "[{bar:24}] {wide_msg}".into(),
        Shape::Message => "{percent:>3}% {wide_msg}".into(),
    }
}

/// Columns from which on there is room for a bar and all its fields.
const WIDE_COLUMNS: usize = 72;

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;

    #[test]
    fn a_spinner_is_no_bar() {
        let term = InMemoryTerm::new(8, 80);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let spinner = spinner_on(target);
        spinner.tick();
        let shown = term.contents();
        let columns = shown.trim_end().chars().count();
        assert!(
            (1..12).contains(&columns) && !shown.contains('/'),
            "{shown}"
        );
    }

    #[test]
    fn no_bar_is_wider_than_its_terminal() {
        let shapes = [
            Shape::Bytes,
            Shape::Count,
            Shape::Found("choosing a model: fitted"),
            Shape::Message,
        ];
        for columns in [40_u16, 60, 72, 80, 132] {
            for shape in shapes {
                let term = InMemoryTerm::new(8, columns);
                let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
                let bar = ProgressBar::with_draw_target(Some(999 << 30), target);
                let template = template(shape, columns.into());
                bar.set_style(ProgressStyle::with_template(&template).unwrap());
                bar.set_message("best -12345678.90, about 1000 h 59 min left");
                bar.set_position(998 << 30);
                bar.tick();
                let shown = term.contents();
                assert_eq!(shown.lines().count(), 1, "{shape:?} {columns}: {shown}");
                bar.abandon();
            }
        }
    }
}
