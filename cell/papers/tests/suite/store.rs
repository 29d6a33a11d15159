//! Kept results: used again when they should be, never half.

use crate::{kept, machine};
use serde_json::json;
use sidecore_papers::Store;
use sidecore_papers::results::Now;

fn now() -> Now {
    Now {
        program: "a test".into(),
        machine: machine(),
        unix_s: 1_790_000_100,
        age_s_max: 3600,
    }
}

#[test]
fn the_same_program_on_the_same_machine_uses_a_result_again() {
    let kept = kept("tlb", json!({}));
    assert_eq!(kept.usable(&now()), Ok(()));
    let other = |change: &dyn Fn(&mut Now)| {
        let mut now = now();
        change(&mut now);
        kept.usable(&now).unwrap_err()
    };
    assert!(other(&|now| now.program.push('2')).contains("version"));
    assert!(other(&|now| now.machine.cores = 4).contains("machine"));
    assert!(other(&|now| now.machine.kernel.push('x')).contains("machine"));
    assert!(other(&|now| now.unix_s += 3600).contains("old"));
    assert!(other(&|now| now.unix_s = 5).contains("future"));
    // Load and commit are of the moment: they are said, not compared.
    let mut later = now();
    later.machine.load_start = "9 9 9".into();
    assert_eq!(kept.usable(&later), Ok(()));
}

#[test]
fn what_is_kept_comes_back_and_what_is_damaged_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("a/b")).unwrap();
    assert_eq!(store.load("tlb", false), None);
    let result = kept("tlb", json!({ "rows": [1.5, "x"] }));
    store.save(&result).unwrap();
    assert_eq!(store.load("tlb", false), Some(result));
    assert_eq!(store.load("tlb", true), None, "a quick run is kept apart");
    let path = store.directory().join("tlb.full.json");
    let whole = std::fs::read(&path).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", b"[]", b"\xff\xfe"] {
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(store.load("tlb", false), None);
    }
    // Under another part's name the file is not a result.
    std::fs::write(store.directory().join("net.full.json"), &whole).unwrap();
    assert_eq!(store.load("net", false), None);
}

#[test]
fn one_run_measures_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let first = Store::open(directory.path()).unwrap();
    let second = Store::open(directory.path()).unwrap();
    let lock = first.lock().unwrap().unwrap();
    assert!(second.lock().unwrap().is_none());
    drop(lock);
    assert!(second.lock().unwrap().is_some());
}

#[test]
fn writers_at_once_leave_one_whole_result() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..50 {
                    let rows = vec![writer; 1000];
                    store.save(&kept("tlb", json!({ "rows": rows }))).unwrap();
                    let seen = store.load("tlb", false).expect("always whole");
                    let rows = seen.report["rows"].as_array().unwrap();
                    assert!(rows.len() == 1000 && rows.iter().all(|row| *row == rows[0]));
                }
            });
        }
    });
    let names = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names, 1, "nothing is left beside it");
}

#[test]
fn a_place_that_cannot_be_written_is_said() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Store::open(file.path()).unwrap_err().to_string();
    assert!(error.contains("--state"), "{error}");
}
