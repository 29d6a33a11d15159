//! Conversion of an image of containers: each layer becomes an image of this project.
//!
//! Why here: such an image is read by its frames, checked by a signature, and needs no index of its
//! layers; versions of a layer have frames in common.
//!
//! In the repository lie afterwards: the original, unchanged; for each layer an artifact that
//! refers to the original's manifest, with the layer's image as its one blob; a manifest of all
//! images; and an index of both manifests, the original first. Other runtimes take that one.
//!
//! Must stay true: a layer is converted only from bytes that have its digest; one that does not fit
//! a file system stays as it is, and is unpacked as before.
//! Called from: one thread; blocks on disks and the network.
//! Source: OCI Image Format Specification 1.1, "Image Index", "Image Manifest".

use crate::build::Ranges;
use crate::image::{IMAGE_LAYER_TYPE, IMPLIED, Image, ImageError, LAYER};
use crate::layer::{LayerError, Store, sha256_of};
use crate::local::{Local, LocalError};
use crate::store::{DATA, read_bounded};
use crate::tree::CONTENTS_AT;
use ring::digest;
use serde_json::{Value, json};
use sidecore_bare::text::bytes;
use sidecore_block::inner::{Kind, Rules};
use sidecore_block::pack::{self, Existing, Guard, PackError, Source, Target};
use sidecore_block::trust::{TrustError, signer};
use sidecore_remote::fault::Fault;
use sidecore_remote::origin::oci::{INDEX_TYPE, MANIFEST_TYPE};
use sidecore_remote::{Descriptor, ImageManifest, Repository};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Reasons why an image is not converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The source or the destination.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The registry.
    #[error("cannot push to {name}: {fault}")]
    Push {
        /// The repository.
        name: String,
        /// The fault.
        fault: Fault,
    },
    /// A file of the scratch folder.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The source, in files.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A document of the source.
    #[error("{0}")]
    Document(String),
    /// Packing.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A key.
    #[error(transparent)]
    Key(#[from] TrustError),
}

/// An image of containers that is converted.
pub enum Original {
    /// One in a registry.
    Registry(Box<Image>),
    /// One in files of this machine.
    Local(Box<Local>),
}

/// A layer after the conversion.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ConvertedLayer {
    /// Digest of the original.
    pub digest: String,
    /// Bytes of the original's blob.
    pub blob_bytes: u64,
    /// Digest of the layer's image.
    pub image: Option<String>,
    /// Bytes of the image.
    pub stored_bytes: u64,
    /// Frames of the image.
    pub frames: u64,
    /// The reason why it stays as it is.
    pub reason: Option<String>,
}

/// The result of [`convert`].
#[derive(Debug, Clone, serde::Serialize)]
pub struct Converted {
    /// Digest of the index of both manifests.
    pub index: String,
    /// Digest of the original's manifest.
    pub original: String,
    /// Digest of the manifest of images.
    pub converted: String,
    /// The layers, the lowest first.
    pub layers: Vec<ConvertedLayer>,
}

/// The way layers are packed.
pub struct Packing<'a> {
    options: pack::Options,
    seal: Option<&'a [PathBuf]>,
    scratch: &'a Path,
}

impl<'a> Packing<'a> {
    /// Options of the images; private keys that sign the hash tree of each, without a tree where
    /// `seal` is `None`; and a folder for what is on its way: about the largest layer three times.
    ///
    /// # Errors
    /// [`TrustError`] of a key: an unreadable one should not cost an hour.
    pub fn new(
        options: pack::Options,
        seal: Option<&'a [PathBuf]>,
        scratch: &'a Path,
    ) -> Result<Self, TrustError> {
        seal.map(signer).transpose()?;
        Ok(Self {
            options,
            seal,
            scratch,
        })
    }
}

