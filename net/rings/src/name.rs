//! Names of local sockets by which a listener's sessions reach the accepting program.
//!
//! Why here: the supervisor binds the far end of a session to such a name before it connects to the
//! program's listening end; accept(2) returns the name to the preload library, which reads the
//! peer's address from it. Must stay true: any bytes can be parsed; a name is trusted only if the
//! kernel reports the expected process as its creator (SO_PEERCRED). Pure.

/// The bytes of an abstract name, without the leading zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    /// Role of the socket.
    pub role: Role,
    /// The supervisor's process.
    pub process: u32,
    /// Unique for each name of a supervisor, and not predictable from others.
    pub number: u64,
    /// `struct sockaddr` of the session's peer, and then of its own end, as the accepting program
    /// sees them; padded with zeros.
    pub ends: [[u8; ADDRESS_BYTES]; 2],
}

/// Role of a named socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The program's listening end.
    Listener,
    /// Announces that a session waits at the supervisor.
    Token,
    /// The supervisor's end of a session of the stack.
    Session,
    /// Another program's end of a session.
    Program,
}

impl Name {
    /// A name without addresses.
    #[must_use]
    pub fn new(role: Role, process: u32, number: u64) -> Self {
        Self {
            role,
            process,
            number,
            ends: [[0; ADDRESS_BYTES]; 2],
        }
    }

    /// Its bytes, printable, so that the table of all sockets (/proc/net/unix) stays readable.
    #[must_use]
    pub fn bytes(&self) -> [u8; NAME_BYTES] {
        let mut raw = [0; RAW_BYTES];
        raw[..4].copy_from_slice(&self.process.to_ne_bytes());
        raw[4..12].copy_from_slice(&self.number.to_ne_bytes());
        raw[12..12 + SHORT_BYTES].copy_from_slice(&shorten(&self.ends[0]));
        raw[12 + SHORT_BYTES..].copy_from_slice(&shorten(&self.ends[1]));
        let mut bytes = [0; NAME_BYTES];
        bytes[..8].copy_from_slice(MARK);
        bytes[8] = self.role.letter();
        for (index, letter) in bytes[9..].iter_mut().enumerate() {
            // Six bits a letter, from 64 printable ones; the last letter is padded with zeros.
            let six = (0..6).map(|bit| index * 6 + bit);
            let value = six.fold(0, |value, at| {
                let byte = raw.get(at / 8).copied().unwrap_or_default();
                value << 1 | byte >> (7 - at % 8) & 1
            });
            *letter = FIRST_LETTER + value;
        }
        bytes
    }

    /// Parses a name; none if the bytes are something else.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        // All names have one length, so a program's own socket is rarely mistaken for one.
        let bytes: &[u8; NAME_BYTES] = bytes.try_into().ok()?;
        if bytes[..8] != *MARK {
            return None;
        }
        let mut raw = [0; RAW_BYTES];
        for (index, letter) in bytes[9..].iter().enumerate() {
            let value = letter.checked_sub(FIRST_LETTER).filter(|it| *it < 64)?;
            for bit in 0..6 {
                let at = index * 6 + bit;
                if let Some(byte) = raw.get_mut(at / 8) {
                    *byte |= (value >> (5 - bit) & 1) << (7 - at % 8);
                }
            }
        }
        let (peer, own) = raw[12..].split_at(SHORT_BYTES);
        Some(Self {
            role: Role::of(bytes[8])?,
            process: u32::from_ne_bytes(*raw.first_chunk()?),
            number: u64::from_ne_bytes(*raw[4..].first_chunk()?),
            ends: [
                lengthen(peer.try_into().ok()?),
                lengthen(own.try_into().ok()?),
            ],
        })
    }

    /// The peer's `struct sockaddr`, with the length of its family; none if it is invalid.
    #[must_use]
    pub fn peer(&self) -> Option<&[u8]> {
        let family = u16::from_ne_bytes(*self.ends[0].first_chunk()?);
        match family {
            INET => self.ends[0].get(..16),
            INET6 => Some(&self.ends[0]),
            _ => None,
        }
    }

    /// True if both ends are loopback addresses: sessions there are open to every process of the
    /// user.
    #[must_use]
    pub fn is_of_loopback(&self) -> bool {
        self.ends.iter().all(is_loopback)
    }
}

impl Role {
    fn letter(self) -> u8 {
        match self {
            Self::Listener => b'L',
            Self::Token => b'T',
            Self::Session => b'S',
            Self::Program => b'P',
        }
    }

    fn of(letter: u8) -> Option<Self> {
        let all = [Self::Listener, Self::Token, Self::Session, Self::Program];
        all.into_iter().find(|role| role.letter() == letter)
    }
}

/// An address without its constant zeros: family, port, IP address.
fn shorten(address: &[u8; ADDRESS_BYTES]) -> [u8; SHORT_BYTES] {
    let mut short = [0; SHORT_BYTES];
    let family = u16::from_ne_bytes([address[0], address[1]]);
    let ip = match family {
        INET => &address[4..8],
        INET6 => &address[8..24],
        _ => return short,
    };
    // Both families are small numbers: one byte has all of them.
    [short[0], _] = family.to_le_bytes();
    short[1..3].copy_from_slice(&address[2..4]);
    short[3..3 + ip.len()].copy_from_slice(ip);
    short
}

