//! The FUSE file from end to end, as `dd` reads it.
//!
//! Why here: every mount reads through this file; its speed bounds them all.
//! Must stay true: each round mounts anew, so that the kernel has no cached page of the file; the
//! image is in the page cache, so that no disk is measured.
//! Source: the slides on the block device (docs/papers.md), `dd` of the device.

use super::inputs::{Corpus, sidecore, warm_all, wrong};
use super::tools::{Runner, Server, tool};
use super::{Bench, BenchError, Candidate, file_bytes};
use crate::measure::Better;
use sidecore_block::format::Format;
use std::path::{Path, PathBuf};
use std::process::Command;

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
