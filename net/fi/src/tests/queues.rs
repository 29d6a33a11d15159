//! Completion queues: formats, errors, cancelling, waiting.
//!
//! Shared receive contexts.

use super::*;

#[test]
fn an_entry_is_as_long_as_its_format_says() {
    let world = World::open();
    let formats = [
        (FI_CQ_FORMAT_CONTEXT, 8),
        (FI_CQ_FORMAT_MSG, 24),
        (FI_CQ_FORMAT_DATA, 40),
        (FI_CQ_FORMAT_TAGGED, 48),
        (0, 8),
    ];
    for (format, bytes) in formats {
        let two = Two::open();
        let mut two = two;
        // Another queue in the place of the server's.
        let cq = two.world.cq(format);
        assert_eq!(bind(two.server, cq, FI_RECV), 0);
        let mut into = [0_u8; 4];
        for number in [1, 2] {
            assert_eq!(two.receive(two.server, &mut into, context(number)), 0);
            assert_eq!(two.send(two.client, b"abc", null_mut()), 0);
        }
        for _ in 0..2 {
            completion(two.client_cq);
        }
        let mut raw = [0xee_u8; 200];
        let mut count = 0;
        while count < 2 {
            let target = raw[count * bytes..].as_mut_ptr().cast();
            let read = op!(cq, ops.read(target, 2 - count));
            count += usize::try_from(read).unwrap_or(0);
        }
        assert!(
            raw[2 * bytes..].iter().all(|&byte| byte == 0xee),
            "{format}"
        );
        for number in [1, 2_usize] {
            let entry = &raw[(number - 1) * bytes..][..bytes];
            let word = |at: usize| {
                let bytes = entry[at * 8..][..8].try_into().expect("eight bytes");
                usize::from_ne_bytes(bytes)
            };
            assert_eq!(word(0), number, "{format}: the context");
            if bytes > 16 {
                let flags = usize::try_from(FI_RECV | FI_MSG).expect("64 bits");
                assert_eq!((word(1), word(2)), (flags, 3), "{format}");
            }
            if bytes > 32 {
                assert_eq!((word(3), word(4)), (into.as_ptr().addr(), 0), "{format}");
            }
        }
        assert_eq!(close(std::mem::replace(&mut two.server, null_mut())), 0);
        assert_eq!(close(cq), 0);
    }
    drop(world);
}

#[test]
fn a_cancelled_receive_is_an_error_entry_before_anything_else() {
    let two = Two::open();
    let (server, cq) = (two.server, two.server_cq);
    let mut into = [[0_u8; 4]; 3];
    for (number, into) in into.iter_mut().enumerate() {
        assert_eq!(two.receive(server, into, context(number + 1)), 0);
    }
    assert_eq!(
        op!(head server, ops.cancel(context(9))),
        failed(libc::ENOENT)
    );
    assert_eq!(op!(head server, ops.cancel(context(2))), 0);
    assert_eq!(
        op!(head server, ops.cancel(context(2))),
        failed(libc::ENOENT)
    );
    assert_eq!(two.send(two.client, b"abc", null_mut()), 0);
    completion(two.client_cq);
    let begun = Instant::now();
    while take(cq).err() != Some(failed(FI_EAVAIL)) {
        assert!(begun.elapsed() < LONG, "an error");
    }
    let mut error = fi_cq_err_entry {
        err_data_size: 4,
        ..zeroed()
    };
    assert_eq!(op!(cq, ops.readerr(&mut error, 0)), 1);
    assert_eq!((error.op_context, error.err), (context(2), libc::ECANCELED));
    assert_eq!((error.len, error.olen, error.err_data_size), (0, 0, 0));
    assert_eq!(error.flags, FI_RECV | FI_MSG);
    assert_eq!(op!(cq, ops.readerr(&mut error, 0)), failed(libc::EAGAIN));
    // The others stay in their order.
    assert_eq!(completion(cq).op_context, context(1));
    assert_eq!(two.send(two.client, b"abc", null_mut()), 0);
    assert_eq!(completion(cq).op_context, context(3));
}

#[test]
fn work_of_a_closed_endpoint_is_flushed_to_its_queue() {
    let mut two = Two::open();
    let mut into = [0_u8; 4];
    for number in [1, 2] {
        assert_eq!(two.receive(two.server, &mut into, context(number)), 0);
    }
    assert_eq!(close(std::mem::replace(&mut two.server, null_mut())), 0);
    let mut error = zeroed::<fi_cq_err_entry>();
    for number in [1, 2] {
        assert_eq!(op!(two.server_cq, ops.readerr(&mut error, 0)), 1);
        assert_eq!(
            (error.op_context, error.err),
            (context(number), libc::ECANCELED)
        );
    }
    // The other side learns of it by an event, and its receives are flushed, too.
    assert_eq!(two.world.event().0, FI_SHUTDOWN);
    assert_eq!(
        two.send(two.client, b"x", null_mut()),
        failed(libc::ENOTCONN)
    );
}

