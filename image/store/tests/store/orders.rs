//! Steps of writers, collectors and crashes, in every order that is drawn.
//!
//! Must stay true: a run is repeated by its seed; the clock is the test's.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use super::{add, add_to, bytes_of, is_whole, read, store};
use sidecore_block::source::MemorySource;
use sidecore_random::Random;
use sidecore_store::{Domain, Session, Store, StoreError, Stored};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Steps of a writer, a remover and a collector; each ends at the first failure, as a process does.
fn work(store: &Store, new: &[u8]) -> Result<(), StoreError> {
    add_to(store, &Domain::shared(), "new", new, true)?;
    store.remove("old")?;
    store.condemn()?;
    add_to(store, &Domain::shared(), "kept", new, true)?;
    store.sweep(Duration::ZERO)?;
    store.compact(&Arc::new(Domain::shared()), 101, &mut |_| ())?;
    store.collect(Duration::ZERO)?;
    Ok(())
}

#[test]
fn a_crash_at_any_operation_loses_nothing() {
    let mut random = Random::new(5);
    let kept = bytes_of(&mut random, 20_000);
    let old = [&kept[..8_000], &bytes_of(&mut random, 12_000)].concat();
    let new = [&old[4_000..], &bytes_of(&mut random, 4_000)].concat();
    // The operation takes effect, and its caller dies. One that dies before an operation leaves
    // what one leaves that dies after the operation before.
    for fails_after in 1.. {
        let (memory, store, clock) = store();
        add(&store, "kept", &kept);
        add(&store, "old", &old);
        let done = memory.done.load(Ordering::Relaxed);
        memory.fails_at.store(done + fails_after, Ordering::Relaxed);
        let worked = work(&store, &new);
        memory.fails_at.store(0, Ordering::Relaxed);
        assert!(is_whole(&store).is_empty(), "operation {fails_after}");
        for name in store.names().unwrap() {
            let found = read(&store, &name);
            let known: &[&[u8]] = match &*name {
                "kept" => &[&kept[..], &new[..]],
                "old" => &[&old[..]],
                _ => &[&new[..]],
            };
            assert!(known.contains(&&*found), "{name}: operation {fails_after}");
        }
        // The next writer and the next collections go on with what was left.
        clock.fetch_add(3_600_000, Ordering::Relaxed);
        work_again(&store, &new);
        assert_eq!(memory.keys().len(), 5, "{:?}", memory.keys());
        if worked.is_ok() {
            assert!(fails_after > 30, "{fails_after} operations");
            break;
        }
    }
}

/// Leaves one version, in one pack.
fn work_again(store: &Store, new: &[u8]) {
    for name in store.names().unwrap() {
        store.remove(&name).unwrap();
    }
    store.collect(Duration::ZERO).unwrap();
    add(store, "last", new);
    store.collect(Duration::ZERO).unwrap();
    assert!(read(store, "last") == new);
}

/// A writer of the model: its session, what it has stored, and whether its lease may have ended.
struct Writer<'s> {
    session: Session<'s>,
    stored: Option<(Stored, usize)>,
    may_be_lost: bool,
}

/// A store, and what it has to hold.
struct Model<'s> {
    store: &'s Store,
    domain: &'s Domain,
    clock: &'s AtomicU64,
    images: &'s [Vec<u8>],
    random: Random,
    writers: Vec<Writer<'s>>,
    names: BTreeMap<String, usize>,
    published: u64,
    lost: u64,
}

