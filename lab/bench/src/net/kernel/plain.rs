//! Sockets of the kernel that send and receive as fast as they can.
//!
//! Must stay true: CUBIC, whatever this machine's default is, because both sides of a comparison
//! must use the same; blocks of 128 KiB, as iperf3 has them; no wait is longer than [`PATIENCE`].

use super::super::BenchError;
use super::super::namespace::Namespace;
use super::WRONG;
use super::pattern::Pattern;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sidecore_sys::cpu;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Connects from a namespace.
pub(in crate::net) fn connect(from: &Namespace, to: SocketAddr) -> Result<TcpStream, BenchError> {
    let failed = || format!("connect to {to}");
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = from.run(move || socket_with(family, SocketType::STREAM, flags, None))?;
    let socket = socket.map_err(|error| BenchError::io(failed())(error.into()))?;
    choose_cubic(&socket)?;
    let stream = TcpStream::from(socket);
    // The limit of connecting, too: socket(7).
    let limited = stream.set_write_timeout(Some(CONNECT_TIME_MAX));
    limited.map_err(BenchError::io(failed()))?;
    rustix::net::connect(&stream, &to).map_err(|error| BenchError::io(failed())(error.into()))?;
    limit(&stream)?;
    Ok(stream)
}

/// Listens in a namespace.
pub(in crate::net) fn listen(at: &Namespace, local: SocketAddr) -> Result<TcpListener, BenchError> {
    let listener = at.run(move || TcpListener::bind(local))?;
    let listener = listener.map_err(BenchError::io(format!("listen at {local}")))?;
    choose_cubic(&listener)?;
    Ok(listener)
}

/// Takes the session that was opened a moment ago.
pub(super) fn accept(listener: &TcpListener) -> Result<TcpStream, BenchError> {
    let (stream, _) = listener.accept().map_err(BenchError::io("accept"))?;
    limit(&stream)?;
    Ok(stream)
}

fn limit(stream: &TcpStream) -> Result<(), BenchError> {
    let timed = stream.set_read_timeout(Some(PATIENCE));
    timed
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .map_err(BenchError::io("set a socket's time limit"))
}

/// Must come before the session does: one that was BBR's for a moment is paced for good, with a
/// timer for each super-segment, and half of the sender's time goes there in a virtual machine.
fn choose_cubic(socket: &impl AsFd) -> Result<(), BenchError> {
    rustix::net::sockopt::set_tcp_congestion(socket, "cubic").map_err(|error| BenchError::Io {
        what: "choose CUBIC; try `modprobe tcp_cubic`".into(),
        source: error.into(),
    })
}

/// Sends until `stop` is set, on a core of its own.
pub(super) fn send(
    mut stream: TcpStream,
    core: usize,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    cpu::pin(core)?;
    let bytes = vec![b'x'; BLOCK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let sent = stream.write(&bytes);
        if let Err(error) = sent
            && !waits(&error)
        {
            // The other end was stopped a moment earlier.
            return ended(error, stop, "send");
        }
    }
    Ok(())
}

/// Receives and counts until `stop` is set, on a core of its own.
pub(super) fn receive(
    mut stream: TcpStream,
    core: usize,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Result<(), BenchError> {
    cpu::pin(core)?;
    let mut bytes = vec![0; BLOCK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(received) => {
                count.fetch_add(received as u64, Ordering::Relaxed);
            }
            Err(error) if waits(&error) => {}
            Err(error) => return ended(error, stop, "receive"),
        }
    }
    Ok(())
}

/// Sends `bytes` bytes of the pattern, on a core of its own.
pub(super) fn send_stream(
    mut stream: TcpStream,
    bytes: u64,
    core: usize,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    cpu::pin(core)?;
    let (pattern, mut offset) = (Pattern::get(), 0);
    while offset < bytes && !stop.load(Ordering::Relaxed) {
        let most = (bytes - offset).min(BLOCK_BYTES as u64) as usize;
        match stream.write(pattern.from(offset, most)) {
            Ok(sent) => offset += sent as u64,
            Err(error) if waits(&error) => {}
            Err(error) => return ended(error, stop, "send"),
        }
    }
    // The other end may have closed by now, having received everything.
    stream.shutdown(Shutdown::Write).ok();
    // The kernel's sockets go on sending what is queued; ours must not see a reset before its end.
    receive(stream, core, stop, &AtomicU64::new(0))
}

/// Receives, compares and counts until `stop` is set; the count is [`WRONG`] once a byte differs.
pub(super) fn check_stream(
    mut stream: TcpStream,
    core: usize,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Result<(), BenchError> {
    cpu::pin(core)?;
    let (pattern, mut offset) = (Pattern::get(), 0);
    let mut bytes = vec![0; BLOCK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(received) => {
                if !pattern.has(offset, &bytes[..received]) {
                    count.store(WRONG, Ordering::Relaxed);
                    return Ok(());
                }
                offset += received as u64;
                count.store(offset, Ordering::Relaxed);
            }
            Err(error) if waits(&error) => {}
            Err(error) => return ended(error, stop, "receive"),
        }
    }
    Ok(())
}

fn waits(error: &std::io::Error) -> bool {
    let kind = error.kind();
    kind == ErrorKind::WouldBlock || kind == ErrorKind::TimedOut || kind == ErrorKind::Interrupted
}

fn ended(error: std::io::Error, stop: &AtomicBool, what: &str) -> Result<(), BenchError> {
    if stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(BenchError::io(format!("{what} over a plain socket"))(error))
}

const BLOCK_BYTES: usize = 128 << 10;
/// Time-out of socket calls, after which a thread checks `stop`.
const PATIENCE: Duration = Duration::from_millis(100);
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
