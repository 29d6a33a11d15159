//! Messages: each call that sends or receives one, and the bounds of both.

use super::*;
use crate::place::{DEPTH_MAX, INJECT_BYTES};

#[test]
fn each_call_that_sends_reaches_each_call_that_receives() {
    let two = Two::open();
    let (client, server) = (two.client, two.server);
    let (mut first, mut second) = (*b"one and ", *b"another.");
    let mut into = [[0_u8; 16]; 3];
    let [a, b, c] = &mut into;
    assert_eq!(two.receive(server, a, context(1)), 0);
    let (start, end) = b.split_at_mut(5);
    let pieces = [iov(start), iov(end)];
    let posted = op!(
        server,
        msg.recvv(pieces.as_ptr(), null_mut(), 2, u64::MAX, context(2))
    );
    assert_eq!(posted, 0);
    let whole = [iov(c)];
    let message = fi_msg {
        msg_iov: whole.as_ptr(),
        iov_count: 1,
        context: context(3),
        ..zeroed()
    };
    assert_eq!(op!(server, msg.recvmsg(&message, 0)), 0);

    assert_eq!(two.send(client, b"plain", context(11)), 0);
    let parts = [iov(&mut first), iov(&mut second)];
    let sent = op!(
        client,
        msg.sendv(parts.as_ptr(), null_mut(), 2, 0, context(12))
    );
    assert_eq!(sent, 0);
    let message = fi_msg {
        msg_iov: parts.as_ptr(),
        iov_count: 1,
        context: context(13),
        ..zeroed()
    };
    assert_eq!(op!(client, msg.sendmsg(&message, 0)), 0);

    for (number, bytes) in [(1, 5), (2, 16), (3, 8)] {
        let got = completion(two.server_cq);
        assert_eq!((got.op_context, got.len), (context(number), bytes));
        assert_eq!(got.flags, FI_RECV | FI_MSG);
        assert_eq!((got.data, got.tag), (0, 0));
    }
    for (number, bytes) in [(11, 5), (12, 16), (13, 8)] {
        let sent = completion(two.client_cq);
        assert_eq!((sent.op_context, sent.len), (context(number), bytes));
        assert_eq!((sent.flags, sent.buf), (FI_SEND | FI_MSG, null_mut()));
    }
    assert_eq!(into[0][..5], *b"plain");
    assert_eq!(into[1], *b"one and another.");
    assert_eq!(into[2][..8], *b"one and ");
}

#[test]
fn injected_data_is_copied_and_reports_nothing() {
    let two = Two::open();
    let mut into = [[0_u8; INJECT_BYTES]; 2];
    let [a, b] = &mut into;
    for into in [a, b] {
        assert_eq!(two.receive(two.server, into, null_mut()), 0);
    }
    let mut from = vec![7_u8; INJECT_BYTES];
    let inject = |from: &[u8]| op!(two.client, msg.inject(from.as_ptr().cast(), from.len(), 0));
    assert_eq!(inject(&from), 0);
    // The buffer is the caller's again at once.
    from.fill(8);
    let mut longer = vec![9; INJECT_BYTES + 1];
    assert_eq!(inject(&longer), failed(libc::EMSGSIZE));
    // With the flag instead of the call, and its own completion.
    longer.truncate(3);
    let pieces = [iov(&mut longer)];
    let message = fi_msg {
        msg_iov: pieces.as_ptr(),
        iov_count: 1,
        context: context(4),
        ..zeroed()
    };
    assert_eq!(op!(two.client, msg.sendmsg(&message, FI_INJECT)), 0);
    longer.fill(0);
    assert_eq!(completion(two.server_cq).len, INJECT_BYTES);
    assert_eq!(completion(two.server_cq).len, 3);
    assert_eq!(into[0], [7; INJECT_BYTES]);
    assert_eq!(into[1][..4], [9, 9, 9, 0]);
    assert_eq!(completion(two.client_cq).op_context, context(4));
    assert!(take(two.client_cq).is_err());
}

