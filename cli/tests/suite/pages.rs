//! The pages: every link leads somewhere, the site's contents are complete, and the README is as
//! short as a first screen has to be.

use super::english::words;
use super::repository::{files, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::process::Command;

/// Most words of README.md, tables included, code blocks not.
const README_WORDS_MAX: usize = 700;

/// Most rows of all its tables, heads included.
const README_ROWS_MAX: usize = 12;

/// Addresses of this repository's files, by which pages of docs/ name those outside of it.
const OWN_SITE: [&str; 2] = [
    "https://github.com/sidecore/sidecore/blob/main/",
    "https://github.com/sidecore/sidecore/tree/main/",
];

/// The text without fenced code, and without code spans.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let parts = line.split('`').enumerate();
            let outside = parts.filter_map(|(at, part)| (at % 2 == 0).then_some(part));
            kept.extend(outside);
            kept.push('\n');
        }
    }
    kept
}

/// Targets of the links of a page, without their titles.
pub(super) fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let targets = text.split("](").skip(1);
    let ends = targets.filter_map(|rest| rest.split_once(')'));
    ends.map(|(target, _)| target.trim().to_owned()).collect()
}

/// Anchors of a page's headings, as forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::new();
    let mut is_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) else {
            continue;
        };
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ => character.is_alphanumeric().then_some(character),
        });
        let anchor: String = kept.collect();
        let count: &mut usize = seen.entry(anchor.clone()).or_default();
        found.insert(match *count {
            0 => anchor,
            more => format!("{anchor}-{more}"),
        });
        *count += 1;
    }
    found
}

/// Every folder that holds a file, by its path from the root.
fn folders() -> BTreeSet<String> {
    let names = files().keys().map(Path::new);
    let folders = names.flat_map(|name| name.ancestors().skip(1));
    let folders = folders.filter_map(|folder| folder.to_str().map(str::to_owned));
    folders.filter(|folder| !folder.is_empty()).collect()
}

/// Paths that a text names from the root: words that begin with one of its folders.
fn named_paths<'text>(text: &'text str, tops: &BTreeSet<&str>) -> Vec<&'text str> {
    let is_of_path = |character: char| character.is_alphanumeric() || "_-./".contains(character);
    // After these a word is the rest of something else: a variable, a link, a longer name.
    let is_joined = |before: &str| before.ends_with(['$', '{', '}', '@', '~', '\\', '%', ':']);
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_of_path) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|it| !is_of_path(it)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        let is_whole = !is_joined(before) && !after.starts_with(['*', '{', '$', '<', '@']);
        let top = word.split_once('/').map_or("", |(top, _)| top);
        if is_whole && tops.contains(top) {
            found.push(word.trim_end_matches(['.', '/']));
        }
        rest = after;
    }
    found
}

/// A path from the root without `.` and `..`; `None` where it leaves the repository.
fn clean(path: &Path) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(parts.pop()?),
            Component::Normal(part) => parts.push(part.to_str()?.to_owned()),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

