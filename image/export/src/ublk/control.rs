//! Creates, recovers, lists and removes ublk devices.
//!
//! Why here: the commands to the driver and the life of a server's threads, apart from the data
//! path ([`super::queue`]).
//! Must stay true: a device that [`start`] made is removed when its server ends in any way except a
//! crash; after a crash it is quiesced, and [`attached`] lists it. The bounds of all waits are at
//! the end of this file.
//! Threads: the driver's commands go over an io_uring that belongs to the calling thread; any
//! thread may call.
//! Source: the kernel's `Documentation/block/ublk.rst`, "control plane".

use super::error::{Error, driver_error};
use super::{Attached, Options, REQUEST_BYTES_MAX, available, queue, sectors};
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::io::UblkDev;
use libublk::{UblkError, UblkFlags, sys};
use sidecore_format::source::BlockSource;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A device that this process serves. Dropping it stops and removes the device.
#[derive(Debug)]
pub(crate) struct UblkServer {
    dev_id: u32,
    path: PathBuf,
    is_recovered: bool,
    source: SourceHandle,
    thread: Option<JoinHandle<()>>,
    ended: Receiver<Result<(), Error>>,
}

/// Stops a [`UblkServer`] from another thread (a signal thread, for example).
#[derive(Debug, Clone, Copy)]
pub(crate) struct UblkStopper {
    dev_id: u32,
}

impl UblkServer {
    /// The block device, `/dev/ublkbN`.
    #[must_use]
    pub(crate) fn device_path(&self) -> &Path {
        &self.path
    }

    /// N of `/dev/ublkbN`.
    #[must_use]
    pub(crate) fn dev_id(&self) -> u32 {
        self.dev_id
    }

    /// True when it was taken over from a server that died.
    #[must_use]
    pub(crate) fn is_recovered(&self) -> bool {
        self.is_recovered
    }

    /// Handle that stops this server from another thread while [`Self::run`] blocks.
    #[must_use]
    pub(crate) fn stopper(&self) -> UblkStopper {
        UblkStopper {
            dev_id: self.dev_id,
        }
    }

    /// Blocks until the device is stopped, by a [`UblkStopper`], [`stop`] in any process, or a
    /// failure; the device is gone then. Meanwhile lets the source give idle memory back.
    ///
    /// # Errors
    /// [`Error::Driver`] when the server ended by a failure.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let result = loop {
            match self.ended.recv_timeout(RELEASE_EVERY) {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) => self.source.0.release_idle(RELEASE_IDLE),
                Err(RecvTimeoutError::Disconnected) => break Ok(()),
            }
        };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        result
    }
}

impl Drop for UblkServer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            if let Err(error) = self.stopper().stop() {
                tracing::warn!(%error, "cannot stop a ublk device");
            }
            let _ = thread.join();
        }
    }
}

impl UblkStopper {
    /// Ends the device's requests (those in flight get an I/O error) and its server. Does not wait
    /// for the end.
    ///
    /// # Errors
    /// [`Error::Driver`] when the driver refused.
    pub(crate) fn stop(&self) -> Result<(), Error> {
        if !exists(self.dev_id) {
            return Ok(());
        }
        control(self.dev_id)?
            .kill_dev()
            .map(|_| ())
            .map_err(|error| driver_error(self.dev_id, "stop it", &error))
    }
}

