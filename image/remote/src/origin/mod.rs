//! Requests to the server of an image: HTTP, S3 and registries with one interface, and the checks
//! that every reply must pass.
//!
//! Must stay true: bytes are returned only from a reply whose status, range, total size, body
//! length and validator (ETag or date) are those of the opened image. Redirects are followed here
//! and not by the HTTP library, so that credentials are sent only to the host that they belong to.
//! Called from: any thread; blocks.
//! Source: RFC 9110, section 14 (range requests).

mod aws;
pub mod bucket;
pub mod oci;
pub mod reply;

use crate::fault::Fault;
use crate::{Location, Retry};
use oci::hosts::Host;
use parking_lot::Mutex;
use reply::Promise;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{AUTHORIZATION, RANGE};
use reqwest::{StatusCode, Url};
use sidecore_bare::width::ToUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Identity of an image: replies of another image are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// ETag or date of the last change, if the server gives one.
    pub validator: Option<String>,
}

/// A reply that passed its checks.
pub(crate) struct Reply {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// The first one's offset in the image.
    pub(crate) offset: u64,
    /// The image that the reply belongs to.
    pub(crate) identity: Identity,
    /// Time from the request to the reply's head.
    pub(crate) waited: Duration,
}

/// The bytes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// A range of a known image.
    Range(Range<u64>),
    /// A range of an image that is not known yet, cut off at its end.
    Part(Range<u64>),
    /// The first bytes of the image, or all if there are fewer.
    Head(u64),
    /// The last bytes of the image, or all if there are fewer.
    Tail(u64),
}

impl Ask {
    pub(crate) fn header(&self) -> String {
        match self {
            Self::Range(range) | Self::Part(range) => {
                format!("bytes={}-{}", range.start, range.end - 1)
            }
            Self::Head(bytes) => format!("bytes=0-{}", bytes - 1),
            Self::Tail(bytes) => format!("bytes=-{bytes}"),
        }
    }

    /// The range that an image of `size` bytes must return.
    #[must_use]
    pub fn of_size(&self, size: u64) -> Range<u64> {
        match self {
            Self::Range(range) => range.clone(),
            Self::Part(range) => range.start.min(size)..range.end.min(size),
            Self::Head(bytes) => 0..size.min(*bytes),
            Self::Tail(bytes) => size.saturating_sub(*bytes)..size,
        }
    }
}

/// Target of requests.
pub(crate) struct Origin {
    client: Client,
    kind: Kind,
    /// Target of a redirect, until it fails a request.
    resolved: Mutex<Option<Url>>,
    /// False if redirects to another host are refused.
    may_leave: bool,
    /// Longest time without bytes from the server.
    silence_max: Duration,
}

enum Kind {
    Http(Url),
    S3(Box<aws::Object>),
    Oci(Box<oci::Blob>),
}

impl Origin {
    /// Makes a client for `location`. Requests the image's manifest from a registry, and otherwise
    /// nothing. Without `may_leave`, redirects to other servers are not followed.
    ///
    /// # Errors
    /// [`Fault`]: the location, the credentials or the registry's answer cannot be used.
    pub(crate) fn new(location: &Location, retry: &Retry, may_leave: bool) -> Result<Self, Fault> {
        let client = client(retry, None)?;
        let kind = match location {
            Location::Http(url) => Kind::Http(parse(url)?),
            Location::S3 { bucket, key } => {
                let object = aws::Object::from_environment(&client, bucket, key)?;
                Kind::S3(Box::new(object))
            }
            Location::Oci {
                registry,
                repository,
                reference,
            } => {
                let blob = oci::Blob::find(registry, repository, reference, retry)?;
                return Ok(Self {
                    may_leave,
                    ..Self::of_blob(blob, retry)
                });
            }
        };
        Ok(Self {
            client,
            kind,
            resolved: Mutex::new(None),
            may_leave,
            silence_max: retry.attempt_max,
        })
    }

