//! Commands and pictures that pages show: each command exists with its options, each picture
//! follows its reader's dark or light setting.
//!
//! Why here: the sessions of some pages are run; all other pages name commands, too, and outlive
//! the option that they name.

use super::repository::files;
use std::collections::BTreeMap;
use std::process::Command;

/// Manual pages by their command: `block mount` and its text.
fn manual() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let output = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .arg("man")
        .arg(&pages)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut found = BTreeMap::new();
    for entry in pages.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        // A dash is `\-` in a manual page, and bold words have marks around them.
        let command = name.strip_prefix("sidecore-").unwrap_or("").to_owned();
        let plain = ["\\fR", "\\fB", "\\fI"]
            .iter()
            .fold(text, |text, font| text.replace(font, " "));
        found.insert(command, plain.replace('\\', ""));
    }
    found
}

/// The lines of fenced blocks and the code spans of a page.
fn code(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            found.push(line);
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// Commands of a line: the words behind each `sidecore`, up to what ends a command in a shell.
fn commands(line: &str) -> Vec<Vec<&str>> {
    let line = line.split(" # ").next().unwrap_or(line);
    let mut found = Vec::new();
    let mut words = line.split_whitespace().peekable();
    let mut before = "";
    while let Some(word) = words.next() {
        let is_program = word == "sidecore" || word.ends_with("$(sidecore");
        // A word behind a directory is a file system's type, as in /etc/fstab.
        let is_type = before.starts_with('/');
        before = word;
        if !is_program || is_type {
            continue;
        }
        let is_end = |word: &&str| {
            ["|", "||", "&&", "&", ">", "2>", "<", ";", "--", "\\"].contains(word)
                || word.starts_with(['>', '#', '(', '|'])
        };
        let mut command = Vec::new();
        while let Some(word) = words.next_if(|word| !is_end(word)) {
            command.push(word.trim_end_matches([')', ';', ',', '.', '"']));
            if word.ends_with([')', ';']) {
                break;
            }
        }
        found.push(command);
    }
    found
}

/// Words of a command that make up its manual page's name.
fn name_words(name: &str, command: &[&str]) -> usize {
    let counts = 1..=command.len();
    counts
        .take_while(|count| name.starts_with(&command[..*count].join("-")))
        .last()
        .unwrap_or(0)
}

/// The problem with a command, if it has one. `None` also for a line that is no command.
fn problem(command: &[&str], manual: &BTreeMap<String, String>) -> Option<String> {
    let first = command.first()?;
    let is_name = |word: &str| word.chars().all(|it| it.is_ascii_lowercase() || it == '-');
    if first.starts_with('-') || !is_name(first) {
        return None;
    }
    // The longest name that is a command.
    let names = (1..=command.len().min(3)).rev();
    let mut names = names.map(|count| command[..count].join("-"));
    let Some(name) = names.find(|name| manual.contains_key(name)) else {
        return Some(format!("no command `{first}`"));
    };
    let page = &manual[&name];
    let has_parts = manual
        .keys()
        .any(|key| key.starts_with(&format!("{name}-")));
    let next = command
        .get(name_words(&name, command))
        .copied()
        .unwrap_or("-");
    if has_parts && !next.is_empty() && is_name(next) && !next.starts_with('-') {
        return Some(format!("`{name}` has no command `{next}`"));
    }
    for word in &command[1..] {
        let word = word.trim_start_matches('[').trim_end_matches(']');
        let Some(name) = word.strip_prefix("--") else {
            continue;
        };
        let name = name.split(['=', '[', '|', '…', '.']).next().unwrap_or(name);
        let ends = |rest: &str| !rest.starts_with(|it: char| it.is_alphanumeric() || it == '-');
        let option = format!("--{name}");
        let is_there = page
            .match_indices(&option)
            .any(|(at, _)| ends(&page[at + option.len()..]));
        if !name.is_empty() && !is_there {
            return Some(format!("`{first}` has no option --{name}"));
        }
    }
    None
}

#[test]
fn every_command_that_a_page_shows_exists() {
    let manual = manual();
    let (mut found, mut checked) = (Vec::new(), 0);
    // Records show commands of their time.
    let is_record = |name: &str| name == "CHANGELOG.md" || name.starts_with("target/");
    let pages = files().iter();
    for (name, text) in pages.filter(|(name, _)| name.ends_with(".md") && !is_record(name)) {
        for line in code(text) {
            for command in commands(line) {
                checked += 1;
                let Some(problem) = problem(&command, &manual) else {
                    continue;
                };
                // Names of keys begin with our name, too.
                let is_key = name.starts_with("docs/formats/") && problem.contains("no command");
                if !is_key {
                    found.push(format!("{name}: {problem}: {line}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(checked > 200, "only {checked} commands were found");
}

#[test]
fn commands_that_do_not_exist_are_seen() {
    let manual = BTreeMap::from([
        ("block".to_owned(), String::new()),
        ("block-pack".to_owned(), "--output --level".to_owned()),
    ]);
    let of = |line: &'static str| {
        let mut all = commands(line).into_iter();
        all.find_map(|command| problem(&command, &manual))
    };
    assert_eq!(of("sidecore block pack a --output b --level=3"), None);
    assert_eq!(of("x=$(sidecore block pack a) && ls --all"), None);
    assert_eq!(of("sidecore block pack a # --later"), None);
    assert!(of("sidecore block pack a --lev 3").is_some());
    assert!(of("ls | sidecore blok pack a").is_some());
    assert!(of("sidecore block pak a").is_some());
    assert_eq!(of("sidecore block"), None);
}

#[test]
fn every_picture_has_a_dark_form() {
    let pictures = files().iter().filter(|(name, _)| {
        let is_ours = name.starts_with("docs/") || name.starts_with("packaging/");
        is_ours && name.ends_with(".svg")
    });
    let mut checked = 0;
    for (name, text) in pictures {
        assert!(
            text.contains("prefers-color-scheme"),
            "{name} is white at night"
        );
        assert!(text.len() < 120_000, "{name} has {} bytes", text.len());
        checked += 1;
    }
    assert!(checked >= 10, "only {checked} pictures were found");
}

/// Help texts are read with the program; they deny nothing that a page of limits does not check.
#[test]
fn help_texts_deny_nothing() {
    let mut found = Vec::new();
    for (command, text) in manual() {
        let text = text.to_lowercase();
        for words in ["not supported", "unsupported", "not implemented", "not yet"] {
            if text.contains(words) {
                found.push(format!("sidecore {command} --help: `{words}`"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
