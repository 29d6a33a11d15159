//! Records of threads become tracks of events: spans properly nested, times that never go back.
//!
//! Why here: rings hold what threads wrote, in their order, without what was overwritten. A viewer
//! wants a track for each thread and each lane, on which every span that begins also ends.
//!
//! Must stay true: any records give valid tracks. An end without its beginning, which was
//! overwritten, is dropped. A span without its end is one that was still open: it ends with the
//! recording and says so. Spans of a fiber end where the fiber is suspended and go on where it is
//! resumed. Pure: no clock, no I/O.

use crate::recorder::Kind;
use crate::registry::ThreadRecords;
use crate::ring::Words;
use sidecore_bare::width::ToU64;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Lanes' numbers among the threads: above the greatest that the system gives.
pub(crate) const LANES: u64 = 10_000_000;

/// Something on a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) cycles: u64,
    pub(crate) what: What,
}

/// Kind of an event. Names are numbers of the registry's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A span begins.
    Begin {
        title: Title,
        arguments: [u64; 2],
        /// It was interrupted, by a wait of its fiber.
        goes_on: bool,
    },
    /// The innermost span ends.
    End {
        name: u32,
        result: u64,
        how: How,
    },
    Instant {
        name: u32,
        arguments: [u64; 2],
    },
    Counter {
        name: u32,
        value: u64,
    },
    /// A flow begins in the innermost span.
    FlowFrom {
        name: u32,
        number: u64,
    },
    /// A flow ends in the innermost span.
    FlowTo {
        name: u32,
        number: u64,
    },
    /// So many events before this one were overwritten.
    Lost(u64),
}

/// The text of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Title {
    Name(u32),
    /// That of a lane, on the track of the thread that is in it.
    Lane(u32),
}

/// The manner in which a span ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// By itself.
    Done,
    /// Its fiber waits; it goes on later.
    Waits,
    /// The recording ended first, or its end was lost.
    Open,
}

/// The tracks of one recording.
#[derive(Debug, Default)]
pub(crate) struct Tracks {
    /// Of each thread, in the threads' order.
    pub(crate) threads: Vec<Vec<Event>>,
    /// Of each lane that was entered, by its number.
    pub(crate) lanes: BTreeMap<u32, Vec<Event>>,
}

/// Sorts the records of all threads into tracks; the recording ends at `end_cycles`.
pub(crate) fn tracks(threads: &[ThreadRecords], end_cycles: u64) -> Tracks {
    let mut tracks = Tracks::default();
    let mut visits = Vec::new();
    for thread in threads {
        let mut walk = Walk::default();
        // They were overwritten, so they were before the first one that is there.
        if thread.lost > 0 {
            let cycles = thread.records.first().map_or(end_cycles, |first| first[0]);
            walk.put(cycles, What::Lost(thread.lost));
        }
        for record in in_order(&thread.records) {
            walk.take(record);
        }
        walk.end(end_cycles);
        tracks.threads.push(walk.track);
        visits.append(&mut walk.visits);
    }
    // One thread at a time is in a lane.
    visits.sort_by_key(|visit| visit.events.first().map_or(0, |event| event.cycles));
    for visit in visits {
        let track = tracks.lanes.entry(visit.lane).or_default();
        track.extend(visit.events);
    }
    let all = tracks.threads.iter_mut().chain(tracks.lanes.values_mut());
    all.for_each(|track| make_monotonic(track));
    drop_single_ends(&mut tracks);
    tracks
}

/// The clocks of two cores may differ by some cycles, as seen by a lane.
fn make_monotonic(track: &mut [Event]) {
    let mut latest = 0;
    for event in track {
        latest = latest.max(event.cycles);
        event.cycles = latest;
    }
}

/// A flow that has lost an end leads nowhere.
fn drop_single_ends(tracks: &mut Tracks) {
    let (mut from, mut to) = (HashSet::new(), HashSet::new());
    let all = || tracks.threads.iter().chain(tracks.lanes.values());
    for event in all().flatten() {
        match event.what {
            What::FlowFrom { name, number } => from.insert((name, number)),
            What::FlowTo { name, number } => to.insert((name, number)),
            _ => false,
        };
    }
    let is_whole = |event: &Event| match event.what {
        What::FlowFrom { name, number } => to.contains(&(name, number)),
        What::FlowTo { name, number } => from.contains(&(name, number)),
        _ => true,
    };
    for track in tracks.threads.iter_mut().chain(tracks.lanes.values_mut()) {
        track.retain(is_whole);
    }
}

