//! Images over HTTP: right bytes or an error, few requests, nothing fetched twice.

use crate::common::server::{Other, Request, Server};
use crate::common::{device, eager, open, options, packed};
use sidecore_block::codec::Tune;
use sidecore_block::format::{Format, ReadAt};
use sidecore_block::image::Image;
use sidecore_block::inner::Kind;
use sidecore_block::overlay::open_to_write;
use sidecore_block::pack::{
    self, Existing, Guard, Source, Target, Thin, commit, pack, unpack_image, verify_image,
};
use sidecore_block::source::{BlockSource, MemorySource};
use sidecore_random::Random;
use sidecore_remote::access::Access;
use sidecore_remote::{Location, Options, RemoteImage, Retry};
use sidecore_store::{Domain, FolderBackend, Session, Store};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn every_format_reads_as_its_contents() {
    for format in Format::ALL {
        let (raw, image) = packed(3 << 20, format, 64 << 10);
        let server = Server::start(image);
        let remote = open(&server.url(), options());
        let device = device(&remote);
        let mut random = Random::new(7);
        for _ in 0..50 {
            let at = random.below(raw.len() as u64 - 1) as usize;
            let bytes = 1 + random.below((raw.len() - at).min(300_000) as u64) as usize;
            let mut found = vec![0; bytes];
            device.read_into(at as u64, &mut found).unwrap();
            assert!(found == raw[at..at + bytes], "{format}: {bytes} at {at}");
            device.read_with(at as u64, bytes, &mut |pieces| {
                assert!(
                    pieces.unwrap().concat() == raw[at..at + bytes],
                    "{format}: {at}"
                );
            });
        }
    }
}

/// A whole image is verified and unpacked with adjacent frames joined: about one request per MiB.
#[test]
fn a_walk_over_an_image_makes_few_requests_and_fetches_nothing_twice() {
    let (raw, image) = packed(24 << 20, Format::Zstd, 64 << 10);
    let stored = image.len() as u64;
    let server = Server::start(image);
    let directory = tempfile::tempdir().unwrap();
    for walk in 0..2 {
        let (requests, sent) = (server.requests(), server.sent_bytes());
        let remote = open(&server.url(), options());
        let image = Image::Remote(Arc::clone(&remote) as _);
        let index = image.index(false).unwrap();
        if walk == 0 {
            let verified = verify_image(&image, &index, 2, &mut |_| ()).unwrap();
            assert_eq!(verified.bad_frames_total, 0);
            assert_eq!(verified.raw_bytes, raw.len() as u64);
        } else {
            let path = directory.path().join("raw");
            let target = Target::Path(&path, Existing::Replace);
            unpack_image(&image, &index, target, 2, &mut |_| ()).unwrap();
            assert!(std::fs::read(&path).unwrap() == raw);
        }
        let (requests, sent) = (server.requests() - requests, server.sent_bytes() - sent);
        assert!(requests < 10 + 2 * (stored >> 20), "{requests} requests");
        // The two ends are fetched before the frames are known.
        assert!(sent < stored + (700 << 10), "{sent} of {stored}");
    }
}

/// The first read of an image takes a request, its neighbours in the same frame take none.
#[test]
fn a_frame_is_fetched_once_however_many_read_it() {
    let (raw, image) = packed(8 << 20, Format::Zstd, 64 << 10);
    let server = Server::start(image);
    let remote = open(&server.url(), options());
    let device = device(&remote);
    assert_eq!(server.requests(), 2, "opening takes the head and the tail");
    let at = 4_u64 << 20;
    std::thread::scope(|scope| {
        for reader in 0..16 {
            let (device, raw) = (&device, &raw);
            scope.spawn(move || {
                let mut found = [0; 512];
                let at = at + reader * 4096;
                device.read_into(at, &mut found).unwrap();
                assert!(found == raw[at as usize..][..512]);
            });
        }
    });
    assert_eq!(server.requests(), 3);
}

#[test]
fn a_sequential_reader_is_read_ahead_of() {
    let (raw, image) = packed(32 << 20, Format::Zstd, 64 << 10);
    let stored = image.len() as u64;
    let server = Server::start(image);
    let device = device(&open(&server.url(), options()));
    for at in (0..raw.len()).step_by(256 << 10) {
        let mut found = vec![0; 256 << 10];
        device.read_into(at as u64, &mut found).unwrap();
        device.read_with(at as u64, found.len(), &mut |pieces| {
            assert!(pieces.unwrap().concat() == raw[at..at + (256 << 10)]);
        });
    }
    let requests = server.requests();
    assert!(
        requests < raw.len() as u64 / (256 << 10) * 3 / 4,
        "{requests} requests"
    );
    assert!(
        server.sent_bytes() < stored + (700 << 10),
        "{} sent",
        server.sent_bytes()
    );
}