/// Makes a read-only block device of `source`. Returns once `/dev/ublkbN` can be read; the requests
/// are answered by threads of this process until the returned server is dropped or stopped.
///
/// The logical block is 512 bytes by default whatever the size, since file systems with small
/// blocks (iso9660: 2,048 bytes) cannot be mounted from larger ones; the physical block is 4,096
/// and the preferred request that of the source.
///
/// # Errors
/// [`Error::Unavailable`], [`Error::Empty`], [`Error::Driver`], [`Error::Timeout`].
pub(crate) fn start(source: Arc<dyn BlockSource>, options: &Options) -> Result<UblkServer, Error> {
    available()?;
    if source.size_bytes() == 0 {
        return Err(Error::Empty);
    }
    // Before the library writes its record of the device.
    guard_records();
    let source = SourceHandle(source);
    let (options, for_thread) = (options.clone(), source.clone());
    let server = spawn(source, move |started| {
        let ctrl = UblkCtrlBuilder::default()
            .name(TARGET_NAME)
            .id(options.dev_id.map_or(-1, |id| id as i32))
            .nr_queues(options.queues.max(1))
            .depth(options.depth.max(1))
            .io_buf_bytes(request_bytes_max(&*for_thread.0))
            .ctrl_flags(u64::from(
                sys::UBLK_F_USER_RECOVERY
                    | sys::UBLK_F_USER_RECOVERY_REISSUE
                    | sys::UBLK_F_USER_COPY,
            ))
            .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
            .build()
            .map_err(|error| driver_error("new", "add it", &error))?;
        let described = serde_json::json!({
            IMAGE_KEY: options.image.display().to_string(),
            IDENTITY_KEY: options.identity,
        });
        let sector_bytes = options.sector_bytes;
        let result = serve(&ctrl, &for_thread, started, Some(described), sector_bytes);
        // Dropping the control would remove the device too, but wait until it is unmounted
        // everywhere.
        let _ = remove(&ctrl);
        result
    })?;
    set_read_ahead(server.dev_id, options.read_ahead_kib);
    Ok(server)
}

/// Like [`start`], but takes over the device of the same image whose server died, if there is one.
///
/// # Errors
/// Those of [`start`] and [`recover`]; [`Error::OtherImage`].
pub(crate) fn start_or_recover(
    source: Arc<dyn BlockSource>,
    options: &Options,
) -> Result<UblkServer, Error> {
    let orphan = attached()
        .into_iter()
        .find(|device| device.quiesced && device.image == options.image);
    match orphan {
        Some(device) => {
            check_same(&device, options)?;
            recover(device.dev_id, source)
        }
        None => start(source, options),
    }
}

/// Checks that a device began with the contents that are to be served now. Programs have it open,
/// and the kernel has pages of it: other contents would make a mixture of both.
pub(super) fn check_same(device: &Attached, options: &Options) -> Result<(), Error> {
    match device.identity.is_none() || device.identity == options.identity {
        true => Ok(()),
        false => Err(Error::OtherImage {
            dev_id: device.dev_id,
        }),
    }
}

/// Continues to serve the quiesced device `dev_id`, whose server died, from the same image.
/// Requests that were in flight are answered; their readers notice only a delay. Returns once the
/// device is live again.
///
/// Blocks for at most 5 s until the kernel has noticed the death.
///
/// # Errors
/// [`Error::Unavailable`], [`Error::NoSuchDevice`], [`Error::StillServed`],
/// [`Error::OtherSize`], [`Error::Driver`], [`Error::Timeout`].
pub(crate) fn recover(dev_id: u32, source: Arc<dyn BlockSource>) -> Result<UblkServer, Error> {
    available()?;
    if !exists(dev_id) {
        return Err(Error::NoSuchDevice { dev_id });
    }
    let info = await_quiesced(dev_id)?;
    let source = SourceHandle(source);
    let for_thread = source.clone();
    let mut server = spawn(source, move |started| {
        let ctrl = UblkCtrlBuilder::default()
            .name(TARGET_NAME)
            .id(dev_id as i32)
            .nr_queues(info.nr_hw_queues)
            .depth(info.queue_depth)
            .io_buf_bytes(info.max_io_buf_bytes)
            .ctrl_flags(info.flags & (FLAGS_KEPT as u64))
            .dev_flags(UblkFlags::UBLK_DEV_F_RECOVER_DEV)
            .build()
            .map_err(|error| driver_error(dev_id, "open it for recovery", &error))?;
        let mut params = sys::ublk_params {
            types: sys::UBLK_PARAM_TYPE_BASIC,
            ..Default::default()
        };
        ctrl.get_params(&mut params)
            .map_err(|error| driver_error(dev_id, "ask for its size", &error))?;
        // The device keeps its logical sectors, too.
        let sector_bytes = 1_u32 << params.basic.logical_bs_shift.clamp(9, PAGE_SHIFT);
        let source_sectors = sectors(for_thread.0.size_bytes(), sector_bytes);
        // Programs still have the device open: another size would be another disk under them.
        if params.basic.dev_sectors != source_sectors {
            return Err(Error::OtherSize {
                dev_id,
                device_sectors: params.basic.dev_sectors,
                source_sectors,
            });
        }
        ctrl.start_user_recover()
            .map_err(|error| driver_error(dev_id, "begin its recovery", &error))?;
        let result = serve(&ctrl, &for_thread, started, None, sector_bytes);
        if result.is_ok() {
            // This control did not add the device, so it does not remove it by itself. After a
            // failed recovery the device stays quiesced for another attempt.
            let _ = remove(&ctrl);
        }
        result
    })?;
    server.is_recovered = true;
    Ok(server)
}