#[test]
fn data_comes_with_its_message_and_takes_no_receive() {
    let two = Two::open();
    let mut into = [[0_u8; 8]; 4];
    for (index, into) in into.iter_mut().enumerate() {
        assert_eq!(two.receive(two.server, into, context(index)), 0);
    }
    let client = two.client;
    let from = *b"with";
    let address = from.as_ptr().cast();
    let sent = op!(
        client,
        msg.senddata(address, 4, null_mut(), 0x1234, 0, context(1))
    );
    assert_eq!(sent, 0);
    assert_eq!(op!(client, msg.injectdata(address, 4, u64::MAX, 0)), 0);
    let mut bytes = *b"flag";
    let pieces = [iov(&mut bytes)];
    let message = fi_msg {
        msg_iov: pieces.as_ptr(),
        iov_count: 1,
        data: 5,
        context: context(3),
        ..zeroed()
    };
    assert_eq!(op!(client, msg.sendmsg(&message, FI_REMOTE_CQ_DATA)), 0);
    assert_eq!(
        op!(client, msg.sendmsg(&message, 0)),
        0,
        "without the flag: no data"
    );
    let with = FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA;
    for (index, data, flags) in [
        (0, 0x1234, with),
        (1, u64::MAX, with),
        (2, 5, with),
        (3, 0, FI_RECV | FI_MSG),
    ] {
        let got = completion(two.server_cq);
        assert_eq!((got.op_context, got.len), (context(index), 4));
        assert_eq!((got.data, got.flags), (data, flags));
    }
    for number in [1, 3, 3] {
        assert_eq!(completion(two.client_cq).op_context, context(number));
    }
}

#[test]
fn wrong_buffers_and_endpoints_are_refused() {
    let two = Two::open();
    let (client, invalid) = (two.client, failed(libc::EINVAL));
    let none: *const iovec = ptr::null();
    let mut byte = [1_u8];
    let five = [iov(&mut byte); 5];
    assert_eq!(
        op!(client, msg.sendv(none, null_mut(), 1, 0, null_mut())),
        invalid
    );
    assert_eq!(
        op!(
            client,
            msg.sendv(five.as_ptr(), null_mut(), 5, 0, null_mut())
        ),
        invalid
    );
    let wild = usize::MAX;
    assert_eq!(
        op!(
            client,
            msg.sendv(five.as_ptr(), null_mut(), wild, 0, null_mut())
        ),
        invalid
    );
    assert_eq!(
        op!(client, msg.recvv(none, null_mut(), 1, 0, null_mut())),
        invalid
    );
    assert_eq!(
        op!(
            client,
            msg.recvv(five.as_ptr(), null_mut(), 5, 0, null_mut())
        ),
        invalid
    );
    let huge = iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1 << 32,
    };
    let sent = op!(client, msg.sendv(&huge, null_mut(), 1, 0, null_mut()));
    assert_eq!(sent, failed(libc::EMSGSIZE));
    let longest = iovec {
        iov_len: (1 << 30) + 1,
        ..huge
    };
    let sent = op!(client, msg.sendv(&longest, null_mut(), 1, 0, null_mut()));
    assert_eq!(sent, failed(libc::EMSGSIZE));
    // Nothing of this is in the way of a message of no pieces at all.
    assert_eq!(two.receive(two.server, &mut [], context(1)), 0);
    assert_eq!(
        op!(client, msg.sendv(none, null_mut(), 0, 0, context(2))),
        0
    );
    assert_eq!(completion(two.server_cq).len, 0);
    assert_eq!(completion(two.client_cq).op_context, context(2));
    let alone = two.world.endpoint(two.world.offers.0, null_mut());
    assert_eq!(two.send(alone, b"x", null_mut()), failed(libc::ENOTCONN));
    assert_eq!(close(alone), 0);
}

