//! `sidecore store`: versions of many images, which share their chunks.
//!
//! Why here: the arguments; the store is `sidecore_store`'s, and its place `sidecore_remote`'s.

use super::common::{Engines, OpenArgs, target, written};
use crate::output::Timed;
use crate::{Outcome, output, run_each};
use anyhow::{Context, Result};
use clap::Subcommand;
use serde::Serialize;
use sidecore_block::codec::Tune;
use sidecore_block::format::Format;
use sidecore_block::image::Image;
use sidecore_block::pack::{FRAME_BYTES, Limits, Options, Source, Thin, Work, pack, unpack_image};
use sidecore_block::source::BlockSource;
use sidecore_remote::store::open;
use sidecore_store::{
    Checked, Collected, Compacted, Copied, Domain, FolderBackend, Listed, Session, Store,
    StoreError, Totals, Version,
};
use sidecore_sys::text::bytes;
use sidecore_terminal::progress::watched;
use sidecore_terminal::{Table, Text, quantity};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The commands on a store.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a store in a folder.
    Init(InitArgs),
    /// Make a file of keys for an encrypted store, or add a key to one.
    Domain(DomainArgs),
    /// Store an image under a name; only what the store has not yet is written.
    Add(Box<AddArgs>),
    /// List the versions in a store.
    List(ListArgs),
    /// Write a version to a file.
    Get(GetArgs),
    /// Check that all versions are whole.
    Check(CheckArgs),
    /// Copy versions to another store; only what it has not yet is written.
    Copy(CopyArgs),
    /// Describe a store: versions, sizes, what sharing saves.
    Stat(StatArgs),
    /// Remove versions; garbage collections free their space.
    Remove(RemoveArgs),
    /// Remove what no version needs, in two phases.
    Gc(GcArgs),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        run_each!(self; Init Domain Add List Get Check Copy Stat Remove Gc)
    }
}

