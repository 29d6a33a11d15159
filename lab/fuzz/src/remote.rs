//! Servers' answers (headers, bodies, redirects, refusals, challenges, documents and logins) and
//! the URLs that users give.
//!
//! The HTTP library parses status lines and chunks; `image/remote/tests/suite/hostile.rs` runs
//! servers that damage those.

use reqwest::Url;
use reqwest::header::{ETAG, HeaderMap, HeaderName, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use sidecore_remote::Location;
use sidecore_remote::origin::oci::documents::{Manifest, token};
use sidecore_remote::origin::oci::login::{Challenge, Logins};
use sidecore_remote::origin::{Ask, Identity, bucket, reply};
use std::time::{Duration, Instant};

/// Plays a server: the first byte selects the request, then come header lines up to an empty one,
/// then the body.
///
/// # Panics
/// If a forbidden answer is accepted.
pub fn fuzz_answer(data: &[u8]) {
    let Some((&asked, rest)) = data.split_first() else {
        return;
    };
    let (headers, body) = head_and_body(rest);
    a_part(asked, &headers, body);
    a_redirect(asked, &headers);
    a_challenge(asked, &headers, body);
    documents(&headers, body);
    let until = Instant::now() + Duration::from_secs(60);
    if let Some(code) = reply::error_code(body, until) {
        assert!(code.len() <= 64 && code.bytes().all(|b| b.is_ascii_alphanumeric()));
    }
    if let Ok(page) = bucket::page(body) {
        let is_token = |next: &String| (1..=4096).contains(&next.len());
        assert!(page.keys.len() <= 1000 && page.next.as_ref().is_none_or(is_token));
    }
    a_location(body);
}

fn head_and_body(data: &[u8]) -> (HeaderMap, &[u8]) {
    let mut headers = HeaderMap::new();
    let mut rest = data;
    while headers.len() < HEADERS_MAX {
        let end = rest.iter().position(|&byte| byte == b'\n');
        let Some(end) = end else { break };
        let (line, more) = (&rest[..end], &rest[end + 1..]);
        rest = more;
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            break;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    (headers, rest)
}

/// A part of an image.
fn a_part(asked: u8, headers: &HeaderMap, body: &[u8]) {
    let ask = match asked % 4 {
        0 => Ask::Range(0..10),
        1 => Ask::Part(5..100),
        2 => Ask::Head(128 << 10),
        _ => Ask::Tail(384 << 10),
    };
    let validator = headers.get(ETAG).and_then(|value| value.to_str().ok());
    let known = Identity {
        size_bytes: 10,
        validator: validator.map(str::to_owned),
    };
    let known = (asked & 4 != 0).then_some(&known);
    let layer_bytes = (asked & 8 != 0).then_some(10);
    let Ok(promise) = reply::promise(headers, &ask, known, layer_bytes) else {
        return;
    };
    let size = promise.identity.size_bytes;
    let range = promise.range;
    assert!(
        range.start < range.end && range.end <= size,
        "{range:?} of {size}"
    );
    assert_eq!(range, ask.of_size(size));
    let bytes = range.end - range.start;
    assert!(bytes <= 384 << 10, "more than was asked for");
    if layer_bytes.is_some() || known.is_some() {
        assert_eq!(size, 10);
    }
    let until = Instant::now() + Duration::from_secs(60);
    let mut told = 0;
    let bytes = usize::try_from(bytes).expect("at most what was asked for");
    if let Ok(read) = reply::body(body, bytes, until, &mut |more| told += more) {
        assert_eq!((read.as_slice(), told), (body, bytes as u64));
    }
}

fn a_redirect(asked: u8, headers: &HeaderMap) {
    let from = match asked % 2 {
        0 => "https://host.example.com/a/image?x=y",
        _ => "http://127.0.0.1:8080/image",
    };
    let Ok(from) = Url::parse(from) else { return };
    if let Ok(next) = reply::redirected(&from, headers) {
        let is_safe = next.scheme() == "https" || from.scheme() == "http";
        assert!(
            is_safe && matches!(next.scheme(), "http" | "https"),
            "{next}"
        );
        assert!(headers.contains_key(LOCATION));
    }
}

/// A challenge, and the login sent to the service that it names; the body is the file of logins.
fn a_challenge(asked: u8, headers: &HeaderMap, body: &[u8]) {
    let logins = Logins::read(body);
    let challenge = headers.get(WWW_AUTHENTICATE);
    let challenge = challenge.and_then(|value| value.to_str().ok());
    let Some(Ok(challenge)) = challenge.and_then(Challenge::read) else {
        return;
    };
    let registry = REGISTRIES[usize::from(asked) % REGISTRIES.len()];
    let Ok(registry) = Url::parse(registry) else {
        return;
    };
    let own = (asked & 64 != 0).then_some("b3du");
    let service = &challenge.service;
    let Ok(login) = logins.of_service(&registry, service, own) else {
        return;
    };
    assert!(service.username().is_empty() && service.password().is_none());
    let host = |url: &Url| {
        url.host_str()
            .unwrap_or_default()
            .trim_end_matches('.')
            .to_owned()
    };
    let (at, to) = (host(&registry), host(service));
    let here = |host: &str| matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    if service.scheme() != "https" {
        assert!(
            registry.scheme() == "http" && here(&at) && here(&to),
            "{service}"
        );
    }
    if login.as_deref() == Some("b3du") && !body.windows(4).any(|it| it == b"b3du") {
        let last = |host: &str| host.rsplit('.').next().unwrap_or_default().to_owned();
        assert!(
            at == to || here(&at) && here(&to) || last(&at) == last(&to),
            "{service}"
        );
    }
}

fn documents(headers: &HeaderMap, body: &[u8]) {
    let given = headers.get("docker-content-digest");
    let given = given.and_then(|value| value.to_str().ok());
    let is_digest =
        |it: &str| it.len() == 64 && it.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if let Ok(manifest) = Manifest::read(body, "latest", given) {
        if let Some(Ok(digest)) = manifest.for_this_machine() {
            assert!(
                digest.strip_prefix("sha256:").is_some_and(is_digest),
                "{digest}"
            );
        }
        if let Ok(layer) = manifest.image() {
            assert!(is_digest(&layer.sha256), "{}", layer.sha256);
        }
    }
    // No contents have the digest of other contents.
    let other = format!("sha256:{}", "0".repeat(64));
    assert!(Manifest::read(body, &other, None).is_err());
    if let Ok(token) = token(body) {
        assert!(HeaderValue::from_str(&format!("Bearer {token}")).is_ok());
    }
}

fn a_location(body: &[u8]) {
    let Ok(text) = std::str::from_utf8(body) else {
        return;
    };
    match Location::parse(text) {
        Some(Ok(location)) => {
            let shown = location.to_string();
            assert!(!matches!(location, Location::Http(_)) || !shown.contains(['?', '#']));
            if let Some(sidecar) = location.sidecar() {
                assert!(Location::parse(&sidecar.to_string()).is_some_and(|it| it.is_ok()));
            }
        }
        Some(Err(error)) => assert!(!error.to_string().is_empty()),
        None => {}
    }
}

/// Answers that are accepted, and some that are refused.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let digest = "0".repeat(64);
    let manifest = format!(
        "\x02Docker-Content-Digest: sha512:1\n\n{{\"layers\":[{{\"mediaType\":\"x\",\
         \"digest\":\"sha256:{digest}\",\"size\":10}}]}}"
    );
    let index = format!(
        "\x02\n{{\"manifests\":[{{\"digest\":\"sha256:{digest}\",\"size\":1,\"platform\":\
         {{\"architecture\":\"amd64\",\"os\":\"linux\"}}}}]}}"
    );
    let challenge = |at: u8, realm: &str| {
        let logins = "{\"auths\":{\"auth.other.net\":{\"auth\":\"b3RoZXI=\"}}}";
        let realm = format!("Bearer realm=\"{realm}\",service=\"s\",scope=\"a:b:pull,push\"");
        [
            &[at][..],
            format!("WWW-Authenticate: {realm}\n\n{logins}").as_bytes(),
        ]
        .concat()
    };
    let texts = [
        "\x00Content-Range: bytes 0-9/10\nETag: \"1\"\n\n0123456789",
        "\x0dContent-Range: bytes 5-9/10\nLast-Modified: x\n\n56789",
        "\x02Content-Range: bytes 0-9/10\n\n0123456789",
        "\x03Content-Range: bytes 0-9/10\nContent-Encoding: gzip\n\n0123456789",
        "\x00Content-Range: bytes 0-18446744073709551614/18446744073709551615\n\n",
        "\x00Location: /other?sig=x\n\n",
        "\x01Location: https://elsewhere/x\n\n",
        "\x00Location: file:///etc/passwd\n\n",
        "\x00\n<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code></Error>",
        "\x00\n{\"token\":\"a.b-c\",\"expires_in\":300}",
        "\x00\n{\"access_token\":\"t\"}",
        "\x00\nhttps://host/a.img?sig=secret",
        "\x00\noci://reg:5000/a/b@sha256:1",
        "\x00\ns3://bucket/a key",
        &manifest,
        &index,
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    seeds.push(challenge(64, "https://auth.example.com/token"));
    seeds.push(challenge(65, "https://auth.docker.io/token"));
    seeds.push(challenge(66, "http://127.0.0.1:5001/auth"));
    seeds.push(challenge(67, "https://auth.other.net/token"));
    seeds
}

const REGISTRIES: [&str; 4] = [
    "https://reg.example.com/v2/a",
    "https://registry-1.docker.io/v2/library/a",
    "http://localhost:5000/v2/a",
    "https://registry.git.lan/v2/a",
];
/// The limit of the HTTP library.
const HEADERS_MAX: usize = 100;
