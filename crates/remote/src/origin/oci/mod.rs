//! A layer in a registry: the manifest that names it, checked by its digest, and the token that
//! lets us read it.
//!
//! Must stay true: a manifest is believed only if it has the digest that it was asked for by, or
//! that the registry gave for its tag; a token goes to the registry alone.
//! Source: OCI Distribution Specification 1.1, OCI Image Format Specification 1.1; the token
//! protocol as the Distribution project documents it ("Token Authentication Specification").

use super::{Fault, parse, with_token};
use parking_lot::Mutex;
use reqwest::Url;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{ACCEPT, AUTHORIZATION, WWW_AUTHENTICATE};
use ring::digest;
use serde::Deserialize;
use sidecore_block::trust::digits_of;
use std::io::Read;

/// A layer.
pub(super) struct Blob {
    access: Access,
    url: Url,
    sha256: String,
    size_bytes: u64,
}

/// Right to read a repository.
struct Access {
    token: Mutex<Option<String>>,
    /// `Basic` credentials for the registry, base64, where `docker login` left some.
    basic: Option<String>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    size: u64,
    #[serde(default)]
    media_type: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Blob {
    /// Asks the registry for the manifest, and finds the layer that is an image.
    pub(super) fn find(
        client: &Client,
        registry: &str,
        repository: &str,
        reference: &str,
    ) -> Result<Self, Fault> {
        let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
        // As other clients have it: a registry of this machine has no certificate.
        let scheme = match host {
            "localhost" | "127.0.0.1" | "[::1]" => "http",
            _ => "https",
        };
        let (place, repository) = match registry {
            "docker.io" if !repository.contains('/') => {
                ("registry-1.docker.io", format!("library/{repository}"))
            }
            "docker.io" => ("registry-1.docker.io", repository.to_owned()),
            other => (other, repository.to_owned()),
        };
        let base = format!("{scheme}://{place}/v2/{repository}");
        let access = Access {
            token: Mutex::new(None),
            basic: basic_of(registry),
        };
        let mut manifest = access.manifest(client, &base, reference)?;
        if !manifest.manifests.is_empty() {
            let digest = for_this_machine(&manifest.manifests)?;
            manifest = access.manifest(client, &base, &digest)?;
        }
        let layer = the_image(manifest.layers)?;
        let Some(sha256) = layer
            .digest
            .strip_prefix("sha256:")
            .filter(|it| it.len() == 64)
        else {
            let text = format!("the layer's digest is {}, not of SHA-256", layer.digest);
            return Err(Fault::Final(text));
        };
        Ok(Self {
            url: parse(&format!("{base}/blobs/{}", layer.digest))?,
            sha256: sha256.to_ascii_lowercase(),
            size_bytes: layer.size,
            access,
        })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn sha256(&self) -> &str {
        &self.sha256
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Sends a request with the token, or a new one where that is refused.
    pub(super) fn send(
        &self,
        client: &Client,
        request: &dyn Fn() -> RequestBuilder,
    ) -> Result<Response, Fault> {
        self.access.send(client, request)
    }
}

impl Access {
    fn send(
        &self,
        client: &Client,
        request: &dyn Fn() -> RequestBuilder,
    ) -> Result<Response, Fault> {
        let token = self.token.lock().clone();
        let first = match (&token, &self.basic) {
            (None, Some(basic)) => request().header(AUTHORIZATION, format!("Basic {basic}")),
            _ => with_token(request(), token.as_deref()),
        };
        let response = first.send()?;
        if response.status().as_u16() != 401 {
            return Ok(response);
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE);
        let challenge = challenge.and_then(|value| value.to_str().ok());
        let Some(challenge) = challenge.and_then(Challenge::parse) else {
            return Ok(response);
        };
        let token = self.new_token(client, &challenge)?;
        *self.token.lock() = Some(token.clone());
        Ok(with_token(request(), Some(&token)).send()?)
    }

    fn new_token(&self, client: &Client, challenge: &Challenge) -> Result<String, Fault> {
        let mut url = parse(&challenge.realm)?;
        for (name, value) in &challenge.parameters {
            url.query_pairs_mut().append_pair(name, value);
        }
        let mut request = client.get(url);
        if let Some(basic) = &self.basic {
            request = request.header(AUTHORIZATION, format!("Basic {basic}"));
        }
        let response = request.send()?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(Fault::of_status(status, "a request for a token"));
        }
        let text = text_of(response)?;
        let token: Option<Token> = serde_json::from_slice(&text).ok();
        token
            .and_then(|it| it.token.or(it.access_token))
            .ok_or_else(|| Fault::Final("the registry's token service gave no token".into()))
    }

    fn manifest(&self, client: &Client, base: &str, reference: &str) -> Result<Manifest, Fault> {
        let url = parse(&format!("{base}/manifests/{reference}"))?;
        let request = || client.get(url.clone()).header(ACCEPT, MANIFESTS);
        let response = self.send(client, &request)?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(Fault::of_status(status, "a request for the manifest"));
        }
        let header = response.headers().get("docker-content-digest");
        let given = header
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let text = text_of(response)?;
        let found = digits_of(digest::digest(&digest::SHA256, &text).as_ref());
        let asked = reference
            .starts_with("sha256:")
            .then(|| reference.to_owned());
        for expected in [asked, given].into_iter().flatten() {
            let expected = expected.to_ascii_lowercase();
            if expected
                .strip_prefix("sha256:")
                .is_some_and(|it| it != found)
            {
                let text = format!("the manifest's digest is sha256:{found}, not {expected}");
                return Err(Fault::Final(text));
            }
        }
        serde_json::from_slice(&text)
            .map_err(|error| Fault::Final(format!("the manifest cannot be read: {error}")))
    }
}

/// Place and parameters of a `Bearer` challenge.
struct Challenge {
    realm: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = Vec::new();
        // A scope holds commas, so values are taken by their quotes.
        while let Some((name, after)) = rest.split_once("=\"") {
            let (value, more) = after.split_once('"')?;
            parameters.push((name.trim_matches([',', ' ']).to_owned(), value.to_owned()));
            rest = more;
        }
        let realm = parameters.iter().position(|(name, _)| name == "realm")?;
        let (_, realm) = parameters.remove(realm);
        parameters.retain(|(name, _)| name == "service" || name == "scope");
        Some(Self { realm, parameters })
    }
}

