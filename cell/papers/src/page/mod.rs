//! The answers as one HTML file.
//!
//! Why here: everything is in the file, so that it can be sent, kept and printed: no network, no
//! script, no font of its own.
//! Must stay true: all output of a command or the machine is escaped (the templates do it); only
//! pictures and the style sheet, both made here, go in as they are. Every name of a figure is an
//! `id`, once. A cell's `data-value` is the exact number, whatever is printed.
//! Source: own.

mod cells;

use crate::answer::{Answers, Curve, Report, Row};
use crate::catalogue::{Catalogue, Document, Plot};
use crate::charts::{COLUMNS, pictures};
use crate::results::{Found, Kept, Results};
use crate::{PapersError, answer};
use cells::{Notes, cell, number, paper, prose};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sidecore_measure::Machine;

/// Program, machine and options that the page states at its top.
#[derive(Debug, Clone)]
pub struct About {
    /// The program's version.
    pub version: String,
    /// The machine that the run measured; the commit is the program's.
    pub machine: Machine,
    /// True if short runs were requested.
    pub quick: bool,
    /// Time at which it was made, in seconds since 1970.
    pub made_unix_s: u64,
}

/// Renders the page.
///
/// # Errors
/// [`PapersError::Plot`].
pub fn page(
    catalogue: &Catalogue,
    results: &Results,
    report: &Report,
    about: &About,
) -> Result<String, PapersError> {
    let mut documents = Vec::new();
    for document in &catalogue.documents {
        let mut figures = Vec::new();
        // Pictures may fail, and markup cannot: they are drawn before it is begun.
        for answers in of(catalogue, document, report) {
            figures.push(figure(results, answers)?);
        }
        documents.push((document, figures));
    }
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "sidecore " (about.version) };
                // Without it a browser asks the server for one.
                link rel="icon" href="data:,";
                title { "Sidecore: the papers' figures, a model of the Cell, and this machine" }
                // Within the page: it is one file, which people send each other and open without a
                // net.
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                (head(report, about))
                (summary(report))
                (contents(catalogue, report))
                main {
                    @for (document, figures) in &documents {
                        section {
                            h2 id={ "document-" (document.section) } { (document.title) }
                            p { (document.source) }
                            @for figure in figures { (figure) }
                        }
                    }
                    (commands(catalogue, results, about.quick))
                }
            }
        }
    };
    Ok(markup.into_string())
}

fn head(report: &Report, about: &About) -> Markup {
    let counts = report.counts;
    html! {
        header {
            h1 { "The papers' figures, a model of the Cell, and this machine" }
            p {
                "Every table and figure of the five documents that Sidecore follows, beside what a \
                 model of their machine says and what this machine does today. Machines of 2007 \
                 and of today: a smaller time here says little; how the parts of a figure stand to \
                 each other says much."
            }
            dl.machine {
                dt { "machine" } dd { (machine(&about.machine)) }
                dt { "program" }
                dd { "sidecore " (about.version) ", commit " (about.machine.commit) }
                dt { "made" } dd {
                    (date(about.made_unix_s))
                    @if about.quick { ", from short runs: a taste, no result" }
                }
                dt { "answered" } dd {
                    "of " (counts.rows) " rows, " (counts.model) " by the model and "
                    (counts.here) " by this machine; "
                    @if counts.missing == 0 { "the others say why not." }
                    @else {
                        (counts.missing) " could not be had this time, and the others have no such \
                         figure; both say why."
                    }
                }
            }
            ul.key {
                li {
                    b { "*" }
                    " put into the model, or fitted on; everything else of the model is predicted."
                }
                li {
                    b { "\u{2014}" }
                    " no figure; the letter leads to the reason below the table."
                }
                li {
                    b { "\u{b1}" }
                    " the largest round less the smallest, as a part of the median."
                }
            }
        }
    }
}

/// The headline rows: one screen that shows the subject of the rest.
fn summary(report: &Report) -> Markup {
    // Letters begin anew with each table: its reasons stand right below it.
    let mut notes = Notes::default();
    html! {
        section #summary {
            h2 { "In short" }
            table {
                thead {
                    tr { th {} @for column in COLUMNS { th scope="col" { (column) } } }
                }
                tbody {
                    @for headline in &report.headlines {
                        tr data-row=(headline.row.key) {
                            th scope="row" {
                                a href={ "#" (headline.figure) } { (headline.says) }
                            }
                            td { (paper(&headline.row)) }
                            td { (cell(&headline.row.model, &headline.row.unit, &mut notes)) }
                            td { (cell(&headline.row.here, &headline.row.unit, &mut notes)) }
                        }
                    }
                }
            }
            (notes.list())
        }
    }
}

