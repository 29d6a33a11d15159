//! The whole device, on images of every format, under several readers at once.

use super::*;
use crate::inner::Kind;
use crate::pack::{Existing, Options, Source, Target, pack};
use sidecore_offload::{PoolConfig, TaskOptions, TasksOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const FORMATS: [Format; 5] = [
    Format::Zstd,
    Format::Lz4,
    Format::Cloop,
    Format::CloopLzo,
    Format::Raw,
];
pub(super) const FRAME_BYTES: u32 = 16 << 10;

/// Text-like bytes with runs, noise and a hole of zeros, from a seed.
fn contents(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut out = Vec::with_capacity(bytes + 64);
    while out.len() < bytes {
        match next() % 8 {
            0 => out.extend_from_slice(&next().to_le_bytes()),
            1 => out.extend(std::iter::repeat_n(next() as u8, (next() % 50) as usize)),
            _ => out.extend_from_slice(WORDS[(next() % 8) as usize].as_bytes()),
        }
    }
    out.truncate(bytes);
    let hole = bytes / 2 / FRAME_BYTES as usize * FRAME_BYTES as usize;
    let end = bytes.min(hole + 3 * FRAME_BYTES as usize);
    out[hole..end].fill(0);
    out
}

const WORDS: [&str; 8] = [
    "engine ",
    "frame ",
    "the image ",
    "of a ",
    "store\n",
    "DMA get ",
    "inflate ",
    "tag group ",
];

pub(crate) struct Packed {
    pub(crate) raw: Vec<u8>,
    pub(crate) image: File,
    _directory: tempfile::TempDir,
}

pub(crate) fn packed(format: Format, bytes: usize) -> Packed {
    packed_of(format, bytes, 0x5eed)
}

/// An image of contents that the seed chooses.
fn packed_of(format: Format, bytes: usize, seed: u64) -> Packed {
    let directory = tempfile::tempdir().unwrap();
    let (source, image) = (directory.path().join("raw"), directory.path().join("image"));
    // cloop does not store the length of its last block.
    let raw = contents(bytes.next_multiple_of(FRAME_BYTES as usize), seed);
    std::fs::write(&source, &raw).unwrap();
    let options = Options {
        format,
        frame_bytes: FRAME_BYTES,
        level: Some(1),
        tune: crate::codec::Tune::Size,
        cdc: false,
        engines: 2,
        thin: Default::default(),
        limits: Default::default(),
    };
    let options = match format {
        Format::Raw => Options {
            level: None,
            ..options
        },
        _ => options,
    };
    let source = Source::open(&source, Kind::Erofs, Path::new("/tmp")).unwrap();
    pack(
        source,
        Target::Path(&image, Existing::Replace),
        &options,
        &mut |_| (),
    )
    .unwrap();
    let image = File::options().read(true).write(true).open(&image).unwrap();
    Packed {
        raw,
        image,
        _directory: directory,
    }
}

pub(super) fn pool(engines: usize) -> Arc<Pool> {
    Arc::new(
        Pool::start(PoolConfig {
            engines,
            ..PoolConfig::default()
        })
        .unwrap(),
    )
}

fn open(image: &File, engines: usize) -> Arc<Device> {
    Device::open(
        image.try_clone().unwrap(),
        pool(engines),
        DeviceConfig::default(),
    )
    .unwrap()
}

/// With the least memory that will do, in which the image does not fit.
pub(crate) fn open_least(image: &File, engines: usize) -> Arc<Device> {
    let open = |memory_bytes| {
        let config = DeviceConfig {
            memory_bytes,
            ..DeviceConfig::default()
        };
        Device::open(image.try_clone().unwrap(), pool(engines), config)
    };
    let least = match open(1 << 20) {
        Err(DeviceError::Memory { needed_bytes, .. }) => needed_bytes,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("1 MiB was enough"),
    };
    let device = open(least).unwrap();
    assert!(device.map.is_none());
    device
}

/// An image once mapped and once not.
fn open_both(image: &File, engines: usize) -> [Arc<Device>; 2] {
    let mapped = open(image, engines);
    assert!(mapped.map.is_some());
    [mapped, open_least(image, engines)]
}

pub(super) fn read_with(device: &Device, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
    let mut result = None;
    device.read_with(offset, len, &mut |pieces| {
        assert!(result.is_none(), "delivered twice");
        result = Some(pieces.map(<[&[u8]]>::concat).map_err(ReadError::clone));
    });
    result.expect("delivered once")
}

pub(super) fn read_into(device: &Device, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
    let mut buffer = vec![0xA5; len];
    device.read_into(offset, &mut buffer).map(|()| buffer)
}

/// By its identity a server that goes on with a mount knows the image again.
#[test]
fn images_of_other_contents_have_another_identity() {
    for format in FORMATS {
        let image = packed(format, 300_000);
        let identity = |image: &File| open(image, 1).identity().unwrap();
        let own = identity(&image.image);
        assert_eq!(own, identity(&image.image), "{format:?}");
        let other = packed_of(format, 300_000, 7);
        assert_eq!(image.raw.len(), other.raw.len());
        assert_ne!(own, identity(&other.image), "{format:?}");
    }
    // Without checksums a change between the ends shows in the file's time alone.
    let image = packed(Format::Raw, 1 << 20);
    let own = open(&image.image, 1).identity().unwrap();
    image.image.write_all_at(&[7], 500_000).unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(9);
    image.image.set_modified(later).unwrap();
    assert_ne!(own, open(&image.image, 1).identity().unwrap());
}

/// Random reads from several threads; every byte is compared.
fn hammer(device: &Device, raw: &[u8], seed: u64) {
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || read_at_random(device, raw, seed ^ (thread + 1) << 32 | 1));
        }
    });
}

