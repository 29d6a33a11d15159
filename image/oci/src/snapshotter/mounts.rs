//! Mounts of layers: the kernel's erofs on a layer's file once it is whole, and before that over a
//! server of its own, which outlives this process.
//!
//! Must stay true: the mount of a living server is never touched by [`Mounts::adopt`]; set-user-id
//! bits count in a container because overlayfs has its own flags, while the mount itself allows
//! neither them nor device nodes; the files of a layer stay as long as a record of containerd's or
//! of c/storage's names it, or a [`Hold`] keeps it.

use super::records::{self, Layer};
use super::{Config, Turns};
use crate::image::{Image, ImageError};
use crate::layer::Store;
use crate::store::{boot_id, digests_in};
use crate::tree::uuid_digits;
use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sidecore_export::mount::image_on;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Mounts layers.
pub(crate) struct Mounts {
    store: Store,
    root: PathBuf,
    layers: PathBuf,
    /// Layers that are being mounted and have no record yet, and how often.
    held: Mutex<BTreeMap<String, usize>>,
    recent: Recent<Image>,
    /// Layers that are being made usable, and images whose layers are being prepared ahead.
    preparing: Turns,
    ahead: Turns,
    has_served: AtomicBool,
    trust_indexes: bool,
    rate_bytes: u64,
    verify_keys: Vec<PathBuf>,
    frames: PathBuf,
}

impl Mounts {
    pub(crate) fn new(config: &Config, store: Store) -> Self {
        Self {
            store,
            root: config.root.clone(),
            layers: config.root.join("layers"),
            held: Mutex::default(),
            recent: Recent::default(),
            preparing: Turns::default(),
            ahead: Turns::default(),
            has_served: AtomicBool::new(has_served_before(&config.root)),
            trust_indexes: config.trust_indexes,
            rate_bytes: config.rate_bytes,
            verify_keys: config.verify_keys.clone(),
            frames: config.root.join("frames"),
        }
    }

    /// Mounts a layer on a folder. A layer above others must have an entry for each directory;
    /// true if this one lacks some.
    ///
    /// # Errors
    /// The reason why it is not mounted.
    pub(crate) fn mount(&self, layer: &Layer, dir: &Path, is_lowest: bool) -> Result<bool, String> {
        let begun = self.begin(layer, dir, is_lowest)?;
        if !begun.is_mounted {
            self.serve(layer, dir)?;
        }
        Ok(begun.has_implied)
    }

