//! Our LZO1X compared with liblzo2's `lzo1x_decompress_safe`, on the same streams, on one core.
//!
//! Why here: the papers' decompressor was miniLZO, and their next step one that is hand-made for
//! the local store; this measures that step.
//! Must stay true: liblzo2 is GPL and is never linked: it runs in a program of its own, compiled
//! from `lab/bench/peers/lzo_peer.c` with `cc -O2`; both decompress streams that *liblzo2* made,
//! from memory, in blocks of 64 KiB, and take the best of the same number of passes.
//! Source: liblzo2 2.10 as a program.

use super::inputs::Corpus;
use super::tools::{Runner, tool};
use super::{Bench, BenchError, Candidate, Comparison, figures};
use crate::measure::Better;
use sidecore_block::codec::{CodecId, make_inflater};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// LZO1X-1 and LZO1X-999 streams of evenly spaced blocks of the large contents.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let peer = compile(bench)?;
    let raw = bench.raw(Corpus::Large)?;
    let blocks = take_blocks(
        &raw,
        if bench.quick() {
            QUICK_BYTES
        } else {
            SAMPLE_BYTES
        },
    )?;
    let raw_bytes: usize = blocks.iter().map(Vec::len).sum();
    let list = bench.runner.fresh("blocks");
    write_blocks(&list, &blocks)?;
    let core = sidecore_sys::cpu::allowed()?.last().copied().unwrap_or(0);
    for (mode, name) in [("compress1", "LZO1X-1"), ("compress999", "LZO1X-999")] {
        bench.say(&format!("liblzo2 deflates {name}"));
        let path = bench.runner.fresh(mode);
        bench
            .runner
            .time(Command::new(&peer).arg(mode).arg(&list).arg(&path))?;
        // Both sides decompress liblzo2's streams: ours must not profit from its own compressor.
        let streams = Streams::read(&path)?;
        streams.check(&blocks, name)?;
        let mb = raw_bytes as f64 / 1e6;
        let program = &peer;
        let mut candidates = vec![
            Candidate::of_one("ours", |_| Ok(mb / streams.best_s(core)?)),
            Candidate::of_one(LIBLZO2, |runner: &Runner| {
                // Pinned like ours, so that both have the same core.
                let mut command = tool("taskset")?;
                command
                    .args(["-c", &core.to_string()])
                    .arg(program)
                    .arg("bench");
                command.arg(&path).arg(PASSES.to_string());
                let text = runner.output(&mut command)?;
                let seconds = text
                    .trim()
                    .parse::<f64>()
                    .map_err(|_| BenchError::Program {
                        command: program.display().to_string(),
                        what: format!("printed `{}` instead of seconds", text.trim()),
                    })?;
                Ok(mb / seconds)
            }),
        ];
        let metric = format!("{name} inflate, 64 KiB blocks, one core");
        let series = bench.interleave(&metric, "MB/s", &mut candidates)?;
        drop(candidates);
        let comparison = Comparison {
            group: bench.group,
            name: LIBLZO2,
            metric: &metric,
            unit: "MB/s",
            better: Better::Higher,
            target: Some(1.5),
            note: "",
        };
        bench.compare(&comparison, series[0].as_ref(), series[1].as_ref());
    }
    Ok(())
}

fn compile(bench: &Bench<'_>) -> Result<PathBuf, BenchError> {
    let source = bench.runner.fresh("lzo_peer.c");
    std::fs::write(&source, PEER_SOURCE).map_err(BenchError::io("write a C program"))?;
    let program = bench.runner.fresh("lzo_peer");
    let mut command = tool("cc")?;
    command
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-llzo2");
    bench
        .runner
        .time(&mut command)
        .map_err(|error| match error {
            BenchError::Program { what, .. } => BenchError::Missing(format!(
                "liblzo2 cannot be linked ({what}): apt install liblzo2-dev"
            )),
            other => other,
        })?;
    Ok(program)
}

