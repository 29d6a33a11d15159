//! An image in a registry: its layers, and the indexes of them that are found, made and pushed.
//!
//! Must stay true: an index from a registry is used only where the caller allows it, and is then
//! proved by the whole layer once that is here (`layer`).
//! Called from: any thread; blocks on the network.

use crate::build::Ranges;
use crate::index::{INDEX_BYTES_MAX, Index};
use crate::layer::{LayerDevice, LayerError, Store};
use serde_json::Value;
use sidecore_export::background::{OnReady, Starter};
use sidecore_export::fuse::FuseOptions;
use sidecore_export::mount::{self, Target};
use sidecore_export::{ExportError, Ready};
use sidecore_format::source::BlockSource;
use sidecore_remote::blob::RemoteBlob;
use sidecore_remote::fault::Fault;
use sidecore_remote::{Artifact, ImageManifest, Location, Repository, Retry, is_sha256};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Reasons why an image or its layers cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The name.
    #[error("{0} names no image of a registry; take oci://REGISTRY/REPOSITORY:TAG")]
    Name(String),
    /// The registry.
    #[error("cannot read {name}: {fault}")]
    Registry {
        /// The image.
        name: String,
        /// The fault.
        fault: Fault,
    },
    /// A blob.
    #[error("cannot read the layer: {0}")]
    Blob(#[from] io::Error),
    /// A layer.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The mount of a layer.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// No layer is named, and the image has several, of these digests.
    #[error("the image has {} layers; name one with --digest: {}", .0.len(), .0.join(" "))]
    Several(Vec<String>),
    /// A layer's digest that is none.
    #[error("--digest takes sha256: and 64 digits")]
    Digest,
}

/// An image in a registry.
pub struct Image {
    name: String,
    /// Registry and repository, as in a URL.
    place: String,
    repository: Repository,
    manifest: ImageManifest,
    /// Referrers of the image, once they were asked for: a list of all layers' indexes and images.
    artifacts: OnceLock<Vec<Artifact>>,
    /// Files that its command reads first.
    start: OnceLock<Vec<String>>,
}

