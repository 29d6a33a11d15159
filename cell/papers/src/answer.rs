//! Every figure with its answers: a row for each, with a value or why there is none.
//!
//! Why here: the page and `--json` say the same, because both are made of this.
//! Must stay true: pure; the same results make the same report.

use crate::catalogue::{Catalogue, Curves, CurvesOf, Figure, Headline, Paper, Plot, Series};
use crate::results::{Found, Results};
use crate::rule::{self, Rule};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Every figure of the documents with its answers; `--json` prints it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Number of rows, and of rows answered by the model, by this machine, or not at all.
    pub counts: Counts,
    /// The rows that sum the report up, each a copy of one in `figures`.
    pub headlines: Vec<Summary>,
    /// The figures, in the documents' order.
    pub figures: Vec<Answers>,
}

/// One row of the summary.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The measured quantity, in words.
    pub says: String,
    /// The first name of the figure that it is taken from, which is an `id` on the page.
    pub figure: String,
    /// The row, with its answers.
    #[serde(flatten)]
    pub row: Row,
}

/// Counts over the rows that a document has a figure for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Rows in total.
    pub rows: usize,
    /// Rows that the model answers.
    pub model: usize,
    /// Rows that this machine answers.
    pub here: usize,
    /// Rows whose answer is missing this time: a part was not run, failed, or lacked the row.
    pub missing: usize,
}

impl Counts {
    /// The same on a line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let Self {
            rows, model, here, ..
        } = self;
        format!("{rows} rows, {model} answered by the model, {here} by this machine")
    }
}

/// One table or figure.
#[derive(Debug, Clone, Serialize)]
pub struct Answers {
    /// `section.name`.
    pub id: String,
    /// Names (`section.name`) of all figures of the documents that it answers.
    pub names: Vec<String>,
    /// Heading on the page.
    pub title: String,
    /// Subject of the figure, in a sentence for the page.
    pub about: Option<String>,
    /// Advice on reading the answers, for the page.
    pub note: Option<String>,
    /// The parts that its answers come from, in the order in which they ran.
    pub parts: Vec<String>,
    /// Name of the x axis, for groups of rows.
    pub across: Option<String>,
    /// Kind of picture.
    pub plot: Plot,
    /// Its rows, in the document's order.
    pub rows: Vec<Row>,
    /// Curves that are drawn with it.
    pub curves: Vec<Curve>,
}

/// One figure of a document with its answers.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Key of the row, unique in the report: `spe_uio.mmap_us.ppe.64`.
    pub key: String,
    /// Label on the page.
    pub label: String,
    /// Name of the group, if several rows share a label.
    pub group: Option<String>,
    /// Value on the x axis.
    pub x: Option<f64>,
    /// Unit of the three values.
    pub unit: String,
    /// The document's figure; none in rows that only this machine has.
    pub paper: Option<Paper>,
    /// The figure by the model of the Cell.
    pub model: Cell,
    /// The figure measured on this machine.
    pub here: Cell,
}

/// One cell of a row: an answer, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Cell {
    /// A number.
    Number {
        /// The number, in the row's unit.
        value: f64,
        /// Spread of its rounds: largest less smallest, divided by the median.
        spread: Option<f64>,
        /// True if a model's value is an input or was fitted, rather than predicted.
        fitted: bool,
    },
    /// A property that holds by construction, in words.
    Words {
        /// The words.
        text: String,
    },
    /// Statements, each with whether it holds.
    Claims {
        /// The statements.
        claims: Vec<Claim>,
    },
    /// No such figure exists.
    None {
        /// The reason, in words.
        why: String,
    },
    /// The figure exists, but could not be obtained in this run.
    Missing {
        /// The reason, in words.
        why: String,
    },
}

/// A statement with the value that it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Claim {
    /// The statement.
    pub text: String,
    /// The value that it is about.
    pub value: Option<f64>,
    /// Upper bound of the value.
    pub limit: Option<f64>,
    /// True if it holds.
    pub holds: bool,
}

/// One chart of curves from one command, over a common x axis.
#[derive(Debug, Clone, Serialize)]
pub struct Curve {
    /// Name of the chart, or of the machine that the curves are of.
    pub name: String,
    /// Name of the x axis.
    pub across: String,
    /// True if the x axis is logarithmic.
    pub by_powers: bool,
    /// Unit of the y axis.
    pub unit: String,
    /// Names of the lines.
    pub lines: Vec<String>,
    /// The document's point for each line, (x, y).
    pub papers: Vec<Option<(f64, f64)>>,
    /// Points: x, and the y of each line that has one there.
    pub points: Vec<(f64, Vec<Option<f64>>)>,
    /// Reason why there are no curves.
    pub why: Option<String>,
}

