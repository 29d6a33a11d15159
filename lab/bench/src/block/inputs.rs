//! The images that are measured: ours and the peers', of the same contents.
//!
//! Why here: each is made once, when the first group asks for it, and compared with its source
//! before anything is measured on it.
//! Must stay true: a peer's image holds the same bytes in pieces of the same size; the peers' own
//! tools make them, with the settings that their manuals recommend.
//! One thread; blocks for seconds to a minute. Source: qemu-img(1), mksquashfs(1).

use super::corpus::{self, Tree};
use super::tools::{self, drop_caches, tool};
use super::{Bench, BenchError, Config, Group, file_bytes, interrupted};
use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::format::{Format, Index};
use sidecore_block::source::BlockSource;
use sidecore_offload::{Pool, PoolConfig};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One of the two sets of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Corpus {
    /// In the papers' shape and size.
    Small,
    /// About 1 GB.
    Large,
    /// The given image, or else the large one.
    Given,
}

impl Corpus {
    fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
            Self::Given => "given",
        }
    }
}

/// Inputs made so far.
pub(crate) struct Inputs {
    small_bytes: u64,
    large_bytes: u64,
    given: Option<PathBuf>,
    trees: Vec<(Corpus, Tree)>,
    files: Vec<(Corpus, &'static str, PathBuf, u64)>,
}

impl Inputs {
    pub(crate) fn new(config: &Config, base: &Path, directory: &Path) -> Result<Self, BenchError> {
        let large_bytes = if config.quick {
            QUICK_BYTES
        } else {
            LARGE_BYTES
        };
        let inputs = Self {
            small_bytes: SMALL_BYTES,
            large_bytes,
            given: config.image.clone(),
            trees: Vec::new(),
            files: Vec::new(),
        };
        let wants = |name| Group::chosen(&config.only).any(|group| group.name == name);
        let mut contents_bytes = SMALL_BYTES;
        // A given image may decompress to far more than its own size.
        if let Some(image) = &config.image {
            let what = || BenchError::io(format!("open {}", image.display()));
            let file = File::open(image).map_err(what())?;
            let index = Index::open(&file).map_err(sidecore_block::device::DeviceError::from)?;
            contents_bytes += index.raw_bytes();
        }
        if wants("mount") || config.image.is_none() && (wants("nbd") || wants("fuse")) {
            contents_bytes += large_bytes;
        }
        let needed_bytes = contents_bytes * COPIES;
        let free = rustix::fs::statvfs(directory);
        let free = free.map_err(|error| BenchError::io("look for free space")(error.into()))?;
        let free_bytes = free.f_bavail * free.f_frsize;
        if free_bytes < needed_bytes {
            return Err(BenchError::Space {
                directory: base.to_owned(),
                needed_bytes,
                free_bytes,
            });
        }
        Ok(inputs)
    }

    /// The inputs, a line each.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (corpus, tree) in &self.trees {
            let wanted = match corpus {
                Corpus::Small => self.small_bytes,
                _ => self.large_bytes,
            };
            let short = if tree.bytes < wanted / 10 * 9 {
                format!(", all that this machine has of the {wanted} wanted")
            } else {
                String::new()
            };
            lines.push(format!(
                "{} tree: {} files, {} bytes{short}",
                corpus.name(),
                tree.files,
                tree.bytes
            ));
        }
        for (corpus, name, _, bytes) in &self.files {
            lines.push(format!("{} {name}: {bytes} bytes", corpus.name()));
        }
        lines
    }

    fn find(&self, corpus: Corpus, name: &str) -> Option<PathBuf> {
        let found = self
            .files
            .iter()
            .find(|(of, known, ..)| *of == corpus && *known == name);
        found.map(|(.., path, _)| path.clone())
    }

    fn resolve(&self, corpus: Corpus) -> Corpus {
        match corpus {
            Corpus::Given if self.given.is_none() => Corpus::Large,
            other => other,
        }
    }

    fn keep(&mut self, corpus: Corpus, name: &'static str, path: &Path) -> Result<(), BenchError> {
        let bytes = file_bytes(path)?;
        self.files.push((corpus, name, path.to_owned(), bytes));
        Ok(())
    }
}

