//! Built-in kernels through a daemon compared with the same library called directly; a loaded
//! kernel in a process of its own compared with the same one built in, or in the daemon's process.
//!
//! Why here: it shows the cost of the daemon's copies and requests relative to the work itself.
//! Must stay true: both candidates do the same items of the same bytes in one thread's turn: a
//! direct call on the caller's core, or one request with all items to the one engine. Outputs are
//! compared before they are timed.
//! One thread, and the daemon's. Source: own.

use super::trips::Pinned;
use super::{Bench, BenchError, Candidate, wrong};
use crate::measure::child::tool;
use crate::measure::report::{Better, Comparison};
use aes_gcm::{AeadInOut, Aes256Gcm, KeyInit};
use sidecore_daemon::client::{Args, Buffer, Client, ClientOptions, KernelId};
use sidecore_daemon::served::{Cx, Memory, Registry, Reply, Request, Served, chunks};
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_engine::KernelError;
use sidecore_kernels::hash::Digest;
use sidecore_loader::{HostProgram, Limits, Loading};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Measures all kernels, then loaded ones.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    if bench.cpus.len() < 2 {
        bench.missing("kernels: a caller and an engine need two cores");
        return Ok(());
    }
    let folder = bench.config.scratch.join("kernels");
    std::fs::create_dir_all(&folder).map_err(BenchError::io("make a folder"))?;
    let registry = sidecore_kernels::register(Registry::builtin()).map_err(service)?;
    let registry = registry.with::<WordSum>().map_err(service)?;
    let has_loaded = match compile(&folder) {
        Ok(()) => true,
        Err(reason) => {
            bench.missing(&reason);
            false
        }
    };
    let mut served = registry.clone();
    let program = HostProgram::this(["offload", "host"]);
    for (name, host) in [(CHILDREN, Some(program)), (INSIDE, None)] {
        let limits = Limits::MOST;
        let loading = Loading { host, limits };
        let from = folder.join(name);
        if !has_loaded {
            break;
        }
        let loaded = sidecore_loader::register(served, &from, &loading).map_err(service)?;
        if let Some(refused) = loaded.refused.first() {
            return Err(BenchError::Wrong(refused.to_string()));
        }
        served = loaded.registry;
    }
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines: 1,
        registry: served,
        ..DaemonOptions::default()
    })?;
    let mut remote = registry;
    for name in NAMES
        .iter()
        .flat_map(|name| [(*name).to_owned(), inside(name)])
    {
        remote = remote.with_remote(&name, 1, None).map_err(service)?;
    }
    let client = Client::attach_with(
        daemon.socket(),
        ClientOptions {
            registry: remote,
            ..ClientOptions::patient()
        },
    )?;
    // The engine is on the last core; this thread leaves it alone until the group ends.
    let pinned = Pinned::to(bench.cpus[0])?;
    let measured = all_kernels(bench, &client, has_loaded);
    drop(pinned);
    measured?;
    let counters = client.counters();
    if counters.on_host > 0 {
        return Err(wrong(
            "the count of calls that no engine did",
            counters.on_host,
            0,
        ));
    }
    Ok(())
}

fn all_kernels(bench: &mut Bench<'_>, client: &Client, has_loaded: bool) -> Result<(), BenchError> {
    let data = text(ITEMS * ITEM_BYTES);
    digest::<sidecore_kernels::hash::Xxh3State<8>, 8>(bench, client, &data)?;
    digest::<sha2::Sha256, 32>(bench, client, &data)?;
    digest::<blake3::Hasher, 32>(bench, client, &data)?;
    digest::<sidecore_kernels::hash::Crc32cState, 4>(bench, client, &data)?;
    seal(bench, client, &data)?;
    codecs(bench, client, &data)?;
    if has_loaded {
        loaded(bench, client, &data)?;
    }
    Ok(())
}

/// A prepared request.
struct Call<'a> {
    client: &'a Client,
    kernel: KernelId,
    words: [u64; 3],
    data: Buffer,
    rows: Buffer,
    out: Buffer,
    results: Option<Buffer>,
}

