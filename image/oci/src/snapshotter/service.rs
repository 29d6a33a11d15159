//! containerd's calls, decoded and answered.
//!
//! Source: containerd, `api/services/snapshots/v1/snapshots.proto`.

use super::grpc::{Code, Handler, Refusal};
use super::messages::{Commit, Described, Key, List, Listed, Mounts, Update};
use super::records::Kind;
use super::snapshots::Snapshots;
use prost::Message;
use std::sync::Arc;

/// Answers calls from `snapshots`.
pub(crate) fn handler(snapshots: Arc<Snapshots>) -> Arc<Handler> {
    Arc::new(move |path: &str, bytes: &[u8]| {
        let method = path.strip_prefix(SERVICE).unwrap_or_default();
        let answer = call(&snapshots, method, bytes);
        if let Err(refusal) = &answer {
            tracing::debug!("{method}: {refusal}");
        }
        answer
    })
}

fn call(snapshots: &Snapshots, method: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Refusal> {
    let one = |message: &dyn Encode| Ok(vec![message.encoded()]);
    match method {
        "Prepare" => {
            let mounts = snapshots.prepare(Kind::Active, read(bytes)?)?;
            one(&Mounts { mounts })
        }
        "View" => {
            let mounts = snapshots.prepare(Kind::View, read(bytes)?)?;
            one(&Mounts { mounts })
        }
        "Mounts" => {
            let mounts = snapshots.mounts(&key(bytes)?)?;
            one(&Mounts { mounts })
        }
        "Commit" => {
            snapshots.commit(read::<Commit>(bytes)?)?;
            Ok(EMPTY.to_vec())
        }
        "Remove" => {
            snapshots.remove(&key(bytes)?)?;
            Ok(EMPTY.to_vec())
        }
        "Stat" => {
            let info = Some(snapshots.stat(&key(bytes)?)?);
            one(&Described { info })
        }
        "Update" => {
            let info = Some(snapshots.update(read::<Update>(bytes)?)?);
            one(&Described { info })
        }
        "List" => {
            let info = snapshots.list(&read::<List>(bytes)?.filters);
            let parts = info.chunks(LISTED_MAX).map(|info| {
                let info = info.to_vec();
                Listed { info }.encode_to_vec()
            });
            Ok(parts.collect())
        }
        "Usage" => one(&snapshots.usage(&key(bytes)?)?),
        "Cleanup" => {
            snapshots.cleanup();
            Ok(EMPTY.to_vec())
        }
        other => Err(Refusal::new(
            Code::Unimplemented,
            format!("there is no call `{other}`"),
        )),
    }
}

/// Messages of different types as one.
trait Encode {
    fn encoded(&self) -> Vec<u8>;
}

impl<M: Message> Encode for M {
    fn encoded(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

fn key(bytes: &[u8]) -> Result<String, Refusal> {
    Ok(read::<Key>(bytes)?.key)
}

fn read<M: Message + Default>(bytes: &[u8]) -> Result<M, Refusal> {
    M::decode(bytes).map_err(|error| Refusal::new(Code::InvalidArgument, error.to_string()))
}

/// Used where a call has nothing to answer: one message without fields.
const EMPTY: [Vec<u8>; 1] = [Vec::new()];
const SERVICE: &str = "/containerd.services.snapshots.v1.Snapshots/";
/// Snapshots of one message of a list, as containerd's own server sends them.
const LISTED_MAX: usize = 100;
