//! The page's server, asked byte by byte: what it answers, and what it refuses.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_status::{Kind, Publisher, Servers};
use sidecore_ui::{Address, Options, Page};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A page, the host and port that it is at, and its token.
struct Served {
    page: Page,
    host: String,
    token: String,
}

impl Served {
    fn start(options: Options) -> Self {
        let page = Page::start(options).unwrap();
        let (host, token) = page.url()[7..].split_once("/?token=").unwrap();
        let (host, token) = (host.to_owned(), token.to_owned());
        assert_eq!(token.len(), 32);
        Self { page, host, token }
    }

    fn usual() -> Self {
        Self::start(Options {
            source: Box::new(Vec::new),
            tree: Some(("a.nwk".to_owned(), "(a,b);".to_owned())),
            ..Options::default()
        })
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The whole answer to a request's head, after which the connection ends.
    fn raw(&self, head: &str) -> String {
        answer(self.connect(), head)
    }

    fn get(&self, path: &str, more: &str) -> String {
        let host = &self.host;
        self.raw(&format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n"
        ))
    }

    /// A path below the token.
    fn own(&self, path: &str) -> String {
        format!("/{}{path}", self.token)
    }
}

fn answer(mut stream: impl Read + Write, head: &str) -> String {
    // A server that refuses may be gone before all is sent.
    stream.write_all(head.as_bytes()).ok();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).unwrap_or_default();
    code.parse().unwrap_or(0)
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[test]
fn the_token_opens_everything_and_nothing_opens_without() {
    let served = Served::usual();
    let paths = [
        "/",
        "/ui.js",
        "/ui.css",
        "/icon.svg",
        "/api/state",
        "/api/tree/file",
    ];
    for path in paths {
        let found = served.get(&served.own(path), "");
        assert_eq!(status(&found), 200, "{path}: {found}");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(found.contains(header), "{path}: {header}");
        }
        let refused = served.get(path, "");
        assert_eq!(status(&refused), 403, "{path}");
        assert!(refused.contains("content-security-policy: "), "{path}");
        // All paths are refused in the same words.
        assert_eq!(body(&refused), body(&served.get("/nothing", "")));
        let wrong = "0".repeat(32);
        assert_eq!(status(&served.get(&format!("/{wrong}{path}"), "")), 403);
        assert_eq!(
            status(&served.get(&format!("{path}?token={wrong}"), "")),
            403
        );
    }
    // The printed address leads to the page.
    let entered = served.get(&format!("/?token={}", served.token), "");
    assert_eq!(status(&entered), 303);
    assert!(entered.contains(&format!("location: /{}/\r\n", served.token)));
    assert!(body(&served.get(&served.own("/"), "")).starts_with("<!doctype html>"));
}

#[test]
fn the_state_and_trees_are_sent_once() {
    let served = Served::usual();
    // The first sample is taken at once.
    let state = loop {
        let found = served.get(&served.own("/api/state?since=0"), "");
        let state: serde_json::Value = serde_json::from_str(body(&found)).unwrap();
        if state["sequence"] != 0 {
            break state;
        }
    };
    assert_eq!(
        (&state["tree_file"], &state["servers"]),
        (&"a.nwk".into(), &serde_json::json!([]))
    );
    assert_eq!(
        status(&served.get(&served.own("/api/state?since=-1"), "")),
        400
    );
    assert_eq!(
        status(&served.get(&served.own("/api/state?since=x"), "")),
        400
    );
    let tree = served.get(&served.own("/api/tree/file"), "");
    assert_eq!(body(&tree), "(a,b);");
    let tag = tree
        .lines()
        .find_map(|line| line.strip_prefix("etag: "))
        .unwrap();
    let again = served.get(
        &served.own("/api/tree/file"),
        &format!("If-None-Match: {tag}\r\n"),
    );
    assert_eq!((status(&again), body(&again)), (304, ""));
    for id in [
        "1",
        "99999999999999999999",
        "-1",
        "",
        "file/",
        "../tree/file",
    ] {
        let found = served.get(&served.own(&format!("/api/tree/{id}")), "");
        assert_eq!(status(&found), 404, "{id}");
    }
}