#[derive(clap::Args)]
pub(crate) struct InitArgs {
    /// Folder of the store, which is made where it is not there
    store: PathBuf,
    /// Average size of a chunk, a power of two from 4KiB to 1MiB: versions share more of smaller
    /// chunks, and have longer lists of them
    #[arg(long, value_name = "SIZE", value_parser = chunk_size, default_value = "64KiB")]
    chunk: u64,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl InitArgs {
    fn run(self) -> Result<Outcome> {
        let store = create(&self.store, self.chunk)?;
        let made = Made {
            store: self.store.display().to_string(),
            chunk_bytes: store.chunk_bytes(),
        };
        output::report(self.json, &made, |made| {
            let chunk = bytes(made.chunk_bytes.into());
            format!("{}: a store with chunks of {chunk} on average", made.store).into()
        })
    }
}

#[derive(Serialize)]
struct Made {
    store: String,
    chunk_bytes: u32,
}

#[derive(clap::Args)]
#[command(after_help = "\
Writers with the same file share chunks; holders of other files learn nothing of them. Without the \
file the versions are lost: keep a copy. With a new key on its ring, later versions are encrypted \
with it; earlier ones stay readable.")]
pub(crate) struct DomainArgs {
    /// File of keys
    file: PathBuf,
    /// Add a key to the file
    #[arg(long)]
    rotate: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl DomainArgs {
    fn run(self) -> Result<Outcome> {
        let key = match self.rotate {
            true => Domain::rotate(&self.file)?,
            false => Domain::create(&self.file).map(|()| 1)?,
        };
        let file = self.file.display().to_string();
        output::report(self.json, &Keys { file, key }, |keys| {
            format!("{}: key {} is the current one", keys.file, keys.key).into()
        })
    }
}

#[derive(Serialize)]
struct Keys {
    file: String,
    key: u32,
}

#[derive(clap::Args)]
#[command(after_help = "\
The image is any that other commands read, also a version of a store. Its name takes letters, \
digits and `._-+:@`. `store:STORE#NAME` names the version wherever a command reads an image.")]
pub(crate) struct AddArgs {
    /// Folder of the store
    store: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
    /// Name of the version
    #[arg(long)]
    name: String,
    /// Let the name stand for this image from now on
    #[arg(long)]
    replace: bool,
    /// Level of zstd for chunks, 1 to 22
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(i32).range(1..=22))]
    level: i32,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl AddArgs {
    fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let domain = domain(self.open.domain())?;
        let store = open(&self.store)?;
        let engines = self.open.engines.count();
        let device = self.open.device()?;
        if device.index().lock().is_some() && self.open.domain().is_none() {
            tracing::warn!("the image is encrypted; in the store it is in the clear");
        }
        let mut session = Session::begin(&store, &domain, self.level, engines)?;
        // Before hours of work.
        store.check_name(&self.name, self.replace)?;
        let stored = watched(Some(device.size_bytes()), "storing", |on_bytes| {
            session.store(&*device, on_bytes)
        })?;
        let timed = Timed {
            report: session.publish(&self.name, &stored, self.replace)?,
            engines: Some(engines),
            seconds: began.elapsed().as_secs_f64(),
        };
        output::report(self.json, &timed, |timed| {
            let (added, seconds) = (&timed.report, timed.seconds);
            let (raw, stored) = (bytes(added.raw_bytes), bytes(added.stored_bytes));
            let (name, new, all) = (&added.name, added.new_chunks, added.chunks);
            format!("{name}: {raw}, {new} of {all} chunks new, {stored} stored in {seconds:.1} s")
                .into()
        })
    }
}

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Folder of the store
    store: PathBuf,
    #[command(flatten)]
    keys: KeyArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    fn run(self) -> Result<Outcome> {
        let domain = self.keys.domain()?;
        let versions = open(&self.store)?.versions(&domain)?;
        output::report(self.json, &List { versions }, |list| {
            let row = |it: &Listed| {
                let digest = it.digest.as_deref().unwrap_or("-");
                let digest = digest.get(..16).unwrap_or(digest).to_owned();
                let encrypted = match it.key {
                    0 => "-".to_owned(),
                    key => format!("key {key}"),
                };
                vec![it.name.clone(), bytes(it.raw_bytes), encrypted, digest]
            };
            let rows = list.versions.iter().map(row).collect();
            let mut text = Text::new();
            text.table(Table::of(&["name", "size", "encrypted", "contents"], rows));
            text
        })
    }
}

#[derive(Serialize)]
struct List {
    versions: Vec<Listed>,
}

#[derive(clap::Args)]
#[command(after_help = "\
The file appears under its name only when it is whole. Every chunk is checked.")]
pub(crate) struct GetArgs {
    /// Folder of the store, or the URL of one
    store: PathBuf,
    /// Name of the version
    name: String,
    /// File to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write a compressed image instead of the bytes themselves
    #[arg(long)]
    image: bool,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    existing: ExistingArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl GetArgs {
    fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let domain = self.keys.domain()?;
        let version = Version::open(&open(&self.store)?, &self.name, domain)?;
        let engines = self.engines.count();
        let got = self.write(&Arc::new(version), engines)?;
        let timed = Timed {
            report: got,
            engines: Some(engines),
            seconds: began.elapsed().as_secs_f64(),
        };
        written(&self.output, self.json, &timed, |got, seconds| {
            let (path, raw) = (self.output.display(), bytes(got.raw_bytes));
            format!("{path}: {raw} in {seconds:.1} s").into()
        })
    }

