//! vhost-user-blk: a block device of a virtual machine, whose memory this process reads and writes
//! itself.
//!
//! Why here: the guest's requests lie in its memory, and so do their data. Nothing is copied
//! through a socket, and each queue has a thread of its own. The messages and the mapping of
//! memory are `vhost-user-backend`'s, the rings `virtio-queue`'s; `request` is the disk.
//!
//! Must stay true: all that comes from the guest or the virtual machine monitor is distrusted:
//! addresses are looked up in the regions that were shared, chains have at most a queue's length,
//! indices are compared with the queue's size, and a request outside the device gets an error. A
//! client that cuts the file of its memory short gets no further answers on a queue that reads or
//! writes a lost page; what was read there reaches no disk.
//! Threads: [`Server::run`] keeps the calling one; a client has one for messages and one a queue,
//! which serves one request after the other.
//! Source: QEMU's "Vhost-user Protocol"; OASIS Virtual I/O Device 1.3, parts 2.7 and 5.2.

mod relay;
mod request;
#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use relay::{Channel, Way};
use request::Disk;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use sidecore_bare::width::ToUsize as _;
use sidecore_format::source::BlockSource;
use sidecore_sys::{MapGuard, local_socket};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::{
    VHOST_USER_CONFIG_SIZE, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost_user_backend::{
    ShutdownHandle, VhostUserBackend, VhostUserDaemon, VringMutex, VringT as _,
};
use virtio_queue::{QueueOwnedT as _, QueueT as _};
use vm_memory::{
    GuestAddressSpace as _, GuestMemoryAtomic, GuestMemoryBackend as _, GuestMemoryMmap,
};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

/// Reasons why a device is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VhostUserError {
    /// Number of queues.
    #[error("a device has 1 to {QUEUES_MAX} queues, not {0}")]
    Queues(u16),
    /// No sectors.
    #[error("the image has no sectors")]
    Empty,
    /// A device that ends within a sector of 4 KiB.
    #[error(
        "the device has {size_bytes} bytes, which are not whole sectors of {sector_bytes}; make it \
         larger with --overlay and --size"
    )]
    Sectors {
        /// The device's size.
        size_bytes: u64,
        /// A sector's size.
        sector_bytes: u32,
    },
    /// The socket.
    #[error("cannot listen at {path}: {source}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The server itself.
    #[error("cannot serve: {0}")]
    Serve(String),
}

/// A server of one device.
pub struct Server {
    backend: Arc<Backend>,
    listener: UnixListener,
    path: PathBuf,
    shared: Arc<Shared>,
    channel: Arc<Channel>,
}

/// State of a server that can be stopped.
struct Shared {
    is_over: AtomicBool,
    wake: OwnedFd,
    client: Mutex<Option<ShutdownHandle>>,
}

/// Ends [`Server::run`], from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

/// Has the client look at the disk's size again, from any thread.
#[derive(Clone)]
pub struct Notifier(Arc<Channel>);

impl Notifier {
    /// The disk has another size. A client without a channel for that sees it as it starts again.
    /// Does not wait.
    pub fn size_changed(&self) {
        self.0.config_changed();
    }
}

impl Stopper {
    /// Ends the server after the requests that are under way; again, it does nothing.
    pub fn stop(&self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        // Full only if it was woken before.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
        if let Some(client) = &*self.0.client.lock() {
            client.shutdown();
        }
    }
}

