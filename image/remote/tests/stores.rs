//! Images in an S3 store and in a registry, each played by a stub that checks its requests; and
//! stores of versions in a bucket.

#![allow(clippy::unwrap_used)] // A test's helpers may fail it too.

#[path = "suite/bucket.rs"]
mod bucket;
mod common;

use common::server::{Other, Request, Server};
use common::{device, eager, open, options, packed};
use ring::{digest, hmac};
use sidecore_block::format::Format;
use sidecore_block::source::BlockSource;
use sidecore_remote::{ImageManifest, Location, RemoteImage, Repository};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// Checks a request's signature as a store does: everything but the secret is taken from the
/// request.
fn signature_is_right(request: &Request, secret: &str) -> Option<bool> {
    let authorization = request.header("authorization")?;
    let fields = authorization.strip_prefix("AWS4-HMAC-SHA256 ")?;
    let field = |name: &str| {
        let mut fields = fields.split(", ");
        fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    let (_, scope) = field("Credential")?.split_once('/')?;
    let names = field("SignedHeaders")?;
    let path = request.path.as_str();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut pairs: Vec<&str> = query.split('&').collect();
    pairs.sort_unstable();
    let mut canonical = format!("{}\n{path}\n{}\n", request.method, pairs.join("&"));
    for name in names.split(';') {
        canonical.push_str(&format!("{name}:{}\n", request.header(name)?));
    }
    let payload = request.header("x-amz-content-sha256")?;
    if request.method == "PUT" && payload != sha256(&request.body) {
        return None;
    }
    canonical.push_str(&format!("\n{names}\n{payload}"));
    let time = request.header("x-amz-date")?;
    let text = format!(
        "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
        sha256(canonical.as_bytes())
    );
    let mut key = format!("AWS4{secret}").into_bytes();
    for part in scope.split('/').chain([&*text]) {
        let signer = hmac::Key::new(hmac::HMAC_SHA256, &key);
        key = hmac::sign(&signer, part.as_bytes()).as_ref().to_vec();
    }
    let signed = names.split(';').collect::<Vec<_>>();
    let conditions = ["range", "if-match", "if-none-match"];
    let mut sent = conditions.iter().filter(|it| request.header(it).is_some());
    let all = ["host", "x-amz-date"].iter().all(|it| signed.contains(it))
        && sent.all(|it| signed.contains(it));
    Some(all && field("Signature")? == hex(&key))
}

/// Sets the variables that name an S3 store and its keys.
#[allow(unsafe_code)] // Variables of this process.
fn set_variables(host: &str, secret: &str) {
    let endpoint = format!("http://{host}");
    for (name, value) in [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "a key"),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_SESSION_TOKEN", "a token"),
    ] {
        // SAFETY: no other thread of this test binary reads or sets variables: each test here
        // holds the lock of them.
        unsafe { std::env::set_var(name, value) }
    }
}

