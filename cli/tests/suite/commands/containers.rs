//! Layers of an image of containers, from a registry that is a thread here.
//!
//! Must stay true: everything that a test starts ends with it, also when it fails.

use crate::commands::{inputs, services};
use sidecore_oci::layer::sha256_of;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What was pushed or made: by path, type and bytes.
type Shelf = Arc<Mutex<HashMap<String, (String, Vec<u8>)>>>;

/// A registry with one image of one layer, `app:v1`; returns its address and the layer's digest.
fn registry() -> (String, String) {
    let (address, digest, _) = registry_of("layer");
    (address, digest)
}

/// The same, its layer made in a folder of that name; also its shelf.
fn registry_of(name: &str) -> (String, String, Shelf) {
    let folder = inputs::folder();
    let tree = folder.join(name);
    std::fs::create_dir_all(tree.join("etc")).unwrap();
    std::fs::write(tree.join("etc/hello"), "hello from a layer\n").unwrap();
    let noise: Vec<u8> = (0..3_000_000_u32)
        .map(|at| (at.wrapping_mul(at) >> 7) as u8)
        .collect();
    std::fs::write(tree.join("noise"), noise).unwrap();
    let made = Command::new("tar")
        .arg("-C")
        .arg(&tree)
        .args(["-czf", "-", "."])
        .output();
    let layer = made.unwrap().stdout;
    let digest = sha256_of(&layer);
    let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
    let config = br#"{"architecture":"amd64","os":"linux"}"#.to_vec();
    let config_digest = sha256_of(&config);
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": format!("sha256:{config_digest}"), "size": config.len()
        },
        "layers": [{
            "mediaType": kind, "digest": format!("sha256:{digest}"), "size": layer.len()
        }],
    });
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let shelf = Shelf::default();
    let manifest_type = "application/vnd.oci.image.manifest.v1+json".to_owned();
    {
        let mut shelf = shelf.lock().unwrap();
        shelf.insert("/v2/app/manifests/v1".into(), (manifest_type, manifest));
        shelf.insert(
            format!("/v2/app/blobs/sha256:{digest}"),
            (String::new(), layer),
        );
        shelf.insert(
            format!("/v2/app/blobs/sha256:{config_digest}"),
            (String::new(), config),
        );
    }
    let all = Arc::clone(&shelf);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shelf = Arc::clone(&shelf);
            // A client that goes away ends its own thread only.
            std::thread::spawn(move || while answer(&stream, &shelf).is_some() {});
        }
    });
    (address, digest, all)
}

/// Answers one request; `None` at the connection's end.
fn answer(mut stream: &TcpStream, shelf: &Shelf) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let header = |name: &str| {
        let mut lines = lines.iter().filter_map(|line| line.split_once(": "));
        lines
            .find(|(it, _)| it.eq_ignore_ascii_case(name))
            .map(|it| it.1.to_owned())
    };
    let length = header("content-length")
        .and_then(|it| it.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut words = lines[0].split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut shelf = shelf.lock().unwrap();
    let mut more = String::new();
    let (status, bytes) = match (method, shelf.get(path)) {
        ("POST", _) => {
            more = "Location: /v2/app/upload\r\n".into();
            (202, Vec::new())
        }
        // As registries do.
        ("PUT", _) if path.contains("/manifests/") && !is_complete(&shelf, &body) => {
            (400, Vec::new())
        }
        ("PUT", _) => {
            let digest = query
                .strip_prefix("digest=")
                .map(|it| it.replace("%3A", ":"));
            let place = digest.map(|it| format!("/v2/app/blobs/{it}"));
            let kind = header("content-type").unwrap_or_default();
            shelf.insert(place.unwrap_or_else(|| path.to_owned()), (kind, body));
            (201, Vec::new())
        }
        (_, None) => (404, Vec::new()),
        (_, Some((kind, bytes))) => {
            more = format!("Content-Type: {kind}\r\n");
            match header("range") {
                Some(range) => {
                    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
                    let total = bytes.len();
                    // Without a first byte: the last ones.
                    let (first, last): (usize, usize) = match first.parse() {
                        Ok(first) => (first, last.parse::<usize>().ok()?.min(total - 1)),
                        Err(_) => (total.saturating_sub(last.parse().ok()?), total - 1),
                    };
                    match first < total {
                        true => {
                            more += &format!("Content-Range: bytes {first}-{last}/{total}\r\n");
                            (206, bytes[first..=last].to_vec())
                        }
                        false => {
                            more += &format!("Content-Range: bytes */{total}\r\n");
                            (416, Vec::new())
                        }
                    }
                }
                None => (200, bytes.clone()),
            }
        }
    };
    let length = bytes.len();
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    match method {
        "HEAD" => Some(()),
        _ => stream.write_all(&bytes).ok(),
    }
}

