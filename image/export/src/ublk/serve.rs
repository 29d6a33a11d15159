//! The process that serves an image over ublk, from its record to its end.
//!
//! Why here: the server's part of `attach` where the kernel has ublk; the loop device's counterpart
//! is `mount/server.rs`.
//! Must stay true: a killed server leaves its device quiesced, and the next `attach` of the same
//! image takes it over; an orderly end removes the device. Signals: SIGINT, SIGTERM or SIGHUP ends
//! the server. Users of a mount have [`PATIENCE`] to unmount the device, and get errors then.
//! Nothing is written to such a device, so nothing can be lost.
//!
//! [`serve`] keeps the calling thread, which must not serve reads.

use super::control::is_held;
use super::{Options, UblkServer, UblkStopper, start_or_recover};
use crate::state::{Record, StateDir};
use crate::{ExportError, Ready};
use sidecore_format::source::BlockSource;
use sidecore_sys::signals::{Handle, Signals};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Serves `source`, the contents of `image`, as `/dev/ublkbN` with logical sectors of
/// `sector_bytes` until it is detached. `ready` is called once the device can be read; if it fails
/// (the caller has stopped waiting), the device is removed again.
///
/// # Errors
/// [`ExportError::Ublk`], [`ExportError::State`]; nothing is left then.
pub(crate) fn serve(
    source: Arc<dyn BlockSource>,
    image: &Path,
    read_ahead_bytes: u32,
    sector_bytes: u32,
    ready: impl FnOnce(&Ready) -> io::Result<()>,
) -> Result<(), ExportError> {
    let failed = |error| ExportError::os("cannot listen for signals", error);
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let states = StateDir::of_user();
    states.clean_stale()?;
    // By this name a later server recognises the device that a dead one has left.
    let image = image.canonicalize().unwrap_or_else(|_| image.to_owned());
    let mut record = Record::new(image.clone());
    let claim = states.claim(&record)?;
    let options = Options {
        read_ahead_kib: read_ahead_bytes / 1024,
        sector_bytes,
        image,
        identity: source.identity(),
        ..Options::default()
    };
    let result = (|| {
        let server = start_or_recover(source, &options)?;
        record.device = Some(server.device_path().to_owned());
        claim.write(&record)?;
        let listening = end_on_signals(signals, &server).map_err(failed)?;
        ready(&Ready {
            place: server.device_path().to_owned(),
            way: way(&server),
            state: claim.path().to_owned(),
            pid: record.pid,
        })
        .map_err(|e| ExportError::os("the command that started this server is gone", e))?;
        let ended = server.run();
        // The device is gone: a signal from here on has nothing to end.
        listening.close();
        Ok(ended?)
    })();
    claim.release();
    result
}

fn way(server: &UblkServer) -> String {
    if server.is_recovered() {
        "ublk, taken over from a server that died".into()
    } else {
        "ublk".into()
    }
}

/// Stops the server by signals, on a thread that ends when the handle is closed.
fn end_on_signals(mut signals: Signals, server: &UblkServer) -> io::Result<Handle> {
    let handle = signals.handle();
    let (stopper, dev_id) = (server.stopper(), server.dev_id());
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.next().is_none() {
                return;
            }
            let begun = Instant::now();
            // Users of the device get errors once it stops; a moment lets an unmount end first.
            while is_held(dev_id) && begun.elapsed() < PATIENCE {
                std::thread::sleep(LOOK_AGAIN);
            }
            stop(stopper);
            std::thread::sleep(PATIENCE);
            // A queue hangs in a source that does not answer.
            super::control::forsake(dev_id);
            std::process::exit(0);
        })?;
    Ok(handle)
}

fn stop(stopper: UblkStopper) {
    if let Err(error) = stopper.stop() {
        tracing::warn!("{error}");
    }
}

/// Time to unmount the device, and for the queues to end.
const PATIENCE: Duration = Duration::from_millis(400);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