/// A record, taken apart.
#[derive(Debug, Clone, Copy)]
struct Record {
    cycles: u64,
    kind: Kind,
    name: u32,
    arguments: [u64; 2],
}

/// The records in the order of time. A whole span was written at its end and becomes two records.
fn in_order(records: &[Words]) -> Vec<Record> {
    let mut all: Vec<(u64, u64, Record)> = Vec::with_capacity(records.len());
    for &[cycles, what, first, second] in records {
        let Some((kind, name)) = Kind::of(what) else {
            continue;
        };
        let record = Record {
            cycles,
            kind,
            name,
            arguments: [first, second],
        };
        if kind != Kind::Whole {
            all.push((cycles, u64::MAX, record));
            continue;
        }
        let begin = Record {
            cycles: first.min(cycles),
            kind: Kind::Begin,
            arguments: [second, 0],
            ..record
        };
        // Of two that began at the same time, the longer one is around the other.
        all.push((begin.cycles, u64::MAX - cycles, begin));
        let end = Record {
            kind: Kind::End,
            arguments: [0, 0],
            ..record
        };
        all.push((cycles, u64::MAX, end));
    }
    // Stable: others of the same time stay in the order in which they were written.
    all.sort_by_key(|&(cycles, rank, _)| (cycles, rank));
    all.into_iter().map(|(.., record)| record).collect()
}

/// A span that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    name: u32,
    arguments: [u64; 2],
    /// The lane that it entered.
    enters: Option<u32>,
}

/// Events of one stay of a thread in a lane.
#[derive(Debug)]
struct Visit {
    lane: u32,
    events: Vec<Event>,
}

/// One thread's records, as they are sorted.
#[derive(Debug, Default)]
struct Walk {
    track: Vec<Event>,
    /// Stays in lanes; those that go on are among the last.
    visits: Vec<Visit>,
    /// Of these, the stays that go on, the innermost last.
    inside: Vec<usize>,
    /// Spans that are open, of the fiber that runs or of the thread itself.
    open: Vec<Open>,
    fiber: Option<u64>,
    /// Spans that are open in suspended fibers, and in the thread below a fiber.
    waiting: HashMap<Option<u64>, Vec<Open>>,
}

impl Walk {
    fn put(&mut self, cycles: u64, what: What) {
        let track = match self.inside.last() {
            Some(&visit) => &mut self.visits[visit].events,
            None => &mut self.track,
        };
        track.push(Event { cycles, what });
    }

    fn take(&mut self, record: Record) {
        let Record {
            cycles,
            kind,
            name,
            arguments,
        } = record;
        let [first, second] = arguments;
        match kind {
            Kind::Begin | Kind::Whole => self.begin(cycles, name, arguments, None),
            Kind::Enter => {
                let lane = u32::try_from(first).ok();
                self.begin(cycles, name, [second, 0], lane);
            }
            Kind::End => self.end_named(cycles, name, first),
            Kind::Instant => self.put(cycles, What::Instant { name, arguments }),
            Kind::Counter => self.put(cycles, What::Counter { name, value: first }),
            // A flow belongs to a span.
            Kind::FlowFrom | Kind::FlowTo if self.open.is_empty() => {}
            Kind::FlowFrom => self.put(
                cycles,
                What::FlowFrom {
                    name,
                    number: first,
                },
            ),
            Kind::FlowTo => self.put(
                cycles,
                What::FlowTo {
                    name,
                    number: first,
                },
            ),
            Kind::Resume => self.resume(cycles, name, first),
            Kind::Suspend => self.suspend(cycles),
        }
    }

    fn begin(&mut self, cycles: u64, name: u32, arguments: [u64; 2], enters: Option<u32>) {
        let open = Open {
            name,
            arguments,
            enters,
        };
        self.show(cycles, open, false);
        self.open.push(open);
    }