impl Report {
    /// Answers every figure of `catalogue` from `results`.
    #[must_use]
    pub fn new(catalogue: &Catalogue, results: &Results) -> Self {
        let figures: Vec<Answers> = catalogue
            .figures
            .iter()
            .map(|figure| answers(catalogue, figure, results))
            .collect();
        let mut counts = Counts::default();
        let rows = figures.iter().flat_map(|figure| &figure.rows);
        // Rows of this machine alone answer no figure of a document.
        for row in rows.filter(|row| row.paper.is_some()) {
            counts.rows += 1;
            counts.model += usize::from(row.model.answers());
            counts.here += usize::from(row.here.answers());
            let missing = |cell: &Cell| matches!(cell, Cell::Missing { .. });
            // A row counts once, also where both its answers are missing.
            counts.missing += usize::from(missing(&row.model) || missing(&row.here));
        }
        let headlines = catalogue.headlines.iter();
        let headlines = headlines.filter_map(|headline| summary(headline, &figures));
        Self {
            counts,
            headlines: headlines.collect(),
            figures,
        }
    }

    /// True if all statements about the model hold, of those that could be checked.
    #[must_use]
    pub(crate) fn model_holds(&self) -> bool {
        let rows = self.figures.iter().flat_map(|figure| &figure.rows);
        rows.map(|row| &row.model).all(|cell| match cell {
            // The model's statements alone: those of this machine may fail on any machine.
            Cell::Claims { claims } => claims.iter().all(|claim| claim.holds),
            _ => true,
        })
    }
}

impl Cell {
    /// True for an answer, false for a reason why there is none.
    #[must_use]
    pub fn answers(&self) -> bool {
        !matches!(self, Self::None { .. } | Self::Missing { .. })
    }

    /// The number, if the cell is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number { value, .. } => Some(*value),
            _ => None,
        }
    }

    fn of(rule: Option<&Rule>, results: &Results, x: Option<f64>) -> Self {
        let missing = |why| Self::Missing { why };
        match rule {
            // The catalogue's check finds such a figure before; a page must not be without a
            // reason.
            None => missing("no answer is known".into()),
            Some(Rule::Why(why)) => Self::None { why: why.clone() },
            Some(Rule::Says(text)) => Self::Words { text: text.clone() },
            Some(Rule::Number(lookup)) => match lookup.find(results, x) {
                Err(why) => missing(why),
                Ok(found) => Self::Number {
                    value: found.value,
                    spread: found.spread,
                    fitted: found.fitted,
                },
            },
            Some(Rule::Words { part, row }) => {
                words(results, part, row).map_or_else(missing, |text| Self::Words {
                    text: text.to_owned(),
                })
            }
            Some(Rule::Claims { part, list }) => {
                claims(results, part, list).map_or_else(missing, |claims| Self::Claims { claims })
            }
        }
    }
}

/// None for a key that no row has: a mistake in the data, which a test finds.
fn summary(headline: &Headline, figures: &[Answers]) -> Option<Summary> {
    figures.iter().find_map(|figure| {
        let row = figure.rows.iter().find(|row| row.key == headline.row)?;
        Some(Summary {
            says: headline.says.clone(),
            figure: figure.names.first()?.clone(),
            row: row.clone(),
        })
    })
}

fn answers(catalogue: &Catalogue, figure: &Figure, results: &Results) -> Answers {
    let answer = catalogue.answers.get(&figure.id);
    let mut rows = Vec::new();
    for series in &figure.series {
        match (&figure.x, &series.paper) {
            // A row for each place, so that each has a key and a reason of its own.
            (Some(across), Paper::Numbers(numbers)) => {
                for (&x, &number) in across.values.iter().zip(numbers) {
                    let paper = Paper::Number(number);
                    rows.push(row(catalogue, figure, series, Some(x), paper, results));
                }
            }
            _ => rows.push(row(
                catalogue,
                figure,
                series,
                None,
                series.paper.clone(),
                results,
            )),
        }
    }
    // Behind the document's rows, whose order is the document's.
    for (index, extra) in answer.iter().flat_map(|answer| &answer.extra).enumerate() {
        rows.push(Row {
            key: format!("{}.extra{index}", figure.id),
            label: extra.label.clone(),
            group: None,
            x: None,
            unit: figure.unit.clone(),
            paper: None,
            model: Cell::None {
                why: "This machine alone.".into(),
            },
            here: Cell::of(Some(&extra.here), results, None),
        });
    }
    // In the order in which the parts run, not in that of the rules.
    let needed: BTreeSet<&str> = answer.map(|answer| answer.parts()).unwrap_or_default();
    let parts = catalogue.parts.iter().map(|part| &part.id);
    Answers {
        id: figure.id.clone(),
        names: figure.names(),
        title: figure.title.clone(),
        about: figure.about.clone(),
        note: answer.and_then(|answer| answer.note.clone()),
        parts: parts
            .filter(|id| needed.contains(id.as_str()))
            .cloned()
            .collect(),
        across: figure.x.as_ref().map(|x| x.name.clone()),
        plot: figure.plot,
        rows,
        curves: answer
            .iter()
            .flat_map(|answer| &answer.curves)
            .map(|curves| curve(curves, results))
            .collect(),
    }
}

