//! A repository of a registry: manifests of images, blobs, and artifacts that refer to an image.
//!
//! Why here: an image of containers has many layers, none of which is "the image" that the rest of
//! this folder finds; and an index of its layers is pushed next to it.
//! Must stay true: a document or small blob is returned only if its digest is the one asked for, or
//! the one that the registry gave for a tag; a registry's answer takes memory within the caller's
//! bound.
//! What others list under a tag stays there: it is replaced only by a list that has all of it.
//! Called from: any thread; blocks.
//! Source: OCI Distribution Specification 1.1, "Pulling", "Pushing", "Referrers Tag Schema".

use super::documents::{MANIFEST_BYTES_MAX, Manifest, sha256_digits};
use super::{Access, Blob, Fault, first_of, text_of};
use crate::location::{is_path, is_sha256};
use crate::origin::{Origin, least_pace};
use crate::{Retry, patiently};
use reqwest::Url;
use reqwest::blocking::Body;
use reqwest::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use ring::digest;
use serde::{Deserialize, Serialize};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_block::trust::digits_of;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A repository, and the permission to use it.
#[derive(Clone)]
pub struct Repository {
    /// Its servers, in the order in which they are asked; the registry itself is last.
    all: Vec<Arc<Access>>,
    retry: Retry,
}

/// The manifest of an image for this machine.
pub struct ImageManifest {
    /// Its digest (`sha256:` and 64 digits).
    pub digest: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Type of the document.
    pub media_type: String,
    /// The layers, the lowest first: digest without `sha256:`, size in bytes, media type.
    pub layers: Vec<(String, u64, String)>,
    /// The document itself.
    pub text: Vec<u8>,
}

/// A blob of an artifact that refers to an image.
#[derive(Debug, Clone)]
pub struct Artifact {
    /// Digest of the artifact's manifest (`sha256:` and 64 digits).
    pub manifest: String,
    /// Type of the artifact.
    pub kind: String,
    /// Digest of its bytes, without `sha256:`.
    pub sha256: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

impl ImageManifest {
    /// The manifest of a document.
    ///
    /// # Errors
    /// [`Fault::Final`]: it is none.
    pub fn of_text(text: Vec<u8>) -> Result<Self, Fault> {
        let layers = Manifest::read(&text, "", None)?.all_layers()?.into_iter();
        let kind: Kind = serde_json::from_slice(&text).unwrap_or_default();
        Ok(Self {
            digest: sha256_of(&text),
            size_bytes: text.len().to_u64(),
            media_type: (kind.media_type).unwrap_or_else(|| MANIFEST_TYPE.into()),
            layers: layers
                .map(|(layer, kind)| (layer.sha256, layer.size_bytes, kind))
                .collect(),
            text,
        })
    }
}

impl Repository {
    /// A repository by the name of its registry and its path there. Sends nothing yet.
    ///
    /// # Errors
    /// The names cannot be parts of a URL.
    pub fn new(registry: &str, repository: &str, retry: Retry) -> Result<Self, Fault> {
        if !is_path(registry, repository) {
            return Err(Fault::Final("it names no repository of a registry".into()));
        }
        Ok(Self {
            all: Access::all(registry, repository, &retry)?,
            retry,
        })
    }

    /// The manifest that a tag or a digest names: of an index, the one for this machine.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn image(&self, reference: &str) -> Result<ImageManifest, Fault> {
        let (mut text, given) = self.document(reference)?;
        let manifest = Manifest::read(&text, reference, given.as_deref())?;
        // One step only: an index of indexes could go on for ever.
        if let Some(digest) = manifest.for_this_machine() {
            let digest = digest?;
            let (inner, given) = self.document(&digest)?;
            Manifest::read(&inner, &digest, given.as_deref())?;
            text = inner;
        }
        ImageManifest::of_text(text)
    }

