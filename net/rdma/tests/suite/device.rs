//! Two devices in one thread, over the kernel's loopback and then over two attachments to one
//! engine: the same calls, the same outcome. Needs root for the second: its interfaces are in a
//! network namespace of their own.
#![allow(unsafe_code)] // memory that is registered by its address

use crate::two::{LONG, Side, Two, everywhere, send, work, write};

use sidecore_rdma::{
    Access, Atomic, End, Event, Kind, Options, Pieces, Queues, ReadyBy, Receive, Remote, Setup,
    Stag, Status, Transport, Work,
};
use std::thread;
use std::time::{Duration, Instant};

/// Without CRCs, long units are sent from their memory and received into it.
fn without_crcs() -> Options {
    Options {
        crc: false,
        segment_bytes: usize::MAX,
        ..Options::default()
    }
}

#[test]
fn bytes_go_every_way_there_is() {
    for options in [Options::default(), without_crcs()] {
        bytes_go(options);
    }
}

fn bytes_go(options: Options) {
    everywhere(options, move |two| {
        let (ours, theirs) = two.connected(options);
        let text: Vec<u8> = (0..300_000_u32).map(|byte| (byte * 7) as u8).collect();
        let local = two.client.register(text.clone());
        let remote = two.server.register(vec![0; text.len()]);
        let bytes = text.len() as u32;
        let post = work(1, write(local, bytes, remote.remote(0)));
        two.client.device.post(ours, post).expect("room");
        two.done(1, Kind::Write);
        // A read of the written data arrives after it.
        let back = two.client.register(vec![0; text.len()]);
        let read = Work::Read {
            into: back.piece(0, bytes),
            remote: remote.remote(0),
        };
        two.client.device.post(ours, work(2, read)).expect("room");
        two.done(2, Kind::Read);
        assert!(two.client.device.adapter().bytes(back) == text);
        assert!(two.server.device.adapter().bytes(remote) == text);

        let atomic = Work::Atomic {
            atomic: Atomic::Add(5),
            remote: remote.remote(8),
        };
        two.client.device.post(ours, work(3, atomic)).expect("room");
        let word = u64::from_ne_bytes(text[8..16].try_into().expect("eight bytes"));
        let original = two.done(3, Kind::Atomic).completion.original;
        assert_eq!(original, Some(word));

        let receive = |id, bytes| Receive {
            id,
            pieces: Pieces::from_iter([remote.piece(0, bytes)]),
        };
        for id in [10, 11] {
            let posted = two.server.device.post_receive(theirs, receive(id, bytes));
            posted.expect("room");
        }
        let post = work(4, send(local, 1000, None));
        two.client.device.post(ours, post).expect("room");
        let value = 0x0102_0304_0506_0708;
        let immediate = Work::Immediate {
            value,
            solicited: true,
        };
        two.client
            .device
            .post(ours, work(5, immediate))
            .expect("room");
        let came =
            two.until(|two| (two.server.queued.len() == 2).then(|| two.server.queued.clone()));
        assert_eq!(came[0].completion.bytes, 1000);
        assert_eq!(came[1].completion.immediate, Some(value));
        assert!(came.iter().all(|queued| queued.connection == theirs));

        two.client.device.close(ours).expect("it is open");
        assert_eq!(two.end(true), End::Orderly);
        assert!(two.client.device.close(ours).is_err());
    });
}