/// Stops and removes device `dev_id`, with or without a living server. Returns when it is gone,
/// after at most 10 s. With `force` a mounted device goes too, and its users get I/O errors.
///
/// # Errors
/// [`Error::NoSuchDevice`]; [`Error::Busy`] while it is mounted, unless forced;
/// [`Error::Driver`]; [`Error::Timeout`].
pub(crate) fn stop(dev_id: u32, force: bool) -> Result<(), Error> {
    if !exists(dev_id) {
        return Err(Error::NoSuchDevice { dev_id });
    }
    // Stopping ends the requests of all users with errors.
    if !force && is_held(dev_id) {
        return Err(Error::Busy { dev_id });
    }
    if let Err(error) = control(dev_id).and_then(|ctrl| {
        ctrl.kill_dev()
            .map_err(|error| driver_error(dev_id, "stop it", &error))
    }) {
        // Its server may just be ending.
        return if exists(dev_id) { Err(error) } else { Ok(()) };
    }
    // A living server removes the device as it ends; after a crash this call has to. A driver
    // without the asynchronous delete command may wait for an unmount; hence the thread, which then
    // ends with the unmount.
    let (removed_sender, removed) = channel();
    std::thread::Builder::new()
        .name("ublk-remove".to_owned())
        .spawn(move || {
            let outcome = control(dev_id).and_then(|ctrl| {
                remove(&ctrl).map_err(|error| driver_error(dev_id, "remove it", &error))
            });
            let _ = removed_sender.send(outcome);
        })
        .map_err(|source| Error::Io {
            what: "start a thread that removes a ublk device",
            source,
        })?;
    let gone = wait_until(STOP_WAIT, || !exists(dev_id) && !block_exists(dev_id));
    match removed.try_recv() {
        _ if gone => Ok(()),
        Ok(Err(error)) => Err(error),
        _ => Err(Error::Timeout {
            dev_id,
            what: "its removal",
            wait_s: STOP_WAIT.as_secs(),
        }),
    }
}

/// Removes a device whose server ends without waiting for it; does not wait either.
pub(super) fn forsake(dev_id: u32) {
    if let Ok(ctrl) = control(dev_id) {
        // The next command finds it otherwise.
        let _ = ctrl.del_dev_async();
    }
}

/// The devices that Sidecore made, by number, including those whose server died.
#[must_use]
pub(crate) fn attached() -> Vec<Attached> {
    let Ok(entries) = std::fs::read_dir(CHAR_CLASS) else {
        return Vec::new();
    };
    let mut found: Vec<Attached> = entries
        .flatten()
        .filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .strip_prefix("ublkc")?
                .parse()
                .ok()
        })
        .filter_map(describe)
        .collect();
    found.sort_by_key(|device| device.dev_id);
    found
}

/// Describes device `dev_id`, if it is one of ours.
fn describe(dev_id: u32) -> Option<Attached> {
    let ctrl = UblkCtrl::new_simple(i32::try_from(dev_id).ok()?).ok()?;
    if ctrl.get_target_type_from_json().ok()? != TARGET_NAME {
        return None;
    }
    let data = ctrl.get_target_data_from_json()?;
    let info = ctrl.dev_info();
    Some(Attached {
        dev_id,
        path: block_path(dev_id),
        image: PathBuf::from(data.get(IMAGE_KEY)?.as_str()?),
        identity: (data.get(IDENTITY_KEY).and_then(|it| it.as_str())).map(str::to_owned),
        server_pid: info.ublksrv_pid,
        quiesced: u32::from(info.state) == sys::UBLK_S_DEV_QUIESCED,
    })
}

/// A server's report once its device can be read: the device's number.
type Started = Sender<Result<u32, Error>>;

