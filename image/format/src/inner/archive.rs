//! Makes an erofs of a tar: names and attributes in the first pass over it, whose contents go to a
//! scratch file; then the contents from there.
//!
//! Why twice: the layout needs the number of all names before the first byte of contents, and a
//! tar that comes as a stream is read once.
//!
//! Must stay true: as when it is unpacked, the last entry of a path counts. No name leads out of
//! the tree. A tar that is cut short, or whose contents are stored in a way that is not read here,
//! is an error. Memory grows with the names of the tar, each kept once, and not with the lengths of
//! the paths that they make.
//! Source: tar(5), pax(1).

use super::chunks::Chunks;
use super::rules::Rules;
use super::{BLOCK_BYTES, InnerError, random_uuid};
use crate::output;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_erofs::write::{CHUNK_BYTES, Id, Layout, Meta, Node, Tree, Unfit, is_storable};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tar::{Archive, EntryType};
use xxhash_rust::xxh3::Xxh3;

/// Extended attributes: names and values.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// A file of the tar.
struct Item {
    meta: Meta,
    kind: Kind,
    attributes: Attributes,
}

enum Kind {
    Directory(BTreeMap<Vec<u8>, usize>),
    /// Place in the scratch file, and size.
    File(u64, u64),
    Link(Vec<u8>),
    CharacterDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
}

/// The files of a tar by their numbers; number 0 is the root.
struct Items(Vec<Item>);

/// Writes an erofs of the tar that `stream` holds to a file without a name in `scratch`. Blocks
/// until it is complete.
///
/// # Errors
/// [`InnerError`]; [`InnerError::Archive`] for a tar that is damaged, or that cannot be a tree.
pub fn make_of_tar(
    stream: &mut dyn Read,
    rules: &Rules,
    scratch: &Path,
) -> Result<File, InnerError> {
    let epoch = super::source_date_epoch()?;
    let nameless = || {
        output::nameless(scratch).map_err(|source| InnerError::Scratch {
            path: scratch.to_owned(),
            source,
        })
    };
    let (contents, file) = (nameless()?, nameless()?);
    let failed = |source| InnerError::Store {
        path: scratch.to_owned(),
        source,
    };
    let mut items = Items(vec![Item::directory(0)]);
    let mut identity = Xxh3::new();
    let mut spool = BufWriter::with_capacity(1 << 20, &contents);
    let mut at = 0;
    let mut archive = Archive::new(stream);
    let entries = archive
        .entries()
        .map_err(InnerError::archive(Path::new("")))?;
    for entry in entries {
        let mut entry = entry.map_err(InnerError::archive(Path::new("")))?;
        let path = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        let bad = InnerError::archive(&path);
        let Some(names) = names_of(&path).map_err(&bad)? else {
            continue;
        };
        let inside: PathBuf = names.iter().map(|name| OsStr::from_bytes(name)).collect();
        if rules.excludes(&inside) {
            continue;
        }
        let header = entry.header();
        let device = |number: io::Result<Option<u32>>| number.map(Option::unwrap_or_default);
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                refuse_pieces(&mut entry).map_err(&bad)?;
                let size = io::copy(&mut entry, &mut spool).map_err(&bad)?;
                at += size;
                Kind::File(at - size, size)
            }
            EntryType::Directory => Kind::Directory(BTreeMap::new()),
            EntryType::Symlink => Kind::Link(target(&entry).map_err(&bad)?),
            EntryType::Link => {
                let target = target(&entry).map_err(&bad)?;
                let target = names_of(Path::new(OsStr::from_bytes(&target))).map_err(&bad)?;
                items
                    .name(&names, &target.unwrap_or_default())
                    .map_err(&bad)?;
                continue;
            }
            EntryType::Char | EntryType::Block => {
                let major = device(header.device_major()).map_err(&bad)?;
                let minor = device(header.device_minor()).map_err(&bad)?;
                match header.entry_type() {
                    EntryType::Char => Kind::CharacterDevice(major, minor),
                    _ => Kind::BlockDevice(major, minor),
                }
            }
            EntryType::Fifo => Kind::Fifo,
            // Heads for all entries, volume labels: no files.
            _ => continue,
        };
        let (meta, attributes) = described(&mut entry, epoch).map_err(&bad)?;
        identity.update(inside.as_os_str().as_bytes());
        identity.update(&meta.permissions.to_le_bytes());
        let item = Item {
            meta: rules.apply(meta),
            kind,
            attributes,
        };
        items.put(&names, item).map_err(&bad)?;
    }
    let spooled = spool
        .into_inner()
        .map_err(|error| failed(error.into_error()));
    spooled?;
    let uuid = match epoch {
        Some(_) => super::tree::uuid_of(&identity),
        None => random_uuid(scratch)?,
    };
    items.write((&contents, rules), &file, uuid, &failed)?;
    Ok(file)
}

