//! Speed of our LZO1X decompressor compared with liblzo2, and sizes of our compressor.
//!
//! `cargo run --release -p sidecore-bench --example bench_lzo1x -- [--rounds N] [--repetitions N]
//! [--json] [FILE...]`
//!
//! Files (by default about 30 MB of this machine's programs, libraries, headers and documents) are
//! cut into blocks of 64 KiB and compressed by LZO1X-1, LZO1X-999 and two of our levels. Then,
//! round by round, a process of ours and one of liblzo2 (`lab/bench/peers/lzo_peer.c`) decompress
//! each set in turn, several times, and report their least time. A row's speed-up is the median
//! over the rounds of the two times' ratio; the spread is its least and greatest.
//!
//! Why here: this command makes the figures in `docs/formats/lzo1x.md` and the module's README.
//! Exit status 1 if a promise made there is missed, 2 if it could not run.

#[allow(dead_code, reason = "the tests, whose file this is, call the rest")]
#[path = "../../../image/format/src/codec/lzo1x/tests/peer.rs"]
mod peer;

use peer::{Failure, Peer, scratch, stream_file};
use serde_json::json;
use sidecore_block::codec::lzo1x::{Deflate, Inflate};
use sidecore_block::codec::{Deflater, Inflater};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

const BLOCK_BYTES: usize = 64 << 10;
const CORPUS_BYTES: usize = 30_000_000;
const CORPUS_FOLDERS: [&str; 4] = [
    "/usr/bin",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/share/doc",
    "/usr/include",
];
const LEVELS: [u8; 2] = [1, 7];
/// Bytes of a local store.
const STORE_BYTES: u64 = 256 << 10;
/// Required speed of decompression, relative to liblzo2.
const SPEED_UP_MIN: f64 = 1.5;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [mode, file, repetitions] if mode == "--inflate" => inflate_file(file, repetitions),
        _ => Options::parse(&arguments).and_then(|options| bench(&options)),
    };
    match outcome {
        Ok(status) => status,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "bench_lzo1x: {error}");
            ExitCode::from(2)
        }
    }
}

struct Options {
    rounds: usize,
    repetitions: usize,
    json: bool,
    files: Vec<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self {
            rounds: 7,
            repetitions: 3,
            json: false,
            files: Vec::new(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut number = || {
                let value = rest.next().and_then(|value| value.parse().ok());
                value
                    .filter(|&n| n > 0)
                    .ok_or(format!("{argument} needs a number above 0"))
            };
            match argument.as_str() {
                "--rounds" => options.rounds = number()?,
                "--repetitions" => options.repetitions = number()?,
                "--json" => options.json = true,
                name if name.starts_with('-') => {
                    return Err(format!(
                        "cannot read `{name}`; usage: [--rounds N] [--repetitions N] [--json] \
                         [FILE...]"
                    )
                    .into());
                }
                name => options.files.push(name.into()),
            }
        }
        Ok(options)
    }
}

/// One way to compress the corpus, and the time of its decompression in each round.
struct Row {
    name: String,
    stream_bytes: usize,
    file: PathBuf,
    ours_s: Vec<f64>,
    peer_s: Vec<f64>,
}

