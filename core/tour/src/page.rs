//! The page: what was done, with figures and pictures, in one file; and the folder that keeps it.
//!
//! Nothing is written through a folder that another user could exchange, unless the user has named
//! it.
//!
//! Must stay true: everything is in the file; it is light or dark as its reader's browser is; what
//! commands printed is escaped (the templates do it). Pictures come from this program and go in as
//! they are.

use crate::TourError;
use crate::report::{End, Report};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sidecore_plot::{DotRow, PlotError, dots, dots_height, picture, themed};
use sidecore_sys::folder::{Folder, check_named, write_named};
use std::io::Write;
use std::path::{Path, PathBuf};

impl Report {
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
                // Kept: the page is read after the program has ended.
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

/// Renders the page; `pictures` are file, label and SVG.
fn page(report: &Report, pictures: &[(String, String, String)], head: &str) -> String {
    let (done, all) = (report.done(), report.steps.len());
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // Without it a browser asks the server for one.
                link rel="icon" href="data:,";
                title { "Sidecore: the tour" }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body {
                main {
                    h1 { "Sidecore: the tour" }
                    p { (head) }
                    p {
                        strong { (done) " of " (all) " steps done" }
                        " in " (format!("{:.0}", report.seconds)) " s."
                    }
                    (steps(report))
                    h2 { "Pictures" }
                    div .pictures {
                        @for (file, label, svg) in pictures {
                            figure {
                                (PreEscaped(drawn(svg, label)))
                                figcaption { (label) " (" a href=(file) { (file) } ")" }
                            }
                        }
                    }
                    p { "Every command with its output: " a href="log.txt" { "log.txt" } "." }
                }
            }
        }
    };
    markup.into_string()
}

fn steps(report: &Report) -> Markup {
    html! {
        table {
            thead { tr { th { "step" } th { "what was seen" } th .number { "s" } } }
            tbody {
                @for taken in &report.steps {
                    tr {
                        th scope="row" { (taken.title) }
                        td { (seen(&taken.end, &taken.proves, taken.figure.as_deref())) }
                        td .number { (format!("{:.1}", taken.seconds)) }
                    }
                }
            }
        }
    }
}

fn seen(end: &End, proves: &str, figure: Option<&str>) -> Markup {
    html! {
        @match end {
            End::Done => {
                (proves)
                @if let Some(figure) = figure { br; span .figure { (figure) } }
            }
            End::Skipped { need, remedy } => {
                span .skipped { "skipped: needs " (need) "; " (remedy) }
            }
            End::Problem(what) => strong .problem { "problem: " (what) },
        }
    }
}

/// The picture in the page's colours; trees have them already.
fn drawn(svg: &str, label: &str) -> String {
    match svg.contains("var(--") {
        true => svg.to_owned(),
        false => themed(svg, label),
    }
}

/// The page's file.
const PAGE: &str = "index.html";
/// Height of letters in the chart, in pixels.
const LETTERS: u32 = 15;