#[test]
fn a_blocked_reader_is_woken_by_a_signal_or_its_time() {
    let world = World::open();
    let cq = world.cq(0);
    let mut entry = [0_usize; 4];
    let target = entry.as_mut_ptr().cast();
    let again = failed(libc::EAGAIN);
    assert_eq!(op!(cq, ops.sread(target, 1, ptr::null(), 0)), again);
    let begun = Instant::now();
    assert_eq!(op!(cq, ops.sread(target, 1, ptr::null(), 20)), again);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    // A signal that came before is not lost, and serves one reader.
    assert_eq!(op!(cq, ops.signal()), 0);
    let begun = Instant::now();
    assert_eq!(op!(cq, ops.sread(target, 1, ptr::null(), LONG_MS)), again);
    assert!(begun.elapsed() < LONG);
    assert_eq!(op!(cq, ops.sread(target, 1, ptr::null(), 5)), again);
    assert_eq!(close(cq), 0);
}

#[test]
fn a_blocked_reader_gets_what_arrives_and_its_source() {
    let two = Two::open();
    let mut into = [0_u8; 4];
    assert_eq!(two.receive(two.server, &mut into, context(3)), 0);
    assert_eq!(two.send(two.client, b"abc", context(4)), 0);
    let mut entry = zeroed::<fi_cq_tagged_entry>();
    let mut source = 0;
    let target = (&raw mut entry).cast();
    let read = op!(
        two.server_cq,
        ops.sreadfrom(target, 1, &mut source, ptr::null(), LONG_MS)
    );
    assert_eq!((read, entry.op_context, source), (1, context(3), u64::MAX));
    let read = op!(two.client_cq, ops.sread(target, 1, ptr::null(), LONG_MS));
    assert_eq!((read, entry.op_context), (1, context(4)));
    let read = op!(two.client_cq, ops.readfrom(target, 1, &mut source));
    assert_eq!(read, failed(libc::EAGAIN));
}

#[test]
fn a_descriptor_becomes_readable_once_waiting_was_tried() {
    let two = Two::open();
    let mut descriptor: c_int = -1;
    let mut kind: c_int = -1;
    let cq = two.server_cq;
    assert_eq!(control(cq, FI_GETWAIT, &mut descriptor), 0);
    assert_eq!(control(cq, FI_GETWAITOBJ, &mut kind), 0);
    assert!(descriptor >= 0 && kind == FI_WAIT_FD);
    assert_eq!(control(cq, FI_ENABLE, null_mut::<c_void>()), -libc::ENOSYS);
    let mut into = [0_u8; 4];
    assert_eq!(two.receive(two.server, &mut into, context(1)), 0);
    let mut objects = [cq.cast::<fid>()];
    let begun = Instant::now();
    let try_wait =
        |objects: &mut [*mut fid]| op!(two.world.fabric, ops.trywait(objects.as_mut_ptr(), 1));
    while try_wait(&mut objects) != 0 {
        assert!(begun.elapsed() < LONG, "nothing is pending");
    }
    assert_eq!(two.send(two.client, b"abc", null_mut()), 0);
    let mut readable = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: a descriptor of the queue.
    assert_eq!(unsafe { libc::poll(&mut readable, 1, LONG_MS) }, 1);
    // Read by somebody else meanwhile: then there is nothing to wait for.
    while try_wait(&mut objects) == 0 {
        assert!(begun.elapsed() < LONG, "a completion is pending");
    }
    assert_eq!(completion(cq).op_context, context(1));
    let mut domain = [two.world.domain.cast::<fid>()];
    assert_eq!(
        try_wait(&mut domain),
        -libc::EINVAL,
        "no object to wait for"
    );
}

#[test]
fn errors_have_a_text() {
    let world = World::open();
    let cq = world.cq(0);
    let mut text = [0; 100];
    let buffer = text.as_mut_ptr();
    let told = op!(cq, ops.strerror(libc::ECANCELED, ptr::null(), buffer, 100));
    assert_eq!(told, buffer.cast_const());
    let short = op!(
        cq,
        ops.strerror(libc::ECANCELED, ptr::null(), null_mut(), 0)
    );
    // SAFETY: strings.
    let [own, short] = unsafe { [told, short].map(|text| CStr::from_ptr(text).to_owned()) };
    assert_eq!(own, short);
    assert!(own.to_str().expect("text").contains("ancel"), "{own:?}");
    assert_eq!(close(cq), 0);
}

