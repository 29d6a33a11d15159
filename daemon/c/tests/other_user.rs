//! A daemon that another user (65534) pretends to be: a C client tells it nothing. Needs root.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; a child speaks.

#[path = "common/c.rs"]
mod c;
#[path = "../../daemon/tests/common/other_user.rs"]
mod other_user;

use c::{LANGUAGES, compile_and_link};
use other_user::{ARGUMENT, Child, ROLE, UID, can_be_played, open_folder, pretend};
use std::path::PathBuf;
use std::process::Command;

/// Not a test of its own: the other user's part.
#[test]
fn child() {
    if let Ok(role) = std::env::var(ROLE) {
        assert_eq!(role, "pretend");
        pretend(&PathBuf::from(std::env::var_os(ARGUMENT).unwrap()));
    }
}

#[test]
fn an_impostor_is_told_nothing_and_refused_in_one_line() {
    if !can_be_played() {
        return;
    }
    let folder = open_folder();
    let place = folder.path().join("theirs");
    std::fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(UID), Some(UID)).unwrap();
    let socket = place.join("daemon.sock");
    let mut impostor = Child::start(folder.path(), "pretend", &socket);
    impostor.expect("listening");
    for language in LANGUAGES {
        let root = env!("CARGO_MANIFEST_DIR");
        let program = compile_and_link(root, "attach.c", language, folder.path());
        let output = Command::new(program).arg(&socket).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("neither this one nor root"), "{said}");
        assert_eq!(impostor.expect("heard: "), "nothing");
    }
}
