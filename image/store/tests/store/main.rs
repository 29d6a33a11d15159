//! A store from the outside: sharing, crashes, collections in random orders, damage, domains.
//!
//! Why here: a backend in memory, whose operations fail on demand and whose clock is the test's,
//! makes every order of steps repeatable. Must stay true: what a name stands for is read as it was
//! stored, after each step of each test.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod orders;

use sidecore_block::format::{Index, ReadAt};
use sidecore_block::image::RemoteSource;
use sidecore_block::source::{BlockSource, Deliver, Extent, MemorySource, ReadError};
use sidecore_random::Random;
use sidecore_store::{
    Added, Backend, CHUNK_BYTES, Compacted, Domain, FolderBackend, Lock, Session, Store,
    StoreError, Version,
};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Objects in memory.
#[derive(Default)]
struct Memory {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Operations so far.
    done: AtomicU64,
    /// The operation that fails, as do all later ones; 0 for none.
    /// Its own effect is there all the same.
    fails_at: AtomicU64,
}

impl Memory {
    /// Counts an operation. True if it is the one that fails after its effect.
    fn count(&self) -> io::Result<bool> {
        let number = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let fails_at = self.fails_at.load(Ordering::Relaxed);
        match fails_at {
            0 => Ok(false),
            _ if number < fails_at => Ok(false),
            _ if number == fails_at => Ok(true),
            _ => Err(dead()),
        }
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) -> io::Result<()> {
        let fails = self.count()?;
        change(&mut self.objects.lock().unwrap());
        match fails {
            true => Err(dead()),
            false => Ok(()),
        }
    }

    fn look<R>(&self, key: &str, look: impl FnOnce(Option<&Vec<u8>>) -> R) -> io::Result<R> {
        match self.count()? {
            true => Err(dead()),
            false => Ok(look(self.objects.lock().unwrap().get(key))),
        }
    }

