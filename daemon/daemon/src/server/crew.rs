//! The engines' threads: started, replaced where a kernel does not return, ended.
//!
//! A thread that runs a kernel cannot be interrupted: the kernel may hold any lock. If its client
//! has disconnected, the answer is useless, and all other clients wait behind it. So a new thread
//! takes over the engine, on the same core and with a local store of its own, and the old one is
//! left behind: it gets the core only when no other thread wants it, and ends once its kernel
//! returns.
//!
//! ```text
//! serving ── its client is gone for LEFT_AFTER ──► marked ──┬─ still at that request, a look later
//!    ▲                                                      ├─ returned, and ended
//!    └───────────────── a new thread ◄──────────────────────┘
//! ```
//!
//! Must stay true: of two threads of one engine only the later one takes requests. A marked thread
//! takes none: it looks at its mark after every request, before the next one (`Server::run`). Its
//! successor starts only once it has ended, or has been seen at one request in two looks that both
//! came after the mark. When its kernel returns, it may still write to the memory of a session that
//! is over, to its own figures, and to one word of the activity page that is advice to clients. The
//! control thread only.

use super::DaemonOptions;
use super::engine::{Bench, Server};
use super::error::DaemonError;
use super::roster::Roster;
use crate::shm::activity::ActivityPage;
use sidecore_bare::width::ToUsize;
use sidecore_engine::Core;
use sidecore_sys::cpu;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// All engines of a daemon.
pub(crate) struct Crew {
    options: DaemonOptions,
    activity: Arc<ActivityPage>,
    roster: Arc<Roster>,
    shares_core: bool,
    posts: Vec<Post>,
    left: Vec<Left>,
}

/// An engine, and the thread that it has now.
struct Post {
    bench: Arc<Bench>,
    thread: JoinHandle<()>,
    watched: Watched,
}

/// Observations of an engine whose client has disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// Nothing is amiss.
    Well,
    /// It is at the request that began at this cycle, whose client disconnected at `since`.
    Orphaned { begun: u64, since: Instant },
    /// Its thread takes no more requests; `begun` is its request at the last look.
    Marked { begun: u64 },
}

/// A thread that was left behind.
struct Left {
    engine: usize,
    bench: Arc<Bench>,
    thread: JoinHandle<()>,
}

/// An engine whose kernel did not return in time.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Running {
    /// The engine.
    pub engine: usize,
    /// The kernel that it runs, where it is known.
    pub kernel: Option<&'static str>,
}

impl Crew {
    /// Starts an engine on each of these cores.
    pub(crate) fn start(
        options: &DaemonOptions,
        activity: &Arc<ActivityPage>,
        roster: &Arc<Roster>,
        cpus: &[usize],
        shares_core: bool,
    ) -> Result<Self, DaemonError> {
        let mut crew = Self {
            options: options.clone(),
            activity: Arc::clone(activity),
            roster: Arc::clone(roster),
            shares_core,
            posts: Vec::with_capacity(cpus.len()),
            left: Vec::new(),
        };
        for (engine, &cpu) in cpus.iter().enumerate() {
            let bench = Arc::new(Bench::new(cpu));
            let started = crew
                .server(engine, &bench)
                .and_then(|server| spawn(engine, options.stack_bytes, move || server.run()));
            let thread = match started {
                Ok(thread) => thread,
                Err(error) => {
                    crew.roster.end();
                    crew.end(Duration::ZERO);
                    return Err(error);
                }
            };
            crew.posts.push(Post {
                bench,
                thread,
                watched: Watched::Well,
            });
        }
        Ok(crew)
    }

    fn server(&self, engine: usize, bench: &Arc<Bench>) -> Result<Server, DaemonError> {
        Server::new(
            engine,
            Core::new(self.options.core)?,
            &self.options,
            Arc::clone(&self.activity),
            Arc::clone(&self.roster),
            Arc::clone(bench),
            self.shares_core,
        )
    }

