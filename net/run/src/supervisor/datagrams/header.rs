//! `struct msghdr` in a program's memory (recvmsg(2)), and the datagrams that are received into it.
//!
//! Must stay true: any bytes can be parsed; excessive counts are refused before anything is copied.

use crate::caller::Caller;
use crate::supervisor::Reply;
use rustix::io::Errno;
use sidecore_bare::width::ToUsize as _;
use sidecore_sys::control_message::judge_for_tcp;

/// `struct msghdr`, with the layout of 64-bit programs.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) name: u64,
    pub(super) name_bytes: u32,
    pub(super) pieces: Vec<(u64, usize)>,
    pub(super) control: u64,
    pub(super) control_bytes: u64,
}

impl Header {
    pub(super) fn read(caller: &mut Caller<'_>, at: u64) -> Result<Self, Errno> {
        let bytes = caller.read(at, HEADER_BYTES.to_usize())?;
        let word = |at: usize| -> u64 {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        // An `int` with padding behind it.
        let name_bytes = bytes.get(8..).and_then(|bytes| bytes.first_chunk());
        let name_bytes = name_bytes.map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        let name_bytes = u32::try_from(name_bytes).map_err(|_| Errno::INVAL)?;
        let count = word(24);
        if count > PIECES_MAX {
            return Err(Errno::MSGSIZE);
        }
        let list = caller.read(word(16), count.to_usize() * 16)?;
        let (pairs, _) = list.as_chunks::<16>();
        let pieces = pairs.iter().map(|pair| {
            let half = |at: usize| {
                let bytes = pair[at..].first_chunk();
                bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
            };
            // As in the kernel, a length is a `ssize_t`. Larger ones would overflow in sums.
            let bytes = isize::try_from(half(8)).map_err(|_| Errno::INVAL)?;
            Ok((half(0), bytes.cast_unsigned()))
        });
        Ok(Self {
            name: word(0),
            name_bytes,
            pieces: pieces.collect::<Result<_, Errno>>()?,
            control: word(32),
            control_bytes: word(40),
        })
    }

    /// True if it has a buffer neither for an address nor for control messages.
    pub(super) fn is_bare(&self) -> bool {
        self.name == 0 && (self.control == 0 || self.control_bytes == 0)
    }
}

/// Clears the control messages of one header in the caller's memory, before the kernel runs the
/// call: TCP has none, but the pair in place of the session would pass descriptors (SCM_RIGHTS).
/// Messages to send are checked first.
///
/// # Errors
/// `EFAULT`; for messages to send, the kernel's errors.
pub(super) fn clear_control(caller: &mut Caller<'_>, at: u64, is_sent: bool) -> Result<(), Errno> {
    let words = caller.read(at + CONTROL_AT, 16)?;
    let word = |at: usize| {
        let bytes = words.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    let (control, bytes) = (word(0), word(8));
    // Nothing to clear: a write would fault where the header is read-only.
    if bytes == 0 || control == 0 {
        return Ok(());
    }
    if is_sent {
        if bytes > CONTROL_BYTES_MAX {
            return Err(Errno::NOBUFS);
        }
        judge_for_tcp(&caller.read(control, bytes.to_usize())?)?;
    }
    caller.write(at + CONTROL_BYTES_AT, &0u64.to_ne_bytes())
}

/// The same for each header of sendmmsg(2) and recvmmsg(2).
///
/// # Errors
/// Those of the first header that fails; the kernel would stop there, too.
pub(super) fn clear_controls(
    caller: &mut Caller<'_>,
    at: u64,
    count: u64,
    is_sent: bool,
) -> Result<(), Errno> {
    // The kernel takes as many messages at most (UIO_MAXIOV).
    for index in 0..count.min(PIECES_MAX) {
        clear_control(caller, at + index * MESSAGE_BYTES, is_sent)?;
    }
    Ok(())
}

/// Room for a datagram in a program's memory.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) payload: usize,
    pub(super) control: usize,
}

/// Result of an attempt to take a datagram from where it waits.
pub(super) enum Taken {
    Datagram(Arrived),
    Reply(Reply),
}

/// A datagram for the caller.
pub(super) struct Arrived {
    /// The result of the call.
    pub(super) bytes: usize,
    pub(super) payload: Vec<u8>,
    pub(super) control: Vec<u8>,
    pub(super) name: Vec<u8>,
    pub(super) flags: i32,
}

/// Size and field offsets of `struct msghdr`.
pub(super) const HEADER_BYTES: u64 = 56;
pub(super) const NAME_BYTES_AT: u64 = 8;
const CONTROL_AT: u64 = 32;
pub(super) const CONTROL_BYTES_AT: u64 = 40;
pub(super) const FLAGS_AT: u64 = 48;
/// Size of `struct mmsghdr`.
pub(super) const MESSAGE_BYTES: u64 = 64;
/// Messages of one call; the program calls again for the rest.
pub(super) const MESSAGES_MAX: u32 = 64;
/// Control messages of one datagram; about net.core.optmem_max.
pub(super) const CONTROL_BYTES_MAX: u64 = 64 << 10;
/// UIO_MAXIOV.
const PIECES_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
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
}