    fn keys(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

impl Backend for Memory {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn get(&self, key: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let found = self.look(key, |bytes| bytes.cloned())?;
        match found.as_ref().is_none_or(|it| it.len() as u64 <= bytes_max) {
            true => Ok(found),
            false => Err(io::Error::other("too long")),
        }
    }

    fn read(&self, key: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let range = range.start as usize..range.end as usize;
        let found = self.look(key, |bytes| Some(bytes?.get(range)?.to_vec()))?;
        found.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn size(&self, key: &str) -> io::Result<Option<u64>> {
        self.look(key, |bytes| bytes.map(|bytes| bytes.len() as u64))
    }

    fn put(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        self.change(|objects| {
            objects.insert(key.to_owned(), bytes.to_vec());
        })
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        self.change(|objects| {
            objects.remove(key);
        })
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        if self.count()? {
            return Err(dead());
        }
        let begin = format!("{folder}/");
        let keys = self.keys();
        let names = keys.iter().filter_map(|key| key.strip_prefix(&begin));
        Ok(names.map(str::to_owned).collect())
    }

    fn lock(&self) -> io::Result<Lock> {
        match self.count()? {
            true => Err(dead()),
            false => Ok(Box::new(())),
        }
    }
}

/// A source that reports no holes.
struct Dense(MemorySource);

impl BlockSource for Dense {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn preferred_bytes(&self) -> u32 {
        self.0.preferred_bytes()
    }

    fn read_with_max_bytes(&self) -> usize {
        self.0.read_with_max_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        self.0.read_into(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        self.0.read_with(offset, len, deliver);
    }

    fn extent(&self, offset: u64) -> Extent {
        Extent {
            len: self.size_bytes() - offset,
            zero: false,
        }
    }
}

/// A store in memory, with chunks of 4 KiB and a clock.
fn store() -> (Arc<Memory>, Store, Arc<AtomicU64>) {
    let memory = Arc::new(Memory::default());
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let time = Arc::clone(&clock);
    let store = Store::create(Arc::clone(&memory) as _, 4096).unwrap();
    let store = store.with_clock(move || time.load(Ordering::Relaxed));
    (memory, store, clock)
}

fn bytes_of(random: &mut Random, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes());
    words.take(len).collect()
}

fn add_to(
    store: &Store,
    domain: &Domain,
    name: &str,
    bytes: &[u8],
    replace: bool,
) -> Result<Added, StoreError> {
    let mut session = Session::begin(store, domain, 1, 3)?;
    let stored = session.store(&MemorySource::new(bytes.to_vec()), &mut |_| ())?;
    session.publish(name, &stored, replace)
}

fn add(store: &Store, name: &str, bytes: &[u8]) -> Added {
    add_to(store, &Domain::shared(), name, bytes, true).unwrap()
}

fn read_with(store: &Store, name: &str, domain: Domain) -> Result<Vec<u8>, StoreError> {
    let version = Version::open(store, name, Arc::new(domain))?;
    let mut bytes = vec![0; version.raw_bytes() as usize];
    let read = version.read_exact_at(&mut bytes, 0);
    read.map_err(|source| StoreError::Io {
        doing: "read",
        what: name.to_owned(),
        place: String::new(),
        source,
    })?;
    Ok(bytes)
}

fn read(store: &Store, name: &str) -> Vec<u8> {
    read_with(store, name, Domain::shared()).unwrap()
}

fn is_whole(store: &Store) -> Vec<String> {
    let shared = Arc::new(Domain::shared());
    store.check(&shared, true, &mut |_| ()).unwrap().faults
}

#[test]
fn what_was_stored_is_read_at_any_offset() {
    let (_, store, _) = store();
    let mut random = Random::new(1);
    let mut bytes = bytes_of(&mut random, 300_001);
    bytes[60_000..200_000].fill(0);
    let added = add(&store, "disk:1", &bytes);
    assert_eq!((added.raw_bytes, added.new_chunks), (300_001, added.chunks));
    let version = Version::open(&store, "disk:1", Arc::new(Domain::shared())).unwrap();
    for _ in 0..300 {
        let start = random.index(bytes.len());
        let len = random.index(bytes.len() - start + 1);
        let mut part = vec![1; len];
        version.read_exact_at(&mut part, start as u64).unwrap();
        assert!(part == bytes[start..start + len], "{len} from {start}");
    }
    version.read_exact_at(&mut [0; 2], 300_000).unwrap_err();
    version.read_exact_at(&mut [0; 2], u64::MAX).unwrap_err();
    // As a device asks for frames, with those that it will want next.
    let index = Index::read_raw(&version).unwrap();
    let frames: Vec<_> = (0..index.frames()).map(|it| index.frame(it)).collect();
    for first in [0, 1, 3] {
        let mut ahead = frames[first + 1..].iter().copied();
        let fetched = version.fetch(&frames[first..=first], &mut ahead).unwrap();
        let start = first << 16;
        let end = bytes.len().min(start + (1 << 16));
        assert!(*fetched[0] == bytes[start..end], "frame {first}");
    }
    let mut all = Vec::new();
    io::Read::read_to_end(&mut Arc::new(version).reader(), &mut all).unwrap();
    assert!(all == bytes);
    assert!(is_whole(&store).is_empty());
}

#[test]
fn a_changed_hundredth_costs_a_hundredth() {
    let memory = Arc::new(Memory::default());
    let store = Store::create(memory, CHUNK_BYTES.into()).unwrap();
    let mut random = Random::new(2);
    let mut bytes = bytes_of(&mut random, 16 << 20);
    add(&store, "disk:1", &bytes);
    let len = bytes.len() / 100;
    let start = random.index(bytes.len() - len);
    let changed = bytes_of(&mut random, len);
    bytes[start..start + len].copy_from_slice(&changed);
    let added = add(&store, "disk:2", &bytes);
    // A chunk at each end of the change is new, too, and is four times the average at most.
    let limit = bytes.len() as u64 * 13 / 1000 + 4 * (64 << 10);
    assert!(added.stored_bytes <= limit, "{added:?}");
    // An insertion moves all that is behind it, and no boundary depends on where it is.
    drop(bytes.splice(1000..1000, [7; 100]));
    let added = add(&store, "disk:3", &bytes);
    assert!(added.new_chunks <= 6, "{added:?}");
    assert!(read(&store, "disk:3") == bytes);
}

#[test]
fn related_images_take_what_they_differ_in() {
    let (_, store, _) = store();
    let mut random = Random::new(3);
    let base = bytes_of(&mut random, 1 << 20);
    let (images, own) = (30, 40_000);
    for image in 0..images {
        let mut bytes = base.clone();
        let start = random.index(bytes.len() - own);
        let part = bytes_of(&mut random, own);
        bytes[start..start + own].copy_from_slice(&part);
        add(&store, &format!("image{image}"), &bytes);
    }
    let totals = store.totals().unwrap();
    let different = base.len() as u64 + images * own as u64;
    // Two chunks at the ends of each change, and a manifest of some 260 chunks for each image.
    let limit = different * 11 / 10 + images * (2 * 4096 + 260 * 48);
    assert!(totals.stored_bytes <= limit, "{totals:?} {limit}");
    assert!(totals.ratio > 8.0 && totals.versions == images);
}

#[test]
fn zeros_are_not_stored_whether_they_are_holes_or_not() {
    let (_, store, _) = store();
    let mut random = Random::new(4);
    let mut bytes = vec![0; 20 << 20];
    for start in [0, 3 << 20, (3 << 20) + 70_000, (20 << 20) - 9_000] {
        let part = bytes_of(&mut random, 9_000);
        bytes[start..start + 9_000].copy_from_slice(&part);
    }
    let added = add(&store, "sparse", &bytes);
    assert!(added.stored_bytes < 100_000, "{added:?}");
    let domain = Domain::shared();
    let mut session = Session::begin(&store, &domain, 1, 2).unwrap();
    let dense = Dense(MemorySource::new(bytes.clone()));
    let stored = session.store(&dense, &mut |_| ()).unwrap();
    let again = session.publish("dense", &stored, false).unwrap();
    assert_eq!((again.new_chunks, again.chunks), (0, added.chunks));
    let digests: Vec<_> = store.versions(&domain).unwrap();
    assert_eq!(digests[0].digest, digests[1].digest);
    assert!(read(&store, "dense") == bytes);
    // Nothing but zeros.
    let zeros = vec![0; 1 << 20];
    add(&store, "zeros", &zeros);
    assert!(read(&store, "zeros") == zeros && is_whole(&store).is_empty());
}

#[test]
fn names_are_conditions() {
    let (_, store, _) = store();
    add(&store, "a", b"one");
    let shared = Domain::shared();
    let exists = add_to(&store, &shared, "a", b"two", false).unwrap_err();
    assert!(matches!(exists, StoreError::Exists(_)));
    for name in ["", ".a", "a/b", "a b", "../a", "-a", "ä", &"a".repeat(129)] {
        let refused = add_to(&store, &shared, name, b"two", true).unwrap_err();
        assert!(matches!(refused, StoreError::Name(_)), "{name}: {refused}");
    }
    assert!(matches!(
        add_to(&store, &shared, "b", b"", true),
        Err(StoreError::Limit(_))
    ));
    // Before an image is read.
    store.check_name("a", true).unwrap();
    store.check_name("b", false).unwrap();
    store.check_name("a", false).unwrap_err();
    store.check_name("../a", true).unwrap_err();
    let added = add(&store, "a", b"two");
    let listed = store.versions(&shared).unwrap();
    assert_eq!(listed[0].manifest, added.manifest);
    assert!(listed[0].parent.is_some());
    let memory = Arc::new(Memory::default());
    assert!(matches!(
        Store::open(Arc::clone(&memory) as _),
        Err(StoreError::NoStore(_))
    ));
    for wrong in [0, 2048, 5000, 2 << 20, u64::MAX] {
        let refused = Store::create(Arc::clone(&memory) as _, wrong);
        assert!(matches!(refused, Err(StoreError::ChunkBytes(_))));
    }
    Store::create(Arc::clone(&memory) as _, 4096).unwrap();
    assert!(matches!(
        Store::create(memory, 4096),
        Err(StoreError::IsStore(_))
    ));
}

#[test]
fn damage_of_any_object_is_named_and_never_delivered() {
    let (memory, store, _) = store();
    let mut random = Random::new(9);
    let bytes = bytes_of(&mut random, 30_000);
    add(&store, "disk", &bytes);
    let needed = memory.keys();
    let needed: Vec<_> = needed.into_iter().filter(|it| it != "store").collect();
    // So that there is a list of what may go.
    add(&store, "gone", &bytes_of(&mut random, 5_000));
    store.remove("gone").unwrap();
    assert_eq!(store.condemn().unwrap(), 2);
    let domain = Domain::shared();
    let session = Session::begin(&store, &domain, 1, 1).unwrap();
    let whole = memory.objects.lock().unwrap().clone();
    for (key, object) in &whole {
        let step = if key.starts_with("packs") { 499 } else { 3 };
        let cuts = (0..object.len())
            .step_by(step * 3)
            .map(|len| object[..len].to_vec());
        let flips = (0..object.len()).step_by(step).map(|at| {
            let mut damaged = object.clone();
            damaged[at] ^= 1 << (at % 8);
            damaged
        });
        for damaged in flips.chain(cuts) {
            memory.objects.lock().unwrap().insert(key.clone(), damaged);
            if let Ok(found) = read_with(&store, "disk", Domain::shared()) {
                assert!(found == bytes, "{key}");
            }
            let is_needed = needed.contains(key);
            let faults = is_whole(&store);
            assert_eq!(faults.is_empty(), !is_needed, "{key}: {faults:?}");
            // What names need is not known: nothing may go.
            let collected = store.collect(Duration::ZERO);
            if is_needed && !key.starts_with("packs") {
                collected.unwrap_err();
            }
            let left = memory.keys();
            let gone = needed.iter().find(|it| !left.contains(it));
            assert!(gone.is_none(), "{key}: {gone:?}");
            *memory.objects.lock().unwrap() = whole.clone();
        }
    }
    drop(session);
    assert!(read(&store, "disk") == bytes);
}

#[test]
fn a_damaged_pack_is_stored_again() {
    let (memory, store, _) = store();
    let bytes = bytes_of(&mut Random::new(10), 30_000);
    add(&store, "disk", &bytes);
    let pack = memory.keys().into_iter().find(|it| it.starts_with("packs"));
    memory
        .objects
        .lock()
        .unwrap()
        .get_mut(&pack.unwrap())
        .unwrap()[9] ^= 1;
    let added = add(&store, "disk", &bytes);
    assert_eq!(added.new_chunks, added.chunks);
    assert!(read(&store, "disk") == bytes && is_whole(&store).is_empty());
}

#[test]
fn a_damaged_name_can_be_removed() {
    let (memory, store, _) = store();
    add(&store, "disk", b"one");
    let mut objects = memory.objects.lock().unwrap();
    objects.insert("refs/disk".to_owned(), b"one".to_vec());
    drop(objects);
    store.collect(Duration::ZERO).unwrap_err();
    store.remove("disk").unwrap();
    assert_eq!(store.collect(Duration::ZERO).unwrap().removed, 2);
}

#[test]
fn compaction_frees_what_is_used_in_part() {
    let (memory, store, clock) = store();
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    Domain::create(&keys).unwrap();
    let mut random = Random::new(13);
    let large = bytes_of(&mut random, 400_000);
    let small = [&large[..30_000], &[0; 50_000], &large[200_000..240_000]].concat();
    for domain in [Domain::shared(), Domain::read(&keys).unwrap()] {
        let domain = Arc::new(domain);
        add_to(&store, &domain, "large", &large, false).unwrap();
        add_to(&store, &domain, "small", &small, false).unwrap();
        let before = store.versions(&domain).unwrap();
        store.remove("large").unwrap();
        store.collect(Duration::ZERO).unwrap();
        let mounted = Version::open(&store, "small", Arc::clone(&domain)).unwrap();
        let held = store.totals().unwrap().stored_bytes;
        assert!(held > 400_000, "{held}");
        clock.fetch_add(60_000, Ordering::Relaxed);
        // Without its keys nothing of a domain is moved.
        let other = Arc::new(Domain::read(&keys).unwrap());
        let shared = Arc::new(Domain::shared());
        for domain in [&shared, &other, &domain] {
            store.compact(domain, 50, &mut |_| ()).unwrap();
        }
        store.collect(Duration::ZERO).unwrap();
        let left = store.totals().unwrap().stored_bytes;
        assert!(left < 100_000, "{left}");
        // A reader that began before finds the new places.
        let mut found = vec![0; small.len()];
        mounted.read_exact_at(&mut found, 0).unwrap();
        assert!(found == small);
        let after = store.versions(&domain).unwrap();
        let kept = before.iter().find(|it| it.name == "small").unwrap();
        assert_eq!(after[0].digest, kept.digest);
        assert_eq!(after[0].created_s, kept.created_s);
        let again = store.compact(&domain, 50, &mut |_| ()).unwrap();
        assert_eq!(again, Compacted::default());
        let found = store.check(&domain, true, &mut |_| ()).unwrap();
        assert!(found.faults.is_empty() && found.opened == 1, "{found:?}");
        store.remove("small").unwrap();
        store.collect(Duration::ZERO).unwrap();
        assert_eq!(memory.keys(), ["condemned", "store"]);
    }
}

#[test]
fn domains_share_nothing_and_open_only_their_own() {
    let (memory, store, _) = store();
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    Domain::create(&one).unwrap();
    Domain::create(&two).unwrap();
    let text = bytes_of(&mut Random::new(12), 60_000);
    let first = Domain::read(&one).unwrap();
    let added = add_to(&store, &first, "a", &text, false).unwrap();
    // The same contents in another domain, and in none, are new: nothing tells that they are here.
    let other = Domain::read(&two).unwrap();
    let foreign = add_to(&store, &other, "b", &text, false).unwrap();
    assert_eq!(foreign.new_chunks, foreign.chunks);
    add_to(&store, &Domain::shared(), "open", &text, false).unwrap();
    let again = add_to(&store, &first, "a2", &text, false).unwrap();
    assert_eq!((again.new_chunks, again.chunks), (0, added.chunks));
    let names: Vec<_> = store.versions(&other).unwrap();
    let digests = names.iter().map(|it| it.digest.is_some());
    assert_eq!(digests.collect::<Vec<_>>(), [false, false, true, false]);

    Domain::rotate(&one).unwrap();
    let rotated = Domain::read(&one).unwrap();
    let last = add_to(&store, &rotated, "a3", &text, false).unwrap();
    assert_eq!(last.new_chunks, 0);
    for (name, keys, is_opened) in [
        ("a", &one, true),
        ("a3", &one, true),
        ("a", &two, false),
        ("b", &one, false),
        ("open", &one, false),
    ] {
        let found = read_with(&store, name, Domain::read(keys).unwrap());
        match is_opened {
            true => assert!(found.unwrap() == text, "{name}"),
            false => drop(found.unwrap_err()),
        }
    }
    let locked = read_with(&store, "a", Domain::shared()).unwrap_err();
    assert!(locked.to_string().contains("--domain"), "{locked}");
    // The key of an older file does not open what a later key has encrypted.
    let late = read_with(&store, "a3", first).unwrap_err();
    assert!(late.to_string().contains("key 2"), "{late}");

    // Nor do names lead to other versions of a domain.
    let mut objects = memory.objects.lock().unwrap();
    let passed = objects["refs/a3"].clone();
    objects.insert("refs/a".to_owned(), passed);
    drop(objects);
    let passed_off = read_with(&store, "a", rotated).unwrap_err();
    assert!(
        passed_off.to_string().contains("published as `a3`"),
        "{passed_off}"
    );
    // A collector needs no keys.
    store.remove("b").unwrap();
    assert!(store.collect(Duration::ZERO).unwrap().removed >= 2);
}

#[test]
fn a_folder_keeps_copies_and_cleans_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let backend = FolderBackend::create(&folder.path().join(name)).unwrap();
        Store::create(Arc::new(backend), 4096).unwrap()
    };
    let (here, there) = (open("here"), open("there"));
    let mut random = Random::new(11);
    let one = bytes_of(&mut random, 60_000);
    let two = [&one[..30_000], &bytes_of(&mut random, 10_000)].concat();
    add(&here, "one", &one);
    add(&here, "two", &two);
    let copied = here.copy_to(&there, &[], false, &mut |_| ()).unwrap();
    assert_eq!(
        (copied.versions, copied.unchanged, copied.objects),
        (2, 0, 4)
    );
    let again = here.copy_to(&there, &[], false, &mut |_| ()).unwrap();
    assert_eq!((again.unchanged, again.objects), (2, 0));
    assert!(read(&there, "two") == two && is_whole(&there).is_empty());
    add(&there, "one", &two);
    let only = ["one".to_owned()];
    let exists = here.copy_to(&there, &only, false, &mut |_| ());
    assert!(matches!(exists, Err(StoreError::Exists(_))));
    here.copy_to(&there, &only, true, &mut |_| ()).unwrap();
    assert!(read(&there, "one") == one);

    // An opening anew, as another process does it, with what a killed writer has left.
    let left = folder.path().join("here/packs/.sidecore-0123456789abcdef");
    std::fs::write(&left, "half a pack").unwrap();
    let backend = FolderBackend::open(&folder.path().join("here")).unwrap();
    let again = Store::open(Arc::new(backend)).unwrap();
    again.remove("two").unwrap();
    let swept = again.collect(Duration::ZERO).unwrap();
    assert!(swept.removed >= 1 && left.exists(), "{swept:?}");
    assert!(read(&again, "one") == one && is_whole(&again).is_empty());
    let old = std::time::SystemTime::now() - Duration::from_secs(7200);
    let file = std::fs::File::options().write(true).open(&left).unwrap();
    file.set_modified(old).unwrap();
    again.collect(Duration::ZERO).unwrap();
    assert!(!left.exists());
    let made = folder.path().join("here");
    let mode = made.metadata().unwrap().mode();
    assert_eq!(mode & 0o077, 0, "closed to others");
    // Links in the store are not followed.
    let link = folder.path().join("here/refs/link");
    std::os::unix::fs::symlink(folder.path().join("here/refs/one"), link).unwrap();
    read_with(&again, "link", Domain::shared()).unwrap_err();
}
