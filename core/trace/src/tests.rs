//! Recordings of this process: one at a time, since there is one recorder.

#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::summary::Summary;
use crate::{Lane, Name, Recording, TraceError, Written};
use serde_json::Value;
use sidecore_bare::width::ToU64;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static OUTER: Name = Name::new("test", "outer", ["number", "$text"]);
static INNER: Name = Name::new("test", "inner", ["bytes", ""]).with_result("used");
static LATE: Name = Name::new("test", "late", ["work", ""]);
static WAIT: Name = Name::new("idle", "wait", ["", ""]);
static MARK: Name = Name::new("test", "mark", ["", ""]);
static LEVEL: Name = Name::new("test", "level", ["bytes", ""]);
static FLOW: Name = Name::new("test", "asks", ["", ""]);
static JOB: Name = Name::new("test", "job", ["number", ""]);

type Outcome = Result<Written, TraceError>;

struct Recorded {
    path: PathBuf,
    recording: Recording,
    outcomes: Receiver<Outcome>,
    _turn: MutexGuard<'static, ()>,
    _folder: tempfile::TempDir,
}

impl Recorded {
    fn begin() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.json");
        let (sender, outcomes) = channel();
        let report = Box::new(move |outcome| sender.send(outcome).unwrap());
        let recording = Recording::begin(&path, "a \"test\"", report).unwrap();
        Self {
            path,
            recording,
            outcomes,
            _turn: turn,
            _folder: folder,
        }
    }

    /// Ends it; what was reported, the file's events, and its summary.
    fn end(self) -> (Written, Vec<Value>, Summary) {
        drop(self.recording);
        let written = self.outcomes.recv().unwrap().unwrap();
        let (events, summary) = read(&self.path);
        (written, events, summary)
    }
}

fn read(path: &Path) -> (Vec<Value>, Summary) {
    let file: Value = serde_json::from_reader(File::open(path).unwrap()).unwrap();
    let events = file["traceEvents"].as_array().unwrap().clone();
    (events, Summary::read(File::open(path).unwrap()).unwrap())
}

fn named<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events
        .iter()
        .filter(|event| event["name"] == name)
        .collect()
}

fn count(summary: &Summary, name: &str) -> u64 {
    let found = summary.names.iter().find(|found| found.name == name);
    found.map_or(0, |found| found.count)
}

#[test]
fn everything_recorded_is_in_the_file_with_its_arguments() {
    let recorded = Recorded::begin();
    let text = crate::label("line\n\"one\"");
    let lane = Lane::new(|| "engine 7 (cpu 1)".to_owned());
    {
        let _outer = crate::span(&OUTER, 4, text);
        crate::flow_from(&FLOW, lane.flow(9));
        crate::instant(&MARK, 0, 0);
        crate::counter(&LEVEL, 77);
        let begun = crate::begin();
        let ended = crate::begin();
        crate::span_since(ended, &LATE, 3);
        crate::span_between(begun, ended, &WAIT, 0);
    }
    let thread = std::thread::Builder::new().name("worker".to_owned());
    let worker = thread.spawn(move || {
        let _job = lane.enter(&JOB, 5);
        crate::flow_to(&FLOW, lane.flow(9));
        let mut inner = crate::span(&INNER, 100, 0);
        inner.set_result(60);
    });
    worker.unwrap().join().unwrap();
    let (written, events, summary) = recorded.end();
    assert_eq!(written.lost, 0);
    assert_eq!(summary.process, "a \"test\"");
    assert_eq!(summary.events, written.events);
    let outer = named(&events, "outer")[0];
    assert_eq!(outer["args"]["number"], 4);
    assert_eq!(outer["args"]["text"], "line\n\"one\"");
    assert_eq!(outer["ph"], "B");
    assert_eq!(named(&events, "level")[0]["args"]["bytes"], 77);
    assert_eq!(named(&events, "late")[0]["args"]["work"], 3);
    assert_eq!(named(&events, "mark")[0]["ph"], "i");
    // The engine's track has the job; the thread's says where it was.
    let lane_track = &named(&events, "job")[0]["tid"];
    assert_eq!(&named(&events, "inner")[0]["tid"], lane_track);
    let visit = named(&events, "engine 7 (cpu 1)")[0];
    assert_ne!(&visit["tid"], lane_track);
    let result = events.iter().find(|event| event["args"]["used"] == 60);
    assert_eq!(result.unwrap()["ph"], "E");
    let flow: Vec<_> = named(&events, "asks");
    assert_eq!(flow.len(), 2);
    assert_eq!(flow[0]["id"], flow[1]["id"]);
    assert_eq!(summary.waits[0].count, 1);
    let tracks: Vec<_> = summary.tracks.iter().map(|it| it.name.as_str()).collect();
    assert!(tracks.starts_with(&["engine 7 (cpu 1)"]) && tracks.contains(&"worker"));
    assert_eq!(count(&summary, "late"), 1);
    assert_eq!(count(&summary, "wait"), 1);
}

#[test]
fn a_full_ring_keeps_the_newest_and_counts_the_rest() {
    let recorded = Recorded::begin();
    let rounds = crate::RECORDS.to_u64();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..rounds {
                let _outer = crate::span(&OUTER, number, 0);
                let _inner = crate::span(&INNER, number, 0);
            }
        });
    });
    let (written, events, summary) = recorded.end();
    // Four records a round, of which one less than fit are there.
    assert_eq!(written.lost, 3 * rounds + 1);
    assert_eq!(summary.events_lost, written.lost);
    let lost = named(&events, "events lost");
    assert_eq!(lost[0]["args"]["events"], written.lost);
    let outer = named(&events, "outer");
    let numbers: Vec<_> = outer
        .iter()
        .map(|it| it["args"]["number"].as_u64())
        .collect();
    let kept = numbers.len().to_u64();
    assert_eq!(kept, rounds / 4 - 1);
    let newest: Vec<_> = (rounds - kept..rounds).map(Some).collect();
    assert_eq!(numbers, newest);
}

