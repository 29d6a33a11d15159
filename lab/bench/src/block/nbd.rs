//! NBD servers compared: ours, qemu-nbd on compressed qcow2, nbdkit on a raw file.
//!
//! Why here: NBD is where existing servers read compressed images, so this is the plainest
//! comparison of whole systems.
//! Must stay true: every measurement has a server of its own, started for it; all are driven by
//! the same client; images are in the page cache unless the metric says cold.
//! Source: nbdcopy(1), qemu-nbd(8), nbdkit(1).

use super::inputs::{Corpus, sidecore, warm_all, wrong};
use super::tools::{Runner, Server, drop_caches, tool};
use super::{Bench, BenchError, Candidate, Comparison, file_bytes};
use crate::measure::Better;
use crate::measure::stats::Series;
use sidecore_block::format::Format;
use sidecore_export::nbd::client::{Load, Measured, measure_random};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A way to serve an image.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Our server, from this program, with a number of engines.
    Ours {
        /// The `sidecore` program.
        program: PathBuf,
        /// Number of engines; the server's default if none.
        engines: Option<usize>,
    },
    /// qemu-nbd, with this `--aio`.
    Qemu {
        /// `threads` or `io_uring`.
        aio: &'static str,
    },
    /// nbdkit's file plugin.
    Nbdkit,
}

/// An image with the server that exports it.
#[derive(Debug, Clone)]
pub(crate) struct Export {
    /// Its name in reports.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) image: PathBuf,
}

impl Export {
    pub(crate) fn ours(
        bench: &Bench<'_>,
        name: &str,
        image: &Path,
        engines: Option<usize>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            kind: Kind::Ours {
                program: bench.config.sidecore.clone(),
                engines,
            },
            image: image.to_owned(),
        }
    }

    /// The command that serves at `socket`.
    fn command(&self, directory: &Path, socket: &Path) -> Result<Command, BenchError> {
        Ok(match &self.kind {
            Kind::Ours { program, engines } => {
                let mut command = sidecore(program, directory);
                command.arg("serve").arg(&self.image);
                command
                    .arg("--nbd")
                    .arg(format!("unix:{}", socket.display()));
                if let Some(engines) = engines {
                    command.args(["--engines", &engines.to_string()]);
                }
                command
            }
            Kind::Qemu { aio } => {
                let mut command = tool("qemu-nbd")?;
                // The default is one client; nbdcopy opens several connections.
                command.args(["-r", "-t", "-f", "qcow2", "--shared=8"]);
                command
                    .arg(format!("--aio={aio}"))
                    .arg("-k")
                    .arg(socket)
                    .arg(&self.image);
                command
            }
            Kind::Nbdkit => {
                let mut command = tool("nbdkit")?;
                command
                    .args(["-f", "-r", "-U"])
                    .arg(socket)
                    .arg("file")
                    .arg(&self.image);
                command
            }
        })
    }

    pub(crate) fn serve(&self, runner: &Runner) -> Result<(Server, PathBuf), BenchError> {
        let socket = runner.fresh("sock");
        let mut command = self.command(runner.directory(), &socket)?;
        let ours = matches!(self.kind, Kind::Ours { .. });
        let server = runner.serve(&mut command, None, |said| match ours {
            true => said.lines().any(|line| line == "ready"),
            false => std::os::unix::net::UnixStream::connect(&socket).is_ok(),
        })?;
        Ok((server, socket))
    }

    /// Copies the whole export and discards it: seconds of wall clock, and of the server's CPU.
    pub(crate) fn copy(&self, runner: &Runner) -> Result<(f64, f64), BenchError> {
        let (server, socket) = self.serve(runner)?;
        // After the start, which is no part of the copy's cost.
        let before_s = server.cpu_s();
        let mut command = tool("nbdcopy")?;
        let seconds = runner.time(command.arg(uri(&socket)).arg("null:"))?;
        Ok((seconds, server.cpu_s() - before_s))
    }

    /// Copies the whole export and compares it with a file.
    fn check(&self, runner: &Runner, raw: &Path) -> Result<(), BenchError> {
        tool("nbdcopy")?;
        let (_server, socket) = self.serve(runner)?;
        let bytes = file_bytes(raw)?.to_string();
        let mut command = Command::new("bash");
        // cloop pads its last block with zeros: the bytes after the contents are read, too.
        let script = "set -o pipefail; \
                      nbdcopy \"$1\" - | { cmp -n \"$3\" - \"$2\" && cat >/dev/null; }";
        command
            .args(["-c", script, "bash", &uri(&socket)])
            .arg(raw)
            .arg(bytes);
        let run = runner.time(&mut command);
        run.map(drop).map_err(|error| match error {
            error @ BenchError::Program { .. } => wrong(&self.name, &error),
            other => other,
        })
    }

    /// Reads at random offsets: the client's figures, and the server's CPU seconds.
    fn random(&self, runner: &Runner, load: &Load) -> Result<(Measured, f64), BenchError> {
        let (server, socket) = self.serve(runner)?;
        let before_s = server.cpu_s();
        let measured = measure_random(&socket, load, SEED)?;
        Ok((measured, server.cpu_s() - before_s))
    }
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

