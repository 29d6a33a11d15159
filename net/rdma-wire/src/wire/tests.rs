//! The formats: bytes from the RFCs and from a kernel peer, and round trips.

use crate::Stag;
use crate::wire::ddp::{
    AtomicRequest, AtomicResponse, COMPARE_SWAP, FETCH_ADD, Header, Opcode, ReadRequest, SWAP,
    Target,
};
use crate::wire::mpa::{Enhanced, PRIVATE_BYTES_MAX, Side, Start, StartError};
use crate::wire::terminate::{CAUSES, Cause, Terminate};
use proptest::prelude::*;

fn start(key: &[u8; 16], rest: &[u8]) -> Vec<u8> {
    [key.as_slice(), rest].concat()
}

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

#[test]
fn start_frames_of_a_kernel_peer_are_read() {
    // Linux's siw: without CRC, without peer to peer.
    let bytes = start(REQUEST, &[0x10, 2, 0, 4, 0, 1, 0, 1]);
    let (read, count) = Start::read(&bytes, Side::Initiator)
        .expect("a frame")
        .expect("whole");
    assert_eq!(
        (count, read.crc, read.markers, read.revision),
        (24, false, false, 2)
    );
    let plain = Enhanced {
        ird: 1,
        ord: 1,
        ..Enhanced::default()
    };
    assert_eq!((read.enhanced, read.private_data.len()), (Some(plain), 0));
    assert_eq!(read.bytes(), bytes);
    // The same with CRC and peer to peer, and the reply to it.
    let bytes = start(REQUEST, &[0x50, 2, 0, 4, 0x80, 1, 0xc0, 1]);
    let (read, _) = Start::read(&bytes, Side::Initiator)
        .expect("a frame")
        .expect("whole");
    let asked = Enhanced {
        peer_to_peer: true,
        ready_by_write: true,
        ready_by_read: true,
        ..plain
    };
    assert_eq!((read.crc, read.enhanced), (true, Some(asked)));
    assert_eq!(read.bytes(), bytes);
    let bytes = start(REPLY, &[0x50, 2, 0, 4, 0x80, 1, 0x80, 1]);
    let (read, _) = Start::read(&bytes, Side::Responder)
        .expect("a frame")
        .expect("whole");
    let answered = Enhanced {
        ready_by_read: false,
        ..asked
    };
    assert_eq!(read.enhanced, Some(answered));
}

#[test]
fn wrong_start_frames_are_told_as_early_as_they_show() {
    let read = |bytes: &[u8]| Start::read(bytes, Side::Initiator).map(|read| read.is_some());
    assert_eq!(read(b""), Ok(false));
    assert_eq!(read(b"MPA"), Ok(false));
    assert_eq!(read(b"GET /"), Err(StartError::Key));
    assert_eq!(read(&start(REPLY, &[0x40, 1, 0, 0])), Err(StartError::Key));
    assert_eq!(read(&start(REQUEST, &[0x40, 3])), Ok(false));
    assert_eq!(
        read(&start(REQUEST, &[0x40, 3, 0, 0])),
        Err(StartError::Revision(3))
    );
    assert_eq!(
        read(&start(REQUEST, &[0x40, 0, 0, 0])),
        Err(StartError::Revision(0))
    );
    assert_eq!(
        read(&start(REQUEST, &[0x40, 1, 2, 1])),
        Err(StartError::TooLong(513))
    );
    assert_eq!(
        read(&start(REQUEST, &[0x50, 2, 0, 3])),
        Err(StartError::TooShort(3))
    );
    assert_eq!(
        read(&start(REQUEST, &[0x20, 1, 0, 0])),
        Err(StartError::Reject)
    );
    assert_eq!(read(&start(REQUEST, &[0x40, 1, 0, 2, 7])), Ok(false));
    assert_eq!(read(&start(REQUEST, &[0x40, 1, 0, 2, 7, 8])), Ok(true));
    // In revision 1 the enhanced flag is ignored.
    let bytes = start(REQUEST, &[0x50, 1, 0, 1, 7]);
    let (frame, _) = Start::read(&bytes, Side::Initiator)
        .expect("a frame")
        .expect("whole");
    assert_eq!((frame.enhanced, frame.private_data), (None, vec![7]));
}

