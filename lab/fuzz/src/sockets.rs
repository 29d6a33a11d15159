//! A hostile application: whatever it writes to its segment, the engine does not panic, other
//! applications are served as before, and its resources are released when it is cut off.
//!
//! A [`Target`] is a stack with sockets for other processes, an honest application on them, two
//! hostile ones that also connect to each other, so that bytes are copied from chunk to chunk, and
//! a peer stack that echoes. Each input is a request with fields chosen by a hostile application,
//! or words that it writes anywhere into its segment. [`Target::input`] has the invariants.
//! [`fuzz_requests`] does the same with decisions from bytes.

use sidecore_attach::Segment;
use sidecore_net::nic::{Capabilities, Outgoing, Received, ReceivedChecksum};
use sidecore_net::sock::layout::{
    CHUNK_BYTES, CHUNKS, EVENTS, Entry, Event, NO_CHUNK, REQUESTS, Request, segment_bytes,
};
use sidecore_net::sock::mailbox::{Attachment, Mailbox};
use sidecore_net::sock::ring::{Reader, Writer};
use sidecore_net::sock::server::Server;
use sidecore_net::{Cidr, Config, Event as StackEvent, ListenerId, Stack};
use sidecore_random::choices::Choices;
use sidecore_sys::local_socket::Peer;
use sidecore_sys::{SharedMap, Sharing};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SESSIONS: usize = 64;
/// Hostile applications.
const HOSTILE: usize = 2;
/// No session, no socket.
const NONE: u32 = u32::MAX;
const CHUNKS_EACH: u32 = 8;
/// Bytes of an honest request.
const REQUEST_BYTES: usize = 200;
/// Inputs within which the honest application completes at least one request.
const PATIENCE: u64 = 4_000;

/// An engine's sockets under attack.
pub struct Target {
    stack: Stack,
    peer: Stack,
    echo: ListenerId,
    server: Server,
    hostile: [Hostile; HOSTILE],
    honest: Honest,
    choices: Choices,
    now_ns: u64,
    inputs: u64,
    /// Times that a hostile application was cut off.
    cut_off: u64,
    scratch: Vec<u8>,
}

struct Hostile {
    attachment: Arc<Attachment>,
    requests: Writer,
    events: Reader,
    /// Numbers of its sockets, from events.
    sockets: Vec<u32>,
    /// Receive chunks that it holds.
    held: Vec<u32>,
}

struct Honest {
    attachment: Arc<Attachment>,
    requests: Writer,
    events: Reader,
    socket: Option<u32>,
    connected: bool,
    /// For the current request: bytes echoed so far, and whether its chunk was returned.
    got: usize,
    sent: bool,
    give: u32,
    done: u64,
    done_at_input: u64,
}

#[expect(clippy::expect_used, reason = "a broken set-up is to be seen at once")]
fn attach(server: &mut Server, pid: i32) -> Arc<Attachment> {
    let bytes = segment_bytes(CHUNKS_EACH);
    let map = SharedMap::create("sidecore-fuzz", bytes, Sharing::ReadWrite).expect("memory");
    let attachment = Arc::new(Attachment {
        wake: None,
        map: Segment::uncharged(map),
        chunks: CHUNKS_EACH,
        peer: Peer {
            pid,
            uid: 0,
            gid: 0,
        },
        gone: AtomicBool::new(false),
    });
    server.admit(Arc::clone(&attachment));
    attachment
}

