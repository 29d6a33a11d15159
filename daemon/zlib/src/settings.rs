//! Settings from the environment, read once.
//!
//! `SIDECORE_ZLIB`: `off` leaves everything to the base library, `local` never looks for a daemon;
//! `SIDECORE_ZLIB_SOCKET`: the daemon's socket.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Places where blocks may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// No blocks: the base library alone.
    Off,
    /// On the caller.
    Local,
    /// On engines where there are some.
    Engines,
}

pub(crate) struct Settings {
    pub(crate) used: Use,
    pub(crate) socket: Option<PathBuf>,
}

pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let used = match std::env::var_os("SIDECORE_ZLIB") {
            Some(word) if word == "off" => Use::Off,
            Some(word) if word == "local" => Use::Local,
            _ => Use::Engines,
        };
        let socket = std::env::var_os("SIDECORE_ZLIB_SOCKET").filter(|path| !path.is_empty());
        Settings {
            used,
            socket: socket.map(PathBuf::from),
        }
    })
}
