//! `sidecore store`: versions of many images, which share their chunks.
//!
//! Why here: the arguments; the store is `sidecore_store`'s, and its place `sidecore_remote`'s.

use super::common::{Engines, OpenArgs, OutputArgs};
use crate::output::{JsonArgs, Timed};
use crate::{Outcome, run_each};
use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use serde_json::json;
use sidecore_block::pack::Exported;
use sidecore_block::source::BlockSource;
use sidecore_remote::store::{copy, create, open};
use sidecore_store::{
    Checked, Compacted, Copied, Domain, Gone, Keys, Listed, Made, Removed, Session, Store, Totals,
    Version,
};
use sidecore_terminal::progress::watched;
use sidecore_terminal::{Text, quantity};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The commands on a store.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a store in a folder or a bucket.
    Init(InitArgs),
    /// Make a file of keys for an encrypted store, or add a key to one.
    Domain(DomainArgs),
    /// Store an image under a name; only what is new to it is written.
    #[command(alias = "add")]
    Put(Box<PutArgs>),
    /// List the versions in a store.
    List(KeyedArgs),
    /// Write a version to a file.
    Get(GetArgs),
    /// Check that all versions are whole.
    #[command(alias = "check")]
    Verify(VerifyArgs),
    /// Copy versions to another store; only what is new to it is written.
    Copy(CopyArgs),
    /// Describe a store: versions, sizes, what sharing saves.
    Stat(StoreArgs),
    /// Remove versions; garbage collections free their space.
    Remove(RemoveArgs),
    /// Remove what no version needs, in two phases.
    Gc(GcArgs),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        run_each!(self; List Stat Init Domain Put Get Verify Copy Remove Gc)
    }
}

/// A store, and the form of the report on it.
#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// Folder of the store, or s3://BUCKET/PREFIX
    store: PathBuf,
    #[command(flatten)]
    form: JsonArgs,
}

/// The keys of an encrypted store.
#[derive(clap::Args)]
struct KeyArgs {
    /// File of the keys of an encrypted store, as `sidecore store domain` makes it
    #[arg(long, value_name = "FILE")]
    domain: Option<PathBuf>,
}

/// A store that may be encrypted.
#[derive(clap::Args)]
pub(crate) struct KeyedArgs {
    #[command(flatten)]
    at: StoreArgs,
    #[command(flatten)]
    keys: KeyArgs,
}

impl StoreArgs {
    fn open(&self) -> Result<Store> {
        Ok(open(&self.store)?)
    }

    fn report<R: Serialize>(&self, report: &R, text: impl FnOnce(&R) -> Text) -> Result<Outcome> {
        self.form.report(report, text)
    }

    /// As the arguments of `store stat`.
    fn run(self) -> Result<Outcome> {
        self.report(&self.open()?.totals()?, Totals::text)
    }
}

impl KeyArgs {
    fn domain(&self) -> Result<Arc<Domain>> {
        Ok(Arc::new(Domain::of(self.domain.as_deref())?))
    }
}

impl KeyedArgs {
    /// As the arguments of `store list`.
    fn run(self) -> Result<Outcome> {
        let domain = self.keys.domain()?;
        let versions = self.at.open()?.versions(&domain)?;
        let report = json!({ "versions": versions });
        self.at.report(&report, |_| Listed::table(&versions))
    }
}

#[derive(clap::Args)]
pub(crate) struct InitArgs {
    /// Folder of the store, which is made where it is not there, or s3://BUCKET/PREFIX
    store: PathBuf,
    /// Average size of a chunk, a power of two from 4KiB to 1MiB: versions share more of smaller
    /// chunks, and have longer lists of them
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "64KiB")]
    chunk: u64,
    #[command(flatten)]
    form: JsonArgs,
}

