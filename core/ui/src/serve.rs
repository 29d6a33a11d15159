//! Connections to the page, and the answers.
//!
//! Why here: hyper speaks HTTP; admission, deadlines and headers are ours. Must stay true: one
//! thread, which never waits for a client; a connection without the token holds a place only until
//! another comes; each connection ends after [`LIFE`] at the latest, however slowly its peer reads.
//! Answers share their bytes, so a slow reader costs no copy of a tree.
//!
//! The page's files are part of the program: a path is looked up in a table and in nothing else, so
//! no path leads out of it.

use crate::guard::Token;
use crate::guard::{Ask, Verdict, judge};
use crate::record::Record;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, server};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use serde_json::json;
use sidecore_attach::{Admission, AdmissionLimits, Arrival};
use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

/// The contents behind the page.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) token: Token,
    pub(crate) record: Arc<Mutex<Record>>,
    /// Time between two samples.
    pub(crate) period: Duration,
    /// The tree that the command named: its name, its text.
    pub(crate) tree: Option<(String, Bytes)>,
}

/// The connections of a page. One thread.
pub(crate) struct Connections {
    contents: Contents,
    begun: Instant,
    state: RefCell<State>,
}

struct State {
    admission: Admission<Peer>,
    tasks: HashMap<u64, AbortHandle>,
    last_id: u64,
}

/// All connections over the loopback are one peer: its ports say nothing about a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Peer;

/// A connection's place, given back when its task ends, however that ends.
struct Place {
    connections: Rc<Connections>,
    id: u64,
    is_introduced: std::cell::Cell<bool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.connections.state.borrow_mut();
        state.admission.leave(self.id);
        state.tasks.remove(&self.id);
    }
}

impl Connections {
    pub(crate) fn new(contents: Contents) -> Rc<Self> {
        let limits = AdmissionLimits {
            waiting_max: PLACES_MAX,
            peer_waiting_max: PLACES_MAX,
            preferred_waiting_max: PLACES_MAX,
            silence_max: HEADERS_TIME_MAX,
            served_max: PLACES_MAX,
            peer_served_max: PLACES_MAX,
        };
        Rc::new(Self {
            contents,
            begun: Instant::now(),
            state: RefCell::new(State {
                admission: Admission::new(limits),
                tasks: HashMap::new(),
                last_id: 0,
            }),
        })
    }

    /// Serves a new connection, where there is room; else the oldest silent one goes.
    pub(crate) fn arrive<S>(self: &Rc<Self>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut state = self.state.borrow_mut();
        state.last_id += 1;
        let id = state.last_id;
        let victim = match state
            .admission
            .arrive(id, Peer, false, self.begun.elapsed())
        {
            Arrival::Admitted => None,
            Arrival::Replaces(victim) => state.tasks.remove(&victim),
            Arrival::Refused => return,
        };
        let place = Place {
            connections: Rc::clone(self),
            id,
            is_introduced: std::cell::Cell::new(false),
        };
        // It does not run before this call returns: its handle is in the table by then.
        let task = tokio::task::spawn_local(serve(stream, Rc::new(place)));
        state.tasks.insert(id, task.abort_handle());
        drop(state);
        // Its place asks for the state when it is dropped.
        if let Some(victim) = victim {
            victim.abort();
        }
    }
}

/// Serves one connection to its end.
async fn serve<S>(stream: S, place: Rc<Place>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = place.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIME_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A browser connects again; a peer that reads a byte a minute is rid of its place.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(LIFE) => connection.as_mut().graceful_shutdown(),
    }
    // An error is the peer's, and it has been answered where it could be.
    let _ = tokio::time::timeout(LAST_ANSWER_TIME_MAX, connection).await;
}

