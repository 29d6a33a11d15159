//! Commands and pictures that pages show: each command exists with its options, each picture
//! follows its reader's dark or light setting.
//!
//! Why here: the sessions of some pages are run; all other pages name commands, too, and outlive
//! the option that they name. The same holds for variables, scripts and examples.

use super::repository::files;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

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

/// Options of scripts and names of examples in a line of code, each with whether it is there.
fn script_and_example_names(
    line: &str,
    all: &BTreeMap<String, String>,
    is_in_sources: &dyn Fn(&str) -> bool,
) -> Vec<bool> {
    let mut found = Vec::new();
    let mut script = None;
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let is_build = ["--example", "--bin", "--bench", "--test"].contains(&word);
        if ["|", "||", "&&", "&", ";", "#"].contains(&word) {
            script = None;
        } else if let Some(text) = all.get(word) {
            script = text.starts_with("#!").then_some(text);
        } else if let (Some(text), true) = (script, word.starts_with("--")) {
            let name = word.split(['=', '[', ']', '|', ')']).next();
            // Options that a script passes on are those of a program behind it.
            let passes_on = |it: &str| {
                let is_program = ["exec ", "sidecore "].iter().any(|by| it.starts_with(by));
                is_program && it.ends_with("\"$@\"")
            };
            let mut lines = text.lines().map(str::trim);
            found.push(text.contains(name.unwrap_or(word)) || lines.any(passes_on));
        } else if let (true, true, Some(name)) = (line.contains("cargo "), is_build, words.peek()) {
            let places = [format!("/{name}.rs"), format!("/{name}/main.rs")];
            let is_place = |file: &String| places.iter().any(|place| file.ends_with(place));
            let is_target = is_in_sources(&format!("name = \"{name}\""));
            found.push(is_target || all.keys().any(is_place));
        }
    }
    found
}

/// Names on pages without a counterpart in the source: variables of the environment, options of
/// scripts, examples and programs that cargo builds; and the number of names. `all` is the
/// repository.
fn dead_names(
    all: &BTreeMap<String, String>,
    is_page: &dyn Fn(&str) -> bool,
) -> (Vec<String>, usize) {
    let (pages, others): (Vec<_>, Vec<_>) = all.iter().partition(|(name, _)| is_page(name));
    let is_source = |name: &str| !name.ends_with(".md");
    // Few files have any such name; each is looked for in all of them.
    let has_names = |text: &str| text.contains("SIDECORE_") || text.contains("name = \"");
    let sources = others.iter().filter(|(name, _)| is_source(name));
    let sources = sources.map(|(_, text)| *text);
    let sources: Vec<&String> = sources.filter(|text| has_names(text)).collect();
    let is_in_sources = |word: &str| sources.iter().any(|text| text.contains(word));
    let (mut found, mut checked) = (Vec::new(), 0);
    for (page, text) in pages {
        let mut expect = |is_there: bool, what: &str| {
            checked += 1;
            if !is_there {
                found.push(format!("{page}: {what}"));
            }
        };
        for part in text.split("SIDECORE_").skip(1) {
            let end = part.find(|it: char| !(it.is_ascii_uppercase() || it == '_'));
            let name = format!("SIDECORE_{}", &part[..end.unwrap_or(part.len())]);
            expect(is_in_sources(&name), &name);
        }
        for line in code(text) {
            for is_there in script_and_example_names(line, all, &is_in_sources) {
                expect(is_there, line);
            }
        }
    }
    (found, checked)
}

#[test]
fn variables_scripts_and_examples_that_pages_name_are_there() {
    let is_record = |name: &str| name == "CHANGELOG.md" || name.starts_with("target/");
    let is_page = |name: &str| name.ends_with(".md") && !is_record(name);
    let (found, checked) = dead_names(files(), &is_page);
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(checked > 120, "only {checked} names were found");
}

