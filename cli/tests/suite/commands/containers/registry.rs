//! A registry with one image of containers, as a thread of the tests.

use crate::commands::inputs;
use sidecore_oci::layer::sha256_of;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Documents that were pushed or made: by path, type and bytes.
pub(super) type Shelf = Arc<Mutex<HashMap<String, (String, Vec<u8>)>>>;

/// A registry with one image of one layer, `app:v1`; returns its address and the layer's digest.
pub(super) fn registry() -> (String, String) {
    let (address, digest, _) = registry_of("layer");
    (address, digest)
}

/// The same, its layer made in a folder of that name; also its shelf.
pub(super) fn registry_of(name: &str) -> (String, String, Shelf) {
    let folder = inputs::folder();
    let tree = folder.join(name);
    std::fs::create_dir_all(tree.join("etc")).unwrap();
    std::fs::write(tree.join("etc/hello"), "hello from a layer\n").unwrap();
    let noise: Vec<u8> = (0..3_000_000_u32)
        .map(|at| (at.wrapping_mul(at) >> 7) as u8)
        .collect();
    std::fs::write(tree.join("noise"), noise).unwrap();
    let archive = folder.join(format!("{name}.tar"));
    let run = |command: &mut Command| assert!(command.status().unwrap().success());
    run(Command::new("tar")
        .arg("-C")
        .arg(&tree)
        .arg("-cf")
        .arg(&archive)
        .arg("."));
    let diff = sha256_of(&std::fs::read(&archive).unwrap());
    run(Command::new("gzip").arg("-f").arg(&archive));
    let layer = std::fs::read(archive.with_extension("tar.gz")).unwrap();
    let digest = sha256_of(&layer);
    let kind = "application/vnd.oci.image.layer.v1.tar+gzip";
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]}
    });
    let config = config.to_string().into_bytes();
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
        let by_digest = format!("/v2/app/manifests/sha256:{}", sha256_of(&manifest));
        shelf.insert(by_digest, (manifest_type.clone(), manifest.clone()));
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
