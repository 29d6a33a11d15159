//! The FUSE file from end to end, as `dd` reads it; and page faults of a guest's memory.
//!
//! Why here: every mount reads through this file; its speed bounds them all. Faults are the other
//! way by which the kernel asks a server of ours for pages.
//! Must stay true: each round mounts anew, so that the kernel has no cached page of the file; the
//! image is in the page cache, so that no disk is measured; all bytes are compared.
//! Source: the slides on the block device (docs/papers.md), `dd` of the device.

use super::inputs::{Corpus, sidecore, warm_all, wrong};
use super::tools::{Runner, Server, tool};
use super::{Bench, BenchError, Candidate, file_bytes};
use crate::measure::Better;
use crate::measure::stats::Series;
use rustix::io::Errno;
use sidecore_bare::width::ToU64;
use sidecore_block::format::Format;
use sidecore_random::Random;
use sidecore_sys::local_socket;
use sidecore_sys::userfault::{LazyMemory, UserFaults};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// `dd` of zstd and LZ4.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let raw = bench.raw(Corpus::Given)?;
    let raw_bytes = file_bytes(&raw)?;
    let mut names = Vec::new();
    let mut candidates = Vec::new();
    for (format, target) in [
        (Format::Zstd, Some(900.0)),
        (Format::Lz4, Some(2000.0)),
        (Format::Cloop, None),
        (Format::Raw, None),
    ] {
        let image = match format {
            Format::Raw => raw.clone(),
            format => bench.image(Corpus::Given, format)?,
        };
        // Otherwise the first candidate of a round would pay for the disk.
        warm_all(&[&image])?;
        let name = format.name();
        let program = bench.config.sidecore.clone();
        check(bench, &program, &image, &raw, name)?;
        names.push((name, target));
        candidates.push(Candidate::of_one(name, move |runner| {
            let (_server, file) = serve_file(runner, &program, &image)?;
            let seconds = runner.time(dd(&file)?.arg("of=/dev/null"))?;
            Ok(raw_bytes as f64 / 1e6 / seconds)
        }));
    }
    let series = bench.interleave("dd of the FUSE file", "MB/s", &mut candidates)?;
    drop(candidates);
    for ((name, target), series) in names.into_iter().zip(&series) {
        let Some(series) = series else { continue };
        let row = bench.row(format!("dd of the FUSE file, {name}"), None, series, "MB/s");
        row.better = Better::Higher;
        if let Some(target) = target {
            row.target(Better::Higher, target);
            row.note("a target in MB/s holds for the machine of the first measurements only");
        } else if name == Format::Raw.name() {
            row.note("served by us, without the kernel's passthrough: the ceiling of this way in");
        }
    }
    Ok(())
}

/// Compares the bytes that `dd` would get with the contents.
fn check(
    bench: &Bench<'_>,
    program: &Path,
    image: &Path,
    raw: &Path,
    name: &str,
) -> Result<(), BenchError> {
    let (_server, file) = serve_file(&bench.runner, program, image)?;
    let mut command = tool("cmp")?;
    let bytes = file_bytes(raw)?.to_string();
    command.args(["-n", &bytes]).arg(file).arg(raw);
    let run = bench.runner.time(&mut command);
    run.map(drop)
        .map_err(|error| wrong(&format!("the FUSE file of {name}"), &error))
}

/// Serves an image as a FUSE file; returns the file with the server.
pub(crate) fn serve_file(
    runner: &Runner,
    program: &Path,
    image: &Path,
) -> Result<(Server, PathBuf), BenchError> {
    let directory = runner.fresh_directory("fuse")?;
    let mut command = sidecore(program, runner.directory());
    command.arg("mount").arg(image).arg(&directory);
    command.args(["--file-only", "--foreground", "--no-passthrough"]);
    let server = runner.serve(&mut command, Some(&directory), |said| {
        said.lines().any(|line| line.starts_with("mounted "))
    })?;
    Ok((server, directory.join("image")))
}

/// `dd` of a file, in pieces of 1 MiB.
pub(crate) fn dd(file: &Path) -> Result<Command, BenchError> {
    let mut command = tool("dd")?;
    command
        .args(["bs=1M", "status=none"])
        .arg(format!("if={}", file.display()));
    Ok(command)
}

/// First touches of a guest's memory that a zstd image backs, in random order.
pub(crate) fn faults(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let raw = bench.raw(Corpus::Small)?;
    let image = bench.image(Corpus::Small, Format::Zstd)?;
    warm_all(&[&image])?;
    let mut contents = std::fs::read(&raw).map_err(BenchError::io("read the contents"))?;
    let pages = (contents.len() / PAGE_BYTES).min(bench.choose(1000, 16_384));
    contents.truncate(pages * PAGE_BYTES);
    let arounds = ["4KiB", "64KiB"];
    // A candidate returns the median; the rest of the same touches goes here.
    let p99: Vec<RefCell<Vec<f64>>> = arounds.iter().map(|_| RefCell::default()).collect();
    let mut candidates = Vec::new();
    for (around, p99) in arounds.into_iter().zip(&p99) {
        let program = bench.config.sidecore.clone();
        let (image, contents) = (&image, &contents);
        candidates.push(Candidate::of_one(around, move |runner| {
            let times_us = touch(runner, &program, image, around, contents)?;
            p99.borrow_mut().push(times_us[times_us.len() * 99 / 100]);
            Ok(times_us[times_us.len() / 2])
        }));
    }
    let series = bench.interleave("page fault of a guest, median", "us", &mut candidates)?;
    drop(candidates);
    for ((around, p99), series) in arounds.into_iter().zip(p99).zip(&series) {
        let Some(series) = series else { continue };
        let name = format!("page fault of a guest, {around} a fault");
        let row = bench.row(format!("{name}, median"), None, series, "us");
        row.better = Better::Lower;
        row.note("touches of pages that came with another one are among them");
        let p99 = Series::new(p99.into_inner());
        bench.row(format!("{name}, p99"), None, &p99, "us").better = Better::Lower;
    }
    Ok(())
}