#[test]
fn every_link_leads_to_a_file_and_its_heading() {
    let (files, folders) = (files(), folders());
    let mut dead = Vec::new();
    let mut checked = 0;
    for (page, text) in files.iter().filter(|(name, _)| name.ends_with(".md")) {
        for link in links(text) {
            let own = OWN_SITE.iter().find_map(|site| link.strip_prefix(site));
            let is_foreign = link.contains("://") || link.starts_with("mailto:");
            if link.is_empty() || is_foreign && own.is_none() {
                continue;
            }
            checked += 1;
            let (path, anchor) = own
                .unwrap_or(&link)
                .split_once('#')
                .unwrap_or((own.unwrap_or(&link), ""));
            let folder = match own {
                Some(_) => Path::new(""),
                None => Path::new(page).parent().unwrap(),
            };
            let target = match path {
                "" => Some(page.clone()),
                path => clean(&folder.join(path)),
            };
            // The site and the package hold docs/ only.
            if own.is_none() && page.starts_with("docs/") {
                let stays = target.as_ref().is_some_and(|it| it.starts_with("docs/"));
                if !stays {
                    dead.push(format!("{page}: {link} leaves docs/: write its address"));
                    continue;
                }
            }
            let is_there = target
                .as_ref()
                .is_some_and(|target| match files.get(target) {
                    Some(text) if target.ends_with(".md") && !anchor.is_empty() => {
                        anchors(text).contains(anchor)
                    }
                    Some(_) => true,
                    None => folders.contains(target) && anchor.is_empty(),
                });
            if !is_there {
                dead.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    assert!(checked > 100, "only {checked} links were found");
}

/// A script, a page or a comment that names a file by its path follows it when it moves.
#[test]
fn every_path_that_a_text_names_is_there() {
    // Of other projects, or an import path of Go.
    const FOREIGN: [&str; 4] = [
        "net/http",
        "net/xdp/xsk_queue.h",
        "docs/interop/qcow2.rst",
        "image/svg",
    ];
    let (files, folders) = (files(), folders());
    let tops = folders.iter().filter(|folder| !folder.contains('/'));
    let tops: BTreeSet<&str> = tops.map(String::as_str).collect();
    let has_paths = |name: &str| match Path::new(name).extension() {
        // A script: no other tracked file lacks an extension.
        None => true,
        Some(kind) => ["md", "rs", "toml", "yml", "h", "c", "py", "sh"]
            .map(Some)
            .contains(&kind.to_str()),
    };
    let (mut dead, mut checked) = (Vec::new(), 0);
    for (name, text) in files.iter().filter(|(name, _)| has_paths(name)) {
        for path in named_paths(text, &tops) {
            checked += 1;
            let is_there = files.contains_key(path) || folders.contains(path);
            if !is_there && !FOREIGN.contains(&path) {
                dead.push(format!("{name}: {path}"));
            }
        }
    }
    assert!(dead.is_empty(), "no such file:\n{}", dead.join("\n"));
    assert!(checked > 300, "only {checked} paths were found");
}

#[test]
fn paths_in_a_text_are_found() {
    let tops = BTreeSet::from(["scripts", "net"]);
    let text = "run scripts/setup, `net/run`. $net/x target/net/y net/z-* kernel-net/w (net/stack)";
    assert_eq!(
        named_paths(text, &tops),
        ["scripts/setup", "net/run", "net/stack"]
    );
}

#[test]
fn the_sites_contents_list_every_page_once() {
    let mut listed: Vec<String> = links(&files()["docs/SUMMARY.md"]);
    listed.retain(|link| !link.is_empty());
    listed.sort();
    let pages: Vec<String> = files()
        .keys()
        .filter(|name| name.ends_with(".md") && *name != "docs/SUMMARY.md")
        .filter_map(|name| name.strip_prefix("docs/").map(str::to_owned))
        .collect();
    assert_eq!(listed, pages);
}

/// Folders of crates, each with a README whose table has a row for each crate.
const CRATES: [&str; 6] = ["core", "image", "daemon", "net", "phylo", "cell"];

/// Rows of a table of crates: names, and what they stand on.
fn crate_rows(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, names, _, below, _] = cells[..] else {
            continue;
        };
        for name in names.split('`').skip(1).step_by(2) {
            let below = below.split(", ").filter(|it| !it.is_empty());
            rows.insert(name, below.collect());
        }
    }
    rows
}

#[test]
fn every_crate_has_a_row_and_stands_on_what_it_says() {
    let package = |folder: &str| {
        let manifest = files().get(&format!("{folder}/Cargo.toml"))?;
        let rest = manifest.split_once("\nname = \"")?.1;
        rest.split('"').next()
    };
    let mut problems = Vec::new();
    for top in CRATES {
        let readme = &files()[&format!("{top}/README.md")];
        let rows = crate_rows(readme);
        for path in files().keys() {
            let Some(name) = path
                .strip_prefix(top)
                .and_then(|it| it.strip_prefix('/')?.strip_suffix("/Cargo.toml"))
                .filter(|name| !name.contains('/'))
            else {
                continue;
            };
            let Some(below) = rows.get(name) else {
                problems.push(format!("{top}/README.md has no row for {name}"));
                continue;
            };
            for other in below {
                let folder = match other.contains('/') {
                    true => (*other).to_owned(),
                    false => format!("{top}/{other}"),
                };
                let is_used = package(&folder).is_some_and(|name| {
                    let key = [format!("\n{name}.workspace"), format!("\n{name} = ")];
                    key.iter().any(|key| files()[path].contains(key))
                });
                if !is_used {
                    problems.push(format!("{top}/README.md: {name} does not stand on {other}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let rows = crate_rows("| `a`, `b` | x | y, core/sys |\n|---|---|---|\n| `c` | x | |");
    assert_eq!(rows["b"], ["y", "core/sys"]);
    assert!(rows["c"].is_empty() && rows.len() == 3);
}

/// Words and rows of tables of README.md; `english` counts its sentences.
#[test]
fn the_readme_is_a_first_screen() {
    let text = prose(&files()["README.md"]);
    let is_row = |line: &&str| line.trim_start().starts_with('|');
    let is_rule = |line: &&str| line.chars().all(|it| "|-: ".contains(it));
    let rows = text
        .lines()
        .filter(|line| is_row(line) && !is_rule(line))
        .count();
    assert!(rows <= README_ROWS_MAX, "{rows} rows of tables");
    let all = words(&text);
    assert!(all <= README_WORDS_MAX, "{all} words");
}

/// The site has links that no page has: its side bar, and anchors as mdBook makes them. Without
/// mdBook the script says so, and nothing is checked.
#[test]
fn the_site_is_built_without_a_warning_or_a_dead_link() {
    let script = root().join("scripts/check-site");
    let output = Command::new(script).arg("--links-only").output();
    let output = output.expect("python3 runs it");
    assert!(output.status.success(), "{output:?}");
}