impl Original {
    /// An image in a registry (`oci://`), or in files ([`Local`]).
    ///
    /// # Errors
    /// [`ConvertError`].
    pub fn open(name: &str) -> Result<Self, ConvertError> {
        match name.starts_with("oci://") {
            true => Ok(Self::Registry(Box::new(Image::open(name)?))),
            false => Ok(Self::Local(Box::new(Local::open(name)?))),
        }
    }

    /// The image of containers that a name stands for: in files, which say so, or in a registry.
    /// `None` where it names another file or URL.
    ///
    /// # Errors
    /// [`ConvertError`].
    pub fn find(name: &str) -> Result<Option<Self>, ConvertError> {
        if Local::is_plainly(name) {
            return Ok(Some(Self::Local(Box::new(Local::open(name)?))));
        }
        if !name.starts_with("oci://") {
            return Ok(None);
        }
        let image = Image::open(name)?;
        let is_it = image.is_of_containers();
        Ok(is_it.then(|| Self::Registry(Box::new(image))))
    }

    /// The layers, the lowest first: digest (64 digits), size in bytes, media type.
    pub(crate) fn layers(&self) -> &[(String, u64, String)] {
        &self.manifest().layers
    }

    fn manifest(&self) -> &ImageManifest {
        match self {
            Self::Registry(image) => image.manifest(),
            Self::Local(local) => local.manifest(),
        }
    }

    /// A blob as a file in `scratch`.
    fn blob(&self, sha256: &str, scratch: &Path) -> Result<PathBuf, ConvertError> {
        let path = scratch.join("blob");
        let mut file = File::create(&path).map_err(of(&path))?;
        let copied = match self {
            Self::Local(local) => io::copy(&mut local.blob(sha256)?.0, &mut file),
            Self::Registry(image) => {
                let blob = image.blob(sha256)?;
                let size_bytes = blob.size_bytes().map_err(ImageError::from)?;
                let mut input = Ranges::new(size_bytes, |range| blob.read(range));
                io::copy(&mut input, &mut file)
            }
        };
        copied.map_err(of(&path))?;
        Ok(path)
    }
}

impl ConvertedLayer {
    /// The same on a line for people.
    #[must_use]
    pub fn line(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{}: left as it is: {reason}", self.digest),
            None => format!(
                "{}: {} of {} in {} frames",
                self.digest,
                bytes(self.stored_bytes),
                bytes(self.blob_bytes),
                self.frames
            ),
        }
    }
}

/// Converts an image, and pushes all to `to` (`oci://REGISTRY/REPOSITORY:TAG`). `on_layer` is
/// called after each layer.
///
/// # Errors
/// [`ConvertError`]; blobs that were pushed before stay in the registry, under no tag.
pub fn convert(
    original: &Original,
    to: &str,
    packing: &Packing<'_>,
    on_layer: &mut dyn FnMut(&ConvertedLayer),
) -> Result<Converted, ConvertError> {
    let (name, repository, tag) = Image::named(to)?;
    let pushing = Pushing {
        name,
        repository,
        original,
        packing,
    };
    let subject = original.manifest();
    let document: Value = serde_json::from_slice(&subject.text)
        .map_err(|error| ConvertError::Document(format!("the manifest: {error}")))?;
    let config = pushing.copy_config(&document)?;
    let mut layers = Vec::new();
    let mut images = Vec::new();
    let mut made = Vec::new();
    for (at, (sha256, blob_bytes, _)) in subject.layers.iter().enumerate() {
        let blob = original.blob(sha256, packing.scratch)?;
        let original_digest = format!("sha256:{sha256}");
        // The original goes along: other runtimes take it from the same repository.
        pushing.push_file(&original_digest, &blob)?;
        let mut layer = ConvertedLayer {
            digest: original_digest,
            blob_bytes: *blob_bytes,
            image: None,
            stored_bytes: 0,
            frames: 0,
            reason: None,
        };
        match pushing.layer(&blob, sha256, &mut layer)? {
            Some(image) => {
                images.push(serde_json::to_value(&image).unwrap_or_default());
                made.push(image);
            }
            None => images.push(document["layers"][at].clone()),
        }
        on_layer(&layer);
        layers.push(layer);
    }
    // Registries take a manifest once all that it names is there.
    pushing.push_manifest(&subject.digest, &subject.media_type, &subject.text)?;
    for image in made {
        // An artifact of its own for each layer: the snapshotter looks for one layer's image by its
        // annotation.
        let pushed = pushing
            .repository
            .push_referrer(subject, IMAGE_LAYER_TYPE, vec![image]);
        pushed.map_err(|fault| pushing.failed(fault))?;
    }
    let converted = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": document["config"],
        "layers": images,
        "annotations": { ORIGINAL: subject.digest },
    });
    let converted = converted.to_string().into_bytes();
    let converted_digest = format!("sha256:{}", sha256_of(&converted));
    pushing.push_manifest(&converted_digest, MANIFEST_TYPE, &converted)?;
    let index = index_of(subject, &config, &converted_digest, converted.len());
    let index_digest = format!("sha256:{}", sha256_of(&index));
    pushing.push_manifest(&index_digest, INDEX_TYPE, &index)?;
    pushing.push_manifest(&tag, INDEX_TYPE, &index)?;
    Ok(Converted {
        index: index_digest,
        original: subject.digest.clone(),
        converted: converted_digest,
        layers,
    })
}

