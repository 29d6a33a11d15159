//! Rank 0's side: a thread that takes connections, and one that reads each.

use super::SILENCE;
use super::wire::{Downward, HELLO_MAX, LINE_MAX, Upward, read, write};
use crate::analysis::coordinator::{Member, Message};
use crate::analysis::workers::Order;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

/// A place where members can connect.
#[derive(Debug)]
pub struct Leader {
    listener: TcpListener,
    token: String,
}

/// The members that are connected.
#[derive(Debug)]
pub struct Links {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    token: String,
    run: String,
    members: Mutex<BTreeMap<Member, TcpStream>>,
    closed: AtomicBool,
}

impl Leader {
    /// Listens on some port of an address. `token` is what members must know.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(address: IpAddr, token: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, token })
    }

    /// The port.
    ///
    /// # Errors
    /// The system's.
    pub fn port(&self) -> std::io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Takes connections from now on; what members of the run `run` say goes to `mailbox`.
    #[must_use]
    pub fn start(self, run: String, mailbox: Sender<Message>) -> Links {
        let shared = Arc::new(Shared {
            token: self.token,
            run,
            members: Mutex::new(BTreeMap::new()),
            closed: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let listener = self.listener;
        let acceptor = std::thread::spawn(move || {
            // Partner: the store of `Links::drop`.
            while !own.closed.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let (own, mailbox) = (Arc::clone(&own), mailbox.clone());
                        std::thread::spawn(move || own.serve(stream, &mailbox));
                    }
                    Err(_) => std::thread::sleep(LOOK_EVERY),
                }
            }
        });
        Links {
            shared,
            acceptor: Some(acceptor),
        }
    }
}

impl Links {
    /// Sends an order. To a member that is gone nothing is sent; its loss comes by the mailbox.
    pub fn deliver(&self, member: Member, order: Order) {
        let mut members = self.shared.members.lock();
        if let Some(stream) = members.get_mut(&member)
            && write(stream, &Downward::Order(order)).is_err()
        {
            // Its reader finds out.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Tells all that nothing will come any more.
    pub fn close(&self) {
        let members: Vec<Member> = self.shared.members.lock().keys().copied().collect();
        for member in members {
            self.deliver(member, Order::Close);
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        // Partner: the load of the acceptor.
        self.shared.closed.store(true, Ordering::Release);
        if let Some(acceptor) = self.acceptor.take() {
            // It ends by itself, and has nothing to say.
            let _ = acceptor.join();
        }
        for stream in self.shared.members.lock().values() {
            // What was written before still goes out.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

impl Shared {
    /// Reads one connection to its end.
    fn serve(&self, stream: TcpStream, mailbox: &Sender<Message>) {
        let Ok((rank, mut reader)) = self.greet(stream) else {
            return;
        };
        while let Ok(Some(line)) = read(&mut reader, LINE_MAX) {
            let heard = match line {
                Upward::Event(event) => mailbox.send(Message::From(rank, event)),
                Upward::Beat => Ok(()),
                Upward::Hello { .. } => break,
            };
            if heard.is_err() {
                break;
            }
        }
        self.members.lock().remove(&rank);
        // Nobody listens any more only when the run is over.
        let _ = mailbox.send(Message::Lost(rank));
    }

    fn greet(&self, mut stream: TcpStream) -> std::io::Result<(Member, BufReader<TcpStream>)> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let hello = read(&mut reader, HELLO_MAX)?;
        let refuse = |stream: &mut TcpStream, why: &str| {
            write(stream, &Downward::Refused(why.to_owned()))?;
            Err(std::io::ErrorKind::PermissionDenied.into())
        };
        let Some(Upward::Hello { token, rank, run }) = hello else {
            return Err(std::io::ErrorKind::InvalidData.into());
        };
        if token != self.token {
            return Err(std::io::ErrorKind::PermissionDenied.into());
        }
        if run != self.run {
            return refuse(
                &mut stream,
                "its alignment or options are not those of rank 0",
            );
        }
        let mut members = self.members.lock();
        if rank == 0 || members.contains_key(&rank) {
            drop(members);
            return refuse(&mut stream, "its rank is taken");
        }
        members.insert(rank, stream);
        Ok((rank, reader))
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(10);