#[test]
fn a_server_that_publishes_itself_appears_and_goes() {
    let folder = tempfile::tempdir().unwrap();
    let servers = Servers::at(folder.path().join("servers"));
    let read = Arc::new(AtomicU64::new(4096));
    let counter = Arc::clone(&read);
    let publisher = Publisher::start_in(&servers, Kind::Image, "/srv/a.img", move || {
        let bytes = counter.fetch_add(1_000_000, Ordering::Relaxed);
        serde_json::json!({"image": "/srv/a.img", "way": "serve", "read_bytes": bytes})
    });
    assert!(publisher.is_published());
    let served = Served::start(Options {
        source: Box::new(move || servers.list(Duration::from_secs(1))),
        period: Duration::from_millis(20),
        ..Options::default()
    });
    let state = || {
        let found = served.get(&served.own("/api/state?since=0"), "");
        serde_json::from_str::<serde_json::Value>(body(&found)).unwrap()
    };
    let until = |holds: &dyn Fn(&serde_json::Value) -> bool| {
        let begun = Instant::now();
        loop {
            let state = state();
            if holds(&state["servers"][0]) {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{state}");
        }
    };
    // Its second answer makes a rate.
    until(&|server| {
        let track = server["tracks"][0].as_array().into_iter().flatten();
        track
            .filter_map(serde_json::Value::as_f64)
            .any(|rate| rate > 0.0)
    });
    until(&|server| server["image"] == "/srv/a.img" && server["is_ended"] == false);
    drop(publisher);
    until(&|server| server["is_ended"] == true || server.is_null());
}

#[test]
fn nothing_but_reading_is_answered() {
    let served = Served::usual();
    let (host, path) = (&served.host, served.own("/"));
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        let refused = served.raw(&head);
        assert_eq!(status(&refused), 405, "{method}");
        assert!(refused.contains("allow: GET, HEAD\r\n"), "{method}");
    }
    let head = format!("HEAD {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let found = served.raw(&head);
    assert_eq!((status(&found), body(&found)), (200, ""));
    // A body with a GET is not read as the next request.
    let inner = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let found = served.get(&path, &format!("Content-Length: {}\r\n", inner.len()));
    assert_eq!(found.matches("HTTP/1.1 ").count(), 1);
}

#[test]
fn other_hosts_and_origins_are_refused() {
    let served = Served::usual();
    let path = served.own("/api/state");
    let with = |lines: &str| {
        served.raw(&format!(
            "GET {path} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n"
        ))
    };
    let host = &served.host;
    for (lines, expected) in [
        (format!("Host: {host}\r\n"), 200),
        ("Host: localhost:8080\r\n".to_owned(), 200),
        ("Host: rebound.example\r\n".to_owned(), 403),
        (
            format!("Host: rebound.example\r\nX-Forwarded-Host: {host}\r\n"),
            403,
        ),
        (format!("Host: {host}\r\nHost: rebound.example\r\n"), 403),
        (String::new(), 403),
        (format!("Host: {host}\r\nOrigin: http://{host}\r\n"), 200),
        (
            format!("Host: {host}\r\nOrigin: http://rebound.example\r\n"),
            403,
        ),
        (format!("Host: {host}\r\nOrigin: null\r\n"), 403),
        (
            format!("Host: {host}\r\nSec-Fetch-Site: cross-site\r\n"),
            403,
        ),
        (
            format!("Host: {host}\r\nSec-Fetch-Site: same-origin\r\n"),
            200,
        ),
    ] {
        assert_eq!(status(&with(&lines)), expected, "{lines}");
    }
}

#[test]
fn hostile_requests_are_refused_and_the_page_goes_on() {
    let served = Served::usual();
    let host = served.host.clone();
    for path in [
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/ui.js%00.css",
        "//etc/passwd",
        "/ui.css/..",
        "/\\..\\..",
    ] {
        let found = served.get(&served.own(path), "");
        assert!(matches!(status(&found), 404 | 400), "{path}: {found}");
        assert!(!found.contains("root:"), "{path}");
    }
    let long = "a".repeat(200_000);
    let many = "X-A: b\r\n".repeat(500);
    for head in [
        "\r\n\r\n\r\n".to_owned(),
        "GET\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}".repeat(400),
        format!("GET /{long} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Long: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\n{many}\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\nContent-Length: 8\r\n\r\n"),
        format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    ] {
        let mut stream = served.connect();
        stream.write_all(head.as_bytes()).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).ok();
        let said = String::from_utf8_lossy(&said);
        let refused = said.is_empty() || matches!(status(&said), 400..=499);
        let start: String = head.chars().take(40).collect();
        assert!(refused, "{start:?}: {said}");
    }
    assert_eq!(status(&served.get(&served.own("/"), "")), 200);
}