impl Server {
    /// Listens at a socket, which this user alone may open. A client finds a disk with `queues`
    /// queues that takes writes if the source does. Its sectors have 512 bytes, or 4,096 (4Kn).
    ///
    /// # Errors
    /// [`VhostUserError`]; the socket of a process that lives is not taken.
    pub fn bind(
        source: Arc<dyn BlockSource>,
        path: &Path,
        queues: u16,
        serial: &str,
        sector_bytes: u32,
    ) -> Result<Self, VhostUserError> {
        if queues == 0 || queues > QUEUES_MAX {
            return Err(VhostUserError::Queues(queues));
        }
        let size_bytes = source.size_bytes();
        if sector_bytes > 512 && !size_bytes.is_multiple_of(sector_bytes.into()) {
            return Err(VhostUserError::Sectors {
                size_bytes,
                sector_bytes,
            });
        }
        let disk = Disk::new(source, queues, serial, sector_bytes);
        let disk = disk.ok_or(VhostUserError::Empty)?;
        let failed = |source| VhostUserError::Socket {
            path: path.to_owned(),
            source,
        };
        // In place of one that a killed server left.
        let listener = local_socket::take_path(path, 0o600, 1).map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            backend: Arc::new(Backend {
                disk,
                queues,
                memory: Mutex::new(None),
                is_through: AtomicBool::new(true),
                busy: (0..queues).map(|_| Mutex::new(())).collect(),
                is_broken: (0..queues).map(|_| AtomicBool::new(false)).collect(),
            }),
            listener: listener.into(),
            path: path.to_owned(),
            shared: Arc::new(Shared {
                is_over: AtomicBool::new(false),
                wake: wake.map_err(|error| failed(error.into()))?,
                client: Mutex::new(None),
            }),
            channel: Arc::default(),
        })
    }

    /// Tells its client of another size.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier(Arc::clone(&self.channel))
    }

    /// Ends it from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Serves one client after another until it is stopped; removes the socket then.
    ///
    /// # Errors
    /// [`VhostUserError`].
    pub fn run(self) -> Result<(), VhostUserError> {
        let served = self.serve_all();
        let _ = std::fs::remove_file(&self.path);
        served
    }

    fn serve_all(&self) -> Result<(), VhostUserError> {
        let failed = |error: io::Error| VhostUserError::Serve(error.to_string());
        // `serve_one` accepts after a client is there.
        self.listener.set_nonblocking(false).map_err(failed)?;
        while !self.shared.is_over.load(Ordering::SeqCst) {
            let mut polled = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.shared.wake, PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if polled[0].revents().contains(PollFlags::IN) {
                self.serve_one()?;
            }
        }
        Ok(())
    }

    fn serve_one(&self) -> Result<(), VhostUserError> {
        let failed = |error: vhost_user_backend::Error| VhostUserError::Serve(error.to_string());
        self.backend.begin();
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let backend = Arc::clone(&self.backend);
        let daemon = VhostUserDaemon::new("vhost-user".into(), backend, memory);
        let mut daemon = daemon.map_err(failed)?;
        let listener = self.accept();
        let listener = listener.map_err(|it| VhostUserError::Serve(it.to_string()))?;
        daemon
            .start(&mut Listener::from(listener))
            .map_err(failed)?;
        *self.shared.client.lock() = daemon.shutdown_handle();
        // A stop that came before there was a handle.
        if self.shared.is_over.load(Ordering::SeqCst) {
            daemon.request_shutdown();
        }
        if let Err(error) = daemon.wait() {
            tracing::info!("a vhost-user client left: {error}");
        }
        *self.shared.client.lock() = None;
        // Joins the queues' threads: nothing writes to the device afterwards.
        drop(daemon);
        *self.backend.memory.lock() = None;
        Ok(())
    }
}

impl Server {
    /// Accepts a client; the listener at which its messages come.
    fn accept(&self) -> io::Result<UnixListener> {
        match Way::new() {
            Ok(way) => {
                let (client, _) = self.listener.accept()?;
                way.pass(client, &self.channel)
            }
            Err(error) => {
                tracing::warn!("a client sees another size as it starts again: {error}");
                self.listener.try_clone()
            }
        }
    }
}

/// The device as the protocol's library calls it.
struct Backend {
    disk: Disk,
    queues: u16,
    memory: Mutex<Option<Memory>>,
    /// Writes are durable before they are answered: the client cannot flush.
    is_through: AtomicBool,
    /// Held while a queue's request is served.
    busy: Vec<Mutex<()>>,
    /// Queues whose rings make no sense: they are left alone.
    is_broken: Vec<AtomicBool>,
}

/// The memory of a client.
#[derive(Clone)]
struct Memory {
    regions: GuestMemoryAtomic<GuestMemoryMmap>,
    /// One a region.
    guards: Arc<[MapGuard]>,
}