    /// The same up to the start of a server, where the layer needs one ([`Self::serve`]): what a
    /// layer can be refused for is known by then.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub(crate) fn begin(
        &self,
        layer: &Layer,
        dir: &Path,
        is_lowest: bool,
    ) -> Result<Begun, String> {
        let sha256 = &layer.sha256;
        // The index of a whole layer may be an earlier version's: the layer comes again.
        if self.store.whole(sha256).is_none() || self.store.index(sha256).is_none() {
            let image = self.image(&layer.image);
            if let Ok(image) = &image
                && let Some(has_implied) = self.serve_converted(image, layer, dir, is_lowest)
            {
                return Ok(Begun {
                    has_implied,
                    is_mounted: true,
                });
            }
            // A layer that was begun can go on without its manifest.
            let is_ready = match &image {
                Ok(image) => self.prepare_to_start(image, sha256),
                Err(_) if self.store.index(sha256).is_some() => Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            is_ready.map_err(|error| error.to_string())?;
        }
        // The rule for directories holds however the layer came here, so it is checked behind all
        // ways.
        let (index, _) = self.store.index(sha256).ok_or("its index is gone")?;
        let tree = index.tree().map_err(|error| error.to_string())?;
        if tree.has_implied_directories && !is_lowest {
            return Err("it has files in directories that it does not describe".into());
        }
        let whole = self.store.whole(sha256);
        if let Some(data) = &whole {
            mount_file(data, dir).map_err(|error| {
                format!("the kernel does not mount {}: {error}", data.display())
            })?;
        }
        Ok(Begun {
            has_implied: tree.has_implied_directories,
            is_mounted: whole.is_some(),
        })
    }

    /// The image that a URL names.
    fn image(&self, url: &str) -> Result<Arc<Image>, ImageError> {
        self.recent.get(url, || Image::open_with_artifacts(url))
    }

    /// Makes a layer usable, and notes which of its files a container reads first.
    fn prepare_to_start(&self, image: &Image, sha256: &str) -> Result<(), ImageError> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("start-files".into());
            // At the same time: it costs a round trip.
            let start = thread.spawn_scoped(scope, || image.start_files());
            self.prepare(image, sha256)?;
            // Only a hint: without it a shell is expected.
            let start = start.ok().and_then(|thread| thread.join().ok()?.ok());
            if let Some(paths) = start.filter(|paths| !paths.is_empty())
                && let Err(error) = self.store.keep_start(sha256, paths)
            {
                tracing::info!("{error}");
            }
            Ok(())
        })
    }

    /// Makes a layer usable.
    fn prepare(&self, image: &Image, sha256: &str) -> Result<(), ImageError> {
        // A thread that prepares layers ahead may be at it.
        let _turn = self.preparing.take(sha256);
        match image.prepare_small(&self.store, sha256)? {
            true => Ok(()),
            false => image.prepare(&self.store, sha256, self.trust_indexes),
        }
    }

    /// Prepares layers in the background that containerd asks for one after the other, while it
    /// waits for the first of them.
    pub(crate) fn prepare_ahead(self: &Arc<Self>, url: &str, mut layers: Vec<String>) {
        layers.retain(|sha256| !self.store.has_any(sha256));
        // The first ones are taken from the end.
        layers.reverse();
        if layers.is_empty() {
            return;
        }
        let (mounts, url) = (Arc::clone(self), url.to_owned());
        let work = move || {
            // One call for each image: those for its next layers would do the same again.
            let Some(_turn) = mounts.ahead.try_take(&url) else {
                return;
            };
            // The layer that is waited for says why an image cannot be read.
            let Ok(image) = mounts.image(&url) else {
                return;
            };
            let left = Mutex::new(layers);
            let work = || {
                loop {
                    // Not held while a layer comes.
                    let Some(sha256) = left.lock().pop() else {
                        return;
                    };
                    if !image.is_soon_ready(&sha256, mounts.trust_indexes) {
                        continue;
                    }
                    let _hold = mounts.hold(&sha256);
                    if let Err(error) = mounts.prepare(&image, &sha256) {
                        tracing::info!("a layer is not prepared ahead: {error}");
                    }
                }
            };
            std::thread::scope(|scope| {
                for _ in 1..AHEAD_THREADS {
                    let thread = std::thread::Builder::new().name("ahead".into());
                    // This thread does what no other one does.
                    let _ = thread.spawn_scoped(scope, work);
                }
                work();
            });
        };
        let thread = std::thread::Builder::new().name("ahead".into());
        if let Err(error) = thread.spawn(work) {
            tracing::info!("no layer is prepared ahead: {error}");
        }
    }

    /// Mounts the image that a layer was converted to, if there is one that may be taken; true if
    /// it lacks entries of directories.
    fn serve_converted(
        &self,
        image: &Image,
        layer: &Layer,
        dir: &Path,
        is_lowest: bool,
    ) -> Option<bool> {
        if self.verify_keys.is_empty() && !self.trust_indexes {
            return None;
        }
        let (url, has_implied) = match image.converted(&layer.sha256) {
            Ok(found) => found.filter(|(_, has_implied)| is_lowest || !has_implied)?,
            Err(error) => {
                tracing::warn!("no converted image is looked for: {error}");
                return None;
            }
        };
        let try_as = |has_implied: bool| {
            let mounted = started(self.mounting(&url, layer, dir, has_implied));
            mounted.inspect_err(|reason| tracing::warn!("{url} is not mounted: {reason}"))
        };
        if try_as(has_implied).is_ok() {
            return Some(has_implied);
        }
        // Images of earlier versions do not say under their signature that they have all entries.
        // At the lowest place that does not matter.
        let may_be_earlier = is_lowest && !has_implied && !self.verify_keys.is_empty();
        (may_be_earlier && try_as(true).is_ok()).then_some(true)
    }

    /// The command that mounts a converted image.
    fn mounting(&self, url: &str, layer: &Layer, dir: &Path, has_implied: bool) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.args(["block", "mount", url]).arg(dir);
        // A keeper, since containers use the mount; one cache for all, since layers share frames.
        command.args(["--keep", "--fs", "erofs", "--cache"]);
        command.arg(&self.frames);
        for key in &self.verify_keys {
            command.arg("--verify-key").arg(key);
        }
        if !self.verify_keys.is_empty() {
            // The registry alone says which layer's image it is, and could leave out that the
            // image's made-up directories would hide the owners and modes of those below. The UUID,
            // which the signature covers, says both.
            command.args(["--erofs-uuid", uuid_digits(&layer.sha256, has_implied)]);
        }
        command
    }

    /// Keeps the files of a layer, which may have no record yet, until the guard is dropped.
    pub(crate) fn hold(&self, sha256: &str) -> Hold<'_> {
        *self.held.lock().entry(sha256.to_owned()).or_default() += 1;
        Hold {
            mounts: self,
            sha256: sha256.to_owned(),
        }
    }

    /// Removes the files of a layer, or those of all layers, that no record names and nothing
    /// holds. A server that still lives has them open.
    pub(crate) fn collect(&self, only: Option<&str>) {
        // Held throughout: nobody can begin to mount a layer that is removed here.
        let held = self.held.lock();
        let named = match self.named() {
            Ok(named) => named,
            Err(error) => {
                tracing::warn!("no layer is removed: {error}");
                return;
            }
        };
        let all = only.map_or_else(|| self.store.layers(), |it| vec![it.to_owned()]);
        for sha256 in all.iter().filter(|it| !held.contains_key(*it)) {
            match named.contains(sha256) {
                true => self.store.remove_unfinished(sha256),
                false => self.store.forget(sha256),
            }
        }
    }

    /// Digests of the layers that records name: containerd's, and those of c/storage, whose
    /// folders have them as names.
    fn named(&self) -> io::Result<BTreeSet<String>> {
        let mut named = records::layers_in(&self.root.join("records"))?;
        match digests_in(&self.root.join("store")) {
            Ok(digests) => named.extend(digests),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(named)
    }

    /// Checks that a layer's tar is the one that an image's configuration names (`sha256:...`).
    /// Only all bytes of the layer show that; a registry's index or image is taken at its word, as
    /// the administrator has allowed.
    ///
    /// # Errors
    /// It is another one, or is not known.
    pub(crate) fn check_tar(&self, sha256: &str, diff: &str) -> Result<(), String> {
        match self.store.tar_sha256(sha256) {
            Some(found) if diff.strip_prefix("sha256:") == Some(found.as_str()) => Ok(()),
            Some(_) => Err("its contents are not those that the configuration names".into()),
            None if self.store.is_trusted(sha256) => {
                Err("an earlier version fetched it without this check".into())
            }
            None => Ok(()),
        }
    }

    /// Starts a server for a layer whose mount was begun.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn serve(&self, layer: &Layer, dir: &Path) -> Result<(), String> {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["block", "layer", &layer.image])
            .arg(dir)
            .args(["--digest", &format!("sha256:{}", layer.sha256)])
            .arg("--layers")
            .arg(&self.layers)
            .args(["--rate", &self.rate_bytes.to_string()]);
        if self.trust_indexes {
            command.arg("--trust-index");
        }
        // Relaxed: a hint, here and below. A failure may repeat for the next layers, which
        // containerd unpacks only if the answer to its request says so.
        started(command).inspect_err(|_| self.has_served.store(false, Ordering::Relaxed))?;
        if !self.has_served.swap(true, Ordering::Relaxed) {
            let boot = boot_id().unwrap_or_default();
            if let Err(error) = fs::write(self.root.join(SERVED), boot) {
                tracing::info!("the next snapshotter tries servers anew: {error}");
            }
        }
        Ok(())
    }

    /// True if a server has mounted a layer since the machine's start: the next one will, too.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// Makes a layer mounted after a restart, if it is not.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub(crate) fn adopt(&self, layer: &Layer, dir: &Path, is_lowest: bool) -> Result<(), String> {
        let is_served = matches!(image_on(dir), Ok(Some(_)));
        let table = Table::read();
        // The kernel mounts a whole layer from its file, which needs no server.
        let is_direct = (table.source_of(dir))
            .is_some_and(|source| Path::new(source).starts_with(&self.layers));
        if is_served || is_direct {
            return Ok(());
        }
        // The mount of a server that was killed.
        self.undo(dir);
        self.mount(layer, dir, is_lowest).map(drop)
    }

    /// Unmounts a layer. Users that have files of it open keep them; its server ends after them.
    pub(crate) fn undo(&self, dir: &Path) {
        // Mounts may lie on top of one another after a crash between two steps.
        while Table::read().source_of(dir).is_some() {
            if let Err(error) = unmount(dir, UnmountFlags::DETACH) {
                tracing::warn!("cannot unmount {}: {error}", dir.display());
                return;
            }
        }
    }

    /// Bytes of a layer that are here, and its files.
    pub(crate) fn usage(&self, sha256: &str) -> (i64, i64) {
        let folder = self.layers.join(sha256);
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let blocks = entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks()));
        let bytes = blocks.map(|blocks| blocks * 512).sum::<u64>();
        (i64::try_from(bytes).unwrap_or_default(), 1)
    }
}