    /// Requests go to another object, by the same client: one has threads of its own.
    ///
    /// # Errors
    /// As [`Self::new`]; a registry's image.
    pub(crate) fn sibling(&self, location: &Location, retry: &Retry) -> Result<Self, Fault> {
        let kind = match location {
            Location::Http(url) => Kind::Http(parse(url)?),
            Location::S3 { bucket, key } => {
                let object = aws::Object::from_environment(&self.client, bucket, key)?;
                Kind::S3(Box::new(object))
            }
            Location::Oci { .. } => {
                return Err(Fault::Final("an image of a registry is one object".into()));
            }
        };
        Ok(Self {
            client: self.client.clone(),
            kind,
            resolved: Mutex::new(None),
            may_leave: self.may_leave,
            silence_max: retry.attempt_max,
        })
    }

    /// Requests go to a blob of a registry.
    fn of_blob(blob: oci::Blob, retry: &Retry) -> Self {
        Self {
            client: blob.client().clone(),
            kind: Kind::Oci(Box::new(blob)),
            resolved: Mutex::new(None),
            may_leave: true,
            silence_max: retry.attempt_max,
        }
    }

    /// SHA-256 of the whole image, as given by its registry.
    pub(crate) fn sha256(&self) -> Option<&str> {
        match &self.kind {
            Kind::Oci(blob) => Some(blob.sha256()),
            Kind::Http(_) | Kind::S3(_) => None,
        }
    }

