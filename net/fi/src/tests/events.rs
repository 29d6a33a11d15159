//! Event queues: connections and their ends, errors, events that a program writes.
//!
//! Counters: what they count, waiting for a number, errors.

use super::*;
use crate::place::CM_BYTES;

/// Reads the front of the queue without waiting.
fn read(world: &World, bytes: &mut [u8], flags: u64) -> (isize, u32) {
    let mut event = u32::MAX;
    let (buffer, length) = (bytes.as_mut_ptr().cast(), bytes.len());
    let count = op!(world.eq, ops.read(&mut event, buffer, length, flags));
    (count, event)
}

#[test]
fn a_program_s_own_events_come_back_as_they_were_written() {
    let world = World::open();
    let mut bytes = [0_u8; 64];
    assert_eq!(read(&world, &mut bytes, 0).0, failed(libc::EAGAIN));
    let write = |event, bytes: &[u8]| {
        op!(
            world.eq,
            ops.write(event, bytes.as_ptr().cast(), bytes.len(), 0)
        )
    };
    assert_eq!(write(FI_NOTIFY, b"first"), 5);
    assert_eq!(write(FI_NOTIFY, b""), 0);
    assert_eq!(write(FI_NOTIFY, &[7; 24]), 24);
    assert_eq!(write(FI_CONNECTED, b"forged"), failed(libc::ENOSYS));
    assert_eq!(
        write(FI_NOTIFY, &[0; 600]),
        failed(libc::EINVAL),
        "a bound of what is kept"
    );
    assert_eq!(read(&world, &mut bytes, FI_PEEK), (5, FI_NOTIFY));
    assert_eq!(read(&world, &mut bytes, 0), (5, FI_NOTIFY));
    assert_eq!(bytes[..6], *b"first\0");
    assert_eq!(read(&world, &mut bytes, 0), (0, FI_NOTIFY));
    // One that has no room is cut off, and gone.
    assert_eq!(read(&world, &mut bytes[..3], 0), (3, FI_NOTIFY));
    assert_eq!(read(&world, &mut bytes, 0).0, failed(libc::EAGAIN));
}

#[test]
fn a_connection_carries_private_data_both_ways() {
    let world = World::open();
    let (pep, address) = world.listener();
    let cq = world.cq(0);
    let endpoint = |info, number| {
        let ep = world.endpoint(info, context(number));
        assert_eq!(bind(ep, cq, FI_SEND | FI_RECV), 0);
        ep
    };
    let client = endpoint(world.offers.0, 1);
    let too_long = [1_u8; CM_BYTES + 1];
    let connect = |data: &[u8]| {
        let data = (data.as_ptr().cast(), data.len());
        op!(client, cm.connect(address.as_ptr().cast(), data.0, data.1))
    };
    assert_eq!(connect(&too_long), -libc::EINVAL);
    assert_eq!(
        op!(
            client,
            cm.connect([0_u8; 16].as_ptr().cast(), ptr::null(), 0)
        ),
        -libc::EINVAL
    );
    assert_eq!(connect(&too_long[..CM_BYTES]), 0);
    let (event, entry, data) = world.event();
    assert_eq!((event, data), (FI_CONNREQ, too_long[..CM_BYTES].to_vec()));
    let request = Offers(entry.context.cast());
    assert_eq!(request.first().dest_addrlen, 16, "the peer's address");
    let server = endpoint(request.0, 2);
    assert!(request.first().handle.is_null(), "taken by the endpoint");
    assert_eq!(
        op!(server, cm.accept(too_long.as_ptr().cast(), CM_BYTES + 1)),
        -libc::EINVAL
    );
    assert_eq!(op!(server, cm.accept(b"welcome".as_ptr().cast(), 7)), 0);
    let mut seen = [world.event(), world.event()];
    seen.sort_by_key(|(_, entry, _)| entry.fid == server.cast());
    let [of_client, of_server] = seen;
    assert_eq!(
        (of_client.0, of_client.2),
        (FI_CONNECTED, b"welcome".to_vec())
    );
    assert_eq!((of_server.0, of_server.2), (FI_CONNECTED, Vec::new()));
    assert_eq!(of_client.1.fid, client.cast());
    // The end of one is an event of both.
    assert_eq!(op!(client, cm.shutdown(0)), 0);
    for _ in 0..2 {
        assert_eq!(world.event().0, FI_SHUTDOWN);
    }
    for object in [client.cast::<fid>(), server.cast(), pep.cast(), cq.cast()] {
        assert_eq!(close(object), 0);
    }
}