#[test]
fn an_object_of_a_store_is_read_with_signed_requests() {
    let (raw, image) = packed(2 << 20, Format::Zstd, 64 << 10);
    let server = Server::with_guard(
        image,
        Box::new(|request| {
            let is_signed = signature_is_right(request, "a secret").unwrap_or(false);
            let right = is_signed && request.header("range").is_some();
            let place = request.path == "/bucket/dir/an%20image";
            (!right || !place).then(|| (403, Vec::new(), request.path.clone().into_bytes()))
        }),
    );
    let _alone = ENVIRONMENT.lock().unwrap();
    set_variables(&server.host(), "a secret");
    let url = "s3://bucket/dir/an image";
    let device = device(&open(url, options()));
    let mut found = vec![0; raw.len()];
    device.read_into(0, &mut found).unwrap();
    assert!(found == raw);
    set_variables(&server.host(), "another secret");
    let location = Location::parse(url).unwrap().unwrap();
    let error = RemoteImage::open(&location, options())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("403") && error.contains(url), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

static ENVIRONMENT: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A registry that requires a token, sends blobs from another host, and has an index of manifests.
struct Registry {
    server: Server,
    elsewhere: Server,
    tokens: Arc<AtomicU64>,
}

impl Registry {
    fn start(image: &[u8], wrong_digest: bool) -> Self {
        let elsewhere = Server::with_guard(
            image.to_vec(),
            Box::new(|request| {
                // A token must not be sent to the target of a redirect.
                let leaked = request.header("authorization").is_some();
                leaked.then(|| (500, Vec::new(), Vec::new()))
            }),
        );
        let layer = format!("sha256:{}", sha256(image));
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"digest":"sha256:{0}","size":2}},"layers":[
               {{"mediaType":"application/vnd.sidecore.image","digest":"{layer}","size":{1}}}]}}"#,
            sha256(b"{}"),
            image.len()
        );
        let name = format!("sha256:{}", sha256(manifest.as_bytes()));
        let index = format!(
            r#"{{"manifests":[{{"digest":"sha256:{0}","size":1,
                 "platform":{{"architecture":"s390x","os":"linux"}}}},
               {{"digest":"{name}","size":{1},
                 "platform":{{"architecture":"{2}","os":"linux"}}}}]}}"#,
            "0".repeat(64),
            manifest.len(),
            if cfg!(target_arch = "aarch64") {
                "arm64"
            } else {
                "amd64"
            },
        );
        let tokens = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&tokens);
        let blob = elsewhere.url();
        let guard = move |request: &Request| -> Option<Other> {
            let host = request.header("host").unwrap_or_default();
            if request.path.starts_with("/token") {
                let right = request.path.contains("service=reg") && request.path.contains("pull");
                count.fetch_add(1, Ordering::SeqCst);
                let body = br#"{"token":"a-token"}"#.to_vec();
                return Some((if right { 200 } else { 400 }, Vec::new(), body));
            }
            if request.header("authorization") != Some("Bearer a-token") {
                let challenge = format!(
                    "Bearer realm=\"http://{host}/token\",service=\"reg\",\
                     scope=\"repository:a/b:pull,push\""
                );
                let headers = vec![("www-authenticate".to_owned(), challenge)];
                return Some((401, headers, Vec::new()));
            }
            let found = match &*request.path {
                "/v2/a/b/manifests/v1" => index.clone(),
                path if path == format!("/v2/a/b/manifests/{name}") => {
                    if wrong_digest {
                        manifest.replace("schemaVersion", "schemaversion")
                    } else {
                        manifest.clone()
                    }
                }
                path if path == format!("/v2/a/b/blobs/{layer}") => {
                    let headers = vec![("location".to_owned(), format!("{blob}?signed"))];
                    return Some((307, headers, Vec::new()));
                }
                _ => return Some((404, Vec::new(), Vec::new())),
            };
            Some((200, Vec::new(), found.into_bytes()))
        };
        Self {
            server: Server::with_guard(Vec::new(), Box::new(guard)),
            elsewhere,
            tokens,
        }
    }

    fn url(&self) -> String {
        format!("oci://{}/a/b:v1", self.server.host())
    }
}

#[test]
fn a_layer_of_a_registry_is_read_through_its_token_and_redirect() {
    let (raw, image) = packed(2 << 20, Format::Zstd, 64 << 10);
    let registry = Registry::start(&image, false);
    let _alone = ENVIRONMENT.lock().unwrap();
    let remote = open(&registry.url(), options());
    assert_eq!(remote.sha256(), Some(&*sha256(&image)));
    assert_eq!(remote.check_sha256().unwrap(), Some(true));
    let device = device(&remote);
    let mut found = vec![0; raw.len()];
    device.read_into(0, &mut found).unwrap();
    assert!(found == raw);
    assert_eq!(registry.tokens.load(Ordering::SeqCst), 1, "tokens are kept");
    // From then on the target of a redirect is requested directly.
    let asked = registry.server.requests();
    assert!(asked <= 10, "{asked} requests to the registry itself");
    assert!(registry.elsewhere.requests() >= 4);
}

#[test]
fn a_manifest_without_its_digest_is_refused() {
    let (_, image) = packed(1 << 20, Format::Zstd, 64 << 10);
    let registry = Registry::start(&image, true);
    let _alone = ENVIRONMENT.lock().unwrap();
    let location = Location::parse(&registry.url()).unwrap().unwrap();
    let error = RemoteImage::open(&location, options())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("digest"), "{error}");
}

