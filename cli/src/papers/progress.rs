//! Progress of a run of `papers`, on standard error.
//!
//! Why here: twenty minutes without a word look like a hang. On a terminal a line moves; elsewhere
//! each part is a line or two.

use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use sidecore_sys::text::printable;
use std::time::Instant;

pub(super) struct Progress {
    bar: ProgressBar,
    parts: usize,
    /// The part that runs, from 1.
    number: usize,
    what: String,
    began: Instant,
    expected_s: u32,
    /// Expected duration of the parts after it, in seconds.
    later_s: u32,
}

impl Progress {
    /// Progress over `parts` parts that should take `expected_s` seconds in all.
    pub(super) fn new(parts: usize, expected_s: u32) -> Self {
        let bar = output::progress(u64::from(expected_s.max(1)));
        if let Ok(style) = ProgressStyle::with_template("[{bar:24}] {wide_msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            parts,
            number: 0,
            what: String::new(),
            began: Instant::now(),
            expected_s: 0,
            later_s: expected_s,
        }
    }

    pub(super) fn begin(&mut self, what: &str, words: &str, expected_s: u32) {
        self.number += 1;
        what.clone_into(&mut self.what);
        self.began = Instant::now();
        self.expected_s = expected_s;
        self.later_s = self.later_s.saturating_sub(expected_s);
        self.say(&format!(
            "[{}/{}] {what}, about {expected_s} s: sidecore {words}",
            self.number, self.parts
        ));
    }

    /// Redraws the line; called now and then, with the part's last output.
    pub(super) fn tick(&mut self, said: Option<&str>) {
        let elapsed_s = self.began.elapsed().as_secs() as u32;
        let left_s = self.later_s + self.expected_s.saturating_sub(elapsed_s);
        let said = said.map(printable);
        let whole = self.bar.length().unwrap_or(1);
        self.bar
            .set_position(whole.saturating_sub(u64::from(left_s)));
        let left = match left_s {
            0..=90 => format!("{left_s} s left"),
            _ => format!("{} min left", left_s.div_ceil(60)),
        };
        if let Some(said) = said {
            self.bar
                .set_message(format!("{elapsed_s} s, about {left}; {said}"));
        } else if self.bar.message().is_empty() {
            self.bar
                .set_message(format!("{elapsed_s} s, about {left}; {}", self.what));
        }
    }

    pub(super) fn done(&mut self, how: &str) {
        self.bar.set_message("");
        self.say(&format!("      {how}"));
    }

    pub(super) fn say(&self, line: &str) {
        let line = &*printable(line);
        match self.bar.is_hidden() {
            true => output::note!("{line}"),
            false => self.bar.println(line),
        }
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
