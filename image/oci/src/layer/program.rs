//! Files that programs name: libraries, loaders, interpreters of scripts; and their places in
//! a layer.
//!
//! Must stay true: takes any bytes; a name is only looked up within the layer, by a bounded
//! number of steps.
//! Source: System V ABI, "Object Files" and "Program Loading and Dynamic Linking"; execve(2),
//! "Interpreter scripts"; ld.so(8).

use crate::store::read_or_zeros;
use sidecore_bare::width::ToU64;
use sidecore_erofs::{Bytes, Erofs, Inode, Kind, Unreadable};
use std::collections::VecDeque;
use std::fs::File;

/// Reads bytes of a file from a place on; `None` where there are fewer.
pub(super) type Read<'r> = dyn Fn(u64, &mut [u8]) -> Option<()> + 'r;

/// First bytes of a program or a library.
pub(super) const MAGIC: &[u8] = b"\x7fELF";

/// Names in a program, a library or a script: a path, or a library's name without one.
pub(super) fn names_in(read: &Read<'_>) -> Vec<Vec<u8>> {
    let mut magic = [0; 4];
    match read(0, &mut magic) {
        Some(()) if magic == MAGIC => in_elf(read).unwrap_or_default(),
        Some(()) if magic.starts_with(b"#!") => in_script(read),
        _ => Vec::new(),
    }
}

/// The interpreter of a script, and the program that `env` is to start.
fn in_script(read: &Read<'_>) -> Vec<Vec<u8>> {
    let mut line = Vec::new();
    while line.len() < LINE_BYTES_MAX && !line.contains(&b'\n') {
        let mut byte = [0; 1];
        if read(line.len().to_u64(), &mut byte).is_none() {
            break;
        }
        line.extend(byte);
    }
    let words = line[line.len().min(2)..].split(u8::is_ascii_whitespace);
    let mut words = words.filter(|word| !word.is_empty());
    let mut names: Vec<_> = words.next().map(<[u8]>::to_vec).into_iter().collect();
    if names.first().is_some_and(|name| name.ends_with(b"/env")) {
        let name = words.find(|word| !word.starts_with(b"-"));
        let places = name.into_iter().flat_map(|name| {
            PROGRAM_FOLDERS.map(|folder| [folder.as_bytes(), b"/", name].concat())
        });
        names.extend(places);
    }
    names
}

fn in_elf(read: &Read<'_>) -> Option<Vec<Vec<u8>>> {
    let head: [u8; 64] = array(read, 0)?;
    // 64 bits, little-endian: the machines that this program runs on.
    if head[4..6] != [2, 1] || le16(&head, 54) != 56 {
        return None;
    }
    let (headers_at, count) = (le64(&head, 32), le16(&head, 56).min(HEADERS_MAX));
    let mut names = Vec::new();
    let mut loads = Vec::new();
    let mut dynamic = None;
    for number in 0..count {
        let at = headers_at.checked_add(56 * u64::from(number))?;
        let header: [u8; 56] = array(read, at)?;
        let place = (le64(&header, 8), le64(&header, 32));
        match le32(&header, 0) {
            1 => loads.push((le64(&header, 16), place)),
            2 => dynamic = Some(place),
            3 => names.extend(text(read, place.0)),
            _ => {}
        }
    }
    let Some((dynamic_at, dynamic_bytes)) = dynamic else {
        return Some(names);
    };
    let (mut needed, mut strings) = (Vec::new(), None);
    for number in 0..(dynamic_bytes / 16).min(DYNAMIC_MAX) {
        let entry: [u8; 16] = array(read, dynamic_at.checked_add(16 * number)?)?;
        match le64(&entry, 0) {
            0 => break,
            1 => needed.push(le64(&entry, 8)),
            5 => strings = Some(le64(&entry, 8)),
            _ => {}
        }
    }
    // The address of the names, which the headers place in the file.
    let strings = strings?;
    let at = loads.iter().find_map(|&(address, (at, bytes))| {
        let inner = strings
            .checked_sub(address)
            .filter(|&inner| inner < bytes)?;
        at.checked_add(inner)
    })?;
    let name = |&offset: &u64| text(read, at.checked_add(offset)?);
    names.extend(needed.iter().take(NEEDED_MAX).filter_map(name));
    Some(names)
}