impl Bench<'_> {
    /// Our own program.
    pub(crate) fn sidecore(&self) -> Command {
        sidecore(&self.config.sidecore, self.runner.directory())
    }

    /// A tree of this machine's files.
    pub(crate) fn tree(&mut self, corpus: Corpus) -> Result<Tree, BenchError> {
        if let Some((_, tree)) = self.inputs.trees.iter().find(|(of, _)| *of == corpus) {
            return Ok(tree.clone());
        }
        self.say(&format!("making the {} tree", corpus.name()));
        let directory = self
            .runner
            .directory()
            .join(format!("{}.tree", corpus.name()));
        let cancel: &AtomicBool = self.runner.cancel();
        let tree = match corpus {
            Corpus::Small => corpus::small(&directory, self.inputs.small_bytes, cancel)?,
            _ => corpus::large(&directory, self.inputs.large_bytes, cancel)?,
        };
        if tree.bytes == 0 {
            return Err(BenchError::Missing(
                "this machine has no readable files below /usr to pack; give an IMAGE".into(),
            ));
        }
        self.inputs.trees.push((corpus, tree.clone()));
        Ok(tree)
    }

    /// The contents as they are: an erofs file system of the tree, stored plain, or what is in the
    /// image that was given.
    pub(crate) fn raw(&mut self, corpus: Corpus) -> Result<PathBuf, BenchError> {
        let corpus = self.inputs.resolve(corpus);
        if let Some(path) = self.inputs.find(corpus, "raw") {
            return Ok(path);
        }
        let path = self
            .runner
            .directory()
            .join(format!("{}.raw", corpus.name()));
        let mut command = self.sidecore();
        match (corpus, self.inputs.given.clone()) {
            (Corpus::Given, Some(image)) => command.arg("unpack").arg(image),
            _ => {
                tool("mkfs.erofs")?;
                let tree = self.tree(corpus)?;
                command
                    .arg("pack")
                    .arg(tree.directory)
                    .args(["--format", "raw"])
            }
        };
        self.say(&format!("making the {} contents", corpus.name()));
        self.runner.time(command.arg("-o").arg(&path))?;
        self.inputs.keep(corpus, "raw", &path)?;
        Ok(path)
    }

    /// An image in one of our formats, with its default settings and 64 KiB frames; compared.
    pub(crate) fn image(&mut self, corpus: Corpus, format: Format) -> Result<PathBuf, BenchError> {
        self.image_with(corpus, format, format.name(), &[])
    }

    /// Image of a packed directory: zstd with the defaults of trees; compared with the source.
    pub(crate) fn tree_image(&mut self, corpus: Corpus) -> Result<PathBuf, BenchError> {
        let defaults = ["--frame", "128KiB", "--tune", "size"];
        self.image_with(corpus, Format::Zstd, "zstd tree", &defaults)
    }

    /// An image in one of our formats that goes by `name`, with settings for `pack`.
    pub(crate) fn image_with(
        &mut self,
        corpus: Corpus,
        format: Format,
        name: &'static str,
        settings: &[&str],
    ) -> Result<PathBuf, BenchError> {
        let corpus = self.inputs.resolve(corpus);
        if let Some(path) = self.inputs.find(corpus, name) {
            return Ok(path);
        }
        let raw = self.raw(corpus)?;
        let file = name.replace(' ', "-");
        let mut path = self
            .runner
            .directory()
            .join(format!("{}.{file}", corpus.name()));
        // A given image is measured itself, not a repacked copy with other settings.
        let given = self.inputs.given.clone().filter(|image| {
            let index = File::open(image)
                .ok()
                .and_then(|file| Index::open(&file).ok());
            corpus == Corpus::Given && index.is_some_and(|index| index.format() == format)
        });
        match given {
            Some(image) => path = image,
            None => {
                self.say(&format!("packing {} as {name}", corpus.name()));
                let mut command = self.sidecore();
                command
                    .arg("pack")
                    .arg(&raw)
                    .args(["--format", format.name()]);
                command.args(settings);
                self.runner.time(command.arg("-o").arg(&path))?;
            }
        }
        // Here, so that no measurement runs on wrong bytes.
        compare(&path, &raw, self.runner.cancel())?;
        self.inputs.keep(corpus, name, &path)?;
        Ok(path)
    }

    /// A compressed qcow2 with clusters of 64 KiB, made and compared by qemu-img.
    pub(crate) fn qcow2(&mut self, compression: &'static str) -> Result<PathBuf, BenchError> {
        let corpus = self.inputs.resolve(Corpus::Given);
        let name = match compression {
            "zstd" => "qcow2 zstd",
            _ => "qcow2 zlib",
        };
        if let Some(path) = self.inputs.find(corpus, name) {
            return Ok(path);
        }
        let raw = self.raw(corpus)?;
        let path = self
            .runner
            .directory()
            .join(format!("{}.{compression}.qcow2", corpus.name()));
        self.say(&format!("packing {} as {name}", corpus.name()));
        let options = format!("compression_type={compression},cluster_size=65536");
        let mut command = tool("qemu-img")?;
        command.args(["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", &options]);
        self.runner.time(command.arg(&raw).arg(&path))?;
        let mut command = tool("qemu-img")?;
        command.args(["compare", "-f", "raw", "-F", "qcow2"]);
        self.runner
            .time(command.arg(&raw).arg(&path))
            .map_err(|error| wrong(name, &error))?;
        self.inputs.keep(corpus, name, &path)?;
        Ok(path)
    }

    /// A squashfs of a tree with zstd, by mksquashfs' defaults (128 KiB blocks).
    pub(crate) fn squashfs(&mut self, corpus: Corpus) -> Result<PathBuf, BenchError> {
        if let Some(path) = self.inputs.find(corpus, "squashfs zstd") {
            return Ok(path);
        }
        let tree = self.tree(corpus)?;
        let path = self
            .runner
            .directory()
            .join(format!("{}.squashfs", corpus.name()));
        let mut command = tool("mksquashfs")?;
        self.say(&format!("packing {} as squashfs zstd", corpus.name()));
        command.arg(tree.directory).arg(&path);
        command.args(["-comp", "zstd", "-noappend", "-no-progress", "-quiet"]);
        self.runner.time(&mut command)?;
        self.inputs.keep(corpus, "squashfs zstd", &path)?;
        Ok(path)
    }

    /// An erofs of a tree with one of mkfs.erofs' compressors, in clusters of 64 KiB, tails
    /// inline.
    pub(crate) fn erofs(
        &mut self,
        corpus: Corpus,
        compressor: &'static str,
    ) -> Result<PathBuf, BenchError> {
        let name = match compressor {
            "zstd" => "erofs zstd",
            _ => "erofs lz4hc",
        };
        if let Some(path) = self.inputs.find(corpus, name) {
            return Ok(path);
        }
        let tree = self.tree(corpus)?;
        let file = format!("{}.{compressor}.erofs", corpus.name());
        let path = self.runner.directory().join(file);
        self.say(&format!("packing {} as {name}", corpus.name()));
        let make = |tree: &Path, image: &Path| -> Result<f64, BenchError> {
            let mut command = tool("mkfs.erofs")?;
            command.arg(format!("-z{compressor}"));
            command.args(["-C65536", "-Eztailpacking"]);
            self.runner.time(command.arg(image).arg(tree))
        };
        // Compressors are chosen when mkfs.erofs is built; an empty tree shows if this one is
        // there.
        let empty = self.runner.fresh_directory("empty")?;
        make(&empty, &self.runner.fresh("empty.erofs")).map_err(|error| match error {
            BenchError::Program { .. } => {
                BenchError::Missing(format!("this mkfs.erofs has no {compressor}"))
            }
            error => error,
        })?;
        make(&tree.directory, &path)?;
        self.inputs.keep(corpus, name, &path)?;
        Ok(path)
    }

    /// True where this process may drop the kernel's caches.
    pub(crate) fn can_drop_caches(&mut self, metric: &str) -> bool {
        match drop_caches() {
            Ok(()) => true,
            Err(error) => {
                self.missing("cold caches", metric, &error.to_string());
                false
            }
        }
    }
}