    fn show(&mut self, cycles: u64, open: Open, goes_on: bool) {
        if let Some(lane) = open.enters {
            let title = Title::Lane(lane);
            let what = What::Begin {
                title,
                arguments: [0; 2],
                goes_on,
            };
            self.put(cycles, what);
            self.inside.push(self.visits.len());
            let events = Vec::new();
            self.visits.push(Visit { lane, events });
        }
        let what = What::Begin {
            title: Title::Name(open.name),
            arguments: open.arguments,
            goes_on,
        };
        self.put(cycles, what);
    }

    fn hide(&mut self, cycles: u64, open: Open, result: u64, how: How) {
        let name = open.name;
        self.put(cycles, What::End { name, result, how });
        if open.enters.is_some() {
            self.inside.pop();
            let result = 0;
            self.put(cycles, What::End { name, result, how });
        }
    }

    /// Ends the last span of this name, and those within it, whose ends were lost.
    fn end_named(&mut self, cycles: u64, name: u32, result: u64) {
        let Some(place) = self.open.iter().rposition(|open| open.name == name) else {
            return; // Its beginning was lost.
        };
        while self.open.len() > place + 1 {
            if let Some(open) = self.open.pop() {
                self.hide(cycles, open, 0, How::Open);
            }
        }
        if let Some(open) = self.open.pop() {
            self.hide(cycles, open, result, How::Done);
        }
    }

    fn resume(&mut self, cycles: u64, name: u32, fiber: u64) {
        if self.fiber.is_some() {
            // The fiber's suspension is not there: it ended with the recording of others.
            self.suspend(cycles);
        }
        let thread = std::mem::take(&mut self.open);
        // The thread's own spans wait below those of the fiber.
        self.waiting.insert(None, thread);
        self.fiber = Some(fiber);
        self.begin(cycles, name, [fiber, 0], None);
        for open in self.waiting.remove(&Some(fiber)).unwrap_or_default() {
            self.show(cycles, open, true);
            self.open.push(open);
        }
    }

    fn suspend(&mut self, cycles: u64) {
        // Lost: all before this was the fiber's, if anything was.
        let Some(fiber) = self.fiber.take() else {
            self.close_all(cycles, How::Open);
            return;
        };
        // The first span is the task itself, which ends below.
        for place in (1..self.open.len()).rev() {
            self.hide(cycles, self.open[place], 0, How::Waits);
        }
        let mut spans = std::mem::take(&mut self.open);
        if !spans.is_empty() {
            let task = spans.remove(0);
            self.hide(cycles, task, 0, How::Done);
        }
        if !spans.is_empty() {
            self.waiting.insert(Some(fiber), spans);
        }
        self.open = self.waiting.remove(&None).unwrap_or_default();
    }

    fn close_all(&mut self, cycles: u64, how: How) {
        while let Some(open) = self.open.pop() {
            self.hide(cycles, open, 0, how);
        }
    }

    /// The recording ends.
    fn end(&mut self, cycles: u64) {
        self.close_all(cycles, How::Open);
        // Then those of the thread below its fiber.
        self.open = self.waiting.remove(&None).unwrap_or_default();
        self.close_all(cycles, How::Open);
    }
}

impl Tracks {
    /// Events on all tracks.
    pub(crate) fn len(&self) -> u64 {
        let all = self.threads.iter().chain(self.lanes.values());
        all.map(|track| track.len().to_u64()).sum()
    }

