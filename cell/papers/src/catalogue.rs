//! The figures, their answers, and the commands that give the answers.
//!
//! Why here: the documents' figures are facts, the choice of an answer for each is judgement, and
//! the commands are neither; each is its own file in `data/`, and this joins them.
//! Must stay true: [`Catalogue::built_in`] fails where a figure has no answer, an answer no figure,
//! or either names a command that does not exist.
//!
//! ```
//! use sidecore_papers::catalogue::Catalogue;
//!
//! let catalogue = Catalogue::built_in()?;
//! for part in &catalogue.parts {
//!     // The command that makes it, and its duration.
//!     println!("{}: {:?}, {} s", part.id, part.words(true), part.expected_s(true));
//! }
//! assert!(!catalogue.parts.is_empty());
//! # Ok::<(), sidecore_papers::PapersError>(())
//! ```

use crate::PapersError;
use crate::rule::Rule;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The documents, figures, rules and commands that make up the page.
#[derive(Debug, Clone)]
pub struct Catalogue {
    /// The documents, in the order of the page.
    pub documents: Vec<Document>,
    /// Their figures.
    pub figures: Vec<Figure>,
    /// Answering rules of each figure, by the figure's id.
    pub answers: BTreeMap<String, FigureAnswer>,
    /// The commands, in the order in which they run.
    pub parts: Vec<Part>,
    /// The rows that the page begins with, in its order.
    pub(crate) headlines: Vec<Headline>,
}

/// A row of the summary at the top of the page.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Headline {
    /// Key of the row it repeats: see [`Row::key`](crate::answer::Row::key).
    pub row: String,
    /// The measured quantity, for a reader that has not seen the figure yet.
    pub says: String,
}

/// One source document, or two on the same thing.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Prefix of its figures' ids.
    pub section: String,
    /// Heading on the page.
    pub title: String,
    /// Title of the document, and the machine that it measured.
    pub source: String,
}

/// A table or a figure of a document.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// `section.name`.
    pub id: String,
    /// Names of the figures, if it holds several; else the one in its id.
    #[serde(default)]
    pub keys: Vec<String>,
    /// Heading on the page.
    pub title: String,
    /// Subject of the figure, in a sentence for the page.
    pub about: Option<String>,
    /// Unit of its values, unless a series has its own.
    pub unit: String,
    /// Kind of picture.
    #[serde(default)]
    pub plot: Plot,
    /// X axis, if series have several values.
    pub x: Option<Across>,
    /// Its rows, or groups of rows.
    pub series: Vec<Series>,
}

/// Kind of picture of a figure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Plot {
    /// None.
    #[default]
    None,
    /// Dots on a logarithmic axis, one line for each value.
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
    /// Key in the documents' data.
    pub key: String,
    /// Label on the page.
    pub name: String,
    /// Values along the axis.
    pub values: Vec<f64>,
}

/// A row, or a group of rows, one for each `x`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Name of the series, unique within its figure.
    pub name: String,
    /// Label on the page.
    pub label: String,
    /// Unit, if it differs from the figure's.
    pub unit: Option<String>,
    /// The document's figure.
    pub paper: Paper,
}

/// A document's figure.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Paper {
    /// One number.
    Number(f64),
    /// One for each value of `x`.
    Numbers(Vec<f64>),
    /// A statement without a number.
    Words(String),
}

/// Rules that answer a figure.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FigureAnswer {
    /// The model's answer, for all series that have none of their own.
    pub model: Option<Rule>,
    /// This machine's answer, likewise.
    pub here: Option<Rule>,
    /// Advice on reading the answers, for the page.
    pub note: Option<String>,
    /// Rows that only this machine has.
    pub extra: Vec<Extra>,
    /// Curves to draw.
    pub curves: Vec<Curves>,
    /// Rules of single series, by name.
    pub(crate) series: BTreeMap<String, SeriesAnswer>,
}

/// Rules that answer one series.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SeriesAnswer {
    /// The model's answer.
    pub model: Option<Rule>,
    /// This machine's answer.
    pub here: Option<Rule>,
    /// Rules of single values of `x`.
    pub at: BTreeMap<String, SeriesAnswer>,
}

/// A row that only this machine has.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extra {
    /// Label on the page.
    pub label: String,
    /// Rule that gives its value.
    pub here: Rule,
}

/// Curves of one command, drawn in one chart.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "WrittenCurves")]
pub struct Curves {
    /// Name of the chart, or of the machine that the curves are of.
    pub name: String,
    /// Id of the part whose result holds them.
    pub part: String,
    /// Selection of the curves in that result.
    pub of: CurvesOf,
}