fn read_at_random(device: &Device, raw: &[u8], seed: u64) {
    let mut state = seed;
    for step in 0..300 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let offset = (state >> 8) as usize % raw.len();
        let most = if step % 10 == 0 { 300_000 } else { 9_000 };
        let len = ((state >> 40) as usize % most).min(raw.len() - offset);
        let got = if step % 3 == 0 {
            read_into(device, offset as u64, len)
        } else {
            read_with(device, offset as u64, len)
        };
        assert!(
            got.unwrap() == raw[offset..offset + len],
            "seed {seed:#x}: {len} bytes at {offset} differ"
        );
    }
}

#[test]
fn every_format_reads_back_under_many_readers() {
    for format in FORMATS {
        let packed = packed(format, 3 << 20);
        for device in open_both(&packed.image, 3)
            .into_iter()
            .chain([open(&packed.image, 1)])
        {
            assert_eq!(device.size_bytes(), packed.raw.len() as u64, "{format:?}");
            hammer(&device, &packed.raw, 0xC0FFEE);
        }
    }
}

#[test]
fn a_cache_of_the_least_size_still_serves_everyone() {
    let packed = packed(Format::Zstd, 4 << 20);
    let device = open_least(&packed.image, 2);
    hammer(&device, &packed.raw, 0xB0B);
    assert!((device.cache_slots() * FRAME_BYTES as usize) < packed.raw.len());
}

/// The device does not depend on tasks; readers that are tasks of one or two threads wait for one
/// another's frames, in a cache that is too small for all.
#[test]
fn readers_that_are_tasks_of_few_threads_never_wait_for_themselves() {
    let packed = packed(Format::Zstd, 3 << 20);
    for hosts in [1, 2] {
        let device = open(&packed.image, 2);
        let options = TasksOptions {
            hosts,
            live_max: Some(6),
            ..TasksOptions::default()
        };
        let tasks = pool(1);
        for pool in [device.pool(), &tasks] {
            pool.tasks(options.clone(), |scope| {
                for task in 0..8_u64 {
                    let (device, raw) = (&device, &packed.raw);
                    scope.spawn(TaskOptions::default(), move |_| {
                        read_at_random(device, raw, 0xF1BE5 ^ (task + 1) << 32 | 1);
                    });
                }
            })
            .unwrap();
        }
    }
}

#[test]
fn a_sequential_reader_finds_frames_inflated_ahead() {
    let packed = packed(Format::Zstd, 8 << 20);
    let device = open(&packed.image, 2);
    for (index, chunk) in packed.raw.chunks(FRAME_BYTES as usize).enumerate() {
        let got = read_with(&device, (index * FRAME_BYTES as usize) as u64, chunk.len()).unwrap();
        assert!(got == chunk);
        // A reader that processes its bytes for as long as the engines need to finish their work.
        let begun = std::time::Instant::now();
        while device.pool().backlog() > 0 || device.pool().engines_idle() < 2 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the engines hang"
            );
            std::thread::yield_now();
        }
    }
    let counts = device.cache_counts();
    let background: u64 = device.pool().counters().iter().map(|c| c.background).sum();
    assert!(
        background > 100,
        "read ahead {background} frames; {counts:?}"
    );
    assert!(counts.hits + counts.joins > 100, "{counts:?}");
}

#[test]
fn reads_past_the_end_are_refused_and_zero_frames_are_known() {
    let packed = packed(Format::Zstd, 1 << 20);
    let device = open(&packed.image, 1);
    let size = device.size_bytes();
    for (offset, len) in [(size, 1), (size - 1, 2), (u64::MAX, 1), (u64::MAX - 3, 100)] {
        let refused = read_with(&device, offset, len).unwrap_err();
        assert!(matches!(refused, ReadError::OutOfRange { .. }), "{refused}");
        assert!(read_into(&device, offset, len).is_err());
    }
    assert_eq!(read_with(&device, size, 0).unwrap(), b"");
    let hole = packed.raw.len() / 2 / FRAME_BYTES as usize * FRAME_BYTES as usize;
    let extent = device.extent(hole as u64);
    assert_eq!(
        extent,
        Extent {
            len: 3 * u64::from(FRAME_BYTES),
            zero: true
        }
    );
    assert_eq!(
        device.extent(0),
        Extent {
            len: hole as u64,
            zero: false
        }
    );
    assert_eq!(device.extent(size).len, 0);
}

