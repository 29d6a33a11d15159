//! The head of a report, the same for every bench.

use crate::measure::Machine;
use crate::measure::quiet::Noise;
use crate::measure::report::{Sample, tsv};
use crate::measure::{Figures, markdown};
use serde::Serialize;
use sidecore_plot::PlotError;
use std::path::Path;

/// Circumstances of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Head {
    /// Processor, memory, kernel, load at the start, commit.
    pub machine: Machine,
    /// True for a smoke run: few rounds on small inputs, no result.
    pub quick: bool,
    /// Rounds asked for.
    pub rounds: usize,
    /// Threads and their cores.
    pub placement: String,
    /// Rounds, the order within them, and the state of caches.
    pub method: String,
    /// Inputs, a line each.
    pub inputs: Vec<String>,
    /// Foreign load, and rounds repeated for it.
    #[serde(flatten)]
    pub noise: Noise,
    /// Seconds that the run took.
    pub seconds: f64,
}

/// A report, as a command writes it.
pub trait Measured: Serialize {
    /// Every sample, one a line, under the head.
    fn tsv(&self) -> String;

    /// The figures as SVG.
    ///
    /// # Errors
    /// [`PlotError`].
    fn draw(&self) -> Result<String, PlotError>;

    /// The measurements that failed, with their reasons.
    fn failures(&self) -> &[String];
}

/// A report that a [`Frame`](super::Frame) fills.
pub trait Reported {
    /// Its head and its figures.
    fn parts(&mut self) -> (&mut Head, &mut Figures);

    /// Records that something could not be measured.
    fn missing(&mut self, group: &'static str, name: &str, metric: &str, reason: &str) {
        self.parts().1.missing(group, name, metric, reason);
    }
}

impl Head {
    /// Reads the machine's state. `program` is measured: its commit is named. `rounds` are as
    /// requested: unless given 5, in a quick run 2.
    pub(crate) fn new(program: &Path, quick: bool, rounds: Option<usize>) -> Self {
        let rounds = rounds.unwrap_or(if quick { 2 } else { 5 });
        let rounds = rounds.clamp(1, super::ROUNDS_MAX);
        Self {
            machine: Machine::look(program),
            quick,
            rounds,
            placement: String::new(),
            method: format!(
                "{rounds} rounds of interleaved candidates: each round runs all of them one after \
                 another, beginning with another one each time; a ratio is the median of the \
                 rounds' ratios; a round with foreign load is repeated"
            ),
            inputs: Vec::new(),
            noise: Noise::default(),
            seconds: 0.0,
        }
    }

    /// The head as a Markdown list; `less` says what a quick run leaves out.
    pub(crate) fn markdown(&self, less: &str) -> String {
        let head = markdown::Head {
            machine: &self.machine,
            quick: self.quick.then_some(less),
            method: &self.method,
            placement: &self.placement,
            noise: Some(self.noise),
            inputs: &self.inputs,
            seconds: self.seconds,
        };
        head.text()
    }

    /// Every sample, one a line: group, metric, name, round, value, unit; machine, load, commit,
    /// placement and foreign load on top as comments.
    pub(crate) fn tsv(&self, samples: &[Sample]) -> String {
        let mut heads = self.machine.lines();
        heads.push(format!("placement: {}", self.placement));
        heads.push(format!("method: {}", self.method));
        heads.push(self.noise.line());
        heads.extend(self.inputs.iter().cloned());
        tsv(heads.iter().map(String::as_str), samples)
    }
}
