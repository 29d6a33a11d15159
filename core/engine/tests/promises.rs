//! Programs that must not compile: the promises that the types make. `promises.txtar` has each
//! case, and the line that the compiler refuses with the kind of its error. Nothing is built for
//! them: they are checked against the library that this test is linked with.
#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const ARCHIVE: &str = include_str!("promises.txtar");

#[test]
fn broken_promises_do_not_compile() {
    let cases: BTreeMap<&str, &str> = ARCHIVE
        .strip_prefix("-- ")
        .expect("a heading")
        .split("\n-- ")
        .map(|part| part.split_once(" --\n").expect("a heading"))
        .collect();
    let kept = cases["kept.rs"];
    // Several builds of the library may stand there, as of another compiler or with other features.
    let library = libraries()
        .into_iter()
        .find(|library| refusal(kept, library).is_none())
        .expect("a kept promise compiles");
    let broken = cases.iter().filter(|(name, _)| name.ends_with(".rs"));
    let mut seen = 0;
    for (name, program) in broken.filter(|(name, _)| name.starts_with("broken_")) {
        let expected = cases[name.replace(".rs", ".expected").as_str()].trim_end();
        let refusal = refusal(program, &library).unwrap_or_else(|| panic!("{name} compiles"));
        assert!(refusal.starts_with(expected), "{name}: {refusal}");
        seen += 1;
    }
    assert_eq!(seen, 6, "cases of the archive");
}

/// Builds of the library next to this test, the newest first.
fn libraries() -> Vec<PathBuf> {
    let folder = deps();
    let mut found: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder of this test")
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libsidecore_engine-") && name.ends_with(".rlib")
        })
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// The folder that cargo puts libraries and tests into.
fn deps() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.parent().expect("a folder").to_owned()
}

/// The compiler's first error about `program`, as `line: error…`; none if it compiles.
fn refusal(program: &str, library: &Path) -> Option<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("promise.rs");
    std::fs::write(&source, program).expect("a case can be written");
    let mut external = std::ffi::OsString::from("sidecore_engine=");
    external.push(library);
    let mut dependencies = std::ffi::OsString::from("dependency=");
    dependencies.push(deps());
    let output = Command::new("rustc")
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
        ])
        .args(["--cap-lints", "allow", "--error-format", "short"])
        .arg("--extern")
        .arg(external)
        .arg("-L")
        .arg(dependencies)
        .arg("--out-dir")
        .arg(folder)
        .arg(&source)
        .output()
        .expect("a compiler");
    if output.status.success() {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut errors = said.lines().filter(|line| line.contains(": error"));
    let first = errors.next().unwrap_or(&said);
    // path:line:column: error…
    let mut parts = first.splitn(4, ':');
    let (line, message) = (parts.nth(1)?, parts.nth(1)?);
    Some(format!("{line}:{message}"))
}