/// The manifest of an index that is for machines like this one, or the only one.
fn for_this_machine(manifests: &[Descriptor]) -> Result<String, Fault> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let is_ours = |it: &&Descriptor| {
        let platform = it.platform.as_ref();
        platform.is_some_and(|it| it.architecture == architecture && it.os == "linux")
    };
    let only = (manifests.len() == 1).then(|| &manifests[0]);
    let found = manifests.iter().find(is_ours).or(only);
    found.map(|it| it.digest.clone()).ok_or_else(|| {
        Fault::Final(format!(
            "the index has no manifest for linux/{architecture}"
        ))
    })
}

/// The layer that is an image: the only one, or the only one that is no archive.
fn the_image(layers: Vec<Descriptor>) -> Result<Descriptor, Fault> {
    let count = layers.len();
    let mut layers = layers;
    if count > 1 {
        layers.retain(|layer| !layer.media_type.contains("tar"));
    }
    match (layers.pop(), layers.len()) {
        (Some(layer), 0) => Ok(layer),
        _ => Err(Fault::Final(format!(
            "the manifest has {count} layers, and not one of them is plainly an image; push the \
             image as the only layer (`oras push REGISTRY/REPOSITORY:TAG disk.img`)"
        ))),
    }
}

/// Credentials that `docker login` or `podman login` left for a registry.
fn basic_of(registry: &str) -> Option<String> {
    let variable = |name| std::env::var_os(name).map(std::path::PathBuf::from);
    let path = variable("REGISTRY_AUTH_FILE")
        .or_else(|| variable("DOCKER_CONFIG").map(|it| it.join("config.json")))
        .or_else(|| variable("HOME").map(|it| it.join(".docker/config.json")))?;
    let text = std::fs::read_to_string(path).ok()?;
    let file: serde_json::Value = serde_json::from_str(&text).ok()?;
    let key = match registry {
        "docker.io" => "https://index.docker.io/v1/",
        other => other,
    };
    let auth = file.get("auths")?.get(key)?.get("auth")?.as_str()?;
    Some(auth.to_owned())
}

fn text_of(response: Response) -> Result<Vec<u8>, Fault> {
    let mut text = Vec::new();
    let read = response.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| Fault::Passing(format!("a document broke off: {error}")))?;
    match text.len() as u64 <= DOCUMENT_BYTES_MAX {
        true => Ok(text),
        false => Err(Fault::Final(
            "a registry's document has more than 4 MiB".into(),
        )),
    }
}

/// The specification's limit for manifests.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json";
