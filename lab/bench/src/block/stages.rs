//! Stages of a block's time: the papers' table, from the device's own clocks.
//!
//! Why here: the papers found 267 us of set-up for 636 us of decompression worth improving.
//! Must stay true: blocks are read one at a time in random order, without read-ahead, and none is
//! in the cache of frames; "touched" memory was used a moment ago, "untouched" has no page mapped.
//! Source: the block device paper (table of one block), its slides (pre-touching); docs/papers.md.

use super::inputs::{Corpus, open, warm_all};
use super::{Bench, BenchError, figures, interrupted};
use crate::measure::Better;
use crate::measure::stats::Series;
use sidecore_block::codec::{CodecId, make_deflater, make_inflater};
use sidecore_block::device::stages::Stage;
use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::format::Format;
use sidecore_block::source::BlockSource;
use sidecore_random::split_mix;
use sidecore_sys::{HugePages, Region, RegionOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The table, the effect of touching, and LZO1X's block times.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let lzo = bench.image(Corpus::Small, Format::CloopLzo)?;
    table(bench, &lzo, "LZO1X", true)?;
    let zstd = bench.image(Corpus::Small, Format::Zstd)?;
    table(bench, &zstd, "zstd", false)?;
    touching(bench, &lzo)?;
    requests(bench, &lzo)?;
    blocks(bench)
}

/// One round's stages, in us.
#[derive(Default)]
struct Table {
    set_up: Vec<f64>,
    hand_over: Vec<f64>,
    get: Vec<f64>,
    inflate: Vec<f64>,
    to_inflate: Vec<f64>,
    whole: Vec<f64>,
}

fn table(bench: &mut Bench<'_>, image: &Path, codec: &str, paper: bool) -> Result<(), BenchError> {
    bench.say(&format!("stages of a block, {codec}"));
    warm_all(&[image])?;
    let device = open(image, cores()?, quiet_config())?;
    let mut table = Table::default();
    let mut block = vec![0; frame_bytes(&device)];
    // Faults in the buffer and the image: this table is about touched memory.
    read_all(&device, &mut block, bench.runner.cancel())?;
    let cancel = bench.cancel.clone();
    let rounds = bench.each_round(|round| {
        device.stages().reset();
        let whole = read_shuffled(&device, &mut block, round as u64, &cancel)?;
        let stages = device.stages();
        let us = |stage| stages.quantile_ns(stage, 0.5) / 1000.0;
        let [set_up, hand_over, get] = [Stage::SetUp, Stage::HandOver, Stage::Get].map(us);
        let whole = crate::measure::stats::median(&whole);
        Ok([set_up, hand_over, get, us(Stage::Inflate), whole])
    })?;
    for [set_up, hand_over, get, inflate, whole] in rounds {
        table.set_up.push(set_up);
        table.hand_over.push(hand_over);
        table.get.push(get);
        table.inflate.push(inflate);
        table.to_inflate.push(set_up + hand_over + get);
        table.whole.push(whole);
    }
    let own = "median of the device's histogram, to 20 %; touched memory, image cached";
    for (name, figure, samples) in [
        (
            "set-up in the device",
            figures::DAEMON_SET_UP_US,
            table.set_up,
        ),
        (
            "hand-over to the engine",
            figures::DAEMON_TO_SPE_US,
            table.hand_over,
        ),
        (
            "get: bytes to the engine, checked",
            figures::SPE_SET_UP_US,
            table.get,
        ),
        ("inflate", figures::SPE_INFLATE_US, table.inflate),
    ] {
        let name = format!("block {codec}: {name}");
        bench
            .row(&name, paper.then_some(figure), &Series::new(samples), "us")
            .note(own);
    }
    let before = figures::DRIVER_TO_DAEMON_US
        + figures::DAEMON_SET_UP_US
        + figures::DAEMON_TO_SPE_US
        + figures::SPE_SET_UP_US;
    let name = format!("block {codec}: request to inflate start");
    bench
        .row(
            &name,
            paper.then_some(before),
            &Series::new(table.to_inflate),
            "us",
        )
        .target(Better::Lower, 2.0)
        .note("the sum of the first three medians; the papers' includes driver to daemon");
    let name = format!("block {codec}: request to bytes, whole");
    let all = paper.then_some(before + figures::SPE_INFLATE_US);
    bench
        .row(&name, all, &Series::new(table.whole), "us")
        .note("exact, from outside");
    Ok(())
}

