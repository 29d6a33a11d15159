//! Simulates a link with a given round trip and rate in front of a server, to measure remote reads
//! on a machine whose kernel has no netem.
//!
//! `slow_link LISTEN SERVER ROUND_TRIP_MS MBIT_PER_S` forwards TCP connections. Bytes of each
//! direction arrive half a round trip after they were sent. A connection's first bytes arrive one
//! more round trip later, which stands for the handshake. All bytes to the client share the rate.
//! The program prints `ready`. For each line on its standard input it prints the bytes sent to the
//! client since the last line; it ends at the end of that input.
//!
//! Not simulated: slow start and loss.

#![allow(clippy::print_stdout)] // Its results.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

struct Link {
    half_trip: Duration,
    bytes_per_s: f64,
    /// Time at which the link to the client is free again.
    free: Mutex<Instant>,
    sent_bytes: AtomicU64,
}

/// Chunks in flight, each with its time of arrival; an empty chunk marks the end.
#[derive(Default)]
struct Pipe {
    chunks: Mutex<VecDeque<(Instant, Vec<u8>)>>,
    came: Condvar,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, server, round_trip_ms, mbit_per_s] = &arguments[..] else {
        return Err("usage: slow_link LISTEN SERVER ROUND_TRIP_MS MBIT_PER_S".into());
    };
    let link = Arc::new(Link {
        half_trip: Duration::from_secs_f64(round_trip_ms.parse::<f64>()? / 2000.0),
        bytes_per_s: mbit_per_s.parse::<f64>()? * 1e6 / 8.0,
        free: Mutex::new(Instant::now()),
        sent_bytes: AtomicU64::new(0),
    });
    let listener = TcpListener::bind(listen)?;
    println!("ready");
    let totals = Arc::clone(&link);
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines() {
            println!("{}", totals.sent_bytes.swap(0, Ordering::SeqCst));
        }
        std::process::exit(0);
    });
    for client in listener.incoming() {
        let (link, server) = (Arc::clone(&link), server.clone());
        let client = client?;
        std::thread::spawn(move || {
            if let Ok(server) = TcpStream::connect(server) {
                join(&link, client, server);
            }
        });
    }
    Ok(())
}

/// Forwards one connection in both directions; each has a thread that reads and one that writes.
fn join(link: &Arc<Link>, client: TcpStream, server: TcpStream) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // The handshake: no bytes pass before it.
    let open = Instant::now() + 2 * link.half_trip;
    for to_client in [false, true] {
        let (from, to) = if to_client {
            (&server, &client)
        } else {
            (&client, &server)
        };
        let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else {
            return;
        };
        let pipe = Arc::new(Pipe::default());
        let (link, input) = (Arc::clone(link), Arc::clone(&pipe));
        std::thread::spawn(move || {
            let mut buffer = vec![0; 32 << 10];
            loop {
                let read = from.read(&mut buffer).unwrap_or(0);
                let now = Instant::now();
                let mut due = now.max(open) + link.half_trip;
                if to_client {
                    due = due.max(link.pass(read));
                }
                input.put(due, buffer[..read].to_vec());
                if read == 0 {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            loop {
                let (due, bytes) = pipe.take();
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                if bytes.is_empty() || to.write_all(&bytes).is_err() {
                    let _ = to.shutdown(Shutdown::Both);
                    return;
                }
            }
        });
    }
}

impl Link {
    /// Sends `bytes` to the client and returns the time at which the last of them arrives. Waits
    /// while more than a short queue is ahead of them.
    fn pass(&self, bytes: usize) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let sent = (*free).max(now) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        *free = sent;
        drop(free);
        self.sent_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
        std::thread::sleep(sent.saturating_duration_since(now + QUEUE));
        sent + self.half_trip
    }
}

impl Pipe {
    fn put(&self, due: Instant, bytes: Vec<u8>) {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.push_back((due, bytes));
        self.came.notify_one();
    }

    fn take(&self) -> (Instant, Vec<u8>) {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match chunks.pop_front() {
                Some(chunk) => return chunk,
                None => {
                    let woken = self.came.wait(chunks);
                    chunks = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// Queue of a switch in the link, as time at the link's rate.
const QUEUE: Duration = Duration::from_millis(10);