/// Microseconds of the first touch of each page, sorted.
fn touch(
    runner: &Runner,
    program: &Path,
    image: &Path,
    around: &str,
    contents: &[u8],
) -> Result<Vec<f64>, BenchError> {
    let lacks = |error| BenchError::Missing(format!("userfaultfd needs root here: {error}"));
    let memory = LazyMemory::new(contents.len()).map_err(lacks)?;
    let socket = runner.fresh("sock");
    let mut command = sidecore(program, runner.directory());
    command.arg("memory").arg(image).args(["--around", around]);
    command.arg("--socket").arg(&socket);
    let ready = |said: &str| said.lines().any(|line| line == "ready");
    let server = runner.serve(&mut command, None, ready)?;
    let regions = serde_json::json!([{
        "base_host_virt_addr": memory.address(),
        "size": contents.len(),
        "offset": 0,
        "page_size": PAGE_BYTES,
    }]);
    let client = UnixStream::connect(&socket).map_err(BenchError::io("connect to the server"))?;
    let descriptors = [memory.descriptor()];
    local_socket::send(client.as_fd(), regions.to_string().as_bytes(), &descriptors)?;
    let failed = |error: Errno| BenchError::io("watch the guest's memory")(error.into());
    let faults = memory.descriptor().try_clone_to_owned();
    let faults = faults.map_err(BenchError::io("share the guest's memory"))?;
    let faults = UserFaults::adopt(faults).map_err(failed)?;
    let is_done = local_socket::poker()?;
    let waited_for = [is_done.as_fd(), server.ended()];
    let pages = contents.len() / PAGE_BYTES;
    let (touched, was_filled) = std::thread::scope(|threads| {
        let watcher = threads.spawn(|| fill_if_dead(&faults, memory.address(), pages, &waited_for));
        let touched = touch_all(&memory, contents);
        local_socket::poke(is_done.as_fd());
        (touched, watcher.join().unwrap_or(true))
    });
    match was_filled {
        true => Err(BenchError::Program {
            command: "sidecore block memory".into(),
            what: format!("ended, or was too slow: {}", server.said().trim()),
        }),
        false => touched,
    }
}

/// Waits for the end of the touches. Where the server ends before that, or they take too long, the
/// memory's missing pages become zeros, so that no thread waits for ever; true then.
fn fill_if_dead(faults: &UserFaults, at: u64, pages: usize, waited_for: &[BorrowedFd<'_>]) -> bool {
    let until = Instant::now() + TOUCH_TIME_MAX;
    let mut ready = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let polled = local_socket::poll(waited_for, &mut ready, left);
        if polled.is_ok() && ready[0] {
            return false;
        }
        // Otherwise a signal has come.
        if polled.is_err() || ready[1] || left.is_zero() {
            break;
        }
    }
    for page in 0..pages {
        // It fails for pages that have contents.
        let _ = faults.zero(at + (page * PAGE_BYTES).to_u64(), PAGE_BYTES.to_u64());
    }
    true
}

/// Touches each page once, in random order: the microseconds, sorted.
fn touch_all(memory: &LazyMemory, contents: &[u8]) -> Result<Vec<f64>, BenchError> {
    let mut order: Vec<usize> = (0..contents.len() / PAGE_BYTES).collect();
    let mut random = Random::new(SEED);
    for last in (1..order.len()).rev() {
        order.swap(last, random.index(last + 1));
    }
    let mut page = vec![0; PAGE_BYTES];
    let mut times_us = Vec::with_capacity(order.len());
    for number in order {
        let at = number * PAGE_BYTES;
        let began = Instant::now();
        let mut is_same = memory.copy_to(at, &mut page[..1]);
        times_us.push(began.elapsed().as_nanos() as f64 / 1000.0);
        is_same &= memory.copy_to(at, &mut page) && page == contents[at..at + PAGE_BYTES];
        if !is_same {
            return Err(BenchError::WrongBytes {
                what: "guest memory".into(),
                detail: format!("at byte {at}"),
            });
        }
    }
    times_us.sort_by(f64::total_cmp);
    Ok(times_us)
}

const PAGE_BYTES: usize = 4096;
/// Longest time of all touches.
const TOUCH_TIME_MAX: Duration = Duration::from_secs(120);
/// Seed of the order, the same in each round.
const SEED: u64 = 0x6d65_6d6f;
