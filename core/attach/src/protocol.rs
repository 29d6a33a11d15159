//! The frame of every message between a client and a server: magic, kind, version.
//!
//! One message a packet (`SOCK_SEQPACKET`), little-endian: 8 bytes of magic, the kind (u32), the
//! version (u32), then the service's body. The format is plain because the C clients read and write
//! it too.
//! Must stay true: any bytes can be parsed.
//!
//! ```
//! use sidecore_attach::Protocol;
//! use sidecore_attach::protocol::KIND_STATUS;
//!
//! let protocol = |version| Protocol {
//!     magic: u64::from_le_bytes(*b"EXAMPLE1"),
//!     version,
//!     server: "example",
//! };
//! let message = protocol(2).message(KIND_STATUS, b"all is well");
//! let read = protocol(2).parse(&message);
//! assert_eq!(read, Ok((KIND_STATUS, &b"all is well"[..])));
//! // A peer of another release says so, rather than misread it.
//! let refused = protocol(1).parse(&message).unwrap_err();
//! assert!(refused.contains("the client speaks version 2 of the protocol"));
//! ```

/// A connection of a server, until its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub(crate) u64);

/// Asks to attach, and the answer to that.
pub const KIND_ATTACH: u32 = 1;
/// Asks for the status, and the answer to that: JSON.
pub const KIND_STATUS: u32 = 2;
/// An answer: no, and the reason as text.
pub(crate) const KIND_REFUSED: u32 = 255;
/// Bytes of a question.
pub const QUESTION_BYTES: usize = 32;
/// Bytes that every message starts with.
pub const HEAD_BYTES: usize = 16;
/// Bytes of a question after its head.
pub const QUESTION_BODY_BYTES: usize = QUESTION_BYTES - HEAD_BYTES;

/// One service's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The first eight bytes of every message.
    pub magic: u64,
    /// Both sides must have the same.
    pub version: u32,
    /// The server's name in messages to people: "daemon", "engine".
    pub server: &'static str,
}

impl Protocol {
    /// A message of this kind.
    #[must_use]
    pub fn message(&self, kind: u32, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEAD_BYTES + body.len());
        message.extend(self.magic.to_le_bytes());
        message.extend(kind.to_le_bytes());
        message.extend(self.version.to_le_bytes());
        message.extend(body);
        message
    }

    /// A question of this kind; `body` beyond 16 bytes is cut.
    #[must_use]
    pub fn question(&self, kind: u32, body: &[u8]) -> [u8; QUESTION_BYTES] {
        let mut question = [0; QUESTION_BYTES];
        let message = self.message(kind, body);
        let used = message.len().min(QUESTION_BYTES);
        question[..used].copy_from_slice(&message[..used]);
        question
    }

    /// Kind and body of a message.
    ///
    /// # Errors
    /// It does not begin with the magic, or is of another version: the reason to send to its
    /// author.
    pub fn parse<'m>(&self, message: &'m [u8]) -> Result<(u32, &'m [u8]), String> {
        let foreign = || "this is no message of a sidecore client".to_owned();
        let (magic, rest) = message.split_first_chunk().ok_or_else(foreign)?;
        let (kind, rest) = rest.split_first_chunk().ok_or_else(foreign)?;
        let (version, body) = rest.split_first_chunk().ok_or_else(foreign)?;
        if u64::from_le_bytes(*magic) != self.magic {
            return Err(foreign());
        }
        let theirs = u32::from_le_bytes(*version);
        if theirs != self.version {
            return Err(format!(
                "the client speaks version {theirs} of the protocol, this {} version {}; use the \
                 same release for both",
                self.server, self.version
            ));
        }
        Ok((u32::from_le_bytes(*kind), body))
    }

    /// Kind and body of a question.
    ///
    /// # Errors
    /// As [`Self::parse`], and for a length other than [`QUESTION_BYTES`].
    pub fn parse_question(
        &self,
        message: &[u8],
    ) -> Result<(u32, [u8; QUESTION_BODY_BYTES]), String> {
        let (kind, body) = self.parse(message)?;
        let bytes = message.len();
        let body = body
            .try_into()
            .map_err(|_| format!("a question of {bytes} bytes; it has {QUESTION_BYTES}"))?;
        Ok((kind, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PROTOCOL: Protocol = Protocol {
        magic: u64::from_le_bytes(*b"TESTING1"),
        version: 7,
        server: "daemon",
    };

    #[test]
    fn messages_come_back_as_they_were() {
        let message = PROTOCOL.message(KIND_STATUS, b"body");
        assert_eq!(PROTOCOL.parse(&message), Ok((KIND_STATUS, &b"body"[..])));
        let question = PROTOCOL.question(KIND_ATTACH, &5u64.to_le_bytes());
        let (kind, body) = PROTOCOL.parse_question(&question).unwrap();
        assert_eq!(
            (kind, &body[..9]),
            (KIND_ATTACH, &[5, 0, 0, 0, 0, 0, 0, 0, 0][..])
        );
        let mut old = question;
        old[12] = 9;
        assert!(PROTOCOL.parse(&old).unwrap_err().contains("version 9"));
        let long = PROTOCOL.message(KIND_ATTACH, &[0; 17]);
        let refused = PROTOCOL.parse_question(&long).unwrap_err();
        assert!(refused.contains("33 bytes"), "{refused}");
    }

    proptest! {
        #[test]
        fn any_bytes_parse_to_something(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = PROTOCOL.parse_question(&bytes);
            let mut bytes = bytes;
            if bytes.len() >= HEAD_BYTES {
                bytes[..HEAD_BYTES].copy_from_slice(&PROTOCOL.message(1, &[]));
                prop_assert!(PROTOCOL.parse(&bytes).is_ok());
            }
        }
    }
}
