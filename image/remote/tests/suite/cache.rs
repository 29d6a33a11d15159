//! Frames on disk: fetched once, shared by processes and images, correct after any damage.

use crate::common::server::Server;
use crate::common::{device, image_of, open, options, packed};
use sidecore_block::format::{Format, Index};
use sidecore_block::source::BlockSource;
use sidecore_remote::{Location, Options, RemoteImage};
use std::path::Path;
use std::time::{Duration, Instant};

fn kept(directory: &Path) -> Options {
    Options {
        cache: Some((directory.to_owned(), 1 << 30)),
        ..options()
    }
}

fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let parts = std::fs::read_dir(directory).unwrap().flatten();
    let parts = parts.filter(|part| part.path().is_dir() && part.file_name() != "tmp");
    let files = parts.flat_map(|part| std::fs::read_dir(part.path()).unwrap().flatten());
    files.map(|file| file.path()).collect()
}

/// Reads all of it and compares.
fn read_all(url: &str, options: Options, raw: &[u8]) {
    let device = device(&open(url, options));
    let mut found = vec![0; raw.len()];
    device.read_into(0, &mut found).unwrap();
    assert!(found == raw);
}

/// Frames are written to disk after the waiting readers got them: waits until there are `count`
/// files.
fn wait_for_files(directory: &Path, count: usize) {
    let begun = Instant::now();
    while files(directory).len() < count {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{}",
            files(directory).len()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Number of frames that are cached once all were read: those in the head and the tail are fetched
/// with each opening, and zeros are not fetched.
fn inner_frames(index: &Index) -> usize {
    let ends = (128 << 10)..(index.stored_bytes() - (384 << 10));
    let inner = (0..index.frames()).filter(|&i| {
        let frame = index.frame(i);
        let end = frame.offset + u64::from(frame.stored_bytes);
        !index.is_zero(i) && end > ends.start && frame.offset < ends.end
    });
    inner.count()
}

#[test]
fn a_second_process_finds_the_frames_and_damage_is_fetched_again() {
    let (raw, image) = packed(4 << 20, Format::Zstd, 64 << 10);
    let index = Index::read(&&*image).unwrap();
    let server = Server::start(image.clone());
    let directory = tempfile::tempdir().unwrap();
    read_all(&server.url(), kept(directory.path()), &raw);
    let inner = inner_frames(&index);
    wait_for_files(directory.path(), inner);
    let requests = server.requests();
    read_all(&server.url(), kept(directory.path()), &raw);
    assert_eq!(server.requests() - requests, 2, "only the ends are fetched");
    // The same contents under another name: a copy, or another version that shares frames.
    let other = Server::start(image);
    read_all(&other.url(), kept(directory.path()), &raw);
    assert_eq!(other.requests(), 2);
    for (at, file) in files(directory.path()).iter().enumerate() {
        let mut bytes = std::fs::read(file).unwrap();
        match at % 3 {
            0 => bytes.truncate(at * 97 % bytes.len()),
            1 => bytes[at * 31 % 5000] ^= 4,
            _ => bytes.clear(),
        }
        std::fs::write(file, bytes).unwrap();
    }
    read_all(&server.url(), kept(directory.path()), &raw);
    let tmp = directory.path().join("tmp");
    // Moved, not removed: frames of the last reader may still be written there.
    std::fs::rename(&tmp, directory.path().join("moved")).unwrap();
    std::fs::write(&tmp, "").unwrap();
    let location = Location::parse(&server.url()).unwrap().unwrap();
    let opened = RemoteImage::open(&location, kept(directory.path()));
    assert!(
        opened.is_err(),
        "a directory that takes no files is refused at once"
    );
}

#[test]
fn frames_that_were_prefetched_cost_a_reader_no_request() {
    for keeps in [false, true] {
        let (raw, image) = packed(16 << 20, Format::Zstd, 64 << 10);
        let index = Index::read(&&*image).unwrap();
        let server = Server::start(image);
        let directory = tempfile::tempdir().unwrap();
        let options = match keeps {
            true => kept(directory.path()),
            false => options(),
        };
        let remote = open(&server.url(), options);
        // From the end to the beginning: an order that no read-ahead expects.
        let frames: Vec<u64> = (0..index.frames()).rev().collect();
        let wanted: u64 = frames
            .iter()
            .map(|&i| u64::from(index.frame(i).stored_bytes))
            .sum();
        remote.prefetch(&index, &frames);
        let begun = Instant::now();
        while remote.counts().fetched_bytes + (700 << 10) < wanted {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{:?}",
                remote.counts()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let requests = server.requests();
        let device = device(&remote);
        for at in (0..raw.len()).step_by(1 << 20) {
            let mut found = vec![0; 1 << 20];
            device.read_into(at as u64, &mut found).unwrap();
            assert!(found == raw[at..][..1 << 20]);
        }
        // The last request may still have been in flight.
        assert!(
            server.requests() - requests <= 3,
            "{}",
            server.requests() - requests
        );
        assert!(
            server.sent_bytes() < wanted + (1100 << 10),
            "nothing is fetched twice"
        );
    }
}

/// A version with 3,000 bytes inserted in the middle: nearly all of its frames are in the cache of
/// the previous version if frame boundaries follow the contents; half of them otherwise.
#[test]
fn an_update_fetches_the_frames_that_changed() {
    let (first, _) = packed(6 << 20, Format::Zstd, 64 << 10);
    let mut second = first.clone();
    let at = 2 << 20;
    second.splice(at..at, first[..3000].iter().rev().copied());
    let mut fetched = [0; 2];
    for (fetched, cdc) in fetched.iter_mut().zip([false, true]) {
        let directory = tempfile::tempdir().unwrap();
        let image = image_of(&first, Format::Zstd, 16 << 10, cdc);
        let index = Index::read(&&*image).unwrap();
        assert_eq!(index.is_even(), !cdc);
        let server = Server::start(image);
        read_all(&server.url(), kept(directory.path()), &first);
        wait_for_files(directory.path(), inner_frames(&index));
        let server = Server::start(image_of(&second, Format::Zstd, 16 << 10, cdc));
        let remote = open(&server.url(), kept(directory.path()));
        let device = device(&remote);
        let mut found = vec![0; second.len()];
        device.read_into(0, &mut found).unwrap();
        assert!(found == second);
        *fetched = remote.counts().fetched_bytes;
    }
    let [even, cut] = fetched;
    // Fixed cuts: every frame after the insertion is new. Content-defined cuts: a few frames around
    // it.
    assert!(even > 1 << 20, "{even} bytes");
    assert!(cut < 200 << 10 && cut > 0, "{cut} bytes");
}
