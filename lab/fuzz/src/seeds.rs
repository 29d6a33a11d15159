//! Seeds of the corpora: valid inputs of each target.

use crate::images;
use crate::lzo1x::{Random as Noise, random_stream};
use crate::nbd;
use crate::phylo::{Kind, seeds as of_kind};
use sidecore_random::Random;
use sidecore_random::choices::Choices;
use std::path::{Path, PathBuf};
use zstd_safe::{CCtx, CParameter};

/// Inputs of a target; empty where there is no such target.
///
/// # Errors
/// The system's error if a file of the tree cannot be read.
pub fn of_target(name: &str) -> std::io::Result<Vec<Vec<u8>>> {
    Ok(match name {
        "alignment" => of_kind(Kind::Alignment).to_vec(),
        "checkpoint" => of_kind(Kind::Checkpoint).to_vec(),
        "configuration" => CONFIGURATIONS.map(|text| text.as_bytes().to_vec()).into(),
        "drill" => scripts()?,
        "erofs" => crate::erofs::seeds(),
        "images" => {
            let images = images::seeds().into_iter().map(|seed| seed.image);
            images.chain([images::sidecar_seed()]).collect()
        }
        "layers" => crate::layers::seeds(),
        "lzo1x" => streams(),
        "machine" => files("docs/machines", "toml")?,
        "model" => of_kind(Kind::Model).to_vec(),
        "nbd" => nbd::seeds(),
        "newick" => of_kind(Kind::Tree).to_vec(),
        "nexus" => {
            let seeds = of_kind(Kind::Alignment).iter();
            let rest = seeds.filter_map(|seed| seed.strip_prefix(b"#NEXUS"));
            rest.map(<[u8]>::to_vec).collect()
        }
        "overlay" => crate::overlay::seeds(),
        "partitions" => of_kind(Kind::Partitions).to_vec(),
        "rdma" => crate::rdma::seeds(),
        "remote" => crate::remote::seeds(),
        "search_state" => of_kind(Kind::State).to_vec(),
        "daemon" => [crate::daemon::seeds(), decisions()].concat(),
        "doors" => crate::doors::seeds(),
        "rings" | "sockets" | "stack" => decisions(),
        "zstd" => frames(),
        _ => Vec::new(),
    })
}

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(folder: &str, ending: &str) -> std::io::Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    for entry in root().join(folder).read_dir()? {
        let path = entry?.path();
        if path.extension().is_some_and(|own| own == ending) {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(std::fs::read).collect()
}

/// Each script of the folder: a file there holds several.
fn scripts() -> std::io::Result<Vec<Vec<u8>>> {
    let mut scripts = Vec::new();
    for file in files("lab/drill/tests/drill", "drill")? {
        let text = String::from_utf8_lossy(&file);
        let parts = sidecore_net_drill::parts(&text).into_iter();
        scripts.extend(parts.map(|part| part.text.as_bytes().to_vec()));
    }
    Ok(scripts)
}

fn streams() -> Vec<Vec<u8>> {
    let mut random = Noise(1);
    let stream = |_| {
        let (stream, room) = random_stream(&mut random, 600, 2000);
        [&(room as u32).to_le_bytes()[..3], &[7], &stream].concat()
    };
    (0..16).map(stream).collect()
}

/// Frames of several levels and block sizes, behind their room and a pace.
fn frames() -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let mut raw = Vec::new();
    let mut frames = Vec::new();
    for level in 1..=16 {
        raw.clear();
        while raw.len() < 300 * level as usize {
            // Words again and again, some noise, and runs.
            let (word, times) = (random.bits().to_le_bytes(), random.below(9) as usize);
            let length = 1 + random.below(8) as usize;
            (0..times).for_each(|_| raw.extend_from_slice(&word[..length]));
            raw.extend(std::iter::repeat_n(word[0] % 7, times));
        }
        let mut context = CCtx::create();
        let mut frame = Vec::with_capacity(2 * raw.len());
        let made = context
            .set_parameter(CParameter::CompressionLevel(level))
            .and_then(|_| context.set_parameter(CParameter::ChecksumFlag(level % 4 == 0)))
            .and_then(|_| context.set_parameter(CParameter::MaxBlockSize(1024)))
            .and_then(|_| context.compress2(&mut frame, &raw[..]));
        assert!(made.is_ok(), "libzstd makes a frame");
        let head = [&(raw.len() as u32).to_le_bytes()[..3], &[level as u8]].concat();
        frames.push([head, frame].concat());
    }
    frames
}

/// Decisions of any kind: the targets that take them understand all bytes.
fn decisions() -> Vec<Vec<u8>> {
    let mut random = Choices::seeded(1);
    (1..=16).map(|tens| random.take(40 * tens)).collect()
}

const CONFIGURATIONS: [&str; 3] = [
    r#"[nic]
kind = "tap"
name = "sidecore0"
host = ["10.77.0.1/24"]
mtu_bytes = 9000
[stack]
addresses = ["10.77.0.2/24", "fd77::2/64"]
routes = [{ network = "0.0.0.0/0", gateway = "10.77.0.1" }]
autoconfigure = true
congestion = "reno"
placement = "local-store"
"#,
    r#"socket = "/run/x.sock"
allow_uids = [1000]
[limits]
connections = 8
user_connections = 4
bytes = 1048576
user_bytes = 65536
[nic]
kind = "xdp"
name = "eth0"
address = "02:00:00:00:00:01"
queue = 1
mode = "zero-copy"
[stack]
addresses = []
sessions_max = 64
send_bytes = 65536
receive_bytes = 65536
[engine]
cpu = 1
grace_ms = 3
always_poll = true
"#,
    r#"[nic]
kind = "packet"
name = "eth0"
offload = false
shield = true
[stack]
addresses = ["192.0.2.7/33"]
"#,
];
