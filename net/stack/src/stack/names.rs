//! Names of sockets: numbers that are used again, with generations that are not.

/// Names a session. Good until [`crate::Stack::close`]; afterwards it names nothing, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// Names a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// Names a UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UdpId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

macro_rules! parts {
    ($($name:ident)*) => { $(
        impl $name {
            /// The name that [`Self::parts`] took apart.
            #[inline]
            #[must_use]
            pub fn from_parts(number: u32, generation: u32) -> Self {
                Self { number, generation }
            }

            /// Its number, less than 2^30, and the generation that tells it from earlier ones of
            /// the same number.
            #[inline]
            #[must_use]
            pub fn parts(self) -> (u32, u32) {
                (self.number, self.generation)
            }
        }
    )* };
}
parts!(SessionId ListenerId UdpId);