/// A damaged frame fails exactly the reads that touch it, never with wrong bytes.
#[test]
fn damage_fails_the_reads_that_touch_it_and_no_others() {
    for format in [Format::Zstd, Format::Lz4, Format::Cloop] {
        let mut packed = packed(format, 1 << 20);
        let bad = 5_u64;
        let frame = open(&packed.image, 1).index().frame(bad);
        let at = frame.offset + u64::from(frame.stored_bytes) / 2;
        let mut byte = [0];
        packed.image.seek(SeekFrom::Start(at)).unwrap();
        packed.image.read_exact(&mut byte).unwrap();
        packed.image.seek(SeekFrom::Start(at)).unwrap();
        packed.image.write_all(&[byte[0] ^ 0x10]).unwrap();
        let device = open(&packed.image, 2);
        let frame_bytes = u64::from(FRAME_BYTES);
        for index in 0..device.index().frames() {
            for (offset, len) in [(0, frame_bytes), (100, 4096), (frame_bytes - 1, 1)] {
                let offset = index * frame_bytes + offset;
                for got in [
                    read_with(&device, offset, len as usize),
                    read_into(&device, offset, len as usize),
                ] {
                    if index == bad {
                        let error = got.expect_err("damaged");
                        assert_eq!(error.errno(), libc::EIO, "{format:?}: {error}");
                    } else {
                        let expected = &packed.raw[offset as usize..(offset + len) as usize];
                        assert!(got.unwrap() == expected, "{format:?} frame {index}");
                    }
                }
            }
        }
        // A long read over it fails as a whole; one that ends before it does not.
        assert!(read_with(&device, 0, 8 * FRAME_BYTES as usize).is_err());
        assert!(read_into(&device, 0, 8 * FRAME_BYTES as usize).is_err());
        assert!(read_with(&device, 0, 5 * FRAME_BYTES as usize).is_ok());
        hammer(&device, &packed.raw[..5 * FRAME_BYTES as usize], 7);
    }
}

/// The check covers the whole frame: a frame that is damaged only at its end delivers no bytes, not
/// even those before the damage.
#[test]
fn damage_at_a_frames_end_keeps_its_beginning_back() {
    for format in [Format::Zstd, Format::Lz4] {
        let packed = packed(format, 4 << 20);
        let bad = 5_u64;
        let frame = open(&packed.image, 1).index().frame(bad);
        let last = frame.offset + u64::from(frame.stored_bytes) - 1;
        for device in open_both(&packed.image, 2) {
            let start = bad * u64::from(FRAME_BYTES);
            let expected = &packed.raw[start as usize..][..4096];
            assert!(read_with(&device, start, 4096).unwrap() == expected);
            device.drop_cache();
            let mut byte = [0];
            packed.image.read_exact_at(&mut byte, last).unwrap();
            packed.image.write_all_at(&[byte[0] ^ 1], last).unwrap();
            for _ in 0..3 {
                let refused = read_with(&device, start, 4096).unwrap_err();
                assert_eq!(refused.errno(), libc::EIO, "{format:?}: {refused}");
                let refused = read_into(&device, start, 4096).unwrap_err();
                assert_eq!(refused.errno(), libc::EIO, "{format:?}: {refused}");
            }
            packed.image.write_all_at(&byte, last).unwrap();
            // None of its bytes were cached.
            assert!(read_with(&device, start, 4096).unwrap() == expected);
        }
    }
}

/// The file is truncated under an open device: an error for the missing part, the rest still reads.
#[test]
fn an_image_cut_short_while_open_fails_without_dying() {
    for (format, which) in FORMATS
        .into_iter()
        .flat_map(|format| [(format, 0), (format, 1)])
    {
        let packed = packed(format, 4 << 20);
        let device = &open_both(&packed.image, 2)[which];
        let frames = device.index().frames();
        let cut = device.index().frame(frames / 4).offset;
        packed.image.set_len(cut).unwrap();
        let (mut good, mut failed) = (0, 0);
        for index in 0..frames {
            let frame = device.index().frame(index);
            match read_with(device, frame.raw_offset, frame.raw_bytes as usize) {
                Ok(bytes) => {
                    let start = frame.raw_offset as usize;
                    let expected = &packed.raw[start..start + frame.raw_bytes as usize];
                    assert!(
                        bytes == expected,
                        "{format:?}: frame {index} reads wrong bytes"
                    );
                    good += 1;
                }
                Err(error) => {
                    assert_eq!(error.errno(), libc::EIO);
                    failed += 1;
                }
            }
        }
        assert!(
            good >= frames / 4,
            "{format:?}: {good} good, {failed} failed of {frames}"
        );
        assert!(
            failed >= frames / 4,
            "{format:?}: {good} good, {failed} failed of {frames}"
        );
    }
}

#[test]
fn idle_memory_is_given_back() {
    let packed = packed(Format::Zstd, 4 << 20);
    let device = open(&packed.image, 2);
    hammer(&device, &packed.raw, 3);
    let misses = device.cache_counts().misses;
    device.release_idle(Duration::from_secs(3600));
    read_with(&device, 0, 100).unwrap();
    device.drop_cache();
    read_with(&device, 0, 100).unwrap();
    assert!(device.cache_counts().misses > misses);
}