/// Evenly spaced blocks of a file, about `bytes` of them, without those that are all zeros.
fn take_blocks(path: &Path, bytes: u64) -> Result<Vec<Vec<u8>>, BenchError> {
    let file = File::open(path).map_err(BenchError::io("open the contents"))?;
    let total = super::file_bytes(path)? / figures::BLOCK_BYTES;
    let step = (total * figures::BLOCK_BYTES / bytes).max(1);
    let mut blocks = Vec::new();
    for number in (0..total).step_by(step as usize) {
        let mut block = vec![0; figures::BLOCK_BYTES as usize];
        let read = file.read_exact_at(&mut block, number * figures::BLOCK_BYTES);
        read.map_err(BenchError::io("read the contents"))?;
        if block.iter().any(|&byte| byte != 0) {
            blocks.push(block);
        }
    }
    Ok(blocks)
}

/// The list that the peer's program reads.
fn write_blocks(path: &Path, blocks: &[Vec<u8>]) -> Result<(), BenchError> {
    let mut list = Vec::new();
    for block in blocks {
        list.extend_from_slice(&(block.len() as u32).to_le_bytes());
        list.extend_from_slice(block);
    }
    std::fs::write(path, list).map_err(BenchError::io("write the blocks"))
}

/// Streams that the peer's program wrote.
struct Streams {
    bytes: Vec<u8>,
    /// Raw length, and range of the stream.
    streams: Vec<(usize, std::ops::Range<usize>)>,
}

impl Streams {
    fn read(path: &Path) -> Result<Self, BenchError> {
        let bytes = std::fs::read(path).map_err(BenchError::io("read the streams"))?;
        let mut streams = Vec::new();
        let mut at = 0;
        let number = |at: usize| {
            let four = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(four) as usize)
        };
        while let (Some(raw), Some(stored)) = (number(at), number(at + 4)) {
            streams.push((raw, at + 8..(at + 8 + stored).min(bytes.len())));
            at += 8 + stored;
        }
        Ok(Self { bytes, streams })
    }

    fn check(&self, blocks: &[Vec<u8>], name: &str) -> Result<(), BenchError> {
        let mut inflater = make_inflater(CodecId::Lzo1x);
        let mut out = vec![0; figures::BLOCK_BYTES as usize];
        for ((raw, at), block) in self.streams.iter().zip(blocks) {
            inflater.inflate(&self.bytes[at.clone()], &mut out[..*raw])?;
            if out[..*raw] != block[..] {
                return Err(BenchError::WrongBytes {
                    what: format!("our inflater of {name}"),
                    detail: "a block differs".into(),
                });
            }
        }
        if self.streams.len() == blocks.len() {
            return Ok(());
        }
        Err(BenchError::WrongBytes {
            what: format!("liblzo2's {name}"),
            detail: format!("{} streams of {} blocks", self.streams.len(), blocks.len()),
        })
    }

    /// The least seconds of a pass, on a thread of its own, pinned as the peer is.
    fn best_s(&self, core: usize) -> Result<f64, BenchError> {
        let work = || -> Result<f64, BenchError> {
            sidecore_sys::cpu::pin(core)?;
            let mut inflater = make_inflater(CodecId::Lzo1x);
            let mut out = vec![0; figures::BLOCK_BYTES as usize];
            let mut best = f64::MAX;
            for _ in 0..PASSES {
                let began = Instant::now();
                for (raw, at) in &self.streams {
                    inflater.inflate(&self.bytes[at.clone()], &mut out[..*raw])?;
                }
                best = best.min(began.elapsed().as_secs_f64());
            }
            Ok(best)
        };
        std::thread::scope(|scope| match scope.spawn(work).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }
}

const LIBLZO2: &str = "liblzo2 lzo1x_decompress_safe";
const PEER_SOURCE: &str = include_str!("../../peers/lzo_peer.c");
const SAMPLE_BYTES: u64 = 64 << 20;
const QUICK_BYTES: u64 = 16 << 20;
const PASSES: usize = 3;