fn contents(catalogue: &Catalogue, report: &Report) -> Markup {
    html! {
        nav aria-label="Figures" {
            @for document in &catalogue.documents {
                // Open, since a search of the browser's does not look into closed ones.
                details open[true] {
                    summary { (document.title) }
                    ol {
                        @for answers in of(catalogue, document, report) {
                            li { a href={ "#" (answers.names[0]) } { (answers.title) } }
                        }
                    }
                }
            }
        }
    }
}

fn of<'a>(
    catalogue: &'a Catalogue,
    document: &'a Document,
    report: &'a Report,
) -> impl Iterator<Item = &'a Answers> {
    let figures = catalogue.figures.iter().zip(&report.figures);
    // The report has the catalogue's figures in the same order.
    let own = figures.filter(|(figure, _)| figure.is_of(document));
    own.map(|(_, answers)| answers)
}

fn figure(results: &Results, answers: &Answers) -> Result<Markup, PapersError> {
    // Before the table: whether they stand next to each other depends on their number.
    // Of an answer with a curve there may be several.
    let pictures = pictures(answers)?;
    let mut notes = Notes::default();
    let body = match answers.rows.iter().any(|row| row.is_of_words()) {
        true => columns(answers, &mut notes),
        false => table(answers, &mut notes),
    };
    Ok(html! {
        article data-figure=(answers.id) {
            h3 id=(answers.names[0]) { (answers.title) }
            p.names {
                @for (index, name) in answers.names.iter().enumerate() {
                    @if index > 0 { ", " span id=(name) { (name) } } @else { (name) }
                }
            }
            @if let Some(about) = &answers.about { p.about { (about) } }
            (made_by(results, answers))
            div.beside[pictures.len() == 1 && answers.plot != Plot::Curves] {
                @if !pictures.is_empty() {
                    div.pictures { @for picture in &pictures { figure { (PreEscaped(picture)) } } }
                }
                div { (body) }
            }
            @for curve in &answers.curves {
                @if let Some(why) = &curve.why { p.missing { (curve.name) ": not drawn: " (why) } }
            }
            @for curve in &answers.curves { (points(curve)) }
            (notes.list())
            // Last: it explains what the reasons above leave open.
            @if let Some(note) = &answers.note { p.note { (prose(note)) } }
        }
    })
}

/// Machine, load, commit and command of the following answers.
fn made_by(results: &Results, answers: &Answers) -> Markup {
    html! {
        @if !answers.parts.is_empty() {
            ul.made {
                @for kept in kept(results, answers) {
                    li {
                        code { (kept.command) }
                        span {
                            "load " (kept.machine.load_start)
                            "; commit " (kept.machine.commit) "; " (date(kept.began_unix_s))
                            ", " (seconds(kept.seconds))
                            @if kept.quick { "; a short run" }
                        }
                    }
                }
                // Results are used together only if they are of one machine.
                @if let Some(kept) = kept(results, answers).next() {
                    li { (machine(&kept.machine)) }
                }
            }
        }
    }
}

fn kept<'a>(results: &'a Results, answers: &'a Answers) -> impl Iterator<Item = &'a Kept> {
    let found = answers.parts.iter().filter_map(|part| results.get(part));
    found.filter_map(|found| match found {
        Found::Kept(kept) => Some(&**kept),
        Found::Missing { .. } => None,
    })
}

fn table(answers: &Answers, notes: &mut Notes) -> Markup {
    // A group's heading stands before its first row alone.
    let before = std::iter::once(None).chain(answers.rows.iter().map(|row| row.group.as_deref()));
    html! {
        table {
            thead {
                tr {
                    th scope="col" { (answers.across.as_deref().unwrap_or_default()) }
                    @for column in COLUMNS { th scope="col" { (column) } }
                }
            }
            tbody {
                @for (row, before) in answers.rows.iter().zip(before) {
                    @let group = row.group.as_deref();
                    @if let Some(group) = group.filter(|group| before != Some(*group)) {
                        tr.group { th colspan="4" scope="rowgroup" { (group) } }
                    }
                    // Tests and scripts find a row by its key, whatever its words are in a later
                    // version.
                    tr data-key=(row.key) {
                        th scope="row" {
                            @match row.x { Some(x) => (x), None => (row.label) }
                        }
                        td { (paper(row)) }
                        td { (cell(&row.model, &row.unit, notes)) }
                        td { (cell(&row.here, &row.unit, notes)) }
                    }
                }
            }
        }
    }
}