/// Runs `body`, which serves a device to its end, on a thread of its own; waits until it reports
/// the start.
fn spawn(
    source: SourceHandle,
    body: impl FnOnce(Started) -> Result<(), Error> + Send + 'static,
) -> Result<UblkServer, Error> {
    let (started, starting) = channel();
    let (ended_sender, ended) = channel();
    let thread = std::thread::Builder::new()
        .name("ublk".to_owned())
        .spawn(move || {
            let _ = ended_sender.send(body(started));
        })
        .map_err(|source| Error::Io {
            what: "start the thread of a ublk server",
            source,
        })?;
    // The sender is dropped without a message when the server ends before it starts; the reason is
    // then in `ended`.
    let dev_id = match starting.recv() {
        Ok(report) => report?,
        Err(_) => {
            let _ = thread.join();
            return Err(match ended.recv() {
                Ok(Err(error)) => error,
                _ => Error::Driver {
                    dev_id: "new".to_owned(),
                    what: "start it",
                    reason: "its server ended at once".to_owned(),
                },
            });
        }
    };
    let server = UblkServer {
        dev_id,
        path: block_path(dev_id),
        is_recovered: false,
        source,
        thread: Some(thread),
        ended,
    };
    // The node is made by the kernel or by udev, not by the driver's command.
    if wait_until(NODE_WAIT, || server.path.exists()) {
        Ok(server)
    } else {
        Err(Error::Timeout {
            dev_id,
            what: "the making of its node in /dev",
            wait_s: NODE_WAIT.as_secs(),
        })
    }
}

/// Serves the device of `ctrl` until it stops; reports to `started` when it can be read, or the
/// reason why a queue failed.
fn serve(
    ctrl: &UblkCtrl,
    source: &SourceHandle,
    started: Started,
    described: Option<serde_json::Value>,
    sector_bytes: u32,
) -> Result<(), Error> {
    let dev_id = ctrl.dev_info().dev_id;
    let set_up = |dev: &mut UblkDev| {
        describe_device(dev, &*source.0, sector_bytes);
        if let Some(described) = &described {
            dev.set_target_json(described.clone());
        }
        Ok::<(), UblkError>(())
    };
    let (queue_source, queue_report) = (source.clone(), started.clone());
    let serve_queue = move |queue_id: u16, dev: &UblkDev| {
        if let Err(error) = queue::serve(queue_id, dev, &*queue_source.0) {
            // The driver would wait for this queue for ever: report the error, and remove the
            // device.
            tracing::error!(%error, queue_id, "a ublk queue could not be set up");
            let _ = queue_report.send(Err(error));
            let _ = control(dev_id).map(|ctrl| ctrl.del_dev_async());
        }
    };
    let report = move |ctrl: &UblkCtrl| {
        let _ = started.send(Ok(ctrl.dev_info().dev_id));
    };
    ctrl.run_target(set_up, serve_queue, report)
        .map(|_| ())
        .map_err(|error| driver_error(dev_id, "start it", &error))
}

/// Sets the device's parameters in the driver.
fn describe_device(dev: &mut UblkDev, source: &dyn BlockSource, sector_bytes: u32) {
    let size_sectors = sectors(source.size_bytes(), sector_bytes);
    // At most one request, at least a page: the driver refuses others.
    let preferred_shift = source
        .preferred_bytes()
        .clamp(1 << PAGE_SHIFT, dev.dev_info.max_io_buf_bytes)
        .ilog2() as u8;
    dev.tgt.dev_size = size_sectors * super::SECTOR_BYTES;
    dev.tgt.params = sys::ublk_params {
        types: sys::UBLK_PARAM_TYPE_BASIC,
        basic: sys::ublk_param_basic {
            attrs: sys::UBLK_ATTR_READ_ONLY,
            logical_bs_shift: sector_bytes.ilog2() as u8,
            physical_bs_shift: PAGE_SHIFT,
            io_min_shift: PAGE_SHIFT,
            io_opt_shift: preferred_shift,
            max_sectors: dev.dev_info.max_io_buf_bytes / super::SECTOR_BYTES as u32,
            dev_sectors: size_sectors,
            ..Default::default()
        },
        ..Default::default()
    };
}