/// Location of curves in a command's result.
#[derive(Debug, Clone)]
pub enum CurvesOf {
    /// In `rows[]`, in seconds.
    Rows {
        /// Field of the x values.
        x: String,
        /// Largest x that is drawn.
        x_max: Option<f64>,
        /// Fields of the y values, by the lines' names.
        lines: BTreeMap<String, String>,
    },
    /// In `curves[]`: those of one chart, which know their units and the document's point.
    Chart {
        /// Name of the chart.
        chart: String,
        /// Name of the only curve to draw; none draws all.
        only: Option<String>,
        /// Name of the x axis, if not the command's.
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
        // Fields of the other kind are a mistake, not an addition.
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
    /// Id, to which rules refer.
    pub id: String,
    /// Short description of what it measures or computes.
    pub what: String,
    /// Arguments of this program for a full run; none if nothing is run.
    pub command: Option<String>,
    /// Arguments of a quick run, if they differ.
    pub quick: Option<String>,
    /// Duration of a full run on two idle cores, in seconds.
    pub full_s: u32,
    /// Duration of a quick run, in seconds, if it differs.
    pub quick_s: Option<u32>,
}

impl Part {
    /// Arguments to run it with; none if nothing is run.
    #[must_use]
    pub fn words(&self, quick: bool) -> Option<&str> {
        // A part without a short run takes the same words in both.
        let shorter = self.quick.as_deref().filter(|_| quick);
        shorter.or(self.command.as_deref())
    }

    /// True for a command that measures peers, too, which not every program has.
    pub(crate) fn is_bench(&self) -> bool {
        let words = self.words(false).unwrap_or_default();
        words.split(' ').nth(1) == Some("bench")
    }

    /// Expected duration in seconds.
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

#[derive(Deserialize)]
struct HeadlinesFile {
    headline: Vec<Headline>,
}

impl Catalogue {
    /// The catalogue that is built in.
    ///
    /// # Errors
    /// [`PapersError::Data`]: a mistake in this program, which a test finds.
    pub fn built_in() -> Result<Self, PapersError> {
        let figures: FiguresFile = read("figures.toml", include_str!("../data/figures.toml"))?;
        let parts: PartsFile = read("parts.toml", include_str!("../data/parts.toml"))?;
        let headlines = include_str!("../data/headlines.toml");
        let headlines: HeadlinesFile = read("headlines.toml", headlines)?;
        let catalogue = Self {
            documents: figures.document,
            figures: figures.figure,
            answers: read("answers.toml", include_str!("../data/answers.toml"))?,
            parts: parts.part,
            headlines: headlines.headline,
        };
        // Each start checks it: the files are small, and a wrong page is worse than none.
        catalogue.check()?;
        Ok(catalogue)
    }

    /// The part of that name.
    #[must_use]
    pub fn part(&self, id: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.id == id)
    }

    /// Refuses ids of parts that are not there.
    ///
    /// # Errors
    /// [`PapersError::NoPart`].
    pub fn check_ids(&self, ids: &[String]) -> Result<(), PapersError> {
        match ids.iter().find(|id| self.part(id).is_none()) {
            Some(id) => Err(PapersError::NoPart(id.clone())),
            None => Ok(()),
        }
    }

    /// Rules that answer series `series` of `figure` at `x`: the model's, this machine's.
    pub(crate) fn rules(&self, figure: &str, series: &str, x: Option<f64>) -> [Option<&Rule>; 2] {
        let Some(answer) = self.answers.get(figure) else {
            return [None, None];
        };
        let own = answer.series.get(series);
        // The nearest rule counts: of the place, of the series, of the figure.
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
        // The other way round: an answer to a figure that was renamed would be lost silently.
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
            // Zipping would cut the longer of both.
            let fits = match &series.paper {
                Paper::Numbers(numbers) => Some(numbers.len()) == places,
                Paper::Number(_) | Paper::Words(_) => places.is_none(),
            };
            if !fits {
                return Err(of("as many values as the figure has places are needed"));
            }
            // Places need no rule of their own, so the series must have one.
            let [model, here] = self.rules(&figure.id, &series.name, None);
            if model.is_none() || here.is_none() {
                return Err(of("no answer by the model, or none by this machine"));
            }
        }
        Ok(())
    }
}

impl Figure {
    /// True if it is a figure of `document`.
    #[must_use]
    pub fn is_of(&self, document: &Document) -> bool {
        let section = self.id.split_once('.').map(|(section, _)| section);
        section == Some(&document.section)
    }

    /// Names (`section.name`) of all figures of the documents that it answers.
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
    /// Ids of the parts that it needs, each once.
    pub(crate) fn parts(&self) -> BTreeSet<&str> {
        let mut parts: BTreeSet<&str> = BTreeSet::new();
        let mut series: Vec<&SeriesAnswer> = self.series.values().collect();
        // Places have answers like series, one level down.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_not_there_is_refused_by_its_name() {
        let catalogue = Catalogue::built_in().unwrap();
        let known = catalogue.parts[0].id.clone();
        assert!(catalogue.check_ids(std::slice::from_ref(&known)).is_ok());
        let refused = catalogue
            .check_ids(&[known, "nothing".to_owned()])
            .unwrap_err();
        assert!(refused.to_string().contains("`nothing`"), "{refused}");
    }
}
