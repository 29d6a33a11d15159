//! A store of versions in a bucket: crashes at each request, lost answers, writers next to
//! collectors, locks that end, servers without conditions, and lists that lie. And one in a
//! registry.
//!
//! Must stay true: what a name stands for is read as it was stored, after each step of each test.

use crate::common::eager;
use crate::common::server::{Other, Request, Server, Shelf, parse_range};
use crate::{ENVIRONMENT, set_variables, sha256, signature_is_right};
use sidecore_block::format::ReadAt;
use sidecore_block::source::MemorySource;
use sidecore_random::Random;
use sidecore_remote::store::{BucketBackend, copy, open};
use sidecore_remote::{Location, Retry};
use sidecore_store::{Backend, Domain, Session, Store, StoreError, Version};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A bucket, and the store `s3://bucket/dir/a store` in it.
struct Place {
    shelf: Arc<Shelf>,
    backend: BucketBackend,
    clock: Arc<AtomicU64>,
    _server: Server,
    /// The variables name this server.
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    /// A bucket without a store, whose server sees requests with right signatures alone where
    /// `is_checked`.
    fn empty(is_checked: bool) -> Self {
        let alone = ENVIRONMENT.lock().unwrap();
        let check = move |request: &Request| {
            !is_checked || signature_is_right(request, "a secret").unwrap_or(false)
        };
        let (shelf, server) = Shelf::serve(check);
        set_variables(&server.host(), "a secret");
        let location = Location::parse("s3://bucket/dir/a store").unwrap().unwrap();
        // Of twelve attempts in a row one succeeds, also where one of three is lost.
        let retry = Retry {
            attempts: 12,
            ..eager()
        };
        Self {
            shelf,
            backend: BucketBackend::new(&location, retry).unwrap(),
            clock: Arc::new(AtomicU64::new(1_000_000)),
            _server: server,
            _alone: alone,
        }
    }

    fn new() -> Self {
        let place = Self::empty(false);
        Store::create(Arc::new(place.other(HOUR)), 4096).unwrap();
        place
    }

    /// The objects as another process has them.
    fn other(&self, patience: Duration) -> BucketBackend {
        self.backend.another(patience).unwrap()
    }

    /// The store as another process opens it.
    fn store(&self, patience: Duration) -> Result<Store, StoreError> {
        let store = Store::open(Arc::new(self.other(patience)))?;
        let clock = Arc::clone(&self.clock);
        Ok(store.with_clock(move || clock.load(Ordering::Relaxed)))
    }
}

fn add(store: &Store, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let domain = Domain::shared();
    let mut session = Session::begin(store, &domain, 1, 1)?;
    let stored = session.store(&MemorySource::new(bytes.to_vec()), &mut |_| ())?;
    session.publish(name, &stored, true).map(|_| ())
}

fn read(store: &Store, name: &str) -> Vec<u8> {
    let version = Version::open(store, name, Arc::new(Domain::shared())).unwrap();
    let mut bytes = vec![0; version.raw_bytes() as usize];
    version.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn faults(store: &Store) -> Vec<String> {
    let shared = Arc::new(Domain::shared());
    store.check(&shared, true, &mut |_| ()).unwrap().faults
}

fn bytes_of(random: &mut Random, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes());
    words.take(len).collect()
}

#[test]
fn a_store_in_a_bucket_works_with_signed_requests() {
    let place = Place::empty(true);
    assert!(matches!(place.store(HOUR), Err(StoreError::NoStore(_))));
    Store::create(Arc::new(place.other(HOUR)), 4096).unwrap();
    let again = Store::create(Arc::new(place.other(HOUR)), 4096);
    assert!(matches!(again.err(), Some(StoreError::IsStore(_))));
    let mut random = Random::new(1);
    let images: Vec<_> = (0..5).map(|_| bytes_of(&mut random, 20_000)).collect();
    let store = place.store(HOUR).unwrap();
    for (number, image) in images.iter().enumerate() {
        add(&store, &format!("disk:{number}"), image).unwrap();
    }
    // More than a page of them.
    assert_eq!(store.names().unwrap().len(), 5);
    let other = place.store(HOUR).unwrap();
    for (number, image) in images.iter().enumerate() {
        assert!(read(&other, &format!("disk:{number}")) == *image);
    }
    assert!(faults(&other).is_empty());
    // To a folder and back, without keys.
    let folder = tempfile::tempdir().unwrap();
    let kept = Store::create_in(&folder.path().join("kept"), 4096).unwrap();
    let all = store.copy_to(&kept, &[], false, &mut |_| ()).unwrap();
    assert_eq!((all.versions, all.objects), (5, 10));
    store.remove("disk:0").unwrap();
    assert!(store.collect(Duration::ZERO).unwrap().removed >= 1);
    let back = kept.copy_to(&store, &[], false, &mut |_| ()).unwrap();
    assert_eq!(back.unchanged, 4);
    assert!(read(&store, "disk:0") == images[0] && faults(&store).is_empty());
    // What is left is the store's: no part of an upload, no lease.
    let keys = place.shelf.keys("dir/a store/");
    let folders = [
        "condemned",
        "lock",
        "manifests/",
        "packs/",
        "refs/",
        "store",
    ];
    let is_known = |key: &String| folders.iter().any(|it| key.starts_with(it));
    assert!(keys.iter().all(is_known), "{keys:?}");
}

