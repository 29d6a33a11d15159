//! Registered memory, and reads and writes of it.

use super::*;

const ALL: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RECV | FI_READ;

fn key(mr: *mut fid_mr) -> u64 {
    // SAFETY: a region that is not closed.
    unsafe { (*mr).key }
}

fn address(words: &[u64]) -> u64 {
    words.as_ptr().addr().try_into().expect("64 bits")
}

#[test]
fn registration_takes_one_piece_and_gives_each_its_own_key() {
    let world = World::open();
    let mut words = [0_u64; 4];
    let first = world.memory(&mut words, ALL);
    let second = world.memory(&mut words, FI_REMOTE_READ);
    assert_ne!(key(first), key(second), "the same memory, other rights");
    // SAFETY: a region.
    assert!(key(first) <= u64::from(u32::MAX) && unsafe { (*first).mem_desc.is_null() });
    let pieces = [iov(&mut words[..2].to_vec()), iov(&mut [0_u64])];
    let mut mr = null_mut();
    // SAFETY: a domain, pieces that are refused, a place for a pointer.
    unsafe {
        let regv = (*(*world.domain).mr).regv.expect("regv");
        for count in [0, 2] {
            let domain = world.domain.cast();
            let done = regv(
                domain,
                pieces.as_ptr(),
                count,
                ALL,
                0,
                0,
                0,
                &mut mr,
                null_mut(),
            );
            assert_eq!(done, -libc::EINVAL, "{count}");
        }
    }
    assert!(mr.is_null());
    assert_eq!([close(first), close(second)], [0; 2]);
}

#[test]
fn bytes_go_both_ways_by_each_call() {
    let two = Two::open();
    let (client, cq) = (two.client, two.client_cq);
    let mut there = [0_u64; 4];
    let mr = two.world.memory(&mut there, ALL);
    let (key, base) = (key(mr), address(&there));
    let from = [1_u64, 2];
    let written = op!(
        client,
        rma.write(
            from.as_ptr().cast(),
            16,
            null_mut(),
            0,
            base,
            key,
            context(1)
        )
    );
    assert_eq!(written, 0);
    let done = completion(cq);
    assert_eq!(
        (done.op_context, done.flags, done.len),
        (context(1), FI_WRITE | FI_RMA, 16)
    );
    let (mut a, mut b) = ([3_u64], [4_u64]);
    let pieces = [iov(&mut a), iov(&mut b)];
    let written = op!(
        client,
        rma.writev(
            pieces.as_ptr(),
            null_mut(),
            2,
            0,
            base + 16,
            key,
            context(2)
        )
    );
    assert_eq!(written, 0);
    assert_eq!(completion(cq).op_context, context(2));
    let mut back = [0_u64; 4];
    let read = op!(
        client,
        rma.read(
            back.as_mut_ptr().cast(),
            32,
            null_mut(),
            0,
            base,
            key,
            context(3)
        )
    );
    assert_eq!(read, 0);
    let done = completion(cq);
    assert_eq!(
        (done.op_context, done.flags, done.len),
        (context(3), FI_READ | FI_RMA, 32)
    );
    assert_eq!(back, [1, 2, 3, 4]);
    // Several pieces of a read are filled in their order, and are one operation.
    let (left, right) = back.split_at_mut(1);
    let pieces = [iov(right), iov(left)];
    let read = op!(
        client,
        rma.readv(pieces.as_ptr(), null_mut(), 2, 0, base, key, context(4))
    );
    assert_eq!(read, 0);
    let done = completion(cq);
    assert_eq!((done.op_context, done.len), (context(4), 32));
    assert_eq!(back, [4, 1, 2, 3]);
    assert!(take(cq).is_err());
    assert_eq!(
        op!(
            client,
            rma.inject(from.as_ptr().cast(), 8, 0, base + 24, key)
        ),
        0
    );
    // Behind it in order: what is injected has no completion of its own.
    let message = fi_msg_rma {
        msg_iov: pieces.as_ptr(),
        iov_count: 1,
        rma_iov: &fi_rma_iov {
            addr: base + 8,
            len: 24,
            key,
        },
        rma_iov_count: 1,
        context: context(5),
        ..zeroed()
    };
    assert_eq!(op!(client, rma.readmsg(&message, 0)), 0);
    assert_eq!(completion(cq).op_context, context(5));
    assert_eq!(back, [4, 2, 3, 1]);
    assert_eq!(
        op!(
            client,
            rma.writemsg(&message, FI_DELIVERY_COMPLETE | FI_FENCE)
        ),
        0
    );
    assert_eq!(completion(cq).op_context, context(5));
    assert_eq!(there, [1, 2, 3, 1], "the completion proves that it arrived");
    assert_eq!(close(mr), 0);
}

