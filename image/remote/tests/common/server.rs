//! A server of one object for tests: ranges over HTTP/1.1, and on request all kinds of faults; and
//! a bucket of an S3 store ([`Shelf`]), whose client dies on request.
//!
//! Must stay true: its faults are drawn from its seed; it stops when it is dropped.

#![allow(clippy::unwrap_used, dead_code)] // Helper functions of tests; none uses all of them.

use sidecore_random::Random;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// One request, as received.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(it, _)| it.eq_ignore_ascii_case(name));
        found.map(|(_, value)| &**value)
    }
}

/// Answer that replaces the object's bytes: status, headers, body.
pub(crate) type Other = (u16, Vec<(String, String)>, Vec<u8>);

/// Inspects a request first; `None` lets the object answer.
pub(crate) type Guard = dyn Fn(&Request) -> Option<Other> + Send + Sync;

pub(crate) struct Server {
    shared: Arc<Shared>,
    address: std::net::SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    object: Vec<u8>,
    guard: Box<Guard>,
    /// Requests in 1000 that fail.
    faults_per_mille: AtomicU64,
    random: Mutex<Random>,
    requests: AtomicU64,
    faults: AtomicU64,
    sent_bytes: AtomicU64,
    etag: Mutex<String>,
    ended: AtomicBool,
}

impl Server {
    pub(crate) fn start(object: Vec<u8>) -> Self {
        Self::with_guard(object, Box::new(|_| None))
    }

    pub(crate) fn with_guard(object: Vec<u8>, guard: Box<Guard>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            object,
            guard,
            faults_per_mille: AtomicU64::new(0),
            random: Mutex::new(Random::new(0x5eed)),
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            etag: Mutex::new("\"one\"".into()),
            ended: AtomicBool::new(false),
        });
        let server = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if server.ended.load(Ordering::SeqCst) {
                    return;
                }
                let server = Arc::clone(&server);
                std::thread::spawn(move || server.converse(stream));
            }
        });
        Self {
            shared,
            address,
            acceptor: Some(acceptor),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/image", self.address)
    }

    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::SeqCst)
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn set_faults(&self, per_mille: u64) {
        self.shared
            .faults_per_mille
            .store(per_mille, Ordering::SeqCst);
    }

    pub(crate) fn set_etag(&self, etag: &str) {
        *self.shared.etag.lock().unwrap() = etag.to_owned();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // The acceptor checks the flag at the next connection.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().unwrap();
        }
    }
}

