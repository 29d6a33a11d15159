//! The figures, what answers each, and the commands that give the answers.
//!
//! Why here: the documents' figures are facts, which answer stands beside which is judgement, and
//! the commands are neither; each is a file of its own in `data/`, and this joins them.
//! Must stay true: [`Catalogue::built_in`] fails where a figure has no answer, an answer no figure,
//! or either names a command that there is not.

use crate::PapersError;
use crate::rule::Rule;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// All of it.
#[derive(Debug, Clone)]
pub struct Catalogue {
    /// The documents, in the order of the page.
    pub documents: Vec<Document>,
    /// Their figures.
    pub figures: Vec<Figure>,
    /// What answers each figure, by its id.
    pub answers: BTreeMap<String, FigureAnswer>,
    /// The commands, in the order in which they run.
    pub parts: Vec<Part>,
}

/// One source document, or two on the same thing.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// What its figures' ids begin with.
    pub section: String,
    /// For people.
    pub title: String,
    /// Which document, on which machine.
    pub source: String,
}

/// A table or a figure of a document.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// `section.name`.
    pub id: String,
    /// The names of the figures, where it holds several; else the one in its id.
    #[serde(default)]
    pub keys: Vec<String>,
    /// For people.
    pub title: String,
    /// What it is of.
    pub about: Option<String>,
    /// Of its values, unless a series has its own.
    pub unit: String,
    /// How it is drawn.
    #[serde(default)]
    pub plot: Plot,
    /// What each series has a value for, where it has several.
    pub x: Option<Across>,
    /// Its rows, or groups of rows.
    pub series: Vec<Series>,
}

/// How a figure is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Plot {
    /// Not at all.
    #[default]
    None,
    /// A value a line, on a logarithmic axis.
    Dots,
    /// Lines over `x`.
    Lines,
    /// Only by the curves that its answer names.
    Curves,
}

/// An axis of numbers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Across {
    /// The documents' name for it.
    pub key: String,
    /// For people.
    pub name: String,
    /// The numbers.
    pub values: Vec<f64>,
}

/// A row, or a group of rows, one for each `x`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Names the value, with the figure's id.
    pub name: String,
    /// For people.
    pub label: String,
    /// Where it differs from the figure's.
    pub unit: Option<String>,
    /// What the document says.
    pub paper: Paper,
}

/// What a document says.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Paper {
    /// One number.
    Number(f64),
    /// One for each `x`.
    Numbers(Vec<f64>),
    /// Something without a number.
    Words(String),
}

/// What answers a figure.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FigureAnswer {
    /// By the model, for all series that have no own.
    pub model: Option<Rule>,
    /// By this machine.
    pub here: Option<Rule>,
    /// How to read it.
    pub note: Option<String>,
    /// Rows that only this machine has.
    pub extra: Vec<Extra>,
    /// Curves to draw.
    pub curves: Vec<Curves>,
    /// For single series.
    pub series: BTreeMap<String, SeriesAnswer>,
}

/// What answers one series.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SeriesAnswer {
    /// By the model.
    pub model: Option<Rule>,
    /// By this machine.
    pub here: Option<Rule>,
    /// For single places of `x`.
    pub at: BTreeMap<String, SeriesAnswer>,
}

/// A row that only this machine has.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extra {
    /// What it is.
    pub label: String,
    /// Its value.
    pub here: Rule,
}

/// Curves of one command, drawn in one chart.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "WrittenCurves")]
pub struct Curves {
    /// What or whose they are.
    pub name: String,
    /// The command.
    pub part: String,
    /// Which curves.
    pub of: CurvesOf,
}

/// Where curves stand in a command's result.
#[derive(Debug, Clone)]
pub enum CurvesOf {
    /// In `rows[]`, in seconds.
    Rows {
        /// The field that is across.
        x: String,
        /// Where they are cut off.
        x_max: Option<f64>,
        /// The fields that are up, by the lines' names.
        lines: BTreeMap<String, String>,
    },
    /// In `curves[]`: those of one chart, which know their units and the document's point.
    Chart {
        /// The chart.
        chart: String,
        /// Only the curve of that name.
        only: Option<String>,
        /// What is across, if not in the command's words.
        x: Option<String>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCurves {
    name: String,
    part: String,
    x: Option<String>,
    x_max: Option<f64>,
    lines: Option<BTreeMap<String, String>>,
    chart: Option<String>,
    only: Option<String>,
}

impl TryFrom<WrittenCurves> for Curves {
    type Error = &'static str;

    fn try_from(written: WrittenCurves) -> Result<Self, Self::Error> {
        let WrittenCurves { x, x_max, only, .. } = written;
        let of = match (written.chart, written.lines, x, x_max, only) {
            (Some(chart), None, x, None, only) => CurvesOf::Chart { chart, only, x },
            (None, Some(lines), Some(x), x_max, None) => CurvesOf::Rows { x, x_max, lines },
            _ => return Err("curves need `x` and `lines`, or `chart`"),
        };
        Ok(Self {
            name: written.name,
            part: written.part,
            of,
        })
    }
}

/// A command whose result answers figures.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its name here.
    pub id: String,
    /// What it measures or computes.
    pub what: String,
    /// This program's words for a full run; none where nothing is run.
    pub command: Option<String>,
    /// For a quick one, where that differs.
    pub quick: Option<String>,
    /// Seconds that a full run takes on two idle cores.
    pub full_s: u32,
    /// A quick one.
    pub quick_s: Option<u32>,
}

impl Part {
    /// The words to run.
    #[must_use]
    pub fn words(&self, quick: bool) -> Option<&str> {
        let shorter = self.quick.as_deref().filter(|_| quick);
        shorter.or(self.command.as_deref())
    }

