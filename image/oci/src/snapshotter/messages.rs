//! Messages of containerd's service for snapshots.
//!
//! Why here: written out instead of generated, so that a build needs no `protoc`. Must stay true:
//! numbers and types of fields are containerd's; unknown fields are skipped.
//! Source: containerd, `api/services/snapshots/v1/snapshots.proto` and `api/types/mount.proto`.

use prost::Message;
use std::collections::BTreeMap;

/// `PrepareSnapshotRequest` and `ViewSnapshotRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Prepare {
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    #[prost(string, tag = "3")]
    pub(crate) parent: String,
    #[prost(btree_map = "string, string", tag = "4")]
    pub(crate) labels: BTreeMap<String, String>,
}

/// Any request with a key alone: `Mounts`, `Remove`, `Stat`, `Usage`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Key {
    #[prost(string, tag = "2")]
    pub(crate) key: String,
}

/// `CommitSnapshotRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Commit {
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) key: String,
    #[prost(btree_map = "string, string", tag = "4")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(string, tag = "5")]
    pub(crate) parent: String,
}

/// `UpdateSnapshotRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Update {
    #[prost(message, optional, tag = "2")]
    pub(crate) info: Option<Info>,
    #[prost(message, optional, tag = "3")]
    pub(crate) mask: Option<Mask>,
}

/// `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mask {
    #[prost(string, repeated, tag = "1")]
    pub(crate) paths: Vec<String>,
}

/// `ListSnapshotsRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct List {
    #[prost(string, repeated, tag = "2")]
    pub(crate) filters: Vec<String>,
}

/// `ListSnapshotsResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Listed {
    #[prost(message, repeated, tag = "1")]
    pub(crate) info: Vec<Info>,
}

/// A response that holds mounts.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mounts {
    #[prost(message, repeated, tag = "1")]
    pub(crate) mounts: Vec<Mount>,
}

/// `containerd.types.Mount`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) source: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) options: Vec<String>,
}

/// A response that holds an [`Info`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Described {
    #[prost(message, optional, tag = "1")]
    pub(crate) info: Option<Info>,
}

/// `Info`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Info {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) parent: String,
    #[prost(int32, tag = "3")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "4")]
    pub(crate) created_at: Option<Timestamp>,
    #[prost(message, optional, tag = "5")]
    pub(crate) updated_at: Option<Timestamp>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) labels: BTreeMap<String, String>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// `UsageResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Usage {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
    #[prost(int64, tag = "2")]
    pub(crate) inodes: i64,
}