#[test]
fn receives_may_be_posted_before_the_connection() {
    let world = World::open();
    let (pep, address) = world.listener();
    let cq = world.cq(FI_CQ_FORMAT_TAGGED);
    let mut early = [0_u8; 8];
    let client = world.endpoint(world.offers.0, null_mut());
    assert_eq!(bind(client, cq, FI_SEND | FI_RECV), 0);
    let mut posted = |number| {
        let buffer = early.as_mut_ptr().cast();
        op!(client, msg.recv(buffer, 8, null_mut(), 0, context(number)))
    };
    assert_eq!([posted(1), posted(2), posted(3)], [0; 3]);
    // One of them is taken back before there is a pair that could know of it.
    assert_eq!(op!(head client, ops.cancel(context(2))), 0);
    assert_eq!(
        op!(head client, ops.cancel(context(2))),
        failed(libc::ENOENT)
    );
    let mut error = zeroed::<fi_cq_err_entry>();
    assert_eq!(op!(cq, ops.readerr(&mut error, 0)), 1);
    assert_eq!((error.op_context, error.err), (context(2), libc::ECANCELED));
    assert_eq!(
        op!(client, cm.connect(address.as_ptr().cast(), ptr::null(), 0)),
        0
    );
    let request = Offers(world.event().1.context.cast());
    let server = world.endpoint(request.0, null_mut());
    assert_eq!(bind(server, cq, FI_SEND), 0);
    assert_eq!(op!(server, cm.accept(ptr::null(), 0)), 0);
    assert_eq!([world.event().0, world.event().0], [FI_CONNECTED; 2]);
    for text in [b"first", b"third"] {
        assert_eq!(op!(server, msg.inject(text.as_ptr().cast(), 5, 0)), 0);
    }
    for number in [1, 3] {
        assert_eq!(completion(cq).op_context, context(number));
    }
    for object in [client.cast::<fid>(), server.cast(), pep.cast(), cq.cast()] {
        assert_eq!(close(object), 0);
    }
}

#[test]
fn an_endpoint_has_a_bound_of_unread_operations() {
    let two = Two::open();
    let mut into = [0_u8; 8];
    for index in 0..DEPTH_MAX {
        assert_eq!(two.receive(two.server, &mut into, context(index)), 0);
    }
    let full = failed(libc::EAGAIN);
    assert_eq!(two.receive(two.server, &mut into, null_mut()), full);
    for _ in 0..DEPTH_MAX {
        assert_eq!(two.send(two.client, b"x", context(5)), 0);
    }
    assert_eq!(two.send(two.client, b"x", context(5)), full);
    // Completions that were not read count: the queue cannot grow beyond them.
    assert_eq!(completion(two.server_cq).op_context, context(0));
    assert_eq!(two.receive(two.server, &mut into, context(1)), 0);
    assert_eq!(two.receive(two.server, &mut into, context(1)), full);
    assert_eq!(completion(two.client_cq).op_context, context(5));
    assert_eq!(two.send(two.client, b"x", context(5)), 0);
    assert_eq!(two.send(two.client, b"x", context(5)), full);
    for _ in 1..DEPTH_MAX {
        completion(two.server_cq);
    }
}

#[test]
fn selective_completion_reports_what_asks_for_it() {
    let two = Two::bound(FI_SELECTIVE_COMPLETION, |_, _| {});
    let mut into = [0_u8; 4];
    for number in 0..3 {
        assert_eq!(two.receive(two.server, &mut into, context(number)), 0);
    }
    let mut byte = [1_u8];
    let pieces = [iov(&mut byte)];
    let message = fi_msg {
        msg_iov: pieces.as_ptr(),
        iov_count: 1,
        context: context(9),
        ..zeroed()
    };
    assert_eq!(two.send(two.client, b"x", context(8)), 0);
    assert_eq!(op!(two.client, msg.sendmsg(&message, FI_COMPLETION)), 0);
    let mut flags = FI_SEND | FI_COMPLETION;
    assert_eq!(control(two.client, FI_SETOPSFLAG, &mut flags), 0);
    assert_eq!(
        two.send(two.client, b"x", context(10)),
        0,
        "by the endpoint's flags"
    );
    assert_eq!(completion(two.client_cq).op_context, context(9));
    assert_eq!(completion(two.client_cq).op_context, context(10));
    // The other side's queue reports everything.
    for number in 0..3 {
        assert_eq!(completion(two.server_cq).op_context, context(number));
    }
}