/// True if all that a manifest names is there.
fn is_complete(shelf: &HashMap<String, (String, Vec<u8>)>, manifest: &[u8]) -> bool {
    let manifest: serde_json::Value = serde_json::from_slice(manifest).unwrap_or_default();
    let of = |name: &str| manifest[name].as_array().cloned().unwrap_or_default();
    let has = |kind: &str, it: &serde_json::Value| {
        let digest = it["digest"].as_str().unwrap_or_default();
        shelf.contains_key(&format!("/v2/app/{kind}/{digest}"))
    };
    let config = Some(&manifest["config"]).filter(|it| it.is_object());
    let mut blobs = of("layers");
    blobs.extend(config.cloned());
    blobs.iter().all(|it| has("blobs", it)) && of("manifests").iter().all(|it| has("manifests", it))
}

#[test]
fn a_layer_is_indexed_pushed_and_mounted_by_its_parts() {
    let folder = inputs::folder();
    let (address, digest) = registry();
    let image = format!("oci://{address}/app:v1");
    let ok = services::ok;
    let said = ok(&format!(
        "block index {image} --layers made-layers --push --json"
    ));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["layers"][0]["digest"], format!("sha256:{digest}"));
    assert_eq!(said["layers"][0]["is_lazy"], true);
    assert!(
        said["pushed"].as_str().unwrap().starts_with("sha256:"),
        "{said}"
    );
    // On another machine: its own folder, the pushed index.
    std::fs::create_dir_all(folder.join("on-layer")).unwrap();
    let undo = services::Undo("block umount on-layer".to_owned());
    ok(&format!(
        "block layer {image} on-layer --layers other-layers --trust-index --rate 64KiB"
    ));
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(read("on-layer/etc/hello"), b"hello from a layer\n");
    assert_eq!(read("on-layer/noise"), read("layer/noise"));
    assert!(
        !folder
            .join("other-layers")
            .join(&digest)
            .join("complete")
            .exists()
    );
    ok("block umount on-layer");
    drop(undo);
    // Without that trust, the layer is fetched as a whole first.
    ok(&format!(
        "block layer {image} on-layer --layers third-layers"
    ));
    let _undo = services::Undo("block umount on-layer".to_owned());
    assert_eq!(read("on-layer/noise"), read("layer/noise"));
    assert!(
        folder
            .join("third-layers")
            .join(&digest)
            .join("complete")
            .exists()
    );
}