    /// The engines' figures.
    pub(crate) fn benches(&self) -> impl ExactSizeIterator<Item = &Arc<Bench>> {
        self.posts.iter().map(|post| &post.bench)
    }

    /// Number of engines.
    pub(crate) fn len(&self) -> usize {
        self.posts.len()
    }

    /// An engine whose thread ended without being asked to.
    pub(crate) fn broken(&self) -> Option<usize> {
        let is_broken = |post: &Post| post.bench.broken.load(Ordering::Relaxed);
        self.posts.iter().position(is_broken)
    }

    /// True if an engine is at a request whose client has disconnected.
    pub(crate) fn is_orphaned(&self, engine: usize) -> bool {
        let post = self.posts.get(engine);
        post.is_some_and(|post| post.watched != Watched::Well)
    }

    /// Threads that an engine has left behind and that are still at their requests.
    pub(crate) fn left_behind(&self, engine: usize) -> usize {
        self.left
            .iter()
            .filter(|left| left.engine == engine)
            .count()
    }

    /// Looks for engines that serve a client that has disconnected, and replaces their threads
    /// after a while. `is_attached` identifies clients by their numbers. To be called once a tick.
    pub(crate) fn look(&mut self, is_attached: impl Fn(u32) -> bool) {
        self.left.retain(|left| !left.thread.is_finished());
        for engine in 0..self.posts.len() {
            let serving = self.activity.serving(engine);
            let is_orphaned = serving.is_some_and(|client| !is_attached(client));
            self.look_at(engine, is_orphaned);
        }
    }

    fn look_at(&mut self, engine: usize, is_orphaned: bool) {
        let post = &mut self.posts[engine];
        // Its server could not be built, for lack of memory, say: clients would wait for it for
        // ever. One that panicked ends the daemon.
        if post.thread.is_finished() && !post.bench.broken.load(Ordering::Relaxed) {
            self.replace(engine);
            return;
        }
        let begun = post.bench.begun_cycles.load(Ordering::Relaxed);
        let now = Instant::now();
        match post.watched {
            Watched::Marked { begun: before } => {
                // A thread that is asleep or between requests ends by itself, soon.
                let is_stuck = begun != 0 && begun == before;
                post.watched = Watched::Marked { begun };
                if is_stuck {
                    self.replace(engine);
                }
            }
            _ if !is_orphaned || begun == 0 => post.watched = Watched::Well,
            Watched::Orphaned {
                begun: before,
                since,
            } if before == begun => {
                if now.duration_since(since) >= LEFT_AFTER && self.left.len() < LEFT_MAX {
                    post.bench.abandoned.store(true, Ordering::Relaxed);
                    // Publishes the mark: it is looked at where the generation has changed.
                    self.roster.announce();
                    post.watched = Watched::Marked { begun: 0 };
                }
            }
            _ => post.watched = Watched::Orphaned { begun, since: now },
        }
    }

    /// Gives an engine a new thread. Where there is none to be had, it is tried again.
    fn replace(&mut self, engine: usize) {
        let bench = Arc::new(self.posts[engine].bench.successor());
        // The kernels' states are made anew by the new thread: code of a loaded object that does
        // not return from there either takes that thread alone.
        let (options, activity) = (self.options.clone(), Arc::clone(&self.activity));
        let (roster, shares_core) = (Arc::clone(&self.roster), self.shares_core);
        let (own, stack_bytes) = (Arc::clone(&bench), options.stack_bytes);
        let run = move || {
            let core = Core::new(options.core).map_err(DaemonError::from);
            let server = core.and_then(|core| {
                Server::new(engine, core, &options, activity, roster, own, shares_core)
            });
            // Without memory for it this thread ends, and the next look starts another.
            if let Ok(server) = server {
                server.run();
            }
        };
        let Ok(thread) = spawn(engine, stack_bytes, run) else {
            return;
        };
        let post = Post {
            bench,
            thread,
            watched: Watched::Well,
        };
        let old = std::mem::replace(&mut self.posts[engine], post);
        let count = old.bench.calls.load(Ordering::Relaxed) as u32;
        self.activity.rest(engine, count.wrapping_add(1));
        if !old.thread.is_finished() {
            // A refusal costs the engine's speed.
            cpu::run_last(old.bench.thread.load(Ordering::Relaxed)).ok();
            self.left.push(Left {
                engine,
                bench: old.bench,
                thread: old.thread,
            });
        }
    }