#[test]
fn memory_of_one_s_own_is_written_by_its_address_and_ended_by_the_peer() {
    everywhere(Options::default(), |two| {
        let (ours, theirs) = two.connected(Options::default());
        let mut own = vec![0_u8; 5000];
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let adapter = two.server.device.adapter_mut();
        // SAFETY: the vector outlives the device's last progress, and is accessed only in between.
        let region = unsafe { adapter.register_memory(own.as_mut_ptr(), own.len(), access) };
        let region = region.expect("a region");
        let local = two.client.register(vec![9; 5000]);
        let post = work(1, write(local, 100, region.remote(4900)));
        two.client.device.post(ours, post).expect("room");
        let into = two.server.register(vec![0; 64]);
        let receive = Receive {
            id: 3,
            pieces: Pieces::from_iter([into.piece(0, 64)]),
        };
        two.server
            .device
            .post_receive(theirs, receive)
            .expect("room");
        let post = work(2, send(local, 64, Some(region.stag)));
        two.client.device.post(ours, post).expect("room");
        let came = two.until(|two| two.server.queued.pop());
        assert_eq!(came.completion.invalidated, Some(region.stag));
        assert_eq!((own[4899], own[4900], own[4999]), (0, 9, 9));
        // The tag is invalid now: using it ends the connection, and nothing is written.
        let post = work(4, write(local, 100, region.remote(0)));
        two.client.device.post(ours, post).expect("room");
        assert!(matches!(two.end(true), End::Sent(_)));
        assert!(matches!(two.end(false), End::Received(_)));
        assert_eq!(own[0], 0);
    });
}