/// Requests of eight blocks, as the slides estimate them: on one engine, and on all, interleaved.
fn requests(bench: &mut Bench<'_>, image: &Path) -> Result<(), BenchError> {
    bench.say("requests of 512 KiB");
    let [ppe, best, _] = figures::SLIDES_512K_US;
    let mut candidates = Vec::new();
    for (name, engines, paper) in [("one engine", 1, ppe), ("all engines", cores()?, best)] {
        let device = open(image, engines, quiet_config())?;
        let request = vec![0; REQUEST_BLOCKS * frame_bytes(&device)];
        candidates.push((name, paper, device, request));
    }
    let cancel = bench.cancel.clone();
    let rounds = bench.each_round(|round| {
        let median_us = |(_, _, device, request): &mut (_, _, _, Vec<u8>)| {
            let times = read_shuffled(device, request, round as u64, &cancel)?;
            Ok(crate::measure::stats::median(&times))
        };
        let medians: Result<Vec<f64>, BenchError> = candidates.iter_mut().map(median_us).collect();
        medians
    })?;
    for (index, (name, paper, ..)) in candidates.iter().enumerate() {
        let medians = rounds.iter().map(|medians| medians[index]).collect();
        let name = format!("512 KiB in one request, LZO1X: {name}");
        let row = bench.row(name, Some(*paper), &Series::new(medians), "us");
        row.note("the papers: the PPE; four SPEs at best");
    }
    Ok(())
}

/// Cost of the first touch of memory: source (the mapped image), destination.
fn touching(bench: &mut Bench<'_>, image: &Path) -> Result<(), BenchError> {
    bench.say("with and without pre-touch");
    let device = open(image, 1, quiet_config())?;
    let frame_bytes = frame_bytes(&device);
    let mut touched = vec![0; frame_bytes];
    read_all(&device, &mut touched, bench.runner.cancel())?;
    let frames = device.size_bytes() as usize / frame_bytes;
    let mut get = [Vec::new(), Vec::new()];
    let mut inflate = [Vec::new(), Vec::new()];
    let cancel = bench.cancel.clone();
    let rounds = bench.each_round(|_| {
        let us = |stage| device.stages().mean_ns(stage) / 1000.0;
        device.stages().reset();
        read_all(&device, &mut touched, &cancel)?;
        let touched_us = [us(Stage::Get), us(Stage::Inflate)];
        // The source's pages are unmapped; they stay in the page cache.
        device.drop_cache();
        device.stages().reset();
        read_all(&device, &mut touched, &cancel)?;
        // Where the get only borrows, the pages are faulted in during decompression. On a busy
        // machine that difference may be lost in the noise, but no fault costs less than nothing.
        let faults_us = us(Stage::Inflate) - touched_us[1];
        let untouched_get_us = us(Stage::Get) + faults_us.max(0.0);
        let mut fresh = Region::new(
            frames * frame_bytes,
            RegionOptions {
                huge: HugePages::None,
                lock: false,
                touch: false,
            },
        )?;
        device.stages().reset();
        for (number, block) in fresh.bytes_mut().chunks_exact_mut(frame_bytes).enumerate() {
            device.read_into((number * frame_bytes) as u64, block)?;
        }
        Ok((touched_us, [untouched_get_us, us(Stage::Inflate)]))
    })?;
    for (touched, untouched) in rounds {
        for (at, [get_us, inflate_us]) in [touched, untouched].into_iter().enumerate() {
            get[at].push(get_us);
            inflate[at].push(inflate_us);
        }
    }
    let [get_touched, get_untouched] = get.map(Series::new);
    let [inflate_touched, inflate_untouched] = inflate.map(Series::new);
    let factor = |a: &Series, b: &Series| Series::new(vec![a.median() / b.median().max(1e-3)]);
    let paper = figures::SPE_SET_UP_US;
    bench
        .row(
            "get of a block, source touched",
            Some(paper),
            &get_touched,
            "us",
        )
        .note("mean");
    let note = "mean, page faults while inflating included";
    bench
        .row(
            "get of a block, source untouched",
            None,
            &get_untouched,
            "us",
        )
        .note(note);
    let [least, most] = figures::UNTOUCHED_FACTOR;
    let ratio = factor(&get_untouched, &get_touched);
    bench
        .row(
            "untouched source costs so many times as much",
            Some(least),
            &ratio,
            "x",
        )
        .note(format!("the papers: {least} to {most}"));
    bench
        .row(
            "inflate a block, target touched",
            None,
            &inflate_touched,
            "us",
        )
        .note("mean");
    bench
        .row(
            "inflate a block, target untouched",
            None,
            &inflate_untouched,
            "us",
        )
        .note("mean");
    Ok(())
}

