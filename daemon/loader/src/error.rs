//! The reasons for which a folder or a file is not loaded.

use sidecore_daemon::served::RegistryError;
use sidecore_kernel_abi::raw::ABI;
use std::io;
use std::path::PathBuf;

/// A folder whose kernels are not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The operating system refused.
    #[error("cannot read the kernels in {}: {source}", folder.display())]
    Unreadable {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another user could put kernels there.
    #[error(
        "kernels in {} are not loaded: {} {fault}; everything on the way must belong to root or \
         this user, and be writable by nobody else (`chmod go-w`)",
        folder.display(), place.display()
    )]
    Unsafe {
        /// The folder.
        folder: PathBuf,
        /// The folder, or the one above it, that is at fault.
        place: PathBuf,
        /// The fault.
        fault: Fault,
    },
}

/// A file or folder that another user could change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Another user's.
    #[error("belongs to user {uid}")]
    Owner {
        /// The owner.
        uid: u32,
    },
    /// Others may write.
    #[error("can be written by others (mode {mode:04o})")]
    Writable {
        /// Its permission bits.
        mode: u32,
    },
    /// Neither a file nor a folder, as the place wants it.
    #[error("is no regular file")]
    Kind,
}

/// A file that is not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// It is a symbolic link, which may lead anywhere.
    #[error("it is a symbolic link; put the file itself there")]
    Link,
    /// Another user could have written it.
    #[error("it {0}; it must be a file of root or this user that nobody else can write")]
    Unsafe(#[from] Fault),
    /// Longer than any object should be.
    #[error("it has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The operating system refused.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// The dynamic linker refused.
    #[error("the dynamic linker says: {0}")]
    Linker(String),
    /// It exports no module.
    #[error(
        "it does not export sidecore_kernel_module; see SIDECORE_KERNEL_MODULE in \
         sidecore_kernel.h"
    )]
    NoModule,
    /// Built for another version of the ABI.
    #[error(
        "it was built for version {abi} of the kernel ABI, this daemon has {ABI}; build it anew"
    )]
    Abi {
        /// Its version.
        abi: u32,
    },
    /// A table that makes no sense.
    #[error("its table of kernels makes no sense: {0}")]
    Table(String),
    /// A kernel that asks for more than an engine has.
    #[error("kernel `{name}` asks for a local store of {bytes} bytes, an engine has {has}")]
    Store {
        /// The kernel.
        name: String,
        /// Bytes that it asks for.
        bytes: u64,
        /// Bytes that there are.
        has: usize,
    },
    /// The process that links it gave no kernels.
    #[error("{0}")]
    Host(String),
    /// It asks for more than this daemon gives.
    #[error("it asks for {asked} {what}, this daemon gives at most {most} ({option})")]
    Limit {
        /// The limit.
        what: &'static str,
        /// The amount that it asks for.
        asked: u64,
        /// The most that there is.
        most: u64,
        /// The daemon's option.
        option: &'static str,
    },
    /// A kernel that the registry refuses.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}
