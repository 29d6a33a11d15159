//! Layers of an image of containers, from a registry that is a thread here.
//!
//! Must stay true: everything that a test starts ends with it, also when it fails.

use crate::commands::{inputs, services};
use sidecore_oci::layer::sha256_of;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// What was pushed or made: by path, type and bytes.
type Shelf = Arc<Mutex<HashMap<String, (String, Vec<u8>)>>>;

/// A registry with one image of one layer, `app:v1`; returns its address and the layer's digest.
fn registry() -> (String, String) {
    let folder = inputs::folder();
    let tree = folder.join("layer");
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
    let manifest = serde_json::json!({
        "schemaVersion": 2,
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
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shelf = Arc::clone(&shelf);
            // A client that goes away ends its own thread only.
            std::thread::spawn(move || while answer(&stream, &shelf).is_some() {});
        }
    });
    (address, digest)
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
                    let first: usize = first.parse().ok()?;
                    let last = last.parse::<usize>().ok()?.min(bytes.len() - 1);
                    let total = bytes.len();
                    more += &format!("Content-Range: bytes {first}-{last}/{total}\r\n");
                    (206, bytes[first..=last].to_vec())
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
fn the_snapshotter_says_ready_and_ends() {
    let words = "snapshotter --address unix:snapshots.sock --root snapshots";
    let server = services::Service::start(words, "ready");
    assert!(inputs::folder().join("snapshots.sock").exists());
    let second = inputs::sidecore("snapshotter --address unix:other.sock --root snapshots");
    assert_eq!(second.status.code(), Some(2));
    server.end();
    assert!(!inputs::folder().join("snapshots.sock").exists());
}
