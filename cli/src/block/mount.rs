//! `sidecore block mount`, and `layer`, which the snapshotter starts for each layer that is not
//! whole yet.
//!
//! Why here: the arguments, and the lines that people read; the rest is in `sidecore_export`. The
//! server's process opens the image, because its engines are threads.

pub(crate) mod helper;

use super::common::{OpenArgs, OverlayArgs, make_absolute, status};
use crate::live::{Live, MetricsArgs};
use crate::trace::TraceArgs;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_block::source::BlockSource;
use sidecore_export::attach::take_size;
use sidecore_export::background::{self, Starter};
use sidecore_export::fuse::{FuseOptions, Keeping, THREADS_MAX};
use sidecore_export::mount::{FileSystem, Target, check_uuid, serve};
use sidecore_export::{ExportError, Ready};
use sidecore_oci::Image;
use sidecore_oci::layer::{LayerDevice, Store};
use sidecore_remote::access::{is_remote, name};
use sidecore_status::Status;
use sidecore_terminal::quantity;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    overlay: OverlayArgs,
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
    #[arg(
        long,
        value_name = "FS,...",
        value_delimiter = ',',
        conflicts_with = "file_only"
    )]
    #[arg(value_parser = FileSystem::NAMES, default_values = FileSystem::NAMES_DEFAULT)]
    fs: Vec<String>,
    /// Start another server where this one is killed; programs wait meanwhile and see no error. A
    /// small process keeps the mount for it.
    #[arg(long, conflicts_with_all = ["overlay", "file_only", "rootless", "foreground"])]
    keep: bool,
    /// Mount only an erofs with this UUID. Set by the snapshotter; internal.
    #[arg(long, hide = true, value_name = "UUID")]
    erofs_uuid: Option<String>,
    #[command(flatten)]
    fuse: FuseArgs,
    #[command(flatten)]
    trace: TraceArgs,
}

/// Options of the FUSE server.
#[derive(clap::Args)]
pub(crate) struct FuseArgs {
    /// Stay in the foreground; Ctrl-C undoes everything.
    #[arg(long)]
    foreground: bool,
    /// Threads that answer the kernel; one a core, at least 2 and at most 8, unless given.
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    threads: Option<usize>,
    /// Read-ahead of the kernel for a sequential reader.
    #[arg(long, value_name = "SIZE", value_parser = parse_read_ahead)]
    #[arg(default_value = "1MiB")]
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
        let name = name(&self.open.image);
        let dir = self.dir;
        if let Some(ready) = self.fuse.in_background("mount")? {
            output::note!("mounted {name} on {} ({})", dir.display(), ready.way);
            return Ok(Outcome::Done);
        }
        let (way, target) = match (self.rootless, self.file_only) {
            (true, _) => ("rootless", Target::Tree { dir }),
            (_, true) => ("file", Target::File { dir }),
            _ => {
                let (trusted, file_systems) = (self.trust, self.fs);
                let target = Target::Mount {
                    dir,
                    trusted,
                    file_systems,
                };
                ("mount", target)
            }
        };
        let (keep, uuid) = (self.keep, self.erofs_uuid);
        let serving = Serving {
            open: self.open,
            overlay: self.overlay,
            trace: self.trace,
            command: "block mount",
            way,
        };
        let mounted = |ready: &Ready| {
            let place = ready.place.display();
            output::note!("mounted {name} on {place} ({}); Ctrl-C unmounts", ready.way);
            Ok(())
        };
        self.fuse
            .serve_image(serving, mounted, |source, name, mut options, ready| {
                if keep {
                    options.keeping = self.fuse.keeping();
                }
                if let Some(uuid) = &uuid {
                    check_uuid(&*source, uuid)?;
                }
                serve(source, name, &target, options, ready)
            })
    }
}

/// An image that a server of the kernel's serves.
pub(super) struct Serving {
    pub(super) open: OpenArgs,
    pub(super) overlay: OverlayArgs,
    pub(super) trace: TraceArgs,
    /// The command, for its recording.
    pub(super) command: &'static str,
    /// The way of serving, for its status.
    pub(super) way: &'static str,
}

/// The call of a server that is ready.
pub(super) type OnReady<'a> = Box<dyn FnOnce(&Ready) -> io::Result<()> + Send + 'a>;

impl FuseArgs {
    /// Starts the server in the background, where it belongs there; returns what it says once it is
    /// ready. Nothing where this process is the server.
    pub(super) fn in_background(&self, subcommand: &str) -> Result<Option<Ready>> {
        match self.foreground || self.background_child {
            true => Ok(None),
            false => Ok(Some(background::start(subcommand)?)),
        }
    }

    /// Serves by `work`; the reason of a failure goes to a waiting command, where one waits.
    pub(super) fn serve(&self, work: impl FnOnce(&Starter) -> Result<Outcome>) -> Result<Outcome> {
        let starter = Starter::new(self.background_child);
        let result = work(&starter);
        if let Err(error) = &result
            && starter.fail(output::chain(error))
        {
            std::process::exit(2)
        }
        result
    }

