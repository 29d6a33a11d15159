//! Layers for podman, CRI-O and buildah: an additional layer store of c/storage.
//!
//! Must stay true: a layer's record is written after it was mounted once, so that a restart finds
//! what users count on; the number of its users is durable, and a layer without one is unmounted;
//! an image gets a layer only where its configuration names the tar that is in it, since c/storage
//! takes the layers of all images by that name.
//! Called from: any thread; one at a time has a layer.
//! Source: c/storage, "additional layer stores"; its `Layer` for the document of a layer.

use super::mounts::Mounts;
use super::records::Layer;
use super::{Config, Turns, make_folder};
use crate::image::Image;
use crate::store::{digests_in, read_bounded, remove_folder, write_whole};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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
use std::time::Duration;

/// The layers of a store, as its file system asks for them.
pub(super) struct Layers {
    root: PathBuf,
    mounts: Arc<Mounts>,
    busy: Turns,
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
    /// Names of images that this layer was found to be of; of an earlier version's record none.
    #[serde(default)]
    images: BTreeSet<String>,
    /// It lacks entries of directories, and so can only be a lowest one.
    #[serde(default)]
    has_implied: bool,
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
    pub(super) fn show(config: &Config, mounts: Arc<Mounts>, dir: &Path) -> io::Result<Shown> {
        let root = config.root.join("store");
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(&root)?;
        let layers = Arc::new(Self {
            root,
            mounts,
            busy: Turns::default(),
        });
        // Left by one that was killed: nothing answers there.
        layers.mounts.undo(dir);
        layers.sweep(Duration::ZERO);
        make_folder(dir)?;
        FuseServer::start_layers(layers, dir, || ()).map_err(io::Error::other)?;
        Ok(Shown(dir.to_owned()))
    }

    /// Runs it while no other thread has this layer.
    fn alone<T>(&self, sha256: &str, run: impl FnOnce() -> T) -> T {
        let _turn = self.busy.take(sha256);
        run()
    }

    /// Removes layers that were looked up and not used for `age_min`, and what a crash has left.
    fn sweep(&self, age_min: Duration) {
        for sha256 in digests_in(&self.root).unwrap_or_default() {
            // One that another thread has is in use.
            let Some(_turn) = self.busy.try_take(&sha256) else {
                continue;
            };
            let record = self.root.join(&sha256).join(RECORD);
            let looked_up = fs::metadata(&record).and_then(|it| it.modified());
            let age = looked_up.map(|it| it.elapsed().unwrap_or_default());
            let is_unused = match self.record(&sha256) {
                Some(record) => record.users == 0 && age.is_ok_and(|age| age >= age_min),
                // A damaged one may have users.
                None => !record.exists(),
            };
            if is_unused {
                self.forget(&sha256);
            }
        }
    }

    /// Unmounts a layer and removes all that is here of it.
    fn forget(&self, sha256: &str) {
        let folder = self.root.join(sha256);
        self.mounts.undo(&folder.join("fs"));
        remove_folder(&folder);
        self.mounts.collect(Some(sha256));
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
        // Until the record names it.
        let hold = self.mounts.hold(sha256);
        let record = match self.record(sha256) {
            Some(record) => {
                let record = self.known(image, sha256, record)?;
                self.mounts.adopt(&record.layer, &files, record.is_lowest)?;
                record
            }
            None => match self.new_record(image, sha256, &files) {
                Ok(record) => record,
                Err(reason) => {
                    // What is held is not removed.
                    drop(hold);
                    self.forget(sha256);
                    return Err(reason);
                }
            },
        };
        Ok(LayerEntry {
            files,
            info: record.info.into_bytes(),
            blob_bytes: record.blob_bytes,
        })
    }

    /// Mounts a layer for the first time, and records it.
    fn new_record(&self, image: &str, sha256: &str, files: &Path) -> Result<Record, String> {
        let Described { mut record, diff } = described(image, sha256)?;
        let made = DirBuilder::new().recursive(true).mode(0o711).create(files);
        made.map_err(|error| error.to_string())?;
        let mounted = self.mounts.mount(&record.layer, files, record.is_lowest);
        record.has_implied = mounted?;
        // Now that the layer is here.
        self.mounts.check_tar(sha256, &diff)?;
        self.put(sha256, &record)?;
        self.sweep(UNUSED_AGE_MIN);
        Ok(record)
    }

