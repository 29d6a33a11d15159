//! Temporary keys of an S3 store: from a container's service, an instance's role, or a command; and
//! `sidecore store` in a bucket. The store and the sources of keys are servers of the tests' own.

#![allow(clippy::unwrap_used)] // A test's helpers may fail it too.

use crate::server;

use server::{Other, Request, Server, Shelf};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A store that takes one pair of keys at a time: other ones after the first request that it
/// answered, and after the third.
struct Store {
    server: Server,
    answered: Arc<AtomicUsize>,
    folder: tempfile::TempDir,
}

fn generation(answered: &AtomicUsize) -> usize {
    match answered.load(Ordering::SeqCst) {
        0 => 0,
        1 | 2 => 1,
        _ => 2,
    }
}

impl Store {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let raw: Vec<u8> = (0..1_500_000_u32)
            .flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes())
            .collect();
        std::fs::write(folder.path().join("raw"), raw).unwrap();
        let packed = sidecore(folder.path(), &[], &["pack", "raw", "-o", "image"]);
        assert_eq!(packed.0, Some(0), "{}", packed.1);
        let image = std::fs::read(folder.path().join("image")).unwrap();
        let answered = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&answered);
        let guard = move |request: &Request| {
            let number = generation(&counted);
            let signed = request.header("authorization").unwrap_or_default();
            let is_signed = signed.contains(&format!("Credential=KEY{number}/"));
            let token = format!("token {number}");
            if !is_signed || request.header("x-amz-security-token") != Some(&token) {
                // S3 answers so where a token has expired, and so where there is none.
                let (status, code) = match signed.is_empty() {
                    true => (403, "AccessDenied"),
                    false => (400, "ExpiredToken"),
                };
                let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
                return Some((status, Vec::new(), body.into_bytes()));
            }
            counted.fetch_add(1, Ordering::SeqCst);
            None
        };
        Self {
            server: Server::with_guard(image, Box::new(guard)),
            answered,
            folder,
        }
    }

    /// Reads the whole image; returns the exit status and the messages.
    fn verify(&self, variables: &[(&str, &str)]) -> (Option<i32>, String) {
        let endpoint = format!("http://{}", self.server.host());
        let mut variables = variables.to_vec();
        variables.push(("AWS_ENDPOINT_URL", &endpoint));
        let words = ["verify", "s3://bucket/image"];
        sidecore(self.folder.path(), &variables, &words)
    }
}

fn sidecore(folder: &Path, variables: &[(&str, &str)], words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .arg("block")
        .args(words)
        .current_dir(folder)
        // Neither variables nor files of the user that runs the tests.
        .env_clear()
        .env("HOME", folder)
        .env("PATH", std::env::var_os("PATH").unwrap())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// The current keys, valid for this many seconds.
fn given(answered: &AtomicUsize, seconds: i64) -> String {
    let number = generation(answered);
    let until = Command::new("date")
        .args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"])
        .arg(format!("{seconds} seconds"))
        .output()
        .unwrap();
    let until = String::from_utf8(until.stdout).unwrap();
    format!(
        r#"{{"Version":1,"Code":"Success","AccessKeyId":"KEY{number}","SecretAccessKey":"secret",
            "Token":"token {number}","SessionToken":"token {number}","Expiration":"{}"}}"#,
        until.trim()
    )
}

fn answer(body: impl Into<Vec<u8>>) -> Option<Other> {
    Some((200, Vec::new(), body.into()))
}

#[test]
fn a_containers_service_gives_new_keys_when_the_old_ones_are_refused() {
    let store = Store::start();
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, answered) = (Arc::clone(&asked), Arc::clone(&store.answered));
    let service = Server::with_guard(
        Vec::new(),
        Box::new(move |request| {
            let known = request.header("authorization") == Some("a container's");
            if !known || request.path != "/keys" {
                return Some((403, Vec::new(), Vec::new()));
            }
            count.fetch_add(1, Ordering::SeqCst);
            answer(given(&answered, 3600))
        }),
    );
    let place = format!("http://{}/keys", service.host());
    std::fs::write(store.folder.path().join("token"), "a container's\n").unwrap();
    let (status, said) = store.verify(&[
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &place),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "token"),
    ]);
    assert_eq!(status, Some(0), "{said}");
    // Once for each pair of keys that a request met.
    let asked = asked.load(Ordering::SeqCst);
    assert!((2..=3).contains(&asked), "{asked}");
    assert!(store.answered.load(Ordering::SeqCst) >= 3);
}

