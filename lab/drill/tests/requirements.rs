//! docs/rfc-requirements.md compared with the sources: every requirement marked as done has a test,
//! and each named test exists.
//!
//! Why here: scripts and the stack's tests are both in reach, and nothing is to be compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Kinds of numbered requirements in RFC 9293 and how many there are of each.
const NUMBERED: [(&str, u32); 4] = [("MUST", 69), ("SHLD", 31), ("MAY", 18), ("REC", 1)];
/// A page with fewer lines has lost some.
const LINES_MIN: usize = 200;

/// A requirement's line.
struct Line<'p> {
    requirement: &'p str,
    state: &'p str,
    shown: &'p str,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Lines of all tables, without their heads.
fn lines(page: &str) -> Vec<Line<'_>> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let lines = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let ["", requirement, state, shown, ""] = cells[..] else {
            panic!("not three cells: {row}");
        };
        Line {
            requirement,
            state,
            shown,
        }
    });
    lines
        .filter(|line| line.requirement != "requirement")
        .collect()
}

/// Tests and scripts that a cell names, in code spans.
fn names(shown: &str) -> Vec<&str> {
    let spans = shown.split('`').skip(1).step_by(2);
    spans
        .filter(|span| span.contains("::") || span.ends_with(".drill"))
        .collect()
}

/// True if a function of this name follows the attribute of a test, with nothing else between them
/// than other attributes and comments.
fn has_test(text: &str, name: &str) -> bool {
    let Some((before, _)) = text.split_once(&format!("fn {name}(")) else {
        return false;
    };
    // The first is the beginning of the function's own line.
    let head = before.rsplit('\n').skip(1).map(str::trim_start);
    head.take_while(|line| line.starts_with("#[") || line.starts_with("//"))
        .any(|line| line == "#[test]")
}

/// Numbers of RFC 9293 in a requirement's head, as in `MAY-5, SHLD-12: ...`.
fn numbers(requirement: &str) -> Vec<(&str, u32)> {
    let (head, _) = requirement.split_once(':').unwrap_or_default();
    let parts = head.split(", ").filter_map(|part| part.split_once('-'));
    parts
        .filter_map(|(kind, number)| Some((kind, number.parse().ok()?)))
        .collect()
}

/// Text of all files of this name, without `.rs`, below the stack's sources and tests.
fn sources() -> BTreeMap<String, String> {
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    let stack = root().join("net/stack");
    let wire = root().join("net/wire/src");
    let mut folders = vec![stack.join("src"), stack.join("tests"), wire];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                // `mod.rs` has its folder's name, as in the module's path.
                let is_folder = path.file_name().is_some_and(|name| name == "mod.rs");
                let named = if is_folder { &folder } else { &path };
                let name = named.file_stem().expect("a name").to_string_lossy();
                let text = std::fs::read_to_string(&path).expect("a source");
                *texts.entry(name.into_owned()).or_default() += &text;
            }
        }
    }
    texts
}

/// Names of all scripts, with their endings.
fn scripts() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let files = std::fs::read_dir(root().join("lab/drill/tests/drill")).expect("the scripts");
    for file in files {
        let text = std::fs::read_to_string(file.expect("an entry").path()).expect("a file");
        let parts = sidecore_net_drill::parts(&text).into_iter();
        names.extend(parts.map(|part| part.name.to_owned()));
    }
    names
}

#[test]
fn every_line_that_is_done_has_a_test_that_is_there() {
    let page = root().join("docs/rfc-requirements.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let lines = lines(&page);
    assert!(lines.len() >= LINES_MIN, "{} lines", lines.len());
    let (sources, scripts) = (sources(), scripts());
    let mut wrong = Vec::new();
    for line in &lines {
        let names = names(line.shown);
        match line.state {
            "done" | "in part" if names.is_empty() => {
                wrong.push(format!("{}: no test", line.requirement));
            }
            "done" | "in part" => {}
            "not done" | "not ours" if line.shown.is_empty() => {
                wrong.push(format!("{}: no reason", line.requirement));
            }
            "not done" | "not ours" => {}
            other => wrong.push(format!("{}: `{other}` is no state", line.requirement)),
        }
        for name in names {
            let found = match name.split_once("::") {
                None => scripts.contains(name),
                Some((file, test)) => sources.get(file).is_some_and(|text| has_test(text, test)),
            };
            if !found {
                wrong.push(format!("{}: there is no {name}", line.requirement));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_numbered_requirement_has_one_line() {
    let page = root().join("docs/rfc-requirements.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let mut seen = BTreeSet::new();
    for line in lines(&page) {
        for (kind, number) in numbers(line.requirement) {
            assert!(seen.insert((kind, number)), "{kind}-{number} stands twice");
        }
    }
    let wanted = NUMBERED.map(|(kind, count)| (1..=count).map(move |number| (kind, number)));
    let wanted: BTreeSet<_> = wanted.into_iter().flatten().collect();
    let missing: Vec<_> = wanted.difference(&seen).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let unknown: Vec<_> = seen.difference(&wanted).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
