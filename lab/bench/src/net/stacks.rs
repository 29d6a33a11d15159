//! Two stacks with a link between them, or one that talks to itself, carrying as much as they can.
//!
//! Why here: the group `pair` and the paper's figures are of this kind. The test programs call the
//! stack directly from its loop, as the paper's did: one writes as much as fits, the other reads
//! into memory of its own. Must stay true: counted bytes were read by the receiving program; both
//! loops have ended when the call returns. Source: the NetX paper, 4.1.

use super::served::config;
use super::{BenchError, interrupted, sleep};
use sidecore_net::Config;
use sidecore_net::NetError;
use sidecore_net::Placement;
use sidecore_net::Stack;
use sidecore_net::engine::{Engine, EngineOptions};
use sidecore_net::nic::Nic;
use sidecore_net::nic::pair::{self, Pair, PairOptions};
use sidecore_net::{ListenerId, SessionId, UdpId};
use sidecore_sys::cpu;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The load.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    /// One session's bytes, with a window of this size.
    Tcp {
        /// The receiver's buffer, in bytes; none: the stack's choice, scaled.
        window: Option<u32>,
    },
    /// Datagrams of this size in bytes.
    Udp {
        /// Payload of each.
        bytes: usize,
    },
}

/// The method.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// The load.
    pub(super) load: Load,
    /// The largest IP packet.
    pub(super) mtu_bytes: usize,
    /// Placement of control blocks.
    pub(super) placement: Placement,
    /// The sender's core and the receiver's; one stack that talks to itself where there is one.
    pub(super) cpus: [Option<usize>; 2],
}

/// Results of a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Carried {
    /// Payload that the receiving program read, in bits a second.
    pub(super) bits_s: f64,
    /// Frames that carried it, or datagrams that were read, a second.
    pub(super) packets_s: f64,
    /// Payload bytes of such a frame, on average.
    pub(super) payload_bytes: f64,
}

impl Way {
    /// The stack's configuration for it.
    fn config(&self, number: u8) -> Config {
        let mut config = Config {
            placement: self.placement,
            send_bytes: SEND_BYTES,
            receive_bytes: RECEIVE_BYTES,
            ..config(number)
        };
        if let Load::Tcp {
            window: Some(window),
        } = self.load
        {
            // As the paper's stack was: a segment is all payload except for the plain headers.
            config.offers.timestamps = false;
            config.offers.window_scaling = false;
            config.receive_bytes = window;
        }
        config
    }

    /// Transfers for `time`, after a tenth of it to warm up.
    ///
    /// # Errors
    /// The stack's error, [`BenchError::Wrong`] if nothing comes through,
    /// [`BenchError::Interrupted`].
    pub(super) fn carry(&self, time: Duration, cancel: &AtomicBool) -> Result<Carried, BenchError> {
        let (near, far) = pair::link(&PairOptions {
            mtu_bytes: self.mtu_bytes,
            ring_bytes: RING_BYTES,
            ..PairOptions::default()
        })?;
        let mut near = self.engine(near, 1)?;
        let mut far = self.engine(far, 2)?;
        let count = Count::default();
        let stop = AtomicBool::new(false);
        let stop = &stop;
        match self.cpus {
            [Some(cpu), Some(other)] => {
                // The receiver first: it listens before the SYN comes.
                let receiver = Receiver::new(&self.load, far.stack(), 2, &count)?;
                let sender = Sender::new(&self.load, near.stack(), 2)?;
                let receiving = [
                    (far, other, None, Some(receiver)),
                    (near, cpu, Some(sender), None),
                ];
                self.run(receiving, &count, time, stop, cancel)
            }
            [cpu, _] => {
                // The other end of the link is there, and quiet.
                let receiver = Receiver::new(&self.load, near.stack(), 1, &count)?;
                let sender = Sender::new(&self.load, near.stack(), 1)?;
                let cpu = cpu.unwrap_or(0);
                self.run(
                    [(near, cpu, Some(sender), Some(receiver))],
                    &count,
                    time,
                    stop,
                    cancel,
                )
            }
        }
    }