/// Keys are used until they expire, even if the service gives no better ones.
#[test]
fn keys_that_are_about_to_expire_are_used_and_expired_ones_are_not() {
    let store = Store::start();
    // Of the last generation at once.
    store.answered.store(3, Ordering::SeqCst);
    let seconds = Arc::new(AtomicUsize::new(100));
    let (answered, left) = (Arc::clone(&store.answered), Arc::clone(&seconds));
    let service = Server::with_guard(
        Vec::new(),
        Box::new(move |_| answer(given(&answered, left.load(Ordering::SeqCst) as i64 - 1))),
    );
    let place = format!("http://{}/keys", service.host());
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*place),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let (status, said) = store.verify(&variables);
    assert_eq!(status, Some(0), "{said}");
    seconds.store(0, Ordering::SeqCst);
    let (status, said) = store.verify(&variables);
    assert_eq!(status, Some(2));
    let wanted = "403 to a range of the image with AccessDenied";
    assert!(said.contains(wanted), "{said}");
    assert!(said.contains("container: its keys have expired"), "{said}");
    assert!(
        !said.contains("secret") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn an_instances_role_is_asked_for_once_the_store_wants_keys() {
    let store = Store::start();
    let answered = Arc::clone(&store.answered);
    let roles = "/latest/meta-data/iam/security-credentials/";
    let instance = Server::with_guard(
        Vec::new(),
        Box::new(move |request| {
            if request.path == "/latest/api/token" {
                return answer("session");
            }
            if request.header("x-aws-ec2-metadata-token") != Some("session") {
                return Some((401, Vec::new(), Vec::new()));
            }
            match request.path.strip_prefix(roles) {
                Some("") => answer("reader"),
                Some("reader") => answer(given(&answered, 3600)),
                _ => Some((404, Vec::new(), Vec::new())),
            }
        }),
    );
    let place = format!("http://{}", instance.host());
    let variables = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*place)];
    let (status, said) = store.verify(&variables);
    assert_eq!(status, Some(0), "{said}");
    // A public image requests no keys.
    let before = instance.requests();
    let image = std::fs::read(store.folder.path().join("image")).unwrap();
    let public = Server::start(image);
    let endpoint = format!("http://{}", public.host());
    let variables = [variables[0], ("AWS_ENDPOINT_URL", &endpoint)];
    let words = ["verify", "s3://bucket/image"];
    let (status, said) = sidecore(store.folder.path(), &variables, &words);
    assert_eq!((status, instance.requests()), (Some(0), before), "{said}");
}

#[test]
fn a_command_of_the_profile_gives_keys_or_says_why_not() {
    let store = Store::start();
    store.answered.store(3, Ordering::SeqCst);
    let folder = store.folder.path();
    std::fs::create_dir(folder.join(".aws")).unwrap();
    std::fs::write(folder.join("keys"), given(&store.answered, 3600)).unwrap();
    let profile = |command: &str| {
        let text =
            format!("[profile reader]\nregion = eu-west-1\ncredential_process = {command}\n");
        std::fs::write(folder.join(".aws/config"), text).unwrap();
    };
    let variables = [
        ("AWS_PROFILE", "reader"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    profile("cat keys");
    let (status, said) = store.verify(&variables);
    assert_eq!(status, Some(0), "{said}");
    profile("cat nothing");
    let (status, said) = store.verify(&variables);
    assert_eq!(status, Some(2));
    assert!(said.contains("credential_process: "), "{said}");
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn a_bucket_is_a_place_of_a_store() {
    let (shelf, server) = Shelf::serve(|request| request.header("authorization").is_some());
    let folder = tempfile::tempdir().unwrap();
    let raw: Vec<u8> = (0..50_000_u32)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes())
        .collect();
    std::fs::write(folder.path().join("raw"), &raw).unwrap();
    let run = |words: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_sidecore"))
            .args(words.split_whitespace())
            .current_dir(folder.path())
            .env_clear()
            .env("HOME", folder.path())
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("AWS_ENDPOINT_URL", format!("http://{}", server.host()))
            .env("AWS_ACCESS_KEY_ID", "a key")
            .env("AWS_SECRET_ACCESS_KEY", "a secret")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said + &printed)
    };
    let ok = |words: &str| {
        let (status, said) = run(words);
        assert_eq!(status, Some(0), "{words}: {said}");
        said
    };
    let (_, said) = run("store list s3://bucket/a/store");
    assert!(said.contains("holds no store"), "{said}");
    ok("store init s3://bucket/a/store --chunk 4KiB");
    ok("store put s3://bucket/a/store raw --name disk:1 --engines 1");
    ok("store put s3://bucket/a/store store:s3://bucket/a/store#disk:1 --name disk:2 --engines 1");
    ok("block verify store:s3://bucket/a/store#disk:2");
    ok("store get s3://bucket/a/store disk:2 -o got");
    assert!(std::fs::read(folder.path().join("got")).unwrap() == raw);
    ok("store copy s3://bucket/a/store kept");
    ok("store copy s3://bucket/a/store s3://bucket/another");
    ok("store remove s3://bucket/a/store disk:1 disk:2");
    ok("store gc s3://bucket/a/store --lease 1ms");
    ok("store gc s3://bucket/a/store --lease 1ms");
    let left = shelf.keys("a/store/");
    assert_eq!(left, ["condemned", "lock", "store"]);
    ok("store copy kept s3://bucket/a/store --name disk:1");
    let listed = ok("store list s3://bucket/a/store");
    assert!(listed.contains("disk:1") && !listed.contains("disk:2"));
    assert!(ok("store verify s3://bucket/a/store --read-data").contains("0 faults"));
    assert!(ok("store stat s3://bucket/another").contains("versions"));
    // A server that would let two writers believe that each is alone.
    shelf.is_careless.store(true, Ordering::SeqCst);
    let (status, said) = run("store gc s3://bucket/a/store");
    assert_eq!((status, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("no conditional writes"), "{said}");
}