    /// Requests for ranges of a blob, to each of its servers.
    pub(crate) fn origins(&self, sha256: &str) -> Result<Vec<Origin>, Fault> {
        let origin = |access: &Arc<Access>| {
            let blob = Blob {
                url: blob_url(access, sha256)?,
                sha256: sha256.to_owned(),
                size_bytes: None,
                access: Arc::clone(access),
            };
            Ok(Origin::of_blob(blob, &self.retry))
        };
        self.all.iter().map(origin).collect()
    }

    /// The server that takes what is pushed.
    fn upstream(&self) -> Result<&Access, Fault> {
        let mut all = self.all.iter().rev();
        let found = all.find(|access| access.host.pushes);
        let none = || Fault::Final("hosts.toml names no server that takes what is pushed".into());
        found.map(|it| &**it).ok_or_else(none)
    }

    pub(crate) fn retry(&self) -> &Retry {
        &self.retry
    }

    /// The blobs of the artifacts of these types that refer to the manifest `subject`.
    ///
    /// # Errors
    /// [`Fault`]; an image without artifacts has an empty list.
    pub fn artifacts(&self, subject: &str, kinds: &[&str]) -> Result<Vec<Artifact>, Fault> {
        // A mirror may have none of them: the first server that has some counts.
        let mut found = Vec::new();
        for access in &self.all {
            match self.artifacts_at(access, subject, kinds) {
                Ok(blobs) => found = blobs,
                Err(fault) if access.host.is_mirror => tracing::info!("{fault}"),
                Err(fault) => return Err(fault),
            }
            if !found.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    fn artifacts_at(
        &self,
        access: &Access,
        subject: &str,
        kinds: &[&str],
    ) -> Result<Vec<Artifact>, Fault> {
        let api = access.url(&format!("referrers/{subject}"))?;
        // At the same time: a registry has one of the two, and to learn which costs a round trip.
        let (own, tag) = (self.clone(), tag_of(subject));
        let thread = std::thread::Builder::new().name("referrers".into());
        let tagged = thread.spawn(move || own.document(&tag));
        let response = access.send(&|| access.client.get(api.clone()))?;
        let index = match response.status().as_u16() {
            200 => text_of(response, MANIFEST_BYTES_MAX, access.silence_max)?,
            // A registry without that interface: clients keep the list under a tag.
            _ => match tagged.map(std::thread::JoinHandle::join) {
                Ok(Ok(Ok((text, _)))) => text,
                Ok(Ok(Err(Fault::Final(_)))) => return Ok(Vec::new()),
                Ok(Ok(Err(passing))) => return Err(passing),
                Ok(Err(_)) => return Err(Fault::Passing("a request panicked".into())),
                Err(error) => return Err(Fault::Passing(format!("no thread: {error}"))),
            },
        };
        let index: Index = serde_json::from_slice(&index).unwrap_or_default();
        let mut blobs = Vec::new();
        for kind in kinds {
            // Many of one type must not hide those of the next.
            let blobs_max = blobs.len() + ARTIFACTS_MAX;
            let all: Vec<_> = newest(&index, kind).collect();
            // Some at a time: each costs a round trip.
            for some in all.chunks(ARTIFACTS_AT_ONCE) {
                blobs.extend(self.artifacts_of(some, kind)?);
                if blobs.len() > blobs_max {
                    break;
                }
            }
        }
        Ok(blobs)
    }

    /// The blobs of several artifacts of type `kind`, in their order.
    fn artifacts_of(&self, all: &[&Descriptor], kind: &str) -> Result<Vec<Artifact>, Fault> {
        let Some((first, others)) = all.split_first() else {
            return Ok(Vec::new());
        };
        std::thread::scope(|scope| {
            let ask = |found| {
                let thread = std::thread::Builder::new().name("artifact".into());
                (
                    found,
                    thread.spawn_scoped(scope, move || self.artifact(found, kind)),
                )
            };
            let asked: Vec<_> = others.iter().map(|found| ask(*found)).collect();
            let mut blobs = self.artifact(first, kind)?;
            for (found, thread) in asked {
                let answer = thread.ok().and_then(|thread| thread.join().ok());
                // No thread could be started.
                blobs.extend(answer.unwrap_or_else(|| self.artifact(found, kind))?);
            }
            Ok(blobs)
        })
    }

    /// The blobs of an artifact of type `kind`; none where its document cannot be read.
    fn artifact(&self, found: &Descriptor, kind: &str) -> Result<Vec<Artifact>, Fault> {
        let (text, _) = self.document(&found.digest)?;
        let document = serde_json::from_slice::<Document>(&text);
        let layers = document.map_or_else(|_| Vec::new(), |it| it.layers);
        let blobs = layers.into_iter().filter_map(|it| {
            let sha256 = it.digest.strip_prefix("sha256:")?.to_owned();
            is_sha256(&sha256).then_some(Artifact {
                manifest: found.digest.clone(),
                kind: kind.to_owned(),
                sha256,
                size_bytes: it.size,
                annotations: it.annotations,
            })
        });
        Ok(blobs.collect())
    }

    /// A whole blob of at most `bytes_max`, checked by its digest.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn small_blob(&self, sha256: &str, bytes_max: u64) -> Result<Vec<u8>, Fault> {
        let origins = self.origins(sha256)?;
        patiently(&self.retry, 3, || {
            let mut last = Fault::Final("the registry has no server".into());
            for origin in &origins {
                let silence_max = self.retry.attempt_max;
                let bytes = origin
                    .get_whole()
                    .and_then(|response| text_of(response, bytes_max, silence_max));
                let is_it = |bytes: &Vec<u8>| {
                    digits_of(digest::digest(&digest::SHA256, bytes).as_ref()) == sha256
                };
                match bytes {
                    Ok(bytes) if is_it(&bytes) => return Ok(bytes),
                    Ok(_) => last = Fault::Passing("a blob has another digest".into()),
                    Err(fault) => last = fault,
                }
            }
            Err(last)
        })
    }

    /// Pushes an artifact of type `kind` that refers to `subject`, with blobs and the annotations
    /// of each; returns its digest.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn push_artifact(
        &self,
        subject: &ImageManifest,
        kind: &str,
        blobs: &[(Vec<u8>, BTreeMap<String, String>)],
    ) -> Result<String, Fault> {
        let mut layers = Vec::new();
        for (bytes, annotations) in blobs {
            self.push_blob(bytes)?;
            layers.push(descriptor(bytes, kind, annotations.clone()));
        }
        self.push_referrer(subject, kind, layers)
    }

