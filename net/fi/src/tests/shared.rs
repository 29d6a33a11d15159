//! Shared receive contexts.

use super::*;

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