/// The names on the way to a file, none for the root; `None` for an entry without a path.
fn names_of(path: &Path) -> io::Result<Option<Vec<Vec<u8>>>> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Ok(None);
    }
    let names = bytes.split(|&byte| byte == b'/');
    let names: Vec<_> = names.filter(|it| !it.is_empty() && *it != b".").collect();
    if names.contains(&&b".."[..]) {
        return Err(io::Error::other("its path leads out of the tree"));
    }
    Ok(Some(names.into_iter().map(<[u8]>::to_vec).collect()))
}

fn target(entry: &tar::Entry<'_, impl Read>) -> io::Result<Vec<u8>> {
    let target = entry.link_name_bytes().filter(|target| !target.is_empty());
    target
        .map(|target| target.into_owned())
        .ok_or_else(|| io::Error::other("it is a link without a target"))
}

/// Refuses a sparse file in the form of pax: its contents are a map and pieces, which the library
/// for tars passes on as they are; as a file they would be another one, under a made-up name.
fn refuse_pieces(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<()> {
    let Some(records) = entry.pax_extensions()? else {
        return Ok(());
    };
    for record in records {
        if record?.key_bytes().starts_with(b"GNU.sparse.") {
            return Err(io::Error::other(
                "it is a sparse file in the pax form, which is not read here; \
                 make the tar without --sparse (-S)",
            ));
        }
    }
    Ok(())
}

/// Owner, permissions, time and extended attributes of an entry.
fn described(
    entry: &mut tar::Entry<'_, impl Read>,
    epoch: Option<u64>,
) -> io::Result<(Meta, Attributes)> {
    let number = |value: u64| u32::try_from(value).map_err(|_| io::Error::other("its owner"));
    let header = entry.header();
    let mut meta = Meta {
        permissions: u16::try_from(header.mode()? & 0o7777).unwrap_or_default(),
        uid: number(header.uid()?)?,
        gid: number(header.gid()?)?,
        // The field's bits: GNU's binary form has times before 1970 as negative numbers.
        mtime_s: header.mtime()?.cast_signed(),
        mtime_ns: 0,
    };
    let mut attributes = Vec::new();
    if let Some(records) = entry.pax_extensions()? {
        for record in records {
            let record = record?;
            let (Ok(key), value) = (record.key(), record.value_bytes()) else {
                continue;
            };
            let text = str::from_utf8(value).ok();
            let id = || text.and_then(|text| text.parse().ok());
            match key {
                "uid" => meta.uid = id().unwrap_or(meta.uid),
                "gid" => meta.gid = id().unwrap_or(meta.gid),
                "mtime" => {
                    let time = text.and_then(time).unwrap_or((meta.mtime_s, meta.mtime_ns));
                    (meta.mtime_s, meta.mtime_ns) = time;
                }
                _ => {
                    let name = key.strip_prefix("SCHILY.xattr.").map(str::as_bytes);
                    if let Some(name) = name.filter(|name| is_storable(name)) {
                        attributes.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
    }
    // Later times are cut, earlier ones kept, as the specification of SOURCE_DATE_EPOCH asks.
    let latest = epoch.map_or(i64::MAX, |epoch| epoch.try_into().unwrap_or(i64::MAX));
    if meta.mtime_s >= latest {
        (meta.mtime_s, meta.mtime_ns) = (latest, 0);
    }
    Ok((meta, attributes))
}

/// Seconds and nanoseconds of a time in decimal digits.
fn time(text: &str) -> Option<(i64, u32)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = part.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    // Of a time before 1970, the part counts away from the second before.
    match whole.starts_with('-') && nanoseconds > 0 {
        true => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
        false => Some((seconds, nanoseconds)),
    }
}

impl Item {
    fn directory(mtime_s: i64) -> Self {
        let meta = Meta {
            permissions: 0o755,
            mtime_s,
            ..Meta::default()
        };
        Self {
            meta,
            kind: Kind::Directory(BTreeMap::new()),
            attributes: Vec::new(),
        }
    }
}

impl Items {
    /// The directory at a path, made where it is not there.
    fn directory(&mut self, names: &[Vec<u8>], mtime_s: i64) -> io::Result<usize> {
        let mut here = 0;
        for name in names {
            let next = self.0.len();
            let Kind::Directory(children) = &mut self.0[here].kind else {
                return Err(io::Error::other(
                    "a file stands where its directory has to be",
                ));
            };
            here = *children.entry(name.clone()).or_insert(next);
            if here == next {
                self.0.push(Item::directory(mtime_s));
            }
        }
        Ok(here)
    }

    fn children(&mut self, directory: usize) -> io::Result<&mut BTreeMap<Vec<u8>, usize>> {
        match &mut self.0[directory].kind {
            Kind::Directory(children) => Ok(children),
            _ => Err(io::Error::other(
                "a file stands where its directory has to be",
            )),
        }
    }

    /// Puts a file at a path, in the place of an earlier one.
    fn put(&mut self, names: &[Vec<u8>], item: Item) -> io::Result<()> {
        let Some((name, above)) = names.split_last() else {
            return self.describe(0, item);
        };
        let above = self.directory(above, item.meta.mtime_s)?;
        let next = self.0.len();
        let children = self.children(above)?;
        if let (Some(&old), Kind::Directory(_)) = (children.get(name), &item.kind)
            && matches!(self.0[old].kind, Kind::Directory(_))
        {
            return self.describe(old, item);
        }
        self.children(above)?.insert(name.clone(), next);
        self.0.push(item);
        Ok(())
    }

    /// Gives a directory, whose names stay, the attributes of `item`.
    fn describe(&mut self, directory: usize, item: Item) -> io::Result<()> {
        if !matches!(item.kind, Kind::Directory(_)) {
            return Err(io::Error::other("it stands where the root has to be"));
        }
        let here = &mut self.0[directory];
        here.meta = item.meta;
        here.attributes = item.attributes;
        Ok(())
    }

    /// Gives the file at `target` a further name.
    fn name(&mut self, names: &[Vec<u8>], target: &[Vec<u8>]) -> io::Result<()> {
        let mut found = 0;
        for name in target {
            let next = match &self.0[found].kind {
                Kind::Directory(children) => children.get(name).copied(),
                _ => None,
            };
            found = next.ok_or_else(|| io::Error::other("it is a link to a file not there yet"))?;
        }
        if matches!(self.0[found].kind, Kind::Directory(_)) {
            return Err(io::Error::other("it is a hard link to a directory"));
        }
        let Some((name, above)) = names.split_last() else {
            return Err(io::Error::other("it stands where the root has to be"));
        };
        let above = self.directory(above, self.0[found].meta.mtime_s)?;
        self.children(above)?.insert(name.clone(), found);
        Ok(())
    }

    /// Writes the file system to `file`; `contents` holds the files' bytes, in the tar's order.
    fn write(
        &self,
        (contents, rules): (&File, &Rules),
        file: &File,
        uuid: [u8; 16],
        failed: &dyn Fn(io::Error) -> InnerError,
    ) -> Result<(), InnerError> {
        let mut names = Names(vec![(0, &[][..])]);
        let unfit = |names: &Names<'_>, error: Unfit| InnerError::Unfit {
            path: names.path(error.id),
            source: error.what,
        };
        let each = |item: usize| {
            let attributes = self.0[item].attributes.iter();
            attributes.map(|(name, value)| (&name[..], &value[..]))
        };
        let mut tree = Tree::new(self.0[0].meta, each(0)).map_err(|it| unfit(&names, it))?;
        let mut ids: Vec<Option<Id>> = vec![None; self.0.len()];
        let mut files = Vec::new();
        let mut left = vec![(0, 0)];
        while let Some((directory, above)) = left.pop() {
            let Kind::Directory(children) = &self.0[directory].kind else {
                continue;
            };
            for (name, &child) in children {
                let id = match ids[child] {
                    Some(id) => id,
                    None => {
                        let item = &self.0[child];
                        names.0.push((above, &name[..]));
                        let id = tree.add(item.meta, node_of(&item.kind), each(child));
                        let id = id.map_err(|it| unfit(&names, it))?;
                        match item.kind {
                            Kind::Directory(_) => left.push((child, id)),
                            Kind::File(at, size) => files.push((id, at, size)),
                            _ => {}
                        }
                        *ids[child].insert(id)
                    }
                };
                tree.link(above, name, id).map_err(|it| unfit(&names, it))?;
            }
        }
        if rules.has_first() {
            files.sort_by_cached_key(|&(id, ..)| rules.rank(&names.path(id)));
        }
        let mut layout = Layout::new(tree).map_err(|it| unfit(&names, it))?;
        let mut chunks = Chunks::new(file, layout.data_at());
        let mut buffer = vec![0; CHUNK_BYTES.to_usize()];
        for (id, start, size) in files {
            let mut done = 0;
            while done < size {
                let len = (size - done).min(CHUNK_BYTES).to_usize();
                let padded = len.next_multiple_of(BLOCK_BYTES.to_usize());
                contents
                    .read_exact_at(&mut buffer[..len], start + done)
                    .map_err(failed)?;
                buffer[len..padded].fill(0);
                let bytes = &buffer[..padded];
                // The layout has room for the places of chunks only where there are several.
                let is_hole = size > CHUNK_BYTES && bytes.iter().all(|&byte| byte == 0);
                let at = (!is_hole).then(|| chunks.keep(bytes)).transpose();
                let placed = layout.place(id, 1, at.map_err(failed)?);
                placed.map_err(|it| unfit(&names, it))?;
                done += len.to_u64();
            }
        }
        let sealed = layout.seal(chunks.end(), uuid);
        let sealed = sealed.map_err(|it| unfit(&names, it))?;
        sealed
            .write(|at, bytes| chunks.put(at, bytes))
            .and_then(|()| chunks.flush())
            .and_then(|()| file.set_len(sealed.image_bytes()))
            .map_err(failed)
    }
}

/// Name and directory of each inode, for messages: a chain of directories in one long path would
/// take memory with the square of its length if each one's whole path was kept.
struct Names<'t>(Vec<(Id, &'t [u8])>);

impl Names<'_> {
    /// Path of an inode inside the tree; empty for the root, and for one that is not known.
    fn path(&self, id: Id) -> PathBuf {
        let mut names = Vec::new();
        let mut at = id;
        while let Some(&(above, name)) = self.0.get(at.to_usize()).filter(|_| at != 0) {
            names.push(OsStr::from_bytes(name));
            at = above;
        }
        names.into_iter().rev().collect()
    }
}

fn node_of(kind: &Kind) -> Node<'_> {
    match kind {
        Kind::Directory(_) => Node::Directory,
        Kind::File(_, size_bytes) => Node::File {
            size_bytes: *size_bytes,
            may_be_hole: false,
        },
        Kind::Link(target) => Node::Link(target),
        Kind::CharacterDevice(major, minor) => Node::CharacterDevice(*major, *minor),
        Kind::BlockDevice(major, minor) => Node::BlockDevice(*major, *minor),
        Kind::Fifo => Node::Fifo,
    }
}
