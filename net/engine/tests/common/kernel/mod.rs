//! The same session twice: once between two kernel sockets, once with our stack at one end.
//!
//! Wires in user space join a TAP of the kernel with one in another namespace, and a third with our
//! stack. All sessions of many cases run over them concurrently, since most of the time is waiting.
//! Must stay true: one thread, one clock, the same code for all wires, so that only the stacks
//! differ.
#![allow(dead_code, clippy::unwrap_used)] // each user has its part

pub(crate) mod case;
pub(crate) mod judge;
pub(crate) mod party;
pub(crate) mod script;
pub(crate) mod segment;
pub(crate) mod wire;

use crate::common::{Frame, plain};
use case::Case;
use party::{Kernels, Ours, Party};
use rustix::thread::LinkNameSpaceType;
use script::{Application, Event};
use sidecore_net::nic::middleware::{Clock, Impaired, Loopback, QUEUE_FRAMES_MAX};
use sidecore_net::nic::tap::{Tap, TapOptions};
use sidecore_net::nic::{Nic, Outgoing};
use sidecore_net::{Cidr, Config, Stack};
use std::cell::RefCell;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use wire::{Fates, Flow, Flows, forward, send};

/// Stacks at the two ends of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairing {
    Kernels,
    OursServes,
    OursConnects,
}

pub(crate) const PAIRINGS: [Pairing; 3] =
    [Pairing::Kernels, Pairing::OursServes, Pairing::OursConnects];

/// Record of one session.
#[derive(Debug)]
pub(crate) struct Run {
    /// By side and lane.
    pub(crate) logs: [[Vec<Event>; 2]; 2],
    pub(crate) flow: Flow,
}

/// The reason why such a run is impossible here; none if it is possible.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("it makes interfaces in namespaces of its own and needs root");
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("there is no /dev/net/tun; try `modprobe tun`");
    }
    None
}

/// Runs all cases concurrently, each in every pairing, for at most `limit` each.
pub(crate) fn run(cases: &[Case], limit: Duration) -> Vec<[Run; 3]> {
    let mut lab = Lab::new(cases);
    let begun = Instant::now();
    while !lab.is_over() {
        let moved = lab.round();
        if begun.elapsed() > limit {
            lab.give_up();
        }
        if moved == 0 {
            std::thread::sleep(PAUSE);
        }
    }
    lab.runs()
}

/// A network namespace.
struct Namespace(File);

impl Namespace {
    fn new() -> Self {
        std::thread::scope(|scope| {
            let made = scope.spawn(|| {
                sidecore_sys::namespace::leave_network().expect("a network namespace");
                // Path metrics of one session must not affect another.
                std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1").expect("a setting");
                File::open("/proc/thread-self/ns/net").expect("the namespace")
            });
            Self(made.join().expect("a namespace"))
        })
    }

    /// Runs a closure on a thread in it.
    fn within<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(self.0.as_fd(), network)
                    .expect("the namespace");
                job()
            });
            done.join().expect("the namespace's thread")
        })
    }

    /// A TAP in it with these addresses at the kernel's end.
    fn tap(&self, name: &str, v4: &str, v6: &str) -> Tap {
        self.within(|| {
            let tap = Tap::open(&TapOptions {
                name: name.to_owned(),
                offload: false,
                ..TapOptions::default()
            });
            let tap = tap.expect("a TAP");
            ip(&format!("address add {v4}/24 dev {name}"));
            ip(&format!("address add {v6}/64 dev {name} nodad"));
            // On a busy machine the test may not read for a while; a drop by the kernel would be a
            // loss that no wire has recorded.
            ip(&format!("link set {name} txqueuelen {QUEUE_FRAMES}"));
            tap
        })
    }
}

fn ip(words: &str) {
    let status = std::process::Command::new("ip")
        .args(words.split(' '))
        .status();
    assert!(status.is_ok_and(|status| status.success()), "ip {words}");
}

type Wired<N> = Impaired<N, Fates>;

/// The whole test bed.
struct Lab {
    begun: Instant,
    /// Time of the last round.
    last_ns: u64,
    /// The wires' time, and the applications'.
    clock: Clock,
    flows: Rc<RefCell<Flows>>,
    /// Kernel to kernel; kernel to ours.
    near: Wired<Tap>,
    far: Wired<Tap>,
    third: Wired<Tap>,
    ours: Wired<Loopback>,
    stack: Rc<RefCell<Stack>>,
    sessions: Vec<Session>,
    /// Namespaces, which end with it.
    _places: [Namespace; 2],
}

