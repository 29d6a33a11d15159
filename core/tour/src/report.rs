//! Ends of steps, and the verdict on all of them.

use crate::shell::{COLUMNS, wrapped};

/// All that a tour has seen.
#[derive(Debug, Default)]
pub struct Report {
    /// Its steps, in their order.
    pub steps: Vec<Taken>,
    /// Speeds of reading the sample: name, MB/s.
    pub(crate) rates: Vec<(String, f64)>,
    /// Pictures: file, label, SVG.
    pub(crate) pictures: Vec<(String, String, String)>,
    /// Every command with its whole output.
    pub(crate) log: String,
    /// Duration of all.
    pub seconds: f64,
}

/// One step, as it went.
#[derive(Debug)]
pub struct Taken {
    /// Its name in the script.
    pub id: String,
    /// Its subject.
    pub subject: String,
    /// Its title.
    pub title: String,
    /// Statement that holds if it is done.
    pub proves: String,
    /// Line of output that stands on the page.
    pub(crate) figure: Option<String>,
    /// Duration.
    pub seconds: f64,
    /// Its end.
    pub end: End,
}

/// The end of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It ran, and its statement holds.
    Done,
    /// It was left out.
    Skipped {
        /// The need that this machine does not meet, in words.
        need: String,
        /// The way to meet it.
        remedy: String,
    },
    /// Something did not work, in words.
    Problem(String),
}

impl Report {
    /// Number of steps that are done.
    #[must_use]
    pub fn done(&self) -> usize {
        let is_done = |taken: &&Taken| taken.end == End::Done;
        self.steps.iter().filter(is_done).count()
    }

    /// Number of steps with a problem.
    #[must_use]
    pub fn problems(&self) -> usize {
        let has = |taken: &&Taken| matches!(taken.end, End::Problem(_));
        self.steps.iter().filter(has).count()
    }

    /// The verdict: counts, then a line for each step that was left out or has a problem.
    #[must_use]
    pub fn verdict(&self) -> Vec<String> {
        let (done, problems) = (self.done(), self.problems());
        let skipped = self.steps.len() - done - problems;
        let mut lines = vec![format!(
            "Verdict: {done} of {} steps done, {skipped} skipped, \
             {problems} with a problem; {:.0} s",
            self.steps.len(),
            self.seconds
        )];
        for (at, taken) in self.steps.iter().enumerate() {
            let number = at + 1;
            let line = match &taken.end {
                End::Done => continue,
                End::Skipped { need, remedy } => {
                    format!("skipped {number:>2}: needs {need}; {remedy}")
                }
                End::Problem(what) => format!("problem {number:>2}: {what}"),
            };
            let parts = wrapped(&line, COLUMNS - 6).into_iter().enumerate();
            let indent = |at| if at == 0 { 2 } else { 6 };
            lines.extend(parts.map(|(at, part)| format!("{:1$}{part}", "", indent(at))));
        }
        lines
    }
}