    /// Tracks with anything on them.
    pub(crate) fn count(&self) -> u64 {
        let all = self.threads.iter().chain(self.lanes.values());
        all.filter(|track| !track.is_empty()).count().to_u64()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Spans match and times never go back.
    fn check(track: &[Event]) -> Result<(), TestCaseError> {
        let (mut latest, mut open) = (0, Vec::new());
        for event in track {
            prop_assert!(event.cycles >= latest);
            latest = event.cycles;
            match event.what {
                What::Begin { title, .. } => open.push(title),
                What::End { name, .. } => match open.pop() {
                    Some(Title::Name(begun)) => prop_assert_eq!(begun, name),
                    Some(Title::Lane(_)) => {}
                    None => prop_assert!(false, "an end without a beginning"),
                },
                What::FlowFrom { .. } | What::FlowTo { .. } => prop_assert!(!open.is_empty()),
                _ => {}
            }
        }
        prop_assert!(open.is_empty());
        Ok(())
    }

    /// Records as a ring may hold them, or as nothing should have written them.
    fn records() -> impl Strategy<Value = Vec<Words>> {
        let record = (0_u64..4, any::<u8>(), 1_u64..4, 0_u64..40, 0_u64..4);
        proptest::collection::vec(record, 0..200).prop_map(|records| {
            let mut cycles = 1_000;
            let words = records.into_iter().map(|(gap, kind, name, first, second)| {
                cycles += gap;
                // A whole span began a little earlier.
                let first = match kind % 11 {
                    3 => cycles - first,
                    _ => first % 4,
                };
                [cycles, name << 8 | u64::from(kind % 11), first, second]
            });
            words.collect()
        })
    }

    proptest! {
        #[test]
        fn any_records_give_valid_tracks(
            threads in proptest::collection::vec((0_u64..3, records()), 1..4),
        ) {
            let threads: Vec<_> = threads
                .into_iter()
                .map(|(lost, records)| ThreadRecords { lost, records, ..Default::default() })
                .collect();
            let tracks = tracks(&threads, 5_000);
            prop_assert_eq!(tracks.threads.len(), threads.len());
            for track in tracks.threads.iter().chain(tracks.lanes.values()) {
                check(track)?;
            }
        }
    }

    fn thread(records: &[Words]) -> ThreadRecords {
        ThreadRecords {
            records: records.to_vec(),
            ..Default::default()
        }
    }

    const BEGIN: u64 = Kind::Begin as u64;
    const ENTER: u64 = Kind::Enter as u64;
    const END: u64 = Kind::End as u64;
    const WHOLE: u64 = Kind::Whole as u64;

    #[test]
    fn a_whole_span_is_around_what_was_recorded_since() {
        let (outer, inner) = (1 << 8, 2 << 8);
        let records = [
            [20, inner | BEGIN, 7, 0],
            [30, inner | END, 0, 0],
            [40, inner | WHOLE, 10, 1],
            [50, outer | WHOLE, 10, 2],
        ];
        let tracks = tracks(&[thread(&records)], 100);
        let names: Vec<_> = tracks.threads[0]
            .iter()
            .map(|event| match event.what {
                What::Begin {
                    title: Title::Name(name),
                    ..
                } => (event.cycles, 'B', name),
                What::End { name, .. } => (event.cycles, 'E', name),
                _ => (event.cycles, '?', 0),
            })
            .collect();
        let wanted = [
            (10, 'B', 1),
            (10, 'B', 2),
            (20, 'B', 2),
            (30, 'E', 2),
            (40, 'E', 2),
            (50, 'E', 1),
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn a_lane_has_the_visits_of_all_threads_in_turn() {
        let name = 1 << 8;
        let one = [[10, name | ENTER, 3, 1], [20, name | END, 0, 0]];
        // The other core's counter is a little behind.
        let two = [[19, name | ENTER, 3, 2], [40, name | END, 0, 0]];
        let tracks = tracks(&[thread(&two), thread(&one)], 100);
        let lane = &tracks.lanes[&3];
        let times: Vec<_> = lane.iter().map(|event| event.cycles).collect();
        assert_eq!(times, [10, 20, 20, 40]);
        assert!(tracks.threads.iter().all(|track| track.len() == 2));
    }

    #[test]
    fn what_has_lost_its_beginning_is_left_out_and_what_is_open_says_so() {
        let name = 1 << 8;
        let records = [[10, name | END, 5, 0], [20, name | BEGIN, 6, 0]];
        let tracks = tracks(&[thread(&records)], 90);
        let track = &tracks.threads[0];
        assert_eq!(track.len(), 2);
        let end = What::End {
            name: 1,
            result: 0,
            how: How::Open,
        };
        assert_eq!(track[1].what, end);
        assert_eq!(track[1].cycles, 90);
    }
}
