//! Programs that must not compile: the promises that the types make. `promises.txtar` has each case
//! with its message, as the compiler of the stable toolchain prints it. After a compiler update,
//! review the new messages and keep them with
//! `TRYBUILD=overwrite cargo test -p sidecore-engine --test promises`.
#![cfg(not(loom))]

use std::fmt::Write as _;
use std::path::Path;

#[test]
fn broken_promises_do_not_compile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    // Messages name a case by its path in this crate, so that is where it is unpacked; git ignores
    // the folder.
    let folder = root.join("promises");
    let archive = root.join("promises.txtar");
    let text = std::fs::read_to_string(&archive).expect("the archive can be read");
    let parts = || text.strip_prefix("-- ").expect("a heading").split("\n-- ");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let mut names = Vec::new();
    for part in parts() {
        let (name, body) = part.split_once(" --\n").expect("a heading");
        let body = format!("{}\n", body.trim_end_matches('\n'));
        std::fs::write(folder.join(name), body).expect("a case can be written");
        names.push(name);
    }
    let cases = trybuild::TestCases::new();
    cases.pass("tests/promises/kept.rs");
    cases.compile_fail("tests/promises/broken_*.rs");
    // The cases are compiled here.
    drop(cases);
    if std::env::var_os("TRYBUILD").is_some_and(|wish| wish == "overwrite") {
        let mut new = String::new();
        for name in names {
            let body = std::fs::read_to_string(folder.join(name)).expect("a case");
            write!(new, "-- {name} --\n{body}").expect("a string takes all");
        }
        std::fs::write(archive, new).expect("the archive can be written");
    }
}