/// All measurements over NBD except the scaling with engines.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let raw = bench.raw(Corpus::Given)?;
    let mut exports = Vec::new();
    for (format, name) in [
        (Format::Zstd, "ours zstd"),
        (Format::Cloop, "ours cloop (zlib)"),
        (Format::Lz4, "ours lz4"),
    ] {
        let image = bench.image(Corpus::Given, format)?;
        exports.push(Export::ours(bench, name, &image, None));
    }
    for compression in ["zstd", "zlib"] {
        match bench.qcow2(compression) {
            Ok(image) => exports.push(Export {
                name: format!("qemu-nbd qcow2 {compression}"),
                kind: Kind::Qemu { aio: "threads" },
                image,
            }),
            Err(BenchError::Missing(reason)) => {
                bench.missing(&format!("qemu-nbd qcow2 {compression}"), "all", &reason);
            }
            Err(error) => bench.failed(&error),
        }
    }
    exports.push(Export {
        name: "nbdkit raw".into(),
        kind: Kind::Nbdkit,
        image: raw.clone(),
    });
    let images: Vec<_> = exports
        .iter()
        .map(|export| export.image.as_path())
        .collect();
    warm_all(&images)?;
    choose_aio(bench, &mut exports)?;
    bench.say("comparing what every server delivers");
    let mut sound = Vec::new();
    // A server that delivers wrong bytes must not be timed.
    for export in exports {
        match export.check(&bench.runner, &raw) {
            Ok(()) => sound.push(export),
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(BenchError::Missing(reason)) => bench.missing(&export.name, "all", &reason),
            Err(error) => bench.failed(&error),
        }
    }
    let gb = file_bytes(&raw)? as f64 / 1e9;
    sequential(bench, &sound, gb, false)?;
    if !bench.quick() && bench.can_drop_caches("NBD sequential, cold") {
        sequential(bench, &sound, gb, true)?;
    }
    random(bench, &sound)
}