    /// A layer's record, if the layer may be given to an image.
    fn known(&self, image: &str, sha256: &str, mut record: Record) -> Result<Record, String> {
        let diff = diff_of(&record.info).ok_or("its record names no tar")?;
        let is_checked = !record.images.is_empty();
        if is_checked && !record.images.contains(image) {
            described(image, sha256)?.check(&record, &diff)?;
            if record.images.len() < IMAGES_MAX {
                record.images.insert(image.to_owned());
            }
            self.put(sha256, &record)?;
        } else if record.users == 0 {
            // The record's time is that of the last look-up.
            self.put(sha256, &record)?;
        }
        // A registry's index may have been proved meanwhile, and its tar been found another one.
        if is_checked {
            self.mounts.check_tar(sha256, &diff)?;
        }
        Ok(record)
    }

    /// Counts users; `change` gets their number and returns the new one.
    fn count(&self, digest: &str, change: impl FnOnce(u64) -> u64) -> io::Result<()> {
        let sha256 = digits(digest).ok_or(io::ErrorKind::NotFound)?;
        self.alone(sha256, || -> io::Result<()> {
            let mut record = self.record(sha256).ok_or(io::ErrorKind::NotFound)?;
            let before = record.users;
            record.users = change(before);
            self.put(sha256, &record).map_err(io::Error::other)?;
            if before > 0 && record.users == 0 {
                self.forget(sha256);
            }
            Ok(())
        })
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

    fn begin_use(&self, digest: &str) -> io::Result<()> {
        self.count(digest, |users| users.saturating_add(1))
    }

    fn end_use(&self, digest: &str) {
        if let Err(error) = self.count(digest, |users| users.saturating_sub(1)) {
            tracing::warn!("a user of layer {digest} is not taken off: {error}");
        }
    }
}

/// A layer as an image describes it.
struct Described {
    record: Record,
    /// Digest of its tar, as the image's configuration says.
    diff: String,
}

impl Described {
    /// Checks that the image means the layer that is here already, which has tar `diff`.
    fn check(&self, here: &Record, diff: &str) -> Result<(), String> {
        if self.diff != diff {
            return Err("its configuration names another tar than the layer has".into());
        }
        match here.has_implied && !self.record.is_lowest {
            true => Err("it has files in directories that it does not describe".into()),
            false => Ok(()),
        }
    }
}

/// A layer as its registry describes it.
fn described(image: &str, sha256: &str) -> Result<Described, String> {
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
    let diff = diff.ok_or("its configuration does not name the layer")?;
    let info = Info {
        compressed_diff_digest: format!("sha256:{sha256}"),
        compressed_size: *blob_bytes,
        diff_digest: diff,
        diff_size: None,
        compression: match kind {
            it if it.ends_with("gzip") => 2,
            it if it.ends_with("zstd") => 4,
            _ => 0,
        },
    };
    let record = Record {
        layer: Layer {
            image: format!("oci://{}@{}", opened.place(), opened.manifest().digest),
            sha256: sha256.to_owned(),
        },
        is_lowest: place == 0,
        blob_bytes: *blob_bytes,
        info: serde_json::to_string(&info).map_err(malformed)?,
        users: 0,
        images: BTreeSet::from([image.to_owned()]),
        has_implied: false,
    };
    let diff = diff.clone();
    Ok(Described { record, diff })
}

/// The tar's digest in a document for c/storage.
fn diff_of(info: &str) -> Option<String> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    info["diff-digest"].as_str().map(str::to_owned)
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
/// Images whose names a record keeps; a name has at most 255 bytes. Further ones are looked at each
/// time.
const IMAGES_MAX: usize = 64;
/// c/storage uses a layer seconds after it has looked it up.
const UNUSED_AGE_MIN: Duration = Duration::from_secs(3600);
const CONFIG_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::{Store, sha256_of};

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

    fn record(is_lowest: bool) -> Record {
        let layer = Layer {
            image: "oci://nothing".into(),
            sha256: "0".repeat(64),
        };
        Record {
            layer,
            is_lowest,
            blob_bytes: 7,
            info: r#"{"diff-digest":"sha256:b"}"#.into(),
            users: 0,
            images: BTreeSet::from(["first".to_owned()]),
            has_implied: true,
        }
    }

    /// An image may name another one's layer with a tar of its choice, or higher up than it can be.
    #[test]
    fn images_get_the_layers_that_their_configurations_name() {
        let diff = diff_of(&record(true).info).unwrap();
        for (named, is_lowest, is_right) in [
            ("sha256:b", true, true),
            ("sha256:c", true, false),
            ("sha256:b", false, false),
        ] {
            let described = Described {
                record: record(is_lowest),
                diff: named.into(),
            };
            let checked = described.check(&record(true), &diff);
            assert_eq!(checked.is_ok(), is_right, "{named} {is_lowest}");
        }
    }

