//! Connections between two devices: the life of one, its queues, waiting, and threads.

use super::*;
use std::thread;

#[test]
fn a_connection_can_be_accepted_once_and_named_until_it_is_freed() {
    let two = Two::open(None);
    let (rdma, queue) = (two.server.rdma, two.server.queue);
    // SAFETY: a device; no private data.
    unsafe {
        let again = sidecore_rdma_accept(rdma, two.accepted, queue, queue, ptr::null(), 0);
        assert_eq!(again, -libc::ENOTCONN);
        let rejected = sidecore_rdma_reject(rdma, two.accepted, ptr::null(), 0);
        assert_eq!(rejected, -libc::ENOTCONN);
        assert_eq!(sidecore_rdma_shut(rdma, two.accepted), 0);
    }
    for side in [Two::client, Two::server] {
        let ended = two.event_of(side);
        assert_eq!((ended.kind, ended.end), (3, 0));
    }
    assert_eq!(
        two.server.post(two.accepted, &work(1, 0, &[])),
        -libc::ENOTCONN
    );
    // SAFETY: a device.
    unsafe {
        assert_eq!(sidecore_rdma_disconnect(rdma, two.accepted), 0);
        assert_eq!(sidecore_rdma_disconnect(rdma, two.accepted), -libc::ENOENT);
    }
    assert_eq!(
        two.server.post(two.accepted, &work(1, 0, &[])),
        -libc::ENOENT
    );
}

#[test]
fn a_rejection_brings_its_private_data() {
    let (server, client) = (Side::open(), Side::open());
    let (_, address) = listening(&server, ptr::null());
    let connected = client.connect(&address, ptr::null(), b"");
    let two = Two {
        server,
        client,
        accepted: -1,
        connected,
    };
    let request = two.event_of(Two::server);
    let data = b"full";
    // SAFETY: a device, and four bytes.
    let rejected = unsafe {
        let data = data.as_ptr().cast();
        sidecore_rdma_reject(two.server.rdma, request.connection, data, 4)
    };
    assert_eq!(rejected, 0);
    let ended = two.event_of(Two::client);
    assert_eq!((ended.kind, ended.end, ended.connection), (3, 1, connected));
    assert_eq!(ended.private_data[..4], *data);
    assert_eq!(ended.private_bytes, 4);
}

#[test]
fn an_attempt_that_nobody_answers_ends_as_lost() {
    let side = Side::open();
    // Open for TCP, and silent: the time limit ends it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound").to_string();
    // SAFETY: a device.
    unsafe { assert_eq!(sidecore_rdma_limit_opening(side.rdma, 20), 0) };
    let connected = side.connect(&address, ptr::null(), b"");
    assert!(connected >= 0, "{connected}");
    // No byte of the network ends the sleep: the limit does.
    let begun = Instant::now();
    // SAFETY: a device.
    unsafe { assert_eq!(sidecore_rdma_wait(side.rdma, 60_000), 1) };
    assert!(begun.elapsed() < LONG / 2, "it slept on");
    let ended = side.event().expect("its end");
    assert_eq!((ended.kind, ended.end, ended.connection), (3, 2, connected));
}

#[test]
fn a_full_queue_is_eagain_until_completions_are_polled() {
    let few = RawOptions {
        send_depth: 2,
        waits: 1,
        ..options()
    };
    let two = Two::open(Some(few));
    let mut bytes = [3_u8; 8];
    let mine = two.client.register(&mut bytes, 0);
    let send = work(1, 0, &[piece(&mine, 8)]);
    // Sends are done at once: their completions fill the queue of 64, then the connection's own.
    for _ in 0..64 + 2 {
        assert_eq!(two.client.post(two.connected, &send), 0);
    }
    assert_eq!(two.client.post(two.connected, &send), -libc::EAGAIN);
    let done = two.completion_of(Two::client);
    assert_eq!((done.id, done.kind, done.status), (1, 0, 0));
    assert_eq!(two.client.post(two.connected, &send), 0);
    assert_eq!(two.client.post(two.connected, &send), -libc::EAGAIN);
}

