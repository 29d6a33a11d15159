//! Layers of images of containers: their archives and indexes, and the file that names mirrors.

use sidecore_oci::build::{Built, build};
use sidecore_oci::index::Index;
use sidecore_remote::origin::oci::hosts::Host;
use std::io::Cursor;
use std::path::Path;

/// The first byte selects the reader of the rest: a layer's blob, an index, `hosts.toml`.
///
/// # Panics
/// If an index does not survive its own bytes, or a server is named that is none.
pub fn fuzz_layer(data: &[u8]) {
    let Some((&which, rest)) = data.split_first() else {
        return;
    };
    match which % 3 {
        0 => a_blob(rest),
        1 => an_index(rest),
        _ => hosts(rest),
    }
}

/// Any bytes as a layer's blob: a tar, alone or compressed.
fn a_blob(data: &[u8]) {
    let Ok(Built { index, .. }) = build(&mut Cursor::new(data), None) else {
        return;
    };
    let again = Index::read(&index.to_bytes(), &index.layer());
    assert!(again.is_ok_and(|again| again == index));
}

/// An index of a sound layer with bytes changed, as an author of its check may send it: pairs
/// of a place (two bytes) and what is changed there.
fn an_index(data: &[u8]) {
    let built = build(&mut Cursor::new(LAYER), None);
    let Ok(Built { index, .. }) = built else {
        unreachable!("the layer is sound");
    };
    let bytes = index.to_bytes();
    let (head, body) = bytes.split_at(bytes.len().min(MAGIC_BYTES + CHECK_BYTES));
    let mut body = body.to_vec();
    for edit in data.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        // Behind its end, it grows.
        match body.get_mut(place) {
            Some(byte) => *byte ^= edit[2],
            None => body.push(edit[2]),
        }
    }
    let check = blake3::hash(&body);
    let bytes = [&head[..MAGIC_BYTES], check.as_bytes(), &body].concat();
    if let Ok(index) = Index::read(&bytes, &index.layer()) {
        // One that is refused is no fault.
        std::hint::black_box(index.try_tree());
    }
}

/// Servers of a registry.
fn hosts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(hosts) = Host::read(text, Path::new("/certs"), "registry.example") {
        for host in hosts {
            let rest = host.root.split_once("://").map(|(_, rest)| rest);
            assert!(rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('@')));
        }
    }
}

/// Inputs to begin with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let of = |which: u8, rest: &[u8]| [&[which], rest].concat();
    let mut seeds = vec![of(0, LAYER), of(0, &[0; 1024]), of(1, &[])];
    for place in [0_u16, 3, 40, 90, 200, 5000] {
        let [low, high] = place.to_le_bytes();
        seeds.push(of(1, &[low, high, 1, low, high, 0x80]));
    }
    seeds.extend(HOSTS.map(|text| of(2, text.as_bytes())));
    seeds
}

/// Bytes of an index before its check, and of that.
const MAGIC_BYTES: usize = 8;
const CHECK_BYTES: usize = 32;
const HOSTS: [&str; 3] = [
    "server = \"https://a.example\"\n[host.\"https://m.example/v2\"]\nca = [\"a.pem\"]\n\
     capabilities = [\"pull\", \"resolve\"]\n",
    "[host.\"http://m:5000\"]\nskip_verify = true\noverride_path = true\n\
     client = [[\"c\", \"k\"]]\n[host.\"http://m:5000\".header]\nx = [\"1\", \"2\"]\n",
    "ca = \"own.pem\"\nheader = { x-one = \"1\" }\n",
];
/// A tar of a directory, a file, a whiteout, a symbolic and a hard link, compressed by gzip.
const LAYER: &[u8] = &[
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xed, 0xd5, 0x41, 0x0a, 0x80, 0x20,
    0x10, 0x85, 0xe1, 0x77, 0x14, 0x4f, 0x50, 0x93, 0x35, 0x7a, 0x9e, 0x0a, 0xa1, 0x85, 0x10, 0x94,
    0x51, 0xc7, 0x4f, 0x5a, 0x46, 0xab, 0x40, 0x0b, 0x9c, 0x6f, 0xa3, 0x3b, 0x17, 0x3f, 0x33, 0xba,
    0x30, 0xd6, 0x48, 0x8c, 0x22, 0xcb, 0x7c, 0x9d, 0xd1, 0xfd, 0x7c, 0xb8, 0x1b, 0xd6, 0x04, 0xc5,
    0xc8, 0x60, 0x5b, 0x43, 0xbf, 0xc4, 0x27, 0x51, 0x26, 0x17, 0xfb, 0xf7, 0x9f, 0xf7, 0xe7, 0x7b,
    0x7f, 0x63, 0x1a, 0x28, 0x92, 0xfe, 0xc9, 0x4d, 0xce, 0xfb, 0x19, 0x02, 0x05, 0xcf, 0x7f, 0xb5,
    0x4f, 0xd5, 0xf0, 0xab, 0xfd, 0x6f, 0x5b, 0x26, 0x99, 0xff, 0x1c, 0x8e, 0x0c, 0x6f, 0xbc, 0xe8,
    0x4f, 0x9d, 0x81, 0xd2, 0x39, 0x3e, 0xa7, 0xd2, 0xf7, 0xff, 0x4f, 0xfb, 0x6b, 0x86, 0x6a, 0xa4,
    0xbf, 0x10, 0x42, 0x24, 0x73, 0x02, 0x48, 0xa7, 0x29, 0x64, 0x00, 0x10, 0x00, 0x00,
];
