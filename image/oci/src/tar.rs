//! A tar stream, pushed through in pieces: entries and their contents come out.
//!
//! Why here: a layer streams in once, and its entries, its contents and its headers alone are
//! needed at the same time. The headers alone, as an index keeps them, are read by the same code.
//! Must stay true: memory is bounded by [`EXTENSION_BYTES_MAX`] whatever comes in; no name in an
//! entry is trusted yet (see `tree`). Pure.
//! Source: POSIX.1-2017 `pax`, "ustar Interchange Format" and "pax Extended Header"; GNU tar
//! manual, "Basic Tar Format".

use sidecore_bare::width::{ToU64, ToUsize};

/// An entry of a tar file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    /// Target of a symbolic or hard link.
    pub(crate) link: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime_s: i64,
    pub(crate) mtime_ns: u32,
    /// Size of the contents, in bytes; 0 for all but files.
    pub(crate) size_bytes: u64,
    pub(crate) device: (u32, u32),
    /// Extended attributes, with full names.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Byte of the tar stream at which the contents begin.
    pub(crate) data_at: u64,
}

/// Kind of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    File,
    HardLink,
    Link,
    CharacterDevice,
    BlockDevice,
    Directory,
    Fifo,
}

/// A tar stream that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TarError {
    /// A header whose checksum is wrong.
    #[error("the header at byte {0} of the layer's tar is damaged")]
    Checksum(u64),
    /// A number that is none, or is too large.
    #[error("the header at byte {0} of the layer's tar has a field that is no number in range")]
    Number(u64),
    /// Extended headers of an entry that are too long.
    #[error(
        "extended headers of an entry have {0} bytes in the layer's tar; at most 1 MiB is read"
    )]
    Extension(u64),
    /// An extended header with records that have no length.
    #[error("the extended header before byte {0} of the layer's tar is damaged")]
    Record(u64),
    /// A kind of entry that is not supported.
    #[error("an entry of the layer's tar is of kind `{0}`, which is not supported")]
    Kind(char),
    /// The stream ends inside an entry.
    #[error("the layer's tar ends inside an entry, at byte {0}")]
    Short(u64),
}