impl Image {
    /// The blob of a layer of the image that a URL names. Sends nothing yet.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn blob_of(url: &str, sha256: &str) -> Result<RemoteBlob, ImageError> {
        let (name, repository, _) = Self::named(url)?;
        let blob = RemoteBlob::new(&repository, sha256);
        blob.map_err(|fault| ImageError::Registry { name, fault })
    }

    /// Reads the manifest of the image that a URL names (`oci://`); blocks.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open(url: &str) -> Result<Self, ImageError> {
        let (name, repository, reference) = Self::named(url)?;
        let manifest = repository.image(&reference);
        Self::of(name, repository, manifest)
    }

    /// The same for an image whose layers are mounted. What refers to the manifest is asked for at
    /// the same time, where the URL has its digest.
    ///
    /// # Errors
    /// [`ImageError`].
    pub(crate) fn open_with_artifacts(url: &str) -> Result<Self, ImageError> {
        let (name, repository, reference) = Self::named(url)?;
        let (manifest, artifacts) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("referrers".into());
            let ask = || repository.artifacts(&reference, &ARTIFACT_TYPES);
            let asked = reference.starts_with("sha256:");
            let asked = asked
                .then(|| thread.spawn_scoped(scope, ask).ok())
                .flatten();
            let manifest = repository.image(&reference);
            let artifacts = asked.and_then(|thread| thread.join().ok()?.ok());
            (manifest, artifacts)
        });
        let image = Self::of(name, repository, manifest)?;
        // The digest of an index names several images. A fault is met again, where its reason
        // counts.
        if let Some(artifacts) = artifacts.filter(|_| image.manifest.digest == reference) {
            let _ = image.artifacts.set(artifacts);
        }
        Ok(image)
    }

    fn of(
        name: String,
        repository: Repository,
        manifest: Result<ImageManifest, Fault>,
    ) -> Result<Self, ImageError> {
        let manifest = manifest.map_err(|fault| ImageError::Registry {
            name: name.clone(),
            fault,
        })?;
        Ok(Self {
            manifest,
            place: place_of(&name).to_owned(),
            name,
            repository,
            artifacts: OnceLock::new(),
            start: OnceLock::new(),
        })
    }

    /// The artifacts of this project that refer to the image. The list is asked for once: each part
    /// of it costs a round trip, and an image has many layers.
    fn artifacts(&self) -> Result<&[Artifact], ImageError> {
        if let Some(found) = self.artifacts.get() {
            return Ok(found);
        }
        let digest = &self.manifest.digest;
        let found = self.repository.artifacts(digest, &ARTIFACT_TYPES);
        let found = found.map_err(|fault| self.failed(fault))?;
        Ok(self.artifacts.get_or_init(|| found))
    }

    /// Name, repository and reference of an image.
    pub(crate) fn named(url: &str) -> Result<(String, Repository, String), ImageError> {
        let Some(Ok(location)) = Location::parse(url) else {
            return Err(ImageError::Name(url.chars().take(200).collect()));
        };
        let name = location.to_string();
        let Location::Oci {
            registry,
            repository,
            reference,
        } = location
        else {
            return Err(ImageError::Name(name));
        };
        match Repository::new(&registry, &repository, Retry::default()) {
            Ok(repository) => Ok((name, repository, reference)),
            Err(fault) => Err(ImageError::Registry { name, fault }),
        }
    }

    /// Registry and repository, as in a URL.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// A small blob of the image as a whole.
    pub(crate) fn small_blob(&self, sha256: &str, bytes_max: u64) -> Result<Vec<u8>, ImageError> {
        let bytes = self.repository.small_blob(sha256, bytes_max);
        bytes.map_err(|fault| self.failed(fault))
    }

    /// The manifest.
    pub(crate) fn manifest(&self) -> &ImageManifest {
        &self.manifest
    }

    /// URL of the image that a layer was converted to (`block pack`), where one lies next to the
    /// original; true if the layer lacks entries of directories.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn converted(&self, sha256: &str) -> Result<Option<(String, bool)>, ImageError> {
        let wanted = format!("sha256:{sha256}");
        let found = self
            .artifacts()?
            .iter()
            .find(|it| it.kind == IMAGE_LAYER_TYPE && it.annotations.get(LAYER) == Some(&wanted));
        Ok(found.map(|it| {
            let url = format!("oci://{}@{}", self.place, it.manifest);
            (url, it.annotations.contains_key(IMPLIED))
        }))
    }

    /// The layers, the lowest first: digest (64 digits), size in bytes, media type.
    #[must_use]
    pub fn layers(&self) -> &[(String, u64, String)] {
        &self.manifest.layers
    }

    /// True if its layers are archives, as those of containers are.
    #[must_use]
    pub fn is_of_containers(&self) -> bool {
        let mut layers = self.manifest.layers.iter();
        !self.manifest.layers.is_empty() && layers.all(|(.., kind)| kind.contains("tar"))
    }

    /// The blob of a layer.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn blob(&self, sha256: &str) -> Result<RemoteBlob, ImageError> {
        RemoteBlob::new(&self.repository, sha256).map_err(|fault| self.failed(fault))
    }

    /// Fetches a layer as a whole, from its first to its last byte: its index and contents are in
    /// `store` afterwards. `on_bytes` is called with the number of bytes that have come.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn fetch_whole(
        &self,
        store: &Store,
        sha256: &str,
        on_bytes: &mut dyn FnMut(u64),
    ) -> Result<Index, ImageError> {
        let blob = self.blob(sha256)?;
        let size_bytes = blob.size_bytes()?;
        let mut input = Ranges::new(size_bytes, |range| {
            on_bytes(range.start);
            blob.read(range)
        });
        Ok(store.fetch_whole(sha256, &mut input)?)
    }

    /// Makes a layer usable from `store`: by its index where one is here or, with `trust_index`,
    /// next to the image; otherwise by fetching it as a whole.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn prepare(
        &self,
        store: &Store,
        sha256: &str,
        trust_index: bool,
    ) -> Result<(), ImageError> {
        let is_whole = store.whole(sha256).is_some();
        let is_usable = store
            .index(sha256)
            // An index without places to begin would have each read fetch most of the layer.
            .is_some_and(|(index, is_trusted)| {
                is_whole || index.is_lazy() && (is_trusted || trust_index)
            });
        if is_usable {
            return Ok(());
        }
        // Whole contents without an index that can be read are proved: no index from elsewhere
        // takes the place of theirs.
        if trust_index && !is_whole {
            match self.pushed_index(sha256) {
                Ok(Some(index)) if index.is_lazy() => return Ok(store.keep_index(&index)?),
                Ok(_) => {}
                // The layer itself may still come.
                Err(error) => tracing::warn!("no index is taken: {error}"),
            }
        }
        self.fetch_whole(store, sha256, &mut |_| ()).map(|_| ())
    }

    /// True if a layer will be mounted after a short preparation: a small one, or one whose index
    /// may be used.
    pub(crate) fn is_soon_ready(&self, sha256: &str, trust_index: bool) -> bool {
        let is_converted = matches!(self.converted(sha256), Ok(Some(_)));
        let has_index = || trust_index && matches!(self.index_of(sha256), Ok(Some(_)));
        !is_converted && (self.small_layer(sha256).is_some() || has_index())
    }

    /// Makes a layer usable where it is small: as a whole, which is here sooner than an index and
    /// needs no server. False if it is not small.
    ///
    /// # Errors
    /// [`ImageError`].
    pub(crate) fn prepare_small(&self, store: &Store, sha256: &str) -> Result<bool, ImageError> {
        let Some(bytes) = self.small_layer(sha256) else {
            return Ok(false);
        };
        if store.whole(sha256).is_none() || store.index(sha256).is_none() {
            let blob = self.small_blob(sha256, bytes)?;
            store.fetch_whole(sha256, &mut &blob[..])?;
        }
        Ok(true)
    }

    /// The size of a layer that is fetched as a whole, since it is small.
    fn small_layer(&self, sha256: &str) -> Option<u64> {
        let mut layers = self.layers().iter();
        let (_, bytes, _) = layers.find(|(found, ..)| found == sha256)?;
        Some(*bytes).filter(|&bytes| bytes <= SMALL_LAYER_BYTES)
    }

    /// Opens a layer of the image that a URL names as a device, from `store`: by its index where
    /// one can be used, otherwise after it was fetched as a whole. The image's only layer is
    /// meant unless `digest` names one (`sha256:...`). Returns a name for people, too.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open_layer(
        url: &str,
        digest: Option<&str>,
        store: &Store,
        trust_index: bool,
    ) -> Result<(String, Arc<LayerDevice>), ImageError> {
        let is_usable = |sha256: &&str| {
            let index = store.index(sha256);
            index.is_some_and(|(_, is_trusted)| is_trusted || trust_index)
        };
        let given = digest.map(|digest| digest.strip_prefix("sha256:").ok_or(ImageError::Digest));
        let given = given.transpose()?;
        // With an index the image's manifest is not needed.
        let sha256 = match given.filter(is_usable) {
            Some(sha256) => sha256.to_owned(),
            None => {
                let image = Self::open(url)?;
                let sha256 = match (given, image.layers()) {
                    (Some(sha256), _) => sha256.to_owned(),
                    (None, [(sha256, ..)]) => sha256.clone(),
                    (None, layers) => {
                        let digests = layers.iter().map(|it| format!("sha256:{}", it.0));
                        return Err(ImageError::Several(digests.collect()));
                    }
                };
                image.prepare(store, &sha256, trust_index)?;
                sha256
            }
        };
        let blob = Self::blob_of(url, &sha256)?;
        let device = LayerDevice::open(store, &sha256, blob)?;
        Ok((format!("{url}#{}", &sha256[..12]), device))
    }

    /// Pushes the indexes of layers next to the image, as an artifact that refers to it; returns
    /// its digest.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn push_indexes(&self, indexes: &[Index]) -> Result<String, ImageError> {
        let blobs: Vec<_> = (indexes.iter())
            .map(|index| {
                let layer = (LAYER.to_owned(), format!("sha256:{}", index.layer()));
                (index.to_bytes(), BTreeMap::from([layer]))
            })
            .collect();
        let pushed = (self.repository).push_artifact(&self.manifest, INDEX_TYPE, &blobs);
        pushed.map_err(|fault| self.failed(fault))
    }

    /// The index of a layer that was pushed next to the image; `None` where there is none that can
    /// be used.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn pushed_index(&self, sha256: &str) -> Result<Option<Index>, ImageError> {
        let Some(found) = self.index_of(sha256)? else {
            return Ok(None);
        };
        let bytes = self.repository.small_blob(&found.sha256, found.size_bytes);
        let bytes = bytes.map_err(|fault| self.failed(fault))?;
        match Index::read(&bytes, sha256) {
            Ok(index) => Ok(Some(index)),
            Err(error) => {
                tracing::warn!("{}: {error}", self.name);
                Ok(None)
            }
        }
    }

    /// The artifact that is the index of a layer.
    fn index_of(&self, sha256: &str) -> Result<Option<&Artifact>, ImageError> {
        let wanted = format!("sha256:{sha256}");
        let is_wanted = |it: &&Artifact| {
            let is_of_layer = it.annotations.get(LAYER) == Some(&wanted);
            // The size is the registry's word; a larger one is not even asked for.
            it.kind == INDEX_TYPE && is_of_layer && it.size_bytes <= INDEX_BYTES_MAX
        };
        Ok(self.artifacts()?.iter().find(is_wanted))
    }

    /// Paths of files in the layers that the image's command reads first, as its configuration
    /// names them; none where it names no command.
    pub(crate) fn start_files(&self) -> Result<&[String], ImageError> {
        if let Some(found) = self.start.get() {
            return Ok(found);
        }
        let of = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap_or_default();
        let config = of(&self.manifest.text);
        let digest = config["config"]["digest"].as_str().unwrap_or_default();
        let Some(sha256) = digest.strip_prefix("sha256:").filter(|it| is_sha256(it)) else {
            return Ok(&[]);
        };
        let config = self.small_blob(sha256, CONFIG_BYTES_MAX)?;
        let found = start_files_of(&of(&config)["config"]);
        Ok(self.start.get_or_init(|| found))
    }

    fn failed(&self, fault: Fault) -> ImageError {
        ImageError::Registry {
            name: self.name.clone(),
            fault,
        }
    }
}

