//! A layer in a registry: the manifest that names it, checked by its digest, and the token that
//! permits reading it.
//!
//! Must stay true: a manifest is accepted only if it has the requested digest, or the digest that
//! the registry gave for its tag; a token is sent to the registry alone, and a login only where
//! [`login`] permits.
//! Source: OCI Distribution Specification 1.1, OCI Image Format Specification 1.1; the token
//! protocol as the Distribution project documents it ("Token Authentication Specification").

pub mod documents;
pub mod hosts;
pub mod login;
mod repository;

pub use repository::{Artifact, Descriptor, INDEX_TYPE, ImageManifest, MANIFEST_TYPE, Repository};

use super::{Fault, least_pace, parse, with_token};
use crate::Retry;
use documents::{MANIFEST_BYTES_MAX, Manifest, TOKEN_BYTES_MAX};
use hosts::Host;
use login::{Challenge, Logins};
use parking_lot::Mutex;
use reqwest::Url;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{ACCEPT, AUTHORIZATION, WWW_AUTHENTICATE};
use sidecore_bare::width::ToU64;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A layer.
pub(super) struct Blob {
    access: Arc<Access>,
    url: Url,
    sha256: String,
    /// Its size, where a manifest names it.
    size_bytes: Option<u64>,
}

/// A server that has a repository, and the permission to read it there.
struct Access {
    client: Client,
    host: Host,
    /// The repository's path.
    repository: String,
    /// The registry's name, where the server is another one.
    namespace: Option<String>,
    /// The repository's URL.
    registry: Url,
    token: Mutex<Token>,
    logins: Logins,
    /// The login for the registry, if there is one.
    own: Option<String>,
    /// Longest time without bytes of a document.
    silence_max: Duration,
}

/// The permission to read a repository, and the last transient fault of a request for one.
#[derive(Default)]
struct Token {
    text: Option<String>,
    failed: Option<(Instant, Fault)>,
}