fn srx(world: &World) -> *mut fid_ep {
    let mut srx = null_mut();
    let opened = op!(world.domain, ops.srx_ctx(null_mut(), &mut srx, context(1)));
    assert_eq!(opened, 0);
    srx
}

fn receive(srx: *mut fid_ep, into: &mut [u8], number: usize) -> isize {
    let (address, bytes) = (into.as_mut_ptr().cast(), into.len());
    op!(
        srx,
        msg.recv(address, bytes, null_mut(), u64::MAX, context(number))
    )
}

#[test]
fn endpoints_take_receives_of_a_context_in_its_order() {
    let shared = std::cell::Cell::new(null_mut::<fid_ep>());
    let two = Two::bound(0, |world, ep| {
        if shared.get().is_null() {
            shared.set(srx(world));
        }
        assert_eq!(bind(ep, shared.get(), 0), 0);
    });
    let shared = shared.get();
    let mut into = [[0_u8; 8]; 4];
    for (number, into) in into.iter_mut().enumerate() {
        assert_eq!(receive(shared, into, number), 0);
    }
    assert_eq!(two.send(two.client, b"one", null_mut()), 0);
    assert_eq!(completion(two.server_cq).op_context, context(0));
    assert_eq!(two.send(two.server, b"two", null_mut()), 0);
    // Its completion is the first of the client's own queue behind that of its send.
    completion(two.client_cq);
    assert_eq!(completion(two.client_cq).op_context, context(1));
    assert_eq!(op!(head shared, ops.cancel(context(2))), 0);
    assert_eq!(
        op!(head shared, ops.cancel(context(2))),
        failed(libc::ENOENT)
    );
    assert!(take(two.server_cq).is_ok(), "the server's own send");
    assert!(
        take(two.server_cq).is_err(),
        "a receive that is taken back serves no endpoint"
    );
    assert_eq!(two.send(two.client, b"three", null_mut()), 0);
    let got = completion(two.server_cq);
    assert_eq!(
        (got.op_context, got.len, got.flags),
        (context(3), 5, FI_RECV | FI_MSG)
    );
    assert_eq!(into[3][..5], *b"three");
    // An endpoint has shared receives or its own.
    let mut own = [0_u8; 4];
    assert!(two.receive(two.server, &mut own, null_mut()) < 0);
    drop(two);
    assert_eq!(close(shared), 0);
}

#[test]
fn a_context_only_receives() {
    let world = World::open();
    let shared = srx(&world);
    let invalid = failed(libc::EINVAL);
    let byte = [1_u8];
    let from = byte.as_ptr().cast();
    assert_eq!(
        op!(shared, msg.send(from, 1, null_mut(), 0, null_mut())),
        invalid
    );
    assert_eq!(op!(shared, msg.inject(from, 1, 0)), invalid);
    assert_eq!(
        op!(shared, msg.senddata(from, 1, null_mut(), 1, 0, null_mut())),
        invalid
    );
    assert_eq!(
        bind(shared, world.eq, 0),
        -libc::EINVAL,
        "completions go to the endpoints"
    );
    assert_eq!(control(shared, FI_ENABLE, null_mut::<c_void>()), 0);
    assert_eq!(
        control(shared, FI_BACKLOG, null_mut::<c_void>()),
        -libc::ENOSYS
    );
    assert_eq!(
        op!(head shared, ops.cancel(context(1))),
        failed(libc::ENOENT)
    );
    // SAFETY: a context that is not closed.
    assert!(unsafe { (*shared).rma.is_null() && (*shared).atomic.is_null() });
    assert_eq!(close(shared), 0);
}

#[test]
fn a_closed_context_leaves_its_place_to_another() {
    let world = World::open();
    let first = srx(&world);
    let mut into = [0_u8; 4];
    assert_eq!(receive(first, &mut into, 1), 0);
    assert_eq!(close(first), 0);
    let second = srx(&world);
    // The receives of the first one are gone: they cannot be taken back here.
    assert_eq!(
        op!(head second, ops.cancel(context(1))),
        failed(libc::ENOENT)
    );
    assert_eq!(receive(second, &mut into, 1), 0);
    assert_eq!(op!(head second, ops.cancel(context(1))), 0);
    assert_eq!(close(second), 0);
}