impl Memory {
    fn new(regions: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<Self> {
        let guards: Result<_, _> = (regions.memory().iter())
            .map(|region| MapGuard::new(region.as_ptr(), region.size()))
            .collect();
        Ok(Self {
            guards: guards.map_err(io::Error::other)?,
            regions,
        })
    }

    /// True once a part of it is lost.
    fn is_lost(&self) -> bool {
        self.guards.iter().any(MapGuard::damaged)
    }
}

impl Backend {
    fn begin(&self) {
        // Until the client says which features it takes.
        self.is_through.store(true, Ordering::Relaxed);
        for it in &self.is_broken {
            it.store(false, Ordering::Relaxed);
        }
    }

    /// Serves what a queue has; false if the ring makes no sense.
    fn serve(&self, queue: usize, vring: &VringMutex) -> bool {
        loop {
            if vring.disable_notification().is_err() {
                return false;
            }
            let mut count = 0;
            loop {
                match self.serve_next(queue, vring) {
                    Some(true) => count += 1,
                    Some(false) => break,
                    None => return false,
                }
            }
            match vring.enable_notification() {
                Ok(false) => return true,
                // An index that says so, and no request, would be looked at for ever.
                Ok(true) if count == 0 => return false,
                Ok(true) => {}
                Err(_) => return false,
            }
        }
    }

    /// Serves a queue's next request; false without one, `None` if the ring makes no sense.
    fn serve_next(&self, queue: usize, vring: &VringMutex) -> Option<bool> {
        let client = self.memory.lock().clone()?;
        let memory = client.regions.memory();
        let _busy = self.busy.get(queue)?.lock();
        let chain = {
            let mut state = vring.get_mut();
            let found = state.get_queue_mut().iter(memory.clone());
            // An index further ahead than the queue is long ends here.
            found.ok()?.next()
        };
        let Some(chain) = chain else {
            return Some(false);
        };
        let head = chain.head_index();
        // Relaxed: features are settled before the first request.
        let is_through = self.is_through.load(Ordering::Relaxed);
        let used = (self.disk).serve(&memory, chain, is_through, &|| client.is_lost());
        if client.is_lost() {
            return None;
        }
        vring.add_used(head, used).ok()?;
        if vring.needs_notification().unwrap_or(true) {
            // A client without the descriptor polls.
            vring.signal_used_queue().ok();
        }
        Some(true)
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = VringMutex;

    fn num_queues(&self) -> usize {
        self.queues.into()
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_LENGTH_MAX.into()
    }

    fn features(&self) -> u64 {
        self.disk.features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn acked_features(&self, features: u64) {
        let is_through = self.disk.is_through(features);
        self.is_through.store(is_through, Ordering::Relaxed);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&self, _: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        // The space behind the device's own fields reads as zeros.
        let mut all = self.disk.config().to_vec();
        all.resize(VHOST_USER_CONFIG_SIZE.to_usize(), 0);
        let range = offset.to_usize()..offset.to_usize().saturating_add(size.to_usize());
        all.get(range).unwrap_or_default().to_vec()
    }

    fn update_memory(&self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        *self.memory.lock() = Some(Memory::new(memory)?);
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.queues).map(|queue| 1 << queue).collect()
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)
            .inspect_err(|error| tracing::warn!("a queue's thread cannot be ended: {error}"))
            .ok()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        // The request under way has been answered by then.
        if let Some(busy) = self.busy.get(queue.to_usize()) {
            drop(busy.lock());
        }
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        _: EventSet,
        vrings: &[VringMutex],
        thread: usize,
    ) -> io::Result<()> {
        // A thread has one queue, of its own number.
        let (Some(vring), Some(is_broken)) =
            (vrings.get(usize::from(event)), self.is_broken.get(thread))
        else {
            return Ok(());
        };
        if is_broken.load(Ordering::Relaxed) || !vring.get_ref().get_queue().ready() {
            return Ok(());
        }
        if !self.serve(thread, vring) {
            tracing::warn!(
                "queue {thread} of a vhost-user client makes no sense; it is left alone"
            );
            is_broken.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Most queues of a device.
pub const QUEUES_MAX: u16 = 32;
/// Most requests in a queue.
const QUEUE_LENGTH_MAX: u16 = 1024;
