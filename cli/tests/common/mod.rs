//! Helpers shared by the tests of benches.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

use std::path::Path;
use std::process::Command;

/// Asserts that a bench refuses each of `cases` at once: exit status 2, the words in its message,
/// and nothing left in `scratch`.
pub(crate) fn refused(
    scratch: &Path,
    bench: impl Fn(&[&str]) -> Command,
    cases: &[([&str; 2], &str)],
) {
    for (arguments, words) in cases {
        let output = bench(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
    assert_eq!(std::fs::read_dir(scratch).unwrap().count(), 0);
}
