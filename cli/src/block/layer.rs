//! `sidecore block layer`.
//!
//! Why here: the arguments; the layer is `sidecore_oci`'s, its mount `sidecore_export`'s. The
//! snapshotter starts this command for each layer that is not whole yet.

use super::image::make_absolute;
use super::mount::{FuseArgs, end};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_export::background::{self, Starter};
use sidecore_export::fuse::FuseOptions;
use sidecore_export::mount::{FileSystem, Target, serve};
use sidecore_export::{Ready, live};
use sidecore_oci::Image;
use sidecore_oci::layer::{LayerDevice, Store};
use sidecore_terminal::quantity;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Arguments of `block layer`.
#[derive(clap::Args)]
#[command(after_help = "\
The layer is read by ranges of its blob, by the index that `sidecore block index` made of it \
here, or pushed next to the image (--trust-index). Without an index the layer is fetched as a \
whole first. What has come stays in the folder --layers; the rest is fetched in the background.")]
pub(crate) struct Args {
    /// The image: oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@DIGEST
    image: String,
    /// Mount point: an existing directory
    dir: PathBuf,
    /// Digest of the layer (sha256:...); the image's only layer unless given
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    #[command(flatten)]
    layers: LayersArgs,
    /// Read the file system with this program instead of the kernel. Needs no root
    #[arg(long)]
    rootless: bool,
    #[command(flatten)]
    fuse: FuseArgs,
}

/// Folder and trust of layers.
#[derive(clap::Args, Clone)]
pub(crate) struct LayersArgs {
    /// Folder of layers and their indexes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sidecore/layers")]
    pub(super) layers: PathBuf,
    /// Use an index that was pushed next to the image. It is proved once the whole layer is here;
    /// until then a file is what the index's maker says
    #[arg(long)]
    trust_index: bool,
    /// Bytes a second at which the rest is fetched in the background [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "0")]
    #[arg(hide_default_value = true)]
    rate: u64,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(mut self) -> Result<Outcome> {
        if !self.fuse.foreground && !self.fuse.background_child {
            let ready = background::start("layer")?;
            output::note!("mounted on {} ({})", self.dir.display(), ready.way);
            return Ok(Outcome::Done);
        }
        let starter = Starter::new(self.fuse.background_child);
        let result = self.serve(&starter);
        end(&starter, result)
    }

    fn serve(&mut self, starter: &Starter) -> Result<Outcome> {
        make_absolute(&mut self.layers.layers)?;
        let (name, device) = self.open()?;
        let (dir, way) = (
            self.dir.clone(),
            if self.rootless { "rootless" } else { "mount" },
        );
        let target = match self.rootless {
            true => Target::Tree { dir },
            false => Target::Mount {
                dir,
                trusted: false,
                file_systems: FileSystem::NAMES_DEFAULT.map(str::to_owned).to_vec(),
            },
        };
        let mut options = FuseOptions {
            read_ahead_bytes: READ_AHEAD_BYTES,
            keeping: self.fuse.keeping(),
            ..FuseOptions::of_user()
        };
        options.threads = self.fuse.threads().unwrap_or(THREADS);
        let mut begun = None;
        let rest = Arc::clone(&device);
        let source = Arc::clone(&device) as _;
        let served = serve(
            source,
            Path::new(&name),
            &target,
            options,
            |ready: &Ready| {
                let place = ready.place.display().to_string();
                let figures = Arc::clone(&device);
                let figures = move || serde_json::to_value(figures.figures()).unwrap_or_default();
                let status = live::status(&name, way, &[place], figures);
                self.fuse.begin(&status, &mut begun)?;
                starter.tell(ready, || Ok(()))?;
                rest.fetch_rest(BACKGROUND_THREADS, self.layers.rate, BACKGROUND_AFTER);
                Ok(())
            },
        );
        begun.transpose()?;
        served?;
        Ok(Outcome::Done)
    }

    /// Opens the layer, which is fetched as a whole where it has no index.
    fn open(&self) -> Result<(String, Arc<LayerDevice>)> {
        let store = Store::open(&self.layers.layers)?;
        let is_usable = |sha256: &str| {
            let index = store.index(sha256);
            index.is_some_and(|(_, is_trusted)| is_trusted || self.layers.trust_index)
        };
        let given = self.digest.as_deref().map(|digest| {
            let sha256 = digest.strip_prefix("sha256:");
            sha256.context("--digest takes sha256: and 64 digits")
        });
        let given = given.transpose()?;
        // With an index the image's manifest is not needed.
        let sha256 = match given.filter(|sha256| is_usable(sha256)) {
            Some(sha256) => sha256.to_owned(),
            None => {
                let image = Image::open(&self.image)?;
                let sha256 = match (given, image.layers()) {
                    (Some(sha256), _) => sha256.to_owned(),
                    (None, [(sha256, ..)]) => sha256.clone(),
                    (None, layers) => anyhow::bail!(
                        "the image has {} layers; name one with --digest: {}",
                        layers.len(),
                        layers
                            .iter()
                            .map(|it| format!("sha256:{} ", it.0))
                            .collect::<String>()
                    ),
                };
                image.prepare(&store, &sha256, self.layers.trust_index)?;
                sha256
            }
        };
        let blob = Image::blob_of(&self.image, &sha256)?;
        let device = LayerDevice::open(&store, &sha256, blob)?;
        Ok((format!("{}#{}", self.image, &sha256[..12]), device))
    }
}

/// The kernel's read-ahead for a sequential reader.
const READ_AHEAD_BYTES: u32 = 1 << 20;
/// Threads that answer the kernel: reads at once, most of which wait for the network.
const THREADS: usize = 16;
/// Threads that fetch the rest: one decompresses while another one waits.
const BACKGROUND_THREADS: usize = 2;
/// The program that starts reads alone at first.
const BACKGROUND_AFTER: Duration = Duration::from_secs(2);
