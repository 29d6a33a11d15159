//! Records of snapshots, one file each, durable.
//!
//! Must stay true: a change of a record is there as a whole or not at all after kill -9 or loss of
//! power (written to another name, synced, renamed). A name is in at most one record.
//! Called from: one thread at a time.

use super::grpc::{Code, Refusal};
use super::messages::{Commit, Info, Timestamp};
use crate::store::{read_bounded, write_whole};
use serde::{Deserialize, Serialize};
use sidecore_remote::is_sha256;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Kind of a snapshot, with containerd's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    View = 1,
    Active = 2,
    Committed = 3,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Name of its folder.
    pub(crate) id: u64,
    /// Its key or, once committed, its name.
    pub(crate) name: String,
    /// Name of its parent; empty without one.
    pub(crate) parent: String,
    pub(crate) kind: Kind,
    pub(crate) labels: BTreeMap<String, String>,
    /// Seconds and nanoseconds since 1970.
    pub(crate) created: (i64, i32),
    pub(crate) updated: (i64, i32),
    /// Bytes and inodes, once committed.
    pub(crate) usage: (i64, i64),
    /// The layer that is mounted in its folder.
    pub(crate) layer: Option<Layer>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    /// URL of the image.
    pub(crate) image: String,
    /// Digest of the layer: 64 digits.
    pub(crate) sha256: String,
}

/// All records.
pub(crate) struct Records {
    folder: PathBuf,
    by_name: BTreeMap<String, Record>,
    next_id: u64,
}