    fn engine(&self, nic: Pair, number: u8) -> Result<Engine<Pair>, BenchError> {
        let stack = sidecore_net::memory::mapped_stack(self.config(number), &nic.capabilities())?;
        let options = EngineOptions {
            grace: None,
            ..EngineOptions::default()
        };
        Ok(Engine::new(nic, stack, None, options))
    }

    fn run<'c, const N: usize>(
        &self,
        parties: [Party<'c>; N],
        count: &Count,
        time: Duration,
        stop: &AtomicBool,
        cancel: &AtomicBool,
    ) -> Result<Carried, BenchError> {
        std::thread::scope(|scope| {
            let threads = parties.map(|party| scope.spawn(move || play(party, stop)));
            let measured = count.over(time, stop, cancel);
            stop.store(true, Ordering::Release);
            for thread in threads {
                let failed = |_| Err(BenchError::Wrong("an engine's thread failed".into()));
                thread.join().unwrap_or_else(failed)?;
            }
            measured
        })
    }
}

type Party<'c> = (Engine<Pair>, usize, Option<Sender>, Option<Receiver<'c>>);

/// Runs a loop until `stop`, or until one of its programs fails, which stops the other, too.
fn play(
    (mut engine, cpu, mut sender, mut receiver): Party<'_>,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    cpu::pin(cpu)?;
    cpu::set_thread_name(if sender.is_some() {
        "bench-send"
    } else {
        "bench-receive"
    });
    let mut failed = None;
    engine.run(stop, |stack| {
        let mut work = || {
            let sent = sender.as_mut().map_or(Ok(0), |sender| sender.turn(stack))?;
            let read = receiver
                .as_mut()
                .map_or(Ok(0), |receiver| receiver.turn(stack))?;
            Ok::<usize, NetError>(sent + read)
        };
        work().unwrap_or_else(|error| {
            failed = Some(error);
            stop.store(true, Ordering::Release);
            0
        })
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Bytes read so far; written by the receiving program alone.
#[derive(Default)]
struct Count {
    bytes: AtomicU64,
    packets: AtomicU64,
}

impl Count {
    fn now(&self) -> (f64, f64, Instant) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        (read(&self.bytes), read(&self.packets), Instant::now())
    }

    fn over(
        &self,
        time: Duration,
        stop: &AtomicBool,
        cancel: &AtomicBool,
    ) -> Result<Carried, BenchError> {
        let until = Instant::now() + FIRST_TIME_MAX;
        while self.bytes.load(Ordering::Relaxed) == 0 {
            interrupted(cancel)?;
            if Instant::now() > until || stop.load(Ordering::Acquire) {
                return Err(BenchError::Wrong("nothing came through".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        sleep(time / 10, cancel)?;
        let (bytes, packets, begun) = self.now();
        sleep(time, cancel)?;
        // On a busy machine, a short time may pass without our turn.
        while self.now().0 <= bytes && begun.elapsed() < FIRST_TIME_MAX {
            sleep(Duration::from_millis(1), cancel)?;
        }
        let (bytes_later, packets_later, ended) = self.now();
        let seconds = ended.duration_since(begun).as_secs_f64();
        let (bytes, packets) = (bytes_later - bytes, packets_later - packets);
        if bytes <= 0.0 || packets <= 0.0 {
            return Err(BenchError::Wrong("nothing came through any more".into()));
        }
        Ok(Carried {
            bits_s: bytes * 8.0 / seconds,
            packets_s: packets / seconds,
            payload_bytes: bytes / packets,
        })
    }
}

/// The program that sends.
enum Sender {
    Tcp(SessionId, Vec<u8>),
    Udp(UdpId, SocketAddr, Vec<u8>),
}

impl Sender {
    fn new(load: &Load, stack: &mut Stack, peer: u8) -> Result<Self, BenchError> {
        let to = SocketAddr::from(([10, 0, 0, peer], SERVICE));
        Ok(match *load {
            Load::Tcp { .. } => Self::Tcp(stack.connect(to, None)?, vec![7; WRITE_BYTES]),
            Load::Udp { bytes } => {
                let any = SocketAddr::from(([0, 0, 0, 0], 0));
                Self::Udp(stack.bind_udp(any)?, to, vec![7; bytes])
            }
        })
    }

    /// Sends as much as fits, up to a bound.
    fn turn(&mut self, stack: &mut Stack) -> Result<usize, NetError> {
        match self {
            Self::Tcp(session, bytes) => Ok(usize::from(stack.write(*session, bytes)? > 0)),
            Self::Udp(socket, to, bytes) => {
                for sent in 0..DATAGRAMS {
                    match stack.send_to(*socket, *to, bytes) {
                        Ok(()) => {}
                        Err(NetError::QueueFull) => return Ok(sent),
                        Err(error) => return Err(error),
                    }
                }
                Ok(DATAGRAMS)
            }
        }
    }
}

/// The program that reads.
struct Receiver<'c> {
    source: Source,
    into: Vec<u8>,
    count: &'c Count,
    bytes: u64,
    packets: u64,
}

enum Source {
    Listener(ListenerId),
    /// With the frames that came before its first byte.
    Session(SessionId, u64),
    Udp(UdpId),
}

impl<'c> Receiver<'c> {
    fn new(load: &Load, stack: &mut Stack, own: u8, count: &'c Count) -> Result<Self, BenchError> {
        let at = SocketAddr::from(([10, 0, 0, own], SERVICE));
        Ok(Self {
            source: match load {
                Load::Tcp { .. } => Source::Listener(stack.listen(at, 1)?),
                Load::Udp { .. } => Source::Udp(stack.bind_udp(at)?),
            },
            into: vec![0; READ_BYTES],
            count,
            bytes: 0,
            packets: 0,
        })
    }

    /// Reads everything that is there.
    fn turn(&mut self, stack: &mut Stack) -> Result<usize, NetError> {
        let before = self.bytes;
        match self.source {
            Source::Listener(listener) => {
                if let Some(session) = stack.accept(listener)? {
                    let frames = stack.counters().frames_received;
                    self.source = Source::Session(session, frames);
                }
            }
            Source::Session(session, frames) => {
                loop {
                    let count = stack.read(session, &mut self.into)?;
                    self.bytes += count as u64;
                    if count < self.into.len() {
                        break;
                    }
                }
                self.packets = stack.counters().frames_received - frames;
            }
            Source::Udp(socket) => {
                while let Some((_, _, count)) = stack.receive_from(socket, &mut self.into)? {
                    self.bytes += count as u64;
                    self.packets += 1;
                }
            }
        }
        // No other code takes the events of this stack.
        while stack.next_event().is_some() {}
        if self.bytes == before {
            return Ok(0);
        }
        self.count.bytes.store(self.bytes, Ordering::Relaxed);
        self.count.packets.store(self.packets, Ordering::Relaxed);
        Ok(1)
    }
}

const SERVICE: u16 = 5001;
/// Bytes that the sending program offers at once.
const WRITE_BYTES: usize = 128 << 10;
/// Bytes that the receiving program reads at once.
const READ_BYTES: usize = 128 << 10;
/// Send buffer in bytes. A round trip over the link carries less; more would only push it out of
/// the core's own cache.
const SEND_BYTES: u32 = 256 << 10;
/// Receive buffer for a program that lags behind.
const RECEIVE_BYTES: u32 = 512 << 10;
/// Datagrams that the sending program offers at once.
const DATAGRAMS: usize = 64;
/// Bytes of each direction of the link.
const RING_BYTES: usize = 512 << 10;
/// Longest time until the first byte arrives.
const FIRST_TIME_MAX: Duration = Duration::from_secs(10);