impl<'a> Call<'a> {
    fn new(
        client: &'a Client,
        name: &str,
        words: [u64; 3],
        data: &[u8],
        rows: &[u8],
        (out, results): (usize, Option<usize>),
    ) -> Result<Self, BenchError> {
        let filled = |bytes: &[u8]| {
            let mut buffer = client.buffer(bytes.len());
            buffer.bytes_mut().copy_from_slice(bytes);
            buffer
        };
        Ok(Self {
            client,
            kernel: client.kernel(name)?,
            words,
            data: filled(data),
            rows: filled(rows),
            out: client.buffer(out),
            results: results.map(|bytes| client.buffer(bytes)),
        })
    }

    fn run(&mut self) -> Result<Reply, BenchError> {
        let mut args = Args::new().words(&self.words).input(&self.data);
        if !self.rows.is_empty() {
            args = args.input(&self.rows);
        }
        if !self.out.is_empty() {
            args = args.output(&mut self.out);
        }
        if let Some(results) = &mut self.results {
            args = args.output(results);
        }
        let reply = self.client.call(self.kernel, args)?;
        if reply.words[1] != 0 && self.results.is_some() {
            return Err(wrong("a batch", reply.words[1], 0));
        }
        Ok(reply)
    }
}

/// Compares two ways of doing a given amount at a time; `unit` is a unit of the amount in a second.
fn compare(
    bench: &mut Bench<'_>,
    (name, peer): (&str, &str),
    (amount, unit): (f64, &'static str),
    target: Option<f64>,
    mut ours: impl FnMut() -> Result<(), BenchError>,
    mut theirs: impl FnMut() -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let time = Duration::from_millis(bench.choose(15, 120));
    let rate = |work: &mut dyn FnMut() -> Result<(), BenchError>| {
        let (begun, mut times) = (Instant::now(), 0_u32);
        loop {
            work()?;
            times += 1;
            let taken = begun.elapsed();
            if taken >= time {
                return Ok(vec![f64::from(times) * amount / taken.as_secs_f64()]);
            }
        }
    };
    let mut candidates = [
        Candidate::new("an engine", |()| rate(&mut ours)),
        Candidate::new(peer, |()| rate(&mut theirs)),
    ];
    bench.say(name);
    let rounds = bench.choose(3, 9);
    let series = bench.interleave(&[(name, unit)], rounds, &mut candidates)?;
    drop(candidates);
    let [Some(here), Some(there)] = series.as_slice() else {
        return Ok(());
    };
    let what = Comparison {
        group: "kernels",
        name: peer,
        metric: name,
        unit,
        better: Better::Higher,
        target,
        note: "",
    };
    bench.report.figures.compare(&what, &here[0], &there[0]);
    Ok(())
}

fn digest<D: Digest<Bytes = [u8; N]>, const N: usize>(
    bench: &mut Bench<'_>,
    client: &Client,
    data: &[u8],
) -> Result<(), BenchError> {
    for item_bytes in [ITEM_BYTES, 4 << 10] {
        let items = data.len() / item_bytes;
        let rows: Vec<u64> = (0..items)
            .flat_map(|item| [(item * item_bytes) as u64, item_bytes as u64])
            .collect();
        let mut state = D::default();
        let mut digests = vec![0; N * items];
        let words = [items as u64, 0, 0];
        let places = (N * items, None);
        let mut call = Call::new(client, D::NAME, words, data, &bytes_of(&rows), places)?;
        digest_all(&mut state, data, item_bytes, &mut digests);
        call.run()?;
        if call.out.bytes() != digests {
            return Err(BenchError::Wrong(format!("{}: other digests", D::NAME)));
        }
        let name = format!("{}, {items} items of {} KiB", D::NAME, item_bytes >> 10);
        let direct = || {
            digest_all(&mut state, data, item_bytes, &mut digests);
            Ok(())
        };
        let ours = || call.run().map(drop);
        compare(bench, (&name, DIRECT), gigabytes(data), None, ours, direct)?;
    }
    Ok(())
}

fn digest_all<D: Digest<Bytes = [u8; N]>, const N: usize>(
    state: &mut D,
    data: &[u8],
    item_bytes: usize,
    digests: &mut [u8],
) {
    for (item, digest) in data.chunks(item_bytes).zip(digests.chunks_mut(N)) {
        digest.copy_from_slice(&state.of(item, 0));
    }
}

fn seal(bench: &mut Bench<'_>, client: &Client, data: &[u8]) -> Result<(), BenchError> {
    let (key, room) = ([7; 32], ITEM_BYTES + 16);
    let mut keyed = key.to_vec();
    for item in 0..ITEMS {
        let (from, to) = ((item * ITEM_BYTES) as u64, (item * room) as u64);
        keyed.extend(bytes_of(&[from, ITEM_BYTES as u64, 0, 0, to, room as u64]));
        keyed.extend(bytes_of(&[item as u64, 0]));
    }
    let words = [ITEMS as u64, 0, 0];
    let places = (ITEMS * room, Some(16 * ITEMS));
    let name = "aes256gcm_seal";
    let mut call = Call::new(client, name, words, data, &keyed, places)?;
    let cipher = Aes256Gcm::new((&key).into());
    let mut sealed = Vec::with_capacity(ITEMS * room);
    seal_all(&cipher, data, &mut sealed)?;
    call.run()?;
    if call.out.bytes() != sealed {
        return Err(BenchError::Wrong(format!("{name}: other bytes")));
    }
    let direct = || seal_all(&cipher, data, &mut sealed);
    let name = format!("{name}, {ITEMS} items of 64 KiB");
    let ours = || call.run().map(drop);
    compare(bench, (&name, DIRECT), gigabytes(data), None, ours, direct)
}

fn seal_all(cipher: &Aes256Gcm, data: &[u8], sealed: &mut Vec<u8>) -> Result<(), BenchError> {
    sealed.clear();
    for (item, number) in data.chunks(ITEM_BYTES).zip(0_u64..) {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        let start = sealed.len();
        sealed.extend_from_slice(item);
        let text = sealed[start..].as_mut().into();
        let tag = cipher.encrypt_inout_detached(&nonce.into(), &[], text);
        let tag = tag.map_err(|_| failed("aes-gcm"))?;
        sealed.extend_from_slice(&tag);
    }
    Ok(())
}

/// One direction of a codec on one item: the bytes that it put.
type Direct = Box<dyn FnMut(&[u8], &mut [u8]) -> Option<usize>>;

fn codecs(bench: &mut Bench<'_>, client: &Client, data: &[u8]) -> Result<(), BenchError> {
    // Room for items that do not compress.
    let room = ITEM_BYTES + (ITEM_BYTES >> 4) + 64;
    for (name, format, [mut there, mut back]) in direct_codecs() {
        let rows = (0..ITEMS).flat_map(|item| {
            [item * ITEM_BYTES, ITEM_BYTES, item * room, room].map(|word| word as u64)
        });
        let rows = bytes_of(&rows.collect::<Vec<u64>>());
        let words = [ITEMS as u64, format, 0];
        let places = (ITEMS * room, Some(16 * ITEMS));
        let compress = format!("{name}_compress");
        let mut call = Call::new(client, &compress, words, data, &rows, places)?;
        // Before the timing: it makes the lengths and bytes for the way back.
        call.run()?;
        let Some(lengths) = call
            .results
            .as_ref()
            .map(|results| words_of(results.bytes()))
        else {
            return Ok(());
        };
        let packed = call.out.bytes().to_vec();
        let title = format!("{compress}, {ITEMS} items of 64 KiB");
        let mut scratch = vec![0; room * 2];
        let direct = || {
            for item in data.chunks(ITEM_BYTES) {
                there(item, &mut scratch).ok_or_else(|| failed(name))?;
            }
            Ok(())
        };
        let ours = || call.run().map(drop);
        compare(bench, (&title, DIRECT), gigabytes(data), None, ours, direct)?;

        let items: Vec<(usize, usize)> = lengths
            .chunks(2)
            .zip(0..)
            .map(|(result, item)| (item * room, result[0] as usize))
            .collect();
        let rows = items.iter().zip(0..).flat_map(|(&(at, bytes), item)| {
            [at, bytes, item * ITEM_BYTES, ITEM_BYTES].map(|word| word as u64)
        });
        let rows = bytes_of(&rows.collect::<Vec<u64>>());
        let decompress = format!("{name}_decompress");
        let places = (data.len(), Some(16 * ITEMS));
        let mut call = Call::new(client, &decompress, words, &packed, &rows, places)?;
        call.run()?;
        if call.out.bytes() != data {
            return Err(BenchError::Wrong(format!("{decompress}: other bytes")));
        }
        let title = format!("{decompress}, {ITEMS} items of 64 KiB");
        let direct = || {
            for &(at, bytes) in &items {
                let item = &packed[at..at + bytes];
                back(item, &mut scratch[..ITEM_BYTES]).ok_or_else(|| failed(name))?;
            }
            Ok(())
        };
        let ours = || call.run().map(drop);
        compare(bench, (&title, DIRECT), gigabytes(data), None, ours, direct)?;
    }
    Ok(())
}

/// Name, format, and both directions by the same libraries at the same levels.
fn direct_codecs() -> [(&'static str, u64, [Direct; 2]); 3] {
    let level = libdeflater::CompressionLvl::new(6).unwrap_or_default();
    let mut deflater = libdeflater::Compressor::new(level);
    let mut inflater = libdeflater::Decompressor::new();
    let mut compressor = zstd_safe::CCtx::create();
    // As the kernel does: checksums, whose cost is the format's.
    let _ = compressor.set_parameter(zstd_safe::CParameter::CompressionLevel(3));
    let _ = compressor.set_parameter(zstd_safe::CParameter::ChecksumFlag(true));
    let mut decompressor = zstd_safe::DCtx::create();
    [
        (
            "deflate",
            1,
            [
                Box::new(move |item, out| deflater.zlib_compress(item, out).ok()),
                Box::new(move |item, out| inflater.zlib_decompress(item, out).ok()),
            ],
        ),
        (
            "zstd",
            0,
            [
                Box::new(move |item, out| compressor.compress2(out, item).ok()),
                Box::new(move |item, out| decompressor.decompress(out, item).ok()),
            ],
        ),
        (
            "lz4",
            3,
            [
                Box::new(|item, out| lz4_flex::block::compress_into(item, out).ok()),
                Box::new(|item, out| lz4_flex::block::decompress_into(item, out).ok()),
            ],
        ),
    ]
}

/// A kernel of C and an empty one, loaded, compared with the same ones built in.
fn loaded(bench: &mut Bench<'_>, client: &Client, data: &[u8]) -> Result<(), BenchError> {
    let words = words_of(data);
    let sum = words
        .iter()
        .fold(0_u64, |sum, word| sum.wrapping_add(*word));
    for (bytes, size) in [(data.len(), "1 MiB"), (4 << 10, "4 KiB")] {
        let data = &data[..bytes];
        let made = |name| Call::new(client, name, [0; 3], data, &[], (0, None));
        let (mut ours, mut theirs) = (made("word_sum")?, made(WordSum::NAME)?);
        // The sum is known for the whole data only.
        if bytes == words.len() * 8 {
            for call in [&mut ours, &mut theirs] {
                let got = call.run()?.words[0];
                if got != sum {
                    return Err(wrong("a sum", got, sum));
                }
            }
        }
        compare(
            bench,
            (
                &format!("loaded C kernel, sum of {size}"),
                "the same built in",
            ),
            gigabytes(data),
            // A short call has the hand-over to another process besides.
            (bytes == words.len() * 8).then_some(0.9),
            || ours.run().map(drop),
            || theirs.run().map(drop),
        )?;
    }
    let call = |name: &str, count: usize, words: [u64; 2]| {
        let kernel = client.kernel(name)?;
        // A single empty call is too short for the clock.
        for _ in 0..count {
            client.call(kernel, Args::new().words(&words))?;
        }
        Ok::<_, BenchError>(())
    };
    compare(
        bench,
        ("loaded C kernel, empty calls", "the same in the daemon"),
        (1e-4, "M/s"),
        None,
        || call("nothing", 100, [0; 2]),
        || call(&inside("nothing"), 100, [0; 2]),
    )?;
    // Of 20 us in the daemon's process, its call included.
    let mut steps = 1_000;
    let long = loop {
        let begun = Instant::now();
        call(&inside("work"), 100, [1, steps])?;
        if begun.elapsed() >= Duration::from_millis(2) {
            break [1, steps];
        }
        steps += steps / 20;
    };
    compare(
        bench,
        ("loaded C kernel of 20 us", "the same in the daemon"),
        (1e-4, "M/s"),
        Some(1.0 / 1.2),
        || call("work", 100, long),
        || call(&inside("work"), 100, long),
    )
}

/// The name of a kernel that runs in the daemon's process.
fn inside(name: &str) -> String {
    format!("{name}_inside")
}

/// The C kernel `word_sum`, in Rust.
struct WordSum;

impl Served for WordSum {
    const NAME: &'static str = "word_sum_built_in";
    const LS: usize = BLOCK_BYTES;
    type State = u64;

    fn engine<'c>(
        cx: &mut Cx<'c, Self>,
        _request: &Request,
        memory: &'c Memory<'c>,
    ) -> Result<Reply, KernelError> {
        let mut buffer = cx.store.alloc::<u64>(BLOCK_BYTES / 8)?;
        let mut sum = 0_u64;
        for part in chunks(memory.input(0)?, BLOCK_BYTES) {
            buffer = cx.mfc.get_large(buffer, part)?.wait();
            sum = buffer.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
            if memory.is_abandoned() {
                return Err(KernelError::failed("abandoned"));
            }
        }
        *cx.state += 1;
        let mut reply = Reply::word(sum);
        reply.words[1] = *cx.state;
        Ok(reply)
    }
}

/// Compiles the template in C into `folder`; otherwise returns the reason for its absence.
fn compile(folder: &Path) -> Result<(), String> {
    // The same kernels twice, since one daemon has both, by other names.
    let table = "static const struct sidecore_kernel kernels[] = {";
    let entry = format!("{WORK}{table}\n    {{\"work\", 1, 0, 0, NULL, NULL, work}},");
    let source = sidecore_loader::TEMPLATE.replace(table, &entry);
    compile_to(&folder.join(CHILDREN), &source)?;
    let other = NAMES.iter().fold(source, |source, name| {
        source.replace(
            &format!("{{\"{name}\","),
            &format!("{{\"{}\",", inside(name)),
        )
    });
    compile_to(&folder.join(INSIDE), &other)?;
    let close = std::fs::set_permissions(folder, Permissions::from_mode(0o755));
    close.map_err(|error| format!("kernels: {error}"))
}

fn compile_to(folder: &Path, source: &str) -> Result<(), String> {
    let file = |name: &str| folder.join(name);
    let write = |name: &str, text: &str| std::fs::write(file(name), text);
    std::fs::create_dir_all(folder)
        .and_then(|()| write("word_sum.c", source))
        .and_then(|()| write("sidecore_kernel.h", sidecore_loader::HEADER))
        .map_err(|error| format!("kernels: cannot write the C kernel: {error}"))?;
    let mut command = tool("cc", &[("cc", "gcc")])?;
    command.args(["-O3", "-fPIC", "-shared", "-I"]).arg(folder);
    command
        .arg(file("word_sum.c"))
        .arg("-o")
        .arg(file("word_sum.so"));
    let close = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("kernels: `cc` ended with {status}")),
        Err(error) => return Err(format!("kernels: `cc` does not start: {error}")),
    }
    // Whatever the user's umask is: a daemon loads no file that other users can write.
    close(&file("word_sum.so"), 0o755)
        .and_then(|()| close(folder, 0o755))
        .map_err(|error| format!("kernels: {error}"))
}