/// The `sidecore` program, with its state about mounts in the run's directory.
pub(crate) fn sidecore(program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("block")
        .env("SIDECORE_STATE_DIR", directory.join("state"));
    command
}

/// Opens an image on a pool of its own.
pub(crate) fn open(
    image: &Path,
    engines: usize,
    config: DeviceConfig,
) -> Result<Arc<Device>, BenchError> {
    let file = File::open(image);
    let file = file.map_err(BenchError::io(format!("open {}", image.display())))?;
    let pool = Pool::start(PoolConfig {
        engines,
        ..PoolConfig::default()
    })?;
    Ok(Device::open(file, Arc::new(pool), config)?)
}

/// Compares what a device delivers with a file, all of it.
fn compare(image: &Path, raw: &Path, cancel: &AtomicBool) -> Result<(), BenchError> {
    let engines = sidecore_sys::cpu::allowed()?.len();
    let device = open(image, engines, DeviceConfig::default())?;
    let file = File::open(raw).map_err(BenchError::io("open the contents"))?;
    let wrong = |detail: String| BenchError::WrongBytes {
        what: image.display().to_string(),
        detail,
    };
    let raw_bytes = file_bytes(raw)?;
    // cloop fills its last block up.
    let size_bytes = device.size_bytes();
    if size_bytes < raw_bytes || size_bytes >= raw_bytes + u64::from(device.preferred_bytes()) {
        return Err(wrong(format!("{size_bytes} bytes instead of {raw_bytes}")));
    }
    let (mut ours, mut theirs) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
    for offset in (0..raw_bytes).step_by(COMPARE_BYTES) {
        interrupted(cancel)?;
        let len = (raw_bytes - offset).min(COMPARE_BYTES as u64) as usize;
        device.read_into(offset, &mut ours[..len])?;
        let read = file.read_exact_at(&mut theirs[..len], offset);
        read.map_err(BenchError::io("read the contents"))?;
        if ours[..len] != theirs[..len] {
            return Err(wrong(format!("in the {len} bytes at {offset}")));
        }
    }
    Ok(())
}

/// Error for an unexpected result of a comparing program.
pub(crate) fn wrong(what: &str, error: &BenchError) -> BenchError {
    match error {
        BenchError::Program { what: detail, .. } => BenchError::WrongBytes {
            what: what.to_owned(),
            detail: detail.clone(),
        },
        BenchError::Missing(reason) => BenchError::Missing(reason.clone()),
        BenchError::Interrupted => BenchError::Interrupted,
        other => BenchError::WrongBytes {
            what: what.to_owned(),
            detail: other.to_string(),
        },
    }
}

/// Reads files into the page cache, so that the disk is not measured.
pub(crate) fn warm_all(paths: &[&Path]) -> Result<(), BenchError> {
    paths.iter().try_for_each(|path| tools::warm(path))
}

/// Size of the papers' image, in bytes.
const SMALL_BYTES: u64 = 28_350_000;
/// Size of the large image, in bytes.
const LARGE_BYTES: u64 = 1_000_000_000;
/// Size of the large image in a quick run, in bytes.
const QUICK_BYTES: u64 = 64 << 20;
/// Room for the tree, its contents and all images of it.
const COPIES: u64 = 7;
const COMPARE_BYTES: usize = 4 << 20;