/// The index of an original and its images; the original is first.
fn index_of(
    subject: &ImageManifest,
    config: &Value,
    converted: &str,
    converted_bytes: usize,
) -> Vec<u8> {
    let platform = json!({
        "architecture": config["architecture"],
        "os": config["os"],
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [
            {
                "mediaType": subject.media_type,
                "digest": subject.digest,
                "size": subject.text.len(),
                "platform": platform,
            },
            {
                "mediaType": MANIFEST_TYPE,
                "artifactType": IMAGE_LAYER_TYPE,
                "digest": converted,
                "size": converted_bytes,
                // No runtime takes it for an image of this machine.
                "platform": { "architecture": "unknown", "os": "unknown" },
                "annotations": { ORIGINAL: subject.digest },
            },
        ],
    });
    index.to_string().into_bytes()
}

/// A conversion on its way.
struct Pushing<'a> {
    name: String,
    repository: Repository,
    original: &'a Original,
    packing: &'a Packing<'a>,
}

impl Pushing<'_> {
    fn failed(&self, fault: Fault) -> ConvertError {
        ConvertError::Push {
            name: self.name.clone(),
            fault,
        }
    }

    fn push_manifest(&self, reference: &str, kind: &str, text: &[u8]) -> Result<(), ConvertError> {
        let pushed = self.repository.push_manifest(reference, kind, text);
        pushed.map(drop).map_err(|fault| self.failed(fault))
    }

    fn push_file(&self, digest: &str, path: &Path) -> Result<(), ConvertError> {
        let pushed = self.repository.push_file(digest, path);
        pushed.map_err(|fault| self.failed(fault))
    }

    /// Pushes the image's configuration; returns it.
    fn copy_config(&self, manifest: &Value) -> Result<Value, ConvertError> {
        let digest = manifest["config"]["digest"].as_str().unwrap_or_default();
        let none = || ConvertError::Document("the manifest names no configuration".into());
        let sha256 = digest.strip_prefix("sha256:").ok_or_else(none)?;
        let path = self.original.blob(sha256, self.packing.scratch)?;
        let text = read(&path)?;
        if sha256_of(&text) != sha256 {
            let text = "the image's configuration has another digest than its manifest says";
            return Err(ConvertError::Document(text.into()));
        }
        self.push_file(digest, &path)?;
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// Packs a layer and pushes its image; `None` where it stays as it is.
    fn layer(
        &self,
        blob: &Path,
        sha256: &str,
        layer: &mut ConvertedLayer,
    ) -> Result<Option<Descriptor>, ConvertError> {
        let scratch = self.packing.scratch;
        let (device, image) = (scratch.join("device"), scratch.join("image"));
        let implied = match make_device(blob, sha256, scratch, &device) {
            Ok(implied) => implied,
            Err(ConvertError::Image(ImageError::Layer(error @ LayerError::Build(_)))) => {
                // One layer that fits no file system leaves the others lazy; containerd unpacks
                // this one.
                layer.reason = Some(error.to_string());
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let source = Source::open_by(&device, Kind::Erofs, &Rules::default(), scratch)?;
        let target = Target::Path(&image, Existing::Replace);
        // A signer signs one root.
        let seal = self.packing.seal.map(signer).transpose()?;
        let guard = Guard { seal, lock: None };
        let packed = pack::pack_guarded(source, target, &self.packing.options, guard, &mut |_| ())?;
        let digest = format!("sha256:{}", digest_of(&image).map_err(of(&image))?);
        self.push_file(&digest, &image)?;
        let mut annotations = BTreeMap::from([(LAYER.to_owned(), layer.digest.clone())]);
        if implied {
            annotations.insert(IMPLIED.to_owned(), "true".to_owned());
        }
        let descriptor = Descriptor {
            media_type: IMAGE_LAYER_TYPE.into(),
            digest: digest.clone(),
            size: packed.stored_bytes,
            artifact_type: None,
            annotations,
            platform: None,
        };
        layer.image = Some(digest);
        layer.stored_bytes = packed.stored_bytes;
        layer.frames = packed.frames;
        for path in [device, image] {
            // Scratch is sized for one layer at a time.
            fs::remove_file(&path).map_err(of(&path))?;
        }
        Ok(Some(descriptor))
    }
}

/// Writes the file system of a layer to a file, its contents right behind its metadata. True if the
/// layer lacks entries of directories.
fn make_device(
    blob: &Path,
    sha256: &str,
    scratch: &Path,
    device: &Path,
) -> Result<bool, ConvertError> {
    let layer = |error| ConvertError::Image(ImageError::Layer(error));
    let store = Store::open(&scratch.join("layers")).map_err(layer)?;
    let mut input = File::open(blob).map_err(of(blob))?;
    let index = store.fetch_whole(sha256, &mut input).map_err(layer)?;
    let tree = index
        .tree_at(true)
        .map_err(|error| layer(LayerError::from(error)))?;
    let folder = store.folder(sha256).map_err(layer)?;
    let mut out = File::create(device).map_err(of(device))?;
    out.write_all(&tree.metadata).map_err(of(device))?;
    let data = folder.join(DATA);
    let mut contents = File::open(&data).map_err(of(&data))?;
    contents
        .seek(SeekFrom::Start(CONTENTS_AT))
        .map_err(of(&data))?;
    let begin = tree.extents.first().map_or(tree.device_bytes, |first| {
        // Extents are in the order of their places.
        first.device_at
    });
    out.seek(SeekFrom::Start(begin)).map_err(of(device))?;
    let mut contents = contents.take(tree.device_bytes.saturating_sub(begin));
    io::copy(&mut contents, &mut out).map_err(of(device))?;
    out.set_len(tree.device_bytes).map_err(of(device))?;
    fs::remove_dir_all(&folder).map_err(of(&folder))?;
    Ok(tree.has_implied_directories)
}

fn digest_of(path: &Path) -> io::Result<String> {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            len => context.update(&buffer[..len]),
        }
    }
    Ok(crate::index::hex(context.finish().as_ref()))
}

fn read(path: &Path) -> Result<Vec<u8>, ConvertError> {
    read_bounded(path, DOCUMENT_BYTES_MAX).map_err(of(path))
}

fn of(path: &Path) -> impl FnOnce(io::Error) -> ConvertError {
    let path = path.to_owned();
    move |source| ConvertError::File { path, source }
}

/// Annotation: the manifest that was converted.
const ORIGINAL: &str = "org.sidecore.original";
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