impl Blob {
    /// Requests the manifest from the registry or its mirrors, and finds the layer that holds the
    /// image.
    pub(super) fn find(
        registry: &str,
        repository: &str,
        reference: &str,
        retry: &Retry,
    ) -> Result<Self, Fault> {
        let all = Access::all(registry, repository, retry)?;
        first_of(&all, reference, |access| {
            let mut manifest = access.manifest(reference)?;
            // One step only: an index of indexes could go on for ever.
            if let Some(digest) = manifest.for_this_machine() {
                manifest = access.manifest(&digest?)?;
            }
            let layer = manifest.image()?;
            Ok(Self {
                url: access.url(&format!("blobs/sha256:{}", layer.sha256))?,
                sha256: layer.sha256,
                size_bytes: Some(layer.size_bytes),
                access: Arc::clone(access),
            })
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.access.client
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
    pub(super) fn send(&self, request: &dyn Fn() -> RequestBuilder) -> Result<Response, Fault> {
        self.access.send(request)
    }
}

impl Access {
    /// The servers of a repository in the order in which they are asked, with the logins of this
    /// user. Sends nothing.
    fn all(registry: &str, repository: &str, retry: &Retry) -> Result<Vec<Arc<Self>>, Fault> {
        // As in other clients: official images are in the repository `library`.
        let repository = match registry == "docker.io" && !repository.contains('/') {
            true => format!("library/{repository}"),
            false => repository.to_owned(),
        };
        let hosts = Host::all(registry)?.into_iter();
        let to = |host| Self::to(host, registry, &repository, retry).map(Arc::new);
        hosts.map(to).collect()
    }

    fn to(host: Host, registry: &str, repository: &str, retry: &Retry) -> Result<Self, Fault> {
        let logins = Logins::of_user();
        let url = parse(&format!("{}/{repository}", host.root))?;
        let own = match host.is_mirror {
            false => logins.of_repository(registry, repository),
            true => logins.of_server(&url),
        };
        Ok(Self {
            client: super::client(retry, Some(&host))?,
            repository: repository.to_owned(),
            namespace: host.is_mirror.then(|| registry.to_owned()),
            registry: url,
            token: Mutex::default(),
            own,
            logins,
            host,
            silence_max: retry.attempt_max,
        })
    }

    /// A URL of the repository.
    fn url(&self, path: &str) -> Result<Url, Fault> {
        let mut url = parse(&format!("{}/{}/{path}", self.host.root, self.repository))?;
        if let Some(namespace) = &self.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        Ok(url)
    }

    fn send(&self, request: &dyn Fn() -> RequestBuilder) -> Result<Response, Fault> {
        let request = || request().headers(self.host.headers.clone());
        let token = self.token.lock().text.clone();
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
        let asked = Instant::now();
        let mut held = self.token.lock();
        // Requests at the same time share one: those that come meanwhile wait for it here or above.
        let newer = held.text.clone().filter(|it| token.as_ref() != Some(it));
        let token = match newer {
            Some(newer) => newer,
            None => {
                // They share its failure, too: each for itself would wait as long, one by one.
                if let Some((at, fault)) = &held.failed
                    && *at > asked
                {
                    return Err(fault.clone());
                }
                let renewed = self.new_token(&challenge?.service);
                let renewed = renewed.inspect_err(|fault| {
                    let passing = fault.may_pass().then(|| fault.clone());
                    held.failed = passing.map(|fault| (Instant::now(), fault));
                })?;
                held.text.insert(renewed).clone()
            }
        };
        drop(held);
        Ok(with_token(request(), Some(&token)).send()?)
    }

    /// Sends one request to a token service: redirects are not followed, so that a login is sent to
    /// no other host.
    fn new_token(&self, service: &Url) -> Result<String, Fault> {
        let own = self.own.as_deref();
        let login = self.logins.of_service(&self.registry, service, own)?;
        let mut request = self.client.get(service.clone());
        if let Some(login) = login {
            request = request.header(AUTHORIZATION, format!("Basic {login}"));
        }
        let response = request.send()?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(Fault::of_status(status, "a request for a token"));
        }
        documents::token(&text_of(response, TOKEN_BYTES_MAX, self.silence_max)?)
    }

    fn manifest(&self, reference: &str) -> Result<Manifest, Fault> {
        let (text, given) = self.document(reference)?;
        Manifest::read(&text, reference, given.as_deref())
    }

    /// The bytes of a manifest, and the digest that the registry gives for it.
    fn document(&self, reference: &str) -> Result<(Vec<u8>, Option<String>), Fault> {
        let url = self.url(&format!("manifests/{reference}"))?;
        let request = || self.client.get(url.clone()).header(ACCEPT, MANIFESTS);
        let response = self.send(&request)?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(Fault::of_status(status, "a request for the manifest"));
        }
        let header = response.headers().get("docker-content-digest");
        let given = header
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let text = text_of(response, MANIFEST_BYTES_MAX, self.silence_max)?;
        Ok((text, given))
    }
}

/// The first result of servers that may know `reference`; the last one's fault if all fail.
fn first_of<T>(
    all: &[Arc<Access>],
    reference: &str,
    mut ask: impl FnMut(&Arc<Access>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut last = Fault::Final("no server of the registry is asked for tags".into());
    for access in all {
        if !access.host.resolves && !reference.starts_with("sha256:") {
            continue;
        }
        match ask(access) {
            Ok(found) => return Ok(found),
            Err(fault) => {
                if access.host.is_mirror {
                    tracing::info!("{} is passed over: {fault}", access.host.root);
                }
                last = fault;
            }
        }
    }
    Err(last)
}

/// A document's bytes, if there are at most `bytes_max`. The server may be silent for
/// `silence_max`, and has to send at a least pace.
pub(super) fn text_of(
    mut body: impl Read,
    bytes_max: u64,
    silence_max: Duration,
) -> Result<Vec<u8>, Fault> {
    let begun = Instant::now();
    let mut text = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        // The client's own limit is for each read: a byte now and then would satisfy it for ever.
        if begun.elapsed() > silence_max + least_pace(text.len()) {
            return Err(Fault::Passing("a document comes too slowly".into()));
        }
        match body.read(&mut piece) {
            Ok(0) => return Ok(text),
            Ok(read) => text.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::Passing(format!("a document broke off: {error}"))),
        }
        if text.len().to_u64() > bytes_max {
            return Err(Fault::Final(format!(
                "a server's document has more than {} KiB",
                bytes_max >> 10
            )));
        }
    }
}

/// Bytes of a document that are read at once.
const PIECE_BYTES: usize = 16 << 10;
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json";

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends a byte at a time, without an end.
    struct Trickle(Duration);

    impl Read for Trickle {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            std::thread::sleep(self.0);
            to[0] = b'x';
            Ok(1)
        }
    }

    #[test]
    fn documents_are_bounded_in_bytes_and_time() {
        let silence_max = Duration::from_millis(20);
        let slow = text_of(Trickle(Duration::from_millis(5)), 1 << 20, silence_max);
        assert_eq!(
            slow,
            Err(Fault::Passing("a document comes too slowly".into()))
        );
        let minute = Duration::from_secs(60);
        let long = text_of(Trickle(Duration::ZERO), 5000, minute).unwrap_err();
        assert!(long.to_string().contains("more than 4 KiB"), "{long}");
        let whole = vec![7; 100_000];
        assert_eq!(text_of(&whole[..], 100_000, minute), Ok(whole));
    }
}