/// Steps of a writer, a remover and a collector; each ends at the first failure, as a process does.
fn work(place: &Place, new: &[u8]) -> Result<(), StoreError> {
    let store = place.store(HOUR)?;
    add(&store, "new", new)?;
    store.remove("old")?;
    store.collect(Duration::ZERO)?;
    Ok(())
}

#[test]
fn a_crash_at_any_request_loses_nothing() {
    let mut random = Random::new(5);
    let kept = bytes_of(&mut random, 6_000);
    let old = [&kept[..4_000], &bytes_of(&mut random, 3_000)].concat();
    let new = [&old[2_000..], &bytes_of(&mut random, 2_000)].concat();
    let place = Place::new();
    let store = place.store(HOUR).unwrap();
    add(&store, "kept", &kept).unwrap();
    add(&store, "old", &old).unwrap();
    let before = place.shelf.objects.lock().unwrap().clone();
    let mut requests = 0;
    loop {
        requests += 1;
        *place.shelf.objects.lock().unwrap() = before.clone();
        place.shelf.done.store(0, Ordering::SeqCst);
        place.shelf.dies_at.store(requests, Ordering::SeqCst);
        let worked = work(&place, &new);
        place.shelf.dies_at.store(0, Ordering::SeqCst);
        // The next process takes over the lock of the dead one, and goes on with what is left.
        place.clock.fetch_add(3_600_000, Ordering::Relaxed);
        let store = place.store(Duration::ZERO).unwrap();
        let names = store.names().unwrap();
        assert!(names.iter().any(|it| it == "kept"), "request {requests}");
        for name in names {
            let found = read(&store, &name);
            let wanted = match &*name {
                "kept" => &kept,
                "old" => &old,
                _ => &new,
            };
            assert!(found == *wanted, "{name}: request {requests}");
            store.remove(&name).unwrap();
        }
        store.collect(Duration::ZERO).unwrap();
        store.collect(Duration::ZERO).unwrap();
        let left = place.shelf.keys("dir/a store/");
        assert_eq!(left, ["condemned", "lock", "store"], "request {requests}");
        if worked.is_ok() {
            break;
        }
    }
    assert!(requests > 40, "{requests} requests");
}

#[test]
fn lost_answers_are_found_out() {
    let place = Place::new();
    place.shelf.lost_per_mille.store(300, Ordering::SeqCst);
    let mut random = Random::new(6);
    let images: Vec<_> = (0..3).map(|_| bytes_of(&mut random, 9_000)).collect();
    let store = place.store(HOUR).unwrap();
    for (number, image) in images.iter().enumerate() {
        add(&store, &format!("disk:{number}"), image).unwrap();
    }
    store.remove("disk:1").unwrap();
    store.collect(Duration::ZERO).unwrap();
    for number in [0, 2] {
        assert!(read(&store, &format!("disk:{number}")) == images[number]);
    }
    assert!(faults(&store).is_empty());
}

