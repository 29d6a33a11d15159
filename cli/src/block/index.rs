//! `sidecore block index`.

use super::common::{Engines, WholeArgs};
use crate::Outcome;
use crate::output::{self, JsonArgs, Timed};
use anyhow::{Context, Result};
use sidecore_block::format::ReadAt as _;
use sidecore_block::pack::{Work, index_file};
use sidecore_oci::convert::Original;
use sidecore_oci::indexing::index_layers;
use sidecore_oci::layer::Store;
use sidecore_oci::local::Local;
use sidecore_remote::access::{is_remote, name, open_bytes};
use sidecore_terminal::progress::watched;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// zstd file to make an index of, or the URL of one; or an image of containers
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Index to write [default: FILE.sidx]; required for a URL, next to which the index can then be
    /// uploaded, or named with --sidx
    #[arg(short, long, value_name = "INDEX")]
    output: Option<PathBuf>,
    /// Folder of layers and their indexes, for an image of containers
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sidecore/layers")]
    layers: PathBuf,
    /// Push the indexes of an image of containers next to it
    #[arg(long)]
    push: bool,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    whole: WholeArgs,
    #[command(flatten)]
    form: JsonArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        // With --output a URL is that of one blob.
        let named = self.file.to_str();
        let named = named.filter(|name| self.output.is_none() || Local::is_plainly(name));
        if let Some(name) = named
            && let Some(image) = Original::find(name)?
        {
            let is_local = matches!(image, Original::Local(_));
            anyhow::ensure!(
                !is_local || !self.push && self.output.is_none(),
                "{name} is in files of this machine: leave out --push and --output"
            );
            return self.index_layers(name, &image);
        }
        anyhow::ensure!(
            !self.push,
            "--push takes an image of containers (oci://...)"
        );
        let is_remote = is_remote(&self.file);
        anyhow::ensure!(
            self.output.is_some() || !is_remote,
            "name the index to write with --output; what is to lie beside the URL is put there \
             afterwards"
        );
        let image = open_bytes(&self.file)?;
        let size_bytes = image.size_bytes().context("cannot read the file")?;
        // A URL may hold a secret.
        let name = match is_remote {
            true => PathBuf::from(name(&self.file)),
            false => self.file.clone(),
        };
        let engines = self.engines.count();
        let indexed = watched(Some(size_bytes), "indexing", |on_bytes| {
            let work = Work::of(engines, self.whole.limits());
            index_file(&image, &name, self.output.as_deref(), work, on_bytes)
        })?;
        let timed = Timed::since(began, Some(engines), indexed);
        self.form
            .report(&timed, |timed| timed.report.line(timed.seconds).into())
    }

    /// Indexes each layer of an image of containers.
    fn index_layers(&self, url: &str, image: &Original) -> Result<Outcome> {
        let store = Store::open(&self.layers)?;
        let mut said = Ok(());
        let indexed = index_layers(image, &store, self.push, &mut |layer| {
            if !self.form.json {
                said = output::line(&layer.line());
            }
            match said {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        said?;
        match (&indexed.pushed, self.form.json) {
            (_, true) => output::json(&indexed)?,
            (Some(digest), _) => output::line(&format!("pushed {digest} next to {url}"))?,
            (None, _) if self.push => output::note!("no layer can be read by its parts"),
            _ => {}
        }
        Ok(Outcome::Done)
    }
}
