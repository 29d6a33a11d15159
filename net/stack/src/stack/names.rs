//! Identifiers of sockets: reused numbers with generations that are not reused.

/// Identifies a session. Valid until [`crate::Stack::close`]; never reused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// Identifies a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// Identifies a UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UdpId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

macro_rules! parts {
    ($($name:ident)*) => { $(
        impl $name {
            /// The identifier from the result of [`Self::parts`].
            #[inline]
            #[must_use]
            pub fn from_parts(number: u32, generation: u32) -> Self {
                Self { number, generation }
            }

            /// Its number, less than 2^30, and the generation that distinguishes it from earlier
            /// ones with the same number.
            #[inline]
            #[must_use]
            pub fn parts(self) -> (u32, u32) {
                (self.number, self.generation)
            }
        }
    )* };
}
parts!(SessionId ListenerId UdpId);