/// Its two applications; none for the server if it does not listen.
struct Session {
    applications: [Option<Application>; 2],
    quiet_since_ns: Option<u64>,
    over: bool,
}

impl Lab {
    fn new(cases: &[Case]) -> Self {
        let places = [Namespace::new(), Namespace::new()];
        let flows = Rc::new(RefCell::new(Flows::of(cases, PAIRINGS.len(), FIRST_PORT)));
        let clock = Clock::default();
        clock.set_ns(EPOCH_NS);
        let wired = |nic| Impaired::new(nic, Fates(Rc::clone(&flows)), clock.clone());
        let near = wired(places[0].tap("near", "10.78.0.1", "fd78::1"));
        let far = wired(places[1].tap("far", "10.78.0.2", "fd78::2"));
        let third = wired(places[0].tap("third", "10.79.0.1", "fd79::1"));
        let sent = Loopback::new(plain(1), QUEUE_FRAMES_MAX);
        let ours = Impaired::new(sent, Fates(Rc::clone(&flows)), clock.clone());
        let config = Config {
            addresses: vec![cidr("10.79.0.2", 24), cidr("fd79::2", 64)],
            seed: cases.first().map_or(1, |case| case.seed),
            sessions_max: 4096,
            ..Config::default()
        };
        let stack = Stack::new(config, &plain(1)).expect("a stack");
        let stack = Rc::new(RefCell::new(stack));
        let mut lab = Self {
            begun: Instant::now(),
            last_ns: EPOCH_NS,
            clock,
            flows,
            near,
            far,
            third,
            ours,
            stack,
            sessions: Vec::new(),
            _places: places,
        };
        lab.greet();
        for (number, case) in (0..).zip(cases) {
            for (place, pairing) in (0..).zip(PAIRINGS) {
                let port = FIRST_PORT + number * PAIRINGS.len() as u16 + place;
                let session = lab.session(case, pairing, port);
                lab.sessions.push(session);
            }
        }
        lab
    }