#[test]
fn a_rejection_is_an_error_with_its_data() {
    let world = World::open();
    let (pep, address) = world.listener();
    let client = world.endpoint(world.offers.0, context(0xabc));
    let connected = op!(client, cm.connect(address.as_ptr().cast(), ptr::null(), 0));
    assert_eq!(connected, 0);
    let request = Offers(world.event().1.context.cast());
    let handle = request.first().handle;
    let reject = |handle, length| op!(pep, cm.reject(handle, b"no room".as_ptr().cast(), length));
    assert_eq!(reject(handle, CM_BYTES + 1), -libc::EINVAL);
    assert_eq!(reject(null_mut(), 7), -libc::EINVAL);
    assert_eq!(reject(pep.cast(), 7), -libc::EINVAL, "no request");
    assert_eq!(reject(handle, 7), 0);
    // SAFETY: the info is ours, and its handle was freed with the rejection.
    unsafe { (*request.0).handle = null_mut() };
    let mut bytes = [0_u8; 64];
    let begun = Instant::now();
    while read(&world, &mut bytes, 0).0 != failed(FI_EAVAIL) {
        assert!(begun.elapsed() < LONG, "an error");
    }
    let mut event = 0;
    let waited = op!(
        world.eq,
        ops.sread(&mut event, bytes.as_mut_ptr().cast(), 64, LONG_MS, 0)
    );
    assert_eq!(waited, failed(FI_EAVAIL), "until it is read as an error");
    let mut data = [0_u8; 4];
    let mut error = fi_eq_err_entry {
        err_data: data.as_mut_ptr().cast(),
        err_data_size: 4,
        ..zeroed()
    };
    let size = isize::try_from(size_of::<fi_eq_err_entry>()).expect("small");
    assert_eq!(op!(world.eq, ops.readerr(&mut error, 0)), size);
    assert_eq!((error.fid, error.context), (client.cast(), context(0xabc)));
    assert_eq!(
        (error.err, error.prov_errno),
        (libc::ECONNREFUSED, libc::ECONNREFUSED)
    );
    assert_eq!(
        (error.err_data_size, &data),
        (4, b"no r"),
        "as much as there is room for"
    );
    assert_eq!(
        op!(world.eq, ops.readerr(&mut error, 0)),
        failed(libc::EAGAIN)
    );
    assert_eq!([close(client), close(pep)], [0; 2]);
}

#[test]
fn a_port_that_nobody_listens_at_is_an_error_without_a_buffer() {
    let world = World::open();
    let (pep, address) = world.listener();
    assert_eq!(close(pep), 0);
    let client = world.endpoint(world.offers.0, null_mut());
    let connected = op!(client, cm.connect(address.as_ptr().cast(), ptr::null(), 0));
    assert_eq!(connected, 0);
    let mut bytes = [0_u8; 64];
    let mut event = 0;
    let waited = op!(
        world.eq,
        ops.sread(&mut event, bytes.as_mut_ptr().cast(), 64, LONG_MS, 0)
    );
    assert_eq!(waited, failed(FI_EAVAIL));
    let mut error = zeroed::<fi_eq_err_entry>();
    assert!(op!(world.eq, ops.readerr(&mut error, 0)) > 0);
    assert_eq!((error.fid, error.err), (client.cast(), libc::ECONNREFUSED));
    assert_eq!(error.err_data_size, 0);
    assert_eq!(close(client), 0);
}

