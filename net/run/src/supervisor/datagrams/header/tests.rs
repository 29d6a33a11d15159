use super::*;
use crate::supervisor::tests::fixtures::callers;
use sidecore_sys::seccomp::Answer;

/// `struct msghdr`, in the order of its fields.
struct Written {
    name: u64,
    name_bytes: i32,
    pieces: u64,
    count: u64,
    control: u64,
    control_bytes: u64,
}

const EMPTY: Written = Written {
    name: 0,
    name_bytes: 0,
    pieces: 0,
    count: 0,
    control: 0,
    control_bytes: 0,
};

impl Written {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.name.to_ne_bytes().to_vec();
        bytes.extend(self.name_bytes.to_ne_bytes());
        // Padding: a program may leave anything there.
        bytes.extend([0xff; 4]);
        for word in [self.pieces, self.count, self.control, self.control_bytes] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend([0; 8]);
        bytes
    }
}

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr().addr() as u64
}

fn pieces(list: &[(u64, u64)]) -> Vec<u8> {
    let words = list.iter().flat_map(|piece| [piece.0, piece.1]);
    words.flat_map(u64::to_ne_bytes).collect()
}

/// Runs `work` as a caller whose memory is this process's.
fn as_caller<T>(work: impl FnOnce(&mut Caller<'_>) -> T) -> T {
    let (listener, callers) = callers(1);
    let call = callers.calls[0];
    let done = work(&mut Caller::new(call, &listener));
    listener.answer(call.id, Answer::Value(0));
    assert_eq!(callers.results(), [Ok(())]);
    done
}

fn read(written: &Written) -> Result<Header, Errno> {
    let bytes = written.bytes();
    assert_eq!(bytes.len(), HEADER_BYTES.to_usize());
    as_caller(|caller| Header::read(caller, address(&bytes)))
}

#[test]
fn a_header_is_read_field_by_field() {
    let list = pieces(&[(1, 2), (3, 4)]);
    let header = read(&Written {
        name: 5,
        name_bytes: 6,
        pieces: address(&list),
        count: 2,
        control: 7,
        control_bytes: 8,
    });
    let header = header.unwrap();
    assert_eq!((header.name, header.name_bytes), (5, 6));
    assert_eq!(header.pieces, [(1, 2), (3, 4)]);
    assert_eq!((header.control, header.control_bytes), (7, 8));
    assert!(!header.is_bare());
}

#[test]
fn lengths_that_the_kernel_refuses_are_refused() {
    let negative = Written {
        name_bytes: -1,
        ..EMPTY
    };
    assert_eq!(read(&negative).err(), Some(Errno::INVAL));
    let many = Written {
        count: PIECES_MAX + 1,
        ..EMPTY
    };
    assert_eq!(read(&many).err(), Some(Errno::MSGSIZE));
    let nowhere = Written {
        pieces: 1,
        count: 1,
        ..EMPTY
    };
    assert_eq!(read(&nowhere).err(), Some(Errno::FAULT));
}

#[test]
fn no_sum_of_lengths_overflows() {
    let largest = u64::try_from(isize::MAX).unwrap();
    for (bytes, expected) in [
        (u64::MAX, Some(Errno::INVAL)),
        (largest + 1, Some(Errno::INVAL)),
        (largest, None),
    ] {
        let list = pieces(&[(1, 1), (1, bytes)]);
        let written = Written {
            pieces: address(&list),
            count: 2,
            ..EMPTY
        };
        assert_eq!(read(&written).err(), expected, "{bytes}");
    }
}

#[test]
fn a_header_without_address_and_control_is_bare() {
    assert!(read(&EMPTY).unwrap().is_bare());
    for (written, is_bare) in [
        (Written { name: 1, ..EMPTY }, false),
        (
            Written {
                control: 1,
                ..EMPTY
            },
            true,
        ),
        (
            Written {
                control_bytes: 1,
                ..EMPTY
            },
            true,
        ),
        (
            Written {
                control: 1,
                control_bytes: 1,
                ..EMPTY
            },
            false,
        ),
    ] {
        assert_eq!(read(&written).unwrap().is_bare(), is_bare);
    }
}

#[test]
fn control_messages_are_taken_out_of_each_header() {
    let control = [0; 8];
    let one = Written {
        control: address(&control),
        control_bytes: 8,
        ..EMPTY
    };
    let mut messages = Vec::new();
    for _ in 0..3 {
        messages.extend(one.bytes());
        messages.extend([0; 8]);
    }
    let at = address(&messages);
    as_caller(|caller| clear_controls(caller, at, 2, false)).unwrap();
    // Written through /proc, which the compiler does not see.
    let messages = std::hint::black_box(messages);
    let bytes_of = |index: usize| {
        let at = index * MESSAGE_BYTES.to_usize() + CONTROL_BYTES_AT.to_usize();
        u64::from_ne_bytes(*messages[at..].first_chunk().unwrap())
    };
    assert_eq!((bytes_of(0), bytes_of(1), bytes_of(2)), (0, 0, 8));
}

#[test]
fn control_messages_to_send_are_judged_first() {
    let too_many = Written {
        control: 1,
        control_bytes: CONTROL_BYTES_MAX + 1,
        ..EMPTY
    };
    let unmapped = Written {
        control: 1,
        control_bytes: 16,
        ..EMPTY
    };
    // Less than a header: the kernel ignores it.
    let short = [0; 8];
    let ignored = Written {
        control: address(&short),
        control_bytes: 8,
        ..EMPTY
    };
    for (written, expected) in [
        (&too_many, Err(Errno::NOBUFS)),
        (&unmapped, Err(Errno::FAULT)),
        (&ignored, Ok(())),
        (&EMPTY, Ok(())),
    ] {
        let bytes = written.bytes();
        let at = address(&bytes);
        let cleared = as_caller(|caller| clear_control(caller, at, true));
        assert_eq!(cleared, expected);
    }
}
