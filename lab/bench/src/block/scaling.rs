//! 1 to N engines, where decompression is the limit.
//!
//! Why here: the papers' gain came from several SPEs on one image; this shows what further engines
//! give a single sequential reader, in process and over NBD.
//! Must stay true: the device reads the whole image each time, from a cold cache of frames, with
//! the image in the page cache.
//! Source: the slides on the block device (docs/papers.md), four SPEs.

use super::inputs::{Corpus, open, warm_all};
use super::nbd::Export;
use super::report::Scaling;
use super::tools::Runner;
use super::{Bench, BenchError, Candidate, Comparison, file_bytes};
use crate::measure::Better;
use crate::measure::stats::Series;
use sidecore_block::device::DeviceConfig;
use sidecore_block::format::Format;
use sidecore_block::source::BlockSource;
use sidecore_offload::ENGINES_MAX;
use std::path::Path;
use std::time::Instant;

/// In process and over NBD, zstd and zlib.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cores = sidecore_sys::cpu::allowed()?.len();
    let counts = counts(cores);
    let raw_bytes = file_bytes(&bench.raw(Corpus::Given)?)?;
    for (format, what) in [(Format::Cloop, "zlib"), (Format::Zstd, "zstd")] {
        let image = bench.image(Corpus::Given, format)?;
        warm_all(&[&image])?;
        let name = format!("{what}, in process");
        let mut candidates: Vec<_> = counts
            .iter()
            .map(|&engines| {
                let image = image.clone();
                Candidate::of_one(engines_name(engines), move |runner| {
                    in_process(runner, &image, engines)
                })
            })
            .collect();
        let series = bench.interleave(&name, "MB/s", &mut candidates)?;
        record(bench, &name, &counts, &series, true);

        let name = format!("{what}, NBD");
        let exports: Vec<_> = counts
            .iter()
            .map(|&n| Export::ours(bench, &engines_name(n), &image, Some(n)))
            .collect();
        let mut candidates: Vec<_> = exports
            .iter()
            .map(|export| {
                Candidate::of_one(&export.name, move |runner: &Runner| {
                    Ok(raw_bytes as f64 / 1e6 / export.copy(runner)?.0)
                })
            })
            .collect();
        let series = bench.interleave(&name, "MB/s", &mut candidates)?;
        drop(candidates);
        record(bench, &name, &counts, &series, false);
    }
    Ok(())
}

/// Numbers of engines to measure: 1, 2, 4 and so on, and all.
fn counts(cores: usize) -> Vec<usize> {
    let mut counts: Vec<_> = (0..)
        .map(|shift| 1 << shift)
        .take_while(|&n| n < cores.min(ENGINES_MAX))
        .collect();
    counts.push(cores.min(ENGINES_MAX));
    counts
}

fn engines_name(engines: usize) -> String {
    match engines {
        1 => "1 engine".into(),
        more => format!("{more} engines"),
    }
}

fn record(
    bench: &mut Bench<'_>,
    name: &str,
    counts: &[usize],
    series: &[Option<Series>],
    judged: bool,
) {
    for (&engines, series) in counts.iter().zip(series) {
        if let Some(series) = series {
            bench.report.scaling.push(Scaling {
                name: name.to_owned(),
                engines,
                mb_s: series.median(),
                spread: series.spread(),
                rounds: series.rounds(),
            });
        }
    }
    let (Some(two), Some(one)) = (counts.iter().position(|&n| n == 2), series.first()) else {
        bench.missing("ours, 1 engine", name, "two engines need two cores");
        return;
    };
    let comparison = Comparison {
        group: bench.group,
        name: "ours, 1 engine",
        metric: &format!("sequential, 2 engines: {name}"),
        unit: "MB/s",
        better: Better::Higher,
        target: judged.then_some(1.7),
        note: if judged {
            ""
        } else {
            "server and client share the cores"
        },
    };
    bench.compare(&comparison, series[two].as_ref(), one.as_ref());
}

/// Reads the whole device once: MB/s.
fn in_process(runner: &Runner, image: &Path, engines: usize) -> Result<f64, BenchError> {
    let device = open(image, engines, DeviceConfig::default())?;
    let mut buffer = vec![0; READ_BYTES];
    let size_bytes = device.size_bytes();
    // After opening: the start of the engines is not measured.
    let began = Instant::now();
    for offset in (0..size_bytes).step_by(READ_BYTES) {
        runner.check()?;
        let len = (size_bytes - offset).min(READ_BYTES as u64) as usize;
        device.read_into(offset, &mut buffer[..len])?;
    }
    Ok(size_bytes as f64 / 1e6 / began.elapsed().as_secs_f64())
}

/// Size of a read: as many frames as one loop over engines takes.
const READ_BYTES: usize = 4 << 20;