/// Paths that may be those of a command's files: its program in each folder that the environment
/// names, and each word that may be a path.
fn start_files_of(config: &Value) -> Vec<String> {
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().map_or(&[][..], Vec::as_slice).iter();
        all.filter_map(|it| Some(it.as_str()?.to_owned())).collect()
    };
    let command = [texts(&config["Entrypoint"]), texts(&config["Cmd"])].concat();
    let environment = texts(&config["Env"]);
    let path = environment.iter().find_map(|it| it.strip_prefix("PATH="));
    // The configuration has megabytes, and each word comes with each folder.
    let is_short = |it: &str| it.len() <= PATH_BYTES_MAX;
    let folder = config["WorkingDir"].as_str().filter(|it| is_short(it));
    let folder = folder.unwrap_or_default();
    let mut found = Vec::new();
    // A shell's command is one word here, and several there.
    let words = command.iter().flat_map(|it| it.split_ascii_whitespace());
    let words = words.filter(|it| !it.starts_with('-') && is_short(it));
    for word in words.take(WORDS_MAX) {
        match word.contains('/') {
            true if word.starts_with('/') => found.push(word.to_owned()),
            true => found.push(format!("{folder}/{word}")),
            false => {
                let folders = path.unwrap_or(PATH_DEFAULT).split(':').take(FOLDERS_MAX);
                let folders = folders.filter(|it| is_short(it));
                found.extend(folders.map(|folder| format!("{folder}/{word}")));
                found.push(format!("{folder}/{word}"));
            }
        }
    }
    found.retain(|it| !it.contains('\n'));
    found
}

