//! Mounted trees: ours beside squashfuse and the kernel's own squashfs, all with zstd.
//!
//! Why here: a mounted tree is what people read; these are the two readers they have today.
//! Must stay true: every round mounts anew. "Cold" drops the kernel's caches, image included;
//! "image cached" then reads the image back in, so that no disk is measured, only inflating and
//! the ways in. Every tree is compared with the original once.
//! Source: papers/002, `diff -r` of the mounted tree.

use super::inputs::{Corpus, sidecore, wrong};
use super::tools::{KernelMount, Runner, Server, drop_caches, is_mounted, need_root, tool, warm};
use super::{Bench, BenchError, Comparison, Contestant, figures, file_bytes};
use sidecore_measure::Better;
use sidecore_measure::stats::Series;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    Squashfuse,
    Kernel,
}

/// A mount that ends when this is dropped.
struct Mounted {
    _server: Option<Server>,
    _kernel: Option<KernelMount>,
    directory: PathBuf,
}

/// A tree in an image, and who mounts it.
#[derive(Clone)]
struct Reader {
    name: &'static str,
    kind: Kind,
    image: PathBuf,
    program: PathBuf,
}

impl Reader {
    fn mount(&self, runner: &Runner) -> Result<Mounted, BenchError> {
        let directory = runner.fresh_directory("mnt")?;
        let mut mounted = Mounted {
            _server: None,
            _kernel: None,
            directory: directory.clone(),
        };
        match self.kind {
            Kind::Ours => {
                let mut command = sidecore(&self.program, runner.directory());
                command
                    .arg("mount")
                    .arg(&self.image)
                    .arg(&directory)
                    .arg("--foreground");
                mounted._server = Some(runner.serve(&mut command, Some(&directory), |said| {
                    said.lines().any(|line| line.starts_with("mounted "))
                })?);
            }
            Kind::Squashfuse => {
                let mut command = tool("squashfuse_ll")?;
                command.arg("-f").arg(&self.image).arg(&directory);
                let ready = |_: &str| is_mounted(&directory);
                mounted._server = Some(runner.serve(&mut command, Some(&directory), ready)?);
            }
            Kind::Kernel => {
                let mount = KernelMount::new(runner, "squashfs", &self.image, &directory)?;
                mounted._kernel = Some(mount);
            }
        }
        Ok(mounted)
    }

    /// Mounts with nothing of the tree cached, and with the image cached where asked.
    fn mount_fresh(&self, runner: &Runner, warm_image: bool) -> Result<Mounted, BenchError> {
        drop_caches()?;
        if warm_image {
            warm(&self.image)?;
        }
        self.mount(runner)
    }
}

/// `cat` of the large tree, `diff -r` of the small one.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    need_root()?;
    large(bench)?;
    small(bench)
}

/// The three readers of a tree; those that are missing are said to be.
fn readers(bench: &mut Bench<'_>, corpus: Corpus) -> Result<Vec<Reader>, BenchError> {
    let program = bench.config.sidecore.clone();
    let mut readers = vec![Reader {
        name: OURS,
        kind: Kind::Ours,
        image: bench.tree_image(corpus)?,
        program: program.clone(),
    }];
    let squashfs = match bench.squashfs(corpus) {
        Ok(image) => image,
        Err(BenchError::Missing(reason)) => {
            bench.missing("squashfs zstd", "mounted trees", &reason);
            return Ok(readers);
        }
        Err(error) => return Err(error),
    };
    if let Err(error) = tool("squashfuse_ll") {
        bench.missing(SQUASHFUSE, "mounted trees", &error.to_string());
    } else {
        readers.push(Reader {
            name: SQUASHFUSE,
            kind: Kind::Squashfuse,
            image: squashfs.clone(),
            program: program.clone(),
        });
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.ends_with("squashfs")) {
        readers.push(Reader {
            name: KERNEL,
            kind: Kind::Kernel,
            image: squashfs,
            program,
        });
    } else {
        bench.missing(KERNEL, "mounted trees", "this kernel has no squashfs");
    }
    Ok(readers)
}

fn large(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let tree = bench.tree(Corpus::Large)?;
    let readers = readers(bench, Corpus::Large)?;
    sizes(bench, &readers)?;
    let readers = sound(bench, readers, &tree.directory)?;
    for (metric, warm_image) in [
        ("cat of the large tree, cold", false),
        ("cat of the large tree, image cached", true),
    ] {
        if bench.quick() && !warm_image {
            continue;
        }
        let mut contestants: Vec<_> = readers
            .iter()
            .map(|reader| {
                Contestant::of_one(reader.name, move |runner| {
                    let mounted = reader.mount_fresh(runner, warm_image)?;
                    let mut command = Command::new("sh");
                    // One process for very many files, as a backup would read them.
                    let script = "find \"$1\" -type f -exec cat {} + >/dev/null";
                    command.args(["-c", script, "sh"]).arg(&mounted.directory);
                    Ok(tree.bytes as f64 / 1e6 / runner.time(&mut command)?)
                })
            })
            .collect();
        let series = bench.contest(metric, "MB/s", &mut contestants)?;
        drop(contestants);
        for (name, target) in [(SQUASHFUSE, 1.5), (KERNEL, 1.2)] {
            let comparison = Comparison {
                group: bench.group,
                name,
                metric,
                unit: "MB/s",
                better: Better::Higher,
                target: Some(target),
                note: "",
            };
            let (here, there) = (of(&readers, &series, OURS), of(&readers, &series, name));
            bench.compare(&comparison, here, there);
        }
    }
    Ok(())
}

