//! Options for the cache, keys and trust of an image.

use anyhow::{Context, Result};
use sidecore_remote::access::Access;
pub(crate) use sidecore_remote::access::{Opened, is_remote, name, open_bytes};
use sidecore_terminal::quantity;
use std::path::PathBuf;

/// Cache and trust of an image.
#[derive(clap::Args, Clone)]
pub(crate) struct AccessArgs {
    /// Directory that caches frames of a remote image; processes may share it
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Upper bound of the cache; the least recently used goes first
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "4GiB")]
    cache_size: u64,
    /// Take the image only if this is its root hash, as `pack --tree` printed it; every frame is
    /// checked against it before it is used
    #[arg(long, value_name = "HASH")]
    root_hash: Option<String>,
    /// Take the image only if the owner of this key has signed it: a public Ed25519 key in PEM; one
    /// match among several keys is enough
    #[arg(long, value_name = "KEY")]
    verify_key: Vec<PathBuf>,
    /// Index of a zstd file that has none, as `block index` makes it; FILE.sidx next to the file is
    /// used automatically
    #[arg(long, value_name = "FILE")]
    sidx: Option<PathBuf>,
    /// File with identities (`AGE-SECRET-KEY-1...`) that open an encrypted image; may be given
    /// again
    #[arg(long, value_name = "FILE")]
    identity: Vec<PathBuf>,
    /// File whose first line is the passphrase of an encrypted image
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

impl AccessArgs {
    /// Makes relative paths absolute, for a server that changes its directory.
    pub(super) fn make_absolute(&mut self) -> Result<()> {
        let files = [&mut self.cache, &mut self.sidx, &mut self.passphrase_file];
        let lists = self.verify_key.iter_mut().chain(&mut self.identity);
        files
            .into_iter()
            .flatten()
            .chain(lists)
            .try_for_each(make_absolute)
    }

    /// True where keys that open an encrypted image are named.
    pub(super) fn has_secrets(&self) -> bool {
        !self.identity.is_empty() || self.passphrase_file.is_some()
    }

    /// The same, its files of keys read.
    pub(crate) fn access(&self) -> Result<Access> {
        let mut access = Access {
            cache: self.cache.clone().map(|folder| (folder, self.cache_size)),
            sidx: self.sidx.clone(),
            ..Access::default()
        };
        if let Some(digits) = &self.root_hash {
            access.trust.add_root(digits)?;
        }
        for key in &self.verify_key {
            access.trust.add_key(key)?;
        }
        for path in &self.identity {
            access.secrets.add_identities(path)?;
        }
        if let Some(path) = &self.passphrase_file {
            access.secrets.add_passphrase(path)?;
        }
        Ok(access)
    }
}

/// Makes a path absolute.
pub(crate) fn make_absolute(path: &mut PathBuf) -> Result<()> {
    let absolute = std::path::absolute(&*path);
    *path = absolute.with_context(|| format!("cannot use the path {}", path.display()))?;
    Ok(())
}
