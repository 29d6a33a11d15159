//! Layers for podman, CRI-O and buildah: an additional layer store of c/storage.
//!
//! Must stay true: a layer's record is written after it was mounted once, so that a restart finds
//! what users count on; the number of its users is durable, and a layer without one is unmounted.
//! Called from: any thread; one at a time has a layer.
//! Source: c/storage, "additional layer stores"; its `Layer` for the document of a layer.

use super::mounts::Mounts;
use super::records::Layer;
use super::{Config, make_folder};
use crate::image::Image;
use crate::layer::Store;
use crate::store::{read_bounded, write_whole};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use sidecore_bare::width::ToU64;
use sidecore_export::fuse::{FuseServer, LayerEntry, LayerSource};
use sidecore_remote::is_sha256;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The layers of a store, as its file system asks for them.
pub(super) struct Layers {
    root: PathBuf,
    mounts: Mounts,
    busy: Mutex<BTreeSet<String>>,
    done: Condvar,
}

/// What is known of a layer.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    layer: Layer,
    is_lowest: bool,
    blob_bytes: u64,
    /// The document for c/storage.
    info: String,
    users: u64,
}

/// The document: what c/storage keeps of a layer.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Info<'a> {
    compressed_diff_digest: String,
    compressed_size: u64,
    diff_digest: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff_size: Option<u64>,
    /// c/storage's number of a compression.
    compression: u8,
}

/// The parts of an image's configuration that are used.
#[derive(Deserialize)]
struct Configuration {
    rootfs: Files,
}

#[derive(Deserialize)]
struct Files {
    diff_ids: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Blob,
}

#[derive(Deserialize)]
struct Blob {
    digest: String,
}

/// Shows the store in a folder; it ends when it is dropped.
pub(super) struct Shown(PathBuf);

impl Drop for Shown {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        if let Err(error) = rustix::mount::unmount(&self.0, flags) {
            tracing::warn!("{} stays mounted: {error}", self.0.display());
        }
    }
}

impl Layers {
    /// Mounts the store of `config` on a folder.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn show(config: &Config, store: Store, dir: &Path) -> io::Result<Shown> {
        let root = config.root.join("store");
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(&root)?;
        let layers = Arc::new(Self {
            root,
            mounts: Mounts::new(config, store),
            busy: Mutex::default(),
            done: Condvar::new(),
        });
        // Left by one that was killed: nothing answers there.
        layers.mounts.undo(dir);
        make_folder(dir)?;
        FuseServer::start_layers(layers, dir, || ()).map_err(io::Error::other)?;
        Ok(Shown(dir.to_owned()))
    }

    /// Runs it while no other thread has this layer.
    fn alone<T>(&self, sha256: &str, run: impl FnOnce() -> T) -> T {
        let mut busy = self.busy.lock();
        while busy.contains(sha256) {
            self.done.wait(&mut busy);
        }
        busy.insert(sha256.to_owned());
        drop(busy);
        let result = run();
        self.busy.lock().remove(sha256);
        self.done.notify_all();
        result
    }

    fn record(&self, sha256: &str) -> Option<Record> {
        let bytes = read_bounded(&self.root.join(sha256).join(RECORD), RECORD_BYTES_MAX).ok()?;
        serde_json::from_slice(&bytes)
            .inspect_err(|error| tracing::warn!("the record of layer {sha256} is damaged: {error}"))
            .ok()
    }

    fn put(&self, sha256: &str, record: &Record) -> Result<(), String> {
        let folder = self.root.join(sha256);
        let bytes = serde_json::to_vec(record).map_err(|error| error.to_string())?;
        write_whole(&folder, RECORD, &bytes).map_err(|error| error.to_string())
    }

    /// A layer that is mounted when this returns.
    fn mounted(&self, image: &str, sha256: &str) -> Result<LayerEntry, String> {
        let files = self.root.join(sha256).join("fs");
        let record = match self.record(sha256) {
            Some(record) => {
                self.mounts.adopt(&record.layer, &files, record.is_lowest)?;
                record
            }
            None => {
                let record = described(image, sha256)?;
                let made = DirBuilder::new().recursive(true).mode(0o711).create(&files);
                made.map_err(|error| error.to_string())?;
                self.mounts.mount(&record.layer, &files, record.is_lowest)?;
                self.put(sha256, &record)?;
                record
            }
        };
        Ok(LayerEntry {
            files,
            info: record.info.into_bytes(),
            blob_bytes: record.blob_bytes,
        })
    }

    /// Counts users; `change` gets their number and returns the new one.
    fn count(&self, digest: &str, change: impl FnOnce(u64) -> u64) {
        let Some(sha256) = digits(digest) else {
            return;
        };
        self.alone(sha256, || {
            let Some(mut record) = self.record(sha256) else {
                return;
            };
            let before = record.users;
            record.users = change(before);
            if let Err(error) = self.put(sha256, &record) {
                tracing::warn!("users of layer {sha256} are not counted: {error}");
            } else if before > 0 && record.users == 0 {
                self.mounts.undo(&self.root.join(sha256).join("fs"));
                let _ = fs::remove_dir_all(self.root.join(sha256));
            }
        });
    }
}