#[test]
fn headers_have_the_bytes_of_the_rfcs() {
    // RFC 5041, figures 6 and 7; RFC 5040, figures 2 to 4.
    let write = Target::Tagged {
        stag: Stag(0x0102_0304),
        offset: 0x1122_3344_5566_7788,
    };
    let bytes = [
        0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
    ];
    assert_eq!(Header::new(true, Opcode::Write, write).bytes(), bytes);
    let send = Target::Untagged {
        invalidate: Stag(0xaabb_ccdd),
        queue: 0,
        msn: 7,
        offset: 0x100,
    };
    let bytes = [
        0x01, 0x46, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 1, 0,
    ];
    let header = Header::new(false, Opcode::SendSolicitedInvalidate, send);
    assert_eq!(header.bytes(), bytes);
    let request = ReadRequest {
        sink: Stag(1),
        sink_offset: 2,
        count: 3,
        source: Stag(4),
        source_offset: 5,
    };
    let bytes = [
        0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5,
    ];
    assert_eq!(request.bytes(), bytes);
}

#[test]
fn terminate_messages_have_the_bytes_of_the_rfcs() {
    // RFC 5040, section 4.8: layer and type, code, contents, reserved; length; headers.
    assert_eq!(Terminate::new(Cause::Crc).bytes(), [0x20, 0x02, 0, 0]);
    let mut segment = vec![0xc1, 0x40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1];
    segment.extend([5; 100]);
    let told = Terminate::blaming(Cause::TaggedBounds, &segment, false).bytes();
    let expected = [&[0x11, 0x01, 0xc0, 0, 0, 114][..], &segment[..14]].concat();
    assert_eq!(told, expected);
    let mut read = vec![0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    read.extend(0..28);
    let told = Terminate::blaming(Cause::AccessRights, &read, true).bytes();
    let expected = [&[0x01, 0x02, 0xe0, 0, 0, 46][..], &read].concat();
    assert_eq!(told, expected);
}

#[test]
fn each_cause_has_numbers_of_its_own() {
    for (cause, numbers) in CAUSES {
        assert_eq!(cause.numbers(), numbers);
        assert_eq!(Cause::of(numbers), Some(cause));
    }
    assert_eq!(Cause::of([2, 0, 0x55]), None);
    // A kernel peer that swaps the halves of the first byte.
    let read = Terminate::read(&[0x02, 0x02, 0, 0]).expect("a message");
    assert_eq!((read.numbers, read.cause()), ([0, 2, 2], None));
}

#[test]
fn words_are_changed_as_the_operations_say() {
    let request = |operation, operand, operand_mask, compare, compare_mask| AtomicRequest {
        operation,
        identifier: 1,
        stag: Stag(2),
        offset: 8,
        operand,
        operand_mask,
        compare,
        compare_mask,
    };
    let add = request(FETCH_ADD, 1, 0, 0, 0);
    assert_eq!(add.apply(u64::MAX), Some(0));
    // Four fields of 16 bits, none of which carries into the next.
    let ends = 0x8000_8000_8000_8000;
    let add = request(FETCH_ADD, 0x0001_0002_0003_0004, ends, 0, 0);
    assert_eq!(
        add.apply(0xffff_0001_fffe_0000),
        Some(0x0000_0003_0001_0004)
    );
    let swap = request(SWAP, 0x1234, 0xff, 0, 0);
    assert_eq!(swap.apply(0xabcd), Some(0xab34));
    let compared = request(COMPARE_SWAP, 9, u64::MAX, 5, u64::MAX);
    assert_eq!((compared.apply(5), compared.apply(6)), (Some(9), Some(6)));
    let masked = request(COMPARE_SWAP, 9, 0x0f, 0x05, 0xff);
    assert_eq!(
        (masked.apply(0x105), masked.apply(0x115)),
        (Some(0x109), Some(0x115))
    );
    assert_eq!(request(3, 0, 0, 0, 0).apply(0), None);
}

fn targets() -> impl Strategy<Value = Target> {
    let tagged = any::<(u32, u64)>().prop_map(|(stag, offset)| Target::Tagged {
        stag: Stag(stag),
        offset,
    });
    let untagged = any::<[u32; 4]>().prop_map(|[stag, queue, msn, offset]| Target::Untagged {
        invalidate: Stag(stag),
        queue,
        msn,
        offset,
    });
    tagged.boxed().prop_union(untagged.boxed())
}

proptest! {
    #[test]
    fn start_frames_are_read_as_written(
        flags in any::<[bool; 7]>(),
        depths in any::<[u16; 2]>(),
        data in prop::collection::vec(any::<u8>(), 0..600),
        cut in 0..600_usize,
    ) {
        let [initiator, markers, crc, enhanced, peer_to_peer, by_write, by_read] = flags;
        let side = if initiator { Side::Initiator } else { Side::Responder };
        let mut start = Start {
            side,
            markers,
            crc,
            reject: !initiator && by_read,
            revision: if enhanced { 2 } else { 1 },
            enhanced: enhanced.then_some(Enhanced {
                peer_to_peer,
                ready_by_empty: by_read,
                ready_by_write: by_write,
                ready_by_read: by_read,
                ird: depths[0] & 0x3fff,
                ord: depths[1] & 0x3fff,
            }),
            private_data: data,
        };
        let bytes = start.bytes();
        start.private_data.truncate(start.private_bytes_max());
        prop_assert!(bytes.len() <= 20 + PRIVATE_BYTES_MAX);
        prop_assert_eq!(Start::read(&bytes, side), Ok(Some((start, bytes.len()))));
        let cut = cut.min(bytes.len() - 1);
        prop_assert_eq!(Start::read(&bytes[..cut], side), Ok(None));
    }

    #[test]
    fn headers_are_read_as_written(
        last in any::<bool>(),
        versions in any::<[bool; 2]>(),
        opcode in 0..16_u8,
        target in targets(),
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let header = Header {
            last,
            ddp_version: versions[0],
            rdmap_version: versions[1],
            opcode,
            target,
        };
        let bytes = [header.bytes(), payload.clone()].concat();
        prop_assert_eq!(Header::read(&bytes), Some((header, &payload[..])));
        prop_assert_eq!(Header::read(&bytes[..header.count() - 1]), None);
    }

    #[test]
    fn requests_are_read_as_written(words in any::<[u64; 6]>(), operation in 0..16_u8) {
        let [a, b, c, d, e, f] = words;
        let read = ReadRequest {
            sink: Stag(a as u32),
            sink_offset: b,
            count: c as u32,
            source: Stag(d as u32),
            source_offset: e,
        };
        prop_assert_eq!(ReadRequest::read(&read.bytes()), Some(read));
        prop_assert_eq!(ReadRequest::read(&read.bytes()[1..]), None);
        let atomic = AtomicRequest {
            operation,
            identifier: a as u32,
            stag: Stag(b as u32),
            offset: c,
            operand: d,
            operand_mask: e,
            compare: f,
            compare_mask: a,
        };
        prop_assert_eq!(AtomicRequest::read(&atomic.bytes()), Some(atomic));
        let response = AtomicResponse { identifier: a as u32, original: b };
        prop_assert_eq!(AtomicResponse::read(&response.bytes()), Some(response));
    }

    #[test]
    fn terminate_messages_are_read_as_written(
        cause in 0..CAUSES.len(),
        target in targets(),
        payload in prop::collection::vec(any::<u8>(), 0..60),
        is_read in any::<bool>(),
    ) {
        let header = Header::new(true, Opcode::ReadRequest, target);
        let segment = [header.bytes(), payload].concat();
        let told = Terminate::blaming(CAUSES[cause].0, &segment, is_read);
        prop_assert_eq!(Terminate::read(&told.bytes()), Some(told));
    }

    #[test]
    fn nothing_that_comes_panics(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Header::read(&bytes);
        let _ = Terminate::read(&bytes);
        let _ = Start::read(&bytes, Side::Initiator);
        let key = [REPLY.as_slice(), &bytes].concat();
        let _ = Start::read(&key, Side::Responder);
    }
}
