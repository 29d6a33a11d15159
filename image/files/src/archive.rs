//! Files of an image as a tar stream (POSIX.1-2001, pax), in the order of the walk.
//!
//! Must stay true: a file's head says how many bytes follow, and that number follows or the stream
//! ends with an error. What ustar's fields cannot hold (long names, large numbers, parts of
//! seconds, extended attributes) stands in pax records.

use crate::walk::{Wanted, walk};
use crate::{FilesError, Kind, Node, Piece, Tree};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// Writes the files that are `wanted` as a tar to `output`, all with the same owner where `owner`
/// gives one. Returns their number, directories included. Blocks on the receiver.
///
/// # Errors
/// [`FilesError`]; the stream then has no end that a reader would take for one.
pub fn archive(
    tree: &dyn Tree,
    wanted: &mut Wanted,
    owner: Option<(u32, u32)>,
    output: &mut dyn Write,
) -> Result<u64, FilesError> {
    let mut archive = Archive {
        tree,
        owner,
        builder: Builder::new(output),
        first: HashMap::new(),
        count: 0,
    };
    walk(tree, wanted, &mut |visit| match visit.wanted {
        true => archive.add(visit.path, visit.node),
        false => Ok(()),
    })?;
    let output = archive.builder.into_inner().map_err(FilesError::Output)?;
    output.flush().map_err(FilesError::Output)?;
    Ok(archive.count)
}

struct Archive<'a> {
    tree: &'a dyn Tree,
    owner: Option<(u32, u32)>,
    builder: Builder<&'a mut dyn Write>,
    /// The first names of files that have several.
    first: HashMap<u64, Vec<u8>>,
    count: u64,
}

impl Archive<'_> {
    fn add(&mut self, path: &[u8], node: &Node) -> Result<(), FilesError> {
        let is_directory = node.kind == Kind::Directory;
        let mut name = match path {
            b"" => b".".to_vec(),
            path => path.to_vec(),
        };
        if is_directory {
            name.push(b'/');
        }
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
        let mut header = Header::new_ustar();
        let mut target = Vec::new();
        let mut size_bytes = 0;
        let known = self
            .first
            .get(&node.id)
            .filter(|_| node.links > 1 && !is_directory);
        let kind = match (known, node.kind) {
            (Some(first), _) => {
                target.clone_from(first);
                EntryType::Link
            }
            (None, Kind::File) => {
                size_bytes = node.size_bytes;
                EntryType::Regular
            }
            (None, Kind::Directory) => EntryType::Directory,
            (None, Kind::Link) => {
                target = self.tree.link(node)?;
                EntryType::Symlink
            }
            (None, Kind::CharacterDevice) => EntryType::Char,
            (None, Kind::BlockDevice) => EntryType::Block,
            (None, Kind::Fifo) => EntryType::Fifo,
            // A tar has no sockets; programs make theirs anew.
            (None, Kind::Socket) => return Ok(()),
        };
        header.set_entry_type(kind);
        header.set_mode(node.permissions.into());
        place_name(&mut header, &name, &mut records);
        if !target.is_empty() {
            place_target(&mut header, &target, &mut records);
        }
        let (uid, gid) = self.owner.unwrap_or((node.uid, node.gid));
        let number = |value: u64, max: u64, key: &str, records: &mut Vec<_>| {
            if value <= max {
                return value;
            }
            records.push((key.to_owned(), value.to_string().into_bytes()));
            0
        };
        header.set_uid(number(uid.into(), OCTAL_7_MAX, "uid", &mut records));
        header.set_gid(number(gid.into(), OCTAL_7_MAX, "gid", &mut records));
        header.set_size(number(size_bytes, OCTAL_11_MAX, "size", &mut records));
        place_time(&mut header, node, &mut records);
        if matches!(kind, EntryType::Char | EntryType::Block) {
            let (major, minor) = node.device;
            let set = header
                .set_device_major(major)
                .and_then(|()| header.set_device_minor(minor));
            set.map_err(FilesError::Output)?;
        }
        if kind != EntryType::Link {
            for (name, value) in self.tree.attributes(node)? {
                // A record's key is text up to the sign that ends it.
                if let Ok(name) = String::from_utf8(name)
                    && !name.contains('=')
                {
                    records.push((format!("SCHILY.xattr.{name}"), value));
                }
            }
        }
        header.set_cksum();
        self.write(&header, &records)?;
        if kind == EntryType::Regular {
            self.contents(node)?;
        }
        if node.links > 1 && !is_directory && known_is_new(kind) {
            self.first.insert(node.id, path.to_vec());
        }
        self.count += 1;
        Ok(())
    }

    fn write(&mut self, header: &Header, records: &[(String, Vec<u8>)]) -> Result<(), FilesError> {
        if !records.is_empty() {
            let records = records.iter().map(|(key, value)| (&**key, &**value));
            let written = self.builder.append_pax_extensions(records);
            written.map_err(FilesError::Output)?;
        }
        // The contents follow by our own hand: they come in pieces, not from a reader.
        let written = self.builder.append(header, io::empty());
        written.map_err(FilesError::Output)
    }

    fn contents(&mut self, node: &Node) -> Result<(), FilesError> {
        let output = self.builder.get_mut();
        let mut done = 0;
        self.tree.contents(node, 0..node.size_bytes, &mut |piece| {
            done += piece.len();
            piece.write_to(*output)
        })?;
        if done != node.size_bytes {
            return Err(FilesError::damaged(node.id, "a file's contents"));
        }
        let padding = done.next_multiple_of(BLOCK_BYTES) - done;
        let padding = Piece::Hole(padding).write_to(*output);
        padding.map_err(FilesError::Output)
    }
}