impl Target {
    /// A target that is deterministic for a `seed`.
    ///
    /// # Panics
    /// If memory is exhausted.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with(seed, Choices::seeded(seed))
    }

    #[expect(clippy::expect_used, reason = "a broken set-up is to be seen at once")]
    fn with(seed: u64, choices: Choices) -> Self {
        let stack = |number: u8| {
            let config = Config {
                addresses: vec![Cidr {
                    address: IpAddr::from([10, 0, 0, number]),
                    prefix_bits: 24,
                }],
                // Each stack has a seed of its own, derived from one, so that runs are repeatable.
                seed: seed ^ u64::from(number) << 56,
                sessions_max: SESSIONS * usize::from(number),
                buffers_bytes: 256 << 20,
                // Small buffers, so that they are full often.
                send_bytes: 32 << 10,
                receive_bytes: 32 << 10,
                window_scale: 2,
                time_wait_ms: 50,
                ..Config::default()
            };
            let nic = Capabilities::plain([2, 0, 0, 0, 0, number], 1500);
            Stack::new(config, &nic).expect("memory for a stack")
        };
        let mut peer = stack(2);
        let echo = peer.listen(SocketAddr::from(([10, 0, 0, 2], 7)), 64);
        let (mailbox, bell) = Mailbox::new().expect("descriptors");
        let mut server = Server::new(mailbox, bell);
        let hostile = [1, 3].map(|pid| Hostile::new(attach(&mut server, pid)));
        let honest = Honest::new(attach(&mut server, 2));
        Self {
            stack: stack(1),
            peer,
            echo: echo.expect("a listener"),
            server,
            hostile,
            honest,
            choices,
            now_ns: 1_000_000_000,
            inputs: 0,
            cut_off: 0,
            scratch: vec![0; 32 << 10],
        }
    }

    /// One action of a hostile application, sometimes followed by a round of the engine and the
    /// others.
    ///
    /// # Panics
    /// When an invariant is violated, which is its purpose.
    pub fn input(&mut self) {
        self.inputs += 1;
        let hostile = &mut self.hostile[self.choices.below(HOSTILE as u64) as usize];
        match self.choices.below(64) {
            0 => hostile.scribble(&mut self.choices),
            _ => hostile.ask(&mut self.choices),
        }
        if self.choices.below(4) == 0 {
            self.engine_round();
        }
    }

    /// Rounds of the engine and turns of the other parties.
    fn engine_round(&mut self) {
        self.honest.go_on();
        self.server.poll(&mut self.stack);
        self.carry();
        for hostile in &mut self.hostile {
            hostile.apply_event();
        }
        if self.honest.apply_event() {
            self.honest.done_at_input = self.inputs;
        }
        assert!(
            !self.honest.attachment.gone.load(Ordering::Acquire),
            "an honest application was cut off"
        );
        assert!(
            self.inputs - self.honest.done_at_input < PATIENCE,
            "an honest application does not get on: {} requests done",
            self.honest.done
        );
        let gone = |hostile: &Hostile| hostile.attachment.gone.load(Ordering::Acquire);
        let left = self.hostile.iter().filter(|hostile| !gone(hostile)).count();
        // Nothing is left of the applications that were cut off.
        assert_eq!(self.server.status().count(), 1 + left);
        for hostile in &mut self.hostile {
            if gone(hostile) {
                self.cut_off += 1;
                *hostile = Hostile::new(attach(&mut self.server, 1));
            }
        }
        assert_eq!(self.server.violations(), self.cut_off);
    }

    /// Replaces the hostile applications, which may have left their segments in any state. Before,
    /// the honest one must get an answer while their last entries are still in the rings.
    fn begin_anew(&mut self, choices: Choices) {
        self.choices = Choices::of(&[]);
        let done = self.honest.done;
        for round in 0.. {
            assert!(round < ROUNDS, "an honest application does not get on");
            self.engine_round();
            if self.honest.done > done {
                break;
            }
            if round > 50 {
                // Frames of the hostile ones may have filled the queues, so a retransmission may be
                // due.
                self.now_ns += 10_000_000;
            }
        }
        for hostile in &self.hostile {
            hostile.attachment.gone.store(true, Ordering::Release);
        }
        self.server.take_control_messages(&mut self.stack);
        assert_eq!(self.server.status().count(), 1, "one was not let go of");
        self.hostile = [1, 3].map(|pid| Hostile::new(attach(&mut self.server, pid)));
        self.carry();
        self.honest.done_at_input = self.inputs;
        self.choices = choices;
    }

    /// Times that the hostile application was cut off, and bytes that the honest one echoed.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.cut_off, self.honest.done)
    }

    /// Bytes copied between two applications of the engine.
    #[must_use]
    pub fn across_bytes(&self) -> u64 {
        self.stack.counters().across_bytes
    }

    /// Carries frames both ways, and those that the stack sends to itself; the peer echoes.
    fn carry(&mut self) {
        self.now_ns += 20_000;
        // Rarely, much time passes, so that timers expire.
        if self.choices.below(64) == 0 {
            self.now_ns += self.choices.below(2_000_000_000);
        }
        for _ in 0..2 {
            let mut frames = Vec::new();
            self.stack.transmit(self.now_ns, &mut |frame| {
                frames.push(whole(frame));
                frames.len() < 256
            });
            for mut bytes in frames {
                // Frames from outside with the stack's own address are dropped.
                if bytes[5] == 1 {
                    self.stack.receive_own(self.now_ns, received(&mut bytes));
                } else {
                    self.peer.receive(self.now_ns, received(&mut bytes));
                }
            }
            self.stack.process_staged();
            self.peer.process_staged();
            self.echo();
            let mut frames = Vec::new();
            self.peer.transmit(self.now_ns, &mut |frame| {
                frames.push(whole(frame));
                true
            });
            for mut bytes in frames {
                self.stack.receive(self.now_ns, received(&mut bytes));
            }
            self.stack.process_staged();
        }
    }

    #[expect(clippy::expect_used, reason = "what fails here is what is looked for")]
    fn echo(&mut self) {
        let peer = &mut self.peer;
        while peer.accept(self.echo).expect("listens").is_some() {}
        while let Some(event) = peer.next_event() {
            let StackEvent::Session(id) = event else {
                continue;
            };
            while let Ok(count @ 1..) = peer.read(id, &mut self.scratch) {
                // An incomplete write belongs to the hostile application, which does not read.
                let _ = peer.write(id, &self.scratch[..count]);
            }
            if peer.readiness(id).expect("open").end_of_input() {
                peer.close(id).expect("open");
            }
        }
        while peer.accept(self.echo).expect("listens").is_some() {}
    }
}

