//! The page: what was done, with figures and pictures, in one file.
//!
//! Must stay true: everything is in the file; it is light or dark as its reader's browser is; what
//! commands printed is escaped (the templates do it). Pictures come from this program and go in as
//! they are.

use crate::needs::Lacking;
use crate::report::{End, Report};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sidecore_plot::themed;

/// Renders the page; `pictures` are file, label and SVG.
pub(crate) fn page(report: &Report, pictures: &[(String, String, String)], head: &str) -> String {
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
            End::Skipped(Lacking { need, remedy }) => {
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
