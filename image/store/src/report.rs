//! Reports of a store's commands for people; programs get the same figures serialized.

use crate::{Added, Checked, Collected, Compacted, Copied, Listed, Store, Totals};
use serde::Serialize;
use sidecore_sys::text::bytes;
use sidecore_terminal::{Table, Text};
use std::path::Path;

/// A store that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Made {
    store: String,
    chunk_bytes: u32,
}

impl Made {
    /// Of the store in a folder.
    #[must_use]
    pub fn of(folder: &Path, store: &Store) -> Self {
        Self {
            store: folder.display().to_string(),
            chunk_bytes: store.chunk_bytes(),
        }
    }

    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let chunk = bytes(self.chunk_bytes.into());
        format!("{}: a store with chunks of {chunk} on average", self.store).into()
    }
}

/// A file of keys, and the number of the current one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Keys {
    file: String,
    key: u32,
}

impl Keys {
    /// Of a file whose current key has this number.
    #[must_use]
    pub fn of(file: &Path, key: u32) -> Self {
        let file = file.display().to_string();
        Self { file, key }
    }

    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        format!("{}: key {} is the current one", self.file, self.key).into()
    }
}

/// Removed versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Their number.
    pub removed: usize,
}

impl Removed {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        format!("{} versions removed", self.removed).into()
    }
}

/// A collection, with the compaction that came before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gone {
    /// The collection.
    #[serde(flatten)]
    pub collected: Collected,
    /// The compaction.
    #[serde(flatten)]
    pub compacted: Compacted,
}

impl Added {
    /// The same for people; `seconds` is the time that it took.
    #[must_use]
    pub fn text(&self, seconds: f64) -> Text {
        let (raw, stored) = (bytes(self.raw_bytes), bytes(self.stored_bytes));
        let (name, new, all) = (&self.name, self.new_chunks, self.chunks);
        format!("{name}: {raw}, {new} of {all} chunks new, {stored} stored in {seconds:.1} s")
            .into()
    }
}

impl Listed {
    /// A table of versions.
    #[must_use]
    pub fn table(versions: &[Self]) -> Text {
        let row = |it: &Self| {
            let digest = it.digest.as_deref().unwrap_or("-");
            let digest = digest.get(..16).unwrap_or(digest).to_owned();
            let encrypted = match it.key {
                0 => "-".to_owned(),
                key => format!("key {key}"),
            };
            vec![it.name.clone(), bytes(it.raw_bytes), encrypted, digest]
        };
        let rows = versions.iter().map(row).collect();
        Table::of(&["name", "size", "encrypted", "contents"], rows).into()
    }
}

impl Checked {
    /// The same for people: each fault, and the figures.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.lines(self.faults.iter().cloned());
        let faults = self.faults.len();
        let (versions, opened) = (self.versions, self.opened);
        let (packs, read) = (self.packs, bytes(self.read_bytes));
        text.line(format!(
            "{versions} versions ({opened} opened), {packs} packs, {read} read: {faults} faults"
        ));
        text
    }
}

impl Copied {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let (versions, unchanged) = (self.versions, self.unchanged);
        let (objects, written) = (self.objects, bytes(self.copied_bytes));
        let same = format!("{versions} versions, {unchanged} of them were there");
        format!("{same}; {objects} objects with {written} written").into()
    }
}

impl Totals {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.fact("versions", self.versions.to_string());
        text.fact("contents", bytes(self.raw_bytes));
        let (stored, packs) = (bytes(self.stored_bytes), self.packs);
        text.fact("stored", format!("{stored} in {packs} packs"));
        text.fact("ratio", format!("{:.2}:1", self.ratio));
        text.fact("to be freed", bytes(self.condemned_bytes));
        text.fact("chunks", bytes(self.chunk_bytes.into()));
        text
    }
}

impl Gone {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        let Self {
            collected,
            compacted,
        } = self;
        let mut text = Text::new();
        if compacted.moved_bytes > 0 {
            let moved = bytes(compacted.moved_bytes);
            text.line(format!("{moved} moved to new packs"));
        }
        let (removed, freed) = (collected.removed, bytes(collected.removed_bytes));
        let (waiting, leases) = (collected.waiting, collected.leases);
        let gone = format!("{removed} objects with {freed} removed");
        text.line(format!(
            "{gone}, {waiting} wait for their time; {leases} writers at work"
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreError;

    #[test]
    fn a_collection_names_what_was_moved_only_where_something_was() {
        let collected = Collected {
            removed: 2,
            removed_bytes: 3 << 20,
            ..Collected::default()
        };
        let text = |moved_bytes| {
            let compacted = Compacted {
                moved_bytes,
                ..Compacted::default()
            };
            let gone = Gone {
                collected,
                compacted,
            };
            gone.text().render(None)
        };
        assert!(
            text(0).starts_with("2 objects with 3 MiB removed"),
            "{}",
            text(0)
        );
        assert!(
            text(1 << 10).starts_with("1 KiB moved"),
            "{}",
            text(1 << 10)
        );
    }

    #[test]
    fn chunks_of_no_such_size_make_no_folder() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("store");
        for size in [0, 5 << 10, 2 << 20, u64::MAX] {
            let refused = Store::create_in(&folder, size);
            assert!(matches!(refused.err(), Some(StoreError::ChunkBytes(own)) if own == size));
        }
        assert!(!folder.exists());
        assert_eq!(
            Store::create_in(&folder, 4 << 10).unwrap().chunk_bytes(),
            4096
        );
    }
}
