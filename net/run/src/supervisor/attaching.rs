//! Attaching to the engine, again after it was gone.
//!
//! Must stay true: nothing here blocks: a separate thread tries to attach.

use sidecore_net::sock::client::Client;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Attaches to the stack, for sessions outside of the loopback.
pub(crate) trait Attach: Send {
    /// Attaches to the stack, or again after it was gone.
    ///
    /// # Errors
    /// The reason, as text for the log.
    fn attach(&mut self) -> Result<Client, String>;
}

/// Attaches on a separate thread.
pub(super) struct Attaching {
    attach: Arc<Mutex<Box<dyn Attach>>>,
    answer: Option<mpsc::Receiver<Result<Client, String>>>,
}

impl Attaching {
    pub(super) fn new(attach: Box<dyn Attach>) -> Self {
        let attach = Arc::new(Mutex::new(attach));
        Self {
            attach,
            answer: None,
        }
    }

    /// The result of an attempt, once there is one; starts an attempt if none is running.
    pub(super) fn poll(&mut self) -> Option<Result<Client, String>> {
        if let Some(answer) = &self.answer {
            return match answer.try_recv() {
                Err(mpsc::TryRecvError::Empty) => None,
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.answer = None;
                    None
                }
                Ok(attached) => {
                    self.answer = None;
                    Some(attached)
                }
            };
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let attach = Arc::clone(&self.attach);
        let thread = std::thread::Builder::new().name("sidecore-attach".to_owned());
        let attaching = move || {
            let mut attach = attach.lock().unwrap_or_else(PoisonError::into_inner);
            // The receiver is gone if the supervisor has ended.
            sender.send(attach.attach()).ok();
        };
        // Without a thread, the next call tries again.
        thread.spawn(attaching).ok()?;
        self.answer = Some(receiver);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Fails each time, after it was let go on.
    struct Held(mpsc::Receiver<&'static str>);

    impl Attach for Held {
        fn attach(&mut self) -> Result<Client, String> {
            self.0
                .recv()
                .map_or(Err("over".into()), |why| Err(why.into()))
        }
    }

    fn answer(attaching: &mut Attaching) -> String {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            match attaching.poll() {
                Some(Err(why)) => return why,
                Some(Ok(_)) => panic!("there is no engine"),
                None => std::thread::yield_now(),
            }
        }
        panic!("no answer")
    }

    #[test]
    fn an_attempt_does_not_hold_its_caller_up() {
        let (go, held) = mpsc::channel();
        let mut attaching = Attaching::new(Box::new(Held(held)));
        // The first begins an attempt, and the others find it running.
        for _ in 0..3 {
            assert!(attaching.poll().is_none());
        }
        go.send("first").unwrap();
        assert_eq!(answer(&mut attaching), "first");
        // Each answer is taken once, and the next call begins anew.
        go.send("second").unwrap();
        assert_eq!(answer(&mut attaching), "second");
        drop(go);
        assert_eq!(answer(&mut attaching), "over");
    }

    /// Panics at the first attempt.
    struct Broken(bool);

    impl Attach for Broken {
        fn attach(&mut self) -> Result<Client, String> {
            assert!(std::mem::replace(&mut self.0, true), "as a bug would");
            Err("once more".into())
        }
    }

    #[test]
    fn an_attempt_that_dies_is_followed_by_another() {
        let mut attaching = Attaching::new(Box::new(Broken(false)));
        assert_eq!(answer(&mut attaching), "once more");
    }
}
