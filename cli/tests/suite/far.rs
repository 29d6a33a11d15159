//! Commands on images behind a URL: a server of the tests' own, and Debian's nginx.
//!
//! Must stay true: mounts are in a namespace of the test's own process group and are undone; the
//! test is root's, as `mount` is.

#![allow(clippy::unwrap_used)] // A test's helpers may fail it too.

use crate::server;

use server::Server;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Scratch {
    directory: tempfile::TempDir,
    raw: Vec<u8>,
    image: Vec<u8>,
}

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut state = 1_u32;
        let raw: Vec<u8> = (0..6 << 20)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 28) as u8
            })
            .collect();
        let scratch = Self {
            directory,
            raw,
            image: Vec::new(),
        };
        std::fs::write(scratch.path("raw"), &scratch.raw).unwrap();
        scratch.ok(&["pack", "raw", "-o", "disk.img", "--level", "1"]);
        let image = std::fs::read(scratch.path("disk.img")).unwrap();
        Self { image, ..scratch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        command.arg("block").args(arguments);
        command.current_dir(self.directory.path()).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn whole_images_are_read_by_their_url() {
    let scratch = Scratch::new();
    let server = Server::start(scratch.image.clone());
    let url = server.url();
    let info = scratch.ok(&["info", &url, "--json"]);
    assert_eq!(info, scratch.ok(&["info", "disk.img", "--json"]));
    assert!(
        server.requests() <= 3,
        "{} requests to say what it is",
        server.requests()
    );
    scratch.ok(&["verify", &url, "--cache", "kept"]);
    scratch.ok(&["unpack", &url, "-o", "again", "--cache", "kept"]);
    assert!(std::fs::read(scratch.path("again")).unwrap() == scratch.raw);
    // A frame is damaged on the server for good: found, and named.
    let mut damaged = scratch.image.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let server = Server::start(damaged);
    let output = scratch.run(&["verify", &server.url(), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report["bad_frames"].as_array().unwrap().len(),
        1,
        "{report}"
    );
}

#[test]
fn an_encrypted_image_stays_so_in_the_cache_and_is_read_with_its_key() {
    let scratch = Scratch::new();
    // Noise, which LZ4 stores as it is: a cache in the clear would show it.
    let mut state = 7_u64;
    let noise: Vec<u8> = (0..4 << 20)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let marks = [1 << 20, 2 << 20].map(|at: usize| &noise[at + 100..at + 120]);
    let shows = |bytes: &[u8]| bytes.windows(20).any(|it| marks.contains(&it));
    std::fs::write(scratch.path("noise"), &noise).unwrap();
    scratch.ok(&["pack", "noise", "-o", "plain.img", "--format", "lz4"]);
    assert!(shows(&std::fs::read(scratch.path("plain.img")).unwrap()));
    std::fs::write(scratch.path("words"), "correct horse\n").unwrap();
    std::fs::write(scratch.path("wrong"), "battery staple\n").unwrap();
    let key = ["--passphrase-file", "words"];
    let pack = [
        "pack",
        "noise",
        "-o",
        "locked.img",
        "--encrypt",
        "--format",
        "lz4",
    ];
    scratch.ok(&[&pack[..], &key].concat());
    let server = Server::start(std::fs::read(scratch.path("locked.img")).unwrap());
    let url = server.url();
    let info = scratch.ok(&["info", &url, "--json"]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert!(info["cipher"].is_string(), "{info}");
    // A passphrase may come through a pipe, which gives it once.
    let pipe = scratch.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let said = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, "correct horse\n").unwrap()
    });
    std::thread::spawn(move || {
        said.join().unwrap();
        // A second read of the pipe would get this.
        std::fs::write(pipe, "battery staple\n")
    });
    scratch.ok(&["info", &url, "--passphrase-file", "pipe"]);
    let verify = ["verify", &url, "--cache", "kept"];
    assert!(scratch.refused(&verify).contains("it is encrypted"));
    let wrong = [&verify[..], &["--passphrase-file", "wrong"]].concat();
    assert!(scratch.refused(&wrong).contains("none of the keys"));
    scratch.ok(&[&verify[..], &key].concat());
    let unpack = ["unpack", &url, "-o", "again", "--cache", "kept"];
    scratch.ok(&[&unpack[..], &key].concat());
    let again = std::fs::read(scratch.path("again")).unwrap();
    assert!(again == noise);
    let mut folders = vec![scratch.path("kept")];
    let mut kept_bytes = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(path).unwrap();
            assert!(!shows(&bytes));
            kept_bytes += bytes.len();
        }
    }
    assert!(kept_bytes > 2 << 20, "{kept_bytes}");
}

