//! One page in the browser: the live servers of this machine, and trees.
//!
//! - [`Page`]: the page while it is served; [`Options`], its contents;
//! - [`Address`]: a port of the loopback, or a local socket;
//! - `guard`: the decision about a request; `serve`: connections and answers, and
//!   the page's own files, in the folder `page`;
//! - `record`, `curve`: the last minutes of each server; `observed`: what servers say of
//!   themselves.
//!
//! Why here: the servers of all products describe themselves in one form, and this crate shows
//! them. It knows none of them. Must stay true: nothing is written, and no server is changed. No
//! request is answered without the token, and nothing is fetched from elsewhere. The room is
//! bounded by constants, however long the page is open and whatever servers and clients send.
//! Threads: one takes samples, one serves.
//!
//! ```
//! use sidecore_ui::{Options, Page};
//! use std::io::{Read, Write};
//!
//! let options = Options {
//!     // The live servers are `Options::default`'s; here none.
//!     source: Box::new(Vec::new),
//!     ..Options::default()
//! };
//! let page = Page::start(options)?;
//! // A port alone opens nothing.
//! let port = page.url().split(['/', '?']).nth(2).unwrap_or_default().to_owned();
//! let mut stream = std::net::TcpStream::connect(&port)?;
//! write!(stream, "GET / HTTP/1.1\r\nHost: {port}\r\nConnection: close\r\n\r\n")?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer)?;
//! assert!(answer.starts_with("HTTP/1.1 403"));
//! page.stopper().stop();
//! page.wait();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod curve;
mod guard;
mod listen;
mod observed;
mod record;
mod serve;

pub use listen::{Address, UiError};

use guard::Token;
use listen::Listener;
use parking_lot::{Condvar, Mutex};
use record::Record;
use serve::{Connections, Contents};
use sidecore_attach::ServerSocket;
use sidecore_status::{Server, Whose};
use sidecore_sys::local_socket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The live servers. May block for a second.
pub type Source = Box<dyn FnMut() -> Vec<Server> + Send>;

/// The contents of a page.
pub struct Options {
    /// Its address.
    pub address: Address,
    /// Asked once in each `period`.
    pub source: Source,
    /// Time between two samples.
    pub period: Duration,
    /// A tree that the page shows from the start: its name, and its text in Newick format.
    pub tree: Option<(String, String)>,
}

impl Default for Options {
    /// A free port of 127.0.0.1, a sample each second of this user's servers, for root of all
    /// users', no tree.
    fn default() -> Self {
        Self {
            address: Address::default(),
            source: Box::new(|| sidecore_status::list(Whose::All, ANSWERS_TIME_MAX)),
            period: Duration::from_secs(1),
            tree: None,
        }
    }
}

/// A page that is served until it is stopped.
#[derive(Debug)]
pub struct Page {
    address: Address,
    url: String,
    stopper: Stopper,
    threads: Vec<JoinHandle<()>>,
    _socket: Option<ServerSocket>,
}

/// Stops a page, from any thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Stop>);

#[derive(Debug, Default)]
struct Stop {
    is_stopped: Mutex<bool>,
    sampler: Condvar,
    server: Notify,
}

impl Stopper {
    /// Stops it; does not wait.
    pub fn stop(&self) {
        // Under the lock: the sampler cannot miss it between its look and its wait.
        *self.0.is_stopped.lock() = true;
        self.0.sampler.notify_all();
        // Kept for a server that does not wait for it yet.
        self.0.server.notify_one();
    }
}

impl Page {
    /// Serves the page. It can be opened when this returns.
    ///
    /// # Errors
    /// [`UiError`].
    pub fn start(options: Options) -> Result<Self, UiError> {
        let listener = Listener::bind(&options.address)?;
        let address = listener.address()?;
        let token = Token::draw()?;
        let url = match &address {
            Address::Loopback(address) => format!("http://{address}/?token={}", token.reveal()),
            Address::Socket(_) => format!("http://localhost/?token={}", token.reveal()),
        };
        let stopper = Stopper(Arc::default());
        let record = Arc::new(Mutex::new(Record::default()));
        let contents = Contents {
            token,
            record: Arc::clone(&record),
            period: options.period,
            tree: options.tree.map(|(name, text)| (name, text.into())),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let mut page = Self {
            address,
            url,
            stopper: stopper.clone(),
            threads: Vec::new(),
            _socket: None,
        };
        let (accepting, socket) = match listener {
            Listener::Loopback(listener) => (Accepting::Loopback(listener), None),
            Listener::Socket(listener, socket) => (Accepting::Socket(listener), Some(socket)),
        };
        page._socket = socket;
        let (source, period, stop) = (options.source, options.period, stopper.clone());
        // A page whose second thread is refused stops its first one when it is dropped.
        page.threads.push(thread("ui-samples", move || {
            take_samples(source, period, &record, &stop.0);
        })?);
        page.threads.push(thread("ui-serve", move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, accept(accepting, contents, &stopper.0));
        })?);
        Ok(page)
    }

    /// Its address, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The address that opens it, token included: for its owner's eyes. For a local socket the
    /// host is `localhost`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Something that stops it, for another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until it is stopped.
    pub fn wait(mut self) {
        for thread in self.threads.drain(..) {
            // A panic of it has been printed; the page is over.
            thread.join().ok();
            // A thread that ended by itself takes the other one with it.
            self.stopper.stop();
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.stopper.stop();
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Takes a sample in each period. A late one puts off the next: a rate over a moment is noise.
fn take_samples(mut source: Source, period: Duration, record: &Mutex<Record>, stop: &Stop) {
    let begun = Instant::now();
    loop {
        let due = Instant::now() + period;
        let servers = source();
        record.lock().take(begun.elapsed(), servers);
        let mut is_stopped = stop.is_stopped.lock();
        // After a spurious wake-up the wait goes on to the same time.
        while !*is_stopped && Instant::now() < due {
            stop.sampler.wait_until(&mut is_stopped, due);
        }
        if *is_stopped {
            return;
        }
    }
}

/// A listener, before it belongs to an event loop.
enum Accepting {
    Loopback(std::net::TcpListener),
    Socket(std::os::unix::net::UnixListener),
}

/// Accepts until the page is stopped.
async fn accept(listener: Accepting, contents: Contents, stop: &Stop) {
    let connections = Connections::new(contents);
    let accepting = async {
        match listener {
            Accepting::Loopback(listener) => accept_loopback(listener, &connections).await,
            Accepting::Socket(listener) => accept_socket(listener, &connections).await,
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop.server.notified() => {}
    }
}

async fn accept_loopback(listener: std::net::TcpListener, connections: &std::rc::Rc<Connections>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are whole; waiting for more to send only costs time.
                stream.set_nodelay(true).ok();
                connections.arrive(stream);
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn accept_socket(
    listener: std::os::unix::net::UnixListener,
    connections: &std::rc::Rc<Connections>,
) {
    let Ok(listener) = tokio::net::UnixListener::from_std(listener) else {
        return;
    };
    let own_uid = local_socket::effective_uid();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // The file's mode keeps others out; this holds where the mode was changed.
                let peer = local_socket::peer(stream.as_fd());
                if peer.is_ok_and(|peer| peer.uid == own_uid || peer.uid == 0) {
                    connections.arrive(stream);
                }
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// After a connection that could not be accepted: descriptors may be free again then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The time that all servers together have to answer.
const ANSWERS_TIME_MAX: Duration = Duration::from_millis(500);