/// Bytes up to a zero.
fn text(read: &Read<'_>, at: u64) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < LINE_BYTES_MAX {
        let [byte] = array(read, at.checked_add(found.len().to_u64())?)?;
        match byte {
            0 => return Some(found),
            byte => found.push(byte),
        }
    }
    None
}

fn array<const N: usize>(read: &Read<'_>, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    read(at, &mut bytes).map(|()| bytes)
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at)) | u32::from(le16(bytes, at + 2)) << 16
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

/// The files of a layer by their paths.
pub(super) struct Files<'d>(Erofs<Metadata<'d>>);

/// The part of a device that describes its files.
struct Metadata<'d>(&'d File, u64);

impl Bytes for Metadata<'_> {
    fn size_bytes(&self) -> u64 {
        self.1
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), Unreadable> {
        read_or_zeros(self.0, dst, offset).map_err(|_| Unreadable)
    }
}

impl<'d> Files<'d> {
    pub(super) fn open(device: &'d File, device_bytes: u64) -> Option<Self> {
        let erofs = Erofs::open(Metadata(device, device_bytes));
        let failed = |error: &_| tracing::debug!("no file is looked up: {error}");
        erofs.inspect_err(failed).ok().map(Self)
    }

    /// Byte of the device at which the contents of a library begin.
    pub(super) fn library(&self, name: &[u8]) -> Option<u64> {
        if name.contains(&b'/') {
            return self.file(name);
        }
        let mut folders = LIBRARY_FOLDERS.iter();
        folders.find_map(|folder| self.file(&[folder.as_bytes(), b"/", name].concat()))
    }

    /// The same of any file; links are followed within the layer.
    pub(super) fn file(&self, path: &[u8]) -> Option<u64> {
        let mut left: VecDeque<Vec<u8>> = parts(path).collect();
        let mut above: Vec<Inode> = Vec::new();
        let mut here = self.0.inode(self.0.root()).ok()?;
        // Each step takes a name; links may add some, and lead in circles.
        for _ in 0..STEPS_MAX {
            let Some(name) = left.pop_front() else {
                break;
            };
            if name == b".." {
                here = above.pop().unwrap_or(here);
                continue;
            }
            let next = self.0.look_up(&here, &name).ok()??;
            let next = self.0.inode(next).ok()?;
            if next.kind != Kind::Link {
                above.push(std::mem::replace(&mut here, next));
                continue;
            }
            let target = self.0.link(&next).ok()?;
            if target.starts_with(b"/") {
                above.clear();
                here = self.0.inode(self.0.root()).ok()?;
            }
            let names: Vec<_> = parts(&target).take(STEPS_MAX + 1).collect();
            for name in names.into_iter().rev() {
                left.push_front(name);
            }
            // The steps do not suffice: links of thousands of names would pile up.
            if left.len() > STEPS_MAX {
                return None;
            }
        }
        if !left.is_empty() || here.kind != Kind::File || here.size_bytes == 0 {
            return None;
        }
        let mut extents = Vec::new();
        self.0.extents(&here, 0, 1, &mut extents).ok()?;
        extents.first()?.at
    }
}

fn parts(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let parts = path.split(|&byte| byte == b'/');
    let parts = parts.filter(|it| !it.is_empty() && *it != b".");
    parts.map(<[u8]>::to_vec)
}