    /// Waits for the threads, `limit` at most for those whose kernels do not return; those are left
    /// to the process's end. The roster has ended.
    pub(crate) fn end(self, limit: Duration) -> Vec<Running> {
        let entries = self.options.registry.entries();
        let posts = self.posts.into_iter().enumerate();
        let posts = posts.map(|(engine, post)| (engine, post.bench, post.thread));
        let left = self.left.into_iter();
        let left = left.map(|left| (left.engine, left.bench, left.thread));
        let mut threads: Vec<_> = posts.chain(left).collect();
        let begun = Instant::now();
        loop {
            threads.retain(|(_, _, thread)| !thread.is_finished());
            let is_running = |bench: &Bench| bench.begun_cycles.load(Ordering::Relaxed) != 0;
            let waited = begun.elapsed();
            // One between two requests needs a core for a moment, which a busy machine may not have
            // at once.
            let are_stuck = threads.iter().all(|(_, bench, _)| is_running(bench));
            if threads.is_empty() || waited >= limit && (are_stuck || waited >= 8 * limit) {
                break;
            }
            std::thread::sleep(END_LOOK);
        }
        let running = threads.into_iter().map(|(engine, bench, _)| {
            let number = bench.kernel.load(Ordering::Relaxed).to_usize();
            Running {
                engine,
                kernel: entries.get(number).map(|entry| entry.name),
            }
        });
        running.collect()
    }
}

fn spawn(
    engine: usize,
    stack_bytes: usize,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, DaemonError> {
    let mut builder = std::thread::Builder::new().name(format!("engine-{engine}"));
    if stack_bytes > 0 {
        builder = builder.stack_size(stack_bytes);
    }
    builder
        .spawn(run)
        .map_err(|source| DaemonError::Thread { source })
}

/// The time that a kernel has after its client has disconnected. Kernels that check for it return
/// within a millisecond; others need the time of their work.
const LEFT_AFTER: Duration = Duration::from_millis(200);
/// The most threads that are left behind at once: each has a local store and its client's segment.
/// With as many, engines that get stuck stay so until one of them returns.
const LEFT_MAX: usize = 32;
const END_LOOK: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_engine::CoreOptions;

    fn eventually(what: &str, condition: impl Fn() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
            std::thread::sleep(END_LOOK);
        }
    }

    #[test]
    fn an_engine_whose_server_could_not_be_built_gets_one_later() {
        let too_small = CoreOptions {
            store_bytes: 4096,
            ..CoreOptions::default()
        };
        let roster = Arc::new(Roster::default());
        let mut crew = Crew {
            options: DaemonOptions {
                core: too_small,
                ..DaemonOptions::default()
            },
            activity: Arc::new(ActivityPage::new(&[0]).unwrap()),
            roster: Arc::clone(&roster),
            shares_core: true,
            posts: vec![Post {
                bench: Arc::new(Bench::new(0)),
                thread: spawn(0, 0, || {}).unwrap(),
                watched: Watched::Well,
            }],
            left: Vec::new(),
        };
        for _ in 0..3 {
            let post = &crew.posts[0];
            eventually("no server", || post.thread.is_finished());
            crew.look(|_| true);
        }
        eventually("no server", || crew.posts[0].thread.is_finished());
        crew.options.core = CoreOptions::default();
        crew.look(|_| true);
        eventually("it serves", || {
            crew.posts[0].bench.thread.load(Ordering::Relaxed) != 0
        });
        crew.look(|_| true);
        assert!(!crew.posts[0].thread.is_finished() && crew.left.is_empty());
        roster.end();
        assert!(crew.end(Duration::from_secs(60)).is_empty());
    }
}
