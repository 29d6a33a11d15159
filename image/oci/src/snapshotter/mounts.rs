//! Mounts of layers: the kernel's erofs on a layer's file once it is whole, and before that over a
//! server of its own, which outlives this process.
//!
//! Must stay true: the mount of a living server is never touched by [`Mounts::adopt`]; set-user-id
//! bits count in a container because overlayfs has its own flags, while the mount itself allows
//! neither them nor device nodes.

use super::Config;
use super::records::Layer;
use crate::image::Image;
use crate::layer::Store;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sidecore_export::mount::image_on;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Mounts layers.
pub(crate) struct Mounts {
    store: Store,
    layers: PathBuf,
    trust_indexes: bool,
    rate_bytes: u64,
    verify_keys: Vec<PathBuf>,
    frames: PathBuf,
}

impl Mounts {
    pub(crate) fn new(config: &Config, store: Store) -> Self {
        Self {
            store,
            layers: config.root.join("layers"),
            trust_indexes: config.trust_indexes,
            rate_bytes: config.rate_bytes,
            verify_keys: config.verify_keys.clone(),
            frames: config.root.join("frames"),
        }
    }

    /// Mounts a layer on a folder. A layer above others must have an entry for each directory.
    ///
    /// # Errors
    /// The reason why it is not mounted.
    pub(crate) fn mount(&self, layer: &Layer, dir: &Path, is_lowest: bool) -> Result<(), String> {
        let sha256 = &layer.sha256;
        if self.store.whole(sha256).is_none() {
            let image = Image::open(&layer.image);
            if let Ok(image) = &image
                && self.serve_converted(image, layer, dir, is_lowest)
            {
                return Ok(());
            }
            // A layer that was begun can go on without its manifest.
            let is_ready = match &image {
                Ok(image) => image.prepare(&self.store, sha256, self.trust_indexes),
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
        match self.store.whole(sha256) {
            Some(data) => mount_file(&data, dir)
                .map_err(|error| format!("the kernel does not mount {}: {error}", data.display())),
            None => self.serve(layer, dir),
        }
    }

    /// Mounts the image that a layer was converted to, if there is one that may be taken.
    fn serve_converted(&self, image: &Image, layer: &Layer, dir: &Path, is_lowest: bool) -> bool {
        if self.verify_keys.is_empty() && !self.trust_indexes {
            return false;
        }
        let url = match image.converted(&layer.sha256) {
            Ok(Some((url, has_implied))) if is_lowest || !has_implied => url,
            Ok(_) => return false,
            Err(error) => {
                tracing::warn!("no converted image is looked for: {error}");
                return false;
            }
        };
        let mut command = Command::new("/proc/self/exe");
        command.args(["block", "mount", &url]).arg(dir);
        // A keeper, since containers use the mount; one cache for all, since layers share frames.
        command.args(["--keep", "--fs", "erofs", "--cache"]);
        command.arg(&self.frames);
        for key in &self.verify_keys {
            command.arg("--verify-key").arg(key);
        }
        match started(command) {
            Ok(()) => true,
            Err(reason) => {
                tracing::warn!("{url} is not mounted: {reason}");
                false
            }
        }
    }

    /// Starts a server for a layer.
    fn serve(&self, layer: &Layer, dir: &Path) -> Result<(), String> {
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
        started(command)
    }

    /// Makes a layer mounted after a restart, if it is not.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub(crate) fn adopt(&self, layer: &Layer, dir: &Path, is_lowest: bool) -> Result<(), String> {
        let is_served = matches!(image_on(dir), Ok(Some(_)));
        let source = source_of(dir);
        // The kernel mounts a whole layer from its file, which needs no server.
        let is_direct = source.is_some_and(|source| Path::new(&source).starts_with(&self.layers));
        if is_served || is_direct {
            return Ok(());
        }
        // The mount of a server that was killed.
        self.undo(dir);
        self.mount(layer, dir, is_lowest)
    }

    /// Unmounts a layer. Users that have files of it open keep them; its server ends after them.
    pub(crate) fn undo(&self, dir: &Path) {
        // Mounts may lie on top of one another after a crash between two steps.
        while is_mounted(dir) {
            if let Err(error) = unmount(dir, UnmountFlags::DETACH) {
                tracing::warn!("cannot unmount {}: {error}", dir.display());
                return;
            }
        }
    }

    /// Removes a layer that no snapshot has. Its server, if there is one, has its files open.
    pub(crate) fn forget(&self, sha256: &str) {
        if let Ok(folder) = self.store.folder(sha256) {
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// Bytes of a layer that are here, and its files.
    pub(crate) fn usage(&self, sha256: &str) -> (i64, i64) {
        let folder = self.store.folder(sha256).unwrap_or_default();
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let blocks = entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks()));
        let bytes = blocks.map(|blocks| blocks * 512).sum::<u64>();
        (i64::try_from(bytes).unwrap_or_default(), 1)
    }
}

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

/// True if something is mounted on a folder, also if its server is dead.
fn is_mounted(dir: &Path) -> bool {
    source_of(dir).is_some()
}

/// The source of the last mount on a folder.
fn source_of(dir: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let dir = dir.to_str()?;
    // Of several mounts on a folder the last one is what its users see.
    let line = table.lines().rev().find(|line| {
        let place = line.split(' ').nth(4);
        place.is_some_and(|place| unescaped(place) == dir)
    })?;
    let (_, rest) = line.split_once(" - ")?;
    rest.split(' ').nth(1).map(unescaped)
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