fn lengthen(short: &[u8; SHORT_BYTES]) -> [u8; ADDRESS_BYTES] {
    let mut address = [0; ADDRESS_BYTES];
    let family = u16::from(short[0]);
    let (at, bytes) = match family {
        INET => (4, 4),
        INET6 => (8, 16),
        _ => return address,
    };
    address[..2].copy_from_slice(&family.to_ne_bytes());
    address[2..4].copy_from_slice(&short[1..3]);
    address[at..at + bytes].copy_from_slice(&short[3..3 + bytes]);
    address
}

fn is_loopback(address: &[u8; ADDRESS_BYTES]) -> bool {
    let family = u16::from_ne_bytes([address[0], address[1]]);
    match family {
        INET => address[4] == 127,
        INET6 => {
            let ip = &address[8..24];
            ip[..15].iter().all(|byte| *byte == 0) && ip[15] == 1
                || ip[..10].iter().all(|byte| *byte == 0) && ip[10..13] == [0xff, 0xff, 127]
        }
        _ => false,
    }
}

/// First bytes from the process that has accepted a session of the stack, before the program's own:
/// they tell the supervisor the location of the near end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The thread that accepted.
    pub thread: i32,
    /// Its descriptor.
    pub descriptor: i32,
}

impl Hello {
    /// Its bytes, for a session with this number.
    #[must_use]
    pub fn bytes(self, number: u64) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&(number ^ HELLO).to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.thread.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.descriptor.to_ne_bytes());
        bytes
    }

    /// Parses it; none if the bytes are a program's own.
    #[must_use]
    pub fn read(bytes: &[u8], number: u64) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
        if u64::from_ne_bytes(*bytes.first_chunk()?) != number ^ HELLO {
            return None;
        }
        Some(Self {
            thread: i32::from_ne_bytes(*bytes[8..].first_chunk()?),
            descriptor: i32::from_ne_bytes(*bytes[12..].first_chunk()?),
        })
    }
}

/// Facts about the descriptor of a connect(2), which the library passes in the sixth argument to
/// save the supervisor a look-up. A process that passes wrong ones only harms itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// `FD_CLOEXEC`.
    pub closes_on_exec: bool,
    /// No epoll instance contains it.
    pub has_no_epoll: bool,
}

impl Hint {
    /// Encodes it as an argument.
    #[must_use]
    pub fn argument(self) -> u64 {
        HINT | u64::from(self.closes_on_exec) | u64::from(self.has_no_epoll) << 1
    }

    /// Decodes an argument; none if it is something else.
    #[must_use]
    pub fn of(argument: u64) -> Option<Self> {
        (argument & !3 == HINT).then_some(Self {
            closes_on_exec: argument & 1 != 0,
            has_no_epoll: argument & 2 != 0,
        })
    }
}

/// Bytes of a name.
pub const NAME_BYTES: usize = 9 + (RAW_BYTES * 8).div_ceil(6);
/// Bytes of an address in a name: a `struct sockaddr_in6`.
pub const ADDRESS_BYTES: usize = 28;
/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 16;
/// Sixth argument of calls by the library itself: the filter passes accept4(2) with it, and
/// getsockopt(2) with 1 more, to the kernel; in listen(2) it requests direct accepts.
pub const BY_ITSELF: u64 = 0x5349_4445_434f_5245;
const HINT: u64 = 0x5349_4445_6869_6e00;
const HELLO: u64 = 0x6865_6c6c_6f20_7369;
/// The first bytes of each name.
pub const MARK: &[u8; 8] = b"sidecore";
/// Process, number and addresses, before they are encoded as printable bytes.
const RAW_BYTES: usize = 12 + 2 * SHORT_BYTES;
const SHORT_BYTES: usize = 19;
const FIRST_LETTER: u8 = b'0';
const INET: u16 = 2;
const INET6: u16 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let mut name = Name::new(Role::Session, 7, 1 << 60);
        assert_eq!(Name::read(&name.bytes()), Some(name));
        assert_eq!(name.peer(), None);
        name.ends[0][..8].copy_from_slice(&[2, 0, 0, 80, 127, 0, 0, 1]);
        assert_eq!(Name::read(&name.bytes()), Some(name));
        assert_eq!(name.peer().unwrap().len(), 16);
        assert!(!name.is_of_loopback());
        name.ends[1][..2].copy_from_slice(&[10, 0]);
        name.ends[1][18..21].copy_from_slice(&[0xff, 0xff, 127]);
        assert!(name.is_of_loopback());
        assert_eq!(Name::read(&name.bytes()), Some(name));
        name.ends[1][20] = 10;
        assert!(!name.is_of_loopback());
    }

    #[test]
    fn whatever_is_there_is_read() {
        let bytes = Name::new(Role::Token, 7, 8).bytes();
        for length in 0..bytes.len() {
            assert_eq!(Name::read(&bytes[..length]), None);
        }
        assert!(bytes.iter().all(u8::is_ascii_graphic));
        for at in 0..bytes.len() {
            let mut odd = bytes;
            odd[at] ^= 0x80;
            assert_eq!(Name::read(&odd), None);
        }
        let hello = Hello {
            thread: 5,
            descriptor: 6,
        };
        assert_eq!(Hello::read(&hello.bytes(9), 9), Some(hello));
        assert_eq!(Hello::read(&hello.bytes(9), 8), None);
        assert_eq!(Hello::read(&hello.bytes(9)[..15], 9), None);
    }
}