/// Pushes an artifact to a registry that keeps no lists of them itself, and that answers so to a
/// request for the tag under which clients keep one. Returns what was put under the tag.
fn put_under_the_tag(status: u16, old: &str) -> (bool, Option<String>) {
    let put = Arc::new(Mutex::new(None));
    let (kept, old) = (Arc::clone(&put), old.to_owned());
    let guard = move |request: &Request| -> Option<Other> {
        let is_of_the_tag = request.path.contains("/manifests/sha256-");
        Some(match &*request.method {
            "PUT" if is_of_the_tag => {
                let text = String::from_utf8(request.body.clone()).unwrap();
                *kept.lock().unwrap() = Some(text);
                (201, Vec::new(), Vec::new())
            }
            "PUT" => (201, Vec::new(), Vec::new()),
            "GET" if is_of_the_tag => (status, Vec::new(), old.clone().into_bytes()),
            // It has all blobs.
            "HEAD" => (200, Vec::new(), Vec::new()),
            _ => (404, Vec::new(), Vec::new()),
        })
    };
    let server = Server::with_guard(Vec::new(), Box::new(guard));
    let repository = Repository::new(&server.host(), "a/b", eager()).unwrap();
    let subject = br#"{"schemaVersion":2,"layers":[]}"#.to_vec();
    let subject = ImageManifest::of_text(subject).unwrap();
    let pushed = repository.push_referrer(&subject, "application/x", Vec::new());
    let put = put.lock().unwrap().take();
    (pushed.is_ok(), put)
}

#[test]
fn artifacts_of_others_stay_in_the_list_under_a_tag() {
    let _alone = ENVIRONMENT.lock().unwrap();
    let other = format!("sha256:{}", "7".repeat(64));
    let old = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"m","digest":"{other}","size":1}}]}}"#
    );
    let (is_pushed, list) = put_under_the_tag(200, &old);
    let list = list.unwrap();
    assert!(is_pushed && list.contains(&other), "{list}");
    assert!(list.contains("application/x"), "{list}");
    let (is_pushed, list) = put_under_the_tag(404, "");
    assert!(is_pushed && list.unwrap().contains("application/x"));
    // A list that cannot be read now is not an empty one.
    for (status, old) in [(503, ""), (403, ""), (200, "<html>"), (200, "")] {
        let found = put_under_the_tag(status, old);
        assert_eq!(found, (false, None), "{status} {old}");
    }
}

/// A layer's index and the image that it was converted to are artifacts of two types; to list them
/// twice would cost each layer of an image two round trips more.
#[test]
fn artifacts_of_several_types_are_listed_once() {
    let _alone = ENVIRONMENT.lock().unwrap();
    let subject = format!("sha256:{}", "1".repeat(64));
    let artifact = |blob: &str| {
        let blob = blob.repeat(64);
        format!(r#"{{"schemaVersion":2,"layers":[{{"digest":"sha256:{blob}","size":1}}]}}"#)
    };
    let documents = ["2", "3", "4"].map(artifact);
    let digest = |text: &str| {
        let image = ImageManifest::of_text(text.as_bytes().to_vec());
        image.unwrap().digest
    };
    let listed = |(text, kind): (&String, &str)| {
        let digest = digest(text);
        format!(r#"{{"digest":"{digest}","size":1,"artifactType":"{kind}"}}"#)
    };
    let listed = documents.iter().zip(["a", "b", "c"]).map(listed);
    let list = format!(
        r#"{{"schemaVersion":2,"manifests":[{}]}}"#,
        listed.collect::<Vec<_>>().join(",")
    );
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (all, kept) = (documents.clone(), Arc::clone(&asked));
    let guard = move |request: &Request| -> Option<Other> {
        kept.lock().unwrap().push(request.path.clone());
        let found = all.iter().find(|it| request.path.ends_with(&digest(it)));
        Some(match found {
            Some(text) => (200, Vec::new(), text.clone().into_bytes()),
            None if request.path.contains("/manifests/sha256-") => {
                (200, Vec::new(), list.clone().into_bytes())
            }
            None => (404, Vec::new(), Vec::new()),
        })
    };
    let server = Server::with_guard(Vec::new(), Box::new(guard));
    let repository = Repository::new(&server.host(), "a/b", eager()).unwrap();
    let found = repository.artifacts(&subject, &["a", "b"]).unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|it| (&*it.kind, &it.sha256[..1]))
        .collect();
    assert_eq!(found, [("a", "2"), ("b", "3")]);
    let asked = asked.lock().unwrap();
    // The interface, the tag, and the two artifacts.
    assert_eq!(asked.len(), 4, "{asked:?}");
}