/// Gives qemu-nbd the `--aio` with which it is faster.
fn choose_aio(bench: &mut Bench<'_>, exports: &mut [Export]) -> Result<(), BenchError> {
    let Some(probe) = exports
        .iter()
        .find(|export| export.name == QEMU_ZSTD)
        .cloned()
    else {
        return Ok(());
    };
    let mut best: Option<(f64, &'static str)> = None;
    // Twice, and the least counts: one copy may be disturbed.
    for _ in 0..2 {
        for aio in ["threads", "io_uring"] {
            let mut probe = probe.clone();
            probe.kind = Kind::Qemu { aio };
            match probe.copy(&bench.runner) {
                Ok((seconds, _)) if best.is_none_or(|(least, _)| seconds < least) => {
                    best = Some((seconds, aio));
                }
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                // A kernel or a build without io_uring.
                Ok(_) | Err(_) => {}
            }
        }
    }
    if let Some((_, aio)) = best {
        for export in exports {
            if let Kind::Qemu { aio: chosen } = &mut export.kind {
                *chosen = aio;
            }
        }
        let method = &mut bench.report.head.method;
        method.push_str(&format!(
            "; qemu-nbd runs with --aio={aio}, the faster one here"
        ));
    }
    Ok(())
}

/// All bytes in order, and the CPU time for it.
fn sequential(
    bench: &mut Bench<'_>,
    exports: &[Export],
    gb: f64,
    cold: bool,
) -> Result<(), BenchError> {
    let metric = match cold {
        false => "NBD sequential",
        true => "NBD sequential, cold (caches dropped)",
    };
    let chosen: Vec<_> = exports
        .iter()
        .filter(|export| !cold || [OURS_ZSTD, QEMU_ZSTD].contains(&export.name.as_str()))
        .collect();
    // A candidate returns one value; the CPU time of the same copies goes here.
    let cpu: Vec<RefCell<Vec<f64>>> = chosen.iter().map(|_| RefCell::default()).collect();
    let mut candidates: Vec<_> = chosen
        .iter()
        .zip(&cpu)
        .map(|(export, cpu)| {
            Candidate::of_one(&export.name, move |runner| {
                if cold {
                    drop_caches()?;
                }
                let (seconds, cpu_s) = export.copy(runner)?;
                cpu.borrow_mut().push(cpu_s / gb);
                Ok(gb * 1000.0 / seconds)
            })
        })
        .collect();
    let series = bench.interleave(metric, "MB/s", &mut candidates)?;
    drop(candidates);
    let find = |name: &str| chosen.iter().position(|export| export.name == name);
    let of = |name: &str| find(name).and_then(|index| series[index].as_ref());
    let cpu_of = |name: &str| {
        let index = find(name).filter(|&index| series[index].is_some())?;
        Some(Series::new(cpu[index].borrow().clone()))
    };
    for (here, peer, target) in [
        (OURS_ZSTD, QEMU_ZSTD, Some(2.2)),
        (OURS_ZLIB, QEMU_ZLIB, Some(3.2)),
        (OURS_ZSTD, NBDKIT, None),
        (OURS_LZ4, NBDKIT, None),
    ] {
        let comparison = Comparison {
            group: bench.group,
            name: peer,
            metric: &format!("{metric}: {here}"),
            unit: "MB/s",
            better: Better::Higher,
            // With cold caches the disk sets the speed, so there is no target.
            target: target.filter(|_| !cold),
            note: "",
        };
        bench.compare(&comparison, of(here), of(peer));
    }
    for (here, peer) in [(OURS_ZSTD, QEMU_ZSTD), (OURS_ZLIB, QEMU_ZLIB)] {
        let comparison = Comparison {
            group: bench.group,
            name: peer,
            metric: &format!("{metric}, server CPU: {here}"),
            unit: "s/GB",
            better: Better::Lower,
            target: Some(1.0).filter(|_| !cold),
            note: "user and system time of the server's process, to 10 ms",
        };
        bench.compare(&comparison, cpu_of(here).as_ref(), cpu_of(peer).as_ref());
    }
    Ok(())
}

/// Reads at random offsets.
fn random(bench: &mut Bench<'_>, exports: &[Export]) -> Result<(), BenchError> {
    for (block_bytes, depth) in [(4096, 1), (4096, 8), (65536, 1)] {
        if bench.quick() && block_bytes > 4096 {
            break;
        }
        let requests_max = match (bench.quick(), depth) {
            (true, _) => 2000,
            (false, 1) => 5000,
            (false, _) => 20_000,
        };
        let load = Load {
            block_bytes,
            depth,
            requests_max,
            time_max: RANDOM_TIME_MAX,
        };
        random_load(bench, exports, &load)?;
    }
    Ok(())
}

#[derive(Default)]
struct Taken {
    p99_us: Vec<f64>,
    requests_per_s: Vec<f64>,
    cpu_ms: Vec<f64>,
}

fn random_load(bench: &mut Bench<'_>, exports: &[Export], load: &Load) -> Result<(), BenchError> {
    let kib = load.block_bytes / 1024;
    let metric = format!("NBD random {kib} KiB, depth {}", load.depth);
    // One run gives all figures; the candidate itself returns the median.
    let taken: Vec<RefCell<Taken>> = exports.iter().map(|_| RefCell::default()).collect();
    let mut candidates: Vec<_> = exports
        .iter()
        .zip(&taken)
        .map(|(export, taken)| {
            Candidate::of_one(&export.name, move |runner| {
                let (measured, cpu_s) = export.random(runner, load)?;
                let mut taken = taken.borrow_mut();
                taken.p99_us.push(measured.p99_us);
                taken.requests_per_s.push(measured.requests_per_s);
                taken.cpu_ms.push(cpu_s * 1e6 / measured.requests as f64);
                Ok(measured.p50_us)
            })
        })
        .collect();
    let series = bench.interleave(&format!("{metric}, median"), "us", &mut candidates)?;
    drop(candidates);
    // A candidate that failed has incomplete samples.
    let position = |name: &str| {
        let found = exports.iter().position(|export| export.name == name);
        found.filter(|&index| series[index].is_some())
    };
    let small = load.block_bytes == 4096;
    let alone = load.depth == 1;
    for (here, peer) in [
        (OURS_ZSTD, QEMU_ZSTD),
        (OURS_ZLIB, QEMU_ZLIB),
        (OURS_LZ4, NBDKIT),
    ] {
        let (Some(ours), Some(theirs)) = (position(here), position(peer)) else {
            continue;
        };
        let judged = here == OURS_ZSTD && small;
        let of = |pick: fn(&Taken) -> &Vec<f64>, index: usize| {
            Series::new(pick(&taken[index].borrow()).clone())
        };
        let mut put =
            |what: &str, unit, better, target: Option<f64>, here_s: &Series, peer_s: &Series| {
                let comparison = Comparison {
                    group: bench.group,
                    name: peer,
                    metric: &format!("{metric}, {what}: {here}"),
                    unit,
                    better,
                    target: target.filter(|_| judged),
                    note: "",
                };
                bench.compare(&comparison, Some(here_s), Some(peer_s));
            };
        if let (true, Some(a), Some(b)) = (alone, &series[ours], &series[theirs]) {
            put("median", "us", Better::Lower, Some(0.7), a, b);
            let pick: fn(&Taken) -> &Vec<f64> = |taken| &taken.p99_us;
            put(
                "p99",
                "us",
                Better::Lower,
                None,
                &of(pick, ours),
                &of(pick, theirs),
            );
        }
        if !alone {
            let pick: fn(&Taken) -> &Vec<f64> = |taken| &taken.requests_per_s;
            put(
                "throughput",
                "/s",
                Better::Higher,
                None,
                &of(pick, ours),
                &of(pick, theirs),
            );
        }
        // nbdkit decompresses nothing, so its CPU time is not comparable.
        if peer != NBDKIT {
            let pick: fn(&Taken) -> &Vec<f64> = |taken| &taken.cpu_ms;
            let (a, b) = (of(pick, ours), of(pick, theirs));
            put(
                "server CPU",
                "ms/1000 reads",
                Better::Lower,
                Some(1.0),
                &a,
                &b,
            );
        }
    }
    if let (false, Some(ours)) = (alone, position(OURS_ZSTD)) {
        let here = Series::new(taken[ours].borrow().requests_per_s.clone());
        bench
            .row(format!("{metric}: {OURS_ZSTD}"), None, &here, "requests/s")
            .note("a plain prototype made 22,600/s on another day: information only");
    }
    Ok(())
}

const OURS_ZSTD: &str = "ours zstd";
const OURS_ZLIB: &str = "ours cloop (zlib)";
const OURS_LZ4: &str = "ours lz4";
const QEMU_ZSTD: &str = "qemu-nbd qcow2 zstd";
const QEMU_ZLIB: &str = "qemu-nbd qcow2 zlib";
const NBDKIT: &str = "nbdkit raw";
/// Seed of the offsets, the same for all servers.
const SEED: u64 = 0x51de_c04e;
/// No random measurement takes longer; a slow server then answers fewer requests.
const RANDOM_TIME_MAX: Duration = Duration::from_secs(1);