fn small(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let tree = bench.tree(Corpus::Small)?;
    let readers = readers(bench, Corpus::Small)?;
    let readers = sound(bench, readers, &tree.directory)?;
    for (metric, cold) in [
        ("diff -r of the small tree, cold", true),
        (
            "diff -r of the small tree, image and original cached",
            false,
        ),
    ] {
        let original = &tree.directory;
        let mut contestants: Vec<_> = readers
            .iter()
            .map(|reader| {
                Contestant::of_one(reader.name, move |runner| {
                    drop_caches()?;
                    if !cold {
                        warm_tree(runner, original)?;
                        warm(&reader.image)?;
                    }
                    let mounted = reader.mount(runner)?;
                    let mut command = diff(original, &mounted.directory)?;
                    Ok(runner.time(&mut command)? * 1000.0)
                })
            })
            .collect();
        let series = bench.contest(metric, "ms", &mut contestants)?;
        drop(contestants);
        let ours = of(&readers, &series, OURS).cloned();
        if let Some(ours) = &ours {
            let paper = figures::DIFF_MS;
            bench.row(metric, Some(paper.spe), ours, "ms").note(format!(
                "the papers: one SPE; x86 {}, PPE {}",
                paper.x86, paper.ppe
            ));
        }
        for name in [SQUASHFUSE, KERNEL] {
            let comparison = Comparison {
                group: bench.group,
                name,
                metric,
                unit: "ms",
                better: Better::Lower,
                target: None,
                note: "",
            };
            bench.compare(&comparison, ours.as_ref(), of(&readers, &series, name));
        }
    }
    Ok(())
}

fn of<'s>(readers: &[Reader], series: &'s [Option<Series>], name: &str) -> Option<&'s Series> {
    let index = readers.iter().position(|reader| reader.name == name)?;
    series[index].as_ref()
}

/// Our image beside the peer's: no larger than 1.1 times.
fn sizes(bench: &mut Bench<'_>, readers: &[Reader]) -> Result<(), BenchError> {
    let Some(peer) = readers.iter().find(|reader| reader.kind != Kind::Ours) else {
        return Ok(());
    };
    let here = Series::new(vec![file_bytes(&readers[0].image)? as f64 / 1e6]);
    let there = Series::new(vec![file_bytes(&peer.image)? as f64 / 1e6]);
    let comparison = Comparison {
        group: bench.group,
        name: "squashfs zstd (mksquashfs' defaults)",
        metric: "image size, large tree: ours zstd",
        unit: "MB",
        better: Better::Lower,
        target: Some(1.1),
        note: "ours: erofs, stored plain, in frames of 128 KiB; theirs: blocks of 128 KiB",
    };
    bench.compare(&comparison, Some(&here), Some(&there));
    Ok(())
}

/// Those whose tree is the original.
fn sound(
    bench: &mut Bench<'_>,
    readers: Vec<Reader>,
    original: &Path,
) -> Result<Vec<Reader>, BenchError> {
    bench.say("comparing the mounted trees with the original");
    let mut sound = Vec::new();
    for reader in readers {
        let compared = reader.mount(&bench.runner).and_then(|mounted| {
            let mut command = diff(original, &mounted.directory)?;
            let run = bench.runner.time(&mut command);
            run.map_err(|error| wrong(reader.name, &error))
        });
        match compared {
            Ok(_) => sound.push(reader),
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(BenchError::Missing(reason)) => {
                bench.missing(reader.name, "mounted trees", &reason);
            }
            Err(error) => bench.failed(&error),
        }
    }
    Ok(sound)
}

fn diff(original: &Path, copy: &Path) -> Result<Command, BenchError> {
    let mut command = tool("diff")?;
    // ext4 has a directory of its own in every tree.
    command
        .args(["-r", "-x", "lost+found"])
        .arg(original)
        .arg(copy);
    Ok(command)
}

fn warm_tree(runner: &Runner, tree: &Path) -> Result<(), BenchError> {
    let mut command = Command::new("sh");
    let script = "find \"$1\" -type f -exec cat {} + >/dev/null";
    runner
        .time(command.args(["-c", script, "sh"]).arg(tree))
        .map(drop)
}

const OURS: &str = "ours zstd";
const SQUASHFUSE: &str = "squashfuse_ll zstd";
const KERNEL: &str = "kernel squashfs zstd";
