//! A layer in a registry: the manifest that names it, checked by its digest, and the token that
//! permits reading it.
//!
//! Must stay true: a manifest is accepted only if it has the requested digest, or the digest that
//! the registry gave for its tag; a token is sent to the registry alone, and a login only where
//! [`login`] permits.
//! Source: OCI Distribution Specification 1.1, OCI Image Format Specification 1.1; the token
//! protocol as the Distribution project documents it ("Token Authentication Specification").

pub mod documents;
pub mod login;
mod repository;

pub use repository::{Artifact, ImageManifest, Repository};

use super::{Fault, parse, with_token};
use documents::{MANIFEST_BYTES_MAX, Manifest, TOKEN_BYTES_MAX};
use login::{Challenge, Logins};
use parking_lot::Mutex;
use reqwest::Url;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{ACCEPT, AUTHORIZATION, WWW_AUTHENTICATE};
use sidecore_bare::width::ToU64;
use std::io::Read;
use std::sync::Arc;

/// A layer.
pub(super) struct Blob {
    access: Arc<Access>,
    url: Url,
    sha256: String,
    /// Its size, where a manifest names it.
    size_bytes: Option<u64>,
}

/// Permission to read a repository.
struct Access {
    /// The registry's URL.
    registry: Url,
    token: Mutex<Option<String>>,
    logins: Logins,
    /// The login for the registry, if there is one.
    own: Option<String>,
}

impl Blob {
    /// Requests the manifest from the registry, and finds the layer that holds the image.
    pub(super) fn find(
        client: &Client,
        registry: &str,
        repository: &str,
        reference: &str,
    ) -> Result<Self, Fault> {
        let (access, base) = Access::to(registry, repository)?;
        let mut manifest = access.manifest(client, &base, reference)?;
        // One step only: an index of indexes could go on for ever.
        if let Some(digest) = manifest.for_this_machine() {
            manifest = access.manifest(client, &base, &digest?)?;
        }
        let layer = manifest.image()?;
        Ok(Self {
            url: parse(&format!("{base}/blobs/sha256:{}", layer.sha256))?,
            sha256: layer.sha256,
            size_bytes: Some(layer.size_bytes),
            access: Arc::new(access),
        })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) fn sha256(&self) -> &str {
        &self.sha256
    }

    pub(super) fn size_bytes(&self) -> Option<u64> {
        self.size_bytes
    }

    /// Sends a request with the token, or with a new one if that is refused.
    pub(super) fn send(
        &self,
        client: &Client,
        request: &dyn Fn() -> RequestBuilder,
    ) -> Result<Response, Fault> {
        self.access.send(client, request)
    }
}

impl Access {
    /// Access to a repository, with the logins of this user, and the repository's URL.
    fn to(registry: &str, repository: &str) -> Result<(Self, String), Fault> {
        let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
        // As in other clients: a registry on this machine has no certificate.
        let scheme = match host {
            "localhost" | "127.0.0.1" | "[::1]" => "http",
            _ => "https",
        };
        let (place, repository) = match registry {
            // As in other clients: official images are in the repository `library`.
            "docker.io" if !repository.contains('/') => {
                ("registry-1.docker.io", format!("library/{repository}"))
            }
            "docker.io" => ("registry-1.docker.io", repository.to_owned()),
            other => (other, repository.to_owned()),
        };
        let base = format!("{scheme}://{place}/v2/{repository}");
        let logins = Logins::of_user();
        let access = Self {
            registry: parse(&base)?,
            token: Mutex::new(None),
            own: logins.of_registry(registry),
            logins,
        };
        Ok((access, base))
    }

    fn send(
        &self,
        client: &Client,
        request: &dyn Fn() -> RequestBuilder,
    ) -> Result<Response, Fault> {
        let token = self.token.lock().clone();
        // Registries without a token service take the login itself.
        let first = match (&token, &self.own) {
            (None, Some(basic)) => request().header(AUTHORIZATION, format!("Basic {basic}")),
            _ => with_token(request(), token.as_deref()),
        };
        let response = first.send()?;
        if response.status().as_u16() != 401 {
            return Ok(response);
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE);
        let challenge = challenge.and_then(|value| value.to_str().ok());
        let Some(challenge) = challenge.and_then(Challenge::read) else {
            return Ok(response);
        };
        // Tokens expire after minutes, so a refusal is the usual way to learn that one is needed.
        let token = self.new_token(client, &challenge?.service)?;
        *self.token.lock() = Some(token.clone());
        Ok(with_token(request(), Some(&token)).send()?)
    }

    /// Sends one request to a token service: redirects are not followed, so that a login is sent to
    /// no other host.
    fn new_token(&self, client: &Client, service: &Url) -> Result<String, Fault> {
        let own = self.own.as_deref();
        let login = self.logins.of_service(&self.registry, service, own)?;
        let mut request = client.get(service.clone());
        if let Some(login) = login {
            request = request.header(AUTHORIZATION, format!("Basic {login}"));
        }
        let response = request.send()?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(Fault::of_status(status, "a request for a token"));
        }
        documents::token(&text_of(response, TOKEN_BYTES_MAX)?)
    }

    fn manifest(&self, client: &Client, base: &str, reference: &str) -> Result<Manifest, Fault> {
        let (text, given) = self.document(client, base, reference)?;
        Manifest::read(&text, reference, given.as_deref())
    }

    /// The bytes of a manifest, and the digest that the registry gives for it.
    fn document(
        &self,
        client: &Client,
        base: &str,
        reference: &str,
    ) -> Result<(Vec<u8>, Option<String>), Fault> {
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
        Ok((text_of(response, MANIFEST_BYTES_MAX)?, given))
    }
}

/// A document's bytes, if there are at most `bytes_max`.
fn text_of(response: Response, bytes_max: u64) -> Result<Vec<u8>, Fault> {
    let mut text = Vec::new();
    // One byte more than allowed shows that there are too many.
    let read = response.take(bytes_max + 1).read_to_end(&mut text);
    read.map_err(|error| Fault::Passing(format!("a document broke off: {error}")))?;
    match text.len().to_u64() <= bytes_max {
        true => Ok(text),
        false => Err(Fault::Final(format!(
            "a registry's document has more than {} KiB",
            bytes_max >> 10
        ))),
    }
}

const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json";