/// A kernel that computes for as long as it is asked to.
const WORK: &str = "
static int work(struct sidecore_run *run) {
    uint64_t value = run->words[0], step;
    for (step = 0; step < run->words[1]; step++)
        value = value * 6364136223846793005u + 1;
    run->reply[0] = value;
    return 0;
}

";
/// Kernels of the object in C, and the folders of its two builds: in processes, and in the daemon.
const NAMES: [&str; 3] = ["word_sum", "nothing", "work"];
const CHILDREN: &str = "children";
const INSIDE: &str = "inside";

fn gigabytes(data: &[u8]) -> (f64, &'static str) {
    (data.len() as f64 / 1e9, "GB/s")
}

fn failed(name: &str) -> BenchError {
    BenchError::Wrong(format!("{name}: the library refused"))
}

fn service(error: impl std::error::Error + Send + Sync + 'static) -> BenchError {
    BenchError::Service(Box::new(error))
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|word| u64::from_le_bytes(*word)).collect()
}

/// Lines that compress about 4:1, the same in every run.
fn text(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut text = Vec::with_capacity(bytes + 100);
    while text.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (word, number) = (WORDS[(state >> 60) as usize], state >> 40 & 0xFF);
        text.extend_from_slice(format!("{word} {number}, ").as_bytes());
    }
    text.truncate(bytes);
    text
}

const WORDS: [&str; 16] = [
    "engine", "request", "segment", "frame", "kernel", "daemon", "client", "core", "store",
    "transfer", "queue", "arena", "packet", "image", "tree", "socket",
];
const DIRECT: &str = "the library called directly";
const ITEMS: usize = 16;
const ITEM_BYTES: usize = 64 << 10;
const BLOCK_BYTES: usize = 16 << 10;