#[test]
fn what_cannot_be_read_is_refused_in_one_line_without_secrets() {
    let scratch = Scratch::new();
    let missing = Server::with_guard(
        Vec::new(),
        Box::new(|_| Some((404, Vec::new(), Vec::new()))),
    );
    let url = format!("{}?signature=secret", missing.url());
    for arguments in [
        &["info", &url][..],
        &["mount", &url, "."],
        &["unpack", &url, "-o", "x"],
        &["serve", &url, "--nbd", "unix:sock"],
        &["info", "s3://bucket"],
        &["info", "oci://registry"],
        &["info", "https://user:secret@host/x"],
    ] {
        let errors = scratch.refused(arguments);
        assert!(errors.starts_with("sidecore: "), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(!errors.contains("secret"), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_mounted_url_traces_prefetches_and_fails_in_the_open() {
    let scratch = Scratch::new();
    let server = Server::start(scratch.image.clone());
    let url = server.url();
    std::fs::create_dir(scratch.path("on")).unwrap();
    let read = |offset: u64, bytes: usize| {
        use std::os::unix::fs::FileExt;
        let mut found = vec![0; bytes];
        let file = std::fs::File::open(scratch.path("on/image"))?;
        file.read_exact_at(&mut found, offset).map(|()| found)
    };
    scratch.ok(&["mount", &url, "on", "--file-only", "--trace", "trace"]);
    let at = 3 << 20;
    assert!(read(at, 9000).unwrap() == scratch.raw[at as usize..][..9000]);
    // The image is replaced: frames that were not read before cannot be read now.
    server.set_etag("\"other\"");
    // It lies behind the bytes that came when the image was opened.
    let other = (5 << 20) / 2;
    let error = read(other, 9000).map(drop).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    server.set_etag("\"one\"");
    assert!(read(other, 9000).unwrap() == scratch.raw[other as usize..][..9000]);
    scratch.ok(&["umount", "on"]);
    let trace = std::fs::read_to_string(scratch.path("trace")).unwrap();
    let second = trace.lines().nth(2).unwrap();
    assert!(second.starts_with(&format!("{at} ")), "{trace}");
    let kept = ["--cache", "kept", "--prefetch", "trace"];
    let mount = ["mount", &url, "on", "--file-only"];
    scratch.ok(&[&mount[..], &kept].concat());
    assert!(read(at, 9000).unwrap() == scratch.raw[at as usize..][..9000]);
    scratch.ok(&["umount", "on"]);
    assert!(
        scratch
            .refused(&[&mount[..], &["--prefetch", "raw"]].concat())
            .contains("trace")
    );
}

#[test]
fn nginx_serves_what_nbdcopy_and_a_mount_read() {
    if Command::new("nginx").arg("-v").output().is_err() {
        eprintln!("nginx is not installed (scripts/setup --peers): not compared with it");
        return;
    }
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("on")).unwrap();
    std::fs::create_dir(scratch.path("tree")).unwrap();
    std::fs::write(scratch.path("tree/file"), &scratch.raw[..100_000]).unwrap();
    scratch.ok(&["pack", "tree", "-o", "tree.img", "--level", "1"]);
    let nginx = Nginx::start(scratch.directory.path());
    scratch.ok(&["mount", &format!("{}/tree.img", nginx.url), "on"]);
    let found = std::fs::read(scratch.path("on/file"));
    scratch.ok(&["umount", "on"]);
    assert!(found.unwrap() == scratch.raw[..100_000]);
    let url = format!("{}/disk.img", nginx.url);
    let mut serving = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["block", "serve", &url, "--nbd", "unix:nbd.sock"])
        .current_dir(scratch.directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    std::io::Read::read_exact(serving.stdout.as_mut().unwrap(), &mut line).unwrap();
    let copied = Command::new("nbdcopy")
        .args(["nbd+unix:///?socket=nbd.sock", "copy"])
        .current_dir(scratch.directory.path())
        .status();
    serving.kill().unwrap();
    serving.wait().unwrap();
    assert!(copied.unwrap().success());
    assert!(std::fs::read(scratch.path("copy")).unwrap() == scratch.raw);
}

/// Debian's nginx over a directory.
struct Nginx {
    process: std::process::Child,
    url: String,
}

impl Nginx {
    fn start(root: &Path) -> Self {
        use std::os::unix::fs::PermissionsExt;
        // Its workers are another user.
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let root = root.display();
        let text = format!(
            "daemon off; pid {root}/nginx.pid; error_log {root}/nginx.log; events {{ }}\n\
             http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
        );
        let config = format!("{root}/nginx.conf");
        std::fs::write(&config, text).unwrap();
        let process = Command::new("nginx")
            .args(["-c", &config])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = std::time::Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(
                begun.elapsed() < std::time::Duration::from_secs(60),
                "nginx does not listen"
            );
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let url = format!("http://127.0.0.1:{port}");
        Self { process, url }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its master ends its workers when it is asked to.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        let _ = self.process.wait();
    }
}

/// A full disk, and a directory of another user: the bytes come all the same, and the problem is
/// reported once.
#[test]
fn a_cache_that_can_keep_nothing_is_said() {
    let scratch = Scratch::new();
    let server = Server::start(scratch.image.clone());
    let program = scratch.path("sidecore");
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_sidecore"))
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    // 256 directories, the one for files that are being written, and the root: no room for a file.
    let full = "mkdir full && mount -t tmpfs -o mode=755,nr_inodes=258 none full && \
                exec ./sidecore block unpack \"$0\" -o - --cache full";
    let others = "umask 022 && mkdir others && chmod 755 . sidecore && \
                  ./sidecore block unpack \"$0\" -o - --cache others > first && \
                  exec setpriv --reuid=65534 --regid=65534 --clear-groups \
                  ./sidecore block unpack \"$0\" -o - --cache others";
    for (script, word) in [(full, "No space"), (others, "Permission denied")] {
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, &server.url()])
            .current_dir(scratch.directory.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert!(output.stdout == scratch.raw);
        let lines: Vec<&str> = errors
            .lines()
            .filter(|line| line.contains("--cache"))
            .collect();
        assert_eq!(lines.len(), 1, "{errors}");
        assert!(
            lines[0].contains("keeps nothing") && lines[0].contains(word),
            "{errors}"
        );
    }
}

/// The bytes of an object in reply to a request for a range of it.
fn range_of(object: &[u8], request: &server::Request) -> Option<server::Other> {
    let (first, last) = request
        .header("range")?
        .strip_prefix("bytes=")?
        .split_once('-')?;
    let size = object.len();
    let range = match first.is_empty() {
        true => size.saturating_sub(last.parse().ok()?)..size,
        false => first.parse().ok()?..size.min(last.parse::<usize>().ok()? + 1),
    };
    let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
    let headers = vec![("content-range".to_owned(), text)];
    Some((206, headers, object[range].to_vec()))
}

#[test]
fn an_index_beside_a_url_is_taken_and_another_one_refused() {
    let scratch = Scratch::new();
    // Several frames and no table, as pzstd writes.
    let mut file = Vec::new();
    for part in scratch.raw.chunks(700_000) {
        std::fs::write(scratch.path("part"), part).unwrap();
        let mut zstd = Command::new("zstd");
        zstd.args(["-q", "-c", "part"])
            .current_dir(scratch.directory.path());
        let zstd = zstd.output();
        file.extend(zstd.unwrap_or_else(|error| panic!("zstd ({error})")).stdout);
    }
    std::fs::write(scratch.path("a.zst"), &file).unwrap();
    scratch.ok(&["index", "a.zst", "--output", "a.index"]);
    let index = std::fs::read(scratch.path("a.index")).unwrap();
    let serve = |beside: Vec<u8>, redirect: Option<String>| {
        let guard = move |request: &server::Request| {
            if !request.path.contains(".sidx") {
                return None;
            }
            match (&redirect, beside.is_empty()) {
                (Some(place), _) => {
                    let headers = vec![("location".to_owned(), place.clone())];
                    Some((302, headers, Vec::new()))
                }
                (None, true) => Some((404, Vec::new(), Vec::new())),
                (None, false) => range_of(&beside, request),
            }
        };
        Server::with_guard(file.clone(), Box::new(guard))
    };
    let check = |url: &str, options: &[&str]| {
        scratch.ok(&[&["unpack", url, "-o", "back"][..], options].concat());
        assert!(std::fs::read(scratch.path("back")).unwrap() == scratch.raw);
        std::fs::remove_file(scratch.path("back")).unwrap();
    };
    let server = serve(index.clone(), None);
    check(&format!("{}?query", server.url()), &[]);

    // None there: named by the reader, or made from the remote file.
    let server = serve(Vec::new(), None);
    let error = scratch.refused(&["info", &server.url()]);
    assert!(error.contains("block index"), "{error}");
    check(&server.url(), &["--sidx", "a.index"]);
    let error = scratch.refused(&["index", &server.url()]);
    assert!(error.contains("--output"), "{error}");
    scratch.ok(&["index", &server.url(), "--output", "again"]);
    assert!(std::fs::read(scratch.path("again")).unwrap() == index);
    let error = scratch.refused(&["info", "disk.img", "--sidx", "a.index"]);
    assert!(error.contains("an index of its own"), "{error}");

    // Damaged, of another file, or from another server.
    for at in [3, 20, 27, 60, index.len() - 3] {
        let mut damaged = index.clone();
        damaged[at] ^= 1;
        let server = serve(damaged, None);
        let error = scratch.refused(&["info", &server.url()]);
        assert!(error.contains(".sidx"), "{at}: {error}");
    }
    let elsewhere = serve(index, None);
    let server = serve(Vec::new(), Some(format!("{}.sidx", elsewhere.url())));
    let error = scratch.refused(&["info", &server.url()]);
    assert!(error.contains("block index"), "{error}");
    assert_eq!(elsewhere.requests(), 0);
    // No hash tree covers it.
    let zeros = "0".repeat(64);
    let trusted = ["info", &elsewhere.url(), "--root-hash", &zeros].map(str::to_owned);
    let error = scratch.refused(&trusted.each_ref().map(String::as_str));
    assert!(error.contains("no hash tree"), "{error}");
}
