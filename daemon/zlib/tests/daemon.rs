//! With a daemon, with one that ends in the middle, in a child after fork: the same bytes.
//!
//! One test, because the library reads its environment once and attaches once.

#![allow(unsafe_code)] // the tests call C functions
#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

mod common;

use common::bytes;
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_deflate::{BLOCK_BYTES, CheckKind, Deflater, block_bytes_max, served};
use std::ffi::CString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn compress(raw: &[u8]) -> Vec<u8> {
    let mut bytes = sidecore_z::compressBound(raw.len() as u64);
    let mut out = vec![0; bytes as usize];
    // SAFETY: both buffers are there.
    let code = unsafe {
        sidecore_z::compress2(
            out.as_mut_ptr(),
            &mut bytes,
            raw.as_ptr(),
            raw.len() as u64,
            6,
        )
    };
    assert_eq!(code, 0);
    out.truncate(bytes as usize);
    out
}

/// The same by a stream that is given 50 KB a call.
fn compress_in_pieces(raw: &[u8]) -> Vec<u8> {
    compress_with_a_pause(raw, raw.len(), || {})
}

/// The same, with something that happens before the piece at byte `at`.
fn compress_with_a_pause(raw: &[u8], at: usize, pause: impl FnOnce()) -> Vec<u8> {
    let mut z = common::ours::deflate_init(6, 15, 0);
    let mut out = vec![0; raw.len() + 10_000];
    (z.next_out, z.avail_out) = (out.as_mut_ptr(), out.len() as u32);
    let mut pause = Some(pause);
    let mut given = 0;
    for piece in raw.chunks(PIECE_BYTES) {
        if given >= at
            && let Some(pause) = pause.take()
        {
            pause();
        }
        given += piece.len();
        (z.next_in, z.avail_in) = (piece.as_ptr(), piece.len() as u32);
        let (flush, wanted) = if given == raw.len() { (4, 1) } else { (0, 0) };
        // SAFETY: both buffers are there.
        assert_eq!(unsafe { sidecore_z::deflate(&mut *z, flush) }, wanted);
    }
    out.truncate(z.total_out as usize);
    // SAFETY: not used again.
    unsafe { sidecore_z::deflateEnd(&mut *z) };
    out
}

/// Expected output, block by block, made without this library.
fn wanted(raw: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x9c];
    let mut deflater = Deflater::default();
    let mut blocks = raw.chunks(BLOCK_BYTES).peekable();
    while let Some(block) = blocks.next() {
        let mut out = vec![0; block_bytes_max(block.len())];
        let bytes = deflater
            .block(block, 6, blocks.peek().is_none(), &mut out)
            .unwrap();
        stream.extend(&out[..bytes]);
    }
    stream.extend(CheckKind::Adler32.of(raw).to_be_bytes());
    stream
}

/// A gzip file by writes of a few kilobytes.
fn write_file(path: &Path, raw: &[u8]) -> Vec<u8> {
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: C strings; the pieces are there.
    unsafe {
        let file = sidecore_z::gzopen(name.as_ptr(), c"wb".as_ptr());
        assert!(!file.is_null());
        for piece in raw.chunks(FILE_PIECE_BYTES) {
            let bytes = piece.len() as u32;
            let written = sidecore_z::gzwrite(file, piece.as_ptr().cast(), bytes);
            assert_eq!(written, bytes as i32);
        }
        assert_eq!(sidecore_z::gztell(file), raw.len() as i64);
        assert_eq!(sidecore_z::gzclose(file), 0);
    }
    std::fs::read(path).unwrap()
}

fn read_file(path: &Path, bytes: usize) -> Vec<u8> {
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let mut raw = vec![0; bytes + 1];
    // SAFETY: C strings; there is room.
    unsafe {
        let file = sidecore_z::gzopen(name.as_ptr(), c"rb".as_ptr());
        let read = sidecore_z::gzread(file, raw.as_mut_ptr().cast(), raw.len() as u32);
        assert_eq!(read, bytes as i32);
        assert_eq!(sidecore_z::gzclose(file), 0);
    }
    raw.truncate(bytes);
    raw
}

/// Checks a gzip file against the blocks of the zlib stream that [`wanted`] made.
fn check_file(path: &Path, raw: &[u8], wanted: &[u8]) {
    let file = write_file(path, raw);
    assert_eq!(file[..4], [0x1f, 0x8b, 8, 0], "no optional fields");
    let mut rest = wanted[2..wanted.len() - 4].to_vec();
    rest.extend(CheckKind::Crc32.of(raw).to_le_bytes());
    rest.extend((raw.len() as u32).to_le_bytes());
    assert!(file[10..] == rest, "the file's blocks or trailer differ");
    assert!(read_file(path, raw.len()) == raw, "it is read back");
}