    fn write(&self, version: &Arc<Version>, engines: usize) -> Result<Got> {
        let ExistingArgs { no_clobber, force } = self.existing;
        let target = target(&self.output, no_clobber, force);
        let raw_bytes = version.raw_bytes();
        let limits = Limits::default();
        let stored_bytes = watched(Some(raw_bytes), "writing", |on_bytes| {
            if self.image {
                let mut source = Source::from_reader(Box::new(version.reader()), &self.name);
                source.size_bytes = Some(raw_bytes);
                let options = Options {
                    format: Format::Zstd,
                    frame_bytes: FRAME_BYTES,
                    cdc: false,
                    level: None,
                    tune: Tune::Speed,
                    engines,
                    thin: Thin::Auto,
                    limits,
                };
                return pack(source, target, &options, on_bytes).map(|it| it.stored_bytes);
            }
            let image = Image::Remote(Arc::clone(version) as _);
            let index = image.index(true)?;
            let work = Work::of(engines, limits);
            unpack_image(&image, &index, target, work, on_bytes).map(|it| it.raw_bytes)
        })?;
        Ok(Got {
            raw_bytes,
            stored_bytes,
        })
    }
}

#[derive(Serialize)]
struct Got {
    raw_bytes: u64,
    stored_bytes: u64,
}

/// Treatment of an output that exists.
#[derive(clap::Args, Clone, Copy)]
struct ExistingArgs {
    /// Refuse when the file exists already
    #[arg(long, conflicts_with = "force")]
    no_clobber: bool,
    /// Write straight onto FILE though it is no regular file (a block device)
    #[arg(long)]
    force: bool,
}

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Folder of the store
    store: PathBuf,
    /// Read all packs, and compare them with their names
    #[arg(long)]
    read_data: bool,
    #[command(flatten)]
    keys: KeyArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl CheckArgs {
    fn run(self) -> Result<Outcome> {
        let domain = self.keys.domain()?;
        let store = open(&self.store)?;
        let checked = watched(None, "checking", |on_bytes| {
            store.check(&domain, self.read_data, on_bytes)
        })?;
        output::report(self.json, &checked, report_check)?;
        Ok(Outcome::of(checked.faults.is_empty()))
    }
}

fn report_check(checked: &Checked) -> Text {
    let mut text = Text::new();
    text.lines(checked.faults.iter().cloned());
    let faults = checked.faults.len();
    let (versions, opened) = (checked.versions, checked.opened);
    let (packs, read) = (checked.packs, bytes(checked.read_bytes));
    text.line(format!(
        "{versions} versions ({opened} opened), {packs} packs, {read} read: {faults} faults"
    ));
    text
}

