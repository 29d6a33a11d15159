//! Rules that answer a figure: a field of a command's result, statements, or words.
//!
//! Why here: the pairing of bench rows and figures is data, not code.
//! Must stay true: a rule that says two things, or none, does not parse.

use crate::results::{Found, Results};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// One answer, as it is written in `data/answers.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Written")]
pub enum Rule {
    /// There is no figure, for this reason.
    Why(String),
    /// A property that holds by construction, in words.
    Says(String),
    /// Words that a command gives: the field `text` of a row.
    Words {
        /// Id of the command's part.
        part: String,
        /// Name of the row.
        row: String,
    },
    /// Statements that hold or do not.
    Claims {
        /// Id of the command's part.
        part: String,
        /// Name of the list in its result.
        list: String,
    },
    /// A number.
    Number(Lookup),
}

/// Location of a number in a command's result.
#[derive(Debug, Clone, PartialEq)]
pub struct Lookup {
    /// Id of the command's part.
    pub part: String,
    /// Name of the list in its result.
    pub list: String,
    /// Fields that select rows: one row for each entry; the values of the rows are added up.
    pub rows: Vec<BTreeMap<String, Value>>,
    /// The field that holds the number.
    pub field: String,
    /// Field of the divisor, if any.
    pub over: Option<String>,
    /// The field that holds its spread.
    pub spread: String,
    /// Factor that the value is multiplied by.
    pub scale: f64,
    /// True if the reciprocal of the value is the answer.
    pub reciprocal: bool,
    /// Origin of a model's value: input or fitted (true), or predicted.
    pub fitted: Fitted,
}

/// Origin of a model's value: input or fitted, or predicted.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Fitted {
    /// The same for all rows.
    Always(bool),
    /// Given by this field of the row.
    Field(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    why: Option<String>,
    says: Option<String>,
    words: Option<String>,
    claims: Option<String>,
    part: Option<String>,
    row: Option<OneOrMore>,
    list: Option<String>,
    #[serde(rename = "where")]
    fields: Option<BTreeMap<String, Value>>,
    field: Option<String>,
    over: Option<String>,
    spread: Option<String>,
    scale: Option<f64>,
    reciprocal: bool,
    fitted: Option<Fitted>,
}

impl TryFrom<Written> for Rule {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        // A reason together with a part would be an answer and its refusal.
        if let (Some(why), None) = (&written.why, &written.part) {
            return Ok(Self::Why(why.clone()));
        }
        if let (Some(says), None) = (&written.says, &written.part) {
            return Ok(Self::Says(says.clone()));
        }
        let part = written
            .part
            .ok_or("an answer needs `part`, `says` or `why`")?;
        match (written.words, written.claims, written.row, written.fields) {
            (Some(row), None, None, None) => Ok(Self::Words { part, row }),
            (None, Some(list), None, None) => Ok(Self::Claims { part, list }),
            // Exactly one of them selects rows; with both a row could be named that the fields
            // exclude.
            (None, None, row, fields) if row.is_some() != fields.is_some() => {
                // A row by its name is the usual case of fields that select it.
                let named = |name: String| BTreeMap::from([("name".to_owned(), name.into())]);
                Ok(Self::Number(Lookup {
                    part,
                    list: written.list.unwrap_or_else(|| "rows".into()),
                    rows: match (row, fields) {
                        (Some(OneOrMore::One(name)), _) => vec![named(name)],
                        (Some(OneOrMore::More(names)), _) => names.into_iter().map(named).collect(),
                        (None, fields) => fields.into_iter().collect(),
                    },
                    field: written.field.unwrap_or_else(|| "here".into()),
                    over: written.over,
                    spread: written.spread.unwrap_or_else(|| "spread".into()),
                    scale: written.scale.unwrap_or(1.0),
                    reciprocal: written.reciprocal,
                    fitted: written.fitted.unwrap_or(Fitted::Always(false)),
                }))
            }
            _ => Err("an answer from a part needs one of `row`, `where`, `claims`, `words`".into()),
        }
    }
}

impl Rule {
    /// Id of the part that it needs, if any.
    #[must_use]
    pub fn part(&self) -> Option<&str> {
        match self {
            Self::Why(_) | Self::Says(_) => None,
            Self::Words { part, .. } | Self::Claims { part, .. } => Some(part),
            Self::Number(lookup) => Some(&lookup.part),
        }
    }
}

/// A number found in a result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) spread: Option<f64>,
    pub(crate) fitted: bool,
}

