//! A run's progress on standard error: twenty minutes without a word look like a hang.
//!
//! Must stay true: on a terminal a line moves; elsewhere each part is a line or two. No line comes
//! before the first part and behind the last. Source: own.

use crate::Part;
use crate::run::Progress;
use indicatif::ProgressBar;
use sidecore_sys::text::printable;
use sidecore_terminal::print::error_line;
use sidecore_terminal::progress::{Shape, bar};
use std::time::Instant;

/// A bar for the whole run, with words about the part that runs.
#[derive(Debug, Default)]
pub struct Bar {
    bar: Option<ProgressBar>,
    words: Words,
}

impl Progress for Bar {
    fn start(&mut self, parts: usize, expected_s: u32) {
        self.bar = Some(bar(Shape::Message, u64::from(expected_s.max(1))));
        self.words = Words::new(parts, expected_s);
    }

    fn begin(&mut self, part: &Part, words: &str, expected_s: u32) {
        let line = self.words.begin(part, words, expected_s);
        self.say(&line);
    }

    fn tick(&mut self, said: Option<&str>) {
        let (Some(bar), Some((left_s, left))) = (&self.bar, self.words.left()) else {
            return;
        };
        let whole = bar.length().unwrap_or(1);
        bar.set_position(whole.saturating_sub(u64::from(left_s)));
        // What the part said last stays until it says something else.
        match said.map(printable) {
            Some(said) => bar.set_message(format!("{left}; {said}")),
            None if bar.message().is_empty() => {
                bar.set_message(format!("{left}; {}", self.words.what));
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
            _ => error_line(line),
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Words of a run's progress: which part it is at, and the time that is left.
#[derive(Debug, Default)]
struct Words {
    parts: usize,
    /// The part that runs, from 1.
    number: usize,
    what: String,
    began: Option<Instant>,
    expected_s: u32,
    /// Expected duration of the parts after it, in seconds.
    later_s: u32,
}

impl Words {
    /// Of a run of `parts` parts, which should take `expected_s` seconds.
    fn new(parts: usize, expected_s: u32) -> Self {
        Self {
            parts,
            later_s: expected_s,
            ..Self::default()
        }
    }

    /// A part begins, with this command: says so.
    fn begin(&mut self, part: &Part, words: &str, expected_s: u32) -> String {
        self.number += 1;
        part.what.clone_into(&mut self.what);
        self.began = Some(Instant::now());
        self.expected_s = expected_s;
        self.later_s = self.later_s.saturating_sub(expected_s);
        let (number, parts, what) = (self.number, self.parts, &part.what);
        format!("[{number}/{parts}] {what}, about {expected_s} s: sidecore {words}")
    }

    /// The seconds that are left, about, and the same in words behind those of the part so far;
    /// nothing before the first part.
    fn left(&self) -> Option<(u32, String)> {
        let elapsed_s = self.began?.elapsed().as_secs();
        let elapsed_s = u32::try_from(elapsed_s).unwrap_or(u32::MAX);
        let left_s = self.later_s + self.expected_s.saturating_sub(elapsed_s);
        let left = match left_s {
            0..=90 => format!("{left_s} s left"),
            _ => format!("{} min left", left_s.div_ceil(60)),
        };
        Some((left_s, format!("{elapsed_s} s, about {left}")))
    }
}