impl Place {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let text = |name: HeaderName| one(request, &name);
        let ask = Ask {
            method: request.method().as_str(),
            path: request.uri().path(),
            query: request.uri().query(),
            host: text(header::HOST),
            origin: text(header::ORIGIN),
            site: text(HeaderName::from_static("sec-fetch-site")),
            destination: text(HeaderName::from_static("sec-fetch-dest")),
        };
        let contents = &self.connections.contents;
        let mut answer = match judge(&contents.token, &ask) {
            Verdict::Refuse(status, reason) => {
                let mut refusal = plain(status, reason);
                if status == StatusCode::METHOD_NOT_ALLOWED {
                    let methods = HeaderValue::from_static("GET, HEAD");
                    refusal.headers_mut().insert(header::ALLOW, methods);
                }
                // Its place is for others.
                let close = HeaderValue::from_static("close");
                refusal.headers_mut().insert(header::CONNECTION, close);
                refusal
            }
            Verdict::Enter(path) => entrance(&contents.token, path),
            Verdict::Serve(_) if !self.introduce() => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many connections: close other tabs",
            ),
            Verdict::Serve(path) => contents.answer(path, ask.query, request),
        };
        for (name, value) in HEADERS {
            let (name, value) = (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
            answer.headers_mut().insert(name, value);
        }
        answer
    }

    /// The connection has shown the token. False where there is no place among those that have.
    fn introduce(&self) -> bool {
        if !self.is_introduced.get() {
            let mut state = self.connections.state.borrow_mut();
            self.is_introduced.set(state.admission.introduce(self.id));
        }
        self.is_introduced.get()
    }
}

impl Contents {
    fn answer(
        &self,
        path: &str,
        query: Option<&str>,
        request: &Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        if path == "/api/state" {
            return self.state(query);
        }
        if let Some(id) = path.strip_prefix("/api/tree/") {
            return self.tree(id, one(request, &header::IF_NONE_MATCH));
        }
        match find(path) {
            Some(asset) => body(asset.kind, Bytes::from_static(asset.bytes)),
            None => plain(StatusCode::NOT_FOUND, "there is nothing at this path"),
        }
    }

    /// The samples since the one that the query names; nothing (204) where there is no newer one.
    fn state(&self, query: Option<&str>) -> Response<Full<Bytes>> {
        let since = query.and_then(|query| query.strip_prefix("since="));
        let Ok(since) = since.map_or(Ok(0), str::parse) else {
            return plain(StatusCode::BAD_REQUEST, "since is the number of a sample");
        };
        let record = self.record.lock();
        // 0 asks for everything, also where there is no sample yet.
        if since != 0 && since == record.sequence() {
            drop(record);
            return status(StatusCode::NO_CONTENT);
        }
        let mut state = record.state(since);
        // The lock is not held while the answer is written.
        drop(record);
        state["version"] = json!(env!("CARGO_PKG_VERSION"));
        state["period_ms"] = json!(self.period.as_millis());
        state["tree_file"] = json!(self.tree.as_ref().map(|(name, _)| name));
        body("application/json", state.to_string().into())
    }

    /// A tree in Newick format, if it is not the one that the page has.
    fn tree(&self, id: &str, known: Option<&str>) -> Response<Full<Bytes>> {
        let found = match (id, &self.tree) {
            ("file", Some((_, newick))) => Some((0, newick.clone())),
            _ => id.parse().ok().and_then(|id| {
                let record = self.record.lock();
                record
                    .tree(id)
                    .map(|tree| (tree.version, tree.newick.clone()))
            }),
        };
        let Some((version, newick)) = found else {
            return plain(StatusCode::NOT_FOUND, "there is no such tree");
        };
        // A version is the sample that brought the tree, so the tag changes with it.
        let tag = format!("\"{id}.{version}\"");
        let mut answer = if known == Some(&*tag) {
            status(StatusCode::NOT_MODIFIED)
        } else {
            body("text/plain; charset=utf-8", newick)
        };
        if let Ok(tag) = HeaderValue::try_from(tag) {
            answer.headers_mut().insert(header::ETAG, tag);
        }
        answer
    }
}

/// A header's value, where it is there once and is text: two hosts would be two opinions.
fn one<'a>(request: &'a Request<Incoming>, name: &HeaderName) -> Option<&'a str> {
    let mut values = request.headers().get_all(name).iter();
    let first = values.next()?;
    match values.next() {
        None => Some(first.to_str().unwrap_or(NO_TEXT)),
        // Two hosts or origins: a proxy in front may have believed the other one (RFC 9110, section
        // 7.2).
        Some(_) => Some(NO_TEXT),
    }
}

