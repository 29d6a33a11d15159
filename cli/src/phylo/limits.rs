//! Limits that all commands on alignments and trees take: memory, and time.

use crate::output;
use anyhow::{Context, Result};
use sidecore_phylo::io::input::Memory;
use sidecore_sys::ending::TimeLimit;
use sidecore_terminal::quantity;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Options of every command.
#[derive(clap::Args)]
pub(crate) struct Limits {
    /// Memory to use at most, such as 4GiB. Unless given: for input 192 MiB and 64 times a file's
    /// bytes, half of the machine's memory at most; three quarters of it for computing
    #[arg(long, value_name = "SIZE", global = true, value_parser = memory_size)]
    memory: Option<u64>,
    /// Time (`90`, `5min`) after which it ends: a search as by a signal, with its state saved,
    /// others without a result
    #[arg(long, value_name = "SECONDS", global = true, value_parser = quantity::duration)]
    time: Option<Duration>,
}

fn memory_size(text: &str) -> Result<u64, String> {
    let bytes = quantity::size(text)?;
    match bytes >= MEMORY_LEAST {
        true => Ok(bytes),
        false => Err("at least 1MiB".to_owned()),
    }
}

static MEMORY: OnceLock<Memory> = OnceLock::new();
static TIME: OnceLock<Arc<TimeLimit>> = OnceLock::new();

impl Limits {
    /// Applies the limits. Call it once, before the command.
    pub(super) fn begin(&self) -> Result<()> {
        MEMORY.get_or_init(|| Memory::new(self.memory));
        if let Some(time) = self.time {
            let limit = TimeLimit::begin(time, GRACE, move || {
                let seconds = time.as_secs_f64();
                output::note!("sidecore: not done after {seconds} s (--time): ended");
            });
            TIME.set(limit.context("cannot start a thread for --time")?)
                .ok();
        }
        Ok(())
    }
}

/// Memory that the command may use.
pub(super) fn memory() -> Memory {
    *MEMORY.get_or_init(|| Memory::new(None))
}

/// True where the user has limited the time.
pub(super) fn is_timed() -> bool {
    TIME.get().is_some()
}

/// From now on the time limit raises this flag; without one it ends the process.
pub(super) fn stop_with(stop: &Arc<AtomicBool>) {
    if let Some(limit) = TIME.get() {
        limit.stop_with(stop);
    }
}

/// Refuses work that takes more memory than is allowed.
pub(super) fn check_work(what: &str, need: u64) -> Result<()> {
    Ok(memory().check_work(what, need)?)
}

/// Time for a search to save its state.
const GRACE: Duration = Duration::from_secs(30);
const MEMORY_LEAST: u64 = 1 << 20;