/// Waits until the kernel has noticed that the server of `dev_id` died.
fn await_quiesced(dev_id: u32) -> Result<sys::ublksrv_ctrl_dev_info, Error> {
    let deadline = Instant::now() + QUIESCE_WAIT;
    loop {
        // Opened anew each time: the state is read when a control is opened.
        let info = control(dev_id)?.dev_info();
        if u32::from(info.state) == sys::UBLK_S_DEV_QUIESCED {
            return Ok(info);
        }
        if Instant::now() > deadline {
            return Err(Error::StillServed {
                dev_id,
                server_pid: info.ublksrv_pid,
            });
        }
        std::thread::sleep(POLL_EVERY);
    }
}

fn control(dev_id: u32) -> Result<UblkCtrl, Error> {
    let id = i32::try_from(dev_id).map_err(|_| Error::NoSuchDevice { dev_id })?;
    UblkCtrl::new_simple(id).map_err(|error| driver_error(dev_id, "open its control", &error))
}

/// Removes a stopped device without waiting for its mounts to end; on a driver that cannot do that
/// (before Linux 6.9), with waiting.
fn remove(ctrl: &UblkCtrl) -> Result<(), UblkError> {
    ctrl.del_dev_async().or_else(|_| ctrl.del_dev()).map(|_| ())
}

fn block_exists(dev_id: u32) -> bool {
    Path::new(&format!("/sys/block/ublkb{dev_id}")).exists()
}

fn exists(dev_id: u32) -> bool {
    Path::new(&format!("{CHAR_CLASS}/ublkc{dev_id}")).exists()
}

fn block_path(dev_id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{dev_id}"))
}

/// True when the device is mounted or below another one: then an exclusive open fails.
pub(super) fn is_held(dev_id: u32) -> bool {
    // A mount and device mapper open it exclusively, too.
    let exclusive = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(block_path(dev_id));
    exclusive.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// The largest request: whole pages, and no more than the source takes at once.
fn request_bytes_max(source: &dyn BlockSource) -> u32 {
    let page = 1_u32 << PAGE_SHIFT;
    let taken = u32::try_from(source.read_with_max_bytes()).unwrap_or(u32::MAX);
    // The block layer splits larger requests.
    taken.clamp(page, REQUEST_BYTES_MAX) / page * page
}

/// Keeps other users from planting links where the library writes its record of a device: it would
/// make the folder writable for all, without the sticky bit that forbids that. Best effort.
fn guard_records() {
    let folder = UblkCtrl::run_dir();
    let made = DirBuilder::new().mode(0o755).create(&folder);
    if made.is_ok() {
        return;
    }
    if let Ok(metadata) = std::fs::metadata(&folder) {
        let mode = metadata.permissions().mode();
        if mode & 0o1002 == 0o0002 {
            let _ = std::fs::set_permissions(&folder, Permissions::from_mode(mode | 0o1000));
        }
    }
}

/// Best effort: the device works without it, only slower for sequential readers.
fn set_read_ahead(dev_id: u32, read_ahead_kib: u32) {
    let path = format!("/sys/block/ublkb{dev_id}/queue/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, read_ahead_kib.to_string()) {
        tracing::warn!(%error, path, "cannot set the kernel's read-ahead");
    }
}

/// Polls until `done`, for at most `wait`; returns whether it became true.
fn wait_until(wait: Duration, done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + wait;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(POLL_EVERY);
    }
    true
}

/// A source that can stand in a type with `Debug`.
#[derive(Clone)]
struct SourceHandle(Arc<dyn BlockSource>);

impl std::fmt::Debug for SourceHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "source of {} bytes", self.0.size_bytes())
    }
}

/// Flags that a recovered device keeps from its creation.
const FLAGS_KEPT: u32 =
    sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE | sys::UBLK_F_USER_COPY;
const CHAR_CLASS: &str = "/sys/class/ublk-char";
/// Name of our devices in the driver's records.
const TARGET_NAME: &str = "sidecore";
const IMAGE_KEY: &str = "image";
const IDENTITY_KEY: &str = "identity";
const PAGE_SHIFT: u8 = 12;
const RELEASE_EVERY: Duration = Duration::from_secs(2);
const RELEASE_IDLE: Duration = Duration::from_secs(10);
const QUIESCE_WAIT: Duration = Duration::from_secs(5);
const STOP_WAIT: Duration = Duration::from_secs(10);
const NODE_WAIT: Duration = Duration::from_secs(3);
const POLL_EVERY: Duration = Duration::from_millis(10);