impl InitArgs {
    fn run(self) -> Result<Outcome> {
        let store = create(&self.store, self.chunk)?;
        self.form.report(&Made::of(&self.store, &store), Made::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct DomainArgs {
    /// File of keys
    file: PathBuf,
    /// Add a key to the file
    #[arg(long)]
    rotate: bool,
    #[command(flatten)]
    form: JsonArgs,
}

impl DomainArgs {
    fn run(self) -> Result<Outcome> {
        let key = match self.rotate {
            true => Domain::rotate(&self.file)?,
            false => Domain::create(&self.file).map(|()| 1)?,
        };
        self.form.report(&Keys::of(&self.file, key), Keys::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    at: StoreArgs,
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
}

impl PutArgs {
    fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let domain = Arc::new(Domain::of(self.open.domain())?);
        let store = self.at.open()?;
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
        let published = session.publish(&self.name, &stored, self.replace)?;
        let timed = Timed::since(began, Some(engines), published);
        self.at
            .report(&timed, |timed| timed.report.text(timed.seconds))
    }
}

#[derive(clap::Args)]
pub(crate) struct GetArgs {
    /// Folder of the store, or the URL of one
    store: PathBuf,
    /// Name of the version
    name: String,
    /// Write a compressed image instead of the bytes themselves
    #[arg(long)]
    image: bool,
    #[command(flatten)]
    keys: KeyArgs,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    output: OutputArgs,
}

impl GetArgs {
    fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let domain = self.keys.domain()?;
        let version = Version::open(&open(&self.store)?, &self.name, domain)?;
        let engines = self.engines.count();
        let target = self.output.target();
        let version = Arc::new(version);
        let written = watched(Some(version.raw_bytes()), "writing", |on_bytes| {
            version.write_to(target, self.image, engines, on_bytes)
        })?;
        let timed = Timed::since(began, Some(engines), written);
        self.output.report(&timed, Exported::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    keyed: KeyedArgs,
    /// Read all packs, and compare them with their names
    #[arg(long)]
    read_data: bool,
}

impl VerifyArgs {
    fn run(self) -> Result<Outcome> {
        let KeyedArgs { at, keys } = self.keyed;
        let (domain, store) = (keys.domain()?, at.open()?);
        let checked = watched(None, "checking", |on_bytes| {
            store.check(&domain, self.read_data, on_bytes)
        })?;
        at.report(&checked, Checked::text)?;
        Ok(Outcome::of(checked.faults.is_empty()))
    }
}

#[derive(clap::Args)]
pub(crate) struct CopyArgs {
    /// Folder of the store to read, or the URL of one
    from: PathBuf,
    /// Folder of the store to write, s3://BUCKET/PREFIX or oci://REGISTRY/REPOSITORY:TAG; it is
    /// made where it is not there
    to: PathBuf,
    /// Version to copy; may be given again [default: all]
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Let names stand for the copied versions, whatever they stand for there
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    form: JsonArgs,
}

impl CopyArgs {
    fn run(self) -> Result<Outcome> {
        let from = open(&self.from)?;
        let copied = watched(None, "copying", |on_bytes| {
            copy(&from, &self.to, &self.name, self.replace, on_bytes)
        })?;
        self.form.report(&copied, Copied::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    at: StoreArgs,
    /// Versions to remove
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

impl RemoveArgs {
    fn run(self) -> Result<Outcome> {
        let store = self.at.open()?;
        self.names.iter().try_for_each(|name| store.remove(name))?;
        let removed = Removed {
            removed: self.names.len(),
        };
        self.at.report(&removed, Removed::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct GcArgs {
    #[command(flatten)]
    keyed: KeyedArgs,
    /// Keep what is listed for this time at least (`90`, `12h`)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::duration, default_value = "1d")]
    lease: Duration,
    /// First move chunks out of packs of which versions use less than this many percent
    #[arg(long, value_name = "PERCENT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100))]
    compact: Option<u64>,
}

impl GcArgs {
    fn run(self) -> Result<Outcome> {
        let KeyedArgs { at, keys } = self.keyed;
        let (domain, store) = (keys.domain()?, at.open()?);
        let compacted = match self.compact {
            Some(percent) => watched(None, "compacting", |on_bytes| {
                store.compact(&domain, percent, on_bytes)
            })?,
            None => Compacted::default(),
        };
        let collected = store.collect(self.lease)?;
        let gone = Gone {
            collected,
            compacted,
        };
        at.report(&gone, Gone::text)
    }
}
