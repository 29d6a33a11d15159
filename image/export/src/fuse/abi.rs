//! The wire format of FUSE's requests and replies: numbers, layouts, a bounds-checked reader.
//!
//! Why here: pure, so that it can be tested without a kernel. Numbers are in the machine's byte
//! order, as the kernel writes them.
//! Must stay true: no request, whatever is in it, leads to an access outside of its bytes.
//! Source: `include/uapi/linux/fuse.h`, protocol 7.45.

use arrayvec::ArrayVec;
use rustix::io::Errno;
use sidecore_bare::width::ToUsize;

/// The kernel's own limit on one request (`fs.fuse.max_pages_limit` = 256 pages).
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Head of a request: `struct fuse_in_header`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The operation: a number of `FUSE_*`, see [`op`].
    pub operation: u32,
    /// The request's number, which its reply repeats.
    pub unique: u64,
    /// The node concerned.
    pub node: u64,
}

/// The rest of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body<'a>(pub &'a [u8]);

impl Head {
    /// Divides a request into its head and its body.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, Body<'_>), Errno> {
        let (len, head, rest) = Self::first(bytes)?;
        match len == bytes.len() {
            true => Ok((head, rest)),
            false => Err(Errno::INVAL),
        }
    }

    /// A head whose body lies elsewhere.
    pub(super) fn alone(bytes: &[u8]) -> Result<Self, Errno> {
        Ok(Self::first(bytes)?.1)
    }

    /// Length of the request, its head, and what follows that.
    fn first(bytes: &[u8]) -> Result<(usize, Self, Body<'_>), Errno> {
        let mut rest = Body(bytes);
        let len = rest.u32()?.to_usize();
        let operation = rest.u32()?;
        let (unique, node) = (rest.u64()?, rest.u64()?);
        // User, group and process of the caller: nothing here depends on them.
        rest.skip(16)?;
        let head = Self {
            operation,
            unique,
            node,
        };
        Ok((len, head, rest))
    }
}

impl<'a> Body<'a> {
    pub(super) fn u32(&mut self) -> Result<u32, Errno> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*number))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Errno> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*number))
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Result<(), Errno> {
        self.0 = self.0.get(bytes..).ok_or(Errno::INVAL)?;
        Ok(())
    }

    /// A name that is terminated by a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let end = end.ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }
}

/// A reply's fixed part, with room for the longest one.
#[derive(Debug, Default)]
pub(super) struct Words(ArrayVec<u8, 160>);

impl Words {
    pub(super) fn u16(mut self, number: u16) -> Self {
        self.push(&number.to_ne_bytes());
        self
    }

    pub(super) fn u32(mut self, number: u32) -> Self {
        self.push(&number.to_ne_bytes());
        self
    }

    pub(super) fn u64(mut self, number: u64) -> Self {
        self.push(&number.to_ne_bytes());
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn push(&mut self, bytes: &[u8]) {
        // There is room for every reply; a longer one would be cut off, and the kernel's check of
        // lengths would refuse it.
        let _ = self.0.try_extend_from_slice(bytes);
    }
}

/// Head of a reply, `struct fuse_out_header`, to `unique` with `len` bytes after it. A notice has
/// its number in the place of the error, and replies to 0.
pub(super) fn answer_head(unique: u64, error: i32, len: usize) -> Words {
    let all = (ANSWER_HEAD_BYTES + len) as u32;
    Words::default()
        .u32(all)
        .u32(error.cast_unsigned())
        .u64(unique)
}

/// Attributes of a node: `struct fuse_attr`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub node: u64,
    pub size_bytes: u64,
    /// Number of blocks of 512 bytes.
    pub blocks: u64,
    /// Time of all changes: seconds and nanoseconds.
    pub time: (i64, u32),
    /// Kind and permissions.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub block_bytes: u32,
    /// They may change: the kernel asks for them at each stat, and at a read past the end that it
    /// knows. Other reads do not ask (they would with `FUSE_AUTO_INVAL_DATA`).
    pub may_change: bool,
}