#[test]
fn a_message_form_names_one_place_of_the_peer() {
    let two = Two::open();
    let mut word = [0_u64];
    let pieces = [iov(&mut word)];
    let place = [zeroed::<fi_rma_iov>(); 2];
    for count in [0, 2] {
        let message = fi_msg_rma {
            msg_iov: pieces.as_ptr(),
            iov_count: 1,
            rma_iov: place.as_ptr(),
            rma_iov_count: count,
            ..zeroed()
        };
        assert_eq!(
            op!(two.client, rma.readmsg(&message, 0)),
            failed(libc::EINVAL)
        );
        assert_eq!(
            op!(two.client, rma.writemsg(&message, 0)),
            failed(libc::EINVAL)
        );
    }
}

#[test]
fn data_of_a_write_takes_a_receive_of_the_peer() {
    let two = Two::open();
    let mut there = [0_u64; 2];
    let mr = two.world.memory(&mut there, ALL);
    let (key, base) = (key(mr), address(&there));
    let mut untouched = [0xee_u8; 8];
    for number in [1, 2] {
        assert_eq!(two.receive(two.server, &mut untouched, context(number)), 0);
    }
    let from = [5_u64];
    let (client, bytes) = (two.client, from.as_ptr().cast());
    let written = op!(
        client,
        rma.writedata(bytes, 8, null_mut(), 77, 0, base, key, context(9))
    );
    assert_eq!(written, 0);
    assert_eq!(
        op!(client, rma.injectdata(bytes, 8, 78, 0, base + 8, key)),
        0
    );
    for (number, data) in [(1, 77), (2, 78)] {
        let got = completion(two.server_cq);
        assert_eq!((got.op_context, got.data), (context(number), data));
        assert_eq!(got.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
        assert_eq!((got.len, got.buf), (0, null_mut()));
    }
    assert_eq!((there, untouched), ([5, 5], [0xee; 8]));
    assert_eq!(completion(two.client_cq).op_context, context(9));
    assert!(take(two.client_cq).is_err());
    assert_eq!(close(mr), 0);
}

#[test]
fn a_key_without_the_right_costs_the_connection() {
    for (access, offset, wrong_key) in [(FI_REMOTE_READ, 0, false), (ALL, 8, false), (ALL, 0, true)]
    {
        let two = Two::open();
        let mut there = [1_u64];
        let mr = two.world.memory(&mut there, access);
        let key = if wrong_key { 1 << 40 } else { key(mr) };
        let base = address(&there) + offset;
        let from = [9_u64];
        let bytes = from.as_ptr().cast();
        // It is done for this side before the peer refuses it.
        let written = op!(
            two.client,
            rma.write(bytes, 8, null_mut(), 0, base, key, context(1))
        );
        assert_eq!(written, 0);
        for _ in 0..2 {
            assert_eq!(two.world.event().0, FI_SHUTDOWN);
        }
        assert_eq!(there, [1]);
        assert_eq!(
            two.send(two.client, b"x", null_mut()),
            failed(libc::ENOTCONN)
        );
        assert_eq!(
            two.receive(two.client, &mut [0], null_mut()),
            failed(libc::ENOTCONN)
        );
        assert_eq!(close(mr), 0);
    }
}