fn row(
    catalogue: &Catalogue,
    figure: &Figure,
    series: &Series,
    x: Option<f64>,
    paper: Paper,
    results: &Results,
) -> Row {
    let [model, here] = catalogue.rules(&figure.id, &series.name, x);
    // Where the documents name each series, the row has that name; else the figure's and its own.
    let name = match figure.names().iter().find(|name| {
        let last = name.rsplit('.').next();
        last == Some(&series.name)
    }) {
        Some(name) => name.clone(),
        None => format!("{}.{}", figure.id, series.name),
    };
    let key = x.map_or_else(|| name.clone(), |x| format!("{name}.{x}"));
    let across = figure.x.as_ref().map_or("", |across| &across.name);
    Row {
        key,
        label: x.map_or_else(|| series.label.clone(), |x| format!("{x} {across}")),
        group: x.is_some().then(|| series.label.clone()),
        x,
        unit: series.unit.as_ref().unwrap_or(&figure.unit).clone(),
        paper: Some(paper),
        model: Cell::of(model, results, x),
        here: Cell::of(here, results, x),
    }
}

fn words<'a>(results: &'a Results, part: &str, name: &str) -> Result<&'a str, String> {
    let report = rule::report(results, part)?;
    // Words stand in rows, as numbers do: a command has one kind of list.
    let row = rule::list(report, "rows").find(|row| row["name"] == name);
    let text = row.and_then(|row| row["text"].as_str());
    text.ok_or_else(|| format!("the command gave no words for \u{201c}{name}\u{201d}"))
}

fn claims(results: &Results, part: &str, list: &str) -> Result<Vec<Claim>, String> {
    let report = rule::report(results, part)?;
    let claims: Vec<Claim> = rule::list(report, list)
        .filter_map(|claim| {
            Some(Claim {
                text: claim["text"].as_str()?.to_owned(),
                value: claim["value"].as_f64(),
                limit: claim["limit"].as_f64(),
                holds: claim["holds"].as_bool()?,
            })
        })
        .collect();
    // No statement would hold vacuously, and look like a proof.
    match claims.is_empty() {
        true => Err("the command stated nothing".into()),
        false => Ok(claims),
    }
}

fn curve(curves: &Curves, results: &Results) -> Curve {
    let mut curve = Curve {
        name: curves.name.clone(),
        across: String::new(),
        by_powers: false,
        unit: String::new(),
        lines: Vec::new(),
        papers: Vec::new(),
        points: Vec::new(),
        why: None,
    };
    match rule::report(results, &curves.part) {
        Ok(report) => {
            curve.read(&curves.of, report);
            // A command may have skipped what its machine lacks.
            if curve.points.is_empty() {
                curve.why = Some("the command gave no rows".into());
            }
        }
        Err(why) => curve.why = Some(why),
    }
    curve
}

impl Curve {
    fn read(&mut self, of: &CurvesOf, report: &Value) {
        match of {
            CurvesOf::Rows { x, x_max, lines } => {
                self.across.clone_from(x);
                self.unit = "seconds".into();
                self.lines = lines.keys().cloned().collect();
                self.papers = vec![None; lines.len()];
                let inside = |x: &f64| x_max.is_none_or(|most| *x <= most);
                let points = rule::list(report, "rows").filter_map(|row| {
                    let x = row[x].as_f64().filter(inside)?;
                    let values = lines.values().map(|field| row[field].as_f64());
                    Some((x, values.collect()))
                });
                self.points = points.collect();
            }
            CurvesOf::Chart { chart, only, x } => {
                // Curves over sizes double from point to point.
                self.by_powers = true;
                let wanted = |curve: &&Value| {
                    let named = only.as_ref().is_none_or(|only| curve["name"] == *only);
                    curve["chart"] == *chart && named
                };
                let found: Vec<&Value> = rule::list(report, "curves").filter(wanted).collect();
                for (line, curve) in found.iter().enumerate() {
                    let text = |key: &str| curve[key].as_str().unwrap_or_default().to_owned();
                    self.across = x.clone().unwrap_or_else(|| text("over"));
                    self.unit = text("unit");
                    self.lines.push(text("name"));
                    let [at, value] = [0, 1].map(|index| curve["paper"][index].as_f64());
                    self.papers.push(at.zip(value));
                    for point in rule::list(curve, "points") {
                        self.add(line, found.len(), &point["at"], &point["here"]);
                    }
                }
                // Lines of one chart may have their points at different places.
                self.points.sort_by(|one, other| one.0.total_cmp(&other.0));
            }
        }
    }

    /// Adds a point to line number `line` of `lines`.
    fn add(&mut self, line: usize, lines: usize, at: &Value, here: &Value) {
        let (Some(at), here) = (at.as_f64(), here.as_f64()) else {
            return;
        };
        // Lines share a point where they share its place exactly: both are read from the same text.
        let index = self.points.iter().position(|point| point.0 == at);
        let index = index.unwrap_or_else(|| {
            self.points.push((at, vec![None; lines]));
            self.points.len() - 1
        });
        self.points[index].1[line] = here;
    }
}

/// True if a part has a result.
#[must_use]
pub fn is_there(results: &Results, part: &str) -> bool {
    matches!(results.get(part), Some(Found::Kept(_)))
}