impl Model<'_> {
    fn step(&mut self) {
        let writer = self.random.index(self.writers.len());
        let has_writer = !self.writers.is_empty();
        match self.random.below(17) {
            0..3 if self.writers.len() < 3 => self.begin(),
            3..6 if has_writer => self.store(writer),
            6..9 if has_writer => self.publish(writer),
            9 if has_writer => self.writers.swap_remove(writer).session.die(),
            10 if has_writer => drop(self.writers.swap_remove(writer)),
            11 => self.remove(),
            12..14 => {
                self.store.condemn().unwrap();
            }
            14 => {
                let domain = Arc::new(Domain::shared());
                self.store.compact(&domain, 90, &mut |_| ()).unwrap();
                self.check();
            }
            15 => {
                let swept = self.store.sweep(Duration::ZERO).unwrap();
                let live = self.writers.iter().filter(|it| !it.may_be_lost).count();
                assert!(swept.leases >= live as u64, "{swept:?} {live}");
                self.check();
            }
            _ => {
                let is_long = self.random.below(2) == 0;
                let step_ms = if is_long { 20 * 60_000 } else { 1000 };
                self.clock.fetch_add(step_ms, Ordering::Relaxed);
                self.writers
                    .iter_mut()
                    .for_each(|it| it.may_be_lost |= is_long);
            }
        }
    }

    fn begin(&mut self) {
        let session = Session::begin(self.store, self.domain, 1, 1).unwrap();
        self.writers.push(Writer {
            session,
            stored: None,
            may_be_lost: false,
        });
    }

    fn store(&mut self, writer: usize) {
        let image = self.random.index(self.images.len());
        let source = MemorySource::new(self.images[image].clone());
        let writer = &mut self.writers[writer];
        match writer.session.store(&source, &mut |_| ()) {
            Ok(stored) => writer.stored = Some((stored, image)),
            Err(StoreError::LeaseLost) => assert!(writer.may_be_lost),
            Err(error) => panic!("{error}"),
        }
    }

    fn publish(&mut self, writer: usize) {
        let mut writer = self.writers.swap_remove(writer);
        let Some((stored, image)) = writer.stored.take() else {
            return;
        };
        let name = format!("n{}", self.random.below(4));
        match writer.session.publish(&name, &stored, true) {
            Ok(_) => {
                self.published += 1;
                self.names.insert(name, image);
            }
            Err(StoreError::LeaseLost) => {
                self.lost += 1;
                assert!(writer.may_be_lost);
            }
            Err(error) => panic!("{error}"),
        }
        self.check();
    }

    fn remove(&mut self) {
        let name = format!("n{}", self.random.below(4));
        match self.names.remove(&name) {
            Some(_) => self.store.remove(&name).unwrap(),
            None => assert!(matches!(
                self.store.remove(&name),
                Err(StoreError::Unknown(_))
            )),
        }
    }

    /// Every name reads as what was published last under it.
    fn check(&self) {
        let names: Vec<_> = self.names.keys().cloned().collect();
        assert_eq!(self.store.names().unwrap(), names);
        for (name, image) in &self.names {
            assert!(read(self.store, name) == self.images[*image], "{name}");
        }
    }
}

#[test]
fn writers_collectors_and_crashes_in_any_order_keep_what_is_named() {
    let mut random = Random::new(6);
    let parts: Vec<_> = (0..8).map(|_| bytes_of(&mut random, 8_000)).collect();
    let image = |_| {
        let pick = |_| parts[random.index(parts.len())].clone();
        (0..3).map(pick).collect::<Vec<_>>().concat()
    };
    let images: Vec<Vec<u8>> = (0..6).map(image).collect();
    let (mut published, mut lost) = (0, 0);
    for seed in 0..24 {
        let (memory, store, clock) = store();
        let domain = Domain::shared();
        let mut model = Model {
            store: &store,
            domain: &domain,
            clock: &clock,
            images: &images,
            random: Random::new(seed),
            writers: Vec::new(),
            names: BTreeMap::new(),
            published: 0,
            lost: 0,
        };
        for _ in 0..80 {
            model.step();
        }
        model.writers.clear();
        model.check();
        // Without writers, all that no name needs goes.
        clock.fetch_add(3_600_000, Ordering::Relaxed);
        store.collect(Duration::ZERO).unwrap();
        model.check();
        let manifests = |keys: &[String]| keys.iter().filter(|it| it.contains("manif")).count();
        assert_eq!(manifests(&memory.keys()), model.names.len(), "seed {seed}");
        (published, lost) = (published + model.published, lost + model.lost);
        for name in store.names().unwrap() {
            store.remove(&name).unwrap();
        }
        store.collect(Duration::ZERO).unwrap();
        assert_eq!(memory.keys(), ["condemned", "store"], "seed {seed}");
    }
    assert!(published > 30 && lost > 0, "{published} {lost}");
}

#[test]
fn a_long_list_is_revived_in_few_writes() {
    let (memory, store, _) = store();
    let mut random = Random::new(15);
    let images: Vec<_> = (0..32).map(|_| bytes_of(&mut random, 3_000)).collect();
    for image in &images {
        add(&store, "old", image);
    }
    store.remove("old").unwrap();
    assert_eq!(store.condemn().unwrap(), 64);
    let domain = Domain::shared();
    let mut session = Session::begin(&store, &domain, 1, 1).unwrap();
    let done = memory.done.load(Ordering::Relaxed);
    let stored: Vec<_> = (images.iter())
        .map(|image| {
            let source = MemorySource::new(image.clone());
            session.store(&source, &mut |_| ()).unwrap()
        })
        .collect();
    // One look at each pack, and four operations for each change of the list.
    let done = memory.done.load(Ordering::Relaxed) - done;
    assert!((32..80).contains(&done), "{done} operations");
    store.sweep(Duration::ZERO).unwrap();
    for (number, stored) in stored.iter().enumerate() {
        let name = format!("new{number}");
        let added = session.publish(&name, stored, false).unwrap();
        assert_eq!(added.new_chunks, 0);
    }
    drop(session);
    store.collect(Duration::ZERO).unwrap();
    for (number, image) in images.iter().enumerate() {
        assert!(read(&store, &format!("new{number}")) == *image);
    }
}