/// A piece of a tar stream.
pub(crate) enum Piece<'a> {
    /// Bytes of headers, as they are.
    Header(&'a [u8]),
    /// The next entry; its contents follow.
    Entry(Entry),
    /// The next bytes of the last entry's contents.
    Contents(&'a [u8]),
}

/// Reads a tar stream.
pub(crate) struct Walker {
    at: u64,
    state: State,
    /// Bytes of a header or an extension that is not whole yet.
    gathered: Vec<u8>,
    next: Extensions,
    global: Extensions,
    /// Bytes of extensions since the last entry.
    extension_bytes: u64,
    /// True if the contents of files are left out of the stream.
    is_headers_only: bool,
}

#[derive(Clone, Copy)]
enum State {
    Header,
    Extension { flag: u8, bytes: u64 },
    Contents { bytes: u64, padding: u64 },
    Padding(u64),
    Ended,
}

/// Values of extended headers that replace those of the next header.
#[derive(Debug, Clone, Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    mtime: Option<(i64, u32)>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Walker {
    /// Reads a whole tar, or the headers of one alone.
    pub(crate) fn new(is_headers_only: bool) -> Self {
        Self {
            at: 0,
            state: State::Header,
            gathered: Vec::new(),
            next: Extensions::default(),
            global: Extensions::default(),
            extension_bytes: 0,
            is_headers_only,
        }
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    /// Those of the stream, or of `sink`.
    pub(crate) fn push<E: From<TarError>>(
        &mut self,
        mut bytes: &[u8],
        sink: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            let wanted = match self.state {
                State::Header => BLOCK - self.gathered.len(),
                // Bounded by `EXTENSION_BYTES_MAX` where the state is entered.
                State::Extension { bytes, .. } => padded(bytes).to_usize() - self.gathered.len(),
                State::Contents { bytes, .. } | State::Padding(bytes) => {
                    usize::try_from(bytes).unwrap_or(usize::MAX)
                }
                // Writers pad an archive to whole records; what follows the end is not looked at.
                State::Ended => bytes.len(),
            };
            let (piece, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            self.at += piece.len().to_u64();
            let left = (wanted - piece.len()).to_u64();
            match self.state {
                State::Header | State::Extension { .. } => {
                    self.gathered.extend_from_slice(piece);
                    if left == 0 {
                        self.gathered_one(sink)?;
                    }
                }
                State::Contents { padding, .. } => {
                    sink(Piece::Contents(piece))?;
                    self.state = match (left, padding) {
                        (0, 0) => State::Header,
                        (0, padding) => State::Padding(padding),
                        (bytes, padding) => State::Contents { bytes, padding },
                    };
                }
                State::Padding(_) if left == 0 => self.state = State::Header,
                State::Padding(_) => self.state = State::Padding(left),
                State::Ended => {}
            }
        }
        Ok(())
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// It ends inside an entry.
    pub(crate) fn finish(&self) -> Result<(), TarError> {
        match self.state {
            State::Ended => Ok(()),
            // Some writers leave the two blocks of zeros out.
            State::Header if self.gathered.is_empty() => Ok(()),
            _ => Err(TarError::Short(self.at)),
        }
    }

    /// A header or an extension is whole.
    fn gathered_one<E: From<TarError>>(
        &mut self,
        sink: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let block = std::mem::take(&mut self.gathered);
        if let State::Extension { flag, bytes } = self.state {
            sink(Piece::Header(&block))?;
            self.extend(flag, &block[..bytes.to_usize()])?;
            self.state = State::Header;
            return Ok(());
        }
        // The end is two blocks of zeros; writers differ in the second one.
        if block.iter().all(|&byte| byte == 0) {
            self.state = State::Ended;
            return Ok(());
        }
        let at = self.at - BLOCK.to_u64();
        check(&block, at)?;
        sink(Piece::Header(&block))?;
        let flag = block[156];
        let size = number(&block[124..136]).ok_or(TarError::Number(at))?;
        if matches!(flag, b'x' | b'g' | b'L' | b'K') {
            // All of one entry's together: each alone may be small, and none need be followed by
            // an entry.
            self.extension_bytes = self.extension_bytes.saturating_add(size);
            if self.extension_bytes > EXTENSION_BYTES_MAX {
                return Err(TarError::Extension(self.extension_bytes).into());
            }
            match size {
                0 => self.extend(flag, &[])?,
                bytes => self.state = State::Extension { flag, bytes },
            }
            return Ok(());
        }
        let entry = self.entry(&block, flag, size, at)?;
        let bytes = entry.size_bytes;
        let padding = padded(bytes) - bytes;
        sink(Piece::Entry(entry))?;
        match self.is_headers_only {
            // The contents are not in this stream; positions are those of the whole tar all the
            // same.
            true => self.at += bytes + padding,
            false if bytes > 0 => self.state = State::Contents { bytes, padding },
            false => {}
        }
        Ok(())
    }

    fn entry(&mut self, block: &[u8], flag: u8, size: u64, at: u64) -> Result<Entry, TarError> {
        let number = |range: std::ops::Range<usize>| number(&block[range]);
        // Extended values hold for one entry, also where that one is refused below.
        let next = std::mem::take(&mut self.next);
        self.extension_bytes = 0;
        let global = &self.global;
        let kind = match flag {
            b'0' | 0 | b'7' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Link,
            b'3' => Kind::CharacterDevice,
            b'4' => Kind::BlockDevice,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => return Err(TarError::Kind(other.into())),
        };
        let id = |range, extended: Option<u32>, global: Option<u32>| {
            let own = || number(range).and_then(|it| u32::try_from(it).ok());
            extended.or(global).or_else(own).ok_or(TarError::Number(at))
        };
        let (mtime_s, mtime_ns) = match next.mtime.or(global.mtime) {
            Some(time) => time,
            None => (signed(&block[136..148]).ok_or(TarError::Number(at))?, 0),
        };
        let path = next.path.or_else(|| global.path.clone());
        let path = path.unwrap_or_else(|| name_of(block));
        // Old writers mark a directory by its name alone.
        let kind = match kind {
            Kind::File if flag != b'7' && path.ends_with(b"/") => Kind::Directory,
            kind => kind,
        };
        let size_bytes = match kind {
            // A size of other kinds is ignored: links of old writers repeat that of their file,
            // without contents.
            Kind::File => next.size.or(global.size).unwrap_or(size),
            _ => 0,
        };
        // The end of the contents must be a position in the stream.
        if size_bytes > SIZE_MAX || self.at > SIZE_MAX {
            return Err(TarError::Number(at));
        }
        let device = |range| number(range).and_then(|it| u32::try_from(it).ok());
        let device = match kind {
            Kind::CharacterDevice | Kind::BlockDevice => (
                device(329..337).ok_or(TarError::Number(at))?,
                device(337..345).ok_or(TarError::Number(at))?,
            ),
            _ => (0, 0),
        };
        let link = next.link.or_else(|| global.link.clone());
        let permissions = number(100..108).ok_or(TarError::Number(at))?;
        Ok(Entry {
            path,
            link: link.unwrap_or_else(|| text(&block[157..257])),
            kind,
            permissions: u16::try_from(permissions & 0o7777).unwrap_or_default(),
            uid: id(108..116, next.uid, global.uid)?,
            gid: id(116..124, next.gid, global.gid)?,
            mtime_s,
            mtime_ns,
            size_bytes,
            device,
            attributes: next.attributes,
            data_at: self.at,
        })
    }

    /// Takes an extended header.
    fn extend(&mut self, flag: u8, bytes: &[u8]) -> Result<(), TarError> {
        match flag {
            b'L' => self.next.path = Some(text(bytes)),
            b'K' => self.next.link = Some(text(bytes)),
            b'g' => {
                self.global.records(bytes, self.at)?;
                // No entry takes them.
                self.global.attributes = Vec::new();
            }
            _ => self.next.records(bytes, self.at)?,
        }
        Ok(())
    }
}

impl Extensions {
    /// Takes the records `LENGTH KEY=VALUE\n` of a pax header.
    fn records(&mut self, mut bytes: &[u8], at: u64) -> Result<(), TarError> {
        let damaged = || TarError::Record(at);
        while !bytes.is_empty() {
            let space = bytes
                .iter()
                .position(|&it| it == b' ')
                .ok_or_else(damaged)?;
            let length = ascii(&bytes[..space]).and_then(|it| it.parse::<usize>().ok());
            // The length counts itself and the newline; one that leads beyond the header finds
            // nothing here.
            let record = length.and_then(|length| bytes.get(space + 1..length));
            let (record, length) = record.zip(length).ok_or_else(damaged)?;
            let record = record.strip_suffix(b"\n").ok_or_else(damaged)?;
            let equal = record
                .iter()
                .position(|&it| it == b'=')
                .ok_or_else(damaged)?;
            self.record(&record[..equal], &record[equal + 1..])
                .ok_or_else(damaged)??;
            bytes = &bytes[length..];
        }
        Ok(())
    }

    /// Takes one record; `None` if its value is none of its kind.
    fn record(&mut self, key: &[u8], value: &[u8]) -> Option<Result<(), TarError>> {
        let number = || ascii(value)?.parse::<u64>().ok();
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(u32::try_from(number()?).ok()?),
            b"gid" => self.gid = Some(u32::try_from(number()?).ok()?),
            b"mtime" => self.mtime = Some(time(ascii(value)?)?),
            // The contents of a sparse file are a map and pieces: taken as they are, they would be
            // another file.
            _ if key.starts_with(b"GNU.sparse.") => return Some(Err(TarError::Kind('S'))),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.attributes.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Some(Ok(()))
    }
}

/// Seconds and nanoseconds of a decimal number.
fn time(text: &str) -> Option<(i64, u32)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = part.chars().chain("000000000".chars()).take(9).collect();
    let ns: u32 = digits.parse().ok()?;
    match (text.starts_with('-'), ns) {
        (_, 0) => Some((seconds, 0)),
        // Nanoseconds count forward, also before 1970.
        (true, ns) => Some((seconds.checked_sub(1)?, 1_000_000_000 - ns)),
        (false, ns) => Some((seconds, ns)),
    }
}

fn check(block: &[u8], at: u64) -> Result<(), TarError> {
    let expected = number(&block[148..156]).ok_or(TarError::Checksum(at))?;
    let bytes = block.iter().enumerate();
    let sum: u64 = bytes
        .map(|(at, &byte)| match at {
            // The sum is made with blanks in the place of the sum itself (POSIX, "ustar Interchange
            // Format").
            148..156 => 32,
            _ => u64::from(byte),
        })
        .sum();
    match sum == expected {
        true => Ok(()),
        false => Err(TarError::Checksum(at)),
    }
}

/// An octal number, or GNU's binary one.
fn number(field: &[u8]) -> Option<u64> {
    signed(field).and_then(|it| u64::try_from(it).ok())
}

fn signed(field: &[u8]) -> Option<i64> {
    match field[0] {
        0x80 | 0xFF => {
            // GNU's base-256 numbers: two's complement in the field's bytes, marked by the first
            // one.
            let sign = if field[0] == 0xFF { -1_i64 } else { 0 };
            field[1..].iter().try_fold(sign, |value, &byte| {
                value.checked_mul(256)?.checked_add(byte.into())
            })
        }
        _ => {
            let digits = field.iter().skip_while(|&&it| it == b' ');
            let digits = digits.take_while(|&&it| it != b' ' && it != 0);
            digits.copied().try_fold(0_i64, |value, digit| {
                let digit = digit.checked_sub(b'0').filter(|&it| it < 8)?;
                value.checked_mul(8)?.checked_add(digit.into())
            })
        }
    }
}

/// The name of a header: in POSIX's form it has two parts.
fn name_of(block: &[u8]) -> Vec<u8> {
    let name = text(&block[..100]);
    let prefix = text(&block[345..500]);
    match &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        true => [&prefix[..], b"/", &name].concat(),
        false => name,
    }
}

