//! An engine's turn with a client's jobs.
//!
//! Why here: a job is a turn like any other: its client, its cost and its user's limit are handled
//! by the same books as requests. The difference: every engine takes from the same ring, so another
//! may have been quicker. Must stay true: of a job only a copy is used; one that its client took
//! back is handed back unread; nothing waits.

use super::super::tracks;
use super::{Recent, Seat, Server, Turn};
use crate::served::{Memory, Origin, Registry, Reply, Request};
use crate::shm::layout::{Jobs, Status};
use crate::shm::ring::{JOB_RANGES_MAX, JobSlot};
use crate::shm::session::Session;
use sidecore_bare::width::ToUsize;
use sidecore_engine::Core;
use sidecore_sys::{SharedSlice, clock};
use std::sync::atomic::{AtomicU32, Ordering};

impl Server {
    /// True if a job of this client has the turn: where no request asks, or it had the last one.
    #[inline]
    pub(super) fn is_for_job(&mut self, turn: Turn) -> bool {
        let engine = self.engine;
        let Seat {
            session,
            seen,
            had_job,
            ..
        } = &mut self.seats[turn.seat];
        let rung = session.pair(engine).and_then(|pair| pair.call.rung(*seen));
        let is_for_job = (rung.is_none() || !*had_job) && session.has_job();
        *had_job = is_for_job;
        is_for_job
    }

    /// Serves a job of a client, if no other engine was quicker.
    pub(super) fn serve_job(&mut self, turn: Turn) {
        let session = &*self.seats[turn.seat].session;
        let Some(jobs) = session.jobs() else {
            return;
        };
        // Counted before it is taken: a taken job must be done.
        let serving = session.load.as_ref().map(|load| load.begin());
        if serving.as_ref().is_some_and(Option::is_none) {
            return;
        }
        let Some(place) = session.heads.take(jobs.submitted) else {
            return;
        };
        let began = clock::cycles();
        self.bench.begun_cycles.store(began, Ordering::Relaxed);
        // Relaxed: only this thread writes it.
        let count = self.bench.calls.load(Ordering::Relaxed) as u32;
        self.activity.serve(self.engine, session.client, count);
        let job = sidecore_trace::span(&tracks::JOB, session.peer.pid.unsigned_abs().into(), 0);
        let failed = run(
            &mut self.core,
            &self.registry,
            (session, self.engine),
            jobs,
            place,
            &self.bench.kernel,
        );
        drop(job);
        drop(serving);
        self.activity.rest(self.engine, count);
        // In its turn: a client that asks to be woken at every job pays for it.
        session.tell_of_job(jobs);
        let ended = clock::cycles();
        let Seat { account, user, .. } = &mut self.seats[turn.seat];
        let user = &mut self.users[*user];
        self.turns.served(turn, user, account, began, ended);
        self.count(turn.seat, ended.wrapping_sub(began), failed);
        // Its next job waits in the ring already; nothing is won by leaving it alone.
        self.recent = Recent::not_left_alone(turn.seat);
    }
}

/// Runs the job of a place and completes it; true if it failed.
fn run(
    core: &mut Core,
    registry: &Registry,
    (session, engine): (&Session, usize),
    jobs: Jobs<'_>,
    place: usize,
    kernel: &AtomicU32,
) -> bool {
    let Some(slot) = jobs.slot(place) else {
        return true; // No such place: a client that writes rubbish, and gets no answer.
    };
    let status = if slot.begin() {
        answer(core, registry, (session, engine), slot, kernel)
    } else {
        Status::TakenBack
    };
    session.heads.complete(jobs.completed, place, status as u32);
    !matches!(status, Status::Done | Status::TakenBack)
}

