//! An engine of the daemon with a hostile client that writes anywhere.
//!
//! A [`Target`] is one engine without its thread, an honest client and a hostile one. An input is a
//! list of decisions: words anywhere in the hostile one's segment, requests and jobs of any kind,
//! rounds of the engine. Must stay true, whatever the hostile client does: no panic. The honest
//! one's requests and jobs are answered rightly within a bounded number of rounds, and only the
//! lines of its answers change in its segment.

use sidecore_attach::Segment;
use sidecore_daemon::engine::{Core, CoreOptions};
use sidecore_daemon::served::KernelHash;
use sidecore_daemon::shm::activity::ActivityPage;
use sidecore_daemon::shm::introduction::{Attached, KernelName, PROTOCOL, Question};
use sidecore_daemon::shm::layout::{self, Status};
use sidecore_daemon::shm::ring::{JOBS_MAX, JobPacket};
use sidecore_daemon::shm::session::{Names, Session};
use sidecore_daemon::shm::slot::{Packet, RANGES_MAX, WORDS};
use sidecore_daemon::{Bench, DaemonError, DaemonOptions, Roster, Server};
use sidecore_random::choices::Choices;
use sidecore_sys::local_socket::Peer;
use sidecore_sys::{SharedMap, Sharing};
use std::cell::RefCell;
use std::sync::Arc;

/// Bytes of an arena.
const ARENA_BYTES: u64 = 16 << 10;
/// Decisions of one input.
const STEPS_MAX: usize = 256;
/// Rounds within which an honest request is answered; an engine may look out for others for some
/// microseconds first.
const ROUNDS_MAX: usize = 10_000_000;
/// The honest client's bytes, at the end of its arena.
const PATTERN: [u8; 64] = [0x5a; 64];
const PATTERN_AT: u64 = ARENA_BYTES - PATTERN.len() as u64;

/// An engine under fire.
pub struct Target {
    server: Server,
    roster: Arc<Roster>,
    honest: Arc<Session>,
    hostile: Arc<Session>,
    /// Of the honest client's last request.
    sequence: u32,
    /// Jobs that it has submitted and collected.
    jobs: u64,
    clients: u64,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target after {} clients", self.clients)
    }
}

/// Plays the decisions of `bytes` against an engine and an honest client that are kept from one
/// call to the next; the hostile client is another one each time. Also reads `bytes` as messages.
///
/// Returns how many operations were played.
///
/// # Panics
/// When something does not hold that must.
#[expect(clippy::expect_used, reason = "a broken set-up is to be seen at once")]
pub fn fuzz_daemon(bytes: &[u8]) -> usize {
    thread_local! {
        static TARGET: RefCell<Option<Target>> = const { RefCell::new(None) };
    }
    messages(bytes);
    TARGET.with_borrow_mut(|target| {
        let target = target.get_or_insert_with(|| Target::new().expect("memory for an engine"));
        let mut choices = Choices::of(bytes);
        target.begin_anew();
        let mut steps = 0;
        while steps < STEPS_MAX && !choices.is_over() {
            target.step(&mut choices);
            steps += 1;
        }
        target.ask_honestly();
        target.submit_honestly();
        steps + 2
    })
}