/// Two writers and a collector, each a process of its own, step by step in orders that are drawn.
#[test]
fn writers_and_collectors_in_any_order_keep_what_is_named() {
    let mut random = Random::new(9);
    let images: Vec<_> = (0..4).map(|_| bytes_of(&mut random, 6_000)).collect();
    let place = Place::new();
    let stores: Vec<Store> = (0..3).map(|_| place.store(HOUR).unwrap()).collect();
    let domain = Domain::shared();
    let mut sessions: [Option<Session<'_>>; 2] = [None, None];
    let mut names = BTreeMap::new();
    let mut published = 0;
    for _ in 0..60 {
        let writer = random.index(2);
        match random.below(6) {
            0..3 => {
                let mut session = match sessions[writer].take() {
                    Some(session) => session,
                    None => Session::begin(&stores[writer], &domain, 1, 1).unwrap(),
                };
                let image = random.index(images.len());
                let source = MemorySource::new(images[image].clone());
                let name = format!("n{}", random.below(3));
                let stored = session.store(&source, &mut |_| ()).unwrap();
                // A collection of another process in between.
                stores[2].collect(Duration::ZERO).unwrap();
                session.publish(&name, &stored, true).unwrap();
                names.insert(name, image);
                published += 1;
                sessions[writer] = Some(session);
            }
            3 => sessions[writer] = None,
            4 => {
                stores[2].collect(Duration::ZERO).unwrap();
            }
            _ => {
                let name = format!("n{}", random.below(3));
                if names.remove(&name).is_some() {
                    stores[2].remove(&name).unwrap();
                }
            }
        }
        for (name, image) in &names {
            assert!(read(&stores[2], name) == images[*image], "{name}");
        }
    }
    assert!(published > 10, "{published}");
}

/// The same, at the same time.
#[test]
fn writers_and_a_collector_at_the_same_time_keep_what_is_named() {
    let mut random = Random::new(10);
    let images: Vec<_> = (0..2).map(|_| bytes_of(&mut random, 6_000)).collect();
    let place = Place::new();
    std::thread::scope(|scope| {
        for (number, image) in images.iter().enumerate() {
            let place = &place;
            scope.spawn(move || {
                let store = place.store(HOUR).unwrap();
                for _ in 0..2 {
                    add(&store, &format!("n{number}"), image).unwrap();
                }
            });
        }
        let place = &place;
        scope.spawn(move || {
            let store = place.store(HOUR).unwrap();
            for _ in 0..3 {
                store.collect(Duration::ZERO).unwrap();
            }
        });
    });
    let store = place.store(HOUR).unwrap();
    for (number, image) in images.iter().enumerate() {
        assert!(read(&store, &format!("n{number}")) == *image);
    }
    assert!(faults(&store).is_empty());
}

#[test]
fn a_lock_that_was_taken_over_writes_nothing_that_changes() {
    let place = Place::new();
    let (slow, fast) = (place.other(HOUR), place.other(Duration::ZERO));
    let (name, id) = ("refs/disk", [b'0'; 64]);
    let held = slow.lock().unwrap();
    assert_eq!(slow.get(name, 80).unwrap(), None);
    // The process with the lock stands still, and another one takes it for dead.
    let taken = fast.lock().unwrap();
    assert_eq!(fast.get(name, 80).unwrap(), None);
    fast.put(name, &id).unwrap();
    let late = slow.put(name, b"late").unwrap_err().to_string();
    assert!(late.contains("changed it meanwhile"), "{late}");
    assert_eq!(fast.get(name, 80).unwrap().as_deref(), Some(&id[..]));
    // Its end does not free the lock of the other one.
    drop(held);
    fast.put(name, b"again").unwrap();
    let tag = || place.shelf.objects.lock().unwrap()["/bucket/dir/a store/lock"].1;
    let before = tag();
    drop(taken);
    assert!(tag() > before);
    // Free now: one look and one write.
    drop(place.other(HOUR).lock().unwrap());
}

/// A collector that marks what it removes, and stands still before it removes it.
#[test]
fn what_is_going_is_not_relied_on() {
    let place = Place::new();
    let bytes = bytes_of(&mut Random::new(11), 9_000);
    let store = place.store(HOUR).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let kept = Store::create_in(&folder.path().join("kept"), 4096).unwrap();
    add(&store, "old", &bytes).unwrap();
    store.copy_to(&kept, &[], false, &mut |_| ()).unwrap();
    store.remove("old").unwrap();
    store.condemn().unwrap();
    // The sweep's requests up to the mark: the lock, leases, names, the list and its write.
    let whole = place.shelf.objects.lock().unwrap().clone();
    let mark = (1..40).find(|requests| {
        *place.shelf.objects.lock().unwrap() = whole.clone();
        place.shelf.done.store(0, Ordering::SeqCst);
        place.shelf.dies_at.store(*requests, Ordering::SeqCst);
        let swept = place.store(HOUR).and_then(|it| it.sweep(Duration::ZERO));
        place.shelf.dies_at.store(0, Ordering::SeqCst);
        let objects = place.shelf.objects.lock().unwrap();
        let list = String::from_utf8_lossy(&objects["/bucket/dir/a store/condemned"].0);
        swept.is_err() && list.contains("is_going")
    });
    mark.expect("a request that writes the mark");
    let store = place.store(Duration::ZERO).unwrap();
    // The pack is there still, and is stored again under another key.
    add(&store, "new", &bytes).unwrap();
    let refused = kept.copy_to(&store, &[], false, &mut |_| ()).unwrap_err();
    assert!(matches!(refused, StoreError::Going(_)), "{refused}");
    assert_eq!(store.sweep(Duration::ZERO).unwrap().removed, 2);
    assert!(read(&store, "new") == bytes && faults(&store).is_empty());
    kept.copy_to(&store, &[], false, &mut |_| ()).unwrap();
    assert!(read(&store, "old") == bytes);
}

#[test]
fn a_server_without_conditional_writes_is_refused() {
    for is_careless in [true, false] {
        let place = Place::empty(false);
        match is_careless {
            true => place.shelf.is_careless.store(true, Ordering::SeqCst),
            false => place.shelf.is_simple.store(true, Ordering::SeqCst),
        }
        let refused = Store::create(Arc::new(place.other(HOUR)), 4096).err();
        let refused = refused.unwrap().to_string();
        let wanted = "no conditional writes (If-None-Match, If-Match)";
        assert!(refused.contains(wanted), "{refused}");
        assert_eq!(refused.lines().count(), 1);
        let keys = place.shelf.keys("dir/a store/");
        assert!(keys.iter().all(|key| key == "lock"), "{keys:?}");
    }
}

#[test]
fn lists_that_lie_lead_nowhere() {
    let place = Place::new();
    let store = place.store(HOUR).unwrap();
    add(&store, "disk", b"some bytes").unwrap();
    let below = |rest: &str| format!("dir/a store/{rest}");
    let lies = [
        "refs/../../other",
        "refs/../store",
        "refs/a/b",
        "refs/",
        "refs/.hidden",
        "refs/a b",
        "leases/../refs/disk",
        "leases/..",
    ];
    let mut lies: Vec<String> = lies.iter().map(|it| below(it)).collect();
    lies.push(below(&format!("refs/{}", "a".repeat(200))));
    *place.shelf.lies.lock().unwrap() = lies;
    assert_eq!(store.names().unwrap(), ["disk"]);
    let swept = store.collect(Duration::ZERO).unwrap();
    assert_eq!((swept.removed, swept.leases), (0, 0));
    assert!(read(&store, "disk") == b"some bytes");
    // A name that is listed and not there needs something unknown.
    let listed = vec![below("refs/gone")];
    *place.shelf.lies.lock().unwrap() = listed;
    let refused = store.collect(Duration::ZERO).unwrap_err();
    assert!(matches!(refused, StoreError::Changed(_)), "{refused}");
    place.shelf.lies.lock().unwrap().clear();
    // A list of other keys lacks those that were asked for, and says nothing of what is needed.
    place.shelf.is_astray.store(true, Ordering::SeqCst);
    let astray = store.collect(Duration::ZERO).unwrap_err().to_string();
    assert!(astray.contains("other keys"), "{astray}");
    place.shelf.is_astray.store(false, Ordering::SeqCst);
    place.shelf.is_circular.store(true, Ordering::SeqCst);
    let endless = store.names().unwrap_err().to_string();
    assert!(endless.contains("in a circle"), "{endless}");
    // Places whose URL is another one than their list's.
    for odd in ["a/../b", "./a", "a/..", "a\nb"] {
        let location = Location::parse(&format!("s3://bucket/{odd}"));
        let backend = BucketBackend::new(&location.unwrap().unwrap(), eager());
        let refused = backend.err().unwrap().to_string();
        assert!(refused.contains("control character"), "{odd:?}: {refused}");
    }
}

/// Blobs and manifests of a registry by their paths.
#[derive(Default)]
struct Depot {
    kept: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Blobs that were pushed.
    pushed: AtomicU64,
}

impl Depot {
    fn answer(&self, request: &Request) -> Other {
        let mut kept = self.kept.lock().unwrap();
        match &*request.method {
            "POST" => {
                let place = ("location".to_owned(), format!("{}1", request.path));
                (202, vec![place], Vec::new())
            }
            "PUT" => {
                let is_blob = request.path.contains("/uploads/");
                let path = match is_blob {
                    true => format!("/v2/a/b/blobs/sha256:{}", sha256(&request.body)),
                    false => request.path.clone(),
                };
                self.pushed.fetch_add(u64::from(is_blob), Ordering::SeqCst);
                kept.insert(path, request.body.clone());
                (201, Vec::new(), Vec::new())
            }
            _ => {
                let Some(bytes) = kept.get(&request.path) else {
                    return (404, Vec::new(), Vec::new());
                };
                let size = bytes.len() as u64;
                let range = request.header("range");
                let Some(range) = range.and_then(|text| parse_range(text, size)) else {
                    return (200, Vec::new(), bytes.clone());
                };
                let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                let part = bytes[range.start as usize..range.end as usize].to_vec();
                (206, vec![("content-range".to_owned(), text)], part)
            }
        }
    }
}

#[test]
fn a_registry_keeps_a_store_under_a_tag() {
    let _alone = ENVIRONMENT.lock().unwrap();
    let depot = Arc::new(Depot::default());
    let served = Arc::clone(&depot);
    let guard = move |request: &Request| Some(served.answer(request));
    let server = Server::with_guard(Vec::new(), Box::new(guard));
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(12);
    let images: Vec<_> = (0..3).map(|_| bytes_of(&mut random, 20_000)).collect();
    let kept = Store::create_in(&folder.path().join("kept"), 4096).unwrap();
    add(&kept, "disk:1", &images[0]).unwrap();
    add(&kept, "disk:2", &images[1]).unwrap();
    let url = format!("oci://{}/a/b:v1", server.host());
    let to = Path::new(&url);
    let push = |names: &[String], replace| copy(&kept, to, names, replace, &mut |_| ());
    let first = push(&["disk:1".to_owned()], false).unwrap();
    assert_eq!((first.versions, first.objects), (1, 2));
    // Added to what is there, of which nothing is pushed again.
    let all = push(&[], false).unwrap();
    assert_eq!((all.versions, all.unchanged, all.objects), (2, 1, 2));
    let pushed = depot.pushed.load(Ordering::SeqCst);
    let again = push(&[], false).unwrap();
    assert_eq!((again.unchanged, again.objects), (2, 0));
    assert_eq!(depot.pushed.load(Ordering::SeqCst), pushed);
    // A name is not taken from the version that has it.
    add(&kept, "disk:1", &images[2]).unwrap();
    let refused = push(&[], false).unwrap_err();
    assert!(matches!(refused, StoreError::Exists(_)), "{refused}");
    push(&[], true).unwrap();
    let store = open(to).unwrap();
    assert_eq!(store.names().unwrap(), ["disk:1", "disk:2"]);
    assert!(read(&store, "disk:1") == images[2] && read(&store, "disk:2") == images[1]);
    assert!(faults(&store).is_empty());
    // It is read alone, by all commands.
    add(&store, "disk:3", &images[0]).unwrap_err();
    let back = folder.path().join("back");
    copy(&store, &back, &[], false, &mut |_| ()).unwrap();
    assert!(read(&open(&back).unwrap(), "disk:1") == images[2]);
    // What has a digest for its name never changes.
    let digest = format!("oci://{}/a/b@sha256:{}", server.host(), "0".repeat(64));
    let refused = copy(&kept, Path::new(&digest), &[], true, &mut |_| ()).unwrap_err();
    assert!(refused.to_string().contains("name a tag"), "{refused}");
    // Another image under the tag stays.
    let manifest = "/v2/a/b/manifests/v1".to_owned();
    let image = br#"{"schemaVersion":2,"layers":[]}"#.to_vec();
    depot.kept.lock().unwrap().insert(manifest, image);
    let refused = push(&[], true).unwrap_err().to_string();
    assert!(refused.contains("another kind"), "{refused}");
    assert!(open(to).is_err());
}

/// Longer than any test: nothing alive is taken for dead.
const HOUR: Duration = Duration::from_secs(3600);