/// Plays the decisions in `bytes` against a target that is kept between calls, each time with new
/// hostile applications.
///
/// # Panics
/// When an invariant is violated.
pub fn fuzz_requests(bytes: &[u8]) {
    thread_local! {
        static TARGET: RefCell<Option<Target>> = const { RefCell::new(None) };
    }
    TARGET.with_borrow_mut(|target| {
        let target = target.get_or_insert_with(|| Target::new(1));
        target.begin_anew(Choices::of(bytes));
        for _ in 0..INPUTS_MAX {
            if target.choices.is_over() {
                break;
            }
            target.input();
        }
        target.engine_round();
    });
}

/// Inputs of one run from bytes.
const INPUTS_MAX: usize = 256;
/// Rounds of the engine within which an honest request is answered.
const ROUNDS: usize = 2_000;

fn whole(frame: &Outgoing<'_>) -> Vec<u8> {
    [frame.header, frame.payload[0], frame.payload[1]].concat()
}

fn received(bytes: &mut [u8]) -> Received<'_> {
    Received {
        bytes,
        checksum: ReceivedChecksum::Unknown,
        segment_bytes: None,
    }
}

impl Hostile {
    fn new(attachment: Arc<Attachment>) -> Self {
        Self {
            attachment,
            requests: Writer::new(REQUESTS),
            events: Reader::new(EVENTS),
            sockets: Vec::new(),
            held: Vec::new(),
        }
    }

    /// A request that may be valid.
    fn ask(&mut self, choices: &mut Choices) {
        // Nearly all requests are plausible: nonsense alone would only be refused by the first
        // checks.
        let odd = choices.below(200) == 0;
        let any = choices.bits() as u32;
        let pick = |list: &[u32], choices: &mut Choices| match list.len() {
            0 => any & 3,
            count => list[choices.below(count as u64) as usize],
        };
        let kind = match choices.below(24) {
            0 => Request::Listen as u32,
            1..4 => Request::Connect as u32,
            4 => Request::BindUdp as u32,
            5..14 => Request::Send as u32,
            14 => Request::Shutdown as u32,
            15 => Request::Close as u32,
            16 => Request::Abort as u32,
            17 => Request::Option as u32,
            18 => Request::Credit as u32,
            _ => Request::Give as u32,
        };
        let give = match self.held.len() {
            0 => NO_CHUNK,
            count if choices.below(2) == 0 => {
                self.held.swap_remove(choices.below(count as u64) as usize)
            }
            _ => NO_CHUNK,
        };
        // Its own stack, the peer, an unused address and the broadcast address.
        let host = [1, 1, 2, 3, 255][choices.below(5) as usize];
        let port = [7, 7, 80, 0, any as u16][choices.below(5) as usize];
        let entry = Entry {
            kind: if odd { any } else { kind },
            tag: any,
            socket: if choices.below(20) == 0 {
                any
            } else {
                pick(&self.sockets, choices)
            },
            bytes: if odd {
                any
            } else {
                any % (CHUNK_BYTES as u32 + 1)
            },
            chunk: if odd {
                any
            } else {
                choices.below(CHUNKS_EACH.into()) as u32
            },
            give: if odd { any } else { give },
            argument: if choices.below(4) == 0 { any } else { any % 12 },
            ..Entry::default()
        };
        let entry = entry.at(SocketAddr::from(([10, 0, 0, host], port)));
        // The chunk may be in use, or the ring full: the engine's reaction is tested.
        let _ = self.requests.write(self.attachment.map.slice(), &entry);
    }

