//! Images of containers in files of this machine: an OCI image layout as a folder or an archive,
//! and an archive of `docker save`.
//!
//! | name | is |
//! |---|---|
//! | `oci:DIR[:NAME]`, or a folder | an OCI image layout |
//! | `oci-archive:FILE[:NAME]` | a tar of one |
//! | `docker-archive:FILE[:NAME]`, or a file | what `docker save` and `podman save` write |
//!
//! Nothing is unpacked: contents are read at their places in the archive.
//! Must stay true: no name in an archive becomes a path of this machine, and no name or link in a
//! folder leads out of it; what is read of a document is bounded; contents are only claimed to have
//! their digest, which their readers check.
//! Called from: any thread; blocks on disks.
//! Source: OCI Image Format Specification 1.1, "Image Layout"; Moby's image specification 1.2
//! ("Combined Image JSON + Filesystem Changeset Format").

use crate::index::hex;
use crate::tar::{Kind, Piece, TarError, Walker};
use ring::digest;
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Value, json};
use sidecore_bare::width::ToU64;
use sidecore_remote::ImageManifest;
use sidecore_remote::fault::Fault;
use sidecore_remote::origin::oci::MANIFEST_TYPE;
use sidecore_remote::origin::oci::documents::{Manifest, sha256_digits};
use sidecore_sys::folder::Folder;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Reasons why an image in files cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// A file.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The archive.
    #[error("{path} is no archive of an image: {reason}")]
    Archive {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A document in it.
    #[error("{0}")]
    Document(String),
}

/// An image of containers in files.
pub struct Local {
    place: Place,
    manifest: ImageManifest,
    /// Contents that a `docker save` archive has under other names than their digests.
    named: BTreeMap<String, String>,
}

/// The place of an image's files.
enum Place {
    Folder(Folder),
    Archive {
        path: PathBuf,
        members: BTreeMap<String, Member>,
    },
}

/// A member of an archive.
enum Member {
    /// Contents: byte of the archive, bytes.
    File(u64, u64),
    /// Another name.
    Link(String),
}