impl Shared {
    fn converse(&self, stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some(request) = read_request(&mut reader) {
            if self.ended.load(Ordering::SeqCst) || !self.answer(&request, &mut stream) {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    /// Answers one request; false if the connection is to be closed.
    fn answer(&self, request: &Request, stream: &mut TcpStream) -> bool {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let fault = {
            let mut random = self.random.lock().unwrap();
            let bad = random.below(1000) < self.faults_per_mille.load(Ordering::SeqCst);
            bad.then(|| (random.below(KINDS), random.bits()))
        };
        if let Some((kind, salt)) = fault {
            self.faults.fetch_add(1, Ordering::SeqCst);
            return self.misbehave(kind, salt, request, stream);
        }
        if let Some((status, headers, body)) = (self.guard)(request) {
            let said = body.len();
            if request.method == "HEAD" {
                // The length that the body would have, and none of it.
                self.send(stream, status, &headers, b"", said);
                return true;
            }
            return self.send(stream, status, &headers, &body, said);
        }
        let size = self.object.len() as u64;
        let Some(range) = request
            .header("range")
            .and_then(|text| parse_range(text, size))
        else {
            return self.send(
                stream,
                200,
                &self.validators(),
                &self.object,
                self.object.len(),
            );
        };
        self.send_range(stream, range.clone(), range, size)
    }

    fn validators(&self) -> Vec<(String, String)> {
        vec![("etag".into(), self.etag.lock().unwrap().clone())]
    }

    /// Sends the bytes of `body`, declared as the range `said`.
    fn send_range(
        &self,
        stream: &mut TcpStream,
        said: Range<u64>,
        body: Range<u64>,
        size: u64,
    ) -> bool {
        let mut headers = self.validators();
        let text = format!("bytes {}-{}/{size}", said.start, said.end - 1);
        headers.push(("content-range".into(), text));
        let bytes = &self.object[body.start as usize..body.end as usize];
        self.send(stream, 206, &headers, bytes, bytes.len())
    }

    fn send(
        &self,
        stream: &mut TcpStream,
        status: u16,
        headers: &[(String, String)],
        body: &[u8],
        said: usize,
    ) -> bool {
        let mut head = format!("HTTP/1.1 {status} x\r\ncontent-length: {said}\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.sent_bytes
            .fetch_add(body.len() as u64, Ordering::SeqCst);
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body));
        sent.is_ok() && said == body.len()
    }

    fn misbehave(&self, kind: u64, salt: u64, request: &Request, stream: &mut TcpStream) -> bool {
        let size = self.object.len() as u64;
        let range = request
            .header("range")
            .and_then(|text| parse_range(text, size));
        let range = range.unwrap_or(0..size);
        let bytes = &self.object[range.start as usize..range.end as usize];
        let cut = (salt % range.end.saturating_sub(range.start).max(1)) as usize;
        let mut headers = self.validators();
        let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        headers.push(("content-range".into(), text));
        match kind {
            0 => self.send(stream, 500 + (salt % 5) as u16, &[], b"", 0),
            // Closed before the first byte.
            1 => false,
            // Closed within the body, after its whole length was declared.
            2 => {
                self.send(stream, 206, &headers, &bytes[..cut], bytes.len());
                false
            }
            // A shorter body with a matching length.
            3 => self.send(stream, 206, &headers, &bytes[..cut], cut),
            // Another range, correctly declared.
            4 => {
                let shift = 1 + salt % 5000;
                let start = range.start.saturating_sub(shift);
                let other = start..(range.end + 1).min(size);
                let same = other == range;
                self.send_range(stream, other.clone(), other, size) && !same
            }
            // Another image.
            5 => {
                headers[0].1 = "\"two\"".into();
                self.send(stream, 206, &headers, bytes, bytes.len())
            }
            // An image of another size.
            6 => self.send_range(stream, range.clone(), range, size + 1),
            // The whole object.
            7 => self.send(
                stream,
                200,
                &self.validators(),
                &self.object,
                self.object.len(),
            ),
            // The right headers and wrong bytes: only the image's checksums detect that.
            8 => {
                let mut wrong = bytes.to_vec();
                if let Some(byte) = wrong.get_mut(cut) {
                    *byte ^= 1 << (salt >> 32 & 7);
                }
                self.send(stream, 206, &headers, &wrong, wrong.len())
            }
            // Not HTTP at all.
            _ => {
                let _ = stream.write_all(b"\x16\x03\x01 what is this\r\n\r\n");
                false
            }
        }
    }
}

/// A bucket: PUT with conditions, GET of ranges, HEAD, DELETE, and lists by pages.
#[derive(Default)]
pub(crate) struct Shelf {
    /// Objects by their paths (`/bucket/key`), with the number in their entity tags.
    pub(crate) objects: Mutex<BTreeMap<String, (Vec<u8>, u64)>>,
    tags: AtomicU64,
    /// Requests so far.
    pub(crate) done: AtomicU64,
    /// The request from which on all are refused, as to a client that has died; its own effect is
    /// there all the same. 0 for none.
    pub(crate) dies_at: AtomicU64,
    /// In 1000 requests, those that are answered by a passing error, with or without their effect.
    pub(crate) lost_per_mille: AtomicU64,
    /// True if conditions of writes are ignored.
    pub(crate) is_careless: AtomicBool,
    /// True if writes with conditions are not implemented.
    pub(crate) is_simple: AtomicBool,
    /// Keys that are listed, too, where they begin as was asked, and that nothing has.
    pub(crate) lies: Mutex<Vec<String>>,
    /// True if the bucket's object `elsewhere` is listed whatever was asked.
    pub(crate) is_astray: AtomicBool,
    /// True if each page of a list leads to itself.
    pub(crate) is_circular: AtomicBool,
    lost: Mutex<Option<Random>>,
}

impl Shelf {
    /// A server of an empty bucket. `check` sees each request first.
    pub(crate) fn serve(
        check: impl Fn(&Request) -> bool + Send + Sync + 'static,
    ) -> (Arc<Self>, Server) {
        let shelf = Arc::new(Self::default());
        *shelf.lost.lock().unwrap() = Some(Random::new(7));
        let served = Arc::clone(&shelf);
        let guard = move |request: &Request| {
            Some(match check(request) {
                true => served.answer(request),
                false => (403, Vec::new(), Vec::new()),
            })
        };
        (shelf, Server::with_guard(Vec::new(), Box::new(guard)))
    }

    /// Keys below a prefix of the bucket `bucket`.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let begin = format!("/bucket/{prefix}");
        let objects = self.objects.lock().unwrap();
        let keys = objects.keys().filter_map(|it| it.strip_prefix(&begin));
        keys.map(str::to_owned).collect()
    }

    fn answer(&self, request: &Request) -> Other {
        let number = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        let dies_at = self.dies_at.load(Ordering::SeqCst);
        if dies_at != 0 && number > dies_at {
            return (403, Vec::new(), Vec::new());
        }
        let (is_lost, has_effect) = {
            let mut lost = self.lost.lock().unwrap();
            let random = lost.as_mut().unwrap();
            let is_lost = random.below(1000) < self.lost_per_mille.load(Ordering::SeqCst);
            (is_lost, random.below(2) == 0)
        };
        if is_lost && !has_effect {
            return (503, Vec::new(), Vec::new());
        }
        let answer = self.act(request);
        match (dies_at == number, is_lost) {
            (true, _) => (403, Vec::new(), Vec::new()),
            (_, true) => (500, Vec::new(), Vec::new()),
            _ => answer,
        }
    }

    fn act(&self, request: &Request) -> Other {
        let path = request.path.as_str();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let path = decoded(path);
        let mut objects = self.objects.lock().unwrap();
        let tag_of = |tag: u64| vec![("etag".to_owned(), format!("\"t{tag}\""))];
        let found = objects.get(&path).map(|(bytes, tag)| (bytes.clone(), *tag));
        match &*request.method {
            "GET" if query.contains("list-type=2") => {
                drop(objects);
                self.list(query)
            }
            "GET" | "HEAD" => {
                let Some((bytes, tag)) = found else {
                    return error(404, "NoSuchKey");
                };
                let mut headers = tag_of(tag);
                let size = bytes.len() as u64;
                let range = request.header("range");
                match range.map(|text| parse_range(text, size)) {
                    None => (200, headers, bytes),
                    Some(Some(range)) if range.start < range.end && range.end <= size => {
                        let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                        headers.push(("content-range".to_owned(), text));
                        let part = bytes[range.start as usize..range.end as usize].to_vec();
                        (206, headers, part)
                    }
                    Some(_) => error(416, "InvalidRange"),
                }
            }
            "PUT" => {
                let wants_none = request.header("if-none-match") == Some("*");
                let wanted = request.header("if-match");
                let is_bound = wants_none || wanted.is_some();
                if is_bound && self.is_simple.load(Ordering::SeqCst) {
                    return error(501, "NotImplemented");
                }
                let tag = found.map(|(_, tag)| format!("\"t{tag}\""));
                let holds = match (wanted, &tag) {
                    (Some(_), None) => return error(404, "NoSuchKey"),
                    (Some(wanted), Some(tag)) => wanted == tag,
                    (None, tag) => !wants_none || tag.is_none(),
                };
                if !holds && !self.is_careless.load(Ordering::SeqCst) {
                    return error(412, "PreconditionFailed");
                }
                let tag = self.tags.fetch_add(1, Ordering::SeqCst) + 1;
                objects.insert(path, (request.body.clone(), tag));
                (200, tag_of(tag), Vec::new())
            }
            "DELETE" => {
                objects.remove(&path);
                (204, Vec::new(), Vec::new())
            }
            _ => error(405, "MethodNotAllowed"),
        }
    }

    /// A page of three keys, from the one that the token names.
    fn list(&self, query: &str) -> Other {
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(it, _)| *it == name).map(|(_, it)| decoded(it))
        };
        let prefix = value("prefix").unwrap_or_default();
        let mut keys = self.keys(&prefix);
        keys.iter_mut()
            .for_each(|key| *key = format!("{prefix}{key}"));
        let lies = self.lies.lock().unwrap();
        keys.extend(lies.iter().filter(|it| it.starts_with(&prefix)).cloned());
        if self.is_astray.load(Ordering::SeqCst) {
            keys.push("elsewhere".to_owned());
        }
        let start: usize = value("continuation-token").map_or(0, |it| it.parse().unwrap());
        let end = keys.len().min(start + 3);
        let (is_more, next) = match self.is_circular.load(Ordering::SeqCst) {
            true => (true, start),
            false => (end < keys.len(), end),
        };
        let mut text = format!("<ListBucketResult><IsTruncated>{is_more}</IsTruncated>");
        for key in &keys[start.min(end)..end] {
            let key = key.replace('&', "&amp;").replace('<', "&lt;");
            text.push_str(&format!("<Contents><Key>{key}</Key></Contents>"));
        }
        let token = format!("<NextContinuationToken>{next}</NextContinuationToken>");
        text.push_str(if is_more { &token } else { "" });
        text.push_str("</ListBucketResult>");
        (200, Vec::new(), text.into_bytes())
    }
}

/// A refusal as S3 words it.
fn error(status: u16, code: &str) -> Other {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    (status, Vec::new(), text.into_bytes())
}

/// Text of a URL without its percent signs.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.take(16 << 10).read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let mut words = lines.first()?.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let headers = lines[1..].iter().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    });
    let mut request = Request {
        method,
        path,
        headers: headers.collect(),
        body: Vec::new(),
    };
    let len: usize = request
        .header("content-length")
        .map_or(0, |text| text.parse().unwrap());
    request.body.resize(len, 0);
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

pub(crate) fn parse_range(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        return Some(size.saturating_sub(last.parse().ok()?)..size);
    }
    let last: u64 = last.parse().ok()?;
    Some(first.parse().ok()?..size.min(last + 1))
}

const KINDS: u64 = 10;
