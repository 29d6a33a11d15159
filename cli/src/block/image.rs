//! Images by name, a local file or a URL, and the trust that each must have.
//!
//! Why here: the one place where commands decide between the two, and where an image is refused
//! before its first byte is used. Must stay true: what is shown or kept of a URL holds no secret;
//! every command that reads an image opens it here.

use anyhow::{Context, Result};
use sidecore_block::format::sidecar::lacks_index;
use sidecore_block::format::tree::Tree;
use sidecore_block::format::{FormatError, Index};
use sidecore_block::image::Image;
use sidecore_block::secret::Secrets;
use sidecore_block::trust::Trust;
use sidecore_remote::{Location, Options, RemoteImage};
use sidecore_terminal::quantity;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Cache and trust of an image.
#[derive(clap::Args, Clone)]
pub(crate) struct AccessArgs {
    /// Directory that caches frames of a remote image; processes may share it
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Upper bound of the cache; the least recently used goes first
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "4GiB")]
    cache_size: u64,
    /// Take the image only if this is its root hash, as `pack --tree` printed it; every frame is
    /// checked against it before it is used
    #[arg(long, value_name = "HASH")]
    root_hash: Option<String>,
    /// Take the image only if the owner of this key has signed it: a public Ed25519 key in PEM; one
    /// match among several keys is enough
    #[arg(long, value_name = "KEY")]
    verify_key: Vec<PathBuf>,
    /// Index of a zstd file that has none, as `block index` makes it; FILE.sidx next to the file is
    /// used automatically
    #[arg(long, value_name = "FILE")]
    sidx: Option<PathBuf>,
    /// File with identities (`AGE-SECRET-KEY-1...`) that open an encrypted image; may be given
    /// again
    #[arg(long, value_name = "FILE")]
    identity: Vec<PathBuf>,
    /// File whose first line is the passphrase of an encrypted image
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

/// An image, its tables read.
pub(crate) struct Opened {
    pub(crate) image: Image,
    pub(crate) index: Index,
    /// The same image, where it is remote.
    pub(crate) remote: Option<Arc<RemoteImage>>,
}

impl AccessArgs {
    /// Makes relative paths absolute, for a server that changes its directory.
    pub(super) fn make_absolute(&mut self) -> Result<()> {
        let files = [&mut self.cache, &mut self.sidx, &mut self.passphrase_file];
        let lists = self.verify_key.iter_mut().chain(&mut self.identity);
        files
            .into_iter()
            .flatten()
            .chain(lists)
            .try_for_each(make_absolute)
    }

    /// True where keys that open an encrypted image are named.
    pub(super) fn has_secrets(&self) -> bool {
        !self.identity.is_empty() || self.passphrase_file.is_some()
    }

    /// Opens an image whose frames will all be read in order; a remote one may hold `memory_bytes`
    /// of compressed frames.
    pub(crate) fn open_whole(&self, path: &Path, memory_bytes: u64) -> Result<Opened> {
        let memory_bytes = memory_bytes.min(WHOLE_MEMORY_BYTES);
        let opened = self.open_locked(path, false, memory_bytes, 0)?;
        unlock(path, opened, &self.secrets()?)
    }

    /// Opens an image to describe it; an encrypted image also without its key.
    pub(crate) fn open_to_look(&self, path: &Path, memory_bytes: u64) -> Result<Opened> {
        let memory_bytes = memory_bytes.min(WHOLE_MEMORY_BYTES);
        let opened = self.open_locked(path, false, memory_bytes, 0)?;
        // Read once, since a passphrase may come through a pipe.
        let secrets = self.secrets()?;
        match secrets.is_empty() {
            true => Ok(opened),
            false => unlock(path, opened, &secrets),
        }
    }

    /// Opens an image; a remote one may hold `memory_bytes` of compressed frames.
    pub(crate) fn open(&self, path: &Path, raw: bool, memory_bytes: u64) -> Result<Opened> {
        // Frames in the cache are not fetched.
        let is_cached = self.cache.as_ref().is_some_and(|it| it.exists());
        let beyond_bytes = match is_cached {
            true => 0,
            false => BEYOND_BYTES.min(memory_bytes / 16),
        };
        let opened = self.open_locked(path, raw, memory_bytes, beyond_bytes)?;
        unlock(path, opened, &self.secrets()?)
    }

    fn secrets(&self) -> Result<Secrets> {
        let mut secrets = Secrets::default();
        for path in &self.identity {
            secrets.add_identities(path)?;
        }
        if let Some(path) = &self.passphrase_file {
            secrets.add_passphrase(path)?;
        }
        Ok(secrets)
    }