/// The bytes before a zero.
fn text(field: &[u8]) -> Vec<u8> {
    field.iter().copied().take_while(|&it| it != 0).collect()
}

fn ascii(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK.to_u64())
}

const BLOCK: usize = 512;
/// Extensions of one entry: a name has at most 4 KiB, an attribute 64 KiB.
pub(crate) const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// The largest file and stream: 16 TiB.
const SIZE_MAX: u64 = 1 << 44;

#[cfg(test)]
mod tests {
    use super::*;

    /// An extended header of a few bytes, as it stands in a tar.
    fn extension(flag: tar::EntryType) -> Vec<u8> {
        let record = b"24 SCHILY.xattr.user.a=\n";
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(flag);
        header.set_size(record.len() as u64);
        header.set_cksum();
        let mut bytes = [header.as_bytes(), &record[..]].concat();
        bytes.resize(2 * BLOCK, 0);
        bytes
    }

    fn push(walker: &mut Walker, bytes: &[u8]) -> Result<(), TarError> {
        walker.push(bytes, &mut |_| Ok::<(), TarError>(()))
    }

    #[test]
    fn extensions_without_an_entry_are_bounded() {
        for flag in [tar::EntryType::XHeader, tar::EntryType::XGlobalHeader] {
            let mut walker = Walker::new(false);
            let extension = extension(flag);
            let refused = (0..100_000).find_map(|_| push(&mut walker, &extension).err());
            assert!(matches!(refused, Some(TarError::Extension(_))), "{flag:?}");
            assert!(walker.next.attributes.len() < 50_000);
            assert!(walker.global.attributes.is_empty());
        }
        // As many with entries in between are a layer as any other.
        let mut walker = Walker::new(false);
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_cksum();
        let both = [&extension(tar::EntryType::XHeader)[..], header.as_bytes()].concat();
        for _ in 0..50_000 {
            push(&mut walker, &both).unwrap();
        }
    }
}
