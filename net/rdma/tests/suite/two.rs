//! Two devices in one thread, with one connection or more between them.
//!
//! One side on a session of the stack, the other on a kernel's socket, over a TAP. Needs root: each
//! test makes its interfaces in a network namespace of its own.

use crate::common;
use crate::common::beside_a_stack;
use common::{in_namespace, stack};
use sidecore_rdma::ping::Pinged;
use sidecore_rdma::server::{Exchange, ping_kernel, ping_stack, serve_kernel, serve_stack};
use sidecore_rdma::{
    Access, ConnectionId, Device, End, Event, Kind, ListenerId, Options, Pieces, Post, QueueId,
    Queued, Queues, RdmaError, Region, Remote, Stag, Status, Transport, Work,
};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any step here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Side {
    pub(crate) device: Device,
    pub(crate) queue: QueueId,
    pub(crate) events: Vec<Event>,
    pub(crate) queued: Vec<Queued>,
}

pub(crate) struct Two {
    pub(crate) server: Side,
    pub(crate) client: Side,
    pub(crate) listener: ListenerId,
    pub(crate) address: SocketAddr,
}

impl Side {
    pub(crate) fn open(transport: Transport) -> Self {
        let mut device = Device::open(transport).expect("a device");
        let queue = device.create_queue(256).expect("a queue");
        Self {
            device,
            queue,
            events: Vec::new(),
            queued: Vec::new(),
        }
    }

    pub(crate) fn queues(&self) -> Queues {
        Queues {
            send: self.queue,
            receive: self.queue,
        }
    }

    pub(crate) fn turn(&mut self) {
        self.device.progress().expect("the engine is there");
        while let Some(event) = self.device.next_event() {
            self.events.push(event);
        }
        let mut taken = [None; 16];
        let count = self.device.poll(self.queue, &mut taken).expect("a queue");
        self.queued.extend(taken[..count].iter().flatten());
    }

    pub(crate) fn register(&mut self, bytes: Vec<u8>) -> Region {
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC;
        let region = self.device.adapter_mut().register(bytes, access);
        region.expect("a region")
    }
}

impl Two {
    pub(crate) fn over(
        transport: impl Fn() -> Transport,
        local: SocketAddr,
        options: Options,
    ) -> Self {
        let (mut server, client) = (Side::open(transport()), Side::open(transport()));
        let listener = server.device.listen(local, 4, options).expect("an address");
        let address = server
            .device
            .listener_address(listener)
            .expect("it listens");
        Self {
            server,
            client,
            listener,
            address,
        }
    }

    pub(crate) fn until<T>(&mut self, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            self.server.turn();
            self.client.turn();
            if let Some(it) = found(self) {
                return it;
            }
            assert!(begun.elapsed() < LONG, "it does not happen");
        }
    }

    pub(crate) fn requested(&mut self) -> (ConnectionId, Vec<u8>) {
        let listener = self.listener;
        self.until(|two| match two.server.events.pop()? {
            Event::Requested {
                connection,
                private_data,
                listener: its,
            } if its == listener => Some((connection, private_data)),
            other => panic!("{other:?}"),
        })
    }

    /// A connection, by the identifiers of both sides.
    pub(crate) fn connected(&mut self, options: Options) -> (ConnectionId, ConnectionId) {
        self.connected_with(options, |_, _| {})
    }

    /// The same; `prepare` gets the server's device before it accepts.
    pub(crate) fn connected_with(
        &mut self,
        options: Options,
        prepare: impl FnOnce(&mut Device, ConnectionId),
    ) -> (ConnectionId, ConnectionId) {
        let queues = self.client.queues();
        let asked = self
            .client
            .device
            .connect(self.address, options, queues, b"ask");
        let ours = asked.expect("it is being opened");
        let (theirs, private) = self.requested();
        assert_eq!(private, b"ask");
        prepare(&mut self.server.device, theirs);
        let queues = self.server.queues();
        let accepted = self.server.device.accept(theirs, queues, &[7; 40]);
        accepted.expect("it was asked for");
        let told = self.until(|two| two.server.events.pop());
        assert!(matches!(told, Event::Established { .. }));
        let private = self.until(|two| match two.client.events.pop()? {
            Event::Established { private_data, .. } => Some(private_data),
            other => panic!("{other:?}"),
        });
        assert_eq!(private, [7; 40]);
        (ours, theirs)
    }

    pub(crate) fn done(&mut self, id: u64, kind: Kind) -> Queued {
        let queued = self.until(|two| two.client.queued.pop());
        let outcome = (
            queued.completion.id,
            queued.completion.kind,
            queued.completion.status,
        );
        assert_eq!(outcome, (id, kind, Status::Done));
        queued
    }

    pub(crate) fn end(&mut self, of_server: bool) -> End {
        self.until(|two| {
            let side = if of_server {
                &mut two.server
            } else {
                &mut two.client
            };
            match side.events.pop()? {
                Event::Ended { end, .. } => Some(end),
                other => panic!("{other:?}"),
            }
        })
    }
}

/// Runs a test over the kernel's sockets and over the stack.
pub(crate) fn everywhere(options: Options, test: impl Fn(&mut Two) + Send + 'static) {
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    test(&mut Two::over(|| Transport::Kernel, local, options));
    beside_a_stack(move |socket, local| {
        let transport = || Transport::Stack(socket.to_owned());
        test(&mut Two::over(transport, local, options));
    });
}

pub(crate) fn work(id: u64, work: Work) -> Post {
    Post {
        id,
        work,
        fence: false,
    }
}

pub(crate) fn send(region: Region, bytes: u32, invalidate: Option<Stag>) -> Work {
    Work::Send {
        pieces: Pieces::from_iter([region.piece(0, bytes)]),
        invalidate,
        solicited: false,
    }
}

pub(crate) fn write(region: Region, bytes: u32, remote: Remote) -> Work {
    Work::Write {
        pieces: Pieces::from_iter([region.piece(0, bytes)]),
        remote,
    }
}

fn exchange() -> Exchange {
    Exchange {
        options: Options::default(),
        timeout: Duration::from_secs(60),
        settle: Duration::ZERO,
    }
}

#[test]
fn the_stack_serves_a_kernel_s_socket() {
    in_namespace(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let client = stack(&folder.path().join("rdma.sock"));
        let local = SocketAddr::from(([10, 77, 0, 2], 7174));
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let told = |_, outcome: Result<Pinged, RdmaError>| {
                    assert_eq!(outcome.expect("ten rounds").rounds, 10);
                    false
                };
                serve_stack(client, local, &exchange(), told)
            });
            let (pinged, _) = ping_kernel(local, &exchange(), 10, 50_000).expect("ten rounds");
            assert_eq!(pinged.bytes, 500_000);
            server.join().expect("its thread").expect("served");
        });
    });
}

#[test]
fn the_stack_pings_a_kernel_s_socket() {
    in_namespace(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let client = stack(&folder.path().join("rdma.sock"));
        let listener = TcpListener::bind("10.77.0.1:7174").expect("a port");
        let peer = listener.local_addr().expect("an address");
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let told = |_, outcome: Result<Pinged, RdmaError>| {
                    assert_eq!(outcome.expect("ten rounds").rounds, 10);
                    false
                };
                serve_kernel(&listener, &exchange(), told)
            });
            let (pinged, _) =
                ping_stack(client, peer, &exchange(), 10, 50_000).expect("ten rounds");
            assert_eq!(pinged.bytes, 500_000);
            server.join().expect("its thread").expect("served");
        });
    });
}