#[test]
fn a_thousand_silent_connections_keep_no_other_out() {
    let served = Served::usual();
    let mut silent: Vec<TcpStream> = Vec::new();
    for number in 0..1000 {
        let mut stream = served.connect();
        if number % 2 == 0 {
            // As slow as can be.
            stream.write_all(b"G").ok();
        }
        silent.push(stream);
        if number % 250 == 249 {
            assert_eq!(
                status(&served.get(&served.own("/"), "")),
                200,
                "after {number}"
            );
        }
    }
    // The oldest were displaced by newer ones; these are closed, with or without a reset.
    let is_closed = |stream: &mut TcpStream| !matches!(stream.read(&mut [0; 64]), Ok(1..));
    assert!(silent[..900].iter_mut().all(is_closed));
}

#[test]
fn readers_that_do_not_read_hold_up_no_other() {
    let tree = format!("({});", "x".repeat(8 << 20));
    let served = Served::start(Options {
        source: Box::new(Vec::new),
        tree: Some(("large.nwk".to_owned(), tree)),
        ..Options::default()
    });
    let path = served.own("/api/tree/file");
    let slow: Vec<TcpStream> = (0..32)
        .map(|_| {
            let mut stream = served.connect();
            let host = &served.host;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(status(&served.get(&served.own("/api/state"), "")), 200);
    }
    let whole = served.get(&path, "");
    assert_eq!(body(&whole).len(), (8 << 20) + 3);
    drop(slow);
}

#[test]
fn a_stopped_page_is_gone_with_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ui.sock");
    let served = Served::start(Options {
        address: Address::Socket(path.clone()),
        source: Box::new(Vec::new),
        ..Options::default()
    });
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    let head =
        |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let ask = |path: &str| {
        answer(
            UnixStream::connect(folder.path().join("ui.sock")).unwrap(),
            &head(path),
        )
    };
    assert_eq!(status(&ask(&served.own("/"))), 200);
    // A forwarded socket is as open as its port is.
    assert_eq!(status(&ask("/")), 403);
    let again = Page::start(Options {
        address: Address::Socket(path.clone()),
        ..Options::default()
    });
    assert!(again.unwrap_err().to_string().contains("ui.sock"));
    let stopper = served.page.stopper();
    let stopping = std::thread::spawn(move || stopper.stop());
    served.page.wait();
    stopping.join().unwrap();
    assert!(!path.exists());
}

/// A program in Python, as another user; its standard output.
fn as_another_user(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("setpriv")
        // A python of root's own is no other user's.
        .env("PATH", "/usr/bin:/bin")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "python3",
            "-c",
            program,
        ])
        .args(arguments)
        .output()
        .expect("setpriv and python3; scripts/setup installs them");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn another_user_reads_nothing() {
    if sidecore_sys::local_socket::effective_uid() != 0 {
        eprintln!("NOT checked: only root can be another user");
        return;
    }
    let served = Served::usual();
    let program = "import socket, sys\n\
                   host, port = sys.argv[1].rsplit(':', 1)\n\
                   for path in '/', '/api/state', '/?token=' + '0' * 32:\n\
                   \x20   s = socket.create_connection((host, int(port)))\n\
                   \x20   head = f'GET {path} HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n'\n\
                   \x20   s.sendall(head.encode())\n\
                   \x20   print(s.recv(12).decode())\n";
    let said = as_another_user(program, &[&served.host]);
    assert_eq!(said, "HTTP/1.0 403\n".repeat(3));

    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("ui.sock");
    let served = Served::start(Options {
        address: Address::Socket(path.clone()),
        source: Box::new(Vec::new),
        ..Options::default()
    });
    let program = "import socket, sys\n\
                   s = socket.socket(socket.AF_UNIX)\n\
                   try:\n\
                   \x20   s.connect(sys.argv[1])\n\
                   \x20   head = f'GET {sys.argv[2]} HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n'\n\
                   \x20   s.sendall(head.encode())\n\
                   \x20   print(len(s.recv(12)))\n\
                   except OSError as error:\n\
                   \x20   print(type(error).__name__)\n";
    let page = served.own("/");
    let arguments = [path.to_str().unwrap(), &page];
    assert_eq!(as_another_user(program, &arguments), "PermissionError\n");
    // By its mode, and where that was changed, by the kernel's word about the peer.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    let said = as_another_user(program, &arguments);
    let refused = ["0\n", "BrokenPipeError\n", "ConnectionResetError\n"];
    assert!(refused.contains(&&*said), "{said}");
}

/// A test waits for this long before it fails.
const PATIENCE: Duration = Duration::from_secs(60);