    /// Opens an image without its key.
    fn open_locked(
        &self,
        path: &Path,
        raw: bool,
        memory_bytes: u64,
        beyond_bytes: u64,
    ) -> Result<Opened> {
        let trust = self.trust()?;
        anyhow::ensure!(
            trust.is_empty() || !raw,
            "--raw takes an image's bytes as they are, which no hash tree covers; leave it out, or \
             --root-hash and --verify-key"
        );
        let mut remote = None;
        let failed = || format!("cannot open {}", name(path));
        let (image, index) = match location(path) {
            Some(location) => {
                let options = Options {
                    memory_bytes,
                    beyond_bytes,
                    cache: self
                        .cache
                        .clone()
                        .map(|directory| (directory, self.cache_size)),
                    ..Options::default()
                };
                let location = location?;
                let opened = RemoteImage::open(&location, options)?;
                remote = Some(Arc::clone(&opened));
                let image = Image::Remote(opened);
                let index = match image.index(raw) {
                    Err(error) if lacks_index(&error) && self.sidx.is_none() => {
                        sidecar_index(&location, &image, memory_bytes).unwrap_or(Err(error))
                    }
                    other => other,
                };
                (image, index)
            }
            None => {
                let file = File::open(path).with_context(failed)?;
                let index = match (raw, &self.sidx) {
                    (true, _) => Index::open_raw(&file),
                    (false, Some(_)) => Index::open(&file),
                    (false, None) => Index::open_sidecar(&file, path),
                };
                (Image::from(file), index)
            }
        };
        let index = match (index, &self.sidx) {
            (Err(error), Some(sidx)) if lacks_index(&error) => {
                let file = File::open(sidx);
                let file = file.with_context(|| format!("cannot open {}", sidx.display()))?;
                Index::read_sidecar(&image, &file, image.file().is_some())
            }
            (Ok(_), Some(sidx)) => anyhow::bail!(
                "{} has an index of its own; leave out --sidx {}",
                name(path),
                sidx.display()
            ),
            (index, _) => index,
        };
        let mut index = index.with_context(failed)?;
        trust.apply(&mut index, &image).with_context(failed)?;
        Ok(Opened {
            image,
            index,
            remote,
        })
    }

    /// Public keys by which a signature of an opened image was found valid, as digits.
    pub(crate) fn keys_valid(&self, index: &Index) -> Result<Vec<String>> {
        let trust = self.trust()?;
        let keys = |tree: &Tree| trust.valid_keys(&tree.root, &tree.signatures);
        Ok(index.tree().map_or_else(Vec::new, keys))
    }

    fn trust(&self) -> Result<Trust> {
        let mut trust = Trust::default();
        if let Some(digits) = &self.root_hash {
            trust.add_root(digits)?;
        }
        for key in &self.verify_key {
            trust.add_key(key)?;
        }
        Ok(trust)
    }
}

/// Makes a path absolute.
pub(super) fn make_absolute(path: &mut PathBuf) -> Result<()> {
    let absolute = std::path::absolute(&*path);
    *path = absolute.with_context(|| format!("cannot use the path {}", path.display()))?;
    Ok(())
}

/// Reads the sidecar index (`.sidx`) of a remote zstd file; `None` where there is none. It must
/// come from the same server: an index is trusted as much as its file, since a writer of one can
/// write the other.
fn sidecar_index(
    location: &Location,
    image: &Image,
    memory_bytes: u64,
) -> Option<Result<Index, FormatError>> {
    let sidecar = location.sidecar()?;
    let options = Options {
        memory_bytes,
        may_leave: false,
        ..Options::default()
    };
    match RemoteImage::open(&sidecar, options) {
        Ok(found) => Some(Index::read_sidecar(image, &*found, false)),
        Err(error) => {
            tracing::info!("no index beside it: {error}");
            None
        }
    }
}

fn unlock(path: &Path, mut opened: Opened, secrets: &Secrets) -> Result<Opened> {
    let unlocked = secrets.apply(&mut opened.index);
    unlocked.with_context(|| format!("cannot open {}", name(path)))?;
    Ok(opened)
}

/// The raw bytes of a file or of a URL.
pub(crate) fn open_bytes(path: &Path) -> Result<Image> {
    match location(path) {
        Some(location) => Ok(Image::Remote(RemoteImage::open(
            &location?,
            Options::default(),
        )?)),
        None => {
            let file = File::open(path);
            Ok(file
                .with_context(|| format!("cannot open {}", name(path)))?
                .into())
        }
    }
}

/// True where `path` is a URL.
pub(crate) fn is_remote(path: &Path) -> bool {
    location(path).is_some()
}

/// Name of an image for people and records.
pub(crate) fn name(path: &Path) -> String {
    match location(path) {
        Some(Ok(location)) => location.to_string(),
        // An invalid URL is refused with a message of its own, which leaves out the query.
        Some(Err(_)) => "the image".into(),
        None => path.display().to_string(),
    }
}

fn location(path: &Path) -> Option<Result<Location, sidecore_remote::LocationError>> {
    Location::parse(path.to_str()?)
}

/// The head and the metadata of a tree of some twenty thousand files, as `pack` lays them out and
/// compresses them. A MiB would do for sixty thousand, but would be more than a third of the bytes
/// that a short start fetches of a small tree.
const BEYOND_BYTES: u64 = 192 << 10;
/// Memory for compressed frames of an image that is read in order: the bandwidth-delay product of 1
/// Gb/s and 200 ms.
const WHOLE_MEMORY_BYTES: u64 = 96 << 20;