/// An image of `docker save`'s `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Local {
    /// True if a name says that it is an image of containers, by its prefix or as a layout.
    #[must_use]
    pub fn is_plainly(name: &str) -> bool {
        prefix_of(name).is_some() || Path::new(name).join("oci-layout").exists()
    }

    /// Opens an image by a name of the module's table.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn open(name: &str) -> Result<Self, LocalError> {
        let (prefix, rest) = match prefix_of(name) {
            Some(prefix) => name.split_at(prefix.len()),
            None => ("", name),
        };
        // A path may have colons, too.
        let (path, wanted) = match rest.split_once(':') {
            Some((path, wanted)) if !prefix.is_empty() && !Path::new(rest).exists() => {
                (path, Some(wanted))
            }
            _ => (rest, None),
        };
        let path = PathBuf::from(path);
        let place = match path.is_dir() {
            true => Place::Folder(
                Folder::open(&path).map_err(|source| LocalError::File { path, source })?,
            ),
            false => Place::archive(path)?,
        };
        // Newer versions of docker write both forms into one archive; a prefix decides.
        let is_saved = prefix != "oci-archive:" && prefix != "oci:" && place.has(SAVED);
        match is_saved {
            true => Self::of_saved(place, wanted),
            false => Self::of_layout(place, wanted),
        }
    }

    fn of_layout(place: Place, wanted: Option<&str>) -> Result<Self, LocalError> {
        let name = place.path().display().to_string();
        let document = |fault: Fault| LocalError::Document(format!("{name}: {fault}"));
        let mut text = place.document("index.json")?;
        let mut manifest = Manifest::read(&text, "", None).map_err(document)?;
        let mut given = wanted
            .map(|wanted| named_manifest(&text, wanted).map_err(LocalError::Document))
            .transpose()?;
        // An index may name another one, for machines.
        for _ in 0..3 {
            let digest = match (given.take(), manifest.for_this_machine()) {
                (Some(digest), _) => digest,
                (None, Some(digest)) => digest.map_err(document)?,
                (None, None) => break,
            };
            text = place.document(&blob_name(&digest)?)?;
            manifest = Manifest::read(&text, &digest, None).map_err(document)?;
        }
        let manifest = ImageManifest::of_text(text).map_err(document)?;
        Ok(Self {
            place,
            manifest,
            named: BTreeMap::new(),
        })
    }

    /// An image of `docker save`, whose manifest is made here.
    fn of_saved(place: Place, wanted: Option<&str>) -> Result<Self, LocalError> {
        let text = place.document(SAVED)?;
        let name = place.path().display().to_string();
        let document = |text: String| LocalError::Document(format!("{name}: {text}"));
        let all: Vec<Saved> = serde_json::from_slice(&text)
            .map_err(|error| document(format!("its {SAVED} cannot be read: {error}")))?;
        let saved = choose(&all, wanted).map_err(document)?;
        if saved.layers.len() > LAYERS_MAX {
            return Err(document(format!("it has more than {LAYERS_MAX} layers")));
        }
        let mut named = BTreeMap::new();
        let mut describe = |member: &str, kind: Option<&str>| {
            let (sha256, size_bytes, found) = place.digest(member)?;
            named.insert(sha256.clone(), member.to_owned());
            Ok(json!({
                "mediaType": kind.unwrap_or(found),
                "digest": format!("sha256:{sha256}"),
                "size": size_bytes,
            }))
        };
        let config = describe(&saved.config, Some(CONFIG_TYPE))?;
        let layers = saved.layers.iter().map(|it| describe(it, None));
        let layers: Vec<Value> = layers.collect::<Result<_, LocalError>>()?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config,
            "layers": layers,
        });
        // Through the reader of manifests from registries: one set of bounds and checks for both.
        let manifest = ImageManifest::of_text(manifest.to_string().into_bytes());
        Ok(Self {
            manifest: manifest.map_err(|fault| document(fault.to_string()))?,
            place,
            named,
        })
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &ImageManifest {
        &self.manifest
    }

    /// The contents that have a digest (64 digits), as the manifest says; also their size.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn blob(&self, sha256: &str) -> Result<(impl Read, u64), LocalError> {
        match self.named.get(sha256) {
            Some(member) => self.place.open(member),
            None => self.place.open(&blob_name(&format!("sha256:{sha256}"))?),
        }
    }
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder.path(),
            Self::Archive { path, .. } => path,
        }
    }

    /// Reads the names in an archive.
    fn archive(path: PathBuf) -> Result<Self, LocalError> {
        let of_file = |source| LocalError::File {
            path: path.clone(),
            source,
        };
        let mut file = File::open(&path).map_err(of_file)?;
        let members = match members(&mut file) {
            Ok(members) => members,
            Err(Fail::Io(source)) => return Err(of_file(source)),
            Err(Fail::Archive(reason)) => return Err(LocalError::Archive { path, reason }),
        };
        Ok(Self::Archive { path, members })
    }

    fn has(&self, member: &str) -> bool {
        match self {
            // One that cannot be read is there, and the error names it.
            Self::Folder(folder) => inside(folder, member)
                .err()
                .is_none_or(|error| error.kind() != io::ErrorKind::NotFound),
            Self::Archive { members, .. } => members.contains_key(member),
        }
    }

    /// Contents of a member, and their size.
    fn open(&self, member: &str) -> Result<(io::Take<File>, u64), LocalError> {
        let (opened, path) = match self {
            Self::Folder(folder) => {
                let opened = inside(folder, member)
                    .and_then(|file| Ok((file.metadata()?.len(), file)))
                    .map(|(bytes, file)| (file.take(bytes), bytes));
                (opened, folder.path().join(member))
            }
            Self::Archive { path, members } => {
                let mut name = member.to_owned();
                let mut found = members.get(&name);
                // Links may lead to one another in a circle.
                for _ in 0..LINKS_MAX {
                    let Some(Member::Link(target)) = found else {
                        break;
                    };
                    name.clone_from(target);
                    found = members.get(&name);
                }
                let Some(Member::File(at, bytes)) = found else {
                    let shown: String = member.escape_debug().take(NAME_SHOWN_MAX).collect();
                    return Err(LocalError::Archive {
                        path: path.clone(),
                        reason: format!("{shown} is not in it"),
                    });
                };
                let opened = File::open(path).and_then(|mut file| {
                    file.seek(SeekFrom::Start(*at))?;
                    Ok((file.take(*bytes), *bytes))
                });
                (opened, path.clone())
            }
        };
        opened.map_err(|source| LocalError::File { path, source })
    }

    fn document(&self, member: &str) -> Result<Vec<u8>, LocalError> {
        let (input, bytes) = self.open(member)?;
        // Before it is read: an archive may claim a document of any size.
        if bytes > DOCUMENT_BYTES_MAX {
            let text = format!("{member} has more than {DOCUMENT_BYTES_MAX} bytes");
            return Err(LocalError::Document(text));
        }
        let mut text = Vec::new();
        let mut input = input;
        let read = input.read_to_end(&mut text);
        read.map_err(|source| self.failed(source))?;
        Ok(text)
    }

    /// Digest, size and media type of a member, as a layer.
    fn digest(&self, member: &str) -> Result<(String, u64, &'static str), LocalError> {
        // In an archive a name is only looked up; in a folder it is a path.
        if matches!(self, Self::Folder(_)) && !is_plain(member) {
            let text = format!("{SAVED} names {}", member.escape_debug());
            return Err(LocalError::Document(text));
        }
        let (mut input, _) = self.open(member)?;
        let mut context = digest::Context::new(&digest::SHA256);
        let mut buffer = vec![0; 1 << 20];
        let (mut bytes, mut kind) = (0, TAR_TYPES[0].1);
        loop {
            let len = input.read(&mut buffer).map_err(|it| self.failed(it))?;
            if bytes == 0 {
                let is_it = |it: &&(&[u8], _)| buffer[..len].starts_with(it.0);
                kind = TAR_TYPES[1..].iter().find(is_it).map_or(kind, |it| it.1);
            }
            if len == 0 {
                break;
            }
            context.update(&buffer[..len]);
            bytes += len.to_u64();
        }
        Ok((hex(context.finish().as_ref()), bytes, kind))
    }

    fn failed(&self, source: io::Error) -> LocalError {
        LocalError::File {
            path: self.path().to_owned(),
            source,
        }
    }
}