/// Registry and repository of an image's name.
fn place_of(name: &str) -> &str {
    let name = name.strip_prefix("oci://").unwrap_or(name);
    let end = name.find('@').unwrap_or_else(|| {
        // A colon before the last slash begins a port.
        let path_at = name.rfind('/').unwrap_or(0);
        name[path_at..]
            .find(':')
            .map_or(name.len(), |it| path_at + it)
    });
    &name[..end]
}

/// Compressed bytes of a layer that is fetched as a whole: some milliseconds of a link, and less
/// than most indexes.
const SMALL_LAYER_BYTES: u64 = 512 << 10;
/// Bytes of an image's configuration; containerd reads 8 MiB.
const CONFIG_BYTES_MAX: u64 = 8 << 20;
/// Words of a command, and folders of a path, that are looked at.
const WORDS_MAX: usize = 16;
const FOLDERS_MAX: usize = 8;
/// Linux opens no longer path.
const PATH_BYTES_MAX: usize = 4096;
/// Search path for images that set none.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";
/// Artifacts of this project.
const ARTIFACT_TYPES: [&str; 2] = [IMAGE_LAYER_TYPE, INDEX_TYPE];
/// Media type of an index.
const INDEX_TYPE: &str = "application/vnd.sidecore.layer.index.v1";
/// Media type of a layer that is an image of this project.
pub(crate) const IMAGE_LAYER_TYPE: &str = "application/vnd.sidecore.layer.image.v1";
/// Annotation: the layer that an index or an image is of.
pub(crate) const LAYER: &str = "org.sidecore.layer.digest";
/// Annotation: the layer lacks entries of directories. No signature covers it; the UUID in the
/// image does ([`crate::tree::uuid_digits`]).
pub(crate) const IMPLIED: &str = "org.sidecore.layer.implied-directories";