    /// As [`Self::push_artifact`], with blobs that are there already.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn push_referrer(
        &self,
        subject: &ImageManifest,
        kind: &str,
        layers: Vec<Descriptor>,
    ) -> Result<String, Fault> {
        let empty = b"{}".to_vec();
        self.push_blob(&empty)?;
        let document = Document {
            schema_version: 2,
            media_type: MANIFEST_TYPE.into(),
            artifact_type: Some(kind.into()),
            config: Some(descriptor(&empty, EMPTY_TYPE, BTreeMap::new())),
            layers,
            subject: Some(Descriptor {
                media_type: subject.media_type.clone(),
                digest: subject.digest.clone(),
                size: subject.size_bytes,
                artifact_type: None,
                annotations: BTreeMap::new(),
                platform: None,
            }),
        };
        let text = json(&document)?;
        let digest = sha256_of(&text);
        if self.push_manifest(&digest, MANIFEST_TYPE, &text)? {
            return Ok(digest);
        }
        // The registry does not list it by itself.
        let tag = tag_of(&subject.digest);
        let mut index = self.listed(&tag)?;
        index.schema_version = 2;
        index.media_type = INDEX_TYPE.into();
        index.manifests.retain(|it| it.digest != digest);
        index.manifests.push(Descriptor {
            artifact_type: Some(kind.into()),
            ..descriptor(&text, MANIFEST_TYPE, BTreeMap::new())
        });
        self.push_manifest(&tag, INDEX_TYPE, &json(&index)?)?;
        Ok(digest)
    }

    /// The artifacts that a tag lists on the server that takes what is pushed; none only where that
    /// server has no such tag. A mirror may be behind, and a fault is no empty list: signatures and
    /// the like of others would be lost with it.
    fn listed(&self, tag: &str) -> Result<Index, Fault> {
        let Some(text) = self.tagged(tag, INDEX_TYPE)? else {
            return Ok(Index::default());
        };
        serde_json::from_slice(&text).map_err(|error| {
            let text = format!("the list of artifacts under the tag {tag} cannot be read: {error}");
            Fault::Final(text)
        })
    }

    /// The document of a type under a tag, at the server that takes what is pushed; `None` only
    /// where that server has no such tag.
    pub(crate) fn tagged(&self, tag: &str, kind: &str) -> Result<Option<Vec<u8>>, Fault> {
        let from = self.upstream()?;
        let url = from.url(&format!("manifests/{tag}"))?;
        patiently(&self.retry, 2, || {
            let request = || from.client.get(url.clone()).header(ACCEPT, kind);
            let response = from.send(&request)?;
            match response.status().as_u16() {
                200 => text_of(response, MANIFEST_BYTES_MAX, from.silence_max).map(Some),
                404 => Ok(None),
                status => Err(Fault::of_status(status, "a request for what a tag names")),
            }
        })
    }

    fn document(&self, reference: &str) -> Result<(Vec<u8>, Option<String>), Fault> {
        patiently(&self.retry, 2, || {
            first_of(&self.all, reference, |access| {
                let got = access.document(reference)?;
                let found = sha256_of(&got.0);
                match reference.starts_with("sha256:") && found != reference {
                    true => Err(Fault::Final(format!(
                        "the manifest's digest is {found}, not {reference}"
                    ))),
                    false => Ok(got),
                }
            })
        })
    }

    /// Pushes a blob, unless it is there.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn push_blob(&self, bytes: &[u8]) -> Result<(), Fault> {
        let digest = sha256_of(bytes);
        let to = self.upstream()?;
        self.push_body(to, &digest, bytes.len().to_u64(), &|| {
            Ok(bytes.to_vec().into())
        })
    }

    /// Pushes a file as the blob of its digest (`sha256:` and 64 digits), unless it is there.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn push_file(&self, digest: &str, path: &Path) -> Result<(), Fault> {
        let failed = |error| Fault::Final(format!("cannot read {}: {error}", path.display()));
        let size_bytes = std::fs::metadata(path).map_err(failed)?.len();
        let body = || {
            let file = std::fs::File::open(path).map_err(failed)?;
            Ok(Body::sized(file, size_bytes))
        };
        self.push_body(self.upstream()?, digest, size_bytes, &body)
    }

    fn push_body(
        &self,
        to: &Access,
        digest: &str,
        size_bytes: u64,
        body: &dyn Fn() -> Result<Body, Fault>,
    ) -> Result<(), Fault> {
        let url = blob_url(to, digest.trim_start_matches("sha256:"))?;
        let found = to.send(&|| to.client.head(url.clone()))?;
        if found.status().is_success() {
            return Ok(());
        }
        let begin = to.url("blobs/uploads/")?;
        let response = to.send(&|| {
            let request = to.client.post(begin.clone());
            request.header(CONTENT_LENGTH, 0)
        })?;
        let status = response.status().as_u16();
        let place = response.headers().get(LOCATION);
        let place = place.and_then(|it| it.to_str().ok());
        let Some(mut place) = place.and_then(|it| begin.join(it).ok()) else {
            return Err(Fault::of_status(status, "the beginning of an upload"));
        };
        // The token is sent along.
        if place.origin() != begin.origin() {
            return Err(Fault::Final("an upload is to go to another server".into()));
        }
        place.query_pairs_mut().append_pair("digest", digest);
        // Read before the request: what fails there has its own reason.
        body()?;
        let time = self.retry.attempt_max + least_pace(size_bytes.to_usize());
        let response = to.send(&|| {
            let request = to.client.put(place.clone()).timeout(time);
            let request = request.header(CONTENT_TYPE, "application/octet-stream");
            match body() {
                Ok(body) => request.body(body),
                Err(_) => request,
            }
        })?;
        match response.status().as_u16() {
            201 => Ok(()),
            status => Err(Fault::of_status(status, "an upload")),
        }
    }

    /// Pushes a manifest; true if the registry lists it with its subject.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn push_manifest(&self, reference: &str, kind: &str, text: &[u8]) -> Result<bool, Fault> {
        let to = self.upstream()?;
        let url = to.url(&format!("manifests/{reference}"))?;
        let response = to.send(&|| {
            let request = to.client.put(url.clone()).body(text.to_vec());
            request.header(CONTENT_TYPE, kind)
        })?;
        match response.status().as_u16() {
            201 => Ok(response.headers().contains_key("oci-subject")),
            status => Err(Fault::of_status(status, "a push of a manifest")),
        }
    }
}

