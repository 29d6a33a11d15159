//! docs/benchmarks.md: each section counts its wins and losses as its table does, and its picture
//! shows the table.
//!
//! Why here: a verdict in words outlives the row that it was drawn from. Must stay true: of two
//! figures in a row the better one is bold. `SIDECORE_WRITE_SESSIONS=yes` draws the pictures anew.

use super::repository::{files, root};
use sidecore_plot::{DotRow, dots, dots_height, picture};
use std::collections::BTreeSet;

/// Width of a picture in pixels, and height of its letters.
const SIZE: (u32, u32) = (900, 14);

/// One row: its label, and how many times as good as the peer it is.
struct Row {
    label: String,
    ratio: f64,
}

/// A section: its title, its text and its rows.
struct Section<'text> {
    title: &'text str,
    text: &'text str,
    rows: Vec<Row>,
}

/// All numbers of a cell, without separators of thousands.
fn numbers(cell: &str) -> Vec<f64> {
    let is_part = |it: char| it.is_ascii_digit() || it == '.' || it == ',';
    let parts = cell.split(|it| !is_part(it));
    let plain = parts.map(|part| part.replace(',', ""));
    plain.filter_map(|part| part.parse().ok()).collect()
}

/// A row `| label | ours | peer | theirs |`. Of a range, the value that is closest to the peer's.
fn row(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [label, ours, peer, theirs] = cells[..] else {
        return None;
    };
    let is_won = ours.contains("**");
    let other = *numbers(theirs).first()?;
    let factors = numbers(ours)
        .into_iter()
        .map(|own| own.max(other) / own.min(other));
    let factor = factors.reduce(f64::min)?;
    assert!(
        is_won != theirs.contains("**"),
        "one figure is bold: {line}"
    );
    Some(Row {
        label: format!("{}: {peer}", label.replace('`', "")),
        ratio: if is_won { factor } else { factor.recip() },
    })
}

fn sections() -> Vec<Section<'static>> {
    let parts = files()["docs/benchmarks.md"].split("\n## ").skip(1);
    let of = |part: &'static str| {
        let (title, text) = part.split_once('\n').expect("a title");
        let rows = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .filter_map(row);
        Section {
            title,
            text,
            rows: rows.collect(),
        }
    };
    parts.map(of).collect()
}

/// The picture of a section.
fn drawn(section: &Section<'_>) -> String {
    let rows: Vec<DotRow> = section
        .rows
        .iter()
        .map(|row| DotRow {
            label: row.label.clone(),
            values: vec![
                Some(row.ratio).filter(|ratio| *ratio < 1.0),
                Some(row.ratio).filter(|ratio| *ratio >= 1.0),
            ],
        })
        .collect();
    let size = (SIZE.0, dots_height(rows.len(), SIZE.1));
    picture(size, |area| {
        dots(area, size, SIZE.1, "times as good", &["lost", "won"], &rows)
    })
    .expect("it can be drawn")
}

#[test]
fn every_section_counts_its_wins_and_shows_them() {
    let sections = sections();
    assert!(sections.len() >= 5, "only {} sections", sections.len());
    for section in sections {
        let title = section.title;
        assert!(!section.rows.is_empty(), "{title} has no rows");
        let won = section.rows.iter().filter(|row| row.ratio >= 1.0).count();
        let all = section.rows.len();
        for verdict in [
            format!("**Won {won} of {all}.**"),
            format!("**Lost {}.**", all - won),
        ] {
            assert!(section.text.contains(&verdict), "{title}: write {verdict}");
        }
        let name = title.to_lowercase().replace(' ', "-");
        let path = format!("benchmarks/{name}.svg");
        assert!(
            section.text.contains(&format!("]({path})")),
            "{title} has no {path}"
        );
        let wanted = drawn(&section);
        let file = format!("docs/{path}");
        if std::env::var_os("SIDECORE_WRITE_SESSIONS").is_some() {
            std::fs::write(root().join(&file), wanted).expect("it can be written");
        } else {
            let committed = files().get(&file).map_or("", String::as_str);
            assert!(
                committed == wanted,
                "{file} does not show its table: SIDECORE_WRITE_SESSIONS=yes cargo test -p \
                 sidecore-cli --test suite benchmarks::"
            );
        }
    }
}

/// Numbers of a text as they are written.
fn figures(text: &str) -> BTreeSet<&str> {
    let is_part = |it: char| it.is_ascii_digit() || it == '.' || it == ',';
    let parts = text.split(|it| !is_part(it));
    let parts = parts.map(|part| part.trim_matches([',', '.']));
    parts.filter(|part| !part.is_empty()).collect()
}

/// Figures in the tables of a page's text, names of programs and columns aside.
fn table_figures(text: &str) -> BTreeSet<&str> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let cells = rows.flat_map(|line| line.split('|').skip(2));
    cells.flat_map(figures).collect()
}

/// The README chooses among the benchmarks, and these among the records: no figure is of its own.
#[test]
fn every_figure_is_recorded() {
    let benchmarks = &files()["docs/benchmarks.md"];
    let readme = &files()["README.md"];
    let (_, table) = readme.split_once("## Benchmarks").expect("its heading");
    let (table, _) = table.split_once("\n## ").expect("the next heading");
    let mut records = BTreeSet::new();
    let is_record = |name: &str| name.starts_with("docs/results/") || name == "docs/cell.md";
    for (_, text) in files().iter().filter(|(name, _)| is_record(name)) {
        records.extend(figures(text));
    }
    let shown = figures(benchmarks);
    let readmes = table_figures(table);
    let own: Vec<_> = readmes.difference(&shown).collect();
    assert!(own.is_empty(), "README.md has figures of its own: {own:?}");
    let chosen = table_figures(benchmarks);
    let own: Vec<_> = chosen.difference(&records).collect();
    assert!(
        own.is_empty(),
        "docs/benchmarks.md has figures of its own: {own:?}"
    );
    assert!(
        readmes.len() > 8 && chosen.len() > 30,
        "few figures were found"
    );
}

#[test]
fn the_better_figure_of_a_row_decides() {
    let won = row("| reads | **1,200 MB/s** | kernel | 600 MB/s |").expect("a row");
    assert_eq!((won.label.as_str(), won.ratio), ("reads: kernel", 2.0));
    let lost = row("| `time` | 20 us | kernel | **5 us** |").expect("a row");
    assert_eq!(lost.ratio, 0.25);
    let range = row("| time | **0.25 to 0.5** | peer | 1 |").expect("a row");
    assert_eq!(range.ratio, 2.0);
    assert!(row("| measurement | Sidecore | peer | peer's figure |").is_none());
}
