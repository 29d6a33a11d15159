//! Wait queue for engines: threads in the order of their arrival.
//!
//! Why here: an engine that is given back while threads wait goes to the thread that has waited
//! longest, before any other can see that it is idle. So no thread starves, however many come and
//! go. A thread joins only after it was counted as a waiter, and looks for an idle engine once more
//! as it joins. A thread that gives an engine back looks at the count after its engine was seen to
//! be idle, and then serves the queue. So no thread is left waiting while an engine is idle
//! (README.md, "No work is left lying").
//!
//! Must stay true: engines are handed out under the lock, to the head of the queue alone. A place
//! is reused only after its thread took the engine that it was given. Any thread; nothing is
//! allocated.

use crate::sync::{AtomicU32, Mutex, Ordering};
use crossbeam_utils::CachePadded;
use sidecore_bare::width::ToUsize;
use sidecore_sync::{EventCount, Private};
use std::collections::VecDeque;

/// Threads that wait for an engine, and what each is handed.
#[derive(Debug)]
pub(crate) struct WaitQueue {
    queue: Mutex<Queue>,
    places: Box<[CachePadded<Place>]>,
}

#[derive(Debug)]
struct Queue {
    /// Places of those that wait, the longest first.
    waiting: VecDeque<u32>,
    free: Vec<u32>,
}

/// One thread's place.
#[derive(Debug)]
struct Place {
    /// The engine that it was handed, from 1 on; 0 before.
    engine: AtomicU32,
    handed: EventCount<Private>,
}

/// Outcome of joining.
pub(crate) enum Joined {
    /// An engine was idle, and no other thread waited.
    Engine(usize),
    /// There is no place: too many wait.
    Full,
    /// A place in the queue, to be waited at by [`WaitQueue::wait`].
    Place(u32),
}

impl WaitQueue {
    /// A line for up to `places` threads.
    pub(crate) fn new(places: u32) -> Self {
        let place = |_| {
            CachePadded::new(Place {
                engine: AtomicU32::new(0),
                handed: EventCount::new(),
            })
        };
        Self {
            queue: Mutex::new(Queue {
                waiting: VecDeque::with_capacity(places.to_usize()),
                free: (0..places).rev().collect(),
            }),
            places: (0..places).map(place).collect(),
        }
    }

    /// Joins the queue; `claim` takes an idle engine if there is one.
    pub(crate) fn join(&self, claim: impl Fn() -> Option<usize>) -> Joined {
        let mut queue = self.queue.lock();
        if queue.waiting.is_empty()
            && let Some(engine) = claim()
        {
            return Joined::Engine(engine);
        }
        let Some(place) = queue.free.pop() else {
            self.serve_all(&mut queue, claim);
            return Joined::Full;
        };
        queue.waiting.push_back(place);
        self.serve_all(&mut queue, claim);
        Joined::Place(place)
    }

    /// Waits until this place is handed an engine: looks `spins` times, then sleeps.
    pub(crate) fn wait(&self, place: u32, spins: u32) -> usize {
        let own = &self.places[place.to_usize()];
        let engine = loop {
            // Acquire: partner of the Release in `hand`; the contents of the engine's core are
            // visible.
            let look = || match own.engine.load(Ordering::Acquire) {
                0 => None,
                number => Some(number.to_usize() - 1),
            };
            // Without a timeout the wait ends with a value; the loop is for the compiler.
            if let Some(engine) = own.handed.wait_until(spins, None, look) {
                break engine;
            }
        };
        // Relaxed: the lock orders this before the place is used again.
        own.engine.store(0, Ordering::Relaxed);
        self.queue.lock().free.push(place);
        engine
    }

    /// Hands a claimed engine to the thread that has waited longest; false where none waits.
    pub(crate) fn hand_over(&self, engine: usize) -> bool {
        let mut queue = self.queue.lock();
        match queue.waiting.pop_front() {
            None => false,
            Some(place) => {
                self.hand(place, engine);
                true
            }
        }
    }

    /// Hands idle engines, as `claim` takes them, to those that wait.
    pub(crate) fn serve(&self, claim: impl Fn() -> Option<usize>) {
        self.serve_all(&mut self.queue.lock(), claim);
    }

