//! Progress of a run of `papers`, on standard error.
//!
//! Why here: twenty minutes without a word look like a hang. On a terminal a line moves; elsewhere
//! each part is a line or two.

use crate::output;
use indicatif::ProgressBar;
use sidecore_papers::Part;
use sidecore_papers::run::Progress;
use sidecore_sys::text::printable;
use sidecore_terminal::progress::{Shape, bar};
use std::time::Instant;

/// The moving line; none before the first part and behind the last.
#[derive(Default)]
pub(super) struct Bar {
    bar: Option<ProgressBar>,
    parts: usize,
    /// The part that runs, from 1.
    number: usize,
    what: String,
    began: Option<Instant>,
    expected_s: u32,
    /// Expected duration of the parts after it, in seconds.
    later_s: u32,
}

impl Progress for Bar {
    fn start(&mut self, parts: usize, expected_s: u32) {
        self.bar = Some(bar(Shape::Message, u64::from(expected_s.max(1))));
        self.parts = parts;
        self.later_s = expected_s;
    }

    fn begin(&mut self, part: &Part, words: &str, expected_s: u32) {
        self.number += 1;
        part.what.clone_into(&mut self.what);
        self.began = Some(Instant::now());
        self.expected_s = expected_s;
        self.later_s = self.later_s.saturating_sub(expected_s);
        let (number, parts, what) = (self.number, self.parts, &part.what);
        self.say(&format!(
            "[{number}/{parts}] {what}, about {expected_s} s: sidecore {words}"
        ));
    }

    fn tick(&mut self, said: Option<&str>) {
        let (Some(bar), Some(began)) = (&self.bar, self.began) else {
            return;
        };
        let elapsed_s = u32::try_from(began.elapsed().as_secs()).unwrap_or(u32::MAX);
        let left_s = self.later_s + self.expected_s.saturating_sub(elapsed_s);
        let whole = bar.length().unwrap_or(1);
        bar.set_position(whole.saturating_sub(u64::from(left_s)));
        let left = match left_s {
            0..=90 => format!("{left_s} s left"),
            _ => format!("{} min left", left_s.div_ceil(60)),
        };
        // What the part said last stays until it says something else.
        match said.map(printable) {
            Some(said) => bar.set_message(format!("{elapsed_s} s, about {left}; {said}")),
            None if bar.message().is_empty() => {
                bar.set_message(format!("{elapsed_s} s, about {left}; {}", self.what));
            }
            None => {}
        }
    }

    fn done(&mut self, how: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message("");
        }
        self.say(&format!("      {how}"));
    }

    fn say(&mut self, line: &str) {
        let line = &*printable(line);
        match &self.bar {
            Some(bar) if !bar.is_hidden() => bar.println(line),
            _ => output::note!("{line}"),
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
