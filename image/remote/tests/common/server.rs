//! A server of one object for tests: ranges over HTTP/1.1, and on request all kinds of faults.
//!
//! Must stay true: its faults are drawn from its seed; it stops when it is dropped.

#![allow(clippy::unwrap_used, dead_code)] // Helper functions of tests; none uses all of them.

use sidecore_random::Random;
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
            return self.send(stream, status, &headers, &body, body.len());
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

fn parse_range(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        return Some(size.saturating_sub(last.parse().ok()?)..size);
    }
    let last: u64 = last.parse().ok()?;
    Some(first.parse().ok()?..size.min(last + 1))
}

const KINDS: u64 = 10;