#[test]
fn names_that_are_not_there_are_seen() {
    let page = "`SIDECORE_GONE=1`, `SIDECORE_HERE`\n```\nx/go --old | x --other\nx/go --new\n\
                cargo run -p x --example gone\ncargo run --example here\n```\n";
    let all = [
        ("p.md", page),
        ("x/go", "#!/bin/sh\n# --new"),
        ("x/examples/here.rs", "\"SIDECORE_HERE\""),
    ];
    let all: BTreeMap<_, _> = all
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .into();
    let (found, checked) = dead_names(&all, &|name| name.ends_with(".md"));
    assert_eq!((found.len(), checked), (3, 6), "{found:?}");
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

/// Fenced blocks of a page in a language.
fn blocks_in<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let begin = format!("\n```{language}\n");
    let blocks = page.split(&begin).skip(1);
    blocks
        .filter_map(|rest| Some(rest.split_once("\n```\n")?.0))
        .collect()
}

/// True if a program takes a text on its standard input; and its output.
fn judged(program: &mut Command, text: &str) -> (bool, String) {
    let piped = program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
    // It may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

#[test]
fn scripts_on_pages_are_read_by_their_languages() {
    let (mut found, mut checked) = (Vec::new(), BTreeMap::new());
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".md")) {
        for language in ["sh", "python"] {
            for block in blocks_in(text, language) {
                *checked.entry(language).or_insert(0) += 1;
                let mut program = match language {
                    "python" => Command::new("python3"),
                    _ if block.starts_with("#!/bin/bash\n") => Command::new("bash"),
                    _ => Command::new("sh"),
                };
                match language {
                    "python" => {
                        program.args(["-c", "import ast, sys; ast.parse(sys.stdin.read())"])
                    }
                    _ => program.arg("-n"),
                };
                let (is_right, said) = judged(&mut program, block);
                if !is_right {
                    found.push(format!("{name}: {said}{block}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(checked["sh"] >= 3 && checked["python"] >= 1, "{checked:?}");
    assert!(!judged(Command::new("sh").arg("-n"), "if true; then").0);
}

/// The hooks of the module for an initramfs, with calls that are written down in the place of
/// dracut's and of commands.
#[test]
fn the_hooks_of_an_initramfs_mount_what_the_kernels_line_names() {
    let mut hooks = blocks_in(&files()["docs/mounting.md"], "sh");
    hooks.retain(|it| it.starts_with("#!/bin/sh\n"));
    let hooks = hooks.join("\n");
    let folder = tempfile::tempdir().unwrap();
    let tool = folder.path().join("@sidecore");
    std::fs::write(&tool, "#!/bin/sh\necho \"@sidecore $*\"\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&tool, mode).unwrap();
    let before = "getarg() { [ \"$1\" = rd.sidecore= ] && echo /dev/sda2:/a.img; }\n\
        ismounted() { return 1; }\nNEWROOT=/sysroot\n\
        for it in mkdir mount warn wait_for_dev; do\n\
        eval \"$it() { echo $it \\\"\\$*\\\"; }\"\ndone\n";
    let run = |root: &str| {
        let text = format!("{before}root={root}\n{hooks}\necho ok=$rootok\n");
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        judged(Command::new("sh").env("PATH", path), &text)
    };
    let own = "/run/sidecore-root";
    let expected = format!(
        "wait_for_dev /dev/sda2\n\
         mkdir -p {own}/images {own}/image {own}/upper {own}/work\n\
         mount -o ro /dev/sda2 {own}/images\n\
         @sidecore block mount --trust {own}/images//a.img {own}/image\n\
         mount -t overlay -o lowerdir={own}/image,upperdir={own}/upper,workdir={own}/work \
         overlay /sysroot\n\
         ok=1\n"
    );
    assert_eq!(run("sidecore"), (true, expected));
    // Another root is none of its business.
    assert_eq!(run("/dev/sda1"), (true, "ok=\n".to_owned()));
}