/// The artifacts of a type in a registry's list, the newest first: it is last there. Each costs a
/// request, so their number is bounded; what is no digest would be asked for without a check.
fn newest<'a>(index: &'a Index, kind: &'a str) -> impl Iterator<Item = &'a Descriptor> {
    let is_kind = move |it: &&Descriptor| it.artifact_type.as_deref() == Some(kind);
    let of_kind = index.manifests.iter().filter(is_kind).rev();
    let named = of_kind.filter(|it| sha256_digits(&it.digest).is_some());
    named.take(ARTIFACTS_MAX)
}

fn blob_url(access: &Access, sha256: &str) -> Result<Url, Fault> {
    match is_sha256(sha256) {
        true => access.url(&format!("blobs/sha256:{sha256}")),
        false => Err(Fault::Final("a digest is not of SHA-256".into())),
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    media_type: Option<String>,
}

/// The name of a blob or a manifest in another document.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Type of its bytes.
    #[serde(default)]
    pub media_type: String,
    /// `sha256:` and 64 digits.
    pub digest: String,
    /// Its size in bytes.
    pub size: u64,
    /// Type of an artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Machines that an image is for, as its index says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    artifact_type: Option<String>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<Descriptor>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

fn descriptor(bytes: &[u8], kind: &str, annotations: BTreeMap<String, String>) -> Descriptor {
    Descriptor {
        media_type: kind.into(),
        digest: sha256_of(bytes),
        size: bytes.len().to_u64(),
        artifact_type: None,
        annotations,
        platform: None,
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(value).map_err(|error| Fault::Final(error.to_string()))
}

fn sha256_of(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    format!("sha256:{}", digits_of(digest.as_ref()))
}

/// The tag under which clients list what refers to a manifest.
fn tag_of(digest: &str) -> String {
    digest.replace(':', "-")
}

/// Media type of a manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an index of manifests.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
/// Artifacts of one image, and blobs of them, that are looked at.
const ARTIFACTS_MAX: usize = 1024;
/// Artifacts whose documents are asked for at once.
const ARTIFACTS_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_artifacts_costs_a_bounded_number_of_requests() {
        let listed = |text: &[u8]| Descriptor {
            artifact_type: Some("kind".into()),
            ..descriptor(text, MANIFEST_TYPE, BTreeMap::new())
        };
        let mut index = Index::default();
        for number in 0..5000_u32 {
            index.manifests.push(listed(&number.to_le_bytes()));
        }
        let last = sha256_of(&4999_u32.to_le_bytes());
        for digest in ["latest", "../../other/manifests/x", "sha256:x"] {
            index.manifests.push(Descriptor {
                digest: digest.into(),
                ..listed(b"")
            });
        }
        let found: Vec<_> = newest(&index, "kind").collect();
        assert_eq!((found.len(), &found[0].digest), (ARTIFACTS_MAX, &last));
        assert_eq!(newest(&index, "other").count(), 0);
    }
}