/// A layer whose mount was begun.
pub(crate) struct Begun {
    /// It lacks entries of directories.
    pub(crate) has_implied: bool,
    /// Nothing is left to do.
    pub(crate) is_mounted: bool,
}

/// Images that were asked for in the last minute, by their URLs: containerd asks for each layer
/// alone, and the manifest, what refers to it and a new connection would cost each of them half a
/// dozen round trips.
struct Recent<T> {
    images: Mutex<VecDeque<(String, Instant, Arc<T>)>>,
    /// URLs that are being asked for.
    asking: Turns,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            images: Mutex::default(),
            asking: Turns::default(),
        }
    }
}

impl<T> Recent<T> {
    /// The image that a URL names, which `open` asks for.
    ///
    /// # Errors
    /// Those of `open`; they are not kept.
    fn get<E>(&self, url: &str, open: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        // A tag may name another image by now; a digest names one for ever.
        if !url.contains("@sha256:") {
            return open().map(Arc::new);
        }
        // Others that want the same image wait for this answer.
        let _turn = self.asking.take(url);
        if let Some(found) = self.find(url) {
            return Ok(found);
        }
        // Without the lock: this waits for a network.
        let image = Arc::new(open()?);
        let mut all = self.images.lock();
        if all.len() == RECENT_MAX {
            all.pop_front();
        }
        all.push_back((url.to_owned(), Instant::now(), Arc::clone(&image)));
        Ok(image)
    }