impl LayerSource for Layers {
    fn image(&self, name: &[u8]) -> Option<String> {
        let image = String::from_utf8(STANDARD.decode(name).ok()?).ok()?;
        Image::named(&url_of(&image)).ok()?;
        Some(image)
    }

    fn layer(&self, image: &str, digest: &str) -> Option<LayerEntry> {
        let sha256 = digits(digest)?;
        let mounted = self.alone(sha256, || self.mounted(image, sha256));
        mounted
            .inspect_err(|reason| {
                tracing::warn!("layer {digest} of {image} is pulled as any other: {reason}");
            })
            .ok()
    }

    fn blob(&self, image: &str, digest: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let sha256 = digits(digest).ok_or(io::ErrorKind::NotFound)?;
        let blob = Image::blob_of(&url_of(image), sha256).map_err(io::Error::other)?;
        let end = blob.size_bytes()?.min(offset.saturating_add(len.to_u64()));
        match offset < end {
            true => blob.read(offset..end),
            false => Ok(Vec::new()),
        }
    }

    fn begin_use(&self, digest: &str) {
        self.count(digest, |users| users.saturating_add(1));
    }

    fn end_use(&self, digest: &str) {
        self.count(digest, |users| users.saturating_sub(1));
    }
}

/// A layer as its registry describes it.
fn described(image: &str, sha256: &str) -> Result<Record, String> {
    let url = url_of(image);
    let opened = Image::open(&url).map_err(|error| error.to_string())?;
    let layers = opened.layers();
    let place = layers.iter().position(|(found, ..)| found == sha256);
    let place = place.ok_or("the image has no such layer")?;
    let (_, blob_bytes, kind) = &layers[place];
    let malformed = |error: serde_json::Error| format!("{image}: {error}");
    let manifest: Manifest = serde_json::from_slice(&opened.manifest().text).map_err(malformed)?;
    let config = digits(&manifest.config.digest).ok_or("its configuration has no digest")?;
    let config = opened.small_blob(config, CONFIG_BYTES_MAX);
    let config = config.map_err(|error| error.to_string())?;
    let config: Configuration = serde_json::from_slice(&config).map_err(malformed)?;
    let diff = config.rootfs.diff_ids.get(place);
    let info = Info {
        compressed_diff_digest: format!("sha256:{sha256}"),
        compressed_size: *blob_bytes,
        diff_digest: diff.ok_or("its configuration does not name the layer")?,
        diff_size: None,
        compression: match kind {
            it if it.ends_with("gzip") => 2,
            it if it.ends_with("zstd") => 4,
            _ => 0,
        },
    };
    Ok(Record {
        layer: Layer {
            image: format!("oci://{}@{}", opened.place(), opened.manifest().digest),
            sha256: sha256.to_owned(),
        },
        is_lowest: place == 0,
        blob_bytes: *blob_bytes,
        info: serde_json::to_string(&info).map_err(malformed)?,
        users: 0,
    })
}

/// The URL of an image by c/storage's name of it.
fn url_of(image: &str) -> String {
    format!("oci://{image}")
}

/// The digits of a SHA-256.
fn digits(digest: &str) -> Option<&str> {
    (digest.strip_prefix("sha256:")).filter(|sha256| is_sha256(sha256))
}

const RECORD: &str = "record";
const RECORD_BYTES_MAX: u64 = 1 << 16;
const CONFIG_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_what_c_storage_reads() {
        let info = Info {
            compressed_diff_digest: "sha256:a".into(),
            compressed_size: 7,
            diff_digest: "sha256:b",
            diff_size: None,
            compression: 2,
        };
        let expected = [
            r#"{"compressed-diff-digest":"sha256:a","compressed-size":7,"#,
            r#""diff-digest":"sha256:b","compression":2}"#,
        ];
        assert_eq!(serde_json::to_string(&info).unwrap(), expected.concat());
    }

    #[test]
    fn digests_are_whole_and_lower_case() {
        let whole = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(digits(&whole), Some(&whole[7..]));
        for bad in [
            "",
            "sha256:",
            "sha256:../x",
            &whole[..70],
            &whole.to_uppercase(),
        ] {
            assert_eq!(digits(bad), None, "{bad}");
        }
    }
}
