//! `man`, from the outside.

use std::process::Command;

fn sidecore(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    command.args(arguments).output().expect("it starts")
}

#[test]
fn every_page_has_all_sections_and_the_version() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    assert!(sidecore(&["man", pages.to_str().unwrap()]).status.success());
    let mut found = Vec::new();
    for page in pages.read_dir().unwrap() {
        let page = page.unwrap().path();
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&page).unwrap();
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "EXAMPLES",
            "FILES",
            "ENVIRONMENT",
            "\"EXIT STATUS\"",
            "\"SEE ALSO\"",
            "VERSION",
        ] {
            let head = format!(".SH {section}\n");
            assert!(text.contains(&head), "{name} has no {section}");
            let (_, body) = text.split_once(&head).unwrap();
            assert!(!body.starts_with(".SH"), "{name}: {section} is empty");
        }
        assert!(text.contains(env!("CARGO_PKG_VERSION")), "{name}");
        // Lines that a formatter would take for a request of its own.
        let (_, extra) = text.split_once(".SH EXAMPLES").unwrap();
        for line in extra.lines().filter(|line| line.starts_with('.')) {
            let is_known = [".SH ", ".TP", ".PP", ".ie ", ".el "];
            assert!(
                is_known.iter().any(|it| line.starts_with(it)),
                "{name}: {line}"
            );
        }
        found.push(name);
    }
    assert!(found.len() > 50, "{found:?}");
    for page in ["sidecore.1", "sidecore-block-mount.1", "sidecore-tlb.1"] {
        assert!(found.iter().any(|it| it == page), "{page}");
    }
    let all = || found.iter().map(|name| pages.join(name));
    match Command::new("mandoc")
        .args(["-T", "lint", "-W", "error"])
        .args(all())
        .output()
    {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => eprintln!("mandoc is not installed: {error}"),
    }
    assert_eq!(sidecore(&["man", "/proc/nowhere"]).status.code(), Some(2));
}

#[test]
fn related_pages_are_there_and_named_once() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path();
    assert!(sidecore(&["man", pages.to_str().unwrap()]).status.success());
    for page in pages.read_dir().unwrap() {
        let page = page.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        let (_, rest) = text.split_once(".SH \"SEE ALSO\"\n").unwrap();
        let (related, _) = rest.split_once(".SH").unwrap();
        let related = related.trim().replace('\\', "");
        let mut seen = Vec::new();
        for name in related.split(", ") {
            assert!(!seen.contains(&name), "{page:?} names {name} twice");
            let file = name.replace("(1)", ".1");
            assert!(pages.join(file).exists(), "{page:?} leads to {name}");
            seen.push(name);
        }
    }
}
