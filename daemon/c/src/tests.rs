//! The header's layouts compared with the library's.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use std::path::Path;
use std::process::Command;

/// The header's layouts are those of the library.
#[test]
fn layouts_are_the_same_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    let size = |name: &str, bytes: usize| {
        format!("_Static_assert(sizeof(struct {name}) == {bytes}, \"{name}\");\n")
    };
    let text = [
        "#include \"sidecore.h\"\n".to_owned(),
        size("sidecore_buffer", size_of::<crate::RawBuffer>()),
        size("sidecore_request", size_of::<crate::RawRequest>()),
        size("sidecore_options", size_of::<crate::RawOptions>()),
        size("sidecore_segment", size_of::<crate::RawSegment>()),
        size("sidecore_job", size_of::<crate::RawJob>()),
        size("sidecore_outcome", size_of::<crate::RawOutcome>()),
        format!(
            "_Static_assert(SIDECORE_JOBS == {}, \"jobs\");\n",
            sidecore_daemon::client::JOBS_MAX
        ),
        format!(
            "_Static_assert(SIDECORE_SEGMENTS == {}, \"segments\");\n",
            sidecore_daemon::client::JOB_SEGMENTS_MAX
        ),
    ];
    std::fs::write(&source, text.concat()).unwrap();
    let output = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(&source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