#[test]
fn a_pack_that_could_not_be_written_is_not_relied_on() {
    let (memory, store, _) = store();
    let bytes = bytes_of(&mut Random::new(14), 30_000);
    let domain = Domain::shared();
    let mut session = Session::begin(&store, &domain, 1, 1).unwrap();
    let source = MemorySource::new(bytes.clone());
    // As a disk that is full for a while.
    let done = memory.done.load(Ordering::Relaxed);
    memory.fails_at.store(done + 1, Ordering::Relaxed);
    assert!(session.store(&source, &mut |_| ()).is_err());
    memory.fails_at.store(0, Ordering::Relaxed);
    let stored = session.store(&source, &mut |_| ()).unwrap();
    let added = session.publish("disk", &stored, false).unwrap();
    assert_eq!(added.new_chunks, added.chunks);
    assert!(read(&store, "disk") == bytes && is_whole(&store).is_empty());
}

#[test]
fn a_lease_of_a_clock_far_ahead_is_given_up() {
    let (_, store, clock) = store();
    let domain = Domain::shared();
    let year_ms = 365 * 24 * 3_600_000;
    clock.fetch_add(year_ms, Ordering::Relaxed);
    let mut session = Session::begin(&store, &domain, 1, 1).unwrap();
    let source = MemorySource::new(vec![1; 5000]);
    let stored = session.store(&source, &mut |_| ()).unwrap();
    clock.fetch_sub(year_ms, Ordering::Relaxed);
    assert_eq!(store.sweep(Duration::ZERO).unwrap().leases, 0);
    let refused = session.publish("a", &stored, false).unwrap_err();
    assert!(matches!(refused, StoreError::LeaseLost), "{refused}");
}

#[test]
fn a_condemned_pack_is_revived_by_its_next_user() {
    let (_, store, _) = store();
    let bytes = bytes_of(&mut Random::new(7), 50_000);
    add(&store, "one", &bytes);
    store.remove("one").unwrap();
    assert_eq!(store.condemn().unwrap(), 2);
    let domain = Domain::shared();
    let mut session = Session::begin(&store, &domain, 1, 1).unwrap();
    let stored = session.store(&MemorySource::new(bytes.clone()), &mut |_| ());
    let stored = stored.unwrap();
    // The pack is off the list now; the manifest of the name that went is not.
    assert_eq!(store.sweep(Duration::ZERO).unwrap().removed, 1);
    let added = session.publish("two", &stored, false).unwrap();
    assert_eq!(added.new_chunks, 0);
    drop(session);
    store.collect(Duration::ZERO).unwrap();
    assert!(read(&store, "two") == bytes);
}

#[test]
fn a_list_that_was_restored_misleads_no_collection() {
    let (memory, store, _) = store();
    let bytes = bytes_of(&mut Random::new(16), 20_000);
    for name in ["one", "two"] {
        add(&store, name, &bytes);
        store.remove(name).unwrap();
        store.collect(Duration::ZERO).unwrap();
    }
    let domain = Domain::shared();
    let mut session = Session::begin(&store, &domain, 1, 1).unwrap();
    let source = MemorySource::new(bytes.clone());
    let stored = session.store(&source, &mut |_| ()).unwrap();
    memory.objects.lock().unwrap().remove("condemned");
    store.collect(Duration::ZERO).unwrap();
    store.collect(Duration::ZERO).unwrap();
    session.publish("three", &stored, false).unwrap();
    assert!(read(&store, "three") == bytes);
}

#[test]
fn a_writer_that_was_given_up_publishes_nothing() {
    let (_, store, clock) = store();
    let bytes = bytes_of(&mut Random::new(8), 50_000);
    let domain = Domain::shared();
    let mut session = Session::begin(&store, &domain, 1, 1).unwrap();
    let source = MemorySource::new(bytes);
    let stored = session.store(&source, &mut |_| ()).unwrap();
    store.condemn().unwrap();
    assert_eq!(store.sweep(Duration::ZERO).unwrap().removed, 0);
    clock.fetch_add(3_600_000, Ordering::Relaxed);
    assert_eq!(store.sweep(Duration::ZERO).unwrap().removed, 1);
    let refused = session.publish("late", &stored, false).unwrap_err();
    assert!(matches!(refused, StoreError::LeaseLost), "{refused}");
    assert!(store.names().unwrap().is_empty());
}
