//! Records of mounts: written, found again, cleaned up; foreign files are left alone.

use super::*;

fn record() -> Record {
    Record {
        pid: std::process::id(),
        image: PathBuf::from("/x/image.zst"),
        file_name: "sidecore-test".into(),
        fuse: Some(Device {
            major: 0,
            minor: 77,
        }),
        loop_number: None,
        device: None,
        identity: None,
        mount: Some(MountRecord {
            dir: PathBuf::from("/nowhere/at all"),
            source: "sidecore".into(),
            id: Some(u64::MAX),
            device: None,
        }),
        writable: true,
        released: false,
        fault: None,
    }
}

fn state_dir() -> (tempfile::TempDir, StateDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b");
    (dir, StateDir { path })
}

#[test]
fn a_record_reads_back_and_goes_with_its_claim() {
    let (_keep, state) = state_dir();
    let claim = state.claim(&record()).unwrap();
    let entries = state.entries().unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].record, record());
    assert!(entries[0].alive);
    claim.release();
    assert!(state.entries().unwrap().is_empty());
}

#[test]
fn two_claims_get_two_directories() {
    let (_keep, state) = state_dir();
    let first = state.claim(&record()).unwrap();
    let second = state.claim(&record()).unwrap();
    assert_ne!(first.path(), second.path());
    assert_eq!(state.entries().unwrap().len(), 2);
}

#[test]
fn only_what_no_server_holds_is_cleaned() {
    let (_keep, state) = state_dir();
    let living = state.claim(&record()).unwrap();
    let dead = state.claim(&record()).unwrap();
    let dead_path = dead.path().to_owned();
    drop(dead); // closes the lock, as the end of a process does, and leaves the directory
    std::fs::create_dir(state.path.join("17")).unwrap(); // died before it wrote a record
    state.clean_stale().unwrap();
    assert!(!dead_path.exists());
    assert!(!state.path.join("17").exists());
    assert!(living.path().join("state.json").exists());
}

#[test]
fn a_log_that_has_grown_is_emptied() {
    let (_keep, state) = state_dir();
    let claim = state.claim(&record()).unwrap();
    let log = claim.path().join("log");
    bound_log(claim.path());
    assert!(!log.exists());
    for (bytes, left) in [(LOG_BYTES_MAX, LOG_BYTES_MAX), (LOG_BYTES_MAX + 1, 0)] {
        File::create(&log).unwrap().set_len(bytes).unwrap();
        bound_log(claim.path());
        assert_eq!(log.metadata().unwrap().len(), left);
    }
}

#[test]
fn a_state_directory_that_is_not_there_is_no_error() {
    let (_keep, state) = state_dir();
    state.clean_stale().unwrap();
    assert!(state.entries().unwrap().is_empty());
}

#[test]
fn what_is_not_ours_stays() {
    let (_keep, state) = state_dir();
    drop(state.claim(&record()).unwrap());
    for name in ["mine", "5x", "-1"] {
        std::fs::create_dir_all(state.path.join(name)).unwrap();
    }
    let inside = state.path.join("9");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(inside.join("letter"), b"x").unwrap();
    state.clean_stale().unwrap();
    for name in ["mine", "5x", "-1", "9/letter"] {
        assert!(state.path.join(name).exists(), "{name}");
    }
    assert!(!state.path.join("0").exists());
}

/// Set and empty, as some service managers and cron leave it.
#[test]
fn a_relative_folder_of_the_session_is_none() {
    for (given, found) in [
        (None, None),
        (Some(""), None),
        (Some("run"), None),
        (Some("/run/user/7"), Some("/run/user/7")),
    ] {
        let folder = session_folder(given.map(OsString::from));
        assert_eq!(folder, found.map(PathBuf::from), "{given:?}");
    }
}
