//! The peers: how each is started on one thread, its output, its cost.
//!
//! Debian's RAxML 8 has builds with threads only, and they raise `-T 1` to two threads that wait
//! for each other by spinning: on a busy machine most of their time is waiting. To compare one
//! thread with one thread, the bench makes a copy of the program in which that lower bound is 1.
//! This changes one byte of one instruction and nothing else. Where that instruction is not found
//! exactly once, RAxML is left out.

use crate::data::Set;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const OURS: &str = "sidecore";
pub(crate) const RAXML: &str = "RAxML 8";
pub(crate) const IQTREE: &str = "IQ-TREE 2";
pub(crate) const RAXML_NG: &str = "RAxML-NG";
/// The peers, in the order of the tables' columns.
pub(crate) const PEERS: [&str; 3] = [RAXML, IQTREE, RAXML_NG];
pub(crate) const PROGRAMS: [&str; 4] = [OURS, RAXML, IQTREE, RAXML_NG];

/// Result and cost of a run.
pub(crate) struct Found {
    pub(crate) ended: Ended,
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) rss_mib: f64,
}

pub(crate) enum Ended {
    Tree {
        tree: String,
        lnl: f64,
    },
    /// It used up its time limit.
    Limit,
}

pub(crate) struct Peers {
    folder: PathBuf,
    limit_s: u64,
    wanted: Vec<String>,
    raxml: Option<PathBuf>,
    iqtree: bool,
    raxml_ng: bool,
}

impl Peers {
    /// The installed ones among `wanted`; among all peers where that is empty.
    pub(crate) fn find(folder: &Path, limit_s: u64, wanted: &[String]) -> Self {
        let found = |program: &str| {
            let mut command = Command::new(program);
            let quiet = command
                .arg("-h")
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            quiet.status().is_ok()
        };
        Self {
            folder: folder.to_owned(),
            limit_s,
            wanted: wanted.to_vec(),
            raxml: raxml_on_one_thread(folder),
            iqtree: found("iqtree2"),
            raxml_ng: found("raxml-ng"),
        }
    }

    pub(crate) fn has(&self, program: &str) -> bool {
        let named = self.wanted.iter().any(|name| name == program);
        if program != OURS && !self.wanted.is_empty() && !named {
            return false;
        }
        match program {
            RAXML => self.raxml.is_some(),
            IQTREE => self.iqtree,
            RAXML_NG => self.raxml_ng,
            _ => true,
        }
    }

    /// Versions of the peers, as a list for the reader.
    pub(crate) fn versions(&self) -> String {
        let line = |program: &Path, argument: &str, mark: &str| {
            let output = Command::new(program).arg(argument).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = text.lines().find(|line| line.contains(mark));
            format!("- {}\n", line.unwrap_or(mark).trim())
        };
        let missing = |program: &str| format!("- {program} is missing: scripts/setup --peers\n");
        let raxml = match &self.raxml {
            Some(raxml) => line(raxml, "-v", "RAxML version"),
            None => missing(RAXML),
        };
        let iqtree = match self.iqtree {
            true => line(Path::new("iqtree2"), "--version", "IQ-TREE"),
            false => missing(IQTREE),
        };
        let raxml_ng = match self.raxml_ng {
            true => line(Path::new("raxml-ng"), "--version", "RAxML-NG v"),
            false => missing(RAXML_NG),
        };
        raxml + &iqtree + &raxml_ng
    }

    /// One search.
    pub(crate) fn go(&self, program: &str, path: &Path, set: &Set, seed: u64) -> Found {
        let out = self.folder.join("out");
        // Results of an earlier search would be read as this one's.
        let _ = std::fs::remove_dir_all(&out);
        std::fs::create_dir(&out).unwrap();
        let mut command = self.command(program, path, set, &seed.to_string());
        let log = std::fs::File::create(out.join("log")).unwrap();
        command.current_dir(&out).stdout(log).stderr(Stdio::null());
        let (began, before) = (Instant::now(), children_cpu_s());
        let mut child = command.spawn().expect("prlimit, of the package util-linux");
        let rss_mib = watch(&mut child);
        let status = child.wait().unwrap();
        let (wall_s, cpu_s) = (began.elapsed().as_secs_f64(), children_cpu_s() - before);
        let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
        let ended = if status.success() {
            let (tree, lnl) = match program {
                OURS => {
                    let text = read("log");
                    let tree = text.lines().find(|line| line.starts_with('('));
                    (tree.unwrap().to_owned(), after(&text, "final "))
                }
                IQTREE => (
                    read("out.treefile"),
                    after(&read("out.iqtree"), "Log-likelihood of the tree: "),
                ),
                RAXML_NG => (
                    read("out.raxml.bestTree"),
                    after(&read("out.raxml.log"), "Final LogLikelihood: "),
                ),
                _ => (
                    read("RAxML_bestTree.out"),
                    after(
                        &read("RAxML_info.out"),
                        "Final GAMMA-based Score of best tree ",
                    ),
                ),
            };
            Ended::Tree { tree, lnl }
        } else {
            // A failure before the limit is a fault of the bench, not a result.
            let bound = 0.95 * self.limit_s as f64;
            assert!(cpu_s > bound, "{program} failed: {}", read("log"));
            Ended::Limit
        };
        Found {
            ended,
            wall_s,
            cpu_s,
            rss_mib,
        }
    }