/// The image that is asked for, or the only one.
fn choose<'a>(all: &'a [Saved], wanted: Option<&str>) -> Result<&'a Saved, String> {
    let tags = |it: &'a Saved| it.repo_tags.iter().flatten().map(String::as_str);
    match (wanted, all) {
        (None, [one]) => return Ok(one),
        (None, []) => return Err("it has no image".into()),
        (None, _) => {}
        (Some(wanted), _) => {
            if let Some(found) = all.iter().find(|it| tags(it).any(|tag| tag == wanted)) {
                return Ok(found);
            }
        }
    }
    let names: Vec<&str> = all.iter().flat_map(tags).take(NAMES_SHOWN_MAX).collect();
    let names = names.join(", ");
    Err(format!(
        "name one of its images behind a colon: {}",
        names.escape_debug()
    ))
}

/// Digest of the manifest that an index of a layout has under a name.
fn named_manifest(index: &[u8], wanted: &str) -> Result<String, String> {
    let index: Value = serde_json::from_slice(index).unwrap_or_default();
    let manifests = index["manifests"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |it: &'_ Value| it["annotations"][NAME].as_str().map(str::to_owned);
    let found = manifests
        .iter()
        .find(|it| name(it).as_deref() == Some(wanted));
    let digest = found.and_then(|it| it["digest"].as_str());
    digest.map(str::to_owned).ok_or_else(|| {
        let names: Vec<_> = manifests.iter().filter_map(name).collect();
        let names = names[..names.len().min(NAMES_SHOWN_MAX)].join(", ");
        format!(
            "{} is none of the layout's images: {}",
            wanted.escape_debug(),
            names.escape_debug()
        )
    })
}

/// Reasons why an archive's names are not read.
enum Fail {
    Io(io::Error),
    Archive(String),
}

impl From<TarError> for Fail {
    fn from(error: TarError) -> Self {
        Self::Archive(error.to_string())
    }
}

/// The members of an archive, by their names.
fn members(file: &mut File) -> Result<BTreeMap<String, Member>, Fail> {
    let mut members = BTreeMap::new();
    let mut walker = Walker::new(false);
    let mut buffer = vec![0; 1 << 20];
    let mut is_first = true;
    loop {
        let len = file.read(&mut buffer).map_err(Fail::Io)?;
        if len == 0 {
            break;
        }
        let is_compressed = |it: &(&[u8], _)| buffer[..len].starts_with(it.0);
        // Members are read at their places, and a compressed archive has none.
        if is_first && TAR_TYPES[1..].iter().any(is_compressed) {
            return Err(Fail::Archive("it is compressed; decompress it".into()));
        }
        is_first = false;
        walker.push(&buffer[..len], &mut |piece| {
            let Piece::Entry(entry) = piece else {
                return Ok(());
            };
            let name = plain_name(&entry.path);
            let member = match entry.kind {
                Kind::File => Member::File(entry.data_at, entry.size_bytes),
                Kind::HardLink => Member::Link(plain_name(&entry.link)),
                // `docker save` links equal layers.
                Kind::Link => Member::Link(beside(&name, &entry.link)),
                _ => return Ok(()),
            };
            // The names are kept in memory, and an archive can hold millions.
            if members.len() == MEMBERS_MAX {
                let reason = format!("it has more than {MEMBERS_MAX} files");
                return Err(Fail::Archive(reason));
            }
            members.insert(name, member);
            Ok(())
        })?;
    }
    walker.finish()?;
    Ok(members)
}

/// Opens a file in a folder. A link leads where one of an archive does: to another file in it.
fn inside(folder: &Folder, member: &str) -> io::Result<File> {
    let mut name = member.to_owned();
    for _ in 0..=LINKS_MAX {
        match folder.read_file(Path::new(&name)) {
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
            opened => return opened,
        }
        let path = Path::new(&name);
        // Of the folders on the way none may be a link.
        let above = folder.beneath(path.parent().unwrap_or(Path::new("")))?;
        let last = path.file_name().unwrap_or_default();
        let target = rustix::fs::readlinkat(&above, last, Vec::new())?;
        name = beside(&name, target.to_bytes());
    }
    Err(Errno::LOOP.into())
}

/// The name of a member without what writers put in front of it.
fn plain_name(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.trim_start_matches("./").to_owned()
}

/// The member that a link in another member's folder names.
fn beside(name: &str, target: &[u8]) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    let target = String::from_utf8_lossy(target);
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// True if a name leads to a file below a folder.
fn is_plain(name: &str) -> bool {
    let is_part = |it: &str| !matches!(it, "" | "." | "..");
    name.split('/').all(is_part)
}

/// The file of a blob in a layout.
fn blob_name(digest: &str) -> Result<String, LocalError> {
    match sha256_digits(digest) {
        Some(digits) => Ok(format!("blobs/sha256/{digits}")),
        None => Err(LocalError::Document("a digest is not of SHA-256".into())),
    }
}

/// The prefix that says that an image lies in files here. A URL, `oci://`, has none.
fn prefix_of(name: &str) -> Option<&'static str> {
    let prefix = PREFIXES.into_iter().find(|it| name.starts_with(it));
    prefix.filter(|it| !name[it.len()..].starts_with("//"))
}