/// Python's processes, forked while another thread of the program compresses. `local` keeps the
/// program from the daemon.
fn fork_in_python(local: bool) {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("NOT TESTED: python3 is missing (scripts/setup)");
        return;
    }
    let library = std::env::current_exe().unwrap();
    let library = library.with_file_name("libsidecore_z.so");
    assert!(library.is_file(), "{} was not built", library.display());
    let mut command = Command::new("timeout");
    command.args(["300", "python3", "-c", FORKS]);
    command.env("LD_PRELOAD", library);
    if local {
        command.env("SIDECORE_ZLIB", "local");
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "local {local}: {said}");
    assert_eq!(output.stdout, b"done\n", "local {local}: {said}");
}

fn served_requests(daemon: &Daemon) -> u64 {
    let status = sidecore_daemon::client::status(daemon.socket(), &Default::default()).unwrap();
    status.engines.iter().map(|engine| engine.calls).sum()
}

fn start(socket: &Path) -> Daemon {
    Daemon::start(DaemonOptions {
        socket: socket.to_owned(),
        engines: 1,
        registry: served::register(Registry::builtin()).unwrap(),
        ..DaemonOptions::default()
    })
    .unwrap()
}

/// A daemon that this process, which looks for one once a second, has found.
fn start_and_attach(socket: &Path, raw: &[u8], wanted: &[u8]) -> Daemon {
    let daemon = start(socket);
    let begun = Instant::now();
    while served_requests(&daemon) == 0 {
        assert!(
            compress_in_pieces(raw) == wanted,
            "in pieces, with a daemon"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it never attached"
        );
    }
    daemon
}

#[test]
fn the_same_bytes_wherever_blocks_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("daemon.sock");
    // SAFETY: the only test here; no other thread looks at the environment now.
    unsafe { std::env::set_var("SIDECORE_ZLIB_SOCKET", &socket) };
    let raw = bytes(11, 6 << 20);
    let wanted = wanted(&raw);
    assert!(compress(&raw) == wanted, "without a daemon");
    check_file(&folder.path().join("without.gz"), &raw, &wanted);
    fork_in_python(true);

    let daemon = start_and_attach(&socket, &raw, &wanted);
    let before = served_requests(&daemon);
    assert!(compress(&raw) == wanted, "with a daemon");
    assert!(served_requests(&daemon) > before, "it left the daemon");
    let before = served_requests(&daemon);
    check_file(&folder.path().join("with.gz"), &raw, &wanted);
    assert!(served_requests(&daemon) > before, "a file's blocks");

    // A child makes an attachment of its own, or none: it uses no lock that another thread held.
    // SAFETY: the child only makes the tested calls, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = std::panic::catch_unwind(|| compress(&raw) == wanted).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's bytes differ, or it died");
    assert!(compress(&raw) == wanted, "after the child");
    fork_in_python(false);

    // It goes while a stream has gathered several blocks and a part of one.
    let gathered = compress_with_a_pause(&raw, 7 * BLOCK_BYTES / 2, || {
        drop(daemon);
        assert!(compress(&raw) == wanted, "after the daemon");
    });
    assert!(gathered == wanted, "in pieces, when the daemon had gone");

    for _ in 0..3 {
        let daemon = start_and_attach(&socket, &raw, &wanted);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        (0..2)
                            .all(|_| compress(&raw) == wanted && compress_in_pieces(&raw) == wanted)
                    })
                })
                .collect();
            // In the middle of that.
            std::thread::sleep(Duration::from_millis(30));
            drop(daemon);
            for thread in threads {
                assert!(thread.join().unwrap(), "while the daemon ended");
            }
        });
    }
}

/// Does not divide a block.
const PIECE_BYTES: usize = 50_000;
/// Does not divide a buffer of a file.
const FILE_PIECE_BYTES: usize = 7_001;

const FORKS: &str = r#"
import multiprocessing, random, threading, zlib
random.seed(3)
data = b"".join(b"%d item %d\n" % (n, random.randrange(1000)) for n in range(40000))
wanted = zlib.crc32(data)

def job(number):
    level = 1 + number % 9
    assert zlib.decompress(zlib.compress(data, level)) == data
    first = zlib.compressobj(level)
    begun = first.compress(data[:200000])
    second = first.copy()
    whole = [begun + each.compress(data[200000:]) + each.flush() for each in (first, second)]
    assert all(zlib.decompress(stream) == data for stream in whole)
    return zlib.crc32(zlib.decompress(whole[0]))

job(0)  # attached, where there is a daemon, before the first fork
stop = threading.Event()

def compress_on():
    while not stop.is_set():
        job(5)

thread = threading.Thread(target=compress_on)
thread.start()
try:
    for _ in range(2):
        with multiprocessing.get_context("fork").Pool(6) as pool:
            assert pool.map(job, range(12)) == [wanted] * 12
finally:
    stop.set()
    thread.join()
print("done")
"#;