    /// How long it should take, in seconds.
    #[must_use]
    pub fn expected_s(&self, quick: bool) -> u32 {
        self.quick_s.filter(|_| quick).unwrap_or(self.full_s)
    }
}

#[derive(Deserialize)]
struct FiguresFile {
    document: Vec<Document>,
    figure: Vec<Figure>,
}

#[derive(Deserialize)]
struct PartsFile {
    part: Vec<Part>,
}

impl Catalogue {
    /// The catalogue that is built in.
    ///
    /// # Errors
    /// [`PapersError::Data`]: a mistake in this program, which a test finds.
    pub fn built_in() -> Result<Self, PapersError> {
        let figures: FiguresFile = read("figures.toml", include_str!("../data/figures.toml"))?;
        let parts: PartsFile = read("parts.toml", include_str!("../data/parts.toml"))?;
        let catalogue = Self {
            documents: figures.document,
            figures: figures.figure,
            answers: read("answers.toml", include_str!("../data/answers.toml"))?,
            parts: parts.part,
        };
        catalogue.check()?;
        Ok(catalogue)
    }

    /// The part of that name.
    #[must_use]
    pub fn part(&self, id: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.id == id)
    }

    /// What answers the series `series` of `figure` at the place `x`: the model, this machine.
    pub(crate) fn rules(&self, figure: &str, series: &str, x: Option<f64>) -> [Option<&Rule>; 2] {
        let Some(answer) = self.answers.get(figure) else {
            return [None, None];
        };
        let own = answer.series.get(series);
        let at = x.and_then(|x| own?.at.get(&format!("{x}")));
        let first = |pick: &dyn Fn(&SeriesAnswer) -> Option<&Rule>| {
            at.and_then(pick).or_else(|| own.and_then(pick))
        };
        [
            first(&|each| each.model.as_ref()).or(answer.model.as_ref()),
            first(&|each| each.here.as_ref()).or(answer.here.as_ref()),
        ]
    }

    fn check(&self) -> Result<(), PapersError> {
        let mut ids = BTreeSet::new();
        for figure in &self.figures {
            let of = |what: &str| data("figures.toml", format!("{}: {what}", figure.id));
            if !ids.insert(figure.id.as_str()) {
                return Err(of("twice"));
            }
            if !self.documents.iter().any(|each| figure.is_of(each)) {
                return Err(of("its section has no document"));
            }
            self.check_figure(figure)?;
        }
        for (id, answer) in &self.answers {
            let of = |what: String| data("answers.toml", format!("{id}: {what}"));
            let figure = self.figures.iter().find(|figure| figure.id == *id);
            let figure = figure.ok_or_else(|| of("no such figure".into()))?;
            for (name, own) in &answer.series {
                let known = figure.series.iter().any(|series| series.name == *name);
                let place = |at: &String| figure.x.as_ref()?.place(at);
                if !known || own.at.keys().any(|at| place(at).is_none()) {
                    return Err(of(format!("no such series or place: {name}")));
                }
            }
            for part in answer.parts() {
                self.part(part)
                    .ok_or_else(|| of(format!("no such part: {part}")))?;
            }
        }
        Ok(())
    }

    fn check_figure(&self, figure: &Figure) -> Result<(), PapersError> {
        let places = figure.x.as_ref().map(|x| x.values.len());
        for series in &figure.series {
            let of = |what: &str| {
                let name = format!("{}.{}", figure.id, series.name);
                data("answers.toml", format!("{name}: {what}"))
            };
            let fits = match &series.paper {
                Paper::Numbers(numbers) => Some(numbers.len()) == places,
                Paper::Number(_) | Paper::Words(_) => places.is_none(),
            };
            if !fits {
                return Err(of("as many values as the figure has places are needed"));
            }
            let [model, here] = self.rules(&figure.id, &series.name, None);
            if model.is_none() || here.is_none() {
                return Err(of("no answer by the model, or none by this machine"));
            }
        }
        Ok(())
    }
}

impl Figure {
    /// Whether it is a figure of `document`.
    #[must_use]
    pub fn is_of(&self, document: &Document) -> bool {
        let section = self.id.split_once('.').map(|(section, _)| section);
        section == Some(&document.section)
    }

    /// The documents' names of all that it answers: `section.name`.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        if self.keys.is_empty() {
            return vec![self.id.clone()];
        }
        let section = self.id.split_once('.').map_or("", |(section, _)| section);
        let name = |key: &String| format!("{section}.{key}");
        self.keys.iter().map(name).collect()
    }
}

impl Across {
    fn place(&self, text: &str) -> Option<usize> {
        self.values.iter().position(|x| format!("{x}") == text)
    }
}

impl FigureAnswer {
    /// The parts that it needs, each once, in no order that matters.
    pub(crate) fn parts(&self) -> BTreeSet<&str> {
        let mut parts: BTreeSet<&str> = BTreeSet::new();
        let mut series: Vec<&SeriesAnswer> = self.series.values().collect();
        series.extend(self.series.values().flat_map(|each| each.at.values()));
        let rules = series
            .into_iter()
            .flat_map(|each| [&each.model, &each.here])
            .chain([&self.model, &self.here])
            .flatten()
            .chain(self.extra.iter().map(|extra| &extra.here));
        parts.extend(rules.filter_map(Rule::part));
        parts.extend(self.curves.iter().map(|curves| curves.part.as_str()));
        parts
    }
}

fn read<T: DeserializeOwned>(file: &'static str, text: &str) -> Result<T, PapersError> {
    toml::from_str(text).map_err(|error| data(file, error.to_string()))
}

fn data(file: &'static str, what: String) -> PapersError {
    PapersError::Data { file, what }
}
