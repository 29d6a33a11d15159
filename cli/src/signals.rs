//! Signals of long-running commands: measuring commands poll a flag, servers get a call.

use crate::output;
use anyhow::{Context, Result};
use sidecore_sys::descriptors;
use sidecore_sys::ending::Ending;
pub(crate) use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that any of `signals` raises.
pub(crate) fn raise_on(signals: &[i32]) -> Result<Arc<AtomicBool>> {
    let raised = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        signal_hook::flag::register(signal, Arc::clone(&raised))
            .context("cannot watch for signals")?;
    }
    Ok(raised)
}

/// Begins a server: its end by a signal is bounded from here on, and it may have as many clients as
/// the system lets it have.
pub(crate) fn begin_server() -> Result<Ending> {
    let ending = Ending::begin(|time_max| {
        let ms = time_max.as_millis();
        output::note!("sidecore: not done {ms} ms after the signal; ending as it is");
        sidecore_trace::write_now();
    });
    let ending = ending.context("cannot watch for SIGINT and SIGTERM")?;
    descriptors::raise_limit();
    Ok(ending)
}