/// A layer of an image in a registry that is mounted.
#[derive(Debug, Clone, Copy)]
pub struct LayerMount<'l> {
    /// The image's URL.
    pub image: &'l str,
    /// Digest of the layer; the image's only one unless given.
    pub digest: Option<&'l str>,
    /// Folder of layers and their indexes.
    pub layers: &'l Path,
    /// Use an index from the registry.
    pub trust_index: bool,
    /// Bytes a second at which the rest is fetched in the background; 0 for no bound.
    pub rate_bytes: u64,
}

impl LayerMount<'_> {
    /// Serves the layer at `target` until that is undone, and fetches its rest meanwhile. Blocks.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn serve(
        &self,
        target: &Target,
        options: FuseOptions,
        starter: &Starter<'_>,
    ) -> Result<(), ImageError> {
        let store = Store::open(self.layers)?;
        let (name, device) = Image::open_layer(self.image, self.digest, &store, self.trust_index)?;
        device.connect();
        device.fetch_start();
        let status = |ready: &Ready| {
            let place = ready.place.display().to_string();
            device.status(&name, target.way(), place)
        };
        let source: Arc<dyn BlockSource> = device.clone();
        let serve = |told: OnReady<'_>| {
            let ready = |ready: &Ready| -> io::Result<()> {
                told(ready)?;
                device.fetch_rest(self.rate_bytes);
                Ok(())
            };
            mount::serve(source, Path::new(&name), target, options, ready)
        };
        Ok(starter.run(status, |_| Ok(()), serve)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_of_a_command_are_looked_for_where_a_container_finds_them() {
        let config = json!({
            "Entrypoint": ["/init.sh", "-x"],
            "Cmd": ["python3", "app/main.py"],
            "Env": ["A=b", "PATH=/opt/bin:/bin"],
            "WorkingDir": "/srv",
        });
        let wanted = [
            "/init.sh",
            "/opt/bin/python3",
            "/bin/python3",
            "/srv/python3",
        ];
        let found = start_files_of(&config);
        assert_eq!(found[..4], wanted);
        assert_eq!(found[4..], ["/srv/app/main.py"]);
        let shell = json!({"Cmd": ["/bin/sh", "-c", "exec /opt/server --port 1"]});
        assert!(start_files_of(&shell).contains(&"/opt/server".to_owned()));
        let long = "x".repeat(1 << 20);
        let env = format!("PATH={long}:/bin");
        let long = json!({"Cmd": [&long, "sh"], "Env": [env], "WorkingDir": &long});
        assert_eq!(start_files_of(&long), ["/bin/sh", "/sh"]);
        // Other types, and none.
        for other in [json!({"Cmd": "sh", "Env": 3}), json!(null), json!([])] {
            assert!(start_files_of(&other).is_empty());
        }
    }
}
