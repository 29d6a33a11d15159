//! The page with simulated servers: images, engines, a stack and searches that are always at work.
//!
//! `cargo run -p sidecore-ui --example simulated -- [--period-ms N] [--images N] [--tips N]
//! [--empty] [--hostile]`
//!
//! Why here: a browser's test needs all that the page can show, and a day of it in minutes
//! (`--period-ms 7`). `--hostile` adds servers with names that are markup.
//! Prints `ready URL`, and ends with its standard input.

use serde_json::{Value, json};
use sidecore_status::{Kind, Server};
use sidecore_ui::{Options, Page};
use std::io::{Read, Write};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: u64| {
        let at = arguments.iter().position(|word| word == name);
        let word = at.and_then(|at| arguments.get(at + 1));
        word.map_or(Ok(default), |word| word.parse())
    };
    let (images, tips) = (number("--images", 6)?, number("--tips", 5000)?);
    let is_empty = arguments.iter().any(|word| word == "--empty");
    let period_ms = number("--period-ms", 1000)?;
    let mut machine = Machine {
        period_s: period_ms as f64 / 1000.0,
        is_hostile: arguments.iter().any(|word| word == "--hostile"),
        ..Machine::default()
    };
    let options = Options {
        source: Box::new(move || match is_empty {
            true => Vec::new(),
            false => machine.step(images),
        }),
        period: Duration::from_millis(period_ms),
        tree: (!is_empty).then(|| {
            let newick = Tree::grown(tips, 7).newick();
            (format!("simulated-{tips}.nwk"), newick)
        }),
        ..Options::default()
    };
    let page = Page::start(options)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {}", page.url())?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    page.stopper().stop();
    page.wait();
    Ok(())
}

/// The simulated servers; one step is a second of theirs.
#[derive(Default)]
struct Machine {
    second: u64,
    /// Real time of a step.
    period_s: f64,
    is_hostile: bool,
    read: Vec<u64>,
    busy: [u64; 8],
    jobs: [u64; 8],
    received: [u64; 9],
    drops: u64,
}

impl Machine {
    fn step(&mut self, images: u64) -> Vec<Server> {
        self.second += 1;
        let mut servers: Vec<_> = (0..images).map(|number| self.image(number)).collect();
        servers.push(self.daemon());
        servers.push(self.stack());
        servers.extend((0..2).map(|number| self.search(number)));
        if self.is_hostile {
            servers.extend(self.hostile());
        }
        servers
    }

    /// Servers of a hostile user.
    fn hostile(&self) -> [Server; 4] {
        let markup = "<img src=x onerror=alert(1)><script>alert(2)</script>\u{202e}\u{1b}[2J";
        let tree = format!("('{markup}',b,({});", "(".repeat(100_000));
        [
            json!({"kind": "image", "pid": 9, "name": markup, "image": markup, "way": markup}),
            json!({"kind": "daemon", "pid": 9, "name": markup, "engines": [{"id": u32::MAX}, {}]}),
            json!({"kind": "stack", "pid": 9, "address": markup, "sessions": [{"remote": markup}]}),
            json!({"kind": "search", "pid": 9, "alignment": markup, "best_tree_newick": tree}),
        ]
        .map(server)
    }