/// Sends the browser to the path that has the token in it, so that links of the page have it, too.
fn entrance(token: &Token, path: &str) -> Response<Full<Bytes>> {
    let mut answer = status(StatusCode::SEE_OTHER);
    // A path that cannot stand in a header gets no answer to follow.
    if let Ok(place) = HeaderValue::try_from(format!("/{}{path}", token.reveal())) {
        answer.headers_mut().insert(header::LOCATION, place);
    }
    answer
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

fn body(kind: &'static str, bytes: Bytes) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(bytes));
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn plain(status: StatusCode, reason: &'static str) -> Response<Full<Bytes>> {
    let line = Bytes::from(format!("{reason}\n"));
    let mut answer = body("text/plain; charset=utf-8", line);
    *answer.status_mut() = status;
    answer
}

/// Of every answer. Nothing is stored or framed, and nothing loaded but our own files.
const HEADERS: [(&str, &str); 8] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    (
        "permissions-policy",
        "camera=(), microphone=(), geolocation=()",
    ),
    ("cache-control", "no-store"),
];

/// Stands for a value that no comparison accepts.
const NO_TEXT: &str = "\u{fffd}";
/// Connections that wait to show the token, and those that have.
const PLACES_MAX: usize = 64;
/// The time in which a request's head arrives; also that between two requests.
const HEADERS_TIME_MAX: Duration = Duration::from_secs(10);
/// A connection gets no more requests after this time.
const LIFE: Duration = Duration::from_secs(60);
/// The time that the last answer may take.
const LAST_ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes of a request's head, and of an answer in flight.
const BUFFER_BYTES_MAX: usize = 16 << 10;
/// Header lines of a request.
const HEADERS_MAX: usize = 64;

/// A file of the page.
#[derive(Debug)]
pub(crate) struct Asset {
    /// Its path below the token.
    path: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) bytes: &'static [u8],
}

/// The file at `path`.
pub(crate) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../page/", $file)),
        }
    };
}

static ASSETS: [Asset; 11] = [
    asset!("/", "text/html; charset=utf-8", "index.html"),
    asset!("/ui.css", "text/css; charset=utf-8", "ui.css"),
    asset!("/icon.svg", "image/svg+xml", "icon.svg"),
    asset!("/ui.js", SCRIPT, "ui.js"),
    asset!("/charts.js", SCRIPT, "charts.js"),
    asset!("/format.js", SCRIPT, "format.js"),
    asset!("/sections.js", SCRIPT, "sections.js"),
    asset!("/newick.js", SCRIPT, "newick.js"),
    asset!("/layout.js", SCRIPT, "layout.js"),
    asset!("/drawing.js", SCRIPT, "drawing.js"),
    asset!("/viewer.js", SCRIPT, "viewer.js"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_page_leads_elsewhere() {
        for asset in &ASSETS {
            let text = std::str::from_utf8(asset.bytes).expect("text");
            // The names of XML are no places that are fetched.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for word in [
                "http:",
                "https:",
                "//cdn",
                "eval(",
                "innerHTML",
                "document.write",
            ] {
                assert!(!text.contains(word), "{}: {word}", asset.path);
            }
            // The policy would refuse these: styles and handlers within the page.
            let words = text.split_whitespace().filter(|_| asset.path == "/");
            let is_inline = |word: &str| word.starts_with("on") || word.starts_with("style");
            let mut inline = words.filter(|word| word.contains('=') && is_inline(word));
            assert_eq!(inline.next(), None);
        }
    }

    #[test]
    fn each_file_of_the_folder_is_served_and_others_are_not() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        let files = std::fs::read_dir(folder)
            .expect("the page's folder")
            .count();
        assert_eq!(files, ASSETS.len());
        for path in [
            "",
            "/index.html",
            "/../Cargo.toml",
            "/%2e%2e/Cargo.toml",
            "//",
            "/ui.js/",
        ] {
            assert!(find(path).is_none(), "{path}");
        }
        assert!(find("/").is_some());
    }
}