    /// Serves an image by `serve` until it is undone. `shown` prints what is ready in the
    /// foreground.
    pub(super) fn serve_image(
        &self,
        serving: Serving,
        shown: impl FnOnce(&Ready) -> io::Result<()> + Send,
        serve: impl FnOnce(
            Arc<dyn BlockSource>,
            &Path,
            FuseOptions,
            OnReady<'_>,
        ) -> Result<(), ExportError>,
    ) -> Result<Outcome> {
        let Serving {
            mut open,
            mut overlay,
            mut trace,
            command,
            way,
        } = serving;
        self.serve(|starter| {
            open.make_absolute()?;
            overlay.make_absolute()?;
            trace.make_absolute()?;
            let _recording = trace.begin(command)?;
            let name = name(&open.image);
            let opened = overlay.open(&open)?;
            // Listed until the overlay is closed.
            let mut begun = None;
            opened.serve(|opened| -> Result<_> {
                // The overlay is there now, made if it was not.
                let options = self.options(&open, &overlay)?;
                let ready = |ready: &Ready| {
                    // Before the command ends: its user may list it at once.
                    let place = ready.place.display().to_string();
                    let device = ready.place.clone();
                    let grown = move || take_size(&device).map_err(|error| error.to_string());
                    let status = status(opened, &name, way, &[place], grown);
                    self.begin(&status, &mut begun)?;
                    starter.tell(ready, || shown(ready))
                };
                let source = Arc::clone(&opened.source);
                let served = serve(source, Path::new(&name), options, Box::new(ready));
                ended(&mut begun, served)
            })?;
            Ok(Outcome::Done)
        })
    }

    /// Threads that answer the kernel, where they were given.
    pub(super) fn threads(&self) -> Option<usize> {
        self.threads
    }

    /// A keeper for the mount, where this server can have one.
    pub(super) fn keeping(&self) -> Keeping {
        match (self.adopt, self.background_child) {
            (true, _) => Keeping::Adopt,
            (false, true) => Keeping::Yes,
            (false, false) => Keeping::No,
        }
    }

    /// Begins to be known as a live server. The reason of a failure is kept in `begun`.
    pub(super) fn begin(
        &self,
        status: &Arc<Status>,
        begun: &mut Option<Result<Live>>,
    ) -> io::Result<()> {
        let live = begun.insert(self.metrics.begin(status, self.foreground));
        match live {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::other(output::chain(error))),
        }
    }

    /// Options for the library. An ordinary user's mount is open to that user alone, root's to
    /// those that may read the files.
    fn options(&self, open: &OpenArgs, overlay: &OverlayArgs) -> Result<FuseOptions> {
        let image = &open.image;
        let (is_remote, has_secrets) = (is_remote(image), open.has_secrets());
        let own = FuseOptions::for_image(image, is_remote, overlay.path(), has_secrets)?;
        Ok(FuseOptions {
            read_ahead_bytes: self.read_ahead,
            passthrough: !self.no_passthrough,
            threads: self.threads.unwrap_or(own.threads),
            ..own
        })
    }
}

/// The end of a server: of two reasons for it the first, which is that it could not be listed.
pub(super) fn ended(
    begun: &mut Option<Result<Live>>,
    served: Result<(), ExportError>,
) -> Result<()> {
    match begun.take_if(|begun| begun.is_err()) {
        Some(Err(error)) => Err(error),
        _ => Ok(served?),
    }
}

fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=THREADS_MAX).contains(&threads) => Ok(threads),
        _ => Err(format!("must be a number from 1 to {THREADS_MAX}")),
    }
}

fn parse_read_ahead(text: &str) -> Result<u32, String> {
    match quantity::size(text)? {
        bytes @ 4096..=READ_AHEAD_BYTES_MAX if bytes % 4096 == 0 => Ok(bytes as u32),
        _ => Err("must be a multiple of 4KiB, from 4KiB to 64MiB".into()),
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

impl LayerArgs {
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;
    use std::any::TypeId;

    /// A new option that is a path has to be made absolute before the server leaves its directory.
    #[test]
    fn every_option_that_is_a_path_is_known() {
        let command = Args::augment_args(clap::Command::new("mount"));
        let is_path = |it: &&clap::Arg| it.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        let paths = command.get_arguments().filter(is_path);
        let mut names: Vec<_> = paths.map(|it| it.get_id().to_string()).collect();
        names.sort();
        let before = ["dir", "image"];
        let after = [
            "cache",
            "domain",
            "identity",
            "overlay",
            "passphrase_file",
            "prefetch",
            "sidx",
            "trace",
            "trace_events",
            "verify_key",
        ];
        names.retain(|name| !before.contains(&name.as_str()));
        assert_eq!(names, after);
    }

    #[test]
    fn the_read_ahead_that_the_help_names_is_the_default() {
        let default = sidecore_export::fuse::READ_AHEAD_BYTES_DEFAULT;
        assert_eq!(parse_read_ahead("1MiB"), Ok(default));
    }
}
