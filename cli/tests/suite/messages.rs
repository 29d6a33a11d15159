//! Messages of the program, as its users have it: alone, without the sources, a compiler or cargo.
//!
//! Why here: advice such as "cargo build" helps developers alone, and no test of a command on a
//! developer's machine meets it. Names of crates, flags and installed files are fine.

use super::repository::files;
use std::path::Path;
use std::process::Command;

/// Words that only a checkout of the sources can follow.
const DEVELOPERS: [&str; 5] = ["cargo ", "scripts/", "target/", "lab/", "examples/"];

/// Folders whose code is part of the program.
const PRODUCT: [&str; 9] = [
    "cli/src/",
    "core/",
    "image/",
    "daemon/",
    "net/",
    "phylo/",
    "cell/",
    "lab/bench/src/",
    "lab/drill/src/",
];

/// The text's string literals and, of clap's arguments, the doc comments: with line numbers.
fn words(text: &str, has_help: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            if has_help && rest.starts_with("///") {
                found.push((line, rest[..length].to_owned()));
            }
            length
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            let length = raw.find("\"#").map_or(raw.len(), |at| at);
            found.push((line, raw[..length].to_owned()));
            length + 5
        } else if rest.starts_with("'\"'") {
            3
        } else if first == '"' {
            let mut is_escaped = false;
            let end = rest[1..].find(|letter| {
                let ends = letter == '"' && !is_escaped;
                is_escaped = letter == '\\' && !is_escaped;
                ends
            });
            let length = end.map_or(rest.len(), |end| end + 2);
            found.push((line, rest[..length].to_owned()));
            length
        } else {
            first.len_utf8()
        };
        let length = length.min(rest.len());
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

#[test]
fn no_message_needs_the_sources() {
    let is_product = |name: &str| {
        PRODUCT.iter().any(|folder| name.starts_with(folder))
            && name.contains("/src/")
            && name.ends_with(".rs")
            && !name.contains("/tests")
    };
    let mut wrong = Vec::new();
    let mut read = 0;
    for (name, text) in files().iter().filter(|(name, _)| is_product(name)) {
        // Unit tests stand last, and talk to developers.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let included = |text: &str, words: &str| text.contains(&format!("include_str!({words})"));
        for (line, words) in words(text, name.starts_with("cli/")) {
            read += 1;
            let is_bad = DEVELOPERS.iter().any(|word| words.contains(word));
            if is_bad && !included(text, &words) {
                wrong.push(format!("{name}:{line}: {words}"));
            }
        }
    }
    assert!(read > 5000, "only {read} strings were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn strings_and_help_are_found_and_comments_are_not() {
    let text = "// \"cargo a\"\n/// cargo b\nlet c = \"cargo \\\" d\"; // cargo e\nlet f = '\"';\n";
    let found = words(&format!("{text}let g = r#\"cargo \" h\"#;"), true);
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [2, 3, 5], "{found:?}");
    assert_eq!(words(text, false).len(), 1);
}

/// The program alone in a folder, an empty home, and next to nothing installed: each command works
/// or names what brings the rest.
#[test]
fn the_program_alone_works_or_names_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sidecore");
    // A copy, as cargo's folder has the libraries next to the original.
    std::fs::copy(env!("CARGO_BIN_EXE_sidecore"), &program).unwrap();
    let alone = |arguments: &str| {
        let mut command = Command::new("/usr/bin/timeout");
        command.args(["--kill-after=5", "60"]).arg(&program);
        command.args(arguments.split(' ')).env_clear();
        command.env("PATH", "/nowhere").env("HOME", folder.path());
        command.current_dir(folder.path());
        command.output().unwrap()
    };
    let is_packaged = Path::new("/usr/lib/sidecore").exists();
    let cases = [
        ("offload run -- /bin/true", Some(2), "package `sidecore`"),
        ("phylo beagle -- /bin/true", Some(2), "package `sidecore`"),
        ("rdma run -- /bin/true", Some(2), "package `sidecore`"),
        ("spe env", Some(0), "package `sidecore`"),
        (
            "net run --loopback -- /bin/true",
            Some(0),
            "package `sidecore`",
        ),
        ("papers --list", Some(0), ""),
        ("cell table2", Some(0), ""),
        ("doctor", Some(0), ""),
        ("net drill hello.drill", Some(0), ""),
    ];
    let drill = "+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n";
    std::fs::write(folder.path().join("hello.drill"), drill).unwrap();
    for (arguments, status, word) in cases {
        let output = alone(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        let both = format!("{}{errors}", String::from_utf8_lossy(&output.stdout));
        for bad in DEVELOPERS {
            assert!(!both.contains(bad), "{arguments}: {both}");
        }
        // With the package installed on this machine, nothing is missing.
        if !is_packaged {
            assert_eq!(output.status.code(), status, "{arguments}: {both}");
            assert!(errors.contains(word), "{arguments}: {both}");
        }
    }
}