    /// Writes words anywhere: entries, turns, positions, flags, chunks.
    fn scribble(&mut self, choices: &mut Choices) {
        let memory = self.attachment.map.slice();
        let near = [0, 128, 256, 384, 512, REQUESTS.0, EVENTS.0, CHUNKS];
        let at = match choices.below(2) {
            0 => near[choices.below(near.len() as u64) as usize] + 8 * choices.below(32) as usize,
            _ => choices.below(segment_bytes(CHUNKS_EACH) as u64 / 8) as usize * 8,
        };
        let word = match choices.below(3) {
            0 => choices.bits(),
            1 => choices.below(4096),
            _ => u64::MAX,
        };
        memory.write_at(at.min(memory.len() - 8), &word.to_ne_bytes());
    }

    /// Processes its events, as far as they are valid after its own writes.
    fn apply_event(&mut self) {
        while let Some(entry) = self.events.read(self.attachment.map.slice()) {
            match Event::from_number(entry.kind) {
                Some(Event::Opened) if entry.argument == 0 => self.sockets.push(entry.socket),
                Some(Event::Accepted) => self.sockets.push(entry.socket),
                Some(Event::Received) => self.held.push(entry.chunk),
                _ => {}
            }
        }
        if self.sockets.len() > SESSIONS {
            self.sockets.remove(0);
        }
    }
}

impl Honest {
    fn new(attachment: Arc<Attachment>) -> Self {
        Self {
            attachment,
            requests: Writer::new(REQUESTS),
            events: Reader::new(EVENTS),
            socket: None,
            connected: false,
            got: REQUEST_BYTES,
            sent: true,
            give: NONE,
            done: 0,
            done_at_input: 0,
        }
    }

    fn pattern(&self) -> [u8; REQUEST_BYTES] {
        std::array::from_fn(|at| (at as u64 * 7 + self.done) as u8)
    }

    /// Sends its next request, if one is due.
    #[expect(clippy::expect_used, reason = "what fails here is what is looked for")]
    fn go_on(&mut self) {
        let due = self.sent && self.got == REQUEST_BYTES;
        if self.socket.is_some() && (!self.connected || !due) {
            return;
        }
        let memory = self.attachment.map.slice();
        let entry = match self.socket {
            None => {
                // Requested once; now it waits for the answer.
                self.socket = Some(NONE);
                Entry {
                    kind: Request::Connect as u32,
                    ..Entry::default()
                }
                .at(SocketAddr::from(([10, 0, 0, 2], 7)))
            }
            Some(socket) => {
                memory.write_at(CHUNKS, &self.pattern());
                (self.got, self.sent) = (0, false);
                Entry {
                    kind: Request::Send as u32,
                    socket,
                    bytes: REQUEST_BYTES as u32,
                    chunk: 0,
                    give: std::mem::replace(&mut self.give, NO_CHUNK),
                    ..Entry::default()
                }
            }
        };
        let written = self.requests.write(memory, &entry);
        assert!(written.expect("an honest engine"), "room for a request");
    }

    /// Processes its events; true if a request was answered.
    fn apply_event(&mut self) -> bool {
        let mut answered = false;
        while let Some(entry) = self.events.read(self.attachment.map.slice()) {
            match Event::from_number(entry.kind) {
                Some(Event::Opened) => {
                    assert_eq!(entry.argument, 0, "it was first");
                    self.socket = Some(entry.socket);
                }
                Some(Event::Connected) => self.connected = true,
                Some(Event::Sent) => {
                    assert_eq!((entry.chunk, entry.argument), (0, 0));
                    self.sent = true;
                }
                Some(Event::Received) => {
                    assert!(entry.chunk < CHUNKS_EACH);
                    let chunk = (CHUNKS_EACH + entry.chunk) as usize;
                    let mut bytes = vec![0; entry.bytes as usize];
                    let at = CHUNKS + chunk * CHUNK_BYTES;
                    self.attachment.map.slice().read_at(at, &mut bytes);
                    assert_eq!(
                        bytes,
                        self.pattern()[self.got..][..bytes.len()],
                        "other bytes"
                    );
                    self.got += bytes.len();
                    self.give_back(entry.chunk);
                    if self.got == REQUEST_BYTES {
                        self.done += 1;
                        answered = true;
                    }
                }
                other => panic!("an honest session was notified {other:?}, {entry:?}"),
            }
        }
        answered
    }

    fn give_back(&mut self, chunk: u32) {
        if self.give != NO_CHUNK {
            let entry = Entry {
                kind: Request::Give as u32,
                give: self.give,
                ..Entry::default()
            };
            let _ = self.requests.write(self.attachment.map.slice(), &entry);
        }
        self.give = chunk;
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target after {} inputs", self.inputs)
    }
}