#[test]
fn a_refusal_says_why() {
    everywhere(Options::default(), |two| {
        let queues = two.client.queues();
        let data = [3; 512];
        let asked =
            two.client
                .device
                .connect(two.address, Options::default(), queues, &data[..508]);
        asked.expect("508 bytes and the depths of reads");
        let (theirs, private) = two.requested();
        assert_eq!(private, &data[..508]);
        two.server.device.reject(theirs, b"no").expect("asked for");
        let ended = two.until(|two| two.client.events.pop());
        match ended {
            Event::Ended {
                end: End::Rejected,
                private_data,
                connection,
            } => {
                assert_eq!(private_data, b"no");
                two.client.device.close(connection).expect("its place");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn nobody_listens() {
    everywhere(Options::default(), |two| {
        two.server.device.close_listener(two.listener);
        let queues = two.client.queues();
        let asked = two
            .client
            .device
            .connect(two.address, Options::default(), queues, b"");
        // The stack may detect it at once.
        if asked.is_ok() {
            assert_eq!(two.end(false), End::Lost);
        }
    });
}

#[test]
fn a_message_waits_for_a_receive_and_bytes_behind_it_with_it() {
    let options = Options {
        waits_for_receives: true,
        receive_depth: 4,
        ..Options::default()
    };
    everywhere(options, |two| {
        let (ours, theirs) = two.connected(Options::default());
        let local = two.client.register((0..200).collect());
        let into = two.server.register(vec![0; 200]);
        for id in 0..100 {
            let post = work(id, send(local, 200, None));
            two.client.device.post(ours, post).expect("room");
        }
        for _ in 0..1000 {
            two.server.turn();
            two.client.turn();
        }
        assert_eq!(two.server.queued, []);
        for id in 0..100 {
            let receive = Receive {
                id,
                pieces: Pieces::from_iter([into.piece(0, 200)]),
            };
            two.server
                .device
                .post_receive(theirs, receive)
                .expect("room");
            let came = two.until(|two| two.server.queued.pop());
            assert_eq!((came.completion.id, came.completion.bytes), (id, 200));
        }
        assert_eq!(two.server.device.adapter().bytes(into)[199], 199);
    });
}

#[test]
fn a_peer_without_receives_does_not_hold_up_an_end() {
    let options = Options {
        waits_for_receives: true,
        ..Options::default()
    };
    let local = "127.0.0.1:0".parse().expect("an address");
    let mut two = Two::over(|| Transport::Kernel, local, options);
    let (ours, _) = two.connected(Options::default());
    // More than the kernel's buffers hold, so that the end of the stream cannot be sent.
    let region = two.client.register(vec![7; 64 << 20]);
    let post = work(1, send(region, 64 << 20, None));
    two.client.device.post(ours, post).expect("room");
    two.client.device.shut(ours).expect("a connection");
    assert_eq!(two.end(false), End::Lost);
    // The reset reaches a peer that reads nothing.
    two.client.device.close(ours).expect("a connection");
    assert_eq!(two.end(true), End::Lost);
}

#[test]
fn what_waits_for_a_receive_outlasts_a_reset_of_the_peer() {
    let options = Options {
        waits_for_receives: true,
        receive_depth: 4,
        setup: Setup::PeerToPeer(ReadyBy::Message),
        ..without_crcs()
    };
    let local = "127.0.0.1:0".parse().expect("an address");
    let mut two = Two::over(|| Transport::Kernel, local, options);
    let (ours, theirs) = two.connected(options);
    let source = two.client.register((0..200).collect());
    let into = two.server.register(vec![0; 200]);
    for id in 0..4 {
        let post = work(id, send(source, 200, None));
        two.client.device.post(ours, post).expect("room");
    }
    // A message that the client never reads makes the end of its socket a reset.
    let post = work(9, send(into, 200, None));
    two.server.device.post(theirs, post).expect("room");
    while two.server.queued.is_empty() {
        two.server.turn();
    }
    two.server.queued.clear();
    two.client.device.abort(ours).expect("a connection");
    // It finds the reset, and has more to send, too.
    for id in 0..100 {
        let post = work(id, send(into, 200, None));
        two.server.device.post(theirs, post).ok();
        two.server.turn();
    }
    assert_eq!(two.server.events, []);
    for id in 20..24 {
        let receive = Receive {
            id,
            pieces: Pieces::from_iter([into.piece(0, 200)]),
        };
        let posted = two.server.device.post_receive(theirs, receive);
        posted.expect("what had arrived is not lost");
        let came = two.until(|two| {
            let mut all = two.server.queued.iter();
            let at = all.position(|one| one.completion.kind == Kind::Receive)?;
            Some(two.server.queued.remove(at))
        });
        let completion = came.completion;
        assert_eq!((completion.id, completion.status), (id, Status::Done));
    }
    assert_eq!(two.end(true), End::Lost);
}

#[test]
fn connections_share_receives_and_wait_for_them_in_turn() {
    let options = Options {
        waits_for_receives: true,
        ..Options::default()
    };
    everywhere(options, |two| {
        let shared = two.server.device.create_shared(8).expect("a queue");
        let pairs: Vec<_> = (0..3)
            .map(|_| {
                two.connected_with(Options::default(), |device, theirs| {
                    device
                        .share_receives(theirs, shared)
                        .expect("before it is open");
                })
            })
            .collect();
        let into = two.server.register(vec![0; 8 * 100]);
        let receive = |id: u64| Receive {
            id,
            pieces: Pieces::from_iter([into.piece(id % 8 * 100, 100)]),
        };
        let own = two.server.device.post_receive(pairs[0].1, receive(1));
        assert!(own.is_err(), "its receives are shared");
        assert!(
            two.server
                .device
                .share_receives(pairs[0].1, shared)
                .is_err()
        );
        let local = two.client.register((0..100).collect());
        // Each connection has pending messages, and none has a receive.
        for round in 0..10 {
            for (ours, _) in &pairs {
                let post = work(round, send(local, 100, None));
                two.client.device.post(*ours, post).expect("room");
            }
        }
        for _ in 0..200 {
            two.server.turn();
            two.client.turn();
        }
        assert_eq!(two.server.queued, []);
        let mut came = std::collections::HashMap::new();
        for id in 0..30 {
            two.server
                .device
                .post_shared(shared, receive(id))
                .expect("room");
            let queued = two.until(|two| two.server.queued.pop());
            assert_eq!((queued.completion.id, queued.completion.bytes), (id, 100));
            *came.entry(queued.connection).or_insert(0) += 1;
        }
        let each = pairs.iter().map(|(_, theirs)| came[theirs]);
        assert_eq!(each.collect::<Vec<_>>(), [10; 3]);
        // Back again, and full.
        for id in 0..8 {
            two.server
                .device
                .post_shared(shared, receive(id))
                .expect("room");
        }
        assert!(two.server.device.post_shared(shared, receive(8)).is_err());
        assert!(two.server.device.cancel_shared(shared, 3));
        assert!(!two.server.device.cancel_shared(shared, 3));
        assert_eq!(two.server.device.shared_receives(shared), 7);
        // An orderly end leaves the receives to the other connections.
        two.client.device.close(pairs[0].0).expect("it is open");
        assert_eq!(two.end(true), End::Orderly);
        assert_eq!(two.server.device.shared_receives(shared), 7);
        two.server.device.drop_shared(shared);
        assert!(two.server.device.post_shared(shared, receive(9)).is_err());
    });
}

#[test]
fn first_messages_are_held_back_where_that_is_asked_for() {
    everywhere(Options::default(), |two| {
        let held = Duration::from_millis(200);
        two.client.device.hold_first(held);
        let begun = Instant::now();
        let options = Options {
            setup: Setup::PeerToPeer(ReadyBy::Message),
            ..Options::default()
        };
        let (ours, theirs) = two.connected(options);
        let into = two.server.register(vec![0; 10]);
        let receive = Receive {
            id: 1,
            pieces: Pieces::from_iter([into.piece(0, 10)]),
        };
        two.server
            .device
            .post_receive(theirs, receive)
            .expect("room");
        let local = two.client.register(vec![3; 10]);
        two.client
            .device
            .post(ours, work(1, send(local, 10, None)))
            .expect("room");
        assert!(!two.client.device.arm().expect("the engine is there"));
        two.until(|two| two.server.queued.pop());
        assert!(begun.elapsed() >= held, "{:?}", begun.elapsed());
        two.until(|two| two.client.queued.pop());
    });
}

#[test]
fn an_overrun_queue_a_bad_key_and_a_deaf_owner_cost_their_own_connection() {
    everywhere(Options::default(), |two| {
        let (good, good_there) = two.connected(Options::default());
        let local = two.client.register(vec![5; 64]);
        let into = two.server.register(vec![0; 64]);
        // No receive is posted there.
        let (bad, _) = two.connected(Options::default());
        let post = work(1, send(local, 64, None));
        two.client.device.post(bad, post).expect("room");
        assert!(matches!(two.end(true), End::Sent(_)));
        assert!(matches!(two.end(false), End::Received(_)));
        // A key that does not exist.
        let (bad, _) = two.connected(Options::default());
        let nowhere = Remote {
            stag: Stag(into.stag.0 ^ 1),
            offset: 0,
        };
        let post = work(2, write(local, 64, nowhere));
        two.client.device.post(bad, post).expect("room");
        assert!(matches!(two.end(true), End::Sent(_)));
        assert!(matches!(two.end(false), End::Received(_)));
        // Completions that are not polled: a queue of two, whose connection then accepts no more
        // work.
        let small = two.client.device.create_queue(2).expect("a queue");
        let queues = Queues {
            send: small,
            receive: small,
        };
        let options = Options {
            send_depth: 8,
            ..Options::default()
        };
        let asked = two.client.device.connect(two.address, options, queues, b"");
        let deaf = asked.expect("it is being opened");
        let (there, _) = two.requested();
        let queues = two.server.queues();
        two.server.device.accept(there, queues, b"").expect("asked");
        two.until(|two| two.client.events.pop());
        let mut taken = 0;
        for id in 0..1000 {
            let post = work(id, write(local, 64, into.remote(0)));
            taken += u32::from(two.client.device.post(deaf, post).is_ok());
            two.server.turn();
            two.client.device.progress().expect("the engine is there");
        }
        assert_eq!(taken, 10, "two in the queue, eight in the pair");
        let mut entries = [None; 16];
        let mut found = Vec::new();
        while two
            .client
            .device
            .poll(small, &mut entries)
            .expect("a queue")
            > 0
        {
            found.extend(entries.iter_mut().filter_map(Option::take));
        }
        let ids: Vec<u64> = found.iter().map(|queued| queued.completion.id).collect();
        assert_eq!(ids, (0..10).collect::<Vec<_>>());
        // The first one is unaffected.
        two.client.queued.clear();
        two.server.queued.clear();
        let receive = Receive {
            id: 7,
            pieces: Pieces::from_iter([into.piece(0, 64)]),
        };
        let posted = two.server.device.post_receive(good_there, receive);
        posted.expect("room");
        let post = work(8, send(local, 64, None));
        two.client.device.post(good, post).expect("room");
        two.done(8, Kind::Send);
        let came = two.until(|two| two.server.queued.pop());
        assert_eq!((came.completion.id, came.connection), (7, good_there));
    });
}

#[test]
fn a_connection_that_is_torn_in_a_message_flushes_its_work() {
    everywhere(Options::default(), |two| {
        let (ours, theirs) = two.connected(Options::default());
        let local = two.client.register(vec![5; 4 << 20]);
        let into = two.server.register(vec![0; 4 << 20]);
        let receive = Receive {
            id: 7,
            pieces: Pieces::from_iter([into.piece(0, 4 << 20)]),
        };
        two.server
            .device
            .post_receive(theirs, receive)
            .expect("room");
        let post = work(8, send(local, 4 << 20, None));
        two.client.device.post(ours, post).expect("room");
        // Some of it is in transit; the sender closes.
        two.server.turn();
        two.client.device.abort(ours).expect("it is open");
        let came = two.until(|two| two.server.queued.pop());
        assert_eq!(
            (came.completion.id, came.completion.status),
            (7, Status::Flushed)
        );
        assert_eq!(two.end(true), End::Lost);
    });
}

#[test]
fn silent_peers_make_room_for_those_that_ask() {
    everywhere(Options::default(), |two| {
        // They connect and send nothing: more than the listener has places for.
        let mut idle = Vec::new();
        for _ in 0..6 {
            idle.push(std::net::TcpStream::connect(two.address).expect("a place"));
            // Accepted, so that the transport's own queue is never full.
            for _ in 0..1000 {
                two.server.turn();
                thread::yield_now();
            }
        }
        let (ours, _) = two.connected(Options::default());
        assert!(two.client.device.pair(ours).is_some());
        drop(idle);
    });
}

#[test]
fn a_receive_that_is_taken_back_is_nobody_s() {
    everywhere(Options::default(), |two| {
        let (ours, theirs) = two.connected(Options::default());
        let local = two.client.register(b"for the second".to_vec());
        let remote = two.server.register(vec![0; 100]);
        for id in [1, 2, 3] {
            let pieces = Pieces::from_iter([remote.piece(20 * id, 20)]);
            let receive = Receive { id, pieces };
            let posted = two.server.device.post_receive(theirs, receive);
            posted.expect("room");
        }
        assert!(two.server.device.cancel_receive(theirs, 1));
        assert!(!two.server.device.cancel_receive(theirs, 1));
        assert!(two.server.device.cancel_receive(theirs, 3));
        let post = work(4, send(local, 14, None));
        two.client.device.post(ours, post).expect("room");
        let received = two.until(|two| two.server.queued.pop());
        assert_eq!(received.completion.id, 2);
        let found = two.server.device.adapter().bytes(remote);
        assert_eq!(&found[40..54], b"for the second");
        assert!(found[20..40].iter().all(|&byte| byte == 0));
    });
}

#[test]
fn a_peer_that_never_answers_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut side = Side::open(Transport::Kernel);
    let queues = side.queues();
    side.device.limit_opening(Duration::from_millis(5));
    let connection = side
        .device
        .connect(address, Options::default(), queues, b"")
        .expect("it begins");
    let begun = Instant::now();
    while side.events.is_empty() {
        side.turn();
        assert!(begun.elapsed() < LONG, "it waits for ever");
    }
    let ended = Event::Ended {
        connection,
        end: End::Lost,
        private_data: Vec::new(),
    };
    assert_eq!(side.events, [ended]);
    side.device.close(connection).expect("it was told");
}

#[test]
fn whoever_waits_is_woken() {
    everywhere(Options::default(), |two| {
        let (ours, _) = two.connected(Options::default());
        let there = two.server.register(vec![3; 100]);
        let back = two.client.register(vec![0; 100]);
        for round in 0..50 {
            let read = Work::Read {
                into: back.piece(0, 100),
                remote: there.remote(0),
            };
            two.client
                .device
                .post(ours, work(round, read))
                .expect("room");
            thread::scope(|scope| {
                let device = &mut two.client.device;
                let waiter = scope.spawn(|| device.wait(LONG).expect("the engine is there"));
                while !waiter.is_finished() {
                    two.server.turn();
                    thread::yield_now();
                }
                assert!(waiter.join().expect("its thread"));
            });
            two.done(round, Kind::Read);
        }
    });
}