/// Rows of words rather than numbers: three columns, or one below the other on a phone.
fn columns(answers: &Answers, notes: &mut Notes) -> Markup {
    html! {
        @for row in &answers.rows {
            // By columns and not by a table, whose cells a phone would make one word wide.
            div.columns data-key=(row.key) {
                div { h4 { (COLUMNS[0]) } (paper(row)) }
                div { h4 { (COLUMNS[1]) } (cell(&row.model, &row.unit, notes)) }
                div { h4 { (COLUMNS[2]) } (cell(&row.here, &row.unit, notes)) }
            }
        }
    }
}

impl Row {
    /// True if a table's cells would be too narrow for the row's words.
    fn is_of_words(&self) -> bool {
        // Statements are lists, which a narrow column breaks after each word.
        let claims = |cell: &answer::Cell| matches!(cell, answer::Cell::Claims { .. });
        let long = match &self.paper {
            Some(crate::catalogue::Paper::Words(words)) => words.len() > WORDS_IN_A_CELL_MAX,
            _ => false,
        };
        long || claims(&self.model) || claims(&self.here)
    }
}

/// The numbers of a picture of curves.
fn points(curve: &Curve) -> Markup {
    html! {
        @if curve.why.is_none() {
            details {
                summary { "The numbers: " (curve.name) ", " (curve.unit) }
                table {
                    thead {
                        tr {
                            th scope="col" { (curve.across) }
                            @for line in &curve.lines { th scope="col" { (line) } }
                        }
                    }
                    tbody {
                        @for (x, values) in &curve.points {
                            tr {
                                th scope="row" { (number(*x)) }
                                @for value in values { td { (number_or_dash(*value)) } }
                            }
                        }
                        @for (line, paper) in curve.papers.iter().enumerate() {
                            @if let Some((at, value)) = paper {
                                tr {
                                    th scope="row" { "paper, " (number(*at)) }
                                    @for each in 0..curve.lines.len() {
                                        td { (number_or_dash((each == line).then_some(*value))) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "\u{2014}".into(), number)
}

/// Table of every command with its duration and outcome.
fn commands(catalogue: &Catalogue, results: &Results, quick: bool) -> Markup {
    html! {
        section {
            h2 id="commands" { "The commands" }
            p {
                "Each of them makes its figures again. Results are kept and used again; "
                code { "sidecore papers --fresh" } " measures anew."
            }
            @for part in &catalogue.parts {
                article.part {
                    h4 { (part.what) }
                    @match results.get(&part.id) {
                        Some(Found::Kept(kept)) => (ran(kept)),
                        Some(Found::Missing { why }) => {
                            @if let Some(words) = part.words(quick) {
                                p { code { "sidecore " (words) } }
                            }
                            p.missing { "no result: " (why) }
                        }
                        None => { p.missing { "no result: not run" } }
                    }
                }
            }
        }
    }
}

fn ran(kept: &Kept) -> Markup {
    html! {
        p { code { (kept.command) } }
        p.note {
            (date(kept.began_unix_s)) ", " (seconds(kept.seconds))
            "; load " (kept.machine.load_start)
            "; commit " (kept.machine.commit)
            @if kept.quick { "; a short run" }
        }
        @if let Some(problem) = &kept.problem { p.missing { "it found a problem: " (problem) } }
    }
}

fn machine(machine: &Machine) -> String {
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    format!(
        "{}, {} cores, {gib:.1} GiB, Linux {}",
        machine.cpu, machine.cores, machine.kernel
    )
}

fn seconds(seconds: f64) -> String {
    match seconds {
        // Below what one digit rounds to 1 s.
        seconds if seconds < 0.95 => "less than a second".into(),
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    }
}

/// Longer words do not go into a table of four columns.
const WORDS_IN_A_CELL_MAX: usize = 60;

/// `22 Nov 2026 08:15 UTC`.
// Source: Howard Hinnant, "chrono-compatible low-level date algorithms" (civil from days).
fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Eras of 400 years that begin in March, so that the leap day is a year's last.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = year + era * 400 + u64::from(month >= 10);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let name = MONTHS[month as usize % 12];
    format!("{day} {name} {year} {hour:02}:{minute:02} UTC")
}

/// From March on.
const MONTHS: [&str; 12] = [
    "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb",
];

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn moments_are_written_as_date_1_writes_them() {
        for (unix_s, text) in [
            (0, "1 Jan 1970 00:00 UTC"),
            (951_782_399, "28 Feb 2000 23:59 UTC"),
            (951_782_400, "29 Feb 2000 00:00 UTC"),
            (951_868_800, "1 Mar 2000 00:00 UTC"),
            (1_798_761_599, "31 Dec 2026 23:59 UTC"),
            (4_107_542_400, "1 Mar 2100 00:00 UTC"),
        ] {
            assert_eq!(date(unix_s), text);
        }
    }
}