    fn layers(root: &Path) -> Layers {
        let config = Config {
            socket: root.join("socket"),
            root: root.to_owned(),
            trust_indexes: false,
            rate_bytes: 0,
            verify_keys: Vec::new(),
            layer_store: None,
            metrics: None,
        };
        let store = Store::open(&root.join("layers")).unwrap();
        Layers {
            root: root.join("store"),
            mounts: Arc::new(Mounts::new(&config, store)),
            busy: Turns::default(),
        }
    }

    #[test]
    fn a_layers_tar_is_the_one_that_its_bytes_show() {
        let dir = tempfile::tempdir().unwrap();
        let layers = layers(dir.path());
        let blob = crate::tests::gzip_tar(b"contents");
        let sha256 = sha256_of(&blob);
        let store = Store::open(&dir.path().join("layers")).unwrap();
        store.fetch_whole(&sha256, &mut &blob[..]).unwrap();
        let tar = format!("sha256:{}", store.tar_sha256(&sha256).unwrap());
        layers.mounts.check_tar(&sha256, &tar).unwrap();
        let other = format!("sha256:{sha256}");
        layers.mounts.check_tar(&sha256, &other).unwrap_err();
        // As an earlier version left it.
        let folder = store.folder(&sha256).unwrap();
        write_whole(&folder, "trusted", b"").unwrap();
        layers.mounts.check_tar(&sha256, &tar).unwrap_err();
    }

    #[test]
    fn a_layer_is_free_again_after_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let layers = layers(dir.path());
        let run = || layers.alone("a", || assert!(layers.busy.try_take("a").is_some()));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
        let turn = layers.busy.try_take("a").unwrap();
        assert!(layers.busy.all_free().is_none());
        drop(turn);
        assert!(layers.busy.all_free().is_some());
    }

    /// A layer that nothing counts a user of would be unmounted below that user.
    #[test]
    fn a_user_that_is_not_counted_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let layers = layers(dir.path());
        let sha256 = "a".repeat(64);
        let digest = format!("sha256:{sha256}");
        fs::create_dir_all(layers.root.join(&sha256)).unwrap();
        layers.put(&sha256, &record(true)).unwrap();
        layers.begin_use(&digest).unwrap();
        assert_eq!(layers.record(&sha256).unwrap().users, 1);
        layers.end_use(&digest);
        // It went with its last user, and so it does an hour after a look-up without a use.
        assert!(!layers.root.join(&sha256).exists());
        let refused = layers.begin_use(&digest).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        layers.begin_use("sha256:none").unwrap_err();
    }

    #[test]
    fn a_first_mount_that_fails_leaves_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let layers = layers(dir.path());
        let sha256 = "a".repeat(64);
        let files = dir.path().join("layers").join(&sha256);
        fs::create_dir_all(&files).unwrap();
        fs::write(files.join("data"), "part").unwrap();
        // No registry is asked by an empty name.
        assert!(layers.layer("", &format!("sha256:{sha256}")).is_none());
        assert!(!files.exists());
    }

    /// A layer that was looked up and never used, one in use, and a folder without a record.
    #[test]
    fn unused_layers_go_with_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let layers = layers(dir.path());
        for (digit, users) in [("a", Some(0)), ("b", Some(1)), ("c", None)] {
            let sha256 = digit.repeat(64);
            fs::create_dir_all(layers.root.join(&sha256).join("fs")).unwrap();
            fs::create_dir_all(dir.path().join("layers").join(&sha256)).unwrap();
            if let Some(users) = users {
                let record = Record {
                    users,
                    ..record(true)
                };
                layers.put(&sha256, &record).unwrap();
            }
        }
        let is_here = |digit: &str| {
            let sha256 = digit.repeat(64);
            let is_here = layers.root.join(&sha256).exists();
            let files = dir.path().join("layers").join(&sha256);
            assert_eq!(is_here, files.exists(), "{digit}");
            is_here
        };
        layers.sweep(UNUSED_AGE_MIN);
        assert_eq!(["a", "b", "c"].map(is_here), [true, true, false]);
        layers.sweep(Duration::ZERO);
        assert_eq!(["a", "b"].map(is_here), [false, true]);
        layers.end_use(&format!("sha256:{}", "b".repeat(64)));
        assert!(!is_here("b"));
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