/// Folders in which a loader looks for libraries.
const LIBRARY_FOLDERS: [&str; 9] = [
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "usr/local/lib",
];
/// Folders in which programs are looked for.
const PROGRAM_FOLDERS: [&str; 3] = ["usr/local/bin", "usr/bin", "bin"];
const LINE_BYTES_MAX: usize = 256;
const HEADERS_MAX: u16 = 64;
const DYNAMIC_MAX: u64 = 4096;
const NEEDED_MAX: usize = 256;
/// Names on the way to a file.
const STEPS_MAX: usize = 64;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::build::build;

    /// A program with a loader that names libraries.
    pub(in crate::layer) fn elf(loader: &str, libraries: &[&str]) -> Vec<u8> {
        let mut strings = vec![0];
        let mut add = |text: &str| {
            let at = strings.len() as u64;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        let loader_at = STRINGS_AT + add(loader);
        let mut dynamic: Vec<(u64, u64)> = libraries.iter().map(|it| (1, add(it))).collect();
        dynamic.extend([(5, ADDRESS + STRINGS_AT), (0, 0)]);
        let dynamic: Vec<u8> = (dynamic.iter().flat_map(|it| [it.0, it.1]))
            .flat_map(u64::to_le_bytes)
            .collect();
        let dynamic_at = STRINGS_AT + strings.len() as u64;
        let mut file = vec![0; STRINGS_AT as usize];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64;
        (file[54], file[56]) = (56, 3);
        let end = dynamic_at + dynamic.len() as u64;
        let headers = [
            (3, loader_at, loader.len() as u64 + 1),
            (1, 0, end),
            (2, dynamic_at, dynamic.len() as u64),
        ];
        for (number, (kind, at, bytes)) in headers.into_iter().enumerate() {
            let header = &mut file[64 + 56 * number..][..56];
            header[0] = kind;
            header[8..16].copy_from_slice(&at.to_le_bytes());
            header[16..24].copy_from_slice(&(ADDRESS + at).to_le_bytes());
            header[32..40].copy_from_slice(&bytes.to_le_bytes());
        }
        [&file[..], &strings, &dynamic].concat()
    }

    fn names_of(file: &[u8]) -> Vec<String> {
        let names = names_in(&|at, dst: &mut [u8]| {
            let at = usize::try_from(at).ok()?;
            dst.copy_from_slice(file.get(at..at.checked_add(dst.len())?)?);
            Some(())
        });
        let names = names.iter().map(|it| String::from_utf8_lossy(it));
        names.map(|it| it.into_owned()).collect()
    }

    #[test]
    fn names_of_libraries_and_interpreters_are_found() {
        let file = elf("/lib64/ld.so", &["liba.so", "libc.so.6"]);
        assert_eq!(names_of(&file), ["/lib64/ld.so", "liba.so", "libc.so.6"]);
        assert_eq!(names_of(b"#! /bin/sh -e\nx"), ["/bin/sh"]);
        let env = names_of(b"#!/usr/bin/env -S python3 -u\n");
        assert_eq!(env[0], "/usr/bin/env");
        assert!(env.contains(&"usr/bin/python3".to_owned()), "{env:?}");
        assert!(names_of(b"text").is_empty() && names_of(b"").is_empty());
        assert!(names_of(b"#!").is_empty());
    }

    /// Images may have any bytes there.
    #[test]
    fn damaged_programs_name_nothing_or_less() {
        let file = elf("/lib64/ld.so", &["liba.so"]);
        for at in 0..file.len() {
            names_of(&file[..at]);
            for byte in [0, 1, 0x7F, 0xFF] {
                let mut bad = file.clone();
                bad[at] = byte;
                names_of(&bad);
            }
        }
    }

    #[test]
    fn files_are_found_through_links_within_the_layer() {
        let mut tar = tar::Builder::new(Vec::new());
        let mut add = |path: &str, link: Option<&str>| {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o755);
            match link {
                Some(link) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_size(0);
                    tar.append_link(&mut header, path, link).unwrap();
                }
                None => {
                    header.set_size(1);
                    tar.append_data(&mut header, path, &b"x"[..]).unwrap();
                }
            }
        };
        add("usr/bin/dash", None);
        add("usr/bin/sh", Some("dash"));
        add("bin", Some("usr/bin"));
        add("usr/lib/libx.so.1.2", None);
        add("usr/lib/libx.so.1", Some("/usr/../usr/lib/libx.so.1.2"));
        add("circle", Some("circle"));
        add("out", Some("../../../usr/bin/dash"));
        let blob = tar.into_inner().unwrap();
        let layer = build(&mut &blob[..], None).unwrap().index.tree().unwrap();
        let device = tempfile::tempfile().unwrap();
        crate::store::write_tree(&device, &layer).unwrap();
        let files = Files::open(&device, layer.device_bytes).unwrap();
        let at = |number: usize| Some(layer.extents[number].device_at);
        for path in ["usr/bin/dash", "/bin/sh", "./bin/./sh", "out"] {
            assert_eq!(files.file(path.as_bytes()), at(0), "{path}");
        }
        assert_eq!(files.library(b"libx.so.1"), at(1));
        for path in ["circle", "usr", "usr/bin/none", "usr/bin/dash/x", ""] {
            assert_eq!(files.file(path.as_bytes()), None, "{path}");
        }
        assert_eq!(files.library(b"libnone.so"), None);
    }

    const STRINGS_AT: u64 = 64 + 3 * 56;
    /// Address of the file's first byte.
    const ADDRESS: u64 = 0x40_0000;
}