    /// An image that is young enough: indexes may be pushed after it was asked for.
    fn find(&self, url: &str) -> Option<Arc<T>> {
        let mut all = self.images.lock();
        all.retain(|(_, opened, _)| opened.elapsed() < RECENT_AGE_MAX);
        let found = all.iter().find(|(found, ..)| found == url);
        found.map(|(.., image)| Arc::clone(image))
    }
}

/// True if a file of an earlier snapshotter says that a server has mounted a layer since the
/// machine's start.
fn has_served_before(root: &Path) -> bool {
    let found = fs::read_to_string(root.join(SERVED));
    found.is_ok_and(|found| boot_id().is_ok_and(|boot| boot == found))
}

/// File with the number of the boot in which a server has mounted a layer.
const SERVED: &str = "served";
/// Layers that are prepared ahead at once.
const AHEAD_THREADS: usize = 4;
/// Images that are kept; each has a connection and a thread.
const RECENT_MAX: usize = 8;
const RECENT_AGE_MAX: Duration = Duration::from_secs(60);

/// Starts a server in the background, and waits until it is ready.
fn started(mut command: Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot start a server: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Mounts a file with the kernel's erofs (Linux 6.12 or newer).
fn mount_file(data: &Path, dir: &Path) -> io::Result<()> {
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    Ok(mount(data, dir, "erofs", flags, None)?)
}

/// Keeps the files of a layer.
pub(crate) struct Hold<'a> {
    mounts: &'a Mounts,
    sha256: String,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut held = self.mounts.held.lock();
        if let Some(times) = held.get_mut(&self.sha256) {
            *times -= 1;
            if *times == 0 {
                held.remove(&self.sha256);
            }
        }
    }
}