fn bench(options: &Options) -> Result<ExitCode, Failure> {
    let raw = corpus(&options.files)?;
    let blocks: Vec<&[u8]> = raw.chunks(BLOCK_BYTES).collect();
    let peer = Peer::build()?;

    let mut rows = vec![
        Row::new("LZO1X-1", &peer.compress("compress1", &blocks)?, &blocks)?,
        Row::new(
            "LZO1X-999",
            &peer.compress("compress999", &blocks)?,
            &blocks,
        )?,
    ];
    for level in LEVELS {
        let mut deflate = Deflate::new(level);
        let mut streams = vec![Vec::new(); blocks.len()];
        for (stream, block) in streams.iter_mut().zip(&blocks) {
            deflate.deflate(block, stream)?;
        }
        rows.push(Row::new(
            &format!("ours, level {level}"),
            &streams,
            &blocks,
        )?);
    }
    for round in 0..options.rounds {
        for row in &mut rows {
            // The order changes, so that neither always finds the file warm.
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    row.ours_s
                        .push(inflate_in_a_process(&row.file, options.repetitions)?);
                } else {
                    row.peer_s.push(peer.bench(&row.file, options.repetitions)?);
                }
            }
        }
    }
    let code_bytes = code_bytes()?;
    let state_bytes = code_bytes + 2 * BLOCK_BYTES as u64;
    let fits = state_bytes <= STORE_BYTES;
    let fast = rows.iter().all(|row| row.speed_up().median >= SPEED_UP_MIN);
    let size = |index: usize| rows[index].stream_bytes as f64;
    let small = size(0) >= size(2) && size(1) >= 0.97 * size(3);

    let figures: Vec<_> = rows.iter().map(|row| row.json(raw.len())).collect();
    let summary = json!({
        "machine": machine(),
        "load": std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        "raw_bytes": raw.len(),
        "block_bytes": BLOCK_BYTES,
        "rounds": options.rounds,
        "repetitions": options.repetitions,
        "rows": figures,
        "code_bytes": code_bytes,
        "state_bytes": state_bytes,
        "kept": fits && fast && small,
    });
    let mut out = std::io::stdout().lock();
    if options.json {
        writeln!(out, "{summary:#}")?;
    } else {
        print_table(&mut out, &summary)?;
    }
    Ok(if fits && fast && small {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

fn print_table(out: &mut impl Write, summary: &serde_json::Value) -> Result<(), Failure> {
    let text = |key: &str| summary[key].to_string().trim_matches('"').to_owned();
    writeln!(
        out,
        "{}; load {}; {} bytes in blocks of {}; {} rounds of {} passes",
        text("machine"),
        text("load"),
        text("raw_bytes"),
        text("block_bytes"),
        text("rounds"),
        text("repetitions"),
    )?;
    writeln!(
        out,
        "{:<14} {:>6} {:>10} {:>10} {:>12} {:>12} {:>9} {:>13}",
        "deflated by",
        "ratio",
        "ours MB/s",
        "(median)",
        "liblzo2 MB/s",
        "(median)",
        "speed-up",
        "spread"
    )?;
    for row in summary["rows"].as_array().into_iter().flatten() {
        let figure = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        writeln!(
            out,
            "{:<14} {:>6.3} {:>10.0} {:>10.0} {:>12.0} {:>12.0} {:>9.2} {:>6.2}-{:<6.2}",
            row["name"].as_str().unwrap_or_default(),
            figure("ratio"),
            figure("ours_mb_per_s_max"),
            figure("ours_mb_per_s_median"),
            figure("peer_mb_per_s_max"),
            figure("peer_mb_per_s_median"),
            figure("speed_up_median"),
            figure("speed_up_min"),
            figure("speed_up_max"),
        )?;
    }
    writeln!(
        out,
        "inflating: {} bytes of code and tables, {} with a block in and a block out; \
         limit {STORE_BYTES}",
        text("code_bytes"),
        text("state_bytes"),
    )?;
    Ok(())
}

struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            min: at(0),
            median: at(values.len() / 2),
            max: at(values.len().saturating_sub(1)),
        }
    }
}

impl Row {
    fn new(name: &str, streams: &[Vec<u8>], blocks: &[&[u8]]) -> Result<Self, Failure> {
        let list: Vec<(usize, &[u8])> = blocks
            .iter()
            .zip(streams)
            .map(|(block, stream)| (block.len(), &stream[..]))
            .collect();
        check(&list, blocks)?;
        let file = scratch("lzo-streams")?;
        std::fs::write(&file, stream_file(&list))?;
        let stream_bytes = streams.iter().map(Vec::len).sum();
        Ok(Self {
            name: name.into(),
            stream_bytes,
            file,
            ours_s: Vec::new(),
            peer_s: Vec::new(),
        })
    }

    fn speed_up(&self) -> Spread {
        Spread::of(
            self.peer_s
                .iter()
                .zip(&self.ours_s)
                .map(|(peer, ours)| peer / ours)
                .collect(),
        )
    }

