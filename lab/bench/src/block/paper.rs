//! The papers' other figures: image sizes, `dd` of the device, mapping, switching, the export.
//!
//! Why here: the papers reasoned with these numbers; they are printed next to this machine's.
//! Must stay true: each is measured by the papers' method, or the note names the difference.
//! Source: the block device paper and its slides (docs/papers.md).

use super::fuse::dd;
use super::inputs::{Corpus, sidecore, warm_all};
use super::nbd::Export;
use super::{Bench, BenchError, Candidate, figures, file_bytes, tools};
use crate::measure::stats::{Series, median};
use sidecore_block::format::Format;
use sidecore_export::nbd::client::Client;
use sidecore_sys::{HugePages, Region, RegionOptions};
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Instant;

/// Runs all measurements of the group.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    sizes(bench)?;
    mapping(bench)?;
    switching(bench)?;
    way_in(bench)?;
    device(bench)
}

fn sizes(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let [raw, minilzo, gzip] = figures::IMAGE_MB;
    let path = bench.raw(Corpus::Small)?;
    let mut sizes = vec![("as it is", Some(raw), path)];
    let level = ["--level", "1"];
    let path = bench.image_with(Corpus::Small, Format::CloopLzo, "cloop-lzo level 1", &level)?;
    sizes.push(("cloop, LZO1X at level 1", Some(minilzo), path));
    let path = bench.image(Corpus::Small, Format::CloopLzo)?;
    sizes.push(("cloop, LZO1X", None, path));
    let path = bench.image(Corpus::Small, Format::Cloop)?;
    sizes.push(("cloop, zlib -9", Some(gzip), path));
    let path = bench.image(Corpus::Small, Format::Zstd)?;
    sizes.push(("zstd", None, path));
    let path = bench.image(Corpus::Small, Format::Lz4)?;
    sizes.push(("lz4", None, path));
    for (name, paper, path) in sizes {
        let size = Series::new(vec![file_bytes(&path)? as f64 / 1e6]);
        let row = bench.row(format!("small image, {name}"), paper, &size, "MB");
        row.note("the contents are this machine's own: compare the ratios, not the sizes");
    }
    Ok(())
}

/// Maps and unmaps locked memory, as the papers' daemon did for every block.
fn mapping(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    bench.say("mapping memory");
    for (index, kib) in figures::SIZE_KB.into_iter().enumerate() {
        let medians = bench.each_round(|_| {
            let mut times = Vec::new();
            for _ in 0..MAPS {
                let began = Instant::now();
                drop(locked(kib << 10)?);
                times.push(began.elapsed().as_nanos() as f64 / 1000.0);
            }
            Ok(median(&times))
        })?;
        let name = format!("map, lock, touch and unmap {kib} KiB");
        let paper = figures::MMAP_PPE_US[index];
        let x86 = figures::MMAP_X86_US[index];
        let row = bench.row(&name, Some(paper), &Series::new(medians), "us");
        row.note(format!("the papers: PPE; x86 {x86}"));
    }
    Ok(())
}

/// A byte to another process on the same core and back, with this much memory mapped and locked.
fn switching(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    bench.say("switching processes");
    let core = sidecore_sys::cpu::allowed()?.last().copied().unwrap_or(0);
    for (index, kib) in figures::SIZE_KB.into_iter().enumerate() {
        let region = locked(kib << 10)?;
        let medians = bench.each_round(|_| switch_us(core))?;
        drop(region);
        let name = format!("process switch over a pipe, {kib} KiB mapped");
        let paper = figures::SWITCH_PPE_US[index];
        let x86 = figures::SWITCH_X86_US[index];
        bench
            .row(&name, Some(paper), &Series::new(medians), "us")
            .note(format!(
                "half a round trip to a `cat` on the same core, pipe calls included; \
             the papers: PPE; x86 {x86}"
            ));
    }
    Ok(())
}

fn locked(bytes: usize) -> Result<Region, BenchError> {
    let options = RegionOptions {
        huge: HugePages::None,
        ..RegionOptions::default()
    };
    Ok(Region::new(bytes, options)?)
}