#[test]
fn a_registry_is_read_from_the_mirrors_that_hosts_toml_names() {
    let folder = inputs::folder();
    let (address, digest, _) = registry_of("mirrored");
    let described = folder.join("certs.d/registry.example");
    std::fs::create_dir_all(&described).unwrap();
    let run = |hosts: &str| {
        std::fs::write(described.join("hosts.toml"), hosts).unwrap();
        let words = "block index oci://registry.example/app:v1 --layers mirrored-layers --json";
        let mut command = inputs::command(folder, words);
        let command = command.env("SIDECORE_HOSTS_DIR", folder.join("certs.d"));
        command.output().unwrap()
    };
    // The first mirror answers nothing.
    let hosts = format!(
        "server = \"http://127.0.0.1:1\"\n[host.\"http://127.0.0.1:1\"]\n\
         [host.\"http://{address}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    );
    let output = run(&hosts);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        folder
            .join("mirrored-layers")
            .join(&digest)
            .join("complete")
            .exists()
    );
    let output = run("[host.\"ftp://mirror\"]\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("hosts.toml"), "{said}");
}

#[test]
fn layers_become_signed_images_next_to_the_original() {
    let folder = inputs::folder();
    let (address, digest, shelf) = registry_of("converted");
    let openssl = |words: &str| {
        let mut command = Command::new("openssl");
        let status = command.args(words.split(' ')).current_dir(folder).status();
        assert!(status.unwrap().success());
    };
    openssl("genpkey -algorithm ed25519 -out layers.pem");
    openssl("pkey -in layers.pem -pubout -out layers.pub");
    let image = format!("oci://{address}/app");
    let said = services::ok(&format!(
        "block pack {image}:v1 -o {image}:fast --sign layers.pem --json"
    ));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["layers"][0]["digest"], format!("sha256:{digest}"));
    // The index has the original first, and the artifact refers to it.
    let all = Arc::clone(&shelf);
    let shelf = shelf.lock().unwrap();
    let document = |path: &str| -> serde_json::Value {
        serde_json::from_slice(&shelf[&format!("/v2/app/manifests/{path}")].1).unwrap()
    };
    let index = document("fast");
    assert_eq!(index["manifests"][0]["digest"], said["original"]);
    assert_eq!(index["manifests"][1]["digest"], said["converted"]);
    let images = document(said["converted"].as_str().unwrap());
    assert_eq!(images["layers"][0]["digest"], said["layers"][0]["image"]);
    let kind = "application/vnd.sidecore.layer.image.v1";
    assert_eq!(images["layers"][0]["mediaType"], kind);
    let referrers = document(&said["original"].as_str().unwrap().replace(':', "-"));
    assert_eq!(referrers["manifests"][0]["artifactType"], kind);
    let artifact = referrers["manifests"][0]["digest"]
        .as_str()
        .unwrap()
        .to_owned();
    drop(shelf);
    // It is mounted as the snapshotter does, outlives a kill, and is checked by its signature.
    std::fs::create_dir_all(folder.join("on-fast")).unwrap();
    openssl("genpkey -algorithm ed25519 -out other.pem");
    openssl("pkey -in other.pem -pubout -out other.pub");
    let mount = format!("block mount {image}@{artifact} on-fast --keep --fs erofs");
    let refused = inputs::sidecore(&format!("{mount} --verify-key other.pub"));
    assert_eq!(refused.status.code(), Some(2));
    services::ok(&format!("{mount} --verify-key layers.pub"));
    let undo = services::Undo("block umount --force on-fast".to_owned());
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(read("on-fast/etc/hello"), read("converted/etc/hello"));
    kill(server_of("on-fast").unwrap());
    assert_eq!(read("on-fast/noise"), read("converted/noise"));
    services::ok("block umount on-fast");
    drop(undo);
    // The same from a folder in OCI's layout gives the same image.
    let layout = folder.join("layout");
    std::fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    let original = said["original"].as_str().unwrap();
    for (path, (_, bytes)) in all.lock().unwrap().iter() {
        if let Some((_, digits)) = path.rsplit_once("/sha256:") {
            std::fs::write(layout.join("blobs/sha256").join(digits), bytes).unwrap();
        }
    }
    let index = serde_json::json!({ "manifests": [{ "digest": original, "size": 1 }] });
    std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let again = services::ok(&format!(
        "block pack layout -o {image}:again --sign layers.pem --json"
    ));
    let again: serde_json::Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["layers"], said["layers"]);
}

/// The process number of the server of the layer mounted on a directory.
fn server_of(place: &str) -> Option<u32> {
    let listed: serde_json::Value =
        serde_json::from_str(&services::ok("block list --json")).unwrap();
    let exports = listed["exports"].as_array().unwrap();
    let is_it = |it: &&serde_json::Value| it["path"].as_str().unwrap().ends_with(place);
    let pid = exports.iter().find(is_it)?["pid"].as_u64()?;
    u32::try_from(pid).ok()
}