/// Runs a job that was begun and writes its answer.
fn answer(
    core: &mut Core,
    registry: &Registry,
    (session, engine): (&Session, usize),
    slot: &JobSlot,
    kernel: &AtomicU32,
) -> Status {
    let packet = slot.packet();
    kernel.store(packet.kernel, Ordering::Relaxed);
    let Some(entry) = registry.entry(packet.kernel.to_usize()) else {
        session.note_failure(None, Status::UnknownKernel, None);
        slot.answer(&Reply::default().words, "");
        return Status::UnknownKernel;
    };
    let mut stretches = [SharedSlice::EMPTY; JOB_RANGES_MAX];
    if let Err(status) = session.stretches(&packet, &mut stretches) {
        session.note_failure(Some(entry.name), status, None);
        slot.answer(&Reply::default().words, "");
        return status;
    }
    let memory = Memory::of_job(
        &stretches[..packet.used()],
        usize::from(packet.inputs),
        &session.gone,
        Some(slot.state()),
    )
    .from(Origin::new(session, engine));
    let request = Request {
        words: packet.words,
    };
    match (entry.engine)(core, &request, &memory) {
        Ok(reply) => {
            slot.answer(&reply.words, "");
            Status::Done
        }
        Err(error) => {
            let text = error.to_string();
            session.note_failure(Some(entry.name), Status::Failed, Some(&text));
            slot.answer(&Reply::default().words, &text);
            Status::Failed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::DaemonOptions;
    use super::super::super::roster::{Cores, Roster};
    use super::super::Bench;
    use super::*;
    use crate::shm::activity::ActivityPage;
    use crate::shm::layout;
    use crate::shm::load::UserLoad;
    use crate::shm::ring::JobPacket;
    use crate::shm::session::Names;
    use sidecore_attach::Segment;
    use sidecore_engine::CoreOptions;
    use sidecore_sys::local_socket::Peer;
    use sidecore_sys::{SharedMap, Sharing};
    use std::sync::Arc;

    fn session(client: u32, uid: u32) -> Session {
        let peer = Peer {
            pid: 1,
            uid,
            gid: uid,
        };
        let names = Names {
            client,
            serial: u64::from(client),
            peer,
        };
        let bytes = layout::segment_bytes(1, 4096).unwrap();
        let map = SharedMap::create("test", bytes, Sharing::ReadWrite).unwrap();
        Session::new(names, 1, 4096, Segment::uncharged(map))
    }

    fn server(sessions: &[&Arc<Session>]) -> Server {
        let roster = Arc::new(Roster::default());
        let core = Core::new(CoreOptions::default()).unwrap();
        let activity = Arc::new(ActivityPage::new(&[0]).unwrap());
        let bench = Arc::new(Bench::new(0));
        let options = DaemonOptions::default();
        roster.set(
            sessions
                .iter()
                .map(|&session| Arc::clone(session))
                .collect(),
        );
        Server::new(0, core, &options, activity, roster, bench, false).unwrap()
    }

    /// Submits jobs of `empty` in the first places.
    fn submit(session: &Session, count: usize) {
        let jobs = session.jobs().unwrap();
        for place in 0..count {
            jobs.slot(place).unwrap().ask(&JobPacket::default());
            jobs.submitted.submit(place as u64, place);
        }
    }

    fn completed(session: &Session) -> u64 {
        let ring = session.jobs().unwrap().completed;
        (0..)
            .take_while(|&at| ring.completion(at).is_some())
            .count() as u64
    }

    #[test]
    fn many_jobs_of_one_client_do_not_go_before_the_first_of_another() {
        for uids in [(7, 7), (7, 8)] {
            let (many, few) = (session(0, uids.0), session(1, uids.1));
            let (many, few) = (Arc::new(many), Arc::new(few));
            submit(&many, 500);
            submit(&few, 1);
            let mut server = server(&[&many, &few]);
            // It may look out for another client for a moment.
            while completed(&few) == 0 {
                assert!(server.look());
            }
            assert!(completed(&many) <= 1, "{}", completed(&many));
            while completed(&many) < 500 {
                assert!(server.look());
            }
            assert!(!server.look());
        }
    }

    #[test]
    fn a_users_limit_counts_jobs() {
        let load = Arc::new(UserLoad::new(1));
        let session = Arc::new(session(0, 7).limited(Some(Arc::clone(&load))));
        submit(&session, 2);
        let mut server = server(&[&session]);
        // Another engine serves a request of this user.
        let elsewhere = load.begin().unwrap();
        assert!(!server.look() && !server.look());
        assert_eq!(completed(&session), 0);
        drop(elsewhere);
        assert!(server.look() && server.look() && !server.look());
        assert_eq!(completed(&session), 2);
    }

    #[test]
    fn requests_and_jobs_of_a_client_take_turns() {
        let session = Arc::new(session(0, 7));
        submit(&session, 10);
        let mut server = server(&[&session]);
        let call = session.pair(0).unwrap().call;
        for sequence in 1..=3 {
            call.ring(sequence, &Default::default());
            let before = completed(&session);
            while !call.answered(sequence) {
                assert!(server.look());
            }
            assert!(completed(&session) - before <= 1);
        }
        while server.look() {}
        assert_eq!(completed(&session), 10);
    }

    #[test]
    fn an_engine_without_time_of_its_own_does_not_poll() {
        let session = Arc::new(session(0, 7));
        let mut server = server(&[&session]);
        server.look();
        assert!(server.grace_cycles > 0 && !server.shares_core);
        let cores = |pollers, is_shared| Cores {
            cpus: vec![],
            pollers,
            is_shared,
            is_wanted: false,
        };
        server.roster.set_cores(cores(Some(0), true));
        server.look();
        assert!(server.grace_cycles == 0 && server.shares_core);
        server.roster.set_cores(cores(None, false));
        server.look();
        assert!(server.grace_cycles > 0 && !server.shares_core);
        // Others wait for cores: for a short time only, and as before once they do not.
        let usual_cycles = server.grace_cycles;
        server.roster.set_cores(Cores {
            is_wanted: true,
            ..cores(None, false)
        });
        server.look();
        assert_eq!(server.grace_cycles, server.wanted_cycles.min(usual_cycles));
        assert!(
            server.grace_cycles < usual_cycles,
            "the usual time is longer"
        );
        server.roster.set_cores(cores(None, false));
        server.look();
        assert_eq!(server.grace_cycles, usual_cycles);
    }

    #[test]
    fn rubbish_in_a_slot_is_refused() {
        let session = Arc::new(session(0, 7));
        let jobs = session.jobs().unwrap();
        let mut bad = [JobPacket::default(); 6];
        bad[0].kernel = 999;
        (bad[1].inputs, bad[1].outputs) = (255, 255);
        // A list beyond the arena, of the wrong length, not at a word.
        (bad[2].inputs, bad[2].ranges[0]) = (16, (4090, 256));
        (bad[3].inputs, bad[3].ranges[0]) = (16, (0, 255));
        (bad[4].inputs, bad[4].ranges[0]) = (16, (4, 256));
        bad[5].inputs = 17;
        for (place, packet) in bad.iter().enumerate() {
            jobs.slot(place).unwrap().ask(packet);
            jobs.submitted.submit(place as u64, place);
        }
        // One that is right, a place that there is not, and one that was taken back.
        let right = JobPacket {
            inputs: 16,
            ranges: [(0, 256); 4],
            ..JobPacket::default()
        };
        jobs.slot(6).unwrap().ask(&right);
        jobs.submitted.submit(6, 6);
        jobs.submitted.submit(7, usize::from(u16::MAX));
        jobs.slot(7).unwrap().ask(&right);
        assert!(jobs.slot(7).unwrap().take_back());
        jobs.submitted.submit(8, 7);
        let mut server = server(&[&session]);
        while server.look() {}
        let statuses: Vec<u32> = (0..9)
            .filter_map(|at| jobs.completed.completion(at))
            .map(|completion| completion.status())
            .collect();
        assert_eq!(statuses, [1, 2, 2, 2, 2, 2, 0, 4]);
    }
}
