//! Several engines with one address, each with its own link, and one client that spreads its flows
//! over the links by their hash. One thread runs all rounds, so that a run is reproducible;
//! `lab/apps/tests/suite/engines.rs` has the same on threads, against the kernel.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_net::engine::{Engine, EngineOptions, EngineStatus, siblings};
use sidecore_net::memory::mapped_stack;
use sidecore_net::nic::Nic;
use sidecore_net::nic::pair::{Pair, PairOptions, link};
use sidecore_net::nic::spread::Spread;
use sidecore_net::{Cidr, Config, Event, ListenerId, SessionId, Stack};
use sidecore_net_stack::flow;
use std::net::{IpAddr, SocketAddr};

struct World {
    client: Engine<Spread<Pair>>,
    engines: Vec<Engine<Pair>>,
}

impl World {
    fn new(count: usize) -> Self {
        let links = (0..count).map(|_| link(&PairOptions::default()).unwrap());
        let (near, far): (Vec<Pair>, Vec<Pair>) = links.unzip();
        let client = Spread::new(near).unwrap();
        let nics = far.into_iter().zip(siblings(count).unwrap());
        Self {
            client: engine(client, 2),
            engines: nics
                .map(|(nic, place)| engine(nic, 1).with_siblings(place))
                .collect(),
        }
    }

    /// Rounds of all engines, with echoes if there is a `listener`, until `done`.
    fn until(&mut self, mut done: impl FnMut(&mut Stack) -> bool) {
        for _ in 0..ROUNDS_MAX {
            self.client.round(&mut |_| 0).unwrap();
            for engine in &mut self.engines {
                engine.round(&mut echo).unwrap();
            }
            if done(self.client.stack()) {
                return;
            }
        }
        panic!("it does not happen");
    }

    fn listen(&mut self, index: usize, port: u16) -> ListenerId {
        let any = SocketAddr::from(([0, 0, 0, 0], port));
        self.engines[index].stack().listen(any, 1024).unwrap()
    }

    /// Opens sessions to the common address.
    fn open(&mut self, count: usize, port: u16) -> Vec<SessionId> {
        let to = SocketAddr::from((OWN, port));
        let connect = |_| self.client.stack().connect(to, None).unwrap();
        let sessions: Vec<SessionId> = (0..count).map(connect).collect();
        self.until(|stack| {
            let open = |&session: &SessionId| stack.readiness(session).unwrap().writable;
            sessions.iter().all(open)
        });
        sessions
    }

    /// Sends something in each session and gets it back.
    fn converse(&mut self, sessions: &[SessionId]) {
        for (number, &session) in sessions.iter().enumerate() {
            let said = [number as u8; 100];
            assert_eq!(self.client.stack().write(session, &said).unwrap(), 100);
        }
        self.until(|stack| {
            let heard = |&session: &SessionId| stack.peek(session).unwrap()[0].len() == 100;
            sessions.iter().all(heard)
        });
        for (number, &session) in sessions.iter().enumerate() {
            let mut heard = [0; 100];
            assert_eq!(self.client.stack().read(session, &mut heard).unwrap(), 100);
            assert_eq!(heard, [number as u8; 100]);
        }
    }

    fn sessions(&mut self) -> Vec<usize> {
        let engines = self.engines.iter_mut();
        engines.map(|engine| engine.stack().sessions()).collect()
    }

    fn status(&self) -> Vec<EngineStatus> {
        self.engines.iter().map(Engine::status).collect()
    }
}

fn engine<N: Nic>(nic: N, number: u8) -> Engine<N> {
    let config = Config {
        addresses: vec![Cidr {
            address: IpAddr::from([10, 0, 0, number]),
            prefix_bits: 24,
        }],
        sessions_max: 4096,
        buffers_bytes: 64 << 20,
        seed: u64::from(number),
        ..Config::default()
    };
    let stack = mapped_stack(config, &nic.capabilities()).unwrap();
    Engine::new(nic, stack, None, EngineOptions::default())
}

/// Accepts all sessions of the event's listener, and echoes their data.
fn echo(stack: &mut Stack) -> usize {
    let mut count = 0;
    while let Some(event) = stack.next_event() {
        count += 1;
        match event {
            Event::Listener(listener) => while stack.accept(listener).unwrap().is_some() {},
            Event::Session(session) => {
                let mut said = [0; 4096];
                while let Ok(bytes @ 1..) = stack.read(session, &mut said) {
                    stack.write(session, &said[..bytes]).unwrap();
                }
            }
            Event::Udp(_) => {}
        }
    }
    count
}

#[test]
fn each_engine_has_the_flows_of_its_hash_and_nothing_is_handed_over() {
    let mut world = World::new(4);
    for index in 0..4 {
        world.listen(index, 7);
    }
    let sessions = world.open(1000, 7);
    world.converse(&sessions);
    let mut expected = [0; 4];
    for &session in &sessions {
        let (near, far) = world.client.stack().addresses(session).unwrap();
        expected[flow::engine_of(flow::hash(near, far), 4)] += 1;
    }
    let has = world.sessions();
    assert_eq!(has, expected);
    assert!(has.iter().all(|&count| count > 200), "{has:?}");
    for status in world.status() {
        // The client's address, once, and its request for theirs: shared with all.
        assert!(status.handed_over <= 8, "{status:?}");
        assert_eq!(status.handed_lost, 0);
    }
}

#[test]
fn a_listener_on_one_of_three_serves_all() {
    let mut world = World::new(3);
    world.listen(1, 7);
    let sessions = world.open(60, 7);
    world.converse(&sessions);
    assert_eq!(world.sessions(), [0, 60, 0]);
    let status = world.status();
    assert!(status[0].handed_over > 0 && status[1].handed_taken > 0);
    // There is no listener: refused by one engine, not by three.
    let to = SocketAddr::from((OWN, 8));
    let refused = world.client.stack().connect(to, None).unwrap();
    world.until(|stack| stack.readiness(refused).unwrap().is_closed());
    let resets = world
        .engines
        .iter_mut()
        .map(|it| it.stack().counters().resets_sent);
    assert_eq!(resets.sum::<u64>(), 1);
}

#[test]
fn an_engine_reaches_another_by_their_own_address() {
    let mut world = World::new(2);
    world.listen(1, 7);
    let own = SocketAddr::from((OWN, 7));
    let session = world.engines[0].stack().connect(own, None).unwrap();
    let mut heard = Vec::new();
    let mut said = 0;
    let stack = |world: &mut World| {
        for engine in &mut world.engines {
            // The client's own events are not echoed: its side is read below.
            let mut application = |stack: &mut Stack| match stack.addresses(session) {
                Ok((_, to)) if to == own => 0,
                _ => echo(stack),
            };
            engine.round(&mut application).unwrap();
        }
    };
    for _ in 0..ROUNDS_MAX {
        stack(&mut world);
        let client = world.engines[0].stack();
        if said < 100_000 && client.readiness(session).unwrap().writable {
            said += client.write(session, &vec![7; 100_000 - said]).unwrap();
        }
        let mut bytes = [0; 4096];
        let read = client.read(session, &mut bytes).unwrap();
        heard.extend_from_slice(&bytes[..read]);
        if heard.len() == 100_000 {
            assert!(heard.iter().all(|&byte| byte == 7));
            return;
        }
    }
    panic!("{} bytes of {said} came back", heard.len());
}

const OWN: [u8; 4] = [10, 0, 0, 1];
const ROUNDS_MAX: usize = 200_000;
