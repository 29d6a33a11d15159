//! Network namespaces of the kernel that no other program sees and that end with us.
//!
//! Why here: peers need interfaces, and the bench must not touch this machine's own. A namespace
//! lives as long as a thread in it and the programs that the thread started, so that nothing is
//! left behind, however we end. Must stay true: programs that are started in one are ended before
//! it is dropped. Source: network_namespaces(7).

use super::BenchError;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace, with a thread in it that runs closures.
pub(crate) struct Namespace {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    number: i32,
}

impl Namespace {
    /// A namespace with nothing but a loopback, which is down.
    ///
    /// # Errors
    /// [`BenchError::Missing`] without the privilege.
    pub(super) fn new() -> Result<Self, BenchError> {
        let (jobs, todo) = channel::<Job>();
        let (tell, told) = channel();
        let thread = std::thread::Builder::new().name("bench-network".into());
        let thread = thread.spawn(move || {
            let left = sidecore_sys::namespace::leave_network();
            let number = rustix::thread::gettid().as_raw_nonzero().get();
            let failed = left.is_err();
            if tell.send(left.map(|()| number)).is_err() || failed {
                return;
            }
            for job in todo {
                job();
            }
        });
        let thread = thread.map_err(BenchError::io("start a thread"))?;
        let number = match told.recv() {
            Ok(Ok(number)) => number,
            Ok(Err(error)) => {
                return Err(BenchError::Missing(format!(
                    "interfaces of its own need root ({error})"
                )));
            }
            Err(_) => return Err(ended()),
        };
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            number,
        })
    }

    /// Number of its thread, by which `ip link` names it as the place of an interface.
    pub(super) fn number(&self) -> i32 {
        self.number
    }

    /// Runs a closure in it, and waits until it is done.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BenchError> {
        let (tell, told) = channel();
        let job = move || {
            // The caller waits for it.
            tell.send(job()).ok();
        };
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(Box::new(job)));
        sent.and_then(Result::ok).ok_or_else(ended)?;
        told.recv().map_err(|_| ended())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It only ends early by a panic, which its caller has already reported.
            thread.join().ok();
        }
    }
}

fn ended() -> BenchError {
    BenchError::Wrong("the thread of a network namespace ended".into())
}