const PREFIXES: [&str; 3] = ["docker-archive:", "oci-archive:", "oci:"];
/// The list of images in an archive of `docker save`.
const SAVED: &str = "manifest.json";
/// Annotation: an image's name in a layout.
const NAME: &str = "org.opencontainers.image.ref.name";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
/// First bytes and media types of layers; the first is that of all others.
const TAR_TYPES: [(&[u8], &str); 3] = [
    (b"", "application/vnd.oci.image.layer.v1.tar"),
    (&[0x1f, 0x8b], "application/vnd.oci.image.layer.v1.tar+gzip"),
    (
        &[0x28, 0xb5, 0x2f, 0xfd],
        "application/vnd.oci.image.layer.v1.tar+zstd",
    ),
];
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
const MEMBERS_MAX: usize = 100_000;
const LAYERS_MAX: usize = 1024;
/// Links that lead on to links.
const LINKS_MAX: usize = 8;
const NAMES_SHOWN_MAX: usize = 20;
const NAME_SHOWN_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_an_archive_stay_in_it() {
        for (name, target, expected) in [
            ("b/layer.tar", "../a/layer.tar", "a/layer.tar"),
            ("b/layer.tar", "../../../etc/passwd", "etc/passwd"),
            ("layer.tar", "x", "x"),
        ] {
            assert_eq!(beside(name, target.as_bytes()), expected);
        }
        assert!(!is_plain("../x") && !is_plain("/x") && is_plain("a/layer.tar"));
    }

    fn archive(members: &[(&str, &[u8])], link: Option<(&str, &str)>) -> tempfile::NamedTempFile {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, bytes) in members {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, name, *bytes).unwrap();
        }
        if let Some((name, target)) = link {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            tar.append_link(&mut header, name, target).unwrap();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), tar.into_inner().unwrap()).unwrap();
        file
    }

    #[test]
    fn an_archive_of_docker_save_is_read_in_place() {
        let list = br#"[
            {"Config":"c.json","RepoTags":["a:1"],"Layers":["1/layer.tar","2/layer.tar"]},
            {"Config":"c.json","RepoTags":["b:1"],"Layers":["1/layer.tar"]}]"#;
        let members: [(&str, &[u8]); 3] = [
            (SAVED, list),
            ("./c.json", b"{}"),
            ("1/layer.tar", b"contents"),
        ];
        let file = archive(&members, Some(("2/layer.tar", "../1/layer.tar")));
        let name = |tag: &str| format!("docker-archive:{}{tag}", file.path().display());
        let local = Local::open(&name(":a:1")).unwrap();
        let layers = &local.manifest().layers;
        assert_eq!((layers.len(), &layers[0]), (2, &layers[1]));
        assert_eq!(layers[0].2, TAR_TYPES[0].1);
        let (mut input, bytes) = local.blob(&layers[0].0).unwrap();
        let mut found = String::new();
        input.read_to_string(&mut found).unwrap();
        assert_eq!((&*found, bytes), ("contents", 8));
        let refused = |tag: &str| Local::open(&name(tag)).err().unwrap().to_string();
        for tag in ["", ":c:1"] {
            assert!(refused(tag).contains("a:1, b:1"), "{}", refused(tag));
        }
    }

    #[test]
    fn hostile_archives_are_refused() {
        // Links in a circle, a name outside, a document too long, no list at all, compressed.
        let circle = br#"[{"Config":"x","Layers":[]}]"#;
        let outside = br#"[{"Config":"../../etc/passwd","Layers":[]}]"#;
        for (members, link, expected) in [
            (vec![(SAVED, &circle[..])], Some(("x", "x")), "not in it"),
            (vec![(SAVED, &outside[..])], None, "not in it"),
            (vec![("x", &b""[..])], None, "index.json is not in it"),
            (vec![(SAVED, &b"{"[..])], None, "cannot be read"),
        ] {
            let file = archive(&members, link);
            let name = format!("docker-archive:{}", file.path().display());
            let error = Local::open(&name).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        for (bytes, expected) in [
            (&[0x1f, 0x8b, 8, 0][..], "decompress it"),
            (&[7; 700], "damaged"),
            (&[7; 70], "ends inside"),
        ] {
            std::fs::write(file.path(), bytes).unwrap();
            let error = Local::open(file.path().to_str().unwrap());
            let error = error.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