    fn json(&self, raw_bytes: usize) -> serde_json::Value {
        let (ours, peer) = (
            Spread::of(self.ours_s.clone()),
            Spread::of(self.peer_s.clone()),
        );
        let speed_up = self.speed_up();
        let mb_per_s = |seconds: f64| raw_bytes as f64 / seconds / 1e6;
        json!({
            "name": self.name,
            "stream_bytes": self.stream_bytes,
            "ratio": raw_bytes as f64 / self.stream_bytes as f64,
            "ours_mb_per_s_max": mb_per_s(ours.min),
            "ours_mb_per_s_median": mb_per_s(ours.median),
            "peer_mb_per_s_max": mb_per_s(peer.min),
            "peer_mb_per_s_median": mb_per_s(peer.median),
            "speed_up_min": speed_up.min,
            "speed_up_median": speed_up.median,
            "speed_up_max": speed_up.max,
            "ours_s": self.ours_s,
            "peer_s": self.peer_s,
        })
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Every stream must decompress to its block before anything is timed.
fn check(list: &[(usize, &[u8])], blocks: &[&[u8]]) -> Result<(), Failure> {
    let mut inflate = Inflate::new();
    let mut out = vec![0; BLOCK_BYTES];
    for ((room, stream), block) in list.iter().zip(blocks) {
        inflate.inflate(stream, &mut out[..*room])?;
        if out[..*room] != **block {
            return Err("a block came back changed".into());
        }
    }
    Ok(())
}

fn inflate_in_a_process(file: &Path, repetitions: usize) -> Result<f64, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command
        .arg("--inflate")
        .arg(file)
        .arg(repetitions.to_string())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse::<f64>()?)
}

/// Decompresses `file` in this process; counterpart of the peer's `bench`.
fn inflate_file(file: &str, repetitions: &str) -> Result<ExitCode, Failure> {
    let data = std::fs::read(file)?;
    let mut streams = Vec::new();
    let mut rest = &data[..];
    while let Some((&[a, b, c, d, e, f, g, h], tail)) = rest.split_first_chunk::<8>() {
        let stream_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        let (stream, tail) = tail
            .split_at_checked(stream_bytes)
            .ok_or("the list is cut short")?;
        streams.push((u32::from_le_bytes([a, b, c, d]) as usize, stream));
        rest = tail;
    }
    let room = streams.iter().map(|(room, _)| *room).max().unwrap_or(0);
    let mut out = vec![0; room];
    let mut inflate = Inflate::new();
    let mut least_s = f64::INFINITY;
    for _ in 0..repetitions.parse::<usize>()? {
        let start = Instant::now();
        for (room, stream) in &streams {
            inflate.inflate(stream, &mut out[..*room])?;
        }
        least_s = least_s.min(start.elapsed().as_secs_f64());
    }
    writeln!(std::io::stdout(), "{least_s:.9}")?;
    Ok(ExitCode::SUCCESS)
}

/// The files' bytes one after another; without files, a fixed choice of this machine's own.
fn corpus(files: &[PathBuf]) -> Result<Vec<u8>, Failure> {
    let mut raw = Vec::new();
    if !files.is_empty() {
        for file in files {
            let bytes = std::fs::read(file)
                .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            raw.extend(bytes);
        }
    } else {
        for (index, folder) in CORPUS_FOLDERS.iter().enumerate() {
            let mut found = Vec::new();
            list(Path::new(folder), &mut found);
            found.sort();
            let limit = CORPUS_BYTES / CORPUS_FOLDERS.len() * (index + 1);
            // From all over the folder: every ninth file, then every ninth from the second on, and
            // so on.
            let order = (0..9).flat_map(|start| found.iter().skip(start).step_by(9));
            for file in order {
                if raw.len() >= limit {
                    break;
                }
                raw.extend(std::fs::read(file)?);
            }
        }
    }
    if raw.is_empty() {
        return Err("nothing to deflate: the files are empty".into());
    }
    Ok(raw)
}

/// Plain files below a folder that are neither large nor compressed already.
fn list(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
            continue;
        };
        if kind.is_dir() {
            list(&path, found);
        } else if kind.is_file()
            && path.extension().is_none_or(|name| name != "gz")
            && entry.metadata().is_ok_and(|about| about.len() <= 3_000_000)
        {
            found.push(path);
        }
    }
}

/// Bytes of code and tables that decompression needs, by this program's own symbols.
fn code_bytes() -> Result<u64, Failure> {
    let output = Command::new("nm")
        .args(["--print-size", "--demangle"])
        .arg(std::env::current_exe()?)
        .output()
        .map_err(|error| format!("cannot run nm ({error}); run scripts/setup"))?;
    let mut total = 0;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.splitn(4, ' ').skip(1);
        let (Some(size), Some(_), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let ours = ["lzo1x::fast::", "lzo1x::reference::", "lzo1x::inflate::"];
        if ours.iter().any(|part| name.contains(part)) {
            total += u64::from_str_radix(size, 16)?;
        }
    }
    if total == 0 {
        return Err("nm shows no symbols of the inflater; build with the release profile".into());
    }
    Ok(total)
}

fn machine() -> String {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = about
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let name = name.map_or("unknown processor", |name| {
        name.trim_matches([' ', '\t', ':'])
    });
    format!("{name}, {cores} cores")
}