impl Attributes {
    fn append(&self, words: Words) -> Words {
        let (seconds, nanoseconds) = (self.time.0.cast_unsigned(), self.time.1);
        let words = words.u64(self.node).u64(self.size_bytes).u64(self.blocks);
        let words = words.u64(seconds).u64(seconds).u64(seconds);
        let words = words.u32(nanoseconds).u32(nanoseconds).u32(nanoseconds);
        let words = words.u32(self.mode).u32(self.links);
        let words = words.u32(self.uid).u32(self.gid).u32(self.rdev);
        words.u32(self.block_bytes).u32(0)
    }

    /// Time for which the kernel may keep them, in seconds.
    fn valid_s(&self) -> u64 {
        match self.may_change {
            true => 0,
            false => FOREVER_S,
        }
    }

    /// `struct fuse_attr_out`.
    pub(super) fn alone(&self) -> Words {
        self.append(Words::default().u64(self.valid_s()).u32(0).u32(0))
    }

    /// `struct fuse_entry_out`: the kernel may keep the name as well. Attributes of node 0 mean
    /// that the name does not exist.
    pub(super) fn entry(&self) -> Words {
        let words = Words::default().u64(self.node).u64(0);
        self.append(words.u64(FOREVER_S).u64(self.valid_s()).u32(0).u32(0))
    }
}

/// The settings of a session: `struct fuse_init_out`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub flags: u64,
    pub read_ahead_bytes: u32,
    pub background_max: u16,
    pub write_bytes_max: u32,
    pub pages_max: u16,
    pub stack_depth: u32,
}

impl Settings {
    pub(super) fn words(&self) -> Words {
        let flags = self.flags | flag::INIT_EXT;
        let words = Words::default().u32(MAJOR).u32(MINOR);
        let words = words.u32(self.read_ahead_bytes).u32(flags as u32);
        let words = words.u16(self.background_max).u16(self.background_max);
        // Times to the nanosecond.
        let words = words.u32(self.write_bytes_max).u32(1);
        let words = words.u16(self.pages_max).u16(0);
        let words = words.u32((flags >> 32) as u32).u32(self.stack_depth);
        words.u64(0).u64(0).u64(0)
    }
}

/// Numbers of requests.
pub(super) mod op {
    pub(in super::super) const LOOKUP: u32 = 1;
    pub(in super::super) const FORGET: u32 = 2;
    pub(in super::super) const GETATTR: u32 = 3;
    pub(in super::super) const SETATTR: u32 = 4;
    pub(in super::super) const READLINK: u32 = 5;
    pub(in super::super) const RMDIR: u32 = 11;
    pub(in super::super) const OPEN: u32 = 14;
    pub(in super::super) const READ: u32 = 15;
    pub(in super::super) const WRITE: u32 = 16;
    pub(in super::super) const STATFS: u32 = 17;
    pub(in super::super) const RELEASE: u32 = 18;
    pub(in super::super) const FSYNC: u32 = 20;
    pub(in super::super) const GETXATTR: u32 = 22;
    pub(in super::super) const LISTXATTR: u32 = 23;
    pub(in super::super) const INIT: u32 = 26;
    pub(in super::super) const OPENDIR: u32 = 27;
    pub(in super::super) const READDIR: u32 = 28;
    pub(in super::super) const RELEASEDIR: u32 = 29;
    pub(in super::super) const CREATE: u32 = 35;
    pub(in super::super) const DESTROY: u32 = 38;
    pub(in super::super) const BATCH_FORGET: u32 = 42;
    pub(in super::super) const FALLOCATE: u32 = 43;
    pub(in super::super) const READDIRPLUS: u32 = 44;
    pub(in super::super) const LSEEK: u32 = 46;
}

