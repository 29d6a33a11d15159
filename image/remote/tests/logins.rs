//! Destinations of a login of `docker login`: registries that name a token service elsewhere,
//! unencrypted or after a redirect.
//!
//! The tests have a binary of their own: they set a variable that other tests would read.

#![allow(clippy::unwrap_used)] // A test's helpers may fail it too.

mod common;

use common::options;
use common::server::{Request, Server};
use sidecore_remote::{Location, RemoteImage};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A listener that counts connections and answers none.
fn silent(address: &str) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind(address).unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    (host, count)
}

/// A registry that names a token service, and a record of the requests. Its own service is at
/// `/token`; the one at `/leads` redirects to `elsewhere`.
fn registry(
    elsewhere: String,
    realm: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (Server, Requests) {
    let seen = Requests::default();
    let kept = Arc::clone(&seen);
    let guard = move |request: &Request| {
        kept.lock().unwrap().push(request.clone());
        let host = request.header("host").unwrap_or_default();
        let answer = match &*request.path {
            path if path.starts_with("/token") => (200, Vec::new(), br#"{"token":"t"}"#.to_vec()),
            path if path.starts_with("/leads") => {
                let headers = vec![("location".to_owned(), elsewhere.clone())];
                (307, headers, Vec::new())
            }
            _ => {
                let challenge = format!("Bearer realm=\"{}\",service=\"x\"", realm(host));
                (
                    401,
                    vec![("www-authenticate".to_owned(), challenge)],
                    Vec::new(),
                )
            }
        };
        Some(answer)
    };
    (Server::with_guard(Vec::new(), Box::new(guard)), seen)
}

type Requests = Arc<Mutex<Vec<Request>>>;

fn refused(server: &Server) -> String {
    let url = format!("oci://{}/a/b:c", server.host());
    let location = Location::parse(&url).unwrap().unwrap();
    let error = RemoteImage::open(&location, options()).err().unwrap();
    let error = error.to_string();
    assert!(
        !error.contains(LOGIN) && !error.contains("a password"),
        "{error}"
    );
    error
}

/// `a user:a password`.
const LOGIN: &str = "YSB1c2VyOmEgcGFzc3dvcmQ=";

/// Sets the variable that names the file of logins for all tests here, which run one after another.
#[allow(unsafe_code)] // Variables of this process.
fn log_in(host: &str) -> (tempfile::TempDir, std::sync::MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let logins = format!(r#"{{"auths":{{"{host}":{{"auth":"{LOGIN}"}}}}}}"#);
    std::fs::write(folder.path().join("config.json"), logins).unwrap();
    // SAFETY: every test that reads variables in this binary holds the lock.
    unsafe { std::env::set_var("DOCKER_CONFIG", folder.path()) };
    (folder, alone)
}

#[test]
fn no_login_goes_to_a_token_service_in_the_clear_elsewhere() {
    let (elsewhere, came) = silent("127.0.0.3:0");
    let (server, _) = registry(String::new(), move |_| format!("http://{elsewhere}/token"));
    let _login = log_in(&server.host());
    let error = refused(&server);
    assert!(error.contains("without TLS"), "{error}");
    assert_eq!(came.load(Ordering::SeqCst), 0, "it was connected to");
}

#[test]
fn no_login_goes_to_another_owners_token_service() {
    let (elsewhere, came) = silent("127.0.0.3:0");
    let (server, _) = registry(String::new(), move |_| format!("https://{elsewhere}/token"));
    let _login = log_in(&server.host());
    let error = refused(&server);
    assert!(error.contains("docker login 127.0.0.3:"), "{error}");
    assert_eq!(came.load(Ordering::SeqCst), 0, "it was connected to");
}

#[test]
fn no_login_follows_a_redirect_of_the_token_service() {
    let (elsewhere, came) = silent("127.0.0.3:0");
    let leads = format!("http://{elsewhere}/token");
    let (server, _) = registry(leads, |host| format!("http://{host}/leads"));
    let _login = log_in(&server.host());
    let error = refused(&server);
    assert!(error.contains("307"), "{error}");
    assert_eq!(came.load(Ordering::SeqCst), 0, "it was connected to");
}

#[test]
fn the_registrys_own_token_service_gets_the_login() {
    let (server, seen) = registry(String::new(), |host| format!("http://{host}/token"));
    let _login = log_in(&server.host());
    refused(&server);
    let seen = seen.lock().unwrap();
    let asked = seen.iter().find(|it| it.path.starts_with("/token"));
    let sent = asked.unwrap().header("authorization");
    assert_eq!(sent, Some(&*format!("Basic {LOGIN}")));
    let last = seen.last().unwrap().header("authorization");
    assert_eq!(last, Some("Bearer t"), "the token goes to the registry");
}