    fn serve_all(&self, queue: &mut Queue, claim: impl Fn() -> Option<usize>) {
        while let Some(&place) = queue.waiting.front()
            && let Some(engine) = claim()
        {
            queue.waiting.pop_front();
            self.hand(place, engine);
        }
    }

    fn hand(&self, place: u32, engine: usize) {
        let place = &self.places[place.to_usize()];
        // Release: partner of the Acquire in `wait`.
        place.engine.store(engine as u32 + 1, Ordering::Release);
        place.handed.notify_one();
    }

    /// Threads that wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().waiting.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn engines_go_to_those_that_came_first() {
        let queue = WaitQueue::new(3);
        let idle = std::cell::RefCell::new(vec![7]);
        let claim = || idle.borrow_mut().pop();
        assert!(matches!(queue.join(claim), Joined::Engine(7)));
        assert!(!queue.hand_over(1), "nobody waits");
        let places: Vec<u32> = (0..3)
            .map(|_| match queue.join(claim) {
                Joined::Place(place) => place,
                _ => panic!("no engine is idle"),
            })
            .collect();
        assert!(matches!(queue.join(claim), Joined::Full));
        assert!(queue.hand_over(4) && queue.len() == 2);
        *idle.borrow_mut() = vec![6, 5];
        // A new thread does not overtake those in the queue.
        assert!(matches!(queue.join(claim), Joined::Full));
        let handed: Vec<usize> = places.iter().map(|&place| queue.wait(place, 0)).collect();
        assert_eq!(handed, [4, 5, 6]);
        assert!(
            matches!(queue.join(claim), Joined::Place(_)),
            "places are free again"
        );
        queue.serve(|| Some(9));
        queue.serve(|| panic!("nobody waits"));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::claims::{Claims, Preferred};
    use loom::sync::Arc;

    /// Two threads want the engine that a third gives back, as `Shared` does it: each gets it once,
    /// one after the other, and it is idle in the end.
    #[test]
    fn nobody_is_left_waiting_beside_an_idle_engine() {
        struct Model {
            claims: Claims,
            waiters: AtomicU32,
            queue: WaitQueue,
            held: AtomicU32,
        }
        fn claim(model: &Model) -> Option<usize> {
            model.claims.claim(Preferred::Of(&[]))
        }
        fn give_back(model: &Model, engine: usize) {
            assert_eq!(model.held.fetch_sub(1, Ordering::Relaxed), 1);
            if model.waiters.load(Ordering::SeqCst) > 0 && model.queue.hand_over(engine) {
                return;
            }
            model.claims.release(engine);
            // A load in `Shared`; but loom lets a SeqCst load see an earlier value, which the one
            // order of all SeqCst operations forbids.
            if model.waiters.fetch_add(0, Ordering::SeqCst) > 0 {
                model.queue.serve(|| claim(model));
            }
        }
        fn take_and_give_back(model: &Model) {
            let engine = claim(model).unwrap_or_else(|| {
                model.waiters.fetch_add(1, Ordering::SeqCst);
                let engine = match model.queue.join(|| claim(model)) {
                    Joined::Engine(engine) => engine,
                    Joined::Place(place) => model.queue.wait(place, 0),
                    Joined::Full => panic!("there are places for all"),
                };
                model.waiters.fetch_sub(1, Ordering::SeqCst);
                engine
            });
            assert_eq!(model.held.fetch_add(1, Ordering::Relaxed), 0);
            give_back(model, engine);
        }
        let mut orders = loom::model::Builder::new();
        orders.preemption_bound = Some(2);
        orders.check(|| {
            let model = Arc::new(Model {
                claims: Claims::new(1),
                waiters: AtomicU32::new(0),
                queue: WaitQueue::new(2),
                held: AtomicU32::new(1),
            });
            assert_eq!(claim(&model), Some(0));
            let other = {
                let model = Arc::clone(&model);
                loom::thread::spawn(move || take_and_give_back(&model))
            };
            let third = {
                let model = Arc::clone(&model);
                loom::thread::spawn(move || take_and_give_back(&model))
            };
            give_back(&model, 0);
            assert!(other.join().is_ok() && third.join().is_ok());
            assert_eq!(model.claims.idle_count(), 1);
        });
    }
}
