//! The pictures of the page.
//!
//! Why here: the choice and drawing of a figure's answers. Must stay true: the table below a
//! picture has its values, too; paper, model and machine differ in shape, not in colour alone.

use crate::PapersError;
use crate::answer::{Answers, Curve, Row};
use crate::catalogue::{Paper, Plot};
use sidecore_plot::{Axis, DotRow, Mark, Series, chart, dots, dots_height, picture, themed};

/// The names of the three columns.
pub(crate) const COLUMNS: [&str; 3] = ["paper", "model of the Cell", "this machine"];
/// The same in a picture.
const KINDS: [&str; 3] = ["paper", "model", "this machine"];

/// All pictures of a figure, as SVG that stands inside a page.
pub(crate) fn pictures(answers: &Answers) -> Result<Vec<String>, PapersError> {
    let mut pictures: Vec<String> = match answers.plot {
        // The curves below are the whole picture then.
        Plot::None | Plot::Curves => Vec::new(),
        Plot::Dots => dot_picture(answers)?.into_iter().collect(),
        Plot::Lines => vec![line_picture(answers)?],
    };
    for curve in answers.curves.iter().filter(|curve| curve.why.is_none()) {
        pictures.push(curve_picture(answers, curve)?);
    }
    Ok(pictures)
}

/// Values by paper, model, this machine.
fn numbers(row: &Row) -> [Option<f64>; 3] {
    let paper = match row.paper {
        Some(Paper::Number(number)) => Some(number),
        _ => None,
    };
    [paper, row.model.number(), row.here.number()]
}

fn dot_picture(answers: &Answers) -> Result<Option<String>, PapersError> {
    // A row of words or reasons has no place on an axis.
    let with_numbers = |row: &&Row| numbers(row).iter().any(Option::is_some);
    let rows: Vec<&Row> = answers.rows.iter().filter(with_numbers).collect();
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let kinds = [0, 1, 2].map(|kind| {
        let any = rows.iter().any(|row| numbers(row)[kind].is_some());
        // A kind without a dot is left out of the legend.
        if any { KINDS[kind] } else { "" }
    });
    let dot_rows: Vec<DotRow> = rows
        .iter()
        .map(|row| DotRow {
            label: row.label.clone(),
            values: numbers(row).to_vec(),
        })
        .collect();
    let size = (WIDTH, dots_height(dot_rows.len(), LETTERS));
    let svg = picture(size, |area| {
        dots(area, size, LETTERS, &first.unit, &kinds, &dot_rows)
    })?;
    Ok(Some(themed(&svg, &described(answers))))
}

fn line_picture(answers: &Answers) -> Result<String, PapersError> {
    let mut groups: Vec<&str> = Vec::new();
    for group in answers.rows.iter().filter_map(|row| row.group.as_deref()) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let mut series: Vec<Series> = Vec::new();
    for (kind, mark) in [Mark::Crosses, Mark::Line, Mark::Dashed]
        .into_iter()
        .enumerate()
    {
        // A group keeps its colour, and a kind its shape: both can be followed without colour.
        for (colour, group) in groups.iter().enumerate() {
            let rows = answers.rows.iter();
            let rows = rows.filter(|row| row.group.as_deref() == Some(group));
            let points = rows.filter_map(|row| Some((row.x?, numbers(row)[kind]?)));
            let points: Vec<(f64, f64)> = points.collect();
            let name = match groups.len() {
                1 => KINDS[kind].to_owned(),
                _ => format!("{group}, {}", KINDS[kind]),
            };
            // One answer to two of the paper's machines is one line.
            let same = series
                .iter_mut()
                .find(|each| each.mark == mark && each.points == points);
            match same {
                Some(same) => {
                    KINDS[kind].clone_into(&mut same.name);
                    same.colour = groups.len();
                }
                None if points.is_empty() => {}
                None => series.push(Series {
                    name,
                    points,
                    mark,
                    colour,
                }),
            }
        }
    }
    let unit = answers.rows.first().map_or("", |row| &row.unit);
    let axis = Axis {
        title: "",
        x: answers.across.as_deref().unwrap_or_default(),
        y: unit,
        letters: LETTERS,
        by_powers: false,
    };
    // A long legend must not press the lines flat.
    let height = HEIGHT + LETTERS * 3 / 2 * series.len().saturating_sub(3) as u32;
    let svg = picture((WIDTH, height), |area| chart(area, &axis, &series))?;
    Ok(themed(&svg, &described(answers)))
}

fn curve_picture(answers: &Answers, curve: &Curve) -> Result<String, PapersError> {
    // Measured over sizes, or computed.
    let mark = if curve.by_powers {
        Mark::Dashed
    } else {
        Mark::Line
    };
    let mut series = Vec::new();
    for (line, name) in curve.lines.iter().enumerate() {
        let points = curve.points.iter();
        let points = points.filter_map(|(x, values)| Some((*x, values[line]?)));
        series.push(Series {
            name: name.clone(),
            points: points.collect(),
            mark,
            colour: line,
        });
        // One point: the documents print a single value of what is a curve here.
        if let Some(paper) = curve.papers[line] {
            series.push(Series {
                name: format!("paper: {}", paper.1),
                points: vec![paper],
                mark: Mark::Crosses,
                colour: line,
            });
        }
    }
    let axis = Axis {
        title: &curve.name,
        x: &curve.across,
        y: &curve.unit,
        letters: LETTERS,
        by_powers: curve.by_powers,
    };
    let svg = picture((WIDTH, HEIGHT), |area| chart(area, &axis, &series))?;
    Ok(themed(
        &svg,
        &format!("{}; {}", described(answers), curve.name),
    ))
}

fn described(answers: &Answers) -> String {
    format!("{}: the numbers are in the table below", answers.title)
}

/// Pictures are shown between 360 pixels wide, on a phone, and 480; letters stay readable in both.
const WIDTH: u32 = 520;
const HEIGHT: u32 = 420;
const LETTERS: u32 = 20;
