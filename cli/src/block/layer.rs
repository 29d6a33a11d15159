//! `sidecore block layer`.
//!
//! Why here: the arguments; the layer is `sidecore_oci`'s, its mount `sidecore_export`'s. The
//! snapshotter starts this command for each layer that is not whole yet.

use super::common::make_absolute;
use super::mount::{FuseArgs, ended};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_export::Ready;
use sidecore_export::mount::{FileSystem, Target, serve};
use sidecore_oci::Image;
use sidecore_oci::layer::{LayerDevice, Store};
use sidecore_terminal::quantity;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args)]
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
    pub(crate) fn run(mut self) -> Result<Outcome> {
        if let Some(ready) = self.fuse.in_background("layer")? {
            output::note!("mounted on {} ({})", self.dir.display(), ready.way);
            return Ok(Outcome::Done);
        }
        self.fuse.serve(|starter| {
            make_absolute(&mut self.layers.layers)?;
            let store = Store::open(&self.layers.layers)?;
            let (digest, trust) = (self.digest.as_deref(), self.layers.trust_index);
            let (name, device) = Image::open_layer(&self.image, digest, &store, trust)?;
            let dir = self.dir.clone();
            let (way, target) = match self.rootless {
                true => ("rootless", Target::Tree { dir }),
                false => {
                    let target = Target::Mount {
                        dir,
                        trusted: false,
                        file_systems: FileSystem::NAMES_DEFAULT.map(str::to_owned).to_vec(),
                    };
                    ("mount", target)
                }
            };
            let options = LayerDevice::fuse_options(self.fuse.threads(), self.fuse.keeping());
            let mut begun = None;
            let source = Arc::clone(&device) as _;
            let ready = |ready: &Ready| {
                let place = ready.place.display().to_string();
                self.fuse
                    .begin(&device.status(&name, way, place), &mut begun)?;
                starter.tell(ready, || Ok(()))?;
                device.fetch_rest(self.layers.rate);
                Ok(())
            };
            let served = serve(source, Path::new(&name), &target, options, ready);
            ended(&mut begun, served)?;
            Ok(Outcome::Done)
        })
    }
}