impl Lookup {
    /// The number, for the value `x` of a series.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn find(&self, results: &Results, x: Option<f64>) -> Result<Figure, String> {
        let kept = report(results, &self.part)?;
        let mut sum = 0.0;
        let mut spread: Option<f64> = None;
        let mut fitted = matches!(self.fitted, Fitted::Always(true));
        for wanted in &self.rows {
            let wanted: BTreeMap<&String, Value> = wanted
                .iter()
                .map(|(key, value)| (key, filled(value, x)))
                .collect();
            // The first match: rows of one command have distinct names.
            let row = list(kept, &self.list)
                .find(|row| wanted.iter().all(|(key, value)| same(&row[key], value)))
                .ok_or_else(|| absent(kept, &wanted))?;
            sum += self.number(row).ok_or_else(|| {
                // A row without a number says why; that is the better reason.
                let note = row["note"].as_str().filter(|note| !note.is_empty());
                note.map_or_else(|| absent(kept, &wanted), ToOwned::to_owned)
            })?;
            // Of a sum the worst part's: spreads of medians do not add.
            spread = [spread, row[&self.spread].as_f64()]
                .into_iter()
                .flatten()
                .reduce(f64::max);
            fitted |= match &self.fitted {
                Fitted::Field(field) => row[field].as_bool() == Some(true),
                Fitted::Always(_) => false,
            };
            // The model's own word for it.
            fitted |= matches!(row["kind"].as_str(), Some("input" | "fitted"));
        }
        let value = match self.reciprocal {
            true => self.scale / sum,
            false => self.scale * sum,
        };
        // A divisor of 0, in the rule or in the row.
        match value.is_finite() {
            true => Ok(Figure {
                value,
                spread,
                fitted,
            }),
            false => Err("what the command gave is no finite number".into()),
        }
    }

    fn number(&self, row: &Value) -> Option<f64> {
        let value = row[&self.field].as_f64()?;
        match &self.over {
            None => Some(value),
            Some(over) => Some(value / row[over].as_f64()?),
        }
    }
}

/// Report of a part.
///
/// # Errors
/// The reason why there is none, in words.
pub(crate) fn report<'a>(results: &'a Results, part: &str) -> Result<&'a Value, String> {
    match results.get(part) {
        Some(Found::Kept(kept)) => Ok(&kept.report),
        Some(Found::Missing { why }) => Err(why.clone()),
        None => Err("not run".into()),
    }
}

/// The rows of a list; none where it is no list.
pub(crate) fn list<'a>(report: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    report[name].as_array().into_iter().flatten()
}

/// `{x}` in a wanted value stands for the place: a number where it stands alone.
fn filled(value: &Value, x: Option<f64>) -> Value {
    match (value.as_str(), x) {
        (Some("{x}"), Some(x)) => x.into(),
        // The shortest decimal form, as keys and rows are written.
        (Some(text), Some(x)) => text.replace("{x}", &format!("{x}")).into(),
        _ => value.clone(),
    }
}

/// Numbers are the same if their values are, however they are written.
fn same(found: &Value, wanted: &Value) -> bool {
    match (found.as_f64(), wanted.as_f64()) {
        // JSON has 8 and 8.0, TOML has them, too.
        (Some(found), Some(wanted)) => found == wanted,
        _ => found == wanted,
    }
}

/// Reason why a row is missing: the command's own list of missing or failed rows, if it has one.
fn absent(report: &Value, wanted: &BTreeMap<&String, Value>) -> String {
    let named = wanted.iter().find(|(key, _)| key.as_str() == "name");
    let name = named.and_then(|(_, value)| value.as_str());
    // Benches list peers apart from rows; a peer that is not installed says so there.
    let peer = list(report, "peers").find(|peer| name.is_some_and(|name| peer["metric"] == name));
    let note = peer.and_then(|peer| peer["note"].as_str());
    if let Some(note) = note.filter(|note| !note.is_empty()) {
        return note.to_owned();
    }
    let mut said: Vec<&str> = Vec::new();
    for key in ["failures", "missing"] {
        said.extend(list(report, key).filter_map(|each| each.as_str().or(each["reason"].as_str())));
    }
    said.extend(
        list(report, "peers")
            .filter(|peer| peer["here"].is_null())
            .filter_map(|peer| peer["note"].as_str()),
    );
    // One missing package is often the reason of many rows.
    said.dedup();
    said.truncate(SAID_MAX);
    let row = match name {
        Some(name) => format!("the command gave no row \u{201c}{name}\u{201d}"),
        None => "the command gave no row for it".to_owned(),
    };
    match said.is_empty() {
        true => row,
        false => format!("{row}; it said: {}", said.join("; ")),
    }
}

/// Number of a command's own reasons that are repeated for a missing row.
const SAID_MAX: usize = 2;
