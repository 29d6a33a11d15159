//! `sidecore block mount`, and `layer`, which the snapshotter starts for each layer that is not
//! whole yet.
//!
//! Why here: the arguments, and the lines that people read; the rest is in `sidecore_export`. The
//! server's process opens the image, because its engines are threads.

pub(crate) mod helper;

use super::common::{OpenArgs, OverlayArgs};
use crate::live::MetricsArgs;
use crate::trace::TraceArgs;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_block::source::BlockSource;
use sidecore_export::attach::take_size;
use sidecore_export::background::{Launch, OnReady, Starter};
use sidecore_export::fuse::{FuseOptions, THREADS_MAX};
use sidecore_export::mount::{FileSystem, Target, check_uuid, serve};
use sidecore_export::serving::status;
use sidecore_export::{ExportError, Ready};
use sidecore_oci::LayerMount;
use sidecore_oci::layer::LayerDevice;
use sidecore_remote::access::{is_remote, name};
use sidecore_terminal::quantity;
use sidecore_terminal::values::fitting_size;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    serving: ServingArgs,
    /// Mount point: an existing directory.
    dir: PathBuf,
    /// Show the contents as one file, DIR/image, instead of mounting what is in them. Needs no
    /// root.
    #[arg(long)]
    file_only: bool,
    /// Read the file system inside (erofs, as `pack` makes it) with this program instead of the
    /// kernel. Needs no root, and no trust in the image's maker.
    #[arg(long, conflicts_with_all = ["file_only", "trust", "fs", "overlay"])]
    rootless: bool,
    /// Let device nodes and set-user-id programs in the image count. Only for images whose maker
    /// you trust.
    #[arg(long, conflicts_with = "file_only")]
    trust: bool,
    /// File systems that the kernel may mount, of erofs, squashfs, ext4 (ext2 and ext3, too),
    /// iso9660, xfs, btrfs and vfat. The kernel's parsers run with full privileges: name others
    /// than the default only for images whose maker you trust.
    #[arg(long, value_name = "FS,...", value_delimiter = ',')]
    #[arg(value_parser = FileSystem::NAMES, default_values = FileSystem::NAMES_DEFAULT)]
    #[arg(conflicts_with = "file_only")]
    fs: Vec<String>,
    /// Start another server where this one is killed; programs wait meanwhile and see no error. A
    /// small process keeps the mount for it.
    #[arg(long, conflicts_with_all = ["overlay", "file_only", "rootless", "foreground"])]
    keep: bool,
    /// Mount only an erofs with this UUID. Set by the snapshotter; internal.
    #[arg(long, hide = true, value_name = "UUID")]
    erofs_uuid: Option<String>,
}

/// An image that a server of the kernel's serves.
#[derive(clap::Args)]
pub(super) struct ServingArgs {
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    overlay: OverlayArgs,
    #[command(flatten)]
    fuse: FuseArgs,
    #[command(flatten)]
    trace: TraceArgs,
}

/// Options of the FUSE server.
#[derive(clap::Args)]
struct FuseArgs {
    /// Stay in the foreground; Ctrl-C undoes everything.
    #[arg(long)]
    foreground: bool,
    /// Threads that answer the kernel; one a core, at least 2 and at most 8, unless given.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX as i64))]
    threads: Option<u16>,
    /// Read-ahead of the kernel for a sequential reader.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = fitting_size::<u32>(
        |it| it % 4096 == 0 && (4096..=READ_AHEAD_BYTES_MAX).contains(&it),
        "must be a multiple of 4KiB, from 4KiB to 64MiB",
    ))]
    read_ahead: u32,
    /// Read a raw image through the server even where the kernel could read its file itself.
    #[arg(long)]
    no_passthrough: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Set by the command that starts the server; internal.
    #[arg(long, hide = true)]
    background_child: bool,
    /// Set by the keeper of a server that was killed; internal.
    #[arg(long, hide = true)]
    adopt: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (name, launch) = (self.serving.name(), self.serving.launch());
        let dir = self.dir;
        if let Some(ready) = launch.in_background("mount")? {
            output::note!("mounted {name} on {} ({})", dir.display(), ready.way);
            return Ok(Outcome::Done);
        }
        let target = match (self.rootless, self.file_only) {
            (true, _) => Target::Tree { dir },
            (_, true) => Target::File { dir },
            _ => Target::Mount {
                dir,
                trusted: self.trust,
                file_systems: self.fs,
            },
        };
        let shown = |ready: &Ready| {
            let place = ready.place.display();
            output::note!("mounted {name} on {place} ({}); Ctrl-C unmounts", ready.way);
            Ok(())
        };
        let named = ("block mount", target.way());
        let serving = self.serving;
        serving.run(&launch, named, shown, |source, name, mut options, ready| {
            if self.keep {
                options.keeping = launch.keeping();
            }
            if let Some(uuid) = &self.erofs_uuid {
                check_uuid(&*source, uuid)?;
            }
            serve(source, name, &target, options, ready)
        })
    }
}