    fn command(&self, program: &str, path: &Path, set: &Set, seed: &str) -> Command {
        let mut command = Command::new("prlimit");
        command.arg(format!("--cpu={}", self.limit_s));
        let partitions = set.partitions.as_ref();
        match program {
            OURS => {
                command.arg(std::env::current_exe().unwrap());
                command.arg("--one").arg(path);
                command.args(["--seed", seed, "--model", set.model]);
                partitions.map(|file| command.arg("--partitions").arg(file));
            }
            IQTREE => {
                command.arg("iqtree2").arg("-s").arg(path);
                command.args(["-m", set.model, "-nt", "1", "-seed", seed, "-pre", "out"]);
                // Equal lengths for all partitions.
                partitions.map(|file| command.arg("-q").arg(file));
            }
            RAXML_NG => {
                // One start as its authors make one; equal lengths for all partitions. Searches of
                // a few patterns for each thread are refused without the second line's last word.
                command.args(["raxml-ng", "--search1", "--threads", "1"]);
                command.args(["--seed", seed, "--prefix", "out", "--force", "perf_threads"]);
                command.arg("--msa").arg(path).arg("--model");
                match partitions {
                    None => command.arg(raxml_ng_model(set.model)),
                    Some(file) => {
                        let parts = self.folder.join("out").join("parts.ng");
                        let text = std::fs::read_to_string(file).unwrap();
                        std::fs::write(&parts, raxml_ng_partitions(&text, set.model)).unwrap();
                        command.arg(parts).args(["--brlen", "linked"])
                    }
                };
            }
            _ => {
                command
                    .arg(self.raxml.as_ref().unwrap())
                    .arg("-s")
                    .arg(path);
                command.args(["-m", set.model_raxml, "-T", "1", "-p", seed, "-n", "out"]);
                partitions.map(|file| command.arg("-q").arg(file));
            }
        }
        command
    }
}

/// A model as RAxML-NG writes it: counted frequencies are `+FC`.
fn raxml_ng_model(model: &str) -> String {
    model.replace("+F+", "+FC+")
}

/// RAxML 8's partitions as RAxML-NG reads them: a whole model in place of the kind of data.
fn raxml_ng_partitions(text: &str, model: &str) -> String {
    let model = raxml_ng_model(model);
    let line = |line: &str| {
        let (_, sites) = line.split_once(',')?;
        Some(format!("{model},{sites}\n"))
    };
    text.lines().filter_map(line).collect()
}

/// A copy of Debian's RAxML with one thread allowed.
fn raxml_on_one_thread(folder: &Path) -> Option<PathBuf> {
    let mut bytes = std::fs::read("/usr/bin/raxmlHPC-PTHREADS-AVX").ok()?;
    // movl $2, NumberOfThreads(%rip): c7 05, the address, the number.
    let is_store = |at: &usize| {
        let code = &bytes[*at..*at + 10];
        code[..2] == [0xc7, 0x05] && code[6..] == [2, 0, 0, 0]
    };
    let stores: Vec<usize> = (0..bytes.len().saturating_sub(10))
        .filter(is_store)
        .collect();
    let [store] = stores[..] else {
        return None;
    };
    bytes[store + 6] = 1;
    let path = folder.join("raxml");
    // Copied first for the file's mode, which the write keeps.
    std::fs::copy("/usr/bin/raxmlHPC-PTHREADS-AVX", &path).ok()?;
    std::fs::write(&path, bytes).ok()?;
    Some(path)
}

/// Waits for a program to end; returns the most memory that was seen with it, in MiB.
fn watch(child: &mut Child) -> f64 {
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0.0;
    while child.try_wait().unwrap().is_none() {
        if let Ok(text) = std::fs::read_to_string(&status)
            && let Some(rest) = text.split("VmHWM:").nth(1)
        {
            let kib: f64 = rest.split_whitespace().next().unwrap().parse().unwrap();
            most = kib / 1024.0;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    most
}

/// The number after a text.
fn after(text: &str, mark: &str) -> f64 {
    let rest = text.split(mark).nth(1).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

/// Seconds on a core of all child processes that have ended.
fn children_cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // After the name, which may hold blanks: fields 16 and 17 in hundredths.
    let rest = stat.rsplit(')').next().unwrap();
    let ticks: Vec<f64> = rest
        .split_whitespace()
        .skip(13)
        .take(2)
        .map(|field| field.parse().unwrap())
        .collect();
    (ticks[0] + ticks[1]) * 0.01
}
