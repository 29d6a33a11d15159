//! `sidecore block`: one file a command, or a few that belong together.

mod attach;
mod common;
mod files;
mod index;
mod info;
mod mount;
mod overlays;
mod pack;
mod serve;
mod store;
mod unpack;

pub(crate) use mount::FetchingArgs;
pub(crate) use store::Command as StoreCommand;

#[cfg(feature = "bench")]
use crate::bench::BlockArgs as BenchArgs;
#[cfg(not(feature = "bench"))]
use crate::no_bench::Args as BenchArgs;
use crate::{Outcome, output, run_each};
use anyhow::Result;
use clap::Subcommand;
use sidecore_export::keeper;
use sidecore_export::state::StateDir;
use std::ffi::OsStr;
use std::process::ExitCode;

/// The commands on compressed images.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a compressed image from a file, a block device or a directory.
    Pack(pack::Args),
    /// Unpack an image to a file.
    Unpack(unpack::Args),
    /// Describe an image.
    Info(info::Args),
    /// Decompress every frame and check it.
    Verify(unpack::VerifyArgs),
    /// Index the frames of a zstd file that has no seek table.
    Index(index::Args),
    /// Mount the file system inside an image.
    Mount(mount::Args),
    /// Mount a layer of an unmodified image of containers.
    Layer(mount::LayerArgs),
    /// Undo `mount`.
    Umount(attach::UmountArgs),
    /// Make an image a block device.
    Attach(attach::Args),
    /// Undo `attach`.
    Detach(attach::DetachArgs),
    /// Serve an image over NBD, in the foreground.
    Serve(serve::Args),
    /// Serve an image as memory of virtual machines, in the foreground.
    Memory(serve::GuestArgs),
    /// List the images that are mounted, attached or served now.
    List(info::ListArgs),
    /// Describe the images that are mounted, attached or served now.
    Status(info::StatusArgs),
    /// Make a new image of an image and its overlays.
    Commit(overlays::CommitArgs),
    /// Make an overlay with the contents of another, at once.
    Clone(overlays::CloneArgs),
    /// Put the contents of an image and its overlays into one overlay, of it or of another image.
    Rebase(overlays::RebaseArgs),
    /// Put a new overlay above that of a running server, which keeps the old one as it is now.
    Snapshot(overlays::SnapshotArgs),
    /// Make the device of an overlay larger, also while it is served.
    Resize(overlays::ResizeArgs),
    /// List where two images or overlays differ.
    Diff(info::DiffArgs),
    /// Write an image's contents, with an overlay's, as a plain file or as qcow2.
    Export(unpack::ExportArgs),
    /// List files of an image, without a mount.
    Ls(files::LsArgs),
    /// Write files of an image to standard output, without a mount.
    Cat(files::CatArgs),
    /// Find files of an image, without a mount.
    Find(files::FindArgs),
    /// Extract files of an image to a directory or as tar, without a mount.
    Extract(files::ExtractArgs),
    /// The papers' experiments and the peers, on this machine.
    Bench(BenchArgs),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        // `umount` and `detach` look for their own first, and report it if its server was dead.
        // `list` and `status` change nothing, and must not wait for an unmount.
        let is_alone = matches!(self, Self::Umount(_) | Self::Detach(_));
        if !is_alone && !matches!(self, Self::List(_) | Self::Status(_)) {
            // The remains of killed servers, whatever the command is.
            StateDir::clean_after_the_dead();
        }
        run_each!(self; Pack Unpack Info Verify Index Mount Layer Umount Attach Detach Serve
            Memory List Status Commit Clone Rebase Snapshot Resize Diff Export Ls Cat Find Extract
            Bench)
    }
}

/// The helper of mount(8), or the keeper of a mount, where the program was started by its name.
pub(crate) fn by_name(name: Option<&OsStr>) -> Option<ExitCode> {
    let as_keeper = || {
        output::start_logging();
        match keeper::keep() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("the mount has no keeper any more: {error}");
                ExitCode::from(2)
            }
        }
    };
    let name = name?;
    mount::helper::as_helper(name).or_else(|| (name == keeper::NAME).then(as_keeper))
}