#[test]
fn a_message_waits_for_a_receive_and_an_unfilled_one_is_taken_back() {
    let waiting = RawOptions {
        receive_depth: 1,
        waits: 1,
        ..options()
    };
    let two = Two::open(Some(waiting));
    let (mut bytes, mut there) = ([3_u8; 8], [0_u8; 8]);
    let mine = two.client.register(&mut bytes, 0);
    let theirs = two.server.register(&mut there, 1);
    let send = work(1, 0, &[piece(&mine, 8)]);
    assert_eq!(two.client.post(two.connected, &send), 0);
    two.completion_of(Two::client);
    assert!(two.server.poll().is_none());
    let place = piece(&theirs, 8);
    assert_eq!(two.server.post_receive(two.accepted, 4, &[place]), 0);
    let got = two.completion_of(Two::server);
    assert_eq!((got.id, got.kind, got.bytes), (4, 8, 8));
    assert_eq!(there, [3; 8]);
    assert_eq!(two.server.post_receive(two.accepted, 7, &[place]), 0);
    let full = two.server.post_receive(two.accepted, 8, &[place]);
    assert_eq!(full, -libc::EAGAIN);
    // SAFETY: a device.
    unsafe {
        let cancel = |id| sidecore_rdma_cancel_receive(two.server.rdma, two.accepted, id);
        assert_eq!([cancel(8), cancel(7), cancel(7)], [0, 1, 0]);
    }
}

#[test]
fn an_aborted_connection_flushes_the_peer_s_work() {
    let two = Two::open(None);
    let mut there = [0_u8; 8];
    let region = two.client.register(&mut there, 1);
    assert_eq!(
        two.client
            .post_receive(two.connected, 11, &[piece(&region, 8)]),
        0
    );
    // SAFETY: a device.
    unsafe {
        assert_eq!(sidecore_rdma_abort(two.server.rdma, two.accepted), 0);
        assert_eq!(
            sidecore_rdma_abort(two.server.rdma, two.accepted),
            -libc::ENOENT
        );
    }
    let flushed = two.completion_of(Two::client);
    assert_eq!((flushed.id, flushed.kind, flushed.status), (11, 8, 1));
    assert_eq!(two.event_of(Two::client).kind, 3);
}

#[test]
fn waiting_ends_at_its_time_or_with_an_event() {
    let two = Two::open(None);
    let rdma = two.client.rdma;
    // SAFETY: a device.
    unsafe {
        assert_eq!(sidecore_rdma_wait(rdma, 0), 0);
        let begun = Instant::now();
        assert_eq!(sidecore_rdma_wait(rdma, 20), 0);
        assert!(begun.elapsed() >= Duration::from_millis(20));
        let descriptor = sidecore_rdma_descriptor(rdma);
        assert!(descriptor >= 0);
        assert_eq!(sidecore_rdma_arm(rdma), 1, "there is nothing to do");
        assert_eq!(sidecore_rdma_shut(two.server.rdma, two.accepted), 0);
        let mut readable = libc::pollfd {
            fd: descriptor,
            events: libc::POLLIN,
            revents: 0,
        };
        assert_eq!(libc::poll(&mut readable, 1, 60_000), 1);
        // Without a limit: the event is there, or on its way.
        assert_eq!(sidecore_rdma_wait(rdma, -1), 1);
        assert_eq!(sidecore_rdma_arm(rdma), 0, "an event is pending");
    }
    assert_eq!(two.client.event().expect("an event").kind, 3);
    assert!(two.client.event().is_none());
}

#[test]
fn each_thread_uses_a_device_of_its_own() {
    let server = Side::open();
    let (_, address) = listening(&server, ptr::null());
    let client = thread::spawn(move || {
        let side = Side::open();
        let connected = side.connect(&address, ptr::null(), b"");
        assert!(connected >= 0, "{connected}");
        // SAFETY: a device of this thread.
        unsafe { assert_eq!(sidecore_rdma_wait(side.rdma, 60_000), 1) };
        assert_eq!(side.event().expect("it is open").kind, 2);
        side
    });
    let mut accepted = -1;
    while accepted < 0 {
        // SAFETY: a device of this thread.
        unsafe { assert_eq!(sidecore_rdma_wait(server.rdma, 60_000), 1) };
        let Some(event) = server.event() else {
            continue;
        };
        accepted = event.connection;
        let queue = server.queue;
        // SAFETY: a device of this thread; no private data.
        let outcome =
            unsafe { sidecore_rdma_accept(server.rdma, accepted, queue, queue, ptr::null(), 0) };
        assert_eq!(outcome, 0);
    }
    // A device may go to another thread, one at a time.
    let client = client.join().expect("the client");
    drop(client);
    let begun = Instant::now();
    loop {
        // SAFETY: a device of this thread.
        unsafe { assert!(sidecore_rdma_wait(server.rdma, 1000) >= 0) };
        if server.event().is_some_and(|event| event.kind == 3) {
            return;
        }
        assert!(begun.elapsed() < LONG, "its end is reported");
    }
}
