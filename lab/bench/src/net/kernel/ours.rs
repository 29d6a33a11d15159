//! Our stack on a NIC, with its applications in the engine's own thread: the whole on one core.
//!
//! Must stay true: the engine never sleeps, as on a core that is set aside for it; an application
//! does what a program on this API would: it reads data in place (`peek`, `consume`), and copies
//! its output.

use super::super::BenchError;
use super::super::namespace::Namespace;
use super::WRONG;
use super::pattern::Pattern;
use sidecore_net::Counters;
use sidecore_net::NetError;
use sidecore_net::Stack;
use sidecore_net::engine::{Engine, EngineOptions};
use sidecore_net::nic::Nic;
use sidecore_net::nic::tap::{Tap, TapOptions};
use sidecore_net::{Cidr, Config};
use sidecore_net::{Event, ListenerId, SessionId};
use sidecore_sys::cpu;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Address of the kernel's end of the wire.
pub(super) const KERNEL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 98, 0, 1));
/// Address of our end.
pub(super) const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 98, 0, 2));
/// The kernel's name of its end.
pub(super) const TAP: &str = "sidecore0";
/// Port of a [`Service`].
pub(super) const PORT: u16 = 5001;

/// Opens a TAP in a namespace, the kernel's end at `host`.
pub(super) fn tap(at: &Namespace, host: IpAddr, offload: bool) -> Result<Tap, BenchError> {
    let options = TapOptions {
        name: TAP.into(),
        offload,
        host: vec![(host, 24)],
        ..TapOptions::default()
    };
    Ok(at.run(move || Tap::open(&options))??)
}

/// Configuration of the stack: [`OURS`] on the wire.
pub(super) fn config() -> Config {
    Config {
        addresses: vec![Cidr {
            address: OURS,
            prefix_bits: 24,
        }],
        seed: SEED,
        // As much as the kernel lets a socket of its own grow to (tcp_wmem).
        send_bytes: 4 << 20,
        ..Config::default()
    }
}

/// Work of the application in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// Discards its input, and counts it.
    Discard,
    /// Sends as fast as the peer reads.
    Source,
    /// Compares its input with the pattern, and counts it.
    Check,
    /// Sends this many bytes of the pattern.
    Stream(u64),
}

/// Runs an engine on `core` until `stop` is set, with `service` at [`PORT`]; returns its stack's
/// counters.
pub(super) fn run(
    nic: impl Nic,
    config: Config,
    service: Service,
    core: usize,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Result<Counters, BenchError> {
    cpu::pin(core)?;
    let mut stack = sidecore_net::memory::mapped_stack(config, &nic.capabilities())?;
    let listener = stack.listen(SocketAddr::new(OURS, PORT), 64)?;
    let options = EngineOptions {
        grace: None,
        ..EngineOptions::default()
    };
    let mut application = Application {
        service,
        listener,
        block: vec![b'x'; BLOCK_BYTES],
        pattern: Pattern::get(),
        offset: 0,
        count,
    };
    let mut engine = Engine::new(nic, stack, None, options);
    engine.run(stop, |stack| application.round(stack))?;
    Ok(engine.stack().counters())
}

struct Application<'c> {
    service: Service,
    listener: ListenerId,
    block: Vec<u8>,
    pattern: &'static Pattern,
    /// Position of its one session in the pattern.
    offset: u64,
    count: &'c AtomicU64,
}

impl Application<'_> {
    /// Makes all possible progress; returns the amount.
    fn round(&mut self, stack: &mut Stack) -> usize {
        let mut work = 0;
        while let Some(event) = stack.next_event() {
            work += 1;
            match event {
                Event::Listener(_) => {
                    while let Ok(Some(session)) = stack.accept(self.listener) {
                        self.serve(stack, session);
                    }
                }
                Event::Session(session) => self.serve(stack, session),
                Event::Udp(_) => {}
            }
        }
        work
    }

    fn serve(&mut self, stack: &mut Stack, session: SessionId) {
        let served = match self.service {
            Service::Discard => self.take(stack, session),
            Service::Source => self.fill(stack, session),
            Service::Check => self.check(stack, session),
            Service::Stream(bytes) => self.stream(stack, session, bytes),
        };
        let over = stack
            .readiness(session)
            .is_ok_and(|readiness| readiness.end_of_input());
        if served.is_err() || over {
            // A session whose peer is gone is closed.
            stack.close(session).ok();
        }
    }

    fn take(&self, stack: &mut Stack, session: SessionId) -> Result<(), NetError> {
        let bytes = stack.peek(session)?.iter().map(|piece| piece.len()).sum();
        stack.consume(session, bytes)?;
        self.count.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    fn check(&mut self, stack: &mut Stack, session: SessionId) -> Result<(), NetError> {
        let mut bytes = 0;
        for piece in stack.peek(session)? {
            if !self.pattern.has(self.offset + bytes as u64, piece) {
                self.count.store(WRONG, Ordering::Relaxed);
                return Ok(());
            }
            bytes += piece.len();
        }
        stack.consume(session, bytes)?;
        self.offset += bytes as u64;
        self.count.store(self.offset, Ordering::Relaxed);
        Ok(())
    }

    fn stream(
        &mut self,
        stack: &mut Stack,
        session: SessionId,
        bytes: u64,
    ) -> Result<(), NetError> {
        while self.offset < bytes {
            let most = (bytes - self.offset).min(BLOCK_BYTES as u64) as usize;
            let taken = stack.write(session, self.pattern.from(self.offset, most))?;
            self.offset += taken as u64;
            if taken == 0 {
                return Ok(());
            }
        }
        stack.shutdown_write(session)
    }

    fn fill(&self, stack: &mut Stack, session: SessionId) -> Result<(), NetError> {
        while stack.write(session, &self.block)? == self.block.len() {}
        Ok(())
    }
}

/// Size of a block that is written at once.
const BLOCK_BYTES: usize = 128 << 10;
const SEED: u64 = 0x51de_c04e;
