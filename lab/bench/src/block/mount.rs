//! Mounted trees: ours compared with squashfuse, the kernel's own squashfs and the kernel's own
//! erofs.
//!
//! Why here: users read a mounted tree; these are the readers they have today.
//! Must stay true: every round mounts anew. "Cold" drops the kernel's caches, image included;
//! "image cached" then reads the image back in, so that no disk is measured, only decompression and
//! exports. Every tree is compared with the original once.
//! Source: the slides on the block device (docs/papers.md), `diff -r` of the mounted tree.

use super::inputs::{Corpus, sidecore, wrong};
use super::tools::{KernelMount, Runner, Server, drop_caches, is_mounted, need_root, tool, warm};
use super::{Bench, BenchError, Candidate, Comparison, figures, file_bytes};
use crate::measure::Better;
use crate::measure::stats::Series;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    Squashfuse,
    /// The kernel's own file system of this name.
    Kernel(&'static str),
}

/// A mount that ends when this is dropped.
struct Mounted {
    _server: Option<Server>,
    _kernel: Option<KernelMount>,
    directory: PathBuf,
}

/// A tree in an image, and the program that mounts it.
#[derive(Clone)]
struct Reader {
    name: &'static str,
    kind: Kind,
    image: PathBuf,
    program: PathBuf,
    /// Limits of the peer on this machine.
    note: &'static str,
    /// The wanted ratio of ours to it, in the large tree.
    target: Option<f64>,
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
            Kind::Kernel(file_system) => {
                let mount = KernelMount::new(runner, file_system, &self.image, &directory)?;
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

/// All readers of a tree, ours first; those that are missing are reported.
fn readers(bench: &mut Bench<'_>, corpus: Corpus) -> Result<Vec<Reader>, BenchError> {
    let program = bench.config.sidecore.clone();
    let mut readers = vec![Reader {
        name: OURS,
        kind: Kind::Ours,
        image: bench.tree_image(corpus)?,
        program: program.clone(),
        note: "",
        target: None,
    }];
    squashfs_readers(bench, corpus, &mut readers)?;
    for compressor in ["lz4hc", "zstd"] {
        erofs_reader(bench, corpus, compressor, &mut readers)?;
    }
    Ok(readers)
}

/// squashfuse, and the kernel's squashfs.
fn squashfs_readers(
    bench: &mut Bench<'_>,
    corpus: Corpus,
    readers: &mut Vec<Reader>,
) -> Result<(), BenchError> {
    let program = bench.config.sidecore.clone();
    let squashfs = match bench.squashfs(corpus) {
        Ok(image) => image,
        Err(BenchError::Missing(reason)) => {
            bench.missing("squashfs zstd", "mounted trees", &reason);
            return Ok(());
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
            note: "",
            target: Some(1.5),
        });
    }
    if kernel_knows("squashfs") {
        readers.push(Reader {
            name: KERNEL,
            kind: Kind::Kernel("squashfs"),
            image: squashfs,
            program,
            note: squashfs_threads(bench)?,
            target: Some(1.2),
        });
    } else {
        bench.missing(KERNEL, "mounted trees", "this kernel has no squashfs");
    }
    Ok(())
}

/// The kernel's erofs with one compressor.
fn erofs_reader(
    bench: &mut Bench<'_>,
    corpus: Corpus,
    compressor: &'static str,
    readers: &mut Vec<Reader>,
) -> Result<(), BenchError> {
    let name = match compressor {
        "zstd" => "kernel erofs zstd",
        _ => "kernel erofs lz4hc",
    };
    if !kernel_knows("erofs") {
        bench.missing(name, "mounted trees", "this kernel has no erofs");
        return Ok(());
    }
    match bench.erofs(corpus, compressor) {
        Ok(image) => readers.push(Reader {
            name,
            kind: Kind::Kernel("erofs"),
            image,
            program: bench.config.sidecore.clone(),
            note: "mkfs.erofs -C65536 -Eztailpacking",
            target: None,
        }),
        Err(BenchError::Missing(reason)) => bench.missing(name, "mounted trees", &reason),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// True where the kernel mounts it without loading a module.
fn kernel_knows(file_system: &str) -> bool {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known
        .lines()
        .any(|line| line.split_whitespace().last() == Some(file_system))
}

/// The threads with which this kernel's squashfs decompresses, by its configuration: a comparison
/// with one thread is won by any program with two.
fn squashfs_threads(bench: &Bench<'_>) -> Result<&'static str, BenchError> {
    let mut command = Command::new("sh");
    let script = "zcat /proc/config.gz 2>/dev/null || cat \"/boot/config-$(uname -r)\" 2>/dev/null \
                  || true";
    let config = bench.runner.output(command.args(["-c", script]))?;
    Ok(threads_by(&config))
}

fn threads_by(config: &str) -> &'static str {
    let is_set = |name: &str| config.lines().any(|line| line == format!("{name}=y"));
    let multi = ["", "_PERCPU"].map(|kind| format!("CONFIG_SQUASHFS_COMPILE_DECOMP_MULTI{kind}"));
    if multi.iter().any(|name| is_set(name)) {
        "this kernel's squashfs inflates on all cores"
    } else if is_set("CONFIG_SQUASHFS_DECOMP_SINGLE") {
        "this kernel's squashfs inflates with one thread (CONFIG_SQUASHFS_DECOMP_SINGLE)"
    } else {
        "how many threads this kernel's squashfs inflates with is not known"
    }
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
        let mut candidates: Vec<_> = readers
            .iter()
            .map(|reader| {
                Candidate::of_one(reader.name, move |runner| {
                    let mounted = reader.mount_fresh(runner, warm_image)?;
                    let mut command = Command::new("sh");
                    // One process for very many files, as a backup would read them.
                    let script = "find \"$1\" -type f -exec cat {} + >/dev/null";
                    command.args(["-c", script, "sh"]).arg(&mounted.directory);
                    Ok(tree.bytes as f64 / 1e6 / runner.time(&mut command)?)
                })
            })
            .collect();
        let series = bench.interleave(metric, "MB/s", &mut candidates)?;
        drop(candidates);
        for (reader, there) in readers.iter().zip(&series) {
            if reader.kind == Kind::Ours {
                continue;
            }
            let comparison = Comparison {
                group: bench.group,
                name: reader.name,
                metric,
                unit: "MB/s",
                better: Better::Higher,
                target: reader.target,
                note: reader.note,
            };
            bench.compare(&comparison, of(&readers, &series, OURS), there.as_ref());
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
        let mut candidates: Vec<_> = readers
            .iter()
            .map(|reader| {
                Candidate::of_one(reader.name, move |runner| {
                    // The mounted tree is cold in both cases; only its image and the original are
                    // warmed.
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
        let series = bench.interleave(metric, "ms", &mut candidates)?;
        drop(candidates);
        let ours = of(&readers, &series, OURS).cloned();
        if let Some(ours) = &ours {
            let paper = figures::DIFF_MS;
            bench.row(metric, Some(paper.spe), ours, "ms").note(format!(
                "the papers: one SPE; x86 {}, PPE {}",
                paper.x86, paper.ppe
            ));
        }
        for (reader, there) in readers.iter().zip(&series) {
            let comparison = Comparison {
                group: bench.group,
                name: reader.name,
                metric,
                unit: "ms",
                better: Better::Lower,
                target: None,
                note: reader.note,
            };
            if reader.kind != Kind::Ours {
                bench.compare(&comparison, ours.as_ref(), there.as_ref());
            }
        }
    }
    Ok(())
}

fn of<'s>(readers: &[Reader], series: &'s [Option<Series>], name: &str) -> Option<&'s Series> {
    let index = readers.iter().position(|reader| reader.name == name)?;
    series[index].as_ref()
}

/// Our image's size compared with each peer's; at most 1.1 times that of squashfs.
fn sizes(bench: &mut Bench<'_>, readers: &[Reader]) -> Result<(), BenchError> {
    let here = Series::new(vec![file_bytes(&readers[0].image)? as f64 / 1e6]);
    let mut compared: Vec<&Path> = vec![&readers[0].image];
    for peer in readers {
        // Two readers of one image have one size.
        if compared.contains(&peer.image.as_path()) {
            continue;
        }
        compared.push(&peer.image);
        let there = Series::new(vec![file_bytes(&peer.image)? as f64 / 1e6]);
        let (name, target, note) = match peer.kind {
            Kind::Kernel("erofs") => (peer.name, None, peer.note),
            _ => (
                "squashfs zstd (mksquashfs' defaults)",
                Some(1.1),
                "ours: erofs, stored plain, in frames of 128 KiB; theirs: blocks of 128 KiB",
            ),
        };
        let comparison = Comparison {
            group: bench.group,
            name,
            metric: "image size, large tree: ours zstd",
            unit: "MB",
            better: Better::Lower,
            target,
            note,
        };
        bench.compare(&comparison, Some(&here), Some(&there));
    }
    Ok(())
}

/// The readers whose tree equals the original.
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

#[cfg(test)]
mod tests {
    use super::threads_by;

    #[test]
    fn the_kernels_configuration_says_how_squashfs_inflates() {
        let single = "CONFIG_SQUASHFS=y\nCONFIG_SQUASHFS_DECOMP_SINGLE=y\n\
                      # CONFIG_SQUASHFS_COMPILE_DECOMP_MULTI is not set\n";
        assert!(threads_by(single).contains("one thread"));
        let multi = "CONFIG_SQUASHFS_DECOMP_MULTI_PERCPU=y\n\
                     CONFIG_SQUASHFS_COMPILE_DECOMP_MULTI_PERCPU=y\n";
        assert!(threads_by(multi).contains("all cores"));
        assert!(threads_by("").contains("not known"));
    }
}