/// The median half round trip in us.
fn switch_us(core: usize) -> Result<f64, BenchError> {
    let mut command = tools::tool("taskset")?;
    command.args(["-c", &core.to_string(), "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(BenchError::io("start cat"))?;
    let (to, from) = (child.stdin.take(), child.stdout.take());
    let result = std::thread::scope(|scope| {
        // A thread of its own, so that only it is pinned.
        let work = scope.spawn(move || -> Result<f64, BenchError> {
            let (Some(mut to), Some(mut from)) = (to, from) else {
                return Err(BenchError::Missing("pipes to a child".into()));
            };
            sidecore_sys::cpu::pin(core)?;
            let mut byte = [7];
            let mut times = Vec::with_capacity(SWITCHES);
            for _ in 0..SWITCHES {
                let began = Instant::now();
                to.write_all(&byte)
                    .map_err(BenchError::io("write to a pipe"))?;
                from.read_exact(&mut byte)
                    .map_err(BenchError::io("read from a pipe"))?;
                times.push(began.elapsed().as_nanos() as f64 / 2000.0);
            }
            Ok(median(&times))
        });
        match work.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    // Its pipe is closed: it ends by itself, or is made to.
    let _ = child.kill();
    let _ = child.wait();
    result
}

/// The path to the device and back, without decompression: one block over and over, over NBD.
fn way_in(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let image = bench.image(Corpus::Small, Format::CloopLzo)?;
    let export = Export::ours(bench, "ours", &image, None);
    let mut candidates = vec![Candidate::of_one("ours", |runner| {
        let (_server, socket) = export.serve(runner)?;
        let mut client = Client::connect(&socket, "")?;
        let mut block = vec![0; 4096];
        let mut times = Vec::with_capacity(WAYS);
        for _ in 0..WAYS {
            let began = Instant::now();
            client.read_at(0, &mut block)?;
            times.push(began.elapsed().as_nanos() as f64 / 1000.0);
        }
        Ok(median(&times))
    })];
    let metric = "way in and back over NBD, a cached block";
    let series = bench.interleave(metric, "us", &mut candidates)?;
    drop(candidates);
    if let Some(Some(series)) = series.first() {
        let paper = figures::DRIVER_TO_DAEMON_US;
        bench
            .row(metric, Some(paper), series, "us")
            .note("the papers: from the driver to the daemon, one way");
    }
    Ok(())
}

/// `dd` of the block device that `attach` makes.
fn device(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    tools::need_root()?;
    let image = bench.image(Corpus::Small, Format::CloopLzo)?;
    warm_all(&[&image])?;
    let mb = file_bytes(&bench.raw(Corpus::Small)?)? as f64 / 1e6;
    let program = bench.config.sidecore.clone();
    let image = &image;
    let mut candidates = vec![Candidate::of_one("ours", move |runner| {
        let mut command = sidecore(&program, runner.directory());
        // In the foreground, so that the server ends with the round.
        command.arg("attach").arg(image).arg("--foreground");
        let device = |said: &str| {
            let line = said.lines().find(|line| line.starts_with("attached "))?;
            let after = line.split(" as ").nth(1)?;
            Some(after.split(' ').next()?.to_owned())
        };
        let server = runner.serve(&mut command, None, |said| device(said).is_some())?;
        let path = device(&server.said()).unwrap_or_default();
        let seconds = runner.time(dd(path.as_ref())?.arg("of=/dev/null"))?;
        Ok(mb / seconds)
    })];
    let metric = "dd of the device, cloop with LZO1X";
    let series = bench.interleave(metric, "MB/s", &mut candidates)?;
    drop(candidates);
    if let Some(Some(series)) = series.first() {
        let paper = figures::DD_MB_S;
        let row = bench.row(metric, Some(paper.spe), series, "MB/s");
        row.better = crate::measure::Better::Higher;
        row.note(format!(
            "the papers: one SPE; x86 {}, PPE {}",
            paper.x86, paper.ppe
        ));
    }
    Ok(())
}

const MAPS: usize = 200;
const SWITCHES: usize = 2000;
const WAYS: usize = 2000;
