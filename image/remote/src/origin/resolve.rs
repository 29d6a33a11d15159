//! Addresses of hosts, each looked up on a thread of its own.
//!
//! Why here: the HTTP library's own resolver panics if no thread can be started.
//! Must stay true: every lookup is answered; if no thread can be started, the calling thread does
//! the lookup itself.

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Resolves names through the system (`getaddrinfo`).
pub(super) struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let question = Arc::new(Question::default());
        let (asked, host) = (Arc::clone(&question), name.as_str().to_owned());
        let thread = std::thread::Builder::new().name("resolve".to_owned());
        // Blocks the client's own thread then: slower for all requests, but they go on.
        if thread.spawn(move || asked.answer(look_up(&host))).is_err() {
            question.answer(look_up(name.as_str()));
        }
        Box::pin(Answer(question))
    }
}

fn look_up(host: &str) -> io::Result<Vec<SocketAddr>> {
    // The library sets the URL's port.
    Ok((host, 0).to_socket_addrs()?.collect())
}

#[derive(Default)]
struct Question(Mutex<State>);

#[derive(Default)]
struct State {
    answer: Option<io::Result<Vec<SocketAddr>>>,
    waker: Option<Waker>,
}

impl Question {
    fn answer(&self, answer: io::Result<Vec<SocketAddr>>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.answer = Some(answer);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// The future of a lookup's answer.
struct Answer(Arc<Question>);

impl Future for Answer {
    type Output = Result<Addrs, Box<dyn std::error::Error + Send + Sync>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.answer.take() {
            Some(answer) => Poll::Ready(match answer {
                Ok(addresses) => Ok(Box::new(addresses.into_iter())),
                Err(error) => Err(error.into()),
            }),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