impl FuseArgs {
    fn launch(&self) -> Launch {
        Launch {
            foreground: self.foreground,
            is_child: self.background_child,
            adopts: self.adopt,
            metrics: self.metrics.address(),
        }
    }
}

impl ServingArgs {
    /// The server's process, as the words of the command line say.
    pub(super) fn launch(&self) -> Launch {
        self.fuse.launch()
    }

    /// The image's name, for people.
    pub(super) fn name(&self) -> String {
        name(&self.open.image)
    }

    /// Serves the image by `serve` until that is undone; `command` is for its recording, `way` for
    /// the list of servers. `shown` prints what is ready in the foreground.
    pub(super) fn run(
        &self,
        launch: &Launch,
        (command, way): (&str, &'static str),
        shown: impl FnOnce(&Ready) -> io::Result<()> + Send,
        serve: impl FnOnce(
            Arc<dyn BlockSource>,
            &Path,
            FuseOptions,
            OnReady<'_>,
        ) -> Result<(), ExportError>,
    ) -> Result<Outcome> {
        launch.serve(|starter: &Starter<'_>| {
            let _recording = self.trace.begin(command)?;
            let name = self.name();
            let opened = self.overlay.open(&self.open)?;
            opened.serve(|opened| -> Result<()> {
                // The overlay is there now, made if it was not.
                let options = self.options()?;
                let status = |ready: &Ready| {
                    let (place, device) = (ready.place.display(), ready.place.clone());
                    let grown = move || take_size(&device);
                    status(opened, &name, way, &[place.to_string()], grown)
                };
                let source = Arc::clone(&opened.source);
                let serve = |ready: OnReady<'_>| serve(source, Path::new(&name), options, ready);
                Ok(starter.run(status, shown, serve)?)
            })?;
            Ok(Outcome::Done)
        })
    }

    /// Options for the library. An ordinary user's mount is open to that user alone, root's to
    /// those that may read the files.
    fn options(&self) -> Result<FuseOptions> {
        let (image, overlay, fuse) = (&self.open.image, self.overlay.path(), &self.fuse);
        let has_secrets = self.open.has_secrets();
        let own = FuseOptions::for_image(image, is_remote(image), overlay, has_secrets)?;
        Ok(FuseOptions {
            read_ahead_bytes: fuse.read_ahead,
            passthrough: !fuse.no_passthrough,
            threads: fuse.threads.map_or(own.threads, usize::from),
            ..own
        })
    }
}

/// More would only evict other files from memory.
const READ_AHEAD_BYTES_MAX: u64 = 64 << 20;

#[derive(clap::Args)]
pub(crate) struct LayerArgs {
    /// The image: oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@DIGEST
    image: String,
    /// Mount point: an existing directory
    dir: PathBuf,
    /// Digest of the layer (sha256:...); the image's only layer unless given
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    /// Folder of layers and their indexes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sidecore/layers")]
    layers: PathBuf,
    #[command(flatten)]
    fetching: FetchingArgs,
    /// Read the file system with this program instead of the kernel. Needs no root
    #[arg(long)]
    rootless: bool,
    #[command(flatten)]
    fuse: FuseArgs,
}

/// Trust in the index of a layer, and the fetch of the rest of it.
#[derive(clap::Args)]
pub(crate) struct FetchingArgs {
    /// Use an index that was pushed next to the image (`sidecore block index --push`). It is proved
    /// once the whole layer is here; until then a file is what the index's maker says
    #[arg(long)]
    pub(crate) trust_index: bool,
    /// Bytes a second at which the rest of a layer is fetched in the background [default:
    /// unlimited]
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "0")]
    #[arg(hide_default_value = true)]
    pub(crate) rate: u64,
}

impl LayerArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let (dir, launch) = (self.dir, self.fuse.launch());
        if let Some(ready) = launch.in_background("layer")? {
            output::note!("mounted on {} ({})", dir.display(), ready.way);
            return Ok(Outcome::Done);
        }
        let target = Target::untrusted(dir, self.rootless);
        let threads = self.fuse.threads.map(usize::from);
        let options = LayerDevice::fuse_options(threads, launch.keeping());
        let layer = LayerMount {
            image: &self.image,
            digest: self.digest.as_deref(),
            layers: &self.layers,
            trust_index: self.fetching.trust_index,
            rate_bytes: self.fetching.rate,
        };
        launch.serve(|starter: &Starter<'_>| {
            layer.serve(&target, options, starter)?;
            Ok(Outcome::Done)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Mount {
        #[command(flatten)]
        fuse: FuseArgs,
    }

    #[test]
    fn the_read_ahead_that_the_help_names_is_the_default() {
        let default = sidecore_export::fuse::READ_AHEAD_BYTES_DEFAULT;
        assert_eq!(Mount::parse_from(["mount"]).fuse.read_ahead, default);
    }
}