    /// Makes one request, once; `known` is the image that must answer. `on_bytes` is called with
    /// the number of received bytes as they arrive.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) fn get(
        &self,
        ask: &Ask,
        known: Option<&Identity>,
        on_bytes: &mut dyn FnMut(u64),
    ) -> Result<Reply, Fault> {
        let sent = Instant::now();
        let response = self.send(&ask.header())?;
        let waited = sent.elapsed();
        let status = response.status().as_u16();
        let target = response.url().clone();
        if status == 200 {
            let text = "the server sent the whole image instead of a range: it serves no ranges; \
                        fetch the image as a whole, or have it served by one that does (nginx, \
                        Apache, lighttpd, an object store)";
            // A server that served ranges before may do so again.
            return Err(match known {
                Some(_) => Fault::Passing(text.into()),
                None => Fault::Final(text.into()),
            });
        }
        if status != 206 {
            let Kind::S3(object) = &self.kind else {
                return Err(Fault::of_status(status, "a range of the image"));
            };
            let code = reply::error_code(response, sent + self.silence_max);
            let doing = code.map_or_else(
                || "a range of the image".to_owned(),
                |code| format!("a range of the image with {code}"),
            );
            return Err(match (Fault::of_status(status, &doing), object.lacks()) {
                (Fault::Final(text), Some(why)) => Fault::Final(format!("{text} ({why})")),
                (fault, _) => fault,
            });
        }
        let layer_bytes = match &self.kind {
            Kind::Oci(blob) => blob.size_bytes(),
            Kind::Http(_) | Kind::S3(_) => None,
        };
        let Promise { range, identity } =
            reply::promise(response.headers(), ask, known, layer_bytes)
                .inspect_err(|_| self.forget(&target))?;
        // As announced and checked, and not as a header of its own says.
        let len = (range.end - range.start).to_usize();
        let until = sent + self.silence_max + least_pace(len);
        let bytes =
            reply::body(response, len, until, on_bytes).inspect_err(|_| self.forget(&target))?;
        Ok(Reply {
            bytes,
            offset: range.start,
            identity,
            waited,
        })
    }

    /// Requests all of a blob, following redirects.
    pub(crate) fn get_whole(&self) -> Result<Response, Fault> {
        let Kind::Oci(blob) = &self.kind else {
            return Err(Fault::Final("only a registry has blobs".into()));
        };
        let mut url = blob.url().clone();
        let mut response = blob.send(&|| self.client.get(url.clone()))?;
        for _ in 0..REDIRECTS_MAX {
            if !response.status().is_redirection() {
                break;
            }
            url = reply::redirected(&url, response.headers())?;
            response = self.client.get(url.clone()).send()?;
        }
        match response.status().as_u16() {
            200 => Ok(response),
            status => Err(Fault::of_status(status, "a request for a blob")),
        }
    }

    /// Sends a request for a range, following redirects.
    fn send(&self, range: &str) -> Result<Response, Fault> {
        let resolved = self.resolved.lock().clone();
        if let Some(url) = resolved {
            match self.client.get(url.clone()).header(RANGE, range).send() {
                Ok(response) if response.status() == StatusCode::PARTIAL_CONTENT => {
                    return Ok(response);
                }
                Ok(response) => tracing::info!("a redirect's target: {}", response.status()),
                Err(error) => tracing::info!("a redirect's target: {}", Fault::from(error)),
            }
            // Such links are valid for minutes, and their servers come and go: request a new one.
            self.forget(&url);
        }
        let mut response = self.ask(range)?;
        let mut url = response.url().clone();
        let mut followed = 0;
        while response.status().is_redirection() {
            let next = reply::redirected(&url, response.headers())?;
            followed += 1;
            // A signed request is for one host: its headers would be wrong, or read, at another.
            if followed > REDIRECTS_MAX || matches!(self.kind, Kind::S3(_)) {
                return Err(Fault::Final(format!(
                    "redirected to {}; for s3:// name the bucket's region in AWS_REGION",
                    next.host_str().unwrap_or("no host")
                )));
            }
            // A sidecar is trusted as its file is, so it must come from the same server.
            if !self.may_leave && next.origin() != url.origin() {
                return Err(Fault::Final("a redirect leads to another server".into()));
            }
            url = next;
            response = self.client.get(url.clone()).header(RANGE, range).send()?;
        }
        // Kept for later requests: each would otherwise cost a round trip to be redirected again.
        if followed > 0 && response.status().is_success() {
            *self.resolved.lock() = Some(url);
        }
        Ok(response)
    }

    /// Has the location asked again for the target of its redirect, if that is still `failed`.
    fn forget(&self, failed: &Url) {
        let mut resolved = self.resolved.lock();
        if resolved.as_ref() == Some(failed) {
            *resolved = None;
        }
    }

    /// Sends a request for a range to the location itself, with its credentials.
    fn ask(&self, range: &str) -> Result<Response, Fault> {
        match &self.kind {
            Kind::Http(url) => Ok(self.client.get(url.clone()).header(RANGE, range).send()?),
            Kind::S3(object) => {
                let mut left = RENEWALS_MAX;
                loop {
                    let (keys, headers) = object.headers(range)?;
                    let request = self.client.get(object.url().clone()).headers(headers);
                    let response = request.send()?;
                    // Temporary keys may have been replaced meanwhile. A store answers 400 if they
                    // have expired.
                    let refused = matches!(response.status().as_u16(), 400 | 401 | 403);
                    if !refused || left == 0 || !object.renew(keys.as_ref()) {
                        return Ok(response);
                    }
                    left -= 1;
                }
            }
            Kind::Oci(blob) => {
                let request = || self.client.get(blob.url().clone()).header(RANGE, range);
                blob.send(&request)
            }
        }
    }
}