    fn image(&mut self, number: u64) -> Server {
        const NAMES: [(&str, &str, &str); 6] = [
            ("/srv/images/debian-13.img", "mount", "/mnt/debian"),
            ("s3://archive/genomes-2026.img", "mount", "/mnt/genomes"),
            ("/srv/images/build-root.img", "attach", "/dev/ublkb0"),
            (
                "oci://registry.local/tools:1.4",
                "serve",
                "tcp:127.0.0.1:10809",
            ),
            ("/srv/images/home.img", "rootless", "/home/ada/data"),
            ("/srv/images/scratch.img", "serve", "unix:/run/scratch.sock"),
        ];
        let place = usize::try_from(number).unwrap_or(0);
        self.read.resize(self.read.len().max(place + 1), 0);
        let now = self.second as f64;
        let wave = (now / (9.0 + number as f64 * 4.0)).sin().max(0.0);
        let noise = draw(self.second * 31 + number) as f64 / 1e19;
        let speed = [380e6, 46e6, 210e6, 120e6, 9e6, 0.0][place % 6];
        self.read[place] += (speed * (wave + noise * 0.3) * self.period_s) as u64;
        let read = self.read[place];
        let (image, way, at) = NAMES[place % 6];
        let is_remote = image.contains("://");
        let text = json!({
            "kind": "image", "pid": 1200 + number, "uid": 0, "name": image,
            "started_unix_s": 1_795_800_000 - number * 4000,
            "image": image, "way": way, "where": at,
            "size_bytes": (number + 2) << 32, "read_bytes": read,
            "cache_hits": read / 65_536 * (6 + number % 3), "cache_misses": read / 65_536 * 3,
            "fetched_bytes": if is_remote { read / 3 } else { 0 },
            "retries": if number == 1 { self.second / 40 + 3 } else { 0 },
            "damaged_frames": if number == 2 { 1 } else { 0 },
            "memory_bytes": (90 + number * 7) << 20,
            "overlay_dirty_bytes": if number.is_multiple_of(5) { read / 50 } else { 0 },
        });
        server(text)
    }

    fn daemon(&mut self) -> Server {
        let engines: Vec<Value> = (0..8u64)
            .map(|id| {
                let place = usize::try_from(id).unwrap_or(0);
                let now = self.second as f64;
                let share = (now / (7.0 + id as f64 * 3.0) + id as f64).sin() * 0.55 + 0.4;
                let share = (share + draw(self.second * 17 + id) as f64 / 2e20).clamp(0.0, 1.0);
                self.busy[place] += (share * self.period_s * 1e9) as u64;
                self.jobs[place] += (share * self.period_s * 90_000.0) as u64;
                let (busy_ns, jobs) = (self.busy[place], self.jobs[place]);
                json!({"id": id, "cpu": id + 8, "busy_ns": busy_ns, "jobs": jobs})
            })
            .collect();
        let jobs_total: u64 = self.jobs.iter().sum();
        let text = json!({
            "kind": "daemon", "pid": 810, "uid": 0, "name": "/run/sidecore/daemon.sock",
            "started_unix_s": 1_795_700_000, "engines": engines, "clients": 5,
            "jobs_total": jobs_total,
        });
        server(text)
    }

    fn stack(&mut self) -> Server {
        let sessions: Vec<Value> = (0..9u64)
            .map(|number| {
                let place = usize::try_from(number).unwrap_or(0);
                let noise = draw(self.second * 13 + number) % 9_000_000;
                let remote = format!("10.77.0.{}:{}", 20 + number, 40_100 + number);
                let speed = (noise * (9 - number)) as f64;
                self.received[place] += (speed * self.period_s) as u64;
                json!({
                    "local": "10.77.0.2:443", "remote": remote,
                    "state": if number == 8 { "time-wait" } else { "established" },
                    "rx_bytes": self.received[place], "tx_bytes": self.received[place] / 7,
                    "rtt_us": 180 + number * 45 + noise % 20,
                    "window_bytes": 65_536 << (number % 4),
                    "retransmits": if number == 3 { self.second / 9 } else { number / 4 },
                })
            })
            .collect();
        self.drops += u64::from(draw(self.second).is_multiple_of(23));
        let text = json!({
            "kind": "stack", "pid": 930, "uid": 0, "name": "/run/sidecore/net.sock",
            "started_unix_s": 1_795_720_000, "address": "10.77.0.2", "sessions": sessions,
            "drops": self.drops,
        });
        server(text)
    }

