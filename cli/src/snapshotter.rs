//! `sidecore snapshotter`.
//!
//! Why here: the arguments; the work is `sidecore_oci`'s. Must stay true: `ready` is on standard
//! output only once containerd can connect.

use crate::block::FetchingArgs;
use crate::live::MetricsArgs;
use crate::{Outcome, output, signals};
use anyhow::Result;
use sidecore_oci::snapshotter::{Config, UnixAddress, run, stopper};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Socket for containerd
    #[arg(long, value_name = "unix:PATH")]
    #[arg(default_value = "unix:/run/sidecore/snapshotter.sock")]
    address: UnixAddress,
    /// Folder of snapshots and layers
    #[arg(long, value_name = "DIR")]
    #[arg(default_value = "/var/lib/sidecore/snapshotter")]
    root: PathBuf,
    #[command(flatten)]
    fetching: FetchingArgs,
    /// Take layers as the images that `sidecore block pack oci://...` made of them, where the owner
    /// of this key has signed those: a public Ed25519 key in PEM; may be given again. With
    /// --trust-index images without a signature are taken, too
    #[arg(long, value_name = "KEY")]
    verify_key: Vec<PathBuf>,
    /// Mount the same layers for podman, CRI-O and buildah on this folder: an additional layer
    /// store of their storage.conf
    #[arg(long, value_name = "DIR")]
    layer_store: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let signals = signals::begin_server()?;
        let config = Config {
            socket: self.address.0,
            root: self.root,
            trust_indexes: self.fetching.trust_index,
            rate_bytes: self.fetching.rate,
            metrics: self.metrics.address(),
            layer_store: self.layer_store,
            verify_keys: self.verify_key,
        };
        let config = config.absolute()?;
        let (stop, stopped) = stopper();
        signals.stop_with(move || stop.stop());
        run(&config, stopped, || {
            if let Err(error) = output::line("ready") {
                tracing::warn!("{error}");
            }
        })?;
        signals.end();
        Ok(Outcome::Done)
    }
}
