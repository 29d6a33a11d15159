//! `sidecore block serve`: an image over NBD, in the foreground, until it is interrupted.
//!
//! Why here: it only connects the command line, the device and the server in
//! `sidecore_block::ways::nbd`.
//! Must stay true: `ready` is on standard output only once clients can connect; a signal ends the
//! command with status 0 after replies under way, with the Unix socket removed.

use crate::{Outcome, output, size};
use anyhow::{Context, Result};
use sidecore_block::source::{BlockSource, Deliver, Extent, ReadError, check_range};
use sidecore_block::ways::nbd::{Address, Options, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Arguments of `block serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The image to serve.
    image: PathBuf,
    /// Where to listen: unix:PATH or tcp:HOST:PORT (10809 is the protocol's port). May be given
    /// several times.
    #[arg(long, value_name = "ADDRESS", required = true)]
    nbd: Vec<String>,
    /// The name that clients ask for; they may also ask for none.
    #[arg(long, value_name = "EXPORT", default_value = "")]
    name: String,
    /// Engines that inflate [default: one for each core].
    #[arg(long, value_name = "N")]
    engines: Option<usize>,
    /// The most memory for inflated frames, such as 256MiB [default: chosen by the device].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// Clients at a time.
    #[arg(long, value_name = "N", default_value_t = Options::default().clients_max)]
    clients: usize,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let addresses = self
            .nbd
            .iter()
            .map(|text| text.parse())
            .collect::<Result<Vec<Address>, _>>()?;
        anyhow::ensure!(self.clients > 0, "--clients must be at least 1");
        let source = open(&self)?;
        // Before anything is listening, so that an early signal leaves no socket behind either.
        let mut signals =
            Signals::new([SIGINT, SIGTERM]).context("cannot watch for SIGINT and SIGTERM")?;
        let options = Options {
            name: self.name.clone(),
            description: describe(&self.image),
            clients_max: self.clients,
            ..Options::default()
        };
        let server = Server::bind(source, &addresses, options)?;
        let stopper = server.stopper();
        let watcher = signals.handle();
        let watching = std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for _ in signals.forever() {
                    stopper.stop();
                }
            })
            .context("cannot start a thread to watch for signals")?;
        for (given, bound) in addresses.iter().zip(server.addresses()) {
            if *given != bound {
                // Only a TCP address changes: its port 0 has become a real one.
                eprintln!("serving at {bound}");
            }
        }
        output::line("ready")?;
        let served = server.run();
        watcher.close();
        if watching.join().is_err() {
            tracing::warn!("the thread that watches for signals failed");
        }
        served?;
        Ok(Outcome::Done)
    }
}

fn describe(image: &Path) -> String {
    let name = image.file_name().unwrap_or(image.as_os_str());
    format!("{}, read-only", name.to_string_lossy())
}

/// Opens what is served.
fn open(args: &Args) -> Result<Arc<dyn BlockSource>> {
    // A raw file has nothing to inflate and nothing to keep.
    let _ = (args.engines, args.memory);
    let open = || -> std::io::Result<RawFile> {
        let file = File::open(&args.image)?;
        let size_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        Ok(RawFile { file, size_bytes })
    };
    let source = open().with_context(|| format!("cannot open {}", args.image.display()))?;
    Ok(Arc::new(source))
}

/// A file whose bytes are the device.
struct RawFile {
    file: File,
    size_bytes: u64,
}

impl BlockSource for RawFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn preferred_bytes(&self) -> u32 {
        65536
    }

    fn read_with_max_bytes(&self) -> usize {
        READ_BYTES_MAX
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes)?;
        self.file
            .read_exact_at(dst, offset)
            .map_err(|error| ReadError::Io {
                reason: error.to_string(),
            })
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < len.min(READ_BYTES_MAX) {
                buffer.resize(len, 0);
            }
            match self.read_into(offset, &mut buffer[..len]) {
                Ok(()) => deliver(Ok(&[&buffer[..len]])),
                Err(error) => deliver(Err(&error)),
            }
        });
    }

    fn extent(&self, offset: u64) -> Extent {
        let seek = |from| rustix::fs::seek(&self.file, from);
        let end = self.size_bytes.max(offset);
        // Where the file system knows no holes, all is data.
        let data = match seek(rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => end,
            Err(_) => offset,
        };
        let zero = data > offset;
        let stop = if zero {
            data
        } else {
            seek(rustix::fs::SeekFrom::Hole(offset)).unwrap_or(end)
        };
        Extent {
            len: stop.min(end) - offset,
            zero,
        }
    }

    fn passthrough(&self) -> Option<&File> {
        Some(&self.file)
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

const READ_BYTES_MAX: usize = 1 << 20;