/// The mounts of this process at one moment: folders, and the source of the last mount on each,
/// which is what users see. A mount whose server is dead is there, too.
pub(crate) struct Table(HashMap<String, String>);

impl Table {
    /// Reads the table; where that fails, it is empty.
    pub(crate) fn read() -> Self {
        Self::of(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    fn of(text: &str) -> Self {
        // A later line of the same place takes the place of the earlier one.
        let mounts = text.lines().filter_map(|line| {
            let (mount, rest) = line.split_once(" - ")?;
            let place = mount.split(' ').nth(4)?;
            Some((unescaped(place), unescaped(rest.split(' ').nth(1)?)))
        });
        Self(mounts.collect())
    }

    /// The source of the last mount on a folder.
    pub(crate) fn source_of(&self, dir: &Path) -> Option<&str> {
        // The table has paths without links. The folder's own name is none, and to look at it would
        // ask a server that may be dead.
        let above = dir.parent()?.canonicalize().ok()?;
        let place = above.join(dir.file_name()?);
        self.0.get(place.to_str()?).map(String::as_str)
    }
}

/// A path of the table of mounts, in which a few bytes are octal.
fn unescaped(text: &str) -> String {
    let codes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    codes.iter().fold(text.to_owned(), |text, (code, byte)| {
        text.replace(code, byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six round trips a layer else.
    #[test]
    fn an_image_of_a_digest_is_asked_for_once() {
        let recent = Recent::default();
        let (digest, tag) = ("oci://a/b@sha256:1", "oci://a/b:v1");
        assert_eq!(recent.get(digest, || Err("no network")), Err("no network"));
        let mut asked = 0;
        let mut ask = |url: &str| {
            let opened = recent.get(url, || {
                asked += 1;
                Ok::<_, ()>(asked)
            });
            *opened.unwrap()
        };
        assert_eq!(
            [digest, digest, tag, tag, digest].map(&mut ask),
            [1, 1, 2, 3, 1]
        );
        for number in 0..RECENT_MAX {
            ask(&format!("oci://a/c@sha256:{number}"));
        }
        assert_eq!(recent.images.lock().len(), RECENT_MAX);
        assert!(recent.find(digest).is_none());
    }

    #[test]
    fn of_several_mounts_on_a_folder_the_last_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path().canonicalize().unwrap();
        let place = format!("{}/a\\040folder", above.display());
        let line = |place: &str, source: &str| {
            format!("29 1 0:26 / {place} rw,relatime shared:1 - fuse {source} rw\n")
        };
        let text = [
            line(&place, "first"),
            line("/", "root"),
            line(&place, "the\\040second"),
            line(&format!("{place}/below"), "third"),
        ];
        let table = Table::of(&text.concat());
        let source = table.source_of(&dir.path().join("a folder"));
        assert_eq!(source, Some("the second"));
        assert_eq!(table.source_of(&dir.path().join("a")), None);
    }
}
