//! `sidecore block serve`: an image over NBD, or to a virtual machine over vhost-user, in the
//! foreground, until it is interrupted.
//!
//! Why here: it only connects the command line, the device and the server in
//! `sidecore_export::nbd` or `sidecore_export::vhost_user`.
//! Must stay true: `ready` is on standard output only once clients can connect. A signal ends the
//! command with status 0 after the replies in flight, with the Unix socket removed. This takes at
//! most a second, or ten where writes have to be kept; every acknowledged write is durable then.

use super::common::OpenArgs;
use super::overlay::{Opened, OverlayArgs};
use crate::live::MetricsArgs;
use crate::trace::TraceArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_export::nbd::{Address, Options, Server, Tls};
use sidecore_export::vhost_user;
use sidecore_sys::activation::take_listeners;
use sidecore_sys::ending::Watch;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Arguments of `block serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    overlay: OverlayArgs,
    /// Address to listen on: unix:PATH or tcp:HOST:PORT (10809 is the protocol's port). May be
    /// given several times. Required unless a service manager passes sockets (LISTEN_FDS).
    #[arg(long, value_name = "ADDRESS")]
    nbd: Vec<String>,
    /// Be a disk of a virtual machine (vhost-user-blk) that connects to this socket and shares its
    /// memory, one after another: for QEMU `-chardev socket,id=c,path=PATH -device
    /// vhost-user-blk-pci,chardev=c` and memory with `share=on`
    #[arg(long, value_name = "PATH")]
    #[arg(conflicts_with_all = ["nbd", "name", "bitmap", "tls_certificates", "clients"])]
    vhost_user: Option<PathBuf>,
    /// Queues of that disk, each with a thread; 1 to 32
    #[arg(long, value_name = "N", default_value_t = 1, requires = "vhost_user")]
    queues: u16,
    /// The name that clients ask for; they may also ask for none.
    #[arg(long, value_name = "EXPORT", default_value = "")]
    name: String,
    /// Tell clients which blocks were written to the overlay, as QEMU's dirty bitmap of this name
    /// (`qemu:dirty-bitmap:NAME`): since the overlay was made, which `block clone --layer` and
    /// `block snapshot` do. It lasts as the overlay does
    #[arg(long, value_name = "NAME", requires = "overlay", value_parser = parse_bitmap)]
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
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let addresses = self
            .nbd
            .iter()
            .map(|text| text.parse())
            .collect::<Result<Vec<Address>, _>>()?;
        anyhow::ensure!(self.clients > 0, "--clients must be at least 1");
        if let Some(socket) = &self.vhost_user {
            return self.serve_guests(socket);
        }
        let passed = take_listeners().context("cannot take the sockets of LISTEN_FDS")?;
        anyhow::ensure!(
            !addresses.is_empty() || !passed.is_empty(),
            "no address to serve at; give one with --nbd unix:PATH, --nbd tcp:HOST:PORT or \
             --vhost-user PATH"
        );
        let tls = self.tls_certificates.as_ref();
        let tls = tls.map(|directory| Tls::from_directory(directory, self.tls_verify_peer));
        let tls = tls.transpose()?;
        // Written last: the wait for it is bounded by the disk alone.
        let _recording = self.trace.begin("block serve")?;
        let opened = self.overlay.open(&self.open)?;
        let served = self.serve(&addresses, passed, tls, &opened);
        // Also where serving failed: acknowledged writes must become durable.
        let closed = opened.close();
        served?;
        closed?;
        Ok(Outcome::Done)
    }

    fn serve_guests(&self, socket: &Path) -> Result<Outcome> {
        let _recording = self.trace.begin("block serve")?;
        let opened = self.overlay.open(&self.open)?;
        let served = (|| -> Result<()> {
            let signals = Watch::begin().context("cannot watch for signals")?;
            let image = super::image::name(&self.open.image);
            let source = Arc::clone(&opened.source);
            let serial = describe(&self.open.image, false);
            let server = vhost_user::Server::bind(source, socket, self.queues, &serial)?;
            let stopper = server.stopper();
            let watching = signals.stop_with(move || stopper.stop());
            let watching = watching.context("cannot start a thread to watch for signals")?;
            let bound = format!("vhost-user:{}", socket.display());
            let live = self
                .metrics
                .begin(&opened.status(&image, "serve", &[bound]), true)?;
            output::line("ready")?;
            let served = server.run();
            drop(live);
            watching.end();
            Ok(served?)
        })();
        // Also where serving failed: acknowledged writes must become durable.
        let closed = opened.close();
        served?;
        closed?;
        Ok(Outcome::Done)
    }

    fn serve(
        &self,
        addresses: &[Address],
        passed: Vec<OwnedFd>,
        tls: Option<Tls>,
        opened: &Opened,
    ) -> Result<()> {
        let source = Arc::clone(&opened.source);
        let signals = Watch::begin().context("cannot watch for signals")?;
        let workers_max = match (source.waits_for_a_network(), opened.is_writable()) {
            (true, _) => FAR_WORKERS_MAX,
            (_, true) => WRITE_WORKERS_MAX,
            _ => Options::default().workers_max,
        };
        let options = Options {
            workers_max,
            name: self.name.clone(),
            description: describe(&self.open.image, opened.is_writable()),
            clients_max: self.clients,
            bitmap: self.bitmap.clone(),
            tls,
            stop_max: match opened.is_writable() {
                true => Options::default().stop_max,
                false => STOP_READING_MAX,
            },
            ..Options::default()
        };
        // Its standard output may be that of the program which waits for it.
        let is_passed = !passed.is_empty();
        let server = Server::bind_and_take(source, addresses, passed, options)?;
        let stopper = server.stopper();
        let watching = signals.stop_with(move || stopper.stop());
        let watching = watching.context("cannot start a thread to watch for signals")?;
        for (given, bound) in addresses.iter().zip(server.addresses()) {
            if *given != bound {
                // Only a TCP address changes: its port 0 has become a real one.
                output::note!("serving at {bound}");
            }
        }
        let bound: Vec<_> = server.addresses().iter().map(ToString::to_string).collect();
        let image = super::image::name(&self.open.image);
        let status = opened.status(&image, "serve", &bound);
        let live = self.metrics.begin(&status, true)?;
        if !is_passed {
            output::line("ready")?;
        }
        let served = server.run();
        drop(live);
        watching.end();
        Ok(served?)
    }
}

fn describe(image: &Path, writable: bool) -> String {
    let name = super::image::name(image);
    let last = name.rsplit('/').next().unwrap_or(&name);
    match writable {
        true => format!("{last}, written to an overlay"),
        false => format!("{last}, read-only"),
    }
}

fn parse_bitmap(text: &str) -> Result<String, String> {
    let is_name = (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
    match is_name {
        true => Ok(text.to_owned()),
        false => Err("must be a name of 1 to 255 bytes".into()),
    }
}

/// Time for replies under way at the end, where nothing is written.
const STOP_READING_MAX: Duration = Duration::from_millis(750);
/// Threads of a connection whose reads wait for a network: the number of concurrent requests.
const FAR_WORKERS_MAX: usize = 32;
/// Threads of a connection that writes: a flush holds one until all is on the disk, and concurrent
/// flushes share one sync.
const WRITE_WORKERS_MAX: usize = 16;