    /// Neighbours are resolved before the cases begin.
    fn greet(&mut self) {
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            if self.round() == 0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn session(&self, case: &Case, pairing: Pairing, port: u16) -> Session {
        let address = |v4: &str, v6: &str| -> SocketAddr {
            let text = if case.v6 { v6 } else { v4 };
            SocketAddr::new(text.parse().expect("an address"), port)
        };
        let [client, server] = &case.scripts;
        let kernels = |place: usize, address, script, listens| -> Box<dyn Party> {
            let place: &Namespace = &self._places[place];
            Box::new(place.within(|| Kernels::new(address, script, listens)))
        };
        let stack = &self.stack;
        // A server starts before its client.
        let listens = case.listens;
        let (first, second): (Option<Box<dyn Party>>, Box<dyn Party>) = match pairing {
            Pairing::Kernels => {
                let at = address("10.78.0.2", "fd78::2");
                let first = listens.then(|| kernels(1, at, server, true));
                (first, kernels(0, at, client, false))
            }
            Pairing::OursServes => {
                let at = address("10.79.0.2", "fd79::2");
                let first =
                    listens.then(|| Box::new(Ours::listen(stack, at, server)) as Box<dyn Party>);
                (first, kernels(0, at, client, false))
            }
            Pairing::OursConnects => {
                let at = address("10.79.0.1", "fd79::1");
                let first = listens.then(|| kernels(0, at, server, true));
                (first, Box::new(Ours::connect(stack, at, client)))
            }
        };
        let first = first.map(|party| Application::new(party, server, 1));
        Session {
            applications: [Some(Application::new(second, client, 0)), first],
            quiet_since_ns: None,
            over: false,
        }
    }

    fn is_over(&self) -> bool {
        self.sessions.iter().all(|session| session.over)
    }

    fn give_up(&mut self) {
        for session in &mut self.sessions {
            session.over = true;
            for application in session.applications.iter_mut().flatten() {
                if !application.is_over() {
                    application.give_up();
                }
            }
        }
    }

    /// One round of polling; the number of frames moved.
    fn round(&mut self) -> usize {
        let now_ns = EPOCH_NS + self.begun.elapsed().as_nanos() as u64;
        let passed_ns = now_ns - self.last_ns;
        if passed_ns > STALL_NS {
            for flow in &mut self.flows.borrow_mut().all {
                flow.stalls += 1;
            }
        }
        self.last_ns = now_ns;
        // The wires' time stops while the test does not poll: otherwise overdue frames would arrive
        // at once, and the replies would fill a queue through no fault of a sender.
        let wires_ns = self.clock.now_ns() + passed_ns.min(ROUND_NS_MAX);
        self.clock.set_ns(wires_ns);
        let flows = &self.flows;
        let (near, far) = (&mut self.near, &mut self.far);
        let mut moved = 0;
        // Frames from a TAP pass through their own wire's impairments first.
        moved += forward(near, flows, wires_ns, &mut |frame| send(far, frame));
        moved += forward(far, flows, wires_ns, &mut |frame| send(near, frame));
        let (third, ours, stack) = (&mut self.third, &mut self.ours, &self.stack);
        moved += forward(third, flows, wires_ns, &mut |bytes| {
            let mut frame = Frame {
                bytes: bytes.to_vec(),
                checksum: sidecore_net::nic::ReceivedChecksum::Unknown,
                segment_bytes: None,
            };
            stack.borrow_mut().receive(now_ns, frame.received());
        });
        stack.borrow_mut().process_staged();
        for (session, flow) in self.sessions.iter_mut().zip(&mut flows.borrow_mut().all) {
            session.go_on(wires_ns, flow);
        }
        let mut sent = |frame: &Outgoing<'_>| ours.transmit(frame).expect("a NIC");
        self.stack.borrow_mut().transmit(now_ns, &mut sent);
        moved += forward(ours, flows, wires_ns, &mut |frame| send(third, frame));
        moved
    }

    fn runs(self) -> Vec<[Run; 3]> {
        let flows = std::mem::take(&mut self.flows.borrow_mut().all);
        let mut runs = self.sessions.iter().zip(flows).map(|(session, flow)| Run {
            logs: [0, 1].map(|side| {
                let application = session.applications[side].as_ref();
                application.map_or_else(Default::default, Application::logs)
            }),
            flow,
        });
        let mut next = || runs.next();
        std::iter::from_fn(|| Some([next()?, next()?, next()?])).collect()
    }
}

impl Session {
    fn go_on(&mut self, now_ns: u64, flow: &mut Flow) {
        if self.over {
            return;
        }
        for application in self.applications.iter_mut().flatten() {
            application.go_on(now_ns);
        }
        let mut applications = self.applications.iter().flatten();
        if !applications.all(Application::is_over) {
            return;
        }
        // Closing segments are recorded too, as long as they follow each other.
        let since_ns = *self.quiet_since_ns.get_or_insert(now_ns);
        let last_ns = flow.passed.last().map_or(0, |passed| passed.at_ns);
        let quiet = now_ns > since_ns.max(last_ns) + QUIET_NS;
        if quiet || now_ns > since_ns + FAREWELL_NS {
            self.over = true;
            flow.cut = true;
        }
    }
}

fn cidr(address: &str, prefix_bits: u8) -> Cidr {
    let address: IpAddr = address.parse().expect("an address");
    Cidr {
        address,
        prefix_bits,
    }
}

/// Frames queued in a TAP, from the kernel.
const QUEUE_FRAMES: u32 = 50_000;
/// The clock does not begin with 0, which stands for no time in places.
const EPOCH_NS: u64 = 1_000_000_000;
/// Servers' ports: below the ephemeral ports of both stacks.
const FIRST_PORT: u16 = 20_000;
/// A pause between two rounds that senders take for a loss: longer than the delay of a tail-loss
/// probe.
const STALL_NS: u64 = 3_000_000;
/// Largest advance of the wires' time in one round.
const ROUND_NS_MAX: u64 = 1_000_000;
/// Pause between rounds without frames.
const PAUSE: Duration = Duration::from_micros(50);
/// Silence after which a session counts as over.
const QUIET_NS: u64 = 60_000_000;
/// Limit of the closing phase: segments repeated after that would be repeated for minutes.
const FAREWELL_NS: u64 = 700_000_000;