/// Questions and terms, as they come over the socket.
fn messages(bytes: &[u8]) {
    match PROTOCOL.parse_question(bytes) {
        Ok((kind, body)) => {
            if let Some(question) = Question::decode(kind, &body) {
                let again = PROTOCOL.parse_question(&question.encode());
                let again = again.map(|(kind, body)| Question::decode(kind, &body));
                assert!(matches!(again, Ok(Some(same)) if same == question));
            }
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
    if let Some(terms) = Attached::decode(bytes) {
        assert!(terms.kernels.len() <= bytes.len());
    }
}

/// Messages that a fuzzer would not find by itself: both questions, both spoilt in their head, and
/// an answer.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let attach = Question::Attach { arena_bytes: 4096 }.encode().to_vec();
    let mut foreign = attach.clone();
    foreign[0] ^= 1;
    let mut older = attach.clone();
    older[12] ^= 1;
    let terms = Attached {
        client: 1,
        engines: 2,
        segment_bytes: 1 << 20,
        arena_bytes: 4096,
        activity_bytes: 64,
        kernels: vec![KernelName {
            name: "empty".to_owned(),
            number: 0,
            version: 1,
            hash: KernelHash::of(b"empty"),
        }],
    };
    let long = [attach.as_slice(), &[0; 4]].concat();
    let status = Question::Status { engines_from: 0 }.encode().to_vec();
    vec![attach, status, foreign, older, long, terms.encode()]
}

#[expect(clippy::expect_used, reason = "a broken set-up is to be seen at once")]
fn session(client: u32) -> Arc<Session> {
    let peer = Peer {
        pid: 1 + client as i32,
        uid: 0,
        gid: 0,
    };
    let names = Names {
        client,
        serial: u64::from(client),
        peer,
    };
    let bytes = layout::segment_bytes(1, ARENA_BYTES).expect("a small arena");
    let map = SharedMap::create("sidecore-fuzz", bytes, Sharing::ReadWrite).expect("memory");
    Arc::new(Session::new(names, 1, ARENA_BYTES, Segment::uncharged(map)))
}

impl Target {
    fn new() -> Result<Self, DaemonError> {
        let options = DaemonOptions::default();
        let roster = Arc::new(Roster::default());
        let server = Server::new(
            0,
            Core::new(CoreOptions::default())?,
            &options,
            Arc::new(ActivityPage::new(&[0])?),
            Arc::clone(&roster),
            Arc::new(Bench::new(0)),
            false,
        )?;
        let honest = session(0);
        let arena = layout::arena_offset(1) + PATTERN_AT as usize;
        honest.segment().write_at(arena, &PATTERN);
        Ok(Self {
            server,
            roster,
            hostile: session(1),
            honest,
            sequence: 0,
            jobs: 0,
            clients: 0,
        })
    }

    /// Another hostile client in the place of the last.
    fn begin_anew(&mut self) {
        self.clients += 1;
        let segment = self.hostile.segment();
        let zeros = [0; 4096];
        for at in (0..segment.len()).step_by(zeros.len()) {
            segment.write_at(at, &zeros[..zeros.len().min(segment.len() - at)]);
        }
        // Disconnected, and attached again: the engine keeps no state of it.
        self.roster.set(vec![Arc::clone(&self.honest)]);
        self.server.look();
        let both = vec![Arc::clone(&self.hostile), Arc::clone(&self.honest)];
        self.roster.set(both);
        self.server.look();
    }

    fn step(&mut self, choices: &mut Choices) {
        match choices.below(12) {
            0 => self.scribble(choices),
            1..=3 => self.ring(choices),
            4..=7 => self.submit(choices),
            8 => self.ask_honestly(),
            9 => self.submit_honestly(),
            _ => drop(self.server.look()),
        }
    }

    /// A word anywhere, most of the time among the engine's lines.
    fn scribble(&self, choices: &mut Choices) {
        let segment = self.hostile.segment();
        let at = match choices.below(4) {
            0 => choices.below(segment.len() as u64 / 8) * 8,
            1 => 4096 + 8 * choices.below(48),
            // The entry that is looked at next, and the slots that it may name.
            2 => 8192 + 128 + (self.hostile.heads.taken() + choices.below(2)) % JOBS * 8,
            _ => 8192 + 16_512 + 8 * choices.below(64),
        };
        let word = match choices.below(3) {
            0 => choices.bits(),
            1 => choices.below(0x1_0000),
            _ => u64::MAX,
        };
        segment.write_at(at as usize, &word.to_ne_bytes());
    }

    /// A request whose every field may be anything.
    fn ring(&self, choices: &mut Choices) {
        let Some(pair) = self.hostile.pair(0) else {
            return;
        };
        let mut packet = Packet {
            kernel: choices.below(8) as u32,
            inputs: choices.below(5) as u8,
            outputs: choices.below(4) as u8,
            ..Packet::default()
        };
        let used = usize::from(packet.inputs + packet.outputs).min(RANGES_MAX);
        for range in packet.ranges.iter_mut().take(used) {
            *range = match choices.below(4) {
                0 => (choices.bits(), choices.bits()),
                1 => (ARENA_BYTES - choices.below(0x100), choices.below(0x100)),
                _ => (
                    choices.below(ARENA_BYTES + 1),
                    choices.below(ARENA_BYTES + 1),
                ),
            };
        }
        let words = choices.below(WORDS as u64 + 1) as usize;
        for word in packet.words.iter_mut().take(words) {
            *word = match choices.below(4) {
                0 => choices.bits(),
                _ => choices.below(0x1_0000),
            };
        }
        pair.call.ring(choices.below(0x100) as u32, &packet);
    }

    /// A job whose every field may be anything, most of the time where the engine looks next.
    fn submit(&self, choices: &mut Choices) {
        let Some(jobs) = self.hostile.jobs() else {
            return;
        };
        let place = match choices.below(8) {
            0 => choices.bits() as usize & 0xffff,
            _ => choices.below(4) as usize,
        };
        let mut packet = JobPacket {
            kernel: choices.below(8) as u32,
            inputs: choices.below(18) as u8,
            outputs: choices.below(4) as u8,
            ..JobPacket::default()
        };
        for range in &mut packet.ranges {
            *range = match choices.below(4) {
                0 => (choices.bits(), choices.bits()),
                // A list of the right length, in an arena of any words.
                1 => (
                    8 * choices.below(64),
                    16 * packet_ranges(packet.inputs, packet.outputs),
                ),
                _ => (choices.below(0x400), choices.below(0x400)),
            };
        }
        for word in &mut packet.words[..choices.below(3) as usize] {
            *word = choices.below(0x1_0000);
        }
        if let Some(slot) = jobs.slot(place) {
            slot.ask(&packet);
            if choices.below(6) == 0 {
                slot.take_back();
            }
        }
        let position = match choices.below(8) {
            0 => choices.bits(),
            _ => self.hostile.heads.taken() + choices.below(2),
        };
        jobs.submitted.submit(position, place);
    }

    /// The honest client submits a job of five ranges, and gets its outcome and no other.
    #[expect(clippy::expect_used, reason = "what fails here is what is looked for")]
    fn submit_honestly(&mut self) {
        let jobs = self.honest.jobs().expect("the segment is long enough");
        let place = (self.jobs % JOBS) as usize;
        let slot = jobs.slot(place).expect("there is this place");
        // The list lies at the start of the arena: the pattern in five inputs, of which the kernel
        // takes the first.
        let list = layout::arena_offset(1);
        for index in 0..5 {
            let at = list + 16 * index;
            let segment = self.honest.segment();
            segment.write_at(at, &PATTERN_AT.to_ne_bytes());
            segment.write_at(at + 8, &(PATTERN.len() as u64).to_ne_bytes());
        }
        let mut packet = JobPacket {
            kernel: 3,
            inputs: 5,
            ..JobPacket::default()
        };
        packet.ranges[0] = (0, 80);
        slot.ask(&packet);
        jobs.submitted.submit(self.jobs, place);
        let mut rounds = 0;
        let completion = loop {
            if let Some(completion) = jobs.completed.completion(self.jobs) {
                break completion;
            }
            self.server.look();
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "an honest job is not done");
        };
        self.jobs += 1;
        assert_eq!(completion.place(), place);
        assert_eq!(completion.status(), Status::Done as u32, "{}", slot.text());
        assert_eq!(slot.reply()[0], xxhash(), "a wrong outcome");
        assert!(jobs.completed.completion(self.jobs).is_none());
    }

    /// The honest client asks, and is answered rightly.
    #[expect(clippy::expect_used, reason = "what fails here is what is looked for")]
    fn ask_honestly(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        let pair = self.honest.pair(0).expect("the segment is long enough");
        let mut packet = Packet {
            kernel: 3,
            inputs: 1,
            ..Packet::default()
        };
        packet.ranges[0] = (PATTERN_AT, PATTERN.len() as u64);
        pair.call.ring(self.sequence, &packet);
        let mut rounds = 0;
        while !pair.call.answered(self.sequence) {
            self.server.look();
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "an honest request is not answered");
        }
        let answer = pair.call.answer();
        assert_eq!(answer.status, Status::Done as u32, "{}", pair.call.text());
        let mut arena = [0; PATTERN.len()];
        let at = layout::arena_offset(1) + PATTERN_AT as usize;
        self.honest.segment().read_at(at, &mut arena);
        assert_eq!(arena, PATTERN, "somebody wrote to another's arena");
        assert_eq!(answer.words[0], xxhash(), "a wrong answer");
    }
}

/// Number of ranges that a packet names.
fn packet_ranges(inputs: u8, outputs: u8) -> u64 {
    u64::from(inputs) + u64::from(outputs)
}

/// Places for jobs.
const JOBS: u64 = JOBS_MAX as u64;

/// Answer that the honest request must get.
fn xxhash() -> u64 {
    xxhash_rust::xxh3::xxh3_64(&PATTERN)
}