/// The keeper of a server: its child, or after a kill its parent.
fn keeper_of(server: u32) -> Option<u32> {
    let is_keeper = |pid: &u32| {
        let name = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        name.starts_with(b"sidecore-keeper")
    };
    let parent_of = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let after = stat.rsplit_once(") ")?.1.to_owned();
        after.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let mut all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut all = all
        .by_ref()
        .filter_map(|it| it.file_name().to_str()?.parse().ok());
    let parent = parent_of(server).filter(is_keeper);
    parent.or_else(|| all.find(|&pid| is_keeper(&pid) && parent_of(pid) == Some(server)))
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    // It may be gone already.
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
}

/// Reads a file of a layer again and again, from the server and not from the page cache.
fn read_on(path: &std::path::Path, expected: &[u8], stop: &AtomicBool) -> usize {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut file = std::fs::File::open(path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("no read fails");
        assert!(bytes == expected, "wrong bytes in round {rounds}");
        rounds += 1;
    }
    rounds
}

#[test]
fn readers_of_a_layer_see_no_error_when_its_server_or_keeper_is_killed() {
    let folder = inputs::folder();
    let (address, digest, _) = registry_of("kept-tree");
    let image = format!("oci://{address}/app:v1");
    services::ok(&format!(
        "block index {image} --layers kept-layers --push --json"
    ));
    std::fs::remove_file(folder.join("kept-layers").join(&digest).join("complete")).unwrap();
    std::fs::create_dir_all(folder.join("on-kept")).unwrap();
    let undo = services::Undo("block umount --force on-kept".to_owned());
    services::ok(&format!(
        "block layer {image} on-kept --layers kept-layers --rate 64KiB"
    ));
    let expected = std::fs::read(folder.join("kept-tree/noise")).unwrap();
    let stop = AtomicBool::new(false);
    let path = folder.join("on-kept/noise");
    let seed = std::process::id();
    std::thread::scope(|scope| {
        // Also where this thread panics.
        let _stop = Stop(&stop);
        let readers: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| read_on(&path, &expected, &stop)))
            .collect();
        for round in 0..KILLS {
            let server = (0..600).find_map(|_| {
                let found = server_of("on-kept").filter(|&pid| keeper_of(pid).is_some());
                if found.is_none() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                found
            });
            let server = server.expect("a server with a keeper");
            let pause = (seed.wrapping_mul(round + 1).wrapping_mul(2_654_435_761)) >> 26;
            std::thread::sleep(Duration::from_millis(pause.into()));
            match round % 3 {
                2 => kill(keeper_of(server).unwrap()),
                _ => kill(server),
            }
            // The next number of the list is another process's.
            let is_new = |_: &u32| round % 3 == 2 || server_of("on-kept") != Some(server);
            let waited = (0..600).find(|tries| {
                std::thread::sleep(Duration::from_millis(if *tries == 0 { 0 } else { 50 }));
                is_new(tries)
            });
            assert!(waited.is_some(), "seed {seed}, kill {round}: no new server");
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    let server = server_of("on-kept").unwrap();
    let keeper = keeper_of(server);
    services::ok("block umount on-kept");
    drop(undo);
    // Both end with the mount.
    let is_gone = |pid: u32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
    let gone = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        is_gone(server) && keeper.is_none_or(is_gone)
    });
    assert!(gone, "{server} or {keeper:?} is left");
}

/// Ends the readers.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills of servers and keepers.
const KILLS: u32 = 6;

#[test]
fn the_snapshotter_says_ready_and_ends() {
    let words = "snapshotter --address unix:snapshots.sock --root snapshots";
    let server = services::Service::start(words, "ready");
    assert!(inputs::folder().join("snapshots.sock").exists());
    let second = inputs::sidecore("snapshotter --address unix:other.sock --root snapshots");
    assert_eq!(second.status.code(), Some(2));
    server.end();
    assert!(!inputs::folder().join("snapshots.sock").exists());
}