    fn search(&self, number: u64) -> Server {
        let step = (self.second / 4) as f64 + 1.0;
        let best = [-187_402.0, -52_118.0][usize::from(number == 1)];
        // The taxa are added first, as a search by stepwise addition does.
        let taxa = (8 + self.second / 2).min(64 - number * 24);
        let mut tree = Tree::grown(taxa, 3 + number);
        tree.stretch(1.0 + 1.0 / step);
        let is_second = usize::from(number == 1);
        let alignment = ["vertebrates.phy", "rbcl.fa"][is_second];
        let model = ["GTR+F+R4", "LG+G4"][is_second];
        let text = json!({
            "kind": "search", "pid": 2100 + number, "uid": 0,
            "name": alignment,
            "started_unix_s": 1_795_800_000, "elapsed_s": self.second as f64 * 17.0,
            "alignment": alignment,
            "model": model,
            "step": if self.second < 112 { "stepwise addition" } else { "spr round 2, radius 10" },
            "log_likelihood": best * (1.0 + 0.35 / step), "best_tree_newick": tree.newick(),
        });
        server(text)
    }
}

/// A server that says `description` of itself.
fn server(description: Value) -> Server {
    let mut fields = description.as_object().cloned().unwrap_or_default();
    let kind = fields.remove("kind").unwrap_or_default();
    let name = fields.remove("name").unwrap_or_default();
    let mut number = |key| {
        fields
            .remove(key)
            .and_then(|value| value.as_u64())
            .unwrap_or(0)
    };
    let (pid, started_unix_s) = (number("pid"), number("started_unix_s"));
    Server {
        kind: kind.as_str().and_then(Kind::of_name).unwrap_or(Kind::Image),
        pid: u32::try_from(pid).unwrap_or(0),
        uid: 0,
        name: name.as_str().unwrap_or_default().to_owned(),
        started_unix_s,
        is_answering: true,
        fields,
    }
}

/// A random tree: the children of each inner node, or a tip's number.
struct Tree {
    children: Vec<Option<(usize, usize)>>,
    lengths: Vec<f64>,
}

impl Tree {
    /// Splits a random tip until there are `tips`.
    fn grown(tips: u64, seed: u64) -> Self {
        let mut tree = Self {
            children: vec![None],
            lengths: vec![0.0],
        };
        let mut open = vec![0usize];
        for split in 1..tips {
            let random = draw(seed * 1_000_003 + split);
            let place = usize::try_from(random >> 8).unwrap_or(0) % open.len();
            let node = open.swap_remove(place);
            let next = tree.children.len();
            tree.children[node] = Some((next, next + 1));
            for child in 0..2u64 {
                tree.children.push(None);
                let noise = draw(seed + split * 2 + child) % 1000;
                tree.lengths.push(0.004 + noise as f64 / 12_000.0);
            }
            open.extend([next, next + 1]);
        }
        tree
    }

    fn stretch(&mut self, factor: f64) {
        self.lengths.iter_mut().for_each(|length| *length *= factor);
    }

    fn newick(&self) -> String {
        const GENERA: [&str; 12] = [
            "Abies",
            "Betula",
            "Carex",
            "Drosera",
            "Erica",
            "Fagus",
            "Gentiana",
            "Hypericum",
            "Ilex",
            "Juncus",
            "Kalmia",
            "Larix",
        ];
        let mut text = String::new();
        // What is still to be written: a node, or text behind it.
        let mut stack = vec![Err(";".to_owned()), Ok(0usize)];
        while let Some(next) = stack.pop() {
            let node = match next {
                Ok(node) => node,
                Err(behind) => {
                    text += &behind;
                    continue;
                }
            };
            let length = self.lengths[node];
            match self.children[node] {
                Some((left, right)) => {
                    let support = 100 - (draw(node as u64) % 100).pow(2) / 150;
                    text.push('(');
                    stack.push(Err(format!("){support}:{length:.5}")));
                    stack.extend([Ok(right), Err(",".to_owned()), Ok(left)]);
                }
                None => text += &format!("{}_{node}:{length:.5}", GENERA[node % 12]),
            }
        }
        text
    }
}

/// A number that depends on `seed` alone (SplitMix64's step).
fn draw(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
