//! `sidecore block serve`: an image over NBD, or to a virtual machine over vhost-user, in the
//! foreground, until it is interrupted. `sidecore block memory`: as memory of virtual machines.
//!
//! Why here: it only connects the command line, the device and the server in
//! `sidecore_export::nbd`, `sidecore_export::vhost_user` or `sidecore_export::guest_memory`.
//! Must stay true: `ready` is on standard output only once clients can connect. A signal ends the
//! command with status 0 after the replies in flight, with the Unix socket removed. This takes at
//! most a second, or ten where writes have to be kept; every acknowledged write is durable then.

use super::common::{OpenArgs, OverlayArgs, SectorArgs};
use crate::live::MetricsArgs;
use crate::trace::TraceArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::opened::Opened;
use sidecore_block::source::BlockSource;
use sidecore_export::guest_memory;
use sidecore_export::nbd::{Address, Options, Tls, bitmap_name};
use sidecore_export::serving::Serving;
use sidecore_remote::access::name;
use sidecore_remote::trace_parts;
use sidecore_status as status;
use sidecore_sys::activation::take_listeners;
use sidecore_terminal::quantity;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    overlay: OverlayArgs,
    /// Address to listen on: unix:PATH or tcp:HOST:PORT (10809 is the protocol's port). May be
    /// given several times. Required unless a service manager passes sockets (LISTEN_FDS).
    #[arg(long, value_name = "ADDRESS")]
    nbd: Vec<Address>,
    /// Be a disk of a virtual machine (vhost-user-blk) that connects to this socket and shares its
    /// memory, one after another: for QEMU `-chardev socket,id=c,path=PATH -device
    /// vhost-user-blk-pci,chardev=c` and memory with `share=on`
    #[arg(long, value_name = "PATH")]
    #[arg(conflicts_with_all = ["nbd", "name", "bitmap", "tls_certificates", "clients"])]
    vhost_user: Option<PathBuf>,
    /// Queues of that disk, each with a thread; 1 to 32
    #[arg(long, value_name = "N", default_value_t = 1, requires = "vhost_user")]
    queues: u16,
    #[command(flatten)]
    sectors: SectorArgs,
    /// The name that clients ask for; they may also ask for none.
    #[arg(long, value_name = "EXPORT", default_value = "")]
    name: String,
    /// Tell clients which blocks were written to the overlay, as QEMU's dirty bitmap of this name
    /// (`qemu:dirty-bitmap:NAME`): since the overlay was made, which `block clone --layer` and
    /// `block snapshot` do. It lasts as the overlay does
    #[arg(long, value_name = "NAME", requires = "overlay", value_parser = bitmap_name)]
    bitmap: Option<String>,
    /// Serve with TLS alone: DIR holds server-cert.pem and server-key.pem, as for nbdkit and qemu
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,
    /// Serve only clients with a certificate by an authority in ca-cert.pem
    #[arg(long, requires = "tls_certificates")]
    tls_verify_peer: bool,
    /// Clients at a time.
    #[arg(long, value_name = "N", default_value_t = Options::default().clients_max)]
    clients: usize,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::ensure!(self.clients > 0, "--clients must be at least 1");
        let (name, metrics) = (name(&self.open.image), self.metrics.address());
        if let Some(socket) = &self.vhost_user {
            let _recording = self.trace.begin("block serve")?;
            let opened = self.overlay.open(&self.open)?;
            let (queues, sector_bytes) = (self.queues, self.sectors.sector_size);
            opened.serve(|opened| -> Result<()> {
                let disk = serving(opened, &name, metrics.as_ref());
                Ok(disk.disk(socket, queues, sector_bytes)?)
            })?;
            return Ok(Outcome::Done);
        }
        let passed = take_listeners().context("cannot take the sockets of LISTEN_FDS")?;
        anyhow::ensure!(
            !self.nbd.is_empty() || !passed.is_empty(),
            "no address to serve at; give one with --nbd unix:PATH, --nbd tcp:HOST:PORT or \
             --vhost-user PATH"
        );
        let tls = self.tls_certificates.as_ref();
        let tls = tls.map(|directory| Tls::from_directory(directory, self.tls_verify_peer));
        let tls = tls.transpose()?;
        // Written last: the wait for it is bounded by the disk alone.
        let _recording = self.trace.begin("block serve")?;
        let opened = self.overlay.open(&self.open)?;
        opened.serve(|opened| -> Result<()> {
            let options = self.options(&*opened.source, tls);
            let bound = |address: &Address| output::note!("serving at {address}");
            let clients = serving(opened, &name, metrics.as_ref());
            Ok(clients.nbd(&self.nbd, passed, options, bound)?)
        })?;
        Ok(Outcome::Done)
    }

    fn options(&self, source: &dyn BlockSource, tls: Option<Tls>) -> Options {
        Options {
            name: self.name.clone(),
            clients_max: self.clients,
            bitmap: self.bitmap.clone(),
            // Clients of NBD may ask for any bytes of a disk with usual sectors.
            block_bytes: match self.sectors.sector_size {
                512 => 1,
                large => large,
            },
            tls,
            ..Options::for_source(source)
        }
    }
}

/// An image in the foreground, which says `ready` once clients can connect.
fn serving<'s>(
    opened: &'s Opened,
    name: &'s str,
    metrics: Option<&'s status::Address>,
) -> Serving<'s> {
    Serving {
        opened,
        name,
        metrics,
        ready: || output::line("ready"),
    }
}

#[derive(clap::Args)]
pub(crate) struct GuestArgs {
    #[command(flatten)]
    open: OpenArgs,
    /// Socket that virtual machines connect to; only this user can open it
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Give each machine the parts that this trace names, in its order, from the start
    #[arg(long, value_name = "TRACE")]
    prefetch_trace: Option<PathBuf>,
    /// Bytes around a page that come with it: a power of two from 4KiB to 2MiB
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "4KiB")]
    around: u64,
    /// Virtual machines at a time
    #[arg(long, value_name = "N", default_value_t = guest_memory::Options::default().clients_max)]
    clients: usize,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

impl GuestArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::ensure!(self.clients > 0, "--clients must be at least 1");
        let _recording = self.trace.begin("block memory")?;
        let device = self.open.device()?;
        let prefetch = match &self.prefetch_trace {
            Some(path) => trace_parts(path, device.index())
                .with_context(|| format!("cannot prefetch by {}", path.display()))?,
            None => Vec::new(),
        };
        let options = guest_memory::Options {
            clients_max: self.clients,
            around_bytes: self.around,
            prefetch,
        };
        let (name, metrics) = (name(&self.open.image), self.metrics.address());
        Opened::new(device, None).serve(|opened| -> Result<()> {
            let memory = serving(opened, &name, metrics.as_ref());
            Ok(memory.memory(&self.socket, options)?)
        })?;
        Ok(Outcome::Done)
    }
}
