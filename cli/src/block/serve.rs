//! `sidecore block serve`: an image over NBD, or to a virtual machine over vhost-user, in the
//! foreground, until it is interrupted. `sidecore block memory`: as memory of virtual machines.
//!
//! Why here: it only connects the command line, the device and the server in
//! `sidecore_export::nbd`, `sidecore_export::vhost_user` or `sidecore_export::guest_memory`.
//! Must stay true: `ready` is on standard output only once clients can connect. A signal ends the
//! command with status 0 after the replies in flight, with the Unix socket removed. This takes at
//! most a second, or ten where writes have to be kept; every acknowledged write is durable then.

use super::common::{OpenArgs, OverlayArgs, SectorArgs, status};
use crate::live::MetricsArgs;
use crate::trace::TraceArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::opened::Opened;
use sidecore_export::guest_memory;
use sidecore_export::live::{run_until_signal, subtitle};
use sidecore_export::nbd::{Address, Options, Server, Tls, bitmap_name};
use sidecore_export::vhost_user;
use sidecore_remote::access::name;
use sidecore_remote::trace_parts;
use sidecore_status::Status;
use sidecore_sys::activation::take_listeners;
use sidecore_sys::ending::Watch;
use sidecore_terminal::quantity;
use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        if let Some(socket) = &self.vhost_user {
            let _recording = self.trace.begin("block serve")?;
            let opened = self.overlay.open(&self.open)?;
            opened.serve(|opened| self.serve_guests(socket, opened))?;
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
        opened.serve(|opened| self.serve_clients(passed, tls, opened))?;
        Ok(Outcome::Done)
    }

    fn serve_guests(&self, socket: &Path, opened: &Opened) -> Result<()> {
        let signals = Watch::begin().context("cannot watch for signals")?;
        let name = name(&self.open.image);
        let (source, sector_bytes) = (Arc::clone(&opened.source), self.sectors.sector_size);
        let serial = subtitle(&name, false);
        let server = vhost_user::Server::bind(source, socket, self.queues, &serial, sector_bytes)?;
        let (stopper, notifier) = (server.stopper(), server.notifier());
        let grown = move || -> Result<(), Infallible> {
            notifier.size_changed();
            Ok(())
        };
        let bound = format!("vhost-user:{}", socket.display());
        let status = status(opened, &name, "serve", &[bound], grown);
        let (stop, metrics) = (move || stopper.stop(), self.metrics.address());
        run_until_signal(signals, stop, metrics.as_ref(), &status, ready, || {
            Ok(server.run()?)
        })
    }

    fn serve_clients(&self, passed: Vec<OwnedFd>, tls: Option<Tls>, opened: &Opened) -> Result<()> {
        let source = Arc::clone(&opened.source);
        let signals = Watch::begin().context("cannot watch for signals")?;
        let options = Options {
            name: self.name.clone(),
            description: subtitle(&name(&self.open.image), source.writes().is_some()),
            clients_max: self.clients,
            bitmap: self.bitmap.clone(),
            // Clients of NBD may ask for any bytes of a disk with usual sectors.
            block_bytes: match self.sectors.sector_size {
                512 => 1,
                large => large,
            },
            tls,
            ..Options::for_source(&*source)
        };
        // Its standard output may be that of the program which waits for it.
        let is_passed = !passed.is_empty();
        let server = Server::bind_and_take(source, &self.nbd, passed, options)?;
        for (given, bound) in self.nbd.iter().zip(server.addresses()) {
            if *given != bound {
                // Only a TCP address changes: its port 0 has become a real one.
                output::note!("serving at {bound}");
            }
        }
        let bound: Vec<_> = server.addresses().iter().map(ToString::to_string).collect();
        let status = listed(opened, &self.open, "serve", &bound);
        let stopper = server.stopper();
        let (stop, metrics) = (move || stopper.stop(), self.metrics.address());
        let ready = || if is_passed { Ok(()) } else { ready() };
        run_until_signal(signals, stop, metrics.as_ref(), &status, ready, || {
            Ok(server.run()?)
        })
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
        let opened = Opened::new(device, None);
        opened.serve(|opened| self.serve(opened, prefetch))?;
        Ok(Outcome::Done)
    }

    fn serve(&self, opened: &Opened, prefetch: Vec<Range<u64>>) -> Result<()> {
        let signals = Watch::begin().context("cannot watch for signals")?;
        let options = guest_memory::Options {
            clients_max: self.clients,
            around_bytes: self.around,
            prefetch,
        };
        let source = Arc::clone(&opened.source);
        let server = guest_memory::Server::bind(source, &self.socket, options)?;
        let bound = format!("memory:{}", self.socket.display());
        let status = listed(opened, &self.open, "memory", &[bound]);
        let stopper = server.stopper();
        let (stop, metrics) = (move || stopper.stop(), self.metrics.address());
        run_until_signal(signals, stop, metrics.as_ref(), &status, ready, || {
            Ok(server.run()?)
        })
    }
}

/// The status of a server whose clients learn of another size when they connect again.
fn listed(opened: &Opened, open: &OpenArgs, way: &'static str, bound: &[String]) -> Arc<Status> {
    let grown = || Ok::<_, Infallible>(());
    status(opened, &name(&open.image), way, bound, grown)
}

/// Prints that clients can connect.
fn ready() -> io::Result<()> {
    output::line("ready")
}