/// True for an entry that further names can refer to.
fn known_is_new(kind: EntryType) -> bool {
    kind != EntryType::Link
}

fn place_name(header: &mut Header, name: &[u8], records: &mut Vec<(String, Vec<u8>)>) {
    if header.set_path(Path::new(OsStr::from_bytes(name))).is_err() {
        records.push(("path".into(), name.to_vec()));
        put(&mut header.as_old_mut().name, name);
    }
}

fn place_target(header: &mut Header, target: &[u8], records: &mut Vec<(String, Vec<u8>)>) {
    let field = &mut header.as_old_mut().linkname;
    // Byte by byte as it is: a target is not a path that may be put in order.
    if target.len() > field.len() {
        records.push(("linkpath".into(), target.to_vec()));
    }
    put(field, target);
}

/// Puts as much of a text into a field as it takes.
fn put(field: &mut [u8; 100], text: &[u8]) {
    let len = text.len().min(field.len());
    field.fill(0);
    field[..len].copy_from_slice(&text[..len]);
}

fn place_time(header: &mut Header, node: &Node, records: &mut Vec<(String, Vec<u8>)>) {
    let seconds = u64::try_from(node.mtime_s).unwrap_or(0);
    header.set_mtime(seconds.min(OCTAL_11_MAX));
    if node.mtime_ns == 0 && node.mtime_s >= 0 && seconds <= OCTAL_11_MAX {
        return;
    }
    // Of a time before 1970, the parts of a second count away from the second before.
    let text = match (node.mtime_s, node.mtime_ns) {
        (-1, ns @ 1..) => format!("-0.{:09}", 1_000_000_000 - ns),
        (s @ ..0, ns @ 1..) => format!("{}.{:09}", s + 1, 1_000_000_000 - ns),
        (s, 0) => s.to_string(),
        (s, ns) => format!("{s}.{ns:09}"),
    };
    records.push(("mtime".into(), text.into_bytes()));
}

const BLOCK_BYTES: u64 = 512;
/// The largest numbers of ustar's fields of 8 and 12 bytes.
const OCTAL_7_MAX: u64 = 0o7_777_777;
const OCTAL_11_MAX: u64 = 0o77_777_777_777;
