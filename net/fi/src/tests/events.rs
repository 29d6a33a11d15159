//! Event queues: connections and their ends, errors, events that a program writes.

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