/// Abilities that kernel and server agree on: `FUSE_*` flags of INIT.
pub(super) mod flag {
    pub(in super::super) const ASYNC_READ: u64 = 1;
    pub(in super::super) const BIG_WRITES: u64 = 1 << 5;
    pub(in super::super) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(in super::super) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(in super::super) const ASYNC_DIO: u64 = 1 << 15;
    pub(in super::super) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(in super::super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(in super::super) const MAX_PAGES: u64 = 1 << 22;
    pub(in super::super) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(in super::super) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(in super::super) const INIT_EXT: u64 = 1 << 30;
    pub(in super::super) const PASSTHROUGH: u64 = 1 << 37;
    pub(in super::super) const HAS_RESEND: u64 = 1 << 39;
    pub(in super::super) const OVER_IO_URING: u64 = 1 << 41;
}

/// Properties of an opened file: `FOPEN_*`.
pub(super) mod opened {
    pub(in super::super) const KEEP_CACHE: u32 = 1 << 1;
    pub(in super::super) const NOFLUSH: u32 = 1 << 5;
    pub(in super::super) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub(in super::super) const PASSTHROUGH: u32 = 1 << 7;
}

/// Numbers of notices.
pub(super) mod notice {
    pub(in super::super) const INVAL_INODE: i32 = 2;
    pub(in super::super) const STORE: i32 = 4;
    pub(in super::super) const RESEND: i32 = 7;
}

/// A setattr that changes the size.
pub(super) const FATTR_SIZE: u32 = 1 << 3;
/// Version of the protocol.
pub(super) const MAJOR: u32 = 7;
/// The newest minor version that is supported; the older one of kernel and server is used.
pub(super) const MINOR: u32 = 42;
/// The root's node.
pub(super) const ROOT: u64 = 1;
/// Bytes of an answer's head.
pub(super) const ANSWER_HEAD_BYTES: usize = 16;
/// Nothing ever changes, so the kernel need not ask again: a year.
const FOREVER_S: u64 = 365 * 86400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_kernels_lengths() {
        let attributes = Attributes::default();
        assert_eq!(attributes.alone().bytes().len(), 104);
        assert_eq!(attributes.entry().bytes().len(), 128);
        // Of a device that may grow, the name is kept and its attributes are not.
        let changing = Attributes {
            may_change: true,
            ..attributes
        };
        let (now, ever) = (0_u64.to_ne_bytes(), FOREVER_S.to_ne_bytes());
        assert_eq!(attributes.alone().bytes()[..8], ever);
        assert_eq!(changing.alone().bytes()[..8], now);
        assert_eq!(attributes.entry().bytes()[16..32], [ever, ever].concat());
        assert_eq!(changing.entry().bytes()[16..32], [ever, now].concat());
        assert_eq!(answer_head(7, -5, 0).bytes().len(), ANSWER_HEAD_BYTES);
        let settings = Settings {
            flags: flag::PASSTHROUGH,
            read_ahead_bytes: 1,
            background_max: 2,
            write_bytes_max: 3,
            pages_max: 4,
            stack_depth: 5,
        };
        let words = settings.words();
        assert_eq!(words.bytes().len(), 64);
        // The flags' upper half is behind the numbers that came before there was one.
        assert_eq!(words.bytes()[32..36], (1_u32 << 5).to_ne_bytes());
    }

    #[test]
    fn requests_that_are_cut_off_are_refused() {
        let mut request = Vec::new();
        request.extend(44_u32.to_ne_bytes());
        request.extend(op::LOOKUP.to_ne_bytes());
        request.extend(77_u64.to_ne_bytes());
        request.extend(5_u64.to_ne_bytes());
        request.extend([0; 16]);
        request.extend(*b"abc\0");
        let (head, mut body) = Head::read(&request).unwrap();
        let expected = Head {
            operation: op::LOOKUP,
            unique: 77,
            node: 5,
        };
        assert_eq!(head, expected);
        assert_eq!(body.name(), Ok(&b"abc"[..]));
        assert_eq!(body.u32(), Err(Errno::INVAL));
        for len in 0..request.len() {
            assert!(Head::read(&request[..len]).is_err(), "{len}");
        }
    }
}