#[test]
fn an_event_that_has_no_room_for_its_head_stays() {
    let world = World::open();
    let (pep, address) = world.listener();
    let client = world.endpoint(world.offers.0, null_mut());
    let connected = op!(client, cm.connect(address.as_ptr().cast(), ptr::null(), 0));
    assert_eq!(connected, 0);
    let mut bytes = [0_u8; 64];
    let begun = Instant::now();
    while read(&world, &mut bytes[..15], 0).0 != failed(libc::EOVERFLOW) {
        assert!(begun.elapsed() < LONG, "a request");
    }
    assert_eq!(read(&world, &mut bytes[..16], FI_PEEK), (16, FI_CONNREQ));
    // A request that was not read is rejected when its passive endpoint is closed.
    assert_eq!(close(pep), 0);
    let mut event = 0;
    let waited = op!(
        world.eq,
        ops.sread(&mut event, bytes.as_mut_ptr().cast(), 64, LONG_MS, 0)
    );
    assert_eq!(waited, failed(FI_EAVAIL));
    let mut error = zeroed::<fi_eq_err_entry>();
    assert!(op!(world.eq, ops.readerr(&mut error, 0)) > 0);
    assert_eq!((error.fid, error.err), (client.cast(), libc::ECONNREFUSED));
    // Events of a closed endpoint are gone with it.
    assert_eq!(close(client), 0);
    assert_eq!(read(&world, &mut bytes, 0).0, failed(libc::EAGAIN));
}

#[test]
fn an_endpoint_of_a_passive_one_connects_from_its_address() {
    let world = World::open();
    let (pep, address) = world.listener();
    let (from, from_address) = world.listener();
    // SAFETY: the offer is ours; the handle is taken back below.
    unsafe { (*world.offers.0).handle = from.cast() };
    let client = world.endpoint(world.offers.0, null_mut());
    // SAFETY: as above.
    unsafe { (*world.offers.0).handle = null_mut() };
    let (mut raw, mut length) = ([0_u8; 16], 16);
    let named = op!(head client, cm.getname(raw.as_mut_ptr().cast(), &mut length));
    assert_eq!((named, &raw[..]), (0, &from_address[..]));
    let connected = op!(client, cm.connect(address.as_ptr().cast(), ptr::null(), 0));
    // The kernel lets a listener's port be used for a connection, or says that it is in use.
    if connected == 0 {
        let request = Offers(world.event().1.context.cast());
        // SAFETY: an address of the info, as long as it says.
        let peer = unsafe {
            let info = request.first();
            std::slice::from_raw_parts(info.dest_addr.cast::<u8>(), info.dest_addrlen).to_vec()
        };
        assert_eq!(peer, from_address);
    } else {
        assert_eq!(connected, -libc::EADDRINUSE);
    }
    for object in [client.cast::<fid>(), pep.cast(), from.cast()] {
        assert_eq!(close(object), 0);
    }
}

fn value(cntr: *mut fid_cntr) -> u64 {
    op!(cntr, ops.read())
}

#[test]
fn a_counter_is_set_added_to_and_waited_for() {
    let world = World::open();
    let cntr = world.cntr();
    assert_eq!((value(cntr), op!(cntr, ops.readerr())), (0, 0));
    assert_eq!(op!(cntr, ops.add(5)), 0);
    assert_eq!(op!(cntr, ops.add(u64::MAX)), 0);
    assert_eq!(value(cntr), 4, "it wraps");
    assert_eq!(op!(cntr, ops.set(9)), 0);
    assert_eq!(value(cntr), 9);
    assert_eq!(op!(cntr, ops.adderr(2)), 0);
    assert_eq!(op!(cntr, ops.readerr()), 2);
    assert_eq!(op!(cntr, ops.seterr(1)), 0);
    assert_eq!((value(cntr), op!(cntr, ops.readerr())), (9, 1));
    // Reached, late, and errors from before, which end no wait.
    assert_eq!(op!(cntr, ops.wait(9, 0)), 0);
    assert_eq!(op!(cntr, ops.wait(10, 0)), -libc::ETIMEDOUT);
    let begun = Instant::now();
    assert_eq!(op!(cntr, ops.wait(10, 20)), -libc::ETIMEDOUT);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert_eq!(close(cntr), 0);
}