impl Records {
    /// Reads the records in a folder.
    ///
    /// # Errors
    /// The system's, or a record that is damaged.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let mut records = Self {
            folder: folder.to_owned(),
            by_name: BTreeMap::new(),
            next_id: 1,
        };
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            // Left by a crash while it was written.
            let Some(id) = number_of(&path) else {
                fs::remove_file(&path)?;
                continue;
            };
            let bytes = read_bounded(&path, RECORD_BYTES_MAX)?;
            let record = parsed(&bytes, &path)?;
            // Folders of removed snapshots may still be there: their numbers must not come again.
            records.next_id = records.next_id.max(id + 1);
            records.by_name.insert(record.name.clone(), record);
        }
        Ok(records)
    }

    /// A number that no record has had since the start.
    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Record> {
        self.by_name.get(name)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Record> {
        self.by_name.values()
    }

    /// Writes a record that was `old_name` before, or is new.
    ///
    /// # Errors
    /// The system's, or another record has the name; the record is unchanged then.
    pub(crate) fn put(&mut self, old_name: Option<&str>, record: Record) -> io::Result<()> {
        let named = self.by_name.get(&record.name);
        if named.is_some_and(|found| found.id != record.id) {
            let text = format!("snapshot {} already exists", record.name);
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let bytes = serde_json::to_vec(&record)?;
        // The file is named by the number, which a commit keeps: the change of the name is one
        // durable write.
        write_whole(&self.folder, &record.id.to_string(), &bytes)?;
        if let Some(old) = old_name {
            self.by_name.remove(old);
        }
        self.by_name.insert(record.name.clone(), record);
        Ok(())
    }

    /// Removes a record.
    ///
    /// # Errors
    /// The system's; the record is unchanged then.
    pub(crate) fn remove(&mut self, name: &str) -> io::Result<Option<Record>> {
        let Some(record) = self.by_name.get(name) else {
            return Ok(None);
        };
        fs::remove_file(self.folder.join(record.id.to_string()))?;
        Ok(self.by_name.remove(name))
    }
}

/// Digests of the layers that the records in a folder name. Others may write there meanwhile.
///
/// # Errors
/// As [`Records::open`].
pub(crate) fn layers_in(folder: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let mut layers = BTreeSet::new();
    for entry in entries {
        let path = entry?.path();
        if number_of(&path).is_none() {
            continue;
        }
        match read_bounded(&path, RECORD_BYTES_MAX) {
            Ok(bytes) => layers.extend(parsed(&bytes, &path)?.layer.map(|it| it.sha256)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(layers)
}

/// The number by which a record's file is named; others are left by a crash, or being written.
fn number_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

fn parsed(bytes: &[u8], path: &Path) -> io::Result<Record> {
    serde_json::from_slice(bytes)
        .map_err(|error| io::Error::other(format!("{} is damaged: {error}", path.display())))
}

impl Record {
    pub(crate) fn info(&self) -> Info {
        let time = |(seconds, nanos)| Some(Timestamp { seconds, nanos });
        Info {
            name: self.name.clone(),
            parent: self.parent.clone(),
            kind: self.kind as i32,
            created_at: time(self.created),
            updated_at: time(self.updated),
            labels: self.labels.clone(),
        }
    }

    /// True if one of containerd's filters matches, or there is none.
    pub(crate) fn matches(&self, filters: &[String]) -> bool {
        filters.is_empty() || filters.iter().any(|filter| self.matches_all(filter))
    }

    /// True if all selectors of a filter match (`kind==active,labels."a.b"==c`). A regular
    /// expression is not looked at: the client checks again.
    fn matches_all(&self, filter: &str) -> bool {
        let mut rest = filter;
        while !rest.is_empty() {
            let (selector, after) = split_outside_quotes(rest, ',');
            rest = after;
            let operator = ["==", "!=", "~="].iter().find_map(|it| {
                let at = find_outside_quotes(selector, it)?;
                Some((&selector[..at], *it, unquoted(&selector[at + 2..])))
            });
            let Some((field, operator, value)) = operator else {
                if self.field(selector).is_none() {
                    return false;
                }
                continue;
            };
            let found = self.field(field);
            let is_match = match operator {
                "==" => found.as_deref() == Some(&value),
                "!=" => found.as_deref() != Some(&value),
                // A pattern (`~=`) is left to the client; a record without the field cannot match.
                _ => found.is_some(),
            };
            if !is_match {
                return false;
            }
        }
        true
    }

    fn field(&self, path: &str) -> Option<String> {
        match path.trim() {
            "name" => Some(self.name.clone()),
            "parent" => Some(self.parent.clone()),
            "kind" => Some(format!("{:?}", self.kind).to_lowercase()),
            other => {
                let label = unquoted(other.strip_prefix("labels.")?);
                self.labels.get(&label).cloned()
            }
        }
    }
}

/// The snapshot that is to be committed, if it may be.
pub(crate) fn committable<'r>(
    records: &'r Records,
    request: &Commit,
) -> Result<&'r Record, Refusal> {
    let Commit {
        name, key, parent, ..
    } = request;
    if records.get(name).is_some() {
        return Err(exists(name));
    }
    let found = records.get(key).ok_or_else(|| missing(key))?;
    if found.kind != Kind::Active {
        return Err(Refusal::new(
            Code::FailedPrecondition,
            format!("snapshot {key} is not active"),
        ));
    }
    // containerd may name the parent only now, after it has unpacked layers side by side.
    if !parent.is_empty() {
        if !found.parent.is_empty() && found.parent != *parent {
            return Err(Refusal::new(
                Code::InvalidArgument,
                format!("snapshot {key} has another parent"),
            ));
        }
        check_parent(records, parent)?;
    }
    Ok(found)
}

/// Refuses a parent that is not there, or not committed.
pub(crate) fn check_parent(records: &Records, parent: &str) -> Result<(), Refusal> {
    match records.get(parent) {
        _ if parent.is_empty() => Ok(()),
        None => Err(missing(parent)),
        Some(found) if found.kind == Kind::Committed => Ok(()),
        Some(_) => Err(Refusal::new(
            Code::InvalidArgument,
            format!("the parent {parent} is not committed"),
        )),
    }
}

pub(crate) fn exists(name: &str) -> Refusal {
    Refusal::new(
        Code::AlreadyExists,
        format!("snapshot {name} already exists"),
    )
}

pub(crate) fn missing(name: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("snapshot {name} does not exist"))
}

/// The layer that labels of a remote snapshot describe, and the name that it is to have.
pub(crate) fn remote_layer(labels: &BTreeMap<String, String>) -> Option<(String, Layer)> {
    let target = labels.get("containerd.io/snapshot.ref")?;
    let digest = labels.get("containerd.io/snapshot/cri.layer-digest")?;
    // It becomes the name of a folder.
    let sha256 = digest.strip_prefix("sha256:");
    let sha256 = sha256.filter(|it| is_sha256(it))?.to_owned();
    let reference = labels.get("containerd.io/snapshot/cri.image-ref")?;
    let manifest = labels.get("containerd.io/snapshot/cri.manifest-digest");
    let image = image_url(reference, manifest.map(String::as_str));
    Some((target.clone(), Layer { image, sha256 }))
}

/// Digests (64 digits) of the layers above one, the next one first, as far as its labels name them.
pub(crate) fn layers_above(labels: &BTreeMap<String, String>, layer: &Layer) -> Vec<String> {
    let all = labels.get("containerd.io/snapshot/cri.image-layers");
    let all = all.map_or("", String::as_str).split(',');
    let digests = all.filter_map(|it| it.strip_prefix("sha256:").filter(|it| is_sha256(it)));
    // The list begins with the layer itself.
    let above = digests.skip_while(|it| *it != layer.sha256).skip(1);
    above.map(str::to_owned).collect()
}

/// The URL of an image: by its manifest's digest where that is known, since a tag may move.
fn image_url(reference: &str, manifest: Option<&str>) -> String {
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    // A colon after the last slash begins a tag; one before it a port.
    let place_end = name.rfind('/').map_or(0, |it| it + 1);
    let repository_end = name[place_end..].find(':').map(|it| place_end + it);
    match (manifest.or(digest), repository_end) {
        (Some(digest), end) => format!("oci://{}@{digest}", &name[..end.unwrap_or(name.len())]),
        (None, _) => format!("oci://{name}"),
    }
}

/// The time now: seconds and nanoseconds since 1970.
pub(crate) fn now() -> (i64, i32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    (
        seconds,
        i32::try_from(since.subsec_nanos()).unwrap_or_default(),
    )
}

fn find_outside_quotes(text: &str, wanted: &str) -> Option<usize> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if !is_quoted && text[at..].starts_with(wanted) {
            return Some(at);
        }
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_quoted,
            '"' => is_quoted = !is_quoted,
            _ => {}
        }
    }
    None
}