#[derive(clap::Args)]
#[command(after_help = "\
Keys are not needed: packs and manifests are copied as they are. A store behind a URL is read by \
the names given.")]
pub(crate) struct CopyArgs {
    /// Folder of the store to read, or the URL of one
    from: PathBuf,
    /// Folder of the store to write, which is made where it is not there
    to: PathBuf,
    /// Version to copy; may be given again [default: all]
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Let names stand for the copied versions, whatever they stand for there
    #[arg(long)]
    replace: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl CopyArgs {
    fn run(self) -> Result<Outcome> {
        let from = open(&self.from)?;
        let to = match open(&self.to) {
            Err(StoreError::NoStore(_)) => create(&self.to, from.chunk_bytes().into())?,
            opened => opened?,
        };
        let copied = watched(None, "copying", |on_bytes| {
            from.copy_to(&to, &self.name, self.replace, on_bytes)
        })?;
        output::report(self.json, &copied, |copied: &Copied| {
            let (versions, unchanged) = (copied.versions, copied.unchanged);
            let (objects, written) = (copied.objects, bytes(copied.copied_bytes));
            let same = format!("{versions} versions, {unchanged} of them were there");
            format!("{same}; {objects} objects with {written} written").into()
        })
    }
}

#[derive(clap::Args)]
pub(crate) struct StatArgs {
    /// Folder of the store
    store: PathBuf,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl StatArgs {
    fn run(self) -> Result<Outcome> {
        let totals = open(&self.store)?.totals()?;
        output::report(self.json, &totals, |totals: &Totals| {
            let mut text = Text::new();
            text.fact("versions", totals.versions.to_string());
            text.fact("contents", bytes(totals.raw_bytes));
            let (stored, packs) = (bytes(totals.stored_bytes), totals.packs);
            text.fact("stored", format!("{stored} in {packs} packs"));
            text.fact("ratio", format!("{:.2}:1", totals.ratio));
            text.fact("to be freed", bytes(totals.condemned_bytes));
            text.fact("chunks", bytes(totals.chunk_bytes.into()));
            text
        })
    }
}

#[derive(clap::Args)]
pub(crate) struct RemoveArgs {
    /// Folder of the store
    store: PathBuf,
    /// Versions to remove
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl RemoveArgs {
    fn run(self) -> Result<Outcome> {
        let store = open(&self.store)?;
        self.names.iter().try_for_each(|name| store.remove(name))?;
        let removed = Removed {
            removed: self.names.len(),
        };
        output::report(self.json, &removed, |removed| {
            format!("{} versions removed", removed.removed).into()
        })
    }
}

#[derive(Serialize)]
struct Removed {
    removed: usize,
}

#[derive(clap::Args)]
#[command(after_help = "\
What no version needs is listed first, and removed by a later collection once it was listed for \
the time of --lease and no writer at work may rely on it. Writers, readers and collectors may run \
at the same time, and each may be killed at any moment. The time is for readers of versions that \
were removed or replaced.")]
pub(crate) struct GcArgs {
    /// Folder of the store
    store: PathBuf,
    /// Keep what is listed for this time at least (`90`, `12h`)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::duration, default_value = "1d")]
    lease: Duration,
    /// First move chunks out of packs of which versions use less than this many percent
    #[arg(long, value_name = "PERCENT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100))]
    compact: Option<u64>,
    #[command(flatten)]
    keys: KeyArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl GcArgs {
    fn run(self) -> Result<Outcome> {
        let store = open(&self.store)?;
        let domain = self.keys.domain()?;
        let compacted = match self.compact {
            Some(percent) => watched(None, "compacting", |on_bytes| {
                store.compact(&domain, percent, on_bytes)
            })?,
            None => Compacted::default(),
        };
        let collected = store.collect(self.lease)?;
        let report = Gone {
            collected,
            compacted,
        };
        output::report(self.json, &report, |report| {
            let mut text = Text::new();
            let Compacted { moved_bytes, .. } = report.compacted;
            if moved_bytes > 0 {
                text.line(format!("{} moved to new packs", bytes(moved_bytes)));
            }
            let collected = &report.collected;
            let (removed, freed) = (collected.removed, bytes(collected.removed_bytes));
            let (waiting, leases) = (collected.waiting, collected.leases);
            let gone = format!("{removed} objects with {freed} removed");
            text.line(format!(
                "{gone}, {waiting} wait for their time; {leases} writers at work"
            ));
            text
        })
    }
}

#[derive(Serialize)]
struct Gone {
    #[serde(flatten)]
    collected: Collected,
    #[serde(flatten)]
    compacted: Compacted,
}

/// The keys of an encrypted store.
#[derive(clap::Args)]
struct KeyArgs {
    /// File of the keys of an encrypted store, as `sidecore store domain` makes it
    #[arg(long, value_name = "FILE")]
    domain: Option<PathBuf>,
}

impl KeyArgs {
    fn domain(&self) -> Result<Arc<Domain>> {
        domain(self.domain.as_deref())
    }
}

fn domain(file: Option<&Path>) -> Result<Arc<Domain>> {
    Ok(Arc::new(match file {
        Some(file) => Domain::read(file)?,
        None => Domain::shared(),
    }))
}

fn create(folder: &Path, chunk_bytes: u64) -> Result<Store> {
    let backend = FolderBackend::create(folder);
    let backend = backend.with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(Store::create(Arc::new(backend), chunk_bytes)?)
}

/// The average size of a chunk: refused before a folder is made.
fn chunk_size(text: &str) -> Result<u64, String> {
    let bytes = quantity::size(text)?;
    match bytes.is_power_of_two() && (4 << 10..=1 << 20).contains(&bytes) {
        true => Ok(bytes),
        false => Err("the average is a power of two from 4KiB to 1MiB".to_owned()),
    }
}