/// A counter for another thread.
#[derive(Clone, Copy)]
struct Shared(*mut fid_cntr);

// SAFETY: threads may share objects: the provider offers FI_THREAD_SAFE.
unsafe impl Send for Shared {}

impl Shared {
    fn add(self, value: u64) -> c_int {
        op!(self.0, ops.add(value))
    }

    fn add_error(self) -> c_int {
        op!(self.0, ops.adderr(1))
    }
}

#[test]
fn a_waiter_wakes_at_its_number_or_at_a_new_error() {
    let world = World::open();
    let cntr = world.cntr();
    let shared = Shared(cntr);
    let adder = std::thread::spawn(move || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(shared.add(1), 0);
        }
    });
    assert_eq!(op!(cntr, ops.wait(3, LONG_MS)), 0);
    adder.join().expect("it adds");
    let failing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(shared.add_error(), 0);
    });
    assert_eq!(op!(cntr, ops.wait(100, LONG_MS)), -FI_EAVAIL);
    failing.join().expect("it adds");
    assert_eq!(close(cntr), 0);
}

#[test]
fn each_kind_of_operation_counts_where_it_is_bound() {
    let kinds = [FI_SEND, FI_RECV, FI_READ, FI_WRITE];
    let counters = std::cell::RefCell::new(Vec::new());
    let two = Two::bound(0, |world, ep| {
        for kind in kinds {
            let cntr = world.cntr();
            assert_eq!(bind(ep, cntr, kind), 0);
            counters.borrow_mut().push(cntr);
        }
    });
    let counters = counters.into_inner();
    let (client, server) = counters.split_at(4);
    let values = |of: &[*mut fid_cntr]| [0, 1, 2, 3].map(|index| value(of[index]));
    let mut there = [0_u64; 2];
    let mr = two
        .world
        .memory(&mut there, FI_REMOTE_READ | FI_REMOTE_WRITE);
    // SAFETY: a region.
    let key = unsafe { (*mr).key };
    let base = there.as_ptr().addr().try_into().expect("64 bits");
    let mut into = [0_u8; 8];
    for _ in 0..2 {
        assert_eq!(two.receive(two.server, &mut into, null_mut()), 0);
        assert_eq!(two.send(two.client, b"x", null_mut()), 0);
    }
    let word = [1_u64];
    let bytes = word.as_ptr().cast();
    assert_eq!(
        op!(two.client, rma.inject(bytes, 8, 0, base, key)),
        0,
        "counted, too"
    );
    let mut back = [0_u64; 2];
    let target = back.as_mut_ptr().cast();
    let read = op!(
        two.client,
        rma.read(target, 16, null_mut(), 0, base, key, null_mut())
    );
    assert_eq!(read, 0);
    assert_eq!(op!(client[2], ops.wait(1, LONG_MS)), 0);
    assert_eq!(op!(server[1], ops.wait(2, LONG_MS)), 0);
    assert_eq!(values(client), [2, 0, 1, 1]);
    assert_eq!(values(server), [0, 2, 0, 0]);
    // What is flushed counts as an error.
    assert_eq!(two.receive(two.server, &mut into, null_mut()), 0);
    assert_eq!(op!(two.client, cm.shutdown(0)), 0);
    let begun = Instant::now();
    while op!(server[1], ops.readerr()) == 0 {
        assert!(begun.elapsed() < LONG, "its receive is flushed");
    }
    assert_eq!((value(server[1]), op!(server[1], ops.readerr())), (2, 1));
    assert_eq!(close(mr), 0);
    drop(two);
    for cntr in counters {
        assert_eq!(close(cntr), 0);
    }
}