/// 64 KiB blocks of a program and of text, as miniLZO compresses them (the fastest level).
fn blocks(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    bench.say("LZO1X block times");
    let tree = bench.tree(Corpus::Small)?;
    let text = text_of(&tree.directory)?;
    let program = match &tree.program {
        Some(path) => std::fs::read(path).map_err(BenchError::io("read a program"))?,
        None => Vec::new(),
    };
    let kinds = [
        ("a program", program, figures::MINILZO_BINARY_US),
        ("text", text, figures::MINILZO_TEXT_US),
    ];
    for (kind, bytes, paper) in kinds {
        let bytes = &bytes[..bytes.len().min(BLOCKS_BYTES_MAX)];
        let mut deflater = make_deflater(CodecId::Lzo1x, Some(1))?;
        let mut streams = Vec::new();
        for block in bytes.chunks_exact(figures::BLOCK_BYTES as usize) {
            let mut stream = Vec::new();
            deflater.deflate(block, &mut stream)?;
            streams.push(stream);
        }
        if streams.is_empty() {
            bench.missing(
                "miniLZO",
                &format!("a block of {kind}"),
                "no such file was found",
            );
            continue;
        }
        let mut inflater = make_inflater(CodecId::Lzo1x);
        let mut out = vec![0; figures::BLOCK_BYTES as usize];
        let medians = bench.each_round(|_| {
            let mut times = Vec::with_capacity(streams.len());
            // Timed block by block, since the papers give the time of one block.
            for stream in &streams {
                let began = Instant::now();
                inflater.inflate(stream, &mut out)?;
                times.push(began.elapsed().as_nanos() as f64 / 1000.0);
            }
            Ok(crate::measure::stats::median(&times))
        })?;
        let name = format!("LZO1X inflates 64 KiB of {kind}");
        bench
            .row(&name, Some(paper.spe), &Series::new(medians), "us")
            .note(format!(
                "the papers: one SPE; x86 {}, PPE {}",
                paper.x86, paper.ppe
            ));
    }
    Ok(())
}

/// Documentation that is not compressed, one file after another.
fn text_of(tree: &Path) -> Result<Vec<u8>, BenchError> {
    let mut text = Vec::new();
    let mut directories = vec![tree.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = std::fs::read_dir(&directory).map_err(BenchError::io("read the tree"))?;
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                directories.push(path);
            } else if text.len() < BLOCKS_BYTES_MAX {
                let bytes = std::fs::read(&path).map_err(BenchError::io("read the tree"))?;
                if std::str::from_utf8(&bytes).is_ok() {
                    text.extend_from_slice(&bytes);
                }
            }
        }
    }
    Ok(text)
}

/// Reads every whole frame in order. Whole frames go past the cache of frames.
fn read_all(
    device: &Device,
    block: &mut [u8],
    cancel: &std::sync::atomic::AtomicBool,
) -> Result<(), BenchError> {
    let frames = device.size_bytes() / block.len() as u64;
    for number in 0..frames {
        interrupted(cancel)?;
        device.read_into(number * block.len() as u64, block)?;
    }
    Ok(())
}

/// Reads every whole frame once, in random order. Each read's time in us.
fn read_shuffled(
    device: &Arc<Device>,
    block: &mut [u8],
    seed: u64,
    cancel: &std::sync::atomic::AtomicBool,
) -> Result<Vec<f64>, BenchError> {
    let frames = device.size_bytes() / block.len() as u64;
    let mut order: Vec<u64> = (0..frames).collect();
    let mut random = seed;
    for index in (1..order.len()).rev() {
        order.swap(
            index,
            (split_mix(&mut random) % (index as u64 + 1)) as usize,
        );
    }
    let mut times = Vec::with_capacity(order.len());
    for number in order {
        interrupted(cancel)?;
        let began = Instant::now();
        device.read_into(number * block.len() as u64, block)?;
        times.push(began.elapsed().as_nanos() as f64 / 1000.0);
    }
    Ok(times)
}

/// No read-ahead, and room for the whole small image's pages.
fn quiet_config() -> DeviceConfig {
    DeviceConfig {
        read_ahead_bytes: 0,
        ..DeviceConfig::default()
    }
}

fn frame_bytes(device: &Device) -> usize {
    device.index().frame_bytes() as usize
}

fn cores() -> Result<usize, BenchError> {
    Ok(sidecore_sys::cpu::allowed()?.len())
}

/// The slides' request, in blocks.
const REQUEST_BLOCKS: usize = 8;
/// Bytes of blocks that are enough for a median.
const BLOCKS_BYTES_MAX: usize = 8 << 20;