fn split_outside_quotes(text: &str, at: char) -> (&str, &str) {
    match find_outside_quotes(text, at.encode_utf8(&mut [0; 4])) {
        Some(found) => (&text[..found], &text[found + at.len_utf8()..]),
        None => (text, ""),
    }
}

/// A value without its quotes.
fn unquoted(text: &str) -> String {
    // Go's quotes are JSON's for all that names and digests have.
    match text.trim() {
        quoted if quoted.starts_with('"') => {
            serde_json::from_str(quoted).unwrap_or_else(|_| quoted.trim_matches('"').to_owned())
        }
        plain => plain.to_owned(),
    }
}

/// Labels are bounded by containerd to 4 KiB each.
const RECORD_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a layer that is mounted without a lock while another call commits its name.
    #[test]
    fn a_name_is_in_one_record() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::open(folder.path()).unwrap();
        let record = |id| Record {
            id,
            name: "layer".into(),
            parent: String::new(),
            kind: Kind::Committed,
            labels: BTreeMap::new(),
            created: (0, 0),
            updated: (0, 0),
            usage: (0, 0),
            layer: None,
        };
        records.put(None, record(1)).unwrap();
        let refused = records.put(None, record(2)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        records.put(Some("layer"), record(1)).unwrap();
        for records in [records, Records::open(folder.path()).unwrap()] {
            let ids: Vec<u64> = records.all().map(|it| it.id).collect();
            assert_eq!(ids, [1]);
        }
    }

    #[test]
    fn layers_above_one_are_those_that_follow_it() {
        let digit = |digit: &str| digit.repeat(64);
        let layer = Layer {
            image: String::new(),
            sha256: digit("b"),
        };
        let all = ["a", "b", "c", "d"].map(|it| format!("sha256:{}", digit(it)));
        let text = format!("{},sha256:../x", all.join(","));
        let key = "containerd.io/snapshot/cri.image-layers".to_owned();
        let labels = BTreeMap::from([(key, text)]);
        assert_eq!(layers_above(&labels, &layer), [digit("c"), digit("d")]);
        assert!(layers_above(&BTreeMap::new(), &layer).is_empty());
    }

    #[test]
    fn images_are_named_by_their_manifest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (reference, manifest, url) in [
            (
                "reg:5000/a/b:v1",
                Some(&*digest),
                format!("oci://reg:5000/a/b@{digest}"),
            ),
            (
                "reg:5000/a/b",
                Some(&*digest),
                format!("oci://reg:5000/a/b@{digest}"),
            ),
            ("reg:5000/a/b:v1", None, "oci://reg:5000/a/b:v1".into()),
            (
                &format!("reg/a:v@{digest}"),
                None,
                format!("oci://reg/a@{digest}"),
            ),
        ] {
            assert_eq!(image_url(reference, manifest), url);
        }
    }
}
