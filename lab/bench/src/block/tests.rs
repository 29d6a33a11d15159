//! Tests of the bench's groups, programs and inputs.

use super::tools::Runner;
use super::{BenchError, Group, corpus};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn runner(base: &tempfile::TempDir) -> Runner {
    Runner::new(base.path(), Arc::default()).unwrap()
}

#[test]
fn groups_are_known_by_their_names() {
    for name in Group::names() {
        assert_eq!(name.parse::<Group>().unwrap().name, name);
    }
    assert!(
        "everything"
            .parse::<Group>()
            .unwrap_err()
            .contains("stages")
    );
}

#[test]
fn a_runner_removes_its_directory_and_ends_its_servers() {
    let base = tempfile::tempdir().unwrap();
    let directory;
    let pid;
    {
        let runner = runner(&base);
        directory = runner.directory().to_owned();
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$; exec sleep 600"]);
        let server = runner
            .serve(&mut command, None, |said| said.contains('\n'))
            .unwrap();
        pid = server.said().trim().to_owned();
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
        drop(server);
    }
    assert!(!directory.exists());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_failing_program_is_an_error_with_its_last_words() {
    let base = tempfile::tempdir().unwrap();
    let runner = runner(&base);
    let mut command = Command::new("sh");
    let error = runner
        .time(command.args(["-c", "echo oh dear >&2; exit 3"]))
        .unwrap_err();
    assert!(error.to_string().contains("oh dear"), "{error}");
    let mut command = Command::new("sh");
    let error = runner
        .serve(command.args(["-c", "exit 4"]), None, |_| false)
        .err()
        .unwrap();
    assert!(error.to_string().contains("exit status: 4"), "{error}");
}

#[test]
fn a_cancelled_run_stops_waiting() {
    let base = tempfile::tempdir().unwrap();
    let cancel = Arc::new(AtomicBool::new(false));
    let runner = Runner::new(base.path(), cancel.clone()).unwrap();
    cancel.store(true, Ordering::Relaxed);
    let error = runner.time(Command::new("sleep").arg("600")).unwrap_err();
    assert!(matches!(error, BenchError::Interrupted));
}

#[test]
fn a_tool_that_is_missing_is_no_failure() {
    let error = super::tools::tool("no-such-program").unwrap_err();
    assert!(matches!(error, BenchError::Missing(_)), "{error}");
}

#[test]
fn the_same_machine_gives_the_same_tree() {
    let base = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let directory = base.path().join(name);
        corpus::large(&directory, 4 << 20, &AtomicBool::new(false)).unwrap()
    };
    let (one, two) = (make("one"), make("two"));
    assert!(one.bytes > 3 << 20, "{one:?}");
    assert!(one.bytes <= 4 << 20, "{one:?}");
    let mut command = Command::new("diff");
    let same = command
        .arg("-r")
        .arg(&one.directory)
        .arg(&two.directory)
        .status()
        .unwrap();
    assert!(same.success());
}
