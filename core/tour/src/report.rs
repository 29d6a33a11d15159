//! Ends of steps, and files that stay of a tour.
//!
//! Must stay true: nothing is written through a folder that another user could exchange, unless the
//! user has named it.

use crate::TourError;
use crate::needs::Lacking;
use crate::page::page;
use crate::shell::{COLUMNS, wrapped};
use sidecore_plot::{DotRow, PlotError, dots, dots_height, picture};
use sidecore_sys::folder::{Folder, check_named, write_named};
use std::io::Write;
use std::path::{Path, PathBuf};

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
    Skipped(Lacking),
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
                End::Skipped(Lacking { need, remedy }) => {
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

    /// Writes the page, its pictures and the log, into `folder` or, where that is none, a new
    /// folder of temporary files; returns the page's path. `head` is a line about program and
    /// machine.
    ///
    /// # Errors
    /// [`TourError::Keep`], [`TourError::Plot`].
    pub fn write(&self, folder: Option<&Path>, head: &str) -> Result<PathBuf, TourError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TourError::Keep { path, source }
        };
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => {
                let made = tempfile::Builder::new()
                    .prefix("sidecore-tour-page-")
                    .tempdir();
                let parent = std::env::temp_dir();
                made.map_err(failed(&parent))?.keep()
            }
        };
        let mut pictures = self.pictures.clone();
        if !self.rates.is_empty() {
            let label = "Reading the sample back".to_owned();
            pictures.push(("rates.svg".to_owned(), label, self.chart()?));
        }
        let html = page(self, &pictures, head);
        let texts = pictures.iter().map(|(file, _, svg)| (file.as_str(), svg));
        for (name, text) in texts.chain([("log.txt", &self.log), (PAGE, &html)]) {
            let path = folder.join(name);
            write_named(&path, 0o644, |file| file.write_all(text.as_bytes()))
                .map_err(failed(&path))?;
        }
        Ok(folder.join(PAGE))
    }

    /// The speeds as a picture.
    fn chart(&self) -> Result<String, PlotError> {
        let rows: Vec<DotRow> = self
            .rates
            .iter()
            .map(|(name, rate)| DotRow {
                label: format!("{name}: {rate:.0} MB/s"),
                values: vec![Some(*rate)],
            })
            .collect();
        let size = (640, dots_height(rows.len(), LETTERS));
        picture(size, |area| {
            dots(area, size, LETTERS, "MB/s", &["this run"], &rows)
        })
    }
}

/// The folder named by the user, or `tour` in the user's state folder of `program`; where that
/// cannot be written to, none: the page then goes to a new folder of temporary files. A missing
/// folder is made.
///
/// # Errors
/// [`TourError::Keep`] where the named one cannot be written to.
pub fn place(named: Option<&Path>, program: &str) -> Result<Option<PathBuf>, TourError> {
    if let Some(named) = named {
        let keep = |source| TourError::Keep {
            path: named.to_owned(),
            source,
        };
        let folder = std::path::absolute(named).map_err(keep)?;
        std::fs::create_dir_all(&folder).map_err(keep)?;
        check_named(&folder.join(PAGE)).map_err(keep)?;
        return Ok(Some(folder));
    }
    let folder_in = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let state = folder_in("XDG_STATE_HOME");
    let state = state.or_else(|| folder_in("HOME").map(|home| home.join(".local/state")));
    let folder = state.map(|state| state.join(program).join("tour"));
    Ok(folder.filter(|folder| {
        Folder::create_trusted(folder, 0o700).is_ok() && check_named(&folder.join(PAGE)).is_ok()
    }))
}

/// The page's file.
const PAGE: &str = "index.html";
/// Height of letters in the chart, in pixels.
const LETTERS: u32 = 15;