#[test]
fn spans_of_fibers_end_where_these_wait_and_go_on_later() {
    let recorded = Recorded::begin();
    crate::resume(1);
    let first = crate::span(&OUTER, 1, 0);
    crate::suspend();
    crate::resume(2);
    let second = crate::span(&OUTER, 2, 0);
    let inner = crate::span(&INNER, 3, 0);
    crate::suspend();
    crate::resume(1);
    drop(first);
    crate::suspend();
    crate::resume(2);
    drop(inner);
    drop(second);
    crate::suspend();
    let (_, events, summary) = recorded.end();
    assert_eq!(count(&summary, "task"), 4);
    assert_eq!(count(&summary, "outer"), 4);
    assert_eq!(count(&summary, "inner"), 2);
    let goes_on = events.iter().filter(|it| it["args"]["goes_on"] == true);
    assert_eq!(goes_on.count(), 3);
    assert!(summary.tracks.iter().all(|track| track.spans == 10));
}

#[test]
fn a_span_that_is_open_is_in_a_file_that_a_signal_asks_for() {
    let recorded = Recorded::begin();
    let outer = crate::span(&OUTER, 8, 0);
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR2)
        .unwrap();
    let minute = Duration::from_secs(60);
    let written = recorded.outcomes.recv_timeout(minute).unwrap().unwrap();
    assert!(written.events >= 2);
    let (_, summary) = read(&recorded.path);
    assert!(
        summary
            .longest
            .iter()
            .any(|it| it.name == "outer" && it.open)
    );
    drop(outer);
    let (_, _, summary) = recorded.end();
    assert!(summary.longest.iter().all(|it| !it.open));
}

#[test]
fn threads_that_ended_are_there_and_many_threads_are_bounded() {
    let recorded = Recorded::begin();
    let threads = crate::THREADS_MAX * 2;
    for number in 0..threads {
        let thread = std::thread::Builder::new().name(format!("short {number}"));
        let work = move || drop(crate::span(&OUTER, number.to_u64(), 0));
        thread.spawn(work).unwrap().join().unwrap();
    }
    let (_, events, summary) = recorded.end();
    let outer = named(&events, "outer");
    assert!(outer.len() <= crate::THREADS_MAX && outer.len() > crate::THREADS_MAX / 2);
    let last = threads - 1;
    assert_eq!(
        outer
            .iter()
            .filter(|it| it["args"]["number"] == last)
            .count(),
        1
    );
    let name = format!("short {last}");
    assert!(summary.tracks.iter().any(|track| track.name == name));
}

#[test]
fn a_recording_replaces_one_and_nothing_else() {
    let recorded = Recorded::begin();
    let twice = Recording::begin(&recorded.path.with_extension("2"), "", Box::new(drop));
    assert!(matches!(twice, Err(TraceError::Twice)));
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("disk.img");
    std::fs::write(&foreign, "bytes of a disk").unwrap();
    let begun = Recording::begin(&foreign, "", Box::new(drop));
    assert!(matches!(begun, Err(TraceError::Foreign { .. })));
    assert_eq!(std::fs::read(&foreign).unwrap(), b"bytes of a disk");
    let begun = Recording::begin(folder.path(), "", Box::new(drop));
    assert!(begun.is_err());
    let begun = Recording::begin(Path::new("-"), "", Box::new(drop));
    assert!(matches!(begun, Err(TraceError::StandardOutput)));
    let missing = folder.path().join("none/events.json");
    let begun = Recording::begin(&missing, "", Box::new(drop));
    assert!(matches!(begun, Err(TraceError::Write { .. })));
    // The next recording may have the first one's file.
    crate::write_now();
    recorded.outcomes.recv().unwrap().unwrap();
    let path = recorded.path.clone();
    let folder = recorded._folder;
    drop(recorded.recording);
    let again = Recording::begin(&path, "", Box::new(drop)).unwrap();
    drop(again);
    drop(folder);
}

#[test]
fn a_file_that_cannot_be_written_is_reported_and_recording_goes_on() {
    let recorded = Recorded::begin();
    let folder = recorded.path.parent().unwrap().to_owned();
    // Its folder is gone: as full or read-only as a folder gets, for root as well.
    std::fs::remove_dir(&folder).unwrap();
    let span = crate::span(&OUTER, 1, 0);
    crate::write_now();
    let failed = recorded.outcomes.recv().unwrap().unwrap_err();
    assert!(failed.to_string().contains("events.json"), "{failed}");
    assert!(crate::is_on());
    drop(span);
}

#[test]
fn nothing_is_recorded_while_it_is_off() {
    let recorded = Recorded::begin();
    let begun = Recording::begin(&recorded.path, "", Box::new(drop));
    assert!(begun.is_err());
    let (_, _, summary) = {
        let lane = Lane::default();
        drop(lane.enter(&JOB, 1));
        recorded.end()
    };
    assert_eq!(count(&summary, "job"), 1);
    let lane = Lane::new(|| unreachable!("no name is wanted"));
    assert_eq!(lane, Lane::default());
    assert_eq!(crate::label("text"), 0);
    drop(crate::span(&OUTER, 1, 0));
}