/// A client that follows no redirects, with the certificates of `host`.
fn client(retry: &Retry, host: Option<&Host>) -> Result<Client, Fault> {
    // A repeated call fails: the same provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder();
    if let Some(host) = host {
        for path in &host.authorities {
            for authority in reqwest::Certificate::from_pem_bundle(&pem(path)?)? {
                builder = builder.add_root_certificate(authority);
            }
        }
        if !host.client.is_empty() {
            let mut both = Vec::new();
            for path in &host.client {
                both.extend(pem(path)?);
                both.push(b'\n');
            }
            builder = builder.identity(reqwest::Identity::from_pem(&both)?);
        }
        builder = builder.danger_accept_invalid_certs(host.is_unchecked);
    }
    Ok(builder
        .user_agent(concat!("sidecore/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .dns_resolver(Arc::new(resolve::Resolver))
        .connect_timeout(CONNECT_MAX.min(retry.attempt_max))
        .timeout(retry.attempt_max)
        .pool_idle_timeout(IDLE_MAX)
        .build()?)
}

/// A file of a certificate or a key.
fn pem(path: &Path) -> Result<Vec<u8>, Fault> {
    std::fs::read(path)
        .map_err(|error| Fault::Final(format!("cannot read {}: {error}", path.display())))
}

/// Adds a bearer token, if there is one.
fn with_token(request: RequestBuilder, token: Option<&str>) -> RequestBuilder {
    match token {
        Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
        None => request,
    }
}

fn parse(url: &str) -> Result<Url, Fault> {
    Url::parse(url).map_err(|error| Fault::Final(format!("it is no URL: {error}")))
}

/// Time limit for a body of `bytes`: the client's own limit is for each read, and a server that
/// sends a byte now and then would block a reader for ever.
fn least_pace(bytes: usize) -> Duration {
    Duration::from_secs_f64(bytes as f64 / PACE_BYTES_PER_S_MIN)
}

/// Slower transfers are aborted: 64 concurrent requests at this rate are a link of 8 Mb/s.
const PACE_BYTES_PER_S_MIN: f64 = 16384.0;
/// Maximum number of times that one request is signed again with other keys.
const RENEWALS_MAX: u32 = 3;
/// Maximum number of redirects per request.
const REDIRECTS_MAX: u32 = 5;
/// Time limit to connect.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time for which an idle connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(90);

mod resolve {
    //! Addresses of hosts, each looked up on a thread of its own.
    //!
    //! Why here: the HTTP library's own resolver panics if no thread can be started.
    //! Must stay true: every lookup is answered; if no thread can be started, the calling thread
    //! does the lookup itself.

    use reqwest::dns::{Addrs, Name, Resolve, Resolving};
    use std::future::Future;
    use std::io;
    use std::net::{SocketAddr, ToSocketAddrs};
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::task::{Context, Poll, Waker};

    /// Resolves names through the system (`getaddrinfo`).
    pub(super) struct Resolver;

    impl Resolve for Resolver {
        fn resolve(&self, name: Name) -> Resolving {
            let question = Arc::new(Question::default());
            let (asked, host) = (Arc::clone(&question), name.as_str().to_owned());
            let thread = std::thread::Builder::new().name("resolve".to_owned());
            // Blocks the client's own thread then: slower for all requests, but they go on.
            if thread.spawn(move || asked.answer(look_up(&host))).is_err() {
                question.answer(look_up(name.as_str()));
            }
            Box::pin(Answer(question))
        }
    }

    fn look_up(host: &str) -> io::Result<Vec<SocketAddr>> {
        // The library sets the URL's port.
        Ok((host, 0).to_socket_addrs()?.collect())
    }

    #[derive(Default)]
    struct Question(Mutex<State>);

    #[derive(Default)]
    struct State {
        answer: Option<io::Result<Vec<SocketAddr>>>,
        waker: Option<Waker>,
    }

    impl Question {
        fn answer(&self, answer: io::Result<Vec<SocketAddr>>) {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.answer = Some(answer);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }

    /// The future of a lookup's answer.
    struct Answer(Arc<Question>);

    impl Future for Answer {
        type Output = Result<Addrs, Box<dyn std::error::Error + Send + Sync>>;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            match state.answer.take() {
                Some(answer) => Poll::Ready(match answer {
                    Ok(addresses) => Ok(Box::new(addresses.into_iter())),
                    Err(error) => Err(error.into()),
                }),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        }
    }
}