/// Ten thousand random faults of all kinds: a read returns right bytes or an error.
#[test]
fn ten_thousand_faults_never_give_a_wrong_byte() {
    let (raw, image) = packed(6 << 20, Format::Zstd, 16 << 10);
    let server = Server::start(image);
    let (right, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut round = 0;
    while server.faults() < 10_000 {
        server.set_faults(0);
        let remote = open(&server.url(), options());
        let device = device(&remote);
        server.set_faults(700);
        std::thread::scope(|scope| {
            for reader in 0..8 {
                let (device, raw, right, failed) = (&device, &raw, &right, &failed);
                scope.spawn(move || {
                    let mut random = Random::new(round * 8 + reader);
                    for _ in 0..60 {
                        let at = random.below(raw.len() as u64 - 1) as usize;
                        let bytes = 1 + random.below((raw.len() - at).min(100_000) as u64) as usize;
                        let mut found = vec![0; bytes];
                        match device.read_into(at as u64, &mut found) {
                            Ok(()) => {
                                assert!(found == raw[at..at + bytes], "round {round}: {at}");
                                right.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => {
                                assert_eq!(error.errno(), 5, "{error}");
                                failed.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
        // Faults are transient: reads that failed succeed once the server works again.
        server.set_faults(0);
        let mut all = vec![0; raw.len()];
        device.read_into(0, &mut all).unwrap();
        assert!(all == raw, "round {round}");
        round += 1;
        assert!(
            round < 400,
            "{} faults after {round} rounds",
            server.faults()
        );
    }
    let (right, failed) = (right.into_inner(), failed.into_inner());
    eprintln!(
        "{} faults, {right} reads right, {failed} refused",
        server.faults()
    );
    assert!(
        right > 1000 && failed > 100,
        "{right} right, {failed} failed"
    );
}

#[test]
fn an_image_that_changes_is_an_error() {
    let (_, image) = packed(4 << 20, Format::Zstd, 64 << 10);
    let server = Server::start(image);
    let device = device(&open(&server.url(), options()));
    server.set_etag("\"another\"");
    let mut found = [0; 512];
    let error = device
        .read_into(2 << 20, &mut found)
        .unwrap_err()
        .to_string();
    assert!(error.contains("changed"), "{error}");
    server.set_etag("\"one\"");
    device.read_into(2 << 20, &mut found).unwrap();
}

/// An overlay has written to frames of one run of holes that lie next to each other: those behind
/// the run are copied as before.
#[test]
fn a_thin_image_of_a_server_takes_a_commit_into_its_holes() {
    const FRAME_BYTES: usize = 64 << 10;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (mut raw, _) = packed(4 << 20, Format::Raw, FRAME_BYTES as u32);
    let hole = 16 * FRAME_BYTES..32 * FRAME_BYTES;
    raw[hole.clone()].fill(0);
    let file = std::fs::File::create(at("raw")).unwrap();
    file.set_len(raw.len() as u64).unwrap();
    for range in [0..hole.start, hole.end..raw.len()] {
        file.write_all_at(&raw[range.clone()], range.start as u64)
            .unwrap();
    }
    let options_of = |thin| pack::Options {
        format: Format::Zstd,
        frame_bytes: FRAME_BYTES as u32,
        level: Some(1),
        tune: Tune::Speed,
        cdc: false,
        engines: 2,
        thin,
        limits: Default::default(),
    };
    let source = Source::open(&at("raw"), Kind::Erofs, Path::new("/tmp")).unwrap();
    let (image, new) = (at("image"), at("new"));
    let target = Target::Path(&image, Existing::Replace);
    pack(source, target, &options_of(Thin::Always), &mut |_| ()).unwrap();
    let server = Server::start(std::fs::read(&image).unwrap());
    let device = device(&open(&server.url(), options()));
    assert!(device.index().hole_run(16) == 16, "the image is thin");
    let overlay = open_to_write(&device, &at("overlay"), Some(4096), None, "image").unwrap();
    for frame in [20, 21] {
        let at = frame * FRAME_BYTES + 5000;
        raw[at] = b'?';
        overlay.writes().unwrap().write(at as u64, b"?").unwrap();
    }
    overlay.close().unwrap();
    let (image, index) = (device.image(), device.index());
    let target = Target::Path(&new, Existing::Replace);
    let options = options_of(Thin::Auto);
    let guard = Guard::default();
    let made = commit(image, index, &overlay, target, &options, guard, &mut |_| ());
    assert_eq!(made.unwrap().copied_frames, 62);
    let server = Server::start(std::fs::read(&new).unwrap());
    let device = self::device(&open(&server.url(), self::options()));
    let mut found = vec![0; raw.len()];
    device.read_into(0, &mut found).unwrap();
    assert!(found == raw);
}

/// Servers that a redirect leads to fail or go away, and the origin names others.
#[test]
fn the_origin_is_asked_anew_where_the_target_of_its_redirect_fails() {
    let (raw, image) = packed(16 << 20, Format::Zstd, 64 << 10);
    let first = Server::start(image.clone());
    let is_out = Arc::new(AtomicBool::new(false));
    let out = Arc::clone(&is_out);
    let busy = move |_: &Request| -> Option<Other> {
        let out = out.load(Ordering::SeqCst);
        out.then(|| (503, Vec::new(), Vec::new()))
    };
    let second = Server::with_guard(image.clone(), Box::new(busy));
    let third = Server::start(image);
    let named = Arc::new(Mutex::new(first.url()));
    let target = Arc::clone(&named);
    let redirects = move |_: &Request| -> Option<Other> {
        let to = ("location".to_owned(), target.lock().unwrap().clone());
        Some((307, vec![to], Vec::new()))
    };
    let origin = Server::with_guard(Vec::new(), Box::new(redirects));
    // No second attempt: each read has to find its way at once.
    let retry = Retry {
        attempts: 1,
        ..eager()
    };
    let image = open(&origin.url(), Options { retry, ..options() });
    let device = device(&image);
    let read = |at: usize| {
        let mut found = vec![0; 4096];
        device.read_into(at as u64, &mut found).unwrap();
        assert!(found == raw[at..at + 4096], "{at}");
    };
    read(4 << 20);
    *named.lock().unwrap() = second.url();
    drop(first);
    read(8 << 20);
    assert!(second.requests() > 0);
    *named.lock().unwrap() = third.url();
    is_out.store(true, Ordering::SeqCst);
    read(12 << 20);
    assert!(third.requests() > 0);
}

#[test]
fn what_is_no_image_of_a_server_is_refused_with_the_reason() {
    let server = Server::with_guard(
        vec![1; 100],
        Box::new(|request| {
            let status = request.path.strip_prefix("/status/")?.parse().ok()?;
            Some((
                status,
                vec![("location".into(), "/image".into())],
                Vec::new(),
            ))
        }),
    );
    let refused = |path: &str| {
        let location = Location::parse(&format!("http://{}{path}", server.host()));
        let opened = RemoteImage::open(&location.unwrap().unwrap(), options());
        opened
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert!(refused("/status/404").contains("no such image"));
    assert!(refused("/status/403").contains("credentials"));
    let requests = server.requests();
    assert!(refused("/status/503").contains("503"));
    // A transient fault is retried; a 404 is not.
    assert!(server.requests() - requests >= 4);
    assert_eq!(refused("/status/307"), "", "a redirect leads to the image");
    let nobody = Location::parse("http://127.0.0.1:1/image")
        .unwrap()
        .unwrap();
    let error = RemoteImage::open(&nobody, options())
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("cannot read http://127.0.0.1:1/image"),
        "{error}"
    );
}

/// Tables longer than the tail that is fetched first: a few more requests, not one for each piece
/// that the parser reads.
#[test]
fn a_long_table_comes_in_few_requests() {
    let (raw, image) = packed(56 << 20, Format::Zstd, 4 << 10);
    let server = Server::start(image);
    let device = device(&open(&server.url(), options()));
    assert!(server.requests() <= 6, "{} requests", server.requests());
    let mut found = vec![0; 10_000];
    device.read_into(30 << 20, &mut found).unwrap();
    assert!(found == raw[30 << 20..][..10_000]);
}

/// The bytes after the head are fetched while the image is opened, and their frames are not fetched
/// again.
#[test]
fn what_is_behind_the_head_comes_with_it() {
    let (raw, image) = packed(8 << 20, Format::Zstd, 64 << 10);
    let server = Server::start(image);
    let options = || sidecore_remote::Options {
        beyond_bytes: 1 << 20,
        ..options()
    };
    let device_of_url = |url: &str| device(&open(url, options()));
    let device = device_of_url(&server.url());
    let mut found = vec![0; 1 << 20];
    // Compressed to a half: the first MiB lies after the head's 128 KiB.
    device.read_into(300 << 10, &mut found).unwrap();
    assert!(found == raw[300 << 10..][..1 << 20]);
    assert_eq!(server.requests(), 3);
    // A shorter image has no bytes after the head.
    let (raw, image) = packed(100 << 10, Format::Zstd, 64 << 10);
    let server = Server::start(image);
    let device = device_of_url(&server.url());
    let mut found = vec![0; raw.len()];
    device.read_into(0, &mut found).unwrap();
    assert!(found == raw);
}

/// Grouped frames cost nothing until one of them is read, and then few requests.
#[test]
fn frames_that_belong_together_come_with_the_first_of_them() {
    let (raw, image) = packed(8 << 20, Format::Zstd, 64 << 10);
    let requests = |are_together: bool| {
        let server = Server::start(image.clone());
        let remote = open(&server.url(), options());
        let device = device(&remote);
        if are_together {
            let frames: Vec<u64> = (0..40).collect();
            remote.fetch_together(device.index(), &frames);
        }
        let read = |frame: u64| {
            let mut found = [0; 512];
            device.read_into(frame << 16, &mut found).unwrap();
            assert!(found == raw[frame as usize * (64 << 10)..][..512]);
        };
        // One frame that was fetched with the head, and one that was not.
        read(0);
        read(100);
        assert_eq!(server.requests(), 3);
        // Each read is far from the one before, so that no read-ahead starts.
        for step in 0..40 {
            read(step * 17 % 40);
        }
        server.requests()
    };
    let (together, alone) = (requests(true), requests(false));
    assert!(together <= 12, "{together} requests, {alone} without");
    assert!(alone >= 24, "{together} requests, {alone} without");
}

/// A parser that walks through a long table has it fetched in growing pieces, bounded by the given
/// memory.
#[test]
fn tables_are_fetched_ahead_within_the_memory() {
    let server = Server::start(vec![7; 24 << 20]);
    let options = sidecore_remote::Options {
        memory_bytes: 4 << 20,
        ..options()
    };
    let remote = open(&server.url(), options);
    let before = server.sent_bytes();
    let mut piece = [0; 4096];
    let (from, to) = (1 << 20, 9 << 20);
    for at in (from..to).step_by(piece.len()) {
        remote.read_exact_at(&mut piece, at).unwrap();
        assert_eq!(piece, [7; 4096]);
    }
    let sent = server.sent_bytes() - before;
    let ahead = sent - (to - from);
    assert!(ahead <= 1 << 20, "{ahead} bytes ahead of 4 MiB of memory");
}

/// The range of a file below a folder that a request asks for.
fn part_of(root: &Path, request: &Request) -> Other {
    let path = root.join(request.path.trim_start_matches('/'));
    let Ok(bytes) = std::fs::read(path) else {
        return (404, Vec::new(), Vec::new());
    };
    let range = request.header("range").unwrap();
    let (start, end) = range
        .strip_prefix("bytes=")
        .unwrap()
        .split_once('-')
        .unwrap();
    let start: usize = start.parse().unwrap();
    let end = bytes.len().min(end.parse::<usize>().unwrap() + 1);
    let said = format!("bytes {start}-{}/{}", end - 1, bytes.len());
    let headers = vec![("content-range".to_owned(), said)];
    (206, headers, bytes[start..end].to_vec())
}

#[test]
fn a_store_below_a_url_is_read_and_copied() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let backend = FolderBackend::create(&folder.path().join(name)).unwrap();
        Store::create(Arc::new(backend), 4096).unwrap()
    };
    let (here, there) = (make("here"), make("there"));
    let (raw, _) = packed(1 << 20, Format::Zstd, 64 << 10);
    let domain = Domain::shared();
    let mut session = Session::begin(&here, &domain, 1, 2).unwrap();
    let source = MemorySource::new(raw.clone());
    let stored = session.store(&source, &mut |_| ()).unwrap();
    session.publish("disk:1", &stored, false).unwrap();
    drop(session);

    let root = folder.path().to_owned();
    let guard = move |request: &Request| Some(part_of(&root, request));
    let server = Server::with_guard(Vec::new(), Box::new(guard));
    let url = format!("http://{}/here", server.host());
    let open = |name: &str| {
        let name = format!("store:{url}#{name}");
        Access::default().open(Path::new(&name), false, 64 << 20)
    };
    let read = || {
        let mut found = vec![0; raw.len()];
        let opened = open("disk:1").unwrap();
        opened.image.read_exact_at(&mut found, 0).map(|()| found)
    };
    assert!(read().unwrap() == raw);
    let unknown = open("disk:2").err().unwrap().to_string();
    assert!(unknown.contains("404"), "{unknown}");

    let remote = sidecore_remote::store::open(Path::new(&url)).unwrap();
    let only = ["disk:1".to_owned()];
    remote.copy_to(&there, &only, false, &mut |_| ()).unwrap();
    assert_eq!(there.names().unwrap(), only);
    remote.remove("disk:1").unwrap_err();

    let packs = folder.path().join("here/packs").read_dir().unwrap();
    let pack = packs.map(|entry| entry.unwrap().path()).next().unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[500] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let damaged = read().unwrap_err().to_string();
    assert!(damaged.contains("damaged"), "{damaged}");
    assert!(
        remote
            .copy_to(&there, &only, true, &mut |_| ())
            .unwrap()
            .unchanged
            == 1
    );
}
