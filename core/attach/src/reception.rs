//! Connections of a listener that each have a thread: their numbers, and the ends of those that
//! wait for too long or in too great a number ([`Admission`]).
//!
//! Why here: such servers differ in their protocol, not in their admission. Must stay true: nothing
//! here waits for a client; a connection is ended by shutting it down, and its thread closes it.
//! Any thread.

use crate::{Admission, AdmissionLimits, Arrival};
use parking_lot::Mutex;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The connections of a listener. `S` is a socket, `P` identifies a peer.
#[derive(Debug)]
pub struct Reception<P, S> {
    begun: Instant,
    state: Mutex<State<P, S>>,
}

#[derive(Debug)]
struct State<P, S> {
    admission: Admission<P>,
    /// Those that have not introduced themselves.
    waiting: BTreeMap<u64, Arc<S>>,
    last_id: u64,
}

impl<P: Clone + Ord, S: AsFd> Reception<P, S> {
    /// No connections. The limit of silence is each thread's own to keep.
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> Self {
        Self {
            begun: Instant::now(),
            state: Mutex::new(State {
                admission: Admission::new(limits),
                waiting: BTreeMap::new(),
                last_id: 0,
            }),
        }
    }

    /// The number of a new connection, from 1 on; none where there is no room for it: then it must
    /// be closed. Room is kept for preferred peers.
    pub fn arrive(&self, socket: &Arc<S>, peer: P, is_preferred: bool) -> Option<u64> {
        let now = self.begun.elapsed();
        let mut state = self.state.lock();
        let id = state.last_id + 1;
        match state.admission.arrive(id, peer, is_preferred, now) {
            Arrival::Admitted => {}
            Arrival::Replaces(victim) => state.end(victim),
            Arrival::Refused => return None,
        }
        state.last_id = id;
        state.waiting.insert(id, Arc::clone(socket));
        Some(id)
    }

    /// A connection has introduced itself. False where it has no place among those that are served:
    /// it is to be closed.
    #[must_use]
    pub fn introduce(&self, id: u64) -> bool {
        let mut state = self.state.lock();
        state.waiting.remove(&id);
        state.admission.introduce(id)
    }

    /// A connection is over.
    pub fn leave(&self, id: u64) {
        let mut state = self.state.lock();
        state.waiting.remove(&id);
        state.admission.leave(id);
    }

    /// Connections that are served.
    #[must_use]
    pub fn served(&self) -> usize {
        self.state.lock().admission.served()
    }

    /// True if a connection has not introduced itself, or its place has become another's.
    #[must_use]
    pub fn is_unintroduced(&self, id: u64) -> bool {
        let state = self.state.lock();
        state.waiting.contains_key(&id) || !state.admission.knows(id)
    }

    /// Ends all connections that have not introduced themselves.
    pub fn end_waiting(&self) {
        let mut state = self.state.lock();
        let waiting: Vec<u64> = state.waiting.keys().copied().collect();
        waiting.into_iter().for_each(|id| state.end(id));
    }

    /// Goes on after an error of accept(2), unless it is one for good. Where the process has run
    /// out of something, a silent connection is ended, and its thread has a tenth of a second to
    /// close it.
    ///
    /// # Errors
    /// One that will come again.
    pub fn could_not_accept(&self, error: std::io::Error) -> std::io::Result<()> {
        match Errno::from_io_error(&error) {
            // The peer has disconnected, or nothing is queued.
            Some(
                Errno::AGAIN
                | Errno::INTR
                | Errno::CONNABORTED
                | Errno::PROTO
                | Errno::PERM
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH,
            ) => Ok(()),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                let mut state = self.state.lock();
                if let Some(victim) = state.admission.evict() {
                    state.end(victim);
                }
                drop(state);
                // Its thread closes it, or another one ends.
                std::thread::sleep(ACCEPT_PAUSE);
                Ok(())
            }
            _ => Err(error),
        }
    }
}

impl<P, S: AsFd> State<P, S> {
    /// Ends a connection that has not introduced itself; its thread does the rest.
    fn end(&mut self, id: u64) {
        if let Some(socket) = self.waiting.remove(&id) {
            // It fails where the peer was faster.
            shutdown(&*socket, Shutdown::Both).ok();
        }
    }
}

/// Time for a descriptor or memory to come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, Arc<UnixStream>) {
        let (far, near) = UnixStream::pair().unwrap();
        (far, Arc::new(near))
    }

    fn is_ended(far: &mut UnixStream) -> bool {
        far.set_nonblocking(true).unwrap();
        matches!(far.read(&mut [0]), Ok(0))
    }

    #[test]
    fn who_crowds_the_door_is_ended_and_who_is_served_is_not() {
        let reception = Reception::new(AdmissionLimits {
            waiting_max: 3,
            peer_waiting_max: 2,
            served_max: 1,
            ..AdmissionLimits::default()
        });
        let mut pairs: Vec<_> = (0..4).map(|_| pair()).collect();
        for (index, (_, near)) in pairs.iter().enumerate() {
            let id = reception.arrive(near, 7, false).unwrap();
            assert_eq!(id, index as u64 + 1);
            if id == 1 {
                assert!(reception.introduce(1));
            }
        }
        let ended: Vec<bool> = pairs.iter_mut().map(|(far, _)| is_ended(far)).collect();
        assert_eq!(ended, [false, true, false, false]);
        assert!(reception.is_unintroduced(2) && reception.is_unintroduced(3));
        assert!(!reception.is_unintroduced(1));
        assert!(!reception.introduce(3), "one is served already");
        reception.leave(1);
        assert!(reception.introduce(4));
        assert_eq!(reception.served(), 1);
        let (mut far, near) = pair();
        reception.arrive(&near, 7, false).unwrap();
        reception.end_waiting();
        assert!(is_ended(&mut far) && !is_ended(&mut pairs[3].0));
    }

    #[test]
    fn without_descriptors_a_silent_one_makes_room() {
        let reception = Reception::new(AdmissionLimits::default());
        let (mut far, near) = pair();
        reception.arrive(&near, (), true).unwrap();
        let refused = |error: Errno| reception.could_not_accept(error.into());
        refused(Errno::CONNABORTED).unwrap();
        assert!(!is_ended(&mut far));
        refused(Errno::MFILE).unwrap();
        assert!(is_ended(&mut far));
        refused(Errno::INVAL).unwrap_err();
    }
}
